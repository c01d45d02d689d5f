"""Writes to tensors: what may be written, and the values and histories that follow. Floor 4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from webtorch.errors import CaptureError
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node, placed
from webtorch.ir.lines import user_line
from webtorch.ir.view import OVERWRITTEN, Place, Shape, contiguous_strides, is_overwritten, numel
from webtorch.ops import primitive
from webtorch.ops.bits import WHOLE, reinterpreted
from webtorch.ops.purity import warn
from webtorch.tensors.batching import Levels, batch, levels_of, physical
from webtorch.tensors.device import device
from webtorch.tensors.forward import write_tangents, write_twins
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import mode, no_grad, transforms
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    Cotangents,
    GradFn,
    SavedTensor,
    gradient_edge,
    pass_on,
    retain,
    set_history,
)
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import (
    Geometry,
    as_view,
    elements_of,
    geometry_of,
    hidden_beyond,
    paired,
    pairs,
    spread_over,
    strided_gradient,
)


def check_writable(x: Tensor) -> None:
    """Raise RuntimeError where PyTorch refuses an in-place operation."""
    check_graph(x)
    check_places(x)


def check_graph(x: Tensor) -> None:
    """Raise RuntimeError where the graph, or the mode, does not let a tensor become another in place."""
    if x._inference and not mode.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed.You can make "
            "a clone to get a normal tensor before doing inplace update.See "
            "https://github.com/pytorch/rfcs/pull/17 for more details."
        )
    if transforms.count and mode.transforms:
        made = mode.transforms[-1].made
        if made is not None and x._storage not in made:
            raise RuntimeError(
                "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place "
                "operation that would mutate a captured Tensor. This is not supported; please rewrite the function "
                "being transformed to explicitly accept the mutated Tensor(s) as inputs."
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


def repeated(x: Tensor) -> tuple[int, ...]:
    """Return the dims along which the elements of x share places."""
    places = zip(x._shape, x._strides, strict=True)
    return tuple([d for d, (size, stride) in enumerate(places) if not stride and size > 1])


def written_once(x: Tensor, name: str) -> Tensor | None:
    """Warn as PyTorch does where it writes to an expanded tensor, and return its memory with each element once. None
    of other tensors, and where gradients would have to tell the elements apart.
    """
    dims = repeated(x)
    if not dims or x._levels or x.requires_grad or 0 in x._shape:
        return None
    warn(
        f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this operation. "
        "This also applies to advanced indexing e.g. tensor[indices] = tensor"
    )
    shape = tuple([1 if d in dims else size for d, size in enumerate(x._shape)])
    return as_view(x, shape, x._strides, x._offset)


def check_places(x: Tensor) -> None:
    """Raise RuntimeError if several elements of x share one place, so that none can be written alone."""
    if 0 in x._shape or any(not size for _, size, _ in x._levels):
        return
    if (0 in x._strides and repeated(x)) or (
        x._levels and any(stride == 0 and size > 1 for _, size, stride in x._levels)
    ):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please "
            "clone() the tensor before performing the operation."
        )


def check_overlap(out: Tensor, operands: Iterable[object], whole: bool = True) -> None:
    """Raise RuntimeError if what is written shares memory with an operand. `whole`: it may be a whole one."""
    for x in operands:
        # The dimensions that vmap hides lie between those that are seen.
        if not isinstance(x, Tensor) or x._storage is not out._storage or x._levels:
            continue
        if (x is out and not whole) or is_overwritten(_place(x), _place(out), whole):
            raise RuntimeError(OVERWRITTEN)


def _place(x: Tensor) -> Place:
    size = x.dtype.itemsize
    return x._offset * size, x._shape, x._strides, numel(x._shape) * size


def leave_hooks(x: Tensor) -> None:
    """Before x is overwritten by what is computed from it: as in PyTorch, gradients of a view then go to its
    base past the hooks that are on views.
    """
    base = x._base
    if base is None or not mode.grad or not x.requires_grad:
        return
    end, fn = gradient_edge(base), x._grad_fn
    while fn is not None and (end is None or fn is not end[0]) and len(fn.edges) == 1:
        if fn.is_watched:
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
        x._counter.version += 1
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
        attrs, scalars = placed(x._offset)
        storage.replace(
            Node(
                "update",
                (old, node),
                (target._shape, target._strides, *attrs),
                scalars,
                old.shape,
                x.dtype,
                user_line(),
            )
        )
    changed = [storage]
    if transforms.count and mode.forward:
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


def check_own_storage(x: Tensor) -> None:
    """Raise CaptureError where the storage of x is that of a copy which stands for a view."""
    if any(p.out._storage is x._storage for p in tracing.picked):
        raise CaptureError(
            "as_strided: in a captured function the storage of x[i] of a 0-d tensor i is not that of x, since "
            "nobody may read i there: use x.select(0, i) with an int, or as_strided of x"
        )


def _with_bits(old: Node, target: Tensor, values: Node) -> Node:
    """Return the value of a storage after a write to a view of it that has another element type."""
    dtype, line = values.dtype, user_line()
    attrs, at = placed(target._offset)
    window = (target._shape, target._strides, *attrs)

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
        return Node("update", (old, values), window, at, old.shape, old.dtype, line)
    # What is not written must come back as it was: integers hold every pattern of bits.
    whole = WHOLE[dtype.itemsize]
    flat = seen_as(old, whole)
    values = seen_as(values, whole)
    new = Node("update", (flat, values), window, at, flat.shape, whole, line)
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
            zeros = x._shape, x.dtype, x.device
            set_history(x, GradFn("CopyBackwards", (before,), _nothing_left, (), zeros))
        elif values._grad_fn is None:
            # A leaf was copied: the copy has a function of its own.
            set_history(x, GradFn("CopyBackwards", (edge,), pass_on))
        else:
            x._grad_fn, x._output_nr = edge
            x._requires_grad = True
            if x._retains:
                retain(x)
        return
    # Where one of the two is complex, both are seen as real numbers.
    dtype = base.dtype if base.dtype is x.dtype else base.dtype.to_real()
    extra = hidden_beyond(x, base)
    static = _Copied(
        geometry_of(physical(x, extra) if extra else x, dtype),
        geometry_of(base, dtype),
        elements_of(base, dtype),
        (base.dtype is not dtype, x.dtype is not dtype),
        extra,
    )
    edges = gradient_edge(base), gradient_edge(values)
    fn = GradFn("CopySlices", edges, _around_and_inside, (), static)
    set_history(base, fn)
    base._history += 1
    # Who asked about it since the write has given it the old history.
    x._base_version = -1
    x._refresh_view()


def _nothing_left(
    _gs: Cotangents, _saved: Sequence[SavedTensor], zeros: tuple[Shape, DType, device]
) -> tuple[Tensor]:
    """Return the cotangent of what was overwritten as a whole."""
    shape, dtype, where = zeros
    return (primitive.fill(shape, 0, dtype, where),)


class _Copied(NamedTuple):
    """Where a part of a base was overwritten."""

    window: Geometry
    base: Geometry
    elements: int
    # Whether the base, and the part, are complex numbers that are seen as real ones.
    are_pairs: tuple[bool, bool]
    # The dimensions that vmap hides of the part alone.
    extra: Levels


def _around_and_inside(
    gs: Cotangents, _saved: Sequence[SavedTensor], static: _Copied
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of what was there before, 0 where it was overwritten, and of the values."""
    g: Tensor = gs[0]
    window, base, elements, (base_pairs, part_pairs), extra = static
    if base_pairs:
        g = pairs(g)
    flat = spread_over(g, base, elements)
    inside = as_view(flat, *window)
    rest = flat.clone()
    write(as_view(rest, *window), primitive.fill(window[0], 0, g.dtype, g.device), fresh=True)
    outside, inside = as_view(rest, *base), inside.clone()
    inside = paired(inside) if part_pairs else inside
    for number, _ in extra:
        inside = batch(inside, 0, number)
    return paired(outside) if base_pairs else outside, inside
