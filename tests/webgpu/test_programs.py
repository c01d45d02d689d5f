"""Compiled programs: results against NumPy, memory slots, arguments, checks, caches, and kernels that are refused."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from tests import profiles
from tests.webgpu.support import Pass, missing, named, scale_kernel, scale_program
from webtorch.errors import DeviceError, IndexOutOfRangeError, KernelError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, float32, int32, int64, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Store
from webtorch.ir.program import BufferDecl, Copy, Dispatch, Program, Site

_NUMPY = {float32: np.float32, int32: np.int32}


def _values(device, buffer, dtype="f4"):
    return np.frombuffer(device.download(buffer), dtype)


# -- random programs: the same steps done by NumPy in float64 (int32 wraps)

_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


class _Random:
    """A random program over buffers of one length and two types, and what it computes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.n = self.random.choice([1, 3, 64, 255, 1000, 4097])
        numbers = np.random.default_rng(seed)
        count = self.random.randint(1, 3)
        self.decls: list[BufferDecl] = []
        self.values: list[np.ndarray] = []
        for _ in range(count):
            dtype = self.random.choice([float32, int32])
            self.decls.append(BufferDecl("input", dtype, self.n))
            data = numbers.integers(-50, 50, self.n)
            self.values.append((data / 8 if dtype is float32 else data).astype(_NUMPY[dtype]))
        self.data = [v.copy() for v in self.values]
        self.args = [round(self.random.uniform(-2, 2), 3), self.random.randint(-5, 5)]
        self.routines: list[Kernel] = []
        self.steps: list[Dispatch | Copy] = []
        slots = self.random.randint(2, 4)
        for step in range(self.random.randint(2, 7)):
            self._step(step, slots)
        self.outputs = [len(self.decls) - 1]
        last = self.decls[-1]
        self.decls[-1] = BufferDecl("output", last.dtype, self.n)
        # A second result that takes over an input's memory.
        if self.random.random() < 0.5:
            self._in_place(self.random.randrange(count))

    def _operand(self, live: list[int]) -> tuple[int, DType]:
        number = self.random.choice(live)
        return number, self.decls[number].dtype

    def _step(self, step: int, slots: int) -> None:
        # A temporary slot is overwritten in turn, so only the newest holder of each slot can be read.
        newest: dict[int, int] = {}
        for number, decl in enumerate(self.decls):
            if decl.role == "temporary":
                newest[decl.alias] = number
        live = [i for i, d in enumerate(self.decls) if d.role == "input"] + list(newest.values())
        slot = step % slots
        readable = [b for b in live if self.decls[b].alias != slot]
        if self.random.random() < 0.2:
            source, dtype = self._operand(readable)
            self.decls.append(BufferDecl("temporary", dtype, self.n, slot))
            self.values.append(self.values[source].copy())
            self.steps.append(Copy(source, len(self.decls) - 1))
            return
        (a, dtype), (b, other) = self._operand(readable), self._operand(readable)
        op = self.random.choice(list(_BINARY))
        number = 0 if dtype is float32 else 1
        i = ex.index(0, self.n)
        flip = ex.const(self.n - 1, int32) - i
        used = [a] if a == b else [a, b]
        x = ex.load(0, dtype, i)
        y = ex.cast(ex.load(len(used) - 1, other, flip), dtype)
        value: Expr = ex.binary(op, x, y)
        value = ex.binary("add", value, ex.arg(0, dtype))
        types = [self.decls[u].dtype for u in used]
        buffers = [BufferSlot(t, "read", self.n) for t in types] + [
            BufferSlot(dtype, "write", self.n)
        ]
        kernel = Kernel(
            f"k{step}", (self.n,), (), tuple(buffers), (dtype,), (), (Store(len(used), i, value),)
        )
        self.decls.append(BufferDecl("temporary", dtype, self.n, slot))
        self.routines.append(kernel)
        target = len(self.decls) - 1
        self.steps.append(Dispatch(len(self.routines) - 1, (*used, target), (number,)))
        left, right = self.values[a], self.values[b][::-1]
        if dtype is float32:
            result = _BINARY[op](left.astype("f8"), right.astype("f8")) + np.float32(self.args[0])
        else:
            right = np.trunc(right).astype("i8")
            result = _BINARY[op](left.astype("i8"), right) + self.args[1]
        self.values.append(result.astype(_NUMPY[dtype]))

    def _in_place(self, number: int) -> None:
        dtype = self.decls[number].dtype
        i = ex.index(0, self.n)
        value = ex.load(0, dtype, i) * ex.const(3, dtype)
        buffers = (BufferSlot(dtype, "read_write", self.n),)
        self.routines.append(
            Kernel("triple", (self.n,), (), buffers, (), (), (Store(0, i, value),))
        )
        self.decls.append(BufferDecl("output", dtype, self.n, number))
        self.values.append(self.values[number] * _NUMPY[dtype](3))
        self.steps.append(Dispatch(len(self.routines) - 1, (len(self.decls) - 1,), ()))
        self.outputs.append(len(self.decls) - 1)

    def program(self) -> Program:
        inputs = tuple(i for i, d in enumerate(self.decls) if d.role == "input")
        parts = tuple(self.routines), tuple(self.decls), tuple(self.steps)
        return Program(*parts, (float32, int32), inputs, tuple(self.outputs))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("batch", range(10))
