"""Recurrent layers and packed sequences against PyTorch: outputs, gradients, orders, messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils import rnn as ref

import webtorch
from tests.nn.oracle import assert_same, load_same, to_web
from webtorch import nn
from webtorch.nn.utils import rnn

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "bias": False, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "dropout": 0.0, "bias": False}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False, "batch_first": True}),
]
IDS = [name + ",".join(f"{k}={v}" for k, v in options.items()) for name, options in OPTIONS]
LENGTHS = [3, 5, 1]
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    # What is tested here is nearly the same on all devices.
    pytest.mark.one_in(3, device="webgpu"),
]


def layers(name: str, options: dict[str, Any], device: str) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    reference = getattr(torch.nn, name)(3, 4, **options)
    module = getattr(nn, name)(3, 4, **options)
    load_same(module, reference, device)
    assert repr(module) == repr(reference)
    return module, reference


def start(reference: Any, batch: int) -> Any:
    """Return a state that is not zero."""
    count = reference.num_layers * (2 if reference.bidirectional else 1)
    h = torch.randn(count, batch, reference.proj_size or reference.hidden_size)
    if reference.mode != "LSTM":
        return h.requires_grad_()
    return h.requires_grad_(), torch.randn(count, batch, reference.hidden_size).requires_grad_()


def leaves(value: Any) -> list[Any]:
    return [value] if hasattr(value, "dim") else [one for v in value for one in leaves(v)]


def assert_same_gradients(ours: Any, theirs: Any, device: str) -> None:
    """Raise unless the gradients of one random inner product agree."""
    loss: Any = 0
    wanted: Any = 0
    for got, want in zip(leaves(ours), leaves(theirs), strict=True):
        weight = torch.randn(want.shape)
        loss = loss + (got * to_web(weight, device)).sum()
        wanted = wanted + (want * weight).sum()
    loss.backward()
    wanted.backward()


def compare(module: Any, reference: Any, inputs: list[Any], theirs: list[Any]) -> None:
    for got, want in zip(
        [*inputs, *module.parameters()], [*theirs, *reference.parameters()], strict=True
    ):
        assert_same(got.grad, want.grad, rtol=1e-4, atol=1e-5)


def both(value: Any, device: str) -> Any:
    """Return the same leaves in webtorch."""
    if isinstance(value, tuple):
        return tuple(both(one, device) for one in value)
    return to_web(value, device).requires_grad_()


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=IDS)
def test_sequence_with_a_state_is_pytorch(name: str, options: dict[str, Any], device: str) -> None:
    module, reference = layers(name, options, device)
    x = torch.randn(2, 5, 3) if options.get("batch_first") else torch.randn(5, 2, 3)
    x.requires_grad_()
    hx = start(reference, 2)
    ours, state = both(x, device), both(hx, device)
    out, expected = module(ours, state), reference(x, hx)
    assert_same(leaves(out), leaves(expected))
    assert_same_gradients(out, expected, device)
    compare(module, reference, [ours, *leaves(state)], [x, *leaves(hx)])


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=IDS)
def test_packed_sequences_are_pytorch(
    name: str, options: dict[str, Any], enforce_sorted: bool
) -> None:
    device = "cpu"
    module, reference = layers(name, options, device)
    lengths = sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS
    x = torch.randn(5, 3, 3, requires_grad=True)
    hx = start(reference, 3)
    ours, state = both(x, device), both(hx, device)
    packed = rnn.pack_padded_sequence(ours, lengths, enforce_sorted=enforce_sorted)
    theirs = ref.pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
    out, last = module(packed, state)
    expected, wanted = reference(theirs, hx)
    assert isinstance(out, rnn.PackedSequence)
    assert_same(list(out), list(expected))
    assert_same(leaves(last), leaves(wanted))
    padded, counts = rnn.pad_packed_sequence(out)
    assert_same(counts, torch.tensor(lengths))
    full, _ = ref.pad_packed_sequence(expected)
    assert_same_gradients([padded, last], [full, wanted], device)
    compare(module, reference, [ours, *leaves(state)], [x, *leaves(hx)])


@pytest.mark.covers("I25")
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_second_derivatives_are_pytorch(name: str) -> None:
    module, reference = layers(name, {"bidirectional": True}, "cpu")
    x = torch.randn(4, 2, 3, requires_grad=True)
    ours = both(x, "cpu")
    (first,) = webtorch.autograd.grad((module(ours)[0] ** 2).sum(), ours, create_graph=True)
    (wanted,) = torch.autograd.grad((reference(x)[0] ** 2).sum(), x, create_graph=True)
    assert_same(first, wanted, rtol=1e-4, atol=1e-5)
    (first**2).sum().backward()
    (wanted**2).sum().backward()
    compare(module, reference, [ours], [x])


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_captured_training_step_is_the_plain_one(name: str, device: str) -> None:
    torch.manual_seed(0)
    x = to_web(torch.randn(4, 2, 3), device)
    losses = []
    for wrap in (lambda f: f, webtorch.compile):
        webtorch.manual_seed(0)
        module = getattr(nn, name)(3, 4).to(device)
        module.load_state_dict(layers(name, {}, device)[0].state_dict())
        optimizer = webtorch.optim.SGD(module.parameters(), lr=0.5)

        def step(module: Any = module, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (module(x)[0] ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step)
        losses.append([run().item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_another_length_compiles_no_step(device: str) -> None:
    module = nn.GRU(3, 4).to(device)

    def run(steps: int) -> int:
        before = module.weight_hh_l0._storage.runtime.counters.misses
        module(webtorch.ones(steps, 2, 3, device=device))[0].sum().backward()
        webtorch.realize()
        return int(module.weight_hh_l0._storage.runtime.counters.misses - before)

    first = run(3)
    run(4)
    # Graphs of ever new sizes may be computed without a program.
    assert max(run(11), run(40), run(41)) <= first + 1 < 20


@pytest.mark.covers("I25")
def test_dropout_acts_between_layers_in_training() -> None:
    webtorch.manual_seed(0)
    module = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    x = webtorch.ones(3, 2, 3)
    first, second = module(x)[0], module(x)[0]
    assert first.tolist() != second.tolist()
    # What the last layer gives is whole.
    assert (first != 0).all().item() and (second != 0).all().item()
    module.eval()
    assert module(x)[0].tolist() == module(x)[0].tolist()
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        nn.LSTM(3, 4, dropout=0.5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_back(batch_first: bool, side: str, device: str) -> None:
    torch.manual_seed(0)
    rows = [torch.randn(n, 2) for n in LENGTHS]
    ours = [to_web(row, device) for row in rows]
    padded = rnn.pad_sequence(ours, batch_first, 0.5, side)
    assert_same(padded, ref.pad_sequence(rows, batch_first, 0.5, side))
    if side == "right":
        back = rnn.unpad_sequence(padded, webtorch.tensor(LENGTHS), batch_first)
        back[1].add_(1)
        assert_same(rnn.unpad_sequence(padded, webtorch.tensor(LENGTHS), batch_first), rows)
        assert all(row.is_contiguous() for row in back)
    packed = rnn.pack_sequence(ours, enforce_sorted=False)
    theirs = ref.pack_sequence(rows, enforce_sorted=False)
    assert_same(list(packed), list(theirs))
    assert_same(rnn.unpack_sequence(packed), rows)
    mine, counts = rnn.pad_packed_sequence(packed, batch_first, -1.0, total_length=6)
    other, _ = ref.pad_packed_sequence(theirs, batch_first, -1.0, total_length=6)
    assert_same(mine, other)
    assert counts.tolist() == LENGTHS


ERRORS: list[tuple[str, Any]] = [
    ("rank", lambda t, n, r: n.LSTM(3, 4)(t.ones(3))),
    ("rnn rank", lambda t, n, r: n.RNN(3, 4)(t.ones(1, 1, 1, 3))),
    ("features", lambda t, n, r: n.GRU(3, 4)(t.ones(5, 2, 2))),
    ("state", lambda t, n, r: n.GRU(3, 4)(t.ones(5, 2, 3), t.ones(1, 3, 4))),
    ("cell", lambda t, n, r: n.LSTM(3, 4)(t.ones(5, 2, 3), (t.ones(1, 2, 4), t.ones(1, 2, 3)))),
    ("state rank", lambda t, n, r: n.RNN(3, 4)(t.ones(5, 2, 3), t.ones(2, 4))),
    ("unbatched", lambda t, n, r: n.LSTM(3, 4)(t.ones(5, 3), (t.ones(1, 1, 4),) * 2)),
    ("dtype", lambda t, n, r: n.LSTM(3, 4)(t.ones(5, 2, 3, dtype=t.float64))),
    ("size", lambda t, n, r: n.LSTM(0, 4)),
    ("layers", lambda t, n, r: n.LSTM(3, 4, 0)),
    ("type", lambda t, n, r: n.LSTM(3, 4.0)),
    ("bias", lambda t, n, r: n.LSTM(3, 4, 1, 1)),
    ("projection", lambda t, n, r: n.LSTM(3, 4, proj_size=4)),
    ("gru projection", lambda t, n, r: n.GRU(3, 4, proj_size=2)),
    ("rnn projection", lambda t, n, r: n.RNN(3, 4, proj_size=5)),
    ("nonlinearity", lambda t, n, r: n.RNN(3, 4, nonlinearity="elu")),
    ("dropout", lambda t, n, r: n.LSTM(3, 4, dropout=1.5)),
    ("cell rank", lambda t, n, r: n.LSTMCell(3, 4)(t.ones(1, 1, 3))),
    ("cell state", lambda t, n, r: n.GRUCell(3, 4)(t.ones(2, 3), t.ones(1, 1, 4))),
    ("cell batch", lambda t, n, r: n.GRUCell(3, 4)(t.ones(2, 3), t.ones(3, 4))),
    ("cell features", lambda t, n, r: n.LSTMCell(3, 4)(t.ones(2, 2))),
    ("lengths", lambda t, n, r: r.pack_padded_sequence(t.ones(3, 2, 1), [3])),
    ("order", lambda t, n, r: r.pack_padded_sequence(t.ones(3, 2, 1), [2, 3])),
    ("empty", lambda t, n, r: r.pack_padded_sequence(t.ones(3, 2, 1), [3, 0])),
    ("nothing", lambda t, n, r: r.pack_padded_sequence(t.ones(0, 2, 1), t.ones(2))),
    ("order and empty", lambda t, n, r: r.pack_padded_sequence(t.ones(3, 2, 1), [0, 3])),
    ("total", lambda t, n, r: r.pad_packed_sequence(r.pack_sequence([t.ones(3)]), total_length=2)),
]  # fmt: skip


@pytest.mark.parametrize("attempt", [e[1] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_errors_are_those_of_pytorch(attempt: Any) -> None:
    with pytest.raises(Exception) as expected:
        attempt(torch, torch.nn, ref)
    with pytest.raises(type(expected.value)) as actual:
        attempt(webtorch, nn, rnn)
    assert str(actual.value) == str(expected.value)


def test_lengths_on_the_default_device_are_read(device: str) -> None:
    """A program that names no device has its lengths where its tensors are."""
    webtorch.set_default_device(device)
    packed = rnn.pack_padded_sequence(webtorch.ones(3, 2, 4), webtorch.tensor([3, 2]))
    assert packed.data.device.type == device and packed.batch_sizes.device.type == "cpu"
    assert packed.batch_sizes.tolist() == [2, 2, 1]
    assert rnn.pad_packed_sequence(packed)[1].tolist() == [3, 2]


@pytest.mark.parametrize("twice", [False, True], ids=["a gradient", "gradients of gradients"])
@pytest.mark.parametrize("name", ["RNN", "GRU"])
def test_biases_may_be_written_before_the_gradient_is_taken(
    name: str, twice: bool, device: str
) -> None:
    """PyTorch's sums do not save them; what gradients of gradients read is what they were."""
    module, reference = layers(name, {}, device)
    x = torch.randn(5, 2, 3)
    found = []
    for layer, given in ((module, to_web(x, device)), (reference, x.clone())):
        given.requires_grad_()
        lib = torch if layer is reference else webtorch
        loss = layer(given)[0].square().sum()
        with lib.no_grad():
            layer.bias_ih_l0.add_(1)
            layer.bias_hh_l0.mul_(3)
        if twice:
            of_x, of_bias = lib.autograd.grad(loss, [given, layer.bias_hh_l0], create_graph=True)
            loss = of_x.square().sum() + of_bias.sum()
        loss.backward()
        found.append([p.grad for p in (given, *layer.parameters())])
    for got, want in zip(*found, strict=True):
        assert_same(got, want)
