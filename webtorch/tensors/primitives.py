"""Records the primitives of the op table as graph nodes, with their gradient rules. Floor 4."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DeviceError, DTypeError
from webtorch.ir.dtype import DType, Scalar, bool_, int64
from webtorch.ir.graph import IN_MEMORY, Form, Node, placed, window
from webtorch.ir.lines import user_line
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import (
    Shape,
    contiguous_strides,
    is_contiguous,
    memory_order,
    result_strides,
    strides_like,
)
from webtorch.ops import primitive
from webtorch.ops.bits import reinterpreted
from webtorch.ops.pairs import COMPLEX, CONJ, FILL, TIMES_I, WIDEN, recorded
from webtorch.ops.primitive import COUNT, IDENTITY, IOTA, RANDOM
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise
from webtorch.runtime.realize import Runtime
from webtorch.tensors.above import give
from webtorch.tensors.batching import (
    Levels,
    levels_of,
    logical,
    physical,
    record_batched,
    sizes_of,
)
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.host import random_words
from webtorch.tensors.modes import mode, no_grad, unrecorded
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    SavedTensor,
    attach,
    needs_grad,
)
from webtorch.tensors.tensor import Tensor, check_type
from webtorch.tensors.views import (
    as_view,
    complex_of,
    imag_part,
    paired,
    pairs,
    real_part,
    seen_as,
    strided_gradient,
)
from webtorch.tensors.writing import check_own_storage, write


def record(
    kind: str,
    inputs: Sequence[Tensor],
    attrs: tuple[object, ...],
    scalars: tuple[Scalar, ...],
    shape: tuple[int, ...],
    dtype: DType,
) -> Tensor:
    """Record a node over `inputs` and return its tensor, outside autograd.

    Raises RuntimeError if the inputs are not all on one device.
    """
    runtime = inputs[0]._storage.runtime
    batched = False
    for t in inputs:
        if t._levels:
            batched = True
        if t._storage.runtime is not runtime:
            # Index nodes name the user's operation last among their texts.
            name = kind if kind == "conv" else [kind, *(a for a in attrs if isinstance(a, str))][-1]
            raise device_mismatch(name, inputs[0], t)
    if batched:
        return record_batched(kind, inputs, attrs, scalars, shape, dtype)
    node = Node(kind, tuple([t._node() for t in inputs]), attrs, scalars, shape, dtype, user_line())
    return Tensor._from_node(node, runtime)


def device_mismatch(name: str, a: Tensor, b: Tensor) -> DeviceError:
    """Return the error for tensors on two devices."""
    return DeviceError(
        f"{name.strip('_')}: Expected all tensors to be on the same device, but found at least two "
        f"devices, {a.device} and {b.device}! Move one of them, as in x.to('{a.device}')."
    )


# ---- entries over positions
# --------------------------------------------------------------------------------------------------------------


def formula(
    op: Elementwise,
    tensors: Sequence[Tensor],
    shape: Shape,
    dtype: DType,
    device: DeviceLike = None,
    compute: DType | None = None,
) -> Tensor:
    """Record an entry over the flat position and tensors of `shape`, outside autograd."""
    runtime = tensors[0]._storage.runtime if tensors else resolve(device)
    attrs = (op, "p" + "t" * len(tensors), compute or dtype.compute)
    srcs = tuple([t._node() for t in tensors])
    return Tensor._from_node(Node("map", srcs, attrs, (), shape, dtype, user_line()), runtime)


# ---- complex tensors as pairs of real numbers
# ------------------------------------------------------------------------------------------------------------


def _part_node(x: Tensor, which: int, shape: Shape, order: Shape | None, both: bool) -> Node:
    """Return a part of x (a real x has one), expanded to `shape`, its dims in `order`; `both`: for each of two."""
    node = x._storage.node
    part = x.dtype.to_real()
    if node.dtype is not part:
        node = reinterpreted(node, part)
    lead = len(shape) - len(x._shape)
    factor = 2 if x.dtype.is_complex else 1
    strides = (0,) * lead + tuple(
        [
            0 if s == 1 and t != 1 else st * factor
            for s, st, t in zip(x._shape, x._strides, shape[lead:], strict=True)
        ]
    )
    offset = x._offset * factor + which
    if order is not None:
        shape, strides = (tuple([sizes[d] for d in order]) for sizes in (shape, strides))
    if both:
        shape, strides = (*shape, 2), (*strides, 0)
    attrs, scalars = placed(offset) if x._offset and node.kind in IN_MEMORY else ((offset,), ())
    return Node("view", (node,), (strides, *attrs), scalars, shape, node.dtype)


def map_pairs(
    op: Elementwise,
    operands: Sequence[Tensor | Scalar | complex],
    shape: Shape,
    dtype: DType,
) -> Tensor:
    """Record the complex form of an entry, outside autograd.

    `dtype` is that of the result: complex, or real where the form gives real numbers. Real operands are
    complex numbers without an imaginary part; all have one width.
    """
    levels = levels_of(operands)
    if levels:
        seen = [physical(o, levels, len(shape)) if isinstance(o, Tensor) else o for o in operands]
        return logical(map_pairs(op, seen, sizes_of(levels) + shape, dtype), levels)
    runtime = next((o._storage.runtime for o in operands if isinstance(o, Tensor)), None)
    assert runtime is not None
    check_type(dtype, shape, runtime)
    real = not dtype.is_complex
    forms = tuple([(o._shape, o._strides) for o in operands if isinstance(o, Tensor)])
    strides = result_strides(shape, forms, len(forms) == len(operands))
    order = out_of_order(shape, strides)
    sizes = shape if order is None else tuple([shape[d] for d in order])
    kinds = letters = ""
    srcs: list[Node] = []
    scalars: list[Scalar] = []
    compute = None
    for o in operands:
        if isinstance(o, Tensor):
            compute = o.dtype.to_real()
            both = o.dtype.is_complex
            kinds += "c" if both else "r"
            letters += "tt" if both else "t"
            srcs += [_part_node(o, which, shape, order, not real) for which in range(1 + both)]
        else:
            both = isinstance(o, complex)
            kinds += "c" if both else "r"
            letters += "ss" if both else "s"
            scalars += [o.real, o.imag] if isinstance(o, complex) else [o]
    assert compute is not None
    node = Node(
        "map",
        tuple(srcs),
        (recorded(op, kinds, real), letters if real else "c" + letters, compute.compute),
        tuple(scalars),
        sizes if real else (*sizes, 2),
        dtype.to_real(),
        user_line(),
    )
    out = Tensor._from_node(node, runtime)
    if not real:
        out = complex_of(out)
    if order is not None:
        out._shape, out._strides, out._whole = shape, strides, False
    return out


def join(re: Tensor, im: Tensor) -> Tensor:
    """Return the complex tensor of two real ones."""
    out = map_pairs(COMPLEX, (re, im), re._shape, re.dtype.to_complex())
    return attach(out, "Complex", (re, im), _parts_of)


def _parts_of(g: Tensor) -> tuple[Tensor, Tensor]:
    return real_part(g), imag_part(g)


def conjugate(x: Tensor) -> Tensor:
    """Return the conjugate."""
    if not x.dtype.is_complex:
        return x
    return attach(map_pairs(CONJ, (x,), x._shape, x.dtype), "Conj", (x,), _conjugated)


def _conjugated(g: Tensor) -> tuple[Tensor]:
    return (conjugate(g),)


def _on_pairs(function: Callable[..., Tensor], *tensors: Tensor, **options: object) -> Tensor:
    """Return the complex result of a function that treats both parts of its inputs alike."""
    return complex_of(function(*map(pairs, tensors), **options))


# ---- data
# ---------------------------------------------------------------------------------------------------------------


def fill(shape: Sequence[int], value: Scalar | complex, dtype: DType, device: DeviceLike) -> Tensor:
    """Return a tensor of one value."""
    runtime = resolve(device)
    if dtype.is_complex:
        check_type(dtype, shape, runtime)
        part, number = dtype.to_real(), complex(value)
        attrs = (FILL, "css", part)
        scalars = (number.real, number.imag)
        node = Node("map", (), attrs, scalars, (*shape, 2), part, user_line())
        return complex_of(Tensor._from_node(node, runtime))
    if isinstance(value, complex):
        raise RuntimeError(
            f"value cannot be converted to type {dtype.name} without overflow: {value} is complex"
        )
    return Tensor._from_node(
        Node("map", (), (IDENTITY, "s", dtype.compute), (value,), tuple(shape), dtype, user_line()),
        runtime,
    )


def empty(
    shape: Sequence[int], dtype: DType, device: DeviceLike, like: Sequence[Tensor] = ()
) -> Tensor:
    """Return uninitialised memory, for each example that one of `like` is batched over."""
    if dtype.is_complex:
        check_type(dtype, shape, resolve(device))
        return complex_of(empty((*shape, 2), dtype.to_real(), device, like))
    levels = levels_of(like)
    full = (*sizes_of(levels), *shape)
    out = Tensor._from_node(Node("empty", (), (), (), full, dtype, user_line()), resolve(device))
    return logical(out, levels) if levels else out


def iota(count: int, start: Scalar, step: Scalar, dtype: DType, device: DeviceLike) -> Tensor:
    """Return start + i * step for i < count."""
    runtime = resolve(device)
    if type(start) is int and start == 0 and step == 1 and dtype.is_integral:
        return Tensor._from_node(
            Node("map", (), (COUNT, "p", dtype.compute), (), (count,), dtype, user_line()), runtime
        )
    return Tensor._from_node(
        Node("map", (), (IOTA, "pss", dtype.compute), (start, step), (count,), dtype, user_line()),
        runtime,
    )


def philox(
    shape: Sequence[int],
    seed: int,
    offset: int,
    dtype: DType,
    device: DeviceLike,
    kind: str = "uniform",
    low: Scalar = 0,
) -> Tensor:
    """Return counter-based random numbers."""
    op = RANDOM[kind, dtype.name]
    words = random_words(seed, offset)
    levels = _drawn_apart()
    full = (*sizes_of(levels), *shape)
    runtime = resolve(device)
    attrs, form = _drawn(op, full, dtype, runtime)
    node = Node("map", (), attrs, words, full, dtype, user_line(), form)
    out = Tensor._from_node(node, runtime)
    return logical(out, levels) if levels else out


def _drawn_apart() -> Levels:
    """Return the levels of the vmaps that give each example numbers of its own."""
    return tuple([(v.number, v.size) for v in mode.vmaps if v.randomness == "different"])


@functools.lru_cache(maxsize=4096)
def _drawn(
    op: Elementwise, shape: tuple[int, ...], dtype: DType, runtime: Runtime
) -> tuple[tuple[Any, ...], Form]:
    """Return the attributes and the form of random numbers."""
    return (op, "puuuu", dtype.compute), Form()


def draw(formula: object, parameters: Sequence[Tensor], seed: int, offset: int) -> Tensor:
    """Return random numbers of distributions, one for each element of the parameters."""
    if mode.vmaps and (levels := _drawn_apart()):
        parameters = [logical(physical(p, levels), levels) for p in parameters]
    first = parameters[0]
    attrs = (formula, "t" * len(parameters) + "puuuu", first.dtype.compute)
    return record("map", parameters, attrs, random_words(seed, offset), first._shape, first.dtype)


def out_of_order(shape: Shape, strides: Shape) -> Shape | None:
    """Return the dims of new memory from the widest stride to the narrowest; None for row-major."""
    return None if is_contiguous(shape, strides) else memory_order(shape, strides)


def ordered_node(x: Tensor, shape: Shape, strides: Shape, order: Shape) -> Node:
    """Return the value of x, seen with other sizes and strides, with its dims in `order`."""
    shape = tuple([shape[d] for d in order])
    strides = tuple([strides[d] for d in order])
    node, offset = x._storage.node, x._offset
    if node.dtype is not x.dtype:
        node = x._flat_node()
    if not offset and node.shape == shape and is_contiguous(shape, strides):
        return node
    return window(node, shape, strides, offset, x.dtype)


# What copies in another type share, by shape and types.
_CASTS: dict[tuple[object, ...], Form] = {}
_MOST_CASTS = 1 << 12


def _identity(x: Tensor, dtype: DType) -> Tensor:
    """Return x in new memory of its layout, as `dtype`."""
    attrs = (IDENTITY, "t", x.dtype.compute)
    if x._whole:
        storage, shape = x._storage, x._shape
        key = shape, x.dtype, dtype
        form = _CASTS.get(key)
        if form is None:
            if len(_CASTS) >= _MOST_CASTS:
                _CASTS.clear()
            form = _CASTS[key] = Form()
        node = Node("map", (x._node(),), attrs, (), shape, dtype, user_line(), form)
        out = object.__new__(Tensor)
        out._adopt(Storage(node, storage.runtime, storage.elements), shape, x._strides, 0, True)
        return out
    if x._levels:
        levels = levels_of((x,))
        return logical(_identity(physical(x, levels), dtype), levels)
    strides = strides_like(x._shape, x._strides)
    order = out_of_order(x._shape, strides)
    if order is None:
        out, whole = record("map", (x,), attrs, (), x._shape, dtype), True
    else:
        source = ordered_node(x, x._shape, x._strides, order)
        shape = tuple([x._shape[d] for d in order])
        node = Node("map", (source,), attrs, (), shape, dtype, user_line())
        out, whole = Tensor._from_node(node, x._storage.runtime), False
    if (out._shape, out._strides) == (x._shape, strides):
        return out
    return Tensor._from_storage(out._storage, x._shape, strides, 0, whole)


def lay(x: Tensor, strides: Shape) -> None:
    """Let a new tensor lie in memory with other strides, which leave no gaps. Its graph and its tangents stay."""
    x._base = None
    tangents = [(level, level.of(x)) for level in mode.forward]
    order = memory_order(x._shape, strides)
    assert order is not None
    source = ordered_node(x, x._shape, x._strides, order)
    shape = tuple([x._shape[d] for d in order])
    if source is not x._storage.node:
        # Else the strides of dims of one element differ only: they are free.
        attrs = (IDENTITY, "t", x.dtype.compute)
        node = Node("map", (source,), attrs, (), shape, x.dtype, user_line())
        x._storage = x._counter = Storage(node, x._storage.runtime)
    x._strides, x._offset, x._whole = strides, 0, strides == contiguous_strides(x._shape)
    for level, tangent in tangents:
        if tangent is not None:
            level.set(x, tangent)


def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """Return x in another dtype."""
    if x.dtype is dtype:
        return x
    check_type(dtype, x._shape, x._storage.runtime)
    if x.dtype.is_complex or dtype.is_complex:
        return _cast_complex(x, dtype)
    out = _identity(x, dtype)
    if x.dtype.is_floating_point and dtype.is_floating_point and needs_grad((x,)):
        attach(out, "ToCopy", (x,), _cast_back, (), (x.dtype,))
    return out


def _cast_back(g: Tensor, source: DType) -> tuple[Tensor]:
    return (cast_to(g, source),)


def _cast_complex(x: Tensor, dtype: DType) -> Tensor:
    if not x.dtype.is_complex:
        re = cast_to(x, dtype.to_real())
        # A form of one real operand: the number itself.
        out = map_pairs(WIDEN, (re,), re._shape, dtype)
        return attach(out, "ToCopy", (re,), _real_cotangent)
    if dtype.is_complex:
        part = dtype.to_real()
        return complex_of(cast_to(pairs(x), part))
    if dtype is bool_:
        with no_grad():
            return reduce_dims(cast_to(pairs(x), bool_), "any", (x.ndim,)).reshape(x._shape)
    warn(
        "Casting complex values to real discards the imaginary part",
        UserWarning,
    )
    re = real_part(x)
    return copy(re) if re.dtype is dtype else cast_to(re, dtype)


def _real_cotangent(g: Tensor) -> tuple[Tensor]:
    return (real_part(g),)


def copy(x: Tensor) -> Tensor:
    """Return x in new, contiguous storage. The value is shared until one of the two is written."""
    if x.dtype.is_complex:
        return attach(complex_of(copy(x._pairs())), "Clone", (x,), _same)
    if x._whole:
        # Another thread may write x meanwhile: only `share` keeps the memory of what it returns.
        node = x._storage.share() if x._storage.node.shape == x._shape else x._node()
        out = Tensor._from_node(node, x._storage.runtime)
    else:
        out = record("map", (x,), (IDENTITY, "t", x.dtype.compute), (), x._shape, x.dtype)
    return attach(out, "Clone", (x,), _same)


def _same(g: Tensor) -> tuple[Tensor]:
    return (g,)


# ---- reductions, scans
# ------------------------------------------------------------------------------------------------


def reduce_dims(x: Tensor, combine: str, dims: tuple[int, ...]) -> Tensor:
    """Combine over `dims`, which stay as size 1."""
    if x.dtype.is_complex:
        if combine == "sum":
            return _on_pairs(reduce_dims, x, combine="sum", dims=dims)
        if combine == "prod":
            return _product(x, dims)
        raise DTypeError(f"{combine} not implemented for '{x.dtype.legacy}'")
    shape = tuple([1 if d in dims else s for d, s in enumerate(x._shape)])
    dtype = REDUCERS[combine].gives or x.dtype
    out = record("reduce", (x,), (combine, dims), (), shape, dtype)
    if not x.dtype.is_floating_point or not needs_grad((x,)):
        return out
    if combine == "sum":
        return attach(out, "Sum", (x,), _expanded_to, (), (x._shape,))
    if combine in ("max", "min"):
        saved = SavedTensor(x), SavedTensor(out, output=0)
        return attach(
            out, "Amax" if combine == "max" else "Amin", (x,), _at_extremes, saved, (dims,)
        )
    return out


def _expanded_to(g: Tensor, shape: Shape) -> tuple[Tensor]:
    return (g.expand(shape),)


def _at_extremes(g: Tensor, source: Tensor, result: Tensor, dims: Shape) -> tuple[Tensor]:
    """Return the cotangent at the maxima or minima."""
    # Ties share the cotangent evenly, as PyTorch's amax and amin do.
    mask = (source == result).to(source.dtype)
    return (mask * (g / reduce_dims(mask, "sum", dims)),)


def scan(x: Tensor, combine: str, dim: int) -> Tensor:
    """Running sum, product, max or min along a dim."""
    if x.dtype.is_complex:
        if combine == "sum":
            return _on_pairs(scan, x, combine="sum", dim=dim)
        if combine == "prod":
            return _running_product(x, dim)
        raise DTypeError(f"cum{combine} not implemented for '{x.dtype.legacy}'")
    out = record("scan", (x,), (combine, dim), (), x._shape, x.dtype)
    if combine == "sum":
        return attach(out, "Cumsum", (x,), _sum_from_here, (), (dim,))
    return out


def _sum_from_here(g: Tensor, dim: int) -> tuple[Tensor]:
    return (scan(g.flip(dim), "sum", dim).flip(dim),)


def sort_places(x: Tensor, descending: bool, first: int, count: int) -> Tensor:
    """Where the elements of each row were that come at ranks first .. first + count."""
    return record("sort", (x,), (descending, first), (), (x._shape[0], count), int64)


# ---- indexing
# ---------------------------------------------------------------------------------------------------------


def _product(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the product over `dims`, which stay as size 1: halves are multiplied until one is left."""
    for d in dims:
        while (size := x._shape[d]) > 1:
            half = (size + 1) // 2
            below, above = [0] * x.ndim, [0] * x.ndim
            above[d] = 2 * half - size
            first, second = x.narrow(d, 0, half), x.narrow(d, half, size - half)
            x = first * (pad_with(second, below, above, 1) if above[d] else second)
    return x


