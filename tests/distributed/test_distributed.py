"""webtorch.distributed against PyTorch's, in two processes each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
import webtorch.distributed as dist
from tests.distributed import started
from tests.distributed.features import FEATURES
from tests.distributed.models import KINDS, MODELS
from tests.distributed.ranks import NAMES, RANKS
from tests.patience import PATIENCE
from webtorch.distributed import shared, words
from webtorch.distributed.engine import engine
from webtorch.distributed.group import ProcessGroup
from webtorch_autoload.device.attempts import common_word


def _processes(library: str, device: str, ranks: int, *rest: str) -> list[dict[str, Any]]:
    return started.found("ranks", ranks, lambda rank: (library, device, rank, *rest))


@cache
def _found(library: str, device: str) -> list[dict[str, Any]]:
    return _processes(library, device, RANKS)


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_collectives_are_pytorchs(device: str) -> None:
    for ours, theirs in zip(_found("webtorch", device), _found("torch", "cpu"), strict=True):
        for name in NAMES:
            assert ours[name] == theirs[name], name
            assert ours[f"{name}, shared"] == theirs[name], name
        # Of floating point, and sums, parts or copies.
        assert ours["calls"] >= 6


@pytest.mark.parametrize("name", FEATURES)
def test_what_ddp_can_is_pytorchs(name: str) -> None:
    for ours, theirs in zip(_found("webtorch", "cpu"), _found("torch", "cpu"), strict=True):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5)


def test_mixed_precision_is_a_model_of_the_lower_type() -> None:
    # A mean that travels as bfloat16 is rounded.
    for ours in _found("webtorch", "cpu"):
        assert max(ours["mixed"]) < 1e-2


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_models_train_as_in_one_process(device: str) -> None:
    for ours in _found("webtorch", device):
        for name in MODELS:
            assert ours[name] < 1e-5, name
        for kind in KINDS if device == "cpu" else ():
            assert ours[kind] < (3e-3 if kind == "bfloat16" else 1e-5), kind


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "ranks", "steps"), [("cpu", 2, 50), ("cpu", 4, 50), ("webgpu", 4, 3)]
)
def test_many_steps_are_those_of_one_process(device: str, ranks: int, steps: int) -> None:
    for ours in _processes("webtorch", device, ranks, str(ranks), str(steps)):
        assert max(ours[name] for name in MODELS) < 1e-5, ours


def test_sums_of_three_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LEAST", 4)
    monkeypatch.setattr(shared, "_IN_PARTS", 16)
    added: list[int] = []
    add = shared.Exchange.add

    def counted(self: shared.Exchange, turn: shared.Turn) -> None:
        """Count it, and add up."""
        added.append(turn.elements)
        add(self, turn)

    monkeypatch.setattr(shared.Exchange, "add", counted)
    store, ranks = engine().c10d.HashStore(), range(3)

    def train(rank: int) -> list[Any]:
        """Be one of three: sums in parts, among others, are waited for when all have begun."""
        group = ProcessGroup(store, ranks, rank, "many", timedelta(seconds=PATIENCE))
        given = [torch.arange(float(n)) + rank for n in (2, 150, 3, 300)]
        given.append(given[1].to(torch.bfloat16))
        part = torch.empty(100)
        flags = torch.ones(2, dtype=torch.int32)
        works = [dist.all_reduce(x, group=group, async_op=True) for x in (*given, flags)]
        works.append(dist.reduce_scatter_tensor(part, given[3] + 0, group=group, async_op=True))
        mean = given[3] / 3
        for work in works:
            assert work is not None
            work.wait()
        late = given[1] * 2
        found = [x.tolist() for x in (*given, late, flags, part, mean)]
        shared = group.lane().shared
        assert shared is not None
        before = len(shared._places)
        for _ in range(12):
            many = torch.ones(500)
            dist.all_reduce(many, group=group)
            assert many[-1].item() == 3
        # Each is read before the next one is called, so two of them take turns, or three where a rank is late.
        assert len(shared._places) - before <= 3
        group.close()
        return found

    with ThreadPoolExecutor(3) as threads:
        for rank, found in enumerate(threads.map(train, ranks)):
            sums = [[3.0 * i + 3 for i in range(n)] for n in (2, 150, 3, 300)]
            mean = [(i + rank) / 3 for i in range(300)]
            assert found[:4] == sums
            assert found[4] == torch.tensor(sums[1]).to(torch.bfloat16).tolist()
            part = sums[3][100 * rank : 100 * rank + 100]
            assert found[5:-1] == [[2 * x for x in sums[1]], [3, 3], part]
            assert found[-1] == pytest.approx(mean)
    assert sorted(added) == [150] * 6 + [300] * 6 + [500] * 36


@contextmanager
def _groups(name: str) -> Iterator[list[ProcessGroup]]:
    """The groups of two ranks, as threads of this process."""
    store, long = engine().c10d.HashStore(), timedelta(seconds=PATIENCE)
    with ThreadPoolExecutor(2) as threads:
        make = partial(ProcessGroup, store, range(2), name=name, timeout=long)
        groups = list(threads.map(lambda rank: make(rank=rank), range(2)))
        yield groups
        for group in groups:
            group.close()


def _errors(calls: Sequence[Callable[[], object]]) -> list[str]:
    """Return the errors of calls that ranks make together."""

    def error(call: Callable[[], object]) -> str:
        with pytest.raises(RuntimeError) as found:
            call()
        return str(found.value)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(error, calls))


def test_ranks_that_call_different_collectives_are_told_which() -> None:
    large = [torch.ones(5000) for _ in range(2)]

    def both(groups: list[ProcessGroup], *calls: Callable[..., object]) -> list[str]:
        """Let each rank call one."""

        def run(rank: int) -> None:
            work = calls[rank](large[rank], group=groups[rank], async_op=True)
            work.wait(timedelta(seconds=PATIENCE))

        return _errors([partial(run, rank) for rank in range(2)])

    with _groups("kinds") as groups:
        found = both(groups, dist.all_reduce, partial(dist.broadcast, src=0))
        assert "rank 1 calls broadcast from rank 0 with float32[5000]" in found[0]
        assert "broadcast of torch.float32 (5000,) on rank 1 of 2" in found[1]
        assert "rank 0 calls allreduce of SUM with float32[5000]" in found[1]
    with _groups("reductions") as groups:
        mean = partial(dist.all_reduce, op=dist.ReduceOp.AVG)
        assert all("allreduce of AVG" in each for each in both(groups, mean, dist.all_reduce))
    with _groups("roots") as groups:
        found = both(groups, partial(dist.broadcast, src=1), partial(dist.broadcast, src=0))
        assert all("rank 0 calls broadcast from rank 1" in each for each in found)


def test_pytorch_compares_what_ranks_call_where_it_is_asked_to() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch's own check, of what is sent on connections of ours."""
    c10d = engine().c10d
    before = c10d.get_debug_level()
    c10d.set_debug_level(c10d.DebugLevel.DETAIL)
    try:
        with _groups("checked") as groups:
            given = [torch.ones(3), torch.ones(3, dtype=torch.int32)]

            def run(rank: int) -> None:
                work = dist.all_reduce(given[rank], group=groups[rank], async_op=True)
                assert work is not None
                work.wait(timedelta(seconds=PATIENCE))

            found = _errors([partial(run, rank) for rank in range(2)])
            assert all("Detected mismatch between collectives on ranks" in each for each in found)
            # Large ones, too, which go through shared memory otherwise.
            given = [torch.ones(5000), torch.ones(5000)]
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(run, range(2)))
            assert given[0][0].item() == 2
    finally:
        c10d.set_debug_level(before)


