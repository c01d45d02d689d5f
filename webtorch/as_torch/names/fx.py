"""torch.fx: marks for its tracer, which is not here."""

from __future__ import annotations

from typing import Any, NoReturn


class GraphModule:
    """A class that no object is an instance of."""


class Proxy:
    """A class that no object is an instance of: nothing is traced by proxies."""


class Node:
    """A class that no object is an instance of."""


class Graph:
    """A class that no object is an instance of."""


class Tracer:
    """A class to inherit from; making one raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise."""
        symbolic_trace(None)


def wrap(fn_or_name: Any) -> Any:
    """Mark a function that a trace would not enter."""
    return fn_or_name


def symbolic_trace(root: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there is no tracer."""
    raise RuntimeError(
        "torch.fx: webtorch has no symbolic tracer; torch.compile captures a step as it runs"
    )
