"""Forward-mode differentiation: tangents that travel with the values. Floor 4.

A level holds a tangent for every storage that has one: flat like the storage, so that views and
writes through views need no rule. An operation gives its result a tangent from those of its operands:
an elementwise one with the slopes that backward uses, every other one by transposing its gradient
rule. A rule is linear in the cotangent, so its own derivative by that, applied to the tangents, is the
product with the Jacobian (Townsend, 2017); what the rule itself computes is never asked for, and is
not computed.

While the rule of one level runs, only the levels outside of it are open: tangents of tangents come of
themselves, and no two levels are confused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.ir.view import contiguous_strides, numel, overlaps
from webtorch.ops import primitive
from webtorch.tensors.above import give
from webtorch.tensors.base import refuse_wrapped
from webtorch.tensors.batching import batch, levels_of, logical, physical, sizes_of
from webtorch.tensors.engine import run_backward
from webtorch.tensors.modes import enable_grad, mode, transforms
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor


class Level:
    """One level of forward-mode differentiation, and the tangents of the storages that have any."""

    __slots__ = ("duals", "open_to_users", "tangents", "twins")

    def __init__(self, open_to_users: bool = False) -> None:
        # Whether users pack and unpack tangents themselves: a write to a tensor is then one to the tangent that
        # they have.
        self.open_to_users = open_to_users
        # What users have packed, which is no view to forward mode.
        self.duals: list[weakref.ref[Tensor]] = []
        # Storage -> (tangent, geometry of the tensor that it was given for).
        self.tangents: weakref.WeakKeyDictionary[Any, tuple[Tensor, Any]] = (
            weakref.WeakKeyDictionary()
        )
        # Storages with a tangent, and those that stand for the same memory without it; the levels at which
        # both have the same tangents.
        self.twins: list[tuple[weakref.ref[object], weakref.ref[object], tuple[Level, ...]]] = []

    def __contains__(self, x: Tensor) -> bool:
        return x._storage in self.tangents

    def __enter__(self) -> Level:
        mode.forward = (*mode.forward, self)
        transforms.add(1)
        return self

    def __exit__(self, *_: object) -> None:
        mode.forward = mode.forward[:-1]
        transforms.add(-1)
        self.tangents.clear()
        self.twins.clear()

    def pair(self, one: Storage, other: Storage, alike: tuple[Level, ...] = ()) -> None:
        """Have two storages stand for one memory, with the same tangents at the levels `alike`."""
        self.twins.append((weakref.ref(one), weakref.ref(other), alike))

    def set(self, x: Tensor, tangent: Tensor) -> None:
        """Make `tangent` the tangent of the whole storage of x, which must be all of x."""
        if x.dtype.is_complex:
            x, tangent = x._pairs(), primitive.pairs(tangent)
        self.tangents[x._storage] = (tangent, _geometry(x))

    def of(self, x: Tensor) -> Tensor | None:
        """Return x's tangent, or None where it is zero."""
        if x.dtype.is_complex:
            parts = self.of(x._pairs())
            return None if parts is None else primitive.paired(parts)
        found = self.tangents.get(x._storage)
        if found is None or x.dtype is not x._storage.dtype:
            # What sees the memory as another type has no tangent.
            return None
        tangent, geometry = found
        return tangent if geometry == _geometry(x) else _seen(self._flat(x), x)

    def _flat(self, x: Tensor) -> Tensor:
        """Return the tangent of the storage of x in the order of its elements."""
        tangent, geometry = self.tangents[x._storage]
        shape, strides, offset, levels = geometry
        elements = x._storage.elements
        if numel(shape) == elements and (strides, offset, levels) == (
            contiguous_strides(shape),
            0,
            (),
        ):
            if (tangent._strides, tangent._offset) == (strides, 0):
                return tangent
            # Views are taken of its memory: it must lie there as the storage does.
            flat = primitive.copy(tangent)
            self.tangents[x._storage] = (flat, geometry)
            return flat
        flat = _zeros((elements,), tangent, {n for n, _, _ in levels})
        like = Tensor._from_storage(x._storage, shape, strides, offset, False, None, levels)
        primitive.write(_seen(flat, like), tangent)
        self.tangents[x._storage] = (flat, ((elements,), (1,), 0, ()))
        return flat

    def own(self, tangent: Tensor) -> Tensor:
        """Return a tangent that may be written: a copy, where it is that of several storages."""
        own = tangent._storage
        shared = sum(t._storage is own for t, _ in self.tangents.values()) > 1
        return tangent.clone() if shared else tangent

    def follow(self, one: object, other: object) -> None:
        """Give storage `other` the tangent of `one`, which has the same elements."""
        found = self.tangents.get(one)
        if found is None:
            self.tangents.pop(other, None)
        else:
            self.tangents[other] = found

    def write(self, x: Tensor, tangent: Tensor | None) -> None:
        """Overwrite the tangent where x lies."""
        if self.open_to_users and x in self and tangent is not None:
            held, geometry = self.tangents[x._storage]
            fits = geometry == _geometry(x) and held._levels == tangent._levels
            if fits and not x.dtype.is_complex and self.own(held) is held:
                held.copy_(tangent)
                return
        if x not in self:
            if tangent is None:
                return
            home = x if x._base is None else x._base
            if self.open_to_users and home._whole and not home._levels:
                # The tangent of all of the memory is one tensor, of which users see views.
                if x._whole and x._shape == home._shape:
                    self.set(home, tangent.clone())
                    return
                self.set(home, _zeros(home._shape, tangent, set()))
                primitive.write(_seen(self._flat(home), x), tangent)
                return
            zeros = _zeros((x._storage.elements,), tangent, {n for n, _, _ in x._levels})
            self.tangents[x._storage] = (zeros, (zeros._shape, zeros._strides, 0, ()))
        # A copy: the tangent itself may be someone's tensor. It costs nothing until it is written.
        flat = self._flat(x)
        new = _zeros(flat._shape, flat, set(), tangent, {n for n, _, _ in x._levels})
        new = new + flat
        if tangent is None:
            tangent = primitive.fill(x._shape, 0, flat.dtype, flat.device)
        primitive.write(_seen(new, x), tangent)
        self.tangents[x._storage] = (new, (new._shape, contiguous_strides(new._shape), 0, ()))


