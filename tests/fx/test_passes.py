"""Passes over graphs, against PyTorch's: parts, arguments by name, pictures."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.fx.experimental.normalize
import torch.fx.passes.split_module

import webtorch
import webtorch.fx
from webtorch.aten.parts import aten
from webtorch.fx.experimental.normalize import NormalizeArgs, NormalizeOperators
from webtorch.fx.operator_schemas import normalize_function
from webtorch.fx.passes.graph_drawer import FxGraphDrawer
from webtorch.fx.passes.split_module import split_module

LIBRARIES = ((webtorch, split_module), (torch, torch.fx.passes.split_module.split_module))


def model(lib: Any) -> Any:
    class Model(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.param = lib.nn.Parameter(lib.ones(3, 4))
            self.linear = lib.nn.Linear(4, 5)
            self.last = lib.nn.Sequential(lib.nn.Linear(5, 5))

        def forward(self, x: Any, y: Any = None) -> Any:
            z = self.linear(x + self.param).clamp(min=0.0, max=1.0)
            w = self.linear(y).clamp(min=0.0, max=1.0)
            return self.last(z) + w

    return lib.fx.symbolic_trace(Model())


def every(count: int) -> Callable[[Any], int]:
    """Return what puts so many nodes into each part."""
    seen: list[Any] = []

    def part(node: Any) -> int:
        seen.append(node)
        return len(seen) // count

    return part


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_original_order": True},
        {"partition_affix": "pp", "tuple_return": True, "keep_original_node_name": True},
        {"keep_original_input_name": False},
    ],
)  # fmt: skip
def test_parts_are_pytorchs(options: dict[str, Any]) -> None:
    found = []
    for lib, split in LIBRARIES:
        whole, names = model(lib), dict[str, str]()
        parts = split(whole, whole, every(3), names, **options)
        x = lib.ones(3, 4)
        assert parts(x, x).tolist() == whole(x, x).tolist()
        codes = {n: c.code for n, c in parts.named_children()}
        found.append((parts.code, codes, names, parts.meta["partition_names"]))
    assert found[0] == found[1]


def test_parts_that_wait_for_each_other_are_refused() -> None:
    for lib, split in LIBRARIES:
        whole, seen = model(lib), list[Any]()
        with pytest.raises(RuntimeError, match="cycle exists between partitions!"):
            split(whole, whole, lambda n, seen=seen: seen.append(n) or len(seen) % 2)


def calls(lib: Any) -> Any:
    class Calls(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = lib.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            y = lib.nn.functional.relu(x)
            y = lib.nn.functional.dropout(y, 0.5, training=False)
            y = self.linear(y)
            y = lib.flatten(lib.cat([y, y], 1))
            return lib.sigmoid(lib.cumsum(y, 0))

    return lib.fx.symbolic_trace(Calls())


def test_arguments_by_name_are_pytorchs() -> None:
    found = []
    for lib, _ in LIBRARIES:
        module = calls(lib)
        for by_name in (True, False):
            for node in module.graph.nodes:
                pair = node.normalized_arguments(module, normalize_to_only_use_kwargs=by_name)
                shown = pair and (str(pair.args), {k: str(v) for k, v in pair.kwargs.items()})
                found.append((lib, node.name, shown))
    half = len(found) // 2
    # PyTorch's functions of Python were traced into: their arguments say the defaults already.
    mine, theirs = (
        {(n, str(s)) for _, n, s in found[part]} for part in (slice(half), slice(half, None))
    )
    assert {
        m
        for m in mine
        if "cat" in m[0] or "linear" in m[0] or "cumsum" in m[0] or "sigmoid" in m[0]
    } <= theirs
    assert normalize_function(aten.add.Tensor, (1, 2), normalize_to_only_use_kwargs=True) == (
        (), {"input": 1, "other": 2, "alpha": 1},
    )  # fmt: skip
    assert normalize_function(print, (1,)) is None


def test_graphs_are_normalised() -> None:
    module = calls(webtorch)
    changed = NormalizeArgs(module).transform()
    x = webtorch.ones(2, 3)
    assert changed(x).tolist() == module(x).tolist()
    assert "webtorch.cumsum(input = flatten, dim = 0" in changed.code.replace(
        "torch.cumsum", "webtorch.cumsum"
    )
    kinds = NormalizeOperators, torch.fx.experimental.normalize.NormalizeOperators
    for (lib, _), kind in zip(LIBRARIES, kinds, strict=True):

        def function(x: Any) -> Any:
            return lib.add(lib.mul(x, x), 1)  # noqa: B023  (called within the loop)

        code = kind(lib.fx.symbolic_trace(function)).transform().code
        assert "x * x" in code
        assert "mul + 1" in code


def test_graphs_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dot:
        def __init__(self, name: str, **_: Any) -> None:
            self.name, self.nodes, self.edges = name, [], []  # type: ignore[var-annotated]

        def add_node(self, node: Any) -> None:
            self.nodes.append(node)

        def add_edge(self, edge: Any) -> None:
            self.edges.append(edge)

    pydot: Any = types.ModuleType("pydot")
    pydot.Dot = Dot
    pydot.Node = lambda name, label, **style: (name, label, style)
    pydot.Edge = lambda a, b: (a, b)
    module = model(webtorch)
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(RuntimeError, match="FXGraphDrawer requires the pydot package"):
        FxGraphDrawer(module, "model")
    monkeypatch.setitem(sys.modules, "pydot", pydot)
    drawer = FxGraphDrawer(split_module(module, module, every(3)), "model", ignore_getattr=True)
    drawn = drawer.get_dot_graph()
    assert [n for n, _, _ in drawn.nodes][:3] == ["x", "y", "submod_0"]
    assert ("x", "submod_0") in drawn.edges
    assert "op_code=placeholder" in drawn.nodes[0][1]
    assert set(drawer.get_all_dot_graphs()) == {
        "model",
        "model_submod_0",
        "model_submod_1",
        "model_submod_2",
    }
    assert drawer.get_dot_graph("submod_0").nodes
