"""Tensor printing against PyTorch's own `repr`, and the print options."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from webtorch.tensors import printing
from webtorch.tensors.printing import format_tensor

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
SHAPES = (
    (), (0,), (0, 3), (2, 0, 3), (1,), (2,), (7,), (30,), (1, 1), (2, 3), (3, 40), (2, 2, 3),
    (2, 1, 2, 4), (1001,), (1000,), (40, 40), (7, 200), (6, 200), (3, 2, 500), (8, 9, 10, 11),
)  # fmt: skip


@pytest.fixture
def torch() -> Iterator[Any]:
    torch = pytest.importorskip("torch")
    yield torch
    torch.set_printoptions(profile="default")


@pytest.fixture(autouse=True)
def _default_options() -> Iterator[None]:
    yield
    printing.set_printoptions(profile="default")


def ours(tensor: Any, **arguments: Any) -> str:
    """Our text of a PyTorch tensor, checked to be the same when edges are fetched."""
    name = str(tensor.dtype).removeprefix("torch.")
    fetched: list[int | None] = []

    def fetch(edgeitems: int | None) -> Any:
        fetched.append(edgeitems)
        part = tensor
        for dim, size in enumerate(tensor.shape):
            if edgeitems is not None and size > 2 * edgeitems:
                ends = [*range(edgeitems), *range(size - edgeitems, size)]
                part = part[(slice(None),) * dim + (ends,)]
        return part.tolist()

    text = format_tensor(tensor.tolist(), tensor.shape, name, **arguments)
    assert format_tensor(fetch, tensor.shape, name, **arguments) == text
    assert len(fetched) <= 1
    return text


def fill(torch: Any, shape: tuple[int, ...], dtype: str, kind: str) -> Any:
    """A tensor of one of the kinds of values among which printing decides."""
    generator = torch.Generator().manual_seed(len(shape) + 7 * math.prod(shape))
    kwargs = {"generator": generator, "dtype": torch.float64}
    match kind:
        case "normal":
            values = torch.randn(shape, **kwargs)
        case "whole":
            values = (torch.randn(shape, **kwargs) * 40).round()
        case "wide":
            values = torch.randn(shape, **kwargs) * 10 ** (torch.randn(shape, **kwargs) * 4)
        case "tiny":
            values = torch.randn(shape, **kwargs) * 1e-6
        case "large":
            values = (torch.randn(shape, **kwargs) * 1e9).round()
        case "zero":
            values = torch.zeros(shape, dtype=torch.float64) * -1
        case "special":
            values = torch.randn(shape, **kwargs)
            pick = torch.randint(0, 6, shape, generator=generator)
            for code, value in enumerate((math.inf, -math.inf, math.nan, -0.0)):
                values[pick == code] = value
        case _:
            values = torch.full(shape, float(kind), dtype=torch.float64)
    return values.to(getattr(torch, dtype))


@pytest.mark.covers("A27")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "kind", ["normal", "whole", "wide", "tiny", "large", "zero", "special", "inf", "nan", "1e-4"]
)
def test_floats_print_as_in_pytorch(torch: Any, dtype: str, kind: str) -> None:
    for shape in SHAPES:
        tensor = fill(torch, shape, dtype, kind)
        assert ours(tensor) == repr(tensor)


@pytest.mark.covers("A27")
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_and_bools_print_as_in_pytorch(torch: Any, dtype: str) -> None:
    type_ = getattr(torch, dtype)
    for shape in SHAPES:
        bits = torch.randint(0, 1 << 62, shape, generator=torch.Generator().manual_seed(1))
        for tensor in ((bits >> 10).to(type_), (bits % 3).to(type_), (bits - (1 << 61)).to(type_)):
            assert ours(tensor) == repr(tensor)


# Values at the edges of the rules: 1e8 and 1e-4 bound plain notation, 1000 bounds max / min.
EDGES = [
    [1e8], [100000001.0], [1e8, 0.5], [1e-4], [9.99e-5], [1.0, 1000.0], [1.0, 1001.0], [0.5, 500.5],
    [0.1, 100.0], [0.00015, 0.1], [math.inf, 1.0], [math.inf, 1.5, -2.0], [math.nan, 123456.0],
    [-0.0], [0.0, -0.0], [0.0, 1.5], [-0.0, 2.0], [5e-324, 1.0], [5e-324], [1e308, 1e-308],
    [1.7976931348623157e308], [0.99999], [9.99995, -9.99995], [1e15], [123456789.0, 1.0],
    [0.5, 1.5, 2.5], [1e-45, 1e38], [65504.0, 6e-8], [-math.inf], [math.nan, 0.0], [3.0, math.nan],
]  # fmt: skip


@pytest.mark.parametrize("values", EDGES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds_of_the_notations(torch: Any, values: list[float], dtype: str) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))
    for item in (tensor, tensor[0], tensor.repeat(400), tensor.repeat(9, 5)):
        assert ours(item) == repr(item)


OPTIONS: list[dict[str, Any]] = [
    {"precision": 0}, {"precision": 1}, {"precision": 12}, {"sci_mode": True}, {"sci_mode": False},
    {"sci_mode": True, "precision": 2}, {"threshold": 5}, {"threshold": 5, "edgeitems": 1},
    {"threshold": 0}, {"threshold": 0, "edgeitems": 0}, {"edgeitems": 0}, {"edgeitems": 10},
    {"threshold": 3, "edgeitems": 2, "linewidth": 20}, {"linewidth": 1}, {"linewidth": 40},
    {"linewidth": 200}, {"profile": "short"}, {"profile": "full"},
    {"profile": "short", "precision": 3, "sci_mode": True},
]  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_print_as_in_pytorch(torch: Any, options: dict[str, Any]) -> None:
    torch.set_printoptions(**options)
    printing.set_printoptions(**options)
    assert printing.get_printoptions() == torch._tensor_str.get_printoptions()
    for shape in SHAPES:
        for kind in ("normal", "whole", "wide", "special", "zero"):
            tensor = fill(torch, shape, "float32", kind)
            assert ours(tensor) == repr(tensor)
        tensor = fill(torch, shape, "float16", "whole").to(torch.int32)
        assert ours(tensor) == repr(tensor)


def test_suffixes_wrap_as_in_pytorch(torch: Any) -> None:
    for count in range(1, 40):
        for dtype in ("float32", "float16", "float64"):
            leaf = torch.ones(count, dtype=getattr(torch, dtype), requires_grad=True)
            assert ours(leaf.detach(), requires_grad=True) == repr(leaf)
            node = leaf + 0.5
            name = "AddBackward0"
            assert ours(node.detach(), requires_grad=True, grad_fn=name) == repr(node)
        matrix = torch.ones(count, 3, dtype=torch.float16, requires_grad=True)
        assert ours(matrix.detach(), requires_grad=True) == repr(matrix)


@pytest.mark.parametrize("linewidth", range(1, 100, 3))
def test_several_suffixes_wrap_as_in_pytorch(torch: Any, linewidth: int) -> None:
    torch.set_printoptions(linewidth=linewidth, edgeitems=0, threshold=5)
    printing.set_printoptions(linewidth=linewidth, edgeitems=0, threshold=5)
    for shape in ((), (4,), (10,), (2, 3), (0, 2)):
        tensor = torch.ones(shape, dtype=torch.float16, requires_grad=True)
        assert ours(tensor.detach(), requires_grad=True) == repr(tensor)


def test_the_default_dtype_needs_no_suffix(torch: Any) -> None:
    tensors = [torch.ones(2, dtype=getattr(torch, name)) for name in FLOATS]
    tensors += [torch.ones(0, dtype=getattr(torch, name)) for name in FLOATS]
    torch.set_default_dtype(torch.float64)
    try:
        expected = [repr(tensor) for tensor in tensors]
    finally:
        torch.set_default_dtype(torch.float32)
    assert [ours(t, default_dtype_name="float64") for t in tensors] == expected


def test_devices_and_tensors_without_values(torch: Any) -> None:
    for dtype in ("float32", "int64", "bool", "float16"):
        tensor = torch.empty(2, 3, dtype=getattr(torch, dtype), device="meta")
        assert format_tensor(None, (2, 3), dtype, device="meta") == repr(tensor)
    assert format_tensor([1.0], (1,), "float32", device="webgpu:0") == (
        "tensor([1.], device='webgpu:0')"
    )
    assert format_tensor([1.0], (1,), "float32", device="cpu") == "tensor([1.])"


def test_subclasses_indent_by_their_own_name(torch: Any) -> None:
    class Measured(torch.Tensor):
        pass

    tensor = torch.arange(40.0).reshape(2, 20)
    expected = repr(tensor.as_subclass(Measured))
    assert ours(tensor, class_name="Measured") == expected


def test_random_tensors_print_as_in_pytorch(torch: Any) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    shapes = st.lists(st.integers(0, 5), max_size=4)

    @hypothesis.settings(max_examples=400, deadline=None)
    @hypothesis.given(st.data(), shapes, st.sampled_from((*FLOATS, "int64")))
    def check(data: Any, shape: list[int], dtype: str) -> None:
        pool = data.draw(
            st.lists(
                st.integers(-(2**40), 2**40) if dtype == "int64" else st.floats(),
                min_size=1,
                max_size=6,
            )
        )
        options = data.draw(
            st.fixed_dictionaries(
                {
                    "precision": st.integers(0, 8),
                    "threshold": st.integers(0, 30),
                    "edgeitems": st.integers(0, 3),
                    "linewidth": st.integers(1, 100),
                    "sci_mode": st.sampled_from((None, True, False)),
                }
            )
        )
        choose = random.Random(0)
        flat = [choose.choice(pool) for _ in range(math.prod(shape))]
        kind = torch.int64 if dtype == "int64" else torch.float64
        tensor = torch.tensor(flat, dtype=kind).reshape(shape).to(getattr(torch, dtype))
        torch.set_printoptions(**options)
        printing.set_printoptions(**options)
        assert ours(tensor) == repr(tensor)

    check()


# Without PyTorch: the texts themselves, and the options.


def test_texts() -> None:
    assert format_tensor([], (0, 3), "float32") == "tensor([], size=(0, 3))"
    assert format_tensor([], (0,), "int64") == "tensor([], dtype=torch.int64)"
    assert format_tensor(2.5, (), "float32") == "tensor(2.5000)"
    assert format_tensor([True, False], (2,), "bool") == "tensor([ True, False])"
    assert format_tensor([1, -20], (2,), "int32") == "tensor([  1, -20], dtype=torch.int32)"
    assert format_tensor([[1.0, math.nan]], (1, 2), "float32", requires_grad=True) == (
        "tensor([[1., nan]], requires_grad=True)"
    )
    assert format_tensor(list(range(2000)), (2000,), "int64") == (
        "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"
    )


def test_a_large_tensor_is_asked_for_its_edges_only() -> None:
    asked: list[int | None] = []

    def fetch(edgeitems: int | None) -> Any:
        asked.append(edgeitems)
        return [[0.5] * 6] * 6

    text = format_tensor(fetch, (10**9, 10**9), "float32")
    assert asked == [3]
    assert text.count("0.5000") == 36


def test_options_of_a_block_end_with_it_and_stay_in_their_thread() -> None:
    before = printing.get_printoptions()
    seen: list[dict[str, Any]] = []
    with printing.printoptions(precision=2):
        printing.set_printoptions(edgeitems=1)
        assert printing.get_printoptions() == {**before, "precision": 2, "edgeitems": 1}
        thread = threading.Thread(target=lambda: seen.append(printing.get_printoptions()))
        thread.start()
        thread.join()
    assert seen == [before]
    assert printing.get_printoptions() == before


def test_each_call_resets_scientific_notation_and_keeps_the_rest() -> None:
    printing.set_printoptions(precision=7, sci_mode=True)
    printing.set_printoptions(linewidth=100)
    assert printing.get_printoptions() == {
        "precision": 7,
        "threshold": 1000,
        "edgeitems": 3,
        "linewidth": 100,
        "sci_mode": None,
    }


def test_threads_that_set_options_lose_no_change() -> None:
    names = ("precision", "threshold", "edgeitems", "linewidth")
    start = threading.Barrier(len(names))

    def work(name: str) -> None:
        start.wait()
        for value in range(1, 300):
            printing.set_printoptions(**{name: value})  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printing.get_printoptions() == {**dict.fromkeys(names, 299), "sci_mode": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"precision": -1}, "precision must be 0 or more, not -1"),
        ({"edgeitems": -2}, "edgeitems must be 0 or more"),
        ({"threshold": math.nan}, "threshold must be 0 or more, not nan"),
        ({"profile": "long"}, "unknown profile 'long'; use one of default, short, full"),
    ],
)
def test_impossible_options_are_refused(arguments: dict[str, Any], words: str) -> None:
    before = printing.get_printoptions()
    with pytest.raises(ValueError, match=words):
        printing.set_printoptions(**arguments)
    assert printing.get_printoptions() == before
