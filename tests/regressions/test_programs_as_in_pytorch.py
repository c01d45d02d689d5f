"""Programs that once gave other results than PyTorch, without a word: each prints the same with both libraries.

A program gets a library under the name `torch` and a device, and returns what Python prints. It runs with webtorch on
both of its devices and with PyTorch on its "webgpu" device; what PyTorch gives on its CPU is expected.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
import webtorch.pytorch
from tests.conftest import need_device

INF, NAN = float("inf"), float("nan")
# Program -> the faces that have it, where not all do.
_FACES: dict[Callable[..., Any], tuple[str, ...]] = {}
_ALL = ("webtorch-cpu", "webtorch-webgpu", "torch-webgpu")
_OURS = _ALL[:2]


def _program(function: Callable[..., Any]) -> Callable[..., Any]:
    _FACES[function] = _ALL
    return function


def _our_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note a program of what PyTorch's own code does on its device."""
    _FACES[function] = _OURS
    return function


def _outcome(function: Callable[[], Any]) -> Any:
    """Return what a call gives, or the built-in type of its error."""
    try:
        return _plain(function())
    except Exception as error:
        return next(t.__name__ for t in type(error).__mro__ if t.__module__ == "builtins")


def _plain(found: Any) -> Any:
    """Return numbers, rounded, for tensors."""
    if isinstance(found, (torch.Tensor, webtorch.Tensor)):
        return str(found.dtype), _plain(found.detach().cpu().tolist())
    if isinstance(found, dict):
        return {key: _plain(x) for key, x in found.items()}
    if isinstance(found, (list, tuple)):
        return [_plain(x) for x in found]
    if isinstance(found, complex):
        return complex(_plain(found.real), _plain(found.imag))
    return round(found, 3) + 0.0 if isinstance(found, float) else found


@_our_program
def comparisons_and_arithmetic_with_arrays(torch: Any, device: str) -> Any:
    x, y = torch.tensor([2.0, 3.0]), np.array([1.0, 3.0])
    z = torch.tensor([2.0, 3.0])
    z += y
    return [
        _outcome(call)
        for call in (
            lambda: x == y, lambda: y == x, lambda: x == np.array(2.0), lambda: y / x, lambda: x / y,
            lambda: x + np.array(2.0), lambda: x < np.array(2.0), lambda: x * np.float64(2.5), lambda: y in x,
            lambda: np.greater(x, 2), lambda: x.eq(y), lambda: z,
        )
    ]  # fmt: skip


@_program
def powers_of_complex_numbers(torch: Any, device: str) -> Any:
    x = torch.tensor([1 + 2j, 3j], device=device)
    return [torch.vander(x), torch.vander(x, 3, True)]


@_program
def gradients_of_distances_where_coordinates_coincide(torch: Any, device: str) -> Any:
    rows = [[0.0, 1.0, -2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 1.0]]
    others = [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 5.0, 1.0]]
    found = []
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF):
        x = torch.tensor(rows, device=device, requires_grad=True)
        y = torch.tensor(others, device=device, requires_grad=True)
        torch.cdist(x, y, p=p).sum().backward()
        found.append([x.grad, y.grad])
        if p != INF:
            x.grad = None
            torch.nn.functional.pdist(x, p).sum().backward()
            found.append(x.grad)
    return found


@_program
def pooling_by_infinite_norms(torch: Any, device: str) -> Any:
    x = torch.tensor([[1.0, -4.0, 2.0, -0.5]], device=device)
    return [torch.nn.functional.lp_pool1d(x, p, 2) for p in (INF, -INF)]


@_program
def renorm_by_norms_that_are_none(torch: Any, device: str) -> Any:
    x = torch.ones(2, 3, device=device)
    return [_outcome(lambda p=p: x.renorm(p, 0, 1.0)) for p in (0, -1.0, 2.0)]


@_program
def functional_call_with_attributes_and_tied_names(torch: Any, device: str) -> Any:
    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.tied = self.layer
            self.plain = torch.ones(2, device=device)
            self.text = "no tensor"

        def forward(self, x: Any) -> Any:
            if hasattr(self, "added"):
                self.plain = self.plain + self.added
            return self.layer(x) + self.tied(x) + self.plain

    model, x = Model().to(device), torch.ones(1, 2, device=device)
    zero = torch.zeros(2, 2, device=device)
    both = {"layer.weight": zero, "layer.bias": zero[0]}

    def call(given: Any, **options: bool) -> Any:
        return _outcome(lambda: torch.func.functional_call(model, given, x, **options))

    written = {**both, "plain": zero[0], "added": zero[0] + 3}
    return [
        call(both),
        call({**both, "plain": zero[0]}),
        call(written),
        written,
        call({**both, "tied.weight": zero + 1}),
        call({**both, "tied.weight": zero}),
        call({"text": zero}),
        call({"": zero}),
        call({"layer.weight": 3}),
        call([both, both]),
        call(both, strict=True),
        call({**both, "plain": zero}, strict=True),
        call({"layer.weight": zero}, strict=True),
        call({**both, "tied.weight": zero, "tied.bias": zero[0]}, tie_weights=False),
        hasattr(model, "added"),
        model.plain,
    ]


@_program
def hooks_run_in_pytorchs_order(torch: Any, device: str) -> Any:
    log: list[Any] = []
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2
    end = y.grad_fn.next_functions[0][0]
    end.register_prehook(lambda g: log.append("before the leaf"))
    end.register_hook(lambda a, b: log.append(("after the leaf", len(a), len(b))))
    x.register_hook(lambda g: log.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
    y.grad_fn.register_prehook(lambda g: log.append("before"))
    y.register_hook(lambda g: log.append("tensor"))
    y.grad_fn.register_hook(lambda a, b: log.append("after"))
    y.retain_grad()
    y.register_hook(lambda g: g * 3)
    y.sum().backward(retain_graph=True)
    log.append(["grad", *_plain(y.grad), *_plain(x.grad)])
    torch.autograd.grad(y.sum(), y, retain_graph=True)
    log.append("of x")
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    return log


@_program
def hooks_that_return_what_does_not_fit(torch: Any, device: str) -> Any:
    def run(where: str, value: Any) -> Any:
        x = torch.ones(2, device=device, requires_grad=True)
        y = x.exp()
        if where == "leaf":
            x.register_hook(lambda g: value)
        elif where == "tensor":
            y.register_hook(lambda g: value)
        elif where == "before":
            y.grad_fn.register_prehook(lambda g: value)
        else:
            y.grad_fn.register_hook(lambda a, b: value)
        y.sum().backward()
        return x.grad

    one = torch.ones(2, device=device)
    values = (1, torch.ones(3, device=device), one.half(), one * 5, (one,), (one, one), (None,), ())
    return [
        _outcome(lambda w=where, v=value: run(w, v))
        for where in ("leaf", "tensor", "before", "after")
        for value in values
    ]


@pytest.mark.parametrize(
    ("program", "face"),
    [pytest.param(p, f, id=f"{p.__name__}-{f}") for p, faces in _FACES.items() for f in faces],
)
def test_a_program_gives_what_it_gives_on_pytorchs_cpu(
    program: Callable[..., Any], face: str
) -> None:
    library, _, device = face.partition("-")
    need_device(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _plain(program(torch, "cpu"))
        found = _plain(program(torch if library == "torch" else webtorch, device))
    assert repr(found) == repr(expected)