def test_200_random_programs_agree_with_numpy(device, batch):
    for seed in range(20 * batch, 20 * batch + 20):
        made = _Random(seed)
        program = made.program()
        executable = device.compile(program)
        for repeat in range(2):
            inputs = [
                device.upload(v.tobytes(), made.decls[i].dtype, made.n)
                for i, v in enumerate(made.data)
            ]
            found = executable.run(inputs, made.args)
            for number, buffer in zip(made.outputs, found, strict=True):
                expected = made.values[number]
                alias = made.decls[number].alias if made.decls[number].role == "output" else None
                assert alias is None or buffer is inputs[alias]
                actual = _values(device, buffer, expected.dtype)
                message = f"seed {seed}, run {repeat}\n{program}"
                # Differences of large intermediates: the tolerance follows the largest of them.
                scale = max(float(np.abs(v.astype("f8")).max()) for v in made.values)
                exact = (
                    {"rtol": 0, "atol": 0} if expected.dtype == np.int32 else {"atol": 1e-6 * scale}
                )
                np.testing.assert_allclose(
                    actual, expected, err_msg=message, **{"rtol": 2e-6, **exact}
                )


# -- shapes of work


@pytest.mark.covers("N13")
@pytest.mark.long  # tests/ops/test_table.py has it, through the tensors.
def test_more_than_65535_workgroups(device):
    # One invocation a workgroup cannot be asked of the renderer; 3 * 65,535 * 256 points fold any of its grids.
    n = 65_535 * 256 + 12_345
    executable = device.compile(scale_program(n))
    x = np.arange(n, dtype="f4") % 1000
    (y,) = executable.run([device.upload(x.data, float32, n)], [2.0, 0.5])
    assert np.array_equal(_values(device, y), (2 * x + 1) * 0.5 + 1)
    del y
    device.empty_cache()


def test_a_folded_grid_of_70000_workgroups(with_source):
    source = """
@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) w: vec3<u32>) {
  let i = w.y * 35000u + w.x;
  if (i < 69999u) { b0[i] = i * 3u; }
}
"""
    device = with_source(fold=Pass(source, (35000, 2, 1), (1, 1, 1)))
    kernel = named("fold", BufferSlot(uint32, "write", 69999))
    program = Program(
        (kernel,), (BufferDecl("output", uint32, 69999),), (Dispatch(0, (0,), ()),), (), (), (0,)
    )
    (y,) = device.compile(program).run([], [])
    assert np.array_equal(_values(device, y, "u4"), np.arange(69999) * 3)


