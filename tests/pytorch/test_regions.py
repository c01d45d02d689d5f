"""torchvision's compiled operators on "webgpu", called as torchvision calls them; torchvision itself is not needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from webtorch.nn import regions

_SIZES = "SymInt pooled_height, SymInt pooled_width"
_PICTURE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, float spatial_scale, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, {_SIZES}, {_PICTURE}, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, float spatial_scale, {_SIZES}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, {_SIZES}, {_PICTURE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, float spatial_scale, {_SIZES}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"{_SIZES}, int sampling_ratio, {_PICTURE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, {_SIZES}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"{_SIZES}, {_PICTURE}) -> Tensor",
    f"deform_conv2d({_CONVOLUTION}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONVOLUTION}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Any:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    yield
    library._destroy()


def _boxes(count: int, size: float) -> torch.Tensor:
    first = torch.rand(count, 2) * size * 0.7
    return torch.cat([first, first + torch.rand(count, 2) * size * 0.5 + 0.5], 1)


def _rois(count: int, size: float) -> torch.Tensor:
    return torch.cat([torch.randint(0, 2, (count, 1)).float(), _boxes(count, size)], 1)


def _ours(x: torch.Tensor) -> Any:
    return webtorch.from_numpy(x.numpy()).to(webtorch.float64)


def _same(actual: torch.Tensor, expected: Any) -> None:
    assert actual.is_webgpu
    wanted = torch.from_numpy(expected.detach().numpy()).to(actual.dtype)
    torch.testing.assert_close(actual.cpu(), wanted, rtol=1e-4, atol=1e-4)


def test_nms_keeps_the_best_boxes(webgpu: str) -> None:
    boxes, scores = _boxes(60, 30.0), torch.rand(60)
    found = torch.ops.torchvision.nms(boxes.to(webgpu), scores.to(webgpu), 0.3)
    assert found.tolist() == regions.nms(_ours(boxes), _ours(scores), 0.3).tolist()
    with torch.autocast("webgpu", dtype=torch.float16):
        low = torch.ops.torchvision.nms(boxes.to(webgpu).half(), scores.to(webgpu), 0.3)
    assert low.dtype is torch.int64 and low[0].item() == int(scores.argmax())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("roi_align", (0.5, 3, 2, 2, True)),
        ("roi_align", (0.5, 2, 2, -1, False)),
        ("roi_pool", (0.5, 2, 3)),
        ("ps_roi_align", (0.5, 2, 2, 2)),
        ("ps_roi_pool", (0.5, 2, 2)),
    ],
)
def test_pooled_regions_and_their_gradients(
    webgpu: str, name: str, options: tuple[Any, ...]
) -> None:
    x, rois = torch.randn(2, 8, 9, 7), _rois(7, 14.0)
    high, wide = options[1:3]
    forward = getattr(torch.ops.torchvision, name)
    reference = _ours(x).requires_grad_()
    expected = getattr(regions, name)(reference, _ours(rois), *options)
    found = forward(x.to(webgpu), rois.to(webgpu), *options)
    second = None
    if isinstance(found, tuple):
        found, second = found
        assert second.dtype is torch.int32 and second.is_webgpu
        _same(second, expected[1])
        expected = expected[0]
    _same(found, expected)
    g = torch.randn(found.shape)
    (wanted,) = webtorch.autograd.grad(expected, reference, _ours(g))
    backward = getattr(torch.ops.torchvision, f"_{name}_backward")
    given = [g.to(webgpu), rois.to(webgpu), *([] if second is None else [second])]
    slope = backward(*given, 0.5, high, wide, *(options[3:4] if name == "ps_roi_align" else ()), *x.shape,
                     *(options[3:] if name == "roi_align" else ()))  # fmt: skip
    _same(slope, wanted)


def test_position_sensitive_bins_read_channels_of_their_own(webgpu: str) -> None:
    # Channel c holds the number c everywhere: each value is the number of the channel that it is of.
    x = torch.arange(8.0).reshape(1, 8, 1, 1).expand(1, 8, 9, 9).contiguous().to(webgpu)
    rois = torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]], device=webgpu)
    for found, mapping in (
        torch.ops.torchvision.ps_roi_align(x, rois, 1.0, 2, 2, 2),
        torch.ops.torchvision.ps_roi_pool(x, rois, 1.0, 2, 2),
    ):
        assert mapping.flatten().tolist() == list(range(8))
        torch.testing.assert_close(found.flatten().cpu(), torch.arange(8.0))
    with pytest.raises(RuntimeError, match="multiple of pooling height"):
        torch.ops.torchvision.ps_roi_pool(x, rois, 1.0, 3, 2)


def test_deformable_convolution_and_its_gradients(webgpu: str) -> None:
    tensors = [
        torch.randn(2, 4, 7, 6), torch.randn(6, 2, 3, 3) * 0.3, torch.randn(2, 36, 7, 6) * 0.4,
        torch.rand(2, 18, 7, 6), torch.randn(6),
    ]  # fmt: skip
    numbers = (1, 1, 1, 1, 1, 1, 2, 2, True)
    leaves = [_ours(t).requires_grad_() for t in tensors]
    expected = regions.deform_conv2d(*leaves, *numbers)
    there = [t.to(webgpu) for t in tensors]
    _same(torch.ops.torchvision.deform_conv2d(*there, *numbers), expected)
    g = torch.randn(2, 6, 7, 6)
    found = torch.ops.torchvision._deform_conv2d_backward(g.to(webgpu), *there, *numbers)
    for actual, wanted in zip(found, webtorch.autograd.grad(expected, leaves, _ours(g)), strict=True):  # fmt: skip
        _same(actual, wanted)


def test_regions_on_another_device_are_refused(webgpu: str) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ops.torchvision.roi_align(
            torch.ones(1, 1, 4, 4, device=webgpu), torch.ones(1, 5), 1.0, 2, 2, 2, True
        )
