"""What is kept on disk: found again by another process, bounded, and harmless when it is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch.errors import IndexOutOfRangeError
from webtorch.runtime import disk, kept, realize
from webtorch.runtime.disk import Shelf

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WEBTORCH_CACHE", raising=False)
    monkeypatch.setattr(kept, "SMALLEST", 8)
    monkeypatch.setattr(kept, "WORTH", 0.0)
    monkeypatch.setattr(disk.PROGRAMS, "_warned", False)
    return tmp_path


@pytest.fixture
def compiled(device: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of nodes of the graphs that were compiled, from a runtime without programs."""
    runtime = webtorch.zeros(1, device=device)._storage.runtime
    monkeypatch.setattr(runtime, "programs", OrderedDict())
    found: list[int] = []
    real = realize.compile_graph

    def compile_graph(graph: Any, *args: Any) -> Any:
        if len(graph.nodes) >= kept.SMALLEST:
            found.append(len(graph.nodes))
        return real(graph, *args)

    monkeypatch.setattr(realize, "compile_graph", compile_graph)
    return found


def _forget(device: str) -> None:
    """Be a new process, as far as programs and kernels' texts go."""
    runtime = webtorch.zeros(1, device=device)._storage.runtime
    runtime.programs.clear()
    getattr(runtime.backend, "_rendered", {}).clear()


def _work(x: webtorch.Tensor, factor: float) -> webtorch.Tensor:
    for _ in range(3):
        x = (x * factor).softmax(-1) @ x.t().tanh() + x.sum(0)
    return x


def test_programs_are_found_again(device: str, compiled: list[int], monkeypatch: Any) -> None:
    x = webtorch.arange(16.0, device=device).reshape(4, 4) / 16
    x.tolist()
    first = _work(x, 0.5).tolist()
    count = len(compiled)
    assert count
    _forget(device)
    if device == "webgpu":
        # The text of the kernels is kept too.
        monkeypatch.setattr(x._storage.runtime.backend, "_renderer", None)
        monkeypatch.setattr("webtorch.lower.wgsl.render", None)
    assert _work(x, 0.5).tolist() == first
    # Numbers are arguments, here as in memory.
    assert _work(x, 0.75).tolist() != first
    assert len(compiled) == count


def test_another_formula_or_shape_is_another_program(device: str, compiled: list[int]) -> None:
    results = []
    for n, f in ((4, webtorch.tanh), (4, webtorch.sigmoid), (8, webtorch.tanh)):
        x = webtorch.ones(n, n, device=device) / 4
        for _ in range(4):
            x = f(x @ x) + x.sum(0)
        results.append(x.sum().item())
        _forget(device)
    assert len(compiled) == 3 and len(set(results)) == 3
    assert len(list((disk.root() / "programs").glob("*.json"))) == 3


def test_an_error_names_the_line_of_now(device: str, compiled: list[int]) -> None:
    table = webtorch.ones(5, 3, device=device)
    bad = webtorch.tensor([1, 7], device=device)
    webtorch.realize(table, bad)

    def run(pick: Any) -> str:
        _forget(device)
        x = pick()
        for _ in range(4):
            x = (x @ x.t() @ x).softmax(-1)
        with pytest.raises(IndexOutOfRangeError) as caught:
            webtorch.stack([x.sum(), x.sum()]).tolist()
        return str(caught.value)

    # Indices that are at hand are checked at the call, these by the program.
    def first() -> webtorch.Tensor:
        return table[bad.cumsum(0)]

    def second() -> webtorch.Tensor:
        return table[bad.cumsum(0)]

    for pick in (first, second):
        assert f"test_disk_cache.py:{pick.__code__.co_firstlineno + 1})" in run(pick)
    assert len(compiled) == 1


def test_checks_of_one_line_share_a_kernel_and_those_of_two_lines_do_not(
    device: str, compiled: list[int]
) -> None:
    table = webtorch.ones(5, 3, device=device)
    good, bad = (webtorch.tensor([1, i], device=device) for i in (2, 7))
    webtorch.realize(table, good, bad)

    def one_line(picks: list[Any]) -> list[Any]:
        return [table[i].cumsum(0) for i in picks]

    def two_lines(picks: list[Any]) -> list[Any]:
        a = table[picks[0]].cumsum(0)
        b = table[picks[1]].cumsum(0)
        return [a, b]

    def steps(function: Any, picks: list[Any]) -> Any:
        f = webtorch.compile(lambda: webtorch.cat(function(picks)).cumsum(0).sin().cumsum(0))
        f().tolist()
        return f.program()

    alone = steps(one_line, [good, good.clone()])
    apart = steps(two_lines, [good, good.clone()])
    assert len(alone.sites) == 1 and len(apart.sites) == 2
    assert len(alone.routines) < len(apart.routines)
    assert len(compiled) == 2
    for picks, line in (([bad, good.clone()], 1), ([good.clone(), bad], 2)):
        _forget(device)
        with pytest.raises(IndexOutOfRangeError) as caught:
            steps(two_lines, picks)
        first = two_lines.__code__.co_firstlineno
        assert f"test_disk_cache.py:{first + line})" in str(caught.value)
    assert len(compiled) == 2


