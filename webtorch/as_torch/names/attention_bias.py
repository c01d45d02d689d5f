"""torch.nn.attention.bias: causal masks that attention knows by their shape."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Sequence

import webtorch.nn.functional as F
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = ["CausalBias", "CausalVariant", "causal_lower_right", "causal_upper_left"]


class CausalVariant(enum.IntEnum):
    """Which corner of a mask that is not square its diagonal meets."""

    UPPER_LEFT = enum.auto()
    LOWER_RIGHT = enum.auto()


class CausalBias(Tensor):
    """A causal mask for `scaled_dot_product_attention`, which holds no elements until they are wanted."""

    variant: CausalVariant
    seq_len_q: int
    seq_len_kv: int

    def __new__(cls, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> CausalBias:
        """Return the mask as a tensor without elements."""
        return webtorch.empty(0).as_subclass(cls)

    def __init__(self, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> None:
        """Take the corner, and how many queries and keys there are."""
        if not isinstance(variant, CausalVariant):
            raise AssertionError(f"variant must be a CausalVariant, got {type(variant).__name__}")
        self.variant, self.seq_len_q, self.seq_len_kv = variant, seq_len_q, seq_len_kv
        if seq_len_q > seq_len_kv and variant is CausalVariant.LOWER_RIGHT:
            warnings.warn(
                "Lower right causal bias will produce NaNs in the output when seq_len_q > seq_len_kv!",
                stacklevel=user_depth(),
            )

    def _materialize(self, device: DeviceLike = "cpu") -> Tensor:
        """Return the mask: True where a query sees a key."""
        lower = self.variant is CausalVariant.LOWER_RIGHT
        whole = webtorch.ones(
            self.seq_len_q, self.seq_len_kv, dtype=webtorch.bool, device=device or "cpu"
        )
        return whole.tril(self.seq_len_kv - self.seq_len_q if lower else 0)

    @staticmethod
    def _dispatch(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: CausalBias,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return attention under the mask."""
        if is_causal:
            raise ValueError("CausalBias should not be used with causal=True")
        square = attn_mask.seq_len_q == attn_mask.seq_len_kv
        causal = square or attn_mask.variant is CausalVariant.UPPER_LEFT
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if causal else attn_mask._materialize(query.device),
            dropout_p=dropout_p,
            is_causal=causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Let attention take the mask by its shape; all else sees a tensor without elements."""
        if func is F.scaled_dot_product_attention:
            attend: Callable[..., Tensor] = cls._dispatch
            return attend(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        """Show the mask."""
        return repr(self._materialize())


def causal_upper_left(*size: int) -> CausalBias:
    """Return the mask by which query i sees keys 0 to i."""
    return _causal(CausalVariant.UPPER_LEFT, size, "causal_upper_left")


def causal_lower_right(*size: int) -> CausalBias:
    """Return the mask by which the last query sees all keys, each one before it a key less."""
    return _causal(CausalVariant.LOWER_RIGHT, size, "causal_lower_right")


def _causal(variant: CausalVariant, size: tuple[int, ...], name: str) -> CausalBias:
    if len(size) != 2:
        raise AssertionError(f"{name} only supports 2D tensors")
    return CausalBias(variant, *size)
