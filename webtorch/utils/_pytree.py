"""torch.utils._pytree: nested containers as a list of leaves and a form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple


class TreeSpec(NamedTuple):
    """The form of a nested container: how it is built from its parts' leaves."""

    type: Any
    context: Any
    children_specs: list[Any]

    @property
    def num_leaves(self) -> int:
        """How many leaves there are."""
        return sum(c.num_leaves for c in self.children_specs) if self.type is not None else 1


class MappingKey(NamedTuple):
    """The key of a part of a mapping."""

    key: Any


def _dict_flatten_with_keys(
    d: dict[object, object],
) -> tuple[list[tuple[MappingKey, object]], list[object]]:
    return [(MappingKey(k), v) for k, v in d.items()], list(d)


def _dict_flatten(d: dict[object, object]) -> tuple[list[object], list[object]]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Any, context: list[Any]) -> dict[object, object]:
    return dict(zip(context, values, strict=True))


_LEAF = TreeSpec(None, None, [])


# Class -> (its parts and context, how it is built of parts and context).
_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[..., Any]]] = {}


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], object],
    unflatten_fn: Callable[..., object],
    **names: object,
) -> None:
    """Take a class of containers: `flatten_fn` gives (parts, context), `unflatten_fn` takes them."""
    _KINDS[cls] = (flatten_fn, unflatten_fn)


_register_pytree_node = register_pytree_node


def _parts(tree: Any) -> tuple[list[Any], Any] | None:
    if type(tree) in _KINDS:
        parts, context = _KINDS[type(tree)][0](tree)
        return list(parts), context
    if type(tree) in (dict, OrderedDict):
        return list(tree.values()), list(tree)
    if type(tree) in (list, tuple) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return list(tree), None
    return None


def tree_flatten(
    tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Any]:
    """Return (leaves, form)."""
    found = None if is_leaf is not None and is_leaf(tree) else _parts(tree)
    if found is None:
        return [tree], _LEAF
    pairs = [tree_flatten(part, is_leaf) for part in found[0]]
    leaves = [leaf for part, _ in pairs for leaf in part]
    return leaves, TreeSpec(type(tree), found[1], [spec for _, spec in pairs])


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """Return the container of that form with these leaves."""
    return _build(iter(leaves), treespec)


def _build(leaves: Any, spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    parts = [_build(leaves, child) for child in spec.children_specs]
    if spec.type in _KINDS:
        return _KINDS[spec.type][1](parts, spec.context)
    if spec.context is not None:
        return spec.type(zip(spec.context, parts, strict=True))
    return spec.type(*parts) if hasattr(spec.type, "_fields") else spec.type(parts)


def tree_map(
    func: Callable[..., object],
    tree: object,
    *rests: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the same container with `func` of each leaf."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_flatten(rest, is_leaf)[0] for rest in rests]
    return tree_unflatten([func(*x) for x in zip(leaves, *others, strict=True)], spec)


def tree_leaves(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same container with `func` of each leaf of a type."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)


def broadcast_leaves(tree: object, treespec: TreeSpec) -> list[Any] | None:
    """Return a leaf of `tree` for each leaf of a form that is nested at least as deep; None if they differ."""
    if treespec.type is None:
        return [tree]
    found = _parts(tree)
    if found is None:
        return [tree] * treespec.num_leaves
    parts, context = found
    if (
        type(tree) is not treespec.type
        or context != treespec.context
        or len(parts) != len(treespec.children_specs)
    ):
        return None
    out: list[object] = []
    for part, spec in zip(parts, treespec.children_specs, strict=True):
        inner = broadcast_leaves(part, spec)
        if inner is None:
            return None
        out += inner
    return out


_broadcast_to_and_flatten = broadcast_leaves
