"""Adam and AdamW. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.functions import public as webtorch
from webtorch.ops.optimize import adam_step, square_average
from webtorch.optim.optimizer import (
    OF_BETAS,
    OF_DECAY,
    Derived,
    Group,
    Optimizer,
    check_flags,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.calls import write_result
from webtorch.tensors.tensor import Tensor

__all__ = ["Adam", "AdamW", "adam", "adamw"]


class Adam(Optimizer):
    """Adam: averages of the gradient and of its square, corrected for their start at zero.

    Kingma and Ba, 2015; `amsgrad`: Reddi et al., 2018.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "exp_avgs": "exp_avg",
        "exp_avg_sqs": "exp_avg_sq",
        "max_exp_avg_sqs": "max_exp_avg_sq",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _no_sparse: ClassVar[str] = (
        "Adam does not support sparse gradients, please consider SparseAdam instead"
    )
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_DECAY,
        **OF_BETAS,
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        """Take the options; `decoupled_weight_decay` makes it AdamW."""
        defaults = options_of(locals())
        defaults["betas"] = tuple(betas)
        check_options(defaults, "eps", "betas", "weight_decay")
        if isinstance(lr, Tensor) and foreach and not capturable:
            raise ValueError(
                "lr as a Tensor is not supported for capturable=False and foreach=True"
            )
        if {isinstance(betas[0], Tensor), isinstance(betas[1], Tensor)} == {True, False}:
            raise ValueError("betas must be either both floats or both Tensors")
        for number, beta in enumerate(betas):
            if isinstance(beta, Tensor) and foreach and not capturable:
                raise ValueError(
                    f"betas[{number}] as a Tensor is not supported for capturable=False and foreach=True"
                )
        super().__init__(params, defaults)
        check_flags(defaults)

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper = self._hyper(group)
        for step, members in self._advanced(group):
            # 1 - beta ** step is -expm1(step * log(beta)): no digits are lost while it is small.
            # The update is -lr / c1 * m / (sqrt(v) / root + eps), where c1 corrects the average m
            # and root, the square root of c2, the one of the squares v; times root above and
            # below the line, the corrections meet numbers only, and no whole tensor.
            root = webtorch.sqrt(-webtorch.expm1(step * hyper("log beta2")))
            scale = root * webtorch.expm1(step * hyper("log beta1")).reciprocal()
            scale = scale * self._scalar(group, "lr")
            eps = root * hyper("eps")
            # Read once for all parameters: each reading makes an argument of the program.
            read = {name: hyper(name) for name in ("1-beta1", "beta2", "1-beta2")}
            for param, grad in members:
                self._update_one(group, param, grad, scale, eps, read)

    def _update_one(
        self,
        group: Group,
        param: Tensor,
        grad: Tensor,
        scale: Tensor,
        eps: Tensor,
        read: dict[str, float],
    ) -> None:
        """Change one parameter; `scale` and `eps` hold the step size and the corrections."""
        state = self._begun(group, param)
        grad = self._decayed(group, param, grad)
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.lerp_(grad, read["1-beta1"])
        write_result(square, square_average(square, grad, read["beta2"], read["1-beta2"]), "Adam")
        if group["amsgrad"]:
            most = state["max_exp_avg_sq"]
            # Its gradient needs the values that it overwrites.
            most = most.clone() if group["differentiable"] else most
            square = state["max_exp_avg_sq"].copy_(webtorch.maximum(most, square))
        if group["differentiable"]:
            # The next step overwrites them, and this one's gradient needs them.
            average, square = average.clone(), square.clone()
        write_result(param, adam_step(param, average, square, scale, eps), "Adam")


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter, not through the gradient's averages.

    Loshchilov and Hutter, 2019.
    """

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        """Take the options."""
        super().__init__(params, **options_of(locals()), decoupled_weight_decay=True)

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take back a pickled state; decay is decoupled whatever an old checkpoint says."""
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    decoupled_weight_decay: bool = False,
    *,
    amsgrad: bool,
    beta1: float | Tensor,
    beta2: float | Tensor,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Make a step of Adam on parameters with gradients and states that are given in lists."""
    update_lists(Adam, locals(), betas=(beta1, beta2))


def adamw(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    *,
    amsgrad: bool,
    beta1: float | Tensor,
    beta2: float | Tensor,
    lr: float | Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Make a step of AdamW on parameters with gradients and states that are given in lists."""
    update_lists(AdamW, locals(), betas=(beta1, beta2), decoupled_weight_decay=True)
