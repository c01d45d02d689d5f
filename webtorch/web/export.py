"""Writes functions and modules as a page that runs them in a browser. Floor 6; may import what is below, and io.

A function is captured without being run, and its graph is compiled for the limits of browsers,
whatever device it was captured on. Several functions (train, eval, infer) share kernels,
parameters and state. The folder holds `program.json` (webtorch.web.program_json), `software.json`
(the kernels that software adapters want),
`weights.safetensors` (what is in memory now: parameters, optimizer state),
`examples.safetensors` (inputs to try), `native.json` (the programs for `webtorch check`), `runtime.js`, and a page.
Any static server will do.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from webtorch.capture.compiled import function_of
from webtorch.capture.step import CompiledFunction
from webtorch.capture.trace import Capture, Returned, compile_never
from webtorch.errors import CaptureError, DTypeError, KernelError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.functions.random import default_generator
from webtorch.io.safetensors import RawTensor
from webtorch.ir.dtype import by_name
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.ir.view import is_contiguous, numel
from webtorch.lower.compiler import compile_graph
from webtorch.lower.layout import binding_bytes, device_bytes, uniform_type
from webtorch.nn import Module
from webtorch.optim import Optimizer
from webtorch.runtime.backends import webassembly
from webtorch.runtime.realize import freeze, open_runtimes, to_graph
from webtorch.tensors.attention import for_pages
from webtorch.tensors.device import device_of
from webtorch.tensors.host import HostScalar, RandomOffset
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import no_grad
from webtorch.tensors.tensor import Tensor
from webtorch.web.program_json import (
    BROWSER_LIMITS,
    SOFTWARE_LIMITS,
    Json,
    Kernels,
    compile_for_page,
    needed_limits,
    short_line,
    steps_json,
)
from webtorch.web.settings import Settings
from webtorch.web.site import write_site

FORMAT = "webtorch program"
VERSION = 2
# Names that runtime.js gives to other things.
_RESERVED = frozenset(
    (
        "set", "get", "state", "loadState", "save", "resume", "forget", "profile", "run", "destroy", "title",
        "program", "device", "deviceName", "reason", "functions", "settings", "resumed", "constructor", "then", "post",
        "ask", "begin", "fail", "answered", "port", "close", "waiting", "next", "gone",
    )
)  # fmt: skip

Function: TypeAlias = CompiledFunction | Capture | Callable[..., Any]
Batch: TypeAlias = Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(slots=True)
class Exported:
    """What the files of an export hold."""

    program: Json
    weights: dict[str, RawTensor]
    examples: dict[str, RawTensor] = field(default_factory=dict)
    # What stands in for the program's own "functions", "kernels" and "limits" on a software adapter.
    software: Json = field(default_factory=dict)
    # By function: the planned program as `Program.to_json` writes it, and where its inputs come from.
    native: Json = field(default_factory=dict)
    # The code for the processor, and the constants in its memory.
    code: bytes = b""
    constants: bytes = b""


def export(
    what: Function | Mapping[str, Function],
    path: str | os.PathLike[str],
    example_inputs: Any = None,
    *,
    name: str | None = None,
    inputs: Any = None,
    outputs: Any = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    examples: Any = (),
    labels: Sequence[str] | None = None,
    vocabulary: Sequence[str] | None = None,
    title: str | None = None,
    half: bool = False,
    single_file: bool = False,
    cpu: bool | None = None,
    limits: Limits = BROWSER_LIMITS,
) -> Path:
    """Write a page that runs `what` on WebGPU in a browser tab, and return the folder (or file).

    `what` is a function of tensors (a whole training step, say), a Module, which is exported in its
    evaluation mode as `infer`, or a dict {"train": step, "infer": model} of several that share
    their parameters. All this may be PyTorch's too: functions of `torch.Tensor`s (whose models are on
    "webgpu"), modules, and what `torch.export.export` returned, which needs no example inputs.

    `example_inputs` are the arguments of a call (a tuple or one tensor, or a dict
    of keyword arguments); with several functions a dict of these by function. The function is
    captured for their shapes and types; it is not run and changes nothing. What
    `webtorch.compile` returned, called before, needs none.

    In the page a function has its own name (`name` gives one function another) and that of its
    arguments: `def train(x, y)` is `await m.train({x, y})`. `inputs` renames the tensors that it
    takes, `outputs` those that it returns (default: the keys of a returned dict, else "out", "out1",
    ...). `state` names modules, optimizers and tensors in the weights file; those that the function itself refers to
    need not be given. `examples` are batches for the page to run on, by default the example inputs.
    `inputs`, `outputs` and `examples` are dicts by function where there are several. `labels` are
    the names of a classifier's classes, `vocabulary` the characters (or tokens) of integer inputs:
    they let the page show samples and take text. `half` stores parameters in 16 bits;
    `single_file` writes one HTML file that needs no server. `cpu` adds WebAssembly for tabs without
    WebGPU, by default where llvmlite is there to write it and the program has nothing that only
    WebGPU does.

    Raises CaptureError for a function that a program cannot repeat or that writes into its
    arguments, DTypeError for float64 and complex numbers, OverflowError for constants beyond 32 bits, ShapeError for an
    example of another shape.
    """
    several = isinstance(what, Mapping)
    functions: dict[str, Any]
    functions = dict(what) if isinstance(what, Mapping) else {name or _name(what): what}
    functions = {key: function_of(value) for key, value in functions.items()}
    if several and name is not None:
        raise ValueError("export: with several functions, the keys are their names; drop name=")
    if not functions:
        raise ValueError("export: there is nothing to export: the dict of functions is empty")

    def each(given: Any, absent: Any, parameter: str) -> dict[str, Any]:
        """Return one value for each function: the same, those of a dict, or `absent`."""
        if not several:
            return dict.fromkeys(functions, absent if given is None else given)
        if not given:
            return dict.fromkeys(functions, absent)
        if not isinstance(given, Mapping) or not set(given) <= set(functions):
            raise ValueError(
                f"export: {parameter} must be a dict with keys among {list(functions)}, got {given!r}"
            )
        return {key: given.get(key, absent) for key in functions}

    wanted = each(example_inputs, None, "example_inputs")
    batches = each(examples, (), "examples")
    names: dict[int, tuple[str, tuple[int, ...]]] = {}
    arguments: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    captured: dict[str, CompiledFunction | Capture]
    bridge = _bridge(functions, wanted)
    if bridge is None:
        captured = {key: _captured(value, key, wanted[key]) for key, value in functions.items()}
        for key, call in wanted.items():
            if call is not None and not batches[key]:
                batches[key] = [call if isinstance(call, (Mapping, tuple, list)) else (call,)]
    else:
        found = bridge.capture_all(functions, wanted, batches, state)
        captured, arguments, names = dict(found.functions), found.arguments, found.names
        batches, state = found.examples, None
    exported = export_all(
        captured,
        arguments=arguments,
        names=names,
        inputs=each(inputs, None, "inputs"),
        outputs=each(outputs, None, "outputs"),
        state=state,
        title=title,
        limits=limits,
        half=half,
        cpu=cpu,
    )
    for key, given in batches.items():
        for part in (exported.program, exported.software):
            exported.examples.update(_examples(part["functions"][key], key, given))
    exported.program["labels"] = [str(x) for x in labels] if labels is not None else None
    exported.program["vocabulary"] = list(vocabulary) if vocabulary is not None else None
    return write_site(
        Path(path), exported.program, exported.weights, exported.examples, exported.native,
        {} if single_file else exported.software, code=exported.code, constants=exported.constants,
        single_file=single_file,
    )  # fmt: skip


def export_json(
    step: CompiledFunction | Capture,
    *,
    name: str = "step",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    limits: Limits = BROWSER_LIMITS,
) -> Exported:
    """Return what `export` writes for one captured function, without writing it."""
    return export_all(
        {name: function_of(step)},
        inputs={name: inputs},
        outputs={name: outputs},
        state=state,
        limits=limits,
    )


def export_pending(results: Sequence[Any]) -> Exported:
    """Return the program that computes `results`, which are pending; its outputs are "0", "1", ..."""
    runtime = results[0]._storage.runtime
    owners = list({id(t._storage): t._storage for t in results}.values())
    pending = [s for s in owners if s.node.kind != "buffer"]
    for owner in pending:
        owner.donor = None
    frozen = freeze(pending)
    number = {id(s): i for i, s in enumerate(pending)}
    result = {
        str(i): Returned(number.get(id(t._storage)), t._shape, t._strides, t._offset, t._storage)
        for i, t in enumerate(results)
    }
    sources: list[int | Storage] = [Storage(node, runtime) for node in frozen.inputs]
    executable: Any = None  # nothing runs it
    captured = Capture(
        runtime, to_graph(frozen), executable, sources, [False] * len(sources),
        list(range(len(pending))), [s.node.shape for s in pending], frozen.args, [], [], result,
    )  # fmt: skip
    return export_json(captured, name="compute")


def export_all(
    steps: Mapping[str, CompiledFunction | Capture],
    *,
    inputs: Mapping[str, Sequence[str] | None],
    outputs: Mapping[str, Sequence[str] | None],
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    title: str | None = None,
    limits: Limits = BROWSER_LIMITS,
    half: bool = False,
    cpu: bool | None = False,
    arguments: Mapping[str, list[tuple[str, tuple[int, ...]]]] | None = None,
    names: Mapping[int, tuple[str, tuple[int, ...]]] | None = None,
) -> Exported:
    """Return what `export` writes for captured functions, without writing it.

    `arguments` are names and shapes of what captures take, `names` those of storages in the weights
    file, by id, where they are not known from `state` and the functions themselves.
    """
    found = dict(state or {})
    captures: dict[str, Capture] = {}
    for name, step in steps.items():
        if not re.fullmatch(r"[A-Za-z_$][\w$]*", name, re.ASCII) or name in _RESERVED:
            raise ValueError(
                f"export: {name!r} cannot be the name of a function in the page; use a name like 'train'"
            )
        captures[name] = step.latest() if isinstance(step, CompiledFunction) else step
        if isinstance(step, CompiledFunction):
            for key, value in _referred(step.function).items():
                if all(value is not v for v in found.values()):
                    found.setdefault(key, value)
    kinds = {c.runtime for c in captures.values()}
    if len(kinds) > 1:
        raise CaptureError(
            "export: the functions compute on several devices; move all of them to one first"
        )
    modules = {k: v for k, v in found.items() if isinstance(v, Module)}
    narrow = {*_storage_names(modules), *(names or ())} if half else set()
    page = _Page(captures, {**_storage_names(found), **(names or {})}, narrow, cpu)
    software = SOFTWARE_LIMITS if limits is BROWSER_LIMITS else replace(limits, is_gpu=False)
    # Processors that run the invocations of a workgroup one by one want other kernels than graphics cards.
    variants = _Variant(limits), _Variant(software)
    for name, step in steps.items():
        tensors: list[tuple[str, tuple[int, ...]]] = []
        numbers: list[str] = []
        if isinstance(step, CompiledFunction):
            tensors, numbers = _argument_names(step)
        elif arguments:
            tensors = arguments[name]
        renamed = inputs[name]
        if renamed is not None:
            if tensors and len(renamed) != len(tensors):
                raise ValueError(
                    f"export: {name} takes {len(tensors)} tensors, {len(renamed)} names were given: {list(renamed)}"
                )
            tensors = [(key, shape) for key, (_, shape) in zip(renamed, tensors)] or [
                (key, ()) for key in renamed
            ]
        for variant in variants:
            _Export(page, variant, name, captures[name]).finish(tensors, numbers, outputs[name])
    first = next(iter(steps))
    return page.finish(title or _title(steps[first], first), *variants)


def _bridge(functions: Mapping[str, Any], calls: Mapping[str, Any]) -> Any:
    """Return what captures functions of PyTorch tensors, where these are some; else None."""
    if "torch" not in sys.modules:
        return None
    if any(isinstance(f, (CompiledFunction, Capture, Module)) for f in functions.values()):
        return None
    try:
        from webtorch.pytorch import export as bridge
    except ImportError:
        # What is called torch is this package.
        return None
    given = [bridge.is_pytorch(f, calls[name]) for name, f in functions.items()]
    return bridge if any(given) else None


def _name(what: Any) -> str:
    """Return the name that a function has in the page when none is given."""
    what = function_of(what)
    if isinstance(what, CompiledFunction):
        what = what.function
    if isinstance(what, Module) or hasattr(what, "graph_signature") or hasattr(what, "state_dict"):
        return "infer"
    name = str(getattr(what, "__name__", "step"))
    return name if name.isidentifier() and name not in _RESERVED else "step"


def _captured(what: Any, name: str, call: Any) -> CompiledFunction | Capture:
    """Return a function that holds the capture of `call`; the function computes nothing for it."""
    if call is None:
        if isinstance(what, (CompiledFunction, Capture)):
            return what
        raise TypeError(
            f"export: {name} needs example_inputs, the arguments of a call, so that shapes and types are known"
        )
    function = what.function if isinstance(what, CompiledFunction) else what
    if not callable(function):
        raise TypeError(f"export: {name} must be a function or a Module, got {type(what).__name__}")
    compiled = CompiledFunction(function, device="meta")
    compiled.compiler = compile_never
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(call, Mapping):
        kwargs = dict(call)
    elif isinstance(call, (tuple, list)):
        args = tuple(call)
    else:
        args = (call,)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(for_pages())
        warnings.simplefilter("ignore")
        if isinstance(function, Module):
            stack.enter_context(_evaluating(function))
        # A step whose optimizer begins with what it computes runs once as usual, and is captured then.
        for _ in range(2):
            before = _Before(function)
            compiled(*args, **kwargs)
            if compiled.captures:
                return compiled
            before.restore(name)
    raise CaptureError(
        f"export: {name} cannot be repeated as a program; webtorch.compile of it warns why"
    )


class _Before:
    """What a function refers to, as it was before a call."""

    def __init__(self, function: Any) -> None:
        referred = _referred(function).values()
        self.optimizers = [v for v in referred if isinstance(v, Optimizer)]
        tensors = [v for v in referred if isinstance(v, Tensor)]
        for module in (v for v in referred if isinstance(v, Module)):
            tensors += [*module.parameters(), *module.buffers()]
        for optimizer in self.optimizers:
            tensors += [p for group in optimizer.param_groups for p in group["params"]]
            tensors += [t for _, _, t in _states(optimizer)]
        self.known = {id(t) for t in tensors}
        self.generators = [default_generator(device_of(r)) for r in open_runtimes()]
        self.offsets = [g._offset for g in self.generators]
        with no_grad():
            self.values = [(t, t.detach().clone(), t._grad) for t in tensors]

    def restore(self, name: str) -> None:
        """Give everything back; state that optimizers began meanwhile is as it begins."""
        with no_grad():
            for tensor, value, grad in self.values:
                tensor.detach().copy_(value)
                tensor._grad = grad
            for optimizer in self.optimizers:
                for param, key, tensor in _states(optimizer):
                    if id(tensor) in self.known:
                        continue
                    if not optimizer._takes_back:
                        optimizer.state.clear()
                        raise CaptureError(
                            f"export: {name}: {type(optimizer).__name__} treats its first step in "
                            "another way than the next; take one step before the export"
                        )
                    tensor.copy_(webtorch.full_like(tensor, optimizer._beginning((id(param), key))))
        for generator, offset in zip(self.generators, self.offsets):
            generator._offset = offset


def _states(optimizer: Optimizer) -> list[tuple[Tensor, str, Tensor]]:
    """Return parameter, name and value of each state of an optimizer that is a tensor."""
    return [
        (param, key, value)
        for param, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    ]


@contextlib.contextmanager
def _evaluating(module: Module) -> Iterator[None]:
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with no_grad():
            yield
    finally:
        for m, training in modes:
            m.training = training


@dataclass(slots=True)
class _Variant:
    """The functions of an export, compiled for one kind of adapter."""

    limits: Limits
    kernels: Kernels = field(default_factory=Kernels)
    needed: dict[str, int] = field(default_factory=dict)
    functions: Json = field(default_factory=dict)
    native: Json = field(default_factory=dict)

    def data(self) -> Json:
        """Return what stands in program.json."""
        return {"limits": self.needed, "kernels": self.kernels.items, "functions": self.functions}


class _Page:
    """What the functions of an export share: states and settings."""

    def __init__(
        self,
        captures: Mapping[str, Capture],
        names: dict[int, tuple[str, tuple[int, ...]]],
        narrow: set[int],
        cpu: bool | None,
    ) -> None:
        self.captures = captures
        self.names = names
        # Storages whose contents are stored in 16 bits.
        self.narrow = narrow
        # The program for the processor, or None and why there is none.
        self.cpu, self.without = _cpu_page(cpu)
        self.cpu_wanted = bool(cpu)
        self.states: list[Json] = []
        self.weights: dict[str, RawTensor] = {}
        self.numbers: dict[int, int] = {}
        numbers = [v for c in captures.values() for v in c.args if isinstance(v, HostScalar)]
        self.settings = Settings(numbers)
        # What any of the functions reads again.
        self.read = {
            id(s) for c in captures.values() for s in c.sources if isinstance(s, Storage)
        } | set(names)

    def state(self, storage: Storage, backend: Any) -> int:
        """Return the number of a state, adding its present contents to the weights when it is new."""
        found = self.numbers.get(id(storage))
        if found is not None:
            return found
        number = self.numbers[id(storage)] = len(self.states)
        node = storage.realize()
        elements = numel(node.shape)
        name, shape = self.names.get(id(storage), (f"state.{number}", (elements,)))
        if name in self.weights:
            name = f"{name}.{number}"
        data = bytes(backend.download(node.buffer))
        self.weights[name] = self._stored(shape, node.dtype.name, data, storage)
        self.states.append(
            {
                "name": name,
                "dtype": node.dtype.name,
                "shape": list(shape),
                "bytes": binding_bytes(node.dtype, elements),
            }
        )
        return number

    def _stored(
        self, shape: tuple[int, ...], dtype: str, data: bytes, storage: Storage
    ) -> RawTensor:
        if dtype == "float32" and id(storage) in self.narrow:
            values = struct.unpack(f"<{len(data) // 4}f", data)
            # What does not fit, and infinities, stay as they are.
            if all(abs(v) < 65504 for v in values):
                return RawTensor("float16", shape, struct.pack(f"<{len(values)}e", *values))
        return RawTensor(dtype, shape, data)

    def finish(self, title: str, plain: _Variant, software: _Variant) -> Exported:
        """Return the finished export."""
        runtime = next(iter(self.captures.values())).runtime
        program: Json = {
            "format": FORMAT,
            "version": VERSION,
            "title": title,
            "settings": {k: _number(v) for k, v in self.settings.values.items()},
            # As text: it has 64 bits.
            "random": str(default_generator(device_of(runtime))._offset),
            "states": self.states,
            **plain.data(),
        }
        exported = Exported(program, self.weights, {}, software.data(), plain.native)
        if self.cpu is not None:
            try:
                for number, state in enumerate(self.states):
                    self.cpu.state(
                        number, numel(tuple(state["shape"])) * by_name(state["dtype"]).itemsize
                    )
                program["cpu"], module, exported.constants = self.cpu.finish()
                exported.code = module.code
            except KernelError as error:
                self.give_up(error)
        if self.cpu is None:
            program["cpu"] = self.without
            for function in plain.functions.values():
                function.pop("cpu", None)
        return exported

    def give_up(self, error: Exception) -> None:
        """Leave the program for the processor out, unless it was asked for."""
        if self.cpu_wanted:
            raise error
        self.cpu, self.without = None, str(error)


def _cpu_page(wanted: bool | None) -> tuple[Any, str]:
    """Return what collects the program for the processor, or None and why there is none."""
    if wanted is False:
        return None, "it was exported without one"
    try:
        writer = webassembly()
        if writer.available():
            return writer.Page(), ""
        why = "llvmlite, which writes it, was not installed (pip install numba)"
    except ImportError as error:
        why = f"what writes it was not installed (pip install numpy numba): {error}"
    if wanted:
        raise ImportError(f"export: cpu=True: {why}")
    return None, why


class _Export:
    """One function on its way into the page."""

    def __init__(self, page: _Page, variant: _Variant, name: str, captured: Capture) -> None:
        self.page = page
        self.variant = variant
        self.name = name
        self.captured = captured
        self.kept = self._kept()
        graph = replace(captured.graph, outputs=tuple(captured.graph.outputs[k] for k in self.kept))
        self.graph = graph
        self.layout = layout = compile_for_page(graph, variant.limits)
        self.program: Program = layout.program
        self.steps = steps_json(layout, variant.kernels)
        # What each piece of memory is, and its bytes.
        self.nbytes = [p.nbytes for p in layout.memory.pieces]
        self.memory: list[Json] = [{"own": n} for n in self.nbytes]

    def _kept(self) -> list[int]:
        """Return the outputs that matter: returned, or read by a later call, or part of the model.

        Gradients left in `.grad`, for example, are neither.
        """
        captured = self.captured
        if any(isinstance(s, int) and d for s, d in zip(captured.sources, captured.donated)):
            raise CaptureError(
                "export: the function writes into one of its arguments; return the new value instead"
            )
        returned = {id(r.storage) for _, r in _leaves(captured.result) if isinstance(r, Returned)}
        if any(id(storage) in returned for storage, _ in captured.arguments):
            raise CaptureError(
                "export: the function returns one of its arguments, or a view of it, as it is: return "
                "a copy, as in x.t().clone()"
            )
        wanted = self.page.read | returned
        numbers = {r.number for _, r in _leaves(captured.result) if isinstance(r, Returned)}
        return [k for k, t in enumerate(captured.targets) if k in numbers or id(t) in wanted]

    def finish(
        self,
        inputs: list[tuple[str, tuple[int, ...]]],
        numbers: list[str],
        outputs: Sequence[str] | None,
    ) -> None:
        """Add the finished function to the page."""
        arguments = self._arguments(inputs)
        updates = self._updates()
        args, defaults = self._args(numbers)
        returns, constants = self._returns(updates, outputs)
        layout = self.layout
        self.variant.functions[self.name] = {
            "arguments": arguments,
            "numbers": defaults,
            "memory": self.memory,
            "args": args,
            "uniform": {
                "bytes": layout.uniform_bytes,
                "fields": [(f.offset, f.argument) for f in layout.fields],
            },
            "steps": self.steps,
            "updates": [[number, entry] for number, entry in updates.items()],
            "returns": returns,
            "constants": constants,
            "sites": _sites(self.program),
            "status": layout.has_status,
            "draws": str(self.captured.random_count),
            # Whether a call changes the state.
            "writes": any(isinstance(self.captured.targets[k], Storage) for k in self.kept),
        }
        if self.page.cpu is not None and self.variant.limits.is_gpu:
            try:
                self.variant.functions[self.name]["cpu"] = self._cpu(self.page.cpu, arguments)
            except (DTypeError, KernelError) as error:
                self.page.give_up(error)
        for limit, value in needed_limits(layout, self.variant.limits).items():
            self.variant.needed[limit] = max(value, self.variant.needed.get(limit, 0))
        self.variant.native[self.name] = {
            "program": self.program.to_json(),
            # The memory entries of the program's inputs are the first ones; those of its outputs:
            "outputs": list(layout.memory.outputs),
        }

    def _state(self, storage: Storage) -> int:
        return self.page.state(storage, self.captured.runtime.backend)

    def _arguments(self, given: list[tuple[str, tuple[int, ...]]]) -> list[Json]:
        """Name the arguments and place them, and the states that the program reads, in its memory."""
        arguments: list[Json] = []
        for entry, (source, buffer) in enumerate(zip(self.captured.sources, self.program.inputs)):
            if isinstance(source, Storage):
                self.memory[entry] = {"state": self._state(source)}
                continue
            declared = self.program.buffers[buffer]
            node = [n for n in self.captured.graph.nodes if n.kind == "buffer"][entry]
            name, shape = given[source] if source < len(given) else (f"x{source}", node.shape)
            # A computed tensor's memory is flat, or has the shape in which it was first made.
            shape = shape if numel(shape) == node.elements else node.shape
            self.memory[entry] = {"argument": len(arguments), "bytes": self.nbytes[entry]}
            arguments.append(
                {
                    "name": name,
                    "number": source,
                    "shape": list(shape),
                    "dtype": declared.dtype.name,
                    "kind": _kind(declared.dtype.name, tuple(shape)),
                    "entry": entry,
                }
            )
        arguments.sort(key=lambda a: a["number"])
        for position, argument in enumerate(arguments):
            self.memory[argument["entry"]]["argument"] = position
        if len({a["name"] for a in arguments}) < len(arguments):
            raise ValueError(f"export: two inputs have one name: {[a['name'] for a in arguments]}")
        return arguments

    def _cpu(self, page: Any, arguments: list[Json]) -> Json:
        """Return the function for the processor. What is new is copied into the states: nothing moves."""
        writer = webassembly()
        captured = self.captured
        program = compile_graph(self.graph, writer.LIMITS)
        numbers = {
            buffer: self._state(source)
            for source, buffer in zip(captured.sources, program.inputs, strict=True)
            if isinstance(source, Storage)
        }
        function = writer.lay_out(program, page, numbers)

        def bytes_of(storage: Storage) -> int:
            """Return how many bytes a storage has."""
            node = storage.realize()
            return numel(node.shape) * node.dtype.itemsize

        # Values that lie in a state are copied aside first: that state may get another one.
        moves: list[tuple[int, int, int]] = []
        aside: list[tuple[int, int, int]] = []
        for k, source in zip(self.kept, function.results, strict=True):
            target = captured.targets[k]
            if isinstance(target, int):
                continue
            nbytes = bytes_of(target)
            to = page.state(self._state(target), nbytes)
            if source == to:
                continue
            if source in page.states.values():
                room = page.memory.allocate(nbytes, stays=True)
                aside.append((source, room, nbytes))
                source = room
            moves.append((source, to, nbytes))
        for source, to, nbytes in (*aside, *moves):
            function.calls += [writer.COPY, to, source, nbytes]
            function.names.append("copy")
        returns = []
        for _, leaf in _leaves(captured.result):
            if not isinstance(leaf, Returned):
                continue
            returned = None if leaf.number is None else captured.targets[leaf.number]
            if isinstance(returned, int):
                returns.append(function.results[self.kept.index(returned)])
                continue
            storage = leaf.storage if returned is None else returned
            assert storage is not None
            returns.append(page.state(self._state(storage), bytes_of(storage)))
        return {
            "inputs": [function.places[a["entry"]] for a in arguments],
            "calls": function.calls,
            "patches": function.patches,
            "names": function.names,
            "status": function.status,
            # Kernels of its own number them.
            "sites": _sites(program),
            "returns": returns,
        }

    def _own(self, nbytes: int) -> int:
        self.memory.append({"own": nbytes})
        self.nbytes.append(nbytes)
        return len(self.memory) - 1

    def _updates(self) -> dict[int, int]:
        """Return the memory entry that each state has as its value after a run.

        Several states may get one value, and a state another state's old one: those are copied
        first, so that what follows is an exchange of buffers only.
        """
        updates: dict[int, int] = {}
        claimed: set[int] = set()
        for k, entry in zip(self.kept, self.layout.memory.outputs):
            target = self.captured.targets[k]
            if isinstance(target, int):
                continue
            number = self._state(target)
            place = self.memory[entry]
            if place.get("state") == number:
                claimed.add(entry)
                continue
            if "own" not in place or entry in claimed:
                nbytes = self.nbytes[entry]
                fresh = self._own(nbytes)
                self.steps.append({"copy": [entry, fresh, nbytes]})
                entry = fresh
            claimed.add(entry)
            updates[number] = entry
        return updates

    def _args(self, numbers: list[str]) -> tuple[list[Json], list[Json]]:
        """Return where each runtime argument comes from, and the float arguments of the function."""
        values = [*self.captured.args, *self.layout.constants]
        settings = self.page.settings
        defaults: dict[str, Json] = {}
        args: list[Json] = []
        for kind, value in zip(map(uniform_type, self.layout.types), values):
            entry: Json = {"type": kind}
            if isinstance(value, RandomOffset):
                entry["random"] = [str(value.relative), value.word]
            elif isinstance(value, HostScalar):
                terms = settings.terms(value)
                key = str(value.key)
                position = key[1:]
                if terms is not None:
                    entry["terms"] = [[_number(c), list(names)] for c, names in terms]
                elif key.startswith("n") and position.isdigit() and int(position) < len(numbers):
                    # A float argument of the function itself.
                    name = numbers[int(position)]
                    defaults[name] = {"name": name, "value": _number(value.read())}
                    entry["terms"] = [[1, [name]]]
                else:
                    entry["value"] = _number(value.read())
            else:
                entry["value"] = _number(_fitting(value, kind))
            args.append(entry)
        return args, list(defaults.values())

    def _returns(
        self, updates: dict[int, int], names: Sequence[str] | None
    ) -> tuple[list[Json], Json]:
        """Say where the returned tensors lie, and what else is returned."""
        leaves = _leaves(self.captured.result)
        tensors = [leaf for _, leaf in leaves if isinstance(leaf, Returned)]
        if names is not None and len(names) != len(tensors):
            raise ValueError(
                f"export: the function returns {len(tensors)} tensors, {len(names)} names were given: {list(names)}"
            )
        given = iter(names or ())
        returns: list[Json] = []
        constants: Json = {}
        for path, leaf in leaves:
            if not isinstance(leaf, Returned):
                if leaf is None or isinstance(leaf, (bool, int, str)):
                    constants[path] = leaf
                elif isinstance(leaf, float):
                    constants[path] = _number(leaf)
                continue
            if leaf.dtype is not None and leaf.dtype.is_complex:
                raise DTypeError(
                    f"export: the result {path!r} is {leaf.dtype.name}, and pages give real numbers: "
                    "return webtorch.view_as_real(x)"
                )
            entry, dtype, elements = self._entry_of(leaf, updates)
            returns.append(
                {
                    "name": next(given, path),
                    "entry": entry,
                    "bytes": -(-device_bytes(dtype, elements) // 4) * 4,
                    "dtype": dtype.name,
                    "shape": list(leaf.shape),
                    "strides": list(leaf.strides),
                    "offset": leaf.offset,
                }
            )
        return returns, constants

    def _entry_of(self, leaf: Returned, updates: dict[int, int]) -> tuple[int, Any, int]:
        target = None if leaf.number is None else self.captured.targets[leaf.number]
        if isinstance(target, int):
            position = self.kept.index(target)
            declared = self.program.buffers[self.program.outputs[position]]
            return self.layout.memory.outputs[position], declared.dtype, declared.elements
        storage = leaf.storage if target is None else target
        assert storage is not None
        number = self._state(storage)
        node = storage.realize()
        elements = numel(node.shape)
        if number in updates:
            return updates[number], node.dtype, elements
        for entry, place in enumerate(self.memory):
            if place.get("state") == number:
                return entry, node.dtype, elements
        entry = self._own(0)
        self.memory[entry] = {"state": number}
        return entry, node.dtype, elements


def _sites(program: Program) -> list[list[Any]]:
    """Return what an index out of range says, by the number that a kernel reports."""
    return [[s.op, s.dim, s.size, short_line(s.line)] for s in program.sites]


def _number(value: float) -> float | int | str:
    """Return a number as JSON has it: infinities and NaN as the text that JavaScript's Number() reads."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _fitting(value: float, kind: str) -> float:
    """Return a fixed argument, checked. Raises OverflowError for an integer beyond 32 bits."""
    if kind == "f32":
        return float(value)
    low, high = (-(1 << 31), (1 << 31) - 1) if kind == "i32" else (0, (1 << 32) - 1)
    if not low <= value <= high:
        raise OverflowError(
            f"export: the number {value} does not fit 32 bits, which is what integers have on WebGPU"
        )
    return int(value)


