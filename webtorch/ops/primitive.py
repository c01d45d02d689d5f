"""The primitives: the few operations that floor 4 records as graph nodes, and their gradient rules. May import floor 0 only.

Everything that is not a primitive or an elementwise formula is written with these. They check nothing: shapes and types are
right when they are called. They are not public.
"""

from __future__ import annotations

from typing import Any

from webtorch.ops.record import Op, register


def _primitive(name: str, signature: str, doc: str) -> Op:
    op = Op(name=name, family="composite", signature=signature, doc=doc, function_in=())
    register(op)
    return op


as_view = _primitive(
    "_view",
    "(x, shape, strides, offset)",
    "A view of x's own storage: shape, strides and absolute offset in elements. Shares memory; differentiable.",
)
pad_with = _primitive(
    "_pad", "(x, low, high, value)", "x inside a border of `value`: per-dim counts before and after (all >= 0). Differentiable in x."
)
reduce_dims = _primitive(
    "_reduce",
    "(x, combine, dims)",
    "Combine over `dims` (a sorted tuple), which stay as size 1. combine: sum prod max min any all argmax argmin. Not empty. Differentiable (sum, max, min).",
)
take = _primitive(
    "_take",
    "(x, indices, name, wrap=False)",
    "out[b..., r...] = x[indices[0][b], indices[1][b], ..., r]: integer index tensors of one shape b pick along x's first dims. "
    "Bounds are checked on the device, errors name `name` and the dim; wrap=True allows negative indices. Differentiable in x.",
)
scatter = _primitive(
    "_scatter",
    "(base, indices, values, combine, name, wrap=False)",
    "A copy of base with base[indices[0][b], ..., r] combined with values[b, r]; combine: set add mul max min. Differentiable for set and add.",
)
matmul3 = _primitive("_matmul", "(a, b)", "Batched product of (B, M, K) and (B, K, N); one type. Strided operands are read in place. Differentiable.")
conv2d_raw = _primitive(
    "_conv2d",
    "(kind, a, b, input_shape, weight_shape, output_shape, stride, padding, dilation, groups)",
    'kind "forward": (input, weight); "input": (grad_output, weight); "weight": (input, grad_output). Differentiable in both.',
)
scan = _primitive("_scan", "(x, combine, dim)", "Running sum, prod, max or min along `dim`. Differentiable for sum.")
fill = _primitive("_fill", "(shape, value, dtype, device)", "A new tensor of one value (a runtime argument).")
iota = _primitive("_iota", "(count, start, step, dtype, device)", "start + i * step for i < count, computed in dtype (1-d).")
philox = _primitive(
    "_philox",
    "(shape, seed, offset, dtype, device, kind='uniform', low=0)",
    "Counter-based random numbers: element i uses Philox4x32-10 with key `seed` (64 bits) and counter (i // 4 + offset); kind "
    "'uniform': float in [0, 1); 'normal': Box-Muller; 'bits': 32 random bits as int64/int32-held uint32.",
)
cast_to = _primitive("_cast", "(x, dtype)", "x converted to dtype (a new tensor even if the type is the same is not made). Differentiable between floats.")
copy = _primitive("_copy", "(x)", "A contiguous copy of x in new storage. Differentiable.")
write = _primitive("_write", "(x, values)", "Overwrite x's elements in place with `values` (same shape and type); version, views and gradients follow PyTorch.")
