"""`torch.export`: graphs, signatures and errors, against PyTorch's of the same modules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.export

import webtorch
import webtorch.fx.export as export
from tests.fx import models_for_export as models

LIBRARIES = ((webtorch, export), (torch, torch.export))


def nodes(program: Any) -> list[tuple[Any, ...]]:
    """Return the nodes of a graph as text."""

    def shown(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [shown(v) for v in value]
        return (
            value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
        )

    found = []
    for n in program.graph.nodes:
        # PyTorch checks each tensor that it converts.
        if str(n.target).startswith("aten._assert_tensor_metadata"):
            continue
        target = "getitem" if n.target is operator.getitem else str(n.target)
        # Where a tensor is made stands in PyTorch's graphs, and not in ours.
        kwargs = {k: str(v) for k, v in n.kwargs.items() if k not in ("device", "pin_memory")}
        args = shown(n.args)
        # Whether cuDNN may be used, which is no part of a call here, and the default before it.
        if target in ("aten.group_norm.default", "aten.layer_norm.default"):
            while args[-1] in ("True", "False", 1e-05, "None"):
                args.pop()
        found.append((n.op, n.name, target, args, kwargs))
    return found


@pytest.mark.parametrize("name", models.MODELS)
def test_graphs_are_pytorchs(name: str) -> None:
    programs = []
    for lib, exporter in LIBRARIES:
        module, args = models.MODELS[name](lib)
        programs.append((exporter.export(module.eval(), args), module, args, lib))
    (mine, module, args, _), (theirs, *_) = programs
    assert nodes(mine) == nodes(theirs)
    assert str(mine.graph_signature) == str(theirs.graph_signature)
    assert sorted(mine.state_dict) == sorted(theirs.state_dict)
    assert sorted(mine.constants) == sorted(theirs.constants)
    got, expected = mine.module()(*args), module(*args)
    assert webtorch.equal(got, expected)


def test_a_program_is_called_by_its_module_and_checks_its_arguments() -> None:
    for lib, exporter in LIBRARIES:
        module, args = models.MODELS["mlp"](lib)
        program = exporter.export(module, args)
        with pytest.raises(RuntimeError, match="Unable to call ExportedProgram directly"):
            program(*args)
        with pytest.raises(AssertionError, match=r"Guard failed: x\.size\(\)\[0\] == 2"):
            program.module()(lib.ones(3, 3))
        assert program.module()(*args).requires_grad
        assert dict(program.named_parameters()).keys() == dict(module.named_parameters()).keys()
        assert next(program.parameters()) is next(module.parameters())


def test_arguments_and_results_are_nested_as_they_were() -> None:
    for lib, exporter in LIBRARIES:

        class Nested(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any, pair: Any, *, scale: float = 2.0) -> Any:
                a, b = pair["a"]
                return {"sum": (x + a) * scale, "rest": (b, x)}

        x = lib.ones(2)
        program = exporter.export(Nested(), (x, {"a": (x, x * 2)}), {"scale": 3.0})
        assert program.graph_signature.user_inputs == ("x", "pair_a_0", "pair_a_1", 3.0)
        out = program.module()(x, {"a": (x, x * 5)}, scale=3.0)
        assert out["sum"].tolist() == [6.0, 6.0]
        assert out["rest"][0].tolist() == [5.0, 5.0]
        with pytest.raises(AssertionError, match="Guard failed: scale == 3"):
            program.module()(x, {"a": (x, x)}, scale=4.0)


def test_writes_in_place_stay_in_the_graph_and_leave_the_module_alone() -> None:
    for lib, exporter in LIBRARIES:

        class Counts(lib.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("count", lib.zeros(1))  # noqa: B023  (called within the loop)

            def forward(self, x: Any) -> Any:
                self.count.add_(1)
                return x + self.count

        module = Counts()
        program = exporter.export(module, (lib.ones(2),))
        assert [str(n.target) for n in program.graph.nodes][2:4] == [
            "aten.add_.Tensor", "aten.add.Tensor",
        ]  # fmt: skip
        assert module.count.item() == 0
        run = program.module()
        assert [run(lib.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0], [3.0, 3.0]]


def test_dimensions_change() -> None:
    for lib, exporter in LIBRARIES:

        class Doubled(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                return x.reshape(x.shape[0] * 2, -1).sum(0) + lib.zeros(x.shape[0]).sum()  # noqa: B023

        batch = exporter.Dim("batch", max=64)
        program = exporter.export(Doubled(), (lib.ones(4, 6),), dynamic_shapes={"x": {0: batch}})
        targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
        assert targets[0] == "aten.sym_size.int"
        assert targets[2:] == [
            "aten.reshape.default", "aten.sum.dim_IntList", "aten.zeros.default", "aten.sum.default", "aten.add.Tensor",
        ]  # fmt: skip
        assert [str(r) for r in program.range_constraints.values()] == ["VR[0, 64]"]
        for rows in (2, 7):
            assert program.module()(lib.ones(rows, 6)).tolist() == [2.0 * rows] * 3
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(lib.ones(4, 8))
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(lib.ones(65, 6))


def test_two_dimensions_and_their_product() -> None:
    class Rows(webtorch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            b, s, c = x.shape
            return x.reshape(b * s, c).mm(y).view(b, s, -1), s + 3

    batch, length = export.dims("batch", "length")
    where = {"x": {0: batch, 1: length}, "y": None}
    program = export.export(
        Rows(), (webtorch.ones(2, 3, 4), webtorch.ones(4, 5)), dynamic_shapes=where
    )
    out, number = program.module()(webtorch.ones(5, 6, 4), webtorch.ones(4, 5))
    assert out.shape == (5, 6, 5)
    assert number == 9


def test_code_may_ask_whether_it_is_exported() -> None:
    for lib, exporter in LIBRARIES:

        class Asks(lib.nn.Module):  # type: ignore[misc]
            def forward(self, x: Any) -> Any:
                compiler = lib.compiler  # noqa: B023  (called within the loop)
                return x.sin() if compiler.is_exporting() and compiler.is_compiling() else x.cos()

        program = exporter.export(Asks(), (lib.ones(2),))
        assert [str(n.target) for n in program.graph.nodes][1] == "aten.sin.default"
        assert not lib.compiler.is_exporting()
        assert not lib.compiler.is_compiling()


def refusing(forward: Callable[[Any, Any], Any]) -> Any:
    return type("Refused", (webtorch.nn.Module,), {"forward": forward})()


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: x if x.sum() > 0 else -x, "data-dependent"),
        (lambda self, x: x * x.sum().item(), "data-dependent"),
        (lambda self, x: x.view(x.shape[0] // 2, -1), "neither a sum nor a product"),
        (lambda self, x: x.relu() if x.shape[0] > 4 else x.sin(), "calls other operators at other sizes"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused(forward: Any, message: str) -> None:
    with pytest.raises(export.UserError, match=message):
        export.export(
            refusing(forward), (webtorch.ones(4, 6),), dynamic_shapes=({0: export.Dim("b")},)
        )


def test_arguments_of_export_are_checked() -> None:
    module = webtorch.nn.Linear(3, 2)
    x = webtorch.ones(2, 3)
    with pytest.raises(ValueError, match=r"to be an instance of `torch\.nn\.Module`"):
        export.export(lambda x: x, (x,))  # type: ignore[arg-type]
    with pytest.raises(export.UserError, match="`args` to be a tuple"):
        export.export(module, [x])  # type: ignore[arg-type]
    with pytest.raises(export.UserError, match="top-level keys must be the arg names"):
        export.export(module, (x,), dynamic_shapes={"y": None})
    with pytest.raises(export.UserError, match="out of VR"):
        export.export(module, (x,), dynamic_shapes={"input": {0: export.Dim("b", min=4)}})


def _nested(lib: Any) -> Any:
    class Block(lib.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.lin = lib.nn.Linear(4, 4)
            self.register_buffer("scale", lib.ones(4) * 2)

        def forward(self, x: Any, more: Any = None) -> Any:
            y = self.lin(x).relu() * self.scale
            return (y, y.sum()) if more is None else y + more

    class Nested(lib.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = lib.nn.ModuleList([Block(), Block()])
            self.parts[1].lin.weight = self.parts[0].lin.weight
            self.unused = lib.nn.Linear(2, 2)
            self.act = lib.nn.ReLU()
            self.shift = lib.nn.Parameter(lib.ones(4))

        def forward(self, x: Any, d: Any) -> Any:
            z, total = self.parts[0](x)
            z = self.act(self.parts[0](z + self.shift, d["k"]))
            z = self.act(z * total)
            return {"out": self.parts[1](z, x).sum(), "z": z}

    return Nested()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_program_as_modules_again() -> None:
    found = []
    module = _nested(webtorch)
    state = {k: v.numpy() for k, v in module.state_dict().items()}
    for lib, exporter in LIBRARIES:
        own = _nested(lib)
        own.load_state_dict({k: lib.from_numpy(v) for k, v in state.items()})
        args = lib.ones(2, 4), {"k": lib.arange(8.0).reshape(2, 4)}
        again = exporter.unflatten(exporter.export(own, args))
        names = sorted(n for n, _ in again.named_modules() if n != "parts")
        calls = {
            n: [(x.op, str(x.target)) for x in m.graph.nodes]
            for n, m in again.named_modules()
            if hasattr(m, "graph") and n != "parts"
        }
        weights = [again.get_submodule(f"parts.{p}.lin").weight for p in ("0", "0@1", "1")]
        assert all(w is weights[0] for w in weights)
        assert weights[0] is not own.parts[0].lin.weight
        out = again(*args)
        out["out"].backward()
        found.append((
            names, calls, sorted(again.state_dict()), out["z"].tolist(), out["out"].item(),
            weights[0].grad.tolist(), again.type_name().rpartition(".")[2],
        ))  # fmt: skip
        assert lib.equal(out["z"], own(*args)["z"])
    mine, theirs = found
    assert mine[:3] == theirs[:3]
    assert mine[6] == theirs[6]
    for own, other in zip(mine[3:6], theirs[3:6], strict=True):
        assert webtorch.allclose(webtorch.tensor(own), webtorch.tensor(other))
