"""Containers against PyTorch: the same operations leave the same printed form and names."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn as ref

import webtorch
from webtorch import nn


def sequential(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(2, 3), lib.ReLU(), lib.Linear(3, 1))


SEQUENTIAL: dict[str, Any] = {
    "plain": lambda s, lib: s,
    "named": lambda s, lib: lib.Sequential(OrderedDict(a=lib.ReLU(), b=lib.Tanh())),
    "slice": lambda s, lib: s[1:],
    "negative": lambda s, lib: s[-2],
    "set": lambda s, lib: s.__setitem__(1, lib.Tanh()),
    "delete": lambda s, lib: s.__delitem__(0),
    "delete slice": lambda s, lib: s.__delitem__(slice(0, 2)),
    "append": lambda s, lib: s.append(lib.Tanh()),
    "insert": lambda s, lib: s.insert(1, lib.Tanh()),
    "insert end": lambda s, lib: s.insert(3, lib.Tanh()),
    "extend": lambda s, lib: s.extend([lib.Tanh(), lib.GELU()]),
    "pop": lambda s, lib: s.pop(1),
    "add": lambda s, lib: s + lib.Sequential(lib.Tanh()),
    "iadd": lambda s, lib: s.__iadd__(lib.Sequential(lib.Tanh())),
    "mul": lambda s, lib: s * 2,
    "rmul": lambda s, lib: 2 * s,
    "imul": lambda s, lib: s.__imul__(2),
}
LIST: dict[str, Any] = {
    "plain": lambda s, lib: s,
    "slice": lambda s, lib: s[::2],
    "negative": lambda s, lib: s[-1],
    "set": lambda s, lib: s.__setitem__(-1, lib.Tanh()),
    "delete": lambda s, lib: s.__delitem__(1),
    "delete slice": lambda s, lib: s.__delitem__(slice(1, None)),
    "append": lambda s, lib: s.append(lib.Tanh()),
    "insert": lambda s, lib: s.insert(1, lib.Tanh()),
    "extend": lambda s, lib: s.extend(lib.Tanh() for _ in range(3)),
    "pop": lambda s, lib: s.pop(0),
    "add": lambda s, lib: s.__add__([lib.Tanh()]),
    "iadd": lambda s, lib: s.__iadd__([lib.Tanh()]),
    "equal": lambda s, lib: lib.ModuleList([sequential(lib) for _ in range(3)] + [lib.ReLU()]),
}
DICT: dict[str, Any] = {
    "plain": lambda s, lib: s,
    "get": lambda s, lib: s["b"],
    "set": lambda s, lib: s.__setitem__("c", lib.GELU()),
    "replace": lambda s, lib: s.__setitem__("a", lib.GELU()),
    "delete": lambda s, lib: s.__delitem__("a"),
    "pop": lambda s, lib: s.pop("a"),
    "update": lambda s, lib: s.update({"z": lib.Tanh(), "a": lib.GELU()}),
    "update pairs": lambda s, lib: s.update([["z", lib.Tanh()]]),
    "update itself": lambda s, lib: lib.ModuleDict(s),
    "clear": lambda s, lib: s.clear(),
}


@pytest.mark.covers("I7")
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_like_pytorch(name: str) -> None:
    outcomes = []
    for lib in (nn, ref):
        module = sequential(lib)
        result = SEQUENTIAL[name](module, lib)
        outcomes.append((repr(module), repr(result), list(module.state_dict()), len(module)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.covers("I8")
@pytest.mark.parametrize("name", LIST)
def test_module_list_like_pytorch(name: str) -> None:
    outcomes = []
    for lib in (nn, ref):
        module = lib.ModuleList([lib.Linear(2, 3), lib.ReLU(), lib.Linear(3, 1)])
        result = LIST[name](module, lib)
        outcomes.append((repr(module), repr(result), list(module.state_dict()), len(module)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", DICT)
def test_module_dict_like_pytorch(name: str) -> None:
    outcomes = []
    for lib in (nn, ref):
        module = lib.ModuleDict({"b": lib.Linear(2, 3), "a": lib.ReLU()})
        result = DICT[name](module, lib)
        outcomes.append(
            (repr(module), repr(result), list(module), "a" in module, list(module.keys()))
        )
        assert [k for k, _ in module.items()] == list(module)
        assert len(list(module.values())) == len(module)
    assert outcomes[0] == outcomes[1]


def test_parameter_list_like_pytorch() -> None:
    outcomes = []
    for lib, tensors in ((nn, webtorch), (ref, torch)):
        held = lib.ParameterList([tensors.ones(2), lib.Parameter(tensors.zeros(2, 3))])
        held.append(tensors.ones(1))
        held += [tensors.zeros(3), "text"]
        held[0] = tensors.zeros(4)
        assert all(isinstance(p, lib.Parameter) for p in list(held)[:4])
        with pytest.raises(IndexError, match="out of range"):
            held[5]
        outcomes.append((repr(held), list(held.state_dict()), len(held), repr(held[1:3]),
                         [tuple(p.shape) for p in held.parameters()]))  # fmt: skip
        with pytest.raises(TypeError, match="should be called with an iterable"):
            held.extend(3)
    assert outcomes[0] == outcomes[1]


def test_parameter_dict_like_pytorch() -> None:
    outcomes = []
    for lib, tensors in ((nn, webtorch), (ref, torch)):
        held = lib.ParameterDict({"b": tensors.ones(2), "a": tensors.zeros(2, 3)})
        held["c"] = lib.Parameter(tensors.ones(1))
        held.update([("d", tensors.ones(5))])
        held.setdefault("e", tensors.ones(6))
        assert held.get("nothing", 3) == 3
        assert tuple(held.get("a").shape) == (2, 3)
        popped = held.pop("b")
        assert isinstance(popped, lib.Parameter)
        last, _ = held.popitem()
        other = lib.ParameterDict({"x": tensors.ones(9)})
        joined = held | other
        held |= other
        del held["x"]
        outcomes.append((repr(held), list(held), last, len(held), list(held.state_dict()),
                         list(joined), "c" in held, list(reversed(held)),
                         list(held.fromkeys(["q"], tensors.ones(1)).keys()),
                         list(held.copy())))  # fmt: skip
        held.clear()
        assert len(held) == 0
        assert list(held.parameters()) == []
    assert outcomes[0] == outcomes[1]
