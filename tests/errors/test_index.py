"""An index out of range, found on the device: raised at the next read with operation, value and line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import webtorch
from tests.conftest import need_device
from webtorch.errors import IndexOutOfRangeError
from webtorch.runtime.backends.cpu.executable import KernelRunner

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


def _ints(values: list[Any], device: str) -> Any:
    return webtorch.tensor(values, device=device)


# name -> (what reads, the operation, the bad index, the size)
CASES: dict[str, tuple[Callable[[Any, str], Any], str, int, int]] = {
    "getitem": (lambda x, d: x[_ints([1, 7], d)], "index", 7, 5),
    "negative": (lambda x, d: x[_ints([-6], d)], "index", -6, 5),
    "gather": (lambda x, d: x.gather(0, _ints([9], d)), "gather", 9, 5),
    "index_select": (lambda x, d: x.index_select(0, _ints([5], d)), "index_select", 5, 5),
    "embedding": (
        lambda x, d: webtorch.nn.functional.embedding(_ints([3, 12], d), x.view(5, 1)),
        "embedding",
        12,
        5,
    ),
    "scatter": (lambda x, d: x.scatter(0, _ints([-1], d), 3.0), "scatter", -1, 5),
    "cross_entropy": (
        lambda x, d: webtorch.nn.functional.cross_entropy(x.view(1, 5), _ints([8], d)),
        "cross_entropy",
        8,
        5,
    ),
}


@pytest.mark.covers("P3")
@pytest.mark.parametrize("name", CASES)
def test_the_next_read_names_it_and_the_device_stays_usable(name: str, device: str) -> None:
    call, op, value, size = CASES[name]
    x = webtorch.arange(5.0, device=device)
    other = x * 2
    # The CPU raises at the call where it has the index already.
    with pytest.raises(IndexOutOfRangeError) as caught:
        call(x, device).tolist()
    text = str(caught.value)
    dim = 1 if name == "cross_entropy" else 0
    assert f"{op}: index {value} is out of bounds for dimension {dim} with size {size}" in text
    assert "test_index.py:" in text, text
    assert isinstance(caught.value, IndexError)
    assert other.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert x[_ints([4, -5], device)].tolist() == [4.0, 0.0]


def test_a_bad_index_in_a_scatter_write_is_reported(device: str) -> None:
    x = webtorch.zeros(5, device=device)
    at = _ints([5], device) + 1
    x[at] = 3.0
    with pytest.raises(IndexOutOfRangeError, match=r"index 6.*size 5"):
        x.tolist()
    y = webtorch.ones(2, device=device)
    assert (y + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("first", ["index", "embedding"])
def test_an_index_that_may_be_negative_in_one_place_only(first: str, device: str) -> None:
    table = webtorch.arange(12.0, device=device).view(4, 3)
    # Not computed yet: what has it at the call raises there.
    at = _ints([-2, 1], device) + 1
    reads = [table[at], webtorch.nn.functional.embedding(at, table)]
    both = reads[0] + reads[1] if first == "index" else reads[1] + reads[0]
    with pytest.raises(IndexOutOfRangeError, match="embedding: index -1 is out of bounds"):
        both.tolist()


def test_the_same_work_at_another_line_names_that_line(device: str) -> None:
    x = webtorch.arange(5.0, device=device)
    at = _ints([1, 7], device)

    def one() -> Any:
        return x[at]

    def other() -> Any:
        return x[at]

    for read in (one, other, one):
        with pytest.raises(IndexOutOfRangeError) as caught:
            read().tolist()
        assert f"test_index.py:{read.__code__.co_firstlineno + 1})" in str(caught.value)


def test_a_program_that_makes_code_without_end_is_told_its_lines() -> None:
    """What is known of code is kept by its id: code that comes and goes must not be mistaken for other."""
    for n in range(8):
        names: dict[str, Any] = {"x": webtorch.arange(5.0), "at": webtorch.tensor([n + 5])}
        text = "\n" * n + "def read():\n    return x[at]\n"
        exec(compile(text, f"<cell {n}>", "exec"), names)
        with pytest.raises(IndexOutOfRangeError) as caught:
            names["read"]().tolist()
        assert f"index {n + 5} " in str(caught.value)
        assert f"cell {n}>:{n + 2})" in str(caught.value)


def test_synchronize_and_awaiting_report_it_too(device: str) -> None:
    x = webtorch.arange(5.0, device=device)
    bad = x[_ints([10], device) + 1]
    with pytest.raises(IndexOutOfRangeError, match="index 11"):
        webtorch.synchronize()
    again = x[_ints([11], device) + 1]
    with pytest.raises(IndexOutOfRangeError, match="index 12"):
        asyncio.run(again.tolist_async())
    assert bad.shape == (1,)


def test_an_index_in_python_is_checked_at_once(device: str) -> None:
    x = webtorch.zeros(2, 3, device=device)
    for call, text in (
        (lambda: x[2], "index 2 is out of bounds for dimension 0 with size 2"),
        (lambda: x[0, -4], "index -4 is out of bounds for dimension 1 with size 3"),
        (lambda: x[0, 0, 0], "too many indices"),
        (lambda: x.select(1, 3), "3"),
    ):
        with pytest.raises(IndexError, match=text):
            call()


def test_a_bad_index_in_training_names_the_line_of_the_forward(device: str) -> None:
    weight = webtorch.zeros(4, 2, device=device, requires_grad=True)
    # Not computed yet, so that the call does not raise.
    ids = _ints([0, 3], device) + 1
    loss = webtorch.nn.functional.embedding(ids, weight).sum()
    loss.backward()
    with pytest.raises(IndexOutOfRangeError, match=r"embedding: index 4 .*test_index.py:\d+"):
        weight.grad.tolist()


def test_an_index_of_a_dimension_of_size_0_is_refused_at_once() -> None:
    x = webtorch.zeros(0, 3, 0)
    message = r"out of bounds for dimension with size 0 \(dimension 2"
    with pytest.raises(IndexError, match=message):
        x[..., webtorch.tensor([[0, 0]])]
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 0"):
        x[webtorch.tensor(0), webtorch.tensor([], dtype=webtorch.long)]
    assert x[webtorch.tensor([], dtype=webtorch.long)].shape == (0, 3, 0)


def test_what_is_assigned_at_index_tensors_is_not_converted() -> None:
    x = webtorch.zeros(3)
    with pytest.raises(RuntimeError, match="source and destination dtypes match"):
        x[[0, 1]] = webtorch.tensor([1, 2])
    x[webtorch.tensor([True, False, False])] = webtorch.tensor(4)
    x[1:] = webtorch.tensor([5, 6])
    assert x.tolist() == [4.0, 5.0, 6.0]


def _written(x: Any, *index: Any) -> Any:
    y = x.clone()
    y[index] = 1.0
    return y


# name -> (what reads a tensor of shape (2, 3, 5), the dimension that is to be named)
INNER: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "x[:, i]": (lambda x, i: x[:, i], 1),
    "x[..., i]": (lambda x, i: x[..., i], 2),
    "x[0, :, i]": (lambda x, i: x[0, :, i], 2),
    "x[None, :, i]": (lambda x, i: x[None, :, i], 1),
    "x[i - i, :, i]": (lambda x, i: x[i - i, :, i], 2),
    "x[:, i] = 1": (lambda x, i: _written(x, slice(None), i), 1),
    "x[0, :, i] = 1": (lambda x, i: _written(x, 0, slice(None), i), 2),
    "index_put": (lambda x, i: x.index_put((i - i, i), webtorch.ones((), device=x.device)), 1),
    "index_select": (lambda x, i: x.index_select(1, i), 1),
    "index_add": (
        lambda x, i: x.index_add(1, i, webtorch.ones(2, 1, 5, device=x.device)),
        1,
    ),
    "index_copy": (
        lambda x, i: x.index_copy(2, i, webtorch.ones(2, 3, 1, device=x.device)),
        2,
    ),
    "index_fill": (lambda x, i: x.index_fill(1, i, 1.0), 1),
    "gather": (lambda x, i: x.gather(1, i.view(1, 1, 1)), 1),
    "take_along_dim": (lambda x, i: webtorch.take_along_dim(x, i.view(1, 1, 1), 2), 2),
    "scatter": (lambda x, i: x.scatter(2, i.view(1, 1, 1), 1.0), 2),
    "scatter_add": (
        lambda x, i: x.scatter_add(1, i.view(1, 1, 1), webtorch.ones(1, 1, 1, device=x.device)),
        1,
    ),
}


@pytest.mark.parametrize("name", INNER)
def test_an_inner_dimension_is_named_as_the_user_counts_it(name: str, device: str) -> None:
    call, dim = INNER[name]
    x = webtorch.zeros(2, 3, 5, device=device)
    size = (2, 3, 5)[dim]
    with pytest.raises(IndexOutOfRangeError) as caught:
        call(x, _ints([7], device)).tolist()
    assert f"index 7 is out of bounds for dimension {dim} with size {size} " in str(caught.value)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("far", [2**32 + 1, -(2**32) + 1, 2**40, -(2**63)])
def test_an_index_beyond_32_bits_is_not_cut(
    far: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        monkeypatch.setattr(KernelRunner, "_pays", lambda self: True)
    x = webtorch.arange(5.0, device="cpu")
    for call in (
        lambda i: x[i],
        lambda i: x.index_select(0, i),
        lambda i: x.gather(0, i),
        lambda i: _written(x, i),
    ):
        for count in (1, 1000):
            index = webtorch.tensor([0] * (count - 1) + [far], device="cpu")
            with pytest.raises(IndexOutOfRangeError, match=f"index {far} is out of bounds"):
                call(index).tolist()


def test_indexing_raises_at_the_call_where_the_index_is_at_hand() -> None:
    x, index = webtorch.zeros(5), webtorch.ones(4, dtype=webtorch.int64)
    index[-1] = 10
    before = x.clone()
    for call in (lambda: x[index], lambda: x.__setitem__(index, 1.0), lambda: x[None, index]):
        with pytest.raises(IndexOutOfRangeError, match="index 10 is out of bounds for dimension 0"):
            call()
    with pytest.raises(IndexOutOfRangeError):
        x.index_put_((index,), webtorch.ones(4), accumulate=True)
    assert x.equal(before)


def test_an_index_that_is_made_of_numbers_is_at_hand_each_time() -> None:
    for kind in (webtorch.float32, webtorch.int32, webtorch.float64, webtorch.int16):
        index = (webtorch.ones(4) * 5).to(webtorch.int64)
        with pytest.raises(IndexOutOfRangeError, match="index 5 is out of bounds for dimension 0"):
            webtorch.zeros(5, dtype=kind).index_add_(0, index, webtorch.ones(4, dtype=kind))


def test_an_index_beyond_32_bits_is_refused_by_webgpu() -> None:
    need_device("webgpu")
    x = webtorch.arange(5.0, device="webgpu")
    for far in (2**32 + 1, -(2**40)):
        index = webtorch.tensor([0, far], device="webgpu")
        with pytest.raises(IndexOutOfRangeError, match="out of bounds for dimension 0"):
            x[index].tolist()
    assert x[webtorch.tensor([2**32 + 1], device="webgpu") - 2**32].tolist() == [1.0]


def test_counting_indices_are_checked_too(device: str) -> None:
    x = webtorch.arange(5.0, device=device)
    count = webtorch.arange(7, device=device)
    with pytest.raises(IndexOutOfRangeError, match="index 5 is out of bounds for dimension 0"):
        x[count].tolist()
    assert x[webtorch.arange(4, device=device)].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(IndexOutOfRangeError, match="index 5"):
        x[webtorch.arange(3, 8, device=device)].tolist()


def test_an_array_of_the_result_raises_too() -> None:
    """numpy() shares memory and copies nothing; it is a read all the same."""
    bad = webtorch.arange(5.0)[webtorch.tensor([8]) + 1]
    with pytest.raises(IndexOutOfRangeError):
        bad.numpy()
    assert webtorch.ones(3).sum().item() == 3
