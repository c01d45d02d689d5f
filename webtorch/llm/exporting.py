"""A page that chats with a language model in a tab: the programs of its steps, and where its file has the weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from webtorch.autograd.grad_mode import no_grad
from webtorch.functions import public as webtorch
from webtorch.io import SentencePiece, Tokenizer, safetensors
from webtorch.io.gguf import GGUFReader
from webtorch.io.safetensors import FilePath
from webtorch.llm.batch import LEAST
from webtorch.llm.cache import Cache, rewinds
from webtorch.llm.config import ModelError
from webtorch.llm.language import LanguageModel, load
from webtorch.llm.loading import read_config
from webtorch.llm.model import Model, PackedExpert
from webtorch.llm.sampling import Sampling
from webtorch.llm.template import DEFAULT, TemplateError, render
from webtorch.llm.weights import GGUFWeights
from webtorch.quantization.modules import PackedEmbedding, PackedLinear
from webtorch.quantization.tensor import in_words
from webtorch.show.theme import style
from webtorch.tensors.tensor import Tensor
from webtorch.web.export import captured_for_page, export_all
from webtorch.web.site import HERE, copy_runtime

# Tokens of a prompt that are read at once.
PIECE = 32
_FILES = ("chat.js", "tokens.js", "worker.js")
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def export(
    path: FilePath,
    folder: FilePath,
    *,
    url: str | None = None,
    context: int = 2048,
    title: str | None = None,
    cpu: bool | None = None,
) -> Path:
    """Write a page that chats with the model of a GGUF file, and return its folder.

    The page reads the weights from the same file, packed as they lie in it: dropped into the page, or fetched from
    `url`, if the page is told one (an address, or a path beside the page). It keeps the file in the browser. context:
    tokens of a conversation at most. cpu: whether WebAssembly for tabs without a graphics card is written, by default
    where llvmlite is there. `webtorch serve FOLDER` shows the page.

    Raises ModelError for what is no GGUF file, for experts in tensors of their own and for types and tokenizers that
    the page does not read, and what `load` raises.
    """
    source, place = Path(path), Path(folder)
    if source.is_dir():
        raise ModelError(f"{source}: a page reads a GGUF file; webtorch quantize makes one")
    files = GGUFReader(source).files
    if len(files) > 1:
        raise ModelError(
            f"{source}: a page reads one file, and this model has {len(files)}; load(...).save('one.gguf') "
            "joins them"
        )
    room = min(context, read_config(source).max_position_embeddings)
    language = load(source, "cpu", context=room, compile=False)
    model, room = language.model, language.context
    tokenizer = _tokenizer(language)
    about: dict[str, Any] = {
        "title": title or source.stem, "file": _file(source, url), "context": room, "piece": min(PIECE, room),
        "ends": sorted(language.ends), "chat": _chat(language), "check": _check(language),
    }  # fmt: skip
    # Of layers with a window the cache forgets what they do not see.
    about["rewinds"] = rewinds(model.config, room)
    about["lengths"] = sorted({min(LEAST, room), room})
    exported, caches = _programs(model, about, cpu)
    reader = GGUFWeights(model.config, GGUFReader(source), "cpu", None)
    states = {s["name"]: s for s in exported.program["states"]}
    about["zeros"] = [n for n in states if n in caches]
    about["weights"] = {
        n: _place(reader, n) for n in states if n not in caches and n not in exported.weights
    }
    place.mkdir(parents=True, exist_ok=True)
    program = {**exported.program, "examples": None, "title": about["title"]}
    for name, data in (
        ("program", program), ("software", exported.software), ("model", about), ("tokenizer", tokenizer),
    ):  # fmt: skip
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        (place / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    safetensors.save_file(exported.weights, place / "state.safetensors")
    for file, data in (("cpu.wasm", exported.code), ("cpu.bin", exported.constants)):
        (place / file).unlink(missing_ok=True)
        if exported.code:
            (place / file).write_bytes(data)
    _write_page(place, about)
    return place


def _write_page(place: Path, about: dict[str, Any]) -> None:
    """Write what shows it."""
    copy_runtime(place)
    shutil.copyfile(HERE / "cpu.js", place / "cpu.js")
    for file in _FILES:
        shutil.copyfile(HERE / "chat" / file, place / file)
    own = [HERE / "page" / "page.css", HERE / "chat" / "chat.css"]
    sheet = style("\n".join(f.read_text(encoding="utf-8") for f in own))
    (place / "chat.css").write_text(sheet, encoding="utf-8")
    page = (HERE / "chat" / "index.html").read_text(encoding="utf-8")
    parts = urlsplit(about["file"]["url"] or "")
    origin = f" {parts.scheme}://{parts.netloc}" if parts.netloc else ""
    page = page.replace("{{title}}", escape(about["title"])).replace("{{origin}}", escape(origin))
    (place / "index.html").write_text(page, encoding="utf-8")


def _file(source: Path, url: str | None) -> dict[str, object]:
    """Return what the page knows the file by: its size, and what stands before the weights."""
    head = min(e.begin for e in GGUFReader(source).entries.values())
    with source.open("rb") as stream:
        digest = hashlib.sha256(stream.read(head)).hexdigest()
    return {
        "name": source.name,
        "size": source.stat().st_size,
        "head": head,
        "digest": digest,
        "url": url,
    }


# ---- programs and weights -------------------------------------------------------------------------


def _programs(model: Model, about: dict[str, Any], cpu: bool | None) -> tuple[Any, set[str]]:
    """Return the programs of a piece of a prompt and of a token, for each length of what is read of the cache, and the
    names of the cache's states.
    """
    cache = Cache(model.config, about["context"], device="cpu")
    packed = [
        m for m in model.modules() if isinstance(m, (PackedLinear, PackedEmbedding, PackedExpert))
    ]
    for module in packed:
        # As kernels of a page read them.
        held = module.packed if isinstance(module, PackedExpert) else module.weight
        module.blocks = in_words(held.blocks, held.form)
    steps: dict[str, Any] = {}
    for length in about["lengths"]:
        for name, count in (("read", about["piece"]), ("token", 1)):
            step = _step(model, cache, length)
            call = (
                webtorch.zeros(1, count, dtype=webtorch.int64), webtorch.arange(count).unsqueeze(0),
                webtorch.zeros(1, dtype=webtorch.int64),
            )  # fmt: skip
            steps[f"{name}{length}"] = captured_for_page(step, name, call)
    held_caches = {
        f"cache.{i}.{kind}": parts[0]
        for i, layer in enumerate(cache.layers)
        for kind, parts in zip(("keys", "values"), layer, strict=True)
    }
    weights = [t for _, t in (*model.named_parameters(), *model.named_buffers())]
    elsewhere = {id(t._storage) for t in (*weights, *held_caches.values())}
    exported = export_all(
        steps, inputs=dict.fromkeys(steps), outputs=dict.fromkeys(steps), state={"model": model, **held_caches},
        title=about["title"], cpu=cpu, elsewhere=elsewhere,
    )  # fmt: skip
    return exported, set(held_caches)


def _step(model: Model, cache: Cache, length: int) -> Callable[..., dict[str, Tensor]]:
    @no_grad()
    def step(tokens: Tensor, at: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Return the logits of the next token of the one at `wanted`."""
        return {"logits": model(tokens, at, cache, wanted, length)[0, 0]}

    return step