def test_a_grid_beyond_the_limit_is_refused_when_it_is_compiled(with_source):
    device = with_source(wide=Pass("@compute @workgroup_size(1) fn main() {}", (70000, 1, 1)))
    kernel = named("wide", BufferSlot(uint32, "write", 1))
    program = Program(
        (kernel,), (BufferDecl("output", uint32, 1),), (Dispatch(0, (0,), ()),), (), (), (0,)
    )
    with pytest.raises(KernelError, match=r"wide.*\(70000, 1, 1\)"):
        device.compile(program)


def test_a_run_takes_what_was_prepared_for_its_inputs(device):
    executable = device.compile(scale_program(4))
    x, y = (device.upload(np.full(4, v, "f4").tobytes(), float32, 4) for v in (1.0, 2.0))

    def run(given):
        return _values(device, executable.run([given], [2.0, 1.0])[0]).tolist()

    expected = run(x), run(y)
    assert expected[0] != expected[1]
    drop = executable.prepare([x], [3.0, 1.0])
    made = executable.plan_count
    assert run(x) == expected[0]
    assert executable.plan_count == made
    drop()
    before = device.memory_allocated()
    executable.prepare([x], [3.0, 1.0])
    # Another run has memory of its own, and gives back what was prepared.
    assert run(y) == expected[1]
    executable.prepare([x], [3.0, 1.0])()
    assert device.memory_allocated() == before
    # With the very same numbers it is encoded already.
    args, submits = [2.0, 1.0], device.submits
    drop = executable.prepare([x], args)
    assert device.submits == submits
    found = executable.run([x], args)[0]
    assert device.submits > submits and _values(device, found).tolist() == expected[0]
    drop()


def test_of_kernels_that_are_compiled_at_once_the_refused_one_is_named(with_source):
    bind = "@group(0) @binding(0) var<storage, read_write> o: array<u32>;\n"
    body = "@compute @workgroup_size(1) fn main() {{ o[0] = {}; }}"
    texts = {f"kernel{n}": bind + body.format(f"{n}u" if n != 3 else "missing") for n in range(6)}
    device = with_source(**{name: Pass(text) for name, text in texts.items()})

    def compiled(*names):
        kernels = tuple(named(name, BufferSlot(uint32, "write", 1)) for name in names)
        declared = (BufferDecl("output", uint32, 1),) * len(names)
        steps = tuple(Dispatch(n, (n,), ()) for n in range(len(names)))
        outputs = tuple(range(len(names)))
        return device.compile(Program(kernels, declared, steps, (), (), outputs))

    with pytest.raises(KernelError, match=r"(?s)compile kernel3: .*missing"):
        compiled(*texts)
    found = compiled(*(name for name in texts if name != "kernel3")).run([], [])
    assert [int(_values(device, b, "u4")[0]) for b in found] == [0, 1, 2, 4, 5]


def test_passes_share_scratch_memory_by_number(with_source):
    bind = "@group(0) @binding({}) var<storage, read_write> {}: array<u32>;\n"
    first = bind.format(0, "s0") + bind.format(1, "s1")
    first += "@compute @workgroup_size(1) fn main() { s0[3] = 7u; s1[1] = 5u; }"
    second = bind.format(0, "out") + bind.format(1, "s0") + bind.format(2, "s1")
    second += "@compute @workgroup_size(1) fn main() { out[0] = s0[3] * 10u + s1[1]; }"
    device = with_source(
        two=[
            Pass(first, slots=(), scratch=(16, 8), bindings=("read_write",) * 2),
            Pass(second, slots=(0,), scratch=(16, 8), bindings=("read_write",) * 3),
        ]
    )
    kernel = named("two", BufferSlot(uint32, "write", 1))
    program = Program(
        (kernel,), (BufferDecl("output", uint32, 1),), (Dispatch(0, (0,), ()),), (), (), (0,)
    )
    (y,) = device.compile(program).run([], [])
    assert _values(device, y, "u4").tolist() == [75]


