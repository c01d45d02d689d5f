"""torch.nn.attention.flex_attention: attention whose scores and mask are given as functions of indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from webtorch import nn
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask",
    "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip

_DEFAULT_SPARSE_BLOCK_SIZE = 128


def noop_mask(batch: Tensor, head: object, token_q: object, token_kv: object) -> Tensor:
    """Return True: everything may be looked at."""
    return webtorch.ones_like(batch, dtype=webtorch.bool)


def and_masks(*mask_mods: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the mask function that is true where all of them are."""

    def mask(b: object, h: object, q: object, k: object) -> Tensor:
        """Return whether all masks let the query see the key."""
        found = mask_mods[0](b, h, q, k)
        for one in mask_mods[1:]:
            found = found & one(b, h, q, k)
        return found

    return mask


def or_masks(*mask_mods: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the mask function that is true where one of them is."""

    def mask(b: object, h: object, q: object, k: object) -> Tensor:
        """Return whether a mask lets the query see the key."""
        found = mask_mods[0](b, h, q, k)
        for one in mask_mods[1:]:
            found = found | one(b, h, q, k)
        return found

    return mask


def _indices(sizes: tuple[int, ...], device: Any) -> list[Tensor]:
    # Index tensors that broadcast against each other, where PyTorch maps over scalars.
    return [
        webtorch.arange(n, device=device).reshape([-1 if i == d else 1 for i in range(4)])
        for d, n in enumerate(sizes)
    ]


def create_mask(
    mod_fn: Callable[..., Tensor],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: object = None,
) -> Tensor:
    """Return a mask function's values (B, H, Q, KV), bool; B and H of None are 1."""
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    return mod_fn(*_indices(sizes, device)).expand(sizes)


class AuxRequest(NamedTuple):
    """What `flex_attention` is to return beside the output."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What it returned: of each row's scores the log of the sum of exp, and the greatest."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


class BlockMask:
    """A mask of attention (B, H, Q, KV). The kernels here compute every block, masked."""

    def __init__(
        self, mask: Tensor, mask_mod: Callable[..., Tensor], block_size: int | tuple[int, int]
    ) -> None:
        """Take the values and the function that they came from."""
        self.mask, self.mask_mod = mask, mask_mod
        self.BLOCK_SIZE = (block_size, block_size) if isinstance(block_size, int) else block_size
        self.seq_lengths = (mask.shape[2], mask.shape[3])

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, Q, KV)."""
        return tuple(self.mask.shape)

    def to_dense(self) -> Tensor:
        """Return which blocks have something to look at (B, H, blocks of Q, blocks of KV), 0 or 1."""
        (q, k), (rows, columns) = self.BLOCK_SIZE, self.seq_lengths
        padded = nn.functional.pad(self.mask.to(webtorch.int32), (0, -columns % k, 0, -rows % q))
        return padded.unflatten(3, (-1, k)).unflatten(2, (-1, q)).amax((3, 5))

    def to(self, device: object) -> BlockMask:
        """Return the mask on another device."""
        return BlockMask(self.mask.to(device), self.mask_mod, self.BLOCK_SIZE)

    def sparsity(self) -> float:
        """Return the percentage of blocks without anything to look at."""
        return 100 * (1 - self.to_dense().float().mean().item())

    def __getitem__(self, index: object) -> BlockMask:
        index = index if isinstance(index, tuple) else (index,)
        kept = tuple(slice(i, i + 1) if isinstance(i, int) else i for i in index)
        return BlockMask(self.mask[kept], self.mask_mod, self.BLOCK_SIZE)


def create_block_mask(
    mask_mod: Callable[..., Tensor],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: object = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_SPARSE_BLOCK_SIZE,
    _compile: bool = False,
) -> BlockMask:
    """Return the mask of a function (batch, head, query, key) -> bool."""
    return BlockMask(create_mask(mask_mod, B, H, Q_LEN, KV_LEN, device), mask_mod, BLOCK_SIZE)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: object = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Return attention (B, H, Q, E): `score_mod(score, b, h, q, k)` changes scores, `block_mask` hides them.

    With return_lse also the log of the sum of exp of each row's scores, (B, H, Q). Rows that see
    nothing are 0.
    """
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if key.shape[1] != query.shape[1]:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={query.shape[1]} and "
            f"Hkv={key.shape[1]}. Try setting enable_gqa=True for GQA."
        )
    scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
    if score_mod is not None:
        scores = score_mod(scores, *_indices(tuple(scores.shape), query.device))
    if block_mask is not None:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(~block_mask.mask[:, :, :rows, :columns], float("-inf"))
    total = scores.logsumexp(-1, keepdim=True)
    weights = (scores - total.masked_fill(total == float("-inf"), 0.0)).exp()
    out = weights.to(value.dtype) @ value
    lse = total.squeeze(-1)
    if return_aux is not None:
        greatest = scores.amax(-1) if return_aux.max_scores else None
        return out, AuxOutput(lse if return_aux.lse else None, greatest)
    return (out, lse) if return_lse else out
