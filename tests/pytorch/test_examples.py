"""The programs in examples/pytorch run with --quick, and learn."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pytorch"


def _main(name: str) -> Any:
    torch._dynamo.reset()
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    # PyTorch's compiler looks modules up by their names.
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def _losses(text: str) -> list[float]:
    return [float(line.rpartition("loss")[2]) for line in text.splitlines() if "loss" in line]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [[], ["--eager"]])
def test_cnn(webgpu: str, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    accuracy = _main("cnn")(["--quick", *options])
    first, *_, last = _losses(capsys.readouterr().out)
    assert last < 0.6 * first
    assert accuracy > 0.4


@pytest.mark.long
def test_fine_tune(webgpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    _main("fine_tune")(["--quick"])
    letters, up_or_down = capsys.readouterr().out.split("up or down:")
    for text in (letters, up_or_down):
        first, *_, last = _losses(text)
        assert last < first


@pytest.mark.long
def test_generate_as_on_the_cpu(webgpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _main("generate")(["--quick"])
    assert text.startswith("the quick") and len(text) == 21
    assert text == _main("generate")(["--quick", "--device", "cpu"])
    losses = _losses(capsys.readouterr().out)
    assert losses[:2] == pytest.approx(losses[2:], abs=2e-3)


@pytest.mark.long
def test_denoise(webgpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    far = _main("denoise")(["--quick"])
    expected = _main("denoise")(["--quick", "--device", "cpu"])
    losses = _losses(capsys.readouterr().out)
    assert losses[:2] == pytest.approx(losses[2:], abs=1e-3)
    assert far == pytest.approx(expected, abs=0.05)


def test_to_page(webgpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _main("to_page")([str(tmp_path / "site"), "--quick"])
    program = json.loads((tmp_path / "site" / "program.json").read_text(encoding="utf-8"))
    assert set(program["functions"]) == {"train", "infer"}
    assert "model.0.weight" in {s["name"] for s in program["states"]}
