"""Products whose gradient is recorded: `matmul` and `einsum` as one operator each way. Floor 6.

PyTorch makes both of views, expansions and products of matrices, above its gradient: a node for each, and a view costs
nearly what a product does. Here a product is one node of C++ (`MatmulBackward0`), and so is its gradient, which is
PyTorch's composition where it is differentiated again, or looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from webtorch.aten.table import FUNCTIONS, op
from webtorch.pytorch.kernels import composed, functional, is_plain, own, structured, whole
from webtorch.tensors.tensor import Tensor

_matmul = torch.ops.aten.matmul.default
_einsum = torch.ops.aten.einsum.default
_composite = torch._C.DispatchKey.CompositeImplicitAutograd
_recorded = functools.partial(_matmul._op_dk, torch._C.DispatchKey.Autograd)


def _product(a: torch.Tensor, b: torch.Tensor) -> object:
    """Return a product with one node for its gradient; of two matrices PyTorch makes one."""
    dims = a.dim(), b.dim()
    if min(dims) < 2 or max(dims) == 2 or a.dtype is not b.dtype:
        return _matmul._op_dk(_composite, a, b)
    return _recorded(a, b)


def _meaning(a: Tensor, b: Tensor) -> Tensor:
    return op.matmul(a, b)


composed("matmul")(whole(_matmul, _meaning, _product))
# Below its gradient.
own("matmul")(
    whole(
        _matmul,
        _meaning,
        structured(_matmul, _meaning, functools.partial(_matmul._op_dk, _composite)),
    )
)

_backward = functional("matmul_backward", FUNCTIONS["matmul_backward"])


@composed("matmul_backward")
def _matmul_backward(
    g: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of a product's operands, None where it is not asked for or `g` is."""
    if g is None:
        return None, None
    records = torch.is_grad_enabled() and (g.requires_grad or a.requires_grad or b.requires_grad)
    if not records and is_plain() and not g.is_neg():
        found: tuple[torch.Tensor | None, torch.Tensor | None] = _backward(g, a, b, mask)
        return found
    first = (g @ b.mT).sum_to_size(a.shape) if mask[0] else None
    if not mask[1]:
        return first, None
    if b.dim() == 2 and a.dim() > 2:
        return first, a.flatten(0, -2).mT @ g.flatten(0, -2)
    return first, (a.mT @ g).sum_to_size(b.shape)


# How dims are ordered; None where they are as they come.
_Order = tuple[int, ...] | None


class _Turned(NamedTuple):
    """A sum of products of two operands that is a product of matrices. `swaps`: of the second and the first."""

    swaps: bool
    # How many dims the operands have, and which of them is summed.
    ranks: tuple[int, int]
    summed: tuple[int, int]
    first: _Order
    second: _Order
    out: _Order


def _order(have: str, wanted: str) -> _Order:
    found = tuple([have.index(c) for c in wanted])
    return None if found == tuple(range(len(found))) else found


@functools.lru_cache(maxsize=256)
def _turned(words: str) -> _Turned | None:
    """Return a sum of products as a product; None where it is none."""
    given, arrow, out = words.replace(" ", "").partition("->")
    parts = given.split(",")
    each = (*parts, out)
    if not arrow or len(parts) != 2 or "." in words or any(len(set(w)) < len(w) for w in each):
        return None
    # PyTorch's product lies as its result is asked for.
    rest = [c for c in out if (c in parts[0]) is not (c in parts[1])]
    swaps = len(rest) == 2 and rest[0] in parts[1]
    a, b = reversed(parts) if swaps else parts
    summed = "".join([c for c in a if c in b and c not in out])
    batch = "".join([c for c in out if c in a and c in b])
    left = "".join([c for c in rest if c in a])
    right = "".join([c for c in rest if c in b])
    first, second, made = batch + left + summed, batch + summed + right, batch + left + right
    # Rows may have more dims than one where there is one matrix for all of them.
    several = left and not batch and made == out
    is_one = len(summed) == len(right) == 1 and (len(left) == 1 or several)
    if not is_one or (len(first), len(second), len(made)) != (len(a), len(b), len(out)):
        return None
    return _Turned(
        swaps,
        (len(a), len(b)),
        (a.index(summed), b.index(summed)),
        _order(a, first),
        _order(b, second),
        _order(made, out),
    )


def _sum_of_products(
    words: str, tensors: Sequence[torch.Tensor], *, path: Sequence[int] | None = None
) -> object:
    """Return a sum of products: where it is one product of matrices, as that."""
    found = _turned(words)
    if found is not None:
        a, b = reversed(tensors) if found.swaps else tensors
        i, j = found.summed
        if (a.dim(), b.dim()) == found.ranks and a.shape[i] == b.shape[j]:
            a = a if found.first is None else a.permute(found.first)
            b = b if found.second is None else b.permute(found.second)
            out = a @ b
            return out if found.out is None else out.permute(found.out)
    return _einsum._op_dk(_composite, words, tensors, path=path)


composed("einsum")(
    whole(
        _einsum, lambda words, tensors, *, path=None: op.einsum(words, *tensors), _sum_of_products
    )
)
