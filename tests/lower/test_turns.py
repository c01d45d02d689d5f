"""Small kernels that need each other, in one dispatch: which run in turn, in how many groups, and what they give."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.lower.graphs import program_of
from tests.lower.test_together import packed
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32
from webtorch.ir.kernel import BufferSlot, Kernel, Several, Store
from webtorch.ir.program import Dispatch, Program
from webtorch.llm.model import attend
from webtorch.lower.turns import put_in_turn
from webtorch.lower.wgsl import render
from webtorch.nn import functional as F
from webtorch.quantization import quantize
from webtorch.runtime.meta import COMMON_GPU
from webtorch.tensors.device import resolve

GPU = replace(COMMON_GPU, has_turns=True)


def turns(program: Program) -> list[tuple[int, int]]:
    """Return of each step how many kernels run in turn, and in how many groups."""
    routines = [program.routines[s.routine] for s in program.steps if isinstance(s, Dispatch)]
    return [(len(r.parts), r.groups) if isinstance(r, Several) else (1, 0) for r in routines]


def test_what_a_norm_leaves_is_rounded_where_it_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = packed(1024, 4096)
    backend: Any = resolve("meta").backend
    monkeypatch.setattr(backend, "limits", replace(GPU, has_dots=True))

    def layer(x: webtorch.Tensor) -> webtorch.Tensor:
        return F.rms_norm(x, (4096,)) @ weight.T

    x = webtorch.zeros(1, 4096, device="meta")
    program = program_of(layer, x, limits=backend.limits)
    assert turns(program) == [(2, 1), (1, 0)]
    row = program.routines[0]
    assert isinstance(row, Several) and [len(p.reduces) for p in row.parts] == [1, 0]
    # Nobody else sees the row: it stays in the workgroup's memory.
    assert [count for _, count in row.local] == [4096 + 4]
    assert Program.from_json(program.to_json()) == program


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention of one query for each of some heads, as sums."""
    scores = (q.unsqueeze(1) * k).sum(-1) * 0.125  # (heads, places)
    parts = webtorch.softmax(scores, -1)
    return (parts.unsqueeze(-1) * v).sum(1).tanh()


def test_heads_need_their_own_scores_only() -> None:
    shapes = ((4, 16), (4, 24, 16), (4, 24, 16))
    given = [webtorch.zeros(*s, device="meta") for s in shapes]
    program = program_of(attention, *given, limits=GPU)
    assert turns(program) == [(3, 4)]
    several = program.routines[0]
    # Its scores, and what they become.
    assert isinstance(several, Several) and [count for _, count in several.local] == [24, 24]
    # Keys that lie place by place are read only: heads are still apart.
    assert len(program_of(attention, *given, limits=replace(GPU, has_turns=False)).steps) == 3


def test_what_all_need_is_one_group_and_what_is_long_stays_apart() -> None:
    def normed(x: Any) -> Any:
        total = (x * x).sum(0)  # of columns, which all rows need
        return (x * total.sqrt()).sum(1)

    small, large = (webtorch.zeros(n, n, device="meta") for n in (32, 2048))
    assert turns(program_of(normed, small, limits=GPU)) == [(2, 1)]
    assert {g for _, g in turns(program_of(normed, large, limits=GPU))} == {0}


def test_what_has_many_points_keeps_the_whole_card_at_work() -> None:
    def shown(x: Any) -> Any:
        # A sum of neighbours is a kernel of its own, and what reads it twice another.
        pairs = x.reshape(64, -1, 2).sum(-1)
        return (pairs - pairs.flip(1)).tanh()

    few, many = (webtorch.zeros(64, n, device="meta") for n in (256, 4096))
    assert [n for n, _ in turns(program_of(shown, few, limits=GPU))] == [2]
    assert [n for n, _ in turns(program_of(shown, many, limits=GPU))] == [1, 1]


