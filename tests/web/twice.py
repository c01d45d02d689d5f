"""Run in Pyodide by test_webassembly.py: what WebAssembly computes is what plain Python does, to the bit."""

from __future__ import annotations

import ast
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import webtorch
from webtorch.ir import dtype as dt
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.kernel import Attention, BufferSlot, Kernel, Scan, Store
from webtorch.ir.program import BufferDecl, Dispatch, Program
from webtorch.runtime.backends import get_backend
from webtorch.runtime.backends.plain import PlainBuffer, PlainExecutable, webassembly

FLOATS = (
    0.0,
    -0.0,
    1.0,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.7,
    -88.0,
    1e-40,
    1e38,
    math.inf,
    -math.inf,
    math.nan,
    -7.0,
)
REALS = (dt.float32, dt.float64)
INTEGERS = (dt.int8, dt.uint8, dt.int32, dt.uint32, dt.int64, dt.uint64)
OF_BITS = ("gcd", "bitnot", "and", "or", "xor", "shl", "shr")

compared = 0
different: list[str] = []
run = PlainExecutable.run


def values(dtype: DType) -> tuple[Any, ...]:
    """Return numbers of a type, its largest and smallest among them."""
    if dtype.kind == "float":
        return FLOATS
    if dtype.kind == "bool":
        return False, True
    low, high = dt.integer_limits(dtype)
    return tuple(v for v in (0, 1, 2, 7, 31, 64, -1, -7, low, high, low + 1) if low <= v <= high)


def same(x: Any, y: Any) -> bool:
    """Whether two numbers are one, signs of 0 too; NaN has no sign."""
    return (x != x and y != y) or (x == y and math.copysign(1, x) == math.copysign(1, y))


def near(x: Any, y: Any) -> bool:
    """Whether two numbers are sums in float32 of the same, in another order or precision."""
    return same(x, y) or math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-6)


def twice(
    self: PlainExecutable, inputs: Any, args: Any, into: Any = None, ready: Any = None
) -> Any:
    """Run a program, and again as plain Python on copies, and compare all memory."""
    global compared
    if self.written is None or not self.written.runs:
        return run(self, inputs, args, into, ready)
    copies = [PlainBuffer(b.dtype, b.elements) for b in inputs]
    for copy, buffer in zip(copies, inputs, strict=True):
        copy.data[:] = buffer.data
    found = run(self, inputs, args, into, ready)
    with mock.patch.object(webassembly, "machine", return_value=None):
        plain = PlainExecutable(self.program, lambda *_: None)
    others = run(plain, copies, args)
    # Of these plain Python's sums are float64s.
    routines = self.program.routines
    alike = near if any(isinstance(r, Attention | Scan) for r in routines) else same
    for a, b in zip([*found, *inputs], [*others, *copies], strict=True):
        compared += 1
        pairs = zip(
            a.dtype.from_bytes(bytes(a.data)), b.dtype.from_bytes(bytes(b.data)), strict=True
        )
        wrong = [(n, x, y) for n, (x, y) in enumerate(pairs) if not alike(x, y)]
        if wrong:
            different.append(f"{self.program}\n{wrong[:5]}")
    return found


def elementwise(name: str, types: list[DType], out: DType, value: Expr, rows: list[Any]) -> None:
    """Compute one expression of loaded values."""
    size, number = len(rows), len(types)
    slots = [BufferSlot(t, "read", size) for t in types] + [BufferSlot(out, "write", size)]
    store = Store(number, ex.index(0, size), value)
    kernel = Kernel(name, (size,), (), tuple(slots), (), (), (store,))
    declared = [BufferDecl("input", t, size) for t in types] + [BufferDecl("output", out, size)]
    step = Dispatch(0, tuple(range(number + 1)), ())
    program = Program((kernel,), tuple(declared), (step,), (), tuple(range(number)), (number,))
    buffers = []
    for dtype, column in zip(types, zip(*rows, strict=True), strict=True):
        buffers.append(PlainBuffer(dtype, size))
        buffers[-1].data[:] = dtype.to_bytes(list(column))
    twice(PlainExecutable(program, lambda *_: None), buffers, [])


