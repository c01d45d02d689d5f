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