def _place(reader: GGUFWeights, state: str) -> dict[str, object]:
    """Return where the file has the contents of a state."""
    name = state.removeprefix("model.")
    name = f"{name.removesuffix('.blocks')}.weight" if name.endswith(".blocks") else name
    place = reader.place(name)
    if place is None:
        raise ModelError(
            f"{reader.reader.file}: experts in tensors of their own are not read by a page"
        )
    entry = reader.reader.entries[place.tensor]
    count = math.prod(entry.shape[:-1]) if len(entry.shape) > 1 else entry.shape[0]
    begin, end = entry.begin, entry.end
    if place.rows is not None:
        each = (end - begin) // count
        begin, end, count = (
            begin + each * place.rows[0],
            begin + each * place.rows[1],
            place.rows[1] - place.rows[0],
        )
    return {
        "begin": begin, "end": end, "type": _PLAIN.get(entry.type, entry.type), "rows": count, "heads": place.heads,
    }  # fmt: skip


# ---- text -----------------------------------------------------------------------------------------


def _tokenizer(language: LanguageModel) -> dict[str, object]:
    """Return what the page's tokenizer is made of."""
    found = language.tokenizer
    assert isinstance(found, (SentencePiece, Tokenizer))
    merges = [f"{a} {b}" for a, b in found.merges or ()]
    text = {
        "special": found.special, "kept": sorted(found.kept), "before": found.before, "form": found.form,
        "rules": {t: sorted(r) for t, r in found.rules.items()},
    }  # fmt: skip
    if isinstance(found, SentencePiece):
        if found.unigram:
            raise ModelError(
                "a page reads tokenizers of BPE; this file's is SentencePiece's unigram"
            )
        return {
            "tokens": found.tokens, "prefix": found.prefix, "unknown": found.unknown, "fuse": found.fuse,
            "words": found.words, **text, **({"scores": found.scores} if found.merges is None else {"merges": merges}),
        }  # fmt: skip
    known = {n: t for t, n in (*found.vocab.items(), *found.special.items())}
    return {
        "tokens": [known.get(i, "") for i in range(len(found))], "merges": merges, "whole": found.whole_first,
        "pattern": _for_javascript(found.pattern), "prefix": found.prefix_space, **text,
    }  # fmt: skip


