"""Whether a call depends on its arguments' kinds alone. May import floor 0 only.

What a composite records follows from the shapes, types and numbers that it is given, unless it looks
at something else: the data of a tensor, a random number, a warning that is shown each time. Whoever
lets a composite look says so here, and `tensors/remember.py` does not remember such a call.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from webtorch.ir.lines import user_depth


class _Look(threading.local):
    """Whether this thread watches a call, and whether the call has looked at more than its arguments."""

    watching = False
    looked = False

    def __init__(self) -> None:
        # What the watched call says must be zeros, with what raises where it is not.
        self.demands: list[tuple[Any, Callable[[], object]]] = []
        # What the watched call asks of values, with the nodes that hold these, for whoever makes such calls again
        # without it (`tensors/values.py`); None where nobody does.
        self.asked: list[tuple[object, tuple[object, ...]]] | None = None


look = _Look()


def looks() -> None:
    """Note that the running call depends on more than the kinds of its arguments."""
    look.looked = True


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn the caller's user, at the user's own line, each time that this is reached."""
    looks()
    warnings.warn(message, category, stacklevel=user_depth())


class Said:
    """The warnings that PyTorch shows once in a process, by their texts; all of them each time if `always`."""

    texts: ClassVar[set[str]] = set()
    always = False


def warn_once(message: str) -> None:
    """Warn of what PyTorch warns of once in a process."""
    if Said.always or message not in Said.texts:
        Said.texts.add(message)
        warn(message)
