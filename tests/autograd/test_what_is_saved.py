"""What a gradient function shows of its call, and hooks on what it saves: as PyTorch's."""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
import weakref
from functools import partial
from typing import Any

import pytest
import torch

import webtorch

BOTH = pytest.mark.parametrize("lib", [torch, webtorch], ids=["torch", "webtorch"])


def _data(lib: Any, *shape: int) -> Any:
    count = 1
    for size in shape:
        count *= size
    return lib.arange(1.0, count + 1).reshape(shape).requires_grad_()


CALLS: list[tuple[Any, tuple[str, ...]]] = [
    (lambda lib, a: a * a, ("_saved_self", "_saved_other")),
    (lambda lib, a: a.exp(), ("_saved_result",)),
    (lambda lib, a: a**2.5, ("_saved_self",)),
    (lambda lib, a: a.mean(), ("_saved_self_sym_sizes",)),
    (lambda lib, a: a.view(-1), ("_saved_self_sym_sizes",)),
    (lambda lib, a: a[:, 1:], ("_saved_self_sym_sizes",)),
    (lambda lib, a: lib.nn.functional.softplus(a, 2.0), ("_saved_self", "_saved_beta")),
    (lambda lib, a: lib.log_softmax(a, 1), ("_saved_result", "_saved_dim")),
    (lambda lib, a: lib.stack([a, a], 1), ("_saved_dim",)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_names_of_what_is_saved(number: int) -> None:
    call, names = CALLS[number]
    found = []
    for lib in (torch, webtorch):
        fn = call(lib, _data(lib, 2, 3)).grad_fn
        values = [getattr(fn, n) for n in names]
        found.append([v.tolist() if hasattr(v, "tolist") else v for v in values])
    for expected, actual in zip(*found, strict=True):
        same = pytest.approx(expected) if isinstance(expected, int | float) else expected
        if isinstance(expected, list):
            assert webtorch.tensor(actual).allclose(webtorch.tensor(expected))
        else:
            assert actual == same


@BOTH
def test_a_leaf_is_saved_as_it_is_and_freed_with_the_graph(lib: Any) -> None:
    a = _data(lib, 3)
    y = a * a
    assert y.grad_fn._saved_self is a
    assert not hasattr(y.grad_fn, "_saved_nothing")
    kept = y.grad_fn._raw_saved_other
    kept.register_hooks(lambda x: x * 2, lambda x: x)
    assert y.grad_fn._saved_other.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(RuntimeError, match="already been set"):
        kept.register_hooks(lambda x: x, lambda x: x)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        y.grad_fn._raw_saved_self.register_hooks(lambda x: x)
    # PyTorch's must not outlive what is saved.
    del kept
    y.sum().backward()
    # One of the two factors was doubled.
    assert a.grad.tolist() == [3.0, 6.0, 9.0]
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = y.grad_fn._saved_self
    with pytest.raises(RuntimeError, match="after it has been freed"):
        y.grad_fn._raw_saved_self.register_hooks(lambda x: x, lambda x: x)


@BOTH
def test_a_hook_that_writes_what_it_packs_is_refused(lib: Any) -> None:
    def add(x: Any) -> Any:
        x += 1
        return x

    a = _data(lib, 3)
    refused = pytest.raises(RuntimeError, match="modifying its input in place")
    with lib.autograd.graph.saved_tensors_hooks(add, lambda x: x), refused:
        a.exp()
    y = a.exp()
    with pytest.raises(RuntimeError, match="modifying its input in place"):
        y.grad_fn._raw_saved_result.register_hooks(add, lambda x: x)


@BOTH
def test_what_a_context_saved(lib: Any) -> None:
    class Double(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x, None)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            assert isinstance(ctx, lib.autograd.graph.Node)
            return g * 2

    y = Double.apply(_data(lib, 3))
    kept = y.grad_fn._raw_saved_tensors
    with pytest.raises(RuntimeError, match="None is forbidden"):
        kept[1].register_hooks(lambda x: x, lambda x: x)
    del kept
    y.sum().backward()
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = y.grad_fn._raw_saved_tensors


@BOTH
def test_hooks_that_a_backward_pass_leaves_on_are_off_after_it(lib: Any) -> None:
    def scope() -> Any:
        def unpack(x: Any) -> Any:
            context().__enter__()
            return x

        hooks = lib.autograd.graph.saved_tensors_hooks(lambda x: x, unpack)
        context = weakref.ref(hooks)
        x = _data(lib, 3)
        with hooks:
            x.sin().sum().backward()
        return weakref.ref(unpack)

    gc.disable()
    try:
        assert scope()() is None
    finally:
        gc.enable()


@BOTH
def test_gradient_functions_are_nodes_that_inherit_from_none(lib: Any) -> None:
    node, fn = lib.autograd.graph.Node, _data(lib, 3).exp().grad_fn
    assert isinstance(fn, node)
    assert issubclass(type(fn), node)
    assert node not in type(fn).mro()
    assert isinstance(fn.next_functions[0][0], node)
    assert not isinstance(node, node)
    assert not isinstance(1, node)


@BOTH
def test_what_comes_to_a_function_is_known(lib: Any) -> None:
    (meta,) = _data(lib, 2, 3).exp().grad_fn._input_metadata
    assert (tuple(meta.shape), meta.dtype) == ((2, 3), lib.float32)


@BOTH
def test_hooks_after_accumulation_return_nothing(lib: Any) -> None:
    a = _data(lib, 3)
    a.register_post_accumulate_grad_hook(lambda x: x.grad)
    with pytest.raises(RuntimeError, match=r"hooks should return None\."):
        a.sum().backward()
    b = _data(lib, 3)
    b.register_post_accumulate_grad_hook(lambda x: 3)
    with pytest.raises(TypeError, match="expected Variable, but hook returned 'int'"):
        b.sum().backward()


@BOTH
def test_gaps_stay_where_a_context_asks_for_it(lib: Any) -> None:
    class Twice(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            second = x.clone()
            ctx.mark_non_differentiable(second)
            ctx._materialize_non_diff_grads = False
            return x.clone(), second

        @staticmethod
        def backward(ctx: Any, g: Any, none: Any) -> Any:
            assert none is None
            return g

    a = _data(lib, 1)
    Twice.apply(a)[0].backward()
    assert a.grad.tolist() == [1.0]


@BOTH
def test_a_callback_is_called_at_the_end_of_the_pass(lib: Any) -> None:
    called: list[str] = []
    queue = lib.autograd.Variable._execution_engine.queue_callback
    a = _data(lib, 3)
    y = a * 2
    y.register_hook(lambda g: queue(lambda: called.append("end")))
    a.register_hook(lambda g: called.append("leaf"))
    y.sum().backward()
    assert called == ["leaf", "end"]
    with pytest.raises(RuntimeError, match="only be installed during backward"):
        queue(lambda: None)


@BOTH
def test_hooks_are_not_forbidden_while_they_are_on(lib: Any) -> None:
    graph = lib.autograd.graph
    with (
        graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        pytest.raises(RuntimeError, match="no hooks"),
        graph.disable_saved_tensors_hooks("no hooks"),
    ):
        pass


@BOTH
def test_data_of_what_needs_gradients_stays_a_float(lib: Any) -> None:
    a = lib.tensor(1.0, requires_grad=True)
    a.data = lib.tensor(2.0)
    with pytest.raises(RuntimeError, match="must be floating point or complex dtype"):
        a.data = lib.tensor(3)


@BOTH
def test_a_tensor_that_is_no_leaf_is_saved_as_it_is_too(lib: Any) -> None:
    a = _data(lib, 3)
    b = a * a
    c = a * b
    d = a.exp()
    assert c.grad_fn._saved_self is a
    assert c.grad_fn._saved_other is b
    assert d.grad_fn._saved_result is not d
    assert c.grad_fn._saved_other.grad_fn is b.grad_fn
    del b
    assert c.grad_fn._saved_other.tolist() == [1.0, 4.0, 9.0]


@BOTH
def test_what_a_tensor_stands_on_cannot_be_deleted(lib: Any) -> None:
    x = _data(lib, 2)
    x.note = 1
    del x.note, x.grad
    for name in ("data", "requires_grad"):
        with pytest.raises(RuntimeError):
            delattr(x, name)
    with pytest.raises(AttributeError):
        del x.note


@BOTH
def test_a_call_is_one_function_to_hooks_of_saved_tensors(lib: Any) -> None:
    seen = []

    def pack(x: Any) -> Any:
        seen.append(tuple(x.shape))
        return x

    a = _data(lib, 2, 3)
    with lib.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        var, mean = lib.var_mean(a, dim=0)
        assert var.grad_fn is mean.grad_fn
        (var + mean).sum().backward()
    assert seen == [(2, 3)]
    assert a.grad.tolist() == [[-2.5, -2.5, -2.5], [3.5, 3.5, 3.5]]


@BOTH
def test_what_a_function_saved_comes_back_as_the_same_tensor(lib: Any) -> None:
    seen = []

    class Pass(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(ctx.saved_tensors)
            return g, None

    a, b = _data(lib, 2), lib.ones(2)
    x = a * 2
    Pass.apply(x, b).sum().backward(retain_graph=True)
    assert seen[0][0] is x
    assert seen[0][1] is b
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        Pass.apply(x, b).sum().backward()
    assert seen[1][1] is b
    y = Pass.apply(a * 1, b)
    b += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@BOTH
def test_parts_of_one_tensor_have_one_function(lib: Any) -> None:
    def gradient(*parts: Any) -> list[Any]:
        x.grad = None
        sum((y * y * (i + 1)).sum() for i, y in enumerate(parts)).backward()
        found: list[Any] = x.grad.tolist()
        return found

    x = lib.arange(1.0, 9.0).reshape(4, 2).requires_grad_()
    a = x.unbind()
    assert [(y.grad_fn is a[0].grad_fn, y.output_nr) for y in a] == [(True, i) for i in range(4)]
    assert gradient(a[1], a[3]) == [[0, 0], [6, 8], [0, 0], [28, 32]]
    assert gradient(*x.unbind(1)) == [[2, 8], [6, 16], [10, 24], [14, 32]]
    assert gradient(x.split([1, 2, 1])[1]) == [[0, 0], [6, 8], [10, 12], [0, 0]]
    assert gradient(*x.chunk(2)) == [[2, 4], [6, 8], [20, 24], [28, 32]]
    seen = []
    a = x.unbind()
    a[0].register_hook(seen.append)
    a[1].sum().backward()
    a[0].sum().backward()
    assert seen[0] is None
    assert seen[1].tolist() == [1.0, 1.0]


def test_elements_are_gone_through_in_time_that_grows_with_their_number() -> None:
    def seconds(count: int) -> float:
        x = webtorch.ones(count)
        start = time.process_time()
        assert len(list(x)) == count
        return time.process_time() - start

    seconds(100)
    # Of eight times as many a pass that compares each with all others takes 64 times as long.
    assert min(seconds(16_000), seconds(16_000)) < 32 * max(seconds(2_000), seconds(2_000))


def test_what_hooks_are_given_keeps_its_shape(device: str) -> None:
    def story(t: Any, tensor: Any) -> Any:
        x = tensor([[1.0, 2.0], [3.0, 4.0]])
        x.requires_grad_()
        given: list[Any] = []

        def pack(saved: Any) -> Any:
            given.append(saved)
            return saved

        with t.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            best = x.max(0).values
            out = (best * best.exp()).sum() + x.min(1).values.sum() + x.median(0).values.sum()
        out.backward()
        return [list(s.shape) for s in given if s.dtype is t.int64], x.grad.tolist()

    def place(values: Any) -> Any:
        return webtorch.tensor(values, device=device)

    (ours, gradient), (_, expected) = story(webtorch, place), story(torch, torch.tensor)
    assert ours and gradient == [pytest.approx(row, rel=1e-6) for row in expected]


@BOTH
def test_functions_list_what_they_show(lib: Any) -> None:
    a = _data(lib, 3)
    for out, name, shown in (
        (lib.add(a, a, alpha=2), "AddBackward0", "_saved_alpha"),
        (lib.sub(a, a, alpha=2), "SubBackward0", "_saved_alpha"),
        (a.exp(), "ExpBackward0", "_saved_result"),
    ):
        assert out.grad_fn.name() == name
        assert {shown, "next_functions"} <= {*dir(out.grad_fn)}
        assert getattr(out.grad_fn, shown) is not None


@BOTH
def test_what_was_volatile_says_so(lib: Any) -> None:
    with pytest.warns(UserWarning, match="volatile was removed"):
        assert lib.ones(1).volatile is False


def _names(fn: Any) -> Any:
    """Return the names of a function and of those that it leads to."""
    return None if fn is None else [fn.name(), *[_names(f) for f, _ in fn.next_functions]]


GRAPHS = {
    "linear": lambda lib, x, w, b: lib.nn.functional.linear(x, w, b),
    "linear of data": lambda lib, x, w, b: lib.nn.functional.linear(x.detach(), w, b),
    "linear without bias": lambda lib, x, w, b: lib.nn.functional.linear(x, w).relu(),
    "twice the same": lambda lib, x, w, b: lib.cat([x, x], 1) * lib.ones(6),
    "activation again": lambda lib, x, w, b: lib.autograd.grad(
        lib.nn.functional.threshold(x, 0.0, 0.0).sum(), x, create_graph=True
    )[0],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_show_what_pytorchs_do(name: str) -> None:
    found = []
    for lib in (torch, webtorch):
        x, w, b = _data(lib, 2, 3), _data(lib, 4, 3), _data(lib, 4)
        found.append(_names(GRAPHS[name](lib, x, w, b).grad_fn))
    assert found[0] == found[1]


def test_hooks_of_what_turns_a_weight_are_called() -> None:
    found = []
    for lib in (torch, webtorch):
        x, w, b = _data(lib, 2, 3), _data(lib, 4, 3), _data(lib, 4)
        seen: list[Any] = []
        y = lib.nn.functional.linear(x, w, b)
        turn = y.grad_fn.next_functions[2][0]
        turn.register_hook(lambda gi, go, s=seen: s.append([tuple(g.shape) for g in (*gi, *go)]))
        turn.register_prehook(lambda go: (go[0] * 2,))
        (y * y).sum().backward()
        found.append((seen, w.grad.tolist(), b.grad.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["none", "hooks", "host", "part"])
def test_logits_that_are_written_after_their_loss_have_the_gradient_of_before(how: str) -> None:
    # PyTorch saves the logarithms of their softmax, and so may the logits be written.
    found = []
    for lib in (torch, webtorch):
        graph = lib.autograd.graph
        x = lib.tensor([[0.3, -1.2], [0.9, 0.1]], requires_grad=True)

        def part(x: Any, lib: Any = lib) -> Any:
            """Return a loss of logits, which are written before what comes after is computed."""
            logits = lib.nn.functional.layer_norm(x, (2,), eps=0.1)
            loss = lib.nn.functional.cross_entropy(logits, lib.tensor([0, 1]))
            logits.transpose(1, 0).mul_(3.0)
            return loss * loss

        if how == "part":
            importlib.import_module(lib.__name__ + ".utils.checkpoint").checkpoint(
                part, x, use_reentrant=False
            ).backward()
        else:
            hooks = {
                "none": contextlib.nullcontext,
                "hooks": partial(graph.saved_tensors_hooks, lambda x: x, lambda x: x),
                "host": graph.save_on_cpu,
            }[how]
            with hooks():
                part(x).backward()
        found.append(x.grad.tolist())
    assert found[1] == [pytest.approx(row, rel=1e-5) for row in found[0]]
