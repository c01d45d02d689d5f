"""Calls of compiled graphs: what they remember of their inputs is never stale, and holds no memory that is freed."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from webtorch.pytorch.programs import Programs


def _model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def _assign(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = torch.full_like(p, 0.25)


def _through_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.mul_(0.5)


def _in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.125)


def _through_a_view(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p[0] = 0.5


def _load(model: nn.Module) -> None:
    state = {k: v.cpu() * 0.75 for k, v in model.state_dict().items()}
    model.load_state_dict(state)


def _load_assigned(model: nn.Module) -> None:
    model.load_state_dict({k: v * 0.75 for k, v in model.state_dict().items()}, assign=True)


def _step(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(model.parameters(), lr=0.125).step()
    model.zero_grad()


def _set(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.set_(torch.full_like(p, 0.375))


def _convert(model: nn.Module) -> None:
    _in_place(model)
    model.half().float()


def _replace(model: nn.Module) -> None:
    held = [p.detach() for p in model.parameters()]
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            del layer.weight
            layer.weight = nn.Parameter(torch.full((4, 4), 0.5, device=layer.bias.device))
    assert held


def _in_a_program(model: nn.Module) -> None:
    def write() -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)

    device = next(model.parameters()).device.type
    torch.compile(write, backend="webgpu" if device == "webgpu" else "eager")()


_WRITES = [
    _assign,
    _through_data,
    _in_place,
    _through_a_view,
    _load,
    _load_assigned,
    _step,
    _set,
    _convert,
    _replace,
    _in_a_program,
]


@pytest.mark.parametrize("write", _WRITES, ids=lambda w: w.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_parameters_are_read_as_they_are_now(
    webgpu: str, write: Callable[[nn.Module], None], grad: bool
) -> None:
    torch._dynamo.reset()
    expected, model = _model(), _model().to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(2, 4)
    y = x.to(webgpu)
    with torch.set_grad_enabled(grad):
        # What stays is held from the third call on.
        for n in range(4):
            torch.testing.assert_close(compiled(y).cpu(), expected(x), rtol=1e-4, atol=1e-5)
            if n == 2:
                before = expected(x).detach()
                write(expected)
                write(model)
                assert not torch.equal(expected(x), before)
        # And a write after a write.
        write(expected)
        write(model)
        torch.testing.assert_close(compiled(y).cpu(), expected(x), rtol=1e-4, atol=1e-5)


def test_tied_and_aliasing_parameters_are_read_as_they_are_now(webgpu: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.register_buffer("part", self.first.bias.data[:2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + self.part.sum()

    torch._dynamo.reset()
    model = Tied()
    on_device = copy.deepcopy(model).to(webgpu)
    on_device.part = on_device.first.bias.data[:2]
    compiled = torch.compile(on_device, backend="webgpu")
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(3):
                torch.testing.assert_close(compiled(x.to(webgpu)).cpu(), model(x))
            for m in (model, on_device):
                m.first.weight.mul_(0.5)
                m.first.bias.add_(1)


def test_a_model_on_the_cpu_is_read_as_it_is_now(webgpu: str) -> None:
    torch._dynamo.reset()
    model = _model()
    compiled = torch.compile(model, backend="webgpu")
    x = torch.randn(2, 4)
    with torch.no_grad():
        for write in (_assign, _in_place, _load, _step):
            for _ in range(3):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            write(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_inputs_may_be_new_the_same_or_share_memory(webgpu: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * 2 + y @ w

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="webgpu")
    w = torch.randn(3, 3)
    on_device = w.to(webgpu)
    whole = torch.randn(4, 3)
    both = whole.to(webgpu)
    with torch.no_grad():
        for n in range(12):
            x, y = torch.randn(2, 3), torch.randn(2, 3)
            a, b = x.to(webgpu), y.to(webgpu)
            if n % 4 == 1:
                a, x = b, y
            elif n % 4 == 2:
                a, b, x, y = both[:2], both[2:], whole[:2], whole[2:]
            elif n % 4 == 3:
                # Pending, and in another order.
                a, x = (a + 1).t().contiguous().t(), x + 1
            for _ in range(2):
                torch.testing.assert_close(compiled(a, b, on_device).cpu(), f(x, y, w))
                a.mul_(2), x.mul_(2)


def test_results_of_calls_are_their_own(webgpu: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x + 1, x * 2), backend="webgpu")
    x = torch.ones(3, device=webgpu)
    found = [compiled(x) for _ in range(4)]
    found[0][0].zero_()
    assert [a.tolist()[0] for a, _ in found] == [0, 2, 2, 2]
    assert len({t.data_ptr() for pair in found for t in pair}) == 8
    assert [b.tolist() for _, b in found] == [[2.0] * 3] * 4


def _allocated() -> int:
    gc.collect()
    torch.webgpu.synchronize()
    return int(torch.webgpu.memory_allocated())


def test_memory_is_freed_with_the_model(webgpu: str) -> None:
    torch._dynamo.reset()
    start = _allocated()
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)).to(webgpu)
    x = torch.ones(2, 128, device=webgpu)
    # What a program computes on the way is small.
    most = _allocated() - start + 8192
    compiled = torch.compile(model, backend="webgpu")

    def call(compiled: Callable[[torch.Tensor], torch.Tensor]) -> int:
        with torch.no_grad():
            for _ in range(4):
                compiled(x)
        return _allocated() - start

    assert call(compiled) < most
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert _allocated() - start < most
    assert call(compiled) < most
    for p in model.parameters():
        p.data = torch.zeros_like(p)
    assert _allocated() - start < most
    assert call(compiled) < most
    del p, model, compiled
    assert _allocated() - start < 8192


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


def _compiled_graphs() -> int:
    gc.collect()
    return sum(type(o) is Programs for o in gc.get_objects())


def test_graphs_go_with_what_was_compiled(webgpu: str) -> None:
    torch._dynamo.reset()
    start = _compiled_graphs()

    def train() -> None:
        compiled = torch.compile(_Block().to(webgpu), backend="webgpu")
        compiled(torch.ones(2, 64, device=webgpu)).sum().backward()

    train()
    assert _compiled_graphs() > start
    torch._dynamo.reset()
    assert _compiled_graphs() == start


def test_a_compiled_step_goes_with_its_optimizer(webgpu: str) -> None:
    torch._dynamo.reset()
    start = _compiled_graphs()

    def train() -> None:
        model = _Block().to(webgpu)
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch.compile(optimizer.step, backend="webgpu")
        for _ in range(2):
            model(torch.ones(2, 64, device=webgpu)).sum().backward()
            step()

    train()
    used = _allocated()
    train()
    # The parameters of one take 16 KiB, the state twice that.
    assert _allocated() - used < 8192
    assert _compiled_graphs() == start


def test_memory_is_freed_with_the_input(webgpu: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x[0] * 2, backend="webgpu")
    # Compiling drops what other tests' functions had.
    compiled(torch.ones(64, 512, device=webgpu))
    for _ in range(3):
        start = _allocated()
        x = torch.ones(64, 512, device=webgpu)
        for _ in range(4):
            compiled(x)
        assert _allocated() - start >= 64 * 512 * 4
        # A compiled function outlives what it was called with.
        del x
        assert _allocated() - start < 8192


def test_threads_call_one_compiled_model(webgpu: str) -> None:
    torch._dynamo.reset()
    expected, model = _model(), _model().to(webgpu)
    compiled = torch.compile(model, backend="webgpu")
    with torch.no_grad():
        compiled(torch.ones(2, 4, device=webgpu))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with torch.no_grad():
                for n in range(20):
                    x = torch.full((2, 4), 0.1 * number + 0.01 * n)
                    y = compiled(x.to(webgpu))
                    torch.testing.assert_close(y.cpu(), expected(x), rtol=1e-4, atol=1e-5)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
