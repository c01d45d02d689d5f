"""`webtorch.profiler`: where the time of a program goes. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.profiler.timeline import (
    Event,
    ProfilerAction,
    ProfilerActivity,
    Span,
    profile,
    record_function,
    schedule,
    supported_activities,
    tensorboard_trace_handler,
)

__all__ = [
    "Event",
    "ProfilerAction",
    "ProfilerActivity",
    "Span",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
