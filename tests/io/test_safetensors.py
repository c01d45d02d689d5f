"""The safetensors format: round trips with the reference library, hostile files, atomic writing."""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from webtorch.io import safetensors
from webtorch.io.safetensors import RawTensor, SafetensorError

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "float8_e5m2", "float8_e4m3fn",
)  # fmt: skip
SHAPES = ((), (1,), (0,), (3, 0, 2), (5,), (2, 3), (2, 1, 4))


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (bytes as they are, anything else as JSON) and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: object = (1,), begin: object = 0, end: object = 4) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def plain(tensors: dict[str, RawTensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {k: (t.dtype, t.shape, bytes(t.data)) for k, t in tensors.items()}  # type: ignore[arg-type]


# The reference library as the oracle, both ways.


def sample(torch: Any) -> dict[str, Any]:
    """A PyTorch tensor of every dtype in every shape, from random bits."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        for shape in SHAPES:
            count = torch.Size(shape).numel()
            bits = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator)
            raw = (bits % 2 if name == "bool" else bits).to(torch.uint8)
            tensors[f"{name}.{shape}"] = raw.view(dtype).reshape(shape)
    return tensors


def bytes_of(torch: Any, tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.covers("L2", "L3")
def test_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    tensors = sample(torch)
    path = tmp_path / "reference.safetensors"
    reference.save_file(tensors, path, metadata={"épée": "ключ", "b": ""})

    loaded = safetensors.load_file(path)
    assert loaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert loaded[key].shape == tuple(tensor.shape)
        assert f"torch.{loaded[key].dtype}" == str(tensor.dtype)
        assert bytes(loaded[key].data) == bytes_of(torch, tensor)
    assert safetensors.read_header(path).metadata == {"épée": "ключ", "b": ""}


@pytest.mark.covers("L1")
def test_the_reference_library_reads_what_we_write(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    tensors = sample(torch)
    ours = {
        key: RawTensor(str(t.dtype).removeprefix("torch."), tuple(t.shape), bytes_of(torch, t))
        for key, t in tensors.items()
    }
    path = tmp_path / "ours.safetensors"
    safetensors.save_file(ours, path, {"épée": "ключ", "b": ""})

    loaded = reference.load_file(path)
    assert loaded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert loaded[key].dtype == tensor.dtype
        assert loaded[key].shape == tensor.shape
        assert bytes_of(torch, loaded[key]) == bytes_of(torch, tensor)
    with pytest.importorskip("safetensors").safe_open(path, "pt") as opened:
        assert opened.metadata() == {"épée": "ключ", "b": ""}


def test_our_files_keep_the_order_of_the_tensors_and_align_them(tmp_path: Path) -> None:
    path = tmp_path / "order.safetensors"
    tensors = {
        "z": RawTensor("bool", (3,), b"\x01\x00\x01"),
        "a": RawTensor("float64", (1,), struct.pack("<d", 1.5)),
        "m": RawTensor("float16", (2,), b"abcd"),
    }
    safetensors.save_file(tensors, path)
    assert list(safetensors.load_file(path)) == ["z", "a", "m"]
    assert plain(safetensors.load_file(path)) == plain(tensors)
    for info in safetensors.read_header(path).tensors.values():
        assert info.begin % {"bool": 1, "float64": 8, "float16": 2}[info.dtype] == 0


def test_files_without_tensors_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    safetensors.save_file({}, path)
    assert safetensors.load_file(path) == {}
    assert safetensors.loads(file_of({})) == {}
    assert safetensors.loads(file_of(b"{}      ")) == {}


def test_loaded_data_is_read_only_and_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.save_file({"a": RawTensor("uint8", (4,), b"1234")}, path)
    data = safetensors.load_file(path)["a"].data
    assert isinstance(data, memoryview)
    assert data.readonly
    os.unlink(path)
    assert bytes(data) == b"1234"


def test_one_tensor_of_a_huge_sparse_file_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    size = 1 << 40
    header = {
        "big": entry("U8", [size], 0, size),
        "last": entry("U8", [4], size, size + 4),
    }
    with open(path, "wb") as stream:
        prefix = file_of(header)
        stream.write(prefix)
        try:
            stream.seek(len(prefix) + size)
            stream.write(b"tail")
        except OSError:
            pytest.skip("this file system has no sparse files of a terabyte")
    assert bytes(safetensors.load_file(path)["last"].data) == b"tail"


# Hostile files: (file, words that the error must have). Each is refused from memory and from disk.

ONE = entry()
NAN = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,NaN]}}'
TWICE = (
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
)
TWICE_INSIDE = b'{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
TWICE_METADATA = b'{"__metadata__":{"k":"1","k":"2"}}'
SURROGATE = b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
MANY_DIGITS = b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'

ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes are too few"),
    "seven bytes": (b"1234567", "7 bytes are too few"),
    "header longer than the file": (file_of({}, length=3), "header's length is 3, but only 2"),
    "header length 2**64 - 1": (file_of({}, length=2**64 - 1), "18446744073709551615, the limit"),
    "header over 100 MB": (file_of({}, length=100_000_001), "the limit is 100000000"),
    "header of length 0": (file_of(b""), "must start with '{'"),
    "header cut short": (file_of({"a": ONE}, b"0000", length=20), "not JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not UTF-8"),
    "UTF-16": (file_of('{"a": 1}'.encode("utf-16")), "must start with '{'"),
    "byte order mark": (file_of(b"\xef\xbb\xbf{}"), "must start with '{'"),
    "not JSON": (file_of(b"{]"), "not JSON"),
    "two documents": (file_of(b"{}{}"), "not JSON"),
    "NUL after the header": (file_of(b"{}\0\0"), "not JSON"),
    "list": (file_of([]), "must start with '{'"),
    "leading space": (file_of(b" {}"), "must start with '{'"),
    "NaN in JSON": (file_of(NAN, b"0000"), "NaN is not JSON"),
    "nested deeply": (file_of(b'{"a":' + b"[" * 200_000), "nested too deeply"),
    "number of 5,000 digits": (file_of(MANY_DIGITS, b"0000"), "header is not JSON"),
    "duplicate key": (file_of(TWICE, b"0000"), "'a': the key occurs twice"),
    "duplicate field": (file_of(TWICE_INSIDE, b"0000"), "'dtype': the key occurs twice"),
    "duplicate metadata": (file_of(TWICE_METADATA), "'k': the key occurs twice"),
    "half a surrogate pair": (file_of(SURROGATE, b"0000"), "no Unicode text"),
    "entry is a list": (file_of({"a": [1]}), "exactly dtype, shape and data_offsets"),
    "entry is null": (file_of({"a": None}), "this one is 'NoneType'"),
    "field missing": (file_of({"a": {"dtype": "F32", "shape": []}}), "exactly dtype, shape"),
    "field too many": (file_of({"a": {**ONE, "x": 1}}, b"0000"), "exactly dtype, shape"),
    "unknown dtype": (file_of({"a": entry("F128")}, b"0000"), "unknown dtype 'F128'"),
    "lower-case dtype": (file_of({"a": entry("f32")}, b"0000"), "unknown dtype 'f32'"),
    "dtype is a list": (file_of({"a": {**ONE, "dtype": ["F32"]}}, b"0000"), "unknown dtype"),
    "shape is a number": (file_of({"a": entry(shape=1)}, b"0000"), "a shape is a list"),
    "negative size": (file_of({"a": entry(shape=[-1])}, b"0000"), "integers >= 0"),
    "two negative sizes": (file_of({"a": entry(shape=[-1, -1])}, b"0000"), "integers >= 0"),
    "fractional size": (file_of({"a": entry(shape=[1.0])}, b"0000"), "integers >= 0"),
    "size true": (file_of({"a": entry(shape=[True])}, b"0000"), "integers >= 0"),
    "size as text": (file_of({"a": entry(shape=["1"])}, b"0000"), "integers >= 0"),
    "size over 64 bits": (file_of({"a": entry(shape=[2**64 + 1])}, b"0000"), "integers >= 0"),
    "product wraps 64 bits": (file_of({"a": entry(shape=[2**62, 4, 4])}, b""), "passes 2**63"),
    "huge beside zero": (file_of({"a": entry("U8", [0, 2**62, 4], 0, 0)}), "passes 2**63"),
    "offsets is a number": (file_of({"a": {**ONE, "data_offsets": 4}}, b"0000"), "[begin, end]"),
    "one offset": (file_of({"a": {**ONE, "data_offsets": [4]}}, b"0000"), "[begin, end]"),
    "three offsets": (file_of({"a": {**ONE, "data_offsets": [0, 4, 4]}}, b"0000"), "[begin, end]"),
    "negative offset": (file_of({"a": entry(begin=-4, end=0)}, b"0000"), "[begin, end]"),
    "offsets in reverse": (file_of({"a": entry(begin=4, end=0)}, b"0000"), "must be in order"),
    "end after the file": (file_of({"a": ONE}, b"000"), "inside the 3 bytes of data"),
    "data too long": (file_of({"a": entry(end=8)}, b"00000000"), "takes 4 bytes, data_offsets"),
    "data too short": (file_of({"a": entry(shape=[2])}, b"0000"), "takes 8 bytes, data_offsets"),
    "same bytes twice": (file_of({"a": ONE, "b": ONE}, b"0000"), "'b': its bytes [0, 4] overlap"),
    "partial overlap": (
        file_of({"a": entry("U8", [4]), "b": entry("U8", [4], 2, 6)}, b"000000"),
        "'b': its bytes [2, 6] overlap those of 'a', which end at 4",
    ),
    "empty tensor inside another": (
        file_of({"a": ONE, "b": entry(shape=[0], begin=2, end=2)}, b"0000"),
        "overlap",
    ),
    "hole at the start": (file_of({"a": entry(begin=4, end=8)}, b"00000000"), "[0, 4] before it"),
    "hole in the middle": (
        file_of({"a": ONE, "b": entry(begin=8, end=12)}, b"0" * 12),
        "'b': no tensor uses the bytes [4, 8]",
    ),
    "bytes after the last tensor": (file_of({"a": ONE}, b"00000"), "1 bytes follow the last"),
    "data without tensors": (file_of({}, b"0"), "1 bytes follow the last"),
    "misaligned": (
        file_of({"a": entry("U8", [1], 0, 1), "b": entry(begin=1, end=5)}, b"00000"),
        "'b': the data starts at byte 1, which is no multiple of 4, the size of F32",
    ),
    "bool byte 2": (file_of({"a": entry("BOOL", [2], 0, 2)}, b"\1\2"), "must be 0 or 1"),
    "metadata is a list": (file_of({"__metadata__": []}), "must map strings to strings"),
    "metadata holds a number": (file_of({"__metadata__": {"a": 1}}), "must map strings to strings"),
    "metadata holds an object": (file_of({"__metadata__": {"a": {}}}), "must map strings"),
    "zip archive of torch.save": (b"PK\x03\x04" + b"\0" * 40, "as torch.save writes"),
    "GGUF": (b"GGUF\x03\0\0\0" + b"\0" * 40, "GGUF"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_files_are_refused_with_the_broken_rule(attack: str, tmp_path: Path) -> None:
    content, words = ATTACKS[attack]
    with pytest.raises(SafetensorError) as from_memory:
        safetensors.loads(content)
    assert words in str(from_memory.value)

    path = tmp_path / "attack.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorError) as from_disk:
        safetensors.load_file(path)
    assert str(from_disk.value) == str(from_memory.value).replace("<bytes>", str(path), 1)
    if attack != "bool byte 2":  # the one rule about data
        with pytest.raises(SafetensorError) as from_header:
            safetensors.read_header(path)
        assert str(from_header.value) == str(from_disk.value)


def test_messages_stay_short_whatever_the_file_says() -> None:
    with pytest.raises(SafetensorError) as error:
        safetensors.loads(file_of({"k" * 10_000: entry("D" * 10_000)}, b"0000"))
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("position", range(8, 80))
def test_a_file_cut_short_anywhere_is_refused(position: int) -> None:
    whole = file_of({"a": ONE, "b": entry("U8", [3], 4, 7)}, b"0000000")
    cut = len(whole) * position // 80
    with pytest.raises(SafetensorError):
        safetensors.loads(whole[:cut])


def test_random_damage_never_escapes_as_another_error() -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    whole = file_of({"a": ONE, "b": entry("U8", [3], 4, 7), "__metadata__": {"x": "y"}}, b"0" * 7)

    @hypothesis.settings(max_examples=300, deadline=None)
    @hypothesis.given(
        st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6)
    )
    def damage(changes: list[tuple[int, int]]) -> None:
        content = bytearray(whole)
        for index, byte in changes:
            content[index] = byte
        try:
            loaded = safetensors.loads(bytes(content))
        except SafetensorError:
            return
        # Accepted: then every tensor has exactly the bytes that its shape asks for.
        assert all(len(bytes(t.data)) == t.nbytes for t in loaded.values())  # type: ignore[arg-type]

    damage()


def test_misaligned_files_can_be_read_on_request() -> None:
    content, _ = ATTACKS["misaligned"]
    assert safetensors.loads(content, allow_misaligned=True)["b"].shape == (1,)


def test_padding_and_unpadded_headers_are_accepted() -> None:
    text = json.dumps({"a": ONE}).encode()
    for header in (text, text + b"   ", text + b"\n"):
        assert bytes(safetensors.loads(file_of(header, b"abcd"))["a"].data) == b"abcd"


# Writing.


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"__metadata__": RawTensor("uint8", (0,), b"")}, "reserved for the metadata"),
        ({"\ud800": RawTensor("uint8", (0,), b"")}, "Unicode text"),
        ({3: RawTensor("uint8", (0,), b"")}, "Unicode text, not 3"),
        ({"a": RawTensor("complex128", (0,), b"")}, "the format has no complex128"),
        ({"a": RawTensor("uint8", (-1,), b"")}, "integers >= 0"),
        ({"a": RawTensor("float32", (2,), b"0000")}, "takes 8 bytes, 4 were given"),
    ],
)
def test_what_the_format_cannot_hold_is_not_written(
    tensors: Any, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.safetensors"
    with pytest.raises(SafetensorError, match=words):
        safetensors.save_file(tensors, path)
    assert list(tmp_path.iterdir()) == []


def test_metadata_must_be_text(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError, match="metadata maps"):
        safetensors.save_file({}, tmp_path / "a", {"epoch": 3})  # type: ignore[dict-item]


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    good = {"a": RawTensor("uint8", (4,), b"1234")}
    safetensors.save_file(good, path)

    def lost() -> bytes:
        raise RuntimeError("the device was lost")

    with pytest.raises(RuntimeError, match="lost"):
        safetensors.save_file({**good, "b": RawTensor("uint8", (4,), lost)}, path)
    assert plain(safetensors.load_file(path)) == plain(good)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_file_can_be_replaced_by_tensors_mapped_from_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.save_file({"a": RawTensor("uint8", (4,), b"1234")}, path)
    mapped = safetensors.load_file(path)
    safetensors.save_file({"b": mapped["a"], "c": mapped["a"]}, path)
    assert {k: v[2] for k, v in plain(safetensors.load_file(path)).items()} == {
        "b": b"1234",
        "c": b"1234",
    }
    assert bytes(mapped["a"].data) == b"1234"  # type: ignore[arg-type]


def test_data_may_come_from_functions_called_one_at_a_time() -> None:
    live: list[str] = []

    def source(key: str) -> Any:
        def read() -> bytes:
            live.append(key)
            return key.encode() * 4

        return read

    stream = io.BytesIO()
    safetensors.dump({k: RawTensor("uint8", (4,), source(k)) for k in "ab"}, stream)
    assert live == ["a", "b"]
    assert {k: v[2] for k, v in plain(safetensors.loads(stream.getvalue())).items()} == {
        "a": b"aaaa",
        "b": b"bbbb",
    }


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions and links")
def test_links_and_permissions_survive_a_save(tmp_path: Path) -> None:
    path, link = tmp_path / "real.safetensors", tmp_path / "link.safetensors"
    safetensors.save_file({}, path)
    path.chmod(0o640)
    link.symlink_to(path)
    safetensors.save_file({"a": RawTensor("uint8", (1,), b"x")}, link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(safetensors.load_file(path)) == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(path.read_bytes)
        safetensors.save_file({"a": RawTensor("uint8", (1,), b"x")}, path)
        assert plain(safetensors.loads(received.result(PATIENCE))) == {"a": ("uint8", (1,), b"x")}
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="give a file's name"):
        safetensors.save_file({}, tmp_path)
