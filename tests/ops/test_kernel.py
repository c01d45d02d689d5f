"""`webtorch.kernel`: entries of the table that a user makes."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.errors import DTypeError
from webtorch.nn import functional as F

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@webtorch.kernel
def gated(x: Any, gate: Any, beta: float = 1.0) -> Any:
    """The unit that Shazeer calls SwiGLU."""
    return x * gate * webtorch.sigmoid(beta * gate)


def _gated(x: torch.Tensor, gate: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * gate * torch.sigmoid(beta * gate)


def _pair(*shape: int, device: str, dtype: str = "float32") -> tuple[Any, torch.Tensor]:
    """Return the same random numbers for both libraries, PyTorch's in float64."""
    numbers = torch.randn(*shape, dtype=torch.float64).to(getattr(torch, dtype))
    ours = webtorch.tensor(numbers.double().tolist(), device=device).to(getattr(webtorch, dtype))
    return ours.requires_grad_(), numbers.double().requires_grad_()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)]
)
def test_values_and_gradients_follow_from_the_formula(
    device: str, dtype: str, tolerance: float
) -> None:
    torch.manual_seed(0)
    x, x64 = _pair(3, 4, device=device, dtype=dtype)
    gate, gate64 = _pair(4, device=device, dtype=dtype)
    y, y64 = gated(x, gate, 2.0), _gated(x64, gate64, 2.0)
    assert y.dtype is x.dtype
    assert type(y.grad_fn).__name__ == "GatedBackward0"
    torch.testing.assert_close(
        torch.tensor(y.tolist()).double(), y64.detach(), rtol=tolerance, atol=tolerance
    )
    y.sum().backward()
    y64.sum().backward()
    for ours, theirs in ((x, x64), (gate, gate64)):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(
            torch.tensor(ours.grad.tolist()).double(),
            theirs.grad,
            rtol=tolerance,
            atol=4 * tolerance,
        )


def test_second_derivatives() -> None:
    x = webtorch.randn(3, dtype=webtorch.float64, device="cpu", requires_grad=True)
    gate = webtorch.randn(2, 3, dtype=webtorch.float64, device="cpu", requires_grad=True)
    assert webtorch.autograd.gradcheck(gated, (x, gate), check_forward_ad=True)
    assert webtorch.autograd.gradgradcheck(gated, (x, gate))


@pytest.mark.parametrize("numbers", [(1, 2), (1.5, 2), (1, 2.5)])
def test_types_are_promoted(device: str, numbers: tuple[float, float]) -> None:
    plain = webtorch.kernel(lambda x, y: 3 * x - y)
    halves = webtorch.kernel(lambda x, y: x / y)
    first, second = (webtorch.tensor([n, n], device=device) for n in numbers)
    theirs = [torch.tensor([n, n]) for n in numbers]
    for ours, expected in (
        (plain(first, second), 3 * theirs[0] - theirs[1]),
        (plain(first, numbers[1]), 3 * theirs[0] - numbers[1]),
        (halves(first, second), theirs[0] / theirs[1]),
    ):
        assert str(ours.dtype) == str(expected.dtype)
        assert ours.tolist() == expected.tolist()
    small = plain(first.to(webtorch.int8), webtorch.tensor(2, device=device))
    assert small.dtype is webtorch.int8
    between = webtorch.kernel(lambda x, y: (x > 1) & (y < 2.25))
    answers = (theirs[0] > 1) & (theirs[1] < 2.25)
    assert between(first, second).dtype is webtorch.bool
    assert between(first, second).tolist() == answers.tolist()


def test_types_that_a_formula_does_not_have_are_refused(device: str) -> None:
    mixed = webtorch.kernel(lambda x: x ^ (x >> 2))
    assert mixed(webtorch.arange(4, device=device)).tolist() == [0, 1, 2, 3]
    with pytest.raises(DTypeError, match=r'"kernel" not implemented for .Float.: it takes int64'):
        mixed(webtorch.ones(2, device=device))
    with pytest.raises(DTypeError, match=r'"gated" not implemented for .ComplexFloat'):
        gated(webtorch.ones(2, dtype=webtorch.complex64, device=device), 1.0)


