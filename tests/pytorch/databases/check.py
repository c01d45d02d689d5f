"""One operation of PyTorch's database on torch.device("webgpu"), compared with PyTorch's CPU.

A result agrees if it is on the device, with PyTorch's dtype and shape, and every element is as close to PyTorch's
result, or to PyTorch's result in float64, as `torch.testing.assert_close` asks by default (or the database asks for
this operation). Gradients are those of a weighted sum of the results.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Sequence
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
    WIDE_STATISTICS,
    OutOfTime,
    difference,
    samples,
    time_limit,
)
from tests.conformance.check import (
    Result as _Result,
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
from tests.pytorch.databases.compiled import WAYS, Compiled, shared

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
_FREE_SIGNS = {"linalg.eig", "linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr"}


class Result(_Result):
    """Counts of one kind of check; `untraced`: samples that PyTorch's own tracer cannot take."""

    def __init__(self) -> None:
        super().__init__()
        self.untraced = 0


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
    device: str = "webgpu",
) -> str | None:
    """Return how a result differs from PyTorch's; None if it does not."""
    mine, theirs, true = leaves(ours), leaves(exact), leaves(wide)
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors for {len(theirs)}"
    for i, (m, t) in enumerate(zip(mine, theirs, strict=True)):
        if m.device.type != device and op.name != "to":
            return f"result {i} is on {m.device}"
        if i and op.name in WIDE_STATISTICS and m.dtype is torch.float32:
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


def _count(result: Result, sample: SampleInput, found: str | BaseException | None) -> None:
    """Count a success, a failure, or a kernel that is missing."""
    if found is None:
        result.passed += 1
    elif isinstance(found, NotImplementedError) and "is not implemented" in str(found):
        result.missing += 1
        if len(result.notes) < 4:
            result.notes.append(_shown(sample, found)[:600])
    else:
        result.fail(_shown(sample, found))


# Returns what a function that stands for the operation does on a device unlike PyTorch on the CPU.
Attempt = Callable[[Callable[..., Any], str], str | None]


def _judge(
    result: Result, op: OpInfo, sample: SampleInput, ways: Sequence[Compiled], attempt: Attempt
) -> None:
    """Count a sample as passed unless the attempt finds something wrong, raises, or takes too long.

    With `ways`, through the compiler: the first that PyTorch itself traces on the CPU counts; none may.
    """
    if not ways:
        _count(result, sample, _tried(attempt, op.op, "webgpu"))
        return
    for way in ways:
        found = _tried(attempt, way(op.op, "webgpu"), "webgpu")
        if found is None or _tried(attempt, way(op.op, "cpu"), "cpu") is None:
            _count(result, sample, found)
            return
    result.untraced += 1


def _tried(attempt: Attempt, fn: Callable[..., Any], device: str) -> str | BaseException | None:
    try:
        with time_limit(SECONDS):
            return attempt(fn, device)
    except (Exception, OutOfTime) as error:
        # Dynamo wraps what a backend raises.
        found: BaseException = getattr(error, "inner_exception", error)
        return found


def forward(
    op: OpInfo, dtype: torch.dtype, limit: int, result: Result, ways: Sequence[Compiled] = ()
) -> None:
    """Compare results on the database's inputs."""
    for sample in samples(op, dtype, False, limit):
        got = expected(op.op, sample, op.name not in RANDOM and op.name not in OF_MEMORY)
        if got is None or any(t.layout is not torch.strided for t in leaves(got[0])):
            continue
        exact, wide = got

        def attempt(
            fn: Callable[..., Any],
            device: str,
            sample: SampleInput = sample,
            exact: Any = exact,
            wide: Any = wide,
        ) -> str | None:
            there = moved(sample, device, op.name == "tensor_split")
            torch.manual_seed(0)
            mine = _call(fn, there)
            right, true = (
                sample.output_process_fn_grad(x) if x is not None else None for x in (exact, wide)
            )
            found = compare(op, sample.output_process_fn_grad(mine), right, true, sample, device)
            whole = ways and op.name not in RANDOM
            return found or (_aliases(op, sample, there, mine) if whole else None)

        _judge(result, op, sample, ways, attempt)


