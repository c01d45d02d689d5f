"""Writes a captured function as a static folder that a browser opens. Floor 6; may import what is below, and io.

The graph of the capture is compiled again for the limits of browsers, whatever device it was
captured on. The folder holds `program.json` (webtorch.web.program_json), `weights.safetensors`
(what is in memory now: parameters, optimizer state), `examples.safetensors` (inputs to try),
`runtime.js`, and a page. Any static server will do.
"""

from __future__ import annotations

import html
import inspect
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from webtorch.capture.step import CompiledFunction
from webtorch.capture.trace import Capture, Returned
from webtorch.errors import CaptureError, ShapeError
from webtorch.io.safetensors import RawTensor, save_file
from webtorch.ir.program import Program
from webtorch.ir.view import is_contiguous, numel
from webtorch.lower.compiler import compile_graph
from webtorch.nn import Module
from webtorch.ops.random import default_generator
from webtorch.optim import Optimizer
from webtorch.runtime.backend import Limits
from webtorch.tensors.device import device_of
from webtorch.tensors.host import HostScalar, RandomOffset
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor
from webtorch.web.program_json import (
    BROWSER_LIMITS,
    Json,
    Kernels,
    Layout,
    binding_bytes,
    device_bytes,
    lay_out,
    short_line,
)
from webtorch.web.settings import Settings

FORMAT = "webtorch program"
VERSION = 1
_HERE = Path(__file__).parent
# Names that runtime.js gives to other things.
_RESERVED = (
    "set",
    "get",
    "state",
    "loadState",
    "destroy",
    "load",
    "device",
    "functions",
    "settings",
    "constructor",
)


@dataclass(frozen=True, slots=True)
class Exported:
    """What `program.json` and `weights.safetensors` hold."""

    program: Json
    weights: dict[str, RawTensor]


