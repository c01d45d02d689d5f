"""Records the primitives of the op table as graph nodes, with their gradient rules. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DeviceError, DTypeError
from webtorch.ir.dtype import DType, Scalar, bool_, int64
from webtorch.ir.graph import Node
from webtorch.ir.view import (
    Shape,
    contiguous_strides,
    is_contiguous,
    memory_order,
    numel,
    strides_like,
)
from webtorch.ops import primitive
from webtorch.ops.primitive import COUNT, IDENTITY, IOTA, RANDOM
from webtorch.runtime.realize import Runtime
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.host import random_words
from webtorch.tensors.lines import user_line
from webtorch.tensors.tape import (
    GradFn,
    SavedTensor,
    attach,
    gradient_edge,
    mode,
    needs_grad,
    retain,
    set_history,
)
from webtorch.tensors.tensor import Tensor, unsupported_text

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


def record(
    kind: str,
    inputs: Sequence[Tensor],
    attrs: tuple[Any, ...],
    scalars: tuple[Scalar, ...],
    shape: tuple[int, ...],
    dtype: DType,
) -> Tensor:
    """Record a node over `inputs` and return its tensor, outside autograd.

    Raises RuntimeError if the inputs are not all on one device.
    """
    runtime = inputs[0]._storage.runtime
    for t in inputs:
        if t._storage.runtime is not runtime:
            # Index nodes name the user's operation last among their texts.
            name = kind if kind == "conv" else [kind, *(a for a in attrs if isinstance(a, str))][-1]
            raise device_mismatch(name, inputs[0], t)
    node = Node(kind, tuple([t._node() for t in inputs]), attrs, scalars, shape, dtype, user_line())
    return Tensor._from_node(node, runtime)


def device_mismatch(name: str, a: Tensor, b: Tensor) -> DeviceError:
    """Return the error for tensors on two devices."""
    return DeviceError(
        f"{name.strip('_')}: Expected all tensors to be on the same device, but found at least two "
        f"devices, {a.device} and {b.device}! Move one of them, as in x.to('{a.device}')."
    )


def check_int64(name: str, value: Scalar, runtime: Runtime) -> None:
    """Raise OverflowError for an int64 number that a device with 32-bit integers cannot hold."""
    if runtime.kind == "webgpu" and not -(2**31) <= value < 2**31:
        raise OverflowError(
            f"{name.strip('_')}: {value} does not fit torch.int64 on WebGPU, which holds it in 32 bits "
            "(-2147483648 to 2147483647); use device 'cpu', or a float type"
        )


# ---- views
# --------------------------------------------------------------------------------------------------------------


def as_view(
    x: Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    vjp: Callable[[Tensor], Tensor] | None = None,
    name: str = "AsStrided",
) -> Tensor:
    """Return a view of x's storage."""
    shape, strides = tuple(shape), tuple(strides)
    storage = x._storage
    whole = offset == 0 and numel(shape) == storage.elements and is_contiguous(shape, strides)
    out = Tensor._from_storage(storage, shape, strides, offset, whole)
    # A view that the user made a leaf stands for itself: writes through its views are refused.
    leaf = x._requires_grad and x._grad_fn is None
    base = x if x._base is None or leaf else x._base
    out._base, out._base_history = base, base._history
    out._counter, out._inference = x._counter, x._inference
    if mode.grad and x.requires_grad:
        rule = (
            vjp
            if vjp is not None
            else _general_view_rule(
                (x._shape, x._strides, x._offset), (shape, strides, offset), storage.elements
            )
        )
        fn = GradFn(f"{name}Backward0", (gradient_edge(x),), lambda gs: (rule(gs[0]),))
        set_history(out, fn)
    return out


