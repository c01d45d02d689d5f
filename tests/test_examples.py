"""The programs in examples/ learn, and do step by step what the same file does in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import webtorch
from tests.nn.oracle import to_web

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# Steps, and what must be left of the first losses at the end.
LEARNED = {
    "lstm_text": (24, 0.8),
    "seq2seq_attention": (14, 0.97),
    "transformer_classifier": (40, 0.7),
    "unet": (6, 0.95),
    "vae": (30, 0.8),
    "vit": (12, 0.9),
}


def program(name: str, library: str) -> ModuleType:
    """Return an example as a module that uses `library`: its first import is all that changes."""
    path = EXAMPLES / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    assert source.count("import webtorch as torch") == 1
    module = ModuleType(f"{name}_{library}")
    # Pickle and dataclasses look their module up.
    sys.modules[module.__name__] = module
    code = source.replace("import webtorch as torch", f"import {library} as torch")
    exec(compile(code, str(path), "exec"), module.__dict__)
    return module


def calm(*models: Any) -> None:
    """Switch off dropout, whose numbers the two libraries draw differently."""
    for model in models:
        for one in model.modules():
            if type(one).__name__ == "Dropout":
                one.p = 0.0
            elif type(one).__name__ == "MultiheadAttention":
                one.dropout = 0.0


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_example_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps, part = LEARNED[name]
    _, losses = program(name, "webtorch").train(steps, "cpu")
    assert len(losses) == steps
    assert sum(losses[-3:]) < part * sum(losses[:3])
    assert f"{steps}/{steps}" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_example_computes_what_it_computes_in_pytorch(name: str) -> None:
    ours, theirs = program(name, "webtorch"), program(name, "torch")
    torch.manual_seed(0)
    model, reference = ours.build(), theirs.build()
    assert repr(model).replace("webtorch", "torch") == repr(reference)
    model.load_state_dict(to_web(dict(reference.state_dict()), "cpu"))
    calm(model, reference)
    optimizer = webtorch.optim.Adam(model.parameters(), lr=1e-3)
    other = torch.optim.Adam(reference.parameters(), lr=1e-3)
    for step in range(3):
        loss = ours.loss_of(model, *ours.batch(step, 4))
        wanted = theirs.loss_of(reference, *theirs.batch(step, 4))
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-3)
        for one, by in ((loss, optimizer), (wanted, other)):
            by.zero_grad()
            one.backward()
            by.step()


def test_both_networks_of_the_dcgan_play_as_in_pytorch() -> None:
    ours, theirs = program("dcgan", "webtorch"), program("dcgan", "torch")
    torch.manual_seed(0)
    game, reference = ours.Game("cpu"), theirs.Game("cpu")
    for part in ("generator", "discriminator"):
        state = to_web(dict(getattr(reference, part).state_dict()), "cpu")
        getattr(game, part).load_state_dict(state)
    for step in range(3):
        losses = game.step(*ours.batch(step, 8))
        wanted = reference.step(*theirs.batch(step, 8))
        for one, other in zip(losses, wanted, strict=True):
            assert one.item() == pytest.approx(other.item(), rel=1e-2, abs=1e-3)


def test_dcgan_learns_how_bright_its_pictures_are() -> None:
    _, gaps = program("dcgan", "webtorch").train(20, "cpu")
    assert sum(gaps[-3:]) < 0.8 * sum(gaps[:3])
