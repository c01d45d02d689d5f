"""Modules around others whose activations are computed again, or kept on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any

from webtorch.autograd.graph import save_on_cpu
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.utils.checkpoint import checkpoint

__all__ = [
    "ActivationWrapper", "CheckpointImpl", "CheckpointWrapper", "OffloadWrapper", "apply_activation_checkpointing",
    "checkpoint_wrapper", "offload_wrapper",
]  # fmt: skip

_PREFIX = "_checkpoint_wrapped_module."


class CheckpointImpl(Enum):
    """The two ways of `torch.utils.checkpoint`."""

    REENTRANT = auto()
    NO_REENTRANT = auto()


class ActivationWrapper(Module):
    """A module around `mod`, whose names its parameters and state keep."""

    def __init__(self, mod: Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self._register_state_dict_hook(self._post_state_dict_hook)
        self.register_load_state_dict_pre_hook(self._pre_load_state_dict_hook)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._checkpoint_wrapped_module, name)

    def __getitem__(self, key: int) -> Any:
        inner: Any = self._checkpoint_wrapped_module
        return inner[key]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters by the names that they have in the module."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(_PREFIX, ""), parameter

    @staticmethod
    def _post_state_dict_hook(
        module: Module, state_dict: dict[str, Any], prefix: str, *args: object
    ) -> dict[str, Any]:
        _rename(state_dict, prefix + _PREFIX, prefix)
        return state_dict

    @staticmethod
    def _pre_load_state_dict_hook(
        module: Module, state_dict: dict[str, Any], prefix: str, *args: object
    ) -> None:
        _rename(state_dict, prefix, prefix + _PREFIX)


def _rename(state: dict[str, Any], before: str, after: str) -> None:
    for key in [k for k in state if k.startswith(before)]:
        state[after + key[len(before) :]] = state.pop(key)


class OffloadWrapper(ActivationWrapper):
    """A module whose activations are kept on the CPU until the backward pass."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


class CheckpointWrapper(ActivationWrapper):
    """A module whose activations are computed again in the backward pass."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., Any] | None = None,
        **checkpoint_fn_kwargs: Any,
    ) -> None:
        super().__init__(mod)
        self.checkpoint_impl = checkpoint_impl
        if checkpoint_fn is None:
            checkpoint_fn = checkpoint
            checkpoint_fn_kwargs["use_reentrant"] = checkpoint_impl is CheckpointImpl.REENTRANT
        self.checkpoint_fn = partial(checkpoint_fn, **checkpoint_fn_kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        inner = self._checkpoint_wrapped_module
        if self.checkpoint_impl is not CheckpointImpl.REENTRANT or not kwargs:
            return self.checkpoint_fn(inner, *args, **kwargs)
        names, count = tuple(kwargs), len(args)
        # The other way takes no keywords.
        return self.checkpoint_fn(
            lambda *given: inner(*given[:count], **dict(zip(names, given[count:], strict=True))),
            *args,
            *kwargs.values(),
        )


def offload_wrapper(module: Module) -> Module:
    """Return the module in one that keeps its activations on the CPU until the backward pass."""
    return OffloadWrapper(module)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., Any] | None = None,
    **checkpoint_fn_kwargs: Any,
) -> Module:
    """Return the module in one that computes its activations again in the backward pass (by `checkpoint_fn`)."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: object = None,
) -> None:
    """Put each module within `model` that `check_fn` says yes to into `checkpoint_wrapper_fn` of it, inner ones first.

    Raises NotImplementedError for an `auto_wrap_policy`, which FSDP1 has.
    """
    if auto_wrap_policy is not None:
        raise NotImplementedError(
            "apply_activation_checkpointing: webtorch has no auto_wrap_policy, which is FSDP1's; give a check_fn, such "
            "as lambda module: isinstance(module, Block)"
        )
    for name, child in model.named_children():
        apply_activation_checkpointing(child, checkpoint_wrapper_fn, check_fn)
        if check_fn(child):
            setattr(model, name, checkpoint_wrapper_fn(child))