def test_groups_follow_from_where_kernels_read_and_write() -> None:
    size = 64
    i, j = ex.index(0, size), ex.index(1, 8)
    slots = (BufferSlot(float32, "read", 8 * size), BufferSlot(float32, "write", 8 * size))
    value = ex.load(0, float32, i * 8 + j)
    first = Kernel("first", (size, 8), (), slots, (), (), (Store(1, i * 8 + j, value),))
    again = replace(slots[1], access="read"), replace(slots[0], access="write")

    def groups(position: ex.Expr) -> int:
        """Return how many groups there are where the second kernel reads at a position of what the first writes."""
        store = Store(1, i * 8 + j, ex.load(0, float32, position) + 1.0)
        kernel = Kernel("second", (size, 8), (), again, (), (), (store,))
        steps = [Dispatch(0, (0, 1), ()), Dispatch(1, (1, 2), ())]
        _, routines = put_in_turn(list(steps), [first, kernel], GPU, [])
        assert isinstance(routines[0], Several)
        return routines[0].groups

    assert groups(i * 8 + j) == 64
    assert groups(i * 8 + (7 - j)) == 64
    # The neighbour's row; columns; a position that data give.
    assert groups(ex.mod(i + 1, size) * 8 + j) == 1
    assert groups(j * size + i) == 1
    assert groups(ex.cast(value, i.dtype)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_in_turn_give_what_they_give_apart(device: str, dtype: str) -> None:
    runtime = resolve(device)
    backend: Any = runtime.backend
    rng = np.random.default_rng(0)
    kind = getattr(webtorch, dtype)
    shapes = ((4, 16), (4, 24, 16), (4, 24, 16), (33, 10), (7,))

    def step(q: Any, k: Any, v: Any, x: Any, at: Any) -> tuple[Any, ...]:
        norm = F.rms_norm(x.flatten(), (330,)).view(33, 10)
        kept = webtorch.zeros(33, 16, dtype=kind, device=device)
        kept[5:12, 3:13] = norm[at.long()]
        return attention(q, k, v), norm.cumsum(0), kept, norm.argmax(), (norm > 0).any(1)

    given = [webtorch.tensor(rng.standard_normal(s), dtype=kind).to(device) for s in shapes[:4]]
    given.append(webtorch.tensor([3, 1, 4, 1, 5, 9, 2], dtype=webtorch.int32).to(device))
    before, found = backend.limits, []
    try:
        for on in (False, True):
            backend.limits = replace(before, has_turns=on)
            runtime.programs.clear()
            compiled = webtorch.compile(step)
            found.append([y.cpu().numpy().astype(np.float64) for y in compiled(*given)])
            several = [r for r in compiled.program().routines if isinstance(r, Several)]
            assert any(r.groups for r in several) == on
    finally:
        backend.limits = before
        runtime.programs.clear()
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-6)


@pytest.mark.parametrize("source", [512, 1024, 8448, 33024])
@pytest.mark.parametrize("heads", [(32, 8, 128), (14, 2, 64)])
def test_attention_of_one_query_is_many_groups_and_what_puts_their_results_together(
    source: int, heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = resolve("meta").backend
    limits = replace(GPU, max_workgroup_invocations=1024, workgroup_memory_bytes=49152)
    monkeypatch.setattr(backend, "limits", limits)
    count, shared, size = heads

    def step(q: Any, k: Any, v: Any, at: Any) -> Any:
        seen = webtorch.arange(source, device="meta") <= at
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)

    q = webtorch.zeros(1, count, 1, size, device="meta")
    k = webtorch.zeros(1, source, shared, size, device="meta").transpose(1, 2)
    program = program_of(step, q, k, k.clone(), webtorch.zeros(1, device="meta"), limits=limits)
    found = turns(program)
    assert found[0][0] in (2, 3) and found[0][1] % shared == 0 and found[-1] == (1, 0)
    if source > 1024:
        assert len(found) == 2 and found[0][0] == 3 and found[0][1] >= 128
    # Each group reads keys only where its part has some that are seen.
    several = program.routines[0]
    passes = render(several, limits, "dawn")
    assert len(passes) == 1 and re.search(r"k: i32 = v\d+; k <", passes[0].source)