def test_who_does_not_come_to_the_first_collective_is_named() -> None:
    with _groups("absent") as groups:
        groups[0].lane()._timeout = timedelta(seconds=1)
        x = torch.ones(3)
        dist.all_reduce(x, group=groups[0])
        with pytest.raises(RuntimeError) as found:
            x.sum().item()
    assert "all_reduce of torch.float32 (3,) on rank 0 of 2" in str(found.value)
    assert "No word from rank 1: it has ended, hangs" in str(found.value)


def test_a_first_collective_comes_while_others_wait_in_the_store() -> None:
    """As where one rank makes another group meanwhile: who waits in a TCPStore has its connection for itself."""
    c10d, long = engine().c10d, timedelta(seconds=PATIENCE)
    first = c10d.TCPStore("127.0.0.1", 0, 2, True, long, wait_for_workers=False)
    stores = [first, c10d.TCPStore("127.0.0.1", first.port, 2, False, long)]

    def make(rank: int) -> ProcessGroup:
        return ProcessGroup(stores[rank], range(2), rank, "store", long)

    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(make, range(2)))
        waits = [threads.submit(store.get, "later") for store in stores]
        time.sleep(0.1)
        given = [torch.ones(3), torch.ones(3)]
        works = [
            dist.all_reduce(x, group=g, async_op=True) for x, g in zip(given, groups, strict=True)
        ]
        for work in works:
            assert work is not None
            work.wait(long)
        assert [x.tolist() for x in given] == [[2, 2, 2]] * 2
        assert not any(wait.done() for wait in waits)
        first.clone().set("later", "")
        for wait in waits:
            wait.result()
    for group in groups:
        group.close()


