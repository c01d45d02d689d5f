"""vmap: a function of one example, called once for a whole batch. May import floor 4 and utils._pytree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from webtorch.functions.movement import become
from webtorch.ops.record import TABLE
from webtorch.tensors.batching import Vmap, batch, place_of, unbatch
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import broadcast_leaves, tree_flatten, tree_leaves, tree_unflatten


def vmap(
    func: Callable[..., object],
    in_dims: object = 0,
    out_dims: object = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that maps `func` over a dimension of its arguments, in one call.

    in_dims: the dimension of each argument (an int, None, or a nest of them shaped like the
    arguments); keyword arguments are passed on as they are. out_dims: where the dimension stands in the
    results. randomness: whether random operations inside raise ("error"), give each example numbers of
    its own ("different") or all the same ("same"). chunk_size: how many examples at a time.
    Raises ValueError where sizes or structures do not fit.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness}"
        )
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def mapped(*args: object, **kwargs: object) -> object:
        """Return the results for all examples, stacked along `out_dims`."""
        _check_out_dims(func, out_dims)
        size, dims, leaves, spec = _parse_inputs(func, in_dims, args)
        given = [*zip(leaves, dims, strict=True)]

        def run(parts: list[Any]) -> Any:
            """Call the function with parts in the places of its arguments' tensors."""
            return func(*tree_unflatten(parts, spec), **kwargs)

        if chunk_size is None or chunk_size >= size:
            return _whole(func, run, given, size, out_dims, randomness)
        return _chunked(func, run, given, size, out_dims, randomness, chunk_size)

    return mapped


def _whole(
    func: Callable[..., object],
    run: Callable[[list[Any]], object],
    given: list[tuple[Any, int | None]],
    size: int,
    out_dims: object,
    randomness: str,
) -> object:
    with Vmap(size, randomness) as level:
        parts = [x if d is None else _hidden(x, d, level.number) for x, d in given]
        found = run(parts)
        for p, (x, d) in zip(parts, given, strict=True):
            if d is not None and isinstance(x, Tensor) and not _lies_within(p, x, d):
                # Written as another shape (`unsqueeze_`): so is what was given.
                become(x, unbatch(p, place_of(p, level.number), level.number, level.size))
        leaves, spec = tree_flatten(found, _hides)
        dims = _parse_out_dims(func, out_dims, found, spec)
        # An argument that the function returns, changed in place or not, is the tensor that was given.
        as_given = {id(p): one for p, one in zip(parts, given, strict=True) if p is not one[0]}
        # What is returned twice is one tensor outside, too.
        known: dict[tuple[int, int | None], Any] = {}
        for x, d in zip(leaves, dims, strict=True):
            if (id(x), d) not in known:
                known[id(x), d] = _removed(func, x, d, level, as_given.get(id(x)))
        outs = [known[id(x), d] for x, d in zip(leaves, dims, strict=True)]
        for x, d, out in zip(leaves, dims, outs, strict=True):
            whole = known.get((id(getattr(x, "_base", None)), d))
            if whole is not None and out is not x and not out.requires_grad:
                # A view of another result.
                out._base = whole
    return tree_unflatten(outs, spec)


def _chunked(
    func: Callable[..., object],
    run: Callable[[list[Any]], object],
    given: list[tuple[Any, int | None]],
    size: int,
    out_dims: object,
    randomness: str,
    chunk: int,
) -> object:
    state = TABLE["get_rng_state"]() if randomness == "same" else None
    columns: list[list[object]] = []
    spec: Any = None
    for first in range(0, size, chunk):
        count = min(chunk, size - first)
        if state is not None:
            TABLE["set_rng_state"](state)
        part = [(x if d is None else x.narrow(d, first, count), d) for x, d in given]
        leaves, spec = tree_flatten(_whole(func, run, part, count, out_dims, randomness))
        columns.append(leaves)
    dims = broadcast_leaves(out_dims, spec)
    outs = [
        column[0] if d is None else TABLE["cat"](column, d)
        for column, d in zip(zip(*columns, strict=True), dims or (), strict=True)
    ]
    return tree_unflatten(outs, spec)


def _hides(x: object) -> bool:
    """Whether an object of another package hides its own dimensions, by the methods PyTorch's users give it: a
    TensorDict is no nest of tensors here.
    """
    return hasattr(type(x), "_add_batch_dim")


def _hidden(x: Any, dim: int, number: int) -> Any:
    """Return an argument as the function sees it."""
    if _hides(x):
        return x._add_batch_dim(in_dim=dim, vmap_level=number)
    return batch(x, dim, number)


