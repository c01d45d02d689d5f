"""One value that is wanted alone is computed in one call of machine code, which must do what the longer way does."""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.scripts.following import scripts
from webtorch.ir.graph import Form, Node
from webtorch.runtime.backends.cpu import (
    executable,
    jit,
    native_threads,
    single,
    slotcode,
    slots,
)
from webtorch.runtime.backends.cpu.memory import CpuBuffer
from webtorch.runtime.known import Known
from webtorch.runtime.realize import Runtime, runtime_for

pytestmark = pytest.mark.skipif(not jit.available(), reason="there is no LLVM")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are compiled when they run first, and no script is learned."""
    monkeypatch.setattr(executable, "_COMPILE_WORK", 1)
    monkeypatch.setattr(executable, "_COMPILE_ELEMENTS", 1)
    with scripts(False):
        yield


def _runtime() -> Any:
    return runtime_for("cpu", 0)


@pytest.fixture(autouse=True)
def _nobody_sees_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of NumPy's that other tests have left see none."""
    monkeypatch.setattr(_runtime(), "lent", {})


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was computed in the longer way."""
    found: list[object] = []
    launch = Runtime._launch

    def noted(runtime: Runtime) -> Any:
        found.append(runtime)
        return launch(runtime)

    monkeypatch.setattr(Runtime, "_launch", noted)
    return found


CALLS: list[Callable[[Any, Any, Any, float], Any]] = [
    lambda T, x, y, n: x.neg(),
    lambda T, x, y, n: x * n,
    lambda T, x, y, n: x * y,
    lambda T, x, y, n: T.clamp(x, -n, n),
    lambda T, x, y, n: T.addcmul(x, y, x, value=n),
    lambda T, x, y, n: T.addcmul(x, x, y, value=int(n)),
    lambda T, x, y, n: x.long(),
    lambda T, x, y, n: x.sum(),
    lambda T, x, y, n: x > n,
    lambda T, x, y, n: x.softmax(-1),
    lambda T, x, y, n: T.cat([x.reshape(-1), y.reshape(-1)]),
    lambda T, x, y, n: T.stack([x] * 17),
    lambda T, x, y, n: x.cumsum(0),
    lambda T, x, y, n: T.full_like(x, 3.0),
]


@pytest.mark.parametrize("shape", [(3, 13), (), (0, 4), (1,)])
def test_a_value_is_what_it_is_in_the_longer_way(
    shape: tuple[int, ...], others: list[object]
) -> None:
    torch.manual_seed(0)
    in_one = 0
    for call in CALLS:
        for turn in range(6):
            given = [torch.randn(shape) for _ in range(2)]
            x, y = (webtorch.tensor(t.tolist()).reshape(shape) for t in given)
            webtorch.realize(x, y)
            # Also where two arguments come to be one, and are two again.
            if turn % 3 == 1:
                y, given[1] = x, given[0]
            number = [0.5, -2.0, 3.0][turn % 3]
            found = call(webtorch, x, y, number)
            before = len(others)
            webtorch.realize(found)
            in_one += len(others) == before
            assert found._storage.node.kind == "buffer"
            assert not found._storage.node.srcs
            expected = call(torch, *given, number)
            torch.testing.assert_close(
                torch.tensor(found.tolist(), dtype=expected.dtype).reshape(expected.shape), expected
            )
    # How many kernels are machine code by then depends on what ran before; of empty tensors few are.
    assert in_one >= (10 if 0 not in shape else 1)


def test_a_program_that_is_gone_is_made_again(others: list[object]) -> None:
    x = webtorch.rand(21)
    webtorch.realize(x)
    for _ in range(3):
        webtorch.realize(x * 1.5)
    before = len(others)
    webtorch.realize(x * 2.5)
    assert len(others) == before
    _runtime().programs.clear()
    gc.collect()
    for n in range(4):
        torch.testing.assert_close((x * n).tolist(), (torch.tensor(x.tolist()) * n).tolist())
    assert before < len(others) <= before + 3


def test_what_a_kernel_finds_wrong_is_raised(others: list[object]) -> None:
    table = webtorch.arange(10.0)
    good, bad = webtorch.tensor([3, 4]), webtorch.tensor([3, 12])
    webtorch.realize(table, good, bad)
    for _ in range(3):
        assert table.take(good).tolist() == [3.0, 4.0]
        for call in (lambda: table.take(bad), lambda: table.gather(0, bad), lambda: table[bad]):
            with pytest.raises(IndexError, match="12"):
                call().tolist()
        assert table.take(good).tolist() == [3.0, 4.0]


def test_memory_is_given_back_and_counted(others: list[object]) -> None:
    x = webtorch.rand(1000)
    webtorch.realize(x)
    kept = []
    for _ in range(4):
        webtorch.realize(x.exp())
    # What other tests have left goes now, and not meanwhile.
    gc.collect()
    before, live = len(others), _runtime().backend.memory_allocated()
    for _ in range(50):
        kept.append(x.exp())
        webtorch.realize(kept[-1])
    assert len(others) == before
    assert _runtime().backend.memory_allocated() - live == 50 * 4032
    assert len({t._storage.node.buffer.address for t in kept}) == 50
    assert all(t.tolist() == kept[0].tolist() for t in kept)
    del kept
    assert _runtime().backend.memory_allocated() == live


def test_memory_that_is_seen_is_left_alone(others: list[object]) -> None:
    x = webtorch.zeros(16)
    seen = x.numpy()
    for n in range(4):
        y = x + 1.0
        seen[...] = n
        # What NumPy writes after the call is not what it is of.
        assert y.tolist() == [max(n - 1, 0) + 1.0] * 16
    arrays = []
    del seen
    z = webtorch.rand(16)
    webtorch.realize(z)
    for _ in range(4):
        y = z * 2.0
        arrays.append(y.numpy())
        del y
    assert len({a.ctypes.data for a in arrays}) == 4
    np.testing.assert_array_equal(arrays[0], arrays[3])


def test_threads_compute_their_own_values() -> None:
    errors: list[object] = []

    def work(number: int) -> None:
        x = webtorch.full((64,), float(number))
        for n in range(200):
            if (x * n).tolist() != [float(number * n)] * 64:
                errors.append((number, n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def _shared(x: Any) -> Any:
    """Values that two threads compute, by the function alone from the third time on."""
    found = None
    for _ in range(4):
        found = x * 2.0
        webtorch.realize(found)
    return found


@pytest.mark.skipif(not native_threads.available(), reason="threads of machine code are Linux's")
def test_threads_share_a_value(others: list[object]) -> None:
    before = webtorch.get_num_threads()
    expected = np.arange(90_000, dtype=np.float32)
    x = webtorch.from_numpy(expected).clone()
    try:
        for count in (2, 1, 3):
            webtorch.set_num_threads(count)
            np.testing.assert_array_equal(_shared(x).numpy(), expected * 2)
        workers = native_threads._words[2]
        assert workers >= 2
        del others[:]
        # Where another thread uses the pool, this one does all of it.
        native_threads._words[1] = 1
        np.testing.assert_array_equal(_shared(x).numpy(), expected * 2)
        assert not native_threads.run(0, 0, 1, 1, b"")
        native_threads._words[1] = 0
        assert not others and native_threads._words[2] == workers
    finally:
        native_threads._words[1] = 0
        webtorch.set_num_threads(before)


@pytest.mark.skipif(not native_threads.available(), reason="threads of machine code are Linux's")
def test_a_process_that_was_forked_starts_threads_of_its_own() -> None:
    x = webtorch.arange(90_000.0)
    before = webtorch.get_num_threads()
    webtorch.set_num_threads(2)
    _shared(x)
    webtorch.set_num_threads(before)
    child = os.fork()
    if child == 0:
        try:
            none = native_threads._words[2] == 0
            webtorch.set_num_threads(2)
            right = (_shared(x).numpy() == np.arange(90_000, dtype=np.float32) * 2).all()
        except BaseException:
            os._exit(2)
        os._exit(0 if none and right and native_threads._words[2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_clears_nothing_but_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[int] = []
    note = lambda at, _, size: cleared.extend((at, at + size))  # noqa: E731
    monkeypatch.setattr(native_threads.ctypes, "memset", note)
    native_threads._forget_workers()
    begin = ctypes.addressof(native_threads._memory)
    assert begin <= min(cleared) and max(cleared) <= begin + len(native_threads._memory)


def test_whatever_is_not_as_expected_is_left_alone() -> None:
    x = webtorch.rand(8)
    for _ in range(3):
        webtorch.realize(x.exp())
    runtime = _runtime()
    alone = runtime.alone
    owner = x.exp()._storage
    waiting, node = [lambda: owner], owner.node
    for args in ((), (1, 2), (waiting, {}, runtime, 4)):
        with pytest.raises(TypeError):
            alone(*args)
    for args in (
        (1, {}, runtime),
        ([], {}, runtime),
        ([5], {}, runtime),
        ([lambda: None], {}, runtime),
        ([lambda: 1 / 0], {}, runtime),
        (waiting, 5, runtime),
        (waiting, {}, None),
    ):
        assert alone(*args) is None
        assert node.kind != "buffer"
    buffer, form = x._storage.node.buffer, node.form
    latest = form.latest
    for slot, wrong in (("buffer", object()), ("buffer", None), ("kind", "view")):
        right = getattr(x._storage.node, slot)
        setattr(x._storage.node, slot, wrong)
        assert alone(waiting, {}, runtime) is None
        setattr(x._storage.node, slot, right)
    for target, slot, wrong in (
        (node, "srcs", ()), (node, "srcs", None), (node, "srcs", (1,)), (node, "scalars", (1,)), (node, "scalars", 3),
        (node, "form", None), (form, "latest", None), (form, "latest", 1), (latest, "plan", None),
        (latest, "executable", lambda: None), (latest, "executable", 1), (owner, "donor", node), (owner, "node", 1),
    ):  # fmt: skip
        right = getattr(target, slot)
        setattr(target, slot, wrong)
        assert alone(waiting, {}, runtime) is None
        setattr(target, slot, right)
        assert node.kind != "buffer"
    settled: dict[int, Any] = {}
    assert alone(waiting, settled, runtime) is latest
    assert not waiting
    assert list(settled) == [id(owner)]
    assert node.kind == "buffer"
    assert type(node.buffer) is CpuBuffer
    assert x._storage.node.buffer is buffer


def test_classes_of_another_making_have_no_such_way() -> None:
    class Loose:
        """Has no slots."""

        def __init__(self) -> None:
            self.node = self.donor = None

    assert single.function(Loose, Known) is None
    assert "numbers" not in slots.offsets(Known)
    # Where a slot is, its value is found.
    form = Form()
    node = Node("map", (), ("x",), (), (2,), webtorch.float32, form=form)  # type: ignore[arg-type]
    for name in ("kind", "attrs", "form", "scalars"):
        place = id(node) + slots.offsets(Node)[name]
        assert ctypes.c_void_p.from_address(place).value == id(getattr(node, name))


def test_a_text_that_names_what_is_not_there_is_no_silent_fallback() -> None:
    def written(body: str) -> str:
        return slotcode.written(
            ast.parse(f"def wt_f(x: It) -> object:\n    {body}"), {"It": {"a": 16}}, {}
        )

    assert "i64 16" in written("return x.a")
    for body, error in (
        ("return y", NameError),
        ("return f(x)", NameError),
        ("return x.b", LookupError),
    ):
        with pytest.raises(error):
            written(body)
