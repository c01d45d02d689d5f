"""`torch.export.unflatten`: a program as modules again, each with the graph of what its call was made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, cast

from webtorch.fx.codegen import _PyTreeCodeGen, _PyTreeInfo
from webtorch.fx.export.program import ExportedProgram, parameters_of
from webtorch.fx.export.signature import InputKind
from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Node, map_arg
from webtorch.nn import Module, Parameter

__all__ = ["InterpreterModule", "UnflattenedModule", "unflatten"]


class InterpreterModule(GraphModule):
    """A module of an unflattened program: called with the tensors that its graph reads, in their order."""

    _ty: str | None = None

    def type_name(self) -> str | None:
        """Return the class of the module that was exported, as text."""
        return self._ty


class UnflattenedModule(InterpreterModule):
    """A program as modules: called as the exported module was."""


class _State:
    """What the modules of a program have: copies of its parameters and buffers, by name."""

    def __init__(self, program: ExportedProgram) -> None:
        copies: dict[int, object] = {}
        signature = program.graph_signature
        kept = {**program.constants, **program.state_dict}
        self.loose = set(signature.non_persistent_buffers)
        self.plain = kept.keys() - program.state_dict.keys() - self.loose
        self.values: dict[str, object] = {}
        for name, x in kept.items():
            if id(x) not in copies:
                own = x.detach().clone()
                needs = x.requires_grad
                copies[id(x)] = Parameter(own, needs) if isinstance(x, Parameter) else own
            self.values[name] = copies[id(x)]
        self.calls: dict[str, list[InterpreterModule]] = {}
        # Inputs of the graph that are none of the user's -> their names.
        self.names = {
            s.arg.name: str(s.target)
            for s in signature.input_specs
            if s.kind is not InputKind.USER_INPUT
        }

    def within(self, node: Node, path: str) -> str | None:
        """Return the name that what an input holds has in the module at a path, if any."""
        name = self.names.get(node.name)
        if name is None or not path:
            return name
        there = [n for n, x in self.values.items() if x is self.values[name]]
        own = [n for n in (name, *there) if n.startswith(f"{path}.")]
        return own[0][len(path) + 1 :] if own else None

    def known(self, path: str, module: InterpreterModule) -> InterpreterModule:
        """Return the module of an earlier call of the one at a path that does the same, if there is one."""
        calls = self.calls.setdefault(path, [])
        found = next((m for m in calls if _alike(module, m)), None)
        calls += [module] * (found is None)
        return found or module

    def give(self, module: Module, path: str) -> None:
        """Give a module all that the one at a path had, also what no graph reads."""
        prefix = f"{path}." if path else ""
        for name, x in self.values.items():
            if not name.startswith(prefix):
                continue
            *around, field = name[len(prefix) :].split(".")
            owner: Any = module
            for part in around:
                if not hasattr(owner, part):
                    owner.add_module(part, Module())
                owner = getattr(owner, part)
            if isinstance(x, Parameter) or name in self.plain:
                setattr(owner, field, x)
            else:
                vars(owner).pop(field, None)
                owner.register_buffer(field, x, persistent=name not in self.loose)


class _Frame:
    """One call of a module: its nodes in the graph of the program, and the graph that is made of them."""

    def __init__(
        self, nodes: Sequence[Node], depth: int, path: str, kind: str, state: _State
    ) -> None:
        self.nodes, self.depth, self.path, self.kind, self.state = nodes, depth, path, kind, state
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.root: dict[str, object] = {}
        self.called: dict[str, list[str]] = {}

    def inputs(self) -> list[Node]:
        """Return what is read and not made here, but for what the module has: first the inputs of the program."""
        own = set(self.nodes)
        read = dict.fromkeys(n for node in self.nodes for n in node.all_input_nodes if n not in own)
        needed = [n for n in read if self.state.within(n, self.path) is None]
        return sorted(needed, key=lambda n: n.op != "placeholder")

    def outputs(self) -> list[Node]:
        """Return what is made here and read elsewhere."""
        own = set(self.nodes)
        return [n for n in self.nodes if any(u not in own for u in n.users)]

    def filled(self, inputs: Sequence[Node]) -> None:
        """Write the graph, all but its end."""
        for node in inputs:
            self.made[node] = self.graph.placeholder(node.name)
            self.made[node].name = node.name
        parts: list[tuple[_Frame | None, list[Node]]] = []
        for call, group in itertools.groupby(self.nodes, self._call_of):
            nodes = list(group)
            frame = call and _Frame(nodes, self.depth + 1, *call[1], self.state)
            parts.append((frame, frame.inputs() if frame else nodes))
        read = [
            n
            for frame, nodes in parts
            for x in nodes
            for n in ((x,) if frame else x.all_input_nodes)
        ]
        for node in dict.fromkeys(read):
            name = self.state.within(node, self.path)
            if name is not None:
                whole = f"{self.path}.{name}" if self.path else name
                self.root[name] = self.state.values[whole]
                self.made[node] = self.graph.get_attr(name)
        for frame, nodes in parts:
            if frame is not None:
                self._call(frame, nodes)
                continue
            for node in nodes:
                self.made[node] = self.graph.node_copy(node, self.made.__getitem__)

    def _call_of(self, node: Node) -> tuple[str, tuple[str, str]] | None:
        """Return the call within this one that a node belongs to: which it is, and the module's path and class."""
        stack = list(node.meta.get("nn_module_stack", {}).items())
        return stack[self.depth] if len(stack) > self.depth else None

    def _call(self, frame: _Frame, inputs: Sequence[Node]) -> None:
        outputs = frame.outputs()
        frame.filled(inputs)
        values = [frame.made[n] for n in outputs]
        frame.graph.output(values[0] if len(values) == 1 else tuple(values))
        name = frame.path[len(self.path) + 1 :] if self.path else frame.path
        target = self._placed(name, self.state.known(frame.path, frame.module(InterpreterModule)))
        call = self.graph.call_module(target, tuple([self.made[n] for n in inputs]))
        self.made.update({outputs[0]: call} if len(outputs) == 1 else {})
        if len(outputs) > 1:
            for i, node in enumerate(outputs):
                self.made[node] = self.graph.call_function(getitem, (call, i))

    def _placed(self, name: str, module: InterpreterModule) -> str:
        """Return under which name a module is called, which may have been called here before."""
        names = self.called.setdefault(name, [])
        for target in names:
            if self.root[target] is module:
                return target
        target = f"{name}@{len(names)}" if names else name
        names.append(target)
        self.root[target] = module
        return target

    def module(self, kind: type[InterpreterModule]) -> InterpreterModule:
        """Return the module of the graph."""
        made = kind(self.root, self.graph, kind.__name__)
        made._ty = self.kind
        self.state.give(made, self.path)
        return made


