"""FSDP2: parameters, gradients and the optimizer's state are sharded over the processes.

torchrun --nproc_per_node=2 examples/distributed/fsdp2.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from task import network, points
from torch import nn
from torch.distributed.fsdp import fully_shard


def main(steps: int = 120) -> None:
    """Train, and print losses on process 0."""
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    model = network().to("webgpu")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = points()
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = torch.randint(len(x), (128,), generator=generator)[rank::size]
        loss = nn.functional.cross_entropy(model(x[batch].to("webgpu")), y[batch].to("webgpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item() / size:.4f}")
    mine = sum(p.to_local().numel() for p in model.parameters())
    whole = sum(p.numel() for p in model.parameters())
    print(f"process {rank} holds {mine} of {whole} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
