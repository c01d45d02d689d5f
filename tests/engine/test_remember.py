"""A composite that is called again with arguments of the same kinds is recorded without its Python: what
it gives must be what its Python gives, whatever the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
import webtorch.nn.functional as F
from benchmarks.cpu import operations
from webtorch.functions import subscript as indexing
from webtorch.ops.purity import look
from webtorch.tensors import remember

LINES = [t for t in operations.CALLS.read_text(encoding="utf-8").splitlines() if t[:1] not in "#"]
Call = Callable[[Any], Any]


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls that are recorded from memory."""
    found: list[int] = []
    plain = remember._again

    def counted(*args: Any) -> Any:
        found.append(1)
        return plain(*args)

    monkeypatch.setattr(remember, "_again", counted)
    return found


@pytest.fixture(scope="module")
def given() -> list[dict[str, Any]]:
    """Arguments of the same kinds and other values."""
    found = []
    for turn in range(4):
        names = operations.inputs(webtorch, 256)
        found.append(names | {k: names[k] * (1 + turn) + 0.1 * turn for k in "xabwc"})
    return found


def _values(found: Any) -> list[Any]:
    return [
        (*_lying(t), _lying(t._base), t._version, t._made_by, t.resolve_conj().numpy())
        for t in operations._tensors(found)
    ]


def _lying(t: Any) -> tuple[Any, ...]:
    """Return how a tensor lies in its memory; nothing of none."""
    return () if t is None else (tuple(t.shape), t.stride(), t.dtype, t.storage_offset())


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore")  # of deprecated arguments
@pytest.mark.parametrize("line", LINES)
def test_what_is_remembered_is_what_is_computed(line: str, given: list[dict[str, Any]]) -> None:
    code = compile(line, line, "eval")
    for names in given:
        webtorch.manual_seed(3)
        found = _values(eval(code, dict(names)))
        webtorch.manual_seed(3)
        look.watching = True
        try:
            expected = _values(eval(code, dict(names)))
        finally:
            look.watching = False
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert mine[:-1] == other[:-1]
            np.testing.assert_array_equal(mine[-1], other[-1])


def test_most_composites_are_remembered(given: list[dict[str, Any]], again: list[int]) -> None:
    for line in ("F.nll_loss(a, L)", "T.cat([a, b], 1)", "a.mean(1)", "a.topk(3, 1)"):
        again.clear()
        for names in given:
            eval(line, dict(names))
        assert len(again) == 2, line


RESTLESS: list[Call] = [
    lambda x: F.dropout(x, 0.5),
    lambda x: F.gumbel_softmax(x),
    lambda x: x.nonzero(),
    lambda x: x.view(8, 2),
    lambda x: x.t(),
    lambda x: x.contiguous(),
    lambda x: webtorch.masked_select(x, x > 0),
    lambda x: F.one_hot(x.abs().long()),
]


@pytest.mark.parametrize("call", RESTLESS)
def test_calls_that_look_at_more_than_kinds_are_made_anew(call: Call, device: str) -> None:
    webtorch.manual_seed(1)
    every = [webtorch.randn(4, 4, device=device) * n for n in range(1, 6)]
    found, states = [], []
    for x in every:
        states.append(webtorch.get_rng_state())
        found.append(call(x))
    look.watching = True
    try:
        for x, mine in zip(every, found, strict=True):
            if device == "cpu":
                webtorch.set_rng_state(states.pop(0))
                assert mine.tolist() == call(x).tolist()
            else:
                assert mine.shape == call(x).shape
    finally:
        look.watching = False


def test_the_graph_sees_arguments_as_they_were(device: str) -> None:
    for _ in range(5):
        x = webtorch.arange(6.0, device=device).reshape(2, 3)
        y = webtorch.cat([x, x], 1)
        x.zero_()
        assert y.tolist() == [[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]]
        y.add_(1)
        assert y.tolist() == [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]]