@pytest.mark.parametrize("how", ["cut", "changed", "longer", "another"])
def test_a_damaged_file_is_compiled_anew_with_one_warning(
    compiled: list[int], device: str, how: str
) -> None:
    x = webtorch.arange(16.0, device=device).reshape(4, 4) / 16
    x.tolist()
    first = _work(x, 0.5).tolist()
    count = len(compiled)
    files = list((disk.root() / "programs").glob("*.json"))
    assert files
    for file in files:
        data = file.read_bytes()
        if how == "cut":
            file.write_bytes(data[:-100])
        elif how == "changed":
            file.write_bytes(data[:50] + b"x" + data[51:])
        elif how == "longer":
            # It can still be read: only its hash says that it is damaged.
            file.write_bytes(data + b" ")
        else:
            # Whole, and not what it should be.
            disk.PROGRAMS.write(file.stem, b'{"format": "webtorch.Program", "version": 0}')
    _forget(device)
    with pytest.warns(RuntimeWarning, match="WEBTORCH_CACHE_DIR") as caught:
        assert _work(x, 0.5).tolist() == first
    assert len(caught) == 1
    assert len(compiled) == 2 * count
    _forget(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _work(x, 0.5).tolist() == first
    assert len(compiled) == 2 * count


def test_off(compiled: list[int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTORCH_CACHE", "0")
    x = webtorch.ones(4, 4, device=device)
    _work(x, 0.5).tolist()
    assert not disk.root().joinpath("programs").exists()


def test_a_folder_that_cannot_be_written_is_no_error(
    compiled: list[int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", "/dev/null/nowhere")
    x = webtorch.ones(4, 4, device=device)
    assert _work(x, 0.5).shape == (4, 4)
    _work(x, 0.5).tolist()


_PROCESS = """
import webtorch
from webtorch.runtime import kept, realize
kept.SMALLEST, kept.WORTH = 8, 0.0
made = []
real = realize.compile_graph
realize.compile_graph = lambda graph, *more: made.append(len(graph.nodes)) or real(graph, *more)
x = webtorch.arange(16.0, device="cpu").reshape(4, 4) / 16
for _ in range(3):
    x = (x * 0.5).softmax(-1) @ x.t().tanh() + x.sum(0)
print(x.tolist(), max(made, default=0) >= 8)
"""


def test_processes_share_what_they_made(tmp_path: Path) -> None:
    path = os.pathsep.join(p for p in [os.getcwd(), *sys.path] if p)
    env = {**os.environ, "PYTHONPATH": path, "WEBTORCH_CACHE_DIR": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _PROCESS], env=env, stdout=subprocess.PIPE, text=True
        )

    # Two at once, then one more.
    both = [p.communicate()[0].rsplit(maxsplit=1) for p in [start(), start()]]
    third = start().communicate()[0].rsplit(maxsplit=1)
    assert both[0][0] == both[1][0] == third[0]
    assert "True" in (both[0][1], both[1][1]) and third[1] == "False"


# -- a shelf by itself


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    shelf = Shelf("few", ".x", 10_000)
    for n in range(8):
        shelf.write(f"k{n}", bytes(1000))
        os.utime(tmp_path / "few" / f"k{n}.x", (n, n))
    assert shelf.read("k0") == bytes(1000)
    shelf.write("new", bytes(4000))
    assert shelf.contents().nbytes <= 10_000
    assert shelf.read("k0") is not None and shelf.read("new") is not None
    assert shelf.read("k1") is None and shelf.read("k7") is not None
    # What is larger than the shelf is not kept.
    shelf.write("huge", bytes(20_000))
    assert shelf.read("huge") is None
    count = shelf.contents().files
    assert shelf.clear().files == count > 0 and shelf.contents().files == 0


def test_threads_write_and_read_the_same_keys(tmp_path: Path) -> None:
    shelf = Shelf("shared", ".x", 1 << 20)
    wrong: list[bytes] = []
    until = time.monotonic() + 0.3

    def work(seed: int) -> None:
        while time.monotonic() < until:
            for n in range(4):
                shelf.write(f"k{n}", bytes([n]) * 5000)
                found = shelf.read(f"k{(n + seed) % 4}")
                if found is not None and found != bytes([(n + seed) % 4]) * 5000:
                    wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong and not list((tmp_path / "shared").glob("*.part"))
