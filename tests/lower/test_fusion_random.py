"""Random programs give the same numbers fused and computed one operation at a time, and the same as
PyTorch.

Views, in-place writes through views, reductions, joins and broadcasts are mixed: what the fuser and
the planner must keep apart.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from typing import Any

import pytest
import torch

import webtorch
from webtorch.lower import build
from webtorch.lower.body import Unfusable


def fits(shape: torch.Size, target: torch.Size) -> bool:
    """Whether `shape` can be broadcast to `target`."""
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False


class Machine:
    """Applies the same random steps to our tensors and to PyTorch's."""

    def __init__(self, seed: int, device: str, eager: bool, products: bool = False) -> None:
        self.products = products
        self.rng = random.Random(seed)
        self.device = device
        self.eager = eager
        self.ours: list[Any] = []
        self.theirs: list[torch.Tensor] = []
        generator = torch.Generator().manual_seed(seed)
        for shape in ((6, 8), (8,), (6, 1), (4, 6, 8), (6, 8)):
            values = torch.rand(shape, generator=generator, dtype=torch.float32) * 2 - 1
            self.add(webtorch.tensor(values.tolist(), device=device), values.clone())

    def add(self, ours: Any, theirs: torch.Tensor) -> None:
        if self.eager:
            ours._storage.runtime.realize()
        self.ours.append(ours)
        self.theirs.append(theirs)

    def pick(self) -> int:
        return self.rng.randrange(len(self.ours))

    def step(self) -> str:
        i = self.pick()
        x, y = self.ours[i], self.theirs[i]
        kind = self.rng.choice(
            [
                "map",
                "map",
                "binary",
                "binary",
                "reduce",
                "view",
                "view",
                "write",
                "cat",
                "softmax",
                "pad",
                *(["product"] * 3 if self.products else []),
            ]
        )
        match kind:
            case "product":
                return self.product(x, y)
            case "map":
                name = self.rng.choice(["sigmoid", "tanh", "abs", "neg", "relu", "exp"])
                if name == "exp":
                    self.add((x.clamp(-2, 2)).exp(), y.clamp(-2, 2).exp())
                else:
                    self.add(getattr(x, name)(), getattr(y, name)())
            case "binary":
                j = self.pick()
                try:
                    torch.broadcast_shapes(y.shape, self.theirs[j].shape)
                except RuntimeError:
                    return "skip"
                op = self.rng.choice(["__add__", "__mul__", "__sub__"])
                scale = self.rng.uniform(-1, 1)
                self.add(
                    getattr(x, op)(self.ours[j]) * scale, getattr(y, op)(self.theirs[j]) * scale
                )
            case "reduce":
                if y.ndim == 0:
                    return "skip"
                dims = tuple(sorted(self.rng.sample(range(y.ndim), self.rng.randint(1, y.ndim))))
                keep = self.rng.random() < 0.7
                name = self.rng.choice(["sum", "mean", "amax"])
                self.add(getattr(x, name)(dims, keepdim=keep), getattr(y, name)(dims, keepdim=keep))
            case "view":
                self.view(x, y)
            case "write":
                self.write(i)
            case "cat":
                if y.ndim == 0:
                    return "skip"
                d = self.rng.randrange(y.ndim)
                if y.shape[d] > 20:
                    return "skip"
                self.add(webtorch.cat([x, x * 2], d), torch.cat([y, y * 2], d))
            case "softmax":
                if y.ndim == 0 or y.numel() == 0:
                    return "skip"
                d = self.rng.randrange(y.ndim)
                self.add(x.softmax(d), y.softmax(d))
            case "pad":
                if y.ndim < 1 or y.shape[-1] > 20:
                    return "skip"
                self.add(
                    webtorch.nn.functional.pad(x, (1, 2), value=0.5),
                    torch.nn.functional.pad(y, (1, 2), value=0.5),
                )
        return kind

    def product(self, x: Any, y: torch.Tensor) -> str:
        """Multiply with another tensor, itself or one that is cut to fit, and do something with the
        result, element by element."""
        j = self.pick()
        a, b = self.ours[j], self.theirs[j]
        if not (1 <= y.ndim <= 3 and 1 <= b.ndim <= 3) or y.numel() * b.numel() > 1 << 16:
            return "skip"
        if b.ndim > 1 and self.rng.random() < 0.5:
            a, b = a.transpose(-1, -2), b.transpose(-1, -2)
        inner = -1 if b.ndim == 1 else -2
        size = min(y.shape[-1], b.shape[inner])
        if size == 0:
            return "skip"
        x, y = x[..., :size], y[..., :size]
        a = a[:size] if b.ndim == 1 else a[..., :size, :]
        b = b[:size] if b.ndim == 1 else b[..., :size, :]
        try:
            theirs = y @ b
        except RuntimeError:
            return "skip"
        ours = x @ a
        # Products of products would grow without bound.
        ours, theirs = ours * (1 / size), theirs * (1 / size)
        if self.rng.random() < 0.3:
            self.add(ours, theirs)
        for _ in range(self.rng.randrange(3)):
            k = self.pick()
            if fits(self.theirs[k].shape, theirs.shape):
                ours, theirs = ours + self.ours[k], theirs + self.theirs[k]
            else:
                ours, theirs = ours.tanh(), theirs.tanh()
            if self.rng.random() < 0.3:
                self.add(ours, theirs)
        self.add(ours.relu(), theirs.relu())
        return "product"

    def view(self, x: Any, y: torch.Tensor) -> None:
        if y.ndim == 0:
            return
        kind = self.rng.choice(["t", "slice", "reshape", "expand", "select"])
        d, e = self.rng.randrange(y.ndim), self.rng.randrange(y.ndim)
        if kind == "t":
            self.add(x.transpose(d, e), y.transpose(d, e))
        elif kind == "slice" and y.shape[d] > 1:
            start, step = self.rng.randrange(y.shape[d] - 1), self.rng.choice([1, 2])
            index = (slice(None),) * d + (slice(start, None, step),)
            self.add(x[index], y[index])
        elif kind == "reshape":
            self.add(x.reshape(-1), y.reshape(-1))
        elif kind == "expand" and y.ndim < 3:
            self.add(x.unsqueeze(0).expand(3, *y.shape), y.unsqueeze(0).expand(3, *y.shape))
        elif kind == "select" and y.shape[d] > 0:
            at = self.rng.randrange(y.shape[d])
            self.add(x.select(d, at), y.select(d, at))

    def write(self, i: int) -> None:
        x, y = self.ours[i], self.theirs[i]
        if any(st == 0 and s > 1 for s, st in zip(y.shape, y.stride(), strict=True)):
            return
        kind = self.rng.choice(["mul", "add_other", "copy_part", "fill"])
        if kind == "mul":
            x.mul_(0.5)
            y.mul_(0.5)
        elif kind == "fill" and y.ndim and y.shape[0] > 1:
            x[1:].fill_(0.25)
            y[1:].fill_(0.25)
        elif kind == "copy_part" and y.ndim and y.shape[-1] > 3:
            x[..., :2] = x[..., 2:4].clone()
            y[..., :2] = y[..., 2:4].clone()
        elif kind == "add_other":
            j = self.pick()
            if self.theirs[j].shape == y.shape:
                x.add_(self.ours[j].clone())
                y.add_(self.theirs[j].clone())
        if self.eager:
            x._storage.runtime.realize()

    def check(self) -> None:
        for n, (x, y) in enumerate(zip(self.ours, self.theirs, strict=True)):
            actual = torch.tensor(x.tolist(), dtype=torch.float32).reshape(y.shape)
            torch.testing.assert_close(
                actual,
                y,
                rtol=2e-4,
                atol=2e-4,
                msg=lambda m, n=n, y=y: f"tensor {n} of shape {tuple(y.shape)}: {m}",
            )


