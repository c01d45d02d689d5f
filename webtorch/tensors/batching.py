"""What vmap maps over: tensors with dimensions that their user does not see. Floor 4.

A batched tensor is a view of its storage like every tensor, of which some dimensions are not in its
shape: `_levels` holds (number of the vmap, size, stride) for each. Views, gradients and everything
written with other operations see the shape of one example and need no rule. What is recorded as a
node goes through `record_batched` (or the end of `recorders.apply`), where the hidden dimensions become
the first ones of the node's operands.

Numbers of levels are not used twice: a gradient rule that runs after its vmap has ended still means
the same dimension. What a checkpoint computes again has the numbers that it had (`Kept`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from webtorch.ir.dtype import DType, Scalar, int64
from webtorch.ir.view import Shape, contiguous_strides, is_contiguous, numel
from webtorch.ops import primitive
from webtorch.ops.record import TABLE
from webtorch.tensors.above import ask, give
from webtorch.tensors.formats import contiguous_format
from webtorch.tensors.modes import mode, transforms, unrecorded
from webtorch.tensors.tape import attach_view
from webtorch.tensors.tensor import Tensor

# The number of a vmap, and the size of the dimension that it maps over.
Levels = tuple[tuple[int, int], ...]


class Vmap:
    """One vmap that runs: the number of its level, the size of its batch, and what random numbers do."""

    __slots__ = ("number", "plain", "randomness", "size")

    def __init__(self, size: int, randomness: str, plain: bool = False) -> None:
        """`plain`: it asks no more of a user's function than that its operations are mapped."""
        self.plain = plain
        self.number = next(mode.numbers)
        self.size = size
        self.randomness = randomness

    def __enter__(self) -> Vmap:
        mode.vmaps = (*mode.vmaps, self)
        transforms.add(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.vmaps = mode.vmaps[:-1]
        transforms.add(-1)


class Kept:
    """A block whose vmaps have numbers that are noted, and have them again in a later block of the same one."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def __enter__(self) -> None:
        self.before = mode.numbers
        mode.numbers = self._numbers(self.before)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.numbers = self.before

    def _numbers(self, new: Iterator[int]) -> Iterator[int]:
        yield from self.noted
        for number in new:
            self.noted.append(number)
            yield number


def levels_of(tensors: Iterable[object]) -> Levels:
    """Return the levels that any of the tensors has, outermost first."""
    found = {n: size for t in tensors if isinstance(t, Tensor) for n, size, _ in t._levels}
    return tuple(sorted(found.items()))


def _seen(
    x: Tensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    levels: tuple[tuple[int, int, int], ...],
) -> Tensor:
    """Return x's memory seen with other sizes and strides, and with these levels hidden."""
    whole = (
        not levels
        and not x._offset
        and x.dtype is x._storage.dtype
        and numel(shape) == x._storage.elements
        and is_contiguous(shape, strides)
    )
    return Tensor._from_storage(x._storage, shape, strides, x._offset, whole, x.dtype, levels)


def physical(x: Tensor, levels: Levels, rank: int = 0) -> Tensor:
    """Return x with `levels` as its first dimensions, then ones up to `rank` dimensions, then its own.

    A level that x lacks has stride 0; levels of x that are not asked for stay hidden. Outside autograd.
    """
    own = {n: stride for n, _, stride in x._levels}
    asked = {n for n, _ in levels}
    pad = max(rank - len(x._shape), 0)
    shape = (*(size for _, size in levels), *(1,) * pad, *x._shape)
    strides = (*(own.get(n, 0) for n, _ in levels), *(0,) * pad, *x._strides)
    rest = tuple([one for one in x._levels if one[0] not in asked])
    out = _seen(x, shape, strides, rest)
    out._counter = x._counter
    return out


def logical(x: Tensor, levels: Levels) -> Tensor:
    """Return x with its first dimensions hidden, as `levels`. Outside autograd."""
    k = len(levels)
    hidden = [(n, size, stride) for (n, size), stride in zip(levels, x._strides, strict=False)]
    merged = tuple(sorted([*x._levels, *hidden]))
    out = Tensor._from_storage(
        x._storage, x._shape[k:], x._strides[k:], x._offset, False, x.dtype, merged
    )
    out._counter = x._counter
    return out


# ---- entering and leaving a level
# ---------------------------------------------------------------------------------------------------


def batch(x: Tensor, dim: int, number: int) -> Tensor:
    """Return a view of x that hides a dimension as level `number`. Differentiable."""
    size = x._shape[dim]
    order = (x._shape[:dim] + x._shape[dim + 1 :], x._strides[:dim] + x._strides[dim + 1 :])
    levels = tuple(sorted([*x._levels, (number, size, x._strides[dim])]))
    out = Tensor._from_storage(x._storage, *order, x._offset, False, x.dtype, levels)
    return _as_view_of(out, x, unbatch, (dim, number, size))


def place_of(x: Tensor, number: int) -> int:
    """Return where a hidden dimension lies among those that are seen: before the first one of smaller stride."""
    mine = next(stride for n, _, stride in x._levels if n == number)
    return next((d for d, s in enumerate(x._strides) if s <= mine), x.ndim) if mine else 0


def unbatch(x: Tensor, dim: int, number: int, size: int) -> Tensor:
    """Return a view of x with level `number` as dimension `dim`, expanded where x lacks it. Differentiable."""
    stride = next((stride for n, _, stride in x._levels if n == number), None)
    if stride is None:
        return TABLE["unsqueeze"](x, dim).expand(*x._shape[:dim], size, *x._shape[dim:])
    shape = (*x._shape[:dim], size, *x._shape[dim:])
    strides = (*x._strides[:dim], stride, *x._strides[dim:])
    levels = tuple([one for one in x._levels if one[0] != number])
    out = _seen(x, shape, strides, levels)
    return _as_view_of(out, x, batch, (dim, number))


def _as_view_of(
    out: Tensor, x: Tensor, rule: Callable[..., Tensor], args: tuple[int, ...]
) -> Tensor:
    leaf = x._requires_grad and x._grad_fn is None
    base = x if x._base is None or leaf else x._base
    out._base, out._base_version = base, x._counter.version
    out._counter, out._inference = x._counter, x._inference
    if mode.grad and x.requires_grad:
        attach_view(out, x, "View", rule, args)
    return out


def summed_over(g: Tensor, kept: Iterable[int]) -> Tensor:
    """Return a cotangent summed over the levels that neither its tensor has nor a running vmap."""
    staying = {*kept, *(v.number for v in mode.vmaps)}
    for number, size, _ in g._levels:
        if number not in staying:
            g = TABLE["sum"](unbatch(g, 0, number, size), 0)
    return g


def one_by_one(names: Sequence[str], function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that is called for each example where a tensor of these parameters is mapped over."""
    parameters = [*inspect.signature(function).parameters]
    places = [(parameters.index(name), name) for name in names]

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> Any:
        """Call, once or for each example."""
        if not transforms.count:
            return function(*args, **kwargs)
        levels = levels_of([args[i] if i < len(args) else kwargs.get(n) for i, n in places])
        if not levels:
            return function(*args, **kwargs)
        number, size = levels[-1]

        def example(value: object, i: int) -> Any:
            """Return what one example has of an argument."""
            if not isinstance(value, Tensor) or all(n != number for n, _, _ in value._levels):
                return value
            return unbatch(value, 0, number, size).select(0, i)

        parts = [
            called(*[example(a, i) for a in args], **{n: example(v, i) for n, v in kwargs.items()})
            for i in range(size)
        ]
        return batch(TABLE["stack"](parts), 0, number)

    return called


# ---- the rules of the nodes
# ---------------------------------------------------------------------------------------------------


def record_batched(
    kind: str,
    inputs: Sequence[Tensor],
    attrs: tuple[object, ...],
    scalars: tuple[Scalar, ...],
    shape: tuple[int, ...],
    dtype: DType,
) -> Tensor:
    """Record a node whose operands are batched: the same for each example, in one node."""
    levels = levels_of(inputs)
    with unrecorded():
        return _RULES.get(kind, _one_by_one(kind))(inputs, levels, attrs, scalars, shape, dtype)


def _record(
    kind: str,
    inputs: Sequence[Tensor],
    attrs: tuple[object, ...],
    scalars: tuple[Scalar, ...],
    shape: tuple[int, ...],
    dtype: DType,
) -> Tensor:
    return ask("record")(kind, inputs, attrs, scalars, shape, dtype)


def sizes_of(levels: Levels) -> tuple[int, ...]:
    """Return the sizes of the hidden dimensions."""
    return tuple([size for _, size in levels])


def _settled(x: Tensor, levels: Levels) -> Tensor:
    """Return x with its first dims hidden; the others must lie in row-major order, as what is new does."""
    out = logical(x, levels)
    if out._strides != contiguous_strides(out._shape):
        out = logical(x.clone(memory_format=contiguous_format), levels)
    return out


def _shifted(move: Callable[[tuple[Any, ...], int], tuple[Any, ...]]) -> Callable[..., Tensor]:
    """The rule of a node that maps its operands one by one: hidden dims go first, attributes move."""

    def rule(
        inputs: Sequence[Tensor],
        levels: Levels,
        attrs: Any,
        scalars: tuple[Scalar, ...],
        shape: Shape,
        dtype: DType,
        /,
    ) -> Tensor:
        """Record the node with the hidden dims in front."""
        k = len(levels)
        given = [physical(t, levels) for t in inputs]
        lead = sizes_of(levels)
        kind, moved = move(attrs, k)
        return logical(_record(kind, given, moved, scalars, lead + shape, dtype), levels)

    return rule


def _matmul(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    a, b = inputs
    lead = sizes_of(levels)
    many = numel(lead)
    batches, m, n = shape
    k = a._shape[2]
    if not b._levels and batches == 1:
        # One matrix for all examples: their rows are one taller matrix.
        rows = physical(a, levels).reshape((1, many * m, k))
        out = _record("matmul", (rows, b), attrs, scalars, (1, many * m, n), dtype)
        return logical(out.reshape((*lead, 1, m, n)), levels)
    left = physical(a, levels).reshape((many * batches, m, k))
    right = physical(b, levels).reshape((many * batches, k, n))
    out = _record("matmul", (left, right), attrs, scalars, (many * batches, m, n), dtype)
    return logical(out.reshape((*lead, *shape)), levels)


def _one_by_one(kind: str) -> Callable[..., Tensor]:
    """The rule of a kind that has none: a node for each example, and their results together."""

    def rule(
        inputs: Sequence[Tensor],
        levels: Levels,
        attrs: Any,
        scalars: tuple[Scalar, ...],
        shape: Shape,
        dtype: DType,
    ) -> Tensor:
        """Record a node for each example, and stack their results."""
        lead = sizes_of(levels)
        flat = [physical(t, levels).reshape((numel(lead), *t._shape)) for t in inputs]
        parts = [
            _record(kind, [t.select(0, i) for t in flat], attrs, scalars, shape, dtype)
            for i in range(numel(lead))
        ]
        return logical(TABLE["stack"](parts).reshape((*lead, *shape)), levels)

    return rule


def _sort(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    (x,) = inputs
    rows, count = shape
    lead = sizes_of(levels)
    many = physical(x, levels).reshape((numel(lead) * rows, x._shape[1]))
    out = _record("sort", (many,), attrs, scalars, (numel(lead) * rows, count), dtype)
    return logical(out.reshape((*lead, *shape)), levels)


def _attention(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    if attrs[4]:
        # Dropout: its random numbers were drawn for one example.
        return _one_by_one("attention")(inputs, levels, attrs, scalars, shape, dtype)
    lead = sizes_of(levels)
    many = numel(lead)
    given = [physical(t, levels).reshape((many * t._shape[0], *t._shape[1:])) for t in inputs]
    wanted = (many * shape[0], *shape[1:])
    out = _record("attention", given, attrs, scalars, wanted, dtype)
    return logical(out.reshape((*lead, *shape)), levels)


# Which two of (input, weight, output) the operands are, and which the result is.
_CONV_ROLES = {"forward": (0, 1, 2), "input": (2, 1, 0), "weight": (0, 2, 1)}


def _conv(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    kind, *shapes_and_rest = attrs
    shapes, rest = list(shapes_and_rest[:3]), list(shapes_and_rest[3:])
    roles = _CONV_ROLES[kind]
    lead = sizes_of(levels)
    many = numel(lead)
    spatial = slice(2, None)
    batched = {role: bool(t._levels) for role, t in zip(roles, inputs, strict=False)}
    if kind != "weight" and not batched[1]:
        # Only the images are batched: more images.
        for role in (0, 2):
            shapes[role] = (many * shapes[role][0], *shapes[role][1:])
        given = [
            t if role == 1 else physical(t, levels).reshape(shapes[role])
            for role, t in zip(roles, inputs, strict=False)
        ]
        out = _record("conv", given, (kind, *shapes, *rest), scalars, shapes[roles[2]], dtype)
        return logical(out.reshape((*lead, *shape)), levels)
    # Each example is a group of its own: examples go before the channels (before the output channels of weights).
    for role in (0, 2):
        count, channels = shapes[role][:2]
        shapes[role] = (count, many * channels, *shapes[role][spatial])
    shapes[1] = (many * shapes[1][0], *shapes[1][1:])
    given = []
    for role, t in zip(roles, inputs, strict=False):
        x = physical(t, levels)
        if role != 1:
            x = x.movedim(len(lead), 0)
        given.append(x.reshape(shapes[role]))
    rest[-1] = many * rest[-1]
    made = shapes[roles[2]]
    out = _record("conv", given, (kind, *shapes, *rest), scalars, made, dtype)
    if roles[2] == 1:
        return logical(out.reshape((*lead, *shape)), levels)
    out = out.reshape((shape[0], *lead, *shape[1:])).movedim(0, len(lead))
    return _settled(out, levels)


def _examples(levels: Levels, rank: int, like: Tensor) -> list[Tensor]:
    """Return index tensors that pick each example's own rows, for indices of `rank` dims."""
    found = []
    for d, (_, size) in enumerate(levels):
        index = primitive.iota(size, 0, 1, int64, like.device)
        found.append(index.reshape((*(1,) * d, size, *(1,) * (len(levels) - 1 - d + rank))))
    return [f.expand((*sizes_of(levels), *(1,) * rank)) for f in found]


def _indexed(
    base: Tensor, indices: Sequence[Tensor], levels: Levels
) -> tuple[Tensor, list[Tensor]]:
    """Return a base and index tensors with the hidden dims first, and indices that pick along them."""
    rank = len(indices[0]._shape)
    many = [physical(i, levels) for i in indices]
    full = many[0]._shape
    own = [e.expand(full) for e in _examples(levels, rank, base)]
    types = many[0].dtype
    return physical(base, levels), [*(o.to(types) for o in own), *many]


def _take(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    count, dims, name, wrap = attrs
    x, *indices = inputs
    lead = sizes_of(levels)
    k = len(levels)
    if not x._levels:
        given = [physical(i, levels) for i in indices]
        return logical(_record("take", (x, *given), attrs, scalars, lead + shape, dtype), levels)
    if not any(i._levels for i in indices):
        # The same rows of each example: the hidden dims are the last of each row.
        order = (*range(k, k + len(x._shape)), *range(k))
        rows = physical(x, levels).permute(order)
        out = _record("take", (rows, *indices), attrs, scalars, shape + lead, dtype)
        back = (*range(len(shape), len(shape) + k), *range(len(shape)))
        return _settled(out.permute(back), levels)
    base, own = _indexed(x, indices, levels)
    moved = (k + count, (*(0,) * k, *dims), name, wrap)
    return logical(_record("take", (base, *own), moved, scalars, lead + shape, dtype), levels)


def _scatter(
    inputs: Sequence[Tensor],
    levels: Levels,
    attrs: Any,
    scalars: tuple[Scalar, ...],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    count, dims, combine, name, wrap = attrs
    base, *indices, values = inputs
    lead = sizes_of(levels)
    k = len(levels)
    values = physical(values, levels)
    if not any(i._levels for i in indices):
        order = (*range(k, k + len(shape)), *range(k))
        to_end = (*range(k, len(values._shape)), *range(k))
        rows = physical(base, levels).permute(order)
        given = (rows, *indices, values.permute(to_end))
        out = _record("scatter", given, attrs, scalars, shape + lead, dtype)
        back = (*range(len(shape), len(shape) + k), *range(len(shape)))
        return _settled(out.permute(back), levels)
    whole, own = _indexed(base, indices, levels)
    moved = (k + count, (*(0,) * k, *dims), combine, name, wrap)
    given = (whole, *own, values)
    return logical(_record("scatter", given, moved, scalars, lead + shape, dtype), levels)


_RULES: dict[str, Callable[..., Tensor]] = {
    "map": _shifted(lambda attrs, k: ("map", attrs)),
    "reduce": _shifted(lambda a, k: ("reduce", (a[0], tuple([d + k for d in a[1]])))),
    "scan": _shifted(lambda a, k: ("scan", (a[0], a[1] + k))),
    "pad": _shifted(lambda a, k: ("pad", ((0,) * k + a[0],))),
    "matmul": _matmul,
    "attention": _attention,
    "conv": _conv,
    "take": _take,
    "scatter": _scatter,
    "sort": _sort,
}


give(Vmap=Vmap, batch=batch, unbatch=unbatch, summed_over=summed_over)
