"""torch._check and its kind: raise an error, with a message that is made then, unless a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.tensors.device import DeviceLike, device_of, resolve
from webtorch.tensors.formats import layout, sparse_coo, strided
from webtorch.tensors.host import reads
from webtorch.tensors.tensor import Tensor

Message = Callable[[], object] | None


def _check_with(error_type: type[Exception], cond: bool, message: Message) -> None:
    """Raise an error of a type unless `cond`, a bool, is true."""
    if isinstance(cond, Tensor):
        raise TypeError(
            "cond must be a bool, but got a Tensor. For tensor conditions, use torch._check_tensor_all() to assert "
            "that all elements are true."
        )
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if cond:
        return
    assert not issubclass(error_type, Warning), (
        f"error_type must be a subclass of Exception but not Warning, got {error_type}"
    )
    if message is None:
        raise error_type(
            "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
            "enhancement request to PyTorch.)"
        )
    if not callable(message):
        raise TypeError("message must be a callable")
    raise error_type(str(message()))


def _check(cond: bool, message: Message = None) -> None:
    """Raise RuntimeError unless `cond`."""
    _check_with(RuntimeError, cond, message)


def _check_index(cond: bool, message: Message = None) -> None:
    """Raise IndexError unless `cond`."""
    _check_with(IndexError, cond, message)


def _check_value(cond: bool, message: Message = None) -> None:
    """Raise ValueError unless `cond`."""
    _check_with(ValueError, cond, message)


def _check_type(cond: bool, message: Message = None) -> None:
    """Raise TypeError unless `cond`."""
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: bool, message: Message = None) -> None:
    """Raise NotImplementedError unless `cond`."""
    _check_with(NotImplementedError, cond, message)


def _check_is_size(i: int, message: Message = None, *, max: int | None = None) -> None:
    """Raise RuntimeError unless `i` is a size: not negative, and at most `max`."""
    _check(i >= 0, message)
    _check(max is None or i <= max, message)


def _check_tensor_all_with(
    error_type: type[Exception], cond: Tensor, message: Message = None
) -> None:
    """Raise an error of a type unless all elements of a bool tensor are true. Waits for the device."""
    if not isinstance(cond, Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype is not webtorch.bool:
        raise TypeError(f"cond tensor must have dtype torch.bool, but got {cond.dtype}")
    _check_with(error_type, bool(cond.all().item()), message)


def _check_tensor_all(cond: Tensor, message: Message = None) -> None:
    """Raise RuntimeError unless all elements of a bool tensor are true. Waits for the device."""
    _check_tensor_all_with(RuntimeError, cond, message)


def _assert_async(
    input: Tensor, assert_msg: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    """Raise RuntimeError unless a tensor of one element is true; a captured step cannot, and does not look."""
    if reads.possible and not bool(input):
        raise RuntimeError(assert_msg)


def _assert_tensor_metadata(
    a: Tensor,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dtype: DType | None = None,
    *,
    device: DeviceLike = None,
    layout: layout | None = None,
) -> None:
    """Raise RuntimeError unless a tensor is as it is said to be."""
    kinds = {strided: "Strided", sparse_coo: "Sparse"}
    for name, wanted, found in (
        ("sizes", size and list(size), list(a.shape)),
        ("strides", stride and list(stride), list(a.stride()) if stride else None),
        ("dtype", dtype, a.dtype),
        ("device", device and device_of(resolve(device)), a.device),
        ("layout", layout and kinds.get(layout, layout), kinds.get(a.layout, a.layout)),
    ):
        if wanted is not None and wanted != found:
            raise RuntimeError(f"Tensor {name} mismatch! Expected: {wanted}, Got: {found}")
