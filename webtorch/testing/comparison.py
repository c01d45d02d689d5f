"""`webtorch.testing.assert_close`, with PyTorch's tolerances and messages. Floor 5."""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, NoReturn

from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.tensor import Tensor

# Element type -> (rtol, atol): about half the digits of the type.
_TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
}  # fmt: skip
Message = str | Callable[[str], str] | None


def assert_close(
    actual: object,
    expected: object,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """Raise AssertionError unless |actual - expected| <= atol + rtol * |expected| everywhere.

    Tensors, numbers, and sequences and mappings of them. The tolerances are given both or not at all;
    by default they follow the dtype (the wider of two).
    """
    if (rtol is None) != (atol is None):
        given, other = ("rtol", "atol") if atol is None else ("atol", "rtol")
        raise ValueError(
            f"rtol and atol must both be specified or both be left unspecified, but got no {other} and "
            f"{given}={rtol if atol is None else atol}"
        )
    options = {
        "rtol": rtol, "atol": atol, "equal_nan": equal_nan, "device": check_device, "dtype": check_dtype,
        "stride": check_stride, "subclasses": allow_subclasses, "msg": msg,
    }  # fmt: skip
    _Pair(options, ()).compare(actual, expected)


# The wider tolerances of assert_allclose.
_OLD_TOLERANCES = {
    "float16": (1e-3, 1e-3), "float32": (1e-4, 1e-5), "float64": (1e-5, 1e-8),
}  # fmt: skip


def assert_allclose(
    actual: object,
    expected: object,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Compare as older PyTorch did: wider tolerances, NaN equals NaN, and dtypes may differ.

    Deprecated in PyTorch, for assert_close.
    """
    warnings.warn(
        "`torch.testing.assert_allclose()` is deprecated since 1.12 and will be removed in a future release. "
        "Please use `torch.testing.assert_close()` instead.",
        FutureWarning,
        stacklevel=user_depth(),
    )
    a = _tensor(actual)
    b = expected if isinstance(expected, Tensor) else webtorch.tensor(expected, dtype=a.dtype)
    if rtol is None and atol is None:
        each = [_OLD_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, b)]
        rtol, atol = max(r for r, _ in each), max(t for _, t in each)
    assert_close(
        a, b, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None
    )


class _Pair:
    """Two values at a place in the containers."""

    def __init__(self, options: dict[str, Any], path: tuple[object, ...]) -> None:
        self.options, self.path = options, path

    def fail(self, text: str, kind: type[Exception] = AssertionError) -> NoReturn:
        """Raise an error, with the place of the item and the user's message."""
        if self.path:
            text += "\n\nThe failure occurred for item " + "".join(f"[{p!r}]" for p in self.path)
        message = self.options["msg"]
        if kind is AssertionError and message is not None:
            text = message(text) if callable(message) else message
        raise kind(text)

    def inside(self, key: object) -> _Pair:
        """Return the comparison of an item of this one."""
        return _Pair(self.options, (*self.path, key))

    def compare(self, actual: object, expected: object) -> None:
        """Compare two values: containers item by item, tensors, numbers, others by `==`."""
        kinds = (Sequence, Mapping)
        if isinstance(actual, str) or isinstance(expected, str):
            self.fail(
                f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.",
                TypeError,
            )
        if isinstance(actual, kinds[1]) and isinstance(expected, kinds[1]):
            missing = [k for k in expected if k not in actual]
            more = [k for k in actual if k not in expected]
            if missing or more:
                text = "The keys of the mappings do not match:"
                if missing:
                    text += f"\nMissing keys in the actual mapping: {sorted(missing)}"
                if more:
                    text += f"\nAdditional keys in the actual mapping: {sorted(more)}"
                self.fail(text)
            for key in expected:
                self.inside(key).compare(actual[key], expected[key])
        elif isinstance(actual, kinds[0]) and isinstance(expected, kinds[0]):
            if len(actual) != len(expected):
                self.fail(f"The length of the sequences mismatch: {len(actual)} != {len(expected)}")
            for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
                self.inside(i).compare(a, b)
        elif actual is None or expected is None:
            if actual is not expected:
                self.fail(f"None mismatch: {actual} is not {expected}")
        elif isinstance(actual, bool) and isinstance(expected, bool):
            if actual != expected:
                self.fail(f"Booleans mismatch: {actual} is not {expected}")
        elif _is_number(actual) and _is_number(expected):
            self.numbers(actual, expected)
        else:
            self.tensors(actual, expected)

    def numbers(self, actual: Any, expected: Any) -> None:
        """Compare two numbers within rtol and atol; by default those of float64 for floats, else 0."""
        actual, expected = _of_python(actual), _of_python(expected)
        if self.options["dtype"] and type(actual) is not type(expected):
            self.fail(f"The (d)types do not match: {type(actual)} != {type(expected)}.")
        rtol, atol = self.options["rtol"], self.options["atol"]
        if rtol is None:
            floats = isinstance(actual, float) or isinstance(expected, float)
            rtol, atol = _TOLERANCES["float64"] if floats else (0.0, 0.0)
        if actual == expected:
            return
        if self.options["equal_nan"] and cmath.isnan(actual) and cmath.isnan(expected):
            return
        difference = abs(actual - expected)
        if cmath.isfinite(difference) and difference <= atol + rtol * abs(expected):
            return
        relative = difference / abs(expected) if expected else float("inf")
        if rtol == atol == 0:
            self.fail(
                f"Scalars are not equal!\n\nExpected {expected} but got {actual}.\n"
                f"Absolute difference: {difference}\nRelative difference: {relative}"
            )
        self.fail(
            f"Scalars are not close!\n\nExpected {expected} but got {actual}.\n"
            f"Absolute difference: {difference} (up to {atol} allowed)\n"
            f"Relative difference: {relative} (up to {rtol} allowed)"
        )

    def tensors(self, actual: object, expected: object) -> None:
        """Compare attributes and values of two tensors, or of what becomes tensors."""
        same = type(actual) is type(expected)
        both = isinstance(actual, Tensor) and isinstance(expected, Tensor)
        if not (same or (both and self.options["subclasses"])):
            self.fail(
                f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.",
                TypeError,
            )
        try:
            a, b = _tensor(actual), _tensor(expected)
        except (TypeError, ValueError, RuntimeError):
            self.fail(
                f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.",
                TypeError,
            )
        self.attribute("shape", a.shape, b.shape)
        if self.options["device"]:
            self.attribute("device", a.device, b.device)
        if self.options["dtype"]:
            self.attribute("dtype", a.dtype, b.dtype)
        if self.options["stride"] and a.stride() != b.stride():
            self.attribute("stride()", a.stride(), b.stride())
        rtol, atol = self.options["rtol"], self.options["atol"]
        if rtol is None:
            each = [_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, b)]
            rtol, atol = max(r for r, _ in each), max(t for _, t in each)
        self.values(a, b, rtol, atol)

    def attribute(self, name: str, a: object, b: object) -> None:
        """Fail unless both have the same attribute."""
        if a != b:
            self.fail(f"The values for attribute '{name}' do not match: {a} != {b}.")

    def values(self, a: Tensor, b: Tensor, rtol: float, atol: float) -> None:
        """Compare two tensors' numbers; say how many differ and where most."""
        with webtorch.no_grad():
            if b.device != a.device:
                a, b = a.cpu(), b.cpu()
            if a.dtype is not b.dtype:
                common = webtorch.promote_types(a.dtype, b.dtype)
                a, b = a.to(common), b.to(common)
            equal = a == b
            if not a.dtype.is_floating_point and rtol == atol == 0:
                matches = equal
            else:
                matches = webtorch.isclose(
                    a, b, rtol=rtol, atol=atol, equal_nan=self.options["equal_nan"]
                )
            if bool(matches.all()):
                return
            # The message is made on the CPU, in the type of the values as PyTorch does.
            kind = a.dtype if a.dtype.is_floating_point else webtorch.int64
            x, y, good = a.cpu().to(kind), b.cpu().to(kind), matches.cpu()
            self.fail(_mismatch(x, y, good, rtol, atol))


def _mismatch(a: Tensor, b: Tensor, matches: Tensor, rtol: float, atol: float) -> str:
    exact = rtol == atol == 0
    word = "equal" if exact else "close"
    difference = (a - b).abs()
    if not a.shape:
        first, second = a.item(), b.item()
        worst, relative = (
            difference.item(),
            abs((a - b).item() / second) if second else float("inf"),
        )
        text = f"Scalars are not {word}!\n\nExpected {second} but got {first}.\n"
        where = ["", ""]
    else:
        bad = int((~matches).sum())
        total = matches.numel()
        text = (
            f"Tensor-likes are not {word}!\n\n"
            f"Mismatched elements: {bad} / {total} ({bad / total:.1%})\n"
        )
        # The places that match do not count.
        relatives = difference / b.abs()
        places, found = [], []
        for values in (difference, relatives):
            rest = values.masked_fill(matches, 0).flatten()
            position = int(rest.argmax())
            found.append(rest[position].item())
            places.append(webtorch.unravel_index(webtorch.tensor(position, device="cpu"), a.shape))
        worst, relative = found[0], found[1]
        if not a.dtype.is_floating_point:
            worst = int(worst)
        where = [f" at index {tuple(int(i) for i in place)}" for place in places]
    names = ("Greatest absolute", "Greatest relative") if a.shape else ("Absolute", "Relative")
    limits = ("", "") if exact else (f" (up to {atol} allowed)", f" (up to {rtol} allowed)")
    return (
        f"{text}{names[0]} difference: {worst}{where[0]}{limits[0]}\n"
        f"{names[1]} difference: {relative}{where[1]}{limits[1]}"
    )


def _is_number(value: object) -> bool:
    return isinstance(_of_python(value), int | float | complex) and not isinstance(value, bool)


def _of_python(value: Any) -> Any:
    """Return Python's number for one of NumPy's, and what is none as it is."""
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value


def _tensor(value: object) -> Tensor:
    return value if isinstance(value, Tensor) else webtorch.as_tensor(value)
