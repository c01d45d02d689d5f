"""A compiled function and what its caller does around it: backward, writes in place, views, hooks,
transforms. Each program runs with PyTorch as it is and with webtorch compiled, and gives the same.
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from webtorch.errors import CaptureError

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

Compiled = Callable[[Any], Any]
Program = Callable[[Any, Compiled], Iterator[Any]]
PROGRAMS: list[Program] = []
# Programs that say why they run as usual.
USUAL: dict[Program, str] = {}


def program(usual: str | Program) -> Any:
    """Add a program to those that are run; `usual` is what it warns of."""
    if not isinstance(usual, str):
        PROGRAMS.append(usual)
        return usual

    def add(function: Program) -> Program:
        USUAL[function] = usual
        PROGRAMS.append(function)
        return function

    return add


def numbers(t: Any, *shape: int, grad: bool = False) -> Any:
    """Return numbers that are no multiples of each other, some of them negative."""
    count = int(np.prod(shape))
    values = (np.arange(count) * 7 % 11 - 4.5) / 4
    return t.tensor(values.astype("float32").reshape(shape).tolist(), requires_grad=grad)


def set_weights(module: Any, t: Any, scale: float = 0.3) -> Any:
    """Give a module's parameters numbers that do not depend on a generator."""
    with t.no_grad():
        for p in module.parameters():
            p.copy_(numbers(t, *p.shape) * scale)
    return module


def forms(t: Any) -> dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]:
    """Functions of tensors of these shapes."""
    encoder = t.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    lstm = set_weights(t.nn.LSTM(4, 4, 2, bidirectional=True), t)
    attention = set_weights(t.nn.MultiheadAttention(8, 2, batch_first=True), t)
    functional = t.nn.functional
    return {
        "a sum in a product": (lambda x, w: x * w.sum(), ((4, 3), (5,))),
        "a transposed factor": (lambda x, w: x * w.t(), ((4, 3), (3, 4))),
        "a sum added": (lambda x, w: x + w.sum(), ((4, 3), (5,))),
        "a transposed result": (lambda x, w: (x @ w).t(), ((4, 3), (3, 2))),
        "an expanded sum": (lambda x, w: x.sum(0, keepdim=True).expand(4, 3) * w, ((4, 3), (3,))),
        "a scan of a view": (lambda x: x.t().cumsum(1)[:, ::2], ((4, 3),)),
        "chunks": (lambda x: tuple(c * i for i, c in enumerate(x.chunk(2), 1)), ((4, 3),)),
        "softmax": (lambda x, w: functional.softmax(x @ w, -1) * x.mean(), ((4, 3), (3, 3))),
        "norm": (lambda x, w: functional.layer_norm(x, (3,), w) * w.max(), ((4, 3), (3,))),
        "writes": (_writes, ((4, 3),)),
        "encoder": (set_weights(encoder, t), ((2, 5, 8),)),
        "lstm": (lambda x: lstm(x)[0], ((5, 2, 4),)),
        "lstm's state": (lambda x: lstm(x)[1], ((5, 2, 4),)),
        "attention": (lambda x, y: attention(x, y, y), ((2, 5, 8), (2, 3, 8))),
    }


def _writes(x: Any) -> Any:
    y = x.clone()
    y[0].mul_(2)
    y[:, 1] = x[:, 0]
    v = y.view(-1)
    v.add_(1)
    return y.t(), v


def differentiated(t: Any, compiled: Compiled, name: str) -> Iterator[Any]:
    """Two calls of one form, and their gradients, to all leaves."""
    function, shapes = forms(t)[name]
    run = compiled(function)
    for scale in (1.0, -0.5):
        leaves = [numbers(t, *s, grad=True) for s in shapes]
        out = run(*[x * scale for x in leaves])
        out = out if isinstance(out, tuple) else (out,)
        sum([(o * o.detach().cos()).sum() for o in out if o is not None]).backward()
        yield from out
        yield from [x.grad for x in leaves]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", list(forms(torch)))
def test_forward_compiled_and_backward_outside(name: str, device: str) -> None:
    agrees(lambda t, compiled: differentiated(t, compiled, name), device)


