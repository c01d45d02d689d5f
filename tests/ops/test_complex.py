"""Complex tensors: values, gradients, views, conversions and errors, as PyTorch has them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conftest import need_device

_TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-12}
# Values of every quadrant, on the axes, at 0, near 1, and large and small ones.
_POINTS = [
    0.3 + 0.7j,
    -0.4 + 1.2j,
    -1.1 - 0.6j,
    2.0 - 0.9j,
    1.0,
    -2.5,
    0.5j,
    -0.8j,
    1 + 1e-4j,
    1e-3 - 2e-3j,
    9 - 3j,
]
_UNARY = (
    "neg", "exp", "expm1", "log", "log1p", "sqrt", "exp2", "log2", "log10", "rsqrt", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "square", "reciprocal", "sigmoid", "sinc",
    "abs", "angle", "sgn", "conj_physical", "positive", "isfinite", "logical_not",
)  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
}


def _points(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(_POINTS, dtype=dtype)


def _ours(theirs: torch.Tensor, device: str = "cpu") -> Any:
    plain = theirs.detach().resolve_conj()
    return webtorch.tensor(plain.numpy(), device=device).requires_grad_(theirs.requires_grad)


def _same(ours: Any, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    plain = theirs.detach().resolve_conj().resolve_neg()
    assert ours.dtype.name == str(plain.dtype).removeprefix("torch.")
    np.testing.assert_allclose(
        ours.detach().cpu().numpy(), plain.numpy(), rtol=tolerance, atol=tolerance
    )


def _gradients(like: Any, result: Any, leaves: list[Any]) -> Any:
    """Differentiate a real number that depends on both parts of a result."""
    if result.dtype.is_complex:
        result = result.real + 0.7 * result.imag
    return like.autograd.grad(result.sum(), leaves, create_graph=True, allow_unused=True)


@pytest.mark.one_in(2)
@pytest.mark.covers("A11")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", _UNARY)
def test_functions_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    tolerance = 20 * _TOLERANCE[dtype]
    x = _points(dtype)
    if name == "atanh":
        x = x[x != 1]
    y = _ours(x)
    _same(getattr(webtorch, name)(y), getattr(torch, name)(x), tolerance)
    if name in ("isfinite", "logical_not"):
        return
    # Off the axes, where every function is smooth.
    x = x[:4].requires_grad_()
    y = _ours(x)
    (theirs,) = _gradients(torch, getattr(torch, name)(x), [x])
    (ours,) = _gradients(webtorch, getattr(webtorch, name)(y), [y])
    _same(ours, theirs, tolerance)
    if theirs.requires_grad and name != "angle":
        _same(_gradients(webtorch, ours, [y])[0], _gradients(torch, theirs, [x])[0], 5 * tolerance)


def test_sides_of_branch_cuts_and_large_numbers() -> None:
    signs = [complex(a, b) for a in (2.0, -2.0) for b in (0.0, -0.0)]
    signs += [complex(b, a) for a in (2.0, -2.0) for b in (0.0, -0.0)]
    x = torch.tensor(
        [*signs, 1 + 1e-30j, -1 + 1e-30j, 100j, 80, 1e30, 1e-30], dtype=torch.complex64
    )
    y = _ours(x)
    for name in (
        "log",
        "sqrt",
        "asin",
        "acos",
        "asinh",
        "acosh",
        "atan",
        "atanh",
        "sin",
        "cosh",
        "tanh",
    ):
        _same(getattr(webtorch, name)(y), getattr(torch, name)(x))


# PyTorch follows C's Annex G, but for expm1(inf), log1p(inf + nan i) and sigmoid(-inf + y i), which are NaN there.
_ENDS = (0.0, -0.0, 0.5, -1.0, 2.0, float("inf"), float("-inf"), float("nan"))


@pytest.mark.parametrize(
    "name",
    [n for n in _UNARY if n not in ("neg", "expm1", "log1p", "sinc", "positive", "conj_physical")],
)
def test_infinities_and_nan_are_as_in_c(name: str, device: str) -> None:
    x = torch.tensor([complex(a, b) for a in _ENDS for b in _ENDS], dtype=torch.complex64)
    if name == "sigmoid":
        x = x[x.real != float("-inf")]
    expected, found = getattr(torch, name)(x), getattr(webtorch, name)(_ours(x, device)).cpu()
    if name == "sgn":
        # Their vectors and their single numbers differ at infinities.
        expected, found = expected[x.isfinite()], found[_ours(x.isfinite())]
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", _BINARY)
@pytest.mark.parametrize("kinds", ["cc", "cr", "rc", "ci", "ic", "cf", "fc", "ri", "ir"])
def test_operators_with_real_tensors_and_numbers(name: str, kinds: str) -> None:
    """c: complex tensor, r: real tensor, i: complex number, f: real number."""
    x = _points(torch.complex128)[:6]
    made = {"c": x, "r": x.real.contiguous().abs() + 0.1, "i": 0.7 - 1.2j, "f": 1.5}
    theirs = [
        v.clone().requires_grad_() if isinstance(v, torch.Tensor) else v
        for v in (made[k] for k in kinds)
    ]
    ours = [_ours(v) if isinstance(v, torch.Tensor) else v for v in theirs]
    expected, found = _BINARY[name](*theirs), _BINARY[name](*ours)
    _same(found, expected, 1e-12)
    leaves = [v for v in theirs if isinstance(v, torch.Tensor)]
    mine = [v for v in ours if isinstance(v, webtorch.Tensor)]
    for a, b in zip(
        _gradients(webtorch, found, mine), _gradients(torch, expected, leaves), strict=True
    ):
        _same(a, b, 1e-10)


_PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "products": lambda t, x, y: (x @ y.mH).abs().sum() + t.vdot(x[0], y[0]).real,
    "einsum": lambda t, x, y: t.einsum("ij,kj->ik", x, y.conj()).imag.sum(),
    "reductions": lambda t, x, y: (
        x.mean(0).abs().sum() + x.var() + y.prod().real + x.cumsum(1).abs().sum() + y.std(1).sum()
    ),
    "norms": lambda t, x, y: x.norm() + t.linalg.vector_norm(y, 3) + t.linalg.matrix_norm(x, 1),
    "choice": lambda t, x, y: t.where(x.real > 0, x * y, 1j).abs().sum(),
    "indexing": lambda t, x, y: (x[[2, 0], 1] * y[x.real > 0][0] + x.T.flip(0)[1, 2]).abs().sum(),
    "joining": lambda t, x, y: t.cat([x, y.real, t.stack([y[0], x[1]])]).cumprod(0).abs().sum(),
    "parts": lambda t, x, y: (
        t.view_as_real(x) * t.complex(y.real, x.imag).angle()[..., None]
    ).sum(),
    "polar": lambda t, x, y: t.polar(x.abs(), y.angle()).real.sum(),
    "linear algebra": lambda t, x, y: (
        t.linalg.solve(x, y).abs().sum() + t.linalg.det(x).real + t.linalg.inv(y).imag.sum()
    ),
    "factors": lambda t, x, y: (
        t.linalg.svdvals(x).sum()
        + t.linalg.eigvals(y).abs().sum()
        + t.linalg.eigh(x + x.mH)[1].abs().sum()
        + t.linalg.qr(y)[1].abs().sum()
        + t.linalg.cholesky(x @ x.mH + t.eye(3)).abs().sum()
    ),
    "layers": lambda t, x, y: (
        t.nn.functional.linear(x, y, y[0]).abs().sum()
        + t.nn.functional.conv1d(x[None], y[..., None], padding=1).abs().sum()
        + t.nn.functional.pad(x, (1, 2)).abs().sum()
    ),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_programs_and_their_gradients(name: str) -> None:
    torch.manual_seed(3)
    x, y = (torch.randn(3, 3, dtype=torch.complex128, requires_grad=True) for _ in "xy")
    a, b = _ours(x), _ours(y)
    expected, found = _PROGRAMS[name](torch, x, y), _PROGRAMS[name](webtorch, a, b)
    _same(found, expected, 1e-10)
    theirs = torch.autograd.grad(expected, [x, y], allow_unused=True)
    for mine, g in zip(
        webtorch.autograd.grad(found, [a, b], allow_unused=True), theirs, strict=True
    ):
        if g is not None:
            _same(mine, g, 1e-9)


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_writing_through_views(device: str) -> None:
    need_device(device)

    def program(t: Any, x: Any, pairs: Any) -> Any:
        y = x * 1
        y.real.mul_(3)
        y.imag[0] = y.real[1]
        t.view_as_real(y)[2] += 1
        y[1, :2] = 2 - 1j
        z = t.view_as_complex(pairs * 1)
        z.mul_(2j)
        z[0] = z[1].clone() * y[0, 0].detach()
        return (y * y.conj()).real.sum() + z.abs().sum()

    torch.manual_seed(1)
    x, pairs = torch.randn(3, 3, dtype=torch.complex64), torch.randn(4, 2)
    leaves = [x.requires_grad_(), pairs.requires_grad_()]
    mine = [_ours(v, device) for v in leaves]
    expected, found = program(torch, *leaves), program(webtorch, *mine)
    _same(found, expected)
    for a, b in zip(
        webtorch.autograd.grad(found, mine), torch.autograd.grad(expected, leaves), strict=True
    ):
        _same(a, b)


def test_webgpu_computes_with_pairs() -> None:
    need_device("webgpu")
    torch.manual_seed(2)
    x = torch.randn(4, 5, dtype=torch.complex64, requires_grad=True)
    y = _ours(x, "webgpu")

    def program(t: Any, z: Any) -> Any:
        return ((z @ z.mH).exp() / (z.sum(1) + 3j)).abs().log().sum() + z.prod(
            0
        ).angle().cos().sum()

    expected, found = program(torch, x * 0.3), program(webtorch, y * 0.3)
    _same(found, expected, 1e-4)
    expected.backward()
    found.backward()
    assert x.grad is not None
    _same(y.grad, x.grad, 1e-4)
    with pytest.raises(webtorch.errors.DTypeError, match="complex128 is not available"):
        y.flatten()[0].expand((1 << 16) + 1).to(webtorch.complex128)


def _text(like: Any, text: str) -> str:
    try:
        return repr(eval(text, {"t": like}))
    except Exception as error:
        kinds = [k.__name__ for k in type(error).__mro__]
        return "NotImplementedError" if "NotImplementedError" in kinds else kinds[-4]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize(
    "text",
    """t.tensor([1+2j, 3.5-1e-9j])
