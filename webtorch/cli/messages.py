"""What commands share: how they complain, and which packages are here."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
from pathlib import Path


def complain(message: str) -> None:
    """Write why a command ends without its result."""
    sys.stderr.write(f"webtorch: {message}\n")


def expect_file(path: Path) -> None:
    """Make the folder of a file that will be written. Raises OSError where the file cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, and a file is to be written", path)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "no write access", path)


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
