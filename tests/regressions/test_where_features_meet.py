"""Faults that random programs found where two features meet (`tests/meet`), each with PyTorch's own result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.ops import table
from webtorch.ir.dtype import bool_, float32, int64
from webtorch.ops.record import Op


def _shared(results: list[Any], inputs: list[Any], memory: Callable[[Any], Any]) -> list[Any]:
    """Of each result, the number of the input that it shares memory with."""
    return [
        next((k for k, x in enumerate(inputs) if r is x or memory(r) == memory(x)), None)
        for r in results
        if r.numel()
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", table.tested(), ids=lambda op: op.name)
def test_results_share_memory_where_pytorchs_do(op: Op) -> None:
    """The sum of a 0-d tensor, say, is not that tensor: a write to one is no write to the other."""
    for dtype in (float32, int64, bool_):
        for layout in table.LAYOUTS:
            theirs, ours = (table.shown(x, layout) for x in table.inputs(op, layout, dtype, "cpu"))
            for args, kwargs in op.samples:
                try:
                    expected = table.flat(table.oracle(op)(*theirs, *args, **kwargs))
                    got = table.flat(table.function(op)(*ours, *args, **kwargs))
                except (RuntimeError, IndexError, ValueError, TypeError):
                    continue  # The table's own test looks at errors.
                assert _shared(got, ours, lambda t: id(t._storage)) == _shared(
                    expected, theirs, lambda t: t.untyped_storage().data_ptr()
                ), f"{op.name}{args}{kwargs} {dtype.name} {layout}"


def _both(story: Callable[[Any, Callable[..., Any]], Any], device: str) -> None:
    def ours(values: Any, **kwargs: Any) -> Any:
        return webtorch.tensor(values, device=device, **kwargs)

    with warnings.catch_warnings():
        # A function that runs as usual says so.
        warnings.simplefilter("ignore")
        assert story(webtorch, ours) == story(torch, torch.tensor)


def _compiled(t: Any, function: Callable[..., Any]) -> Any:
    return webtorch.compile(function) if t is webtorch else function


def test_hooks_on_arguments_of_a_compiled_function(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def hooked(x: Any, y: Any) -> Any:
            x.register_hook(lambda g: g * 2)
            return (x * y).sum(), x

        call, out = _compiled(t, hooked), []
        for _ in range(3):
            x = tensor([1.0, 2.0], requires_grad=True)
            loss, same = call(x, tensor([3.0, 4.0]))
            (loss + same.sum()).backward()
            out.append((x.grad.tolist(), same is x))
        return out

    _both(story, device)


def test_hooks_on_what_a_transform_differentiates(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def hooked(x: Any) -> Any:
            x.register_hook(lambda g: g * 2)
            return (x * x).sum()

        x = tensor([1.0, 2.0])
        value, back = t.func.vjp(hooked, x)
        return t.func.grad(hooked)(x).tolist(), back(t.ones_like(value))[0].tolist()

    _both(story, device)


def test_a_checkpoint_keeps_what_is_written_in_place_inside(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def part(x: Any) -> Any:
            first = x.max(0).values
            other = -1 - first
            product = first.detach().clone()
            product.mul_(other)
            other.clamp_(-1, 1)
            return product

        x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = (
            t.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
            if t is webtorch
            else part(x)
        )
        y.sum().backward()
        return x.grad.tolist()

    _both(story, device)


def test_writes_through_detached_tensors_in_forward_mode(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def halved(x: Any) -> Any:
            x = x * 1
            bare = x.detach()
            bare.mul_(0.5)
            y = x.clone()
            y[::2].mul_(2)
            x.add_(1)
            return y, x * bare

        def replaced(x: Any) -> Any:
            y = x * 2
            part = y.narrow(0, 0, 1)
            t.add(x.detach(), 1, out=y.detach())
            return part, y * y

        given = tensor([1.0, 2.0, 3.0]), tensor([1.0, 1.0, 0.5])
        out = []
        for function in (halved, replaced):
            for part in t.func.jvp(function, given[:1], given[1:]):
                out.append([r.tolist() for r in part])
        return out

    _both(story, device)
