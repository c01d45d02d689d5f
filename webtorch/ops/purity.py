"""Whether a call depends on its arguments' kinds alone. May import floor 0 only.

What a composite records follows from the shapes, types and numbers that it is given, unless it looks
at something else: the data of a tensor, a random number, a warning that is shown each time. Whoever
lets a composite look says so here, and `tensors/remember.py` does not remember such a call.
"""

from __future__ import annotations

import threading


class _Look(threading.local):
    """Whether this thread watches a call, and whether the call has looked at more than its arguments."""

    watching = False
    looked = False


look = _Look()


def looks() -> None:
    """Note that the running call depends on more than the kinds of its arguments."""
    look.looked = True
