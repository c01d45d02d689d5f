"""Adapters of low rank: as PEFT has them, as llama.cpp's files have them, merged, and on packed weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

import webtorch
from tests.llm.models import TOKENS, folder, reference
from webtorch.llm import Model, ModelError, Sampling, load, load_model, lora, quantize_, save


def _filled(model: Model) -> Model:
    """Give new adapters numbers that change answers."""
    draw = webtorch.Generator().manual_seed(3)
    for adapter in lora.adapters(model).values():
        with webtorch.no_grad():
            adapter.b.copy_(webtorch.randn(*adapter.b.shape, generator=draw) * 0.3)
    return model


def _logits(model: Model) -> Any:
    with webtorch.no_grad():
        return torch.tensor(model(webtorch.tensor(TOKENS)).tolist())


def _theirs(name: str, place: Path) -> Any:
    """Return transformers' logits with the adapter of a folder in the weights, by PEFT's names and rule."""
    said = json.loads((place / "adapter_config.json").read_text(encoding="utf-8"))
    state = webtorch.load(place / "adapter_model.safetensors")
    model = type(reference(name))(reference(name).config)
    model.load_state_dict(reference(name).state_dict())
    for key in [k for k in state if k.endswith("lora_A.weight")]:
        a, b = (torch.tensor(state[k].tolist()) for k in (key, key.replace("lora_A", "lora_B")))
        layer = model.get_submodule(
            key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        )
        with torch.no_grad():
            layer.weight.add_(b @ a * (said["lora_alpha"] / a.shape[0]))
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS)).logits


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen2_moe"])
def test_files_hold_what_the_model_computes(name: str, tmp_path: Path) -> None:
    place = folder(name, tmp_path / "model")
    model = load_model(place, "cpu")
    plain = _logits(model)
    _filled(lora.attach(model, 4, 6.0))
    wanted = _logits(model)
    assert (wanted - plain).abs().max() > 0.05
    for path in (tmp_path / "peft", tmp_path / "adapter.gguf"):
        lora.save(model, path, "base")
        other = lora.load(load_model(place, "cpu"), path)
        assert (_logits(other) - wanted).abs().max() < 1e-4
        assert (_logits(lora.detach(other)) - plain).abs().max() < 1e-5
    assert (_theirs(name, tmp_path / "peft") - wanted).abs().max() < 1e-4
    merged = lora.merge(model)
    assert not lora.adapters(merged) and (_logits(merged) - wanted).abs().max() < 1e-4


def test_the_gguf_package_reads_an_adapter(tmp_path: Path) -> None:
    model = _filled(
        lora.attach(load_model(folder("llama", tmp_path / "model"), "cpu"), 4, targets=["q"])
    )
    lora.save(model, tmp_path / "adapter.gguf")
    found = gguf.GGUFReader(tmp_path / "adapter.gguf")
    said = {k: f.contents() for k, f in found.fields.items()}
    assert said["general.type"] == "adapter" and said["adapter.type"] == "lora"
    assert said["general.architecture"] == "llama" and said["adapter.lora.alpha"] == 8.0
    shapes = {t.name: t.data.shape for t in found.tensors}
    assert shapes["blk.2.attn_q.weight.lora_a"] == (4, 32) and len(shapes) == 6
    # As the weight beside it, in the order of pairs.
    whole = torch.tensor(found.tensors[1].data)
    ours = torch.tensor(lora.adapters(model)["layers.0.attention.q"].b.tolist())
    assert torch.equal(whole, ours.unflatten(0, (4, 2, -1)).transpose(1, 2).flatten(0, 2))


def test_gradients_reach_adapters_of_packed_weights(tmp_path: Path) -> None:
    file = tmp_path / "packed.gguf"
    save(quantize_(load_model(folder("llama", tmp_path / "model"), "cpu"), "Q8_0"), file)
    model, floats = load_model(file, "cpu"), load_model(file, "cpu", packed=False)
    found = []
    for each in (model, floats):
        _filled(
            lora.attach(
                each,
                4,
                targets=["q_proj", "mlp.down"],
                generator=webtorch.Generator().manual_seed(0),
            )
        )
        webtorch.nn.functional.cross_entropy(
            each(webtorch.tensor(TOKENS))[0, :-1], webtorch.tensor(TOKENS[0][1:])
        ).backward()
        found.append(
            [torch.tensor(p.grad.tolist()) for p in lora.parameters(each) if p.grad is not None]
        )
    assert len(found[0]) == 12
    for packed, plain in zip(*found, strict=True):
        assert (packed - plain).norm() < 1e-4 * plain.norm()
    with pytest.raises(ModelError, match="has an adapter: merge it"):
        save(model, tmp_path / "model.gguf")
    wanted = _logits(model)
    merged = _logits(lora.merge(model))
    assert (merged - wanted).abs().max() < 0.1 * wanted.abs().max()
    save(model, tmp_path / "model.gguf")


def test_wrong_adapters_are_refused_in_words(tmp_path: Path) -> None:
    model = load_model(folder("llama", tmp_path / "model"), "cpu")
    with pytest.raises(ValueError, match="no layer is called nothing"):
        lora.attach(model, targets=["q", "nothing"])
    with pytest.raises(ValueError, match="has no adapter"):
        lora.save(model, tmp_path / "none")
    save(model, tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="no adapter of low rank"):
        lora.load(model, tmp_path / "model.gguf")
    lora.save(lora.attach(model, 2), tmp_path / "peft")
    other = load_model(folder("qwen3", tmp_path / "other"), "cpu")
    with pytest.raises(ModelError, match="belongs to another model"):
        lora.load(other, tmp_path / "peft")
    said = json.loads((tmp_path / "peft" / "adapter_config.json").read_text(encoding="utf-8"))
    # Of DoRA the weights are scaled, PiSSA changes those of the base, aLoRA is added to some tokens.
    for name, value in {
        "use_dora": True, "init_lora_weights": "pissa", "alora_invocation_tokens": [5], "lora_alpha": "x",
    }.items():  # fmt: skip
        (tmp_path / "peft" / "adapter_config.json").write_text(
            json.dumps(said | {name: value}), encoding="utf-8"
        )
        with pytest.raises(ModelError, match=f"adapter_config.json: {name} is"):
            lora.load(model, tmp_path / "peft")


def test_layers_of_other_ranks_are_told_as_peft_reads_them(tmp_path: Path) -> None:
    model = lora.attach(
        load_model(folder("llama", tmp_path / "model"), "cpu"), 2, targets=["q", "down"]
    )
    for path, adapter in lora.adapters(model).items():
        if path.endswith("q") or path == "layers.1.mlp.down":
            a, b = adapter.a.detach(), adapter.b.detach()
            adapter.a, adapter.b = (
                webtorch.nn.Parameter(webtorch.cat([t] * 2, d)) for t, d in ((a, 0), (b, 1))
            )
    lora.save(model, tmp_path / "peft")
    said = json.loads((tmp_path / "peft" / "adapter_config.json").read_text(encoding="utf-8"))
    for key, a in webtorch.load(tmp_path / "peft" / "adapter_model.safetensors").items():
        if key.endswith("lora_A.weight"):
            name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            # `get_pattern_key` of PEFT.
            ranks = [
                r for k, r in said["rank_pattern"].items() if re.match(rf"(.*\.)?({k})$", name)
            ]
            assert [a.shape[0]] == (ranks or [said["r"]]), name


def test_a_model_takes_one_adapter_after_the_other(trained: Path, tmp_path: Path) -> None:
    model = load(trained, "cpu", context=64)
    said = []
    for seed in (1, 2):
        webtorch.manual_seed(seed)
        other = load(trained, "cpu", context=64)
        for adapter in lora.adapters(lora.attach(other.model, 2)).values():
            with webtorch.no_grad():
                adapter.b.normal_(std=1.0)
        lora.save(other.model, tmp_path / f"{seed}.gguf")
    for file in (None, "1.gguf", "2.gguf", None, "1.gguf"):
        model.adapt(file and tmp_path / file)
        said.append("".join(model.generate("def heappush(", Sampling(temperature=0.0), most=8)))
    assert said[0] == said[3] and said[1] == said[4] and len(set(said)) == 3
