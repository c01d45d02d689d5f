"""Single operations on a real GPU: products, convolutions, attention, and the usual ones on a large
matrix.

The first time is end to end, many calls enqueued in a row; the note has the time on the device
alone and what it means in TFLOP/s or TB/s. PyTorch's time is of many enqueued calls too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import webtorch
from benchmarks.gpu.device import OURS, device_seconds, enqueued, peer_device
from benchmarks.harness import Row, main

# Work over `t`, which is webtorch or PyTorch, on tensors.
Op = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One operation: what it does, on which shapes, and what it must do at least."""

    name: str
    op: Op
    shapes: list[tuple[int, ...]]
    flops: float = 0.0
    nbytes: float = 0.0
    dtype: torch.dtype = torch.float32


def _products(quick: bool) -> list[Work]:
    sizes = (64,) if quick else (256, 512, 1024, 2048, 4096, 8192)
    half = (64,) if quick else (4096, 8192)
    return [
        Work(f"matmul {n}, {name}", lambda t, a, b: a @ b, [(n, n), (n, n)], 2.0 * n**3, dtype=d)
        for d, name, all_sizes in ((torch.float32, "f32", sizes), (torch.float16, "f16", half))
        for n in all_sizes
    ]


def _gradient(t: Any, op: Op, inputs: tuple[Any, ...], g: Any, which: tuple[int, ...]) -> Any:
    """Return the gradients of op(*inputs), with cotangent `g`, of the inputs named in `which`."""
    leaves = [x.detach().requires_grad_(i in which) for i, x in enumerate(inputs)]
    found = t.autograd.grad(op(*leaves), [leaves[i] for i in which], g)
    return found[0] if len(which) == 1 else t.cat([x.flatten() for x in found])


def _convolutions(quick: bool) -> list[Work]:
    found = []
    for side, k, dtype in (
        (56, 3, torch.float32), (28, 1, torch.float32), (56, 3, torch.float16), (28, 1, torch.float16)
    ):  # fmt: skip
        n, c, o, s = (
            (2, 8, 8, 6) if quick else (64, 128, 128, side) if k == 3 else (64, 256, 512, side)
        )
        x, w, y = (n, c, s, s), (o, c, k, k), (n, o, s, s)
        flops = 2.0 * n * o * c * k * k * s * s

        def conv(t: Any, pad: int = k // 2) -> Op:
            return lambda image, weight: t.nn.functional.conv2d(image, weight, padding=pad)

        name = f"conv2d {k}x{k} {n}x{c}x{s}x{s} to {o}"
        name += ", f16" if dtype is torch.float16 else ""
        found += [
            Work(
                f"{name}, forward",
                lambda t, x, w, f=conv: f(t)(x, w),
                [x, w],
                flops,
                dtype=dtype,
            ),
            Work(
                f"{name}, gradient of input",
                lambda t, x, w, g, f=conv: _gradient(t, f(t), (x, w), g, (0,)),
                [x, w, y],
                flops,
                dtype=dtype,
            ),
            Work(
                f"{name}, gradient of weight",
                lambda t, x, w, g, f=conv: _gradient(t, f(t), (x, w), g, (1,)),
                [x, w, y],
                flops,
                dtype=dtype,
            ),
        ]
    return found


def _attention(quick: bool) -> list[Work]:
    found = []
    for length, dtype, name in ((1024, torch.float32, "f32"), (2048, torch.float16, "f16")):
        shape = (1, 2, 16, 8) if quick else (8, 12, length, 64)

        def attend(t: Any) -> Op:
            return lambda q, k, v: t.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True
            )

        # Forward two products, backward five; a causal mask leaves half of them.
        flops = 7.0 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]
        found.append(
            Work(
                f"attention {name} {shape}, causal, forward and backward",
                lambda t, q, k, v, g, f=attend: _gradient(t, f(t), (q, k, v), g, (0, 1, 2)),
                [shape] * 4,
                flops,
                dtype=dtype,
            )
        )
    return found


