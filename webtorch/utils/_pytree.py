"""torch.utils._pytree: nested containers as a list of leaves and a form.

A container is known by its class: how it comes apart into parts and a context, how it is built of these, and under
which keys the parts lie in it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

# Any value: a leaf, or a container of such.
PyTree: TypeAlias = Any
Context: TypeAlias = Any
Flatten = Callable[[PyTree], tuple[PyTree, PyTree]]
Unflatten = Callable[[PyTree, PyTree], PyTree]
IsLeaf = Callable[[PyTree], bool] | None
KeyPath = tuple[PyTree, ...]


# -- keys --------------------------------------------------------------------------------------------------------------


class SequenceKey(NamedTuple):
    """The place of a part of a sequence."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: PyTree) -> PyTree:
        """Return the part of a sequence."""
        return sequence[self.idx]


class MappingKey(NamedTuple):
    """The key of a part of a mapping."""

    key: PyTree

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: PyTree) -> PyTree:
        """Return the part of a mapping."""
        return mapping[self.key]


class GetAttrKey(NamedTuple):
    """The name of a part that is an attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: PyTree) -> PyTree:
        """Return the attribute of an object."""
        return getattr(obj, self.name)


def keystr(kp: KeyPath) -> str:
    """Return a path as it is written in Python: "['a'][0].b"."""
    return "".join(map(str, kp))


def key_get(obj: PyTree, kp: KeyPath) -> PyTree:
    """Return the part of an object at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


# -- kinds of containers -----------------------------------------------------------------------------------------------


class NodeDef(NamedTuple):
    """How containers of a class come apart and are built, and the keys of their parts if they have some."""

    type: type
    flatten_fn: Flatten
    unflatten_fn: Unflatten
    flatten_with_keys_fn: Flatten | None = None


class _Serialized(NamedTuple):
    """What a class is called in a serialised form, and how its contexts are written and read."""

    name: str
    write: Callable[[PyTree], PyTree] | None = None
    read: Callable[[PyTree], PyTree] | None = None


SUPPORTED_NODES: dict[PyTree, NodeDef] = {}
_SERIALIZED: dict[PyTree, _Serialized] = {}
CONSTANT_NODES: set[type] = set()


def register_pytree_node(
    cls: type,
    flatten_fn: Flatten,
    unflatten_fn: Unflatten,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Callable[[PyTree], PyTree] | None = None,
    from_dumpable_context: Callable[[PyTree], PyTree] | None = None,
    flatten_with_keys_fn: Flatten | None = None,
    **names: object,
) -> None:
    """Take a class of containers: `flatten_fn` gives (parts, context), `unflatten_fn` takes them."""
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)
    if serialized_type_name is not None:
        _SERIALIZED[cls] = _Serialized(
            serialized_type_name, to_dumpable_context, from_dumpable_context
        )


_register_pytree_node = register_pytree_node


def _deregister_pytree_node(cls: type) -> None:
    """Forget a class of containers."""
    del SUPPORTED_NODES[cls]
    _SERIALIZED.pop(cls, None)
    CONSTANT_NODES.discard(cls)


