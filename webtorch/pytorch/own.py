"""Kernels with a form of their own: memory, creation and devices, and those that look at PyTorch's tensors. Floor 6."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from webtorch.aten.table import FUNCTIONS, REDUCTIONS, op
from webtorch.functions.creation import fits
from webtorch.ir.dtype import Number
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops.layout import of_first
from webtorch.ops.primitive import fill, iota
from webtorch.ops.purity import warn
from webtorch.ops.record import TABLE
from webtorch.pytorch import resizing
from webtorch.pytorch.buckets import gather
from webtorch.pytorch.copying import copy_from, item, to_copy
from webtorch.pytorch.device import (
    Lain,
    check_device,
    check_layout,
    here,
    lie,
    made_of,
    new_tensor,
    on_device,
    store,
    webtorch_dtype,
    wrap,
)
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.kernels import (
    Kernel,
    composed,
    functional,
    kernel_for,
    own,
    structured,
    whole,
)
from webtorch.pytorch.known import Kinds, Plan
from webtorch.pytorch.random import dropped, random_numbers, source, uniform_like
from webtorch.pytorch.resizing import resize_to
from webtorch.pytorch.wide import placed
from webtorch.tensors.tensor import Tensor

own("set_")(resizing.set_to_nothing)
own("set_.source_Storage_storage_offset")(resizing.set_)
own("set_.source_Storage")(
    lambda x, source: resizing.set_(x, source, 0, (source.nbytes() // x.element_size(),))
)
own("resize_")(resizing.resize_)
own("_copy_from")(copy_from)
own("_to_copy")(to_copy)
own("_local_scalar_dense")(item)
# Padded batches stay dense: no jagged tensors here.
own("_nested_tensor_from_mask_left_aligned")(lambda x, mask: False)
own("record_stream")(lambda x, stream: None)
own("is_pinned")(lambda x, device=None: False)


def _constant(
    size: Sequence[int],
    value: Number,
    dtype: torch.dtype,
    layout: torch.layout | None,
    device: torch.device | None,
) -> torch.Tensor:
    """Return a tensor of one number, which no memory is made for before it is computed."""
    check_device(device)
    check_layout(layout)
    if size and min(size) < 0:
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(size)}: {list(size)}"
        )
    out: torch.Tensor = _filled(size, value, dtype)
    return out


_filled = functional(
    "full", lambda size, value, dtype: fill(size, fits(value, dtype), dtype, here(dtype))
)


def _constants(value: int) -> Kernel:
    def kernel(
        size: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: object = None,
    ) -> torch.Tensor:
        """Return a tensor of zeros, or of ones."""
        return _constant(size, value, dtype or torch.get_default_dtype(), layout, device)

    return kernel


def _constants_like(name: str, value: int) -> Kernel:
    operator = getattr(torch.ops.aten, name).default
    composite = torch._C.DispatchKey.CompositeExplicitAutograd

    def kernel(
        x: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        """Return a tensor of zeros, or of ones, as large as another."""
        here = device is None or device.type == "webgpu"
        if not here or memory_format not in (None, torch.preserve_format) or not x.is_contiguous():
            return operator._op_dk(
                composite, x, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory,
                memory_format=memory_format,
            )  # fmt: skip
        return _constant(tuple(x.shape), value, dtype or x.dtype, layout, device)

    return kernel


for _name, _value in (("zeros", 0), ("ones", 1)):
    own(_name)(_constants(_value))
    own(f"{_name}_like")(_constants_like(f"{_name}_like", _value))


@own("full")
def _full(
    size: Sequence[int],
    value: Number,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: object = None,
) -> torch.Tensor:
    if dtype is None:
        dtype = torch.get_default_dtype()
        if isinstance(value, complex):
            dtype = dtype.to_complex()
        elif isinstance(value, int):
            dtype = torch.bool if isinstance(value, bool) else torch.int64
    return _constant(size, value, dtype, layout, device)


_numbered = functional(
    "arange",
    lambda *numbers: op.arange(*numbers[:-1], dtype=numbers[-1], device=here(numbers[-1])),
)


@own("arange", "arange.start", "arange.start_step")
def _range_of(
    *numbers: float | torch.Tensor,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: object = None,
) -> torch.Tensor:
    check_device(device)
    check_layout(layout)
    values = [v.item() if isinstance(v, torch.Tensor) else v for v in numbers]
    if dtype is None:
        whole = all(isinstance(v, int) for v in values)
        dtype = torch.int64 if whole else torch.get_default_dtype()
    out: torch.Tensor = _numbered(*values, dtype)
    return out


def _whole(overload: OpOverload, function: Kernel) -> Kernel:
    """Return the kernel of an operator that PyTorch makes of others below its gradient: one operation, once its kind
    is known.
    """
    composite = torch._C.DispatchKey.CompositeExplicitAutograd
    return structured(overload, function, functools.partial(overload._op_dk, composite))


def _entropy(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    loss: Tensor = op.binary_cross_entropy_with_logits(
        x, y, weight, reduction=REDUCTIONS[reduction], pos_weight=pos_weight
    )
    return loss


own("stack")(_whole(torch.ops.aten.stack.default, lambda x, dim=0: op.stack(x, dim)))
own("repeat")(_whole(torch.ops.aten.repeat.default, lambda x, n: op.repeat(x, repeats=n)))
own("binary_cross_entropy_with_logits")(
    _whole(torch.ops.aten.binary_cross_entropy_with_logits.default, _entropy)
)

for _operator, _meaning in (
    (torch.ops.aten.one_hot.default, lambda x, classes=-1: op.one_hot(x, classes)),
    (torch.ops.aten.where.ScalarOther, FUNCTIONS["where"]),
    (torch.ops.aten.where.ScalarSelf, FUNCTIONS["where"]),
):
    composed(_operator._name.removeprefix("aten::"))(whole(_operator, _meaning))


_USUAL = (None, False, torch.strided, torch.preserve_format)


def _drawn(operator: OpOverload, kind: str) -> Kernel:
    composite = torch._C.DispatchKey.CompositeExplicitAutograd
    like = operator._schema.arguments[0].name == "self"

    def kernel(
        size: Any,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **options: object,
    ) -> torch.Tensor:
        """Return random numbers; those of float32 without memory that would be overwritten."""
        given = dtype or (size.dtype if like else torch.get_default_dtype())
        shape = tuple(size.shape if like else size)
        if (
            given is not torch.float32
            or any(v not in _USUAL for v in options.values())
            or (like and not (on_device(size) and size.is_contiguous()))
            or (device is not None and (device.type != "webgpu" or device.index))
            or min(shape, default=1) < 1
        ):
            out: torch.Tensor = operator._op_dk(
                composite, size, dtype=dtype, device=device, **options
            )
            return out
        if flag.pressed:
            check()
        return new_tensor(random_numbers(shape, kind), fresh=True)

    return kernel


for _operator, _kind in (
    (torch.ops.aten.rand.default, "uniform"),
    (torch.ops.aten.randn.default, "normal"),
    (torch.ops.aten.rand_like.default, "uniform"),
    (torch.ops.aten.randn_like.default, "normal"),
):
    own(_operator._name.removeprefix("aten::"))(_drawn(_operator, _kind))

_clones = Kinds()


@functools.cache
def _product() -> Kernel:
    """Return the kernel of a product: not before all is declared that is known of the operator."""
    return kernel_for(torch.ops.aten.mul.out, op.mul)


@own("mul.out")
def _multiplied(x: torch.Tensor, other: torch.Tensor | float, *, out: torch.Tensor) -> torch.Tensor:
    if type(other) is float and gather(x, other, out):
        return out
    product: torch.Tensor = _product()(x, other, out=out)
    return product


@own("clone")
def _clone(x: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    if flag.pressed:
        check()
    nodes: list[Node] = []
    plan = None if x.is_neg() else _clones.find((x, memory_format), {}, nodes, [])
    if type(plan) is Plan:
        out: torch.Tensor = plan.tensors(nodes, (), user_line())
        return out
    rows = memory_format is torch.contiguous_format
    if (rows or memory_format in (None, torch.preserve_format)) and not x.is_conj():
        shape = tuple(x.shape)
        strides = None if rows or x.is_contiguous() else of_first(((shape, x.stride()),), shape)

        def call(values: Sequence[Tensor], options: object) -> Lain:
            """Return the copy as it is to lie."""
            return lie(values[0], False, strides)

        values = (wrap(x),)
        if type(plan) is tuple:
            return made_of(_clones.watch(plan, call, values, {}, nodes, ()))
        return made_of(call(values, {}))
    composite = torch._C.DispatchKey.CompositeExplicitAutograd
    return torch.ops.aten.clone.default._op_dk(composite, x, memory_format=memory_format)


@own("arange.start_out")
def _arange(
    start: float | torch.Tensor,
    end: float | torch.Tensor,
    step: float | torch.Tensor = 1,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    values = [v.item() if isinstance(v, torch.Tensor) else v for v in (start, end, step)]
    kind = webtorch_dtype(out.dtype)
    result = op.arange(*values, dtype=kind, device=here(kind))
    if 0 < out.numel() != result.numel():
        warn(
            f"The number of elements in the out tensor of shape {list(out.shape)} is {out.numel()} which does not "
            f"match the computed number of elements {result.numel()}. Note that this may occur as a result of "
            f"rounding error. The out tensor will be resized to a tensor of shape ({result.numel()},)."
        )
    return _spaced(out, result)


@own("range.out", "range.out_")
def _range(start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
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
    result = iota(count, start, step, kind, here(kind))
    return _spaced(out, result)


@own("linspace.out")
def _linspace(
    start: float | torch.Tensor, end: float | torch.Tensor, steps: int, *, out: torch.Tensor
) -> torch.Tensor:
    kind = webtorch_dtype(out.dtype)
    result = op.linspace(start, end, steps, dtype=kind, device=here(kind))
    return _spaced(out, result)


def _spaced(out: torch.Tensor, result: Tensor) -> torch.Tensor:
    """Put a row of numbers into `out`, which keeps its shape where it has as many elements."""
    if out.numel() != result.numel():
        resizing.resize_(out, result._shape)
    store(out, result.reshape(tuple(out.shape)), fresh=True)
    return out


@own("logspace.out")
def _logspace(
    start: float | torch.Tensor,
    end: float | torch.Tensor,
    steps: int,
    base: float = 10.0,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    kind = webtorch_dtype(out.dtype)
    result = op.logspace(start, end, steps, base, dtype=kind, device=here(kind))
    return _spaced(out, result)


@own("eye.out", "eye.m_out")
def _eye(n: int, m: int | None = None, *, out: torch.Tensor) -> torch.Tensor:
    kind = webtorch_dtype(out.dtype)
    result = op.eye(n, n if m is None else m, dtype=kind, device=here(kind))
    resizing.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


@own("randperm.generator_out")
def _randperm(
    n: int, *, generator: torch.Generator | None = None, out: torch.Tensor
) -> torch.Tensor:
    kind = webtorch_dtype(out.dtype)
    where = here(kind)
    real = out.dtype.is_floating_point
    if n > (
        2 + round(2 / torch.finfo(out.dtype).eps) - 1 if real else torch.iinfo(out.dtype).max + 1
    ):
        raise RuntimeError(f"n is too large for result tensor type: '{out.dtype}'")
    result = op.randperm(n, generator=source(generator, where), dtype=kind, device=where)
    resizing.resize_(out, result._shape)
    store(out, result, fresh=True)
    return out


def _triangle_indices(name: str) -> Kernel:
    def kernel(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: torch.dtype | None = None,
        layout: object = None,
        device: torch.device | None = None,
        pin_memory: object = None,
    ) -> torch.Tensor:
        """Return the positions (2, N). Raises NotImplementedError for a dtype that is no integer's."""
        check_device(device)
        kind = webtorch_dtype(dtype or torch.int64)
        if not kind.is_integral:
            raise NotImplementedError(f'"{name}" not implemented for {dtype}: it makes integers')
        found = getattr(op, name)(row, col, offset, dtype=kind, device=here())
        return new_tensor(found, fresh=True)

    return kernel


