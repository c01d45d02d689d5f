"""Operations of the table with PyTorch's results, as programs for the test page. Needs PyTorch when used.

An entry is called on PyTorch's own test inputs (the OpInfo database that PyTorch ships), or on the samples of
the entry, or on those listed here. Our results stay pending, and what would compute them is
exported instead; PyTorch's, from float64 inputs, are what the page must get.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from webtorch import autograd
from webtorch.errors import DTypeError, WebtorchError
from webtorch.ops.record import TABLE, Elementwise, Example, Op, Operand
from webtorch.web.export import export_pending
from webtorch.web.exported import Exported

# The public names, nn.functional's among them.
webtorch: Any = sys.modules["webtorch"]
# Relative and absolute error that a result may have, by its type; the absolute one grows with the largest
# result, up to a thousandfold. Gradients may have four times as much: they are several operations.
TOLERANCE = {"float32": (4e-6, 2e-6), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 8e-3)}
DERIVED = 4
# More elements than this make no better test.
LARGEST = 20_000
# What a page does not have: types beyond 32 bits, and what only the CPU computes.
_ABSENT = (DTypeError, OverflowError)
_HOST_ONLY = "only the CPU computes"
_T = "Tensor."


class RecordingError(WebtorchError):
    """PyTorch, which says what the results are, cannot be used."""


@dataclass(slots=True)
class Expected:
    """What one result must be."""

    shape: tuple[int, ...]
    dtype: str
    # Little-endian float32, int32 or bytes (bool); None: any values of this shape and type.
    data: bytes | None
    rtol: float
    atol: float


@dataclass(slots=True)
class Case:
    """One call of one entry, or its gradients; `error` says why it could not be recorded: a failure."""

    entry: str
    kind: str
    call: str
    exported: Exported | None = None
    expected: list[Expected] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True)
class Left:
    """An entry, or a call of it, that no page can test, and why."""

    entry: str
    why: str


@cache
def _torch() -> Any:
    try:
        import expecttest  # noqa: F401
        import torch
    except ImportError as error:
        raise RecordingError(
            f"recording needs PyTorch's test database ({error}): pip install torch==2.13.0 expecttest"
        ) from error
    return torch


@cache
def _database() -> dict[str, list[Any]]:
    """Return PyTorch's records with test inputs, by name."""
    _torch()
    with warnings.catch_warnings():
        # It warns of optional packages when it is imported.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, list[object]] = {}
    for info in op_db:
        for name in (info.name, *(alias.name for alias in info.aliases)):
            found.setdefault(name.removeprefix(_T), []).append(info)
    return found


def entries() -> list[Op]:
    """Return the public entries of the table that PyTorch has, in the table's order."""
    return [op for op in TABLE.values() if op.function_in and op.torch]


def _named(root: object, name: str) -> object:
    """Return what is called `name`; an attribute of tensors as a function of one."""
    for part in name.split("."):
        root = getattr(root, part, None)
    if root is None or callable(root):
        return root
    attribute = name.rpartition(".")[2]
    return lambda x: getattr(x, attribute)


# --- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sample:
    """A call: every tensor among these is PyTorch's."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    # What of its results is to agree: an eigenvector's sign is not.
    compared: Callable[[Any], Any] = field(default=lambda result: result)

    def map(self, change: Callable[[Any], object]) -> Sample:
        """Return the call with other tensors (and types, and devices)."""
        return replace(
            self,
            args=tuple(_map(a, change) for a in self.args),
            kwargs=_map(self.kwargs, change),
        )

    def tensors(self) -> list[Any]:
        """Return the tensors, in order."""
        return leaves([list(self.args), self.kwargs])

    def shown(self) -> str:
        """Return the call as text."""
        parts = [_shown(a) for a in self.args]
        parts += [f"{k}={_shown(v)}" for k, v in self.kwargs.items() if k != "device"]
        return ", ".join(parts)


def _map(item: object, change: Callable[[Any], object]) -> Any:
    if isinstance(item, dict):
        return {k: _map(v, change) for k, v in item.items()}
    if (
        isinstance(item, (list, tuple))
        and not isinstance(item, Operand)
        and not hasattr(item, "_fields")
    ):
        made = [_map(v, change) for v in item]
        return made if isinstance(item, list) else tuple(made)
    if isinstance(item, slice):
        return slice(*(_map(v, change) for v in (item.start, item.stop, item.step)))
    return change(item)


def _shown(item: object) -> str:
    if hasattr(item, "shape") and hasattr(item, "dtype"):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    if isinstance(item, (list, tuple)):
        inside = ", ".join(_shown(v) for v in item)
        return f"[{inside}]" if isinstance(item, list) else f"({inside})"
    return str(item) if "torch." in repr(item) else repr(item)


def leaves(item: object) -> list[Any]:
    """Return the tensors, ours or PyTorch's, of an argument or a result, in order."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in leaves(part)]
    return [item] if hasattr(item, "shape") and hasattr(item, "requires_grad") else []


