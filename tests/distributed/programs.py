"""Random programs of DTensors, each step beside the same one of whole tensors.

    python -m tests.distributed.programs --count 200 --seed 0 --ranks 2 [--only SEED] [--library torch]

A program is drawn from its seed: leaves that lie in some way, steps that compute, view, write, send, then a backward
pass, or two. All processes run the same programs in one launch. What differs is written into a folder as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import pickle
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.distributed import training
from tests.distributed.dtensors import square
from tests.patience import PATIENCE

# What PyTorch refuses, too: a write that would have to change how the tensor lies.
REFUSED = ("requires redistribution and breaks", "cannot change its shape in place")
MESHES = {2: ((2,), (2, 1), (1, 2)), 4: ((4,), (2, 2), (2, 2), (4, 1))}


class Differs(Exception):
    """A DTensor is not what the whole tensor is."""


class Program:
    """What one program has made: pairs of a whole tensor and a DTensor."""

    def __init__(self, torch: Any, meshes: list[Any], seed: int) -> None:
        from torch.distributed import tensor

        self.torch, self.dt, self.rng = torch, tensor, random.Random(seed)
        self.mesh = self.rng.choice(meshes)
        self.ranks = self.mesh.size()
        torch.manual_seed(seed)
        self.dtype = self.rng.choice((torch.float64, torch.float64, torch.float32))
        self.rounding = 0.0 if self.dtype is torch.float64 else 3e-4
        self.pool: list[tuple[Any, Any]] = []
        self.leaves: list[tuple[Any, Any, Any]] = []
        self.said: list[str] = []
        self.watches = self.rng.random() < 0.5
        # Of hooks what each side's has seen; tensors whose gradients are kept.
        self.hooked: list[tuple[list[Any], list[Any]]] = []
        self.kept: list[tuple[Any, Any]] = []

    # ---- draws

    def placement(self, rank: int, partial: bool = False) -> Any:
        """Return one placement of a tensor of some dims."""
        kinds = [self.dt.Replicate(), *[self.dt.Shard(d) for d in range(rank)] * 2]
        return self.rng.choice(kinds + ([self.dt.Partial()] if partial else []))

    def placements(self, rank: int) -> list[Any]:
        """Return a placement for each dimension of the mesh."""
        return [self.placement(rank) for _ in range(self.mesh.ndim)]

    def sizes(self, rank: int) -> list[int]:
        """Return sizes of a tensor, small and uneven."""
        return [self.rng.choice((1, 2, 3, 4, 4, 5, 6, 8)) for _ in range(rank)]

    def leaf(
        self, sizes: list[int], scale: float = 1.0, grad: bool | None = None
    ) -> tuple[Any, Any]:
        """Return a new leaf: parts of a whole, or sums that are still to be taken."""
        torch, rng = self.torch, self.rng
        values = torch.randn(sizes, dtype=self.dtype) * scale
        needs = rng.random() < 0.8 if grad is None else grad
        if rng.random() < 0.15:
            parts = [torch.randn(sizes, dtype=self.dtype) * scale for _ in range(self.ranks)]
            local = parts[torch.distributed.get_rank()].clone().requires_grad_(needs)
            whole = sum(parts).detach().requires_grad_(needs)
            lies = [self.dt.Partial()] * self.mesh.ndim
            made = self.dt.DTensor.from_local(local, self.mesh, lies, run_check=False)
            self.note(f"leaf {sizes} of sums", made)
            if needs:
                self.leaves.append((whole, local, "sum"))
            return whole, made
        lies = self.placements(len(sizes))
        whole = values.detach().clone().requires_grad_(needs)
        made = self.dt.distribute_tensor(values.detach().clone(), self.mesh, lies).requires_grad_(
            needs
        )
        self.note(f"leaf {sizes} {'with' if needs else 'without'} gradient", made)
        if needs:
            self.leaves.append((whole, made, "parts"))
        return whole, made

    def pick(self, rank: int | None = None) -> tuple[Any, Any]:
        """Return a tensor of the pool, or a new leaf."""
        fit = [p for p in self.pool if rank is None or p[0].dim() == rank]
        fit = [p for p in fit if p[0].is_floating_point() and p[0].numel()]
        if not fit or self.rng.random() < 0.1:
            self.pool.append(
                self.leaf(self.sizes(self.rng.choice((1, 2, 2, 3)) if rank is None else rank))
            )
            return self.pool[-1]
        return self.rng.choice(fit[-4:])

    # ---- steps

    def note(self, text: str, *made: Any) -> None:
        """Keep what was done, for who reads of a fault."""
        lies = " ".join(
            f"{list(x.shape)}{tuple(map(str, x.placements))}"
            for x in made
            if isinstance(x, self.dt.DTensor)
        )
        self.said.append(f"{text} -> {lies}")

    def step(self, text: str, function: Callable[..., Any], *given: tuple[Any, Any]) -> bool:
        """Call a function of both sides; what whole tensors refuse is left out."""
        seed = self.rng.randrange(1 << 20)
        self.torch.manual_seed(seed)
        try:
            whole = function(*[w for w, _ in given])
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return False
        self.torch.manual_seed(seed)
        self.said.append(
            f"{text} of {[tuple(map(str, getattr(d, 'placements', ()))) for _, d in given]}"
        )
        made = function(*[d for _, d in given])
        wholes = list(whole) if isinstance(whole, (list, tuple)) else [whole]
        parts = list(made) if isinstance(made, (list, tuple)) else [made]
        if len(wholes) != len(parts):
            raise Differs(f"{text}: {len(parts)} results, of {len(wholes)}")
        self.said.pop()
        self.note(
            f"{text} of {[tuple(map(str, getattr(d, 'placements', ()))) for _, d in given]}", *parts
        )
        for w, d in zip(wholes, parts, strict=True):
            if isinstance(w, self.torch.Tensor):
                if not isinstance(d, self.dt.DTensor):
                    raise Differs(f"{text}: a {type(d).__name__}")
                self.pool.append((w, d))
        if self.watches:
            self.compare(text, *self.pool[-len(wholes) :])
        return True

    def compare(self, text: str, *pairs: tuple[Any, Any]) -> None:
        """Raise Differs where values, shapes, types or strides' order differ."""
        for w, d in pairs:
            if tuple(w.shape) != tuple(d.shape) or w.dtype is not d.dtype:
                raise Differs(f"{text}: {tuple(d.shape)} {d.dtype}, of {tuple(w.shape)} {w.dtype}")
            if w.requires_grad != d.requires_grad:
                raise Differs(f"{text}: requires_grad is {d.requires_grad}")
            with self.torch.no_grad():
                self.close(text, w, d.full_tensor())

    def close(self, text: str, w: Any, d: Any) -> None:
        """Raise Differs where values differ."""
        if tuple(w.shape) != tuple(d.shape):
            raise Differs(f"{text}: sizes {tuple(d.shape)} for {tuple(w.shape)}")
        a, b = w.detach().double(), d.detach().double()
        if not a.numel():
            return
        finite = self.torch.isfinite(a)
        if not bool((finite == self.torch.isfinite(b)).all()):
            raise Differs(f"{text}: not finite elsewhere")
        a, b = self.torch.where(finite, a, 0.0), self.torch.where(finite, b, 0.0)
        size = max(a.abs().max().item(), 1e-3)
        exact = {self.torch.float64: 1e-9, self.torch.bfloat16: 0.06}.get(w.dtype, 3e-4)
        exact = max(exact, self.rounding)
        far = (a - b).abs().max().item() / size
        if far > exact:
            raise Differs(f"{text}: differs by {far:.1e}")

    # How far results may differ since numbers of fewer bits have been used.
    rounding = 0.0

    # ---- the end

    def gradients(self) -> None:
        """Run a backward pass, or two, and compare all gradients."""
        torch, rng = self.torch, self.rng
        ends = [p for p in self.pool if p[0].requires_grad and p[0].is_floating_point()]
        if not ends or not self.leaves:
            return
        chosen = ends[-3:] if rng.random() < 0.7 else rng.sample(ends, min(3, len(ends)))
        how = rng.choice(("sum", "given", "mean", "norm", "twice", "grad", "scalar"))
        self.said.append(f"backward: {how}")
        if how == "given":
            w, d = chosen[-1]
            values = torch.randn(list(w.shape), dtype=w.dtype)
            lies = self.placements(w.dim())
            w.backward(values)
            d.backward(self.dt.distribute_tensor(values, self.mesh, lies))
        elif how in ("twice", "grad"):
            self.by_grad(chosen, how == "twice")
        else:
            for side in (0, 1):
                self.loss([p[side] for p in chosen], how).backward()
        for k, (w, d, kind) in enumerate(self.leaves):
            g, h = w.grad, d.grad
            if (g is None) != (h is None):
                raise Differs(f"gradient of leaf {k}: {'no' if h is None else 'a'} gradient")
            if g is not None:
                self.close(
                    f"gradient of leaf {k} ({how})", g, h.full_tensor() if kind == "parts" else h
                )

    def loss(self, xs: list[Any], how: str) -> Any:
        """Return one number of several tensors."""
        total = 0
        for x in xs:
            y = x.float() if x.dtype is self.torch.bfloat16 else x
            if how == "norm":
                total = total + self.torch.linalg.vector_norm(y * y + 0.5)
            elif how == "mean":
                total = total + (y * 0.5 + 0.1 * y * y).mean()
            else:
                total = total + (y * 0.5 + 0.1 * y * y).sum()
        return total

    def by_grad(self, chosen: list[tuple[Any, Any]], twice: bool) -> None:
        """Compare what `autograd.grad` gives; with `twice` gradients of a function of gradients are accumulated."""
        torch, found = self.torch, []
        parts = [(w, d) for w, d, _ in self.leaves]
        for side in (0, 1):
            loss = self.loss([p[side] for p in chosen], "sum")
            found.append(
                torch.autograd.grad(
                    loss, [p[side] for p in parts], create_graph=twice, allow_unused=True
                )
            )
        for k, (g, h) in enumerate(zip(*found, strict=True)):
            if (g is None) != (h is None):
                raise Differs(f"grad of leaf {k}: {'none' if h is None else 'one'}")
            if g is not None:
                self.close(
                    f"grad of leaf {k}", g, h.full_tensor() if isinstance(h, self.dt.DTensor) else h
                )
        if twice:
            sums = [
                sum([(x * x).sum() for x in gs if x is not None and x.requires_grad], 0)
                for gs in found
            ]
            if not isinstance(sums[0], int) and all(
                isinstance(h, self.dt.DTensor) or h is None for h in found[1]
            ):
                for s in sums:
                    s.backward()


