"""grad, vjp, jvp, Jacobians and dual tensors against PyTorch, alone and nested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import webtorch
from tests.func.both import Library, same, same_error


def _f(lib: Library, x: Any) -> Any:
    return (lib.torch.sin(x) * x.softmax(-1)).sum()


# PyTorch's linearize warns of its own graph.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
    # What is tested here is nearly the same on all devices.
    pytest.mark.one_in(3, device="webgpu"),
]
NESTS: dict[str, Any] = {
    "grad": lambda n, f: n.grad(f),
    "grad of grad": lambda n, f: n.grad(lambda x: n.grad(f)(x).pow(2).sum()),
    "vmap of grad": lambda n, f: n.vmap(n.grad(f)),
    "grad of vmap": lambda n, f: n.grad(lambda x: n.vmap(f)(x).pow(2).sum()),
    "grad of vmap of grad": lambda n, f: n.grad(lambda x: n.vmap(n.grad(f))(x).pow(2).sum()),
    "vmap of vmap of grad": lambda n, f: n.vmap(lambda x: n.vmap(n.grad(f))(x.reshape(2, 2))),
    "jacrev": lambda n, f: n.jacrev(n.grad(f)),
    "jacfwd": lambda n, f: n.jacfwd(n.grad(f)),
    "jacfwd of jacfwd": lambda n, f: n.jacfwd(n.jacfwd(f)),
    "jacrev of jacfwd": lambda n, f: n.jacrev(n.jacfwd(f)),
    "hessian": lambda n, f: n.hessian(f),
    "vmap of hessian": lambda n, f: n.vmap(n.hessian(f)),
    "jvp of grad of vmap": lambda n, f: (
        lambda x: n.jvp(n.grad(lambda y: n.vmap(f)(y).pow(2).sum()), (x,), (x.cos(),))
    ),
    "grad of jvp": lambda n, f: n.grad(lambda x: n.jvp(f, (x,), (x.cos(),))[1].sum()),
    "vmap of jvp": lambda n, f: n.vmap(lambda x: n.jvp(f, (x,), (x.cos(),))),
    "jvp of jvp": lambda n, f: (
        lambda x: n.jvp(lambda y: n.jvp(f, (y,), (y.cos(),)), (x,), (x.sin(),))
    ),
    "third derivative": lambda n, f: n.vmap(n.vmap(n.grad(n.grad(n.grad(lambda y: y.sin() * y))))),
    "linearize": lambda n, f: lambda x: _linear(n, f, x),
    "vjp of vmap": lambda n, f: lambda x: _pulled(n, lambda y: n.vmap(f)(y), x),
}


def _linear(n: Any, f: Any, x: Any) -> Any:
    out, push = n.linearize(lambda y: y.sin() @ y.t(), x)
    return out, push(x.cos()), push(x * 2)


def _pulled(n: Any, f: Any, x: Any) -> Any:
    out, pull = n.vjp(f, x)
    return out, pull(out * 2), n.vmap(pull)(out.expand(3, *out.shape).contiguous())


@pytest.mark.covers("H9")
@pytest.mark.parametrize("name", NESTS)
def test_transforms_nest(name: str, device: str) -> None:
    def program(lib: Library) -> Any:
        return NESTS[name](lib.func, lambda x: _f(lib, x))(lib.tensor(3, 4))

    same(program, device, 1e-4)


def test_arguments_and_extra_results() -> None:
    def program(lib: Library) -> Any:
        n, x, y = lib.func, lib.tensor(3), lib.tensor(3, seed=1)

        def f(a: Any, b: Any) -> Any:
            return (a * b).sum(), {"a": a, "n": b * 3}

        both = n.grad(f, argnums=(1, 0), has_aux=True)(x, y)
        last = n.grad_and_value(lambda a, b: (a * b["p"]).sum(), argnums=-1)(x, {"p": y})
        out, pull, aux = n.vjp(lambda a: (a.sin(), a * 2), x, has_aux=True)
        pushed = n.jvp(lambda a, b: (a * b, a), (x, y), (y, x), has_aux=True)
        rows = n.jacrev(lambda a, b: (a * b, a.sum()), argnums=(0, 1))(x, y)
        columns = n.jacfwd(lambda a, b: {"m": a * b, "s": (a.sum(),)}, argnums=1)(x, y)
        chunks = n.jacrev(lambda a: a.outer(y), chunk_size=2)(x)
        single = n.jacrev(lambda a: a.outer(y), chunk_size=1)(x)
        aux_rows = n.jacfwd(lambda a: (a**2, a.sum()), has_aux=True)(x)
        return both, last, out, pull(x), aux, pushed, rows, columns, chunks, single, aux_rows

    same(program, "cpu")


def test_results_stay_on_the_tape_only_where_something_outside_needs_them() -> None:
    def program(lib: Library) -> Any:
        x, w = lib.tensor(3), lib.tensor(3, seed=1).requires_grad_()
        plain = lib.func.grad(lambda a: (a**2).sum())(x)
        held = lib.func.grad(lambda a: (a**2 * w).sum())(x)
        held.sum().backward()
        with lib.torch.no_grad():
            inside = lib.func.grad(lambda a: (a**2 * w).sum())(x)
        leaf = x.clone().requires_grad_()
        own = lib.func.grad(lambda a: (a**3).sum())(leaf)
        own.sum().backward()
        return plain, held, w.grad, inside, own, leaf.grad

    same(program, "cpu")


def test_no_grad_and_detach_inside() -> None:
    def program(lib: Library) -> Any:
        x = lib.tensor(3)

        def f(a: Any) -> Any:
            with lib.torch.no_grad():
                c = a**2
            return (c * a + a.detach() * a.sin()).sum()

        n = lib.func
        return n.grad(f)(x), n.jvp(lambda a: a.detach() * a, (x,), (x + 1,)), n.jacfwd(n.grad(f))(x)

    same(program, "cpu")


def test_confusing_two_levels_is_impossible() -> None:
    def program(lib: Library) -> Any:
        n, x = lib.func, lib.tensor(()) if False else lib.tensor(1)[0]
        outer = n.grad(lambda a: a * n.grad(lambda b: a + b)(x))(x)
        forward = n.jvp(
            lambda a: a * n.jvp(lambda b: a + b, (x,), (lib.torch.ones_like(x),))[1],
            (x,), (lib.torch.ones_like(x),),
        )  # fmt: skip
        mixed = n.grad(lambda a: a * n.jvp(lambda b: a * b, (x,), (a,))[1])(x)
        return outer, forward, mixed

    same(program, "cpu")


def test_tangents_follow_views_and_writes(device: str) -> None:
    def program(lib: Library) -> Any:
        def f(a: Any) -> Any:
            y = lib.torch.zeros(4, 3, device=a.device)
            y[1:3] = a[:, ::1]
            y[:, 0] *= 2
            z = y.t()
            z[1].add_(a.sum())
            y[0, 0] = 5.0
            return y, z.contiguous(), a.t().reshape(-1), a.expand(2, 2, 3).sum(0)

        x = lib.tensor(2, 3)
        return lib.func.jvp(f, (x,), (x.cos(),))

    same(program, device)


def test_dual_tensors() -> None:
    def program(lib: Library) -> Any:
        ad = lib.torch.autograd.forward_ad
        x, v = lib.tensor(3, 3), lib.tensor(3, 3, seed=1)
        model = lib.filled(lib.nn.Linear(3, 2))
        with ad.dual_level():
            dual = ad.make_dual(x, v)
            out = ad.unpack_dual((dual @ dual).exp()[0])
            plain = ad.unpack_dual(x)
            params = {k: ad.make_dual(p, p.detach() * 2) for k, p in model.named_parameters()}
            through = ad.unpack_dual(lib.func.functional_call(model, params, (x,)))
        through.primal.sum().backward()
        after = ad.unpack_dual(dual)
        none = [plain.tangent is None, after.tangent is None]
        return out.primal, out.tangent, none, through.tangent.detach(), model.weight.grad

    same(program, "cpu")


FUNCTION_ERRORS: dict[str, Any] = {
    "not scalar": lambda lib, x: lib.func.grad(lambda a: a)(x),
    "not a tensor": lambda lib, x: lib.func.grad(lambda a: 1.0)(x),
    "aux": lambda lib, x: lib.func.grad(lambda a: a.sum(), has_aux=True)(x),
    "argnum": lambda lib, x: lib.func.grad(lambda a: a.sum(), argnums=2)(x),
    "argnums twice": lambda lib, x: lib.func.grad(lambda a: a.sum(), argnums=(0, 0))(x),
    "argnums none": lambda lib, x: lib.func.grad(lambda a: a.sum(), argnums=())(x),
    "argnums type": lambda lib, x: lib.func.grad(lambda a: a.sum(), argnums="a")(x),
    "integers": lambda lib, x: lib.func.grad(lambda a: a.sum())(x.int()),
    "a number": lambda lib, x: lib.func.grad(lambda a: a)(1.0),
    "vjp output": lambda lib, x: lib.func.vjp(lambda a: "a", x),
    "vjp integers": lambda lib, x: lib.func.vjp(lambda a: a.int(), x),
    "vjp aux": lambda lib, x: lib.func.vjp(lambda a: a, x, has_aux=True),
    "jvp primals": lambda lib, x: lib.func.jvp(lambda a: a, x, x),
    "jvp empty": lambda lib, x: lib.func.jvp(lambda a: a, (), ()),
    "jvp number": lambda lib, x: lib.func.jvp(lambda a: a, (1.0,), (1.0,)),
    "jvp output": lambda lib, x: lib.func.jvp(lambda a: 1, (x,), (x,)),
    "jvp strict": lambda lib, x: lib.func.jvp(lambda a: a.detach(), (x,), (x,), strict=True),
    "jacrev chunk": lambda lib, x: lib.func.jacrev(lambda a: a, chunk_size=0),
    "linearize shape": lambda lib, x: lib.func.linearize(lambda a: a, x)[1](x[0]),
    "functionalize": lambda lib, x: lib.func.functionalize(lambda a: a, remove="x"),
    "dual outside": lambda lib, x: lib.torch.autograd.forward_ad.make_dual(x, x),
    "exit level": lambda lib, x: lib.torch.autograd.forward_ad.exit_dual_level(),
    "backward inside": lambda lib, x: lib.func.grad(lambda a: a.sum().backward())(x),
    "requires_grad_ inside": lambda lib, x: lib.func.grad(lambda a: a.requires_grad_().sum())(x),
    "write to the argument": lambda lib, x: lib.func.grad(lambda a: a.mul_(2).sum())(x),
}


@pytest.mark.parametrize("name", FUNCTION_ERRORS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    same_error(lambda lib: FUNCTION_ERRORS[name](lib, lib.tensor(3)))


class _Cube:
    """x ** 3 with a derivative of three times the right one, so that it shows who is asked."""

    def __init__(self, module: Any, **extra: Any) -> None:
        def forward(x: Any) -> Any:
            return x**3

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            (x,) = inputs
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)

        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 9 * x**2

        def jvp(ctx: Any, t: Any) -> Any:
            (x,) = ctx.saved_tensors
            return t * 9 * x**2

        body = {
            name: staticmethod(f)
            for name, f in (
                ("forward", forward), ("setup_context", setup_context),
                ("backward", backward), ("jvp", jvp),
            )
        }  # fmt: skip
        self.apply = type("Cube", (module.autograd.Function,), {**body, **extra}).apply


def test_functions_of_the_user_under_transforms() -> None:
    def program(lib: Library) -> Any:
        x = lib.tensor(4)
        cube = _Cube(lib.torch, generate_vmap_rule=True).apply
        n = lib.func

        def rule(info: Any, in_dims: Any, a: Any) -> Any:
            return a.movedim(in_dims[0], 0) * info.batch_size, 0

        own = _Cube(lib.torch, vmap=staticmethod(rule)).apply
        return (
            n.grad(lambda a: cube(a).sum())(x), n.vmap(cube)(x), n.vmap(n.grad(cube))(x),
            n.jvp(cube, (x,), (x,)), n.jacfwd(cube)(x), n.vmap(own)(x),
        )  # fmt: skip

    same(program, "cpu")


def test_functions_without_rules_raise_as_in_pytorch() -> None:
    class Both:
        """Forward with ctx: no transform can use it."""

        def __init__(self, module: Any) -> None:
            body = {"forward": staticmethod(lambda ctx, x: x * 2)}
            self.apply = type("Double", (module.autograd.Function,), body).apply

    for program in (
        lambda lib: lib.func.vmap(_Cube(lib.torch).apply)(lib.tensor(3)),
        lambda lib: lib.func.vmap(Both(lib.torch).apply)(lib.tensor(3)),
        lambda lib: lib.func.grad(lambda a: Both(lib.torch).apply(a).sum())(lib.tensor(3)),
    ):
        same_error(program)


def test_higher_derivatives_are_compiled() -> None:
    def f(x: Any) -> Any:
        return (x.sin() * x.softmax(-1)).sum()

    x = webtorch.randn(4)
    for transform in (webtorch.func.hessian(f), webtorch.func.grad(f), webtorch.func.jacfwd(f)):
        compiled = webtorch.compile(transform)
        for _ in range(2):
            assert webtorch.allclose(compiled(x), transform(x), atol=1e-5)


def test_attention_without_scores_is_differentiated_forwards_over_backwards(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backward kernels carry no tangents: products take their place, and where a mask has some."""
    monkeypatch.setenv("WEBTORCH_ATTENTION", "fused")

    def program(lib: Library) -> Any:
        f, attend = lib.func, lib.torch.nn.functional.scaled_dot_product_attention
        q, k, v, d = (lib.tensor(1, 2, 3, 4, seed=n) for n in range(4))
        mask = lib.tensor(1, 1, 3, 3, seed=5)

        def loss(q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, is_causal=True).pow(3).sum()

        def of_query(mask: Any) -> Any:
            return f.grad(lambda q: attend(q, k, v, attn_mask=mask).pow(2).sum())(q)

        return (
            [f.jvp(f.grad(loss, argnums=n), (q, k, v), (d, d, d))[1] for n in range(3)],
            f.hessian(loss)(q, k, v),
            f.jvp(lambda m: attend(q, k, v, attn_mask=m), (mask,), (mask,))[1],
            f.jvp(of_query, (mask,), (mask,))[1],
        )

    with sdpa_kernel(SDPBackend.MATH):
        same(program, device, 1e-4)