def _aliases(op: OpInfo, sample: SampleInput, there: SampleInput, mine: Any) -> str | None:
    """Return what differs in memory from a call on the CPU: which results are views of inputs, and what was written."""
    here = moved(sample, "cpu", op.name == "tensor_split")
    torch.manual_seed(0)
    results = leaves(_call(op.op, here))
    given, taken = (leaves([s.input, list(s.args), s.kwargs]) for s in (there, here))
    found, wanted = shared(given, leaves(mine)), shared(taken, results)
    if found != wanted:
        return f"(result, input) in the same memory: {found} for {wanted}"
    for i, (m, t) in enumerate(zip(given, taken, strict=True)):
        if t._version == m._version == 0:
            continue
        wrong = difference(m.detach().cpu(), t.detach(), None, *tolerance(op, t.dtype))
        if wrong:
            return f"input {i} as it was written: {wrong}"
    return None


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
    return results, torch.autograd.grad(results, inputs, given, allow_unused=True), weights


def gradients(
    op: OpInfo, dtype: torch.dtype, limit: int, result: Result, ways: Sequence[Compiled] = ()
) -> None:
    """Compare gradients on the database's inputs; with `ways` also the results that have some."""
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
        if got is None or any(t is not None and t.layout is not torch.strided for t in got[1]):
            continue
        results, exact, weights = got
        try:
            wide, true, _ = _slopes(op.op, sample.transform(doubled), weights)
        except Exception:
            wide = true = None

        given = sample.transform(fresh)

        def attempt(
            fn: Callable[..., Any],
            device: str,
            given: SampleInput = given,
            sample: SampleInput = sample,
            results: Any = results,
            exact: Any = exact,
            wide: Any = wide,
            true: Any = true,
            weights: Any = weights,
        ) -> str | None:
            there = moved(given, device, op.name == "tensor_split")
            torch.manual_seed(0)
            values, mine, _ = _slopes(fn, there, weights)
            if ways and (found := compare(op, values, results, wide, sample, device)):
                return found
            for i, (m, t) in enumerate(zip(mine, exact, strict=True)):
                if (m is None) != (t is None):
                    if (t if m is None else m.cpu()).abs().sum() != 0:
                        return f"gradient {i}: {'none' if m is None else 'one'} for {t}"
                    continue
                if m is None:
                    continue
                rtol, atol = tolerance(op, t.dtype)
                w = None if true is None or true[i] is None else true[i]
                found = difference(m.cpu(), t, w, max(rtol, 1e-5), atol)
                if found:
                    return f"gradient {i}: {found}"
            return None

        _judge(result, op, sample, ways, attempt)


def check(op: OpInfo, dtype: torch.dtype, limit: int = 0, mode: str = "") -> dict[str, Any]:
    """Return the results of all checks of one operation; `mode`: "compiled", "dynamic", or "" for eager."""
    start = time.perf_counter()
    gc.collect()
    before = sum(torch.webgpu.fallback_counts().values())
    results = {"forward": Result()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ways = WAYS.get(mode, ())
        forward(op, dtype, limit, results["forward"], ways)
        if dtype is torch.float32:
            results["gradient"] = Result()
            gradients(op, dtype, limit, results["gradient"], ways)
    data: dict[str, Any] = {k: r.data() for k, r in results.items()}
    fallbacks = sum(torch.webgpu.fallback_counts().values()) - before
    return data | {
        "seconds": round(time.perf_counter() - start, 2), "limit": limit, "fallbacks": fallbacks,
        "adapter": torch.webgpu.get_device_name(),
    }  # fmt: skip
