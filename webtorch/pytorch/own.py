"""Kernels with a form of their own: memory, creation and devices, and those that look at PyTorch's tensors. Floor 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from webtorch.ops.primitive import fill, iota, matmul3
from webtorch.pytorch import device
from webtorch.pytorch.aten.random import source
from webtorch.pytorch.aten.table import FUNCTIONS, op
from webtorch.pytorch.device import (
    TO_WEBTORCH,
    check_device,
    copy_from,
    here,
    new_tensor,
    offset_of,
    resize_to,
    store,
    tensor_on,
    webtorch_dtype,
    wrap,
    wrap_memory,
)
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.kernels import Kernel, operand, own
from webtorch.tensors.tensor import Tensor

own("set_")(device.set_to_nothing)
own("set_.source_Storage_storage_offset")(device.set_)
own("set_.source_Storage")(
    lambda x, source: device.set_(x, source, 0, (source.nbytes() // x.element_size(),))
)
own("resize_")(device.resize_)
own("_copy_from")(copy_from)
own("_to_copy")(device.to_copy)
own("_local_scalar_dense")(device.item)
# Padded batches stay dense: no jagged tensors here.
own("_nested_tensor_from_mask_left_aligned")(lambda x, mask: False)
own("record_stream")(lambda x, stream: None)
own("is_pinned")(lambda x, device=None: False)


@own("arange.start_out")
def _arange(
    start: float | torch.Tensor,
    end: float | torch.Tensor,
    step: float | torch.Tensor = 1,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    values = [v.item() if isinstance(v, torch.Tensor) else v for v in (start, end, step)]
    result = op.arange(*values, dtype=webtorch_dtype(out.dtype), device=here())
    resize_to(out, result._shape)
    store(out, result, fresh=True)
    return out


@own("range.out")
def _range(start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
    if step == 0:
        raise RuntimeError("range: step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"range: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"range({start}, {end}, {step}): upper bound and lower bound inconsistent with step sign"
        )
    count = math.floor((end - start) / step) + 1
    kind = webtorch_dtype(out.dtype)
    if kind.is_integral:
        start, step = int(start), int(step)
    result = iota(count, start, step, kind, here())
    resize_to(out, result._shape)
    store(out, result, fresh=True)
    return out


@own("linspace.out")
def _linspace(
    start: float | torch.Tensor, end: float | torch.Tensor, steps: int, *, out: torch.Tensor
) -> torch.Tensor:
    result = op.linspace(start, end, steps, dtype=webtorch_dtype(out.dtype), device=here())
    return _spaced(out, result)


def _spaced(out: torch.Tensor, result: Tensor) -> torch.Tensor:
    """Put a row of numbers into `out`, which keeps its shape where it has as many elements."""
    if out.numel() != result.numel():
        device.resize_(out, result._shape)
    store(out, result.reshape(tuple(out.shape)), fresh=True)
    return out


@own("logspace.out")
def _logspace(
    start: float | torch.Tensor,
    end: float | torch.Tensor,
    steps: int,
    base: float = 10.0,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    result = op.logspace(start, end, steps, base, dtype=webtorch_dtype(out.dtype), device=here())
    return _spaced(out, result)


@own("eye.out", "eye.m_out")
def _eye(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    result = op.eye(n, n if m is None else m, dtype=webtorch_dtype(out.dtype), device=here())
    device.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


@own("randperm.generator_out")
def _randperm(
    n: int, *, generator: torch.Generator | None = None, out: torch.Tensor
) -> torch.Tensor:
    result = op.randperm(
        n, generator=source(generator, here()), dtype=webtorch_dtype(out.dtype), device=here()
    )
    device.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


def _triangle_indices(name: str) -> Kernel:
    def kernel(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: torch.dtype | None = None,
        layout: object = None,
        device: torch.device | None = None,
        pin_memory: object = None,
    ) -> torch.Tensor:
        """Return the positions (2, N). Raises NotImplementedError for a dtype that is no integer's."""
        check_device(device)
        kind = webtorch_dtype(dtype or torch.int64)
        if not kind.is_integral:
            raise NotImplementedError(f'"{name}" not implemented for {dtype}: it makes integers')
        found = getattr(op, name)(row, col, offset, dtype=kind, device=here())
        return new_tensor(found, fresh=True)

    return kernel


def _cumulative(name: str) -> Kernel:
    def kernel(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        """Write the running extremes and their positions."""
        found = getattr(op, name)(wrap(x), dim)
        store(values, found[0], fresh=True)
        store(indices, found[1], fresh=True)

    return kernel


own("tril_indices")(_triangle_indices("tril_indices"))
own("triu_indices")(_triangle_indices("triu_indices"))
own("_cummax_helper")(_cumulative("cummax"))
own("_cummin_helper")(_cumulative("cummin"))


@own("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    bad = wrap(found_inf)
    scale = wrap(inv_scale)
    for g in grads:
        x = wrap(g)
        bad = op.maximum(bad, op.where(op.all(op.isfinite(x)), 0.0, 1.0))
        store(g, x * scale, fresh=True)
    store(found_inf, bad, fresh=True)


def _matrix(x: torch.Tensor, memory: device.Memory) -> Tensor:
    """Return a matrix that is not empty as a batch of one."""
    kind, (row, column), offset = TO_WEBTORCH[x.dtype], x.stride(), offset_of(x)
    m, n = x.shape
    found = memory.storage
    if memory.laid is not None:
        return wrap_memory(x, memory).unsqueeze(0)
    storage = found if found is not None and found.dtype is kind else memory.typed(kind)
    whole = not offset and m * n == storage.elements and x.is_contiguous()
    return Tensor._from_storage(storage, (1, m, n), (0, row, column), offset, whole)


@own("mm")
def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`aten::mm`, of which backward passes are made: matrices that need no word said go the shortest way."""
    if flag.pressed:
        check()
    left = getattr(a.untyped_storage(), "_webgpu", None)
    right = getattr(b.untyped_storage(), "_webgpu", None)
    shape, other, dtype = a.shape, b.shape, a.dtype
    if (
        left is None
        or right is None
        or dtype is not b.dtype
        or not dtype.is_floating_point
        or not len(shape) == len(other) == 2
        or shape[1] != other[0]
        or 0 in shape
        or 0 in other
        or a.is_neg()
        or b.is_neg()
    ):
        return new_tensor(FUNCTIONS["mm"](operand(a, "mm"), operand(b, "mm")), fresh=True)
    found = matmul3(_matrix(a, left), _matrix(b, right))
    _, m, n = found._shape
    return tensor_on(found._storage, dtype, (m, n), (n, 1), 0)


@own("_efficientzerotensor")
def _zero_tensor(
    size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object
) -> torch.Tensor:
    kind = webtorch_dtype(dtype or torch.get_default_dtype())
    return new_tensor(fill(tuple(size), 0, kind, here()), fresh=True)


@own("_copy_from_and_resize")
def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    resize_to(dst, src.shape)
    return copy_from(src, dst)


def to_layout(x: torch.Tensor, *, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """PyTorch's `to`, always blocking: else it would ask for pinned memory of the host, which is not there."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch.ops.aten.to.dtype_layout._op_dk(composite, x, **options)
