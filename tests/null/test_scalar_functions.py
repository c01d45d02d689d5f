"""The records of scalar functions: every language has a form of each, and all of them are right. No device.

The oracle of a value is NumPy's or Python's function in float64 (`tests/null/formula`), that of a derivative
a difference quotient of it, that of a complex form NumPy's function of complex numbers.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cpu.harness import EXECUTIONS, run
from tests.null import formula
from tests.null.formula import evaluate
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bool_, float32, float64, int32
from webtorch.ir.expr import FUNCTIONS, Expr, ScalarFunction
from webtorch.ir.expr.pair import Pair
from webtorch.ir.kernel import BufferSlot, Kernel, Store
from webtorch.ir.limits import Limits
from webtorch.lower.plainsource import plain_source
from webtorch.lower.wgsl import render
from webtorch.ops.derive import derivative
from webtorch.runtime.backends.plain.arithmetic import NAMESPACE

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(1 << 30, 8, 256, 65535, 16384, False, True)
# Renderers are written for these two; tests/lower and tests/cpu run them.
STRUCTURAL = ("where", "philox")
# Of integers or bools only.
INTEGRAL = ("gcd", "bitnot", "and", "or", "xor", "shl", "shr")
RECORDS = [f for f in FUNCTIONS.values() if f.name not in STRUCTURAL]
FLOATS = [f for f in RECORDS if f.name not in (*INTEGRAL, "not")]
POINTS = (0.3, 0.7, 1.4, 2.6, -0.45, -1.9)
each = pytest.mark.parametrize("function", RECORDS, ids=lambda f: f.name)
each_of_floats = pytest.mark.parametrize("function", FLOATS, ids=lambda f: f.name)


def operand_type(function: ScalarFunction) -> DType:
    return bool_ if function.name == "not" else int32 if function.name in INTEGRAL else float32


def apply(function: ScalarFunction, *args: Expr) -> Expr:
    if function.arity == 1:
        return ex.unary(function.name, args[0])
    return (
        ex.binary(function.name, *args)
        if function.arity == 2
        else ex.make(function.name, args[0].dtype, args)
    )


def inputs(function: ScalarFunction, dtype: DType) -> tuple[Expr, ...]:
    return tuple(ex.input_(i, dtype) for i in range(function.arity))


def columns(function: ScalarFunction, dtype: DType) -> list[Any]:
    """Return columns of operands: all combinations of some numbers."""
    numbers: Any = POINTS
    if dtype is bool_:
        numbers = (False, True)
    elif dtype is int32:
        numbers = (0, 1, 2, 5, 12)
    rows = list(itertools.product(numbers, repeat=function.arity))
    return [np.array(c, formula.numpy_type(dtype)) for c in zip(*rows)]


def exact(function: ScalarFunction, *args: Any) -> Any:
    """Return the oracle's values."""
    with np.errstate(all="ignore"):
        return formula.FUNCTIONS[function.name](*args)


def kernel_of(function: ScalarFunction, count: int) -> Kernel:
    dtype = operand_type(function)
    i = ex.index(0, count)
    value = apply(function, *(ex.load(k, dtype, i) for k in range(function.arity)))
    slots = [BufferSlot(dtype, "read", count)] * function.arity
    result = BufferSlot(value.dtype, "write", count)
    return Kernel(
        f"one_{function.name}",
        (count,),
        (),
        (*slots, result),
        (),
        (),
        (Store(function.arity, i, value),),
    )


def close(actual: Any, expected: Any, dtype: DType = float32) -> None:
    rtol = 1e-6 if dtype is float32 else 1e-12
    np.testing.assert_allclose(
        np.asarray(actual, "float64"), np.asarray(expected, "float64"), rtol=rtol, atol=rtol
    )


# -- languages


@each
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_processors_compute_every_function(function: ScalarFunction, execution: str) -> None:
    if execution == "native" and importlib.util.find_spec("llvmlite") is None:
        pytest.skip("llvmlite is not installed")
    dtype = operand_type(function)
    args = columns(function, dtype)
    (actual,) = run(kernel_of(function, len(args[0])), [*args, None], execution=execution)
    wide = [a.astype("float64") for a in args] if dtype is float32 else args
    close(actual, exact(function, *wide))


