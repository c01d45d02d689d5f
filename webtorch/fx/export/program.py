"""An exported program: a graph, what its inputs are, and the values of those that are no inputs of the user's."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webtorch.fx.codegen import _PyTreeCodeGen, _PyTreeInfo
from webtorch.fx.export.signature import ExportGraphSignature, InputKind, ValueRange
from webtorch.fx.export.sizes import Dim, Marked
from webtorch.fx.graph import Graph
from webtorch.fx.graph_module import GraphModule
from webtorch.fx.node import Node
from webtorch.nn import Module, Parameter
from webtorch.tensors.tensor import Tensor
from webtorch.utils import _pytree as pytree


class CallSpec(NamedTuple):
    """How arguments and results are nested."""

    in_spec: Any
    out_spec: Any


class _Guards(Module):
    """Checks arguments against those that were exported."""

    def __init__(self, names: Sequence[str], leaves: Sequence[Any], where: Marked) -> None:
        super().__init__()
        self._names, self._where = names, where
        self._shown = [tuple(x.shape) if isinstance(x, Tensor) else x for x in leaves]
        self._tensors = [isinstance(x, Tensor) for x in leaves]

    def forward(self, *given: Any) -> None:
        """Raise AssertionError where a size, or a value of Python, is another one."""
        sizes: dict[Dim, int] = {}
        for i, (name, x) in enumerate(zip(self._names, given, strict=True)):
            if not self._tensors[i]:
                _check(x == self._shown[i], f"{name} == {self._shown[i]}")
                continue
            _check(x.dim() == len(self._shown[i]), f"{name}.dim() == {len(self._shown[i])}")
            for d, size in enumerate(self._shown[i]):
                dim, now = self._where.get((i, d)), x.shape[d]
                text = f"{name}.size()[{d}]"
                if dim is None:
                    _check(now == size, f"{text} == {size}")
                    continue
                # As in PyTorch, whose sizes are 2 and more while a program is followed, 2 asks for nothing.
                _check(dim.min <= 2 or now >= dim.min, f"{text} >= {dim.min}")
                _check(dim.max is None or now <= dim.max, f"{text} <= {dim.max}")
                _check(
                    sizes.setdefault(dim, now) == now, f"{text} == {sizes[dim]}, as {dim.__name__}"
                )


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(f"Guard failed: {text}")


class ExportedProgram:
    """A module as a graph of PyTorch's operators. `module()` is called; the program itself is looked at."""

    def __init__(
        self,
        graph: Graph,
        graph_signature: ExportGraphSignature,
        state_dict: dict[str, Tensor],
        constants: dict[str, Tensor],
        call_spec: CallSpec,
        names: Sequence[str],
        leaves: Sequence[object],
        where: Marked,
        example_inputs: tuple[tuple[object, ...], dict[str, object]],
    ) -> None:
        self._graph_module = GraphModule({}, graph)
        self._signature, self._state, self._constants = graph_signature, state_dict, constants
        self.call_spec, self.example_inputs = call_spec, example_inputs
        self._names, self._leaves, self._where = names, leaves, where

    @property
    def graph_module(self) -> GraphModule:
        """The graph as a module, whose parameters, buffers and constants are inputs."""
        return self._graph_module

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph_module.graph

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """What the inputs and outputs are."""
        return self._signature

    @property
    def state_dict(self) -> dict[str, Tensor]:
        """The parameters and persistent buffers by name."""
        return self._state

    @property
    def constants(self) -> dict[str, Tensor]:
        """Tensors that are neither, and buffers that are in no file, by name."""
        return self._constants

    tensor_constants = constants

    @property
    def range_constraints(self) -> dict[str, ValueRange]:
        """The sizes that dimensions which change may have, by their names."""
        return {d.__name__: d.range for d in dict.fromkeys(self._where.values())}

    @property
    def dialect(self) -> str:
        """Which operators the graph may have: as users call them."""
        return "TRAINING"

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Give the parameters with their names."""
        for name in self._signature.parameters:
            yield name, self._state[name]  # type: ignore[misc]

    def parameters(self) -> Iterator[Parameter]:
        """Give the parameters."""
        yield from (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Give the buffers with their names."""
        for name in self._signature.buffers:
            yield name, self._value(name)

    def buffers(self) -> Iterator[Tensor]:
        """Give the buffers."""
        yield from (b for _, b in self.named_buffers())

    def _value(self, target: str) -> Tensor:
        found = self._state.get(target)
        return self._constants[target] if found is None else found

    def __call__(self, *_: object, **__: object) -> Any:
        raise RuntimeError(
            "Unable to call ExportedProgram directly. You should use `exported_program.module()` instead."
        )

    def module(self, check_guards: bool = True) -> GraphModule:
        """Return a module that is called as the exported one was, and has its parameters and buffers."""
        graph, root = Graph(), dict[str, object]()
        made: dict[Node, Node] = {}
        targets = {s.arg.name: s for s in self._signature.input_specs}
        places = [n for n in self.graph.nodes if n.op == "placeholder"]
        own = [n for n in places if targets[n.name].kind is InputKind.USER_INPUT]
        for node in own:
            made[node] = graph.placeholder(node.name)
            made[node].name = node.name
        for node in places:
            spec = targets[node.name]
            if spec.kind is not InputKind.USER_INPUT:
                target = str(spec.target)
                root[target] = self._value(target)
                made[node] = graph.create_node(
                    "get_attr", target, name=re.sub("[^0-9a-zA-Z]", "_", target)
                )
        if check_guards:
            root["_guards_fn"] = _Guards(self._names, self._leaves, self._where)
            graph.call_module("_guards_fn", tuple([made[n] for n in own]))
        for node in self.graph.nodes:
            if node.op == "call_function":
                made[node] = graph.node_copy(node, lambda n: made[n])
            elif node.op == "output":
                graph.output(_mapped(node.args[0], made))
        args, kwargs = self.example_inputs
        given = [n for n, _ in parameters_of(self._names, args, kwargs)]
        graph.set_codegen(
            _PyTreeCodeGen(_PyTreeInfo(given, self.call_spec.in_spec, self.call_spec.out_spec))
        )
        module = GraphModule(root, graph)
        module._in_spec, module._out_spec = self.call_spec
        return module

    def run_decompositions(
        self, decomp_table: Mapping[Any, object] | None = None
    ) -> ExportedProgram:
        """Return the program, if no operator is to be written with others. Raises NotImplementedError otherwise."""
        if decomp_table:
            raise NotImplementedError(
                "ExportedProgram.run_decompositions: webtorch's graphs have the operators that users call; interpret "
                "`graph_module` with torch.fx.Interpreter to write some with others"
            )
        return copy.copy(self)

    def __str__(self) -> str:
        text = self.graph_module.print_readable(print_output=False).replace("\n", "\n    ")
        signature = str(self._signature).replace("\n", "\n    ")
        ranges = f"Range constraints: {self.range_constraints}\n"
        return f"ExportedProgram:\n    {text}\nGraph signature: {signature}\n{ranges}"


def _mapped(values: Any, made: Mapping[Node, Node]) -> object:
    return tuple([made[x] if isinstance(x, Node) else x for x in values])


def parameters_of(
    names: Sequence[str], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[tuple[str, object]]:
    """Return the parameters of a call by name: that of the first of their leaves, as far as its own name goes."""
    rest = iter(names)
    found = []
    for key, value in (*enumerate(args), *kwargs.items()):
        leaves = [next(rest) for _ in pytree.tree_leaves(value)]
        own = key if isinstance(key, str) else leaves[0] if leaves else f"arg_{key}"
        found.append(
            (own if len(leaves) == 1 or isinstance(key, str) else own.rpartition("_")[0], value)
        )
    return found
