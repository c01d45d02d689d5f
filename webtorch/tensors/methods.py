"""Where the type checker and editors find the methods that the op table gives to tensors: methods.pyi. Floor 4."""

from __future__ import annotations


class TensorMethods:
    """Base of Tensor. `webtorch.functions.bind` hangs the table's methods on Tensor itself."""

    __slots__ = ()
