"""The command line: what it says to a wrong command, and what the demos leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import webtorch
from tests.conftest import need_device
from webtorch import cli
from webtorch.cli import doctor, serve
from webtorch.cli.demo import digits, gpt
from webtorch.cli.demo.progress import Meter
from webtorch.runtime import disk
from webtorch.runtime.backends import cpu
from webtorch.runtime.backends.webgpu import AdapterInfo
from webtorch.web.server import server
from webtorch_autoload import command as before

LAVAPIPE = AdapterInfo(0, "llvmpipe", "Vulkan", "CPU", "Mesa", "Mesa 22", (), {}, None)
CARD = AdapterInfo(0, "Card 9000", "Vulkan", "DiscreteGPU", "X", "X 1", (), {}, None)


def run_demo(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """Run a demo in `folder` and return its figures."""
    monkeypatch.chdir(folder)
    assert cli.main(["demo", *arguments, "--quick", "--json", "out/figures.json"]) == 0
    figures: dict[str, Any] = json.loads((folder / "out" / "figures.json").read_text("utf-8"))
    return figures


def check_digits(
    device: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    figures = run_demo(folder, monkeypatch, "--device", device)
    assert figures["demo"] == "digits"
    assert figures["device"] == device
    assert len(figures["losses"]) == figures["epochs"] == 2
    assert 0 <= figures["accuracy"] <= 1
    assert figures["examples_per_second"] > 0
    report = (folder / "webtorch-demo" / "report.html").read_text("utf-8")
    assert f"{figures['accuracy'] * 100:.2f}" in report
    assert "report.html" in capsys.readouterr().out
    return figures


@pytest.mark.long
def test_demo_digits_learns(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = check_digits(device, tmp_path, monkeypatch, capsys)["losses"]
    assert losses[1] < losses[0]


@pytest.mark.long
def test_demo_digits_reads_over_98_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README says of `webtorch demo`."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--device", "cpu", "--json", "figures.json"]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["accuracy"] > 0.98


def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the demo see two batches of pictures, and tested on eight."""
    data = digits.load_digits()
    few = replace(
        data,
        train_images=data.train_images[:128],
        train_labels=data.train_labels[:128],
        test_images=data.test_images[:8],
        test_labels=data.test_labels[:8],
    )
    monkeypatch.setattr(digits, "load_digits", lambda: few)