def _leaves(x: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of a returned structure with their names in the page."""
    if isinstance(x, dict):
        return [
            leaf for k, v in x.items() for leaf in _leaves(v, f"{path}.{k}" if path else str(k))
        ]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return _leaves(dict(zip(x._fields, x)), path)
    if isinstance(x, (list, tuple)):
        names = [f"{path}.{i}" if path else f"out{i or ''}" for i in range(len(x))]
        return [leaf for name, v in zip(names, x) for leaf in _leaves(v, name)]
    return [(path or "out", x)]


def _argument_names(step: CompiledFunction) -> tuple[list[tuple[str, tuple[int, ...]]], list[str]]:
    """Return name and shape of the latest signature's tensor arguments, and the names of the floats."""
    positional, keywords = step.latest_arguments()
    tensors: list[tuple[str, tuple[int, ...]]] = []
    numbers: list[str] = []

    def visit(signature: Any, name: str) -> None:
        """Note the tensors and numbers of a signature under their names."""
        if signature == "float":
            numbers.append(name)
        elif isinstance(signature, tuple) and signature and signature[0] == "tensor":
            if signature[2].is_complex:
                raise DTypeError(
                    f"export: {name!r} is {signature[2].name}, and pages take real numbers: pass "
                    "webtorch.view_as_real(x), and call webtorch.view_as_complex in the function"
                )
            tensors.append((name, tuple(signature[1])))
        elif isinstance(signature, tuple) and signature and signature[0] is dict:
            for key, value in signature[1:]:
                visit(value, f"{name}.{key}" if name else str(key))
        elif isinstance(signature, tuple) and signature and isinstance(signature[0], type):
            for i, value in enumerate(signature[1:]):
                visit(value, f"{name}.{i}")

    function = step.function.forward if isinstance(step.function, Module) else step.function
    parameters = list(inspect.signature(function).parameters.values())
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "x")
    for i, signature in enumerate(positional[1:]):
        visit(signature, known[i] if i < len(known) else f"{rest}.{i - len(known)}")
    visit(keywords, "")
    return tensors, numbers


