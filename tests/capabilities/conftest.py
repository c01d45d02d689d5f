"""Fixtures of the capability tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import need_device


@pytest.fixture
def need() -> Callable[[str], None]:
    """A function that skips the test, visibly, where a device is missing, and fails in CI."""
    return need_device
