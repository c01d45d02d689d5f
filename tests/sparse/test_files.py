"""Sparse tensors in files and pickles, both ways between PyTorch and here."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import webtorch
from tests.sparse.programs import CASES, made

LIBRARIES: tuple[Any, ...] = (torch, webtorch)


def same(ours: Any, theirs: Any) -> None:
    assert str(ours.layout) == str(theirs.layout)
    assert ours._nnz() == theirs._nnz()
    assert ours.to_dense().tolist() == theirs.to_dense().tolist()
    if theirs.is_sparse:
        assert ours.is_coalesced() == theirs.is_coalesced()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize(("writer", "reader"), [(0, 1), (1, 0), (1, 1)])
def test_a_file_of_sparse_tensors_is_read_by_both(writer: int, reader: int, layout: str) -> None:
    case = CASES["matrix"]
    saved = made(LIBRARIES[writer], case, "cpu", layout, grad=False)[1]
    file = io.BytesIO()
    LIBRARIES[writer].save({"graph": saved, "n": 3}, file)
    file.seek(0)
    found = LIBRARIES[reader].load(file)
    assert found["n"] == 3
    same(found["graph"], made(torch, case, "cpu", layout, grad=False)[1])


def test_a_damaged_sparse_tensor_is_refused() -> None:
    bad = webtorch.sparse_coo_tensor([[0, 7]], [1.0, 2.0], (3,))
    file = io.BytesIO()
    webtorch.save(bad, file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        webtorch.load(file)


@pytest.mark.parametrize("name", ["hybrid", "twice", "empty"])
def test_copies_and_pickles_are_the_same_tensor(name: str, device: str) -> None:
    x = made(webtorch, CASES[name], device, grad=False)[1]
    for found in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x)), x.clone()):
        assert found is not x and type(found) is type(x)
        same(found, x)
        assert found.device == x.device
    leaf = x.detach().requires_grad_()
    assert copy.deepcopy(leaf).requires_grad and copy.deepcopy(leaf).is_leaf


def test_a_buffer_of_a_module_is_sparse() -> None:
    class Graph(webtorch.nn.Module):
        adjacency: Any

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", made(webtorch, CASES["twice"], "cpu", grad=False)[1])

    module = Graph()
    state = module.state_dict()
    assert state["adjacency"].is_sparse
    module.double().half()
    assert module.adjacency.dtype is webtorch.float16
    other = Graph()
    other.load_state_dict({"adjacency": state["adjacency"] * 2})
    same(other.adjacency, (state["adjacency"] * 2))
