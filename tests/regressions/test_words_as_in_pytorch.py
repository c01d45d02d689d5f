"""Errors and warnings whose first words are PyTorch's: users and their tests look for these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import webtorch

Call = Callable[[Any], Any]
# What is refused, by a library under the name `torch`.
_REFUSED: dict[str, Call] = {
    "diff, dims": lambda t: t.ones(3, 3).diff(prepend=t.ones(2)),
    "diff, sizes": lambda t: t.ones(3, 3).diff(prepend=t.ones(2, 1)),
    "gradient": lambda t: t.gradient(t.ones(4, 4), spacing=[1.0]),
    "masked_fill": lambda t: t.ones(2).masked_fill(t.ones(2, dtype=t.uint8), 1),
    "masked_select": lambda t: t.ones(2).masked_select(t.ones(2, dtype=t.uint8)),
    "nonzero": lambda t: t.nonzero(t.ones(2), as_tuple=True, out=t.empty(0, dtype=t.int64)),
    "multilabel_margin_loss, none": lambda t: t.nn.MultiLabelMarginLoss()(
        t.ones(0), t.ones(10).long()
    ),
    "multilabel_margin_loss, no classes": lambda t: t.nn.MultiLabelMarginLoss()(
        t.ones(2, 0), t.ones(2, 0).long()
    ),
    "group_norm": lambda t: t.nn.functional.group_norm(t.ones(1, 10), 10),
    "reflect": lambda t: t.nn.ReflectionPad2d(1)(t.ones(2, 0, 3, 3)),
    "replicate": lambda t: t.nn.ReplicationPad1d(1)(t.ones(2, 0, 3)),
    "cosine_embedding_loss": lambda t: t.nn.functional.cosine_embedding_loss(
        t.ones(4), t.ones(4), t.ones(4)
    ),
    "random_, from": lambda t: t.zeros(2, dtype=t.int8).random_(-300, 5),
    "random_, to": lambda t: t.zeros(2, dtype=t.int16).random_(0, 2**40),
    "random_, bool": lambda t: t.zeros(2, dtype=t.bool).random_(0, 3),
    "linspace": lambda t: t.linspace(0, 1j, 3, dtype=t.float32),
    "linear": lambda t: t.nn.functional.linear(t.ones(()), t.ones(1, 1)),
    "instance_norm": lambda t: t.nn.InstanceNorm2d(4, affine=True)(t.ones(3, 2, 2, 2)),
    "addr": lambda t: t.addr(t.ones(2, 2), t.ones(2), t.ones(2), alpha=True),
    "dictionaries": lambda t: t.func.functional_call(
        t.nn.Linear(1, 1), ({"weight": t.ones(1, 1)}, {"weight": t.ones(1, 1)}), (t.ones(1),)
    ),
    "batched gradients": lambda t: _gradient(t, t.ones(2, 2), is_grads_batched=True),
    "view made without gradients": lambda t: _view_made_without_gradients(t).t_(),
    "tangent of a tangent": lambda t: _dual(t, lambda d, x: t.autograd.forward_ad.make_dual(x, d)),
    "dual of a dual": lambda t: _dual(t, lambda d, x: t.autograd.forward_ad.make_dual(d, x)),
    "FloatTensor": lambda t: type("Mine", (t.FloatTensor,), {}),
    "dstack of a tensor": lambda t: t.dstack(t.ones(2)),
    "hstack of a number": lambda t: t.hstack([t.ones(2), 3]),
    "column_stack of a tensor": lambda t: t.column_stack(t.ones(2)),
    "vstack of a list": lambda t: t.vstack([[1]]),
    "block_diag": lambda t: t.block_diag(3),
    "meshgrid of nothing": lambda t: t.meshgrid([]),
    "frombuffer, no buffer": lambda t: t.frombuffer([1, 2], dtype=t.int16),
    "frombuffer, no count": lambda t: t.frombuffer(bytearray(8), dtype=t.int16, count=0),
    "polar of ints": lambda t: t.polar(t.ones(2, dtype=t.int32), t.ones(2)),
    "complex of bfloat16": lambda t: t.complex(t.ones(2).bfloat16(), t.ones(2).bfloat16()),
    "complex of two types": lambda t: t.complex(t.ones(2), t.ones(2).double()),
    "lerp, end": lambda t: t.lerp(t.ones(2), t.ones(2).double(), 1),
    "lerp, weight": lambda t: t.lerp(t.ones(2), t.ones(2), t.ones(2).half()),
    "addcdiv of ints": lambda t: t.addcdiv(*[t.ones(2, dtype=t.int64)] * 3),
    "addcdiv_ of ints": lambda t: t.tensor(1).addcdiv_(t.tensor(1), t.tensor(1)),
    "randint_like of complex": lambda t: t.randint_like(t.ones(2) * 1j, 6),
    "baddbmm, input": lambda t: t.ones(1, 1, 1).int().baddbmm(*[t.ones(1, 1, 1)] * 2),
    "norm of a vector": lambda t: t.linalg.norm(t.ones(3), "fro"),
    "norm along a dim": lambda t: t.linalg.norm(t.ones(3, 3), "nuc", 0),
    "norm, order": lambda t: t.linalg.norm(t.ones(3), "of"),
    "norm, complex order": lambda t: t.linalg.norm(t.ones(3), 1j),
    "logspace": lambda t: t.logspace(0, 1, -1, dtype=t.int32),
    "randint of complex": lambda t: t.randint(6, (2,), dtype=t.complex64),
    "randperm of halves": lambda t: t.randperm(2**11 + 2, out=t.empty(0, dtype=t.half)),
    "out of another type": lambda t: t.zeros(2, dtype=t.int64, out=t.ones(2)),
    "too far apart": lambda t: t.empty_strided([8, 8], [2**61, 1]),
    "too large, of nothing": lambda t: t.empty([0, 4, 2**61]),
    "too large": lambda t: t.empty(8, 8, 2**29, 2**29),
    "asarray, type": lambda t: t.asarray(t.ones(2), dtype=t.float64, copy=False),
    "asarray, device": lambda t: t.asarray(t.ones(2), device="meta", copy=False),
    "asarray of a NumPy number": lambda t: t.asarray(numpy.float64(0.5), copy=False),
    "empty_strided": lambda t: t.empty_strided((1,), ()),
    "a sequence without elements": lambda t: t.tensor(_Sequence()),
    "a word": lambda t: t.tensor([0, "word"]),
}
_WARNED: dict[str, Call] = {
    "affine_grid of one column": lambda t: t.nn.functional.affine_grid(
        t.ones(1, 2, 3), (1, 1, 2, 1), align_corners=True
    ),
    "scheduler before optimizer": lambda t: _scheduler(t).step(),
    "epoch": lambda t: _scheduler(t).step(3),
}


class _Sequence:
    """It says how long it is, and gives nothing."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> object:
        raise TypeError


