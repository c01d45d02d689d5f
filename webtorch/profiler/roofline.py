"""What a routine must do at least (bytes, operations), and what a device can do at most, measured. Floor 5.

The model is that of Williams, Waterman and Patterson (2009): a kernel cannot be faster than its bytes
at the device's copy speed, nor than its operations at the speed of the device's matrix product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from webtorch.dispatch.call import refuse_scripts
from webtorch.functions import public as webtorch
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import (
    Attention,
    Convolution,
    Kernel,
    Matmul,
    Products,
    Routine,
    Scan,
    Several,
    epilogue_of,
)
from webtorch.ir.view import numel
from webtorch.runtime.realize import Runtime
from webtorch.runtime.watch import Run, watch

# Expressions that compute nothing.
_FREE = frozenset(
    ("const", "arg", "input", "index", "reduced", "load", "cast", "bitcast", "where", "philox")
)
# Sizes of the measurement, in elements of the copy and rows of the product.
_HARDWARE = (1 << 26, 4096)
_PROCESSOR = (1 << 23, 1024)
_SOFTWARE = (1 << 20, 256)
_REPEATS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """The least that a routine moves and computes: every element it touches once."""

    nbytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """What was measured of a device: bytes per second of a copy, operations per second of a product."""

    bandwidth: float
    flops: float

    def share(self, cost: Cost, seconds: float) -> tuple[float, Literal["memory", "compute"]]:
        """Return how near to the roof a run of `seconds` came, and which side of the roof is nearer."""
        memory, compute = cost.nbytes / self.bandwidth, cost.flops / self.flops
        if not seconds:
            return 0.0, "memory"
        return max(memory, compute) / seconds, "memory" if memory >= compute else "compute"


@functools.lru_cache(maxsize=4096)
def cost(routine: Routine) -> Cost:
    """Return what a routine must move and compute."""
    match routine:
        case Kernel():
            return _kernel_cost(routine)
        case Several():
            costs = [_kernel_cost(part) for part in routine.parts]
            return Cost(sum(c.nbytes for c in costs), sum(c.flops for c in costs))
        case Products():
            costs = [cost(part) for part in routine.parts]
            # The left operand is read once.
            left = sum(_left_bytes(part) for part in routine.parts[1:])
            return Cost(sum(c.nbytes for c in costs) - left, sum(c.flops for c in costs))
        case Matmul():
            batch = numel(routine.batch)
            points = batch * routine.m * routine.n
            sides = (
                _left(routine),
                (batch if _own(routine.right_strides) else 1) * routine.k * routine.n,
                points,
            )
            after = _epilogue_cost(routine)
            if after is None:
                return Cost(_bytes(routine, sides), 2 * points * routine.k)
            nbytes = _bytes(routine, sides[:2]) + after.nbytes
            return Cost(nbytes, 2 * points * routine.k + after.flops)
        case Convolution():
            outputs = numel(routine.output_shape)
            window = numel(routine.weight_shape[1:])
            flops = 2 * outputs * window
            every = [s.elements for s in routine.buffers]
            after = _epilogue_cost(routine)
            if after is None:
                return Cost(_bytes(routine, every), flops)
            return Cost(_bytes(routine, every[:2]) + after.nbytes, flops + after.flops)
        case Scan():
            points = routine.outer * routine.length * routine.inner
            return Cost(_bytes(routine, (points, points)), points)
        case Attention():
            scores = routine.batch * routine.heads * routine.length * routine.source
            if routine.causal:
                seen = min(routine.length, routine.source)
                scores -= routine.batch * routine.heads * seen * (
                    seen - 1
                ) // 2 + routine.batch * routine.heads * routine.length * (routine.source - seen)
            gradients = 2 + len(routine.results)
            products = {"forward": 2, "weights": 2, "query": 3, "key": 4, "backward": gradients}[
                routine.part
            ]
            width = 2 * (routine.size * ((products + 1) // 2) + routine.width * (products // 2))
            return Cost(_bytes(routine, [s.elements for s in routine.buffers]), scores * width)
        case _:
            return Cost(_bytes(routine, [s.elements for s in routine.buffers]), 0)


def _epilogue_cost(routine: Matmul | Convolution) -> Cost | None:
    return _kernel_cost(epilogue_of(routine)) if routine.epilogue else None


def _left(routine: Matmul) -> int:
    """Return the elements of the left operand that are read."""
    return (numel(routine.batch) if _own(routine.left_strides) else 1) * routine.m * routine.k


def _left_bytes(routine: Matmul) -> int:
    return _bytes(routine, (_left(routine),))


def _own(strides: tuple[int, ...]) -> bool:
    """Whether the matrices of a batch differ."""
    return any(strides[:-2])


def _bytes(routine: Routine, elements: Iterable[int]) -> int:
    return sum(
        min(count, slot.elements) * slot.dtype.itemsize
        for count, slot in zip(elements, routine.buffers, strict=False)
    )


def _kernel_cost(kernel: Kernel) -> Cost:
    everywhere = frozenset(range(len(kernel.outer)))
    sizes = dict(enumerate((*kernel.outer, *kernel.inner)))
    dims: dict[Expr, frozenset[int]] = {}
    touched: dict[tuple[int, Expr], int] = {}
    flops = 0

    def points(which: frozenset[int]) -> int:
        """Return how many points these dims of the loops have together."""
        return numel(tuple(sizes[d] for d in which))

    for node in ex.walk(*kernel.expressions()):
        if node.op == "index":
            dims[node] = frozenset((node.value[0],))
        elif node.op == "reduced":
            dims[node] = everywhere
        else:
            dims[node] = frozenset().union(*(dims[a] for a in node.args))
        if node.op == "load":
            touched[node.value, node.args[0]] = points(dims[node.args[0]])
        elif node.op not in _FREE and node.dtype.kind == "float":
            flops += points(dims[node])
    for reduce in kernel.reduces:
        flops += kernel.outer_count * kernel.inner_count * (reduce.dtype.kind == "float")
    for store in kernel.stores:
        places = kernel.outer_count * (kernel.inner_count if store.level == "inner" else 1)
        key = (store.buffer, store.position)
        # An update in place reads what it writes: both count.
        read = touched.get(key, 0) or (places if store.combine != "set" else 0)
        touched[key] = min(places, kernel.buffers[store.buffer].elements) + read
    moved: dict[int, int] = {}
    for (buffer, _), count in touched.items():
        moved[buffer] = moved.get(buffer, 0) + count
    nbytes = sum(
        min(count, 2 * kernel.buffers[b].elements) * kernel.buffers[b].dtype.itemsize
        for b, count in moved.items()
    )
    return Cost(nbytes, flops)


# ---- the device's peaks


class _Collector:
    """A listener that keeps the runs of a measurement."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def ran(self, run: Run) -> None:
        """Keep a run."""
        self.runs.append(run)

    def compiled(self, *_args: object) -> None:
        """Ignore a compilation."""


