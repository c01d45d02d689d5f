"""Views: other shapes, strides and types of a storage's memory, and what their cotangents are. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webtorch.errors import DTypeError
from webtorch.ir.dtype import DType, int64
from webtorch.ir.view import contiguous_strides, is_contiguous, numel, overlaps
from webtorch.ops import primitive
from webtorch.tensors.batching import Levels, levels_of, logical, physical, sizes_of, unbatch
from webtorch.tensors.made_by import made_in_mode
from webtorch.tensors.modes import mode
from webtorch.tensors.tape import GradFn, gradient_edge, set_history
from webtorch.tensors.tensor import Tensor, unsupported_text

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


def as_view(
    x: Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    vjp: Callable[[Tensor], Tensor] | None = None,
    name: str = "AsStrided",
    dtype: DType | None = None,
) -> Tensor:
    """Return a view of x's storage. `dtype`: a complex type for real x, or the reverse; the geometry is
    in its elements.
    """
    shape, strides = tuple(shape), tuple(strides)
    storage = x._storage
    whole = offset == 0 and numel(shape) == storage.elements and is_contiguous(shape, strides)
    out = Tensor._from_storage(storage, shape, strides, offset, whole)
    source = x.dtype
    if dtype is not None or source is not out.dtype:
        out.dtype = source if dtype is None else dtype
        out._whole = whole and out.dtype is storage.dtype
    if x._levels:
        out._levels, out._whole = _scaled_levels(x, out.dtype), False
    # A view that the user made a leaf stands for itself: writes through its views are refused.
    leaf = x._requires_grad and x._grad_fn is None
    base = x if x._base is None or leaf else x._base
    out._base, out._base_history = base, base._history
    out._counter, out._inference = x._counter, x._inference
    if not mode.grad:
        out._made_by = made_in_mode()
    elif x._made_by is not None and x._base is not None:
        out._made_by = x._made_by._replace(number=0) if x._made_by.number else x._made_by
    if mode.grad and x.requires_grad:
        rule = (
            vjp
            if vjp is not None
            else _general_view_rule(
                (x._shape, x._strides, x._offset), (shape, strides, offset), elements_of(x, x.dtype)
            )
        )
        fn = GradFn(f"{name}Backward0", (gradient_edge(x),), lambda gs: (rule(gs[0]),))
        set_history(out, fn)
    return out


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


def _mixed_view_rule(view: Tensor, base: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the cotangent rule from a view to its base, of which one may be complex."""
    if view.dtype is base.dtype:
        return _general_view_rule(
            geometry_of(base, base.dtype),
            geometry_of(view, base.dtype),
            elements_of(base, base.dtype),
        )
    part, complex_base = base.dtype.to_real(), base.dtype.is_complex
    real_rule = _general_view_rule(
        geometry_of(base, part), geometry_of(view, part), elements_of(base, part)
    )

    def rule(g: Tensor) -> Tensor:
        """Return the cotangent by way of pairs of real numbers."""
        found = real_rule(pairs(g) if g.dtype.is_complex else g)
        return paired(found) if complex_base else found

    return rule


def strided_gradient(view: Tensor, base: Tensor) -> None:
    """Give `view` a new gradient function as a view of `base`, after an in-place write to the base."""
    extra = hidden_beyond(view, base)
    inner = _mixed_view_rule(physical(view, extra) if extra else view, base)
    rule = (lambda g: inner(_shown_dims(g, extra))) if extra else inner
    fn = GradFn("AsStridedBackward0", (gradient_edge(base),), lambda gs: (rule(gs[0]),))
    set_history(view, fn)
    view._base_history = base._history


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


def spread_over(g: Tensor, geometry: Geometry, elements: int) -> Tensor:
    """Return a flat tensor of `elements` zeros with g added at the places of a view.

    It is the whole of its storage, so that further views may be taken by offset and strides.
    """
    shape, strides, offset = geometry
    levels = levels_of((g,))
    flat = primitive.fill((*sizes_of(levels), elements), 0, g.dtype, g.device)
    flat = logical(flat, levels) if levels else flat
    if g.numel() == 0:
        return flat
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


def _general_view_rule(
    source: Geometry, view: Geometry, elements: int
) -> Callable[[Tensor], Tensor]:
    """Return the cotangent rule from a view to its source, where both are any views of one storage.

    Elements of the source that share memory share the cotangent.
    """

    def rule(g: Tensor) -> Tensor:
        """Return the cotangent spread over the storage, and seen as the source."""
        flat = spread_over(g, view, elements)
        if overlaps(*source[:2]):
            flat = flat / spread_over(
                primitive.fill(source[0], 1, g.dtype, g.device), source, elements
            )
        return as_view(flat, *source)

    return rule


def pairs(x: Tensor) -> Tensor:
    """Return the parts of a complex tensor along a last dim: a real view of it."""
    seen = x._pairs()
    return as_view(
        x, seen._shape, seen._strides, seen._offset, lambda g: paired(g), "ViewAsReal", seen.dtype
    )


def seen_as(
    x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: DType
) -> Tensor:
    """Return x's memory as elements of `dtype`; the geometry is in these. Outside autograd, as PyTorch's
    `view(dtype)` is.

    Raises DTypeError where the device has no such type, or holds int64 in 32 bits.
    """
    storage = x._storage
    runtime = storage.runtime
    if dtype in runtime.unsupported:
        raise DTypeError(unsupported_text(dtype, runtime))
    if runtime.kind == "webgpu" and dtype is not x.dtype and int64 in (dtype, x.dtype):
        raise DTypeError(
            f"view: {x.dtype} cannot be seen as {dtype} on {x.device}, which holds int64 in 32 bits. "
            "Take the view on the CPU, as in x.cpu().view(dtype)"
        )
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
    return as_view(
        x, x._shape[:-1], strides, x._offset // 2, lambda g: pairs(g), "ViewAsComplex", dtype
    )


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
    def rule(g: Tensor) -> Tensor:
        """Return the cotangent as a complex one, whose other part is 0."""
        zero = primitive.fill(g._shape, 0, g.dtype, g.device)
        return primitive.join(zero, g) if which else primitive.join(g, zero)

    strides = tuple([2 * s for s in x._strides])
    return as_view(x, x._shape, strides, 2 * x._offset + which, rule, "Select", x.dtype.to_real())
