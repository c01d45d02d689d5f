"""Initial values: bounds, spreads and structure of every filler, and PyTorch's errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import init as ref

import webtorch
from tests.nn.oracle import assert_same, to_numpy
from webtorch import nn
from webtorch.nn import init

SHAPE = (200, 100)


def filled(name: str, *args: Any, shape: tuple[int, ...] = SHAPE, **kwargs: Any) -> torch.Tensor:
    """Return what a filler makes, checked to be in place and without autograd."""
    webtorch.manual_seed(0)
    tensor = webtorch.empty(shape, device="cpu").requires_grad_()
    result = getattr(init, name)(tensor, *args, **kwargs)
    assert result is tensor
    assert tensor.is_leaf
    return torch.tensor(tensor.tolist())


@pytest.mark.covers("I30", "I31", "I32")
@pytest.mark.parametrize(
    ("name", "args", "std", "bound"),
    [
        ("uniform_", (-2.0, 2.0), 2 / math.sqrt(3), 2.0),
        ("normal_", (0.0, 0.5), 0.5, None),
        ("xavier_uniform_", (2.0,), 2 * math.sqrt(2 / 300), 2 * math.sqrt(6 / 300)),
        ("xavier_normal_", (), math.sqrt(2 / 300), None),
        ("kaiming_uniform_", (1.0,), math.sqrt(1 / 100), math.sqrt(3 / 100)),
        ("kaiming_normal_", (0, "fan_out", "relu"), math.sqrt(2 / 200), None),
        ("trunc_normal_", (0.0, 1.0, -1.0, 1.0), 0.5396, 1.0),
    ],
)
def test_random_fillers_have_their_spread(
    name: str, args: tuple[Any, ...], std: float, bound: float | None
) -> None:
    values = filled(name, *args)
    assert abs(values.mean().item()) < 5 * std / math.sqrt(values.numel())
    assert abs(values.std().item() / std - 1) < 0.03
    if bound is not None:
        assert values.abs().max().item() <= bound
        assert values.abs().max().item() > 0.98 * bound


def test_truncated_normal_has_the_right_quantiles() -> None:
    values = filled("trunc_normal_", 1.0, 2.0, 0.0, 4.0)
    torch.manual_seed(0)
    expected = ref.trunc_normal_(torch.empty(SHAPE), 1.0, 2.0, 0.0, 4.0)
    quantiles = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99])
    assert torch.allclose(
        values.flatten().quantile(quantiles), expected.flatten().quantile(quantiles), atol=0.06
    )


def test_constant_fillers() -> None:
    assert (filled("ones_") == 1).all()
    assert (filled("zeros_") == 0).all()
    assert (filled("constant_", 0.3) == 0.3).all()
    assert torch.equal(filled("eye_", shape=(3, 5)), ref.eye_(torch.empty(3, 5)))


@pytest.mark.parametrize("shape", [(4, 2, 3), (6, 3, 2, 3), (2, 2, 3, 3, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_dirac_like_pytorch(shape: tuple[int, ...], groups: int) -> None:
    expected = ref.dirac_(torch.empty(shape), groups)
    assert torch.equal(filled("dirac_", groups, shape=shape), expected)


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (8, 3, 3), (5, 5), (1, 4)])
def test_orthogonal_rows_or_columns_are_orthonormal(shape: tuple[int, ...]) -> None:
    values = filled("orthogonal_", 2.0, shape=shape).flatten(1).double() / 2
    rows, columns = values.shape
    product = values @ values.T if rows <= columns else values.T @ values
    assert torch.allclose(product, torch.eye(min(rows, columns), dtype=torch.float64), atol=1e-6)


def test_orthogonal_is_the_same_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled("orthogonal_", shape=(7, 9))
    monkeypatch.setattr(init, "_orthonormal_rows", init._gram_schmidt)
    assert torch.allclose(filled("orthogonal_", shape=(7, 9)), expected, atol=1e-6)


def test_sparse_leaves_the_right_number_of_zeros() -> None:
    values = filled("sparse_", 0.3, 2.0, shape=(50, 20))
    assert ((values == 0).sum(0) == 15).all()
    assert abs(values[values != 0].std().item() / 2 - 1) < 0.15


def test_generator_decides_the_numbers(device: str) -> None:
    def drawn(seed: int) -> list[float]:
        generator = webtorch.Generator().manual_seed(seed)
        return init.xavier_uniform_(webtorch.empty(3, 4), generator=generator).tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@pytest.mark.covers("I33")
@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv_transpose3d", "sigmoid",
                                  "tanh", "relu", "leaky_relu", "selu"])  # fmt: skip
def test_gains_are_those_of_pytorch(name: str) -> None:
    assert init.calculate_gain(name) == ref.calculate_gain(name)  # type: ignore[arg-type]
    assert init.calculate_gain("leaky_relu", 0.3) == ref.calculate_gain("leaky_relu", 0.3)


ERRORS: dict[str, Any] = {
    "gain": lambda i, t: i.calculate_gain("nothing"),
    "slope": lambda i, t: i.calculate_gain("leaky_relu", "a"),
    "fan": lambda i, t: i.xavier_uniform_(t.empty(3)),
    "mode": lambda i, t: i.kaiming_uniform_(t.empty(3, 3), mode="fan"),
    "eye": lambda i, t: i.eye_(t.empty(3)),
    "dirac": lambda i, t: i.dirac_(t.empty(3, 3)),
    "dirac groups": lambda i, t: i.dirac_(t.empty(3, 3, 3), groups=2),
    "orthogonal": lambda i, t: i.orthogonal_(t.empty(3)),
    "sparse": lambda i, t: i.sparse_(t.empty(3), 0.1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    with pytest.raises(Exception) as expected:
        ERRORS[name](ref, torch)
    with pytest.raises(type(expected.value)) as actual:
        ERRORS[name](init, webtorch)
    assert str(actual.value) == str(expected.value)


def test_empty_tensors_warn_and_stay() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        init.kaiming_uniform_(webtorch.empty(0, 3))


def test_old_names_warn() -> None:
    with pytest.warns(FutureWarning, match="deprecated in favor of `nn.init.xavier_uniform_`"):
        init.xavier_uniform(webtorch.empty(2, 2))


@pytest.mark.covers("B15")
@pytest.mark.parametrize("make", [
    lambda: nn.Linear(50, 40), lambda: nn.Conv2d(8, 12, 3), lambda: nn.Embedding(40, 50),
    lambda: nn.MultiheadAttention(32, 4), lambda: nn.Bilinear(10, 12, 14),
    lambda: nn.ConvTranspose2d(8, 12, 3),
], ids=["Linear", "Conv2d", "Embedding", "MultiheadAttention", "Bilinear", "ConvTranspose2d"])  # fmt: skip
def test_layers_start_with_the_spread_of_pytorch_and_a_seed_repeats_it(make: Any) -> None:
    webtorch.manual_seed(1)
    layer = make()
    webtorch.manual_seed(1)
    assert_same([p.tolist() for p in make().parameters()], [p.tolist() for p in layer.parameters()])
    torch.manual_seed(0)
    name = type(layer).__name__
    args = {"Linear": (50, 40), "Conv2d": (8, 12, 3), "Embedding": (40, 50),
            "MultiheadAttention": (32, 4), "Bilinear": (10, 12, 14),
            "ConvTranspose2d": (8, 12, 3)}[name]  # fmt: skip
    reference = getattr(torch.nn, name)(*args)
    for ours, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
        wanted = theirs.detach().std().item()
        if theirs.numel() > 500:
            assert abs(to_numpy(ours).std() - wanted) <= 0.1 * wanted
        elif wanted == 0:
            assert to_numpy(ours).std() == 0
