"""Out of memory, a lost device, a forked process, hooks that raise: errors that say what happened.

The first ones in processes of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import torch

from tests.pytorch.processes import forked

_TRIES = """
import copy, io, os, sys, torch
from torch import nn
x = torch.ones(4, 4, device="webgpu", requires_grad=True)
model = nn.Linear(4, 1).to("webgpu")
optimizer = torch.optim.Adam(model.parameters())
model(x).sum().backward()
optimizer.step()
loss = model(x).sum()
pending, other = x * 2, torch.ones(3, device="webgpu")
def attempt(error, words):
    bad = []
    for name, run in {
        "add": lambda: (x + 1).sum().item(),
        "read what was pending": lambda: pending.cpu(),
        "create": lambda: torch.zeros(3, device="webgpu").tolist(),
        "upload": lambda: torch.zeros(3).to("webgpu").tolist(),
        "write": lambda: other.mul_(2).cpu(),
        "print": lambda: repr(x),
        "backward": lambda: (loss.backward(), x.grad.cpu()),
        "step": lambda: (optimizer.step(), torch.webgpu.synchronize()),
        "copy": lambda: copy.deepcopy(model).weight.cpu(),
        "save": lambda: torch.save(model.state_dict(), io.BytesIO()),
        "move": lambda: model.to("cpu"),
        "again": lambda: (x + 1).sum().item(),
    }.items():
        try:
            run()
        except error as caught:
            if words not in str(caught):
                bad.append(f"{name}: {caught}")
        except BaseException as caught:
            bad.append(f"{name}: {type(caught).__name__} {caught}")
        else:
            bad.append(f"{name}: nothing")
    assert torch.ones(3).sum().item() == 3
    return bad
"""


def test_a_lost_device_says_so_at_every_use(webgpu: str) -> None:
    if os.environ.get("WEBTORCH_PYTORCH_ENGINE"):
        pytest.skip("the CPU engine cannot be lost")
    out = forked(
        _TRIES
        + """
from webtorch.pytorch import device
device.runtime().backend.native.wrapper.destroy()
print(attempt(torch.AcceleratorError, "was lost"))
"""
    )
    assert out == "[]"


def test_a_forked_child_is_refused_and_its_parent_goes_on(webgpu: str) -> None:
    out = forked(
        _TRIES
        + """
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, str(attempt(RuntimeError, "forked")).encode())
    os._exit(0)
