"""What a known call records is recorded in machine code, which must do what Python does."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.patience import PATIENCE
from webtorch.dispatch.call import active
from webtorch.ir import lines
from webtorch.ir.graph import Node
from webtorch.pytorch import nativekernel as nativekernel  # with it all texts are declared
from webtorch.pytorch import nativenodes
from webtorch.pytorch.device import memory_of, opened, runtime
from webtorch.pytorch.known import Kinds, Plan
from webtorch.runtime.backends.cpu import jit
from webtorch.tensors.storage import Storage, writes

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not jit.available(), reason="there is no machine code"
)

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def _by_python() -> Iterator[None]:
    """Let the kernels in Python make calls: somebody is on, who asks for none."""
    active.add(1)
    try:
        yield
    finally:
        active.add(-1)


CALLS: dict[str, Call] = {
    "elementwise": lambda x, y: x * y,
    "a free number": lambda x, y: x * 2.5,
    "another call": lambda x, y: torch.logaddexp(x, y),
    "a product": lambda x, y: x @ y,
    "sources turned": lambda x, y: y - x,
    "no sources": lambda x, y: torch.arange(3, device="webgpu"),
    "a scalar": lambda x, y: x.sum(),
    "other strides": lambda x, y: x.t() * y.t(),
    "nothing in it": lambda x, y: x[:0] * y[:0],
}


def _plan(call: Call, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[Node], list[float]]:
    """Return the plan of a call's last operator, and what it was found for."""
    find, found = Kinds.find, list[Any]()

    def seen(self: Kinds, args: Any, kwargs: Any, nodes: Any, numbers: Any, *rest: Any) -> Any:
        """Note what is found."""
        plan = find(self, args, kwargs, nodes, numbers, *rest)
        found.append((plan, nodes, numbers))
        return plan

    x, y = (torch.rand(4, 4).to("webgpu") for _ in range(2))
    for _ in range(4):
        call(x, y)
    with monkeypatch.context() as patch, _by_python():
        patch.setattr(Kinds, "find", seen)
        call(x, y)
    plan, nodes, numbers = found[-1]
    assert type(plan) is Plan
    return plan, list(nodes), list(numbers)


def _slots(x: Any, without: set[str]) -> dict[str, Any]:
    names = [n for n in type(x).__slots__ if n not in without | {"__weakref__"}]
    return {n: getattr(x, n) for n in names if hasattr(x, n)}


@pytest.mark.parametrize("name", CALLS)
def test_it_records_what_python_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, numbers = _plan(CALLS[name], monkeypatch)
    record, line = plan.tensor, "program.py:3"
    assert record is not None
    made = record(nodes, numbers, line)
    plan.tensor = None
    other = plan.tensors(nodes, numbers, line)
    for x in (made, other):
        assert x.untyped_storage()._webgpu in [r() for r in runtime().pending]  # type: ignore[attr-defined]
    assert (made.shape, made.stride(), made.dtype, made.device) == (
        other.shape, other.stride(), other.dtype, other.device
    )  # fmt: skip
    homes = made.untyped_storage(), other.untyped_storage()
    assert homes[0].data_ptr() != homes[1].data_ptr()
    assert homes[0].nbytes() == homes[1].nbytes() == other.nbytes
    ours, theirs = (memory_of(x).storage for x in (made, other))
    assert ours is not None and theirs is not None and ours.elements == theirs.elements
    assert _slots(ours, {"node"}) == _slots(theirs, {"node"})
    assert _slots(ours.node, set()) == _slots(theirs.node, set())
    torch.testing.assert_close(made.cpu(), other.cpu())


SEVERAL: Call = lambda x, y: torch.native_layer_norm(x, (4,), y[0], y[1], 1e-5)[0]  # noqa: E731


