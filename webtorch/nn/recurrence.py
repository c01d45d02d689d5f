"""The recurrences of RNN, LSTM and GRU as functions, with PyTorch's arguments. May import the tensor floor only.

The products with the inputs of all steps are one product; a step is one product with the state and what is
elementwise behind it. Steps are computed as they come, by one program for all of them; those of a length that has come
often are operations of the loop around them, which a script follows as one program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webtorch import autograd
from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.ops.record import Autocast
from webtorch.runtime import realize as realizing
from webtorch.runtime.backend import compiling
from webtorch.tensors import autocast
from webtorch.tensors.host import reads, sizes_in
from webtorch.tensors.tape import SavedTensor, looks_at_each, start_at
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import realize

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


@dataclass(frozen=True)
class _Cell:
    """One step of a recurrence, forwards and backwards, without its products with weights.

    `step(inputs, hiddens, state)` takes the products with the input and with h, both (N, gates * H),
    and returns the new state and what `back` needs. `back(grads, saved, before)` takes the gradients
    of the new state and returns those of both products and of the state before, as far as it does
    not go through the product.
    """

    step: Callable[[Tensor, Tensor, State], tuple[State, State]]
    back: Callable[[State, State, State], tuple[State, State, State]]
    # Whether the products are not just added up: then they have gradients of their own.
    apart: bool = False


def _elman(activation: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> _Cell:
    def step(inputs: Tensor, hiddens: Tensor, state: State) -> tuple[State, State]:
        """Return the new state, and what the gradient reads: the state itself."""
        h = activation(inputs + hiddens)
        return (h,), (h,)

    def back(grads: State, saved: State, before: State) -> tuple[State, State, State]:
        """Return the gradients of both summands, and nothing that goes past the step."""
        g = (grads[0] * slope(saved[0]),)
        return g, g, ()

    return _Cell(step, back)


_TANH = _elman(webtorch.tanh, lambda h: 1 - h * h)
_RELU = _elman(webtorch.relu, lambda h: (h > 0).to(h.dtype))


def _lstm_step(inputs: Tensor, hiddens: Tensor, state: State) -> tuple[State, State]:
    """Return (h, c) and the gates; their order in the products is input, forget, cell, output."""
    i, f, g, o = (inputs + hiddens).chunk(4, -1)
    i, f, g, o = webtorch.sigmoid(i), webtorch.sigmoid(f), webtorch.tanh(g), webtorch.sigmoid(o)
    c = f * state[1] + i * g
    t = webtorch.tanh(c)
    return (o * t, c), (i, f, g, o, t)


def _lstm_back(grads: State, saved: State, before: State) -> tuple[State, State, State]:
    i, f, g, o, t = saved
    dh, dc = grads
    dc = dc + dh * o * (1 - t * t)
    gates = (
        dc * g * i * (1 - i),
        dc * before[1] * f * (1 - f),
        dc * i * (1 - g * g),
        dh * t * o * (1 - o),
    )
    return gates, gates, (dc * f,)


def _gru_step(inputs: Tensor, hiddens: Tensor, state: State) -> tuple[State, State]:
    """Return (h,) and the gates; their order in the products is reset, update, new."""
    (xr, xz, xn), (hr, hz, hn) = inputs.chunk(3, -1), hiddens.chunk(3, -1)
    r, z = webtorch.sigmoid(xr + hr), webtorch.sigmoid(xz + hz)
    n = webtorch.tanh(xn + r * hn)
    return (n + z * (state[0] - n),), (r, z, n, hn)


def _gru_back(grads: State, saved: State, before: State) -> tuple[State, State, State]:
    r, z, n, hn = saved
    dn = grads[0] * (1 - z) * (1 - n * n)
    dz = grads[0] * (before[0] - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    return (dr, dz, dn), (dr, dz, dn * r), (grads[0] * z,)


_LSTM = _Cell(_lstm_step, _lstm_back)
_GRU = _Cell(_gru_step, _gru_back, apart=True)


def _order(steps: int, reverse: bool) -> Sequence[int]:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _kept(mask: Tensor | None, t: int, new: State, old: State) -> State:
    """Return the new state where the sequence goes on at step t, and the old one elsewhere."""
    if mask is None:
        return new
    return tuple(webtorch.where(mask[t], a, b) for a, b in zip(new, old, strict=True))


def _recorded(
    cell: _Cell,
    gates: Tensor,
    mask: Tensor | None,
    start: State,
    hh: Tensor,
    bias: Tensor | None,
    hr: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, State]:
    """Run a cell over (T, N, gates) as operations that autograd and captures follow.

    Returns (T, N, H) and the last state.
    """
    rows, state = gates.unbind(0), start
    out: list[Any] = [None] * len(rows)
    for t in _order(len(rows), reverse):
        new, _ = cell.step(rows[t], F.linear(state[0], hh, bias), state)
        if hr is not None:
            new = (F.linear(new[0], hr), *new[1:])
        state = _kept(mask, t, new, state)
        out[t] = state[0]
    return webtorch.stack(out), state


class _Steps(autograd.Function):
    """A recurrence over (T, N, gates) that computes each step as it comes.

    All steps of all sequences are one cached program, whatever their number: nothing is compiled
    anew for another length. The gradients of the weights are one product over all steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: _Cell,
        reverse: bool,
        mask: Tensor | None,
        gates: Tensor,
        hr: Tensor | None,
        bias: Tensor | None,
        hh: Tensor,
        *start: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return (T, N, H) and the last state. Leaves get their gradients in the order in which they are given."""
        steps, batch = gates.shape[:2]
        out = gates.new_empty((steps, batch, start[0].shape[1]))
        state: State = start
        # What backward needs of each step: gates, the state before, h before the projection.
        saved: list[Any] = [None] * steps
        needed = any(ctx.needs_input_grad)
        realize(gates, *start)
        for t in _order(steps, reverse):
            before = state
            new, kept = cell.step(gates[t], F.linear(before[0], hh, bias), before)
            raw = new[0]
            if hr is not None:
                new = (F.linear(raw, hr), *new[1:])
            state = _kept(mask, t, new, before)
            out[t].copy_(state[0])
            if needed:
                saved[t] = (kept, before, raw)
                realize(out, *state, *kept, raw)
            else:
                realize(out, *state)
        ctx.cell, ctx.reverse, ctx.saved = cell, reverse, saved
        # Only gradients of gradients read the bias, which may be written before: they take what it was.
        ctx.bias = None if bias is None or not needed else SavedTensor(bias, apart=True)
        ctx.save_for_backward(mask, gates, hr, hh, *start)
        return (out, *state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Return the gradients of all inputs."""
        mask, gates, hr, hh, *start = ctx.saved_tensors
        if webtorch.is_grad_enabled() or looks_at_each():
            # The gradients have gradients themselves, or are mapped.
            bias = None if ctx.bias is None else ctx.bias.unpack()
            inputs = (gates, hr, bias, hh, *start)
            return (None, None, None, *_differentiable(ctx, inputs, mask, grads))
        cell, saved = ctx.cell, ctx.saved
        steps, batch, width = gates.shape
        hidden = hh.shape[0] // (width // hh.shape[0] or 1)
        at_input = gates.new_empty((steps, batch, width))
        at_hidden = gates.new_empty((steps, batch, width)) if cell.apart else at_input
        # For the weights: h before each step, and both sides of the projection.
        before_all = gates.new_empty((steps, batch, hh.shape[1]))
        raw_all = None if hr is None else gates.new_empty((steps, batch, hr.shape[1]))
        at_h = None if hr is None else gates.new_empty((steps, batch, hr.shape[0]))
        flowing: State = tuple(grads[1:])
        realize(*grads)
        for t in _order(steps, not ctx.reverse):
            kept, before, raw = saved[t]
            dh = flowing[0] + grads[0][t]
            arriving: State = (dh, *flowing[1:])
            live = arriving
            if mask is not None:
                live = tuple(webtorch.where(mask[t], g, 0.0) for g in arriving)
            if hr is not None and raw_all is not None and at_h is not None:
                raw_all[t].copy_(raw)
                at_h[t].copy_(live[0])
                live = (live[0] @ hr, *live[1:])
            of_input, of_hidden, of_state = cell.back(live, kept, before)
            hidden = width // len(of_input)
            for position, part in enumerate(of_input):
                at_input[t, :, position * hidden : (position + 1) * hidden].copy_(part)
            if cell.apart:
                for position, part in enumerate(of_hidden):
                    at_hidden[t, :, position * hidden : (position + 1) * hidden].copy_(part)
            before_all[t].copy_(before[0])
            through = at_hidden[t] @ hh
            # An LSTM's h goes through the product only, a GRU's also past it.
            if len(flowing) == 2:
                passed: State = (through, *of_state)
            else:
                passed = (through + of_state[0],) if of_state else (through,)
            if mask is not None:
                passed = tuple(
                    p + webtorch.where(mask[t], 0.0, g)
                    for p, g in zip(passed, arriving, strict=True)
                )
            flowing = passed
            everything = (at_input, at_hidden, before_all, raw_all, at_h, *flowing)
            realize(*(one for one in everything if one is not None))
        flat = at_hidden.reshape(-1, width)
        of_hh = flat.t() @ before_all.reshape(-1, hh.shape[1])
        of_bias = None if ctx.bias is None else flat.sum(0)
        of_hr = None
        if raw_all is not None and at_h is not None and hr is not None:
            of_hr = at_h.reshape(-1, hr.shape[0]).t() @ raw_all.reshape(-1, hr.shape[1])
        return (None, None, None, at_input, of_hr, of_bias, of_hh, *flowing)


