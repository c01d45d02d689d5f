"""Programs as WebAssembly where Python itself is: a module over Python's own memory for each program. Floors 0-2.

In Pyodide the memory in which a bytearray lies is the page's, and so are the functions of the C library: kernels read
and write what Python holds. A module has one function for each run of steps, which takes the address of a block of
numbers: where buffers, status words and scratch memory are, and the arguments.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from webtorch.ir.dtype import DType, float64, int32, int64, uint64
from webtorch.ir.kernel import Kernel
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.runtime.backends.plain.assembly import Function, Value, module
from webtorch.runtime.backends.plain.loops import TILE, tile, written
from webtorch.runtime.backends.plain.scalars import LIBRARY, Scalars, UnwritableError
from webtorch.runtime.backends.plain.texts import texts

_COPY = b"\xfc\x0a\x00\x00"
# Browsers take no function of more locals.
_MOST_LOCALS = 50_000


def address_of(data: bytearray | memoryview) -> int:
    """Return where memory lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if len(data) else 0


@dataclass
class Machine:
    """What makes modules run, and how many routines were written for it; why others were not."""

    instantiate: Callable[[bytes], Any]
    scratch: bytearray = field(default_factory=bytearray)
    routines: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def room(self, nbytes: int) -> int:
        """Return the address of scratch memory of so many bytes."""
        if len(self.scratch) < nbytes:
            self.scratch = bytearray(nbytes)
        return address_of(self.scratch)


@cache
def machine() -> Machine | None:
    """Return what runs WebAssembly in this process: None outside of a page's Python."""
    if sys.platform != "emscripten":
        return None
    try:
        js: object = importlib.import_module("js")
        page: object = importlib.import_module("pyodide_js")
        to_js: object = importlib.import_module("pyodide.ffi").to_js
        env = js.Object.new()
        env.memory = page._module.memory
        for name in LIBRARY:
            setattr(env, name, getattr(page._module, f"_{name}"))
        imports = js.Object.new()
        imports.env = env
        # Not every engine has vectors.
        if not js.WebAssembly.validate(to_js(module(list(LIBRARY.items()), [tile()], []))):
            return None
    except (ImportError, AttributeError):
        # Another Python in WebAssembly, or another Pyodide than the one that this was written for.
        return None

    def instantiate(code: bytes) -> object:
        """Return the functions of a module."""
        made = js.WebAssembly.Module.new(to_js(code))
        return js.WebAssembly.Instance.new(made, imports).exports

    return Machine(instantiate)


@dataclass(frozen=True)
class Run:
    """Steps from `first` to before `last` that are one call."""

    first: int
    last: int
    call: Callable[[int], object]


class Written:
    """A program's routines in WebAssembly: runs of steps by their first, and the block that they read."""

    def __init__(
        self, on: Machine, program: Program, kernels: Mapping[int, Kernel], stop: int
    ) -> None:
        self.on = on
        self.program = program
        self.runs: dict[int, Run] = {}
        functions: list[Function] = [tile()]
        # The functions of each routine, with the numbers of its buffers that they take.
        self.numbers: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.scratch = 0
        for place, routine in enumerate(program.routines):
            found: list[tuple[Function, tuple[int, ...], int]]
            try:
                if place in kernels:
                    function, nbytes = written(kernels[place])
                    found = [(function, tuple(range(len(routine.buffers))), nbytes)]
                else:
                    found = texts(routine)
                if any(len(one.kinds) > _MOST_LOCALS for one, _, _ in found):
                    raise UnwritableError(f"functions of over {_MOST_LOCALS} values")
            except UnwritableError as reason:
                on.refused[str(reason)] += 1
                continue
            self.numbers[place] = []
            for one, buffers, nbytes in found:
                self.scratch = max(self.scratch, nbytes)
                self.numbers[place].append((TILE + len(functions), buffers))
                functions.append(one)
        on.routines += len(self.numbers)
        count = len(program.buffers)
        self.arguments = -(-(count + 2) // 2) * 8
        codes = "".join(
            "d" if t.kind == "float" else "Q" if t is uint64 else "q" for t in program.args
        )
        self.form = struct.Struct(f"<{count + 2}I{'4x' * (count % 2)}{codes}")
        self.block = bytearray(self.form.size + 16)
        self.base = address_of(self.block)
        self.status = self.base + self.form.size
        exports: list[tuple[str, int]] = []
        bounds: list[tuple[int, int]] = []
        steps = program.steps
        at = 0
        while at < len(steps):
            last = at
            while (
                last < len(steps) and self.is_written(steps[last]) and (last == at or last != stop)
            ):
                last += 1
            if any(isinstance(s, Dispatch) for s in steps[at:last]):
                exports.append((f"run{at}", TILE + len(functions)))
                functions.append(self.driver(steps[at:last]))
                bounds.append((at, last))
            at = max(last, at + 1)
        if not exports:
            return
        self.code = module(list(LIBRARY.items()), functions, exports)
        made = on.instantiate(self.code)
        for (first, last), (name, _) in zip(bounds, exports, strict=True):
            self.runs[first] = Run(first, last, getattr(made, name))

    @property
    def is_whole(self) -> bool:
        """Whether every step is in a run."""
        return sum(r.last - r.first for r in self.runs.values()) == len(self.program.steps)

    def is_written(self, step: Dispatch | Copy) -> bool:
        """Whether a step can be in a run."""
        return isinstance(step, Copy) or step.routine in self.numbers

    def driver(self, steps: Sequence[Dispatch | Copy]) -> Function:
        """Return the function that makes these steps, of the block's address."""
        m = Scalars([int32])
        (block,) = m.given
        numbers: dict[int, Value] = {}

        def address(number: int) -> Value:
            """Return the address of a buffer, loaded once."""
            if number not in numbers:
                numbers[number] = m.load(int32, block, 4 * number)
            return numbers[number]

        def argument(number: int, dtype: DType) -> Value:
            """Return an argument of a step in its type."""
            wide = float64 if dtype.kind == "float" else int64
            return m.converted(m.load(wide, block, self.arguments + 8 * number), dtype)

        count = len(self.program.buffers)
        for step in steps:
            if isinstance(step, Copy):
                decl = self.program.buffers[step.source]
                size = m.constant(decl.elements * decl.dtype.itemsize, int32)
                m.emit(address(step.target), address(step.source), size, _COPY)
                continue
            given = [argument(a, self.program.args[a]) for a in step.args]
            given += [address(count), address(count + 1)]
            for number, buffers in self.numbers[step.routine]:
                m.call(number, None, *[address(step.buffers[b]) for b in buffers], *given)
        return m

    def prepare(self, addresses: Sequence[int], values: Sequence[bool | int | float]) -> None:
        """Fill in the block."""
        scratch = self.on.room(self.scratch)
        self.form.pack_into(self.block, 0, *addresses, self.status, scratch, *values)
        self.block[-16:] = bytes(16)

    def reported(self) -> tuple[int, int]:
        """Return the status words."""
        number, value = struct.unpack_from("<qq", self.block, self.form.size)
        return number, value
