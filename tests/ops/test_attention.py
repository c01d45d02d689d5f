"""Scaled dot-product attention against PyTorch: masks, grouped heads, gradients, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import webtorch
from tests.ops.parity import WEBTORCH, array, compare, same_error, tensor

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


@pytest.fixture(autouse=True)
def _reference_path() -> Iterator[None]:
    """PyTorch's fused attention has no second derivative; its plain one has."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed + len(shape)), dtype=torch.float64
    )


def masks() -> dict[str, torch.Tensor | None]:
    keep = torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) > 0.4
    some_hidden = keep.clone()
    some_hidden[1] = False
    return {
        "none": None,
        "bool": keep,
        "bool with a hidden row": some_hidden,
        "float": randn(3, 5),
        "float with a hidden row": torch.zeros(3, 5, dtype=torch.float64).masked_fill(
            ~some_hidden, -math.inf
        ),
        "per head": randn(2, 4, 3, 5, seed=8),
        "per key": (torch.arange(5) < 3).reshape(1, 1, 1, 5).expand(2, 1, 1, 5),
    }


SHAPES = {
    "batch and heads": [(2, 4, 3, 6), (2, 4, 5, 6), (2, 4, 5, 7)],
    "no batch": [(3, 6), (5, 6), (5, 6)],
    "broadcast": [(2, 4, 3, 6), (1, 4, 5, 6), (2, 1, 5, 6)],
    "one query": [(2, 4, 1, 6), (2, 4, 5, 6), (2, 4, 5, 6)],
}


@pytest.mark.parametrize("size", [12, 20])
def test_scores_that_matrix_units_do_not_serve_are_float32(
    size: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of about 1000 are off by a half in float16, weights then by a factor of 1.6."""
    backend = webtorch.zeros(1, device=device)._storage.runtime.backend
    monkeypatch.setattr(backend, "limits", replace(backend.limits, has_matrix_units=True))
    monkeypatch.setenv("WEBTORCH_ATTENTION", "products")
    query, key, value = (randn(1, 2, 24, size, seed=i).half() for i in range(3))
    query, key = query.abs() + 8, key.abs() + 8
    inputs = [x.double() for x in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, scale=1.0)
    found = webtorch.nn.functional.scaled_dot_product_attention(
        *(webtorch.tensor(x.numpy(), device=device) for x in (query, key, value)), scale=1.0
    )
    np.testing.assert_allclose(found.tolist(), expected.tolist(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("sizes", [(40, 24), (8, 16), (16, 40)], ids=str)
def test_heads_are_made_whole_fragments_for_matrix_units(
    sizes: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = webtorch.zeros(1, device=device)._storage.runtime.backend
    monkeypatch.setattr(backend, "limits", replace(backend.limits, has_matrix_units=True))
    monkeypatch.setenv("WEBTORCH_ATTENTION", "fused")
    size, width = sizes
    shapes = [(2, 3, 24, size), (2, 3, 20, size), (2, 3, 20, width)]
    inputs = [randn(*s, seed=i).half() for i, s in enumerate(shapes)]
    exact = [x.double().requires_grad_() for x in inputs]
    expected = torch.nn.functional.scaled_dot_product_attention(*exact)
    (expected * expected).sum().backward()
    ours = [webtorch.tensor(x.numpy(), device=device, requires_grad=True) for x in inputs]
    found = webtorch.nn.functional.scaled_dot_product_attention(*ours)
    assert found.shape == expected.shape and found.is_contiguous()
    (found * found).sum().backward()
    np.testing.assert_allclose(found.tolist(), expected.tolist(), rtol=0, atol=2e-3)
    for x, e in zip(ours, exact, strict=True):
        assert x.grad is not None and e.grad is not None
        atol = 4e-3 * float(e.grad.abs().max())
        np.testing.assert_allclose(x.grad.tolist(), e.grad.tolist(), rtol=0, atol=atol)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_attention(shapes: str, causal: bool, device: str) -> None:
    inputs = [randn(*s, seed=3 * i) for i, s in enumerate(SHAPES[shapes])]
    compare(
        lambda lib, q, k, v: lib.F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        inputs,
        device,
    )


@pytest.mark.parametrize("name", [n for n in masks() if n != "none"])
def test_masks(name: str, device: str) -> None:
    mask = masks()[name]
    assert mask is not None
    inputs = [randn(2, 4, 3, 6), randn(2, 4, 5, 6, seed=3), randn(2, 4, 5, 6, seed=6)]

    def run(lib, q, k, v, m):  # type: ignore[no-untyped-def]
        # The mask is data: its gradient is tested on its own below.
        return (
            lib.F.scaled_dot_product_attention(q, k, v, m.detach(), scale=0.7)
            + 0 * (m * 1.0).nan_to_num(0, 0, 0).sum()
        )

    compare(run, [*inputs, mask], device, layout=False)


def test_a_float_mask_has_a_gradient(device: str) -> None:
    inputs = [randn(2, 4, 3, 6), randn(2, 4, 5, 6, seed=3), randn(2, 4, 5, 6, seed=6), randn(3, 5)]
    compare(lambda lib, q, k, v, m: lib.F.scaled_dot_product_attention(q, k, v, m), inputs, device)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("keys", "values"), [(2, 2), (1, 1), (4, 4), (2, 1)])
def test_heads_share_keys(keys: int, values: int, device: str) -> None:
    inputs = [randn(2, 4, 3, 6), randn(2, keys, 5, 6, seed=3), randn(2, values, 5, 6, seed=6)]
    compare(
        lambda lib, q, k, v: lib.F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        inputs,
        device,
    )
    compare(
        lambda lib, q, k, v, m: lib.F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        [*inputs, randn(4, 3, 5)],
        device,
    )


def test_no_keys_give_zeros(device: str) -> None:
    inputs = [randn(2, 4, 3, 6), randn(2, 4, 0, 6), randn(2, 4, 0, 6)]
    compare(
        lambda lib, q, k, v: lib.F.scaled_dot_product_attention(q, k, v),
        inputs,
        device,
        gradients=False,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_attention_is_right_to_its_rounding(dtype: str, device: str) -> None:
    # Scores of several thousand, which float16 products before scaling would not hold.
    q, k, v = randn(1, 2, 8, 64) * 40, randn(1, 2, 8, 64, seed=3) * 40, randn(1, 2, 8, 64, seed=6)
    made = [tensor(x.float(), device).to(getattr(webtorch, dtype)) for x in (q, k, v)]
    out = array(WEBTORCH.F.scaled_dot_product_attention(*made).to(webtorch.float32))
    rounded = [x.to(getattr(torch, dtype)).double() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*rounded).numpy()
    assert np.isfinite(out).all()
    # Scores near 10^4 carry an error of several units at 8 to 11 bits, so rows may pick a neighbour: compare most.
    close = np.isclose(out, expected, atol=0.05).mean()
    assert close > 0.9


def test_dropout_keeps_the_mean(device: str) -> None:
    if "rand_like" not in webtorch.ops.record.TABLE:
        pytest.skip("random numbers are not in the table")
    q, k = tensor(torch.zeros(1, 1, 64, 4), device), tensor(torch.zeros(1, 1, 128, 4), device)
    v = tensor(torch.ones(1, 1, 128, 4), device)
    out = array(WEBTORCH.F.scaled_dot_product_attention(q, k, v, dropout_p=0.25))
    assert abs(out.mean() - 1.0) < 0.05
    assert out.std() > 0.01


def attend(lib, q, k, v, *args, **options):  # type: ignore[no-untyped-def]
    return lib.F.scaled_dot_product_attention(q, k, v, *args, **options)


ERRORS = {
    "rank": (lambda lib, q: attend(lib, q.sum((0, 1)), q, q.sum((0, 1, 2, 3))), "at least 2"),
    "sizes": (
        lambda lib, q: attend(lib, q, q.transpose(-2, -1), q),
        "the last dims of query and key",
    ),
    "mask type": (
        lambda lib, q: attend(lib, q, q, q, q.argmax(0)),
        "Expected attn_mask dtype to be bool or float",
    ),
    "heads": (
        lambda lib, q: attend(lib, q, q.narrow(1, 0, 3), q, enable_gqa=True),
        "must divide the number of",
    ),
    "dropout": (lambda lib, q: attend(lib, q, q, q, dropout_p=1.5), "between 0 and 1"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_the_rule(name: str) -> None:
    function, text = ERRORS[name]
    same_error(function, [randn(2, 4, 3, 6).float()], "cpu", text)


def test_types_must_be_equal() -> None:
    q = tensor(randn(2, 3).float(), "cpu")
    with pytest.raises(RuntimeError, match=r"query.dtype: float key.dtype: c10::Half"):
        WEBTORCH.F.scaled_dot_product_attention(q, q.to(webtorch.float16), q)
