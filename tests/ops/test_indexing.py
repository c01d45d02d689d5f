"""Indexing against PyTorch: brackets, gather and scatter, masks, tables, order; gradients; errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.ops.parity import TORCH, compare, same_error, tensor

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")

Function = Callable[..., Any]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ints(high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


MASK = torch.tensor([True, False, True])
# x has shape (3, 4, 5); i has shape (2,), j (2, 1), m is a mask of (3,), k is 0-d.
BRACKETS: dict[str, Function] = {
    "int": lambda x, i, j, m, k: x[1],
    "negative int": lambda x, i, j, m, k: x[-1, -2],
    "most negative int": lambda x, i, j, m, k: x[-3],
    "most negative ints": lambda x, i, j, m, k: x[1:, -4, -5],
    "all ints": lambda x, i, j, m, k: x[1, 2, 3],
    "slice": lambda x, i, j, m, k: x[1:],
    "slice with step": lambda x, i, j, m, k: x[::2, 1::3, :-1:2],
    "slice out of range": lambda x, i, j, m, k: x[5:, -9:2],
    "none": lambda x, i, j, m, k: x[None, :, None, 1],
    "ellipsis": lambda x, i, j, m, k: x[..., 2],
    "ellipsis in the middle": lambda x, i, j, m, k: x[0, ..., 1:],
    "ellipsis for nothing": lambda x, i, j, m, k: x[0, 1, ..., 2],
    "everything": lambda x, i, j, m, k: x[()],
    "list": lambda x, i, j, m, k: x[[2, 0]],
    "nested tuple": lambda x, i, j, m, k: x[:, (0, 3)],
    "range": lambda x, i, j, m, k: x[range(2)],
    "array": lambda x, i, j, m, k: x[np.array([2, -2])],
    "array of int32": lambda x, i, j, m, k: x[:, np.array([1], dtype=np.int32)],
    "numpy int": lambda x, i, j, m, k: x[np.int64(2)],
    "tensor": lambda x, i, j, m, k: x[i],
    # No index twice: what is written then is whatever comes last.
    "tensor 2-d": lambda x, i, j, m, k: x[:, i + j],
    "tensor in the middle": lambda x, i, j, m, k: x[:, i],
    "tensor at the end": lambda x, i, j, m, k: x[..., i],
    "two tensors": lambda x, i, j, m, k: x[i, i],
    "two tensors that broadcast": lambda x, i, j, m, k: x[:, i, j],
    "two tensors apart": lambda x, i, j, m, k: x[i, :, j],
    "three tensors": lambda x, i, j, m, k: x[i, j, i],
    "tensor and int": lambda x, i, j, m, k: x[i, 2],
    "tensor and int apart": lambda x, i, j, m, k: x[1, :, i],
    "tensor and none": lambda x, i, j, m, k: x[i, None, i],
    "tensor and slice": lambda x, i, j, m, k: x[1:, i, ::2],
    "tensor with negatives": lambda x, i, j, m, k: x[-i - 1],
    "int32 tensor": lambda x, i, j, m, k: x[i.int()],
    "0-d tensor": lambda x, i, j, m, k: x[k],
    "0-d tensor inside": lambda x, i, j, m, k: x[:, k, 1:],
    "0-d tensor between tensors": lambda x, i, j, m, k: x[i, k, i],
    "0-d tensor apart": lambda x, i, j, m, k: x[k, :, i],
    "two 0-d tensors": lambda x, i, j, m, k: x[k, :, k],
    "empty list": lambda x, i, j, m, k: x[[]],
    "mask": lambda x, i, j, m, k: x[m],
    "mask of all dims": lambda x, i, j, m, k: x[x > 0],
    "mask of two dims": lambda x, i, j, m, k: x[x[:, :, 0] > 0],
    "ellipsis and a mask of the rest": lambda x, i, j, m, k: x[..., x[0] > 0],
    "mask inside": lambda x, i, j, m, k: x.permute(1, 0, 2)[:, m, 1:],
    "mask and tensor": lambda x, i, j, m, k: x[m, i],
    "mask of nothing": lambda x, i, j, m, k: x[m & ~m],
    "list of bools": lambda x, i, j, m, k: x[[True, False, True]],
    "true": lambda x, i, j, m, k: x[True],
    "false": lambda x, i, j, m, k: x[False],
    "true inside": lambda x, i, j, m, k: x[:, True],
    "true and tensor": lambda x, i, j, m, k: x[True, i],
}


def _variables(device: str, dtype: str) -> tuple[list[torch.Tensor], list[Any]]:
    theirs = [
        randn(3, 4, 5).to(getattr(torch, dtype)),
        torch.tensor([0, 2]),
        torch.tensor([[1], [0]]),
        MASK,
        torch.tensor(1),
    ]
    return theirs, [tensor(x, device) for x in theirs]


@pytest.mark.covers("G8", "G9", "G10", "G11")
@pytest.mark.parametrize("name", BRACKETS)
def test_reading_with_brackets(name: str, device: str) -> None:
    function = BRACKETS[name]
    theirs, _ = _variables("cpu", "float64")
    empty = name in ("empty list", "mask of nothing", "false", "slice out of range")
    # PyTorch makes a view for a 0-d index, after reading it.
    view = "0-d" in name
    compare(lambda lib, *v: function(*v), theirs, device, second=not empty, layout=not view)


class _Reader:
    """Stands for x in the functions above and notes what was put between the brackets."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.target, self.index = x, None

    def __getitem__(self, index: Any) -> Any:
        self.index = index
        return self.x[index].reshape(self.x[index].shape or (1,))

    def permute(self, *dims: int) -> Any:
        self.x = self.target = self.x.permute(*dims)
        return self

    def __gt__(self, other: float) -> Any:
        return self.x > other


