"""Storages with and without a type, beside PyTorch's."""

from __future__ import annotations

import copy
import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
BOTH = pytest.mark.parametrize("lib", [torch, webtorch], ids=["torch", "webtorch"])
TYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int16",
    "uint8",
    "bool",
    "complex64",
    "complex128",
]


@BOTH
@pytest.mark.parametrize("name", TYPES)
def test_a_typed_storage_is_the_memory_of_its_tensor(lib: Any, name: str) -> None:
    dtype = getattr(lib, name)
    x = lib.tensor([[1, 0, 1], [1, 1, 0]]).to(dtype)
    storage = x.storage()
    assert storage.tolist() == x.flatten().tolist()
    assert len(storage) == storage.size() == 6
    assert storage.nbytes() == len(storage.untyped()) == 6 * x.element_size()
    assert x.storage_type().__name__ == storage.type().removeprefix("torch.")
    assert isinstance(storage, x.storage_type())
    storage[1] = 1
    assert x[0, 1].item() == 1
    storage[2:4] = 0
    assert x.flatten()[2:4].tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="slices are only supported"):
        storage[1:2]
    for memory in (storage, storage.untyped()):
        assert lib.tensor(memory, dtype=dtype).tolist() == x.flatten().tolist()
        shown = lib.tensor([], dtype=dtype).set_(memory)
        shown[0] = 0
        assert x[0, 0].item() == 0
    other = lib.int32
    with pytest.raises(RuntimeError, match="Expected a Storage of type"):
        lib.tensor(storage, dtype=other)
    with pytest.raises(RuntimeError, match="Expected a Storage of type"):
        lib.tensor([], dtype=other).set_(storage)


@BOTH
def test_a_part_of_a_storage_is_shown(lib: Any) -> None:
    memory = lib.FloatStorage([1, 2, 3, 4, 5, 6])
    x = lib.empty(0).set_(memory.untyped(), 1, (2, 2), (1, 2))
    assert x.tolist() == [[2.0, 4.0], [3.0, 5.0]]
    assert x.stride() == (1, 2)
    assert lib.is_storage(memory)
    assert lib.is_storage(memory.untyped())
    assert not lib.is_storage(x)


@BOTH
def test_one_object_shows_the_memory_and_keeps_what_is_set_on_it(lib: Any) -> None:
    x = lib.ones(3)
    memory = x.untyped_storage()
    memory.note = "kept"
    assert x[1:].untyped_storage() is memory
    assert x.storage()._cdata == x[1:].storage()._cdata != lib.ones(3).storage()._cdata
    del memory
    assert x.untyped_storage().note == "kept"
    assert lib.empty(0).data_ptr() == x[:0].data_ptr() == 0


@BOTH
def test_a_slice_is_a_part_of_the_memory(lib: Any) -> None:
    memory = lib.UntypedStorage([1, 2, 3, 4, 5])
    part = memory[1:4]
    part[1] = 9
    assert (memory.tolist(), part.tolist(), part.nbytes()) == ([1, 2, 9, 4, 5], [2, 9, 4], 3)
    assert part[1:].tolist() == [9, 4]
    with pytest.raises(RuntimeError, match="Trying to slice with a step of 2"):
        memory[::2]


