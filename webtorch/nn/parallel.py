"""DataParallel, for programs that use it. May import nn's base files only."""

from __future__ import annotations

from typing import Any

from webtorch.nn.module import Module

__all__ = ["DataParallel"]


class DataParallel(Module):
    """Call `module` on its device: a batch is not split here, since one process drives one device.

    Entries of the state dict have the prefix "module.", as in PyTorch.
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        """Hold the module."""
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise NotImplementedError(
                f"DataParallel: {len(device_ids)} devices are not supported. Leave out device_ids."
            )
        self.module = module
        self.device_ids = list(device_ids or [])
        self.output_device = output_device
        self.dim = dim

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **kwargs)