@pytest.mark.one_in(2)
@pytest.mark.covers("G14")
@pytest.mark.parametrize("kind", ["number", "tensor", "row"])
@pytest.mark.parametrize("name", BRACKETS)
def test_writing_with_brackets(name: str, kind: str, device: str) -> None:
    dtype = "float64" if device == "cpu" else "float32"
    theirs, mine = _variables(device, dtype)
    results = []
    for values in (theirs, mine):
        leaf = values[0].requires_grad_()
        x = leaf * 1
        reader = _Reader(x)
        shape = tuple(BRACKETS[name](reader, *values[1:]).shape)
        if "two dims" in name:
            reader.index = x[:, :, 0] > 0
        # The values that are written count up, so that misplaced ones show; duplicates all get the same row.
        full = torch.arange(1.0, 1 + math.prod(shape), dtype=getattr(torch, dtype)).reshape(shape)
        value = {
            "number": torch.tensor(2.5, dtype=full.dtype),
            "tensor": full,
            "row": full[..., :1],
        }[kind]
        given: Any = 2.5 if kind == "number" else value
        if values is mine and kind != "number":
            given = tensor(value, device)
        if kind != "number":
            given.requires_grad_()
        reader.target[reader.index] = given
        weight = torch.arange(1.0, 61.0, dtype=getattr(torch, dtype)).reshape(x.shape)
        (x * x * (weight if values is theirs else tensor(weight, device))).sum().backward()
        results.append([x, leaf.grad, given.grad if kind != "number" else None])
    for a, b in zip(results[1], results[0], strict=True):
        if a is None:
            # All of it was overwritten: no gradient is the same as a gradient of zeros.
            assert b is None or not b.any()
        elif b is not None and b.numel():
            np.testing.assert_allclose(a.detach().cpu().numpy(), b.detach().numpy(), rtol=1e-5)


def test_basic_indices_share_memory(device: str) -> None:
    x = webtorch.zeros(3, 4, device=device)
    x[1][2] = 5
    x[:, ::2][0] += 1
    assert x.tolist() == [[1, 0, 1, 0], [0, 0, 5, 0], [0, 0, 0, 0]]
    y = x[...]
    y.fill_(7)
    assert x[2, 3].item() == 7


def test_in_place_operator_on_an_advanced_index(device: str) -> None:
    x = webtorch.zeros(4, device=device)
    x[[1, 3]] += 2
    x[x > 1] *= 3
    assert x.tolist() == [0, 6, 0, 6]


