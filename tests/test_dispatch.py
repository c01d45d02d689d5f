"""`__torch_dispatch__`: what modes and classes are handed, and what becomes of what they return, as in PyTorch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._mode_utils
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.flop_counter
import torch.utils.module_tracker

import webtorch
import webtorch.utils._python_dispatch
import webtorch.utils._pytree
import webtorch.utils.flop_counter
import webtorch.utils.module_tracker
from webtorch.aten import schema
from webtorch.aten.parts import aten
from webtorch.dispatch.call import active

# Each library with its operators.
LIBRARIES = ((webtorch, aten), (torch, torch.ops.aten))


NO_DISPATCH = {
    webtorch: webtorch.utils._python_dispatch.no_dispatch,
    torch: torch.utils._mode_utils.no_dispatch,
}


def dispatch_of(lib: Any) -> Any:
    return lib.utils._python_dispatch


def log_of(lib: Any) -> Any:
    """Return a mode that notes what it is handed."""

    class Log(dispatch_of(lib).TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls.append(str(func).removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    return Log()


def seen(lib: Any, function: Callable[[Any], object]) -> list[str]:
    """Return what a mode sees of a call, but for constants of Python that become tensors and views of copies."""
    with log_of(lib) as log:
        function(lib)
    return [c for c in log.calls if c not in ("detach.default", "lift_fresh.default")]


def image(lib: Any) -> Any:
    return lib.ones(1, 3, 8, 8)


def rows(lib: Any) -> Any:
    return lib.ones(2, 5, 3)


CALLS: dict[str, Callable[[Any], object]] = {
    "numbers": lambda t: ((t.ones(2) + 1) * 2 - 1) / 3,
    "numbers first": lambda t: 3 / (2 - 2 * (1 + t.ones(2))),
    "comparison": lambda t: (t.ones(2) > 0, t.ones(2) ** 2, t.ones(2) == t.ones(2)),
    "in place": lambda t: t.ones(2).add_(1).mul_(2).zero_(),
    "linear": lambda t: t.nn.functional.linear(t.ones(2, 3), t.ones(4, 3), t.ones(4)),
    "linear of rows without a bias": lambda t: t.nn.functional.linear(rows(t), t.ones(4, 3)),
    "convolution": lambda t: t.nn.functional.conv2d(image(t), t.ones(4, 3, 3, 3), padding=1).relu(),
    "transposed convolution": lambda t: t.nn.functional.conv_transpose2d(image(t), t.ones(3, 4, 2, 2), stride=2),
    "softmax": lambda t: (rows(t).softmax(-1), t.nn.functional.log_softmax(rows(t), 1)),
    "norms": lambda t: (t.nn.functional.layer_norm(rows(t), (3,)), t.nn.functional.group_norm(image(t), 3)),
    "cross entropy": lambda t: t.nn.functional.cross_entropy(t.ones(2, 3), t.zeros(2, dtype=t.int64)),
    "losses": lambda t: [
        f(t.ones(2), t.ones(2)) for f in (t.nn.functional.mse_loss, t.nn.functional.smooth_l1_loss)
    ],
    "activations": lambda t: [f(t.ones(3)) for f in (t.nn.functional.gelu, t.nn.functional.silu, t.sigmoid, t.tanh)],
    "embedding": lambda t: t.nn.functional.embedding(t.zeros(2, dtype=t.int64), t.ones(3, 4)),
    "subscripts": lambda t: [rows(t)[i] for i in (0, (..., 0), None, (slice(None), slice(1, None)), t.arange(2))],
    "shapes": lambda t: (
        rows(t).reshape(10, 3), rows(t).transpose(0, 1).reshape(10, 3), rows(t).flatten(1), rows(t).permute(2, 0, 1),
        rows(t).contiguous(), rows(t).unsqueeze(0), rows(t).expand(4, 2, 5, 3), t.cat([rows(t), rows(t)]),
    ),
    "types": lambda t: (rows(t).to(t.float64), rows(t).half(), rows(t).float()),
    "reductions": lambda t: (
        rows(t).sum(), rows(t).sum(1), rows(t).mean(0), rows(t).max(1), rows(t).argmax(1), rows(t).var(1),
    ),
    "pools": lambda t: (
        t.nn.functional.avg_pool2d(image(t), 2), t.nn.functional.adaptive_avg_pool2d(image(t), 1),
    ),
    "numbers that are read": lambda t: (t.ones(2).sum().item(), float(t.ones(1)), bool(t.ones(1) > 0)),
    "masks": lambda t: rows(t)[rows(t) > 0],
    "writes": lambda t: [
        rows(t).__setitem__(*given)
        for given in (
            (0, 2.0), (slice(None), 1), ((0, 1), t.ones(3)), (rows(t) > 0, 1), (t.arange(2), rows(t)),
            (slice(0, 1), t.ones(1, 1, 5, 3)),
        )
    ],
    "factories": lambda t: (t.zeros(2), t.ones(2, 3), t.arange(4), t.full((2,), 1.0), t.zeros_like(t.ones(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_mode_is_handed_pytorchs_operators(name: str) -> None:
    assert seen(webtorch, CALLS[name]) == seen(torch, CALLS[name])


def test_calls_of_a_backward_pass_are_handed_over_too() -> None:
    def step(lib: Any) -> None:
        x, w, b = (lib.ones(*s, requires_grad=True) for s in ((2, 3), (4, 3), (4,)))
        lib.nn.functional.linear(x, w, b).relu().softmax(-1).sum().backward()

    wanted = {"threshold_backward.default", "_softmax_backward_data.default", "mm.default"}
    for lib in (webtorch, torch):
        calls = seen(lib, step)
        assert wanted <= set(calls)
        assert calls.count("mm.default") == 2


def twice(lib: Any, operators: Any, name: str, by: int) -> Any:
    """Return a mode that multiplies the results of one operator."""

    class Scaled(dispatch_of(lib).TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            return out * by if func is getattr(operators, name).default else out

    return Scaled()


@pytest.mark.parametrize("name", ["sin", "exp", "sigmoid"])
def test_a_result_that_a_mode_makes_is_differentiated_as_the_operators(name: str) -> None:
    found = []
    for lib, operators in LIBRARIES:
        x = lib.tensor([0.5, 1.0], requires_grad=True)
        with twice(lib, operators, name, 10), twice(lib, operators, name, 3):
            y = getattr(x, name)()
        (y * y.detach()).sum().backward()
        assert y.grad_fn.name() == f"{name.title()}Backward0"
        found.append((y.tolist(), x.grad.tolist()))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] == pytest.approx(found[1][1])


def test_modes_may_call_with_other_arguments_and_refuse() -> None:
    for lib, operators in LIBRARIES:

        class Wide(dispatch_of(lib).TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if func is operators.mm.default:  # noqa: B023  (called within the loop)
                    args = [x.double() for x in args]
                return func(*args, **(kwargs or {}))

        class Refusing(dispatch_of(lib).TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, *_: Any) -> Any:
                return NotImplemented

        with Wide():
            assert (lib.ones(2, 2) @ lib.ones(2, 2)).dtype is lib.float64
        refused = r"Multiple dispatch failed for 'torch\._ops\.aten\.ones\.default'"
        with Refusing(), pytest.raises(TypeError, match=refused):
            lib.ones(2)


def wrapper_of(lib: Any, log: list[str]) -> Any:
    """Return a class of tensors that wrap others and note what they are asked for."""
    tree_map = lib.utils._pytree.tree_map

    class Wrapper(lib.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls: Any, elem: Any, requires_grad: bool = False) -> Any:
            self = lib.Tensor._make_wrapper_subclass(
                cls, elem.size(), strides=elem.stride(), dtype=elem.dtype, device=elem.device,
                requires_grad=requires_grad,
            )  # fmt: skip
            self.elem = elem
            return self

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            with (
                lib._C.DisableTorchFunctionSubclass()
                if lib is torch
                else lib.overrides.DisableTorchFunctionSubclass()
            ):
                return func(*args, **(kwargs or {}))

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            log.append(str(func))
            args, kwargs = tree_map(
                lambda x: x.elem if isinstance(x, cls) else x, (args, kwargs or {})
            )
            out = func(*args, **kwargs)
            return tree_map(lambda x: cls(x) if isinstance(x, lib.Tensor) else x, out)

    return Wrapper


def test_tensors_that_wrap_others_compute_and_are_differentiated() -> None:
    found = []
    for lib in (webtorch, torch):
        log: list[str] = []
        wrap = wrapper_of(lib, log)
        x = wrap(lib.tensor([[1.0, -2.0], [3.0, 4.0]]), True)
        w = wrap(lib.ones(3, 2), True)
        y = lib.nn.functional.linear(x, w).relu().view(-1)
        assert type(y) is wrap
        assert y.requires_grad
        assert str(y.device) == "cpu"
        (y * 2).sum().backward()
        assert type(x.grad) is type(w.grad) is wrap
        assert {"aten.t.default", "aten.mm.default", "aten.threshold_backward.default"} <= set(log)
        found.append([t.elem.tolist() for t in (y, x.grad, w.grad)])
    assert found[0] == found[1]


# Functions of a wrapping tensor and of a plain one.
WRAPPED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "elementwise": lambda t, x, y: (x * y + x.exp() / y - x.sigmoid()).log1p(),
    "scalars": lambda t, x, y: (2 - x) * 3 + x**2 / 4,
    "reductions": lambda t, x, y: x.std() * x.mean(1).prod() + x.logsumexp(0).sum() + x.amax(),
    "views": lambda t, x, y: x.t()[0, 1:].unsqueeze(0).expand(2, 2).reshape(-1) * x[1].sum(),
    "several": lambda t, x, y: t.cat([part * (i + 1) for i, part in enumerate(x.unbind(1))]),
    "several results": lambda t, x, y: x.sort(1)[0] * x.max(1)[0].sum() + x.var(0).sum(),
    "products": lambda t, x, y: (x @ y.t()) @ x + t.einsum("ij,kj->ik", x, y).sum(),
    "softmax": lambda t, x, y: x.softmax(1) * t.nn.functional.log_softmax(x * y, 0),
    "where": lambda t, x, y: t.where(x > 0, x, y * x).clamp(max=1.5),
    "in place": lambda t, x, y: (x * 2).mul_(x).add_(y).exp_().clamp(max=9.0),
    "loss": lambda t, x, y: (
        t.nn.functional.mse_loss(x.tanh(), y) + t.nn.functional.smooth_l1_loss(x, y)
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_gradients_of_what_wraps_tensors_are_of_its_class(name: str) -> None:
    """Also of gradients, and of the plain tensor that is computed with."""
    found: list[Any] = []
    for lib, _ in LIBRARIES:
        wrap = wrapper_of(lib, [])
        values = lib.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], dtype=lib.float64)
        x = wrap(values, True)
        y = (values.flip(1).abs() + 1.5).requires_grad_()
        out = WRAPPED[name](lib, x, y)
        assert type(out) is wrap
        slopes = lib.autograd.grad(out.sum(), (x, y), create_graph=True, allow_unused=True)
        slopes = [g for g in slopes if g is not None]
        assert all(type(g) is wrap for g in slopes)
        total = sum((g * g).sum() for g in slopes)
        if total.requires_grad:
            total.backward()
            assert x.grad is None or type(x.grad) is wrap
        found.append([t.elem.tolist() for t in (out, *slopes, x.grad) if t is not None])
    mine, theirs = ([webtorch.tensor(v, dtype=webtorch.float64) for v in part] for part in found)
    for a, b in zip(mine, theirs, strict=True):
        webtorch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_what_wraps_a_tensor_shows_the_device_and_the_values_of_its_class() -> None:
    found = []
    for lib, _ in LIBRARIES:

        class Wrapper(wrapper_of(lib, [])):  # type: ignore[misc]
            __slots__ = ("note",)

            def __repr__(self) -> str:
                text: str = lib.Tensor.__repr__(self, tensor_contents=f"{self.elem}")  # noqa: B023
                return text

        x = Wrapper(lib.tensor([[1.0, -2.0]]), True)
        facts = [str(x * 2), x.is_cpu, x.is_meta, x[0, 1].item(), bool((x[0] == x[0]).all())]
        for fails in (x.detach().tolist, x.detach().numpy, lambda: x.add_(1)):  # noqa: B023
            with pytest.raises(RuntimeError) as raised:
                fails()
            facts.append(str(raised.value).partition(".\n")[0])
        y = x * 1
        (y * y).sum().backward()
        y = x.detach() * 1
        facts += [y.add_(1) is y, y._version]
        found.append(facts)
    assert found[0] == found[1]


def test_operators_are_objects_as_pytorchs() -> None:
    for name in ("add.Tensor", "relu.default", "max.dim", "view.default", "add_.Scalar"):
        packet, overload = name.split(".")
        mine, theirs = (getattr(getattr(ops, packet), overload) for _, ops in LIBRARIES)
        assert str(mine) == str(theirs)
        assert repr(mine) == repr(theirs)
        assert mine.name() == theirs.name()
        assert mine.__name__ == theirs.__name__
        assert str(mine._schema) == str(theirs._schema)
        assert mine.is_view == theirs.is_view
        assert mine._schema.is_mutable == theirs._schema.is_mutable
        assert repr(mine.overloadpacket) == repr(theirs.overloadpacket)
        assert getattr(getattr(aten, packet), overload) is mine
        assert copy.deepcopy(mine) is mine
        assert pickle.loads(pickle.dumps(mine)) is mine
    with pytest.raises(AttributeError, match="no overload name 'Nothing'"):
        _ = aten.add.Nothing
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_this_name'"):
        _ = aten.nothing_of_this_name


def test_operators_compute() -> None:
    for lib, ops in LIBRARIES:
        x = lib.arange(6).reshape(2, 3).float()
        assert ops.add.Tensor(x, 1, alpha=3).tolist() == (x + 3).tolist()
        assert ops.sum.dim_IntList(x, [1], True).tolist() == [[3.0], [12.0]]
        assert ops.max.dim(x, 1)[1].tolist() == [2, 2]
        assert ops.add_.Tensor(x, 1) is x
        assert ops.slice.Tensor(x, 1, 1, 3).tolist() == [[2.0, 3.0], [5.0, 6.0]]
        assert ops.linalg_vector_norm(lib.tensor([3.0, 4.0])).item() == 5.0
        mean = ops.native_layer_norm(x, [3], None, None, 0.0)[1]
        assert mean.flatten().tolist() == [2.0, 5.0]


def test_every_schema_is_pytorchs() -> None:
    """All of them are read; what is read of them is compared for every tenth."""
    for name in schema.names():
        for overload, mine in schema.overloads(name).items():
            theirs = getattr(getattr(torch.ops.aten, name), overload)._schema
            assert str(mine) == str(theirs)
            for a, b in zip(mine.arguments, theirs.arguments, strict=True):
                assert (a.name, a.kwarg_only, a.has_default_value()) == (
                    b.name, b.kwarg_only, b.has_default_value(),
                )  # fmt: skip
                assert (a.alias_info is None) == (b.alias_info is None)


def gpt(lib: Any) -> Any:
    class GPT(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            nn = lib.nn
            self.embed, self.norm, self.joint = (
                nn.Embedding(20, 16),
                nn.LayerNorm(16),
                nn.Linear(16, 48),
            )
            self.out, self.head = nn.Linear(16, 16), nn.Linear(16, 20, bias=False)
            self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            parts = self.joint(self.norm(x)).split(16, 2)
            q, k, v = (p.view(2, 6, 2, 8).transpose(1, 2) for p in parts)
            y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
            x = x + self.out(y.transpose(1, 2).reshape(2, 6, 16))
            return self.head(x + self.mlp(x))

    return GPT(), lib.zeros(2, 6, dtype=lib.int64)


def cnn(lib: Any) -> Any:
    nn = lib.nn
    layers = (
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4),
        nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten(), nn.Linear(4 * 6 * 6, 5),
    )  # fmt: skip
    return nn.Sequential(*layers), lib.ones(2, 3, 16, 16, requires_grad=True)


MODELS: dict[str, Callable[[Any], Any]] = {
    "gpt": gpt,
    "cnn": cnn,
    "conv1d": lambda t: (t.nn.Conv1d(2, 3, 3), t.ones(2, 2, 8)),
    "conv3d": lambda t: (t.nn.Conv3d(2, 3, 2), t.ones(1, 2, 4, 4, 4)),
    "encoder": lambda t: (t.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), t.ones(2, 5, 16)),
    "bmm": lambda t: (lambda x: t.bmm(x, x.mT), t.ones(2, 3, 4, requires_grad=True)),
    "baddbmm": lambda t: (lambda x: t.baddbmm(t.ones(2, 3, 3), x, x.mT), t.ones(2, 3, 4, requires_grad=True)),
    "einsum": lambda t: (lambda x: t.einsum("bij,bkj->bik", x, x), t.ones(2, 3, 4, requires_grad=True)),
    "broadcast": lambda t: (lambda x: x[:, None] @ t.ones(2, 4, 5), t.ones(2, 3, 4, requires_grad=True)),
    "vector": lambda t: (lambda x: x @ t.ones(4), t.ones(3, 4, requires_grad=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_products_are_counted_as_pytorch_counts_them(name: str) -> None:
    counts = []
    for lib in (webtorch, torch):
        model, x = MODELS[name](lib)
        with lib.utils.flop_counter.FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        found = counter.get_flop_counts()
        counts.append({m: {str(o): n for o, n in c.items()} for m, c in found.items()})
    assert counts[0] == counts[1]


def test_the_table_of_counts_and_formulas_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    model = webtorch.nn.Sequential(webtorch.nn.Linear(4, 8), webtorch.nn.Linear(8, 2))
    formulas = {aten.relu: lambda shape, out_shape=None: shape[0] * shape[1]}
    with webtorch.utils.flop_counter.FlopCounterMode(custom_mapping=formulas) as counter:
        model(webtorch.ones(3, 4)).relu()
    assert counter.get_total_flops() == 2 * 3 * (4 * 8 + 8 * 2) + 6
    assert capsys.readouterr().out.splitlines() == [
        "Module             FLOP    % Total",
        "---------------  ------  ---------",
        "Global              294    100.00%",
        " - aten.addmm       288     97.96%",
        " - aten.relu          6      2.04%",
        " Sequential         288     97.96%",
        "  - aten.addmm      288     97.96%",
        "  Sequential.0      192     65.31%",
        "   - aten.addmm     192     65.31%",
        "  Sequential.1       96     32.65%",
        "   - aten.addmm      96     32.65%",
    ]


def test_attention_off_the_cpu_is_counted_as_two_products() -> None:
    q = webtorch.ones(1, 2, 4, 8, requires_grad=True)
    out = aten._scaled_dot_product_efficient_attention(q, q, q, None, True)[0]
    assert out.shape == q.shape
    with webtorch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        aten._scaled_dot_product_efficient_attention(q, q, q, None, True)[0].sum().backward()
    counts = {str(o): n for o, n in counter.get_flop_counts()["Global"].items()}
    product = 2 * 1 * 2 * 4 * 4 * 8
    assert counts == {
        "aten._scaled_dot_product_efficient_attention": 2 * product,
        "aten._scaled_dot_product_efficient_attention_backward": 5 * product,
    }


def test_no_mode_no_difference() -> None:
    before = active.count
    with log_of(webtorch):
        assert active.count == before + 1
    assert active.count == before


def test_gradients_of_wrapped_tensors_are_linear_where_pytorchs_are() -> None:
    """What an operator is linear in has no part in its gradient."""

    class Wrapped(webtorch.Tensor):
        inner: Any

        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            made = webtorch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            def bare(x: Any) -> Any:
                return x.inner if isinstance(x, cls) else x

            found = func(
                *webtorch.utils._pytree.tree_map(bare, args),
                **webtorch.utils._pytree.tree_map(bare, kwargs or {}),
            )
            return cls(found) if isinstance(found, webtorch.Tensor) else found

    x = Wrapped(webtorch.arange(3.0)).requires_grad_()
    functions = (
        lambda x: (3 * x).sum(),
        lambda x: x.clone().reshape(-1)[1],
        lambda x: (x * x).sum(),
    )
    for f, wanted, depends in zip(
        functions, ([3.0] * 3, [0.0, 1.0, 0.0], [0.0, 2.0, 4.0]), (0, 0, 1), strict=True
    ):
        (g,) = webtorch.autograd.grad(f(x), x, create_graph=True)
        assert (g.inner.tolist(), g.requires_grad) == (wanted, bool(depends))


def test_classes_that_are_asked_for_kernels_are_asked_for_functions_where_they_say_so() -> None:
    """Results keep the class by what it says alone, and a dual tensor begins with a view."""
    found = []
    for lib, _ in LIBRARIES:
        log: list[tuple[str, bool]] = []

        class Watched(lib.Tensor):  # type: ignore[misc, name-defined]
            @classmethod
            def __torch_dispatch__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None,
                lib: Any = lib, log: Any = log,
            ) -> Any:  # fmt: skip
                with lib.overrides.enable_reentrant_dispatch():
                    recorded = lib.ones(1, requires_grad=True).exp().requires_grad
                log.append((str(func), recorded))
                with NO_DISPATCH[lib]():
                    return func(*args, **(kwargs or {}))

        x = lib.ones(2).as_subclass(Watched)
        kinds = [type(y) is lib.Tensor for y in (x + 1, x.clone(), x.detach())]
        dual = lib.autograd.forward_ad
        with dual.dual_level():
            dual.make_dual(x, lib.ones(2))
        found.append((kinds, log))
    assert found[0] == found[1]


def test_writes_under_a_mode_are_what_they_are_without() -> None:
    """Also where the gradient of what was written is another operator's."""

    def run(lib: Any) -> Any:
        x = lib.arange(12.0, requires_grad=True)
        y = (x * 1).view(3, 4)
        y[0], y[1, 2:] = 7, lib.tensor([1.0, 2.0])
        y[lib.tensor([2, 0]), 1] = 5
        y[y > 8] = -1
        y[..., -1] = y[..., 0].detach() * 2
        y[1:2] = lib.ones(1, 1, 4)
        (y * y).sum().backward()
        with pytest.raises(
            IndexError, match="index 5 is out of bounds for dimension 0 with size 3"
        ):
            y.detach()[5] = 1
        return y.tolist(), x.grad.tolist()

    plain = run(torch)
    for lib, _ in LIBRARIES:
        with log_of(lib):
            assert run(lib) == plain


