"""Tensors larger than a binding, or than a buffer: each dispatch in parts that bind windows."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conftest import need_device
from webtorch.errors import OutOfMemoryError
from webtorch.ir.dtype import float32
from webtorch.ir.program import Program
from webtorch.lower.in_parts import within_bindings
from webtorch.lower.layout import binding_bytes
from webtorch.lower.windows import ALIGN
from webtorch.tensors.device import resolve

# Bytes: 256 numbers of 32 bits.
BINDING = 1024


def _limited(monkeypatch: pytest.MonkeyPatch, buffer: int = 0) -> Iterator[Any]:
    need_device("webgpu")
    runtime = resolve("webgpu")
    backend: Any = runtime.backend
    limits = replace(
        backend.limits,
        max_binding_bytes=BINDING,
        max_buffer_bytes=buffer or backend.limits.max_buffer_bytes,
    )
    monkeypatch.setattr(backend, "limits", limits)
    monkeypatch.setattr(backend.pool, "_max_buffer", limits.max_buffer_bytes)
    monkeypatch.setattr(backend.pool, "_step", limits.row_step)
    runtime.programs.clear()
    yield backend
    runtime.programs.clear()
    # What a cycle still holds would come back to the pool as memory of these limits.
    gc.collect()
    backend.empty_cache()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a device that binds at most 1 KiB."""
    yield from _limited(monkeypatch)


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return one whose buffers have no more either."""
    yield from _limited(monkeypatch, BINDING)


def numbers(*shape: int) -> torch.Tensor:
    """Return random numbers, the same ones each time."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(values)


INDEX = torch.from_numpy(np.random.default_rng(1).integers(0, 300, 400))


def _in_place(t: Any, x: Any) -> Any:
    y = x.clone()
    y[100:500] *= 3
    y[5] = 1
    return y


def _scattered(t: Any, rows: Any, index: Any) -> Any:
    return t.zeros(300, 4, device=rows.device).index_add(0, index, rows)


def _trained(t: Any, x: Any, weight: Any) -> Any:
    """Return a weight after two steps of Adam."""
    layer = t.nn.Linear(20, 20, device=x.device)
    with t.no_grad():
        layer.weight.copy_(weight)
        layer.bias.fill_(0.0)
    optimizer = t.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (t.nn.functional.layer_norm(layer(x), (20,)) - x).pow(2).mean().backward()
        optimizer.step()
    return layer.weight.detach()


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "elementwise": (lambda t, x: x.exp() * 2 > 1, (numbers(600),)),
    "transposed": (lambda t, x, y: x.t() + y, (numbers(17, 16), numbers(16, 17))),
    "16 bits": (lambda t, x: x.half().exp().float(), (numbers(601),)),
    "whole sum": (lambda t, x: x.sum(), (numbers(600),)),
    "sums of columns": (lambda t, x: x.sum(0), (numbers(90, 7),)),
    "softmax": (lambda t, x: x.softmax(1), (numbers(2, 300),)),
    "variance": (lambda t, x: x.var(), (numbers(600),)),
    "argmax": (lambda t, x: x.argmax(), (numbers(600),)),
    "product": (lambda t, x, y: (x @ y).relu() + 1, (numbers(12, 25), numbers(25, 20))),
    "batched product": (lambda t, x, y: x @ y, (numbers(3, 9, 12), numbers(3, 12, 10))),
    "embedding": (lambda t, w, i: w[i] * 2, (numbers(300, 4), INDEX)),
    "scatter": (_scattered, (numbers(400, 4), INDEX)),
    "gather": (lambda t, x, i: x.gather(0, i), (numbers(600), INDEX)),
    "cross entropy": (
        lambda t, x, i: t.nn.functional.cross_entropy(x, i % 4), (numbers(400, 4), INDEX)
    ),
    "halves": (lambda t, x: x[:300] * x[300:], (numbers(600),)),
    "padded": (lambda t, x: t.nn.functional.pad(x, (2, 3, 1, 0)) * 2, (numbers(30, 21),)),
    "joined": (lambda t, x: t.cat([x, x[:200]]), (numbers(600),)),
    "in place": (_in_place, (numbers(600),)),
    "running sum": (lambda t, x: x.cumsum(0), (numbers(600),)),
    "running sums of columns": (lambda t, x: x.cumsum(0), (numbers(90, 7),)),
    "sorted rows": (lambda t, x: x.sort(1).values, (numbers(20, 30),)),
    "sorted rows of an odd length": (lambda t, x: x.sort(1).values, (numbers(150, 5),)),
    "convolution": (
        lambda t, x, w: t.nn.functional.conv2d(x, w, padding=1).relu(),
        (numbers(3, 3, 7, 7), numbers(4, 3, 3, 3)),
    ),
    "a layer and its optimizer": (_trained, (numbers(16, 20), numbers(20, 20))),
}  # fmt: skip


def _named(long: Callable[[str], bool]) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.long) if long(n) else n for n in CASES]


# What trains compiles some 40 kernels.
@pytest.mark.parametrize("name", _named(lambda name: "optimizer" in name))
def test_more_than_a_binding_is_computed_in_parts(name: str, narrow: Any) -> None:
    _agrees(name)


# Rows reach over the edges between buffers in these.
ROWS = ("transposed", "sums of columns", "softmax", "product", "embedding", "sorted rows")


