"""What an optimizer keeps of each parameter: dicts that say when they change.

A script compares all of it at each step, and most of it is in no cache by then: while nothing has changed it is one
tuple. May import floors 0 to 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.tensors.base import wraps
from webtorch.tensors.tensor import Tensor

StateDict = dict[str, Any]
# All keys and values, while they are what they were.
Cell = list[tuple[object, ...] | None]


def _telling(cls: type[dict[Any, Any]], name: str) -> Callable[..., object]:
    """Return a method of dicts that says that it changes one."""
    method = getattr(cls, name)

    def tell(self: State | States, *args: object, **kwargs: object) -> object:
        """Change the dict, whose values are not known any more."""
        self.cell[0] = None
        return method(self, *args, **kwargs)

    tell.__name__ = name
    return tell


def _tell(cls: Any) -> object:
    """Have the methods that change a dict say so. Copies, pickles and files have the class that it is one of."""
    for name in (
        "__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update",
    ):  # fmt: skip
        setattr(cls, name, _telling(cls.__base__, name))
    return cls


@_tell
class State(dict[str, Any]):
    """The state of a parameter."""

    __slots__ = ("cell",)
    stands_for = dict

    def __init__(self, cell: Cell, given: Mapping[str, object]) -> None:
        """Take what is given; `cell` is that of the optimizer."""
        super().__init__(given)
        self.cell = cell

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Return what makes a plain dict of the same."""
        return dict, (), None, None, iter(self.items())


@_tell
class States(defaultdict[Any, StateDict]):
    """The states of an optimizer's parameters; one that is asked for is there."""

    stands_for = defaultdict

    def __init__(self, *given: Any) -> None:
        """Be as a `defaultdict` of dicts is."""
        self.cell: Cell = [None]
        super().__init__(*(given or (dict,)))

    def begin(self, key: object, given: Mapping[str, object]) -> StateDict:
        """Let the state of a parameter be what is given, and return it."""
        self[key] = found = State(self.cell, given)
        return found

    def __missing__(self, key: object) -> StateDict:
        """Begin the state of a parameter."""
        return self.begin(key, {})

    def __repr__(self) -> str:
        """Return what a `defaultdict` says."""
        return f"defaultdict({self.default_factory!r}, {dict(self)!r})"

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Return what makes a plain `defaultdict` of the same."""
        return defaultdict, (dict,), None, None, iter(self.items())

    @classmethod
    def of(cls, given: Mapping[Any, Any]) -> States:
        """Return the states of a checkpoint, or of an optimizer that was copied."""
        if isinstance(given, cls):
            return given
        found = cls()
        for key, value in given.items():
            if type(value) is dict:
                found.begin(key, value)
            else:
                found[key] = value
        return found


def values_of(states: Mapping[Any, object]) -> tuple[object, ...]:
    """Return the keys of states, and what these hold, in order: the same tuple while nothing has changed. What a class
    of the user's or a hook keeps beside parameters' may be anything.
    """
    cell: Cell = states.cell if isinstance(states, States) else [None]
    found = cell[0]
    if found is None:
        # A look at the state of each would compute its hash.
        each = (s.values() if isinstance(s, dict) else (s,) for s in states.values())
        found = (*states, *chain.from_iterable(each))
        if all(type(s) is State and s.cell is cell for s in states.values()):
            cell[0] = found
    return found


def plain_of(state: object) -> object:
    """Return the plain dict of a state; anything else as it is."""
    return dict(state) if type(state) is State else state


def memory_of(x: Tensor) -> Tensor:
    """Return what holds a tensor's values in this process."""
    part: Tensor = getattr(x, "_local_tensor", x) if wraps(x) else x
    return part


def as_given(param: Tensor, view: Tensor, before: object, x: Tensor) -> Tensor:
    """Return a state of what a step has seen of a parameter as one of the parameter."""
    if x._shape != view._shape or (
        not x._shape and x is not getattr(before, "_local_tensor", None)
    ):
        return x
    if not wraps(param):
        return webtorch.view_as_complex(x)
    if view is not param._local_tensor:  # type: ignore[attr-defined]
        return param._of_whole(x)  # type: ignore[attr-defined]
    known = getattr(before, "_local_tensor", None) is x
    return before if known else param._like(x)  # type: ignore[return-value, attr-defined]


def moved_to(param: Tensor, value: object) -> Any:
    """Return a loaded value with its tensors on the parameter's device, floats in its dtype."""
    if isinstance(value, Tensor):
        if param.is_floating_point() and value.is_floating_point():
            return value.to(device=param.device, dtype=param.dtype)
        return value.to(device=param.device)
    if isinstance(value, dict):
        return {key: moved_to(param, one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved_to(param, one) for one in value)
    return value
