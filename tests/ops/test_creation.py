"""Creation against PyTorch: values, dtypes, strides, devices, errors."""

from __future__ import annotations

import array
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

Function = Callable[[Any], Any]


def assert_same(mine: Any, theirs: Any, rtol: float = 0.0) -> None:
    assert str(mine.dtype) == str(theirs.dtype)
    assert tuple(mine.shape) == tuple(theirs.shape)
    assert tuple(mine.stride()) == tuple(theirs.stride())
    np.testing.assert_allclose(
        mine.detach().cpu().double().numpy(), theirs.detach().double().numpy(), rtol=rtol, atol=rtol
    )


DATA: dict[str, Any] = {
    "int": 3,
    "float": 2.5,
    "bool": True,
    "nan": math.nan,
    "ints": [1, 2, 3],
    "floats": [1.0, 2.5],
    "bools": [True, False],
    "mixed": [True, 2, 3.5],
    "ints and bools": [True, 2],
    "nested": [[1, 2, 3], (4, 5, 6)],
    "empty": [],
    "empty rows": [[], []],
    "three deep": [[[1.0], [2.0]], [[3.0], [4.0]]],
    "range": range(4),
    "large": 2**62,
    "numpy scalar": np.float32(1.5),
    "numpy scalars": [np.float32(1), np.float64(2)],
    "numpy ints": [np.int32(1), np.int32(2)],
    "float64 array": np.arange(6.0).reshape(2, 3),
    "transposed array": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "negative strides": np.arange(6, dtype=np.int64)[::-1].copy()[::2],
    "int16 array": np.arange(3, dtype=np.int16),
    "bool array": np.array([True, False]),
    "float16 array": np.array([1.5, 2.5], dtype=np.float16),
    "big-endian array": np.arange(3, dtype=">i4").astype("<i4"),
    "0-d array": np.array(3.0),
    "empty array": np.zeros((0, 3), dtype=np.float32),
    "list of arrays": [np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32)],
}


@pytest.mark.covers("B1")
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy")
@pytest.mark.parametrize("name", DATA)
def test_tensor_infers_what_pytorch_infers(name: str) -> None:
    for function in ("tensor", "as_tensor", "asarray"):
        mine = getattr(webtorch, function)(DATA[name])
        assert str(mine.dtype) == str(torch.tensor(DATA[name]).dtype)
        np.testing.assert_array_equal(mine.numpy(), torch.tensor(DATA[name]).numpy())


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ],
)
@pytest.mark.parametrize("data", [[0, 1, 5], [0.0, 1.75, -3.5], [True, False]])
def test_tensor_of_a_dtype(dtype: str, data: list[Any]) -> None:
    mine = webtorch.tensor(data, dtype=getattr(webtorch, dtype))
    if dtype == "uint8" and -3.5 in data:
        # PyTorch's own answer depends on the machine here; ours wraps like its integers do.
        return
    assert_same(mine, torch.tensor(data, dtype=getattr(torch, dtype)))


def test_numbers_are_rounded_to_the_nearest() -> None:
    values = [0.1, 1 / 3, 65519.0, 65520.0, 1e-8, -(2.0**-25), 3.0e38, 1.00390625, 1.01171875]
    for dtype in ("float16", "bfloat16", "float32"):
        mine = webtorch.tensor(values, dtype=getattr(webtorch, dtype))
        assert (
            mine.double().tolist()
            == torch.tensor(values, dtype=getattr(torch, dtype)).double().tolist()
        )


def test_tensor_copies_and_as_tensor_does_not() -> None:
    source = webtorch.ones(3)
    with pytest.warns(UserWarning, match="sourceTensor.detach"):
        copied = webtorch.tensor(source)
    source.zero_()
    assert copied.tolist() == [1, 1, 1]
    assert webtorch.as_tensor(source) is source
    data = np.ones(3, dtype=np.float32)
    taken = webtorch.tensor(data)
    data[:] = 5
    assert taken.tolist() == [1, 1, 1]


def test_numbers_of_other_libraries() -> None:
    assert webtorch.tensor(torch.arange(3)).tolist() == [0, 1, 2]
    assert webtorch.tensor(array.array("d", [1.5])).tolist() == [1.5]
    assert webtorch.tensor([webtorch.tensor(2), 3]).tolist() == [2, 3]
    assert webtorch.frombuffer(bytearray(b"\x01\x00\x02\x00"), dtype=webtorch.int16).tolist() == [
        1,
        2,
    ]


