"""Records the primitives of the op table as graph nodes, with their gradient rules. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import CaptureError, DeviceError, DTypeError
from webtorch.ir.dtype import DType, Scalar, bool_, int64, legacy_name
from webtorch.ir.graph import IN_MEMORY, Node, window
from webtorch.ir.lines import user_line
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import (
    Shape,
    contiguous_strides,
    is_contiguous,
    memory_order,
    numel,
    overlaps,
    strides_like,
)
from webtorch.ops import primitive
from webtorch.ops.bits import WHOLE, reinterpreted
from webtorch.ops.pairs import COMPLEX, CONJ, FILL, TIMES_I, WIDEN, recorded
from webtorch.ops.primitive import COUNT, IDENTITY, IOTA, RANDOM
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise
from webtorch.runtime.realize import Runtime
from webtorch.tensors.above import give
from webtorch.tensors.batching import (
    Levels,
    batch,
    levels_of,
    logical,
    physical,
    record_batched,
    sizes_of,
    unbatch,
)
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.forward import write_tangents, write_twins
from webtorch.tensors.host import random_words, tracing
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    GradFn,
    SavedTensor,
    attach,
    forward,
    gradient_edge,
    mode,
    needs_grad,
    no_grad,
    retain,
    set_history,
    unrecorded,
)
from webtorch.tensors.tensor import Tensor, made_in_mode, unsupported_text

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
                (x._shape, x._strides, x._offset), (shape, strides, offset), _elements(x, x.dtype)
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


def _elements(x: Tensor, dtype: DType) -> int:
    """Return how many elements of a type the storage of x holds."""
    return x._storage.nbytes // dtype.itemsize


def _geometry(x: Tensor, dtype: DType) -> Geometry:
    """Return the geometry of x in elements of `dtype`: of its parts, where x is complex and that is not."""
    if x.dtype.is_complex and not dtype.is_complex:
        x = x._pairs()
    return x._shape, x._strides, x._offset


def _mixed_view_rule(view: Tensor, base: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the cotangent rule from a view to its base, of which one may be complex."""
    if view.dtype is base.dtype:
        return _general_view_rule(
            _geometry(base, base.dtype), _geometry(view, base.dtype), _elements(base, base.dtype)
        )
    part, complex_base = base.dtype.to_real(), base.dtype.is_complex
    real_rule = _general_view_rule(
        _geometry(base, part), _geometry(view, part), _elements(base, part)
    )

    def rule(g: Tensor) -> Tensor:
        """Return the cotangent by way of pairs of real numbers."""
        found = real_rule(pairs(g) if g.dtype.is_complex else g)
        return paired(found) if complex_base else found

    return rule


def strided_gradient(view: Tensor, base: Tensor) -> None:
    """Give `view` a new gradient function as a view of `base`, after an in-place write to the base."""
    extra = _hidden_beyond(view, base)
    inner = _mixed_view_rule(physical(view, extra) if extra else view, base)
    rule = (lambda g: inner(_shown_dims(g, extra))) if extra else inner
    fn = GradFn("AsStridedBackward0", (gradient_edge(base),), lambda gs: (rule(gs[0]),))
    set_history(view, fn)
    view._base_history = base._history


def _hidden_beyond(view: Tensor, base: Tensor) -> Levels:
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
    levels = levels_of((g,))
    flat = fill((*sizes_of(levels), elements), 0, g.dtype, g.device)
    flat = logical(flat, levels) if levels else flat
    if g.numel() == 0:
        return flat
    if overlaps(shape, strides):
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
    """Return the cotangent rule from a view to its source, where both are any views of one storage.

    Elements of the source that share memory share the cotangent.
    """

    def rule(g: Tensor) -> Tensor:
        """Return the cotangent spread over the storage, and seen as the source."""
        flat = _spread(g, view, elements)
        if overlaps(*source[:2]):
            flat = flat / _spread(fill(source[0], 1, g.dtype, g.device), source, elements)
        return as_view(flat, *source)

    return rule


