"""How parameters of a group lie while they travel: each process has a row, with its parts of all of them."""

from __future__ import annotations

from webtorch.functions.joining import cat
from webtorch.functions.padding import pad
from webtorch.ir.dtype import DType
from webtorch.ir.view import Shape, numel
from webtorch.ops import primitive
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor

# The part of each process, the dim along which the whole is cut, and the whole.
Form = tuple[Shape, int, Shape]


def padded(flat: Tensor, elements: int) -> Tensor:
    """Return a flat tensor of so many elements, zeros behind its own."""
    missing = elements - flat.shape[0]
    return pad(flat, (0, missing)) if missing else flat


@remembered
def wholes(gathered: Tensor, forms: tuple[Form, ...]) -> tuple[Tensor, ...]:
    """Return the parameters whose parts all processes gave."""
    found, start = [], 0
    rows = gathered.reshape(-1, sum([numel(part) for part, _, _ in forms]))
    for part, dim, shape in forms:
        mine = rows.narrow(1, start, numel(part))
        start += numel(part)
        if dim:
            whole = cat(list(mine.reshape(-1, *part).unbind(0)), dim)
        else:
            whole = mine.reshape(-1).narrow(0, 0, numel(shape)).reshape(shape)
        found.append(primitive.copy(whole))
    return tuple(found)


@remembered
def sent(grads: tuple[Tensor, ...], forms: tuple[Form, ...], count: int, dtype: DType) -> Tensor:
    """Return gradients as they are sent, flat: the row of the first process, then that of the next."""
    rows = []
    for grad, (part, dim, _) in zip(grads, forms, strict=True):
        whole = cat(list(grad.chunk(count, dim)), 0) if dim else grad
        rows.append(padded(whole.reshape(-1), count * numel(part)).reshape(count, -1))
    return cat(rows, 1).reshape(-1).to(dtype)
