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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from webtorch.ops.layout import Form, Forms, Layout, of_operands, suggests_channels_last
from webtorch.ops.primitive import fill, iota, matmul3
from webtorch.ops.record import TABLE
from webtorch.pytorch import attention, device, fallback, grouped, optimizer, regions
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
from webtorch.pytorch.functions import (
    AUTOCAST,
    DIRECT,
    FUNCTIONS,
    OPERATORS,
    REMEMBERED,
    Operator,
    load,
    op,
)
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.random import source
from webtorch.tensors.autocast import UNSAFE
from webtorch.tensors.device import device_of
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries

__all__ = ["empty", "empty_strided", "untyped_storage"]

Kernel = Callable[..., Any]
_COMPOSITE = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)
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
            if kind is None or kind in UNSUPPORTED:
                return value.item()
            return fill((), value.item(), kind, _where())
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
    found: Any, operands: list[Any], forms: Forms | None = None, rule: Layout | None = None
) -> Any:
    """Return webtorch results as new PyTorch tensors, with the strides that a rule gives them."""

    def made(x: Tensor, seen: list[Any]) -> torch.Tensor:
        """Return one result as a new tensor."""
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


def _known(name: str) -> Operator:
    return OPERATORS.get(name.partition(".")[0], Operator())


def _functional(name: str, function: Kernel) -> Kernel:
    rule = _known(name).layout
    if rule is of_operands:

        def of_elements(*args: Any, **kwargs: Any) -> Any:
            """Run an elementwise operator: where all operands are row-major, so is the result."""
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
        """Run the operator."""
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
        """Write the number to each element of the memory once."""
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
        """Run the operator, and write its result to the first operand."""
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


def _check_out(
    name: str, out: torch.Tensor, dtype: Any, known: Operator, values: Sequence[Any] = ()
) -> None:
    """Raise RuntimeError if a result of the operands `values` cannot be put into `out`."""
    kind = TO_TORCH[dtype]
    if kind is out.dtype:
        return
    if (known.out(*values) if callable(known.out) else known.out) == "exact":
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {kind}, but got {out.dtype} instead"
        )
    if not torch.can_cast(kind, out.dtype):
        error = TypeError if name.startswith("cat.") else RuntimeError
        raise error(
            f"{name}: result type {kind} can't be cast to the desired output type {out.dtype}"
        )


def _out(name: str, function: Kernel, outs: tuple[str, ...]) -> Kernel:
    known = _known(name)
    rule, overlap = known.layout, known.overlap
    if len(outs) == 1:
        (target,) = outs
        typed = known.out == "into"
        inplace = overlap in ("whole", "first")

        def kernel(*args: Any, **kwargs: Any) -> Any:
            """Run the operator, and write its result to `out`, resized if need be."""
            if flag.pressed:
                check()
            out = kwargs.pop(target)
            values = [operand(a, name) for a in args]
            if overlap != "any":
                # In place, the tensor that is written is the first argument as well.
                rest = 1 if inplace and args and args[0] is out else 0
                held = values[0]._storage if rest else device.memory_of(out).held
                if held is not None and held in _storages(values[rest:]):
                    _refuse_overlaps(args[rest:], out, whole=overlap == "whole")
            if typed and kwargs.get("dtype") is None:
                kwargs["dtype"] = out.dtype
            options = {k: operand(v, name) for k, v in kwargs.items()} if kwargs else kwargs
            result = function(*values, **options)
            if TO_WEBTORCH[out.dtype] is not result.dtype:
                _check_out(name, out, result.dtype, known, values)
            if tuple(out.shape) != result._shape:
                resize_to(out, result._shape, rule and rule(_forms(args), result._shape))
            store(out, result, _is_fresh(result, values))
            return out

        return kernel

    def many(*args: Any, **kwargs: Any) -> Any:
        """Run the operator, and write its results to the tensors given."""
        if flag.pressed:
            check()
        targets = [kwargs.pop(n) for n in outs]
        values = [operand(a, name) for a in args]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        found = function(*values, **options)
        for out, result in zip(targets, found, strict=True):
            if out is None or not isinstance(result, Tensor):
                continue
            _check_out(name, out, result.dtype, known, values)
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
        """Return the indexed elements."""
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

# Operators about memory, creation and devices, and those whose kernel looks at PyTorch's tensors itself.
_KERNELS: dict[str, Kernel] = {}
# Operators that are written with others of PyTorch.
_COMPOSITIONS: dict[str, Kernel] = {}


