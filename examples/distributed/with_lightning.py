"""PyTorch Lightning's `ddp`: an accelerator of twenty lines tells it of the device.

python examples/distributed/with_lightning.py
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import DDPStrategy
from task import dataset, network


class WebGPU(Accelerator):
    """One device a process, which is "webgpu:0" in each."""

    is_available = staticmethod(torch.webgpu.is_available)
    name = staticmethod(lambda: "webgpu")
    parse_devices = staticmethod(lambda devices: devices)
    get_parallel_devices = staticmethod(lambda n: [torch.device("webgpu:0")] * n)
    auto_device_count = staticmethod(lambda: torch.webgpu.device_count())

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: the process has its device."""

    def teardown(self) -> None:
        """Do nothing."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return the use of memory."""
        return torch.webgpu.memory_stats()


class Processes(DDPStrategy):
    """Lightning's `ddp`, which asks CUDA for a stream where a process has a device with a number."""

    def determine_ddp_device_ids(self) -> None:
        """Return None: the model stays where it is."""


class Spirals(pl.LightningModule):
    """The network, and how it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = network(), []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.network(x), y)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        """Print the mean loss over processes."""
        mean = self.all_gather(torch.stack(self.losses).mean()).mean()
        self.losses = []
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch}: loss {mean.item():.4f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(processes: int = 2, epochs: int = 12) -> None:
    """Train in several processes, which Lightning starts."""
    trainer = pl.Trainer(
        accelerator=WebGPU(), strategy=Processes(process_group_backend="gloo"), devices=processes, max_epochs=epochs,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Spirals(), torch.utils.data.DataLoader(dataset(), 64, shuffle=True))


if __name__ == "__main__":
    main()
