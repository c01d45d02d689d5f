"""Capability rows A: element types, views, scalars, devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, same, values
from webtorch.errors import DeviceError, DTypeError

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

F = webtorch.nn.functional


def _block(t: Any, x: Any, w: Any) -> Any:
    """A linear layer, gelu, layer norm: products, elementwise work and reductions."""
    f = t.nn.functional
    return f.layer_norm(f.gelu(x @ w), (6,))


@pytest.mark.covers("A1")
def test_float32_compute(device: str) -> None:
    same(_block, values(5, 8), values(8, 6, seed=1), device=device, rtol=1e-4, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "digits"),
    [
        pytest.param("float16", 4e-3, marks=pytest.mark.covers("A2")),
        pytest.param("bfloat16", 3e-2, marks=pytest.mark.covers("A4")),
    ],
)
def test_16_bit_compute_and_gradients(name: str, digits: float, device: str) -> None:
    dtype = getattr(webtorch, name)
    x, w = (
        values(*s, seed=i).to(getattr(torch, name)).double() for i, s in enumerate([(5, 8), (8, 6)])
    )
    mine = [ours(v, device, dtype).requires_grad_() for v in (x, w)]
    theirs = [v.requires_grad_() for v in (x, w)]
    out, expected = _block(webtorch, *mine), _block(torch, *theirs)
    assert out.dtype is dtype
    close(out, expected, rtol=digits, atol=2 * digits)
    (out * out * out).sum().backward()
    (expected**3).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        assert a.grad is not None and a.grad.dtype is dtype
        scale = b.grad.abs().max().item()
        close(a.grad, b.grad, rtol=0, atol=6 * digits * scale)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("float16", marks=pytest.mark.covers("A3")),
        pytest.param("bfloat16", marks=pytest.mark.covers("A5")),
    ],
)
def test_16_bit_files_load_as_they_are(name: str, device: str, tmp_path: Any) -> None:
    reference = pytest.importorskip("safetensors.torch")
    weights = values(7, 3).to(getattr(torch, name))
    reference.save_file({"w": weights}, tmp_path / "w.safetensors")
    loaded = webtorch.load(tmp_path / "w.safetensors", map_location=device)["w"]
    assert loaded.dtype is getattr(webtorch, name) and loaded.device.type == device
    assert loaded.tolist() == weights.tolist()


@pytest.mark.covers("A6")
def test_float64_on_the_cpu() -> None:
    x = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mine = webtorch.tensor(x.tolist(), dtype=webtorch.float64)
    close(mine.exp().sum(), x.exp().sum(), rtol=1e-14, atol=0)
    close(mine.outer(mine) @ mine, x.outer(x) @ x, rtol=1e-13, atol=0)


@pytest.mark.covers("A6")
def test_float64_is_refused_where_there_is_none(need: Any) -> None:
    need("webgpu")
    with pytest.raises(DTypeError, match="float64"):
        webtorch.zeros((1 << 16) + 1, dtype=webtorch.float64, device="webgpu")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("int32", marks=pytest.mark.covers("A7")),
        pytest.param("int64", marks=pytest.mark.covers("A8")),
        *(pytest.param(n, marks=pytest.mark.covers("A9")) for n in ("int8", "uint8", "uint32")),
    ],
)
def test_integers_compute(name: str, device: str) -> None:
    a = np.array([[1, 2, 3], [40, 5, 6]], name)
    b = np.array([3, 2, 1], name)
    x, y = (
        webtorch.tensor(v.tolist(), dtype=getattr(webtorch, name), device=device) for v in (a, b)
    )
    for mine, expected in [
        (x + y, a + b),
        (x * y, a * b),
        (x // y, a // b),
        (x % 4, a % 4),
        (x[:, 1], a[:, 1]),
        (x & y, a & b),
        (x.where(x > y, y), np.where(a > b, a, b)),
    ]:
        assert mine.dtype is x.dtype
        assert mine.tolist() == expected.tolist()
    assert (x == y).tolist() == (a == b).tolist()
    assert x.sum().item() == 57 and x.max().item() == 40


@pytest.mark.covers("A8")
def test_int64_has_all_its_bits(device: str) -> None:
    x = webtorch.tensor([2**62 + 1], device=device)
    assert x.tolist() == [2**62 + 1] and (x // 3 + 2**40).tolist() == [(2**62 + 1) // 3 + 2**40]


@pytest.mark.covers("A10")
def test_bool_tensors_are_inputs_and_results(device: str) -> None:
    same(
        lambda t, m, n: (m & n, m | ~n, m ^ n, m.sum(), m.any(0), m.float() * 2, m == n),
        torch.tensor([[True, False], [True, True]]),
        torch.tensor([False, True]),
        device=device,
    )


@pytest.mark.covers("A13")
@pytest.mark.parametrize(
    "target", ["float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]
)
def test_every_type_casts_to_every_other(target: str, device: str) -> None:
    for source in ("float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"):
        x = torch.tensor([0.0, 1.0, 2.75, 100.0]).to(getattr(torch, source))
        mine = webtorch.tensor(x.tolist(), dtype=getattr(webtorch, source), device=device)
        cast = mine.to(getattr(webtorch, target))
        assert cast.dtype is getattr(webtorch, target)
        assert cast.tolist() == x.to(getattr(torch, target)).tolist(), source


@pytest.mark.covers("A14")
def test_promotion_is_pytorchs() -> None:
    names = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "int8", "uint8", "bool"]
    for a in names:
        for b in names:
            expected = torch.ones(2, dtype=getattr(torch, a)) * torch.ones(
                2, dtype=getattr(torch, b)
            )
            mine = webtorch.ones(2, dtype=getattr(webtorch, a)) * webtorch.ones(
                2, dtype=getattr(webtorch, b)
            )
            assert mine.dtype.name == str(expected.dtype).removeprefix("torch."), (a, b)
        for number in (2, 2.5, True):
            expected = torch.ones(2, dtype=getattr(torch, a)) + number
            mine = webtorch.ones(2, dtype=getattr(webtorch, a)) + number
            assert mine.dtype.name == str(expected.dtype).removeprefix("torch."), (a, number)


@pytest.mark.covers("A15")
def test_numbers_on_either_side(device: str) -> None:
    same(lambda t, x: (2 - x, x - 2, 3 / x, 2**x, 1 - x * 2), values(6, low=0.5), device=device)


@pytest.mark.covers("A16")
def test_broadcasting_of_unequal_ranks(device: str) -> None:
    same(
        lambda t, a, b, c: a * b + c,
        values(2, 1, 3, 1),
        values(4, 1, 5, seed=1),
        values(5, seed=2),
        device=device,
    )


@pytest.mark.covers("A17")
def test_ten_dimensions(device: str) -> None:
    shape = (2, 1, 2, 1, 2, 1, 2, 1, 2, 3)
    same(
        lambda t, x, y: (x + y).permute(9, 8, 7, 6, 5, 4, 3, 2, 1, 0).sum((0, 3, 5)),
        values(*shape),
        values(1, 2, 1, 2, 1, 2, 1, 2, 1, 3, seed=1),
        device=device,
    )


@pytest.mark.covers("A18")
def test_views_share_memory_and_carry_gradients(device: str) -> None:
    x = webtorch.zeros(4, 6, device=device)
    view = x.t()[1::2, 1:3]
    assert view.stride() == (2, 6) and view.storage_offset() == 7
    view += 1
    assert x.sum().item() == 6 and x[1].tolist() == [0, 1, 0, 1, 0, 1]
    same(lambda t, x: x.t()[1::2].reshape(-1).view(3, 4).unsqueeze(1), values(4, 6), device=device)


@pytest.mark.covers("A19")
def test_contiguous(device: str) -> None:
    x = webtorch.arange(6.0, device=device).view(2, 3).t()
    assert not x.is_contiguous()
    copy = x.contiguous()
    assert copy.is_contiguous() and copy.stride() == (2, 1) and copy.tolist() == x.tolist()


@pytest.mark.covers("A20", "A28")
def test_scalars_have_no_dimension_and_are_read_as_numbers(device: str) -> None:
    x = webtorch.tensor([1.5, 2.0], device=device).sum()
    assert x.shape == () and x.ndim == 0 and x.numel() == 1
    assert x.item() == 3.5 and float(x) == 3.5 and int(x) == 3 and bool(x)
    assert webtorch.tensor(7, device=device).item() == 7
    with pytest.raises(RuntimeError):
        webtorch.ones(2, device=device).item()


@pytest.mark.covers("A21", "N5")
def test_each_tensor_has_its_device(need: Any) -> None:
    need("webgpu")
    here, there = webtorch.ones(2), webtorch.ones(2, device=webtorch.device("webgpu"))
    assert (here.device.type, there.device.type) == ("cpu", "webgpu")
    assert (there.cpu() + here).tolist() == [2, 2]
    assert (here.to("webgpu") + there).device.type == "webgpu"
    with pytest.raises(DeviceError):
        here + there
    with webtorch.device("webgpu"):
        assert webtorch.zeros(1).device.type == "webgpu"
    webtorch.set_default_device("webgpu")
    assert webtorch.tensor([1]).device.type == "webgpu"


@pytest.mark.covers("A22")
def test_in_place_operations_with_gradients(device: str) -> None:
    def step(t: Any, x: Any) -> Any:
        y = x * 2
        y.mul_(x).add_(1, alpha=3).sub_(x).div_(2)
        y[0] = 0
        y[1:].mul_(x[1:])
        return y.sigmoid_()

    same(step, values(3, 4), device=device)


@pytest.mark.covers("A23")
def test_out_arguments(device: str) -> None:
    a, b = webtorch.ones(2, 2, device=device), webtorch.full((2, 2), 3.0, device=device)
    for function, expected in [
        (webtorch.add, 4), (webtorch.sub, -2), (webtorch.mul, 3), (webtorch.div, 1 / 3),
        (webtorch.mm, 6), (webtorch.maximum, 3),
    ]:  # fmt: skip
        out = webtorch.empty(2, 2, device=device)
        assert function(a, b, out=out) is out
        close(out, torch.full((2, 2), float(expected), dtype=torch.float64))


@pytest.mark.covers("A24")
def test_alpha(device: str) -> None:
    same(
        lambda t, x, y: (t.add(x, y, alpha=3), x.sub(y, alpha=-0.5)),
        values(4),
        values(4, seed=1),
        device=device,
    )


@pytest.mark.covers("A25")
def test_methods_and_functions(device: str) -> None:
    same(
        lambda t, x: (
            x.softmax(0),
            t.softmax(x, 0),
            t.nn.functional.softmax(x, 0),
            t.Tensor.softmax(x, 0),
        ),
        values(5),
        device=device,
    )


@pytest.mark.covers("A26")
def test_shapes_may_change_from_call_to_call(device: str) -> None:
    compiled = webtorch.compile(lambda x: (x * 2).softmax(-1).sum(0))
    for n in (1, 5, 3, 5, 8, 1, 3, 0):
        x = values(n, n + 2, seed=n)
        expected = (x * 2).softmax(-1).sum(0)
        close((ours(x, device).reshape(n, n + 2) * 2).softmax(-1).sum(0), expected)
        if n:
            close(compiled(ours(x, device)), expected)


@pytest.mark.covers("A27")
def test_printing(device: str) -> None:
    x = torch.tensor([[1.0, -2.5], [1e4, 0.125]])
    text = str(ours(x, device))
    assert text == str(x).replace("]])", f"]], device='{device}:0')" if device != "cpu" else "]])")


@pytest.mark.covers("A29")
def test_queries(device: str) -> None:
    x = webtorch.zeros(2, 3, 4, device=device).transpose(0, 2)
    assert (x.shape, x.size(), x.size(-1)) == ((4, 3, 2), (4, 3, 2), 2)
    assert (x.ndim, x.dim(), x.numel(), len(x)) == (3, 3, 24, 4)
    assert (x.stride(), x.stride(0), x.storage_offset()) == ((1, 4, 12), 1, 0)
    assert (x.element_size(), x.nbytes, x.itemsize) == (4, 96, 4)