@each
def test_plain_python_computes_every_function(function: ScalarFunction) -> None:
    dtype = operand_type(function)
    args = columns(function, dtype)
    count = len(args[0])
    namespace: dict[str, Any] = dict(NAMESPACE)
    exec(plain_source(kernel_of(function, count)), namespace)
    out: list[Any] = [0] * count
    namespace["kernel"](*(a.tolist() for a in args), out, [0, 0])
    wide = [a.astype("float64") for a in args] if dtype is float32 else args
    close(out, exact(function, *wide))


@pytest.mark.parametrize("name", ["max", "min"])
def test_plain_python_gives_nan_where_either_operand_is(name: str) -> None:
    namespace: dict[str, Any] = dict(NAMESPACE)
    exec(plain_source(kernel_of(FUNCTIONS[name], 4)), namespace)
    out, nan = [0.0] * 4, math.nan
    namespace["kernel"]([nan, 1.0, nan, 2.0], [1.0, nan, nan, 1.0], out, [0, 0])
    np.testing.assert_array_equal(out, [nan, nan, nan, 2.0 if name == "max" else 1.0])


@each
def test_wgsl_has_a_text_or_an_expansion(function: ScalarFunction) -> None:
    kernel = kernel_of(function, 8)
    source = "\n".join(p.source for p in render(kernel, LIMITS, "naga"))
    kind = {"float32": "f32", "int32": "i32", "bool": "bool"}[operand_type(function).name]
    if kind == "f32" and function.expansion is not None:
        assert f"fn wt_{function.name}(" in source
        assert source.count(f"wt_{function.name}(") == 2
    else:
        text = function.wgsl[kind]
        name = text.split("{", 1)[0].strip("(")
        assert name in source


@each_of_floats
def test_onnx_has_a_node_or_a_formula(function: ScalarFunction) -> None:
    if function.name == "truncmod":
        # A node with an attribute: the writer's own.
        return
    assert function.onnx
    if isinstance(function.onnx, str):
        onnx = pytest.importorskip("onnx")
        assert onnx.defs.has(function.onnx)
        return
    args = columns(function, float64)
    expected = exact(function, *args)
    good = np.isfinite(np.asarray(expected, "float64"))
    actual = evaluate(function.onnx(*inputs(function, float64)), args)
    close(actual[good], expected[good], float64)


# -- mathematics


@each_of_floats
def test_slopes_are_those_of_difference_quotients(function: ScalarFunction) -> None:
    if function.gives_bool:
        assert function.slopes == ()
        return
    args = columns(function, float64)
    step = 1e-6
    for slot in range(function.arity):
        above, below = list(args), list(args)
        above[slot], below[slot] = args[slot] + step, args[slot] - step
        expected = (exact(function, *above) - exact(function, *below)) / (2 * step)
        symbols = inputs(function, float64)
        slope = derivative(apply(function, *symbols), symbols[slot])
        actual = np.zeros(len(args[0])) if slope is None else evaluate(slope, args)
        # Neither at corners, where the two sides of the quotient differ, nor outside the domain.
        left = (exact(function, *args) - exact(function, *below)) / step
        smooth = np.isfinite(expected) & (abs(left - expected) < 1e-3 * (1 + abs(expected)))
        assert smooth.sum() >= 2, function.name
        np.testing.assert_allclose(actual[smooth], expected[smooth], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", INTEGRAL)
def test_functions_of_integers_have_no_slope(name: str) -> None:
    assert FUNCTIONS[name].slopes == ()


NUMBERS = (0.4 + 0.3j, -1.2 + 0.7j, 0.9 - 2.1j, -0.3 - 0.4j, 2.5 + 0.1j)
COMPLEX = [f for f in FLOATS if f.pairs is not None and not f.gives_bool]


@pytest.mark.parametrize("function", COMPLEX, ids=lambda f: f.name)
def test_complex_forms_are_numpys(function: ScalarFunction) -> None:
    rows = list(itertools.product(NUMBERS, repeat=function.arity))
    args = [np.array(c) for c in zip(*rows)]
    own: dict[str, Callable[..., Any]] = {
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "fma": lambda x, y, z: x * y + z,
        "pow": np.power,
    }
    expected = own.get(function.name) or getattr(np, function.numpy)
    pairs = [
        Pair(ex.input_(2 * i, float64), ex.input_(2 * i + 1, float64)) for i in range(len(args))
    ]
    parts = [part for a in args for part in (a.real.copy(), a.imag.copy())]
    assert function.pairs is not None
    found = function.pairs(*pairs)
    actual = (
        evaluate(found, parts)
        if isinstance(found, Expr)
        else evaluate(found.re, parts) + 1j * evaluate(found.im, parts)
    )
    np.testing.assert_allclose(actual, expected(*args), rtol=1e-12, atol=1e-14)


def test_what_is_exact_of_float16_needs_no_rounding() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(500).astype("float16").astype("float32") for _ in range(2))
    for function in FLOATS:
        if function.exact:
            value = np.asarray(exact(function, *[x, y][: function.arity]), "float32")
            np.testing.assert_array_equal(value, value.astype("float16"), err_msg=function.name)


