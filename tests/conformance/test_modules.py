"""PyTorch's own samples of its modules (module_db): outputs, gradients, state both ways, printed form, and
what they refuse.

`make test` runs the first samples of every module; WEBTORCH_CONFORMANCE=full runs all of them, in training
and evaluation mode, and in float64, float16 and bfloat16 where PyTorch has the kernels.
"""

from __future__ import annotations

import copy
import os
import traceback
import warnings
from typing import Any

import pytest
import torch

import webtorch
from tests.conformance import bridge
from webtorch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

FULL = os.environ.get("WEBTORCH_CONFORMANCE") == "full"
# Samples of each module and mode in the quick run.
QUICK = 2
INFOS = {info.name.removeprefix("nn."): info for info in module_db}

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16) if FULL else (torch.float32,)
# The samples of these bring random numbers of float64.
ONLY_DOUBLE = ("FractionalMaxPool2d", "FractionalMaxPool3d")
# Relative and absolute tolerance of outputs; of 16-bit floats, relative to the largest output, and as near to
# PyTorch's result in float64 is as good: PyTorch rounds each step to 16 bits, where single elements differ by
# more, and some formulas (cosine_embedding_loss) lose all of their digits. Gradients are compared ten times as
# loosely: they are sums of many terms.
TOLERANCE = {
    torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-8), torch.float16: (4e-3, 4e-3), torch.bfloat16: (3e-2, 3e-2),
}  # fmt: skip
# Of gradients in bfloat16, the part that may differ: in a sample of two layers a unit of a relu lies within
# rounding of 0, and has the slope of the other side in one of the libraries. (Of 24 other inputs both are as near
# to float64: 0.9 and 0.8 % of the largest gradient on average.)
AT_A_KINK = {("TransformerEncoder", torch.bfloat16): 1 / 16}


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
    return bridge.tensor(value, "cpu")


def same(
    actual: Any, expected: Any, exact: Any, loose: float = 1.0, differing: float = 0.0
) -> None:
    """Raise unless both hold the same values, wherever they are; shapes and dtypes included. `exact` holds what
    PyTorch computes in float64, or None; `differing` is the part of the elements that may differ.
    """
    mine, theirs = leaves(actual), leaves(expected)
    assert len(mine) == len(theirs)
    wide = [None] * len(theirs) if exact is None else leaves(exact)
    for one, want, true in zip(mine, theirs, wide, strict=True):
        got, want = bridge.back(one), want.detach()
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        if want.dtype.itemsize == 2 and want.numel():
            atol *= max(1.0, float(want.abs().max().nan_to_num(0.0)))
        near = torch.zeros(got.shape, dtype=torch.bool)
        for judge in (want, true):
            if judge is not None:
                near |= torch.isclose(
                    got.double(), judge.double(), rtol=loose * rtol, atol=loose * atol,
                    equal_nan=True,
                )  # fmt: skip
        count = int((~near).sum())
        assert count <= differing * near.numel(), f"{count} of {near.numel()} differ"


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


def samples(name: str, training: bool, dtype: torch.dtype) -> list[Any]:
    """Return PyTorch's samples of the module."""
    info = INFOS[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(
            info.module_inputs_func(
                info,
                device="cpu",
                dtype=dtype,
                requires_grad=True,
                training=training,
            )
        )


class Run:
    """What a module of PyTorch gives: outputs and, with weights for these, gradients of inputs and parameters."""

    def __init__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        self.module, self.leaves = module, leaves([*args, kwargs])
        for one in self.leaves:
            if one.requires_grad:
                # Some samples are results of operations.
                one.retain_grad()
        self.outputs = module(*args, **kwargs)

    def backward(self, weights: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of the outputs' sum with `weights` (None: not differentiable)."""
        total: Any = None
        for out, weight in zip(leaves(self.outputs), weights, strict=True):
            if weight is not None:
                total = (out * weight.to(out.dtype)).sum() + (0 if total is None else total)
        total.backward()
        return [one.grad for one in (*self.leaves, *self.module.parameters())]


def widened(value: Any, seen: dict[int, Any]) -> Any:
    """Return arguments with floating-point tensors in float64, leaves of their own."""
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            wide = value.detach().double() if value.is_floating_point() else value.detach()
            seen[id(value)] = wide.requires_grad_(value.requires_grad)
        return seen[id(value)]
    if isinstance(value, dict):
        return {key: widened(one, seen) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(widened(one, seen) for one in value)
    return value


def compare(name: str, sample: Any, training: bool, dtype: torch.dtype) -> None:
    """Raise unless both libraries do the same with one sample; nothing where PyTorch has no kernel."""
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
    if dtype is not torch.float32 and name not in ONLY_DOUBLE:
        reference.to(dtype)
        module.to(to_ours(dtype))
    args, kwargs = tuple(called.args), dict(called.kwargs)
    seen: dict[int, Any] = {}
    ours = to_ours(args, seen), to_ours(kwargs, seen)
    exact: Run | None = None
    if dtype.itemsize == 2:
        wide: dict[int, Any] = {}
        wider = widened(args, wide), widened(kwargs, wide)
        exact = Run(copy.deepcopy(reference).double(), *wider)
    if name.startswith("Lazy"):
        with torch.no_grad(), webtorch.no_grad():
            reference(*args, **kwargs)
            module(*ours[0], **ours[1])
    state = {key: to_ours(value) for key, value in reference.state_dict().items()}
    assert list(module.state_dict()) == list(state)
    module.load_state_dict(state)
    try:
        theirs = Run(reference, args, kwargs)
    except RuntimeError:
        if dtype.itemsize > 2:
            raise
        return
    actual = module(*ours[0], **ours[1])
    same(actual, theirs.outputs, exact and exact.outputs)
    weights: list[torch.Tensor | None] = []
    loss: Any = None
    for got, want in zip(leaves(actual), leaves(theirs.outputs), strict=True):
        assert got.requires_grad == want.requires_grad
        weight = torch.randn(want.shape).to(want.dtype) if want.requires_grad else None
        weights.append(weight)
        if weight is not None:
            loss = (got * to_ours(weight)).sum() + (0 if loss is None else loss)
    if loss is not None:
        try:
            gradients = theirs.backward(weights)
        except RuntimeError:
            if dtype.itemsize > 2:
                raise
            return
        true = None if exact is None else exact.backward(weights)
        loss.backward()
        inputs = [*leaves([*ours[0], ours[1]]), *module.parameters()]
        for i, (one, want) in enumerate(zip(inputs, gradients, strict=True)):
            if want is None:
                assert one.grad is None
            else:
                same(one.grad, want, true and true[i], 10.0, AT_A_KINK.get((name, dtype), 0.0))
    same(dict(module.named_buffers()), dict(reference.named_buffers()), None)
    # And back: PyTorch takes our state dict.
    back = {key: bridge.back(v) for key, v in module.state_dict().items()}
    assert not any(reference.load_state_dict(back))


def report(name: str, limit: int | None) -> list[str]:
    """Return the failures of a module's samples."""
    failures = []
    modes = (True, False) if INFOS[name].train_and_eval_differ or FULL else (True,)
    # Lazy modules take the type of their first input.
    dtypes = DTYPES[:1] if name.startswith("Lazy") else DTYPES
    for dtype in (torch.float64,) if name in ONLY_DOUBLE else dtypes:
        for training in modes:
            for number, sample in enumerate(samples(name, training, dtype)[:limit]):
                try:
                    compare(name, sample, training, dtype)
                except Exception as error:
                    frames = traceback.extract_tb(error.__traceback__)
                    line = next(f.lineno for f in reversed(frames) if f.filename == __file__)
                    text = " ".join(str(error).split())
                    failures.append(
                        f"#{number} {sample.desc} {dtype} training={training}, line {line}: "
                        f"{type(error).__name__}: {text[:300]}"
                    )
    return failures


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(INFOS))
def test_samples_of_pytorch_give_pytorch_results(name: str) -> None:
    failures = report(name, None if FULL else QUICK)
    assert not failures, "\n".join(failures)


def raised(make: Any, case: Any, carry: Any) -> Exception | None:
    """Return the error of constructing a module, or of calling it."""
    made, called = (
        case.module_error_input.constructor_input,
        case.module_error_input.forward_input,
    )
    try:
        module = make(*carry(tuple(made.args)), **carry(dict(made.kwargs)))
        if case.error_on == ModuleErrorEnum.FORWARD_ERROR:
            found = module(*carry(tuple(called.args)), **carry(dict(called.kwargs)))
            # What is only seen on the device is told when the result is read.
            for leaf in leaves(found):
                leaf.tolist()
    except Exception as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore")
def test_what_pytorchs_modules_refuse_is_refused_with_its_type_of_error() -> None:
    failures, count = [], 0
    for name, info in INFOS.items():
        if info.module_error_inputs_func is None:
            continue
        given = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
        torch.manual_seed(0)
        for case in info.module_error_inputs_func(info, **given):
            count += 1
            wanted = raised(info.module_cls, case, lambda v: v)
            found = raised(getattr(nn, name), case, to_ours)
            if wanted is not None and not isinstance(found, type(wanted)):
                failures.append(f"{name}: {found!r}; PyTorch: {wanted!r}")
    assert count > 80
    assert not failures, "\n".join(failures)
