"""Types of `out=`: what is cast, what is refused, and with which error, as PyTorch has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from operator import setitem
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

Call = Callable[[Any, Any, Any], Any]
VALUES = [[0.5, -1.25, 2.0], [3.0, 0.75, -0.5], [1.5, 2.5, -3.0]]

CALLS: dict[str, Call] = {
    "cumsum": lambda m, x, out: m.cumsum(x, 1, out=out),
    "cumsum of a type": lambda m, x, out: m.cumsum(x, 1, dtype=m.float32, out=out),
    "sum of a type": lambda m, x, out: m.sum(x, 1, dtype=m.float32, out=out),
    "mean of a type": lambda m, x, out: m.mean(x, 1, dtype=m.float32, out=out),
    "nansum": lambda m, x, out: m.nansum(x, 1, out=out),
    "nanmean": lambda m, x, out: m.nanmean(x, 1, out=out),
    "diff of no order": lambda m, x, out: m.diff(x, n=0, out=out),
    "diff": lambda m, x, out: m.diff(x, n=1, out=out),
    "lerp by a number": lambda m, x, out: m.lerp(x, x, 0.5, out=out),
    "lerp by a tensor": lambda m, x, out: m.lerp(x, x, x, out=out),
    "inner": lambda m, x, out: m.inner(x, x, out=out),
    "inner with a number": lambda m, x, out: m.inner(x[0, 0], x, out=out),
}
# Of random numbers, only the type and the shape are those of PyTorch.
DRAWN: dict[str, Call] = {
    "normal": lambda m, x, out: m.normal(x, x.abs(), out=out),
    "normal of one std": lambda m, x, out: m.normal(x, 1.0, out=out),
    "normal of numbers": lambda m, x, out: m.normal(1.0, 0.5, (3, 3), out=out),
    "normal of a type": lambda m, x, out: m.normal(1.0, 0.5, (3, 3), dtype=m.float32, out=out),
}


def _result(call: Call, module: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    out = module.zeros(shape, dtype=getattr(module, dtype))
    try:
        return call(module, module.tensor(VALUES), out)
    except (RuntimeError, NotImplementedError) as error:
        return type(error)


@pytest.mark.parametrize("shape", [(0,), (3, 3)], ids=["empty", "full"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("name", [*CALLS, *DRAWN])
def test_types_are_cast_or_refused_as_pytorch_does(
    name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    call = (CALLS | DRAWN)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _result(call, torch, dtype, shape)
        found = _result(call, webtorch, dtype, shape)
    if isinstance(wanted, type):
        assert isinstance(found, type), f"no error: {found}"
        assert issubclass(found, wanted)
        return
    assert not isinstance(found, type), found
    assert (found.shape, found.dtype.name) == (tuple(wanted.shape), dtype)
    if name in CALLS:
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


KINDS: dict[str, Call] = {
    "fft": lambda m, x, out: m.fft.fft(x, out=out),
    "ifft": lambda m, x, out: m.fft.ifft(x, out=out),
    "rfft": lambda m, x, out: m.fft.rfft(x, 4, out=out),
    "ihfft": lambda m, x, out: m.fft.ihfft(x, 4, out=out),
    "fft2": lambda m, x, out: m.fft.fft2(x, out=out),
    "ifftn": lambda m, x, out: m.fft.ifftn(x, out=out),
    "rfft2": lambda m, x, out: m.fft.rfft2(x, out=out),
    "ihfft2": lambda m, x, out: m.fft.ihfft2(x, out=out),
    "irfft": lambda m, x, out: m.fft.irfft(m.fft.rfft(x, 4), 4, out=out),
    "hfft": lambda m, x, out: m.fft.hfft(m.fft.ihfft(x, 4), 4, out=out),
    "irfft2": lambda m, x, out: m.fft.irfft2(m.fft.rfft2(x), out=out),
    **{
        f"power {n}": lambda m, x, out, n=n: m.matrix_power(x, n, out=out)  # type: ignore[misc]
        for n in (0, 1, 2, -1)
    },
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_numbers_are_kept_as_pytorch_does(name: str, dtype: str) -> None:
    wanted = _result(KINDS[name], torch, dtype, (0,))
    found = _result(KINDS[name], webtorch, dtype, (0,))
    if isinstance(wanted, type):
        assert isinstance(found, type), f"no error: {found}"
        return
    assert not isinstance(found, type), found
    assert (found.shape, found.dtype.name) == (tuple(wanted.shape), dtype)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


OVERLAPPING: dict[str, Callable[[Any, Any], Any]] = {
    "one after the other": lambda m, x: m.exp(x[:9], out=x[1:]),
    "two operands": lambda m, x: m.add(x[:9], 1, out=x[1:]),
    "the second": lambda m, x: m.mul(x[1:9], x[:8], out=x[1:9]),
    "numbers": lambda m, x: m.clamp(x[:9], 0, 1, out=x[1:]),
    "three operands": lambda m, x: m.lerp(x[:9], x[1:], 0.5, out=x[:9]),
    "the same": lambda m, x: m.exp(x, out=x),
    "the same view": lambda m, x: m.add(x[2:5], x[2:5], out=x[2:5]),
    "gaps": lambda m, x: m.exp(x[::2], out=x[1::2]),
    "parts of rows": lambda m, x: m.exp(x[:8].view(2, 4)[:, :2], out=x[:8].view(2, 4)[:, 2:]),
    "turned": lambda m, x: m.exp(x[:8].view(2, 4).t(), out=x[:8].view(4, 2)),
    "apart": lambda m, x: m.exp(x[:5], out=x[5:]),
    "a list": lambda m, x: m.cat([x[:3], x[6:8]], out=x[4:9]),
    "several results": lambda m, x: m.topk(x[:3], 2, out=(x[:2], m.zeros(2, dtype=m.int64))),
    # What is written to positions, in place.
    "put": lambda m, x: x.index_put_((m.tensor([0, 1]),), x[:2]),
    "put apart": lambda m, x: x[5:].index_put_((m.tensor([0, 1]),), x[:2]),
    "put and add": lambda m, x: x.index_put_((m.tensor([0, 1]),), x[:2], accumulate=True),
    "put itself": lambda m, x: x.index_put_((m.arange(10),), x),
    "put with gaps": lambda m, x: x.index_put_((m.tensor([0, 1]),), x[1:5:2]),
    "put one where a mask is true": lambda m, x: x.index_put_((x > 3,), x[2:3]),
    "put nothing": lambda m, x: x.index_put_((m.arange(0),), x[4:4]),
    "put copies": lambda m, x: m.index_put(x, (m.tensor([0, 1]),), x[:2]),
    "assign": lambda m, x: setitem(x, [0, 1, 2], x[3:6]),
    "assign one": lambda m, x: setitem(x, m.tensor([0, 1]), x[7]),
    "assign a row": lambda m, x: setitem(x.view(2, 5), [0], x[5:]),
    "assign with gaps": lambda m, x: setitem(x, [0, 1, 2], x[1:7:2]),
    "assign gaps to themselves": lambda m, x: setitem(x[::5], [0, 1], x[::5]),
    "assign to a view apart": lambda m, x: setitem(x[:4], [0, 1], x[5:7]),
    "assign to a slice apart": lambda m, x: setitem(x.view(2, 5), (1, [0, 1]), x[2:4]),
    "assign where a mask is true": lambda m, x: setitem(x, x > 7, x[:2]),
    "assign one where a mask is true": lambda m, x: setitem(x, x > 7, x[0]),
    "scatter with gaps": lambda m, x: x.scatter_(0, m.tensor([0, 1, 2]), x[1:7:2]),
    "scatter_reduce": lambda m, x: x.scatter_reduce_(0, m.tensor([0, 1]), x[:2], "amax"),
    "index_reduce": lambda m, x: x.index_reduce_(0, m.tensor([0, 1]), x[:2], "amax"),
    "index_copy": lambda m, x: x.index_copy_(0, m.tensor([0, 1]), x[8:]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_memory_that_is_read_elsewhere_is_refused_as_pytorch_does(name: str) -> None:
    def result(module: Any) -> Any:
        x = module.arange(10.0)
        try:
            OVERLAPPING[name](module, x)
        except RuntimeError as error:
            return str(error)
        return x.numpy()

    wanted, found = result(torch), result(webtorch)
    if isinstance(wanted, str):
        assert found == wanted
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:torch.lu is deprecated")
def test_lu_cuts_its_factors_off_where_out_is_of_integers() -> None:
    x = webtorch.tensor(VALUES)
    kept = webtorch.zeros(3, 3, dtype=webtorch.int64), webtorch.zeros(3, dtype=webtorch.int32)
    found = webtorch.lu(x, out=kept)
    assert found[0] is kept[0] and found[1] is kept[1]
    assert found[0].tolist() == webtorch.lu(x)[0].long().tolist()


@pytest.mark.parametrize("form", ["operator", "function", "alpha", "method"])
def test_subtractions_with_bools_say_what_to_use(form: str) -> None:
    compute = {
        "operator": lambda x, y: x - y,
        "function": lambda x, y: webtorch.sub(x, y),
        "alpha": lambda x, y: webtorch.sub(x, y, alpha=2),
        "method": lambda x, y: x.sub(y),
    }[form]
    mask, number = webtorch.tensor([True, False]), webtorch.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="with two bool tensors"):
        compute(mask, mask)
    for x, y in ((mask, number), (number, mask), (mask, 1), (number, True)):
        with pytest.raises(RuntimeError, match="with a bool tensor"):
            compute(x, y)


@pytest.mark.parametrize("upper", [False, True])
def test_gradient_of_a_complex_cholesky_is_pytorch_s(upper: bool) -> None:
    generator = np.random.default_rng(3)
    a = generator.normal(size=(4, 4)) + 1j * generator.normal(size=(4, 4))
    a = a @ a.conj().T + 2 * np.eye(4)
    weight = generator.normal(size=(4, 4, 2))

    def gradient(module: Any) -> Any:
        x = module.from_numpy(a).requires_grad_()
        factor = module.view_as_real(module.linalg.cholesky(x, upper=upper).resolve_conj())
        (factor * module.from_numpy(weight)).sum().backward()
        return x.grad.numpy()

    np.testing.assert_allclose(gradient(webtorch), gradient(torch), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dims", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_an_empty_out_gets_the_memory_order_of_the_result(dims: tuple[int, ...]) -> None:
    def strides(m: Any) -> list[tuple[int, ...]]:
        x = m.ones(2, 3, 4).permute(dims)
        calls = (
            lambda o: m.add(x, x, out=o),
            lambda o: m.neg(x, out=o),
            lambda o: m.eq(x, x, out=o),
        )
        found = []
        for call in calls:
            out = m.empty(0)
            call(out)
            out.mul_(2)
            found.append((*out.shape, *out.stride(), out.sum().item()))
        return found

    assert strides(webtorch) == strides(torch)
