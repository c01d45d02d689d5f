"""Weights that stay packed: as in llama.cpp's files, and gpt-oss's own."""

from __future__ import annotations

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
    ModelError,
    Sampling,
    load_model,
    quantize_,
    read_config,
    save,
)
from webtorch.llm.weights import weight_bytes

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
    found = {t.name: (t.tensor_type, bytes(t.data)) for t in gguf.GGUFReader(ours).tensors}
    wanted = {t.name: (t.tensor_type, bytes(t.data)) for t in gguf.GGUFReader(theirs).tensors}
    assert {k: v[0] for k, v in found.items()} == {k: v[0] for k, v in wanted.items()}
    assert [k for k in wanted if found[k] != wanted[k]] == []


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
    said["quantization_config"] = {"quant_method": "gptq"}
    (place / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ModelError, match="'gptq', which are not read here"):
        read_config(place)
