"""torch._functorch: what `import functorch` and programs of its time call, over `webtorch.func`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from webtorch.func import functional_call, stack_module_state
from webtorch.func import functionalize as functionalize
from webtorch.func import grad as grad
from webtorch.func import grad_and_value as grad_and_value
from webtorch.func import hessian as hessian
from webtorch.func import jacfwd as jacfwd
from webtorch.func import jacrev as jacrev
from webtorch.func import jvp as jvp
from webtorch.func import linearize as linearize
from webtorch.func import replace_all_batch_norm_modules_ as replace_all_batch_norm_modules_
from webtorch.func import vjp as vjp
from webtorch.func import vmap as vmap
from webtorch.func.derivatives import checked_argnums
from webtorch.func.vmap import _get_name as _get_name
from webtorch.nn.module import Module
from webtorch.tensors.batching import Vmap, batch, place_of, unbatch
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import _broadcast_to_and_flatten as _broadcast_to_and_flatten
from webtorch.utils._pytree import broadcast_leaves, tree_flatten, tree_leaves, tree_unflatten


class FunctionalModuleWithBuffers(Module):
    """A module that is called with its parameters and buffers, in order."""

    def __init__(self, model: Module, params: Sequence[str], buffers: Sequence[str]) -> None:
        super().__init__()
        self.stateless_model = model
        self.param_names, self.buffer_names = tuple(params), tuple(buffers)

    def forward(
        self, params: Iterable[Tensor], buffers: Iterable[Tensor], *args: object, **kwargs: object
    ) -> Any:
        """Call the module with these in place of its own."""
        state = dict(zip(self.param_names, params, strict=True))
        state |= zip(self.buffer_names, buffers, strict=True)
        return functional_call(self.stateless_model, state, args, kwargs)


class FunctionalModule(FunctionalModuleWithBuffers):
    """A module that is called with its parameters, in order."""

    def forward(self, params: Iterable[Tensor], *args: object, **kwargs: object) -> Any:
        """Call the module with these in place of its own."""
        return super().forward(params, (), *args, **kwargs)


def make_functional_with_buffers(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return a module as a function of its parameters and buffers, and copies of these."""
    own = copy.deepcopy(model)
    params, buffers = dict(own.named_parameters()), dict(own.named_buffers())
    if disable_autograd_tracking:
        for p in params.values():
            p.requires_grad_(False)
    function = FunctionalModuleWithBuffers(own, tuple(params), tuple(buffers))
    return function, tuple(params.values()), tuple(buffers.values())


def make_functional(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModule, tuple[Tensor, ...]]:
    """Return a module as a function of its parameters, and copies of these."""
    if any(True for _ in model.buffers()):
        raise RuntimeError(
            "make_functional(model): `model` has buffers. Please use make_functional_with_buffers(model) instead."
        )
    made, params, _ = make_functional_with_buffers(model, disable_autograd_tracking)
    return FunctionalModule(made.stateless_model, made.param_names, ()), params


def functional_init(
    model_class: type[Module], ensemble_shape: Sequence[int] = (), device: object = "cpu"
) -> Callable[..., Any]:
    """Return what makes modules of a class: their weights, stacked, a function of weights and arguments, and names."""

    def made(*args: object, **kwargs: object) -> tuple[object, ...]:
        """Make them with the class's arguments."""
        parts = functional_init_with_buffers(model_class, ensemble_shape, device)(*args, **kwargs)
        weights, _, function, names, _ = parts
        return weights, lambda weights, data: function(weights, (), data), names

    return made


def functional_init_with_buffers(
    model_class: type[Module], ensemble_shape: Sequence[int] = (), device: object = "cpu"
) -> Callable[..., Any]:
    """Return what makes modules of a class: weights and buffers, a function of these and arguments, and names."""

    def made(*args: object, **kwargs: object) -> tuple[object, ...]:
        """Make them with the class's arguments."""
        if len(ensemble_shape) >= 2:
            raise ValueError("NYI: ensemble_shape with more than 1 element")
        count = ensemble_shape[0] if ensemble_shape else 1
        if count <= 0:
            raise ValueError(f"num_models {count} should be > 0")
        models = [model_class(*args, **kwargs).to(device) for _ in range(count)]
        if ensemble_shape:
            function, weights, buffers = combine_state_for_ensemble(models)
        else:
            function, weights, buffers = make_functional_with_buffers(models[0])
        names = function.param_names, function.buffer_names
        return weights, buffers, lambda w, b, data: function(w, b, *data), *names

    return made


