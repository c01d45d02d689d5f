"""The programs in examples/ learn, and do step by step what the same file does in PyTorch."""

from __future__ import annotations

import io
import json
import random
import sys
import wave
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
    "chat": (30, 0.4),
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
    "speech": (30, 0.6),
    "transformer_classifier": (40, 0.7),
    "unet": (6, 0.95),
    "vae": (30, 0.8),
    "vit": (12, 0.9),
    "word2vec": (60, 0.8),
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


@pytest.mark.one_in(10)
@pytest.mark.covers("T5")
@pytest.mark.parametrize("name", sorted(LEARNED))
def test_example_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps, part = LEARNED[name]
    _, losses = program(name, "webtorch").train(steps, "cpu", True)
    assert len(losses) == steps
    assert sum(losses[-3:]) < part * sum(losses[:3])
    said = capsys.readouterr().out
    # No terminal: lines, and nothing that goes back on one.
    assert f"{steps}/{steps}" in said and "\r" not in said


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", sorted([*LEARNED, "dcgan", "dqn"]))
def test_example_ends_with_a_picture_and_computes_the_same_uncompiled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first step captures, the others are replays. DQN's are episodes: five hold more than a batch.
    steps = 5 if name == "dqn" else 3
    _, wanted = program(name, "webtorch").train(steps, "cpu")
    module, runs = program(name, "webtorch"), []
    train = module.train

    def shortly(_: int, device: str, compiled: bool) -> Any:
        assert compiled
        runs.append(train(steps, device, compiled))
        return runs[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "train", shortly)
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--compile"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    capsys.readouterr()
    module.main()
    ((_, losses),) = runs
    assert losses == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    # A pipe gets a line from time to time, and the last one.
    _, end, picture = capsys.readouterr().out.partition(f" {steps}/{steps} ")
    assert end
    assert picture.partition("\n")[2].strip()


@pytest.mark.one_in(5)
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
    _, gaps = program("dcgan", "webtorch").train(20, "cpu", True)
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


@pytest.mark.long
@pytest.mark.covers("T7")
def test_a_conversation_about_the_village(capsys: pytest.CaptureFixture[str]) -> None:
    chat = program("chat", "webtorch")
    model, _ = chat.train(250, "cpu", True)
    draw = random.Random("a conversation")
    traced, drawn = [], chat.drawn

    def counted(*args: Any) -> Any:
        traced.append(1)
        return drawn(*args)

    chat.drawn = counted
    talk = chat.Chat(model, chat.TOKENIZER, temperature=0.0)
    assert "".join(talk.say("Hello!")) == chat.HELLO
    captured = len(traced)
    # "Where does she live?" is answered from what was said before.
    right, count = chat.examine(talk, [chat.dialogue(draw) for _ in range(8)])
    assert right >= 0.8 * count
    # Questions are read in pieces, answers token by token: one program for each, whatever the place.
    assert len(traced) == captured
    pieces = list(talk.say("Hello!"))
    assert len(pieces) > 2
    assert "".join(pieces) == chat.HELLO
    # Drawn from hardly any, what is drawn is the likeliest.
    sure = chat.Chat(model, chat.TOKENIZER, temperature=1.0, top_p=1e-6)
    assert "".join(sure.say("Hello!")) == chat.HELLO
    # What is more than the cache holds begins anew.
    for _ in range(12):
        assert "".join(talk.say("Hi!", 24)) == chat.HELLO
    with pytest.raises(ValueError, match="too many"):
        next(talk.say("Where? " * 200))


def test_draws_come_from_the_likeliest_as_often_as_they_should() -> None:
    chat = program("chat", "webtorch")
    webtorch.manual_seed(0)
    logits = webtorch.tensor([0.1, 0.4, 0.2, 0.3]).log().expand(4000, 4)
    counts = webtorch.bincount(chat.drawn(logits, 1.0, 0.85).flatten(), minlength=4)
    found = (counts / 4000).tolist()
    assert found == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9], abs=0.03)
    cold = webtorch.bincount(chat.drawn(logits, 0.5, 1.0).flatten(), minlength=4) / 4000
    assert cold.tolist() == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30], abs=0.03)


def test_the_chat_takes_weights_of_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="no transformers")
    chat = program("chat", "webtorch")
    torch.manual_seed(0)
    scaling = {
        "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=len(chat.TOKENIZER), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rope_parameters=scaling,
        max_position_embeddings=512, initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.save_pretrained(tmp_path)
    chat.TOKENIZER.save(tmp_path / "tokenizer.json")
    model, tokenizer = chat.load(tmp_path, "cpu")
    x = torch.randint(0, len(tokenizer), (2, 100))
    with torch.no_grad():
        wanted = reference(x).logits
    logits = model(webtorch.tensor(x.tolist())).tolist()
    torch.testing.assert_close(torch.tensor(logits), wanted, rtol=1e-3, atol=1e-3)
    # Through the cache, in pieces of questions longer than one piece.
    question = "Where does Ada live? And what is she? And which animal does she have?"
    asked = tokenizer.encode(chat.START + chat.asked(question))
    assert len(asked) > 2 * chat.PIECE
    found = reference.generate(torch.tensor([asked]), max_new_tokens=8, do_sample=False)
    talk = chat.Chat(model, tokenizer, temperature=0.0)
    said = "".join(talk.say(question, 8))
    assert said == tokenizer.decode(found[0, len(asked) :].tolist(), skip_special_tokens=True)
    sizes = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "model_type": "gpt2"}))
    with pytest.raises(ValueError, match="gpt2"):
        chat.load(tmp_path, "cpu")


@pytest.mark.long
@pytest.mark.covers("T8")
def test_words_nobody_said_are_spoken_like_the_synthesiser_does(tmp_path: Path) -> None:
    speech = program("speech", "webtorch")
    model, losses = speech.train(100, "cpu", True)
    assert losses[-1] < 0.4
    words = ["salami", "tomato", "kimono", "risotto"]
    model.eval()
    sounds, lengths = speech.speak(model, words, "cpu")
    taught = speech.synthesise([f" {word} " for word in words])
    other = speech.synthesise([f" {word} " for word in words[1:] + words[:1]])
    near, far = speech.distance(sounds, taught), speech.distance(sounds, other)
    assert near < 4.5
    assert near < 0.7 * far
    for length, word in zip(lengths, words, strict=True):
        assert length / speech.HOP == pytest.approx(sum(speech.durations_of(f" {word} ")), abs=5)
    speech.save(tmp_path / "one.wav", sounds[0].tolist()[: lengths[0]])
    with wave.open(str(tmp_path / "one.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (speech.RATE, lengths[0])
        heard = memoryview(file.readframes(lengths[0])).cast("h")
    assert max(abs(s) for s in heard) == 32000


def test_griffin_lim_finds_a_sound_of_given_magnitudes() -> None:
    speech = program("speech", "webtorch")
    webtorch.manual_seed(0)
    taught = speech.synthesise([" salami ", " tofu "])
    magnitudes = speech.spectrogram(taught).exp() - speech.FLOOR
    errors = [
        speech.distance(speech.griffin_lim(magnitudes, rounds), taught) for rounds in (0, 5, 40)
    ]
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.5
