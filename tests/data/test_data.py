"""Datasets, samplers, collating and the DataLoader, against PyTorch where it has no threads."""

from __future__ import annotations

import collections
import gc
import inspect
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as ref

import webtorch
from tests.nn.oracle import assert_same, to_web
from tests.patience import PATIENCE
from webtorch.utils import data

# Machines with fewer processors than these tests have workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Point = collections.namedtuple("Point", "x y")


class Numbers(data.Dataset):
    """The numbers below `count`, each read after `delay` seconds."""

    def __init__(self, count: int, delay: float = 0.0, broken: int = -1) -> None:
        self.count = count
        self.delay = delay
        self.broken = broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(self.delay * (index % 3))
        if index == self.broken:
            raise KeyError(f"number {index} is broken")
        return index


class Stream(data.IterableDataset):
    """The numbers from `start` to `end`, dealt out to the workers."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        if info is None:
            return iter(range(self.start, self.end))
        return iter(range(self.start + info.id, self.end, info.num_workers))

    def __len__(self) -> int:
        return self.end - self.start


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("webtorch-data")]


def wait_for_no_workers() -> None:
    for _ in range(6000):
        gc.collect()
        if not workers():
            return
        time.sleep(0.01)
    raise AssertionError(f"workers are left: {workers()}")


def tensors(device: str) -> tuple[list[torch.Tensor], list[Any]]:
    torch.manual_seed(0)
    theirs = [torch.randn(10, 3), torch.arange(10)]
    return theirs, [to_web(t, device) for t in theirs]


# -- datasets -------------------------------------------------------------------------------------


def test_tensor_dataset_gives_rows(device: str) -> None:
    theirs, ours = tensors(device)
    dataset, reference = data.TensorDataset(*ours), ref.TensorDataset(*theirs)
    assert len(dataset) == 10
    for index in (0, 3, -1, slice(2, 5)):
        assert_same(dataset[index], reference[index])
    with pytest.raises(AssertionError, match="Size mismatch"):
        data.TensorDataset(ours[0], ours[1][:5])


def test_concat_chain_stack_and_subset_find_their_examples() -> None:
    parts = [[1, 2, 3], [4], [5, 6]]
    joined, reference = data.ConcatDataset(parts), ref.ConcatDataset(parts)
    assert [joined[i] for i in range(-6, 6)] == [reference[i] for i in range(-6, 6)]
    assert len(joined) == 6
    assert joined.cumulative_sizes == reference.cumulative_sizes
    with pytest.raises(ValueError, match="absolute value"):
        joined[-7]
    both = Numbers(2) + Numbers(3)
    assert [both[i] for i in range(len(both))] == [0, 1, 0, 1, 2]
    chain = Stream(0, 3) + Stream(7, 9)
    assert list(chain) == [0, 1, 2, 7, 8]
    assert len(chain) == 5
    with pytest.raises(AssertionError, match="only supports"):
        list(data.ChainDataset([Stream(0, 1), Numbers(3)]))
    stacked = data.StackDataset(a=Numbers(3), b=[7, 8, 9])
    assert stacked[1] == {"a": 1, "b": 8}
    assert data.StackDataset(Numbers(3), [7, 8, 9])[2] == (2, 9)
    part = data.Subset(Numbers(9), [5, 1, 7])
    assert [part[i] for i in range(len(part))] == [5, 1, 7]
    assert part.__getitems__([2, 0]) == [7, 5]
    assert data.Subset(np.arange(9), [5, 1, 7])[[0, 2]].tolist() == [5, 7]


@pytest.mark.parametrize("lengths", [[3, 4, 3], [0.5, 0.3, 0.2], [0.33, 0.33, 0.34], [1.0]])
def test_random_split_deals_out_every_example_once(lengths: list[Any]) -> None:
    generator = webtorch.Generator().manual_seed(3)
    parts = data.random_split(Numbers(10), lengths, generator=generator)
    assert [len(p) for p in parts] == [len(p) for p in ref.random_split(range(10), lengths)]
    assert sorted(i for p in parts for i in p.indices) == list(range(10))
    again = data.random_split(Numbers(10), lengths, webtorch.Generator().manual_seed(3))
    assert [p.indices for p in again] == [p.indices for p in parts]


def test_random_split_refuses_what_does_not_add_up() -> None:
    with pytest.raises(ValueError, match="does not equal"):
        data.random_split(Numbers(10), [3, 4])
    with pytest.raises(ValueError, match="not between 0 and 1"):
        data.random_split(Numbers(10), [1.5, -0.5])
    with pytest.warns(UserWarning, match="Length of split at index 1 is 0"):
        data.random_split(Numbers(1), [0.6, 0.4])


# -- samplers -------------------------------------------------------------------------------------


def test_random_sampler_gives_permutations_that_a_seed_repeats() -> None:
    def drawn(seed: int, **kwargs: Any) -> list[int]:
        generator = webtorch.Generator().manual_seed(seed)
        return list(data.RandomSampler(range(20), generator=generator, **kwargs))

    assert sorted(drawn(1)) == list(range(20))
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != list(range(20))
    longer = drawn(1, num_samples=50)
    assert len(longer) == 50
    assert sorted(longer[20:40]) == list(range(20))
    assert longer[:20] != longer[20:40]
    replaced = drawn(1, replacement=True, num_samples=500)
    assert set(replaced) == set(range(20))
    assert len(replaced) == 500
    webtorch.manual_seed(5)
    first = list(data.RandomSampler(range(20)))
    webtorch.manual_seed(5)
    assert list(data.RandomSampler(range(20))) == first


def test_weighted_and_subset_samplers_draw_what_they_should() -> None:
    generator = webtorch.Generator().manual_seed(0)
    drawn = list(data.WeightedRandomSampler([0.0, 3.0, 1.0], 4000, generator=generator))
    counts = [drawn.count(i) for i in range(3)]
    assert counts[0] == 0
    assert abs(counts[1] / 4000 - 0.75) < 0.04
    once = list(data.WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False))
    assert sorted(once) == [0, 1, 2]
    subset = data.SubsetRandomSampler([5, 7, 9], generator)
    assert sorted(subset) == [5, 7, 9]
    assert len(subset) == 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4, 12, 15])
def test_batch_sampler_cuts_like_pytorch(size: int, drop_last: bool) -> None:
    ours = data.BatchSampler(data.SequentialSampler(range(12)), size, drop_last)
    theirs = ref.BatchSampler(ref.SequentialSampler(range(12)), size, drop_last)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


# -- collating ------------------------------------------------------------------------------------


def test_default_collate_puts_together_what_pytorch_does(device: str) -> None:
    x = torch.randn(2, 3)
    cases: list[tuple[Any, Any]] = [
        ([to_web(x, device), to_web(x + 1, device)], [x, x + 1]),
        ([1, 2, 3], None),
        ([True, False], None),
        ([1.5, 2.5], None),
        (["a", "b"], None),
        ([(1, 2.0, "a"), (3, 4.0, "b")], None),
        ([[1, 2], [3, 4]], None),
        ([{"a": 1, "b": [2.0]}, {"a": 3, "b": [4.0]}], None),
        ([Point(1, 2.0), Point(3, 4.0)], None),
        ([np.ones((2, 2), "float32"), np.zeros((2, 2), "float32")], None),
        ([np.float32(1.0), np.float32(2.0)], None),
        ([np.int64(1), np.int64(2)], None),
    ]
    for ours, theirs in cases:
        got = data.default_collate(ours)
        wanted = ref.default_collate(ours if theirs is None else theirs)
        assert type(got) is type(wanted) or isinstance(wanted, torch.Tensor)
        assert_same(got, wanted)


def test_default_collate_refuses_what_has_no_batch() -> None:
    with pytest.raises(TypeError, match="batch must contain tensors"):
        data.default_collate([object()])
    with pytest.raises(TypeError, match="batch must contain tensors"):
        data.default_collate([np.array(["a"]), np.array(["b"])])
    with pytest.raises(RuntimeError, match="equal size"):
        data.default_collate([[1, 2], [3]])


def test_default_convert_makes_tensors_of_arrays_only() -> None:
    got = data.default_convert({"a": np.arange(3), "b": [1, "x"], "c": (np.ones(2),)})
    assert_same(got["a"], torch.arange(3))
    assert got["b"] == [1, "x"]
    assert_same(got["c"][0], torch.ones(2, dtype=torch.float64))


# -- loader ---------------------------------------------------------------------------------------


@pytest.mark.covers("L8")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [3, 5, 20])
def test_loader_gives_the_batches_of_pytorch(
    batch_size: int, drop_last: bool, num_workers: int, device: str
) -> None:
    theirs, ours = tensors(device)
    options = {"batch_size": batch_size, "drop_last": drop_last}
    loader = data.DataLoader(data.TensorDataset(*ours), num_workers=num_workers, **options)
    reference = ref.DataLoader(ref.TensorDataset(*theirs), **options)
    assert len(loader) == len(reference)
    assert_same(list(loader), list(reference))
    part = data.Subset(data.TensorDataset(*ours), [7, 1, 2, 9])
    other = ref.Subset(ref.TensorDataset(*theirs), [7, 1, 2, 9])
    assert_same(
        list(data.DataLoader(part, num_workers=num_workers, **options)),
        list(ref.DataLoader(other, **options)),
    )


@pytest.mark.parametrize("num_workers", [0, 3])
def test_shuffled_epochs_differ_and_cover_everything(num_workers: int) -> None:
    def epochs(seed: int) -> list[list[int]]:
        generator = webtorch.Generator().manual_seed(seed)
        loader = data.DataLoader(
            Numbers(20), 4, shuffle=True, num_workers=num_workers, generator=generator
        )
        return [[i for batch in loader for i in batch.tolist()] for _ in range(2)]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert epochs(1) == [first, second]


def test_workers_keep_the_order_whatever_they_take() -> None:
    slow = data.DataLoader(Numbers(24, delay=0.002), 2, num_workers=3)
    assert [b.tolist() for b in slow] == [[i, i + 1] for i in range(0, 24, 2)]
    loose = data.DataLoader(Numbers(24, delay=0.002), 2, num_workers=3, in_order=False)
    assert sorted(i for b in loose for i in b.tolist()) == list(range(24))
    wait_for_no_workers()


class Marked(Numbers):
    """Numbers that come with a mark, which is an attribute."""

    mark = 0

    def set_mark(self, mark: int) -> None:
        self.mark = mark + 10

    def __getitem__(self, index: int) -> int:
        return self.mark


def test_each_worker_has_the_attributes_of_a_dataset_for_itself() -> None:
    marked = Marked(8)
    batches = data.DataLoader(marked, 2, num_workers=2, worker_init_fn=marked.set_mark)
    assert [b.tolist() for b in batches] == [[10, 10], [11, 11]] * 2
    assert marked.mark == 0
    once = iter(data.DataLoader(marked, 2, num_workers=2))
    marked.mark = 5
    assert [b.tolist() for b in once] == [[0, 0]] * 4


def test_workers_end_as_processes_do() -> None:
    batches = iter(data.DataLoader(Numbers(4), num_workers=2))
    threads = batches._workers
    assert [t.exitcode for t in threads] == [None, None]
    for thread in threads:
        thread.terminate()
        thread.join(PATIENCE)
    assert [t.exitcode for t in threads] == [0, 0]


@pytest.mark.filterwarnings("default:This DataLoader will create")
def test_more_workers_than_processors_are_warned_of() -> None:
    text = "excessive worker creation might get DataLoader running slow or even freeze"
    for made in (ref.DataLoader, data.DataLoader):
        with pytest.warns(UserWarning, match=text):
            made(Numbers(4), num_workers=1000)


def test_a_weighted_sampler_draws_when_the_first_is_asked_for() -> None:
    sampler = data.WeightedRandomSampler([1.0] * 9, 4)
    orders = iter(sampler), iter(sampler)
    drawn = []
    for order in orders:
        webtorch.manual_seed(3)
        drawn.append(list(order))
    assert drawn[0] == drawn[1]


def test_seeds_of_numpy_in_workers_are_pytorchs() -> None:
    from webtorch.data.workers import _generate_state

    theirs = ref._utils.worker._generate_state
    for seed, worker in ((13434589827475259383, 4), (5, 0)):
        assert _generate_state(seed, worker) == list(theirs(seed, worker))


def test_workers_read_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    class Meeting(Numbers):
        def __getitem__(self, index: int) -> int:
            together.wait()  # passes only when three workers stand here at once
            return index

    assert len(list(data.DataLoader(Meeting(6), num_workers=3))) == 6


def test_no_more_than_the_prefetch_factor_is_read_ahead() -> None:
    read: list[int] = []

    class Noting(Numbers):
        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    iterator = iter(data.DataLoader(Noting(50), num_workers=2, prefetch_factor=3))
    next(iterator)
    time.sleep(0.1)
    assert len(read) <= 2 * 3 + 1
    del iterator
    wait_for_no_workers()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_exception_of_the_dataset_is_raised_with_its_place(num_workers: int) -> None:
    loader = data.DataLoader(Numbers(10, broken=5), 2, num_workers=num_workers)
    seen = []
    with pytest.raises(KeyError, match="number 5 is broken") as caught:  # noqa: PT012
        for batch in loader:
            seen.append(batch.tolist())
    assert seen == [[0, 1], [2, 3]]
    if num_workers:
        assert "Caught KeyError in DataLoader worker thread" in str(caught.value)
        assert "__getitem__" in str(caught.value)
    wait_for_no_workers()


def test_worker_init_fn_runs_in_each_worker_and_its_failure_is_raised() -> None:
    ids: list[int] = []

    def init(worker: int) -> None:
        info = data.get_worker_info()
        assert info is not None
        assert (info.id, info.num_workers) == (worker, 2)
        ids.append(worker)

    assert len(list(data.DataLoader(Numbers(6), num_workers=2, worker_init_fn=init))) == 6
    assert sorted(ids) == [0, 1]
    assert data.get_worker_info() is None

    def fail(worker: int) -> None:
        raise ValueError("no such worker")

    with pytest.raises(ValueError, match="no such worker"):
        list(data.DataLoader(Numbers(6), num_workers=1, worker_init_fn=fail))


def test_timeout_raises() -> None:
    loader = data.DataLoader(Numbers(3, delay=0.3), num_workers=1, timeout=0.05)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.05 seconds"):
        list(loader)
    wait_for_no_workers()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_iterable_dataset_is_read_to_its_end(num_workers: int, drop_last: bool) -> None:
    loader = data.DataLoader(Stream(3, 20), 4, num_workers=num_workers, drop_last=drop_last)
    for _ in range(2):
        batches = [batch.tolist() for batch in loader]
        got = sorted(i for batch in batches for i in batch)
        if drop_last:
            assert all(len(batch) == 4 for batch in batches)
            assert set(got) <= set(range(3, 20))
        else:
            assert got == list(range(3, 20))
    assert len(loader) == (4 if drop_last else 5)
    assert list(data.DataLoader(Stream(0, 3), None, num_workers=num_workers)) == [0, 1, 2]


def test_workers_may_change_their_own_copy_of_an_iterable_dataset() -> None:
    class Plain(Stream):
        def __iter__(self) -> Any:
            return iter(range(self.start, self.end))

    def split(worker: int) -> None:
        info = data.get_worker_info()
        assert info is not None
        info.dataset.start, info.dataset.end = worker * 5, worker * 5 + 5

    dataset = Plain(0, 10)
    loader = data.DataLoader(dataset, None, num_workers=2, worker_init_fn=split)
    assert sorted(loader) == list(range(10))
    assert (dataset.start, dataset.end) == (0, 10)


def test_persistent_workers_stay_and_end_with_the_loader() -> None:
    loader = data.DataLoader(Numbers(9), 2, num_workers=2, persistent_workers=True)
    first = [b.tolist() for b in loader]
    kept = workers()
    assert len(kept) == 2
    iterator = iter(loader)
    next(iterator)
    del iterator  # an epoch that is left early does not disturb the next
    assert [b.tolist() for b in loader] == first
    assert workers() == kept
    del loader
    wait_for_no_workers()


def test_samplers_and_collate_fn_of_the_user_are_used() -> None:
    loader = data.DataLoader(Numbers(9), 2, sampler=[4, 2, 8], collate_fn=tuple)
    assert list(loader) == [(4, 2), (8,)]
    loader = data.DataLoader(Numbers(9), batch_sampler=[[1], [2, 3]], collate_fn=list)
    assert list(loader) == [[1], [2, 3]]
    assert len(loader) == 2
    assert loader.batch_size is None
    assert list(data.DataLoader(Numbers(3), None)) == [0, 1, 2]


ERRORS: dict[str, Any] = {
    "workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "prefetch": {"prefetch_factor": 2},
    "prefetch negative": {"num_workers": 1, "prefetch_factor": -2},
    "persistent": {"persistent_workers": True},
    "shuffle and sampler": {"shuffle": True, "sampler": [1]},
    "batch sampler": {"batch_sampler": [[1]], "drop_last": True},
    "batch size": {"batch_size": None, "drop_last": True},
    "batch size 0": {"batch_size": 0},
    "empty": {"dataset": [], "shuffle": True},
    "stream shuffle": {"dataset": "stream", "shuffle": True},
    "stream sampler": {"dataset": "stream", "sampler": [1]},
    "stream batches": {"dataset": "stream", "batch_sampler": [[1]]},
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    class TheirStream(ref.IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    options = dict(ERRORS[name])
    dataset = options.pop("dataset", [1, 2, 3])
    theirs, ours = dataset, dataset
    if dataset == "stream":
        theirs, ours = TheirStream(), Stream(0, 3)
    with pytest.raises(Exception) as expected:
        ref.DataLoader(theirs, **options)
    with pytest.raises(type(expected.value)) as actual:
        data.DataLoader(ours, **options)
    assert str(actual.value) == str(expected.value)


def test_attributes_that_made_the_loader_are_fixed() -> None:
    loader = data.DataLoader([1, 2])
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 2


@pytest.mark.parametrize("name", ["DataLoader", "BatchSampler", "RandomSampler", "Subset",
                                  "SubsetRandomSampler", "WeightedRandomSampler",
                                  "TensorDataset", "ConcatDataset"])  # fmt: skip
def test_constructor_takes_pytorch_arguments_with_pytorch_defaults(name: str) -> None:
    ours = inspect.signature(getattr(data, name).__init__).parameters
    theirs = inspect.signature(getattr(ref, name).__init__).parameters
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        assert ours[key].default == parameter.default, key
        assert ours[key].kind == parameter.kind, key


def test_the_sampler_of_several_processes_is_where_pytorch_has_it() -> None:
    from webtorch.utils.data.distributed import DistributedSampler

    assert webtorch.utils.data.distributed.DistributedSampler is DistributedSampler
    assert DistributedSampler is data.DistributedSampler
    items = list(range(7))
    for drop in (False, True):
        for rank in range(3):
            kinds = (DistributedSampler, torch.utils.data.distributed.DistributedSampler)
            ours, theirs = (
                list(kind(items, 3, rank, shuffle=False, drop_last=drop)) for kind in kinds
            )
            assert ours == theirs
