"""Strides of results: as PyTorch's CPU gives them, whatever order the values have in the device's memory."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from webtorch.pytorch import lent
from webtorch.pytorch.device import memory_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.pytorch.databases import formats, report

LAST = torch.channels_last


def _same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.is_webgpu
    assert ours.shape == theirs.shape
    moot = formats.is_moot(theirs.shape, ours.stride(), theirs.stride())
    assert moot or ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)


def _is_laid(x: torch.Tensor) -> bool:
    return memory_of(x).laid is not None


def _some_view(x: torch.Tensor, choose: random.Random) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a view that PyTorch has of `x`."""
    d = choose.randrange(x.dim())
    kind = choose.choice(("permute", "slice", "select", "unsqueeze", "flatten", "split", "expand"))
    if kind == "permute":
        order = choose.sample(range(x.dim()), x.dim())
        return lambda t: t.permute(order)
    if kind == "slice" and x.shape[d] > 1:
        start, step = choose.randrange(x.shape[d]), choose.choice((1, 1, 2))
        key = (slice(None),) * d + (slice(start, None, step),)
        return lambda t: t[key]
    if kind == "select" and x.dim() > 2:
        place = choose.randrange(x.shape[d])
        return lambda t: t.select(d, place)
    if kind == "flatten" and d:
        shape = (*x.shape[: d - 1], x.shape[d - 1] * x.shape[d], *x.shape[d + 1 :])
        try:
            x.view(shape)
        except RuntimeError:
            return lambda t: t.unsqueeze(d)
        return lambda t: t.view(shape)
    if kind == "split" and x.shape[d] % 2 == 0:
        return lambda t: t.unflatten(d, (2, -1))
    if kind == "expand" and x.dim() < 6:
        return lambda t: t.unsqueeze(d).expand(*t.shape[:d], 2, *t.shape[d:])
    return lambda t: t.unsqueeze(d)


# Every view is a program of its own.
@pytest.mark.filterwarnings("ignore::webtorch.errors.CacheChurnWarning")
@pytest.mark.parametrize("seed", range(8))
def test_views_of_values_that_lie_in_another_order(webgpu: str, seed: int) -> None:
    choose = random.Random(seed)
    rank = choose.choice((2, 3, 4, 5))
    shape = [choose.choice((1, 2, 3, 4, 6)) for _ in range(rank)]
    order = choose.sample(range(rank), rank)
    values = torch.randn(shape)
    base = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(rank)])
    for _ in range(6):
        base.copy_(values)
        ours = torch.empty_strided(shape, base.stride(), device=webgpu).copy_(values.to(webgpu))
        assert ours.is_contiguous() or _is_laid(ours)
        x, y, written = base, ours, True
        for _ in range(choose.randrange(1, 6)):
            view = _some_view(x, choose)
            x, y = view(x), view(y)
            written = written and 0 not in x.stride()
        _same(y, x)
        if written:
            x.mul_(2)
            y.mul_(2)
            x[..., 0] = 7
            y[..., 0] = 7
            _same(ours, base)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_view_may_go_on_where_a_dim_ends(webgpu: str, count: int) -> None:
    values = torch.randn(2, 3)
    theirs = torch.empty_strided((2, 3), (1, 2)).copy_(values)
    ours = torch.empty_strided((2, 3), (1, 2), device=webgpu).copy_(values.to(webgpu))
    assert _is_laid(ours)
    _same(ours.as_strided((count,), (1,)), theirs.as_strided((count,), (1,)))


def test_nothing_lies_in_another_order(webgpu: str) -> None:
    x = torch.randn(4, 3, 2, 2).permute(1, 2, 3, 0)
    for d in range(4):
        # Empty slices have strides as if they were none.
        ours, theirs = (t.narrow(d, 1, 0) * 2 + 1 for t in (x.to(webgpu), x))
        _same(ours.flip(0).relu(), theirs.flip(0).relu())
        assert ours.sum().item() == 0.0


_LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "conv": lambda: torch.nn.Conv2d(6, 4, 3, padding=1),
    "depthwise": lambda: torch.nn.Conv2d(6, 6, 3, groups=6),
    "pointwise": lambda: torch.nn.Conv2d(6, 8, 1),
    "transposed": lambda: torch.nn.ConvTranspose2d(6, 4, 3, stride=2),
    "batch_norm": lambda: torch.nn.BatchNorm2d(6),
    "evaluated": lambda: torch.nn.BatchNorm2d(6).eval(),
    "group_norm": lambda: torch.nn.GroupNorm(2, 6),
    "max_pool": lambda: torch.nn.MaxPool2d(2),
    "avg_pool": lambda: torch.nn.AvgPool2d(2),
    "adaptive": lambda: torch.nn.AdaptiveAvgPool2d(3),
    "nearest": lambda: torch.nn.Upsample(scale_factor=2),
    "bilinear": lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"),
    "zeros": lambda: torch.nn.ZeroPad2d(1),
    "reflected": lambda: torch.nn.ReflectionPad2d(1),
    "repeated": lambda: torch.nn.ReplicationPad2d(1),
    "shuffled": lambda: torch.nn.Sequential(torch.nn.Conv2d(6, 8, 1), torch.nn.PixelShuffle(2)),
    "gelu": torch.nn.GELU,
    "normalized": lambda: torch.nn.LayerNorm([8, 8]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", _LAYERS)
def test_images_keep_channels_last(webgpu: str, name: str) -> None:
    layer = _LAYERS[name]()
    x = torch.randn(2, 6, 8, 8).to(memory_format=LAST)
    for module_format in (torch.contiguous_format, LAST):
        results = []
        for where in ("cpu", webgpu):
            m = copy.deepcopy(layer).to(where).to(memory_format=module_format)
            given = x.detach().to(where).requires_grad_()
            assert given.stride() == x.stride()
            y = m(given)
            y.square().sum().backward()
            results.append((y, given.grad, *[p.grad for p in m.parameters()]))
        for theirs, ours in zip(*results, strict=True):
            _same(ours, theirs)


def test_a_network_in_channels_last_moves_nothing(webgpu: str) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 3),
    )  # fmt: skip
    x = torch.randn(2, 3, 12, 12)
    expected = model.to(memory_format=LAST)(x.to(memory_format=LAST))
    y = model.to(webgpu)(x.to(webgpu).to(memory_format=LAST))
    assert y.is_contiguous(memory_format=LAST)
    assert _is_laid(y)
    assert all(_is_laid(p) for p in model.parameters() if p.dim() == 4)
    _same(y, expected)


def test_cat_takes_the_order_that_all_operands_have(webgpu: str) -> None:
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 2, 4, 5).to(memory_format=LAST)
    for pair in ((a, b), (b, a), (a.to(memory_format=LAST), b)):
        _same(torch.cat([t.to(webgpu) for t in pair], 1), torch.cat(pair, 1))


def test_what_a_view_of_a_result_may_be(webgpu: str) -> None:
    x = torch.randn(2, 3, 6, 6).to(memory_format=LAST)
    w = torch.randn(4, 3, 3, 3)
    theirs, ours = F.conv2d(x, w), F.conv2d(x.to(webgpu), w.to(webgpu))
    for y in (theirs, ours):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            y.view(2, -1)
    _same(ours.permute(0, 2, 3, 1).view(2, -1), theirs.permute(0, 2, 3, 1).view(2, -1))
    _same(ours.flatten(2).transpose(1, 2), theirs.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST])
def test_a_step_of_training_in_either_order(webgpu: str, memory_format: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=memory_format)
    x = torch.randn(2, 3, 8, 8)
    states = []
    for where in ("cpu", webgpu):
        m = copy.deepcopy(model).to(where)
        optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            m(x.to(where).to(memory_format=memory_format)).square().mean().backward()
            optimizer.step()
        states.append(m.state_dict())
        for p in m.parameters():
            assert p.grad is not None
            assert p.grad.stride() == p.stride()
    for k, theirs in states[0].items():
        _same(states[1][k], theirs)