def test_several_results_are_recorded_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, numbers = _plan(SEVERAL, monkeypatch)
    record: Any = plan.tensor
    made = record(nodes, numbers, "program.py:3")
    plan.tensor = None
    other = plan.tensors(nodes, numbers, "program.py:3")
    assert type(made) is type(other) is tuple and len(made) == 3
    held = []
    for of in (made, other):
        storages = [x.untyped_storage()._webgpu for x in of]
        held.append(storages)
        together = storages[0].node.attrs[2]
        assert [r() for r in together] == [s.node for s in storages]
        assert all(s.node.attrs[2] is together for s in storages)
        assert all(s in [r() for r in runtime().pending] for s in storages)
    for ours, theirs in zip(*held, strict=True):
        assert _slots(ours, {"node"}) == _slots(theirs, {"node"})
        assert _slots(ours.node, {"attrs"}) == _slots(theirs.node, {"attrs"})
        assert ours.node.attrs[:2] == theirs.node.attrs[:2]
    for x, y in zip(made, other, strict=True):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
        torch.testing.assert_close(x.cpu(), y.cpu())


def test_nothing_of_several_results_lives_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, numbers = _plan(SEVERAL, monkeypatch)
    record: Any = plan.tensor
    _, _, (held, _) = record.__module__
    kept = [*held, *nodes, nodes, runtime()]

    def run() -> list[int]:
        """Record a hundred calls, and some that fail in the middle, and return how many hold each object."""
        for _ in range(100):
            record(nodes, numbers, None)
            for limit in (1, 2):
                with monkeypatch.context() as patch:
                    patch.setattr(runtime().ahead, "bound", -1)
                    patch.setattr(runtime(), "add", _Failing(limit))
                    with pytest.raises(MemoryError):
                        record(nodes, numbers, None)
        runtime().flush()
        gc.collect()
        return [sys.getrefcount(o) for o in kept]

    run()
    assert all(abs(a - b) < 50 for a, b in zip(run(), run(), strict=True))
    made = record(nodes, numbers, None)
    gone = [weakref.ref(x.untyped_storage()._webgpu.node) for x in made]
    del made
    assert [g() for g in gone] == [None] * 3


