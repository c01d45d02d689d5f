"""Parametrized weights, folded batch norms, calls with other parameters: against PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import utils as ref

import webtorch
from tests.nn.oracle import assert_same, load_same, to_web
from webtorch import nn
from webtorch.nn import utils

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

OLD = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")

NORMS: list[tuple[str, Any]] = [
    ("weight norm", lambda u, m: u.parametrizations.weight_norm(m)),
    ("weight norm of a column", lambda u, m: u.parametrizations.weight_norm(m, dim=1)),
    ("weight norm of all", lambda u, m: u.parametrizations.weight_norm(m, dim=None)),
    ("spectral norm", lambda u, m: u.parametrizations.spectral_norm(m)),
    ("two", lambda u, m: u.parametrizations.spectral_norm(u.parametrizations.weight_norm(m))),
    ("old weight norm", lambda u, m: u.weight_norm(m)),
    ("old weight norm of all", lambda u, m: u.weight_norm(m, dim=None)),
    ("old spectral norm", lambda u, m: u.spectral_norm(m, n_power_iterations=2)),
]
LAYERS: list[Any] = [
    (lambda n: n.Linear(4, 3), (5, 4)),
    (lambda n: n.Conv2d(2, 3, 2), (2, 2, 4, 4)),
    (lambda n: n.ConvTranspose1d(3, 2, 2), (2, 3, 4)),
]


@OLD
@pytest.mark.parametrize(("make", "shape"), LAYERS, ids=["linear", "conv", "transposed"])
@pytest.mark.parametrize("normed", [n[1] for n in NORMS], ids=[n[0] for n in NORMS])
def test_normed_weights_train_as_in_pytorch(
    normed: Any, make: Any, shape: tuple[int, ...], device: str
) -> None:
    torch.manual_seed(0)
    reference, module = normed(ref, make(torch.nn)), normed(utils, make(nn).to(device))
    assert repr(module) == repr(reference)
    assert list(module.state_dict()) == list(reference.state_dict())
    load_same(module, reference, device)
    optimizer = webtorch.optim.SGD(module.parameters(), lr=0.1)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(shape)
        loss, wanted = (module(to_web(x, device)) ** 2).mean(), (reference(x) ** 2).mean()
        assert_same(loss, wanted, rtol=1e-4, atol=1e-5)
        for one, step in ((loss, optimizer), (wanted, theirs)):
            step.zero_grad()
            one.backward()
            step.step()
    assert_same(module.weight, reference.weight, rtol=1e-4, atol=1e-5)
    assert_same(dict(module.state_dict()), dict(reference.state_dict()), rtol=1e-4, atol=1e-5)
    module.eval(), reference.eval()
    assert_same(module(to_web(x, device)), reference(x), rtol=1e-4, atol=1e-5)


@OLD
def test_norms_can_be_taken_off() -> None:
    x = webtorch.ones(2, 4)
    for add, remove in (
        (utils.weight_norm, utils.remove_weight_norm),
        (utils.spectral_norm, utils.remove_spectral_norm),
    ):
        layer = add(nn.Linear(4, 3)).eval()
        before = layer(x).tolist()
        remove(layer)
        assert list(layer.state_dict()) == ["bias", "weight"]
        assert webtorch.allclose(layer(x), webtorch.tensor(before), rtol=1e-5)
        with pytest.raises(ValueError, match="not found in"):
            remove(layer)
    layer = utils.parametrizations.weight_norm(nn.Linear(4, 3))
    params, before = list(layer.parameters()), layer(x).tolist()
    assert utils.parametrize.is_parametrized(layer, "weight")
    assert utils.parametrize.type_before_parametrizations(layer) is nn.Linear
    utils.parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert len(params) == 3
    assert webtorch.allclose(layer(x), webtorch.tensor(before), rtol=1e-5)


def test_checkpoint_of_the_old_weight_norm_loads_into_the_new_one() -> None:
    torch.manual_seed(0)
    with pytest.warns(FutureWarning):
        old = ref.weight_norm(torch.nn.Linear(4, 3))
    new = utils.parametrizations.weight_norm(nn.Linear(4, 3))
    new.load_state_dict(to_web(dict(old.state_dict()), "cpu"))
    x = torch.randn(2, 4)
    assert_same(new(to_web(x, "cpu")), old(x))


def test_spectral_norm_of_a_complex_weight() -> None:
    """The power iteration takes the conjugate of the matrix, and the norm the inner product."""
    layer = nn.Linear(2, 2, dtype=webtorch.complex64)
    reference = torch.nn.Linear(2, 2, dtype=torch.complex64)
    reference.weight.data = torch.tensor([[1j, 1], [0, 3 + 1j]])
    layer.weight.data = to_web(reference.weight.detach(), "cpu")
    ref.parametrizations.spectral_norm(reference)
    utils.parametrizations.spectral_norm(layer)
    for _ in range(3):
        assert_same(abs(layer.weight), reference.weight.abs(), rtol=1e-4, atol=1e-5)


class Symmetric(nn.Module):
    """A symmetric matrix from its upper triangle."""

    def forward(self, x: Any) -> Any:
        return x.triu() + x.triu(1).mT

    def right_inverse(self, a: Any) -> Any:
        return a.triu()


class Doubled(nn.Module):
    """Twice the value; it has no inverse."""

    def forward(self, x: Any) -> Any:
        return x * 2


def test_own_parametrization(device: str) -> None:
    layer = nn.Linear(3, 3).to(device)
    weight = layer.weight
    utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    assert layer.parametrizations.weight.original is weight
    assert_equal(layer.weight, layer.weight.mT)
    value = webtorch.randn(3, 3, device=device)
    layer.weight = value + value.mT
    assert_equal(layer.weight, value + value.mT)
    with utils.parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight
    twin = copy.deepcopy(layer)
    utils.parametrize.register_parametrization(layer, "weight", Doubled())
    assert_equal(layer.weight, 2 * (value + value.mT))
    assert_equal(twin.weight, value + value.mT)
    with pytest.raises(RuntimeError, match="Doubled does not implement right_inverse"):
        layer.weight = value
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        copy.copy(layer).__reduce_ex__(2)
    with pytest.raises(ValueError, match="may not change the shape"):
        utils.parametrize.register_parametrization(nn.Linear(2, 3), "weight", nn.Flatten(0))
    with pytest.raises(ValueError, match="does not have a parameter, a buffer"):
        utils.parametrize.register_parametrization(nn.Linear(2, 3), "scale", Doubled())


def assert_equal(a: Any, b: Any) -> None:
    assert webtorch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_stay_orthogonal(way: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = utils.parametrizations.orthogonal(nn.Linear(*shape), orthogonal_map=way)
    reference = ref.parametrizations.orthogonal(torch.nn.Linear(*shape), orthogonal_map=way)
    assert repr(layer) == repr(reference)
    layer.load_state_dict(to_web(dict(reference.state_dict()), "cpu"))
    assert_same(layer.weight, reference.weight, rtol=1e-4, atol=1e-5)
    x = torch.randn(6, shape[0])
    (layer(to_web(x, "cpu")) ** 3).sum().backward()
    (reference(x) ** 3).sum().backward()
    ours, theirs = (
        layer.parametrizations.weight.original,
        reference.parametrizations.weight.original,
    )
    assert_same(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    webtorch.optim.SGD(layer.parameters(), lr=0.05).step()
    weight = layer.weight if shape[0] <= shape[1] else layer.weight.mT
    eye = webtorch.eye(min(shape))
    assert webtorch.allclose(weight.mT @ weight, eye, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_orthogonal_weights_without_a_base(shape: tuple[int, int]) -> None:
    """Reflections start from the weight and take another one; the other maps start anywhere and refuse that."""
    for way in ("matrix_exp", "cayley", "householder"):
        layer, start = nn.Linear(*shape), webtorch.linalg.qr(webtorch.randn(5, 5)).Q
        wanted = start[: shape[1], : shape[0]]
        wanted = webtorch.linalg.qr(wanted.mT if shape[0] > shape[1] else wanted).Q
        wanted = wanted.mT if shape[0] > shape[1] else wanted
        utils.parametrizations.orthogonal(layer, orthogonal_map=way, use_trivialization=False)
        tall = layer.weight if shape[0] <= shape[1] else layer.weight.mT
        assert webtorch.allclose(tall.mT @ tall, webtorch.eye(min(shape)), atol=1e-5)
        if way == "householder":
            layer.weight = wanted
            assert webtorch.allclose(layer.weight, wanted, atol=1e-5)
        else:
            with pytest.raises(NotImplementedError, match="assign to the matrix exponential or"):
                layer.weight = wanted


@pytest.mark.parametrize("way", ["matrix_exp", "cayley"])
def test_complex_weights_become_unitary(way: str) -> None:
    for base in (True, False):
        layer = nn.Linear(4, 4, dtype=webtorch.complex64)
        utils.parametrizations.orthogonal(layer, orthogonal_map=way, use_trivialization=base)
        eye = webtorch.eye(4, dtype=webtorch.complex64)
        assert webtorch.allclose(layer.weight.mH @ layer.weight, eye, atol=1e-5)
    layer = nn.Linear(2, 3, dtype=webtorch.complex64)
    with pytest.raises(ValueError, match="householder parametrization does not support complex"):
        utils.parametrizations.orthogonal(layer, orthogonal_map="householder")


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_folds_into_the_layer_before(bias: bool, device: str) -> None:
    torch.manual_seed(0)
    cases: list[Any] = [
        (lambda n: n.Conv2d(3, 4, 2, bias=bias), lambda n: n.BatchNorm2d(4), (2, 3, 4, 4)),
        (lambda n: n.ConvTranspose2d(3, 4, 2, bias=bias), lambda n: n.BatchNorm2d(4), (2, 3, 4, 4)),
        (lambda n: n.Linear(3, 4, bias=bias), lambda n: n.BatchNorm1d(4), (2, 3)),
    ]
    for make, norm, shape in cases:
        theirs, other = make(torch.nn), norm(torch.nn)
        other.running_mean.normal_(), other.running_var.uniform_(0.5, 2)
        layer, bn = make(nn), norm(nn)
        load_same(layer, theirs, device)
        load_same(bn, other, device)
        for one in (layer, bn, theirs, other):
            one.eval()
        x = torch.randn(shape)
        if len(shape) == 2:
            fused = utils.fuse_linear_bn_eval(layer, bn)
        else:
            fused = utils.fuse_conv_bn_eval(layer, bn, "Transpose" in type(layer).__name__)
        assert_same(fused(to_web(x, device)), other(theirs(x)), rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="Fusion only for eval"):
        utils.fuse_conv_bn_eval(layer.train(), bn)


def test_call_with_other_parameters(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).to(device)
    model[2].weight = model[0].weight
    x = webtorch.randn(4, 3, device=device)
    weight = webtorch.randn(3, 3, device=device, requires_grad=True)
    own = model[0].weight
    call = webtorch.func.functional_call
    out = call(model, {"0.weight": weight, "1.running_mean": webtorch.ones(3, device=device)}, x)
    out.sum().backward()
    assert weight.grad is not None
    assert own.grad is None
    assert model[0].weight is own
    assert model[2].weight is own
    loose = call(model.eval(), {"0.weight": weight}, (x,), tie_weights=False)
    assert not webtorch.allclose(loose, call(model, {"0.weight": weight}, (x,)))
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\): '3.weight'"):
        call(model, {"3.weight": weight}, x, strict=True)


def test_skip_init_makes_no_values() -> None:
    layer = utils.skip_init(nn.Linear, 3, 4)
    assert tuple(layer.weight.shape) == (4, 3)
    assert isinstance(layer.weight, nn.Parameter)
    with pytest.raises(RuntimeError, match="must support a 'device' arg"):
        utils.skip_init(nn.ReLU)