def _running_product(x: Tensor, dim: int) -> Tensor:
    """Return the running product: each element takes in what lies 1, 2, 4, ... before it."""
    reach = 1
    while reach < x._shape[dim]:
        below, above = [0] * x.ndim, [0] * x.ndim
        below[dim] = reach
        x = x * pad_with(x.narrow(dim, 0, x._shape[dim] - reach), below, above, 1)
        reach *= 2
    return x


def take(
    x: Tensor, indices: Sequence[Tensor], name: str, wrap: bool = False, dims: Sequence[int] = ()
) -> Tensor:
    """Pick rows of x by index tensors. `dims`: what the user calls the indexed dimensions."""
    if x.dtype.is_complex:
        return complex_of(take(pairs(x), indices, name, wrap, dims or range(len(indices))))
    count = len(indices)
    dims = tuple(dims or range(count))
    shape = indices[0]._shape + x._shape[count:]
    _check_not_empty(x._shape, indices, name, dims)
    out = record("take", (x, *indices), (count, dims, name, wrap), (), shape, x.dtype)
    if not needs_grad((x,)):
        return out
    saved = [SavedTensor(i) for i in indices]
    return attach(out, "Index", (x,), _put_back, saved, (x._shape, name, wrap, dims))


def _put_back(g: Tensor, *values: Any) -> tuple[Tensor]:
    """Return zeros with the cotangents added at the indices."""
    *indices, full, name, wrap, dims = values
    zeros = fill(full, 0, g.dtype, g.device)
    return (scatter(zeros, indices, g, "add", name, wrap, dims),)


