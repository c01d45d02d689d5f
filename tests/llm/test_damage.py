"""Damaged and hostile folders of Hugging Face's: each ends as an error that names the file and what is wrong."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.llm.models import folder
from tests.llm.test_packings import PACKERS, written
from webtorch.errors import WebtorchError
from webtorch.io import Tokenizer, TokenizerError
from webtorch.io.safetensors import SafetensorError
from webtorch.llm import ModelError, Sampling, load, load_model, lora
from webtorch.llm.template import TemplateError, render

TYPED = (WebtorchError, SafetensorError, TokenizerError, OSError)
ODD: list[Any] = [
    None, True, 0, -1, 3, 1 << 31, 10**30, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x", "\ud800", [],
    [None], {}, {"a": 1}, [[[]]], {"content": 7},
]  # fmt: skip
SAID = [{"role": "user", "content": "heap"}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that is read of one, and an adapter."""
    place = folder("llama", tmp_path_factory.mktemp("damage") / "model")
    letters = {c: i + 3 for i, c in enumerate("heap:usrtian")} | {"he": 20}
    special = {"<s>": 1, "</s>": 2}
    Tokenizer(letters, [("h", "e")], special=special, before=["<s>"]).save(place / "tokenizer.json")
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
    told = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    lora.save(lora.attach(load_model(place, "cpu"), 2), place / "adapter")
    return place


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the entries of a file are."""
    yield path
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    for name, each in pairs:
        yield from paths(each, (*path, name))


def damaged(draw: random.Random, value: Any) -> str:
    """Return the text of a file with one entry that is another or missing, or cut."""
    if draw.random() < 0.1:
        text = json.dumps(value)
        return text[: draw.randrange(len(text))]
    path = draw.choice([p for p in paths(value) if p])
    *above, last = path
    owner = value
    for name in above:
        owner = owner[name]
    if draw.random() < 0.2:
        del owner[last]
    else:
        owner[last] = draw.choice(ODD)
    return json.dumps(value)


ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MORE = {
    "config.json": {"rope_scaling": ROPE, "text_config": {}, "layer_types": ["full_attention"] * 3,
                    "sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "quantization_config": None},
    "adapter/adapter_config.json": {"alpha_pattern": {"q_proj": 4}},
}  # fmt: skip


@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
             "adapter/adapter_config.json"],
)  # fmt: skip
def test_entries_that_are_others_are_refused_by_name(
    file: str, whole: Path, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    shutil.copytree(whole, place)
    data = json.loads((whole / file).read_text(encoding="utf-8")) | MORE.get(file, {})
    model = load_model(whole, "cpu")
    for seed in range(20 if file.startswith("generation") else 60):
        (place / file).write_text(
            damaged(random.Random(seed), json.loads(json.dumps(data))), encoding="utf-8"
        )
        try:
            if file.startswith("adapter"):
                lora.load(model, place / "adapter")
            else:
                made = load(place, "cpu", compile=False)
                list(made.chat(SAID, Sampling(temperature=0), most=1))
        except TYPED as error:
            said = str(error)
        else:
            continue
        # What is found only as a text is cut, or in memory, knows no file.
        assert str(place) in said or "has no token" in said or "memory" in said, (seed, said)


def change(name: str, value: Any) -> Callable[[Path], None]:
    """Return what changes a tensor of a folder."""

    def make(place: Path) -> None:
        """Change it."""
        state = load_file(place / "model.safetensors")
        made = value(state.pop(name))
        save_file(state if made is None else state | {name: made}, place / "model.safetensors")

    return make


def index(entries: dict[str, Any]) -> Callable[[Path], None]:
    """Return what puts an index in place of a folder's one file."""

    def make(place: Path) -> None:
        """Put it there."""
        (place / "model.safetensors").rename(place / "a.safetensors")
        told = dict.fromkeys(load_file(place / "a.safetensors"), "a.safetensors") | entries
        text = json.dumps({"weight_map": told})
        (place / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    return make


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (change(NORM, lambda t: None), f"no tensor '{NORM}'"),
        (change(NORM, lambda t: t.to(torch.int32)), "norm.weight is .*int32, and a weight is of floats"),
        (change(NORM, lambda t: t[:3].clone()), r"shape \(3,\), and \(32,\)"),
        (index({NORM: "absent.safetensors"}), "absent.safetensors"), (index({NORM: "../a.safetensors"}), "beside it"),
        (index({NORM: "a\0b"}), "beside it"), (index({NORM: 3}), "beside it"),
    ],
)  # fmt: skip
def test_weights_that_are_missing_or_others(
    make: Callable[[Path], None], words: str, whole: Path, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    shutil.copytree(whole, place)
    make(place)
    with pytest.raises(TYPED, match=words) as refused:
        load(place, "cpu")
    assert str(place) in str(refused.value)


@pytest.mark.parametrize("name", ["gptq", "nf4, nested", "hqq"])
def test_packed_weights_that_do_not_belong_together(name: str, tmp_path: Path) -> None:
    written(folder("llama", tmp_path), name)
    assert name in PACKERS
    state = load_file(tmp_path / "model.safetensors")
    part = next(
        k for k in state if k.endswith(("q_proj.scales", "q_proj.weight.absmax", "q_proj.scale"))
    )
    state[part] = state[part].reshape(-1)[:3].clone()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.weight is not packed by") as refused:
        load_model(tmp_path, "cpu")
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' | center(10 ** 9) }}", "{{ 'x'.ljust(10 ** 10) }}", "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10 ** 9) }}", "{{ ('x' * 1000000) | wordwrap(1) }}",
        "{% set n = namespace(a='xx') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{{ 'a'.replace('', 'b' * 1000000).replace('b', 'c' * 1000000) }}", "{{ [1] | tojson(indent=10 ** 9) }}",
        "{% set x = ['a' * 1000000] * 1000000 %}{{ x }}", "{{ (['a' * 1000000] * 1000000) | join }}",
        "{{ lipsum(n=10 ** 7) }}", "{{ 'x'.encode('nope') }}",
    ],
)  # fmt: skip
def test_templates_that_would_make_too_much_are_stopped(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, SAID)


def test_templates_make_what_long_conversations_need() -> None:
    text = "word <b> " * 20_000
    said = [{"role": "user", "content": text}] * 8
    shown = "'[' ~ m.content.replace('<b>', '<i>').split('</think>')[-1] + ']'"
    template = f"{{% for m in messages %}}{{{{ {shown} }}}}{{% endfor %}}"
    assert render(template, said) == 8 * f"[{text.replace('<b>', '<i>')}]"
