"""Text in, text out: a model that was trained here, from its GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest

import webtorch
from tests.llm.conftest import TEMPLATE
from webtorch.errors import OutOfMemoryError
from webtorch.io import GGUFError, Tokenizer, TokenizerError
from webtorch.llm import (
    ContextFullError,
    LanguageModel,
    ModelError,
    Sampling,
    TemplateError,
    load,
    needs,
    read_config,
)
from webtorch.llm.template import render

GREEDY = Sampling(temperature=0.0)


@pytest.mark.covers("L7")
def test_a_model_that_was_trained_here_talks(trained: Path) -> None:
    model = load(trained, "cpu", compile=False)
    assert model.template == TEMPLATE and model.context == 128 and model.needs is not None
    answer = model.generate("def heappush(", GREEDY, most=12)
    text = "".join(answer)
    assert answer.finish == "length" and len(answer.tokens) == 12
    assert text == model.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    assert set("".join(model.chat([{"role": "user", "content": "heap"}], GREEDY, most=4)))
    prompt = model.prompt([{"role": "user", "content": "a"}])
    assert model.tokenizer.decode(prompt) == "<|user|>a<|end|><|assistant|>"
    # The text that ends it is left out, and what may be its beginning waits.
    whole = "".join(model.generate("def heappush(", GREEDY, most=12))
    end = whole[3:5]
    stopped = model.generate("def heappush(", GREEDY, most=12, stop=[end])
    assert "".join(stopped) == whole[: whole.index(end)] and stopped.finish == "stop"
    full = model.generate("heap " * 50, GREEDY)
    assert len("".join(full)) > 0 and full.finish == "length"
    assert len(full.prompt) + len(full.tokens) == 129
    with pytest.raises(ContextFullError, match="the context 128: take a longer context"):
        model.generate("heap " * 300)
    assert model.embed("heap").square().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_a_draft_has_the_same_tokens(trained: Path, tmp_path: Path) -> None:
    model = load(trained, "cpu", compile=False, draft=trained)
    answer = model.generate("def heappush(", GREEDY, most=12)
    plain = load(trained, "cpu", compile=False).generate("def heappush(", GREEDY, most=12)
    assert "".join(answer) == "".join(plain)
    other = LanguageModel(model.model, Tokenizer.train(["other"], 270), template=TEMPLATE)
    other.save(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="drafts is another"):
        load(trained, "cpu", draft=tmp_path / "other.gguf")


def test_the_file_has_what_llama_cpp_wants(trained: Path) -> None:
    reader = gguf.GGUFReader(trained)
    said = {k: f.contents() for k, f in reader.fields.items()}
    assert said["general.architecture"] == "llama" and said["llama.block_count"] == 2
    assert said["tokenizer.ggml.model"] == "gpt2" and said["tokenizer.ggml.pre"] == "gpt-2"
    assert said["tokenizer.ggml.tokens"][said["tokenizer.ggml.eos_token_id"]] == "<|end|>"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    assert {t.name for t in reader.tensors} == {
        f"{names.get_name(n)}.weight"
        for n in ("model.embed_tokens", "model.norm", *(
            f"model.layers.{i}.{p}" for i in range(2) for p in (
                "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")))
    }  # fmt: skip


def test_sampling_draws_the_same_with_the_same_seed(trained: Path) -> None:
    model = load(trained, "cpu", compile=False)

    def said(sampling: Sampling) -> list[int]:
        """Return 8 tokens."""
        answer = model.generate("import ", sampling, most=8)
        assert list(answer) is not None
        return answer.tokens

    hot = Sampling(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    assert said(hot) == said(hot)
    assert len({tuple(said(Sampling(3.0, 0, 1.0, 0.0, seed=s))) for s in range(3)}) == 3
    likeliest = said(GREEDY)
    for narrow in (Sampling(5.0, 1), Sampling(5.0, 0, 0.0), Sampling(5.0, 0, 1.0, 1.0)):
        assert said(narrow) == likeliest
    assert len(set(said(Sampling(0.0, repetition_penalty=50.0)))) == 8
    with pytest.raises(ValueError, match="temperature is -1"):
        Sampling(temperature=-1)


def test_damaged_and_hostile_files_are_refused_in_words(trained: Path, tmp_path: Path) -> None:
    data = trained.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(GGUFError, match="cut short"):
        load(cut, "cpu")

    def changed(key: bytes, old: bytes, new: bytes) -> Path:
        """Return a file in which what follows a key is another value."""
        at = data.index(key) + len(key)
        assert data[at : at + len(old)] == old
        path = tmp_path / "changed.gguf"
        path.write_bytes(data[:at] + new + data[at + len(old) :])
        return path

    heads = struct.pack("<II", 4, 2)
    with pytest.raises(ModelError, match="num_attention_heads is 0, a size is wanted"):
        read_config(changed(b"llama.attention.head_count", heads, struct.pack("<II", 4, 0)))
    blocks = struct.pack("<II", 4, 2)
    with pytest.raises(ModelError, match="num_hidden_layers is 2147483647; at most 4096"):
        read_config(changed(b"llama.block_count", blocks, struct.pack("<II", 4, 2**31 - 1)))
    with pytest.raises(ModelError, match="has the shape"):
        load(changed(b"llama.attention.head_count", heads, struct.pack("<II", 4, 1)), "cpu")
    with pytest.raises(ModelError, match="'lambs' is not known; llama, qwen2"):
        read_config(_renamed(data, tmp_path))
    with pytest.raises(TokenizerError, match="in the way 'gqt-2', which is not known"):
        load(
            changed(
                b"tokenizer.ggml.pre",
                struct.pack("<IQ", 8, 5) + b"gpt-2",
                struct.pack("<IQ", 8, 5) + b"gqt-2",
            )
        )
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def _renamed(data: bytes, place: Path) -> Path:
    path = place / "renamed.gguf"
    path.write_bytes(data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lambs", 1))
    return path


def test_what_does_not_fit_is_said_before_it_is_loaded(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(trained)
    monkeypatch.setenv("WEBTORCH_MEMORY_LIMIT", "1e5")
    with pytest.raises(OutOfMemoryError, match=r"does not fit: weights .* of 0.1 MB free"):
        load(trained, "cpu")
    monkeypatch.setenv("WEBTORCH_MEMORY_LIMIT", "2e6")
    short = needs(config, "cpu", cache=webtorch.int8, context=128)
    assert short.caches < needs(config, "cpu", context=128).caches / 2
    assert needs(config, "cpu").context == 128


def test_templates_run_in_a_sandbox() -> None:
    said = [{"role": "user", "content": "hi"}]
    assert render("{{ messages[0].content }}{{ bos_token }}", said, bos_token="<s>") == "hi<s>"
    with pytest.raises(TemplateError, match="only users"):
        render("{{ raise_exception('only users') }}", said)
    for hostile in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% for", "{{ messages.append(1) }}",
        "{{ 1 / 0 }}", "{% for i in range(999999999) %}x{% endfor %}",
    ):  # fmt: skip
        with pytest.raises(TemplateError):
            render(hostile, said)


def test_templates_come_to_an_end() -> None:
    said = [{"role": "user", "content": "hi"}] * 2
    plain = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}{% endfor %}"
    assert render(plain, said) == "1/22/2."
    assert render("{{ '-' * 3 }}{{ 7 % 4 }}{{ '%s!' % 'a' }}{{ 2 ** 3 }}", said) == "---3a!8"
    for hostile, message in (
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "stopped"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}", "stopped"),
        ("{{ 9 ** (9 ** 9) }}", "too long"),
        ("{{ 'x' * 99999999 }}", "too long"), ("{{ '%0999999999d' % 1 }}", "too long"),
    ):  # fmt: skip
        with pytest.raises(TemplateError, match=message):
            render(hostile, said)