@pytest.mark.parametrize("name", _named(lambda name: name not in ROWS))
def test_more_than_a_buffer_is_spread_over_several(name: str, spread: Any) -> None:
    _agrees(name)
    assert all(len(b.row) * BINDING >= b.capacity or b.capacity <= BINDING for b in _blocks(spread))
    assert any(b.row for b in _blocks(spread))


def _blocks(backend: Any) -> list[Any]:
    return list(backend.pool._blocks.values())


def _agrees(name: str) -> None:
    run, given = CASES[name]
    expected = run(torch, *given).double()
    found = run(webtorch, *[webtorch.tensor(x.numpy(), device="webgpu") for x in given])
    error = (torch.tensor(found.tolist()).double() - expected).abs().max()
    assert error <= 2e-6 * max(1.0, float(expected.abs().max())) * (1000 if "16" in name else 10)


def _program(run: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    compiled = webtorch.compile(lambda *x: run(webtorch, *x))
    compiled(*[webtorch.zeros(*s, device="webgpu") for s in shapes])
    return compiled.program()


def test_windows_are_aligned_and_fit(narrow: Any) -> None:
    run, given = CASES["product"]
    program = within_bindings(_program(run, *[tuple(x.shape) for x in given]), narrow.limits)
    assert any(step.starts for step in program.steps)
    for step in program.steps:
        slots = program.routines[step.routine].buffers
        for slot, start in zip(slots, step.starts or [0] * len(slots), strict=True):
            assert start * slot.dtype.itemsize % ALIGN == 0
            assert binding_bytes(slot.dtype, slot.elements) <= BINDING


def test_what_lies_outside_a_tensor_takes_no_window(narrow: Any) -> None:
    run, given = CASES["padded"]
    program = within_bindings(_program(run, *[tuple(x.shape) for x in given]), narrow.limits)
    # (32 where each window is looked through for it.)
    assert len(program.steps) <= 8


def test_parts_of_one_size_are_one_kernel(narrow: Any) -> None:
    program = within_bindings(_program(lambda t, x: x.exp(), (1024,)), narrow.limits)
    assert len(program.steps) >= 4 and len(program.routines) == 1


def test_a_program_that_fits_is_the_same(narrow: Any) -> None:
    program = _program(lambda t, x: x.exp(), (200,))
    assert within_bindings(program, narrow.limits) is program


def test_what_cannot_be_in_parts_is_refused_and_nothing_is_lost(narrow: Any) -> None:
    x = webtorch.tensor(numbers(600).numpy(), device="webgpu")
    with pytest.raises(
        OutOfMemoryError, match=r"1024 bytes\), and this cannot be computed in parts"
    ):
        x.sort().values.tolist()
    assert abs(float(x.sum()) - float(numbers(600).sum())) < 1e-3


def test_a_loop_is_cut_before_the_row_over_an_edge_and_behind_it(spread: Any) -> None:
    program = within_bindings(_program(lambda t, x: x.exp(), (90, 7)), spread.limits)
    # (256 numbers are 36 rows and 4 numbers, which are cut; a program's loops may be one.)
    assert all(
        start * 4 // BINDING == (start + slot.elements - 1) * 4 // BINDING
        for step in program.steps
        for start, slot in zip(step.starts, program.routines[step.routine].buffers, strict=True)
    )
    assert len(program.steps) <= 8


def test_few_rows_of_a_template_are_copied() -> None:
    need_device("webgpu")
    limits = replace(
        resolve("webgpu").backend.limits, max_binding_bytes=1 << 14, max_buffer_bytes=1 << 14
    )
    program = _program(lambda t, x: x.sort(1).values, (2000, 6))
    copies = within_bindings(program, limits).buffers[len(program.buffers) :]
    # Two edges, each of operand and result: behind 32 rows of 24 bytes a window may begin. (And what is sorted by.)
    assert sorted(b.elements for b in copies) == [32 * 6] * 4 + [2000 * 6]


def test_data_goes_up_and_comes_back_through_several_buffers(spread: Any) -> None:
    for values in (np.arange(1001), np.arange(1001) > 500, np.linspace(0, 1, 777, dtype="f4")):
        x = webtorch.tensor(values, device="webgpu")
        assert x.tolist() == values.tolist()
        assert x.clone()[600:].tolist() == values[600:].tolist()
    held = spread.upload(values.tobytes(), float32, values.size)

    async def later() -> bytes:
        return bytes(await spread.download_async(held))

    assert len(held.block.row) == 4 and asyncio.run(later()) == values.tobytes()
    wide = np.arange(300) << 40
    assert webtorch.tensor(wide, device="webgpu").tolist() == wide.tolist()
    bad = webtorch.arange(600, device="webgpu")[webtorch.tensor([999], device="webgpu")]
    with pytest.raises(IndexError, match="999"):
        (bad + webtorch.zeros(600, device="webgpu")).tolist()


def test_a_shader_of_a_users_needs_a_tensor_in_one_buffer(spread: Any) -> None:
    text = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;"
    lib = webtorch.webgpu.compile_shader(
        f"{text}\n@compute @workgroup_size(1) fn one() {{ x[0] = 2; }}"
    )
    x = webtorch.ones(600, device="webgpu")
    with pytest.raises(OutOfMemoryError, match="lie in several buffers"):
        lib.one(x)
    assert x.sum().item() == 600
