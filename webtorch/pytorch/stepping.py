"""PyTorch's optimizers, a parameter at a time, with stand-ins for its tensors. Floor 6; imports PyTorch.

`torch.optim` says in Python how each optimizer steps one parameter (`_single_tensor_adam` and its like). That function
is run with stand-ins: for counts that are on the CPU with these, so that all numbers are worked out as PyTorch works
them out. Without values the stand-ins only note what is called in which order, and the numbers; with tensors of the
engine they compute. What is called but for its numbers is the kind of a step, which is known once it has come twice
(`optimizer`).
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import SupportsFloat

import torch

from webtorch.aten.table import op
from webtorch.ir.dtype import Number
from webtorch.ops.precision import to_type
from webtorch.pytorch.device import TO_TORCH, TO_WEBTORCH
from webtorch.tensors.tensor import Tensor

# What a step calls, but for its numbers.
Kind = tuple[object, ...]
# Sizes of what was made at the end of a kind, by how long and which one that was.
Shapes = dict[tuple[int, int], tuple[int, ...]]


class Refused(Exception):
    """What a step does cannot be told without values, or is nothing that stand-ins do."""


class Stand:
    """Stands for a tensor in a step. Its methods are a tensor's."""

    __slots__ = ("_end", "_like", "_number", "_run", "_seen", "_value", "_viewed")

    def __init__(self, run: Run, like: torch.Tensor | None, value: Tensor | None) -> None:
        self._run, self._like, self._value = run, like, value
        # Which one it is, what had been called then, and how often it was written.
        self._number = run.made = run.made + 1
        self._end, self._seen = len(run.called), 0
        # What it is a view of, and how often that had been written.
        self._viewed: tuple[Stand, int] | None = None

    @property
    def shape(self) -> torch.Size:
        """The sizes."""
        return torch.Size(self._run.shape_of(self))

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type."""
        return self._run.dtype_of(self)

    @property
    def requires_grad(self) -> bool:
        """False: steps are not differentiated."""
        return False

    @property
    def device(self) -> torch.device:
        """The device, which all have in common."""
        return self._run.like.device

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dims."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    def item(self) -> Stand:
        """Return the number: it waits."""
        return self

    def __bool__(self) -> bool:
        raise Refused

    def __getattr__(self, name: str) -> object:
        if callable(getattr(torch.Tensor, name)):
            return functools.partial(self._run.method, name, self)
        if name.startswith("is_"):
            # What is made of them is of their kind.
            return getattr(self._run.like, name)
        return self._run.method(name, self)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Stand | bool:
        options = kwargs or {}
        run = next(_stands((*args, *options.values())))._run
        if func is torch.is_complex:
            return False
        return run.call(func.__name__, args, options, None, False)


def _method(name: str) -> Callable[..., Stand]:
    return lambda self, *args: self._run.method(name, self, *args)


# Python's operators: `operator` has each by two names. Those of an operand on the right have an r.
_OPERATORS = [
    name
    for each in vars(operator)
    if each.startswith("__") and {each.strip("_"), each[2:-1]} & vars(operator).keys()
    for name in (each, f"__r{each[2:]}")
    if any(name in vars(kind) for kind in torch.Tensor.__mro__)
]
for _each in _OPERATORS:
    setattr(Stand, _each, _method(_each))
# Those that write, with what they write.
_ASSIGNED = {n: u for n in _OPERATORS if n[2] == "i" and (u := f"__{n[3:]}") in _OPERATORS}


def _stands(values: Iterable[object]) -> Iterator[Stand]:
    for x in values:
        if type(x) is Stand:
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _stands(x)


class Run:
    """One run of a step: what it called, and its numbers."""

    def __init__(
        self,
        like: torch.Tensor,
        shapes: Shapes,
        given: Iterator[Number] | None = None,
    ) -> None:
        """`like`: the parameter. `given`: numbers in the place of its own, where the stand-ins have values. `shapes`:
        what is known of them.
        """
        self.like, self.shapes, self.given = like, shapes, given
        self.made = 0
        self.numbers: list[float] = []
        self.called: list[object] = []
        # Whether sizes or types were asked for.
        self.sized = False

    def shape_of(self, x: Stand) -> tuple[int, ...]:
        """Return the sizes of a stand-in's tensor."""
        self.sized = True
        if x._value is not None:
            return x._value._shape
        if x._like is not None:
            return tuple(x._like.shape)
        found = self.shapes.get((x._end, hash(tuple(self.called[: x._end]))))
        if found is None:
            raise Refused
        return found

    def dtype_of(self, x: Stand) -> torch.dtype:
        """Return the type of a stand-in's tensor."""
        self.sized = True
        if x._value is not None:
            return TO_TORCH[x._value.dtype]
        if x._like is None:
            raise Refused
        return x._like.dtype

    def method(self, name: str, x: Stand, *args: object, **kwargs: object) -> Stand:
        """Call a method."""
        if name == "__setitem__":
            mask = args[0]
            if type(mask) is not Stand or (
                mask._value is not None and mask.dtype is not torch.bool
            ):
                raise Refused
            return self.call("masked_fill", (x, *args), kwargs, x)
        if name.endswith("__"):
            if (usual := _ASSIGNED.get(name)) is not None:
                return self.call(usual, (x, *args), kwargs, x)
        elif name.endswith("_"):
            return self.call(name[:-1], (x, *args), kwargs, x)
        return self.call(name, (x, *args), kwargs, None)

    def call(
        self,
        name: str,
        args: Sequence[object],
        kwargs: dict[str, object],
        target: Stand | None,
        of_tensor: bool = True,
    ) -> Stand:
        """Call a function of tensors, which is the method of that name if `of_tensor`. `target` is overwritten."""
        if kwargs:
            out = kwargs.pop("out", target)
            if out is not None and type(out) is not Stand:
                raise Refused
            target = out
            kwargs.pop("memory_format", None)
            for factor in ("alpha", "value"):
                if type(kwargs.get(factor)) is Stand:
                    # Factors are numbers; those that wait multiply before.
                    first, second, *rest = args
                    args = (first, operator.mul(second, kwargs.pop(factor)), *rest)
        self.called += (name, target is not None and target._number, len(args), *kwargs)
        values = [self._noted(x) for x in args]
        options = {k: self._noted(x) for k, x in kwargs.items()}
        if self.given is None:
            return Stand(self, None, None) if target is None else target
        if name == "copy":
            found = values[1]
        elif not of_tensor:
            found = getattr(op, name)(*values, **options)
        else:
            found = getattr(values[0], name)
            if callable(found):
                found = found(*values[1:], **options)
        if not isinstance(found, Tensor):
            raise Refused
        if target is not None:
            self._overwrite(target, found)
            return target
        made = Stand(self, None, found)
        self.shapes[made._end, hash(tuple(self.called))] = found._shape
        for x in _stands(args):
            if x._value is not None and x._value._storage is found._storage:
                made._viewed = x, x._seen
        return made

    @staticmethod
    def _overwrite(target: Stand, found: Tensor) -> None:
        old = target._value
        if old is None:
            raise Refused
        view = target
        while view._viewed is not None:
            # What it is a view of has no value any more.
            base, _ = view._viewed
            if base._like is not None:
                raise Refused
            base._value, base._seen, view._viewed = None, base._seen + 1, None
            view = base
        found = to_type(found, old.dtype)
        target._value = found if found._shape == old._shape else found.expand(old._shape)
        target._seen += 1

    def _noted(self, x: object) -> object:
        """Add an argument to what is called, and return it as the engine takes it."""
        if type(x) is Stand:
            self.called.append((x._number,))
            old = x._viewed is not None and x._viewed[0]._seen != x._viewed[1]
            if old or (x._value is None and self.given is not None):
                raise Refused
            return x._value
        if type(x) is float:
            self.called.append(float)
            self.numbers.append(x)
            return x if self.given is None else next(self.given, x)
        if isinstance(x, (list, tuple)):
            return [self._noted(each) for each in x]
        if isinstance(x, (torch.Tensor, slice)):
            raise Refused
        self.called += (type(x), x)
        return TO_WEBTORCH[x] if isinstance(x, torch.dtype) else x


