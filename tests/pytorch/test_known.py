"""Operators that are called again with operands of the same kinds: the third call gives what the first one does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from webtorch.ir.garbage import collect_seldom
from webtorch.pytorch.device import runtime

Step = Callable[[torch.Tensor, torch.Tensor], Any]

AGAIN: dict[str, Step] = {
    "floor": lambda x, y: x.floor(),
    "floor of a turned tensor": lambda x, y: x.t().floor(),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "max": lambda x, y: torch.max(x, 1),
    "a copy": lambda x, y: x.clone(),
    "a copy of a turned tensor": lambda x, y: x.t().clone(),
    "a row-major copy": lambda x, y: y.t().contiguous(),
    "a copy of a part": lambda x, y: x[:, 1:].clone(),
    "another type": lambda x, y: x.to(torch.float16),
    "another type, turned": lambda x, y: x.t().to(torch.int32),
    "a copy of its own type": lambda x, y: y.to(torch.float32, copy=True),
    "a copy with a sign": lambda x, y: torch._neg_view(y).clone(),
    "another type, with a sign": lambda x, y: torch._neg_view(y).half(),
    "a sum in the order of a turned tensor": lambda x, y: x.t() + y,
    "remainder by a number": lambda x, y: torch.remainder(x, 2),
    "remainder by a number, turned": lambda x, y: torch.remainder(x.t(), 2.5),
    "remainder of a number": lambda x, y: torch.remainder(2, x),
    "remainder of integers by a float": lambda x, y: torch.remainder((9 * x).long(), 2.5),
    "fmod": lambda x, y: torch.fmod(x, y),
    "powers of a number": lambda x, y: 2**x,
    "powers": lambda x, y: x.abs() ** y,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "lerp": lambda x, y: x.lerp(y, 0.25),
    "lerp by a tensor": lambda x, y: x.lerp(y, x),
    "itself": lambda x, y: torch.addcmul(x, y, y, value=0.5),
    "itself and a view": lambda x, y: torch.addcmul(x, y, y.t().reshape(3, 3), value=0.5),
    "two of one and one of another": lambda x, y: torch.addcmul(x, x, y),
    "one and two of another": lambda x, y: torch.addcmul(x, y, x),
    "add_": lambda x, y: x.add_(y, alpha=2),
    "add_ of a number": lambda x, y: x.add_(1),
    "add_ of a row": lambda x, y: x.add_(y[1]),
    "eq_": lambda x, y: x.eq_(y),
    "mul_ by itself": lambda x, y: x.mul_(x),
    "a product into a part": lambda x, y: torch.mul(y[0], 0.5, out=x[1]),
    "a sum of its own memory into a part": lambda x, y: torch.add(x[0], y[1], out=x[1]),
    "a part to all": lambda x, y: x.copy_(y[1]),
    "a part": lambda x, y: x[1].mul_(y[0]),
    "scatter_": lambda x, y: x.scatter_(0, torch.zeros_like(x).long(), 2.0, reduce="multiply"),
    "scatter_reduce_": lambda x, y: x.scatter_reduce_(0, torch.zeros_like(x).long(), y, "sum"),
    "fill_": lambda x, y: x.fill_(0.5),
    "fill_ of an expanded tensor": lambda x, y: x[0].expand(4, 3).fill_(2.0),
    "zero_ of a column": lambda x, y: x[:, 1].zero_(),
    "x[1] = 2": lambda x, y: x.__setitem__(1, 2.0),
    "x[:, ::2] = y": lambda x, y: x.__setitem__((slice(None), slice(None, None, 2)), y[:, :2]),
    "x[0] = -y": lambda x, y: x.__setitem__(0, torch._neg_view(y[2])),
    "x[0] = x[1]": lambda x, y: x.__setitem__(0, x[1]),
    "batch norm": lambda x, y: F.batch_norm(x, None, None, y[0], y[1], training=True),
    "batch norm that moves statistics": lambda x, y: F.batch_norm(y, x[0], x[1], training=True),
    "batch norm that moves its own": lambda x, y: _with_statistics(x, y, True),
    "batch norm of what it has": lambda x, y: _with_statistics(x, y, False),
    "repeat": lambda x, y: x.t().repeat(2, 1, 3),
    "stack": lambda x, y: torch.stack([x.t(), y.t()], -1),
    "the entropy of logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "the entropy of each logit": lambda x, y: F.binary_cross_entropy_with_logits(
        x.t(), y.t().sigmoid(), x[0], pos_weight=y[1], reduction="none"
    ),
    "numbers from 1 on": lambda x, y: torch.arange(1, 4, device=x.device),
    "a tensor of a number": lambda x, y: torch.full((2, 3), 0.5, device=x.device),
    "a tensor of a whole number": lambda x, y: torch.full((2,), 3, device=x.device),
    "ones of a half": lambda x, y: torch.ones(3, dtype=torch.float16, device=x.device),
    "group norm": lambda x, y: F.group_norm(x[None], 3, y[0], y[1]),
    "layer norm": lambda x, y: F.layer_norm(x, (3,), y[0], y[1]),
    "layer norm with its statistics": lambda x, y: torch.native_layer_norm(
        x, (3,), None, y[1], 1e-5
    ),
    "a product of heads": lambda x, y: x.expand(2, 2, 3, 3) @ y[None],
    "a product of a turned matrix": lambda x, y: y.t() @ x[None].transpose(1, 2),
    "einsum": lambda x, y: torch.einsum("ij,kj->ki", x, y),
    "classes": lambda x, y: F.one_hot((x[:, 0] > 0).long(), 4),
    "a number or a tensor": lambda x, y: torch.where(x > 0, y.t(), -torch.inf),
    "an integer or a tensor": lambda x, y: torch.where(x > 0, 2, (y > 0).int()),
    "a wide number or integers": lambda x, y: torch.where(x > 0, (y > 0).int(), 2.5),
    "attention": lambda x, y: F.scaled_dot_product_attention(x, y, x, is_causal=True),
    "attention of heads": lambda x, y: _heads(x, y),
    "attention with a mask": lambda x, y: F.scaled_dot_product_attention(x, y, y, x > 0),
}


def _heads(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Return attention of four dims, whose heads lie last but one here, and its gradients where there are some."""
    heads = [t.detach().repeat(2, 2, 1, 1).requires_grad_() for t in (x, y, x * y)]
    out = F.scaled_dot_product_attention(*heads)
    if not out.requires_grad:
        return [out.contiguous()]
    return [
        out.detach().contiguous(),
        *(g.contiguous() for g in torch.autograd.grad(out.exp().sum(), heads)),
    ]