@program
def a_written_argument(t: Any, compiled: Compiled) -> Iterator[Any]:
    w, x0 = numbers(t, 3, grad=True), numbers(t, 4, 3, grad=True)

    def f(x: Any, w: Any) -> Any:
        x.mul_(w)
        return x.sum()

    f = compiled(f)
    for _ in range(2):
        x = x0 * 1
        seen = x[0]
        total = f(x, w)
        ((x * 2).sum() + total + (seen**2).sum()).backward()
        yield from (total, x, seen, w.grad.clone(), x0.grad.clone())


@program
def relu_in_place(t: Any, compiled: Compiled) -> Iterator[Any]:
    net = t.nn.Sequential(t.nn.Linear(4, 4), t.nn.ReLU(inplace=True), t.nn.Linear(4, 2))
    whole, relu = compiled(set_weights(net, t, 1.0)), compiled(t.nn.ReLU(inplace=True))
    x = numbers(t, 3, 4, grad=True)
    for _ in range(3):
        h = x * 1
        (whole(relu(h)) ** 2).sum().backward()
        yield from (h, x.grad.clone())
        yield from [p.grad.clone() for p in net.parameters()]


@program
def leaves_are_not_written(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 6, 4, grad=True)

    def f(v: Any) -> Any:
        v.mul_(2)
        return v.sum()

    f = compiled(f)
    for arg in (x, x[0], x.view(-1), x[0]):
        try:
            f(arg)
        except RuntimeError as error:
            yield "leaf" in str(error), "view" in str(error)
        else:
            yield "written"


@program
def parts_of_a_tensor(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 4, 4, grad=True)
    both = compiled(lambda a, b: (a * b.sum()).t())
    for a, b in ((0, 2), (1, 0), (0, 2)):
        out = both(x[a : a + 2], x[b : b + 2])
        (out**2).sum().backward()
        yield from (out, x.grad.clone())

    def write(a: Any) -> Any:
        a[0].mul_(2)
        a.t().add_(1)
        return a.sum()

    write = compiled(write)
    for _ in range(3):
        h = x * 1
        (write(h[1:3]) + (h**2).sum()).backward()
        yield from (h, x.grad.clone())


@program
def strides_of_arguments(t: Any, compiled: Compiled) -> Iterator[Any]:
    f = compiled(lambda x: x.cumsum(0) * t.arange(3.0)[:, None] + x.reshape(-1)[:4])
    x, y = numbers(t, 4, 3), numbers(t, 6, 4)
    wide, row = numbers(t, 3, 8), numbers(t, 1, 4)
    for _ in range(2):
        for given in (x.t(), y[::2], y[1:4], y[::2], wide[:, ::2], row.expand(3, 4)):
            out = f(given)
            yield from (out, out.stride())


@program
def results_that_are_views(t: Any, compiled: Compiled) -> Iterator[Any]:
    base = numbers(t, 6, 4)
    flat = compiled(lambda x: x.reshape(-1))
    several = compiled(lambda x: (x, x.view(-1), x.t(), x.detach(), x * 2))
    shared = compiled(_two_views)
    leaf = numbers(t, 4, 3, grad=True)
    for _ in range(2):
        flat(base[1:3]).add_(1)
        yield base.clone()
        x = leaf * 1
        same, v, turned, cut, double = several(x)
        v.mul_(3)
        ((x * turned.t()).sum() + (double**2).sum()).backward()
        yield from (same is x, x, cut, leaf.grad.clone())
        v, h = shared(leaf)
        v.mul_(3)
        (h * h).sum().backward()
        yield from (h, leaf.grad.clone())
        v, w = shared(leaf)[0], compiled(lambda x: (x * 2).t())(leaf)
        w.mul_(3)
        (v.sum() * w).sum().backward()
        yield leaf.grad.clone()


def _two_views(x: Any) -> Any:
    h = x * 2
    return h.view(-1), h


@program
def gradients_that_nothing_asks_for(t: Any, compiled: Compiled) -> Iterator[Any]:
    x, w = numbers(t, 4, grad=True), numbers(t, 4, grad=True)
    f = compiled(lambda x, w: (x * 2, w * 3))
    for _ in range(2):
        x.grad = w.grad = None
        f(x, w)[0].sum().backward()
        yield from (x.grad, w.grad is None)


