"""What commands share: how they complain, and which packages are here."""

from __future__ import annotations

import importlib.metadata
import sys


def complain(message: str) -> None:
    """Write why a command ends without its result."""
    sys.stderr.write(f"webtorch: {message}\n")


def package_version(name: str) -> str:
    """Return an installed package's version, or "" when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