def _extreme(name: str, *values: object, **options: object) -> object:
    """Return the largest or smallest of values, of which one may be a number that waits."""
    stands = [*_stands(values)]
    if not stands or options:
        return getattr(builtins, name)(*values, **options)
    numbers = [float(x) for x in values if type(x) is not Stand and isinstance(x, SupportsFloat)]
    if len(stands) != 1 or len(numbers) != 1:
        raise Refused
    (bound,), (x,) = numbers, stands
    return x._run.method("clamp", x, **{"min" if name == "max" else "max": bound})


@functools.cache
def waiting(function: FunctionType) -> Callable[..., None]:
    """Return a function of PyTorch's whose extremes may be of numbers that wait."""
    extremes = {name: functools.partial(_extreme, name) for name in ("max", "min")}
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **extremes},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def stepped(
    function: Callable[..., None],
    run: Run,
    lists: Sequence[object],
    options: Mapping[str, object],
    like: Sequence[torch.Tensor | None],
    values: Sequence[Tensor | None] = (),
) -> tuple[list[Stand | None], list[torch.Tensor]]:
    """Run a step of one parameter: return the stand-ins of its tensors on the device, in their order, and the counts on
    the CPU as they are then. `lists` hold of each such tensor its place among them, and numbers for counts.
    """
    stands = [
        None if x is None else Stand(run, x, values[n] if values else None)
        for n, x in enumerate(like)
    ]
    counts: list[torch.Tensor] = []

    given = [_standing(x, stands, counts) for x in lists]
    before = [[*x] for x in given if isinstance(x, list)]
    function(*given, **{name: _standing(x, stands, counts) for name, x in options.items()})
    after = [x for x in given if isinstance(x, list)]
    if any(a is not b for xs, ys in zip(after, before) for a, b in zip(xs, ys)):
        # A list has got another tensor, of a state that begins.
        raise Refused
    return stands, counts


def _standing(x: object, stands: Sequence[Stand | None], counts: list[torch.Tensor]) -> object:
    """Return what stands for one of what is given."""
    if type(x) is Place:
        return stands[x]
    if type(x) is Count:
        counts.append(x.tensor())
        return counts[-1]
    return [_standing(each, stands, counts) for each in x] if isinstance(x, list) else x


class Place(int):
    """The place of a tensor among those of a parameter."""


class Count(float):
    """The value of a tensor on the CPU, which has one element."""

    dtype: torch.dtype

    def __new__(cls, value: float, dtype: torch.dtype) -> Count:
        """Return one of the type that the tensor has."""
        made = super().__new__(cls, value)
        made.dtype = dtype
        return made

    def tensor(self) -> torch.Tensor:
        """Return one like it."""
        return torch.tensor(float(self), dtype=self.dtype, device="cpu")
