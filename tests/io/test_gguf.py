"""GGUF files, against the gguf package."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import quants

import webtorch
from webtorch.io import GGUFError, GGUFReader, load_gguf, save_gguf
from webtorch.quantization import PackedTensor, quantize


def write(path: Path, *, quantised: bool = True) -> np.ndarray[Any, Any]:
    weights = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_string("x.name", "hé")
    writer.add_array("x.tokens", ["a", "bb"])
    writer.add_array("x.numbers", [1.5, 2.5])
    writer.add_tensor("plain.weight", weights)
    writer.add_tensor("half", weights.astype(np.float16))
    writer.add_tensor("whole", np.arange(6, dtype=np.int32).reshape(2, 3))
    if quantised:
        for kind in (Kind.Q4_0, Kind.Q8_0, Kind.BF16):
            writer.add_tensor(kind.name, quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_a_file_of_the_gguf_package(tmp_path: Path, device: str) -> None:
    weights = write(tmp_path / "m.gguf")
    metadata, tensors = load_gguf(tmp_path / "m.gguf", device=device)
    assert metadata["llama.block_count"] == 3 and metadata["x.name"] == "hé"
    assert metadata["x.tokens"] == ["a", "bb"] and metadata["x.numbers"] == [1.5, 2.5]
    assert {t.device.type for t in tensors.values()} == {webtorch.device(device).type}
    np.testing.assert_array_equal(tensors["plain.weight"].numpy(force=True), weights)
    assert tensors["half"].dtype is webtorch.float16
    assert tensors["whole"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["BF16"].dtype is webtorch.bfloat16
    for kind in (Kind.Q4_0, Kind.Q8_0):
        expected = quants.dequantize(quants.quantize(weights, kind), kind)
        np.testing.assert_array_equal(tensors[kind.name].numpy(force=True), expected)


def test_quantised_tensors_stay_packed(tmp_path: Path, device: str) -> None:
    weights = write(tmp_path / "m.gguf")
    _, tensors = load_gguf(tmp_path / "m.gguf", device, packed=True)
    for kind in (Kind.Q4_0, Kind.Q8_0):
        data = quants.quantize(weights, kind)
        found = tensors[kind.name]
        assert isinstance(found, PackedTensor) and found.format == kind.name
        assert found.device.type == webtorch.device(device).type and tuple(found.shape) == (4, 256)
        np.testing.assert_array_equal(found.bytes().numpy(force=True), data)
    plain = tensors["half"]
    assert isinstance(plain, webtorch.Tensor) and plain.dtype is webtorch.float16


def test_some_tensors_as_another_type(tmp_path: Path) -> None:
    weights = write(tmp_path / "m.gguf")
    _, tensors = load_gguf(
        tmp_path / "m.gguf", "cpu", dtype=webtorch.float16, keys=["Q8_0", "whole"]
    )
    assert [t.dtype for t in tensors.values()] == [webtorch.float16, webtorch.int32]
    np.testing.assert_allclose(tensors["Q8_0"].float().numpy(), weights, atol=0.03)
    with pytest.raises(KeyError, match="has no tensor 'nothing'"):
        load_gguf(tmp_path / "m.gguf", keys=["nothing"])


def test_what_is_saved_is_read_by_the_gguf_package(tmp_path: Path) -> None:
    tensors = {
        "a": webtorch.randn(3, 5, device="cpu"),
        "b": webtorch.arange(7, device="cpu"),
        "c": webtorch.randn(2, 2, 2, device="cpu").to(webtorch.bfloat16).mT,
    }
    notes = {
        "n": 1,
        "big": 2**40,
        "x": 0.5,
        "name": "é",
        "yes": True,
        "list": [1, 2],
        "words": ["p", "q"],
        "less": [-1, 2],
        "huge": 1e300,
    }
    save_gguf(tensors, tmp_path / "m.gguf", notes)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    # llama.cpp asks for these types, and ends where it finds others.
    wanted = {"n": "UINT32", "x": "FLOAT32", "list": "INT32", "less": "INT32", "huge": "FLOAT64"}
    for key, name in wanted.items():
        assert reader.fields[key].types[-1].name == name
    found = {t.name: t for t in reader.tensors}
    np.testing.assert_array_equal(found["a"].data, tensors["a"].numpy())
    assert reader.fields["big"].contents() == 2**40 and reader.fields["words"].contents() == [
        "p",
        "q",
    ]
    metadata, again = load_gguf(tmp_path / "m.gguf", "cpu")
    assert {k: metadata[k] for k in notes} == notes
    for key, t in tensors.items():
        assert again[key].dtype is t.dtype and again[key].tolist() == t.tolist()
    with pytest.raises(TypeError, match="the metadata 'bad' is a set"):
        save_gguf({}, tmp_path / "n.gguf", {"bad": {1}})
    with pytest.raises(GGUFError, match=r"GGUF has no torch\.bool"):
        save_gguf({"m": webtorch.ones(2, dtype=webtorch.bool)}, tmp_path / "n.gguf")


def test_tables_of_their_own_are_refused_by_name_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("fine", np.ones(4, np.float32))
    writer.add_tensor("iq", np.zeros((1, 82), np.uint8), raw_dtype=Kind.IQ2_S)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(GGUFError, match="'iq' is IQ2_S, which is not read here"):
        load_gguf(path)
    assert GGUFReader(path).tensor("fine", device="cpu").tolist() == [1, 1, 1, 1]


def split(folder: Path) -> list[Path]:
    """Write the tensors a, b and c, of which a is packed, to three files."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1)
    writer.add_block_count(3)
    a = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    writer.add_tensor("a", quants.quantize(a, Kind.Q8_0), raw_dtype=Kind.Q8_0)
    writer.add_tensor("b", np.arange(4, dtype=np.float32))
    writer.add_tensor("c", np.arange(2, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_a_model_in_several_files(tmp_path: Path, device: str) -> None:
    names = split(tmp_path)
    assert [n.name for n in names] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for name in names:
        reader = GGUFReader(name)
        assert reader.files == [str(n) for n in names] and list(reader) == ["a", "b", "c"]
        assert reader.metadata["llama.block_count"] == 3
        metadata, tensors = load_gguf(name, device, packed=True)
        a = tensors.pop("a")
        assert isinstance(a, PackedTensor)
        data = gguf.GGUFReader(names[0]).tensors[0].data
        np.testing.assert_array_equal(a.bytes().numpy(force=True), data)
        assert [t.tolist() for t in tensors.values()] == [[0, 1, 2, 3], [0, 1]]
    # What is saved again is one file.
    save_gguf({"a": a, **tensors}, tmp_path / "one.gguf", metadata)
    assert list(GGUFReader(tmp_path / "one.gguf")) == ["a", "b", "c"]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second, third = split(tmp_path)
    kept = second.read_bytes()
    second.unlink()
    said = "this is file 3 of 3 of a model, and not beside it: 'm-00002-of-00003.gguf'"
    with pytest.raises(FileNotFoundError, match=said):
        GGUFReader(third)
    second.write_bytes(third.read_bytes())
    with pytest.raises(GGUFError, match="does not say that it is 2 of 3"):
        GGUFReader(first)
    second.write_bytes(kept.replace(b"b", b"a"))
    with pytest.raises(GGUFError, match="'a' stood in a file before it as well"):
        GGUFReader(first)
    second.write_bytes(kept)
    with pytest.raises(
        GGUFError, match=r"this is file 2 of 3 .* must end in -00002-of-00003\.gguf"
    ):
        GGUFReader(second.rename(tmp_path / "renamed.gguf"))


def test_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    bad = tmp_path / "bad.gguf"
    numbers = random.Random(0)
    refused = []
    for n in range(150):
        data = bytearray(whole)
        if n % 3 == 0:
            del data[numbers.randrange(len(data)) :]
        else:
            for _ in range(3):
                data[numbers.randrange(500)] = numbers.randrange(256)
        bad.write_bytes(data)
        try:
            load_gguf(bad, "cpu")
        except GGUFError as error:
            refused.append(str(error))
    assert len(refused) > 50 and all(str(bad) in text for text in refused)
    bad.write_bytes(b"PK\x03\x04" + whole[4:])
    with pytest.raises(GGUFError, match="starts with b'GGUF', this one with"):
        load_gguf(bad)


def test_a_large_tensor_is_unpacked_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    rows = np.zeros((1024, 256 // 32 * 34 * 64), np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", rows, raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    del rows
    elements = 1024 * 256 * 64
    tracemalloc.start()
    _, tensors = load_gguf(path, "cpu", dtype=webtorch.float16)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tensors["w"].numel() == elements
    # The half floats, their copy on the device, and pieces: never all of it in float32.
    assert peak < elements * 2 * 2 + (64 << 20)


def test_packed_tensors_lie_on_the_file(tmp_path: Path) -> None:
    path, x = tmp_path / "m.gguf", webtorch.randn(4, 256, device="cpu")
    save_gguf({"w": quantize(x, "Q4_K"), "v": quantize(x, "Q8_0")}, path)
    before = path.read_bytes()
    reader = GGUFReader(path)
    first, again, other = (reader.packed(n, device="cpu") for n in ("w", "w", "v"))
    assert isinstance(first, PackedTensor) and isinstance(again, PackedTensor)
    assert isinstance(other, PackedTensor)
    mapped = np.frombuffer(reader._files[0].own or b"", np.uint8)
    shared = [np.shares_memory(mapped, t.blocks.numpy()) for t in (first, again, other)]
    assert shared == [True, False, True]
    expected, kept = again.dequantize().tolist(), other.dequantize().tolist()
    assert first.dequantize().tolist() == expected
    # A write reaches neither the file nor other tensors.
    first.blocks.zero_()
    assert not first.dequantize().any()
    assert again.dequantize().tolist() == expected and other.dequantize().tolist() == kept
    del reader
    assert path.read_bytes() == before and other.dequantize().tolist() == kept
