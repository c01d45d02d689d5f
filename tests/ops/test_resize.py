"""Resizing, rearranging and sampling of images against PyTorch."""

from __future__ import annotations

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


CASES = [
    ((2, 3, 5), {"scale_factor": 2}),
    ((2, 3, 5), {"size": 8}),
    ((2, 3, 5), {"size": 3, "mode": "nearest-exact"}),
    ((2, 3, 4, 5), {"scale_factor": 2}),
    ((2, 3, 4, 5), {"scale_factor": (3, 2)}),
    ((2, 3, 4, 5), {"scale_factor": 1.7}),
    ((2, 3, 4, 5), {"scale_factor": 1.7, "recompute_scale_factor": True}),
    ((2, 3, 7, 5), {"size": (3, 9), "mode": "nearest-exact"}),
    ((2, 3, 4, 5), {"scale_factor": 2, "mode": "nearest-exact"}),
    ((1, 2, 3, 2, 4), {"scale_factor": 2}),
    ((1, 2, 3, 2, 4), {"size": (4, 5, 3)}),
    ((2, 3, 5), {"size": 8, "mode": "linear"}),
    ((2, 3, 5), {"size": 3, "mode": "linear", "align_corners": True}),
    ((2, 3, 4, 5), {"scale_factor": 2, "mode": "bilinear"}),
    ((2, 3, 4, 5), {"size": (7, 3), "mode": "bilinear", "align_corners": True}),
    ((2, 3, 4, 5), {"scale_factor": 1.3, "mode": "bilinear"}),
    ((2, 3, 4, 5), {"size": (4, 7), "mode": "bilinear"}),
    ((2, 3, 4, 5), {"size": (1, 7), "mode": "bilinear", "align_corners": True}),
    ((2, 3, 4, 5), {"scale_factor": 2, "mode": "bicubic"}),
    ((2, 3, 6, 5), {"size": (3, 8), "mode": "bicubic", "align_corners": True}),
    ((1, 2, 3, 2, 4), {"scale_factor": 2, "mode": "trilinear"}),
    ((1, 2, 3, 2, 4), {"size": (4, 3, 5), "mode": "trilinear", "align_corners": True}),
    ((2, 3, 6, 8), {"size": (3, 4), "mode": "area"}),
    ((2, 3, 7), {"size": 3, "mode": "area"}),
    ((2, 3, 7, 5), {"scale_factor": 0.5, "mode": "area"}),
    ((1, 2, 3, 4, 5), {"size": 2, "mode": "area"}),
    ((2, 3, 9, 8), {"size": (4, 5), "mode": "bilinear", "antialias": True}),
    ((2, 3, 9, 8), {"size": (4, 11), "mode": "bicubic", "antialias": True}),
    ((2, 3, 9, 8), {"size": (4, 5), "mode": "bilinear", "antialias": True, "align_corners": True}),
    ((2, 3, 9, 8), {"size": (4, 5), "mode": "lanczos", "antialias": True}),
    ((2, 3, 4, 5), {"size": (4, 5), "mode": "bilinear"}),
    ((2, 3, 4, 5), {"size": (4, 5)}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_interpolate(shape: tuple[int, ...], options: dict[str, object], device: str) -> None:
    compare(lambda lib, x: lib.F.interpolate(x, **options), [randn(*shape)], device)


@pytest.mark.parametrize("factor", [3, 5, 6, 7, 10, 13])
def test_nearest_rounds_as_pytorch(factor: int) -> None:
    # The source position is computed in float32: 1 / 13 or the like may fall on either side of a whole number.
    x = torch.arange(17.0).reshape(1, 1, 17)
    compare(lambda lib, x: lib.F.interpolate(x, scale_factor=factor), [x], "cpu", gradients=False)
    compare(lambda lib, x: lib.F.interpolate(x, size=17 * factor + 1), [x], "cpu", gradients=False)
    compare(lambda lib, x: lib.F.interpolate(x, size=17 * factor), [x], "cpu", gradients=False)


@pytest.mark.one_in(2)
def test_rearranging(device: str) -> None:
    compare(lambda lib, x: lib.F.pixel_shuffle(x, 2), [randn(2, 8, 3, 4)], device)
    compare(lambda lib, x: lib.F.pixel_unshuffle(x, 2), [randn(2, 2, 6, 4)], device)
    compare(lambda lib, x: lib.F.pixel_unshuffle(x, 3), [randn(2, 6, 3)], device)
    compare(lambda lib, x: lib.t.channel_shuffle(x, 3), [randn(2, 6, 2, 2)], device)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool, device: str) -> None:
    grid = (
        torch.rand(2, 3, 5, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        * 3.6
        - 1.8
    )

    def run(lib, x, g):  # type: ignore[no-untyped-def]
        return lib.F.grid_sample(x, g, mode, padding, align)

    compare(
        run,
        [randn(2, 3, 4, 6), grid],
        device,
        second=False,
        tolerance=None if device == "cpu" else 2e-3,
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample_of_places_that_are_no_numbers(mode: str, padding: str) -> None:
    inf, nan = float("inf"), float("nan")
    places = [[nan, 0.0], [0.0, nan], [inf, 0.2], [0.1, -inf], [1e30, 0.0], [nan, nan], [0.3, -0.4]]
    grid = torch.tensor(places, dtype=torch.float64).reshape(1, 1, 7, 2)
    x = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(1, 1, 3, 4)
    for wanted in (False, True):
        ours = webtorch.tensor(grid.tolist(), dtype=webtorch.float64, requires_grad=wanted)
        found = webtorch.nn.functional.grid_sample(
            webtorch.tensor(x.tolist(), dtype=webtorch.float64), ours, mode, padding, False
        )
        expected = torch.nn.functional.grid_sample(x, grid, mode, padding, False)
        assert found.flatten().tolist() == pytest.approx(expected.flatten().tolist(), nan_ok=True)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_the_slope_of_grid_sample_at_the_edge_is_that_of_pytorch(padding: str, device: str) -> None:
    """Identity grids of `affine_grid` have their ends there."""
    grid = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]]).reshape(1, 2, 2, 2)
    compare(
        lambda lib, x, g: lib.F.grid_sample(x, g, "bilinear", padding, True),
        [randn(1, 2, 3, 5), grid.double()],
        device,
        second=False,
        tolerance=None if device == "cpu" else 2e-3,
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_in_three_dimensions(padding: str, device: str) -> None:
    grid = (
        torch.rand(2, 2, 3, 2, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        * 3
        - 1.5
    )
    compare(
        lambda lib, x, g: lib.F.grid_sample(x, g, "bilinear", padding, False),
        [randn(2, 2, 3, 4, 5), grid],
        device,
        second=False,
        tolerance=None if device == "cpu" else 2e-3,
    )


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid(align: bool, device: str) -> None:
    compare(
        lambda lib, t: lib.F.affine_grid(t, (2, 3, 4, 5), align),
        [randn(2, 2, 3)],
        device,
        layout=False,
    )
    compare(
        lambda lib, t: lib.F.affine_grid(t, (2, 1, 3, 4, 5), align),
        [randn(2, 3, 4)],
        device,
        layout=False,
    )


ERRORS = {
    "neither": (lambda lib, x: lib.F.interpolate(x), "either size or scale_factor"),
    "both": (lambda lib, x: lib.F.interpolate(x, 3, 2), "only one of size or scale_factor"),
    "sizes": (lambda lib, x: lib.F.interpolate(x, (3, 4, 5)), "same number of spatial dimensions"),
    "factors": (
        lambda lib, x: lib.F.interpolate(x, scale_factor=(2, 2, 2)),
        "scale_factor of shape (2, 2, 2)",
    ),
    "rank": (
        lambda lib, x: lib.F.interpolate(x, 3, mode="linear"),
        "Got 4D input, but linear mode needs 3D input",
    ),
    "mode": (lambda lib, x: lib.F.interpolate(x, 3, mode="cubic"), "(got cubic)"),
    "corners": (
        lambda lib, x: lib.F.interpolate(x, 3, align_corners=True),
        "align_corners option can only be set",
    ),
    "recompute": (
        lambda lib, x: lib.F.interpolate(x, 3, recompute_scale_factor=True),
        "not meaningful with an explicit size",
    ),
    "nothing": (lambda lib, x: lib.F.interpolate(x, 0), "sizes should be greater than 0"),
    "antialias": (
        lambda lib, x: lib.F.interpolate(x, 3, antialias=True),
        "Anti-alias option is restricted",
    ),
    "shuffle": (lambda lib, x: lib.F.pixel_shuffle(x, 2), "input.size(-3)=3 is not divisible by 4"),
    "unshuffle": (
        lambda lib, x: lib.F.pixel_unshuffle(x, 3),
        "input.size(-2)=4 is not divisible by 3",
    ),
    "grid mode": (
        lambda lib, x: lib.F.grid_sample(x, x, "linear", align_corners=False),
        "expected mode to be",
    ),
    "grid size": (
        lambda lib, x: lib.F.grid_sample(x, x, align_corners=False),
        "expected grid to have size 2 in last dimension",
    ),
    "theta": (lambda lib, x: lib.F.affine_grid(x, (1, 1, 2, 2), False), "Nx2x3"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_the_rule(name: str) -> None:
    function, text = ERRORS[name]
    same_error(function, [randn(2, 3, 4, 5).float()], "cpu", text)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_in_a_volume_that_are_no_numbers(mode: str, padding: str, align: bool) -> None:
    nan, inf = float("nan"), float("inf")
    places = [
        [nan, 0, 0],
        [0, nan, 0],
        [0, 0.5, nan],
        [nan] * 3,
        [inf, 0, 0],
        [-inf, 0, 0.5],
        [0.3, 0.2, inf],
    ]
    x, grid = torch.arange(24.0).reshape(1, 1, 2, 3, 4), torch.tensor(places).reshape(1, 7, 1, 1, 3)
    expected = torch.nn.functional.grid_sample(x, grid, mode, padding, align)
    found = webtorch.nn.functional.grid_sample(
        webtorch.tensor(x.tolist()),
        webtorch.tensor(places).reshape(1, 7, 1, 1, 3),
        mode,
        padding,
        align,
    )
    torch.testing.assert_close(torch.tensor(found.tolist()), expected, rtol=1e-5, atol=1e-5)
