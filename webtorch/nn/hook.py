"""Hooks: the handle that removes one, and the taps that give a module's gradients to its hooks.

May import the tensor floor only.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from webtorch import autograd
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.host import bindings
from webtorch.tensors.tensor import Tensor

__all__ = ["BackwardTap", "RemovableHandle"]

# What each kind of hook is called with, its registration says.
Hook = Callable[..., Any]


class RemovableHandle:
    """What registering a hook returns: `remove()` unregisters it, and so does leaving a `with`."""

    _ids = itertools.count()

    def __init__(
        self, hooks: OrderedDict[int, Any], *, extra: Sequence[dict[int, Any]] = ()
    ) -> None:
        """Reserve an id in `hooks`; `extra` are dicts of options that go with the same id."""
        self.id = next(RemovableHandle._ids)
        bindings.modules += 1
        # Weak: a handle that a user keeps must not keep the module alive.
        self.hooks_dict_ref = weakref.ref(hooks)
        self.extra_dict_ref = [weakref.ref(one) for one in extra if isinstance(one, OrderedDict)]

    def remove(self) -> None:
        """Unregister the hook; a second call does nothing."""
        bindings.modules += 1
        for reference in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = reference()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __getstate__(self) -> tuple[Any, int, list[Any]]:
        """Return the dicts themselves: a copy removes its hook from the copies of them."""
        return self.hooks_dict_ref(), self.id, [reference() for reference in self.extra_dict_ref]

    def __setstate__(self, state: tuple[Any, int, list[Any]]) -> None:
        """Take back what `__getstate__` returned; dicts that are gone stay gone."""
        hooks, self.id, extra = state
        gone: OrderedDict[int, Any] = OrderedDict()
        self.hooks_dict_ref = weakref.ref(gone if hooks is None else hooks)
        self.extra_dict_ref = [weakref.ref(gone if one is None else one) for one in extra]
        # Ids stay unique in a process that reads handles of another one.
        RemovableHandle._ids = itertools.count(max(next(RemovableHandle._ids), self.id + 1))

    def __enter__(self) -> RemovableHandle:
        """Return the handle itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Remove the hook."""
        self.remove()


class BackwardTap:
    """Gives the gradients at a module's inputs and outputs to its full backward hooks.

    An identity is put in front of the inputs and one behind the outputs; backward passes the
    outputs' identity first, then the module, then the inputs' identity, where both sides are known.
    """

    def __init__(self, module: Any, hooks: list[Hook], pre_hooks: list[Hook]) -> None:
        """Remember whose gradients to show, and to whom."""
        self.module = module
        self.hooks = hooks
        self.pre_hooks = pre_hooks
        self.grad_outputs: tuple[Tensor | None, ...] | None = None
        self.input_count = -1
        self.input_positions: list[int] | None = None
        self.output_count = -1
        self.output_positions: list[int] | None = None

    def tap_inputs(self, args: tuple[object, ...]) -> tuple[Any, ...]:
        """Return `args` with every tensor that needs a gradient behind an identity."""
        self.input_count = len(args)
        tapped, self.input_positions = self._tap(args, self._at_inputs)
        return tapped

    def tap_outputs(self, result: object) -> Any:
        """Return `result`, a tensor or a tuple, with its tensors behind an identity."""
        outputs = (result,) if isinstance(result, Tensor) else result
        if not isinstance(outputs, tuple):
            return result
        self.output_count = len(outputs)
        tapped, self.output_positions = self._tap(outputs, self._at_outputs)
        if isinstance(result, Tensor):
            return tapped[0]
        # A namedtuple is a tuple with another constructor.
        return type(result)(*tapped) if hasattr(result, "_fields") else tapped

    @staticmethod
    def _tap(
        values: tuple[object, ...], receive: Callable[[Any], Any]
    ) -> tuple[tuple[Any, ...], list[int] | None]:
        """Return `values` with gradient-needing tensors tapped, and where those stand."""
        if not webtorch.is_grad_enabled():
            return values, None
        positions = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
        if not positions:
            return values, None
        tapped = _identity_function().apply(receive, *[values[i] for i in positions])
        tapped = tapped if isinstance(tapped, tuple) else (tapped,)
        out = list(values)
        for position, tensor in zip(positions, tapped, strict=True):
            out[position] = tensor
        return tuple(out), positions

    def _at_outputs(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Run the pre-hooks, remember the gradients, and run the hooks when no input has one."""
        assert self.output_positions is not None
        grad_outputs = _spread(grads, self.output_positions, self.output_count)
        for hook in self.pre_hooks:
            changed = hook(self.module, grad_outputs)
            if changed is not None:
                grad_outputs = _as_gradients(
                    "Backward pre hook", "grad_output", changed, len(grad_outputs)
                )
        self.grad_outputs = grad_outputs
        if self.input_positions is None:
            warnings.warn(
                "Full backward hook is firing when gradients are computed with respect to module "
                "outputs since no inputs require gradients.",
                stacklevel=user_depth(),
            )
            nothing = (None,) * self.input_count
            for hook in self.hooks:
                changed = hook(self.module, nothing, grad_outputs)
                if changed is not None and not (
                    isinstance(changed, tuple) and all(g is None for g in changed)
                ):
                    raise RuntimeError(
                        "Backward hook for Modules where no input requires gradient should "
                        "always return None or None for all gradients."
                    )
        return tuple(grad_outputs[i] for i in self.output_positions)

    def _at_inputs(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Run the hooks with both sides' gradients; what they return replaces the inputs' ones."""
        assert self.input_positions is not None
        if self.grad_outputs is None:
            # No gradient reached an output of this module, so the hooks have nothing to see.
            return grads
        grad_inputs = _spread(grads, self.input_positions, self.input_count)
        for hook in self.hooks:
            changed = hook(self.module, grad_inputs, self.grad_outputs)
            if changed is not None:
                grad_inputs = _as_gradients(
                    "Backward hook", "grad_input", changed, len(grad_inputs)
                )
        self.grad_outputs = None
        return tuple(grad_inputs[i] for i in self.input_positions)


def _spread(
    grads: tuple[Tensor | None, ...], positions: list[int], count: int
) -> tuple[Tensor | None, ...]:
    """Return `count` entries: the gradients at their positions, None elsewhere."""
    out: list[Tensor | None] = [None] * count
    for position, grad in zip(positions, grads, strict=True):
        out[position] = grad
    return tuple(out)


def _as_gradients(who: str, what: str, value: object, count: int) -> tuple[Tensor | None, ...]:
    """Return a hook's result as a tuple of `count` gradients, or raise RuntimeError."""
    grads = value if isinstance(value, tuple) else (value,)
    if len(grads) != count:
        raise RuntimeError(
            f"{who} returned an invalid number of {what}, got {len(grads)}, but expected {count}"
        )
    return grads


_identity: list[type] = []


def _identity_function() -> Any:
    """Return the autograd Function of the taps; made at first use, when autograd is loaded."""
    if not _identity:

        class BackwardHookFunction(autograd.Function):
            """Pass tensors through; on the way back, let `receive` see and replace gradients."""

            @staticmethod
            def forward(ctx: Any, receive: Hook, *tensors: Tensor) -> tuple[Tensor, ...]:
                """Return views of the tensors, which keep the function in the graph."""
                ctx.receive = receive
                # Hooks see None where no gradient came.
                ctx.set_materialize_grads(False)
                return tuple(t.view_as(t) for t in tensors)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                """Return what `receive` makes of the gradients."""
                return (None, *ctx.receive(grads))

        _identity.append(BackwardHookFunction)
    return _identity[0]
