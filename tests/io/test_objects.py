"""Files of whole objects: saved as PyTorch saves them, and read where the caller trusts them."""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch import nn
from webtorch.as_torch.names import serialization


@dataclasses.dataclass
class Settings:
    """What a model was made with."""

    width: int
    names: list[str]
    kinds: set[str]


class Model(nn.Module):
    """Modules, buffers, hooks and settings of its own."""

    class Head(nn.Linear):
        """A class in a class."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings(4, ["a", "b"], {"c"})
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.head = Model.Head(4, 2)
        self.head.weight = nn.Parameter(webtorch.ones(2, 4))
        self.register_buffer("scale", webtorch.full((1,), 0.5))
        self.counts: Any = collections.Counter("aab")
        self.act = nn.functional.gelu

    def forward(self, x: Any) -> Any:
        """(N, 3) to (N, 2)."""
        return self.act(self.head(self.rnn(self.body(x)[:, None])[0][:, 0])) * self.scale


class Point:
    """An object with slots and no dictionary."""

    __slots__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


def test_a_whole_module_is_saved_and_loaded(tmp_path: Path, device: str) -> None:
    model = Model().to(device).eval()
    x = webtorch.ones(2, 3, device=device)
    webtorch.save({"model": model, "epoch": 3}, tmp_path / "model.pt")
    loaded = webtorch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded["epoch"] == 3
    other = loaded["model"]
    assert type(other) is Model and type(other.head) is Model.Head
    assert other.settings == model.settings and other.counts == model.counts
    assert other.head.weight.device == model.head.weight.device
    assert other(x).tolist() == model(x).tolist()
    # It trains on: parameters are parameters, and hooks can be set.
    optimizer = webtorch.optim.SGD(other.train().parameters(), lr=0.1)
    other(x * 2).sum().backward()
    optimizer.step()
    assert other.head.weight.tolist() != model.head.weight.tolist()


def test_what_is_shared_stays_shared(tmp_path: Path) -> None:
    x = webtorch.arange(4.0)
    point = Point(x, [x[1:], x])
    webtorch.save((point, point), tmp_path / "a.pt")
    one, two = webtorch.load(tmp_path / "a.pt", weights_only=False)
    assert one is two
    one.x.add_(1)
    assert one.y[0].tolist() == [2, 3, 4] and one.y[1] is one.x


def test_only_data_is_read_by_default(tmp_path: Path) -> None:
    webtorch.save(Model(), tmp_path / "model.pt")
    for given in ({}, {"weights_only": True}, {"weights_only": None}):
        with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
            webtorch.load(tmp_path / "model.pt", **given)


def test_classes_that_the_user_allows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    webtorch.save([Settings(1, ["a"], {"b"}), Point(webtorch.ones(2), 3)], path)
    with pytest.raises(pickle.UnpicklingError, match=r"test_objects\.Settings"):
        webtorch.load(path)
    with serialization.safe_globals([Settings, Point]):
        settings, point = webtorch.load(path)
        assert serialization.get_safe_globals() == [Settings, Point]
    assert settings == Settings(1, ["a"], {"b"})
    assert point.x.tolist() == [1, 1] and point.y == 3
    assert serialization.get_safe_globals() == []
    with pytest.raises(pickle.UnpicklingError):
        webtorch.load(path)


def test_an_optimizer_is_saved_whole(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    optimizer = webtorch.optim.Adam(layer.parameters(), lr=0.1)
    layer(webtorch.ones(1, 2)).sum().backward()
    optimizer.step()
    webtorch.save((layer, optimizer), tmp_path / "a.pt")
    layer2, optimizer2 = webtorch.load(tmp_path / "a.pt", weights_only=False)
    for a, b in ((layer, optimizer), (layer2, optimizer2)):
        b.zero_grad()
        a(webtorch.ones(1, 2)).pow(2).sum().backward()
        b.step()
    assert layer2.weight.tolist() == layer.weight.tolist()


def test_what_has_no_name_does_not_pickle(tmp_path: Path) -> None:
    layer: Any = nn.Linear(1, 1)
    layer.act = lambda x: x
    with pytest.raises(pickle.PicklingError, match="Can't pickle"):
        webtorch.save(layer, tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()


def test_whole_modules_of_pytorch_are_read(tmp_path: Path) -> None:
    t = torch.nn
    model = t.Sequential(
        t.Conv2d(1, 3, 3, padding=1), t.BatchNorm2d(3), t.ReLU(), t.MaxPool2d(2), t.Flatten(),
        t.Linear(12, 8), t.LayerNorm(8), t.GELU(), t.Dropout(0.1), t.Unflatten(1, (2, 4)),
        t.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ).eval()  # fmt: skip
    x = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)
    torch.save(model, tmp_path / "a.pt")
    loaded = webtorch.load(tmp_path / "a.pt", weights_only=False)
    assert repr(loaded) == repr(model)
    out = loaded(webtorch.tensor(x.tolist()))
    torch.testing.assert_close(torch.tensor(out.tolist()), model(x).detach(), rtol=1e-4, atol=1e-5)


class Tagged(webtorch.Tensor):
    """A tensor with a class of its own."""


class Mode(enum.IntEnum):
    """What a module may keep as an option."""

    FAST = 3


class Registry(dict[str, Any]):
    """A dictionary that knows more than its entries."""


class Restored:
    """An object whose state another function restores."""

    def __reduce__(self) -> Any:
        return Restored, (), {"a": 1}, None, None, restore


def restore(made: Any, state: Any) -> None:
    """Set the state of a `Restored`."""
    made.got = state


def _again(value: Any, **options: Any) -> Any:
    stream = io.BytesIO()
    webtorch.save(value, stream)
    stream.seek(0)
    return webtorch.load(stream, **options)


def test_objects_keep_their_classes() -> None:
    registry = Registry(a=1)
    registry.note = "b"
    values = [
        collections.defaultdict(list, {1: [2]}), collections.Counter("aab"), Mode.FAST, registry,
        collections.deque([1], 3), frozenset({1}), type(None), len, "ab".upper, range(3), 1 + 2j,
    ]  # fmt: skip
    found = _again(values, weights_only=False)
    assert [type(x) for x in found] == [type(x) for x in values]
    assert found[:8] == values[:8] and found[8]() == "AB"
    assert found[0][5] == [] and found[3].note == "b"
    assert _again(Restored(), weights_only=False).got == {"a": 1}
    # These are data, also by default.
    assert type(_again({"milestones": values[1]})["milestones"]) is collections.Counter


def test_tensors_keep_their_classes_and_attributes() -> None:
    tagged: Any = webtorch.ones(2).as_subclass(Tagged)
    tagged.tag = "a"
    weight: Any = nn.Parameter(webtorch.ones(2))
    weight._no_weight_decay = True
    plain: Any = webtorch.ones(2)
    plain.note = [1]
    one, two, three = _again((tagged, weight, plain), weights_only=False)
    assert type(one) is Tagged and one.tag == "a" and one.is_leaf
    assert type(two) is nn.Parameter and two._no_weight_decay and two.requires_grad
    assert type(three) is webtorch.Tensor and three.note == [1]
    two, three = _again((weight, plain))
    assert two._no_weight_decay and three.note == [1]
    with pytest.raises(pickle.UnpicklingError, match="Tagged"):
        _again(tagged)
    with serialization.safe_globals([Tagged]):
        one = _again(tagged.requires_grad_())
    assert type(one) is Tagged and one.tag == "a" and one.is_leaf and one.requires_grad


def test_attributes_of_tensors_are_exchanged_with_pytorch(tmp_path: Path) -> None:
    for mine, other in ((webtorch, torch), (torch, webtorch)):
        weight: Any = mine.nn.Parameter(mine.ones(2))
        weight._no_weight_decay, weight.tag = True, "a"
        mine.save({"w": weight}, tmp_path / "a.pt")
        found = other.load(tmp_path / "a.pt", weights_only=True)["w"]
        assert found._no_weight_decay is True and found.tag == "a" and found.tolist() == [1, 1]


def test_allowed_classes_are_arguments_and_data() -> None:
    value = {"a": collections.defaultdict(list, {1: [2]}), "kind": Settings}
    with pytest.raises(pickle.UnpicklingError, match="defaultdict"):
        _again(value)
    with serialization.safe_globals([collections.defaultdict, list, Settings]):
        found = _again(value)
    assert found["a"].default_factory is list and found["kind"] is Settings


class _Runs:
    """Calls `function` where it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.parts = function, args

    def __reduce__(self) -> Any:
        return self.parts