def _geometry(x: Tensor) -> object:
    return (x._shape, x._strides, x._offset, x._levels)


def _zeros(
    shape: tuple[int, ...],
    like: Tensor,
    without: set[int],
    other: Tensor | None = None,
    without_other: set[int] = frozenset(),  # type: ignore[assignment]
) -> Tensor:
    """Return zeros for each example of the tangents that are to be written to them."""
    found = {n: size for n, size, _ in like._levels if n not in without}
    if other is not None:
        found |= {n: size for n, size, _ in other._levels if n not in without_other}
    levels = tuple(sorted(found.items()))
    made = primitive.fill((*sizes_of(levels), *shape), 0, like.dtype, like.device)
    return logical(made, levels) if levels else made


def _seen(flat: Tensor, x: Tensor) -> Tensor:
    """Return the part of a flat tangent that belongs to x."""
    if not x._levels:
        return primitive.as_view(flat, x._shape, x._strides, x._offset)
    whole = physical(x, levels_of((x,)))
    part = primitive.as_view(flat, whole._shape, whole._strides, whole._offset)
    for number, _, _ in x._levels:
        part = batch(part, 0, number)
    return part


def propagate(
    out: Tensor, operands: Sequence[object], rule: Callable[[list[Tensor | None]], Tensor | None]
) -> None:
    """Give the new tensor `out` its tangents: `rule` of the operands' tangents, at every level."""
    levels = mode.forward
    for i, level in enumerate(levels):
        if not any(isinstance(o, Tensor) and o in level for o in operands):
            continue
        tangents = [level.of(o) if isinstance(o, Tensor) else None for o in operands]
        mode.forward = levels[:i]
        try:
            tangent = rule(tangents)
            if tangent is not None:
                level.set(out, fitted(tangent, out))
        finally:
            mode.forward = levels


def fitted(tangent: Tensor, x: Tensor) -> Tensor:
    """Return a tangent in the dtype and shape of its tensor."""
    if tangent.dtype is not x.dtype:
        tangent = primitive.cast_to(tangent, x.dtype)
    return tangent if tangent._shape == x._shape else tangent.expand(x._shape)


def transposed(
    outs: Sequence[Tensor], inputs: Sequence[Tensor], rule: Callable[[tuple[Tensor, ...]], Any]
) -> None:
    """Give the results of an operation their tangents, by transposing its gradient rule."""
    levels = mode.forward
    for i, level in enumerate(levels):
        if not any(x in level for x in inputs):
            continue
        tangents = [level.of(x) for x in inputs]
        recorded, kept, hooks = mode.grad, mode.keeps_levels, mode.saved_hooks
        # Hooks are for what the caller's backward pass saves.
        mode.forward, mode.saved_hooks = levels[:i], ()
        try:
            with enable_grad():
                us = tuple([_start(o) for o in outs])
                pairs = [
                    (c, fitted(t, c))
                    for c, t in zip(rule(us), tangents, strict=False)
                    if c is not None and t is not None
                ]
            if pairs and not any(c.requires_grad for c, _ in pairs):
                # A gradient that is zero whatever comes: of numbers that are drawn.
                for out in outs:
                    level.set(out, _zeros(out._shape, out, set()))
            pairs = [(c, t) for c, t in pairs if c.requires_grad]
            if not pairs:
                continue
            mode.keeps_levels = True
            found = run_backward(
                [c for c, _ in pairs],
                [t for _, t in pairs],
                retain_graph=recorded,
                create_graph=recorded,
                inputs=us,
                accumulate=False,
            )
            for out, tangent in zip(outs, found, strict=True):
                if tangent is not None:
                    level.set(out, fitted(tangent, out))
        finally:
            mode.forward, mode.keeps_levels, mode.saved_hooks = levels, kept, hooks


