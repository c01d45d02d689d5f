"""Small kernels in one dispatch: the updates of many parameters, where a device gains from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import webtorch
from tests.lower.graphs import GPU, program_of
from webtorch import nn, optim
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import BufferSlot, Kernel, Reduce, Several, Store
from webtorch.ir.program import Dispatch, Program, Step
from webtorch.lower.together import put_together
from webtorch.nn import functional as F
from webtorch.quantization import FORMATS, PackedTensor
from webtorch.tensors.device import resolve

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.fixture
def merging(device: str) -> Iterator[Callable[..., None]]:
    """Return a function that says whether the device merges kernels."""
    runtime = resolve(device)
    backend: Any = runtime.backend
    before = backend.limits

    def choose(on: bool, **more: Any) -> None:
        backend.limits = replace(before, has_several=on, has_turns=False, **more)
        runtime.programs.clear()

    yield choose
    backend.limits = before
    runtime.programs.clear()


def train(device: str, make: Callable[[Any], Any]) -> tuple[list[Any], Program]:
    """Return losses and parameters after some compiled steps, and the program."""
    webtorch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)).to(device)
    optimizer = make(model.parameters())
    x = webtorch.tensor(np.random.default_rng(0).standard_normal((7, 10)), dtype=webtorch.float32)
    x, y = x.to(device), webtorch.tensor([0, 1, 2, 0, 1, 2, 0], device=device)

    @webtorch.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = [step(x, y).item() for _ in range(3)]
    found = [np.array(losses), *(p.detach().cpu().numpy() for p in model.parameters())]
    return found, step.program()


@pytest.mark.parametrize("bindings", [None, 9])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_several_parameters_are_one_dispatch(
    name: str, bindings: int | None, device: str, merging: Callable[..., None]
) -> None:
    # Dawn on a card has few.
    more = {"max_buffers_per_kernel": bindings} if bindings else {}
    merging(False, **more)
    apart, plain = train(device, OPTIMIZERS[name])
    merging(True, **more)
    together, merged = train(device, OPTIMIZERS[name])
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_array_equal(a, b)
    updates = [r for r in merged.routines if isinstance(r, Several)]
    # The gradients of biases and norms are reductions, which end with the update.
    most = resolve(device).backend.limits.max_buffers_per_kernel
    sizes = [len(r.buffers) for r in updates]
    assert updates and max(sizes) <= most and all(len(r.parts) >= 2 for r in updates)
    # As many as the bindings of one dispatch allow: no two would fit into one.
    assert all(a + b > most for a, b in itertools.combinations(sizes, 2))
    assert len(plain.steps) - len(merged.steps) == sum(len(r.parts) - 1 for r in updates)
    assert Program.from_json(merged.to_json()) == merged


def test_what_needs_the_value_between_stays_between(
    device: str, merging: Callable[[bool], None]
) -> None:
    merging(True)
    a, b = webtorch.zeros(4, device=device), webtorch.zeros(5, device=device)

    @webtorch.compile
    def step() -> Any:
        a.add_(1)
        total = webtorch.cumsum(a, 0)
        b.add_(total[-1])
        a.add_(1)
        return total

    assert step().tolist() == [1, 2, 3, 4]
    assert step().tolist() == [3, 6, 9, 12]
    assert a.tolist() == [4] * 4 and b.tolist() == [16] * 5


def test_sums_with_the_same_loops_are_one_kernel(
    device: str, merging: Callable[[bool], None]
) -> None:
    merging(True)
    a, b = webtorch.zeros(6, device=device), webtorch.ones(6, device=device)
    rng = np.random.default_rng(0)
    g, h = (rng.standard_normal((5, 6)).astype(np.float32) for _ in range(2))

    @webtorch.compile
    def step(g: Any, h: Any) -> None:
        a.add_(g.sum(0), alpha=0.5)
        b.mul_(2).add_(h.sum(0))

    for _ in range(2):
        step(webtorch.tensor(g, device=device), webtorch.tensor(h, device=device))
    (kernel,) = step.program().routines
    assert isinstance(kernel, Kernel) and len(kernel.reduces) == 2
    np.testing.assert_allclose(a.cpu().numpy(), g.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.cpu().numpy(), 4 + 3 * h.sum(0), rtol=1e-5, atol=1e-5)


def test_sums_along_columns_share_what_they_read(device: str) -> None:
    backend: Any = resolve(device).backend
    before = backend.limits
    backend.limits = replace(before, is_gpu=True)
    try:
        x = np.random.default_rng(1).standard_normal((64, 30, 40)).astype(np.float32)
        sums = webtorch.compile(lambda x: (x.sum(1), (x * x).sum(1)))
        first, second = sums(webtorch.tensor(x, device=device))
        assert len(sums.program().routines) == 1
        np.testing.assert_allclose(first.cpu().numpy(), x.sum(1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(second.cpu().numpy(), (x * x).sum(1), rtol=1e-5)
    finally:
        backend.limits = before


def packed(rows: int, columns: int, form: str = "Q4_K") -> PackedTensor:
    """Return a matrix of zeros."""
    count = rows * FORMATS[form].row_bytes(columns)
    return PackedTensor.from_bytes(bytes(count), form, (rows, columns)).to("meta")


def test_a_row_is_laid_out_once_and_multiplied_by_several_matrices_at_once() -> None:
    """Sums of as many rows are one kernel, with what follows them; others stand beside each other."""
    q, k, v, gate, up = (packed(n, 512) for n in (512, 256, 256, 1024, 1024))

    def layer(x: webtorch.Tensor) -> tuple[webtorch.Tensor, ...]:
        x = x.sin()
        return (*(x @ w.T for w in (q, k, v)), F.silu(x @ gate.T) * (x @ up.T))

    x = webtorch.zeros(1, 512, device="meta")
    row, several = program_of(layer, x, has_several=True, max_buffers_per_kernel=12).routines
    assert isinstance(row, Kernel) and len(row.stores) == 1 and not row.reduces
    assert isinstance(several, Several)
    assert [(p.outer_count, len(p.reduces), len(p.stores)) for p in several.parts] == [
        (512, 1, 1), (256, 2, 2), (1024, 2, 1),
    ]  # fmt: skip
    # Where fewer buffers are bound, they are two dispatches.
    assert len(program_of(layer, x, has_several=True, max_buffers_per_kernel=8).steps) == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_sums_beside_each_other_are_those_of_each(
    rows: int, device: str, merging: Callable[..., None]
) -> None:
    rng = np.random.default_rng(0)
    x = webtorch.tensor(rng.standard_normal((rows, 96)), dtype=webtorch.float32).to(device)
    weights = [
        webtorch.tensor(rng.standard_normal((n, 96)), dtype=webtorch.float32).to(device)
        for n in (48, 80)
    ]

    def sums(x: webtorch.Tensor) -> list[webtorch.Tensor]:
        return [(x.unsqueeze(1) * w).sum(-1) for w in weights]

    merging(True, has_joint_products=True)
    compiled = webtorch.compile(sums)
    found = compiled(x)
    for y, w in zip(found, weights, strict=True):
        np.testing.assert_allclose(y.cpu(), x.cpu().numpy() @ w.cpu().numpy().T, atol=1e-4)
    routines = compiled.latest().executable.program.routines
    assert [type(r) for r in routines] == [Several]


def test_sums_stay_behind_updates_that_move() -> None:
    """An update that waits for another one happens there: a sum of what it writes may not move to before that."""
    size, rows = 8, 5
    i, j = ex.index(0, rows), ex.index(1, size)
    inside = BufferSlot(float32, "read_write", rows * size)
    more = ex.load(0, float32, ex.index(0, rows * size)) + 1.0
    update = Kernel(
        "update", (rows * size,), (), (inside,), (), (), (Store(0, ex.index(0, rows * size), more),)
    )
    value = ex.load(0, float32, i * size + j) * ex.load(1, float32, j)
    slots = [BufferSlot(float32, "read", n) for n in (rows * size, size)]
    total = Kernel(
        "total", (rows,), (size,), (*slots, BufferSlot(float32, "write", rows)), (),
        (Reduce("sum", value, float32),), (Store(2, i, ex.reduced(0, float32)),),
    )  # fmt: skip
    written, vector, other = 0, 1, 2
    steps: list[Step] = [
        Dispatch(0, (written,), (), ""),
        Dispatch(1, (other, vector, 3), (), ""),
        Dispatch(0, (4,), (), ""),
        Dispatch(1, (written, vector, 5), (), ""),
    ]
    found, _ = put_together(steps, [update, total], replace(GPU, has_several=True), [])
    # The updates are one, behind the first sum; the second one comes last.
    assert [s.buffers for s in found if isinstance(s, Dispatch)] == [
        (other, vector, 3), (written, 4), (written, vector, 5),
    ]  # fmt: skip