# ---- what steps there are: each draws its arguments, and says whether it was taken

Step = Callable[[Program], object]
STEPS: list[tuple[int, Step]] = []


def steps(weight: int) -> Callable[[Step], Step]:
    """Note a kind of step, drawn as often as its weight says."""

    def note(function: Step) -> Step:
        """Note the function."""
        STEPS.append((weight, function))
        return function

    return note


UNARY = (
    "tanh", "sigmoid", "relu", "sin", "neg", "abs", "exp", "square", "nn.functional.gelu", "nn.functional.softplus",
    "nn.functional.silu", "clone", "nn.functional.elu", "sign", "floor", "nn.functional.leaky_relu", "cos", "atan",
)  # fmt: skip
REDUCED = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "prod")


def named(torch: Any, name: str) -> Any:
    """Return a function of the library by its dotted name."""
    for part in name.split("."):
        torch = getattr(torch, part)
    return torch


@steps(8)
def _unary(p: Program) -> None:
    name = p.rng.choice(UNARY)
    x = p.pick()
    if name in ("exp", "square"):
        p.step(f"{name} of tanh", lambda a: named(p.torch, name)(a.tanh()), x)
    else:
        p.step(name, lambda a: named(p.torch, name)(a), x)


@steps(6)
def _numbers(p: Program) -> None:
    c = p.rng.choice((2, 0.5, -1.25, 3.0))
    kinds: dict[str, Callable[[Any], Any]] = {
        "x * c": lambda a: a * c, "x + c": lambda a: a + c, "c - x": lambda a: c - a, "x / c": lambda a: a / c,
        "c / x": lambda a: c / (a.abs() + 1), "x ** 2": lambda a: a**2, "clamp": lambda a: a.clamp(-1, c + 1),
        "x > c": lambda a: (a > c).to(a.dtype), "a number": lambda a: a * p.torch.tensor(c),
        "true_divide": lambda a: p.torch.div(a, c, rounding_mode="floor"), "softmax": lambda a: a.softmax(-1),
        "log_softmax": lambda a: a.log_softmax(0), "cumsum": lambda a: a.cumsum(a.dim() - 1),
        "float": lambda a: a.float(), "double": lambda a: a.double(),
    }  # fmt: skip
    name = p.rng.choice(list(kinds))
    if name == "float":
        p.rounding = max(p.rounding, 3e-4)
    p.step(f"{name}, {c}", kinds[name], p.pick())