def _start(x: Tensor) -> Tensor:
    u = _zeros(x._shape, x, set())
    u._requires_grad = True
    return u


def write_tangents(x: Tensor, values: Tensor) -> None:
    """Have the tangents follow an in-place write."""
    levels = mode.forward
    for i, level in enumerate(levels):
        tangent = level.of(values)
        if tangent is None and x not in level:
            continue
        mode.forward = levels[:i]
        try:
            level.write(x, tangent)
        finally:
            mode.forward = levels


def home_of(storage: object) -> Any:
    """Return the storage that one stands for, without a tangent or with another one."""
    for level in reversed(mode.forward):
        for first, second, _ in reversed(level.twins):
            if first() is storage and (home := second()) is not None:
                storage = home
    return storage


def write_twins(storage: Any) -> list[Any]:
    """Give what stands for the memory that was just written the value that is there now; return those storages."""
    waiting, seen = [storage], {id(storage)}
    found: list[object] = []
    while waiting:
        one = waiting.pop()
        for level in mode.forward:
            for first, second, alike in level.twins:
                a, b = first(), second()
                other = b if a is one else a if b is one else None
                if other is not None and id(other) not in seen:
                    seen.add(id(other))
                    other.replace(storage.share())
                    for outer in alike:
                        outer.follow(one, other)
                    waiting.append(other)
                    found.append(other)
    return found


def dual(primal: Tensor, tangent: Tensor, level: Level) -> Tensor:
    """Return a view of `primal` with a tangent at `level`: what is written to it is written to `primal`."""
    for name, x in (("primal", primal), ("tangent", tangent)):
        refuse_wrapped("forward mode", x)
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"Expected {name} to be floating point or complex, but got: {x.dtype}")
    number = mode.forward.index(level)
    if primal in level:
        raise RuntimeError(
            "Making a dual Tensor based on a Tensor that already has a forward gradient at the same level "
            f"{number} is not supported."
        )
    if tangent in level:
        raise RuntimeError(
            "Setting a forward grad that itself has a forward gradient at the same level "
            f"{number} is not supported."
        )
    if tangent._shape != primal._shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
            f"not supported. Tensor is of size {list(primal._shape)} while the given forward gradient is of size "
            f"{list(tangent._shape)}."
        )
    if tangent.dtype is not primal.dtype:
        raise RuntimeError(
            f"Expected the tangent to have the dtype of the primal, {primal.dtype}, but got: "
            f"{tangent.dtype}"
        )
    if not _lies_as(tangent, primal):
        # Views of the value are views of the tangent.
        tangent = tangent.clone()
    if overlaps(primal._shape, primal._strides) or (
        primal.dtype is not primal._storage.dtype and not primal.dtype.is_complex
    ):
        # Nothing can be written to it through a view, or nothing can be told of its tangent.
        out = primitive.copy(primal)
    else:
        out = _beside(primal, "MakeDual", level)
    level.set(out, tangent)
    level.duals.append(weakref.ref(out))
    return out


def _lies_as(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape lie alike in memory of one size; that of examples of a vmap has any size."""
    steps = zip(one._shape, one._strides, other._strides, strict=True)
    return (
        (one._offset == other._offset or 0 in one._shape)
        and all(a == b for size, a, b in steps if size != 1)
        and (bool(one._levels) or one._storage.nbytes == other._storage.nbytes)
    )


def _beside(x: Tensor, name: str, level: Level) -> Tensor:
    """Return a view of x with another tangent at `level`: tangents belong to storages, so it has its own."""
    out = primitive.as_view(x, x._shape, x._strides, x._offset, _itself, (), name)
    if x._inference:
        out._base = None
    before = x._storage
    out._storage = Storage(before.share(), before.runtime)
    alike = mode.forward[: mode.forward.index(level)]
    level.pair(out._storage, before, alike)
    for outer in alike:
        outer.follow(before, out._storage)
    return out


def primal_of(x: Tensor, level: Level) -> Tensor:
    """Return a view of x without its tangent at `level`."""
    levels = mode.forward
    try:
        if overlaps(x._shape, x._strides) or x.dtype is not x._storage.dtype:
            mode.forward = levels[: levels.index(level)]
            return x.clone()
        return _beside(x, "FwPrimal", level)
    finally:
        mode.forward = levels


def _itself(g: Tensor) -> Tensor:
    return g


def tangent_of(x: Tensor, level: Level) -> Tensor | None:
    """Return the tangent of x at `level`, as it is outside of the level."""
    levels = mode.forward
    mode.forward = levels[: levels.index(level)]
    try:
        return level.of(x)
    finally:
        mode.forward = levels


give(transposed=transposed)
