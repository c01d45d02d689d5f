"""`save` and `load`: state dicts and whole checkpoints, alone and with the reference library."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch.errors import DTypeError
from webtorch.io import safetensors
from webtorch.io.safetensors import RawTensor, SafetensorError

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint8", "uint32", "bool",
)  # fmt: skip


def values(dtype: str) -> list[Any]:
    """Values that the type holds exactly, its limits among them."""
    if dtype == "bool":
        return [True, False, True, True, False, True]
    if "float" in dtype:
        return [0.0, -1.5, math.inf, -math.inf, 3.0, 2.0**-14]
    bits = int(dtype.strip("uint"))
    low, high = (
        (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return [low, high, 0, 1, 2, 3]


def make(dtype: str = "float32") -> Any:
    return webtorch.tensor(values(dtype), dtype=getattr(webtorch, dtype), device="cpu").reshape(
        2, 3
    )


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype is b.dtype and a.shape == b.shape and a.tolist() == b.tolist())


@pytest.mark.covers("L1", "L2")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_round_trips_and_agrees_with_the_reference_library(
    dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.safetensors"
    state = {
        "matrix": make(dtype),
        "transposed": make(dtype).T,
        "column": make(dtype)[:, 1],
        "expanded": make(dtype)[0, 1].expand(2, 2),
        "empty": make(dtype)[:0],
        "scalar": make(dtype)[1, 0],
    }
    webtorch.save(state, path)
    loaded = webtorch.load(path)
    assert list(loaded) == list(state)
    assert all(same(loaded[key], state[key]) for key in state)

    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("safetensors.torch")
    theirs = reference.load_file(path)
    assert theirs.keys() == state.keys()
    for key, tensor in state.items():
        assert theirs[key].dtype == getattr(torch, dtype)
        assert theirs[key].tolist() == tensor.tolist()
        assert tuple(theirs[key].shape) == tuple(tensor.shape)

    back = tmp_path / "back.safetensors"
    reference.save_file(theirs, back)
    assert all(same(webtorch.load(back)[key], state[key]) for key in state)


def test_a_whole_checkpoint_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint = {
        "model": {"fc.weight": make(), "fc.bias": make("bfloat16")},
        "optimizer": {
            "state": {0: {"step": webtorch.tensor(7.0, device="cpu"), "exp_avg": make()}, 1: {}},
            "param_groups": [
                {
                    "lr": 1e-3,
                    "betas": (0.9, 0.999),
                    "foreach": None,
                    "amsgrad": False,
                    "params": [0],
                }
            ],
        },
        "epoch": 3,
        "best": math.inf,
        "dtype": webtorch.float16,
        "history": [2.5, 1.25],
        "note": "épée",
    }
    webtorch.save(checkpoint, path)
    loaded = webtorch.load(path, weights_only=True)

    def compare(a: Any, b: Any) -> None:
        assert type(a) is type(b)
        if isinstance(a, webtorch.Tensor):
            assert same(a, b)
        elif isinstance(a, dict):
            assert list(a) == list(b)
            for key in a:
                compare(a[key], b[key])
        elif isinstance(a, list | tuple):
            assert len(a) == len(b)
            for x, y in zip(a, b):
                compare(x, y)
        else:
            assert a == b

    compare(loaded, checkpoint)


def test_an_optimizer_continues_from_a_loaded_checkpoint(tmp_path: Path) -> None:
    def build() -> tuple[Any, Any]:
        webtorch.manual_seed(0)
        model = webtorch.nn.Linear(3, 2, device="cpu")
        return model, webtorch.optim.Adam(model.parameters(), lr=0.1)

    def step(model: Any, optimizer: Any) -> float:
        optimizer.zero_grad()
        loss = (model(make().clamp(-2, 2)) ** 2).sum()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    path = tmp_path / "run.safetensors"
    model, optimizer = build()
    for _ in range(3):
        step(model, optimizer)
    webtorch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    expected = [step(model, optimizer) for _ in range(3)]

    model, optimizer = build()
    loaded = webtorch.load(path)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert [step(model, optimizer) for _ in range(3)] == expected


def test_tied_weights_load_as_one_tensor_and_are_there_for_others(tmp_path: Path) -> None:
    path = tmp_path / "tied.safetensors"
    weight = make()
    webtorch.save({"wte": weight, "head": weight.detach(), "other": make()}, path)
    loaded = webtorch.load(path)
    assert loaded["wte"] is loaded["head"]
    assert loaded["wte"] is not loaded["other"]
    assert set(safetensors.read_header(path).tensors) == {"wte", "head", "other"}


def test_views_of_one_storage_that_differ_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "views.safetensors"
    base = make()
    state = {"base": base, "t": base.T, "row": base[1], "same row": base[0]}
    webtorch.save(state, path)
    loaded = webtorch.load(path)
    assert all(same(loaded[key], state[key]) for key in state)


def test_parameters_and_gradients_flags_come_back() -> None:
    stream = io.BytesIO()
    saved = [webtorch.nn.Parameter(make()), make().requires_grad_(), make()]
    webtorch.save(saved, stream)
    stream.seek(0)
    loaded = webtorch.load(stream)
    assert [type(t) for t in loaded] == [type(t) for t in saved]
    assert [t.requires_grad for t in loaded] == [True, True, False]
    assert all(t.is_leaf for t in loaded)


def test_loaded_tensors_can_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    webtorch.save({"a": make()}, path)
    before = path.read_bytes()
    loaded = webtorch.load(path)["a"]
    loaded.fill_(5.0)
    assert loaded.tolist() == [[5.0] * 3] * 2
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "map_location",
    ["cpu", {"cpu": "cpu"}, {"webgpu:0": "cpu"}, lambda tensor, device: tensor, lambda t, d: None],
)
def test_map_location_in_each_form(map_location: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    webtorch.save({"a": make()}, path)
    for mmap in (None, True, False):
        loaded = webtorch.load(path, map_location, mmap=mmap)["a"]
        assert same(loaded, make())
        assert loaded.device.type == "cpu"


def test_tensors_return_to_the_device_they_came_from(tmp_path: Path) -> None:
    if not webtorch.webgpu.is_available():
        pytest.skip("no WebGPU adapter")
    path = tmp_path / "a.safetensors"
    webtorch.save({"gpu": make().to("webgpu"), "cpu": make()}, path)
    loaded = webtorch.load(path)
    assert [loaded[key].device.type for key in ("gpu", "cpu")] == ["webgpu", "cpu"]
    assert same(loaded["gpu"].cpu(), make())
    moved = webtorch.load(path, map_location="cpu")
    assert [moved[key].device.type for key in ("gpu", "cpu")] == ["cpu", "cpu"]


def test_an_unknown_device_asks_for_map_location(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    text = '{"version":1,"tree":{"a":{"$tensor":"a","device":"webgpu:99"}}}'
    tensors = {"a": RawTensor("uint8", (1,), b"x")}
    safetensors.save_file(tensors, path, {"webtorch.tree": text})
    with pytest.raises(webtorch.errors.DeviceError, match='map_location="cpu"'):
        webtorch.load(path)
    assert webtorch.load(path, map_location="cpu")["a"].tolist() == [120]


def test_dtypes_that_webtorch_lacks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.save_file({"w": RawTensor("float8_e5m2", (1,), b"x")}, path)
    with pytest.raises(DTypeError, match="'w' is float8_e5m2"):
        webtorch.load(path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    webtorch.save({"a": make()}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError, match=r"a\.safetensors: 'a'.*cut short"):
        webtorch.load(path)


def test_a_module_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        webtorch.save({"model": webtorch.nn.Linear(1, 1)}, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_of_tensors_is_refused_as_pytorch_does(tmp_path: Path) -> None:
    for content, kind in (
        (b"", EOFError),
        (b"hello world, this is no file", pickle.UnpicklingError),
    ):
        with pytest.raises(kind):
            webtorch.load(io.BytesIO(content))
    with pytest.raises(RuntimeError, match=r"Parent directory .*nowhere does not exist\."):
        webtorch.save(webtorch.ones(1), tmp_path / "nowhere" / "a.pt")