def export_program(
    step: CompiledFunction | Capture,
    folder: str | os.PathLike[str],
    *,
    name: str = "step",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    examples: Sequence[Sequence[Tensor] | Mapping[str, Tensor]] = (),
    title: str | None = None,
    limits: Limits = BROWSER_LIMITS,
) -> Path:
    """Write a captured function to `folder` as a page that runs it on WebGPU, and return the folder.

    `step` is what `webtorch.compile` returned, called at least once, so that there is a program.
    In the page it is `await m.NAME({x, y})`. `inputs` name its tensors (default: the function's own argument names),
    `outputs` the tensors that it returns (default: the keys of a returned dict, else "out", "out1",
    ...). `state` names modules, optimizers and tensors in the weights file; those that the function
    itself refers to need not be given. `examples` are batches of inputs for the page to run on.

    Raises CaptureError for a function that writes into its arguments, DTypeError for float64,
    OverflowError for constants beyond 32 bits, RuntimeError when nothing has been captured.
    """
    exported = export_json(
        step, name=name, inputs=inputs, outputs=outputs, state=state, limits=limits, title=title
    )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    function = exported.program["functions"][name]
    batches = _examples(function, examples)
    exported.program["examples"] = len(examples)
    text = json.dumps(exported.program, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    (target / "program.json").write_text(text + "\n", encoding="utf-8")
    save_file(exported.weights, target / "weights.safetensors")
    if batches:
        save_file(batches, target / "examples.safetensors")
    for file in ("runtime.js", "runtime.d.ts", "page/page.css", "page/page.js"):
        shutil.copyfile(_HERE / file, target / Path(file).name)
    page = (_HERE / "page" / "index.html").read_text(encoding="utf-8")
    (target / "index.html").write_text(
        page.replace("{{title}}", html.escape(exported.program["title"])), encoding="utf-8"
    )
    return target


def export_json(
    step: CompiledFunction | Capture,
    *,
    name: str = "step",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    state: Mapping[str, Module | Optimizer | Tensor] | None = None,
    title: str | None = None,
    limits: Limits = BROWSER_LIMITS,
) -> Exported:
    """Return what `export_program` writes, without writing it."""
    if not re.fullmatch(r"[A-Za-z_$][\w$]*", name, re.ASCII) or name in _RESERVED:
        raise ValueError(
            f"export: {name!r} cannot be the name of a function in the page; use a name like 'train'"
        )
    captured = step.latest() if isinstance(step, CompiledFunction) else step
    found = dict(state or {})
    tensors: list[tuple[str, tuple[int, ...]]] = []
    numbers: list[str] = []
    if isinstance(step, CompiledFunction):
        for key, value in _referred(step.function).items():
            found.setdefault(key, value)
        tensors, numbers = _argument_names(step)
    if inputs is not None:
        tensors = [(key, shape) for key, (_, shape) in zip(inputs, tensors)] or [
            (key, ()) for key in inputs
        ]
    made = _Export(captured, _storage_names(found), limits)
    return made.finish(name, tensors, numbers, outputs, title or _title(step, name))


class _Export:
    """One function on its way into the page."""

    def __init__(
        self, captured: Capture, names: dict[int, tuple[str, tuple[int, ...]]], limits: Limits
    ) -> None:
        self.captured = captured
        self.names = names
        self.kernels = Kernels()
        self.states: list[Json] = []
        self.weights: dict[str, RawTensor] = {}
        self.numbers: dict[int, int] = {}
        self.kept = self._kept()
        graph = replace(captured.graph, outputs=tuple(captured.graph.outputs[k] for k in self.kept))
        self.program: Program = compile_graph(graph, limits)
        self.layout: Layout = lay_out(self.program, limits, self.kernels)
        self.memory: list[Json] = [{"own": n} for n in self.layout.memory]

    def _kept(self) -> list[int]:
        """Return the outputs that matter: returned, or read by a later call, or part of the model.

        Gradients left in `.grad`, for example, are neither.
        """
        captured = self.captured
        if any(isinstance(s, int) and d for s, d in zip(captured.sources, captured.donated)):
            raise CaptureError(
                "export: the function writes into one of its arguments; return the new value instead"
            )
        wanted = {id(s) for s in captured.sources if isinstance(s, Storage)} | set(self.names)
        wanted |= {id(r.storage) for _, r in _leaves(captured.result) if isinstance(r, Returned)}
        numbers = {r.number for _, r in _leaves(captured.result) if isinstance(r, Returned)}
        return [k for k, t in enumerate(captured.targets) if k in numbers or id(t) in wanted]

    def finish(
        self,
        name: str,
        inputs: list[tuple[str, tuple[int, ...]]],
        numbers: list[str],
        outputs: Sequence[str] | None,
        title: str,
    ) -> Exported:
        """Return the finished export."""
        captured = self.captured
        arguments = self._arguments(inputs)
        updates = self._updates()
        args, settings, defaults = self._args(numbers)
        returns, constants = self._returns(updates, outputs)
        layout = self.layout
        function = {
            "arguments": arguments,
            "numbers": defaults,
            "memory": self.memory,
            "args": args,
            "uniform": {"bytes": layout.uniform_bytes, "fields": layout.uniform_fields},
            "steps": layout.steps,
            "updates": [[number, entry] for number, entry in updates.items()],
            "returns": returns,
            "constants": constants,
            "sites": [[s.op, s.dim, s.size, short_line(s.line)] for s in self.program.sites],
            "status": layout.has_status,
            "draws": str(captured.random_count),
        }
        generator = default_generator(device_of(captured.runtime))
        program: Json = {
            "format": FORMAT,
            "version": VERSION,
            "title": title,
            "limits": layout.limits,
            "settings": {k: _number(v) for k, v in settings.items()},
            # As text: it has 64 bits.
            "random": str(generator._offset),
            "states": self.states,
            "kernels": self.kernels.items,
            "functions": {name: function},
        }
        return Exported(program, self.weights)

    def _state(self, storage: Storage) -> int:
        """Return the number of a state, adding its present contents to the weights file when it is new."""
        found = self.numbers.get(id(storage))
        if found is not None:
            return found
        number = self.numbers[id(storage)] = len(self.states)
        node = storage.realize()
        elements = numel(node.shape)
        name, shape = self.names.get(id(storage), (f"state.{number}", (elements,)))
        if name in self.weights:
            name = f"{name}.{number}"
        data = self.captured.runtime.backend.download(node.buffer)
        self.weights[name] = RawTensor(node.dtype.name, shape, data)
        self.states.append(
            {
                "name": name,
                "dtype": node.dtype.name,
                "shape": list(shape),
                "bytes": binding_bytes(node.dtype, elements),
            }
        )
        return number

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
            self.memory[entry] = {"argument": len(arguments), "bytes": self.layout.memory[entry]}
            arguments.append(
                {
                    "name": name,
                    "number": source,
                    "shape": list(shape),
                    "dtype": declared.dtype.name,
                    "entry": entry,
                }
            )
        arguments.sort(key=lambda a: a["number"])
        for position, argument in enumerate(arguments):
            self.memory[argument["entry"]]["argument"] = position
            del argument["number"]
        if len({a["name"] for a in arguments}) < len(arguments):
            raise ValueError(f"export: two inputs have one name: {[a['name'] for a in arguments]}")
        return arguments

    def _own(self, nbytes: int) -> int:
        self.memory.append({"own": nbytes})
        return self.layout.own(nbytes)

    def _updates(self) -> dict[int, int]:
        """Return the memory entry that each state has as its value after a run.

        Several states may get one value, and a state another state's old one: those are copied
        first, so that what follows is an exchange of buffers only.
        """
        updates: dict[int, int] = {}
        claimed: set[int] = set()
        for k, entry in zip(self.kept, self.layout.outputs):
            target = self.captured.targets[k]
            if isinstance(target, int):
                continue
            number = self._state(target)
            place = self.memory[entry]
            if place.get("state") == number:
                claimed.add(entry)
                continue
            if "own" not in place or entry in claimed:
                nbytes = self.layout.memory[entry]
                fresh = self._own(nbytes)
                self.layout.steps.append({"copy": [entry, fresh, nbytes]})
                entry = fresh
            claimed.add(entry)
            updates[number] = entry
        return updates

    def _args(self, numbers: list[str]) -> tuple[list[Json], dict[str, float], list[Json]]:
        """Return where each runtime argument comes from, the settings, and the float arguments of the function."""
        values = self.captured.args
        settings = Settings([v for v in values if isinstance(v, HostScalar)])
        defaults: dict[str, Json] = {}
        args: list[Json] = []
        for kind, value in zip(self.layout.argument_types, values):
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
        return args, settings.values, list(defaults.values())

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
            return self.layout.outputs[position], declared.dtype, declared.elements
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
    (_, positional, keywords), *_ = next(reversed(step.captures))
    tensors: list[tuple[str, tuple[int, ...]]] = []
    numbers: list[str] = []

    def visit(signature: Any, name: str) -> None:
        if signature == "float":
            numbers.append(name)
        elif isinstance(signature, tuple) and signature and signature[0] == "tensor":
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


def _examples(function: Json, examples: Sequence[Any]) -> dict[str, RawTensor]:
    """Return the example batches as tensors named "0.x", "0.y", "1.x", ... Raises ShapeError when one does not fit."""
    tensors: dict[str, RawTensor] = {}
    for number, batch in enumerate(examples):
        arguments = function["arguments"]
        given = (
            batch
            if isinstance(batch, Mapping)
            else dict(zip((a["name"] for a in arguments), batch))
        )
        for argument in arguments:
            value = given.get(argument["name"])
            if (
                not isinstance(value, Tensor)
                or list(value.shape) != argument["shape"]
                or value.dtype.name != argument["dtype"]
            ):
                shown = (
                    "nothing"
                    if value is None
                    else f"{value.dtype.name}{list(value.shape)}"
                    if isinstance(value, Tensor)
                    else repr(value)
                )
                raise ShapeError(
                    f"export: example {number} has {shown} for {argument['name']!r}, "
                    f"the program was captured for {argument['dtype']}{argument['shape']}"
                )
            tensors[f"{number}.{argument['name']}"] = RawTensor(
                value.dtype.name, tuple(value.shape), value._to_bytes
            )
    return tensors