@steps(10)
def _binary(p: Program) -> None:
    x = p.pick()
    sizes = list(x[0].shape)
    near = [q for q in p.pool if _broadcasts(q[0].shape, sizes) and q[0].is_floating_point()]
    if near and p.rng.random() < 0.6:
        y = p.rng.choice(near)
    else:
        drawn = [p.rng.choice((s, s, 1)) for s in sizes][p.rng.choice((0, 0, 1)) :]
        y = p.leaf(drawn)
        p.pool.append(y)
    kinds: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div": lambda a, b: a / (b.abs() + 1), "maximum": lambda a, b: p.torch.maximum(a, b),
        "where": lambda a, b: p.torch.where(a > 0, a, b), "alpha": lambda a, b: p.torch.add(a, b, alpha=0.5),
        "lerp": lambda a, b: p.torch.lerp(a, b, 0.25), "addcmul": lambda a, b: p.torch.addcmul(a, a, b, value=0.5),
        "mse": lambda a, b: p.torch.nn.functional.mse_loss(a, b + 0 * a), "hypot": lambda a, b: p.torch.hypot(a, b),
        "masked_fill": lambda a, b: (a + 0 * b).masked_fill(b > 0, 0.5), "dot": lambda a, b: (a * b).sum(-1),
    }  # fmt: skip
    name = p.rng.choice(list(kinds))
    p.step(name, kinds[name], *p.rng.sample((x, y), 2))


