"""Copies between a card's memory and memory of the host that it reads and writes where it lies: by a kernel and by a
command, alone and beside products that do not read them. Dawn alone shares memory so.

    python -m benchmarks.gpu.copies [--megabytes 100] [--side 4096] [--products 12]
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import time
from collections.abc import Callable
from typing import Any

import webtorch
from webtorch.distributed.shared import Exchange
from webtorch.ir.dtype import float32
from webtorch.tensors.device import resolve

_TURNS = 7


def _timed(work: Callable[[], object], wait: Callable[[], object]) -> str:
    """Return in words what turns take until all is done."""
    times = []
    for _ in range(_TURNS + 2):
        wait()
        started = time.perf_counter()
        work()
        wait()
        times.append(1e3 * (time.perf_counter() - started))
    return f"{statistics.median(times[2:]):.2f} ms (at least {min(times[2:]):.2f})"


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--products", type=int, default=12)
    options = parser.parse_args()
    runtime: Any = resolve("webgpu")
    backend, count = runtime.backend, options.megabytes * 250_000
    size = -(-4 * count // mmap.PAGESIZE) * mmap.PAGESIZE
    block = backend.on_host(memoryview(mmap.mmap(-1, size)))
    if block is None:
        print("this device does not share memory with the host")
        return
    print(backend.description())
    exchange = Exchange(0, 1, backend, 1.0)
    there, here = block.buffer(float32, count), backend.allocate(float32, count)
    kernel = exchange._program(None, float32, count)

    def by_command(source: Any, target: Any) -> None:
        """Enqueue a copy by a command."""
        native = backend.native
        with backend.lock:
            backend.settle()
            native.capture()
            encoder = native.create_encoder()
            native.copy(encoder, source.block.pointer, 0, target.block.pointer, 0, 4 * count)
            commands = native.finish(encoder)
            backend.submit(commands, native.captured(), "copy")

    w = webtorch.randn(options.side, options.side, device="webgpu") / options.side
    webtorch.realize(w)
    state = [w]

    def compute(part: int = 1) -> None:
        """Enqueue products, each of the one before it, and element by element work behind each."""
        y = state[0]
        for _ in range(options.products // part):
            y = (y @ w).sigmoid()
        webtorch.realize(y)
        state[0] = y

    def beside(copies: Callable[[], object]) -> Callable[[], None]:
        """Return what enqueues half the products, copies, and the other half."""

        def work() -> None:
            compute(2)
            copies()
            compute(2)

        return work

    def both() -> None:
        """Enqueue one each way."""
        by_command(here, there)
        by_command(there, here)

    ways: dict[str, Callable[[], object]] = {
        "down, kernel": lambda: kernel.run((here, there)),
        "up, kernel": lambda: kernel.run((there, here)),
        "down, command": lambda: by_command(here, there),
        "up, command": lambda: by_command(there, here),
        "both, command": both,
    }
    wait = backend.synchronize
    print(f"products alone: {_timed(compute, wait)}")
    print(f"in two halves: {_timed(beside(lambda: None), wait)}")
    for name, work in ways.items():
        print(
            f"{name}: {_timed(work, wait)}, beside products {_timed(beside(work), wait)}",
            flush=True,
        )
    parts = [webtorch.ones(count // 4, device="cpu") for _ in range(4)]
    webtorch.realize(*parts)
    threads = webtorch.get_num_threads()

    def add() -> None:
        """Add up a quarter of four."""
        webtorch.realize(parts[0] + parts[1] + parts[2] + parts[3])

    print(f"the host adds a quarter of four, {threads} threads: {_timed(add, wait)}")


if __name__ == "__main__":
    main()
