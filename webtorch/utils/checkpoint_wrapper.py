"""Modules around modules, which compute activations again in the backward pass, or keep them on the CPU.

Names of parameters and keys of `state_dict` are those of the module within.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any

from webtorch.autograd.graph import save_on_cpu
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.utils.checkpoint import checkpoint

_CHECKPOINT_WRAPPED_MODULE = "_checkpoint_wrapped_module"
_CHECKPOINT_PREFIX = _CHECKPOINT_WRAPPED_MODULE + "."


class CheckpointImpl(Enum):
    """Which form of `torch.utils.checkpoint.checkpoint` computes again."""

    REENTRANT = auto()
    NO_REENTRANT = auto()


def _renamed(state: dict[str, Any], old: str, new: str) -> None:
    """Give keys of a state another beginning, in place."""
    for key in [k for k in state if k.startswith(old)]:
        state[new + key[len(old) :]] = state.pop(key)


class ActivationWrapper(Module):
    """A module around one, which has all that this has."""

    def __init__(self, mod: Module) -> None:
        """`mod`: the module within."""
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self._register_state_dict_hook(self._without_prefix)
        self.register_load_state_dict_pre_hook(self._with_prefix)

    @staticmethod
    def _without_prefix(
        module: Module, state: dict[str, Any], prefix: str, *_: object
    ) -> dict[str, Any]:
        _renamed(state, prefix + _CHECKPOINT_PREFIX, prefix)
        return state

    @staticmethod
    def _with_prefix(module: Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        _renamed(state, prefix, prefix + _CHECKPOINT_PREFIX)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(_CHECKPOINT_WRAPPED_MODULE), name)

    def __getitem__(self, key: int) -> Any:
        """Return a part of the module within."""
        within: Any = self._checkpoint_wrapped_module
        return within[key]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), by the names that the module within gives them."""
        for name, param in super().named_parameters(*args, **kwargs):
            yield name.replace(_CHECKPOINT_PREFIX, ""), param


class OffloadWrapper(ActivationWrapper):
    """A module whose activations lie on the CPU until its backward pass."""

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the module within."""
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


class CheckpointWrapper(ActivationWrapper):
    """A module whose activations are computed again in its backward pass."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., object] | None = None,
        **checkpoint_fn_kwargs: object,
    ) -> None:
        """As `checkpoint_wrapper`."""
        super().__init__(mod)
        self.checkpoint_impl = checkpoint_impl
        if checkpoint_fn is None:
            reentrant = checkpoint_impl is CheckpointImpl.REENTRANT
            checkpoint_fn = partial(checkpoint, use_reentrant=reentrant)
        self.checkpoint_fn = partial(checkpoint_fn, **checkpoint_fn_kwargs)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Call the module within."""
        within = self._checkpoint_wrapped_module
        if self.checkpoint_impl is CheckpointImpl.NO_REENTRANT or not kwargs:
            return self.checkpoint_fn(within, *args, **kwargs)
        # The reentrant form takes no names.
        names, count = tuple(kwargs), len(args)

        def call(*given: object) -> Any:
            """Call the module within by names again."""
            return within(*given[:count], **dict(zip(names, given[count:], strict=True)))

        return self.checkpoint_fn(call, *args, *kwargs.values())


def offload_wrapper(module: Module) -> Module:
    """Return a module around one, which keeps activations on the CPU."""
    return OffloadWrapper(module)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., object] | None = None,
    **checkpoint_fn_kwargs: object,
) -> Module:
    """Return a module around one, which computes activations again by `checkpoint_fn`, or without it by
    `torch.utils.checkpoint.checkpoint` in the form `checkpoint_impl`.
    """
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: Callable[..., bool] | None = None,
) -> None:
    """Put a module of `checkpoint_wrapper_fn` around each module below `model` that `check_fn` chooses, in place.

    `auto_wrap_policy(module, recurse, nonwrapped_numel)` chooses instead where it is given.
    """
    for name, child in list(model.named_children()):
        chosen = (
            check_fn(child)
            if auto_wrap_policy is None
            else auto_wrap_policy(
                module=child,
                recurse=False,
                nonwrapped_numel=sum(p.numel() for p in child.parameters()),
            )
        )
        apply_activation_checkpointing(child, checkpoint_wrapper_fn, check_fn, auto_wrap_policy)
        if chosen and not isinstance(child, ActivationWrapper):
            setattr(model, name, checkpoint_wrapper_fn(child))
