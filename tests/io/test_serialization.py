"""What `torch.serialization` does beside tensors, with PyTorch and webtorch reading each other's files."""

from __future__ import annotations

import io
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch.as_torch.names import serialization

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
LIBS = {"torch": (torch, torch.serialization), "webtorch": (webtorch, serialization)}
BOTH = pytest.mark.parametrize("name", LIBS)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("reader", LIBS)
@BOTH
def test_storages_are_saved(name: str, reader: str, zipped: bool, trusted: bool) -> None:
    lib, stream = LIBS[name][0], io.BytesIO()
    x = lib.arange(6.0).reshape(2, 3)
    more = [lib.tensor([3, 4]).untyped_storage()] if zipped else []
    lib.save([x, x.storage(), *more], stream, _use_new_zipfile_serialization=zipped)
    stream.seek(0)
    found = LIBS[reader][0].load(stream, weights_only=not trusted)
    found[0][0, 0] = 9
    assert found[1].tolist() == found[0].flatten().tolist() == [9, 1, 2, 3, 4, 5]
    assert [memory.tolist()[:9] for memory in found[2:]] == [[3, 0, 0, 0, 0, 0, 0, 0, 4]] * zipped


@BOTH
def test_one_memory_has_one_type_in_a_file(name: str) -> None:
    lib = LIBS[name][0]
    x = lib.ones(3)
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        lib.save([x, x.untyped_storage()], io.BytesIO())
    stream = io.BytesIO()
    lib.save([lib.ones(0), lib.ones(0).untyped_storage()], stream)


@BOTH
def test_numbers_in_the_other_order_of_bytes(name: str) -> None:
    lib, serial = LIBS[name]
    stream, turned = io.BytesIO(), io.BytesIO()
    x = torch.tensor([1.5, 2, 3], dtype=torch.complex64)
    torch.save([x, torch.tensor([1, 258])], stream)
    for known in (True, False):
        turned = io.BytesIO()
        with zipfile.ZipFile(stream) as old, zipfile.ZipFile(turned, "w") as new:
            for entry in old.infolist():
                data = old.read(entry)
                if "/data/" in entry.filename:
                    width = 4 if entry.filename.endswith("0") else 8
                    data = b"".join(data[i : i + width][::-1] for i in range(0, len(data), width))
                if entry.filename.endswith("byteorder"):
                    if not known:
                        continue
                    data = b"big"
                new.writestr(entry.filename, data)
        turned.seek(0)
        before = serial.get_default_load_endianness()
        try:
            if not known:
                serial.set_default_load_endianness(serial.LoadEndianness.BIG)
            found = lib.load(turned)
        finally:
            serial.set_default_load_endianness(before)
        assert [t.tolist() for t in found] == [[1.5, 2, 3], [1, 258]]


@BOTH
def test_what_is_mapped_is_the_file(name: str, tmp_path: Path) -> None:
    lib, serial = LIBS[name]
    path = str(tmp_path / "a.pt")
    lib.save({"a": lib.zeros(3)}, path)
    with serial.set_default_mmap_options(mmap.MAP_SHARED):
        lib.load(path, mmap=True)["a"][1] = 4
        assert lib.load(path, mmap=True)["a"].tolist() == [0, 4, 0]
    lib.load(path, mmap=True)["a"][1] = 5
    assert lib.load(path, mmap=True)["a"].tolist() == [0, 4, 0]
    words = "f must be a file path in order to use the mmap argument"
    with open(path, "rb") as stream, pytest.raises(ValueError, match=words):
        lib.load(stream, mmap=True)


@BOTH
def test_files_without_checksums_and_without_data(name: str) -> None:
    lib, serial = LIBS[name]
    stream = io.BytesIO()
    try:
        serial.set_crc32_options(False)
        lib.save(lib.ones(3), stream)
    finally:
        serial.set_crc32_options(True)
    with zipfile.ZipFile(stream) as archive:
        assert {entry.CRC for entry in archive.infolist()} == {0}
    stream.seek(0)
    assert webtorch.load(stream).tolist() == [1, 1, 1]
    stream = io.BytesIO()
    with serial.skip_data():
        lib.save(lib.ones(3), stream)
    stream.seek(0)
    assert lib.load(stream).tolist() == [0, 0, 0]


