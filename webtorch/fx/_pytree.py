"""Nested arguments as the list of leaves that a form says: what the code of a graph calls."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from webtorch.utils import _pytree as pytree


def tree_flatten_spec(tree: Any, spec: pytree.TreeSpec) -> list[Any]:
    """Return the leaves of a container that is nested as `spec` says; dicts may have more keys."""
    if spec.is_leaf():
        return [tree]
    if spec.type is dict:
        parts = [tree[k] for k in spec.context]
    elif spec.type in (list, tuple, namedtuple):
        parts = [tree[i] for i in range(spec.num_children)]
    else:
        leaves, found = pytree.tree_flatten(tree)
        if found != spec:
            raise RuntimeError(
                f"Real spec {found} of object {tree} is different from expected spec {spec}."
            )
        return leaves
    return [
        leaf
        for part, child in zip(parts, spec.children())
        for leaf in tree_flatten_spec(part, child)
    ]
