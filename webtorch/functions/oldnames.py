"""Names that PyTorch keeps from its early years: apply_, map_, new, range, dropout_."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.functions import convolution, creation, indexing, movement, pointwise, ranges
from webtorch.functions.assign import METHOD
from webtorch.functions.composite import alpha_dropout, dropout, feature_alpha_dropout
from webtorch.functions.creation import TORCH
from webtorch.functions.factory import chosen_dtype
from webtorch.ir.dtype import DType
from webtorch.ir.view import broadcast_shapes, numel
from webtorch.ops.primitive import as_view, write
from webtorch.ops.purity import warn
from webtorch.ops.record import LOWER, Example
from webtorch.ops.record import composite as declare
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import contiguous_format
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

FUNCTION = ("torch",)


# -- Python functions of elements --------------------------------------------------------------------


def _overwrite(name: str, self: Tensor, others: tuple[Tensor, ...], callable: Any) -> Tensor:
    """Write what a Python function of an element, and of those of `others`, returns."""
    for x in (self, *others):
        if not x.is_cpu:
            raise TypeError(f"{name} is only implemented on CPU tensors, not on {x.device}")
    if self.requires_grad:
        raise RuntimeError(
            f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead."
        )
    for x in others:
        if broadcast_shapes(self._shape, x._shape) != self._shape:
            raise ShapeError(
                f"{name}: shape {tuple(x._shape)} does not broadcast to {tuple(self._shape)}"
            )
        if x.dtype is not self.dtype:
            raise TypeError(f"{name}: expected {self.dtype} for all tensors, got {x.dtype}")
    columns = [movement.expand(x, self._shape).reshape(-1).tolist() for x in (self, *others)]
    values = [callable(*row) for row in zip(*columns, strict=True)]
    for value in values:
        if isinstance(value, (str, bytes)):
            raise TypeError(f"must be real number, not {type(value).__name__}")
    found = creation.tensor(values, dtype=self.dtype, device=self.device)
    return write(self, movement.reshape(found, self._shape))


def _check_leaves(name: str, *operands: object) -> None:
    if any(isinstance(x, Tensor) and x.requires_grad for x in operands):
        raise RuntimeError(
            f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead."
        )


@declare(name="apply_", function_in=METHOD, torch="", example="works on the host")
def apply_(self: Tensor, callable: Callable[[Tensor], Tensor]) -> Tensor:
    """Replace each element by what a Python function returns for it. On the CPU only, and slow."""
    return _overwrite("apply_", self, (), callable)


@declare(name="map_", function_in=METHOD, torch="", example="works on the host")
def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], object]) -> Tensor:
    """Replace each element by what a Python function returns for it and for that of another tensor. On the CPU only."""
    _check_leaves("map_", tensor)
    return _overwrite("map_", self, (tensor,), callable)


@declare(name="map2_", function_in=METHOD, torch="", example="works on the host")
def map2_(
    self: Tensor, x: Tensor, y: Tensor, callable: Callable[[Any, Any, Any], object]
) -> Tensor:
    """Replace each element by what a Python function returns for it and for those of two tensors. On the CPU only."""
    _check_leaves("map2_", x, y)
    return _overwrite("map2_", self, (x, y), callable)


# -- shapes and memory -----------------------------------------------------------------------------------


@declare(family="creation", function_in=METHOD, torch="", example="makes a tensor of host data")
def new(self: Tensor, *args: object, size: Any = None, device: DeviceLike = None) -> Tensor:
    """A tensor of this dtype and device: new(2, 3) uninitialised of that shape, new([1, 2]) of that data."""
    where = self.device if device is None else device
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        if not isinstance(args[0], Size):
            return creation.tensor(args[0], dtype=self.dtype, device=where)
        return creation.empty(args[0], dtype=self.dtype, device=where)
    if size is not None:
        return creation.empty(tuple(size), dtype=self.dtype, device=where)
    if len(args) == 1 and isinstance(args[0], Tensor):
        if device is not None:
            raise RuntimeError(
                "Legacy tensor new of the form tensor.new(tensor, device=device) is not supported.  Use "
                "torch.as_tensor(...) instead."
            )
        if args[0].dtype is not self.dtype:
            raise TypeError(
                f"expected {self.dtype} (got {args[0].dtype}): use tensor.to({self.dtype}), which converts"
            )
        return args[0].detach()
    if len(args) == 1 and hasattr(args[0], "_seen_as"):
        # On the memory of a storage.
        return creation.empty(0, dtype=self.dtype, device=where).set_(args[0])
    if len(args) == 1 and hasattr(args[0], "__array_interface__"):
        return creation.tensor(args[0], dtype=self.dtype, device=where)
    return creation.empty(*(args or (0,)), dtype=self.dtype, device=where)


def _same_count(name: str, self: Tensor, shape: tuple[int, ...]) -> Tensor:
    warn(
        f"non-inplace {name} is deprecated",
        UserWarning,
    )
    if numel(shape) != numel(self._shape):
        raise RuntimeError(
            f"requested resize to {'x'.join(map(str, shape))} ({numel(shape)} elements in total), but the given tensor "
            f"has a size of {'x'.join(map(str, self._shape))} ({numel(self._shape)} elements). autograd's resize can "
            "only change the shape of a given tensor, while preserving the number of elements. "
        )
    return movement.reshape(self, shape)


@declare(family="movement", function_in=METHOD, torch="")
def resize(self: Tensor, *sizes: Any) -> Tensor:
    """The tensor in another shape of as many elements. Deprecated: use reshape."""
    whole = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return _same_count("resize", self, tuple(whole))


@declare(family="movement", function_in=METHOD, torch="")
def resize_as(self: Tensor, tensor: Tensor) -> Tensor:
    """The tensor in the shape of another of as many elements. Deprecated: use reshape."""
    return _same_count("resize_as", self, tuple(tensor._shape))


@declare(
    family="movement",
    function_in=METHOD,
    torch="",
    differentiable=False,
    example="works on the host",
)
def dim_order(
    self: Tensor, *, ambiguity_check: bool | Sequence[MemoryFormat] = False
) -> tuple[int, ...]:
    """The dims from the widest stride to the narrowest: (0, 1, 2, 3) for contiguous pictures."""
    formats = [] if isinstance(ambiguity_check, bool) else ambiguity_check
    if not isinstance(formats, list) or not all(isinstance(f, MemoryFormat) for f in formats):
        raise TypeError("The ambiguity_check argument must be a bool or a list of memory formats.")
    strides = self._strides
    unclear = 1 in self._shape or any(a == b for a, b in itertools.pairwise(strides))
    if ambiguity_check is not False and unclear:
        fitting = [f for f in formats if self.is_contiguous(memory_format=f)]
        if len(fitting) != 1:
            raise RuntimeError(
                "The tensor does not have unique dim order, or cannot map to exact one of the given memory formats."
            )
    order = sorted(range_(len(self._shape)), key=lambda d: -strides[d])
    return tuple(order)


range_ = range  # the builtin: PyTorch's function of this name stands below


@declare(
    name="range", family="creation", function_in=TORCH, factory=True, example=Example((), (1, 9, 2))
)
def _range(
    start: object = 0,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to and with end. Deprecated: use arange, which leaves the end out."""
    warn(
        "torch.range is deprecated and will be removed in a future release because its behavior is inconsistent "
        "with Python's range builtin. Instead, use torch.arange, which produces values in [start, end).",
        UserWarning,
    )
    start, end = (0, start) if end is None else (start, end)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) / step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    count = math.floor((end - start) / step) + 1
    wanted = chosen_dtype(dtype, None if out is None else out.dtype)
    where = device if out is None else out.device
    places = ranges.arange(count, dtype=wanted, device=where)
    return ranges.filled(places * step + start, requires_grad, out, "range")


