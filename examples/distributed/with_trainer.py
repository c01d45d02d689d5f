"""Hugging Face's Trainer in several processes.

torchrun --nproc_per_node=2 examples/distributed/with_trainer.py
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["ACCELERATE_TORCH_DEVICE"] = "webgpu"
import torch
from task import network, points
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Spirals(nn.Module):
    """The network, as the Trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and what it is of."""
        logits = self.network(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Losses(TrainerCallback):
    """Prints losses."""

    def on_log(
        self, args: object, state: object, control: object, logs: Any = None, **kwargs: object
    ) -> None:
        """Print what is logged."""
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.4f}", flush=True)


def main(steps: int = 120) -> None:
    """Train in the processes that torchrun has started."""
    x, y = points()
    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, max_steps=steps, per_device_train_batch_size=64, learning_rate=3e-3,
        lr_scheduler_type="constant", logging_steps=20,
        save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data: Any = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    trainer = Trainer(Spirals(), arguments, train_dataset=data, callbacks=[Losses()])
    trainer.train()
    if arguments.process_index == 0:
        print(f"{arguments.world_size} processes on {next(trainer.model.parameters()).device}")


if __name__ == "__main__":
    main()
