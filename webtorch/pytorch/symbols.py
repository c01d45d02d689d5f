"""Sizes that are symbols: how a graph's symbols give the geometry of its inputs. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from webtorch.capture.dynamic import Point
from webtorch.pytorch.geometry import Geometry
from webtorch.pytorch.values import Arguments, Value

# An int, or a size with symbols as SymPy has it.
Expression: TypeAlias = Any


class Sizes:
    """The symbols of a graph's sizes, and how they give the geometry of its inputs."""

    def __init__(self, tensors: list[Value], others: list[int], inputs: list[Value]) -> None:
        self.forms = [_form(v.fake) for v in tensors]
        self.numbers = {i: _expression(inputs[i].fake) for i in others}
        # Where a symbol's value is found: tensor and dim, or the number of an argument and -1.
        places: dict[Expression, tuple[int, int]] = {}
        every: set[Expression] = set()
        for n, (shape, *_) in enumerate(self.forms):
            for d, e in enumerate(shape):
                if getattr(e, "is_symbol", False):
                    places.setdefault(e, (n, d))
            every.update(*(e.free_symbols for e in self._parts(n) if not isinstance(e, int)))
        for i, e in self.numbers.items():
            if getattr(e, "is_symbol", False) and e.is_integer:
                places.setdefault(e, (i, -1))
            every.update(getattr(e, "free_symbols", ()))
        self.places = {s: places[s] for s in sorted(every, key=str) if s in places}
        # None where some cannot be found from the arguments.
        self.symbols = list(self.places) if len(self.places) == len(every) else []
        self.fixed = [all(isinstance(e, int) for e in self._parts(n)) for n in range(len(tensors))]

    def _parts(self, n: int) -> Sequence[Expression]:
        shape, strides, offset, elements = self.forms[n]
        return (*shape, *strides, offset, elements)

    def point(self, geometry: list[Geometry], args: Arguments) -> Point | None:
        """Return the sizes of a call; None where its inputs do not lie as the trace has them."""
        point = tuple(
            [int(args[n]) if d < 0 else geometry[n].shape[d] for n, d in self.places.values()]
        )
        if not all(n > 1 for n in point):
            return None
        lies = all(self.geometry(n, point, form) == form for n, form in enumerate(geometry))
        return point if lies else None

    def geometry(self, n: int, point: Point, now: Geometry) -> Geometry:
        """Return how tensor `n` lies at other sizes than now; `now` itself where it has no symbol."""
        if self.fixed[n]:
            return now
        values = dict(zip(self.symbols, point, strict=True))
        shape, strides, offset, elements = self.forms[n]
        return Geometry(
            tuple([_value(e, values) for e in shape]),
            tuple([_value(e, values) for e in strides]),
            _value(offset, values),
            _value(elements, values) << now.dtype.is_complex,
            now.dtype,
        )

    def number(self, i: int, point: Point, now: object) -> object:
        """Return number argument `i` at other sizes than now."""
        e = self.numbers[i]
        if not hasattr(e, "free_symbols"):
            return now
        return _value(e, dict(zip(self.symbols, point, strict=True)))


def _form(
    fake: torch.Tensor,
) -> tuple[tuple[Expression, ...], tuple[Expression, ...], Expression, Expression]:
    """Return shape, strides, offset and the elements of the storage of a traced tensor, with symbols."""
    elements = _expression(fake.untyped_storage().nbytes() // fake.dtype.itemsize)
    return (
        tuple(map(_expression, fake.shape)),
        tuple(map(_expression, fake.stride())),
        _expression(fake.storage_offset()),
        elements,
    )


def _expression(size: object) -> Expression:
    """Return an int, or a symbolic size as SymPy has it."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    e = node.expr
    return int(e) if e.is_Integer else e


def _value(e: Expression, values: dict[Expression, int]) -> int:
    return e if isinstance(e, int) else int(e.xreplace(values))
