"""16-bit floats: a result has the same digits whether it was in memory before it is read or is computed
together with what reads it, and every operation rounds once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.ops import table
from webtorch.ir.dtype import DType, bfloat16, float16
from webtorch.ops.record import Op

OPS = [o for o in table.tested() if {float16, bfloat16} & set(o.dtypes)]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _results(op: Op, dtype: DType, device: str) -> list[tuple[str, Any]]:
    out = []
    for args, kwargs in op.samples:
        _, ours = table.inputs(op, "contiguous", dtype, device)
        try:
            found = table.function(op)(*ours, *args, **kwargs)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue  # The table's own test looks at errors.
        for result in table.flat(found):
            if result.dtype in (float16, bfloat16):
                out.append((f"{op.name}{args}{kwargs} {dtype.name}", result))
    return out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_read_changes_nothing(op: Op, dtype: DType, device: str) -> None:
    if dtype not in op.dtypes:
        return
    for note, result in _results(op, dtype, device):
        # The digits that bfloat16 and float16 do not have show in float32.
        before = (result.float() * 3).tolist()
        result.tolist()
        after = (result.float() * 3).tolist()
        assert torch.equal(
            torch.tensor(before).nan_to_num(7.5), torch.tensor(after).nan_to_num(7.5)
        ), note


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_chains_round_after_each_operation(name: str, device: str) -> None:
    torch.manual_seed(0)
    theirs = [torch.randn(64, 16).to(getattr(torch, name)) for _ in range(3)]
    ours = [
        webtorch.tensor(t.tolist(), dtype=getattr(webtorch, name), device=device) for t in theirs
    ]

    def chain(x: Any, y: Any, z: Any) -> Any:
        h = x * y + z
        h = (h - y) * 0.5 + h * h
        return h[:, ::2].maximum(z[:, 1::2]) / 3

    expected = chain(*theirs).float().tolist()
    assert chain(*ours).float().tolist() == expected
    assert webtorch.compile(chain)(*ours).float().tolist() == expected


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("product", ["linear", "addmm", "conv2d", "conv3d", "baddbmm"])
def test_a_product_with_a_bias_rounds_once(name: str, product: str, device: str) -> None:
    torch.manual_seed(1)
    dtype = getattr(torch, name)
    f = "nn.functional"
    path, shapes, kwargs = {
        "linear": (f, [(2, 5, 33), (7, 33), (7,)], {}),
        "addmm": ("", [(7,), (5, 33), (33, 7)], {"beta": 0.3, "alpha": 0.7}),
        "baddbmm": ("", [(2, 5, 7), (2, 5, 9), (2, 9, 7)], {"beta": 0.3, "alpha": 0.7}),
        "conv2d": (f, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], {"padding": 1}),
        "conv3d": (f, [(2, 2, 4, 4, 4), (3, 2, 3, 3, 3), (3,)], {"padding": 1}),
    }[product]
    theirs = [torch.randn(s).to(dtype) for s in shapes]
    ours = [
        webtorch.tensor(t.tolist(), dtype=getattr(webtorch, name), device=device) for t in theirs
    ]

    def call(t: Any, args: list[Any]) -> Any:
        for part in [*path.split("."), product]:
            t = getattr(t, part) if part else t
        return t(*args, **kwargs)

    got = torch.tensor(call(webtorch, ours).tolist(), dtype=torch.float64)
    exact = call(torch, [t.double() for t in theirs])
    once = exact.to(dtype).double()
    # Half a step of the type, and what float32's sums leave of it where they lie between two steps.
    wrong = got != once
    assert wrong.sum() <= 0.02 * wrong.numel()
    assert ((got - exact).abs() <= (once - exact).abs() * 1.01 + 1e-5).all()


def test_gradients_of_a_biased_product_have_the_types_of_its_operands(device: str) -> None:
    x, w, b = (
        webtorch.ones(s, dtype=bfloat16, device=device, requires_grad=True)
        for s in ((4, 6), (3, 6), (3,))
    )
    y = webtorch.nn.functional.linear(x, w, b)
    first = webtorch.autograd.grad((y * y).sum(), [x, w, b], create_graph=True)
    assert [g.dtype for g in first] == [bfloat16] * 3
    second = webtorch.autograd.grad(sum(g.float().sum() for g in first), [x, w, b])
    assert [g.dtype for g in second] == [bfloat16] * 3
    assert second[2].tolist() == [2.0 * 24 + 2.0 * 24 + 2.0 * 4] * 3
