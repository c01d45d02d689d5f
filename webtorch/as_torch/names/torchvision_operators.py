"""torchvision's compiled operators: those of `webtorch.nn.regions`. Floor 6.

They are given to `torch.ops.torchvision` when torchvision asks for its library of C++ operators. What they
are made of is differentiable, so torchvision's own gradients are not used. Regions have no gradient, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from webtorch.as_torch.names.library import CustomOpDef
from webtorch.nn import regions


class _Operator(CustomOpDef):
    """An operator whose gradient is that of what it is made of."""

    def register_autograd(
        self,
        backward: Callable[..., object],
        /,
        *,
        setup_context: Callable[..., object] | None = None,
    ) -> None:
        """Do nothing."""


def _absent(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        """Raise NotImplementedError: the operator needs PyTorch's C++ core."""
        raise NotImplementedError(
            f"torchvision.ops.{name.strip('_')}: this operator of torchvision is compiled for PyTorch's C++ core. "
            f"{', '.join(sorted(regions.__all__))} are available"
        )

    return refuse


_WRITTEN: dict[str, Callable[..., object]] = {
    **{name: getattr(regions, name) for name in regions.__all__},
    "_cuda_version": lambda: -1,
}
_OTHERS = """qnms qroi_align box_iou_rotated _roi_align_backward _roi_pool_backward
    _ps_roi_align_backward _ps_roi_pool_backward _deform_conv2d_backward"""


def register() -> None:
    """Give `torch.ops.torchvision` its operators."""
    for name, function in _WRITTEN.items():
        _Operator(f"torchvision::{name}", function)
    for name in _OTHERS.split():
        _Operator(f"torchvision::{name}", _absent(name))
