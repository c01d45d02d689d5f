"""What is given in place of a tensor: the error names the argument, as PyTorch's does."""

from collections.abc import Callable
from typing import Any

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
    ],
)
def test_the_error_names_the_argument(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="must be Tensor, not list"):
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