MASKS: dict[str, Callable[[Any], Any]] = {
    "none": lambda at: None,
    "first": lambda at: at <= 0,
    "few": lambda at: at <= 300,
    "window": lambda at: (at > 500) & (at <= 643),
    "nothing": lambda at: at < 0,
    "added": lambda at: np.where(at % 3 == 1, -np.inf, np.sin(at)).astype(np.float32),
}


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_in_parts_agrees_with_pytorch(
    device: str, mask: str, queries: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = resolve(device)
    backend: Any = runtime.backend
    monkeypatch.setattr(backend, "limits", replace(backend.limits, is_gpu=True, has_turns=True))
    rng = np.random.default_rng(0)
    shapes = ((2, 4, queries, 40), (2, 2, 1040, 40), (2, 2, 1040, 24))
    given = [rng.standard_normal(s, dtype=np.float32) for s in shapes]
    seen = MASKS[mask](np.arange(1040)[None])
    exact = [torch.from_numpy(x).to(getattr(torch, dtype)).double() for x in given]
    shown = None if seen is None else torch.from_numpy(seen)
    shown = shown if shown is None or shown.dtype is torch.bool else shown.double()
    attend = torch.nn.functional.scaled_dot_product_attention
    wanted = attend(*exact, attn_mask=shown, enable_gqa=True)
    if mask == "nothing":
        wanted = torch.zeros_like(wanted)  # PyTorch's too, or NaN, by the kernel that it takes
    kind = getattr(webtorch, dtype)
    tensors = [webtorch.from_numpy(x).to(kind).to(device) for x in given]
    masks = [] if seen is None else [webtorch.from_numpy(seen).to(device)]
    step = webtorch.compile(
        lambda q, k, v, m=None: F.scaled_dot_product_attention(
            q, k, v, attn_mask=m, enable_gqa=True
        )
    )
    result = step(*tensors, *masks).float().cpu().numpy()
    first = step.program().routines[0]
    assert isinstance(first, Several) and len(first.parts) >= 2
    runtime.programs.clear()
    np.testing.assert_allclose(result, wanted.numpy(), atol=1e-6 if dtype == "float32" else 1e-3)


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
def test_parts_know_caps_sinks_and_caches_of_bytes(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = resolve(device)
    backend: Any = runtime.backend
    monkeypatch.setattr(backend, "limits", replace(backend.limits, is_gpu=True, has_turns=True))
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 8, 1, 32), dtype=np.float32)
    k, v = (rng.integers(-127, 128, (1, 4, 768, 32), dtype=np.int8) for _ in range(2))
    scale = rng.uniform(0.001, 0.02, (1, 4, 768, 1)).astype(np.float32)
    sinks, seen = rng.standard_normal(8, dtype=np.float32), np.arange(768)[None] <= 400

    def step(q: Any, k: Any, v: Any, scale: Any, sinks: Any, seen: Any) -> Any:
        return attend(q, k.float() * scale, v.float() * scale, seen, 0.2, 30.0, sinks)

    keys, values = (torch.from_numpy(x).double() * torch.from_numpy(scale).double() for x in (k, v))
    keys, values = (x.repeat_interleave(2, 1) for x in (keys, values))
    scores = torch.from_numpy(q).double() @ keys.mT * 0.2
    scores = (torch.tanh(scores / 30.0) * 30.0).masked_fill(~torch.from_numpy(seen), -torch.inf)
    held = torch.from_numpy(sinks).double().reshape(1, 8, 1, 1)
    wanted = torch.softmax(torch.cat([scores, held], -1), -1)[..., :-1] @ values
    given = [webtorch.from_numpy(x).to(device) for x in (q, k, v, scale, sinks, seen)]
    compiled = webtorch.compile(step)
    result = compiled(*given).cpu().numpy()
    first = compiled.program().routines[0]
    assert isinstance(first, Several) and len(first.parts) >= 2
    runtime.programs.clear()
    np.testing.assert_allclose(result, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize("form", ["Q4_K", "Q6_K"])
def test_what_a_gate_lets_through_is_rounded_by_who_computed_it(
    device: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of 16 numbers is a group: many groups, where the products are large."""
    runtime = resolve(device)
    backend: Any = runtime.backend
    monkeypatch.setattr("webtorch.functions.packed._LARGE", 0)
    monkeypatch.setattr("webtorch.lower.turns._FEW_GROUPS", 1)
    monkeypatch.setattr("webtorch.lower.turns._MANY_GROUPS", 64)
    rng = np.random.default_rng(0)
    gate, up, down = (
        webtorch.from_numpy(rng.standard_normal(shape, dtype=np.float32) * 0.1)
        for shape in ((1024, 512), (1024, 512), (48, 1024))
    )
    weights = [quantize(w, f).to(device) for w, f in ((gate, "Q4_K"), (up, "Q4_K"), (down, form))]
    x = webtorch.from_numpy(rng.standard_normal((1, 512), dtype=np.float32)).to(device)
    found = []
    for on in (False, True):
        limits = replace(backend.limits, is_gpu=True, has_dots=True, has_halves=True, has_turns=on)
        monkeypatch.setattr(backend, "limits", limits)
        runtime.programs.clear()
        step = webtorch.compile(
            lambda x: (F.silu(x @ weights[0].T) * (x @ weights[1].T)) @ weights[2].T
        )
        found.append(step(x).cpu().numpy())
        several = [r for r in step.program().routines if isinstance(r, Several)]
        assert (64 in [r.groups for r in several]) == on
    runtime.programs.clear()
    exact = (
        weights[0].cpu().dequantize(),
        weights[1].cpu().dequantize(),
        weights[2].cpu().dequantize(),
    )
    y = x.cpu()
    wanted = (F.silu(y @ exact[0].T) * (y @ exact[1].T)) @ exact[2].T
    for result in found:
        np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-4, atol=1e-4)
