"""Logits of every architecture against transformers, with the same random weights; from folders and from GGUF."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import webtorch
from tests.llm.models import MODELS, TOKENS, UNSAID, folder, reference
from webtorch.llm import ModelError, load_model, save
from webtorch.llm.architectures import ARCHITECTURES, DEFAULTS, config_from_json
from webtorch.llm.loading import open_weights
from webtorch.llm.weights import save_quantized

GGUF_NAMES = {t: a.gguf for a in ARCHITECTURES for t in a.model_types}


def _wanted(name: str) -> Any:
    with torch.no_grad():
        return reference(name)(torch.tensor(TOKENS)).logits


def _close(found: Any, wanted: Any) -> None:
    assert (torch.tensor(found.tolist()) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = load_model(folder(name, tmp_path / "folder"), device="cpu")
    wanted = _wanted(name)
    with webtorch.no_grad():
        _close(model(webtorch.tensor(TOKENS)), wanted)
    save(model, tmp_path / "model.gguf")
    again = load_model(tmp_path / "model.gguf", device="cpu")
    with webtorch.no_grad():
        _close(again(webtorch.tensor(TOKENS)), wanted)


@pytest.mark.parametrize("name", UNSAID)
def test_what_gguf_files_do_not_say_is_refused(name: str, tmp_path: Path) -> None:
    model = load_model(folder(name, tmp_path / "folder"), device="cpu")
    with webtorch.no_grad():
        _close(model(webtorch.tensor(TOKENS)), _wanted(name))
    with pytest.raises(ModelError, match=f"do not say {UNSAID[name]}: what reads one"):
        save(model, tmp_path / "model.gguf")
    source = open_weights(tmp_path / "folder", "cpu", None, packed=False)
    with pytest.raises(ModelError, match=f"do not say {UNSAID[name]}: what reads one"):
        save_quantized(*source, tmp_path / "model.gguf", "Q8_0")


def _said(kind: str) -> dict[str, Any]:
    """Return what transformers' class of a model_type has by itself."""
    made = CONFIG_MAPPING[kind]()
    said: dict[str, Any] = json.loads(
        getattr(made, "text_config", made).to_json_string(use_diff=False)
    )
    return said | {"model_type": kind}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_a_config_does_not_say_is_what_transformers_has(kind: str) -> None:
    assert config_from_json({"model_type": kind}) == config_from_json(_said(kind))


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "phi3", "smollm3", "olmo2", "gpt_oss"])
def test_sparse_and_old_configs_are_read(name: str, tmp_path: Path) -> None:
    """Config files on the hub are of older versions, and leave out what is usual."""
    place = folder(name, tmp_path)
    told = json.loads((place / "config.json").read_text())
    usual, rope = _said(told["model_type"]), told.pop("rope_parameters")
    sparse = {k: v for k, v in told.items() if k not in usual or usual[k] != v or k == "model_type"}
    if rope["rope_type"] != "default":
        sparse["rope_scaling"] = {"type": rope["rope_type"]} | rope
    sparse["rope_theta"] = rope["rope_theta"]
    sparse.pop("layer_types", None)
    (place / "config.json").write_text(json.dumps(sparse))
    with webtorch.no_grad():
        _close(load_model(place, device="cpu")(webtorch.tensor(TOKENS)), _wanted(name))


def test_stretched_places_are_said_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    """It computes no scale of longrope, and would divide places by a factor beside the divisors."""
    save(
        load_model(folder("phi3, longrope", tmp_path / "folder"), device="cpu"), tmp_path / "m.gguf"
    )
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    scale = fields["phi3.rope.scaling.attn_factor"].contents()
    assert scale == pytest.approx((1 + np.log(64 / 32) / np.log(32)) ** 0.5)
    assert "phi3.rope.scaling.factor" not in fields


def test_what_is_not_computed_is_refused() -> None:
    with pytest.raises(ModelError, match="the activation 'mish' is not known; silu, "):
        config_from_json({"model_type": "llama", "hidden_act": "mish"})
    with pytest.raises(ModelError, match="sees what follows"):
        config_from_json({"model_type": "gemma3_text", "use_bidirectional_attention": True})


def test_every_architecture_is_compared() -> None:
    compared = {reference(name).config.model_type for name in MODELS}
    assert compared == {t for a in ARCHITECTURES for t in a.model_types} - {"gemma3"}


# Rows of q and k are those of pairs, as llama.cpp turns neighbours.
PAIRS = ("llama", "mistral", "mixtral", "smollm3", "granite")


def _converted(name: str, place: Path) -> dict[str, Any]:
    """Return a folder's tensors as llama.cpp's converter names and lays them, by the gguf package's names."""
    config = reference(name).config
    kind = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[GGUF_NAMES[config.model_type]]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    out: dict[str, Any] = {}
    for key, data in sorted(load_file(place / "model.safetensors").items()):
        stem, _, last = (
            key.rpartition(".") if key.endswith(("weight", "bias")) else (key, "", "weight")
        )
        expert = re.sub(r"\.experts\.\d+\.", ".experts.", stem)
        one = expert != stem
        if "block_sparse_moe.experts" in expert:
            expert = expert.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
        found = names.get_name(expert)
        if found is None or (config.model_type == "gpt_oss" and "experts" in key):
            # What the converter handles by hand: experts that are stacked, a dense layer among mixtures.
            assert "mlp" in key
            continue
        if config.model_type in PAIRS and found.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if found[-1] == "q" else config.num_key_value_heads
            data = data.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if config.model_type.startswith("gemma") and found.endswith("norm"):
            data = data + 1
        if one:
            out.setdefault(f"{found}.{last}", []).append(data)
        else:
            out[f"{found}.{last}"] = data.squeeze() if found.endswith("inp_shexp") else data
    return {k: torch.stack(v) if isinstance(v, list) else v for k, v in out.items()}


@pytest.mark.parametrize("name", MODELS)
def test_gguf_files_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    place, path = folder(name, tmp_path / "folder"), tmp_path / "model.gguf"
    save(load_model(place, device="cpu"), path)
    found = {t.name: torch.tensor(np.array(t.data)) for t in gguf.GGUFReader(path).tensors}
    wanted = _converted(name, place)
    left = {k for k in found.keys() - wanted.keys() if "rope_f" not in k}
    assert all("ffn" in k for k in left) and (
        not left or name.startswith(("qwen2_moe", "gpt_oss"))
    ), left
    for key, data in wanted.items():
        torch.testing.assert_close(found[key], data, msg=key)
