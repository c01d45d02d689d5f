"""`webtorch.onnx.load`: an ONNX file as a module. Floor 6; needs the onnx package.

The nodes run one after the other as operations of webtorch, so gradients, devices and
`webtorch.compile` work as for any module. What only describes shapes stays on the host: sizes,
bounds and constants are NumPy arrays, computed with onnx's own reference, and nothing of it waits
for a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, TypeAlias

import numpy
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from webtorch import errors
from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import Module, Parameter
from webtorch.onnx import operators as operators  # the table of operators is filled
from webtorch.onnx.operators.table import (
    OPERATORS,
    Attrs,
    Context,
    Host,
    Numbers,
    dtype_of,
    is_host,
)
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# A path, the bytes of a file, a binary stream, or what was parsed already.
Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | ModelProto
# What a run has computed, by name; "" stands for what is left out.
Values: TypeAlias = dict[str, Numbers | None]
# Newer opsets so far changed the element types that nodes take, not what they mean.
OPSETS = range(7, 29)
# What computes nothing that could be replaced, with the nearest way.
_ADVICE = {
    "If": "export the model without a branch on values: with webtorch.where, or one file for each case",
    "Loop": "export it with a fixed number of steps, so that the loop is written out",
    "Scan": "export it with a fixed number of steps, so that the loop is written out",
    "SequenceMap": "export it with a fixed number of elements",
    "NonMaxSuppression": "cut the file before it (onnx.utils.extract_model) and select boxes in Python",
}  # fmt: skip
_NEAREST = "cut the file before it (onnx.utils.extract_model) and compute it in Python"
# Larger integers in a file are tensors on the device; smaller ones may be sizes.
_HOST_ELEMENTS = 4096


class UnsupportedOperator(NotImplementedError):
    """A file has a node that webtorch cannot run: names the node, its operation, the opset, a way out."""


def load(
    f: Source,
    *,
    device: DeviceLike = None,
    trainable: bool = True,
) -> ImportedModule:
    """Return a Module that computes what an ONNX file describes (opsets 13 to 23; older ones as far
    as their nodes mean the same).

    f: a path, bytes, a binary stream, or a ModelProto. Weights in files beside a path are read too.
    device: where the weights are. trainable: whether float weights are parameters that require
    gradients; their names in the state_dict are those of the file. Call the module with the file's
    inputs in order, or by name; it returns one tensor, or a tuple.

    Raises UnsupportedOperator for nodes that webtorch lacks, control flow among them; ValueError for a
    damaged file; DTypeError for element types that webtorch lacks.
    """
    model, name = _read(f)
    return ImportedModule(model, device=device, trainable=trainable, name=name)


def _read(f: Source) -> tuple[ModelProto, str]:
    if isinstance(f, ModelProto):
        return f, "<model>"
    if isinstance(f, (bytes, bytearray, memoryview)):
        data, name, folder = bytes(f), "<bytes>", None
    elif hasattr(f, "read"):
        data, name, folder = f.read(), str(getattr(f, "name", "<stream>")), None
    else:
        name = os.fspath(f)
        folder = os.path.dirname(os.path.abspath(name))
        with open(name, "rb") as stream:
            data = stream.read()
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        raise ValueError(f"load: {name} is no ONNX file, or is damaged: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise ValueError(f"load: {name} is no ONNX file, or is empty: it has no graph")
    outside = [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    if outside:
        if folder is None:
            raise ValueError(
                f"load: {name}: the weights {outside[:3]} are in another file: pass the path instead of bytes"
            )
        try:
            onnx.load_external_data_for_model(model, folder)
        except Exception as error:
            raise ValueError(
                f"load: {name}: the weights beside it cannot be read: {error}"
            ) from error
    return model, name


class _Folder(Module):
    """Holds the weights whose names share what stands before a dot."""

    def forward(self, *args: Any) -> Any:
        """Not called: only its weights are used."""
        raise TypeError("this module only holds weights")


class ImportedModule(Module):
    """The module of an ONNX file: `input_names`, `output_names`, `opset`, weights by their names."""

    def __init__(
        self,
        model: ModelProto,
        *,
        device: DeviceLike = None,
        trainable: bool = True,
        name: str = "",
    ) -> None:
        super().__init__()
        graph = model.graph
        versions = {o.domain or "ai.onnx": o.version for o in model.opset_import}
        self.opset = versions.get("ai.onnx", 1)
        self.file = name
        self.output_names = [o.name for o in graph.output]
        self._nodes = _inlined(model)
        _check(self._nodes, self.opset, versions, name)
        self._context = Context(self.opset)
        initial = {t.name for t in graph.initializer} | {
            t.values.name for t in graph.sparse_initializer
        }
        self.input_names = [i.name for i in graph.input if i.name not in initial]
        self._input_types = {i.name: i.type.tensor_type.elem_type for i in graph.input}
        where = webtorch.device(device) if device is not None else webtorch.get_default_device()
        self._constants: dict[str, Host] = {}
        self._weights: dict[str, tuple[Module, str]] = {}
        numbers = _read_as_numbers(self._nodes)
        for t in graph.initializer:
            try:
                array = numpy_helper.to_array(t)
            except Exception as error:
                raise ValueError(
                    f"load: {name}: the weight {t.name!r} is damaged: {error}"
                ) from error
            self._add(t.name, array, _of_proto(t), where, trainable, t.name in numbers)
        self._uses = _last_uses(self._nodes, self.output_names)
        self._evaluators: dict[int, ReferenceEvaluator] = {}
        self._made: dict[int, Host] = {}

    def _add(
        self,
        name: str,
        array: Host,
        dtype: DType | None,
        device: DeviceLike,
        trainable: bool,
        number: bool,
    ) -> None:
        if dtype is None or array.dtype.kind in "OSU":
            self._constants[name] = array
            return
        floating = dtype.is_floating_point
        if number or (not floating and array.size <= _HOST_ELEMENTS):
            self._constants[name] = array
            return
        tensor = _tensor(array, dtype, device)
        home, last = _home(self, name)
        if floating:
            home.register_parameter(last, Parameter(tensor, requires_grad=trainable))
        else:
            home.register_buffer(last, tensor)
        self._weights[name] = (home, last)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs of the file from its inputs."""
        given = dict(zip(self.input_names, args, strict=False))
        if len(args) > len(self.input_names):
            raise TypeError(
                f"{self.file} takes {len(self.input_names)} inputs {self.input_names}, {len(args)} were given"
            )
        given.update(kwargs)
        missing = [n for n in self.input_names if n not in given]
        if missing:
            raise TypeError(f"{self.file}: the inputs {missing} are missing")
        unknown = [n for n in given if n not in self.input_names and n not in self._weights]
        if unknown:
            raise TypeError(f"{self.file} has no inputs {unknown}; it takes {self.input_names}")
        values: Values = {"": None}
        for name, value in given.items():
            values[name] = self._input(name, value)
        return self._run(values)

    def _input(self, name: str, value: object) -> Tensor:
        if not isinstance(value, Tensor):
            value = webtorch.as_tensor(value)
        wanted = dtype_of(self._input_types.get(name, 0))
        if wanted is not None and value.dtype is not wanted:
            raise DTypeError(
                f"{self.file}: the input {name!r} is {wanted}, a tensor of {value.dtype} was given: use "
                f"x.to({wanted})"
            )
        return value

    def _lookup(self, values: Values, name: str) -> Numbers | None:
        if name in values:
            return values[name]
        place = self._weights.get(name)
        if place is not None:
            home, last = place
            found = home._parameters.get(last)
            return found if found is not None else home._buffers[last]
        return self._constants[name]

    def _run(self, values: Values) -> Tensor | tuple[Tensor, ...]:
        for number, node in enumerate(self._nodes):
            inputs = [self._lookup(values, n) for n in node.input]
            try:
                outputs = self._node(number, node, inputs)
            except (UnsupportedOperator, errors.CaptureError):
                raise
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
                title = f"{node.name!r} ({node.op_type})" if node.name else node.op_type
                error.add_note(
                    f"in the node {title} of {self.file}, which gives {list(node.output)}"
                )
                raise
            for name, value in zip(node.output, outputs, strict=False):
                if name:
                    values[name] = value
            for name in self._uses[number]:
                values.pop(name, None)
        found = [self._lookup(values, n) for n in self.output_names]
        device = next((v.device for v in values.values() if isinstance(v, Tensor)), None)
        results = [self._context.tensor(r, device) for r in found if r is not None]
        return results[0] if len(results) == 1 else tuple(results)

    def _node(
        self, number: int, node: NodeProto, inputs: list[Numbers | None]
    ) -> tuple[Numbers | None, ...]:
        if node.op_type == "Constant":
            return (self._constant(number, node),)
        present = [x for x in inputs if x is not None]
        if present and all(is_host(x) for x in present) and node.op_type not in _RANDOM:
            evaluator = self._evaluators.get(number)
            if evaluator is None:
                evaluator = self._evaluators[number] = _evaluator(node, self.opset)
            feed = {n: x for n, x in zip(node.input, inputs, strict=True) if n}
            return tuple(evaluator.run(None, feed))
        function = OPERATORS[node.op_type]
        if node.op_type not in _KEEPS_HOST:
            device = next((x.device for x in present if isinstance(x, Tensor)), None)
            ready = function.host
            inputs = [
                self._context.tensor(x, device) if is_host(x) and i not in ready else x
                for i, x in enumerate(inputs)
            ]
        attrs = _attributes(node)
        out = function.run(self._context, attrs, len(node.output), *inputs)
        return out if isinstance(out, tuple) else (out,)

    def _constant(self, number: int, node: NodeProto) -> Host:
        found = self._made.get(number)
        if found is None:
            attrs = _attributes(node)
            value = next(iter(attrs.values()))
            found = numpy.asarray(
                value,
                dtype=numpy.int64
                if "int" in next(iter(attrs))
                else numpy.float32
                if "float" in next(iter(attrs))
                else None,
            )
            self._made[number] = found
        return found

    def extra_repr(self) -> str:
        """Return inputs, outputs and the opset."""
        return f"{self.file}, opset={self.opset}, inputs={self.input_names}, outputs={self.output_names}"


