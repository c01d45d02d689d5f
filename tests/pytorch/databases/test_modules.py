"""PyTorch's samples of its modules and optimizers (`module_db`, `optim_db`), on "webgpu" and on the CPU.

A few stand for all; WEBTORCH_CONFORMANCE=full runs every one.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import ModuleInfo, module_db
    from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

from tests.pytorch.databases.check import leaves

FULL = os.environ.get("WEBTORCH_CONFORMANCE") == "full"
_QUICK_MODULES = (
    "nn.Conv2d",
    "nn.LSTM",
    "nn.MultiheadAttention",
    "nn.EmbeddingBag",
    "nn.BatchNorm1d",
)
_QUICK_OPTIMIZERS = ("Adam", "Adafactor")
MODULES = [m for m in module_db if FULL or m.name in _QUICK_MODULES]
OPTIMIZERS = [o for o in optim_db if FULL or o.optim_cls.__name__ in _QUICK_OPTIMIZERS]
STEPS = 4


def _moved(item: Any, device: str) -> Any:
    def move(x: Any) -> Any:
        return (
            x.detach().to(device).requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor)
            else x
        )

    return torch.utils._pytree.tree_map(move, item)


def _same(actual: Any, expected: Any, tolerance: float) -> None:
    mine, theirs = leaves(actual), leaves(expected)
    assert len(mine) == len(theirs)
    for a, e in zip(mine, theirs, strict=True):
        assert a.is_webgpu
        torch.testing.assert_close(
            a.detach().cpu(), e.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
        )


# PyTorch's own samples make it warn.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("info", MODULES, ids=lambda m: m.name)
def test_modules_and_their_gradients(webgpu: str, info: ModuleInfo) -> None:
    for training in (False, True) if FULL else (True,):
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for sample in samples if FULL else samples[:2]:
            _check(info, sample, training, webgpu)


def _check(info: ModuleInfo, sample: Any, training: bool, device: str) -> None:
    args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
    torch.manual_seed(0)
    # Random samples of fractional pooling are float64 in the database.
    reference = info.module_cls(*args, **kwargs).train(training).float()
    given = sample.forward_input
    if given is None:
        return
    if isinstance(reference, torch.nn.modules.lazy.LazyModuleMixin):
        # The first call makes its parameters.
        reference(*given.args, **given.kwargs)
    module = copy.deepcopy(reference).to(device)
    outputs = []
    for m, where in ((reference, "cpu"), (module, device)):
        torch.manual_seed(0)
        inputs = _moved((given.args, given.kwargs), where)
        out = m(*inputs[0], **inputs[1])
        results = [t for t in leaves(out) if t.requires_grad]
        wanted = [t for t in leaves([inputs[0], inputs[1]]) if t.requires_grad and t.is_leaf]
        wanted += [p for p in m.parameters() if p.requires_grad]
        gradients: Any = ()
        if results and wanted:
            total = sum((t * t).sum() for t in results)
            gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        outputs.append((out, gradients, list(m.buffers())))
    random = training and any(
        isinstance(m, torch.nn.modules.dropout._DropoutNd | torch.nn.RReLU)
        for m in reference.modules()
    )
    if random or info.name in ("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d"):
        assert [t.shape for t in leaves(outputs[1][0])] == [t.shape for t in leaves(outputs[0][0])]
        return
    _same(outputs[1], outputs[0], 5e-3)


def _run(info: OptimizerInfo, options: dict[str, Any], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 2, bias=False)
    )
    model.to(device)
    x = torch.randn(5, 3).to(device)
    optimizer = info.optim_cls(model.parameters(), **_moved(options, device))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("info", OPTIMIZERS, ids=lambda o: o.optim_cls.__name__)
def test_optimizers_with_every_option(webgpu: str, info: OptimizerInfo) -> None:
    if info.only_supports_sparse_grads:
        with pytest.raises((NotImplementedError, RuntimeError)):
            torch.eye(2, device=webgpu).to_sparse()
        return
    found: Callable[..., Any] = info.optim_inputs_func
    cases = found(device=torch.device("cpu"))
    for case in cases if FULL else cases[:2]:
        forms = [{f: True} for f in ("foreach", "fused") if f in info.supported_impls]
        for extra in [{}, *forms, {"foreach": False}] if forms else [{}]:
            options = {**case.kwargs, **extra}
            if options.get("capturable"):
                continue
            try:
                expected = _run(info, options, "cpu")
            except Exception:
                continue
            # Muon multiplies in bfloat16.
            tolerance = 2e-2 if info.optim_cls.__name__ == "Muon" else 1e-4
            _same(_run(info, options, webgpu), expected, tolerance)
