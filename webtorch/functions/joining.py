"""Joining: concatenation, stacking, blocks, and grids of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DeviceError, ShapeError
from webtorch.functions.movement import expanded, ravel, reshape, unsqueeze
from webtorch.functions.slicing import pad_dim, pick, window
from webtorch.ir.dtype import (
    DType,
    promote_types,
)
from webtorch.ir.view import (
    Shape,
    normalize_dim,
    numel,
)
from webtorch.ops.layout import channels_last, channels_last_together, suggests_channels_last
from webtorch.ops.primitive import (
    cast_to,
    empty,
    fill,
)
from webtorch.ops.primitive import write as _write
from webtorch.ops.purity import warn_once
from webtorch.ops.record import Autocast, Family, composite
from webtorch.ops.splits import joins, stacks
from webtorch.tensors import tape
from webtorch.tensors.modes import unrecorded
from webtorch.tensors.primitives import lay
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import taken_over, waited_for

FAMILY: Family = "movement"

# From how many tensors on, and of how many bytes at most, those that are computed are joined at once.
_MANY = 8
_MOST_BYTES = 1 << 20


def _joint_dtype(tensors: Sequence[Tensor]) -> DType:
    dtype = tensors[0].dtype
    for other in tensors:
        if other.dtype is not dtype:
            dtype = promote_types(dtype, other.dtype)
    return dtype


def _listed(name: str, tensors: object) -> tuple[Tensor, ...]:
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(
            f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}"
        )
    for i, part in enumerate(tensors):
        if not isinstance(part, Tensor):
            raise TypeError(
                f"expected Tensor as element {i} in argument 0, but got {type(part).__name__} "
                f"({name}() takes a list of tensors)"
            )
    return tuple(tensors)


def _shapes(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of tensors for a message, the first few of many."""
    shown = ", ".join(str(list(t._shape)) for t in tensors[:6])
    return shown + (f", ... ({len(tensors)} tensors)" if len(tensors) > 6 else "")


def _joined_now(tensors: Sequence[Tensor], dim: int, dtype: DType, new: bool) -> Tensor | None:
    """Return many small tensors joined by NumPy, along a `new` dim or not, where they are computed: which of them are
    one, or belong to another list as well, would tell programs apart, as of samples of a replay buffer. Else None.
    """
    if len(tensors) < _MANY or any(
        x._requires_grad
        or x.dtype is not dtype
        or len(x._shape) > 3
        or x._storage.node.kind != "buffer"
        for x in tensors
    ):
        return None
    if sum(x.nbytes for x in tensors) > _MOST_BYTES or (known := waited_for(*tensors)) is None:
        return None
    import numpy

    joined = numpy.stack(known, dim) if new else numpy.concatenate(known, dim)
    return taken_over(joined, dtype, tensors[0])


def join(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """What `cat` computes, for other operations: autocast does not see it."""
    tensors = _listed("cat", tensors)
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    for i, part in enumerate(tensors):
        if not part._shape:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {i}) cannot be concatenated: cat joins along a "
                "dimension that exists; use stack, or reshape(1)"
            )
    dtype, device = _joint_dtype(tensors), tensors[0].device
    # PyTorch's legacy rule: tensors of shape (0,) join with anything.
    parts = [(i, p) for i, p in enumerate(tensors) if p._shape != (0,)]
    if not parts:
        # Of nothing else the dim does not matter.
        parts, dim = list(enumerate(tensors)), 0
    first = parts[0][1]._shape
    dim = normalize_dim(dim, len(first))
    total = 0
    for i, part in parts:
        shape = part._shape
        if part.device != device:
            raise DeviceError(
                f"cat: Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {part.device}! Move them with .to({str(device)!r})."
            )
        if len(shape) != len(first):
            raise ShapeError(
                f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)} "
                f"(cat along dimension {dim} of shapes {_shapes(tensors)}): use unsqueeze, or stack for "
                "a new dimension"
            )
        for d, (a, b) in enumerate(zip(first, shape, strict=True)):
            if a != b and d != dim:
                raise ShapeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {a} but got "
                    f"size {b} for tensor number {i} in the list (cat of shapes {_shapes(tensors)}): "
                    f"dimension {d} differs; join along that one, or pad it"
                )
        total += shape[dim]
    shape = (*first[:dim], total, *first[dim + 1 :])
    if len(parts) == len(tensors) and (now := _joined_now(tensors, dim, dtype, False)) is not None:
        return now
    with unrecorded():
        out = _joined(tensors, dim, shape, dtype)
    return tape.attach(out, "Cat", tensors, _parts, (), (dim, tuple([p._shape for p in tensors])))