# -- functions of torch that work in place ------------------------------------------------------------------


@declare(name="torch_dropout", function_in=FUNCTION, torch="")
def torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.dropout, whose `training` is `train` here."""
    return dropout(input, p, train)


@declare(name="torch_alpha_dropout", function_in=FUNCTION, torch="")
def torch_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.alpha_dropout, whose `training` is `train` here."""
    return alpha_dropout(input, p, train)


@declare(name="torch_feature_alpha_dropout", function_in=FUNCTION, torch="")
def torch_feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.feature_alpha_dropout, whose `training` is `train` here."""
    return feature_alpha_dropout(input, p, train)


@declare(name="dropout_", function_in=FUNCTION, torch="")
def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout in place."""
    return dropout(input, p, train, True)


@declare(name="alpha_dropout_", function_in=FUNCTION, torch="")
def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """Alpha dropout in place."""
    return alpha_dropout(input, p, train, True)


@declare(name="feature_alpha_dropout_", function_in=FUNCTION, torch="")
def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """Alpha dropout of whole channels in place."""
    return feature_alpha_dropout(input, p, train, True)


@declare(name="feature_dropout_", function_in=FUNCTION, torch="")
def feature_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout of whole channels, the second dim, in place."""
    if input.ndim < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    ones = creation.ones(
        (*input._shape[:2], *[1] * (input.ndim - 2)), dtype=input.dtype, device=input.device
    )
    return input.mul_(dropout(ones, p, train))


@declare(name="rrelu_", function_in=("torch", "nn.functional"), torch="")
def rrelu_(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False
) -> Tensor:
    """Randomised leaky ReLU in place."""
    return pointwise.rrelu(input, lower, upper, training, True)


@declare(name="torch_index_put_", family="index", function_in=FUNCTION, torch="")
def torch_index_put_(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Tensor.index_put_."""
    return indexing._index_put_in_place(input, indices, values, accumulate)


