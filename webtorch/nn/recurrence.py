"""The recurrences of RNN, LSTM and GRU as functions, with PyTorch's arguments. May import the tensor floor only.

The products with the inputs of all steps are one product; a step is one product and what is elementwise
behind it, which the compiler puts into one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn import functional as F

__all__ = [
    "gru",
    "gru_cell",
    "lstm",
    "lstm_cell",
    "rnn_relu",
    "rnn_relu_cell",
    "rnn_tanh",
    "rnn_tanh_cell",
]

# The state between two steps: (h,) or (h, c).
State = tuple[Tensor, ...]
# (products with the input, state) -> state
Cell = Callable[[Tensor, State], State]


class _Weights:
    """The parameters of one layer in one direction; absent biases are None."""

    def __init__(self, given: Sequence[Tensor], has_biases: bool, projected: bool) -> None:
        self.ih, self.hh = given[0], given[1]
        self.bias_ih = given[2] if has_biases else None
        self.bias_hh = given[3] if has_biases else None
        self.hr = given[-1] if projected else None


def _elman(activation: Callable[[Tensor], Tensor]) -> Callable[[_Weights], Cell]:
    def make(weights: _Weights) -> Cell:
        hh = weights.hh.t()
        return lambda gates, state: (activation(gates + state[0] @ hh),)

    return make


def _lstm_state(gates: Tensor, cell: Tensor) -> State:
    """Return (h, c) behind the gates (N, 4 H), in the order input, forget, cell, output."""
    i, f, g, o = gates.chunk(4, -1)
    new = webtorch.sigmoid(f) * cell + webtorch.sigmoid(i) * webtorch.tanh(g)
    return webtorch.sigmoid(o) * webtorch.tanh(new), new


def _long_short(weights: _Weights) -> Cell:
    hh = weights.hh.t()

    def step(gates: Tensor, state: State) -> State:
        h, c = _lstm_state(gates + state[0] @ hh, state[1])
        return (h if weights.hr is None else h @ weights.hr.t()), c

    return step


def _gru_state(inputs: Tensor, hiddens: Tensor, h: Tensor) -> State:
    """Return (h,) behind both products (N, 3 H), in the order reset, update, new."""
    input_r, input_z, input_n = inputs.chunk(3, -1)
    hidden_r, hidden_z, hidden_n = hiddens.chunk(3, -1)
    reset, update = webtorch.sigmoid(input_r + hidden_r), webtorch.sigmoid(input_z + hidden_z)
    new = webtorch.tanh(input_n + reset * hidden_n)
    return (new + update * (h - new),)


def _gated(weights: _Weights) -> Cell:
    def step(gates: Tensor, state: State) -> State:
        return _gru_state(gates, F.linear(state[0], weights.hh, weights.bias_hh), state[0])

    return step


def _input_products(weights: _Weights, x: Tensor, gated: bool) -> Tensor:
    """Return what all steps take from their inputs; biases that only add up are added here."""
    bias = weights.bias_ih
    if bias is not None and not gated:
        bias = bias + weights.bias_hh
    return F.linear(x, weights.ih, bias)


def _over_steps(step: Cell, gates: Tensor, state: State, reverse: bool) -> tuple[Tensor, State]:
    """Run a cell over (T, N, gates); return (T, N, H) and the last state."""
    rows = gates.unbind(0)
    out = []
    for row in reversed(rows) if reverse else rows:
        state = step(row, state)
        out.append(state[0])
    return webtorch.stack(out[::-1] if reverse else out), state


def _over_packed(
    step: Cell, gates: Tensor, sizes: list[int], start: State, reverse: bool
) -> tuple[Tensor, State]:
    """Run a cell over packed steps; return packed outputs and the state behind each sequence."""
    parts = gates.split(sizes)
    out: list[Tensor] = []
    if reverse:
        # The longest sequences begin; the others join where they end.
        state = tuple(s[: sizes[-1]] for s in start)
        active = sizes[-1]
        for part, size in zip(reversed(parts), reversed(sizes), strict=True):
            if size > active:
                state = tuple(
                    webtorch.cat([s, b[active:size]]) for s, b in zip(state, start, strict=True)
                )
                active = size
            state = step(part, state)
            out.append(state[0])
        return webtorch.cat(out[::-1]), state
    state, ended = start, []
    for part, size in zip(parts, sizes, strict=True):
        if size < state[0].shape[0]:
            ended.append(tuple(s[size:] for s in state))
            state = tuple(s[:size] for s in state)
        state = step(part, state)
        out.append(state[0])
    ended.append(state)
    # Those that ended last are first in the batch.
    last = tuple(webtorch.cat(list(pieces)) for pieces in zip(*reversed(ended), strict=True))
    return webtorch.cat(out), last


def _layers(
    make: Callable[[_Weights], Cell],
    gated: bool,
    x: Tensor,
    sizes: list[int] | None,
    hx: State,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, State]:
    """Run all layers over (T, N, features) or packed steps; return outputs and last states."""
    directions = 2 if bidirectional else 1
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    count = len(params) // (num_layers * directions)
    # h has another size than c where there is a projection.
    projected = count > (4 if has_biases else 2)
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = _Weights(params[place * count : (place + 1) * count], has_biases, projected)
            gates, step = _input_products(weights, x, gated), make(weights)
            start = tuple(h[place] for h in hx)
            if sizes is None:
                out, state = _over_steps(step, gates, start, direction == 1)
            else:
                out, state = _over_packed(step, gates, sizes, start, direction == 1)
            outputs.append(out)
            last.append(state)
        x = outputs[0] if directions == 1 else webtorch.cat(outputs, -1)
        if dropout > 0 and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    return x, tuple(webtorch.stack(list(states)) for states in zip(*last, strict=True))


def _sequence(
    make: Callable[[_Weights], Cell], gated: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...]:
    """Run either form of PyTorch's functions: with steps in a dimension, or packed."""
    names: tuple[str, ...]
    packed = "batch_sizes" in kwargs or (
        len(args) > 2 and isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    )
    common = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
    if packed:
        names = ("data", "batch_sizes", "hx", *common)
    else:
        names = ("input", "hx", *common, "batch_first")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    hx = given["hx"]
    state = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    batch_first = not packed and given["batch_first"]
    x = given["data"] if packed else given["input"]
    sizes = [int(n) for n in given["batch_sizes"].tolist()] if packed else None
    out, last = _layers(
        make, gated, x.transpose(0, 1) if batch_first else x, sizes, state,
        *(given[name] for name in common),
    )  # fmt: skip
    return out.transpose(0, 1) if batch_first else out, *last


