"""One operation of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from webtorch.functions.check import _assert
from webtorch.functions.legacy import typename
from webtorch.fx.immutable_collections import immutable_dict, immutable_list
from webtorch.fx.naming import qualified_name as _get_qualified_name
from webtorch.fx.naming import type_repr as _type_repr
from webtorch.fx.operator_schemas import ArgsKwargsPair, normalize_function, normalize_module
from webtorch.ir.dtype import DType
from webtorch.tensors.device import device
from webtorch.tensors.formats import layout, memory_format
from webtorch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from webtorch.fx.graph import Graph
    from webtorch.nn import Module

__all__ = ["Node", "has_side_effect", "map_aggregate", "map_arg"]

# What a node may be given beside other nodes and containers of them.
base_types: tuple[type, ...] = (
    str, int, float, bool, complex, DType, Tensor, device, memory_format, layout,
)  # fmt: skip
Target: TypeAlias = Callable[..., Any] | str
Argument: TypeAlias = Any

OPS = ("placeholder", "call_method", "call_module", "call_function", "get_attr", "output")

# Functions that a call of is kept though nobody uses what it gives.
_side_effectful_functions: set[Callable[..., object]] = {operator.setitem, _assert}


def has_side_effect(fn: Callable[..., object]) -> Callable[..., Any]:
    """Keep calls of a function whose result nobody uses."""
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a: Argument, fn: Callable[[Argument], Argument]) -> Argument:
    """Return the same containers with `fn` of each of their leaves; lists and dicts become immutable."""
    if isinstance(a, tuple):
        parts = [map_aggregate(x, fn) for x in a]
        # A named tuple keeps its class.
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)
    if isinstance(a, list):
        return immutable_list([map_aggregate(x, fn) for x in a])
    if isinstance(a, dict):
        return immutable_dict([(k, map_aggregate(v, fn)) for k, v in a.items()])
    if isinstance(a, slice):
        return slice(*(map_aggregate(x, fn) for x in (a.start, a.stop, a.step)))
    return fn(a)


def map_arg(a: Argument, fn: Callable[[Node], Argument]) -> Argument:
    """Return the same containers with `fn` of each node in them."""
    if not callable(fn):
        raise AssertionError("torch.fx.map_arg(a, fn): fn must be a callable")
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


def _format_arg(arg: object, max_list_len: float = float("inf")) -> str:
    if hasattr(arg, "_custom_fx_repr_fn"):
        return str(arg._custom_fx_repr_fn())
    if isinstance(arg, (list, tuple)):
        items = ", ".join(_format_arg(a) for i, a in enumerate(arg) if i < max_list_len)
        rest = "" if len(arg) < max_list_len + 1 else f", ...[total_len={len(arg)}]"
        if isinstance(arg, list):
            return f"[{items}{rest}]"
        return f"({items}{',' if len(arg) == 1 else ''}{rest})"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{k}: {_format_arg(v)}" for k, v in arg.items()) + "}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


class Node:
    """One operation of a graph: `op` says what kind, `target` what is called or looked up, `args` and `kwargs` with
    what. Nodes are a doubly linked list that begins and ends at the graph's root.
    """

    name: str
    _prev: Node
    _next: Node

    def __init__(
        self,
        graph: Graph,
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: Mapping[str, Argument],
        return_type: object = None,
    ) -> None:
        """Make a node that is in no list yet. `Graph.create_node` makes one and puts it into its graph."""
        if op == "call_function":
            if not callable(target):
                raise ValueError(
                    f"Node [graph = {graph}, name = '{name}'] target {target} has type {typename(target)} "
                    "but a Callable is expected"
                )
        else:
            if op not in OPS and op != "root":
                raise AssertionError(f"op '{op}' is not in _legal_ops")
            if not isinstance(target, str):
                raise ValueError(
                    f"Node [graph = {graph}, name = '{name}'] target {target} has type {typename(target)} "
                    "but a str is expected"
                )
        self.graph, self.op, self.target, self.type = graph, op, target, return_type
        self.__dict__["name"] = name
        self._input_nodes: dict[Node, None] = {}
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._sort_key: tuple[int, ...] = ()
        self._repr_fn: Callable[[Node], str] | None = None
        self._erased = False
        self._prev = self._next = self
        self._update_args_kwargs(args, kwargs)

    # -- the list ---------------------------------------------------------------------------------

    @property
    def next(self) -> Node:
        """The node after this one."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before this one."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move `x` to the place before this node."""
        if self.graph is not x.graph:
            raise AssertionError("Attempting to move a Node into a different Graph")
        if self is x:
            return
        x._remove_from_list()
        before = self._prev
        before._next, x._prev = x, before
        x._next, self._prev = self, x
        # Keys order nodes as the list does, without numbering the list anew.
        low, high = before._sort_key, self._sort_key
        if len(low) > len(high):
            *prefix, last = low[: len(high) + 1]
            x._sort_key = (*prefix, last + 1)
        elif len(low) < len(high):
            *prefix, last = high[: len(low) + 1]
            x._sort_key = (*prefix, last - 1)
        else:
            x._sort_key = (*low, 0)

    def append(self, x: Node) -> None:
        """Move `x` to the place after this node."""
        self._next.prepend(x)

    def _remove_from_list(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    def __lt__(self, other: Node) -> bool:
        return self._sort_key < other._sort_key

    def __gt__(self, other: Node) -> bool:
        return self._sort_key > other._sort_key

    def __le__(self, other: Node) -> bool:
        return self._sort_key <= other._sort_key

    def __ge__(self, other: Node) -> bool:
        return self._sort_key >= other._sort_key

    # -- arguments --------------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Argument, ...]:
        """What it is called with by position."""
        return self._args

    @args.setter
    def args(self, a: tuple[Argument, ...]) -> None:
        """Change what it is called with by position."""
        self._update_args_kwargs(a, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """What it is called with by name."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, k: Mapping[str, Argument]) -> None:
        """Change what it is called with by name."""
        self._update_args_kwargs(self._args, k)

    def _update_args_kwargs(
        self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
    ) -> None:
        for old in self._input_nodes:
            old.users.pop(self)
        self._input_nodes = {}
        self._args = map_arg(args, self._use)
        self._kwargs = map_arg(kwargs, self._use)

    def _use(self, n: Node) -> Node:
        self._input_nodes.setdefault(n)
        n.users.setdefault(self)
        return n

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among its arguments, each once."""
        return list(self._input_nodes)

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Put another argument in the place of the one at `idx`."""
        args = list(self.args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Put one more argument before the one at `idx`."""
        if not 0 <= idx <= len(self.args):
            raise AssertionError(
                f"insert_args index must be between 0 and len(self.args), got {idx}"
            )
        self._args = (*self.args[:idx], map_arg(arg, self._use), *self.args[idx:])

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Put another argument in the place of the one called `key`."""
        self.kwargs = {**self.kwargs, key: arg}

    def _replace_hooks(self) -> Sequence[Callable[..., object]]:
        return getattr(self.graph.owning_module, "_replace_hooks", None) or ()

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] | None = None,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Let those that use this node use another one; return them. `delete_user_cb` may keep a user as it is."""
        if propagate_meta:
            if replace_with.meta:
                raise AssertionError(
                    "Called node.replace_all_uses_with(replace_with, propagate_meta=True), "
                    "but replace_with already has .meta keys"
                )
            replace_with.meta.update(self.meta)
        changed = [n for n in self.users if delete_user_cb is None or delete_user_cb(n)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Use `new_input` wherever this node uses `old_input`."""
        for hook in self._replace_hooks():
            hook(old=old_input, new=new_input.name, user=self)
        self._update_args_kwargs(
            *(
                map_arg(a, lambda n: new_input if n is old_input else n)
                for a in (self._args, self._kwargs)
            )
        )

    # -- what it is -------------------------------------------------------------------------------

    @property
    def stack_trace(self) -> str | None:
        """Where the user's code made it, innermost call last, if that was recorded."""
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        """Note where the call stands in the program."""
        self.meta["stack_trace"] = trace

    def __setattr__(self, name: str, value: object) -> None:
        if name == "name":
            for user in self.users:
                for hook in self._replace_hooks():
                    hook(old=self, new=value, user=user)
        object.__setattr__(self, name, value)

    def _rename(self, candidate: str) -> None:
        if candidate != self.name:
            names = self.graph._graph_namespace
            self.name = names.create_name(candidate, None)
            names.rename(self, self.name)

    def is_impure(self, impure_random: bool = True) -> bool:
        """Whether it is to stay though nobody uses it. `impure_random`: so does what draws random numbers."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_module":
            owner = self.graph.owning_module
            if owner is None:
                raise AssertionError("self.graph.owning_module not set for purity check")
            return bool(getattr(owner.get_submodule(str(self.target)), "_is_impure", False))
        if self.op == "call_function":
            if self.target in _side_effectful_functions:
                return True
            entry = getattr(getattr(self.target, "callee", None), "op", None)
            return impure_random and getattr(entry, "drawn", False)
        return False

    def normalized_arguments(
        self,
        root: Module,
        arg_types: tuple[object, ...] | None = None,
        kwarg_types: dict[str, object] | None = None,
        normalize_to_only_use_kwargs: bool = False,
    ) -> ArgsKwargsPair | None:
        """Return the arguments of a call by the parameters of what it calls, with the defaults; None where that is not
        known. `root` has the modules.
        """
        by_name = normalize_to_only_use_kwargs
        if self.op == "call_function" and callable(self.target):
            return normalize_function(
                self.target, self.args, self.kwargs, normalize_to_only_use_kwargs=by_name
            )
        if self.op == "call_module":
            return normalize_module(root, str(self.target), self.args, self.kwargs, by_name)
        return None

    def __repr__(self) -> str:
        return str(self.name) if self._repr_fn is None else self._repr_fn(self)

    @staticmethod
    def _pretty_print_target(target: Target) -> str:
        if isinstance(target, str):
            return target
        name = getattr(target, "__name__", None)
        module = getattr(target, "__module__", None)
        if name is not None and module in ("builtins", "_operator"):
            return f"{module.lstrip('_')}.{name}"
        return _get_qualified_name(target)

    def format_node(
        self,
        placeholder_names: list[str] | None = None,
        maybe_return_typename: list[str] | None = None,
        *,
        include_tensor_metadata: bool = False,
    ) -> str | None:
        """Return the node as a line of the graph's text; None of a placeholder whose name went into a list."""
        typed = "" if self.type is None else f"{_type_repr(self.type)} "
        if self.op == "output":
            if self.type and maybe_return_typename:
                maybe_return_typename[0] = f" -> {_type_repr(self.type)}"
            return f"return {self.args[0]}"
        if self.op == "placeholder":
            if placeholder_names:
                placeholder_names.append(str(self.target))
                return None
            typed = typed if self.type else ""
        head = f"%{self.name} : {typed}[num_users={len(self.users)}] = {self.op}[target="
        if self.op == "placeholder":
            default = f"(default={self.args[0]})" if self.args else ""
            return f"{head}{self.target}]{default}"
        if self.op == "get_attr":
            return f"{head}{self._pretty_print_target(self.target)}]"
        meta = self.meta
        value = meta.get("val", meta.get("tensor_meta", meta.get("example_value")))
        if include_tensor_metadata and isinstance(value, Tensor):
            shape, strides = list(value.shape), list(value.stride())
            note = f'Tensor "{short_name(value.dtype)}{shape}{strides}{value.device}"'
            head = f"%{self.name} : {note}[num_users={len(self.users)}] = {self.op}[target="
        return (
            f"{head}{self._pretty_print_target(self.target)}]("
            f"args = {_format_arg(self.args)}, kwargs = {_format_arg(self.kwargs)})"
        )


def short_name(dtype: DType) -> str:
    """Return a type's short name: "f32", "i64"."""
    name = str(dtype).rpartition(".")[2]
    if name in ("bool", "bfloat16"):
        return {"bool": "b8", "bfloat16": "bf16"}[name]
    for long, short in (("complex", "c"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name
