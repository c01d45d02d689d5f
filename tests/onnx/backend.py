"""onnx's own tests of nodes, run with webtorch: `python -m tests.onnx.backend` counts them.

Each case is a model of one node (or of the function that the node stands for), inputs and outputs.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

import webtorch
from webtorch.errors import DTypeError

# Random numbers are others than those of the reference.
RANDOM = ("bernoulli", "training_dropout")


def cases(only: Collection[str] = ()) -> list[Any]:
    """Return the cases of the installed onnx package: all, or those of some operations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        # A module makes its cases when it is imported, and all of them take seconds.
        for name in only:
            importlib.import_module(f"{node.__name__}.{name.lower()}")
        found = node._NodeTestCases if only else node.collect_testcases(None)
        return [c for c in found if not any(w in c.name for w in RANDOM)]


def outcome(case: Any) -> tuple[str, str]:
    """Return "pass", "refused", "dtype" or "fail" with a reason."""
    try:
        module = webtorch.onnx.load(case.model, device="cpu")
        for inputs, outputs in case.data_sets:
            _compare(case, module, inputs, outputs)
    except NotImplementedError as error:
        # Also UnsupportedOperator, when the file is loaded.
        return "refused", str(error)
    except DTypeError as error:
        return "dtype", str(error)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {error}"
    return "pass", ""


def _compare(case: Any, module: Any, inputs: Any, outputs: Any) -> None:
    tensors = [module._context.tensor(np.asarray(x)) for x in inputs]
    found = module(*tensors)
    for got, want in zip(found if isinstance(found, tuple) else (found,), outputs, strict=False):
        wanted = np.asarray(want)
        narrow = wanted.dtype.itemsize < 4
        given = (got.float() if got.dtype is webtorch.bfloat16 else got).detach().numpy()
        if wanted.dtype.name == "bfloat16":
            wanted = wanted.astype(np.float32)
        assert given.shape == wanted.shape, f"shape {given.shape}, {wanted.shape} is wanted"
        assert given.dtype == wanted.dtype, f"type {given.dtype}, {wanted.dtype} is wanted"
        # Sixteen bits differ in the last one where sums are made in another order.
        rtol = max(case.rtol or 1e-3, 2e-2 if narrow else 0)
        np.testing.assert_allclose(given, wanted, rtol=rtol, atol=case.atol or 1e-5)


def table(found: Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of the report."""
    totals: Counter[str] = Counter()
    for (result, _), count in found.items():
        totals[result] += count
    yield f"{sum(totals.values())} cases: " + ", ".join(f"{n} {r}" for r, n in totals.most_common())
    for (result, what), count in found.most_common():
        if result != "pass":
            yield f"  {result}: {what} ({count})"


def main() -> int:
    found: Counter[tuple[str, str]] = Counter()
    for case in cases():
        result, reason = outcome(case)
        what = ""
        if result == "refused":
            what = reason.split(" is ", 1)[-1].split(" (opset", 1)[0]
        elif result != "pass":
            what = (
                f"{case.name}: {reason.splitlines()[0][:120]}"
                if result == "fail"
                else "element types"
            )
        found[result, what] += 1
    for line in table(found):
        print(line)  # noqa: T201
    return int(any(result == "fail" for result, _ in found))


if __name__ == "__main__":
    sys.exit(main())
