"""Attention without scores in memory: the kernels of both backends against PyTorch in float64, and
against products with the same random numbers.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import webtorch
from tests.lower.harness import open_device
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import Attention, BufferSlot
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.lower.templates import (
    attention,
    attention_again,
    attention_backward,
    attention_tiles,
)
from webtorch.lower.templates.attention import fits
from webtorch.nn import functional as F

TOLERANCE = {"float64": 1e-10, "float32": 4e-5, "float16": 2e-2}
# batch, heads of query, of key, queries, keys, size, width, dtype, mask, causal, layout
CASES: list[tuple[Any, ...]] = [
    (2, 4, 2, 19, 33, 8, 8, "float32", None, True, "rows"),
    (1, 2, 2, 17, 70, 10, 6, "float16", "bool", False, "heads"),
    # What a float mask of the lowest number hides is seen where a row has nothing else.
    (1, 2, 1, 5, 33, 8, 8, "float32", "lowest", False, "rows"),
]
ON_CPU: list[tuple[Any, ...]] = [
    (2, 3, 1, 33, 5, 16, 4, "float64", "float", False, "rows"),
    (1, 2, 2, 5, 40, 33, 33, "float32", "bool", False, "heads"),
    (2, 2, 2, 40, 17, 8, 8, "float32", None, True, "heads"),
]
# In machine code: several blocks of queries and of keys, whole or not; heads of one vector and of
# several, whole or not; elements far from each other; masks with and without a row for each query.
IN_BLOCKS: list[tuple[Any, ...]] = [
    (1, 3, 1, 130, 200, 64, 64, "float32", None, True, "rows"),
    (2, 2, 1, 100, 65, 32, 17, "float32", "float", False, "heads"),
    (1, 1, 1, 65, 300, 80, 48, "float32", "bool", False, "columns"),
    (1, 2, 2, 1, 129, 128, 5, "float32", "keys", False, "rows"),
    (3, 1, 1, 49, 16, 1, 33, "float32", "float", False, "columns"),
    (1, 2, 1, 16, 1, 16, 16, "float32", None, True, "heads"),
    # Heads of one query that share keys are lanes of one vector, or of two.
    (2, 6, 2, 1, 129, 24, 20, "float32", "each head", False, "rows"),
    (1, 20, 1, 1, 70, 16, 16, "float32", None, False, "columns"),
]


def arrays(case: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """Return query, key and value, and the mask, whose first row sees nothing."""
    b, h, g, length, source, size, width, dtype, mask, _, layout = case
    random = np.random.default_rng(5)

    def one(heads: int, rows: int, last: int) -> Any:
        shape = {"rows": (b, rows, heads, last), "columns": (b, heads, last, rows)}.get(
            layout, (b, heads, rows, last)
        )
        return random.standard_normal(shape).astype(dtype)

    found = [one(h, length, size), one(g, source, size), one(g, source, width)]
    if mask is None:
        return found, None
    seen = random.random((length, source)) < 0.7
    seen[0] = False
    if mask == "each head":
        return found, random.standard_normal((b, h, length, source)).astype(dtype)
    if mask == "keys":
        return found, seen[-1:]
    if mask == "bool":
        return found, np.broadcast_to(seen, (b, 1, length, source)).copy()
    added = random.standard_normal((length, source)).astype(dtype)
    added[~seen] = np.finfo(dtype).min if mask == "lowest" else -np.inf
    return found, added


def results(case: tuple[Any, ...], library: Any, device: str, exact: bool) -> list[Any]:
    """Return the result and the three gradients."""
    causal, layout = case[9:]
    inputs, mask = arrays(case)
    if exact:
        inputs = [x.astype("float64") for x in inputs]
        mask = mask.astype("float64") if mask is not None and mask.dtype != bool else mask
    leaves = [library.tensor(x, device=device, requires_grad=True) for x in inputs]
    order = {"rows": (0, 2, 1, 3), "columns": (0, 1, 3, 2)}.get(layout, (0, 1, 2, 3))
    used = [x.permute(order) for x in leaves]
    m = None if mask is None else library.tensor(mask, device=device)
    # The kernels of PyTorch's CPU keep the logarithm of a row's sum added to its largest score, where it is lost beside
    # the lowest number: their gradients have weights of 1 there.
    with sdpa_kernel(SDPBackend.MATH) if exact else nullcontext():
        out = library.nn.functional.scaled_dot_product_attention(
            *used, m, is_causal=causal, enable_gqa=case[1] != case[2]
        )
    cotangent = np.random.default_rng(6).standard_normal(tuple(out.shape)).astype(inputs[0].dtype)
    out.backward(library.tensor(cotangent, device=device))
    return [x.detach().cpu().double().numpy() for x in (out, *(x.grad for x in leaves))]


def check(case: tuple[Any, ...], device: str) -> None:
    """Compare with PyTorch."""
    expected = results(case, torch, "cpu", True)
    for name, x, y in zip(
        ("result", "query", "key", "value"),
        results(case, webtorch, device, False),
        expected,
        strict=True,
    ):
        tolerance = TOLERANCE[case[7]]
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTORCH_ATTENTION", "fused")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_and_its_gradients_are_pytorchs(case: tuple[Any, ...], device: str) -> None:
    if case[7] == "float16" and device != "cpu" and not open_device().limits.has_f16:
        pytest.skip("the adapter has no float16")
    check(case, device)


@pytest.mark.parametrize("case", ON_CPU, ids=str)
def test_on_the_cpu(case: tuple[Any, ...]) -> None:
    check(case, "cpu")


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("case", IN_BLOCKS, ids=str)
def test_in_machine_code(case: tuple[Any, ...], threads: int) -> None:
    before = webtorch.get_num_threads()
    webtorch.set_num_threads(threads)
    try:
        check(case, "cpu")
    finally:
        webtorch.set_num_threads(before)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("heads", [1, 4])
def test_some_gradients(wanted: tuple[int, ...], heads: int) -> None:
    random = np.random.default_rng(2)
    given = [random.standard_normal((1, heads, 70, 24)).astype(np.float32) for _ in range(3)]

    def found(library: Any) -> list[Any]:
        leaves = [library.tensor(x, requires_grad=i in wanted) for i, x in enumerate(given)]
        out = library.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        (out**2).sum().backward()
        return [leaves[i].grad.numpy() for i in wanted]

    for x, y in zip(found(webtorch), found(torch), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_scores_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite scores, a NaN, and a key that a mask hides, as products have them."""
    query, key = np.ones((1, 1, 20, 4), np.float32), np.ones((1, 1, 70, 4), np.float32)
    key[0, 0, 3] = np.inf
    query[0, 0, 7, 0] = np.nan
    query[0, 0, 9] = -1e30
    mask = np.ones((20, 70), bool)
    mask[11, 3] = False

    def found(mode: str) -> Any:
        monkeypatch.setenv("WEBTORCH_ATTENTION", mode)
        q, k, m = webtorch.tensor(query), webtorch.tensor(key), webtorch.tensor(mask)
        v = webtorch.arange(70.0).reshape(1, 1, 70, 1)
        return F.scaled_dot_product_attention(q, k, v, m).numpy().ravel()

    expected = found("products")
    assert list(np.flatnonzero(np.isfinite(expected))) == [9, 11]
    np.testing.assert_allclose(found("fused"), expected, rtol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("scratch", "case"),
    [
        (0, (1, 2, 1, 21, 35, 8, 12, "float32", "bool", False, "rows")),
        (0, (2, 1, 1, 37, 37, 8, 8, "float32", None, True, "heads")),
        # One head of key's weights at a time, and one batch's.
        (20_000, (2, 4, 2, 22, 30, 8, 8, "float32", None, True, "rows")),
        (16_000, (3, 1, 1, 38, 38, 8, 8, "float32", None, True, "rows")),
    ],
    ids=str,
)
def test_gradients_in_little_memory(
    scratch: int, case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_backward, "_MOST_SCRATCH", scratch)
    check(case, "webgpu")


