"""testing.assert_close says what PyTorch's says; DLPack shares memory both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from webtorch import testing

CASES: dict[str, Any] = {
    "close": lambda t: (t.tensor([1.0, 2.0]), t.tensor([1.0, 2.000001])),
    "values": lambda t: (t.tensor([[1.0, 2.0], [3.0, 4.0]]), t.tensor([[1.0, 2.5], [3.0, 8.0]])),
    "integers": lambda t: (t.tensor([1, 2, 3]), t.tensor([1, 5, 3])),
    "bools": lambda t: (True, False),
    "scalar tensors": lambda t: (t.tensor(1.0), t.tensor(3.0)),
    "numbers": lambda t: (1.0, 1.5),
    # Within 0.2 and a tenth of the expected value, not of the actual one.
    "numbers near": lambda t: (1.0, 1.32),
    "values near": lambda t: (t.tensor([1.0, 2.0]), t.tensor([1.32, 2.0])),
    "whole numbers": lambda t: (1, 3),
    "dtype": lambda t: (t.tensor([1.0]), t.tensor([1.0], dtype=t.float64)),
    "shape": lambda t: (t.tensor([1.0]), t.tensor([1.0, 2.0])),
    "lengths": lambda t: ([1.0], [1.0, 2.0]),
    "in a list": lambda t: ([1.0, t.tensor([1.0])], [1.0, t.tensor([2.0])]),
    "in a dict": lambda t: ({"a": [1.0]}, {"a": [2.0]}),
    "keys": lambda t: ({"a": 1}, {"b": 1}),
    "nan": lambda t: (t.tensor([float("nan")]), t.tensor([float("nan")])),
    "none": lambda t: (None, 1.0),
    "text": lambda t: ("a", "a"),
}


@pytest.mark.each("name", "options")
@pytest.mark.parametrize("options", [{}, {"rtol": 0.0, "atol": 0.0}, {"rtol": 0.1, "atol": 0.2}])
@pytest.mark.parametrize("name", CASES)
def test_assert_close_says_what_pytorch_says(name: str, options: dict[str, float]) -> None:
    said: list[tuple[type, str]] = []
    for library in (torch, webtorch):
        try:
            library.testing.assert_close(*CASES[name](library), **options)
        except Exception as error:
            said.append((type(error), str(error)))
        else:
            said.append((type(None), ""))
    assert said[1] == said[0]


def test_assert_close_takes_messages_and_nan() -> None:
    x = webtorch.tensor([float("nan")])
    testing.assert_close(x, x, equal_nan=True)
    with pytest.raises(AssertionError, match=r"^mine$"):
        testing.assert_close(x, x, msg="mine")
    with pytest.raises(AssertionError, match=r"^got: Tensor-likes"):
        testing.assert_close(x, x, msg=lambda text: f"got: {text}")
    with pytest.raises(ValueError, match="rtol and atol"):
        testing.assert_close(x, x, rtol=1.0)


def test_dlpack_shares_memory_both_ways() -> None:
    x = webtorch.arange(6.0, device="cpu").reshape(2, 3)
    theirs, array = torch.from_dlpack(x.t()), np.from_dlpack(x)
    theirs[2, 1] = -1.0
    array[0, 0] = 7.0
    assert x.tolist() == [[7.0, 1.0, 2.0], [3.0, 4.0, -1.0]]
    base = torch.arange(6, dtype=torch.int32)
    ours = webtorch.from_dlpack(base[1::2])
    ours[0] = 99
    assert ours.stride() == (2,) and base.tolist() == [0, 99, 2, 3, 4, 5]
    copied = webtorch.from_dlpack(base, copy=True)
    copied[0] = 5
    assert base[0] == 0


def test_dlpack_refuses_what_cannot_be_shared() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(webtorch.ones(1, device="cpu", requires_grad=True))
    with pytest.raises(TypeError, match="__dlpack__"):
        webtorch.from_dlpack([1.0])


def test_what_make_tensor_gives_is_no_view() -> None:
    for dtype in (webtorch.float32, webtorch.complex64):
        made = webtorch.testing.make_tensor((2, 3), dtype=dtype, device="cpu")
        assert not made._is_view()
        assert made[0]._base is made
