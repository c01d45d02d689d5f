"""What PyTorch's own test files found: each call is made with both libraries, and their words and values compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from webtorch.as_torch.names import core, masked_parts, top
from webtorch.nn import switches as nn_switches
from webtorch.utils import data, swap_tensors

LIBS = {"torch": torch, "webtorch": webtorch}
BOTH = pytest.mark.parametrize("lib", LIBS.values(), ids=LIBS)


def said(call: Callable[[Any], object], lib: Any) -> tuple[type[BaseException], str]:
    """Return the error of a call."""
    kinds = RuntimeError, TypeError, ValueError, IndexError, AssertionError, AttributeError
    with pytest.raises(kinds) as found:
        call(lib)
    return found.type, str(found.value)


def adaptive(kind: str, rank: int, shape: tuple[int, ...], out: int) -> Callable[[Any], object]:
    """Return a backward pass of an adaptive pool."""

    def call(lib: Any) -> object:
        x = lib.rand(shape).requires_grad_()
        return getattr(lib.nn.functional, f"adaptive_{kind}_pool{rank}d")(x, out).sum().backward()

    return call


def written_places(kind: str, rank: int) -> Callable[[Any], object]:
    """Return a backward pass of a pool whose indices were written."""

    def call(lib: Any) -> object:
        x = lib.rand((2, 2) + (4,) * rank).requires_grad_()
        out, places = getattr(lib.nn, f"{kind}{rank}d")(2, return_indices=True)(x)
        places.add_(1)
        return out.sum().backward()

    return call


def fractional(rank: int, shape: tuple[int, ...], *args: Any, **options: Any) -> Callable[..., Any]:
    """Return a fractional pool."""

    def call(lib: Any) -> object:
        more = {n: lib.rand(v) if n == "_random_samples" else v for n, v in options.items()}
        pool = getattr(lib.nn.functional, f"fractional_max_pool{rank}d")
        return pool(lib.rand(shape), *args, **more)

    return call


def bag(offsets: list[int], written: bool = False, **options: Any) -> Callable[[Any], object]:
    """Return a call of embedding_bag."""

    def call(lib: Any) -> object:
        at = lib.tensor(offsets)
        if written:
            at[0] = 1
        table = lib.rand(10, 4)
        return lib.nn.functional.embedding_bag(lib.ones(12).long(), table, at, **options)

    return call


def written_index(lib: Any) -> object:
    """Write an index that is out of range, and use it."""
    index = lib.zeros(3).long()
    index[1] = 7
    return lib.zeros(3, 5).index_copy_(1, index, lib.ones(3, 3))


def stepped(lib: Any, kind: str, fused: bool | None = None, **made: Any) -> object:
    """Return a step of an optimizer."""
    p = lib.ones(2, 2, **made).requires_grad_()
    p.grad = lib.ones(2, 2, **made)
    options = {} if fused is None else {"fused": fused}
    return getattr(lib.optim, kind)([p], **options).step()


def other_shapes(lib: Any) -> object:
    """Checkpoint what computes other shapes the second time."""
    calls: list[int] = []

    def part(x: Any) -> Any:
        calls.append(1)
        return x.sin() * lib.ones(len(calls))

    x = lib.ones(1, requires_grad=True)
    out = lib.utils.checkpoint.checkpoint(part, x, use_reentrant=False, debug=True)
    return out.sum().backward()


def both_hooks(lib: Any) -> object:
    """Register hooks of both kinds."""
    layer = lib.nn.Linear(1, 1)
    layer.register_backward_hook(print)
    return layer.register_full_backward_hook(print)


ERRORS: dict[str, Callable[[Any], object]] = {
    "avg 2d of no outputs": adaptive("avg", 2, (1, 4, 5, 5), 0),
    "avg 1d of no outputs, unbatched": adaptive("avg", 1, (1, 8), 0),
    "avg 1d without channels": adaptive("avg", 1, (2, 0, 8), 2),
    "avg 3d without channels": adaptive("avg", 3, (2, 0, 4, 4, 4), 2),
    "max 2d of no outputs": adaptive("max", 2, (2, 3, 5, 5), 0),
    "max 1d without channels": adaptive("max", 1, (2, 0, 8), 2),
    "max 1d written": written_places("MaxPool", 1),
    "max 2d written": written_places("MaxPool", 2),
    "adaptive max 2d written": written_places("AdaptiveMaxPool", 2),
    "fractional without channels": fractional(2, (1, 0, 8, 8), 3, output_ratio=(0.5, 0.5)),
    "fractional samples": fractional(2, (1, 4, 8, 8), 2, 1, _random_samples=(0, 4, 2)),
    "fractional samples of channels": fractional(2, (1, 4, 8, 8), 2, 1, _random_samples=(1, 3, 2)),
    "fractional samples of dims": fractional(3, (1, 4, 8, 8, 8), 2, 1, _random_samples=(1, 4, 2)),
    "fractional window": fractional(2, (1, 4, 8, 8), 7, 8),
    "fractional sizes": fractional(3, (1, 4, 8, 8, 8), (2, 2), 2),
    "bags that begin late": bag([0, 1, 2], written=True),
    "bags of padding": bag([0, 3], padding_idx=10),
    "an index that was written": written_index,
    "an index of one number": lambda lib: lib.zeros(3, 5).index_copy_(
        1, lib.full((3,), 5), lib.ones(3, 3)
    ),
    "put beside its places": lambda lib: lib.zeros(4).put(lib.tensor([0, 1]), lib.zeros(3)),
    "put of another type": lambda lib: lib.zeros(2).put_(lib.tensor([0]), lib.zeros(1).half()),
    "put at int32": lambda lib: lib.zeros(4).put_(lib.tensor([0]).int(), lib.zeros(1)),
    "a complex number": lambda lib: lib.zeros(3).index_fill_(0, lib.tensor([0]), 1j),
    "map2_": lambda lib: lib.zeros(3).map2_(
        lib.ones(3), lib.ones(3).requires_grad_(), lambda a, _b, _c: a
    ),
    "out= of cummax": lambda lib: lib.cummax(
        lib.ones(3), 0, out=(lib.empty(3, dtype=lib.int16), lib.empty(3).long())
    ),
    "a mode that is a number": lambda lib: lib.use_deterministic_algorithms(1),
    "types of a convolution": lambda lib: lib.nn.functional.conv2d(
        lib.ones(1, 1, 3, 3).double(), lib.ones(1, 1, 1, 1)
    ),
    "a place beyond the volume": lambda lib: lib.nn.functional.max_unpool2d(
        lib.ones(1, 1, 2, 2), lib.full((1, 1, 2, 2), 30), 3, 2
    ),
    "rtol with a gradient": lambda lib: lib.isclose(
        lib.ones(2), lib.ones(2), lib.tensor(1.5, requires_grad=True)
    ),
    "apply_ with a text": lambda lib: lib.ones(2).apply_(lambda _: "text"),
    "a device below zero": lambda lib: lib.device(-1),
    "an index into nothing": lambda lib: lib.index_select(lib.ones(0, 2), 0, lib.tensor([1])),
    "pooling two dims": lambda lib: lib.nn.functional.max_pool2d(lib.ones(3, 4), 1),
    "a way to start that is none": lambda lib: lib.utils.data.DataLoader(
        [1], num_workers=1, multiprocessing_context="none"
    ),
    "a context that is none": lambda lib: lib.utils.data.DataLoader(
        [1], num_workers=1, multiprocessing_context=b""
    ),
    "lengths that are no integers": lambda lib: lib.nn.functional.ctc_loss(
        lib.zeros(4, 1, 3), lib.ones(1, 2).long(), lib.tensor([4.0]), lib.tensor([2])
    ),
    "three ratios for two dims": lambda lib: lib.nn.functional.fractional_max_pool2d(
        lib.ones(1, 1, 4, 4), 2, output_ratio=(0.5, 0.5, 0.5)
    ),
    "many targets": lambda lib: lib.nn.functional.nll_loss(lib.ones(2, 3), lib.ones(2, 2).long()),
    "angles of integers": lambda lib: lib.cosine_similarity(lib.tensor([1]), lib.tensor([2])),
    "a cell's second state": lambda lib: lib.nn.LSTMCell(2, 3)(
        lib.ones(4, 2), (lib.ones(4, 3), lib.ones(1, 3))
    ),
    "steps of two types": lambda lib: lib.heaviside(lib.ones(2), lib.ones(2).half()),
    "bins of no range": lambda lib: lib.histc(lib.ones(2).long(), 2, 3, 1),
    "copies of modules": lambda lib: lib.nn.Linear(1, 1).to("cpu", copy=True),
    "classes of nothing": lambda lib: lib.nn.functional.multi_margin_loss(
        lib.ones(0), lib.zeros(10).long()
    ),
    "a class that there is not": lambda lib: lib.nn.functional.multi_margin_loss(
        lib.ones(2, 3), lib.tensor([1, 9])
    ),
    "a file that is none": lambda lib: lib.save(lib.ones(1), 5),
    "a stream that is none": lambda lib: lib.load(5),
    "a mapped stream": lambda lib: lib.load(BytesIO(b"123"), mmap=True),
    **{
        f"a dim of a number: {n}": lambda lib, n=n: getattr(lib.tensor(1.5), n)(100)
        for n in ("mode", "flip", "unbind", "cummax")
    },
    "a long kernel": lambda lib: lib.nn.functional.conv1d(lib.ones(1, 1, 4), lib.ones(1, 1, 10)),
    "a complex parameter of Adafactor": lambda lib: stepped(lib, "Adafactor", dtype=lib.complex64),
    "two kinds of backward hooks": both_hooks,
    "a size of floats": lambda lib: lib.Size(lib.ones(3)),
    "an old type of much": lambda lib: lib.LongTensor((6, 0), 1, 1, 0),
    "two of a scalar": lambda lib: lib.tensor(1.0).index_select(0, lib.tensor([0, 0])),
    "dims of no one order": lambda lib: lib.empty(1, 2, 3).dim_order(ambiguity_check=True),
    "a negative variance": lambda lib: lib.nn.functional.gaussian_nll_loss(
        lib.ones(2), lib.ones(2), -1 * lib.ones(2)
    ),
    "probabilities that are integers": lambda lib: lib.nn.functional.cross_entropy(
        lib.ones(2, 3), lib.ones(2, 3).long()
    ),
    "weights of another type": lambda lib: lib.nn.functional.cross_entropy(
        lib.ones(2, 3).double(), lib.ones(2).long(), lib.ones(3)
    ),
    "weights of another type, alone": lambda lib: lib.nn.functional.nll_loss(
        lib.ones(2, 3), lib.ones(2).long(), lib.ones(3).half()
    ),
    "a size that is no integer": lambda lib: lib.nn.functional.interpolate(
        lib.ones(1, 1, 4, 4), size=(2.0, 2.0)
    ),
    "windows of no channels": lambda lib: lib.nn.functional.unfold(lib.ones(3, 0, 3, 4), 2),
    "a grid of two dims": lambda lib: lib.nn.functional.grid_sample(
        lib.ones(1, 2, 2), lib.ones(1, 1, 1, 2), align_corners=False
    ),
    "a volume's real transform": lambda lib: lib.fft.rfftn(lib.ones(4, dtype=lib.complex64)),
    "the complex type of integers": lambda lib: lib.int32.to_complex(),
    "a format of no layout": lambda lib: lib.empty_like(
        lib.eye(2).to_sparse(), memory_format=lib.preserve_format
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_pytorchs_words(name: str) -> None:
    kind, text = said(ERRORS[name], torch)
    ours, message = said(ERRORS[name], webtorch)
    assert issubclass(ours, kind)
    expected = text.split(". ")[0].split("\n")[0].rstrip(".:").replace("3d_out()", "3d()")
    if "modified by an inplace" in expected:
        # PyTorch's shapes have a dim more where it pools rows as images.
        expected = expected.split(": [")[0]
    assert expected in message


def switched(lib: Any) -> list[Any]:
    """Set the switch of deterministic algorithms in all ways."""
    found = []
    for mode, warns in ((False, True), (True, True), (True, False), (False, False)):
        lib.use_deterministic_algorithms(mode, warn_only=warns)
        found += [
            lib.is_deterministic_algorithms_warn_only_enabled(), lib.get_deterministic_debug_mode()
        ]  # fmt: skip
    return found


def unscaled(lib: Any, *values: float) -> list[Any]:
    """Unscale a sparse gradient in which two values lie at one place."""
    p = lib.zeros(3, dtype=lib.float16)
    p.grad = lib.sparse_coo_tensor(lib.tensor([[0, 2, 0]]), lib.tensor(values).half(), (3,))
    optimizer = lib.optim.SGD([p], lr=1.0)
    scaler = lib.amp.GradScaler("cpu")
    args = optimizer, lib.tensor([0.25]), lib.zeros(1), True
    found = scaler._unscale_grads_(*args)
    return [list(map(float, found.values())), p.grad.to_dense().tolist()]


def reduced(lib: Any, name: str, **more: Any) -> list[Any]:
    """Reduce what a mask leaves over all dims, as () has it."""
    x, mask = lib.arange(6.0).reshape(2, 3), lib.tensor([[True, False, True]] * 2)
    call = getattr(lib.masked, name)
    return [call(x, dim=d, mask=m, **more).tolist() for d in ((), [0], None) for m in (mask, None)]


def picked(lib: Any, index: Any) -> list[Any]:
    """Read and write by an index."""
    x = lib.arange(16.0).view(4, 4)
    found = [tuple(x[index].shape), x[index].tolist()]
    x[index] = -1
    return [*found, x.sum().item()]


def seen(x: Any, name: str) -> bool:
    """Whether a tensor has something, or says why it has not."""
    try:
        return hasattr(x, name)
    except RuntimeError:
        return True


def data_of(x: Any) -> str:
    """Give a tensor no data."""
    with pytest.raises(TypeError, match="Variable data has to be a tensor") as found:
        x.data = None
    return str(found.value)


def of_inference(lib: Any) -> list[Any]:
    """Views of tensors that were made in inference mode, and what becomes of them in place."""
    found: list[Any] = []
    with lib.inference_mode():
        x = lib.ones(1, 2, 3, requires_grad=True)
        found += [x.view(-1).requires_grad, x.resize_(1, 2).requires_grad]
    y = x.view(-1)
    return [*found, y.requires_grad, y._is_view(), y.is_leaf, y.is_inference()]


def turned(lib: Any) -> list[str]:
    """Turn a tensor in place that has views, one of which gradients cannot follow."""
    x = lib.ones(1, 2, 3, requires_grad=True).clone()
    with lib.inference_mode():
        unrecorded = x.view(-1)
    view = x[:1]
    x.transpose_(0, 1)
    try:
        name = unrecorded.grad_fn
    except RuntimeError as error:
        name = str(error)[:60]
    return [view.grad_fn.name(), name]


def names_of(fn: Any) -> object:
    """Return the names of a gradient function and of those that it leads to."""
    name = fn and fn.name().removeprefix("torch::autograd::")
    return fn and [name, *(names_of(one) for one, _ in fn.next_functions)]


def twice_differentiated(lib: Any) -> list[Any]:
    """Keep the graph of gradients, of which one may be differentiated once only."""

    class Once(lib.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, n: Any, y: Any) -> Any:
            return x + n * y

        @staticmethod
        @lib.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2, None, g

    x, y = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    start = lib.ones((), requires_grad=True)
    Once.apply(x, 2, y).sum().backward(start, create_graph=True)
    return [x.grad.tolist(), names_of(x.grad.grad_fn), names_of(y.grad.grad_fn)]


def old_hooks(lib: Any) -> list[str]:
    """Return what is said of old backward hooks, which see a part of the gradients."""

    class Calls(lib.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *args: Any) -> Any:
            """Call the function."""
            return self.function(*args)

    a, b, found = lib.ones(2, requires_grad=True) * 1, lib.ones(2, requires_grad=True) * 2, []
    for function, args in (
        (lambda pair: (pair[0].clone(), pair[1].clone()), ([a, b],)),
        (lambda a, b: [a.clone(), b.clone()], (a, b)),
        (lambda a, b: (a.clone(), b.clone()), (a, b)),
        (lambda a: a.clone().clone(), (a,)),
        (lambda a: a.clone(), (a,)),
    ):
        module = Calls(function)
        module.register_backward_hook(lambda *_: None)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            module(*args)
        found.append([str(w.message) for w in said if w.category is FutureWarning])
    return found


def drawn(lib: Any, draw: Callable[[Any], Any]) -> list[Any]:
    """Draw from a distribution of a parameter: its gradient and tangent are zero."""
    p = lib.tensor([0.25, 0.5], requires_grad=True)
    draw(p).sum().backward()
    ad = lib.autograd.forward_ad
    with ad.dual_level():
        dual = ad.make_dual(p.detach(), lib.ones(2))
        return [p.grad.tolist(), ad.unpack_dual(draw(dual)).tangent.tolist()]


def small_concentrations(lib: Any, dtype: Any) -> list[Any]:
    """Samples of Beta lie within (0, 1), and near both ends, also where those of gamma underflow."""
    lib.manual_seed(0)
    c = lib.tensor(1e-2, dtype=dtype)
    x = lib.distributions.Beta(c, c).sample([2000])
    ends = [float((x < 0.1).float().mean()), float((x > 0.9).float().mean())]
    return [bool(((x > 0) & (x < 1)).all()), *(abs(e - 0.49) < 0.05 for e in ends)]


def swapped(lib: Any) -> list[Any]:
    """Convert a module whose parameters are to be swapped: they stay, with other contents."""
    switches = torch.__future__ if lib is torch else nn_switches
    switch = switches.set_swap_module_params_on_conversion
    layer = lib.nn.Linear(1, 1)
    layer(lib.ones(1, 1)).sum().backward()
    weight, grad, bias = layer.weight, layer.weight.grad, layer.bias._cdata
    before = weight._cdata, grad._cdata
    switch(True)
    try:
        layer.double()
    finally:
        switch(False)
    assert layer.weight is weight and weight.grad is grad
    found = [weight._cdata != before[0], grad._cdata != before[1], layer.bias._cdata != bias]
    return [*found, grad.tolist(), weight.is_leaf, str(weight.dtype)[-2:], str(grad.dtype)[-2:]]


def identities(lib: Any) -> list[bool]:
    """What a tensor is stays with its data, and goes with a swap."""
    x, y = lib.ones(1), lib.ones(1)
    before = x._cdata, y._cdata
    x.data = lib.zeros(2)
    found = [before == (x._cdata, y._cdata)]
    lib.utils.swap_tensors(x, y)
    return [*found, before == (y._cdata, x._cdata)]


# What a call gives, as plain numbers.
VALUES: dict[str, Callable[[Any], object]] = {
    "products of complex numbers": lambda lib: lib.tensor([[2j, 1 + 1j, 3]]).scatter_reduce(
        1, lib.tensor([[0, 0, 2, 0]]), lib.tensor([[1j, 2.0, 1 - 1j, 3.0]]), "prod"
    ),
    "switches of deterministic algorithms": switched,
    "an order of dims by formats": lambda lib: (
        lib.empty(1, 2, 2, 2)
        .to(memory_format=lib.channels_last)
        .dim_order(ambiguity_check=[lib.contiguous_format, lib.channels_last])
    ),
    "a meta tensor in a text": lambda lib: format(lib.empty((), device="meta")),
    "a size of a tensor": lambda lib: lib.Size(lib.tensor([3, 2])),
    "a sparse gradient, unscaled": lambda lib: unscaled(lib, 16, 32, 64),
    "one that is too large for its type": lambda lib: unscaled(lib, 64000, 32, 64000),
    "data that is none": lambda lib: data_of(lib.ones(2)),
    "tensors of inference mode": of_inference,
    "turned in place": turned,
    "numbers among inputs": lambda lib: [
        [fn is None for fn, _ in f(lib.ones(2, requires_grad=True)).grad_fn.next_functions]
        for f in (
            lambda x: x + 5,
            lambda x: 5 + x,
            lambda x: x - 1,
            lambda x: 2 * x,
            lambda x: x / 2,
            lambda x: x**2,
            lambda x: x + x,
            lambda x: x * lib.ones(2),
            lambda x: x.clamp(1.0),
            lambda x: (x + 1).sum(),
        )
    ],
    "an expanded Wishart": lambda lib: [
        lib.distributions.Wishart(lib.tensor([4.0]), m).expand((2, 1)).log_prob(m).tolist()
        for m in (lib.eye(2) * 2, lib.eye(2).expand(1, 2, 2))
    ],
    "gradients of drawn numbers": lambda lib: [
        drawn(lib, f)
        for f in (
            lib.bernoulli,
            lib.poisson,
            lambda p: lib.normal(p, p),
            lambda p: lib.normal(0.0, p),
            lambda p: lib.normal(p, 1.0),
        )
    ],
    "small concentrations": lambda lib: [
        small_concentrations(lib, t) for t in (lib.float32, lib.float64)
    ],
    "identities of tensors": identities,
    "a transposed number": lambda lib: [
        [f(lib.tensor(3.0)).item() for f in (lib.adjoint, lambda x: x.mT, lambda x: x.mH)],
        lib.ones(1, requires_grad=True).clamp(0, 1).grad_fn.name(),
    ],
    "signs of determinants": lambda lib: [
        x.requires_grad for x in lib.linalg.slogdet(lib.eye(2).requires_grad_())
    ],
    "gamma functions of matrices": lambda lib: [
        round(v, 3) for v in lib.mvlgamma(lib.tensor([3.5, 7.0]), 5).tolist()
    ],
    "swapped parameters": swapped,
    "distances of unsigned numbers": lambda lib: [
        lib.isclose(lib.tensor([0, 5, n], dtype=t), lib.tensor([1, 4, 0], dtype=t), 0, 1).tolist()
        for t, n in ((lib.uint8, 128), (lib.uint16, 2**15), (lib.uint32, 2**31))
    ],
    "angles of two types": lambda lib: lib.cosine_similarity(
        lib.tensor(12, dtype=lib.int8), lib.tensor(2.0), -1
    ).item(),
    "gradients of groups of nothing": lambda lib: [
        p.grad.tolist()
        for m in (lib.nn.GroupNorm(1, 2),)
        for p in (m(lib.zeros(0, 2)).sum().backward(), *m.parameters())[1:]
    ],
    "a replica": lambda lib: sorted(
        vars(lib.nn.Linear(1, 1)._replicate_for_data_parallel())["_parameters"]
    ),
    "functions of gradients": twice_differentiated,
    "words of old backward hooks": old_hooks,
    "names of a tensor": lambda lib: [n for n in dir(lib.eye(2)) if not seen(lib.eye(2), n)],
    "lists for tuples of indices": lambda lib: [
        picked(lib, index)
        for index in (
            [[1, 3, 1], [0]],
            [[0, 1], [1, 1]],
            [[0, 1]],
            [[0], 1],
            [None, 1],
            [range(2), 1],
            [0, 1],
        )
    ],
    **{f"masked {n}": lambda lib, n=n: reduced(lib, n) for n in ("sum", "mean", "amax", "var")},
}


@pytest.mark.filterwarnings(
    "ignore:Sparse invariant",
    "ignore:Using a non-tuple",
    "ignore:Using backward",
    "ignore:.* is deprecated on 0-D",
)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_pytorchs(name: str) -> None:
    found, expected = VALUES[name](webtorch), VALUES[name](torch)
    assert str(found) == str(expected)


@pytest.mark.filterwarnings("ignore:torch.jit.script", "ignore:`torch.jit.script` is")
@BOTH
def test_what_is_refused(lib: Any) -> None:
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating"):
        stepped(lib, "AdamW", device="meta", fused=True)
    with pytest.raises(RuntimeError, match="because you passed `debug=True` to checkpoint"):
        other_shapes(lib)
    with pytest.raises((RuntimeError, TypeError), match="not implemented"):
        lib.aminmax(lib.tensor(1j), dim=0)
    with pytest.raises(RuntimeError, match="run a forward pass"):
        lib.jit.script(lib.nn.LazyLinear(2))


def test_parts_of_masked() -> None:
    x, mask = [[1.0, 2], [3, 4]], [[True, False], [False, False]]
    for name in ("amax", "amin", "sum", "prod", "mean", "norm", "median", "logsumexp"):
        args = (-float("inf"),) if name == "norm" else ()
        expected = torch.masked._ops._reduction_identity(name, torch.tensor(x), *args)
        found = masked_parts._reduction_identity(name, webtorch.tensor(x), *args)
        assert str(found) == str(expected)
    for op in ("sum", "cumsum"):
        for dim in (0, None):
            expected, found = (
                parts._output_mask(
                    getattr(lib.masked, op), lib.tensor(x), dim, mask=lib.tensor(mask)
                )
                for lib, parts in ((torch, torch.masked._ops), (webtorch, masked_parts))
            )
            assert found.tolist() == expected.tolist()


def test_pools_without_elements() -> None:
    for lib in (torch, webtorch):
        assert fractional(2, (0, 4, 8, 8), 3, output_ratio=(0.5, 0.5))(lib).shape == (0, 4, 4, 4)
        assert fractional(3, (2, 4, 8, 8, 8), (3, 2, 2), (0, 1, 1))(lib).shape == (2, 4, 0, 1, 1)
        x = lib.rand(0, 3, 4, 4).requires_grad_()
        lib.nn.functional.adaptive_max_pool2d(x, 2).sum().backward()
        assert x.grad.shape == (0, 3, 4, 4)


@BOTH
def test_volumes_keep_their_channels_innermost(lib: Any) -> None:
    x = lib.rand(1, 4, 6, 6, 6).contiguous(memory_format=lib.channels_last_3d)
    for volumes in (x, x.squeeze(0)):
        out, places = lib.nn.functional.max_pool3d(volumes, 2, return_indices=True)
        assert out.stride()[-4:] == places.stride()[-4:] == (1, 36, 12, 4)


@BOTH
def test_algorithms_that_pytorch_has_no_other_of(lib: Any) -> None:
    pool = lib.nn.MaxUnpool1d(3, 1)
    words = "max_unpooling2d_forward_out does not have a deterministic implementation"
    try:
        lib.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match=words):
            pool(lib.ones(1, 1, 7), lib.zeros(1, 1, 7).long())
        x = lib.zeros(2)
        x.resize_(4)
        assert x.isnan().tolist() == [False, False, True, True]
        lib.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match=words):
            pool(lib.ones(1, 1, 7), lib.zeros(1, 1, 7).long())
    finally:
        lib.use_deterministic_algorithms(False)


def test_the_core_answers() -> None:
    x = webtorch.tensor([[0, 1], [2, 3]])
    clone = x._lazy_clone()
    view = x.view(4)
    assert core._is_cow_tensor(x) and core._is_cow_tensor(clone) and core._is_cow_tensor(view)
    assert core._storage_address(view) == core._storage_address(x) != core._storage_address(clone)
    assert core._data_address(clone) == core._data_address(x)
    before = core._data_address(x)
    view += 1
    assert not core._is_cow_tensor(x) and core._is_cow_tensor(clone)
    assert (x.tolist(), clone.tolist()) == ([[1, 2], [3, 4]], [[0, 1], [2, 3]])
    assert core._data_address(clone) == before != core._data_address(x)
    for shape, transposed, dilation in (
        ((2, 6, 7), False, 1),
        ((2, 6, 7, 8), True, 1),
        ((2, 6, 7, 8, 9), False, 2),
    ):
        rank = len(shape) - 2
        rest = (None, (1,) * rank, (0,) * rank, (dilation,) * rank, transposed, (0,) * rank, 1)
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            args = torch.rand(shape)[..., ::2], torch.rand((6, 6) + (3,) * rank)[..., ::2]
            expected = torch._C._select_conv_backend(*args, *rest)
        found = core._select_conv_backend(
            webtorch.rand(shape)[..., ::2], webtorch.rand((6, 6) + (3,) * rank)[..., ::2], *rest
        )
        assert found.name == expected.name


def test_names_of_torch_itself() -> None:
    for lib, names in ((torch, torch), (webtorch, top)):
        scale, count, bad = lib.full((1,), 4.0), lib.zeros(1, dtype=lib.int32), lib.zeros(1)
        for _ in range(2):
            names._amp_update_scale_(scale, count, bad, 2.0, 0.5, 2)
        assert (scale.item(), count.item()) == (8, 0)
        names._amp_update_scale_(scale, count, bad.fill_(1), 2.0, 0.5, 2)
        assert scale.item() == 4
        assert names._debug_has_internal_overlap(lib.rand(1, 3).expand(4, 3)) == 1
        assert names._debug_has_internal_overlap(lib.rand(10).as_strided((2, 1, 5), (1, 0, 2))) == 0
        assert names._debug_has_internal_overlap(lib.rand(20).as_strided((3, 3), (5, 1))) == 2
        x = lib.tensor([-2.0, 3])
        add = torch._VF._add_relu if lib is torch else top._add_relu
        assert add(x, lib.ones(2)).tolist() == [0, 4]


def test_products_that_pytorch_has_for_its_compiler() -> None:
    found = []
    for lib, names in ((torch, torch), (webtorch, top)):
        x = lib.tensor([[1.0, -2.0, 0.5, 3.0] * 8])
        weights = lib.arange(512).reshape(16, 32) % 97
        packed = names._convert_weight_to_int4pack_for_cpu((weights % 16).int(), 2)
        factors = lib.tensor([[[0.5, 1.0], [2.0, -1.0]] * 8])
        halves = x.bfloat16(), packed, 32, factors.bfloat16()
        m, a, b = lib.tensor([0.5, -4.0]), lib.ones(1, 3), lib.tensor([[1.0, 2.0]] * 3)
        found += [
            names._weight_int8pack_mm(halves[0], (weights - 30).to(lib.int8), factors[0, :, 0].bfloat16()).tolist(),
            names._weight_int4pack_mm_for_cpu(*halves).tolist(),
            names._addmm_activation(m, a, b, beta=2, alpha=-1).tolist(),
            names._addmm_activation(m, a, b, use_gelu=True).tolist(),
        ]  # fmt: skip
    for expected, actual in zip(found[:4], found[4:], strict=True):
        assert actual == [pytest.approx(row, rel=1e-2, abs=1e-5) for row in expected]


def test_attention_that_pytorch_has_for_its_layers() -> None:
    found = []
    numbers = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    for lib, names in ((torch, torch), (webtorch, top)):
        n = lib.tensor(numbers)
        q, k, v = (n[i * 48 : i * 48 + 48].reshape(2, 3, 8) for i in range(3))
        weights = n[:192].reshape(24, 8), n[192:216], n[216:280].reshape(8, 8), n[280:288]
        padding = lib.tensor([[False, False, True], [True, True, True]])
        hidden = lib.ones(3, 3).triu(1).bool()
        kinds = (None, None), (padding, 1), (hidden, 0), (hidden.expand(2, 2, 3, 3), 2)
        for average, (mask, kind) in zip((True, False, True, False), kinds, strict=True):
            given = q, k, v, 8, 2, *weights, mask, True, average, kind
            found += [t.tolist() for t in names._native_multi_head_attention(*given)]
        assert (
            names._native_multi_head_attention(q, q, q, 8, 2, *weights, need_weights=False)[1]
            is None
        )
        with lib.inference_mode():
            parts = names._transform_bias_rescale_qkv(n[:144].reshape(2, 3, 24), weights[1], 2)
        found += [t.tolist() for t in parts]
    for expected, actual in zip(found[:11], found[11:], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@BOTH
@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_the_sizes_that_paddings_of_a_mode_have(lib: Any, mode: str) -> None:
    for shape, pad in (((1, 2, 3, 4), (1, 1)), ((2, 3, 4), (1,) * 6), ((4,), (1, 1)), ((3, 4), ())):
        with pytest.raises(NotImplementedError) as caught:
            lib.nn.functional.pad(lib.ones(shape), pad, mode)
        assert str(caught.value) == (
            f"Padding size {len(pad)} is not supported for {len(shape)}D input tensor.\n"
            "Supported combinations for non-constant padding:\n"
            "  - 2D or 3D input: padding size = 2 (pads last dimension)\n"
            "  - 3D or 4D input: padding size = 4 (pads last 2 dimensions)\n"
            "  - 4D or 5D input: padding size = 6 (pads last 3 dimensions)"
        )


@BOTH
def test_dims_are_whole_numbers(lib: Any) -> None:
    x = lib.ones(2, 2)
    with pytest.raises(TypeError):
        lib.linalg.vector_norm(x, dim=(0, 1.0))
    with pytest.raises(TypeError):
        lib.linalg.vector_norm(x, dim=(None,))


@BOTH
def test_new_takes_what_pytorchs_takes(lib: Any) -> None:
    x, y = lib.tensor([]), lib.rand(2, 2)
    assert x.new(size=(3, 4)).shape == (3, 4)
    assert x.new(y).data_ptr() == x.new(y.untyped_storage()).data_ptr() == y.data_ptr()
    with pytest.raises(TypeError):
        x.new(lib.IntTensor([1]))


@BOTH
def test_a_buffer_of_a_class_from_before_persistent(lib: Any) -> None:
    class Old(lib.nn.Module):  # type: ignore[misc, name-defined]
        def register_buffer(self, name: str, value: Any) -> None:
            """Register one, persistent."""
            super().register_buffer(name, value, True)

    module = Old()
    module.bar = lib.nn.Buffer(lib.ones(2))
    assert list(module.state_dict()) == ["bar"]
    with pytest.warns(UserWarning, match="Complex modules are a new feature"):
        lib.nn.Linear(2, 2).to(lib.complex64)


class Failing(data.Dataset[int]):
    """A dataset of which nothing can be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise NotImplementedError("not this one")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_after_an_error(workers: int) -> None:
    batches, errors = iter(data.DataLoader(Failing(), batch_size=2, num_workers=workers)), 0
    while True:
        try:
            next(batches)
        except NotImplementedError:
            errors += 1
        except StopIteration:
            break
    assert errors == 2


