"""The meanings of `functions` as PyTorch kernels on the "webgpu" device. Floor 6; imports PyTorch and the engine.

Importing this registers them: `autoload` does it at the first tensor. Most operators need one
registration: PyTorch makes the functional and in-place forms of structured ones from their out=
form, with its own checks, broadcasting and promotion. A kernel wraps its operands, calls the
meaning, and stores what it returns: nothing is computed yet.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

import webtorch_autoload as autoload
from webtorch.ops.primitive import fill, iota, matmul3
from webtorch.ops.record import TABLE, Elementwise
from webtorch.pytorch import attention, device, fallback, grouped, optimizer, regions
from webtorch.pytorch.algebra import ON_CPU
from webtorch.pytorch.device import (
    CPU,
    TO_TORCH,
    TO_WEBTORCH,
    UNSUPPORTED,
    check_device,
    copy_from,
    empty,
    empty_strided,
    new_tensor,
    refuse_overlap,
    resize_to,
    store,
    tensor_on,
    untyped_storage,
    upload,
    webtorch_dtype,
    wrap,
    wrap_memory,
)
from webtorch.pytorch.functions import FUNCTIONS, load, op
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.random import source
from webtorch.pytorch.strides import RULES, Form, Forms, Rule, elementwise, suggests_channels_last
from webtorch.tensors.device import device_of
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor

__all__ = ["empty", "empty_strided", "untyped_storage"]

Kernel = Callable[..., Any]
_COMPOSITE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
# Operators that PyTorch would compose of others, worse than the table does in one.
_OWN = {
    "native_layer_norm",
    "native_group_norm",
    "embedding",
    "constant_pad_nd",
    "_safe_softmax",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "_index_put_impl_",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "conj_physical_",
    "mode.values",
    "_grouped_mm",
    "pixel_shuffle",
    "pixel_unshuffle",
    "reflection_pad3d",
    "replication_pad2d",
    "replication_pad3d",
}
# Operators that PyTorch could make of their out= form: the direct form costs one call of Python less.
_DIRECT_ELEMENTWISE = [
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "maximum",
    "minimum",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "abs",
    "pow.Tensor_Scalar",
    "silu",
    "eq.Tensor",
    "eq.Scalar",
    "ne.Tensor",
    "ne.Scalar",
    "lt.Tensor",
    "lt.Scalar",
    "le.Tensor",
    "le.Scalar",
    "gt.Tensor",
    "gt.Scalar",
    "ge.Tensor",
    "ge.Scalar",
    "bitwise_and.Tensor",
    "bitwise_or.Tensor",
    "bitwise_not",
    "tanh_backward",
    "sigmoid_backward",
    "threshold_backward",
    "gelu",
    "gelu_backward",
    "silu_backward",
    "erf",
]
_DIRECT = [
    "bmm",
    "addmm",
    "sum.dim_IntList",
    "mean.dim",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "amax",
    "gather",
    "index.Tensor",
    "cat",
    "nll_loss_forward",
    "tril",
    "triu",
]
_OWN.update(_DIRECT_ELEMENTWISE, _DIRECT)
# Operators that are many operations here: called again with the same shapes they are recorded without their Python.
_REMEMBERED = {
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax",
    "_log_softmax_backward_data",
    "addmm",
    "nll_loss_forward",
    "nll_loss_backward",
    "embedding_dense_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "mean.dim",
    "gelu_backward",
    "silu_backward",
}
# Operators whose out= must have the type of the result; others convert to it where PyTorch's rules of casting allow.
_EXACT = (
    "abs addbmm addmm addmv amax amin argmax argmin avg_pool2d avg_pool3d baddbmm bmm bucketize ceil conj_physical "
    "floor frac frexp gather gelu hardshrink heaviside histc index_add index_copy index_reduce index_select isin "
    "kthvalue linalg_cross linalg_vector_norm log_sigmoid_forward masked_select max min mm mode multinomial "
    "nan_to_num narrow_copy neg nonzero norm renorm round scatter scatter_add scatter_reduce searchsorted sgn sign "
    "softplus softshrink sort take topk tril triu trunc where _softmax _log_softmax"
)
# Those that compute in the type of out=, unless told.
_IN_TYPE_OF_OUT = ("sum", "nansum", "prod", "cumsum", "cumprod")
# Those that refuse an out= that they also read at other places; of the second, at any place.
_APART = (
    "add sub div pow float_power round where clamp clamp_min clamp_max nan_to_num logit gelu lerp addcmul addcdiv addr "
    "nextafter cumsum cumprod logcumsumexp"
)
_APART_WHOLLY = "gather index_select masked_select take cat scatter scatter_add"
# Of these, the operators whose result is their first argument, with other values at some places.
_INTO_FIRST = {"scatter", "scatter_add"}
# Operators whose index tensors may be on the CPU.
_CPU_INDICES = {"index", "_index_put_impl_"}


# ---- operands -----------------------------------------------------------------------------------


def operand(value: Any, name: str) -> Any:
    """Return a kernel's argument as the engine takes it: tensors wrapped, 0-d CPU tensors copied."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "webgpu":
            return wrap(value)
        if value.dim() == 0:
            kind = TO_WEBTORCH.get(value.dtype)
            # A tensor, not a number: its type takes part in the promotion. float64, which is not there, cannot.
            known = kind is not None and kind not in UNSUPPORTED
            return fill((), value.item(), kind, _where()) if known else value.item()
        if name.partition(".")[0] in _CPU_INDICES and not value.dtype.is_floating_point:
            return upload(value, TO_WEBTORCH[value.dtype])
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, webgpu:0 and {value.device}! "
            "Move one of them, as in x.to('webgpu')."
        )
    if isinstance(value, (list, tuple)):
        return [operand(v, name) for v in value]
    if isinstance(value, torch.dtype):
        return webtorch_dtype(value)
    return value


