"""Errors and warnings whose first words are PyTorch's: users and their tests look for these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

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
}
_WARNED: dict[str, Call] = {
    "scheduler before optimizer": lambda t: _scheduler(t).step(),
    "epoch": lambda t: _scheduler(t).step(3),
}


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
