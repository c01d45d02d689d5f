"""One operation of PyTorch's test database on one device and dtype: what agrees and what does not.

A result agrees if its dtype and shape are PyTorch's and every element is as close to PyTorch's
result, or to PyTorch's result in float64, as `torch.testing.assert_close` asks by default (or the
database for this operation).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
import sys
import time
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import webtorch
from tests.conformance import bridge
from webtorch.errors import DTypeError

# Results are random numbers or uninitialised memory: only shape and dtype are compared.
_RANDOM = """
    bernoulli multinomial normal cauchy exponential geometric log_normal uniform rand_like randn_like
    randint_like randn randint rand empty empty_like empty_strided empty_permuted new_empty new_empty_strided
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
    nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward
    pca_lowrank svd_lowrank nn.functional.scaled_dot_product_attention"""
RANDOM = frozenset(_RANDOM.split())
# Relative and absolute tolerance, as torch.testing has them.
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
# Sums of products: in 16 bits each is compared relative to the largest of the result, as roundings of
# the terms are of their size.
_PRODUCTS = """
    addbmm addmm addmv addr baddbmm bmm nn.functional.linear nn.functional.bilinear einsum matmul mm mv
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.embedding_bag
    nn.functional.scaled_dot_product_attention"""
PRODUCTS = frozenset(_PRODUCTS.split())
# Results that say where equal elements are: any of them will do, unless a stable order is asked for.
TIES = frozenset(["topk", "kthvalue", "mode", "sort", "argsort", "median", "nanmedian"])
# Eigenvectors and singular vectors: with `out=`, only shapes are compared.
_FREE_SIGNS = frozenset(["linalg.eigh", "linalg.svd", "svd", "linalg.eig"])
# Their statistics, the results after the first, are float32 for 16-bit inputs, as on CUDA; PyTorch's CPU rounds them.
_WIDE_STATISTICS = """
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update"""
WIDE_STATISTICS = frozenset(_WIDE_STATISTICS.split())
SECONDS = 60
# Samples of the forms of an operation (method, in place, out=), which share its code.
FEW = 6


def _running_test() -> Callable[..., object] | None:
    """Return the function of the `unittest` case that runs, which PyTorch's database asks for with each sample.

    Its own way, `inspect.stack`, looks for the source of every frame: it took more time than the samples.
    """
    frame = sys._getframe()
    while frame is not None:
        case = frame.f_locals.get("self")
        if isinstance(case, unittest.TestCase):
            name = case.id().rpartition(".")[2]
            if name.startswith("test"):
                found: Callable[..., object] = getattr(case, name).__func__
                return found
        frame = frame.f_back
    return None


common_utils.extract_test_fn = core.extract_test_fn = _running_test
_WIDER = {torch.float32: torch.float64, torch.bool: torch.uint8}
REFUSABLE = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
    torch.bool,
)  # fmt: skip


class Result:
    """Counts of one kind of check, and what the first failures were."""

    def __init__(self) -> None:
        self.passed = self.failed = self.missing = 0
        self.notes: list[str] = []

    def fail(self, note: str) -> None:
        """Count a failure; the first few are told."""
        self.failed += 1
        if len(self.notes) < 6:
            self.notes.append(note[:600])

    def data(self) -> dict[str, Any]:
        """Return what is kept."""
        return {k: v for k, v in vars(self).items() if v}


class OutOfTime(Exception):
    """A sample took too long."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise OutOfTime in the main thread after `seconds`."""

    def stop(*_: Any) -> None:
        raise OutOfTime(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def host_kernels() -> Iterator[None]:
    """Let WebGPU tensors go to the CPU for what only the CPU computes."""
    before = webtorch.webgpu.allow_host_kernels()
    try:
        yield
    finally:
        webtorch.webgpu.allow_host_kernels(before)


def spread(items: Sequence[Any], limit: int) -> list[Any]:
    """Return at most `limit` of the items, evenly spread; all of them for 0."""
    if not limit or len(items) <= limit:
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def samples(op: OpInfo, dtype: torch.dtype, gradient: bool, limit: int) -> list[SampleInput]:
    """Return the database's inputs, the same ones at every call: none where it asks integers for gradients."""
    torch.manual_seed(0)
    try:
        return spread(list(op.sample_inputs("cpu", dtype, requires_grad=gradient)), limit)
    except ValueError as error:
        if "requires_grad=True" in str(error):
            return []
        raise


def _leaves(item: Any) -> list[Any]:
    """Return the tensors in an argument or a result, in order."""
    if isinstance(item, (torch.Tensor, webtorch.Tensor)):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in _leaves(part)]
    return []