BAD_BRACKETS: dict[str, Function] = {
    "int": lambda lib, x: x[3],
    "negative int": lambda lib, x: x[0, -5],
    "too many": lambda lib, x: x[0, 0, 0, 0],
    "0-d": lambda lib, x: lib.t.tensor(1.0)[0],
    "float": lambda lib, x: x[1.5],
    "float tensor": lambda lib, x: x[lib.t.zeros(2)],
    "negative step": lambda lib, x: x[::-1],
    "mask of another shape": lambda lib, x: x[lib.t.ones(4) > 0],
    "tensors that do not broadcast": lambda lib, x: x[
        lib.t.tensor([0, 1]), lib.t.tensor([0, 1, 2])
    ],
    "slice of a float": lambda lib, x: x[0:1.5],
    "string": lambda lib, x: x["a"],
    "dict": lambda lib, x: x[{}],
    "list out of range": lambda lib, x: x[[5]].sum().item(),
    "tensor out of range": lambda lib, x: x[lib.t.tensor([5])].sum().item(),
    "0-d tensor out of range": lambda lib, x: x[lib.t.tensor(-4)].sum().item(),
    "write out of range": lambda lib, x: x.__setitem__(3, 1.0),
    "write a list": lambda lib, x: x.__setitem__(0, [1.0]),
    "write none": lambda lib, x: x.__setitem__(0, None),
    "write another shape": lambda lib, x: x.__setitem__(0, lib.t.zeros(2)),
    "write another shape to a tensor": lambda lib, x: x.__setitem__(
        lib.t.tensor([0]), lib.t.zeros(2)
    ),
}


@pytest.mark.parametrize("name", BAD_BRACKETS)
def test_bad_brackets_raise_what_pytorch_raises(name: str) -> None:
    same_error(BAD_BRACKETS[name], [randn(3, 4, 5)], "cpu", "")


def test_device_bounds_errors_name_value_and_size(device: str) -> None:
    x = webtorch.zeros(3, 4, device=device)
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 3"):
        x[webtorch.tensor([0, 7], device=device)].sum().item()
    # Nothing else is lost.
    assert x.sum().item() == 0


