"""The device "meta": shapes without values, as PyTorch has it, and modules made there to be filled later."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.errors import NoValuesError


def _modules(t: Any) -> Any:
    nn = t.nn
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 6), nn.MultiheadAttention(8, 2),
        nn.Bilinear(2, 3, 4), nn.LSTM(4, 5, 2), nn.LayerNorm(3), nn.PReLU(),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
    )  # fmt: skip


SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda t, x: x @ x.mT + 1,
    "reduction": lambda t, x: x.sum(-1),
    "views": lambda t, x: x.mT[..., 1:].reshape(-1, 2),
    "softmax": lambda t, x: t.nn.functional.softmax(x, -1),
    "in place": lambda t, x: x.clone().add_(1).mul_(x),
    "assignment": lambda t, x: t.zeros_like(x).index_fill_(0, t.tensor([1], device="meta"), 2.0),
    "random": lambda t, x: t.nn.functional.dropout(t.rand_like(x)),
    "weights": lambda t, x: t.multinomial(x[0], 1),
    "rates": lambda t, x: t.poisson(x),
    "linalg": lambda t, x: t.linalg.inv(x @ x.mT).contiguous(),
    "complex": lambda t, x: t.fft.fft(x),
    "from values": lambda t, x: t.tensor([[1, 2], [3, 4]], device="meta"),
    "moved": lambda t, x: t.ones(2, 3, dtype=t.float16).mT.to("meta"),
    "other type": lambda t, x: x.double() > 0,
}


@pytest.mark.parametrize("name", SHAPES)
def test_results_have_pytorchs_shape_type_strides_and_text(name: str) -> None:
    theirs = SHAPES[name](torch, torch.empty(4, 2, 3, device="meta"))
    ours = SHAPES[name](webtorch, webtorch.empty(4, 2, 3, device="meta"))
    assert repr(ours) == repr(theirs)
    assert ours.stride() == theirs.stride()
    assert ours.is_meta
    assert ours.get_device() == -1


def test_tensors_without_values_are_pickled_and_saved_as_pytorch_does() -> None:
    def saved(t: Any) -> io.BytesIO:
        file = io.BytesIO()
        x = t.empty(2, 3, dtype=t.float16, device="meta").mT
        t.save({"x": x, "p": t.nn.Parameter(t.empty(2, device="meta"))}, file)
        file.seek(0)
        return file

    for writer, reader in ((webtorch, torch), (torch, webtorch), (webtorch, webtorch)):
        back = reader.load(saved(writer), map_location="cpu")
        assert back["x"].shape == (3, 2) and back["x"].stride() == (1, 3)
        assert back["x"].is_meta and back["x"].dtype == reader.float16
        assert isinstance(back["p"], reader.nn.Parameter) and back["p"].requires_grad
    model = webtorch.nn.Linear(2, 3, device="meta")
    again = pickle.loads(pickle.dumps(model))
    assert again.weight.is_meta and again.weight.shape == (3, 2)
    turned = pickle.loads(pickle.dumps(webtorch.empty(2, 3, device="meta").mT))
    assert turned.stride() == (1, 3) and turned.is_meta


READING: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda t, x: x.sum().item(),
    "bool": lambda t, x: bool(x.sum() > 0),
    "list": lambda t, x: x.tolist(),
    "move": lambda t, x: x.to("cpu"),
    "array": lambda t, x: x.numpy(),
    "copied": lambda t, x: t.ones(2, 3).copy_(x),
    "mixed": lambda t, x: x + t.ones(2, 3),
    "module": lambda t, x: t.nn.Linear(3, 2, device="meta").to("cpu"),
}


@pytest.mark.parametrize("name", READING)
def test_values_cannot_be_read(name: str) -> None:
    with pytest.raises(Exception) as theirs:
        READING[name](torch, torch.empty(2, 3, device="meta"))
    with pytest.raises(theirs.type) as ours:
        READING[name](webtorch, webtorch.empty(2, 3, device="meta"))
    if theirs.type is NotImplementedError:
        assert isinstance(ours.value, NoValuesError)
        assert "to_empty" in str(ours.value)


def test_modules_are_made_on_it_and_filled_later() -> None:
    with webtorch.device("meta"):
        module = _modules(webtorch)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    with torch.device("meta"):
        theirs = _modules(torch)
    mine = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    assert mine == {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    encoder, real = module[-1], _modules(webtorch)[-1].eval()
    shape = encoder(webtorch.empty(2, 5, 16, device="meta")).shape
    assert shape == (2, 5, 16)
    x = webtorch.randn(2, 5, 16)
    encoder.load_state_dict(real.state_dict(), assign=True)
    assert webtorch.equal(encoder.eval()(x), real(x))


def test_loading_without_assign_is_warned_of_and_to_empty_gives_memory() -> None:
    layer = webtorch.nn.Linear(3, 2, device="meta")
    with pytest.warns(UserWarning, match="assign=True"):
        layer.load_state_dict(webtorch.nn.Linear(3, 2).state_dict())
    assert layer.weight.is_meta
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(webtorch.ones(1, 3)).isfinite().all()


@pytest.mark.parametrize("start", ["meta", "cpu"])
@pytest.mark.parametrize("end", ["meta", "cpu"])
def test_parameters_are_new_where_meta_is_left_or_entered(start: str, end: str) -> None:
    found = []
    for lib in (torch, webtorch):
        layer = lib.nn.Linear(2, 2, device=start)
        layer.weight.grad = lib.ones_like(layer.weight)
        weight, grad = layer.weight, layer.weight.grad
        layer.to_empty(device=end)
        found.append((layer.weight is weight, weight.device.type, layer.weight.grad is grad))
        assert layer.weight.grad.device.type == end
        assert type(layer.weight) is lib.nn.Parameter
        assert layer.weight.requires_grad
    assert found[0] == found[1]


def test_backward_and_steps_have_shapes() -> None:
    layer = copy.deepcopy(webtorch.nn.Linear(3, 2)).to("meta")
    optimizer = webtorch.optim.AdamW(layer.parameters())
    for _ in range(3):
        loss = webtorch.nn.functional.cross_entropy(
            layer(webtorch.empty(4, 3, device="meta")),
            webtorch.empty(4, dtype=webtorch.int64, device="meta"),
        )
        loss.backward()
        optimizer.step()
    assert repr(layer.weight.grad) == "tensor(..., device='meta', size=(2, 3))"
    assert optimizer.state[layer.weight]["exp_avg"].is_meta


def test_nothing_is_kept_of_what_led_there() -> None:
    x = webtorch.ones(3, device="meta")
    for _ in range(50):
        x = x * 2 + 1
        x.add_(3)
    assert x._storage.node.kind == "buffer"
    assert x._storage.node.srcs == ()
    assert x.untyped_storage().nbytes() == 12


def test_one_model_for_the_parameters_of_many() -> None:
    """PyTorch's tutorial of ensembles: the module itself needs no values."""
    models = [webtorch.nn.Linear(3, 2) for _ in range(4)]
    stacked, buffers = webtorch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = webtorch.randn(5, 3)

    def call(params: Any, buffers: Any) -> Any:
        return webtorch.func.functional_call(base, (params, buffers), (x,))

    found = webtorch.func.vmap(call)(stacked, buffers)
    webtorch.testing.assert_close(found, webtorch.stack([m(x) for m in models]))
