"""`webtorch.onnx.export`: a module or function as an ONNX file. Floor 6; needs the onnx package."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeAlias

import onnx
from onnx import ModelProto

from webtorch.capture.dynamic import Point, probes
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.nn import Module
from webtorch.onnx import rules as rules  # the table of rules is filled
from webtorch.onnx.example import Dims, Example, arguments_of, example_of, take_apart
from webtorch.onnx.graph import ExportError, Graph, different_constants, merge
from webtorch.onnx.model import Port, build_model, titles_of
from webtorch.onnx.recording import Recording, Value, record
from webtorch.onnx.writer import Writer
from webtorch.tensors.tensor import Tensor

OPSET = 18
OPSETS = range(13, 24)
# A path, or a binary stream.
Target: TypeAlias = str | os.PathLike[str] | BinaryIO
# A file of protocol buffers holds no more.
_INLINE_BYTES = 2**31 - 2**20


class ONNXProgram:
    """An exported model: `model_proto`, `save(path)`, and a call that runs it in onnxruntime."""

    def __init__(self, model: ModelProto, inputs: list[str]) -> None:
        self.model_proto = model
        self._inputs = inputs

    def save(self, destination: Target, *, external_data: bool | None = None, **_: object) -> None:
        """Write the model to a path or binary stream.

        Weights go to "name.data" beside the path with `external_data`, or where they pass 2 GiB.
        """
        model = self.model_proto
        size = sum(len(t.raw_data) for t in model.graph.initializer)
        if hasattr(destination, "write"):
            destination.write(model.SerializeToString())
            return
        path = os.fspath(destination)
        if external_data or size > _INLINE_BYTES:
            beside = os.path.basename(path) + ".data"
            with contextlib.suppress(FileNotFoundError):
                # It would be appended to.
                os.remove(os.path.join(os.path.dirname(path), beside))
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            onnx.save_model(
                copy, path, save_as_external_data=True, all_tensors_to_one_file=True,
                location=beside, size_threshold=1024,
            )  # fmt: skip
        else:
            onnx.save_model(model, path)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Run the model in onnxruntime on the CPU; the arguments are those of the module."""
        onnxruntime = importlib.import_module("onnxruntime")

        session = onnxruntime.InferenceSession(
            self.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        tensors, _ = take_apart(arguments_of(args, kwargs))
        given = [t.detach().cpu().numpy() for t in tensors]
        found = session.run(None, dict(zip(self._inputs, given, strict=True)))
        return tuple(webtorch.from_numpy(x) for x in found)

    def __repr__(self) -> str:
        return f"ONNXProgram({onnx.printer.to_text(self.model_proto)})"


def export(
    model: Callable[..., object],
    args: object = (),
    f: Target | None = None,
    *,
    kwargs: Mapping[str, object] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = False,
    dynamic_shapes: object = None,
    custom_translation_table: object = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: object = ".",
    fallback: bool = False,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    dynamic_axes: Mapping[str, Dims] | None = None,
    training: object = None,
    operator_export_type: object = None,
    do_constant_folding: bool = True,
    custom_opsets: object = None,
    export_modules_as_functions: object = False,
    autograd_inlining: bool = True,
) -> ONNXProgram:
    """Write `model` (a Module or a function of tensors), as called with `args`, as ONNX.

    args: the arguments of a call (a tuple, or one tensor); a dict at its end, or `kwargs`, are keyword
    arguments. They give shapes and types and are not computed with. f: a path or a binary stream;
    None only returns the program. Weights are named by their state_dict keys.
    dynamic_axes: {"input": {0: "batch"}} or {"input": [0]}; dynamic_shapes: the same by argument
    ({"x": {0: "batch"}}, or a tuple in the order of the arguments). Axes of one name have one size.
    opset_version: 13 to 23 (default 18). The model is exported in the mode it is in: a module in
    training mode is exported with a warning, its batch norms normalise by the batch and its dropouts
    draw; `training` may be TrainingMode.EVAL or TRAINING to set the mode for the export.
    verify: run the result in onnxruntime and compare. `dynamo` and what else PyTorch's exporters can
    be told has no effect.

    Raises ExportError (a CaptureError) for what has no form in ONNX or depends on values, naming the
    operation; DTypeError for element types that ONNX lacks.
    """
    if custom_translation_table or custom_opsets:
        raise ValueError("export: custom_translation_table and custom_opsets are not available")
    opset = _opset(opset_version)
    given, keywords = arguments_of(args, kwargs)
    function = model.forward if isinstance(model, Module) else model
    with _mode_of(model, training):
        example = example_of(function, given, keywords, input_names, dynamic_axes, dynamic_shapes)
        # Before the recordings: a layer that shares its value gets its own.
        parameters = _parameter_names(model)
        points, recordings = _record_all(model, example)
        graphs, results = _write_all(recordings, parameters, example.names, opset)
    graph = merge(graphs, points, example.places) if len(graphs) > 1 else graphs[0]
    inputs = [
        Port(*port)
        for port in zip(example.names, (t.dtype for t in example.tensors), example.shapes())
    ]
    outputs = _outputs(example, points, recordings, output_names)
    proto = build_model(
        graph, inputs, outputs, results, opset, keep_initializers_as_inputs, export_params
    )
    _check(proto)
    program = ONNXProgram(proto, example.names)
    if verbose:
        warnings.warn(onnx.printer.to_text(proto), stacklevel=user_depth())
    if verify:
        _verify(program, model, given, keywords)
    if f is not None:
        program.save(f, external_data=external_data)
    return program


def _opset(wanted: int | None) -> int:
    opset = OPSET if wanted is None else wanted
    if opset not in OPSETS:
        raise ValueError(
            f"export: opset_version is {opset}; {OPSETS.start} to {OPSETS.stop - 1} can be written"
        )
    return opset


@contextlib.contextmanager
def _mode_of(model: object, training: object) -> Iterator[None]:
    if not isinstance(model, Module):
        yield
        return
    wanted = getattr(training, "name", training)
    states = {m: m.training for m in model.modules()}
    if wanted in ("EVAL", "TRAINING"):
        model.train(wanted == "TRAINING")
    elif any(states.values()) and any(_acts_otherwise(m) for m in states if states[m]):
        warnings.warn(
            "export: the model is in training mode: batch norms use the batch's statistics and dropouts "
            "draw in the exported file. Call model.eval() first to export it for inference, or say "
            "training=TrainingMode.TRAINING.",
            stacklevel=user_depth(),
        )
    try:
        yield
    finally:
        for m, state in states.items():
            if m.training != state:
                m.training = state


def _acts_otherwise(m: Module) -> bool:
    name = type(m).__name__
    return "Dropout" in name or "BatchNorm" in name or getattr(m, "dropout", 0.0) not in (0.0, None)


@contextlib.contextmanager
def _deep() -> Iterator[None]:
    """A value is written after those it reads, by recursion."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 200_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _check(proto: ModelProto) -> None:
    try:
        onnx.checker.check_model(proto, full_check=proto.ByteSize() < _INLINE_BYTES)
    except Exception as error:
        raise ExportError(
            f"export: the file that was made breaks a rule of ONNX, which is a defect of webtorch: {error}"
        ) from error


# A model may halve a size several times: at sizes that are no multiple of this it may fail.
_STEPS = (1, 2, 4, 8, 16, 32, 64)


def _record_all(
    model: Callable[..., object], example: Example
) -> tuple[list[Point], list[Recording]]:
    """Record at the sizes of the example and at as many others as tell how results depend on them."""
    modules = _module_names(model)

    def record_at(point: Point) -> Recording:
        """Return the recording at sizes of the symbols."""
        inputs = example.placeholders(point)
        args, kwargs = example.rebuild(inputs)
        return record(model, args, kwargs, inputs, modules)

    first = example.sizes
    recordings = [record_at(first)]
    if not first:
        return [first], recordings
    failure: Exception | None = None
    for step in _STEPS:
        points = [
            tuple(a + (b - a) * step for a, b in zip(first, p, strict=True)) for p in probes(first)
        ]
        try:
            return points, [recordings[0], *(record_at(p) for p in points[1:])]
        except Exception as error:
            failure = failure or error
    raise ExportError(
        f"export: the function fails at other sizes of the dynamic dimensions than {first}: {failure}"
    ) from failure


def _write_all(
    recordings: list[Recording], parameters: dict[int, str], names: list[str], opset: int
) -> tuple[list[Graph], list[str]]:
    """Return the graph of each recording, and the names of the results in them.

    Calls whose results were computed now and differ between sizes are written out.
    """
    unfolded: frozenset[tuple[int, ...]] = frozenset()
    while True:
        written = [_write(r, parameters, names, opset, unfolded) for r in recordings]
        graphs = [graph for graph, _ in written]
        new = different_constants(graphs, lambda t: bytes(t._to_bytes())) - unfolded
        if not new:
            return graphs, written[-1][1]
        unfolded |= new


def _write(
    recording: Recording,
    parameters: dict[int, str],
    names: list[str],
    opset: int,
    unfolded: frozenset[tuple[int, ...]],
) -> tuple[Graph, list[str]]:
    writer = Writer(recording, parameters, opset, unfolded)
    for name, value in zip(names, recording.inputs, strict=True):
        writer.graph.taken[name] = 0
        writer.known[value] = name
    with _deep():
        results = [writer.name(v) for v in _flat(recording.outputs)]
    return writer.graph, results


def _outputs(
    example: Example,
    points: list[Point],
    recordings: list[Recording],
    names: Sequence[str] | None,
) -> list[Port]:
    """Return the outputs of the model: names, types, and shapes with the symbols they follow."""
    values = [list(_flat(r.outputs)) for r in recordings]
    titles = titles_of(names, len(values[0]), example.names)
    return [
        Port(title, same[0].dtype, example.symbolic([v.shape for v in same], points))
        for title, same in zip(titles, zip(*values, strict=True), strict=True)
    ]


def _flat(x: object) -> Iterator[Value]:
    if isinstance(x, Value):
        yield x
    elif isinstance(x, dict):
        for y in x.values():
            yield from _flat(y)
    elif isinstance(x, (tuple, list)):
        for y in x:
            yield from _flat(y)
    elif x is not None:
        raise ExportError(
            f"export: the function returns {type(x).__name__}, and a file gives tensors: return tensors only"
        )


def _module_names(model: object) -> dict[int, str]:
    roots = model if isinstance(model, Module) else getattr(model, "__self__", None)
    if not isinstance(roots, Module):
        return {}
    return {id(m): name for name, m in roots.named_modules()}


def _parameter_names(model: object) -> dict[int, str]:
    """Return the state_dict keys of tensors, by the id of what holds their data."""
    named: dict[int, str] = {}

    def add(prefix: str, module: Module) -> None:
        """Name a module's parameters and buffers."""
        for name, t in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            # Layers that were copied share a value until one is written; here each has its own.
            t._storage.own()
            named.setdefault(id(t._storage.node), prefix + name)

    owner = model if isinstance(model, Module) else getattr(model, "__self__", None)
    if isinstance(owner, Module):
        add("", owner)
        return named
    # A function: the modules and tensors that it refers to by name.
    closure = inspect.getclosurevars(model) if inspect.isfunction(model) else None
    for scope in (closure.nonlocals, closure.globals) if closure is not None else ():
        for name, value in scope.items():
            if isinstance(value, Module):
                add(f"{name}.", value)
            elif isinstance(value, Tensor):
                value._storage.realize()
                named.setdefault(id(value._storage.node), name)
    return named


def _verify(
    program: ONNXProgram,
    call: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    with webtorch.no_grad():
        expected = call(*args, **kwargs)
    tensors, _ = take_apart(expected)
    for number, (found, wanted) in enumerate(zip(program(*args, **kwargs), tensors, strict=True)):
        if not webtorch.allclose(found.double(), wanted.cpu().double(), rtol=1e-3, atol=1e-4):
            raise ExportError(
                f"export: output {number} in onnxruntime differs from that of the model"
            )
