"""Names of torch.optim.optimizer for annotations."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeAlias

from webtorch.functions import public as webtorch
from webtorch.optim.lbfgs import cubic_minimum
from webtorch.tensors.tensor import Tensor

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
params_t = _params_t = ParamsT
StateDict: TypeAlias = dict[str, Any]


class _RequiredParameter:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()


def _use_grad_for_differentiable(func: Any) -> Any:
    """Return a step that records gradients only for an optimizer made with differentiable=True."""

    @functools.wraps(func)
    def step(self: Any, *args: object, **kwargs: object) -> object:
        """Call the step, recorded if the optimizer is differentiable."""
        with webtorch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return func(self, *args, **kwargs)

    return step


def _default_to_fused_or_foreach(
    params: list[Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Return (False, False): the steps of all parameters are computed together anyway."""
    return False, False


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    return ["webgpu"]


def _cubic_interpolate(
    x1: float, f1: float, g1: float, x2: float, f2: float, g2: float,
    bounds: tuple[float, float] | None = None,
) -> float:  # fmt: skip
    """Return where the cubic through two points with slopes is least, between them or within bounds."""
    low, high = bounds or (min(x1, x2), max(x1, x2))
    return cubic_minimum((x1, f1, g1), (x2, f2, g2), low, high)
