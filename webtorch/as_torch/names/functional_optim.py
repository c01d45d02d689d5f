"""torch.distributed.optim.utils: optimizers that are given the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from webtorch import optim
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor


class _Functional:
    """An optimizer of one group of parameters, whose steps are given the gradients."""

    _kind: ClassVar[Callable[..., optim.Optimizer]]
    _defaults: ClassVar[dict[str, object]] = {}

    def __init__(
        self,
        params: list[Tensor],
        *args: object,
        _allow_empty_param_list: bool = False,
        **options: object,
    ) -> None:
        if not params and not _allow_empty_param_list:
            raise ValueError("optimizer got an empty parameter list")
        if not args:
            options = self._defaults | options
        # An optimizer wants a parameter; those of a step take its place.
        self._optimizer = self._kind([webtorch.empty(0)], *args, **options)
        self.param_group = {"params": params}
        self.defaults, self.state = self._optimizer.defaults, self._optimizer.state

    def step_param(self, param: Tensor, grad: Tensor | None) -> None:
        """Make a step of one parameter."""
        self._step([param], [grad])

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Make a step of all parameters, each with its gradient; those of None stay."""
        params = self.param_group["params"]
        if len(params) != len(gradients):
            raise ValueError(
                "the gradients passed in does not equal to the size of the parameters!"
                f"Params length: {len(params)}. Gradients length: {len(gradients)}"
            )
        self._step(params, gradients)

    def _step(self, params: list[Tensor], gradients: Sequence[Tensor | None]) -> None:
        kept = [param.grad for param in params]
        try:
            for param, grad in zip(params, gradients, strict=True):
                param.grad = grad
            self._optimizer.param_groups[0]["params"] = params
            self._optimizer.step()
        finally:
            for param, grad in zip(params, kept, strict=True):
                param.grad = grad


def _functional(kind: type[optim.Optimizer], **defaults: object) -> type[_Functional]:
    fields = {"__module__": __name__, "__doc__": f"{kind.__name__}, given the gradients."}
    return type(
        f"_Functional{kind.__name__}",
        (_Functional,),
        {**fields, "_kind": kind, "_defaults": defaults},
    )


functional_optim_map: dict[object, Callable[..., object]] = {
    kind: _functional(kind)
    for kind in (
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.Adadelta,
        optim.RMSprop,
        optim.Rprop,
        optim.Adamax,
    )
}
functional_optim_map[optim.SGD] = _functional(optim.SGD, lr=1e-2)


def register_functional_optim(key: object, optim: Callable[..., object]) -> None:
    """Let `key` mean a functional optimizer, unless it means one already."""
    functional_optim_map.setdefault(key, optim)


def as_functional_optim(optim_cls: type, *args: object, **kwargs: object) -> object:
    """Return the functional optimizer of a class of optimizers, without parameters yet."""
    if optim_cls not in functional_optim_map:
        raise ValueError(f"Optimizer {optim_cls} does not have a functional counterpart!")
    return functional_optim_map[optim_cls]([], *args, **kwargs, _allow_empty_param_list=True)
