"""Writes docs/conformance.md from the kept results."""

from __future__ import annotations


def write() -> None:
    """Write the report."""
