"""Normalizations: values, first and second gradients, running statistics and errors against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.ops.parity import TORCH, WEBTORCH, compare, same_error, tensor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def functional(L: Any) -> Any:
    """Return `nn.functional` with what is written beside the table."""
    return torch.nn.functional if L is TORCH else webtorch.nn.functional


X = values(2, 4, 3)
W, B = values(4, seed=2), values(4, seed=3)
# name -> (function of a library and tensors, tensors)
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "layer_norm": (lambda L, x: L.F.layer_norm(x, (3,)), [X]),
    "layer_norm affine": (
        lambda L, x, w, b: L.F.layer_norm(x, (4, 3), w, b, 1e-3),
        [X, values(4, 3, seed=2), values(4, 3, seed=3)],
    ),
    "layer_norm weight only, transposed": (
        lambda L, x, w: L.F.layer_norm(x, [2], w),
        [X.permute(1, 2, 0), values(2, seed=4)],
    ),
    "layer_norm empty": (lambda L, x: L.F.layer_norm(x, (3,)), [values(0, 3)]),
    "rms_norm": (lambda L, x: L.F.rms_norm(x, (3,), eps=1e-5), [X]),
    "rms_norm weight": (
        lambda L, x, w: L.F.rms_norm(x, (4, 3), w, 1e-2),
        [X, values(4, 3, seed=2)],
    ),
    "group_norm": (lambda L, x, w, b: L.F.group_norm(x, 2, w, b), [X, W, B]),
    "group_norm of images": (lambda L, x: L.F.group_norm(x, 1), [values(2, 3, 2, 2)]),
    "group_norm per channel": (lambda L, x, w: L.F.group_norm(x, 4, w), [X, W]),
    "batch_norm training": (
        lambda L, x, w, b: L.F.batch_norm(x, None, None, w, b, training=True),
        [X, W, B],
    ),
    "batch_norm of rows": (
        lambda L, x: L.F.batch_norm(x, None, None, training=True),
        [values(5, 4)],
    ),
    "batch_norm of images": (
        lambda L, x: L.F.batch_norm(x, None, None, training=True, eps=1e-2),
        [values(2, 3, 2, 2)],
    ),
    "instance_norm": (lambda L, x: L.F.instance_norm(x), [X]),
    "instance_norm affine": (
        lambda L, x, w, b: L.F.instance_norm(x, weight=w, bias=b, eps=1e-3),
        [X, W, B],
    ),
    "local_response_norm": (
        lambda L, x: functional(L).local_response_norm(x, 3, alpha=0.3, beta=0.6, k=1.5),
        [values(2, 5, 3)],
    ),
    "local_response_norm, even size, images": (
        lambda L, x: functional(L).local_response_norm(x, 2),
        [values(1, 3, 2, 2)],
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, device: str) -> None:
    function, inputs = CASES[name]
    compare(function, inputs, device, layout=False, tolerance=None if device == "cpu" else 2e-3)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_running_statistics(name: str, device: str) -> None:
    """Training updates them in place by the momentum; evaluation uses them."""
    dtype = torch.float64 if device == "cpu" else torch.float32
    results = []
    for L, make in (
        (TORCH, lambda x: x.clone()),
        (WEBTORCH, lambda x: tensor(x, device)),
    ):
        function = getattr(L.F, name)
        mean, var = make(torch.zeros(4, dtype=dtype)), make(torch.ones(4, dtype=dtype))
        x = make(X.to(dtype))
        flag = "training" if name == "batch_norm" else "use_input_stats"
        out = [function(x, mean, var, **{flag: True}, momentum=m) for m in (0.1, 0.3)]
        out.append(function(x, mean, var, **{flag: False}))
        results.append([t.tolist() for t in (*out, mean, var)])
    torch.testing.assert_close(
        [torch.tensor(r) for r in results[1]],
        [torch.tensor(r) for r in results[0]],
        rtol=1e-5,
        atol=1e-6,
    )


def test_gradients_in_evaluation(device: str) -> None:
    mean, var = values(4, seed=5), values(4, seed=6).abs() + 0.5

    def function(L: Any, x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return L.F.batch_norm(x, m.detach(), v.detach(), w, b, training=False)

    dtype = torch.float64 if device == "cpu" else torch.float32
    theirs = [
        t.to(dtype, copy=True).requires_grad_(i < 3) for i, t in enumerate((X, W, B, mean, var))
    ]
    ours = [tensor(t, device).requires_grad_(i < 3) for i, t in enumerate(theirs)]
    (function(TORCH, *theirs) ** 2).sum().backward()
    (function(WEBTORCH, *ours) ** 2).sum().backward()
    for mine, their in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(
            torch.tensor(mine.grad.tolist(), dtype=dtype), their.grad, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_normalized_in_float32(dtype: str, device: str) -> None:
    """Sums in half precision would lose the small variance beside the large mean."""
    x = (values(2, 64) * 0.5 + 100).to(getattr(torch, dtype))
    exact = torch.nn.functional.layer_norm(x.double(), (64,))
    mine = webtorch.nn.functional.layer_norm(
        webtorch.tensor(x.tolist(), dtype=getattr(webtorch, dtype), device=device), (64,)
    )
    assert mine.dtype.name == dtype
    torch.testing.assert_close(
        torch.tensor(mine.tolist(), dtype=torch.float64), exact, rtol=2e-2, atol=2e-2
    )


ERRORS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], str]] = {
    "layer_norm shape": (lambda L, x: L.F.layer_norm(x, (4,)), [X], "4"),
    "layer_norm weight": (lambda L, x, w: L.F.layer_norm(x, (3,), w), [X, W], "weight"),
    "rms_norm shape": (lambda L, x: L.F.rms_norm(x, (5,)), [X], "5"),
    "group_norm groups": (lambda L, x: L.F.group_norm(x, 3), [X], "3"),
    "group_norm weight": (lambda L, x, w: L.F.group_norm(x, 2, w), [X, values(3)], "weight"),
    "batch_norm one value": (
        lambda L, x: L.F.batch_norm(x, None, None, training=True),
        [values(1, 4)],
        "more than 1 value per channel",
    ),
    "batch_norm statistics": (
        lambda L, x, m: L.F.batch_norm(x, m, m),
        [X, values(3)],
        "running_mean",
    ),
    "batch_norm nothing to use": (
        lambda L, x: L.F.batch_norm(x, None, None),
        [X],
        "running",
    ),
    "instance_norm one value": (
        lambda L, x: L.F.instance_norm(x),
        [values(2, 4, 1)],
        "more than 1 spatial element",
    ),
    "local_response_norm dims": (
        lambda L, x: functional(L).local_response_norm(x, 2),
        [values(4, 3)],
        "3D",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, inputs, text = ERRORS[name]
    same_error(function, inputs, "cpu", text)