def test_the_same_tensor_twice_is_another_call(device: str) -> None:
    x, y = webtorch.ones(3, device=device), webtorch.full((3,), 2.0, device=device)
    for _ in range(4):
        assert webtorch.cat([x, x]).tolist() == [1, 1, 1, 1, 1, 1]
        assert webtorch.cat([x, y]).tolist() == [1, 1, 1, 2, 2, 2]
        z = x.clone()
        assert webtorch.cat([x, z]).tolist() == [1, 1, 1, 1, 1, 1]
        assert webtorch.dot(x, y).item() == 6
        for three in ([x, x, y], [x, y, y], [x, y, x], [x, y, z]):
            assert webtorch.stack(three).sum(1).tolist() == [t.sum().item() for t in three]


def test_numbers_that_are_equal_and_mean_different_things(device: str) -> None:
    x = webtorch.full((2, 2), -0.5, device=device)
    for _ in range(4):
        assert webtorch.cat([x, x], 0).shape == (4, 2)
        with pytest.raises(TypeError, match="must be int, not bool"):
            webtorch.cat([x, x], False)  # type: ignore[arg-type]
        assert str(F.pad(x, (1, 0), value=0.0).tolist()[0][0]) == "0.0"
        assert str(F.pad(x, (1, 0), value=-0.0).tolist()[0][0]) == "-0.0"
    z = webtorch.zeros(2, dtype=webtorch.complex64, device=device)
    for _ in range(4):
        for number in (-1 + 0j, complex(-1, -0.0)):
            made = webtorch.full_like(z, number).imag.tolist()
            assert [str(x) for x in made] == [str(number.imag)] * 2


def test_gradients_are_recorded(again: list[int]) -> None:
    x = webtorch.randn(4, 5)
    target = webtorch.tensor([0, 2, 4, 1])
    for _ in range(4):
        F.nll_loss(x, target)
    assert again
    again.clear()
    weight = x.clone().requires_grad_()
    for _ in range(4):
        weight.grad = None
        (F.nll_loss(weight, target) * 2).backward()
        assert weight.grad is not None
        assert weight.grad[0].tolist() == [-0.5, 0, 0, 0, 0]
    with webtorch.no_grad():
        for _ in range(4):
            assert not F.nll_loss(weight, target).requires_grad


def test_an_error_names_the_line_of_its_own_call(device: str) -> None:
    x = webtorch.randn(4, 3, device=device)
    good, bad = webtorch.tensor([0, 1], device=device), webtorch.tensor([0, 9], device=device)
    for index in (good, good, good, good):
        x.index_select(0, index).sum().item()
    lines = set()
    with pytest.raises(IndexError, match="index 9 is out of bounds") as first:
        x.index_select(0, bad).tolist()
    with pytest.raises(IndexError, match="index 9 is out of bounds") as second:
        x.index_select(0, bad).tolist()
    for found in (first, second):
        assert f"{__file__}:" in str(found.value)
        lines.add(str(found.value))
    assert len(lines) == 2


def test_a_warning_is_given_each_time() -> None:
    x, y = webtorch.randn(3), webtorch.randn(3, 1)
    for _ in range(5):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            F.mse_loss(x, y)
        assert ["different to the input size" in str(w.message) for w in found] == [True]


def test_the_default_type_is_asked_anew() -> None:
    x = webtorch.tensor([1, 2])
    for dtype in (webtorch.float32, webtorch.float64, webtorch.float32):
        webtorch.set_default_dtype(dtype)
        try:
            assert [webtorch.trapezoid(x).dtype for _ in range(4)] == [dtype] * 4
        finally:
            webtorch.set_default_dtype(webtorch.float32)


def test_memory_that_numpy_writes_is_read_at_the_call() -> None:
    array = np.ones(4, np.float32)
    x = webtorch.from_numpy(array)
    found = []
    for n in range(5):
        array[:] = n
        found.append(webtorch.cat([x, x]))
        array[:] = -1
    assert [f.tolist()[0] for f in found] == [0, 1, 2, 3, 4]