def _scalars(item: Any) -> list[Any]:
    """Return what is no tensor in a result."""
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in _scalars(part)]
    return [] if isinstance(item, (torch.Tensor, webtorch.Tensor)) else [item]


def _wide(sample: SampleInput) -> SampleInput:
    """Return the sample with floating-point inputs in float64, with the memory around views."""

    def widen(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not _differentiable(t):
            return t
        wider = torch.complex128 if t.is_complex() else torch.float64
        if t.layout is not torch.strided or t.is_conj() or t.is_neg():
            return t.detach().to(wider).requires_grad_(t.requires_grad)
        flat = torch.empty(0, dtype=t.dtype).set_(t.detach().untyped_storage()).to(wider, copy=True)
        new = flat.as_strided(t.shape, t.stride(), t.storage_offset())
        return new.requires_grad_(t.requires_grad)

    return sample.transform(widen)


def _call(fn: Callable[..., Any], sample: SampleInput) -> Any:
    return fn(sample.input, *sample.args, **sample.kwargs)


def _carried(sample: SampleInput, device: str) -> SampleInput:
    memory: bridge.Memory = {}
    return SampleInput(
        bridge.value(sample.input, device, memory),
        args=tuple(bridge.value(a, device, memory) for a in sample.args),
        kwargs=bridge.value(sample.kwargs, device, memory),
    )


def _tolerance(op: OpInfo, dtype: torch.dtype) -> tuple[float, float]:
    rtol, atol = TOLERANCE.get(dtype, (0.0, 0.0))
    for info in (*op.decorators, *op.skips):
        for decorator in getattr(info, "decorators", (info,)):
            table = getattr(decorator, "d", None)
            if isinstance(table, dict) and dtype in table:
                wider = table[dtype]
                each = (wider, wider) if isinstance(wider, float) else (wider.rtol, wider.atol)
                rtol, atol = max(rtol, each[0]), max(atol, each[1])
    return rtol, atol


def difference(
    ours: torch.Tensor, exact: torch.Tensor, wide: torch.Tensor | None, rtol: float, atol: float
) -> str | None:
    """Return where `ours` is close neither to `exact` nor to `wide`; None if nowhere."""
    if ours.dtype.is_complex:
        given = [ours, exact, *([wide] if wide is not None and wide.is_complex() else [])]
        whole = [t.detach().resolve_conj().to(torch.complex128) for t in given]
        parts = [torch.view_as_real(t) for t in whole]
        true = parts[2] if len(parts) > 2 else None
        found = difference(parts[0], parts[1], true, rtol, atol)
        # A complex number is close if the distance is small beside its size, as in assert_close.
        if found and all(bool(t.isfinite().all()) for t in whole):
            slack = 2 * (whole[1] - whole[2]).abs() if true is not None else 0.0
            near = (whole[0] - whole[1]).abs() <= atol + rtol * whole[1].abs() + slack
            return None if bool(near.all()) else found
        return found
    if not ours.dtype.is_floating_point:
        bad = ours != exact
        if not bad.any():
            return None
        at = tuple(int(i) for i in bad.nonzero()[0]) if bad.ndim else ()
        return f"{int(bad.sum())} of {bad.numel()} differ; at {at}: {ours[at]} for {exact[at]}"
    mine, theirs = ours.double(), exact.double()
    good = torch.isclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
    if wide is not None and wide.shape == exact.shape and not good.all():
        # What the type cannot hold is infinite in it.
        rounded = wide.to(exact.dtype).double()
        true = torch.where(rounded.isinf(), rounded, wide.double())
        slack = 2 * (theirs - true).abs().nan_to_num(0.0, 0.0, 0.0)
        good |= torch.isclose(mine, true, rtol=rtol, atol=atol, equal_nan=True)
        # An infinite distance is within no error, though it is not more than one that is infinite too.
        good |= true.isfinite() & ((mine - true).abs() <= atol + rtol * true.abs() + slack)
    if good.all():
        return None
    at = tuple(int(i) for i in (~good).nonzero()[0]) if good.ndim else ()
    return f"{int((~good).sum())} of {good.numel()} differ; at {at}: {mine[at].item()} for {theirs[at].item()}"


def _pointed_at(op: OpInfo, sample: SampleInput | None, where: torch.Tensor) -> torch.Tensor:
    """Return the elements that a result says the places of, where equal elements make the places free."""
    if (
        sample is None or op.name not in TIES or where.dtype != torch.int64 or not sample.input.ndim
        or sample.kwargs.get("stable") or not (where.ndim or sample.args or sample.kwargs)
    ):  # fmt: skip
        return where
    x, at = sample.input.detach(), 1 if op.name in ("topk", "kthvalue") else 0
    dim = sample.kwargs.get("dim", sample.args[at] if len(sample.args) > at else -1)
    keep = where.ndim == x.ndim
    found = torch.take_along_dim(x, where if keep else where.unsqueeze(dim), dim)
    return found if keep else found.squeeze(dim)


def compare(
    op: OpInfo, ours: Any, exact: Any, wide: Any, values: bool, sample: SampleInput | None = None
) -> str | None:
    """Return how a result of ours differs from PyTorch's; None if it does not."""
    mine, theirs, true = _leaves(ours), _leaves(exact), _leaves(wide)
    if len(mine) != len(theirs):
        return f"{len(mine)} tensors for {len(theirs)}"
    for i, (m, t) in enumerate(zip(mine, theirs, strict=True)):
        if (
            i
            and m.device.type != "cpu"
            and op.name in WIDE_STATISTICS
            and m.dtype == webtorch.float32
        ):
            m = m.to(bridge.dtype(t.dtype))
        if m.dtype.name != str(t.dtype).removeprefix("torch."):
            return f"result {i}: {m.dtype} for {t.dtype}"
        if tuple(m.shape) != tuple(t.shape):
            return f"result {i}: shape {tuple(m.shape)} for {tuple(t.shape)}"
        if not values:
            bridge.back(m)
            continue
        w = true[i].detach() if len(true) == len(theirs) else None
        rtol, atol = _tolerance(op, t.dtype)
        sums = op.name in PRODUCTS and t.dtype in (torch.float16, torch.bfloat16)
        if (sums or (rtol and op.name.startswith("fft."))) and t.numel():
            atol = max(atol, rtol * float(t.detach().abs().max().nan_to_num(0.0, 0.0)))
        if i == len(mine) - 1 and (i or op.name == "argsort"):
            pairs = [_pointed_at(op, sample, x) for x in (bridge.back(m), t.detach())]
        else:
            pairs = [bridge.back(m), t.detach()]
        found = difference(pairs[0], pairs[1], w, rtol, atol)
        if found:
            return f"result {i}: {found}"
    plain, expected = _scalars(ours), _scalars(exact)
    if [type(p) for p in plain] != [type(e) for e in expected] and mine:
        return None
    if not mine and any(
        p != e and not (p != p and e != e) for p, e in zip(plain, expected, strict=False)
    ):
        if str(plain) == str(expected):
            return None
        return f"{plain} for {expected}"
    return None


def _shown(sample: SampleInput, error: object) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return f"{text} <- {sample.summary()}"


def _expected(fn: Callable[..., Any], sample: SampleInput, values: bool) -> tuple[Any, Any] | None:
    """Return PyTorch's result, and its result in float64; None where PyTorch itself raises."""
    try:
        torch.manual_seed(0)
        exact = _call(fn, _copied(sample))
    except Exception:
        return None
    if not values:
        return exact, None
    try:
        return exact, _call(fn, _wide(_copied(sample)))
    except Exception:
        return exact, None


def _is_missing(error: BaseException) -> bool:
    if isinstance(error, bridge.Missing):
        return True
    text = str(error)
    return isinstance(error, AttributeError) and (
        "'Tensor' object has no attribute" in text or "PyTorch" in text
    )


def _wants_double(device: str, error: Exception) -> bool:
    """Whether a sample needs float64, which WebGPU has in part: it then neither passes nor fails."""
    return (
        device == "webgpu"
        and isinstance(error, DTypeError)
        and any(name in str(error) for name in ("float64", "complex128"))
    )


def _copied(sample: SampleInput) -> SampleInput:
    """Return the sample with its own memory, which an operation may then overwrite."""

    def copy(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
            return t
        if t.is_conj() or t.is_neg():
            return t.detach().resolve_conj().resolve_neg().clone().requires_grad_(t.requires_grad)
        flat = torch.empty(0, dtype=t.dtype).set_(t.detach().untyped_storage().clone())
        new = flat.as_strided(t.shape, t.stride(), t.storage_offset())
        return new.requires_grad_(t.requires_grad)

    return sample.transform(copy)


def forward(
    op: OpInfo,
    device: str,
    dtype: torch.dtype,
    limit: int,
    result: Result,
    theirs: Callable[..., Any] | None = None,
    find: Callable[[], Callable[..., Any]] | None = None,
    in_place: bool = False,
    gaps: bool = True,
) -> None:
    """Compare results on the database's inputs, and on a few with gaps in memory."""
    theirs = op.op if theirs is None else theirs
    values = op.name not in RANDOM
    cases = samples(op, dtype, False, limit)
    if gaps and not in_place:
        cases += [s.noncontiguous() for s in cases[:2]]
    for sample in cases:
        if in_place and sample.broadcasts_input:
            continue
        got = _expected(theirs, sample, values)
        if got is None:
            continue
        exact, wide = got
        if any(t.layout is not torch.strided for t in _leaves(exact)):
            continue
        try:
            with time_limit(SECONDS):
                ours = bridge.function(theirs) if find is None else find()
                mine = _call(ours, _carried(sample, device))
                found = compare(
                    op,
                    sample.output_process_fn_grad(mine),
                    sample.output_process_fn_grad(exact),
                    None if wide is None else sample.output_process_fn_grad(wide),
                    values,
                    sample,
                )
        except bridge.Unsupported:
            continue
        except Exception as error:
            if _wants_double(device, error):
                continue
            if _is_missing(error):
                result.missing += 1
                if len(result.notes) < 2:
                    result.notes.append(_shown(sample, error)[:600])
                continue
            result.fail(_shown(sample, error))
            continue
        if found:
            result.fail(_shown(sample, found))
        else:
            result.passed += 1


def _weight(shape: Sequence[int], number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7 + number)
    return torch.rand(tuple(shape), generator=generator, dtype=torch.float64) + 0.5


def _differentiable(t: Any) -> bool:
    return bool(t.dtype.is_floating_point or t.dtype.is_complex)


def _total(like: Any, outputs: list[Any], device: str | None, derived: bool = True) -> Any:
    """Return a fixed weighted sum of floating-point tensors (those that want a gradient), and of the
    two parts of complex ones.
    """
    total: Any = None
    for i, output in enumerate(outputs):
        if not (_differentiable(output) and (output.requires_grad or not derived)):
            continue
        x = like.view_as_real(output.resolve_conj()) if output.dtype.is_complex else output
        double = str(x.dtype) == "torch.float64"
        weight = _weight(x.shape, i).to(torch.float64 if double else torch.float32)
        w = weight if device is None else bridge.tensor(weight, str(x.device))
        term = (x * w.to(x.dtype)).sum()
        total = term if total is None else total + term
    return total


def _derivatives(
    like: Any, fn: Callable[..., Any], sample: SampleInput, post: Any, second: bool, device: Any
) -> tuple[list[Any], list[Any]] | None:
    """Return gradients of a weighted sum of the results, and of a weighted sum of those."""
    leaves = [
        t
        for t in _leaves([sample.input, list(sample.args), sample.kwargs])
        if _differentiable(t) and t.requires_grad
    ]
    total = _total(like, _leaves(post(_call(fn, sample))), device)
    if total is None or not leaves:
        return None
    first = like.autograd.grad(total, leaves, create_graph=second, allow_unused=True)
    if not second:
        return list(first), []
    total = _total(like, [g for g in first if g is not None], device)
    if total is None:
        return list(first), []
    return list(first), list(like.autograd.grad(total, leaves, allow_unused=True))


def _gradients_differ(
    ours: list[Any], theirs: list[Any], order: int, narrow: list[Any] | None = None
) -> str | None:
    """Return where gradients differ from `theirs`, PyTorch's in float64; with `narrow`, those of
    PyTorch in our type, twice their error is allowed, as of results.
    """
    for i, (m, t) in enumerate(zip(ours, theirs, strict=False)):
        if t is None or m is None:
            present = t if t is not None else None if m is None else bridge.back(m)
            if present is not None and bool((present.detach().abs() > 1e-6).any()):
                return f"gradient {i}: {'none' if m is None else 'some'} for {'none' if t is None else 'some'}"
            continue
        if tuple(m.shape) != tuple(t.shape):
            return f"gradient {i}: shape {tuple(m.shape)} for {tuple(t.shape)}"
        finite = t.detach()[t.detach().isfinite()].abs()
        scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
        loose = 10.0 ** (order - 1)
        double = m.dtype in (webtorch.float64, webtorch.complex128)
        rtol, atol = (1e-7, 1e-8) if double else (1e-4, 1e-5)
        mine, wanted = bridge.back(m), t.detach()
        if order > 1:
            # Where PyTorch's own second derivative is not a number, any number will do.
            mine = torch.where(wanted.isnan(), wanted.to(mine.dtype), mine)
        given = wanted if narrow is None or narrow[i] is None else narrow[i].detach()
        found = difference(mine, given, wanted, rtol * loose, atol * scale * loose)
        if found:
            return f"order {order}, gradient {i}: {found}"
    return None


def _leaf_values(sample: SampleInput) -> list[torch.Tensor]:
    found = _leaves([sample.input, list(sample.args), sample.kwargs])
    return [t for t in found if _differentiable(t) and t.requires_grad]


def _direction(t: torch.Tensor, number: int) -> torch.Tensor:
    if not t.is_complex():
        return _weight(t.shape, number).to(t.dtype)
    return torch.view_as_complex(_weight((*t.shape, 2), number)).to(t.dtype)


def _right_by_differences(
    fn: Callable[..., Any],
    sample: SampleInput,
    post: Any,
    ours: list[Any],
    theirs: list[Any],
    order: int,
) -> bool:
    """Whether our derivative along one direction is that of finite differences, in float64, of
    PyTorch's results (order 1) or first derivatives (order 2), and PyTorch's own is not: a few of
    its formulas have no second derivative, and that of `as_strided_scatter` is wrong.
    """
    leaves = _leaf_values(sample)
    ways = [_direction(t, 100 + i) for i, t in enumerate(leaves)]

    def slope(found: list[Any]) -> float:
        given = [bridge.back(g) if isinstance(g, webtorch.Tensor) else g for g in found]
        return sum(
            float((g.detach() * w.conj()).sum().real)
            for g, w in zip(given, ways, strict=True)
            if g is not None
        )

    def below() -> float:
        if order == 1:
            return float(_total(torch, _leaves(post(_call(fn, sample))), None))
        grads = _derivatives(torch, fn, sample, post, False, None)
        assert grads is not None
        total = _total(torch, [g for g in grads[0] if g is not None], None, derived=False)
        return float(total)

    step, ends = 1e-6, []
    for sign in (1, -1):
        for t, w in zip(leaves, ways, strict=True):
            t.data.add_(w, alpha=sign * step)
        ends.append(below())
        for t, w in zip(leaves, ways, strict=True):
            t.data.sub_(w, alpha=sign * step)
    true = (ends[0] - ends[1]) / (2 * step)
    near = 1e-3 * max(1.0, abs(true))
    return abs(slope(ours) - true) < near < abs(slope(theirs) - true)


def _as_right(
    fn: Callable[..., Any],
    sample: SampleInput,
    wide: SampleInput,
    post: Any,
    ours: tuple[list[Any], list[Any]],
    theirs: tuple[list[Any], list[Any]],
    twice: bool,
    order: int,
) -> bool:
    """Whether derivatives that are not PyTorch's in float64 are as near to those as PyTorch's own in
    our type, or are those of finite differences where PyTorch's are not.
    """
    if wide is sample:
        return False
    mine, true = ours[order - 1], theirs[order - 1]
    with contextlib.suppress(Exception):
        narrow = _derivatives(torch, fn, sample, post, twice, None)
        if narrow and not _gradients_differ(mine, true, order, narrow[order - 1]):
            return True
    return _right_by_differences(fn, wide, post, mine, true, order)


def gradients(
    op: OpInfo,
    device: str,
    dtype: torch.dtype,
    limit: int,
    first: Result,
    second: Result,
    again: bool = True,
) -> None:
    """Compare gradients, and (with `again`) second gradients where the database says that they exist."""
    if not op.supports_autograd or dtype not in op.supported_backward_dtypes("cpu"):
        return
    twice = op.supports_gradgrad and again
    for sample in samples(op, dtype, True, limit):
        post = sample.output_process_fn_grad
        expected = None
        for source in (_wide(sample), sample):
            try:
                torch.manual_seed(0)
                expected = _derivatives(torch, op.op, source, post, twice, None)
                break
            except Exception:
                continue
        if expected is None:
            continue
        order = 1
        try:
            with time_limit(SECONDS):
                ours = bridge.function(op.op)
                actual = _derivatives(webtorch, ours, _carried(sample, device), post, twice, device)
                if actual is None:
                    # No gradient and a gradient of zeros are the same thing.
                    actual = [None] * len(expected[0]), [None] * len(expected[1])
                if op.name in RANDOM:
                    first.passed += 1
                    continue
                judge = functools.partial(
                    _as_right, op.op, sample, source, post, actual, expected, twice
                )
                found = _gradients_differ(actual[0], expected[0], 1)
                if found and not judge(1):
                    first.fail(_shown(sample, found))
                    continue
                first.passed += 1
                order = 2
                if twice and expected[1]:
                    found = _gradients_differ(actual[1], expected[1], 2)
                    if found and not judge(2):
                        second.fail(_shown(sample, found))
                    else:
                        second.passed += 1
        except bridge.Unsupported:
            continue
        except Exception as error:
            if _wants_double(device, error):
                continue
            if _is_missing(error):
                first.missing += 1
            else:
                (first if order == 1 else second).fail(_shown(sample, error))


def error_inputs(op: OpInfo, device: str, limit: int, result: Result) -> None:
    """Check that what PyTorch refuses is refused with the same type of error."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for case in spread(list(op.error_inputs("cpu")), limit):
        sample = case.sample_input
        try:
            _call(op.op, sample)
            continue
        except Exception as error:
            wanted: Any = (type(error), case.error_type)
        try:
            with time_limit(SECONDS):
                ours = bridge.function(op.op)
                carried = _carried(sample, device)
                found = _call(ours, carried)
                for leaf in _leaves(found):
                    bridge.back(leaf)
        except (bridge.Unsupported, AttributeError) as error:
            if isinstance(error, AttributeError) and not issubclass(AttributeError, wanted):
                if _is_missing(error):
                    result.missing += 1
                else:
                    result.fail(_shown(sample, error))
            continue
        except bridge.Missing:
            result.missing += 1
            continue
        except Exception as error:
            if isinstance(error, wanted):
                result.passed += 1
            else:
                result.fail(f"wanted {wanted[0].__name__}; " + _shown(sample, error))
            continue
        result.fail(
            f"wanted {wanted[0].__name__}: {case.error_regex}; no error <- {sample.summary()}"
        )


def out_argument(op: OpInfo, device: str, dtype: torch.dtype, limit: int, result: Result) -> None:
    """Compare `out=`: given memory with gaps, given nothing (it is resized), and given other types."""
    if not op.supports_out:
        return

    def places(like: Any, exact: list[torch.Tensor], kind: str, carry: bool) -> Any:
        made = []
        for t in exact:
            if kind == "gaps":
                new = torch.zeros((*t.shape, 2), dtype=t.dtype)[..., 0]
            elif kind == "empty":
                new = torch.zeros(0, dtype=t.dtype)
            elif kind == "narrow":
                narrow = torch.int64 if t.dtype.is_floating_point else torch.bool
                new = torch.zeros(t.shape, dtype=narrow)
            else:
                new = torch.zeros(t.shape, dtype=_WIDER.get(t.dtype, torch.float32))
            made.append(bridge.tensor(new, device) if carry else new)
        return tuple(made) if isinstance(like, tuple) else made if len(made) > 1 else made[0]

    for sample in samples(op, dtype, False, limit):
        got = _expected(op.op, sample, op.name not in RANDOM)
        if got is None:
            continue
        like, wide = got
        exact = _leaves(like)
        if not exact or any(t.layout is not torch.strided or t.is_complex() for t in exact):
            continue
        for kind in ("gaps", "empty", "narrow", "wide"):
            if kind == "wide" and device == "webgpu":
                continue
            wanted: Any = None
            theirs = places(like, exact, kind, carry=False)
            try:
                torch.manual_seed(0)
                op.op(sample.input, *sample.args, **sample.kwargs, out=theirs)
            except TypeError:
                # This overload has no `out=`.
                continue
            except Exception as error:
                wanted = type(error)
            if wanted is None and kind != "narrow" and op.name not in RANDOM and any(
                difference(a.detach().to(b.dtype), b.detach(), None, *_tolerance(op, b.dtype))
                for a, b in zip(_leaves(theirs), exact, strict=True)
            ):  # fmt: skip
                # PyTorch itself gives something else with `out=`: with gaps, a few of its kernels do.
                continue
            try:
                with time_limit(SECONDS):
                    ours, carried = bridge.function(op.op), _carried(sample, device)
                    out = places(like, exact, kind, carry=True)
                    given = ours(carried.input, *carried.args, **carried.kwargs, out=out)
                    found = None
                    if wanted is not None:
                        found = f"wanted {wanted.__name__}, no error"
                    elif any(a is not b for a, b in zip(_leaves(given), _leaves(out), strict=True)):
                        found = "the result is not the tensor given as out"
                    else:
                        found = _stored_differently(op, out, theirs, exact, _leaves(wide))
            except bridge.Unsupported:
                continue
            except Exception as error:
                if _wants_double(device, error):
                    continue
                if wanted is not None and isinstance(error, wanted):
                    result.passed += 1
                elif _is_missing(error):
                    result.missing += 1
                else:
                    result.fail(f"out={kind}: " + _shown(sample, error))
                continue
            if found:
                result.fail(f"out={kind}: " + _shown(sample, found))
            else:
                result.passed += 1


def _stored_differently(
    op: OpInfo, out: Any, theirs: Any, exact: list[torch.Tensor], wide: list[torch.Tensor]
) -> str | None:
    """Compare what was stored; no closer than the type of the result that was cast."""
    for i, (mine, want, result) in enumerate(
        zip(_leaves(out), _leaves(theirs), exact, strict=True)
    ):
        if tuple(mine.shape) != tuple(want.shape):
            return f"shape {tuple(mine.shape)} for {tuple(want.shape)}"
        if op.name in RANDOM or op.name in TIES or op.name in _FREE_SIGNS:
            continue
        rtol, atol = _tolerance(op, result.dtype)
        true = wide[i].detach() if len(wide) == len(exact) else None
        found = difference(bridge.back(mine), want.detach(), true, rtol, atol)
        if found:
            return found
    return None


def _home(op: OpInfo) -> torch.dtype:
    """Return the type of which the checks are made that one type is enough for."""
    if torch.float32 in op.dtypes:
        return torch.float32
    return next(
        (d for d in (torch.int64, torch.float64, *op.dtypes) if d in op.dtypes), torch.float32
    )


def refusals(op: OpInfo, device: str, result: Result, limit: int = 2) -> None:
    """Check that types which PyTorch refuses are refused with the same type of error."""
    home = _home(op)
    for dtype in REFUSABLE:
        if dtype in op.dtypes or (device == "webgpu" and dtype is torch.float64):
            continue
        for sample in samples(op, home, False, limit):

            def cast(t: Any, to: torch.dtype = dtype) -> Any:
                return t.to(to) if isinstance(t, torch.Tensor) and t.dtype == home else t

            try:
                changed = sample.transform(cast)
                if all(t.dtype != dtype for t in _leaves([changed.input, list(changed.args)])):
                    continue
                _call(op.op, _copied(changed))
                continue
            except Exception as error:
                wanted: Any = type(error)
            if wanted in (AssertionError, AttributeError):
                continue
            try:
                with time_limit(SECONDS):
                    ours = bridge.function(op.op)
                    for leaf in _leaves(_call(ours, _carried(changed, device))):
                        bridge.back(leaf)
            except bridge.Unsupported:
                continue
            except bridge.Missing:
                result.missing += 1
                continue
            except Exception as error:
                if isinstance(error, wanted):
                    result.passed += 1
                elif not _wants_double(device, error):
                    result.fail(f"{dtype}: wanted {wanted.__name__}; " + _shown(changed, error))
                continue
            if dtype not in (torch.float16, torch.bfloat16):
                # 16-bit floats are welcome wherever floats are: PyTorch has fewer kernels for them.
                result.fail(f"{dtype}: wanted {wanted.__name__}, no error <- {changed.summary()}")


def _named(variant: Any) -> Callable[[], Callable[..., Any]]:
    name = variant.__name__

    def find() -> Callable[..., Any]:
        found = getattr(webtorch.Tensor, name, None)
        if found is None:
            raise bridge.Missing(f"Tensor.{name}")
        return found  # type: ignore[no-any-return]

    return find


def _variants(op: OpInfo) -> Iterator[tuple[str, Any, Callable[[], Any], bool]]:
    """Yield the other forms of an operation: kind, PyTorch's, how ours is found, and whether it
    overwrites its input.
    """
    for kind, variant in (("method", op.method_variant), ("inplace", op.inplace_variant)):
        name = getattr(variant, "__name__", None)
        if isinstance(name, str) and hasattr(torch.Tensor, name):
            yield kind, variant, _named(variant), kind == "inplace"
    for overwrites, variant in ((False, op.operator_variant), (True, op.inplace_operator_variant)):
        if variant is not None:
            yield "operator", variant, lambda v=variant: v, overwrites
    for alias in op.aliases:
        for overwrites, variant in (
            (False, alias.op), (False, alias.method_variant), (True, alias.inplace_variant),
        ):  # fmt: skip
            if variant is not None:
                yield "alias", variant, lambda v=variant: bridge.function(v), overwrites


def check(op: OpInfo, device: str, dtype: torch.dtype, limit: int = 0) -> dict[str, Any]:
    """Return the results of all checks of one operation."""
    start = time.perf_counter()
    # What an earlier operation left behind is not computed among this one's results.
    gc.collect()
    results: dict[str, Result] = {"forward": Result()}
    with warnings.catch_warnings(), host_kernels():
        warnings.simplefilter("ignore")
        forward(op, device, dtype, limit, results["forward"])
        if dtype in (torch.float32, torch.float64, torch.complex64):
            first, second = Result(), Result()
            gradients(op, device, dtype, limit, first, second, device == "cpu" or limit != 1)
            results |= {"gradient": first, "second gradient": second}
        # A software adapter compiles each kernel for long: with one sample, results and gradients are all.
        if dtype is _home(op) and not (device == "webgpu" and limit == 1):
            few = min(limit, FEW) or FEW
            for kind, theirs, find, overwrites in _variants(op):
                counted = results.setdefault(kind, Result())
                forward(op, device, dtype, few, counted, theirs, find, overwrites)
            for kind in ("out", "error", "refused"):
                results[kind] = Result()
            out_argument(op, device, dtype, few, results["out"])
            error_inputs(op, device, limit, results["error"])
            refusals(op, device, results["refused"])
    data: dict[str, Any] = {k: r.data() for k, r in results.items()}
    return data | {"seconds": round(time.perf_counter() - start, 2), "limit": limit}