@pytest.mark.parametrize("wrapped", [False, True])
def test_only_what_is_allowed_is_called(wrapped: bool, tmp_path: Path) -> None:
    path = tmp_path / "made"
    for hostile in (_Runs(os.mkdir, str(path)), _Runs(getattr, Settings, "__init__")):
        value = collections.defaultdict(list, {1: [hostile]}) if wrapped else hostile
        allowed = serialization.safe_globals([collections.defaultdict, list, Settings])
        with allowed, pytest.raises(pickle.UnpicklingError):
            _again(value)
    # What an allowed class makes is not called either.
    with serialization.safe_globals([Caller]), pytest.raises(pickle.UnpicklingError, match="calls"):
        webtorch.load(io.BytesIO(_called_twice()))
    assert not path.exists()


class Caller:
    """An object that may be called."""

    def __call__(self, *_: Any) -> None:
        raise AssertionError("code of a file was run")


def _called_twice() -> bytes:
    stream = io.BytesIO()
    webtorch.save([], stream)
    name = f"{Caller.__module__}\nCaller\n".encode()
    data = b"\x80\x02c" + name + b")\x81)R."
    out = io.BytesIO()
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for entry in old.namelist():
            new.writestr(entry, data if entry.endswith("data.pkl") else old.read(entry))
    return out.getvalue()