def test_a_captured_call_is_recorded_in_full() -> None:
    def call(x: Any) -> Any:
        return webtorch.cat([x.mean(1), x.sum(0)])

    x = webtorch.randn(3, 4)
    for _ in range(4):
        expected = call(x).tolist()
    step = webtorch.compile(call)
    assert [step(x).tolist() for _ in range(3)] == [expected] * 3
    # What is pending when a capture begins.
    pending = webtorch.cat([x, x])
    assert webtorch.compile(lambda y: y * 2)(pending).tolist() == (pending * 2).tolist()


def test_programs_do_not_grow_with_calls() -> None:
    x = webtorch.randn(5, 7)
    for _ in range(3):
        webtorch.cat([x, x], 1).sum().item()
    before = len(webtorch.zeros(1)._storage.runtime.programs)
    for _ in range(20):
        webtorch.cat([x, x], 1).sum().item()
    assert len(webtorch.zeros(1)._storage.runtime.programs) <= before + 1


def test_results_of_one_call(again: list[int]) -> None:
    for n in range(5):
        x = webtorch.randn(5, 7)
        largest = x.numpy().argmax(1)
        # Both at once, one alone, and one as a part of something else.
        both = x.max(1)
        assert both.indices.tolist() == largest.tolist()
        assert both.values.tolist() == x.numpy().max(1).tolist()
        assert x.max(1).indices.tolist() == largest.tolist()
        twice = x.max(1).values * 2 + x.max(1).indices
        np.testing.assert_allclose(twice.numpy(), x.numpy().max(1) * 2 + largest, rtol=1e-6)
        assert again or n == 0


def test_results_of_one_call_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = webtorch.zeros(1, device="cpu")._storage.runtime
    work: list[int] = []
    plain = runtime.program

    def counted(*args: Any) -> Any:
        found = plain(*args)
        work.append(len(found.program.steps))
        return found

    monkeypatch.setattr(runtime, "program", counted)
    counts = []
    for _ in range(4):
        x = webtorch.randn(6, 5, device="cpu").round()
        runtime.realize()
        work.clear()
        values, places = x.mode(1)
        # What one becomes is nothing to the other.
        values += 10
        runtime.realize()
        counts.append(sum(work))
        rows = x.numpy()
        assert (rows == values.numpy()[:, None] - 10).sum(1).min() >= 1
        assert (rows[range(6), places.numpy()] == values.numpy() - 10).all()
    assert counts[2] <= counts[0] and counts[3] <= counts[0]


def test_modes_of_calls() -> None:
    x = webtorch.randn(4, 4)
    for _ in range(4):
        mean = x.mean(1)
        x.matmul(x)
    mapped = webtorch.vmap(lambda row: row.mean(0))(x)
    np.testing.assert_allclose(mapped.numpy(), mean.numpy(), rtol=1e-6)
    _, tangent = webtorch.func.jvp(lambda y: y.mean(1), (x,), (webtorch.ones(4, 4),))
    assert tangent.tolist() == [1, 1, 1, 1]
    with webtorch.inference_mode():
        assert x.mean(1).is_inference()
    assert not x.mean(1).is_inference()
    with webtorch.autocast("cpu", dtype=webtorch.bfloat16):
        assert x.matmul(x).dtype is webtorch.bfloat16


def test_a_remembered_result_is_written_in_place() -> None:
    x = webtorch.randn(4, 6)
    for _ in range(4):
        out = x.softmax(1)
        out += 1
        np.testing.assert_allclose(out.numpy(), x.softmax(1).numpy() + 1, rtol=1e-6)
        total = x.sum(1)
        total[0] = 7
        assert total[0].item() == 7
        assert total.requires_grad_().is_leaf


def test_forward_parts_are_remembered_in_training(again: list[int]) -> None:
    x = webtorch.randn(4, 6, requires_grad=True)
    grads = []
    for n in range(5):
        again.clear()
        out = F.layer_norm(x, (6,))
        assert again or n < 3
        assert out.grad_fn is not None
        x.grad = None
        out.prod(1).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.tolist())
    assert grads == grads[:1] * 5