class _Failing:
    """Takes so many storages, and fails."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, storage: object) -> None:
        if not self.most:
            raise MemoryError
        self.most -= 1


@pytest.mark.parametrize("name", CALLS)
def test_nothing_lives_longer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, numbers = _plan(CALLS[name], monkeypatch)
    assert plan.tensor is not None
    _, objects, (held, _) = plan.tensor.__module__
    kept = [*objects, *held, *nodes, nodes, numbers, runtime()]
    line = "program.py:4".upper()

    def counts() -> list[int]:
        """Return how many hold each object."""
        gc.collect()
        return [sys.getrefcount(x) for x in [*kept, line]]

    def record() -> None:
        """Make results that are let go of."""
        assert plan.tensor is not None
        for _ in range(100):
            plan.tensor(nodes, numbers, line)
        runtime().flush()

    record()
    before = counts()
    record()
    # None and the like are counted by all that runs meanwhile.
    assert all(abs(a - b) < 100 for a, b in zip(before, counts(), strict=True))
    made = plan.tensor(nodes, numbers, line)
    storage: Storage = made.untyped_storage()._webgpu  # type: ignore[attr-defined]
    gone = weakref.ref(storage), weakref.ref(storage.node)
    del made, storage
    assert [g() for g in gone] == [None, None]


def test_what_it_does_not_expect_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, _ = _plan(CALLS["a product"], monkeypatch)
    record: Any = plan.tensor
    assert plan.kind == "call"
    pending = len(runtime().pending)
    with pytest.raises(TypeError):
        record(nodes)
    with pytest.raises(TypeError):
        record(nodes, [1.0], None)
    with monkeypatch.context() as patch:
        patch.setattr(opened, "runtime", None)
        with pytest.raises(TypeError):
            record(nodes, (), None)
    assert len(runtime().pending) == pending


def test_a_full_graph_is_computed_by_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, nodes, _ = _plan(CALLS["elementwise"], monkeypatch)
    added: list[object] = []
    monkeypatch.setattr(runtime().ahead, "bound", 0)
    monkeypatch.setattr(runtime(), "add", added.append)
    assert plan.tensor is not None
    made = plan.tensor(nodes, (), None)
    assert added == [made.untyped_storage()._webgpu]  # type: ignore[attr-defined]


@functools.cache
def _state() -> list[list[torch.Tensor]]:
    """Return averages of a gradient and of its square, no largest one, and the count of steps."""
    averages = [[torch.ones(4, 4).to("webgpu")] for _ in range(2)]
    return [*averages, [], [torch.tensor(1.0).to("webgpu")]]


Write = Callable[[torch.Tensor, torch.Tensor], object]
WRITES: dict[str, Write] = {
    "elementwise": lambda x, y: x.mul_(y),
    "a free number": lambda x, y: x.mul_(2.5),
    "an option": lambda x, y: x.add_(y, alpha=2.5),
    "another call": lambda x, y: torch.logaddexp(x, y, out=x),
    "a number": lambda x, y: x.fill_(2.0),
    "several nodes": lambda x, y: torch._fused_adamw_(
        [x], [y], *_state(), amsgrad=False, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, maximize=False,
    ),
    "several results": lambda x, y: torch._fused_adamw_(
        [x], [y], *_state(), amsgrad=False, lr=1.0, beta1=0.0, beta2=0.0, weight_decay=1.0, eps=0.0, maximize=True,
    ),
}  # fmt: skip
Written = tuple[Plan, tuple[torch.Tensor, ...], list[Node], list[float]]


def _homes(outs: Sequence[torch.Tensor]) -> list[Storage]:
    homes = [memory_of(x).storage for x in outs]
    assert None not in homes
    return homes  # type: ignore[return-value]


Before = list[tuple[Storage, Node, int]]


def _before(outs: Sequence[torch.Tensor]) -> Before:
    return [(s, s.node, s.version) for s in _homes(outs)]


def _undo(before: Before) -> None:
    """Let storages have the values that calls are recorded over, before these are computed and give their memory."""
    for storage, node, version in before:
        storage.take_back(node, version)
    del runtime().pending[:]


def _written(name: str, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Return the plan of a call's last operator, and what it was given."""
    write, found = Plan.write, list[Any]()

    def seen(self: Plan, outs: Any, nodes: Any, numbers: Any, line: object) -> None:
        """Note what is written."""
        found.append((self, outs, nodes, [*numbers], _before(outs)))
        write(self, outs, nodes, numbers, line)

    x, y = (torch.rand(4, 4).to("webgpu") for _ in range(2))
    for _ in range(4):
        runtime().flush()
        WRITES[name](x, y)
    runtime().flush()
    with monkeypatch.context() as patch, _by_python():
        patch.setattr(Plan, "write", seen)
        WRITES[name](x, y)
    plan, outs, nodes, numbers, before = found[-1]
    _undo(before)
    assert plan.written is not None
    return plan, outs, nodes, numbers


