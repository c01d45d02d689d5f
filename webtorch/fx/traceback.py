"""What is known of a node goes along to those that are made of it, where somebody asks for that."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webtorch.fx.node import Node

# What goes along.
_KEPT = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "recompute", "custom")


class _State(threading.local):
    kept = False
    meta: dict[str, Any] = {}  # noqa: RUF012


_state = _State()


def has_preserved_node_meta() -> bool:
    """Whether new nodes take over what is known of the one that runs."""
    return _state.kept


def get_current_meta() -> dict[str, Any]:
    """Return what is known of the node that runs."""
    return _state.meta


def kept_meta() -> dict[str, Any]:
    """Return what a new node takes over of it."""
    return {k: _state.meta[k] for k in _KEPT if _state.meta.get(k)}


def format_stack() -> list[str]:
    """Return where the node that runs was made, if that is known."""
    trace = _state.meta.get("stack_trace")
    return [trace] if trace else []


@contextlib.contextmanager
def preserve_node_meta(enable: bool = True) -> Iterator[None]:
    """A block in which new nodes take over what is known of the one that runs."""
    before, _state.kept = (_state.kept, _state.meta), enable
    try:
        yield
    finally:
        _state.kept, _state.meta = before


@contextlib.contextmanager
def set_current_meta(node: Node, pass_name: str = "") -> Iterator[None]:
    """A block in which a node runs."""
    before = _state.meta
    if _state.kept and node.meta:
        _state.meta = dict(node.meta)
    try:
        yield
    finally:
        _state.meta = before
