"""Operations on lists of tensors give what PyTorch's CPU gives, however often they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