@pytest.mark.parametrize("lib", [webtorch, torch], ids=["webtorch", "torch"])
def test_what_wraps_a_tensor_may_have_a_type_of_its_own_to_show(lib: Any) -> None:
    """A property of the user's hides the type (PyTorch Geometric's `Index`)."""

    class Shown(wrapper_of(lib, [])):  # type: ignore[misc]
        @property
        def dtype(self) -> Any:
            return self.elem.dtype

    x = Shown(lib.arange(4, device="cpu"))
    assert x.dtype == lib.int64
    assert (x + 1).elem.tolist() == [1, 2, 3, 4]
    assert x.float().dtype == lib.float32


@pytest.mark.parametrize("lib", [webtorch, torch], ids=["webtorch", "torch"])
def test_trackers_of_users_put_their_parts_in_place(lib: Any) -> None:
    """Classes derived from ModuleTracker know which modules run (SpikingJelly's counters)."""

    class Tracker(lib.utils.module_tracker.ModuleTracker):  # type: ignore[misc]
        def _fw_pre_hook(self, mod: Any, input: Any) -> None:
            super()._fw_pre_hook(mod, input)
            seen.append(("in", self._get_mod_name(mod)))

        def _fw_post_hook(self, mod: Any, input: Any, output: Any) -> None:
            super()._fw_post_hook(mod, input, output)
            seen.append(("out", self._get_mod_name(mod)))

        def _get_append_fn(self, name: str, is_bw: bool) -> Any:
            enter = super()._get_append_fn(name, is_bw)
            return lambda *_: (seen.append((is_bw, name)), enter())

    seen: list[Any] = []
    net = lib.nn.Sequential(lib.nn.Linear(2, 2))
    with Tracker() as tracker:
        net(lib.ones(1, 2)).sum().backward()
    parts = ["Sequential", "Sequential.0"]
    assert [x for x in seen if x[0] == "in"] == [("in", p) for p in parts]
    assert [x for x in seen if x[0] == "out"] == [("out", p) for p in reversed(parts)]
    assert [x for x in seen if x[0] is True] == [(True, p) for p in reversed(parts)]
    assert tracker.parents == {"Global"}
