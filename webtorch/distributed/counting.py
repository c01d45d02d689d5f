"""Who is told of each collective that this process calls, and PyTorch's names of them. Floor 5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True)
class Collective:
    """A collective by the name that PyTorch's core has for it: `torch.ops.c10d.allreduce_`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the whole name."""
        return f"{self.namespace}.{self.name}"

    __repr__ = __str__

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises NotImplementedError: it counts calls, and is none."""
        raise NotImplementedError(
            f"torch.ops.{self}: webtorch has PyTorch's name of this collective for counts alone; call it by "
            "torch.distributed"
        )


# By namespaces, PyTorch's names of collectives by ours. Those that DTensors call are functional.
NAMES = {
    "c10d": {
        "all_gather": "allgather_", "all_gather_into_tensor": "_allgather_base_", "all_reduce": "allreduce_",
        "all_to_all": "alltoall_", "all_to_all_single": "alltoall_base_", "broadcast": "broadcast_",
        "gather": "gather_", "reduce": "reduce_", "reduce_scatter": "reduce_scatter_",
        "reduce_scatter_tensor": "_reduce_scatter_base_", "scatter": "scatter_",
    },
    "c10d_functional": {
        name: name for name in (
            "all_gather_into_tensor", "all_reduce", "all_to_all_single", "broadcast", "reduce_scatter_tensor"
        )
    },
}  # fmt: skip


class _Told:
    def __init__(self) -> None:
        # Whether DTensors are being moved.
        self.moving = False
        self.listeners: list[Callable[[Collective], None]] = []

    def tell(self, name: str) -> None:
        """Tell of a call by our name."""
        space = "c10d_functional" if self.moving else "c10d"
        theirs = NAMES[space].get(name)
        if theirs is not None:
            for listener in self.listeners:
                listener(Collective(space, theirs))


told = _Told()
