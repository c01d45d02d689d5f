"""Machine code from the loop text of `lower/pysource.py`, through llvmlite (which numba installs).
Imports llvmlite lazily.

`loopcode` writes LLVM instructions; LLVM's own passes then keep variables
in registers and turn the inner loops into vector code. Compared with numba this skips type
inference and Python's boxing: a kernel takes some 20 ms instead of 200, and machine code kept on
disk loads in under a millisecond without importing numba at all.
"""

from __future__ import annotations

import ast
import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from webtorch.ir import expr as ex
from webtorch.ir.expr import FUNCTIONS
from webtorch.runtime.backends.cpu import lane_loops
from webtorch.runtime.backends.cpu.loopcode import LoopCompiler
from webtorch.runtime.backends.cpu.machine import libm
from webtorch.runtime.backends.cpu.slotcode import INTERPRETER
from webtorch.runtime.disk import CODE
from webtorch.runtime.interrupt import firm

# Part of the key of code on disk: raise it when loopcode.py, slotcode.py, machine.py or lane_loops.py change what
# is generated.
_VERSION = 13


@cache
def available() -> bool:
    """Whether kernels can be compiled here. WEBTORCH_CPU_JIT=0 says no."""
    if os.environ.get("WEBTORCH_CPU_JIT", "1") == "0":
        return False
    return importlib.util.find_spec("llvmlite") is not None


# -- LLVM ---------------------------


