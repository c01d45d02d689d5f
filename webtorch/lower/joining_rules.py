"""When two dispatches may be one: named rules, each of which gives a reason where it says no.
May import floors 0 and 1.

Fusion (`fusion_rules`) decides what a kernel computes. Behind it, small updates are put together
(`together`), and products of one left operand are joined (`joint`): these are the rules that both ask.
A rule returns None, or why in plain words; its name is the rule's, as in the program's separations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from webtorch.ir import expr as ex
from webtorch.ir.kernel import Kernel, Matmul
from webtorch.ir.limits import Limits
from webtorch.ir.program import Dispatch

# A kernel of more points works longer than its dispatch costs: 4 MB of a parameter, seven times read
# or written, are 7 us at 4.4 TB/s.
_MAX_POINTS = 1 << 20
# And together they delay the release of at most these bytes.
_MAX_BYTES = 32 << 20
# Steps that sums may pass: what they give takes memory for as much longer.
_FAR = 24


class Remark(NamedTuple):
    """Why a step was not put together with one before it; both by their numbers."""

    step: int
    other: int
    rule: str
    reason: str


# ---- small updates: may a kernel share a dispatch at all


def checks(kernel: Kernel) -> str | None:
    """A bad index is reported by the kernel's own name and place."""
    return "it checks indices, and reports a bad one by itself" if kernel.checks else None


def work(kernel: Kernel) -> str | None:
    """What works for longer than a dispatch costs gains nothing."""
    points = kernel.outer_count * kernel.inner_count
    if 0 < points <= _MAX_POINTS:
        return None
    return (
        f"it works at {points} points: at most {_MAX_POINTS} take less time than a dispatch costs"
    )


def accumulated(kernel: Kernel) -> str | None:
    """What adds up at positions given by data needs memory that is ready before the dispatch."""
    if all(s.combine == "set" for s in kernel.stores):
        return None
    return "it adds up at positions that data give"


def row_stores(kernel: Kernel) -> str | None:
    """The parts of one dispatch that reduce store their sums only."""
    if not kernel.reduces or all(s.level != "inner" for s in kernel.stores):
        return None
    return "it reduces rows, and stores at each of their points too"


def stages(kernel: Kernel) -> str | None:
    """The parts of one dispatch walk their rows once."""
    if all(e.op != "reduced" for r in kernel.reduces for e in ex.walk(r.value)):
        return None
    return "it reduces what it has reduced before, and walks its rows again"


ALONE: tuple[Callable[[Kernel], str | None], ...] = (
    checks,
    work,
    accumulated,
    row_stores,
    stages,
)
# What is asked of sums that stand beside others, each with rows of its own.
ROWS: tuple[Callable[[Kernel], str | None], ...] = (accumulated, row_stores, stages)


# ---- small updates: may a kernel join others

# The loops that kernels of one dispatch have in common; none for elementwise ones.
Loops = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class Update:
    """A small kernel: its step, the buffers that it touches and writes, and their bytes."""

    number: int
    step: Dispatch
    loops: Loops
    touched: set[int]
    written: set[int]
    nbytes: int
    # Of sums, a vector that each row reads.
    vector: int | None = None


@dataclass(slots=True)
class Updates:
    """Kernels that will be one dispatch: their steps, and the buffers that they read and write."""

    loops: Loops
    vector: int | None = None
    steps: list[int] = field(default_factory=list)
    buffers: dict[int, None] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    nbytes: int = 0
    # Why nothing joins them any more: a rule and its reason.
    closed: tuple[str, str] | None = None
    # What sums would pass that move up to the first of these: the buffers that steps in between touch, and write.
    passed: set[int] = field(default_factory=set)
    passed_written: set[int] = field(default_factory=set)

    def add(self, one: Update) -> None:
        """Take a kernel in."""
        self.steps.append(one.number)
        self.buffers.update(dict.fromkeys(one.touched))
        self.written |= one.written
        self.nbytes += one.nbytes


def same_loops(one: Update, run: Updates, limits: Limits) -> str | None:
    """Reductions of one dispatch walk the same points; elementwise kernels have none in common."""
    if one.loops == run.loops:
        return None
    return f"it {_walks(one.loops, 's')}, and the others {_walks(run.loops)}"


def same_kind(one: Update, run: Updates, limits: Limits) -> str | None:
    """Sums that read a vector stand beside such sums, of this vector or another one."""
    if (one.vector is None) == (run.vector is None):
        return None
    one_sums, others_sum = ("sums", "do not") if run.vector is None else ("does not sum", "do")
    return f"it {one_sums} rows of a vector, and the others {others_sum}"


def between(one: Update, run: Updates, limits: Limits) -> str | None:
    """Sums run where the first of them did, as they read what was there before."""
    if run.vector is None:
        return None
    if one.touched & (run.written | run.passed_written) or one.written & (
        run.buffers.keys() | run.passed
    ):
        return "it needs or changes what the others, or a step after them, work on"
    if one.number - run.steps[0] > _FAR:
        return f"more than {_FAR} steps lie between"
    return None


def bindings(one: Update, run: Updates, limits: Limits) -> str | None:
    """A kernel binds few buffers."""
    count, most = len(run.buffers.keys() | one.touched), limits.max_buffers_per_kernel
    if count <= most:
        return None
    return f"together they bind {count} buffers, and a kernel has room for {most} on this device"


def memory(one: Update, run: Updates, limits: Limits) -> str | None:
    """What a dispatch reads lives until its last part has run."""
    nbytes = run.nbytes + one.nbytes
    if nbytes <= _MAX_BYTES:
        return None
    return f"together they keep {nbytes} bytes until the last of them runs: at most {_MAX_BYTES}"


JOIN: tuple[Callable[[Update, Updates, Limits], str | None], ...] = (
    same_loops,
    same_kind,
    between,
    bindings,
    memory,
)


def _walks(loops: Loops, s: str = "") -> str:
    if not loops[1]:
        return f"work{s} element by element"
    outer, inner = (" x ".join(map(str, sizes)) or "1" for sizes in loops)
    return f"reduce{s} {outer} rows of {inner}"


# ---- products of one left operand


def columns(product: Matmul, step: Dispatch) -> str | None:
    """A product of one column is a sum of rows."""
    return "a product of one column has a kernel of its own" if product.n == 1 else None


def square(product: Matmul, step: Dispatch) -> str | None:
    """The weights of a joint product are buffers beside the left operand."""
    if step.buffers[0] != step.buffers[1]:
        return None
    return "it multiplies a matrix by itself"


PRODUCT_ALONE: tuple[Callable[[Matmul, Dispatch], str | None], ...] = (columns, square)

# The same data as a left operand, in another form or for another product.
LEFT_OPERAND = "left_operand"
# Neither can pass what lies between.
BETWEEN = "between"
# It would write what the other reads or writes.
OVERWRITTEN = "overwritten"
# More steps lie between than a product moves.
DISTANCE = "distance"
# Of two products of one row the second may read the first's sums, at its own point.
GATE = "gate"


def left_operand(one: Matmul, other: Matmul) -> str:
    """Say why two products that read one left operand have no dispatch in common."""
    if (one.batch, one.m, one.k) != (other.batch, other.m, other.k):
        mine, theirs = (" x ".join(map(str, (*p.batch, p.m, p.k))) for p in (one, other))
        return f"it reads the same left operand as {mine}, and the other as {theirs}"
    if one.buffers[1].dtype is not other.buffers[1].dtype or one.accumulates != other.accumulates:
        return "they have one left operand, and compute in other types"
    return "they have one left operand, and read it at other positions"
