"""Some hundreds of programs and the small models in every mode; `make meet` is the long run."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import torch

from tests.conftest import need_device
from tests.meet.library import Expected, Skip, faces, look
from tests.meet.models import MODELS
from tests.meet.modes import MODES, Mode, outcome
from tests.meet.programs import Program, generate, shrink

TENSOR = [n for n, m in MODES.items() if "tensor" in m.faces]
# Each mode gets seeds of its own, so that a short run sees many programs.
SEEDS = range(8)
# A model meets every eighth mode in `make test`: each mode meets some models of every kind.
PARTS = 8
KNOWN: set[tuple[str, str]] = set()


def held(case: Any, mode: Mode, device: str, seed: int) -> str | None:
    """What is wrong, as text with the program, or None."""
    found = outcome(case, mode, faces("tensor", device), seed)
    if not found.failed:
        return None
    return f"{mode.name}, {case.name}, {device}: {found.kind}\n{found.text}\n{case.pasted()}"


@pytest.mark.parametrize("seeds", [SEEDS[:2], pytest.param(SEEDS[2:], marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TENSOR)
def test_programs(name: str, seeds: range) -> None:
    wrong = []
    for number in seeds:
        seed = 100 * TENSOR.index(name) + number
        with contextlib.suppress(Skip):
            wrong.append(held(generate(seed), MODES[name], "cpu", seed))
    assert not [w for w in wrong if w], "\n\n".join(w for w in wrong if w)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, part: int) -> None:
    wrong = [held(MODELS[name], MODES[mode], "cpu", 0) for mode in TENSOR[part::PARTS]]
    assert not [w for w in wrong if w], "\n\n".join(w for w in wrong if w)


@pytest.mark.parametrize("name", ["plain", "reads", "compiled_forward", "compiled_step"])
def test_programs_on_webgpu(name: str) -> None:
    need_device("webgpu")
    wrong = [held(generate(seed), MODES[name], "webgpu", seed) for seed in range(3)]
    assert not [w for w in wrong if w], "\n\n".join(w for w in wrong if w)


def test_a_seed_is_one_program():
    text = generate(5).source()
    generate.cache_clear()
    assert generate(5).source() == text


def test_programs_shrink_to_what_fails():
    program = next(
        p
        for p in map(generate, range(50))
        if sum("sum(" in s.text for s in p.steps) and len(p.steps) > 6
    )

    def fails(p: Program) -> bool:
        return any("sum(" in s.text for s in p.steps)

    small = shrink(program, fails)
    assert fails(small)
    assert len(small.steps) < len(program.steps)
    assert not any(fails(small.without(i)) for i in range(len(small.steps)) if len(small.steps) > 1)


def test_what_is_wrong_is_seen():
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    right = Expected(look([x]), look([x.double()]), "float32")
    assert right.differs(look([x])) is None
    assert "values" in str(right.differs(look([x + 1e-3])))
    assert "shape" in str(right.differs(look([x.T])))
    assert "dtype" in str(right.differs(look([x.half().float().double()])))
    assert "requires_grad" in str(right.differs(look([x.clone().requires_grad_()])))


def test_every_kind_of_step_is_drawn():
    random.seed(0)
    from tests.meet.programs import WEIGHTS

    seen = {s.kind for seed in range(60) for s in generate(seed).steps}
    assert seen == set(WEIGHTS)
