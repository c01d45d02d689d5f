"""Hugging Face's accelerate: `prepare` wraps the model and cuts the data.

accelerate launch --multi_gpu --num_processes=2 examples/distributed/with_accelerate.py [--shard]

accelerate knows no "webgpu": `--multi_gpu` starts processes, `cpu=True` chooses Gloo, and ACCELERATE_TORCH_DEVICE the
device. Its plugin that shards the model (FSDP2) is for processes with cards, as which these have to count.
"""

from __future__ import annotations

import os
import sys

os.environ["ACCELERATE_TORCH_DEVICE"] = "webgpu"
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from task import dataset, network


def main(shard: bool, epochs: int = 12) -> None:
    """Train, and print the mean loss of each epoch on process 0."""
    plugin = None
    if shard:
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(dataset(), 64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.print(f"{accelerator.num_processes} processes on {accelerator.device}")
    for epoch in range(epochs):
        losses = []
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        mean = accelerator.gather(torch.stack(losses)).mean()
        accelerator.print(f"epoch {epoch}: loss {mean.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main("--shard" in sys.argv)
