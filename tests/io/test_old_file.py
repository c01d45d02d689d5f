"""Files as torch.save wrote them before PyTorch 1.6: both libraries read what either writes; damage is refused."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.io.test_pytorch_file import equal, structure
from webtorch.errors import DeviceError
from webtorch.io.pytorch_file import CheckpointError


def _old(library: object, value: object) -> bytes:
    stream = io.BytesIO()
    library.save(value, stream, _use_new_zipfile_serialization=False)  # type: ignore[attr-defined]
    return stream.getvalue()


def test_an_old_file_of_pytorch_is_read() -> None:
    plain = {key: value for key, value in structure().items() if key != "uint32"}
    equal(webtorch.load(io.BytesIO(_old(torch, plain))), plain)


def test_pytorch_reads_an_old_file_of_ours(tmp_path: Path) -> None:
    base = webtorch.arange(6.0).reshape(2, 3)
    saved = {"base": base, "t": base.t(), "p": webtorch.nn.Parameter(base + 1), "n": [1, "x", None],
             "half": base.bfloat16(), "pair": base * 1j, "empty": base[:0]}  # fmt: skip
    webtorch.save(saved, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    theirs = torch.load(tmp_path / "old.pt")
    equal(saved, theirs)
    assert theirs["t"].data_ptr() == theirs["base"].data_ptr()
    equal(webtorch.load(tmp_path / "old.pt"), theirs)


def test_files_may_follow_each_other_in_a_stream() -> None:
    stream = io.BytesIO(b"head" + _old(torch, torch.ones(3)) + _old(webtorch, [webtorch.zeros(2)]))
    stream.seek(4)
    assert webtorch.load(stream).tolist() == [1, 1, 1]
    assert webtorch.load(stream)[0].tolist() == [0, 0]


def test_a_part_of_a_storage_begins_where_the_file_says() -> None:
    # As PyTorch 0.3 wrote slices of storages: key, offset and size instead of None.
    data = _old(webtorch, webtorch.arange(3.0)[:2])
    part = data.replace(b"NtQ", b"X\x01\x00\x00\x00vK\x01K\x02\x87tQ")
    assert webtorch.load(io.BytesIO(part)).tolist() == [1, 2]
    with pytest.raises(CheckpointError, match="a part of a storage"):
        webtorch.load(io.BytesIO(part.replace(b"K\x01K\x02\x87", b"K\x02K\x02\x87")))


def test_a_complex_tensor_and_its_part_are_not_saved_together() -> None:
    x = webtorch.ones(2) * 1j
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        webtorch.save([x, x.imag], io.BytesIO())


def test_a_module_is_read_where_the_file_is_trusted() -> None:
    data = _old(webtorch, webtorch.nn.Linear(2, 3))
    assert webtorch.load(io.BytesIO(data), weights_only=False).weight.shape == (3, 2)
    with pytest.raises(CheckpointError, match="making that would run code"):
        webtorch.load(io.BytesIO(data))


def test_damage_is_refused() -> None:
    data, draw = _old(torch, torch.nn.Linear(2, 2).state_dict()), random.Random(0)
    for end in range(20, len(data), 7):
        with pytest.raises(CheckpointError):
            webtorch.load(io.BytesIO(data[:end]))
    for _ in range(200):
        damaged = bytearray(data)
        damaged[draw.randrange(20, len(data))] = draw.randrange(256)
        with contextlib.suppress(CheckpointError, DeviceError):
            webtorch.load(io.BytesIO(damaged))


_LAYER = """
import {library} as library

class Layer(library.nn.Module):
    def forward(self, x):
        return x{what}
"""


@pytest.mark.parametrize("library", [torch, webtorch], ids=["torch", "webtorch"])
def test_a_class_whose_source_has_changed_is_told_of(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layer(what: str) -> Any:
        path = tmp_path / f"{library.__name__}_layer{len(what)}.py"
        path.write_text(_LAYER.format(library=library.__name__, what=what))
        spec = importlib.util.spec_from_file_location("a_layer", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "a_layer", module)
        spec.loader.exec_module(module)
        return module.Layer

    first = layer("")
    data = _old(library, [first(), first()])
    assert type(library.load(io.BytesIO(data), weights_only=False)[1]) is first
    second = layer(" + 1")
    with pytest.warns(Warning, match=r"source code of class '.*Layer' has changed") as told:
        found = library.load(io.BytesIO(data), weights_only=False)
    assert type(found[0]) is type(found[1]) is second
    assert [w.category.__name__ for w in told] == ["SourceChangeWarning"]
