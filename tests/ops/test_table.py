"""Every entry of the op table, against PyTorch: values, types, shapes, gradients and second
gradients.

One test covers all layouts of an entry at once: the results are recorded together and computed as
one program, as user code does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests import long
from tests.ops import table
from webtorch.ir.dtype import ALL, DType, uint16, uint64
from webtorch.ops.record import Op
from webtorch.runtime.backend import FEW
from webtorch.tensors.device import resolve

OPS = table.tested()
# PyTorch warns of the degenerate inputs that the layouts include; so do we, and neither is the
# subject here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _cases(op: Op, dtype: DType, device: str) -> list[tuple[str, Any, Any]]:
    """Return (what, ours, expected) for every layout and sample; ours is not computed yet."""
    out = []
    ours_fn, theirs_fn = table.function(op), table.oracle(op)
    for layout in table.LAYOUTS:
        theirs, ours = table.inputs(op, layout, dtype, device)
        for args, kwargs in op.samples:
            note = f"{op.name}{args}{kwargs} {dtype.name} {layout}"
            try:
                exact = theirs_fn(*table.shown(theirs, layout), *args, **kwargs)
            except (RuntimeError, IndexError, ValueError) as error:
                # The same type of error, or one that derives from it.
                with pytest.raises(type(error)):
                    ours_fn(*table.shown(ours, layout), *args, **kwargs)
                continue
            wide = [t.double() if t.is_floating_point() else t for t in table.shown(theirs, layout)]
            expected = theirs_fn(*wide, *args, **kwargs)
            if device == "webgpu" and any(r.dtype is torch.float64 for r in table.flat(exact)):
                # Computed there from the bits of few numbers, which has tests of its own.
                continue
            result = ours_fn(*table.shown(ours, layout), *args, **kwargs)
            for mine, typed, value in zip(
                table.flat(result), table.flat(exact), table.flat(expected), strict=True
            ):
                assert mine.dtype.name == str(typed.dtype).removeprefix("torch."), (
                    f"{note}: {mine.dtype}, expected {typed.dtype}"
                )
                out.append((note, mine, value))
    return out


@pytest.mark.covers("Q1")
@pytest.mark.each("op", "device")
# Of the unsigned types that PyTorch hardly has one will do; tests/engine/test_unsigned.py has them all.
@pytest.mark.parametrize(
    "dtype", [d for d in ALL if d not in (uint16, uint64)], ids=lambda d: d.name
)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_values(op: Op, dtype: DType, device: str) -> None:
    if device == "webgpu" and not dtype.webgpu:
        with pytest.raises(webtorch.errors.DTypeError):
            webtorch.zeros(2 * FEW, dtype=dtype, device=device)
        return
    if not _oracle_takes(op, dtype):
        return
    cases = _cases(op, dtype, device)
    for note, mine, expected in cases:
        table.compare(op, mine, expected, note, _tolerance_dtype(dtype, mine))


def _tolerance_dtype(dtype: DType, mine: Any) -> DType:
    """Integers give float32 results in some ops: the tolerance is the result's."""
    return mine.dtype if mine.dtype.kind == "float" else dtype


def _oracle_takes(op: Op, dtype: DType) -> bool:
    """Whether PyTorch has the op for this type (uint32 hardly at all); where it has not, there is
    nothing to compare with.
    """
    if dtype not in op.dtypes:
        return False
    theirs, _ = table.inputs(op, "contiguous", dtype, "cpu")
    try:
        args, kwargs = op.samples[0]
        table.oracle(op)(*theirs, *args, **kwargs)
    except (RuntimeError, TypeError):
        return False
    return True


def _gradients(
    torch_like: Any,
    fn: Any,
    tensors: list[Any],
    shown: list[Any],
    args: Any,
    kwargs: Any,
    weight: Any,
    second: bool,
) -> list[Any]:
    result = table.flat(fn(*shown, *args, **kwargs))[0]
    total = (result * weight(result)).sum()
    first = torch_like.autograd.grad(total, tensors, create_graph=second, allow_unused=True)
    if not second:
        return list(first)
    sums = [(g * weight(g)).sum() for g in first if g is not None and g.requires_grad]
    if not sums:
        return [*first]
    total = sums[0]
    for s in sums[1:]:
        total = total + s
    return [*first, *torch_like.autograd.grad(total, tensors, allow_unused=True)]


