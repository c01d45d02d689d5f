"""What follows a product is computed while its sums are in registers: every form of every template
against NumPy, and whole programs against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lower import test_wgsl_conv, test_wgsl_matrix_units
from tests.lower.harness import NUMPY, adapters, from_bf16, open_device, to_bf16
from tests.lower.test_wgsl_matmul import LAYOUTS, TYPES, make
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, float16, float32
from webtorch.ir.kernel import BufferSlot, Convolution, Matmul, Store
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.ir.view import numel
from webtorch.lower.templates import conv, gemm, matmul, matrix_units
from webtorch.lower.templates.generic import conv_kernel, matmul_kernel, within, without_epilogue
from webtorch.lower.templates.tuning import TILES, MatrixTile, Tile
from webtorch.lower.wgsl import WgslPass

torch = pytest.importorskip("torch")
import webtorch  # noqa: E402

pytestmark = pytest.mark.usefixtures("tiles_for_small_products")
Routine = Matmul | Convolution
SCALE = 0.5


def finished(r: Routine, out: DType | None = None) -> Routine:
    """Return a product whose sums are stored (buffer 2), and beside them, in place of a residual
    (buffer 3), max(sum + bias, 0) * scale + residual; the bias (buffer 4) is one of channels of an
    image, of columns of a matrix."""
    sizes, dtype = r.points, out or r.buffers[2].dtype
    index = [ex.index(d, s) for d, s in enumerate(sizes)]
    flat: ex.Expr = ex.const(0, index[0].dtype)
    for i, s in zip(index, sizes, strict=True):
        flat = flat * s + i
    along = 1 if len(sizes) == 3 and isinstance(r, Convolution) else len(sizes) - 1
    slots = (
        *r.buffers[:2],
        r.buffers[2],
        BufferSlot(dtype, "read_write", numel(sizes)),
        BufferSlot(dtype, "read", sizes[along]),
    )
    kind = r.accumulates
    total = ex.reduced(0, kind)
    biased = total + ex.cast(ex.load(4, dtype, index[along]), kind)
    scaled = ex.maximum(biased, ex.const(0, kind)) * ex.cast(ex.arg(0, float32), kind)
    value = scaled + ex.cast(ex.load(3, dtype, flat), kind)
    stores = (Store(2, flat, ex.cast(total, slots[2].dtype)), Store(3, flat, ex.cast(value, dtype)))
    return replace(r, buffers=slots, args=(float32,), epilogue=stores)


def values(slot: BufferSlot, rng: Any, integral: bool) -> Any:
    x = rng.integers(-3, 4, slot.elements) if integral else rng.standard_normal(slot.elements)
    return to_bf16(x) if slot.dtype is bfloat16 else x.astype(NUMPY[slot.dtype.name])


def widened(x: Any, dtype: DType) -> Any:
    return (from_bf16(x) if dtype is bfloat16 else x).astype(np.float64)


def check(
    r: Routine,
    limits: Limits | None = None,
    passes: Callable[[Routine, Limits], list[WgslPass]] | None = None,
    f16: bool = True,
) -> None:
    """Run `finished(r)` and compare it with what NumPy makes of the sums of the generic form."""
    device = open_device(f16)
    limits = limits or device.limits
    whole = finished(r)
    rng = np.random.default_rng(0)
    integral = r.accumulates.is_integral
    inputs = [values(s, rng, integral) for s in whole.buffers]
    scale = 2.0 if integral else SCALE
    kind = r.accumulates
    exact = replace(r, buffers=(*r.buffers[:2], BufferSlot(kind, "write", numel(r.points))))
    generic = matmul_kernel(exact) if isinstance(exact, Matmul) else conv_kernel(exact)
    sums = device.run(generic, [*inputs[:2], None])[2].astype(np.float64)
    shown = passes(whole, limits) if passes is not None else None
    result = device.run(whole, [*inputs[:2], None, *inputs[3:]], (scale,), limits, shown)
    dtype = r.buffers[2].dtype
    grid = sums.reshape(r.points)
    bias = widened(inputs[4], dtype)
    if isinstance(r, Convolution) and grid.ndim == 3:
        bias = bias[:, None]
    residual = widened(inputs[3], dtype).reshape(r.points)
    expected = np.maximum(grid + bias, 0) * scale + residual
    # Both sums are rounded, in different orders.
    step = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype.name, 0.0)
    far = 8 * step * np.sqrt(generic.inner_count)
    for number, wanted in ((2, grid), (3, expected)):
        np.testing.assert_allclose(
            result[number], wanted.ravel(), rtol=2 * step, atol=far, err_msg=f"buffer {number}"
        )


@pytest.mark.one_in(4)
@pytest.mark.covers("M11")
@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize("types", TYPES)
def test_every_type(types: str, gpu: bool) -> None:
    for number, (batch, m, n, k) in enumerate((((), 33, 65, 30), ((2, 3), 8, 12, 16))):
        layout = LAYOUTS[(number + gpu) % 4]
        for f16 in (True, False):
            limits = replace(open_device(f16).limits, is_gpu=gpu)
            check(make(batch, m, n, k, TYPES[types], *layout), limits, f16=f16)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("tile", [None, *TILES], ids=str)
def test_every_tile(tile: Tile | None) -> None:
    limits = open_device().limits
    if tile is not None and tile.shared_bytes > limits.workgroup_memory_bytes:
        pytest.skip("the adapter has too little workgroup memory for this tile")
    shapes = ((64, 64, 64, 1), (130, 100, 40, 1), (20, 24, 2000, 3), (33, 27, 30, 1))
    number = 0 if tile is None else TILES.index(tile) + 1
    m, n, k, split = shapes[number % 4]

    def passes(r: Routine, limits: Limits) -> list[WgslPass]:
        assert isinstance(r, Matmul)
        return gemm.product_passes(matmul.product(r), limits, tile, split)

    check(make((), m, n, k, TYPES["f32"], *LAYOUTS[number % 3]), limits, passes)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 1, 5000), (1, 300, 200), (300, 1, 200), (2, 3, 4), (4, 4, 6000)],
    ids=str,
)
def test_narrow_products(m: int, n: int, k: int) -> None:
    for gpu in adapters(n + k):
        limits = replace(open_device().limits, is_gpu=gpu)
        check(make((3,), m, n, k, TYPES["f32"]), limits)


@pytest.mark.parametrize(
    ("tile", "m", "n", "k", "split", "out"),
    [
        (MatrixTile(2, 2, 1, 1, 32), 64, 64, 64, 1, float16),
        (MatrixTile(2, 1, 1, 2, 32), 40, 56, 200, 3, float32),
    ],
    ids=str,
)
def test_matrix_units(tile: MatrixTile, m: int, n: int, k: int, split: int, out: DType) -> None:
    limits = replace(
        test_wgsl_matrix_units.WITH,
        max_buffers_per_kernel=open_device().limits.max_buffers_per_kernel,
    )

    def passes(r: Routine, limits: Limits) -> list[WgslPass]:
        assert isinstance(r, Matmul)
        found = matrix_units.matrix_passes(matmul.product(r), limits, tile, split)
        return [test_wgsl_matrix_units.emulated(p) for p in found]

    r = make((), m, n, k, (float16, float16, out))
    assert isinstance(r, Matmul)
    assert matrix_units.choose(matmul.product(finished(r)), limits, "dawn")  # type: ignore[arg-type]
    check(r, limits, passes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", test_wgsl_conv.KINDS)
@pytest.mark.parametrize("case", test_wgsl_conv.CASES)
def test_convolutions(case: str, kind: str) -> None:
    for gpu in adapters([*test_wgsl_conv.CASES].index(case)):
        dtype = bfloat16 if gpu and case == "odd" else float32
        r, _, _ = test_wgsl_conv.make(case, kind, dtype)
        check(r, replace(open_device().limits, is_gpu=gpu))


def test_phases_of_strided_gradients() -> None:
    for case in ("strided", "odd", "skips"):
        r, _, _ = test_wgsl_conv.make(case, "input", float32)
        check(r, None, lambda r, limits: conv._phases(r, limits, "naga"))  # type: ignore[arg-type]


@pytest.mark.parametrize("types", ["f32", "f16", "i32"])
def test_parts_on_a_processor_are_the_same(types: str) -> None:
    """Devices without such templates run the product, then the rest."""
    r = make((2,), 5, 6, 7, TYPES[types])
    whole = finished(r)
    plain, after, order, scratch = without_epilogue(whole)
    # Sums wait in the memory of a result, unless that is narrower.
    assert (order[0], scratch is None) == ((5, False) if types == "f16" else (2, True))
    device, rng = open_device(), np.random.default_rng(1)
    inputs = [values(s, rng, types == "i32") for s in whole.buffers]
    one = device.run(whole, [*inputs[:2], None, *inputs[3:]], (2.0,))
    sums = device.run(plain, [*inputs[:2], None])[2]
    every = [*inputs, sums]
    if scratch is None:
        every[2] = sums
    two = device.run(after, [every[n] for n in order], (2.0,))
    for number in (2, 3):
        np.testing.assert_allclose(two[order.index(number)], one[number], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", ["matmul", "convolution"])
def test_stores_under_a_test_keep_it(form: str) -> None:
    """Elements for which a store's test does not hold stay as they were, in every form."""
    if form == "matmul":
        r: Routine = make((2,), 5, 6, 7, TYPES["f32"])
        generic: Callable[..., Any] = matmul_kernel
    else:
        r, _, _ = test_wgsl_conv.make("3x3", "forward", float32)
        generic = conv_kernel
    whole = finished(r)
    valid = within(ex.index(len(r.points) - 1, r.points[-1]), 4)
    slots = tuple(
        replace(b, access="read_write") if i == 2 else b for i, b in enumerate(whole.buffers)
    )
    whole = replace(
        whole, buffers=slots, epilogue=tuple(replace(s, valid=valid) for s in whole.epilogue)
    )
    device, rng = open_device(), np.random.default_rng(2)
    inputs = [values(s, rng, False) for s in whole.buffers]
    one = device.run(whole, inputs, (2.0,))
    kept = inputs[2].reshape(-1, r.points[-1])
    np.testing.assert_array_equal(one[2].reshape(kept.shape)[:, 4:], kept[:, 4:])
    assert (one[2].reshape(kept.shape)[:, :4] != kept[:, :4]).all()
    plain, after, order, scratch = without_epilogue(whole)
    assert scratch is not None
    sums = device.run(plain, [*inputs[:2], None])[2]
    parts = device.run(after, [[*inputs, sums][n] for n in order], (2.0,))
    alone = device.run(generic(whole), inputs, (2.0,))
    for number in (2, 3):
        for found in (parts[order.index(number)], alone[number]):
            np.testing.assert_allclose(found, one[number], rtol=1e-5, atol=1e-5)