@program
def a_graph_that_is_kept(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 4, grad=True)
    y = compiled(lambda x: x * x)(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    yield x.grad.clone()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    f, g = compiled(lambda x: x * 2), compiled(lambda x: x.sin())
    z = g(f(g(f(x))))
    y = f(x)
    yield t.autograd.grad(g(y).sum(), y)[0]
    z.sum().backward()
    yield x.grad.clone()


@program
def hooks_of_leaves(t: Any, compiled: Compiled) -> Iterator[Any]:
    w, x, seen = numbers(t, 3, grad=True), numbers(t, 3), []
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    f = compiled(lambda x: (x * w).sum())
    for _ in range(3):
        y = f(x)
        y.register_hook(lambda g: g * 3)
        y.backward()
        yield w.grad.clone()
    yield t.tensor(seen)


@program
def hooks_of_modules(t: Any, compiled: Compiled) -> Iterator[Any]:
    net = set_weights(t.nn.Sequential(t.nn.Linear(4, 4), t.nn.Tanh(), t.nn.Linear(4, 2)), t)
    net[0].register_forward_hook(lambda module, args, out: out * 2)
    net[2].register_full_backward_hook(lambda module, grads, outs: (grads[0] * 2,))
    run, x = compiled(net), numbers(t, 3, 4, grad=True)
    for _ in range(3):
        run(x).pow(2).sum().backward()
        yield x.grad.clone()
        yield from [p.grad.clone() for p in net.parameters()]


@program("in a hook, it adds what it computed to log")
def hooks_that_keep_what_they_get(t: Any, compiled: Compiled) -> Iterator[Any]:
    w, log = numbers(t, 4, 4, grad=True), []

    def f(x: Any) -> Any:
        h = x @ w
        h.register_hook(lambda g: log.append(g.sum()))
        return h.relu().sum()

    f = compiled(f)
    for _ in range(4):
        f(numbers(t, 2, 4)).backward()
        yield w.grad.clone()
    yield len(log)
    yield from log


@program("it keeps the gradient of what it computes")
def kept_gradients(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 4, grad=True)

    def f(x: Any) -> Any:
        h = x * 2
        h.retain_grad()
        return h, (h * h).sum()

    f = compiled(f)
    for _ in range(4):
        h, total = f(x)
        total.backward()
        yield from (h.grad, x.grad.clone())


@program("it reads what was computed with gradients before")
def what_was_computed_before(t: Any, compiled: Compiled) -> Iterator[Any]:
    w = numbers(t, 3, grad=True)
    h = w * 2
    f = compiled(lambda x: (x * h).sum())
    for i in range(4):
        (f(numbers(t, 3)) + f(numbers(t, 3) * i)).backward(retain_graph=True)
        yield w.grad.clone()


@program("it takes gradients of what its argument was computed from")
def backward_inside(t: Any, compiled: Compiled) -> Iterator[Any]:
    w, v = numbers(t, 3, grad=True), numbers(t, 3, grad=True)

    def step(h: Any) -> Any:
        loss = (h * v).sum()
        loss.backward()
        return loss.detach()

    step = compiled(step)
    for _ in range(4):
        yield from (step(w * 2), w.grad.clone(), v.grad.clone())


@program("it writes what has gradients into state")
def state_with_gradients(t: Any, compiled: Compiled) -> Iterator[Any]:
    w, state = numbers(t, 3, grad=True), t.zeros(3)

    def f(x: Any) -> Any:
        state.add_(x * w)
        return state.sum()

    f = compiled(f)
    for _ in range(4):
        y = f(numbers(t, 3))
        y.backward()
        yield from (y, state.clone(), w.grad.clone())
        state.detach_()


@program
def norms_and_modes(t: Any, compiled: Compiled) -> Iterator[Any]:
    norm, x = t.nn.BatchNorm1d(4), numbers(t, 6, 4, grad=True)
    run = compiled(norm)
    for i in range(5):
        (run(x * (i + 1)) ** 3).sum().backward()
        yield from (x.grad.clone(), norm.weight.grad.clone(), norm.running_mean.clone())
        if i == 2:
            norm.eval()
    weighted = t.nn.utils.parametrizations.weight_norm(t.nn.Linear(4, 4))
    run = compiled(set_weights(weighted, t, 1.0))
    optimizer = t.optim.SGD(weighted.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        run(x).pow(2).sum().backward()
        optimizer.step()
        yield from [p.detach().clone() for p in weighted.parameters()]


@program
def changing_sizes_and_numbers(t: Any, compiled: Compiled) -> Iterator[Any]:
    x, w = numbers(t, 6, 4, grad=True), numbers(t, 4, grad=True)
    f = compiled(lambda x, s: (x * w * s).cumsum(0).t())
    for n, s in ((6, 1.0), (3, 2.0), (5, 2.0), (6, 0.5), (3, 3.0)):
        y = f(x[:n], s)
        (y * y).sum().backward()
        yield from (y, x.grad.clone(), w.grad.clone())


@program
def functions_of_the_user(t: Any, compiled: Compiled) -> Iterator[Any]:
    class Exp(t.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * x.exp() * 2

    x = numbers(t, 4, grad=True)
    f = compiled(lambda x: Exp.apply(x) * x)
    for _ in range(3):
        f(x).sum().backward()
        yield x.grad.clone()
    # What it saves is computed in the call, and several calls wait for their gradients.
    w = set_weights(t.nn.Linear(4, 4), t)
    f = compiled(lambda x: Exp.apply(w(x)).sum())
    for _ in range(3):
        inputs = [x, (x + 1).detach().requires_grad_()]
        for loss, y in zip([f(y) for y in inputs], inputs, strict=True):
            yield from t.autograd.grad(loss, y)


@program
def modes_of_gradients(t: Any, compiled: Compiled) -> Iterator[Any]:
    x, w = numbers(t, 4, grad=True), numbers(t, 4, grad=True)

    def f(x: Any) -> Any:
        with t.no_grad():
            y = x * 2
        with t.enable_grad():
            z = x * x
        return x * y, y, z, x.detach() * 2

    f = compiled(f)
    for mode in (contextlib.nullcontext, t.no_grad, contextlib.nullcontext, t.inference_mode):
        with mode():
            out = f(x * w)
        yield [o.requires_grad for o in out]
        yield from out
        if out[0].requires_grad:
            out[0].sum().backward()
            yield from (x.grad.clone(), w.grad.clone())


@program
def complex_numbers(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 4, 2, 2, grad=True)
    turned = compiled(lambda a: t.view_as_real(t.view_as_complex(a * 1) * (1 + 2j)))
    real = compiled(lambda a: t.view_as_complex(a).real)
    for f in (turned, turned, real, real):
        (f(x * 1) ** 2).sum().backward()
        yield x.grad.clone()


@program
def transforms(t: Any, compiled: Compiled) -> Iterator[Any]:
    net = set_weights(t.nn.Sequential(t.nn.Linear(4, 4), t.nn.Tanh(), t.nn.Linear(4, 2)), t)
    x, v = numbers(t, 3, 4), numbers(t, 3)
    weights = {k: p.detach() for k, p in net.named_parameters()}

    def loss(p: Any, x: Any) -> Any:
        return t.func.functional_call(net, p, (x,)).pow(2).sum()

    inner, wave = compiled(loss), compiled(lambda x: x.sin() * x.sum())
    gradient, mapped = t.func.grad(inner), t.func.vmap(t.func.grad(inner), (None, 0))
    for _ in range(2):
        yield from gradient(weights, x).values()
        yield from mapped(weights, x).values()
        yield inner(weights, x)
    outer = compiled(t.func.grad(loss)), compiled(t.func.vmap(t.func.grad(loss), (None, 0)))
    for f in (*outer, *outer):
        yield from f(weights, x).values()
    yield t.func.hessian(compiled(lambda x: (x**3).sum()))(v)
    yield from (t.func.jacrev(wave)(v), t.func.jacfwd(wave)(v), t.func.vmap(wave)(x))
    out, pullback = t.func.vjp(wave, v)
    yield from (out, *pullback(v))
    yield from t.func.jvp(wave, (v,), (v * 2,))
    with t.autograd.forward_ad.dual_level():
        dual = t.autograd.forward_ad.make_dual(v, v * 2)
        yield from t.autograd.forward_ad.unpack_dual(wave(dual))
    yield wave(v)


@program
def what_looks_at_each_operation(t: Any, compiled: Compiled) -> Iterator[Any]:
    x = numbers(t, 3, grad=True)
    f = compiled(lambda x: (x * x).sin())
    checkpoint = t.utils.checkpoint.checkpoint
    for _ in range(2):
        packed: list[Any] = []
        with t.autograd.graph.saved_tensors_hooks(lambda a: packed.append(a) or a, lambda a: a):  # noqa: B023
            f(x).sum().backward()
        yield from (len(packed) > 0, x.grad.clone())
        checkpoint(f, x, use_reentrant=False).sum().backward()
        checkpoint(f, x, use_reentrant=True).sum().backward()
        with t.autograd.graph.save_on_cpu():
            f(x).sum().backward()
        yield x.grad.clone()

    class Counting(t.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        count = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    class Mine(t.Tensor):  # type: ignore[misc,name-defined]
        pass

    for _ in range(2):
        with Counting() as counting:
            yield f(x)
        yield counting.count >= 2
        mine = f(numbers(t, 3).as_subclass(Mine))
        yield from (mine.as_subclass(t.Tensor), type(mine) is Mine, type(f(x)) is Mine)


@program
def copies_and_files(t: Any, compiled: Compiled) -> Iterator[Any]:
    net = set_weights(t.nn.Sequential(t.nn.Linear(4, 4), t.nn.Tanh(), t.nn.Linear(4, 2)), t)
    run, x = compiled(net), numbers(t, 3, 4)
    yield run(x)
    other = copy.deepcopy(run)
    with t.no_grad():
        net[0].weight.add_(1)
    yield from (run(x), other(x))
    file = io.BytesIO()
    t.save(run.state_dict(), file)
    file.seek(0)
    run.load_state_dict({k: v * 2 for k, v in t.load(file).items()})
    yield run(x)
    for p in run.parameters():
        p.requires_grad_(False)
    yield run(x).requires_grad
    net[0].weight.requires_grad_(True)
    run(x).sum().backward()
    yield from (net[0].weight.grad, net[0].bias.grad is None)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("written", PROGRAMS, ids=lambda p: str(p.__name__))
def test_around_a_compiled_function(written: Program, device: str) -> None:
    agrees(written, device, USUAL.get(written))


def test_second_derivatives_are_refused_in_words(device: str) -> None:
    x = webtorch.ones(3, device=device, requires_grad=True)
    y = webtorch.compile(lambda x: (x**3).sum())(x)
    with pytest.raises(CaptureError, match="create_graph=True"):
        webtorch.autograd.grad(y, x, create_graph=True)


def agrees(written: Program, device: str, usual: str | None = None) -> None:
    """Run a program with PyTorch and, compiled, with webtorch, and compare what it yields."""
    expected = list(written(torch, lambda f: f))
    webtorch.set_default_device(device)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = list(written(webtorch, webtorch.compile))
    finally:
        webtorch.set_default_device(None)
    reasons = [str(w.message) for w in said if "runs as usual" in str(w.message)]
    assert [usual is not None and usual in r for r in reasons] == [True] * len(reasons)
    assert bool(reasons) is (usual is not None)
    assert len(found) == len(expected)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(
                torch.tensor(got.tolist(), dtype=want.dtype).reshape(tuple(got.shape)),
                want.detach(),
                rtol=2e-4,
                atol=2e-5,
                msg=lambda text, n=number: f"value {n}: {text}",
            )
            assert tuple(got.shape) == tuple(want.shape), number
        else:
            assert got == want, number


def _square(x: Any) -> Any:
    y = x.exp()
    return y * y, y


def _picked(x: Any) -> Any:
    order = x.argsort()
    return x[order] * x, order


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp(),) * 2,
        lambda x: (x.exp().view(2, 3),) * 2,
        lambda x: (x.exp().clone(),) * 2,
        lambda x: ((x * 3).sin(), x * 1),
        lambda x: (x.softmax(0),) * 2,
        lambda x: ((x * 1).exp_(),) * 2,
        _square,
        _picked,
    ],
)
def test_a_result_that_is_written_before_it_is_differentiated(
    function: Callable[[Any], Any], number: int
) -> None:
    def gradient(t: Any, run: Callable[[Any], Any]) -> list[float] | str:
        x = t.linspace(0.1, 1, 6).requires_grad_()
        results = run(x)
        results[number].detach().mul_(2)
        try:
            results[0].sum().backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        return [round(v, 4) for v in x.grad.tolist()]

    assert gradient(webtorch, webtorch.compile(function)) == gradient(torch, function)


def test_what_the_graph_alone_has_is_no_result() -> None:
    net = webtorch.nn.Sequential(webtorch.nn.Linear(4, 4), webtorch.nn.Tanh(), webtorch.nn.ReLU())
    run = webtorch.compile(lambda x: net(x).sum())
    run(webtorch.ones(2, 4))
    (((captured, _),),) = run.captures.values()
    assert len(captured.targets) == 1
