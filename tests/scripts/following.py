"""Whether scripts are followed, for a test."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from unittest import mock

from webtorch.runtime import realize
from webtorch.scripts import begin_to_look, following, patience, stop_to_look


@contextlib.contextmanager
def scripts(on: bool, repeats: int = 1) -> Iterator[Callable[[], following.Follower]]:
    """Look for steps that come again, from the first repetition on, or do not; return who follows. What comes after is
    looked at as it was before.
    """
    before = realize.listener
    stop_to_look()
    limits = {"_REPEATS": repeats, "FEWEST": 1, "_PATIENCE": 1 << 30, "_FREE": math.inf}
    with mock.patch.multiple(patience, **limits):
        if on:
            begin_to_look()
        try:
            yield following.follower
        finally:
            stop_to_look()
            if before is not None:
                begin_to_look()
