"""Products of one left operand in one dispatch: queries, keys and values; a gate and what it lets through."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.lower.emulated import without_units
from tests.lower.harness import open_device
from tests.lower.test_fusion_random import Machine
from tests.lower.test_wgsl_matrix_units import EMULATED, STORE, WITH
from webtorch import nn, optim
from webtorch.ir.kernel import Kernel, Matmul, Products
from webtorch.ir.program import Copy, Program
from webtorch.lower.templates import matmul, matrix_units
from webtorch.lower.templates.tuning import MatrixTile
from webtorch.lower.wgsl import render
from webtorch.nn import functional as F
from webtorch.tensors.device import resolve
from webtorch.web.program_json import BROWSER_LIMITS

pytestmark = pytest.mark.usefixtures("tiles_for_small_products")
Choose = Callable[..., None]
# Limits under which WebGPU takes tiles in workgroup memory, as on a graphics card.
CARD = {"is_gpu": True, "family": "H200"}


@pytest.fixture
def joining(device: str) -> Iterator[Choose]:
    """Return a function that says whether the device joins products, and what else its limits are."""
    runtime = resolve(device)
    backend: Any = runtime.backend
    before = backend.limits

    def renewed() -> None:
        runtime.programs.clear()
        getattr(backend, "_rendered", {}).clear()

    def choose(on: bool, **more: Any) -> None:
        backend.limits = replace(before, has_joint_products=on, **more)
        renewed()

    yield choose
    backend.limits = before
    renewed()


def dispatches(program: Program, device: str) -> int:
    """Return how many dispatches a program is on its device."""
    backend: Any = resolve(device).backend
    count = 0
    for step in program.steps:
        if not isinstance(step, Copy):
            routine = program.routines[step.routine]
            count += len(backend.render(routine)) if device == "webgpu" else 1
    return count


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linears(
    m: int, k: int, ns: tuple[int, ...], dtype: Any, biases: tuple[bool, ...], transposed: bool,
    device: str,
) -> tuple[Callable[[Any], list[Any]], Any, list[np.ndarray[Any, Any]]]:  # fmt: skip
    """Return a function of several linear layers, its argument, and what it is in float64."""
    x = webtorch.tensor(numbers(m, k), device=device).to(dtype)
    weights, shifts = [], []
    for i, n in enumerate(ns):
        w = webtorch.tensor(numbers(n, k, seed=i + 1), device=device).to(dtype)
        weights.append(w.t().contiguous().t() if transposed else w)
        b = webtorch.tensor(numbers(n, seed=i + 50), device=device).to(dtype)
        shifts.append(b if biases[i % len(biases)] else None)

    def exact(t: Any) -> Any:
        return t.float().cpu().numpy().astype(np.float64)

    expected = [
        exact(x) @ exact(w).T + (0 if b is None else exact(b))
        for w, b in zip(weights, shifts, strict=True)
    ]
    return lambda x: [F.linear(x, w, b) for w, b in zip(weights, shifts, strict=True)], x, expected


SHAPES = [
    (7, 10, (6, 6, 6)),
    (32, 32, (32, 32, 32)),
    (33, 40, (40, 8, 8)),
    (64, 48, (40, 100)),
    (1, 64, (64, 16, 16)),
    (1, 37, (5, 9, 70)),
    (70, 600, (36, 36)),
]


# None, all or some of the layers with a bias; weights as layers have them, or transposed. Each shape has two of
# these six, so that each pair of a shape or bias with an order of weights is there.
_BIASES = [(False,), (True,), (True, False)]
_LAYERS = [
    (*shape, _BIASES[(number + transposed) % 3], transposed)
    for number, shape in enumerate(SHAPES)
    for transposed in (False, True)
]


@pytest.mark.one_in(3)
@pytest.mark.covers("M14")
@pytest.mark.parametrize(("m", "k", "ns", "biases", "transposed"), _LAYERS, ids=str)
def test_layers_of_one_input_are_one_dispatch(
    m: int, k: int, ns: tuple[int, ...], biases: tuple[bool, ...], transposed: bool,
    device: str, joining: Choose,
) -> None:  # fmt: skip
    layers, x, expected = linears(m, k, ns, webtorch.float32, biases, transposed, device)
    for more in ({}, CARD) if device == "webgpu" else ({},):
        counts = []
        for on in (False, True):
            joining(on, **more)
            run = webtorch.compile(layers)
            for found, right in zip(run(x), expected, strict=True):
                np.testing.assert_allclose(found.cpu().numpy(), right, rtol=2e-5, atol=2e-4)
            counts.append(dispatches(run.program(), device))
            joint = [r for r in run.program().routines if isinstance(r, Products)]
            assert [len(r.parts) for r in joint] == ([len(ns)] if on else [])
            assert Program.from_json(run.program().to_json()) == run.program()
        if device == "webgpu":
            # A long k is in parts on a card, where few tiles would leave most of it idle; a second dispatch
            # adds them.
            parts = 2 if resolve(device).backend.limits.is_gpu and k == 600 else 1
            assert counts == [parts * len(ns), parts]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "k", "ns"), SHAPES, ids=str)
def test_small_types(
    m: int, k: int, ns: tuple[int, ...], dtype: str, device: str, joining: Choose
) -> None:
    kind = getattr(webtorch, dtype)
    layers, x, expected = linears(m, k, ns, kind, (True, False), False, device)
    close = {"float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for more in ({}, CARD) if device == "webgpu" else ({},):
        joining(True, **more)
        run = webtorch.compile(layers)
        for found, right in zip(run(x), expected, strict=True):
            far = np.abs(found.float().cpu().numpy() - right).max() / np.abs(right).max()
            assert far < close
        assert any(isinstance(r, Products) for r in run.program().routines)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int, device: str, joining: Choose) -> None:
    rng = random.Random(seed)
    m = rng.choice([1, 1, 2, 5, 31, 65])
    k = rng.choice([3, 8, 20, 64, 129])
    ns = tuple(rng.choice([2, 3, 8, 17, 64, 96]) for _ in range(rng.randint(2, 4)))
    biases = tuple(rng.random() < 0.5 for _ in ns)
    layers, x, expected = linears(m, k, ns, webtorch.float32, biases, rng.random() < 0.5, device)
    joining(True, **(CARD if device == "webgpu" and seed % 2 else {}))
    for found, right in zip(webtorch.compile(layers)(x), expected, strict=True):
        np.testing.assert_allclose(found.cpu().numpy(), right, rtol=2e-5, atol=2e-4)


class Attention(nn.Module):
    """Grouped-query attention with layers of their own for queries, keys and values."""

    def __init__(self, width: int, heads: int, groups: int, bias: bool = True) -> None:
        super().__init__()
        self.size = width // heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, groups * self.size, bias=bias)
        self.v = nn.Linear(width, groups * self.size, bias=bias)
        self.o = nn.Linear(width, width)

    def forward(self, x: Any, memory: Any = None) -> Any:
        B, T, _ = x.shape
        given = x if memory is None else memory
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer, y in ((self.q, x), (self.k, given), (self.v, given))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=memory is None, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, 4, 2)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@pytest.mark.long
@pytest.mark.covers("M14")
def test_a_training_step_of_a_gpt(device: str, joining: Choose) -> None:
    found = []
    for on in (False, True):
        joining(on)
        webtorch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 32), Block(32), Block(32), nn.Linear(32, 11))
        model = model.to(device)
        # (Adam would magnify rounding: the gradient of the bias of keys is 0 but for that.)
        optimizer = optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        ids = webtorch.tensor(np.random.default_rng(0).integers(0, 11, (3, 9)), device=device)

        @webtorch.compile
        def step(ids: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(ids).item() for _ in range(4)]
        weights = [p.detach().cpu().numpy() for p in model.parameters()]
        found.append((losses, weights, step.program()))
    (a, p, apart), (b, q, joint) = found
    np.testing.assert_allclose(a, b, rtol=1e-5)
    for x, y in zip(p, q, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    widths = [
        len(joint.routines[s.routine].parts)  # type: ignore[union-attr]
        for s in joint.steps
        if not isinstance(s, Copy) and isinstance(joint.routines[s.routine], Products)
    ]
    # The queries, keys and values of each block; on the CPU also its gate and what it lets through.
    assert widths.count(3) == 2
    assert len(apart.steps) - len(joint.steps) == sum(n - 1 for n in widths)
    assert a[-1] < a[0]


@pytest.mark.covers("M14")
def test_keys_and_values_of_cross_attention(device: str, joining: Choose) -> None:
    webtorch.manual_seed(1)
    model = Attention(24, 4, 2, bias=False).to(device)
    x, memory = (webtorch.tensor(numbers(2, t, 24, seed=t), device=device) for t in (5, 8))
    joining(False)
    expected = model(x, memory).detach().cpu().numpy()
    joining(True)
    run = webtorch.compile(model)
    np.testing.assert_allclose(
        run(x, memory).detach().cpu().numpy(), expected, rtol=1e-5, atol=1e-5
    )
    joint = [r for r in run.program().routines if isinstance(r, Products)]
    assert [len(r.parts) for r in joint] == [2]


def test_products_that_are_mapped(device: str, joining: Choose) -> None:
    x = webtorch.tensor(numbers(4, 5, 6), device=device)
    weights = [webtorch.tensor(numbers(n, 6, seed=n), device=device) for n in (6, 3, 3)]
    joining(True)
    run = webtorch.compile(webtorch.vmap(lambda x: tuple(F.linear(x, w) for w in weights)))
    for found, w in zip(run(x), weights, strict=True):
        expected = x.cpu().numpy() @ w.cpu().numpy().T
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert any(isinstance(r, Products) and len(r.parts) == 3 for r in run.program().routines)


def test_a_batch_of_matrices_for_each(device: str, joining: Choose) -> None:
    # Of eight rows and less they are sums on a card.
    x = numbers(3, 9, 6)
    weights = [numbers(3, 6, n, seed=n) for n in (5, 8)]
    joining(True)
    run = webtorch.compile(lambda x, a, b: (x @ a, x @ b))
    found = run(*[webtorch.tensor(t, device=device) for t in (x, *weights)])
    for y, w in zip(found, weights, strict=True):
        np.testing.assert_allclose(y.cpu().numpy(), x @ w, rtol=1e-5, atol=1e-5)
    assert [type(r) for r in run.program().routines] == [Products]


@pytest.mark.covers("M14")
@pytest.mark.parametrize("kept", [False, True], ids=["alone", "kept"])
@pytest.mark.parametrize(("k", "n"), [(24, 40), (64, 512), (7, 5)], ids=str)
def test_a_gate_of_one_row_is_one_kernel(
    k: int, n: int, kept: bool, device: str, joining: Choose
) -> None:
    if device == "cpu":
        pytest.skip("on the CPU nothing follows a product in its own kernel")
    x = numbers(1, k)
    gate, up = numbers(n, k, seed=1), numbers(n, k, seed=2)

    def layer(x: Any, gate: Any, up: Any) -> Any:
        g = F.linear(x, gate)
        y = F.silu(g) * F.linear(x, up)
        return (y, g) if kept else y

    given = [webtorch.tensor(t, device=device) for t in (x, gate, up)]
    for more in ({}, CARD):
        joining(True, **more)
        run = webtorch.compile(layer)
        found = run(*given)
        g = x.astype(np.float64) @ gate.T
        y = g / (1 + np.exp(-g)) * (x @ up.T)
        if kept:
            np.testing.assert_allclose(found[1].cpu().numpy(), g, rtol=2e-5, atol=2e-5)
        result = (found[0] if kept else found).cpu().numpy()
        np.testing.assert_allclose(result, y, rtol=2e-5, atol=2e-4)
        (kernel,) = run.program().routines
        assert isinstance(kernel, Kernel) and len(kernel.reduces) == 2
        # The sums of the gate are in memory only where they are wanted there.
        assert len(kernel.buffers) == (5 if kept else 4)


def test_what_is_rounded_between_is_rounded_in_one_kernel(device: str, joining: Choose) -> None:
    if device == "cpu":
        pytest.skip("on the CPU nothing follows a product in its own kernel")
    x, gate, up = (
        webtorch.tensor(numbers(*s, seed=i), device=device).half()
        for i, s in enumerate(((1, 64), (96, 64), (96, 64)))
    )

    def layer(x: Any) -> Any:
        return F.linear(x, gate) * 1000.0 * F.linear(x, up)

    results = []
    for on in (False, True):
        joining(on)
        run = webtorch.compile(layer)
        results.append(run(x).cpu().numpy())
    np.testing.assert_array_equal(*results)
    assert len(run.program().routines) == 1


def test_what_the_second_reads_elsewhere_keeps_them_apart(device: str, joining: Choose) -> None:
    x, a, b = numbers(1, 8), numbers(6, 8, seed=1), numbers(6, 8, seed=2)
    joining(True)
    run = webtorch.compile(lambda x, a, b: F.linear(x, a).flip(-1) * F.linear(x, b))
    found = run(*[webtorch.tensor(t, device=device) for t in (x, a, b)])
    expected = (x @ a.T)[:, ::-1] * (x @ b.T)
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)


def test_bindings_bound_how_many_meet(device: str, joining: Choose) -> None:
    layers, x, expected = linears(4, 8, (8,) * 5, webtorch.float32, (False,), False, device)
    for most, sizes in ((4, []), (5, [2, 2]), (8, [3, 2]), (12, [5])):
        joining(True, max_buffers_per_kernel=most)
        run = webtorch.compile(layers)
        for found, right in zip(run(x), expected, strict=True):
            np.testing.assert_allclose(found.cpu().numpy(), right, rtol=1e-5, atol=1e-4)
        program = run.program()
        parts = [
            len(r.parts)
            for s in program.steps
            if not isinstance(s, Copy) and isinstance(r := program.routines[s.routine], Products)
        ]
        assert parts == sizes


def test_what_is_written_between_is_seen(device: str, joining: Choose) -> None:
    x, w, u = numbers(5, 8), numbers(8, 8, seed=1), numbers(8, 8, seed=2)

    def between(x: Any, w: Any, u: Any) -> Any:
        a = x @ w
        x.add_(a)  # The second product reads another value, in the same memory.
        b = x @ u
        w.copy_(b[:1].expand(8, 8))
        return a, b, x @ w

    expected = between(*[torch.from_numpy(t.copy()) for t in (x, w, u)])
    joining(True)
    run = webtorch.compile(between)
    found = run(*[webtorch.tensor(t, device=device) for t in (x, w, u)])
    for y, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(y.cpu().numpy(), right.numpy(), rtol=1e-4, atol=1e-3)


def test_weights_made_between_move_the_first_down(device: str, joining: Choose) -> None:
    x = numbers(5, 8)
    weights = [numbers(6, 8, seed=i) for i in range(3)]

    def cast(x: Any, *weights: Any) -> Any:
        return tuple(F.linear(x.half(), w.half()) for w in weights)

    joining(True)
    run = webtorch.compile(cast)
    found = run(*[webtorch.tensor(t, device=device) for t in (x, *weights)])
    for y, w in zip(found, weights, strict=True):
        np.testing.assert_allclose(y.float().cpu().numpy(), x @ w.T, rtol=1e-2, atol=2e-2)
    assert [len(r.parts) for r in run.program().routines if isinstance(r, Products)] == [3]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(200, 216))
def test_random_programs_equal_pytorch(seed: int, device: str, joining: Choose) -> None:
    joining(True, **(CARD if device == "webgpu" and seed % 2 else {}))
    machine = Machine(seed, device, eager=False, products=True)
    for n in range(20):
        machine.step()
        if n % 9 == 8:
            machine.check()
    machine.check()


@pytest.mark.one_in(2)
def test_any_size_of_a_marked_dimension(device: str, joining: Choose) -> None:
    weights = [numbers(n, 12, seed=n) for n in (12, 4, 4)]
    joining(True, **(CARD if device == "webgpu" else {}))
    run = webtorch.compile(lambda x, *ws: tuple(F.linear(x, w) for w in ws), dynamic=True)
    own = [webtorch.tensor(w, device=device) for w in weights]
    for m in (5, 33, 70):
        x = numbers(m, 12, seed=m)
        for y, w in zip(run(webtorch.tensor(x, device=device), *own), weights, strict=True):
            np.testing.assert_allclose(y.cpu().numpy(), x @ w.T, rtol=1e-5, atol=1e-5)


def joint_routine(m: int, k: int, ns: tuple[int, ...], dtype: str) -> Products:
    """Return the routine of layers of one input, as compiled for a common GPU."""
    kind = getattr(webtorch, dtype)
    x, *weights = (
        webtorch.empty(*s, dtype=kind, device="meta") for s in ((m, k), *((n, k) for n in ns))
    )
    run = webtorch.compile(lambda x, *ws: tuple(F.linear(x, w) for w in ws), device="meta")
    run(x, *weights)
    (routine,) = run.program().routines
    assert isinstance(routine, Products)
    return routine


@pytest.mark.covers("M14")
def test_a_common_gpu_and_browsers_take_one_dispatch() -> None:
    for m, ns in ((1, (64, 16, 16)), (64, (64, 16, 16)), (16, (96, 96))):
        routine = joint_routine(m, 64, ns, "float32")
        assert len(render(routine, BROWSER_LIMITS, "dawn")) == 1
    # Where each alone fills the GPU, one dispatch gains nothing, and compiles longer.
    routine = joint_routine(8192, 384, (384, 384), "float32")
    assert len(render(routine, replace(BROWSER_LIMITS, family="H200"), "dawn")) == 2


@pytest.mark.parametrize(
    ("m", "k", "ns", "split"),
    [(64, 64, (64, 64, 64), 1), (72, 136, (40, 16, 24), 1), (40, 200, (56, 56), 3)],
    ids=str,
)
def test_on_matrix_units(
    m: int, k: int, ns: tuple[int, ...], split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device()
    if not device.limits.has_f16:
        pytest.skip("the adapter has no float16")
    routine = joint_routine(m, k, ns, "float16")
    tile = MatrixTile(2, 2, 1, 1, 32)
    monkeypatch.setattr(matrix_units, "fastest", lambda *_: (1.0, tile, split))
    passes = [
        without_units(p, [STORE], EMULATED) for p in matmul.render_products(routine, WITH, "dawn")
    ]
    assert len(passes) == (2 if split > 1 else 1)
    x = numbers(m, k).astype(np.float16)
    weights = [numbers(n, k, seed=n).astype(np.float16) for n in ns]
    given: list[Any] = [x.ravel()]
    for w in weights:
        given += [w.ravel(), None]
    whole = device.run(routine, given, passes=passes)
    results = [whole[i] for i in range(2, len(given), 2)]
    for found, w in zip(results, weights, strict=True):
        right = x.astype(np.float64) @ w.T.astype(np.float64)
        assert np.abs(found.reshape(m, -1) - right).max() < 2e-3 * np.abs(right).max()


def test_matmuls_stay_matmuls_without(device: str, joining: Choose) -> None:
    layers, x, _ = linears(4, 8, (8, 8), webtorch.float32, (False,), False, device)
    joining(False)
    run = webtorch.compile(layers)
    run(x)
    assert all(isinstance(r, Matmul) for r in run.program().routines)


@pytest.mark.parametrize("n", [3, 8])
def test_a_product_with_the_result_of_another(n: int, device: str, joining: Choose) -> None:
    # With one term, the second reads the weights where the first writes them.
    x, w = numbers(1, 1), numbers(1, n, seed=1)
    joining(True)
    a, b = (webtorch.tensor(t, device=device) for t in (x, w))

    def twice(x: Any, w: Any) -> Any:
        y = x @ w
        return x @ y

    expected = x @ (x @ w)
    np.testing.assert_allclose(twice(a, b).tolist(), expected, rtol=1e-6)
    np.testing.assert_allclose(webtorch.compile(twice)(a, b).tolist(), expected, rtol=1e-6)
