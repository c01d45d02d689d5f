"""Products of groups of rows as PyTorch's operators, see functions/grouped.py. Floor 6."""

from __future__ import annotations

from collections.abc import Callable

import torch

from webtorch.aten.table import Function, aten, op
from webtorch.functions.grouped import groups_of_products, rows_by_groups
from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries


@aten("_grouped_mm", direct=("_grouped_mm",))
def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: DType | None = None,
) -> Tensor:
    return op.grouped_mm(left, right, offs=offs, bias=bias, out_dtype=out_dtype)


# ---- transformers' operators --------------------------------------------------------------------


def _fallback_backward(
    rows: Tensor, matrices: Tensor, ends: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        rows_by_groups(g, op.transpose(matrices, 1, 2), ends),
        groups_of_products(rows, g, ends),
    )


def register(functional: Callable[[str, Function], Function]) -> None:
    """Register the operators that transformers has in place of `grouped_mm` where it compiles: its own ones read
    where the groups end. `functional` makes a kernel of a name and a meaning.
    """
    library = torch.library.Library("transformers", "IMPL")
    libraries.append(library)
    for name, meaning in (
        ("grouped_mm_fallback", rows_by_groups),
        ("grouped_mm_fallback_backward", _fallback_backward),
    ):
        library.impl(name, hide(functional(name, meaning)), "PrivateUse1")
