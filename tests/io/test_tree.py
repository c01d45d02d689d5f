"""A checkpoint's structure beside its tensors: what comes back, and what is refused."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from webtorch.io import tree
from webtorch.io.safetensors import SafetensorError
from webtorch.io.tree import Leaf, TensorRef
from webtorch.ir import dtype as dtypes


@dataclass(eq=False)
class Fake:
    """Stands for a tensor: the structure never looks into one."""

    memory: str
    device: str = "cpu"
    requires_grad: bool = False
    parameter: bool = False


def leaf_of(value: object) -> Leaf | None:
    if not isinstance(value, Fake):
        return None
    return Leaf(value.memory, value.device, value.requires_grad, value.parameter)


def round_trip(value: object) -> Any:
    """Encode and decode; tensors come back as the memory that was under their name."""
    encoded = tree.encode(value, leaf_of)
    made = {name: fake.memory for name, fake in encoded.tensors.items()}  # type: ignore[attr-defined]
    if encoded.text is None:
        return made
    return tree.decode(encoded.text, made, lambda ref: made[ref.name], file="test")


def refused(text: str | dict[str, Any] | list[Any], names: tuple[str, ...] = ()) -> str:
    with pytest.raises(SafetensorError) as error:
        tree.decode(
            text if isinstance(text, str) else json.dumps(text), names, lambda ref: ref, file="f"
        )
    return str(error.value)


def with_tree(node: object) -> dict[str, Any]:
    return {"version": 1, "tree": node}


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -3, 2**100, 1.5, 3.0, -0.0, 1e300, math.inf, -math.inf, "", "text",
        "$tensor", "half \ud800", [], {}, (), [1, [2, [3]]], (1, (2,), [3, (4,)]),
        {1: "one", None: 0, (1, "a"): 2, 2.5: 3, False: 4}, {"$tensor": "no", "$": {}},
        {"betas": (0.9, 0.999), "lr": 1e-3, "foreach": None}, dtypes.float32, [dtypes.bool_],
        {"a": 1, "tensor": "x", "version": 1}, {"a": {"b": [1]}},
    ],
    ids=repr,
)  # fmt: skip
def test_structures_come_back_with_values_and_types(value: object) -> None:
    def typed(item: object) -> object:
        if isinstance(item, dict):
            return [(typed(k), typed(v)) for k, v in item.items()]
        if isinstance(item, list | tuple):
            return type(item), [typed(i) for i in item]
        return type(item), repr(item)

    assert typed(round_trip(value)) == typed(value)


def test_nan_comes_back() -> None:
    assert math.isnan(round_trip([math.nan])[0])


def test_subclasses_of_scalars_come_back_plain() -> None:
    class Mode(enum.IntEnum):
        FAST = 3

    class Name(enum.StrEnum):
        ADAM = "adam"

    (mode, name) = round_trip([Mode.FAST, Name.ADAM])
    assert (type(mode), mode, type(name), name) == (int, 3, str, "adam")
    assert round_trip(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}


def test_a_flat_state_dict_needs_no_text() -> None:
    encoded = tree.encode({"fc.weight": Fake("w"), "fc.bias": Fake("b")}, leaf_of)
    assert list(encoded.tensors) == ["fc.weight", "fc.bias"]
    assert encoded.text is None


def test_tensors_are_named_by_their_path() -> None:
    value = {
        "model": {"fc.weight": Fake("w")},
        "optimizer": {"state": {0: {"step": Fake("s")}}, "groups": [{"extra": (Fake("e"),)}]},
    }
    encoded = tree.encode(value, leaf_of)
    assert list(encoded.tensors) == [
        "model.fc.weight",
        "optimizer.state.0.step",
        "optimizer.groups.0.extra.0",
    ]
    assert round_trip(value) == {
        "model": {"fc.weight": "w"},
        "optimizer": {"state": {0: {"step": "s"}}, "groups": [{"extra": ("e",)}]},
    }


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (Fake("a"), ["tensor"]),
        ([Fake("a"), Fake("b")], ["0", "1"]),
        ({"a": {"b": Fake("a")}, "a.b": Fake("b")}, ["a.b", "a.b#2"]),
        ({"__metadata__": Fake("a")}, ["__metadata__#2"]),
        ({"": Fake("a")}, ["tensor"]),
        ({1: Fake("a"), "1": Fake("b")}, ["1", "1#2"]),
    ],
)
def test_names_are_unique_and_allowed(value: Any, names: list[str]) -> None:
    assert list(tree.encode(value, leaf_of).tensors) == names
    memories = [fake.memory for fake in tree.encode(value, leaf_of).tensors.values()]  # type: ignore[attr-defined]
    assert sorted(memories) == sorted("ab"[: len(names)])
    assert repr(round_trip(value)).count("'a'") == repr(value).count("'a'")


def test_tied_tensors_stay_tied_and_are_under_both_names() -> None:
    value = {"wte": Fake("m"), "head": Fake("m"), "frozen": Fake("m", requires_grad=True)}
    encoded = tree.encode(value, leaf_of)
    assert list(encoded.tensors) == ["wte", "head", "frozen"]
    assert encoded.text is not None
    loaded: Any = tree.decode(encoded.text, encoded.tensors, lambda ref: [ref.name], file="f")
    assert loaded["wte"] is loaded["head"]
    assert loaded["wte"] is not loaded["frozen"]


def test_device_gradient_and_parameter_are_remembered() -> None:
    value = [Fake("a", "webgpu:1"), Fake("b", requires_grad=True, parameter=True)]
    encoded = tree.encode(value, leaf_of)
    assert encoded.text is not None
    assert tree.decode(encoded.text, encoded.tensors, lambda ref: ref, file="f") == [
        TensorRef("0", device="webgpu:1"),
        TensorRef("1", requires_grad=True, parameter=True),
    ]


class Model:
    def state_dict(self) -> None: ...


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"model": Model()}, "Model at obj['model']. "),
        ({"model": Model()}, "; save its state_dict()."),
        ([{"f": print}], "builtin_function_or_method at obj[0]['f']"),
        (b"bytes", "cannot save bytes at obj."),
        ({1, 2}, "cannot save set at obj."),
        ({"p": Point(1, 2)}, "Point at obj['p']"),
        (1j, "cannot save complex"),
        ({Fake("a"): 1}, "a key of the dict at obj is a tensor"),
        ({frozenset(): 1}, "cannot save frozenset"),
    ],
)
def test_what_is_no_data_is_refused_with_its_place(value: object, words: str) -> None:
    with pytest.raises(TypeError) as error:
        tree.encode(value, leaf_of)
    assert words in str(error.value)


def test_a_structure_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="does it contain itself"):
        tree.encode(loop, leaf_of)


def test_a_numpy_number_is_refused_with_the_fix() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"numpy\.float32 at obj\['accuracy'\].*\.item\(\)"):
        tree.encode({"accuracy": numpy.float32(0.5)}, leaf_of)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ([], "an object of version and tree"),
        ({"tree": 1}, "an object of version and tree"),
        ({"version": 0, "tree": 1}, "an object of version and tree"),
        ({"version": 1}, "an object of version and tree"),
        ({"version": 1, "tree": 1, "code": "x"}, "an object of version and tree"),
        ({"version": 2, "tree": 1}, "its version is 2, this webtorch reads 1"),
        (with_tree({"$python": "os.system"}), "has no meaning here"),
        (with_tree({"$tuple": [], "x": 1}), "has no meaning here"),
        (with_tree({"a": 1, "$b": 2}), "has no meaning here"),
        (with_tree({"$tuple": {}}), "has no meaning here"),
        (with_tree({"$float": "1.0"}), "has no meaning here"),
        (with_tree({"$dtype": "float31"}), "has no meaning here"),
        (with_tree({"$dict": [[1]]}), "is [key, value]"),
        (with_tree({"$dict": ["ab"]}), "is [key, value]"),
        (with_tree({"$dict": [[[], 1]]}), "cannot be a dict's key"),
        (with_tree({"$dict": [[1, 1], [1, 2]]}), "occurs twice"),
        (with_tree({"$tensor": "b"}), "the file has no tensor 'b'"),
        (with_tree({"$tensor": "a", "copy": "b"}), "the file has no tensor 'b'"),
        (with_tree({"$tensor": 1}), "has no meaning here"),
        (with_tree({"$tensor": "a", "device": 1}), "'a' has a wrong field"),
        (with_tree({"$tensor": "a", "requires_grad": 1}), "'a' has a wrong field"),
        (with_tree({"$tensor": "a", "parameter": "yes"}), "'a' has a wrong field"),
        (with_tree({"$tensor": "a", "copy": []}), "'a' has a wrong field"),
        (with_tree({"$tensor": "a", "hook": "x"}), "'a' has a wrong field"),
        (with_tree([]), "does not mention the tensors ['a']"),
    ],
)
def test_damaged_structures_are_refused(text: Any, words: str) -> None:
    message = refused(text, names=("a",))
    assert message.startswith("f: the checkpoint's structure is damaged: ")
    assert words in message


def test_depth_is_bounded_both_ways() -> None:
    node: Any = 1
    for _ in range(tree.MAX_DEPTH):
        node = [node]
    assert round_trip(node) == node
    assert "nested deeper" in refused(with_tree([node]))
