"""MultiheadAttention. May import the tensor floor and nn's base files."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors import autocast
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor

__all__ = ["MultiheadAttention"]


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear; PyTorch gives attention's output projection this name, and prints it."""


def _hides(mask: Tensor) -> Tensor:
    """Return where a mask hides: where it is true, or -inf."""
    return mask == float("-inf") if mask.is_floating_point() else mask


class MultiheadAttention(Module):
    """Attention of several heads. Vaswani et al., 2017: Attention is all you need.

    Inputs are (L, N, E), or (N, L, E) with `batch_first`, or (L, E).
    """

    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the projections: one packed weight where key and value have the query's size."""
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, got "
                f"embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = kdim if kdim is not None else embed_dim
        self.vdim = vdim if vdim is not None else embed_dim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")

        def made(*shape: int) -> Parameter:
            """Return a parameter without initial values."""
            return Parameter(webtorch.empty(shape, device=device, dtype=dtype))

        packed = self._qkv_same_embed_dim
        # Registered in PyTorch's order: it is the order of parameters().
        if packed:
            self.in_proj_weight = made(3 * embed_dim, embed_dim)
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.register_parameter(name, None)
        else:
            self.q_proj_weight = made(embed_dim, embed_dim)
            self.k_proj_weight = made(embed_dim, self.kdim)
            self.v_proj_weight = made(embed_dim, self.vdim)
            self.register_parameter("in_proj_weight", None)
        self.register_parameter("in_proj_bias", made(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        if add_bias_kv:
            self.bias_k = made(1, 1, embed_dim)
            self.bias_v = made(1, 1, embed_dim)
        else:
            self.bias_k = self.bias_v = None
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Draw new initial values."""
        for weight in (
            self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight,
        ):  # fmt: skip
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
        if self.bias_v is not None:
            init.xavier_normal_(self.bias_v)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights): the weights (N, L, S), by head without averaging, or None.

        Bool masks hide what is true; float masks are added. `is_causal` says that `attn_mask` is
        the causal mask.
        """
        turned = self.batch_first and query.dim() == 3
        if turned:
            # One turned tensor for one input, so that self-attention is still seen as such.
            seen: dict[int, Tensor] = {}
            query, key, value = (
                seen.setdefault(id(x), x.transpose(1, 0)) for x in (query, key, value)
            )
        out, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        if turned:
            out = out.transpose(1, 0)
            masks = [m for m in (attn_mask, key_padding_mask) if m is not None]
            if not any(m.is_floating_point() for m in masks) and self.is_native(query, key, value):
                return self.as_native(out, attn_mask, key_padding_mask), weights
        return out, weights

    def is_native(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Return whether PyTorch makes one operation of a call with three dims and the batch first."""
        return (
            query is key
            and key is value
            and self._qkv_same_embed_dim
            and self.in_proj_bias is not None
            and not (self.training or self.num_heads % 2 or self.add_zero_attn)
            and self.bias_k is None
            and not autocast.state.enabled
            and not mode.exporting
            and not (mode.grad and any(x.requires_grad for x in (query, *self.parameters())))
        )

    def as_native(
        self, out: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor:
        """Return (N, L, E) as PyTorch's one operation gives it: row-major, and NaN where a query sees nothing, which
        has 0 where attention is written with others.
        """
        hidden = None
        if key_padding_mask is not None:
            hidden = _hides(key_padding_mask)[:, None, None]
        if attn_mask is not None:
            mask = _hides(attn_mask)
            if mask.dim() == 3:
                mask = mask.unflatten(0, (-1, self.num_heads))
            hidden = mask if hidden is None else mask | hidden
        if hidden is not None:
            blind = hidden.all(-1)
            if blind.dim() == 3:
                blind = blind.any(1)
            out = out.masked_fill(blind.unsqueeze(-1), float("nan"))
        return out.contiguous()

    def merge_masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor
    ) -> tuple[Tensor | None, int | None]:
        """Return both masks as one of (N, heads, L, L), or the only one, and its kind.

        Kinds: 1 of paddings alone (N, L), 2 with a mask of positions, None without any.
        """
        if attn_mask is None:
            return key_padding_mask, None if key_padding_mask is None else 1
        batch, length, _ = query.shape
        if attn_mask.dim() == 3:
            merged = attn_mask.view(batch, -1, length, length)
        else:
            merged = attn_mask.view(1, 1, length, length).expand(batch, self.num_heads, -1, -1)
        if key_padding_mask is not None:
            hidden = key_padding_mask.view(batch, 1, 1, length)
            merged = merged + hidden.expand(-1, self.num_heads, -1, -1)
        return merged, 2