def test_a_reduction_and_a_zero_dimensional_result(device):
    n = 100_003
    i = ex.index(0, n)
    kernel = Kernel(
        "total", (), (n,), (BufferSlot(float32, "read", n), BufferSlot(float32, "write", 1)), (),
        (Reduce("sum", ex.load(0, float32, i), float32),),
        (Store(1, ex.const(0, int32), ex.reduced(0, float32)),),
    )  # fmt: skip
    decls = BufferDecl("input", float32, n), BufferDecl("output", float32, 1)
    program = Program((kernel,), decls, (Dispatch(0, (0, 1), ()),), (), (0,), (1,))
    x = np.random.default_rng(0).standard_normal(n).astype("f4")
    (y,) = device.compile(program).run([device.upload(x.data, float32, n)], [])
    assert _values(device, y)[0] == pytest.approx(x.astype("f8").sum(), rel=1e-5)


def test_a_program_of_copies_alone(device):
    decls = tuple(BufferDecl(r, int64, 5) for r in ("input", "temporary", "output"))
    program = Program((), decls, (Copy(0, 1), Copy(1, 2)), (), (0,), (2,))
    x = np.arange(5)
    (y,) = device.compile(program).run([device.upload(x.tobytes(), int64, 5)], [])
    assert _values(device, y, "i8").tolist() == x.tolist()


def test_an_input_may_be_an_output_and_an_output_may_be_named_twice(device):
    decls = BufferDecl("input", float32, 3), BufferDecl("output", float32, 3)
    program = Program(
        (scale_kernel(3),), decls, (Dispatch(0, (0, 1), (0,)),), (float32,), (0,), (0, 1, 1)
    )
    x = device.upload(bytes(12), float32, 3)
    same, y, again = device.compile(program).run([x], [2.0])
    assert same is x and y is again
    assert _values(device, y).tolist() == [1, 1, 1]


# -- arguments


@pytest.mark.covers("M22", "M23")
def test_changing_arguments_compiles_nothing_and_binds_nothing_new(device):
    executable = device.compile(scale_program(77))
    x = device.upload(np.ones(77, "f4").data, float32, 77)
    kept = [executable.run([x], [0.0, 0.0])[0]]
    compiled = device.kernels_compiled
    for step in range(100):
        kept[:] = executable.run([x], [float(step), 0.5])
        assert _values(device, kept[0])[5] == (step + 1) * 0.5 + 1
    assert device.kernels_compiled == compiled
    assert len(executable._plans) <= 3


def test_queued_runs_each_see_their_own_arguments(device):
    executable = device.compile(scale_program(8))
    x = device.upload(np.ones(8, "f4").data, float32, 8)
    results = [executable.run([x], [float(step), 1.0])[0] for step in range(50)]
    assert [_values(device, y)[0] for y in results] == [step + 2 for step in range(50)]