def test_a_gradient_is_a_view_each_time_or_never() -> None:
    remember.forget()
    x, weight = webtorch.randn(4, 6), webtorch.randn(3, 6, requires_grad=True)
    bias = webtorch.randn(3, requires_grad=True)
    found = []
    for _ in range(4):
        out = F.linear(x, weight, bias).square().sum()
        gradients = webtorch.autograd.grad(out, [weight, bias])
        found.append([(*_lying(g), _lying(g._base), g._made_by) for g in gradients])
    assert found == found[:1] * 4


VIEWS: dict[str, Call] = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(2, -1),
    "expand": lambda x: x[:, None].expand(-1, 3, -1),
    "window": lambda x: x[1:, ::2],
    "diagonal": lambda x: x.diagonal(1),
    "itself": lambda x: x.contiguous(),
    "reshape that copies": lambda x: x.t().reshape(-1),
    "in place": lambda x: x.unsqueeze_(0).squeeze_(0),
    "several": lambda x: x[0][1:].unsqueeze(1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_are_known_lie_and_differentiate_as_the_first(name: str) -> None:
    call, names = VIEWS[name], set()
    for turn in range(5):
        numbers = np.arange(24, dtype=np.float32).reshape(6, 4) + turn
        leaf = webtorch.tensor(numbers, requires_grad=True)
        theirs = torch.tensor(numbers, requires_grad=True)
        # Each turn begins elsewhere in memory.
        pairs = [(2 * (leaf * 1)[turn % 3 :][:4], 2 * (theirs * 1)[turn % 3 :][:4])]
        with webtorch.no_grad(), torch.no_grad():
            pairs += [(leaf.clone()[turn % 3 :][:4], theirs.clone()[turn % 3 :][:4])]
        for x, y in pairs:
            mine, other = call(x), call(y)
            assert mine.shape == other.shape and mine.stride() == other.stride()
            assert mine.storage_offset() == other.storage_offset()
            assert (mine.grad_fn is None) is (other.grad_fn is None)
            if mine.grad_fn is not None:
                names.add(mine.grad_fn.name())
                (mine * mine).sum().backward()
                (other * other).sum().backward()
                np.testing.assert_allclose(leaf.grad.numpy(), theirs.grad.numpy())
            assert mine.tolist() == other.tolist()
    assert len(names) == 1


def test_writes_through_views_that_are_known_reach_their_base() -> None:
    for turn in range(4):
        x = webtorch.zeros(3, 4)
        x[1:, 1:3] = float(turn)
        x.t().mul_(2)
        x.view(-1)[0] = 7
        assert x.tolist() == [[7, 0, 0, 0], *[[0, 2 * turn, 2 * turn, 0]] * 2]


def test_positions_in_a_loop_are_not_kept() -> None:
    x = webtorch.arange(3000)
    assert [int(x[i : i + 2].sum()) for i in range(1500)] == [2 * i + 1 for i in range(1500)]
    assert len(indexing._views.known) <= remember._MOST_KINDS


def test_what_makes_tensors_is_remembered_by_device_and_type(again: list[int]) -> None:
    for turn in range(4):
        x = webtorch.eye(3, 4, device="cpu")
        x[0, 0] += turn
        assert x.tolist() == [[1 + turn, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert again
    assert webtorch.eye(3, 4, device="cpu", dtype=webtorch.int64).dtype is webtorch.int64
    webtorch.set_default_dtype(webtorch.float64)
    try:
        assert webtorch.eye(3, 4, device="cpu").dtype is webtorch.float64
    finally:
        webtorch.set_default_dtype(webtorch.float32)
    assert webtorch.eye(3, 4, device="meta").is_meta
    assert webtorch.eye(3, 4, requires_grad=True, device="cpu").requires_grad
    # Two that are pending at once are two.
    a, b = webtorch.eye(3, 4, device="cpu"), webtorch.eye(3, 4, device="cpu")
    a.add_(1)
    assert (a - b).sum().item() == 12


FACTORED: list[tuple[str, Call, Call]] = [
    ("solve", lambda a: webtorch.linalg.solve(a, a), lambda a: torch.linalg.solve(a, a)),
    ("inv", webtorch.linalg.inv, torch.linalg.inv),
    ("cholesky", webtorch.linalg.cholesky, torch.linalg.cholesky),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), FACTORED)
def test_what_a_remembered_call_demands_of_its_data_is_asked_each_time(
    name: str, ours: Call, theirs: Call, again: list[int]
) -> None:
    """A factorisation raises where the matrix has none, also when calls like it are known."""
    good = np.float32([[4, 1, 0], [1, 3, 1], [0, 1, 2]])
    bad = np.float32([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    for turn in range(4):
        a = webtorch.from_numpy(good + turn * np.eye(3, dtype=np.float32)).clone()
        t = torch.from_numpy(good + turn * np.eye(3, dtype=np.float32))
        np.testing.assert_allclose(ours(a).numpy(), theirs(t).numpy(), rtol=1e-4, atol=1e-5)
    assert again
    wrong = webtorch.from_numpy(bad).clone()
    with pytest.raises(webtorch.linalg.LinAlgError, match=name):
        ours(wrong)
    with pytest.raises(webtorch.linalg.LinAlgError, match=name):
        ours(wrong)
    assert ours(a).tolist() == ours(a).tolist()


def test_a_call_that_fails_while_it_is_watched_raises() -> None:
    x = webtorch.zeros(5, 5)
    for _ in range(4):
        with pytest.raises(webtorch.linalg.LinAlgError):
            webtorch.linalg.inv(x)
    assert webtorch.linalg.inv(x + webtorch.eye(5)).tolist() == webtorch.eye(5).tolist()


def test_views_at_a_place_of_the_storage() -> None:
    def places(t: Any) -> list[Any]:
        rows = t.arange(24.0).reshape(4, 6)
        found = []
        for i in (0, 0, 0, 1, 1, 2, 0):
            there, here = rows[i].as_strided((2, 2), (1, 2), 1), rows[i].as_strided((2,), (2,))
            found += [there.storage_offset(), there.tolist(), here.storage_offset(), here.tolist()]
        rows[3].as_strided((2,), (1,), storage_offset=4).zero_()
        return [*found, rows.tolist()]

    assert places(webtorch) == places(torch)


@pytest.mark.parametrize("call", [
    lambda t, x: t.transpose_copy(x, 0, 1), lambda t, x: t.as_strided_copy(x, (2, 2), (1, 2), 1),
    lambda t, x: t.alias_copy(x.t()), lambda t, x: t.detach_copy(x.t()), lambda t, x: t.unsqueeze_copy(x.t(), 0),
])  # fmt: skip
def test_copies_of_views_are_row_major(call: Callable[[Any, Any], Any]) -> None:
    ours, theirs = (call(t, t.arange(24.0).reshape(4, 6)) for t in (webtorch, torch))
    assert (ours.tolist(), ours.stride()) == (theirs.tolist(), theirs.stride())


def test_calls_of_one_tensor_in_order_are_told_apart(again: list[int]) -> None:
    """What is written out for a tensor alone, or with an integer, finds what the long way keeps, and nothing else."""
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    calls: list[Call] = [
        lambda t: t.sum(0),
        lambda t: t.sum(1),
        lambda t: t.sum(),
        lambda t: t.t().contiguous().sum(0),
        lambda t: t[1:].sum(0),
        lambda t: t.clone().requires_grad_().sum(0).detach(),
        lambda t: t.softmax(0),
        lambda t: t.to(t.dtype).cumsum(1),
    ]
    for turn in range(5):
        for call in calls:
            want = call(torch.from_numpy(data + turn))
            np.testing.assert_allclose(call(webtorch.tensor(data + turn)).numpy(), want, rtol=1e-6)
        lrn = [L.nn.functional.local_response_norm(x[None], 2) for L, x in (
            (torch, torch.from_numpy(data + turn)), (webtorch, webtorch.tensor(data + turn))
        )]  # fmt: skip
        np.testing.assert_allclose(lrn[1].numpy(), lrn[0], rtol=1e-6)
    assert len(again) > 10