def _gradient(torch: Any, cotangent: Any, **options: Any) -> Any:
    x = torch.ones(2, 2, requires_grad=True)
    return torch.autograd.grad(x * 2, (x,), (cotangent,), **options)


def _view_made_without_gradients(torch: Any) -> Any:
    base = torch.ones(2, 3, requires_grad=True) * 1
    with torch.no_grad():
        return base.view_as(base)


def _dual(torch: Any, call: Callable[[Any, Any], Any]) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return call(
            torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2)), torch.ones(2)
        )


def _scheduler(torch: Any) -> Any:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def _error(call: Call, library: Any) -> str:
    with pytest.raises(Exception) as found:
        call(library)
    return str(found.value)


@pytest.mark.parametrize("name", _REFUSED)
def test_the_words_of_an_error_begin_with_pytorchs(name: str) -> None:
    theirs = _error(_REFUSED[name], torch).replace("unsigned char", "torch.uint8").rstrip(" .")
    # A missing blank of PyTorch's.
    theirs = theirs.replace("level0", "level 0")
    # PyTorch shows the shape of the cotangent's first row.
    theirs = theirs.partition(" grad_output[0] has")[0]
    first = theirs.partition("\nException raised from")[0].partition(" (Triggered")[0]
    assert _error(_REFUSED[name], webtorch).startswith(first)


@pytest.mark.parametrize("name", _WARNED)
def test_the_words_of_a_warning_begin_with_pytorchs(name: str) -> None:
    found = []
    for library in (torch, webtorch):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            _WARNED[name](library)
        found.append([str(w.message) for w in seen])
    assert found[1] == found[0]