def _cumulative(name: str) -> Kernel:
    def kernel(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        """Write the running extremes and their positions."""
        found = placed(getattr(op, name))(wrap(x), dim)
        store(values, found[0], fresh=True)
        store(indices, found[1], fresh=True)

    return kernel


own("tril_indices")(_triangle_indices("tril_indices"))
own("triu_indices")(_triangle_indices("triu_indices"))
own("_cummax_helper")(_cumulative("cummax"))
own("_cummin_helper")(_cumulative("cummin"))


_dropout_without_chance = functional("native_dropout", FUNCTIONS["native_dropout"])
_dropout = functional("native_dropout", dropped, draws=uniform_like)


@own("native_dropout")
def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> object:
    run = _dropout if 0 < p < 1 and train is not False else _dropout_without_chance
    return run(x, p, train)


@own("_efficientzerotensor")
def _zero_tensor(
    size: Sequence[int], *, dtype: torch.dtype | None = None, **options: object
) -> torch.Tensor:
    kind = webtorch_dtype(dtype or torch.get_default_dtype())
    return new_tensor(fill(tuple(size), 0, kind, here(kind)), fresh=True)


@own("_copy_from_and_resize")
def _copy_from_and_resize(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    resize_to(dst, src.shape)
    return copy_from(src, dst)


# PyTorch composes these of nothing: they read memory as the CPU's.
own("_reshape_from_tensor")(lambda x, shape: x.reshape(shape.tolist()))
own("_saturate_weight_to_fp16")(lambda x: x.clamp_(-65504.0, 65504.0))


@own("_sobol_engine_initialize_state_")
def _sobol_directions(x: torch.Tensor, dimension: int) -> torch.Tensor:
    # PyTorch's table of direction numbers is in its CPU code alone.
    return x.copy_(torch._sobol_engine_initialize_state_(x.cpu(), dimension))


_threshold = structured(torch.ops.aten.threshold_.default, TABLE["threshold"].function)


@own("threshold_")
def _threshold_(x: torch.Tensor, threshold: float, value: float) -> torch.Tensor:
    strides = x.stride()
    if 0 not in strides:
        found: torch.Tensor = _threshold(x, threshold, value)
        return found
    # Done twice it is as done once, so that an expanded tensor may be written: in its memory, once.
    size = [1 if n and not s else n for n, s in zip(x.shape, strides, strict=True)]
    _threshold(x.as_strided(size, strides, x.storage_offset()), threshold, value)
    return x