def _weights(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.5


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "op", [op for op in OPS if webtorch.float32 in op.dtypes], ids=lambda op: op.name
)
def test_gradients_to_second_order(op: Op, device: str) -> None:
    """Gradients of a random inner product of the result, and of one of the gradients, equal
    PyTorch's in float64.
    """
    # The software adapter takes longer to compile than anything else: two layouts have all that differs in texts.
    few = device == "webgpu" and not long.runs()
    for layout in ("transposed", "mixed", *(() if few else ("contiguous", "sliced"))):
        for args, kwargs in op.samples:
            theirs, ours = table.inputs(op, layout, webtorch.float32, device, requires_grad=True)
            try:
                result = table.flat(
                    table.oracle(op)(*table.shown(theirs, layout), *args, **kwargs)
                )[0]
            except (RuntimeError, ValueError):
                continue  # not an input that the op takes; test_values compares the errors
            if device == "webgpu" and op.name == "float_power":
                continue  # gives float64, which raises: test_values
            if not result.requires_grad:
                mine = table.flat(table.function(op)(*table.shown(ours, layout), *args, **kwargs))[
                    0
                ]
                assert not mine.requires_grad, f"{op.name}: PyTorch gives no gradient"
                continue
            try:
                expected = _gradients(
                    torch,
                    table.oracle(op),
                    theirs,
                    table.shown(theirs, layout),
                    args,
                    kwargs,
                    lambda r: _weights(tuple(r.shape)),
                    True,
                )
            except RuntimeError as error:
                if "is not implemented" not in str(error):
                    raise
                continue  # PyTorch has no derivative to compare with
            actual = _gradients(
                webtorch, table.function(op), ours, table.shown(ours, layout), args, kwargs,
                lambda r: webtorch.tensor(_weights(tuple(r.shape)).tolist(), device=device), True,
            )  # fmt: skip
            note = f"{op.name}{args}{kwargs} {layout} gradient"
            count = len(theirs)
            for i in range(max(len(expected), len(actual))):
                want = expected[i] if i < len(expected) else None
                got = actual[i] if i < len(actual) else None
                order = 1 if i < count else 2
                if want is None or got is None:
                    # No gradient and a gradient of zeros are the same thing.
                    present = (
                        want if want is not None else None if got is None else table.as_double(got)
                    )
                    assert present is None or not present.any(), (
                        f"{note} {i}: {got} instead of {want}"
                    )
                    continue
                scale = max(1.0, float(want.abs().max()))
                torch.testing.assert_close(
                    table.as_double(got),
                    want.detach(),
                    rtol=2e-5 * 5**order,
                    atol=4e-6 * scale * 5**order,
                    msg=lambda m, i=i, note=note: f"{note} {i}: {m}",
                )


@pytest.mark.parametrize(
    "op", [op for op in OPS if op.inplace and "Tensor" in op.function_in], ids=lambda op: op.name
)
def test_inplace_form_writes_through_views(op: Op) -> None:
    """x.op_() on a transposed view changes the base as PyTorch does, and returns x."""
    args, kwargs = op.samples[0]
    theirs, ours = table.inputs(op, "contiguous", webtorch.float32, "cpu")
    name = f"{op.name}_"
    if not hasattr(torch.Tensor, name):
        return
    view_t, view_o = theirs[0].t(), ours[0].t()
    rest_t, rest_o = [t.t() for t in theirs[1:]], [t.t() for t in ours[1:]]
    try:
        getattr(view_t, name)(*rest_t, *args, **kwargs)
    except RuntimeError:
        return
    assert getattr(view_o, name)(*rest_o, *args, **kwargs) is view_o
    table.compare(op, ours[0], theirs[0].double(), name, webtorch.float32)
    assert ours[0]._version == 1


@pytest.mark.covers("N13")
def test_more_than_65535_workgroups(device: str) -> None:
    """One kernel over more points than one dimension of a dispatch can hold."""
    count = 65_536 * 256 + 77
    if resolve(device).backend.limits.max_binding_bytes < 4 * count:
        pytest.skip("is computed in parts")
    x = webtorch.arange(count, device=device, dtype=webtorch.int32)
    y = (x % 1000) * 2 + 1
    assert int(y[-1].item()) == ((count - 1) % 1000) * 2 + 1
    assert int(y[65_535 * 256 + 300].item()) == ((65_535 * 256 + 300) % 1000) * 2 + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, x: x.add(3, 2),
        lambda lib, x: lib.add(x, 3, x),
        lambda lib, x: x.add_(-0.5, x * 2),
        lambda lib, x: x.sub(2, x),
        lambda lib, x: lib.addcmul(x, 3, x, x + 1),
        lambda lib, x: x.addcdiv_(-2, x, x + 1),
    ],
)
def test_a_factor_before_the_operands(call: Any, device: str) -> None:
    """Optimizers written before PyTorch 1.5 call `p.add_(-lr, grad)`."""
    found = call(webtorch, webtorch.tensor([1.0, 2.0], device=device))
    assert found.tolist() == pytest.approx(call(torch, torch.tensor([1.0, 2.0])).tolist())


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32", "float64"])
@pytest.mark.parametrize("exponent", [2, 2j])
def test_float_power_writes_where_the_result_fits(dtype: str, exponent: complex) -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.ones(2, dtype=getattr(lib, dtype))
        try:
            found.append(x.float_power_(exponent).tolist())
        except RuntimeError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_a_factor_before_the_operands_is_warned_of() -> None:
    x = webtorch.ones(2)
    for call in (lambda: x.add(1, 2), lambda: webtorch.addcmul(x, 2, x, x)):
        with pytest.warns(UserWarning, match="This overload of add.* is deprecated") as caught:
            call()
        assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"overload of add_ is deprecated:\n\tadd_\("):
        x.add_(1, 2)
    for wrong in (lambda: x.add(1, 2, 3), lambda: x.add(x, 2), lambda: x.add(1, 2, alpha=3)):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, x: lib.addcmul(x, x, x, 2),
        lambda lib, x: x.addcdiv(x, x, 2),
        lambda lib, x: lib.subtract(x, 2, x),
        lambda lib, x: x.subtract_(2, x),
        lambda lib, x: lib.rsub(x, x, 2),
        lambda lib, x: lib.rsub(x, 1, 2, 3),
        lambda lib, x: lib.addcmul(x, 2, x, x, value=3),
        lambda lib, x: lib.rsub(x, 1, 2),
        lambda lib, x: lib.rsub(x, x, alpha=3),
        lambda lib, x: lib.subtract(x, x, alpha=3),
    ],
)
def test_factors_are_given_by_name_or_as_pytorch_takes_them(call: Any) -> None:
    x = torch.tensor([1.0, 2.0])
    try:
        expected = call(torch, x).tolist()
    except TypeError:
        with pytest.raises(TypeError):
            call(webtorch, webtorch.tensor([1.0, 2.0]))
    else:
        assert call(webtorch, webtorch.tensor([1.0, 2.0])).tolist() == expected
