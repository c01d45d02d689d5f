"""Loops that never read: what is pending is bounded, and the programs of a loop come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.runtime import ahead, realize


def _simulates(t: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        for _ in range(15):
            x = x + 0.01 * (1 - x * x).sin()
        return x

    return step


def _layers(t: Any) -> Callable[[Any], Any]:
    """The same calls on other weights, 52 in all, of which the bounds are no multiples."""
    weights = [t.full((3,), 1 + 0.01 * i) for i in range(13)]

    def step(x: Any) -> Any:
        for _ in range(2):
            for w in weights:
                x = (x * w + 1).tanh() - 0.5
        return x

    return step


@pytest.mark.parametrize("kind", [_simulates, _layers], ids=lambda k: str(k.__name__))
@pytest.mark.parametrize("scripts", [True, False])
def test_a_loop_that_never_reads_compiles_nothing_more(
    kind: Callable[[Any], Callable[[Any], Any]], scripts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not scripts:
        monkeypatch.setattr(realize, "listener", None)
    webtorch.zeros(1).tolist()
    monkeypatch.setattr(ahead, "MAX_PENDING", 1024)
    monkeypatch.setattr(ahead, "_SOME", 128)
    for runtime in realize.open_runtimes():
        monkeypatch.setattr(runtime, "ahead", ahead.Ahead(runtime.backend, runtime.counters))

    def run(t: Any) -> tuple[list[float], list[int]]:
        step, x, missed = kind(t), t.tensor([0.1, 0.2, 0.3]), []
        for _ in range(6):
            for _ in range(30):
                x = step(x)
            missed.append(sum(r.counters.misses for r in realize.open_runtimes()))
        return x.tolist(), missed

    found, missed = run(webtorch)
    assert found == pytest.approx(run(torch)[0], rel=1e-5)
    assert missed[-1] == missed[-2], missed
