"""Folders with weights of other packers: each is written here as it writes, and unpacked by its own formula."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import webtorch
from tests.llm.models import TOKENS, folder
from tests.quantization.test_packed import FOUR_BITS
from webtorch.llm import ModelError, load_model
from webtorch.llm.loading import open_weights
from webtorch.quantization import PackedLinear, PackedTensor

# What a packer writes of a layer, and the weight that this stands for.
Layer = tuple[dict[str, torch.Tensor], torch.Tensor]
DRAW = torch.Generator().manual_seed(0)


def drawn(rows: int, groups: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zeros of groups."""
    scale = (torch.rand(rows, groups, generator=DRAW) * 0.02 + 0.01).half()
    return scale, torch.randint(1, 1 << bits, (rows, groups), generator=DRAW)


def numbers(rows: int, columns: int, bits: int) -> torch.Tensor:
    """Return numbers of some bits."""
    return torch.randint(0, 1 << bits, (rows, columns), generator=DRAW)


def words(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return rows of small numbers as words, the lowest bits first."""
    found = [[0] * (x.shape[1] * bits // 32) for _ in x]
    for row, values in zip(found, x.tolist(), strict=True):
        whole = sum(v << (bits * i) for i, v in enumerate(values))
        row[:] = [(whole >> 32 * i) & 0xFFFFFFFF for i in range(len(row))]
    return torch.tensor(found).to(torch.int32)


def spread(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return the weight of numbers with scales and zeros of groups."""
    size = q.shape[1] // scale.shape[1]
    wide = [x.float().repeat_interleave(size, 1) for x in (scale, zero)]
    return (q - wide[1]) * wide[0]


def gptq(weight: torch.Tensor, bits: int = 4, turned: bool = False) -> Layer:
    rows, columns = weight.shape
    q, (scale, zero) = numbers(rows, columns, bits), drawn(rows, columns // 32, bits)
    state = {
        "qweight": words(q, bits).t(), "qzeros": words((zero - 1).t(), bits), "scales": scale.t(),
        "g_idx": (torch.arange(columns) // 32).to(torch.int32),
    }  # fmt: skip
    if not turned:
        return state, spread(q, scale, zero)
    state["g_idx"] = state["g_idx"].flip(0)
    each = [x.float()[:, state["g_idx"].long()] for x in (scale, zero)]
    return state, (q - each[1]) * each[0]


def awq(weight: torch.Tensor) -> Layer:
    rows, columns = weight.shape
    q, (scale, zero) = numbers(rows, columns, 4), drawn(rows, columns // 32, 4)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def packed(x: torch.Tensor) -> torch.Tensor:
        """Return words along the outputs."""
        return words(x.t().unflatten(1, (-1, 8))[..., order].flatten(1), 4)

    state = {"qweight": packed(q), "qzeros": packed(zero), "scales": scale.t()}
    return state, spread(q, scale, zero)


def hqq(weight: torch.Tensor, bits: int = 4, axis: int = 1) -> Layer:
    rows, columns = weight.shape
    count = rows * columns // 32
    q = numbers(count, 32, bits) if axis else numbers(32, count, bits)
    scale = torch.rand(*((count, 1) if axis else (1, count)), generator=DRAW) * 0.05
    zero = torch.rand(scale.shape, generator=DRAW) * (1 << bits)
    scale, zero = scale.half(), zero.half()
    parts = q.chunk(8 // bits)
    packed = sum(p << (8 - bits * (i + 1)) for i, p in enumerate(parts))
    said = {"nbits": bits, "axis": axis, "group_size": 32, "shape": [rows, columns]}
    state = {"W_q": packed.to(torch.uint8), "scale": scale, "zero": zero}
    state |= {k: torch.tensor(v) for k, v in said.items()}
    return state, ((q - zero.float()) * scale.float()).reshape(rows, columns)


def four_bits(weight: torch.Tensor, kind: str = "nf4", nested: bool = False) -> Layer:
    code = torch.tensor(FOUR_BITS[kind.upper()])
    q, count = numbers(weight.numel() // 64, 64, 4), weight.numel() // 64
    scale = torch.rand(count, generator=DRAW) * 0.3
    said: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "shape": list(weight.shape)}
    state = {"weight": ((q[:, ::2] << 4) | q[:, 1::2]).to(torch.uint8).reshape(-1, 1)}
    state |= {"weight.absmax": scale, "weight.quant_map": code}
    if nested:
        index, table = numbers(1, count, 8)[0], torch.rand(256, generator=DRAW)
        outer = torch.rand(-(-count // 256), generator=DRAW)
        said |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.125}
        state |= {"weight.absmax": index.to(torch.uint8), "weight.nested_absmax": outer}
        state["weight.nested_quant_map"] = table
        scale = table[index] * outer.repeat_interleave(256)[:count] + 0.125
    text = json.dumps(said).encode()
    state[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
    return state, (code[q] * scale.unsqueeze(1)).reshape(weight.shape)


def eight_bits(weight: torch.Tensor) -> Layer:
    q = torch.randint(-127, 128, weight.shape, generator=DRAW).to(torch.int8)
    rows = torch.rand(weight.shape[0], generator=DRAW)
    return {"weight": q, "SCB": rows}, q.float() * (rows / 127).unsqueeze(1)


Packer = Callable[[torch.Tensor], Layer]
# A name -> the quantization_config, what packs a layer, and the format of a matrix of 64 columns.
PACKERS: dict[str, tuple[dict[str, Any], Packer, str]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, gptq, "INT4_32"),
    "gptq, 8 bits": ({"quant_method": "gptq", "bits": 8}, lambda w: gptq(w, 8), "INT8_32"),
    "gptq, 3 bits": ({"quant_method": "gptq", "bits": 3}, lambda w: gptq(w, 3), "INT4_32"),
    "gptq, by activations": ({"quant_method": "gptq"}, lambda w: gptq(w, turned=True), ""),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, "INT4_32"),
    "hqq": ({"quant_method": "hqq"}, hqq, "INT4_32"),
    "hqq, 2 bits": ({"quant_method": "hqq"}, lambda w: hqq(w, 2), "INT4_32"),
    "hqq, across rows": ({"quant_method": "hqq"}, lambda w: hqq(w, axis=0), ""),
    "nf4": ({"quant_method": "bitsandbytes"}, four_bits, "NF4"),
    "nf4, nested": ({"quant_method": "bitsandbytes"}, lambda w: four_bits(w, nested=True), "NF4"),
    "fp4": ({"quant_method": "bitsandbytes"}, lambda w: four_bits(w, "fp4"), "FP4"),
    "int8": ({"quant_method": "bitsandbytes"}, eight_bits, "INT8_64"),
}  # fmt: skip


def written(place: Path, name: str) -> dict[str, torch.Tensor]:
    """Pack the layers of a folder; return the weights that they stand for."""
    told, pack, _ = PACKERS[name]
    state, wanted = load_file(place / "model.safetensors"), {}
    # Others stay floats, as packers leave some.
    for key in [k for k, v in state.items() if k.endswith("proj.weight") and len(v) % 32 == 0]:
        made, wanted[key] = pack(state.pop(key))
        state |= {key.removesuffix("weight") + k: v.contiguous() for k, v in made.items()}
    save_file(state, place / "model.safetensors")
    said = json.loads((place / "config.json").read_text(encoding="utf-8"))
    said["quantization_config"] = told
    (place / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return wanted


@pytest.mark.parametrize("name", PACKERS)
def test_weights_of_other_packers_are_read(name: str, tmp_path: Path) -> None:
    wanted = written(folder("llama", tmp_path), name)
    _, source = open_weights(tmp_path, "cpu", None, packed=True)
    for path, key in {"mlp.down": "mlp.down_proj", "attention.q": "self_attn.q_proj"}.items():
        expected = wanted[f"model.layers.1.{key}.weight"]
        weight = source.weight(f"layers.1.{path}.weight", webtorch.empty(*expected.shape))
        if path == "mlp.down":
            assert getattr(weight, "format", "") == PACKERS[name][2]
        found = weight.dequantize() if isinstance(weight, PackedTensor) else weight
        torch.testing.assert_close(torch.tensor(found.tolist()), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["gptq", "nf4"])
def test_models_of_other_packers_compute_with_them(name: str, tmp_path: Path) -> None:
    written(folder("llama", tmp_path), name)
    model, floats = (load_model(tmp_path, "cpu", packed=p) for p in (True, False))
    assert isinstance(model.get_submodule("layers.1.mlp.down"), PackedLinear)
    assert not any(isinstance(m, PackedLinear) for m in floats.modules())
    with webtorch.no_grad():
        tokens = webtorch.tensor(TOKENS)
        assert (model(tokens) - floats(tokens)).abs().max().item() < 1e-4


def test_experts_may_be_packed(tmp_path: Path) -> None:
    wanted = written(folder("qwen3_moe", tmp_path), "awq")
    _, source = open_weights(tmp_path, "cpu", None, packed=True)
    like = webtorch.empty(4, 32, 32)
    found = source.weight("layers.1.mlp.experts.down.weight", like)
    assert isinstance(found, PackedTensor) and found.format == "INT4_32"
    expected = torch.stack([wanted[f"model.layers.1.mlp.experts.{e}.down_proj.weight"] for e in range(4)])  # fmt: skip
    torch.testing.assert_close(torch.tensor(found.dequantize().tolist()), expected)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    written(folder("llama", tmp_path), "awq")
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    said["quantization_config"]["version"] = "gemv"
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ModelError, match="version 'gemv', is not read here"):
        load_model(tmp_path, "cpu")
