"""The test page: a fixed sample of the op table in headless browsers, and what it shows of a failure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.browser import _missing
from tests.conftest import need_device
from webtorch.cli import main
from webtorch.cli.testpage import page as testpage
from webtorch.cli.testpage import recording
from webtorch.io.safetensors import load_file, save_file
from webtorch.web.browsers import find

ENTRIES = recording.entries()
# `make testpage` runs all of them.
SAMPLE = ENTRIES[3::48]


def _told(found):
    bad = [t for t in found["tests"] if t["status"] != "passed"]
    return "\n".join(f"{t['entry']}, {t['kind']}: {t['call']}: {t.get('why')}" for t in bad)


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    need_device("webgpu")
    folder = tmp_path_factory.mktemp("testpage")
    written = testpage.write(folder, SAMPLE, dtypes=("float32", "int64"), most=1)
    assert written.tests > 20 and written.entries > 10
    return folder


def test_what_is_expected_is_what_the_call_defines():
    """Of eigenvectors not the sign, of a result without a gradient no share, and no float64."""
    need_device("webgpu")
    found = {}
    for op in ENTRIES:
        if op.name in ("linalg_eigh", "linalg_slogdet", "log_softmax", "matrix_exp"):
            for case in recording.record(op, "webgpu", ("float32", "float16"), 4):
                assert isinstance(case, recording.Left) or not case.error, case.error
                found.setdefault(op.name, []).append(case)
    assert all(len(cases) > 3 for cases in found.values()) and len(found) == 4
    close = [c for name in ("linalg_eigh", "linalg_slogdet") for c in found[name]]
    assert max(e.atol for c in close for e in c.expected) < 1e-3
    half = [c for c in found["matrix_exp"] if "float16" in c.call]
    assert half and b"\0\0\x80\x7f" in half[0].expected[0].data, "it overflows there"


@pytest.mark.covers("Q1", "Q3")
def test_a_sample_of_the_table_gives_pytorchs_numbers_in_chromium(sample):
    if find("chromium") is None:
        _missing("Chromium (apt-get install --no-install-recommends chromium)")
    found = testpage.run(sample)
    assert "swiftshader" in found["device"] and "Chrome" in found["browser"]
    assert found["failed"] == found["waiting"] == 0, _told(found)
    assert found["passed"] == len(found["tests"]) > 20


@pytest.mark.covers("R7")
@pytest.mark.skipif(find("firefox") is None, reason="Firefox is not installed")
def test_a_sample_of_the_table_gives_pytorchs_numbers_in_firefox(tmp_path):
    need_device("webgpu")
    testpage.write(tmp_path, ENTRIES[3::60], dtypes=("float32",), most=1)
    found = testpage.run(tmp_path, "firefox")
    assert "error" not in found, found["error"]
    assert found["failed"] == found["waiting"] == 0, _told(found)


@pytest.mark.covers("Q3")
def test_a_failure_is_shown_with_numbers_and_kernel_and_exported(page, serve, tmp_path):
    need_device("webgpu")
    table = [op for op in ENTRIES if op.name in ("softmax", "copysign", "linalg_eig")]
    written = testpage.write(tmp_path, table, dtypes=("float32",), most=1)
    assert (written.entries, written.left) == (2, 1)
    # One recorded number is wrong.
    tensors = load_file(tmp_path / "tests.safetensors")
    broken = next(k for k, v in tensors.items() if "=" in k and v.dtype == "float32")
    data = bytearray(tensors[broken].data)
    data[0:4] = b"\0\0\x80\x3f"
    tensors[broken] = replace(tensors[broken], data=bytes(data))
    save_file(tensors, tmp_path / "tests.safetensors")
    number = int(broken.partition("=")[0])
    entry = json.loads((tmp_path / "tests.json").read_text())["tests"][number]["entry"]

    page.page.goto(serve(tmp_path))
    page.page.wait_for_selector("#run:not([disabled])")
    page.page.click("#run")
    page.page.wait_for_selector("#export:not([disabled])")
    assert page.page.inner_text("#failed") == "1"
    assert page.page.inner_text("#waiting") == "0"
    page.page.select_option("#which", "failed")
    shown = page.page.locator("#list details:visible")
    assert shown.count() == 1
    shown.locator("summary").click()
    shown.locator("pre").first.wait_for()
    text = shown.inner_text()
    assert entry in text and "1 of " in text and "elements are wrong" in text
    assert "expected" in text and "got" in text and "@compute" in text
    with page.page.expect_download() as download:
        page.page.click("#export")
    report = json.loads(download.value.path().read_text())
    assert report["failed"] == 1 and report["passed"] == len(report["tests"]) - 1
    failure = next(t for t in report["tests"] if t["status"] == "failed")
    assert failure["problems"][0]["rows"][0][1] == 1 and "@compute" in failure["wgsl"][0]
    # What only the CPU computes is named with the reason.
    page.page.click("#without summary")
    assert "linalg_eig" in page.page.inner_text("#reasons")
    page.page.select_option("#which", "")
    page.page.fill("#filter", "soft")
    assert page.page.locator("#list details:visible").count() == 1
    assert page.problems == []


def test_the_command_names_what_the_table_does_not_have(tmp_path, capsys):
    assert main(["testpage", str(tmp_path), "--only", "relu", "fly"]) == 2
    assert "the table has no fly" in capsys.readouterr().err