I34 = ints(3, 2, 4)
ALONG: dict[str, tuple[list[torch.Tensor], Function]] = {
    "gather 0": ([randn(3, 4), I34], lambda lib, x, i: x.gather(0, i)),
    "gather 1": ([randn(3, 4), ints(4, 3, 6)], lambda lib, x, i: lib.t.gather(x, 1, i)),
    "gather smaller": ([randn(3, 4), ints(4, 2, 1)], lambda lib, x, i: x.gather(-1, i)),
    "gather joined": ([randn(3, 4, 2, 5), ints(4, 3, 2, 2, 5)], lambda lib, x, i: x.gather(1, i)),
    "gather middle": ([randn(3, 4, 5), ints(4, 3, 2, 3)], lambda lib, x, i: x.gather(1, i)),
    "gather 0-d": ([randn(3), torch.tensor([1])], lambda lib, x, i: x[0].gather(0, i * 0)),
    "gather transposed": ([randn(3, 4), ints(3, 4, 2)], lambda lib, x, i: x.t().gather(1, i)),
    "scatter larger": (
        [randn(3, 4), torch.tensor([[0, 2], [1, 3]]), randn(2, 3, seed=1)],
        lambda lib, x, i, s: x.scatter(1, i, s),
    ),
    "scatter a part": (
        [randn(3, 4), torch.tensor([[0, 2], [1, 3]]), randn(2, 2, seed=1)],
        lambda lib, x, i, s: x.scatter(1, i, s),
    ),
    "scatter a number": (
        [randn(3, 4), torch.tensor([[0, 1, 2, 0]])],
        lambda lib, x, i: x.scatter(0, i, 1.5),
    ),
    "scatter in place": (
        [randn(3, 4), torch.tensor([[0, 1, 2, 0]]), randn(1, 4)],
        lambda lib, x, i, s: (x * 2).scatter_(0, i, s),
    ),
    "scatter_add": (
        [randn(3, 4), I34, randn(2, 4, seed=1)],
        lambda lib, x, i, s: x.scatter_add(0, i, s),
    ),
    "scatter_add larger src": (
        [randn(3, 4), I34, randn(3, 5)],
        lambda lib, x, i, s: x.scatter_add(0, i, s),
    ),
    "index_select": (
        [randn(3, 4), torch.tensor([2, 0, 2])],
        lambda lib, x, i: x.index_select(0, i),
    ),
    "index_select 1": (
        [randn(3, 4, 2), torch.tensor([2, 0])],
        lambda lib, x, i: x.index_select(1, i),
    ),
    "index_select nothing": (
        [randn(3, 4), torch.tensor([0])],
        lambda lib, x, i: x.index_select(1, i[:0]),
    ),
    "index_add": (
        [randn(3, 4), torch.tensor([2, 0, 2]), randn(3, 4, seed=1)],
        lambda lib, x, i, s: x.index_add(0, i, s, alpha=2),
    ),
    "index_add 1": (
        [randn(3, 4), torch.tensor([3, 1]), randn(3, 2)],
        lambda lib, x, i, s: x.index_add(1, i, s),
    ),
    "index_copy": (
        [randn(3, 4), torch.tensor([3, 1]), randn(3, 2)],
        lambda lib, x, i, s: x.index_copy(1, i, s),
    ),
    "index_fill": ([randn(3, 4), torch.tensor([2, 0])], lambda lib, x, i: x.index_fill(1, i, -1.5)),
    "index_put": (
        [randn(3, 4), I34[0, :3], randn(3, 4, seed=1)],
        lambda lib, x, i, s: x.index_put((i * 0 + lib.t.tensor([0, 1, 2]).to(i.device),), s),
    ),
    "index_put adds": (
        [randn(3, 4), torch.tensor([0, 2, 0]), randn(3, 4, seed=1)],
        lambda lib, x, i, s: x.index_put((i,), s, accumulate=True),
    ),
    "index_put two": (
        [randn(3, 4), torch.tensor([0, 2, 0]), torch.tensor([1, 1, 3]), randn(3)],
        lambda lib, x, i, j, s: (x * 1).index_put_((i, j), s),
    ),
    "take": ([randn(3, 4), ints(12, 2, 5)], lambda lib, x, i: x.take(i - 3)),
    "take_along_dim": (
        [randn(3, 4), ints(4, 1, 2)],
        lambda lib, x, i: lib.t.take_along_dim(x, i, 1),
    ),
    "take_along_dim flat": (
        [randn(3, 4), ints(4, 1, 2)],
        lambda lib, x, i: lib.t.take_along_dim(x, i),
    ),
    "masked_select": ([randn(3, 4), ints(2, 3, 4) > 0], lambda lib, x, m: x.masked_select(m)),
    "masked_select broadcast": (
        [randn(3, 1), ints(2, 4) > 0],
        lambda lib, x, m: x.masked_select(m),
    ),
    "masked_scatter": (
        [randn(3, 4), ints(2, 3, 4) > 0, randn(12)],
        lambda lib, x, m, s: x.masked_scatter(m, s),
    ),
    "masked_fill": ([randn(3, 4), ints(2, 3, 4) > 0], lambda lib, x, m: x.masked_fill(m, -2.5)),
    "embedding": ([ints(5, 2, 3), randn(5, 4)], lambda lib, i, w: lib.F.embedding(i, w)),
    "sort": ([randn(3, 7)], lambda lib, x: x.sort(1)[0]),
    "topk": ([randn(7, 3)], lambda lib, x: x.topk(3, 0)[0]),
    "kthvalue": ([randn(3, 7)], lambda lib, x: x.kthvalue(3)[0]),
    "median": ([randn(3, 7)], lambda lib, x: x.median(1, True)[0]),
    "quantile": ([randn(3, 7)], lambda lib, x: lib.t.quantile(x, 0.3, 1)),
}


