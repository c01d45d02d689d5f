"""Tuning: what is measured is right, stored, found again and used; what is wrong or damaged is not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from webtorch.cli import main
from webtorch.ir.dtype import bfloat16, float32, int32
from webtorch.ir.kernel import BufferSlot, Convolution
from webtorch.lower.templates import search
from webtorch.runtime.backends import get_backend, webgpu
from webtorch.runtime.backends.webgpu import tuner


@pytest.fixture
def folder(tmp_path, monkeypatch, device):
    """An empty cache folder, and a device without measured kernels."""
    monkeypatch.setenv("WEBTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WEBTORCH_TUNE", raising=False)
    before = dict(device.tuned)
    device.tuned.clear()
    yield tmp_path
    device.tuned.clear()
    device.tuned.update(before)


def product(device, routine, a, b):
    """Run a routine on two arrays."""
    inputs = [device.upload(x.tobytes(), float32, x.size) for x in (a, b)]
    (out,) = device.compile(tuner._program(routine, 1)).run(inputs, ())
    return np.frombuffer(device.download(out), np.float32)


@pytest.mark.covers("M24")
def test_the_fastest_right_kernel_is_used_and_found_again(folder, device) -> None:
    routine = tuner.matmul_routine(40, 48, 64, "nt")
    result = tuner.tune(device, routine)
    assert len(result.measured) >= 3 and not any(m.problem for m in result.measured)
    assert result.best.seconds <= 1.03 * min(m.seconds for m in result.measured)
    (stored,) = json.loads((folder / "tuned.json").read_text()).values()
    assert stored == {result.name: list(tuner._entry(result.best.choice))}
    assert webgpu.open_backend(0).tuned == device.tuned == tuner.load(device)
    # Another shape of the class is served too; another class is not.
    assert tuner.class_name(device, tuner.matmul_routine(36, 46, 60, "nt")) == result.name
    assert tuner.class_name(device, tuner.matmul_routine(40, 48, 64, "nn")) != result.name


def test_a_stored_choice_computes_the_same(folder, device) -> None:
    routine = tuner.matmul_routine(33, 20, 130)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((33, 130), np.float32), rng.standard_normal((130, 20), np.float32)
    device.tuned[tuner.class_name(device, routine)] = (0, 0, 0, 0, 0, 8)
    assert len(device.render(routine)) == 2, "k in parts is a second pass"
    found = product(device, routine, a, b).reshape(33, 20)
    device.put_rendered(routine, None)
    np.testing.assert_allclose(found, a.astype(float) @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.covers("M24")
def test_a_wrong_kernel_is_never_stored(folder, device, monkeypatch) -> None:
    right = search.passes

    def broken(p, columns, limits, choice):
        """All but the first choice forget the last k."""
        if choice == search.candidates(p, limits)[0]:
            return right(p, columns, limits, choice)
        return right(replace(p, k=p.k - 1), columns, limits, choice)

    monkeypatch.setattr(search, "passes", broken)
    result = tuner.tune(device, tuner.matmul_routine(32, 32, 64))
    assert [bool(m.problem) for m in result.measured] == [False] + [True] * (
        len(result.measured) - 1
    )
    assert "off by" in result.measured[1].problem
    assert result.best is result.default


def test_large_products_are_checked_at_both_ends(folder, device, monkeypatch) -> None:
    monkeypatch.setattr(tuner, "_REFERENCE", 32 * 24 * 32)
    routine = replace(
        tuner.matmul_routine(40, 24, 32),
        batch=(2,),
        left_strides=(40 * 32, 32, 1),
        right_strides=(0, 24, 1),
        buffers=(
            BufferSlot(float32, "read", 2 * 40 * 32),
            BufferSlot(float32, "read", 32 * 24),
            BufferSlot(float32, "write", 2 * 40 * 24),
        ),
    )
    assert [start for start, _ in tuner._parts(routine)] == [0, (2 * 40 - 32) * 24]
    assert not any(m.problem for m in tuner.tune(device, routine).measured)


def test_convolutions_and_bfloat16(folder, device) -> None:
    slots = (
        BufferSlot(float32, "read", 2 * 4 * 36),
        BufferSlot(float32, "read", 8 * 4 * 9),
        BufferSlot(float32, "write", 2 * 8 * 36),
    )
    conv = Convolution("conv", "forward", (2, 4, 6, 6), (8, 4, 3, 3), (2, 8, 6, 6), (1, 1), (1, 1),
                       (1, 1), 1, slots)  # fmt: skip
    for routine in (conv, tuner.matmul_routine(32, 16, 48, "nn", bfloat16)):
        result = tuner.tune(device, routine)
        assert not any(m.problem for m in result.measured), result


def test_nothing_to_choose(folder, device) -> None:
    assert tuner.tune(device, tuner.matmul_routine(1, 64, 64)) is None
    assert tuner.tune(device, tuner.matmul_routine(16, 16, 16, "nn", int32)) is None
    assert not (folder / "tuned.json").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"KEY": 3}', '{"KEY": {"c": [1, 2, 3]}}', '{"KEY": {"c": [7, 7, 7, 7, 7, 1]}}',
     '{"KEY": {"c": [0, 0, 0, 0, 0, -4]}}', '{"KEY": {"c": "0"}}'],
)  # fmt: skip
def test_a_damaged_file_is_not_used(folder, device, text: str) -> None:
    (folder / "tuned.json").write_text(text.replace("KEY", tuner.adapter_key(device)))
    assert tuner.load(device) == {}


@pytest.mark.covers("M24")
def test_webtorch_tune_1_measures_what_is_compiled(folder, monkeypatch) -> None:
    monkeypatch.setenv("WEBTORCH_TUNE", "1")
    device = webgpu.open_backend(0)
    routine = tuner.matmul_routine(24, 24, 32)
    device.render(routine)
    assert list(device.tuned) == [tuner.class_name(device, routine)]
    monkeypatch.setenv("WEBTORCH_TUNE", "off")
    assert webgpu.open_backend(0).tuned == {}


def test_the_default_stays_unless_another_is_clearly_faster() -> None:
    def result(*seconds: float, problem: str = "") -> tuner.Result:
        first, *rest = (tuner.Measured((None, i + 1), s) for i, s in enumerate(seconds))
        first = replace(first, problem=problem)
        return tuner.Result("c", tuner.matmul_routine(2, 2, 2), (first, *rest))

    assert result(1.02, 1.0).best.choice == (None, 1)
    assert result(1.05, 1.0, 0.9).best.choice == (None, 3)
    assert result(0.5, 1.0, problem="off by 1").best.choice == (None, 2)
    assert result(0.5, problem="off by 1").best is None


def test_doctor_lists_what_is_in_use(folder, device, monkeypatch) -> None:
    from webtorch.cli.doctor import _tuning

    used = get_backend("webgpu", device.index)
    monkeypatch.setitem(used.tuned, "float32 dw 1x8x8x8", (0, 0, 0, 0, 0, 2))
    lines = list(_tuning(f"webgpu:{device.index}"))
    assert lines[0].startswith("Products: shipped table")
    assert "  measured: float32 dw 1x8x8x8: no tile, k in 2" in lines
    assert list(_tuning("cpu")) == []


def test_the_command(folder, device, capsys) -> None:
    assert main(["tune", "--device", f"webgpu:{device.index}", "--seconds", "5", "24x32x32"]) == 0
    text = capsys.readouterr().out
    assert "24x32x32 nn" in text and "GFLOP/s" in text
    assert (folder / "tuned.json").exists()
    with pytest.raises(SystemExit):
        main(["tune", "24x32"])
    assert main(["tune", "--device", "cpu"]) == 1
