"""`webtorch tune`: measure which kernels are fastest for matrix products on this adapter."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from webtorch.errors import DeviceError
from webtorch.runtime.backends import get_backend
from webtorch.runtime.backends.webgpu import WebGPUBackend
from webtorch.runtime.backends.webgpu.tuner import matmul_routine, table_path, tune


def main(options: argparse.Namespace, console: Console) -> int:
    """Measure tiles and keep the best. Returns the exit status."""
    kind, _, index = options.device.partition(":")
    device = get_backend(kind, int(index or 0))
    if not isinstance(device, WebGPUBackend):
        raise DeviceError(f"tune: {options.device!r} has no tiles to choose; use --device webgpu")
    sizes = (512, 1024, 2048) if device.limits.is_gpu else (128, 256)
    shapes = [(*shape, "nn") for shape in options.shapes] or [
        (size, size, size, layout) for size in sizes for layout in ("nn", "nt", "tn")
    ]
    table = Table("product", "class", "as shipped", "fastest", "gain", title=device.description())
    wrong = 0
    for m, k, n, layout in shapes:
        result = tune(device, matmul_routine(m, n, k, layout), options.seconds)
        if result is None:
            console.print(f"{m}x{k}x{n}: nothing to choose", highlight=False)
            continue
        wrong += sum(bool(x.problem) for x in result.measured)
        best, default = result.best, result.default
        row = [f"{m}x{k}x{n} {layout}", result.name]
        if best is None:
            row += [default.problem, "none is right", ""]
        else:
            flops = 2e-9 * m * n * k
            row += [f"{flops / x.seconds:.1f} GFLOP/s" for x in (default, best)]
            row.append(f"{default.seconds / best.seconds:.2f}x")
        table.add_row(*row)
    console.print(table)
    if wrong:
        console.print(
            f"{wrong} kernels were refused: their results differ from the generic kernel's."
        )
    console.print(f"kept in {table_path()}", highlight=False, soft_wrap=True)
    return 0
