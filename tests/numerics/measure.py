"""How far each elementwise operation is from the exact result, in units of the last place of float32.

The reference is PyTorch in float64, on the float32 numbers that the operation got.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import torch

import webtorch
from tests.ops.table import function, oracle
from webtorch.ir.dtype import float32
from webtorch.ops.record import TABLE, Elementwise

SMALLEST = 2.0**-126
LARGEST = 3.4028234663852886e38
# Beside those, what every operation is asked.
SPECIAL = (
    0.0, -0.0, 1e-45, -1e-45, 1e-39, SMALLEST, -SMALLEST, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 1e-10, -1e-10,
    100.0, -100.0, 1e10, -1e10, 1e30, LARGEST, -LARGEST, math.inf, -math.inf, math.nan,
)  # fmt: skip
# Operations whose inputs are not two numbers of one interval, or whose results are no measurements.
_NOT_MEASURED = frozenset((
    "nextafter", "ldexp", "addcmul", "addcdiv", "lerp", "heaviside", "copysign", "angle", "positive",
    "snake", "style_affine", "swiglu", "threshold_backward",
))  # fmt: skip


@dataclass
class Measured:
    """What was found for one operation."""

    name: str
    # The largest error in ulp, and the inputs that it was found at.
    ulp: float
    at: tuple[float, ...]
    # The same of PyTorch's own float32.
    torch_ulp: float
    # Special points where the result is of another kind: inputs, ours, PyTorch's.
    special: list[tuple[tuple[float, ...], float, float]] = field(default_factory=list)


def entries() -> list[Elementwise]:
    """Return the operations that are measured: public, of one or two tensors of floats."""
    found = []
    for op in TABLE.values():
        if not isinstance(op, Elementwise) or not op.function_in or not op.torch:
            continue
        if op.promotion == "bool" or float32 not in op.dtypes or len(op.tensors) > 2:
            continue
        if op.name not in _NOT_MEASURED and not set(op.tensors) & {"grad_output"}:
            found.append(op)
    return found


def inputs(op: Elementwise, count: int) -> list[np.ndarray[Any, Any]]:
    """Return numbers from the op's domain: evenly, by magnitude, and near integers."""
    low, high = op.domain
    generator = np.random.default_rng(len(op.name))
    columns = []
    for _ in op.tensors:
        even = np.linspace(low, high, count)
        signs = np.where(generator.random(count) < 0.5, -1.0, 1.0)
        reach = max(abs(low), abs(high), 1e-3)
        sized = signs * np.exp(generator.uniform(math.log(1e-6 * reach), math.log(reach), count))
        sized = sized[(sized >= low) & (sized <= high)]
        whole = np.arange(math.ceil(low), math.floor(high) + 1)[:64]
        near = np.concatenate(
            [np.nextafter(whole.astype("f4"), np.float32(s)) for s in (-1e9, 1e9)]
        )
        near = near[(near >= low) & (near <= high)]
        column = np.concatenate([even, sized, near]).astype("f4")
        # Adapters may flush subnormal numbers to 0, of inputs too.
        column = column[(np.abs(column) >= SMALLEST) | (column == 0)]
        columns.append(column)
    size = min(map(len, columns))
    if len(columns) == 1:
        return columns
    return [generator.permutation(c)[:size] for c in columns]


def numbers(op: Elementwise) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the options with which an operation is measured: the first sample of its entry."""
    return op.samples[0]


def exact(op: Elementwise, columns: list[np.ndarray[Any, Any]], dtype: Any) -> np.ndarray[Any, Any]:
    """Return PyTorch's result in a type."""
    args, kwargs = numbers(op)
    if op.name == "tanhshrink" and dtype is torch.float64:
        # PyTorch takes a difference, which loses its digits near 0 also in float64.
        with mpmath.workdps(40):
            found = [float(x - mpmath.tanh(x)) for x in map(mpmath.mpf, columns[0].tolist())]
        return np.array(found)
    given = [torch.from_numpy(c).to(dtype) for c in columns]
    return np.asarray(oracle(op)(*given, *args, **kwargs).double().numpy())


def ours(op: Elementwise, columns: list[np.ndarray[Any, Any]], device: str) -> np.ndarray[Any, Any]:
    """Return webtorch's result in float32."""
    args, kwargs = numbers(op)
    given = [webtorch.from_numpy(c).to(device) for c in columns]
    return np.asarray(function(op)(*given, *args, **kwargs).cpu().numpy().astype("f8"))


def ulps(found: Any, wanted: Any) -> np.ndarray[Any, Any]:
    """Return the distance from `wanted` in units of float32's last place; 0 where both are no number.

    Below the smallest normal number the unit is that one: adapters may flush what is smaller to 0.
    """
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(wanted), SMALLEST)
        unit = np.exp2(np.floor(np.log2(size)) - 23)
        unit = np.where(np.abs(wanted) < SMALLEST, SMALLEST, unit)
        distance = np.abs(found - wanted) / unit
        # What passes float32's range is infinite.
        beyond = np.abs(wanted) > LARGEST * (1 - 2.0**-24)
        same = (np.isnan(found) & np.isnan(wanted)) | (found == wanted)
        same |= beyond & (np.abs(found) >= LARGEST) & (np.sign(found) == np.sign(wanted))
        distance = np.where(same, 0.0, distance)
        return np.where(np.isnan(distance), math.inf, distance)


def measure(op: Elementwise, device: str, count: int = 2000) -> Measured:
    """Return the largest error over the domain, and what differs at the special points."""
    columns = inputs(op, count)
    wanted = exact(op, columns, torch.float64)
    kept = np.isfinite(wanted)
    columns = [c[kept] for c in columns]
    wanted = wanted[kept]
    error = ulps(ours(op, columns, device), wanted)
    theirs = ulps(exact(op, columns, torch.float32), wanted)
    worst = int(np.argmax(error))
    at = tuple(float(c[worst]) for c in columns)
    return Measured(op.name, float(error[worst]), at, float(theirs.max()), special(op, device))


def _kind(x: float) -> str:
    if math.isnan(x):
        return "nan"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    return "0" if abs(x) <= SMALLEST else "number"


def special(op: Elementwise, device: str) -> list[tuple[tuple[float, ...], float, float]]:
    """Return the special points where our result is another kind of number than PyTorch's float32."""
    points = np.array(SPECIAL, "f4")
    columns = [points]
    if len(op.tensors) == 2:
        first, second = np.meshgrid(points, points)
        columns = [first.reshape(-1), second.reshape(-1)]
    found, wanted = ours(op, columns, device), exact(op, columns, torch.float32)
    rows = zip(*columns, found, wanted, strict=True)
    return [
        (tuple(map(float, row[:-2])), float(row[-2]), float(row[-1]))
        for row in rows
        if _kind(row[-2]) != _kind(row[-1])
    ]


def measured(device: str, count: int = 2000) -> Iterator[Measured]:
    """Yield what is found for each operation."""
    for op in entries():
        yield measure(op, device, count)
