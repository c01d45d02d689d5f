"""Movement against PyTorch: values, strides, shared memory, first and second gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.ops.parity import TORCH, WEBTORCH, compare, same_error, tensor

Function = Callable[..., Any]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


VIEWS: dict[str, tuple[tuple[int, ...], Function]] = {
    "view": ((2, 6), lambda lib, x: x.view(3, -1)),
    "view of a tuple": ((2, 6), lambda lib, x: x.view((2, 2, 3))),
    "view to 0-d": ((1, 1), lambda lib, x: x.view(())),
    "view_as": ((2, 6), lambda lib, x: x.view_as(lib.t.zeros(4, 3))),
    "reshape": ((2, 6), lambda lib, x: lib.t.reshape(x, (4, -1))),
    "reshape that copies": ((2, 6), lambda lib, x: x.t().reshape(4, 3)),
    "reshape_as": ((2, 6), lambda lib, x: x.reshape_as(lib.t.zeros(12))),
    "flatten": ((2, 3, 4), lambda lib, x: x.flatten(1)),
    "flatten 0-d": ((), lambda lib, x: x.flatten()),
    "unflatten": ((2, 12), lambda lib, x: x.unflatten(1, (3, -1))),
    "ravel": ((2, 3), lambda lib, x: x.t().ravel()),
    "squeeze": ((1, 3, 1), lambda lib, x: x.squeeze()),
    "squeeze dims": ((1, 3, 1, 1), lambda lib, x: x.squeeze((0, 1, -1))),
    "unsqueeze": ((2, 3), lambda lib, x: x.unsqueeze(-1)),
    "expand": ((3, 1), lambda lib, x: x.expand(2, -1, 4)),
    "expand 0-d": ((), lambda lib, x: x.expand(2, 3)),
    "expand_as": ((1, 3), lambda lib, x: x.expand_as(lib.t.zeros(2, 2, 3))),
    "broadcast_to": ((3,), lambda lib, x: lib.t.broadcast_to(x, (2, 3))),
    "expand to nothing": ((1, 3), lambda lib, x: x.expand(0, 3)),
    "permute": ((2, 3, 4), lambda lib, x: x.permute(2, 0, 1)),
    "permute of a tuple": ((2, 3, 4), lambda lib, x: lib.t.permute(x, (-1, 0, 1))),
    "transpose": ((2, 3, 4), lambda lib, x: x.transpose(0, -1)),
    "swapaxes": ((2, 3, 4), lambda lib, x: x.swapaxes(axis0=0, axis1=1)),
    "swapdims": ((2, 3, 4), lambda lib, x: x.swapdims(0, 1)),
    "t": ((2, 3), lambda lib, x: x.t()),
    "mT": ((2, 3, 4), lambda lib, x: x.mT),
    "mH": ((2, 3, 4), lambda lib, x: x.mH),
    "T": ((2, 3), lambda lib, x: x.T),
    "H": ((2, 3), lambda lib, x: x.H),
    "adjoint": ((2, 3, 4), lambda lib, x: x.adjoint()),
    "movedim": ((2, 3, 4, 5), lambda lib, x: x.movedim((0, -1), (-1, 1))),
    "moveaxis": ((2, 3, 4), lambda lib, x: lib.t.moveaxis(x, 0, 2)),
    "narrow": ((5, 4), lambda lib, x: x.narrow(0, -3, 2)),
    "select": ((3, 4), lambda lib, x: x.select(1, -2)),
    "diagonal": ((3, 4), lambda lib, x: x.diagonal()),
    "diagonal above": ((3, 4, 5), lambda lib, x: x.diagonal(1, -1, 0)),
    "diagonal below": ((4, 4), lambda lib, x: x.diagonal(-2)),
    "diagonal outside": ((3, 3), lambda lib, x: x.diagonal(5)),
    "unfold that overlaps": ((2, 9), lambda lib, x: x.unfold(1, 4, 2)),
    "unfold without overlap": ((7, 2), lambda lib, x: x.unfold(0, 2, 3)),
    "unfold step 1 that overlaps": ((2, 6, 3), lambda lib, x: x.unfold(1, 3, 1)),
    "unfold 0-d": ((), lambda lib, x: x.unfold(0, 1, 1)),
    "as_strided": ((4, 3), lambda lib, x: x.as_strided((2, 2), (3, 2), 1)),
    "as_strided that overlaps": ((9,), lambda lib, x: x.as_strided((4, 3), (2, 1))),
}


@pytest.mark.one_in(3, device="webgpu")
@pytest.mark.covers("G1", "G2", "G3", "G4", "G5", "G6", "G7", "G10", "B16")
@pytest.mark.parametrize("name", VIEWS)
def test_view_matches_pytorch(name: str, device: str) -> None:
    shape, function = VIEWS[name]
    compare(
        function, [randn(*shape)], device, second="nothing" not in name and "outside" not in name
    )


@pytest.mark.covers("A18")
@pytest.mark.parametrize("name", [n for n in VIEWS if "copies" not in n and n != "ravel"])
def test_view_has_pytorch_strides_and_shares_memory(name: str) -> None:
    shape, function = VIEWS[name]
    theirs = randn(*shape)
    mine = tensor(theirs, "cpu")
    a, b = function(WEBTORCH, mine), function(TORCH, theirs)
    assert tuple(a.stride()) == tuple(b.stride())
    assert a.storage_offset() == b.storage_offset()
    if "overlap" in name or "expand" in name or "broadcast" in name or not b.numel():
        return
    a.mul_(3)
    b.mul_(3)
    assert mine.tolist() == theirs.tolist()


COPIES: dict[str, tuple[list[tuple[int, ...]], Function]] = {
    "contiguous": ([(3, 4)], lambda lib, x: x.t().contiguous()),
    "clone": ([(3, 4)], lambda lib, x: x.t().clone()),
    "cat": ([(2, 3), (2, 1), (2, 4)], lambda lib, *xs: lib.t.cat(xs, 1)),
    "cat with itself": ([(2, 3)], lambda lib, x: lib.t.cat((x, x.t()[:2, :2], x), dim=-1)),
    "cat with legacy empty": ([(2, 3), (0,), (1, 3)], lambda lib, *xs: lib.t.cat(xs)),
    "concat": ([(2, 3), (1, 3)], lambda lib, *xs: lib.t.concat(xs)),
    "concatenate": ([(2, 3), (2, 1)], lambda lib, *xs: lib.t.concatenate(xs, axis=1)),
    "stack": ([(2, 3), (2, 3)], lambda lib, *xs: lib.t.stack(xs, -1)),
    "hstack": ([(2, 3), (2, 1)], lambda lib, *xs: lib.t.hstack(xs)),
    "hstack vectors": ([(2,), (3,)], lambda lib, *xs: lib.t.hstack(xs)),
    "vstack": ([(3,), (2, 3)], lambda lib, *xs: lib.t.vstack(xs)),
    "dstack": ([(2, 3), (2, 3)], lambda lib, *xs: lib.t.dstack(xs)),
    "column_stack": ([(2,), (2, 3)], lambda lib, *xs: lib.t.column_stack(xs)),
    "block_diag": ([(2, 3), (1, 1), (2,)], lambda lib, *xs: lib.t.block_diag(*xs)),
    "repeat": ([(2, 3)], lambda lib, x: x.repeat(2, 1, 3)),
    "repeat nothing": ([(2, 3)], lambda lib, x: x.repeat(0, 2)),
    "tile": ([(2, 3)], lambda lib, x: x.tile((2,))),
    "repeat_interleave": ([(2, 3)], lambda lib, x: x.repeat_interleave(2, dim=1)),
    "repeat_interleave flat": ([(2, 3)], lambda lib, x: lib.t.repeat_interleave(x, 3)),
    "flip": ([(2, 3, 4)], lambda lib, x: x.flip(0, -1)),
    "fliplr": ([(2, 3)], lambda lib, x: x.fliplr()),
    "flipud": ([(2, 3)], lambda lib, x: x.flipud()),
    "roll": ([(3, 4)], lambda lib, x: x.roll((1, -2), (0, 1))),
    "roll flat": ([(3, 4)], lambda lib, x: x.roll(5)),
    "rot90": ([(2, 3)], lambda lib, x: x.rot90()),
    "rot90 back": ([(2, 3, 2)], lambda lib, x: lib.t.rot90(x, -1, (1, 2))),
    "rot90 twice": ([(2, 3)], lambda lib, x: x.rot90(2)),
    "tril": ([(2, 3, 4)], lambda lib, x: x.tril(1)),
    "triu": ([(4, 3)], lambda lib, x: x.triu(-1)),
    "t_": ([(2, 3)], lambda lib, x: (x * 2).t_()),
    "transpose_": ([(2, 3, 4)], lambda lib, x: (x * 2).transpose_(0, 2)),
    "swapaxes_": ([(2, 3, 4)], lambda lib, x: (x * 2).swapaxes_(0, 1).swapdims_(1, 2)),
    "squeeze_": ([(1, 3, 1)], lambda lib, x: (x * 2).squeeze_(0)),
    "unsqueeze_": ([(2, 3)], lambda lib, x: (x * 2).unsqueeze_(1)),
    "as_strided_": ([(2, 3)], lambda lib, x: (x * 2).as_strided_((2, 2), (3, 1), 1)),
    "select_scatter": ([(3, 4), (4,)], lambda lib, x, y: x.select_scatter(y, 0, 1)),
    "slice_scatter": ([(6, 2), (2, 2)], lambda lib, x, y: x.slice_scatter(y, 0, 1, 5, 2)),
    "diagonal_scatter": ([(3, 4), (3,)], lambda lib, x, y: x.diagonal_scatter(y, 1)),
    "cartesian_prod": ([(3,), (2,)], lambda lib, x, y: lib.t.cartesian_prod(x, y)),
    "diag of a vector": ([(3,)], lambda lib, x: x.diag(1)),
    "diag of a matrix": ([(3, 4)], lambda lib, x: x.diag(-1)),
    "diag_embed": ([(2, 3)], lambda lib, x: x.diag_embed(-1, 0, 2)),
    "diagflat": ([(2, 2)], lambda lib, x: x.diagflat(1)),
    "pad": ([(2, 3, 4)], lambda lib, x: lib.F.pad(x, (1, 2, 0, 3), value=1.5)),
    "pad that crops": ([(2, 5)], lambda lib, x: lib.F.pad(x, (-1, 2, 1, -1))),
    "pad that only crops": ([(4, 5)], lambda lib, x: lib.F.pad(x, (-1, -1))),
    "pad reflect": ([(1, 2, 4, 5)], lambda lib, x: lib.F.pad(x, (2, 1, 3, 0), "reflect")),
    "pad replicate": ([(2, 3, 4)], lambda lib, x: lib.F.pad(x, (2, 5), "replicate")),
    "pad circular": ([(2, 3, 4)], lambda lib, x: lib.F.pad(x, (2, 3), "circular")),
}


@pytest.mark.one_in(5, device="webgpu")
@pytest.mark.covers("A19", "B13", "F11", "G15", "G16", "G18")
@pytest.mark.parametrize("name", COPIES)
def test_copy_matches_pytorch(name: str, device: str) -> None:
    shapes, function = COPIES[name]
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    compare(function, inputs, device, second="nothing" not in name)


PARTS: dict[str, tuple[tuple[int, ...], Function]] = {
    "split": ((7, 2), lambda lib, x: x.split(3)),
    "split sections": ((2, 6), lambda lib, x: lib.t.split(x, [1, 0, 5], 1)),
    "split of nothing": ((0, 2), lambda lib, x: x.split(0)),
    "split_with_sizes": ((2, 6), lambda lib, x: x.split_with_sizes([2, 4], -1)),
    "chunk": ((7, 2), lambda lib, x: x.chunk(3)),
    "chunk more than there are": ((2, 2), lambda lib, x: x.chunk(5)),
    "tensor_split": ((7, 2), lambda lib, x: x.tensor_split(3)),
    "tensor_split indices": ((2, 7), lambda lib, x: x.tensor_split((1, 4, 9), dim=1)),
    "tensor_split negative": ((7,), lambda lib, x: x.tensor_split((-3, 2))),
    "hsplit": ((2, 4), lambda lib, x: x.hsplit(2)),
    "vsplit": ((4, 2), lambda lib, x: x.vsplit((1,))),
    "dsplit": ((1, 2, 4), lambda lib, x: x.dsplit(2)),
    "unbind": ((2, 3), lambda lib, x: x.unbind(1)),
    "meshgrid": ((3,), lambda lib, x: lib.t.meshgrid(x, x[:2], indexing="ij")),
    "meshgrid xy": ((3,), lambda lib, x: lib.t.meshgrid(x, x[:2], indexing="xy")),
    "broadcast_tensors": ((3, 1), lambda lib, x: lib.t.broadcast_tensors(x, x.t())),
    "atleast_1d": ((), lambda lib, x: [lib.t.atleast_1d(x)]),
    "atleast_2d": ((3,), lambda lib, x: [lib.t.atleast_2d(x)]),
    "atleast_3d": ((3, 2), lambda lib, x: lib.t.atleast_3d(x, x[0])),
}


@pytest.mark.one_in(3, device="webgpu")
@pytest.mark.covers("G17", "B8")
@pytest.mark.parametrize("name", PARTS)
def test_parts_match_pytorch(name: str, device: str) -> None:
    shape, function = PARTS[name]
    compare(function, [randn(*shape)], device, second=0 not in shape)


@pytest.mark.parametrize(
    "dtype", ["bool", "int64", "int32", "uint8", "int8", "float16", "bfloat16"]
)
@pytest.mark.parametrize("name", ["cat", "roll", "flip", "repeat", "tril", "pad"])
def test_copies_of_other_types(name: str, dtype: str, device: str) -> None:
    x = (torch.arange(12).reshape(3, 4) % 5).to(getattr(torch, dtype))
    functions: dict[str, Function] = {
        "cat": lambda lib, x: lib.t.cat((x, x), 1).float(),
        "roll": lambda lib, x: x.roll(1, 1).float(),
        "flip": lambda lib, x: x.flip(0).float(),
        "repeat": lambda lib, x: x.repeat(2, 2).float(),
        "tril": lambda lib, x: x.tril().float(),
        "pad": lambda lib, x: lib.F.pad(x, (1, 0), value=1).float(),
    }
    mine = webtorch.tensor(x.tolist(), dtype=getattr(webtorch, dtype), device=device)
    expected, actual = functions[name](TORCH, x), functions[name](WEBTORCH, mine)
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("a", "b"),
    [("int64", "float32"), ("uint8", "int8"), ("bool", "int32"), ("float16", "bfloat16")],
)
def test_cat_promotes(a: str, b: str) -> None:
    theirs = torch.cat([torch.ones(2).to(getattr(torch, a)), torch.ones(1).to(getattr(torch, b))])
    mine = webtorch.cat(
        [webtorch.ones(2).to(getattr(webtorch, a)), webtorch.ones(1).to(getattr(webtorch, b))]
    )
    assert str(mine.dtype) == str(theirs.dtype)
    assert mine.tolist() == theirs.tolist()


def test_cat_of_many_parts_is_linear() -> None:
    parts = [webtorch.full((2,), float(i), requires_grad=True) for i in range(1000)]
    whole = webtorch.cat(parts)
    (whole * webtorch.arange(2000.0)).sum().backward()
    assert parts[999].grad.tolist() == [1998.0, 1999.0]
    assert whole[-1].item() == 999.0


def test_repeats_given_by_a_tensor(device: str) -> None:
    counts = torch.tensor([2, 0, 3])
    compare(lambda lib, x, n: x.repeat_interleave(n, 0), [randn(3, 2), counts], device)
    compare(
        lambda lib, x, n: x.repeat_interleave(n, 0, output_size=5), [randn(3, 2), counts], device
    )
    compare(lambda lib, n: lib.t.repeat_interleave(n), [counts], device, gradients=False)


def test_in_place_triangles(device: str) -> None:
    compare(lambda lib, x: (x * 2).tril_(-1), [randn(3, 3)], device)
    compare(lambda lib, x: (x * 2).triu_(), [randn(3, 3)], device)


def test_writing_through_a_chain_of_views(device: str) -> None:
    def run(lib: Any, x: Any) -> Any:
        y = x * 1
        y[1:].t()[::2].diagonal().mul_(5)
        return y

    compare(run, [randn(4, 5)], device)


def test_clone_keeps_dense_strides() -> None:
    theirs, mine = torch.zeros(2, 3, 4).permute(2, 0, 1), webtorch.zeros(2, 3, 4).permute(2, 0, 1)
    assert tuple(mine.clone().stride()) == theirs.clone().stride()
    kept = webtorch.contiguous_format
    assert mine.clone(memory_format=kept).is_contiguous()
    image, picture = torch.zeros(2, 3, 4, 5), webtorch.zeros(2, 3, 4, 5)
    expected = image.contiguous(memory_format=torch.channels_last).stride()
    assert tuple(picture.contiguous(memory_format=webtorch.channels_last).stride()) == expected


ERRORS: dict[str, Function] = {
    "view of another count": lambda lib: lib.t.zeros(2).view(3),
    "view of a transpose": lambda lib: lib.t.zeros(2, 3).t().view(6),
    "two unknown sizes": lambda lib: lib.t.zeros(4).view(-1, -1),
    "expand another size": lambda lib: lib.t.zeros(3).expand(2),
    "expand a new -1": lambda lib: lib.t.zeros(3).expand(-1, 3),
    "expand to fewer dims": lambda lib: lib.t.zeros(2, 3).expand(3),
    "permute too few": lambda lib: lib.t.zeros(2, 3).permute(0),
    "permute twice": lambda lib: lib.t.zeros(2, 3).permute(0, 0),
    "t of 3-d": lambda lib: lib.t.zeros(2, 3, 4).t(),
    "mT of 1-d": lambda lib: lib.t.zeros(2).mT,
    "transpose out of range": lambda lib: lib.t.zeros(2).transpose(0, 1),
    "select out of range": lambda lib: lib.t.zeros(2).select(0, 3),
    "narrow too long": lambda lib: lib.t.zeros(4).narrow(0, 3, 2),
    "narrow outside": lambda lib: lib.t.zeros(4).narrow(0, 5, 1),
    "narrow negative": lambda lib: lib.t.zeros(4).narrow(0, 0, -1),
    "split by 0": lambda lib: lib.t.zeros(4).split(0),
    "split by -1": lambda lib: lib.t.zeros(4).split(-1),
    "split to another sum": lambda lib: lib.t.zeros(4).split([1, 2]),
    "chunk by 0": lambda lib: lib.t.zeros(4).chunk(0),
    "cat nothing": lambda lib: lib.t.cat([]),
    "cat 0-d": lambda lib: lib.t.cat([lib.t.tensor(1.0)]),
    "cat other ranks": lambda lib: lib.t.cat([lib.t.zeros(2), lib.t.zeros(2, 2)]),
    "cat other sizes": lambda lib: lib.t.cat([lib.t.zeros(2, 3), lib.t.zeros(2, 2)]),
    "stack other shapes": lambda lib: lib.t.stack([lib.t.zeros(2), lib.t.zeros(3)]),
    "unfold too long": lambda lib: lib.t.zeros(3).unfold(0, 4, 1),
    "unfold step 0": lambda lib: lib.t.zeros(3).unfold(0, 2, 0),
    "diagonal of one dim": lambda lib: lib.t.zeros(3, 3).diagonal(0, 0, 0),
    "flip twice": lambda lib: lib.t.zeros(3).flip(0, 0),
    "roll misaligned": lambda lib: lib.t.zeros(3).roll((1, 2), (0,)),
    "repeat too few": lambda lib: lib.t.zeros(3, 3).repeat(2),
    "unflatten": lambda lib: lib.t.zeros(6).unflatten(0, (4, -1)),
    "flatten": lambda lib: lib.t.zeros(2, 3).flatten(1, 0),
    "squeeze out of range": lambda lib: lib.t.zeros(2, 2).squeeze(3),
    "tril of 1-d": lambda lib: lib.t.zeros(3).tril(),
    "diag of 3-d": lambda lib: lib.t.zeros(2, 3, 4).diag(),
    "as_strided outside": lambda lib: lib.t.zeros(3).as_strided((5,), (1,)),
    "as_strided negative": lambda lib: lib.t.zeros(3).as_strided((2,), (-1,)),
    "pad odd": lambda lib: lib.F.pad(lib.t.zeros(3), (1,)),
    "pad reflect too far": lambda lib: lib.F.pad(lib.t.zeros(1, 3), (3, 0), "reflect"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_has_pytorch_type(name: str) -> None:
    same_error(ERRORS[name], [], "cpu", "")
