"""PyTorch's own samples of its optimizers (optim_db): 20 steps with every option, alone and combined with
foreach, fused, capturable, differentiable, a tensor as learning rate and groups of parameters; and what the
constructors refuse.

SparseAdam is left out: there are no sparse gradients. `make test` runs the sample with most options of each
optimizer; WEBTORCH_CONFORMANCE=full runs all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conformance import bridge

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

INFOS = {info.name: info for info in optim_db if info.name != "SparseAdam"}
FULL = os.environ.get("WEBTORCH_CONFORMANCE") == "full"
STEPS = 20
FLAGS: tuple[dict[str, Any], ...] = (
    {}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": True}, {"differentiable": True},
    {"lr": "tensor"}, {"groups": True},
)  # fmt: skip
SHAPES = ((4, 3), (2, 5))


def cases(name: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (description, options, flags): all flags with the plainest and the fullest options, one of
    them with each of the others.
    """
    samples = INFOS[name].optim_inputs_func(device="cpu")
    fullest = max(range(len(samples)), key=lambda i: len(samples[i].kwargs))
    for number, sample in enumerate(samples):
        if FULL:
            flags = FLAGS if number in (0, fullest) else FLAGS[:1] + FLAGS[-1:]
        else:
            flags = ({}, {"differentiable": True}) if number == fullest else ()
        for flag in flags:
            yield f"{sample.desc} {sample.kwargs} {flag}", dict(sample.kwargs), dict(flag)


def train(
    like: Any, name: str, options: dict[str, Any], flags: dict[str, Any], device: str
) -> list[Any]:
    """Return the parameters after the steps, and gradients through them for differentiable steps."""
    ours = like is webtorch
    carry = (lambda v: bridge.value(v, device)) if ours else (lambda v: v)
    generator = torch.Generator().manual_seed(3)
    starts = [carry(torch.randn(s, generator=generator)).requires_grad_() for s in SHAPES]
    through = bool(flags.get("differentiable"))
    params: list[Any] = [s.clone() if through else s for s in starts]
    given = {k: carry(v.clone()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    given |= {k: v for k, v in flags.items() if k not in ("groups", "lr")}
    if flags.get("lr") == "tensor":
        given["lr"] = carry(torch.tensor(0.01))
    chosen: Any = params
    if flags.get("groups"):
        chosen = [{"params": params[:1]}, {"params": params[1:], "lr": 0.02, "weight_decay": 0.3}]
        if name in ("Rprop", "LBFGS"):
            del chosen[1]["weight_decay"]
    optimizer = getattr(like.optim, name)(chosen, **given)
    targets = [carry(torch.randn(s, generator=generator)) for s in SHAPES]

    def closure() -> Any:
        for p, t in zip(params, targets, strict=True):
            p.grad = (2 * (p - t)).detach()
        return sum(((p - t) ** 2).sum() for p, t in zip(params, targets, strict=True)).detach()

    # A step of LBFGS is many.
    count = 3 if through or (name == "LBFGS" and not FULL) else STEPS
    for _ in range(count):
        if name == "LBFGS":
            optimizer.step(closure)
            continue
        for p, t in zip(params, targets, strict=True):
            p.grad = p.detach() - t + carry(torch.randn(p.shape, generator=generator))
        optimizer.step()
    results = list(params)
    if through:
        results += list(like.autograd.grad(sum((p * p).sum() for p in params), starts))
    return results


def difference(
    name: str, options: dict[str, Any], flags: dict[str, Any], device: str
) -> str | None:
    """Return how webtorch's steps differ from PyTorch's; None if they do not."""
    wanted: Any = None
    try:
        expected = train(torch, name, options, flags, device)
    except Exception as error:
        wanted = error
    try:
        found = train(webtorch, name, options, flags, device)
    except Exception as error:
        if wanted is not None and isinstance(error, type(wanted)):
            return None
        return f"{type(error).__name__}: {error}; PyTorch: {wanted!r}"
    if wanted is not None:
        # On the CPU, PyTorch has no capturable steps, and some differentiable ones overwrite what
        # their gradient needs; here they are steps like any other.
        known = flags.get("capturable") or flags.get("differentiable")
        return None if known else f"no error; PyTorch: {wanted!r}"
    for mine, theirs in zip(found, expected, strict=True):
        a, b = bridge.back(mine).numpy(), theirs.detach().numpy()
        # Muon orthogonalises in bfloat16.
        if not np.allclose(a, b, rtol=2e-4, atol=2e-3 if name == "Muon" else 2e-5):
            return f"{np.abs(a - b).max()} apart"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(INFOS))
def test_steps_of_pytorchs_samples(name: str) -> None:
    failures = []
    for text, options, flags in cases(name):
        found = difference(name, options, flags, "cpu")
        if found:
            failures.append(f"{text}: {found}")
    assert not failures, "\n".join(failures)


def _carried(value: Any, seen: dict[int, Any]) -> Any:
    """Return parameters and groups as ours; one that is there twice stays one."""
    if isinstance(value, torch.Tensor):
        return seen.setdefault(id(value), bridge.tensor(value, "cpu"))
    if isinstance(value, dict):
        return {k: _carried(v, seen) for k, v in value.items()}
    return (
        type(value)(_carried(v, seen) for v in value) if isinstance(value, (list, tuple)) else value
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(INFOS))
def test_what_pytorch_refuses(name: str) -> None:
    failures = []
    for case in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
        if case.error_on != OptimizerErrorEnum.CONSTRUCTION_ERROR:
            continue
        given, text = case.optimizer_error_input, case.optimizer_error_input.desc
        params = given.params
        if params is None:
            params = [torch.randn(2, 3, requires_grad=True)]
        try:
            getattr(torch.optim, name)(params, **given.kwargs)
            continue
        except Exception as error:
            wanted = type(error)
        try:
            carried = _carried(params, {})
            getattr(webtorch.optim, name)(carried, **bridge.value(given.kwargs, "cpu"))
        except wanted:
            continue
        except Exception as error:
            failures.append(f"{text}: {type(error).__name__}: {error}; wanted {wanted.__name__}")
            continue
        failures.append(f"{text}: no error; wanted {wanted.__name__}: {case.error_regex}")
    assert not failures, "\n".join(failures)
