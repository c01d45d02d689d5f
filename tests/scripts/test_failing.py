"""A bad index in a step, or a matrix without an inverse, loses nothing: all is left as PyTorch leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webtorch
from tests.scripts.following import scripts

real = pytest.importorskip("torch")

GOOD, BAD = [0, 2, 1], [0, 1, 7]

# What a step computes of a table's rows (three of five numbers) and of places.
LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "embedding": lambda torch, w, i: torch.nn.functional.embedding(i, w).square().sum(),
    "cross_entropy": lambda torch, w, i: torch.nn.functional.cross_entropy(w[:3], i),
    "nll_loss": lambda torch, w, i: torch.nn.functional.nll_loss(w[:3].log_softmax(-1), i),
    "gather": lambda torch, w, i: w[:3].gather(1, i[:, None]).square().sum(),
    "index_select": lambda torch, w, i: w.index_select(1, i).square().sum(),
    "take": lambda torch, w, i: w.take(i * 4).square().sum(),
    "one_hot": lambda torch, w, i: (w[:3] * torch.nn.functional.one_hot(i, 5)).square().sum(),
    "subscript": lambda torch, w, i: w[i, 1:].square().sum(),
    "computed": lambda torch, w, i: w[(i * 2 + 1) // 2].square().sum(),
    "beside": lambda torch, w, i: w.square().sum() + 0 * w.detach()[i].sum(),
    "inv": lambda torch, w, i: torch.linalg.inv(
        torch.eye(3) * (i < 5) + 0 * w[:3, :3]
    ).sum() + w.square().sum(),
}  # fmt: skip


def _trained(torch: Any, name: str, rule: str, before: int, reads: bool) -> tuple[list[Any], int]:
    """Train with bad batches that are passed over; return what is left, and how many were."""
    w = torch.nn.Parameter(torch.arange(25.0).reshape(5, 5) / 25)
    options = {"momentum": 0.9} if rule == "SGD" else {}
    optimizer = getattr(torch.optim, rule)([w], lr=0.05, **options)
    failed = 0
    found: list[Any] = []
    for n in range(before + 4):
        places = torch.tensor(BAD if n in (before, before + 2) else GOOD)
        try:
            loss = LOSSES[name](torch, w, places)
            if reads:
                found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except (IndexError, RuntimeError):
            failed += 1
            found += [
                float(t)
                for state in optimizer.state.values()
                for t in state.values()
                if t is not None and t.ndim == 0
            ]
            found.append(len(optimizer.state))
        found.append(w.detach().sum().item())
    state = [
        t.tolist() for state in optimizer.state.values() for t in state.values() if t is not None
    ]
    return [found, w.tolist(), state], failed


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    ("on", "before", "reads", "rule"),
    [
        (False, 3, False, "SGD"),
        (False, 0, False, "Adam"),
        (True, 8, False, "Adam"),
        (True, 8, True, "SGD"),
    ],
)
def test_a_step_that_fails_changes_nothing(
    name: str, on: bool, before: int, reads: bool, rule: str
) -> None:
    with scripts(on):
        found = _trained(webtorch, name, rule, before, reads)
    expected = _trained(real, name, rule, before, reads)
    assert found[1] == expected[1] == 2
    webtorch.testing.assert_close(_flat(found[0]), _flat(expected[0]), rtol=1e-4, atol=1e-5)


def test_what_a_failed_step_had_promised_raises_where_it_is_looked_at() -> None:
    w = webtorch.nn.Parameter(webtorch.ones(5, 3))
    optimizer = webtorch.optim.Adam([w], lr=0.1)

    def step(places: list[int]) -> Any:
        loss = webtorch.nn.functional.cross_entropy(w, webtorch.tensor(places))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with scripts(True) as follower:
        for _ in range(8):
            step([0, 1, 2, 0, 1]).item()
        assert follower().counts["followed"] > 4
        kept: list[Any] = []
        versions = w._version
        with pytest.raises(IndexError, match="out of bounds"):
            kept.append(step([0, 1, 2, 0, 9]))
        assert w._version == versions and not kept
        values = [step([0, 1, 2, 0, 1]).item() for _ in range(8)]
        assert values == sorted(values, reverse=True)


def test_gradients_that_were_there_stay_where_the_next_pass_fails() -> None:
    def trained(torch: Any) -> list[Any]:
        w = torch.nn.Parameter(torch.arange(15.0).reshape(5, 3) / 15)
        optimizer = torch.optim.SGD([w], lr=0.1)
        found = []
        for n in range(12):
            optimizer.zero_grad()
            for places in ([0, 1], [2, 9 if n > 8 else 1]):
                try:
                    torch.nn.functional.embedding(torch.tensor(places), w).square().sum().backward()
                    if places[0]:
                        optimizer.step()
                except IndexError:
                    found.append(w.grad.tolist())
                    optimizer.step()
        return [found, w.tolist()]

    with scripts(True):
        found = trained(webtorch)
    webtorch.testing.assert_close(_flat(found), _flat(trained(real)))


def _flat(values: Any) -> list[float]:
    if isinstance(values, list):
        return [x for value in values for x in _flat(value)]
    return [float(values)]