def test_tensors_change_places() -> None:
    a, b = webtorch.ones(2), webtorch.nn.Parameter(webtorch.zeros(3))
    a.note = "a"
    swap_tensors(a, b)
    assert (type(a).__name__, a.tolist(), b.tolist(), b.note) == (
        "Parameter",
        [0, 0, 0],
        [1, 1],
        "a",
    )
    x = webtorch.ones(2, requires_grad=True)
    out = (x * 2).sum()
    swap_tensors(x, webtorch.zeros(2))
    with pytest.raises(RuntimeError, match="poisoned by swap_tensors"):
        out.backward()


# Writes to tensors whose elements share places: PyTorch does some, with a warning.
SHARED_WRITES: dict[str, Callable[[Any, Any, Any], object]] = {
    "index_fill": lambda lib, x, at: x.index_fill_(1, at, 1.0),
    "index_put": lambda lib, x, at: x.index_put_((at[:2], at), lib.arange(3.0) + 5),
    "accumulated": lambda lib, x, at: x.index_put_((at[:1], at), lib.arange(3.0), accumulate=True),
    "masked_fill": lambda lib, x, at: x.masked_fill_(mask=lib.arange(6) > 3, value=2.0),
    "by a 0-d tensor": lambda lib, x, at: x.masked_fill_(lib.arange(6) > 3, lib.tensor(2.0)),
    "x[mask]": lambda lib, x, at: x.__setitem__(x == 0, 3.0),
    "x[indices]": lambda lib, x, at: x.__setitem__((at[1:], at[1:]), 3.0),
    "masked_scatter": lambda lib, x, at: x.masked_scatter_(x == 0, x + 1),
    "its own mask": lambda lib, x, at: (x[0] > 2)[1:].masked_fill_((x[0] > 2)[:-1], False),
}


