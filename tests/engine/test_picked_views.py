"""0-d integer tensors between the brackets: `x[i]` is a view, as with an int; in a compiled function, where nothing
is read, it behaves like one. Compared with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "first": lambda x, i: x[i(1)],
    "negative": lambda x, i: x[i(-1)],
    "two": lambda x, i: x[i(1), i(2)],
    "three": lambda x, i: x[i(1), i(2), i(3)],
    "with an int": lambda x, i: x[0, i(2)],
    "with a slice": lambda x, i: x[:, i(1), 1:3],
    "after an ellipsis": lambda x, i: x[..., i(-2)],
    "with None": lambda x, i: x[i(1), None],
    "a chain": lambda x, i: x[i(0)][i(1)][i(2)],
    "int32": lambda x, i: x[i(1, "int32")],
    "int16": lambda x, i: x[i(1, "int16")],
    "uint8, a mask": lambda x, i: x[i(1, "uint8")],
    "bool, a mask": lambda x, i: x[i(True, "bool")],
    "with a list": lambda x, i: x[i(1), [0, 1]],
    "with positions": lambda x, i: x[i(0), :, i([0, 1])],
    "beyond the end": lambda x, i: x[i(5)],
}


def _index(t: Any, device: str) -> Callable[..., Any]:
    return lambda value, dtype="int64": t.tensor(value, dtype=getattr(t, dtype)).to(device)


def _story(t: Any, device: str, view: Callable[[Any, Any], Any]) -> Any:
    x = t.arange(24.0).reshape(2, 3, 4).to(device)
    try:
        y = view(x, _index(t, device))
        base = y._base is not None
    except IndexError as error:
        return str(error)
    y.add_(100)
    x.mul_(2)
    return x.tolist(), y.tolist(), base, tuple(y.stride()), y.storage_offset()


@pytest.mark.parametrize("name", VIEWS)
def test_a_picked_element_is_what_it_is_with_an_int(name: str, device: str) -> None:
    assert _story(webtorch, device, VIEWS[name]) == _story(torch, "cpu", VIEWS[name])


def _writes(x: Any, i: Any) -> Any:
    row = x[i]
    row.add_(100)
    cell = x[i, 1]
    cell.mul_(2)
    x[i] += 1
    x[:, i].zero_()
    row[0].sub_(3)
    return row.sum(), cell * 1


def _nested(x: Any, i: Any) -> Any:
    y = x * 2
    row = y[i]
    cell = row[i]
    cell.mul_(x[0, 0])
    y.add_(1)
    row.mul_(3)
    return y, row * 1, cell * 1


@pytest.mark.parametrize("function", [_writes, _nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("compiled", [False, True])
def test_writes_through_picked_elements(
    function: Callable[..., Any], compiled: bool, device: str
) -> None:
    call = webtorch.compile(function) if compiled else function
    for k in (0, 1, 1, 0):
        theirs = torch.arange(1.0, 13).reshape(2, 3, 2)
        ours = webtorch.arange(1.0, 13, device=device).reshape(2, 3, 2)
        if function is _nested:
            theirs.requires_grad_()
            ours.requires_grad_()
        expected = function(theirs, torch.tensor(k))
        got = call(ours, webtorch.tensor(k, device=device))
        assert [g.tolist() for g in got] == [e.tolist() for e in expected]
        assert ours.tolist() == theirs.tolist()
        if function is _nested:
            torch.stack([e.square().sum() for e in expected]).sum().backward()
            webtorch.stack([g.square().sum() for g in got]).sum().backward()
            assert ours.grad.tolist() == theirs.grad.tolist()
