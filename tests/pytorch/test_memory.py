"""Memory of tensors on "webgpu" as PyTorch's device tests judge it: storages that grow, outputs, overlaps, fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.pytorch.test_corners import both
from webtorch.pytorch import device as device_parts


def test_a_storage_that_grows_is_seen_by_all_its_tensors(webgpu: str) -> None:
    x = torch.arange(6.0, device=webgpu)
    tail = x[4:]
    storage = x.untyped_storage()
    storage.resize_(40)
    assert storage.nbytes() == 40 and tail.untyped_storage().nbytes() == 40
    wide = torch.empty(0, device=webgpu).set_(storage, 0, (10,), (1,))
    wide[5] = 50.0
    assert tail.tolist() == [4.0, 50.0] and x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 50.0]
    x.resize_(12)
    assert storage.nbytes() == 48
    x[5] = 5.0
    assert tail.tolist() == [4.0, 5.0] and wide[:6].tolist() == list(range(6))
    storage.resize_(8)
    assert torch.empty(0, device=webgpu).set_(storage, 0, (2,), (1,)).tolist() == [0.0, 1.0]
    storage.resize_(0)
    storage.resize_(8)
    pair = torch.empty(0, device=webgpu).set_(storage, 0, (2,), (1,))
    assert pair.copy_(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="negative"):
        storage.resize_(-1)
    with pytest.raises(RuntimeError, match="negative"):
        torch.UntypedStorage(-1, device=webgpu)


def test_set_reaches_beyond_the_storage(webgpu: str) -> None:
    storage = torch.arange(6.0, device=webgpu).untyped_storage()
    x = torch.zeros(3, 4, device=webgpu).set_(storage, 1, (4, 2), (2, 1))
    assert storage.nbytes() == 36 and x[:2].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    whole = torch.zeros(2, device=webgpu).set_(torch.arange(3.0, device=webgpu).untyped_storage())
    assert whole.tolist() == [0.0, 1.0, 2.0]


OVERLAPS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.sin(x[:-1], out=x[1:]),
    lambda x: torch.add(x[:-1], x[:-1], out=x[1:]),
    lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    lambda x: torch.cat([x[:3], x[3:6]], out=x[2:8]),
    lambda x: torch.take(x, torch.arange(9, device=x.device), out=x[1:]),
    lambda x: torch.index_select(x, 0, torch.arange(9, device=x.device), out=x[:-1]),
    lambda x: x[1:].copy_(x[:-1]),
    lambda x: x[:9].view(3, 3).add_(x[:9].view(3, 3).t()),
    lambda x: (lambda mask: mask[1:].masked_fill_(mask[:-1], False))(x > 3),
    lambda x: (lambda index: index.index_fill_(0, index, 3))(x.long() - 1),
    lambda x: x[1:].put_(torch.arange(9, device=x.device), x[:-1]),
    lambda x: torch.sort(x[1:], out=(x[:-1], x.long()[1:])),
    lambda x: torch.median(x[1:].view(9, 1), 1, out=(x[:-1], x.long()[1:])),
    lambda x: torch.logcumsumexp(x[1:], 0, out=x[:-1]),
]


@pytest.mark.parametrize("write", OVERLAPS)
def test_what_is_read_at_another_place_is_not_written(
    webgpu: str, write: Callable[[torch.Tensor], Any]
) -> None:
    for device in ("cpu", webgpu):
        with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
            write(torch.arange(1.0, 11.0, device=device))


def test_the_same_place_and_apart_are_written(webgpu: str) -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(1.0, 13.0, device=device)
        torch.exp(x, out=x)
        torch.mul(x[:6], x[:6], out=x[6:])
        rows = x.view(3, 4)
        torch.sqrt(rows[:, :2], out=rows[:, 2:])
        for _ in range(3):  # a number of its own, as a tensor
            x.masked_fill_(x > 9, x[2]).index_fill_(0, torch.tensor([1], device=device), x[3])
        return rows

    both(webgpu, run)


def test_overlaps_are_of_bytes(webgpu: str) -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(8.0, device=device)
        # Eight of these are four of those.
        x.view(torch.float16)[:8].copy_(x[4:].repeat_interleave(2))
        x.view(torch.float16)[:4].copy_(x[4:])
        return x.view(torch.float16)[:8]

    both(webgpu, run)
    x = torch.arange(8.0, device=webgpu)
    with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
        x.view(torch.float16)[4:8].copy_(x[:4])


def test_one_value_goes_to_expanded_tensors(webgpu: str) -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(3.0, device=device)
        x[1:2].expand(4).fill_(7)
        x[2:].expand(2, 5, 1).zero_()
        return x

    both(webgpu, run)


@pytest.mark.parametrize(
    "run",
    [
        lambda x, out: torch.mm(x, x, out=out(torch.float16)),
        lambda x, out: torch.argmax(x, 1, out=out(torch.float32)),
        lambda x, out: torch.sort(x, out=(out(torch.float32), out(torch.int32))),
        lambda x, out: torch.max(x, 0, out=(out(torch.float32), out(torch.float32))),
        lambda x, out: torch.gather(x, 0, x.long() * 0, out=out(torch.int64)),
        lambda x, out: torch.where(x > 0, x, x, out=out(torch.float16)),
        lambda x, out: torch.add(x, x, out=out(torch.int32)),
        lambda x, out: torch.cat([x, x], out=out(torch.int32)),
    ],
)
def test_outputs_of_a_wrong_type_are_refused(webgpu: str, run: Callable[..., Any]) -> None:
    def outcome(device: str) -> type[BaseException]:
        def out(dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(0, dtype=dtype, device=device)

        with pytest.raises((RuntimeError, TypeError)) as raised:
            run(torch.ones(2, 2, device=device), out)
        return raised.type

    assert issubclass(outcome(webgpu), outcome("cpu"))


def test_sums_are_taken_in_the_type_of_their_output(webgpu: str) -> None:
    values = torch.tensor([[1.7, 2.7], [3.2, 4.2]])

    def run(name: str) -> Callable[[str], torch.Tensor]:
        def of(device: str) -> torch.Tensor:
            out = torch.empty(0, dtype=torch.int64, device=device)
            return getattr(torch, name)(values.to(device), 1, out=out)

        return of

    for name in ("sum", "prod", "cumsum", "cumprod"):
        both(webgpu, run(name))
    shaped = torch.empty(5, 1, device=webgpu)
    assert torch.linspace(0, 1, 5, out=shaped).tolist() == [[0.0], [0.25], [0.5], [0.75], [1.0]]
    rank = torch.linalg.matrix_rank(torch.eye(3, device=webgpu), out=torch.empty(0, device=webgpu))
    assert rank.item() == 3.0


def test_memory_is_filled_where_runs_must_repeat(webgpu: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for device in ("cpu", webgpu):
            assert torch.empty(2, 3, device=device).isnan().all()
            assert torch.empty_strided((2,), (3,), device=device).isnan().all()
            assert torch.empty(2, dtype=torch.bool, device=device).all()
            assert (torch.empty(2, dtype=torch.int8, device=device) == 127).all()
            grown = torch.zeros(2, device=device).resize_(4)
            assert grown.isnan().tolist() == [False, False, True, True]
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_has_no_deterministic_algorithm_says_so(webgpu: str) -> None:
    x = torch.rand(1, 1, 4, 4, device=webgpu)
    unpool, places = torch.nn.MaxUnpool2d(3, 1), torch.zeros_like(x, dtype=torch.int64)
    unpool(x, places)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(
            RuntimeError, match="max_unpooling2d_forward_out does not have a determ"
        ):
            unpool(x, places)
    finally:
        torch.use_deterministic_algorithms(False)


FILLS: list[Callable[[str], torch.Tensor]] = [
    lambda d: torch.full((2,), 1 + 2j, device=d),
    lambda d: torch.zeros(2, dtype=torch.complex64, device=d).fill_(3 - 1j),
    lambda d: torch.zeros(2, device=d).fill_(1 + 2j),
    lambda d: torch.zeros(2, dtype=torch.uint8, device=d).fill_(300),
    lambda d: torch.full((2,), 2**40, dtype=torch.int32, device=d),
    lambda d: torch.full((2,), float("nan"), dtype=torch.int32, device=d),
    lambda d: torch.zeros(2, device=d).fill_(torch.ones(1, device=d)),
    lambda d: torch.arange(3.0, device=d).index_fill(0, torch.tensor([1], device=d), 2 + 1j),
    lambda d: torch.arange(3.0, device=d)[torch.tensor([0.0], device=d)],
    lambda d: torch.arange(3.0, device=d)[torch.tensor([0], dtype=torch.int8, device=d)],
    lambda d: torch.zeros(3, device=d).put_(
        torch.tensor([0, 1], device=d), torch.ones(1, device=d)
    ),
    lambda d: torch.zeros(3, device=d).put_(
        torch.tensor([0], device=d), torch.ones(1, device=d).int()
    ),
    lambda d: torch.zeros(3, dtype=torch.bool, device=d).random_(0, 3),
    lambda d: torch.repeat_interleave(torch.tensor([1, -2], device=d)),
    lambda d: torch.repeat_interleave(torch.tensor([2, 0, 1], device=d)),
    lambda d: torch.nn.functional.relu6(torch.tensor([True], device=d)),
    lambda d: torch.nn.functional.hardtanh(torch.ones(2, dtype=torch.uint8, device=d)),
    lambda d: torch.tril_indices(3, 3, dtype=torch.float32, device=d),
    lambda d: torch.bernoulli(torch.ones(2, dtype=torch.int64, device=d)),
    lambda d: torch.zeros(0, 2, device=d).median().isnan(),
    lambda d: torch.zeros(0, device=d).nanmedian().isnan(),
    lambda d: torch.nextafter(
        torch.tensor([torch.inf, -torch.inf, 65504.0, 1.0], dtype=torch.float16, device=d),
        torch.tensor([0.0, 1.0, torch.inf, torch.inf], dtype=torch.float16, device=d),
    ),
]


@pytest.mark.parametrize("run", FILLS)
def test_numbers_and_indices_are_checked(webgpu: str, run: Callable[[str], torch.Tensor]) -> None:
    try:
        run("cpu")
    except Exception as error:
        with pytest.raises(type(error)):
            run(webgpu)
    else:
        both(webgpu, run)


def test_a_mask_takes_a_number_of_double_precision(webgpu: str) -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(4.0, device=device)
        x[x > 1] = torch.tensor(0.5, dtype=torch.float64)
        return x

    both(webgpu, run)
    with pytest.raises(RuntimeError, match="dtypes match"):
        torch.zeros(3, device=webgpu)[[0]] = torch.tensor(0.5, dtype=torch.float64)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_a_spread_of_too_few_numbers_warns(webgpu: str, name: str) -> None:
    for device in ("cpu", webgpu):
        with pytest.warns(UserWarning, match=rf"{name}\(\): degrees of freedom is <= 0"):
            found = getattr(torch, name)(torch.ones(1, device=device), 0)
        assert torch.as_tensor(found[0] if isinstance(found, tuple) else found).isnan().item()


def test_new_tensors_of_a_pytorch_that_cannot_exchange_what_storages_hold(
    monkeypatch: pytest.MonkeyPatch, webgpu: str
) -> None:
    """Before 2.13 the address and the length are written to PyTorch's storage itself."""
    monkeypatch.setattr(device_parts, "swap", None)
    assert device_parts.words_of_storages() is not None
    x = torch.arange(12.0, device=webgpu).reshape(3, 4)
    y = (x * 2 + 1).requires_grad_()
    (y @ y.T).sum().backward()
    assert y.untyped_storage().nbytes() == y.grad.untyped_storage().nbytes() == 48
    assert len({t.untyped_storage().data_ptr() for t in (x, y, y.grad, y + 1)}) == 4
    there = (torch.arange(12.0).reshape(3, 4) * 2 + 1).requires_grad_()
    (there @ there.T).sum().backward()
    assert torch.equal(y.grad.cpu(), there.grad)
    assert torch.equal(y.detach().view(-1)[5:].cpu(), there.detach().view(-1)[5:])
