"""`resize_` and views of other types: what shares the memory goes on sharing it, as in PyTorch."""

from __future__ import annotations

import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


def _a_part_grows(t, device):
    x = t.arange(4.0, device=device)
    part, alias = x[1:3], x.detach()
    part.resize_(7)
    part[3:] = 9
    x.add_(1)
    yield x, part, alias, x.sum(), x.view(2, 2) @ alias.view(2, 2)
    alias.resize_(8)
    x.copy_(t.zeros(4, device=device))
    yield x, part, alias


def _complex_numbers_grow(t, device):
    x = t.ones(2, dtype=t.complex64, device=device)
    real = x.real
    x.resize_(5)
    x[2:] = 2j
    real.add_(1)
    yield x, real, t.view_as_real(x)


def _a_view_of_another_type_grows(t, device):
    x = t.arange(4.0, device=device)
    seen = x.view(t.uint8)
    seen.resize_(8)
    yield x, seen
    seen.resize_(32)
    seen[16:] = 0
    x.mul_(2)
    yield x, seen
    x.resize_(12)
    x[8:] = 1
    seen[:4] = 0
    yield x, seen


def _the_own_shape_is_no_change(t, device):
    x = t.arange(6.0, device=device).view(2, 3).t()
    yield (x.resize_(3, 2),)
    yield (x.resize_(3, 2, memory_format=t.contiguous_format),)


def _in_a_memory_format(t, device):
    x = t.zeros(0, device=device)
    x.resize_(1, 2, 2, 2, memory_format=t.channels_last)
    yield (x.copy_(t.arange(8.0, device=device).view(1, 2, 2, 2)),)


def _an_empty_alias_writes_nothing(t, device):
    x = t.zeros(0, device=device)
    alias = x.detach()
    alias.resize_(3).fill_(2)
    x.add_(1)
    yield x, alias


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore:.*resize.*")
@pytest.mark.parametrize(
    "scene",
    [
        _a_part_grows,
        _complex_numbers_grow,
        _a_view_of_another_type_grows,
        _the_own_shape_is_no_change,
        _in_a_memory_format,
        _an_empty_alias_writes_nothing,
    ],
)
def test_memory_grows_for_all_that_share_it(scene, device):
    for here, there in zip(scene(webtorch, device), scene(torch, "cpu"), strict=True):
        for x, y in zip(here, there, strict=True):
            assert (tuple(x.shape), x.stride()) == (tuple(y.shape), y.stride())
            assert x.tolist() == y.tolist()


def test_set_keeps_the_type(device):
    x, y = webtorch.zeros(2, device=device), webtorch.zeros(2, dtype=webtorch.int32, device=device)
    with pytest.raises(webtorch.errors.DTypeError, match=r"source\.view"):
        x.set_(y)
    x.set_(y.view(webtorch.float32))
    x.fill_(1)
    assert y.tolist() == [0x3F800000] * 2
    with pytest.raises(RuntimeError, match="preserve_format"):
        x.resize_(4, memory_format=webtorch.preserve_format)


@pytest.mark.parametrize("wide", [False, True])
def test_parts_of_memory_of_another_type_are_written_with_gradients(wide, device):
    if wide and device == "webgpu":
        pytest.skip("WebGPU has no 64-bit elements")

    def scene(t, where):
        w = t.full((1,), 3.0, device=where, requires_grad=True)
        if wide:
            x = t.zeros(4, dtype=t.float64, device=where).view(t.float32)
        else:
            x = t.full((8,), 0x3C00, dtype=t.int16, device=where).view(t.float32)
        x[1::2].add_(w)
        x[2:].mul_(w)
        x.sum().backward()
        return w.grad.tolist(), x.tolist()

    for here, there in zip(scene(webtorch, device), scene(torch, "cpu"), strict=True):
        assert here == pytest.approx(there)


def test_as_strided_scatter_counts_in_elements_of_the_view(device):
    def scene(t, where):
        x = t.arange(4, dtype=t.int16, device=where)
        nines = t.full((3,), 9, dtype=t.uint8, device=where)
        return t.as_strided_scatter(x.view(t.uint8), nines, (3,), (2,), 1).tolist(), x.tolist()

    assert scene(webtorch, device) == scene(torch, "cpu")