os.close(write)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.read(read, 9999).decode())
print(pending.sum().item(), model(x).shape)
"""
    )
    assert out.splitlines() == ["0 []", "32.0 torch.Size([4, 1])"]


def test_data_loader_workers_that_fork_after_the_first_tensor(webgpu: str) -> None:
    out = forked(
        """
        import torch
        data = torch.arange(8.0)
        there = data.to("webgpu")
        class Rows(torch.utils.data.Dataset):
            def __init__(self, rows): self.rows = rows
            def __len__(self): return len(self.rows)
            def __getitem__(self, i): return self.rows[i]
        def total(rows):
            loader = torch.utils.data.DataLoader(Rows(rows), 4, num_workers=2, pin_memory=True)
            return sum(b.to("webgpu").sum().item() for b in loader)
        print(total(data))
        try:
            total(there)
        except RuntimeError as error:
            print("forked" in str(error), "spawn" in str(error))
        print(there.sum().item())
        """
    )
    assert out.splitlines() == ["28.0", "True True", "28.0"]


def test_out_of_memory_is_pytorchs_error_and_training_goes_on(webgpu: str) -> None:
    out = forked(
        """
        import copy, os, torch
        from torch import nn
        if os.environ.get("WEBTORCH_PYTORCH_ENGINE") == "cpu":
            # The limit is one of WebGPU's buffers: here the system has no more to give.
            from webtorch.runtime.backends.cpu import memory
            make = memory.Block
            def block(size):
                if size > 6e6:
                    raise MemoryError
                return make(size)
            memory.Block = block
        torch.manual_seed(0)
        start = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        def train(device, batches):
            model = copy.deepcopy(start).to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            losses = []
            for rows in batches:
                try:
                    optimizer.zero_grad()
                    loss = model(torch.ones(rows, 64, device=device)).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                except torch.OutOfMemoryError:
                    print("no memory")
                    del loss
                    torch.webgpu.empty_cache()
            return torch.tensor(losses)
        large = 1 << 16
        small = train("cpu", [8] * 4)
        torch.testing.assert_close(train("webgpu", [large, 8, 8, large, 2 * large, 8, 8]), small)
        """,
        WEBTORCH_MEMORY_LIMIT="6e6",
    )
    assert out.splitlines() == ["no memory"] * 3


def _raise(*args: object) -> None:
    raise ValueError("mine")


def _on_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(_raise)
    return y


def _on_leaf(x: torch.Tensor) -> torch.Tensor:
    x.register_post_accumulate_grad_hook(_raise)
    return x * 2


def _on_node(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(_raise)
    return y


def _on_module(x: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(3, 3, device="webgpu")
    layer.register_full_backward_hook(_raise)
    return layer(x)


def _on_saved(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, _raise):
        return x.exp()


def _compiled(x: torch.Tensor) -> torch.Tensor:
    y = torch.compile(lambda t: t.exp().sin(), backend="webgpu")(x)
    y.register_hook(_raise)
    return y


@pytest.mark.parametrize("make", [_on_tensor, _on_leaf, _on_node, _on_module, _on_saved, _compiled])
def test_what_hooks_raise_in_a_backward_pass_is_raised_by_it(
    webgpu: str, make: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """PyTorch's guard of a Python device would end the process."""
    x = torch.ones(3, device=webgpu, requires_grad=True)
    loss = make(x).sum()
    with pytest.raises(ValueError, match="mine") as caught:
        loss.backward()
    assert caught.traceback[-1].name == "_raise"
    # The next one is as any other.
    y = torch.ones(3, device=webgpu, requires_grad=True)
    (y * 2).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [2.0, 2.0, 2.0]


_HOOKS = """
import threading
import torch
from webtorch_autoload.device import state
def fail(grad):
    raise ValueError("mine")
def run(result):
    x = torch.ones(3, device="webgpu", requires_grad=True)
    y = x * 2
    y.register_hook(fail)
    try:
        y.sum().backward()
    except ValueError as error:
        result.append(str(error))
    (x * 2).sum().backward()
    result.append(x.grad.tolist())
    def down():
        try:
            down()
        except RecursionError:
            (x * 2).sum().backward()
    down()
torch.ones(3, device="webgpu", requires_grad=True).sum().backward()
asked = []
class Counted:
    def __get__(self, *args):
        asked.append(1)
        return lambda: torch._C._autograd.DeviceType.PrivateUse1
state["guard"].type_, before = Counted(), state["guard"].type_
torch.ones(3, device="webgpu", requires_grad=True).sum()
state["guard"].type_ = before
here, there = [], []
thread = threading.Thread(target=run, args=(there,))
thread.start(), thread.join()
run(here)
print(here == there == ["mine", [2.0, 2.0, 2.0]] or (here, there), bool(asked))
"""


@pytest.mark.parametrize("native", [True, False])
def test_hooks_and_recursion_with_either_guard(webgpu: str, native: bool) -> None:
    """Where there is LLVM Python is not asked; without it no exception of it ends the process."""
    out = forked(_HOOKS, WEBTORCH_CPU_JIT="1" if native else "0")
    assert out == f"True {not native}"


def test_results_of_hooks_that_are_no_gradients(webgpu: str) -> None:
    x = torch.ones(3, device=webgpu, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: "text")
    with pytest.raises(TypeError, match="hook returned 'str'"):
        y.sum().backward()