def test_it_fuses_with_its_neighbours(device: str) -> None:
    step = webtorch.compile(lambda x, gate: (gated(x + 1, gate) * 2).relu())
    x, gate = webtorch.randn(8, 8, device=device), webtorch.randn(8, device=device)
    expected = _gated(torch.tensor(x.tolist()) + 1, torch.tensor(gate.tolist())) * 2
    torch.testing.assert_close(torch.tensor(step(x, gate).tolist()), expected.relu())
    assert len(step.program().steps) == 1
    alone = webtorch.compile(lambda x: gated(x, gate))
    alone(x)
    assert [r.name for r in alone.program().routines] == ["gated"]


def test_other_numbers_compile_nothing(device: str) -> None:
    x = webtorch.randn(5, device=device)
    x.tolist()
    counters = x._storage.runtime.counters
    gated(x, x, 0.5).tolist()
    before = counters.misses
    for beta in (0.25, 3.0, -1.5):
        expected = _gated(*[torch.tensor(x.tolist())] * 2, beta)
        torch.testing.assert_close(torch.tensor(gated(x, x, beta).tolist()), expected)
        assert gated(x, gate=x, beta=beta).tolist() == gated(x, x, beta).tolist()
    assert counters.misses == before


def test_transforms(device: str) -> None:
    x, gate = webtorch.randn(3, 4, device=device), webtorch.randn(4, device=device)
    plain = lambda x, gate: x * gate * webtorch.sigmoid(gate)  # noqa: E731
    for transform in (
        lambda f: webtorch.vmap(f, in_dims=(0, None))(x, gate),
        lambda f: webtorch.vmap(webtorch.func.grad(lambda a, b: f(a, b).sum()), (0, None))(x, gate),
        lambda f: webtorch.func.grad(lambda b: f(x, b).sum())(gate),
        lambda f: webtorch.func.jvp(lambda b: f(x, b), (gate,), (gate,))[1],
    ):
        torch.testing.assert_close(
            torch.tensor(transform(gated).tolist()), torch.tensor(transform(plain).tolist())
        )


def test_a_loop_trains_as_with_the_formula(device: str) -> None:
    ends = []
    for unit in (gated, lambda x, gate: x * gate * webtorch.sigmoid(gate)):
        webtorch.manual_seed(0)
        linear = webtorch.nn.Linear(3, 8, device=device)
        optimizer = webtorch.optim.Adam(linear.parameters(), lr=0.05)
        x = webtorch.randn(6, 3, device=device)
        for _ in range(10):
            optimizer.zero_grad()
            a, b = linear(x).chunk(2, dim=1)
            loss = (unit(a, b) - 1).square().mean()
            loss.backward()
            optimizer.step()
        ends.append(torch.tensor(linear.weight.tolist()))
    torch.testing.assert_close(ends[0], ends[1])