def test_compiled_graphs_hold_the_strides_that_eager_results_have(webgpu: str) -> None:
    w = torch.randn(4, 3, 3, 3)

    def taken_apart(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.conv2d(x, w)
        z = y.as_strided((2, 3), (y.stride(0), y.stride(1)), 1)
        return y, z, y.stride(), y.permute(0, 2, 3, 1).reshape(2, -1)

    for given in (torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6).to(memory_format=LAST)):
        expected = taken_apart(given, w)
        eager = taken_apart(given.to(webgpu), w.to(webgpu))
        compiled = torch.compile(taken_apart, backend="webgpu")(given.to(webgpu), w.to(webgpu))
        for found in (eager, compiled):
            assert found[2] == expected[2]
            for i in (0, 1, 3):
                _same(found[i], expected[i])
        torch._dynamo.reset()


def test_compiled_graphs_read_what_an_operator_returned_as_it_lies(webgpu: str) -> None:
    @torch.library.custom_op("webtorch_strides::turned", mutates_args=())
    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).t().contiguous().t()

    # It says something else than it does.
    @turned.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = turned(x)
        return y.as_strided((4,), (y.stride(1),)) + 1

    x = torch.arange(16.0).reshape(4, 4)
    found = torch.compile(f, backend="webgpu")(x.to(webgpu))
    torch.testing.assert_close(found.cpu(), x[0] * 2 + 1)


_QUICK = (
    "add", "where", "flip", "cat", "stack", "logical_and", "complex", "argwhere", "__getitem__", "renorm",
    "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.batch_norm", "nn.functional.group_norm",
    "nn.functional.max_pool2d", "nn.functional.dropout", "nn.functional.huber_loss", "nn.functional.max_unpool2d",
    "nn.functional.pixel_shuffle", "constant_pad_nd", "matmul", "sum", "mean", "amax", "sort", "softmax",
)  # fmt: skip


# PyTorch's own samples make it warn.
@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", _QUICK)
def test_operators_give_the_strides_of_the_cpu(webgpu: str, name: str) -> None:
    found = formats.differences(report.operations()[name], limit=3)
    assert found["same"]
    assert not [k for k in found if not k.startswith(("same", "moot"))]


def test_views_are_the_kernels_of_pytorchs_cpu(webgpu: str) -> None:
    """Until somebody registers another one: then it is the function of Python that calls these."""
    operator = {"unfold": torch.ops.aten.unfold.default}
    x = torch.arange(6.0)
    wanted = x.unfold(0, 2, 2).tolist()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("unfold", lambda *_: x.to(webgpu), "PrivateUse1", allow_override=True)
        assert x.to(webgpu).unfold(0, 2, 2).tolist() == x.tolist()
    assert x.to(webgpu).unfold(0, 2, 2).tolist() == wanted
    assert lent.lend(operator) is (sys.platform != "win32")
    assert x.to(webgpu).unfold(0, 2, 2).tolist() == wanted
    # It is there already.
    assert not lent.lend(operator)


def test_a_pytorch_of_another_form_lends_no_kernels(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "_FORM", {"dispatch/Dispatcher.h": ("operatorDef_ elsewhere;",)})
    assert not lent.lend({})
    monkeypatch.setattr(lent, "_FORM", {"dispatch/nowhere.h": ()})
    assert not lent.lend({})


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(5),
        lambda x: x.t().view(6),
        lambda x: x.view(torch.int64),
        lambda x: x.as_strided((4, 4), (4, 1)),
        lambda x: x.as_strided((2,), (-1,)),
        lambda x: x.unfold(0, 5, 1),
    ],
)
def test_views_are_refused_in_the_same_words(
    webgpu: str, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with pytest.raises(RuntimeError) as theirs:
        view(torch.ones(2, 3))
    with pytest.raises(RuntimeError) as ours:
        view(torch.ones(2, 3, device=webgpu))
    assert str(ours.value) == str(theirs.value)


def test_views_of_inference_mode_and_versions(webgpu: str) -> None:
    def facts(device: str) -> list[object]:
        x = torch.ones(2, 3, device=device)
        y = x.view(6)
        y[0] = 5
        with torch.inference_mode():
            inside, new = x.view(6), torch.ones(2, 3, device=device).view(6)
            new[1] = 2
        found = [t.is_inference() for t in (y, inside, new)]
        return [x._version, y._version, y._base is x, inside._is_view(), new._is_view(), *found]

    assert facts(webgpu) == facts("cpu")