@pytest.mark.covers("H9")
@pytest.mark.parametrize("name", ["cholesky", "pinv", "inv"])
def test_tangents_of_complex_matrices(name: str) -> None:
    def program(lib: Library) -> Any:
        t = lib.torch
        re = t.linspace(-1.0, 1.0, 9, dtype=t.float64, device="cpu").reshape(3, 3)
        z = t.complex(re.sin(), re.exp())
        x, v = z @ z.mH + 3 * t.eye(3, dtype=t.float64, device="cpu"), z + z.mH
        return t.view_as_real(lib.func.jvp(getattr(t.linalg, name), (x,), (v,))[1])

    same(program, "cpu", 1e-10)


def _as_is(lib: Library, saves: bool) -> Any:
    class AsIs(lib.torch.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(x: Any) -> Any:
            return x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            if saves:
                ctx.save_for_backward(output)
            else:
                ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t.add_(1)

    return AsIs.apply


def _hooked(lib: Library, x: Any) -> Any:
    with lib.torch.autograd.graph.saved_tensors_hooks(lambda a: a, lambda a: a):
        return x.sin().sum()


def _retained(x: Any) -> Any:
    y = x.sin()
    y.retain_grad()
    return y.sum()


REFUSED: dict[str, Any] = {
    "an input as it is": lambda lib, x: lib.func.grad(lambda a: _as_is(lib, True)(a.clone()).sum())(
        x
    ),
    "hooks within": lambda lib, x: lib.func.grad(lambda a: _hooked(lib, a))(x),
    "retain_grad": lambda lib, x: lib.func.grad(_retained)(x),
    "aux of grad": lambda lib, x: lib.func.grad(lambda a: (a.sum(), 1), has_aux=True)(x),
    "aux of vjp": lambda lib, x: lib.func.vjp(lambda a: (a, [a, "b"]), x, has_aux=True),
    "aux of jvp": lambda lib, x: lib.func.jvp(lambda a: (a, 1.0), (x,), (x,), has_aux=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_transforms_refuse_is_what_pytorch_refuses(name: str) -> None:
    same_error(lambda lib: REFUSED[name](lib, lib.tensor(3)))


def test_a_tangent_that_is_changed_in_place_is_not_the_callers() -> None:
    def program(lib: Library) -> Any:
        x, t = lib.tensor(3), lib.tensor(3, seed=1).requires_grad_()
        _, found = lib.func.jvp(lambda a: _as_is(lib, False)(a.clone()), (x,), (t,))
        return found.detach(), t

    same(program, "cpu")


def test_vjp_of_what_was_not_recorded_outside_has_gradients_of_its_own() -> None:
    def program(lib: Library) -> Any:
        x = lib.tensor(3).requires_grad_()
        with lib.torch.no_grad():
            out, pull = lib.func.vjp(lambda a: a**3, x)
        (y,) = pull(lib.torch.ones(3))
        return out, y, lib.torch.autograd.grad(y.sum(), x)

    same(program, "cpu")


def test_blocks_without_tangents() -> None:
    def program(lib: Library) -> Any:
        def f(a: Any) -> Any:
            with lib.torch.autograd.forward_ad._set_fwd_grad_enabled(False):
                shift = a**2
            return a**2 - shift

        a = lib.tensor(3)
        return lib.func.jvp(f, (a,), (lib.torch.ones(3),))

    same(program, "cpu")


@pytest.mark.parametrize("name", ["avg_pool1d", "unfold", "max_pool1d"])
def test_what_sums_windows_is_differentiated_after_its_tangent(name: str) -> None:
    def run(t: Any) -> list[Any]:
        w = t.tensor([0.3, -0.7, 0.2, 0.9], dtype=t.float64, requires_grad=True)
        x = t.tensor([1.0, 2.0, -1.0, 0.5], dtype=t.float64)
        size, shape = ((1, 2), (1, 1, 1, 4)) if name == "unfold" else (2, (1, 1, 4))

        def loss(x: Any) -> Any:
            return getattr(t.nn.functional, name)((x * w).reshape(shape), size).sin().sum()

        out, tangent = t.func.jvp(t.func.grad(loss), (x,), (x.sin(),))
        (out.sum() + tangent.square().sum()).backward()
        return [*tangent.tolist(), *w.grad.tolist()]

    assert run(webtorch) == pytest.approx(run(torch), rel=1e-12)


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"scale_grad_by_freq": True}], ids=str)
def test_a_tangent_of_an_embedding_is_read_like_its_rows(options: dict[str, Any]) -> None:
    def run(t: Any) -> list[Any]:
        w = t.tensor([0.3, -0.7, 0.2, 0.9], dtype=t.float64, requires_grad=True)
        x = t.tensor([1.0, 2.0, -1.0, 0.5], dtype=t.float64)

        def rows(x: Any) -> Any:
            return t.nn.functional.embedding(t.tensor([0, 1, 1]), (x * w).view(2, 2), **options)

        out, tangent = t.func.jvp(rows, (x,), (x.sin(),))
        (out.sum() + tangent.square().sum()).backward()
        return [*tangent.flatten().tolist(), *w.grad.tolist()]

    assert run(webtorch) == pytest.approx(run(torch), rel=1e-12)


