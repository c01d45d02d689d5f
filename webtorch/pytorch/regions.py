"""torchvision's compiled operators on "webgpu": `webtorch.nn.regions` as kernels of torchvision's names. Floor 6.

They are registered whether or not torchvision is there: PyTorch keeps kernels for operators that are defined later.
torchvision has the rules that lead from an operator to the one of its gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from webtorch.aten.gradients import pullback
from webtorch.aten.table import Function
from webtorch.functions.public import arange, int64, where
from webtorch.nn.regions import deform_conv2d, ps_roi_align, ps_roi_pool, roi_align
from webtorch.ops.primitive import fill, scatter
from webtorch.pytorch.kernels import AUTOCAST_KEYS
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries


def _forward(name: str) -> Function:
    def run(*args: object) -> tuple[Tensor, ...] | Tensor:
        """Return the operator's results, detached."""
        module = importlib.import_module("webtorch.nn.regions")
        found = getattr(module, name)(*[_plain(a) for a in args])
        return tuple(x.detach() for x in found) if isinstance(found, tuple) else found.detach()

    return run


def _plain(value: object) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _picture(g: Tensor, shape: Sequence[int]) -> Tensor:
    return fill(tuple(shape), 0, g.dtype, g.device)


def _roi_align_backward(
    g: Tensor, rois: Tensor, scale: float, high: int, wide: int,
    n: int, c: int, h: int, w: int, ratio: int, aligned: bool
) -> Tensor:  # fmt: skip
    # Linear in the picture: its gradient is that at any picture.
    rois = _plain(rois)
    return pullback(
        lambda x: roi_align(x, rois, scale, high, wide, ratio, aligned), [_picture(g, (n, c, h, w))], g
    )[0]  # fmt: skip


def _ps_roi_align_backward(
    g: Tensor, rois: Tensor, mapping: Tensor, scale: float, high: int, wide: int,
    ratio: int, n: int, c: int, h: int, w: int
) -> Tensor:  # fmt: skip
    rois = _plain(rois)
    return pullback(
        lambda x: ps_roi_align(x, rois, scale, high, wide, ratio)[0], [_picture(g, (n, c, h, w))], g
    )[0]


def _ps_roi_pool_backward(
    g: Tensor, rois: Tensor, mapping: Tensor, scale: float, high: int, wide: int, n: int, c: int, h: int, w: int
) -> Tensor:  # fmt: skip
    rois = _plain(rois)
    return pullback(
        lambda x: ps_roi_pool(x, rois, scale, high, wide)[0], [_picture(g, (n, c, h, w))], g
    )[0]


def _roi_pool_backward(
    g: Tensor, rois: Tensor, places: Tensor, scale: float, high: int, wide: int, n: int, c: int, h: int, w: int
) -> Tensor:  # fmt: skip
    """Add each cotangent to the place that its value was read from."""
    picture = rois[:, 0].to(int64)[:, None, None, None]
    channel = arange(c, device=g.device)[:, None, None]
    at = (picture * c + channel) * (h * w) + places.clamp(min=0).to(int64)
    added = where(places >= 0, g, 0.0)
    zeros = fill((n * c * h * w,), 0, g.dtype, g.device)
    return scatter(zeros, [at.reshape(-1)], added.reshape(-1), "add", "roi_pool").reshape(n, c, h, w)  # fmt: skip


def _deform_conv2d_backward(
    g: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    *numbers: int,
) -> tuple[Tensor, ...]:
    inputs = [_plain(x) for x in (input, weight, offset, mask, bias)]
    found = pullback(lambda *x: deform_conv2d(*x, *numbers), inputs, g, [True] * 5)
    return tuple(
        fill(x._shape, 0, x.dtype, x.device) if f is None else f
        for f, x in zip(found, inputs, strict=True)
    )


_NAMES = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
_GRADIENTS: dict[str, Function] = {
    "_roi_align_backward": _roi_align_backward,
    "_ps_roi_align_backward": _ps_roi_align_backward,
    "_ps_roi_pool_backward": _ps_roi_pool_backward,
    "_roi_pool_backward": _roi_pool_backward,
    "_deform_conv2d_backward": _deform_conv2d_backward,
}


def _widened(operator: Any) -> Function:
    """What autocast does with torchvision's operators on every device: they compute in float32."""

    def run(*args: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Compute in float32, and return the first operand's dtype."""
        low = (torch.float16, torch.bfloat16)
        guard = torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS)
        first = next(a for a in args if isinstance(a, torch.Tensor))
        wide = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]  # fmt: skip
        with guard:
            found = operator()(*wide)
        if first.dtype not in low or not isinstance(found, (torch.Tensor, tuple)):
            return found
        if isinstance(found, tuple):
            return tuple(x.to(first.dtype) if x.is_floating_point() else x for x in found)
        return found.to(first.dtype) if found.is_floating_point() else found

    return run


def register(functional: Callable[[str, Function], Function]) -> None:
    """Register the kernels; `functional` makes one of a name and a meaning."""
    library = torch.library.Library("torchvision", "IMPL")
    libraries.append(library)
    for name in _NAMES:
        kernel = functional(name, _forward(name))
        library.impl(name, hide(kernel), "PrivateUse1")
        operator = _widened(lambda name=name: getattr(torch.ops.torchvision, name))
        library.impl(name, operator, "AutocastPrivateUse1")
    for name, function in _GRADIENTS.items():
        library.impl(name, hide(functional(name, function)), "PrivateUse1")
