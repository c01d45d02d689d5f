"""Records attention whose scores are never in memory, with its gradients. Floor 4.

The kernels are those of `lower/templates/attention.py` and of the CPU's `flash.py` and `attention.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from webtorch.ir.dtype import DType, Scalar, float16, float32, float64
from webtorch.ir.kernel import Attention, BufferSlot
from webtorch.ir.limits import Limits
from webtorch.lower.templates.attention import fits
from webtorch.ops import primitive
from webtorch.runtime.realize import Runtime
from webtorch.tensors.host import random_words
from webtorch.tensors.modes import mode, records_for_pages
from webtorch.tensors.primitives import cast_to, copy, record, reduce_dims
from webtorch.tensors.tape import SavedTensor, attach, needs_grad
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import as_view

# Bytes of scores from which they are not stored where there is no fast kernel without: on a CPU for other
# types than float32 or without a compiler, and by an adapter that runs on a CPU. There it was at best
# 1.3 times as slow as products, and several times where the threads of NumPy's BLAS and ours wait for each
# other. So only where scores, softmax and gradients would take more memory than many devices have.
_MANY_SCORES = 2 << 30
# Queries from which a GPU computes attention without scores in memory: a tile of fewer is mostly empty.
# Measured on an H200, causal, forward and backward: float32 8x12x1024x64 1.7 ms, with products 2.2;
# 32x6x256x64 0.33 and 0.45 (with copies of transposed operands); float16 8x12x2048x64 6.8 and 9.3 ms,
# on matrix units 2.2 and 5.5.
_QUERIES = 16


@lru_cache(maxsize=256)
def _fits(limits: Limits, sizes: tuple[int, int, int, int]) -> bool:
    """Whether there are kernels for every part."""
    slots = (BufferSlot(float32, "read", 1),) * 9
    every = Attention(
        "", "backward", 1, 1, 1, *sizes, False, False, False, (0, 1, 2), (), (), slots
    )
    return fits(every, limits)


def suits_shapes(
    runtime: Runtime, dtype: DType, query: Sequence[int], value: Sequence[int]
) -> bool:
    """Whether a kernel that keeps scores out of memory serves better than products, for a query (B, H, L, E) and
    a value (B, G, S, V).

    WEBTORCH_ATTENTION=fused takes it wherever one exists, =products never.
    """
    wanted = os.environ.get("WEBTORCH_ATTENTION", "")
    if wanted == "products":
        return False
    limits = runtime.backend.limits
    batch, heads, length, size = query
    source, width = value[2:]
    if runtime.kind != "cpu":
        # A captured program may be exported for a browser, whose workgroups have 16 KB.
        least = min(limits.workgroup_memory_bytes, 16384)
        sizes = size, width
        if _has_units(runtime, dtype):
            sizes = _fragments(size), _fragments(width)
        if not _fits(replace(limits, workgroup_memory_bytes=least), (length, source, *sizes)):
            return False
    if wanted == "fused":
        return True
    if limits.has_attention and dtype is float32 and not records_for_pages():
        return True
    if limits.is_gpu and length >= _QUERIES:
        # On matrix units products are ten times as fast as those that are written out here, and so
        # are kernels for heads of whole fragments, which `Parts` makes of rows of whole vectors.
        return not _has_units(runtime, dtype) or not (size % 8 or width % 8)
    return 4 * batch * heads * length * source >= _MANY_SCORES


def _has_units(runtime: Runtime, dtype: DType) -> bool:
    """Whether attention is computed on matrix units."""
    return runtime.backend.limits.has_matrix_units and dtype is float16


def _fragments(size: int) -> int:
    """Return `size` rounded up to whole fragments of matrix units."""
    return -(-size // 16) * 16


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: Scalar,
    dropout: tuple[float, int, int] | None,
    again: Callable[..., object],
) -> Tensor:
    """Return softmax(query key^T scale + mask) value."""
    operands = [query, key, value] if mask is None else [query, key, value, mask]
    parts = Parts(operands, causal, scale, dropout)
    out = parts.result()
    if not needs_grad((query, key, value)):
        return out
    stats = parts.statistics(out)
    saved = [SavedTensor(t) for t in parts.inputs]
    result, statistics = SavedTensor(out, output=0), SavedTensor(stats)
    needs = tuple([t.requires_grad for t in (query, key, value)])
    args = (needs, causal, scale, dropout, again)
    kept = (*saved, result, statistics)
    return attach(out, "ScaledDotProductAttention", (query, key, value), _back, kept, args)


def _back(g: Tensor, *values: Any) -> tuple[Tensor | None, ...]:
    """Return the cotangents of query, key and value."""
    *inputs, out, statistics, needs, causal, scale, dropout, again = values
    if mode.grad or needs_grad((*inputs[:3], g)):
        # To be differentiated again, backwards or forwards: with products.
        mask = inputs[3] if len(inputs) == 4 else None
        return tuple(again(*inputs[:3], mask, causal, scale, dropout, g))
    return Parts(inputs, causal, scale, dropout).gradients(out, statistics, g, needs)


class Parts:
    """The kernels of one attention: what they read, and each of their results.

    On matrix units heads are made as long as whole fragments of 16, with zeros, which change no score
    and give results that are cut off again: 40 for 48 elements are read and multiplied.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        causal: bool,
        scale: Scalar,
        dropout: tuple[float, int, int] | None = None,
    ) -> None:
        """`inputs`: query, key, value and, if there is one, the mask, as `attention` takes them."""
        self.inputs = inputs
        query = inputs[0]
        self.traits = (causal, len(inputs) == 4, dropout is not None)
        self.scalars: tuple[Scalar, ...] = (scale,)
        if dropout is not None:
            self.scalars = (scale, dropout[0], *random_words(*dropout[1:]))
        self.dtype = query.dtype
        # What sums are in.
        self.wide: DType = float64 if self.dtype is float64 else float32
        heads = inputs[:3]
        if _has_units(query._storage.runtime, self.dtype):
            heads = [_lengthened(x) for x in heads]
        # What the kernels read.
        self.operands = [*heads, *inputs[3:]]
        self._whole: Tensor | None = None

    def _part(
        self, name: str, inputs: list[Tensor], number: int, shape: Any, dtype: DType
    ) -> Tensor:
        attrs = (name, number, *self.traits)
        return record("attention", inputs, attrs, self.scalars, tuple(shape), dtype)

    def result(self) -> Tensor:
        """Return the attention itself: (B, H, L, V)."""
        query, _, value = self.operands[:3]
        shape = (*query._shape[:3], value._shape[3])
        self._whole = self._part("forward", self.operands, 0, shape, self.dtype)
        return _cut(self._whole, self.inputs[2]._shape[3])

    def statistics(self, out: Tensor) -> Tensor:
        """Return what backward needs of the scores: (B, H, L, 2), float32. `out` is the `result`."""
        rows = self.inputs[0]._shape[:3]
        whole = out if self._whole is None else self._whole
        return self._part("forward", [*self.operands, whole], 1, (*rows, 2), self.wide)

    def gradients(
        self, out: Tensor, statistics: Tensor, g: Tensor, needs: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Return the cotangents of query, key and value, the latter two where they are needed."""
        wide, dtype = self.wide, self.dtype
        delta = reduce_dims(cast_to(g, wide) * cast_to(out, wide), "sum", (3,))
        width = self.operands[2]._shape[3]
        sources = [*self.operands, _lengthened(g, width), statistics, delta]
        grads: list[Tensor | None] = [None, None, None]
        first = self._part("backward", sources, 0, self.operands[0]._shape, dtype)
        grads[0] = _cut(first, self.inputs[0]._shape[3])
        for i in (1, 2):
            if needs[i]:
                shape = self.operands[i]._shape
                found = self._part("backward", [*sources, first], i, shape, dtype)
                grads[i] = _cut(found, self.inputs[i]._shape[3])
        return tuple(grads)


def _lengthened(x: Tensor, length: int = 0) -> Tensor:
    """Return x with zeros after its last dim, up to `length` or, without one, a multiple of 16."""
    *rest, size = x._shape
    length = length or _fragments(size)
    if length == size:
        return x
    return record("pad", (x,), ((0,) * x.ndim,), (0,), (*rest, length), x.dtype)


def _cut(x: Tensor, length: int) -> Tensor:
    """Return the first elements of x's last dim."""
    if x._shape[-1] == length:
        return x
    return copy(as_view(x, (*x._shape[:-1], length), x._strides, x._offset))


primitive.attention.function = attention


def multiplies_narrow(query: Tensor, key: Tensor) -> bool:
    """Whether matrix units serve query (.., L, E) key^T (E, S), whose scores are then of 16 bits.

    They read rows of vectors of eight, and work on 16 x 16 x 16. Fewer queries than that stay in 16
    bits as well: a copy of all keys in float32, for each query anew, takes longer than the product.
    """
    if query.dtype is not float16 or not query._storage.runtime.backend.limits.has_matrix_units:
        return False
    size, source = query._shape[-1], key._shape[-2]
    return size % 8 == 0 and min(size, source) >= 16


primitive.multiplies_narrow.function = multiplies_narrow
