"""Anomaly detection: which function gave NaN, and where it was called forward."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import webtorch


def _nan_of_sqrt(lib: Any) -> None:
    x = lib.tensor([0.0, 1.0], requires_grad=True)
    ((x * 0).sqrt() * x).sum().backward()  # the forward call


def _report(lib: Any, program: Any) -> tuple[str, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError) as error, lib.autograd.detect_anomaly():
            program(lib)
    return str(error.value), "\n".join(str(w.message) for w in caught)


@pytest.mark.covers("P9")
def test_the_message_and_the_lines_are_those_of_pytorch() -> None:
    theirs, their_warnings = _report(torch, _nan_of_sqrt)
    ours, warned = _report(webtorch, _nan_of_sqrt)
    assert ours.startswith(theirs)
    assert theirs == "Function 'SqrtBackward0' returned nan values in its 0th output."
    for text in (warned, their_warnings):
        assert "Anomaly Detection has been enabled" in text
        assert "Error detected in SqrtBackward0. Traceback of forward call that caused" in text
        assert "# the forward call" in text
    assert "# the forward call" in ours
    # The package's own frames are not shown.
    assert "webtorch/tensors" not in warned


@pytest.mark.covers("P9")
def test_on_each_device(device: str) -> None:
    x = webtorch.tensor([-1.0, 4.0], device=device, requires_grad=True)
    with (
        pytest.warns(UserWarning, match=r"Error detected|Anomaly Detection has"),
        pytest.raises(RuntimeError, match=r"'SqrtBackward0' returned nan values in its 0th"),
        webtorch.autograd.detect_anomaly(),
    ):
        x.sqrt().sum().backward()


def test_an_error_of_a_rule_shows_the_forward_call() -> None:
    class Broken(webtorch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise KeyError("no such thing")

    x = webtorch.ones(2, requires_grad=True)
    with webtorch.autograd.set_detect_anomaly(True):
        out = Broken.apply(x)  # where it went wrong
        with (
            pytest.warns(UserWarning, match=r"(?s)Error detected in BrokenBackward.*where it went"),
            pytest.raises(KeyError),
        ):
            out.sum().backward()


def test_a_second_derivative_names_the_first_call() -> None:
    x = webtorch.tensor([0.0], requires_grad=True)
    with webtorch.autograd.set_detect_anomaly(True):
        y = x**1.5  # the cause
        (g,) = webtorch.autograd.grad(y.sum(), x, create_graph=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError, match="returned nan"):
                (g * webtorch.tensor(0.0)).sum().backward()
    text = str(caught[-1].message)
    assert re.search(r"(?s)Previous calculation was induced by Pow.*# the cause", text), text


def test_it_is_off_again_and_can_leave_nan_alone() -> None:
    with webtorch.autograd.set_detect_anomaly(True, check_nan=False):
        assert webtorch.is_anomaly_enabled() and not webtorch.is_anomaly_check_nan_enabled()
        _nan_of_sqrt(webtorch)
    assert not webtorch.is_anomaly_enabled()
    webtorch.autograd.set_detect_anomaly(True)
    assert webtorch.is_anomaly_enabled()
    webtorch.autograd.set_detect_anomaly(False)
    _nan_of_sqrt(webtorch)


def test_a_graph_from_before_has_no_lines() -> None:
    x = webtorch.tensor([-1.0], requires_grad=True)
    out = x.sqrt().sum()
    with (
        webtorch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="No forward pass information available"),
        pytest.raises(RuntimeError, match="SqrtBackward0"),
    ):
        out.backward()


def test_a_compiled_function_runs_as_usual() -> None:
    x = webtorch.tensor([0.0], requires_grad=True)

    @webtorch.compile
    def step(zero: Any) -> None:
        x.grad = None
        (x * zero / zero).sum().backward()

    one, zero = webtorch.ones(1), webtorch.zeros(1)
    step(one)
    with webtorch.autograd.set_detect_anomaly(True):
        step(one)
        assert x.grad.tolist() == [1.0]
        with (
            pytest.warns(UserWarning, match="Error detected in"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            step(zero)
    step(one)
    assert x.grad.tolist() == [1.0]
