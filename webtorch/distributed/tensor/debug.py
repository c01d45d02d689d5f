"""`torch.distributed.tensor.debug`: what DTensors send. Floor 5."""

from __future__ import annotations

from collections import defaultdict

from webtorch.distributed.counting import Collective, told

__all__ = ["CommDebugMode"]


class CommDebugMode:
    """A block in which collectives are counted, those of DTensors, modules in shards and the user's own.

        with CommDebugMode() as mode:
            model(x).sum().backward()
        print(mode.get_comm_counts())

    Counts go by PyTorch's names (`torch.ops.c10d_functional.all_reduce` for what DTensors send,
    `torch.ops.c10d.allreduce_` for what is called), and begin at 0 with each block. A DTensor may be sent by other
    collectives here than in PyTorch.
    """

    def __init__(self) -> None:
        self.comm_counts: dict[Collective, int] = defaultdict(int)

    def __enter__(self) -> CommDebugMode:
        self.comm_counts.clear()
        told.listeners.append(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        told.listeners.remove(self._count)

    def _count(self, collective: Collective) -> None:
        self.comm_counts[collective] += 1

    def get_comm_counts(self) -> dict[Collective, int]:
        """Return how often each collective was called."""
        return self.comm_counts

    def get_total_counts(self) -> int:
        """Return how many collectives were called."""
        return sum(self.comm_counts.values())
