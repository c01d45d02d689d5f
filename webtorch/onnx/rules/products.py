"""Products and convolutions as nodes. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.onnx.graph import Attr
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, rule

Sizes = int | Sequence[int]


def each_dim(value: Sizes | None, rank: int) -> list[int]:
    """Return one number for each dim; none for None."""
    if value is None:
        return []
    values = [value] * rank if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _transposed_leaf(w: Writer, v: Value) -> tuple[Name, bool]:
    """Return a matrix and whether it is to be transposed: of a transposed parameter, the parameter."""
    name = w.parameters.get(id(v.node))
    if name is not None and len(v.shape) == 2 and v.shape[::-1] == v.node.shape and not v.offset:
        straight = Value(v.node, v.node.shape, v.whole.strides, 0)
        if v.strides == straight.strides[::-1] and v != straight:
            return w.name(straight), True
    return w.name(v), False


@rule("linear")
def _linear(
    w: Writer, call: Call, input: Value, weight: Value, bias: Value | None = None
) -> Name | None:
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
def _matmul(w: Writer, call: Call, input: Value, **args: object) -> Name | None:
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
    w: Writer,
    call: Call,
    input: Value,
    mat1: Value,
    mat2: Value,
    beta: float = 1,
    alpha: float = 1,
) -> Name | None:
    if input.dtype.kind != "float" or not {input.dtype} == {mat1.dtype} == {mat2.dtype}:
        return None
    b, turned = _transposed_leaf(w, mat2)
    return w.node(
        "Gemm", w.name(mat1), b, w.name(input), transB=int(turned) or None,
        alpha=None if alpha == 1 else float(alpha), beta=None if beta == 1 else float(beta),
    )  # fmt: skip


@rule("einsum")
def _einsum(w: Writer, call: Call, args: Sequence[Any]) -> Name | None:
    if not isinstance(args[0], str):
        return None
    given = args[1:] if isinstance(args[1], Value) else args[1]
    return w.node("Einsum", *[w.name(v) for v in given], equation=args[0].replace(" ", ""))


def _convolution(
    w: Writer,
    call: Call,
    rank: int,
    op: str,
    input: Value,
    weight: Value,
    bias: Value | None,
    attrs: dict[str, Attr],
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
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Name:
    rank = int(call.name[4])
    kernel = list(weight.shape[2:])
    dilation = each_dim(dilation, rank)
    if padding == "same":
        # The extra element stands behind, as in PyTorch.
        whole = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [n // 2 for n in whole] + [n - n // 2 for n in whole]
    else:
        pads = [0] * 2 * rank if isinstance(padding, str) else each_dim(padding, rank) * 2
    attrs: dict[str, Attr] = {
        "kernel_shape": kernel, "strides": each_dim(stride, rank), "pads": pads, "dilations": dilation,
        "group": groups,
    }  # fmt: skip
    return _convolution(w, call, rank, "Conv", input, weight, bias, attrs)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    w: Writer,
    call: Call,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Name:
    rank = int(call.name[-2])
    attrs: dict[str, Attr] = {
        "kernel_shape": list(weight.shape[2:]), "strides": each_dim(stride, rank),
        "pads": each_dim(padding, rank) * 2, "output_padding": each_dim(output_padding, rank),
        "dilations": each_dim(dilation, rank), "group": groups,
    }  # fmt: skip
    return _convolution(w, call, rank, "ConvTranspose", input, weight, bias, attrs)
