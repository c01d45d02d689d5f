"""torch._dynamo: marks for PyTorch's compiler that change nothing here."""

from __future__ import annotations


def mark_static(t: object, index: object = None) -> None:
    """Do nothing: a size is captured as it is, unless it is marked as dynamic."""


def mark_static_address(t: object, guard: bool = False) -> None:
    """Do nothing: a captured step reads a tensor of the module wherever its memory is."""


def graph_break(msg: str = "") -> None:
    """Do nothing: a function is captured as it runs."""


def is_dynamo_supported() -> bool:
    """Return True: `torch.compile` works."""
    return True