@declare(name="torch_detach_", family="movement", function_in=FUNCTION, torch="")
def torch_detach_(input: Tensor) -> Tensor:
    """Tensor.detach_."""
    return input.detach_()


@declare(
    family="movement",
    function_in=FUNCTION,
    torch="",
    differentiable=False,
    example=Example(((3, 5),)),
)
def detach_copy(input: Tensor) -> Tensor:
    """A copy without gradient."""
    return movement.clone(input.detach(), memory_format=contiguous_format)


def _slice(
    input: Tensor, dim: int, start: int | None, end: int | None, step: int
) -> tuple[int, int, int]:
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    dim = dim + input.ndim if dim < 0 else dim
    first, last, _ = slice(start, end, step).indices(input._shape[dim])
    return dim, first, max(0, -(-(last - first) // step))


def _window(input: Tensor, dim: int, start: int | None, end: int | None, step: int) -> Tensor:
    dim, first, count = _slice(input, dim, start, end, step)
    shape, strides = list(input._shape), list(input._strides)
    offset = input._offset + first * strides[dim]
    shape[dim], strides[dim] = count, strides[dim] * step
    return as_view(input, tuple(shape), tuple(strides), offset)


@declare(
    family="movement", function_in=FUNCTION, torch="", example=Example(((9, 3),), (0, 1, 8, 2))
)
def slice_copy(
    input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """input[start:end:step] along a dim, in memory of its own."""
    return movement.clone(_window(input, dim, start, end, step), memory_format=contiguous_format)


@declare(family="movement", torch="")
def slice_inverse(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor of src's shape whose window [start:end:step] along a dim is `input`, in input's memory; the rest is
    whatever memory holds there.
    """
    dim, first, count = _slice(src, dim, start, end, step)
    if count != input._shape[dim]:
        raise ShapeError(
            f"slice_inverse: the window has {count} elements along dim {dim}, input has {input._shape[dim]}"
        )
    strides = list(input._strides)
    if strides[dim] % step:
        raise RuntimeError(f"slice_inverse: stride {strides[dim]} is no multiple of step {step}")
    strides[dim] //= step
    offset = input._offset - first * strides[dim]
    if offset < 0:
        raise RuntimeError("slice_inverse: input's memory does not begin early enough")
    return as_view(input, tuple(src._shape), tuple(strides), offset)


@declare(
    family="index",
    function_in=("torch", "nn.functional"),
    torch="",
    example=Example(((7, 2, 3), (3, 3, 4), (4,))),
    autocast=LOWER,
    operators=("conv_tbc",),
)
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """The convolution of (time, batch, channels) with a weight (width, in_channels, out_channels)."""
    if (input.ndim, weight.ndim, bias.ndim) != (3, 3, 1):
        raise ShapeError(
            "conv_tbc: input must have 3 dims (time, batch, channels), weight 3 (width, in, out), bias 1: got "
            f"{input.ndim}, {weight.ndim} and {bias.ndim}"
        )
    out = convolution.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)
