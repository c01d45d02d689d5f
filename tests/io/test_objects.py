"""Files of whole objects: saved as PyTorch saves them, and read where the caller trusts them."""

from __future__ import annotations

import collections
import dataclasses
import pickle
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
