"""Recurrent layers as nodes. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.nn import recurrence
from webtorch.onnx.graph import Attr
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, Written, rule
from webtorch.tensors.tensor import Tensor

# The order of the gates in ONNX, by their place in PyTorch's weights.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@rule("recurrence")
def _recurrence(
    w: Writer, call: Call, cell: object, args: Sequence[object], kwargs: dict[str, Any]
) -> Written:
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
    layers, directions = given["num_layers"], 2 if given["bidirectional"] else 1
    params = [w.tensor(p) for p in given["params"]]
    count = len(params) // (layers * directions)
    known = [p for p in params if p is not None]
    if len(known) < len(params) or count > (4 if given["has_biases"] else 2):
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
    attrs = _attrs(op, hidden, directions, cell is recurrence._RELU)
    lasts: list[list[Name]] = [[] for _ in states]
    initial = [w.name(s) for s in states]
    for layer in range(layers):
        place = layer * directions
        rows = [known[(place + d) * count : (place + d + 1) * count] for d in range(directions)]
        weights = _weights(w, rows, op, scope, layer, given["has_biases"])
        starts = initial
        if layers > 1:
            starts = [w.slice(i, 0, place, place + directions) for i in initial]
        found = w.outputs(1 + len(states), op, x, *weights, None, *starts, **attrs)
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


def _attrs(op: str, hidden: int, directions: int, has_relu: bool) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {"hidden_size": hidden}
    if directions == 2:
        attrs["direction"] = "bidirectional"
    if op == "GRU":
        attrs["linear_before_reset"] = 1
    if has_relu:
        attrs["activations"] = ["Relu"] * directions
    return attrs


def _weights(
    w: Writer, rows: Sequence[Sequence[Tensor]], op: str, scope: str, layer: int, has_biases: bool
) -> tuple[Name, Name, Name | None]:
    """Return the constants of one layer, whose parameters are a row for each direction."""

    def joined(which: int) -> Tensor:
        """Return one parameter of all directions, gates in ONNX's order."""
        return webtorch.stack([_reordered(r[which], op) for r in rows])

    weight = w.constant(joined(0), f"{scope}.weight_ih_l{layer}.onnx", weight=True)
    recurrent = w.constant(joined(1), f"{scope}.weight_hh_l{layer}.onnx", weight=True)
    if not has_biases:
        return weight, recurrent, None
    both = webtorch.cat([joined(2), joined(3)], 1)
    return weight, recurrent, w.constant(both, f"{scope}.bias_l{layer}.onnx", weight=True)


def _reordered(weight: Tensor, op: str) -> Tensor:
    gates = weight.chunk(len(_GATES[op]), 0)
    return webtorch.cat([gates[g] for g in _GATES[op]], 0)
