"""Strides of results: `python -m tests.pytorch.databases.formats [OPERATIONS]`.

The samples of PyTorch's operator database, with their tensors laid out in memory in other orders than row-major, on
"webgpu" and on the CPU: results must have the strides that PyTorch's CPU gives them. Says which operations do not.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.conformance.check import OutOfTime, samples, time_limit
from tests.pytorch.databases.check import leaves, moved
from webtorch.errors import DTypeError

SECONDS = 60
LIMIT = 8


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first dim lies innermost."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its second dim innermost, where PyTorch has a name for that."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def cut(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with gaps, its last two dims swapped."""
    wide = x.new_zeros((*x.shape[:-2], x.shape[-1], 2 * x.shape[-2]))
    wide[..., ::2] = x.transpose(-1, -2)
    return wide[..., ::2].transpose(-1, -2)


FORMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (turned, channels_last, cut)


def laid(sample: SampleInput, form: Callable[[torch.Tensor], torch.Tensor]) -> SampleInput:
    """Return a sample whose tensors of two dims or more lie in another order."""

    def lay(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.dim() < 2:
            return x
        return form(x.detach())

    return sample.transform(lay)


def is_moot(shape: Sequence[int], mine: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether strides differ only where they have no meaning: dims of one element, and empty tensors."""
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, mine, theirs, strict=True))


def differences(op: OpInfo, dtype: torch.dtype = torch.float32, limit: int = LIMIT) -> Counter[str]:
    """Return how often the strides agree ("same"), and what differs."""
    found: Counter[str] = Counter()
    for sample in samples(op, dtype, False, limit):
        for form in FORMS:
            try:
                given = laid(sample, form)
                right = leaves(op.op(given.input, *given.args, **given.kwargs))
            except Exception:
                continue
            try:
                with time_limit(SECONDS):
                    there = moved(given, "webgpu", op.name == "tensor_split")
                    mine = leaves(op.op(there.input, *there.args, **there.kwargs))
            except DTypeError:
                # float64.
                continue
            except (Exception, OutOfTime) as error:
                found[f"{type(error).__name__}: {str(error)[:80]}"] += 1
                continue
            for i, (m, r) in enumerate(zip(mine, right, strict=True)):
                if m.shape != r.shape or m.stride() == r.stride():
                    found["same"] += 1
                    continue
                moot = is_moot(r.shape, m.stride(), r.stride())
                kind = "moot" if moot else "differs"
                shown = [tuple(t.stride()) for t in leaves([given.input, given.args])][:3]
                found[
                    f"{kind}: result {i} of shape {tuple(r.shape)}: {m.stride()} for {r.stride()} "
                    f"({form.__name__} {shown})"
                ] += 1
    return found


def main(names: Sequence[str]) -> int:
    """Print, by operator, how many results have other strides, and one of them."""
    from tests.pytorch.databases import report

    totals: Counter[str] = Counter()
    for title, op in report.operations().items():
        if names and not any(op.name == n[1:] if n.startswith("=") else n in title for n in names):
            continue
        if not report.takes(op, "float32"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = differences(op)
        for what, count in found.items():
            totals[what.partition(":")[0]] += count
        wrong = {k: v for k, v in found.items() if not k.startswith(("same", "moot"))}
        if wrong or (names and found):
            shown = wrong or {k: v for k, v in found.items() if k.startswith("moot")}
            first = next(iter(shown), "")
            sys.stdout.write(f"{title}: {sum(wrong.values())} of {sum(found.values())}; {first}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{dict(totals)}\n")
    return 0


if __name__ == "__main__":
    import webtorch.pytorch  # noqa: F401  (where PyTorch's autoloading is off)

    raise SystemExit(main(sys.argv[1:]))