def _storages(values: Any) -> Iterator[Any]:
    for v in values:
        if isinstance(v, Tensor):
            yield v._storage
        elif isinstance(v, list):
            yield from _storages(v)


def _is_fresh(result: Tensor, operands: Any) -> bool:
    storage = result._storage
    return all(s is not storage for s in _storages(operands))


def _results(
    found: Any, operands: list[Any], forms: Forms | None = None, rule: Rule | None = None
) -> Any:
    """Return webtorch results as new PyTorch tensors, with the strides that a rule gives them."""

    def made(x: Tensor, seen: list[Any]) -> torch.Tensor:
        strides = None if rule is None or forms is None else rule(forms, x._shape)
        return new_tensor(x, _is_fresh(x, seen), strides)

    if isinstance(found, Tensor):
        return made(found, operands)
    if isinstance(found, (tuple, list)):
        seen = list(operands)
        out = []
        for x in found:
            out.append(made(x, seen) if isinstance(x, Tensor) else x)
            seen.append(x)
        return tuple(out)
    return found


def _forms(args: Any) -> Forms:
    """Return sizes and strides of the tensors among an operator's arguments."""
    found: list[Form] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            found.append((tuple(a.shape), a.stride()))
        elif isinstance(a, (list, tuple)):
            found.extend(_forms(a))
    return tuple(found)


# ---- the three kinds of kernel ------------------------------------------------------------------


def _functional(name: str, function: Kernel) -> Kernel:
    rule = RULES.get(name.partition(".")[0])
    if rule is elementwise:

        def of_elements(*args: Any, **kwargs: Any) -> Any:
            if flag.pressed:
                check()
            values = []
            plain = True
            for a in args:
                if isinstance(a, torch.Tensor):
                    memory = getattr(a.untyped_storage(), "_webgpu", None)
                    v = operand(a, name) if memory is None else wrap_memory(a, memory)
                    values.append(v)
                    if memory is None or memory.laid is not None or not v._whole:
                        plain = False
                else:
                    values.append(a)
            options = {k: operand(v, name) for k, v in kwargs.items()} if kwargs else kwargs
            found = function(*values, **options)
            if not plain:
                return _results(found, values, _forms(args), rule)
            if isinstance(found, tuple):
                return _results(found, values)
            storage = found._storage
            for v in values:
                if isinstance(v, Tensor) and v._storage is storage:
                    return new_tensor(found, False)
            return new_tensor(found, True)

        return of_elements

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if flag.pressed:
            check()
        values = [operand(a, name) for a in args]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        found = function(*values, **options)
        return _results(found, values, None if rule is None else _forms(args), rule)

    return kernel


def _filling(name: str, function: Kernel) -> Kernel:
    """Return the kernel of `fill_` or `zero_`, which may write to an expanded tensor: to its memory once."""
    plain = _inplace(name, function)

    def kernel(self: torch.Tensor, *args: Any) -> torch.Tensor:
        strides = self.stride()
        if 0 in strides:
            size = [1 if n and not s else n for n, s in zip(self.shape, strides, strict=True)]
            plain(self.as_strided(size, strides, self.storage_offset()), *args)
        else:
            plain(self, *args)
        return self

    return kernel