def strided_gradient(view: Tensor, base: Tensor) -> None:
    """Give `view` a new gradient function as a view of `base`, after an in-place write to the base."""
    rule = _general_view_rule(
        (base._shape, base._strides, base._offset),
        (view._shape, view._strides, view._offset),
        base._storage.elements,
    )
    # This may happen while another operation is being recorded: what that one saved is not ours.
    others, mode.unclaimed = mode.unclaimed, []
    fn = GradFn("AsStridedBackward0", (gradient_edge(base),), lambda gs: (rule(gs[0]),))
    mode.unclaimed = others
    set_history(view, fn)
    view._base_history = base._history


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements of a view may share memory (exact for views whose strides nest, as all
    usual ones do).
    """
    reach = 0
    for stride, size in sorted((abs(st), s) for s, st in zip(shape, strides, strict=True) if s > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _positions(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, like: Tensor
) -> Tensor:
    """Return the storage position of every element of a view, as an int64 tensor of that shape."""
    where = like.device
    total = fill((1,) * len(shape), offset, int64, where)
    for d, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = iota(size, 0, stride, int64, where)
        total = total + steps.reshape((1,) * d + (size,) + (1,) * (len(shape) - d - 1))
    return total.expand(shape)


def _spread(g: Tensor, geometry: Geometry, elements: int) -> Tensor:
    """Return a flat tensor of `elements` zeros with g added at the places of a view.

    It is the whole of its storage, so that further views may be taken by offset and strides.
    """
    shape, strides, offset = geometry
    flat = fill((elements,), 0, g.dtype, g.device)
    if g.numel() == 0:
        return flat
    if _overlaps(shape, strides):
        return scatter(
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
    write(as_view(flat, shape, strides, offset), g)
    return flat


def _general_view_rule(
    source: Geometry, view: Geometry, elements: int
) -> Callable[[Tensor], Tensor]:
    """Return the cotangent rule from a view to its source, where both are any views of one storage."""

    def rule(g: Tensor) -> Tensor:
        flat = _spread(g, view, elements)
        return as_view(flat, *source)

    return rule


# ---- writing
# ------------------------------------------------------------------------------------------------------------


def check_writable(x: Tensor) -> None:
    """Raise RuntimeError where PyTorch refuses an in-place operation."""
    if x._inference and not mode.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make "
            "a clone to get a normal tensor before doing inplace update. See "
            "https://github.com/pytorch/rfcs/pull/17 for more details."
        )
    if mode.grad:
        base = x._base
        if base is None and x.requires_grad and x.is_leaf:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        if base is not None and any(t.requires_grad and t.is_leaf for t in (x, base)):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation."
            )
    check_places(x)


def check_places(x: Tensor) -> None:
    """Raise RuntimeError if several elements of x share one place, so that none can be written alone."""
    if any(stride == 0 and size > 1 for size, stride in zip(x._shape, x._strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please "
            "clone() the tensor before performing the operation."
        )


def write(x: Tensor, values: Tensor, fresh: bool = False) -> Tensor:
    """Overwrite x's elements with `values` (same shape, dtype and device).

    `fresh`: the values were made for this call only and no one else holds them.
    """
    check_writable(x)
    storage = x._storage
    history = mode.grad and (x.requires_grad or values.requires_grad)
    if (
        values._storage is storage
        and (values._shape, values._strides, values._offset) == (x._shape, x._strides, x._offset)
        and not history
    ):
        # What x[i] += 1 ends with: the window was written before.
        x._counter.version += 1
        return x
    node = values._node()
    if x._whole:
        if not fresh and node is values._storage.node:
            node = values._storage.share()
        storage.replace(node)
    elif numel(x._shape):
        old = storage.node
        storage.replace(
            Node(
                "update",
                (old, node),
                (x._shape, x._strides),
                (x._offset,),
                old.shape,
                x.dtype,
                user_line(),
            )
        )
    else:
        return x
    if x._counter is not storage:
        storage.version -= 1
        x._counter.version += 1
    if history:
        rebase(x, values)
    return x


def rebase(x: Tensor, values: Tensor) -> None:
    """Give x, which was overwritten with `values`, their history; a view's base gets it too."""
    base = x._base
    if base is None:
        edge = gradient_edge(values) if values.requires_grad else None
        before = gradient_edge(x)
        x._history += 1
        x._accumulate = None
        if edge is None:
            # Nothing of the old value is left; it still has a gradient, of zeros.
            shape, dtype, where = x._shape, x.dtype, x.device
            zeros = lambda gs: (fill(shape, 0, dtype, where),)  # noqa: E731
            set_history(x, GradFn("CopyBackwards", (before,), zeros))
        elif values._grad_fn is None:
            # A leaf was copied: the copy has a function of its own.
            set_history(x, GradFn("CopyBackwards", (edge,), lambda gs: (gs[0],)))
        else:
            x._grad_fn, x._output_nr = edge
            x._requires_grad = True
            if x._retains:
                retain(x)
        return
    outer: Geometry = (base._shape, base._strides, base._offset)
    window: Geometry = (x._shape, x._strides, x._offset)
    elements = base._storage.elements

    def rule(gs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        (g,) = gs
        assert g is not None
        flat = _spread(g, outer, elements)
        inside = as_view(flat, *window)
        rest = flat.clone()
        # Not x._shape: holding x would close a cycle through its base, which holds this rule.
        write(as_view(rest, *window), fill(window[0], 0, g.dtype, g.device), fresh=True)
        return as_view(rest, *outer), inside.clone()

    fn = GradFn("CopySlices", (gradient_edge(base), gradient_edge(values)), rule)
    set_history(base, fn)
    base._history += 1
    x._refresh_view()


# ---- data
# ---------------------------------------------------------------------------------------------------------------


def fill(shape: Sequence[int], value: Scalar, dtype: DType, device: DeviceLike) -> Tensor:
    """Return a tensor of one value."""
    runtime = resolve(device)
    if dtype is int64:
        check_int64("fill", value, runtime)
    return Tensor._from_node(
        Node("map", (), (IDENTITY, "s", dtype.compute), (value,), tuple(shape), dtype, user_line()),
        runtime,
    )


def empty(shape: Sequence[int], dtype: DType, device: DeviceLike) -> Tensor:
    """Return uninitialised memory."""
    return Tensor._from_node(
        Node("empty", (), (), (), tuple(shape), dtype, user_line()), resolve(device)
    )


def iota(count: int, start: Scalar, step: Scalar, dtype: DType, device: DeviceLike) -> Tensor:
    """Return start + i * step for i < count."""
    runtime = resolve(device)
    if type(start) is int and start == 0 and step == 1 and dtype.is_integral:
        return Tensor._from_node(
            Node("map", (), (COUNT, "p", dtype.compute), (), (count,), dtype, user_line()), runtime
        )
    if dtype is int64 and count:
        check_int64("arange", start, runtime)
        check_int64("arange", start + step * (count - 1), runtime)
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
    node = Node("map", (), (op, "puuuu", dtype.compute), words, tuple(shape), dtype, user_line())
    return Tensor._from_node(node, resolve(device))


def out_of_order(shape: Shape, strides: Shape) -> Shape | None:
    """Return the dims of new memory from the widest stride to the narrowest; None for row-major."""
    return None if is_contiguous(shape, strides) else memory_order(shape, strides)


def ordered_node(x: Tensor, shape: Shape, strides: Shape, order: Shape) -> Node:
    """Return the value of x, seen with other sizes and strides, with its dims in `order`."""
    shape = tuple([shape[d] for d in order])
    strides = tuple([strides[d] for d in order])
    node, offset = x._storage.node, x._offset
    if not offset and node.shape == shape and is_contiguous(shape, strides):
        return node
    if not offset or node.kind not in ("buffer", "update", "scatter"):
        return Node("view", (node,), (strides, offset), (), shape, x.dtype)
    return Node("view", (node,), (strides,), (offset,), shape, x.dtype)


def _identity(x: Tensor, dtype: DType) -> Tensor:
    """Return x in new memory of its layout, as `dtype`."""
    attrs = (IDENTITY, "t", x.dtype.compute)
    strides = x._strides if x._whole else strides_like(x._shape, x._strides)
    order = out_of_order(x._shape, strides)
    if order is None:
        out = record("map", (x,), attrs, (), x._shape, dtype)
        whole = True
    else:
        source = ordered_node(x, x._shape, x._strides, order)
        shape = tuple([x._shape[d] for d in order])
        node = Node("map", (source,), attrs, (), shape, dtype, user_line())
        out, whole = Tensor._from_node(node, x._storage.runtime), False
    if (out._shape, out._strides) == (x._shape, strides):
        return out
    return Tensor._from_storage(out._storage, x._shape, strides, 0, whole)


def cast_to(x: Tensor, dtype: DType) -> Tensor:
    """Return x in another dtype."""
    if x.dtype is dtype:
        return x
    if dtype in x._storage.runtime.unsupported:
        raise DTypeError(unsupported_text(dtype, x._storage.runtime))
    out = _identity(x, dtype)
    if x.dtype.is_floating_point and dtype.is_floating_point and needs_grad((x,)):
        source = x.dtype
        attach(out, "ToCopy", (x,), lambda g: (cast_to(g, source),))
    return out


def copy(x: Tensor) -> Tensor:
    """Return x in new, contiguous storage. The value is shared until one of the two is written."""
    if x._whole:
        node = x._node()
        if node is x._storage.node:
            node = x._storage.share()
        out = Tensor._from_node(node, x._storage.runtime)
    else:
        out = record("map", (x,), (IDENTITY, "t", x.dtype.compute), (), x._shape, x.dtype)
    return attach(out, "Clone", (x,), lambda g: (g,))


# ---- reductions, scans
# ------------------------------------------------------------------------------------------------


def reduce_dims(x: Tensor, combine: str, dims: tuple[int, ...]) -> Tensor:
    """Combine over `dims`, which stay as size 1."""
    shape = tuple([1 if d in dims else s for d, s in enumerate(x._shape)])
    dtype = (
        bool_
        if combine in ("any", "all")
        else int64
        if combine in ("argmax", "argmin")
        else x.dtype
    )
    out = record("reduce", (x,), (combine, dims), (), shape, dtype)
    if not x.dtype.is_floating_point or not needs_grad((x,)):
        return out
    full = x._shape
    if combine == "sum":
        return attach(out, "Sum", (x,), lambda g: (g.expand(full),))
    if combine in ("max", "min"):
        saved, result = SavedTensor(x), SavedTensor(out, is_output=True)

        def rule(g: Tensor) -> tuple[Tensor]:
            source = saved.unpack()
            # Ties share the cotangent evenly, as PyTorch's amax and amin do.
            mask = (source == result.unpack()).to(source.dtype)
            return (mask * (g / reduce_dims(mask, "sum", dims)),)

        return attach(out, "Amax" if combine == "max" else "Amin", (x,), rule)
    return out


def scan(x: Tensor, combine: str, dim: int) -> Tensor:
    """Running sum, product, max or min along a dim."""
    out = record("scan", (x,), (combine, dim), (), x._shape, x.dtype)
    if combine == "sum":
        return attach(out, "Cumsum", (x,), lambda g: (scan(g.flip(dim), "sum", dim).flip(dim),))
    return out


def sort_places(x: Tensor, descending: bool, first: int, count: int) -> Tensor:
    """Where the elements of each row were that come at ranks first .. first + count."""
    return record("sort", (x,), (descending, first), (), (x._shape[0], count), int64)


# ---- indexing
# ---------------------------------------------------------------------------------------------------------


def take(
    x: Tensor, indices: Sequence[Tensor], name: str, wrap: bool = False, dims: Sequence[int] = ()
) -> Tensor:
    """Pick rows of x by index tensors. `dims`: what the user calls the indexed dimensions."""
    count = len(indices)
    dims = tuple(dims or range(count))
    shape = indices[0]._shape + x._shape[count:]
    _check_not_empty(x._shape, indices, name, dims)
    out = record("take", (x, *indices), (count, dims, name, wrap), (), shape, x.dtype)
    if not needs_grad((x,)):
        return out
    saved = [SavedTensor(i) for i in indices]
    full = x._shape

    def rule(g: Tensor) -> tuple[Tensor]:
        return (
            scatter(
                fill(full, 0, g.dtype, g.device),
                [s.unpack() for s in saved],
                g,
                "add",
                name,
                wrap,
                dims,
            ),
        )

    return attach(out, "Index", (x,), rule)


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

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        where = [s.unpack() for s in saved]
        kept = (
            g
            if combine == "add"
            else scatter(
                g, where, fill(values_shape, 0, g.dtype, g.device), "set", name, wrap, dims
            )
        )
        return kept, take(g, where, name, wrap, dims)

    values_shape = values._shape
    return attach(out, "IndexPut" if combine == "set" else "ScatterAdd", (base, values), rule)


def _check_not_empty(
    shape: tuple[int, ...], indices: Sequence[Tensor], name: str, dims: Sequence[int]
) -> None:
    for d, index in enumerate(indices):
        if shape[d] == 0 and index.numel():
            raise IndexError(f"{name}: index is out of bounds for dimension {dims[d]} with size 0")


# ---- contractions
# -----------------------------------------------------------------------------------------------------


def _swapped(x: Tensor) -> Tensor:
    b, m, n = x._shape
    sb, sm, sn = x._strides
    return as_view(x, (b, n, m), (sb, sn, sm), x._offset, lambda g: _swapped(g), "Transpose")


def matmul3(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product."""
    out = record("matmul", (a, b), (), (), (a._shape[0], a._shape[1], b._shape[2]), a.dtype)
    if not needs_grad((a, b)):
        return out
    left, right = SavedTensor(a), SavedTensor(b)
    need_a, need_b = a.requires_grad, b.requires_grad
    # The cotangent of a transposed matrix, such as a Linear's weight, is made in the layout of the
    # matrix itself: no copy.
    a_columns, b_columns = (t._strides[1] == 1 and t._strides[2] != 1 for t in (a, b))

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        grad_a = grad_b = None
        if need_a:
            y = right.unpack()
            grad_a = _swapped(matmul3(y, _swapped(g))) if a_columns else matmul3(g, _swapped(y))
        if need_b:
            x = left.unpack()
            grad_b = _swapped(matmul3(_swapped(g), x)) if b_columns else matmul3(_swapped(x), g)
        return grad_a, grad_b

    return attach(out, "Bmm", (a, b), rule)


def conv2d_raw(
    kind: str,
    a: Tensor,
    b: Tensor,
    input_shape: Any,
    weight_shape: Any,
    output_shape: Any,
    *geometry: Any,
) -> Tensor:
    """A convolution or one of its gradients; each is linear in both inputs, and the three are each
    other's derivatives.
    """
    shapes = (tuple(input_shape), tuple(weight_shape), tuple(output_shape))
    shape = {"forward": shapes[2], "input": shapes[0], "weight": shapes[1]}[kind]
    out = record("conv", (a, b), (kind, *shapes, *geometry), (), shape, a.dtype)
    if not needs_grad((a, b)):
        return out
    first, second = SavedTensor(a), SavedTensor(b)
    need_a, need_b = a.requires_grad, b.requires_grad

    def run(which: str, x: Tensor, y: Tensor) -> Tensor:
        return conv2d_raw(which, x, y, *shapes, *geometry)

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = first.unpack(), second.unpack()
        match kind:
            case "forward":  # (input, weight)
                return (run("input", g, y) if need_a else None), (
                    run("weight", x, g) if need_b else None
                )
            case "input":  # (grad_output, weight)
                return (run("forward", g, y) if need_a else None), (
                    run("weight", g, x) if need_b else None
                )
            case _:  # (input, grad_output)
                return (run("input", y, g) if need_a else None), (
                    run("forward", x, g) if need_b else None
                )

    return attach(out, "Convolution", (a, b), rule)


def pad_with(x: Tensor, low: Sequence[int], high: Sequence[int], value: Scalar) -> Tensor:
    """Return x inside a border of `value`."""
    shape = tuple(a + s + b for a, s, b in zip(low, x._shape, high, strict=True))
    out = record("pad", (x,), (tuple(low),), (value,), shape, x.dtype)
    inner, full = tuple(low), x._shape

    def rule(g: Tensor) -> tuple[Tensor]:
        start = g._offset + sum(a * s for a, s in zip(inner, g._strides, strict=True))
        after = tuple(s - a - n for s, a, n in zip(shape, inner, full, strict=True))

        def crop(h: Tensor) -> Tensor:
            return pad_with(h, inner, after, 0)

        return (as_view(g, full, g._strides, start, crop, "Slice"),)

    return attach(out, "ConstantPadNd", (x,), rule)


for entry, function in (
    (primitive.as_view, as_view), (primitive.pad_with, pad_with), (primitive.reduce_dims,
    reduce_dims), (primitive.take, take),
    (primitive.scatter, scatter), (primitive.matmul3, matmul3), (primitive.conv2d_raw, conv2d_raw),
    (primitive.scan, scan),
    (primitive.sort_places, sort_places),
    (primitive.fill, fill), (primitive.iota, iota), (primitive.philox, philox), (primitive.cast_to,
    cast_to), (primitive.copy, copy),
    (primitive.write, write), (primitive.empty, empty),
):  # fmt: skip
    entry.function = function