def _with_statistics(x: torch.Tensor, y: torch.Tensor, training: bool) -> list[torch.Tensor]:
    """Return batch norm, and statistics that are all of their memory."""
    mean, variance = x[0].clone(), x[1].exp()
    return [F.batch_norm(y, mean, variance, x[2], None, training, 0.3), mean, variance]


@pytest.mark.parametrize("name", [n for n in AGAIN if "norm" in n or "attention" in n])
def test_the_same_comes_where_no_gradient_is_recorded(webgpu: str, name: str) -> None:
    with torch.no_grad():
        test_the_same_comes_of_later_calls(webgpu, name)


@pytest.mark.parametrize("name", AGAIN)
def test_the_same_comes_of_later_calls(webgpu: str, name: str) -> None:
    step = AGAIN[name]
    torch.manual_seed(0)
    for _ in range(5):
        x, y = torch.randn(3, 3), torch.randn(3, 3)
        # What lies elsewhere in memory of the same size is another kind.
        twin, other = x.to(webgpu), torch.cat([y, y]).to(webgpu)[3:]
        wanted, found = step(x, y), step(twin, other)
        torch.testing.assert_close(twin.cpu(), x)
        for a, b in zip(_tensors(found), _tensors(wanted), strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a.cpu(), b)


def test_attention_has_gradients_where_calls_are_known_that_have_none(webgpu: str) -> None:
    heads, mask = torch.randn(1, 2, 3, 4), torch.zeros(3, 3)
    for which in (None, None, None, None, 0, 3, None):
        grads = []
        for device in ("cpu", webgpu):
            given = [t.clone().to(device) for t in (heads, heads, heads, mask)]
            if which is not None:
                given[which].requires_grad_()
            out = F.scaled_dot_product_attention(*given)
            assert out.requires_grad is (which is not None)
            if which is not None:
                out.exp().sum().backward()
                grads.append(given[which].grad.cpu())
        if grads:
            torch.testing.assert_close(*grads)


def test_what_pytorch_makes_of_others_has_its_gradients(webgpu: str) -> None:
    for name in ("a product of heads", "einsum", "a number or a tensor"):
        for _ in range(3):
            x, y = torch.randn(3, 3), torch.randn(3, 3)
            grads = []
            for device in ("cpu", webgpu):
                a, b = (t.detach().to(device).requires_grad_() for t in (x, y))
                AGAIN[name](a, b).clamp(-9, 9).square().sum().backward()
                grads.append(b.grad.cpu())
            torch.testing.assert_close(*grads)
    x = torch.eye(3, device=webgpu)
    mapped = torch.vmap(lambda row: torch.where(row > 0, row, 2.0) @ x)(x)
    assert mapped.tolist() == torch.where(x > 0, x, 2.0).tolist()
    _, tangent = torch.func.jvp(lambda t: t @ t[None], (x,), (x,))
    assert tangent[0].tolist() == (2 * x).tolist()


