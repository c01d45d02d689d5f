"""The stub files are what the op table says: nobody edits them."""

from __future__ import annotations

import pytest

from tools import stubs


@pytest.mark.covers("R10")
def test_the_stubs_follow_from_the_table() -> None:
    stale = [path.name for path, text in stubs.stubs().items() if path.read_text() != text]
    assert not stale, f"run: python tools/stubs.py ({', '.join(stale)})"