def _states(outs: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return what tensors' storages hold, and the nodes behind it down to data."""
    found = []
    for storage in _homes(outs):
        node = storage.node
        slots = _slots(node, {"srcs", "attrs"})
        srcs = [s if s.kind == "buffer" else _slots(s, {"srcs"}) for s in node.srcs]
        waits = [r() for r in runtime().pending].count(storage)
        state = storage.version, storage.donor, slots, srcs, node.attrs[:2], waits
        found.append(state)
    return found


@pytest.mark.parametrize("name", WRITES)
def test_it_writes_what_python_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outs, nodes, numbers = _written(name, monkeypatch)
    before, written, seen = _before(outs), plan.written, []
    for way in (written, None):
        plan.written = way
        _undo(before)
        latest = writes.latest
        # The second time its value waits already.
        for _ in range(2):
            plan.write(outs, nodes, numbers, "program.py:3")
            assert writes.latest is not latest
            latest = writes.latest
            seen.append(_states(outs))
    plan.written = written
    _undo(before)
    assert seen[:2] == seen[2:]
    assert all(donor is node for (_, donor, *_), (_, node, _) in zip(seen[0], before, strict=True))


# Where a storage is somebody else's as well: an object, its attribute, and a value of that.
OTHERS: dict[str, Callable[[Storage], Any]] = {
    "seen by NumPy": lambda s: (s.node, "host", lambda: None),
    "something is lent": lambda s: (s.runtime, "lent", {0: weakref.ref(s.node)}),
    "a clone shares it": lambda s: (s.node, "shared", [weakref.ref(s)]),
    "a guard": lambda s: (writes, "guard", lambda storage: None),
    "a thread computes": lambda s: (s.runtime, "running", 1),
    "another runtime": lambda s: (s, "runtime", copy.copy(s.runtime)),
    "a script keeps it": lambda s: (s, "node", None),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_others_too_python_writes(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outs, nodes, numbers = _written("several nodes", monkeypatch)
    before = _before(outs)
    calls: list[Storage] = []
    monkeypatch.setattr(Storage, "replace", lambda self, node: calls.append(self))
    homes = _homes(outs)
    place, attribute, value = OTHERS[other](homes[-1])
    with monkeypatch.context() as patch:
        if value is None:
            patch.delattr(place, attribute)
        else:
            patch.setattr(place, attribute, value)
        held = [vars(Storage)["node"].__get__(s) for s in homes[:-1]]
        plan.write(outs, nodes, numbers, None)
        assert [s.node for s in homes[:-1]] == held
    assert calls == homes
    plan.write(outs, nodes, numbers, None)
    assert calls == homes and all(s.node not in held for s in homes[:-1])
    _undo(before)


def test_a_captured_write_is_the_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outs, nodes, numbers = _written("elementwise", monkeypatch)
    (storage,) = _homes(outs)
    before = storage.node
    recording = runtime().record()
    try:
        plan.write(outs, nodes, numbers, None)
        assert recording.overwritten[storage] is before
    finally:
        runtime().stop_recording(keep=False)
    assert storage.node is before


def test_a_write_waits_for_who_looks_at_storages(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outs, nodes, numbers = _written("several nodes", monkeypatch)
    before = _before(outs)
    versions = [version for _, _, version in before]
    other = threading.Thread(target=plan.write, args=(outs, nodes, numbers, None))
    with runtime().writing:
        other.start()
        other.join(0.05)
        assert other.is_alive() and [s.version for s in _homes(outs)] == versions
    other.join(PATIENCE)
    assert [s.version for s in _homes(outs)] == [v + 1 for v in versions]
    # It has given the lock back.
    assert runtime().writing.acquire(timeout=PATIENCE)
    runtime().writing.release()
    _undo(before)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_holds_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, outs, nodes, numbers = _written(name, monkeypatch)
    _, objects, (held, _) = plan.written.__module__
    before = _before(outs)
    kept = [*objects, *held, *nodes, nodes, numbers, outs, *outs, *_homes(outs), runtime()]

    def run() -> list[int]:
        """Write a hundred times, some of them in the other way, and return how many hold each object."""
        for n in range(100):
            with monkeypatch.context() as patch:
                if n % 10 == 0:
                    patch.setattr(runtime(), "running", 1)
                plan.write(outs, nodes, numbers, None)
            gone.append(weakref.ref(before[0][0].node))
            _undo(before)
        gc.collect()
        return [sys.getrefcount(o) for o in kept]

    gone: list[weakref.ref[Node]] = []
    run()
    assert all(abs(a - b) < 50 for a, b in zip(run(), run(), strict=True))
    assert all(r() is None for r in gone)
    with pytest.raises(TypeError):
        plan.written(outs)
    with pytest.raises(TypeError):
        plan.written((), nodes, numbers, None)


def _within(call: Call, x: torch.Tensor, y: torch.Tensor, then: Callable[..., None]) -> None:
    """Call until it is known, and once more, with `then` in the kernel of its last operator."""
    find, found = Kinds.find, list[Any]()

    def seen(self: Kinds, args: Any, kwargs: Any, *rest: Any) -> Any:
        """Note which kinds are asked."""
        plan = find(self, args, kwargs, *rest)
        found.append(self)
        if self is last:
            then(self.looks, args, kwargs)
        return plan

    with pytest.MonkeyPatch.context() as patch, _by_python():
        patch.setattr(Kinds, "find", seen)
        last: Kinds | None = None
        for _ in range(5):
            call(x, y)
        last = found[-1]
        call(x, y)


LOOKS: dict[str, Call] = {
    **{name: call for name, call in CALLS.items() if name != "no sources"},
    "a list": lambda x, y: torch.cat([x, y], 1),
    "constants": lambda x, y: x.sum((0, 1), True),
    "nothing given": lambda x, y: torch.nn.functional.linear(x, y),
    "a zero": lambda x, y: torch.nn.functional.leaky_relu(x, -0.0),
    "in place": lambda x, y: x.mul_(y),
    "parts": lambda x, y: x[:, 1:] * y[:, :3],
    "an option": lambda x, y: torch.add(x, y, alpha=2.5),
    "a type": lambda x, y: x.sum(dtype=torch.float32),
}


@pytest.mark.parametrize("name", LOOKS)
def test_it_finds_what_python_does(name: str) -> None:
    x, y = (torch.rand(4, 4).to("webgpu") for _ in range(2))
    other = (
        x.reshape(2, 8),
        x.half(),
        x.t(),
        x.cpu(),
        x[:2, :2],
        torch.nn.Parameter(y),
        y[1],
        2.5,
        1.0,
        0.0,
        None,
    )
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    hits = []

    def compare(looks: Any, args: Any, kwargs: Any) -> None:
        """Look in both ways at calls of this kind, and at such as are of none."""
        ((printed, native),) = looks.found.values()
        assert native is not printed
        asked = [args, [*args], (*args, 1), args[:-1], (*args[:-1], args[0]), (*reversed(args),)]
        asked += [(*args[:-1], v) for v in other]
        if type(args[0]) is list:
            asked += [([*args[0], v], *args[1:]) for v in other] + [((*args[0],), *args[1:])]
        others = [{**kwargs, "more": 1}, {"more": 1}, {}]
        others += [{**kwargs, k: v} for k in kwargs for v in (None, 1.0, 0.5, x)]
        for values, options in [*((v, kwargs) for v in asked), *((args, o) for o in others)]:
            ours, theirs = ((look(values, options, *had), *had) for look, had in (
                (native, ([], [])), (printed, ([], []))
            ))  # fmt: skip
            # Arguments that are no tuple are left to the longer way.
            assert ours == theirs or (type(values) is list and ours == (None, [], []))
            hits.append(ours[0] is not None)

    _within(LOOKS[name], x, y, compare)
    assert any(hits)


def test_a_look_holds_nothing() -> None:
    x, y = (torch.rand(4, 4).to("webgpu") for _ in range(2))
    host = x.cpu()
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    seen = []

    def count(looks: Any, args: Any, kwargs: Any) -> None:
        """Look at calls that are known, and at others."""
        ((_, look),) = looks.found.values()
        _, objects, _ = look.__module__
        nodes = list[Any]()
        assert look(args, {}, nodes, []) is not None and len(nodes) == 2
        kept = [*objects, *nodes, *[n.shape for n in nodes], *args]

        def ask() -> list[int]:
            """Look a hundred times, and return how many hold each object."""
            for _ in range(100):
                for values in (args, (x, x), (x, host), (x, None)):
                    look(values, {}, [], [])
            return [sys.getrefcount(o) for o in kept]

        ask()
        assert all(abs(a - b) < 50 for a, b in zip(ask(), ask(), strict=True))
        with pytest.raises(TypeError):
            look(args)
        seen.append(True)

    _within(CALLS["elementwise"], x, y, count)
    assert seen


def _fails(*args: object, **options: object) -> None:
    raise AssertionError("a kernel in Python is called")


# Calls of one operator each, of kernels that are one function of machine code.
KERNELS: dict[str, Write] = {
    **{
        name: CALLS[name] for name in ("elementwise", "a free number", "sources turned", "a scalar")
    },
    "in place": lambda x, y: x.mul_(y),
    "an option": lambda x, y: torch.add(x, y, alpha=2.5),
    "several results": lambda x, y: torch.native_layer_norm(x, (4,), None, y.sum(0), 1e-5),
    "a product that PyTorch writes into new memory": lambda x, y: x.mv(y.view(-1)[:4]),
    "made of the out= form": lambda x, y: torch.logical_and(x, y),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_known_call_enters_no_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, (a, b) = KERNELS[name], (torch.rand(4, 4) for _ in range(2))
    x, y = a.to("webgpu"), b.to("webgpu")
    for _ in range(4):
        call(x.clone(), y)
    mine, theirs = x.clone(), a.clone()
    torch.webgpu.synchronize()  # type: ignore[attr-defined]
    calls = runtime().ahead.calls
    with monkeypatch.context() as patch:
        patch.setattr(Kinds, "find", _fails)
        made = call(mine, y)
        assert runtime().ahead.calls > calls and runtime().apart
        # Somebody asks for calls, and the device begins with those that are there.
        for place, attribute, value in (
            (active, "count", 1), (runtime(), "recording", object()), (runtime().ahead, "most", calls // 2),
            (runtime(), "lent", {0: None}),
        ):  # fmt: skip
            with patch.context() as other:
                other.setattr(place, attribute, value)
                with pytest.raises(AssertionError, match="in Python"):
                    call(mine, y)
    torch.testing.assert_close(mine.cpu(), theirs) if made is not mine else None
    wanted = call(theirs, b)
    if isinstance(made, tuple):
        assert len(made) == len(wanted)  # type: ignore[arg-type]
        made, wanted = made[0], wanted[0]  # type: ignore[index]
    assert (made is mine) is (wanted is theirs)
    torch.testing.assert_close(made.cpu(), wanted)  # type: ignore[attr-defined]


def test_a_known_call_has_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.Tanh(), torch.rand(4, 4, device="webgpu", requires_grad=True)
    found = []
    for how in (contextlib.nullcontext, _by_python):
        for _ in range(4):
            with how():
                y = layer(x)
                (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
            with monkeypatch.context() as patch:
                patch.setitem(lines.made_again, threading.get_ident(), "again.py:1")
                z = layer(x)
        nodes = [_homes([t])[0].node for t in (y.detach(), g, z.detach())]
        found.append([node.line for node in nodes])
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
    assert found[0] == found[1]
    (code, _), _, again = found[0]
    assert code is test_a_known_call_has_the_users_line.__code__ and again == "again.py:1"


@pytest.mark.parametrize("name", KERNELS)
def test_a_known_call_holds_nothing(name: str) -> None:
    call = KERNELS[name]
    x, y = (torch.rand(4, 4).to("webgpu") for _ in range(2))
    code = sys._getframe().f_code
    kept = [
        x,
        y,
        code,
        call.__code__,
        lines.made_again,
        lines._internal,
        runtime(),
        *nativenodes.COMMON.values(),
    ]

    def run() -> list[int]:
        """Call a hundred times, and return how many hold each object."""
        for _ in range(100):
            call(x, y)
        torch.webgpu.synchronize()  # type: ignore[attr-defined]
        gc.collect()
        node = memory_of(y).held.node  # type: ignore[union-attr]
        return [sys.getrefcount(o) for o in [*kept, node]]

    run()
    assert all(abs(a - b) < 50 for a, b in zip(run(), run(), strict=True))