class Stream:
    """Bytes with what a test lets it have."""

    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read


@BOTH
def test_words_of_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lib, serial = LIBS[name]
    stream = io.BytesIO()
    lib.save(Point(), stream)
    data = stream.getvalue()
    for asked in (True, None):
        with pytest.raises(
            pickle.UnpicklingError,
            match=r"load failed. (.|\n)*Unsupported global: GLOBAL",
        ):
            lib.load(io.BytesIO(data), weights_only=asked)
    assert any(
        n.endswith("Point") for n in serial.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    )
    with pytest.raises(
        RuntimeError, match="Can not safely load weights when explicit pickle_module"
    ):
        lib.load(io.BytesIO(data), pickle_module=pickle, weights_only=True)
    with pytest.raises(
        AttributeError, match=r"You can only torch.load from a file that is seekable"
    ):
        lib.load(Stream(data), weights_only=False)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="forcing weights_only=False"):
        assert isinstance(lib.load(io.BytesIO(data)), Point)
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(RuntimeError, match="but both were set"):
        lib.load(io.BytesIO(data))


class Point:
    """An object like others."""


@BOTH
def test_records_of_an_archive(name: str) -> None:
    serial, stream = LIBS[name][1], io.BytesIO()
    with serial._open_zipfile_writer(stream) as archive:
        archive.write_record("a/b", b"123", 3)
    stream.seek(0)
    with serial._open_zipfile_reader(stream) as archive:
        assert archive.get_record("a/b") == b"123"
        assert (archive.has_record("a/b"), archive.has_record("c")) == (True, False)
        at = archive.get_record_offset("a/b")
    assert stream.getvalue()[at : at + 3] == b"123"


def test_the_given_module_unpickles() -> None:
    class Failing(pickle.Unpickler):
        def load(self) -> Any:
            """Raise."""
            raise RuntimeError("it was asked")

    class Module:
        Unpickler = Failing

    stream = io.BytesIO()
    webtorch.save(webtorch.ones(2), stream)
    stream.seek(0)
    with pytest.raises(RuntimeError, match="it was asked"):
        webtorch.load(stream, pickle_module=Module, weights_only=False)


class Slotted(webtorch.Tensor):
    """A tensor with a slot."""

    __slots__ = ("inner",)


def test_slots_of_tensors_are_saved_and_copied() -> None:
    x = webtorch.ones(2).as_subclass(Slotted)
    x.inner, x.note = webtorch.zeros(1), "a"
    stream = io.BytesIO()
    webtorch.save(x, stream)
    stream.seek(0)
    with serialization.safe_globals([Slotted]):
        found = webtorch.load(stream)
    assert (found.inner.tolist(), found.note, found.tolist()) == ([0], "a", [1, 1])


@BOTH
def test_bytes_that_were_written_in_the_file_are_read(name: str, tmp_path: Path) -> None:
    lib, serial = LIBS[name]
    path = tmp_path / "a.pt"
    lib.save(lib.ones(3), path)
    with serial._open_zipfile_reader(str(path)) as archive:
        place = archive.get_record_offset("data/0")
    with open(path, "rb+") as file:
        file.seek(place)
        file.write(bytes(4))
    assert torch.load(path).tolist() == [0, 1, 1]
    with pytest.warns(UserWarning, match="'data/0' are not those that their checksum is of"):
        assert webtorch.load(path).tolist() == [0, 1, 1]


@BOTH
def test_all_names_of_a_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lib, serial = LIBS[name]
    unpickler = torch._weights_only_unpickler if name == "torch" else serialization.unpickler
    stream = io.BytesIO()
    lib.save([lib.ones(1), Point()], stream)
    stream.seek(0)
    assert serial.get_unsafe_globals_in_checkpoint(stream) == [f"{__name__}.Point"]
    monkeypatch.setattr(unpickler, "_get_allowed_globals", dict)
    stream.seek(0)
    assert set(serial.get_unsafe_globals_in_checkpoint(stream)) >= {
        f"{__name__}.Point", "torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "collections.OrderedDict",
    }  # fmt: skip
