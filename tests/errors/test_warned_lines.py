"""Warnings name the user's line, however deep in the library they come from."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webtorch as wt
import webtorch.nn.functional as F
from webtorch import nn

ROOT = Path(__file__).resolve().parents[2]


def _scheduler() -> None:
    sgd = wt.optim.SGD([nn.Parameter(wt.ones(1))], lr=0.1)
    wt.optim.lr_scheduler.StepLR(sgd, 1).step()


def _checkpoint() -> None:
    wt.utils.checkpoint.checkpoint(lambda x: x * 2, wt.ones(1), use_reentrant=True)


def _read_only() -> None:
    from webtorch.ops import creation

    creation._warned = False
    array = np.ones(2)
    array.flags.writeable = False
    wt.from_numpy(array)


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
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                level = [k.value for k in node.keywords if k.arg == "stacklevel"]
                if not level or isinstance(level[0], ast.Constant):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong
