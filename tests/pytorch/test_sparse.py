"""COO tensors on PyTorch's device: products, gradients, embeddings and their optimizers, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:.*[Ss]parse (CSR|CSC|BSR|BSC|inv)"),
]

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "coalesce": lambda s, d: s.coalesce(),
    "to_dense": lambda s, d: s.to_dense(),
    "mm": lambda s, d: torch.sparse.mm(s, d.t()),
    "mm from the left": lambda s, d: d.t() @ s.detach(),
    "mv": lambda s, d: s @ d[0],
    "addmm": lambda s, d: torch.sparse.addmm(d @ d.t(), s, d.t(), beta=0.5, alpha=2),
    "sum of two": lambda s, d: s + s * 2,
    "added": lambda s, d: d + s,
    "times": lambda s, d: s * d.detach() / 2,
    "turned": lambda s, d: s.detach().t(),
    "sum": lambda s, d: torch.sparse.sum(s),
    "mask": lambda s, d: d.sparse_mask(s.detach().coalesce()),
    "neg": lambda s, d: -s,
    "tanh": lambda s, d: s.detach().tanh(),
    "clone": lambda s, d: s.clone(),
    "to_sparse": lambda s, d: (d * (d > 0)).to_sparse(),
    "moved": lambda s, d: s.cpu().to(d.device),
    "times a sparse one": lambda s, d: s * (d.detach() > 0).float().to_sparse(),
    "mm of two": lambda s, d: torch.sparse.mm(s, s.detach().t()),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1),
    "log_softmax": lambda s, d: torch.sparse.log_softmax(s, 0),
    "sum over a dim": lambda s, d: torch.sparse.sum(s, 1),
    "minus": lambda s, d: s - s.detach() / 3,
    "rounded": lambda s, d: s.detach() // 0.5,
    "cat": lambda s, d: torch.cat([s.detach(), s.detach()], 1),
    "a dim more": lambda s, d: s.detach().unsqueeze(1).permute(2, 0, 1),
    "index_select": lambda s, d: s.detach().index_select(
        1, torch.tensor([3, 0, 0], device=d.device)
    ),
    "row": lambda s, d: s.detach()[1],
    "narrow": lambda s, d: s.detach().narrow_copy(1, 0, 2),
    "norm": lambda s, d: s.detach().norm(),
    "batches": lambda s, d: torch.bmm(s.detach().unsqueeze(0), d.detach().t().unsqueeze(0)),
    "hspmm": lambda s, d: torch.hspmm(s.detach(), d.detach().t()),
    "sspaddmm": lambda s, d: torch.sspaddmm(
        torch.eye(3, device=d.device).to_sparse(), s.detach(), d.detach().t()
    ),
    "out": lambda s, d: torch.sin(
        s.detach(), out=torch.empty(3, 4, layout=torch.sparse_coo, device=d.device)
    ),
    "diagonals": lambda s, d: torch.sparse.spdiags(
        d.detach()[:2], torch.tensor([1, -1], device="cpu"), (4, 4)
    ),
    "in place": lambda s, d: s.detach().clone().mul_(3).add_(s.detach()),
}


def outcome(program: Callable[[Any, Any], Any], device: str) -> list[Any]:
    torch.manual_seed(0)
    places = torch.tensor([[0, 1, 1, 2, 1], [2, 0, 3, 1, 0]], device=device)
    values = torch.randn(5).to(device).requires_grad_()
    d = torch.randn(3, 4).to(device).requires_grad_()
    out = program(torch.sparse_coo_tensor(places, values, (3, 4)), d)
    found = [out]
    if out.requires_grad:
        (out.to_dense() if out.is_sparse else out).pow(2).sum().backward()
        found += [values.grad, d.grad]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sparse_tensor_gives_what_the_cpu_gives(name: str, webgpu: str) -> None:
    for ours, theirs in zip(
        outcome(PROGRAMS[name], webgpu), outcome(PROGRAMS[name], "cpu"), strict=True
    ):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert ours.layout == theirs.layout and ours.device.type == "webgpu"
            torch.testing.assert_close(ours.cpu().to_dense(), theirs.to_dense())


COMPRESSED: dict[str, Callable[[Any, Any], Any]] = {
    "as it is": lambda s, d: torch.sparse_csr_tensor(
        s.crow_indices(), s.col_indices(), s.values(), s.shape, check_invariants=True
    ),
    "to_dense": lambda s, d: s.to_dense(),
    "to COO": lambda s, d: s.to_sparse(),
    "to CSC": lambda s, d: s.to_sparse_csc(),
    "blocks": lambda s, d: s.to_dense().to_sparse_bsr((3, 2)),
    "blocks as dense": lambda s, d: s.to_dense().to_sparse_bsc((3, 2)).to_dense(),
    "batches": lambda s, d: torch.stack([s.detach().to_dense()] * 2).to_sparse_csr().to_dense(),
    "batches of blocks": lambda s, d: (
        torch.stack([s.detach().to_dense()] * 2).to_sparse_bsr((1, 2)).transpose(1, 2).to_dense()
    ),
    "mm": lambda s, d: s @ d.t(),
    "mm from the left": lambda s, d: d @ s.t(),
    "mm of two": lambda s, d: s @ s.detach().t().to_sparse_csr(),
    "mv": lambda s, d: s @ d[0],
    "addmm": lambda s, d: torch.addmm(d @ d.t(), s, d.t(), beta=0.5, alpha=2),
    "sums": lambda s, d: torch.sparse.mm(s, d.t(), "sum"),
    "means": lambda s, d: torch.sparse.mm(s, d.t(), "mean"),
    "largest": lambda s, d: torch.sparse.mm(s, d.t(), "amax"),
    "triangle": lambda s, d: torch.triangular_solve(
        d.detach()[:, :2], (d @ d.t()).detach().to_sparse_csr(), unitriangular=True
    )[0],
    "linear": lambda s, d: torch.nn.functional.linear(d, s),
    "sum of two": lambda s, d: s + s.detach() * 2,
    "added": lambda s, d: d + s,
    "times": lambda s, d: s * d.detach(),
    "turned": lambda s, d: s.t(),
    "sum": lambda s, d: s.sum(),
    "sum over a dim": lambda s, d: torch.sum(s.detach(), 0, keepdim=True),
    "sampled": lambda s, d: torch.sparse.sampled_addmm(s, d, d.detach().t()[:, [0, 1, 2, 0]]),
    "sin": lambda s, d: s.detach().sin(),
    "row": lambda s, d: s.detach()[1],
    "mask": lambda s, d: d.detach().sparse_mask(s.detach()),
    "moved": lambda s, d: s.cpu().to(d.device),
    "in place": lambda s, d: s.detach().clone().mul_(3).neg_(),
}


def compressed(program: Callable[[Any, Any], Any], device: str) -> list[Any]:
    torch.manual_seed(0)
    dense = torch.randn(3, 4).relu().to(device)
    s = dense.to_sparse_csr().requires_grad_()
    d = torch.randn(3, 4).to(device).requires_grad_()
    out = program(s, d)
    found = [out]
    if out.requires_grad:
        (out if out.layout is torch.strided else out.to_dense()).pow(2).sum().backward()
        found += [s.grad, d.grad]
    return found


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_matrix_gives_what_the_cpu_gives(name: str, webgpu: str) -> None:
    for ours, theirs in zip(
        compressed(COMPRESSED[name], webgpu), compressed(COMPRESSED[name], "cpu"), strict=True
    ):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert ours.layout == theirs.layout and ours.device.type == "webgpu"
            torch.testing.assert_close(ours.cpu().to_dense(), theirs.to_dense())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings_have_sparse_gradients(mode: str, webgpu: str) -> None:
    grads = []
    for device in ("cpu", webgpu):
        torch.manual_seed(0)
        layer = torch.nn.EmbeddingBag(5, 2, sparse=True, mode=mode, padding_idx=4).to(device)
        indices = torch.tensor([1, 2, 1, 4, 0], device=device)
        layer(indices, torch.tensor([0, 2], device=device)).pow(2).sum().backward()
        assert layer.weight.grad.is_sparse
        grads.append(layer.weight.grad.cpu().to_dense())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {"momentum": 0.9}), ("SparseAdam", {}), ("Adagrad", {})],
)
def test_an_embedding_trains_with_sparse_gradients(
    name: str, options: dict[str, Any], webgpu: str
) -> None:
    weights = []
    for device in ("cpu", webgpu):
        torch.manual_seed(0)
        layer = torch.nn.Embedding(5, 2, sparse=True, padding_idx=4).to(device)
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1, **options)
        for step in range(3):
            optimizer.zero_grad()
            (layer(torch.tensor([1, step, 1, 4], device=device)) ** 2).sum().backward()
            assert layer.weight.grad.is_sparse
            optimizer.step()
        weights.append(layer.weight.detach().cpu())
    torch.testing.assert_close(*weights)
