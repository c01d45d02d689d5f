"""Pytest plugin: chooses which tests are long, and says how many `make test` left to `make test-all`.

Imports pytest and the standard library only.

A test with the mark `long` runs in `make test-all` only. A matrix (a test with several parameters) is
thinned: cases are taken in an arbitrary but fixed order until each value of each parameter has had its
turn, and the other cases are long. `each("op", "device")` on a test asks for each combination of these
parameters instead, and `one_in(5)` for a fifth of what would be taken. `one_in(5, device="webgpu")` is for
tests of what is the same on all devices: of the cases on that one a fifth may be taken, others take their turn.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Hashable, Iterator
from typing import Any

import pytest

LEFT_OUT = pytest.StashKey[int]()
WORKER_OUTPUT = "tests left to make test-all"
_left_out = False


def runs() -> bool:
    """Whether what is long runs here: a test may then do more."""
    return not _left_out


def pytest_configure(config: pytest.Config) -> None:
    """Start counting; xdist's workers collect, and tell the process that started them."""
    global _left_out
    _left_out = "not long" in config.option.markexpr
    config.stash[LEFT_OUT] = 0
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_FromWorkers(config))


class _FromWorkers:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        # Each worker collects all tests; one that crashed says nothing.
        count = getattr(node, "workeroutput", {}).get(WORKER_OUTPUT, 0)
        self.config.stash[LEFT_OUT] = max(self.config.stash[LEFT_OUT], count)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is long, before pytest selects by marks."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("long"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        if len(cases) > 1:
            for case in _long_cases(cases):
                case.add_marker(pytest.mark.long)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is long among the tests that will not run."""
    count = sum(item.get_closest_marker("long") is not None for item in items)
    if count:
        items[0].config.stash[LEFT_OUT] += count


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the count to the process that started this worker."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[WORKER_OUTPUT] = session.config.stash[LEFT_OUT]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests were left out for their length."""
    count = config.stash[LEFT_OUT]
    if count:
        terminalreporter.write_line(f"{count} long tests are left to `make test-all`")


def _long_cases(cases: list[pytest.Function]) -> Iterator[pytest.Function]:
    """Yield the cases of a test that are left out."""
    each = cases[0].get_closest_marker("each")
    shares = list(cases[0].iter_markers("one_in"))
    one_in = next((mark for mark in shares if not mark.kwargs), None)
    rare = [mark for mark in shares if mark.kwargs]
    seen: set[Hashable] = set()
    taken = itertools.count()
    for case in sorted(cases, key=_place):
        if any(_is_rare(case, mark) for mark in rare):
            yield case
            continue
        wanted: list[Hashable] = _values(case)
        if each is not None:
            wanted.append(tuple(v for v in wanted if not {*v[0]}.isdisjoint(each.args)))
        fresh = not seen.issuperset(wanted)
        seen.update(wanted)
        if not fresh or (one_in is not None and next(taken) % one_in.args[0]):
            yield case


def _place(case: pytest.Function) -> int:
    """Return the place of a case in an arbitrary but fixed order."""
    return zlib.crc32(case.name.encode())


def _is_rare(case: pytest.Function, mark: pytest.Mark) -> bool:
    """Whether a case has what the mark names, and is none of the share that may be taken."""
    named = case.callspec.params.items() >= mark.kwargs.items()
    return named and _place(case) // 97 % int(mark.args[0]) != 0


def _values(case: pytest.Function) -> list[Any]:
    """Return the parameters of a case and their values; those that are given together are one."""
    parameters = dict(case.callspec.params) if hasattr(case, "callspec") else {}
    values = []
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        together = tuple(name for name in names if name in parameters)
        values.append((together, tuple(_key(parameters.pop(name)) for name in together)))
    values.extend(((name,), _key(value)) for name, value in parameters.items())
    return values


def _key(value: object) -> Hashable:
    """Return what equals itself alone: 1 is not True, and a list is an object."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
