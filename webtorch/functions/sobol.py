"""Sobol's sequences as integers: points by number, and directions that are scrambled.

Direction numbers are given: `webtorch.quasirandom` has SciPy's, PyTorch's device those of PyTorch.
"""

from __future__ import annotations

from webtorch.functions import public as torch
from webtorch.tensors.tensor import Tensor


def scrambled(directions: Tensor, matrices: Tensor) -> Tensor:
    """Return directions whose bits, the largest first, are multiplied by lower triangular matrices with a diagonal of
    ones.
    """
    here, bits = directions.device, directions.shape[1]
    ones = torch.eye(bits, dtype=torch.int64, device=here)
    matrices = torch.where(ones == 1, ones, matrices)
    places = torch.arange(bits - 1, -1, -1, device=here)
    set_bits = (directions.unsqueeze(-1) >> places) & 1
    product = (matrices.unsqueeze(1) * set_bits.unsqueeze(2)).sum(-1) % 2
    return (product << places).sum(-1)


def points(start: Tensor, directions: Tensor, begun: int, first: int, count: int) -> Tensor:
    """Return points as integers of so many bits, from the one of number `first` on, (count, dimension), where that of
    number `begun` is `start`: what lies between two is the sum, bit by bit, of the directions of the bits in which
    their Gray codes differ.
    """
    number = torch.arange(first, first + count, device=start.device)
    gray = ((number ^ (number >> 1)) ^ (begun ^ (begun >> 1))).unsqueeze(1)
    found = start.expand(count, len(start))
    for bit in range(max(begun, first + count).bit_length()):
        found = found ^ (((gray >> bit) & 1) * directions[:, bit])
    return found
