"""torch.func: functional_call, grad, and vmap as a loop that stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import webtorch
from webtorch.as_torch.names.pytree import tree_flatten, tree_map, tree_unflatten
from webtorch.nn.utils.stateless import functional_call as functional_call


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that calls `func` on each slice of its arguments and stacks the results.

    in_dims: an int or None for each argument (or one for all). The calls are recorded one after the other
    and computed together; random numbers differ from slice to slice. Raises ValueError where sizes
    differ or no argument has a batch.
    """

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple | list) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(
                f"vmap: in_dims has {len(dims)} items for {len(args)} arguments; give one for each"
            )
        # Keyword arguments are batched along dim 0, as in PyTorch.
        pairs = [*zip(args, dims, strict=True), *((kwargs[k], 0) for k in kwargs)]
        sizes = {
            x.shape[d]
            for value, d in pairs
            if d is not None
            for x in tree_flatten(value)[0]
            if isinstance(x, webtorch.Tensor)
        }
        if len(sizes) != 1:
            raise ValueError(f"vmap: one size of the batch is needed, the arguments have {sizes}")
        results = []
        for i in range(sizes.pop()):
            parts = [_slice(value, d, i) for value, d in pairs]
            named = dict(zip(kwargs, parts[len(args) :], strict=True))
            results.append(tree_flatten(func(*parts[: len(args)], **named)))
        if not results:
            raise ValueError("vmap: the batch is empty")
        outs = out_dims if isinstance(out_dims, tuple | list) else [out_dims] * len(results[0][0])
        columns = zip(*[leaves for leaves, _ in results], strict=True)
        stacked = [
            column[0] if d is None else webtorch.stack(column, d)
            for column, d in zip(columns, outs, strict=True)
        ]
        return tree_unflatten(stacked, results[0][1])

    return mapped


def _slice(value: Any, dim: int | None, i: int) -> Any:
    if dim is None:
        return value
    return tree_map(lambda x: x.select(dim, i) if isinstance(x, webtorch.Tensor) else x, value)


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns (gradients, value) of `func`, whose value is a 0-d tensor."""

    @functools.wraps(func)
    def computed(*args: Any, **kwargs: Any) -> Any:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        outside = webtorch.is_grad_enabled()
        with webtorch.enable_grad():
            new = list(args)
            for n in numbers:
                new[n] = tree_map(_leaf, args[n])
            result = func(*new, **kwargs)
            value, aux = result if has_aux else (result, None)
            if value.dim():
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got tensor with "
                    f"{value.dim()} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            flat = [tree_flatten(new[n]) for n in numbers]
            leaves = [x for part, _ in flat for x in part]
            found = webtorch.autograd.grad(
                value, leaves, create_graph=outside, allow_unused=True, materialize_grads=True
            )
        grads, at = [], 0
        for part, spec in flat:
            grads.append(tree_unflatten(found[at : at + len(part)], spec))
            at += len(part)
        out = grads[0] if isinstance(argnums, int) else tuple(grads)
        if not outside:
            value = value.detach()
        return (out, (value, aux)) if has_aux else (out, value)

    return computed


def _leaf(x: Any) -> Any:
    # A part of the outer graph where there is one, so that gradients of gradients exist.
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def grad(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the gradients of `func` (and what else it returned)."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def computed(*args: Any, **kwargs: Any) -> Any:
        grads, value = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return computed