def _large(quick: bool) -> list[Work]:
    rows, columns = (64, 128) if quick else (8192, 4096)
    x = [(rows, columns)]
    n = 4.0 * rows * columns
    flat = 1 << (12 if quick else 28)
    ops: list[tuple[str, Op, float]] = [
        ("softmax(-1)", lambda t, x: t.softmax(x, -1), 2 * n),
        ("layer_norm", lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]), 2 * n),
        ("sum(-1)", lambda t, x: x.sum(-1), n),
        ("sum(0)", lambda t, x: x.sum(0), n),
        ("sum()", lambda t, x: x.sum(), n),
        ("gelu", lambda t, x: t.nn.functional.gelu(x), 2 * n),
        ("transposed copy", lambda t, x: x.t().contiguous(), 2 * n),
        ("cumsum(-1)", lambda t, x: x.cumsum(-1), 2 * n),
        ("sort(-1)", lambda t, x: t.sort(x, -1)[0], 2 * n),
    ]
    found = [Work("a + b", lambda t, a, b: a + b, [(flat,), (flat,)], nbytes=12.0 * flat)]
    return found + [Work(f"{k} of {rows}x{columns}", op, x, nbytes=nbytes) for k, op, nbytes in ops]


def _far(ours: Any, peer: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    theirs = peer.cpu()
    mine = torch.from_numpy(ours.cpu().numpy()).float()
    return float((mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def one(work: Work, quick: bool = False) -> Row:
    """Measure one operation; a failure is a row that says so."""
    name, op, flops, nbytes = work.name, work.op, work.flops, work.nbytes
    peer = peer_device()
    generator = torch.Generator().manual_seed(0)
    # Drawn small and repeated: numbers for gigabytes take longer to draw than to compute with.
    given = []
    for shape in work.shapes:
        few = torch.randn(min(1 << 22, _count(shape)), generator=generator).to(work.dtype)
        given.append(few.repeat(-(-_count(shape) // few.numel()))[: _count(shape)].reshape(shape))
    mine = [webtorch.tensor(t.numpy(), device=OURS) for t in given]
    compiled = webtorch.compile(lambda *x: op(webtorch, *x))
    for _ in range(2):
        result = compiled(*mine)
    if result.numel() <= 1 << 26:
        single = [t.float() if peer is None else t.to(peer).float() for t in given]
        difference = _far(result, op(torch, *single))
        if not difference < (1e-4 if work.dtype is torch.float32 else 1e-2):
            raise AssertionError(f"{name}: differs from PyTorch by {difference:.1e}")
        del single
    del result
    span = (0.01, 2) if quick else (0.15, 5)
    ours = enqueued(lambda: webtorch.realize(op(webtorch, *mine)), *span)
    alone = device_seconds(compiled.latest().executable, *((0.002, 0.0) if quick else ()))
    row = Row(name, *ours, figures={"device_seconds": alone})
    if peer is not None:
        theirs = [t.to(peer) for t in given]
        row.peer, row.peer_median = enqueued(lambda: op(torch, *theirs), *span)
        row.figures["device_ratio"] = alone / row.peer
    speed = (
        f"{flops / alone * 1e-12:.1f} TFLOP/s" if flops else f"{nbytes / alone * 1e-12:.2f} TB/s"
    )
    row.note = f"device {alone * 1e6:.0f} us = {speed}"
    if row.peer:
        row.note += f", ratio {alone / row.peer:.2f}"
    return row


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def measure(quick: bool = False) -> list[Row]:
    """Return one row for each operation."""
    rows: list[Row] = []
    for work in _products(quick) + _convolutions(quick) + _attention(quick) + _large(quick):
        try:
            rows.append(one(work, quick))
        except Exception as error:
            rows.append(Row(work.name, float("nan"), float("nan"), note=f"FAILED: {error!s:.300}"))
        webtorch.webgpu.empty_cache()
    return rows


if __name__ == "__main__":
    main(__doc__ or "", measure)
