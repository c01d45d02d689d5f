"""Texts that grow: greedy tokens as transformers' generate, pieces, what is kept between turns, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llm.models import TOKENS, folder, reference
from webtorch.llm import Sampling, Session, Steps, load_model

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
