"""The memory layout of new tensors: strides as PyTorch gives them, for random layouts of the operands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

Maker = Callable[[Any], Any]


def layout(rng: random.Random, sizes: list[int]) -> Maker:
    """Return a maker of a tensor of these sizes whose dims lie in some order, maybe with gaps or expanded."""
    rank = len(sizes)
    order = list(range(rank))
    if rng.random() < 0.7:
        rng.shuffle(order)
    apart = [rng.random() < 0.15 for _ in order]
    once = [rng.random() < 0.1 for _ in order]

    def make(t: Any) -> Any:
        memory = [1 if once[d] else sizes[d] * (2 if apart[d] else 1) for d in order]
        count = 1
        for size in memory:
            count *= size
        x = t.arange(float(count)).reshape(memory)
        x = x[tuple(slice(None, None, 2 if apart[d] and not once[d] else None) for d in order)]
        return x.permute([order.index(d) for d in range(rank)]).expand(sizes)

    return make


ONE: list[Callable[[Any, Any], Any]] = [
    lambda t, x: x.neg(),
    lambda t, x: x + 1,
    lambda t, x: x.clone(),
    lambda t, x: x.to(t.float64),
    lambda t, x: x.gt(1),
    lambda t, x: t.zeros_like(x),
    lambda t, x: t.full_like(x, 2),
    lambda t, x: x.contiguous(),
    lambda t, x: t.ones_like(x, memory_format=t.contiguous_format),
]
# What PyTorch makes row-major, and what it makes in the order of its operand; `d` is a dim.
ALONG: list[Callable[[Any, Any, int], Any]] = [
    lambda t, x, d: x.softmax(d),
    lambda t, x, d: x.log_softmax(d),
    lambda t, x, d: t.nn.functional.layer_norm(x, x.shape[d:]),
    lambda t, x, d: t.nn.functional.rms_norm(x, x.shape[d:]),
    lambda t, x, d: x.masked_fill(x > 1, 0),
    lambda t, x, d: x.masked_scatter(x > 1, t.zeros(x.numel())),
    lambda t, x, d: x.roll(1, d),
    lambda t, x, d: x.flip(d),
    lambda t, x, d: x.argsort(stable=True, dim=d),
    lambda t, x, d: x.sort(stable=True, dim=d)[0],
    lambda t, x, d: x.cumsum(d),
    lambda t, x, d: x.index_select(d, t.tensor([0, 0])),
    lambda t, x, d: x.index_fill(d, t.tensor([0]), 1),
    lambda t, x, d: x[(slice(None),) * d + (t.tensor([0, -1]),)],
    lambda t, x, d: (
        x[(t.tensor([[0], [0]]),) + (slice(None),) * (d - 1) + (t.tensor([0, -1]),)]
        if d
        else x[x[..., 0] >= 0]
    ),
    lambda t, x, d: t.cat([x, x], d),
    lambda t, x, d: t.stack([x, x], d),
    lambda t, x, d: t.hstack([x, x]),
    lambda t, x, d: x.tril() if x.dim() > 1 else x + 0,
    lambda t, x, d: x.renorm(2, d, 1.0) if x.dim() > 1 else x + 0,
    lambda t, x, d: (
        t.nn.functional.batch_norm(x, t.zeros(x.shape[1]), t.ones(x.shape[1]))
        if x.dim() > 1
        else x + 0
    ),
    lambda t, x, d: t.nn.functional.channel_shuffle(x, 1) if x.dim() > 2 else x + 0,
]
TWO: list[Callable[[Any, Any, Any], Any]] = [
    lambda t, x, y: x + y,
    lambda t, x, y: x * y * 2,
    lambda t, x, y: t.maximum(y, x),
    lambda t, x, y: x > y,
    lambda t, x, y: t.where(x > 1, x, y),
    lambda t, x, y: t.lerp(x, y, 0.5),
]


def strides(x: Any) -> list[int]:
    """Return the strides of the dims that have one: those of dims of one element say nothing."""
    return [st for n, st in zip(x.shape, x.stride(), strict=True) if n > 1]


def check(ours: Any, theirs: Any) -> None:
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert strides(ours) == strides(theirs)
    assert ours.is_contiguous() == theirs.is_contiguous()
    torch.testing.assert_close(torch.tensor(ours.tolist()).to(theirs.dtype), theirs)


@pytest.mark.one_in(2)
@pytest.mark.covers("A29")
@pytest.mark.parametrize("seed", range(12))
def test_results_lie_as_pytorchs_do(seed: int) -> None:
    rng = random.Random(seed)
    with webtorch.device("cpu"):
        for _ in range(6):
            sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 4))]
            make = layout(rng, sizes)
            for one in ONE:
                check(one(webtorch, make(webtorch)), one(torch, make(torch)))
            # Which of two orders a dim of one element is in differs between PyTorch's own operators.
            make, dim = layout(rng, [max(s, 2) for s in sizes]), rng.randrange(len(sizes))
            for along in ALONG:
                check(along(webtorch, make(webtorch), dim), along(torch, make(torch), dim))
            lead = rng.randrange(len(sizes)) if rng.random() < 0.3 else 0
            other = layout(rng, [1 if rng.random() < 0.15 else s for s in sizes[lead:]])
            for two in TWO:
                check(
                    two(webtorch, make(webtorch), other(webtorch)),
                    two(torch, make(torch), other(torch)),
                )


def facts(t: Any, x: Any) -> Any:
    return (
        x.stride(),
        x.is_contiguous(),
        x.is_contiguous(memory_format=t.channels_last) if x.dim() == 4 else None,
        x.tolist(),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda t, x: x.contiguous(memory_format=t.channels_last),
        lambda t, x: x.to(memory_format=t.channels_last),
        lambda t, x: x.to(t.float64, memory_format=t.channels_last),
        lambda t, x: x.clone(memory_format=t.channels_last),
        lambda t, x: x.to(memory_format=t.channels_last).relu() * 2,
        lambda t, x: x.to(memory_format=t.channels_last) + x.mean((2, 3), keepdim=True),
        lambda t, x: x.to(memory_format=t.channels_last).contiguous(),
        lambda t, x: x.to(memory_format=t.channels_last).to(memory_format=t.contiguous_format),
        lambda t, x: x.to(memory_format=t.channels_last).to(t.float64),
        lambda t, x: t.zeros_like(x.to(memory_format=t.channels_last)),
        lambda t, x: t.zeros_like(x, memory_format=t.channels_last),
        lambda t, x: t.empty(2, 3, 4, 5, memory_format=t.channels_last).fill_(1),
        lambda t, x: x.to(memory_format=t.channels_last).to(memory_format=t.preserve_format),
        lambda t, x: x.to(memory_format=t.channels_last).add_(1),
        lambda t, x: x.to(memory_format=t.channels_last).softmax(1),
        lambda t, x: x.to(memory_format=t.channels_last)[:, t.tensor([2, 0])],
        lambda t, x: t.stack([x.to(memory_format=t.channels_last)] * 2, 1)[0],
        lambda t, x: t.nn.functional.instance_norm(x.to(memory_format=t.channels_last)) * 0,
    ],
)
def test_channels_last(make: Callable[[Any, Any], Any]) -> None:
    def run(t: Any) -> Any:
        return facts(t, make(t, t.arange(120.0).reshape(2, 3, 4, 5)))

    with webtorch.device("cpu"):
        assert run(webtorch) == run(torch)


def test_a_result_that_is_not_row_major_has_no_flat_view() -> None:
    for t in (torch, webtorch):
        y = t.ones(2, 3).t() + 1
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            y.view(-1)
        assert y.reshape(-1).tolist() == [2.0] * 6
        y.add_(1)[0, 1] = 7
        assert y.tolist() == [[3.0, 7.0], [3.0, 3.0], [3.0, 3.0]]


def test_gradients_through_other_layouts() -> None:
    def run(t: Any) -> Any:
        x = (t.arange(6.0) / 6).reshape(2, 3).requires_grad_()
        y = (x.t().exp() * t.arange(6.0).reshape(3, 2)).sin()
        (y * y).sum().backward()
        return y.detach().tolist(), x.grad.tolist(), y.stride()

    with webtorch.device("cpu"):
        ours, theirs = run(webtorch), run(torch)
    assert ours[2] == theirs[2]
    torch.testing.assert_close(torch.tensor(ours[0]), torch.tensor(theirs[0]))
    torch.testing.assert_close(torch.tensor(ours[1]), torch.tensor(theirs[1]))


GRADIENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "conv2d": lambda t, x, w: t.nn.functional.conv2d(x, w),
    "conv_transpose2d": lambda t, x, w: t.nn.functional.conv_transpose2d(x, w),
    "avg_pool2d": lambda t, x, w: t.nn.functional.avg_pool2d(x, 2) * w.sum(),
    "max_pool2d": lambda t, x, w: t.nn.functional.max_pool2d(x, 2) * w.sum(),
    "group_norm": lambda t, x, w: t.nn.functional.group_norm(x, 2) * w.sum(),
    "batch_norm": lambda t, x, w: (
        t.nn.functional.batch_norm(x, None, None, training=True) * w.sum()
    ),
    "interpolate": lambda t, x, w: t.nn.functional.interpolate(x, scale_factor=2) * w.sum(),
    "conv2d of exp": lambda t, x, w: t.nn.functional.conv2d(x.exp(), w),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("inner", ["both", "images", "weight", "none"])
def test_gradients_of_images_lie_as_pytorchs_do(name: str, inner: str) -> None:
    """Channels lie innermost where they do in an operand of a layer."""
    found = []
    for t in (torch, webtorch):
        x = t.arange(288.0).reshape(2, 4, 6, 6).sin()
        w = t.arange(144.0).reshape(4, 4, 3, 3).cos()
        if inner in ("both", "images"):
            x = x.to(memory_format=t.channels_last)
        if inner in ("both", "weight"):
            w = w.to(memory_format=t.channels_last)
        x.requires_grad_(), w.requires_grad_()
        y = GRADIENTS[name](t, x, w)
        g, h = t.autograd.grad((y * y).sum(), (x, w))
        sizes = ["conv" in name and h.stride(), g.stride()]
        found.append((sizes, g))
    assert found[0][0] == found[1][0]
    assert found[1][1].allclose(webtorch.tensor(found[0][1].tolist()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(2, 1, 4, 4), (2, 8, 1, 1), (1, 1, 1, 1), (2, 3, 4, 4)])
def test_a_memory_format_is_what_the_strides_say(sizes: tuple[int, ...]) -> None:
    """Also where there is one channel, or one element for each."""
    found = []
    for t in (torch, webtorch):
        x = t.arange(128.0)[: t.Size(sizes).numel()].reshape(sizes)
        inner = x.to(memory_format=t.channels_last)
        kernel = t.ones(2, sizes[1], 1, 1)
        made = [
            inner, inner.contiguous(), inner.to(memory_format=t.contiguous_format), t.empty_like(inner),
            inner.to(t.float64), x.to(t.float64, memory_format=t.channels_last), inner + 1,
            t.nn.functional.conv2d(inner, kernel), x.transpose(2, 3).to(memory_format=t.contiguous_format),
        ]  # fmt: skip
        same = [inner is x, inner.to(memory_format=t.channels_last) is inner]
        found.append(
            ([y.stride() for y in made], same, inner.view(-1).tolist() if sizes[1] == 1 else 0)
        )
    assert found[0] == found[1]