@pytest.mark.one_in(3)
@pytest.mark.covers("G12", "G13", "G19", "G20", "C53", "D13")
@pytest.mark.parametrize("name", ALONG)
def test_index_op_matches_pytorch(name: str, device: str) -> None:
    inputs, function = ALONG[name]
    # PyTorch has no gradient for a src that is larger than the index.
    larger = "larger src" in name or name == "scatter larger"
    compare(function, inputs, device, gradients=not larger, second="nothing" not in name)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool, device: str) -> None:
    x, src = randn(3, 4), randn(5, 4, seed=1)
    src[0, 0] = 0
    index = ints(3, 5, 4)
    # PyTorch has no second derivative of prod here when a value is 0.
    compare(
        lambda lib, x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        [x, index, src],
        device,
        second=reduce in ("sum", "mean"),
    )


def test_the_gradient_of_products_of_complex_numbers() -> None:
    """PyTorch has none by `scatter_reduce`."""
    x, src = randn(1, 2), randn(3, 2, seed=1)
    found = []
    for lib in (webtorch, torch):
        a, b = (lib.tensor(t.tolist()).requires_grad_() for t in (x, src))
        one, more = lib.view_as_complex(a), lib.view_as_complex(b)
        if lib is torch:
            product = torch.cat([one, more]).prod()
        else:
            product = one.scatter_reduce(0, webtorch.zeros(3).long(), more, "prod").sum()
        (product * (1 + 2j)).real.backward()
        found.append(torch.tensor(a.grad.tolist() + b.grad.tolist()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_scatter_reduce_of_integers(reduce: str, dtype: str, device: str) -> None:
    x, src, index = (
        ints(9, 3, 4).to(getattr(torch, dtype)),
        ints(9, 5, 4, seed=1).to(getattr(torch, dtype)),
        ints(2, 5, 4),
    )
    for own in (True, False):
        compare(
            lambda lib, x, i, s, own=own: x.scatter_reduce(0, i, s - 4, reduce, include_self=own),
            [x, index, src],
            device,
            gradients=False,
        )


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_the_old_reduce_argument(reduce: str, device: str) -> None:
    compare(
        lambda lib, x, i, s: x.scatter(0, i, s, reduce=reduce),
        [randn(3, 4), I34, randn(2, 4)],
        device,
        gradients=False,
    )


@pytest.mark.parametrize("case", ["some", "none", "all", "0-d", "empty"])
def test_nonzero(case: str, device: str) -> None:
    x = {
        "some": ints(2, 3, 4, 5),
        "none": torch.zeros(2, 3),
        "all": torch.ones(2, 3),
        "0-d": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
    }[case]
    compare(lambda lib, x: x.nonzero(), [x], device, gradients=False, layout=False)
    compare(lambda lib, x: x.nonzero(as_tuple=True), [x], device, gradients=False, layout=False)
    compare(lambda lib, x: lib.t.argwhere(x), [x], device, gradients=False, layout=False)
    if case != "0-d":
        compare(lambda lib, x: lib.t.where(x > 0), [x], device, gradients=False, layout=False)


@pytest.mark.covers("B12")
def test_one_hot(device: str) -> None:
    compare(lambda lib, i: lib.F.one_hot(i), [ints(5, 2, 3)], device, gradients=False)
    compare(lambda lib, i: lib.F.one_hot(i, 7), [ints(5, 4)], device, gradients=False)
    text = "Class values must be smaller than num_classes|index 4 is out of bounds"
    with pytest.raises(RuntimeError, match=text):
        webtorch.nn.functional.one_hot(webtorch.tensor([4], device=device), 3).sum().item()


def test_embedding_options(device: str) -> None:
    from webtorch.functions.lookup import embedding

    def run(lib: Any, i: Any, w: Any, **options: Any) -> Any:
        return (lib.F.embedding if lib is TORCH else embedding)(i, w, **options)

    index = torch.tensor([[1, 4, 1], [0, 1, 2]])
    compare(lambda lib, i, w: run(lib, i, w, padding_idx=-1), [index, randn(5, 3)], device)
    compare(
        lambda lib, i, w: run(lib, i, w, scale_grad_by_freq=True),
        [index, randn(5, 3)],
        device,
        second=False,
    )
    compare(
        lambda lib, i, w: run(lib, i, w * 1, max_norm=0.5, norm_type=3.0),
        [index, randn(5, 3)],
        device,
        gradients=False,
    )


def test_bincount(device: str) -> None:
    compare(lambda lib, i: lib.t.bincount(i), [ints(5, 9)], device, gradients=False)
    compare(lambda lib, i: lib.t.bincount(i, minlength=8), [ints(5, 9)], device, gradients=False)
    compare(lambda lib, i, w: lib.t.bincount(i, w), [ints(5, 9), randn(9)], device, gradients=False)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool, device: str) -> None:
    edges = torch.tensor([-1.0, 0.0, 0.0, 0.5, 2.0])
    values = torch.tensor([[-2.0, -1.0, 0.0], [0.25, 2.0, math.nan], [3.0, math.inf, -math.inf]])
    compare(
        lambda lib, e, v: lib.t.searchsorted(e, v, right=right),
        [edges, values],
        device,
        gradients=False,
    )
    compare(
        lambda lib, e, v: lib.t.bucketize(v, e, right=right, out_int32=True),
        [edges, values],
        device,
        gradients=False,
    )
    rows = randn(3, 17).sort(1).values
    compare(
        lambda lib, e, v: lib.t.searchsorted(e, v, right=right),
        [rows, randn(3, 5)],
        device,
        gradients=False,
    )
    compare(
        lambda lib, e, v: lib.t.searchsorted(e, v, right=right),
        [ints(9, 20).sort().values, ints(9, 6)],
        device,
        gradients=False,
    )


def test_isin(device: str) -> None:
    compare(
        lambda lib, x, y: lib.t.isin(x, y), [ints(9, 3, 4), ints(9, 5)], device, gradients=False
    )
    compare(lambda lib, x: lib.t.isin(x, 3, invert=True), [ints(9, 3, 4)], device, gradients=False)


@pytest.mark.covers("D20")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 64, 100, 1500])
def test_sort_is_stable_for_any_length(length: int, descending: bool, device: str) -> None:
    # Few different values: ties everywhere.
    x = ints(7, 2, length).double()
    for y in (x, x.long()):
        compare(
            lambda lib, y: lib.t.sort(y, dim=1, descending=descending, stable=True),
            [y],
            device,
            gradients=False,
        )