def _referred(function: Any) -> dict[str, Any]:
    """Return the modules, optimizers and tensors that a function refers to by name."""
    if isinstance(function, Module):
        return {"": function}
    found: dict[str, Any] = {}
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Module):
        found[""] = owner
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except TypeError:
        return found
    for name, value in (*variables.nonlocals.items(), *variables.globals.items()):
        value = function_of(value)
        if isinstance(value, CompiledFunction):
            value = value.function
        if isinstance(value, (Module, Optimizer, Tensor)):
            found[name] = value
    return found


def _storage_names(found: Mapping[str, Any]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return the name and shape in the weights file of each storage that a module, optimizer or tensor owns."""
    names: dict[int, tuple[str, tuple[int, ...]]] = {}
    taken: set[str] = set()

    def add(name: str, tensor: Tensor) -> None:
        """Name a tensor's storage, if neither the storage nor the name is taken."""
        storage = tensor._storage
        if id(storage) in names or name in taken:
            return
        whole = tensor._whole and is_contiguous(tensor._shape, tensor._strides)
        names[id(storage)] = name, tuple(tensor._shape) if whole else (storage.elements,)
        taken.add(name)

    for prefix, value in found.items():
        dot = f"{prefix}." if prefix else ""
        if isinstance(value, Module):
            for name, tensor in (*value.named_parameters(), *value.named_buffers()):
                add(dot + name, tensor)
        elif isinstance(value, Tensor):
            add(prefix, value)
    for prefix, value in found.items():
        if not isinstance(value, Optimizer):
            continue
        number = 0
        for group in value.param_groups:
            for param in group["params"]:
                name = names.get(id(param._storage), (str(number), ()))[0]
                number += 1
                for key, tensor in value.state.get(param, {}).items():
                    if isinstance(tensor, Tensor):
                        add(f"{prefix}.{key}.{name}", tensor)
    return names


def _title(step: CompiledFunction | Capture, name: str) -> str:
    function = getattr(step, "function", None)
    shown = (
        type(function).__name__
        if isinstance(function, Module)
        else getattr(function, "__name__", name)
    )
    return str(shown).replace("_", " ").strip() or name


def _kind(dtype: str, shape: tuple[int, ...]) -> str:
    """Return what a page shows an input as: "image", "numbers" or "integers"."""
    if dtype in ("float32", "float16", "uint8") and len(shape) in (3, 4):
        channels, height, width = shape[-3:]
        if channels in (1, 3) and min(height, width) >= 4:
            return "image"
    return "integers" if dtype in ("int64", "int32", "uint8", "uint32") else "numbers"


def _examples(function: Json, name: str, examples: Sequence[Batch]) -> dict[str, RawTensor]:
    """Return example batches as tensors named "train/0.x", "train/0.y", "train/1.x", ...

    Raises ShapeError when one does not fit.
    """
    tensors: dict[str, RawTensor] = {}
    arguments = function["arguments"]
    function["examples"] = len(examples)
    for number, batch in enumerate(examples):
        if isinstance(batch, Mapping):
            given = dict(batch)
        else:
            # Numbers among the arguments are not tensors of the file, nor are those that no result needs.
            leaves = [v for _, v in _leaves(list(batch)) if isinstance(v, Tensor)]
            given = {a["name"]: leaves[a["number"]] for a in arguments if a["number"] < len(leaves)}
        for argument in arguments:
            value: Any = given.get(argument["name"])
            shape = list(value.shape) if isinstance(value, Tensor) else None
            if shape != argument["shape"] or value.dtype.name != argument["dtype"]:
                shown = "nothing" if value is None else repr(value)
                if isinstance(value, Tensor):
                    shown = f"{value.dtype.name}{shape}"
                raise ShapeError(
                    f"export: example {number} has {shown} for {argument['name']!r}, "
                    f"the program was captured for {argument['dtype']}{argument['shape']}"
                )
            tensors[f"{name}/{number}.{argument['name']}"] = RawTensor(
                value.dtype.name, tuple(value.shape), value._to_bytes
            )
    return tensors
