"""How DTensor may split the operands of operators that are the device's own, which it does not know. Floor 6."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

# How results lie, and how operands do; None where there is no tensor.
_Ways: TypeAlias = list[tuple[list[object], list[object]]]
_taught: list[bool] = []


def is_split(x: torch.Tensor) -> bool:
    """Whether a tensor is DTensor's, which has been taught then."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    teach()
    return isinstance(x, sys.modules["torch.distributed.tensor"].DTensor)


def is_cut() -> bool:
    """Whether `context_parallel` cuts sequences: PyTorch then has attention of its own for DTensors."""
    handlers = sys.modules["torch.distributed.tensor"].DTensor._op_dispatcher._custom_op_handlers
    return torch.ops.aten._scaled_dot_product_flash_attention.default in handlers


def teach() -> None:
    """Tell DTensor how our operators are split, once it is there."""
    if _taught or "torch.distributed.tensor" not in sys.modules:
        return
    _taught.append(True)
    attention = torch.ops.webgpu.attention.default
    _register(torch.ops.aten.linear_backward.default, 3, _linear_backward)
    _register(attention, 4, _attention)
    _register(torch.ops.webgpu.attention_backward.default, 7, _attention_backward)


def _register(operator: Any, static: int, ways: Callable[..., _Ways]) -> None:
    """Register an operator; from its argument `static` on, values tell which ways there are."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(operator)(ways)
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    known[operator] = RuntimeSchemaInfo(static, needs_pytree=True)


def _linear_backward(
    x: DTensorSpec, gradient: object, weight: object, mask: Sequence[bool]
) -> _Ways:
    """Alike, by the batch, by the outputs, or by the inputs."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole, last = Replicate(), len(x.shape) - 1
    ways: _Ways = [
        ([whole, whole, whole], [whole, whole, whole]),
        ([Partial(), Shard(0), Shard(0)], [whole, Shard(last), Shard(0)]),
        ([Shard(last), Shard(1), whole], [Shard(last), whole, Shard(1)]),
    ]
    for dim in range(last):
        ways.append(([Shard(dim), Partial(), Partial()], [Shard(dim), Shard(dim), whole]))
    # In what PyTorch traces, those of the weight and of the bias come together.
    given = mask[0], mask[1] or mask[2], mask[1] or mask[2]
    return [
        (
            [how if asked else None for how, asked in zip(results, given, strict=True)],
            [*operands, None],
        )
        for results, operands in ways
    ]


def _split(
    query: DTensorSpec, key: DTensorSpec, mask: DTensorSpec | None
) -> list[tuple[object, object, object]]:
    """Return how attention may be split: its operands, what it returns with heads behind places, and its mask."""
    from torch.distributed.tensor import Replicate, Shard

    ways = [(Replicate(), Replicate()), (Shard(0), Shard(0))]
    heads, fewer = query.shape[1], key.shape[1]
    if heads == fewer or not fewer % query.mesh.size():
        ways.append((Shard(1), Shard(2)))
    return [(how, out, None if mask is None else _of_mask(mask, how)) for how, out in ways]


def _of_mask(mask: DTensorSpec, how: Any) -> object:
    """Return how a mask lies where operands, of four dims, lie so: its dims are the last of these."""
    from torch.distributed.tensor import Replicate, Shard

    if how.is_replicate():
        return how
    own = how.dim - 4 + len(mask.shape)
    return Shard(own) if own >= 0 and mask.shape[own] != 1 else Replicate()


def _attention(
    query: DTensorSpec,
    key: DTensorSpec,
    value: object,
    mask: DTensorSpec | None,
    is_causal: bool,
    scale: float,
    keeps: str,
) -> _Ways:
    """Alike, by the batch, or by the heads."""
    from torch.distributed.tensor import Replicate

    return [
        ([out, Replicate() if keeps == "nothing" else how], [how, how, how, m, None, None, None])
        for how, out, m in _split(query, key, mask)
    ]


def _attention_backward(
    g: object,
    query: DTensorSpec,
    key: DTensorSpec,
    value: object,
    mask: DTensorSpec | None,
    out: object,
    *rest: object,
) -> _Ways:
    """As the forward pass."""
    return [
        ([how, how, how], [lies, how, how, how, m, None if out is None else lies, how, None, None, None])
        for how, lies, m in _split(query, key, mask)
    ]  # fmt: skip
