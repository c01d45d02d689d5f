"""`fully_shard` against PyTorch's, in two and four processes each."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

import webtorch as torch
from tests.distributed import started
from tests.distributed.models import MODELS
from tests.distributed.sharded import COMPILED, FOUR, TWO
from webtorch.distributed.fsdp import FullyShardedDataParallel
from webtorch.tensors.storage import Refilled, held


def _processes(library: str, device: str, ranks: int, *rest: str) -> list[dict[str, Any]]:
    # PyTorch shards on its accelerator, which our device would be.
    return started.found(
        "sharded", ranks, lambda rank: (library, device, rank, ranks, *rest),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )  # fmt: skip


@cache
def _found(library: str, ranks: int, device: str = "cpu") -> list[dict[str, Any]]:
    return _processes(library, device, ranks)


def _check(name: str, ours: list[Any], theirs: list[Any]) -> None:
    if name == "errors":
        assert ours == theirs
    elif "mixed" in name or name == "autocast":
        # Of 16 bits.
        assert ours == pytest.approx(theirs, rel=1e-2, abs=5e-3)
    else:
        assert ours == pytest.approx(theirs, rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("name", TWO)
def test_two_processes_are_pytorchs(name: str) -> None:
    for ours, theirs in zip(_found("webtorch", 2), _found("torch", 2), strict=True):
        _check(name, ours[name], theirs[name])


@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_functions_give_the_same(kind: str) -> None:
    for found in _found("webtorch", 2):
        _check(kind, found[f"compiled: {kind}"], found["plain"])


@pytest.mark.long
@pytest.mark.parametrize("name", FOUR)
def test_four_processes_are_pytorchs(name: str) -> None:
    for ours, theirs in zip(_found("webtorch", 4), _found("torch", 4), strict=True):
        _check(name, ours[name], theirs[name])


def test_a_graphics_card_gives_what_the_cpu_gives() -> None:
    for ours, theirs in zip(_found("webtorch", 2, "webgpu"), _found("torch", 2), strict=True):
        assert ours["plain"] == pytest.approx(theirs["plain"], rel=1e-5, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "ranks", "steps"),
    [("cpu", 1, 50), ("cpu", 2, 50), ("cpu", 4, 50), ("webgpu", 2, 3)],
)
def test_models_train_as_in_one_process(device: str, ranks: int, steps: int) -> None:
    for ours in _processes("webtorch", device, ranks, str(steps)):
        assert max(ours[name] for name in ours) < 1e-5, ours
        assert set(MODELS) <= set(ours)


def test_the_older_ways_name_the_new_one() -> None:
    with pytest.raises(NotImplementedError, match="fully_shard"):
        FullyShardedDataParallel(torch.nn.Linear(2, 2))


def test_a_value_does_not_go_while_another_thread_goes_through_what_is_pending() -> None:
    """As the thread of `async_save` does while a module lets go of its parameters."""
    x = torch.ones(4)
    runtime = x._storage.runtime
    storage = Refilled(x._storage.node, runtime)
    storage.fill((torch.ones(4) * 3)._storage.node)
    with ThreadPoolExecutor(1) as threads:
        with runtime.lock:
            gone = threads.submit(storage.empty)
            time.sleep(0.05)
            assert held(storage) is not None
        gone.result()
    assert held(storage) is None
    assert all(r() is not storage for r in runtime.pending)
