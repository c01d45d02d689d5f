"""Files of torch.save: real PyTorch reads ours, we read its, and hostile ones do nothing."""

from __future__ import annotations

import argparse
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch.io.pytorch_file import CheckpointError

DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "uint32",
]  # fmt: skip


def equal(ours: Any, theirs: Any) -> None:
    """Compare a structure of webtorch's tensors with one of PyTorch's: types, layout, sharing, bits."""
    if isinstance(theirs, torch.Tensor):
        assert type(ours).__name__ == type(theirs).__name__
        assert str(ours.dtype) == str(theirs.dtype)
        assert (tuple(ours.shape), tuple(ours.stride())) == (tuple(theirs.shape), theirs.stride())
        assert ours.storage_offset() == theirs.storage_offset()
        assert (ours.requires_grad, ours.is_leaf) == (theirs.requires_grad, True)
        assert ours.tolist() == theirs.tolist()
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs) and list(ours) == list(theirs)
        for key in theirs:
            equal(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert type(ours).__name__ == type(theirs).__name__ and len(ours) == len(theirs)
        for x, y in zip(ours, theirs, strict=True):
            equal(x, y)
    elif isinstance(theirs, torch.dtype | torch.device):
        assert str(ours) == str(theirs)
    else:
        assert type(ours) is type(theirs) and ours == theirs


def structure() -> dict[Any, Any]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    dtypes = {d: torch.tensor([0, 1, 1], dtype=getattr(torch, d)) for d in DTYPES}
    return {
        "base": base, "t": base.transpose(0, 2), "row": base[1, 2], "step": base[:, ::2],
        "wide": torch.ones(1).expand(5), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5),
        "leaf": torch.ones(2, requires_grad=True), "parameter": torch.nn.Parameter(torch.ones(3)),
        "frozen": torch.nn.Parameter(torch.ones(1), requires_grad=False), **dtypes,
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
        "ordered": OrderedDict(a=1, b=OrderedDict()), "set": {1, "x"}, "bytes": b"\x00\xff",
        "numbers": [0, -1, 255, 2**31, -(2**70), 10**600, 1.5, float("inf"), True, False, None],
        3: ("épée", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, [[{}]]), (1, "k"): "key",
    }  # fmt: skip


def test_we_read_what_pytorch_wrote(tmp_path: Path) -> None:
    theirs = structure()
    torch.save(theirs, tmp_path / "a.pt")
    for mmap in (None, False):
        ours: Any = webtorch.load(tmp_path / "a.pt", mmap=mmap)
        equal(ours, theirs)
        ours["base"][1, 2, 3] = 99.0
        assert ours["row"][3].item() == ours["t"][3, 2, 1].item() == 99.0


def test_pytorch_reads_what_we_wrote(tmp_path: Path) -> None:
    theirs = structure()
    torch.save(theirs, tmp_path / "a.pt")
    webtorch.save(webtorch.load(tmp_path / "a.pt"), tmp_path / "b.pt")
    for mmap in (False, True):
        back = torch.load(tmp_path / "b.pt", weights_only=True, mmap=mmap)
        equal(back, theirs)
        back["base"][1, 2, 3] = 99.0
        assert back["row"][3].item() == back["t"][3, 2, 1].item() == 99.0
    stream = io.BytesIO()
    webtorch.save([theirs["numbers"]], stream)
    stream.seek(0)
    assert torch.load(stream) == [theirs["numbers"]]


