"""Writing a window of a tensor touches that window only: no copy of the rest, no new program for a new offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.ir.program import Copy

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


class Watch:
    """What one device's programs do to a buffer."""

    def __init__(self, device: str) -> None:
        self.runtime = webtorch.zeros(1, device=device)._storage.runtime
        webtorch.synchronize()
        self.seen = set(self.runtime.programs)

    def copies(self) -> int:
        """Whole-buffer copies in the programs that were compiled since."""
        webtorch.synchronize()
        return sum(
            isinstance(step, Copy)
            for key, executable in self.runtime.programs.items()
            if key not in self.seen
            for step in executable.program.steps
        )


def _times(x: Any, lib: Any) -> None:
    x[:, 5] *= 2


def _both(x: Any, lib: Any) -> None:
    x[3] = x[3].exp() * x[3]


def _from_other_row(x: Any, lib: Any) -> None:
    x[4] = x[3] * 2


def _chain(x: Any, lib: Any) -> None:
    for i in range(5):
        x[i].add_(i)


def _rows_by_index(x: Any, lib: Any) -> None:
    x[lib.tensor([1, 5, 2])] += 1


def _inner_by_index(x: Any, lib: Any) -> None:
    x[:, lib.tensor([1, 5, 2])] = 7


def _shifted(x: Any, lib: Any) -> None:
    x[1:9] = x[0:8].clone()


def _whole_is_its_transpose(x: Any, lib: Any) -> None:
    x[:12].copy_(x[:12].t().clone())


WRITES: list[Callable[[Any, Any], Any]] = [
    lambda x, lib: x[3:9].add_(1),
    lambda x, lib: x[0:2].add_(1),
    lambda x, lib: x[:, 5].mul_(2),
    lambda x, lib: x[::2, 3:7].add_(x[::2, 3:7].sum()),
    lambda x, lib: x[3:9].copy_(lib.softmax(x[3:9], -1)),
    lambda x, lib: x.t()[2:5].sigmoid_(),
    lambda x, lib: x.view(-1)[1:180:4].neg_(),
    lambda x, lib: x.view(-1)[7:40].mul_(3),
    lambda x, lib: x[2:4].clamp_(0, 1).add_(1),
    _times,
    _both,
    _from_other_row,
    _chain,
    _rows_by_index,
    _inner_by_index,
    _shifted,
    _whole_is_its_transpose,
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_a_write_to_a_window_copies_nothing(number: int, device: str) -> None:
    start = torch.linspace(-2, 2, 16 * 12).reshape(16, 12)
    expected = start.clone()
    WRITES[number](expected, torch)
    with webtorch.device(device):
        x = webtorch.tensor(start.tolist())
        watch = Watch(device)
        buffer, allocated = x._storage.node.buffer, watch.runtime.backend.memory_allocated()
        WRITES[number](x, webtorch)
        assert watch.copies() == 0
    assert x._storage.node.buffer is buffer
    # A program may keep room for the new values of the window, not for more.
    assert watch.runtime.backend.memory_allocated() - allocated < x.nbytes
    torch.testing.assert_close(torch.tensor(x.tolist()), expected)


def test_a_window_written_at_a_moving_offset_is_one_program(device: str) -> None:
    x = webtorch.zeros(40, 6, device=device)
    expected = torch.zeros(40, 6)
    runtime = x._storage.runtime

    def write(t: Any, i: int) -> None:
        t[i : i + 2].add_(i)
        t[:, i % 6] *= 2
        t[i + 1] = t[i] + 1

    for i in (1, 2, 3):
        write(x, i)
        write(expected, i)
        webtorch.synchronize()
    before = runtime.counters.misses
    buffer = x._storage.node.buffer
    for i in range(4, 38):
        if i % 6:
            write(x, i)
            write(expected, i)
            webtorch.synchronize()
    assert runtime.counters.misses == before
    assert x._storage.node.buffer is buffer
    assert x.tolist() == expected.tolist()


def _old_value_is_read(x: Any) -> list[Any]:
    old = x[2:6] * 1
    everything = x.sum()
    x[2:6].add_(1)
    return [old, everything, x]


def _clone_shares(x: Any) -> list[Any]:
    y = x.clone()
    x[1:3].mul_(2)
    return [y, x, y + x]


def _reads_overlap(x: Any) -> list[Any]:
    shifted = x[1:5] * x[2:6]
    x[2:6] = shifted
    x[0:4] = x[0:4] + x[2:6]
    return [shifted, x]


def _aliases(x: Any) -> list[Any]:
    a, b = x[2:6], x.view(-1)[8:24]
    a.add_(1)
    b.mul_(2)
    a.sub_(b.view(4, 4))
    return [a, b, x]


def _read_of_the_old_value_written_later(x: Any) -> list[Any]:
    before = x.clone()
    x[1].add_(1)
    x[1] = before[1] * x[1] + before[2]
    return [before, x]


def _backward(x: Any) -> list[Any]:
    w = (x * 0 + 2).requires_grad_()
    y = w * 3
    y[1:3].mul_(x[1:3])
    y[2:4] = y[2:4] + y[1:3]
    y[:, 1] *= 2
    y[5] = y[4] - y[5]
    (y * y).sum().backward()
    return [y.detach(), w.grad]


@pytest.mark.parametrize(
    "run",
    [
        _old_value_is_read,
        _clone_shares,
        _reads_overlap,
        _aliases,
        _read_of_the_old_value_written_later,
        _backward,
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_windows_are_right_where_the_old_value_is_needed(
    run: Callable[[Any], list[Any]], eager: bool, device: str
) -> None:
    start = torch.linspace(-1, 1, 32).reshape(8, 4)
    expected = run(start.clone())
    x = webtorch.tensor(start.tolist(), device=device)
    if eager:
        webtorch.synchronize()
    for mine, theirs in zip(run(x), expected, strict=True):
        torch.testing.assert_close(torch.tensor(mine.tolist()), theirs, rtol=1e-5, atol=1e-6)


def test_elements_beyond_what_an_int32_counts():
    x = webtorch.empty(2**31 + 10, dtype=webtorch.int8)
    x[-1] = 5
    x[-3:-1] = webtorch.tensor([7, 8], dtype=webtorch.int8)
    assert x[-3:].tolist() == [7, 8, 5]
    assert x[2**31 + 8].item() == 8
    x[-2:].mul_(2)
    twice = webtorch.tensor([-2, -2])
    x.index_put_((twice,), webtorch.tensor([3, 4], dtype=webtorch.int8), accumulate=True)
    assert x.view(2, -1)[1, -3:].tolist() == [7, 23, 10]
