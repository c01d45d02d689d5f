"""PyTorch's own samples of its modules (module_db): outputs, gradients, state both ways, printed form.

`make test` runs the first samples of every module; WEBTORCH_CONFORMANCE=full runs all of them, in training
and evaluation mode.
"""

from __future__ import annotations

import os
import traceback
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.nn.oracle import assert_same
from webtorch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

FULL = os.environ.get("WEBTORCH_CONFORMANCE") == "full"
# Samples of each module and mode in the quick run.
QUICK = 2
INFOS = {info.name.removeprefix("nn."): info for info in module_db}

# The samples of these bring random numbers of float64.
DTYPES = dict.fromkeys(("FractionalMaxPool2d", "FractionalMaxPool3d"), torch.float64)


def to_ours(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return arguments of PyTorch as webtorch's; a tensor that is there twice stays one."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            seen[id(value)] = _tensor(value)
        return seen[id(value)]
    if isinstance(value, torch.dtype):
        return getattr(webtorch, str(value).rpartition(".")[2])
    if isinstance(value, torch.nn.Module):
        return copied(value)
    if isinstance(value, dict):
        return {key: to_ours(one, seen) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_ours(one, seen) for one in value)
    name = getattr(value, "__name__", "") if callable(value) else ""
    return getattr(nn.functional, name, value) if name else value


def _tensor(value: torch.Tensor) -> Any:
    """Return a tensor of PyTorch as a leaf of webtorch."""
    dtype = getattr(webtorch, str(value.dtype).rpartition(".")[2])
    ours = webtorch.tensor(value.detach().numpy(), dtype=dtype)
    return ours.requires_grad_(value.requires_grad) if value.is_floating_point() else ours


def copied(reference: torch.nn.Module) -> Any:
    """Return webtorch's module with the same arguments: those PyTorch keeps as attributes."""
    if isinstance(reference, torch.nn.TransformerEncoderLayer):
        attention = reference.self_attn
        return nn.TransformerEncoderLayer(
            attention.embed_dim, attention.num_heads, reference.linear1.out_features,
            reference.dropout.p, to_ours(reference.activation), batch_first=attention.batch_first,
            norm_first=reference.norm_first, bias=reference.linear1.bias is not None,
        )  # fmt: skip
    raise NotImplementedError(type(reference))


def calm(module: Any) -> None:
    """Switch off what is random: the two libraries draw different numbers."""
    for one in module.modules():
        if type(one).__name__.startswith(("Dropout", "AlphaDropout")):
            one.p = 0.0
        elif type(one).__name__ in ("MultiheadAttention", "RNN", "LSTM", "GRU"):
            one.dropout = 0.0


def leaves(value: Any) -> list[Any]:
    """Return the tensors in a nested result, in order."""
    if isinstance(value, (torch.Tensor, webtorch.Tensor)):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in leaves(one)]
    return []


def samples(name: str, training: bool) -> list[Any]:
    """Return PyTorch's samples of the module."""
    info = INFOS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(
            info.module_inputs_func(
                info,
                device="cpu",
                dtype=DTYPES.get(name, torch.float32),
                requires_grad=True,
                training=training,
            )
        )


def compare(name: str, sample: Any, training: bool) -> None:
    """Raise unless both libraries do the same with one sample."""
    info = INFOS[name]
    made, called = sample.constructor_input, sample.forward_input
    torch.manual_seed(1)
    reference = info.module_cls(*made.args, **made.kwargs)
    module = getattr(nn, name)(*to_ours(tuple(made.args)), **to_ours(made.kwargs))
    for one in (reference, module):
        calm(one)
        one.train(training)
    assert repr(module) == repr(reference)
    if called is None:
        return
    args, kwargs = tuple(called.args), dict(called.kwargs)
    seen: dict[int, Any] = {}
    ours = to_ours(args, seen), to_ours(kwargs, seen)
    for one in leaves([*args, kwargs]):
        if one.requires_grad:
            # Some samples are results of operations.
            one.retain_grad()
    if name.startswith("Lazy"):
        with torch.no_grad(), webtorch.no_grad():
            reference(*args, **kwargs)
            module(*ours[0], **ours[1])
    state = {key: to_ours(value) for key, value in reference.state_dict().items()}
    assert list(module.state_dict()) == list(state)
    module.load_state_dict(state)
    expected = reference(*args, **kwargs)
    actual = module(*ours[0], **ours[1])
    tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    assert_same(leaves(actual), leaves(expected), **tolerance)
    loss: Any = None
    wanted: Any = None
    for got, want in zip(leaves(actual), leaves(expected), strict=True):
        assert got.requires_grad == want.requires_grad
        if not want.requires_grad:
            continue
        weight = torch.randn(want.shape)
        loss = (got * to_ours(weight)).sum() + (0 if loss is None else loss)
        wanted = (want * weight).sum() + (0 if wanted is None else wanted)
    if wanted is not None:
        loss.backward()
        wanted.backward()
        pairs = zip(leaves([*ours[0], ours[1]]), leaves([*args, kwargs]), strict=True)
        both = [*pairs, *zip(module.parameters(), reference.parameters(), strict=True)]
        for got, want in both:
            if want.grad is None:
                assert got.grad is None
            else:
                assert_same(got.grad, want.grad, rtol=1e-3, atol=1e-4)
    assert_same(dict(module.named_buffers()), dict(reference.named_buffers()), **tolerance)
    # And back: PyTorch takes our state dict.
    back = {
        key: torch.from_numpy(np.array(v.cpu().numpy())) for key, v in module.state_dict().items()
    }
    assert not any(reference.load_state_dict(back))


def report(name: str, limit: int | None) -> list[str]:
    """Return the failures of a module's samples."""
    failures = []
    for training in (True, False) if INFOS[name].train_and_eval_differ or FULL else (True,):
        for number, sample in enumerate(samples(name, training)[:limit]):
            try:
                compare(name, sample, training)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                line = next(f.lineno for f in reversed(frames) if f.filename == __file__)
                text = " ".join(str(error).split())
                failures.append(
                    f"#{number} {sample.desc} training={training}, line {line}: "
                    f"{type(error).__name__}: {text[:300]}"
                )
    return failures


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(INFOS))
def test_samples_of_pytorch_give_pytorch_results(name: str) -> None:
    failures = report(name, None if FULL else QUICK)
    assert not failures, "\n".join(failures)
