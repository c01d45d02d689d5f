"""Single operations on a real GPU: products of matrices, and the usual ones on a large matrix.

The first time is end to end, many calls enqueued in a row; the note has the time on the device
alone and what it means in TFLOP/s or TB/s. PyTorch's time is of many enqueued calls too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import webtorch
from benchmarks.gpu.device import OURS, device_seconds, enqueued, peer_device
from benchmarks.harness import Row, main

# Work over `t`, which is webtorch or PyTorch, on tensors; what it must do at least.
Op = Callable[..., Any]


def _products(quick: bool) -> list[tuple[str, Op, list[tuple[int, ...]], float, float]]:
    sizes = (64,) if quick else (256, 512, 1024, 2048, 4096)
    return [
        (f"matmul {n}", lambda t, a, b: a @ b, [(n, n), (n, n)], 2.0 * n**3, 12.0 * n * n)
        for n in sizes
    ]


def _large(quick: bool) -> list[tuple[str, Op, list[tuple[int, ...]], float, float]]:
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
    found = [("a + b", (lambda t, a, b: a + b), [(flat,), (flat,)], 0.0, 12.0 * flat)]
    return found + [(f"{k} of {rows}x{columns}", op, x, 0.0, nbytes) for k, op, nbytes in ops]


def _far(ours: Any, peer: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    theirs = peer.cpu()
    mine = torch.from_numpy(ours.cpu().numpy())
    return float((mine - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def one(name: str, op: Op, shapes: list[tuple[int, ...]], flops: float, nbytes: float) -> Row:
    """Measure one operation; a failure is a row that says so."""
    peer = peer_device()
    generator = torch.Generator().manual_seed(0)
    # Drawn small and repeated: numbers for gigabytes take longer to draw than to compute with.
    given = []
    for shape in shapes:
        few = torch.randn(min(1 << 22, _count(shape)), generator=generator)
        given.append(few.repeat(-(-_count(shape) // few.numel()))[: _count(shape)].reshape(shape))
    mine = [webtorch.tensor(t.numpy(), device=OURS) for t in given]
    compiled = webtorch.compile(lambda *x: op(webtorch, *x))
    for _ in range(2):
        result = compiled(*mine)
    if result.numel() <= 1 << 26:
        difference = _far(result, op(torch, *given))
        if not difference < 1e-4:
            raise AssertionError(f"{name}: differs from PyTorch by {difference:.1e}")
    del result
    ours = enqueued(lambda: webtorch.realize(op(webtorch, *mine)))
    alone = device_seconds(compiled.latest().executable)
    row = Row(name, *ours, figures={"device_seconds": alone})
    if peer is not None:
        theirs = [t.to(peer) for t in given]
        row.peer, row.peer_median = enqueued(lambda: op(torch, *theirs))
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
    for work in _products(quick) + _large(quick):
        try:
            rows.append(one(*work))
        except Exception as error:
            rows.append(Row(work[0], float("nan"), float("nan"), note=f"FAILED: {error!s:.300}"))
        webtorch.webgpu.empty_cache()
    return rows


if __name__ == "__main__":
    main(__doc__ or "", measure)
