"""Errors name the operation, the values, the rule and the next step, in PyTorch's error types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.errors import DeviceError, DTypeError, ShapeError

F = webtorch.nn.functional
Z = webtorch.zeros
# what -> (call of a library, what the message must say)
SHAPES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "add": (
        lambda t: t.zeros(2, 3) + t.zeros(4, 3),
        ["add", "(2, 3)", "(4, 3)", "dimension 0", "must be equal or 1"],
    ),
    "matmul": (
        lambda t: t.zeros(2, 3) @ t.zeros(4, 5),
        ["matmul", "(2, 3)", "(4, 5)", "dim -1 of the first is 3", "dim -2 of the second is 4"],
    ),
    "bmm": (lambda t: t.bmm(t.zeros(2, 2, 3), t.zeros(3, 3, 5)), ["bmm", "(2, 2, 3)", "matmul"]),
    "linear": (
        lambda t: t.nn.functional.linear(t.zeros(2, 3), t.zeros(4, 5)),
        ["linear", "(2, 3)", "(4, 5)", "must be 5"],
    ),
    "conv2d": (
        lambda t: t.nn.functional.conv2d(t.zeros(1, 3, 8, 8), t.zeros(4, 2, 3, 3)),
        ["conv2d", "[1, 3, 8, 8]", "2 channels", "got 3"],
    ),
    "cat": (lambda t: t.cat([t.zeros(2, 3), t.zeros(2, 4)]), ["size 3", "size 4", "number 1"]),
    "stack": (lambda t: t.stack([t.zeros(2, 3), t.zeros(2, 4)]), ["stack", "[2, 3]", "[2, 4]"]),
    "view": (lambda t: t.zeros(2, 3).view(4, 2), ["[4, 2]", "size 6"]),
    "expand": (lambda t: t.zeros(2, 3).expand(4, 3), ["(4)", "(2)", "dimension 0", "[2, 3]"]),
    "in place": (lambda t: t.zeros(3).add_(t.zeros(2, 3)), ["[3]", "[2, 3]"]),
    "dim": (lambda t: t.zeros(2, 3).sum(5), ["[-2, 1]", "got 5"]),
    "item": (lambda t: t.zeros(2).item(), ["2 elements"]),
    "truth": (lambda t: bool(t.zeros(2)), ["ambiguous"]),
    "index": (lambda t: t.zeros(5)[9], ["index 9", "dimension 0", "size 5"]),
    "loss": (
        lambda t: t.nn.functional.cross_entropy(
            t.zeros(2, 3), t.zeros(4, dtype=t.int64)
        ),
        ["(2)", "(4)"],
    ),
}  # fmt: skip


@pytest.mark.covers("P4")
@pytest.mark.parametrize("name", SHAPES)
def test_shape_mistakes(name: str) -> None:
    call, words = SHAPES[name]
    with pytest.raises((RuntimeError, IndexError, ValueError)) as theirs:
        call(torch)
    with pytest.raises(type(theirs.value)) as mine:
        call(webtorch)
    for word in words:
        assert word in str(mine.value), f"{word!r} is missing: {mine.value}"


DTYPES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "float &": (lambda t: t.zeros(3) & t.zeros(3), ["bitwise_and", "Float", "int64"]),
    "bool -": (
        lambda t: (t.zeros(3) > 0) - (t.zeros(3) > 0),
        ["sub", "two bool tensors", "logical_xor()"],
    ),
    "matmul": (
        lambda t: t.zeros(2, 3) @ t.zeros(3, 2, dtype=t.float16),
        ["matmul", "same dtype", ".to(torch.float32)"],
    ),
    "linear": (
        lambda t: t.nn.Linear(2, 2)(t.zeros(1, 2, dtype=t.int64)),
        ["mat1 and mat2 must have the same dtype, but got Long and Float"],
    ),
    "layer norm": (
        lambda t: t.nn.LayerNorm(2)(t.zeros(2, dtype=t.float64)),
        ["all inputs must share same datatype", "torch.float64"],
    ),
    "classes": (
        lambda t: t.nn.functional.cross_entropy(t.zeros(1, 2), t.zeros(1, dtype=t.int32)),
        ["expected target dtype to be Long or Byte, but got Int", ".long()"],
    ),
    "softmax": (lambda t: t.zeros(2, dtype=t.int32).softmax(0), ["softmax", "float32"]),
    "in place": (lambda t: t.zeros(3, dtype=t.int32).sin_(), ["Float", "Int"]),
    "grad": (lambda t: t.zeros(3, dtype=t.int32).requires_grad_(), ["floating point"]),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtype_mistakes(name: str) -> None:
    call, words = DTYPES[name]
    with pytest.raises((RuntimeError, TypeError)):
        call(torch)
    with pytest.raises(RuntimeError) as mine:
        call(webtorch)
    for word in words:
        assert word in str(mine.value), f"{word!r} is missing: {mine.value}"


MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "where": lambda a, b: webtorch.where(a > 0, a, b),
    "matmul": lambda a, b: a @ b,
    "bmm": lambda a, b: webtorch.bmm(a[None], b[None]),
    "linear": lambda a, b: F.linear(a, b),
    "conv2d": lambda a, b: F.conv2d(a[None, None], b[None, None]),
    "cat": lambda a, b: webtorch.cat([a, b]),
    "mul_": lambda a, b: a.mul_(b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "take": lambda a, b: F.embedding(b.long()[0], a),
    "scatter": lambda a, b: a.scatter(0, a.long(), b),
    "index_put": lambda a, b: a.index_put((a.long()[0],), b),
    "assign": lambda a, b: a.__setitem__(0, b[0]),
    "mse_loss": lambda a, b: F.mse_loss(a, b),
    "layer_norm": lambda a, b: F.layer_norm(a, (2,), b[0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_on_two_devices(name: str, device: str) -> None:
    a = webtorch.zeros(2, 2, device=device)
    b = webtorch.zeros(2, 2, device="webgpu" if device == "cpu" else "cpu")
    with pytest.raises(RuntimeError, match="same device") as caught:
        MIXED[name](a, b)
    text = str(caught.value)
    assert "cpu" in text and "webgpu:0" in text and ".to(" in text, text
    # Both stay usable.
    assert (a + 1).tolist() == (b + 1).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_number_on_the_cpu_joins_any_device(device: str) -> None:
    x = webtorch.ones(2, device=device)
    assert (x + webtorch.tensor(2.0)).tolist() == [3.0, 3.0]
    assert (webtorch.tensor(2.0) * x).device.type == device


def test_devices_that_do_not_exist() -> None:
    with pytest.raises(RuntimeError, match="cuda"):
        webtorch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="tpu"):
        webtorch.device("tpu")
    with pytest.raises(RuntimeError, match="webgpu:x"):
        webtorch.device("webgpu:x")
    with pytest.raises(DeviceError, match="webgpu:99"):
        webtorch.zeros(1, device="webgpu:99")
    with pytest.raises(DeviceError, match="webgpu"):
        webtorch.zeros(1).cuda()


def test_float64_on_webgpu_says_what_to_do() -> None:
    webgpu, many = "webgpu", (1 << 16) + 1
    for call in (
        lambda: webtorch.zeros(many, dtype=webtorch.float64, device=webgpu),
        lambda: webtorch.zeros(many, device=webgpu).double(),
        lambda: webtorch.zeros(many, dtype=webtorch.float64).to(webgpu),
    ):
        with pytest.raises(DTypeError, match=r"not available on webgpu:0.*\.to\(torch\.\w+32\)"):
            call()
    assert webtorch.zeros(2, dtype=webtorch.float64).to(webgpu, webtorch.float32).tolist() == [0, 0]


def test_typed_errors_are_the_standard_ones_too() -> None:
    assert issubclass(ShapeError, RuntimeError)
    assert issubclass(DTypeError, NotImplementedError) and issubclass(DTypeError, RuntimeError)
    assert issubclass(webtorch.errors.IndexOutOfRangeError, IndexError)
    assert issubclass(webtorch.errors.OutOfMemoryError, RuntimeError)
