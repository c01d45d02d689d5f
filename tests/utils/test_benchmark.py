"""webtorch.utils.benchmark: what it measures, and what its tables say, beside PyTorch's."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest
import torch.utils.benchmark as theirs

import webtorch
from webtorch.utils import benchmark


def _measurements(library, times):
    """Measurements of given times, which both libraries tell about."""
    return [
        library.Measurement(
            4,
            # Of a block of four runs.
            [4 * t for t in raw],
            library.TaskSpec(f"f({row})", "pass", "", "products", row, column, None, threads),
        )
        for (row, column, threads), raw in times.items()
    ]


TIMES = {
    ("64 x 64", "plain", 1): [1.01e-5, 1.0e-5, 1.02e-5],
    ("64 x 64", "fused", 1): [4.1e-6, 4.2e-6, 4.0e-6],
    ("512 x 512", "plain", 1): [2.51e-3, 2.5e-3, 2.52e-3],
    ("512 x 512", "fused", 1): [1.3e-3, 1.31e-3, 1.29e-3],
    ("512 x 512", "plain", 2): [1.4e-3, 1.41e-3, 1.39e-3],
}


def test_numbers_are_pytorchs():
    for here, there in zip(
        _measurements(benchmark, TIMES), _measurements(theirs, TIMES), strict=True
    ):
        for name in ("median", "mean", "iqr"):
            assert getattr(here, name) == pytest.approx(getattr(there, name), rel=1e-9)
        for name in (
            "times",
            "title",
            "as_row_name",
            "has_warnings",
            "num_threads",
            "stmt",
            "label",
        ):
            assert getattr(here, name) == getattr(there, name)
        assert here.meets_confidence(0.01) == there.meets_confidence(0.01)
    for t in (3e-10, 2e-9, 5e-6, 1e-3, 0.2, 5.0, 500.0):
        assert benchmark.select_unit(t)[1] <= max(t, 1e-9)
    assert benchmark.trim_sigfig(123456.0, 3) == theirs.trim_sigfig(123456.0, 3)
    assert benchmark.unit_to_english("us") == theirs.unit_to_english("us")


def test_merging_joins_the_times_of_one_task():
    twice = [*_measurements(benchmark, TIMES), *_measurements(benchmark, TIMES)]
    merged = benchmark.Measurement.merge(twice)
    assert len(merged) == len(TIMES)
    assert all(len(m.times) == 6 for m in merged)
    again = pickle.loads(pickle.dumps(merged[0]))
    assert again.times == merged[0].times and again.task_spec == merged[0].task_spec


def test_a_table_holds_what_pytorchs_does():
    here = benchmark.Compare(_measurements(benchmark, TIMES))
    there = theirs.Compare(_measurements(theirs, TIMES))

    def words(text):
        return re.findall(r"[\w.()]+", re.sub(r"-+", " ", text).replace("threads", "thread"))

    assert words(str(here)) == words(str(there))
    here.colorize()
    assert "\033[92m" in str(here)
    with pytest.raises(ValueError, match="Expected an instance of `Measurement`"):
        here.extend_results([3])


def test_each_run_is_computed_though_nobody_reads_it(device):
    x = webtorch.ones(64, 64, device=device)
    runtime = x._storage.runtime
    for stmt in ("x @ x", "y = x + 1", "for _ in range(2):\n    y = x * 2"):
        timer = benchmark.Timer(stmt, globals={"x": x})
        timer.timeit(1)
        before = runtime.counters.realized
        timer.timeit(7)
        assert runtime.counters.realized - before >= 7


def test_what_takes_longer_is_said_to_take_longer():
    slow = benchmark.Timer("sleep(0.002)", "from time import sleep", label="a").timeit(5)
    assert slow.median >= 0.002
    counts = []
    fast = benchmark.Timer("pass").blocked_autorange(
        lambda n, t: counts.append((n, t)), min_run_time=0.02
    )
    assert fast.median < slow.median
    assert [n * 0 + t for n, t in counts] == fast.raw_times
    # Times that never settle, of 1 to 5 s by a clock that goes on each time it is asked.
    clock = itertools.accumulate(itertools.cycle([1.0, 5.0, 3.0])).__next__
    unsettled = benchmark.Timer("pass", timer=clock).adaptive_autorange(max_run_time=20.0)
    assert 20 <= sum(unsettled.raw_times) < 25
    assert "5 runs" in repr(slow) and repr(slow).splitlines()[1] == "a"


def test_threads_are_set_for_the_time_of_a_measurement():
    seen = []
    before = webtorch.get_num_threads()
    benchmark.Timer(
        "seen.append(torch.get_num_threads())", globals={"seen": seen}, num_threads=2
    ).timeit(1)
    assert set(seen) == {2}
    assert webtorch.get_num_threads() == before


def test_what_is_refused_says_what_to_use():
    with pytest.raises(ValueError, match="statements are Python here"):
        benchmark.Timer("int x = 1;", language="c++")
    with pytest.raises(ValueError, match="moved to `setup`"):
        benchmark.Timer("x", global_setup="#include <vector>")
    with pytest.raises(NotImplementedError, match=r"webtorch\.profile"):
        benchmark.Timer("x").collect_callgrind()
    with pytest.raises(NotImplementedError, match="blocked_autorange"):
        benchmark.Timer("x").repeat()
