"""The finder of `torch` and its modules on sys.meta_path. Floor 6."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, PackagePath
from os import PathLike
from types import ModuleType
from typing import Any

from webtorch.as_torch.absent import ABSENT
from webtorch.as_torch.places import HIDDEN, SOURCES, WORDS
from webtorch.as_torch.room import Room, caller
from webtorch.version import __version__


class Finder(DistributionFinder, Loader):
    """Finds each module of PyTorch's that webtorch has, and says what is known of the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of `torch` or a module in it; raise where webtorch has no such module."""
        if fullname != "torch" and not fullname.startswith("torch."):
            return None
        if sources_of(fullname) is None:
            # `from torch import name` and hasattr ask too: only an import statement is told more.
            if not _is_statement():
                return None
            raise ModuleNotFoundError(_absent(fullname), name=fullname)
        return ModuleSpec(fullname, self, origin="webtorch", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the room of that name."""
        sources = sources_of(spec.name)
        assert sources is not None
        return Room(spec.name, sources)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a room looks its names up."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """Say that a distribution called torch is installed: packages ask for its version."""
        return [_Torch()] if context is None or context.name in (None, "torch") else []


class _Torch(Distribution):
    def read_text(self, filename: str) -> str | None:
        """Return the metadata of a distribution called torch, of our version; None for other files."""

        if filename in ("METADATA", "PKG-INFO"):
            return f"Metadata-Version: 2.1\nName: torch\nVersion: {__version__}\n"
        return None

    def locate_file(self, path: str | PathLike[str]) -> Any:
        """Return the path as it is: there are no files."""
        return PackagePath(path)


def sources_of(fullname: str) -> tuple[str, ...] | None:
    """Return the modules of webtorch that make up a module of PyTorch, None where there are none."""
    if fullname in SOURCES:
        return SOURCES[fullname]
    if fullname in ABSENT:
        return ()
    if fullname in HIDDEN or any(fullname.startswith(f"{hidden}.") for hidden in HIDDEN):
        return None
    ours = f"web{fullname}"
    try:
        return (ours,) if importlib.util.find_spec(ours) is not None else None
    except ModuleNotFoundError:
        return None


def _is_statement() -> bool:
    frame = sys._getframe(2)
    while "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_name in ("_handle_fromlist", "find_spec"):
            return False
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


def _absent(fullname: str) -> str:
    parts = fullname.split(".")
    # What is said of a module holds for those in it.
    found = [WORDS.get(".".join(parts[:i]), {}).get(parts[i]) for i in range(1, len(parts))]
    words = next(filter(None, found), "webtorch has no such module")
    return f"No module named '{fullname}', asked for in {caller(sys._getframe(2))}: {words}."
