"""float64 on WebGPU, which WEBTORCH_FLOAT64=words has computed from its bits: PyTorch's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conftest import need_device
from webtorch.errors import DTypeError
from webtorch.ir.dtype import complex128, float64
from webtorch.runtime.backend import FEW, webgpu_bounds
from webtorch.tensors.device import resolve

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.0**-1022, 3e-310, 2.0**53 + 2,
    1.7976931348623157e308,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the option does before the device is opened."""
    need_device("webgpu")
    runtime = resolve("webgpu")
    bounds = {d: n for d, n in runtime.bounds.items() if n < 0}
    monkeypatch.setattr(runtime, "bounds", bounds)


def numbers(seed: int) -> np.ndarray:
    """Every pattern of bits, numbers near 1, subnormal ones, and those that stand apart."""
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64)
    near = draw.standard_normal(1000)
    special = np.array(SPECIAL)
    apart = np.tile(special, special.size) if seed else np.repeat(special, special.size)
    return np.concatenate([bits, near, near * 1e-308, apart])


def test_arithmetic_is_rounded_as_on_a_processor() -> None:
    a, b = numbers(0), numbers(1)
    x, y = (webtorch.tensor(v, device="webgpu") for v in (a, b))
    found = webtorch.stack(
        [
            x + y,
            x - y,
            x * y,
            x / y,
            x.sqrt(),
            x.floor(),
            x.trunc(),
            x.round(),
            webtorch.maximum(x, y),
        ]
    )
    with np.errstate(all="ignore"):
        expected = np.stack(
            [
                a + b,
                a - b,
                a * b,
                a / b,
                np.sqrt(a),
                np.floor(a),
                np.trunc(a),
                np.round(a),
                np.maximum(a, b),
            ]
        )
    mine = found.cpu().numpy()
    alike = (mine.view(np.uint64) == expected.view(np.uint64)) | (
        np.isnan(mine) & np.isnan(expected)
    )
    assert alike.all(), np.argwhere(~alike)[:5]


def test_comparisons_and_conversions() -> None:
    a, b = numbers(0), numbers(1)
    x, y = (webtorch.tensor(v, device="webgpu") for v in (a, b))
    for mine, expected in ((x < y, a < b), (x <= y, a <= b), (x == y, a == b), (x != y, a != b)):
        np.testing.assert_array_equal(mine.cpu().numpy(), expected)
    with np.errstate(all="ignore"):
        narrow = a.astype(np.float32)
        np.testing.assert_array_equal(x.float().cpu().numpy(), narrow)
    np.testing.assert_array_equal(x.float().double().cpu().numpy(), narrow.astype(np.float64))
    small = np.array([-7.9, 2.5, 1e6, -0.4, 0.0])
    z = webtorch.tensor(small, device="webgpu")
    assert z.int().tolist() == [-7, 2, 1000000, 0, 0]
    assert z.int().double().tolist() == [-7.0, 2.0, 1e6, 0.0, 0.0]
    assert z.bool().tolist() == [True, True, True, True, False]


CALLS: dict[str, Callable[..., Any]] = {
    "softmax of float32": lambda lib, x, y: lib.softmax(x.float(), 1, dtype=lib.float64),
    "float_power": lambda lib, x, y: lib.float_power(x.abs().float(), 2.5),
    "steps": lambda lib, x, y: (
        1 - lib.linspace(0.01, 0.14, 40, dtype=lib.float64, device=x.device) ** 2
    ).cumprod(0),
    "positions": lambda lib, x, y: lib.cos(
        lib.arange(0, 40, 2, dtype=lib.float64, device=x.device)[:, None]
        * lib.tensor([1.0, 0.1, 1e-2], dtype=lib.float64, device=x.device)
    ),
    "a kernel": lambda lib, x, y: lib.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1)),
    "product": lambda lib, x, y: x @ y.T + 0.1,
    "sums": lambda lib, x, y: lib.cat([x.sum(0), y.mean(0), x.amax(0), x.std(0), x.cumsum(0)[-1]]),
    # Few in one kernel: a software adapter compiles each function anew wherever it stands.
    "log and tanh": lambda lib, x, y: x.tanh() + (x.abs() + 0.1).log(),
    "log1p": lambda lib, x, y: (x.abs() * 1e-9).log1p(),
    "erf": lambda lib, x, y: lib.erf(x),
    "angles": lambda lib, x, y: lib.stack([lib.atan(x * 3), lib.asin(x.cos()), lib.acos(x.cos())]),
    "hyperbolic": lambda lib, x, y: lib.stack([x.sinh(), (x * 20).cosh(), lib.exp2(x * 9)]),
    "erfc": lambda lib, x, y: lib.special.erfc(x * 9),
    "inverses": lambda lib, x, y: lib.stack(
        [lib.asinh(x * 1e9), lib.acosh(x.abs() + 1), lib.atanh(x / 4)]
    ),
    "angle": lambda lib, x, y: lib.atan2(x, y),
    "powers": lambda lib, x, y: (
        x ** lib.tensor([-19.0, 3.0, 0.0, 0.5, 2.0], dtype=lib.float64, device=x.device)
    ),
    "remainders": lambda lib, x, y: lib.stack([x % 0.3, lib.fmod(x, y), x.remainder(y)]),
    "argmax": lambda lib, x, y: x.argmax(1),
    "views": lambda lib, x, y: lib.where(x < y, x.T.reshape(7, 5), y)[
        lib.tensor([1, 4], device=x.device)
    ],
    "order": lambda lib, x, y: lib.cat(
        [
            x.sort(0).values[2],
            x.flatten().topk(4).values,
            y.median(0).values,
            x.argsort(1)[0].double(),
        ]
    ),
    "added at places": lambda lib, x, y: lib.stack(
        [
            x.index_add(0, lib.tensor([1, 6, 1, 1, 0, 6, 1], device=x.device), y),
            x.scatter_reduce(0, y.argsort(0) % 3, y, "amax"),
        ]
    ),
    "complex": lambda lib, x, y: lib.view_as_real(lib.complex(x, y) * lib.complex(y, x)),
}


