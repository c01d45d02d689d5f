"""COO tensors on PyTorch's device: products, gradients, embeddings and their optimizers, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

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
