"""Workers of the DataLoader that are processes."""

from __future__ import annotations

import gc
import os
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webtorch
from webtorch.utils import data

Pair = namedtuple("Pair", "x y")
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are started by fork here"),
    # Python 3.12 warns of forks beside threads; workers use none of them.
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]


class Rows(data.Dataset):
    """Tensors, arrays, strings and named tuples, with the process that made them."""

    def __init__(self, count: int, broken: int = -1, slow: int = -1, deadly: int = -1) -> None:
        self.count, self.broken, self.slow, self.deadly = count, broken, slow, deadly

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == self.broken:
            raise KeyError(f"row {i} is broken")
        if i == self.slow:
            time.sleep(2)
        if i == self.deadly:
            os._exit(3)
        x = webtorch.arange(3, dtype=webtorch.float32) * i
        return {
            "x": (x @ x.reshape(3, 1)).sin(), "n": np.full(2, i), "name": f"row {i}",
            "pid": os.getpid(), "pair": Pair(float(i), [x.half(), i > 2]),
        }  # fmt: skip


class Stream(data.IterableDataset):
    def __iter__(self) -> Any:
        info = data.get_worker_info()
        assert info is not None and info.dataset is self
        return iter(range(info.id, 11, info.num_workers))


def loader(dataset: Any, batch_size: int = 2, num_workers: int = 2, **options: Any) -> Any:
    return data.DataLoader(
        dataset, batch_size, num_workers=num_workers, multiprocessing_context="fork", **options
    )


def alive(pids: Any) -> list[int]:
    found = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            found.append(pid)
        except ProcessLookupError:
            continue
    return found


def test_batches_are_those_of_this_process_and_come_from_others() -> None:
    here = list(data.DataLoader(Rows(7), 2))
    there = list(loader(Rows(7)))
    assert len(here) == len(there) == 4
    pids = {int(p) for b in there for p in b.pop("pid")}
    assert len(pids) == 2 and os.getpid() not in pids
    for a, b in zip(here, there, strict=True):
        a.pop("pid")
        assert a.keys() == b.keys() and a["name"] == b["name"]
        assert type(b["pair"]) is Pair and b["pair"].y[0].dtype is webtorch.float16
        for key in ("x", "n"):
            assert a[key].dtype is b[key].dtype and a[key].tolist() == b[key].tolist()
        assert a["pair"].y[1].tolist() == b["pair"].y[1].tolist()
    assert alive(pids) == []


def test_workers_free_nothing_of_the_parent_s(tmp_path: Path) -> None:
    class Left:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    class Collecting(Rows):
        def __getitem__(self, i: int) -> Any:
            return gc.collect()

    gc.collect()
    gc.disable()
    try:
        Left()
        list(loader(Collecting(4)))
        assert not list(tmp_path.iterdir())
    finally:
        gc.enable()
    gc.collect()
    assert [p.name for p in tmp_path.iterdir()] == [str(os.getpid())]


def test_persistent_workers_seeds_and_shuffling() -> None:
    class Random(Rows):
        def __getitem__(self, i: int) -> Any:
            return os.getpid(), int(webtorch.randint(0, 2**31 - 1, ()).item())

    generator = webtorch.Generator().manual_seed(3)
    batches = loader(Random(8), shuffle=True, persistent_workers=True, generator=generator)
    second = {int(p[0]) for p, _ in batches}
    assert {int(p[0]) for p, _ in batches} == second and len(second) == 2
    drawn = [int(v) for _, x in batches for v in x]
    assert len(set(drawn)) == len(drawn)
    del batches
    assert alive(second) == []


def test_an_iterable_dataset_is_dealt_out() -> None:
    found = [int(v) for b in loader(Stream(), 2) for v in b]
    assert sorted(found) == list(range(11))


def test_failures_come_back_in_words() -> None:
    with pytest.raises(KeyError) as caught:
        list(loader(Rows(6, broken=4)))
    assert "Caught KeyError in DataLoader worker process" in str(caught.value)
    assert "row 4 is broken" in str(caught.value) and "__getitem__" in str(caught.value)

    def refuse(worker: int) -> None:
        raise ValueError("no such worker")

    with pytest.raises(ValueError, match="no such worker"):
        list(loader(Rows(2), worker_init_fn=refuse))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        list(loader(Rows(4, slow=0), timeout=0.3))
    with pytest.raises(RuntimeError, match=r"pid\(s\) \d+\) exited unexpectedly \(exit code 3\)"):
        list(loader(Rows(4, deadly=1)))
    with pytest.raises(ValueError, match="valid start method"):
        list(data.DataLoader(Rows(2), num_workers=1, multiprocessing_context="threads"))

    class Lambdas(Rows):
        def __getitem__(self, i: int) -> Any:
            return lambda: i

    with pytest.raises(RuntimeError, match="pickle"):
        list(loader(Lambdas(2), collate_fn=list))


def test_an_early_break_ends_the_workers() -> None:
    iterator = iter(loader(Rows(50), prefetch_factor=3))
    pids = {int(p) for p in next(iterator)["pid"]} | {int(p) for p in next(iterator)["pid"]}
    assert len(pids) == 2
    del iterator
    assert alive(pids) == []


class Held(data.Dataset):
    """A tensor that the dataset holds, and what a worker's init function set."""

    def __init__(self, x: webtorch.Tensor) -> None:
        self.x, self.added = x, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + self.added, os.getpid()


def add_hundred(worker: int) -> None:
    info = data.get_worker_info()
    assert info is not None and info.id == worker
    info.dataset.added = 100


def in_tuples(rows: list[Any]) -> Any:
    return webtorch.stack([x for x, _ in rows]), rows[0][1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_not_forked_from_this_one(method: str) -> None:
    x = webtorch.arange(12.0).reshape(6, 2) * 2
    batches = data.DataLoader(
        Held(x), 2, num_workers=2, multiprocessing_context=method, worker_init_fn=add_hundred,
        collate_fn=in_tuples, persistent_workers=True, shuffle=True,
    )  # fmt: skip
    pids = set()
    for _ in range(2):
        found = []
        for rows, pid in batches:
            found += rows.tolist()
            pids.add(pid)
            # Longer than a worker looks for its parent.
            time.sleep(0.5)
        assert sorted(found) == (x + 100).tolist()
    assert len(pids) == 2 and os.getpid() not in pids
    with pytest.raises(KeyError, match="row 1 is broken"):
        list(data.DataLoader(Rows(4, broken=1), 2, num_workers=1, multiprocessing_context=method))
    del batches
    assert alive(pids) == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_is_named_when_the_workers_start(method: str) -> None:
    class Local(Rows):
        pass

    with pytest.raises((AttributeError, TypeError, RuntimeError), match="pickle"):
        list(data.DataLoader(Local(2), num_workers=1, multiprocessing_context=method))
