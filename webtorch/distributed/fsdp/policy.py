"""What a user says of a sharded module: types of values, where shards lie, and how they are sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from webtorch.distributed.group import ProcessGroup, Work
from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Types of a sharded module's values; the shards, and what the optimizer does with them, keep theirs.

    `param_dtype`: of gathered parameters, and so of forward and backward. `reduce_dtype`: of gradients on their way
    (that of the parameters where it is None), and of those that are summed up without being sent. `output_dtype`: of
    what forward returns. `cast_forward_inputs`: whether inputs of floating point become `param_dtype`.
    """

    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    output_dtype: DType | None = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """Shards lie on the device of the mesh."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards, their gradients and the optimizer's state lie in the host's memory. `pin_memory` changes nothing here."""

    pin_memory: bool = True


@dataclass
class DataParallelMeshDims:
    """Names of the dims of a whole mesh over which parameters that are DTensors on it are sharded and replicated."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where neither is given."""
        if self.shard is None and self.replicate is None:
            raise ValueError(
                "At least one of shard or replicate must be set in DataParallelMeshDims"
            )


class Comm(ABC):
    """A way to send values: it also gives the tensor that is sent into."""

    @abstractmethod
    def allocate(self, size: Sequence[int], *, dtype: DType, device: Any) -> Tensor:
        """Return a tensor of that size."""


class AllGather(Comm):
    """How parameters are gathered: see `FSDPModule.set_custom_all_gather`."""

    @abstractmethod
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        async_op: bool = False,
    ) -> Work | None:
        """Fill the output with the inputs of all processes."""


class ReduceScatter(Comm):
    """How gradients are summed up and shared out: see `FSDPModule.set_custom_reduce_scatter`."""

    @abstractmethod
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Work | None:
        """Fill the output with this process's part of the sum."""