def test_the_given_gradient_is_taken(device: str) -> None:
    @webtorch.kernel(gradient=lambda g, out, _x, rate: (g * out * rate,))
    def grown(x: Any, rate: float = 2.0) -> Any:
        return webtorch.exp(x * rate)

    @webtorch.kernel(gradient=lambda g, _out, x, y: (g * y, None))
    def straight(x: Any, y: Any) -> Any:
        return webtorch.round(x) * y

    x = webtorch.tensor([0.25, -1.75], device=device, requires_grad=True)
    grown(x, 3.0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([3 * math.exp(0.75), 3 * math.exp(-5.25)], rel=1e-5)
    x.grad = None
    y = webtorch.tensor([[2.0], [5.0]], device=device, requires_grad=True)
    out = straight(x, y)
    assert out.tolist() == [[0.0, -4.0], [0.0, -10.0]]
    out.sum().backward()
    assert x.grad.tolist() == [7.0, 7.0]
    assert y.grad is None or y.grad.tolist() == [[0.0], [0.0]]
    wrong = webtorch.kernel(lambda x, y: x * y, gradient=lambda g, out, x, y: g)
    with pytest.raises(ValueError, match="it has 2 operands, and its gradient gave 1 cotangents"):
        wrong(x, y).sum().backward()


def test_names(device: str) -> None:
    assert gated.__name__ == "gated"
    assert gated.__doc__ == "The unit that Shazeer calls SwiGLU."
    assert pickle.loads(pickle.dumps(gated)) is gated
    x = webtorch.ones(2, device=device)
    with pytest.raises(
        TypeError, match=r"gated\(\): argument 'gate' \(position 2\) must be Tensor"
    ):
        gated(x, "text")
    with pytest.raises(TypeError, match=r"gated\(\): missing required argument 'gate'"):
        gated(x)
    with pytest.raises(TypeError, match=r"gated\(\) got an unexpected keyword argument 'gamma'"):
        gated(x, x, gamma=1)
    with pytest.raises(RuntimeError, match="sizes of gated must be equal"):
        gated(x, webtorch.ones(3, device=device))
    # Some rules know entries of the table by name: a user's is none of these.
    gelu = webtorch.kernel(lambda x: x * 2, numbers={})
    named = webtorch.kernel("fn gelu(x: f32) -> f32 { return x * 2.0; }")
    y = x.detach().requires_grad_()
    assert type(named(y).grad_fn).__name__ == "GeluKernelBackward0"
    assert gelu(x).tolist() == named(x).tolist() == [2.0, 2.0]


def test_a_formula_may_use_what_is_elementwise(device: str) -> None:
    def formula(x: Any, y: Any) -> Any:
        z = F.gelu(x) + webtorch.clamp(y, -0.5, 0.5) ** 3
        z += webtorch.where(x > y, x, 2.0 * y).abs()
        return webtorch.lerp(z, x, 0.25) - webtorch.zeros_like(x) + gated(x, y, 0.5)

    x, y = webtorch.randn(7, device=device), webtorch.randn(7, device=device)
    made = webtorch.kernel(formula)
    # Twice: what comes again may be remembered.
    for _ in range(2):
        torch.testing.assert_close(
            torch.tensor(made(x, y).tolist()), torch.tensor(formula(x, y).tolist())
        )


DECIDES = "a formula is one for all elements, and a value decides here: use webtorch.where"


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda x: x if x > 0 else -x, DECIDES),
        (lambda x: max(x, 0.0), DECIDES),
        (lambda x: x * x[0, 0].item(), DECIDES),
        (lambda x: x - x.mean(-1, keepdim=True), "and here is"),
        (lambda x: x.softmax(-1), "and here is"),
        (lambda x: x.flip(0), "and here is"),
        (lambda x: x + webtorch.rand_like(x), "here is a random number or a position"),
        (lambda x: x.sum(), r"this gives a tensor of shape \(\)"),
        (lambda x: (x, x), "gives one real number for each element, and this gives tuple"),
        (lambda x: x.long(), "of float32 its result is int64"),
        (lambda *x: x, r"'\*x' is no parameter by position"),
        (lambda x, n="a": x, "the default of 'n' is str, and is to be a number"),
        (lambda n=1.0: n, "a formula has an operand at least"),
        (3, "a formula is a function or a text in WGSL, not int"),
    ],
)
def test_what_is_no_formula_is_refused(formula: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        webtorch.kernel(formula)


STEPS = """
fn f(x: f32) -> f32 {
    let y: f32 = x * x; // square
    let z = y - x;
    return z * -y;
}
"""


def _turned(x: float) -> float:
    return math.degrees(math.atan2(x, 2)) / math.sqrt(x * x + 1)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("x / (1.0 + exp(-x))", lambda x: x / (1 + math.exp(-x))),
        ("select(x * 2.0, -x, x < 0.5 && !(x > 0.0) || x >= 1e0)", lambda x: -x if x <= 0 or x >= 1 else 2 * x),
        ("mix(x, 2.0, 0.25) - fma(x, x, .5f)", lambda x: 0.75 * x + 0.5 - (x * x + 0.5)),
        ("clamp(x, -1, 1) + max(x, 0.25) * min(0.5, x)", lambda x: min(max(x, -1), 1) + max(x, 0.25) * min(0.5, x)),
        ("fract(x) + step(0.3, x) + saturate(x)", lambda x: x - math.floor(x) + (x >= 0.3) + min(max(x, 0), 1)),
        ("smoothstep(-1.0, 2.0, x)", lambda x: (t := min(max((x + 1) / 3, 0), 1)) * t * (3 - 2 * t)),
        ("pow(abs(x) + 1, 1.5) % 2.0", lambda x: math.fmod((abs(x) + 1) ** 1.5, 2)),
        ("inverseSqrt(x * x + 1) /* one\n */ * degrees(atan2(x, sqrt(4.0)))", _turned),
        (STEPS, lambda x: (x - x * x) * x**2),
    ],
)  # fmt: skip
def test_texts(device: str, text: str, plain: Callable[[float], float]) -> None:
    numbers = [-2.25, -0.75, 0.0, 0.375, 0.5, 1.5, 3.0]
    found = webtorch.kernel(text)(webtorch.tensor(numbers, device=device))
    assert found.tolist() == pytest.approx([plain(x) for x in numbers], rel=1e-5, abs=1e-6)


