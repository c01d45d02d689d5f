"""Integers at the edge of their type: PyTorch's rules, and never a silent wrap of int64 on WebGPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.conftest import need_device


def _u8(t: Any) -> Any:
    return t.tensor([3, 200], dtype=t.uint8)


def _i8(t: Any) -> Any:
    return t.tensor([3, 100], dtype=t.int8)


CASES: dict[str, Callable[[Any], Any]] = {
    "tensor(2**63)": lambda t: t.tensor(2**63),
    "tensor([2**63])": lambda t: t.tensor([2**63]),
    "tensor(-2**63)": lambda t: t.tensor(-(2**63)),
    "tensor(2**63-1)": lambda t: t.tensor(2**63 - 1) - 1,
    "int32 from data": lambda t: t.tensor([2**31], dtype=t.int32),
    "int8 from data": lambda t: t.tensor([200], dtype=t.int8),
    "full": lambda t: t.full((2,), 300, dtype=t.uint8),
    "fill_": lambda t: _u8(t).fill_(300),
    "fill_ nan": lambda t: _u8(t).fill_(float("nan")),
    "assign": lambda t: _u8(t).__setitem__(0, 300),
    "uint8 + 300": lambda t: _u8(t) + 300,
    "300 - uint8": lambda t: 300 - _u8(t),
    "uint8 * -1": lambda t: _u8(t) * -1,
    "uint8 // 300": lambda t: _u8(t) // 300,
    "uint8 % 300": lambda t: _u8(t) % 300,
    "uint8 & 300": lambda t: _u8(t) & 300,
    "uint8 / 300": lambda t: _u8(t) / 300,
    "uint8 < 300": lambda t: _u8(t) < 300,
    "uint8 == 300": lambda t: _u8(t) == 300,
    "uint8.add_(300)": lambda t: _u8(t).add_(300),
    "int8 + 200": lambda t: _i8(t) + 200,
    "int8 * -200": lambda t: _i8(t) * -200,
    "int8 >= -200": lambda t: _i8(t) >= -200,
    "int8 + int8": lambda t: _i8(t) + _i8(t),
    "uint8 + tensor(300)": lambda t: _u8(t) + t.tensor(300),
    "int32 + 2**40": lambda t: t.tensor([1], dtype=t.int32) + 2**40,
    "clamp": lambda t: _u8(t).clamp(max=300),
    "pow": lambda t: _u8(t) ** 300,
    "where": lambda t: t.where(_u8(t) > 3, _u8(t), 300),
    "masked_fill": lambda t: _u8(t).masked_fill(_u8(t) > 3, 300),
}


@pytest.mark.covers("A8", "A9")
@pytest.mark.parametrize("name", CASES)
def test_as_in_pytorch(name: str) -> None:
    try:
        expected = CASES[name](torch)
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error), match=r"[Oo]verflow"):
            CASES[name](webtorch)
        return
    assert CASES[name](webtorch).tolist() == expected.tolist()


@pytest.fixture
def webgpu() -> str:
    need_device("webgpu")
    return "webgpu"


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40, 2**63 - 1])
def test_int64_beyond_32_bits_is_exact_on_webgpu(value: int, webgpu: str) -> None:
    one = webtorch.ones(2, dtype=webtorch.int64, device=webgpu)
    calls: list[Callable[[], Any]] = [
        lambda: webtorch.tensor([1, value], device=webgpu),
        lambda: webtorch.tensor([1, value]).to(webgpu),
        lambda: webtorch.full((2,), value, device=webgpu),
        lambda: one + (value - 1),
        lambda: one.clone().fill_(value),
        lambda: webtorch.arange(value, value - 2, -1, device=webgpu),
    ]
    found = [call() for call in calls]
    equal = one == value
    assert [x.tolist()[-1] for x in found[:-1]] == [value] * (len(calls) - 1)
    assert found[-1].tolist() == [value, value - 1] and equal.tolist() == [False, False]
    assert one.tolist() == [1, 1]


def test_what_fits_in_32_bits_is_exact_on_webgpu(webgpu: str) -> None:
    values = [-(2**31), 2**31 - 1, 0]
    x = webtorch.tensor(values, device=webgpu)
    assert x.dtype is webtorch.int64 and x.tolist() == values
    assert (x == 2**31 - 1).tolist() == [False, True, False]


def test_sizes_are_64_bit_on_the_cpu() -> None:
    x = webtorch.tensor([2**62, -(2**62)])
    assert (x // 3).tolist() == [2**62 // 3, -(2**62) // 3]
    assert x.sum().item() == 0
