"""Pooling, unfold and fold against PyTorch: values, indices, gradients, ties, edges, errors."""

from __future__ import annotations

import math

import pytest
import torch

import webtorch
from tests.ops.parity import compare, same_error

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed + len(shape)), dtype=torch.float64
    )


MAX = [
    (1, (2, 3, 9), 3, {}),
    (1, (3, 9), 3, {"stride": 2, "padding": 1}),
    (1, (2, 3, 9), 2, {"dilation": 3, "stride": 1}),
    # One window more would begin behind the input.
    (1, (2, 3, 3), 2, {"stride": 3, "ceil_mode": True}),
    (2, (2, 3, 6, 8), 2, {}),
    (2, (3, 6, 8), 2, {}),
    (2, (2, 3, 7, 7), 3, {"stride": 2, "padding": 1}),
    (2, (2, 3, 7, 8), (3, 2), {"stride": (1, 3)}),
    (2, (2, 3, 7, 7), 2, {"ceil_mode": True}),
    (2, (1, 1, 6, 7), 3, {"stride": 2, "ceil_mode": True, "padding": 1}),
    (2, (2, 3, 9, 9), 3, {"dilation": 2, "padding": 1, "stride": 2}),
    (2, (1, 2, 8, 8), 2, {"stride": 3}),
    (2, (1, 1, 4, 4), 4, {}),
    (2, (0, 3, 4, 4), 2, {}),
    (3, (2, 2, 4, 5, 6), 2, {}),
    (3, (2, 2, 5, 5, 5), 3, {"stride": 2, "padding": 1}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rank", "shape", "kernel", "options"), MAX)
def test_max_pool(
    rank: int, shape: tuple[int, ...], kernel: object, options: dict[str, object], device: str
) -> None:
    def run(lib, x):  # type: ignore[no-untyped-def]
        return getattr(lib.F, f"max_pool{rank}d")(x, kernel, return_indices=True, **options)

    compare(run, [randn(*shape)], device, second=0 not in shape)
    compare(
        lambda lib, x: getattr(lib.F, f"max_pool{rank}d")(x, kernel, **options),
        [randn(*shape)],
        device,
        second=False,
    )


def test_the_first_of_equal_maxima_gets_the_gradient(device: str) -> None:
    x = torch.tensor(
        [[[1.0, 2.0, 2.0, 2.0], [0.0, 2.0, 0.0, 2.0], [3.0, 3.0, 0.0, 0.0], [3.0, 3.0, 0.0, 0.0]]],
        dtype=torch.float64,
    )
    compare(lambda lib, x: lib.F.max_pool2d(x, 2, return_indices=True), [x], device)
    compare(
        lambda lib, x: lib.F.max_pool2d(x, 3, stride=1, padding=1, return_indices=True), [x], device
    )


def test_max_pool_of_infinities_and_nan(device: str) -> None:
    x = randn(1, 2, 5, 5)
    x[0, 0, :3, :3] = -math.inf
    x[0, 1, 4, 4] = math.inf
    compare(
        lambda lib, x: lib.F.max_pool2d(x, 2, padding=1, return_indices=True),
        [x],
        device,
        gradients=False,
    )
    x[0, 1, 0, 0] = math.nan
    compare(lambda lib, x: lib.F.max_pool2d(x, 2, padding=1), [x], device, gradients=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_max_pool_of_integers(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(16, dtype=dtype).reshape(1, 4, 4) * -1
    compare(
        lambda lib, x: lib.F.max_pool2d(x, 3, stride=1, padding=1), [x], device, gradients=False
    )


def test_masked_extremes_of_int64(device: str) -> None:
    x = torch.arange(6).reshape(2, 3) - 9
    mine = webtorch.tensor(x.tolist(), device=device)
    for name in ("amax", "amin", "argmax", "argmin"):
        ours, theirs = (getattr(m.masked, name) for m in (webtorch, torch))
        assert ours(mine, 1, mask=mine > -8).tolist() == theirs(x, 1, mask=x > -8).tolist()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool_puts_values_back(rank: int, device: str) -> None:
    def run(lib, x):  # type: ignore[no-untyped-def]
        values, indices = getattr(lib.F, f"max_pool{rank}d")(x, 2, return_indices=True)
        return getattr(lib.F, f"max_unpool{rank}d")(values, indices, 2, output_size=x.shape)

    compare(run, [randn(2, 3, *(5,) * rank)], device)


AVG = [
    (1, (2, 3, 9), 3, {}),
    (1, (3, 9), 4, {"stride": 2, "padding": 2}),
    (1, (2, 3, 9), 4, {"stride": 3, "ceil_mode": True, "padding": 1, "count_include_pad": False}),
    (1, (2, 3, 3), 2, {"stride": 3, "ceil_mode": True}),
    (2, (2, 3, 6, 8), 2, {}),
    (2, (3, 7, 7), 3, {"stride": 2, "padding": 1}),
    (2, (2, 3, 7, 7), 3, {"stride": 2, "padding": 1, "count_include_pad": False}),
    (2, (2, 3, 7, 8), (3, 2), {"stride": (2, 3), "ceil_mode": True}),
    (2, (2, 3, 7, 8), 3, {"padding": 1, "ceil_mode": True, "stride": 2}),
    (2, (2, 3, 7, 8), 3, {"divisor_override": 5, "padding": 1}),
    (2, (0, 3, 4, 4), 2, {}),
    (3, (2, 2, 4, 5, 6), 2, {}),
    (3, (2, 5, 5, 5), 3, {"stride": 2, "padding": 1, "count_include_pad": False}),
]


@pytest.mark.parametrize(("rank", "shape", "kernel", "options"), AVG)
def test_avg_pool(
    rank: int, shape: tuple[int, ...], kernel: object, options: dict[str, object], device: str
) -> None:
    compare(
        lambda lib, x: getattr(lib.F, f"avg_pool{rank}d")(x, kernel, **options),
        [randn(*shape)],
        device,
        second=0 not in shape,
    )


@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"stride": 2, "ceil_mode": True}])
def test_lp_pool(options: dict[str, object], device: str) -> None:
    compare(
        lambda lib, x: lib.F.lp_pool1d(x * x + 0.1, 3.0, 3, **options),
        [randn(2, 3, 8)],
        device,
        tolerance=1e-3 if device != "cpu" else None,
    )
    compare(
        lambda lib, x: lib.F.lp_pool2d(x, 2, (2, 3), **options),
        [randn(2, 3, 6, 7)],
        device,
        tolerance=1e-3 if device != "cpu" else None,
    )


ADAPTIVE = [
    (1, (2, 3, 8), 4),
    (1, (3, 7), 3),
    (1, (2, 3, 5), 7),
    (2, (2, 3, 8, 6), (4, 3)),
    (2, (2, 3, 7, 7), (3, 2)),
    (2, (3, 5, 7), 1),
    (2, (2, 3, 7, 7), (None, 3)),
    (2, (2, 3, 4, 5), (6, 7)),
    (2, (1, 1, 10, 10), 7),
    (3, (2, 2, 4, 5, 6), (2, 3, 3)),
    (3, (2, 2, 4, 4, 6), 2),
    (2, (2, 3, 4, 4), 0),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rank", "shape", "size"), ADAPTIVE)
def test_adaptive_pool(rank: int, shape: tuple[int, ...], size: object, device: str) -> None:
    compare(
        lambda lib, x: getattr(lib.F, f"adaptive_avg_pool{rank}d")(x, size),
        [randn(*shape)],
        device,
        gradients=size != 0,
    )
    if size == 0:
        return
    compare(
        lambda lib, x: getattr(lib.F, f"adaptive_max_pool{rank}d")(x, size, return_indices=True),
        [randn(*shape)],
        device,
    )


def test_adaptive_max_pool_takes_the_first_of_ties(device: str) -> None:
    x = torch.randint(0, 2, (2, 3, 7, 5), generator=torch.Generator().manual_seed(0)).double()
    compare(lambda lib, x: lib.F.adaptive_max_pool2d(x, (3, 4), return_indices=True), [x], device)


def test_adaptive_pool_keeps_infinities_in_their_bins(device: str) -> None:
    x = randn(1, 1, 7, 5)
    x[0, 0, 0, 0] = math.inf
    x[0, 0, 4:, 2:] = -math.inf
    compare(lambda lib, x: lib.F.adaptive_avg_pool2d(x, (3, 2)), [x], device, gradients=False)
    compare(
        lambda lib, x: lib.F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        [x],
        device,
        gradients=False,
    )


COLUMNS = [
    ((2, 3, 6, 7), (2, 3), {}),
    ((3, 6, 7), 3, {"padding": 1}),
    ((2, 3, 7, 8), (2, 3), {"stride": (2, 3), "padding": (1, 2)}),
    ((1, 2, 8, 8), 3, {"dilation": 2, "stride": 2, "padding": 1}),
    ((2, 2, 6, 6), 2, {"stride": 3}),
    ((2, 2, 9, 7), 4, {"stride": 3, "padding": 2}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("shape", "kernel", "options"), COLUMNS)
def test_unfold_and_fold(
    shape: tuple[int, ...], kernel: object, options: dict[str, object], device: str
) -> None:
    compare(lambda lib, x: lib.F.unfold(x, kernel, **options), [randn(*shape)], device)
    columns = torch.nn.functional.unfold(randn(*shape), kernel, **options)
    compare(
        lambda lib, x: lib.F.fold(x, shape[-2:], kernel, **options), [randn(*columns.shape)], device
    )


ERRORS = {
    "padding": (
        lambda lib, x: lib.F.max_pool2d(x, 2, padding=2),
        "pad should be at most half of effective kernel size",
    ),
    "too small": (lambda lib, x: lib.F.max_pool2d(x, 9), "Output size is too small"),
    "rank": (
        lambda lib, x: lib.F.max_pool2d(x[0, 0], 2),
        "3D or 4D (batch mode) tensor expected for input",
    ),
    "stride": (lambda lib, x: lib.F.avg_pool2d(x, 2, stride=0), "stride should not be zero"),
    "divisor": (
        lambda lib, x: lib.F.avg_pool2d(x, 2, divisor_override=0),
        "divisor must be not zero",
    ),
    "kernel": (lambda lib, x: lib.F.avg_pool2d(x, (2, 2, 2)), "kernel_size"),
    "adaptive": (
        lambda lib, x: lib.F.adaptive_avg_pool2d(x, -1),
        "must be greater than or equal to 0",
    ),
    "unfold": (lambda lib, x: lib.F.unfold(x, 9), "its components must be at least one"),
    "fold": (
        lambda lib, x: lib.F.fold(x[0], (4, 4), 2),
        "to be divisible by the product of kernel_size",
    ),
    "fold count": (lambda lib, x: lib.F.fold(x[0, :, :4], (4, 4), 2), "number of sliding blocks"),
    "unpool": (
        lambda lib, x: lib.F.max_unpool2d(x, x[..., :2].argmax(-1), 2),
        "Expected shape of indices",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_the_rule(name: str) -> None:
    function, text = ERRORS[name]
    same_error(function, [randn(2, 3, 5, 5).float()], "cpu", text)