class _Engine:
    """LLVM for this processor: compiles modules to object code, and loads object code."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self.llvm = llvm
        for start in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
            # Newer versions initialise themselves and raise when asked.
            try:
                getattr(llvm, start)()
            except (AttributeError, RuntimeError):
                continue
        self.triple = llvm.get_process_triple()
        self.cpu = llvm.get_host_cpu_name()
        # Left to itself LLVM uses half of the vectors of Intel's processors that have 512 bits.
        self.features = llvm.get_host_cpu_features().flatten()
        if "+avx512f" in self.features.split(","):
            self.features += ",-prefer-256-bit"
        # Code for x86 that is loaded into a running process needs static relocation: numba's rule.
        processor = self.triple.split("-")[0]
        self.reloc = "static" if processor in ("x86_64", "i686", "i386") else "default"
        # A library for each kernel: what no program holds any more is unloaded.
        # (LLVM's newer linker takes 30 KB for a kernel, the older 45; Windows has only that one.)
        self.loader = llvm.create_lljit_compiler(
            self.new_machine(), use_jit_link=sys.platform in ("linux", "darwin")
        )
        self.loaded = 0
        self.of_thread = threading.local()
        # Whether it multiplies and adds in one, and converts float16.
        known = set(self.features.split(","))
        self.fused = known >= {"+fma", "+f16c"} or platform.machine().lower() in (
            "arm64",
            "aarch64",
        )
        # Code may call these of libm.
        self.symbols: dict[str, int] = {}
        for name in {f.libm for f in FUNCTIONS.values() if f.libm} | {"fmod", "fmodf"}:
            try:
                found = ctypes.cast(getattr(libm(), name), ctypes.c_void_p).value
            except (AttributeError, OSError):
                continue
            if found:
                self.symbols[name] = found
        # ... and these of the interpreter's (`launch`).
        for name in INTERPRETER:
            self.symbols[name] = (
                ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
            )

    def new_machine(self) -> object:
        """Return what writes object code; a thread needs its own."""
        return self.llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=3,
            reloc=self.reloc,
            codemodel="jitdefault",
            jit=True,
        )

    def object_code(self, text: str) -> bytes:
        """Return the object code of a module's text; threads work side by side.

        LLVM unrolls no loops: what gains from it is unrolled in the text, and the code that LLVM writes for what is
        left of each loop takes twice to four times as long to compile, and runs no faster.
        """
        machine = getattr(self.of_thread, "machine", None)
        if machine is None:
            machine = self.of_thread.machine = self.new_machine()
        code, self.optimised = _object_code(machine, self.triple, text, unroll=False)
        return code

    def load(self, code: bytes, names: tuple[str, ...]) -> tuple[list[int], Any]:
        """Return the addresses of functions, and what keeps their code in the process."""
        builder = self.llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol, address in self.symbols.items():
            if symbol.encode() in code:
                builder.import_symbol(symbol, address)
        for name in names:
            builder.export_symbol(name)
        self.loaded += 1
        library = builder.link(self.loader, f"kernel{self.loaded}")
        return [library[name] for name in names], library


def _object_code(
    machine: Any, triple: str, text: str, unroll: bool, interleave: bool = True
) -> tuple[bytes, str]:
    """Return the object code of a module for a processor, and under WEBTORCH_CPU_DUMP the optimised text."""
    import llvmlite.binding as llvm

    # A context of its own goes with the module.
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple = triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_interleaving = interleave
    options.slp_vectorization = False
    options.loop_unrolling = unroll
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    _dispose(passes)
    optimised = str(module) if os.environ.get("WEBTORCH_CPU_DUMP") else ""
    return _emitted(machine, module), optimised


def _unlocked(name: str) -> Callable[..., object]:
    """Return a function of LLVM's that threads may run side by side, on modules and machines of their
    own: llvmlite lets only one in at a time.
    """
    from llvmlite.binding import ffi

    wrapped = getattr(ffi.lib, name)
    found: Callable[..., object] = getattr(wrapped, "_cfn", wrapped)
    return found


def _emitted(machine: object, module: object) -> bytes:
    from llvmlite.binding import ffi

    with ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


# What every browser with WebGPU has, and those of some years before.
WASM_FEATURES = (
    "+simd128,+atomics,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals,+multivalue"
)
_WASM_TRIPLE = "wasm32-unknown-unknown"


@cache
def _wasm_machine() -> object:
    import llvmlite.binding as llvm

    _engine()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(_WASM_TRIPLE).create_target_machine(
        cpu="generic", features=WASM_FEATURES, opt=3, reloc="static"
    )


def wasm_object(
    text: str | Callable[[], str], key: str = "", unroll: bool = True, interleave: bool = True
) -> bytes:
    """Return the relocatable WebAssembly object of a module in LLVM's own language.

    `interleave` lets loops work on several vectors at once, which sums gain from and short loops do not.

    With a `key` that says all that the text depends on, a `text` that is a function is called only
    where there is no code on disk.
    """
    known = key or text
    assert isinstance(known, str)
    parts = [
        str(_VERSION),
        _expansions(),
        _llvmlite_version(),
        WASM_FEATURES,
        str((unroll, interleave)),
        known,
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    with _LOCK:
        code = CODE.read(digest)
        if code is None:
            written = text if isinstance(text, str) else text()
            code, _ = _object_code(_wasm_machine(), _WASM_TRIPLE, written, unroll, interleave)
            CODE.write(digest, code)
    return code


def _dispose(passes: Any) -> None:
    """Free a list of passes.

    In llvmlite (0.50 at least) its own `close` finds the empty method of the wrong base class: a
    hundred kilobytes and more stay with each compiled kernel.
    """
    from llvmlite.binding import ffi, newpassmanagers

    if type(passes)._dispose is ffi.ObjectRef._dispose:
        newpassmanagers.NewPassManager._dispose(passes)
        passes.detach()
    else:
        passes.close()


class Native:
    """A compiled kernel: `call(begin, end, block)` runs it without the interpreter's lock. `library`
    keeps its code in the process: who runs `call` or the code at `address` holds this object.
    """

    __slots__ = ("__weakref__", "address", "call", "library")

    def __init__(self, address: int, library: object = None) -> None:
        self.address, self.library = address, library
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
        self.call: Callable[[int, int, bytes], None] = prototype(address)


_ENGINE: _Engine | None = None
_LOCK = threading.Lock()
# By the text without its name: those that a program holds, and the latest, which a program made anew
# finds again.
_FUNCTIONS: WeakValueDictionary[str, Native] = WeakValueDictionary()
_LATEST: deque[Native] = deque(maxlen=256)
# Those that a thread is compiling.
_WAITING: dict[str, Future[Native]] = {}
# Functions that are never dropped, as few as there are of them.
_KEPT: list[object] = []
_COUNTS = {"hits": 0, "misses": 0}


def counts() -> dict[str, int]:
    """Return how many compiled functions there are, how often one was found and how many were made."""
    return {"entries": len(_FUNCTIONS), **_COUNTS}


def _engine() -> _Engine:
    """Return LLVM; the caller holds the lock."""
    global _ENGINE
    if _ENGINE is None:
        _ENGINE = _Engine()
    return _ENGINE


# Python 3.11 counts the depth of trees in one place for all threads: two at once, or one that a finaliser
# interrupts, may find the count wrong and raise SystemError.
_PARSING = threading.Lock()


def tree(source: str) -> ast.Module:
    """Return the tree of a text."""
    with _PARSING:
        try:
            return ast.parse(source)
        except SystemError:
            return ast.parse(source)


def parsed(source: str, name: str) -> ast.FunctionDef:
    """Return the tree of the one function of a loop text, under another name."""
    (function,) = tree(source).body
    assert isinstance(function, ast.FunctionDef)
    function.name = name
    return function


def llvm_text(source: str, name: str, fused: bool, position_bits: int = 64) -> str:
    """Return LLVM's text for the one function of `source`, under the name `name`. Positions and the
    parameters begin and end are integers of `position_bits`.
    """
    from llvmlite import ir

    module = ir.Module(name)
    compiler = LoopCompiler(module, parsed(source, name), fused, position_bits)
    compiler.function.attributes.add("nounwind")
    lane_loops.keep(module, ir)
    return str(module)


# Writes LLVM's text of a function of some name; whether products and sums are one is told.
Writer = Callable[[str, bool], str]


def function(source: str, write: Writer | None = None, writer: str = "") -> Native:
    """Return the compiled form of a loop text. Another `write` than the usual one, whose digest is `writer`, writes
    what does the same.
    """
    # The name is no part of what the text does.
    _, rest = source.split("(", 1)
    # An interrupt in the middle of LLVM's functions would leave objects behind that end the process
    # when they are collected.
    with firm:
        return _function(rest, write, writer)


def _function(text: str, write: Writer | None, writer: str) -> Native:
    rest = f"{writer}({text}" if write else text
    with _LOCK:
        found = _FUNCTIONS.get(rest)
        if found is not None:
            _COUNTS["hits"] += 1
            return found
        # Where there is no LLVM this raises: nobody must wait for what will not be made.
        engine = _engine()
        mine = Future[Native]()
        made = _WAITING.setdefault(rest, mine)
        _COUNTS["misses"] += made is mine
    if made is not mine:
        # Another thread is at it.
        return made.result()
    try:
        found = _compile(engine, f"def kernel({text}", write, writer)
    except BaseException as error:
        mine.set_exception(error)
        raise
    else:
        with _LOCK:
            _FUNCTIONS[rest] = found
            _LATEST.append(found)
        mine.set_result(found)
    finally:
        with _LOCK:
            del _WAITING[rest]
    return found


def _compile(engine: _Engine, source: str, write: Writer | None, writer: str) -> Native:
    digest = _digest(engine, writer + source)
    name = f"wt_{digest}"
    code = CODE.read(digest)
    if code is None:
        text = write(name, engine.fused) if write else llvm_text(source, name, engine.fused)
        code = engine.object_code(text)
        CODE.write(digest, code)
    with _LOCK:
        (address,), library = engine.load(code, (name,))
    return Native(address, library)


def _digest(engine: _Engine, text: str) -> str:
    key = "\n".join(
        [
            str(_VERSION),
            _expansions(),
            _llvmlite_version(),
            engine.triple,
            engine.cpu,
            engine.features,
            text,
        ]
    )
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def assemble(text: str | Callable[[], str], names: tuple[str, ...], key: str = "") -> list[int]:
    """Return the addresses of functions of a module in LLVM's own language.

    With a `key` that says all that the text depends on, a `text` that is a function is called only
    where there is no machine code on disk.
    """
    with firm:
        return _assemble(text, names, key)


def _assemble(text: str | Callable[[], str], names: tuple[str, ...], key: str) -> list[int]:
    with _LOCK:
        engine = _engine()
        known = key or text
        assert isinstance(known, str)
        digest = _digest(engine, known)
        code = CODE.read(digest)
        if code is None:
            code = engine.object_code(text if isinstance(text, str) else text())
            CODE.write(digest, code)
        addresses, library = engine.load(code, names)
        _KEPT.append(library)
        return addresses


def processor() -> tuple[str, bool]:
    """Return LLVM's features of this processor, and whether it multiplies and adds in one."""
    with _LOCK:
        engine = _engine()
        return engine.features, engine.fused


def vectors() -> str:
    """Return PyTorch's name of the vectors that code is for: "AVX512", "AVX2", or "DEFAULT" for others."""
    features = processor()[0].split(",") if available() else []
    if "+avx512f" in features:
        return "AVX512"
    return "AVX2" if "+avx2" in features else "DEFAULT"


@cache
def bytes_in_dots() -> bool:
    """Whether LLVM's functions that multiply and add up bytes take vectors of bytes; those of words before."""
    import llvmlite.binding as llvm

    return llvm.llvm_version_info[0] >= 22


@cache
def _expansions() -> str:
    """Return a digest of the files that declare scalar functions: code on disk holds their forms."""
    files = sorted(Path(ex.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _llvmlite_version() -> str:
    import llvmlite

    return str(llvmlite.__version__)


def forget() -> None:
    """Drop compiled functions, so that the next use compiles or loads anew; for tests."""
    with _LOCK:
        _FUNCTIONS.clear()
        _LATEST.clear()


def interpreter() -> str:
    """Return a text that names the machine, for reports."""
    return f"{sys.platform} {platform.machine()}"