def test_nan_is_the_largest(device: str) -> None:
    x = torch.tensor(
        [[1.0, math.nan, -math.inf, math.inf, math.nan, 0.0], [3.0, 2.0, 1.0, 0.0, -1.0, -2.0]]
    )
    for descending in (False, True):
        compare(
            lambda lib, x, d=descending: lib.t.sort(x, dim=1, descending=d, stable=True),
            [x],
            device,
            gradients=False,
        )
    compare(lambda lib, x: lib.t.median(x, 1), [x], device, gradients=False)
    compare(lambda lib, x: lib.t.nanmedian(x, 1), [x], device, gradients=False)
    compare(lambda lib, x: lib.t.quantile(x, 0.5, dim=1), [x], device, gradients=False)
    compare(lambda lib, x: lib.t.nanquantile(x, 0.5, dim=1), [x], device, gradients=False)


def test_orders_and_selections(device: str) -> None:
    x = randn(4, 9)
    compare(lambda lib, x: x.argsort(0), [x], device, gradients=False)
    compare(lambda lib, x: x.topk(4, dim=1, largest=False), [x], device, gradients=False)
    compare(lambda lib, x: x.topk(4), [x], device, gradients=False)
    compare(lambda lib, x: x.kthvalue(2, 0, True), [x], device, gradients=False)
    compare(lambda lib, x: x.median(), [x], device, gradients=False)
    compare(lambda lib, x: lib.t.msort(x), [x], device, gradients=False)


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantile(how: str, device: str) -> None:
    x = randn(4, 9)
    q = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    compare(
        lambda lib, x, q: lib.t.quantile(x, q, 1, interpolation=how),
        [x, q],
        device,
        gradients=False,
    )
    compare(
        lambda lib, x, q: lib.t.quantile(x, q, keepdim=True, interpolation=how),
        [x, q],
        device,
        gradients=False,
    )