def _inplace(name: str, function: Kernel) -> Kernel:
    def kernel(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if flag.pressed:
            check()
        values = [wrap(self), *[operand(a, name) for a in args]]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        result = function(*values, **options)
        store(self, result, _is_fresh(result, values))
        return self

    return kernel


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _tensors(v)


def _refuse_overlaps(args: Any, out: torch.Tensor, whole: bool) -> None:
    """Raise RuntimeError where one of the arguments overlaps what is written: see `refuse_overlap`."""
    memory = device.memory_of(out)
    for x in _tensors(args):
        if x.device.type == "webgpu" and device.memory_of(x) is memory:
            refuse_overlap(x, out, whole)


def _check_out(name: str, out: torch.Tensor, dtype: Any, exact: bool) -> None:
    """Raise RuntimeError if a result cannot be put into `out`."""
    kind = TO_TORCH[dtype]
    if kind is out.dtype:
        return
    if exact:
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {kind}, but got {out.dtype} instead"
        )
    if not torch.can_cast(kind, out.dtype):
        error = TypeError if name.startswith("cat.") else RuntimeError
        raise error(
            f"{name}: result type {kind} can't be cast to the desired output type {out.dtype}"
        )


def _out(name: str, function: Kernel, outs: tuple[str, ...]) -> Kernel:
    base = name.partition(".")[0]
    exact = base in _EXACT.split()
    rule = RULES.get(base)
    if len(outs) == 1:
        (target,) = outs
        typed = base in _IN_TYPE_OF_OUT
        anywhere = base in _APART_WHOLLY.split()
        entry = TABLE.get(base.removeprefix("special_"))
        inplace = not anywhere or base in _INTO_FIRST
        apart = anywhere or base in _APART.split() or isinstance(entry, Elementwise)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if flag.pressed:
                check()
            out = kwargs.pop(target)
            values = [operand(a, name) for a in args]
            if apart:
                # In place, the tensor that is written is the first argument as well.
                rest = 1 if inplace and args and args[0] is out else 0
                held = values[0]._storage if rest else device.memory_of(out).held
                if held is not None and held in _storages(values[rest:]):
                    _refuse_overlaps(args[rest:], out, whole=not anywhere)
            if typed and kwargs.get("dtype") is None:
                kwargs["dtype"] = out.dtype
            options = {k: operand(v, name) for k, v in kwargs.items()} if kwargs else kwargs
            result = function(*values, **options)
            if TO_WEBTORCH[out.dtype] is not result.dtype:
                _check_out(name, out, result.dtype, exact)
            if tuple(out.shape) != result._shape:
                resize_to(out, result._shape, rule and rule(_forms(args), result._shape))
            store(out, result, _is_fresh(result, values))
            return out

        return kernel

    def many(*args: Any, **kwargs: Any) -> Any:
        if flag.pressed:
            check()
        targets = [kwargs.pop(n) for n in outs]
        values = [operand(a, name) for a in args]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        found = function(*values, **options)
        for out, result in zip(targets, found, strict=True):
            if out is None or not isinstance(result, Tensor):
                continue
            _check_out(name, out, result.dtype, exact)
            if tuple(out.shape) != result._shape:
                resize_to(out, result._shape, rule and rule(_forms(args), result._shape))
            store(out, result, _is_fresh(result, values))
            values.append(result)
        return tuple(targets)

    return many


def _index(direct: Kernel) -> Kernel:
    """Return the kernel of indexing: where tensors are not row-major, PyTorch chooses the result's strides."""
    by_out = torch.ops.aten.index.Tensor

    def kernel(x: torch.Tensor, indices: Any) -> Any:
        given = [i for i in indices if i is not None]
        masked = any(i.dtype in (torch.bool, torch.uint8) for i in given)
        if masked or all(t.is_contiguous() for t in (x, *given)):
            return direct(x, indices)
        return by_out._op_dk(
            torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional, x, indices
        )

    return kernel


def kernel_for(overload: Any, function: Kernel) -> Kernel:
    """Return the kernel of one operator overload, of the kind that its schema asks for."""
    schema = overload._schema
    name = overload._name.removeprefix("aten::")
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    if outs:
        return _out(name, function, outs)
    first = schema.arguments[0] if schema.arguments else None
    writes_first = first is not None and first.alias_info is not None and first.alias_info.is_write
    if writes_first and len(schema.returns) == 1:
        fills = name.partition(".")[0] in ("fill_", "zero_")
        return (_filling if fills else _inplace)(name, function)
    kernel = _functional(name, function)
    return _index(kernel) if name == "index.Tensor" else kernel


def meaning(packet: str, overload: str) -> Kernel | None:
    """Return the declared meaning of an overload."""
    full = f"{packet}.{overload}"
    for key in (
        full,
        full.removesuffix("_out"),
        packet,
        packet.removesuffix("_") if not packet.startswith("__") else packet,
    ):
        found = FUNCTIONS.get(key)
        if found is not None:
            return found
    return None


