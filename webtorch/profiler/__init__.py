"""`webtorch.profiler`: where the time of a program goes.

May import floors 0 to 4.

    import webtorch as torch

    with torch.profile() as prof:
        torch.ones(256, 256).softmax(-1).sum().item()
    print(prof)  # every kernel with your line; prof.save("profile.html") writes a page
"""

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
