"""torch.utils._pytree: nested containers as a list of leaves and a form."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import json
import threading
import warnings
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

PyTree: TypeAlias = Any
Context: TypeAlias = Any
DumpableContext: TypeAlias = Any
FlattenFn = Callable[[Any], Any]
UnflattenFn = Callable[..., Any]
FlattenWithKeysFn = Callable[[Any], Any]
ToDumpableContextFn = Callable[[Any], Any]
FromDumpableContextFn = Callable[[Any], Any]
KeyPath: TypeAlias = tuple[Any, ...]
IsLeaf = Callable[[Any], bool] | None

DEFAULT_TREESPEC_SERIALIZATION_PROTOCOL = 1
NO_SERIALIZED_TYPE_NAME_FOUND = "NO_SERIALIZED_TYPE_NAME_FOUND"


@dataclasses.dataclass(frozen=True, slots=True)
class SequenceKey:
    """The place of a part of a sequence."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """Return the part."""
        return sequence[self.idx]


@dataclasses.dataclass(frozen=True, slots=True)
class MappingKey:
    """The key of a part of a mapping."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """Return the part."""
        return mapping[self.key]


@dataclasses.dataclass(frozen=True, slots=True)
class GetAttrKey:
    """The name of an attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """Return the attribute."""
        return getattr(obj, self.name)


class NodeDef(NamedTuple):
    """How containers of a class are taken apart and built."""

    type: Any
    flatten_fn: FlattenFn
    unflatten_fn: UnflattenFn
    flatten_with_keys_fn: FlattenWithKeysFn | None


class _Written(NamedTuple):
    """How the form of a class is written as text."""

    type: Any
    serialized_type_name: str
    to_dumpable_context: ToDumpableContextFn | None
    from_dumpable_context: FromDumpableContextFn | None


SUPPORTED_NODES: dict[Any, NodeDef] = {}
SUPPORTED_SERIALIZED_TYPES: dict[Any, _Written] = {}
SERIALIZED_TYPE_TO_PYTHON_TYPE: dict[str, Any] = {}
CONSTANT_NODES: set[type] = set()
_registering = threading.RLock()


def register_pytree_node(
    cls: type[Any],
    flatten_fn: FlattenFn,
    unflatten_fn: UnflattenFn,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: ToDumpableContextFn | None = None,
    from_dumpable_context: FromDumpableContextFn | None = None,
    flatten_with_keys_fn: FlattenWithKeysFn | None = None,
) -> None:
    """Take a class of containers: `flatten_fn` gives (parts, context), `unflatten_fn` takes them."""
    with _registering:
        if cls in SUPPORTED_NODES:
            raise ValueError(f"{cls} is already registered as pytree node.")
        _private_register_pytree_node(
            cls,
            flatten_fn,
            unflatten_fn,
            serialized_type_name=serialized_type_name,
            to_dumpable_context=to_dumpable_context,
            from_dumpable_context=from_dumpable_context,
            flatten_with_keys_fn=flatten_with_keys_fn,
        )


def _private_register_pytree_node(
    cls: Any,
    flatten_fn: FlattenFn,
    unflatten_fn: UnflattenFn,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: ToDumpableContextFn | None = None,
    from_dumpable_context: FromDumpableContextFn | None = None,
    flatten_with_keys_fn: FlattenWithKeysFn | None = None,
) -> None:
    with _registering:
        if cls in SUPPORTED_NODES:
            warnings.warn(
                f"{cls} is already registered as pytree node. Overwriting the previous registration.",
                stacklevel=2,
            )
        if (to_dumpable_context is None) ^ (from_dumpable_context is None):
            raise ValueError(
                f"Both to_dumpable_context and from_dumpable_context for {cls} must "
                "be None or registered."
            )
        name = serialized_type_name or NO_SERIALIZED_TYPE_NAME_FOUND
        SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)
        SUPPORTED_SERIALIZED_TYPES[cls] = _Written(
            cls, name, to_dumpable_context, from_dumpable_context
        )
        SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls


def _register_pytree_node(
    cls: Any,
    flatten_fn: FlattenFn,
    unflatten_fn: UnflattenFn,
    to_str_fn: object = None,
    maybe_from_str_fn: object = None,
    **options: Any,
) -> None:
    """Do as `register_pytree_node`, also for a class that was registered: its older form."""
    _private_register_pytree_node(cls, flatten_fn, unflatten_fn, **options)


def _deregister_pytree_node(cls: Any) -> None:
    with _registering:
        del SUPPORTED_NODES[cls]
        written = SUPPORTED_SERIALIZED_TYPES.pop(cls)
        SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(written.serialized_type_name, None)
        CONSTANT_NODES.discard(cls)


def register_dataclass(
    cls: type[Any],
    *,
    field_names: list[str] | None = None,
    drop_field_names: list[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Take a class whose parts are its fields; those that are None are no parts."""
    if not dataclasses.is_dataclass(cls):
        if field_names is None:
            raise ValueError(
                "field_names must be specified with a list of all fields used to "
                f"initialize {cls}, as it is not a dataclass."
            )
        names = field_names
    else:
        own = {f.name: None for f in dataclasses.fields(cls) if f.init}
        wanted = own.keys() - set(drop_field_names or ())
        names = list(own) if field_names is None else field_names
        if field_names is not None and wanted != set(names):
            message = "field_names does not include all dataclass fields.\n"
            if missing := wanted - set(names):
                message += (
                    f"Missing fields in `field_names`: {missing}. If you want to include these fields in the "
                    "pytree, please add them to `field_names`, otherwise please add them to "
                    "`drop_field_names`.\n"
                )
            if unexpected := set(names) - wanted:
                message += (
                    f"Unexpected fields in `field_names`: {unexpected}. "
                    "Please remove these fields, or add them to `drop_field_names`.\n"
                )
            raise ValueError(message)

    def flatten(obj: Any) -> tuple[list[Any], Context]:
        values = {name: getattr(obj, name) for name in names}
        there = [name for name in names if values[name] is not None]
        return [values[n] for n in there], [there, [n for n in names if values[n] is None]]

    def unflatten(values: Iterable[Any], context: Context) -> Any:
        there, absent = context
        return cls(**dict(zip(there, values, strict=True)), **dict.fromkeys(absent))

    def with_keys(obj: Any) -> tuple[list[tuple[GetAttrKey, Any]], Context]:
        values, (there, _) = flatten(obj)
        return [(GetAttrKey(n), v) for n, v in zip(there, values, strict=True)], there

    _private_register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_type_name,
        flatten_with_keys_fn=with_keys,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ConstantNode:
    """The context of a constant: the constant."""

    value: Any


def register_constant(cls: type[Any]) -> None:
    """Take a class whose objects belong to the form: they have no leaves."""
    for method, default in (("__eq__", object.__eq__), ("__hash__", None)):
        if getattr(cls, method) is default:
            raise TypeError(
                f"register_constant(cls) expects `cls` to have a non-default `{method}` implementation."
            )
    flatten: FlattenFn = lambda x: ([], ConstantNode(x))  # noqa: E731
    _private_register_pytree_node(
        cls, flatten, lambda _, context: context.value, flatten_with_keys_fn=flatten
    )
    CONSTANT_NODES.add(cls)


def is_constant_class(cls: Any) -> bool:
    """Whether objects of a class are constants."""
    return isinstance(cls, type) and cls in CONSTANT_NODES


def is_namedtuple(obj: object) -> bool:
    """Whether something is a named tuple, or a class of such."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_namedtuple_class(cls: Any) -> bool:
    """Whether a class is one of named tuples."""
    return (
        isinstance(cls, type)
        and issubclass(cls, tuple)
        and isinstance(getattr(cls, "_fields", None), tuple)
        and callable(getattr(cls, "_make", None))
        and callable(getattr(cls, "_asdict", None))
    )


def is_namedtuple_instance(obj: object) -> bool:
    """Whether something is a named tuple."""
    return is_namedtuple_class(type(obj))


_is_namedtuple_instance = is_namedtuple_instance


def is_structseq(obj: object) -> bool:
    """Whether something is a C structure that is a tuple (`time.struct_time`), or a class of such."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_class(cls: Any) -> bool:
    """Whether a class is one of C structures that are tuples."""
    counts = ("n_fields", "n_sequence_fields", "n_unnamed_fields")
    return (
        isinstance(cls, type)
        and cls.__bases__ == (tuple,)
        and all(isinstance(getattr(cls, n, None), int) for n in counts)
    )


def is_structseq_instance(obj: object) -> bool:
    """Whether something is a C structure that is a tuple."""
    return is_structseq_class(type(obj))


# -- containers of Python -------------------------------------------------------------------------


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], Context]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: Context) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[Any], Context]:
    return [(MappingKey(k), v) for k, v in d.items()], list(d)


def _list_flatten(d: list[Any]) -> tuple[list[Any], Context]:
    return d, None


def _list_unflatten(values: Iterable[Any], context: Context) -> list[Any]:
    return list(values)


def _list_flatten_with_keys(d: Iterable[Any]) -> tuple[list[Any], Context]:
    return [(SequenceKey(i), v) for i, v in enumerate(d)], None


def _named_context(context: Any) -> str:
    name = SUPPORTED_SERIALIZED_TYPES[context][1] if context in SUPPORTED_SERIALIZED_TYPES else ""
    if name in ("", NO_SERIALIZED_TYPE_NAME_FOUND):
        raise NotImplementedError(
            f"Can't serialize TreeSpec of namedtuple class {context} because we "
            "didn't register a serializated_type_name. Please register using `_register_namedtuple`."
        )
    return name


def _named_type(name: str) -> Any:
    if name not in SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise NotImplementedError(
            f"Can't deserialize TreeSpec of namedtuple class {name} "
            "because we couldn't find a serializated name."
        )
    return SERIALIZED_TYPE_TO_PYTHON_TYPE[name]


_NAMED: dict[str, Any] = {
    "flatten_fn": lambda d: (list(d), type(d)),
    "unflatten_fn": lambda values, context: context(*values),
    "to_dumpable_context": _named_context,
    "from_dumpable_context": _named_type,
    "flatten_with_keys_fn": lambda d: (
        [(GetAttrKey(n), v) for n, v in zip(d._fields, d, strict=True)],
        type(d),
    ),
}


def _register_namedtuple(cls: type[Any], *, serialized_type_name: str) -> None:
    """Give a class of named tuples a name for forms that are written."""
    _private_register_pytree_node(cls, serialized_type_name=serialized_type_name, **_NAMED)


def _default_written(context: Context) -> Any:
    factory, keys = context
    return {
        "default_factory_module": factory.__module__,
        "default_factory_name": factory.__qualname__,
        "dict_context": keys,
    }


def _default_read(written: Any) -> Context:
    module = importlib.import_module(written["default_factory_module"])
    return [getattr(module, written["default_factory_name"]), written["dict_context"]]


_private_register_pytree_node(
    tuple,
    lambda d: (d, None),
    lambda values, context: tuple(values),
    serialized_type_name="builtins.tuple",
    flatten_with_keys_fn=_list_flatten_with_keys,
)
_private_register_pytree_node(
    list,
    _list_flatten,
    _list_unflatten,
    serialized_type_name="builtins.list",
    flatten_with_keys_fn=_list_flatten_with_keys,
)
_private_register_pytree_node(
    dict,
    _dict_flatten,
    _dict_unflatten,
    serialized_type_name="builtins.dict",
    flatten_with_keys_fn=_dict_flatten_with_keys,
)
_private_register_pytree_node(namedtuple, serialized_type_name="collections.namedtuple", **_NAMED)
_private_register_pytree_node(
    OrderedDict,
    _dict_flatten,
    lambda values, context: OrderedDict(zip(context, values, strict=True)),
    serialized_type_name="collections.OrderedDict",
    flatten_with_keys_fn=_dict_flatten_with_keys,
)
_private_register_pytree_node(
    defaultdict,
    lambda d: (list(d.values()), [d.default_factory, list(d)]),
    lambda values, context: defaultdict(context[0], zip(context[1], values, strict=True)),
    serialized_type_name="collections.defaultdict",
    to_dumpable_context=_default_written,
    from_dumpable_context=_default_read,
    flatten_with_keys_fn=lambda d: (
        [(MappingKey(k), v) for k, v in d.items()],
        [d.default_factory, list(d)],
    ),
)
_private_register_pytree_node(
    deque,
    lambda d: (list(d), d.maxlen),
    lambda values, context: deque(values, maxlen=context),
    serialized_type_name="collections.deque",
    flatten_with_keys_fn=lambda d: (
        [(SequenceKey(i), v) for i, v in enumerate(d)],
        d.maxlen,
    ),
)
STANDARD_DICT_TYPES = frozenset((dict, OrderedDict, defaultdict))
BUILTIN_TYPES = frozenset(SUPPORTED_NODES)


def _get_node_type(tree: Any) -> Any:
    """Return under which class something is registered; `namedtuple` for all named tuples."""
    kind = type(tree)
    if kind in _PLAIN or not (issubclass(kind, tuple) and is_namedtuple_class(kind)):
        return kind
    return namedtuple


_PLAIN = frozenset((list, tuple, dict, int, float, bool, str, type(None)))


def tree_is_leaf(tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether something is no container that is known, or a leaf by `is_leaf`."""
    if is_leaf is not None and is_leaf(tree):
        return True
    return _get_node_type(tree) not in SUPPORTED_NODES


_is_leaf = tree_is_leaf


# -- forms ----------------------------------------------------------------------------------------


class TreeSpec:
    """The form of a nested container: how it is built from its parts' leaves."""

    __slots__ = ("_children", "_context", "num_children", "num_leaves", "num_nodes", "type")

    def __init__(self, type: Any, context: Context, children_specs: list[TreeSpec]) -> None:
        """Take the class, what it is built with beside its parts, and the forms of these."""
        self.type, self._context, self._children = type, context, children_specs
        self.num_children = len(children_specs)
        self.num_nodes: int = 1 + sum(c.num_nodes for c in children_specs)
        self.num_leaves: int = sum(c.num_leaves for c in children_specs) if type is not None else 1

    @property
    def context(self) -> Context:
        """What it is built with beside its parts."""
        return self._context

    @property
    def children_specs(self) -> list[TreeSpec]:
        """The forms of its parts."""
        return self._children

    def children(self) -> list[TreeSpec]:
        """Return the forms of its parts."""
        return self._children.copy()

    def child(self, index: int) -> TreeSpec:
        """Return the form of one part."""
        return self._children[index]

    def is_leaf(self) -> bool:
        """Whether it is the form of a leaf."""
        return self.type is None

    def __repr__(self, indent: int = 0) -> str:
        indent += 2
        parts = [c.__repr__(indent) for c in self._children]
        inner = (",\n" + " " * indent).join(parts)
        return f"TreeSpec({self.type.__name__}, {self._context}, [{inner}])"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (
            str(self.type) == str(other.type)
            and self._context == other._context
            and self._children == other._children
        )

    def __hash__(self) -> int:
        context = self._context
        if self.type in STANDARD_DICT_TYPES:
            context = tuple(context[1] if self.type is defaultdict else context)
        return hash((self.type, context, tuple(self._children)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.type, self._context, self._children)

    def unflatten(self, leaves: Iterable[Any]) -> PyTree:
        """Return the container of this form with these leaves."""
        given = leaves if isinstance(leaves, (list, tuple)) else list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(given)} but the spec refers to a pytree "
                f"that holds {self.num_leaves} items ({self}).",
            )
        return _build(iter(given), self)

    def flatten_up_to(self, tree: PyTree) -> list[PyTree]:
        """Return the parts of a container where this form has leaves. Raises ValueError where forms differ."""
        if self.is_leaf():
            return [tree]
        kind = _get_node_type(tree)
        dicts = self.type in STANDARD_DICT_TYPES and kind in STANDARD_DICT_TYPES
        own = self.type in BUILTIN_TYPES
        if kind != self.type and not dicts:
            raise ValueError(
                f"{'Node type' if own else 'Type'} mismatch; expected {self.type!r}, but got {kind!r}."
            )
        parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        parts = list(parts)
        if len(parts) != self.num_children:
            raise ValueError(
                f"Node arity mismatch; expected {self.num_children}, but got {len(parts)}."
            )
        if dicts:
            keys = self._context[1] if self.type is defaultdict else self._context
            if set(keys) != set(tree):
                missing, extra = set(keys) - set(tree), set(tree) - set(keys)
                message = f"; missing key(s): {missing}" if missing else ""
                message += f"; extra key(s): {extra}" if extra else ""
                raise ValueError(f"Node keys mismatch{message}.")
            parts = [tree[k] for k in keys]
        elif context != self._context and self.type is not deque:
            what = "" if own else "custom "
            raise ValueError(
                f"Node context mismatch for {what}node type {self.type!r}; "
                f"expected {self._context!r}, but got {context!r}."
                if own
                else f"Node context mismatch for custom node type {self.type!r}."
            )
        return [x for part, spec in zip(parts, self._children) for x in spec.flatten_up_to(part)]


PyTreeSpec = TreeSpec


class LeafSpec(TreeSpec):
    """The form of a leaf."""

    __slots__ = ()

    def __init__(self) -> None:
        """Take nothing."""
        super().__init__(None, None, [])

    def __repr__(self, indent: int = 0) -> str:
        return "*"

    def __reduce__(self) -> tuple[Any, ...]:
        return LeafSpec, ()


_LEAF_SPEC = LeafSpec()


def treespec_leaf() -> LeafSpec:
    """Return the form of a leaf."""
    return _LEAF_SPEC


def treespec_tuple(iterable: Iterable[TreeSpec] = (), /) -> TreeSpec:
    """Return the form of a tuple of parts of these forms."""
    children = list(iterable)
    if not all(isinstance(child, TreeSpec) for child in children):
        raise ValueError(f"Expected a tuple of TreeSpec values, got: {children!r}.")
    return TreeSpec(tuple, None, children)


def treespec_dict(
    mapping: Mapping[Any, TreeSpec] | Iterable[tuple[Any, TreeSpec]] = (),
    /,
    **kwargs: TreeSpec,
) -> TreeSpec:
    """Return the form of a dict of parts of these forms."""
    children = dict(mapping, **kwargs)
    if not all(isinstance(child, TreeSpec) for child in children.values()):
        raise ValueError(f"Expected a dictionary of TreeSpec values, got: {children!r}.")
    return TreeSpec(dict, list(children), list(children.values()))


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Return (leaves, form)."""
    leaves: list[Any] = []

    def flatten(node: Any) -> TreeSpec:
        kind = _get_node_type(node)
        known = SUPPORTED_NODES.get(kind)
        if known is None or (is_leaf is not None and is_leaf(node)):
            leaves.append(node)
            return _LEAF_SPEC
        parts, context = known.flatten_fn(node)
        return TreeSpec(kind, context, [flatten(part) for part in parts])

    spec = flatten(tree)
    return leaves, spec


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """Return the container of that form with these leaves."""
    if not isinstance(treespec, TreeSpec):
        if not isinstance(leaves, TreeSpec):
            raise TypeError(
                f"Expected `treespec` to be an instance of PyTreeSpec but got item of type {type(treespec)}."
            )
        leaves, treespec = treespec, leaves
    return treespec.unflatten(leaves)


def _build(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    parts = [_build(leaves, child) for child in spec._children]
    return SUPPORTED_NODES[spec.type].unflatten_fn(parts, spec._context)


def tree_iter(tree: PyTree, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Give the leaves."""
    if tree_is_leaf(tree, is_leaf):
        yield tree
    else:
        for part in SUPPORTED_NODES[_get_node_type(tree)].flatten_fn(tree)[0]:
            yield from tree_iter(part, is_leaf)


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the form."""
    return tree_flatten(tree, is_leaf)[1]


def arg_tree_leaves(*args: PyTree, **kwargs: PyTree) -> list[Any]:
    """Return the leaves of arguments."""
    return [leaf for a in (*args, *kwargs.values()) for leaf in tree_iter(a)]


# -- functions of leaves --------------------------------------------------------------------------


def tree_map(
    func: Callable[..., object], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Return the same container with `func` of each leaf, and of what others have in its place."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten([func(*x) for x in zip(leaves, *others, strict=True)])


def tree_map_(
    func: Callable[..., object], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Call `func` with each leaf; return the container as it is."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    for x in zip(leaves, *others, strict=True):
        func(*x)
    return tree


def _chosen(kind: Any) -> Callable[[Any], bool]:
    """Return whether a leaf is of a type, of one of a tuple of types, or holds for a function."""
    if callable(kind) and not isinstance(kind, type):
        return kind
    if isinstance(kind, (type, tuple)) or hasattr(kind, "__or__"):
        return lambda x: isinstance(x, kind)
    raise TypeError("Argument must be a type, a tuple of types, or a callable.")


def map_only(
    type_or_types_or_pred: Any, /
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Decorate a function of leaves so that it leaves those of other types as they are."""
    chosen = _chosen(type_or_types_or_pred)

    def decorate(func: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return functools.wraps(func)(lambda x: func(x) if chosen(x) else x)

    return decorate


def tree_map_only(
    type_or_types_or_pred: Any,
    /,
    func: Callable[[Any], Any],
    tree: PyTree,
    is_leaf: IsLeaf = None,
) -> PyTree:
    """Return the same container with `func` of each leaf of a type."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any,
    /,
    func: Callable[[Any], Any],
    tree: PyTree,
    is_leaf: IsLeaf = None,
) -> PyTree:
    """Call `func` with each leaf of a type; return the container as it is."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether something holds for all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether something holds for a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(
    type_or_types: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None
) -> bool:
    """Whether something holds for all leaves of a type."""
    return all(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def tree_any_only(
    type_or_types: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None
) -> bool:
    """Whether something holds for a leaf of a type."""
    return any(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, type_or_types))


def broadcast_leaves(tree: PyTree, treespec: TreeSpec, is_leaf: IsLeaf = None) -> list[Any] | None:
    """Return a leaf of `tree` for each leaf of a form that is nested at least as deep; None if they differ."""
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    kind = _get_node_type(tree)
    parts, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    if kind is not treespec.type or context != treespec.context:
        return None
    if len(parts) != treespec.num_children:
        return None
    found = [broadcast_leaves(*x, is_leaf) for x in zip(parts, treespec._children)]
    if any(x is None for x in found):
        return None
    return [leaf for x in found for leaf in x or ()]


_broadcast_to_and_flatten = broadcast_leaves


# -- paths ----------------------------------------------------------------------------------------


def _paths(path: KeyPath, tree: PyTree, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, Any]]:
    if tree_is_leaf(tree, is_leaf):
        yield path, tree
        return
    kind = _get_node_type(tree)
    flatten = SUPPORTED_NODES[kind].flatten_with_keys_fn
    if flatten is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {kind}. "
            "Please pass a flatten_with_keys_fn argument to register_pytree_node."
        )
    for key, part in flatten(tree)[0]:
        yield from _paths((*path, key), part, is_leaf)


