"""A file's model from its graph: nodes with their names, weights, constants, inputs and outputs. Floor 6."""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from webtorch.errors import DTypeError
from webtorch.ir.dtype import DType
from webtorch.onnx.example import Dim
from webtorch.onnx.graph import Graph, Step
from webtorch.tensors.tensor import Tensor

# What readers of that time know: opset -> version of the file format.
_IR_VERSIONS = ((13, 7), (15, 8), (19, 9), (21, 10), (23, 11))

_TYPES = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
    "int16": TensorProto.INT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16, "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of a model."""

    name: str
    dtype: DType
    shape: Sequence[Dim]


def build_model(
    graph: Graph,
    inputs: list[Port],
    outputs: list[Port],
    results: list[str],
    opset: int,
    keep_initializers_as_inputs: bool = False,
    export_params: bool = True,
) -> ModelProto:
    """Return the model that computes `outputs`, which are `results` of the graph, from `inputs`.

    Without `export_params` the weights are inputs that a file holds no value of.
    """
    steps = _needed(graph, results)
    names, passed_on = _names(graph, steps, [p.name for p in outputs], results)
    nodes = _nodes(steps, names)
    nodes += [
        helper.make_node("Identity", [names(x)], [title], f"/{title}/Identity")
        for x, title in passed_on
    ]
    read = {x for s in steps for x in s.inputs} | {x for x, _ in passed_on}
    weights, constants = _data(graph, read, names)
    nodes[:0] = [
        helper.make_node("Constant", [], [t.name], f"/{t.name}", value=t) for t in constants
    ]
    takes = [_info(p) for p in inputs]
    if keep_initializers_as_inputs or not export_params:
        takes += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in weights]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "main_graph",
            takes,
            [_info(p) for p in outputs],
            weights if export_params else [],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        producer_name="webtorch",
    )
    model.ir_version = next(v for o, v in reversed(_IR_VERSIONS) if opset >= o)
    return model


def titles_of(given: Sequence[str] | None, count: int, inputs: Sequence[str]) -> list[str]:
    """Return the names of a model's outputs: those that were given, and "output_1" and so on."""
    titles = list(given or ())
    if len(titles) > count:
        raise ValueError(f"export: {len(titles)} output_names for {count} results: {titles}")
    titles += [f"output_{i}" if count > 1 else "output" for i in range(len(titles), count)]
    if len(set(titles)) != len(titles) or set(titles) & set(inputs):
        raise ValueError(f"export: names of inputs and outputs must differ: {inputs} and {titles}")
    return titles


class _Names(NamedTuple):
    """Names in the file: those of the graph, and what they are called instead."""

    changed: dict[str, str]

    def __call__(self, name: str) -> str:
        """Return what a name of the graph is called in the file."""
        return self.changed.get(name, name)


def _names(
    graph: Graph, steps: list[Step], titles: list[str], results: list[str]
) -> tuple[_Names, list[tuple[str, str]]]:
    """Return the names in the file, and the (result, title) that a node has to pass on.

    A result gets its output's name where it is made; one that is an input, a weight or another
    result too is passed on.
    """
    made = {o for s in steps for o in s.outputs}
    changed: dict[str, str] = {}
    passed_on: list[tuple[str, str]] = []
    for title, result in zip(titles, results, strict=True):
        if result in made and result not in changed:
            changed[result] = title
        else:
            passed_on.append((result, title))
    taken = made.union(graph.data, graph.ints, graph.numbers)
    for title in titles:
        if title in taken and title not in changed:
            changed[title] = graph.fresh(title)
    return _Names(changed), passed_on


def _needed(graph: Graph, results: Sequence[str]) -> list[Step]:
    """Return the nodes that the results need."""
    needed = set(results)
    kept: list[Step] = []
    for s in reversed(graph.steps):
        if needed & set(s.outputs):
            needed.update(s.inputs)
            kept.append(s)
    return kept[::-1]


def _nodes(steps: list[Step], names: _Names) -> list[NodeProto]:
    """Return the nodes of the file, each with the path of its module in its own name."""
    nodes: list[NodeProto] = []
    count: dict[str, int] = {}
    for s in steps:
        title = "/".join(["", *filter(None, s.scope.split(".")), s.op])
        count[title] = count.get(title, -1) + 1
        full = title if not count[title] else f"{title}_{count[title]}"
        inputs, outputs = [names(x) for x in s.inputs], [names(x) for x in s.outputs]
        nodes.append(helper.make_node(s.op, inputs, outputs, full, **_attributes(s)))
    return nodes


def _attributes(step: Step) -> dict[str, Any]:
    """Return a node's attributes, with the number of the type that a Cast gives."""
    if step.op != "Cast":
        return step.attrs
    to = step.attrs["to"]
    to = _TYPES.get(to, to) if isinstance(to, str) else to
    if to not in _TYPES.values():
        raise DTypeError(f"export: ONNX has no {to}; convert it first, as in x.float()")
    return {**step.attrs, "to": to}


def _data(
    graph: Graph, read: Container[str], names: _Names
) -> tuple[list[TensorProto], list[TensorProto]]:
    """Return the weights that are read, and the constants. What is no weight is a constant."""
    weights: list[TensorProto] = []
    constants: list[TensorProto] = []
    for name, t in graph.data.items():
        if name in read:
            (constants if name in graph.plain else weights).append(_tensor(names(name), t))
    for name, ints in graph.ints.items():
        if name in read:
            shape = [] if ints.scalar else [len(ints.values)]
            data = struct.pack(f"<{len(ints.values)}q", *ints.values)
            constants.append(
                helper.make_tensor(names(name), TensorProto.INT64, shape, data, raw=True)
            )
    for name, (value, dtype) in graph.numbers.items():
        if name in read:
            constants.append(_number(names(name), value, dtype))
    return weights, constants


def _info(port: Port) -> ValueInfoProto:
    return helper.make_tensor_value_info(port.name, _type(port.dtype), port.shape)


def _type(dtype: DType) -> int:
    number = _TYPES.get(dtype.name)
    if number is None:
        raise DTypeError(f"export: ONNX has no {dtype}; convert it first, as in x.float()")
    return int(number)


def _tensor(name: str, t: Tensor) -> TensorProto:
    return helper.make_tensor(name, _type(t.dtype), list(t.shape), bytes(t._to_bytes()), raw=True)


def _number(name: str, value: float, dtype: DType) -> TensorProto:
    number = _type(dtype)
    if dtype.kind == "float":
        value = float(value)
        if dtype.name == "float32" and math.isfinite(value) and abs(value) > 3.4028234663852886e38:
            value = math.copysign(math.inf, value)
        code = {"float32": "<f", "float64": "<d", "float16": "<e"}.get(dtype.name)
        if code is not None:
            return helper.make_tensor(name, number, [], struct.pack(code, value), raw=True)
        return helper.make_tensor(name, number, [], [value])
    return helper.make_tensor(name, number, [], [int(value)])
