"""Functions that read values of what they compute do compiled what they do uncompiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import webtorch
from webtorch.errors import CaptureError

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def waved(module: Any, t: Any) -> Any:
    """Return a module whose parameters are the same in both packages."""
    with t.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(t.sin(t.arange(p.numel()) * 0.7 + i).reshape(p.shape) * 0.5)
    return module


def packed_sequences(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """Lengths are read on the CPU, whatever the device."""

    class Model(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = t.nn.Embedding(11, 4)
            self.rnn = t.nn.GRU(4, 5, batch_first=True, bidirectional=True)
            self.head = t.nn.Linear(10, 3)

        def forward(self, x: Any, lengths: Any) -> Any:
            rnn = t.nn.utils.rnn
            packed = rnn.pack_padded_sequence(
                self.embed(x), lengths, batch_first=True, enforce_sorted=False
            )
            out, counts = rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.head(out.sum(1) / counts[:, None].to(out.device))

    model = waved(Model(), t).to(device)
    step = compiled(model)
    optimizer = t.optim.Adam(model.parameters(), 1e-2)
    for i in range(5):
        x = (t.arange(12).reshape(3, 4) * (i + 3)) % 11
        out = step(x.to(device), t.tensor([2 + i % 3, 4, 1]))
        loss = t.nn.functional.cross_entropy(out, t.tensor([0, 1, 2], device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def a_list_that_is_given(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """It grows by what was read, once for each call."""

    def step(x: Any, log: list[float], state: dict[str, Any]) -> Any:
        total = (x * 2).sum()
        log.append(total.item())
        state["last"] = x
        return x * total.item() if total > 0 else x - 1

    step, log, state = compiled(step), [], {}
    for i in range(-2, 4):
        x = t.tensor([1.0, i], device=device)
        yield step(x, log, state).tolist()
        yield list(log)
        yield state["last"] is x


def gradients_of_what_is_given(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """They go on through computed arguments, and parts of tensors are written."""
    net = waved(t.nn.Linear(2, 2), t).to(device)
    buffer = t.zeros(3, 2, device=device)

    def loss_of(h: Any, row: Any) -> Any:
        row.add_(1)
        if h.sum().item() > 1:
            h = h * 2
        return (h * h).sum()

    loss_of = compiled(loss_of)
    for i in range(5):
        net.zero_grad()
        h = net(t.ones(1, 2, device=device) * i)
        loss = loss_of(h, buffer[1]) + h.sum()
        loss.backward()
        yield loss.item()
        yield net.weight.grad.tolist()
        yield buffer.tolist()


def backward_inside(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """A call that no program repeats differentiates what its argument was computed from."""
    net = waved(t.nn.Linear(2, 2), t).to(device)
    kept: list[Any] = []

    def step(h: Any) -> None:
        out = h * 2
        out.sum().backward()
        kept.append(out.detach())

    step = compiled(step)
    for _ in range(5):
        net.zero_grad()
        step(net(t.ones(1, 2, device=device)))
        yield net.weight.grad.tolist()
        yield len(kept)


def an_optimizer_that_reads(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """A user's step reads norms; a schedule follows it."""

    class Clipped(t.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @t.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"] / (1 + p.grad.norm().item()))

    net = waved(t.nn.Linear(2, 2), t).to(device)
    optimizer = Clipped(net.parameters(), 0.1)
    schedule = t.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    step = compiled(step)
    for _ in range(5):
        yield step(t.ones(2, 2, device=device)).item()
        yield net.weight.tolist()
        yield optimizer.param_groups[0]["lr"]


def a_fault_after_reading(t: Any, device: str, compiled: Callable[..., Any]) -> Iterator[Any]:
    """What was done before the fault stands."""
    x = t.zeros(2, device=device)

    def step(limit: int) -> None:
        x.add_(1)
        if x.sum().item() > limit:
            raise StopIteration("enough")
        x.mul_(2)

    step = compiled(step)
    for limit in (9, 9, 3, 99):
        try:
            step(limit)
        except (StopIteration, RuntimeError) as error:
            yield str(error)
        yield x.tolist()


PROGRAMS = [
    a_list_that_is_given, gradients_of_what_is_given, backward_inside,
    an_optimizer_that_reads, a_fault_after_reading,
]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.__name__))
def test_a_function_that_reads_runs_as_usual(
    program: Callable[[Any, str, Callable[..., Any]], Iterator[Any]], device: str
) -> None:
    _agrees(program, device)


@pytest.mark.one_in(2)
def test_packed_sequences_run_as_usual(device: str) -> None:
    _agrees(packed_sequences, device)
    # As many steps and elements, of other lengths.
    packed = [
        webtorch.nn.utils.rnn.pack_sequence(
            [webtorch.ones(n, 2) * i for i, n in enumerate(lengths)]
        )
        for lengths in ((4, 3, 1, 1), (4, 2, 2, 1)) * 3
    ]
    rnn = webtorch.nn.LSTM(2, 3)
    compiled = webtorch.compile(rnn)
    with pytest.warns(UserWarning, match="runs as usual: it reads a value"):
        results = [compiled(p)[0].data for p in packed]
    for got, p in zip(results, packed, strict=True):
        webtorch.testing.assert_close(got, rnn(p)[0].data)


def test_a_full_graph_refuses_to_read(device: str) -> None:
    x = webtorch.ones(2, device=device)
    with pytest.raises(CaptureError, match=r"x\.sum"):
        webtorch.compile(lambda x: x * x.sum().item(), fullgraph=True)(x)


def _agrees(program: Callable[[Any, str, Callable[..., Any]], Iterator[Any]], device: str) -> None:
    expected = list(program(torch, "cpu", lambda f: f))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="compile: ")
        found = list(program(webtorch, device, webtorch.compile))
    assert len(found) == len(expected)
    for i, (got, want) in enumerate(zip(found, expected, strict=True)):
        if isinstance(want, (str, bool)):
            assert got == want, i
        else:
            torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-5)


def test_the_warning_names_the_line_that_reads(device: str) -> None:
    step = webtorch.compile(lambda x: x * x.sum().item())  # the line
    x = webtorch.ones(2, device=device)
    with pytest.warns(UserWarning, match=r"(?s)runs as usual: it reads a value.*# the line"):
        results = [step(x).tolist() for _ in range(4)]
    assert results == [[2, 2]] * 4


def test_sizes_that_vary_are_given_up_by_a_function_that_reads(device: str) -> None:
    step = webtorch.compile(lambda x: x * x.sum().item())
    given = [webtorch.ones(n, device=device) for n in (2, 3, 5)]
    for x in given:
        webtorch.mark_dynamic(x, 0)
    with pytest.warns(UserWarning, match="its marked dimensions"):
        results = [step(x).tolist() for x in given]
    assert results == [[2.0] * 2, [3.0] * 3, [5.0] * 5]


def test_results_that_share_and_contain_themselves(device: str) -> None:
    def function(x: Any) -> Any:
        shared = [x]
        around: list[Any] = [float(x.sum())]
        around.append(around)
        return shared, {"again": shared}, around

    base = webtorch.ones(5, device=device)
    one, two, around = webtorch.compile(function)(base[1:3])
    assert one[0]._base is base and two["again"] is one
    assert around[0] == 2 and around[1] is around
