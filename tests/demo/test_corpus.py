"""The text of the gpt demo: the same every time, plain, and split by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from webtorch.cli.demo.corpus import CorpusError, read_corpus


def test_the_standard_library_is_found_and_the_same_every_time() -> None:
    corpus = read_corpus(200_000)
    assert read_corpus(200_000) == corpus
    assert 200_000 <= len(corpus.train) + len(corpus.held_out) < 600_000
    assert len(corpus.held_out) > 1_000
    assert len(corpus.characters) <= 96
    assert corpus.decode(corpus.encode("def f(x):\n")) == "def f(x):\n"


def test_held_out_files_are_not_trained_on(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"m{i:02}.py").write_text(f"name_{i:02} = 1\n", encoding="utf-8")
    corpus = read_corpus(10**6, tmp_path)
    train, held_out = corpus.decode(list(corpus.train)), corpus.decode(list(corpus.held_out))
    assert [i for i in range(20) if f"name_{i:02}" in held_out] == [9, 19]
    assert not any(f"name_{i:02}" in train for i in (9, 19))
    assert all(f"name_{i:02}" in train for i in range(20) if i not in (9, 19))


def test_tabs_other_scripts_and_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("if x:\n\ty = 1   \n", encoding="utf-8")
    (tmp_path / "b.py").write_text("z = 2\ns = 'naïve'\n", encoding="utf-8")
    (tmp_path / "c.py").write_bytes(b"\xff\xfe")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "d.py").write_text("never_read = 1\n", encoding="utf-8")
    corpus = read_corpus(10**6, tmp_path)
    assert corpus.files == 2
    assert corpus.decode(list(corpus.train)) == "if x:\n    y = 1\n"
    assert corpus.decode(list(corpus.held_out)) == "z = 2\n"


def test_a_python_without_sources_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="ships its standard library compiled"):
        read_corpus(1000, tmp_path)
