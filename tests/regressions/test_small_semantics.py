"""Small things that PyTorch users see: names of gradient functions, formats, limits, old constructors.

Every expression is evaluated with both libraries under the name `torch`.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from webtorch.nn import switches

EXPRESSIONS = [
    "torch.isclose(*[torch.tensor([complex('nan'), complex('inf'), complex(1, float('nan'))])] * 2, equal_nan=True)",
    "torch.ones(10)[::2].ravel().stride()", "torch.ones(3).expand(2, 1, 3).stride()",
    "torch.ones(3).expand(1, 1, 3).stride()", "torch.ones(()).expand(1, 1).stride()",
    "torch.tensor_split(torch.ones(4), torch.tensor(1.5))", "torch.tensor_split(torch.ones(4), torch.tensor([[1]]))",
    "torch.tensor_split(torch.ones(4), torch.tensor(3))", "torch.empty(()).resize_([0, 4, 2305843009213693952])",
    "torch.empty(()).resize_([2, 4, 2**29, 2**29, 2])",
    "torch.ones(24).resize_as_(torch.ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), memory_format="
    "torch.preserve_format).stride()",
    "torch.zeros(3).__delitem__(0)", "torch.rand([]).index_put([], torch.tensor([1.0]), True)",
    "torch.take_along_dim(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.int32), 0)",
    "torch.unravel_index(torch.tensor([1]), torch.tensor([1, 2, 3]))",
    "torch.unravel_index(torch.tensor([1]), (1, 2.0))",
    "torch.zeros(2, 0)[:, torch.tensor([1])]", "torch.arange(4).__setitem__(torch.arange(4) > -1, torch.tensor([]))",
    "torch.testing.make_tensor(3, 2, dtype=torch.complex64, device='cpu', noncontiguous=True).is_contiguous()",
    "[torch.ones(1).is_nested, torch.ones(1).is_sparse_csr]",
    "torch.histc(torch.tensor([1, 2]), 4)", "torch.histc(torch.tensor([1, 2], dtype=torch.uint8), 4, 0, 4)",
    "name(g(2, 2).sum())", "name(g(2, 2).sum(0))", "name(g(2, 2).mean())", "name(g(2, 2).mean(1))",
    "name(g(2, 2) @ g(2, 2))", "name(g(2, 2) @ g(2))", "name(torch.addmm(g(2, 2), g(2, 2), g(2, 2)))",
    "name(F.linear(g(2, 2), g(3, 2), g(3)))", "name(F.linear(g(2, 2), g(3, 2)))",
    "name(F.softmax(g(2, 2), -1))", "name(F.cross_entropy(g(2, 3), torch.tensor([0, 1])))",
    "name(F.mse_loss(g(2, 3), g(2, 3)))", "name(F.layer_norm(g(2, 3), (3,)))",
    "name(F.conv1d(g(1, 2, 5), g(3, 2, 3)))", "name(F.embedding(torch.tensor([0]), g(3, 2)))",
    "name(g(2, 2).max())", "name(g(2, 2).max(0)[0])", "name(g(2, 2).prod(0))", "name(g(2, 2).var())",
    "name(g(2) ** 2)", "name(2 ** g(2))", "name(g(2) ** g(2))", "name(g(2, 2).norm())",
    "name(g(3, 2).split(1)[2])", "name(torch.stack([g(2), g(2)]))", "name(g(2, 2).tril())",
    "type(g(2, 2).mean().grad_fn.next_functions[0][0]).__name__",
    "(g(2, 2) * 2).mean().grad_fn.next_functions[0][0].name()",
    "g(2).sum().grad_fn.next_functions[0][0].variable.shape",
    "repr(F.cross_entropy(g(2, 3), torch.tensor([0, 1])))",
    "F.dropout(g(2) * 2, 0.5, False).grad_fn.name()",
    "f'{torch.tensor(2.5)}'", "f'{torch.tensor(2.5):.2f}'", "f'{torch.tensor([2.5])}'",
    "'{}'.format(g(2).sum())", "'a' in torch.zeros(2)", "None in torch.zeros(2)",
    "int(torch.zeros(2))", "float(torch.zeros(0))",
    "(1,) + torch.zeros(2, 3).shape", "torch.zeros(2, 3).shape * 2",
    *(f"repr(torch.finfo(torch.{t}))" for t in ("float64", "float32", "float16", "bfloat16")),
    *(f"torch.finfo(torch.{t}).{a}" for t in ("float64", "float32", "float16", "bfloat16")
      for a in ("eps", "max", "min", "tiny", "bits", "dtype")),
    *(f"repr(torch.iinfo(torch.{t}))" for t in ("int64", "int32", "int8", "uint8")),
    "torch.finfo(torch.int32)", "torch.iinfo(torch.float32)", "torch.finfo().bits",
    "torch.broadcast_shapes((2, 1), (3,), 1)", "torch.broadcast_shapes((2,), (3,))",
    "torch.is_floating_point(torch.zeros(2))", "torch.LongTensor([1, 2])",
    "torch.Tensor(torch.Size([2, 3])).shape", "torch.FloatTensor(torch.Size([2, 3])).shape", "torch.Tensor(2.5)",
    "torch.Tensor((2, 3))", "torch.FloatTensor(2, 3).shape",
    "torch.BoolTensor([True])", "isinstance(torch.zeros(2), torch.FloatTensor)",
    "isinstance(torch.zeros(2), torch.LongTensor)", "torch.typename(torch.zeros(2))",
    *(f"torch.{call}.tolist()" for call in (
        "sum(a, 0, out=torch.empty(4))", "matmul(a, a.T, out=torch.empty(0))",
        "cat([a, a], out=torch.empty(6, 4))", "clamp(a, 0, 1, out=torch.empty(3, 4))",
        "add(a, a, alpha=2, out=torch.empty(0))", "add(a, a, out=torch.empty(3, 4).long())",
        "add(g(2), 1, out=torch.empty(2))", "sum(1)", "mean([1.0])",
        "max(a, 0, out=(torch.empty(4), torch.empty(4).long())).indices",
        "diff(a)", "diff(a, 2, 0)", "diff(a, prepend=torch.zeros(3, 1))", "dist(a, a * 2, 3)",
        "trapezoid(a, dx=2.0)", "trapezoid(a, a[0] ** 2)", "cov(a ** 2)", "corrcoef(a ** 2)",
        "cov(a ** 2, fweights=torch.tensor([1, 2, 1, 3]))", "combinations(a[0], 3)",
        "combinations(a[0], 2, True)", "unravel_index(torch.tensor([5, 7]), (3, 4))[1]",
        "histc(a, 4)", "histc(a, 5, 0, 3)", "special.expit(a)", "special.gammaln(a + 9)",
        "histc((torch.arange(60.0).sin() * 5).bfloat16(), 100, -5, 5)",
        "histc(torch.arange(60.0).sqrt().bfloat16(), 100, 0, 10)",
        "signal.windows.kaiser(torch.tensor(True))", "signal.windows.hann(torch.tensor(False))",
        "isposinf(a / 0)", "random.manual_seed(3).initial_seed() + a",
    )),
    *(f"torch.tensor({values}).mode({args})" for values in ([1, 2, 2, 3, 3], [[1, 2, 2], [3, 3, 1]], 4)
      for args in ("", "0, True")),
    "a.max(0)", "a.sort()", "a.topk(2)", "a.median(0)", "a.cummax(0)", "torch.aminmax(a)",
    "g(2, 2)[0].mul_(2)", "g(4)[1:].zero_()", "g(2, 2).detach()[0].mul_(2)",
    "torch.set_float32_matmul_precision('highest') or torch.get_float32_matmul_precision()",
    "a.eq_(0.5).tolist()", "a.long().lt_(1).tolist()", "a.logical_and_(a).tolist()", "(a / 0).isneginf()",
    "np.sin(a)", "a + np.ones((3, 4), np.float32)", "np.ones((3, 4), np.float32) - a",
    "torch.zeros(2).type('torch.IntTensor')", "torch.zeros(2).type(torch.LongTensor)",
]  # fmt: skip


def evaluate(library: Any, expression: str) -> Any:
    """Return what an expression gives, as plain text, or the error that it raises."""

    def g(*shape: int) -> Any:
        count = 1
        for s in shape:
            count *= s
        return (library.arange(count, dtype=library.float32) - 1.5).reshape(shape).requires_grad_()

    a = library.arange(12, dtype=library.float32).reshape(3, 4) - 4
    scope = {
        "a": a,
        "np": np,
        "torch": library,
        "F": library.nn.functional,
        "g": g,
        "name": lambda t: t.grad_fn.name(),
    }
    try:
        return re.sub("0x[0-9a-f]+", "", repr(eval(expression, scope)))
    except Exception as error:
        return error


_FRACTION = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?")


# NumPy warns of the way in which PyTorch takes its results back.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_gives_what_pytorch_gives(expression: str) -> None:
    with webtorch.device("cpu"):
        mine = evaluate(webtorch, expression)
    theirs = evaluate(torch, expression)
    if isinstance(theirs, Exception):
        assert isinstance(mine, type(theirs)), mine
    else:
        # Sums may be rounded in another order: fractions are compared as numbers, all else as text.
        assert _FRACTION.sub("_", mine) == _FRACTION.sub("_", theirs), (mine, theirs)
        fractions = [[float(n) for n in _FRACTION.findall(text)] for text in (mine, theirs)]
        assert fractions[0] == pytest.approx(fractions[1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_of_16_bits_are_rounded_once(training: bool) -> None:
    rng = np.random.default_rng(0)
    x, mean, weight, bias = (
        rng.normal(size=s).astype(np.float16) for s in ((64, 3, 2), (3,), (3,), (3,))
    )
    variance = rng.uniform(0.01, 2, 3).astype(np.float16)
    found = []
    for lib in (webtorch, torch):
        given = [lib.tensor(a) for a in (x, mean, variance, weight, bias)]
        out = lib.nn.functional.batch_norm(*given, training)
        found.append([t.numpy() for t in (out, *given[1:3])])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-3)
    # Once: no more than half of a last place from what float64 gives.
    exact = [torch.tensor(a.astype(np.float64)) for a in (x, mean, variance, weight, bias)]
    torch.nn.functional.batch_norm(*exact, training)
    for mine, theirs in zip(found[0][1:], exact[1:3], strict=True):
        assert np.all(abs(mine - theirs.numpy()) <= np.spacing(mine) * 0.51)


def test_types_in_records() -> None:
    """`dataclasses.asdict` keeps a type whole, as it keeps PyTorch's."""

    @dataclasses.dataclass
    class Config:
        dtype: Any

    assert dataclasses.asdict(Config(webtorch.float32)) == {"dtype": webtorch.float32}


