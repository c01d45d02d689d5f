"""`webtorch.onnx.export`: a module or function as an ONNX file. Floor 6; needs the onnx package."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from webtorch.capture.dynamic import MAX_VARIABLES, Point, placeholder, probes
from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn import Module
from webtorch.onnx import rules as rules
from webtorch.onnx.graph import ExportError, Graph, different_constants, merge
from webtorch.onnx.recording import Recording, Value, record
from webtorch.onnx.writer import Writer
from webtorch.tensors.tensor import Tensor

OPSET = 18
OPSETS = range(13, 24)
# What readers of that time know: opset -> version of the file format.
_IR_VERSIONS = ((13, 7), (15, 8), (19, 9), (21, 10), (23, 11))
# A file of protocol buffers holds no more.
_INLINE_BYTES = 2**31 - 2**20

TYPES = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
    "int16": TensorProto.INT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16, "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}  # fmt: skip


class ONNXProgram:
    """An exported model: `model_proto`, `save(path)`, and a call that runs it in onnxruntime."""

    def __init__(self, model: Any, inputs: list[str], takes: Callable[..., list[Tensor]]) -> None:
        self.model_proto = model
        self._inputs, self._takes = inputs, takes

    def save(self, destination: Any, *, external_data: bool | None = None, **_: Any) -> None:
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
        given = [t.detach().cpu().numpy() for t in self._takes(args, kwargs)]
        found = session.run(None, dict(zip(self._inputs, given, strict=True)))
        return tuple(webtorch.from_numpy(x) for x in found)

    def __repr__(self) -> str:
        return f"ONNXProgram({onnx.printer.to_text(self.model_proto)})"


def export(
    model: Any,
    args: Any = (),
    f: Any = None,
    *,
    kwargs: dict[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = False,
    dynamic_shapes: Any = None,
    custom_translation_table: Any = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: Any = ".",
    fallback: bool = False,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    dynamic_axes: Any = None,
    training: Any = None,
    operator_export_type: Any = None,
    do_constant_folding: bool = True,
    custom_opsets: Any = None,
    export_modules_as_functions: Any = False,
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
    opset = OPSET if opset_version is None else opset_version
    if opset not in OPSETS:
        raise ValueError(
            f"export: opset_version is {opset}; {OPSETS.start} to {OPSETS.stop - 1} can be written"
        )
    if custom_translation_table or custom_opsets:
        raise ValueError("export: custom_translation_table and custom_opsets are not available")
    args, kwargs = _arguments(args, kwargs)
    function = model.forward if isinstance(model, Module) else model
    call = model
    with _mode_of(model, training):
        tensors, rebuild = _take_apart((args, kwargs))
        names = _input_names(function, args, kwargs, input_names)
        axes = _axes(names, tensors, dynamic_axes, dynamic_shapes, _paths(function, args, kwargs))
        first, symbols, owner = _symbols(tensors, names, axes)
        modules, parameters = _module_names(model), _parameter_names(model)

        def record_at(point: Point) -> Recording:
            """Return the recording at sizes of the symbols."""
            sizes = dict(zip(owner, point, strict=True))
            inputs = []
            for i, t in enumerate(tensors):
                shape = tuple(sizes.get(axes.get((i, d), ""), s) for d, s in enumerate(t.shape))
                inputs.append(placeholder(t, shape).requires_grad_(False))
            new_args, new_kwargs = rebuild(inputs)
            return record(call, new_args, new_kwargs, inputs, modules)

        points, recordings = _record_all(record_at, first)
        result_names: list[str] = []
        unfolded: frozenset[tuple[int, ...]] = frozenset()
        while True:
            graphs = []
            for recording in recordings:
                graph, results = _write(recording, parameters, names, opset, unfolded)
                graphs.append(graph)
                result_names = results
            new = different_constants(graphs, lambda t: bytes(t._to_bytes())) - unfolded
            if not new:
                break
            unfolded |= new
    graph = merge(graphs, points, symbols) if len(graphs) > 1 else graphs[0]
    outputs = list(_flat(recordings[0].outputs))
    sizes_of = [[v.shape for v in _flat(r.outputs)] for r in recordings]
    shapes = [_symbolic(rows, points, owner) for rows in zip(*sizes_of, strict=True)]
    proto = _model(
        graph, names, tensors, axes, outputs, shapes, result_names, output_names, opset,
        keep_initializers_as_inputs, export_params,
    )  # fmt: skip
    with _readable(proto):
        onnx.checker.check_model(proto, full_check=proto.ByteSize() < _INLINE_BYTES)

    def takes(args: Any, kwargs: Any) -> list[Tensor]:
        """Return the tensors among a call's arguments, in the model's order."""
        return _take_apart(_arguments(args, kwargs))[0]

    program = ONNXProgram(proto, names, takes)
    if verbose:
        warnings.warn(onnx.printer.to_text(proto), stacklevel=user_depth())
    if verify:
        _verify(program, call, args, kwargs)
    if f is not None:
        program.save(f, external_data=external_data)
    return program


def _arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(args, Tensor) or not isinstance(args, (tuple, list)):
        args = (args,)
    args, kwargs = tuple(args), dict(kwargs or {})
    if args and isinstance(args[-1], dict) and not kwargs and _is_keywords(args[-1]):
        args, kwargs = args[:-1], dict(args[-1])
    return args, kwargs


def _is_keywords(given: dict[Any, Any]) -> bool:
    return all(isinstance(k, str) for k in given)


@contextlib.contextmanager
def _mode_of(model: Any, training: Any) -> Iterator[None]:
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


@contextlib.contextmanager
def _readable(proto: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ExportError(
            f"export: the file that was made breaks a rule of ONNX, which is a defect of webtorch: {error}"
        ) from error


# A model may halve a size several times: at sizes that are no multiple of this it may fail.
_STEPS = (1, 2, 4, 8, 16, 32, 64)


def _record_all(
    record_at: Callable[[Point], Recording], first: Point
) -> tuple[list[Point], list[Recording]]:
    """Record at the sizes of the example and at as many others as tell how results depend on them."""
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


def _take_apart(structure: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """Return the tensors in nested arguments, and a function that puts others in their place."""
    found: list[Tensor] = []

    def walk(x: Any) -> Callable[[list[Tensor]], Any]:
        """Note the tensors in x; return the function that builds x with others."""
        if isinstance(x, Tensor):
            index = len(found)
            found.append(x)
            return lambda new: new[index]
        if isinstance(x, (tuple, list)):
            parts = [walk(y) for y in x]
            if hasattr(x, "_fields"):
                return lambda new: type(x)(*(p(new) for p in parts))
            return lambda new: type(x)(p(new) for p in parts)
        if isinstance(x, dict):
            items = {k: walk(v) for k, v in x.items()}
            return lambda new: {k: p(new) for k, p in items.items()}
        return lambda new: x

    return found, walk(structure)


def _flat(x: Any) -> Iterator[Value]:
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


def _signature_names(function: Any, args: Any) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else f"input_{i}" for i in range(len(args))]


def _paths(function: Any, args: Any, kwargs: Any) -> list[tuple[Any, ...]]:
    """Return for each tensor its argument and its place inside it."""
    found: list[tuple[Any, ...]] = []

    def walk(x: Any, path: tuple[Any, ...]) -> None:
        """Note where the tensors in x are."""
        if isinstance(x, Tensor):
            found.append(path)
        elif isinstance(x, (tuple, list)):
            for i, y in enumerate(x):
                walk(y, (*path, i))
        elif isinstance(x, dict):
            for k, y in x.items():
                walk(y, (*path, k))

    for name, value in zip(_signature_names(function, args), args, strict=True):
        walk(value, (name,))
    for name, value in kwargs.items():
        walk(value, (name,))
    return found


def _input_names(function: Any, args: Any, kwargs: Any, given: Any) -> list[str]:
    made = ["_".join(map(str, path)) for path in _paths(function, args, kwargs)]
    names = list(given or ())
    if len(names) > len(made):
        raise ValueError(
            f"export: {len(names)} input_names for {len(made)} tensors in the arguments: {names}"
        )
    names += made[len(names) :]
    if len(set(names)) != len(names):
        raise ValueError(f"export: input_names must differ, got {names}")
    return names


Axes = dict[tuple[int, int], str]


def _axes(
    names: list[str], tensors: list[Tensor], dynamic_axes: Any, dynamic_shapes: Any, paths: Any
) -> Axes:
    """Return the symbol of each dynamic (tensor, dim)."""
    axes: Axes = {}

    def add(i: int, given: Any) -> None:
        """Note the symbols of one tensor's dims."""
        if given is None:
            return
        if isinstance(given, Mapping):
            items = list(given.items())
        else:
            items = [(d, s) for d, s in enumerate(given)]
        for d, symbol in items:
            if symbol is None or isinstance(symbol, int):
                continue
            rank = len(tensors[i].shape)
            if not -rank <= d < rank:
                raise ValueError(
                    f"export: dynamic axis {d} of {names[i]!r}, which has {rank} dimensions"
                )
            name = getattr(symbol, "__name__", None) or str(symbol)
            if not isinstance(symbol, str) and not name.isidentifier():
                name = f"{names[i]}_dim_{d % rank}"
            axes[i, d % rank] = name

    for key, given in (dynamic_axes or {}).items():
        if key not in names:
            continue  # an output's axes follow from the inputs'
        if not isinstance(given, Mapping):
            given = {d: f"{key}_dim_{d}" for d in given}
        add(names.index(key), given)
    if dynamic_shapes is not None:
        for i, path in enumerate(paths):
            given = dynamic_shapes
            if isinstance(given, (tuple, list)):
                order = list(dict.fromkeys(p[0] for p in paths))
                place = order.index(path[0])
                given = given[place] if place < len(given) else None
            else:
                given = given.get(path[0], given.get(names[i]))
            for part in path[1:]:
                if given is None:
                    break
                given = given[part] if not isinstance(given, Mapping) or part in given else None
            add(i, given)
    return axes


