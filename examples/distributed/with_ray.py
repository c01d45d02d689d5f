"""Ray Train's TorchTrainer: Ray starts the workers, on one machine or on many.

python examples/distributed/with_ray.py

Ray's `get_device()` is the CPU where it does not know an accelerator, so the loop names the device itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader

HERE = str(Path(__file__).resolve().parent)


def loop(config: dict[str, Any]) -> str:
    """Train in one worker, and return what came of it."""
    sys.path.insert(0, HERE)
    from task import dataset, network

    model = torch.nn.parallel.DistributedDataParallel(network().to("webgpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = torch.utils.data.DataLoader(dataset(), 64, shuffle=True)
    # Ray cuts the data; it would move batches to the device that it knows.
    loader = prepare_data_loader(loader, move_to_device=False)
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        total = torch.zeros((), device="webgpu")
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to("webgpu")), y.to("webgpu"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        torch.distributed.all_reduce(total, torch.distributed.ReduceOp.AVG)
        ray.train.report({"epoch": epoch, "loss": total.item()})
    return f"on {total.device}: loss {total.item():.4f}"


def main(workers: int = 2, epochs: int = 12) -> None:
    """Train in workers of a Ray that runs here."""
    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        loop, train_loop_config={"epochs": epochs}, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers), run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    )  # fmt: skip
    result = trainer.fit()
    print(f"{workers} workers {result.return_value}")
    ray.shutdown()


if __name__ == "__main__":
    main()
