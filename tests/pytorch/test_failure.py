"""Out of memory, a lost device, a forked process: errors that say what happened. Each in a process of its own."""

from __future__ import annotations

import os

import pytest

from tests.pytorch.test_autoload import python

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
    out = python(
        _TRIES
        + """
from webtorch.pytorch import device
device.runtime().backend.native.wrapper.destroy()
print(attempt(torch.AcceleratorError, "was lost"))
"""
    )
    assert out == "[]"


def test_a_forked_child_is_refused_and_its_parent_goes_on(webgpu: str) -> None:
    out = python(
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
    out = python(
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
    out = python(
        """
        import copy, torch
        from torch import nn
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