def test_runs_together_are_few_submissions(device):
    executable = device.compile(scale_program(8))
    x = device.upload(np.ones(8, "f4").data, float32, 8)
    before = device.submits
    with device.together() as sent:
        # The arguments of one program are in one place: what reads the last ones is submitted first.
        results = [executable.run([x], [float(step // 4), 1.0])[0] for step in range(12)]
        chain = executable.run(results[:1], [4.0, 1.0])
        assert sent.sent == 12
    assert (sent.sent, device.submits - before) == (13, 4)
    assert [_values(device, y)[0] for y in results] == [step // 4 + 2 for step in range(12)]
    assert _values(device, chain[0])[0] == 10


def test_what_ran_before_a_failure_is_submitted(device):
    executable = device.compile(scale_program(8))
    x = device.upload(np.ones(8, "f4").data, float32, 8)
    results = []

    def run() -> None:
        with device.together():
            for numbers in ([2.0, 1.0], [2.0]):
                results.extend(executable.run([x], numbers))

    with pytest.raises(ValueError, match="arguments"):
        run()
    assert device.encoding.sent == 1
    assert _values(device, results[0])[0] == 4


def test_dispatches_with_the_same_arguments_share_a_chunk(device):
    steps = tuple(Dispatch(0, (i, i + 1), (i % 2,)) for i in range(6))
    roles = ["input", *["temporary"] * 5, "output"]
    decls = tuple(BufferDecl(r, float32, 4) for r in roles)
    program = Program((scale_kernel(4),), decls, steps, (float32, float32), (0,), (6,))
    executable = device.compile(program)
    assert len({p.uniform for p in executable.layout.passes}) == 2
    (y,) = executable.run([device.upload(bytes(16), float32, 4)], [2.0, 3.0])
    expected = 0.0
    for number in range(6):
        expected = expected * (2.0, 3.0)[number % 2] + 1
    assert _values(device, y).tolist() == [expected] * 4


def test_a_device_begins_with_a_long_program_while_it_is_encoded(device):
    count = 200
    steps = tuple(Dispatch(0, (i, i + 1), (0,)) for i in range(count))
    roles = ["input", *["temporary"] * (count - 1), "output"]
    decls = tuple(BufferDecl(r, float32, 4) for r in roles)
    program = Program((scale_kernel(4),), decls, steps, (float32,), (0,), (count,))
    executable = device.compile(program)
    x = device.upload(bytes(16), float32, 4)
    # From some run on by machine code.
    for _ in range(10):
        before = device.submits
        (y,) = executable.run([x], [1.0])
        # After 64 dispatches, and after 128 more.
        assert device.submits - before == 3
    assert _values(device, y).tolist() == [count] * 4
    before = device.submits
    with device.together():
        executable.run([x], [1.0])
    assert device.submits - before == 1
    before = device.submits
    with device.together():
        (y,) = executable.run([x], [-1.0])
        pending = device.download_async(y)
    # The copy of a read is submitted with them.
    assert device.submits - before == 1
    assert np.frombuffer(pending.result(), "f4").tolist() == [count % 2] * 4
    (y,) = executable.run([x], [1.0])
    # While a read is under way, whose copy is one, it works as it is.
    pending, before = device.download_async(y), device.submits
    executable.run([x], [1.0])
    assert device.submits - before == 2
    pending.result()
    executable.run([x], [1.0])
    assert device.submits - before == 5


def test_a_kernel_with_100_arguments(device):
    n, count = 5, 100
    i = ex.index(0, n)
    value = ex.load(0, float32, i)
    for number in range(count):
        value = value + ex.arg(number, float32)
    slots = BufferSlot(float32, "read", n), BufferSlot(float32, "write", n)
    types = (float32,) * count
    kernel = Kernel("many", (n,), (), slots, types, (), (Store(1, i, value),))
    decls = [BufferDecl(r, float32, n) for r in ("input", "temporary", "output")]
    # The second step takes them in the other order: another chunk behind a wide one.
    order = tuple(range(count))
    steps = Dispatch(0, (0, 1), order), Dispatch(0, (1, 2), order[::-1])
    program = Program((kernel,), tuple(decls), steps, types, (0,), (2,))
    x = device.upload(bytes(4 * n), float32, n)
    (y,) = device.compile(program).run([x], [float(v) for v in range(count)])
    assert _values(device, y).tolist() == [2 * sum(range(count))] * n


def test_wrong_counts_and_foreign_buffers_are_refused(device):
    executable = device.compile(scale_program(4))
    x = device.upload(bytes(16), float32, 4)
    with pytest.raises(ValueError, match="has 1 inputs, 2 were given"):
        executable.run([x, x], [1.0, 1.0])
    with pytest.raises(ValueError, match="has 2 arguments, 1 were given"):
        executable.run([x], [1.0])
    with pytest.raises(DeviceError, match="not a buffer of"):
        executable.run([object()], [1.0, 1.0])


# -- index checks


def _gather(m: int, n: int, line: str, op: str = "embedding") -> Program:
    i = ex.index(0, m)
    position = ex.cast(ex.load(0, int64, i), int32)
    slots = (
        BufferSlot(int64, "read", m),
        BufferSlot(float32, "read", n),
        BufferSlot(float32, "write", m),
    )
    low, high = ex.const(0, int32), ex.const(n - 1, int32)
    safe = ex.minimum(ex.maximum(position, low), high)
    kernel = Kernel(
        "gather", (m,), (), slots, (), (), (Store(2, i, ex.load(1, float32, safe)),), (Check(position, n, 0),)
    )  # fmt: skip
    decls = (
        BufferDecl("input", int64, m),
        BufferDecl("input", float32, n),
        BufferDecl("output", float32, m),
    )
    sites = (Site(op, 0, n, line),)
    return Program((kernel,), decls, (Dispatch(0, (0, 1, 2), ()),), (), (0, 1), (2,), sites)


@pytest.mark.parametrize("bad", [50, -1, 1 << 30])
def test_a_bad_index_is_raised_at_the_next_read_and_only_there(device, bad):
    executable = device.compile(_gather(100, 50, "train.py:12"))
    table = device.upload(np.arange(50, dtype="f4").data, float32, 50)
    index = np.arange(100) % 50
    (good,) = executable.run([device.upload(index.data, int64, 100), table], [])
    assert np.array_equal(_values(device, good), index)
    index[63] = bad
    (y,) = executable.run([device.upload(index.data, int64, 100), table], [])
    message = (
        rf"embedding: index {bad} is out of bounds for dimension 0 with size 50 \(train.py:12\)"
    )
    with pytest.raises(IndexOutOfRangeError, match=message):
        device.download(table)
    kept = _values(device, y)
    assert np.array_equal(np.delete(kept, 63), np.delete(index, 63))
    # The words were cleared: a good run is good again.
    index[63] = 0
    executable.run([device.upload(index.data, int64, 100), table], [])
    device.synchronize()


def test_synchronize_raises_too_and_the_first_failing_program_is_named(device):
    first, second = (device.compile(_gather(4, 3, "a.py:1", op)) for op in ("gather", "take"))
    table = device.upload(bytes(12), float32, 3)
    index = device.upload(np.array([0, 9, 0, 0]).data, int64, 4)
    second.run([index, table], [])
    first.run([index, table], [])
    with pytest.raises(IndexOutOfRangeError, match="take: index 9"):
        device.synchronize()
    device.synchronize()


# -- caches and compiling


@pytest.mark.covers("M22")
def test_a_kernel_is_compiled_once_for_all_programs(device):
    device.compile(scale_program(321))
    compiled = device.kernels_compiled
    device.compile(scale_program(321))
    assert device.kernels_compiled == compiled


@pytest.mark.covers("M23")
@pytest.mark.parametrize(("planned", "most"), [(100, 100), (0, 32)])
def test_bind_groups_are_bounded(device, monkeypatch, planned, most):
    # A program of one dispatch keeps those of more sets of memory than a large one does.
    monkeypatch.setattr("webtorch.runtime.backends.webgpu.executable._PLANNED", planned)
    executable = device.compile(scale_program(16))
    for _ in range(3):
        inputs = [device.upload(bytes(64), float32, 16) for _ in range(60)]
        outputs = [executable.run([x], [1.0, 1.0]) for x in inputs]
        assert len(outputs) == 60
    assert 32 <= len(executable._plans) <= most
    assert all(len(step.groups) <= 16 for step in executable._steps)


def test_machine_code_encodes_what_python_encodes(device, monkeypatch):
    from webtorch.runtime.backends.webgpu import executable as module

    if device.machine_loop is None:
        missing("no compiler for the loop: pip install 'webtorch[cpu]'")
    # Twenty dispatches of two kernels and a copy between them: two passes.
    n = 300
    decl = [BufferDecl(role, float32, n) for role in ("input", "temporary", "temporary", "output")]
    there, back = Dispatch(0, (0, 1), (0,)), Dispatch(1, (1, 2), (1,))
    steps = (there, back, *[Dispatch(0, (2, 1), (0,)), back] * 4, Copy(2, 3))
    steps += (Dispatch(0, (3, 1), (0,)), Dispatch(1, (1, 3), (1,))) * 5
    kernels = (scale_kernel(n), scale_kernel(n, "again"))
    program = Program(kernels, tuple(decl), steps, (float32, float32), (0,), (3,))
    data = np.linspace(-1, 1, n, dtype="f4")
    x = device.upload(data.tobytes(), float32, n)
    found = []
    for first in (1, 10**9):
        monkeypatch.setattr(module, "_MACHINE_RUNS", first)
        executable = device.compile(program)
        for factor in (0.5, 0.75):
            (y,) = executable.run([x], [factor, 1.25])
            found.append(_values(device, y).copy())
        plan = list(executable._plans.values())[-1]
        assert (plan.tables is not None) == (first == 1)
        if plan.tables is not None:
            assert [len(t) for t in plan.tables] == [5 * 10, 5 * 10]
    expected = data.astype("f8")
    for _ in range(10):
        expected = (expected * 0.75 + 1) * 1.25 + 1
    assert np.array_equal(found[0], found[2]) and np.array_equal(found[1], found[3])
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)


def test_a_program_gets_the_memory_that_it_had_before(device):
    executable = device.compile(scale_program(64))
    x = device.upload(bytes(256), float32, 64)
    held = executable.run([x], [1.0, 1.0])
    for _ in range(200):
        # Other results of this size come and go in another order, and the last one is still held.
        others = [device.allocate(float32, 64) for _ in range(3)]
        held = executable.run([x], [1.0, 1.0])
        del others[1], others
    assert held and len(executable._plans) <= 4


def test_memory_given_back_is_not_kept_by_bind_groups(device):
    executable = device.compile(scale_program(1 << 16))
    x = device.upload(bytes(4 << 16), float32, 1 << 16)
    executable.run([x], [1.0, 1.0])
    device.empty_cache()
    assert not executable._plans
    (y,) = executable.run([x], [1.0, 1.0])
    assert _values(device, y)[-1] == 2.0


@pytest.mark.covers("P2")
def test_a_refused_kernel_shows_its_source_line_and_the_engine_s_words(with_source):
    source = "@group(0) @binding(0) var<storage, read_write> b0: array<f32>;\n\n"
    source += "@compute @workgroup_size(1)\nfn main() {\n  b0[0] = vec2<f32>(1f, 2f);\n}\n"
    device = with_source(broken=Pass(source))
    kernel = named("broken", BufferSlot(float32, "write", 1))
    program = Program(
        (kernel,), (BufferDecl("output", float32, 1),), (Dispatch(0, (0,), ()),), (), (), (0,)
    )
    with pytest.raises(KernelError) as caught:
        device.compile(program)
    text = str(caught.value)
    assert "broken" in text and ">    5 |   b0[0] = vec2<f32>(1f, 2f);" in text
    # The device goes on.
    device.synchronize()


def test_source_gives_the_wgsl(device):
    text = device.source(scale_kernel(10))
    assert "@compute" in text and "@workgroup_size" in text


@pytest.mark.covers("O4")
def test_four_threads_on_one_device(device):
    executable = device.compile(scale_program(1000))
    failures: list[object] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).integers(0, 100, 1000).astype("f4")
        for step in range(25):
            buffer = device.upload(x.data, float32, 1000)
            (y,) = executable.run([buffer], [float(seed), float(step)])
            if not np.array_equal(_values(device, y), (x * seed + 1) * step + 1):
                failures.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_description_and_limits(device):
    assert device.description().endswith(")")
    limits = device.limits
    assert limits.max_buffers_per_kernel >= 6 and limits.max_workgroups_per_dim == 65535
    played = profiles.chosen()
    assert limits.is_gpu == (played.is_gpu if played else device.adapter.is_hardware)
    assert limits.has_f16 == ("shader-f16" in device.features)


def test_what_is_written_comes_after_programs_that_wait(device):
    """New memory may be what a program that is not submitted yet still writes to."""
    executable = device.compile(scale_program(2))
    x = device.upload(np.ones(2, "f4").data, float32, 2)
    executable.run([x], [2.0, 0.5])
    with device.together():
        (out,) = executable.run([x], [2.0, 0.5])
        block = out.block
        del out
        words = device.status_words()
    assert words.block is block
    assert _values(device, words).tolist() == [0, 0]
