"""A planned program as calls of WebAssembly functions over one memory: what `web/cpu.js` replays. Imports
floors 0-2 and the CPU backend, whose loops, products and convolutions these are.

Every buffer, table and block of parameters has its address here; what is left to JavaScript is to
compile the module, to write the inputs and the runtime arguments, and to walk the calls, on as many
threads as the page may have.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from webtorch.errors import DTypeError, KernelError
from webtorch.ir.dtype import DType, float32, float64
from webtorch.ir.expr import cost_cpu
from webtorch.ir.kernel import (
    Attention,
    Convolution,
    Kernel,
    Matmul,
    Products,
    Routine,
    Scan,
    Several,
    Sort,
)
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.lower.layout import lay_out_memory
from webtorch.lower.loopnest import split, tile
from webtorch.lower.pysource import python_source
from webtorch.lower.scansource import scan_source
from webtorch.lower.templates.attention_backward import split as split_backward
from webtorch.lower.templates.generic import conv_kernel, matmul_kernel, without_epilogue
from webtorch.runtime.backends.cpu import direct, gemm, jit
from webtorch.runtime.backends.cpu.executable import in_order
from webtorch.runtime.backends.cpu.vectorcode import Functions, Target
from webtorch.runtime.backends.wasm import loops
from webtorch.runtime.backends.wasm.link import LinkError, Module, link

Json = dict[str, Any]

# Nothing lies in the first bytes: no address is a null pointer, and threads agree by some words there.
FIRST = 1024
# Addresses have 32 bits; the threads' stacks come after the program's memory.
LAST = (1 << 32) - (1 << 26)
_ALIGN = 64
# Products of fewer multiplications, and of thin matrices, are loops: copying into panels would cost more.
_LEAST_PRODUCT = 1 << 12
_LEAST_SIDE = 3
# So many images fill the lanes of vectors well enough to be convolved together.
_LEAST_IMAGES = 3
# Work, in operations on one element, from which threads share a call, and that of one part.
_PARALLEL_WORK = 60_000
_CHUNK_WORK = 120_000
_PARTS = 32
# How many operations on one element a vector of a product is.
_VECTOR_WORK = 4
# In place of a function's number: a copy within the memory.
COPY = -1


def available() -> bool:
    """Whether programs can be written here."""
    return jit.available()


class _Memory:
    """The addresses of one memory.

    A block goes to the first place that has room; what stays goes to the end, where no block has ever
    been that another function writes.
    """

    def __init__(self) -> None:
        # The start and the end of each block.
        self.blocks: dict[int, int] = {}
        self.end = FIRST

    def allocate(self, nbytes: int, stays: bool = False) -> int:
        """Return the address of `nbytes` bytes; what `stays` lies past all that is used again.

        Raises KernelError past what WebAssembly can address.
        """
        size = max(-(-nbytes // _ALIGN) * _ALIGN, _ALIGN)
        at = self.end if stays else self._room(size)
        if at + size > LAST:
            raise KernelError(
                f"export: the program needs more than the {LAST >> 20} MB that WebAssembly can "
                "address: export smaller shapes, or with cpu=False"
            )
        self.blocks[at] = at + size
        self.end = max(self.end, at + size)
        return at

    def _room(self, size: int) -> int:
        at = FIRST
        for start in sorted(self.blocks):
            if start - at >= size:
                break
            at = self.blocks[start]
        return at

    def free(self, address: int) -> None:
        """Let the bytes of an address be used again."""
        del self.blocks[address]


class _Scratch:
    """Memory that is free again when nothing refers to it."""

    def __init__(self, memory: _Memory, nbytes: int) -> None:
        self.memory = memory
        self.address = memory.allocate(nbytes)

    def __del__(self) -> None:
        self.memory.free(self.address)


@dataclass(frozen=True, slots=True)
class _Place:
    """Memory of somebody else."""

    address: int


class Page:
    """What the functions of an export share: code, constants, states."""

    def __init__(self) -> None:
        self.memory = _Memory()
        self.objects: dict[str, bytes] = {}
        self.numbers: dict[str, int] = {}
        self.tables: dict[bytes, int] = {}
        # (address, bytes) of what must be in memory before the first call.
        self.constants: list[tuple[int, bytes]] = []
        self.states: dict[int, int] = {}
        self.noted = 0

    def table(self, data: bytes) -> int:
        """Return the address of constant bytes, which are there once."""
        found = self.tables.get(data)
        if found is None:
            found = self.tables[data] = self.block(data)
        return found

    def block(self, data: bytes) -> int:
        """Return the address of bytes that are there at the start."""
        address = self.memory.allocate(len(data), stays=True)
        self.constants.append((address, data))
        return address

    def state(self, number: int, nbytes: int) -> int:
        """Return the address of a state."""
        found = self.states.get(number)
        if found is None:
            found = self.states[number] = self.memory.allocate(nbytes, stays=True)
        return found

    def status(self) -> int:
        """Return the address of the words in which a kernel notes a bad index."""
        self.noted = self.noted or self.block(bytes(16))
        return self.noted

    def loop(self, source: str) -> int:
        """Return the number of the function of a loop text (lower/pysource.py)."""
        # The name is no part of what the text does.
        _, rest = source.split("(", 1)

        def code(symbol: str) -> bytes:
            """Return the object code of the loops."""
            text = f"def kernel({rest}"
            return jit.wasm_object(
                lambda: jit.llvm_text(text, symbol, fused=False, position_bits=32),
                text,
                interleave=" += " in text,
            )

        return self._number(rest, code)

    def vectors(self, functions: Functions, name: str) -> int:
        """Return the number of a function that is written over vectors."""
        key = f"{functions.prefix}{name} {functions.key}"

        def code(symbol: str) -> bytes:
            """Return the object code of the function."""
            return jit.wasm_object(
                lambda: functions.write().text(name, symbol),
                key,
                unroll=False,
            )

        return self._number(key, code)

    def _number(self, key: str, code: Callable[[str], bytes]) -> int:
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.numbers)
            # What is compiled for one program serves others, where its number is another.
            symbol = f"wt_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
            self.objects[symbol] = code(symbol)
        return found

    def finish(self) -> tuple[Json, Module, bytes]:
        """Return what program.json says of this, the code, and the constants one after the other.

        Raises KernelError for what WebAssembly cannot do.
        """
        base = -(-self.memory.end // _ALIGN) * _ALIGN
        try:
            exports = {f"f{number}": symbol for number, symbol in enumerate(self.objects)}
            module = link(list(self.objects.values()), exports, base, 1)
        except LinkError as error:
            raise KernelError(f"export: {error}; export with cpu=False") from error
        about: Json = {
            "memory": -(-module.end // _ALIGN) * _ALIGN,
            # The byte of the code that says whether the memory is shared.
            "shared": module.shared_at,
            "imports": list(module.imports),
            "states": [self.states.get(n, 0) for n in range(max(self.states, default=-1) + 1)],
            "constants": [n for address, data in self.constants for n in (address, len(data))],
        }
        return about, module, b"".join(data for _, data in self.constants)


@dataclass(slots=True)
class Function:
    """One function: what JavaScript replays.

    `calls` are (function, units, units of one part, address of the block) or (COPY, target, source, bytes),
    flat; `patches` (address, program argument, whether it is a float), flat; `names` and `lines`, the user's, are
    those of the calls. `places` are the addresses of
    the program's inputs, `results` those of its outputs, `status` that of the status words or 0.
    """

    places: list[int]
    results: list[int]
    calls: list[int] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    status: int = 0


def lay_out(program: Program, page: Page, states: Mapping[int, int]) -> Function:
    """Return `program` as calls. `states` maps inputs of the program that are states of the page to their numbers.

    Raises DTypeError for float64, KernelError for what has no loops.
    """
    return _LayOut(program, page, states).layout()


class _LayOut(Target):
    """One function on its way; as a target it notes the calls of products and convolutions."""

    def __init__(self, program: Program, page: Page, states: Mapping[int, int]) -> None:
        self.program, self.page, self.states = program, page, states
        self.own: list[int] = []
        self.addresses: list[int] = []
        self.out = Function([], [])
        self.name = self.line = ""

    def layout(self) -> Function:
        """Give all buffers their places, and write the steps."""
        program, out = self.program, self.out
        self._give_memory()
        out.places = [self.addresses[b] for b in program.inputs]
        out.results = [self.addresses[b] for b in program.outputs]
        if any(isinstance(r, Kernel) and r.checks for r in program.routines) or program.sites:
            out.status = self.page.status()
        for step in program.steps:
            self.step(step)
        # The next function may use the same memory: calls follow one another.
        for address in self.own:
            self.page.memory.free(address)
        return out

    # -- memory ---------------------------

    def _new(self, nbytes: int) -> int:
        address = self.page.memory.allocate(nbytes)
        self.own.append(address)
        return address

    def _give_memory(self) -> None:
        program = self.program
        for declared in program.buffers:
            if declared.dtype is float64:
                raise DTypeError(
                    f"export: a {declared.role} of the program has type {declared.dtype}, which pages do not "
                    "have: convert it in Python, as in x.to(torch.float32)"
                )
        memory = lay_out_memory(program)
        addresses = []
        for piece in memory.pieces:
            state = self.states.get(piece.buffers[0])
            if piece.role == "input" and state is not None:
                addresses.append(self.page.state(state, piece.nbytes))
            else:
                addresses.append(self._new(piece.nbytes))
        self.addresses = [addresses[place] for place in memory.places]

    # -- calls ---------------------------

    def call(
        self,
        number: int,
        units: int,
        parts: int,
        cells: Sequence[int],
        args: Sequence[tuple[DType, int]] = (),
        after: Sequence[int] = (),
    ) -> None:
        """Add a call with a block of `cells`, then the program's arguments `args`, then the cells `after`."""
        if not units:
            return
        block = struct.pack(f"<{len(cells)}q", *cells)
        start = len(block)
        constants = self.program.constants
        first = len(self.program.args) - len(constants)
        given = [(i, dtype, n) for i, (dtype, n) in enumerate(args) if n < first]
        for dtype, n in args:
            value = constants[n - first] if n >= first else 0
            block += struct.pack("<d" if dtype.kind == "float" else "<q", value)
        block += struct.pack(f"<{len(after)}q", *after)
        # A block that is written at each call is one call's own.
        address = self.page.block(block) if given else self.page.table(block)
        self.out.calls += [number, units, -(-units // parts), address]
        self.out.names.append(self.name)
        self.out.lines.append(self.line)
        for i, dtype, argument in given:
            self.out.patches += [address + start + 8 * i, argument, int(dtype.kind == "float")]

    def copy(self, source: int, target: int, nbytes: int) -> None:
        """Add a copy."""
        if source != target and nbytes:
            self.out.calls += [COPY, target, source, nbytes]
            self.out.names.append("copy")
            self.out.lines.append("")

    def step(self, step: Dispatch | Copy) -> None:
        """Add a step of the program."""
        if isinstance(step, Copy):
            declared = self.program.buffers[step.source]
            nbytes = declared.elements * declared.dtype.itemsize
            self.copy(self.addresses[step.source], self.addresses[step.target], nbytes)
            return
        routine = self.program.routines[step.routine]
        self.name, self.line = routine.name, step.line
        self.routine(routine, [self.addresses[b] for b in step.buffers], step.args)

    def routine(self, routine: Routine, at: Sequence[int], args: Sequence[int]) -> None:
        """Add the calls of a routine on memory at the addresses `at`."""
        match routine:
            case Kernel():
                self.kernel(routine, at, args)
            case Several():
                for part in routine.parts:
                    self.kernel(part, at, args, whole=True)
            case Products():
                for product, places, numbers in zip(
                    routine.parts, routine.places, routine.numbers, strict=True
                ):
                    self.routine(product, [at[n] for n in places], [args[n] for n in numbers])
            case Matmul() | Convolution() if routine.epilogue:
                plain, after, order, scratch = without_epilogue(routine)
                sizes = [] if scratch is None else [scratch.elements * scratch.dtype.itemsize]
                # Held until both calls are noted: the product takes scratch memory too.
                room = [_Scratch(self.page.memory, size) for size in sizes]
                every = [*at, *[r.address for r in room]]
                self.routine(plain, [*at[:2], every[order[0]]], ())
                self.kernel(after, [every[n] for n in order], args)
            case Matmul():
                self.matmul(routine, at)
            case Convolution():
                self.convolution(routine, at)
            case Scan():
                rows = routine.outer * routine.inner
                cells = [*at, routine.length, routine.inner]
                self.loop(scan_source(routine), rows, rows * routine.length * 2, cells)
            case Sort():
                self.sort(routine, at)
            case Attention():
                self.attention(routine, at, args)
            case _:
                raise KernelError(
                    f"export: {routine.name} cannot run on a browser's processor: {routine}; "
                    "export with cpu=False"
                )

    def loop(self, source: str, units: int, work: int, cells: Sequence[int]) -> None:
        """Add a call of a loop text."""
        self.call(self.page.loop(source), units, _parts(units, work), cells)

    def kernel(
        self, kernel: Kernel, at: Sequence[int], args: Sequence[int], whole: bool = False
    ) -> None:
        """Add a generic kernel; a long reduction is several."""
        parts = None if whole else split(kernel)
        if parts is None:
            self._kernel(kernel, at, args)
            return
        kernels, scratch, bindings = parts
        room = [_Scratch(self.page.memory, n * dtype.itemsize) for dtype, n in scratch]
        every = [*at, *[r.address for r in room]]
        for part, binding in zip(kernels, bindings, strict=True):
            self._kernel(part, [every[n] for n in binding], args)

    def _kernel(self, kernel: Kernel, at: Sequence[int], args: Sequence[int]) -> None:
        points = kernel.outer_count * kernel.inner_count
        work = (cost_cpu(*kernel.expressions()) + len(kernel.buffers)) * points
        parts = 1 if in_order(kernel) else _parts(kernel.outer_count, work)
        number = self.page.loop(python_source(tile(kernel)))
        given = list(zip(kernel.args, args, strict=True))
        self.call(number, kernel.outer_count, parts, at, given, (self.out.status,))

    def matmul(self, r: Matmul, at: Sequence[int]) -> None:
        """Add a product."""
        work = math.prod(r.batch) * r.m * r.n * r.k
        plain = all(b.dtype is float32 for b in r.buffers[:3])
        if plain and work >= _LEAST_PRODUCT and min(r.m, r.n) >= _LEAST_SIDE:
            gemm.Plan(r, self).run(*map(_Place, at[:3]))
        else:
            self.kernel(matmul_kernel(r), at, ())

    def convolution(self, r: Convolution, at: Sequence[int]) -> None:
        """Add a convolution or one of its gradients."""
        images, channels = r.input_shape[:2]
        depthwise = r.groups == channels > 1 and r.kind != "weight"
        if depthwise or any(b.dtype is not float32 for b in r.buffers[:3]):
            self.kernel(conv_kernel(r), at, ())
        elif images >= _LEAST_IMAGES and not loops.is_product(r):
            direct.Plan(r, self).run(*map(_Place, at[:3]))
        else:
            room = [_Scratch(self.page.memory, 4 * n) for n in loops.unfolded_sizes(r)]
            every = [*at[:3], *[x.address for x in room]]
            for part, binding in loops.unfolded(r):
                self.routine(part, [every[n] for n in binding], ())

    def sort(self, r: Sort, at: Sequence[int]) -> None:
        """Add a sort."""
        elements = r.rows * r.length
        wide = r.buffers[0].dtype.itemsize == 8
        sizes = [8 if wide else 4] * 2 + [4] * 2
        room = [_Scratch(self.page.memory, size * elements) for size in sizes]
        cells = [*at, *[x.address for x in room], r.length, r.first, r.count]
        self.loop(loops.sort(r), r.rows, elements * 40, cells)

    def attention(self, r: Attention, at: Sequence[int], args: Sequence[int]) -> None:
        """Add attention or a part of its gradients."""
        if r.part == "backward":
            for one, numbers in split_backward(r):
                self.attention(one, [at[n] for n in numbers], args)
            return
        key = r.part == "key"
        units = r.batch * (r.shared * r.source if key else r.heads * r.length)
        each = (r.length * r.heads // r.shared if key else r.source) * (r.size + r.width)
        number = self.page.loop(loops.attention(r))
        given = list(zip(r.args, args, strict=True))
        self.call(number, units, _parts(units, units * each), at, given)

    # -- Target ---------------------------

    @property
    def processor(self) -> tuple[str, bool]:
        """LLVM's features of WebAssembly, where a multiplication and an addition round twice."""
        return jit.WASM_FEATURES, False

    position_bits = 32

    def run(
        self, functions: Functions, name: str, units: int, cells: Sequence[int], work: int
    ) -> None:
        """Note a call."""
        number = self.page.vectors(functions, name)
        self.call(number, units, _parts(units, work * _VECTOR_WORK), cells)

    def scratch(self, elements: int) -> _Scratch:
        """Return memory for float32."""
        return _Scratch(self.page.memory, 4 * elements)

    def address(self, table: Any) -> int:
        """Return where a constant table will be."""
        return self.page.table(table.tobytes())


def _parts(units: int, work: int) -> int:
    """Return into how many parts threads take a call: a few for each thread, none too small."""
    if work < _PARALLEL_WORK:
        return 1
    return max(1, min(units, _PARTS, work // _CHUNK_WORK + 1))
