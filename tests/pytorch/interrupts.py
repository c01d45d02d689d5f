"""Ctrl-C at random moments of a program on "webgpu": `python -m tests.pytorch.interrupts PRESSES SEED`.

A timer presses it while the program trains, writes in place, copies, reads, and compiles kernels. After each
KeyboardInterrupt every tensor must hold what the program wrote, whole, and the device must compute as before. Prints
how many presses were answered.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)

DEVICE = "webgpu"


class Work:
    """What runs while Ctrl-C is pressed, and what must hold afterwards whenever it was pressed."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.constant = torch.arange(64.0).reshape(8, 8)
        self.kept = self.constant.to(DEVICE)
        self.view = self.kept.t()[1]
        self.counter = torch.zeros(37, device=DEVICE)
        self.counted = 0
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.sizes = itertools.count(3)

    def train(self) -> None:
        """A few steps."""
        for _ in range(5):
            self.optimizer.zero_grad()
            self.model(self.kept).square().mean().backward()
            self.optimizer.step()

    def write(self) -> None:
        """In-place additions; `counted` runs ahead of the tensor by one at most."""
        for _ in range(20):
            self.counted += 1
            self.counter.add_(1)

    def read(self) -> None:
        """Small reads: each waits for the device."""
        for i in range(8):
            assert (self.kept[i] * 2).sum().item() == 2 * self.constant[i].sum().item()

    def copy(self) -> None:
        """Copies in both directions."""
        for _ in range(5):
            assert torch.equal(self.constant.to(DEVICE).cpu(), self.constant)

    def compile(self) -> None:
        """A program of new kernels: the compiler works for some time."""
        n = next(self.sizes)
        x = torch.ones(n, 3, device=DEVICE)
        for _ in range(n % 5 + 1):
            x = (x * 1.5 + n).softmax(0).cumsum(1) / 3
        assert torch.isfinite(x.cpu()).all()

    def once(self) -> None:
        """Any of the above."""
        self.choose.choice(
            (self.train, self.train, self.write, self.read, self.copy, self.compile)
        )()

    def check(self) -> None:
        """Fail unless every tensor is whole and the device computes."""
        assert torch.equal(self.kept.cpu(), self.constant)
        assert torch.equal(self.view.cpu(), self.constant[:, 1])
        seen = self.counter.cpu()
        first = seen[0].item()
        assert (seen == first).all(), seen
        assert first in (self.counted, self.counted - 1), (first, self.counted)
        self.counted = int(first)
        for p in self.model.parameters():
            assert torch.isfinite(p.detach().cpu()).all()
        x = torch.arange(5.0, device=DEVICE)
        assert (x * x + 1).sum().item() == 35


def run(presses: int, seed: int) -> int:
    """Press Ctrl-C that often; return how many KeyboardInterrupts came."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # that of a background job is ignored
    choose = random.Random(seed)
    work = Work(choose)
    work.train()
    work.check()
    # Opening the device took SIGINT over: the timer presses what a user's Ctrl-C reaches.
    press: Any = signal.getsignal(signal.SIGINT)
    assert press is not signal.default_int_handler
    signal.signal(signal.SIGALRM, press)
    caught = 0
    for _ in range(presses):
        # Most presses meet short work, some the compiler.
        seconds = choose.choice((0.002, 0.01, 0.05)) * (0.05 + choose.random())
        caught += interrupted(work.once, seconds)
        work.check()
    losses = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(seed)
        model = nn.Linear(8, 1).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(work.constant.to(device)) - 1).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert abs(losses[1] - losses[0]) <= 1e-3 * abs(losses[0])
    return caught


def interrupted(action: Callable[[], None], seconds: float) -> bool:
    """Repeat an action until the press that comes after `seconds` interrupts it."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for _ in range(10_000):
            action()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


if __name__ == "__main__":
    sys.stdout.write(f"{run(int(sys.argv[1]), int(sys.argv[2]))}\n")