def _programs(seeds: range, of_webgpu: int) -> pytest.MarkDecorator:
    """Parametrize a test by random programs: all on the CPU, the first on WebGPU, which compiles slowly here."""
    pairs = [("cpu", s) for s in seeds] + [("webgpu", s) for s in seeds[:of_webgpu]]
    return pytest.mark.parametrize(("device", "seed"), pairs, indirect=["device"])


@pytest.mark.one_in(2)
@pytest.mark.covers("M10", "Q4")
@_programs(range(40), of_webgpu=12)
def test_fused_programs_equal_pytorch(seed: int, device: str) -> None:
    machine = Machine(seed, device, eager=False)
    for n in range(30):
        machine.step()
        if n % 11 == 10:
            machine.check()
    machine.check()


@pytest.mark.one_in(3)
@pytest.mark.covers("M8", "M10")
@_programs(range(100, 130), of_webgpu=15)
def test_programs_with_products_equal_pytorch(seed: int, device: str) -> None:
    machine = Machine(seed, device, eager=False, products=True)
    for n in range(24):
        machine.step()
        if n % 9 == 8:
            machine.check()
    machine.check()


@pytest.mark.parametrize("seed", range(5))
def test_one_operation_at_a_time_equals_pytorch(seed: int) -> None:
    machine = Machine(seed, "cpu", eager=True)
    for _ in range(30):
        machine.step()
    machine.check()


def test_loops_that_cannot_become_one_stay_as_they_are(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging loops only makes kernels shorter: where a merged position is not recognised, it is left out."""
    refused = []
    parts = build._parts

    def recognising_nothing(*args: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "_merge_loops":
            refused.append(args)
            raise Unfusable
        return parts(*args)

    monkeypatch.setattr(build, "_parts", recognising_nothing)
    # Kernels that were built before would not be built again, nor would a program of the other tests.
    monkeypatch.setattr(build, "_BUILT", OrderedDict())
    machine = Machine(204, device, eager=False)
    for _ in range(30):
        machine.step()
    machine.check()
    assert refused
