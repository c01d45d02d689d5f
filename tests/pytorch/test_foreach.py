"""Operations on lists of tensors give what PyTorch's CPU gives, however often they are called."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.optim.adamw import adamw
from torch.utils.flop_counter import FlopCounterMode

import webtorch.pytorch.library  # noqa: F401  (which registers them)
from webtorch.pytorch.foreach import registered

_SIZES = ((4, 3), (5,), (), (2, 1, 3))


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _lists(count: int, seed: int, where: str) -> list[list[torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [
        [(torch.rand(s, generator=g) * 0.8 + 0.1).to(where) for s in _SIZES] for _ in range(count)
    ]


def _arguments(schema: Any, turn: int, where: str) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of an operator, of which the numbers are others at each turn."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    number = 0.25 + turn / 8
    lists = iter(_lists(4, turn, where))
    for a in schema.arguments:
        kind = str(a.type)
        value: Any
        if kind == "List[Tensor]":
            value = next(lists)
        elif kind == "Tensor":
            value = torch.tensor(number).to(where)
        elif kind.startswith("List["):
            value = [number + i / 16 for i in range(len(_SIZES))]
        elif a.name == "ord":
            value = 2
        elif kind.startswith("Optional"):
            continue
        else:
            value = number
        if a.kwarg_only:
            kwargs[a.name] = value
        else:
            args.append(value)
    return args, kwargs


def _run(name: str, turn: int, where: str) -> list[torch.Tensor]:
    operator = _operator(name)
    args, kwargs = _arguments(operator._schema, turn, where)
    found = operator(*args, **kwargs)
    return [x.cpu() for x in (args[0] if found is None else found)]


# What is done with each tensor of a list is compared elsewhere.
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", registered())
def test_lists_are_gone_through_as_on_the_cpu(webgpu: str, name: str) -> None:
    for turn in range(5):
        found, expected = _run(name, turn, webgpu), _run(name, turn, "cpu")
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def _adam(where: str) -> list[torch.Tensor]:
    """Return parameters and states after steps one by one, with a gradient missing once."""
    params = [(torch.arange(12.0).view(3, 4) - n).to(where).requires_grad_() for n in range(3)]
    optimizer = torch.optim.AdamW(params, lr=0.1, weight_decay=0.3, foreach=False)
    for turn in range(5):
        for n, p in enumerate(params):
            p.grad = (torch.arange(12.0).view(3, 4) * (n + 1) - 5 + turn).to(where)
        if turn == 3:
            params[1].grad = None
        optimizer.step()
    return [*params, *(optimizer.state[p][k] for p in params for k in sorted(optimizer.state[p]))]


def test_adam_one_by_one_shows_its_operators_to_who_looks_at_them() -> None:
    for ours, theirs in zip(_adam("webgpu"), _adam("cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
    with FlopCounterMode(display=False):
        seen = _adam("webgpu")
    for ours, theirs in zip(seen, _adam("cpu"), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
    adam: Any = importlib.import_module("torch.optim.adam")
    # As `torch.distributed.optim` does.
    assert torch.jit.script(adam._single_tensor_adam) is not None


def test_counts_that_parameters_share_are_counted_as_pytorch_does() -> None:
    found = []
    for where in ("webgpu", "cpu"):
        x, y, *averages = (torch.ones(4, device=where) for _ in range(6))
        step = torch.tensor(0.0)
        with torch.no_grad():
            adamw(
                [x, y], [x * 2, y * 3], averages[:2], averages[2:], [], [step, step], foreach=False, amsgrad=False,
                beta1=0.9, beta2=0.99, lr=0.1, weight_decay=0.1, eps=1e-8, maximize=False,
            )  # fmt: skip
        found.append([x.cpu(), y.cpu(), step])
    torch.testing.assert_close(*found)
