"""Which operations of PyTorch's test database count, and under which name."""

from __future__ import annotations

import warnings

import torch

with warnings.catch_warnings():
    # The database warns of optional packages when it is imported.
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo

DTYPES = (
    "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "float64", "complex64", "int16", "int8",
)  # fmt: skip
DEVICES = ("cpu", "webgpu")
# What WebGPU is checked with: the others are held in these.
ON_WEBGPU = ("float32", "float16", "int32", "bool")
# Not part of webtorch's surface, by the start of the name, with the reason.
OUTSIDE = {
    "sparse.": "sparse layouts",
    "to_sparse": "sparse layouts",
    "jiterator_": "CUDA source text",
    "torch.ops.": "private",
    "torch._": "private",
    "_": "private",
    "chalf": "complex numbers of 16 bits",
    "hash_tensor": "results of uint64, which WebGPU lacks",
    # Called as torch.ops.aten.
    "slice": "private",
    "native_dropout_backward": "private",
    "max_pool2d_with_indices_backward": "private",
}
# Names that start like those above and still count.
INSIDE = ("slice_scatter", "_segment_reduce", "__")


def title(op: OpInfo) -> str:
    """Return the name of an operation with its variant, the key of all results."""
    return f"{op.name} ({op.variant_test_name})" if op.variant_test_name else op.name


def outside(op: OpInfo) -> str | None:
    """Return why an operation does not count; None if it does."""
    if op.name.startswith(INSIDE):
        return None
    return next((why for start, why in OUTSIDE.items() if op.name.startswith(start)), None)


def operations() -> dict[str, OpInfo]:
    """Return the operations that count, by title, in the database's order."""
    return {title(op): op for op in op_db if outside(op) is None}


def takes(op: OpInfo, dtype: str) -> bool:
    """Whether PyTorch has the operation for this type, and the results are not complex numbers of 16 bits."""
    if dtype == "float16" and op.name in ("complex", "view_as_complex"):
        return False
    return getattr(torch, dtype) in op.dtypes