def test_a_page_on_the_processor_holds_sums_until_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums that are wider than the result wait in scratch memory, beside that of the product."""
    from webtorch.runtime.backends.wasm import program as pages

    inputs = [torch.randn(32, 32), torch.randn(32, 32), torch.randn(32)]
    _, program = fused(lambda x, w, b: (x @ w) > b, *inputs)
    assert program.routines[0].epilogue  # type: ignore[union-attr]
    noted: list[tuple[set[int], set[int]]] = []
    call = pages._LayOut.call

    def note(self: Any, number: int, units: int, parts: int, cells: Any, *rest: Any) -> None:
        noted.append((set(cells), set(self.page.memory.blocks)))
        call(self, number, units, parts, cells, *rest)

    monkeypatch.setattr(pages._LayOut, "call", note)
    pages.lay_out(program, pages.Page(), {})
    assert len(noted) > 1
    read, held = noted[-1]
    # The result, the bias and the sums.
    assert len(read) == 3 and read <= held


def fused(function: Callable[..., Any], *tensors: Any) -> tuple[list[Any], Program]:
    """Return the results on WebGPU and the compiled program."""
    step = webtorch.compile(function)
    ours = [
        webtorch.tensor(
            t.tolist(), dtype=getattr(webtorch, str(t.dtype).split(".")[1]), device="webgpu"
        )
        for t in tensors
    ]
    out = step(*ours)
    found = [out] if not isinstance(out, tuple) else list(out)
    return found, step.program()


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "bias": (lambda x, w, b, r: x @ w + b, 1),
    "bias gelu residual": (
        lambda x, w, b, r: r + gelu(x @ w + b),
        1,
    ),
    "also stored": (lambda x, w, b, r: (lambda h: (h, h * h))(x @ w), 1),
    "two results": (lambda x, w, b, r: (lambda h: (h, (h + b).sigmoid()))(x @ w - r), 1),
    "operand again": (lambda x, w, b, r: r @ r[:5].T.contiguous()[:, :5] + r[:, :5], None),
    "square": (lambda x, w, b, r: (x @ x.T).relu() + (x @ x.T), 1),
    "comparison": (lambda x, w, b, r: (x @ w) > b, 1),
    "batched": (
        lambda x, w, b, r: (x.reshape(3, 5, 9) @ w).tanh() * r.reshape(3, 5, 7),
        1,
    ),
    "transposed result": (lambda x, w, b, r: (x @ w).T + b[:, None], None),
    "transposed operand": (lambda x, w, b, r: (w.T @ x.T) * 2 + b[:, None], 1),
    "columns of a residual": (lambda x, w, b, r: x @ w + r[:1] * r[:, :1], 1),
    "indexed": (lambda x, w, b, r: x @ w + r[torch_index(r)], None),
    # Scaled: exp turns an absolute error of its operand, which would be up to 28, into a relative one, so that
    # sums in other orders differ by 5e-6 of the result, and PyTorch by 1.5e-6 from the true one.
    "chain of products": (lambda x, w, b, r: (((x @ w + b).relu() @ w.T) * 0.1).exp(), 2),
    "reduced": (lambda x, w, b, r: (x @ w + b).relu().sum(0), 2),
    "softmax": (lambda x, w, b, r: ((x @ w) * 0.3 + b).softmax(-1), 2),
    "dropped": (lambda x, w, b, r: x @ w + 0 * r, 1),
    "dot": (lambda x, w, b, r: x[:1] @ w[:, :1] + b[:1], 1),
    "gate, up and silu": (
        lambda x, w, b, r: (lambda gate: gate * gate.sigmoid())(x @ w) * (x @ r[:9]),
        2,
    ),
    "matrix and vector": (lambda x, w, b, r: (x @ w[:, 0]).relu() + r[:, 0], 1),
}


def gelu(x: Any) -> Any:
    library = torch if isinstance(x, torch.Tensor) else webtorch
    return library.nn.functional.gelu(x)


def torch_index(like: Any) -> Any:
    numbers = [(7 * i) % 15 for i in range(15)]
    if isinstance(like, torch.Tensor):
        return torch.tensor(numbers)
    return webtorch.tensor(numbers, device=like.device)


@pytest.mark.one_in(3)
@pytest.mark.covers("M11", "M13")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, steps = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = ((15, 9), (9, 7), (7,), (15, 7))
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    found, program = fused(function, *inputs)
    wanted = function(*inputs)
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        theirs = b.tolist()
        torch.testing.assert_close(torch.tensor(a.tolist()), torch.tensor(theirs))
    if steps is not None:
        assert len(program.steps) == steps, str(program)


@pytest.mark.parametrize("name", ["isnan", "isfinite"])
def test_an_epilogue_that_reads_no_sums(name: str) -> None:
    """Its first buffer has another type than the sums."""
    inputs = [torch.arange(12, dtype=torch.int32).reshape(s) for s in ((3, 4), (4, 3))]
    (found,), _ = fused(lambda x, w: getattr(x @ w, name)(), *inputs)
    assert found.tolist() == getattr(inputs[0] @ inputs[1], name)().tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_programs_of_16_bits(dtype: str) -> None:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(s, generator=generator).to(kind) for s in ((12, 16), (8, 16), (8,), (12, 8))
    ]

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        return gelu(x @ w.T + b) + r

    (found,), program = fused(function, *inputs)
    assert len(program.steps) == 1, str(program)
    exact = function(*[t.double() for t in inputs])
    actual = torch.tensor(found.float().tolist(), dtype=torch.float64)
    step = 2.0**-10 if dtype == "float16" else 2.0**-7
    torch.testing.assert_close(actual, exact, rtol=step, atol=step)


def test_images() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(s, generator=generator)
        for s in ((2, 6, 9, 8), (8, 6, 3, 3), (8,), (2, 8, 9, 8))
    ]

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        library = torch if isinstance(x, torch.Tensor) else webtorch
        return library.nn.functional.conv2d(x, w, b, padding=1).relu() + r

    (found,), program = fused(function, *inputs)
    assert len(program.steps) == 1, str(program)
    torch.testing.assert_close(
        torch.tensor(found.tolist()), function(*inputs), rtol=1e-4, atol=1e-4
    )


def test_gradients_join_products() -> None:
    """A training step computes bias and activation, and the activation's gradient, with products;
    its loss and weights are PyTorch's."""

    def steps(library: Any, device: str) -> tuple[list[float], Any, Any]:
        library.manual_seed(0)
        rng = np.random.default_rng(0)

        def value(*shape: int) -> Any:
            data = rng.standard_normal(shape).astype(np.float32)
            return library.tensor((data / shape[0] ** 0.5).tolist(), device=device)

        w1, b1, w2 = (t.requires_grad_() for t in (value(6, 24), value(24), value(24, 5)))
        x, y = value(32, 6), value(32, 5)

        def step(x: Any, y: Any) -> Any:
            for p in (w1, b1, w2):
                p.grad = None
            loss = ((library.nn.functional.gelu(x @ w1 + b1) @ w2 - y) ** 2).mean()
            loss.backward()
            with library.no_grad():
                for p in (w1, b1, w2):
                    p -= 0.1 * p.grad
            return loss.detach()

        run = library.compile(step) if library is webtorch else step
        losses = [float(run(x, y)) for _ in range(4)]
        return losses, w1.detach().tolist(), run

    ours, weights, run = steps(webtorch, "webgpu")
    theirs, expected, _ = steps(torch, "cpu")
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(weights, expected, rtol=1e-3, atol=1e-5)
    joined = [r.name for r in run.program().routines if isinstance(r, Matmul) and r.epilogue]
    assert len(joined) >= 2, str(run.program())


