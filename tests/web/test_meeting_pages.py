"""Random programs and small models of `tests/meet`, exported and run in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Page
from tests.meet.library import faces
from tests.meet.models import MODELS
from tests.meet.modes import Mode, on_a_page, outcome
from tests.meet.programs import generate

SCRIPT = """async (given) => {
  const { load } = await import("./runtime.js");
  const m = await load("./", { device: "webgpu" });
  const [name] = Object.keys(m.functions);
  const inputs = {};
  for (const argument of m.functions[name].arguments) inputs[argument.name] = given[argument.number];
  const found = await m[name](inputs);
  const plain = {};
  for (const [key, x] of Object.entries(found)) if (x?.data) plain[key] = Array.from(x.data, Number);
  return plain;
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", range(4))
def test_programs_in_chromium(part: int, page: Page, serve: Callable[[Path], str]) -> None:
    def replayed(folder: Path, xs: list[Any]) -> dict[str, Any]:
        page.page.goto(serve(folder) + "blank")
        found = dict(page.run(SCRIPT, [x.detach().tolist() for x in xs]))
        assert found, "a page without results"
        return found

    mode = Mode(
        "exported", lambda face, case, seed: on_a_page(face, case, seed, replayed), ("tensor",)
    )
    names = list(MODELS)[part::8]
    cases = [(MODELS[n], 0) for n in names] + [(generate(s), s) for s in range(part, 24, 4)]
    found = [(case, outcome(case, mode, faces("tensor", "cpu"), seed)) for case, seed in cases]
    wrong = [f"{case.name}: {o.kind}\n{o.text}\n{case.pasted()}" for case, o in found if o.failed]
    assert not wrong, "\n\n".join(wrong)
    assert sum(o.status == "passed" for _, o in found) >= 3, [o.status for _, o in found]
