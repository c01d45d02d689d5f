"""Programs of PyTorch's tutorials on torch.func, on both devices."""

from __future__ import annotations

from typing import Any

import pytest

import webtorch
from tests.func.both import Library, same

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def _cnn(lib: Library) -> Any:
    nn = lib.nn
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, groups=2),
        nn.GELU(), nn.Flatten(), nn.Linear(24, 5),
    )  # fmt: skip
    return lib.filled(model)


@pytest.mark.covers("H9")
def test_gradients_of_each_sample_of_a_cnn(device: str) -> None:
    def program(lib: Library) -> Any:
        model, f = _cnn(lib), lib.func
        params = {k: v.detach() for k, v in model.named_parameters()}
        x, y = lib.tensor(3, 1, 8, 8), lib.indices(3, below=5)

        def loss(p: Any, one: Any, target: Any) -> Any:
            out = f.functional_call(model, p, (one.unsqueeze(0),))
            return lib.nn.functional.cross_entropy(out, target.unsqueeze(0))

        each = f.vmap(f.grad(loss), in_dims=(None, 0, 0))(params, x, y)
        norms = f.vmap(lambda g: sum((v**2).sum() for v in g.values()).sqrt())(each)
        return each, norms

    same(program, device, 1e-4)


def test_an_inner_loop_of_maml(device: str) -> None:
    def program(lib: Library) -> Any:
        t, nn, f = lib.torch, lib.nn, lib.func
        net = lib.filled(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
        params = dict(net.named_parameters())
        x1, y1 = lib.tensor(4, 6, 1), lib.tensor(4, 6, 1, seed=9)
        x2, y2 = lib.tensor(4, 6, 1, seed=10), lib.tensor(4, 6, 1, seed=11)

        def mse(p: Any, x: Any, y: Any) -> Any:
            return nn.functional.mse_loss(f.functional_call(net, p, (x,)), y)

        def task(x1: Any, y1: Any, x2: Any, y2: Any) -> Any:
            new = params
            for _ in range(2):
                grads = f.grad(mse)(new, x1, y1)
                new = {k: new[k] - 0.3 * g for k, g in grads.items()}
            return mse(new, x2, y2)

        losses = f.vmap(task)(x1, y1, x2, y2)
        optimizer = t.optim.Adam(net.parameters(), lr=0.01)
        losses.mean().backward()
        grads = [p.grad.clone() for p in net.parameters()]
        optimizer.step()
        return losses.detach(), grads, [p.detach() for p in net.parameters()]

    same(program, device, 1e-4)


def test_neural_tangent_kernel_two_ways() -> None:
    def program(lib: Library) -> Any:
        t, f = lib.torch, lib.func
        model = _cnn(lib)
        params = {k: v.detach() for k, v in model.named_parameters()}
        x1, x2 = lib.tensor(3, 1, 8, 8), lib.tensor(2, 1, 8, 8, seed=5)

        def one(p: Any, x: Any) -> Any:
            return f.functional_call(model, p, (x.unsqueeze(0),)).squeeze(0)

        j1 = f.vmap(f.jacrev(one), (None, 0))(params, x1)
        j2 = f.vmap(f.jacrev(one), (None, 0))(params, x2)
        kernel = sum(t.einsum("Naf,Mbf->NMab", j1[k].flatten(2), j2[k].flatten(2)) for k in params)

        def pair(a: Any, b: Any) -> Any:
            def vjp_then_jvp(v: Any) -> Any:
                _, pull = f.vjp(lambda p: one(p, a), params)
                return f.jvp(lambda p: one(p, b), (params,), pull(v))[1]

            return f.vmap(vjp_then_jvp)(t.eye(5))

        products = f.vmap(f.vmap(pair, (None, 0)), (0, None))(x1, x2)
        return kernel, products.transpose(-1, -2)

    same(program, "cpu", 1e-3)


def test_an_ensemble_of_models(device: str) -> None:
    def program(lib: Library) -> Any:
        nn, f = lib.nn, lib.func
        models = [
            lib.filled(
                nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), i
            )
            for i in range(3)
        ]
        for m in models:
            m.eval()
        params, buffers = f.stack_module_state(models)
        x = lib.tensor(5, 6)
        shared = f.vmap(lambda p, b, x: f.functional_call(models[0], (p, b), (x,)), (0, 0, None))(
            params, buffers, x
        )
        shared.pow(2).sum().backward()
        return shared.detach(), [p.grad for p in params.values()], list(buffers.values())

    same(program, device, 1e-4)


