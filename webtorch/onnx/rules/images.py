"""Pooling, resizing and sampling as nodes. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.functions import public as webtorch
from webtorch.onnx.graph import Attr
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.rules.products import Sizes, each_dim
from webtorch.onnx.writer import Name, Writer, Written, rule


def _batched(w: Writer, input: Value, rank: int) -> tuple[Name, bool]:
    single = len(input.shape) == rank + 1
    x = w.name(input)
    return (w.unsqueeze(x, [0]), True) if single else (x, False)


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(
    w: Writer,
    call: Call,
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Written:
    if len(call.results) > 1 or input.dtype.kind != "float":
        return None
    rank = int(call.name[8])
    x, single = _batched(w, input, rank)
    kernel = each_dim(kernel_size, rank)
    out = w.node(
        "MaxPool", x, kernel_shape=kernel, strides=each_dim(stride, rank) or kernel,
        pads=each_dim(padding, rank) * 2, dilations=each_dim(dilation, rank), ceil_mode=int(ceil_mode),
    )  # fmt: skip
    return w.squeeze(out, [0]) if single else out


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    w: Writer,
    call: Call,
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Written:
    # With both, the last window counts elements that ONNX and PyTorch do not agree about.
    if divisor_override is not None or (ceil_mode and w.opset < 19):
        return None
    rank = int(call.name[8])
    x, single = _batched(w, input, rank)
    kernel = each_dim(kernel_size, rank)
    out = w.node(
        "AveragePool", x, kernel_shape=kernel, strides=each_dim(stride, rank) or kernel,
        pads=each_dim(padding, rank) * 2, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip
    return w.squeeze(out, [0]) if single else out


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip
def _adaptive(
    w: Writer, call: Call, input: Value, output_size: object, return_indices: bool = False
) -> Written:
    if len(call.results) > 1:
        return None
    rank = int(call.name[-2])
    kind = "Average" if "avg" in call.name else "Max"
    sizes, target = input.shape[-rank:], call.results[0].shape[-rank:]
    x, single = _batched(w, input, rank)
    if all(t == 1 for t in target):
        out = w.node(f"Global{kind}Pool", x)
    elif all(t and s % t == 0 for s, t in zip(sizes, target, strict=True)):
        kernel = [s // t for s, t in zip(sizes, target, strict=True)]
        if all(k == 1 for k in kernel):
            out = x
        else:
            out = w.node(f"{kind}Pool", x, kernel_shape=kernel, strides=kernel)
    else:
        return None
    return w.squeeze(out, [0]) if single else out


@rule("interpolate")
def _interpolate(
    w: Writer,
    call: Call,
    input: Value,
    size: object = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Name | None:
    if mode == "area" or (antialias and w.opset < 18):
        return None
    rank = len(input.shape) - 2
    kinds = {
        "nearest": "nearest", "nearest-exact": "nearest", "linear": "linear", "bilinear": "linear",
        "trilinear": "linear", "bicubic": "cubic",
    }  # fmt: skip
    if mode == "nearest":
        where = "asymmetric"
    elif mode == "nearest-exact":
        where = "half_pixel"
    else:
        where = "align_corners" if align_corners else "half_pixel"
        if where == "half_pixel" and any(n == 1 for n in call.results[0].shape[2:]):
            where = "pytorch_half_pixel"
    attrs: dict[str, Attr] = {"mode": kinds[mode], "coordinate_transformation_mode": where}
    if kinds[mode] == "nearest":
        attrs["nearest_mode"] = "floor" if mode == "nearest" else "round_prefer_ceil"
    if kinds[mode] == "cubic":
        attrs["cubic_coeff_a"] = -0.75
    if antialias:
        # PyTorch's weights are of the elements that there are.
        attrs["antialias"] = attrs["exclude_outside"] = 1
    x = w.name(input)
    if scale_factor is not None and not recompute_scale_factor:
        factors = [scale_factor] * rank if isinstance(scale_factor, (int, float)) else scale_factor
        scales = w.constant(
            webtorch.tensor([1.0, 1.0, *map(float, factors)], device="cpu"), "scales"
        )
        return w.node("Resize", x, None, scales, **attrs)
    out = call.results[0].shape
    return w.node("Resize", x, None, None, w.ints(out, [(x, input.shape)]), **attrs)


@rule("pixel_shuffle")
def _pixel_shuffle(w: Writer, call: Call, input: Value, upscale_factor: int) -> Name | None:
    if len(input.shape) != 4:
        return None
    return w.node("DepthToSpace", w.name(input), blocksize=upscale_factor, mode="CRD")


@rule("grid_sample")
def _grid_sample(
    w: Writer,
    call: Call,
    input: Value,
    grid: Value,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Name | None:
    if w.opset < 16 or len(input.shape) != 4:
        return None
    modes = {"bilinear": "linear", "bicubic": "cubic"} if w.opset >= 20 else {}
    return w.node(
        "GridSample", w.name(input), w.name(grid), mode=modes.get(mode, mode),
        padding_mode=padding_mode, align_corners=int(bool(align_corners)),
    )  # fmt: skip