@pytest.mark.one_in(2)
def test_dropout_and_second_derivatives_are_those_of_products(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(mode: str) -> list[Any]:
        monkeypatch.setenv("WEBTORCH_ATTENTION", mode)
        webtorch.manual_seed(3)
        random = np.random.default_rng(0)
        shapes = ((2, 4, 19, 8), (2, 2, 33, 8), (2, 2, 33, 8))
        leaves = [
            webtorch.tensor(
                random.standard_normal(s), dtype=webtorch.float32, device=device, requires_grad=True
            )
            for s in shapes
        ]
        webtorch.rand(5, device=device)
        out = F.scaled_dot_product_attention(
            *leaves, dropout_p=0.3, is_causal=True, enable_gqa=True
        )
        grads = webtorch.autograd.grad((out * out).sum(), leaves, create_graph=True)
        plain = webtorch.autograd.grad((out * out).sum(), leaves, retain_graph=True)
        sum((g * g).sum() for g in grads).backward()
        tensors = [out, *grads, *plain, *(x.grad for x in leaves), webtorch.rand(3, device=device)]
        return [x.detach().cpu().numpy() for x in tensors]

    for x, y in zip(found("fused"), found("products"), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * abs(y).max())


@pytest.mark.covers("I21")
def test_no_scores_are_in_memory() -> None:
    def attend(x: Any) -> Any:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    program = webtorch.compile(attend)
    program(webtorch.rand(1, 2, 64, 8))
    planned: Program = program.program()
    assert [str(r).split()[0] for r in planned.routines] == ["attention"]
    assert max(b.elements for b in planned.buffers) == 2 * 64 * 8
    assert Program.from_json(planned.to_json()) == planned


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's own loop
def test_vmap_is_one_attention_and_one_gradient() -> None:
    random = np.random.default_rng(0)
    shapes = ((3, 2, 2, 20, 8), (2, 2, 20, 8), (3, 2, 2, 20, 8))
    given = [random.standard_normal(s).astype(np.float32) for s in shapes]

    def work(library: Any) -> Any:
        def attend(q: Any, k: Any, v: Any) -> Any:
            attention = library.nn.functional.scaled_dot_product_attention
            return (attention(q, k, v, is_causal=True) ** 2).sum()

        return library.func.vmap(library.func.grad(attend, argnums=(0, 1, 2)), in_dims=(0, None, 0))

    expected = work(torch)(*map(torch.tensor, given))
    compiled = webtorch.compile(work(webtorch))
    for x, y in zip(compiled(*map(webtorch.tensor, given)), expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-4, atol=1e-4)
    found = [r for r in compiled.program().routines if isinstance(r, Attention)]
    assert sorted((r.part, r.batch, r.results) for r in found) == [
        ("backward", 6, (0, 1, 2)),
        ("forward", 6, (0, 1)),
    ]


def routine(size: int, part: str = "backward", mask: bool = False) -> Attention:
    """Return an attention of 64 x 64 positions."""
    results = {"forward": 2, "query": 1, "key": 2, "backward": 3}[part]
    strided = 3 + mask + (part != "forward")
    reads = strided + 2 * (part != "forward")
    slots = tuple(
        BufferSlot(float32, "read" if i < reads else "write", 1 << 16)
        for i in range(reads + results)
    )
    return Attention(
        "a", part, 1, 2, 2, 64, 64, size, size, False, mask, False,  # type: ignore[arg-type]
        tuple(range(results)), ((64 * 64, 64, 64, 1),) * strided, (0,) * strided,
        slots, (float32,),
    )  # fmt: skip


def test_tiles_fit_into_workgroup_memory_and_few_bindings() -> None:
    limits = Limits(1 << 31, 6, 256, 65_535, 16 << 10, True, True)
    for size in (4, 8, 33, 64, 128, 200):
        tile = attention_tiles.choose_forward(routine(size, "forward"), limits)
        assert tile is not None and tile.forward_bytes(size) <= 16 << 10
        for part in ("query", "key"):
            one = attention_again.choose(routine(size, part), limits)
            assert one is not None and one.shared_bytes(routine(size, part)) <= 16 << 10
    assert not fits(routine(4096), limits)
    larger = attention_tiles.choose_forward(
        routine(64), replace(limits, workgroup_memory_bytes=48 << 10)
    )
    assert larger is not None and larger.rows * larger.columns >= 32 * 64
    # Nine bindings are more than eight: each result is a dispatch.
    key = routine(8, "key", mask=True)
    found = attention_again.passes(key, limits, attention_again.TILES[4])
    assert [len(p.bindings) for p in found] == [9, 9]
    assert {s for p in found for s in p.slots} == set(range(9))
    assert all(
        len(p.bindings) <= 9 for p in attention.render(routine(8, mask=True), limits, "naga")
    )
