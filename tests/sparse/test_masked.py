"""Masked reductions of sparse tensors, and arithmetic of other shapes and types, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CS|BS|inv)")

MASKS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda t: t.tensor([[True, False], [True, True]]),
    "sparse": lambda t: t.tensor([[True, False], [True, True]]).to_sparse(),
    "row": lambda t: t.tensor([[True, False]]).to_sparse(),
    "nothing": lambda t: t.tensor([[False, False], [False, False]]),
}


def matrix(t: Any, layout: str = "coo") -> Any:
    places, values = [[0, 1, 1], [1, 0, 1]], [1.0, 2.0, 3.0]
    s = t.sparse_coo_tensor(t.tensor(places), t.tensor(values, dtype=t.float64), (2, 2)).coalesce()
    return s if layout == "coo" else getattr(s, f"to_sparse_{layout}")()


def hybrid(t: Any) -> Any:
    values = t.tensor([[1.0, 2.0], [3.0, -4.0], [1.0, 1.0]], dtype=t.float64)
    return t.sparse_coo_tensor(t.tensor([[0, 2, 2]]), values, (3, 2))


def hybrid_of(t: Any, *size: int) -> Any:
    return t.sparse_coo_tensor(t.tensor([[0]]), t.ones(1, *size[1:]), size)


def told(run: Callable[[Any], Any], t: Any) -> Any:
    """What a program gives, as numbers, or what it raises."""
    try:
        out = run(t)
    except (RuntimeError, ValueError) as error:
        # PyTorch's sentence comes first, ours behind it.
        return str(error).split("Subtraction")[-1].partition(" (")[0]
    there = None
    if out.layout is t.sparse_coo:
        there = out.coalesce().indices().tolist()
    return str(out.layout), str(out.dtype), there, out.to_dense().tolist()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "mean"])
def test_masked_reductions(name: str, mask: str) -> None:
    def reduce(layout: str, dim: Any, keepdim: bool) -> Callable[[Any], Any]:
        return lambda t: getattr(t.masked, name)(
            matrix(t, layout), dim, keepdim=keepdim, mask=MASKS[mask](t)
        )

    for dim, keepdim in ((None, False), (0, True), (-1, False), ((0, 1), True), ((), False)):
        # The sizes of an empty sum of rows that are compressed are PyTorch's fault.
        for layout in ("coo", "csr") if keepdim and mask != "nothing" else ("coo",):
            run = reduce(layout, dim, keepdim)
            assert told(run, webtorch) == told(run, torch), (layout, dim, keepdim)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "no mask": lambda t: t.masked.amax(matrix(t), 0),
    "by columns": lambda t: t.masked.sum(matrix(t, "csc"), 0),
    "dense dims": lambda t: t.masked.sum(hybrid(t), 1),
    "rows of dense dims": lambda t: t.masked.amin(hybrid(t), 0, mask=hybrid(t).to_dense() > 0),
    "a dense tensor": lambda t: t.masked.sum(t.ones(2, 2), 0, mask=MASKS["sparse"](t)),
    "without dims": lambda t: t.masked.amax(t.tensor(3.0).to_sparse(), (), mask=t.tensor(False)),
    "ints": lambda t: t.masked.sum(matrix(t).to(t.int32), 0),
    "sizes that differ": lambda t: t.ones(1, 2, dtype=t.float64) + matrix(t),
    "more rows": lambda t: t.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]) * matrix(t),
    "a number": lambda t: matrix(t) * t.tensor(2.0).to_sparse(),
    "of a number": lambda t: t.tensor(2.0).to_sparse() * matrix(t),
    "over a sparse": lambda t: t.ones(2, 2) / matrix(t),
    "over a sparse number": lambda t: matrix(t) / t.tensor(2.0).to_sparse(),
    "of mixed types": lambda t: matrix(t).to(t.int8) - (matrix(t).to(t.uint8) * 90),
    "less bools": lambda t: matrix(t) - matrix(t).bool(),
    "in place of a dense": lambda t: t.ones(2, 2).mul_(matrix(t).float()),
    "ints in place": lambda t: t.ones(2, 2, dtype=t.int64).add_(matrix(t).float()),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_arithmetic(name: str) -> None:
    assert told(PROGRAMS[name], webtorch) == told(PROGRAMS[name], torch)


def _into(t: Any, name: str, *args: Any) -> Any:
    return getattr(t, name)(*args, out=t.zeros(2, 2, dtype=t.float64).to_sparse())


WORDS: dict[str, Callable[[Any], Any]] = {
    "neg, out": lambda t: _into(t, "neg", matrix(t)),
    "add, out": lambda t: _into(t, "add", matrix(t), matrix(t)),
    "pow, out": lambda t: _into(t, "pow", matrix(t), 2),
    "mv, out": lambda t: t.mv(matrix(t, "csr"), t.ones(2).double(), out=t.empty(2).double()),
    "less than none": lambda t: t.empty(-1, 2, layout=t.sparse_csr),
    "a row of ints": lambda t: matrix(t).to(t.uint8).to_sparse_csc().select(0, 1).select(0, 0)[None],
    "empty": lambda t: t.empty(2, layout=t.sparse_csr),
    "zeros": lambda t: t.zeros((), layout=t.sparse_csc),
    "blocks": lambda t: t.ones(4, 4).to_sparse_bsr((2, 1)).copy_(t.ones(4, 4).to_sparse_bsr((1, 2))),
    "ranks": lambda t: t.sparse_bsc_tensor(t.tensor([[0, 1]]), t.tensor([0]), t.ones(1, 2, 2)),
    "more rows": lambda t: matrix(t, "csr").resize_(3, 4),
    "fewer rows": lambda t: matrix(t, "csr").resize_(1, 2),
    "one matrix": lambda t: t.stack([t.eye(3)] * 2).to_sparse_csr().resize_((3, 3)),
    "fewer columns": lambda t: matrix(t, "csr").resize_(2, 1),
    "a vector": lambda t: matrix(t, "csr").resize_(4),
    "another name in place": lambda t: (matrix(t) / 4).arcsin_(),
    "ints by another name": lambda t: matrix(t).int().arcsin_(),
    "in place of several at a place": lambda t: (hybrid(t) / 8).log1p_(),
    "transposed in place": lambda t: matrix(t).transpose_(0, 1),
    "rows transposed in place": lambda t: matrix(t, "csr").t_(),
    "zeros into it": lambda t: t.zeros(3, 2, out=matrix(t)),
    "new zeros": lambda t: matrix(t).new_zeros((2, 3), dtype=t.int64),
    "new rows": lambda t: matrix(t, "csc").new_zeros(size=(2, 3)),
    "numbers": lambda t: t.tensor(2, dtype=t.uint8).to_sparse() * t.tensor(3).to_sparse(),
    "sizes of another": lambda t: hybrid(t).resize_as_(hybrid_of(t, 4, 2)),
    "more dense dims": lambda t: hybrid(t).resize_as_(hybrid_of(t, 3, 2, 2)),
    "fewer places": lambda t: hybrid(t).sparse_resize_((2, 2), 1, 1),
    "fewer columns of values": lambda t: hybrid(t).sparse_resize_((3, 1), 1, 1),
    "more sparse dims": lambda t: hybrid(t).sparse_resize_((3, 2), 2, 0),
    "sizes that are not these": lambda t: hybrid(t).sparse_resize_((3, 2), 2, 1),
    "cat of several ranks": lambda t: t.cat([matrix(t), hybrid(t)]),
    "cat with a dense": lambda t: t.cat([matrix(t), t.eye(2)]),
    "cat of other sizes": lambda t: t.cat([matrix(t), t.eye(3).to_sparse()]),
    "norm along a dim": lambda t: matrix(t).norm(dim=0),
    "norm of all": lambda t: matrix(t).norm(dim=(0, 1)),
    "norm that keeps dims": lambda t: matrix(t).norm(keepdim=True),
    "no batch": lambda t: t.ones(0, 4, 4).to_sparse(layout=t.sparse_bsr, blocksize=(2, 2)),
    "new": lambda t: matrix(t).new(t.tensor([[0], [1]]), t.tensor([1.0]), (3, 3)),
    "new of sizes": lambda t: matrix(t).new(2, 3),
    "new of a list": lambda t: matrix(t).new([1, 2]),
    "new of rows": lambda t: matrix(t, "csr").new(2, 2),
    "spdiags": lambda t: t.sparse.spdiags(t.ones(3, 2, 3), t.arange(3), (4, 4)),
    "spdiags, offsets": lambda t: t.sparse.spdiags(t.ones(5), t.arange(5), (3, 3)),
    "spdiags, types": lambda t: t.sparse.spdiags(t.ones(1, 5), t.tensor([0]).int(), (5, 5)),
    "spdiags, layout": lambda t: t.sparse.spdiags(t.ones(1, 5), t.tensor([0]), (5, 5), t.strided),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_results_and_words(name: str) -> None:
    def say(t: Any) -> Any:
        try:
            out = WORDS[name](t)
        except (RuntimeError, TypeError) as error:
            return str(error)[:60]
        return str(out.layout), str(out.dtype), out.to_dense().tolist()

    assert say(webtorch) == say(torch)


def test_tensors_on_meta_have_no_values() -> None:
    for t in (webtorch, torch):
        for layout in ("coo", "csr"):
            moved = matrix(t, layout).to("meta")
            assert (moved._nnz(), moved.shape, str(moved.layout)) == (
                0,
                (2, 2),
                str(matrix(t, layout).layout),
            )
        outer, inner = (
            t.zeros(3, dtype=t.int64, device="meta"),
            t.zeros(0, dtype=t.int64, device="meta"),
        )
        values = t.zeros(0, 1, 2, device="meta")
        blocks = t.sparse_bsr_tensor(outer, inner, values, (2, 4), check_invariants=True)
        assert (blocks.is_meta, blocks._nnz()) == (True, 0)


def test_more_values_of_a_tensor_that_grows() -> None:
    """The values stay in their order in memory, as PyTorch's do; what is new is 0 here."""
    x = hybrid(webtorch).sparse_resize_((3, 3), 1, 1)
    assert x._values().flatten().tolist() == [1.0, 2.0, 3.0, -4.0, 1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin"])
def test_one_number_without_dims(name: str) -> None:
    found = []
    for t, masked in ((torch, torch.masked), (webtorch, webtorch.masked)):
        x = t.tensor(3.0).to_sparse()
        out = getattr(masked, name)(x, mask=t.tensor(True).to_sparse())
        found.append((out.layout is t.sparse_coo, out.to_dense().tolist()))
    assert found[0] == found[1] == (True, 3.0)
