"""Losses whose inputs are classes, signs or distributions: values, gradients to second order and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.ops.parity import TORCH, compare, same_error

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def functional(L: Any) -> Any:
    """Return `nn.functional` with what is written beside the table."""
    return torch.nn.functional if L is TORCH else webtorch.nn.functional


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


X, Y, Z = values(3, 4), values(3, 4, seed=2), values(3, 4, seed=3)
POSITIVE = Y.abs() + 0.3
CLASSES = torch.tensor([2, 0, 3])
SIGNS = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
SIGN_GRID = (X > 0).double() * 2 - 1
WEIGHT = values(4, seed=4).abs() + 0.1
SOFT = torch.softmax(Y, 1)
LOG = torch.log_softmax(X, 1)

# name -> (function of nn.functional and tensors, tensors)
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "nll": (lambda F, x, c: F.nll_loss(x, c), [LOG, CLASSES]),
    "nll weight none": (
        lambda F, x, c, w: F.nll_loss(x, c, w.detach(), reduction="none"),
        [LOG, CLASSES, WEIGHT],
    ),
    "nll ignore": (
        lambda F, x, c, w: F.nll_loss(x, c, w.detach(), ignore_index=0),
        [LOG, CLASSES, WEIGHT],
    ),
    "nll one row": (lambda F, x, c: F.nll_loss(x, c), [LOG[0], CLASSES[0]]),
    "nll images": (
        lambda F, x, c: F.nll_loss(x, c, reduction="sum"),
        [values(2, 3, 2), torch.tensor([[0, 2], [1, 1]])],
    ),
    "cross_entropy": (lambda F, x, c: F.cross_entropy(x, c), [X, CLASSES]),
    "cross_entropy weight, smoothing": (
        lambda F, x, c, w: F.cross_entropy(x, c, w.detach(), label_smoothing=0.2),
        [X, CLASSES, WEIGHT],
    ),
    "cross_entropy ignore": (
        lambda F, x, c: F.cross_entropy(x, c, ignore_index=3, reduction="sum"),
        [X, CLASSES],
    ),
    "cross_entropy all ignored, sum": (
        lambda F, x, c: F.cross_entropy(x, c, reduction="sum"),
        [X, torch.full((3,), -100)],
    ),
    "cross_entropy images": (
        lambda F, x, c: F.cross_entropy(x, c, reduction="none"),
        [values(2, 3, 2), torch.tensor([[0, 2], [1, 1]])],
    ),
    "cross_entropy of probabilities": (lambda F, x, y: F.cross_entropy(x, y), [X, SOFT]),
    "cross_entropy of probabilities, weight, smoothing": (
        lambda F, x, y, w: F.cross_entropy(x, y, w.detach(), label_smoothing=0.1),
        [X, SOFT, WEIGHT],
    ),
    "gaussian_nll": (lambda F, x, y, v: F.gaussian_nll_loss(x, y, v), [X, Z, POSITIVE]),
    "gaussian_nll full, one variance": (
        lambda F, x, y, v: F.gaussian_nll_loss(x, y, v, full=True, reduction="sum"),
        [X, Z, POSITIVE[:, :1]],
    ),
    "poisson_nll": (lambda F, x, y: F.poisson_nll_loss(x, y), [X, POSITIVE]),
    "poisson_nll of rates": (
        lambda F, x, y: F.poisson_nll_loss(x, y.detach() * 3, log_input=False, full=True),
        [POSITIVE, POSITIVE],
    ),
    "margin_ranking": (
        lambda F, a, b, s: F.margin_ranking_loss(a, b, s.detach(), margin=0.2),
        [X[:, 0], Y[:, 0], SIGNS],
    ),
    "cosine_embedding": (
        lambda F, a, b, s: F.cosine_embedding_loss(a, b, s.detach(), margin=0.1),
        [X, Y, SIGNS],
    ),
    "hinge_embedding": (
        lambda F, x, s: F.hinge_embedding_loss(x, s.detach(), margin=0.7),
        [X, SIGN_GRID],
    ),
    "triplet_margin": (lambda F, a, p, n: F.triplet_margin_loss(a, p, n), [X, Y, Z]),
    "triplet_margin swap": (
        lambda F, a, p, n: F.triplet_margin_loss(a, p, n, margin=0.5, p=3, swap=True),
        [X, Y, Z],
    ),
    "triplet with distance": (
        lambda F, a, p, n: F.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda u, v: ((u - v) ** 2).sum(-1), margin=2.0
        ),
        [X, Y, Z],
    ),
    "soft_margin": (lambda F, x, s: F.soft_margin_loss(x, s.detach()), [X, SIGN_GRID]),
    "multi_margin": (
        lambda F, x, c, w: F.multi_margin_loss(x, c, p=2, margin=0.8, weight=w.detach()),
        [X, CLASSES, WEIGHT],
    ),
    "multilabel_soft_margin": (
        lambda F, x, y, w: F.multilabel_soft_margin_loss(x, y.detach(), w.detach()),
        [X, (Y > 0).double(), WEIGHT],
    ),
    "kl_div": (lambda F, x, y: F.kl_div(x, y, reduction="batchmean"), [LOG, SOFT]),
    "kl_div of logarithms": (
        lambda F, x, y: F.kl_div(x, y, reduction="sum", log_target=True),
        [LOG, torch.log(SOFT)],
    ),
}
# PyTorch has no second derivative, or none that is not zero everywhere.
FIRST_ONLY = {"multi_margin"}


@pytest.mark.one_in(2)
@pytest.mark.covers("H1")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, device: str) -> None:
    function, inputs = CASES[name]
    if device == "webgpu" and name not in {
        "nll weight none", "cross_entropy weight, smoothing", "cross_entropy images",
        "cross_entropy of probabilities", "gaussian_nll", "cosine_embedding", "kl_div",
    }:  # fmt: skip
        # The others are made of the same operations; software adapters take a second for each.
        expected = function(torch.nn.functional, *inputs)
        ours = [
            webtorch.tensor(
                x.tolist(), device=device, dtype=None if x.is_floating_point() else webtorch.int64
            )
            for x in inputs
        ]
        found = function(webtorch.nn.functional, *ours)
        torch.testing.assert_close(
            torch.tensor(found.tolist(), dtype=torch.float64), expected, rtol=1e-4, atol=1e-5
        )
        return

    def run(L: Any, *tensors: Any) -> Any:
        out = function(functional(L), *tensors)
        # Inputs that only weigh or label have no gradient: they take part here with one that is known.
        return out + sum(t.sum() * 0.1 for t in tensors if t.requires_grad)

    compare(run, inputs, device, layout=False, second=name not in FIRST_ONLY)


def test_cross_entropy_survives_large_logits(device: str) -> None:
    logits = [[1000.0, -1000.0], [-80.0, 80.0]]
    x = webtorch.tensor(logits, device=device, requires_grad=True)
    loss = webtorch.nn.functional.cross_entropy(x, webtorch.tensor([1, 1], device=device))
    loss.backward()
    assert loss.item() == 1000.0
    assert x.grad.tolist() == [[0.5, -0.5], [0.0, 0.0]]


ERRORS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], str]] = {
    "one row, classes": (
        lambda f, x, t: f.cross_entropy(x[0], t[:2]),
        [X, CLASSES],
        "1D target must have size 1",
    ),
    "many targets": (
        lambda f, x, t: f.nll_loss(x, x[:, :2]),
        [X, CLASSES],
        "multi-target not supported",
    ),
    "triplets of other dims": (
        lambda f, x, t: f.triplet_margin_loss(x[0], x, x[0]),
        [X, CLASSES],
        "same number of dimensions",
    ),
    # The shape comes before the values.
    "probabilities of other shape": (
        lambda f, x, t: f.binary_cross_entropy(x * 9, x[:1]),
        [X, CLASSES],
        "Using a target size",
    ),
    "reduction": (lambda F, x, y: F.soft_margin_loss(x, y, reduction="average"), [X, Y], "average"),
    "nll rows": (lambda F, x, c: F.nll_loss(x, c), [X, torch.tensor([1, 2])], "2"),
    "nll of floats": (lambda F, x, c: F.nll_loss(x, c), [X, SIGNS], "Long"),
    "cross_entropy weight": (
        lambda F, x, c, w: F.cross_entropy(x, c, w),
        [X, CLASSES, values(3)],
        "weight",
    ),
    "cross_entropy smoothing": (
        lambda F, x, c: F.cross_entropy(x, c, label_smoothing=1.5),
        [X, CLASSES],
        "label_smoothing",
    ),
    "gaussian_nll shape": (
        lambda F, x, y, v: F.gaussian_nll_loss(x, y, v),
        [X, Y, values(2)],
        "var",
    ),
    "cosine_embedding dims": (
        lambda F, x, y, s: F.cosine_embedding_loss(x, y, s),
        [X, Y, X],
        "1D",
    ),
    "margin_ranking dims": (
        lambda F, x, y, s: F.margin_ranking_loss(x, y, s),
        [X, Y, SIGNS],
        "dim",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, inputs, text = ERRORS[name]
    same_error(lambda L, *t: function(functional(L), *t), inputs, "cpu", text)


def test_options_of_linear_cross_entropy_are_checked_as_pytorchs() -> None:
    bad: tuple[dict[str, Any], ...] = (
        {"acc_policy": "fast"},
        {"chunking_method": "aspect_ratio:0"},
        {"chunking_method": "rows"},
        {"batch_chunk_size": 0},
        {"acc_dtype": "int"},
    )
    found = []
    for lib in (torch, webtorch):
        options: Any = lib.nn.LinearCrossEntropyOptions
        for wrong in bad:
            with pytest.raises(ValueError, match=next(iter(wrong))):
                options(**wrong)
        x, w, c = (lib.tensor(t.tolist()) for t in (X, Z, CLASSES))
        call: Any = lib.nn.functional.linear_cross_entropy
        chosen = options(chunking_method="aspect_ratio:2")
        found.append(call(x, w, c.clamp(max=2), options=chosen).item())
        with pytest.raises(ValueError, match="int64"):
            call(x.long(), w.long(), c, options=options())
        with pytest.raises(RuntimeError, match="acc_dtype"):
            call(x.long(), w.long(), c, options=options(acc_dtype=lib.float32))
        with pytest.raises(RuntimeError):
            call(x.long(), w.long(), c, options=options(), label_smoothing=0.1)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
