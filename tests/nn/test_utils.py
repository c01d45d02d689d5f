"""Gradient clipping and parameter vectors against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import webtorch
from tests.nn.oracle import assert_same, to_web
from webtorch import nn
from webtorch.nn import utils

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

SHAPES = [(3, 4), (5,), (), (2, 2, 2)]


def parameters(device: str, scale: float = 1.0) -> tuple[list[Any], list[torch.Tensor]]:
    """Return parameters with the same gradients in both libraries; one has none."""
    torch.manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    ours = [nn.Parameter(to_web(p, device)) for p in theirs]
    for mine, other in list(zip(ours, theirs, strict=True))[1:]:
        other.grad = torch.randn(other.shape) * scale
        mine.grad = to_web(other.grad, device)
    return ours, theirs


@pytest.mark.covers("K8")
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clip_grad_norm_like_pytorch(max_norm: float, norm_type: float, device: str) -> None:
    ours, theirs = parameters(device)
    total = utils.clip_grad_norm_(ours, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    assert_same(total, expected)
    assert total.device.type == device
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert_same(mine.grad, other.grad)
    assert ours[0].grad is None


def test_clip_grad_norm_takes_one_tensor_a_generator_or_nothing(device: str) -> None:
    ours, theirs = parameters(device)
    assert_same(utils.clip_grad_norm_(ours[1], 0.1), torch.nn.utils.clip_grad_norm_(theirs[1], 0.1))
    utils.clip_grad_norm_((p for p in ours), 0.1)
    with pytest.warns(UserWarning, match="empty generator"):
        assert utils.clip_grad_norm_((p for p in []), 1.0).item() == 0.0


def test_non_finite_norm_raises_only_when_asked(device: str) -> None:
    ours, _ = parameters(device, scale=math.inf)
    assert not math.isfinite(utils.clip_grad_norm_(ours, 1.0).item())
    ours, _ = parameters(device, scale=math.nan)
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        utils.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)


def test_clip_grad_value_like_pytorch(device: str) -> None:
    ours, theirs = parameters(device)
    utils.clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert_same(mine.grad, other.grad)


def test_parameters_go_to_a_vector_and_back(device: str) -> None:
    ours, theirs = parameters(device)
    vector = utils.parameters_to_vector(ours)
    assert_same(vector, torch.nn.utils.parameters_to_vector(theirs))
    before = list(ours)
    utils.vector_to_parameters(vector * 2, ours)
    torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(theirs) * 2, theirs)
    for mine, other, same in zip(ours, theirs, before, strict=True):
        assert_same(mine, other)
        assert mine is same
        assert mine.requires_grad
    with pytest.raises(TypeError, match=r"expected torch\.Tensor"):
        utils.vector_to_parameters([1.0], ours)  # type: ignore[arg-type]


def test_total_norm_of_nothing_is_zero() -> None:
    assert utils.get_total_norm([]).item() == 0.0
    assert utils.get_total_norm([webtorch.tensor([3.0, 4.0])]).item() == 5.0


@pytest.mark.parametrize("kind", ["type", "dtype", "shape"])
def test_the_inverse_of_a_further_parametrization_is_checked(kind: str) -> None:
    def program(lib: Any) -> str:
        class Same(lib.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, x: Any) -> Any:
                return x

        class Wrong(Same):
            def right_inverse(self, x: Any) -> Any:
                return {"type": None, "dtype": x.bool(), "shape": x[:1]}[kind]

        module, parametrize = lib.nn.Linear(2, 2), lib.nn.utils.parametrize
        parametrize.register_parametrization(module, "weight", Same())
        with pytest.raises(ValueError, match="right_inverse must") as found:
            parametrize.register_parametrization(module, "weight", Wrong())
        return str(found.value).split(",")[0]

    import torch.nn.utils.parametrize

    assert program(webtorch) == program(torch)