def _symbols(
    tensors: list[Tensor], names: list[str], axes: Axes
) -> tuple[Point, list[tuple[str, int]], list[str]]:
    """Return the sizes of the dynamic dimensions, where each is found, and their names."""
    owner: dict[str, tuple[int, int]] = {}
    for (i, d), symbol in axes.items():
        first = owner.setdefault(symbol, (i, d))
        size, other = tensors[first[0]].shape[first[1]], tensors[i].shape[d]
        if size != other:
            raise ValueError(
                f"export: the dynamic dimension {symbol!r} is {size} in {names[first[0]]!r} and {other} in "
                f"{names[i]!r}: give them different names"
            )
    if not owner:
        return (), [], []
    if len(owner) > MAX_VARIABLES + 1:
        raise ValueError(
            f"export: {len(owner)} dynamic dimensions {list(owner)}: at most {MAX_VARIABLES + 1} may vary on "
            "their own; give those that are equal one name"
        )
    # A size of 1 would look like one that is broadcast.
    point = tuple(max(int(tensors[i].shape[d]), 2) for i, d in owner.values())
    return point, [(names[i], d) for i, d in owner.values()], list(owner)


def _module_names(model: Any) -> dict[int, str]:
    roots = model if isinstance(model, Module) else getattr(model, "__self__", None)
    if not isinstance(roots, Module):
        return {}
    return {id(m): name for name, m in roots.named_modules()}


