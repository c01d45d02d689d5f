"""Timer: how long a statement takes, with its results computed. May import floors 0 to 5."""

from __future__ import annotations

import ast
import enum
import timeit
from collections.abc import Callable

from webtorch import webgpu
from webtorch.functions import public as webtorch
from webtorch.runtime.realize import open_runtimes
from webtorch.utils.benchmark.measurement import Measurement, TaskSpec


class Language(enum.Enum):
    """The language of a statement. PyTorch's other one, C++, is not here."""

    PYTHON = 0


def timer() -> float:
    """Return the time in seconds, once every device has done what it was given."""
    _compute()
    for runtime in open_runtimes():
        if runtime.kind == "webgpu":
            webgpu.synchronize()
            break
    return timeit.default_timer()


def _compute() -> None:
    """Have what is recorded and alive computed, on each device: a run that is not read is a run too."""
    for runtime in open_runtimes():
        if runtime.pending:
            runtime.realize()


def _computed(stmt: str) -> str:
    """Return a statement that keeps its result until it is computed: what nobody holds never is."""
    tree = ast.parse(stmt)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        kept = ast.Assign([ast.Name("_webtorch_kept", ast.Store())], last.value)
        tree.body[-1] = ast.copy_location(kept, last)
    tree.body.append(ast.parse("_webtorch_compute()").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


class Timer:
    """Measures a statement, as Python's `timeit.Timer` does, on `num_threads` threads.

    Each run's results are computed before the next one, also those that the statement does not keep, and
    times are taken when the devices have done their work. A first run, which compiles, is not counted.
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Callable[[], float] = timer,
        globals: dict[str, object] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Language | str = Language.PYTHON,
    ) -> None:
        """Take a statement and what is run before it; the labels are its places in a table."""
        if language not in (Language.PYTHON, "py", "python"):
            raise ValueError(
                f"Timer: language={language!r}: statements are Python here; PyTorch compiles those in C++"
            )
        if global_setup:
            raise ValueError(
                f"global_setup is C++ only, got `{global_setup}`. Most likely this code can simply be moved to "
                "`setup`."
            )
        stmt, setup = _dedented(stmt), _dedented(setup)
        self._globals = {"torch": webtorch, **(globals or {}), "_webtorch_compute": _compute}
        self._clock = timer
        self._timer = timeit.Timer(_computed(stmt), setup, timer, self._globals)
        self._task_spec = TaskSpec(
            stmt, setup, global_setup, label, sub_label, description, env, num_threads
        )

    def _timeit(self, number: int) -> float:
        # Never 0, so that it divides.
        return max(self._timer.timeit(number), 1e-9)

    def _measured(self, measure: Callable[[], tuple[int, list[float]]]) -> Measurement:
        before = webtorch.get_num_threads()
        webtorch.set_num_threads(self._task_spec.num_threads)
        try:
            number, times = measure()
        finally:
            webtorch.set_num_threads(before)
        return Measurement(number, times, self._task_spec)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """Return the time of one block of `number` runs."""

        def measure() -> tuple[int, list[float]]:
            """Warm up, and time one block; return runs per block and seconds."""
            self._timeit(max(number // 100, 2))
            return number, [self._timeit(number)]

        return self._measured(measure)

    def repeat(self, repeat: int = -1, number: int = -1) -> None:
        """Raise NotImplementedError, as PyTorch does: `blocked_autorange` repeats."""
        raise NotImplementedError("See `Timer.blocked_autorange.`")

    autorange = repeat

    def _block(self, min_run_time: float) -> int:
        """Return how many runs make a block whose time is not that of looking at the clock."""
        number = 1
        looking = min(timeit.repeat(self._clock, number=1, repeat=5)) * 2
        self._timeit(1)
        while True:
            taken = self._timeit(number)
            if looking / taken <= 1e-4 and taken >= min_run_time / 1000:
                return number
            if taken > min_run_time:
                return number
            number *= 10

    def blocked_autorange(
        self,
        callback: Callable[[int, float], object] | None = None,
        min_run_time: float = 0.2,
    ) -> Measurement:
        """Return the times of as many blocks of runs as fill `min_run_time` seconds.

        Blocks have so many runs that the clock does not count. `callback` is given the runs and the time of
        each.
        """

        def measure() -> tuple[int, list[float]]:
            """Return runs per block and the blocks' seconds, of at least `min_run_time` together."""
            number = self._block(min_run_time)
            return number, self._blocks(number, callback, lambda times: sum(times) >= min_run_time)

        return self._measured(measure)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Callable[[int, float], object] | None = None,
    ) -> Measurement:
        """Return the times of as many blocks as bring the interquartile range below `threshold` of the median."""

        def measure() -> tuple[int, list[float]]:
            """Return runs per block and the blocks' seconds."""
            number = self._block(0.05)

            def enough(times: list[float]) -> bool:
                """Return whether the times have settled, or have taken too long."""
                found = Measurement(number, times, self._task_spec)
                settled = len(times) > 3 and found.meets_confidence(threshold)
                return (sum(times) >= min_run_time and settled) or sum(times) >= max_run_time

            return number, self._blocks(number, callback, enough)

        return self._measured(measure)

    def _blocks(
        self,
        number: int,
        callback: Callable[[int, float], object] | None,
        enough: Callable[[list[float]], bool],
    ) -> list[float]:
        times: list[float] = []
        while not times or not enough(times):
            times.append(self._timeit(number))
            if callback is not None:
                callback(number, times[-1])
        return times

    def collect_callgrind(self, *_: object, **__: object) -> None:
        """Raise NotImplementedError: instructions are counted by Valgrind, which knows no kernels of here."""
        raise NotImplementedError(
            "Timer.collect_callgrind: Valgrind does not count what kernels do. webtorch.profile() shows what "
            "each dispatch costs, and the line that made it"
        )


def _dedented(text: str) -> str:
    """Return a statement without the indentation of the text that it stands in."""
    lines = text.strip("\n").splitlines()
    widths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return "\n".join([line[min(widths, default=0) :] for line in lines]).rstrip()