def test_new_numbers_are_those_of_memory_that_is_overwritten(webgpu: str) -> None:
    for new, written in ((torch.rand, "uniform_"), (torch.randn, "normal_")):
        for options in ({}, {"dtype": torch.float16}):
            torch.manual_seed(5)
            found = new(2, 3, device=webgpu, **options)
            torch.manual_seed(5)
            wanted = getattr(torch.empty(2, 3, device=webgpu, **options), written)()
            assert torch.equal(found, wanted)


def test_new_tensors_have_the_default_type_of_the_call(webgpu: str) -> None:
    for kind in (torch.float32, torch.float16) * 3:
        torch.set_default_dtype(kind)
        try:
            found = [torch.zeros(2, device=webgpu), torch.full((2,), 1.5, device=webgpu)]
        finally:
            torch.set_default_dtype(torch.float32)
        assert [t.dtype for t in found] == [kind, kind]


def test_dropout_draws_the_same_numbers_when_it_is_known(webgpu: str) -> None:
    x = torch.randn(5, 6).to(webgpu)
    for turned in (x, x.t()):
        found = []
        for _ in range(5):
            torch.manual_seed(3)
            y = turned.detach().requires_grad_()
            out = [F.dropout(y, 0.3), F.dropout(y, 0.6)]
            (out[0] + out[1]).sum().backward()
            found.append([*(t.detach().cpu() for t in out), y.grad.cpu()])
        assert out[0].stride() == turned.stride()
        kept = [t != 0 for t in found[0][:2]]
        assert not torch.equal(*kept)
        torch.testing.assert_close(found[0][2], kept[0] / 0.7 + kept[1] / 0.4)
        for again in found[1:]:
            assert all(map(torch.equal, again, found[0]))
    assert F.dropout(x.new_ones(1000), 0.25).count_nonzero().item() in range(700, 800)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [] if result is None else list(result)


REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "numbers that integers cannot hold": lambda x: x.long().add_(0.5),
    "more dims than there are": lambda x: x[0].add_(x),
    "memory that overlaps": lambda x: x[:1].expand(3, 3).mul_(2.0),
    "memory that is read elsewhere": lambda x: x[1:].mul_(x[:-1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_once_is_refused_again(webgpu: str, name: str) -> None:
    call = REFUSED[name]
    x = torch.ones(3, 3, device=webgpu)
    for _ in range(2):
        x[0].add_(x[1])
        x.mul_(2.0)
    with pytest.raises(RuntimeError) as first:
        call(x)
    for _ in range(4):
        with pytest.raises(RuntimeError) as later:
            call(x)
        assert str(later.value) == str(first.value)


def test_a_type_that_changes_is_another_kind(webgpu: str) -> None:
    for dtype in (torch.float32, torch.float16, torch.int32) * 4:
        x = torch.tensor([[1, -2], [3, 4]], dtype=dtype, device=webgpu)
        assert torch.equal((x * x).cpu(), x.cpu() * x.cpu())
        assert x.clamp(0, 3).dtype is dtype
        bits = x.view(torch.uint8)
        assert torch.equal(bits.clone().cpu(), x.cpu().view(torch.uint8))


def test_storages_are_saved_and_loaded_without_their_addresses(webgpu: str, tmp_path: Any) -> None:
    x = torch.arange(6.0, device=webgpu) + 1
    for zipped in (True, False):
        file = tmp_path / f"{zipped}.pt"
        torch.save({"x": x, "part": x[2:4]}, file, _use_new_zipfile_serialization=zipped)
        found = torch.load(file)
        assert torch.equal(found["x"].cpu(), x.cpu())
        found["x"].zero_()
        assert found["part"].is_webgpu
        assert not found["part"].cpu().any()


def test_garbage_is_collected_seldom_unless_the_program_says_how_often() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 9, 8)
        collect_seldom()
        assert gc.get_threshold()[0] == 10_000
        assert gc.get_threshold()[1] == 9
        for own in (0, 300):
            gc.set_threshold(own)
            collect_seldom()
            assert gc.get_threshold()[0] == own
    finally:
        gc.set_threshold(*before)


def test_lists_of_numbers_are_told_apart(webgpu: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    y = x.to(webgpu)
    for _ in range(4):
        for dims in ([0], [1], [0, 1], [1, 2], []):
            torch.testing.assert_close(y.sum(dims).cpu(), x.sum(dims))


# Calls of one operator that differ in a type, a sign, an option, or in how a tensor lies, in turn.
FORMS: dict[str, list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "numbers": [
        lambda x, y: x.pow(2),
        lambda x, y: x.pow(True),
        lambda x, y: x.pow(2.0),
        lambda x, y: x.pow(1.0),
        lambda x, y: x.to(torch.int64).pow(2.0),
    ],
    "zeros": [
        lambda x, y: 1 / F.threshold(x, 0.0, 0.0),
        lambda x, y: 1 / F.threshold(x, 0.0, -0.0),
    ],
    "options": [
        lambda x, y: x.add(y, alpha=2),
        lambda x, y: x.add(y),
        lambda x, y: x.add(x),
        lambda x, y: x.add(y, alpha=2.5),
        lambda x, y: x.add(y.t()),
        lambda x, y: x.add(torch.nn.Parameter(y)).detach(),
        lambda x, y: x[1:].add(y[:2]),
    ],
    "lists": [
        lambda x, y: x.sum([0]),
        lambda x, y: x.sum([0, 1]),
        lambda x, y: x.sum([0], True),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.cat([x, x]),
        lambda x, y: torch.cat([x, y, y.t()], 1),
        lambda x, y: torch.cat([x, y, x, y, x]),
    ],
    "what is written": [
        lambda x, y: x.clone().add_(y),
        lambda x, y: x.clone()[0].add_(y[0]),
        lambda x, y: (z := x.clone(), z.t().add_(y), z)[2],
        lambda x, y: (z := x.clone()).add_(z),
        lambda x, y: torch.empty_like(x).copy_(x).add_(y, alpha=3),
        lambda x, y: (z := torch.cat([x, y]), z[:3].add_(y), z)[2],
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_calls_of_several_forms_are_told_apart(webgpu: str, name: str) -> None:
    for _ in range(5):
        x, y = torch.randn(3, 3), torch.randn(3, 3)
        for call in FORMS[name]:
            torch.testing.assert_close(call(x.to(webgpu), y.to(webgpu)).cpu(), call(x, y))
    kept = torch.zeros(4, device=webgpu)
    for _ in range(5):
        assert (kept + 1.5).tolist() == [1.5] * len(kept)
    kept.untyped_storage().resize_(8)
    with pytest.raises(RuntimeError, match="needs a storage of"):
        kept + 1.5


OUTSIDE: dict[str, Step] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "a part of the index": lambda x, i: F.embedding(i[1:], x),
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter_": lambda x, i: x.clone().scatter_(0, i[:, None], 1.0),
    "index_select, out=": lambda x, i: torch.index_select(x, 0, i, out=torch.empty_like(x[:3])),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:3], i),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_are_asked_also_where_a_call_is_known(webgpu: str, name: str) -> None:
    call, x = OUTSIDE[name], torch.randn(5, 4).to(webgpu)

    def outside() -> None:
        """Call with an index that is outside; elsewhere than on the CPU the read says so."""
        found = call(x, torch.tensor([1, 2, 30]).to(webgpu))
        if runtime().kind != "cpu":
            found.cpu()

    for _ in range(4):
        call(x, torch.tensor([1, 2, 3]).to(webgpu))
    with pytest.raises(IndexError, match="out of"):
        outside()
    assert call(x, torch.tensor([1, 2, 3]).to(webgpu)).cpu().isfinite().all()


def test_classes_and_probabilities_are_asked_at_the_call(webgpu: str) -> None:
    if runtime().kind != "cpu":
        pytest.skip("elsewhere the read says so")
    x, half = torch.tensor([1, 2, 0]).to(webgpu), torch.full((3,), 0.5, device=webgpu)
    for _ in range(4):
        F.one_hot(x, 3)
        F.binary_cross_entropy(half, half)
    with pytest.raises(RuntimeError, match="must be smaller than num_classes"):
        F.one_hot(torch.tensor([1, 3, 0]).to(webgpu), 3)
    with pytest.raises(RuntimeError, match="must be non-negative"):
        F.one_hot(torch.tensor([1, -1, 0]).to(webgpu), 3)
    with pytest.raises(RuntimeError, match="elements of target should be between 0 and 1"):
        F.binary_cross_entropy(half, torch.full((3,), 1.5, device=webgpu))
