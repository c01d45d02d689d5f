"""The typed constructors of old PyTorch code: FloatTensor([1, 2]), LongTensor(2, 3), isinstance
checks.
"""

from __future__ import annotations

from typing import Any

from webtorch.functions import creation
from webtorch.ir.dtype import TYPE_NAMES, DType
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor


class Typed(type):
    """A class whose calls make tensors of one dtype and whose instances are all such tensors."""

    dtype: DType
    is_cuda = is_xpu = is_sparse = False

    def __new__(cls, name: str, bases: tuple[type[object], ...], names: dict[str, Any]) -> Typed:
        """Make the class of one dtype. Raises TypeError for classes that inherit from one."""
        if bases:
            raise TypeError(
                f"type 'torch.{bases[0].__name__}' is not an acceptable base type: inherit from torch.Tensor"
            )
        return super().__new__(cls, name, bases, names)

    def __call__(cls, *args: Any, device: DeviceLike = None) -> Tensor:
        if len(args) == 1 and not isinstance(args[0], (int, Size)):
            data = args[0]
            if isinstance(data, Tensor) and data.dtype is not cls.dtype:
                raise TypeError(
                    f"expected {cls.dtype} (got {data.dtype}): use tensor.to({cls.dtype}), which "
                    "converts"
                )
            if isinstance(data, Tensor) and device is None:
                return data.view_as(data)
            if hasattr(data, "_seen_as"):
                # On the memory of a storage.
                return creation.empty(0, dtype=cls.dtype, device=data.device).set_(data)
            return creation.tensor(data, dtype=cls.dtype, device=device)
        if args and not isinstance(args[0], int) and len(args) > 1:
            kinds = ", ".join(type(a).__name__ for a in args)
            raise TypeError(
                f"new() received an invalid combination of arguments - got ({kinds}), but expected one of: sizes, a "
                "tensor, a storage, a sequence"
            )
        return creation.empty(*(args or (0,)), dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype


CONSTRUCTORS: dict[str, Any] = {
    f"{name}Tensor": Typed(f"{name}Tensor", (), {"dtype": found, "__module__": "webtorch"})
    for found, name in TYPE_NAMES.items()
}


def typename(obj: object) -> str:
    """Return PyTorch's name of an object's type: "torch.FloatTensor" for a tensor."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    name = getattr(kind, "__qualname__", str(kind))
    module = getattr(kind, "__module__", "")
    return name if module in ("", "builtins") else f"{module}.{name}"
