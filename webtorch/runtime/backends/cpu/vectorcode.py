"""Writing functions over vectors of a fixed number of float32 lanes, for products that keep their results in registers.

LLVM turns plain loops into vector code, but does not tile them; what is written here is tiled by hand.
Every function has the form `void f(int64 begin, int64 end, int64 *cells)`: it does the units
begin..end-1, and `cells` holds addresses and numbers. Imports llvmlite lazily, and modules beside it.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from webtorch.ir.dtype import float32
from webtorch.runtime.backends.cpu import jit, native_threads
from webtorch.runtime.backends.cpu.llvmtypes import Builder, Ir, IrModule, Kind, Llvm, declared
from webtorch.runtime.backends.cpu.memory import Array, CpuBuffer
from webtorch.runtime.backends.cpu.threads import get_num_threads, run_parallel, split


@cache
def source_digest(file: str) -> str:
    """Return a digest of a module and of this one: what the text of its functions depends on."""
    return hashlib.sha256(Path(__file__).read_bytes() + Path(file).read_bytes()).hexdigest()


# Waking threads pays from here on: some 5 microseconds of one thread.
_PARALLEL_WORK = 16_000


class Functions:
    """Functions that are compiled when they are first called, or loaded from disk."""

    def __init__(self, write: Callable[[], VectorWriter], prefix: str, key: str) -> None:
        self.write, self.prefix, self.key = write, prefix, key
        self.calls: dict[str, jit.Native] = {}
        self.lock = threading.Lock()

    def compiled(self, name: str) -> jit.Native:
        """Return one function."""
        with self.lock:
            found = self.calls.get(name)
            if found is None:
                symbol = self.prefix + name
                (address,) = jit.assemble(
                    lambda: self.write().text(name, symbol), (symbol,), f"{symbol} {self.key}"
                )
                found = self.calls[name] = jit.Native(address)
        return found

    def run(self, name: str, units: int, cells: Sequence[int], work: int) -> None:
        """Run all units of a function, on the threads if there is enough work, counted in vectors."""
        block = struct.pack(f"{len(cells)}q", *cells)
        native = self.calls.get(name) or self.compiled(name)
        threads = min(get_num_threads(), units)
        if threads <= 1 or work < _PARALLEL_WORK:
            native.call(0, units, block)
            return
        chunk = -(-units // (4 * threads))
        if not native_threads.available() or not native_threads.run(
            native.address, 0, units, chunk, block
        ):
            run_parallel(
                [partial(native.call, begin, end, block) for begin, end in split(0, units, threads)]
            )


class Addressed(Protocol):
    """Memory with an address."""

    @property
    def address(self) -> int:
        """Where it starts."""


class Target:
    """Where functions run: here. Another one may note what is to run elsewhere."""

    @property
    def processor(self) -> tuple[str, bool]:
        """LLVM's features of the processor, and whether it multiplies and adds in one."""
        return jit.processor()

    # Bits of the integers that number elements.
    position_bits = 64

    def run(
        self, functions: Functions, name: str, units: int, cells: Sequence[int], work: int
    ) -> None:
        """Run all units of a function; `work` is counted in vectors."""
        functions.run(name, units, cells, work)

    def scratch(self, elements: int) -> Addressed:
        """Return a buffer of float32 that lasts while it is referred to: what has an `address`."""
        return CpuBuffer(float32, elements)

    def address(self, table: Array) -> int:
        """Return where a NumPy array, which the caller keeps, is in memory."""
        found: int = table.ctypes.data
        return found


HERE = Target()


