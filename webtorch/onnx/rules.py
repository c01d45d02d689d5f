"""How composites are written where ONNX has a node for them. Floor 6.

A rule gets the arguments of the call as the user gave them, with values in place of tensors. What
has no rule here is written with its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType, bool_, int32, int64
from webtorch.ir.view import numel
from webtorch.nn import recurrence
from webtorch.onnx.graph import ExportError
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, rule
from webtorch.ops.record import TABLE

Sizes = int | Sequence[int]


def _many(value: Any, rank: int) -> list[int]:
    if value is None:
        return []
    values = [value] * rank if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


# ---- movement -------------------------------------------------------------------------------------


@rule(
    "reshape", "view", "flatten", "unflatten", "ravel", "view_as", "reshape_as", "squeeze",
    "unsqueeze", "squeeze_", "unsqueeze_",
)  # fmt: skip
def _reshape(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    out = call.results[0]
    if numel(out.shape) != numel(input.shape) or out.dtype is not input.dtype:
        return None
    x = w.name(input)
    rank = len(input.shape)
    if call.name.startswith("unsqueeze"):
        return w.unsqueeze(x, [args["dim"] % (rank + 1)])
    if call.name.startswith("squeeze"):
        dim = args.get("dim")
        dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
        return w.squeeze(x, [d % rank for d in dims if rank and input.shape[d] == 1])
    return w.reshape(x, input.shape, out.shape)


@rule(
    "permute", "transpose", "swapaxes", "swapdims", "t", "T", "mT", "H", "mH", "adjoint", "t_", "transpose_",
)  # fmt: skip
def _permute(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    rank = len(input.shape)
    order = list(range(rank))
    if rank < 2:
        return w.name(input)
    match call.name:
        case "permute":
            given = args["args"] or args["dims"]
            dims = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
            order = [d % rank for d in dims]
        case "t" | "T" | "t_" | "H":
            order = order[::-1]
        case "mT" | "mH" | "adjoint":
            order[-1], order[-2] = order[-2], order[-1]
        case _:
            a, b = (n % rank for n in [v for v in args.values() if isinstance(v, int)][:2])
            order[a], order[b] = order[b], order[a]
    return w.transpose(w.name(input), order)


@rule("expand", "expand_as", "broadcast_to")
def _expand(w: Writer, call: Call, input: Value, **args: Any) -> Name:
    return w.expand(w.name(input), input.shape, call.results[0].shape)


@rule("repeat", "tile")
def _repeat(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    out = call.results[0].shape
    lead = len(out) - len(input.shape)
    shape = (1,) * lead + input.shape
    x = w.reshape(w.name(input), input.shape, shape)
    if 0 in shape:
        return None
    return w.node("Tile", x, w.ints([o // s for o, s in zip(out, shape, strict=True)]))


@rule("cat", "concat", "concatenate")
def _cat(w: Writer, call: Call, tensors: Any, dim: int = 0, **args: Any) -> Name | None:
    out = call.results[0]
    axis = args.get("axis")
    dim = (dim if axis is None else axis) % len(out.shape)
    parts = [t for t in tensors if t.shape != (0,)]
    names = [w.cast(w.name(t), t.dtype, out.dtype) for t in parts]
    return names[0] if len(names) == 1 else w.node("Concat", *names, axis=dim)


@rule("stack")
def _stack(w: Writer, call: Call, tensors: Any, dim: int = 0) -> Name:
    out = call.results[0]
    dim %= len(out.shape)
    names = [w.unsqueeze(w.cast(w.name(t), t.dtype, out.dtype), [dim]) for t in tensors]
    return names[0] if len(names) == 1 else w.node("Concat", *names, axis=dim)


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(w: Writer, call: Call, input: Value, dim: int = 0, **args: Any) -> Any:
    dim %= len(input.shape)
    sizes = [r.shape[dim] for r in call.results]
    x = w.name(input)
    if len(sizes) == 1:
        return (x,)
    if len(set(sizes)) == 1 and w.opset >= 18:
        return w.node("Split", x, outputs=len(sizes), axis=dim, num_outputs=len(sizes))
    return w.node("Split", x, w.ints(sizes), outputs=len(sizes), axis=dim)


@rule("unbind")
def _unbind(w: Writer, call: Call, input: Value, dim: int = 0) -> Any:
    dim %= len(input.shape)
    x = w.name(input)
    return tuple(
        w.node("Gather", x, w.ints([i], scalar=True), axis=dim) for i in range(len(call.results))
    )


@rule("select")
def _select(w: Writer, call: Call, input: Value, dim: int, index: int) -> Name:
    return w.node(
        "Gather", w.name(input), w.ints([index], scalar=True), axis=dim % len(input.shape)
    )


@rule("narrow")
def _narrow(w: Writer, call: Call, input: Value, dim: int, start: Any, length: int) -> Name | None:
    if isinstance(start, Value):
        return None
    dim %= len(input.shape)
    start = start % input.shape[dim] if start < 0 else start
    stop = start + length
    return w.slice(w.name(input), dim, start, None if stop == input.shape[dim] else stop)


@rule("getitem")
def _getitem(w: Writer, call: Call, x: Value, index: Any) -> Name | None:
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, (bool, list)) for i in items):
        return None
    tensors = [i for i in items if isinstance(i, Value)]
    if len(tensors) > 1 or any(i.dtype.kind not in ("int", "uint") for i in tensors):
        return None
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if Ellipsis in [i for i in items if not isinstance(i, Value)]:
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        items[at : at + 1] = [slice(None)] * (len(x.shape) - used)
    else:
        items += [slice(None)] * (len(x.shape) - used)
    name = w.name(x)
    gathered = None
    picked: list[tuple[int, Any]] = []
    bounds: list[tuple[int, int, int | None, int]] = []
    stop: int | None
    dim = 0
    for i in items:
        if i is None:
            continue
        size = x.shape[dim]
        if isinstance(i, slice):
            start, stop, step = i.indices(size)
            if step < 1:
                return None
            if (start, step) != (0, 1) or stop < size:
                # As it was written: what is counted from the end stays so.
                first = i.start if i.start is not None and -size <= i.start <= size else start
                last = None if stop >= size else i.stop if -size <= i.stop else stop
                bounds.append((dim, int(first), last if last is None else int(last), step))
        elif isinstance(i, Value):
            gathered = (dim, i)
        elif isinstance(i, int) or hasattr(i, "__index__"):
            picked.append((dim, int(i)))
        else:
            return None
        dim += 1
    if gathered is not None and (picked or None in items):
        return None
    for d, start, stop, step in bounds:
        name = w.slice(name, d, start, stop, step)
    for d, i in reversed(picked):
        name = w.node("Gather", name, w.ints([i], scalar=True), axis=d)
    if gathered is not None:
        d, index_value = gathered
        index_name = w.cast(w.name(index_value), index_value.dtype, int64)
        name = w.node("Gather", name, index_name, axis=d)
    kept = [i for i in items if i is None or isinstance(i, slice)]
    return w.unsqueeze(name, [k for k, i in enumerate(kept) if i is None])


@rule("flip")
def _flip(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    given = args["args"] or args["dims"]
    dims = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    name = w.name(input)
    for d in dims:
        bounds = [w.ints([n]) for n in (-1, -(2**63), d % len(input.shape), -1)]
        name = w.node("Slice", name, *bounds)
    return name


@rule("tril", "triu")
def _trilu(w: Writer, call: Call, input: Value, diagonal: int = 0) -> Name | None:
    if w.opset < 14:
        return None
    wide = input.dtype is bool_
    x = w.cast(w.name(input), input.dtype, int32) if wide else w.name(input)
    out = w.node("Trilu", x, w.ints([diagonal], scalar=True), upper=int(call.name == "triu"))
    return w.cast(out, int32, bool_) if wide else out


@rule("pad", "constant_pad_nd")
def _pad(
    w: Writer, call: Call, input: Value, pad: Any, mode: str = "constant", value: Any = None
) -> Name | None:
    rank = len(input.shape)
    counts = len(pad) // 2
    low, high = [0] * rank, [0] * rank
    for k in range(counts):
        low[rank - 1 - k], high[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode == "circular" and w.opset < 19:
        return None
    number = w.number(value or 0, input.dtype) if mode == "constant" and value else None
    return w.node("Pad", w.name(input), w.ints([*low, *high]), number, mode=modes[mode])


# ---- products -------------------------------------------------------------------------------------


def _transposed_leaf(w: Writer, v: Value) -> tuple[Name, bool]:
    """Return a matrix and whether it is to be transposed: of a transposed parameter, the parameter."""
    name = w.parameters.get(id(v.node))
    if name is not None and len(v.shape) == 2 and v.shape[::-1] == v.node.shape and not v.offset:
        straight = Value(v.node, v.node.shape, v.whole.strides, 0)
        if v.strides == straight.strides[::-1] and v != straight:
            return w.name(straight), True
    return w.name(v), False


@rule("linear")
def _linear(w: Writer, call: Call, input: Value, weight: Value, bias: Any = None) -> Name | None:
    if len(weight.shape) != 2 or len({v.dtype for v in (input, weight, bias) if v is not None}) > 1:
        return None
    x = w.name(input)
    if len(input.shape) == 2:
        return w.node("Gemm", x, w.name(weight), None if bias is None else w.name(bias), transB=1)
    constant = w.tensor(weight)
    if constant is None:
        turned = w.node("Transpose", w.name(weight), perm=[1, 0])
    else:
        key = ("turned", weight)
        if key not in w.interned:
            title = w.parameters.get(id(weight.node), "weight")
            w.interned[key] = w.constant(constant.t().contiguous(), f"{title}.T", weight=True)
        turned = w.interned[key]
    out = w.node("MatMul", x, turned)
    return out if bias is None else w.node("Add", out, w.name(bias))


@rule("matmul", "mm", "bmm", "mv", "dot")
def _matmul(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    other = next(v for v in args.values() if isinstance(v, Value))
    if input.dtype is not other.dtype or input.dtype.kind != "float":
        return None
    if len(input.shape) == len(other.shape) == 2:
        b, turned = _transposed_leaf(w, other)
        if turned:
            return w.node("Gemm", w.name(input), b, transB=1)
    return w.node("MatMul", w.name(input), w.name(other))


@rule("addmm")
def _addmm(
    w: Writer, call: Call, input: Any, mat1: Any, mat2: Any, old: Any, beta: Any = 1, alpha: Any = 1
) -> Name | None:
    if old:
        # PyTorch's old order of arguments: exported as what it is made of.
        return None
    if input.dtype.kind != "float" or not {input.dtype} == {mat1.dtype} == {mat2.dtype}:
        return None
    b, turned = _transposed_leaf(w, mat2)
    return w.node(
        "Gemm", w.name(mat1), b, w.name(input), transB=int(turned) or None,
        alpha=None if alpha == 1 else float(alpha), beta=None if beta == 1 else float(beta),
    )  # fmt: skip


@rule("einsum")
def _einsum(w: Writer, call: Call, args: Any) -> Name | None:
    if not isinstance(args[0], str):
        return None
    given = args[1:] if isinstance(args[1], Value) else args[1]
    return w.node("Einsum", *[w.name(v) for v in given], equation=args[0].replace(" ", ""))


def _convolution(
    w: Writer, call: Call, rank: int, op: str, input: Value, weight: Value, bias: Any, attrs: Any
) -> Name:
    x = w.name(input)
    single = len(input.shape) == rank + 1
    if single:
        x = w.unsqueeze(x, [0])
    out = w.node(op, x, w.name(weight), None if bias is None else w.name(bias), **attrs)
    return w.squeeze(out, [0]) if single else out


@rule("conv1d", "conv2d", "conv3d")
def _conv(
    w: Writer,
    call: Call,
    input: Value,
    weight: Value,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Name:
    rank = int(call.name[4])
    kernel = list(weight.shape[2:])
    dilation = _many(dilation, rank)
    if padding == "same":
        # The extra element stands behind, as in PyTorch.
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [n // 2 for n in whole] + [n - n // 2 for n in whole]
    else:
        pads = [0] * 2 * rank if padding == "valid" else _many(padding, rank) * 2
    attrs = {
        "kernel_shape": kernel, "strides": _many(stride, rank), "pads": pads, "dilations": dilation,
        "group": groups,
    }  # fmt: skip
    return _convolution(w, call, rank, "Conv", input, weight, bias, attrs)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    w: Writer,
    call: Call,
    input: Value,
    weight: Value,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Name:
    rank = int(call.name[-2])
    attrs = {
        "kernel_shape": list(weight.shape[2:]), "strides": _many(stride, rank),
        "pads": _many(padding, rank) * 2, "output_padding": _many(output_padding, rank),
        "dilations": _many(dilation, rank), "group": groups,
    }  # fmt: skip
    return _convolution(w, call, rank, "ConvTranspose", input, weight, bias, attrs)


# ---- pooling, resizing ----------------------------------------------------------------------------


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
    stride: Any = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if len(call.results) > 1 or input.dtype.kind != "float":
        return None
    rank = int(call.name[8])
    x, single = _batched(w, input, rank)
    kernel = _many(kernel_size, rank)
    out = w.node(
        "MaxPool", x, kernel_shape=kernel, strides=_many(stride, rank) or kernel,
        pads=_many(padding, rank) * 2, dilations=_many(dilation, rank), ceil_mode=int(ceil_mode),
    )  # fmt: skip
    return w.squeeze(out, [0]) if single else out


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    w: Writer,
    call: Call,
    input: Value,
    kernel_size: Sizes,
    stride: Any = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    # With both, the last window counts elements that ONNX and PyTorch do not agree about.
    if divisor_override is not None or (ceil_mode and w.opset < 19):
        return None
    rank = int(call.name[8])
    x, single = _batched(w, input, rank)
    kernel = _many(kernel_size, rank)
    out = w.node(
        "AveragePool", x, kernel_shape=kernel, strides=_many(stride, rank) or kernel,
        pads=_many(padding, rank) * 2, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip
    return w.squeeze(out, [0]) if single else out


@rule(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip
def _adaptive(
    w: Writer, call: Call, input: Value, output_size: Any, return_indices: bool = False
) -> Any:
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
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
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
    attrs: dict[str, Any] = {"mode": kinds[mode], "coordinate_transformation_mode": where}
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
    align_corners: Any = None,
) -> Name | None:
    if w.opset < 16 or len(input.shape) != 4:
        return None
    modes = {"bilinear": "linear", "bicubic": "cubic"} if w.opset >= 20 else {}
    return w.node(
        "GridSample", w.name(input), w.name(grid), mode=modes.get(mode, mode),
        padding_mode=padding_mode, align_corners=int(bool(align_corners)),
    )  # fmt: skip


# ---- norms, softmax -------------------------------------------------------------------------------


def _vector(w: Writer, v: Any, count: int, fill: float, dtype: DType, title: str) -> Name:
    if v is not None:
        return w.name(v)
    key = (title, count, fill, dtype)
    if key not in w.interned:
        tensor = webtorch.full((count,), fill, dtype=dtype, device="cpu")
        w.interned[key] = w.constant(tensor, title)
    return w.interned[key]


def _same_type(*values: Any) -> bool:
    return len({v.dtype for v in values if v is not None}) == 1


@rule("batch_norm")
def _batch_norm(
    w: Writer,
    call: Call,
    input: Value,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-05,
) -> Name | None:
    if training or running_mean is None or not _same_type(input, running_mean, weight):
        return None
    channels = input.shape[1]
    return w.node(
        "BatchNormalization", w.name(input),
        _vector(w, weight, channels, 1.0, input.dtype, "ones"),
        _vector(w, bias, channels, 0.0, input.dtype, "zeros"),
        w.name(running_mean), w.name(running_var), epsilon=float(eps),
    )  # fmt: skip


@rule("layer_norm")
def _layer_norm(
    w: Writer,
    call: Call,
    input: Value,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
) -> Name | None:
    if w.opset < 17 or not _same_type(input, weight, bias) or 0 in input.shape:
        return None
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if weight is None:
        ones = webtorch.ones(shape, dtype=input.dtype, device="cpu")
        scale = w.constant(ones, "ones")
    else:
        scale = w.name(weight)
    return w.node(
        "LayerNormalization", w.name(input), scale, None if bias is None else w.name(bias),
        axis=-len(shape), epsilon=float(eps),
    )  # fmt: skip


@rule("rms_norm")
def _rms_norm(
    w: Writer, call: Call, input: Value, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> Name | None:
    if w.opset < 23 or weight is None or not _same_type(input, weight):
        return None
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    epsilon = webtorch.finfo(input.dtype).eps if eps is None else float(eps)
    return w.node(
        "RMSNormalization", w.name(input), w.name(weight), axis=-len(shape), epsilon=epsilon
    )


@rule("group_norm")
def _group_norm(
    w: Writer,
    call: Call,
    input: Value,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-05,
) -> Name | None:
    if not _same_type(input, weight, bias) or 0 in input.shape or len(input.shape) < 3:
        return None
    channels = input.shape[1]
    dtype = input.dtype
    x = w.name(input)
    if w.opset >= 21:
        return w.node(
            "GroupNormalization", x, _vector(w, weight, channels, 1.0, dtype, "ones"),
            _vector(w, bias, channels, 0.0, dtype, "zeros"), num_groups=num_groups, epsilon=float(eps),
        )  # fmt: skip
    # Each group is a channel of an instance norm; the weights are per channel, behind it.
    grouped = w.reshape(x, input.shape, (input.shape[0], num_groups, -1))
    unit = w.node(
        "InstanceNormalization", grouped, _vector(w, None, num_groups, 1.0, dtype, "ones"),
        _vector(w, None, num_groups, 0.0, dtype, "zeros"), epsilon=float(eps),
    )  # fmt: skip
    out = w.node("Reshape", unit, w.node("Shape", x))
    ones = (channels,) + (1,) * (len(input.shape) - 2)
    if weight is not None:
        out = w.node("Mul", out, w.reshape(w.name(weight), weight.shape, ones))
    if bias is not None:
        out = w.node("Add", out, w.reshape(w.name(bias), bias.shape, ones))
    return out


@rule("instance_norm")
def _instance_norm(
    w: Writer,
    call: Call,
    input: Value,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-05,
) -> Name | None:
    if not use_input_stats or not _same_type(input, weight, bias):
        return None
    channels = input.shape[1]
    return w.node(
        "InstanceNormalization", w.name(input),
        _vector(w, weight, channels, 1.0, input.dtype, "ones"),
        _vector(w, bias, channels, 0.0, input.dtype, "zeros"), epsilon=float(eps),
    )  # fmt: skip


@rule("softmax", "log_softmax")
def _softmax(
    w: Writer, call: Call, input: Value, dim: Any = None, dtype: Any = None
) -> Name | None:
    rank = len(input.shape)
    if not rank:
        return None
    if dim is None:
        dim = 0 if rank in (1, 3) else 1
    x = w.cast(w.name(input), input.dtype, call.results[0].dtype)
    return w.node("Softmax" if call.name == "softmax" else "LogSoftmax", x, axis=dim % rank)


@rule("_safe_softmax")
def _safe_softmax(w: Writer, call: Call, x: Value) -> Name:
    soft = w.node("Softmax", w.name(x), axis=len(x.shape) - 1)
    if not _may_hide_all(w, x):
        return soft
    # A row of nothing but -inf gives NaN in ONNX and zeros here.
    return w.node("Where", w.node("IsNaN", soft), w.number(0, x.dtype), soft)


def _may_hide_all(w: Writer, x: Value) -> bool:
    """Whether all scores of a row may be -inf: a mask is chosen by or added that may hide them."""
    for call, _ in w.recording.calls.get(x, ()):
        if call.op is None or call.op.name not in ("_where", "_add"):
            continue
        for mask in call.args["operands"]:
            if mask is x or not isinstance(mask, Value):
                continue
            known = w.tensor(mask)
            if known is None:
                if call.op.name == "_where" and mask.dtype is not bool_:
                    continue
                if call.op.name == "_add" and _is_product(w, mask):
                    continue
                return True
            shown = known if known.dtype is bool_ else known > -float("inf")
            if not bool(shown.any(-1).all().item()):
                return True
    return False


def _is_product(w: Writer, v: Value) -> bool:
    return any(c.name in ("matmul", "apply") for c, _ in w.recording.calls.get(v, ()))


@rule("_attention")
def _attention(
    w: Writer,
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Any,
    causal: bool,
    scale: float,
    dropout: Any,
    again: Any,
) -> Name:
    if dropout is not None:
        raise ExportError(
            "export: dropout of attention weights has no form in ONNX: call eval() first"
        )
    dtype = query.dtype
    q, k, v = w.name(query), w.name(key), w.name(value)
    batch, heads, length, _ = query.shape
    shared, source = key.shape[1], key.shape[2]
    if heads != shared:
        # Each head of keys serves several of queries in a row.
        def repeated(x: Name, shape: tuple[int, ...]) -> Name:
            """Return keys or values with each head as often as queries use it."""
            wide = (batch, shared, heads // shared, *shape[2:])
            x = w.expand(w.unsqueeze(x, [2]), (batch, shared, 1, *shape[2:]), wide)
            return w.node("Reshape", x, w.ints((0, heads, -1, shape[3])))

        k, v = repeated(k, key.shape), repeated(v, value.shape)
    scores = w.node("MatMul", q, w.transpose(k, [0, 1, 3, 2]))
    scores = w.node("Mul", scores, w.number(scale, dtype))
    lowest = w.number(-float("inf"), dtype)
    if mask is not None and mask.dtype is bool_:
        scores = w.node("Where", w.name(mask), scores, lowest)
    elif mask is not None:
        scores = w.node("Add", scores, w.cast(w.name(mask), mask.dtype, dtype))
    if causal:
        zero, one = w.ints([0], scalar=True), w.ints([1], scalar=True)
        rows = w.node("Range", zero, w.ints([length], [(q, query.shape)], scalar=True), one)
        columns = w.node("Range", zero, w.ints([source], [(k, key.shape)], scalar=True), one)
        seen = w.node("LessOrEqual", columns, w.unsqueeze(rows, [1]))
        scores = w.node("Where", seen, scores, lowest)
    weights = w.node("Softmax", scores, axis=3)
    if mask is not None:
        # A row of nothing but -inf gives NaN in ONNX and zeros here.
        weights = w.node("Where", w.node("IsNaN", weights), w.number(0, dtype), weights)
    return w.node("MatMul", weights, v)


# ---- reductions -----------------------------------------------------------------------------------


def _dims(dim: Any, rank: int) -> list[int] | None:
    if dim is None or dim == () or dim == []:
        return None
    return [d % rank if rank else 0 for d in ([dim] if isinstance(dim, int) else dim)]


@rule(*(op.name for op in TABLE.values() if op.onnx.startswith("Reduce")))
def _reduction(
    w: Writer, call: Call, input: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Name | None:
    out = call.results[0]
    if out.dtype is bool_ or numel(input.shape) == 0 or not input.shape:
        return None
    x = w.cast(w.name(input), input.dtype, out.dtype)
    return w.reduce(TABLE[call.name].onnx, x, _dims(dim, len(input.shape)), keepdim)


@rule("argmax", "argmin")
def _arg(
    w: Writer, call: Call, input: Value, dim: Any = None, keepdim: bool = False
) -> Name | None:
    if dim is None or input.dtype is bool_ or not input.shape:
        return None
    op = "ArgMax" if call.name == "argmax" else "ArgMin"
    return w.node(op, w.name(input), axis=dim % len(input.shape), keepdims=int(keepdim))


@rule("max", "min")
def _extreme(
    w: Writer, call: Call, input: Value, dim: Any = None, keepdim: bool = False, other: Any = None
) -> Any:
    word = "Max" if call.name == "max" else "Min"
    if isinstance(dim, Value) or other is not None or not input.shape or input.dtype is bool_:
        return None
    x = w.name(input)
    if dim is None:
        return w.reduce(f"Reduce{word}", x, None, False)
    dim %= len(input.shape)
    values = w.reduce(f"Reduce{word}", x, [dim], keepdim)
    return values, w.node(f"Arg{word}", x, axis=dim, keepdims=int(keepdim))


@rule("vector_norm")
def _norm(
    w: Writer,
    call: Call,
    x: Any = None,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> Name | None:
    if ord not in (1, 2) or not isinstance(x, Value) or not x.shape or x.dtype.kind != "float":
        return None
    if call.results[0].dtype is not x.dtype:
        return None
    return w.reduce(f"ReduceL{int(ord)}", w.name(x), _dims(dim, len(x.shape)), keepdim)


@rule("topk")
def _topk(
    w: Writer,
    call: Call,
    input: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Any:
    if not input.shape:
        return None
    return w.node(
        "TopK", w.name(input), w.ints([k]), outputs=2, axis=dim % len(input.shape),
        largest=int(largest), sorted=int(sorted),
    )  # fmt: skip


@rule("argsort")
def _argsort(
    w: Writer,
    call: Call,
    input: Value,
    dim: int = -1,
    descending: bool = False,
    stable: Any = False,
) -> Name | None:
    found = _sort(w, call, input, dim, descending, stable)
    return None if found is None else found[1]


@rule("sort")
def _sort(
    w: Writer,
    call: Call,
    input: Value,
    dim: int = -1,
    descending: bool = False,
    stable: Any = False,
) -> Any:
    if not input.shape or input.dtype is bool_:
        return None
    dim %= len(input.shape)
    x = w.name(input)
    count = w.ints([input.shape[dim]], [(x, input.shape)])
    return w.node("TopK", x, count, outputs=2, axis=dim, largest=int(descending), sorted=1)


@rule("_sort_places")
def _sort_places(w: Writer, call: Call, x: Value, descending: bool, first: int, count: int) -> Name:
    name = w.name(x)
    most = w.ints([first + count], [(name, x.shape)])
    places = w.node("TopK", name, most, outputs=2, axis=1, largest=int(descending), sorted=1)[1]
    return w.slice(places, 1, first, None) if first else places


@rule("cumsum")
def _cumsum(w: Writer, call: Call, input: Value, dim: int, dtype: Any = None) -> Name | None:
    if not input.shape:
        return None
    x = w.cast(w.name(input), input.dtype, call.results[0].dtype)
    return w.node("CumSum", x, w.ints([dim % len(input.shape)], scalar=True))


# ---- indexing -------------------------------------------------------------------------------------


@rule("embedding")
def _embedding(w: Writer, call: Call, input: Value, weight: Value, **_: Any) -> Name | None:
    return w.node("Gather", w.name(weight), w.cast(w.name(input), input.dtype, int64), axis=0)


@rule("index_select")
def _index_select(w: Writer, call: Call, input: Value, dim: int, index: Value) -> Name | None:
    if not input.shape or len(index.shape) != 1:
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node("Gather", w.name(input), place, axis=dim % len(input.shape))


@rule("gather", "take_along_dim")
def _gather(w: Writer, call: Call, input: Value, dim: Any = None, **args: Any) -> Name | None:
    index: Any = args.get("index", args.get("indices"))
    if dim is None or not input.shape or len(index.shape) != len(input.shape):
        return None
    if call.name != "gather" and index.shape != call.results[0].shape:
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node("GatherElements", w.name(input), place, axis=dim % len(input.shape))


@rule("scatter", "scatter_add")
def _scatter(
    w: Writer, call: Call, input: Value, dim: int, index: Value, src: Any = None, **args: Any
) -> Name | None:
    if not isinstance(src, Value) or args.get("reduce") or not input.shape:
        return None
    if src.shape != index.shape or (call.name == "scatter_add" and w.opset < 16):
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node(
        "ScatterElements", w.name(input), place, w.name(src), axis=dim % len(input.shape),
        reduction="add" if call.name == "scatter_add" else None,
    )  # fmt: skip


@rule("where")
def _where(w: Writer, call: Call, condition: Value, input: Any = None, other: Any = None) -> Any:
    if input is None or condition.dtype is not bool_:
        return None
    out = call.results[0].dtype
    names = [
        w.cast(w.name(v), v.dtype, out) if isinstance(v, Value) else w.number(v, out)
        for v in (input, other)
    ]
    return w.node("Where", w.name(condition), *names)


@rule("masked_fill")
def _masked_fill(w: Writer, call: Call, input: Value, mask: Value, value: Any) -> Name | None:
    if mask.dtype is not bool_:
        return None
    dtype = input.dtype
    number = (
        w.cast(w.name(value), value.dtype, dtype)
        if isinstance(value, Value)
        else w.number(value, dtype)
    )
    return w.node("Where", w.name(mask), number, w.name(input))


@rule("one_hot")
def _one_hot(w: Writer, call: Call, tensor: Value, num_classes: int = -1) -> Name:
    classes = call.results[0].shape[-1]
    ends = w.constant(webtorch.tensor([0, 1], device="cpu"), "off_on")
    index = w.cast(w.name(tensor), tensor.dtype, int64)
    return w.node("OneHot", index, w.ints([classes], scalar=True), ends, axis=-1)


@rule("clamp")
def _clamp(w: Writer, call: Call, input: Value, min: Any = None, max: Any = None) -> Name | None:
    if isinstance(min, Value) or isinstance(max, Value):
        return None
    dtype = call.results[0].dtype
    if dtype is not input.dtype or dtype is bool_:
        return None
    bounds = [None if b is None else w.number(b, dtype) for b in (min, max)]
    return w.node("Clip", w.name(input), *bounds)


@rule("arange")
def _arange(w: Writer, call: Call, **args: Any) -> Name | None:
    given = args.get("args") or args.get("bounds") or ()
    out = call.results[0]
    if len(given) not in (1, 2) or out.dtype.kind == "float":
        return None
    if not all(isinstance(v, int) for v in given):
        return None
    start, stop = (0, *given)[-2:]
    steps = w.node(
        "Range", w.ints([start], scalar=True), w.ints([stop], scalar=True), w.ints([1], scalar=True)
    )
    return w.cast(steps, int64, out.dtype)


@rule("gelu")
def _gelu(w: Writer, call: Call, input: Value, approximate: str = "none") -> Name | None:
    if w.opset >= 20:
        return w.node("Gelu", w.name(input), approximate=approximate)
    return None


@rule("prelu")
def _prelu(w: Writer, call: Call, input: Value, weight: Value) -> Name:
    slope = w.name(weight)
    if numel(weight.shape) > 1 and len(input.shape) > 2:
        slope = w.reshape(slope, weight.shape, (-1,) + (1,) * (len(input.shape) - 2))
    return w.node("PRelu", w.name(input), slope)


@rule("pow")
def _pow(w: Writer, call: Call, input: Any, exponent: Any) -> Name | None:
    if not isinstance(input, Value) or not isinstance(exponent, (int, float)):
        return None
    if call.results[0].dtype is not input.dtype or input.dtype.kind != "float":
        return None
    x = w.name(input)
    return (
        w.node("Mul", x, x) if exponent == 2 else w.node("Pow", x, w.number(exponent, input.dtype))
    )


# ---- recurrent ------------------------------------------------------------------------------------

# The order of the gates in ONNX, by their place in PyTorch's weights.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@rule("recurrence")
def _recurrence(w: Writer, call: Call, cell: Any, args: Any, kwargs: Any) -> Any:
    packed = "batch_sizes" in kwargs or (
        len(args) > 2 and isinstance(args[1], Value) and not isinstance(args[3], bool)
    )
    names = (
        "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional",
        "batch_first",
    )  # fmt: skip
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if packed or (given["train"] and given["dropout"] > 0 and given["num_layers"] > 1):
        return None
    op = {
        id(recurrence._LSTM): "LSTM", id(recurrence._GRU): "GRU", id(recurrence._TANH): "RNN",
        id(recurrence._RELU): "RNN",
    }[id(cell)]  # fmt: skip
    params = [w.tensor(p) for p in given["params"]]
    directions = 2 if given["bidirectional"] else 1
    count = len(params) // (given["num_layers"] * directions)
    if any(p is None for p in params) or count > (4 if given["has_biases"] else 2):
        return None  # weights that are computed, or a projection
    x_value = given["input"]
    if len(x_value.shape) != 3:
        return None
    hx = given["hx"]
    states = [hx] if isinstance(hx, Value) else list(hx)
    x = w.name(x_value)
    if given["batch_first"]:
        x = w.transpose(x, [1, 0, 2])
    batch, steps = (x_value.shape[0], x_value.shape[1])[:: 1 if given["batch_first"] else -1]
    hidden = states[0].shape[2]
    scope = call.scope or op.lower()
    lasts: list[list[Name]] = [[] for _ in states]
    initial = [w.name(s) for s in states]
    for layer in range(given["num_layers"]):
        place = layer * directions
        rows = [params[(place + d) * count : (place + d + 1) * count] for d in range(directions)]

        def joined(which: int, rows: Any = rows) -> Any:
            """Return one parameter of all directions, gates in ONNX's order."""
            return webtorch.stack([_reordered(r[which], op) for r in rows])

        weight = w.constant(joined(0), f"{scope}.weight_ih_l{layer}.onnx", weight=True)
        recurrent = w.constant(joined(1), f"{scope}.weight_hh_l{layer}.onnx", weight=True)
        bias = None
        if given["has_biases"]:
            both = webtorch.cat([joined(2), joined(3)], 1)
            bias = w.constant(both, f"{scope}.bias_l{layer}.onnx", weight=True)
        starts = [
            i if given["num_layers"] == 1 else w.slice(i, 0, place, place + directions)
            for i in initial
        ]
        attrs: dict[str, Any] = {"hidden_size": hidden}
        if directions == 2:
            attrs["direction"] = "bidirectional"
        if op == "GRU":
            attrs["linear_before_reset"] = 1
        if cell is recurrence._RELU:
            attrs["activations"] = ["Relu"] * directions
        found = w.node(
            op, x, weight, recurrent, bias, None, *starts, outputs=1 + len(states), **attrs
        )
        # (T, directions, N, H) to (T, N, directions * H)
        if directions == 1:
            x = w.squeeze(found[0], [1])
        else:
            turned = w.transpose(found[0], [0, 2, 1, 3])
            x = w.reshape(turned, (steps, batch, 2, hidden), (steps, batch, 2 * hidden))
        for last, one in zip(lasts, found[1:], strict=True):
            last.append(one)
    finals = [last[0] if len(last) == 1 else w.node("Concat", *last, axis=0) for last in lasts]
    if given["batch_first"]:
        x = w.transpose(x, [1, 0, 2])
    return (x, *finals)


def _reordered(weight: Any, op: str) -> Any:
    gates = weight.chunk(len(_GATES[op]), 0)
    return webtorch.cat([gates[g] for g in _GATES[op]], 0)
