"""The formulas of the op table against PyTorch in float64, on random and special points. No device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch

from tests.null.formula import evaluate, numpy_type
from webtorch.functions import loss, reduce
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bool_, float32, float64, int32, int64, uint8
from webtorch.ops import activation, elementwise, special
from webtorch.ops.record import TABLE, Elementwise

F = torch.nn.functional
SPECIAL = (
    -math.inf,
    -100.0,
    -6.0,
    -3.0,
    -1.0,
    -0.5,
    -0.0,
    0.0,
    1e-9,
    0.5,
    1.0,
    2.0,
    3.0,
    6.0,
    20.5,
    100.0,
    math.inf,
    math.nan,
)

# Parts of composites, and ops that PyTorch lacks: what they should give, in PyTorch's own ops.
ORACLES: dict[str, Callable[..., torch.Tensor]] = {
    "_add": torch.add,
    "_add_scaled": lambda x, y, a: x + a * y,
    "_sub": torch.sub,
    "_sub_scaled": lambda x, y, a: x - a * y,
    "_div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "_div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "_cube": lambda x: x**3,
    "_fma": lambda x, y, z: x * y + z,
    "_half_power": lambda x: x**0.5,
    "_round": torch.round,
    "_round_fraction": lambda x, s: torch.round(x * s) / s,
    "_round_multiple": lambda x, s: torch.round(x / s) * s,
    "_where": lambda c, x, y: torch.where(c != 0, x, y),
    "_clamp": torch.clamp,
    "clamp_min": lambda x, m: torch.clamp(x, min=m),
    "clamp_max": lambda x, m: torch.clamp(x, max=m),
    "_nan_to_num": lambda x, *n: torch.nan_to_num(x, *[v.flatten()[0].item() for v in n]),
    "_logit": torch.logit,
    "_logit_backward": lambda g, x: torch.ops.aten.logit_backward(g, x),
    "_logit_clamped": lambda x, e: torch.logit(x, e.flatten()[0].item()),
    "sigmoid_backward": lambda g, o: torch.ops.aten.sigmoid_backward(g, o),
    "tanh_backward": lambda g, o: torch.ops.aten.tanh_backward(g, o),
    "threshold_backward": lambda g, x, t: torch.ops.aten.threshold_backward(g, x, t.flatten()[0].item()),
    "_root": torch.sqrt,
    "_root_backward": lambda g, o: torch.where(o == 0, 0.0, g / (2 * o)),
    "_is_nonzero": lambda x: (x != 0).to(x.dtype) + 0 * torch.nan_to_num(x),
    "_norm_slope": lambda x, n, p: torch.where((x == 0) | (n == 0), 0.0, x.sign() * (x.abs() / n) ** (p - 1)),
    "_xlogy_backward": lambda g, x, y: torch.where((x == 0) & (y <= 0), 0.0, g * y.log()),
    "_log_add": torch.logaddexp,
    "_log_add_backward": lambda g, x, y: g * torch.sigmoid(torch.where((x == y) & x.isinf(), 0.0, x - y)),
    "_prelu": lambda x, w: torch.where(x > 0, x, w * x),
    "_gelu_erf": F.gelu,
    "_gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": lambda a, b: F.silu(a) * b,
    "_softsign_backward": lambda g, x: g / (1 + x.abs()) ** 2,
    "snake": lambda x, a: x + torch.sin(a * x) ** 2 / a,
    "style_affine": lambda x, g, b: x * (1 + g) + b,
    "_gate": lambda x, y: x * torch.sigmoid(y),
    "_squared_error": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "_absolute_error": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "_smooth_error": lambda x, y, b: F.smooth_l1_loss(x, y, reduction="none", beta=b.flatten()[0].item()),
    "_huber_error": lambda x, y, d: F.huber_loss(x, y, reduction="none", delta=d.flatten()[0].item()),
    "_bce_error": lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    "_bce_backward": lambda g, x, y: g * (x - y) / ((1 - x) * x).clamp_min(1e-12),
    "_bce_target_backward": lambda g, x: g * (torch.log1p(-x) - x.log()),
    "_bce_logits_error": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "_bce_logits_backward": lambda g, x, y: g * (torch.sigmoid(x) - y),
    "_bce_logits_weighted_error": lambda x, y, w: (1 - y) * x + (1 + (w - 1) * y) * F.softplus(-x, threshold=1e9),
    "_soft_margin": lambda x, y: F.softplus(-x * y, threshold=1e9),
    "ldexp": lambda x, y: x * torch.exp2(y),
    "threshold": lambda x, t, v: torch.where(x <= t, v, x),
    # Not torch.polygamma(1, x), which has 9 digits.
    "_trigamma": lambda x: torch.from_numpy(scipy.special.polygamma(1, x.numpy())),
    "_erfinv_backward": lambda g, o: 0.5 * math.sqrt(math.pi) * torch.exp(o * o) * g,
    "_lgamma_backward": lambda g, x: g * torch.digamma(x),
}  # fmt: skip
# Values of the formula's numbers that tests use.
NUMBERS: dict[str, float] = {
    "alpha": 2.0, "value": 3.0, "scale": 10.0, "eps": 0.1, "nan": 1.5, "posinf": 7.0, "neginf": -7.0, "threshold": 0.75,
    "negative_slope": 0.25, "min_val": -1.5, "max_val": 2.0, "beta": 1.5, "lambd": 0.75, "delta": 0.75, "p": 3.0,
}  # fmt: skip
# Rules with a domain of their own: PyTorch's functions raise, or give garbage, outside it.
POINTS: dict[str, tuple[float, ...]] = {
    "_bce_error": (0.0, 1e-9, 0.25, 0.5, 1.0),
    "_bce_backward": (0.0, 1e-9, 0.25, 0.5, 1.0),
    "_bce_target_backward": (0.0, 1e-9, 0.25, 0.5, 1.0),
    "_norm_slope": (-3.0, -1.0, 0.0, 0.5, 2.0),
    # erfinv and the gamma functions follow other expansions than PyTorch's: not at every special point equally well.
    "_trigamma": (-3.7, -0.4, 0.5, 1.0, 2.0, 6.0, 20.5, 100.0),
    # Above 20 PyTorch's mish multiplies by a tanh that is 1; at -inf both give NaN or 0.
    "mish": (-100.0, -6.0, -1.0, -0.0, 0.5, 3.0, 19.5, 20.5, 100.0),
    # x * x overflows nowhere here.
    "_gelu_tanh": (-100.0, -6.0, -1.0, -0.0, 0.5, 3.0, 20.5, 100.0),
    "_soft_margin": (-20.5, -1.0, -0.0, 0.5, 6.0, 20.5),
    "snake": (-3.0, -1.0, 0.5, 2.0, 6.0),
}  # fmt: skip
# The entries of the files named above: other files test their own.
OPS = [
    value
    for file in (elementwise, activation, loss, reduce, special)
    for value in vars(file).values()
    if isinstance(value, Elementwise)
]
OPS = list({op.name: op for op in OPS}.values())
FLOAT_OPS = [op for op in OPS if float64 in op.dtypes]
INTEGER_OPS = [op for op in OPS if op.promotion != "float" and int64 in op.dtypes]


def oracle(op: Elementwise) -> Callable[..., torch.Tensor]:
    """Return PyTorch's function, taking one tensor for each tensor and number of the formula."""
    if op.name in ORACLES:
        return ORACLES[op.name]
    assert op.torch, f"{op.name} has no oracle: add one"
    function: Any = torch
    for part in op.torch.split("."):
        function = getattr(function, part)
    count = len(op.tensors)

    def call(*args: torch.Tensor) -> torch.Tensor:
        numbers = [a.flatten()[0].item() for a in args[count:]]
        if "*" in op.signature:
            return function(*args[:count], **dict(zip(op.numbers, numbers, strict=True)))  # type: ignore[no-any-return]
        return function(*args[:count], *numbers)  # type: ignore[no-any-return]

    return call


