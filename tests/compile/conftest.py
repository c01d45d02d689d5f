"""What the tests of `webtorch.compile` share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _earlier_objects_are_left_alone() -> Iterator[None]:
    """A capture collects garbage and looks at every object there is: in the process of a whole test
    run, which holds millions, that would take seconds each time. Those of other files do not matter.
    """
    gc.freeze()
    yield
    gc.unfreeze()
