"""Other threads train, read and write beside one whose steps follow a script."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import webtorch as torch
from tests.patience import PATIENCE
from tests.scripts.following import scripts
from tests.scripts.loops import differ
from webtorch import nn

STEPS = 60
ALONE = 12


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    sys.setswitchinterval(before)


class Training:
    """A model that is trained on numbers of its own generator."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator()
        generator.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.data = torch.randn(80, 4, generator=generator)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.seen: list[Any] = []
        # What begins when the steps of this one follow a script.
        self.beside: threading.Thread | None = None

    def run(self) -> None:
        for i in range(STEPS):
            if i == ALONE and self.beside is not None:
                self.beside.start()
            loss = self.model(self.data[i : i + 4]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if i % 7 == 0:
                self.seen.append(loss.item())
        self.seen += [p.flatten().tolist() for p in self.model.parameters()]


def plain(seed: int) -> list[Any]:
    with scripts(False):
        training = Training(seed)
        training.run()
    return training.seen


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the thread waits for ever"


@pytest.mark.parametrize("again", range(3))
def test_two_threads_train(again: int) -> None:
    expected = plain(1), plain(2)
    with scripts(True) as follower:
        mine, other = Training(1), Training(2)
        thread = mine.beside = threading.Thread(target=other.run)
        mine.run()
        joined(thread)
        assert follower().counts["followed"] > 10
    assert not differ(mine.seen, expected[0], 1e-9)
    assert not differ(other.seen, expected[1], 1e-9)


def as_numpy(model: nn.Module) -> None:
    for p in model.parameters():
        p.detach().numpy().sum()


def gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if (grad := p.grad) is not None:
            grad.tolist()


def computed(model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().item()


def copied(model: nn.Module) -> None:
    copy.deepcopy(model.state_dict())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("read", [as_numpy, gradients, computed, copied])
def test_a_thread_reads_what_another_one_trains(read: Callable[[nn.Module], None]) -> None:
    expected = plain(1)
    failed: list[BaseException] = []
    done = threading.Event()
    with scripts(True):
        training = Training(1)

        def reader() -> None:
            try:
                while not done.is_set():
                    read(training.model)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=reader)
        thread.start()
        try:
            training.run()
        finally:
            done.set()
            joined(thread)
    assert not failed, failed
    assert not differ(training.seen, expected, 1e-9)


def test_scripts_of_a_thread_that_is_over_are_another_ones() -> None:
    with scripts(True) as follower:
        thread = threading.Thread(target=Training(2).run)
        thread.start()
        joined(thread)
        Training(1).run()
        assert follower().thread == threading.get_ident()
        assert follower().counts["followed"] > 10


def test_a_thread_reads_what_is_given_while_a_graph_is_made() -> None:
    # The calls that are made again for a graph see no values.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model(torch.randn(5, 4))
    model.eval()
    weight, x = model[0].weight, torch.randn(5, 4)
    expected = weight.tolist()
    found: list[Any] = []
    done = threading.Event()

    def reader() -> None:
        try:
            while not done.is_set():
                found.append((weight.detach() + 0).tolist() == expected)
        except BaseException as error:
            found.append(error)

    with scripts(True) as follower:
        thread = threading.Thread(target=reader)
        for step in range(60):
            loss = model(x).square().mean()
            loss.item()
            if step == 10:
                thread.start()
            if step % 2:
                assert loss.grad_fn is not None
                loss.backward()
        done.set()
        joined(thread)
        assert follower().counts["left"] > 10
    assert set(found) == {True}


def test_what_another_thread_computes_is_not_laid_at_the_next_calls_door() -> None:
    def run(on: bool) -> list[Any]:
        torch.manual_seed(3)
        x = torch.ones(2, 3)
        p, near, seen = nn.Parameter(x * 0.3), x * 3, []
        optimizer = torch.optim.SGD([p], lr=0.03)
        with scripts(on) as follower:
            for _ in range(8):
                p.detach().flatten().tolist()
                thread = threading.Thread(target=lambda: (near * 2).tolist())
                thread.start()
                thread.join()
                # It waits for nothing, and its numbers are drawn within the run.
                z = torch.nn.functional.dropout(x, 0.4)
                z.mul_(0.5)
                ((p * 2).tanh().square().sum() / 3).backward()
                optimizer.step()
                seen.append(z)
            assert not on or follower().counts["followed"] > 2
        return [z.flatten().tolist() for z in seen]

    assert run(True) == run(False)
