"""Normalisations, softmax and attention as nodes. Floor 6."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType, bool_
from webtorch.onnx.graph import ExportError
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.rules.products import Sizes
from webtorch.onnx.writer import Name, Writer, rule


def _vector(w: Writer, v: Value | None, count: int, fill: float, dtype: DType, title: str) -> Name:
    if v is not None:
        return w.name(v)
    key = (title, count, fill, dtype)
    if key not in w.interned:
        tensor = webtorch.full((count,), fill, dtype=dtype, device="cpu")
        w.interned[key] = w.constant(tensor, title)
    return w.interned[key]


def _same_type(*values: Value | None) -> bool:
    return len({v.dtype for v in values if v is not None}) == 1


@rule("batch_norm")
def _batch_norm(
    w: Writer,
    call: Call,
    input: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-05,
) -> Name | None:
    if training or running_mean is None or running_var is None:
        return None
    if not _same_type(input, running_mean, weight):
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
    normalized_shape: Sizes,
    weight: Value | None = None,
    bias: Value | None = None,
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
    w: Writer,
    call: Call,
    input: Value,
    normalized_shape: Sizes,
    weight: Value | None = None,
    eps: float | None = None,
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
    weight: Value | None = None,
    bias: Value | None = None,
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
    running_mean: Value | None = None,
    running_var: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    use_input_stats: bool = True,
    momentum: float | None = 0.1,
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
    w: Writer, call: Call, input: Value, dim: int | None = None, dtype: DType | None = None
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
    mask: Value | None,
    causal: bool,
    scale: float,
    dropout: object,
    again: object,
) -> Name:
    if dropout is not None:
        raise ExportError(
            "export: dropout of attention weights has no form in ONNX: call eval() first"
        )
    return _weighted(w, query, key, value, mask, causal, scale)


@rule("_attended")
def _attended(
    w: Writer,
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    causal: bool,
    factor: float,
    enable_gqa: bool,
) -> tuple[Name, None]:
    # What backward needs has no name.
    return _weighted(w, query, key, value, mask, causal, factor), None


def _weighted(
    w: Writer,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    causal: bool,
    scale: float,
) -> Name:
    """Write softmax(query key^T scale + mask) value, of two dims or more."""
    dtype = query.dtype
    q, k, v = w.name(query), w.name(key), w.name(value)
    length, source, rank = query.shape[-2], key.shape[-2], len(key.shape)
    heads, shared = ((x.shape[-3] if len(x.shape) > 2 else 1) for x in (query, key))
    if heads > shared > 1:
        # Each head of keys serves several of queries in a row.
        def repeated(x: Name, shape: tuple[int, ...]) -> Name:
            """Return keys or values with each head as often as queries use it."""
            lead = shape[:-3]
            wide = (*lead, shared, heads // shared, *shape[-2:])
            x = w.unsqueeze(x, [len(lead) + 1])
            x = w.expand(x, (*lead, shared, 1, *shape[-2:]), wide)
            return w.node("Reshape", x, w.ints((*(0 for _ in lead), heads, -1, shape[-1])))

        k, v = repeated(k, key.shape), repeated(v, value.shape)
    turned = w.transpose(k, [*range(rank - 2), rank - 1, rank - 2])
    scores = w.node("MatMul", q, turned)
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
    weights = w.node("Softmax", scores, axis=-1)
    if mask is not None:
        # A row of nothing but -inf gives NaN in ONNX and zeros here.
        weights = w.node("Where", w.node("IsNaN", weights), w.number(0, dtype), weights)
    return w.node("MatMul", weights, v)