def apply(
    op: Elementwise, arrays: list[np.ndarray[Any, Any]], dtype: DType
) -> np.ndarray[Any, Any]:
    """Return the formula on arrays of one type."""
    return evaluate(op.build(tuple(ex.input_(i, dtype) for i in range(len(arrays)))), arrays)


def with_numbers(
    op: Elementwise, tensors: list[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    numbers = [np.full(tensors[0].shape, NUMBERS[n]).astype(tensors[0].dtype) for n in op.numbers]
    return [*tensors, *numbers]


def points(op: Elementwise) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Yield random points of the op's domain, then every combination of special ones."""
    count = len(op.tensors)
    random = np.random.default_rng(0)
    low, high = op.domain
    yield [random.uniform(low, high, 200) for _ in range(count)]
    special = POINTS.get(op.name, SPECIAL)
    if count > 2:
        special = tuple(v for v in special if v in (-1.0, -0.0, 0.25, 0.5, 2.0, math.inf))
    grid = np.array(list(itertools.product(special, repeat=count)), np.float64).reshape(-1, count)
    yield [np.ascontiguousarray(grid[:, i]) for i in range(count)]


@pytest.mark.parametrize("op", FLOAT_OPS, ids=lambda op: op.name)
def test_formula_is_pytorchs_function_in_float64(op: Elementwise) -> None:
    for tensors in points(op):
        arrays = with_numbers(op, tensors)
        expected = oracle(op)(*[torch.from_numpy(a) for a in arrays]).numpy()
        actual = apply(op, arrays, float64)
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(
            actual, expected, rtol=2e-12, atol=1e-14, err_msg=str(arrays)[:400]
        )


@pytest.mark.parametrize("dtype", [int64, int32, uint8], ids=lambda d: d.name)
@pytest.mark.parametrize("op", INTEGER_OPS, ids=lambda op: op.name)
def test_formula_is_pytorchs_function_of_integers(op: Elementwise, dtype: DType) -> None:
    random = np.random.default_rng(1)
    low, high = (math.ceil(v) for v in op.domain)
    if dtype is uint8:
        low, high = max(low, 0), max(high, 4)
    tensors = [random.integers(low, high + 1, 200).astype(numpy_type(dtype)) for _ in op.tensors]
    arrays = with_numbers(op, tensors)
    try:
        expected = oracle(op)(*[torch.from_numpy(a) for a in arrays]).numpy()
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"PyTorch: {error}"[:100])
    np.testing.assert_array_equal(apply(op, arrays, dtype), expected)


@pytest.mark.parametrize(
    "op",
    [op for op in OPS if op.promotion != "float" and bool_ in op.dtypes],
    ids=lambda op: op.name,
)
def test_formula_is_pytorchs_function_of_bools(op: Elementwise) -> None:
    grid = np.array(list(itertools.product((False, True), repeat=len(op.tensors))))
    arrays = with_numbers(op, [np.ascontiguousarray(grid[:, i]) for i in range(len(op.tensors))])
    expected = oracle(op)(*[torch.from_numpy(a) for a in arrays]).numpy()
    np.testing.assert_array_equal(apply(op, arrays, bool_), expected)


@pytest.mark.covers("C49", "C48")
def test_shifts_past_the_width_are_pytorchs() -> None:
    values = np.array([-5, -5, 7, 7, 7, 7], np.int32)
    counts = np.array([40, 2, 32, -1, 31, 0], np.int32)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        op = TABLE[name]
        assert isinstance(op, Elementwise)
        expected = getattr(torch, name)(torch.from_numpy(values), torch.from_numpy(counts)).numpy()
        np.testing.assert_array_equal(apply(op, [values, counts], int32), expected)


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("sigmoid", (-100.0,), math.exp(-100.0)),
        ("sigmoid", (1000.0,), 1.0),
        ("softplus", (-1000.0, 1.0, 20.0), 0.0),
        ("logsigmoid", (-1000.0,), -1000.0),
        ("logaddexp", (1e4, 1e4), 1e4 + math.log(2)),
        ("logaddexp2", (3000.0, 3000.0), 3001.0),
        ("hypot", (3e200, 4e200), 5e200),
        ("expm1", (1e-12,), 1.0000000000005e-12),
        ("log1p", (1e-12,), 9.999999999995e-13),
        ("_logit", (0.5 + 1e-12,), 4e-12),
        ("sinc", (1e-9,), 1.0),
        ("xlogy", (0.0, 0.0), 0.0),
        ("floor_divide", (1.0, 0.1), 9.0),
    ],
)
def test_formulas_keep_their_digits_at_the_extremes(
    name: str, inputs: tuple[float, ...], expected: float
) -> None:
    op = TABLE[name]
    assert isinstance(op, Elementwise)
    actual = apply(op, [np.array([v]) for v in inputs], float64)
    np.testing.assert_allclose(actual, [expected], rtol=1e-4 if name == "_logit" else 1e-12)


@pytest.mark.parametrize("op", FLOAT_OPS, ids=lambda op: op.name)
def test_float32_formula_stays_in_float32(op: Elementwise) -> None:
    root = op.build(tuple(ex.input_(i, float32) for i in range(len(op.tensors) + len(op.numbers))))
    assert root.dtype is (bool_ if op.promotion == "bool" else float32)
    assert {node.dtype for node in ex.walk(root)} <= {float32, bool_}
