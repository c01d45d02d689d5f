"""What each ONNX operation is in webtorch: the table, and what its functions share. Floor 6; needs NumPy.

A function gets the context, the node's attributes, the number of outputs that are used, and the
inputs: tensors, None where one is left out, and NumPy arrays for the inputs that are read as numbers
(`host`: axes, sizes, pads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy

from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import ALL, DType
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# What is on the host: values that describe shapes, computed with onnx's reference. (NumPy's scalars are arrays here.)
Host: TypeAlias = numpy.ndarray
# What is read as numbers: it is on the host where the file says it, else on a device.
Numbers: TypeAlias = Host | Tensor
Result: TypeAlias = Tensor | Host | tuple[Tensor | None, ...]
Run = TypeVar("Run", bound=Callable[..., Result])
# By the attribute's name: a number, text, a list of either, or an array, as the node's definition says.
Attrs: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Operator:
    """How a node runs; `host` are the inputs that are read as numbers."""

    run: Callable[..., Result]
    host: frozenset[int] = frozenset()


OPERATORS: dict[str, Operator] = {}
_NUMPY_TYPES = {dtype.name for dtype in ALL if not dtype.numpy}


def is_host(x: object) -> TypeGuard[Host]:
    """Whether a value is on the host."""
    return isinstance(x, (numpy.ndarray, numpy.generic))


class Context:
    """What functions need besides their inputs: the opset, and constants as tensors."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._kept: dict[tuple[int, DeviceLike], tuple[Host, Tensor]] = {}

    def tensor(self, x: Numbers, device: DeviceLike = None) -> Tensor:
        """Return a host value as a tensor; that of a constant is made once."""
        if isinstance(x, Tensor):
            return x
        key = (id(x), device)
        found = self._kept.get(key)
        if found is not None and found[0] is x:
            return found[1]
        array = numpy.asarray(x)
        if array.dtype.name == "bfloat16":
            made = webtorch.tensor(array.astype(numpy.float32)).to(webtorch.bfloat16)
        elif array.dtype.name not in _NUMPY_TYPES:
            raise DTypeError(f"load: webtorch has no {array.dtype}, which the file computes with")
        else:
            made = webtorch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape).copy())
        if device is not None:
            made = made.to(device)
        if len(self._kept) > 4096:
            self._kept.clear()
        self._kept[key] = (x, made)
        return made


def op(*names: str, host: Sequence[int] = ()) -> Callable[[Run], Run]:
    """Declare how the named nodes run."""

    def declare(function: Run) -> Run:
        """Put the function into OPERATORS under each name."""
        for name in names:
            assert name not in OPERATORS, name
            OPERATORS[name] = Operator(function, frozenset(host))
        return function

    return declare


def ints(x: Numbers | None) -> list[int] | None:
    """Return a value as Python integers; a tensor on a device is waited for."""
    if x is None:
        return None
    return [int(v) for v in (x.reshape(-1).tolist())]


def number(x: Numbers) -> Any:
    """Return a value of one element as a Python number."""
    return x.reshape(-1).tolist()[0]


_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


def dtype_of(number: int) -> DType | None:
    """Return the element type of ONNX's number, None if webtorch has no such type."""
    name = _TYPES.get(number)
    return None if name is None else getattr(webtorch, name)


def element_type(code: int) -> DType:
    """Return the element type of ONNX's number. Raises DTypeError if webtorch has no such type."""
    found = dtype_of(code)
    if found is None:
        raise DTypeError(f"load: webtorch has no element type of ONNX's number {code}")
    return found