def test_a_program_ends_without_threads_of_the_connection_for_tensors(tmp_path: Path) -> None:
    program = f"""
import atexit, os, pathlib
count = lambda: sum("gloo_runloop" in (t / "comm").read_text() for t in pathlib.Path("/proc/self/task").iterdir())
atexit.register(lambda: print(count()))
import webtorch as torch
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
x = torch.ones(3)
torch.distributed.all_reduce(x)
assert x.tolist() == [1, 1, 1]
print(count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    # The two of the group itself are left.
    first, last = map(int, done.stdout.split())
    assert first > last == 2


def test_half_a_word_is_none_and_who_waits_is_woken() -> None:
    memory = [words.Memory(words.UNIT) for _ in range(2)]
    mine, other = (words.Words(rank, [m.view for m in memory]) for rank in range(2))
    told = [5, *range(words.HEADER - 1)]
    assert other.said(0, 5) is None and other.added(0, 5) is None
    bell = other.bell(0)
    assert not other.sleep(0, bell, 0.001)
    with ThreadPoolExecutor(1) as thread:
        woken = thread.submit(other.sleep, 0, bell, PATIENCE)
        mine.say(told)
        assert woken.result() and other.bell(0) == bell + 1
    # It does not sleep on what is old.
    assert other.sleep(0, bell, PATIENCE)
    assert other.said(0, 5) == told and other.said(0, 5 + 64) is None
    mine.say_added(5)
    assert other.added(0, 5) and other.added(1, 5) is None
    # As on its way: the number is there, and what follows it is not.
    at = memory[0].view.cast("q").tolist().index(5)
    for hidden in range(1, words.HEADER + 1):
        torn = memory[0].view.cast("q")
        torn[at + hidden] += 1
        assert other.said(0, 5) is None
        torn[at + hidden] -= 1


def test_what_processes_before_a_restart_have_said_is_not_read() -> None:
    kept, words, long = engine().c10d.HashStore(), [], timedelta(seconds=PATIENCE)
    for _ in range(3):
        with ThreadPoolExecutor(2) as threads:
            others = [threads.submit(common_word, kept, rank, 3, long) for rank in (1, 2)]
            time.sleep(0.05)
            words.append(common_word(kept, 0, 3, long))
            assert [other.result() for other in others] == words[-1:] * 2
    assert len(set(words)) == 3
    for rank in (0, 1):
        with pytest.raises(RuntimeError, match="not all processes of this attempt"):
            common_word(kept, rank, 3, timedelta())
    # The first one has not said anything yet, and the store would wait for that.
    empty = engine().c10d.HashStore()
    empty.set_timeout(timedelta(seconds=1))
    with pytest.raises(RuntimeError, match="not all processes of this attempt"):
        common_word(empty, 1, 3, timedelta())
