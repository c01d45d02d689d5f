"""Running a graph node by node, and changing it on the way."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from webtorch.fx import traceback as fx_traceback
from webtorch.fx._symbolic_trace import Tracer
from webtorch.fx.codegen import last_uses
from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Argument, Node, Target, map_aggregate, map_arg
from webtorch.fx.proxy import Proxy
from webtorch.nn import Module
from webtorch.tensors.override import override

__all__ = ["Interpreter", "Transformer"]


class Interpreter:
    """Runs a module's graph: a method for each kind of node, which subclasses change."""

    def __init__(
        self, module: Module, garbage_collect_values: bool = True, graph: Graph | None = None
    ) -> None:
        """Take a module and its graph; values are let go of after their last use, if wanted."""
        self.module = module
        self.submodules = dict(module.named_modules())
        self.graph: Graph = module.graph if graph is None else graph
        self.env: dict[Node, object] = {}
        self.name = "Interpreter"
        self.garbage_collect_values = garbage_collect_values
        self.extra_traceback = True
        if garbage_collect_values:
            self.user_to_last_uses = last_uses(reversed(self.graph.nodes))

    def run(
        self,
        *args: object,
        initial_env: dict[Node, Any] | None = None,
        enable_io_processing: bool = True,
    ) -> Any:
        """Return what the module gives for `args`. Nodes in `initial_env` have values already."""
        self.env = {} if initial_env is None else initial_env
        given = self.graph.process_inputs(*args) if enable_io_processing else args
        self.args_iter = iter(given)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                if self.extra_traceback:
                    _tell(error, node)
                    if isinstance(error, KeyError):
                        raise RuntimeError(*error.args) from error
                raise
            if self.garbage_collect_values:
                for unused in self.user_to_last_uses.get(node, ()):
                    del self.env[unused]
            if node.op == "output":
                out = self.env[node]
                return self.graph.process_outputs(out) if enable_io_processing else out
        return None

    def boxed_run(self, args_list: list[object]) -> Any:
        """Return what the module gives for the arguments in a list, which is emptied."""
        places = [n for n in self.graph.nodes if n.op == "placeholder"]
        if len(args_list) != len(places):
            detail = "extra" if len(args_list) > len(places) else "missing"
            raise RuntimeError(
                f"Interpreter.boxed_run expected {len(places)} arguments for placeholders "
                f"but received {len(args_list)} ({detail} arguments)"
            )
        env = dict(zip(places, args_list))
        args_list.clear()
        return self.run(initial_env=env)

    @contextlib.contextmanager
    def _set_current_node(self, node: Node) -> Iterator[None]:
        with fx_traceback.set_current_meta(node, f"Interpreter_{type(self).__name__}"):
            yield

    def run_node(self, n: Node) -> Any:
        """Return the value of a node, by the method of its kind."""
        with self._set_current_node(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Return the next argument, or the default."""
        if str(target).startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration as end:
            if args:
                return args[0]
            raise RuntimeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            ) from end

    def get_attr(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Return an attribute of the module."""
        return self.fetch_attr(str(target))

    def call_function(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a function."""
        assert callable(target)
        return target(*args, **kwargs)

    def call_method(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a method of the first argument."""
        owner, *rest = args
        return getattr(owner, str(target))(*rest, **kwargs)

    def call_module(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a submodule."""
        return self.fetch_attr(str(target))(*args, **kwargs)

    def output(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]) -> Any:
        """Return what the module returns."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute of the module, by its qualified name."""
        found: object = self.module
        parts = target.split(".")
        for i, part in enumerate(parts):
            if not hasattr(found, part):
                raise RuntimeError(f"Node referenced nonexistent target {'.'.join(parts[: i + 1])}")
            found = getattr(found, part)
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments as values."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Argument, n: Node) -> Any:
        """Return arguments with values in the places of nodes; `n` is named in errors."""

        def load(arg: Node) -> Any:
            """Return the value of a node."""
            if arg not in self.env:
                raise RuntimeError(
                    f"Node {n} referenced nonexistent value {arg}! Run Graph.lint() "
                    "to diagnose such issues"
                )
            return self.env[arg]

        return map_arg(args, load)


def _tell(error: Exception, node: Node) -> None:
    """Say in an error which node was run."""
    where = f"While executing {node.format_node()}"
    text = f"{error.args[0]}\n\n{where}" if error.args else where
    error.args = (f"{text}\nOriginal traceback:\n{node.stack_trace}", *error.args[1:])


class Transformer(Interpreter):
    """Runs a graph with proxies, which makes another one: methods say what becomes of each kind of node."""

    def __init__(self, module: GraphModule) -> None:
        """Take the module to be changed."""
        super().__init__(module)
        self.new_graph = Graph()
        self.new_graph.set_codegen(module.graph._codegen)
        self.tracer: Tracer = _Leaves()
        self.tracer.graph, self.tracer.root = self.new_graph, module

    def placeholder(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Add a placeholder."""
        default = args[0] if args else inspect.Signature.empty
        return Proxy(self.new_graph.placeholder(str(target), default_value=default), self.tracer)

    def get_attr(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Add a look at an attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_module(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Add a call of a submodule."""
        module = self.fetch_attr(str(target))
        return self.tracer.call_module(module, module.forward, args, kwargs)

    def call_function(
        self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, object]
    ) -> Any:
        """Add a call of a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def transform(self) -> GraphModule:
        """Return the module of the new graph."""
        with fx_traceback.preserve_node_meta(), override.asking():
            result = self.run(enable_io_processing=False)
        if result is not None:
            nodes = map_aggregate(result, lambda a: a.node if isinstance(a, Proxy) else a)
            self.new_graph.output(nodes).meta.update(self.graph.output_node().meta)
        return GraphModule(self.module, self.new_graph)


class _Leaves(Tracer):
    """Enters no module."""

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """Return True."""
        return True