def test_structures_that_contain_themselves_and_shared_parts(tmp_path: Path) -> None:
    shared = [webtorch.ones(2)]
    value: list[Any] = [shared, shared]
    value.append(value)
    webtorch.save(value, tmp_path / "a.pt")
    for loaded in (webtorch.load(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt")):
        assert loaded[0] is loaded[1] and loaded[2] is loaded


def net(library: Any) -> Any:
    nn = library.nn
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def train(library: Any, model: Any, optimizer: Any, steps: int) -> list[float]:
    x = library.tensor([[[[(i * j) % 5 - 2.0 for j in range(4)] for i in range(4)]]] * 2)
    x[1] *= 0.5
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adam", {"lr": 0.01}), ("SGD", {"lr": 0.01, "momentum": 0.9}), ("RMSprop", {"lr": 0.001})],
)
def test_a_run_continues_in_the_other_library(name: str, options: Any, tmp_path: Path) -> None:
    places = [(torch, webtorch), (webtorch, torch)]
    for i, (first, second) in enumerate(places):
        path = tmp_path / f"{i}.pt"
        first.manual_seed(3)
        model = net(first)
        optimizer = getattr(first.optim, name)(model.parameters(), **options)
        train(first, model, optimizer, 3)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
        first.save(state, path)
        expected = train(first, model, optimizer, 4)

        model = net(second)
        optimizer = getattr(second.optim, name)(model.parameters(), **options)
        loaded: Any = second.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        assert train(second, model, optimizer, 4) == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert loaded["epoch"] == 3


def test_map_location_of_files_that_pytorch_wrote_from_cuda(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save(torch.arange(3.0), stream)
    # "cpu" with its length, as the pickle spells it.
    data = stream.getvalue().replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    parts = zipfile.ZipFile(io.BytesIO(stream.getvalue()))
    pickled = parts.read("archive/data.pkl")
    assert len(data) != len(stream.getvalue())
    path = tmp_path / "cuda.pt"
    pickled = pickled.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    archive(path, pickled, {"0": parts.read("archive/data/0")})
    with pytest.raises(webtorch.errors.DeviceError, match=r'cuda:0.*map_location="cpu"'):
        webtorch.load(path)
    for where in ("cpu", webtorch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, _: storage):
        assert webtorch.load(path, map_location=where).tolist() == [0, 1, 2]


def test_tensors_return_to_the_device_and_pytorch_reads_them_too(
    tmp_path: Path, device: str
) -> None:
    path = tmp_path / "a.pt"
    x = webtorch.arange(6.0, device=device).reshape(2, 3)
    webtorch.save({"x": x, "t": x.t()}, path)
    loaded: Any = webtorch.load(path)
    assert loaded["t"].device == x.device
    assert loaded["t"].tolist() == torch.load(path)["t"].tolist() == x.t().tolist()
    assert webtorch.load(path, map_location="cpu")["x"].is_cpu


# Hostile and damaged files.


def archive(
    path: Path, pickled: bytes, data: dict[str, bytes] | None = None, **options: Any
) -> Path:
    with zipfile.ZipFile(path, "w", options.get("compression", zipfile.ZIP_STORED)) as out:
        out.writestr("archive/data.pkl", pickled)
        for key, content in (data or {}).items():
            out.writestr(f"archive/data/{key}", content)
        for name, content in options.get("more", {}).items():
            out.writestr(name, content)
    return path


def tensor(
    shape: Any = (2,), strides: Any = (1,), offset: Any = 0, key: str = "0", count: int = 2, kind: str = "FloatStorage"
) -> bytes:  # fmt: skip
    """A pickle of one tensor, with whatever is said of it."""

    class Storage:
        pass

    class Tensor:
        def __reduce__(self) -> Any:
            return (
                torch._utils._rebuild_tensor_v2,
                (Storage(), offset, shape, strides, False, OrderedDict()),
            )

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Storage):
                return ("storage", getattr(torch, kind), key, "cpu", count)
            return None

    stream = io.BytesIO()
    Pickler(stream, 2).dump(Tensor())
    return stream.getvalue()


TWO = {"0": struct.pack("<2f", 1.0, 2.0)}


def test_the_test_s_own_file_is_read(tmp_path: Path) -> None:
    assert webtorch.load(archive(tmp_path / "a.pt", tensor(), TWO)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shape": (3,)}, "does not fit its storage"),
        ({"offset": 1}, "does not fit its storage"),
        ({"offset": -1}, "strides"),
        ({"strides": (2**40,)}, "does not fit its storage"),
        ({"strides": (-1,)}, "strides"),
        ({"shape": (2**62, 2**62), "strides": (0, 0)}, "shape"),
        ({"shape": (1.5,)}, "shape"),
        ({"shape": (True,)}, "shape"),
        ({"shape": (1, 1)}, "strides"),
        ({"count": 3}, "should have 12 bytes, the file has 8"),
        ({"count": 2**62}, "should have"),
        ({"count": -1}, "-1 elements"),
        ({"key": "../../etc/passwd"}, "there is no 'data/../../etc/passwd' in it"),
        ({"key": "9"}, "there is no 'data/9' in it"),
        ({"kind": "DoubleStorage"}, "should have 16 bytes"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(wrong: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        webtorch.load(archive(tmp_path / "a.pt", tensor(**wrong), TWO))


def test_element_types_that_are_absent_are_named(tmp_path: Path) -> None:
    torch.save(torch.zeros(2, dtype=torch.float8_e5m2), tmp_path / "b.pt")
    with pytest.raises(webtorch.errors.DTypeError, match="float8_e5m2"):
        webtorch.load(tmp_path / "b.pt")


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_no_code_runs(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    torch.save({"w": torch.ones(1), "e": Evil(proof)}, tmp_path / "a.pt")
    for weights_only in (None, True):
        with pytest.raises(pickle.UnpicklingError, match="would run code"):
            webtorch.load(tmp_path / "a.pt", weights_only=weights_only)
    assert not proof.exists()
    # The caller says that the file is to be trusted.
    webtorch.load(tmp_path / "a.pt", weights_only=False)
    assert proof.exists()


GLOBALS = [
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"c__builtin__\nexec\n", b"cbuiltins\ngetattr\n", b"cwebtorch\nload\n",
    b"ctorch\nload\n", b"ctorch\nhub.load\n", b"ctorch.serialization\nload\n", b"cnumpy\nload\n", b"c\n\n",
    b"ccollections\nOrderedDict.__init__.__globals__\n", b"ccollections OrderedDict\n\n",
]  # fmt: skip


@pytest.mark.parametrize("name", GLOBALS)
@pytest.mark.parametrize("then", [b")R.", b"(X\x02\x00\x00\x00lstR.", b"."])
def test_names_outside_the_list_are_refused(name: bytes, then: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="would run code"):
        webtorch.load(archive(tmp_path / "a.pt", b"\x80\x02" + name + then))


BAD_PICKLES = [
    b"",
    b".",
    b"\x80\x02",
    b"\x80\x02(",
    b"\x80\x02(.",
    b"\x80\x02]",
    b"\x80\x02NN.",
    b"\x80\x02h\x00.",
    b"\x80\x02K\x01K\x02a.",
    b"\x80\x02}K\x01Ns",
    b"\x80\x02}(K\x01u.",
    b"\x80\x02}]Ns.",
    b"\x80\x02}}Ns.",
    b"\x80\x02NNR.",
    b"\x80\x02]N\x86R.",
    b"\x80\x02]}b.",
    b"\x80\x02NQ.",
    b"\x80\x02X\xff\xff\xff\x7fa.",
    b"\x80\x02\x8b\xff\xff\xff\x7f.",
    b"\x80\x02ctorch\nFloatStorage\n.",
    b"\x80\x02]ctorch\nFloatStorage\na.",
    b"\x80\x02ctorch\nFloatStorage\n)R.",
    b"\x80\x02ctorch\nSize\nK\x05\x85R.",
    b"\x80\x02ctorch\ndevice\nX\x02\x00\x00\x00hi\x85R.",
    b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85R.",
    b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsNsb.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nNNNNNN.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.",
    b"\x80\x02ctorch._utils\n_rebuild_parameter\nNNN\x87R.",
    b"\x80\x02Poops\n.",
    b"\x80\x02\x82\x01.",
    b"\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("data", BAD_PICKLES)
def test_damaged_pickles_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        webtorch.load(archive(tmp_path / "a.pt", data))


def test_keys_that_take_forever_to_hash_are_refused(tmp_path: Path) -> None:
    # Each tuple holds the one before it twice: 2**60 parts.
    nested = b")" + b"2\x86" * 60
    with pytest.raises(CheckpointError):
        webtorch.load(archive(tmp_path / "a.pt", b"\x80\x02}" + nested + b"Ns."))
    nested = b"".join(b"q%ch%c\x86" % (i, i) for i in range(60))
    with pytest.raises(CheckpointError, match="100 parts"):
        webtorch.load(archive(tmp_path / "a.pt", b"\x80\x02})" + nested + b"Ns."))


def test_any_byte_of_a_file_may_be_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    webtorch.save({"a": webtorch.arange(3.0), "b": [1, "x"]}, path)
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 0x41
        path.write_bytes(changed)
        try:
            loaded: Any = webtorch.load(path)
        except (
            CheckpointError,
            webtorch.errors.DTypeError,
            ValueError,
            webtorch.errors.DeviceError,
            # Of the numbers themselves.
            UserWarning,
        ):
            continue
        # A byte that nothing depends on, such as a date.
        assert loaded["a"].tolist() == [0, 1, 2] and loaded["b"] == [1, "x"], position
    for end in range(0, len(data), 31):
        path.write_bytes(data[:end])
        with pytest.raises((CheckpointError, ValueError, EOFError)):
            webtorch.load(path)


def test_zip_files_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    archive(path, tensor(), {"0": bytes(10**6)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        webtorch.load(path)
    archive(path, tensor(), TWO, more={"archive/constants.pkl": b""})
    with pytest.raises(CheckpointError, match="TorchScript"):
        webtorch.load(path)
    archive(path, tensor(), TWO, more={"archive/byteorder": b"middle"})
    with pytest.raises(CheckpointError, match="endian"):
        webtorch.load(path)
    archive(path, tensor(), TWO, more={"other/data.pkl": b""})
    with pytest.raises(CheckpointError, match=r"data\.pkl"):
        webtorch.load(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(path, tensor(), TWO, more={"archive/data/0": bytes(8)})
    with pytest.raises(CheckpointError, match="two entries"):
        webtorch.load(path)


def test_entries_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    archive(path, tensor(), {"0": bytes(8), "1": bytes(8)})
    data = bytearray(path.read_bytes())
    # In the directory, entry 1 begins where entry 0 does.
    first = data.index(b"archive/data/0", data.index(b"PK\x01\x02")) - 4
    second = data.index(b"archive/data/1", first) - 4
    data[second : second + 4] = data[first : first + 4]
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"overlap|another entry|differ"):
        webtorch.load(path)


def test_what_a_file_cannot_hold_is_refused_with_the_fix(tmp_path: Path) -> None:
    for value, fix in (
        (webtorch.nn.Linear(1, 1), r"save its state_dict\(\)"),
        (argparse.Namespace(lr=1), r"vars\(\)"),
        (print, "convert it"),
    ):
        with pytest.raises(TypeError, match=rf"obj\['m'\].*{fix}"):
            webtorch.save({"m": value}, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_parameters_without_a_size_are_read_by_pytorch_and_here():
    lazy = webtorch.nn.Sequential(
        webtorch.nn.LazyLinear(3, dtype=webtorch.float64), webtorch.nn.LazyBatchNorm1d()
    )
    out = io.BytesIO()
    webtorch.save(lazy.state_dict(), out)
    there = torch.load(io.BytesIO(out.getvalue()), weights_only=False)
    here = webtorch.load(io.BytesIO(out.getvalue()), weights_only=False)
    for found, library in ((there, torch), (here, webtorch)):
        assert list(found) == list(lazy.state_dict())
        assert type(found["0.weight"]) is library.nn.parameter.UninitializedParameter
        assert type(found["1.running_mean"]) is library.nn.parameter.UninitializedBuffer
        assert found["0.weight"].dtype is library.float64
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d())
    model.load_state_dict(there)
    assert model(torch.ones(2, 5, dtype=torch.float64).float()).shape == (2, 3)
    out = io.BytesIO()
    torch.save(torch.nn.LazyLinear(3).state_dict(), out)
    again = webtorch.nn.LazyLinear(3)
    again.load_state_dict(webtorch.load(io.BytesIO(out.getvalue()), weights_only=False))
    assert again(webtorch.ones(2, 4)).shape == (2, 3)
