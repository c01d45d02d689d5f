"""Sobol's sequences, to the bit as PyTorch's."""

from __future__ import annotations

import pytest
import torch

import webtorch
from webtorch.functions.sobol import scrambled
from webtorch.quasirandom import SobolEngine

pytest.importorskip("scipy")


@pytest.mark.parametrize("dimension", [1, 2, 7, 50])
def test_points_are_pytorchs(dimension: int) -> None:
    mine, theirs = SobolEngine(dimension), torch.quasirandom.SobolEngine(dimension)
    for n in (1, 3, 17, 100):
        assert mine.draw(n).tolist() == theirs.draw(n).tolist()
    for engine in (mine, theirs):
        engine.fast_forward(1000)
    assert (
        mine.draw(5, dtype=webtorch.float64).tolist()
        == theirs.draw(5, dtype=torch.float64).tolist()
    )
    assert mine.sobolstate.tolist() == theirs.sobolstate.tolist()
    assert mine.reset().draw_base2(3).tolist() == theirs.reset().draw_base2(3).tolist()
    out = webtorch.empty(0)
    assert mine.draw(2, out=out) is out
    assert out.tolist() == theirs.draw(2).tolist()


def test_scrambling_is_pytorchs_of_the_same_matrices() -> None:
    matrices = torch.randint(2, (4, 30, 30)).tril()
    theirs = torch.quasirandom.SobolEngine(4).sobolstate.clone()
    mine = webtorch.tensor(theirs.tolist())
    torch._sobol_engine_scramble_(theirs, matrices.clone(), 4)
    assert scrambled(mine, webtorch.tensor(matrices.tolist())).tolist() == theirs.tolist()


def test_scrambled_points_of_a_seed_are_pytorchs() -> None:
    for seed in (0, 7, 2**33 + 5):
        mine, theirs = (
            lib.quasirandom.SobolEngine(3, scramble=True, seed=seed) for lib in (webtorch, torch)
        )
        assert mine.draw(20).tolist() == theirs.draw(20).tolist()
        assert mine.shift.tolist() == theirs.shift.tolist()


def test_scrambled_points_are_balanced_and_follow_their_seed() -> None:
    points = SobolEngine(3, scramble=True, seed=1).draw(64)
    for d in range(3):
        assert sorted((points[:, d] * 64).long().tolist()) == list(range(64))
    assert SobolEngine(3, scramble=True, seed=1).draw(64).tolist() == points.tolist()
    assert SobolEngine(3, scramble=True, seed=2).draw(64).tolist() != points.tolist()


def test_errors_and_text_are_pytorchs() -> None:
    for lib in (webtorch, torch):
        engine = lib.quasirandom.SobolEngine
        assert (
            repr(engine(3, scramble=True, seed=1))
            == "SobolEngine(dimension=3, scramble=True, seed=1)"
        )
        with pytest.raises(
            ValueError, match=r"Supported range of dimensionality for SobolEngine is \[1, 21201\]"
        ):
            engine(21202)
        begun = engine(2)
        begun.draw(3)
        with pytest.raises(
            ValueError, match="The balance properties of Sobol' points require n to be a power of 2"
        ):
            begun.draw_base2(2)