_MEASURED: dict[tuple[str, DType], Peaks] = {}


def peaks(runtime: Runtime, dtype: DType) -> Peaks:
    """Return the device's speeds for float numbers of `dtype`, measured once: takes a moment."""
    key = (runtime.backend.description(), dtype)
    found = _MEASURED.get(key)
    if found is None:
        elements, rows = _sizes(runtime)
        device = runtime.kind if runtime.kind == "cpu" else f"{runtime.kind}:{runtime.index}"
        x = webtorch.ones(elements, device=device)
        a = webtorch.ones(rows, rows, device=device, dtype=dtype)
        runtime.realize()
        copied = _fastest(runtime, lambda: x + 1.0)
        multiplied = _fastest(runtime, lambda: a @ a)
        found = _MEASURED[key] = Peaks(8 * elements / copied, 2 * rows**3 / multiplied)
    return found


def _sizes(runtime: Runtime) -> tuple[int, int]:
    if runtime.kind == "cpu":
        return _PROCESSOR
    return _HARDWARE if runtime.backend.limits.is_gpu else _SOFTWARE


def _fastest(runtime: Runtime, work: object) -> float:
    assert callable(work)
    before, collector = watch.listener, _Collector()
    watch.listener = collector
    try:
        # What is read back is one number: the rest must not be optimised away.
        for _ in range(_REPEATS):
            # A script would compute some of it later, when another profile looks on.
            refuse_scripts("what the device can do is measured")
            result = work()
            runtime.realize()
            del result
    finally:
        watch.listener = before
    best = math.inf
    for run in collector.runs:
        best = min(best, sum(t.end - t.start for t in run.times()))
    return max(best, 1e-9)
