"""Capability rows R: what goes into a web page. The pages themselves are run by tests/web."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch.io.safetensors import read_header


@pytest.mark.covers("R6")
def test_an_exported_step_is_a_folder_of_plain_files(tmp_path: Path) -> None:
    webtorch.manual_seed(0)
    model = webtorch.nn.Linear(4, 2)
    optimizer = webtorch.optim.SGD(model.parameters(), lr=0.1)

    @webtorch.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step(webtorch.ones(3, 4))
    webtorch.export(step, tmp_path, name="train", state={"model": model})
    program = json.loads((tmp_path / "program.json").read_text(encoding="utf-8"))
    assert "@compute" in json.dumps(program)
    assert {"model.weight", "model.bias"} <= set(
        read_header(tmp_path / "weights.safetensors").tensors
    )
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    script = (tmp_path / "runtime.js").read_text(encoding="utf-8")
    # One script without dependencies; no threads over shared memory, so no special headers.
    assert "http://" not in page + script and "https://cdn" not in page + script
    assert "SharedArrayBuffer" not in script


@pytest.mark.covers("R10")
def test_types_are_declared_for_editors_and_for_the_browser() -> None:
    package = Path(webtorch.__file__).parent
    assert (package / "py.typed").exists()
    stub = (package / "functions" / "public.pyi").read_text(encoding="utf-8")
    for name in ("matmul", "softmax", "cat", "where", "exp"):
        assert f"def {name}(" in stub, name
    browser = (package / "web" / "runtime.d.ts").read_text(encoding="utf-8")
    assert "export" in browser and "load(" in browser
