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
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from webtorch.capture.captured import Capture, Returned
from webtorch.capture.compiled import function_of
from webtorch.capture.step import CompiledFunction
from webtorch.capture.trace import compile_never
from webtorch.errors import CaptureError, DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.functions.random import default_generator
from webtorch.io.safetensors import RawTensor
from webtorch.ir.limits import Limits
from webtorch.ir.lines import user_depth
from webtorch.ir.view import is_contiguous
from webtorch.nn import Module
from webtorch.optim import Optimizer
from webtorch.runtime.frozen import freeze, to_graph
from webtorch.runtime.realize import open_runtimes
from webtorch.tensors.device import device_of
from webtorch.tensors.modes import for_pages, no_grad
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor
from webtorch.web.exported import Exported, FunctionExport, Page, Variant, named_leaves
from webtorch.web.program_json import BROWSER_LIMITS, SOFTWARE_LIMITS, Json
from webtorch.web.site import write_site

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
Shape: TypeAlias = tuple[int, ...]


def export(
    what: Function | Mapping[str, Function],
    path: str | os.PathLike[str],
    example_inputs: object = None,
    *,
    name: str | None = None,
    inputs: object = None,
    outputs: object = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    examples: object = (),
    initial: Module | Mapping[str, Tensor] | None = None,
    labels: Sequence[str] | None = None,
    targets: Sequence[int] | None = None,
    vocabulary: Sequence[str] | None = None,
    title: str | None = None,
    half: bool = False,
    single_file: bool = False,
    page: str | None = None,
    cpu: bool | None = None,
    limits: Limits | None = None,
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
    `inputs`, `outputs` and `examples` are dicts by function where there are several. `initial` is the
    model as it was before training (a fresh one, or its state dict): the page then also starts from there, so that a
    visitor sees it learn. `labels` are the names of a classifier's classes, `targets` the right ones of the examples
    that it is shown with, `vocabulary` the characters (or tokens) of integer inputs: they let the page show samples
    and take text. `half` stores parameters in 16 bits; `single_file` writes one HTML file that needs no server. `page`
    is HTML to stand in the place of what pages usually show, with its `<style>` and its `<script type="module">`, which
    imports what it needs from "./widgets.js" and "./runtime.js". `cpu` adds WebAssembly for tabs without WebGPU, by
    default where llvmlite is there to write it and the program has nothing that only WebGPU does; a warning says
    where it does not.

    Raises CaptureError for a function that a program cannot repeat or that writes into its
    arguments, DTypeError for float64 and complex numbers, OverflowError for constants beyond 32 bits, ShapeError for an
    example of another shape.
    """
    functions = _functions(what, name)
    each = partial(_each, functions, isinstance(what, Mapping))
    calls = each(example_inputs, None, "example_inputs")
    captures = _capture_all(functions, calls, each(examples, (), "examples"), state)
    exported = export_all(
        captures.functions,
        arguments=captures.arguments,
        names=captures.names,
        inputs=each(inputs, None, "inputs"),
        outputs=each(outputs, None, "outputs"),
        state=captures.state,
        initial=initial.state_dict() if isinstance(initial, Module) else initial,
        title=title,
        limits=limits,
        half=half,
        cpu=cpu,
    )
    if cpu is None:
        _warn_without_cpu(exported)
    _add_samples(exported, captures.examples, labels, targets, vocabulary)
    return write_site(
        Path(path), exported.program, exported.weights, exported.examples, exported.native,
        {} if single_file else exported.software, initial=exported.initial, code=exported.code,
        constants=exported.constants, single_file=single_file, own_page=page,
    )  # fmt: skip


def _warn_without_cpu(exported: Exported) -> None:
    """Say why a page has no program for the processor, where it has none."""
    if isinstance(why := exported.program["cpu"], str):
        warnings.warn(
            f"export: the page has no program for the processor, so it needs a browser with WebGPU: {why}",
            stacklevel=user_depth(),
        )


def _add_samples(
    exported: Exported,
    examples: Mapping[str, Sequence[Batch]],
    labels: Sequence[str] | None,
    targets: Sequence[int] | None,
    vocabulary: Sequence[str] | None,
) -> None:
    """Add example batches, and what the page needs to show them."""
    for key, given in examples.items():
        for part in (exported.program, exported.software):
            exported.examples.update(_examples(part["functions"][key], key, given))
    exported.program["labels"] = [str(x) for x in labels] if labels is not None else None
    exported.program["targets"] = [int(x) for x in targets] if targets is not None else None
    exported.program["initial"] = bool(exported.initial)
    exported.program["vocabulary"] = list(vocabulary) if vocabulary is not None else None


def _functions(what: Function | Mapping[str, Function], name: str | None) -> dict[str, object]:
    """Return the functions by their names in the page."""
    if not isinstance(what, Mapping):
        return {name or _name(what): function_of(what)}
    if name is not None:
        raise ValueError("export: with several functions, the keys are their names; drop name=")
    if not what:
        raise ValueError("export: there is nothing to export: the dict of functions is empty")
    return {key: function_of(value) for key, value in what.items()}


def _each(
    functions: Mapping[str, object], several: bool, given: object, absent: object, parameter: str
) -> Json:
    """Return one value of a parameter for each function: the same, those of a dict, or `absent`."""
    if not several:
        return dict.fromkeys(functions, absent if given is None else given)
    if not given:
        return dict.fromkeys(functions, absent)
    if not isinstance(given, Mapping) or not set(given) <= set(functions):
        raise ValueError(
            f"export: {parameter} must be a dict with keys among {list(functions)}, got {given!r}"
        )
    return {key: given.get(key, absent) for key in functions}


@dataclass(slots=True)
class _Captures:
    """Captured functions, as `export_all` takes them, and batches for the page."""

    functions: Mapping[str, CompiledFunction | Capture]
    examples: Mapping[str, Sequence[Batch]]
    state: Mapping[str, Module | Optimizer | Tensor] | None = None
    arguments: Mapping[str, list[tuple[str, Shape]]] = field(default_factory=dict)
    names: Mapping[int, tuple[str, Shape]] = field(default_factory=dict)
    # What the names stand for, which must live until the page is written.
    held: object = None


def _capture_all(
    functions: Mapping[str, object],
    calls: Mapping[str, object],
    examples: Mapping[str, Sequence[Batch]],
    state: Mapping[str, Module | Optimizer | Tensor] | None,
) -> _Captures:
    bridge = _bridge(functions, calls)
    if bridge is not None:
        found = bridge.capture_all(functions, calls, examples, state)
        return _Captures(found.functions, found.examples, None, found.arguments, found.names, found)
    captured = {key: captured_for_page(value, key, calls[key]) for key, value in functions.items()}
    batches = dict(examples)
    for key, call in calls.items():
        if call is not None and not batches[key]:
            batches[key] = [call if isinstance(call, (Mapping, tuple, list)) else (call,)]
    return _Captures(captured, batches, state)


def export_json(
    step: CompiledFunction | Capture,
    *,
    name: str = "step",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    limits: Limits | None = None,
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
    initial: Mapping[str, Tensor] | None = None,
    title: str | None = None,
    limits: Limits | None = None,
    half: bool = False,
    cpu: bool | None = False,
    arguments: Mapping[str, list[tuple[str, Shape]]] | None = None,
    names: Mapping[int, tuple[str, Shape]] | None = None,
    elsewhere: Collection[int] = (),
) -> Exported:
    """Return what `export` writes for captured functions, without writing it.

    `arguments` are names and shapes of what captures take, `names` those of storages in the weights
    file, by id, where they are not known from `state` and the functions themselves. `elsewhere` are storages, by id,
    whose contents the page has from another file.
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
    page = Page(captures, {**_storage_names(found), **(names or {})}, narrow, cpu, elsewhere)
    software = SOFTWARE_LIMITS if limits is None else replace(limits, is_gpu=False)
    # Processors that run the invocations of a workgroup one by one want other kernels than graphics cards.
    variants = Variant(limits or BROWSER_LIMITS), Variant(software)
    for name, step in steps.items():
        tensors: list[tuple[str, Shape]] = []
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
            FunctionExport(page, variant, name, captures[name]).finish(
                tensors, numbers, outputs[name]
            )
    first = next(iter(steps))
    exported = page.finish(title or _title(steps[first], first), *variants)
    if initial is not None:
        exported.initial = _initial(exported, found, initial)
    return exported


def _initial(
    exported: Exported,
    found: Mapping[str, Module | Optimizer | Tensor],
    initial: Mapping[str, Tensor],
) -> dict[str, RawTensor]:
    """Return the state before any training: `initial` by its modules' names, and optimizers as they begin.

    Raises KeyError for a parameter that is not in it, ShapeError for one of another shape.
    """
    begins: dict[str, Tensor] = {}
    names = _storage_names(found)
    for prefix, value in found.items():
        if isinstance(value, Module):
            for key, tensor in (*value.named_parameters(), *value.named_buffers()):
                # What is not kept in state dicts does not change.
                begins[f"{prefix}.{key}"] = initial.get(key, tensor)
        elif isinstance(value, Optimizer):
            for param, key, tensor in _states(value):
                start = value._beginning((id(param), key))
                begins[names[id(tensor._storage)][0]] = webtorch.full_like(tensor, start)
    out: dict[str, RawTensor] = {}
    for name, now in exported.weights.items():
        if name not in begins:
            out[name] = now
            continue
        if tuple(begins[name].shape) != tuple(now.shape):
            raise ShapeError(
                f"export: initial: {name} is {list(begins[name].shape)}, the model's is {list(now.shape)}"
            )
        out[name] = RawTensor(begins[name].dtype.name, now.shape, begins[name]._to_bytes)
    return out


def _bridge(functions: Mapping[str, object], calls: Mapping[str, object]) -> Any:
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


def _name(what: object) -> str:
    """Return the name that a function has in the page when none is given."""
    what = function_of(what)
    if isinstance(what, CompiledFunction):
        what = what.function
    if isinstance(what, Module) or hasattr(what, "graph_signature") or hasattr(what, "state_dict"):
        return "infer"
    name = str(getattr(what, "__name__", "step"))
    return name if name.isidentifier() and name not in _RESERVED else "step"


def captured_for_page(what: object, name: str, call: object) -> CompiledFunction | Capture:
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
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}
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

    def __init__(self, function: object) -> None:
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


def _argument_names(step: CompiledFunction) -> tuple[list[tuple[str, Shape]], list[str]]:
    """Return name and shape of the latest signature's tensor arguments, and the names of the floats."""
    positional, keywords = step.latest_arguments()
    tensors: list[tuple[str, Shape]] = []
    numbers: list[str] = []

    def visit(signature: object, name: str) -> None:
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


def _referred(function: Any) -> Json:
    """Return the modules, optimizers and tensors that a function refers to by name."""
    if isinstance(function, Module):
        return {"": function}
    found: dict[str, object] = {}
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


def _storage_names(found: Mapping[str, object]) -> dict[int, tuple[str, Shape]]:
    """Return the name and shape in the weights file of each storage that a module, optimizer or tensor owns."""
    names: dict[int, tuple[str, Shape]] = {}
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
            leaves = [v for _, v in named_leaves(list(batch)) if isinstance(v, Tensor)]
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
