"""Operators that are written with others of PyTorch: layers, and what would need float64. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from webtorch.pytorch.kernels import Kernel, composed, own
from webtorch.pytorch.resizing import resize_to


@own("_native_multi_head_attention")
def _native_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What PyTorch runs in place of `nn.MultiheadAttention` where no gradient is wanted."""
    linear = torch.nn.functional.linear
    parts = zip((q, k, v), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in parts)
    if mask is not None and mask_type == 1:
        mask = mask[:, None, None, :]
    elif mask is not None and mask_type == 2 and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    scores = (q * (width // heads) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        hidden = torch.where(mask, -torch.inf, 0.0) if mask.dtype is torch.bool else mask
        scores = scores + hidden.to(scores.dtype)
    weights = scores.softmax(-1)
    if mask is not None:
        # PyTorch's CPU gives NaN to a sequence of nothing but padding, but its encoder zeros: it makes its input
        # nested, which this device refuses, so that NaN would reach what is finite there.
        weights = weights.masked_fill(scores.eq(-torch.inf).all(-1, keepdim=True), 0.0)
    out = linear((weights @ v).transpose(1, 2).flatten(2), out_weight, out_bias)
    return out, (weights.mean(1) if average else weights) if need_weights else None


@own("_transformer_encoder_layer_fwd")
def _encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """What PyTorch runs in place of `nn.TransformerEncoderLayer` where no gradient is wanted."""
    f = torch.nn.functional

    def attend(y: torch.Tensor) -> torch.Tensor:
        """Return the self-attention of y."""
        given = (
            width,
            heads,
            qkv_weight,
            qkv_bias,
            out_weight,
            out_bias,
            mask,
            False,
            True,
            mask_type,
        )
        return _native_attention(y, y, y, *given)[0]

    def inner(y: torch.Tensor) -> torch.Tensor:
        """Return the feedforward part of y."""
        y = f.linear(y, weight_1, bias_1)
        return f.linear(f.gelu(y) if use_gelu else f.relu(y), weight_2, bias_2)

    def norm_1(y: torch.Tensor) -> torch.Tensor:
        """Return the first layer norm of y."""
        return f.layer_norm(y, (width,), norm_weight_1, norm_bias_1, eps)

    def norm_2(y: torch.Tensor) -> torch.Tensor:
        """Return the second layer norm of y."""
        return f.layer_norm(y, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm_1(x))
        return x + inner(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + inner(x))


def recurrent_cell(kind: str) -> Kernel:
    """Return a recurrent cell written out: PyTorch would pick a fused kernel that outside devices do not have."""
    linear, sigmoid, tanh = torch.nn.functional.linear, torch.sigmoid, torch.tanh

    def lstm(
        x: torch.Tensor,
        hx: Sequence[torch.Tensor],
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None = None,
        b_hh: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next hidden and cell state."""
        h, c = hx
        i, f, g, o = (linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, 1)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c

    def gru(
        x: torch.Tensor,
        hx: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None = None,
        b_hh: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the next hidden state."""
        xr, xz, xn = linear(x, w_ih, b_ih).chunk(3, 1)
        hr, hz, hn = linear(hx, w_hh, b_hh).chunk(3, 1)
        z = sigmoid(xz + hz)
        n = tanh(xn + sigmoid(xr + hr) * hn)
        return (hx - n) * z + n

    return lstm if kind == "lstm" else gru


def recurrent_layer(name: str) -> Kernel:
    """Return PyTorch's own decomposition of a recurrent layer."""

    def kernel(*args: object, **kwargs: object) -> torch.Tensor:
        """Run the decomposition."""
        from torch._decomp import decompositions

        return getattr(decompositions, name)(*args, **kwargs)

    return kernel


@own("_embedding_bag_backward")
def _bag_backward(
    g: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bag: torch.Tensor,
    size: torch.Tensor,
    where: torch.Tensor,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """`aten::_embedding_bag_backward`: the layout of the gradient is chosen here."""
    rest = (count, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    if sparse:
        composite = torch.ops.aten._embedding_bag_sparse_backward
        return composite(g, indices, offsets, bag, size, *rest)
    return torch.ops.aten._embedding_bag_dense_backward(g, indices, bag, size, where, *rest)


# PyTorch composes these with float64 numbers, which the device does not have; here float32 does it.


@composed("renorm")
def _renorm(x: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    if p <= 0:
        raise RuntimeError("renorm: non-positive-norm not supported")
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return x.contiguous() * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def _bound(
    x: torch.Tensor,
    largest: torch.Tensor,
    atol: float | torch.Tensor | None,
    rtol: float | torch.Tensor | None,
) -> torch.Tensor:
    """Return below which a singular value counts as zero."""
    if rtol is None:
        rtol = torch.finfo(x.dtype).eps * max(x.shape[-2:])
        if isinstance(atol, torch.Tensor):
            rtol = torch.where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    atol = 0.0 if atol is None else atol
    scaled = largest * (rtol.unsqueeze(-1) if isinstance(rtol, torch.Tensor) else rtol)
    return torch.clamp(scaled, min=atol.unsqueeze(-1) if isinstance(atol, torch.Tensor) else atol)


@own("linalg_pinv.atol_rtol_tensor")
def _pinv(
    x: torch.Tensor,
    *,
    atol: float | torch.Tensor | None = None,
    rtol: float | torch.Tensor | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    if not x.numel():
        return x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))
    if hermitian:
        values, vectors = torch.linalg.eigh(x)
        sizes, left, right = values.abs(), vectors, vectors.mH
    else:
        u, values, right = torch.linalg.svd(x, full_matrices=False)
        sizes, left, right = values, right.mH, u.mH
    kept = sizes > _bound(x, sizes.amax(-1, keepdim=True), atol, rtol)
    inverse = torch.where(kept, values.reciprocal(), 0.0)
    return (left * inverse.unsqueeze(-2).to(left.dtype)) @ right


def _matrix_rank(
    x: torch.Tensor,
    *,
    atol: float | torch.Tensor | None = None,
    rtol: float | torch.Tensor | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    if not x.numel():
        return x.new_zeros(x.shape[:-2], dtype=torch.int64)
    values = torch.linalg.eigvalsh(x).abs() if hermitian else torch.linalg.svdvals(x)
    return (values > _bound(x, values.amax(-1, keepdim=True), atol, rtol)).sum(-1)


def _pinv_of(
    x: torch.Tensor,
    atol: float | torch.Tensor | None,
    rtol: float | torch.Tensor | None,
    hermitian: bool,
) -> torch.Tensor:
    """Return the pseudoinverse by the operator that has PyTorch's derivative; `_pinv` is its kernel."""

    def number(value: float | torch.Tensor | None) -> torch.Tensor | None:
        """Return a tolerance as a tensor."""
        if value is None or isinstance(value, torch.Tensor):
            return value
        return torch.full((), value, dtype=x.real.dtype, device=x.device)

    operator = torch.ops.aten.linalg_pinv.atol_rtol_tensor
    return operator(x, atol=number(atol), rtol=number(rtol), hermitian=hermitian)


def _into(function: Kernel) -> Kernel:
    """Return the out= form of a composed operator."""

    def run(*args: object, out: torch.Tensor, **options: object) -> torch.Tensor:
        """Run the operator, and copy its result to `out`."""
        result = function(*args, **options)
        if not torch.can_cast(result.dtype, out.dtype):
            raise RuntimeError(
                "torch.linalg.matrix_rank: Expected result to be safely castable from Long dtype, but got result with "
                f"dtype {str(out.dtype).removeprefix('torch.').capitalize()}"
            )
        resize_to(out, result.shape)
        return out.copy_(result)

    return run


def _with_tolerance(
    x: torch.Tensor, tol: float | torch.Tensor | None, hermitian: bool = False
) -> torch.Tensor:
    return _matrix_rank(x, atol=tol, rtol=0.0, hermitian=hermitian)


_RANK = "linalg_matrix_rank"
composed(f"{_RANK}.atol_rtol_float", f"{_RANK}.atol_rtol_tensor")(_matrix_rank)
composed(f"{_RANK}.atol_rtol_float_out", f"{_RANK}.atol_rtol_tensor_out")(_into(_matrix_rank))
composed(_RANK, f"{_RANK}.tol_tensor")(_with_tolerance)
composed(f"{_RANK}.out", f"{_RANK}.out_tol_tensor")(_into(_with_tolerance))


@composed("linalg_pinv", "linalg_pinv.rcond_tensor")
def _pinv_rcond(
    x: torch.Tensor, rcond: float | torch.Tensor | None, hermitian: bool = False
) -> torch.Tensor:
    return _pinv_of(x, None, rcond, hermitian)


@composed("linalg_pinv.atol_rtol_float")
def _pinv_tolerances(
    x: torch.Tensor,
    *,
    atol: float | torch.Tensor | None = None,
    rtol: float | torch.Tensor | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    return _pinv_of(x, atol, rtol, hermitian)


@composed("pinverse")
def _pinverse(x: torch.Tensor, rcond: float | torch.Tensor | None = 1e-15) -> torch.Tensor:
    return _pinv_of(x, None, rcond, False)


@composed("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def _kaiser(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> torch.Tensor:
    """`aten::kaiser_window`, which PyTorch hands to a CPU kernel."""
    kind = options.get("dtype")
    if kind is not None and not kind.is_floating_point:
        raise RuntimeError(f"kaiser_window expects floating point dtypes, got: {kind}")
    if length < 0:
        raise RuntimeError(
            f"kaiser_window requires non-negative window_length, got window_length={length}"
        )
    if length < 2:
        return torch.ones(length, **options)
    steps = length if periodic else length - 1
    ratio = torch.arange(length, **options) * (2 / steps) - 1
    return torch.i0(beta * (1 - ratio.square()).clamp(min=0).sqrt()) / torch.i0(
        ratio.new_full((), beta)
    )


@own("_compute_linear_combination")
def _combination(x: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    return torch.tensordot(coefficients, x, 1)


@own("_compute_linear_combination.out")
def _combination_into(
    x: torch.Tensor, coefficients: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    # PyTorch's adds to what is there.
    return out.add_(_combination(x, coefficients))


# Recurrent layers, and PyTorch's own decompositions of them.
RECURRENT = {
    "lstm.input": "lstm_impl",
    "lstm.data": "lstm_data_impl",
    "gru.input": "gru_impl",
    "gru.data": "gru_impl_data",
    "rnn_tanh.input": "rnn_tanh_input",
    "rnn_relu.input": "rnn_relu_input",
    "rnn_tanh.data": "rnn_tanh_data",
    "rnn_relu.data": "rnn_relu_data",
}
