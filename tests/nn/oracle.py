"""Comparison with PyTorch: the same weights and inputs in both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import webtorch


def to_web(value: Any, device: str) -> Any:
    """Return PyTorch tensors, wherever they are in `value`, as webtorch tensors on `device`."""
    if isinstance(value, torch.Tensor):
        dtype = getattr(webtorch, str(value.dtype).rpartition(".")[2])
        out = webtorch.tensor(value.detach().tolist(), dtype=dtype, device=device)
        return out.reshape(tuple(value.shape))
    if isinstance(value, dict):
        return {key: to_web(one, device) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_web(one, device) for one in value)
    return value


def to_numpy(tensor: Any) -> np.ndarray:
    """Return the values of a tensor of either library."""
    return np.asarray(tensor.detach().cpu().numpy())


def assert_same(actual: Any, expected: Any, *, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Raise unless both hold the same values, wherever they are; shapes and dtypes included."""
    if isinstance(expected, torch.Tensor):
        assert tuple(actual.shape) == tuple(expected.shape)
        name = str(expected.dtype).rpartition(".")[2]
        assert str(actual.dtype).rpartition(".")[2] == name
        np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), rtol=rtol, atol=atol)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, rtol=rtol, atol=atol)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key], rtol=rtol, atol=atol)
    else:
        assert actual == expected


def load_same(module: Any, reference: torch.nn.Module, device: str) -> None:
    """Give `module` the parameters and buffers of `reference`."""
    module.to(device)
    module.load_state_dict(to_web(dict(reference.state_dict()), device))
