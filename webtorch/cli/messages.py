"""What commands share: how they complain, and which packages are here."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path


def complain(message: str) -> None:
    """Write why a command ends without its result."""
    sys.stderr.write(f"webtorch: {message}\n")


def in_a_sentence(error: Exception) -> str:
    """Return what an error says, without the system's numbers."""
    match error:
        case FileNotFoundError(filename=str() | Path() as name):
            return f"there is no file or folder {str(name)!r}"
        case PermissionError(filename=str() | Path() as name):
            return f"you may not read or write {str(name)!r}"
        case OSError(filename=str() | Path() as name, strerror=str() as why):
            return f"{str(name)!r}: {why[:1].lower()}{why[1:]}"
    return str(error)


def package_version(name: str) -> str:
    """Return an installed package's version, or "" when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