# A software adapter compiles these for seconds.
SLOW = (
    "log and tanh",
    "log1p",
    "positions",
    "erf",
    "angles",
    "hyperbolic",
    "powers",
    "erfc",
    "inverses",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in CALLS]
)
def test_values_are_pytorchs(name: str) -> None:
    draw = torch.Generator().manual_seed(3)
    x, y = (torch.randn(7, 5, dtype=torch.float64, generator=draw) for _ in range(2))
    expected = CALLS[name](torch, x, y)
    found = CALLS[name](webtorch, *(webtorch.tensor(v.numpy(), device="webgpu") for v in (x, y)))
    assert str(found.dtype) == str(expected.dtype)
    np.testing.assert_allclose(found.cpu().numpy(), expected.numpy(), rtol=2.0**-46, atol=2.0**-50)


def test_gradients_are_pytorchs() -> None:
    def grad(lib: Any, device: str) -> Any:
        x = lib.linspace(-1, 1, 5, dtype=lib.float64).to(device).requires_grad_()
        (x * x * x / (x + 2)).sum().backward()
        return x.grad.cpu().numpy()

    np.testing.assert_allclose(grad(webtorch, "webgpu"), grad(torch, "cpu"), rtol=2.0**-46)


def test_what_has_no_form_is_refused() -> None:
    x = webtorch.ones(3, dtype=float64, device="webgpu")
    with pytest.raises(DTypeError, match="computes no float64"):
        webtorch.linalg.qr(x[:, None]).R.tolist()


# Small matrices, of which a workgroup has one, and blocks of columns.
@pytest.mark.parametrize("n", [5, pytest.param(90, marks=pytest.mark.long)])
def test_gaussian_processes(n: int) -> None:
    def run(lib: Any, device: str) -> list[Any]:
        x = lib.linspace(0, 1, n, dtype=lib.float64).to(device)
        a = (1 / (1 + 9 * (x[:, None] - x) ** 2) + 0.1 * lib.eye(n, device=device)).requires_grad_()
        factor = lib.linalg.cholesky(a)
        weights = lib.cholesky_solve(x[:, None], factor)
        (weights * weights).sum().backward()
        return [v.detach().cpu().numpy() for v in (factor, weights, a.grad)]

    for found, expected in zip(run(webtorch, "webgpu"), run(torch, "cpu"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    with pytest.raises(webtorch.linalg.LinAlgError, match="order 1 is not positive"):
        webtorch.linalg.cholesky(-webtorch.eye(n, dtype=float64, device="webgpu")).tolist()


def test_ties_and_nan_are_in_pytorchs_order() -> None:
    values = np.array([*SPECIAL, 1 + 2.0**-52, 1 + 2.0**-51, 1.0, np.nan, -1 - 2.0**-52])
    x, y = webtorch.tensor(values, device="webgpu"), torch.tensor(values)
    for descending in (False, True):
        found = webtorch.argsort(x, descending=descending, stable=True)
        assert found.tolist() == torch.argsort(y, descending=descending, stable=True).tolist()


def test_gradients_of_rows_that_are_chosen_twice() -> None:
    def grad(lib: Any, device: str) -> Any:
        x = lib.linspace(-1, 1, 5, dtype=lib.float64).to(device).requires_grad_()
        (x[lib.tensor([1, 1, 4], device=device)] ** 3).sum().backward()
        return x.grad.cpu().numpy()

    np.testing.assert_array_equal(grad(webtorch, "webgpu"), grad(torch, "cpu"))


def test_few_elements_need_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve("webgpu"), "bounds", {float64: 6, complex128: 6})
    x = webtorch.ones(6, device="webgpu", dtype=float64)
    assert (x / 10).sum().item() == float(np.full(6, 0.1).sum())
    for call in (
        lambda: webtorch.ones(7, device="webgpu").double(),
        lambda: webtorch.ones(7, device="webgpu", dtype=float64),
        lambda: webtorch.ones(7, dtype=float64).to("webgpu"),
        lambda: x[:, None] * x,
        lambda: webtorch.ones(7, device="webgpu", dtype=webtorch.complex128),
    ):
        with pytest.raises(DTypeError, match=r"in more than 6 elements.*FLOAT64=words"):
            call()


def test_the_option_says_what_the_device_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    for option, expected in (
        ("words", {"uint64": -1}),
        ("", {"uint64": -1, "float64": FEW, "complex128": FEW}),
        ("error", {"uint64": -1, "float64": -1, "complex128": -1}),
    ):
        monkeypatch.setenv("WEBTORCH_FLOAT64", option)
        assert {d.name: n for d, n in webgpu_bounds().items()} == expected
