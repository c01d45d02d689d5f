"""The passes before fusion, by text: of each what it changes, and the nearest that it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.lower.graphs import CPU, GPU, Builder
from webtorch.ir.dtype import bfloat16, float32, int32
from webtorch.ir.graph import Graph
from webtorch.ir.limits import Limits
from webtorch.lower import passes
from webtorch.lower.passes import (
    PASSES,
    compose_views,
    drop_copies,
    merge_equal_nodes,
    pass_offsets,
    run_passes,
    split_reductions,
    sum_few_rows,
)

Make = Callable[[Builder], Graph]


def after(one: passes.Pass, make: Make, limits: Limits = GPU) -> str:
    """Return what a pass makes of a graph, as text; "" where that is the graph itself."""
    before = make(Builder())
    found = one(before, limits)
    found.verify()
    return "" if found == before else str(found)


# ---- merge_equal_nodes


def test_equal_nodes_are_computed_once() -> None:
    def make(b: Builder) -> Graph:
        x = b.buffer(4)
        return b.graph(b.map("add", b.map("exp", x), b.map("exp", x)))

    assert after(merge_equal_nodes, make) == (
        "%0 = buffer float32[4]\n"
        "%1 = map float32[4]  %0  exp t float32\n"
        "%2 = map float32[4]  %1 %1  add tt float32\n"
        "return %2"
    )


def test_what_no_output_needs_goes_but_inputs_stay() -> None:
    def make(b: Builder) -> Graph:
        b.buffer(3)
        x = b.buffer(4)
        b.map("sin", x)
        return b.graph(b.map("exp", x))

    assert after(merge_equal_nodes, make) == (
        "%0 = buffer float32[3]\n"
        "%1 = buffer float32[4]\n"
        "%2 = map float32[4]  %1  exp t float32\n"
        "return %2"
    )


def test_a_donor_is_needed() -> None:
    def make(b: Builder) -> Graph:
        x, y = b.buffer(4), b.buffer(4)
        return b.graph((b.map("exp", x), y))

    assert after(merge_equal_nodes, make) == ""
    assert str(make(Builder())).endswith("return %2 in %1")


def _outputs(b: Builder) -> Graph:
    x = b.buffer(4)
    return b.graph(b.map("exp", x), b.map("exp", x))


def _arguments(b: Builder) -> Graph:
    """Equal but for the runtime arguments that they read."""
    x = b.buffer(4)
    one, two = (b.add("view", (x,), ((1,),), (2,), args=(int32,)) for _ in range(2))
    return b.graph(b.map("add", one, two))


def _uninitialised(b: Builder) -> Graph:
    one, two = (b.add("empty", (), (), (4,)) for _ in range(2))
    return b.graph(b.map("add", one, two))


def _types(b: Builder) -> Graph:
    x = b.buffer(4)
    return b.graph(b.map("exp", x), b.map("copy", b.map("exp", x, dtype=bfloat16), dtype=float32))


@pytest.mark.parametrize("make", [_outputs, _arguments, _uninitialised, _types])
def test_what_only_looks_equal_stays_two(make: Make) -> None:
    assert after(merge_equal_nodes, make) == ""


# ---- compose_views


def test_a_view_that_changes_nothing_goes() -> None:
    def make(b: Builder) -> Graph:
        x = b.buffer(4, 2)
        return b.graph(b.map("exp", b.view(x, 4, 2)))

    assert after(compose_views, make) == (
        "%0 = buffer float32[4, 2]\n%1 = map float32[4, 2]  %0  exp t float32\nreturn %1"
    )


def test_a_reshape_of_a_reshape_is_one() -> None:
    def make(b: Builder) -> Graph:
        x = b.buffer(4, 6)
        return b.graph(b.map("exp", b.view(b.view(x, 24), 8, 3)))

    assert after(compose_views, make) == (
        "%0 = buffer float32[4, 6]\n"
        "%1 = view float32[24]  %0  (1,) 0\n"
        "%2 = view float32[8, 3]  %0  (3, 1) 0\n"
        "%3 = map float32[8, 3]  %2  exp t float32\n"
        "return %3"
    )


def test_a_reshape_and_back_is_the_source() -> None:
    def make(b: Builder) -> Graph:
        x = b.buffer(4, 6)
        return b.graph(b.map("exp", b.view(b.view(x, 24), 4, 6)))

    assert after(compose_views, make) == (
        "%0 = buffer float32[4, 6]\n"
        "%1 = view float32[24]  %0  (1,) 0\n"
        "%2 = map float32[4, 6]  %0  exp t float32\n"
        "return %2"
    )


def _returned_view(b: Builder) -> Graph:
    """An output is a copy with memory of its own."""
    return b.graph(b.view(b.buffer(4), 4))


def _transposed(b: Builder) -> Graph:
    return b.graph(b.map("exp", b.view(b.buffer(4, 4), 4, 4, strides=(1, 4))))


def _later(b: Builder) -> Graph:
    """A window that begins later shows other elements, however it is reshaped."""
    return b.graph(b.map("exp", b.view(b.view(b.buffer(8), 4, offset=4), 2, 2)))


def _shorter(b: Builder) -> Graph:
    return b.graph(b.map("exp", b.view(b.view(b.buffer(8), 4), 2, 2)))


@pytest.mark.parametrize("make", [_returned_view, _transposed, _later, _shorter])
def test_views_that_show_something_else_stay(make: Make) -> None:
    assert after(compose_views, make) == ""


# ---- drop_copies


def test_copies_and_reductions_of_one_element_are_read_through() -> None:
    def make(b: Builder) -> Graph:
        x = b.map("exp", b.buffer(4, 1))
        return b.graph(b.map("sin", b.reduce("sum", b.map("copy", x), 1)))

    assert after(drop_copies, make) == (
        "%0 = buffer float32[4, 1]\n"
        "%1 = map float32[4, 1]  %0  exp t float32\n"
        "%2 = map float32[4, 1]  %1  sin t float32\n"
        "return %2"
    )


def test_16_bits_that_were_only_widened_are_as_they_were() -> None:
    def make(b: Builder) -> Graph:
        x = b.map("exp", b.buffer(4, dtype=bfloat16))
        wide = b.map("copy", x, dtype=float32)
        return b.graph(b.map("sin", b.map("copy", wide, dtype=bfloat16)))

    assert after(drop_copies, make) == (
        "%0 = buffer bfloat16[4]\n"
        "%1 = map bfloat16[4]  %0  exp t float32\n"
        f"%2 = map float32[4]  %1  {passes.IDENTITY.name} t float32\n"
        "%3 = map bfloat16[4]  %1  sin t float32\n"
        "return %3"
    )


def _copy_of_data(b: Builder) -> Graph:
    """What a buffer held must stay apart from what is written into it."""
    return b.graph(b.map("sin", b.map("copy", b.buffer(4))))


def _copy_of_view(b: Builder) -> Graph:
    """It is there for the order of its elements in memory."""
    x = b.map("exp", b.buffer(4, 4))
    return b.graph(b.map("sin", b.map("copy", b.view(x, 4, 4, strides=(1, 4)))))


def _returned_copy(b: Builder) -> Graph:
    return b.graph(b.map("copy", b.map("exp", b.buffer(4))))


def _rounded(b: Builder) -> Graph:
    """Rounding to 16 bits and widening again changes values."""
    x = b.map("exp", b.buffer(4))
    return b.graph(b.map("sin", b.map("copy", b.map("copy", x, dtype=bfloat16), dtype=float32)))


def _of_two(b: Builder) -> Graph:
    return b.graph(b.map("sin", b.reduce("sum", b.map("exp", b.buffer(4, 2)), 1)))


def _position(b: Builder) -> Graph:
    """The place of the largest of one element is no element."""
    x = b.map("exp", b.buffer(4, 1, dtype=int32), dtype=int32)
    return b.graph(b.map("neg", b.reduce("argmax", x, 1)))


@pytest.mark.parametrize(
    "make", [_copy_of_data, _copy_of_view, _returned_copy, _rounded, _of_two, _position]
)
def test_copies_that_matter_stay(make: Make) -> None:
    assert after(drop_copies, make) == ""


# ---- split_reductions


def test_the_same_in_memory_that_held_nothing_is_one() -> None:
    def written(b: Builder, *names: str) -> Graph:
        x = b.buffer(4)
        nodes = [b.update(b.add("empty", (), (), (5,)), b.map(name, x), 0) for name in names]
        return b.graph(b.map("add", *nodes))

    assert after(merge_equal_nodes, lambda b: written(b, "sin", "sin")).count("update float32") == 1
    assert after(merge_equal_nodes, lambda b: written(b, "sin", "cos")) == ""


def _product(batch: int, m: int) -> Make:
    def make(b: Builder) -> Graph:
        x, y = b.buffer(batch, m, 64), b.buffer(batch, 64, 128)
        return b.graph(b.add("matmul", (x, y), (), (batch, m, 128)))

    return make


def test_products_of_few_rows_are_sums() -> None:
    assert after(sum_few_rows, _product(2, 4)) == (
        "%0 = buffer float32[2, 4, 64]\n"
        "%1 = buffer float32[2, 64, 128]\n"
        "%2 = view float32[2, 4, 128, 64]  %0  (256, 64, 0, 1) 0\n"
        "%3 = view float32[2, 4, 128, 64]  %1  (8192, 0, 1, 128) 0\n"
        "%4 = map float32[2, 4, 128, 64]  %2 %3  mul tt float32\n"
        "%5 = reduce float32[2, 4, 128, 1]  %4  sum (3,)\n"
        "%6 = view float32[2, 4, 128]  %5  (512, 128, 1) 0\n"
        "return %6"
    )
    for make, limits in ((_product(2, 4), CPU), (_product(2, 9), GPU), (_product(1, 4), GPU)):
        assert after(sum_few_rows, make, limits) == ""


def _summed(*shape: int, dims: tuple[int, ...], op: str = "sum") -> Make:
    return lambda b: b.graph(b.reduce(op, b.buffer(*shape), *dims))


def test_a_long_row_is_reduced_in_parts() -> None:
    """Two rows of 32,768: a GPU wants 512 parts, and each has at least 2,048 elements."""
    assert after(split_reductions, _summed(2, 32768, dims=(1,))) == (
        "%0 = buffer float32[2, 32768]\n"
        "%1 = view float32[2, 16, 2048]  %0  (32768, 2048, 1) 0\n"
        "%2 = reduce float32[2, 16, 1]  %1  sum (2,)\n"
        "%3 = reduce float32[2, 1, 1]  %2  sum (1,)\n"
        "%4 = view float32[2, 1]  %3  (1, 1) 0\n"
        "return %4"
    )


def test_columns_are_reduced_in_more_parts() -> None:
    """Columns get a thread each: 65,536 / 16 of them are wanted, and each sums at least 32 elements."""
    assert after(split_reductions, _summed(4096, 16, dims=(0,))) == (
        "%0 = buffer float32[4096, 16]\n"
        "%1 = view float32[128, 32, 16]  %0  (512, 16, 1) 0\n"
        "%2 = reduce float32[128, 1, 16]  %1  sum (1,)\n"
        "%3 = reduce float32[1, 1, 16]  %2  sum (0,)\n"
        "%4 = view float32[1, 16]  %3  (16, 1) 0\n"
        "return %4"
    )


def test_columns_of_2048_are_the_shortest_that_are_split() -> None:
    assert "view float32[64, 32, 16]" in after(split_reductions, _summed(2048, 16, dims=(0,)))
    # 23 parts of 89 would be possible.
    assert after(split_reductions, _summed(2047, 16, dims=(0,))) == ""


def test_dims_behind_the_one_that_is_split_move_up() -> None:
    assert after(split_reductions, _summed(32768, 3, 2, dims=(0, 2))) == (
        "%0 = buffer float32[32768, 3, 2]\n"
        "%1 = view float32[32, 1024, 3, 2]  %0  (6144, 6, 2, 1) 0\n"
        "%2 = reduce float32[32, 1, 3, 1]  %1  sum (1, 3)\n"
        "%3 = reduce float32[1, 1, 3, 1]  %2  sum (0,)\n"
        "%4 = view float32[1, 3, 1]  %3  (3, 1, 1) 0\n"
        "return %4"
    )


def test_threads_of_a_processor_want_fewer_parts() -> None:
    assert after(split_reductions, _summed(2, 32768, dims=(1,)), CPU) == (
        "%0 = buffer float32[2, 32768]\n"
        "%1 = view float32[2, 8, 4096]  %0  (32768, 4096, 1) 0\n"
        "%2 = reduce float32[2, 8, 1]  %1  sum (2,)\n"
        "%3 = reduce float32[2, 1, 1]  %2  sum (1,)\n"
        "%4 = view float32[2, 1]  %3  (1, 1) 0\n"
        "return %4"
    )


@pytest.mark.parametrize(
    ("make", "limits"),
    [
        # A workgroup's.
        (_summed(2, 16384, dims=(1,)), GPU),
        # Enough rows for every workgroup.
        (_summed(512, 32768, dims=(1,)), GPU),
        # No number of parts divides a prime.
        (_summed(2, 32749, dims=(1,)), GPU),
        # The first of equal elements could not be told.
        (_summed(2, 32768, dims=(1,), op="argmax"), GPU),
        # A number of parts that divides one size does not divide another.
        (_summed(2, 32768, dims=(1,)), replace(GPU, varying=True)),
        # Enough rows for every thread.
        (_summed(8, 32768, dims=(1,)), CPU),
    ],
)
def test_reductions_that_keep_the_device_busy_stay_whole(make: Make, limits: Limits) -> None:
    assert after(split_reductions, make, limits) == ""


# ---- pass_offsets


def _steps(count: int, stride: int = 4, kind: str = "map") -> Make:
    """Windows of one computed value, as the steps of a loop read them."""

    def make(b: Builder) -> Graph:
        x = b.buffer(64)
        value = b.map("exp", x) if kind == "map" else x
        return b.graph(*[b.map("sin", b.view(value, 4, offset=stride * i)) for i in range(count)])

    return make


def test_offsets_of_many_views_are_arguments() -> None:
    found = pass_offsets(_steps(8, 8)(Builder()), GPU)
    assert str(found).splitlines()[2:6] == [
        "%2 = view float32[4]  %1  (1,) 0 8 8  a0",
        "%3 = map float32[4]  %2  sin t float32",
        "%4 = view float32[4]  %1  (1,) 0 8 8  a1",
        "%5 = map float32[4]  %4  sin t float32",
    ]
    assert found.constants == (0, 1, 2, 3, 4, 5, 6, 7)
    assert found.arg_dtypes == (int32,) * 8


def test_the_first_offset_and_the_step_are_of_the_structure() -> None:
    def make(b: Builder) -> Graph:
        x = b.map("exp", b.buffer(64))
        offsets = (5, 17, 11, 5, 23, 29, 35, 41)
        return b.graph(*[b.map("sin", b.view(x, 4, offset=o)) for o in offsets])

    found = pass_offsets(make(Builder()), GPU)
    assert "%2 = view float32[4]  %1  (1,) 5 6 7  a0" in str(found)
    assert found.constants == (0, 2, 1, 0, 3, 4, 5, 6)


def _read_by_a_template(b: Builder) -> Graph:
    """A template reads its operands at fixed offsets."""
    x, w = b.reduce("sum", b.buffer(2, 64), 0), b.buffer(1, 4, 4)
    views = [b.view(x, 1, 2, 4, strides=(8, 4, 1), offset=4 * i) for i in range(8)]
    return b.graph(*[b.add("matmul", (v, w), (), (1, 2, 4)) for v in views])


@pytest.mark.parametrize(
    "make", [_steps(7), _steps(8, 0), _steps(8, 4, "buffer"), _read_by_a_template]
)
def test_offsets_that_stay_numbers(make: Make) -> None:
    assert after(pass_offsets, make) == ""


# ---- all of them


def test_passes_run_in_order_and_tell_what_they_did() -> None:
    def make(b: Builder) -> Graph:
        x = b.buffer(4, 6)
        one, two = (b.view(b.view(x, 24), 4, 6) for _ in range(2))
        return b.graph(b.map("add", b.map("exp", one), b.map("exp", two)))

    told: list[passes.PassResult] = []
    found = run_passes(make(Builder()), GPU, told.append)
    assert str(found) == (
        "%0 = buffer float32[4, 6]\n"
        "%1 = map float32[4, 6]  %0  exp t float32\n"
        "%2 = map float32[4, 6]  %1 %1  add tt float32\n"
        "return %2"
    )
    assert [t.name for t in told] == [p.__name__ for p in PASSES]
    assert str(told[1]) == "pass drop_copies: 6 nodes -> 6, nothing changed"
    assert str(told[3]).startswith("pass merge_equal_nodes: 6 nodes -> 3\nbefore\n%0 = buffer")
    assert told[2].before == told[1].after
    assert told[-1].after == found
