"""Runs one program with PyTorch and with webtorch, and compares what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.func

import webtorch
import webtorch.func


class Library:
    """One of the two, with the inputs of a program on its device."""

    def __init__(self, module: Any, device: str) -> None:
        self.torch, self.func, self.nn, self.device = module, module.func, module.nn, device

    def tensor(self, *shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> Any:
        """The same numbers in both."""
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(shape, generator=generator) * (high - low) + low
        return self.torch.tensor(values.tolist(), device=self.device).reshape(shape)

    def indices(self, *shape: int, below: int, seed: int = 0) -> Any:
        """The same integers in both."""
        values = torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))
        return self.torch.tensor(values.tolist(), device=self.device).reshape(shape)

    def filled(self, module: Any, seed: int = 0) -> Any:
        """The module with the same parameters in both."""
        module = module.to(self.device)
        with self.torch.no_grad():
            for i, p in enumerate(module.parameters()):
                p.copy_(self.tensor(*p.shape, seed=seed + i) * 0.5)
        return module


def leaves(tree: Any) -> list[Any]:
    """All tensors and numbers of nested results."""
    if isinstance(tree, dict):
        return [x for value in tree.values() for x in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [x for value in tree for x in leaves(value)]
    return [tree]


def same(program: Callable[[Library], Any], device: str, tolerance: float = 2e-5) -> None:
    """Assert that a program gives PyTorch's results."""
    expected = leaves(program(Library(torch, "cpu")))
    found = leaves(program(Library(webtorch, device)))
    assert len(expected) == len(found)
    for ours, theirs in zip(found, expected, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        assert ours.requires_grad == theirs.requires_grad
        mine = torch.tensor(ours.detach().cpu().tolist(), dtype=torch.float64).reshape(theirs.shape)
        torch.testing.assert_close(
            mine, theirs.detach().double(), rtol=tolerance, atol=tolerance, equal_nan=True
        )


def same_error(program: Callable[[Library], Any], device: str = "cpu") -> None:
    """Assert that a program raises PyTorch's type of error, with its text."""
    texts = []
    for module, where in ((torch, "cpu"), (webtorch, device)):
        try:
            program(Library(module, where))
        except Exception as error:
            texts.append((type(error), " ".join(str(error).replace("webtorch", "torch").split())))
        else:
            texts.append((None, "no error"))
    (theirs, text), (ours, mine) = texts
    assert theirs is not None, "PyTorch does not raise"
    assert ours is not None, f"PyTorch raises {theirs.__name__}: {text}"
    assert issubclass(ours, theirs), f"{ours.__name__} is no {theirs.__name__}: {text}"
    assert mine == text
