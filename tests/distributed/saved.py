"""Checkpoints of a sharded model, as a program of either library.

    python -m tests.distributed.saved FOLDER webtorch 0 2 save,go PLACE

Each rank writes into the folder what it found. What is done: "train" some steps, "save" (or "async") into PLACE, "load"
from there into another model that was trained otherwise, "full" gets the whole state as rank 0 has it and sets it from
there, "offload" does so with parts; both train between. At the end the model trains on: on a batch that is the same for
any number of processes.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.distributed.sharded import Either, _net, _shard, _weights


def _step(torch: Either, model: Either, optimizer: Either, number: int) -> None:
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    whole = torch.cos(torch.arange(48.0) * (number + 1)).reshape(8, 6)
    part = 8 // size
    optimizer.zero_grad()
    model(whole[part * rank : part * rank + part]).square().mean().backward()
    optimizer.step()


def run(torch: Either, ways: list[str], place: str) -> dict[str, Any]:
    """Return what is found."""
    checkpoint = import_module(f"{torch.__name__}.distributed.checkpoint")
    states = import_module(f"{torch.__name__}.distributed.checkpoint.state_dict")
    model = _shard(torch, _net(torch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-3)
    found: dict[str, Any] = {}
    options = states.StateDictOptions
    for way in ways:
        if way == "train":
            for number in range(3):
                _step(torch, model, optimizer, number)
        elif way in ("save", "async"):
            weights, moments = states.get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "note": {"step": 3, "text": "here"}}
            if way == "save":
                checkpoint.save(state, checkpoint_id=place)
            else:
                future = checkpoint.async_save(state, checkpoint_id=place)
                # What is trained meanwhile is not saved.
                before = _weights(torch, model)
                _step(torch, model, optimizer, 7)
                future.result()
                assert before != _weights(torch, model)
                checkpoint.load(state, checkpoint_id=place)
                states.set_state_dict(
                    model,
                    optimizer,
                    model_state_dict=state["model"],
                    optim_state_dict=state["optimizer"],
                )
        elif way == "load":
            _step(torch, model, optimizer, 9)
            weights, moments = states.get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "note": {"step": 0, "text": ""}}
            checkpoint.load(state, checkpoint_id=place)
            states.set_state_dict(
                model,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            found["note"] = state["note"]
        elif way == "full":
            whole = options(full_state_dict=True, cpu_offload=True)
            full = states.get_state_dict(model, optimizer, options=whole)
            found["names"] = sorted(full[0]), sorted(full[1].get("state", {}))
            # In the host's memory such a state shares step counts with the optimizer, on all processes alike.
            _step(torch, model, optimizer, 7)
            spread = options(full_state_dict=True, broadcast_from_rank0=True)
            states.set_model_state_dict(model, full[0], options=spread)
            states.set_optimizer_state_dict(model, optimizer, full[1], options=spread)
        elif way == "offload":
            parts = states.get_state_dict(model, optimizer, options=options(cpu_offload=True))
            _step(torch, model, optimizer, 8)
            states.set_state_dict(
                model, optimizer, model_state_dict=parts[0], optim_state_dict=parts[1]
            )
        elif way == "flat":
            flat = options(flatten_optimizer_state_dict=True)
            moments = states.get_optimizer_state_dict(model, optimizer, options=flat)
            found["flat"] = sorted(moments)
            states.set_optimizer_state_dict(model, optimizer, moments, options=flat)
    found["weights"] = _weights(torch, model)
    _step(torch, model, optimizer, 11)
    found["after"] = _weights(torch, model)
    return found


def main(folder: str, library: str, rank: str, size: str, ways: str, place: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch as torch
    else:
        import torch
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(size)
    )
    found = run(torch, ways.split(","), place)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
