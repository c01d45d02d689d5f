"""What older programs write, and PyTorch still takes."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

CALLS: list[tuple[str, Any]] = [
    ("addmm", lambda t, m, v, b: t.addmm(2, m, 3, m, m)),
    ("addmm", lambda t, m, v, b: t.addmm(2, m, m, m)),
    ("addmm", lambda t, m, v, b: m.addmm(2, 3, m, m)),
    ("addmm", lambda t, m, v, b: m.addmm(3, m, m)),
    ("addmm_", lambda t, m, v, b: m.clone().addmm_(2, 3, m, m)),
    ("addmv", lambda t, m, v, b: t.addmv(2, v, 3, m, v)),
    ("addr", lambda t, m, v, b: m.addr(2, 3, v, v)),
    ("baddbmm", lambda t, m, v, b: t.baddbmm(2, b, 3, b, b)),
    ("addbmm", lambda t, m, v, b: m.addbmm(2, b, b)),
    ("add_", lambda t, m, v, b: v.clone().add_(2, v)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_factors_before_the_tensors(number: int, device: str) -> None:
    name, call = CALLS[number]

    def numbers(t: Any, device: str) -> list[Any]:
        shapes = ((3, 3), (3,), (2, 3, 3))
        return [
            (t.arange(9.0).repeat(2)[:n] / 7).reshape(s).to(device)
            for n, s in zip((9, 3, 18), shapes, strict=True)
        ]

    with pytest.warns(UserWarning, match=f"This overload of {name} is deprecated") as raised:
        found = call(webtorch, *numbers(webtorch, device))
    # The warning is about the user's line.
    assert raised[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = call(torch, *numbers(torch, "cpu"))
    torch.testing.assert_close(torch.tensor(found.tolist()), expected)


def test_wrong_old_calls_raise_type_errors() -> None:
    x = webtorch.ones(2, 2)
    for given in ((x, x, 2, x), (1, x, 2, x, x, x), (x, x, x, 2), (1, 2, 3, x, x)):
        with pytest.raises(TypeError, match="addmm"):
            webtorch.addmm(*given)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8"])
def test_multiples_that_overflow(dtype: str, device: str) -> None:
    numbers = [[100, 17, 11, 120, 9], [7, 13, 10, 25, 6]]
    if dtype != "uint8":
        numbers = [[-n for n in numbers[0]], numbers[1]]
    if dtype == "int16":
        numbers = [[n * 97 for n in row] for row in numbers]
    a, b = (torch.tensor(row, dtype=getattr(torch, dtype)) for row in numbers)
    x, y = (webtorch.tensor(row, dtype=getattr(webtorch, dtype), device=device) for row in numbers)
    assert webtorch.lcm(x, y).tolist() == torch.lcm(a, b).tolist()


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
def test_reversed_is_the_tensor_flipped_in_its_first_dimension(
    shape: tuple[int, ...], device: str
) -> None:
    x, y = webtorch.arange(6, device=device).reshape(shape), torch.arange(6).reshape(shape)
    assert reversed(x).tolist() == reversed(y).tolist()  # type: ignore[call-overload]
    scalar = x.reshape(-1)[4]
    assert reversed(scalar) is scalar


def test_a_shape_with_negative_sizes_is_no_shape() -> None:
    with pytest.raises(RuntimeError, match=r"resize_.*negative"):
        webtorch.ones(2).resize_(3, -1)


def test_texts_of_buffers_and_embeddings() -> None:
    assert repr(webtorch.nn.Buffer(webtorch.ones(2))) == repr(torch.nn.Buffer(torch.ones(2)))
    given: dict[str, Any] = {"padding_idx": 0, "max_norm": 1.0, "sparse": True}
    assert repr(webtorch.nn.Embedding(4, 3, **given)) == repr(torch.nn.Embedding(4, 3, **given))


def test_types_that_scripts_ask_for() -> None:
    values = [[1, 2], [1, "a"], {"a": 1}, (1, "a"), None, 3, ["a"]]
    kinds: list[Any] = [list[int], dict[str, int], tuple[int, str], int | None, list[str]]
    for value in values:
        for kind in kinds:
            found = webtorch.jit.isinstance(value, kind)
            assert found == torch.jit.isinstance(value, kind), (value, kind)


def test_functions_pickle_by_name() -> None:
    for one in (
        webtorch.relu, webtorch.nn.functional.gelu, webtorch.nn.functional.cross_entropy,
        webtorch.linalg.norm, webtorch.fft.rfft, webtorch.special.expit, webtorch.einsum,
    ):  # fmt: skip
        assert pickle.loads(pickle.dumps(one)) is one


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("inv", [[2.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]),
        ("cholesky", [[4.0, 0.0], [0.0, 9.0]], [[-1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_factorisations_that_fail_in_a_compiled_function_are_reported(
    name: str, good: Any, bad: Any
) -> None:
    function = getattr(webtorch.linalg, name)
    step = webtorch.compile(lambda x: function(x) * 2)
    right = webtorch.tensor(good)
    for _ in range(2):
        assert step(right).tolist() == (function(right) * 2).tolist()
    out = step(webtorch.tensor(bad))
    with pytest.raises(RuntimeError, match=f"linalg.{name}: The "):
        out.tolist()
    # The next call is as good as ever.
    assert step(right).tolist() == (function(right) * 2).tolist()