class VectorWriter:
    """Writes functions. A class that writes some says in `functions` how, by name."""

    b: Builder

    def __init__(self, lanes: int, fused: bool, position_bits: int = 64) -> None:
        from llvmlite import ir

        self.ir: Llvm = ir
        self.width, self.fused = lanes, fused
        # Of positions and sizes; the cells and tables that hold them are of 64 bits.
        self.index: Kind = ir.IntType(position_bits)
        self.module: IrModule = ir.Module("vectors")
        self.i64: Kind = ir.IntType(64)
        self.f32: Kind = ir.FloatType()
        self.vector = self.vector_of(lanes)
        self.pointer: Kind = ir.PointerType()
        self.zero: Ir = ir.Constant(self.vector, None)
        # A function, and what it is called with after its first unit and the end of its units.
        self.functions: dict[str, tuple[Callable[..., None], tuple[object, ...]]] = {}

    def text(self, name: str, symbol: str) -> str:
        """Return a module with the function `name`, there called `symbol`, in LLVM's language."""
        kind = self.ir.FunctionType(self.ir.VoidType(), [self.index, self.index, self.pointer])
        function = self.ir.Function(self.module, kind, symbol)
        function.attributes.add("nounwind")
        self.b = self.ir.IRBuilder(function.append_basic_block("entry"))
        begin, end, self.cells = function.args
        self.cell_count = 0
        write, options = self.functions[name]
        write(begin, end, *options)
        self.b.ret_void()
        return str(self.module)

    # -- small parts ---------------------------

    def vector_of(self, lanes: int) -> Kind:
        """Return the type of a vector."""
        return self.ir.VectorType(self.f32, lanes)

    def number(self, value: int) -> Ir:
        """Return a constant."""
        return self.ir.Constant(self.index, value)

    def cell(self, kind: Kind | None = None) -> Ir:
        """Return the next parameter."""
        kind = kind or self.index
        place = self.b.gep(self.cells, [self.number(self.cell_count)], source_etype=self.i64)
        self.cell_count += 1
        return self.b.load(place, typ=kind)

    def at(self, base: Ir, index: Ir, kind: Kind | None = None) -> Ir:
        """Return the address of an element: float32 unless another kind is named."""
        return self.b.gep(base, [index], inbounds=True, source_etype=kind or self.f32)

    def entry(self, table: Ir, index: Ir) -> Ir:
        """Return an element of a table of int64."""
        # The first word is the number: tables hold nothing that is larger.
        return self.b.load(self.at(table, index, self.i64), typ=self.index, align=8)

    def load(self, place: Ir, kind: Kind | None = None) -> Ir:
        """Return a vector; it need not be aligned."""
        return self.b.load(place, typ=kind or self.vector, align=4)

    def store(self, value: Ir, place: Ir) -> None:
        """Store a vector."""
        self.b.store(value, place, align=4)

    def lanes(self, index: Ir) -> Ir:
        """Return index * lanes."""
        return self.b.mul(index, self.number(self.width))

    def smaller(self, a: Ir, b: Ir) -> Ir:
        """Return the smaller number."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def fma(self, a: Ir, b: Ir, c: Ir) -> Ir:
        """Return a * b + c of vectors."""
        if not self.fused:
            return self.b.fadd(self.b.fmul(a, b), c)
        name = f"llvm.fma.v{self.width}f32"
        function = declared(self.ir, self.module, name, self.vector, [self.vector] * 3)
        return self.b.call(function, [a, b, c])

    def splat(self, x: Ir) -> Ir:
        """Return a vector of one number."""
        one = self.b.insert_element(
            self.ir.Constant(self.vector, self.ir.Undefined),
            x,
            self.ir.Constant(self.ir.IntType(32), 0),
        )
        mask = self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), self.width), None)
        return self.b.shuffle_vector(one, one, mask)

    @contextmanager
    def loop(self, start: Ir, stop: Ir, step: int = 1) -> Iterator[Ir]:
        """Count from `start` to below `stop`."""
        b = self.b
        before = b.block
        inside = b.append_basic_block("loop")
        after = b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", start, stop), inside, after)
        b.position_at_end(inside)
        counter = b.phi(self.index)
        counter.add_incoming(start, before)
        yield counter
        following = b.add(counter, self.number(step), flags=("nsw",))
        counter.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, stop), inside, after)
        b.position_at_end(after)

    def accumulators(self, count: int) -> list[Ir]:
        """Return places for vectors, in the entry block: LLVM turns them into registers."""
        with self.b.goto_entry_block():
            return [self.b.alloca(self.vector) for _ in range(count)]

    def transposed(self, rows: list[Ir]) -> list[Ir]:
        """Return the columns of a square of vectors."""
        lanes, i32 = len(rows), self.ir.IntType(32)
        kind = self.ir.VectorType(i32, lanes)
        half = 1
        while half < lanes:
            low = [i if not i & half else i - half + lanes for i in range(lanes)]
            high = [i + half if not i & half else i + lanes for i in range(lanes)]
            masks = [
                self.ir.Constant(kind, [self.ir.Constant(i32, n) for n in m]) for m in (low, high)
            ]
            out = list(rows)
            for r in range(lanes):
                if not r & half:
                    for mask, place in zip(masks, (r, r + half)):
                        out[place] = self.b.shuffle_vector(rows[r], rows[r + half], mask)
            rows, half = out, 2 * half
        return rows
