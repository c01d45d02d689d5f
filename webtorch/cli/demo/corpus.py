"""The text that the language model learns: the source of Python's own standard library.

Found at run time, so that nothing is downloaded. Imports the errors and the standard library.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from webtorch.errors import WebtorchError

# Tests and generated tables are half of the library's bytes and teach little.
LEFT_OUT = frozenset(
    {"__pycache__", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages",
     "test", "tests", "turtledemo", "ensurepip"}
)  # fmt: skip
# Every tenth file is never trained on.
HELD_OUT_EVERY = 10
PRINTABLE = frozenset(map(chr, range(32, 127))) | {"\n"}


class CorpusError(WebtorchError):
    """The standard library's source text is not there."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes of character ids, in two parts that share no file."""

    train: bytes
    held_out: bytes
    characters: str
    files: int

    def decode(self, ids: list[int]) -> str:
        """Return the text of character ids."""
        return "".join(self.characters[i] for i in ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's characters. Raises ValueError for one that the corpus has not."""
        return [self.characters.index(c) for c in text]


def read_corpus(limit: int, folder: Path | None = None) -> Corpus:
    """Return about `limit` characters of the standard library, a tenth of the files held out.

    The files come in sorted order, so one Python version always gives one text. Tabs become four
    spaces; a line with a character outside printable ASCII is left out.

    Raises CorpusError when no source text is found.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    total = 0
    for path in _files(folder):
        try:
            text = _plain(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        if text.strip():
            texts.append(text)
            total += len(text)
        if total >= limit:
            break
    if len(texts) < 2:
        raise CorpusError(
            f"no Python source text in {folder}: this Python ships its standard library compiled. "
            "Install a full Python (for example from python.org) and run the demo with it."
        )
    characters = "".join(sorted(set("".join(texts))))
    # The last of each ten, so that a small corpus of two files still has one of each kind.
    step = min(HELD_OUT_EVERY, len(texts))
    held_out = [t for i, t in enumerate(texts) if i % step == step - 1]
    train = [t for i, t in enumerate(texts) if i % step != step - 1]
    table = {ord(c): chr(i) for i, c in enumerate(characters)}

    def pack(parts: list[str]) -> bytes:
        """Return texts as one byte string, a byte for each character."""
        return "\n".join(parts).translate(table).encode("latin-1")

    return Corpus(pack(train), pack(held_out), characters, len(texts))


def _files(folder: Path) -> list[Path]:
    found = [
        path
        for path in folder.rglob("*.py")
        if not LEFT_OUT.intersection(path.relative_to(folder).parts)
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _plain(text: str) -> str:
    lines = text.expandtabs(4).splitlines()
    return "\n".join(line.rstrip() for line in lines if PRINTABLE.issuperset(line)) + "\n"
