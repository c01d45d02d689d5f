"""Which tile of the product kernel is fastest, for products of the sizes that training meets.

Every candidate is compared with PyTorch before it is timed. The launch rules in
webtorch/lower/templates/gemm.py follow these figures.
"""

from __future__ import annotations

from typing import Any

import torch

import webtorch
from benchmarks.gpu.device import OURS, describe, device_seconds
from benchmarks.harness import Row, options, write
from webtorch.lower.templates.gemm import product_passes
from webtorch.lower.templates.matmul import product
from webtorch.lower.templates.tuning import TILES, Tile
from webtorch.runtime.backends import get_backend

CANDIDATES = (
    *TILES,
    Tile(128, 256, 16, 8, 16),
    Tile(128, 128, 16, 16, 8),
    Tile(64, 256, 16, 8, 16),
    Tile(64, 128, 16, 8, 16),
    Tile(128, 128, 8, 8, 16),
    Tile(64, 64, 32, 8, 8),
)
# m, n, k, and how the operands lie: "nn", or one of them transposed.
SHAPES = (
    (8192, 384, 1536, "nt"),
    (8192, 1536, 384, "nt"),
    (1536, 384, 8192, "tn"),
    (1152, 384, 8192, "tn"),
    (1024, 1024, 1024, "nn"),
    (512, 512, 512, "nn"),
    (512, 1024, 1024, "nt"),
    (2048, 2048, 2048, "nn"),
)


def measure(shape: tuple[int, int, int, str], candidates: tuple[Tile, ...]) -> list[Row]:
    """Return a row for each candidate and split of k."""
    m, n, k, layout = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn((k, m) if layout[0] == "t" else (m, k), generator=generator)
    b = torch.randn((n, k) if layout[1] == "t" else (k, n), generator=generator)

    def op(a: Any, b: Any) -> Any:
        return (a.t() if layout[0] == "t" else a) @ (b.t() if layout[1] == "t" else b)

    device: Any = get_backend("webgpu", 0)
    mine = [webtorch.tensor(x.numpy(), device=OURS) for x in (a, b)]
    compiled = webtorch.compile(op)
    compiled(*mine)
    compiled(*mine)
    captured = compiled.latest()
    inputs = [mine[i]._storage.node.buffer for i in captured.sources]
    (routine,) = captured.executable.program.routines
    expected = op(a, b)
    scale = float(expected.abs().max())
    rows: list[Row] = []
    for tile in candidates:
        groups = -(-m // tile.rows) * -(-n // tile.columns)
        for split in sorted({1, -(-264 // groups)}):
            if split > max(4, k // 256):
                continue
            passes = product_passes(product(routine), device.limits, tile, split)
            device._rendered[routine] = passes
            name = (
                f"{m}x{n}x{k} {layout} {tile.rows}x{tile.columns}x{tile.depth} of "
                f"{tile.own_rows}x{tile.own_columns}, split {split}"
            )
            try:
                executable = device.compile(captured.executable.program)
                (out,) = executable.run(inputs, captured.args)
                found = torch.frombuffer(bytearray(device.download(out)), dtype=torch.float32)
                far = float((found.reshape(m, n) - expected).abs().max()) / scale
                if not far < 1e-4:
                    raise AssertionError(f"wrong by {far:.1e}")
                seconds = device_seconds(executable, 0.005)
                speed = f"{2 * m * n * k / seconds * 1e-12:.1f} TFLOP/s"
                rows.append(Row(name, seconds, seconds, note=speed))
            except Exception as error:
                failed = f"FAILED: {error!s:.200}"
                rows.append(Row(name, float("nan"), float("nan"), note=failed))
            finally:
                device._rendered.clear()
    return sorted(rows, key=lambda r: r.ours)


def run(argv: list[str] | None = None) -> list[Row]:
    """Measure every shape, the fastest tiles first."""
    chosen = options(__doc__ or "", argv)
    print(describe(), flush=True)
    found: list[Row] = []
    shapes = ((64, 64, 64, "nt"),) if chosen.quick else SHAPES
    for shape in shapes:
        rows = measure(shape, CANDIDATES[-2:] if chosen.quick else CANDIDATES)
        found += rows
        for row in rows[:9]:
            print(f"{row.ours * 1e6:9.1f} us  {row.note:16} {row.name}", flush=True)
        write(chosen.out, found)
    return found


if __name__ == "__main__":
    run()