CREATED: dict[str, Function] = {
    "zeros": lambda t: t.zeros(2, 3),
    "zeros of a tuple": lambda t: t.zeros((2, 3), dtype=t.int32),
    "zeros by keyword": lambda t: t.zeros(size=(2,)),
    "zeros 0-d": lambda t: t.zeros(()),
    "zeros of bool": lambda t: t.zeros(2, dtype=t.bool),
    "ones": lambda t: t.ones([3], dtype=t.int64),
    "ones of bool": lambda t: t.ones(3, dtype=t.bool),
    "full": lambda t: t.full((2, 2), 1.5),
    "full int": lambda t: t.full((2,), 3),
    "full bool": lambda t: t.full((2,), True),
    "full dtype": lambda t: t.full((2,), 3, dtype=t.float16),
    "full of a tensor": lambda t: t.full((2,), t.tensor(1.5)),
    "full truncates": lambda t: t.full((2,), 1.7, dtype=t.int32),
    "zeros_like": lambda t: t.zeros_like(t.ones(2, 3).t()),
    "zeros_like permuted": lambda t: t.zeros_like(t.ones(2, 3, 4).permute(2, 0, 1)),
    "zeros_like contiguous": lambda t: t.zeros_like(
        t.ones(2, 3).t(), memory_format=t.contiguous_format
    ),
    "ones_like": lambda t: t.ones_like(t.zeros(2, dtype=t.int8)),
    "ones_like expanded": lambda t: t.ones_like(t.zeros(1, 3).expand(2, 3)),
    "full_like": lambda t: t.full_like(t.zeros(2), 7, dtype=t.int64),
    "new_tensor": lambda t: t.zeros(1).new_tensor([1, 2]),
    "new_zeros": lambda t: t.ones(1, dtype=t.int32).new_zeros(2, 3),
    "new_ones": lambda t: t.zeros(1, dtype=t.float64).new_ones((2,)),
    "new_full": lambda t: t.zeros(1, dtype=t.int64).new_full((2,), 3.7),
    "arange": lambda t: t.arange(5),
    "arange float": lambda t: t.arange(2.5),
    "arange start": lambda t: t.arange(1, 4, 0.5),
    "arange down": lambda t: t.arange(5, -2, -2),
    "arange nothing": lambda t: t.arange(3, 3),
    "arange dtype": lambda t: t.arange(0, 10, 3, dtype=t.float64),
    "arange int of floats": lambda t: t.arange(0.5, 3, 1, dtype=t.int64),
    "arange int32 of floats": lambda t: t.arange(0, 2.5, dtype=t.int32),
    "arange of a tensor": lambda t: t.arange(t.tensor(3)),
    "arange by keyword": lambda t: t.arange(start=1, end=6, step=2),
    "arange by half keyword": lambda t: t.arange(1, end=4),
    "arange uint8": lambda t: t.arange(4, dtype=t.uint8),
    "linspace": lambda t: t.linspace(-3, 10, 7),
    "linspace 1": lambda t: t.linspace(2, 5, 1),
    "linspace 0": lambda t: t.linspace(2, 5, 0),
    "linspace int": lambda t: t.linspace(0, 10, 4, dtype=t.int32),
    "linspace down": lambda t: t.linspace(5, -5, 4, dtype=t.int64),
    "linspace float64": lambda t: t.linspace(0, 1, 11, dtype=t.float64),
    "logspace": lambda t: t.logspace(-2, 2, 5),
    "logspace base": lambda t: t.logspace(0, 3, 4, base=2.0),
    "eye": lambda t: t.eye(3),
    "eye wide": lambda t: t.eye(2, 4, dtype=t.int64),
    "eye tall": lambda t: t.eye(3, 2, dtype=t.bool),
    "eye of nothing": lambda t: t.eye(0, 2),
    "scalar_tensor": lambda t: t.scalar_tensor(3),
    "tril_indices": lambda t: t.tril_indices(3, 4, -1),
    "triu_indices": lambda t: t.triu_indices(3, 4, 1),
    "python dtype": lambda t: t.zeros(2, dtype=float),
}


@pytest.mark.covers("B3", "B4", "B5", "B6", "B7", "B8")
@pytest.mark.parametrize("name", CREATED)
def test_created_tensor_matches_pytorch(name: str) -> None:
    assert_same(CREATED[name](webtorch), CREATED[name](torch), rtol=1e-6 if "space" in name else 0)


@pytest.mark.parametrize(
    "name",
    [n for n in CREATED if "float64" not in n and "dtype" not in n and n not in ("new_ones",)],
)
def test_created_tensor_on_a_device(name: str, device: str) -> None:
    with webtorch.device(device):
        mine = CREATED[name](webtorch)
        assert mine.device.type == device
        theirs = CREATED[name](torch)
        np.testing.assert_allclose(mine.cpu().double().numpy(), theirs.double().numpy(), rtol=2e-5)


