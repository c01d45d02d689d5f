"""The two modules that a program runs with, its values from seeds, and the comparison of results."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.func

import webtorch
import webtorch.func

# How far a result may be from float64's, relative to the largest of its tensor, by the least exact
# type that the program has. What PyTorch's own float32 run loses is added (`SLACK` times).
TOLERANCE = {"float32": 5e-5, "float16": 1e-2, "bfloat16": 8e-2}
SLACK = 20.0
# A few roundings, as a relative error of the inputs.
NUDGE = {"float32": 1e-6, "bfloat16": 2.0**-5}
# Programs that lose more than this in PyTorch's own float32 are no test: a comparison that is almost a tie.
UNSTABLE = 1e-3


class Skip(Exception):
    """PyTorch refuses this, or the program says nothing here."""


@dataclass(frozen=True)
class Input:
    """A tensor that a program is given."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    grad: bool = False
    below: int = 4

    def values(self, seed: int) -> Any:
        """The same numbers whatever library asks."""
        rng = numpy.random.default_rng([seed & 0xFFFFFFFF, *self.name.encode()])
        if self.dtype == "bool":
            return rng.integers(0, 2, self.shape).astype(bool)
        if self.dtype == "int64":
            return rng.integers(0, self.below, self.shape)
        found = rng.uniform(-1.5, 1.5, self.shape)
        if self.dtype == "complex64":
            return found + 1j * rng.uniform(-1.5, 1.5, self.shape)
        return found


@dataclass(frozen=True)
class Face:
    """A module `t` on a device; `wide` is PyTorch in float64, `nudge` how much its numbers are off (relative)."""

    name: str
    t: Any
    device: str
    compiler: Callable[..., Any] | None = None
    wide: bool = False
    nudge: float = 0.0

    @property
    def oracle(self) -> bool:
        """Whether this is PyTorch on the CPU, without its compiler."""
        return self.t is torch and self.device == "cpu" and self.compiler is None

    def compile(self, function: Any) -> Any:
        """The function or module, compiled where this face compiles."""
        return function if self.compiler is None else self.compiler(function)

    def tensor(self, given: Input, seed: int) -> Any:
        """A leaf with the input's numbers."""
        dtype = given.dtype
        if self.wide:
            dtype = {"float32": "float64", "complex64": "complex128"}.get(dtype, dtype)
        values = given.values(seed)
        if self.nudge and "float" in dtype:
            signs = numpy.random.default_rng(seed & 0xFFFFFFFF).choice([-1.0, 1.0], given.shape)
            values = values * (1 + self.nudge * signs)
        made = self.t.tensor(values.tolist(), dtype=getattr(self.t, dtype), device=self.device)
        # No reshape: a leaf that is a view loses gradients of its own views in PyTorch when it is written to.
        return made.requires_grad_(given.grad)

    def fill(self, module: Any, seed: int) -> Any:
        """The module on the device, with parameters (and buffers that are drawn) from the seed."""
        module = module.to(self.device)
        if self.wide:
            module = module.double()
        tied: set[int] = set()
        with self.t.no_grad():
            for name, p in module.named_parameters():
                if id(p) not in tied:
                    tied.add(id(p))
                    p.copy_(0.4 * self.tensor(Input(name, tuple(p.shape)), seed))
            for name, b in module.named_buffers():
                if name.endswith(("_u", "_v")):
                    drawn = self.tensor(Input(name, tuple(b.shape)), seed)
                    b.copy_(drawn / (drawn * drawn).sum().sqrt())
        return module


def oracle(wide: bool) -> Face:
    """PyTorch on the CPU."""
    return Face("torch64" if wide else "torch", torch, "cpu", wide=wide)


def faces(name: str, device: str) -> Face:
    """The face "tensor" (webtorch) or "pytorch" (real PyTorch on the device webgpu)."""
    if name == "tensor":
        return Face(f"tensor-{device}", webtorch, device, webtorch.compile)
    importlib.import_module("webtorch.pytorch")

    return Face(
        "pytorch",
        torch,
        "webgpu",
        lambda f: torch.compile(f, backend="webgpu"),
    )


@dataclass
class Result:
    """What is compared of a tensor."""

    label: str
    dtype: str
    shape: tuple[int, ...]
    grad: bool
    values: Any