def test_a_program_with_epilogues_is_text_and_back() -> None:
    """It runs from its text; its kernels and its costs tell what is computed."""
    from webtorch.profiler.roofline import cost

    inputs = [torch.randn(s) for s in ((8, 6), (6, 4), (4,), (8, 4))]
    (found,), program = fused(PROGRAMS["bias gelu residual"][0], *inputs)
    again = Program.from_json(program.to_json())
    assert again == program
    (routine,) = program.routines
    assert "erf" in str(routine)
    plain = without_epilogue(routine)[0]  # type: ignore[type-var]
    assert cost(routine).flops > cost(plain).flops == 2 * 8 * 4 * 6
    assert cost(routine).nbytes == 4 * (8 * 6 + 6 * 4 + 4 + 2 * 8 * 4)
    del found


def test_the_memory_of_a_residual_is_taken_over() -> None:
    """An output that takes the place of what it reads at the same element."""
    state = webtorch.zeros(64, 48, device="webgpu")
    x, w = (webtorch.randn(64, 48, device="webgpu"), webtorch.randn(48, 48, device="webgpu"))

    @webtorch.compile
    def step(x: Any) -> None:
        state.copy_(state * 0.5 + x @ w)

    step(x)
    step(x)
    (routine,) = step.program().routines
    assert isinstance(routine, Matmul) and routine.epilogue
    exact = np.array(x.tolist()) @ np.array(w.tolist())
    np.testing.assert_allclose(np.array(state.tolist()), 1.5 * exact, rtol=1e-4, atol=1e-4)


def test_bindings_bound_epilogues() -> None:
    """What a device cannot bind together is not fused; what it can is."""
    from webtorch.lower.compiler import compile_graph
    from webtorch.runtime.meta import COMMON_GPU

    x, w = torch.randn(8, 4), torch.randn(4, 6)
    rest = [torch.randn(8, 6) for _ in range(6)]

    def function(x: Any, w: Any, *rest: Any) -> Any:
        out = x @ w
        for r in rest:
            out = (out + r).relu()
        return out

    step = webtorch.compile(function, device="meta")
    step(*[webtorch.tensor(t.tolist()) for t in (x, w, *rest)])
    graph = step.latest().graph
    for most, steps in ((6, 4), (8, 3), (10, 2), (12, 1)):
        program = compile_graph(graph, replace(COMMON_GPU, max_buffers_per_kernel=most))
        assert all(len(r.buffers) < most for r in program.routines), str(program)
        assert len(program.steps) <= steps, str(program)
