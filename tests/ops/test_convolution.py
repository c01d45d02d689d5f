"""Convolutions against PyTorch: values, layout, first and second gradients, errors."""

from __future__ import annotations

import pytest
import torch

from tests.ops.parity import compare, same_error

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed + len(shape)), dtype=torch.float64
    )


# dims, input, weight, whether there is a bias, options
FORWARD = [
    (1, (2, 3, 9), (4, 3, 3), True, {}),
    (1, (3, 9), (4, 3, 3), True, {"padding": 1}),
    (1, (2, 4, 10), (6, 2, 3), False, {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    (1, (2, 3, 9), (4, 3, 4), True, {"padding": "same"}),
    (1, (2, 3, 9), (4, 3, 4), True, {"padding": "valid", "stride": 3}),
    (2, (2, 3, 6, 7), (4, 3, 3, 2), True, {}),
    (2, (3, 6, 7), (4, 3, 3, 3), True, {"padding": 1}),
    (2, (2, 3, 6, 7), (4, 3, 3, 2), True, {"stride": (2, 1), "padding": (1, 0)}),
    (2, (2, 3, 7, 8), (4, 3, 3, 3), False, {"stride": 2, "padding": 2, "dilation": (2, 1)}),
    (2, (2, 4, 5, 5), (6, 2, 3, 3), True, {"groups": 2, "padding": 1}),
    (2, (2, 3, 5, 5), (6, 1, 3, 3), True, {"groups": 3, "stride": 2}),
    (2, (2, 3, 5, 6), (4, 3, 2, 4), True, {"padding": "same", "dilation": (1, 2)}),
    (2, (2, 3, 5, 6), (4, 3, 1, 1), True, {}),
    (2, (1, 1, 5, 6), (1, 1, 5, 6), True, {}),
    (3, (2, 2, 4, 5, 6), (3, 2, 2, 3, 2), True, {"stride": (2, 1, 2), "padding": (1, 1, 0)}),
    (3, (2, 5, 4, 5), (4, 1, 2, 2, 2), False, {"groups": 2, "dilation": (2, 1, 1)}),
    (3, (1, 2, 4, 4, 4), (3, 2, 2, 3, 3), True, {"padding": "same"}),
]


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize(("rank", "x", "w", "bias", "options"), FORWARD)
def test_convolution(
    rank: int,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool,
    options: dict[str, object],
    device: str,
) -> None:
    inputs = [randn(*x), randn(*w, seed=1), *([randn(w[0], seed=2)] if bias else [])]
    compare(
        lambda lib, *a: getattr(lib.F, f"conv{rank}d")(*a, **options), inputs, device, layout=False
    )


TRANSPOSED = [
    (1, (2, 3, 5), (3, 4, 3), True, {}),
    (1, (3, 5), (3, 2, 4), True, {"stride": 2, "padding": 1, "output_padding": 1}),
    (1, (2, 4, 5), (4, 3, 3), False, {"stride": 3, "dilation": 2, "groups": 2}),
    (2, (2, 3, 4, 5), (3, 4, 3, 2), True, {}),
    (2, (3, 4, 5), (3, 4, 3, 3), True, {"stride": 2, "padding": 1}),
    (
        2,
        (2, 3, 4, 5),
        (3, 2, 3, 3),
        True,
        {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)},
    ),
    (2, (2, 4, 4, 5), (4, 3, 2, 3), False, {"stride": 2, "dilation": (1, 2), "groups": 2}),
    (
        3,
        (2, 2, 3, 4, 3),
        (2, 3, 2, 3, 2),
        True,
        {"stride": (2, 1, 2), "padding": (1, 1, 0), "output_padding": (1, 0, 1)},
    ),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rank", "x", "w", "bias", "options"), TRANSPOSED)
def test_transposed_convolution(
    rank: int,
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool,
    options: dict[str, object],
    device: str,
) -> None:
    groups = int(str(options.get("groups", 1)))
    inputs = [randn(*x), randn(*w, seed=1), *([randn(w[1] * groups, seed=2)] if bias else [])]
    compare(
        lambda lib, *a: getattr(lib.F, f"conv_transpose{rank}d")(*a, **options),
        inputs,
        device,
        layout=False,
    )


def test_convolution_of_a_view(device: str) -> None:
    compare(
        lambda lib, x, w: lib.F.conv2d(x.transpose(1, 3), w.transpose(0, 1)),
        [randn(2, 6, 5, 3), randn(3, 4, 2, 2)],
        device,
        layout=False,
    )


def test_convolution_of_an_empty_batch(device: str) -> None:
    compare(
        lambda lib, x, w, b: lib.F.conv2d(x, w, b),
        [randn(0, 3, 5, 5), randn(4, 3, 2, 2), randn(4)],
        device,
        second=False,
    )


ERRORS = {
    "channels": (
        lambda lib, x, w: lib.F.conv2d(x, w[:, :2]),
        "to have 2 channels, but got 3 channels instead",
    ),
    "rank": (
        lambda lib, x, w: lib.F.conv2d(x[0, 0], w),
        "Expected 3D (unbatched) or 4D (batched) input to conv2d",
    ),
    "kernel too large": (
        lambda lib, x, w: lib.F.conv2d(x[:, :, :2], w),
        "Kernel size can't be greater than actual input size",
    ),
    "types": (
        lambda lib, x, w: lib.F.conv2d(x, w.to(x.sum(0).argmax().dtype)),
        "Input type (float) and weight type (long int) should be the same",
    ),
    "groups": (lambda lib, x, w: lib.F.conv2d(x, w[:, :1], groups=3), "to be divisible by 3"),
    "stride": (lambda lib, x, w: lib.F.conv2d(x, w, stride=0), "non-positive stride"),
    "same strided": (
        lambda lib, x, w: lib.F.conv2d(x, w, stride=2, padding="same"),
        "not supported for strided",
    ),
    "padding text": (
        lambda lib, x, w: lib.F.conv2d(x, w, padding="full"),
        "Invalid padding string",
    ),
    "sizes": (lambda lib, x, w: lib.F.conv2d(x, w, stride=(1, 1, 1)), "stride"),
    "bias": (
        lambda lib, x, w: lib.F.conv2d(x, w, w[0, 0, 0]),
        "expected bias to be 1-dimensional with 4 elements",
    ),
    "output padding": (
        lambda lib, x, w: lib.F.conv_transpose2d(x, w.transpose(0, 1), output_padding=2),
        "output padding must be smaller than",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_the_rule(name: str) -> None:
    function, text = ERRORS[name]
    same_error(function, [randn(2, 3, 5, 5).float(), randn(4, 3, 3, 3).float()], "cpu", text)
