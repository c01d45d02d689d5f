"""Calls of functions as calls of PyTorch's operators, and operators as calls of others, as PyTorch's own code has them.
Floor 6.

`written`: a function of Python, or a part of ours, whose arguments are not those of the operator of its name.
`composed`: an operator that PyTorch writes with others. `computed`: what is no public function here. The first two may
return NotImplemented: the call goes on as it is. Derivatives that are operators stand in `derivatives`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.aten import derivatives as derivatives
from webtorch.aten.dispatch import COMPOSED, COMPUTED, WRITTEN, aten, dispatches
from webtorch.aten.gradients import pullback
from webtorch.aten.table import REDUCTIONS, op
from webtorch.functions.assign import CONVERSIONS, CONVERTED
from webtorch.functions.contract import viewable
from webtorch.functions.convolution import sizes_of
from webtorch.ir.dtype import DType, Number, bool_, float32, int64
from webtorch.ir.view import is_contiguous, numel
from webtorch.ops.primitive import fill
from webtorch.sparse.construction import empty_compressed
from webtorch.tensors.formats import contiguous_format
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.tensor import Tensor, parse_to

Function = Callable[..., Any]


def _into(table: dict[str, Function]) -> Callable[..., Callable[[Function], Function]]:
    def named(*names: str) -> Callable[[Function], Function]:
        """Put a function into the table under each name."""

        def declare(function: Function) -> Function:
            """Put one function into the table."""
            table.update(dict.fromkeys(names, function))
            return function

        return declare

    return named


written, composed, computed = _into(WRITTEN), _into(COMPOSED), _into(COMPUTED)


# ---- views, copies, types
# ------------------------------------------------------------------------------------------------------------


@written("_copy")
def _copy(x: Tensor) -> object:
    return aten.clone(x, memory_format=contiguous_format)


@computed("alias", "lift_fresh")
def _alias(x: Tensor) -> Tensor:
    return x.view(x.shape)


@computed("slice")
def _slice(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@computed("select_backward")
def _select_backward(g: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    out = g.new_zeros(list(sizes))
    out.select(dim, index).copy_(g)
    return out


@computed("slice_backward")
def _slice_backward(
    g: Tensor, sizes: Sequence[int], dim: int, start: int | None, end: int | None, step: int
) -> Tensor:
    out = g.new_zeros(list(sizes))
    _slice(out, dim, start, end, step).copy_(g)
    return out


@computed("_unsafe_view")
def _unsafe_view(x: Tensor, size: Sequence[int]) -> Tensor:
    return x.view(size)


@computed("_new_zeros_with_same_feature_meta")
def _new_zeros(x: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    lead = list(x.shape[:self_num_batch_dims])
    steps: list[int] = []
    size = other._storage.nbytes // other.dtype.itemsize
    for n in reversed(lead):
        steps.insert(0, size)
        size *= n
    shape, strides = [*lead, *other.shape], [*steps, *other.stride()]
    return other.new_zeros([size]).as_strided(shape, strides, other.storage_offset())


@computed("layer_norm")
def _layer_norm_computed(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Tensor:
    return op.layer_norm(x, shape, weight, bias, eps)


@computed("group_norm")
def _group_norm_computed(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Tensor:
    return op.group_norm(x, groups, weight, bias, eps)


@computed("_sparse_compressed_tensor_with_dims")
def _compressed_with_dims(
    nnz: int,
    dense_dim: int,
    size: Sequence[int],
    blocksize: Sequence[int],
    index_dtype: DType,
    *,
    dtype: DType | None = None,
    layout: Layout,
    device: Any = None,
    pin_memory: bool = False,
) -> Tensor:
    inside = (blocksize[0], blocksize[1]) if blocksize else (1, 1)
    batch = len(size) - dense_dim - 2
    return empty_compressed(size, dtype or float32, device, layout, batch, inside, nnz, index_dtype)


@computed("sym_size")
def _sym_size(x: Tensor, dim: int) -> int:
    return x.shape[dim]


@computed("item", "_local_scalar_dense")
def _item(x: Tensor) -> object:
    return x.item()


@written("item")
def _number(x: Tensor) -> object:
    return aten._local_scalar_dense(x) if x.numel() == 1 else NotImplemented


@written("tolist")
def _tolist(x: Tensor) -> object:
    if dispatches(type(x)):
        kind = type(x).__name__
        raise RuntimeError(f".tolist() is not supported for tensor subclasses, got {kind}")
    return NotImplemented


@written("numpy")
def _numpy(x: Tensor, *, force: bool = False) -> Any:
    if dispatches(type(x)):
        raise RuntimeError(".numpy() is not supported for tensor subclasses.")
    return NotImplemented


@computed("_to_copy")
def _to_copy(x: Tensor, *, dtype: DType | None = None, **options: Any) -> Tensor:
    found = x.to(options.get("device") or x.device, dtype or x.dtype)
    form = options.get("memory_format")
    return found.clone(memory_format=form) if form else found.clone() if found is x else found


@written("__radd__")
def _radd(x: Tensor, other: Tensor | Number) -> object:
    return aten.add(x, other)


@written("__rmul__")
def _rmul(x: Tensor, other: Tensor | Number) -> object:
    return aten.mul(x, other)


@written("__rsub__")
def _rsub(x: Tensor, other: Tensor | Number) -> object:
    return aten.rsub(x, other)


@written("__rtruediv__", "__rdiv__")
def _rdiv(x: Tensor, other: Tensor | Number) -> object:
    return aten.mul(aten.reciprocal(x), other)


@written("__rpow__")
def _rpow(x: Tensor, other: Tensor | Number) -> object:
    return aten.pow(other, x)


@written("to")
def _to(x: Tensor, *args: object, **kwargs: object) -> object:
    form = kwargs.pop("memory_format", None)
    device, dtype, copy = parse_to(args, dict(kwargs))
    options: dict[str, object] = {}
    if device is not None and str(device) not in (str(x.device), x.device.type):
        options["device"] = device
    if form is not None and "preserve" not in str(form):
        options["memory_format"] = form
    if dtype is not None and not options and not copy:
        return aten.to.dtype(x, dtype)
    if dtype is not None and dtype is not x.dtype:
        options["dtype"] = dtype
    return aten._to_copy(x, **options) if options or copy else x


@composed("to")
def _to_dtype(x: Tensor, dtype: object, *rest: object, **options: object) -> object:
    if rest or options or not isinstance(dtype, DType):
        return NotImplemented
    return x if dtype is x.dtype else aten._to_copy(x, dtype=dtype)


def _conversion(dtype: DType) -> Function:
    return lambda x, *_, **__: _to(x, dtype)


for _name, _entry in CONVERSIONS.items():
    written(_entry.name)(_conversion(CONVERTED[_name]))


@written("_cast")
def _cast(x: Tensor, dtype: DType) -> Any:
    return _to(x, dtype)


@written("_conjugate")
def _conjugate(x: Tensor) -> object:
    return aten.conj_physical(x) if x.dtype.is_complex else x


@written("contiguous")
def _contiguous(x: Tensor, memory_format: object = None) -> object:
    # PyTorch asks nobody where nothing is to do.
    options = {} if memory_format is None else {"memory_format": memory_format}
    return x if x.is_contiguous(**options) else NotImplemented


@composed("contiguous")
def _in_order(x: Tensor, memory_format: object = None) -> object:
    form = memory_format or contiguous_format
    return x if _contiguous(x, form) is x else aten.clone(x, memory_format=form)


@composed("reshape")
def _reshape(x: Tensor, shape: Sequence[int]) -> object:
    known = numel(tuple(s for s in shape if s != -1))
    sizes = [x.numel() // known if s == -1 and known else s for s in shape]
    if numel(tuple(sizes)) != x.numel() or -1 in sizes:
        return NotImplemented
    if viewable(x, tuple(sizes)):
        return aten.view(x, sizes)
    return aten._unsafe_view(aten.clone(x, memory_format=contiguous_format), sizes)


@composed("flatten")
def _flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> object:
    if not x.ndim:
        return NotImplemented
    start, end = start_dim % x.ndim, end_dim % x.ndim
    if start >= end:
        return x if start == end else NotImplemented
    size = numel(x._shape[start : end + 1])
    return aten.reshape(x, [*x._shape[:start], size, *x._shape[end + 1 :]])


@composed("chunk")
def _chunk(x: Tensor, chunks: int, dim: int = 0) -> object:
    size = -(-x.shape[dim] // chunks) if chunks > 0 else 0
    return aten.split.Tensor(x, size, *((dim,) if dim else ())) if size else NotImplemented


def _indexed(x: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]] | None:
    """Return the view that the indices of one place make, and the tensors that index it; None for other indices."""
    items = list(index) if isinstance(index, tuple) else [index]
    if (
        len(items) == 1
        and isinstance(items[0], Tensor)
        and items[0].dtype is bool_
        and items[0].ndim
    ):
        return x, items
    if any(isinstance(i, bool) or not _is_index(i) for i in items):
        return None
    taken = sum(1 for i in items if i is not None and i is not Ellipsis)
    tensors: list[Tensor | None] = []
    dim = 0
    for i in items:
        if i is Ellipsis:
            dim = x.ndim - taken
        elif i is None:
            x = aten.unsqueeze(x, dim)
            dim += 1
        elif isinstance(i, slice):
            taken -= 1
            size = x.shape[dim]
            if i.indices(size) != (0, size, 1):
                step = () if i.step in (None, 1) else (i.step,)
                end = 2**63 - 1 if i.stop is None else i.stop
                x = aten.slice.Tensor(x, dim, i.start or 0, end, *step)
            dim += 1
        elif isinstance(i, Tensor):
            if i.dtype is bool_ and i.ndim != 1:
                return None
            taken -= 1
            tensors += [None] * (dim - len(tensors)) + [i]
            dim += 1
        else:
            taken -= 1
            at = i.__index__()
            if not -x.shape[dim] <= at < x.shape[dim]:
                return None
            x = aten.select.int(x, dim, at)
    return x, tensors


@written("getitem")
def _getitem(x: Tensor, index: object) -> object:
    found = _indexed(x, index)
    if found is None:
        return NotImplemented
    view, tensors = found
    return aten.index.Tensor(view, tensors) if tensors else view


@written("__setitem__")
def _setitem(x: Tensor, index: object, value: Any) -> object:
    number = isinstance(value, (bool, int, float))
    if not number and not (isinstance(value, Tensor) and value.dtype is x.dtype):
        return NotImplemented
    given = aten.lift_fresh(fill((), value, x.dtype, x.device)) if number else value
    found = _indexed(x, index)
    if found is None:
        return NotImplemented
    view, tensors = found
    if tensors:
        aten.index_put_(view, tensors, given)
    elif number:
        aten.fill_.Tensor(view, given)
    else:
        sizes = list(given.shape)
        while sizes and sizes[0] == 1 and given.shape != view.shape:
            del sizes[0]
        if len(sizes) < given.ndim:
            given = aten.view(given, sizes)
        if given.shape != view.shape:
            given = aten.expand(given, list(view.shape))
        aten.copy_(view, given)
    return None


def _is_index(i: object) -> bool:
    if isinstance(i, Tensor):
        return i.ndim > 0 and i.dtype.kind in ("int", "uint", "bool")
    return i is None or i is Ellipsis or isinstance(i, slice) or hasattr(i, "__index__")


# ---- products
# ------------------------------------------------------------------------------------------------------------


@composed("linear")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> object:
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        return NotImplemented
    turned = aten.t(weight)
    if bias is not None and x.ndim == 2:
        return aten.addmm(bias, x, turned)
    if bias is not None and x.ndim > 2 and is_contiguous(x._shape, x._strides):
        rows = aten.view(x, [numel(x._shape[:-1]), x.shape[-1]])
        return aten.view(aten.addmm(bias, rows, turned), [*x._shape[:-1], weight.shape[0]])
    out = aten.matmul(x, turned)
    return out if bias is None else aten.add(out, bias)


@composed("matmul")
def _matmul(x: Tensor, other: Tensor) -> object:
    if not x.ndim:
        return NotImplemented
    if x.ndim <= 2 and other.ndim == 1:
        return (aten.dot if x.ndim == 1 else aten.mv)(x, other)
    # Rows of all batches are one matrix, also where that copies them, if the gradient of the other one profits.
    if other.ndim != 2 or x.ndim < 3 or x.shape[-1] != other.shape[0]:
        return NotImplemented
    rows = (numel(x._shape[:-1]), x.shape[-1])
    if not other.requires_grad and not viewable(x, rows):
        return NotImplemented
    return aten._unsafe_view(
        aten.mm(aten.reshape(x, list(rows)), other), [*x._shape[:-1], other.shape[1]]
    )


@written("_mm")
def _mm(a: Tensor, b: Tensor, transposed: bool, _turned: bool) -> Tensor:
    right = aten.t(b) if transposed else b
    if a.ndim == 2:
        return aten.mm(a, right)
    rows = aten.reshape(a, [numel(a._shape[:-1]), a.shape[-1]])
    return aten._unsafe_view(aten.mm(rows, right), [*a._shape[:-1], right.shape[1]])


@written("_bmm")
def _bmm(a: Tensor, b: Tensor, *_turned: bool) -> Tensor:
    if a.ndim == 2:
        return aten.mm(a, b)
    if a.ndim == 3:
        return aten.bmm(a, b)
    flat = [aten.reshape(t, [numel(t._shape[:-2]), *t._shape[-2:]]) for t in (a, b)]
    return aten._unsafe_view(aten.bmm(*flat), [*a._shape[:-1], b.shape[-1]])


def _convolution(rank: int, transposed: bool) -> Function:
    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] | int = 1,
        padding: Sequence[int] | int | str = 0,
        *rest: object,
    ) -> object:
        """Call the operator that all convolutions are."""
        if isinstance(padding, str) or x.ndim != rank + 2:
            return NotImplemented
        options = [*rest, *(0, 1, 1)[len(rest) :]] if transposed else [*rest, 1, 1][:2]
        output_padding, groups, dilation = options if transposed else (0, options[1], options[0])
        sizes = [
            list(sizes_of("conv", "sizes", v, rank))
            for v in (stride, padding, dilation, output_padding)
        ]
        return aten.convolution(x, weight, bias, *sizes[:3], transposed, sizes[3], groups)

    return convolve


for _rank in (1, 2, 3):
    composed(f"conv{_rank}d")(_convolution(_rank, False))
    composed(f"conv_transpose{_rank}d")(_convolution(_rank, True))


@composed("scaled_dot_product_attention")
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> object:
    if enable_gqa or not q.ndim > 1:
        return NotImplemented
    size = q.shape[-1]
    needs = attn_mask is not None and attn_mask.requires_grad
    same = q.ndim == k.ndim == v.ndim == 4 and size == v.shape[-1] and q.shape[1] == k.shape[1]
    if same and not dropout_p and not needs and (attn_mask is None or attn_mask.ndim in (2, 4)):
        options: dict[str, object] = {} if scale is None else {"scale": scale}
        if q._in_host_memory:
            options |= {} if attn_mask is None else {"attn_mask": attn_mask}
            rest = (0.0, True) if is_causal else ()
            return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, *rest, **options)[0]
        recorded = q.requires_grad or k.requires_grad or v.requires_grad
        rest = (0.0, True) if is_causal else ()
        named = aten._scaled_dot_product_efficient_attention
        return named(q, k, v, attn_mask, recorded, *rest, **options)[0]
    root = math.sqrt(1.0 / math.sqrt(size) if scale is None else scale)
    scores = aten.matmul(aten.mul(q, root), aten.mul(aten.transpose(k, -2, -1), root))
    if is_causal:
        ones = scores.new_ones(scores.shape[-2:], dtype=bool_)
        attn_mask = aten.tril(ones)
    if attn_mask is not None and attn_mask.dtype is bool_:
        scores = aten.masked_fill(scores, aten.logical_not(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = aten.add(scores, attn_mask)
    weights = aten._safe_softmax(scores, -1)
    return aten.matmul(aten.dropout(weights, dropout_p, True) if dropout_p else weights, v)


@computed("_scaled_dot_product_flash_attention_for_cpu")
def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    attended = op.scaled_dot_product_attention(q, k, v, attn_mask, p, causal, scale)
    scores = op.matmul(q, k.transpose(-2, -1)) * (scale or 1.0 / math.sqrt(q.shape[-1]))
    return attended, op.logsumexp(scores, -1)


@computed("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: object, _sums: object, p: float, causal: bool, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> object:  # fmt: skip
    def run(*operands: Tensor) -> object:
        """Return the attention whose cotangents are wanted."""
        return op.scaled_dot_product_attention(*operands, attn_mask, p, causal, scale)

    return tuple(pullback(run, (q, k, v), g, (True, True, True)))


@computed("_scaled_dot_product_efficient_attention")
def _efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    _sums: bool,
    p: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    # Seed and offset of what is dropped: nothing is.
    return *_flash(q, k, v, p, causal, attn_mask=mask, scale=scale), *(
        fill((), 0, int64, q.device) for _ in "so"
    )


@computed("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: object,
    sums: object,
    _seed: object,
    _offset: object,
    p: float,
    needs: Sequence[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    return *_flash_backward(g, q, k, v, out, sums, p, causal, attn_mask=mask, scale=scale), None


# ---- layers
# ------------------------------------------------------------------------------------------------------------


def _softmax(name: str) -> Function:
    def called(x: Tensor, dim: int, dtype: DType | None = None) -> object:
        """Call the operator that has a derivative."""
        return getattr(aten, f"_{name}")(x if dtype is None else _to(x, dtype), dim, False)

    return called


for _name in ("softmax", "log_softmax"):
    composed(_name)(_softmax(_name))


@composed("layer_norm")
def _layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _enable: bool = True,
) -> object:
    return aten.native_layer_norm(x, list(shape), weight, bias, eps)[0]


@composed("group_norm")
def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _enable: bool = True,
) -> object:
    n, c = x.shape[:2]
    rest = numel(x._shape[2:])
    return aten.native_group_norm(_in_order(x), weight, bias, n, c, rest, groups, eps)[0]


@written("batch_norm")
def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *rest: object,
) -> object:
    if rest:
        # `torch.batch_norm`, whose order is the operator's.
        return NotImplemented
    return aten.batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, False
    )


@composed("batch_norm")
def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> object:
    return aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]


@written("embedding")
def _embedding(
    input: object,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> object:
    if max_norm is not None or sparse or not isinstance(input, Tensor) or input.dtype.has_gradient:
        return NotImplemented
    place = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return aten.embedding(
        weight, input, *_without_defaults((place, -1), (scale_grad_by_freq, False))
    )


def _without_defaults(*pairs: tuple[object, object]) -> list[object]:
    """Return values, without those at the end that are the defaults beside them."""
    found = list(pairs)
    while found and found[-1][0] == found[-1][1]:
        found.pop()
    return [value for value, _ in found]


@written("dropout")
def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> object:
    return NotImplemented if inplace else aten.dropout(x, p, training)


@composed("dropout")
def _native_dropout(x: Tensor, p: float, train: bool) -> object:
    # As on accelerators; the CPU's kernels are written with others.
    return aten.native_dropout(x, p, train)[0] if train and p else x


@computed("native_dropout")
def _drawn(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    keep = op.rand(x._shape, dtype=float32, device=x.device) >= (p if train else 0.0)
    return op.where(keep, x * (1.0 / (1.0 - p) if p < 1 else 0.0), 0.0), keep


def _pooled(rank: int) -> Function:
    return lambda x, *rest: getattr(aten, f"max_pool{rank}d_with_indices")(x, *rest)[0]


for _rank in (2, 3):
    composed(f"max_pool{_rank}d")(_pooled(_rank))


@composed("adaptive_avg_pool2d")
def _adaptive(x: Tensor, size: Sequence[int]) -> object:
    if list(size) == [1, 1]:
        return aten.mean.dim(x, [-1, -2], True)
    return aten._adaptive_avg_pool2d(x, size)


def _statistics(name: str) -> Function:
    def called(x: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> object:
        """Call the overload that the others are written with."""
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        options = {"correction": int(unbiased)} | ({"keepdim": True} if keepdim else {})
        return getattr(aten, name).correction(x, *([] if dim is None else [dim]), **options)

    return called


for _name in ("var", "std"):
    for _form in (_name, f"{_name}_mean"):
        composed(_form)(_statistics(_form))


# ---- losses
# ------------------------------------------------------------------------------------------------------------


def _reduction(size_average: bool | None, reduce: bool | None, reduction: object) -> int | None:
    return (
        REDUCTIONS.index(reduction)
        if size_average is reduce is None and reduction in REDUCTIONS
        else None
    )


@written("cross_entropy")
def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> object:
    number = _reduction(size_average, reduce, reduction)
    if number is None or not isinstance(target, Tensor):
        return NotImplemented
    rest = _without_defaults(
        (weight, None), (number, 1), (ignore_index, -100), (label_smoothing, 0.0)
    )
    return aten.cross_entropy_loss(input, target, *rest)


@computed("cross_entropy_loss")
def _cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    smoothing: float = 0.0,
) -> object:
    return op.cross_entropy(
        x,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=REDUCTIONS[reduction],
        label_smoothing=smoothing,
    )


@composed("cross_entropy_loss")
def _of_log_softmax(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    smoothing: float = 0.0,
) -> object:
    if smoothing or target.dtype.has_gradient or x.ndim > 2:
        return NotImplemented
    logs = aten._log_softmax(x, 1 if x.ndim > 1 else 0, False)
    return aten.nll_loss_forward(logs, target, weight, reduction, ignore_index)[0]


@written("nll_loss")
def _nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> object:
    number = _reduction(size_average, reduce, reduction)
    if number is None or input.ndim > 2:
        return NotImplemented
    return aten.nll_loss_nd(
        input, target, *_without_defaults((weight, None), (number, 1), (ignore_index, -100))
    )


@computed("nll_loss_nd", "nll_loss")
def _nll_loss_nd(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> object:
    return op.nll_loss(
        x, target, weight, ignore_index=ignore_index, reduction=REDUCTIONS[reduction]
    )


@composed("nll_loss_nd", "nll_loss")
def _nll_loss_forward(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> object:
    return aten.nll_loss_forward(x, target, weight, reduction, ignore_index)[0]


@computed("l1_loss")
def _l1_loss(x: Tensor, y: Tensor, reduction: int = 1) -> object:
    return op.l1_loss(x, y, reduction=REDUCTIONS[reduction])