def applies(name: str, dtype: DType) -> bool:
    """Whether kernels compute a function of numbers of a type as it stands."""
    function = FUNCTIONS[name]
    if dtype.kind == "float":
        # Python's hypot of float64 is more precise than the C library's.
        return name not in OF_BITS and not (name == "hypot" and dtype is dt.float64)
    if dtype is dt.bool_:
        return bool(function.wgsl.get("bool")) and name not in ("bitnot", "abs")
    return name == "pow" or not (
        function.libm or function.of_integers or name in ("sqrt", "rsqrt", "div", "fma", "copysign")
    )


def every_function() -> None:
    """Compute every function of the table."""
    for name, function in FUNCTIONS.items():
        if name in ("where", "philox"):
            continue
        for dtype in (*REALS, *INTEGERS, dt.bool_):
            if not applies(name, dtype):
                continue
            rows = list(itertools.product(values(dtype), repeat=min(function.arity, 2)))
            rows = [(*row, 0.5) for row in rows] if function.arity == 3 else rows
            i = ex.index(0, len(rows))
            args = tuple(ex.load(k, dtype, i) for k in range(function.arity))
            out = dt.bool_ if function.gives_bool else dtype
            elementwise(name, [dtype] * function.arity, out, ex.make(name, out, args), rows)


def every_cast() -> None:
    """Convert between all types, and draw random bits."""
    types = [t for t in dt.ALL if not t.is_complex and t.name != "wide_int64"]
    for source, target in itertools.product(types, types):
        rows = [(v,) for v in values(source)]
        loaded = ex.cast(ex.load(0, source, ex.index(0, len(rows))), source.compute)
        elementwise("cast", [source], target, ex.cast(loaded, target), rows)
    seeds = [(1, 2, 3, 4), (2**32 - 1, 0, 7, 2**32 - 1)]
    given = [ex.load(k, dt.uint32, ex.index(0, 2)) for k in range(4)]
    for lane in range(4):
        elementwise("bits", [dt.uint32] * 4, dt.uint32, ex.philox(*given, lane), seeds)


def shared_program() -> None:
    """Compute what test_without_numpy.py compares with PyTorch."""
    text = Path("/root/tests/engine/test_without_numpy.py").read_text()
    (function,) = (n for n in ast.parse(text).body if getattr(n, "name", "") == "program")
    names: dict[str, Any] = {"math": math, "Any": Any}
    exec(compile(ast.Module([function], []), "program", "exec"), names)
    names["program"](webtorch)


def products() -> list[float]:
    """Return how far tiles of products and convolutions are from float64, in units of the largest result."""
    torch: Any = webtorch
    torch.manual_seed(0)
    found = []
    for m, k, n in ((5, 300, 7), (64, 33, 40), (3, 17, 130)):
        a, b = torch.randn(2, m, k), torch.randn(k, n)
        for x, y in ((a, b), (a, b.t().contiguous().t()), (a.mT.contiguous().mT, b)):
            found.append(distance((x @ y + 1).relu(), (x.double() @ y.double() + 1).relu()))
    for stride, padding, groups in ((1, 1, 1), (2, 0, 1), (1, 2, 2)):
        image, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 3)
        results = []
        for kind in (torch.float32, torch.float64):
            x, w = (t.clone().to(kind).requires_grad_() for t in (image, weight))
            out = torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)
            (out * out).sum().backward()
            results.append((out.detach(), x.grad, w.grad))
        found += [distance(one, exact) for one, exact in zip(*results, strict=True)]
    return found


def distance(one: Any, exact: Any) -> float:
    """Return the largest difference, in units of the largest number."""
    return float((one.double() - exact).abs().max() / exact.abs().max())


def index_error() -> str:
    """Return the error of an index that is out of bounds."""
    try:
        webtorch.tensor([1.0, 2.0])[webtorch.tensor([0, 5])].tolist()
    except IndexError as error:
        return str(error)
    return ""


far = products()
error = index_error()
PlainExecutable.run = twice  # type: ignore[method-assign]
every_function()
every_cast()
shared_program()
backend = get_backend("cpu")
answer = {
    "compared": compared, "different": different, "far": max(far), "error": error,
    "description": backend.description(), "counts": backend.caches()["routines"],
}  # fmt: skip
sys.stdout.write(json.dumps(answer) + "\n")