def _broadcasts(a: Any, b: Any) -> bool:
    return all(
        m == n or 1 in (m, n) for m, n in zip(reversed(list(a)), reversed(list(b)), strict=False)
    )


@steps(6)
def _reduced(p: Program) -> None:
    x = p.pick()
    name, rank = p.rng.choice(REDUCED), x[0].dim()
    if not rank:
        return
    dims = p.rng.sample(range(rank), p.rng.randint(1, rank))
    keep = p.rng.random() < 0.4
    if name == "prod" or p.rng.random() < 0.2:
        p.step(
            f"{name} of all",
            lambda a: named(p.torch, name)(a.tanh(), *([0] if name == "logsumexp" else [])),
            x,
        )
    else:
        p.step(f"{name} {dims} {keep}", lambda a: named(p.torch, name)(a, dims, keepdim=keep), x)


@steps(3)
def _norms(p: Program) -> None:
    x, order = p.pick(), p.rng.choice((2, 1, math.inf, 3, -math.inf, 0))
    rank = x[0].dim()
    dim = p.rng.choice((None, *range(rank)))
    kinds: dict[str, Callable[[Any], Any]] = {
        "vector_norm": lambda a: p.torch.linalg.vector_norm(a, order, dim),
        "norm": lambda a: a.norm(), "norm of dim": lambda a: a.norm(2, dim),
        "max": lambda a: a.max(rank - 1)[0], "argmax": lambda a: a.argmax(0).to(a.dtype),
        "max of all": lambda a: a.max(), "any": lambda a: (a > 1).any().to(a.dtype),
        "median": lambda a: a.median(), "normalize": lambda a: p.torch.nn.functional.normalize(a, dim=rank - 1),
        "var_mean": lambda a: p.torch.var_mean(a, 0), "aminmax": lambda a: p.torch.aminmax(a),
    }  # fmt: skip
    name = p.rng.choice(list(kinds))
    p.step(f"{name} {order} {dim}", kinds[name], x)


@steps(8)
def _products(p: Program) -> None:
    x = p.pick()
    rank, functional = x[0].dim(), p.torch.nn.functional
    if not rank:
        return
    k, n = x[0].shape[-1], p.rng.choice((1, 2, 3, 4, 6))
    scale = 1 / math.sqrt(k)
    kind = p.rng.choice(("matmul", "linear", "bias", "einsum", "bmm", "self", "mv", "chain"))
    if kind == "matmul":
        p.step(kind, lambda a, b: a @ b, x, p.leaf([k, n], scale))
    elif kind in ("linear", "bias"):
        extra = [p.leaf([n])] if kind == "bias" else []
        p.step(kind, lambda *a: functional.linear(*a), x, p.leaf([n, k], scale), *extra)
    elif kind == "einsum" and rank == 2:
        p.step(kind, lambda a, b: p.torch.einsum("ij,kj->ki", a, b), x, p.leaf([n, k], scale))
    elif kind == "bmm" and rank == 3:
        p.step(kind, lambda a, b: p.torch.bmm(a, b), x, p.leaf([x[0].shape[0], k, n], scale))
    elif kind == "self" and rank > 1:
        p.step(kind, lambda a: a @ a.transpose(-1, -2) * scale, x)
    elif kind == "mv":
        p.step(kind, lambda a, b: a @ b, x, p.leaf([k], scale))
    elif kind == "chain":
        first, second = p.leaf([k, n], scale), p.leaf([n, k], 0.5)
        p.step(kind, lambda a, b, c: (a @ b).relu() @ c + a, x, first, second)


