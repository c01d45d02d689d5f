"""Our files in llama.cpp, and its files here: the same tokens. Skipped where llama-cpp-python is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webtorch
from tests.llm.models import MODELS, TOKENS, folder
from webtorch.io import SentencePiece
from webtorch.llm import LanguageModel, Sampling, load, load_model, quantize_file

llama_cpp: Any = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not here: it is built from its source package"
)
GREEDY = Sampling(temperature=0.0)
TEXT = "def heappush("
STEPS = 64


class Theirs:
    """A file in llama.cpp, with keys and values of float32."""

    def __init__(self, path: Path) -> None:
        self.llama = llama_cpp.Llama(
            str(path), n_ctx=128, n_threads=1, n_threads_batch=1, logits_all=True, type_k=0, type_v=0,
            verbose=False,
        )  # fmt: skip

    def encode(self, text: str) -> list[int]:
        found: list[int] = self.llama.tokenize(text.encode(), add_bos=False, special=True)
        return found

    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Return what follows each of some tokens."""
        self.llama.reset()
        self.llama.eval(tokens)
        return np.array(self.llama.scores[: len(tokens)])

    def follow(self, tokens: list[int], count: int) -> list[int]:
        """Return the likeliest tokens after some."""
        self.llama.reset()
        made, given = list[int](), tokens
        for _ in range(count):
            self.llama.eval(given)
            given = [int(self.llama.scores[self.llama.n_tokens - 1].argmax())]
            made += given
        return made


def ours(path: Path, tokens: list[int], count: int) -> list[int]:
    """Return the likeliest tokens after some, here; none of them ends the answer."""
    batch = load(path, "cpu", compile=False, context=128).batch
    return list(batch.generate(tokens, count, GREEDY))


def test_llama_cpp_reads_our_file(trained: Path) -> None:
    model, theirs = load(trained, "cpu", compile=False), Theirs(trained)
    for text in (TEXT, "<|user|>heap it's 12  x<|end|>\n\n\tfor i in range(1000):"):
        assert theirs.encode(text) == model.encode(text)
    prompt = model.encode(TEXT)
    assert theirs.follow(prompt, STEPS) == ours(trained, prompt, STEPS)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_K_M"])
def test_llama_cpp_reads_what_we_quantised(trained: Path, tmp_path: Path, format: str) -> None:
    path = tmp_path / "packed.gguf"
    quantize_file(trained, path, format)
    theirs = Theirs(path)
    tokens = theirs.encode(TEXT) + ours(path, theirs.encode(TEXT), STEPS)
    check(theirs.logits(tokens), tokens, path)


@pytest.mark.parametrize("kind", ["MOSTLY_Q8_0", "MOSTLY_Q4_K_M"])
def test_we_read_what_llama_cpp_quantised(trained: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "theirs.gguf"
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{kind}")
    options.nthread = 1
    assert llama_cpp.llama_model_quantize(str(trained).encode(), str(path).encode(), options) == 0
    theirs = Theirs(path)
    prompt = theirs.encode(TEXT)
    tokens = prompt + theirs.follow(prompt, STEPS)
    check(theirs.logits(tokens), tokens, path)


# What llama.cpp does not compute: windows of these, other scales of attention (gemma2), dense layers among experts.
ELSEWHERE = (
    "mistral", "qwen2, windows and yarn", "qwen2_moe", "qwen2_moe, windows", "phi3", "smollm3, windows", "gemma2",
    "gpt_oss, its own limit",
)  # fmt: skip


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ELSEWHERE])
def test_llama_cpp_computes_the_same_of_every_architecture(name: str, tmp_path: Path) -> None:
    model, path = (
        load_model(folder(name, tmp_path / "folder"), device="cpu"),
        tmp_path / "model.gguf",
    )
    texts = ["<unk>", "<s>", "</s>", *map(chr, range(0x4E00, 0x4E00 + 93))]
    pieces = SentencePiece(texts, [0.0] * 96, special={t: i for i, t in enumerate(texts[:3])})
    LanguageModel(model, pieces).save(path)
    # More than phi3's places before they were stretched, as llama.cpp asks for all of its context.
    tokens = TOKENS[0] * 3
    with webtorch.no_grad():
        found = load_model(path, "cpu")(webtorch.tensor([tokens]))[0].numpy()
    # It reads Gemma's gelu from a table of float16.
    bound = 1e-2 if name.startswith("gemma") else 1e-3
    assert np.abs(found - Theirs(path).logits(tokens)).max() < bound


def check(theirs: np.ndarray[Any, Any], tokens: list[int], path: Path) -> None:
    """Compare what follows each token: llama.cpp rounds what it multiplies packed weights by to 8 bits, so that the
    likeliest token is another one where two are as likely.
    """
    model = load(path, "cpu", compile=False).model
    with webtorch.no_grad():
        found = model(webtorch.tensor([tokens]))[0].numpy()
    spread = theirs.std()
    assert np.abs(found - theirs).max() < 0.1 * spread
    top = np.sort(theirs, -1)
    sure = top[:, -1] - top[:, -2] > 0.05 * spread
    assert sure.sum() > STEPS / 2
    assert (found.argmax(-1) == theirs.argmax(-1))[sure].all()
