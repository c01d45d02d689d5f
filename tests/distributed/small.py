"""Small sums, which their callers settle, and buckets: what a rank finds, on either face.

    python -m tests.distributed.small STORE LIBRARY DEVICE

RANK and WORLD_SIZE say which of two it is.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from webtorch.distributed import calls


def _lane(library: str, dist: Any) -> calls.Lane:
    if library == "webtorch":
        lane: calls.Lane = dist.group.WORLD.lane()
        return lane
    from webtorch.pytorch import distributed

    return distributed._lane(dist.group.WORLD)


def _are_settled_by_callers(torch: Any, device: str, lane: calls.Lane) -> None:
    """No thread is woken, and nothing is noted of a tensor that is sent again and again but once."""
    from webtorch.runtime.realize import open_runtimes

    dist, urge = torch.distributed, lane.urge
    for elements in (3, 6000):
        x = torch.ones(elements, device=device)
        dist.all_reduce(x)
        assert x[:2].tolist() == [2.0, 2.0]
        lane.urge = MagicMock(wraps=urge)  # type: ignore[method-assign]
        for _ in range(30):
            dist.all_reduce(x.fill_(1.0))
            assert x[:2].tolist() == [2.0, 2.0]
            dist.all_reduce(x)
            assert x[:2].tolist() == [4.0, 4.0]
        assert not lane.urge.call_count
        lane.urge = urge  # type: ignore[method-assign]
    assert max(len(runtime.pending) for runtime in open_runtimes()) < 30


def _may_be_many(torch: Any, device: str, rank: int) -> None:
    """Sums that nobody waits for leave who calls them free, to send what another one waits for first."""
    dist = torch.distributed
    values = [torch.full((5000,), float(n), device=device) for n in range(24)]
    word = torch.tensor([7.0], device=device)
    if rank:
        dist.recv(word, 0)
    works = [dist.all_reduce(x, async_op=True) for x in values]
    if not rank:
        dist.send(word, 1)
    while not works[-1].is_completed():
        time.sleep(0.01)
    for work in works:
        work.wait()
    assert [x[-1].item() for x in values] == [2.0 * n for n in range(24)]


def _are_interrupted(torch: Any, device: str, rank: int, folder: Path) -> None:
    """Ctrl+C reaches who waits, and who waits again gets the sum."""
    dist = torch.distributed
    for elements in (3, 6000):
        x, told = torch.ones(elements, device=device), folder / f"interrupted {elements}"
        dist.barrier()
        if rank:
            _wait_for(told.exists)
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                x.tolist()
            except KeyboardInterrupt:
                told.touch()
            assert told.exists()
        assert x[:2].tolist() == [2.0, 2.0]


def _end_at_once(torch: Any, device: str, rank: int, folder: Path) -> None:
    """Who is interrupted while it and its threads wait for one that hangs ends: the other one waits for that."""
    dist, named = torch.distributed, folder / "process"
    xs = [torch.ones(elements, device=device) for elements in (6000, 600_000)]
    for x in xs:
        dist.all_reduce(x)
        assert x[0].item() == 2.0
    dist.barrier()
    if rank:
        _wait_for(lambda: named.exists() and bool(named.read_text()))
        _wait_for(lambda: not Path("/proc", named.read_text()).exists())
        os._exit(0)
    named.write_text(str(os.getpid()))
    # It is called when threads have ended.
    atexit.register(os._exit, 0)
    for x in xs:
        dist.all_reduce(x)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    xs[1].tolist()


def _wait_for(what: Callable[[], bool]) -> None:
    while not what():
        time.sleep(0.01)


def _have_buckets(torch: Any, device: str, lane: calls.Lane) -> None:
    """Gradients of 16 MiB travel in eight buckets and a first one, where processes share no memory."""
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(16)]
    net = torch.nn.Sequential(*layers).to(device)
    model = torch.nn.parallel.DistributedDataParallel(net)
    sizes: list[int] = []

    def send(bucket: Any) -> Any:
        sizes.append(bucket.buffer().nbytes >> 20)
        coming = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return coming.then(lambda found: found.value()[0])

    # PyTorch refuses annotations that are not its own.
    model.register_comm_hook(None, lambda state, bucket: send(bucket))
    for _ in range(3):
        sizes.clear()
        model(torch.ones(2, 512, device=device)).sum().backward()
    expected = [1, 15] if lane.shared is not None else [1, 2, 2, 2, 2, 2, 2, 2, 1]
    assert sizes == expected, sizes


def main(store: str, library: str, device: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch as torch
    else:
        import torch
    dist: Any = torch.distributed
    folder, rank = Path(store).parent, int(os.environ["RANK"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    # The first call finds out whether they share memory.
    dist.all_reduce(torch.ones(1 << 14, device=device))
    lane = _lane(library, dist)
    _are_settled_by_callers(torch, device, lane)
    _may_be_many(torch, device, rank)
    _have_buckets(torch, device, lane)
    _are_interrupted(torch, device, rank, folder)
    if lane.shared is not None:
        _end_at_once(torch, device, rank, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
