"""Kernels in `torch.profiler`: while PyTorch's profiler records, each kernel that runs is an event. Floor 6.

The events are named "webgpu::" and the kernel's name, inside the operator that made them run. They take no time of
their own: for the device's times use `webtorch.profiler.profile`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from webtorch.ir.program import Program
from webtorch.runtime.watch import Run, watch
from webtorch_autoload.device import hide


class _Listener:
    """Makes an event of each kernel of a program that runs."""

    def ran(self, run: Run) -> None:
        """Make an event of each kernel that ran."""
        with torch.profiler.record_function("webgpu: program"):
            for timing in run.times():
                with torch.profiler.record_function(f"webgpu::{timing.name}"):
                    pass

    def compiled(self, program: Program, device: str, started: float, ended: float) -> None:
        """Make an event of a compilation."""
        with torch.profiler.record_function("webgpu: compiled a program"):
            pass


def install(flush: Callable[[], object]) -> None:
    """Listen whenever PyTorch's profiler records; `flush` computes what is pending."""
    profile: Any = torch.autograd.profiler.profile
    start, stop = profile._start_trace, profile.__exit__

    @functools.wraps(start)
    def started(self: object) -> object:
        """Compute what is pending, and listen."""
        flush()
        found = start(self)
        if watch.listener is None:
            watch.listener = _Listener()
        return found

    @functools.wraps(stop)
    def stopped(self: object, *error: object) -> object:
        """Compute what is pending, and listen no more."""
        if isinstance(watch.listener, _Listener):
            flush()
            watch.listener = None
        return stop(self, *error)

    profile._start_trace, profile.__exit__ = hide(started), hide(stopped)
