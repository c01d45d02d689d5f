"""Modules as functions of their parameters. May import floor 4, nn and utils._pytree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webtorch.func.derivatives import Running
from webtorch.nn.module import Module
from webtorch.nn.utils import stateless
from webtorch.ops.record import TABLE
from webtorch.tensors.batching import levels_of, physical
from webtorch.tensors.tensor import Tensor


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: object = None,
    kwargs: dict[str, object] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call the module with the given tensors, by dotted name, in place of its own parameters and buffers.

    `tie_weights` replaces a shared tensor under all its names; `strict` wants all names, and no others.
    """
    return stateless.called_with(
        module, parameter_and_buffer_dicts, args, kwargs, tie_weights=tie_weights, strict=strict
    )


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (parameters, buffers) of models of one class, stacked along a new first dimension, by name.

    The parameters are new leaves. Raises RuntimeError where the models differ in class or mode.
    """
    models = list(models)
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(m.training != models[0].training for m in models):
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    params = [dict(m.named_parameters()) for m in models]
    buffers = [dict(m.named_buffers()) for m in models]
    return (
        {name: _stacked([p[name] for p in params], name) for name in params[0]},
        {name: _stacked([b[name] for b in buffers], name) for name in buffers[0]},
    )


def _stacked(tensors: list[Tensor], name: str) -> Tensor:
    trains = [t.requires_grad for t in tensors]
    if any(trains) and not all(trains):
        raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
    out = TABLE["stack"](tensors).detach()
    return out.requires_grad_() if all(trains) else out


def functionalize(func: Callable[..., object], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return a function that computes what `func` does.

    PyTorch rewrites in-place operations and views here. In webtorch every recorded graph is without
    them already: a write makes a new value of the storage, which its views read.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            "functionalize(f, remove='mutations'): received invalid argument for remove="
            f"{remove}. Valid options are:\n     remove='mutations': all inplace and out= operators "
            "will be removed from the program, and replaced with their out-of-place equivalents.\n"
            "     remove='mutations_and_views': In addition to the above, all aliasing operators "
            "{view} will be replaced with their non-aliasing counterparts, {view}_copy.\n"
        )

    @functools.wraps(func)
    def same(*args: object, **kwargs: object) -> object:
        """Call the function: recorded graphs are functional already."""
        with Running():
            return func(*args, **kwargs)

    return same


def debug_unwrap(tensor: Tensor, *, recurse: bool = True) -> Tensor:
    """Return a tensor that vmap maps over with its hidden dimensions, the outermost first: for printing."""
    levels = levels_of((tensor,))
    return physical(tensor, levels if recurse else levels[-1:]) if levels else tensor


def replace_all_batch_norm_modules_(root: Module) -> Module:
    """Have every batch norm in `root` use the statistics of its batch only, in place, and return it."""
    for module in root.modules():
        if getattr(module, "track_running_stats", None) and "BatchNorm" in type(module).__name__:
            module.running_mean = None
            module.running_var = None
            module.num_batches_tracked = None
            module.track_running_stats = False
    return root
