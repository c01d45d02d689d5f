"""The on-disk cache: shelves of files in one folder. Floor 3; standard library only.

WEBTORCH_CACHE_DIR names the folder; by default it is the platform's for caches. WEBTORCH_CACHE=0
switches the cache off. Each file begins with the hash of the rest: what is damaged counts as
missing. A file appears by a rename, so processes may share the folder. Each shelf has a size; the
files that were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from webtorch.ir.lines import user_depth

_HASH = 32
# A shelf is looked through again when this part of its size was written since.
_TRIM_EVERY = 16


def enabled() -> bool:
    """Whether WEBTORCH_CACHE leaves the cache on."""
    return os.environ.get("WEBTORCH_CACHE", "1").strip().lower() not in ("0", "off", "false")


def root() -> Path:
    """Return the folder of everything that is cached. Raises RuntimeError where there is no home."""
    named = os.environ.get("WEBTORCH_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "webtorch" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "webtorch"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "webtorch"


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies on a shelf: how many files, and their bytes."""

    files: int
    nbytes: int


class Shelf:
    """Files of one kind, by key, up to `most` bytes together."""

    def __init__(self, name: str, suffix: str, most: int) -> None:
        self.name = name
        self.suffix = suffix
        self.most = most
        # Folder -> bytes written since it was looked through.
        self._written: dict[Path, int] = {}
        self._warned = False

    def folder(self) -> Path | None:
        """Return where the files are, or None if there is no cache."""
        if not enabled():
            return None
        try:
            return root() / self.name
        except RuntimeError:
            return None

    def read(self, key: str) -> bytes | None:
        """Return what was written under a key; None if it is missing or damaged."""
        folder = self.folder()
        if folder is None:
            return None
        path = folder / f"{key}{self.suffix}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[_HASH:]
        if hashlib.sha256(body).digest() != data[:_HASH]:
            self.discard(key, "is damaged")
            return None
        # Used now: the others go first.
        with contextlib.suppress(OSError):
            os.utime(path)
        return body

    def write(self, key: str, body: bytes) -> None:
        """Keep `body` under a key. A folder that cannot be written keeps nothing."""
        folder = self.folder()
        if folder is None or len(body) > self.most:
            return
        part = folder / f"{key}.{os.getpid()}.{threading.get_ident()}.part"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._make_room(folder, len(body))
            part.write_bytes(hashlib.sha256(body).digest() + body)
            part.replace(folder / f"{key}{self.suffix}")
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def discard(self, key: str, reason: str) -> None:
        """Remove a file that is of no use; the first is told of."""
        folder = self.folder()
        if folder is None:
            return
        path = folder / f"{key}{self.suffix}"
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"cache: {path} {reason}; it was removed and is made anew. If this goes on, choose "
                "another folder with WEBTORCH_CACHE_DIR, or switch the cache off with WEBTORCH_CACHE=0",
                RuntimeWarning,
                stacklevel=user_depth(),
            )

    def contents(self) -> Contents:
        """Return how much there is."""
        found = self._files()
        return Contents(len(found), sum(size for _, size, _ in found))

    def clear(self) -> Contents:
        """Remove everything; return how much there was."""
        found = self._files()
        for _, _, path in found:
            with contextlib.suppress(OSError):
                os.unlink(path)
        return Contents(len(found), sum(size for _, size, _ in found))

    def _files(self) -> list[tuple[float, int, str]]:
        """Return time of the last use, size and path of every file, those in the making too."""
        folder = self.folder()
        found: list[tuple[float, int, str]] = []
        # Another process may be removing files.
        with contextlib.suppress(OSError):
            if folder is not None:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.endswith((self.suffix, ".part")):
                            with contextlib.suppress(OSError):
                                stat = entry.stat()
                                found.append((stat.st_mtime, stat.st_size, entry.path))
        return found

    def _make_room(self, folder: Path, nbytes: int) -> None:
        """Remove what was not used for longest, if there is too much with `nbytes` more."""
        written = self._written.get(folder)
        if written is not None and (written + nbytes) * _TRIM_EVERY < self.most:
            self._written[folder] = written + nbytes
            return
        self._written[folder] = nbytes
        total = nbytes
        for _, size, path in sorted(self._files(), reverse=True):
            total += size
            if total > self.most:
                with contextlib.suppress(OSError):
                    os.unlink(path)


CODE = Shelf("cpu", ".o", 64 << 20)
PROGRAMS = Shelf("programs", ".json", 256 << 20)
SHELVES = {"machine code of CPU kernels": CODE, "programs, with their kernels' text": PROGRAMS}