def test_texts_of_integers_and_numbers(device: str) -> None:
    mixed = webtorch.kernel(
        "fn mixed(x: u32, seed: u32) -> u32 { return ((x ^ seed) >> 3u) | (x * 7u & 0xff); }",
        numbers={"seed": 9},
    )
    x = [0, 5, 77, 4000]
    words = webtorch.tensor(x, device=device).to(webtorch.uint32)
    for seed in (9, 1234):
        assert mixed(words, seed).tolist() == [((v ^ seed) >> 3) | ((v * 7) & 0xFF) for v in x]
    with pytest.raises(DTypeError, match='"mixed" not implemented'):
        mixed(words.float())
    quotient = webtorch.kernel("fn quotient(x: i32, y: i32) -> i32 { return x / y * 10 + x % y; }")
    x, y = (webtorch.tensor(v, device=device) for v in ([-7, 7, 9], [2, -2, 4]))
    assert quotient(x, y).tolist() == [-31, -29, 21]
    power = webtorch.kernel("base * pow(x, rate)", numbers={"rate": 2.0, "base": 1.0})
    z = webtorch.tensor([3.0], device=device, requires_grad=True)
    power(z, 3.0, 2.0).backward()
    assert z.grad is not None
    assert z.grad.item() == pytest.approx(54.0, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x +* 2", r"line 1: expected a name, found \*\n    x \+\* 2\n       \^"),
        ("x + $", r"line 1: '\$' is not WGSL"),
        ("(x", r"expected \), found the end"),
        ("x y", "expected the end, found y"),
        ("x - f32(i32(x))", "line 1: a formula's values are of one type, here f32: see floor"),
        ("frob(x)", "a formula has no function frob: it has abs, "),
        ("fn f(x: f32) -> f32 {\n  return y;\n}", "line 2: y is no parameter"),
        ("fn f(x: vec2f) -> f32 { return x; }", "a formula's values are f32, f16, i32 or u32, not vec2f"),
        ("fn f(x: f32, y: i32) -> f32 { return x; }", "are of one type"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        webtorch.kernel(text)


def test_numbers_are_parameters() -> None:
    with pytest.raises(TypeError, match="kernel kernel: it has no parameter 'z'"):
        webtorch.kernel("x + y", numbers={"z": 1.0})


def test_operands_are_given_by_name_too() -> None:
    squared = webtorch.kernel(lambda x: x * x)
    x = webtorch.tensor([1.0, 3.0])
    assert squared(x=x).tolist() == squared(x).tolist() == [1.0, 9.0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        squared(x, y=x)