_RANDOM = frozenset((
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial",
))  # fmt: skip
# They look at a tensor's shape only, or make none of a tensor.
_KEEPS_HOST = frozenset(("Shape", "Size"))


def _evaluator(node: NodeProto, opset: int) -> ReferenceEvaluator:
    """Return what computes a node on the host."""
    value = onnx.helper.make_tensor_value_info
    inputs = [value(n, 1, None) for n in dict.fromkeys(node.input) if n]
    outputs = [value(n, 1, None) for n in node.output if n]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model)


def _attributes(node: NodeProto) -> Attrs:
    found = {}
    for a in node.attribute:
        value = onnx.helper.get_attribute_value(a)
        if isinstance(value, TensorProto):
            value = numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode()
        elif a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            value = list(value)
        elif a.type == onnx.AttributeProto.STRINGS:
            value = [v.decode() for v in value]
        found[a.name] = value
    return found


def _inlined(model: ModelProto) -> list[NodeProto]:
    """Return the nodes of the graph, with calls of the file's own functions written out."""
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    return list(model.graph.node)


def _check(nodes: Iterable[NodeProto], opset: int, versions: Mapping[str, int], name: str) -> None:
    if opset not in OPSETS:
        raise UnsupportedOperator(
            f"load: {name} has opset {opset}; webtorch reads {OPSETS.start} to {OPSETS.stop - 1}. "
            "onnx.version_converter.convert_version makes another one of it."
        )
    bad = []
    for node in nodes:
        foreign = node.domain not in ("", "ai.onnx")
        if foreign or (node.op_type not in OPERATORS and node.op_type != "Constant"):
            domain = f"{node.domain}." if foreign else ""
            version = versions.get(node.domain or "ai.onnx", opset)
            title = f"{node.name!r}" if node.name else f"that gives {node.output[0]!r}"
            advice = _ADVICE.get(node.op_type, _NEAREST)
            bad.append(
                (
                    node.op_type,
                    f"the node {title} is {domain}{node.op_type} (opset {version}): {advice}",
                )
            )
    if bad:
        lines = [text for _, text in bad[:8]]
        more = f"; and {len(bad) - 8} more" if len(bad) > 8 else ""
        raise UnsupportedOperator(f"load: {name} cannot be run: " + "; ".join(lines) + more)


