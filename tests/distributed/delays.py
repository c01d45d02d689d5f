"""A random program of collectives, whose processes come late to each by random times: what has been waited for is
written, kept, viewed or let go at once. Each process computes by itself, in NumPy, what all of them should have.

    torchrun --nproc_per_node=2 -m tests.distributed.delays env webtorch cpu 2000 0

Where processes meet (a file), the library, the device, the number of rounds and seeds. Numbers are integers below 97,
so sums are exact.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import numpy as np

# The first goes through shared memory, in float32; the others are too small.
SIZES = (4352, 24, 240)
MODULUS = 97


class Value:
    """A tensor, the arrays that it should hold on all ranks, and what it waits for."""

    def __init__(self, tensor: Any, arrays: list[np.ndarray[Any, Any]]) -> None:
        self.tensor, self.arrays = tensor, arrays


class Program:
    """Random calls, the same on each rank."""

    def __init__(self, torch: Any, device: str, seed: int) -> None:
        self.torch, self.dist, self.device = torch, torch.distributed, device
        self.rank, self.ranks = self.dist.get_rank(), self.dist.get_world_size()
        # What all do, and how late this one is.
        self.random, self.late = random.Random(seed), random.Random(f"{seed} {self.rank}")
        self.elements = SIZES[seed % len(SIZES)] * self.ranks
        self.values = [self.new() for _ in range(4)]
        # The works under way, with the values that they read, the values that they write and what these become.
        self.works: list[
            tuple[Any, list[Value], list[tuple[Value, list[np.ndarray[Any, Any]]]]]
        ] = []
        self.done: list[str] = []

    def new(self) -> Value:
        """Return a new value."""
        generator = np.random.default_rng(self.random.randrange(1 << 30))
        arrays = [
            generator.integers(0, MODULUS, self.elements).astype(np.float32)
            for _ in range(self.ranks)
        ]
        x = self.torch.tensor(arrays[self.rank].tolist(), device=self.device)
        return Value(x, arrays)

    def free(self) -> list[int]:
        """Return the numbers of the values that no work reads or writes."""
        held = {id(v) for _, read, written in self.works for v in (*read, *(w for w, _ in written))}
        return [n for n, v in enumerate(self.values) if id(v) not in held]

    def write(self) -> None:
        """Write a value in place, its clone, or a view of it; or put another one in its place."""
        free = self.free()
        if not free:
            return
        n = self.random.choice(free)
        value, kind = self.values[n], self.random.randrange(7)
        x, arrays, half = value.tensor, value.arrays, self.elements // 2
        if kind == 0:
            x.add_(3).remainder_(MODULUS)
            value.arrays = [(a + 3) % MODULUS for a in arrays]
        elif kind == 1:
            x[:half].mul_(2).remainder_(MODULUS)
            value.arrays = [np.concatenate([a[:half] * 2 % MODULUS, a[half:]]) for a in arrays]
        elif kind == 2:
            x.zero_()
            value.arrays = [a * 0 for a in arrays]
        elif kind == 3:
            self.values[n] = self.new()
        elif kind == 4:
            other = self.values[self.random.choice(free)]
            x.copy_(other.tensor)
            value.arrays = list(other.arrays)
        elif kind == 5:
            self.values[self.random.choice(free)] = Value(x.clone(), list(arrays))
        else:
            x[half:] = x[:half] + 1
            value.arrays = [np.concatenate([a[:half], a[:half] + 1]) for a in arrays]
            x.remainder_(MODULUS)
            value.arrays = [a % MODULUS for a in value.arrays]
        self.done.append(f"write {n} {kind}")

    def send(self) -> None:
        """Begin a collective."""
        free = self.free()
        if not free:
            return
        value, kind = self.values[self.random.choice(free)], self.random.randrange(7)
        x, arrays, ranks, part = (
            value.tensor, value.arrays, self.ranks, self.elements // self.ranks,
        )  # fmt: skip
        out = self.values[self.random.choice(free)]
        ends, dist = list(out.arrays), self.dist
        if kind == 0 or (kind in (3, 4) and out is value):
            kind, out, ends = 0, value, [np.sum(arrays, 0)] * ranks
            work = dist.all_reduce(x, async_op=True)
        elif kind == 1:
            out, root = value, self.random.randrange(ranks)
            ends = [arrays[root]] * ranks
            work = dist.broadcast(x, root, async_op=True)
        elif kind == 2:
            out, half = value, self.elements // 2
            total = np.sum(arrays, 0)
            ends = [np.concatenate([a[:half], total[half:]]) for a in arrays]
            work = dist.all_reduce(x[half:], async_op=True)
        elif kind == 3:
            ends = [np.concatenate([a[:part] for a in arrays])] * ranks
            work = dist.all_gather_into_tensor(out.tensor, x[:part], async_op=True)
        elif kind == 4:
            # One begins where memory does, the other one does not.
            total = np.sum(arrays, 0)
            ends = [
                np.concatenate([a[:-part], total[r * part : (r + 1) * part]])
                for r, a in enumerate(out.arrays)
            ]
            work = dist.reduce_scatter_tensor(out.tensor[-part:], x, async_op=True)
        elif kind == 5:
            whole = Value(self.torch.zeros(self.elements * ranks, device=self.device), [])
            work = dist.all_gather_into_tensor(whole.tensor, x, async_op=True)
            out, ends = whole, [np.concatenate(arrays)] * ranks
        else:
            made = Value(self.torch.zeros(part, device=self.device), [])
            work = dist.reduce_scatter_tensor(made.tensor, x, async_op=True)
            total = np.sum(arrays, 0)
            out, ends = made, [total[r * part : (r + 1) * part] for r in range(ranks)]
        self.works.append((work, [value], [(out, ends)]))
        self.done.append(f"send {kind}")

    def wait(self) -> None:
        """Wait for one that is under way, and use what it has written."""
        if not self.works:
            return
        work, read, written = self.works.pop(self.random.randrange(len(self.works)))
        work.wait()
        for value, arrays in written:
            value.arrays = arrays
            if value not in self.values:
                # What has been read is written at once.
                for given in read:
                    given.tensor.sub_(1).remainder_(MODULUS)
                    given.arrays = [(a - 1) % MODULUS for a in given.arrays]
                    if self.random.random() < 0.5:
                        given.tensor.sum().item()
                self.check(value)
            value.tensor.remainder_(MODULUS)
            value.arrays = [a % MODULUS for a in value.arrays]
        self.done.append("wait")

    def check(self, value: Value) -> None:
        """Compare a value with what it should be."""
        found = np.array(value.tensor.tolist(), np.float32)
        wrong = np.flatnonzero(found != value.arrays[self.rank])
        if wrong.size:
            raise AssertionError(
                f"rank {self.rank}: {wrong.size} of {found.size} elements from {wrong[0]} on are "
                f"{found[wrong[:4]]}, not {value.arrays[self.rank][wrong[:4]]}, after {self.done[-20:]}"
            )

    def run(self, rounds: int) -> None:
        """Run so many rounds."""
        for _ in range(rounds):
            if self.late.random() < 0.15:
                time.sleep(self.late.random() * 0.004)
            chosen = self.random.random()
            if chosen < 0.4:
                self.write()
            elif chosen < 0.65 and len(self.works) < 3:
                self.send()
            elif chosen < 0.9:
                self.wait()
            else:
                free = self.free()
                if free:
                    self.check(self.values[self.random.choice(free)])
        while self.works:
            self.wait()
        for value in self.values:
            self.check(value)


def main(store: str, library: str, device: str, rounds: str, *seeds: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch as torch
    else:
        import torch
    dist: Any = torch.distributed
    dist.init_process_group(
        "gloo",
        init_method="env://" if store == "env" else f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    for seed in seeds:
        Program(torch, device, int(seed)).run(int(rounds))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
