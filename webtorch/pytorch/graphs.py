"""What the operators of a traced graph mean, beyond those of the eager kernels. Floor 6.

Only graphs contain these: views and creation, copies to write, operators of PyTorch's CPU kernels in
graphs whose inputs are on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from webtorch.aten.elementwise import filled
from webtorch.aten.table import FUNCTIONS, Function, Sizes, op
from webtorch.aten.table import meaning as declared_meaning
from webtorch.ir.dtype import DType, Number
from webtorch.ir.view import numel
from webtorch.ops.primitive import cast_to, copy, empty
from webtorch.ops.record import TABLE
from webtorch.pytorch import attention
from webtorch.pytorch import library as library  # operators are registered, the table is full
from webtorch.pytorch.device import here, webtorch_dtype
from webtorch.pytorch.fallback import unsupported
from webtorch.tensors.tensor import Tensor

GRAPH: dict[str, Function] = {}


def graph(*names: str) -> Callable[[Function], Function]:
    """Declare the meaning of operators that only graphs contain: views and creation."""

    def declare(function: Function) -> Function:
        """Put the function into GRAPH under each name."""
        GRAPH.update(dict.fromkeys(names, function))
        return function

    return declare


@graph("view", "_unsafe_view", "reshape")
def _view(x: Tensor, shape: Sequence[int]) -> Tensor:
    return op.reshape(x, tuple(shape))


@graph("expand")
def _expand(x: Tensor, shape: Sequence[int], *, implicit: bool = False) -> Tensor:
    return op.expand(x, tuple(shape))


@graph("alias", "detach", "lift", "lift_fresh")
def _alias(x: Tensor) -> Tensor:
    return x


@graph("clone", "contiguous", "lift_fresh_copy")
def _clone(x: Tensor, **options: object) -> Tensor:
    return copy(x)


@graph("sort")
def _sort(
    x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[Tensor, ...]:
    return tuple(op.sort(x, dim, descending, bool(stable)))


@graph("_to_copy")
def _to_copy(x: Tensor, *, dtype: DType | None = None, **options: object) -> Tensor:
    return copy(x) if dtype is None or dtype is x.dtype else cast_to(x, dtype)


@graph("copy")
def _copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(src, (bool, int, float)):
        return filled(x._shape, src, x.dtype, x.device)
    return copy(op.expand(cast_to(src, x.dtype), x._shape))


@graph("copy_")
def _copy_into(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return op.copy_(x, src)


@graph("slice_scatter")
def _slice_scatter(
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    out = copy(x)
    op.copy_(op.slice(out, dim, start, end, step), src)
    return out


@graph("select_scatter")
def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    out = copy(x)
    op.copy_(op.select(out, dim, index), src)
    return out


def _dtype(dtype: DType | None) -> DType:
    return webtorch_dtype(torch.get_default_dtype(), compiled=True) if dtype is None else dtype


def _kind(like: object, dtype: DType | None) -> DType:
    """Return the type of a new tensor, which may be like another one."""
    return dtype or (like.dtype if isinstance(like, Tensor) else _dtype(None))


@graph("full", "full_like")
def _full(
    like: Tensor | Sequence[int], value: Number, *, dtype: DType | None = None, **options: object
) -> Tensor:
    if isinstance(like, Tensor):
        return filled(like._shape, value, dtype or like.dtype, here())
    if dtype is None and isinstance(value, int):
        dtype = webtorch_dtype(torch.bool if isinstance(value, bool) else torch.int64)
    elif dtype is None:
        dtype = webtorch_dtype(torch.get_default_dtype())
    return filled(like, value, dtype, here())


def _all(value: Number) -> Function:
    def make(
        like: Tensor | Sequence[int],
        size: Sequence[int] | None = None,
        *,
        dtype: DType | None = None,
        **options: object,
    ) -> Tensor:
        """Return a tensor of one number, of a size or of that of another one."""
        if size is None:
            size = like._shape if isinstance(like, Tensor) else like
        return filled(size, value, _kind(like, dtype), here())

    return make


graph("zeros", "empty", "new_zeros", "new_empty", "zeros_like", "empty_like")(_all(0))
graph("ones", "new_ones", "ones_like")(_all(1))


@graph("empty_strided", "empty_permuted")
def _empty_strided(
    size: Sequence[int], layout: object, *, dtype: DType | None = None, **options: object
) -> Tensor:
    return empty(tuple(size), _dtype(dtype), here())


@graph("new_full")
def _new_full(
    x: Tensor, size: Sequence[int], value: Number, *, dtype: DType | None = None, **options: object
) -> Tensor:
    return filled(size, value, dtype or x.dtype, here())


@graph("scalar_tensor")
def _scalar_tensor(value: Number, *, dtype: DType | None = None, **options: object) -> Tensor:
    return filled((), value, _dtype(dtype), here())


@graph("arange")
def _arange(*args: object, dtype: DType | None = None, **options: object) -> Tensor:
    return op.arange(*args, dtype=dtype, device=here())


@graph("linspace")
def _linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: DType | None = None,
    **options: object,
) -> Tensor:
    kind = _dtype(dtype)
    if isinstance(start, Tensor) or isinstance(end, Tensor):
        return cast_to(_between(start, end, steps, kind), kind)
    return op.linspace(start, end, steps, dtype=kind, device=here())


def _between(start: float | Tensor, end: float | Tensor, steps: int, dtype: DType) -> Tensor:
    """Return `steps` numbers at equal distances; the values of `start` and `end` are known when the program runs."""
    kind = webtorch_dtype(torch.float32)
    first, last = (
        # A result of integers has ends that are integers.
        cast_to(cast_to(v, dtype), kind) if isinstance(v, Tensor) else float(v)
        for v in (start, end)
    )
    at = op.arange(steps, dtype=kind, device=here())
    step = op.div(op.sub(last, first), max(steps - 1, 1))
    # From both ends, so that both are exact.
    near = op.lt(at, max(steps // 2, 1))
    return op.where(near, first + at * step, last - (steps - 1 - at) * step)


@graph("logspace")
def _logspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    **options: object,
) -> Tensor:
    kind = _dtype(dtype)
    if isinstance(start, Tensor) or isinstance(end, Tensor):
        return cast_to(op.pow(base, _between(start, end, steps, kind)), kind)
    return op.logspace(start, end, steps, base, dtype=kind, device=here())


@graph("eye")
def _eye(n: int, m: int | None = None, *, dtype: DType | None = None, **options: object) -> Tensor:
    return op.eye(n, n if m is None else m, dtype=_dtype(dtype), device=here())


def _drawn(name: str) -> Function:
    def draw(
        like: Tensor | Sequence[int], *, dtype: DType | None = None, **options: object
    ) -> Tensor:
        """Return random numbers, of a size or of that of another tensor."""
        size = like._shape if isinstance(like, Tensor) else tuple(like)
        return getattr(op, name)(size, dtype=_kind(like, dtype), device=here())

    return draw


for _name in ("rand", "randn"):
    graph(_name, f"{_name}_like")(_drawn(_name))


@graph("normal.float_float")
def _normal(
    mean: float, std: float, size: Sequence[int], *, dtype: DType | None = None, **options: object
) -> Tensor:
    return FUNCTIONS["normal_"](empty(tuple(size), _dtype(dtype), here()), mean, std)


@graph("randint")
def _randint(*args: Any, dtype: DType | None = None, **options: object) -> Tensor:
    low, high, size = (0, *args) if len(args) == 2 else args
    return op.randint(
        low, high, tuple(size), dtype=dtype or webtorch_dtype(torch.int64), device=here()
    )


@graph("bernoulli")
def _bernoulli(x: Tensor, p: Number | None = None, **options: object) -> Tensor:
    draw = op.rand(x._shape, dtype=webtorch_dtype(torch.float32), device=here())
    return cast_to(op.lt(draw, x if p is None else p), x.dtype)


@graph("sym_size")
def _sym_size(x: Tensor, dim: int) -> int:
    return int(x._shape[dim])


@graph("sym_numel")
def _sym_numel(x: Tensor) -> int:
    return int(numel(x._shape))


@graph("sym_stride")
def _sym_stride(x: Tensor, dim: int) -> int:
    return int(x._strides[dim])


@graph("sym_storage_offset")
def _sym_storage_offset(x: Tensor) -> int:
    return int(x._offset)


@graph("_scaled_dot_product_flash_attention_for_cpu")
def _cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Number,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU attention; the weights stand where it keeps the logarithm of their sums."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    out, kept = attention.attention(query, key, value, attn_mask, is_causal, factor, "weights")
    return out.transpose(1, 2), kept


@graph("_scaled_dot_product_flash_attention_for_cpu_backward")
def _cpu_attention_backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Number,
    out: Tensor,
    kept: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return attention.attention_backward(
        g.transpose(1, 2), query, key, value, attn_mask, None, kept, is_causal, factor, "weights"
    )


@graph("convert_element_type")
def _convert(x: Tensor, dtype: DType) -> Tensor:
    return cast_to(x, dtype)


@graph("_assert_scalar")
def _assert_scalar(holds: object, message: str) -> None:
    """Check a fact about sizes, which are known when the graph is recorded."""
    if not holds:
        raise RuntimeError(message)


@graph("sym_constrain_range", "sym_constrain_range_for_size")
def _constrain(size: Sizes, **options: object) -> None:
    """Tell the trace what a size may be: nothing to do."""


# Their factor is given by position, that of single tensors by its name only.
_FACTORED = ("_foreach_addcdiv", "_foreach_addcmul")


def _foreach(name: str) -> Function | None:
    """Return the meaning of a `_foreach_` operator: the plain one on every element of the lists."""
    base = FUNCTIONS.get(name.removeprefix("_foreach_"))
    if name == "_foreach_norm":
        base = FUNCTIONS["linalg_vector_norm"]
    if name == "_foreach_copy":
        base = GRAPH["copy"]
    if base is None:
        return None

    def run(*args: object, **kwargs: object) -> list[Tensor]:
        """Return the results of all elements, as a list."""
        count = max(len(a) for a in args if isinstance(a, list))
        rows = [a if isinstance(a, list) else [a] * count for a in args]
        if name in _FACTORED and len(rows) == 4:
            return [base(*row, value=factor) for *row, factor in zip(*rows, strict=True)]
        return [base(*row, **kwargs) for row in zip(*rows, strict=True)]

    return run


_NAMESPACES = ("aten", "prims", "webgpu")


def find_meaning(target: object) -> Function | None:
    """Return what a node's target means on webtorch tensors, or None when it has no meaning here."""
    if not isinstance(target, torch._ops.OpOverload):
        return target if callable(target) else None  # operator.getitem, arithmetic on sizes
    packet, overload = target._schema.name.rpartition("::")[2], target._overloadname
    if target.namespace not in _NAMESPACES:
        # Somebody else's operator, whatever its name.
        return None
    if (packet, overload) == ("view", "dtype"):
        # A storage of the engine holds one type; memory on the device may be looked at as another.
        return None
    declared = GRAPH.get(f"{packet}.{overload}") or GRAPH.get(packet)
    if declared is not None:
        return declared
    found = declared_meaning(packet, overload)
    entry = TABLE.get(packet)
    if found is None and entry is not None and entry.traced:
        found = entry.function
    if found is None and packet.startswith("_foreach_"):
        found = _foreach(packet)
    return found


def meaning(target: object) -> Function:
    """Return what a node's target means on webtorch tensors. Raises NotImplementedError when it has no meaning here."""
    found = find_meaning(target)
    if found is None:
        raise unsupported(target)
    return found
