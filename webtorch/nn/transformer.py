"""The transformer of Vaswani et al., 2017. May import the tensor floor and nn's base files."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.activation import GELU, ReLU
from webtorch.nn.attention import MultiheadAttention
from webtorch.nn.container import ModuleList
from webtorch.nn.dropout import Dropout
from webtorch.nn.functional.attention import canonical_mask
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.norm import LayerNorm
from webtorch.tensors import autocast
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.host import reads
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor

__all__ = [
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Activation = str | Callable[[Tensor], Tensor]


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    """Return the function that a name stands for."""
    if callable(given):
        return given
    if given == "relu":
        return F.relu
    if given == "gelu":
        return F.gelu
    raise RuntimeError(f"activation should be relu/gelu, not {given}")


def _causal_mask(size: int, device: DeviceLike = None, dtype: DType | None = None) -> Tensor:
    """Return (size, size) with -inf above the diagonal and 0 elsewhere."""
    full = webtorch.full((size, size), float("-inf"), device=device, dtype=dtype)
    return webtorch.triu(full, diagonal=1)


def _is_causal(mask: Tensor | None, is_causal: bool | None, size: int) -> bool:
    """Return whether the mask is the causal one: as the caller says, or by looking at it.

    Where nothing may be read it counts as any other: it is applied as it is, with the same result.
    """
    if is_causal is not None or mask is None:
        return bool(is_causal)
    if tuple(mask.shape) != (size, size) or not reads.possible:
        return False
    return bool((mask == _causal_mask(size, mask.device, mask.dtype)).all())


def _clones(module: Module, count: int) -> ModuleList:
    """Return `count` deep copies."""
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


def _both_masks(
    mask: Tensor | None, padding: Tensor | None, names: tuple[str, str], dtype: DType
) -> tuple[Tensor | None, Tensor | None]:
    """Return the attention and the padding mask in their additive form."""
    other = None if mask is None else mask.dtype
    padding = canonical_mask(padding, names[1], other, names[0], dtype)
    return canonical_mask(mask, names[0], None, "", dtype, False), padding


def _has_known_activation(layer: Any) -> bool:
    return layer.activation in (F.relu, F.gelu) or isinstance(layer.activation, ReLU | GELU)


def _why_not_nested(layer: Module) -> str:
    """Return why PyTorch would compute with the padding of a text, in its words; empty if it would not."""
    if not isinstance(layer, TransformerEncoderLayer):
        return "encoder_layer was not TransformerEncoderLayer"
    attention = layer.self_attn
    reasons = [
        (layer.norm_first, ".norm_first was True"),
        (
            not attention.batch_first,
            ".self_attn.batch_first was not True(use batch_first for better inference performance)",
        ),
        (not attention._qkv_same_embed_dim, ".self_attn._qkv_same_embed_dim was not True"),
        (attention.in_proj_bias is None, ".self_attn was passed bias=False"),
        (not _has_known_activation(layer), ".activation_relu_or_gelu was not True"),
        (layer.norm1.eps != layer.norm2.eps, ".norm1.eps was not equal to encoder_layer.norm2.eps"),
        (attention.num_heads % 2 == 1, ".self_attn.num_heads is odd"),
    ]
    return next(("encoder_layer" + words for holds, words in reasons if holds), "")


def _padding(mask: Tensor, check: bool) -> Tensor:
    """Return (N, S) where an additive mask has padding; nowhere where `check` finds some before the end of a text."""
    padding = mask != 0
    return padding & ~(padding[:, :-1] & ~padding[:, 1:]).any() if check else padding


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward network, each with a residual path and a layer norm."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the sublayers; `norm_first` norms the inputs of the sublayers, not their sums."""
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **made
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the encoded sequence, of the input's shape."""
        src_mask, src_key_padding_mask = _both_masks(
            src_mask, src_key_padding_mask, ("src_mask", "src_key_padding_mask"), src.dtype
        )
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._ff_block(x))

    def _sa_block(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the self-attention sublayer's output."""
        out, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False,
            is_causal=is_causal,
        )  # fmt: skip
        if self._is_native(x):
            out = self.self_attn.as_native(out, attn_mask, key_padding_mask)
        return self.dropout1(out)

    def _is_native(self, x: Tensor) -> bool:
        """Return whether PyTorch makes one operation of the layer."""
        attention = self.self_attn
        return (
            not self.training
            and x.dim() == 3
            and attention.batch_first
            and _has_known_activation(self)
            and self.norm1.eps == self.norm2.eps
            and attention.is_native(x, x, x)
            and not any(m._forward_hooks or m._forward_pre_hooks for m in self.modules())
            and not (mode.grad and any(p.requires_grad for p in self.parameters()))
        )

    def _ff_block(self, x: Tensor) -> Tensor:
        """Return the feed-forward sublayer's output."""
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of copies of one encoder layer, and a final norm if given.

    Where PyTorch would compute without padding (`enable_nested_tensor`: without gradients, in eval mode, padding at the
    end of each text unless `mask_check` is False), what it gives at the padding is 0 here, too, before the final norm.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        """Copy the layer `num_layers` times."""
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        reason = _why_not_nested(encoder_layer)
        self.use_nested_tensor = enable_nested_tensor and not reason
        self.mask_check = mask_check
        if enable_nested_tensor and reason:
            warnings.warn(
                f"enable_nested_tensor is True, but self.use_nested_tensor is False because {reason}",
                stacklevel=user_depth(),
            )

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Return the encoded sequence; `is_causal` None looks at the mask (which reads it)."""
        mask, src_key_padding_mask = _both_masks(
            mask, src_key_padding_mask, ("mask", "src_key_padding_mask"), src.dtype
        )
        batch_first = self.layers[0].self_attn.batch_first
        size = src.shape[1 if src.dim() == 3 and batch_first else 0]
        is_causal = _is_causal(mask, is_causal, size)
        out = src
        for layer in self.layers:
            out = layer(
                out,
                src_mask=mask,
                is_causal=is_causal,
                src_key_padding_mask=src_key_padding_mask,
            )
        if mask is None and src_key_padding_mask is not None and self._skips_padding(src):
            out = out.masked_fill(
                _padding(src_key_padding_mask, self.mask_check).unsqueeze(-1), 0.0
            )
        return out if self.norm is None else self.norm(out)

    def _skips_padding(self, src: Tensor) -> bool:
        """Return whether PyTorch computes this call without its padding."""
        first = self.layers[0]
        return (
            self.use_nested_tensor
            and src.dim() == 3
            and not first.training
            and not mode.exporting
            and not autocast.state.enabled
            and not (mode.grad and any(x.requires_grad for x in (src, *first.parameters())))
        )


class TransformerDecoderLayer(Module):
    """Self-attention, attention to the encoder's output, and a feed-forward network."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make the sublayers; `norm_first` norms the inputs of the sublayers, not their sums."""
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **made
        )
        self.multihead_attn = MultiheadAttention(
            d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **made
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **made)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.norm3 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **made)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded sequence, of the shape of `tgt`."""
        to_self = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        to_memory = (memory, memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = tgt + self._sa_block(self.norm1(tgt), *to_self)
            x = x + self._mha_block(self.norm2(x), *to_memory)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(tgt + self._sa_block(tgt, *to_self))
        x = self.norm2(x + self._mha_block(x, *to_memory))
        return self.norm3(x + self._ff_block(x))

    def _sa_block(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the self-attention block of x."""
        out, _ = self.self_attn(
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal,
            need_weights=False,
        )  # fmt: skip
        return self.dropout1(out)

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the block that attends to the encoder's output `mem`."""
        out, _ = self.multihead_attn(
            x, mem, mem, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal,
            need_weights=False,
        )  # fmt: skip
        return self.dropout2(out)

    def _ff_block(self, x: Tensor) -> Tensor:
        """Return the feedforward block of x."""
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerDecoder(Module):
    """A stack of copies of one decoder layer, and a final norm if given."""

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        """Copy the layer `num_layers` times."""
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded sequence; `tgt_is_causal` None looks at the mask (which reads it)."""
        batch_first = self.layers[0].self_attn.batch_first
        size = tgt.shape[1 if tgt.dim() == 3 and batch_first else 0]
        causal = _is_causal(tgt_mask, tgt_is_causal, size)
        out = tgt
        for layer in self.layers:
            out = layer(
                out,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
            )
        return out if self.norm is None else self.norm(out)


class Transformer(Module):
    """An encoder and a decoder."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make both stacks, or take the given ones; matrices start Xavier-uniform."""
        super().__init__()
        options = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, device, dtype,
        )  # fmt: skip

        def norm() -> LayerNorm:
            """Return a layer norm at the end of a stack."""
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder
        if custom_encoder is None:
            self.encoder = TransformerEncoder(
                TransformerEncoderLayer(*options), num_encoder_layers, norm()
            )
        self.decoder = custom_decoder
        if custom_decoder is None:
            self.decoder = TransformerDecoder(
                TransformerDecoderLayer(*options), num_decoder_layers, norm()
            )
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        """Draw new initial values for all matrices."""
        for param in self.parameters():
            if param.dim() > 1:
                init.xavier_uniform_(param)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the decoded `tgt`, which attends to the encoded `src`."""
        batch_dim = 0 if self.batch_first else 1
        if src.dim() == 3 and src.shape[batch_dim] != tgt.shape[batch_dim]:
            raise RuntimeError("the batch number of src and tgt must be equal")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(
                "the feature number of src and tgt must be equal to d_model: got "
                f"{src.shape[-1]} and {tgt.shape[-1]}, and d_model is {self.d_model}"
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: DeviceLike = None, dtype: DType | None = None
    ) -> Tensor:
        """Return the causal mask: (sz, sz), -inf above the diagonal and 0 elsewhere."""
        return _causal_mask(sz, device, dtype)