# ---- kernels with a form of their own -----------------------------------------------------------


def _arange(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    values = [v.item() if isinstance(v, torch.Tensor) else v for v in (start, end, step)]
    result = op.arange(*values, dtype=webtorch_dtype(out.dtype), device=_where())
    resize_to(out, result._shape)
    store(out, result, fresh=True)
    return out


def _range(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    if step == 0:
        raise RuntimeError("range: step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"range: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"range({start}, {end}, {step}): upper bound and lower bound inconsistent with step sign"
        )
    count = math.floor((end - start) / step) + 1
    kind = webtorch_dtype(out.dtype)
    if kind.is_integral:
        start, step = int(start), int(step)
    result = iota(count, start, step, kind, _where())
    resize_to(out, result._shape)
    store(out, result, fresh=True)
    return out


def _linspace(start: Any, end: Any, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    result = op.linspace(start, end, steps, dtype=webtorch_dtype(out.dtype), device=_where())
    return _spaced(out, result)


def _spaced(out: torch.Tensor, result: Tensor) -> torch.Tensor:
    """Put a row of numbers into `out`, which keeps its shape where it has as many elements."""
    if out.numel() != result.numel():
        device.resize_(out, result._shape)
    store(out, result.reshape(tuple(out.shape)), fresh=True)
    return out


def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, out: torch.Tensor
) -> torch.Tensor:
    result = op.logspace(start, end, steps, base, dtype=webtorch_dtype(out.dtype), device=_where())
    return _spaced(out, result)


def _eye(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    result = op.eye(n, n if m is None else m, dtype=webtorch_dtype(out.dtype), device=_where())
    device.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


def _randperm(n: int, *, generator: Any = None, out: torch.Tensor) -> torch.Tensor:
    result = op.randperm(
        n, generator=source(generator, _where()), dtype=webtorch_dtype(out.dtype), device=_where()
    )
    device.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


def _triangle_indices(name: str) -> Kernel:
    def kernel(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
    ) -> Any:
        check_device(device)
        kind = webtorch_dtype(dtype or torch.int64)
        if not kind.is_integral:
            raise NotImplementedError(f'"{name}" not implemented for {dtype}: it makes integers')
        found = getattr(op, name)(row, col, offset, dtype=kind, device=_where())
        return new_tensor(found, fresh=True)

    return kernel


def _cumulative(name: str) -> Kernel:
    def kernel(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        found = getattr(op, name)(wrap(x), dim)
        store(values, found[0], fresh=True)
        store(indices, found[1], fresh=True)

    return kernel


def _unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    bad = wrap(found_inf)
    scale = wrap(inv_scale)
    for g in grads:
        x = wrap(g)
        bad = op.maximum(bad, op.where(op.all(op.isfinite(x)), 0.0, 1.0))
        store(g, x * scale, fresh=True)
    store(found_inf, bad, fresh=True)


def _matrix(x: torch.Tensor, memory: device.Memory) -> Tensor:
    """Return a matrix that is not empty as a batch of one."""
    kind, (row, column), offset = TO_WEBTORCH[x.dtype], x.stride(), x.storage_offset()
    m, n = x.shape
    found = memory.storage
    if memory.laid is not None:
        return wrap_memory(x, memory).unsqueeze(0)
    storage = found if found is not None and found.dtype is kind else memory.typed(kind)
    whole = not offset and m * n == storage.elements and x.is_contiguous()
    return Tensor._from_storage(storage, (1, m, n), (0, row, column), offset, whole)


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`aten::mm`, of which backward passes are made: matrices that need no word said go the shortest way."""
    if flag.pressed:
        check()
    left = getattr(a.untyped_storage(), "_webgpu", None)
    right = getattr(b.untyped_storage(), "_webgpu", None)
    shape, other, dtype = a.shape, b.shape, a.dtype
    if (
        left is None
        or right is None
        or dtype is not b.dtype
        or not dtype.is_floating_point
        or not len(shape) == len(other) == 2
        or shape[1] != other[0]
        or 0 in shape
        or 0 in other
        or a.is_neg()
        or b.is_neg()
    ):
        return new_tensor(FUNCTIONS["mm"](operand(a, "mm"), operand(b, "mm")), fresh=True)
    found = matmul3(_matrix(a, left), _matrix(b, right))
    _, m, n = found._shape
    return tensor_on(found._storage, dtype, (m, n), (n, 1), 0)


def _zero_tensor(size: Any, *, dtype: Any = None, **options: Any) -> torch.Tensor:
    kind = webtorch_dtype(dtype or torch.get_default_dtype())
    return new_tensor(fill(tuple(size), 0, kind, _where()), fresh=True)


def _native_attention(
    q: Any,
    k: Any,
    v: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> Any:
    """What PyTorch runs in place of `nn.MultiheadAttention` where no gradient is wanted."""
    linear = torch.nn.functional.linear
    parts = zip((q, k, v), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in parts)
    if mask is not None and mask_type == 1:
        mask = mask[:, None, None, :]
    elif mask is not None and mask_type == 2 and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    scores = (q * (width // heads) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = torch.where(mask, -torch.inf, 0.0) if mask.dtype is torch.bool else mask
        scores = scores + hidden.to(scores.dtype)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights.masked_fill(scores.eq(-torch.inf).all(-1, keepdim=True), 0.0)
    out = linear((weights @ v).transpose(1, 2).flatten(2), out_weight, out_bias)
    return out, (weights.mean(1) if average else weights) if need_weights else None


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    weight_1: Any,
    bias_1: Any,
    weight_2: Any,
    bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """What PyTorch runs in place of `nn.TransformerEncoderLayer` where no gradient is wanted."""
    f = torch.nn.functional

    def attend(y: Any) -> Any:
        given = (
            width,
            heads,
            qkv_weight,
            qkv_bias,
            out_weight,
            out_bias,
            mask,
            False,
            True,
            mask_type,
        )
        return _native_attention(y, y, y, *given)[0]

    def inner(y: Any) -> Any:
        y = f.linear(y, weight_1, bias_1)
        return f.linear(f.gelu(y) if use_gelu else f.relu(y), weight_2, bias_2)

    def norm_1(y: Any) -> Any:
        return f.layer_norm(y, (width,), norm_weight_1, norm_bias_1, eps)

    def norm_2(y: Any) -> Any:
        return f.layer_norm(y, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + inner(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + inner(x))


def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    resize_to(dst, src.shape)
    return copy_from(src, dst)


def _to(x: torch.Tensor, *, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """PyTorch's `to`, always blocking: else it would ask for pinned memory of the host, which is not there."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch.ops.aten.to.dtype_layout._op_dk(composite, x, **options)


def _cell(kind: str) -> Kernel:
    """Return a recurrent cell written out: PyTorch would pick a fused kernel that outside devices do not have."""
    linear, sigmoid, tanh = torch.nn.functional.linear, torch.sigmoid, torch.tanh

    def lstm(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        h, c = hx
        i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, 1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def gru(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        xr, xz, xn = linear(x, w_ih, b_ih).chunk(3, 1)
        hr, hz, hn = linear(hx, w_hh, b_hh).chunk(3, 1)
        z = sigmoid(xz + hz)
        n = tanh(xn + sigmoid(xr + hr) * hn)
        return (hx - n) * z + n

    return lstm if kind == "lstm" else gru


def _recurrent(name: str) -> Kernel:
    """Return PyTorch's own decomposition of a recurrent layer."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        from torch._decomp import decompositions

        return getattr(decompositions, name)(*args, **kwargs)

    return kernel


# PyTorch composes these with float64 numbers, which the device does not have; here float32 does it.


def _renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return x.contiguous() * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def _bound(x: Any, largest: Any, atol: Any, rtol: Any) -> Any:
    """Return below which a singular value counts as zero."""
    if rtol is None:
        rtol = torch.finfo(x.dtype).eps * max(x.shape[-2:])
        if isinstance(atol, torch.Tensor):
            rtol = torch.where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    atol = 0.0 if atol is None else atol
    scaled = largest * (rtol.unsqueeze(-1) if isinstance(rtol, torch.Tensor) else rtol)
    return torch.clamp(scaled, min=atol.unsqueeze(-1) if isinstance(atol, torch.Tensor) else atol)


def _pinv(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if not x.numel():
        return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))
    if hermitian:
        values, vectors = torch.linalg.eigh(x)
        sizes, left, right = values.abs(), vectors, vectors.mH
    else:
        u, values, right = torch.linalg.svd(x, full_matrices=False)
        sizes, left, right = values, right.mH, u.mH
    kept = sizes > _bound(x, sizes.amax(-1, keepdim=True), atol, rtol)
    inverse = torch.where(kept, values.reciprocal(), 0.0)
    return (left * inverse.unsqueeze(-2).to(left.dtype)) @ right


def _matrix_rank(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    if not x.numel():
        return x.new_zeros(x.shape[:-2], dtype=torch.int64)
    values = torch.linalg.eigvalsh(x).abs() if hermitian else torch.linalg.svdvals(x)
    return (values > _bound(x, values.amax(-1, keepdim=True), atol, rtol)).sum(-1)


def _pinv_of(x: Any, atol: Any, rtol: Any, hermitian: bool) -> Any:
    """Return the pseudoinverse by the operator that has PyTorch's derivative; `_pinv` is its kernel."""

    def number(value: Any) -> Any:
        if value is None or isinstance(value, torch.Tensor):
            return value
        return torch.full((), value, dtype=x.real.dtype, device=x.device)

    operator = torch.ops.aten.linalg_pinv.atol_rtol_tensor
    return operator(x, atol=number(atol), rtol=number(rtol), hermitian=hermitian)


def _into(function: Kernel) -> Kernel:
    """Return the out= form of a composed operator."""

    def run(*args: Any, out: torch.Tensor, **options: Any) -> torch.Tensor:
        result = function(*args, **options)
        resize_to(out, result.shape)
        return out.copy_(result)

    return run


def _with_tolerance(x: Any, tol: Any, hermitian: bool = False) -> Any:
    return _matrix_rank(x, atol=tol, rtol=0.0, hermitian=hermitian)


def _batch_norm_index(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """`aten::_batch_norm_impl_index`, where PyTorch takes float64 statistics for an empty batch."""
    operator = torch.ops.aten._batch_norm_impl_index.default
    if x.numel():
        return operator.decompose(x, weight, bias, *rest)
    out = x.clone()
    if weight is not None:
        out = out * weight[0]
    if bias is not None:
        out = out + bias[0]
    statistics = x.new_empty(x.shape[1:2], dtype=torch.float32)
    return out, statistics, statistics.clone(), x.new_empty((0,), dtype=torch.uint8), 0


def _kaiser(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Any:
    """`aten::kaiser_window`, which PyTorch hands to a CPU kernel."""
    kind = options.get("dtype")
    if kind is not None and not kind.is_floating_point:
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {kind}")
    if length < 0:
        raise RuntimeError(
            f"kaiser_window requires non-negative window_length, got window_length={length}"
        )
    if length < 2:
        return torch.ones(length, **options)
    steps = length if periodic else length - 1
    ratio = torch.arange(length, **options) * (2 / steps) - 1
    return torch.i0(beta * (1 - ratio.square()).clamp(min=0).sqrt()) / torch.i0(
        ratio.new_full((), beta)
    )


_COMPOSED: dict[str, Kernel] = {
    "renorm": _renorm,
    "linalg_matrix_rank.atol_rtol_float": _matrix_rank,
    "linalg_matrix_rank.atol_rtol_tensor": _matrix_rank,
    "linalg_matrix_rank": _with_tolerance,
    "linalg_matrix_rank.tol_tensor": _with_tolerance,
    "linalg_matrix_rank.atol_rtol_float_out": _into(_matrix_rank),
    "linalg_matrix_rank.atol_rtol_tensor_out": _into(_matrix_rank),
    "linalg_matrix_rank.out": _into(_with_tolerance),
    "linalg_matrix_rank.out_tol_tensor": _into(_with_tolerance),
    "linalg_pinv": lambda x, rcond, hermitian=False: _pinv_of(x, None, rcond, hermitian),
    "linalg_pinv.rcond_tensor": lambda x, rcond, hermitian=False: _pinv_of(
        x, None, rcond, hermitian
    ),
    "linalg_pinv.atol_rtol_float": lambda x, *, atol=None, rtol=None, hermitian=False: _pinv_of(
        x, atol, rtol, hermitian
    ),
    "_batch_norm_impl_index": _batch_norm_index,
    "kaiser_window": _kaiser,
    "kaiser_window.periodic": _kaiser,
    "kaiser_window.beta": _kaiser,
    "pinverse": lambda x, rcond=1e-15: _pinv_of(x, None, rcond, False),
}


def _flexible() -> None:
    """Let `flex_attention` take the device: what it is composed of runs here."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    original = module._validate_device

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "webgpu":
            original(query, key, value)

    module._validate_device = validate


def _traced_convolutions() -> None:
    """Let traces give convolutions the strides that the kernel gives them; else they take them for row-major."""
    original = torch._C._conv_determine_backend_memory_format
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def determine(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        found: torch.memory_format = original(x, weight, backend)
        if x.device.type != "webgpu":
            return found
        last = any(map(suggests_channels_last, _forms((x, weight))))
        return formats.get(x.dim(), found) if last else found

    torch._C._conv_determine_backend_memory_format = determine


def _checked_traces() -> None:
    """Let `torch.jit.trace` compare what it traced with what the function returns: PyTorch does it in float64."""
    module: Any = importlib.import_module("torch.jit._trace")
    original = module._check_trace
    widened: Any = torch.Tensor.double

    def double(x: torch.Tensor, **options: Any) -> Any:
        return widened(x.cpu() if x.device.type == "webgpu" else x, **options)

    def check_trace(*args: Any, **kwargs: Any) -> Any:
        # Not by a mode of functions: traces name the lines that called.
        tensor: Any = torch.Tensor
        tensor.double = double
        try:
            return original(*args, **kwargs)
        finally:
            tensor.double = widened

    module._check_trace = check_trace


class _Reciprocal:
    """A gradient scaler's scale, of which PyTorch wants 1 / scale by way of float64: here float32 does it."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale
        self.device = scale.device

    def double(self) -> _Reciprocal:
        return self

    def reciprocal(self) -> _Reciprocal:
        return self

    def float(self) -> torch.Tensor:
        return self.scale.reciprocal()


def _scaling() -> None:
    """Let `GradScaler` work without float64."""
    scaler = torch.amp.GradScaler
    original = scaler.unscale_

    def unscale_(self: Any, optimizer: Any) -> None:
        # One that is not enabled has no scale at all.
        scale = getattr(self, "_scale", None)
        if scale is None or scale.device.type != "webgpu":
            original(self, optimizer)
            return
        self._scale = _Reciprocal(scale)
        try:
            original(self, optimizer)
        finally:
            self._scale = scale

    scaler.unscale_ = unscale_


def _where() -> Any:
    return device_of(device.runtime())


# ---- registration -------------------------------------------------------------------------------


def _needs_kernel(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return not any(has(f"aten::{name}", key) for key in _COMPOSITE)


def _overloads(packet: str) -> list[tuple[str, Any]]:
    found = getattr(torch.ops.aten, packet, None)
    return [] if found is None else [(o, getattr(found, o)) for o in found.overloads()]


def _packets() -> Iterator[str]:
    """Yield every operator that a meaning may belong to: its own name, and the in-place form."""
    seen: set[str] = set()
    for key in FUNCTIONS:
        base = key.partition(".")[0]
        for packet in (base, base + "_") if not base.endswith("_") else (base,):
            if packet not in seen:
                seen.add(packet)
                yield packet


def _register_meanings(library: Any) -> int:
    count = 0
    # TorchScript has overloads of its own, which the dispatcher does not know.
    known = set(torch._C._dispatch_get_all_op_names())
    for packet in _packets():
        for overload, operator in _overloads(packet):
            name = packet if overload == "default" else f"{packet}.{overload}"
            if f"aten::{name}" not in known or not (_needs_kernel(name) or name in _OWN):
                continue
            function = meaning(packet, overload)
            if function is not None and name in _REMEMBERED:
                function = remembered(function)
            if function is not None and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", "PrivateUse1"
            ):
                library.impl(name, autoload.hide(kernel_for(operator, function)), "PrivateUse1")
                count += 1
    return count


def _register_own(library: Any) -> None:
    """Register what is about memory, geometry, creation and devices rather than arithmetic."""

    def metadata(name: str) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        # No frame of Python runs for a view.
        kernel = functools.partial(operator._handle.redispatch_boxed, CPU)
        library.impl(name, kernel, "PrivateUse1")

    # These change sizes and strides only: PyTorch's CPU kernels never look at the data.
    for name in (
        "as_strided",
        "view",
        "view_as_real",
        "view_as_complex",
        "_reshape_alias",
        "unfold",
        "set_.source_Tensor",
        "is_set_to",
    ):
        metadata(name)
    own: dict[str, Kernel] = {
        "set_": device.set_to_nothing,
        "set_.source_Storage_storage_offset": device.set_,
        "set_.source_Storage": lambda x, source: device.set_(
            x, source, 0, (source.nbytes() // x.element_size(),)
        ),
        "resize_": device.resize_,
        "_copy_from": copy_from,
        "_copy_from_and_resize": _copy_from_and_resize,
        "_to_copy": device.to_copy,
        "linalg_pinv.atol_rtol_tensor": _pinv,
        "mm": _mm,
        "_efficientzerotensor": _zero_tensor,
        "_transformer_encoder_layer_fwd": _encoder_layer,
        "_native_multi_head_attention": _native_attention,
        # Padded batches stay dense: no jagged tensors here.
        "_nested_tensor_from_mask_left_aligned": lambda x, mask: False,
        "_local_scalar_dense": device.item,
        "arange.start_out": _arange,
        "range.out": _range,
        "linspace.out": _linspace,
        "logspace.out": _logspace,
        "eye.out": _eye,
        "eye.m_out": _eye,
        "randperm.generator_out": _randperm,
        "tril_indices": _triangle_indices("tril_indices"),
        "triu_indices": _triangle_indices("triu_indices"),
        "_cummax_helper": _cumulative("cummax"),
        "_cummin_helper": _cumulative("cummin"),
        "_amp_foreach_non_finite_check_and_unscale_": _unscale,
        "record_stream": lambda x, stream: None,
        "is_pinned": lambda x, device=None: False,
    }
    for name, kernel in (own | optimizer.KERNELS).items():
        library.impl(name, autoload.hide(kernel), "PrivateUse1")
    for name in ON_CPU:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, autoload.hide(fallback.on_cpu(operator)), "PrivateUse1")
    # Without this the copy of a lazily negated tensor would call itself for ever; the kernel reads the flag.
    for key in ("Conjugate", "Negative"):
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    # Above autograd only: below it, where graphs are traced, PyTorch's own composition must be seen.
    library.impl("to.dtype_layout", autoload.hide(_to), "AutogradPrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        # So that Module.to keeps its Parameters: tied weights stay tied, and optimizers made before it stay valid.
        library.impl("_has_compatible_shallow_copy_type", autoload.hide(lambda a, b: True), key)
        for name, kernel in _COMPOSED.items():
            library.impl(name, kernel, key)
        library.impl("lstm_cell", _cell("lstm"), key)
        library.impl("gru_cell", _cell("gru"), key)
        for name, decomposition in (
            ("lstm.input", "lstm_impl"),
            ("lstm.data", "lstm_data_impl"),
            ("gru.input", "gru_impl"),
            ("gru.data", "gru_impl_data"),
            ("rnn_tanh.input", "rnn_tanh_input"),
            ("rnn_relu.input", "rnn_relu_input"),
            ("rnn_tanh.data", "rnn_tanh_data"),
            ("rnn_relu.data", "rnn_relu_data"),
        ):
            library.impl(name, _recurrent(decomposition), key)


# What autocast does on CUDA: products in the low type; what overflows or cancels there in float32.
_AUTOCAST_LOW = (
    "mm mv bmm addmm addmv addr baddbmm addbmm chain_matmul linalg_multi_dot linalg_vecdot matmul linear einsum "
    "prelu convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input scaled_dot_product_attention lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data"
)
_AUTOCAST_FULL = (
    "softmax.int log_softmax.int sum sum.dim_IntList prod prod.dim_int cumsum cumprod layer_norm group_norm "
    "norm.Scalar norm.ScalarOpt_dim dist cdist pdist renorm logsumexp cosine_similarity acos asin cosh erfinv exp "
    "expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar "
    "nll_loss nll_loss_nd nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy_loss "
    "binary_cross_entropy_with_logits kl_div poisson_nll_loss cosine_embedding_loss hinge_embedding_loss "
    "margin_ranking_loss multi_margin_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss"
)
# Operands of several floating types, as after a product: the widest of them.
_AUTOCAST_WIDEST = (
    "addcdiv addcmul atan2 bilinear cat cross dot vdot grid_sampler index_put scatter_add stack "
    "tensordot"
)


def _autocast() -> None:
    """Register what autocast does."""
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    autoload._libraries.extend((library, everything))

    def cast(value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return (
                value.to(dtype)
                if value.is_floating_point() and value.dtype is not dtype and value.is_webgpu
                else value
            )
        return (
            type(value)(cast(v, dtype) for v in value)
            if isinstance(value, (list, tuple))
            else value
        )

    def widest_of(values: Any, found: torch.dtype) -> torch.dtype:
        for v in values:
            if isinstance(v, (list, tuple)):
                found = widest_of(v, found)
            elif isinstance(v, torch.Tensor) and v.is_webgpu and v.dtype is torch.float32:
                found = torch.float32
        return found

    def kernel(operator: Any, kind: str) -> Kernel:
        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.float32
            if kind != "full":
                dtype = torch.get_autocast_dtype("webgpu")
            if kind == "widest":
                dtype = widest_of((*args, *kwargs.values()), dtype)
            guard = torch._C._ExcludeDispatchKeyGuard(
                torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
            )
            with guard:
                return operator(
                    *[cast(a, dtype) for a in args],
                    **{k: cast(v, dtype) for k, v in kwargs.items()},
                )

        return run

    for names, kind in (
        (_AUTOCAST_LOW, "low"),
        (_AUTOCAST_FULL, "full"),
        (_AUTOCAST_WIDEST, "widest"),
    ):
        for name in names.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, kernel(operator, kind), "AutocastPrivateUse1")


def _register() -> None:
    load()
    device.runtime()
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    autoload._libraries.extend((library, everything))
    everything.fallback(autoload.hide(fallback.fallback), "PrivateUse1")
    _register_own(library)
    _register_meanings(library)
    attention.register(kernel_for)
    regions.register(_functional)
    grouped.register(_functional)
    _scaling()
    _flexible()
    _traced_convolutions()
    _checked_traces()
    _autocast()


_register()
