"""vmap: dimensions, nests, randomness, in-place operations and errors, as PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.func.both import Library, same, same_error

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

FUNCTIONS: dict[str, Any] = {
    "sum": lambda t, x: x.sum(),
    "softmax": lambda t, x: t.softmax(x, -1),
    "transpose": lambda t, x: x.t().contiguous().reshape(-1),
    "strided": lambda t, x: x[::2, 1:].flip(0),
    "matmul": lambda t, x: x @ x.t(),
    "index": lambda t, x: x[t.tensor([1, 0, 1], device=x.device)],
    "where": lambda t, x: t.where(x > 0, x, 2.0),
    "cat": lambda t, x: t.cat([x, x * 2, t.ones_like(x)], 1),
    "sort": lambda t, x: x.sort(-1).values.cumsum(0),
    "topk": lambda t, x: x.topk(2, -1).indices,
    "scatter": lambda t, x: t.zeros_like(x).scatter_add(1, x.argsort(-1), x),
    "inplace": lambda t, x: x.clone().mul_(2).add_(x),
    "inplace_view": lambda t, x: _write_row(x),
    "einsum": lambda t, x: t.einsum("ij,kj->ik", x, x),
    "layer_norm": lambda t, x: t.nn.functional.layer_norm(x, (4,)),
    "new_zeros": lambda t, x: _filled(x),
    "std": lambda t, x: x.std(-1),
    "pad": lambda t, x: t.nn.functional.pad(x, (1, 2, 0, 1), value=3.0),
    "int": lambda t, x: (x * 10).int() // 3,
    "0-d promotion": lambda t, x: x[0, 0].double() * x.float(),
}


def _write_row(x: Any) -> Any:
    y = x.clone()
    y[1] = y[0] * 3
    y[:, 2] += 1
    return y


def _filled(x: Any) -> Any:
    out = x.new_zeros(5)
    out[1:3] = x[0, :2]
    return out


@pytest.mark.covers("H9")
def test_functions_of_an_example_are_functions_of_a_batch(device: str) -> None:
    def program(lib: Library) -> Any:
        x = lib.tensor(5, 3, 4)
        out = []
        for name, f in FUNCTIONS.items():
            if name == "0-d promotion" and device == "webgpu":
                continue
            out.append(lib.func.vmap(lambda r, f=f: f(lib.torch, r))(x))
        return out

    same(program, device)


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 2, -1), (-1, -2, 1), (0, 1, -2)])
def test_any_dimension_may_be_mapped_and_any_returned(dims: tuple[int, int, int]) -> None:
    a, b, out = dims

    def program(lib: Library) -> Any:
        shapes = [[3, 4], [4, 2]]
        for shape, d in zip(shapes, (a, b), strict=True):
            shape.insert(d % 3, 5)
        x, y = (lib.tensor(*s, seed=i) for i, s in enumerate(shapes))
        return lib.func.vmap(lambda p, q: p @ q, in_dims=(a, b), out_dims=out)(x, y)

    same(program, "cpu")


def test_parts_of_examples_are_replaced_in_copies_of_what_all_share() -> None:
    def program(lib: Library) -> Any:
        t, x, parts = lib.torch, lib.tensor(3, 4), lib.tensor(5, 3, seed=1)
        replace = {
            "select": lambda p: t.select_scatter(x, p, 1, 2),
            "slice": lambda p: t.slice_scatter(x, p.unsqueeze(1), 1, 1, 2),
            "diagonal": lambda p: t.diagonal_scatter(x, p),
        }
        found = [lib.func.vmap(f)(parts) for f in replace.values()]
        grads = lib.func.vmap(lib.func.grad(lambda p: (t.select_scatter(x, p, 1, 2) ** 2).sum()))
        return found, grads(parts), x

    same(program, "cpu")


def test_nested_containers_and_none() -> None:
    def program(lib: Library) -> Any:
        x, y, w = lib.tensor(5, 3), lib.tensor(3, 5, seed=1), lib.tensor(3, seed=2)

        def f(pair: Any, named: Any, scale: float) -> Any:
            return {"a": pair[0] * named["w"], "b": (pair[1].sum() * scale, named["w"])}

        mapped = lib.func.vmap(
            f, in_dims=((0, 1), {"w": None}, None), out_dims={"a": -1, "b": (0, None)}
        )
        return mapped((x, y), {"w": w}, 2.0), lib.func.vmap(lambda r, *, k: r * k)(
            x, k=lib.tensor(5, 3, seed=4)
        )

    same(program, "cpu")


def test_vmaps_nest_and_chunks_give_the_whole(device: str) -> None:
    def program(lib: Library) -> Any:
        vmap = lib.func.vmap
        x, y = lib.tensor(4, 3), lib.tensor(5, 3, seed=1)
        pairs = vmap(vmap(lambda a, b: (a * b).sum(), (None, 0)), (0, None))(x, y)
        three = vmap(vmap(vmap(lambda a: a * 2 + x[0, 0], 0, 0), 1, 1), 0, 1)(lib.tensor(2, 3, 4))
        chunks = vmap(lambda a: (a.sin(), a.sum()), chunk_size=3, out_dims=(1, 0))(y)
        return pairs, three, chunks, lib.torch.vmap(lib.torch.dot)(x, x)

    same(program, device)


def test_gradients_flow_through_vmap_to_what_it_reads(device: str) -> None:
    def program(lib: Library) -> Any:
        x, w = lib.tensor(5, 3).requires_grad_(), lib.tensor(3, 4, seed=1).requires_grad_()
        out = lib.func.vmap(lambda r: lib.torch.tanh(r @ w) * r.sum())(x)
        (out**2).sum().backward()
        return x.grad, w.grad

    same(program, device)


def test_writes_inside_reach_the_argument_and_its_gradient() -> None:
    def program(lib: Library) -> Any:
        leaf = lib.tensor(4, 3).requires_grad_()
        base = leaf * 2

        def f(row: Any) -> Any:
            row[1:].mul_(3)
            return row.sum()

        out = lib.func.vmap(f, in_dims=1)(base)
        (out.sum() + (base**2).sum()).backward()
        return base.detach(), leaf.grad

    same(program, "cpu")


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_the_same_or_differ(randomness: str, device: str) -> None:
    x = webtorch.ones(4, 1000, device=device)
    for f in (
        lambda r: r + webtorch.rand(1000, device=device),
        lambda r: webtorch.nn.functional.dropout(r, 0.5),
        lambda r: webtorch.randn_like(r),
        lambda r: r + webtorch.bernoulli(webtorch.full((1000,), 0.5, device=device)),
        lambda r: r * 0 + webtorch.randint(0, 1000, (1000,), device=device),
    ):
        out = webtorch.vmap(f, randomness=randomness)(x)
        again = webtorch.vmap(f, randomness=randomness)(x)
        assert (out[0] == out[1]).all().item() == (randomness == "same")
        assert not (out == again).all().item()
        assert abs(out[0].float().mean().item() - out[1].float().mean().item()) < 60


COUNTS = [[0, 1, 1, 2], [2, 2, 0, 1]]
# What looks at values: each example by itself.
LOOKING: dict[str, Any] = {
    "bincount": lambda t, x: t.vmap(t.bincount)(x),
    "bincount weights": lambda t, x: t.vmap(t.bincount)(x, x * 0.5),
    "bincount same places": lambda t, x: t.vmap(lambda w: t.bincount(x[0], w))(x.float()),
    "bincount twice": lambda t, x: t.vmap(t.vmap(t.bincount))(t.stack([x, x])),
    "histc": lambda t, x: t.vmap(lambda v: t.histc(v, 3))(x.float()),
    "linspace": lambda t, x: t.vmap(lambda a: t.linspace(a, 4, 3))(x[0].float()),
    "linspace both": lambda t, x: t.vmap(lambda a, b: t.linspace(a, b, 3))(x[0].float(), x[1].float()),
    "logspace": lambda t, x: t.vmap(lambda b: t.logspace(0, b, 3))(x[1].float()),
    "repeats": lambda t, x: t.vmap(lambda v, r: t.repeat_interleave(v, r))(x, t.tensor([[1, 2, 0, 1], [0, 1, 1, 2]])),
    "repeats alone": lambda t, x: t.vmap(t.repeat_interleave)(x[:, 1:] - x[:, 1:]),
    "same repeats": lambda t, x: t.vmap(lambda v: t.repeat_interleave(v, t.tensor([1, 0, 2, 1])))(x),
    "gradient": lambda t, x: t.func.grad(
        lambda v: (t.vmap(lambda a, r: t.repeat_interleave(a, r))(v, x[:, :2] * 0 + 1) ** 2).sum()
    )(x[:, :2].float()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKING)
def test_each_example_is_looked_at(name: str) -> None:
    found = []
    with warnings.catch_warnings():
        # PyTorch tells that this is slow.
        warnings.simplefilter("ignore")
        for lib in (torch, webtorch):
            out = LOOKING[name](lib, lib.tensor(COUNTS))
            found.append((str(out.dtype), out.tolist()))
    assert found[0] == found[1]


ORDERS: dict[str, Any] = {
    "one": lambda t, x: x.t().square(),
    "number": lambda t, x: x.t() + 1,
    "two": lambda t, x: x.t() * x.t(),
    "another order": lambda t, x: x.t() + t.ones(2, 4),
    "cast": lambda t, x: x.t().double(),
    "nested": lambda t, x: t.vmap(lambda y: y.abs(), in_dims=1, out_dims=1)(x),
    "unfolded": lambda t, x: -x.unfold(0, 2, 2),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ORDERS)
def test_results_keep_the_order_of_dims(name: str, dim: int) -> None:
    def strides(lib: Any) -> Any:
        shape = [4, 2]
        shape.insert(dim, 3)
        x = lib.arange(24.0).reshape(shape)
        seen = []

        def f(y: Any) -> Any:
            out = ORDERS[name](lib, y)
            seen.append((tuple(out.shape), out.stride()))
            return out

        return seen, lib.vmap(f, in_dims=dim)(x).tolist()

    assert strides(webtorch) == strides(torch)


def test_chunks_of_same_randomness_draw_the_same_numbers() -> None:
    x = webtorch.zeros(4, 3)
    out = webtorch.vmap(lambda r: r + webtorch.rand(3), randomness="same", chunk_size=1)(x)
    assert (out == out[0]).all().item()


def test_mapped_tensors_hide_their_batch() -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append((x.shape, x.ndim, x.numel(), x.stride(), type(x), x.is_contiguous(), repr(x)))
        return x

    webtorch.vmap(f)(webtorch.zeros(2, 3, 4))
    assert seen[0][:6] == ((3, 4), 2, 12, (4, 1), webtorch.Tensor, True)
    assert seen[0][6].startswith("BatchedTensor(lvl=1, bdim=0, value=")


def _inputs(lib: Library) -> tuple[Any, Any]:
    return lib.tensor(2, 3), lib.tensor(3, 3, seed=1)


ERRORS: dict[str, Any] = {
    "no inputs": lambda v, x, y: v(lambda: 1)(),
    "sizes": lambda v, x, y: v(lambda a, b: a)(x, y),
    "in_dims type": lambda v, x, y: v(lambda a: a, in_dims=[0])(x),
    "in_dims entry": lambda v, x, y: v(lambda a: a, in_dims=("x",))(x),
    "in_dims range": lambda v, x, y: v(lambda a: a, in_dims=2)(x),
    "in_dims of a number": lambda v, x, y: v(lambda a, b: a)(x, 1),
    "nothing mapped": lambda v, x, y: v(lambda a: a, in_dims=(None,))(x),
    "out_dims type": lambda v, x, y: v(lambda a: a, out_dims="0")(x),
    "out None": lambda v, x, y: v(lambda a: a, out_dims=None)(x),
    "out number": lambda v, x, y: v(lambda a: 1)(x),
    "out range": lambda v, x, y: v(lambda a: a, out_dims=3)(x),
    "randomness": lambda v, x, y: v(lambda a: a, randomness="no")(x),
    "chunk_size": lambda v, x, y: v(lambda a: a, chunk_size=0)(x),
    "item": lambda v, x, y: v(lambda a: a.sum().item())(x),
    "control flow": lambda v, x, y: v(lambda a: a if a.sum() > 0 else -a)(x),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    same_error(lambda lib: ERRORS[name](lib.func.vmap, *_inputs(lib)))


def test_random_operations_raise_unless_told_otherwise() -> None:
    same_error(lambda lib: lib.func.vmap(lambda a: a + lib.torch.rand(3))(lib.tensor(2, 3)))
    same_error(
        lambda lib: lib.func.vmap(lambda a: lib.torch.dropout(a, 0.5, True))(lib.tensor(2, 3))
    )


def test_a_tensor_of_all_examples_cannot_take_those_of_each() -> None:
    for module in (torch, webtorch):
        y = module.zeros(3)
        with pytest.raises(RuntimeError, match=r"inplace arithmetic|broadcast shape"):
            module.func.vmap(lambda a, y=y: y.add_(a))(module.ones(2, 3))
        # Nor one without elements, whatever has made the others.
        for make in (lambda a: a.sum(0), lambda a: a.mT @ a, lambda a: a.sort(0).values):
            y = module.zeros(make(module.ones(0, 3)).shape)
            with pytest.raises(RuntimeError, match=r"inplace arithmetic|broadcast shape|copy_"):
                module.func.vmap(lambda a, y=y, make=make: y.add_(make(a)))(module.ones(2, 0, 3))
        with pytest.raises(RuntimeError, match=r"inplace arithmetic|broadcast shape|copy_"):
            module.func.vmap(lambda a, y=y: y.copy_(a))(module.ones(2, 3))


def test_batch_norm_with_statistics_of_all_examples_raises() -> None:
    for module in (torch, webtorch):
        norm = module.nn.BatchNorm1d(3)
        with pytest.raises(RuntimeError, match="running_mean or running_var"):
            module.func.vmap(norm)(module.ones(2, 4, 3))
        module.func.vmap(norm.eval())(module.ones(2, 4, 3))
        module.func.replace_all_batch_norm_modules_(norm.train())
        module.func.vmap(norm)(module.ones(2, 4, 3))


def test_complex_numbers() -> None:
    def program(lib: Library) -> Any:
        t, n = lib.torch, lib.func
        x = t.complex(lib.tensor(3, 4), lib.tensor(3, 4, seed=1))

        def f(z: Any) -> Any:
            y = t.outer(z, z.conj()) @ z + t.fft.fft(z) * 2j
            y[0] = z[1] + z[0].real
            return t.view_as_real(y.exp())

        return (
            n.vmap(f)(x),
            n.jvp(f, (x[0],), (x[1],)),
            n.vmap(n.grad(lambda z: f(z).sum()))(x).abs(),
        )

    same(program, "cpu", 1e-3)


def test_inside_compile() -> None:
    w = webtorch.randn(3, 4)
    f = webtorch.vmap(lambda r: webtorch.tanh(r @ w).sum(), in_dims=1)
    compiled = webtorch.compile(f)
    for seed in range(3):
        webtorch.manual_seed(seed)
        x = webtorch.randn(3, 5)
        assert webtorch.allclose(compiled(x), f(x), atol=1e-5)


def _drawn(t: Any, name: str) -> Any:
    """Return a random operation of one or two tensors."""
    return {
        "bernoulli": lambda a: t.bernoulli(a),
        "normal": lambda a: t.normal(a, 1.0),
        "poisson": lambda a: t.poisson(a),
        "multinomial": lambda a: t.multinomial(a, 2),
        "gamma": lambda a: t._standard_gamma(a),
        "rand_like": lambda a: t.rand_like(a),
        "dropout": lambda a: t.nn.functional.dropout(a, 0.5),
        "uniform_": lambda a: a.uniform_(),
        "bernoulli_": lambda a: a.bernoulli_(a),
        "randperm": lambda a: t.randperm(5),
    }[name]


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
@pytest.mark.parametrize("dim", [0, -1, None])
def test_random_operations_take_and_refuse_what_those_of_pytorch_do(
    dim: int | None, randomness: str
) -> None:
    names = ("bernoulli", "normal", "poisson", "multinomial", "gamma", "rand_like", "dropout", "uniform_",
             "bernoulli_", "randperm")  # fmt: skip
    for name in names:
        found = []
        for t in (torch, webtorch):
            x = t.full((3, 5) if dim is None else (4, 3, 5) if dim == 0 else (3, 5, 4), 0.5)
            f = _drawn(t, name)
            try:
                out = t.vmap(lambda a, _, f=f: f(a), (dim, 0), randomness=randomness)(x, t.zeros(4))
                # Of no examples are all alike, or of all.
                found.append((tuple(out.shape), bool((out == out[0]).all())))
            except RuntimeError as error:
                found.append(str(error)[:60])
        assert found[0] == found[1], name


DYNAMIC: dict[str, Any] = {
    "nonzero": lambda t, x: x.nonzero(),
    "where": lambda t, x: t.where(x)[0],
    "unique": lambda t, x: x.unique(),
    "masked_select": lambda t, x: x.masked_select(x > 0),
    "mask": lambda t, x: x[x > 0],
    "index_put": lambda t, x: x.index_put((x > 0,), t.tensor([1.0, 2.0])),
    "is_nonzero": lambda t, x: x[0].is_nonzero(),
    "allclose": lambda t, x: t.allclose(x, x),
    "equal": lambda t, x: t.equal(x, x),
    "one_hot": lambda t, x: t.nn.functional.one_hot(x.long()),
    "data": lambda t, x: x.data,
    "numpy": lambda t, x: x.numpy(),
    "is_contiguous": lambda t, x: x.is_contiguous(memory_format=t.channels_last),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_what_each_example_has_another_of_is_refused_in_the_words_of_pytorch(name: str) -> None:
    words = []
    for t in (torch, webtorch):
        with pytest.raises(RuntimeError) as caught:
            t.vmap(lambda x, t=t: DYNAMIC[name](t, x))(t.arange(12.0).reshape(3, 4) - 5)
        words.append(str(caught.value)[:70].rstrip("."))
    assert words[1].startswith(words[0][: len(words[1])])


def test_writes_to_examples_without_elements() -> None:
    def program(lib: Library) -> Any:
        x = lib.torch.zeros(0).expand(3, 0).clone()
        return lib.func.vmap(lambda a: a.add_(1))(x)

    same(program, "cpu")


def test_a_checkpoint_computes_again_what_it_maps() -> None:
    def program(lib: Library) -> Any:
        x = lib.tensor(3, 4, 4).requires_grad_()

        def loss(x: Any) -> Any:
            return lib.func.vmap(lambda a: lib.torch.linalg.qr(a)[0].square() @ a)(x).sum()

        lib.torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False).backward()
        return x.grad

    same(program, "cpu")


def test_rules_of_functions_are_told_where_the_dimension_lies() -> None:
    seen: list[Any] = []
    for module in (torch, webtorch):

        class Told(module.autograd.Function):  # type: ignore[name-defined, misc]
            @staticmethod
            def forward(x: Any, ys: Any) -> Any:
                return x

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def vmap(info: Any, in_dims: Any, x: Any, ys: Any) -> Any:
                seen.append(in_dims)
                return (x, ys), in_dims

        x = module.zeros(3, 4)
        module.vmap(Told.apply, in_dims=(1, 0))(x, [module.zeros(4), module.zeros(4, 2)])
    assert seen == [(1, [0, 0])] * 2


def test_an_argument_that_is_returned_is_the_tensor_that_was_given() -> None:
    for t in (torch, webtorch):
        x = t.ones(3, 4)
        assert t.vmap(lambda a: a.mul_(2))(x) is x
        assert t.vmap(lambda a: a, in_dims=1, out_dims=1)(x) is x
        moved = t.vmap(lambda a: a.mul_(2), in_dims=1)(x)
        assert tuple(moved.shape) == (4, 3) and (moved == 4).all() and (x == 4).all()


def test_an_argument_takes_another_shape_in_place() -> None:
    for change in (
        lambda a: a.squeeze_(1), lambda a: a.unsqueeze_(0), lambda a: a.add_(1).transpose_(0, 2),
        lambda a: a.squeeze_((1, 3)),
    ):  # fmt: skip
        theirs, mine = (
            t.vmap(change)(t.arange(50.0).reshape(2, 5, 1, 5, 1)) for t in (torch, webtorch)
        )
        assert mine.tolist() == theirs.tolist()


def test_clones_in_formats_of_images_and_nan_of_examples() -> None:
    def nan(lib: Library) -> Any:
        a = lib.torch.zeros(3).requires_grad_()
        b = lib.func.vmap(lambda v: (-1 - v).sqrt())(a)
        with lib.torch.autograd.set_detect_anomaly(True):
            return lib.func.vmap(lambda v: lib.torch.autograd.grad(b, a, v))(lib.torch.eye(3))

    def channels(lib: Library) -> Any:
        images = lib.torch.channels_last
        return lib.func.vmap(lambda a: a.clone(memory_format=images))(lib.tensor(2, 1, 3, 4, 4))

    for program in (nan, channels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same_error(program)


def test_functions_take_no_arguments_by_name_alone() -> None:
    def program(lib: Library, mapped: bool) -> Any:
        class Sum(lib.torch.autograd.Function):  # type: ignore[name-defined, misc]
            @staticmethod
            def forward(x: Any, *, y: Any = 2.0) -> Any:
                return x + y

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def vmap(info: Any, in_dims: Any, x: Any, *, y: Any) -> Any:
                return x + y, 0

        x = lib.tensor(3)
        return lib.func.vmap(Sum.apply)(x, y=x) if mapped else Sum.apply(x, y=1.0)

    for kind, text in (
        (NotImplementedError, "kwarg-only Tensor args"),
        (TypeError, "unexpected keyword"),
    ):
        for lib in (Library(torch, "cpu"), Library(webtorch, "cpu")):
            with pytest.raises(kind, match=text):
                program(lib, kind is NotImplementedError)


def test_a_result_that_is_no_view_is_none_outside_either() -> None:
    def program(lib: Library, function: Callable[[Any], Any]) -> list[Any]:
        # Hooks of what is no view stay when its memory is written by way of another tensor.
        x = lib.tensor(2, 3).requires_grad_()
        out, log = lib.func.vmap(function)(x), []
        out.detach()[0] = 2.0
        out.register_hook(lambda g: log.append(g.sum()))
        out.sum().backward()
        return [out._is_view(), lib.func.vmap(function)(x.detach())._is_view(), *log, x.grad]

    same(lambda lib: program(lib, lambda r: r * 2 + r.sum()), "cpu")
    same(lambda lib: lib.func.vmap(lambda r: (r * 2)[1:])(lib.tensor(2, 3))._is_view(), "cpu")


@pytest.mark.parametrize("in_dim", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.unsqueeze_(0),
        lambda r: r.unsqueeze_(-1),
        lambda r: r.t_(),
        lambda r: r.transpose_(0, 1),
        lambda r: r.squeeze_(),
    ],
)
def test_an_argument_that_changes_its_shape_has_it_outside(
    change: Callable[[Any], Any], in_dim: int, device: str
) -> None:
    def program(lib: Library) -> Any:
        x, y = lib.tensor(2, 1, 3), lib.tensor(2, 1, 3)
        out = lib.func.vmap(lambda r: change(r) * 2, in_dims=in_dim)(x)
        same_one = lib.func.vmap(change, in_dims=in_dim)(y)
        return out, x, str(x.stride()), same_one, y

    same(program, device)