def _alike(a: GraphModule, b: GraphModule) -> bool:
    """Whether two modules compute the same of the same parameters."""
    if _lines(a) != _lines(b):
        return False
    calls = [str(n.target) for n in a.graph.nodes if n.op == "call_module"]
    return all(_alike(*(cast(GraphModule, m.get_submodule(t)) for m in (a, b))) for t in calls)


def _lines(module: GraphModule) -> list[object]:
    numbers: dict[Node, str] = {n: f"%{i}" for i, n in enumerate(module.graph.nodes)}
    shown: Callable[[object], Any] = lambda args: map_arg(args, numbers.__getitem__)  # noqa: E731
    found: list[object] = []
    for n in module.graph.nodes:
        target = "" if n.op == "placeholder" else str(n.target)
        found.append((n.op, target, str(shown(n.args)), str(shown(n.kwargs))))
    return found


def unflatten(module: ExportedProgram, flat_args_adapter: object = None) -> UnflattenedModule:
    """Return a program as modules again: those of the exported one, by the same names, with copies of its parameters.

    Each module's graph is what its call was made of, and its arguments are the tensors that this reads. A module that
    was called in two ways is two modules (`layer`, `layer@1`) with the same parameters.
    """
    if flat_args_adapter is not None:
        raise NotImplementedError("unflatten: arguments are nested as they were exported")
    state = _State(module)
    nodes = list(module.graph.nodes)
    body = [n for n in nodes if n.op == "call_function"]
    first: Mapping[str, Any] = next((n.meta.get("nn_module_stack", {}) for n in body), {})
    frame = _Frame(body, 1, "", next(iter(first.values()), ("", ""))[1], state)
    inputs = [n for n in nodes if n.op == "placeholder" and n.name not in state.names]
    frame.filled(inputs)
    results = next(n for n in nodes if n.op == "output").args[0]
    for node in [n for n in cast("tuple[object, ...]", results) if isinstance(n, Node)]:
        if node not in frame.made:
            # What the module has is its result.
            name = cast(str, state.within(node, ""))
            frame.root[name] = state.values[name]
            frame.made[node] = frame.graph.get_attr(name)
    frame.graph.output(map_arg(results, frame.made.__getitem__))
    args, kwargs = module.example_inputs
    given = [n for n, _ in parameters_of(module._names, args, kwargs)]
    spec = module.call_spec
    frame.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(given, spec.in_spec, spec.out_spec)))
    made = cast(UnflattenedModule, frame.module(UnflattenedModule))
    made.graph_signature = module.graph_signature
    return made
