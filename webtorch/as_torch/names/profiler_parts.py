"""torch.autograd.profiler and torch.autograd.profiler_util: events of operators."""

from __future__ import annotations

from webtorch import cuda
from webtorch.profiler.events import EventList as EventList
from webtorch.profiler.events import FunctionEvent as FunctionEvent
from webtorch.profiler.events import FunctionEventAvg as FunctionEventAvg
from webtorch.profiler.events import Interval as Interval
from webtorch.profiler.events import _format_time as _format_time
from webtorch.profiler.operators import OperatorProfile as profile
from webtorch.profiler.operators import profiling

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "Interval", "profile"]


def kineto_available() -> bool:
    """Return True: events are always there."""
    return True


def _profiler_enabled() -> bool:
    """Whether calls of operators are noted in this thread."""
    return profiling.on


class emit_nvtx:
    """A block that marks operators for CUDA's tools: making one raises."""

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        cuda.init()
