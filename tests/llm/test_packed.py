"""Weights that stay packed: as in llama.cpp's files, and gpt-oss's own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import webtorch
from tests.llm.models import TOKENS, folder, reference
from webtorch.io import GGUFReader
from webtorch.llm import (
    Batch,
    Config,
    ModelError,
    Sampling,
    load_model,
    quantize_,
    read_config,
    save,
)
from webtorch.llm.loading import open_weights
from webtorch.llm.mixes import chooser
from webtorch.llm.weights import save_quantized, weight_bytes

GREEDY = Sampling(temperature=0.0)


def quantised(source: Path, target: Path, kind: Any) -> None:
    """Write a GGUF file with the matrices of another one quantised."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, entry in reader.fields.items():
        if not key.startswith(("GGUF.", "general.")):
            inner = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), entry.types[0], inner)
    for t in reader.tensors:
        data = np.array(t.data)
        small = (
            data.ndim < 2
            or data.shape[-1] % 32
            or "ffn_gate_inp" in t.name
            or t.name.endswith("bias")
        )
        if small:
            writer.add_tensor(t.name, data)
        else:
            writer.add_tensor(t.name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["llama, biases", "mixtral", "phi3"])
def test_models_are_packed_here_as_by_others(name: str, tmp_path: Path) -> None:
    plain, theirs, ours = (tmp_path / f"{n}.gguf" for n in ("plain", "theirs", "ours"))
    model = load_model(folder(name, tmp_path / "folder"), "cpu")
    save(model, plain)
    quantised(plain, theirs, gguf.GGMLQuantizationType.Q4_0)
    save(quantize_(model, "Q4_0"), ours)
    streamed = tmp_path / "streamed.gguf"
    save_quantized(*open_weights(plain, "cpu", None, packed=False), streamed, "Q4_0")
    assert streamed.read_bytes() == ours.read_bytes()
    found = {t.name: (t.tensor_type, bytes(t.data)) for t in gguf.GGUFReader(ours).tensors}
    wanted = {t.name: (t.tensor_type, bytes(t.data)) for t in gguf.GGUFReader(theirs).tensors}
    assert {k: v[0] for k, v in found.items()} == {k: v[0] for k, v in wanted.items()}
    assert [k for k in wanted if found[k] != wanted[k]] == []


def test_mixes_choose_as_llama_cpp() -> None:
    config = Config("llama", 96, 256, 512, 16, 4, 2, 64, 64)

    def kinds(name: str, config: Config, part: str, width: int = 256) -> str:
        """Return the first letters and numbers of what the layers get."""
        choose = chooser(name, config)
        found = [choose(f"blk.{i}.{part}.weight", (8, width)) for i in range(16)]
        return " ".join(str(k).removesuffix("_K") for k in found)

    more = "Q6 Q6 Q4 Q4 Q6 Q4 Q4 Q6 Q4 Q4 Q6 Q4 Q4 Q6 Q6 Q6"
    for part, wanted in {"attn_v": more, "ffn_down": more, "attn_k": "Q4 " * 16}.items():
        assert kinds("Q4_K_M", config, part) == wanted.strip()
    assert kinds("Q5_K_M", config, "attn_v") == more.replace("Q4", "Q5")
    assert kinds("Q4_K_M", config, "ffn_down", 96).split()[:3] == ["Q8_0", "Q8_0", "Q5_0"]
    assert kinds("Q4_K_S", config, "ffn_down").split()[:3] == ["Q5", "Q5", "Q4"]
    assert kinds("Q3_K_M", config, "attn_v").split()[:3] == ["Q5", "Q5", "Q4"]
    assert kinds("Q3_K_M", config, "attn_output") == " ".join(["Q4"] * 16)
    choose = chooser("Q4_K_M", config)
    assert [choose(f"{n}.weight", (96, 256)) for n in ("output", "token_embd")] == ["Q6_K", "Q4_K"]
    tied = dataclasses.replace(config, tie_word_embeddings=True)
    assert chooser("Q4_K_M", tied)("token_embd.weight", (96, 96)) == "Q8_0"
    for small in ("blk.0.attn_norm", "blk.0.ffn_gate_inp"):
        assert choose(f"{small}.weight", (256,) if "norm" in small else (8, 256)) is None
    eight = dataclasses.replace(config, num_experts=8, num_experts_per_tok=2)
    assert kinds("Q4_K_M", eight, "attn_v").split()[0] == "Q8_0"
    assert kinds("Q4_K_M", eight, "attn_output").split()[0] == "Q5"
    assert chooser("Q4_0", config)("blk.0.attn_v.weight", (8, 40)) is None
    with pytest.raises(ValueError, match=r"'Q9' is not written here; .*, and the mixes Q3_K_S"):
        chooser("Q9", config)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "Q8_0"),
        ("mixtral", "Q4_0"),
        ("phi3", "Q8_0"),
        ("gemma3", "Q5_1"),
        ("gpt_oss", "Q8_0"),
    ],
)
def test_packed_weights_give_what_their_floats_give(name: str, kind: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    save(load_model(folder(name, tmp_path / "folder"), "cpu"), plain)
    quantised(plain, packed, getattr(gguf.GGMLQuantizationType, kind))
    floats, model = load_model(packed, "cpu", packed=False), load_model(packed, "cpu")
    sizes = [weight_bytes(GGUFReader(packed), webtorch.float32, p) for p in (False, True)]
    assert sizes[1] < 0.7 * sizes[0]
    found = []
    for each in (floats, model):
        session = Batch(each, 64, compile=False)
        found.append(list(session.generate(TOKENS[0], 4, GREEDY)))
    assert found[0] == found[1]
    with webtorch.no_grad():
        x = webtorch.tensor(TOKENS)
        assert (model(x) - floats(x)).abs().max().item() < 1e-4


def test_the_experts_of_gpt_oss_stay_as_they_were_published(tmp_path: Path) -> None:
    place = folder("gpt_oss", tmp_path)
    state = load_file(place / "model.safetensors")
    theirs = reference("gpt_oss")
    draw = torch.Generator().manual_seed(0)
    changed = dict(theirs.state_dict())
    for name in [n for n in state if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = state.pop(name).shape
        blocks = torch.randint(
            0, 256, (experts, outputs, inputs // 32, 16), generator=draw, dtype=torch.uint8
        )
        scales = torch.randint(
            121, 125, (experts, outputs, inputs // 32), generator=draw, dtype=torch.uint8
        )
        state |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        changed[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(state, place / "model.safetensors")
    # A copy, as others compare with the reference.
    again = type(theirs)(theirs.config)
    again.load_state_dict(changed)
    with torch.no_grad():
        wanted = again.eval()(torch.tensor(TOKENS)).logits
    model = load_model(place, "cpu")
    with webtorch.no_grad():
        found = torch.tensor(model(webtorch.tensor(TOKENS)).tolist())
    assert (found - wanted).abs().max() < 1e-4
    said = json.loads((place / "config.json").read_text(encoding="utf-8"))
    said["quantization_config"] = {"quant_method": "quip"}
    (place / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ModelError, match="'quip', which are not read here"):
        read_config(place)
