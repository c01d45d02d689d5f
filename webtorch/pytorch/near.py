"""How the tensors of a known call lie. Floor 6; imports PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch._C._dynamo.guards import TensorGuards

from webtorch.pytorch.device import offset_of, reach

if TYPE_CHECKING:
    from webtorch.pytorch.known import Plan

_find = torch._C.TensorBase.untyped_storage


class Near:
    """How the tensors of a call lie: PyTorch compares their types, sizes and strides in one call, where to ask for them
    takes three for each tensor, and their hash as long.
    """

    __slots__ = ("check", "offsets", "plan")

    def __init__(self, tensors: Sequence[torch.Tensor], plan: Plan) -> None:
        guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self.check: Callable[..., bool] = guards.check
        # None where each is all of its memory, so that it lies at no other place of one of that size.
        self.offsets: list[int] | None = None
        if any(reach(x) != _find(x).nbytes() for x in tensors):
            self.offsets = [offset_of(x) for x in tensors]
        self.plan = plan