def _parameter_names(model: Any) -> dict[int, str]:
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


def _symbolic(rows: Sequence[tuple[int, ...]], points: list[Point], owner: list[str]) -> list[Any]:
    """Return a shape with the names of dynamic dimensions in place of sizes that follow them."""
    shape: list[Any] = []
    for d, size in enumerate(rows[0]):
        sizes = [r[d] for r in rows]
        if len(set(sizes)) == 1:
            shape.append(size)
            continue
        same = [s for k, s in enumerate(owner) if [p[k] for p in points] == sizes]
        shape.append(same[0] if same else None)
    return shape


def _type(dtype: DType) -> int:
    found = TYPES.get(dtype.name)
    if found is None:
        raise DTypeError(f"export: ONNX has no {dtype}; convert it first, as in x.float()")
    return int(found)


def _tensor(name: str, t: Tensor) -> Any:
    data = bytes(t._to_bytes())
    return helper.make_tensor(name, _type(t.dtype), list(t.shape), data, raw=True)


def _number(name: str, value: Any, dtype: DType) -> Any:
    kind = _type(dtype)
    if dtype.kind == "float":
        value = float(value)
        if dtype.name == "float32" and math.isfinite(value) and abs(value) > 3.4028234663852886e38:
            value = math.copysign(math.inf, value)
        code = {"float32": "<f", "float64": "<d", "float16": "<e"}.get(dtype.name)
        if code is not None:
            return helper.make_tensor(name, kind, [], struct.pack(code, value), raw=True)
        return helper.make_tensor(name, kind, [], [value])
    return helper.make_tensor(name, kind, [], [int(value)])


