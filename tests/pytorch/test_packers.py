"""Products with packed weights on "webgpu": PyTorch's own operators, and bitsandbytes' as it calls them.

bitsandbytes itself is not needed but for the last test.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.quantization.test_packed import FOUR_BITS

_SCHEMAS = (
    "dequantize_4bit(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) -> Tensor",
    "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize) -> Tensor",
    "gemm_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor",
    "int8_linear_matmul(Tensor A, Tensor B) -> Tensor",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Any:
    if importlib.util.find_spec("bitsandbytes") is not None:
        importlib.import_module("bitsandbytes")
    library = torch.library.Library("bitsandbytes", "FRAGMENT")
    for schema in _SCHEMAS:
        if not hasattr(torch.ops.bitsandbytes, schema.partition("(")[0]):
            library.define(schema)
    yield
    library._destroy()


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_weights_of_eight_bits(rows: int, webgpu: str) -> None:
    x, w = torch.randn(rows, 64), torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    scales = torch.rand(16) / 64
    found = torch._weight_int8pack_mm(x.to(webgpu), w.to(webgpu), scales.to(webgpu))
    expected = F.linear(x, w.float() * scales.unsqueeze(1))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    product = torch.ops.bitsandbytes.int8_linear_matmul(w.to(webgpu), w.to(webgpu))
    assert torch.equal(product.cpu(), torch._int_mm(w, w.t().contiguous()))


@pytest.mark.parametrize("rows", [1, 9])
def test_weights_of_four_bits(rows: int, webgpu: str) -> None:
    q, both = torch.randint(0, 16, (16, 64), dtype=torch.int32), torch.randn(2, 16, 2)
    x = torch.randn(rows, 64)
    there = ((q[:, ::2] << 4) | q[:, 1::2]).to(torch.uint8).to(webgpu)
    packed = torch._convert_weight_to_int4pack(there, 2)
    assert packed.shape == (2, 2, 32, 1) and packed.dtype is torch.int32
    found = torch._weight_int4pack_mm(x.to(webgpu), packed, 32, both.to(webgpu))
    theirs = torch._convert_weight_to_int4pack_for_cpu(q, 2)
    expected = torch._weight_int4pack_mm_for_cpu(x, theirs, 32, both)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    if rows == 1:
        parts = (both[..., 0].to(webgpu), both[..., 1].to(webgpu))
        apart = torch.ops.aten._weight_int4pack_mm_with_scales_and_zeros(
            x.to(webgpu), packed, 32, *parts
        )
        assert torch.equal(apart, found)


def _packed(shape: Sequence[int], kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return bytes, scales of 64, and the weight that they stand for."""
    code = torch.tensor(FOUR_BITS[kind.upper()])
    q = torch.randint(0, 16, (shape[0] * shape[1] // 64, 64))
    absmax = torch.rand(len(q))
    data = ((q[:, ::2] << 4) | q[:, 1::2]).to(torch.uint8).reshape(-1, 1)
    return data, absmax, (code[q] * absmax.unsqueeze(1)).reshape(*shape)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("columns", [128, 96])
def test_four_bits_of_bitsandbytes(kind: str, columns: int, webgpu: str) -> None:
    shape = (16, columns)
    data, absmax, weight = _packed(shape, kind)
    there = data.to(webgpu), absmax.to(webgpu)
    own = torch.ops.bitsandbytes
    found = own.dequantize_4bit(*there, 64, kind, shape, torch.float32)
    assert torch.equal(found.cpu(), weight)
    stored = there[0].flatten().view(torch.bfloat16).unsqueeze(1)
    half = own.dequantize_4bit(stored, there[1], 64, kind, shape, torch.float16)
    assert torch.equal(half.cpu(), weight.half())
    bias = torch.randn(16)
    for rows in (1, 9):
        x = torch.randn(rows, columns)
        out = own.gemm_4bit(x.to(webgpu), there[0], shape, there[1], 64, kind, bias.to(webgpu))
        torch.testing.assert_close(out.cpu(), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    code = torch.tensor(FOUR_BITS[kind.upper()], device=webgpu)
    x = torch.randn(1, 1, columns)
    out = own.gemv_4bit(x.to(webgpu), there[0], shape, there[1], code, 64)
    torch.testing.assert_close(out.cpu(), F.linear(x, weight), rtol=1e-5, atol=1e-5)


def test_scales_of_four_bits_may_be_packed(webgpu: str) -> None:
    shape = (8, 64)
    data, _, weight = _packed(shape, "nf4")
    index, table = torch.randint(0, 256, (8,), dtype=torch.uint8), torch.rand(256)
    outer, offset = torch.rand(1), torch.tensor(0.125)
    absmax = table[index.long()] * outer + offset
    x = torch.randn(2, 64)
    own = torch.ops.bitsandbytes
    plain = own.dequantize_4bit(data.to(webgpu), absmax.to(webgpu), 64, "nf4", shape, torch.float32)
    given = (t.to(webgpu) for t in (index, table, offset))
    out = own.gemm_4bit(
        x.to(webgpu), data.to(webgpu), shape, outer.to(webgpu), 64, "nf4", None, *given
    )
    torch.testing.assert_close(out.cpu(), F.linear(x, plain.cpu()), rtol=1e-5, atol=1e-5)
    assert weight.shape == shape


def test_models_of_bitsandbytes_run(tmp_path: Any, webgpu: str) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    told = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    tokens = torch.tensor([[5, 9, 77, 3]])
    model, plain = (
        transformers.LlamaForCausalLM.from_pretrained(
            tmp_path, quantization_config=q, device_map=d, dtype=torch.float32
        )
        for d, q in ((webgpu, told), ("cpu", None))
    )
    for name, layer in model.named_modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is not None:
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state)
            plain.get_submodule(name).weight.data = weight.cpu()
    with torch.no_grad():
        found, expected = model(tokens.to(webgpu)).logits.cpu(), plain(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
