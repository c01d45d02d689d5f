"""Classes of torch.autograd.profiler, for annotations and to check for: profiles here are webtorch.profiler's."""

from __future__ import annotations


class EventList(list[object]):
    """What PyTorch's profiler returns its events in."""


class FunctionEvent:
    """One of them."""