@pytest.mark.parametrize("name", ["floordiv", "truncdiv"])
def test_a_quotient_by_one_is_rounded_all_the_same(name: str) -> None:
    x = ex.input_(0, float32)
    values = np.array([2.5, -2.5, 3.0, -0.5], "float32")
    expected = np.floor(values) if name == "floordiv" else np.trunc(values)
    np.testing.assert_array_equal(evaluate(ex.binary(name, x, 1.0), [values]), expected)
    whole = ex.input_(0, int32)
    assert ex.binary(name, whole, 1) is whole


# -- one place


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give the words of strings with their lines; not of docstrings, nor of the public entries."""
    ours: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            ours |= {id(n.value) for n in node.body[:1] if isinstance(n, ast.Expr)}
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "elementwise":
            ours |= {id(n) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ours:
            words = node.value.split()
            if len(words) == 1 or all(w.replace(".", "").replace("_", "").isalnum() for w in words):
                yield from ((node.lineno, w) for w in words)


@pytest.mark.parametrize("folder", ["ir", "ops", "lower", "runtime", "autograd", "onnx", "web"])
def test_only_its_record_names_a_function(folder: str) -> None:
    """A fact about a function that stands beside its record belongs into it."""
    # What is not the function: the operation pow, and the way in which gelu is approximated.
    others = {
        ("webtorch/onnx/rules/elementwise.py", "pow"),
        ("webtorch/onnx/rules/elementwise.py", "tanh"),
        ("webtorch/ops/elementwise.py", "pow"),
    }
    names = {f.name for f in FUNCTIONS.values() if f.expansion is not None}
    names |= {f.numpy for f in FUNCTIONS.values() if f.expansion is not None and f.numpy}
    found = []
    for path in sorted((ROOT / "webtorch" / folder).rglob("*.py")):
        if (ROOT / "webtorch/ir/expr") in path.parents:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        words = [(line, w) for line, w in strings(tree) if w in names and (name, w) not in others]
        found += [f"{name}:{line} {word}" for line, word in words]
    assert not found, found


def test_a_new_function_is_one_record() -> None:
    """A function that no language knows: declared, it is computed and differentiated everywhere."""
    script = """
        import math
        from webtorch.ir import expr as ex
        from webtorch.ir.expr import cos, sin
        from webtorch.ir.expr.circular import sin_f32
        from webtorch.ir.expr.node import unary_function

        def half(sine):
            return lambda x: 2.0 * sine(x * 0.5) * sine(x * 0.5)

        versine = unary_function(
            "versine", slopes=(lambda x, out: sin(x),), pairs=lambda z: 1.0 - ex.FUNCTIONS["cos"].pairs(z),
            cost=8, cost_cpu=25, expansion=half(sin_f32), expansion_cpu=half(ex.FUNCTIONS["sin"].expansion_cpu),
            python=lambda x: 2.0 * math.sin(0.5 * x) ** 2, onnx=half(sin),
        )
        from tests.null import test_scalar_functions as tests
        function = ex.FUNCTIONS["versine"]
        for execution in tests.EXECUTIONS:
            tests.test_processors_compute_every_function(function, execution)
        tests.test_plain_python_computes_every_function(function)
        tests.test_wgsl_has_a_text_or_an_expansion(function)
        tests.test_onnx_has_a_node_or_a_formula(function)
        tests.test_slopes_are_those_of_difference_quotients(function)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
