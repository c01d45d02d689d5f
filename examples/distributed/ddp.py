"""DistributedDataParallel: each process has the whole model and a part of each batch.

torchrun --nproc_per_node=2 examples/distributed/ddp.py
torchrun --nproc_per_node=2 -m webtorch run examples/distributed/ddp.py

The first line trains with real PyTorch on its device "webgpu", the second with webtorch in PyTorch's place.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from task import dataset, network
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    """Train, and print the mean loss of each epoch on process 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    device = torch.device(options.device)
    model = torch.nn.parallel.DistributedDataParallel(network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = dataset()
    sampler = DistributedSampler(data)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for x, y in DataLoader(data, 128 // dist.get_world_size(), sampler=sampler):
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        # The mean over processes, and over the batches of an epoch.
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch}: loss {total.item() * 128 / len(data) / dist.get_world_size():.4f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
