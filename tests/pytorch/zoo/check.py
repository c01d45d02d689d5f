"""Runs one family on "webgpu", eagerly and compiled, and compares it with PyTorch on the CPU.

A check returns "" where all agrees, and what does not otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tests.pytorch.zoo.families import Case

LOSS = 1e-4
GRADIENT = 1e-3
_NEW_TOKENS = 8


def to_device(x: Any, device: str) -> Any:
    """Return a structure with its tensors on a device."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {k: to_device(v, device) for k, v in x.items()}
    return x


def _tensors(out: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a model's result by their names, caches left out."""
    items = out.items() if hasattr(out, "items") else enumerate(out)
    return {str(k): v for k, v in items if isinstance(v, torch.Tensor)}


def _differences(actual: Any, expected: Any) -> str:
    a, e = _tensors(actual), _tensors(expected)
    if a.keys() != e.keys():
        return f"results {sorted(a)} for {sorted(e)}"
    for name, want in e.items():
        try:
            torch.testing.assert_close(a[name].cpu(), want, rtol=1e-3, atol=1e-4)
        except AssertionError as error:
            return f"{name}: {str(error).splitlines()[0]}"
    return ""


def _model(case: Case, device: str) -> torch.nn.Module:
    return copy.deepcopy(case.model).to(device)


def _runner(model: torch.nn.Module, compiled: bool) -> Callable[..., Any]:
    return torch.compile(model, backend="webgpu") if compiled else model


def forward(case: Case, compiled: bool) -> str:
    """Compare a forward in evaluation mode, called twice."""
    expected_model = _model(case, "cpu").eval()
    model = _model(case, "webgpu").eval()
    run = _runner(model, compiled)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = expected_model(**case.inputs)
        inputs = to_device(case.inputs, "webgpu")
        return _differences(run(**inputs), expected) or _differences(run(**inputs), expected)


def training(case: Case, compiled: bool) -> str:
    """Compare loss and gradients of a training step, and the loss after a step of AdamW."""
    reference = _model(case, "cpu").train()
    model = _model(case, "webgpu").train()
    run = _runner(model, compiled)
    inputs = to_device(case.inputs, "webgpu")
    # SGD's step is as large as the gradient: where that is near zero Adam would magnify rounding.
    steps = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (reference, model)]
    for step in range(2):
        expected = case.loss(reference(**case.inputs))
        actual = case.loss(run(**inputs))
        expected.backward()
        actual.backward()
        e, a = expected.item(), actual.item()
        if not abs(a - e) <= LOSS * max(1.0, abs(e)):
            return f"loss {a:.6f} for {e:.6f} in step {step}"
        wrong = _gradients(model, reference)
        if wrong:
            return f"step {step}: {wrong}"
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad()
    return ""


def _gradients(model: torch.nn.Module, reference: torch.nn.Module) -> str:
    expected = dict(reference.named_parameters())
    largest = max(
        (float(p.grad.norm()) for p in expected.values() if p.grad is not None), default=0.0
    )
    for name, p in model.named_parameters():
        want = expected[name].grad
        if (p.grad is None) != (want is None):
            return f"gradient of {name}: {'missing' if p.grad is None else 'not expected'}"
        if want is None:
            continue
        difference = float((p.grad.cpu() - want).norm())
        # Gradients that are rounding noise (of a bias before a norm) are measured by the largest one.
        if not difference <= GRADIENT * max(float(want.norm()), 1e-3 * largest):
            return (
                f"gradient of {name}: off by {difference / max(float(want.norm()), 1e-30):.1e} "
                "of its norm"
            )
    return ""


def generate(case: Case, compiled: bool, cache: str | None) -> str:
    """Compare tokens of greedy search, and sample some."""
    assert case.prompt is not None
    reference = _model(case, "cpu").eval()
    model = _model(case, "webgpu").eval()
    options: dict[str, Any] = {
        "max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS, "do_sample": False,
    }  # fmt: skip
    expected = reference.generate(**case.prompt, **options)
    if cache:
        options["cache_implementation"] = cache
    if compiled:
        model.forward = torch.compile(model.forward, backend="webgpu")
        # transformers would compile a static cache's steps with a backend of its own choice.
        options["disable_compile"] = True
    elif cache:
        options["disable_compile"] = True
    prompt = to_device(case.prompt, "webgpu")
    actual = model.generate(**prompt, **options).cpu()
    if not torch.equal(actual, expected):
        return f"tokens {actual.tolist()} for {expected.tolist()}"
    options.update(do_sample=True, top_k=20, top_p=0.9, temperature=0.8)
    torch.manual_seed(5)
    first = model.generate(**prompt, **options).cpu()
    torch.manual_seed(5)
    again = model.generate(**prompt, **options).cpu()
    if first.shape[1] != expected.shape[1] or not torch.equal(first, again):
        return "samples of one seed differ"
    return ""