def leaves(tree: Any, label: str = "result") -> Iterable[tuple[str, Any]]:
    """All tensors and numbers of nested results, with the way to each."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{label}.{key}")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{label}[{number}]")
    else:
        yield label, tree


def look(tree: Any) -> list[Result]:
    """Read every tensor of nested results."""
    out = []
    for label, x in leaves(tree):
        if not hasattr(x, "requires_grad"):
            out.append(Result(label, type(x).__name__, (), False, x))
            continue
        shape = tuple(int(n) for n in x.shape)
        values = numpy.array(x.detach().cpu().tolist()).reshape(shape)
        out.append(
            Result(
                label,
                str(x.dtype).removeprefix("torch.").removeprefix("webtorch."),
                shape,
                x.requires_grad,
                values,
            )
        )
    return out


def _number(values: Any) -> bool:
    return isinstance(values, (numpy.ndarray, float, complex, int)) and not isinstance(values, bool)


def far(a: Any, b: Any) -> float:
    """The largest difference; infinite where one is no number and the other is."""
    a, b = numpy.asarray(a), numpy.asarray(b)
    if a.dtype == bool or b.dtype == bool:
        return 0.0 if (a == b).all() else math.inf
    if not a.size:
        return 0.0
    same = (a == b) | ((a != a) & (b != b))
    with numpy.errstate(invalid="ignore"):
        difference = numpy.where(same, 0.0, numpy.abs(a - b))
    return math.inf if (difference != difference).any() else float(difference.max())


def size(values: Any) -> float:
    """The largest finite absolute value, at least 1."""
    found = numpy.abs(numpy.asarray(values, dtype=complex))
    return float(max(1.0, numpy.where(numpy.isfinite(found), found, 0).max(initial=0.0)))


class Expected:
    """PyTorch's results, and how exact they are. Raises Skip where they say nothing."""

    def __init__(self, narrow: list[Result], wide: list[Result], low: str) -> None:
        self.narrow, self.wide, self.low = narrow, wide, low
        if len(narrow) != len(wide):
            raise Skip("the results differ in number by rounding")
        self.allowed = []
        for a, b in zip(narrow, wide, strict=True):
            if a.shape != b.shape:
                raise Skip("shapes depend on rounding")
            if not _number(a.values):
                self.allowed.append(0.0)
                continue
            if numpy.any(numpy.asarray(b.values != b.values)):
                # The program's own values are finite: a derivative where there is none.
                raise Skip(f"NaN: {a.label}")
            slack, scale = far(a.values, b.values), size(b.values)
            if (
                not slack <= (UNSTABLE if low == "float32" else 4 * TOLERANCE[low]) * scale
                or scale > 1e4
            ):
                raise Skip(f"ill-conditioned: {a.label}")
            exact = "float" not in a.dtype and "complex" not in a.dtype
            self.allowed.append(0.0 if exact else SLACK * slack + TOLERANCE[low] * scale)

    def widen(self, nudged: list[Result]) -> None:
        """Allow what an error of the inputs makes of the results. Raises Skip where it makes others."""
        if [(r.label, r.shape) for r in nudged] != [(r.label, r.shape) for r in self.wide]:
            raise Skip("the results differ by rounding")
        for i, (a, b) in enumerate(zip(nudged, self.wide, strict=True)):
            if _number(b.values):
                self.allowed[i] += far(a.values, b.values)

    def differs(self, found: list[Result], loose: bool = False) -> str | None:
        """Say how results differ, or None."""
        if [r.label for r in found] != [r.label for r in self.narrow]:
            return f"structure: {[r.label for r in found]}, not {[r.label for r in self.narrow]}"
        for ours, theirs, exact, allowed in zip(
            found, self.narrow, self.wide, self.allowed, strict=True
        ):
            if ours.shape != theirs.shape:
                return f"{ours.label}: shape {ours.shape}, not {theirs.shape}"
            if not loose and ours.dtype != theirs.dtype:
                return f"{ours.label}: dtype {ours.dtype}, not {theirs.dtype}"
            # PyTorch says that integers require a gradient where floats that do were written to them.
            counts = "float" in theirs.dtype or "complex" in theirs.dtype
            if ours.grad != theirs.grad and counts:
                return f"{ours.label}: requires_grad {ours.grad}, not {theirs.grad}"
            if not _number(theirs.values):
                if ours.values != theirs.values:
                    return f"{ours.label}: {ours.values!r}, not {theirs.values!r}"
                continue
            if loose:
                allowed = max(allowed, TOLERANCE["bfloat16"] * size(exact.values))
            difference = far(ours.values, exact.values)
            if not difference <= allowed:
                return (
                    f"{ours.label}: values differ by {difference:.3g} (allowed {allowed:.3g}): "
                    f"{_short(ours.values)}, not {_short(theirs.values)}"
                )
        return None


def _short(values: Any) -> str:
    flat = numpy.asarray(values).ravel()
    return "[" + ", ".join(f"{v:.6g}" for v in flat[:8]) + (", ..." if flat.size > 8 else "") + "]"
