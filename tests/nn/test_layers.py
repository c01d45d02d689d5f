"""Layers that need more than one call to be seen: embeddings in bags, lazy layers, adaptive softmax."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import webtorch
from tests.nn.oracle import assert_same, load_same, to_web
from webtorch import nn

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

BAGS: list[dict[str, Any]] = [
    {"mode": "sum"},
    {"mode": "mean", "padding_idx": 2},
    {"mode": "max", "padding_idx": 2},
    {"mode": "max"},
    {"mode": "mean", "include_last_offset": True},
    {"mode": "mean", "max_norm": 0.8},
]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("options", BAGS, ids=str)
def test_bags_of_embeddings(options: dict[str, Any], flat: bool, device: str) -> None:
    torch.manual_seed(0)
    reference, module = torch.nn.EmbeddingBag(6, 3, **options), nn.EmbeddingBag(6, 3, **options)
    assert repr(module) == repr(reference)
    load_same(module, reference, device)
    last = options.get("include_last_offset", False)
    x = torch.randint(0, 6, (9,) if flat else (4, 5))
    # The second bag is empty.
    offsets = torch.tensor([0, 3, 3, 7] + [9] * last) if flat else None
    if last and not flat:
        return
    out = module(to_web(x, device), to_web(offsets, device))
    expected = reference(x, offsets)
    assert_same(out, expected)
    weight = torch.randn(expected.shape)
    (out * to_web(weight, device)).sum().backward()
    (expected * weight).sum().backward()
    assert_same(module.weight.grad, reference.weight.grad)


def test_samples_of_a_bag_have_weights(device: str) -> None:
    torch.manual_seed(0)
    x, table = torch.randint(0, 6, (4, 5)), torch.randn(6, 3, requires_grad=True)
    weights = torch.rand(4, 5, requires_grad=True)
    ours = [to_web(t, device).requires_grad_() for t in (table, weights)]
    out = nn.functional.embedding_bag(
        to_web(x, device), ours[0], mode="sum", per_sample_weights=ours[1]
    )
    expected = torch.nn.functional.embedding_bag(x, table, mode="sum", per_sample_weights=weights)
    assert_same(out, expected)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    for got, want in zip(ours, (table, weights), strict=True):
        assert_same(got.grad, want.grad, rtol=1e-4, atol=1e-5)


def test_embedding_options_that_change_weight_and_gradient(device: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"max_norm": 0.9, "norm_type": 1.0, "scale_grad_by_freq": True}
    reference, module = torch.nn.Embedding(5, 3, **options), nn.Embedding(5, 3, **options)
    assert repr(module) == repr(reference)
    load_same(module, reference, device)
    x = torch.tensor([[0, 1, 1], [3, 1, 0]])
    out, expected = module(to_web(x, device)), reference(x)
    assert_same(out, expected)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    assert_same(module.weight.grad, reference.weight.grad)
    assert_same(module.weight, reference.weight)


@pytest.mark.parametrize("head_bias", [False, True])
def test_adaptive_softmax(head_bias: bool, device: str) -> None:
    torch.manual_seed(0)
    made: tuple[Any, ...] = (8, 12, [3, 7], 2.0, head_bias)
    reference = torch.nn.AdaptiveLogSoftmaxWithLoss(*made)
    module = nn.AdaptiveLogSoftmaxWithLoss(*made)
    assert repr(module) == repr(reference)
    load_same(module, reference, device)
    x, y = torch.randn(10, 8, requires_grad=True), torch.randint(0, 12, (10,))
    ours = to_web(x, device).requires_grad_()
    out, expected = module(ours, to_web(y, device)), reference(x, y)
    assert_same(list(out), list(expected))
    out.loss.backward()
    expected.loss.backward()
    for got, want in zip([ours, *module.parameters()], [x, *reference.parameters()], strict=True):
        assert_same(got.grad, want.grad, rtol=1e-4, atol=1e-5)
    assert_same(module.log_prob(ours), reference.log_prob(x))
    assert_same(module.predict(ours), reference.predict(x))
    assert_same(module(ours[0], to_web(y[0], device)).output, reference(x[0], y[0]).output)
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 11\]"):
        module(ours, to_web(y + 5, device))
    for cutoffs in ([], [5, 3], [0, 3], [3, 3], [12]):
        with pytest.raises(ValueError, match="cutoffs should be a sequence"):
            nn.AdaptiveLogSoftmaxWithLoss(8, 12, cutoffs)


LAZY: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = [
    ("LazyLinear", (5,), (3, 4)),
    ("LazyBatchNorm1d", (), (3, 4, 2)),
    ("LazyBatchNorm2d", (), (3, 4, 2, 2)),
    ("LazyBatchNorm3d", (), (2, 4, 2, 2, 2)),
    ("LazyInstanceNorm1d", (), (3, 4, 4)),
    ("LazyInstanceNorm2d", (), (3, 4, 2, 2)),
    ("LazyInstanceNorm3d", (), (2, 4, 2, 2, 2)),
    ("LazyConv2d", (6, 2), (2, 4, 3, 3)),
    ("LazyConvTranspose1d", (6, 2), (2, 4, 3)),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_derived_classes_replace() -> None:
    def seen(lib: Any) -> list[Any]:
        found: list[Any] = []

        class Own(lib.nn.LazyLinear):  # type: ignore[misc,name-defined]
            cls_to_become = None

            def _infer_parameters(self, module: Any, args: Any, kwargs: Any = None) -> None:
                found.append((module is self, len(args), kwargs))
                super()._infer_parameters(module, args, kwargs)

        layer = Own(2)
        found += [tuple(layer(lib.ones(3, 4)).shape), len(layer._forward_pre_hooks)]
        with pytest.raises(RuntimeError, match="can't be used with `DataParallel`"):
            layer._replicate_for_data_parallel()
        attention = lib.nn.MultiheadAttention(4, 2)
        query, padding = lib.ones(2, 3, 4), lib.tensor([[0.0, 0, 1], [0, 1, 1]])
        for mask in (None, lib.arange(9.0).view(3, 3), lib.arange(36.0).view(4, 3, 3)):
            for hidden in (None, padding):
                merged, kind = attention.merge_masks(mask, hidden, query)
                found.append((kind, merged if merged is None else merged.tolist()))
        return found

    assert seen(webtorch) == seen(torch)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("name", "args", "shape"), LAZY, ids=[one[0] for one in LAZY])
def test_lazy_layers_take_their_sizes_from_the_first_input(
    name: str, args: tuple[Any, ...], shape: tuple[int, ...], device: str
) -> None:
    reference, module = getattr(torch.nn, name)(*args), getattr(nn, name)(*args)
    module.to(device)
    assert repr(module) == repr(reference)
    assert list(module.state_dict()) == list(reference.state_dict())
    assert module.has_uninitialized_params()
    with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized"):
        _ = module.weight.shape
    twin, loaded = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    params = list(module.parameters())
    x = torch.randn(shape)
    reference(x)
    module(to_web(x, device))
    assert [p is q for p, q in zip(module.parameters(), params, strict=True)] == [True] * len(
        params
    )
    assert repr(module) == repr(reference)
    assert type(module) is getattr(nn, name.removeprefix("Lazy"))
    assert [tuple(p.shape) for p in module.parameters()] == [
        tuple(p.shape) for p in reference.parameters()
    ]
    # A copy still waits, and a checkpoint gives it its sizes too.
    for other in (twin, loaded.to(device)):
        other.load_state_dict(to_web(dict(reference.state_dict()), device))
        assert not other.has_uninitialized_params()
        assert_same(other.eval()(to_web(x, device)), copy.deepcopy(reference).eval()(x), rtol=1e-4)


def test_synchronised_batch_norm_is_batch_norm_in_one_process(device: str) -> None:
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
    load_same(model, reference, device)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    theirs = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference))
    assert repr(converted) == repr(theirs)
    assert list(converted.state_dict()) == list(theirs.state_dict())
    x = torch.randn(2, 3, 4, 4)
    assert_same(converted(to_web(x, device)), reference(x), rtol=1e-4, atol=1e-5)
    assert_same(converted[1].running_mean, reference[1].running_mean)


def test_old_names_still_work(device: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 5, 3, 3)
    with pytest.warns(FutureWarning, match="`NLLLoss2d` has been deprecated"):
        loss = nn.NLLLoss2d()
    y = torch.randint(0, 5, (2, 3, 3))
    assert_same(loss(to_web(x, device), to_web(y, device)), torch.nn.NLLLoss()(x, y))
    inner = nn.Linear(3, 2)
    wrapped = nn.DataParallel(inner)
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    assert wrapped(webtorch.ones(1, 3)).tolist() == inner(webtorch.ones(1, 3)).tolist()
