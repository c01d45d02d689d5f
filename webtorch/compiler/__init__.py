"""`webtorch.compiler`: PyTorch's marks for its compiler, which leave a function as it is. Floor 5."""

from __future__ import annotations

import contextlib
from typing import Any

from webtorch.capture import compile
from webtorch.tensors.modes import mode

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable",
    "is_compiling", "is_dynamo_compiling", "is_exporting", "list_backends", "reset", "set_stance",
]  # fmt: skip


def is_compiling() -> bool:
    """Whether a module is being exported; `webtorch.compile` runs a function as it is, with the branches of always."""
    return mode.exporting


def is_dynamo_compiling() -> bool:
    """Return False."""
    return False


def is_exporting() -> bool:
    """Whether `torch.export` records what a module calls."""
    return mode.exporting


def disable(fn: object = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Return the function itself: nothing is compiled by being called."""
    return (lambda f: f) if fn is None else fn


def allow_in_graph(fn: object) -> Any:
    """Return the function itself: every function may be part of a captured step."""
    return fn


def assume_constant_result(fn: object) -> Any:
    """Return the function itself."""
    return fn


def list_backends(exclude_tags: object = ("debug", "experimental")) -> list[str]:
    """Return the names of compilers that `compile` takes: all mean webtorch's."""
    return ["inductor", "webgpu"]


def cudagraph_mark_step_begin() -> None:
    """Do nothing."""


def reset() -> None:
    """Do nothing: what `compile` returned keeps its own programs."""


def set_stance(stance: str = "default", **options: object) -> contextlib.nullcontext[None]:
    """Change nothing; usable as a context."""
    return contextlib.nullcontext()
