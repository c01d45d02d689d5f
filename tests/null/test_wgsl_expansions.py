"""The accurate scalar functions, evaluated in float32 with NumPy, against float64. Needs no device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.null import formula
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32
from webtorch.ir.expr import FUNCTIONS, Expr, expand

EXPANSIONS = {f.name: f for f in FUNCTIONS.values() if f.expansion is not None}
TYPES = {"float32": np.float32, "int32": np.int32, "uint32": np.uint32, "bool": np.bool_}


def _shift(name: str) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        wide = a.astype(np.int64)
        n = b.astype(np.int64)
        out = wide << np.clip(n, 0, 31) if name == "shl" else wide >> np.clip(n, 0, 31)
        return np.where(n > 31, 0, out)

    return run


OPS: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "trunc": np.trunc, "round": np.round, "bitnot": np.invert,
    "isnan": np.isnan, "isinf": np.isinf, "not": np.logical_not, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "copysign": np.copysign, "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal, "shl": _shift("shl"), "shr": _shift("shr"),
}  # fmt: skip


def run_float32(root: Expr, *inputs: Any) -> Any:
    """Evaluate an expression with every operation rounded to its own type."""
    memo: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in ex.walk(root):
            a = [memo[x] for x in node.args]
            kind = TYPES[node.dtype.name]
            match node.op:
                case "const":
                    memo[node] = np.array(node.value, kind)
                case "input":
                    memo[node] = inputs[node.value]  # type: ignore[index]
                case "where":
                    memo[node] = np.where(*a).astype(kind)
                case "bitcast":
                    memo[node] = np.ascontiguousarray(a[0]).view(kind).reshape(a[0].shape)
                case "cast":
                    source = a[0]
                    if node.args[0].dtype is float32:
                        source = np.nan_to_num(source.astype(np.float64), nan=0.0)
                    memo[node] = source.astype(kind)
                case "and":
                    memo[node] = np.bitwise_and(*a)
                case "or":
                    memo[node] = np.bitwise_or(*a)
                case op:
                    memo[node] = OPS[op](*a).astype(kind)
                    assert node.args[0].dtype.name != "float32" or OPS[op](*a).dtype != np.float64
    return memo[root]


def ulps(actual: Any, exact: Any) -> Any:
    """Return the distance to the exact value in units of the last place of float32; subnormals count as equal to 0."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126)))
        out = np.abs(actual.astype(np.float64) - exact) / unit
        same = (np.isnan(actual) & np.isnan(exact)) | (actual == rounded)
        out = np.where(same, 0.0, out)
        # Next to the largest number, infinity is one step away.
        edge = np.isinf(actual) != np.isinf(rounded)
        near = (np.abs(exact) > 3.4028232e38) & (np.abs(exact) < 3.4028242e38)
        tiny = (np.abs(actual) < 2.0**-126) & (np.abs(exact) < 2.0**-125.9)
    return np.where(edge & near, 1.0, np.where(tiny, 0.0, np.where(np.isnan(out), np.inf, out)))


EXACT: dict[str, Callable[..., Any]] = {
    **{name: formula.FUNCTIONS[name] for name in EXPANSIONS},
    "pow": np.power,
}
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        10.0,
        math.inf,
        -math.inf,
        math.nan,
        3.4028234e38,
        -3.4028234e38,
        1.1754944e-38,
        -1.1754944e-38,
        88.7,
        -87.0,
        104.0,
        -104.0,
        1e-4,
        -1e-4,
        0.70710677,
        1.4142135,
        1e10,
        1e-10,
        8388608.0,
        16777217.0,
        0.99999994,
        1.0000001,
        -0.99999994,
        5.0,
        7.0,
        -5.0,
        1.5,
        2.5,
    ],
    np.float32,
)
# Largest error allowed, in units of the last place. Everything is at most 4; what is better is held to what it reaches.
MOST = dict.fromkeys(EXPANSIONS, 4.0) | {"fma": 0.501}


def samples(count: int, seed: int) -> Any:
    """Return all magnitudes of float32, and many moderate ones."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    bits = np.where(np.abs(bits) < 2.0**-126, np.float32(0), bits)
    moderate = rng.standard_normal(count) * 2.0 ** rng.integers(-8, 7, count)
    return np.concatenate(
        [SPECIAL, bits, moderate.astype(np.float32), rng.uniform(-2, 2, count).astype(np.float32)]
    )


def pair_samples(name: str, count: int) -> tuple[Any, Any]:
    """Return two columns: all pairs of special values, and random ones."""
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    x, y = samples(count, 1), samples(count, 2)
    rng = np.random.default_rng(3)
    rng.shuffle(y)
    if name == "pow":
        # Where the answer is finite: y log2 x within the exponent range.
        base = np.abs(x)
        with np.errstate(all="ignore"):
            y2 = (rng.uniform(-150, 130, len(x)) / np.log2(base.astype(np.float64))).astype(
                np.float32
            )
        whole = np.round(rng.uniform(-12, 12, len(x))).astype(np.float32)
        close = (1 + rng.standard_normal(len(x)) * 1e-4).astype(np.float32)
        far = (rng.standard_normal(len(x)) * 3e5).astype(np.float32)
        return (np.concatenate([a, x, base, x, close]), np.concatenate([b, y, y2, whole, far]))
    return np.concatenate([a, x]), np.concatenate([b, y])


def cases(name: str, count: int) -> tuple[Any, ...]:
    """Return the inputs on which `name` is tested."""
    if name == "fma":
        x, y = (np.random.default_rng(i).standard_normal(count).astype(np.float32) for i in (1, 2))
        # Half of the sums cancel most of the product.
        return x, y, np.where(x > 0, y, x * y * np.float32(-1.001))
    return (samples(count, 0),) if EXPANSIONS[name].arity == 1 else pair_samples(name, count)


@pytest.mark.parametrize("name", EXPANSIONS)
def test_expansion_is_within_four_units_of_float64(name: str) -> None:
    inputs = cases(name, 20000)
    root = EXPANSIONS[name].expansion(*[ex.input_(i, float32) for i in range(len(inputs))])
    actual = run_float32(root, *inputs)
    with np.errstate(all="ignore"):
        exact = EXACT[name](*[x.astype(np.float64) for x in inputs])
    error = ulps(actual, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= MOST[name], (
        f"{name}({', '.join(repr(x[worst]) for x in inputs)}) is {actual[worst]!r}, exact {exact[worst]!r}: "
        f"{error[worst]:.2f} units"
    )


def test_whole_powers_are_exact() -> None:
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(np.arange(-12, 13), np.arange(0, 7)))
    actual = run_float32(
        EXPANSIONS["pow"].expansion(ex.input_(0, float32), ex.input_(1, float32)), x, y
    )
    np.testing.assert_array_equal(actual, x.astype(np.float64) ** y)


def test_expand_replaces_only_what_is_asked_for() -> None:
    x = ex.input_(0, float32)
    root = ex.exp(x) + ex.sin(x)
    ops = {n.op for n in ex.walk(expand(root, {"exp"}))}
    assert "exp" not in ops
    assert "sin" in ops
