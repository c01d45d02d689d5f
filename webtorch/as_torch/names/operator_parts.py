"""torch._ops: operators of higher order, which are given functions, and the classes of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from webtorch.as_torch.names.core import DispatchKey
from webtorch.aten.dispatch import OpOverload as OpOverload
from webtorch.aten.dispatch import OpOverloadPacket as OpOverloadPacket
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_leaves

_F = TypeVar("_F", bound=Callable[..., object])

# Where a call goes, the first that there is.
_KEYS = ("Autograd{}", "Autograd", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "{}")


class HigherOrderOperator:
    """An operator whose kernels are Python functions. That of the device computes a call: what it calls is mapped and
    differentiated as everything is, so that kernels for transforms are kept, and not called.
    """

    def __init__(self, name: str, *, cacheable: bool = False) -> None:
        """Take the name."""
        if type(self) is HigherOrderOperator:
            raise RuntimeError(
                "Direct instantiation of HigherOrderOperator is not allowed. Please subclass it."
            )
        self._name = self.__name__ = name
        self.namespace = "higher_order"
        self.py_kernels: dict[object, Callable[..., object]] = {}

    def py_impl(self, k: object) -> Callable[[_F], _F]:
        """Decorate the kernel for a key of PyTorch's dispatcher, or for a transform."""

        def keep(fn: _F) -> _F:
            """Take the function."""
            self.py_kernels[k] = fn
            return fn

        return keep

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        """Compute. Raises NotImplementedError where there is no kernel for the device."""
        first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
        device = "CPU" if first is None or first.is_cpu else "PrivateUse1"
        for key in _KEYS:
            fn = self.py_kernels.get(DispatchKey[key.format(device)])
            if fn is not None:
                return fn(*args, **kwargs)
        raise NotImplementedError(
            f"There was no fallback found for the higher order operator {self._name} on {device}"
        )

    def name(self) -> str:
        """Return the name."""
        return self._name

    def __str__(self) -> str:
        return self._name
