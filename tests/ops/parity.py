"""Runs one function in webtorch and in PyTorch and compares values, layout, first and second gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import webtorch
from tests import long
from webtorch.functions.bind import NAMESPACES
from webtorch.tensors.creation import from_bytes

# What a test function gets as its first argument: the tensor functions, `nn.functional` and `linalg` of one library.
WEBTORCH = SimpleNamespace(
    t=SimpleNamespace(**NAMESPACES["torch"]),
    F=SimpleNamespace(**NAMESPACES["nn.functional"]),
    linalg=SimpleNamespace(**NAMESPACES["linalg"]),
)
TORCH = SimpleNamespace(t=torch, F=torch.nn.functional, linalg=torch.linalg)
# float64 leaves rounding far below any real mistake; float32 is what WebGPU has.
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}


def tensor(x: torch.Tensor, device: str) -> Any:
    """Return the same tensor in webtorch: same values, same strides where it is not contiguous."""
    dtype = getattr(webtorch, str(x.dtype).removeprefix("torch."))
    data = x.detach()
    order = sorted(range(x.ndim), key=lambda d: -x.stride(d))
    packed = data.permute(order).contiguous()
    out = from_bytes(packed.numpy().tobytes(), tuple(packed.shape), dtype, device)
    return (
        out.permute([order.index(d) for d in range(x.ndim)])
        if order != list(range(x.ndim))
        else out
    )


def array(x: Any) -> np.ndarray:
    """Return the values of a tensor of either library."""
    return x.detach().cpu().numpy()


def assert_equal(mine: Any, theirs: Any, tolerance: float, what: str = "result") -> None:
    """Compare shape, dtype, contiguity and values."""
    assert tuple(mine.shape) == tuple(theirs.shape), what
    assert str(mine.dtype).removeprefix("torch.") == str(theirs.dtype).removeprefix("torch."), what
    scale = (
        max(1.0, float(theirs.detach().abs().nan_to_num(0, 0, 0).max()))
        if theirs.numel() and theirs.dtype.is_floating_point
        else 1.0
    )
    np.testing.assert_allclose(
        array(mine), array(theirs), rtol=tolerance, atol=tolerance * scale, err_msg=what
    )


def compare(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    device: str,
    *,
    gradients: bool = True,
    second: bool = True,
    tolerance: float | None = None,
    layout: bool = True,
) -> None:
    """Assert that `function(library, *inputs)` does the same in both libraries, with gradients to second order.

    Second derivatives are the same operations on every device: WebGPU has them where long tests run. (The table's are
    always compared, `test_gradients_to_second_order`.)
    """
    second = second and (device == "cpu" or long.runs())
    working = torch.float64 if device == "cpu" else torch.float32
    theirs = [x.detach().to(working) if x.dtype.is_floating_point else x for x in inputs]
    mine = [tensor(x, device) for x in theirs]
    limit = tolerance or TOLERANCE["float64" if working is torch.float64 else "float32"]
    if gradients:
        theirs = [x.requires_grad_() if x.dtype.is_floating_point else x for x in theirs]
        mine = [x.requires_grad_() if x.dtype.is_floating_point else x for x in mine]
    expected, actual = function(TORCH, *theirs), function(WEBTORCH, *mine)
    many = isinstance(expected, (tuple, list))
    outs_t = list(expected) if many else [expected]
    outs_w = list(actual) if many else [actual]
    assert len(outs_t) == len(outs_w)
    for a, b in zip(outs_w, outs_t, strict=True):
        assert_equal(a, b, limit)
        if layout:
            assert a.is_contiguous() == b.is_contiguous(), "contiguity"
    if not gradients:
        return
    leaves_t = [x for x in theirs if x.requires_grad]
    leaves_w = [x for x in mine if x.requires_grad]
    pairs = [(a, b) for a, b in zip(outs_w, outs_t, strict=True) if b.dtype.is_floating_point]
    generator = torch.Generator().manual_seed(7)

    def random(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)

    # A smooth function of the outputs, so that the second derivative is not zero for linear operations.
    weights = [random(b) for _, b in pairs]
    loss_t = sum(
        (b * b * c).sum() + (b * c).sum() for (_, b), c in zip(pairs, weights, strict=True)
    )
    loss_w = sum(
        (a * a * tensor(c, device)).sum() + (a * tensor(c, device)).sum()
        for (a, _), c in zip(pairs, weights, strict=True)
    )
    grads_t = torch.autograd.grad(loss_t, leaves_t, create_graph=second)
    grads_w = gradient(loss_w, leaves_w, create_graph=second)
    for i, (a, b) in enumerate(zip(grads_w, grads_t, strict=True)):
        assert_equal(a, b, limit * 4, f"gradient {i}")
    if not second:
        return
    directions = [random(b) for b in grads_t]
    inner_t = sum((b * v).sum() for b, v in zip(grads_t, directions, strict=True))
    inner_w = sum((a * tensor(v, device)).sum() for a, v in zip(grads_w, directions, strict=True))
    if not inner_t.requires_grad:
        return
    second_t = torch.autograd.grad(inner_t, leaves_t, allow_unused=True)
    second_w = gradient(inner_w, leaves_w, allow_unused=True)
    for i, (a, b) in enumerate(zip(second_w, second_t, strict=True)):
        if b is None:
            assert a is None or not np.any(array(a)), f"second gradient {i}"
        elif a is None:
            assert not np.any(array(b)), f"second gradient {i}"
        else:
            assert_equal(a, b, limit * 16, f"second gradient {i}")


def gradient(
    output: Any, inputs: Sequence[Any], create_graph: bool = False, allow_unused: bool = False
) -> Any:
    """Return webtorch's gradients of a scalar."""
    from webtorch.tensors import engine

    return engine.grad(output, inputs, create_graph=create_graph, allow_unused=allow_unused)


def same_error(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], device: str, text: str
) -> None:
    """Assert that both libraries refuse, with related types, and that webtorch's message has `text`."""
    theirs = mine = None
    try:
        function(TORCH, *inputs)
    except Exception as error:
        theirs = error
    try:
        function(WEBTORCH, *[tensor(x, device) for x in inputs])
    except Exception as error:
        mine = error
    assert theirs is not None, "PyTorch accepts this"
    assert mine is not None, "webtorch accepts this"
    assert isinstance(mine, type(theirs)), (
        f"{type(mine).__name__} is not a {type(theirs).__name__}: {mine}"
    )
    assert text in str(mine), str(mine)
