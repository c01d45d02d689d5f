"""A graph: its nodes in order, and what is done with them."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from webtorch.functions.legacy import typename
from webtorch.fx.codegen import (
    CodeGen,
    PythonCode,
    TransformCodeFunc,
    _PyTreeCodeGen,
    _PyTreeInfo,
    inplace_methods,
    magic_methods,
    reflectable_magic_methods,
)
from webtorch.fx.immutable_collections import immutable_dict
from webtorch.fx.naming import Namespace as _Namespace
from webtorch.fx.naming import snake_case as _snake_case
from webtorch.fx.node import OPS, Argument, Node, Target, map_arg
from webtorch.ir.lines import user_depth
from webtorch.nn import Module, Parameter

if TYPE_CHECKING:
    from webtorch.fx._symbolic_trace import Tracer
    from webtorch.fx.graph_module import GraphModule

__all__ = [
    "CodeGen",
    "Graph",
    "PythonCode",
    "_PyTreeCodeGen",
    "_PyTreeInfo",
    "inplace_methods",
    "magic_methods",
    "reflectable_magic_methods",
]


class NodeList:
    """The nodes of a graph, which may change while one goes through them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __len__(self) -> int:
        return self.graph._len

    def __iter__(self) -> Iterator[Node]:
        return self._walk("_next")

    def __reversed__(self) -> Iterator[Node]:
        return self._walk("_prev")

    def _walk(self, way: str) -> Iterator[Node]:
        root = self.graph._root
        node = getattr(root, way)
        while node is not root:
            if not node._erased:
                yield node
            node = getattr(node, way)


