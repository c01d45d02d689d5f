"""Training steps that are written by hand, without an optimizer, follow scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webtorch as torch
from tests.scripts.following import scripts
from webtorch import nn

STEPS = 16
# What a loop is given: two parameters, inputs and targets; it returns what it read.
Loop = Callable[[Any, Any, Any, Any], list[float]]


def loss_of(w: Any, b: Any, x: Any, y: Any) -> Any:
    return ((x @ w + b - y) ** 2).mean()


def zeroed(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad.zero_()
    return losses


def forgotten(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad = None
    return losses


def by_data(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        loss.backward()
        for p in (w, b):
            p.data -= 0.1 * p.grad.data
            p.data.add_(p.grad, alpha=-0.01)
            p.grad.data.zero_()
    # Writes by way of `data` are not counted.
    losses.append(w._version + b._version)
    return losses


def leaves(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    """Each step begins with new leaves, and differentiates for its input as well."""
    losses = []
    for _ in range(STEPS):
        x = x.detach().clone().requires_grad_()
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        loss.backward()
        losses.append(x.grad.abs().sum().item())
        w = (w - 0.1 * w.grad).detach().requires_grad_()
        b = (b - 0.1 * b.grad).detach().requires_grad_()
    return losses


def twice(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    """The loss is that of parameters that have made a step, through which it is differentiated."""
    losses = []
    for _ in range(STEPS):
        inner = loss_of(w, b, x, y)
        (g,) = torch.autograd.grad(inner, w, create_graph=True)
        loss = loss_of(w - 0.1 * g, b, x, y)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad = None
    return losses


def accumulated(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        for rows in (slice(0, 4), slice(4, 8)):
            loss = loss_of(w, b, x[rows], y[rows])
            losses.append(loss.item())
            loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                del p.grad
    return losses


def returned(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    losses = []
    for _ in range(STEPS):
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, [w, b])
        with torch.no_grad():
            for p, g in zip((w, b), gradients, strict=True):
                p -= 0.1 * g
    return losses


def kept_gradient(w: Any, b: Any, x: Any, y: Any) -> list[float]:
    """Gradients that are set to others after a backward pass."""
    losses = []
    before = torch.zeros_like(w)
    for _ in range(STEPS):
        loss = loss_of(w, b, x, y)
        losses.append(loss.item())
        loss.backward()
        w.grad = w.grad * 0.5 + before * 0.5
        before = w.grad
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
            nn.utils.clip_grad_norm_([w, b], 1.0)
        w.grad = b.grad = None
    return losses


LOOPS = [zeroed, forgotten, by_data, leaves, twice, accumulated, returned, kept_gradient]


def started() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(3)
    w, b = torch.randn(5, 3), torch.zeros(3)
    return w.requires_grad_(), b.requires_grad_(), torch.randn(8, 5), torch.randn(8, 3)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_without_an_optimizer_follows(loop: Loop) -> None:
    with scripts(False):
        plain = started()
        expected = loop(*plain)
    with scripts(True) as follower:
        given = started()
        assert loop(*given) == pytest.approx(expected, rel=1e-5)
        counts = follower().counts
    assert counts["followed"] >= STEPS, counts
    for p, q in zip(given, plain, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("last", range(10, 14))
def test_gradients_are_what_was_set_where_a_script_is_left(last: int) -> None:
    found = []
    for on in (False, True):
        with scripts(on):
            w, b, x, y = started()
            seen: list[Any] = []
            for step in range(last + 1):
                loss = loss_of(w, b, x, y)
                seen.append(loss.item())
                loss.backward()
                w.grad = w.grad * 0.5
                with torch.no_grad():
                    w -= 0.1 * w.grad
                if step == last:
                    # No script has this.
                    with torch.no_grad():
                        w.mul_(w.grad.sin())
                    seen += [w.grad.tolist(), b.grad.tolist()]
                w.grad = b.grad = None
                if step == last:
                    seen.append((w * 2).sum().item())
                    assert w.grad is None
                    assert b.grad is None
            found.append(seen)
    for p, q in zip(*found, strict=True):
        assert (
            p == pytest.approx(q, rel=1e-5)
            if isinstance(p, float)
            else torch.tensor(p).allclose(torch.tensor(q))
        )


def test_a_graph_that_nobody_has_needed_is_there_when_it_is_looked_at() -> None:
    found = []
    for on in (False, True):
        with scripts(on) as follower:
            w, b, x, y = started()
            kept, gradients = [], []
            for _ in range(STEPS):
                loss = loss_of(w, b, x, y) + (w * w).sum()
                kept.append(loss)
                loss.item()
            if on:
                assert follower().counts["followed"] >= STEPS - 4
                assert follower().asides
            for loss in kept[-3:]:
                gradients.append(torch.autograd.grad(loss, [w, b])[0].tolist())
            with torch.no_grad():
                w.mul_(2.0)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                kept[-4].backward()
            del kept, loss
            loss_of(w, b, x, y).item()
            loss_of(w, b, x, y).item()
            assert not follower().asides
            found.append(gradients)
    assert found[0] == found[1]


def test_what_is_left_of_a_graph_can_be_differentiated() -> None:
    with scripts(True) as follower:
        w, b, x, y = started()
        for _ in range(12):
            out = x @ w + b
            loss = ((out - y) ** 2).mean()
            loss.backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
            w.grad = b.grad = None
            loss.item()
        assert follower().counts["followed"] >= 4
        # The sum saves nothing: its way to one of its operands is still there.
        (g,) = torch.autograd.grad(out.sum(), b, retain_graph=True)
        assert g.tolist() == [8.0] * 3
        assert out.grad_fn.name() == "AddBackward0"
        assert out.grad_fn.next_functions[1][0].variable is b
        with pytest.raises(RuntimeError, match="a second time"):
            torch.autograd.grad(out.sum(), w)
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()


def test_backward_passes_of_captured_functions_compute_nothing() -> None:
    def gradient(w: Any) -> Any:
        (g,) = torch.autograd.grad((w * w).sum(), w)
        return g + 1

    with scripts(True):
        w, *_ = started()
        for _ in range(3):
            (w * 2).sum().item()
        for _ in range(6):
            # Each is captured anew.
            found = torch.compile(gradient)(w)
            torch.testing.assert_close(found, 2 * w.detach() + 1)


def test_a_backward_pass_that_fails_leaves_nothing() -> None:
    """What it was given has no number: the next pass has the same one wherever it is left."""

    def loop() -> list[float]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        optimizer, seen = torch.optim.SGD(layer.parameters(), lr=0.1), []
        for step in range(6):
            optimizer.zero_grad()
            for _ in range(2):
                loss = layer(torch.ones(4, 3)).square().mean()
                loss.backward()
                if step % 3 == 1:
                    with pytest.raises(RuntimeError):
                        loss.backward()
            if step == 5:
                assert "tensor" in str(loss)
            optimizer.step()
            seen.append(layer.weight.sum().detach())
        return [t.item() for t in seen]

    with scripts(False):
        plain = loop()
    with scripts(True):
        assert loop() == pytest.approx(plain)