@BOTH
def test_storages_of_a_file_are_its_memory(lib: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    x = lib.FloatTensor(lib.FloatStorage.from_file(path, True, 4))
    x.fill_(2)
    y = lib.from_file(path, True, 4)
    alone = lib.from_file(path, False, 4)
    y[1] = 5
    alone[2] = 7
    assert x.tolist() == lib.FloatStorage.from_file(path, False, 4).tolist() == [2, 5, 2, 2]
    assert lib.UntypedStorage.from_file(path, True, 4).filename == path
    with pytest.raises(RuntimeError, match="is smaller than the required mapping size <32>"):
        lib.from_file(path, False, 8)
    with pytest.raises(
        RuntimeError, match=r"unable to open file .* in read-only mode: No such file"
    ):
        lib.from_file(path + "x", False, 8)
    with pytest.raises(RuntimeError, match="can only be called on derived classes"):
        lib.TypedStorage.from_file(path, False, 8)


@BOTH
def test_typed_storages_of_buffers(lib: Any) -> None:
    data = bytearray([0x40, 0x10, 0, 0])
    assert lib.FloatStorage.from_buffer(data, "big").tolist() == [2.25]
    assert lib.ShortStorage.from_buffer(data, "little").tolist() == [0x1040, 0]


@BOTH
def test_copies_share_what_was_shared(lib: Any) -> None:
    x = lib.arange(4.0)
    a, b, c = copy.deepcopy([x, x.storage(), x.untyped_storage()])
    a[0] = 5
    assert (b[0], c.tolist(), x[0].item()) == (5, a.untyped_storage().tolist(), 0)


@BOTH
def test_bytes(lib: Any) -> None:
    memory = lib.UntypedStorage([1, 2, 3, 4])
    assert memory.tolist() == [1, 2, 3, 4]
    assert (memory[1], memory[1:3].tolist(), memory.nbytes()) == (2, [2, 3], 4)
    clone, deep = memory.clone(), copy.deepcopy(memory)
    memory.fill_(7)
    assert list(memory) == [7, 7, 7, 7]
    assert clone.tolist() == deep.tolist() == [1, 2, 3, 4]
    memory.copy_(clone)
    memory[0] = 9
    assert memory.tolist() == [9, 2, 3, 4]
    clone.byteswap(lib.float16)
    assert clone.tolist() == [2, 1, 4, 3]
    x = lib.tensor([1.0, 2.0])
    x.untyped_storage().resize_(16)
    assert x.untyped_storage().nbytes() == 16
    assert x.tolist() == [1.0, 2.0]
    assert lib.UntypedStorage(3).size() == 3


@BOTH
def test_conversions_and_old_names(lib: Any) -> None:
    storage = lib.IntStorage([-1, 0, 1, 2])
    assert storage.dtype is lib.int32
    assert storage.type() == "torch.IntStorage"
    for name in ("float", "double", "half", "bfloat16", "long", "short", "char", "bool"):
        found = getattr(storage, name)()
        assert found.tolist() == lib.tensor([-1, 0, 1, 2]).to(found.dtype).tolist()
    assert storage.complex_float().tolist() == [-1, 0, 1, 2]
    assert lib.DoubleStorage(3).size() == 3


@BOTH
def test_on_the_device_without_data(lib: Any) -> None:
    storage = lib.TypedStorage([1, 2, 3], device="meta", dtype=lib.int64)
    assert (storage.size(), storage.nbytes(), storage.data_ptr()) == (3, 24, 0)
    with pytest.raises(NotImplementedError, match="Not available"):
        storage[0]
    with pytest.raises(NotImplementedError, match="Cannot copy out"):
        storage.cpu()
    with pytest.raises(NotImplementedError, match="Cannot copy out"):
        lib.LongStorage(3).copy_(storage)


@BOTH
def test_a_tensor_of_a_storage_shares_its_memory(lib: Any) -> None:
    memory = lib.UntypedStorage(10)
    memory.fill_(0)
    x = lib.tensor(memory)
    assert (x.shape, x.dtype, x._base) == ((1,), lib.int64, None)
    y = lib.tensor(memory, dtype=lib.float32)
    y.fill_(1.0)
    assert memory.tolist() == [0, 0, 128, 63, 0, 0, 128, 63, 0, 0]
    assert x.item() == 0x3F8000003F800000
    assert lib.Tensor(memory).tolist() == lib.zeros(1).new(memory).tolist() == [1.0, 1.0]


@BOTH
def test_what_is_set_on_storages_goes_with_their_memory(lib: Any) -> None:
    x, y = lib.UntypedStorage(2), lib.UntypedStorage(2)
    x.other, y.other = y, x
    gone = weakref.ref(x)
    del x, y
    gc.collect()
    assert gone() is None
    flat = lib.ones(2)
    flat.untyped_storage().note = "kept"
    assert flat[1:].untyped_storage().note == "kept"


@BOTH
@pytest.mark.parametrize("name", TYPES)
def test_addresses_are_where_the_values_lie(lib: Any, name: str) -> None:
    """Packages read memory there, as safetensors does to save it: also of what was not computed yet."""
    x = (lib.ones(2, 3, device="cpu") * 2).to(getattr(lib, name))
    same, copied = x.view(-1), x.clone()
    for _ in range(2):
        assert same.data_ptr() == x.data_ptr() == x.untyped_storage().data_ptr()
        assert copied.data_ptr() != x.data_ptr()
        read = ctypes.string_at(x.data_ptr(), x.nbytes)
        assert read == bytes(
            x.view(lib.uint8).flatten().tolist() if name != "bool" else x.tolist()[0] * 2
        )
        assert x[1].data_ptr() == x.data_ptr() + 3 * x.element_size()
        x.neg_() if name not in ("bool", "uint8") else x.zero_()