def test_modules_of_older_versions_have_all_tables_of_hooks() -> None:
    layer = webtorch.nn.Linear(1, 1)
    del layer._state_dict_pre_hooks
    again = copy.deepcopy(layer)
    called: list[str] = []
    again.register_state_dict_pre_hook(lambda module, prefix, keep: called.append(prefix))
    again.state_dict()
    assert called == [""]


def test_conversions_make_new_parameters_where_asked() -> None:
    layer = webtorch.nn.Linear(1, 1)
    before = layer.weight
    before.grad = webtorch.ones(1, 1)
    switches.set_overwrite_module_params_on_conversion(True)
    try:
        layer.to(webtorch.float16)
    finally:
        switches.set_overwrite_module_params_on_conversion(False)
    assert layer.weight is not before
    assert (layer.weight.dtype, layer.weight.grad.dtype) == (webtorch.float16,) * 2
    assert isinstance(layer.weight, webtorch.nn.Parameter)
    after = layer.weight
    layer.to(webtorch.float32)
    assert layer.weight is after


@pytest.mark.parametrize("write", [False, True])
def test_every_byte_mask_warns(write: bool) -> None:
    mask = webtorch.tensor([1, 0], dtype=webtorch.uint8)
    x = webtorch.ones(2)
    used = (lambda: x.index_put_((mask,), webtorch.tensor([2.0]))) if write else (lambda: x[mask])
    with pytest.warns(UserWarning, match="indexing with dtype torch.uint8 is now deprecated"):
        used()
    assert x.tolist() == [2.0 if write else 1.0, 1.0]


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_a_custom_function_may_call_its_backward_vjp(lib: Any) -> None:
    class Twice(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(ctx: Any, g: Any) -> Any:
            return g * 2

    class Both(Twice):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = lib.ones(2, requires_grad=True)
    Twice.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    out = Both.apply(x).sum()
    with pytest.raises(RuntimeError, match="Implementing both 'backward' and 'vjp'"):
        out.backward()


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_backward_goes_as_far_as_edges_of_the_graph(lib: Any) -> None:
    leaf = lib.ones(2, requires_grad=True)
    x = leaf.clone()
    edge = lib.autograd.graph.GradientEdge(x.grad_fn, x.output_nr)
    lib.autograd.backward((x * 3).sum(), inputs=(edge,))
    assert leaf.grad is None


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_gradients_of_what_is_not_used_have_further_gradients(lib: Any) -> None:
    x, a = lib.tensor(0.5, requires_grad=True), lib.tensor(1.0, requires_grad=True)
    first = lib.autograd.grad(x * a, x, create_graph=True)
    second = lib.autograd.grad(first, x, create_graph=True, materialize_grads=True)
    third = lib.autograd.grad(second, x, materialize_grads=True)
    assert (second[0].item(), third[0].item(), third[0].requires_grad) == (0.0, 0.0, False)
    clone = x.clone()
    edge = lib.autograd.graph.get_gradient_edge(clone)
    with pytest.raises(RuntimeError, match="materialize_grads cannot be used"):
        lib.autograd.grad(a * 2, (edge,), materialize_grads=True)


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_gradients_may_start_at_edges_of_the_graph(lib: Any) -> None:
    x = lib.tensor([1.0, 2.0], requires_grad=True)
    middle = x.sin().sum()
    out = middle.exp()
    edge = lib.autograd.graph.get_gradient_edge(middle)
    (g,) = lib.autograd.grad(out, (edge,), retain_graph=True)
    (found,) = lib.autograd.grad(edge, (x,), grad_outputs=(g,), retain_graph=True)
    (wanted,) = lib.autograd.grad(out, (x,))
    assert found.tolist() == wanted.tolist()
    vector = lib.autograd.graph.get_gradient_edge(x.sin())
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        lib.autograd.grad(vector, (x,))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        lib.autograd.grad(vector, (x,), grad_outputs=lib.ones(3))
