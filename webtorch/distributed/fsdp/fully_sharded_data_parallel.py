"""The names of PyTorch's older FullyShardedDataParallel, which programs import beside `fully_shard`.

Their objects say what to use instead. isinstance of such a class is always false.
"""

from __future__ import annotations

from typing import Any, NoReturn


class FullyShardedDataParallel:
    """PyTorch's older way to shard modules, which webtorch does not have."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(
            f"{cls.__name__}: webtorch has no FullyShardedDataParallel (FSDP1). Use "
            "torch.distributed.fsdp.fully_shard(module), which shards in place: layers first, the model last"
        )


class BackwardPrefetch(FullyShardedDataParallel):
    """An option of FullyShardedDataParallel."""


class CPUOffload(FullyShardedDataParallel):
    """An option of FullyShardedDataParallel: `CPUOffloadPolicy` is that of `fully_shard`."""


class MixedPrecision(FullyShardedDataParallel):
    """An option of FullyShardedDataParallel: `MixedPrecisionPolicy` is that of `fully_shard`."""


class ShardingStrategy(FullyShardedDataParallel):
    """An option of FullyShardedDataParallel."""


class StateDictType(FullyShardedDataParallel):
    """An option of FullyShardedDataParallel: see `torch.distributed.checkpoint.state_dict`."""


class FullStateDictConfig(StateDictType):
    """An option of FullyShardedDataParallel."""


class ShardedStateDictConfig(StateDictType):
    """An option of FullyShardedDataParallel."""


class FullOptimStateDictConfig(StateDictType):
    """An option of FullyShardedDataParallel."""


class ShardedOptimStateDictConfig(StateDictType):
    """An option of FullyShardedDataParallel."""
