"""What `make test` takes of a matrix, and that it says what it leaves."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from tests import long

@pytest.fixture(params=["cpu", "webgpu"])
def device(request): return request.param

@pytest.mark.parametrize("dtype", ["f", "h", "i"])
@pytest.mark.parametrize(("x", "y"), [(1, 2), (1, 3), (True, 3), ([], 3)])
def test_matrix(x, y, dtype, device): pass

@pytest.mark.each("dtype", "device")
@pytest.mark.parametrize("dtype", ["f", "h", "i"])
@pytest.mark.parametrize("x", [1, 2])
def test_each(x, dtype, device): pass

@pytest.mark.one_in(4)
@pytest.mark.parametrize("x", range(10))
def test_part(x): pass

@pytest.mark.one_in(4, device="webgpu")
@pytest.mark.parametrize("x", range(40))
def test_rare(x, device): pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.long)])
def test_marked(x): pass

@pytest.mark.one_in(4)
def test_one(): pass

def test_asked(): assert not long.runs()
"""


def test_each_value_has_its_turn_and_the_rest_is_left_and_counted(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS)
    marks = "markers =\n long\n each(*names)\n one_in(n, **parameters)"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{marks}\n")
    options = ["-v", "-p", "tests.long", "-p", "no:cacheprovider", "-m", "not long"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    taken: dict[str, list[list[str]]] = {}
    for line in done.stdout.splitlines():
        if " PASSED" in line:
            name, _, case = line.partition("::")[2].partition(" ")[0].partition("[")
            taken.setdefault(name, []).append(case.rstrip("]").split("-"))
    matrix = taken["test_matrix"]
    devices, pairs, dtypes = zip(*((c[0], tuple(c[1:-1]), c[-1]) for c in matrix), strict=True)
    assert set(devices) == {"cpu", "webgpu"} and set(dtypes) == {"f", "h", "i"}
    assert len(set(pairs)) == 4 and len(matrix) <= 6
    each = {(case[0], case[-1]) for case in taken["test_each"]}
    assert each == set(product(("cpu", "webgpu"), "fhi"))
    assert len(taken["test_part"]) == 3
    rare = taken["test_rare"]
    assert len({x for _, x in rare}) == 40 and len(rare) <= 41
    assert 1 <= [device for device, _ in rare].count("webgpu") <= 15
    assert taken["test_marked"] == [["1"]] and len(taken["test_one"]) == 1
    left = 24 + 12 + 10 + 80 + 2 + 1 + 1 - sum(map(len, taken.values()))
    assert f"{left} long tests are left to `make test-all`" in done.stdout
