"""Memory plans, by text: what is written in place, what is copied, and which temporaries share a slot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lower.graphs import CPU, GPU, Builder
from webtorch.ir.dtype import int32
from webtorch.ir.graph import Graph
from webtorch.ir.program import Program
from webtorch.lower.plan import plan_program

Make = Callable[[Builder], Graph]


def text(program: Program) -> str:
    """Return a program without its first line, which counts steps."""
    return str(program).partition("\n")[2]


def _product(b: Builder, x: int, w: int) -> int:
    shape = (*b.nodes[x].shape[:2], b.nodes[w].shape[2])
    return b.add("matmul", (x, w), (), shape)


def _in_place(b: Builder) -> Graph:
    """The tensor that the result overwrites is read where it is written."""
    x = b.buffer(8)
    return b.graph((b.map("exp", x), x))


def _not_donated(b: Builder) -> Graph:
    """Nobody overwrites the input: it must stay."""
    x = b.buffer(8)
    return b.graph(b.map("exp", x))


def _donor_read_elsewhere(b: Builder) -> Graph:
    """Another invocation may have overwritten the element that is read."""
    x = b.buffer(4, 4)
    t = b.view(x, 4, 4, strides=(1, 4))
    return b.graph((b.map("exp", t), x))


def _donor_read_later(b: Builder) -> Graph:
    """What only reads the memory comes before what overwrites it."""
    x, w = b.buffer(1, 4, 4), b.buffer(1, 4, 4)
    y = b.map("exp", x)
    z = _product(b, x, w)
    return b.graph((y, x), z)


def _donor_needed_after(b: Builder) -> Graph:
    """The product needs the input after its exponential, which so has memory of its own."""
    x = b.buffer(1, 4, 4)
    y = b.map("exp", x)
    z = _product(b, y, x)
    return b.graph((y, x), z)


def _donor_of_other_size(b: Builder) -> Graph:
    x = b.buffer(8)
    return b.graph((b.reduce("sum", x, 0), x))


def _window(b: Builder) -> Graph:
    """An update takes over the memory of what it changes."""
    x, y = b.buffer(8), b.buffer(4)
    return b.graph((b.update(x, y, 2), x))


def _window_copied(b: Builder) -> Graph:
    x, y = b.buffer(8), b.buffer(4)
    return b.graph(b.update(x, y, 2))


def _window_shifted(b: Builder) -> Graph:
    """The window is computed from a neighbour: its values are stored first."""
    x = b.buffer(8)
    return b.graph((b.update(x, b.map("exp", b.view(x, 4)), 2), x))


def _window_same(b: Builder) -> Graph:
    x = b.buffer(8)
    return b.graph((b.update(x, b.map("exp", b.view(x, 4, offset=2)), 2), x))


def _window_of_temp(b: Builder) -> Graph:
    x, y = b.buffer(8), b.buffer(4)
    s = b.map("exp", x)
    return b.graph(b.update(s, y, 2))


def _window_temp_read(b: Builder) -> Graph:
    """The sum reads the base before it is changed, in the kernel that computes it."""
    x, y = b.buffer(8), b.buffer(4)
    s = b.map("exp", x)
    u = b.update(s, y, 2)
    return b.graph(u, b.reduce("sum", s, 0))


def _both_returned(b: Builder) -> Graph:
    x, y = b.buffer(8), b.buffer(4)
    s = b.map("exp", x)
    u = b.update(s, y, 2)
    return b.graph(u, s)


def _diamond(b: Builder) -> Graph:
    """The first result is read once more by the fourth step: until then its slot is taken."""
    x, w = b.buffer(1, 4, 4), b.buffer(1, 4, 4)
    p = _product(b, x, w)
    q = _product(b, p, w)
    r = _product(b, q, w)
    s = _product(b, r, p)
    return b.graph(_product(b, s, w))


def _sizes(b: Builder) -> Graph:
    """The largest temporaries choose first, and the small ones share beside them."""
    x = b.buffer(1, 4, 8)
    w = b.buffer(1, 8, 2)
    v = b.buffer(1, 2, 8)
    p = _product(b, x, w)
    q = _product(b, p, v)
    r = _product(b, q, w)
    return b.graph(_product(b, r, v))


def _empty_out(b: Builder) -> Graph:
    return b.graph(b.add("empty", (), (), (4,)))


def _empty_base(b: Builder) -> Graph:
    """Uninitialised memory is nothing but memory."""
    e = b.add("empty", (), (), (8,))
    y = b.buffer(4)
    return b.graph(b.update(e, y, 2))


def _twice(b: Builder) -> Graph:
    x = b.buffer(8)
    y = b.map("exp", x)
    return b.graph(y, y)


def _two_updates(b: Builder) -> Graph:
    x, y, z = b.buffer(8), b.buffer(4), b.buffer(4)
    return b.graph((b.update(b.update(x, y, 0), z, 4), x))


def _one_donor_two(b: Builder) -> Graph:
    """Kernels compute all values of a point before they write the first."""
    x = b.buffer(8)
    return b.graph((b.map("exp", x), x), b.map("sin", x))


def _scatter_own(b: Builder) -> Graph:
    x, i, v = b.buffer(8), b.buffer(4, dtype=int32), b.buffer(4)
    return b.graph((b.add("scatter", (x, i, v), (1, (0,), "add", "index_add", False), (8,)), x))


def _scatter_reads(b: Builder) -> Graph:
    """Positions may repeat: another invocation may have written what is read."""
    x, i = b.buffer(8), b.buffer(8, dtype=int32)
    return b.graph(
        (b.add("scatter", (x, i, b.map("exp", x)), (1, (0,), "set", "index_copy", False), (8,)), x)
    )


def _scatter_of_taken(b: Builder) -> Graph:
    """Elements are read where they are written; of a position that repeats the second would read the first's."""
    x, i = b.buffer(8), b.buffer(4, dtype=int32)
    taken = b.add("take", (x, i), (1, (0,), "index", False), (4,))
    attrs = (1, (0,), "set", "index_copy", False)
    return b.graph((b.add("scatter", (x, i, b.map("exp", taken)), attrs, (8,)), x))