@pytest.mark.parametrize("name", SHARED_WRITES)
def test_writes_to_places_that_elements_share(name: str) -> None:
    def run(lib: Any) -> object:
        x, at = lib.zeros(3, 1).expand(3, 6), lib.tensor([2, 1, 0])
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            try:
                SHARED_WRITES[name](lib, x, at)
            except (RuntimeError, IndexError) as error:
                return str(error)[:60]
        # PyTorch's last warning: with a mask it warns of both ways that it takes.
        return x.tolist(), [str(w.message)[:60] for w in found][-1:]

    assert run(webtorch) == run(torch)


@BOTH
def test_functions_of_the_graph(lib: Any) -> None:
    x = lib.rand(3, 3).requires_grad_()
    spread, mean = lib.var_mean(x, dim=0)
    assert spread.grad_fn is mean.grad_fn
    mean.grad_fn.register_prehook(lambda grads: tuple(2 * g for g in grads))
    order: list[str] = []
    a, b = spread + 1, mean + 2
    for name, y in (("a", a), ("b", b)):
        y.register_hook(lambda _, name=name: order.append(name))
    a.grad_fn._set_sequence_nr(b.grad_fn._sequence_nr() + 1)
    (a + b).sum().backward()
    assert order == ["a", "b"]
    (other,) = lib.autograd.grad(sum(y.sum() for y in lib.var_mean(x, dim=0)), x)
    assert lib.allclose(x.grad, 2 * other)