def register_dataclass(
    cls: type,
    *,
    field_names: list[str] | None = None,
    drop_field_names: list[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Take a dataclass: its fields are its parts; those of `drop_field_names` are left out and have their defaults."""
    if field_names is None:
        field_names = [f.name for f in dataclasses.fields(cls) if f.init]
    names = [name for name in field_names if name not in (drop_field_names or ())]

    def apart(obj: PyTree) -> tuple[list[PyTree], list[str]]:
        """Return the fields that are set, and their names."""
        kept = [name for name in names if getattr(obj, name) is not None]
        return [getattr(obj, name) for name in kept], kept

    def with_keys(obj: PyTree) -> tuple[list[PyTree], list[str]]:
        """Return the fields with their keys."""
        parts, kept = apart(obj)
        return list(zip(map(GetAttrKey, kept), parts, strict=True)), kept

    def build(parts: Iterable[PyTree], kept: list[str]) -> PyTree:
        """Return an object with these fields; the others are None."""
        given = dict(zip(kept, parts, strict=True))
        return cls(**{name: given.get(name) for name in names})

    register_pytree_node(
        cls, apart, build, serialized_type_name=serialized_type_name, flatten_with_keys_fn=with_keys
    )


class ConstantNode:
    """A value that belongs to the form of a container: the context of a constant."""

    def __init__(self, value: PyTree) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantNode) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def register_constant(cls: type) -> None:
    """Take a class whose objects have no leaves and belong to the form; they need `__eq__` and `__hash__`."""
    if "__eq__" not in {n for k in cls.__mro__[:-1] for n in vars(k)}:
        raise TypeError(
            f"register_constant(cls) expects `cls` to have a non-default `__eq__` implementation: {cls}"
        )
    register_pytree_node(
        cls, lambda value: ([], ConstantNode(value)), lambda _, context: context.value
    )
    CONSTANT_NODES.add(cls)


def is_constant_class(cls: type) -> bool:
    """Whether a class was given to `register_constant`."""
    return cls in CONSTANT_NODES


def is_namedtuple_class(cls: PyTree) -> bool:
    """Whether a class is a named tuple's."""
    fields = getattr(cls, "_fields", None)
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(fields, tuple)


def is_namedtuple(obj: object) -> bool:
    """Whether an object is a named tuple, or a class of such."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_instance(obj: object) -> bool:
    """Whether an object is a named tuple."""
    return is_namedtuple_class(type(obj))


_is_namedtuple_instance = is_namedtuple_instance


def is_structseq_class(cls: PyTree) -> bool:
    """Whether a class is one of Python's sequences with named fields, such as `os.stat_result`."""
    return (
        isinstance(cls, type)
        and cls.__bases__ == (tuple,)
        and isinstance(getattr(cls, "n_sequence_fields", None), int)
    )


def is_structseq(obj: object) -> bool:
    """Whether an object is such a sequence, or a class of such."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_instance(obj: object) -> bool:
    """Whether an object is such a sequence."""
    return is_structseq_class(type(obj))


def _sequence_keys(parts: Iterable[PyTree]) -> list[tuple[SequenceKey, PyTree]]:
    return [(SequenceKey(i), part) for i, part in enumerate(parts)]


def _pairs(mapping: Mapping[PyTree, PyTree]) -> list[tuple[MappingKey, PyTree]]:
    return [(MappingKey(k), v) for k, v in mapping.items()]


def _tuple_flatten(d: tuple[PyTree, ...]) -> tuple[list[PyTree], Context]:
    return list(d), None


def _tuple_flatten_with_keys(d: tuple[PyTree, ...]) -> tuple[list[PyTree], Context]:
    return _sequence_keys(d), None


def _tuple_unflatten(values: Iterable[PyTree], context: Context) -> tuple[PyTree, ...]:
    return tuple(values)


def _list_flatten(d: list[PyTree]) -> tuple[list[PyTree], Context]:
    return d, None


def _list_flatten_with_keys(d: list[PyTree]) -> tuple[list[PyTree], Context]:
    return _sequence_keys(d), None


def _list_unflatten(values: Iterable[PyTree], context: Context) -> list[PyTree]:
    return list(values)


def _dict_flatten(d: dict[PyTree, PyTree]) -> tuple[list[PyTree], list[PyTree]]:
    return list(d.values()), list(d)


def _dict_flatten_with_keys(d: dict[PyTree, PyTree]) -> tuple[list[PyTree], list[PyTree]]:
    return _pairs(d), list(d)


def _dict_unflatten(values: Iterable[PyTree], context: list[PyTree]) -> dict[PyTree, PyTree]:
    return dict(zip(context, values, strict=True))


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class_of(name: str) -> PyTree:
    module, _, rest = name.rpartition(".")
    return getattr(importlib.import_module(module), rest)


def _register_builtins() -> None:
    register = register_pytree_node
    register(
        tuple, _tuple_flatten, _tuple_unflatten,
        serialized_type_name="builtins.tuple", flatten_with_keys_fn=_tuple_flatten_with_keys,
    )  # fmt: skip
    register(
        list, _list_flatten, _list_unflatten,
        serialized_type_name="builtins.list", flatten_with_keys_fn=_list_flatten_with_keys,
    )  # fmt: skip
    register(
        dict, _dict_flatten, _dict_unflatten,
        serialized_type_name="builtins.dict", flatten_with_keys_fn=_dict_flatten_with_keys,
    )  # fmt: skip
    named: PyTree = namedtuple
    register(
        named, lambda d: (list(d), type(d)), lambda parts, kind: kind(*parts),
        serialized_type_name="collections.namedtuple", to_dumpable_context=_class_name,
        from_dumpable_context=_class_of,
        flatten_with_keys_fn=lambda d: (
            [(GetAttrKey(f), getattr(d, f)) for f in d._fields], type(d)
        ),
    )  # fmt: skip
    register(
        OrderedDict, _dict_flatten, lambda parts, keys: OrderedDict(zip(keys, parts, strict=True)),
        serialized_type_name="collections.OrderedDict", flatten_with_keys_fn=_dict_flatten_with_keys,
    )  # fmt: skip
    register(
        defaultdict, lambda d: (list(d.values()), [d.default_factory, list(d)]),
        lambda parts, context: defaultdict(context[0], zip(context[1], parts, strict=True)),
        serialized_type_name="collections.defaultdict",
        to_dumpable_context=lambda context: [
            None if context[0] is None else _class_name(context[0]), context[1]
        ],
        from_dumpable_context=lambda context: [
            None if context[0] is None else _class_of(context[0]), context[1]
        ],
        flatten_with_keys_fn=lambda d: (_pairs(d), [d.default_factory, list(d)]),
    )  # fmt: skip
    register(
        deque, lambda d: (list(d), d.maxlen), lambda parts, most: deque(parts, maxlen=most),
        serialized_type_name="collections.deque",
        flatten_with_keys_fn=lambda d: (_sequence_keys(d), d.maxlen),
    )  # fmt: skip


_register_builtins()
STANDARD_DICT_TYPES = frozenset((dict, OrderedDict, defaultdict))
BUILTIN_TYPES = frozenset((tuple, list, dict, namedtuple, OrderedDict, defaultdict, deque))


def _get_node_type(tree: PyTree) -> PyTree:
    """Return the class under which a container is known: `collections.namedtuple` for all named tuples."""
    kind = type(tree)
    if kind in SUPPORTED_NODES:
        return kind
    # A dict that says when it changes is one to who takes it apart.
    return namedtuple if is_namedtuple_class(kind) else getattr(kind, "stands_for", kind)


def tree_is_leaf(tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether an object is a leaf: of no known class of containers, or one that `is_leaf` says is."""
    if is_leaf is not None and is_leaf(tree):
        return True
    return _get_node_type(tree) not in SUPPORTED_NODES


_is_leaf = tree_is_leaf


# -- forms -------------------------------------------------------------------------------------------------------------


class TreeSpec:
    """The form of a nested container: how it is built from its parts' leaves."""

    __slots__ = ("_children", "_context", "num_leaves", "num_nodes", "type")

    def __init__(self, type: PyTree, context: PyTree, children_specs: list[TreeSpec]) -> None:
        self.type, self._context, self._children = type, context, children_specs
        leaf = type is None
        self.num_nodes: int = sum((c.num_nodes for c in children_specs), 1)
        self.num_leaves: int = 1 if leaf else sum(c.num_leaves for c in children_specs)

    @property
    def context(self) -> PyTree:
        """What else the container is built of."""
        return self._context

    @property
    def children_specs(self) -> list[TreeSpec]:
        """The forms of the parts."""
        return self._children

    @property
    def num_children(self) -> int:
        """How many parts there are."""
        return len(self._children)

    def children(self) -> list[TreeSpec]:
        """Return the forms of the parts."""
        return list(self._children)

    def child(self, index: int) -> TreeSpec:
        """Return the form of a part."""
        return self._children[index]

    def is_leaf(self) -> bool:
        """Whether it is the form of a leaf."""
        return self.type is None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (self.type, self._context, self._children) == (
            other.type, other._context, other._children
        )  # fmt: skip

    def __hash__(self) -> int:
        context = self._context
        if self.type is defaultdict:
            context = [context[0], tuple(context[1])]
        if isinstance(context, list):
            context = tuple(context)
        return hash((self.type, context, tuple(self._children)))

    def __repr__(self, indent: int = 0) -> str:
        if self.type is None:
            return "*"
        head = f"TreeSpec({self.type.__name__}, {self._context}, ["
        inner = indent + 2
        parts = [child.__repr__(inner) for child in self._children]
        return f"{head}{(',' + chr(10) + ' ' * inner).join(parts)}])"

    def flatten_up_to(self, tree: PyTree) -> list[PyTree]:
        """Return what lies in a container at the places of the leaves. Raises ValueError for another form."""
        if self.type is None:
            return [tree]
        kind = _get_node_type(tree)
        both_dicts = self.type in STANDARD_DICT_TYPES and kind in STANDARD_DICT_TYPES
        if kind is not self.type and not both_dicts:
            raise ValueError(f"Node type mismatch; expected {self.type!r}, but got {kind!r}.")
        parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        parts = list(parts)
        if len(parts) != self.num_children:
            raise ValueError(
                f"Node arity mismatch; expected {self.num_children}, but got {len(parts)}."
            )
        if both_dicts:
            keys = self._context[1] if self.type is defaultdict else self._context
            missing = [key for key in keys if key not in tree]
            if missing:
                raise ValueError(f"Node keys mismatch; missing key(s): {missing}.")
            parts = [tree[key] for key in keys]
        elif kind is not deque and context != self._context:
            raise ValueError(
                f"Node context mismatch for node type {self.type!r}; expected {self._context!r}, but got {context!r}."
            )
        return [
            x
            for child, part in zip(self._children, parts, strict=True)
            for x in child.flatten_up_to(part)
        ]

    def unflatten(self, leaves: Iterable[PyTree]) -> PyTree:
        """Return the container of this form with these leaves. Raises ValueError for another number of them."""
        leaves = leaves if isinstance(leaves, (list, tuple)) else list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec refers to a pytree that "
                f"holds {self.num_leaves} items ({self})."
            )
        return _build(iter(leaves), self)


class LeafSpec(TreeSpec):
    """The form of a leaf."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None, None, [])


_LEAF = LeafSpec()


def treespec_leaf() -> TreeSpec:
    """Return the form of a leaf."""
    return _LEAF


def treespec_tuple(iterable: Iterable[TreeSpec] = (), /) -> TreeSpec:
    """Return the form of a tuple of parts of these forms."""
    return TreeSpec(tuple, None, list(iterable))


def treespec_dict(
    mapping: Mapping[PyTree, TreeSpec] | Iterable[tuple[PyTree, TreeSpec]] = (),
    /,
    **kwargs: TreeSpec,
) -> TreeSpec:
    """Return the form of a dict of parts of these forms."""
    found = dict(mapping, **kwargs)
    return TreeSpec(dict, list(found), list(found.values()))


def _build(leaves: Iterator[PyTree], spec: TreeSpec) -> PyTree:
    if spec.type is None:
        return next(leaves)
    parts = [_build(leaves, child) for child in spec._children]
    return SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec._context)


# -- functions ---------------------------------------------------------------------------------------------------------


def _flatten(tree: PyTree, is_leaf: IsLeaf, leaves: list[PyTree]) -> TreeSpec:
    """Put the leaves of a container into a list; return its form."""
    kind = _get_node_type(tree)
    if kind not in SUPPORTED_NODES or (is_leaf is not None and is_leaf(tree)):
        leaves.append(tree)
        return _LEAF
    parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    return TreeSpec(kind, context, [_flatten(part, is_leaf, leaves) for part in parts])


def tree_flatten(tree: object, is_leaf: IsLeaf = None) -> tuple[list[PyTree], TreeSpec]:
    """Return (leaves, form)."""
    leaves: list[PyTree] = []
    spec = _flatten(tree, is_leaf, leaves)
    return leaves, spec


def tree_unflatten(leaves: Iterable[PyTree], treespec: TreeSpec) -> PyTree:
    """Return the container of that form with these leaves."""
    return treespec.unflatten(leaves)


def tree_iter(tree: object, is_leaf: IsLeaf = None) -> Iterator[PyTree]:
    """Give the leaves one by one."""
    kind = _get_node_type(tree)
    if kind not in SUPPORTED_NODES or (is_leaf is not None and is_leaf(tree)):
        yield tree
        return
    for part in SUPPORTED_NODES[kind].flatten_fn(tree)[0]:
        yield from tree_iter(part, is_leaf)


def tree_leaves(tree: object, is_leaf: IsLeaf = None) -> list[PyTree]:
    """Return the leaves."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree: object, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the form."""
    return tree_flatten(tree, is_leaf)[1]


def arg_tree_leaves(*args: object, **kwargs: object) -> list[PyTree]:
    """Return the leaves of all arguments."""
    return [leaf for arg in (*args, *kwargs.values()) for leaf in tree_iter(arg)]


def tree_map(
    func: Callable[..., object], tree: object, *rests: object, is_leaf: IsLeaf = None
) -> PyTree:
    """Return the same container with `func` of each leaf, and of what lies at its place in the others."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return _build(map(func, leaves, *[spec.flatten_up_to(rest) for rest in rests]), spec)


def tree_map_(
    func: Callable[..., object], tree: PyTree, *rests: object, is_leaf: IsLeaf = None
) -> PyTree:
    """Call `func` with each leaf; return the container itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _holds(wanted: PyTree) -> Callable[[PyTree], bool]:
    """Return whether an object is of a type, of one of several, or what a function says."""
    if isinstance(wanted, (type, tuple)) or not callable(wanted):
        return lambda x: isinstance(x, wanted)
    found: Callable[[PyTree], bool] = wanted
    return found


def map_only(
    type_or_types_or_pred: object, /
) -> Callable[[Callable[[PyTree], PyTree]], Callable[[PyTree], PyTree]]:
    """Return a decorator: the function is called with what is of a type, and all else stays."""
    holds = _holds(type_or_types_or_pred)

    def wrapper(func: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
        """Return the function of leaves of the type."""

        @functools.wraps(func)
        def wrapped(x: PyTree) -> PyTree:
            """Call, or return what is of another type."""
            return func(x) if holds(x) else x

        return wrapped

    return wrapper


def tree_map_only(
    type_or_types_or_pred: object,
    /,
    func: Callable[[PyTree], PyTree],
    tree: PyTree,
    is_leaf: IsLeaf = None,
) -> PyTree:
    """Return the same container with `func` of each leaf of a type."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: object,
    /,
    func: Callable[[PyTree], PyTree],
    tree: PyTree,
    is_leaf: IsLeaf = None,
) -> PyTree:
    """Call `func` with each leaf of a type; return the container itself."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[PyTree], bool], tree: object, is_leaf: IsLeaf = None) -> bool:
    """Whether `pred` holds of all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[PyTree], bool], tree: object, is_leaf: IsLeaf = None) -> bool:
    """Whether `pred` holds of a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(
    type_or_types: PyTree, /, pred: Callable[[PyTree], bool], tree: object, is_leaf: IsLeaf = None
) -> bool:
    """Whether `pred` holds of all leaves of a type."""
    return all(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def tree_any_only(
    type_or_types: PyTree, /, pred: Callable[[PyTree], bool], tree: object, is_leaf: IsLeaf = None
) -> bool:
    """Whether `pred` holds of a leaf of a type."""
    return any(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def broadcast_leaves(
    tree: object, treespec: TreeSpec, is_leaf: IsLeaf = None
) -> list[PyTree] | None:
    """Return a leaf of `tree` for each leaf of a form that is nested at least as deep; None if they differ."""
    if treespec.type is None:
        return [tree]
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    kind = _get_node_type(tree)
    parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    parts = list(parts)
    if (kind, context, len(parts)) != (treespec.type, treespec._context, treespec.num_children):
        return None
    out: list[PyTree] = []
    for part, spec in zip(parts, treespec._children, strict=True):
        inner = broadcast_leaves(part, spec, is_leaf)
        if inner is None:
            return None
        out += inner
    return out


_broadcast_to_and_flatten = broadcast_leaves


# -- paths -------------------------------------------------------------------------------------------------------------


def _with_paths(path: KeyPath, tree: PyTree, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, PyTree]]:
    kind = _get_node_type(tree)
    if kind not in SUPPORTED_NODES or (is_leaf is not None and is_leaf(tree)):
        yield path, tree
        return
    with_keys = SUPPORTED_NODES[kind].flatten_with_keys_fn
    if with_keys is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {kind}. Please pass a flatten_with_keys_fn argument to "
            "register_pytree_node."
        )
    for key, part in with_keys(tree)[0]:
        yield from _with_paths((*path, key), part, is_leaf)


def tree_leaves_with_path(tree: object, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, PyTree]]:
    """Return the leaves with their paths."""
    return list(_with_paths((), tree, is_leaf))


def tree_flatten_with_path(
    tree: object, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, PyTree]], TreeSpec]:
    """Return (the leaves with their paths, form)."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(
    func: Callable[..., object], tree: object, *rests: object, is_leaf: IsLeaf = None
) -> PyTree:
    """Return the same container with `func` of each leaf's path and the leaf."""
    pairs, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    paths, leaves = [p for p, _ in pairs], [leaf for _, leaf in pairs]
    return _build(map(func, paths, leaves, *others), spec)