def _own(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare the kernel of these operators."""
    return functools.partial(_declared, _KERNELS, names)


def _composed(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare what these operators are in terms of others."""
    return functools.partial(_declared, _COMPOSITIONS, names)


def _declared(kernels: dict[str, Kernel], names: tuple[str, ...], kernel: Kernel) -> Kernel:
    kernels.update(dict.fromkeys(names, kernel))
    return kernel


_own("set_")(device.set_to_nothing)
_own("set_.source_Storage_storage_offset")(device.set_)
_own("set_.source_Storage")(
    lambda x, source: device.set_(x, source, 0, (source.nbytes() // x.element_size(),))
)
_own("resize_")(device.resize_)
_own("_copy_from")(copy_from)
_own("_to_copy")(device.to_copy)
_own("_local_scalar_dense")(device.item)
# Padded batches stay dense: no jagged tensors here.
_own("_nested_tensor_from_mask_left_aligned")(lambda x, mask: False)
_own("record_stream")(lambda x, stream: None)
_own("is_pinned")(lambda x, device=None: False)


@_own("arange.start_out")
def _arange(start: Any, end: Any, step: Any = 1, *, out: torch.Tensor) -> torch.Tensor:
    values = [v.item() if isinstance(v, torch.Tensor) else v for v in (start, end, step)]
    result = op.arange(*values, dtype=webtorch_dtype(out.dtype), device=_where())
    resize_to(out, result._shape)
    store(out, result, fresh=True)
    return out


@_own("range.out")
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


@_own("linspace.out")
def _linspace(start: Any, end: Any, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    result = op.linspace(start, end, steps, dtype=webtorch_dtype(out.dtype), device=_where())
    return _spaced(out, result)


def _spaced(out: torch.Tensor, result: Tensor) -> torch.Tensor:
    """Put a row of numbers into `out`, which keeps its shape where it has as many elements."""
    if out.numel() != result.numel():
        device.resize_(out, result._shape)
    store(out, result.reshape(tuple(out.shape)), fresh=True)
    return out


@_own("logspace.out")
def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, out: torch.Tensor
) -> torch.Tensor:
    result = op.logspace(start, end, steps, base, dtype=webtorch_dtype(out.dtype), device=_where())
    return _spaced(out, result)


@_own("eye.out", "eye.m_out")
def _eye(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    result = op.eye(n, n if m is None else m, dtype=webtorch_dtype(out.dtype), device=_where())
    device.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


@_own("randperm.generator_out")
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
        """Return the positions (2, N). Raises NotImplementedError for a dtype that is no integer's."""
        check_device(device)
        kind = webtorch_dtype(dtype or torch.int64)
        if not kind.is_integral:
            raise NotImplementedError(f'"{name}" not implemented for {dtype}: it makes integers')
        found = getattr(op, name)(row, col, offset, dtype=kind, device=_where())
        return new_tensor(found, fresh=True)

    return kernel


def _cumulative(name: str) -> Kernel:
    def kernel(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        """Write the running extremes and their positions."""
        found = getattr(op, name)(wrap(x), dim)
        store(values, found[0], fresh=True)
        store(indices, found[1], fresh=True)

    return kernel


_own("tril_indices")(_triangle_indices("tril_indices"))
_own("triu_indices")(_triangle_indices("triu_indices"))
_own("_cummax_helper")(_cumulative("cummax"))
_own("_cummin_helper")(_cumulative("cummin"))


@_own("_amp_foreach_non_finite_check_and_unscale_")
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


@_own("mm")
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


@_own("_efficientzerotensor")
def _zero_tensor(size: Any, *, dtype: Any = None, **options: Any) -> torch.Tensor:
    kind = webtorch_dtype(dtype or torch.get_default_dtype())
    return new_tensor(fill(tuple(size), 0, kind, _where()), fresh=True)


@_own("_native_multi_head_attention")
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


@_own("_transformer_encoder_layer_fwd")
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
        """Return the self-attention of y."""
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
        """Return the feedforward part of y."""
        y = f.linear(y, weight_1, bias_1)
        return f.linear(f.gelu(y) if use_gelu else f.relu(y), weight_2, bias_2)

    def norm_1(y: Any) -> Any:
        """Return the first layer norm of y."""
        return f.layer_norm(y, (width,), norm_weight_1, norm_bias_1, eps)

    def norm_2(y: Any) -> Any:
        """Return the second layer norm of y."""
        return f.layer_norm(y, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + inner(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + inner(x))


@_own("_copy_from_and_resize")
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
        """Return the next hidden and cell state."""
        h, c = hx
        i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, 1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def gru(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        """Return the next hidden state."""
        xr, xz, xn = linear(x, w_ih, b_ih).chunk(3, 1)
        hr, hz, hn = linear(hx, w_hh, b_hh).chunk(3, 1)
        z = sigmoid(xz + hz)
        n = tanh(xn + sigmoid(xr + hr) * hn)
        return (hx - n) * z + n

    return lstm if kind == "lstm" else gru


def _recurrent(name: str) -> Kernel:
    """Return PyTorch's own decomposition of a recurrent layer."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        """Run the decomposition."""
        from torch._decomp import decompositions

        return getattr(decompositions, name)(*args, **kwargs)

    return kernel


# PyTorch composes these with float64 numbers, which the device does not have; here float32 does it.


@_composed("renorm")
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


@_own("linalg_pinv.atol_rtol_tensor")
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
        """Return a tolerance as a tensor."""
        if value is None or isinstance(value, torch.Tensor):
            return value
        return torch.full((), value, dtype=x.real.dtype, device=x.device)

    operator = torch.ops.aten.linalg_pinv.atol_rtol_tensor
    return operator(x, atol=number(atol), rtol=number(rtol), hermitian=hermitian)


def _into(function: Kernel) -> Kernel:
    """Return the out= form of a composed operator."""

    def run(*args: Any, out: torch.Tensor, **options: Any) -> torch.Tensor:
        """Run the operator, and copy its result to `out`."""
        result = function(*args, **options)
        resize_to(out, result.shape)
        return out.copy_(result)

    return run


def _with_tolerance(x: Any, tol: Any, hermitian: bool = False) -> Any:
    return _matrix_rank(x, atol=tol, rtol=0.0, hermitian=hermitian)


_RANK = "linalg_matrix_rank"
_composed(f"{_RANK}.atol_rtol_float", f"{_RANK}.atol_rtol_tensor")(_matrix_rank)
_composed(f"{_RANK}.atol_rtol_float_out", f"{_RANK}.atol_rtol_tensor_out")(_into(_matrix_rank))
_composed(_RANK, f"{_RANK}.tol_tensor")(_with_tolerance)
_composed(f"{_RANK}.out", f"{_RANK}.out_tol_tensor")(_into(_with_tolerance))


@_composed("linalg_pinv", "linalg_pinv.rcond_tensor")
def _pinv_rcond(x: Any, rcond: Any, hermitian: bool = False) -> Any:
    return _pinv_of(x, None, rcond, hermitian)


@_composed("linalg_pinv.atol_rtol_float")
def _pinv_tolerances(x: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    return _pinv_of(x, atol, rtol, hermitian)


@_composed("pinverse")
def _pinverse(x: Any, rcond: Any = 1e-15) -> Any:
    return _pinv_of(x, None, rcond, False)


@_composed("_batch_norm_impl_index")
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


@_composed("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
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


def _flexible() -> None:
    """Let `flex_attention` take the device: what it is composed of runs here."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    original = module._validate_device

    def validate(query: Any, key: Any, value: Any) -> None:
        """Check operands of other devices as PyTorch does."""
        if query.device.type != "webgpu":
            original(query, key, value)

    module._validate_device = validate


def _traced_convolutions() -> None:
    """Let traces give convolutions the strides that the kernel gives them; else they take them for row-major."""
    original = torch._C._conv_determine_backend_memory_format
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def determine(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        """Return the memory format of a convolution's result."""
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
        """Return the tensor in float64, on the CPU if it was on the device."""
        return widened(x.cpu() if x.device.type == "webgpu" else x, **options)

    def check_trace(*args: Any, **kwargs: Any) -> Any:
        """Compare the trace, with `double` as above meanwhile."""
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
        """Return this."""
        return self

    def reciprocal(self) -> _Reciprocal:
        """Return this."""
        return self

    def float(self) -> torch.Tensor:
        """Return 1 / scale."""
        return self.scale.reciprocal()


def _scaling() -> None:
    """Let `GradScaler` work without float64."""
    scaler = torch.amp.GradScaler
    original = scaler.unscale_

    def unscale_(self: Any, optimizer: Any) -> None:
        """Unscale the gradients with a float32 scale."""
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


def _dispatched() -> set[str]:
    """Return every operator's name. TorchScript has overloads of its own, which the dispatcher does not know."""
    return set(torch._C._dispatch_get_all_op_names())


def _register_meanings(library: Any) -> int:
    count = 0
    known = _dispatched()
    for packet in _packets():
        for overload, operator in _overloads(packet):
            name = packet if overload == "default" else f"{packet}.{overload}"
            if f"aten::{name}" not in known or not (_needs_kernel(name) or name in DIRECT):
                continue
            function = meaning(packet, overload)
            if function is not None and name in REMEMBERED:
                function = remembered(function)
            if function is not None and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", "PrivateUse1"
            ):
                library.impl(name, hide(kernel_for(operator, function)), "PrivateUse1")
                count += 1
    return count


# Recurrent layers, and PyTorch's own decompositions of them.
_RECURRENT = {
    "lstm.input": "lstm_impl",
    "lstm.data": "lstm_data_impl",
    "gru.input": "gru_impl",
    "gru.data": "gru_impl_data",
    "rnn_tanh.input": "rnn_tanh_input",
    "rnn_relu.input": "rnn_relu_input",
    "rnn_tanh.data": "rnn_tanh_data",
    "rnn_relu.data": "rnn_relu_data",
}


def _operator(name: str) -> Any:
    """Return one overload by its name: "mm" or "add.Tensor"."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _register_own(library: Any) -> None:
    """Register what is about memory, geometry, creation and devices rather than arithmetic."""

    for name in [n for entry in TABLE.values() for n in entry.geometry]:
        # No frame of Python runs for a view.
        view = functools.partial(_operator(name)._handle.redispatch_boxed, CPU)
        library.impl(name, view, "PrivateUse1")
    for name, kernel in (_KERNELS | optimizer.KERNELS).items():
        library.impl(name, hide(kernel), "PrivateUse1")
    for name in [n for entry in TABLE.values() for n in entry.lapack]:
        library.impl(name, hide(fallback.on_cpu(_operator(name))), "PrivateUse1")
    # Without this the copy of a lazily negated tensor would call itself for ever; the kernel reads the flag.
    for key in ("Conjugate", "Negative"):
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)
    # Above autograd only: below it, where graphs are traced, PyTorch's own composition must be seen.
    library.impl("to.dtype_layout", hide(_to), "AutogradPrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        # So that Module.to keeps its Parameters: tied weights stay tied, and optimizers made before it stay valid.
        library.impl("_has_compatible_shallow_copy_type", hide(lambda a, b: True), key)
        for name, kernel in _COMPOSITIONS.items():
            library.impl(name, kernel, key)
        for name, decomposition in _RECURRENT.items():
            library.impl(name, _recurrent(decomposition), key)
        for name in ("lstm", "gru"):
            library.impl(f"{name}_cell", _cell(name), key)


# ---- autocast -----------------------------------------------------------------------------------


def _ruled(base: str, known: set[str]) -> list[tuple[str, Any]]:
    """Return the overloads that autocast looks at: those of PyTorch's own list for CUDA, or all that make tensors."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = [(base if o == "default" else f"{base}.{o}", f) for o, f in _overloads(base)]
    found = [
        (n, f) for n, f in found if f"aten::{n}" in known and not _names_dims(f) and not _writes(f)
    ]
    return [(n, f) for n, f in found if has(f"aten::{n}", "AutocastCUDA")] or found


def _names_dims(operator: Any) -> bool:
    return any("Dimname" in str(a.type) for a in operator._schema.arguments)


def _writes(operator: Any) -> bool:
    return any(
        a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        cast = value.is_floating_point() and value.dtype is not dtype and value.is_webgpu
        return value.to(dtype) if cast else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    return value


def _widest_of(values: Any, found: torch.dtype) -> torch.dtype:
    for v in _tensors(values):
        if v.is_webgpu and v.dtype is torch.float32:
            found = torch.float32
    return found


def _under_autocast(operator: Any, rule: str) -> Kernel:
    """Return what an operator does under autocast: see `AutocastRule`."""
    names = [a.name for a in operator._schema.arguments]
    # The result's type is asked for where the operator has a word for it.
    dtype_at = names.index("dtype") if rule == "fp32_result" and "dtype" in names else None

    def run(*args: Any, **kwargs: Any) -> Any:
        if rule == "refuse":
            raise RuntimeError(UNSAFE)
        guard = torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        )
        if dtype_at is not None:
            given = args[dtype_at] if len(args) > dtype_at else kwargs.get("dtype")
            if given is None and args[0].is_floating_point():
                args, kwargs = args[:dtype_at], {**kwargs, "dtype": torch.float32}
            with guard:
                return operator(*args, **kwargs)
        dtype = torch.float32
        if rule in ("lower", "promote"):
            dtype = torch.get_autocast_dtype("webgpu")
        if rule == "promote":
            dtype = _widest_of((*args, *kwargs.values()), dtype)
        with guard:
            return operator(
                *[_cast(a, dtype) for a in args],
                **{k: _cast(v, dtype) for k, v in kwargs.items()},
            )

    return run


def _autocast() -> None:
    """Register what autocast does: the entries' rules for accelerators."""
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    libraries.extend((library, everything))
    known = _dispatched()
    for base, rule in AUTOCAST.items():
        for name, operator in _ruled(base, known) if rule != "whole" else ():
            library.impl(name, _under_autocast(operator, rule), "AutocastPrivateUse1")


def _register() -> None:
    load()
    device.runtime()
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    libraries.extend((library, everything))
    everything.fallback(hide(fallback.fallback), "PrivateUse1")
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