def test_jacobians_and_hessian_vector_products_of_an_mlp(device: str) -> None:
    def program(lib: Library) -> Any:
        t, f = lib.torch, lib.func
        w, b, x = lib.tensor(4, 4), lib.tensor(4, seed=1), lib.tensor(4, seed=2)

        def predict(w: Any, b: Any, x: Any) -> Any:
            return t.nn.functional.linear(x, w, b).tanh()

        def loss(x: Any) -> Any:
            return predict(w, b, x).pow(3).sum()

        v = lib.tensor(4, seed=3)
        return (
            f.jacrev(predict, argnums=(0, 1, 2))(w, b, x),
            f.jacfwd(predict, argnums=(0, 2))(w, b, x),
            f.hessian(predict, argnums=2)(w, b, x),
            f.jvp(f.grad(loss), (x,), (v,))[1],
            f.vjp(f.grad(loss), x)[1](v),
            f.vmap(f.hessian(loss))(lib.tensor(3, 4, seed=6)),
        )

    same(program, device, 1e-4)


# PyTorch warns of its own kernels.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_layers_of_transformers_and_recurrence() -> None:
    def program(lib: Library) -> Any:
        nn, f = lib.nn, lib.func
        layer = lib.filled(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
        lstm, table = lib.filled(nn.LSTM(4, 3)), lib.filled(nn.Embedding(7, 4), 20)
        params = {k: v.detach() for k, v in layer.named_parameters()}
        x, words = lib.tensor(3, 5, 8), lib.indices(3, 5, below=7)

        def loss(p: Any, one: Any) -> Any:
            return f.functional_call(layer, p, (one.unsqueeze(0),)).pow(2).mean()

        each = f.vmap(f.grad(loss), (None, 0))(params, x)
        attention = lib.filled(nn.MultiheadAttention(8, 2, batch_first=True), 30)
        forward = f.jvp(lambda y: attention(y, y, y)[0], (x,), (x.cos(),))[1].detach()

        def read(w: Any) -> Any:
            return lstm(table(w).unsqueeze(1))[0]

        # PyTorch has no rule for its LSTM.
        ours = lib.torch is webtorch
        seen = f.vmap(read)(words) if ours else lib.torch.stack([read(w) for w in words])
        return each, forward, seen.detach()

    same(program, "cpu", 1e-3)


def test_memory_that_a_transform_has_not_made_is_not_written(device: str) -> None:
    """A buffer that the function closes over, and views of it; its arguments and what it makes may be written."""

    def program(lib: Library) -> Any:
        t, f, out = lib.torch, lib.func, []
        kept, norm = lib.tensor(4), lib.filled(lib.nn.BatchNorm1d(4))
        point, points = lib.tensor(4, seed=1), lib.tensor(3, 4, seed=2)

        def view(x: Any) -> Any:
            kept[1:].zero_()
            return x.sum()

        def filled(x: Any) -> Any:
            new = t.empty_like(x)
            new.copy_(x)
            new[0] = 2
            return (new * x).sum()

        def inner(x: Any) -> Any:
            g = f.grad(lambda y: (y**3).sum())(x)
            g[0] = 1
            return (g * x).sum()

        for transform in (
            lambda: f.grad(lambda x: (kept.add_(1) * x).sum())(point),
            lambda: f.grad(view)(point),
            lambda: f.vjp(lambda x: kept.mul_(x), point),
            lambda: f.jvp(lambda x: kept.add_(1) * x, (point,), (point,)),
            lambda: f.vmap(f.grad(lambda x: kept.add_(x).sum()))(points),
            lambda: f.grad(lambda x: f.vmap(lambda r: kept.add_(1) * r)(x).sum())(points),
            lambda: f.grad(lambda x: norm(x).sum())(points),
        ):
            with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
                transform()
        for allowed in (
            lambda: f.grad(filled)(point),
            lambda: f.grad(inner)(point),
            lambda: f.grad(lambda x, b: (b.add_(1) * x).sum())(point, kept),
            lambda: f.jvp(lambda x: t.zeros_like(x).add_(x), (point,), (point,)),
            lambda: f.vmap(f.grad(filled))(points),
        ):
            out.append(allowed())
        return out, kept, norm.running_mean

    same(program, device)


def test_a_user_sees_gradients_of_the_innermost_transform_alone(device: str) -> None:
    def program(lib: Library) -> Any:
        f, log = lib.func, []
        x, w = lib.tensor(3, 4).requires_grad_(), lib.tensor(4).requires_grad_()

        def seen(*tensors: Any) -> None:
            log.extend([(t.requires_grad, t.is_leaf, t.grad_fn is None) for t in tensors])

        def function(r: Any) -> Any:
            seen(r, r * 2, w, (r * w).detach())
            log.extend([(r * w).requires_grad, (w * 1).requires_grad, (r * r).requires_grad])
            return (r * w).sum()

        f.vmap(function)(x).sum().backward()
        given = f.grad(function)(x.detach()[0]), f.vmap(f.grad(function))(x.detach())
        moved = f.jvp(function, (x.detach()[0],), (lib.tensor(4, seed=1),))
        seen(x * 2, *given)
        return [str(one) for one in log], x.grad, w.grad, given, moved

    same(program, device)
