"""Faults that random programs found where two features meet (`tests/meet`), each with PyTorch's own result."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests import long
from tests.ops import table
from webtorch.errors import DTypeError
from webtorch.ir.dtype import bool_, float32, int64
from webtorch.ops.record import Op
from webtorch.web.check import Site

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _shared(results: list[Any], inputs: list[Any], memory: Callable[[Any], Any]) -> list[Any]:
    """Of each result, the number of the input that it shares memory with."""
    return [
        next((k for k, x in enumerate(inputs) if r is x or memory(r) == memory(x)), None)
        for r in results
        if r.numel()
    ]


@pytest.mark.one_in(3)
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


def _are_views(results: list[Any], inputs: list[Any]) -> list[Any]:
    """Of each result, whether it is an input or a view."""
    return [any(r is x for x in inputs) or r._is_view() for r in results]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", table.tested(), ids=lambda op: op.name)
def test_results_are_views_where_pytorchs_are(op: Op) -> None:
    """How a result is computed is nobody's concern: one that is made of a view can be written in place."""
    for recorded in (False, True):
        for layout in table.LAYOUTS:
            theirs, ours = (
                [
                    x.detach().requires_grad_(recorded and x.is_floating_point())
                    for x in table.shown(given, layout)
                ]
                for given in table.inputs(op, layout, float32, "cpu")
            )
            for args, kwargs in op.samples:
                try:
                    expected = table.flat(table.oracle(op)(*theirs, *args, **kwargs))
                    got = table.flat(table.function(op)(*ours, *args, **kwargs))
                except (RuntimeError, IndexError, ValueError, TypeError):
                    continue  # The table's own test looks at errors.
                assert _are_views(got, ours) == _are_views(expected, theirs), (
                    f"{op.name}{args}{kwargs} {layout} {recorded}"
                )


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1,), ()])
@pytest.mark.parametrize("name", ["median", "nanmedian", "prod", "sum", "max"])
def test_what_is_reduced_can_be_written_in_place(name: str, shape: tuple[int, ...]) -> None:
    found = []
    for t in (webtorch, torch):
        x = t.full(shape, 1.5, requires_grad=True)
        y = getattr(t, name)(x)
        is_view = y._is_view()
        found.append((is_view, y.mul_(2).tolist()))
    assert found[0] == found[1]


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


@pytest.mark.parametrize("norm", ["BatchNorm1d", "InstanceNorm1d"])
def test_running_statistics_move_in_a_checkpoint_as_often_as_in_pytorch(
    device: str, norm: str
) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        from torch.utils.checkpoint import checkpoint

        call = webtorch.utils.checkpoint.checkpoint if t is webtorch else checkpoint
        layer = getattr(t.nn, norm)(2, track_running_stats=True).to(tensor([0.0]).device)
        x = tensor([[[1.0, 2.0], [3.0, 5.0]]] * 2, requires_grad=True)
        call(layer, x, use_reentrant=False).square().sum().backward()
        return layer.running_mean.tolist(), layer.running_var.tolist(), x.grad.tolist()

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


def _detaches(t: Any, x: Any, w: Any) -> Any:
    x.detach_()
    return x * 2


def _requires(t: Any, x: Any, w: Any) -> Any:
    x.requires_grad_()
    return (x * 2).sum()


def _requires_and_differentiates(t: Any, x: Any, w: Any) -> Any:
    x.requires_grad_(True)
    (x * x).sum().backward(retain_graph=True)
    return x.detach() + 1


def _adds_what_is_used_up(t: Any, x: Any, w: Any) -> Any:
    v = t.nn.functional.layer_norm(x.detach() * w, (4,))
    x += v
    v.sum().backward()
    return v.detach()


def _freezes_for_a_while(t: Any, x: Any, w: Any) -> Any:
    w.requires_grad_(False)
    y = (x * w).sum()
    w.requires_grad_(True)
    return y + (w * w).sum()


def _keeps_gradients(t: Any, x: Any, w: Any) -> Any:
    y = x * w.exp()
    y.retain_grad()
    (y * y).sum().backward()
    return y * 1


def _writes_into_what_it_made(t: Any, x: Any, w: Any) -> Any:
    out = x.new_zeros(2, *x.shape)
    for i in range(2):
        out[i] = (x.detach() * w).tanh()
    (g,) = t.autograd.grad((out * out).sum(), [w], create_graph=True)
    t.autograd.grad((g * g).sum(), [w])
    return out