def test_unique(device: str) -> None:
    x = ints(4, 3, 5)
    for options in ({}, {"return_inverse": True}, {"return_inverse": True, "return_counts": True}):
        compare(lambda lib, x, o=options: lib.t.unique(x, **o), [x], device, gradients=False)
        compare(
            lambda lib, x, o=options: lib.t.unique_consecutive(x, **o), [x], device, gradients=False
        )
    rows = ints(2, 6, 2)
    compare(
        lambda lib, x: lib.t.unique(x, dim=0, return_inverse=True, return_counts=True),
        [rows],
        device,
        gradients=False,
    )
    compare(
        lambda lib, x: lib.t.unique(x, dim=1),
        [ints(2, 2, 6)],
        device,
        gradients=False,
        layout=False,
    )


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "int8", "float16", "bfloat16"])
def test_index_ops_of_other_types(dtype: str, device: str) -> None:
    x = (torch.arange(12).reshape(3, 4) % 5).to(getattr(torch, dtype))
    mine = webtorch.tensor(x.tolist(), dtype=getattr(webtorch, dtype), device=device)
    i = torch.tensor([[0, 2, 1, 0]])
    for function in (
        lambda x, i: x.gather(0, i),
        lambda x, i: x[i[0, :2]],
        lambda x, i: x.scatter(0, i, x[:1]),
        lambda x, i: x.index_select(1, i[0]),
        lambda x, i: x[:, 1:][x[:, 1:] > 1],
        lambda x, i: x.sort(1)[0],
    ):
        assert function(mine, tensor(i, device)).float().tolist() == function(x, i).float().tolist()


