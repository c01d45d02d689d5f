"""Names of gradient functions: where an entry is one function in PyTorch, it shows PyTorch's name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import webtorch
from webtorch.cli.testpage import recording
from webtorch.ops.record import Elementwise, gradient_title

# What PyTorch's name depends on more than the entry's does.
DIFFERENT = {
    "instance_norm": "PyTorch's database ends it with a view or a copy",
    "scaled_dot_product_attention": "PyTorch's name is that of the kernel it chose",
    "batch_norm": "PyTorch's database ends it with a copy",
    "rms_norm": "PyTorch's fused form is that of accelerators",
    "split": "a list of sizes is another function of PyTorch's",
    "matmul": "PyTorch folds batches into rows by the sizes",
    "linear": "as matmul",
    "sort": "PyTorch's name tells stable sorts apart",
    "split_with_sizes": "PyTorch's database calls it as a function that splits safely",
}
# PyTorch squeezes the dimension that it added, for one example or one dim.
SQUEEZED = ("conv", "max_pool", "avg_pool", "adaptive")


def _stated() -> list[Any]:
    found = []
    for op in recording.entries():
        own = gradient_title(op.name) if isinstance(op, Elementwise) else ""
        # An elementwise entry that states none has the one that is made of its own.
        if (
            op.gradient_name not in ("", own)
            and op.differentiable
            and not op.drawn
            and op.name not in DIFFERENT
        ):
            found.append(op)
    return found


def _title(results: list[Any], name: Any) -> str | None:
    for t in results:
        if t.requires_grad:
            return str(name(t.grad_fn))
    return None


@pytest.mark.one_in(8)
@pytest.mark.parametrize("op", _stated(), ids=lambda op: op.name)
def test_gradient_functions_have_pytorchs_names(op: Any) -> None:
    theirs, ours = recording._named(torch, op.torch), recording._named(webtorch, op.torch)
    sample = next(iter(recording.samples(op, "float32", 1)), None)
    if theirs is None or ours is None or sample is None:
        pytest.skip("PyTorch's database has no call of it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = sample.map(lambda x: recording._theirs(x, False))
        for t in [t for t in call.tensors() if t.is_floating_point()][:1]:
            t.requires_grad_()
        results = recording.leaves(theirs(*call.args, **call.kwargs))
        wanted = _title(results, lambda f: type(f).__name__)
        mine = sample.map(lambda x: recording._ours(x, "cpu"))
        for t in [t for t in mine.tensors() if t.dtype.is_floating_point][:1]:
            t.requires_grad_()
        found = _title(recording.leaves(ours(*mine.args, **mine.kwargs)), lambda f: f.name())
    if wanted is None or found is None:
        pytest.skip("nothing of it has a gradient")
    if wanted.startswith("Squeeze") and op.name.startswith(SQUEEZED):
        return
    assert found == wanted
