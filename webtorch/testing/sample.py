"""`webtorch.testing.make_tensor`. Floor 5."""

from __future__ import annotations

import math
import warnings
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.limits import finfo, iinfo
from webtorch.tensors.tensor import Tensor


def make_tensor(
    *shape: Any,
    dtype: webtorch.dtype,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Return a tensor of random numbers in [low, high), by default -9 to 9 (0 to 9 unsigned, 0 or 1
    of bool). With `exclude_zero` zeros become the smallest positive number.
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if dtype.is_complex:
        parts = make_tensor(
            *sizes, 2, dtype=dtype.to_real(), device=device, low=low, high=high,
            exclude_zero=exclude_zero,
        )  # fmt: skip
        # A tensor of its own, no view.
        out = webtorch.view_as_complex(parts).clone()
        if noncontiguous and out.numel() > 1:
            out = webtorch.repeat_interleave(out, 2, dim=-1)[..., ::2]
        if memory_format is not None:
            out = out.contiguous(memory_format=memory_format)
        return out.requires_grad_(requires_grad)
    whole = not dtype.is_floating_point
    lowest, highest = (0, 2) if dtype is webtorch.bool else (-9, 10 if whole else 9)
    if dtype.kind == "uint":
        lowest = 0
    first, last = lowest if low is None else low, highest if high is None else high
    if first == last and not whole:
        warnings.warn(
            "Passing `low==high` to `torch.testing.make_tensor` for floating or complex types is deprecated since 2.1 "
            "and will be removed in 2.3. Use `torch.full(...)` instead.",
            FutureWarning,
            stacklevel=user_depth(),
        )
    elif first >= last:
        raise ValueError(f"make_tensor: low must be below high, got {first} >= {last}")
    wide = (*sizes[:-1], 2 * sizes[-1]) if noncontiguous and sizes else sizes
    if whole:
        limits = iinfo(dtype) if dtype is not webtorch.bool else None
        first, last = math.ceil(first), math.ceil(last)
        if limits is not None:
            first, last = max(first, limits.min), min(last, limits.max + 1)
        out = webtorch.randint(int(first), int(last), wide, device=device).to(dtype)
    else:
        out = (webtorch.rand(wide, device=device) * (last - first) + first).to(dtype)
    if noncontiguous and sizes:
        out = out[..., ::2]
    if exclude_zero:
        tiny = 1 if whole else finfo(dtype).tiny
        out = webtorch.where(out == 0, webtorch.full_like(out, tiny), out)
    if memory_format is not None:
        out = out.contiguous(memory_format=memory_format)
    return out.requires_grad_(requires_grad)