ERRORS: dict[str, Function] = {
    "gather other rank": lambda lib, x: x.gather(1, lib.t.tensor([0])),
    "gather float index": lambda lib, x: x.gather(1, lib.t.zeros(1, 1)),
    "gather too large": lambda lib, x: x.gather(1, lib.t.zeros(3, 1).long()),
    "scatter other type": lambda lib, x: x.scatter(
        1, lib.t.tensor([[0]]), lib.t.zeros(1, 1).long()
    ),
    "scatter small src": lambda lib, x: x.scatter(
        1, lib.t.tensor([[0, 1]]), lib.t.zeros(1, 1).double()
    ),
    "scatter bad reduce": lambda lib, x: x.scatter(1, lib.t.tensor([[0]]), 1.0, reduce="bad"),
    "scatter_reduce bad": lambda lib, x: x.scatter_reduce(1, lib.t.tensor([[0]]), x, reduce="bad"),
    "index_select matrix": lambda lib, x: x.index_select(0, lib.t.tensor([[0]])),
    "index_select float": lambda lib, x: x.index_select(0, lib.t.tensor([0.0])),
    "index_select outside": lambda lib, x: x.index_select(0, lib.t.tensor([5])).sum().item(),
    "index_add other count": lambda lib, x: x.index_add(
        0, lib.t.tensor([0, 1]), lib.t.zeros(3, 3).double()
    ),
    "index_add other type": lambda lib, x: x.index_add(
        0, lib.t.tensor([0]), lib.t.zeros(1, 3).long()
    ),
    "index_copy other count": lambda lib, x: x.index_copy(
        0, lib.t.tensor([0]), lib.t.zeros(2, 3).double()
    ),
    "index_fill matrix": lambda lib, x: x.index_fill(0, lib.t.tensor([[0]]), 1),
    "take outside": lambda lib, x: x.take(lib.t.tensor([7])).sum().item(),
    "take int32": lambda lib, x: x.take(lib.t.tensor([1]).int()),
    "masked_select float": lambda lib, x: x.masked_select(x),
    "one_hot negative": lambda lib, x: lib.F.one_hot(lib.t.tensor([-1])),
    "one_hot of nothing": lambda lib, x: lib.F.one_hot(lib.t.zeros(0).long()),
    "one_hot float": lambda lib, x: lib.F.one_hot(x),
    "embedding outside": lambda lib, x: lib.F.embedding(lib.t.tensor([5]), x).sum().item(),
    "embedding float": lambda lib, x: lib.F.embedding(x, x),
    "bincount negative": lambda lib, x: lib.t.bincount(lib.t.tensor([-1])),
    "bincount matrix": lambda lib, x: lib.t.bincount(lib.t.tensor([[1]])),
    "searchsorted other shape": lambda lib, x: lib.t.searchsorted(x, lib.t.tensor([1.0])),
    "bucketize matrix": lambda lib, x: lib.t.bucketize(lib.t.tensor([1.0]), x),
    "kthvalue outside": lambda lib, x: x.kthvalue(5),
    "topk outside": lambda lib, x: x.topk(9),
    "written and read, one row by a tensor": lambda lib, x: x.__setitem__(
        (lib.t.tensor(1), lib.t.tensor([0, 1])), x[1, 1:]
    ),
    "index_put other shape": lambda lib, x: x.index_put(
        (lib.t.tensor([0]),), lib.t.zeros(5).double()
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_has_pytorch_type(name: str) -> None:
    same_error(ERRORS[name], [randn(2, 3)], "cpu", "")


def test_reading_positions_from_a_graph_needs_no_host(device: str) -> None:
    """In a compiled function a 0-d tensor as index is a part of the program: no read in between."""

    @webtorch.compile(fullgraph=True)
    def pick(x: webtorch.Tensor, k: webtorch.Tensor) -> webtorch.Tensor:
        return x[k + 1] * 2

    x = webtorch.arange(5.0, device=device)
    for k in (0, 3, -2):
        assert pick(x, webtorch.tensor(k, device=device)).item() == 2 * x.tolist()[k + 1]


READ: list[Any] = [
    lambda lib, x, m: x[m],
    lambda lib, x, m: x.t()[m.t()],
    lambda lib, x, m: x[m[:, 0]],
    lambda lib, x, m: x.masked_select(m),
    lambda lib, x, m: x.t().masked_select(m.t()),
    lambda lib, x, m: x.nonzero(),
    lambda lib, x, m: x.t().nonzero(),
    lambda lib, x, m: lib.stack(m.t().nonzero(as_tuple=True)),
    lambda lib, x, m: x.int().abs().flatten().bincount(minlength=3),
    lambda lib, x, m: lib.cat([r.flatten() for r in x.int().unique(return_inverse=True)]),
    lambda lib, x, m: lib.cat(x.int().unique(return_counts=True)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8"])
def test_what_is_read_to_know_a_size_is_right_for_other_layouts_and_types(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, m = rng.integers(0, 4, (5, 3)), rng.random((5, 3)) < 0.5
    for call in READ:
        ours, theirs = (
            call(lib, lib.tensor(x.tolist()).to(getattr(lib, dtype)), lib.tensor(m.tolist()))
            for lib in (webtorch, torch)
        )
        assert ours.tolist() == theirs.tolist()
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        # It is memory of its own.
        assert ours.is_contiguous()
        ours.add_(1)


def test_masks_record_gradients_and_are_captured() -> None:
    x = webtorch.arange(4.0, requires_grad=True)
    m = webtorch.tensor([True, False, True, False])
    x[m].sum().backward()
    x.masked_select(m).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 2.0, 0.0]
    y = x.detach()
    picked = y[m]
    y.mul_(3)
    assert picked.tolist() == [0.0, 2.0]
    assert webtorch.vmap(lambda row: webtorch.where(m, row, 0))(y.expand(2, 4)).sum().item() == 12


@pytest.mark.parametrize("name", ["index_copy_", "index_add_", "index_fill_"])
def test_slices_of_a_later_dim_are_written_in_place(name: str, device: str) -> None:
    """A cache (batch, heads, places, width) that takes a token is neither copied nor turned."""
    cache = webtorch.ones(2, 3, 40, 8, device=device)
    index = webtorch.tensor([5], device=device)
    given = 2.0 if name == "index_fill_" else webtorch.full((2, 3, 1, 8), 2.0, device=device)
    webtorch.realize(cache, index)
    with webtorch.profile() as prof:
        getattr(cache, name)(2, index, given)
        webtorch.realize(cache)
    assert [row.count for row in prof.key_averages()] == [1]
    assert cache.sum().item() == 2 * 3 * 8 * (39 + (3 if name == "index_add_" else 2))