@pytest.mark.parametrize("mapped", [False, True])
def test_an_argument_that_is_written_within_owes_nothing_to_the_transform(mapped: bool) -> None:
    def run(t: Any) -> list[Any]:
        x, y = t.tensor([[1.0, 2.0], [3.0, 4.0]]), t.tensor([[0.5, 0.2], [0.1, 0.3]])

        def loss(x: Any, y: Any) -> Any:
            x[..., :1] = y[..., :1]
            return (x * x).sum()

        grad = t.func.grad(loss, argnums=1)
        g = (t.func.vmap(grad) if mapped else grad)(x, y)
        return [g.tolist(), x.tolist(), g.requires_grad, x.requires_grad, x.is_leaf]

    assert run(webtorch) == run(torch)


def _first(x: Any) -> Any:
    v = x * 2
    v.mul_(2)
    return v.reshape(-1)


def _rows(x: Any) -> Any:
    v = x.prod(1)
    v[::2] = v[::2].sin()
    return v


def _largest(x: Any) -> Any:
    v = x.amax(1)
    v[1:].mul_(2)
    return v * 3


def _diagonal(x: Any) -> Any:
    v = (x * 2).contiguous()
    v.diagonal().zero_()
    return v.view(-1)


def _placed(x: Any) -> Any:
    v = x[:-1].clone()
    v[:, [0]] *= 2
    return v


@pytest.mark.parametrize("function", [_first, _rows, _largest, _diagonal, _placed])
def test_tangents_of_what_is_written_have_the_shape_of_the_view(function: Any, device: str) -> None:
    values, along = [[0.3, -1.2], [0.9, 0.1], [-0.4, 2.0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    theirs = torch.func.jvp(function, (torch.tensor(values),), (torch.tensor(along),))
    x, u = (webtorch.tensor(v, device=device) for v in (values, along))
    ours = webtorch.func.jvp(function, (x,), (u,))
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.flatten().tolist() == pytest.approx(b.flatten().tolist(), rel=1e-5)
