"""Warnings name the user's line, however deep in the library they come from."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import webtorch as wt
import webtorch.nn.functional as F
from webtorch import nn
from webtorch.ops.purity import Said

ROOT = Path(__file__).resolve().parents[2]


def _scheduler() -> None:
    sgd = wt.optim.SGD([nn.Parameter(wt.ones(1))], lr=0.1)
    wt.optim.lr_scheduler.StepLR(sgd, 1).step()


def _checkpoint() -> None:
    wt.utils.checkpoint.checkpoint(lambda x: x * 2, wt.ones(1), use_reentrant=True)


def _read_only() -> None:
    Said.texts.clear()
    array = np.ones(2)
    array.flags.writeable = False
    wt.from_numpy(array)


def _read_only_bytes() -> None:
    Said.texts.clear()
    wt.frombuffer(b"abcd", dtype=wt.uint8)


A, B = [[0.5, 0.25]], [0.5]
CALLS: dict[str, Callable[[], Any]] = {
    "mse_loss": lambda: F.mse_loss(wt.tensor(A), wt.tensor(B)),
    "l1_loss": lambda: F.l1_loss(wt.tensor(A), wt.tensor(B)),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(wt.tensor(A), wt.tensor(B)),
    "huber_loss": lambda: F.huber_loss(wt.tensor(A), wt.tensor(B)),
    "MSELoss": lambda: nn.MSELoss()(wt.tensor(A), wt.tensor(B)),
    "size_average": lambda: F.mse_loss(wt.ones(2), wt.ones(2), size_average=True),
    "MSELoss(size_average)": lambda: nn.MSELoss(size_average=False),
    "BCELoss(reduce)": lambda: nn.BCELoss(reduce=False),
    "cross_entropy(reduce)": lambda: F.cross_entropy(wt.ones(1, 2), wt.tensor([1]), reduce=True),
    "kl_div": lambda: F.kl_div(wt.ones(2), wt.ones(2)),
    "KLDivLoss": lambda: nn.KLDivLoss()(wt.ones(2), wt.ones(2)),
    "softmax": lambda: F.softmax(wt.ones(2)),
    "Softmax": lambda: nn.Softmax()(wt.ones(2)),
    "log_softmax": lambda: F.log_softmax(wt.ones(2)),
    "tensor": lambda: wt.tensor(wt.ones(2)),
    "from_numpy": _read_only,
    "frombuffer": _read_only_bytes,
    "range": lambda: wt.range(0, 2),
    "resize": lambda: wt.ones(2).resize(2),
    "stft": lambda: wt.stft(wt.ones(8), 4, window=wt.ones(4), return_complex=False),
    "complex": lambda: wt.tensor([1j]).to(wt.float32),
    "add": lambda: wt.add(wt.ones(2), 2, wt.ones(2)),
    "addmm": lambda: wt.ones(2, 2).addmm(2, wt.ones(2, 2), wt.ones(2, 2)),
    "RNN(dropout)": lambda: nn.LSTM(2, 2, dropout=0.5),
    "init": lambda: nn.init.xavier_uniform(wt.ones(2, 2)),
    "init.nothing": lambda: nn.init.kaiming_normal_(wt.ones(0, 2)),
    "init.gain": lambda: nn.init.trunc_normal_(wt.ones(2), 9.0),
    "scheduler": _scheduler,
    "checkpoint": _checkpoint,
    "weight_norm": lambda: nn.utils.weight_norm(nn.Linear(2, 2)),
    "clip_grad_norm": lambda: nn.utils.clip_grad_norm([nn.Parameter(wt.ones(1))], 1.0),
    "anomaly": wt.autograd.detect_anomaly,
}


# Run with PyTorch and here: the same warnings, in the same words.
SCENES: dict[str, Callable[[Any], Any]] = {
    "list of arrays": lambda t: t.tensor([np.zeros(2), np.zeros(2)]),
    "new_tensor": lambda t: t.ones(2).new_tensor(t.ones(2)),
    "dropout2d of 3-d": lambda t: t.nn.functional.dropout2d(t.ones(2, 3, 4)),
    "Dropout2d of 3-d": lambda t: t.nn.Dropout2d()(t.ones(2, 3, 4)),
    "dropout2d of 2-d": lambda t: t.nn.functional.dropout2d(t.ones(2, 3)),
    "dropout3d of 2-d": lambda t: t.nn.functional.dropout3d(t.ones(2, 3)),
    "gumbel_softmax": lambda t: t.nn.functional.gumbel_softmax(t.ones(2, 3), eps=1e-9),
    "var of one": lambda t: t.ones(1).var(),
    "std of one": lambda t: t.std(t.ones(3, 1), 1),
    "var, correction": lambda t: t.var(t.ones(3), correction=5),
    "var_mean of one": lambda t: t.var_mean(t.ones(1)),
    "std_mean of nothing": lambda t: t.std_mean(t.ones(0)),
    "var of complex": lambda t: t.ones(1, dtype=t.complex64).var(),
    "grad of no leaf": lambda t: (t.ones(2, requires_grad=True) * 2).grad,
    "float()": lambda t: float(t.ones(1, requires_grad=True)),
    "upsample": lambda t: t.nn.functional.upsample(t.ones(1, 1, 2, 2), scale_factor=2),
    "upsample_nearest": lambda t: t.nn.functional.upsample_nearest(t.ones(1, 1, 2, 2), 4),
    "upsample_bilinear": lambda t: t.nn.functional.upsample_bilinear(t.ones(1, 1, 2, 2), 4),
    "grid_sample": lambda t: t.nn.functional.grid_sample(
        t.ones(1, 1, 2, 2), t.zeros(1, 1, 1, 2)
    ),
    "affine_grid": lambda t: t.nn.functional.affine_grid(t.ones(1, 2, 3), (1, 1, 2, 2)),
    "T of 3-d": lambda t: t.ones(2, 3, 4).T,
    "T of 0-d": lambda t: t.tensor(1.0).T,
    "out=": lambda t: t.add(t.ones(3), 1, out=t.ones(2)),
    "uint8 mask": lambda t: t.ones(3)[t.tensor([1, 0, 1], dtype=t.uint8)],
    "writing by a uint8 mask": lambda t: t.ones(3).__setitem__(
        t.tensor([1, 0, 1], dtype=t.uint8), t.zeros(2)
    ),
    "where": lambda t: t.where(t.tensor([1, 0], dtype=t.uint8), t.ones(2), t.zeros(2)),
    "meshgrid": lambda t: t.meshgrid(t.ones(2), t.ones(3)),
    "cross": lambda t: t.cross(t.ones(3, 3), t.ones(3, 3)),
    "cholesky": lambda t: t.cholesky(t.eye(2)),
    "qr": lambda t: t.qr(t.eye(2)),
    "lu": lambda t: t.lu(t.eye(2)),
    "chain_matmul": lambda t: t.chain_matmul(t.eye(2), t.eye(2)),
    "Hardtanh": lambda t: t.nn.Hardtanh(min_value=-2, max_value=2),
    "no warnings": lambda t: (
        t.ones(2).var(), t.ones(2, 3).T, t.add(t.ones(3), 1, out=t.ones(0)),
        t.ones(3)[t.tensor(1, dtype=t.uint8)], t.ones(2, requires_grad=True).grad, t.ones(1).std(0, False),
        t.tensor([np.float32(1), np.float32(2)]), float(t.ones(1)), int(t.ones(1, requires_grad=True)),
        t.nn.functional.dropout2d(t.ones(1, 2, 3, 4)), t.ones(2, requires_grad=True).sum().item(),
    ),
}  # fmt: skip


def _create_graph(t: Any) -> None:
    x = t.ones(2, requires_grad=True)
    (x * x).sum().backward(create_graph=True)
    y = x * 2
    y.retain_grad()
    assert y.grad is None


SCENES["create_graph"] = _create_graph


def _said(t: Any, scene: Callable[[Any], Any]) -> tuple[set[str], set[str]]:
    """Return the texts and the files of the warnings of the second call."""
    before = t.is_warn_always_enabled()
    t.set_warn_always(True)
    try:
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                scene(t)
    finally:
        t.set_warn_always(before)
    texts = {" ".join(str(w.message).split()) for w in caught}
    # Where it is in PyTorch's source, and what its authors said of it, is nothing to us.
    texts = {
        t.partition(" (Triggered internally")[0].partition(" See github.com")[0] for t in texts
    }
    return texts, {w.filename for w in caught}


@pytest.mark.parametrize("name", SCENES)
def test_warnings_are_pytorchs(name: str) -> None:
    texts, files = _said(wt, SCENES[name])
    assert texts == _said(torch, SCENES[name])[0]
    assert files <= {__file__}
    assert bool(texts) is (name != "no warnings")


def test_what_pytorch_says_once_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Said, "always", False)
    Said.texts.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            wt.qr(wt.eye(2))
            wt.ones(1).std()
    assert sorted(str(w.message)[:5] for w in caught) == ["std()", "std()", "std()", "torch"]


def test_dropout2d_of_three_dims_drops_as_pytorchs_does() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape in ((5, 6, 7), (50, 6)):
            x = F.dropout2d(wt.ones(*shape), 0.5)
            rest = x.reshape(*shape[:2], -1)
            assert ((rest == rest[..., :1]).all() and 0 < (rest == 0).float().mean() < 1).item()
            assert not (x[:, :1] == x).all().item()


@pytest.mark.parametrize("name", CALLS)
def test_the_warning_names_the_line_of_the_call(name: str) -> None:
    # More often than a call takes to be remembered.
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            CALLS[name]()
        assert caught and {w.filename for w in caught} == {__file__}


def test_no_warning_counts_frames() -> None:
    """A count is wrong as soon as a function is called by way of another one."""
    wrong = []
    for path in sorted((ROOT / "webtorch").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".warn(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn":
                level = [k.value for k in node.keywords if k.arg == "stacklevel"]
                if not level or isinstance(level[0], ast.Constant):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong
