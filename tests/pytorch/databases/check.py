"""One operation of PyTorch's database on torch.device("webgpu"), compared with PyTorch's CPU.

A result agrees if it is on the device, with PyTorch's dtype and shape, and every element is as close to PyTorch's
result, or to PyTorch's result in float64, as `torch.testing.assert_close` asks by default (or the database asks for
this operation). Gradients are those of a weighted sum of the results.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.conformance.check import (
    PRODUCTS as _PRODUCTS,
)
from tests.conformance.check import (
    RANDOM as _RANDOM,
)
from tests.conformance.check import (
    TIES as _TIES,
)
from tests.conformance.check import (
    OutOfTime,
    Result,
    difference,
    samples,
    time_limit,
)
from tests.conformance.check import (
    _expected as expected,
)
from tests.conformance.check import (
    _pointed_at as pointed_at,
)
from tests.conformance.check import (
    _tolerance as tolerance,
)

SECONDS = 60
# Neither dense tensors nor PyTorch's own surface: sparse layouts, CUDA source text, jagged tensors.
OUTSIDE = (
    "sparse.",
    "to_sparse",
    "jiterator_",
    "nn.functional.scaled_dot_product_attention_jagged",
)
RANDOM = _RANDOM | {"native_dropout_backward", "normal_number_mean", "signal.windows"}
# Their results depend on the memory around a view, which a copy in float64 does not have.
OF_MEMORY = {"as_strided", "as_strided_scatter", "as_strided_copy"}
# Their statistics, the results after the first, are float32 for 16-bit inputs, as on CUDA; PyTorch's CPU rounds them.
_WIDE_STATISTICS = {
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
}
_FREE_SIGNS = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr"}


def takes(op: OpInfo, dtype: torch.dtype) -> bool:
    """Whether PyTorch's CPU has this operation for this type, and it counts."""
    return dtype in op.dtypes and not op.name.startswith(OUTSIDE)


def leaves(item: Any) -> list[torch.Tensor]:
    """Return the tensors in an argument or a result, in order."""
    found = torch.utils._pytree.tree_leaves(item)
    return [t for t in found if isinstance(t, torch.Tensor)]


def moved(sample: SampleInput, device: str, on_cpu: bool = False) -> SampleInput:
    """Return the sample on the device, with the same strides and ties between its tensors.

    `on_cpu`: PyTorch wants the indices on the CPU.
    """
    seen: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype is torch.int64 and on_cpu and value is not sample.input:
                return value
            if id(value) not in seen:
                seen[id(value)] = carried(value, device)
            return seen[id(value)]
        if isinstance(value, torch.device):
            return torch.device(device)
        return value

    kwargs = dict(sample.kwargs)
    if kwargs.get("device") == "cpu":
        kwargs["device"] = device
    return SampleInput(sample.input, args=sample.args, kwargs=kwargs).transform(move)


def carried(t: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on the device with the same strides, storage offset and memory around it."""
    if t.layout is not torch.strided:
        return t.to(device)
    base = torch.empty(0, dtype=t.dtype).set_(t.detach().untyped_storage())
    new = base.to(device).as_strided(t.shape, t.stride(), t.storage_offset())
    if t.is_conj():
        new = new.conj()
    if t.is_neg():
        new = torch._neg_view(new)
    return new.requires_grad_(t.requires_grad)


def _call(fn: Callable[..., Any], sample: SampleInput) -> Any:
    return fn(sample.input, *sample.args, **sample.kwargs)


def compare(
    op: OpInfo,
    ours: Any,
    exact: Any,
    wide: Any,
    sample: SampleInput | None,
    inputs: list[torch.Tensor],
) -> str | None:
    """Return how a result differs from PyTorch's; None if it does not."""
    mine, theirs, true = leaves(ours), leaves(exact), leaves(wide)
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors for {len(theirs)}"
    for i, (m, t) in enumerate(zip(mine, theirs, strict=True)):
        if m.device.type != "webgpu" and op.name != "to":
            return f"result {i} is on {m.device}"
        if i and op.name in _WIDE_STATISTICS and m.dtype is torch.float32:
            m = m.to(t.dtype)
        if m.dtype is not t.dtype:
            return f"result {i}: {m.dtype} for {t.dtype}"
        if m.shape != t.shape:
            return f"result {i}: shape {tuple(m.shape)} for {tuple(t.shape)}"
        back = m.detach().cpu()
        if (
            op.name.startswith(("empty", "new_empty"))
            or op.name in RANDOM
            or op.name in _FREE_SIGNS
        ):
            continue
        if sample is not None and "generator" in sample.kwargs:
            continue
        w = true[i].detach() if len(true) == len(theirs) else None
        rtol, atol = tolerance(op, t.dtype)
        if op.name in _PRODUCTS and t.dtype in (torch.float16, torch.bfloat16) and t.numel():
            atol = max(atol, rtol * float(t.detach().abs().max().nan_to_num(0.0, 0.0)))
        t = t.detach()
        if op.name in _TIES and i == len(mine) - 1 and sample is not None:
            back, t = pointed_at(op, sample, back), pointed_at(op, sample, t)
        found = difference(back, t, w, rtol, atol)
        if found:
            return f"result {i}: {found}"
    plain = [x for x in torch.utils._pytree.tree_leaves(ours) if not isinstance(x, torch.Tensor)]
    other = [x for x in torch.utils._pytree.tree_leaves(exact) if not isinstance(x, torch.Tensor)]
    if not mine and any(
        p != e and not (p != p and e != e) for p, e in zip(plain, other, strict=True)
    ):
        return f"{plain} for {other}"
    return None


def _shown(sample: SampleInput, error: object) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return f"{text} <- {sample.summary()}"


def _count(result: Result, error: BaseException, sample: SampleInput) -> None:
    """Count a failure, or a kernel that is missing."""
    text = str(error)
    if "is not implemented" in text and isinstance(error, NotImplementedError):
        result.missing += 1
        if len(result.notes) < 4:
            result.notes.append(_shown(sample, error)[:600])
    else:
        result.fail(_shown(sample, error))


@contextmanager
def _judged(result: Result, sample: SampleInput) -> Iterator[list[str]]:
    """Count a sample as passed unless the body appends what is wrong, raises, or takes too long."""
    wrong: list[str] = []
    try:
        with time_limit(SECONDS):
            yield wrong
    except (Exception, OutOfTime) as error:
        _count(result, error, sample)
        return
    if wrong:
        result.fail(_shown(sample, wrong[0]))
    else:
        result.passed += 1


def forward(op: OpInfo, dtype: torch.dtype, limit: int, result: Result) -> None:
    """Compare results on the database's inputs."""
    for sample in samples(op, dtype, False, limit):
        got = expected(op.op, sample, op.name not in RANDOM and op.name not in OF_MEMORY)
        if got is None or any(t.layout is not torch.strided for t in leaves(got[0])):
            continue
        exact, wide = got
        with _judged(result, sample) as wrong:
            there = moved(sample, "webgpu", op.name == "tensor_split")
            torch.manual_seed(0)
            mine = sample.output_process_fn_grad(_call(op.op, there))
            right, true = (
                sample.output_process_fn_grad(x) if x is not None else None for x in (exact, wide)
            )
            found = compare(op, mine, right, true, sample, leaves(sample.input))
            if found:
                wrong.append(found)


def _slopes(fn: Callable[..., Any], sample: SampleInput, weights: list[torch.Tensor] | None) -> Any:
    """Return the results, the gradients of their weighted sum, and the weights."""
    results = [
        t for t in leaves(sample.output_process_fn_grad(_call(fn, sample)))
        if t.requires_grad and (t.is_floating_point() or t.is_complex())
    ]  # fmt: skip
    inputs = [
        t
        for t in leaves([sample.input, list(sample.args), sample.kwargs])
        if t.requires_grad and t.is_leaf
    ]
    if not results or not inputs:
        return None
    if weights is None:
        generator = torch.Generator().manual_seed(7)
        weights = [
            torch.rand(t.shape, generator=generator, dtype=torch.float64) + 0.5 for t in results
        ]
    given = [w.to(t.dtype).to(t.device) for w, t in zip(weights, results, strict=True)]
    return torch.autograd.grad(results, inputs, given, allow_unused=True), weights


def gradients(op: OpInfo, dtype: torch.dtype, limit: int, result: Result) -> None:
    """Compare gradients on the database's inputs."""
    if not op.supports_autograd or dtype not in op.backward_dtypes or op.name in RANDOM:
        return
    if op.name in _FREE_SIGNS:
        return
    for sample in samples(op, dtype, True, limit):

        def fresh(t: Any) -> Any:
            return (
                t.detach().clone().requires_grad_(t.requires_grad)
                if isinstance(t, torch.Tensor)
                else t
            )

        def doubled(t: Any) -> Any:
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                return t.detach().double().requires_grad_(t.requires_grad)
            if isinstance(t, torch.Tensor) and t.is_complex():
                return t.detach().to(torch.complex128).requires_grad_(t.requires_grad)
            return t

        try:
            got = _slopes(op.op, sample.transform(fresh), None)
        except Exception:
            continue
        if got is None or any(t is not None and t.layout is not torch.strided for t in got[0]):
            continue
        exact, weights = got
        try:
            true = _slopes(op.op, sample.transform(doubled), weights)[0]
        except Exception:
            true = None
        with _judged(result, sample) as wrong:
            there = moved(sample.transform(fresh), "webgpu", op.name == "tensor_split")
            torch.manual_seed(0)
            mine = _slopes(op.op, there, weights)[0]
            for i, (m, t) in enumerate(zip(mine, exact, strict=True)):
                if (m is None) != (t is None):
                    if (t if m is None else m.cpu()).abs().sum() != 0:
                        wrong.append(f"gradient {i}: {'none' if m is None else 'one'} for {t}")
                    continue
                if m is None:
                    continue
                rtol, atol = tolerance(op, t.dtype)
                w = None if true is None or true[i] is None else true[i]
                found = difference(m.cpu(), t, w, max(rtol, 1e-5), atol)
                if found:
                    wrong.append(f"gradient {i}: {found}")
                    break


def check(op: OpInfo, dtype: torch.dtype, limit: int = 0) -> dict[str, Any]:
    """Return the results of all checks of one operation."""
    start = time.perf_counter()
    gc.collect()
    before = sum(torch.webgpu.fallback_counts().values())
    results = {"forward": Result()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forward(op, dtype, limit, results["forward"])
        if dtype is torch.float32:
            results["gradient"] = Result()
            gradients(op, dtype, limit, results["gradient"])
    data: dict[str, Any] = {k: r.data() for k, r in results.items()}
    fallbacks = sum(torch.webgpu.fallback_counts().values()) - before
    return data | {
        "seconds": round(time.perf_counter() - start, 2), "limit": limit, "fallbacks": fallbacks,
        "adapter": torch.webgpu.get_device_name(),
    }  # fmt: skip
