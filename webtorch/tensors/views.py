"""Views: other shapes, strides and types of a storage's memory, and what their cotangents are. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident

from webtorch.ir.dtype import DType, complex32, int64
from webtorch.ir.view import contiguous_strides, is_contiguous, numel, overlaps
from webtorch.ops import primitive
from webtorch.ops.purity import warn_once
from webtorch.tensors.batching import Levels, levels_of, logical, physical, sizes_of, unbatch
from webtorch.tensors.made_by import made_in_mode
from webtorch.tensors.modes import mode
from webtorch.tensors.tape import attach_view
from webtorch.tensors.tensor import Tensor, check_type

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


def as_view(
    x: Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    vjp: Callable[..., Tensor] | None = None,
    args: tuple[object, ...] = (),
    name: str = "AsStrided",
    dtype: DType | None = None,
) -> Tensor:
    """Return a view of x's storage. `vjp(cotangent, *args)` is the cotangent of x. `dtype`: a complex type for
    real x, or the reverse; the geometry is in its elements.
    """
    shape, strides = tuple(shape), tuple(strides)
    dense = numel(shape) if is_contiguous(shape, strides) else -1
    return View(shape, strides, offset, dense, vjp, args, name, dtype).of(x, offset)


class View:
    """How a view lies in the storage of a tensor, and what it gets of a gradient function."""

    __slots__ = ("args", "dense", "dtype", "name", "offset", "shape", "strides", "vjp")

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        dense: int,
        vjp: Callable[..., Tensor] | None,
        args: tuple[object, ...],
        name: str,
        dtype: DType | None = None,
    ) -> None:
        self.shape, self.strides, self.offset = shape, strides, offset
        # How many elements it has, if these are in order and without gaps; else -1.
        self.dense = dense
        self.vjp, self.args, self.name, self.dtype = vjp, args, name, dtype

    def of(self, x: Tensor, offset: int) -> Tensor:
        """Return the view of x that begins at `offset`."""
        storage, dtype = x._storage, x.dtype if self.dtype is None else self.dtype
        out = object.__new__(Tensor)
        whole = self.dense == storage.elements and offset == 0 and dtype is storage.dtype
        out._adopt(storage, self.shape, self.strides, offset, whole)
        out.dtype = dtype
        if x._levels:
            out._levels, out._whole = _scaled_levels(x, dtype), False
        out._counter = x._counter
        if x._inference:
            # Tensors of inference mode know no views.
            out._inference = True
            return out
        recorded, base = x._requires_grad, x._base
        # A view that the user made a leaf stands for itself: writes through its views are refused.
        if base is None or (recorded and x._grad_fn is None):
            base = x
        out._base, out._base_version = base, x._counter.version
        out._inference = False
        if not mode.grad:
            out._made_by = made_in_mode()
        else:
            if x._made_by is not None and x._base is not None:
                out._made_by = x._made_by._replace(number=0) if x._made_by.number else x._made_by
            if recorded or (x._base is not None and x.requires_grad):
                vjp, args = self.vjp, self.args
                if vjp is None:
                    source = (x._shape, x._strides, x._offset)
                    vjp = _from_view
                    args = (source, (self.shape, self.strides, offset), elements_of(x, x.dtype))
                attach_view(out, x, self.name, vjp, args)
        if noted:
            views = noted.get(get_ident())
            if views is not None:
                views.append((x, self, out))
        return out


# By threads that want to know of them, the views that were made: of what, how, and the view.
noted: dict[int, list[tuple[Tensor, View, Tensor]]] = {}


def _scaled_levels(x: Tensor, dtype: DType) -> tuple[tuple[int, int, int], ...]:
    """Return x's hidden dimensions with their strides in elements of `dtype`, complex or a part of it."""
    if dtype.is_complex is x.dtype.is_complex:
        return x._levels
    if dtype.is_complex:
        return tuple([(n, size, stride // 2) for n, size, stride in x._levels])
    return tuple([(n, size, stride * 2) for n, size, stride in x._levels])


def elements_of(x: Tensor, dtype: DType) -> int:
    """Return how many elements of a type the storage of x holds."""
    return x._storage.nbytes // dtype.itemsize


def geometry_of(x: Tensor, dtype: DType) -> Geometry:
    """Return the geometry of x in elements of `dtype`: of its parts, where x is complex and that is not."""
    if x.dtype.is_complex and not dtype.is_complex:
        x = x._pairs()
    return x._shape, x._strides, x._offset


def strided_gradient(view: Tensor, base: Tensor) -> None:
    """Give `view` a new gradient function as a view of `base`, after an in-place write to the base."""
    extra = hidden_beyond(view, base)
    seen = physical(view, extra) if extra else view
    mixed = view.dtype is not base.dtype
    dtype = base.dtype.to_real() if mixed else base.dtype
    places = geometry_of(base, dtype), geometry_of(seen, dtype), elements_of(base, dtype)
    before = view._grad_fn
    name = before.title.removesuffix("Backward0") if mode.view_replay and before else "AsStrided"
    attach_view(view, base, name, _from_part, (*places, mixed, base.dtype.is_complex, extra))
    view._base_version = view._counter.version


def _from_part(
    g: Tensor,
    source: Geometry,
    view: Geometry,
    elements: int,
    mixed: bool,
    is_complex: bool,
    extra: Levels,
) -> Tensor:
    """Return the cotangent of a base from that of a view. `mixed`: one of them is complex, and the places are
    those of real numbers.
    """
    g = _shown_dims(g, extra)
    found = _from_view(pairs(g) if mixed and g.dtype.is_complex else g, source, view, elements)
    return paired(found) if mixed and is_complex else found


def hidden_beyond(view: Tensor, base: Tensor) -> Levels:
    """Return the levels that a view has and its base lacks: it was made inside a vmap."""
    if not view._levels:
        return ()
    kept = {n for n, _, _ in base._levels}
    return tuple([(n, size) for n, size, _ in view._levels if n not in kept])


def _shown_dims(x: Tensor, extra: Levels) -> Tensor:
    for number, size in reversed(extra):
        x = unbatch(x, 0, number, size)
    return x


def _positions(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, like: Tensor
) -> Tensor:
    """Return the storage position of every element of a view, as an int64 tensor of that shape."""
    where = like.device
    total = primitive.fill((1,) * len(shape), offset, int64, where)
    for d, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = primitive.iota(size, 0, stride, int64, where)
        total = total + steps.reshape((1,) * d + (size,) + (1,) * (len(shape) - d - 1))
    return total.expand(shape)


def zeros_after(g: Tensor, shape: tuple[int, ...], dtype: DType | None = None) -> Tensor:
    """Return zeros of the graph of a cotangent, which takes no part in them: gradients of gradients go the same way as
    in a process whose part of the tensor is not empty.
    """
    none = g.reshape(-1).narrow(0, 0, 0)
    return primitive.fill(shape, 0, dtype or g.dtype, g.device) + none.sum()


def spread_over(g: Tensor, geometry: Geometry, elements: int) -> Tensor:
    """Return a flat tensor of `elements` zeros with g added at the places of a view.

    It is the whole of its storage, so that further views may be taken by offset and strides.
    """
    shape, strides, offset = geometry
    if g.numel() == 0:
        return zeros_after(g, (elements,))
    levels = levels_of((g,))
    flat = primitive.fill((*sizes_of(levels), elements), 0, g.dtype, g.device)
    flat = logical(flat, levels) if levels else flat
    if overlaps(shape, strides):
        return primitive.scatter(
            flat,
            [_positions(shape, strides, offset, g).reshape(-1)],
            g.reshape(-1),
            "add",
            "as_strided",
        )
    if contiguous_strides(shape) == strides and offset == 0 and numel(shape) == elements:
        flat = g.reshape(-1)
        # A cotangent may be part of another tensor, or one element expanded.
        return flat if flat._whole else flat.clone()
    primitive.write(as_view(flat, shape, strides, offset), g)
    return flat


def _from_view(g: Tensor, source: Geometry, view: Geometry, elements: int) -> Tensor:
    """Return the cotangent of a tensor from that of a view of it, where both are any views of one storage.

    Elements of the source that share memory share the cotangent.
    """
    flat = spread_over(g, view, elements)
    if overlaps(*source[:2]):
        ones = primitive.fill(source[0], 1, g.dtype, g.device)
        flat = flat / spread_over(ones, source, elements)
    return as_view(flat, *source)


def pairs(x: Tensor) -> Tensor:
    """Return the parts of a complex tensor along a last dim: a real view of it."""
    seen = x._pairs()
    return as_view(
        x, seen._shape, seen._strides, seen._offset, paired, (), "ViewAsReal", seen.dtype
    )


def seen_as(
    x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: DType
) -> Tensor:
    """Return x's memory as elements of `dtype`; the geometry is in these. Outside autograd, as PyTorch's
    `view(dtype)` is.

    Raises DTypeError where the device has no such type.
    """
    storage = x._storage
    runtime = storage.runtime
    check_type(dtype, shape, runtime)
    shape, strides = tuple(shape), tuple(strides)
    whole = (
        dtype is storage.dtype
        and offset == 0
        and numel(shape) == storage.elements
        and is_contiguous(shape, strides)
        and not x._levels
    )
    scaled = [(n, size, st * x.dtype.itemsize, dtype.itemsize) for n, size, st in x._levels]
    levels = tuple([(n, size, nbytes // width) for n, size, nbytes, width in scaled])
    out = Tensor._from_storage(storage, shape, strides, offset, whole, dtype, levels)
    out._counter, out._inference = x._counter, x._inference
    return out


def paired(x: Tensor) -> Tensor:
    """Return the complex tensor whose parts are along the last dim of x: a view where it can be."""
    outer = (*x._strides[:-1], *(stride for _, _, stride in x._levels))
    if x._strides[-1] != 1 or x._offset % 2 or any(st % 2 for st in outer):
        x = primitive.copy(x)
    strides = tuple([st // 2 for st in x._strides[:-1]])
    dtype = x.dtype.to_complex()
    if dtype is complex32:
        warn_once("ComplexHalf support is experimental and many operators don't support it yet.")
    return as_view(x, x._shape[:-1], strides, x._offset // 2, pairs, (), "ViewAsComplex", dtype)


def complex_of(x: Tensor) -> Tensor:
    """Return `paired(x)` of a new tensor that nobody else sees: no view."""
    out = paired(x)
    out._base = None
    return out


def real_part(x: Tensor) -> Tensor:
    """Return the real part of a complex tensor, a view."""
    return _part(x, 0)


def imag_part(x: Tensor) -> Tensor:
    """Return the imaginary part of a complex tensor, a view."""
    return _part(x, 1)


def _part(x: Tensor, which: int) -> Tensor:
    strides = tuple([2 * s for s in x._strides])
    offset, dtype = 2 * x._offset + which, x.dtype.to_real()
    return as_view(x, x._shape, strides, offset, _from_one_part, (which,), "Select", dtype)


def _from_one_part(g: Tensor, which: int) -> Tensor:
    """Return the cotangent of a part as a complex one, whose other part is 0."""
    zero = primitive.fill(g._shape, 0, g.dtype, g.device)
    return primitive.join(zero, g) if which else primitive.join(g, zero)