class Graph:
    """What a function does, as a list of nodes that can be looked at, changed, printed and made code of."""

    def __init__(
        self,
        owning_module: GraphModule | None = None,
        tracer_cls: type[Tracer] | None = None,
        tracer_extras: dict[str, object] | None = None,
    ) -> None:
        """Make an empty graph."""
        self._root = Node(self, "", "root", "", (), {})
        self._insert: Callable[[Node], None] = self._root.prepend
        self._len = 0
        self._graph_namespace = _Namespace()
        self.owning_module = owning_module
        self._tracer_cls, self._tracer_extras = tracer_cls, tracer_extras
        self._codegen = CodeGen()
        # Where the function that was traced stands.
        self._co_fields: dict[str, object] = {}

    @property
    def nodes(self) -> NodeList:
        """Its nodes, in the order in which they run."""
        return NodeList(self)

    def output_node(self) -> Node:
        """Return the node that says what is returned."""
        node = self._root._prev
        if node.op != "output":
            raise AssertionError(f"Expected output node, got op={node.op}")
        return node

    def find_nodes(self, *, op: str, target: Target | None = None, sort: bool = True) -> list[Node]:
        """Return the nodes of a kind, of one target if it is given (of functions it has to be)."""
        if op == "call_function" and target is None:
            raise AssertionError("target must not be None for call_function op")
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    # -- making nodes -----------------------------------------------------------------------------

    def create_node(
        self,
        op: str,
        target: Target,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        name: str | None = None,
        type_expr: object = None,
    ) -> Node:
        """Make a node and put it where nodes are inserted; its name is one that no other node has."""
        if args and not isinstance(args, tuple):
            raise AssertionError(f"args must be a tuple, got {type(args)}")
        if kwargs and not isinstance(kwargs, dict):
            raise AssertionError(f"kwargs must be a dict, got {type(kwargs)}")
        candidate = self._target_to_str(target) if name is None else name
        name = self._graph_namespace.create_name(candidate, None)
        node = Node(self, name, op, target, args or (), kwargs or immutable_dict(), type_expr)
        for hook in getattr(self.owning_module, "_create_node_hooks", None) or ():
            hook(node)
        self._graph_namespace.associate_name_with_obj(name, node)
        self._insert(node)
        self._len += 1
        return node

    def placeholder(
        self, name: str, type_expr: object = None, default_value: object = inspect.Signature.empty
    ) -> Node:
        """Add a parameter of the function."""
        args = () if default_value is inspect.Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args=args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: object = None) -> Node:
        """Add a look at an attribute of the module ("layers.0.weight")."""
        if self.owning_module is not None and not _refers(self.owning_module, qualified_name):
            warnings.warn(
                "Attempted to insert a get_attr Node with no underlying reference in the owning "
                "GraphModule! Call GraphModule.add_submodule to add the necessary submodule, "
                "GraphModule.add_parameter to add the necessary Parameter, or "
                "nn.Module.register_buffer to add the necessary buffer",
                stacklevel=user_depth(),
            )
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
    ) -> Node:
        """Add a call of a submodule."""
        if self.owning_module is not None:
            self.owning_module.get_submodule(module_name)
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
    ) -> Node:
        """Add a call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., object],
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: object = None,
        name: str | None = None,
    ) -> Node:
        """Add a call of a function."""
        return self.create_node(
            "call_function", the_function, args, kwargs, name=name, type_expr=type_expr
        )

    def output(self, result: Argument, type_expr: object = None) -> Node:
        """Add what is returned."""
        return self.create_node("output", "output", args=(result,), type_expr=type_expr)

    def _target_to_str(self, target: Target) -> str:
        if callable(target):
            name = target.__name__
        else:
            if not isinstance(target, str):
                raise AssertionError(f"Expected target to be str, got {type(target)}")
            magic = target.startswith("__") and target.endswith("__")
            name = target[2:-2] if magic else target
        return _snake_case(name)

    # -- moving nodes -----------------------------------------------------------------------------

    def inserting_before(self, n: Node | None = None) -> contextlib.AbstractContextManager[None]:
        """From now on, or in a block, put new nodes before a node, without one at the graph's start."""
        if n is None:
            return self.inserting_after(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert before is not in graph.")
        return _Insertion(self, n.prepend)

    def inserting_after(self, n: Node | None = None) -> contextlib.AbstractContextManager[None]:
        """From now on, or in a block, put new nodes after a node, without one at the graph's end."""
        if n is None:
            return self.inserting_before(self._root)
        if n.graph is not self:
            raise AssertionError("Node to insert after is not in graph.")
        return _Insertion(self, n.append)

    def erase_node(self, to_erase: Node) -> None:
        """Take a node out that nobody uses."""
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} "
                f"users in the graph: {to_erase.users}!"
            )
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            warnings.warn(
                f"erase_node({to_erase}) on an already erased node", stacklevel=user_depth()
            )
            return
        for hook in getattr(self.owning_module, "_erase_node_hooks", None) or ():
            hook(to_erase)
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1
        nothing: Callable[[Node], None] = lambda n: None  # noqa: E731
        to_erase._update_args_kwargs(
            map_arg(to_erase._args, nothing), map_arg(to_erase._kwargs, nothing)
        )

    def node_copy(
        self, node: Node, arg_transform: Callable[[Node], Argument] = lambda x: x
    ) -> Node:
        """Add a copy of another graph's node; `arg_transform` says which of this graph's nodes its inputs are."""
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        copied = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copied.meta = copy.copy(node.meta)
        return copied

    def graph_copy(
        self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False
    ) -> Argument | None:
        """Add copies of another graph's nodes, but for those that `val_map` has; return what it returns."""
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                result = map_arg(node.args[0], lambda n: val_map[n])
                return (result, node) if return_output_node else result
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def __deepcopy__(self, memo: dict[Any, Any] | None = None) -> Graph:
        # Node by node: a graph is deeper than Python's stack.
        new = Graph(tracer_cls=self._tracer_cls)
        found = new.graph_copy(self, {} if memo is None else memo, return_output_node=True)
        new._codegen = copy.deepcopy(self._codegen)
        if found is not None:
            result, old = found
            new.output(result, type_expr=old.type).meta = copy.copy(old.meta)
        return new

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Take out nodes that nobody uses, but for impure ones; return whether there were any."""
        self.lint()
        impure = is_impure_node or Node.is_impure
        changed = False
        for node in reversed(self.nodes):
            if not node.users and not impure(node):
                self.erase_node(node)
                changed = True
        if self.owning_module is not None:
            used = {n.target for n in self.find_nodes(op="get_attr")}
            for name, child in self.owning_module.named_children():
                graph = getattr(child, "graph", None)
                if name in used and isinstance(graph, Graph):
                    changed |= graph.eliminate_dead_code()
                    child.recompile()
        return changed

    # -- looking at it ----------------------------------------------------------------------------

    def lint(self) -> None:
        """Raise if the graph is not well formed: owners, order, names, and targets in its module."""
        names: set[str] = set()
        defined: set[Node] = set()
        for node in self.nodes:
            if node.op not in OPS:
                raise RuntimeError(f"Node {node} had unknown opcode {node.op}!")
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            for arg in node._input_nodes:
                if arg.graph is not self:
                    raise RuntimeError(
                        f"Argument '{arg}' of Node '{node}' does not belong to this Graph, "
                        "but was used as an argument! If you are copying nodes from another graph, make "
                        f"sure to use ``arg_transform`` on node_copy() to remap values\n{self}"
                    )
                if arg not in defined:
                    raise RuntimeError(
                        f"Argument '{arg}' of Node '{node}' was used before it has been "
                        f"defined! Please check that Nodes in the graph are topologically ordered\n{self}"
                    )
            defined.add(node)
            if node.name in names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            names.add(node.name)
        if self.owning_module is not None:
            for node in self.nodes:
                _check_target(node, self.owning_module)

    def __str__(self) -> str:
        lines = [f"\n    {line}" for node in self.nodes if (line := node.format_node())]
        return f"graph():{''.join(lines)}"

    def print_tabular(self) -> None:
        """Print the nodes as a table, by the package tabulate."""
        try:
            tabulate = importlib.import_module("tabulate").tabulate
        except ImportError:
            print(  # noqa: T201
                "`print_tabular` relies on the library `tabulate`, which could not be found on this machine. "
                "Run `pip install tabulate` to install the library."
            )
            raise
        rows = [[n.op, n.name, n.target, n.args, n.kwargs] for n in self.nodes]
        print(tabulate(rows, headers=["opcode", "name", "target", "args", "kwargs"]))  # noqa: T201

    # -- its code ---------------------------------------------------------------------------------

    def python_code(self, root_module: str, **options: object) -> PythonCode:
        """Return the graph as a function of Python; `root_module` is what it calls its module."""
        # Nodes and what lies outside share these names, which are not those of the nodes.
        namespace = _Namespace()
        write: Callable[[Node], str] = lambda n: namespace.create_name(n.name, n)  # noqa: E731
        before = {node: node._repr_fn for node in self.nodes}
        for node in before:
            node._repr_fn = write
        try:
            return self._codegen._gen_python_code(self.nodes, root_module, namespace, **options)
        finally:
            for node, function in before.items():
                node._repr_fn = function

    def set_codegen(self, codegen: CodeGen) -> None:
        """Take another writer of code."""
        self._codegen = codegen

    def process_inputs(self, *args: object) -> Any:
        """Return what the placeholders are given when the function is called with `args`."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out: object) -> Any:
        """Return what the function returns when the graph gives `out`."""
        return self._codegen.process_outputs(out)

    def on_generate_code(
        self, make_transformer: Callable[[TransformCodeFunc | None], TransformCodeFunc]
    ) -> contextlib.AbstractContextManager[None]:
        """From now on, or in a block, let a function change the lines of the code; it is made of the one before."""
        before = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(before)

        @contextlib.contextmanager
        def block() -> Iterator[None]:
            """Take the function back when the block ends."""
            try:
                yield
            finally:
                self._codegen._body_transformer = before

        return block()