def rnn_tanh(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Return (output, h_n) of `(input, hx, params, has_biases, num_layers, dropout, train,
    bidirectional, batch_first)`, or packed, of `(data, batch_sizes, hx, params, ...)`.
    """
    return _sequence(_elman(webtorch.tanh), False, args, kwargs)


def rnn_relu(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Return (output, h_n); arguments as those of `rnn_tanh`."""
    return _sequence(_elman(webtorch.relu), False, args, kwargs)


def lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Return (output, h_n, c_n); arguments as those of `rnn_tanh`, with hx = (h_0, c_0)."""
    return _sequence(_long_short, False, args, kwargs)


def gru(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Return (output, h_n); arguments as those of `rnn_tanh`."""
    return _sequence(_gated, True, args, kwargs)


def _products(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the products of a cell with its input and its state, checked."""
    if x.shape[1] != w_ih.shape[1]:
        raise RuntimeError(
            f"input has inconsistent input_size: got {x.shape[1]} expected {w_ih.shape[1]}"
        )
    if h.shape[0] != x.shape[0]:
        raise RuntimeError(
            f"Input batch size {x.shape[0]} doesn't match hidden0 batch size {h.shape[0]}"
        )
    if h.shape[1] != w_hh.shape[1]:
        raise RuntimeError(
            f"hidden0 has inconsistent hidden_size: got {h.shape[1]}, expected {w_hh.shape[1]}"
        )
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)


def rnn_tanh_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return tanh(W_ih x + b_ih + W_hh h + b_hh): (N, features), (N, H) to (N, H)."""
    a, b = _products(input, hx, w_ih, w_hh, b_ih, b_hh)
    return webtorch.tanh(a + b)


def rnn_relu_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return relu(W_ih x + b_ih + W_hh h + b_hh): (N, features), (N, H) to (N, H)."""
    a, b = _products(input, hx, w_ih, w_hh, b_ih, b_hh)
    return webtorch.relu(a + b)


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (h, c) of one step: (N, features), ((N, H), (N, H)) to two of (N, H)."""
    a, b = _products(input, hx[0], w_ih, w_hh, b_ih, b_hh)
    h, c = _lstm_state(a + b, hx[1])
    return h, c


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return h of one step: (N, features), (N, H) to (N, H)."""
    a, b = _products(input, hx, w_ih, w_hh, b_ih, b_hh)
    return _gru_state(a, b, hx)[0]