def scatter(
    base: Tensor,
    indices: Sequence[Tensor],
    values: Tensor,
    combine: str,
    name: str,
    wrap: bool = False,
    dims: Sequence[int] = (),
) -> Tensor:
    """Return base with rows combined at index tensors. `dims`: what the user calls the indexed
    dimensions.
    """
    count = len(indices)
    dims = tuple(dims or range(count))
    if base.dtype.is_complex:
        if combine not in ("set", "add"):
            raise DTypeError(
                f"{name}: combining by {combine} is not implemented for '{base.dtype.legacy}'"
            )
        return complex_of(scatter(pairs(base), indices, pairs(values), combine, name, wrap, dims))
    _check_not_empty(base._shape, indices, name, dims)
    out = record(
        "scatter",
        (base, *indices, values),
        (count, dims, combine, name, wrap),
        (),
        base._shape,
        base.dtype,
    )
    if combine not in ("set", "add") or not needs_grad((base, values)):
        return out
    saved = [SavedTensor(i) for i in indices]
    title = "IndexPut" if combine == "set" else "ScatterAdd"
    args = (values._shape, combine, name, wrap, dims)
    return attach(out, title, (base, values), _around_and_at, saved, args)


def _around_and_at(g: Tensor, *values: Any) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the base and of the values that were put at indices."""
    *indices, shape, combine, name, wrap, dims = values
    kept = g
    if combine == "set":
        zeros = fill(shape, 0, g.dtype, g.device)
        kept = scatter(g, indices, zeros, "set", name, wrap, dims)
    return kept, take(g, indices, name, wrap, dims)


def _check_not_empty(
    shape: tuple[int, ...], indices: Sequence[Tensor], name: str, dims: Sequence[int]
) -> None:
    for d, index in enumerate(indices):
        if shape[d] == 0 and index.numel():
            raise IndexError(
                f"index is out of bounds for dimension with size 0 (dimension {dims[d]} of {name})"
            )


# ---- contractions
# -----------------------------------------------------------------------------------------------------


def _swapped(x: Tensor) -> Tensor:
    b, m, n = x._shape
    sb, sm, sn = x._strides
    return as_view(x, (b, n, m), (sb, sn, sm), x._offset, _swapped, (), "Transpose")


def _type_of_sums(x: Tensor) -> DType:
    return x.dtype.compute if mode.keeps_sums and x.dtype.kind == "float" else x.dtype


def unrounded(multiply: Callable[..., Tensor], *args: object) -> Tensor:
    """Return multiply(*args); products and convolutions of 16-bit floats give their float32 sums."""
    before, mode.keeps_sums = mode.keeps_sums, True
    try:
        return multiply(*args)
    finally:
        mode.keeps_sums = before


def matmul3(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product."""
    if a.dtype.is_complex:
        return _complex_matmul(a, b)
    shape = (a._shape[0], a._shape[1], b._shape[2])
    out = record("matmul", (a, b), (), (), shape, _type_of_sums(a))
    if not needs_grad((a, b)):
        return out
    # The cotangent of a transposed matrix, such as a Linear's weight, is made in the layout of the
    # matrix itself: no copy.
    columns = tuple([t._strides[1] == 1 and t._strides[2] != 1 for t in (a, b)])
    args = (needs_grad((a,)), needs_grad((b,)), columns, a.dtype)
    return attach(out, "Bmm", (a, b), _products, (SavedTensor(a), SavedTensor(b)), args)


