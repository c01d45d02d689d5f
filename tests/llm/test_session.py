"""Texts that grow: greedy tokens as transformers' generate, pieces, what is kept between turns, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.llm.models import TOKENS, folder, reference
from webtorch.llm import ContextFullError, Sampling, Session, Steps, load_model

GREEDY = Sampling(temperature=0.0)


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the tokens of transformers' generate."""
    given = torch.tensor([prompt])
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=[],
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "gpt_oss"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = load_model(folder(name, tmp_path), device="cpu")
    session = Session(Steps(model, compile=name == "llama"), 64)
    prompt = TOKENS[0] + TOKENS[0][::-1]
    wanted = greedy(reference(name), prompt, 12)
    assert list(session.generate(prompt, 12, GREEDY)) == wanted
    # What the next prompt begins with is in the cache.
    assert session.tokens == prompt + wanted[:-1]


def test_pieces_and_types_of_the_cache_change_little(tmp_path: Path) -> None:
    name = "llama, biases"
    model = load_model(folder(name, tmp_path), device="cpu")
    steps, prompt = Steps(model, compile=False), (TOKENS[0] * 5)[:57]
    wanted = greedy(reference(name), prompt, 3)
    # The last piece would end behind the context, and is read from before where it begins.
    for context, dtype in ((60, None), (64, webtorch.float16), (64, webtorch.int8)):
        assert list(Session(steps, context, dtype).generate(prompt, 3, GREEDY)) == wanted
    session = Session(steps, 60)
    assert len(list(session.generate(prompt, 99, GREEDY))) == 4
    # Another text that begins alike.
    other = [*prompt[:20], 1, 2, 3]
    assert session.shared(other) == 20
    assert list(session.generate(other, 3, GREEDY)) == greedy(reference(name), other, 3)
    with pytest.raises(ContextFullError, match="the prompt has 60 tokens and the context 60"):
        session.generate([1] * 60, 1, GREEDY)
    with pytest.raises(ValueError, match="tokens are 0 to 95"):
        session.generate([96], 1, GREEDY)
