"""Recurrent layers, step by step. Floor 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Result, op
from webtorch.tensors.tensor import Tensor


def _clipped(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


# What one direction of a layer computes element by element, and what one step gives: the states h and, of an LSTM, c.
Activation: TypeAlias = Callable[[Tensor], Tensor]
States: TypeAlias = tuple[Tensor, Tensor | None]
_ACTIVATIONS: dict[str, Callable[[Tensor, Any, Any], Tensor]] = {
    "Relu": lambda x, a, b: webtorch.relu(x), "Tanh": lambda x, a, b: webtorch.tanh(x),
    "Sigmoid": lambda x, a, b: webtorch.sigmoid(x),
    "Affine": lambda x, a, b: x * (1.0 if a is None else a) + (0.0 if b is None else b),
    "LeakyRelu": lambda x, a, b: F.leaky_relu(x, 0.01 if a is None else a),
    "ThresholdedRelu": lambda x, a, b: webtorch.where(x > (1.0 if a is None else a), x, 0.0),
    "ScaledTanh": lambda x, a, b: a * webtorch.tanh(b * x),
    "HardSigmoid": lambda x, a, b: (x * (0.2 if a is None else a) + (0.5 if b is None else b)).clamp(0, 1),
    "Elu": lambda x, a, b: F.elu(x, 1.0 if a is None else a),
    "Softsign": lambda x, a, b: F.softsign(x), "Softplus": lambda x, a, b: F.softplus(x),
}  # fmt: skip


def _activations(a: Attrs, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    names = a.get("activations") or list(defaults) * directions
    alphas, betas = list(a.get("activation_alpha") or ()), list(a.get("activation_beta") or ())

    def made(i: int, name: str) -> Activation:
        """Return an activation with its alpha and beta."""
        alpha = alphas[i] if i < len(alphas) else None
        beta = betas[i] if i < len(betas) else None
        return lambda x: _ACTIVATIONS[name](x, alpha, beta)

    each = len(defaults)
    functions = [made(i, name) for i, name in enumerate(names)]
    return [functions[d * each : (d + 1) * each] for d in range(directions)]


def _recurrent(name: str, gates: int, defaults: Sequence[str], step: Callable[..., States]) -> None:
    @op(name)
    def run(
        c: Context,
        a: Attrs,
        n: int,
        x: Tensor,
        w: Tensor,
        r: Tensor,
        b: Tensor | None = None,
        lengths: Tensor | None = None,
        h0: Tensor | None = None,
        c0: Tensor | None = None,
        peepholes: Tensor | None = None,
    ) -> Result:
        """Run all directions; return the outputs (steps, directions, batch, hidden) and the last states."""
        directions = w.shape[0]
        hidden = r.shape[2]
        batch_first = a.get("layout", 0)
        if batch_first:
            x = x.transpose(0, 1)
            h0, c0 = (None if s is None else s.transpose(0, 1) for s in (h0, c0))
        steps, batch = x.shape[:2]
        functions = _activations(a, defaults, directions)
        mask = None
        if lengths is not None:
            where = webtorch.arange(steps, device=x.device).reshape(-1, 1)
            mask = (where < lengths.to(webtorch.int64)).unsqueeze(-1)
        outs, lasts, cells = [], [], []
        for d in range(directions):
            backward = a.get("direction", "forward") == "reverse" or d == 1
            bias_w, bias_r = (
                (None, None) if b is None else (b[d, : gates * hidden], b[d, gates * hidden :])
            )
            products = F.linear(x, w[d], bias_w)
            zeros = webtorch.zeros((batch, hidden), dtype=x.dtype, device=x.device)
            h = zeros if h0 is None else h0[d]
            cell = zeros if c0 is None else c0[d]
            p = None if peepholes is None else peepholes[d]
            rows: dict[int, Tensor] = {}
            for t in reversed(range(steps)) if backward else range(steps):
                new_h, new_c = step(a, functions[d], products[t], h, cell, r[d], bias_r, p)
                if mask is not None:
                    rows[t] = webtorch.where(mask[t], new_h, 0.0)
                    h = webtorch.where(mask[t], new_h, h)
                    cell = webtorch.where(mask[t], new_c, cell) if new_c is not None else cell
                else:
                    h, cell = new_h, (cell if new_c is None else new_c)
                    rows[t] = h
            outs.append(webtorch.stack([rows[t] for t in range(steps)]))
            lasts.append(h)
            cells.append(cell)
        y = webtorch.stack(outs, 1)
        results = [y, webtorch.stack(lasts), webtorch.stack(cells)]
        if batch_first:
            results = [y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in results[1:])]
        return tuple(results[:n])


def _rnn_step(
    a: Attrs,
    f: list[Activation],
    x: Tensor,
    h: Tensor,
    cell: Tensor,
    r: Tensor,
    bias: Tensor | None,
    p: Tensor | None,
) -> States:
    return f[0](_clipped(x + F.linear(h, r, bias), a.get("clip"))), None


def _gru_step(
    a: Attrs,
    f: list[Activation],
    x: Tensor,
    h: Tensor,
    cell: Tensor,
    r: Tensor,
    bias: Tensor | None,
    p: Tensor | None,
) -> States:
    size = h.shape[1]
    xz, xr, xn = x.chunk(3, -1)
    clip = a.get("clip")
    if a.get("linear_before_reset"):
        hz, hr, hn = F.linear(h, r, bias).chunk(3, -1)
        z, reset = f[0](_clipped(xz + hz, clip)), f[0](_clipped(xr + hr, clip))
        new = f[1](_clipped(xn + reset * hn, clip))
    else:
        first = None if bias is None else bias[: 2 * size]
        hz, hr = F.linear(h, r[: 2 * size], first).chunk(2, -1)
        z, reset = f[0](_clipped(xz + hz, clip)), f[0](_clipped(xr + hr, clip))
        last = None if bias is None else bias[2 * size :]
        new = f[1](_clipped(xn + F.linear(reset * h, r[2 * size :], last), clip))
    return (1 - z) * new + z * h, None


def _lstm_step(
    a: Attrs,
    f: list[Activation],
    x: Tensor,
    h: Tensor,
    cell: Tensor,
    r: Tensor,
    bias: Tensor | None,
    p: Tensor | None,
) -> States:
    clip = a.get("clip")
    i, o, forget, g = (x + F.linear(h, r, bias)).chunk(4, -1)
    pi: Tensor | float
    po: Tensor | float
    pf: Tensor | float
    pi = po = pf = 0.0
    if p is not None:
        pi, po, pf = p.chunk(3, -1)
    i = f[0](_clipped(i + pi * cell, clip))
    forget = 1 - i if a.get("input_forget") else f[0](_clipped(forget + pf * cell, clip))
    new = forget * cell + i * f[1](_clipped(g, clip))
    o = f[0](_clipped(o + po * new, clip))
    return o * f[2](new), new


_recurrent("RNN", 1, ("Tanh",), _rnn_step)
_recurrent("GRU", 3, ("Sigmoid", "Tanh"), _gru_step)
_recurrent("LSTM", 4, ("Sigmoid", "Tanh", "Tanh"), _lstm_step)