def _products(
    g: Tensor,
    a: Tensor,
    b: Tensor,
    need_a: bool,
    need_b: bool,
    columns: tuple[bool, bool],
    dtype: DType,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the cotangents of both operands: products with the other one, transposed."""
    grad_a = grad_b = None
    g = cast_to(g, dtype)
    if need_a:
        grad_a = _swapped(matmul3(b, _swapped(g))) if columns[0] else matmul3(g, _swapped(b))
    if need_b:
        grad_b = _swapped(matmul3(_swapped(g), a)) if columns[1] else matmul3(_swapped(a), g)
    return grad_a, grad_b


def _complex_matmul(a: Tensor, b: Tensor) -> Tensor:
    """One real product: the rows of a are (re, im, re, im, ...) already, and each element of b becomes
    the 2 x 2 matrix that multiplies by it.
    """
    batch, m, k = a._shape
    n = b._shape[2]
    with unrecorded():
        left = pairs(a.contiguous()).reshape(batch, m, 2 * k)
        turned = map_pairs(TIMES_I, (b,), b._shape, b.dtype)
        right = _stacked(pairs(b), pairs(turned))
        out = matmul3(left, right.reshape(batch, 2 * k, 2 * n))
        out = complex_of(out.reshape(batch, m, n, 2))
    if not needs_grad((a, b)):
        return out
    saved = SavedTensor(a), SavedTensor(b)
    return attach(
        out, "Bmm", (a, b), _complex_products, saved, (needs_grad((a,)), needs_grad((b,)))
    )


def _complex_products(
    g: Tensor, a: Tensor, b: Tensor, need_a: bool, need_b: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the cotangents of both operands: products with the other one, conjugated."""
    grad_a = matmul3(g, _swapped(conjugate(b))) if need_a else None
    grad_b = matmul3(_swapped(conjugate(a)), g) if need_b else None
    return grad_a, grad_b


def _stacked(x: Tensor, y: Tensor) -> Tensor:
    """Return (B, K, N, 2) and (B, K, N, 2) as (B, K, 2, N, 2)."""
    batch, k, n, _ = x._shape
    out = empty((batch, k, 2, n, 2), x.dtype, x.device, (x, y))
    for place, values in enumerate((x, y)):
        strides = (4 * k * n, 4 * n, 2, 1)
        write(as_view(out, (batch, k, n, 2), strides, 2 * n * place), values)
    return out


def conv2d_raw(
    kind: str,
    a: Tensor,
    b: Tensor,
    input_shape: Any,
    weight_shape: Any,
    output_shape: Any,
    *geometry: object,
) -> Tensor:
    """A convolution or one of its gradients; each is linear in both inputs, and the three are each
    other's derivatives.
    """
    if a.dtype.is_complex or b.dtype.is_complex:
        # Linear in both: four real ones.
        def run_real(x: Tensor, y: Tensor) -> Tensor:
            """Return the convolution of real tensors."""
            return conv2d_raw(kind, x, y, input_shape, weight_shape, output_shape, *geometry)

        (ar, ai), (br, bi) = (
            (real_part(t).contiguous(), imag_part(t).contiguous()) for t in (a, b)
        )
        return join(run_real(ar, br) - run_real(ai, bi), run_real(ar, bi) + run_real(ai, br))
    shapes = (tuple(input_shape), tuple(weight_shape), tuple(output_shape))
    shape = {"forward": shapes[2], "input": shapes[0], "weight": shapes[1]}[kind]
    out = record("conv", (a, b), (kind, *shapes, *geometry), (), shape, _type_of_sums(a))
    if not needs_grad((a, b)):
        return out
    saved = SavedTensor(a), SavedTensor(b)
    need = needs_grad((a,)), needs_grad((b,))
    args = (kind, *need, a.dtype, (*shapes, *geometry))
    return attach(out, "Convolution", (a, b), _convolutions, saved, args)


# The other two of the three kinds, that give the cotangents of both operands; which of these the cotangent meets.
_OTHER_KINDS = {
    "forward": ("input", "weight"),  # (input, weight)
    "input": ("forward", "weight"),  # (grad_output, weight)
    "weight": ("input", "forward"),  # (input, grad_output)
}


def _convolutions(
    g: Tensor,
    x: Tensor,
    y: Tensor,
    kind: str,
    need_x: bool,
    need_y: bool,
    dtype: DType,
    rest: tuple[object, ...],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the cotangents of both operands of a convolution, or of one of its gradients."""
    g = cast_to(g, dtype)
    first, second = _OTHER_KINDS[kind]
    left, right = {
        "forward": ((g, y), (x, g)),
        "input": ((g, y), (g, x)),
        "weight": ((y, g), (x, g)),
    }[kind]
    return (
        conv2d_raw(first, *left, *rest) if need_x else None,
        conv2d_raw(second, *right, *rest) if need_y else None,
    )


def pad_with(x: Tensor, low: Sequence[int], high: Sequence[int], value: Scalar) -> Tensor:
    """Return x inside a border of `value`."""
    if x.dtype.is_complex:
        number = complex(value)
        low, high = (*low, 0), (*high, 0)
        if number.real == number.imag:
            return complex_of(pad_with(pairs(x), low, high, number.real))
        re, im = real_part(x), imag_part(x)
        low, high = low[:-1], high[:-1]
        return join(pad_with(re, low, high, number.real), pad_with(im, low, high, number.imag))
    shape = tuple(a + s + b for a, s, b in zip(low, x._shape, high, strict=True))
    out = record("pad", (x,), (tuple(low),), (value,), shape, x.dtype)
    return attach(out, "ConstantPadNd", (x,), _inside, (), (tuple(low), x._shape))


def _inside(g: Tensor, low: Shape, shape: Shape) -> tuple[Tensor]:
    """Return the view of what a border surrounds."""
    start = g._offset + sum(a * s for a, s in zip(low, g._strides, strict=True))
    high = tuple(s - a - n for s, a, n in zip(g._shape, low, shape, strict=True))
    return (as_view(g, shape, g._strides, start, pad_with, (low, high, 0), "Slice"),)


def _each(x: Tensor, like: Tensor) -> Tensor:
    levels = levels_of((like,))
    if not levels or x._levels:
        return x
    return logical(
        record(
            "map",
            (physical(x, levels),),
            (IDENTITY, "t", x.dtype.compute),
            (),
            (*sizes_of(levels), *x._shape),
            x.dtype,
        ),
        levels,
    )


for entry, function in (
    (primitive.as_view, as_view), (primitive.unrounded, unrounded),
    (primitive.pad_with, pad_with), (primitive.reduce_dims,
    reduce_dims), (primitive.take, take),
    (primitive.scatter, scatter), (primitive.matmul3, matmul3), (primitive.conv2d_raw, conv2d_raw),
    (primitive.scan, scan),
    (primitive.sort_places, sort_places),
    (primitive.fill, fill), (primitive.iota, iota), (primitive.philox, philox), (primitive.draw, draw),
    (primitive.cast_to, cast_to), (primitive.copy, copy),
    (primitive.write, write), (primitive.empty, empty),
    (primitive.formula, formula), (primitive.pairs, pairs),
    (primitive.paired, paired), (primitive.seen_as, seen_as), (primitive.real_part, real_part),
    (primitive.imag_part, imag_part), (primitive.complex_of, complex_of),
    (primitive.join, join), (primitive.conjugate, conjugate),
    (primitive.each, _each),
    (primitive.differentiated, lambda x: needs_grad((x,))),
    (primitive.check_own_storage, check_own_storage),
    (primitive.in_memory, lambda x: x._storage.node.kind == "buffer"),
    (primitive.shown, lambda x: physical(x, levels_of((x,))) if x._levels else x),
):  # fmt: skip
    entry.function = function


give(lay=lay, record=record, strided_gradient=strided_gradient)