@pytest.mark.covers("B2", "B16")
def test_uninitialised_tensors_have_shape_and_strides(device: str) -> None:
    assert webtorch.empty(2, 3, device=device).shape == (2, 3)
    assert webtorch.empty_like(webtorch.zeros(2, 3, device=device).t()).stride() == (1, 3)
    x = webtorch.empty_strided((2, 3), (1, 2), device=device)
    assert (x.shape, x.stride()) == ((2, 3), (1, 2))
    x.copy_(webtorch.arange(6.0, device=device).reshape(2, 3))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.new_empty((4,)).device == x.device
    assert webtorch.empty(0, 3, device=device).sum().item() == 0


def test_requires_grad_and_out() -> None:
    x = webtorch.ones(2, requires_grad=True)
    assert x.is_leaf
    assert x.requires_grad
    out = webtorch.empty(3)
    assert webtorch.arange(3, out=out) is out
    assert out.tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="floating point"):
        webtorch.tensor([1], requires_grad=True)


def test_the_default_dtype_is_used() -> None:
    webtorch.set_default_dtype(webtorch.float64)
    assert webtorch.tensor([1.5]).dtype is webtorch.float64
    assert webtorch.zeros(2).dtype is webtorch.float64
    assert webtorch.full((1,), 1.5).dtype is webtorch.float64


def test_float64_is_refused_on_webgpu_with_a_way_out(device: str) -> None:
    if device == "cpu":
        pytest.skip("the CPU has float64")
    with pytest.raises(RuntimeError, match="float32"):
        webtorch.tensor(np.zeros((1 << 16) + 1), device=device)


ERRORS: dict[str, Function] = {
    "ragged": lambda t: t.tensor([[1, 2], [1]]),
    "ragged with an empty row": lambda t: t.tensor([[1, 2], []]),
    "ragged with a number": lambda t: t.tensor([[1, 2], 3]),
    "a list among numbers": lambda t: t.tensor([1, [2]]),
    "string": lambda t: t.tensor("abc"),
    "strings": lambda t: t.tensor(["abc"]),
    "none": lambda t: t.tensor([None]),
    "dict": lambda t: t.tensor({1: 2}),
    "too large": lambda t: t.tensor(2**63),
    "too large for uint8": lambda t: t.tensor([300], dtype=t.uint8),
    "nan as an integer": lambda t: t.tensor(math.nan, dtype=t.int32),
    "array of strings": lambda t: t.tensor(np.array(["a"])),
    "from_numpy of a list": lambda t: t.from_numpy([1]),
    "negative size": lambda t: t.zeros(2, -1),
    "no size": lambda t: t.zeros(),
    "float size": lambda t: t.ones(2.5),
    "string size": lambda t: t.zeros("a"),
    "full of a string": lambda t: t.full((2,), "a"),
    "full too large": lambda t: t.full((2,), 300, dtype=t.uint8),
    "full infinite": lambda t: t.full((2,), 1e40),
    "arange the other way": lambda t: t.arange(3, 1),
    "arange of bool": lambda t: t.arange(3, dtype=t.bool),
    "arange step 0": lambda t: t.arange(0, 1, 0),
    "arange infinite": lambda t: t.arange(math.inf),
    "linspace negative": lambda t: t.linspace(0, 1, -1),
    "eye negative": lambda t: t.eye(-1),
    "eye negative columns": lambda t: t.eye(2, -1),
    "gradient of integers": lambda t: t.ones(2, dtype=t.int64, requires_grad=True),
    "a bad dtype": lambda t: t.zeros(2, dtype="float32"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_has_pytorch_type(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        ERRORS[name](torch)
    with pytest.raises(theirs.type):
        ERRORS[name](webtorch)


def test_overflow_has_pytorch_text() -> None:
    with pytest.raises(ValueError, match="Overflow when unpacking long"):
        webtorch.tensor([2**63])
    with pytest.raises(ValueError, match=r"expected sequence of length 2 at dim 1 \(got 1\)"):
        webtorch.tensor([[1, 2], [1]])
    with pytest.raises(
        ValueError, match=r"Overflow when unpacking long long: .*got -9223372036854775809"
    ):
        webtorch.manual_seed(-(2**63) - 1)


def test_lists_in_themselves_are_refused_as_by_pytorch() -> None:
    endless: list[Any] = []
    endless.append(endless)
    second: list[Any] = [1]
    second.append(second)
    for lib in (torch, webtorch):
        with pytest.raises(ValueError, match="too many dimensions 'list'"):
            lib.tensor(endless)
        for data in (second, [[1, 2], second]):
            with pytest.raises(TypeError, match="self-referential lists are incompatible"):
                lib.as_tensor(data)
        with pytest.raises(TypeError):
            lib.zeros(endless)
        with pytest.raises(TypeError):
            lib.cat(endless)
