"""torch.nn.parallel.distributed: webtorch works in one process."""

from __future__ import annotations

from typing import Any

from webtorch.nn.module import Module


class DistributedDataParallel(Module):
    """A class for checks with isinstance; making one raises, as PyTorch's does without a group."""

    def __init__(self, module: Any, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError."""
        raise ValueError(
            "Default process group has not been initialized, please make sure to call "
            "init_process_group. (webtorch works in one process; nn.DataParallel takes several devices)"
        )
