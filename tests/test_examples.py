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
    "diffusion": (60, 0.85),
    "flow_matching": (60, 0.85),
    "gpt": (20, 0.85),
    "kan": (60, 0.4),
    "lenet": (30, 0.9),
    "llama": (30, 0.7),
    "lstm_text": (24, 0.8),
    "mlp": (60, 0.7),
    "nerf": (60, 0.6),
    "neural_style": (30, 0.7),
    "resnet18": (8, 0.95),
    "seq2seq_attention": (14, 0.97),
    "siren": (30, 0.5),
    "transformer_classifier": (40, 0.7),
    "unet": (6, 0.95),
    "vae": (30, 0.8),
    "vit": (12, 0.9),
    "word2vec": (60, 0.8),
}
# These have --compile, and are tested so; what they compute without is compared with PyTorch below.
COMPILED = frozenset(
    "diffusion flow_matching gpt kan lenet llama mlp nerf neural_style resnet18 siren word2vec".split()  # noqa: SIM905
)


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


@pytest.mark.covers("T5")
@pytest.mark.parametrize("name", sorted(LEARNED))
def test_example_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps, part = LEARNED[name]
    train = program(name, "webtorch").train
    _, losses = train(steps, "cpu", True) if name in COMPILED else train(steps, "cpu")
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
    # Batch norm over 4 values: there, PyTorch's own float32 is 1 % away from its float64.
    size = 16 if name == "resnet18" else 4
    for step in range(3):
        loss = ours.loss_of(model, *ours.batch(step, size))
        wanted = theirs.loss_of(reference, *theirs.batch(step, size))
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


@pytest.mark.covers("T6")
def test_the_pole_stands_longer_and_longer() -> None:
    dqn = program("dqn", "webtorch")
    dqn.LONGEST = 60
    _, lasted = dqn.train(42, "cpu", True)
    assert sum(lasted[-6:]) > 1.5 * sum(lasted[:6])


def test_values_of_pushes_are_learned_as_in_pytorch() -> None:
    ours, theirs = program("dqn", "webtorch"), program("dqn", "torch")
    torch.manual_seed(0)
    reference = theirs.build()
    model = ours.build()
    model.load_state_dict(to_web(dict(reference.state_dict()), "cpu"))
    for step in range(2):
        loss = ours.loss_of(model, *ours.batch(step, 16))
        wanted = theirs.loss_of(reference, *theirs.batch(step, 16))
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_a_llama_with_its_cache_says_what_it_says_without() -> None:
    llama = program("llama", "webtorch")
    webtorch.manual_seed(0)
    model = llama.build()
    x, _ = llama.batch(0, 2)
    with webtorch.no_grad():
        whole = model(x)
        caches = model.empty_caches(2)
        parts = [model(x[:, :4], caches, 0)]
        parts += [model(x[:, i : i + 1], caches, i) for i in range(4, 8)]
    webtorch.testing.assert_close(webtorch.cat(parts, 1), whole[:, :8], rtol=1e-4, atol=1e-5)