def views_of(p: Program, sizes: list[int]) -> tuple[str, Callable[[Any], Any]]:
    """Return a view by its name."""
    rng, rank = p.rng, len(sizes)
    if not rank:
        return "unsqueeze", lambda a: a.unsqueeze(0)
    d, e = rng.randrange(rank), rng.randrange(rank)
    start = rng.randrange(sizes[d])
    length = rng.randint(1, sizes[d] - start)
    order = rng.sample(range(rank), rank)
    numel = math.prod(sizes)
    parts = [m for m in range(1, numel + 1) if numel % m == 0]
    first = rng.choice(parts)
    inner = [m for m in range(1, sizes[d] + 1) if sizes[d] % m == 0]
    m = rng.choice(inner)
    divided = [*sizes[:d], m, sizes[d] // m, *sizes[d + 1 :]]
    at = rng.randrange(sizes[0])
    kinds: dict[str, Callable[[Any], Any]] = {
        f"transpose {d} {e}": lambda a: a.transpose(d, e), f"permute {order}": lambda a: a.permute(order),
        f"view {divided}": lambda a: a.view(divided), f"reshape {first}": lambda a: a.reshape(first, -1),
        f"reshape to {divided}": lambda a: a.reshape(divided), "flatten": lambda a: a.flatten(),
        f"unflatten {d} {m}": lambda a: a.unflatten(d, (m, -1)),
        f"flatten {min(d, e)}": lambda a: a.flatten(min(d, e)),
        f"flatten to {max(d, e)}": lambda a: a.flatten(0, max(d, e)),
        f"unsqueeze {d}": lambda a: a.unsqueeze(d), "squeeze": lambda a: a.squeeze(),
        "view flat": lambda a: a.view(-1),
        f"select {d} {start}": lambda a: a.select(d, start),
        f"narrow {d} {start} {length}": lambda a: a.narrow(d, start, length),
        f"slice {at}": lambda a: a[at:], f"steps {at}": lambda a: a[at::2], f"element {at}": lambda a: a[at],
        f"chunk {d}": lambda a: a.chunk(2, d), f"split {d} {m}": lambda a: a.split(m, d),
        f"expand {d}": lambda a: a.unsqueeze(d).expand(*sizes[:d], 3, *sizes[d:]), "ellipsis": lambda a: a[..., 0],
        f"movedim {d} {e}": lambda a: a.movedim(d, e), "contiguous": lambda a: a.transpose(d, e).contiguous(),
        "None": lambda a: a[None, :, None], "diagonal": lambda a: a.diagonal(), "mT": lambda a: a.mT,
        "view_as": lambda a: a.view_as(a), "unfold": lambda a: a.unfold(d, length, 1),
    }  # fmt: skip
    name = rng.choice(list(kinds))
    return name, kinds[name]


@steps(12)
def _view(p: Program) -> None:
    x = p.pick()
    name, function = views_of(p, list(x[0].shape))
    p.step(name, function, x)


@steps(8)
def _written(p: Program) -> None:
    """Write to a copy, or to a view of it, or to what others are views of."""
    rng, torch = p.rng, p.torch
    x = p.pick()
    if not p.step("copied", lambda a: a * 1.5, x):
        return
    base = target = p.pool[-1]
    for _ in range(rng.choice((0, 1, 1, 2))):
        name, function = views_of(p, list(target[0].shape))
        if (
            "contiguous" in name
            or "chunk" in name
            or "split" in name
            or "expand" in name
            or "reshape" in name
        ):
            continue
        if p.step(f"view to write: {name}", function, target):
            target = p.pool[-1]
    sizes = list(target[0].shape)
    y = p.leaf([rng.choice((s, s, s, 1)) for s in sizes])
    at = rng.randrange(sizes[0]) if sizes else 0
    kinds: dict[str, Callable[..., Any]] = {
        "add_": lambda a, b: a.add_(b), "mul_": lambda a, b: a.mul_(b), "copy_": lambda a, b: a.copy_(b),
        "mul_ number": lambda a, b: a.mul_(0.5), "zero_": lambda a, b: a.zero_(), "fill_": lambda a, b: a.fill_(0.25),
        "tanh_": lambda a, b: a.tanh_(), "addcmul_": lambda a, b: a.addcmul_(b, b, value=0.5), "+=": _plus,
        "clamp_": lambda a, b: a.clamp_(-1, 1), "masked_fill_": lambda a, b: a.masked_fill_(b.detach() > 0, 0.5),
        "[]=": lambda a, b: _put(a, at, 0.5), "[:]=": lambda a, b: _put(a, slice(at, None), b[:1] * 0 + 1.0),
        "relu_": lambda a, b: torch.relu_(a), "lerp_": lambda a, b: a.lerp_(b.expand(sizes), 0.5),
        "div_": lambda a, b: a.div_(b.abs() + 1),
        "out": lambda a, b: torch.add(b.detach().expand(sizes), 1.0, out=a.detach()),
        "normal_": lambda a, b: a.detach().normal_(), "sub_": lambda a, b: a.sub_(b, alpha=0.5),
    }  # fmt: skip
    name = rng.choice(list(kinds))
    with torch.no_grad() if rng.random() < 0.15 else contextlib.nullcontext():
        p.step(f"{name} {at}", kinds[name], target, y)
    p.step("what was written", lambda a: a * 1.0, base)


def _plus(a: Any, b: Any) -> Any:
    a += b
    return a


def _put(a: Any, at: Any, value: Any) -> Any:
    a[at] = value
    return a


@steps(6)
def _sent(p: Program) -> None:
    """Redistribute, or leave and come back; whole tensors stay as they are."""
    w, d = p.pick()
    rank, kind = w.dim(), p.rng.choice(("redistribute", "local", "full", "gradient"))
    lies = p.placements(rank)
    if kind == "redistribute":
        made = d.redistribute(p.mesh, lies)
    elif kind == "local":
        made = p.dt.DTensor.from_local(
            d.to_local() * 2.0,
            p.mesh,
            d.placements,
            run_check=False,
            shape=d.shape,
            stride=d.stride(),
        )
        w = w * 2.0
    elif kind == "gradient":
        # Each process uses its share of what all have.
        full = d.redistribute(p.mesh, [p.dt.Replicate()] * p.mesh.ndim)
        part = full.to_local(grad_placements=[p.dt.Partial()] * p.mesh.ndim)
        scale = p.torch.distributed.get_rank() + 1.0
        made = p.dt.DTensor.from_local(
            part * scale, p.mesh, [p.dt.Partial()] * p.mesh.ndim, run_check=False
        )
        w = w * (p.ranks * (p.ranks + 1) / 2)
    else:
        full = d.full_tensor()
        made = p.dt.DTensor.from_local(
            full, p.mesh, [p.dt.Replicate()] * p.mesh.ndim, run_check=False
        )
        made = made.redistribute(p.mesh, lies)
    if kind != "local" and kind != "gradient":
        w = w.view_as(w)
    p.note(f"{kind} {tuple(map(str, d.placements))}", made)
    p.pool.append((w, made))
    if p.watches:
        p.compare(kind, p.pool[-1])


@steps(5)
def _layers(p: Program) -> None:
    x = p.pick()
    functional, sizes = p.torch.nn.functional, list(x[0].shape)
    if not sizes:
        return
    last, seed = sizes[-1], p.rng.randrange(1000)
    kind = p.rng.choice(
        ("layer_norm", "rms_norm", "dropout", "attention", "loss", "bce", "glu", "pad", "loss mean")
    )
    if kind == "layer_norm":
        p.step(
            kind,
            lambda a, b, c: functional.layer_norm(a, (last,), b, c),
            x,
            p.leaf([last]),
            p.leaf([last]),
        )
    elif kind == "rms_norm":
        p.step(kind, lambda a, b: functional.rms_norm(a, (last,), b, 1e-5), x, p.leaf([last]))
    elif kind == "dropout":
        p.step(kind, lambda a: functional.dropout(a, 0.4), x)
    elif kind == "attention" and len(sizes) == 3:
        causal = seed % 2 == 0
        p.step(
            kind, lambda a: functional.scaled_dot_product_attention(a, a, a, is_causal=causal), x
        )
    elif kind.startswith("loss") and len(sizes) == 2:
        target = places(p, [sizes[0]], last)
        reduction = p.rng.choice(("sum", "mean", "none"))
        p.step(
            f"{kind} {reduction}",
            lambda a, t: functional.cross_entropy(a, t, reduction=reduction),
            x,
            target,
        )
    elif kind == "bce":
        p.step(
            kind,
            lambda a: functional.binary_cross_entropy_with_logits(a, (a.detach() > 0).to(a.dtype)),
            x,
        )
    elif kind == "glu" and last % 2 == 0:
        p.step(kind, lambda a: functional.glu(a, -1), x)
    elif kind == "pad":
        p.step(kind, lambda a: functional.pad(a, (1, 2)), x)


def places(p: Program, sizes: list[int], below: int) -> tuple[Any, Any]:
    """Return integers below a number."""
    values = p.torch.randint(0, below, sizes)
    return values, p.dt.distribute_tensor(values, p.mesh, p.placements(len(sizes)))


@steps(5)
def _moved(p: Program) -> None:
    x = p.pick()
    torch, sizes = p.torch, list(x[0].shape)
    if not sizes:
        return
    rank, d = len(sizes), p.rng.randrange(len(sizes))
    n = p.rng.choice((1, 2, 3, 5))
    index = places(p, [n], sizes[d])
    kinds: dict[str, Callable[..., Any]] = {
        "index_select": lambda a, i: a.index_select(d, i), "flip": lambda a, i: a.flip(d),
        "roll": lambda a, i: a.roll(1, d),
        "cat": lambda a, i: torch.cat([a, a * 2], d), "stack": lambda a, i: torch.stack([a, a.neg()], d),
        "tril": lambda a, i: a.tril(), "sort": lambda a, i: a.sort(d)[0],
        "repeat": lambda a, i: a.repeat(*[2] * rank),
        "topk": lambda a, i: a.topk(1, d)[0], "gather": lambda a, i: a.sigmoid().gather(0, (a * 0).long()),
        "take_along": lambda a, i: torch.take_along_dim(a, a.argmax(d, keepdim=True), d),
        "triu": lambda a, i: a.triu(1),
        "unbind": lambda a, i: a.unbind(d), "repeat_interleave": lambda a, i: a.repeat_interleave(2, d),
        "one_hot": lambda a, i: torch.nn.functional.one_hot(i, sizes[d]).to(a.dtype),
        "index": lambda a, i: a[i % sizes[0]],
        "tensor_split": lambda a, i: a.tensor_split(2, d),
        "meshgrid": lambda a, i: torch.outer(a.flatten(), a.flatten()),
        "index_add": lambda a, i: a.index_add(d, i, a.index_select(d, i)),
        "scatter": lambda a, i: a.scatter(0, (a * 0).long(), 1.0),
        "new": lambda a, i: a + a.new_zeros(sizes), "like": lambda a, i: a * torch.rand_like(a),
        "cross": lambda a, i: torch.ones_like(a) * a,
    }  # fmt: skip
    name = p.rng.choice(list(kinds))
    p.step(f"{name} {d}", kinds[name], x, index)


@steps(1)
def _embedded(p: Program) -> None:
    index = places(p, p.sizes(p.rng.choice((1, 2))), 5)
    padding = p.rng.choice((None, 1))
    p.step(
        "embedding",
        lambda i, w: p.torch.nn.functional.embedding(i, w, padding),
        index,
        p.leaf([5, 4]),
    )


@steps(5)
def _around(p: Program) -> None:
    """Modes and hooks around a step."""
    torch, x = p.torch, p.pick()
    if not x[0].dim():
        return
    k = x[0].shape[-1]
    kind = p.rng.choice(
        (
            "no_grad",
            "autocast",
            "checkpoint",
            "hook",
            "retain",
            "detach",
            "vmap",
            "copy",
            "function",
        )
    )
    w = p.leaf([k, 4], 1 / math.sqrt(k))
    if kind == "no_grad":
        with torch.no_grad():
            p.step(kind, lambda a, b: (a @ b).relu(), x, w)
    elif kind == "autocast":
        p.rounding = 0.06

        def cast(a: Any, b: Any) -> Any:
            """Multiply in 16 bits."""
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return a.float() @ b.float()

        p.step(kind, cast, x, w)
    elif kind == "checkpoint":
        from torch.utils.checkpoint import checkpoint

        drops = p.rng.random() < 0.5

        def inner(a: Any, b: Any) -> Any:
            """Compute what is computed again."""
            found = (a @ b).tanh()
            return torch.nn.functional.dropout(found, 0.3) if drops else found

        p.step(f"{kind} {drops}", lambda a, b: checkpoint(inner, a, b, use_reentrant=False), x, w)
    elif kind == "hook":
        if p.step("hooked", lambda a, b: a @ b, x, w) and p.pool[-1][0].requires_grad:
            both = p.pool[-1]
            found: tuple[list[Any], list[Any]] = ([], [])
            for side, seen in zip(both, found, strict=True):
                side.register_hook(lambda g, seen=seen: (seen.append(g), g * 1.5)[1])
            p.hooked.append(found)
    elif kind == "retain":
        if p.step("kept", lambda a, b: (a @ b).mean(0), x, w) and p.pool[-1][0].requires_grad:
            p.pool[-1][0].retain_grad()
            p.pool[-1][1].retain_grad()
            p.kept.append(p.pool[-1])
    elif kind == "detach":
        p.step(kind, lambda a: a.detach() * a, x)
    elif kind == "copy":
        p.step(kind, lambda a: copy.deepcopy(a.detach()) * 2, x)
        p.step("pickle", lambda a: pickle.loads(pickle.dumps(a.detach())) * 2, x)
    elif kind == "function":
        p.step(kind, square(torch), x)


def run(torch: Any, meshes: list[Any], seed: int) -> str:
    """Run one program; return what went wrong, with what it did."""
    p = Program(torch, meshes, seed)
    try:
        for _ in range(p.rng.choice((1, 2, 3))):
            p.pool.append(p.leaf(p.sizes(p.rng.choice((1, 2, 2, 3)))))
        every = [f for weight, f in STEPS for _ in range(weight)]
        for _ in range(p.rng.choice((2, 4, 6, 10))):
            p.rng.choice(every)(p)
        p.compare("at the end", *p.pool)
        p.gradients()
        for w, d in p.kept:
            if (w.grad is None) != (d.grad is None):
                raise Differs("a gradient that was kept")
            if w.grad is not None:
                p.close("a gradient that was kept", w.grad, d.grad.full_tensor())
        for found in p.hooked:
            if len(found[0]) != len(found[1]):
                raise Differs(f"a hook was called {len(found[1])} times, not {len(found[0])}")
            for a, b in zip(*found, strict=True):
                p.close("what a hook saw", a, b.full_tensor())
    except Differs as error:
        return "\n".join([str(error), *[f"    {s}" for s in p.said]])
    except Exception as error:
        if any(text in str(error) for text in REFUSED):
            return ""
        where = traceback.format_exc(limit=-6)
        return "\n".join([f"{type(error).__name__}: {error}", *[f"    {s}" for s in p.said], where])
    return ""


def serve(
    folder: str, library: str, rank: int, ranks: int, seeds: list[int], kind: str, device: str
) -> None:
    """Run programs as one rank."""
    if library == "webtorch":
        import webtorch

        webtorch.install_as_torch()
    import datetime

    import torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )  # fmt: skip
    meshes = [init_device_mesh("cpu", shape) for shape in MESHES[ranks] if kind == "tensors"]
    failed: dict[int, str] = {}
    for seed in seeds:
        Path(folder, f"{rank}.now").write_text(str(seed))
        found = (
            training.run(torch, device, seed) if kind == "training" else run(torch, meshes, seed)
        )
        # A fault of one process alone leaves the others waiting: all go on together.
        everyone: list[Any] = [None] * ranks
        torch.distributed.all_gather_object(everyone, found)
        if any(everyone):
            failed[seed] = found or "right here, but not elsewhere: " + next(
                x for x in everyone if x
            )
            Path(folder, f"{rank}.json").write_text(json.dumps(failed))
    Path(folder, f"{rank}.json").write_text(json.dumps(failed))
    torch.distributed.destroy_process_group()