def combine_state_for_ensemble(
    models: Sequence[Module],
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return one function for models of one class, and their parameters and buffers, stacked."""
    if not models:
        raise RuntimeError("combine_state_for_ensemble: Expected at least one model, got 0.")
    if any(m.training != models[0].training for m in models):
        raise RuntimeError(
            "combine_state_for_ensemble: Expected all models to have the same training/eval mode."
        )
    if any(type(m) is not type(models[0]) for m in models):
        raise RuntimeError(
            "combine_state_for_ensemble: Expected all models to be of the same class."
        )
    params, buffers = stack_module_state(models)
    made, _, _ = make_functional_with_buffers(models[0])
    return made, tuple(params.values()), tuple(buffers.values())


# As PyTorch first had it.
_vmap = vmap


def chunk_vmap(
    func: Callable[..., object],
    in_dims: object = 0,
    out_dims: object = 0,
    randomness: str = "error",
    chunks: int = 2,
) -> Callable[..., Any]:
    """Return vmap of a function, computed in `chunks` parts."""
    if chunks == 1:
        return vmap(func, in_dims=in_dims, out_dims=out_dims, randomness=randomness)

    def called(*args: object, **kwargs: object) -> object:
        """Call, in parts of one size."""
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        sizes = [
            leaf.shape[dim]
            for arg, dim in zip(args, dims, strict=False)
            if isinstance(dim, int)
            for leaf in tree_leaves(arg)
            if isinstance(leaf, Tensor)
        ]
        size = -(-sizes[0] // chunks) if sizes and sizes[0] else None
        return vmap(func, in_dims, out_dims, randomness, chunk_size=size)(*args, **kwargs)

    return called


def _slice_argnums(args: tuple[object, ...], argnums: object, as_tuple: bool = True) -> object:
    """Return the arguments that are differentiated; with `as_tuple` a single one as a tuple."""
    found = tuple([args[n] for n in checked_argnums(argnums, len(args))])
    return found if as_tuple or not isinstance(argnums, int) else found[0]


def restore_vmap(
    func: Callable[..., object], in_dims: object, batch_size: int, randomness: str
) -> Callable[..., Any]:
    """Return vmap of a function that returns (outputs, where each has the dimension); in_dims may all be None."""

    def called(*args: object, **kwargs: object) -> object:
        """Call with the dimensions hidden."""
        leaves, spec = tree_flatten(args)
        dims = broadcast_leaves(in_dims, spec) or []
        with Vmap(batch_size, randomness) as level:
            given = [
                x if d is None else batch(x, d % x.ndim, level.number)
                for x, d in zip(leaves, dims, strict=True)
            ]
            found, found_spec = tree_flatten(func(*tree_unflatten(given, spec), **kwargs))
            out_dims = [
                place_of(x, level.number)
                if isinstance(x, Tensor) and any(n == level.number for n, _, _ in x._levels)
                else None
                for x in found
            ]
            shown = [
                x if d is None else unbatch(x, d, level.number, batch_size)
                for x, d in zip(found, out_dims, strict=True)
            ]
        return tree_unflatten(shown, found_spec), tree_unflatten(out_dims, found_spec)

    return called


# -- torch._C._functorch ---------------------------------------------------------------------------------------


def _is_vmap_fallback_enabled() -> bool:
    """Return False: every operation is recorded over hidden dimensions, and none is done one by one."""
    return False


def _set_vmap_fallback_enabled(enabled: bool) -> None:
    """Do nothing: there is no fallback."""


def is_batchedtensor(x: Tensor) -> bool:
    """Whether vmap hides a dimension of a tensor."""
    return bool(x._levels)


def _add_batch_dim(x: Tensor, in_dim: int, level: int) -> Tensor:
    """Return a view that hides a dimension, as the vmap of that level does."""
    return batch(x, in_dim % x.ndim, level)


def _remove_batch_dim(x: Tensor, level: int, batch_size: int, out_dim: int) -> Tensor:
    """Return a view that shows a level's dimension, expanded where x lacks it."""
    return unbatch(x, out_dim % (x.ndim + 1), level, batch_size)


def _maybe_remove_batch_dim(
    name: str, batched_output: object, vmap_level: int, batch_size: int, out_dim: int | None
) -> Any:
    """Show a level's dimension in a result of the function `name`, unless out_dim is None."""
    if out_dim is None:
        if isinstance(batched_output, Tensor) and is_batchedtensor(batched_output):
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None"
            )
        return batched_output
    if not isinstance(batched_output, Tensor):
        raise ValueError(
            f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(batched_output)}. "
            "Did you mean to set out_dims= to None for output?"
        )
    return _remove_batch_dim(batched_output, vmap_level, batch_size, out_dim)


def get_unwrapped(x: Tensor) -> Tensor:
    """Return a tensor with the dimension that the innermost vmap hides."""
    number, size, _ = x._levels[-1]
    return unbatch(x, place_of(x, number), number, size)


def reshape_dim_into(src: int, dst: int, x: Tensor) -> Tensor:
    """Return x with a dim merged into another one, which counts without the first."""
    moved = x.movedim(src, dst % (x.ndim - 1))
    return moved.flatten(dst % (x.ndim - 1), dst % (x.ndim - 1) + 1)


def reshape_dim_outof(src: int, size: int, x: Tensor) -> Tensor:
    """Return x with a dim split in two, of which the first has `size`."""
    return x.unflatten(src % x.ndim, (size, -1))
