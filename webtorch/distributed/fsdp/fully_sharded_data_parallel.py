"""The name of PyTorch's older FullyShardedDataParallel, which programs import beside `fully_shard`."""

from __future__ import annotations

from typing import NoReturn


class FullyShardedDataParallel:
    """PyTorch's older way to shard modules, which webtorch does not have. isinstance of it is always false."""

    def __new__(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raise NotImplementedError."""
        raise NotImplementedError(
            "webtorch has no FullyShardedDataParallel (FSDP1). Use "
            "torch.distributed.fsdp.fully_shard(module), which shards in place: layers first, the model last"
        )
