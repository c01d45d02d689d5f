"""The commands of language models: what they print, and what they say where it does not work."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch import cli
from webtorch.llm import LanguageModel, load, load_model, lora


def test_chat_talks_and_obeys(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [
        "heap",
        "/system Be short.",
        "push",
        "/load nowhere.gguf",
        "/help",
        f"/load {trained}",
        "/quit",
        "never",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(said)))
    told = ["--device", "cpu", "--max-tokens", "3", "--temperature", "0", "--context", "64"]
    assert cli.main(["chat", str(trained), *told]) == 0
    out, wrong = capsys.readouterr()
    assert (
        out.count("3 tokens; ") == 2
        and "a second" not in out
        and "million parameters, on cpu" in out
    )
    assert "for 64 tokens" in out and " free" in out
    assert "/system TEXT" in out and "nowhere.gguf" in wrong and "as many as were asked for" in out


def test_chat_says_how_to_go_on_where_the_context_is_full(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'heap ' * 40}\nheap\n/quit"))
    told = ["--device", "cpu", "--temperature", "0", "--context", "32"]
    assert cli.main(["chat", str(trained), *told]) == 0
    out, wrong = capsys.readouterr()
    assert "the context of 32 is full" in out and "/new begins anew" in wrong


def test_who_interrupts_a_load_keeps_the_model_before(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = iter([load(trained, "cpu")])

    def loaded(*args: object) -> LanguageModel:
        """Return the model once; then be interrupted."""
        found = next(loads, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr("webtorch.cli.chat.load_told", loaded)
    monkeypatch.setattr("sys.stdin", io.StringIO("/load other.gguf\nheap\n/quit"))
    assert cli.main(["chat", str(trained), "--device", "cpu", "--max-tokens", "2"]) == 0
    out, wrong = capsys.readouterr()
    assert "2 tokens; " in out and "interrupted" in wrong


def test_who_interrupts_too_late_keeps_the_conversation(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["heap", KeyboardInterrupt(), "push", "/quit"])

    def typed(_: str) -> str:
        """Return a line, or be interrupted."""
        found = next(lines)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert cli.main(["chat", str(trained), "--device", "cpu", "--max-tokens", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("2 tokens; ") == 2 and "/quit or Ctrl+D ends" in out


def test_generate_prints_the_text_alone(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--device", "cpu", "--max-tokens", "5", "--top-k", "1", "--cache", "float16"]
    assert cli.main(["generate", str(trained), "def heappush(", *told]) == 0
    out, aside = capsys.readouterr()
    assert "tokens" not in out and out.strip() and "5 tokens" in aside
    assert cli.main(["generate", str(trained), "def ", "--device", "cpu", "--top-p", "2"]) == 1
    assert "top_p is 2.0; 0.0 to 1.0 is wanted" in capsys.readouterr().err


def test_who_interrupts_generate_is_told_by_its_status(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()

    def write(text: str) -> int:
        """Be interrupted at the first piece."""
        monkeypatch.undo()
        raise KeyboardInterrupt(text)

    monkeypatch.setattr(said, "write", write, raising=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", said)
        assert cli.main(["generate", str(trained), "def ", "--device", "cpu"]) == 130


@pytest.mark.parametrize("name", ["absent.gguf", "wrong.gguf"])
def test_what_is_no_model_is_said(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.gguf").write_bytes(b"GGUF" + bytes(2))
    assert cli.main(["generate", str(tmp_path / name), "x", "--device", "cpu"]) == 1
    assert name in capsys.readouterr().err


def test_the_server_listens_here_unless_told(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server: asked.append(vars(server.config)))
    assert cli.main(["serve-llm", str(trained), "--device", "cpu"]) == 0
    assert asked[0]["host"] == "127.0.0.1"
    assert cli.main(["serve-llm", str(trained), "--device", "cpu", "--host", "0.0.0.0"]) == 0
    assert "--api-key asks for a key" in capsys.readouterr().out


def test_quantize_writes_a_smaller_model(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "small.gguf"
    assert cli.main(["quantize", str(trained), str(target), "--format", "Q4_0"]) == 0
    assert "Q4_0" in capsys.readouterr().out
    assert target.stat().st_size < 0.6 * trained.stat().st_size
    assert cli.main(["generate", str(target), "def ", "--device", "cpu", "--max-tokens", "2"]) == 0
    assert cli.main(["quantize", str(trained), str(target), "--format", "Q8_K"]) == 1
    assert "and the mixes" in capsys.readouterr().err
    assert cli.main(["quantize", str(trained), str(target), "--format", "Q4_K_M"]) == 0


def test_an_adapter_is_taken_and_merged(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, target = tmp_path / "adapter", tmp_path / "merged.gguf"
    model = load_model(trained, "cpu")
    for found in lora.adapters(lora.attach(model, 2)).values():
        webtorch.nn.init.ones_(found.b)
    lora.save(model, adapter)
    told = ["--device", "cpu", "--max-tokens", "6", "--temperature", "0"]
    said = []
    assert cli.main(["merge", str(trained), str(adapter), str(target)]) == 0
    for more in ([str(trained)], [str(trained), "--lora", str(adapter)], [str(target)]):
        capsys.readouterr()
        assert cli.main(["generate", *more[:1], "def heappush(", *more[1:], *told]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1] == said[2]
    packed = tmp_path / "packed.gguf"
    assert cli.main(["merge", str(trained), str(adapter), str(packed), "--format", "Q4_0"]) == 0
    assert packed.stat().st_size < 0.6 * target.stat().st_size
