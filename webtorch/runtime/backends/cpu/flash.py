"""Attention of float32 on the CPU, by the machine code of `flashcode`: what fits, and how the work is cut.

A thread takes a block of queries after the other; in backward, a head of keys after the other, for
which it computes scores once and all three gradients, or, where there are fewer heads than threads, a
block of queries or some keys, of which it computes one side each. (Dao et al., 2022.)

Imports floors 0-2 and modules beside it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import bool_, float32
from webtorch.ir.kernel import Attention
from webtorch.runtime.backends import philox
from webtorch.runtime.backends.cpu import flashcode, flashparts, jit
from webtorch.runtime.backends.cpu.flashcode import KEYS, FlashWriter, name_of
from webtorch.runtime.backends.cpu.flashparts import EXP, Shape, shape_for
from webtorch.runtime.backends.cpu.threads import get_num_threads
from webtorch.runtime.backends.cpu.vectorcode import (
    HERE,
    Addressed,
    Functions,
    Target,
    source_digest,
)

# Keys whose gradients a thread computes by themselves, where there are fewer heads than threads.
_KEYS_ALONE = 256
# The counter of blocks that threads have taken, before scratch memory: a line of the cache.
_COUNTER = 16


@cache
def _functions(shape: Shape, fused: bool, position_bits: int) -> Functions:
    sources = " ".join(source_digest(m.__file__) for m in (flashcode, flashparts, philox))
    key = f"{shape} {fused} {position_bits} {sources} {ex.show(EXP)}"
    return Functions(
        lambda: FlashWriter(shape, fused, position_bits), f"wt_flash{shape.lanes}_", key
    )


# How much of the processor's speed tiles of 1, 2, .. vectors reach.
_SPEED = (0.6, 0.9, 1.0, 1.0)


class Plan:
    """An attention, or its gradients, for a target: what does not change from run to run."""

    def __init__(self, r: Attention, target: Target = HERE) -> None:
        r = _heads_as_queries(r)
        self.r, self.target = r, target
        features, fused = target.processor
        shape = shape_for(features)
        self.code = _functions(shape, fused, target.position_bits)
        lanes = shape.lanes
        most = len(shape.rows)

        def work(vectors: int) -> float:
            """Return the cost of blocks of so many vectors of rows, in a unit of its own."""
            block = vectors * lanes
            firsts = range(0, r.length, block)
            seen = (min(f + block, r.source) if r.causal else r.source for f in firsts)
            return sum(seen) * block / _SPEED[vectors - 1]

        self.vectors = min(range(1, most + 1), key=work)
        block = self.vectors * lanes
        self.blocks = -(-r.length // block)
        mask = "" if not r.mask else "bool" if r.buffers[3].dtype is bool_ else "float32"
        self.names = ["query", "key", "value"] + ["mask"] * r.mask
        self.reads = len(r.buffers) - len(r.results)
        self.inner = r.heads // r.shared
        options: tuple[Any, ...] = (self.vectors, mask, r.dropout)
        self.room = block * (r.size + r.width + (2 if mask else 1) * KEYS + 2)
        self.lines = (0, 0)
        if r.part != "forward":

            def padded(columns: int) -> float:
                """Return the cost of so many vectors of columns, padding included."""
                group = columns * lanes
                total = sum(-(-width // group) * group for width in (r.size, r.width))
                return total / _SPEED[columns - 1]

            columns = min(range(1, most + 1), key=padded)
            group = columns * lanes
            self.lines = (-(-r.size // group) * group, -(-r.width // group) * group)
            options = (*options, columns, self.lines == (r.size, r.width))
            self.room = block * (
                2 * r.size + r.width + sum(self.lines) + (3 if mask else 2) * KEYS + 4
            )
        self.room = -(-self.room // 16) * 16
        self.function = name_of("forward" if r.part == "forward" else "backward", *options)
        seen = sum(
            min(f + block, r.source) if r.causal else r.source for f in range(0, r.length, block)
        )
        self.work = (
            r.batch * r.heads * seen * self.vectors * (r.size + r.width)
            * (1 if r.part == "forward" else 3)
        )  # fmt: skip

    def run(self, buffers: Sequence[Addressed], args: Sequence[float]) -> None:
        """Compute; of the buffers only the addresses are used."""
        r = self.r
        threads = get_num_threads()
        results: list[int] = [0, 0, 0]
        for number, buffer in zip(r.results, buffers[self.reads :], strict=True):
            results[number] = buffer.address
        if r.part == "forward":
            items = r.batch * r.heads * self.blocks
            self._run(buffers, args, items, threads, self.work, results[:2])
            return
        fixed = [*(b.address for b in buffers[self.reads - 2 : self.reads])]
        groups = r.batch * r.shared
        if groups >= threads and (groups % threads == 0 or groups >= 4 * threads):
            tail = [*fixed, *results, self.inner, self.blocks, max(r.source, 1), 1, 1, *self.lines]
            self._run(buffers, args, groups, threads, self.work, tail)
            return
        if results[0]:
            tail = [*fixed, results[0], 0, 0, 1, 1, max(r.source, 1), self.blocks, 1, *self.lines]
            items = r.batch * r.heads * self.blocks
            self._run(buffers, args, items, threads, self.work, tail)
        if results[1] or results[2]:
            parts = -(-r.source // _KEYS_ALONE)
            tail = [
                *fixed,
                0,
                *results[1:],
                self.inner,
                self.blocks,
                _KEYS_ALONE,
                1,
                parts,
                *self.lines,
            ]
            self._run(buffers, args, groups * parts, threads, self.work, tail)

    def _run(
        self,
        buffers: Sequence[Addressed],
        args: Sequence[float],
        items: int,
        threads: int,
        work: int,
        tail: Sequence[int],
    ) -> None:
        r = self.r
        units = min(threads, items)
        scratch = self.target.scratch(_COUNTER + units * self.room)
        ctypes.memset(scratch.address, 0, 8)
        cells = [
            scratch.address, scratch.address + 4 * _COUNTER, self.room, units, items,
            r.heads, self.inner, r.length, r.source, r.size, r.width, int(r.causal), self.blocks,
        ]  # fmt: skip
        for number in range(3 + r.mask):
            size = r.buffers[number].dtype.itemsize
            cells += [buffers[number].address + size * r.offsets[number], *r.strides[number]]
        cells.append(_bits(args[0]))
        if r.dropout:
            p, seed0, seed1, low, high = args[1:]
            kept = 1.0 / (1.0 - float(p))
            cells += [_bits(p), _bits(kept)]
            cells += [_signed(int(seed0), int(seed1)), _signed(int(low), int(high))]
        if r.part != "forward":
            number = 3 + r.mask
            cells += [buffers[number].address + 4 * r.offsets[number], *r.strides[number]]
        cells += tail
        self.target.run(self.code, self.function, units, cells, work)


def _heads_as_queries(r: Attention) -> Attention:
    """Return the same attention, of which heads of one query that share keys are queries of one head: a lane each."""
    inner = r.heads // r.shared
    if r.part != "forward" or r.length > 1 or inner == 1 or r.causal:
        return r
    strides = list(r.strides)
    for number in (0, 3)[: 1 + r.mask]:
        batch, head, _, element = strides[number]
        strides[number] = batch, head * inner, head, element
    return replace(r, heads=r.shared, length=inner, strides=tuple(strides))


def _bits(x: float) -> int:
    (found,) = struct.unpack("i", struct.pack("f", x))
    return int(found)


def _signed(low: int, high: int) -> int:
    both = low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32
    return both - (1 << 64) if both >> 63 else both


def suits(r: Attention) -> bool:
    """Whether there is machine code for this."""
    strided = r.buffers[: 3 + r.mask + (r.part != "forward")]
    types = [s.dtype for i, s in enumerate(strided) if not (r.mask and i == 3)]
    return (
        all(t is float32 for t in types)
        and (not r.mask or r.buffers[3].dtype in (bool_, float32))
        and jit.available()
    )