def faults(
    library: str, ranks: int, seeds: list[int], kind: str = "tensors", device: str = "cpu",
    timeout: float = 550,
) -> dict[str, str]:  # fmt: skip
    """Return what went wrong in programs of these seeds, by seed."""
    folder = mkdtemp()
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.distributed.programs",
        "--serve",
        folder,
        "--library",
        library,
    ]
    words += ["--ranks", str(ranks), "--seeds", json.dumps(seeds)]
    words += ["--kind", kind, "--device", device]
    started = [
        subprocess.Popen([*words, "--rank", str(r)], stderr=subprocess.PIPE, text=True)
        for r in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=timeout)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    failed: dict[str, str] = {}
    for r, process in enumerate(started):
        file = Path(folder, f"{r}.json")
        for seed, text in (json.loads(file.read_text()) if file.exists() else {}).items():
            failed.setdefault(seed, f"rank {r}: {text}")
        if process.returncode:
            failed[f"rank {r}"] = (
                f"ended in {Path(folder, f'{r}.now').read_text()}: {said[r][-6000:]}"
            )
    return failed


def main() -> None:
    """Run programs, and print what went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--library", default="webtorch")
    parser.add_argument("--kind", default="tensors", choices=("tensors", "training"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seeds", default="")
    parser.add_argument("--serve", default="")
    given = parser.parse_args()
    if given.serve:
        seeds = json.loads(given.seeds)
        serve(given.serve, given.library, given.rank, given.ranks, seeds, given.kind, given.device)
        return
    seeds = given.only or list(range(given.seed, given.seed + given.count))
    failed = faults(given.library, given.ranks, seeds, given.kind, given.device)
    for seed, text in failed.items():
        sys.stdout.write(f"--- {seed} (on {given.ranks}): {text}\n")
    sys.stdout.write(f"{len(failed)} of {len(seeds)} programs differ\n")


if __name__ == "__main__":
    main()