def samples(op: Op, dtype: str, most: int) -> list[Sample]:
    """Return at most `most` calls of an entry with inputs of a type, the same ones each time."""
    torch = _torch()
    kind = getattr(torch, dtype)
    found: list[Sample] = []
    name = op.torch.removeprefix(_T)
    for info in () if op.example is not None else _database().get(name, ()):
        if kind not in info.dtypes:
            continue
        torch.manual_seed(0)
        random.seed(0)
        # Warnings are about the forms that PyTorch would rather not see tested any more.
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            given = list(info.sample_inputs("cpu", kind, requires_grad=False))
            found += [
                Sample((s.input, *s.args), dict(s.kwargs), s.output_process_fn_grad) for s in given
            ]
    found = [s for s in found if _fits(s)]
    if not found and dtype == "float32":
        found = _listed(op) or _own(op)
    return _spread(found, most)


def _fits(sample: Sample) -> bool:
    torch = _torch()
    return all(
        isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_quantized
        and t.dtype not in (torch.float64, torch.complex128, torch.complex32) and t.numel() <= LARGEST
        for t in sample.tensors()
    )  # fmt: skip


def _spread(items: list[Sample], most: int) -> list[Sample]:
    if len(items) <= most:
        return items
    # Tensors without elements prove little.
    full = [s for s in items if all(t.numel() for t in s.tensors())]
    items = full if len(full) >= most else items
    return [items[i * len(items) // most] for i in range(most)]


def _listed(op: Op) -> list[Sample]:
    """Return the call of an entry that has one."""
    call = op.example
    if not isinstance(call, Example):
        return []
    torch = _torch()
    generator = torch.Generator().manual_seed(len(op.name))

    def made(item: object) -> Any:
        """Return the tensor that a word or a shape stands for; other values as they are."""
        if isinstance(item, Operand):
            return tensor(item)
        if item == "b":
            return torch.rand((3, 5), generator=generator) < 0.5
        if item == "c6":
            return torch.randn(6, generator=generator, dtype=torch.complex64)
        if isinstance(item, str) and item[0] == "i" and item[1:].isdigit():
            return torch.randint(0, int(item[1:]), (9,), generator=generator)
        return item

    def tensor(shape: Any) -> Any:
        """Return random numbers of a shape, positive ones if it holds "+"."""
        if isinstance(shape, str):
            return made(shape)
        values = torch.randn([n for n in shape if n != "+"], generator=generator)
        return values.abs() if "+" in shape else values

    inputs = [tensor(shape) for shape in call.inputs]
    return [Sample((*inputs, *_map(call.args, made)), dict(call.kwargs))]


def _own(op: Op) -> list[Sample]:
    """Return the calls that an elementwise entry itself names, on inputs from its domain."""
    if not isinstance(op, Elementwise):
        return []
    torch = _torch()
    generator = torch.Generator().manual_seed(3)
    low, high = op.domain
    tensors = [torch.rand((6, 10), generator=generator) * (high - low) + low for _ in op.tensors]
    return [Sample((*tensors, *args), dict(kwargs)) for args, kwargs in op.samples]


# --- both sides -------------------------------------------------------------------------------------------------------


def _theirs(item: object, wide: bool) -> object:
    torch = _torch()
    if isinstance(item, torch.Tensor):
        new = item.detach().clone()
        return (
            new.double()
            if wide and new.is_floating_point()
            else new.cdouble()
            if wide and new.is_complex()
            else new
        )
    if wide and item is torch.float32:
        return torch.float64
    return item


def _ours(item: object, device: str) -> object:
    torch = _torch()
    if isinstance(item, torch.Tensor):
        return to_ours(item, device)
    if isinstance(item, torch.dtype):
        return getattr(webtorch, str(item).removeprefix("torch."))
    if isinstance(item, torch.device) or item == "cpu":
        return webtorch.device(device)
    if isinstance(item, (torch.memory_format, torch.layout)):
        return getattr(webtorch, str(item).removeprefix("torch."))
    return item


def to_ours(theirs: Any, device: str) -> Any:
    """Return PyTorch's tensor as ours, with the same strides."""
    torch = _torch()
    plain = theirs.detach().resolve_conj().resolve_neg()
    dtype = getattr(webtorch, str(plain.dtype).removeprefix("torch."))
    if not plain.numel():
        return webtorch.empty(tuple(plain.shape), dtype=dtype, device=device)
    shape, strides = tuple(plain.shape), tuple(plain.stride())
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    memory = plain.as_strided((extent,), (1,), plain.storage_offset()).contiguous()
    flat = webtorch.frombuffer(memory.view(torch.uint8).numpy().tobytes(), dtype=dtype).to(device)
    return flat.reshape(shape) if plain.is_contiguous() else flat.as_strided(shape, strides)


def _real(t: Any, view: Callable[[Any], Any]) -> Any:
    """Return a complex tensor as pairs of real numbers."""
    t = t.detach() if hasattr(t, "detach") else t
    if t.dtype.is_complex:
        t = view(t.resolve_conj())
    return t.resolve_neg() if hasattr(t, "resolve_neg") else t


def _expected(exact: Any, wide: object, values: bool, rtol: float | None, factor: int) -> Expected:
    torch = _torch()
    exact = _real(exact, torch.view_as_real)
    dtype = str(exact.dtype).removeprefix("torch.")
    if dtype == "float64":
        raise DTypeError("a page does not have float64")
    shape = tuple(exact.shape)
    if not exact.is_floating_point():
        stored = exact if exact.dtype is torch.bool else exact.to(torch.int32)
        if not torch.equal(stored.to(exact.dtype), exact):
            raise OverflowError("integers beyond 32 bits, which a page does not have")
        return Expected(shape, dtype, _bytes(stored) if values else None, 0.0, 0.0)
    relative, absolute = TOLERANCE[dtype]
    true = exact if wide is None else _real(wide, torch.view_as_real)
    if true.shape != exact.shape or not true.is_floating_point():
        true = exact
    # What a type does not hold is infinite.
    true = torch.where(true.to(exact.dtype).isinf(), true * math.inf, true.double())
    finite = true[true.isfinite()].abs()
    scale = min(1000.0, max(1.0, float(finite.max()))) if finite.numel() else 1.0
    # Where PyTorch's own float32 is off by more, so may we be.
    slack = (exact.double() - true).abs().nan_to_num(0.0, 0.0, 0.0)
    most = float(slack.max()) if slack.numel() and math.isfinite(float(slack.max())) else 0.0
    relative = max(relative, (rtol or 0.0) if dtype == "float32" else 0.0) * factor
    data = _bytes(true.float()) if values else None
    return Expected(shape, dtype, data, relative, absolute * scale * factor + 2 * most)


def _bytes(t: Any) -> bytes:
    data: bytes = t.numpy().tobytes()
    return data


# --- recording --------------------------------------------------------------------------------------------------------


def record(
    op: Op, device: str, dtypes: Sequence[str] = ("float32",), most: int = 4
) -> Iterator[Case | Left]:
    """Record an entry: calls with inputs of each type, the gradients of those with float32.

    `device` is where our operations are recorded ("webgpu", so that what an entry does there is tested);
    nothing of what the page computes is computed there.
    """
    why = op.example if isinstance(op.example, str) else None
    theirs, ours = _named(_torch(), op.torch), _named(webtorch, op.torch)
    if why is None and (theirs is None or ours is None):
        why = "has no function of its own to call"
    if why is not None:
        yield Left(op.name, why)
        return
    count = 0
    problems: list[str] = []
    for dtype in dtypes:
        for sample in samples(op, dtype, most if dtype == "float32" else 1):
            for kind in ("forward", "gradient") if dtype == "float32" else ("forward",):
                if kind in op.differs or dtype in op.differs:
                    continue
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        case = _record(op, ours, theirs, sample, kind, device)
                except Exception as error:
                    if isinstance(error, _ABSENT) or _HOST_ONLY in str(error):
                        problems.append(f"{sample.shown()}: {error}")
                        continue
                    why = f"{type(error).__name__}: {error}"
                    case = Case(op.name, kind, f"{op.torch}({sample.shown()})", error=why)
                if case is not None:
                    count += 1
                    yield case
    if problems:
        yield Left(op.name, problems[0])
    elif not count:
        yield Left(op.name, "PyTorch's database has no call of it that gives a tensor")


def _record(
    op: Op, ours: Any, theirs: object, sample: Sample, kind: str, device: str
) -> Case | None:
    derived = kind == "gradient"
    # Each library draws numbers of its own.
    values = not op.drawn and not sample.kwargs.get("dropout_p")
    if derived and not values:
        return None
    exact = _reference(theirs, sample, False, derived)
    if exact is None:
        return None
    wide = _reference(theirs, sample, True, derived) if values else None
    if wide is None or len(wide) != len(exact):
        wide = [None] * len(exact)
    with webtorch.device(device):
        mine = sample.map(lambda x: _ours(x, device))
        if derived:
            given = [t for t in mine.tensors() if t.dtype.is_floating_point]
            given = [t.requires_grad_() for t in given]
        found = leaves(sample.compared(ours(*mine.args, **mine.kwargs)))
        if derived:
            outputs = [t for t in found if t.requires_grad]
            weights = [to_ours(w, device) for w in _weights(found)]
            grads = autograd.grad(outputs, given, weights, allow_unused=True)
            # No gradient is as good as zeros.
            pairs = [(m, e, w) for m, e, w in zip(grads, exact, wide, strict=True) if m is not None]
            if any(m is None and e.any() for m, e in zip(grads, exact)):
                raise RecordingError("an input has no gradient here, and one in PyTorch")
        else:
            pairs = list(zip(found, exact, wide, strict=True))
        results = [_real(m, webtorch.view_as_real) for m, _, _ in pairs]
    if not results:
        return None
    factor = DERIVED if derived else 1
    tied = op.ties and not any(t.dtype is _torch().float32 for t in sample.tensors())
    expected = [
        _expected(e, w, values and not (tied and i == len(pairs) - 1), op.rtol, factor)
        for i, (_, e, w) in enumerate(pairs)
    ]
    for i, (m, e) in enumerate(zip(results, expected, strict=True)):
        if tuple(m.shape) != e.shape or m.dtype.name != e.dtype:
            raise RecordingError(
                f"result {i} is {m.dtype.name}{list(m.shape)}, PyTorch's {e.dtype}{list(e.shape)}"
            )
    if sum(math.prod(e.shape) for e in expected) > LARGEST:
        return None
    return Case(op.name, kind, f"{op.torch}({sample.shown()})", export_pending(results), expected)


def _weights(results: list[Any]) -> list[Any]:
    """Return a cotangent for each result with a gradient, the same ones each time.

    They are rounded, so that float32 has them exactly, and go by place: a result may have none in one library.
    """
    torch = _torch()
    out = []
    for i, x in enumerate(results):
        if not x.requires_grad:
            continue
        generator = torch.Generator().manual_seed(7 + i)
        real = (torch.rand(tuple(x.shape), generator=generator) * 64).round() / 64 + 0.5
        out.append(
            torch.complex(real, real.flip(0) if real.ndim else real) if x.dtype.is_complex else real
        )
    return out


def _reference(theirs: Any, sample: Sample, wide: bool, derived: bool) -> list[Any] | None:
    """Return PyTorch's results, or gradients; None where it has none."""
    torch = _torch()
    call = sample.map(lambda x: _theirs(x, wide))
    given = [t for t in call.tensors() if t.is_floating_point()] if derived else []
    for t in given:
        t.requires_grad_()
    if derived and not given:
        return None
    try:
        torch.manual_seed(0)
        results = leaves(sample.compared(theirs(*call.args, **call.kwargs)))
        if not derived:
            plain = all(
                t.layout is torch.strided and t.dtype is not torch.complex32 for t in results
            )
            return results if plain and results else None
        outputs = [t for t in results if t.requires_grad]
        if not outputs:
            return None
        weights = [w.to(t.dtype) for w, t in zip(_weights(results), outputs, strict=True)]
        grads = torch.autograd.grad(outputs, given, weights, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(grads, given, strict=True)]
    except Exception:
        return None


def version() -> str:
    """Return the version of PyTorch whose results are recorded."""
    return str(_torch().__version__)
