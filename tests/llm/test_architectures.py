"""Logits of every architecture against transformers, with the same random weights; from folders and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.llm.models import MODELS, TOKENS, folder, reference
from webtorch.llm import load_model, save


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