def _removed(
    func: Callable[..., object],
    x: object,
    dim: int | None,
    level: Vmap,
    given: tuple[Any, int | None] | None,
) -> object:
    name = _get_name(func)
    if _hides(x):
        shown: Any = x
        return shown._maybe_remove_batch_dim(
            name, vmap_level=level.number, batch_size=level.size, out_dim=dim
        )
    hidden = isinstance(x, Tensor) and any(n == level.number for n, _, _ in x._levels)
    if dim is None:
        if hidden:
            raise ValueError(
                f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None"
            )
        return x
    if not isinstance(x, Tensor):
        raise ValueError(
            f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(x)}. Did you "
            "mean to set out_dims= to None for output?"
        )
    rank = x.ndim + 1
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    dim %= rank
    out = unbatch(x, dim, level.number, level.size)
    if given and given[1] == dim and _lies_as(out, given[0]):
        return given[0]
    leaf = x._requires_grad and x._grad_fn is None
    if hidden and not leaf and x._base is None and dim == place_of(x, level.number):
        # A result that is no view is none outside either; of a leaf there are views alone.
        out._base = None
    return out


def _lies_within(p: Tensor, x: Tensor, d: int) -> bool:
    """Whether a tensor lies as another one without a dim, or somewhere else by now."""
    shape, strides = x._shape, x._strides
    return p._storage is not x._storage or (p._shape, p._strides, p._offset) == (
        shape[:d] + shape[d + 1 :],
        strides[:d] + strides[d + 1 :],
        x._offset,
    )


def _lies_as(x: Tensor, other: Tensor) -> bool:
    """Whether a tensor has another one's shape, strides and offset; `squeeze_` and its like change them."""
    return (x._shape, x._strides, x._offset) == (other._shape, other._strides, other._offset)


def _get_name(func: Callable[..., object]) -> str:
    if hasattr(func, "__name__"):
        return func.__name__
    if isinstance(func, functools.partial):
        return f"functools.partial({_get_name(func.func)}, ...)"
    return repr(func)


def _parse_inputs(
    func: Callable[..., object], in_dims: object, args: tuple[object, ...]
) -> tuple[int, list[Any], list[Any], Any]:
    """Return the size of the batch, and a dimension or None for each leaf of the arguments."""
    where = f"vmap({_get_name(func)}, in_dims={in_dims}, ...)(<inputs>): "
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"{where}expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({_get_name(func)})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you "
            "are trying to vmap over a function with no inputs. The latter is unsupported."
        )
    leaves, spec = tree_flatten(args, _hides)
    dims = broadcast_leaves(in_dims, spec)
    if dims is None:
        raise ValueError(
            f"{where}in_dims is not compatible with the structure of `inputs`. in_dims has "
            f"structure {tree_flatten(in_dims)[1]} but inputs has structure {spec}."
        )
    for i, (x, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(d, int):
            raise ValueError(
                f"{where}Got in_dim={d} for an input but in_dim must be either an integer "
                "dimension or None."
            )
        if not (isinstance(x, Tensor) or _hides(x)):
            raise ValueError(
                f"{where}Got in_dim={d} for an input but the input is of type {type(x)}. We cannot "
                "vmap over non-Tensor arguments, please use None as the respective in_dim"
            )
        if not -x.ndim <= d < x.ndim:
            raise ValueError(
                f"{where}Got in_dim={d} for some input, but that input is a Tensor of "
                f"dimensionality {x.ndim} so expected in_dim to satisfy -{x.ndim} <= in_dim < "
                f"{x.ndim}."
            )
        dims[i] = d % x.ndim
    sizes = [x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None]
    if not sizes:
        raise ValueError("vmap: Expected at least one Tensor to vmap over")
    if any(s != sizes[0] for s in sizes):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return sizes[0], dims, leaves, spec


def _check_out_dims(func: Callable[..., object], out_dims: object) -> None:
    for d in tree_leaves(out_dims):
        if d is not None and not isinstance(d, int):
            raise ValueError(
                f"vmap({_get_name(func)}, ..., out_dims={out_dims}): `out_dims` must be an int, None or "
                "a python collection of ints representing where in the outputs the vmapped "
                "dimension should appear."
            )


def _parse_out_dims(
    func: Callable[..., object], out_dims: Any, found: object, spec: Any
) -> list[Any]:
    def refuse() -> NoReturn:
        """Raise ValueError: out_dims does not fit the output's structure."""
        raise ValueError(
            f"vmap({_get_name(func)}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible "
            f"with the structure of `outputs`. out_dims has structure {tree_flatten(out_dims)[1]} "
            f"but outputs has structure {spec}."
        )

    if isinstance(found, Tensor) or _hides(found):
        if out_dims is None or isinstance(out_dims, int):
            return [out_dims]
        if isinstance(out_dims, tuple) and len(out_dims) == 1:
            return list(out_dims)
        refuse()
    dims = broadcast_leaves(out_dims, spec)
    if dims is None:
        refuse()
    return dims
