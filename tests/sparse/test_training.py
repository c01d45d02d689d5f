"""Sparse gradients: embeddings, optimizers, accumulation, hooks; and leaves that are sparse."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.sparse.programs import CASES, close, made

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
INDICES = [1, 3, 1, 0]
TABLE = np.random.default_rng(0).standard_normal((5, 3)).tolist()


def layer(lib: Any, device: str, bag: bool = False, **options: Any) -> Any:
    kind = lib.nn.EmbeddingBag if bag else lib.nn.Embedding
    made_layer = kind(5, 3, sparse=True, **options)
    here = {} if lib is torch else {"device": device}
    with lib.no_grad():
        made_layer.weight = lib.nn.Parameter(lib.tensor(TABLE, **here))
    return made_layer


def indices(lib: Any, device: str, values: list[int] = INDICES) -> Any:
    return lib.tensor(values) if lib is torch else lib.tensor(values, device=device)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}])
def test_the_gradient_of_an_embedding_is_sparse(options: Any, device: str) -> None:
    found = []
    for lib in (webtorch, torch):
        e = layer(lib, device, **options)
        for _ in range(2):
            (e(indices(lib, device)) ** 2).sum().backward()
        found.append(e.weight.grad)
    ours, theirs = found
    assert ours.is_sparse
    close(ours, theirs, "webgpu")


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_gradient_of_a_bag_is_sparse(mode: str, device: str) -> None:
    found = []
    for lib in (webtorch, torch):
        e = layer(lib, device, bag=True, mode=mode)
        (e(indices(lib, device), indices(lib, device, [0, 3])) ** 2).sum().backward()
        found.append(e.weight.grad)
    assert found[0].is_sparse
    close(found[0], found[1], "webgpu")


OPTIMIZERS: dict[str, Any] = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1},
    "SparseAdam": {"lr": 0.1},
    "SparseAdam turned": {"lr": 0.1, "maximize": True, "betas": (0.5, 0.7)},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_sparse_gradients_is_that_of_pytorch(name: str, device: str) -> None:
    weights = []
    for lib in (webtorch, torch):
        e = layer(lib, device)
        optimizer = getattr(lib.optim, name.split()[0])(e.parameters(), **OPTIMIZERS[name])
        for step in range(4):
            optimizer.zero_grad(set_to_none=step != 2)
            (e(indices(lib, device, [step, 3, step, 4])) ** 2).sum().backward()
            optimizer.step()
        weights.append(e.weight.detach())
    close(*weights, "webgpu")


def test_the_state_of_sparse_adam_goes_to_pytorch_and_back() -> None:
    e = layer(webtorch, "cpu")
    optimizer = webtorch.optim.SparseAdam(e.parameters())
    e(indices(webtorch, "cpu")).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert state["state"][0]["step"] == 1
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"]
    again = webtorch.optim.SparseAdam(e.parameters())
    again.load_state_dict(state)
    assert again.state_dict()["state"][0]["step"] == 1


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adamax", "NAdam", "Rprop", "ASGD"])
def test_other_optimizers_refuse_in_the_words_of_pytorch(name: str) -> None:
    words = []
    for lib in (webtorch, torch):
        e = layer(lib, "cpu")
        e(indices(lib, "cpu")).sum().backward()
        with pytest.raises(RuntimeError) as caught:
            getattr(lib.optim, name)(e.parameters()).step()
        words.append(str(caught.value))
    assert words[0] == words[1]


def test_refusals_are_those_of_pytorch() -> None:
    e = layer(webtorch, "cpu", scale_grad_by_freq=True)
    with pytest.raises(RuntimeError, match="scale_grad_by_freq not supported with sparse"):
        e(indices(webtorch, "cpu")).sum().backward()
    e = layer(webtorch, "cpu")
    (e.weight * 2).sum().backward()
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        webtorch.optim.SparseAdam(e.parameters()).step()
    x = made(webtorch, CASES["matrix"], "cpu", grad=False)[1]
    with pytest.raises(ValueError, match="requires dense parameter tensors"):
        webtorch.optim.SparseAdam([x.requires_grad_()])


def test_gradients_meet_hooks_norms_and_dense_ones(device: str) -> None:
    e = layer(webtorch, device)
    seen = []
    e.weight.register_hook(lambda g: seen.append(g.layout) or g * 2)
    e(indices(webtorch, device)).sum().backward()
    assert str(seen) == "[torch.sparse_coo]"
    assert e.weight.grad.to_dense()[:, 0].tolist() == [2, 4, 0, 2, 0]
    norm = webtorch.nn.utils.clip_grad_norm_(e.parameters(), 1.0)
    assert norm.item() == pytest.approx((4 + 16 + 4) ** 0.5 * 3**0.5, rel=1e-5)
    assert e.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    e = layer(webtorch, device)
    # On either side of a sum, and on either side of what is there already.
    (e(indices(webtorch, device)).sum() + e.weight.sum()).backward()
    assert not e.weight.grad.is_sparse
    e(indices(webtorch, device)).sum().backward()
    assert e.weight.grad[:, 0].tolist() == [3, 5, 1, 3, 1]
    e.weight.grad = None
    e(indices(webtorch, device)).sum().backward()
    e.weight.sum().backward()
    assert e.weight.grad[:, 0].tolist() == [2, 3, 1, 2, 1]
    (found,) = webtorch.autograd.grad(e(indices(webtorch, device)).sum(), e.weight)
    assert found is not None and found.is_sparse


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["matrix", "twice", "empty"])
def test_a_sparse_leaf_has_a_gradient_at_its_places(name: str, device: str) -> None:
    found = []
    for lib in (webtorch, torch):
        _, s, d = made(lib, CASES[name], device, grad=False)
        leaf = s.detach().requires_grad_()
        # Several uses, of which one merges what is twice.
        out = lib.sparse.mm(leaf, d.t()).sum() + lib.sparse.sum(leaf.coalesce() * 3)
        out.backward()
        found.append(leaf.grad)
    assert found[0].is_sparse and found[0].is_coalesced()
    # Once for each place, though places may be there twice.
    close(found[0], found[1], device)


def test_second_derivatives_go_through_sparse_tensors() -> None:
    found = []
    for lib in (webtorch, torch):
        v, s, d = made(lib, CASES["twice"], "cpu")
        # PyTorch has no second derivative of its products: the same with a dense matrix.
        places = tuple(s._indices().unbind(0))
        whole = lib.zeros(s.shape, dtype=d.dtype).index_put(places, v, accumulate=True)
        product = lib.sparse.mm(s, d.t()) if lib is webtorch else whole @ d.t()
        out = (product**3).sum()
        (first,) = lib.autograd.grad(out, v, create_graph=True)
        (first**2).sum().backward()
        found.append((v.grad, d.grad))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, "cpu")


def test_threads_train_with_sparse_gradients() -> None:
    results: dict[int, Any] = {}

    def train(number: int) -> None:
        e = layer(webtorch, "cpu")
        optimizer = webtorch.optim.SparseAdam(e.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (e(indices(webtorch, "cpu")) ** 2).sum().backward()
            optimizer.step()
        results[number] = e.weight.tolist()

    threads = [threading.Thread(target=train, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results[0] == results[1] == results[2]


@pytest.mark.filterwarnings("ignore:compile.*runs as usual")
def test_a_compiled_function_takes_and_gives_sparse_tensors() -> None:
    _, s, d = made(webtorch, CASES["matrix"], "cpu", grad=False)

    @webtorch.compile
    def product(x: Any) -> Any:
        return webtorch.sparse.mm(s, x) * 2

    for k in range(3):
        x = d.t() + k
        assert webtorch.allclose(product(x), (s.to_dense() @ x) * 2)


@pytest.mark.filterwarnings("ignore:compile.*runs as usual")
def test_a_compiled_function_sees_what_a_sparse_tensor_has_become() -> None:
    held = {"graph": webtorch.eye(2).to_sparse()}

    @webtorch.compile
    def product(x: Any) -> Any:
        return held["graph"] @ x

    x = webtorch.tensor([[1.0], [2.0]])
    for _ in range(3):
        assert product(x).tolist() == [[1], [2]]
    held["graph"].mul_(5)
    assert product(x).tolist() == [[5], [10]]
    held["graph"] = webtorch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 1.0], (2, 2))
    assert product(x).tolist() == [[2], [1]]


@pytest.mark.filterwarnings("ignore:compile.*runs as usual")
def test_a_compiled_step_leaves_sparse_gradients_as_they_are() -> None:
    e = layer(webtorch, "cpu")
    optimizer = webtorch.optim.SGD(e.parameters(), lr=0.0)

    @webtorch.compile
    def step(i: Any) -> Any:
        optimizer.zero_grad()
        loss = e(i).sum() * i.sum()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(4):
        step(indices(webtorch, "cpu", [k, 3]))
        assert e.weight.grad.is_sparse
        expected = [(k + 3.0) * ((r == k) + (r == 3)) for r in range(5)]
        assert e.weight.grad.to_dense()[:, 0].tolist() == expected


def test_vmap_refuses_sparse_tensors() -> None:
    with pytest.raises(RuntimeError, match="vmap"):
        webtorch.vmap(lambda v: webtorch.sparse_coo_tensor([[0, 1]], v, (3,)).to_dense())(
            webtorch.ones(2, 2)
        )


def test_dense_calls_are_looked_at_only_while_there_are_sparse_tensors() -> None:
    import gc

    from webtorch.dispatch.call import count_out
    from webtorch.sparse.tensor import alive

    gc.collect()
    count_out()
    before = alive.count
    x = made(webtorch, CASES["matrix"], "cpu", grad=False)[1]
    assert alive.count > before
    del x
    gc.collect()
    count_out()
    assert alive.count == before


def test_no_rows_give_a_sparse_gradient_too() -> None:
    for count, width in ((0, 0), (5, 2)):
        grads = []
        for t in (webtorch, torch):
            layer: Any = t.nn.Embedding(count, width, sparse=True)
            layer(t.zeros(2, 0, dtype=t.int64)).sum().backward()
            grads.append(layer.weight.grad)
        mine, theirs = grads
        assert mine.is_sparse and mine.shape == theirs.shape and mine._nnz() == theirs._nnz() == 0