def _for_javascript(pattern: str) -> str:
    """Return a pattern without the groups of either case, which not every browser reads."""

    def both(match: re.Match[str]) -> str:
        """Return such a group with both cases of its letters."""
        text = re.sub(r"[a-z]", lambda m: f"[{m[0]}{m[0].upper()}]", match[1])
        return f"(?:{text})"

    return re.sub(r"\(\?i:([^()]*)\)", both, pattern)


def _chat(language: LanguageModel) -> dict[str, object]:
    """Return what the chat template puts before, between and behind messages: a page has no Jinja.

    Raises TemplateError where that depends on what is said.
    """

    def written(said: list[str]) -> str:
        """Return a conversation as the template has it."""
        roles = ("user", "assistant")
        talk = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
        return render(language.template or DEFAULT, talk, **language.names)

    marks = ["\ufdd0one\ufdd0", "\ufdd0two\ufdd0", "\ufdd0three\ufdd0"]
    parts = re.split("|".join(marks), written(marks))
    if len(parts) != 4:
        raise TemplateError(
            "the chat template does not write each message once: a page cannot follow it"
        )
    first, between, again, last = parts
    said = ["a  b", "c", "d\n", "e?", "f"]
    text = (
        first
        + said[0]
        + between
        + said[1]
        + again
        + said[2]
        + between
        + said[3]
        + again
        + said[4]
        + last
    )
    if written(said).replace(" ", "").replace("\n", "") != text.replace(" ", "").replace("\n", ""):
        raise TemplateError(
            "the chat template writes longer conversations otherwise: a page cannot follow it"
        )
    # Before and behind what the model is told first; None: the template has no place for it.
    system: list[str] | None = None
    with contextlib.suppress(TemplateError):
        told = [{"role": "system", "content": marks[0]}, {"role": "user", "content": marks[1]}]
        found = re.split(
            "|".join(marks), render(language.template or DEFAULT, told, **language.names)
        )
        system = found[:2] if len(found) == 3 and found[2] == last else None
    return {
        "system": system, "first": first, "between": between, "again": again, "last": last,
        "begins": language.template is None,
    }  # fmt: skip


def _check(language: LanguageModel) -> dict[str, list[int]]:
    """Return a prompt, and the tokens that the processor gives for it."""
    prompt = language.prompt([{"role": "user", "content": "1 2 3"}])[: max(language.context - 8, 1)]
    answer = language.generate(prompt, Sampling(temperature=0.0), most=4)
    list(answer)
    return {"prompt": prompt, "answer": answer.tokens}
