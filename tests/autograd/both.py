"""Runs one program in webtorch and in PyTorch and compares everything it gives back, errors included.

A program is a function of the library; it may return tensors, numbers, text, and nests of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import webtorch

Library = Any
LIBRARIES = (webtorch, torch)


def tensor(lib: Library, values: Any, grad: bool = True) -> Any:
    """Return a float64 tensor on the CPU."""
    return lib.tensor(values, dtype=lib.float64, device="cpu", requires_grad=grad)


def error(action: Callable[[], Any]) -> str | None:
    """Return the family and the first sentence of the error that `action` raises, or None."""
    try:
        action()
    except (AssertionError, RuntimeError, TypeError, ValueError, IndexError) as found:
        families = (
            AssertionError,
            NotImplementedError,
            IndexError,
            TypeError,
            ValueError,
            RuntimeError,
        )
        family = next(f.__name__ for f in families if isinstance(found, f))
        return f"{family}: {str(found).strip().splitlines()[0].split('. ')[0].rstrip('.')}"
    return None


def plain(result: Any) -> Any:
    """Return a result as nested Python values, with the types of tensors beside their values."""
    if isinstance(result, (webtorch.Tensor, torch.Tensor)):
        kind = str(result.dtype).removeprefix("torch.")
        return (
            "tensor",
            kind,
            tuple(result.shape),
            bool(result.requires_grad),
            result.detach().tolist(),
        )
    if isinstance(result, dict):
        return {k: plain(v) for k, v in result.items()}
    if isinstance(result, (list, tuple)):
        return [plain(v) for v in result]
    return result


def _check(mine: Any, theirs: Any, where: str, rtol: float) -> None:
    if isinstance(theirs, float) and not isinstance(mine, bool):
        same = (math.isnan(theirs) and math.isnan(mine)) or math.isclose(
            mine, theirs, rel_tol=rtol, abs_tol=rtol
        )
        assert same, f"{where}: webtorch gives {mine}, PyTorch {theirs}"
    elif isinstance(theirs, (list, tuple)) and isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs), f"{where}: webtorch gives {mine}, PyTorch {theirs}"
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            _check(a, b, f"{where}[{i}]", rtol)
    elif isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), where
        for key in theirs:
            _check(mine[key], theirs[key], f"{where}[{key!r}]", rtol)
    else:
        assert mine == theirs, f"{where}: webtorch gives {mine!r}, PyTorch {theirs!r}"


def same(program: Callable[[Library], Any], rtol: float = 1e-10) -> Any:
    """Assert that a program does the same in both libraries, and return what it gave in webtorch."""
    mine, theirs = (plain(program(lib)) for lib in LIBRARIES)
    _check(mine, theirs, "result", rtol)
    return mine
