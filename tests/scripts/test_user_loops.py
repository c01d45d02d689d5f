"""Loops as users write them are followed, and are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import webtorch
from tests.scripts.following import scripts

real = pytest.importorskip("torch")

STEPS = 14
# What a loop is given: PyTorch, or what stands for it, and what draws tensors. It returns what it has read and made.
Loop = Callable[[Any, Callable[..., Any]], list[Any]]


def ran(loop: Loop, torch: Any) -> list[Any]:
    """Return what a loop gives, as numbers."""
    numbers = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return torch.from_numpy(numbers.standard_normal(shape).astype(np.float32))

    return [v.tolist() if hasattr(v, "tolist") else v for v in loop(torch, draw)]


def check(loop: Loop, least: int) -> None:
    """Check that a loop is PyTorch's, and that at least so many steps are followed."""
    expected = ran(loop, real)
    with scripts(False):
        plain = ran(loop, webtorch)
    with scripts(True) as follower:
        found = ran(loop, webtorch)
        counts, text = follower().counts, follower().account.text()
    for a, b, c in zip(found, plain, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-5)
    assert counts["followed"] >= least, text


def layers(torch: Any, draw: Callable[..., Any], *sizes: int) -> Any:
    """Return linear layers with a function between them."""
    nn, made = torch.nn, []
    for i, o in pairwise(sizes):
        layer = nn.Linear(i, o)
        with torch.no_grad():
            layer.weight.copy_(draw(o, i) * 0.3)
            layer.bias.zero_()
        made += [layer, nn.Tanh()]
    return nn.Sequential(*made[:-1])


