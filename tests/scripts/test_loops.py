"""Random training loops give the same with scripts and without, and what PyTorch gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import webtorch
from tests.patience import PATIENCE
from tests.scripts import tangles
from tests.scripts.following import scripts
from tests.scripts.loops import Loop, check, differ, prepared

SEEDS = range(60)
TANGLES = range(150)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_gives_the_same_numbers(seed: int) -> None:
    found, _ = check(seed)
    assert not found, found


def _loop(kind: str, optimizer: str, micro: int, events: list[tuple[str, int, int]]) -> Loop:
    """Return a loop in float64 without more than this, in which all is read."""
    loop = Loop(0)
    loop.width, loop.batches, loop.kind, loop.optimizer, loop.micro = 4, [5], kind, optimizer, micro
    loop.zero, loop.loss, loop.reads, loop.events = "between", "mse", "both", events
    loop.autocast, loop.scaled, loop.dropout = "", False, 0.0
    return loop


def test_a_loss_of_the_step_before_raises_where_parameters_were_written_since() -> None:
    loop = _loop("attention", "none", 2, [("keep-loss", 10, 1)])
    with prepared(loop, webtorch):
        with scripts(False):
            plain = loop.run(webtorch)
        with scripts(True) as follower:
            followed = loop.run(webtorch)
            assert follower().counts["followed"]
    assert plain.count("inplace") == 3
    assert differ(followed, plain, 1e-12) == ""


def test_a_run_does_not_come_back_where_what_it_was_given_is_gone() -> None:
    # The next tensor that is made may have the number of one that is gone.
    loop = _loop("deep", "AdamW", 3, [("evaluate", 1, 1)])
    loop.batches = [4, 2]
    with prepared(loop, webtorch):
        with scripts(False):
            plain = loop.run(webtorch)
        with scripts(True) as follower:
            followed = loop.run(webtorch)
            assert follower().counts["followed"]
    assert differ(followed, plain, 1e-12) == ""


def test_calls_that_are_made_again_for_their_graph_leave_nothing_pending() -> None:
    # Views of what is made again: nobody has their base, and an optimizer's step computes all that is pending.
    always, tangle = (0, 1), tangles.Tangle(7090383)
    tangle.optimizer, tangle.last = "SGD", ""
    tangle.statements = [
        ("update", list("pzv"), 2, always), ("autograd", list("uyp"), 5, always), ("update", list("upu"), 1, always),
        ("read", list("qxu"), 1, (4, 1)), ("autograd", list("yqu"), 2, always), ("autograd", list("xvv"), 4, always),
        ("combine", list("qxy"), 0, always), ("read", list("yyx"), 5, (1, 2)), ("combine", list("xvu"), 4, (7, 3)),
    ]  # fmt: skip
    with scripts(False):
        plain = tangle.run(webtorch)
    with scripts(True) as follower:
        assert tangles.differ(tangle.run(webtorch), plain, 1e-9) == ""
        assert follower().counts["followed"]


def test_a_graph_that_is_made_late_takes_its_turn() -> None:
    # In the backward pass of the first sum of both `hidden` and `other`: `other` was computed later.
    def run(torch: ModuleType) -> list[str]:
        seen: list[str] = []
        p, q = (torch.tensor([[0.5, 1.0], [2.0, -1.0]], requires_grad=True) for _ in range(2))
        for n in range(12):
            hidden = (q @ q).tanh()
            hidden.sum().item()
            other = (p * 2).sin()
            if n == 11:
                p.register_post_accumulate_grad_hook(lambda _: seen.append("p"))
                q.register_post_accumulate_grad_hook(lambda _: seen.append("q"))
                (hidden * other).sum().backward()
            with torch.no_grad():
                p.sub_(0.01)
                q.sub_(0.01)
            del hidden, other
        return seen

    with scripts(True) as follower:
        followed = run(webtorch)
        assert follower().counts["followed"]
    assert followed == run(torch) == ["p", "q"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", TANGLES)
def test_tangled_tensors_give_the_same_numbers(seed: int) -> None:
    found, _ = tangles.check(seed)
    assert not found, found


def test_loops_follow_scripts() -> None:
    # In a process of its own: what other tests left on, such as a mode, would be looked at.
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.loops", "--count", "12", "--seed", "200"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={**os.environ, "WEBTORCH_DEVICE": "cpu"},
    )
    followed = re.search(r"12 programs, 0 differ; .*'followed': (\d+)", done.stdout)
    # Those that compute nothing before their end have none.
    assert followed, done.stdout
    assert int(followed[1]) >= 60