t.tensor([[1+2j, 30.25-1j]] * 3, dtype=t.complex128)
t.tensor([1e-8+1e5j, complex('inf'), complex('nan')])
t.zeros(2, 0, dtype=t.complex64)
t.full((2,), 1+2j), t.linspace(0, 1+2j, 5), t.eye(2, dtype=t.cfloat)
t.tensor(1j).item(), t.tensor([1, 2j, 3.0]).tolist(), complex(t.tensor(2-1j))
t.complex64.to_real(), t.float64.to_complex(), t.complex64.itemsize, t.complex128.is_complex
t.result_type(t.tensor([1.]), 1j), t.result_type(t.tensor([1.], dtype=t.float64), 1j)
t.result_type(t.tensor([1j]), t.tensor(1., dtype=t.float64)), t.result_type(t.tensor([1]), 1j)
t.promote_types(t.complex64, t.float64), t.promote_types(t.int64, t.complex64)
t.can_cast(t.complex64, t.float32), t.can_cast(t.float64, t.complex64)
t.tensor([1j]).float(), t.tensor([1j, 0]).bool(), t.tensor([1.5]).cdouble()
t.tensor([1j, 2]) == t.tensor([1j, 3]), t.tensor([1j]) != 1j
t.view_as_real(t.tensor([1+2j, 3j])).stride(), t.tensor([[1j, 2]]).H
t.isclose(t.tensor([3+4j]), t.tensor([3+4.0000001j])), t.tensor([1j]).isreal()
(t.tensor([1j]).requires_grad_() * 2)
t.tensor([1j]) < t.tensor([2j])
t.tensor([1j]).floor()
t.tensor([1j, 2]).max()
t.tensor([1j]) // 2
t.tensor([3+4j]).relu()
t.arange(3, dtype=t.complex64)
t.tensor([1.]).add_(1j)
t.tensor([1.]).imag
t.view_as_complex(t.tensor([1.]))
t.tensor([1j, 2]).requires_grad_().sum().backward()""".splitlines(),
)
def test_text_numbers_types_and_errors(text: str) -> None:
    assert _text(webtorch, text) == _text(torch, text)


def test_numpy_shares_the_memory() -> None:
    array = np.array([[1j, 2], [3, 4 - 1j]], dtype=np.complex64).T
    x = webtorch.from_numpy(array)
    x.mul_(2j)
    array[0, 0] = 7
    assert x.tolist() == array.tolist() == [[7, 6j], [4j, 2 + 8j]]
    assert x.real.numpy().tolist() == [[7.0, 0.0], [0.0, 2.0]]


def test_parameters_optimizers_and_compiled_steps() -> None:
    torch.manual_seed(4)
    start, goal = torch.randn(2, 3, 2, dtype=torch.complex64)
    theirs = start.clone().requires_grad_()
    mine = webtorch.nn.Parameter(_ours(start))
    reference = torch.optim.Adam([theirs], lr=0.1)
    optimizer = webtorch.optim.Adam([mine], lr=0.1)
    target = _ours(goal)

    @webtorch.compile
    def step() -> webtorch.Tensor:
        optimizer.zero_grad()
        loss = ((mine - target).abs() ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        reference.zero_grad()
        ((theirs - goal).abs() ** 2).sum().backward()
        reference.step()
        step()
    _same(mine, theirs)
    assert optimizer.state[mine]["exp_avg"].dtype is webtorch.complex64


@pytest.mark.parametrize("name", ["z.pt", "z.safetensors"])
def test_files(tmp_path: Any, name: str) -> None:
    torch.manual_seed(5)
    z = torch.randn(3, 2, dtype=torch.complex64)
    path = tmp_path / name
    webtorch.save({"z": _ours(z)}, path)
    _same(webtorch.load(path)["z"], z)
    if name == "z.pt":
        assert torch.equal(torch.load(path)["z"], z)
        torch.save({"v": z[:, 1], "c": z.conj()}, path)
        found = webtorch.load(path)
        _same(found["v"], z[:, 1])
        _same(found["c"], z.conj())


def test_copies_of_the_other_view(device: str) -> None:
    x = webtorch.arange(6.0, device=device).reshape(3, 2)
    z = webtorch.view_as_complex_copy(x)
    back = webtorch.view_as_real_copy(z)
    x.fill_(0)
    assert z.tolist() == [1j, 2 + 3j, 4 + 5j]
    assert back.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("turn", [1.0, 5.0, 20.0])
def test_logcumsumexp_has_the_multiples_of_2_pi_of_sums_in_order(
    dtype: torch.dtype, turn: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = torch.randn(3, 40, 2, generator=generator, dtype=torch.float64)
    x = torch.complex(parts[..., 0], parts[..., 1] * turn).to(dtype)
    x[1, 5], x[2, 7] = complex("nan"), complex("-inf")
    for dim in (0, 1):
        _same(webtorch.logcumsumexp(_ours(x), dim), torch.logcumsumexp(x, dim))


def test_types_with_complex_ones_promote_as_in_pytorch():
    names = (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128",
    )  # fmt: skip

    def table(t):
        pairs = itertools.product(names, repeat=2)
        return [str(t.promote_types(getattr(t, a), getattr(t, b))) for a, b in pairs]

    assert table(webtorch) == table(torch)
    third = torch.tensor([1 / 3 + 1j], dtype=torch.complex128)
    found = webtorch.tensor([3]) * webtorch.tensor([1 / 3 + 1j], dtype=webtorch.complex128)
    assert found.dtype is webtorch.complex128
    assert found.tolist() == (torch.tensor([3]) * third).tolist()


def test_results_lie_as_their_operands() -> None:
    def run(lib: Any, order: tuple[int, ...]) -> list[Any]:
        x = lib.arange(1.0, 25.0).reshape(2, 3, 4)
        z = lib.complex(x, 1 / x).permute(*order).requires_grad_()
        found = [
            z.exp2(), z.abs(), z * z, z / lib.ones(z.shape, dtype=z.dtype), z + z[:1], z * 2j, z == z,
            lib.complex(z.real, z.imag), lib.polar(x.permute(*order), x.permute(*order)), z.conj_physical(),
        ]  # fmt: skip
        (gradient,) = lib.autograd.grad((z.log() * z.abs()).abs().sum(), z)
        return [
            *[y.stride() for y in found],
            *[lib.view_as_real(lib.complex(y, y) if not y.is_complex() else y).tolist() for y in
              (*[y.detach() for y in found if y.dtype is not lib.bool], gradient)],
        ]  # fmt: skip

    for order in ((2, 1, 0), (0, 2, 1), (1, 0, 2), (0, 1, 2)):
        for ours, theirs in zip(run(webtorch, order), run(torch, order), strict=True):
            if isinstance(ours, tuple):
                assert ours == theirs
            else:
                np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)

    def of_rows(lib: Any, vmap: Any) -> Any:
        z = lib.complex(lib.arange(24.0).reshape(2, 3, 4), lib.ones(2, 3, 4))
        return vmap(lambda y: (y.t() * y.t()).exp().abs())(z / 9)

    ours, theirs = of_rows(webtorch, webtorch.func.vmap), of_rows(torch, torch.func.vmap)
    np.testing.assert_allclose(ours.tolist(), theirs.tolist(), rtol=2e-5)