PLANS: dict[str, tuple[Make, str]] = {
    "in place": (_in_place, ("  #0: input float32[8]\n  exp(#0)")),
    "not donated": (
        _not_donated,
        ("  #0: input float32[8]\n  #1: output float32[8]\n  exp(#0, #1)"),
    ),
    "donor read elsewhere": (
        _donor_read_elsewhere,
        ("  #0: input float32[16]\n  #1: output float32[16]\n  exp(#0, #1)"),
    ),
    "donor read later": (
        _donor_read_later,
        (
            "  #0: input float32[16]\n"
            "  #1: input float32[16]\n"
            "  #2: output float32[16]\n"
            "  matmul_1x4x4x4(#0, #1, #2)\n"
            "  exp(#0)"
        ),
    ),
    "donor needed after": (
        _donor_needed_after,
        (
            "  #0: input float32[16]\n"
            "  #1: output float32[16]\n"
            "  #2: output float32[16]\n"
            "  exp(#0, #1)\n"
            "  matmul_1x4x4x4(#1, #0, #2)"
        ),
    ),
    "donor of other size": (
        _donor_of_other_size,
        ("  #0: input float32[8]\n  #1: output float32[1]\n  sum(#0, #1)"),
    ),
    "window": (
        _window,
        ("  #0: input float32[8]\n  #1: input float32[4]\n  update(#1, #0)"),
    ),
    "window copied": (
        _window_copied,
        (
            "  #0: input float32[8]\n"
            "  #1: input float32[4]\n"
            "  #2: output float32[8]\n"
            "  copy #0 -> #2\n"
            "  update(#1, #2)"
        ),
    ),
    "window shifted": (
        _window_shifted,
        (
            "  #0: input float32[8]\n"
            "  #1: temporary float32[4] slot 0\n"
            "  exp(#0, #1)\n"
            "  update(#1, #0)"
        ),
    ),
    "window same": (_window_same, ("  #0: input float32[8]\n  exp_update(#0)")),
    "window of temp": (
        _window_of_temp,
        (
            "  #0: input float32[8]\n"
            "  #1: input float32[4]\n"
            "  #2: output float32[8]\n"
            "  exp(#0, #2)\n"
            "  update(#1, #2)"
        ),
    ),
    "window temp read": (
        _window_temp_read,
        (
            "  #0: input float32[8]\n"
            "  #1: input float32[4]\n"
            "  #2: output float32[8]\n"
            "  #3: output float32[1]\n"
            "  exp_sum(#0, #2, #3)\n"
            "  update(#1, #2)"
        ),
    ),
    "both returned": (
        _both_returned,
        (
            "  #0: input float32[8]\n"
            "  #1: input float32[4]\n"
            "  #2: output float32[8]\n"
            "  #3: output float32[8]\n"
            "  exp(#0, #2)\n"
            "  copy #2 -> #3\n"
            "  update(#1, #3)"
        ),
    ),
    "diamond": (
        _diamond,
        (
            "  #0: input float32[16]\n"
            "  #1: input float32[16]\n"
            "  #2: temporary float32[16] slot 0\n"
            "  #3: temporary float32[16] slot 1\n"
            "  #4: temporary float32[16] slot 2\n"
            "  #5: temporary float32[16] slot 1\n"
            "  #6: output float32[16]\n"
            "  matmul_1x4x4x4(#0, #1, #2)\n"
            "  matmul_1x4x4x4(#2, #1, #3)\n"
            "  matmul_1x4x4x4(#3, #1, #4)\n"
            "  matmul_1x4x4x4(#4, #2, #5)\n"
            "  matmul_1x4x4x4(#5, #1, #6)"
        ),
    ),
    "sizes": (
        _sizes,
        (
            "  #0: input float32[32]\n"
            "  #1: input float32[16]\n"
            "  #2: input float32[16]\n"
            "  #3: temporary float32[8] slot 1\n"
            "  #4: temporary float32[32] slot 0\n"
            "  #5: temporary float32[8] slot 1\n"
            "  #6: output float32[32]\n"
            "  matmul_1x4x2x8(#0, #1, #3)\n"
            "  matmul_1x4x8x2(#3, #2, #4)\n"
            "  matmul_1x4x2x8(#4, #1, #5)\n"
            "  matmul_1x4x8x2(#5, #2, #6)"
        ),
    ),
    "scatter of taken": (
        _scatter_of_taken,
        (
            "  #0: input float32[8]\n"
            "  #1: input int32[4]\n"
            "  #2: temporary float32[4] slot 0\n"
            "  take_exp(#1, #0, #2)\n"
            "  scatter(#1, #2, #0)"
        ),
    ),
    "empty out": (_empty_out, ("  #0: output float32[4]")),
    "empty base": (
        _empty_base,
        ("  #0: input float32[4]\n  #1: output float32[8]\n  update(#0, #1)"),
    ),
    "twice": (_twice, ("  #0: input float32[8]\n  #1: output float32[8]\n  exp(#0, #1)")),
    "two updates": (
        _two_updates,
        (
            "  #0: input float32[8]\n"
            "  #1: input float32[4]\n"
            "  #2: input float32[4]\n"
            "  update(#1, #0)\n"
            "  update(#2, #0)"
        ),
    ),
    "one donor two": (
        _one_donor_two,
        ("  #0: input float32[8]\n  #1: output float32[8]\n  exp_sin(#0, #1)"),
    ),
    "scatter own": (
        _scatter_own,
        (
            "  #0: input float32[8]\n"
            "  #1: input int32[4]\n"
            "  #2: input float32[4]\n"
            "  scatter(#1, #2, #0)"
        ),
    ),
    "scatter reads": (
        _scatter_reads,
        (
            "  #0: input float32[8]\n"
            "  #1: input int32[8]\n"
            "  #2: temporary float32[8] slot 0\n"
            "  exp(#0, #2)\n"
            "  scatter(#1, #2, #0)"
        ),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    make, expected = PLANS[name]
    assert text(plan_program(make(Builder()), GPU)) == expected


def _chain(count: int) -> Make:
    def make(b: Builder) -> Graph:
        x, w = b.buffer(1, 4, 4), b.buffer(1, 4, 4)
        for _ in range(count):
            x = _product(b, x, w)
        return b.graph(x)

    return make


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_step_never_writes_the_slot_that_it_reads(count: int) -> None:
    """Two slots are enough for a chain, and one is not: what a step reads lives until its end."""
    program = plan_program(_chain(count)(Builder()), GPU)
    slots = [b.alias for b in program.buffers if b.role == "temporary"]
    assert slots == [i % 2 for i in range(count - 1)]


def _followed(rows: int) -> Make:
    def make(b: Builder) -> Graph:
        x, w = b.buffer(1, rows, 4), b.buffer(1, 4, 4)
        return b.graph(_product(b, b.map("exp", _product(b, x, w)), w))

    return make


def test_a_large_temporary_is_written_over_by_its_last_reader() -> None:
    """From 64 KiB on: 4,096 rows of 4 floats."""
    assert text(plan_program(_followed(4096)(Builder()), CPU)) == (
        "  #0: input float32[16384]\n"
        "  #1: input float32[16]\n"
        "  #2: temporary float32[16384] slot 0\n"
        "  #3: output float32[16384]\n"
        "  matmul_1x4096x4x4(#0, #1, #2)\n"
        "  exp(#2)\n"
        "  matmul_1x4096x4x4(#2, #1, #3)"
    )


def test_a_small_one_is_not() -> None:
    assert text(plan_program(_followed(4095)(Builder()), CPU)) == (
        "  #0: input float32[16380]\n"
        "  #1: input float32[16]\n"
        "  #2: temporary float32[16380] slot 0\n"
        "  #3: temporary float32[16380] slot 1\n"
        "  #4: output float32[16380]\n"
        "  matmul_1x4095x4x4(#0, #1, #2)\n"
        "  exp(#2, #3)\n"
        "  matmul_1x4095x4x4(#3, #1, #4)"
    )


def test_what_is_written_and_read_is_bound_once() -> None:
    """A kernel in place has one slot for the memory, which it reads and writes."""
    program = plan_program(_in_place(Builder()), GPU)
    (kernel,) = program.routines
    assert [b.access for b in kernel.buffers] == ["read_write"]
    (step,) = program.steps
    assert step.buffers == (0,)
