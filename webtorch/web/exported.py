"""What an export holds: states, settings, and each function laid out for a page. Floor 7."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webtorch.capture.captured import Capture, Returned
from webtorch.errors import CaptureError, DTypeError, KernelError
from webtorch.functions.random import default_generator
from webtorch.io.safetensors import RawTensor
from webtorch.ir.dtype import by_name
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.ir.view import numel
from webtorch.lower.compiler import compile_graph
from webtorch.lower.layout import binding_bytes, device_bytes, uniform_type
from webtorch.runtime.backends import webassembly
from webtorch.tensors.device import device_of
from webtorch.tensors.host import HostScalar, RandomOffset
from webtorch.tensors.storage import Storage
from webtorch.web.program_json import (
    Json,
    Kernels,
    compile_for_page,
    needed_limits,
    short_line,
    steps_json,
)
from webtorch.web.settings import Settings

FORMAT = "webtorch program"
VERSION = 3


@dataclass(slots=True)
class Exported:
    """What the files of an export hold."""

    program: Json
    weights: dict[str, RawTensor]
    examples: dict[str, RawTensor] = field(default_factory=dict)
    # The weights before training, where they were given.
    initial: dict[str, RawTensor] = field(default_factory=dict)
    # What stands in for the program's own "functions", "kernels" and "limits" on a software adapter.
    software: Json = field(default_factory=dict)
    # By function: the planned program as `Program.to_json` writes it, and where its inputs come from.
    native: Json = field(default_factory=dict)
    # The code for the processor, and the constants in its memory.
    code: bytes = b""
    constants: bytes = b""


@dataclass(slots=True)
class Variant:
    """The functions of an export, compiled for one kind of adapter."""

    limits: Limits
    kernels: Kernels = field(default_factory=Kernels)
    needed: dict[str, int] = field(default_factory=dict)
    functions: Json = field(default_factory=dict)
    native: Json = field(default_factory=dict)

    def data(self) -> Json:
        """Return what stands in program.json."""
        return {
            "limits": self.needed,
            # Memory of more bytes is a row of buffers of so many.
            "row": self.limits.row_step,
            "kernels": self.kernels.items,
            "functions": self.functions,
        }


class Page:
    """What the functions of an export share: states and settings."""

    def __init__(
        self,
        captures: Mapping[str, Capture],
        names: dict[int, tuple[str, tuple[int, ...]]],
        narrow: set[int],
        cpu: bool | None,
        elsewhere: Collection[int] = (),
    ) -> None:
        self.captures = captures
        self.names = names
        # Storages whose contents are stored in 16 bits.
        self.narrow = narrow
        # Storages whose contents are read from another file than that of the weights.
        self.elsewhere = elsewhere
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
        if id(storage) not in self.elsewhere:
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

    def finish(self, title: str, plain: Variant, software: Variant) -> Exported:
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
        exported = Exported(program, self.weights, {}, {}, software.data(), plain.native)
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


class FunctionExport:
    """One function on its way into the page."""

    def __init__(self, page: Page, variant: Variant, name: str, captured: Capture) -> None:
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
        returned = {
            id(r.storage) for _, r in named_leaves(captured.result) if isinstance(r, Returned)
        }
        if any(id(storage) in returned for storage, _ in captured.arguments):
            raise CaptureError(
                "export: the function returns one of its arguments, or a view of it, as it is: return "
                "a copy, as in x.t().clone()"
            )
        wanted = self.page.read | returned
        numbers = {r.number for _, r in named_leaves(captured.result) if isinstance(r, Returned)}
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
            function.lines.append("")
        returns = []
        for _, leaf in named_leaves(captured.result):
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
            "lines": [short_line(line) for line in function.lines],
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
        leaves = named_leaves(self.captured.result)
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
            f"export: the number {value} does not fit 32 bits, which is what integers have in a page"
        )
    return int(value)


def named_leaves(x: object, path: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of a returned structure with their names in the page."""
    if isinstance(x, dict):
        return [
            leaf
            for k, v in x.items()
            for leaf in named_leaves(v, f"{path}.{k}" if path else str(k))
        ]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return named_leaves(dict(zip(x._fields, x)), path)
    if isinstance(x, (list, tuple)):
        names = [f"{path}.{i}" if path else f"out{i or ''}" for i in range(len(x))]
        return [leaf for name, v in zip(names, x) for leaf in named_leaves(v, name)]
    return [(path or "out", x)]


def _kind(dtype: str, shape: tuple[int, ...]) -> str:
    """Return what a page shows an input as: "image", "numbers" or "integers"."""
    if dtype in ("float32", "float16", "uint8") and len(shape) in (3, 4):
        channels, height, width = shape[-3:]
        if channels in (1, 3) and min(height, width) >= 4:
            return "image"
    return "integers" if dtype in ("int64", "int32", "uint8", "uint32") else "numbers"