@BOTH
def test_hooks_after_a_gradient_was_added_see_it(lib: Any) -> None:
    x = lib.ones(3).requires_grad_()
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda x: x.grad.__setitem__(slice(None), 1.5))
    end = x.view_as(x).grad_fn.next_functions[0][0]
    end.register_hook(lambda _, grads: setattr(x, "grad", grads[0] * 10))
    x.sum().backward()
    assert x.grad.tolist() == [15.0] * 3


def test_tracing_raises_what_the_function_raises() -> None:
    def refuses(_x: object) -> None:
        raise NotImplementedError

    for lib in (torch, webtorch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(NotImplementedError):
                lib.jit.trace(refuses, lib.ones(2))


LAID: dict[str, Callable[[Any, Any], Any]] = {
    "padded": lambda lib, x: lib.nn.functional.pad(x, (1, 1), value=2.0),
    "of all": lambda lib, x: lib.nn.functional.adaptive_avg_pool2d(x, 1),
    "of some": lambda lib, x: lib.nn.functional.adaptive_avg_pool2d(x, 3),
    "of volumes": lambda lib, x: lib.nn.functional.max_pool3d(x, 2),
    "turned": lambda lib, x: lib.nn.functional.conv_transpose2d(x, lib.ones(2, 2, 2, 2)),
}


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", LAID)
def test_gradients_that_are_asked_for_lie_as_their_tensors(name: str, inner: bool) -> None:
    if name == "of all" and inner:
        # PyTorch's is row-major.
        return
    found = []
    for lib in (torch, webtorch):
        x = lib.ones(2, 2, 4, 4, 4) if name == "of volumes" else lib.ones(2, 2, 4, 4)
        form = f"channels_last{'_3d' if x.dim() == 5 else ''}" if inner else "contiguous_format"
        x = x.to(memory_format=getattr(lib, form)).requires_grad_()
        y = LAID[name](lib, x)
        (g,) = lib.autograd.grad(y, x, lib.ones_like(y))
        found.append((g.stride(), g.tolist()))
    assert found[0] == found[1]


@BOTH
def test_a_norm_of_an_empty_batch_has_gradients(lib: Any) -> None:
    norm = lib.nn.BatchNorm2d(3)
    norm(lib.ones(0, 3, 2, 2)).sum().backward()
    assert norm.weight.grad.tolist() == norm.bias.grad.tolist() == [0.0] * 3


@BOTH
def test_modules_keep_names_and_versions(lib: Any) -> None:
    parameters = lib.nn.ParameterDict()
    parameters.update({"b": lib.ones(1), "a": lib.ones(2)})
    assert list(parameters) == ["a", "b"]
    layer = lib.nn.Linear(2, 2)
    weight, version = layer.weight, layer.weight._version
    layer._apply(lambda x: x.mul_(2))
    assert layer.weight is weight and weight._version > version


@BOTH
def test_a_tensor_of_a_tensor_is_a_view_of_it(lib: Any) -> None:
    class Mine(lib.Tensor):  # type: ignore[misc, name-defined]
        pass

    x = lib.ones(2, requires_grad=True)
    for kind in (lib.Tensor, Mine):
        y = kind(x)
        assert type(y) is kind and y._is_view() and y._base is x
        (y * 3).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


@BOTH
def test_modes_and_classes_of_overrides(lib: Any) -> None:
    class Wrong(lib.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # fmt: skip
            return func(*args)

    with pytest.raises(RuntimeError, match="classmethod is not supported"), Wrong():
        lib.ones(1) + 1
    with pytest.raises(TypeError, match="expected a sequence"):
        lib.overrides.has_torch_function(object())
    stubs = lib.overrides.get_testing_overrides()
    assert stubs[lib.add](lib.ones(1), 1) == -1


@BOTH
def test_pythons_types_are_types_of_elements(lib: Any) -> None:
    x = lib.ones(2)
    # The second of a kind of call is remembered, the third one is not called any more.
    for _ in range(3):
        found = x.to(bool), x.to("cpu", dtype=int), x.sum(dtype=int), x.softmax(0, dtype=float)
        assert [y.dtype for y in found] == [lib.bool, lib.int64, lib.int64, lib.float64]
        assert x.cumsum(0, dtype=complex).dtype is lib.complex128
    assert lib.nn.Linear(2, 2).to(float).weight.dtype is lib.float64
    with pytest.raises(ValueError, match="invalid type: 'float'"):
        x.type(float)
    with pytest.raises(TypeError):
        x.to(dict)


def test_dims_of_masked_functions() -> None:
    for dim in (None, (), [], 1, -1, (2, 0), [-1, -3]):
        theirs = torch.masked._ops._canonical_dim(dim, 3)
        assert masked_parts._canonical_dim(dim, 3) == theirs
    with pytest.raises(RuntimeError, match="appears multiple times"):
        masked_parts._canonical_dim((0, 0), 2)


def test_softmax_with_a_mask() -> None:
    values, mask = [[1.0, 2.0, 3.0]] * 3, [[True, False, False], [False] * 3, [True] * 3]
    ours, theirs = (
        f(lib.tensor(values), lib.tensor(mask), 1, 2).flatten().tolist()
        for lib, f in ((webtorch, top._masked_softmax), (torch, torch._masked_softmax))  # type: ignore[attr-defined]
    )
    assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)


def test_old_backward_hooks_see_the_last_function() -> None:
    class Net(webtorch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"output": (x.relu() * 2).exp()}

    class Theirs(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"output": (x.relu() * 2).exp()}

    found = []
    for lib, net in ((torch, Theirs()), (webtorch, Net())):
        seen: list[Any] = []
        net.register_backward_hook(
            lambda module, ins, outs, seen=seen: seen.append([g.tolist() for g in (*ins, *outs)])
        )
        x = lib.tensor([1.0, -2.0], requires_grad=True)  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net(x)["output"].backward(lib.ones(2))  # type: ignore[attr-defined]
        found.append((seen, x.grad.tolist()))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)
    assert sum(map(sum, found[0][0][0])) == pytest.approx(sum(map(sum, found[1][0][0])), rel=1e-6)
    assert len(found[0][0][0]) == len(found[1][0][0]) == 2


@BOTH
def test_what_fills_may_lie_in_what_is_filled(lib: Any) -> None:
    m = lib.arange(6.0)
    assert m.masked_fill_(m > 3, m[2]).tolist() == [0, 1, 2, 3, 2, 2]
    assert m.index_fill_(0, lib.tensor([1]), m[3]).tolist() == [0, 3, 2, 3, 2, 2]
    places = lib.empty(5, dtype=lib.int64)
    for write in (lib.median, lib.nanmedian):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            write(m[1:].view(5, 1), 1, out=(m[:-1], places))
    with pytest.raises(RuntimeError, match="unsupported operation"):
        lib.aminmax(m[1:].view(5, 1), dim=1, out=(m[:-1], lib.empty(5)))
