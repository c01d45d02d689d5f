"""DTensors and tensor parallel layers, against whole tensors and against PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from tests.distributed import dtensors, operations, parallel, started

Found = list[dict[str, Any]]


def _processes(module: str, ranks: int, *words: str) -> Found:
    """Return what processes write that run a module with these words and their ranks."""
    return started.found(module, ranks, lambda rank: (*words, rank, ranks))


@cache
def _operations(library: str, ranks: int) -> Found:
    return _processes("operations", ranks, library)


def _flat(x: Any) -> Iterator[float]:
    if isinstance(x, list):
        for part in x:
            yield from _flat(part)
    elif x is not None:
        yield x


def _differ(a: Any, b: Any) -> bool:
    """Whether results differ by more than rounding, against the largest of each tensor."""
    for x, y in zip(a, b, strict=True):
        mine, other = list(_flat(x)), list(_flat(y))
        size = max(map(abs, other), default=1.0)
        if mine != pytest.approx(other, rel=1e-5, abs=1e-5 * max(size, 1e-2), nan_ok=True):
            return True
    return False


def _wrong(found: dict[str, Any]) -> list[str]:
    """Return the cases whose results are not those of whole tensors on PyTorch."""
    plain = {name: operations.plain(torch, name)[0] for name in operations.CASES}
    return [
        f"{title}: {value}"
        for title, value in found.items()
        if isinstance(value, str) or _differ(value[0], plain[title.partition(":")[0]])
    ]


def test_operations_of_parts_give_what_those_of_wholes_do() -> None:
    for found in _operations("webtorch", 2):
        assert len(found) > 600
        assert not (wrong := _wrong(found)), wrong[:10]


@pytest.mark.long
def test_operations_of_more_parts_than_there_are_elements_of_a_dim() -> None:
    for found in _operations("webtorch", 4):
        assert not (wrong := _wrong(found)), wrong[:10]


@pytest.mark.long
def test_results_lie_as_pytorchs_do() -> None:
    ours, theirs = _operations("webtorch", 2)[0], _operations("torch", 2)[0]
    taken = [k for k, found in theirs.items() if not isinstance(found, str)]
    alike = sum(ours[k][1] == theirs[k][1] for k in taken)
    # What differs is as right: some results are split here and replicated there.
    assert alike >= 0.85 * len(taken)


@pytest.mark.parametrize(
    ("library", "ranks"),
    [
        ("webtorch", 2),
        pytest.param("webtorch", 4, marks=pytest.mark.long),
        pytest.param("torch", 4, marks=pytest.mark.long),
    ],
)
def test_programs_of_dtensors(library: str, ranks: int) -> None:
    for failed in _processes("dtensors", ranks, library):
        assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())


def _trained(library: str, device: str, steps: int, ranks: int) -> dict[str, Any]:
    return _processes("parallel", ranks, library, device, str(steps))[0]


def test_a_transformer_in_parts_trains_as_a_whole_one() -> None:
    assert _trained("webtorch", "cpu", 4, 2)["whole"] < 1e-5


@pytest.mark.long
def test_a_transformer_in_parts_trains_as_on_pytorch() -> None:
    ours, theirs = _trained("webtorch", "cpu", 20, 2), _trained("torch", "cpu", 20, 2)
    assert parallel.distance(ours, theirs) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_transformer_in_parts_trains_as_a_whole_one_for_many_steps(ranks: int) -> None:
    assert _trained("webtorch", "cpu", 50, ranks)["whole"] < 1e-5


@pytest.mark.long
def test_a_transformer_in_parts_trains_on_webgpu() -> None:
    ours = _trained("webtorch", "webgpu", 3, 2)
    assert parallel.distance(ours, _trained("webtorch", "webgpu", 3, 1)) < 1e-5


def test_checks_have_names() -> None:
    assert set(dtensors.OURS) <= dtensors.CHECKS.keys()
