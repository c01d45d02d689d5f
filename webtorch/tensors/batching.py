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
from typing import Any, NamedTuple

from webtorch.ir.dtype import DType, Scalar, int64
from webtorch.ir.view import Shape, contiguous_strides, is_contiguous, numel
from webtorch.ops import primitive
from webtorch.ops.record import TABLE
from webtorch.tensors.above import ask, give
from webtorch.tensors.base import refuse_wrapped
from webtorch.tensors.formats import contiguous_format
from webtorch.tensors.modes import mode, transforms, unrecorded
from webtorch.tensors.override import flat
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

    def __exit__(self, *_: object) -> None:
        mode.vmaps = mode.vmaps[:-1]
        transforms.add(-1)


class Kept:
    """A block whose vmaps have numbers that are noted, and have them again in a later block of the same one."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def __enter__(self) -> None:
        self.before = mode.numbers
        mode.numbers = self._numbers(self.before)

    def __exit__(self, *_: object) -> None:
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
    refuse_wrapped("vmap", x)
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


def spread(x: Tensor, others: Iterable[object]) -> Tensor:
    """Return x seen once for each example of the others. Differentiable."""
    own = {n for n, _, _ in x._levels}
    for number, size in levels_of(others):
        if number not in own:
            x = batch(unbatch(x, 0, number, size), 0, number)
    return x


def in_all_examples(out: Any, arguments: Iterable[object]) -> Any:
    """Return the results of a call, those without elements seen once for each example of its operands: nothing may have
    been recorded for them.
    """
    if isinstance(out, tuple):
        found = [in_all_examples(one, arguments) for one in out]
        return type(out)(*found) if hasattr(out, "_fields") else tuple(found)
    if not isinstance(out, Tensor):
        return out
    operands = [x for x in flat(arguments) if isinstance(x, Tensor)]
    return spread(out, operands) if any(not numel(x._shape) for x in (out, *operands)) else out


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


class _Made(NamedTuple):
    """A node as it is recorded for one example; some of its inputs have hidden dims."""

    kind: str
    inputs: Sequence[Tensor]
    attrs: tuple[Any, ...]
    scalars: tuple[Scalar, ...]
    shape: Shape
    dtype: DType
    levels: Levels

    @property
    def lead(self) -> Shape:
        """The sizes of the hidden dims."""
        return sizes_of(self.levels)

    @property
    def many(self) -> int:
        """How many examples there are."""
        return numel(self.lead)

    def record(
        self, inputs: Sequence[Tensor], shape: Shape, attrs: tuple[object, ...] | None = None
    ) -> Tensor:
        """Record one such node, of all examples."""
        attrs = self.attrs if attrs is None else attrs
        return ask("record")(self.kind, inputs, attrs, self.scalars, shape, self.dtype)

    def flat(self, x: Tensor) -> Tensor:
        """Return an input with its examples and its first dim as one."""
        return physical(x, self.levels).reshape((self.many * x._shape[0], *x._shape[1:]))

    def apart(self, out: Tensor) -> Tensor:
        """Return the result of all examples, which come first in it, with these hidden."""
        return logical(out.reshape((*self.lead, *self.shape)), self.levels)


_Rule = Callable[[_Made], Tensor]
# Kind of a node -> how it is recorded of operands that are batched.
_RULES: dict[str, _Rule] = {}


def _rule(kind: str) -> Callable[[_Rule], _Rule]:
    """Register the rule of one kind of nodes."""

    def register(rule: _Rule) -> _Rule:
        """Note a rule by its kind."""
        _RULES[kind] = rule
        return rule

    return register


def record_batched(
    kind: str,
    inputs: Sequence[Tensor],
    attrs: tuple[object, ...],
    scalars: tuple[Scalar, ...],
    shape: tuple[int, ...],
    dtype: DType,
) -> Tensor:
    """Record a node whose operands are batched: the same for each example, in one node."""
    made = _Made(kind, inputs, attrs, scalars, shape, dtype, levels_of(inputs))
    with unrecorded():
        return _RULES.get(kind, _one_by_one)(made)


def sizes_of(levels: Levels) -> tuple[int, ...]:
    """Return the sizes of the hidden dimensions."""
    return tuple([size for _, size in levels])


def _settled(x: Tensor, levels: Levels) -> Tensor:
    """Return x with its first dims hidden; the others must lie in row-major order, as what is new does."""
    out = logical(x, levels)
    if out._strides != contiguous_strides(out._shape):
        out = logical(x.clone(memory_format=contiguous_format), levels)
    return out


def _shifted(kind: str, move: Callable[[tuple[Any, ...], int], tuple[Any, ...]]) -> None:
    """Register the rule of nodes that map their operands one by one: hidden dims go first, attributes move."""

    @_rule(kind)
    def rule(m: _Made) -> Tensor:
        """Record the node with the hidden dims in front."""
        given = [physical(t, m.levels) for t in m.inputs]
        return logical(m.record(given, m.lead + m.shape, move(m.attrs, len(m.levels))), m.levels)


_shifted("map", lambda attrs, k: attrs)
_shifted("reduce", lambda attrs, k: (attrs[0], tuple([d + k for d in attrs[1]])))
_shifted("scan", lambda attrs, k: (attrs[0], attrs[1] + k))
_shifted("pad", lambda attrs, k: ((0,) * k + attrs[0],))


@_rule("matmul")
def _matmul(m: _Made) -> Tensor:
    a, b = m.inputs
    batches, rows, n = m.shape
    if not b._levels and batches == 1:
        # One matrix for all examples: their rows are one taller matrix.
        taller = physical(a, m.levels).reshape((1, m.many * rows, a._shape[2]))
        return m.apart(m.record((taller, b), (1, m.many * rows, n)))
    return m.apart(m.record((m.flat(a), m.flat(b)), (m.many * batches, rows, n)))


def _one_by_one(m: _Made) -> Tensor:
    """Record a node for each example, where a kind has no rule, and stack their results."""
    flat = [physical(t, m.levels).reshape((m.many, *t._shape)) for t in m.inputs]
    parts = [m.record([t.select(0, i) for t in flat], m.shape) for i in range(m.many)]
    return m.apart(TABLE["stack"](parts))


@_rule("sort")
def _sort(m: _Made) -> Tensor:
    rows, count = m.shape
    return m.apart(m.record((m.flat(m.inputs[0]),), (m.many * rows, count)))


@_rule("attention")
def _attention(m: _Made) -> Tensor:
    if m.attrs[4]:
        # Dropout: its random numbers were drawn for one example.
        return _one_by_one(m)
    return m.apart(m.record([*map(m.flat, m.inputs)], (m.many * m.shape[0], *m.shape[1:])))


# Which two of (input, weight, output) the operands are, and which the result is.
_CONV_ROLES = {"forward": (0, 1, 2), "input": (2, 1, 0), "weight": (0, 2, 1)}


@_rule("conv")
def _conv(m: _Made) -> Tensor:
    kind, *shapes_and_rest = m.attrs
    shapes, rest = list(shapes_and_rest[:3]), list(shapes_and_rest[3:])
    roles = _CONV_ROLES[kind]
    levels, many = m.levels, m.many
    batched = {role: bool(t._levels) for role, t in zip(roles, m.inputs, strict=False)}
    if kind != "weight" and not batched[1]:
        # Only the images are batched: more images.
        for role in (0, 2):
            shapes[role] = (many * shapes[role][0], *shapes[role][1:])
        given = [
            t if role == 1 else physical(t, levels).reshape(shapes[role])
            for role, t in zip(roles, m.inputs, strict=False)
        ]
        return m.apart(m.record(given, shapes[roles[2]], (kind, *shapes, *rest)))
    # Each example is a group of its own: examples go before the channels (before the output channels of weights).
    for role in (0, 2):
        count, channels = shapes[role][:2]
        shapes[role] = (count, many * channels, *shapes[role][2:])
    shapes[1] = (many * shapes[1][0], *shapes[1][1:])
    given = []
    for role, t in zip(roles, m.inputs, strict=False):
        x = physical(t, levels)
        if role != 1:
            x = x.movedim(len(levels), 0)
        given.append(x.reshape(shapes[role]))
    rest[-1] = many * rest[-1]
    out = m.record(given, shapes[roles[2]], (kind, *shapes, *rest))
    if roles[2] == 1:
        return m.apart(out)
    out = out.reshape((m.shape[0], *m.lead, *m.shape[1:])).movedim(0, len(levels))
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


@_rule("take")
def _take(m: _Made) -> Tensor:
    count, dims, *names = m.attrs
    x, *indices = m.inputs
    levels, k = m.levels, len(m.levels)
    if not x._levels:
        given = [physical(i, levels) for i in indices]
        return logical(m.record((x, *given), m.lead + m.shape), levels)
    if not any(i._levels for i in indices):
        # The same rows of each example: the hidden dims are the last of each row.
        out = m.record((_hidden_behind(x, levels), *indices), m.shape + m.lead)
        return _hidden_last(out, m)
    base, own = _indexed(x, indices, levels)
    moved = (k + count, (*(0,) * k, *dims), *names)
    return logical(m.record((base, *own), m.lead + m.shape, moved), levels)


@_rule("scatter")
def _scatter(m: _Made) -> Tensor:
    count, dims, *names = m.attrs
    base, *indices, values = m.inputs
    levels, k = m.levels, len(m.levels)
    if not any(i._levels for i in indices):
        given = (_hidden_behind(base, levels), *indices, _hidden_behind(values, levels))
        return _hidden_last(m.record(given, m.shape + m.lead), m)
    whole, own = _indexed(base, indices, levels)
    moved = (k + count, (*(0,) * k, *dims), *names)
    given = (whole, *own, physical(values, levels))
    return logical(m.record(given, m.lead + m.shape, moved), levels)


def _hidden_behind(x: Tensor, levels: Levels) -> Tensor:
    """Return x with its hidden dims as the last."""
    k = len(levels)
    whole = physical(x, levels)
    return whole.permute((*range(k, len(whole._shape)), *range(k)))


def _hidden_last(out: Tensor, m: _Made) -> Tensor:
    """Return a result whose last dims are the hidden ones."""
    rank = len(m.shape)
    order = (*range(rank, len(out._shape)), *range(rank))
    return _settled(out.permute(order), m.levels)


give(Vmap=Vmap, batch=batch, unbatch=unbatch, summed_over=summed_over)
