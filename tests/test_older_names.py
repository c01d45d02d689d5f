"""Names that PyTorch has beside those that programs of today use: the same results, conventions and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
import torch.utils.data.distributed

import webtorch
from webtorch.utils.data import DistributedSampler


def arrays(found: Any) -> Any:
    """Return results as comparable values."""
    if isinstance(found, (tuple, list)):
        return [arrays(one) for one in found]
    return found.detach().numpy() if hasattr(found, "numpy") else found


def _x(t: Any, *shape: int, seed: int = 0) -> Any:
    return t.tensor(np.random.default_rng(seed).standard_normal(shape).tolist())


def _logs(t: Any) -> Any:
    return _x(t, 5, 2, 4).log_softmax(-1)


CALLS: dict[str, Callable[[Any], Any]] = {
    "adaptive_max_pool1d": lambda t: t.adaptive_max_pool1d(_x(t, 2, 3, 9), 4),
    "affine_grid_generator": lambda t: t.affine_grid_generator(_x(t, 2, 2, 3), [2, 1, 3, 4], False),
    "bce": lambda t: t.binary_cross_entropy_with_logits(_x(t, 3), _x(t, 3).sigmoid(), None, None, 2),
    "conv_tbc": lambda t: t.conv_tbc(_x(t, 5, 2, 3), _x(t, 3, 3, 4), _x(t, 4), 1),
    "conv_tbc of nn": lambda t: t.nn.functional.conv_tbc(_x(t, 5, 2, 3), _x(t, 2, 3, 4), _x(t, 4)),
    "convolution": lambda t: t.convolution(
        _x(t, 1, 4, 6), _x(t, 2, 2, 3), None, [2], [1], [1], False, [0], 2
    ),
    "convolution transposed": lambda t: t.convolution(
        _x(t, 1, 2, 3, 3), _x(t, 2, 3, 2, 2), _x(t, 3), [2, 2], [0, 0], [1, 1], True, [1, 1], 1
    ),
    "ctc_loss": lambda t: t.ctc_loss(
        _logs(t), t.tensor([[1, 2], [3, 1]]), t.tensor([5, 4]), t.tensor([2, 1])
    ),
    "bce of each": lambda t: t.binary_cross_entropy_with_logits(_x(t, 3), _x(t, 3).sigmoid()),
    "ctc_loss none": lambda t: t.ctc_loss(
        _logs(t), t.tensor([[1, 2], [3, 1]]), t.tensor([5, 4]), t.tensor([2, 1]), 0, 0, True
    ),
    **{
        f"embedding_bag {mode}": lambda t, mode=mode: t.embedding_bag(
            _x(t, 6, 3), t.tensor([0, 2, 2, 5, 1]), t.tensor([0, 3]), False, mode
        )[0]
        for mode in (0, 1, 2)
    },
    "embedding_bag places": lambda t: t.embedding_bag(
        _x(t, 6, 3), t.tensor([0, 2, 2, 5, 1]), t.tensor([0, 3]), False, 2
    )[2:],
    "embedding_renorm_": lambda t: t.embedding_renorm_(
        _x(t, 4, 3) * 3, t.tensor([0, 2, 2]), 1.0, 2.0
    ),
    "max_pool1d_with_indices": lambda t: t.max_pool1d_with_indices(_x(t, 2, 3, 9), 3, 2, 1),
    "norm_except_dim": lambda t: t.norm_except_dim(_x(t, 3, 4, 2), 2, 1),
    "norm_except_dim -1": lambda t: t.norm_except_dim(_x(t, 3, 4), 2, -1),
    "native_dropout": lambda t: t.native_dropout(_x(t, 3, 4), 0.3, False),
    "dropout": lambda t: t.dropout(_x(t, 3), 0.5, False),
    "feature_dropout": lambda t: t.feature_dropout(_x(t, 2, 3, 2), 1.0, True),
    "feature_dropout_": lambda t: t.feature_dropout_(_x(t, 2, 3, 2), 0.0, True),
    "dropout_": lambda t: t.dropout_(_x(t, 3), 1.0, True),
    "rrelu_": lambda t: t.rrelu_(_x(t, 5)),
    "index_put_": lambda t: t.index_put_(_x(t, 5), (t.tensor([0, 3]),), t.tensor([1.0, 2.0])),
    "detach_copy": lambda t: t.detach_copy(_x(t, 3)),
    "slice_copy": lambda t: t.slice_copy(_x(t, 3, 7), 1, 1, -1, 2),
    "range": lambda t: t.range(1, 2.5, 0.5),
    "range down": lambda t: t.range(4, 0, -2, dtype=t.int64),
    "apply_": lambda t: t.arange(6).reshape(2, 3).t().apply_(lambda v: v * v),
    "map_": lambda t: _x(t, 2, 3).map_(_x(t, 3, seed=1), lambda a, b: a - b),
    "map2_": lambda t: _x(t, 3).map2_(_x(t, 3, seed=1), _x(t, 3, seed=2), lambda a, b, c: a * b + c),
    "new data": lambda t: t.zeros(2, dtype=t.float64).new([[1, 2], [3, 4]]),
    "new shape": lambda t: tuple(t.zeros(2).new(2, 3).shape),
    "new Size": lambda t: tuple(t.zeros(2).new(t.Size([4, 1])).shape),
    "is_distributed": lambda t: (_x(t, 2).is_distributed(), t.is_distributed(_x(t, 2))),
    "weights of convolutions": lambda t: [
        [*c.weight.stride(), isinstance(c.weight, t.nn.Parameter)]
        for c in t.nn.utils.convert_conv2d_weight_memory_format(
            t.nn.Sequential(t.nn.Conv2d(3, 4, 2), t.nn.ConvTranspose2d(4, 3, 2), t.nn.Conv3d(2, 3, 2)),
            t.channels_last,
        )
    ],
    "resize": lambda t: _x(t, 2, 3).resize(3, 2),
    "resize_as": lambda t: _x(t, 2, 3).resize_as(t.zeros(6)),
    "dim_order": lambda t: t.zeros(2, 3, 4).permute(2, 0, 1).dim_order(),
    "CrossMapLRN2d": lambda t: [
        t.nn.CrossMapLRN2d(size, 0.5, 0.75, 1.5)(_x(t, 2, 7, 2, 3)) for size in (1, 2, 3, 5, 6)
    ],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.range is deprecated", "ignore:non-inplace resize")
@pytest.mark.parametrize("name", CALLS)
def test_results_are_pytorchs(name: str) -> None:
    wanted, got = arrays(CALLS[name](torch)), arrays(CALLS[name](webtorch))
    if not isinstance(wanted, list):
        wanted, got = [wanted], [got]
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
        assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None)


WRONG: dict[str, Callable[[Any], Any]] = {
    "apply_ with a gradient": lambda t: t.ones(2, requires_grad=True).apply_(lambda v: v),
    "range of no step": lambda t: t.range(0, 3, 0),
    "range away": lambda t: t.range(0, -3, 1),
    "feature dropout": lambda t: t.feature_dropout(t.ones(3), 0.5, True),
    "resize": lambda t: t.ones(2, 3).resize(5),
    "dropout": lambda t: t.dropout(t.ones(3), 0.5),
}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated", "ignore:non-inplace resize")
@pytest.mark.parametrize("name", WRONG)
def test_errors_have_pytorchs_types(name: str) -> None:
    with pytest.raises(Exception) as wanted:
        WRONG[name](torch)
    with pytest.raises(type(wanted.value)):
        WRONG[name](webtorch)


# -- pruning --------------------------------------------------------------------------------------------------------


def _layers(t: Any) -> Any:
    model = t.nn.Sequential(t.nn.Linear(4, 3), t.nn.Linear(3, 2))
    with t.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(_x(t, *p.shape, seed=i))
    return model


PRUNINGS: dict[str, Callable[[Any, Any], Any]] = {
    "l1": lambda p, m: p.l1_unstructured(m[0], "weight", 0.4),
    "l1 count": lambda p, m: p.l1_unstructured(m[0], "weight", 5),
    "ln": lambda p, m: p.ln_structured(m[0], "weight", 0.5, 2, 0),
    "identity": lambda p, m: p.identity(m[0], "bias"),
    "none": lambda p, m: p.l1_unstructured(m[0], "weight", 0),
    "twice": lambda p, m: p.ln_structured(p.l1_unstructured(m[0], "weight", 3), "weight", 1, 1, 1),
    "three times": lambda p, m: p.l1_unstructured(
        p.l1_unstructured(p.l1_unstructured(m[0], "weight", 2), "weight", 0.2), "weight", 1
    ),
    "global": lambda p, m: p.global_unstructured(
        [(m[0], "weight"), (m[1], "weight")], p.L1Unstructured, amount=7
    ),
    "removed": lambda p, m: p.remove(p.l1_unstructured(m[0], "weight", 0.4), "weight"),
}


@pytest.mark.parametrize("name", PRUNINGS)
def test_pruning_is_pytorchs(name: str) -> None:
    theirs, ours = _layers(torch), _layers(webtorch)
    PRUNINGS[name](torch.nn.utils.prune, theirs)
    PRUNINGS[name](webtorch.nn.utils.prune, ours)
    assert webtorch.nn.utils.prune.is_pruned(ours) == torch.nn.utils.prune.is_pruned(theirs)
    wanted, got = theirs.state_dict(), ours.state_dict()
    assert set(got) == set(wanted)
    for key in wanted:
        np.testing.assert_allclose(got[key].numpy(), wanted[key].numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        ours(_x(webtorch, 2, 4)).detach().numpy(),
        theirs(_x(torch, 2, 4)).detach().numpy(),
        rtol=1e-5,
    )
    # Gradients reach the parameter below the mask, and are 0 where it is.
    ours(_x(webtorch, 2, 4)).sum().backward()
    theirs(_x(torch, 2, 4)).sum().backward()
    for (n, mine), (_, other) in zip(
        sorted(ours.named_parameters()), sorted(theirs.named_parameters()), strict=True
    ):
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-5, err_msg=n)


def test_random_pruning_and_its_errors() -> None:
    prune = webtorch.nn.utils.prune
    layer = webtorch.nn.Linear(20, 10)
    prune.random_unstructured(layer, "weight", 0.25)
    assert int((layer.weight_mask == 0).sum()) == 50
    prune.random_structured(layer, "weight", 2, 0)
    assert int((layer.weight_mask.sum(1) == 0).sum()) >= 2
    prune.custom_from_mask(layer, "bias", webtorch.zeros(10))
    assert not layer.bias.any()
    with pytest.raises(
        ValueError, match="should be smaller than the number of parameters to prune"
    ):
        prune.l1_unstructured(webtorch.nn.Linear(2, 2), "weight", 9)
    with pytest.raises(ValueError, match="float in the range"):
        prune.l1_unstructured(layer, "weight", 1.5)
    with pytest.raises(ValueError, match="has to be pruned before pruning can be removed"):
        prune.remove(webtorch.nn.Linear(2, 2), "weight")


# -- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [10, 12, 2])
def test_distributed_sampler_deals_out_as_pytorchs(size: int, drop_last: bool) -> None:
    for rank in range(4):
        options: dict[str, Any] = {"num_replicas": 4, "rank": rank, "drop_last": drop_last}
        theirs = torch.utils.data.distributed.DistributedSampler(
            range(size), shuffle=False, **options
        )
        ours = DistributedSampler(range(size), shuffle=False, **options)
        if size < 4 and drop_last:
            assert list(ours) == []
            continue
        assert (list(ours), len(ours)) == (list(theirs), len(theirs))
    shuffled = [list(DistributedSampler(range(size), 4, r, seed=3)) for r in range(4)]
    assert {i for part in shuffled for i in part} == set(range(size))
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    with pytest.raises(ValueError, match="rank should be in the interval"):
        DistributedSampler(range(3), 2, 2)


def test_missing_names_of_every_place_say_so() -> None:
    for place, name in (
        ("fft", "factory_common_args"),
        ("utils.data", "IterDataPipe"),
        ("autograd", "NestedIOFunction"),
        ("random", "thread_safe_generator"),
        ("nn.functional", "scaled_grouped_mm"),
    ):
        module = __import__(f"webtorch.{place}", fromlist=["x"])
        with pytest.raises(AttributeError, match="PyTorch has it, webtorch does not"):
            getattr(module, name)


def test_the_gradient_of_cross_map_lrn_is_that_of_its_values() -> None:
    x = webtorch.tensor(_x(torch, 2, 5, 3, 3).double().numpy(), requires_grad=True)
    assert webtorch.autograd.gradcheck(webtorch.nn.CrossMapLRN2d(3, 0.1, k=2.0), (x,))