def formula(
    op: Elementwise,
    tensors: Sequence[Tensor],
    shape: Shape,
    dtype: DType,
    device: DeviceLike = None,
) -> Tensor:
    """Record an entry over the flat position and tensors of `shape`, outside autograd."""
    runtime = tensors[0]._storage.runtime if tensors else resolve(device)
    attrs = (op, "p" + "t" * len(tensors), dtype.compute)
    srcs = tuple([t._node() for t in tensors])
    return Tensor._from_node(Node("map", srcs, attrs, (), shape, dtype, user_line()), runtime)


# ---- complex tensors as pairs of real numbers
# ------------------------------------------------------------------------------------------------------------


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
        x = copy(x)
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
        zero = fill(g._shape, 0, g.dtype, g.device)
        return join(zero, g) if which else join(g, zero)

    strides = tuple([2 * s for s in x._strides])
    return as_view(x, x._shape, strides, 2 * x._offset + which, rule, "Select", x.dtype.to_real())


def _part_node(x: Tensor, which: int, shape: Shape, both: bool) -> Node:
    """Return a part of x (a real x has one), expanded to `shape`; with `both`, for each of two parts."""
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
    if both:
        shape, strides = (*shape, 2), (*strides, 0)
    if not x._offset or node.kind not in IN_MEMORY:
        return Node("view", (node,), (strides, offset), (), shape, node.dtype)
    return Node("view", (node,), (strides,), (offset,), shape, node.dtype)


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
    if dtype in runtime.unsupported:
        raise DTypeError(unsupported_text(dtype, runtime))
    real = not dtype.is_complex
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
            srcs += [_part_node(o, which, shape, not real) for which in range(1 + both)]
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
        shape if real else (*shape, 2),
        dtype.to_real(),
        user_line(),
    )
    out = Tensor._from_node(node, runtime)
    return out if real else complex_of(out)


def join(re: Tensor, im: Tensor) -> Tensor:
    """Return the complex tensor of two real ones."""
    out = map_pairs(COMPLEX, (re, im), re._shape, re.dtype.to_complex())
    return attach(out, "Complex", (re, im), lambda g: (real_part(g), imag_part(g)))


def conjugate(x: Tensor) -> Tensor:
    """Return the conjugate."""
    if not x.dtype.is_complex:
        return x
    return attach(map_pairs(CONJ, (x,), x._shape, x.dtype), "Conj", (x,), lambda g: (conjugate(g),))


