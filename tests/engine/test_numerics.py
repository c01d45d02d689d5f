"""check_numerics names the operation in which NaN or infinity began."""

from __future__ import annotations

import re
from typing import Any

import pytest

import webtorch
from webtorch.debug import check_numerics
from webtorch.errors import NonFiniteError
from webtorch.runtime.watch import watch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _message(run: Any, **options: Any) -> str:
    with pytest.raises(NonFiniteError) as error, check_numerics(**options):
        run()
    assert watch.before is None
    return str(error.value)


@pytest.mark.covers("P9")
def test_the_first_operation_and_its_line_are_named(device: str) -> None:
    x = webtorch.tensor([1.0, -2.0, 4.0], device=device)

    def run() -> Any:
        y = x * 2
        z = y.log()  # here
        return (z + 1).sum().item()

    text = _message(run)
    assert re.search(r"check_numerics: log gave 1 nan among 3 numbers \(torch.float32, 3\)", text)
    assert re.search(r"test_numerics\.py:\d+: z = y\.log\(\)  # here\.", text)
    assert "Its inputs were -4 to 8" in text


@pytest.mark.covers("P9")
def test_a_product_that_overflows(device: str) -> None:
    a = webtorch.full((2, 3), 1e30, device=device)

    def run() -> Any:
        return ((a @ a.t()) * 0.0).tolist()  # infinity times zero

    assert "mul gave 4 nan among 4 numbers" in _message(run)
    assert re.search(
        r"matmul gave 4 inf among 4 numbers .*# infinity times zero", _message(run, inf=True)
    )
    assert "matmul" in _message(run, nan=False, inf=True)


def test_masks_of_minus_infinity_are_left_alone(device: str) -> None:
    scores = webtorch.randn(3, 3, device=device)
    mask = webtorch.ones(3, 3, device=device).tril() == 0
    with check_numerics():
        out = scores.masked_fill(mask, float("-inf")).softmax(-1)
        assert out.sum().item() == pytest.approx(3.0)


@pytest.mark.covers("P9")
def test_a_gradient(device: str) -> None:
    x = webtorch.tensor([0.0, 1.0], device=device, requires_grad=True)

    def run() -> None:
        (x.sqrt() * 0).sum().backward()
        assert x.grad is not None
        x.grad.tolist()

    text = _message(run)
    assert "gave 1 nan" in text and "backward()" in text


def test_what_is_pending_when_the_block_ends_is_checked() -> None:
    x = webtorch.tensor([-1.0])
    with pytest.raises(NonFiniteError, match="sqrt"), check_numerics():
        kept = x.sqrt()
    # Outside it may be looked at.
    assert kept.isnan().item()


def test_what_was_pending_before_is_not_blamed_on_the_block() -> None:
    before = webtorch.tensor([-1.0]).sqrt()
    with check_numerics():
        assert webtorch.ones(2).sum().item() == 2.0
    text = _message(lambda: (before + 1).item())
    assert "in data that was computed before the check began: torch.float32 of shape (1,)" in text


def test_a_training_step_that_diverges_names_the_loss() -> None:
    layer = webtorch.nn.Linear(4, 3)
    optimizer = webtorch.optim.SGD(layer.parameters(), lr=0.1)
    x = webtorch.randn(5, 4)

    @webtorch.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = layer(x).log().mean()  # log of negative numbers
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(x), step(x)
    layer.load_state_dict({"weight": webtorch.ones(3, 4), "bias": webtorch.zeros(3)})
    with webtorch.no_grad():
        x.abs_()
        x[2] *= -1.0
    # The compiled function runs as it is written while the check is on.
    text = _message(lambda: step(x))
    assert "log gave 3 nan among 15 numbers" in text and "# log of negative numbers" in text


def test_values_are_the_same_with_and_without(device: str) -> None:
    def run() -> Any:
        webtorch.manual_seed(5)
        x = webtorch.rand(7, 5, device=device)
        x[2:4] *= 3.0
        x.add_(1.0)
        return (x.cumsum(0) @ x.t()).softmax(-1).tolist()

    expected = run()
    with check_numerics(inf=True):
        assert run() == expected


def test_a_decorator_and_options() -> None:
    @check_numerics()
    def bad() -> Any:
        return webtorch.tensor([-1.0]).sqrt().item()

    for _ in range(2):
        with pytest.raises(NonFiniteError):
            bad()
    assert watch.before is None
    with pytest.raises(ValueError, match="nothing to look for"):
        check_numerics(nan=False)
    with pytest.raises(FloatingPointError):
        bad()