def test_each_thread_gets_what_its_own_hooks_raise(webgpu: str) -> None:
    torch.ones(1, device=webgpu)
    wrong: list[object] = []

    def work(number: int) -> None:
        def fail(grad: torch.Tensor) -> None:
            raise ValueError(number)

        for i in range(20):
            y = torch.ones(3, device=webgpu, requires_grad=True) * 2
            if i % 2:
                y.register_hook(fail)
            try:
                y.sum().backward()
                found: object = None
            except BaseException as error:
                found = error.args
            if found != ((number,) if i % 2 else None):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_backward_passes_within_hooks_raise_to_the_hook(webgpu: str) -> None:
    seen: list[str] = []

    def inner() -> None:
        with torch.enable_grad():
            y = torch.ones(3, device=webgpu, requires_grad=True) * 2
            y.register_hook(_raise)
            y.sum().backward()

    def outer(grad: torch.Tensor) -> None:
        with pytest.raises(ValueError, match="mine"):
            inner()
        seen.append("caught")
        with pytest.raises(RuntimeError, match="size mismatch"):
            torch.ones(3, 4, device=webgpu) @ torch.ones(3, device=webgpu)
        inner()

    x = torch.ones(3, device=webgpu, requires_grad=True)
    y = x * 2
    y.register_hook(outer)
    with pytest.raises(ValueError, match="mine"):
        y.sum().backward()
    assert seen == ["caught"]


def test_nothing_that_is_refused_ends_the_process(webgpu: str) -> None:
    """Errors that arise where C++ lets none through: sizes of nested tensors, memory of the host, recursion."""
    out = forked(
        """
        import torch, warnings
        warnings.simplefilter("ignore")
        d, refused = "webgpu", []
        a = [torch.ones(n, 3, device=d, requires_grad=True) for n in (2, 4)]
        c = [torch.ones(n, 3) for n in (2, 4)]
        small = torch.ones(8, device=d)
        small.untyped_storage().resize_(4)
        def deep(n):
            return deep(n - 1) if n else None
        def at_the_limit():
            x = torch.ones(2, device=d, requires_grad=True)
            def down():
                try:
                    down()
                except RecursionError:
                    (x * 2).sum().backward()
            down()
        for name, run in {
            "as_nested": lambda: torch.nested.as_nested_tensor(a),
            "nested": lambda: torch.nested.nested_tensor([x.detach() for x in a], requires_grad=True),
            "to": lambda: torch.nested.nested_tensor(c).to(d),
            "like": lambda: torch.zeros_like(torch.nested.nested_tensor(c), device=d),
            "mask": lambda: torch._nested_tensor_from_mask(
                torch.ones(2, 4, 3, device=d), torch.ones(2, 4, dtype=torch.bool, device=d)),
            "cut": lambda: small.tolist(),
            "cut add": lambda: (small + 1).sum().item(),
            "cut copy": lambda: small.cpu(),
            "huge": lambda: torch.empty(1 << 62, device=d),
            "huge strides": lambda: torch.empty_strided((1 << 40, 2), (1 << 40, 1), device=d),
            "dlpack": lambda: torch.utils.dlpack.to_dlpack(torch.ones(3, device=d)),
            "share": lambda: torch.ones(3, device=d).untyped_storage()._share_filename_cpu_(),
            "byteswap": lambda: torch.ones(3, device=d).untyped_storage().byteswap(torch.float32),
            "limit": at_the_limit,
        }.items():
            try:
                run()
            except (Exception, RecursionError):
                refused.append(name)
        jagged = torch.nested.as_nested_tensor(a, layout=torch.jagged)
        (jagged.values() * 2).sum().backward()
        torch.accelerator.empty_host_cache()
        print(a[0].grad.sum().item(), {"to", "like", "huge", "as_nested", "cut"} <= set(refused))
        """
    )
    assert out == "12.0 True"
