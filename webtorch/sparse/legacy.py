"""The typed constructors of old PyTorch code: `sparse.FloatTensor(indices, values, size)`, and isinstance checks."""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as dense
from webtorch.functions.legacy import Typed
from webtorch.ir.dtype import TYPE_NAMES, bool_
from webtorch.sparse.construction import sparse_coo_tensor
from webtorch.sparse.tensor import SparseTensor
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor


class _Typed(Typed):
    """A class whose calls make sparse tensors of one dtype, and whose instances are all such tensors."""

    def __call__(cls, *args: Any, device: DeviceLike = None) -> Tensor:
        if args and isinstance(args[0], SparseTensor):
            return args[0].detach()
        if args and isinstance(args[0], Tensor):
            indices, values, *size = args
            return sparse_coo_tensor(indices, values, *size, dtype=cls.dtype, device=device)
        return dense.zeros(*(args or (0,)), dtype=cls.dtype, device=device).to_sparse()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, SparseTensor) and super().__instancecheck__(instance)


CONSTRUCTORS: dict[str, object] = {
    f"{name}Tensor": _Typed(f"{name}Tensor", (), {"dtype": found, "__module__": "webtorch.sparse"})
    for found, name in TYPE_NAMES.items()
    if found is not bool_
}
