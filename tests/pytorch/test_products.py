"""Products of more than two dims whose gradient is recorded: one node each way, as PyTorch's composition of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from webtorch.pytorch.products import _turned

Function = Callable[..., torch.Tensor]
PRODUCTS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "batches": (torch.matmul, (2, 3, 4), (2, 4, 5)),
    "one matrix": (torch.matmul, (2, 3, 4), (4, 5)),
    "no features": (torch.matmul, (2, 3, 0), (0, 5)),
    "no outputs": (torch.matmul, (2, 3, 4), (4, 0)),
    "one matrix first": (torch.matmul, (3, 4), (2, 4, 5)),
    "broadcast": (torch.matmul, (2, 1, 3, 4), (3, 4, 5)),
    "vector": (torch.matmul, (2, 3, 4), (4,)),
    "matrices": (torch.matmul, (3, 4), (4, 5)),
    "turned": (lambda a, b: a @ b.mT, (2, 3, 4), (2, 5, 4)),
    "einsum": (lambda a, b: torch.einsum("bij, bjk -> bik", a, b), (2, 3, 4), (2, 4, 5)),
    "einsum of heads": (
        lambda a, b: torch.einsum("bihd,bjhd->bhij", a, b),
        (2, 3, 2, 4),
        (2, 5, 2, 4),
    ),
    "einsum out of order": (
        lambda a, b: torch.einsum("bij,jk->kib", a, b),
        (2, 3, 4),
        (4, 5),
    ),
    "einsum of ones": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 1), (1, 4, 5)),
    "einsum of sums": (lambda a, b: torch.einsum("ij,kl->k", a, b), (3, 4), (2, 5)),
    "einsum without arrow": (lambda a, b: torch.einsum("ij,jk", a, b), (3, 4), (4, 5)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products(webgpu: str, name: str) -> None:
    run, first, second = PRODUCTS[name]
    torch.manual_seed(0)
    host = [torch.randn(s) for s in (first, second)]
    for needed in ((True, True), (True, False), (False, True)):
        found = []
        for place in ("cpu", webgpu):
            # Thrice, so that it is known.
            for _ in range(3):
                a, b = (x.to(place).requires_grad_(n) for x, n in zip(host, needed, strict=True))
                out = run(a, b)
                grads = torch.autograd.grad(
                    out.square().sum(), [x for x in (a, b) if x.requires_grad], create_graph=True
                )
                again = torch.autograd.grad(
                    sum(g.square().sum() for g in grads), [x for x in (a, b) if x.requires_grad]
                )
            found.append([out, *grads, *again])
        for mine, theirs in zip(found[1], found[0], strict=True):
            assert mine.shape == theirs.shape and mine.dtype is theirs.dtype
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-3)
        assert found[1][0].stride() == found[0][0].stride()


def test_products_seen_from_transforms_and_in_bfloat16(webgpu: str) -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)

    def run(place: str) -> list[torch.Tensor]:
        x, y = a.to(place), b.to(place)
        grad = torch.func.grad(lambda p: (p @ y).sin().sum())
        _, tangent = torch.func.jvp(lambda p: p @ y, (x,), (x,))
        mapped = torch.func.vmap(lambda p, q: p @ q)(x, y)
        half = x.bfloat16().requires_grad_()
        (half @ y.bfloat16()).sum().backward()
        assert half.grad is not None
        return [grad(x), tangent, mapped, half.grad.float()]

    for mine, theirs in zip(run(webgpu), run("cpu"), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-2, atol=1e-3)


def test_gradients_of_products_are_one_node(webgpu: str) -> None:
    x = torch.ones(2, 3, 4, device=webgpu, requires_grad=True)
    y = torch.ones(2, 4, 3, device=webgpu)
    for out in (x @ y, torch.einsum("bij,bjk->bik", x, y)):
        assert out.grad_fn is not None and out.grad_fn.name() == "MatmulBackward0"
        assert out.grad_fn.next_functions[0][0].name() == "torch::autograd::AccumulateGrad"
    with pytest.raises(RuntimeError, match="size"):
        x @ torch.ones(2, 5, 3, device=webgpu)


def test_what_has_no_gradient_gives_its_operands_none(webgpu: str) -> None:
    """As PyTorch's `gradcheck` asks: gradients of a product that is used by nothing that counts."""
    x, y = (torch.ones(2, 3, 3, device=webgpu, requires_grad=True) for _ in range(2))
    torch._C._functions.UndefinedGrad()(x @ y).sum().backward()
    assert x.grad is None and y.grad is None


def test_which_sums_of_products_are_products() -> None:
    assert _turned("bij,bjk->bik") == (False, (3, 3), (2, 1), None, None, None)
    assert _turned("bihd,bjhd->bhij") == (False, (4, 4), (3, 3), (0, 2, 1, 3), (0, 2, 3, 1), None)
    for words in ("ii,ij->j", "ij,jk", "...ij,jk->...ik", "ij,ij->ij", "ijk,jkl->il", "ij->ji"):
        assert _turned(words) is None


def test_einsum_of_one_operand_is_a_view_each_time() -> None:
    """Of dims in another order, and of expanded ones, also once that kind of call is known (laplace-torch)."""
    for _ in range(4):
        x = torch.zeros(2, 3, device="webgpu")
        torch.einsum("ij->ji", x).add_(1)
        assert x.tolist() == [[1.0] * 3] * 2
        theirs, ours = (
            torch.einsum(
                "vnc->nvc", torch.tensor([[2.0], [3.0]], device=d)[:, None].expand(2, 4, 1)
            )
            for d in ("cpu", "webgpu")
        )
        assert ours.stride() == theirs.stride()
        assert torch.cat([ours.reshape(4, -1)] * 2).tolist() == [[2.0, 3.0]] * 8