def frozen_in_turns(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    F = torch.nn.functional
    g, d = layers(torch, draw, 3, 5, 4), layers(torch, draw, 4, 5, 1)
    of_g, of_d = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
    seen: list[Any] = []
    for step in range(STEPS):
        made = g(draw(6, 3))
        for p in d.parameters():
            p.requires_grad_(True)
        of_d.zero_grad()
        loss = (F.softplus(d(made.detach())) + F.softplus(-d(draw(6, 4)))).mean()
        loss.backward()
        of_d.step()
        for p in d.parameters():
            p.requires_grad = step == STEPS - 3
        of_g.zero_grad()
        loss = F.softplus(-d(made)).mean()
        loss.backward()
        of_g.step()
        seen.append(loss.item() if step % 2 else d[0].bias.requires_grad)
        if step >= STEPS - 3:
            seen += [p.grad.clone() for p in d.parameters()]
    return [*seen, *g.parameters(), *d.parameters()]


def frozen_then_left(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # A flag that has changed is as it was while calls are made again.
    w, b = draw(3, 2).requires_grad_(), draw(2).requires_grad_()
    seen: list[Any] = []
    for step in range(STEPS):
        out = draw(4, 3) @ w + b
        b.requires_grad_(False)
        more = (out * b).sum() + (w * b).square().sum()
        b.requires_grad_(True)
        if step in (9, STEPS - 1):
            # No script has this.
            more = more + (b.sin() * out).sum()
        more.backward()
        seen += [w.grad.clone(), b.grad.clone(), more.item()]
        w.grad = b.grad = None
        if step == 11:
            b.requires_grad_(False)
            out = draw(4, 3) @ w + b
            b.requires_grad_(True)
            seen += [out.requires_grad, (out * b).sum().item()]
    return seen


@pytest.mark.parametrize(("loop", "least"), [(frozen_in_turns, 18), (frozen_then_left, 6)])
def test_flags_that_change_in_each_step_are_followed(loop: Loop, least: int) -> None:
    check(loop, least)


def masked_words(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # A copy that shares its memory until it is written is compared while the other one is about to be written.
    F, seen = torch.nn.functional, []
    table, w = draw(5, 4), draw(4, 5).requires_grad_()
    optimizer = torch.optim.Adam([w], 0.01)
    for _ in range(STEPS):
        words = (draw(3, 4).abs() * 2).long().clamp(max=3)
        words.tolist()
        mask = draw(3, 4) < -0.5
        mask[:, 0] = True
        labels = words.clone()
        labels[~mask] = -100
        words = words.masked_fill(mask, 4)
        loss = F.cross_entropy((table[words] @ w).view(-1, 5), labels.view(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [*seen, w]


def attacked(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # What a step begins with has a graph that nobody needs.
    w, x, y = draw(3, 2), draw(4, 3), draw(4, 2)
    seen: list[Any] = []
    for _ in range(STEPS):
        x = x.detach()
        x.requires_grad = True
        loss = (x @ w - y).square().mean()
        loss.backward()
        x = torch.clamp(x + 0.1 * x.grad.data.sign(), -2, 2)
        with torch.no_grad():
            seen += [loss.item(), x.mean().item()]
    return [*seen, x]


@pytest.mark.parametrize(("loop", "least"), [(masked_words, 10), (attacked, 10)])
def test_what_need_not_be_looked_at_ends_no_script(loop: Loop, least: int) -> None:
    check(loop, least)


def sharpness_aware(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    F, model = torch.nn.functional, layers(torch, draw, 3, 5, 2)
    optimizer, kept, seen = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), {}, []
    for _ in range(STEPS):
        x, y = draw(6, 3), draw(6, 2)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                kept[p] = p.data.clone()
                p.add_(p.grad * (0.05 / norm))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            p.data = kept[p]
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    # They lie where the parameters do.
    return [*seen, *model.parameters(), *kept.values()]


def moved(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    w, b, shadow = draw(3, 2).requires_grad_(), draw(2).requires_grad_(), draw(3, 2)
    seen: list[Any] = []
    for step in range(2 * STEPS):
        late = step >= 2 * STEPS - 8
        kept = w.data
        loss = (draw(4, 3) @ w + b).square().mean()
        loss.backward()
        w.data = w.data - 0.1 * w.grad.data
        if late and step % 4 == 1:
            # A look in between; the rest has other memory.
            seen += [w.detach().clone(), w._version]
        new = (b.data * 0.9).clamp(-1, 1)
        b.data = new
        new.add_(0.01)
        w.data.mul_(0.99)
        with torch.no_grad():
            b += 0.5
        if late and step % 4 == 2:
            # No script has this.
            new.add_(b.detach().sin())
            seen += [new.clone(), b.detach().cos()]
        saved, w.data = w.data, shadow
        more = (w.detach() * 2).sum()
        w.data = saved
        if late and step % 4 == 3:
            try:
                w @ w
            except RuntimeError:
                seen.append(w.detach().clone())
        if late and step % 4 == 0:
            kept.mul_(2)
        w.grad = b.grad = None
        seen += [more.item(), kept, loss.item()]
    return [*seen, w, b, new, shadow, w._version, b._version]


def moved_under_a_graph(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    w, seen = draw(3, 2).requires_grad_(), []
    for step in range(STEPS):
        out = draw(4, 3) @ w.tanh()
        if step % 2:
            seen.append(out.sum().item())
        w.data = w.data * 0.9
        loss = (out * out).sum() + w.sum()
        if step % 3:
            seen.append(loss.item())
        loss.backward()
        w.data = w.data - 0.1 * w.grad
        seen.append(w.grad)
        w.grad = None
    return [*seen, w]


@pytest.mark.parametrize(
    ("loop", "least"), [(sharpness_aware, 9), (moved, 16), (moved_under_a_graph, 0)]
)
def test_data_that_is_set_is_followed(loop: Loop, least: int) -> None:
    check(loop, least)


def looked_at_afterwards(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # Figures of results whose graph the backward pass has used up, with gradients on.
    F, model = torch.nn.functional, layers(torch, draw, 3, 5, 2)
    optimizer, seen, kept = torch.optim.Adam(model.parameters(), 0.01), [], []
    for step in range(STEPS):
        out, y = model(draw(6, 3)), draw(6, 2)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        near = torch.sigmoid(out * 2)
        seen.append(((near > 0.5) == (y > 0)).float().mean().item())
        if step in (8, STEPS - 2):
            kept.append(near)
            try:
                near.sum().backward()
            except RuntimeError as error:
                seen.append("second time" in str(error))
        if step == STEPS - 1:
            w = near.sum() + model[0].weight.sum()
            seen += [w.item(), w.requires_grad]
    return [*seen, *kept, *model.parameters()]


def test_what_is_made_of_a_used_graph_is_followed() -> None:
    check(looked_at_afterwards, 16)


def seen_by_numpy(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    F, model = torch.nn.functional, layers(torch, draw, 3, 5, 2)
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.02), []
    inputs = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)
    targets = torch.from_numpy(inputs)[:, :2] * 0.5
    whole, weights = torch.from_numpy(inputs), np.ones(8, np.float32)
    scale = torch.from_numpy(weights)
    for step in range(2 * STEPS):
        x = torch.from_numpy(inputs[4 * (step % 2) :]) if step % 5 == 4 else whole
        out = model(x)
        if step in (18, 22):
            # What was computed before has the values of then; the backward pass sees those of now.
            inputs[:] = inputs[::-1].copy()
        loss = (
            F.mse_loss(out, targets[-len(x) :], reduction="none").sum(1) * scale[: len(x)]
        ).sum()
        if step in (9, 20):
            weights[:] = weights * 0.5
        more = whole[1].sum() + x.reshape(-1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 7 == 6:
            scale.mul_(1.25)
            torch.add(scale, 0.5, out=scale)
            scale[0] = 0.25
            part = whole.view(-1)
            part[2] += 0.125
            seen += [weights.sum(), inputs.sum()]
        seen += [loss.item(), more.item()]
    return [*seen, *model.parameters(), whole, scale]


def test_what_numpy_sees_is_followed() -> None:
    check(seen_by_numpy, 12)


def test_samples_that_coincide_make_no_program_each() -> None:
    numbers = np.random.default_rng(0)
    states = [numbers.standard_normal(3).astype(np.float32) for _ in range(30)]

    def batch(torch: Any) -> Callable[[Any], tuple[Any, Any, Any]]:
        kept = [torch.tensor(s) for s in states]

        def joined(places: Any) -> tuple[Any, Any, Any]:
            some = [kept[i] for i in places]
            later = [kept[i + 1] for i in places if i < 25]
            return torch.stack(some, 1) * 2, torch.cat(later) + 1, torch.cat([s[:2] for s in some])

        return joined

    ours, theirs = batch(webtorch), batch(real)
    for k in range(4):
        places = numbers.permutation(29)[:16] if k else range(16)
        for a, b in zip(ours(places), theirs(places), strict=True):
            assert a.tolist() == b.tolist()
    with scripts(False):
        found = ours(range(4, 20))
        found[0].tolist()
        device = webtorch.zeros(1)._storage.runtime
        before = device.counters.misses
        found = ours(numbers.permutation(25)[:16])
        found[0].tolist()
        assert device.counters.misses == before


def test_more_tensors_that_numpy_sees_than_copies_are_kept_of() -> None:
    def loop(torch: Any, draw: Callable[..., Any]) -> list[Any]:
        given = [draw(3) for _ in range(70)]
        return [(x * 2 + x).sum().item() for _ in range(2) for x in given]

    check(loop, 0)


def tutorial_gan(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # What the generator made is read about, and the other optimizer has written, before its graph is used.
    F = torch.nn.functional
    g, d = layers(torch, draw, 3, 5, 4), layers(torch, draw, 4, 5, 1)
    of_g, of_d = torch.optim.Adam(g.parameters(), 0.01), torch.optim.Adam(d.parameters(), 0.01)
    seen: list[Any] = []
    for _ in range(STEPS + 6):
        d.zero_grad()
        out = d(draw(6, 4))
        real_loss = F.softplus(-out).mean()
        real_loss.backward()
        seen.append(out.mean().item())
        fake = g(draw(6, 3))
        out = d(fake.detach())
        fake_loss = F.softplus(out).mean()
        fake_loss.backward()
        seen.append(out.mean().item())
        of_d.step()
        g.zero_grad()
        out = d(fake)
        loss = F.softplus(-out).mean()
        loss.backward()
        seen.append(out.mean().item())
        of_g.step()
        seen += [(real_loss + fake_loss).item(), loss.item()]
    return [*seen, *g.parameters(), *d.parameters()]


def padded(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # A step begins with what is made of numbers, of which the device is asked.
    w = draw(4, 4).requires_grad_()
    optimizer = torch.optim.SGD([w], 0.1)
    seen: list[Any] = []
    for _ in range(STEPS):
        mask = torch.zeros(3, 5, dtype=torch.bool)
        mask[0, 3:] = True
        bias = torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))
        x = draw(3, 5, 4) @ w
        loss = ((bias.softmax(-1).unsqueeze(1) @ x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [*seen, w]


def charted(torch: Any, draw: Callable[..., Any]) -> list[Any]:
    # What a step gave is an array after it; one of the weights is kept in the last steps, and sees their writes.
    model = layers(torch, draw, 4, 5, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    seen: list[Any] = []
    weight = None
    for step in range(STEPS + 4):
        x = draw(6, 4)
        out = model(x)
        loss = (out - x[:, :2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += [out.detach().numpy().copy(), float(loss.detach().numpy())]
        seen.append(float(model[0].weight.detach().numpy().mean()))
        if weight is not None:
            seen.append(weight.copy())
        if step == STEPS:
            weight = model[2].weight.detach().numpy()
    return [*seen, *model.parameters()]


@pytest.mark.parametrize(
    ("loop", "least"), [(tutorial_gan, 60), (padded, 10), (charted, STEPS - 4)]
)
def test_steps_that_begin_or_go_on_in_other_ways_are_followed(loop: Loop, least: int) -> None:
    check(loop, least)