@pytest.mark.parametrize(
    "body",
    [
        _detaches,
        _requires,
        _requires_and_differentiates,
        _adds_what_is_used_up,
        _freezes_for_a_while,
        _keeps_gradients,
        _writes_into_what_it_made,
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_a_compiled_function_leaves_histories_as_it_would_uncompiled(
    body: Callable[..., Any], computed: bool, device: str
) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        w = tensor([0.5, -1.0, 0.75, 0.25], requires_grad=True)
        call = _compiled(t, lambda x, w: body(t, x, w))
        seen = []
        for k in range(3):
            w.grad = None
            x = tensor([[1.0, 2.0, 0.5, -1.0], [0.0, 1.0, k + 1.0, 3.0]])
            if computed:
                x = x * (w * w)
            try:
                out = call(x, w)
                seen.append((x.requires_grad, x.is_leaf, out.requires_grad, out.is_leaf))
                (x.sum() + out.sum()).backward()
            except RuntimeError as error:
                seen.append(str(error)[:40])
            seen.append(w.requires_grad)
            seen.append(None if w.grad is None else [round(v, 3) for v in w.grad.tolist()])
        return seen

    _both(story, device)


def test_checkpoints_and_saved_tensor_hooks_in_forward_mode(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        import torch.utils.checkpoint as theirs

        import webtorch.utils.checkpoint as ours

        checkpoint = (ours if t is webtorch else theirs).checkpoint
        w = tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
        x = tensor([[1.0, 2.0], [3.0, 1.0]])
        packed = []

        def body(x: Any) -> Any:
            return t.nn.functional.layer_norm(x @ w, (2,)).tanh() * x

        def pack(x: Any) -> Any:
            packed.append(x)
            return len(packed) - 1

        value, tangent = t.func.jvp(
            lambda x: checkpoint(body, x, use_reentrant=False), (x,), (x.cos(),)
        )
        with t.autograd.graph.saved_tensors_hooks(pack, lambda k: packed[k]):
            value2, tangent2 = t.func.jvp(body, (x,), (x.cos(),))
        value2.sum().backward()
        return [
            [round(v, 4) for v in y.flatten().tolist()]
            for y in (value, tangent, value2, tangent2, w.grad)
        ]

    _both(story, device)


def test_tensors_of_captures_at_other_sizes_poison_nothing() -> None:
    """What a capture without values left behind must not be computed, by it or by what comes after."""
    kept: list[webtorch.Tensor] = []

    @webtorch.compile
    def f(x: webtorch.Tensor) -> webtorch.Tensor:
        y = x.amax()
        kept.append(y.cumsum(0).detach())
        y.cumsum_(0)
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (4, 5, 7):
            x = webtorch.arange(float(n))
            webtorch.mark_dynamic(x, 0)
            assert f(x).tolist() == (x * 2).tolist()
    assert webtorch.compile(lambda x: x + 1)(webtorch.ones(2)).tolist() == [2, 2]


def test_an_exported_function_that_needs_not_all_arguments(tmp_path: Any) -> None:
    class Net(webtorch.nn.Module):
        def forward(
            self, a: webtorch.Tensor, b: webtorch.Tensor, c: webtorch.Tensor
        ) -> webtorch.Tensor:
            return b.sort(-1).values * 2

    given = webtorch.ones(3, 2), webtorch.tensor([2.0, 1.0]), webtorch.ones(4)
    webtorch.export(Net(), tmp_path, given, cpu=False)
    assert Site(tmp_path).run("infer", "cpu")["out"] == [2, 4]


def test_hooks_of_modules_with_several_results(device: str) -> None:
    """Where no gradient came, a hook sees None."""

    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        class Both(t.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * 2, x * 3

        seen = []
        both, x = Both(), tensor([1.0, 2.0], requires_grad=True)
        both.register_full_backward_hook(
            lambda m, gi, go: seen.append([None if g is None else g.tolist() for g in (*gi, *go)])
        )
        both(x)[0].sum().backward()
        both(x)[1].sum().backward()
        return seen, x.grad.tolist()

    _both(story, device)


def test_as_strided_beyond_a_view_that_a_compiled_function_returns(device: str) -> None:
    """It has gradients of the view's elements alone, in PyTorch."""

    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def f(x: Any) -> Any:
            y = x * 2
            return y, y[:1].as_strided((2, 2), (1, 1))

        call, seen = _compiled(t, f), []
        for _ in range(3):
            x = tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
            a, b = call(x)
            ((a * a).sum() + (b * b).sum()).backward()
            seen.append(x.grad.tolist())
        return seen

    _both(story, device)


def test_pages_refuse_complex_numbers(tmp_path: Any) -> None:
    x = webtorch.ones(3, dtype=webtorch.complex64)
    with pytest.raises(DTypeError, match=r"'x' is complex64.*view_as_real"):
        webtorch.export(lambda x: x.real * 2, tmp_path, (x,), cpu=False)
    with pytest.raises(DTypeError, match=r"'out' is complex64.*view_as_real"):
        webtorch.export(lambda x: webtorch.complex(x, x), tmp_path, (x.real,), cpu=False)


SIZE_DECIDES: dict[str, Callable[[webtorch.Tensor], webtorch.Tensor]] = {
    "a slice": lambda x: x[:3] * 2,
    "the last": lambda x: x[-4:].sum(),
    "a minimum": lambda x: x.sum() * min(x.shape[0], 3),
    "a branch": lambda x: x * 2 if x.shape[0] > 4 else x * 3,
    "a diagonal": lambda x: x.outer(x)[:4].diagonal(1) * 1,
    "padding": lambda x: webtorch.nn.functional.pad(x, (0, max(0, 6 - x.shape[0]))),
    "a half": lambda x: x[: x.shape[0] // 2] * 2,
    "one size": lambda x: x * 5 if x.shape[0] == 7 else x + 1,
    "nothing": lambda x: x.cumsum(0) / x.shape[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SIZE_DECIDES)
def test_what_a_marked_size_decides_is_decided_at_each_size(name: str) -> None:
    function = SIZE_DECIDES[name]
    for first in (3, 5, 8) if long.runs() else (5,):
        compiled = webtorch.compile(function)
        for n in (first, 9, 10, 12, 2, 3, 4, 5, 7, 20, 1, 6, 40, 11):
            x = webtorch.arange(float(n))
            webtorch.mark_dynamic(x, 0)
            try:
                expected = function(x).tolist()
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            assert compiled(x).tolist() == expected, f"{name}: {n} after {first}"


def test_sizes_between_many_that_were_right_are_not_captured() -> None:
    calls = []

    @webtorch.compile
    def f(x: webtorch.Tensor) -> webtorch.Tensor:
        calls.append(x.shape[0])
        return (x * 2).sum(0)

    def run(n: int) -> None:
        x = webtorch.ones(n, 2)
        webtorch.mark_dynamic(x, 0)
        assert f(x).tolist() == [2 * n, 2 * n]

    for n in (8, 200, *range(20, 36)):
        run(n)
    before = len(calls)
    for n in range(40, 70):
        run(n)
    assert len(calls) == before


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_on_top_of_each_other_under_autocast(name: str, device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        first, second = getattr(t.nn, name)(2, 3), getattr(t.nn, name)(3, 2)
        for p in (*first.parameters(), *second.parameters()):
            p.data.fill_(0.25)
        where = torch.device("cpu") if t is torch else device
        layers = t.nn.ModuleList([first, second]).to(where)
        with t.autocast(str(where), dtype=t.bfloat16):
            y, _ = layers[0](tensor([[1.0, -2.0], [0.5, 0.25]]))
            z, _ = layers[1](y)
        z.float().sum().backward()
        grad = layers[0].weight_ih_l0.grad
        return [round(v, 1) for v in z.flatten().tolist()], tuple(grad.shape)

    # On processors without 16-bit instructions oneDNN refuses PyTorch's LSTM; its own code takes it.
    torch._C._set_mkldnn_enabled(False)
    try:
        _both(story, device)
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize(
    "made",
    [
        lambda t, x: x[0:0] @ t.ones(4, 4),
        lambda t, x: x[0:0].sum(-1, keepdim=True),
        lambda t, x: x[0:0].sort(0)[0],
        lambda t, x: t.nn.functional.scaled_dot_product_attention(*[x[0:0].unsqueeze(0)] * 3),
    ],
    ids=["matmul", "sum", "sort", "attention"],
)
def test_results_without_elements_take_mapped_values_in_place(made: Callable[..., Any]) -> None:
    def run(t: Any) -> Any:
        def f(x: Any) -> Any:
            y = made(t, x)
            y -= x[0].sum()
            return y, x.sin()

        x = t.arange(24.0).reshape(3, 2, 4)
        return t.func.vmap(f)(x)

    for theirs, ours in zip(run(torch), run(webtorch), strict=True):
        torch.testing.assert_close(torch.tensor(ours.tolist()).reshape(ours.shape), theirs)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_0d_index_gives_a_view_under_vmap(compiled: bool) -> None:
    def run(t: Any, compile_: Callable[..., Any]) -> list[Any]:
        def at_one_place(x: Any) -> Any:
            y = x.clone()
            view = y[...][t.tensor(0)]
            view[None, 1:] = 3.0
            return y, view

        def at_its_own(x: Any, i: Any) -> Any:
            y = x.clone()
            y[i].mul_(0)
            return y

        first = compile_(lambda x: t.func.vmap(at_one_place)(x))
        second = compile_(lambda x, i: t.func.vmap(at_its_own)(x, i))
        x, i = t.arange(16.0).reshape(2, 2, 4), t.tensor([0, 1])
        return [r.tolist() for k in range(3) for r in (*first(x + k), second(x + k, i))]

    ours = run(webtorch, webtorch.compile if compiled else lambda f: f)
    assert ours == run(torch, lambda f: f)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["hook", "retained", "both", "removed"])
@pytest.mark.parametrize("given", ["leaf", "computed", "second result", "part"])
def test_hooks_that_a_compiled_function_puts_on_its_argument(way: str, given: str) -> None:
    """The argument's whole gradient goes through them, what other uses of it add, too."""

    def run(t: Any, compile_: Callable[..., Any]) -> list[Any]:
        def f(x: Any) -> Any:
            if way in ("retained", "both") and not x.is_leaf:
                x.retain_grad()
            if way in ("hook", "both"):
                x.register_hook(lambda g: g * 2)
            if way == "removed":
                x.register_hook(lambda g: g * 2).remove()
                x.register_hook(lambda g: g + 1)
            return x.expand_as(x), x * x

        compiled, found = compile_(f), []
        for k in range(2):
            x = (t.arange(6.0) + k).requires_grad_()
            y = {
                "leaf": lambda x=x: x,
                "computed": lambda x=x: x * 3,
                "second result": lambda x=x: (x * 3).split(2)[1],
                "part": lambda x=x: (x * 3)[::2],
            }[given]()
            a, b = compiled(y)
            ((a * a).sum() + b.sum() + (y**3).sum()).backward()
            found += [x.grad.tolist(), None if y.grad is None else y.grad.tolist()]
        return found

    assert run(webtorch, webtorch.compile) == run(torch, lambda f: f)


@pytest.mark.parametrize("part", [lambda t: t.full((4,), 1.5)[::2], lambda t: t.tensor(1.5 + 2j)])
def test_no_write_is_lost_where_threads_call_a_new_compiled_function(part: Any) -> None:
    """What is written is a part of its memory: the first captures are given copies, later ones are not."""

    def f(x: Any) -> Any:
        x.mul_(-3)
        return x * 2

    for _ in range(20):
        compiled = webtorch.compile(f)
        xs = [part(webtorch) for _ in range(6)]
        gate = threading.Barrier(3)

        def call(k: int, xs: Any = xs, gate: Any = gate, compiled: Any = compiled) -> None:
            gate.wait()
            for x in xs[2 * k : 2 * k + 2]:
                compiled(x)

        threads = [threading.Thread(target=call, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = part(torch).mul_(-3).tolist()
        assert [x.tolist() for x in xs] == [expected] * len(xs)


@pytest.mark.parametrize(
    "f",
    [
        lambda v, x, w: (x.mul_(w), v)[1:],
        lambda v, x, w: (x[:1].copy_(w[:1]), v)[1:],
        lambda v, x, w: (x.mul_(w), v, x * w)[1:],
        lambda v, x, w: (x[:1].copy_(w[:1]), v, x[0])[1:],
    ],
)
def test_a_view_made_before_its_base_is_written_with_gradients(f: Callable[..., Any]) -> None:
    def run(t: Any, compile_: Callable[..., Any]) -> list[Any]:
        compiled, found = compile_(lambda x, w: f(x.reshape(-1), x, w)), []
        for k in range(3):
            x, w = t.arange(4.0).reshape(2, 2) + k, (t.arange(4.0).reshape(2, 2) + 1)
            outs = compiled(x, w.requires_grad_())
            sum((z * z).sum() for z in outs).backward()
            found += [[z.requires_grad for z in outs], [z.tolist() for z in outs], w.grad.tolist()]
        return found

    assert run(webtorch, webtorch.compile) == run(torch, lambda f: f)


def test_gradients_of_as_strided_of_what_overlaps() -> None:
    def run(t: Any) -> Any:
        x = t.arange(8.0).reshape(2, 4).requires_grad_()
        y = t.as_strided((x * 1).expand(3, 2, 4), (2, 2), (2, 1), 1)
        z = t.as_strided(x.unfold(1, 2, 1), (3,), (2,), 1)
        ((y * y).sum() + (z**3).sum()).backward()
        return x.grad.tolist()

    assert run(webtorch) == run(torch)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y, v: (v.register_hook(lambda g: g * 2), y, v)[1:],
        lambda x, y, v: (v.register_hook(lambda g: g * 2), v, v[:1])[1:],
        lambda x, y, v: (v.register_hook(lambda g: g * 2), y, v[:1])[1:],
        lambda x, y, v: (v.grad_fn.register_prehook(lambda gs: (gs[0] * 3,)), y, v)[1:],
        lambda x, y, v: (v.grad_fn.register_hook(lambda gs, _: (gs[0] * 3,)), y, v)[1:],
        lambda x, y, v: (y.register_hook(lambda g: g * 2), y, v)[1:],
    ],
)
def test_hooks_on_views_that_a_compiled_function_returns(f: Callable[..., Any]) -> None:
    def run(t: Any, compile_: Callable[..., Any]) -> list[Any]:
        compiled, found = compile_(lambda x: (lambda y: f(x, y, y[1:3]))(x * 2)), []
        for k in range(3):
            x = (t.arange(4.0) + k).requires_grad_()
            sum((z * z).sum() for z in compiled(x)).backward()
            found.append(x.grad.tolist())
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(webtorch, webtorch.compile) == run(torch, lambda f: f)


def test_a_product_with_a_frozen_matrix_keeps_no_activation() -> None:
    def run(t: Any) -> Any:
        x = t.arange(4.0).reshape(2, 2).requires_grad_()
        w = t.arange(4.0).reshape(2, 2) + 1
        found = []
        for product in (t.mm, t.nn.functional.linear, lambda a, b: t.addmm(b, a, b)):
            a = x * 2
            y = product(a, w)
            a.mul_(5)
            found.append(t.autograd.grad(y.sum(), x)[0].tolist())
        return found

    assert run(webtorch) == run(torch)


@pytest.mark.parametrize(
    "make",
    [
        lambda t, x: x.sort(1)[0],
        lambda t, x: x.topk(2, 1)[0],
        lambda t, x: x.sum(0),
        lambda t, x: x.t().clone(),
        lambda t, x: x.take_along_dim(x.argmax(1, keepdim=True), 1),
        lambda t, x: t.kron(x, x),
        lambda t, x: x.tile(2),
        lambda t, x: x.repeat_interleave(2, 1),
        lambda t, x: t.einsum("ij,kj->ik", x, x),
        lambda t, x: x * 2,
    ],
)
def test_hooks_on_a_result_stay_where_a_view_of_it_is_written(make: Callable[..., Any]) -> None:
    def run(t: Any) -> Any:
        x = (t.arange(12.0).reshape(3, 4) * 7 % 5).requires_grad_()
        y = make(t, x)
        y.register_hook(lambda g: g * 2)
        y[1:].mul_(3)
        (y * y).sum().backward()
        return y._is_view(), y._base is None, x.grad.tolist()

    assert run(webtorch) == run(torch)


def test_hooks_on_a_view_are_not_met_where_a_view_of_it_is_written() -> None:
    def run(t: Any) -> Any:
        found = []
        for write in (
            lambda v: v[:-1].mul_(3),
            lambda v: v.expand_as(v)[:-1].mul_(3),
            lambda v: v[1:].zero_(),
            lambda v: v.__setitem__(t.tensor([0, 1]), 2 * v[:2]),
            lambda v: v.mul_(3),
        ):
            x = t.arange(1.0, 13).reshape(3, 4).requires_grad_()
            v = x.sin().view(-1, 4)
            v.register_hook(lambda g: g * 2)
            write(v)
            (v * 5).sum().backward()
            found.append([round(g, 4) for g in x.grad.flatten().tolist()])
        return found

    assert run(webtorch) == run(torch)


def test_what_writes_nothing_takes_part_in_gradients() -> None:
    def run(t: Any) -> Any:
        x = t.ones(1, 2).requires_grad_()
        none, nothing, empty = t.zeros(0, dtype=t.int64), x[:0], t.zeros(0, 2, dtype=t.int64)
        found: list[Any] = []
        for write in (
            lambda a: a.__setitem__(slice(2, None), nothing),
            lambda a: a.__setitem__(none, x[0]),
            lambda a: a[:0].mul_(x),
            lambda a: a.narrow(0, 0, 0).copy_(nothing),
            lambda a: a.index_put_((none,), nothing),
            lambda a: a.index_add_(0, none, nothing),
            lambda a: a.index_copy_(0, none, nothing),
            lambda a: a.index_fill_(0, none, x[0, 0]),
            lambda a: a.scatter_(0, empty, nothing),
            lambda a: a.scatter_add_(0, empty, nothing),
            lambda a: a.masked_scatter_(a > 5, nothing),
        ):
            a = t.zeros(2, 2)
            write(a)
            x.grad = None
            a.sum().backward()
            found.append((a.requires_grad, x.grad.tolist()))
        return found

    assert run(webtorch) == run(torch)


def test_a_detached_element_that_a_number_picked_is_written_in_a_compiled_function() -> None:
    def f(x: Any, i: Any) -> Any:
        v = x[i].detach()
        v.mul_(2)
        x[0].detach().add_(1)
        return x * 1

    def run(t: Any, compile_: Callable[..., Any]) -> Any:
        compiled, found = compile_(f), []
        for i in (1, 2, 1):
            x = t.arange(6.0).reshape(3, 2).requires_grad_()
            y = compiled(x, t.tensor(i))
            y.sum().backward()
            found.append((y.tolist(), x.tolist(), x.grad.tolist()))
        return found

    assert run(webtorch, webtorch.compile) == run(torch, lambda g: g)


def test_as_strided_of_what_a_number_picked_is_refused_in_a_compiled_function() -> None:
    with pytest.raises(webtorch.errors.CaptureError, match=r"x\.select"):
        webtorch.compile(lambda x, i: x[i].as_strided((2, 2), (1, 1)))(
            webtorch.ones(3, 2), webtorch.tensor(0)
        )


def test_values_that_repeat_along_a_loop_are_not_kept_for_the_next() -> None:
    def f(x: Any, t: Any) -> Any:
        y = t.nn.functional.softplus(x.repeat_interleave(2, 0))
        return y.scatter_add(1, y.argsort(1), y), y.argmax(-2), y * 6

    x = [[0.3, -1.2], [0.7, 0.1], [-0.4, 1.1]]
    compiled = webtorch.compile(lambda x: f(x, webtorch))
    for k in range(40):
        found = compiled(webtorch.tensor(x) + 0.01 * k)
    right = f(torch.tensor(x) + 0.01 * 39, torch)
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(torch.tensor(a.tolist()), b)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "reduce",
    [
        lambda y: y.amax(1),
        lambda y: y.aminmax(dim=1).max,
        lambda y: y.amin(1),
        lambda y: y.max() + y.min(),
    ],
)
def test_a_maximum_is_found_again_whoever_computes_what_it_is_of(
    reduce: Callable[..., Any], compiled: bool
) -> None:
    # NumPy, machine code and a scalar tail may round one formula in three ways.
    def f(t: Any) -> Callable[..., Any]:
        def loss(x: Any) -> Any:
            v = x.mT
            u = v.T / (reduce(t.sigmoid(v) * -1.5).abs() + 1)
            wide = u.repeat_interleave(2, 1).cos() * t.arange(16.0).reshape(4, 4)
            return (u.roll(1, -1) * t.arange(8.0).reshape(4, 2)).sum() + wide.sum()

        return loss

    def run(x: Any) -> Any:
        x = webtorch.tensor(x.tolist())
        if not compiled:
            return webtorch.func.grad(f(webtorch))(x)
        whole(x.requires_grad_()).backward()
        return x.grad

    whole = webtorch.compile(f(webtorch))
    for k in range(40):
        x = torch.rand(4, 2, generator=torch.Generator().manual_seed(k)) * 3 - 1.5
        right = torch.func.grad(f(torch))(x)
        torch.testing.assert_close(torch.tensor(run(x).tolist()), right)


def _after_a_write(op: Op, f: Any, leaves: list[Any], needs: set[int], written: int) -> Any:
    """Gradients where an operand (or the result, -1) is written between call and backward pass."""
    operands = [(x * 1 if i in needs else (x * 1).detach()) for i, x in enumerate(leaves)]
    args, kwargs = op.samples[0]
    results = [r for r in table.flat(f(*operands, *args, **kwargs)) if hasattr(r, "requires_grad")]
    total = sum(r.sum() for r in results if r.requires_grad)
    (results[0] if written < 0 else operands[written]).detach().add_(1)
    total.backward()
    return [None if leaves[i].grad is None else leaves[i].grad.tolist() for i in sorted(needs)]


# Of views of the operands, PyTorch saves the memory and not the version: its gradient is that of what was written.
_SEEN_WRITTEN = {"kron"}


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", table.tested(), ids=lambda op: op.name)
def test_what_pytorchs_rule_does_not_need_may_be_written(op: Op) -> None:
    """The rule of rsqrt takes the result, say: its operand may be overwritten before the backward pass."""
    if float32 not in op.dtypes or op.name in _SEEN_WRITTEN:
        return
    count = table.tensor_count(op)
    for needs in {frozenset(range(count)), *(frozenset({i}) for i in range(count))}:
        for written in range(-1, count):
            theirs, ours = (
                [x.detach().requires_grad_() for x in part]
                for part in table.inputs(op, "contiguous", float32, "cpu")
            )
            try:
                expected = _after_a_write(op, table.oracle(op), theirs, set(needs), written)
            except (RuntimeError, IndexError, ValueError, TypeError, AttributeError):
                continue  # No gradient, or one that needs what was written.
            got = _after_a_write(op, table.function(op), ours, set(needs), written)
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(
                    torch.tensor(a or 0.0),
                    torch.tensor(b or 0.0),
                    rtol=1e-3,
                    atol=1e-4,
                    equal_nan=True,
                    msg=lambda m, n=needs, w=written: f"{op.name} {sorted(n)} {w}: {m}",
                )


@pytest.mark.parametrize("compiled", [False, True])
def test_what_forward_mode_writes_is_written_outside(compiled: bool) -> None:
    """The argument of jvp(), and a dual tensor, are views of what they were made of."""

    def story(t: Any, leaf: Callable[..., Any]) -> Any:
        def of_a_picked_row(x: Any) -> Any:
            row = x[t.tensor(0)]
            x[...].detach().mul_(2)
            return row

        def of_itself(x: Any) -> Any:
            x.mul_(2)
            return (x * x).sum()

        found: list[Any] = []
        for f in (of_a_picked_row, of_itself):
            x = leaf([[1.0, 2.0], [3.0, 4.0]])
            columns = leaf([[1.0, 2.0], [3.0, 4.0]])[:, :1]

            def run(x: Any, d: Any, f: Any = f) -> Any:
                return t.func.jvp(f, (x,), (d,))

            call = _compiled(t, run) if compiled else run
            found += [[r.tolist() for r in call(x, x * 0.5)], x.tolist()]
            found += [[r.tolist() for r in call(columns, columns + 1)], columns.tolist()]

        def nested(x: Any) -> Any:
            inner = t.func.jvp(lambda y: y.mul_(y.clone()), (x,), (x.detach().clone() + 1,))[1]
            return inner + x

        x = leaf([1.0, 2.0])
        found += [[r.tolist() for r in t.func.jvp(nested, (x,), (x + 3,))], x.tolist()]
        with t.autograd.forward_ad.dual_level():
            made = t.autograd.forward_ad.make_dual(x, x + 1)
            made[0].mul_(3)
            found += [x.tolist(), t.autograd.forward_ad.unpack_dual(made).tangent.tolist()]
        return found

    _both(story, "cpu")


@pytest.mark.filterwarnings("ignore::webtorch.errors.CacheChurnWarning")
@pytest.mark.parametrize(
    "orders",
    [
        [(1, 0, 3, 2), (2, 3, 1, 0), (2, 0, 1, 3)],
        [(0, 2, 3, 1), (1, 2, 0, 3), (3, 1, 2, 0)],
        [(2, 0, 1, 3), (2, 3, 0, 1), (3, 0, 1, 2)],
        [(3, 2, 0, 1), (2, 0, 1, 3), (2, 1, 0, 3)],
    ],
)
def test_sums_in_several_orders_beside_what_they_share(orders: list[tuple[int, ...]]) -> None:
    """Loops that are split for one sum may hide that another reads what the kernel itself stores."""

    def story(t: Any, leaf: Callable[..., Any]) -> Any:
        w = t.arange(24).to(t.float32) * 2
        x = t.arange(24).view(2, 3, 2, 2)
        sums = []
        for order in orders:
            y = x.permute(*order)
            sums.append((y * w.reshape(y.shape)).sum())
        return [w.tolist(), [s.tolist() for s in sums]]

    _both(story, "cpu")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("how", ["again", "written", "through a view"])
def test_what_a_compiled_function_writes_and_its_backward_reads_keeps_its_value(
    how: str, collect: bool, device: str
) -> None:
    # Written in place, its memory was also the saved value's: whoever wrote it next wrote both.
    weight = webtorch.tensor([[0.5, -0.25], [0.75, 0.125]], device=device, requires_grad=True)

    @webtorch.compile
    def step(x: Any) -> Any:
        with webtorch.no_grad():
            x.mul_(2)
        return (x @ weight).tanh()

    for k in range(3):
        start = torch.tensor([[0.1 + k, 0.2], [0.3, -0.4 - k]])
        theirs = torch.tensor(weight.tolist(), requires_grad=True)
        ((start * 2) @ theirs).tanh().pow(2).sum().backward()
        x = webtorch.tensor(start.tolist(), device=device)
        y = step(x)
        if collect:
            gc.collect()
        other = x.clone() if how == "again" else x
        if collect:
            gc.collect()
        if how == "again":
            step(other).tolist()
        elif how == "written":
            other.add_(1)
        else:
            other[0].mul_(3)
        other.tolist()
        weight.grad = None
        if how != "again":
            # As in PyTorch: the product's gradient wants what was overwritten.
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.pow(2).sum().backward()
            continue
        y.pow(2).sum().backward()
        torch.testing.assert_close(torch.tensor(weight.grad.tolist()), theirs.grad)


def test_views_of_what_is_detached_need_no_gradient_in_a_compiled_call(device: str) -> None:
    def story(t: Any, tensor: Callable[..., Any]) -> Any:
        def views(x: Any) -> Any:
            part = x.detach()
            with t.no_grad():
                unrecorded = x[1:]
            return part.unfold(-1, 2, 1), part.mT, part.view(-1), x.detach()[1:], unrecorded, x[0]

        x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
        call = _compiled(t, views)
        return [[(y.requires_grad, y.tolist()) for y in call(x)] for _ in range(3)]

    _both(story, device)


def test_a_far_index_raises_at_its_call_also_in_a_call_that_is_remembered() -> None:
    def program(t: Any) -> None:
        x, near, far = t.arange(5.0), t.tensor([1, 2]), t.tensor([1, 9])
        calls = (
            lambda i: x[i],
            lambda i: x.gather(0, i),
            lambda i: x.index_select(0, i),
            lambda i: t.nn.functional.embedding(i, x.reshape(5, 1)),
            lambda i: t.nn.functional.cross_entropy(x.reshape(1, 5).expand(2, 5), i),
        )
        for call in calls:
            for _ in range(4):
                call(near)
            with pytest.raises((IndexError, RuntimeError)):
                call(far)

    program(torch)
    program(webtorch)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_queries_that_see_nothing_get_what_pytorch_gives(
    training: bool, recorded: bool, need_weights: bool
) -> None:
    """NaN where PyTorch makes one operation of the layer, or computes weights, and else 0."""

    def program(t: Any) -> list[Any]:
        x = t.arange(24.0).sin().reshape(2, 3, 4)
        padding = t.tensor([[True, True, True], [False, False, True]])
        mask = t.tensor([[True, True, True], [False, True, True], [False, False, True]])
        attention = t.nn.MultiheadAttention(4, 2, batch_first=True)
        layers = [
            t.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, norm_first=first)
            for first in (True, False)
        ]
        found = []
        for module in (attention, *layers):
            with t.no_grad():
                for i, p in enumerate(module.parameters()):
                    p.copy_((t.arange(float(p.numel())) + i).sin().reshape(p.shape))
            module.train(training)
        with t.set_grad_enabled(recorded):
            for kwargs in ({"key_padding_mask": padding}, {"attn_mask": mask}):
                out, weights = attention(x, x, x, need_weights=need_weights, **kwargs)
                found += [out, t.zeros(1) if weights is None else weights]
            found += [layer(x, src_key_padding_mask=padding) for layer in layers]
        return [(one.detach().tolist(), one.stride()) for one in found]

    for (ours, strides), (theirs, expected) in zip(program(webtorch), program(torch), strict=True):
        torch.testing.assert_close(
            torch.tensor(ours), torch.tensor(theirs), equal_nan=True, rtol=1e-4, atol=1e-5
        )
        assert strides == expected


def test_flags_and_counts_of_writes_are_pytorchs() -> None:
    def program(t: Any) -> list[Any]:
        class Doubled(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any, good: bool) -> Any:
                ctx.mark_dirty(x)
                ctx.good = good
                return x.mul_(2)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return (g * 2 if ctx.good else "a"), None

        x = t.ones(2, requires_grad=True)
        y = x * 1
        Doubled.apply(y, True).sum().backward()
        with pytest.raises(RuntimeError, match=r"expected Variable or None \(got str\)"):
            Doubled.apply(x * 1, False).sum().backward()
        with pytest.raises(RuntimeError, match="requires_grad must be a bool"):
            x.requires_grad = 1
        with pytest.raises(TypeError):
            t.randn(2, generator=3)
        with pytest.raises(RuntimeError, match=r"^mat1 and mat2 must have the same dtype"):
            t.nn.Linear(2, 2)(t.ones(1, 2, dtype=t.float64))
        with pytest.raises(RuntimeError, match=r"^dot : expected both vectors to have same dtype"):
            t.ones(2) @ t.ones(2, dtype=t.float64)
        with pytest.raises(RuntimeError, match=r"^expected target dtype to be Long or Byte"):
            t.nn.functional.nll_loss(t.ones(2, 2), t.zeros(2, dtype=t.int32))
        with t.inference_mode():
            still = t.ones(2)
        with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor"):
            t.nn.Parameter(still)
        return [y._version, x.grad.tolist()]

    assert program(webtorch) == program(torch)