class _Insertion:
    """Where new nodes go: from now on, and after its block as before."""

    def __init__(self, graph: Graph, insert: Callable[[Node], None]) -> None:
        self.graph, self.before = graph, graph._insert
        graph._insert = insert

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.graph._insert = self.before


def _refers(module: Module, qualified_name: str) -> bool:
    """Whether a module has a submodule, parameter or buffer of a name."""
    path, _, name = qualified_name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        warnings.warn(f"Failed to fetch module {path}!", stacklevel=user_depth())
        return False
    found = getattr(owner, name, None)
    return isinstance(found, (Module, Parameter)) or name in owner._buffers


def _check_target(node: Node, module: Module) -> None:
    """Raise if what a node calls or looks up does not exist."""
    target = node.target
    wanted = "Callable" if node.op == "call_function" else "str"
    if callable(target) if wanted == "str" else not callable(target):
        raise ValueError(
            f"Node {node} target {target} has type {typename(target)} but a {wanted} is expected"
        )
    if node.op not in ("get_attr", "call_module"):
        return
    found: object = module
    parts = str(target).split(".")
    for i, part in enumerate(parts):
        found, path = getattr(found, part, None), ".".join(parts[:i])
        if found is None:
            raise RuntimeError(
                f"Node {node} target {target} references nonexistent attribute {part} of {path}"
            )
        if node.op == "call_module" and not isinstance(found, Module):
            raise RuntimeError(
                f"Node {node} target {target} {part} of {path} does not reference an nn.Module"
            )