def _read_as_numbers(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the inputs of nodes that are read as numbers: bounds, scales, pads."""
    found = set()
    for node in nodes:
        operator = OPERATORS.get(node.op_type)
        if operator is not None:
            found |= {n for i, n in enumerate(node.input) if n and i in operator.host}
    return found


def _last_uses(nodes: list[NodeProto], outputs: list[str]) -> list[list[str]]:
    """Return for each node the values that are not needed after it."""
    last: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for n in (*node.input, *node.output):
            if n:
                last[n] = number
    found: list[list[str]] = [[] for _ in nodes]
    for n, number in last.items():
        if n not in outputs:
            found[number].append(n)
    return found


def _home(root: Module, name: str) -> tuple[Module, str]:
    """Return the module that holds a weight of a dotted name, and the last part of the name."""
    parts = [p or "_" for p in name.split(".")]
    home = root
    for part in parts[:-1]:
        inner = home._modules.get(part)
        if inner is None:
            if hasattr(home, part):
                part += "_"
            inner = home._modules.get(part) or _Folder()
            home.add_module(part, inner)
        home = inner
    last = parts[-1]
    while hasattr(home, last):
        last += "_"
    return home, last


def _of_proto(t: TensorProto) -> DType | None:
    return dtype_of(t.data_type)


def _tensor(array: Host, dtype: DType, device: DeviceLike) -> Tensor:
    data = numpy.ascontiguousarray(array)
    return from_bytes(data.tobytes(), array.shape, dtype, device)
