"""`webtorch.types`: names of types that annotations of PyTorch programs use. Floor 5."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any

from webtorch.functions import public as webtorch
from webtorch.functions.public import dtype
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

Device = webtorch.device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]
Number = int | float | bool
Storage = Any
_TensorOrTensors = Tensor | Sequence[Tensor]
_device, _dtype = webtorch.device, dtype
_int, _float, _bool = int, float, bool
_size = Size | list[int] | tuple[int, ...]

__all__ = ["Device", "FileLike", "Number", "Storage"]
