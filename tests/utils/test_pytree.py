"""torch.utils._pytree gives what PyTorch's gives, for containers of every kind and in every function."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils import _pytree as theirs

from webtorch.utils import _pytree as ours

Point = namedtuple("Point", "x y")


def _tree() -> Any:
    return {
        "b": [1, (2, None)], "a": OrderedDict(z=3), "d": defaultdict(list, {1: [4]}), "q": deque([5, 6], maxlen=4),
        "n": Point(7, [8]),
    }  # fmt: skip


def _without_names() -> Any:
    return {key: value for key, value in _tree().items() if key != "n"}


CALLS: dict[str, Callable[[Any], Any]] = {
    "flatten": lambda p: p.tree_flatten(_tree())[0],
    "counts": lambda p: [
        (s.num_leaves, s.num_nodes, s.num_children) for s in [p.tree_structure(_tree())]
    ],
    "again": lambda p: p.tree_unflatten(range(8 + 1), p.tree_structure(_tree())),
    "repr": lambda p: repr(p.tree_structure(_tree())),
    "pprint": lambda p: p.treespec_pprint(p.tree_structure(_tree())),
    "paths": lambda p: [
        (p.keystr(k), p.key_get(_tree(), k)) for k, _ in p.tree_leaves_with_path(_tree())
    ],
    "with paths": lambda p: p.tree_map_with_path(lambda k, x: (p.keystr(k), x), [1, {"a": 2}]),
    "several": lambda p: p.tree_map(
        lambda *x: x, {"a": 1, "b": [2, 3]}, {"b": [(1, 2), 3], "a": 5}
    ),
    "leaf by choice": lambda p: p.tree_leaves(
        [1, (2, 3)], is_leaf=lambda x: isinstance(x, tuple)
    ),
    "only": lambda p: p.tree_map_only(int, lambda x: x + 1, [1, "a", 2.0, (3,)]),
    "only by a function": lambda p: p.tree_map_only(callable, lambda _: 0, [len, 1]),
    "all, any": lambda p: (
        p.tree_all(bool, [1, [0]]), p.tree_any(bool, [0, [1]]), p.tree_all_only(int, bool, [1, ""]),
        p.tree_any_only(int, bool, [0, "a"]),
    ),
    "arguments": lambda p: p.arg_tree_leaves([1], (2,), a=[3]),
    "broadcast": lambda p: (
        p._broadcast_to_and_flatten([1, [2, 3]], p.tree_structure([(1, 2), [3, 4]])),
        p._broadcast_to_and_flatten((1,), p.tree_structure([1])),
    ),
    "kinds": lambda p: (
        p._get_node_type(Point(1, 2)) is namedtuple, p._get_node_type([]), p.tree_is_leaf(1), p.tree_is_leaf({}),
        p.is_namedtuple(Point), p.is_structseq(__import__("time").gmtime()),
    ),
    "made": lambda p: (
        repr(p.treespec_tuple([p.treespec_leaf()])), repr(p.treespec_dict(a=p.treespec_leaf())),
        p.treespec_leaf() == p.tree_structure(1), p.tree_structure(_tree()).child(0).type,
    ),
    "text": lambda p: (
        p.treespec_loads(p.treespec_dumps(p.tree_structure(_without_names())))
        == p.tree_structure(_without_names())
    ),
    "hash": lambda p: hash(p.tree_structure(_tree())) == hash(p.tree_structure(_tree())),
    "registered": lambda p: p.SUPPORTED_NODES[list].flatten_fn([1, 2]),
    "too few": lambda p: p.tree_unflatten([1], p.tree_structure(_tree())),
    "other kind": lambda p: p.tree_map(lambda *x: x, [1], (1,)),
    "other length": lambda p: p.tree_map(lambda *x: x, [1], [1, 2]),
    "other keys": lambda p: p.tree_map(lambda *x: x, {"a": 1}, {"b": 1}),
}  # fmt: skip


def _found(call: Callable[[Any], Any], library: Any) -> Any:
    try:
        return call(library)
    except ValueError as error:
        return str(error)[:20]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_pytorchs_gives(name: str) -> None:
    assert repr(_found(CALLS[name], ours)) == repr(_found(CALLS[name], theirs))


@dataclasses.dataclass
class Pair:
    """A container of the user's."""

    left: Any
    right: Any


def test_a_dataclass_a_class_and_a_constant_are_registered_and_forgotten() -> None:
    class Box:
        def __init__(self, inside: Any) -> None:
            self.inside = inside

    @dataclasses.dataclass(frozen=True)
    class Mark:
        name: str

    ours.register_dataclass(Pair)
    ours.register_pytree_node(Box, lambda b: ([b.inside], None), lambda parts, _: Box(*parts))
    ours.register_constant(Mark)
    try:
        assert ours.tree_map(lambda x: x * 3, Pair(1, [2])) == Pair(3, [6])
        assert ours.tree_map(lambda x: x + 1, Box([1, 2])).inside == [2, 3]
        leaves, form = ours.tree_flatten([Mark("a"), 1])
        assert leaves == [1] and ours.tree_unflatten([2], form) == [Mark("a"), 2]
        assert form != ours.tree_structure([Mark("b"), 1])
        with pytest.raises(ValueError, match="flatten_with_keys_fn"):
            ours.tree_leaves_with_path(Box(1))
    finally:
        for kind in (Pair, Box, Mark):
            ours._deregister_pytree_node(kind)
    assert ours.tree_leaves(Pair(1, 2)) == [Pair(1, 2)]
