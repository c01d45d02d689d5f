"""`functorch`, beside PyTorch's: modules as functions, vmap in parts, places of dims."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch

import webtorch
from webtorch.as_torch.names import functorch_parts as ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = importlib.import_module("torch._functorch.make_functional")
    apis = importlib.import_module("torch._functorch.apis")
    eager = importlib.import_module("torch._functorch.eager_transforms")

BOTH = pytest.mark.parametrize(
    ("lib", "parts"), [(torch, theirs), (webtorch, ours)], ids=["torch", "webtorch"]
)


def _net(lib: Any) -> Any:
    net = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.BatchNorm1d(3))
    with lib.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(lib.arange(float(p.numel())).reshape(p.shape) * 0.1 + i)
    return net


@BOTH
def test_a_module_is_a_function_of_its_parameters(lib: Any, parts: Any) -> None:
    linear = _net(lib)[0]
    x = lib.tensor([[1.0, 2.0]])
    function, params = parts.make_functional(linear)
    assert lib.allclose(function(params, x), linear(x))
    doubled = [p * 2 for p in params]
    assert lib.allclose(function(doubled, x), linear(x) * 2)
    # They are copies.
    assert all(p is not q for p, q in zip(params, linear.parameters(), strict=True))
    assert all(p.requires_grad for p in params)
    assert not any(p.requires_grad for p in parts.make_functional(linear, True)[1])
    with pytest.raises(RuntimeError, match="`model` has buffers"):
        parts.make_functional(_net(lib))


@BOTH
def test_an_ensemble_is_one_function(lib: Any, parts: Any) -> None:
    nets = [_net(lib).eval() for _ in range(3)]
    function, params, buffers = parts.combine_state_for_ensemble(nets)
    x = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = lib.func.vmap(function, (0, 0, None))(params, buffers, x)
    assert found.shape == (3, 2, 3)
    assert lib.allclose(found[1], nets[1](x), atol=1e-5)
    with pytest.raises(RuntimeError, match="at least one model"):
        parts.combine_state_for_ensemble([])
    with pytest.raises(RuntimeError, match="same training/eval mode"):
        parts.combine_state_for_ensemble([nets[0], _net(lib).train()])


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_vmap_in_parts(chunks: int) -> None:
    found = []
    for lib, parts in ((torch, apis), (webtorch, ours)):
        x = lib.arange(10.0).reshape(2, 5)
        call = parts.chunk_vmap(lambda v: v * v.sum(), in_dims=1, out_dims=1, chunks=chunks)
        found.append(call(x).tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("argnums", [0, -1, (0, 2), (3,)])
def test_arguments_that_are_chosen(argnums: Any) -> None:
    args = (0.1, 1.1, 2.1, 3.1)
    assert ours._slice_argnums(args, argnums) == eager._slice_argnums(args, argnums)


def test_dims_that_are_merged_and_split() -> None:
    core = torch._C._functorch
    x, y = torch.arange(24.0).reshape(2, 3, 4), webtorch.arange(24.0).reshape(2, 3, 4)
    for src, dst in ((0, 0), (0, 1), (2, 0), (1, -1)):
        expected = core.reshape_dim_into(src, dst, x)
        found = ours.reshape_dim_into(src, dst, y)
        assert (found.shape, found.tolist()) == (tuple(expected.shape), expected.tolist())
    for src, size in ((2, 2), (1, 3), (-1, 4)):
        expected = core.reshape_dim_outof(src, size, x)
        found = ours.reshape_dim_outof(src, size, y)
        assert (found.shape, found.tolist()) == (tuple(expected.shape), expected.tolist())


def test_names_of_functorch_warn() -> None:
    from webtorch.as_torch.names import functorch_deprecated as named

    theirs = importlib.import_module("torch._functorch.deprecated")
    for name in ("vmap", "grad", "jacrev", "hessian", "functionalize"):
        words = []
        for module, function in ((theirs, torch.sin), (named, webtorch.sin)):
            with pytest.warns(FutureWarning) as caught:
                getattr(module, name)(function)
            words.append(" ".join(str(caught[0].message).split()))
        assert words[0] == words[1]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_classes_as_functions(shape: tuple[int, ...]) -> None:
    found = []
    for lib, parts in ((torch, theirs), (webtorch, ours)):
        class_ = lib.nn.BatchNorm1d
        made = parts.functional_init_with_buffers(class_, [3])(2)
        weights, buffers, function, *names = made
        out = lib.vmap(function, in_dims=(0, 0, None))(weights, buffers, (lib.ones(4, 2),))
        single = parts.functional_init(lib.nn.Linear, shape)(2, 4)
        found.append((tuple(out.shape), len(weights), len(buffers), names, single[2],
                      [tuple(w.shape) for w in single[0]]))  # fmt: skip
    assert found[0] == found[1]


def _texts(lib: Any) -> list[str]:
    """Return what tensors print within transforms."""
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.append(repr(x))
        return (x * x).sum()

    x = lib.tensor([1.5, -2.0])
    lib.func.grad(f)(x)
    lib.func.grad(lambda y: lib.func.grad(f)(y).sum())(x)
    lib.vmap(lib.func.grad(f))(x.reshape(2, 1))
    lib.func.grad(lambda y: lib.vmap(f)(y).sum())(x.reshape(2, 1))
    return [" ".join(text.split()) for text in seen]


def test_what_transforms_see_is_printed() -> None:
    assert _texts(webtorch) == _texts(torch)


@pytest.mark.parametrize("transform", ["functionalize", "grad"])
def test_transforms_ask_functions_for_their_contexts(transform: str) -> None:
    def refused(lib: Any) -> str:
        class Double(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                assert not lib.autograd.forward_ad._is_fwd_grad_enabled()
                return x * 2

        assert Double.apply(lib.ones(1)).item() == 2
        assert lib.autograd.forward_ad._is_fwd_grad_enabled()
        with pytest.raises(RuntimeError) as error:
            getattr(lib.func, transform)(Double.apply)(lib.ones(2))
        return " ".join(str(error.value).split())[:90]

    assert refused(webtorch) == refused(torch)


def _mapped_by_forward_mode(lib: Any) -> str:
    def f(x: Any) -> Any:
        return lib.autograd.functional.jacobian(lib.sin, x, strategy="forward-mode", vectorize=True)

    with warnings.catch_warnings():
        # PyTorch tells of a slow way before.
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError) as error:
            lib.vmap(f)(lib.ones(2, 3))
    return str(error.value)


def test_jacobians_of_forward_mode_are_not_mapped() -> None:
    words = "Batching rule not implemented for aten::"
    assert words in _mapped_by_forward_mode(torch)
    assert words in _mapped_by_forward_mode(webtorch)


FUNCTIONS = [
    (torch, importlib.import_module("torch._functorch.autograd_function")),
    (webtorch, importlib.import_module("webtorch.as_torch.names.function_parts")),
]


def test_contexts_with_other_saved_tensors() -> None:
    def gradient(lib: Any, parts: Any) -> list[Any]:
        seen: list[Any] = []

        class Named(lib.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                inner = parts.CtxWithSavedTensors(ctx, (1,))
                outer = parts.CtxWithSavedTensors(inner, (2, 3))
                outer.word = "kept"
                seen.extend([inner.saved_tensors, outer.saved_tensors, ctx.word])
                seen.append(outer.needs_input_grad)
                ctx._pt_inner_ctx = 1
                with pytest.raises(RuntimeError, match="name collision"):
                    parts.CtxWithSavedTensors(ctx, ())
                return g

        x = lib.ones(1, requires_grad=True)
        Named.apply(x).backward()
        return [*seen, x.grad.item()]

    assert gradient(*FUNCTIONS[0]) == gradient(*FUNCTIONS[1])


@pytest.mark.parametrize(
    ("shape", "given", "wanted", "sizes"),
    [((2, 3), 0, None, None), ((3, 2), 1, None, (3,)), ((3, 4), None, 1, None),
     ((3, 4), None, 1, (4,)), ((2, 3), 0, 1, None), ((3, 4, 2), 2, 0, (4,)), ((3,), None, None, None)],
)  # fmt: skip
def test_gradients_of_mapped_inputs(shape: Any, given: Any, wanted: Any, sizes: Any) -> None:
    out = []
    for lib, parts in FUNCTIONS:
        count = int(torch.Size(shape).numel())
        x = lib.arange(float(count)).reshape(shape)
        found = parts.reductify_leaf(x, given, wanted, 2, sizes)
        out.append((tuple(found.shape), found.tolist()))
    assert out[0] == out[1]
    assert all(parts.reductify_leaf(None, None, 0, 2) is None for _, parts in FUNCTIONS)


def test_operators_of_higher_order_are_mapped_and_differentiated() -> None:
    from webtorch.as_torch.names.core import DispatchKey
    from webtorch.as_torch.names.operator_parts import HigherOrderOperator

    class Total(HigherOrderOperator):
        def __init__(self) -> None:
            super().__init__("total")

    total, x = Total(), webtorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(NotImplementedError, match="no fallback found for the higher order"):
        total(x)
    total.py_impl(DispatchKey.AutogradCPU)(lambda x: (x * x).sum())
    assert webtorch.func.grad(total)(x).tolist() == [[2, 4], [6, 8]]
    assert webtorch.vmap(total)(x).tolist() == [5, 25]
    with pytest.raises(RuntimeError, match="Direct instantiation"):
        HigherOrderOperator("mine")
