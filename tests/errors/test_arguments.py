"""What is given in place of a tensor: the error names the argument, as PyTorch's does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch

CALLS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda t: t.nn.functional.linear([[1.0, 2.0]], t.ones(2, 2)),
    "a linear layer": lambda t: t.nn.Linear(2, 2)([1.0, 2.0]),
    "linear's weight": lambda t: t.nn.functional.linear(t.ones(2, 2), [1.0]),
    "relu": lambda t: t.nn.functional.relu([1.0]),
    "sin": lambda t: t.sin([1.0]),
    "add": lambda t: t.add([1.0], 2),
    "sum": lambda t: t.sum([1.0, 2.0]),
    "exp of a number": lambda t: t.exp(2.0),
    "max": lambda t: t.max([1, 2]),
    "reshape": lambda t: t.reshape([1.0], (1,)),
    "mm": lambda t: t.mm([1.0], t.ones(1, 1)),
    "cat": lambda t: t.cat(t.ones(2)),
    "stack": lambda t: t.stack(3),
}


NUMBERS = (
    "x.sum(n(1))", "x.roll(n(3), n(1))", "x.diagonal(n(1))", "x.unfold(1, n(3), n(3))", "x.chunk(n(3), 1)",
    "x.topk(n(2))[0]", "x.flip(n(0))", "x.cumsum(n(1))", "x.movedim(n(0), n(1))", "x.view(n(2), -1)",
    "F.one_hot(t.tensor([1]), n(3))",
    "F.avg_pool1d(x, n(2))", "x.argmax(n(1))", "x.repeat(n(2), 1)", "t.eye(n(2), n(3))", "x.transpose(n(0), n(1))",
    "x.softmax(n(0)).sum(n(1)) > 0", "F.pad(x, (n(1), n(2)))", "t.randperm(n(3)).sum()",
)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_error_is_pytorchs(name: str) -> None:
    with pytest.raises(TypeError) as theirs:
        CALLS[name](torch)
    with pytest.raises(TypeError) as ours:
        CALLS[name](webtorch)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.nn.functional.cross_entropy([1.0], t.zeros(1)),
        lambda t: t.nn.functional.conv2d([1.0], t.ones(1, 1, 1, 1)),
        lambda t: t.where([1], t.ones(1), t.ones(1)),
        lambda t: t.zeros(1, out=[1.0]),
        lambda t: t.exp(t.ones(1), out=[1.0]),
        lambda t: t.add(t.ones(1), t.ones(1), out=[1.0]),
    ],
)
def test_the_error_names_the_argument(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"must be Tensor, not (list|float)"):
        call(webtorch)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.ones(1, dtype="float32"),
        lambda t: t.tensor([1.0], dtype="float32"),
        lambda t: t.ones(1).to(dtype="float32"),
    ],
)
def test_a_name_is_no_type(call: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"argument 'dtype' must be torch\.dtype, not str: 'float32'"
    ):
        call(webtorch)


def test_an_error_of_something_else_stays_what_it_is() -> None:
    class Odd:
        @property
        def shape(self) -> Any:
            raise AttributeError("no such thing as a shape")

    with pytest.raises(TypeError):
        webtorch.sum(Odd())


def test_the_storage_of_a_tensor() -> None:
    def facts(t: Any) -> Any:
        x = t.zeros(4, 3)
        whole, part = x.untyped_storage(), x[1:].untyped_storage()
        return whole.nbytes(), whole.size(), len(whole), whole == part, str(whole.device), (
            whole.data_ptr() == x.data_ptr(), x[1].data_ptr() - x.data_ptr(), whole.element_size(),
            x.clone().untyped_storage() == whole,
        )  # fmt: skip

    with webtorch.device("cpu"):
        assert facts(webtorch) == facts(torch)
        x = webtorch.zeros(3)
        seen = x.numpy()
        assert x.data_ptr() == seen.ctypes.data


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
@pytest.mark.parametrize("call", NUMBERS)
def test_numbers_of_numpy_are_taken_for_whole_ones(call: str, kind: type[Any]) -> None:
    found = {}
    for lib in (torch, webtorch):
        for needs in (False, True):
            x = lib.arange(48.0).reshape(4, 12).requires_grad_(needs)
            out = eval(call, {"t": lib, "x": x, "n": kind, "F": lib.nn.functional})
            found[lib.__name__, needs] = [
                (tuple(y.shape), y.tolist()) for y in (out if isinstance(out, tuple) else (out,))
            ]
    assert found["webtorch", False] == found["webtorch", True] == found["torch", False]


def test_what_a_number_of_numpy_leaves_behind_is_pythons() -> None:
    webtorch.ones(5).diag(np.int16(3))
    webtorch.ones(3).unfold(0, np.int16(3), np.int16(3))
    assert webtorch.eye(3).sum().item() == 3
    assert webtorch.ones(5).diag(3).sum().item() == 5
    # 200 places on: more than the type can hold.
    assert webtorch.arange(300).reshape(3, 100)[np.uint8(2) :].tolist()[0][0] == 200
    assert webtorch.arange(300).reshape(3, 100).narrow(0, np.uint8(2), 1)[0, 99].item() == 299


BOOLS = (
    "x.topk(1, True)", "x.softmax(True)", "x.cumsum(True)", "x.unsqueeze(True)", "x.select(True, 0)",
    "t.ones(True)", "t.eye(True)", "x.tril(True)", "x.sum(True)", "x.repeat(True, 1)", "x.mean(True)",
)  # fmt: skip


@pytest.mark.parametrize("call", BOOLS)
def test_a_bool_is_no_whole_number(call: str) -> None:
    for lib in (torch, webtorch):
        with pytest.raises(TypeError):
            eval(call, {"t": lib, "x": lib.ones(2, 2)})
    assert webtorch.tensor([1.0, 3.0]).std(True).item() == torch.tensor([1.0, 3.0]).std(True).item()