# -- forms as texts ----------------------------------------------------------------------------------------------------


def _as_json(spec: TreeSpec) -> dict[str, object]:
    if spec.type is None:
        return {"type": None, "context": None, "children_spec": []}
    known = _SERIALIZED.get(spec.type)
    if known is None:
        raise NotImplementedError(
            f"No registered serialization name for {spec.type} found. Please update your register_pytree_node call "
            "with a `serialized_type_name` kwarg."
        )
    context = known.write(spec._context) if known.write else json.dumps(spec._context)
    children = [_as_json(child) for child in spec._children]
    return {"type": known.name, "context": context, "children_spec": children}


def _of_json(found: dict[str, Any]) -> TreeSpec:
    if found["type"] is None:
        return _LEAF
    kind = next((k for k, known in _SERIALIZED.items() if known.name == found["type"]), None)
    if kind is None:
        raise NotImplementedError(f"Deserializing {found['type']} in pytree is not registered.")
    read = _SERIALIZED[kind].read
    context = read(found["context"]) if read else json.loads(found["context"])
    return TreeSpec(kind, context, [_of_json(child) for child in found["children_spec"]])


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """Return a form as JSON: [1, the form]."""
    if protocol not in (None, 1):
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [1]")
    return json.dumps((1, _as_json(treespec)))


def treespec_loads(serialized: str) -> TreeSpec:
    """Return the form that `treespec_dumps` wrote."""
    protocol, found = json.loads(serialized)
    if protocol != 1:
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [1]")
    return _of_json(found)


class _Asterisk:
    def __repr__(self) -> str:
        return "*"


def treespec_pprint(treespec: TreeSpec) -> str:
    """Return the container of a form as a text, with "*" for its leaves."""
    return repr(tree_unflatten([_Asterisk()] * treespec.num_leaves, treespec))