# On WebGPU: test_both_devices_lose_alike_in_the_first_epoch.
@pytest.mark.one_in(2)
@pytest.mark.covers("T2", "R3")
def test_demo_digits_trains_and_reports(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few_digits(monkeypatch)
    check_digits(device, tmp_path, monkeypatch, capsys)


def check_gpt(
    device: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    figures = run_demo(folder, monkeypatch, "gpt", "--preset", "tiny", "--device", device)
    assert figures["demo"] == "gpt"
    assert figures["device"] == device
    assert figures["tokens_per_second"] > 0
    assert "<details" in (folder / "webtorch-demo" / "report.html").read_text("utf-8")
    assert "def " in capsys.readouterr().out
    return figures


@pytest.mark.long
def test_demo_gpt_learns(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Better than blind guessing among 96 characters (4.56) after a few steps.
    assert check_gpt(device, tmp_path, monkeypatch, capsys)["loss"] < 4.5


@pytest.mark.covers("T3")
def test_demo_gpt_trains_samples_and_reports(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "layers": 1, "channels": 16, "context": 8, "batch": 2, "steps": 2, "held_out_windows": 1, "sample_length": 4,
    }  # fmt: skip
    monkeypatch.setattr(gpt, "QUICK", {**gpt.QUICK, **few})
    figures = check_gpt(device, tmp_path, monkeypatch, capsys)
    assert len(figures["losses"]) == 2
    assert figures["losses"][1] < figures["losses"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "digitz"], "argument digits|gpt: invalid choice: 'digitz'"),
        (["demo", "--device", "cuda"], "'cuda' is no device"),
        (["demo", "--epochs", "0"], "not a whole number above 0"),
        (["serve", ".", "--port", "65536"], "'65536' is no port"),
        (["demo", "--preset", "tiny"], "--preset is for `webtorch demo gpt`"),
        (["bench"], "invalid choice"),
        (["doctor", "--all"], "webtorch doctor: error: it has no --all"),
        (["run"], "webtorch run: error: the following arguments are required: program\n"),
        (
            ["--device", "cpu", "demo"],
            "options stand behind the command: webtorch COMMAND --device",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_missing_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, target = str(tmp_path / "no.pt"), str(tmp_path / "out.safetensors")
    for command in (["convert", missing, target], ["chat", missing], ["quantize", missing, target]):
        assert cli.main(command) == 1
        assert capsys.readouterr().err == f"webtorch: there is no file or folder {missing!r}\n"
    webtorch.save({"a": webtorch.ones(2)}, tmp_path / "a.pt")
    source = str(tmp_path / "a.pt")
    assert cli.main(["convert", source, target, "--keep", "["]) == 2
    assert "'[' is no regular expression" in capsys.readouterr().err
    assert cli.main(["convert", source, str(tmp_path / "none" / "a.safetensors")]) == 0
    for command in (["convert", source], ["quantize", source], ["merge", source, source]):
        assert cli.main([*command, str(tmp_path / "a.pt" / "a.gguf")]) == 1
        assert "a.pt': " in capsys.readouterr().err
    (tmp_path / "empty.pt").touch()
    assert cli.main(["convert", str(tmp_path / "empty.pt"), target]) == 2
    assert "the file is empty" in capsys.readouterr().err
    assert cli.main(["chat", str(tmp_path)]) == 1
    assert "is no language model: it has no config.json" in capsys.readouterr().err
    (tmp_path / "no.pt").mkdir()
    assert cli.main(["convert", missing, target]) == 1
    assert "Errno" not in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for option in (["--json", "file/figures.json"], ["--json", "."], ["--export", "file"]):
        assert cli.main(["demo", "digits", "--device", "cpu", *option]) == 1
        said = capsys.readouterr()
        assert option[1].partition("/")[0] in said.err and "epoch" not in said.out
    assert cli.main(["doctor", "--device", "cpu", "--report", "file/report.json"]) == 1
    said = capsys.readouterr()
    assert "file" in said.err and "pass" not in said.out


def test_no_adapter_is_an_error_with_advice_where_webgpu_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "webgpu_adapters", list)
    assert cli.main(["demo", "--device", "webgpu"]) == 1
    message = capsys.readouterr().err
    assert "no WebGPU adapter was found" in message
    assert doctor.advice() in message


@pytest.mark.covers("P7")
@pytest.mark.parametrize(
    ("found", "device", "reason"),
    [
        ([], "cpu", "no WebGPU adapter was found"),
        ([LAVAPIPE], "cpu", "only WebGPU adapter is software (llvmpipe (Vulkan))"),
        ([CARD], "webgpu", "hardware"),
    ],
)
def test_the_best_device_is_chosen_and_the_reason_told(
    found: list[AdapterInfo], device: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBTORCH_DEVICE", raising=False)
    monkeypatch.setattr(doctor, "webgpu_adapters", lambda: found)
    choice = doctor.choose_device()
    assert choice.device == device
    assert choice.is_best == (device == "webgpu")
    assert reason in choice.reason


def test_the_environment_chooses_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTORCH_DEVICE", "cpu")
    monkeypatch.setattr(doctor, "webgpu_adapters", lambda: [CARD])
    choice = doctor.choose_device()
    assert (choice.device, choice.reason) == ("cpu", "WEBTORCH_DEVICE says so")


def test_a_port_that_was_asked_for_is_taken_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.html").write_text("", "utf-8")
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda self: None)
    command = ["serve", str(tmp_path), "--no-browser"]
    with server(tmp_path) as other:
        taken = other.server_address[1]
        assert cli.main([*command, "--port", str(taken)]) == 1
        assert f"--port {taken}: " in capsys.readouterr().err
        monkeypatch.setattr(serve, "_PORT", taken)
        assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert f"port {taken} is another program's" in said and "is at http://127.0.0.1:" in said


def test_a_processor_without_vector_code_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu.jit, "available", lambda: False)
    assert "pip install numba" in doctor.choose_device("cpu").name
    assert "pip install numba" in dict(doctor.versions())["CPU"]


def test_cache_shows_what_is_kept_and_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WEBTORCH_CACHE", raising=False)
    disk.PROGRAMS.write("one", bytes(3 << 20))
    assert cli.main(["cache"]) == 0
    said = capsys.readouterr().out
    assert "1 file, 3.0 MiB (at most 256 MiB)" in said and str(tmp_path / "programs") in said
    assert cli.main(["cache", "--clear"]) == 0
    assert "removed 1 file," in capsys.readouterr().out
    assert disk.PROGRAMS.contents().files == 0
    monkeypatch.setenv("WEBTORCH_CACHE", "0")
    assert cli.main(["cache"]) == 0
    assert "off" in capsys.readouterr().out


def test_ctrl_c_while_webtorch_is_loaded_ends_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(before.importlib, "import_module", interrupted)
    assert before.main() == 130
    assert capsys.readouterr().err == "webtorch: interrupted\n"


def test_ctrl_c_while_python_loads_the_package_ends_in_a_sentence(tmp_path: Path) -> None:
    """`python -m webtorch` loads the package before the command's own file."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(webtorch.__file__).parents[1])])
    command = [sys.executable, "-m", "webtorch", "doctor"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stderr == "webtorch: interrupted\n" and done.returncode


def test_the_module_runs_as_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "webtorch", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("webtorch ")


@pytest.mark.covers("B15", "Q4")
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.long)])
def test_both_devices_lose_alike_in_the_first_epoch(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_device("webgpu")
    if few:
        few_digits(monkeypatch)
    meter = Meter(Console(quiet=True))
    cpu, webgpu = (
        digits.train(device, epochs=1, quick=True, seed=4, meter=meter)
        for device in ("cpu", "webgpu")
    )
    assert webgpu.losses == pytest.approx(cpu.losses, abs=1e-3)
    assert cpu.losses[0] > 1.0
