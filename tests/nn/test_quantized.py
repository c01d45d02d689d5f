"""Weights of 4 and 8 bits: packing, products, models, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch.ir.kernel import Kernel, Matmul
from webtorch.nn.quantized import QuantizedLinear, quantize_

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

CASES = [(8, 16), (8, 4), (8, -1), (4, 16), (4, 8), (4, -1)]


def _linear(features: tuple[int, int], device: str, bias: bool = True) -> Any:
    webtorch.manual_seed(3)
    layer = webtorch.nn.Linear(*features, bias=bias)
    return layer.to(device)


def _oracle(layer: QuantizedLinear, x: Any) -> torch.Tensor:
    """Return the float64 product with the weight that the layer's numbers stand for, unpacked here."""
    packed = torch.tensor(layer.weight_packed.tolist(), dtype=torch.int64)
    scales = torch.tensor(layer.weight_scales.tolist(), dtype=torch.float64)
    rows, groups = scales.shape
    words = packed.reshape(rows, groups, 1, -1)
    lanes = torch.arange(32 // layer.bits).reshape(-1, 1) * layer.bits
    q = (words >> lanes) & (2**layer.bits - 1)
    if layer.bits == 8:
        q = torch.where(q > 127, q - 256, q)
    w = q.double().reshape(rows, groups, -1)
    if layer.weight_zeros is not None:
        w = w - torch.tensor(layer.weight_zeros.tolist(), dtype=torch.float64)[..., None]
    w = (w * scales[..., None]).reshape(rows, -1)
    out = torch.tensor(x.tolist(), dtype=torch.float64).reshape(tuple(x.shape)) @ w.t()
    return out if layer.bias is None else out + torch.tensor(layer.bias.tolist()).double()


@pytest.mark.covers("A12", "E12")
@pytest.mark.parametrize("rows", [(), (1,), (3,), (2, 7), (0,)])
@pytest.mark.parametrize(("bits", "group"), CASES)
def test_products_are_those_of_the_unpacked_weight(
    bits: int, group: int, rows: tuple[int, ...], device: str
) -> None:
    features = (80, 19)
    layer = QuantizedLinear.from_linear(_linear(features, device), bits, group)
    x = webtorch.randn(*rows, 80, device=device)
    out = layer(x)
    assert out.dtype is webtorch.float32 and tuple(out.shape) == (*rows, 19)
    expected = _oracle(layer, x)
    torch.testing.assert_close(
        torch.tensor(out.tolist(), dtype=torch.float64).reshape(expected.shape),
        expected,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.covers("A12")
@pytest.mark.parametrize(("bits", "group"), CASES)
def test_weights_are_rounded_to_the_nearest_number(bits: int, group: int, device: str) -> None:
    layer = _linear((80, 19), device)
    with webtorch.no_grad():
        layer.weight[3] = 0.0
        layer.weight[5, :40] = 2.5
    quantized = QuantizedLinear.from_linear(layer, bits, group)
    error = (
        (quantized.dequantize() - layer.weight)
        .abs()
        .reshape(19, quantized.weight_scales.shape[1], -1)
    )
    # Half a step, also at the ends of a 4-bit range: the zero point is rounded to the nearest number too.
    step = quantized.weight_scales.unsqueeze(-1) * 0.5
    assert (error <= step * 1.0001 + 1e-7).all().item()
    assert quantized.dequantize()[3].tolist() == [0.0] * 80


def test_packed_weights_take_an_eighth_or_a_quarter_of_the_memory() -> None:
    layer = _linear((256, 64), "cpu", bias=False)
    for bits, factor in ((8, 4), (4, 8)):
        quantized = QuantizedLinear.from_linear(layer, bits, 64)
        assert quantized.weight_packed.nbytes * factor == layer.weight.nbytes


@pytest.mark.covers("E11", "E12")
@pytest.mark.parametrize("bits", [4, 8])
def test_a_vector_is_one_kernel_that_reads_the_packed_numbers(bits: int, device: str) -> None:
    layer = QuantizedLinear.from_linear(_linear((64, 32), device), bits, 16)
    x = webtorch.randn(1, 64, device=device)
    with webtorch.no_grad():
        run = webtorch.compile(layer)
        for _ in range(3):
            run(x)
        program = run.program()
    assert len(program.steps) == 1, str(program)
    (kernel,) = program.routines
    assert isinstance(kernel, Kernel)
    # No float weight is read or written: the largest float buffer is the input or the output.
    floats = [s.elements for s in kernel.buffers if s.dtype.kind == "float"]
    assert max(floats) <= 32 * 4


@pytest.mark.parametrize("bits", [4, 8])
def test_many_rows_are_a_matrix_product(bits: int) -> None:
    layer = QuantizedLinear.from_linear(_linear((64, 32), "cpu"), bits, 16)
    x = webtorch.randn(20, 64)
    with webtorch.no_grad():
        run = webtorch.compile(layer)
        for _ in range(3):
            run(x)
    assert any(isinstance(r, Matmul) for r in run.program().routines)


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("bits", [4, 8])
def test_gradients_reach_input_and_bias(bits: int, rows: int, device: str) -> None:
    layer = QuantizedLinear.from_linear(_linear((16, 6), device), bits, 8)
    x = webtorch.randn(rows, 16, device=device, requires_grad=True)
    (layer(x) ** 2).sum().backward()
    w = torch.tensor(layer.dequantize().tolist(), dtype=torch.float64)
    a = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    b = torch.tensor(layer.bias.tolist(), dtype=torch.float64, requires_grad=True)
    (torch.nn.functional.linear(a, w, b) ** 2).sum().backward()
    for mine, theirs in ((x.grad, a.grad), (layer.bias.grad, b.grad)):
        torch.testing.assert_close(
            torch.tensor(mine.tolist(), dtype=torch.float64), theirs, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_inputs_of_16_bits(dtype: str, rows: int, device: str) -> None:
    layer = QuantizedLinear.from_linear(_linear((32, 8), device, bias=False), 4, 8)
    x = webtorch.randn(rows, 32, device=device).to(getattr(webtorch, dtype))
    out = layer(x)
    assert out.dtype is x.dtype
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    torch.testing.assert_close(
        torch.tensor(out.tolist(), dtype=torch.float64),
        _oracle(layer, x),
        rtol=tolerance,
        atol=tolerance,
    )


def test_autocast_lowers_the_input_as_it_does_for_a_linear_layer() -> None:
    layer = QuantizedLinear.from_linear(_linear((32, 8), "cpu"), 8, 8)
    x = webtorch.randn(2, 32)
    with webtorch.autocast("cpu"):
        assert layer(x).dtype is webtorch.bfloat16


class _Net(webtorch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = webtorch.nn.Embedding(11, 32)
        self.body = webtorch.nn.Sequential(
            webtorch.nn.Linear(32, 48), webtorch.nn.ReLU(), webtorch.nn.Linear(48, 32, bias=False)
        )
        self.head = webtorch.nn.Linear(32, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.embedding(x)))


@pytest.mark.covers("A12")
def test_a_model_s_layers_are_replaced_but_not_shared_ones(tmp_path: Path) -> None:
    webtorch.manual_seed(1)
    model = _Net()
    x = webtorch.tensor([1, 2, 3])
    before = model(x)
    assert quantize_(model, bits=8, group_size=16) is model
    kinds = [type(m).__name__ for m in model.body]
    assert kinds == ["QuantizedLinear", "ReLU", "QuantizedLinear"]
    assert type(model.head).__name__ == "Linear" and model.head.weight is model.embedding.weight
    after = model(x)
    assert (after - before).abs().max().item() < 0.05 * before.abs().max().item()
    assert "bits=8, group_size=16" in repr(model)
    # A checkpoint of packed weights, into a model that is quantized the same way.
    webtorch.save(model.state_dict(), tmp_path / "packed.pt")
    other = quantize_(_Net(), bits=8, group_size=16)
    other.load_state_dict(webtorch.load(tmp_path / "packed.pt"))
    assert other(x).tolist() == after.tolist()


def test_a_filter_chooses_layers() -> None:
    model = quantize_(_Net(), 4, 16, lambda module, name: name == "body.2")
    assert [type(m).__name__ for m in model.body] == ["Linear", "ReLU", "QuantizedLinear"]


def test_a_quantized_model_moves_between_devices(device: str) -> None:
    layer = QuantizedLinear.from_linear(_linear((32, 8), "cpu"), 4, 8)
    x = webtorch.randn(2, 32)
    expected = layer(x)
    moved = layer.to(device)(x.to(device))
    torch.testing.assert_close(
        torch.tensor(moved.tolist()), torch.tensor(expected.tolist()), rtol=1e-5, atol=1e-5
    )


def test_what_does_not_fit_is_said_before_anything_is_changed() -> None:
    model = webtorch.nn.Sequential(webtorch.nn.Linear(32, 8), webtorch.nn.Linear(8, 30))
    with pytest.raises(ValueError, match="group_size=16 does not divide the 8 input features"):
        quantize_(model, 8, 16)
    assert type(model[0]).__name__ == "Linear"
    with pytest.raises(ValueError, match="multiple of 8"):
        quantize_(webtorch.nn.Sequential(webtorch.nn.Linear(20, 8)), 4, 4)
    with pytest.raises(ValueError, match="with 8-bit numbers: their size must be a multiple of 4"):
        QuantizedLinear(15, 4, bits=8, group_size=5)
    with pytest.raises(ValueError, match="4 or 8 bits, not 3"):
        QuantizedLinear(16, 4, bits=3)
    layer = QuantizedLinear(16, 4, group_size=8)
    with pytest.raises(webtorch.errors.ShapeError, match="needs 16 features"):
        layer(webtorch.ones(2, 15))
    with pytest.raises(webtorch.errors.DTypeError, match="must be a float tensor"):
        layer(webtorch.ones(2, 16, dtype=webtorch.int64))