@remembered
def _joined(tensors: tuple[Tensor, ...], dim: int, shape: Shape, dtype: DType) -> Tensor:
    """Return new memory of `shape` with the tensors one after another along `dim`."""
    out, start = empty(shape, dtype, tensors[0].device, tensors), 0
    for part in tensors:
        if numel(part._shape):
            source = part if part.dtype is dtype else cast_to(part, dtype)
            _write(window(out, dim, start, part._shape[dim]), source)
            start += part._shape[dim]
    return out


def _parts(g: Tensor, dim: int, shapes: tuple[Shape, ...]) -> tuple[Tensor, ...]:
    """Return each operand's window of the cotangent of what they were joined to."""
    found, start = [], 0
    for shape in shapes:
        if len(shape) != len(g._shape):
            found.append(fill(shape, 0, g.dtype, g.device))
        else:
            found.append(window(g, dim, start, shape[dim]))
            start += shape[dim]
    return tuple(found)


@composite(
    splits=joins,
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
    direct=("cat",),
    aten=("cat",),
    overlap="none",
)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along `dim`; types are promoted."""
    return join(tensors, dim)


@composite(
    splits=joins,
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
)
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Another name of cat."""
    return join(tensors, dim)


@composite(
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
)
def concatenate(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Another name of cat."""
    return join(tensors, dim if axis is None else axis)


@composite(
    splits=stacks,
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    gradient_name="StackBackward0",
    traced=True,
)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension `dim`."""
    tensors = _listed("stack", tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    shape = tensors[0]._shape
    for i, part in enumerate(tensors):
        if part._shape != shape:
            raise ShapeError(
                f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0 and "
                f"{list(part._shape)} at entry {i}: use cat to join tensors of different sizes"
            )
    dim = normalize_dim(dim, len(shape) + 1)
    if (now := _joined_now(tensors, dim, tensors[0].dtype, True)) is not None:
        return now
    with unrecorded():
        out = join([unsqueeze(part, dim) for part in tensors], dim)
        forms = tuple([(x._shape, x._strides) for x in tensors])
        if dim < len(shape) and all(map(suggests_channels_last, forms)):
            # As PyTorch joins them along that dim, and splits it.
            joint = channels_last((*shape[:dim], len(tensors) * shape[dim], *shape[dim + 1 :]))
            lay(out, (*joint[:dim], shape[dim] * joint[dim], *joint[dim:]))
    return tape.attach(out, "Stack", tensors, _at_each, (), (dim,))


def _at_each(g: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Return each operand's part of the cotangent of what they were stacked to."""
    return tuple([pick(g, dim, i) for i in range(g._shape[dim])])


def _promoted(
    args: tuple[Any, ...], rank: Callable[[Tensor], Tensor]
) -> Tensor | tuple[Tensor, ...]:
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return tuple(rank(x) for x in args[0])
    return rank(args[0]) if len(args) == 1 else tuple(rank(x) for x in args)


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x._shape else reshape(x, (1,))


def _at_least_2d(x: Tensor) -> Tensor:
    return x if len(x._shape) >= 2 else unsqueeze(_at_least_1d(x), 0)


def _at_least_3d(x: Tensor) -> Tensor:
    return x if len(x._shape) >= 3 else unsqueeze(_at_least_2d(x), -1)


_ONE_OR_MORE = (
    "(tensor: Tensor) -> Tensor",
    "(*tensors: Tensor) -> tuple[Tensor, ...]",
    "(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]",
)


@composite(function_in=("torch",), forms=_ONE_OR_MORE)
def atleast_1d(*tensors: object) -> Any:
    """The tensor, or tensors, with at least one dimension."""
    return _promoted(tensors, _at_least_1d)


@composite(function_in=("torch",), forms=_ONE_OR_MORE)
def atleast_2d(*tensors: object) -> Any:
    """The tensor, or tensors, with at least two dimensions."""
    return _promoted(tensors, _at_least_2d)


@composite(function_in=("torch",), forms=_ONE_OR_MORE)
def atleast_3d(*tensors: object) -> Any:
    """The tensor, or tensors, with at least three dimensions."""
    return _promoted(tensors, _at_least_3d)


@composite(
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: along dimension 1, or 0 for 1-d tensors."""
    parts = [_at_least_1d(x) for x in _listed("hstack", tensors)]
    if not parts:
        raise RuntimeError("hstack expects a non-empty TensorList")
    return join(parts, 0 if len(parts[0]._shape) == 1 else 1)


@composite(
    function_in=("torch",), aliases=("row_stack",), autocast=Autocast(cpu="promote"), out="cast"
)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors below each other, as matrices."""
    parts = [_at_least_2d(x) for x in _listed("vstack", tensors)]
    if not parts:
        raise RuntimeError("vstack expects a non-empty TensorList")
    return join(parts, 0)


@composite(
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors along dimension 2."""
    parts = [_at_least_3d(x) for x in _listed("dstack", tensors)]
    if not parts:
        raise RuntimeError("dstack expects a non-empty TensorList")
    return join(parts, 2)


@composite(function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """1-d tensors as the columns of a matrix; matrices side by side."""
    tensors = _listed("column_stack", tensors)
    parts = [reshape(x, (x.numel(), 1)) if len(x._shape) <= 1 else x for x in tensors]
    if not parts:
        raise RuntimeError("column_stack expects a non-empty TensorList")
    return join(parts, 1)


@composite(function_in=("torch",), gradient_name="BlockDiagBackward0")
def block_diag(*tensors: Tensor) -> Tensor:
    """The matrix with the tensors as blocks along its diagonal."""
    parts = []
    for i, x in enumerate(_listed("block_diag", tensors)):
        if len(x._shape) > 2:
            raise ShapeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has "
                f"{len(x._shape)} dimensions"
            )
        parts.append(_at_least_2d(x))
    if not parts:
        return fill((1, 0), 0.0, get_default_dtype(), "cpu")
    width = sum(p._shape[1] for p in parts)
    rows, at = [], 0
    for part in parts:
        rows.append(pad_dim(part, 1, at, width - at - part._shape[1]))
        at += part._shape[1]
    return join(rows, 0)


@composite(function_in=("torch",))
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Grids of coordinates: tensor i along dimension i ("ij"), or the first two exchanged ("xy")."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    tensors = _listed("meshgrid", tensors)
    if not tensors:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    if indexing is None:
        warn_once(
            "torch.meshgrid: in an upcoming release, it will be required to pass the indexing argument."
        )
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(
            f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    for x in tensors:
        if len(x._shape) > 1:
            raise RuntimeError(
                f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {list(x._shape)}"
            )
        if x.dtype is not tensors[0].dtype:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same dtype")
        if x.device != tensors[0].device:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same device")
    swap = indexing == "xy" and len(tensors) >= 2
    if swap:
        tensors = (tensors[1], tensors[0], *tensors[2:])
    sizes = tuple(x.numel() for x in tensors)
    grids = []
    for i, x in enumerate(tensors):
        shape = tuple(n if d == i else 1 for d, n in enumerate(sizes))
        grids.append(expanded("expand", reshape(x, shape), sizes))
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@composite(function_in=("torch",))
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of the elements of 1-d tensors, one a row."""
    for x in tensors:
        if len(x._shape) != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(x._shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([ravel(grid) for grid in meshgrid(*tensors, indexing="ij")], 1)