def _differentiable(
    ctx: Any, inputs: tuple[Any, ...], mask: Tensor | None, grads: tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Return the gradients as results that have gradients themselves."""
    create = webtorch.is_grad_enabled()
    if create:
        inputs = tuple([None if one is None else start_at(one) for one in inputs])
    gates, hr, bias, hh, *start = inputs
    with webtorch.enable_grad():
        out, state = _recorded(ctx.cell, gates, mask, tuple(start), hh, bias, hr, ctx.reverse)
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    found = autograd.grad((out, *state), wanted, grads, create_graph=create, allow_unused=True)
    of = {id(one): grad for one, grad in zip(wanted, found, strict=True)}
    return [of.get(id(one)) for one in inputs]


def _run(
    cell: _Cell,
    x: Tensor,
    mask: Tensor | None,
    start: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    reverse: bool,
) -> tuple[Tensor, State]:
    """Run one direction of one layer over (T, N, features); return (T, N, H) and the last state."""
    ih, hh = weights[:2]
    bias_ih, bias_hh = (weights[2], weights[3]) if has_biases else (None, None)
    # h has another size than c where there is a projection.
    hr = weights[-1] if len(weights) > (4 if has_biases else 2) else None
    gates = F.linear(x, ih, bias_ih)
    if not reads.possible or looks_at_each() or autocast.state.enabled:
        # A capture takes down all steps, and replays them without Python; transforms look at each
        # operation, and autocast chooses its type.
        return _recorded(cell, gates, mask, start, hh, bias_hh, hr, reverse)
    if _comes_often(cell, mask, gates, start):
        return _recorded(cell, gates, mask, start, hh, bias_hh, hr, reverse)
    return _as_they_come(cell, gates, mask, start, hh, bias_hh, hr, reverse)


@dispatched(role="other")
def _as_they_come(
    cell: _Cell,
    gates: Tensor,
    mask: Tensor | None,
    start: State,
    hh: Tensor,
    bias: Tensor | None,
    hr: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, State]:
    """Return what `_recorded` does, with each step computed. No script looks at the steps."""
    out, *last = _Steps.apply(cell, reverse, mask, gates, hr, bias, hh, *start)
    return out, tuple(last)


# How often a length comes before its steps are one program, and the longest.
_OFTEN = 8
_LONGEST = 256
# How often cells have been given what is like this.
_came: Counter[object] = Counter()


def _comes_often(cell: _Cell, mask: Tensor | None, gates: Tensor, start: State) -> bool:
    """Whether the steps of a sequence may be one program: while scripts follow loops, that takes a third to a fifth of
    the time, once it is compiled.
    """
    if realizing.listener is None or compiling.at_once or gates.shape[0] > _LONGEST:
        return False
    key = cell, mask is None, gates.shape, gates.dtype, start[0].shape, gates.requires_grad
    if len(_came) > 1024:
        _came.clear()
    _came[key] += 1
    return _came[key] > _OFTEN


def _layers(
    cell: _Cell,
    x: Tensor,
    mask: Tensor | None,
    hx: State,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, State]:
    """Run all layers over (T, N, features); return (T, N, directions * H) and the last states."""
    directions = 2 if bidirectional else 1
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    count = len(params) // (num_layers * directions)
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = params[place * count : (place + 1) * count]
            start = tuple(h[place] for h in hx)
            out, state = _run(cell, x, mask, start, weights, has_biases, direction == 1)
            outputs.append(out)
            last.append(state)
        x = outputs[0] if directions == 1 else webtorch.cat(outputs, -1)
        if dropout > 0 and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    return x, tuple(webtorch.stack(list(states)) for states in zip(*last, strict=True))


def _padded(data: Tensor, batch_sizes: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Return packed steps as (T, N, features), the mask (T, N, 1) of what is real, and where.

    Steps of one shape need no program for each batch size.
    """
    sizes = sizes_in(batch_sizes)
    places = [t * sizes[0] + i for t, size in enumerate(sizes) for i in range(size)]
    sources, start = [], 0
    for size in sizes:
        sources += [start + i if i < size else 0 for i in range(sizes[0])]
        start += size
    real = [[[i < size] for i in range(sizes[0])] for size in sizes]
    index = webtorch.tensor(sources, dtype=webtorch.int64, device=data.device)
    padded = data.index_select(0, index).reshape(len(sizes), sizes[0], data.shape[1])
    return padded, webtorch.tensor(real, device=data.device), places


def _named(args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of either form of PyTorch's functions by name; packed steps are "data"."""
    packed = "batch_sizes" in kwargs or (
        len(args) > 2 and isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    )
    names = ("data", "batch_sizes", "hx", *_COMMON) if packed else ("input", "hx", *_COMMON)
    return {**dict(zip((*names, "batch_first"), args, strict=False)), **kwargs}


@dispatched("recurrence")
def _sequence(cell: _Cell, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Run either form of PyTorch's functions: with steps in a dimension, or packed."""
    given = _named(args, kwargs)
    hx = given["hx"]
    state = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    rest = [given[name] for name in _COMMON]
    if "data" in given:
        x, mask, places = _padded(given["data"], given["batch_sizes"])
        out, last = _layers(cell, x, mask, state, *rest)
        index = webtorch.tensor(places, dtype=webtorch.int64, device=out.device)
        return out.reshape(-1, out.shape[2]).index_select(0, index), *last
    x = given["input"]
    out, last = _layers(cell, x.transpose(0, 1) if given["batch_first"] else x, None, state, *rest)
    return out.transpose(0, 1) if given["batch_first"] else out, *last


_COMMON = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
# On accelerators autocast takes a recurrence as one operation; on the CPU it sees its parts.
_ON_ACCELERATORS = Autocast(gpu="lower")


@dispatched(autocast=_ON_ACCELERATORS)
def rnn_tanh(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Return (output, h_n) of `(input, hx, params, has_biases, num_layers, dropout, train,
    bidirectional, batch_first)`, or packed, of `(data, batch_sizes, hx, params, ...)`.
    """
    return _sequence(_TANH, args, kwargs)


@dispatched(autocast=_ON_ACCELERATORS)
def rnn_relu(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Return (output, h_n); arguments as those of `rnn_tanh`."""
    return _sequence(_RELU, args, kwargs)


@dispatched(autocast=_ON_ACCELERATORS)
def lstm(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Return (output, h_n, c_n); arguments as those of `rnn_tanh`, with hx = (h_0, c_0)."""
    given = _named(args, kwargs)
    weights = len(given["params"]) // (given["num_layers"] * (1 + given["bidirectional"]))
    projected = weights > (4 if given["has_biases"] else 2)
    if projected or "data" in given or not given["input"].numel():
        return _sequence(_LSTM, args, kwargs)
    return _onednn_lstm(*args, **kwargs)


@dispatched(autocast=Autocast(cpu="lower"))
def _onednn_lstm(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Run what is one operation of oneDNN in PyTorch on the CPU, for which its autocast has a rule."""
    return _sequence(_LSTM, args, kwargs)


@dispatched(autocast=_ON_ACCELERATORS)
def gru(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Return (output, h_n); arguments as those of `rnn_tanh`."""
    return _sequence(_GRU, args, kwargs)


def _check_state(x: Tensor, h: Tensor, w_hh: Tensor, number: int) -> None:
    if h.shape[0] != x.shape[0]:
        raise RuntimeError(
            f"Input batch size {x.shape[0]} doesn't match hidden{number} batch size {h.shape[0]}"
        )
    if h.shape[1] != w_hh.shape[1]:
        raise RuntimeError(
            f"hidden{number} has inconsistent hidden_size: got {h.shape[1]}, expected {w_hh.shape[1]}"
        )


def _products(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    state_first: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the products of a cell with its input and its state, checked. The order in which they are recorded is
    PyTorch's, so that leaves get their gradients in its order.
    """
    if x.shape[1] != w_ih.shape[1]:
        raise RuntimeError(
            f"input has inconsistent input_size: got {x.shape[1]} expected {w_ih.shape[1]}"
        )
    _check_state(x, h, w_hh, 0)
    if state_first:
        of_state = F.linear(h, w_hh, b_hh)
        return F.linear(x, w_ih, b_ih), of_state
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)


@dispatched(autocast=_ON_ACCELERATORS)
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


@dispatched(autocast=_ON_ACCELERATORS)
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


@dispatched(autocast=_ON_ACCELERATORS)
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
    _check_state(input, hx[1], w_hh, 1)
    (h, c), _ = _lstm_step(a, b, tuple(hx))
    return h, c


@dispatched(autocast=_ON_ACCELERATORS)
def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Return h of one step: (N, features), (N, H) to (N, H)."""
    a, b = _products(input, hx, w_ih, w_hh, b_ih, b_hh, state_first=False)
    return _gru_step(a, b, (hx,))[0][0]
