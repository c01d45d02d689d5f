"""`webtorch.autograd.graph`: what becomes of the tensors that backward needs. May import floor 4."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from webtorch.tensors.absent import missing_names as _missing_names
from webtorch.tensors.device import device
from webtorch.tensors.tape import GradFn as Node
from webtorch.tensors.tape import mode
from webtorch.tensors.tensor import Tensor

__all__ = ["Node", "save_on_cpu", "saved_tensors_hooks"]


class saved_tensors_hooks:
    """Inside, `pack_hook(tensor)` is kept in place of a saved tensor, and `unpack_hook` of that gives it back.

    The innermost pair applies. `unpack_hook` must return a tensor of the same values.
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        mode.saved_hooks = (*mode.saved_hooks, (self.pack_hook, self.unpack_hook))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.saved_hooks = mode.saved_hooks[:-1]


class save_on_cpu(saved_tensors_hooks):
    """Keep saved tensors in the computer's memory, and bring them back to their device for backward."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Tensor) -> tuple[device, Tensor]:
            return tensor.device, tensor.cpu()

        def unpack(packed: tuple[device, Tensor]) -> Tensor:
            where, tensor = packed
            return tensor.to(where)

        super().__init__(pack, unpack)


__getattr__ = _missing_names(__name__, "autograd.graph")