def tree_leaves_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """Return (path, leaf) of each leaf."""
    return list(_paths((), tree, is_leaf))


def tree_flatten_with_path(
    tree: PyTree, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """Return (path, leaf) of each leaf, and the form."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(
    func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """Return the same container with `func` of each leaf's path, of the leaf, and of what others have in its place."""
    pairs, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten([func(*pair, *x) for pair, *x in zip(pairs, *others, strict=True)])


def keystr(kp: KeyPath) -> str:
    """Return a path as text: "['a'][0].b"."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: KeyPath) -> Any:
    """Return what is at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


# -- forms as text --------------------------------------------------------------------------------


class EnumEncoder(json.JSONEncoder):
    """Writes members of enumerations by name."""

    def default(self, o: object) -> Any:
        """Return what is written of something that JSON does not have."""
        if isinstance(o, enum.Enum):
            kind = type(o)
            return {
                "__enum__": True,
                "fqn": f"{kind.__module__}:{kind.__qualname__}",
                "name": o.name,
            }
        return super().default(o)


def enum_object_hook(obj: dict[str, Any]) -> Any:
    """Return the member of an enumeration that was written."""
    if "__enum__" not in obj:
        return obj
    module, _, path = obj["fqn"].partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found[obj["name"]]


def _to_json(spec: TreeSpec) -> dict[str, Any]:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    if spec.type not in SUPPORTED_SERIALIZED_TYPES:
        raise NotImplementedError(f"Serializing {spec.type} in pytree is not registered.")
    written = SUPPORTED_SERIALIZED_TYPES[spec.type]
    if written.serialized_type_name == NO_SERIALIZED_TYPE_NAME_FOUND:
        raise NotImplementedError(
            f"No registered serialization name for {spec.type} found. "
            "Please update your _register_pytree_node call with a `serialized_type_name` kwarg."
        )
    if written.to_dumpable_context is not None:
        context = written.to_dumpable_context(spec._context)
    else:
        try:
            context = json.dumps(spec._context, cls=EnumEncoder)
        except TypeError as error:
            raise TypeError(
                "Unable to serialize context. Please make the context json dump-able, or register a "
                "custom serializer using _register_pytree_node."
            ) from error
    children = [_to_json(child) for child in spec._children]
    return {
        "type": written.serialized_type_name,
        "context": context,
        "children_spec": children,
    }


def _from_json(schema: dict[str, Any]) -> TreeSpec:
    name, context = schema["type"], schema["context"]
    if name is None:
        return _LEAF_SPEC
    if name not in SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise NotImplementedError(f"Deserializing {name} in pytree is not registered.")
    kind = SERIALIZED_TYPE_TO_PYTHON_TYPE[name]
    read = SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context
    if read is None:
        context = json.loads(context, object_hook=enum_object_hook)
    else:
        context = read(context)
    return TreeSpec(kind, context, [_from_json(child) for child in schema["children_spec"]])


def _check_protocol(protocol: int) -> None:
    if protocol != DEFAULT_TREESPEC_SERIALIZATION_PROTOCOL:
        raise ValueError(
            f"Unknown protocol {protocol}. "
            f"Available protocols: {[DEFAULT_TREESPEC_SERIALIZATION_PROTOCOL]}"
        )


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """Return a form as text that `treespec_loads` reads."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            f"Expected `treespec` to be an instance of PyTreeSpec but got item of type {type(treespec)}."
        )
    protocol = DEFAULT_TREESPEC_SERIALIZATION_PROTOCOL if protocol is None else protocol
    _check_protocol(protocol)
    return json.dumps((protocol, _to_json(treespec)), cls=EnumEncoder)


@functools.lru_cache
def treespec_loads(serialized: str) -> TreeSpec:
    """Return the form that was written as text."""
    protocol, schema = json.loads(serialized)
    _check_protocol(protocol)
    return _from_json(schema)


class _Asterisk(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "*"


def treespec_pprint(treespec: TreeSpec) -> str:
    """Return a form as a container of asterisks."""
    return repr(treespec.unflatten([_Asterisk("*")] * treespec.num_leaves))


pytree_to_str, str_to_pytree = treespec_dumps, treespec_loads