def _model(
    graph: Graph,
    names: list[str],
    tensors: list[Tensor],
    axes: Axes,
    outputs: list[Value],
    shapes: list[list[Any]],
    results: list[str],
    output_names: Any,
    opset: int,
    as_inputs: bool,
    export_params: bool,
) -> Any:
    wanted = list(output_names or ())
    if len(wanted) > len(outputs):
        raise ValueError(f"export: {len(wanted)} output_names for {len(outputs)} results: {wanted}")
    steps = _used(graph, results)
    made = {o for s in steps for o in s.outputs}
    titles = [
        *wanted,
        *(
            f"output_{i}" if len(outputs) > 1 else "output"
            for i in range(len(wanted), len(outputs))
        ),
    ]
    if len(set(titles)) != len(titles) or set(titles) & set(names):
        raise ValueError(f"export: names of inputs and outputs must differ: {names} and {titles}")
    # A result gets its output's name where it is made; one that is an input, a weight or another
    # result too is passed on.
    rename: dict[str, str] = {}
    extra = []
    for title, result in zip(titles, results, strict=True):
        if result in made and result not in rename:
            rename[result] = title
        else:
            extra.append((result, title))
    clash = (
        {n for s in steps for n in s.outputs}
        | set(graph.data)
        | set(graph.ints)
        | set(graph.numbers)
    )
    for title in titles:
        if title in clash and title not in rename:
            rename[title] = graph.fresh(title)

    def named(x: str) -> str:
        """Return a name of the graph, changed where it would clash."""
        return rename.get(x, x)

    nodes = []
    taken: dict[str, int] = {}
    for s in steps:
        attrs: dict[str, Any] = {
            k: TYPES[v] if s.op == "Cast" and k == "to" and v in TYPES else v
            for k, v in s.attrs.items()
        }
        if s.op == "Cast" and attrs["to"] not in TYPES.values():
            raise DTypeError(
                f"export: ONNX has no {attrs['to']}; convert it first, as in x.float()"
            )
        title = "/".join(["", *filter(None, s.scope.split(".")), s.op])
        taken[title] = taken.get(title, -1) + 1
        full = title if not taken[title] else f"{title}_{taken[title]}"
        nodes.append(
            helper.make_node(
                s.op, [named(x) for x in s.inputs], [named(x) for x in s.outputs], full, **attrs
            )
        )
    for result, title in extra:
        nodes.append(helper.make_node("Identity", [named(result)], [title], f"/{title}/Identity"))
    read = {x for s in steps for x in s.inputs} | {r for r, _ in extra}
    # What is no weight is written as a constant.
    initializers: list[Any] = []
    constants: list[Any] = []
    for name, t in graph.data.items():
        if name in read:
            (constants if name in graph.plain else initializers).append(_tensor(named(name), t))
    for name, ints in graph.ints.items():
        if name in read:
            shape = [] if ints.scalar else [len(ints.values)]
            data = struct.pack(f"<{len(ints.values)}q", *ints.values)
            constants.append(
                helper.make_tensor(named(name), TensorProto.INT64, shape, data, raw=True)
            )
    for name, (value, dtype) in graph.numbers.items():
        if name in read:
            constants.append(_number(named(name), value, dtype))
    nodes[:0] = [
        helper.make_node("Constant", [], [t.name], f"/{t.name}", value=t) for t in constants
    ]
    inputs = []
    for i, (name, t) in enumerate(zip(names, tensors, strict=True)):
        sizes = [axes.get((i, d), int(s)) for d, s in enumerate(t.shape)]
        inputs.append(helper.make_tensor_value_info(name, _type(t.dtype), sizes))
    if as_inputs or not export_params:
        inputs += [
            helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in initializers
        ]
    if not export_params:
        given = {named(n) for n in graph.data}
        initializers = [t for t in initializers if t.name not in given]
    results_info = [
        helper.make_tensor_value_info(title, _type(v.dtype), shape)
        for title, v, shape in zip(titles, outputs, shapes, strict=True)
    ]
    proto = helper.make_model(
        helper.make_graph(nodes, "main_graph", inputs, results_info, initializers),
        opset_imports=[helper.make_opsetid("", opset)],
        producer_name="webtorch",
    )
    proto.ir_version = next(v for o, v in reversed(_IR_VERSIONS) if opset >= o)
    return proto


def _used(graph: Graph, results: Sequence[str]) -> list[Any]:
    """Return the nodes that the results need."""
    needed = set(results)
    kept = []
    for s in reversed(graph.steps):
        if needed & set(s.outputs):
            needed.update(s.inputs)
            kept.append(s)
    return kept[::-1]


def _verify(program: ONNXProgram, call: Any, args: Any, kwargs: Any) -> None:
    with webtorch.no_grad():
        expected = call(*args, **kwargs)
    tensors, _ = _take_apart(expected)
    for number, (found, wanted) in enumerate(zip(program(*args, **kwargs), tensors, strict=True)):
        if not webtorch.allclose(found.double(), wanted.cpu().double(), rtol=1e-3, atol=1e-4):
            raise ExportError(
                f"export: output {number} in onnxruntime differs from that of the model"
            )