def _on_pairs(function: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
    """Return the complex result of a function that treats both parts of its inputs alike."""
    return complex_of(function(*map(pairs, tensors), **options))


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
        if base is not None and x._made_by is not None and x.requires_grad:
            x._refuse_write()
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
    if (
        0 in x._strides
        and any(stride == 0 and size > 1 for size, stride in zip(x._shape, x._strides, strict=True))
    ) or (x._levels and any(stride == 0 and size > 1 for _, size, stride in x._levels)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please "
            "clone() the tensor before performing the operation."
        )


def leave_hooks(x: Tensor) -> None:
    """Before x is overwritten by what is computed from it: as in PyTorch, gradients of a view then go to its
    base past the hooks that are on views.
    """
    base = x._base
    if base is None or not mode.grad or not x.requires_grad:
        return
    end, fn = gradient_edge(base), x._grad_fn
    while fn is not None and (end is None or fn is not end[0]) and len(fn.edges) == 1:
        if fn.pre_hooks or fn.post_hooks or fn.retained:
            strided_gradient(x, base)
            return
        edge = fn.edges[0]
        fn = None if edge is None else edge[0]


def write(x: Tensor, values: Tensor, fresh: bool = False) -> Tensor:
    """Overwrite x's elements with `values` (same shape, dtype and device).

    `fresh`: the values were made for this call only and no one else holds them.
    """
    check_writable(x)
    storage = x._storage
    history = mode.grad and (x.requires_grad or values.requires_grad)
    if history and x._made_by is not None and x._base is not None:
        x._refuse_write()
    if (
        values._storage is storage
        and (values._shape, values._strides, values._offset) == (x._shape, x._strides, x._offset)
        and values._levels == x._levels
        and not history
    ):
        # What x[i] += 1 ends with: the window was written before.
        x._counter.version += 1
        return x
    if x.dtype.is_complex:
        return _write_complex(x, values, fresh, history)
    target, given = (x, values)
    if x._levels or values._levels:
        target, given = _shown_operands(x, values)
    node = given._node()
    if 0 in target._shape and (storage.elements or x.dtype is not storage.dtype):
        if history:
            rebase(x, values)
        return x
    if x.dtype is not storage.dtype:
        storage.replace(_with_bits(storage.node, target, node))
    elif target._whole:
        if not fresh and node is values._storage.node:
            node = values._storage.share()
        storage.replace(node)
    else:
        old = storage.node
        storage.replace(
            Node(
                "update",
                (old, node),
                (target._shape, target._strides),
                (x._offset,),
                old.shape,
                x.dtype,
                user_line(),
            )
        )
    changed = [storage]
    if forward.levels and mode.forward:
        write_tangents(x, values)
        changed += write_twins(storage)
    if x._counter is not storage:
        storage.version -= 1
        x._counter.version += 1
    if history:
        rebase(x, values)
    if tracing.picked:
        if history:
            for one in changed:
                spread(one)
        else:
            # What is detached is written without gradients, wherever else that is seen.
            with no_grad():
                for one in changed:
                    spread(one)
    return x


class Picked:
    """While a capture runs: a copy that stands for a view, which follows from numbers on the device."""

    __slots__ = ("out", "put", "take", "view")

    def __init__(
        self, view: Tensor, out: Tensor, take: Callable[[], Tensor], put: Callable[[], object]
    ) -> None:
        self.view, self.out, self.take, self.put = view, out, take, put


def spread(storage: Storage, origin: Picked | None = None) -> None:
    """After a write: put back what stands for a view of something, and take again what stands for views of it."""
    picked = tracing.picked
    for p in picked:
        if p is origin or not (p.out._storage is storage or p.view._storage is storage):
            continue
        tracing.picked = []
        try:
            if p.out._storage is storage:
                p.put()
                other = p.view._storage
            else:
                write(p.out, p.take(), fresh=True)
                other = p.out._storage
        finally:
            tracing.picked = picked
        spread(other, p)


def _check_own_storage(x: Tensor) -> None:
    if any(p.out._storage is x._storage for p in tracing.picked):
        raise CaptureError(
            "as_strided: in a captured function the storage of x[i] of a 0-d tensor i is not that of x, since "
            "nobody may read i there: use x.select(0, i) with an int, or as_strided of x"
        )


def _with_bits(old: Node, target: Tensor, values: Node) -> Node:
    """Return the value of a storage after a write to a view of it that has another element type."""
    dtype, line = values.dtype, user_line()
    window = (target._shape, target._strides)

    def seen_as(node: Node, kind: DType) -> Node:
        """Return a value as elements of another type."""
        if node.dtype is kind:
            return node
        flat = reinterpreted(node, kind)
        whole = (contiguous_strides(node.shape), 0)
        same = numel(flat.shape) == numel(node.shape)
        return Node("view", (flat,), whole, (), node.shape, kind) if same else flat

    if dtype.itemsize == old.dtype.itemsize:
        values = seen_as(values, old.dtype)
        return Node("update", (old, values), window, (target._offset,), old.shape, old.dtype, line)
    # What is not written must come back as it was: integers hold every pattern of bits.
    whole = WHOLE[dtype.itemsize]
    flat = seen_as(old, whole)
    values = seen_as(values, whole)
    new = Node("update", (flat, values), window, (target._offset,), flat.shape, whole, line)
    back = seen_as(new, old.dtype)
    if back.shape == (numel(old.shape),):
        return Node("view", (back,), (contiguous_strides(old.shape), 0), (), old.shape, old.dtype)
    # Bytes at the end that make no element of the view.
    return Node("update", (old, back), (back.shape, (1,)), (0,), old.shape, old.dtype, line)


def _write_complex(x: Tensor, values: Tensor, fresh: bool, history: bool) -> Tensor:
    with no_grad():
        write(x._pairs(), values._pairs(), fresh)
    if history:
        rebase(x, values)
    return x


def _shown_operands(x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is written and the values with the dims that vmap hides."""
    levels = levels_of((x,))
    if levels_of((x, values)) != levels:
        if not numel(x._shape):
            # A result without elements may lack a level that its operands have; nothing is written.
            nothing = physical(x, levels)
            return nothing, nothing
        raise RuntimeError(
            "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a "
            "Tensor `other` in extra_args that has more elements than `self`. This happened due to "
            "`other` being vmapped over but `self` not being vmapped over in a vmap. Please try to "
            "use out-of-place operators instead of inplace arithmetic. If said operator is being "
            "called inside the PyTorch framework, please file a bug report instead."
        )
    return physical(x, levels), physical(values, levels)


def rebase(x: Tensor, values: Tensor) -> None:
    """Give x, which was overwritten with `values`, their history; a view's base gets it too."""
    base = x._base
    if tracing.active:
        tracing.touch_history(x if base is None else base)
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
    # Where one of the two is complex, both are seen as real numbers.
    dtype = base.dtype if base.dtype is x.dtype else base.dtype.to_real()
    extra = _hidden_beyond(x, base)
    window = _geometry(physical(x, extra) if extra else x, dtype)
    outer = _geometry(base, dtype)
    elements = _elements(base, dtype)
    base_pairs, x_pairs = base.dtype is not dtype, x.dtype is not dtype

    def rule(gs: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """Return the cotangents of what was there before, 0 where it was overwritten, and of the values."""
        (g,) = gs
        assert g is not None
        if base_pairs:
            g = pairs(g)
        flat = _spread(g, outer, elements)
        inside = as_view(flat, *window)
        rest = flat.clone()
        # Not x._shape: holding x would close a cycle through its base, which holds this rule.
        write(as_view(rest, *window), fill(window[0], 0, g.dtype, g.device), fresh=True)
        outside, inside = as_view(rest, *outer), inside.clone()
        inside = paired(inside) if x_pairs else inside
        for number, _ in extra:
            inside = batch(inside, 0, number)
        return paired(outside) if base_pairs else outside, inside

    fn = GradFn("CopySlices", (gradient_edge(base), gradient_edge(values)), rule)
    set_history(base, fn)
    base._history += 1
    x._refresh_view()


# ---- data
# ---------------------------------------------------------------------------------------------------------------


def fill(shape: Sequence[int], value: Scalar | complex, dtype: DType, device: DeviceLike) -> Tensor:
    """Return a tensor of one value."""
    runtime = resolve(device)
    if dtype.is_complex:
        if dtype in runtime.unsupported:
            raise DTypeError(unsupported_text(dtype, runtime))
        part, number = dtype.to_real(), complex(value)
        attrs = (FILL, "css", part)
        scalars = (number.real, number.imag)
        node = Node("map", (), attrs, scalars, (*shape, 2), part, user_line())
        return complex_of(Tensor._from_node(node, runtime))
    if isinstance(value, complex):
        raise RuntimeError(
            f"value cannot be converted to type {dtype.name} without overflow: {value} is complex"
        )
    if dtype is int64:
        check_int64("fill", value, runtime)
    return Tensor._from_node(
        Node("map", (), (IDENTITY, "s", dtype.compute), (value,), tuple(shape), dtype, user_line()),
        runtime,
    )


def empty(
    shape: Sequence[int], dtype: DType, device: DeviceLike, like: Sequence[Tensor] = ()
) -> Tensor:
    """Return uninitialised memory, for each example that one of `like` is batched over."""
    if dtype.is_complex:
        if dtype in resolve(device).unsupported:
            raise DTypeError(unsupported_text(dtype, resolve(device)))
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
    # Numbers of their own for each example of a vmap that asks for them.
    levels = tuple([(v.number, v.size) for v in mode.vmaps if v.randomness == "different"])
    full = (*sizes_of(levels), *shape)
    node = Node("map", (), (op, "puuuu", dtype.compute), words, full, dtype, user_line())
    out = Tensor._from_node(node, resolve(device))
    return logical(out, levels) if levels else out


def draw(formula: Any, parameters: Sequence[Tensor], seed: int, offset: int) -> Tensor:
    """Return random numbers of distributions, one for each element of the parameters."""
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


def _identity(x: Tensor, dtype: DType) -> Tensor:
    """Return x in new memory of its layout, as `dtype`."""
    attrs = (IDENTITY, "t", x.dtype.compute)
    strides = x._strides if x._whole else strides_like(x._shape, x._strides)
    order = None if x._levels else out_of_order(x._shape, strides)
    if order is None:
        out = record("map", (x,), attrs, (), x._shape, dtype)
        if x._levels:
            return out
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
    if x.dtype.is_complex or dtype.is_complex:
        return _cast_complex(x, dtype)
    out = _identity(x, dtype)
    if x.dtype.is_floating_point and dtype.is_floating_point and needs_grad((x,)):
        source = x.dtype
        attach(out, "ToCopy", (x,), lambda g: (cast_to(g, source),))
    return out


def _cast_complex(x: Tensor, dtype: DType) -> Tensor:
    if not x.dtype.is_complex:
        re = cast_to(x, dtype.to_real())
        # A form of one real operand: the number itself.
        out = map_pairs(WIDEN, (re,), re._shape, dtype)
        return attach(out, "ToCopy", (re,), lambda g: (real_part(g),))
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


def copy(x: Tensor) -> Tensor:
    """Return x in new, contiguous storage. The value is shared until one of the two is written."""
    if x.dtype.is_complex:
        return attach(complex_of(copy(x._pairs())), "Clone", (x,), lambda g: (g,))
    if x._whole:
        # Another thread may write x meanwhile: only `share` keeps the memory of what it returns.
        node = x._storage.share() if x._storage.node.shape == x._shape else x._node()
        out = Tensor._from_node(node, x._storage.runtime)
    else:
        out = record("map", (x,), (IDENTITY, "t", x.dtype.compute), (), x._shape, x.dtype)
    return attach(out, "Clone", (x,), lambda g: (g,))


# ---- reductions, scans
# ------------------------------------------------------------------------------------------------


def reduce_dims(x: Tensor, combine: str, dims: tuple[int, ...]) -> Tensor:
    """Combine over `dims`, which stay as size 1."""
    if x.dtype.is_complex:
        if combine == "sum":
            return _on_pairs(reduce_dims, x, combine="sum", dims=dims)
        if combine == "prod":
            return _product(x, dims)
        raise DTypeError(f"{combine} not implemented for '{legacy_name(x.dtype)}'")
    shape = tuple([1 if d in dims else s for d, s in enumerate(x._shape)])
    dtype = REDUCERS[combine].gives or x.dtype
    out = record("reduce", (x,), (combine, dims), (), shape, dtype)
    if not x.dtype.is_floating_point or not needs_grad((x,)):
        return out
    full = x._shape
    if combine == "sum":
        return attach(out, "Sum", (x,), lambda g: (g.expand(full),))
    if combine in ("max", "min"):
        saved, result = SavedTensor(x), SavedTensor(out, output=0)

        def rule(g: Tensor) -> tuple[Tensor]:
            """Return the cotangent at the maxima or minima."""
            source = saved.unpack()
            # Ties share the cotangent evenly, as PyTorch's amax and amin do.
            mask = (source == result.unpack()).to(source.dtype)
            return (mask * (g / reduce_dims(mask, "sum", dims)),)

        title = "Amax" if combine == "max" else "Amin"
        return attach(out, title, (x,), rule, (saved, result))
    return out


def scan(x: Tensor, combine: str, dim: int) -> Tensor:
    """Running sum, product, max or min along a dim."""
    if x.dtype.is_complex:
        if combine == "sum":
            return _on_pairs(scan, x, combine="sum", dim=dim)
        if combine == "prod":
            return _running_product(x, dim)
        raise DTypeError(f"cum{combine} not implemented for '{legacy_name(x.dtype)}'")
    out = record("scan", (x,), (combine, dim), (), x._shape, x.dtype)
    if combine == "sum":
        return attach(out, "Cumsum", (x,), lambda g: (scan(g.flip(dim), "sum", dim).flip(dim),))
    return out


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
    full = x._shape

    def rule(g: Tensor) -> tuple[Tensor]:
        """Return zeros with the cotangents added at the indices."""
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

    return attach(out, "Index", (x,), rule, saved)


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
                f"{name}: combining by {combine} is not implemented for '{legacy_name(base.dtype)}'"
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

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the cotangents of base and values."""
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
    title = "IndexPut" if combine == "set" else "ScatterAdd"
    return attach(out, title, (base, values), rule, saved)


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


def _type_of_sums(x: Tensor) -> DType:
    return x.dtype.compute if mode.keeps_sums and x.dtype.kind == "float" else x.dtype


def unrounded(multiply: Callable[..., Tensor], *args: Any) -> Tensor:
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
    left, right = SavedTensor(a), SavedTensor(b)
    need_a, need_b = needs_grad((a,)), needs_grad((b,))
    # The cotangent of a transposed matrix, such as a Linear's weight, is made in the layout of the
    # matrix itself: no copy.
    a_columns, b_columns = (t._strides[1] == 1 and t._strides[2] != 1 for t in (a, b))
    dtype = a.dtype

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the cotangents of both operands: products with the other one, transposed."""
        grad_a = grad_b = None
        g = cast_to(g, dtype)
        if need_a:
            y = right.unpack()
            grad_a = _swapped(matmul3(y, _swapped(g))) if a_columns else matmul3(g, _swapped(y))
        if need_b:
            x = left.unpack()
            grad_b = _swapped(matmul3(_swapped(g), x)) if b_columns else matmul3(_swapped(x), g)
        return grad_a, grad_b

    return attach(out, "Bmm", (a, b), rule, (left, right))


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
    first, second = SavedTensor(a), SavedTensor(b)
    need_a, need_b = needs_grad((a,)), needs_grad((b,))

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the cotangents of both operands: products with the other one, conjugated."""
        grad_a = matmul3(g, _swapped(conjugate(second.unpack()))) if need_a else None
        grad_b = matmul3(_swapped(conjugate(first.unpack())), g) if need_b else None
        return grad_a, grad_b

    return attach(out, "Bmm", (a, b), rule, (first, second))


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
    *geometry: Any,
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
    first, second = SavedTensor(a), SavedTensor(b)
    need_a, need_b = needs_grad((a,)), needs_grad((b,))

    dtype = a.dtype

    def run(which: str, x: Tensor, y: Tensor) -> Tensor:
        """Return the convolution, or one of its gradients."""
        return conv2d_raw(which, x, y, *shapes, *geometry)

    def rule(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the cotangents of both operands: the other two of the three kinds."""
        x, y, g = first.unpack(), second.unpack(), cast_to(g, dtype)
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

    return attach(out, "Convolution", (a, b), rule, (first, second))


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
    inner, full = tuple(low), x._shape

    def rule(g: Tensor) -> tuple[Tensor]:
        """Return the view of the inside."""
        start = g._offset + sum(a * s for a, s in zip(inner, g._strides, strict=True))
        after = tuple(s - a - n for s, a, n in zip(shape, inner, full, strict=True))

        def crop(h: Tensor) -> Tensor:
            """Return the cotangent of that view: a border of zeros."""
            return pad_with(h, inner, after, 0)

        return (as_view(g, full, g._strides, start, crop, "Slice"),)

    return attach(out, "ConstantPadNd", (x,), rule)


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
    (primitive.check_own_storage, _check_own_storage),
    (primitive.in_memory, lambda x: x._storage.node.kind == "buffer"),
    (primitive.shown, lambda x: physical(x, levels_of((x,))) if x._levels else x),
):  # fmt: skip
    entry.function = function


give(record=record, strided_gradient=strided_gradient)
