"""Products of groups of rows (`grouped_mm`), of which mixtures of experts are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import webtorch
from webtorch.pytorch import device

ENDS = [
    (6, [2, 2, 6]),
    (40, [0, 17, 30, 38]),
    (150, [1, 140, 145]),
    (5, [0, 0, 0, 1, 1, 3, 3, 5]),
]


@pytest.mark.parametrize(("rows", "ends"), ENDS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_row_meets_the_matrix_of_its_group(
    webgpu: str, rows: int, ends: list[int], compiled: bool
) -> None:
    x, w = torch.randn(rows, 16), torch.randn(len(ends), 16, 8)
    g = torch.randn(rows, 8)
    # Rows beyond the last group are in none: what they are is not said.
    g[ends[-1] :] = 0
    offs = torch.tensor(ends, dtype=torch.int32)

    # PyTorch traces it for 16-bit floats alone.
    kind = torch.bfloat16 if compiled else torch.float32

    def product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return F.grouped_mm(a.to(kind), b.to(kind), offs=offs).float()

    torch._dynamo.reset()
    run = torch.compile(product, backend="webgpu", fullgraph=True) if compiled else product
    a, b = x.to(webgpu).requires_grad_(), w.to(webgpu).requires_grad_()
    found = run(a, b, offs.to(webgpu))
    found.backward(g.to(webgpu))
    starts = [0, *ends[:-1]]
    expected = [x[s:e] @ w[i] for i, (s, e) in enumerate(zip(starts, ends, strict=True))]
    slopes = [x[s:e].T @ g[s:e] for s, e in zip(starts, ends, strict=True)]
    back = [g[s:e] @ w[i].T for i, (s, e) in enumerate(zip(starts, ends, strict=True))]
    assert a.grad is not None and b.grad is not None
    for actual, wanted in (
        (found.detach()[: ends[-1]], torch.cat(expected)),
        (a.grad[: ends[-1]], torch.cat(back)),
        (b.grad, torch.stack(slopes)),
    ):
        error = (actual.cpu() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if compiled else 1e-5)


def test_groups_of_columns_and_batches(webgpu: str) -> None:
    a, b = torch.randn(3, 5, 16), torch.randn(16, 10)
    offs = torch.tensor([4, 4, 10], dtype=torch.int32)
    found = F.grouped_mm(a.to(webgpu), b.to(webgpu), offs=offs.to(webgpu)).cpu()
    wanted = torch.cat([a[0] @ b[:, :4], a[2] @ b[:, 4:]], 1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    c = torch.randn(3, 16, 7)
    found = F.grouped_mm(a.to(webgpu), c.to(webgpu)).cpu()
    torch.testing.assert_close(found, a @ c, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="contraction dimension"):
        F.grouped_mm(a.to(webgpu), b.T.to(webgpu), offs=offs.to(webgpu))


def test_other_groups_compile_nothing_and_wait_for_nothing(webgpu: str) -> None:
    x, w = torch.randn(24, 16, device=webgpu), torch.randn(4, 16, 8, device=webgpu)

    def run(ends: list[int]) -> torch.Tensor:
        return F.grouped_mm(x, w, offs=torch.tensor(ends, dtype=torch.int32).to(webgpu))

    for ends in ([6, 12, 18, 24], [1, 2, 23, 24]):
        run(ends).sum().item()
    before = len(device.runtime().programs)
    for ends in ([0, 5, 20, 24], [24, 24, 24, 24], [3, 9, 10, 24]):
        run(ends).sum().item()
    assert len(device.runtime().programs) == before


def test_what_transformers_calls_where_it_compiles_in_float32(webgpu: str) -> None:
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        library = torch.library.Library("transformers", "FRAGMENT")
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.define(
            "grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> "
            "(Tensor, Tensor)"
        )
    x, w, g = torch.randn(24, 16), torch.randn(4, 16, 8), torch.randn(24, 8)
    ends = torch.tensor([3, 3, 10, 24], dtype=torch.int32)
    a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
    wanted = F.grouped_mm(a, b, offs=ends)
    wanted.backward(g)
    there = [t.to(webgpu) for t in (x, w, ends)]
    operators = torch.ops.transformers
    found = operators.grouped_mm_fallback(*there)
    slopes = operators.grouped_mm_fallback_backward(*there, g.to(webgpu))
    for actual, expected in zip((found, *slopes), (wanted, a.grad, b.grad), strict=True):
        assert actual.is_webgpu
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)
    before = len(device.runtime().programs)
    operators.grouped_mm_fallback(
        *there[:2], (there[2] + 1).clamp(max=24).sort().values
    ).sum().item()
    assert len(device.runtime().programs) <= before + 1


def test_whole_numbers_are_counted_as_on_other_accelerators(webgpu: str) -> None:
    x = torch.randint(-2, 9, (50,))
    for given in (x, x.int()):
        found = torch.histc(given.to(webgpu), bins=8, min=0, max=7)
        assert found.dtype is given.dtype
        assert found.tolist() == [int((x == i).sum()) for i in range(8)]
    spread = torch.histc(x.to(webgpu), bins=3, min=0, max=8).tolist()
    assert spread == [int(((x >= a) & (x < b)).sum()) for a, b in ((0, 3), (3, 6), (6, 9))]


@pytest.mark.parametrize(("rows", "ends"), ENDS)
def test_under_our_own_name(rows: int, ends: list[int]) -> None:
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 16)), rng.standard_normal((len(ends), 16, 8))

    def found(lib: Any) -> list[Any]:
        function, offs = lib.nn.functional.grouped_mm, lib.tensor(ends, dtype=lib.int32)
        a, b = (lib.tensor(v.tolist(), dtype=lib.float32).requires_grad_() for v in (x, w))
        out = function(a, b, offs=offs)[: ends[-1]]
        out.square().sum().backward()
        outer = function(a.detach().t(), lib.ones(rows, 8), offs=offs)
        turned = function(b.detach().transpose(1, 2), a.detach().t(), offs=offs)[:, : ends[-1]]
        return [v.detach().numpy() for v in (out, a.grad[: ends[-1]], b.grad, outer, turned)]

    for ours, theirs in zip(found(webtorch), found(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    offs = webtorch.tensor(ends)
    with pytest.raises(webtorch.errors.DTypeError, match="Offsets have to be int32"):
        webtorch.nn.functional.grouped_mm(
            webtorch.ones(rows, 4), webtorch.ones(len(ends), 4, 2), offs=offs
        )
