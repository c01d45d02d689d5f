"""A transformer of tensor and sequence parallel layers, on either library: a program of PyTorch's.

    python -m tests.distributed.parallel FOLDER webtorch cpu 50 RANK RANKS

Each rank writes what it found into the folder as JSON. One rank of one trains the same model as it is.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 24, 16, 4, 8, 4


def model_of(torch: Any) -> Any:
    """Return a model whose attention has as many heads as its part of the weights says."""
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: Any) -> Any:
            """Attend to what came before."""
            q, k, v = (
                w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                for w in (self.wq, self.wk, self.wv)
            )
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.wo(out.transpose(1, 2).flatten(2))

    class FeedForward(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            """Two layers."""
            return self.w2(F.gelu(self.w1(x)))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention, self.feed_forward = Attention(), FeedForward()

        def forward(self, x: Any) -> Any:
            """Both, beside what came in."""
            x = x + self.attention(self.norm1(x))
            return x + self.feed_forward(self.norm2(x))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.ModuleList([Block(), Block()])
            self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any, places: Any) -> Any:
            """Return logits of each next token."""
            x = self.tokens(tokens) + self.places(places)
            for layer in self.layers:
                x = layer(x)
            return self.output(self.norm(x))

    return Model()


def split(torch: Any, model: Any, mesh: Any) -> None:
    """Split the model over a mesh of one dimension."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    rows = {"input_layouts": Replicate(), "output_layouts": Shard(1)}
    parallelize_module(
        model,
        mesh,
        {
            "tokens": RowwiseParallel(**rows),
            "places": ColwiseParallel(output_layouts=Shard(0)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "norm1": SequenceParallel(),
                "norm2": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "attention.w[qkv]": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def train(torch: Any, device: str, steps: int, mesh: Any, compiled: Any = None) -> dict[str, Any]:
    """Train, and return the losses and the weights."""
    F = torch.nn.functional
    model = model_of(torch)
    # Numbers that neither library draws.
    for seed, (name, p) in enumerate(model.named_parameters()):
        numbers = [((i * 7919 + seed * 104729 + 13) % 997) / 997 - 0.5 for i in range(p.numel())]
        size, start = (0.1, 1.0) if "norm" in name and "weight" in name else (0.5, 0.0)
        with torch.no_grad():
            p.copy_(torch.tensor(numbers).reshape(p.shape) * size + start)
    model = model.to(device)
    count = BATCH * (LENGTH + 1)
    tokens = (
        torch.tensor([(i * 31 + 7) % VOCABULARY for i in range(count)])
        .reshape(BATCH, -1)
        .to(device)
    )
    places = torch.arange(LENGTH, device=device)
    if mesh is not None:
        split(torch, model, mesh)
        from torch.distributed.tensor.parallel import loss_parallel
    else:
        import contextlib

        loss_parallel = contextlib.nullcontext
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, eps=1e-3, foreach=False)
    losses = []

    def step() -> Any:
        """Take one step."""
        optimizer.zero_grad()
        logits = model(tokens[:, :-1], places)
        with loss_parallel():
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss, norm

    taken = step if compiled is None else compiled(step)
    for _ in range(steps):
        loss, norm = (x.full_tensor() if hasattr(x, "full_tensor") else x for x in taken())
        losses.append([loss.item(), norm.item()])
    weights = {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p)
        .detach()
        .cpu()
        .flatten()
        .tolist()
        for name, p in model.named_parameters()
    }
    return {"losses": losses, "weights": weights}


def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Return by how much two runs' losses and weights differ, relatively."""
    worst = max(
        math.dist(x, y) / math.hypot(*y) for x, y in zip(a["losses"], b["losses"], strict=True)
    )
    for name, values in b["weights"].items():
        # What has no gradient of its own (a bias before a softmax) is as small as its rounding.
        size = max(math.hypot(*values), 1e-2)
        worst = max(worst, math.dist(a["weights"][name], values) / size)
    return worst


def main(folder: str, library: str, device: str, steps: str, rank: str, ranks: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch

        webtorch.install_as_torch()
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(ranks)
    )
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device, (int(ranks),), mesh_dim_names=("tp",))
    found = train(torch, device, int(steps), mesh if int(ranks) > 1 else None)
    if library == "webtorch" and int(ranks) > 1 and device == "cpu":
        found["whole"] = distance(found, train(torch, device, int(steps), None))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
