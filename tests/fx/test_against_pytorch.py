"""`webtorch.fx` beside PyTorch's: the same programs give the same graphs, code, errors and results."""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx
import torch.fx.subgraph_rewriter

import webtorch
import webtorch.fx
import webtorch.fx.subgraph_rewriter

LIBS = (torch, webtorch)


class Pair(NamedTuple):
    first: Any
    second: Any


def helper(x: Any, number: int) -> Any:
    # Cannot be traced.
    return x * number if x.sum() > 0 else x


def scaled(x: Any) -> Any:
    return helper(x, 3) + len(x)


torch.fx.wrap("helper")
torch.fx.wrap("len")
webtorch.fx.wrap("helper")
webtorch.fx.wrap("len")


def models(lib: Any) -> dict[str, Any]:
    """Modules and functions that can be traced, with what they are given."""
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(lib.ones(3) * 2)
            self.register_buffer("shift", lib.arange(3.0))
            self.layer = nn.Linear(3, 3)
            with lib.no_grad():
                self.layer.weight.copy_(lib.arange(9.0).view(3, 3) / 9)
                self.layer.bias.fill_(0.5)

        def forward(self, x: Any) -> Any:
            return self.layer(x * self.scale) + self.shift

    class Operators(Block):
        def forward(self, x: Any, y: Any = 2, *rest: Any, k: int = 2, **more: Any) -> Any:
            z = self.scale + x
            z = (z + self.scale) @ self.layer.weight.t()
            z = self.shift + z
            z = z[..., :2, None]
            z = z.view(z.shape[0], -1)
            z = lib.cat([z, z], dim=1).relu()
            z = functional.relu(z, inplace=True)
            z += 1
            a, b = z.chunk(2)
            a = -abs(2**a) / 3 - 1 // (a + 1)
            b = lib.zeros(1) + b.to(lib.float32, memory_format=lib.contiguous_format)
            return {"a": (a, b), "b": [z.clamp(min=0).size(0)]}

    class Nested(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Block(), nn.ReLU(), Block())
            self.items = nn.ModuleList([Block(), nn.Dropout(0.5)])
            self.eval()

        def forward(self, x: Any, mask: Any = None) -> Any:
            x = self.blocks(x)
            for item in self.items:
                x = item(x)
            if mask is not None:
                x = x * mask
            return Pair(x, self.blocks(x))

    def annotated(x: lib.Tensor, n: int = 3, names: list[str] | None = None) -> lib.Tensor:
        return lib.flatten(x, 0).sum() * n

    def comparisons(x: Any, y: Any) -> Any:
        return (x > y) & ~(x == y), x.T, lib.where(x >= 0, x, y), x.max(dim=0)[0]

    def mathematics(x: Any) -> Any:
        return x * math.sqrt(4) + math.floor(x.size(0))

    return {
        "block": (Block(), {}, 1),
        "operators": (Operators(), {}, 1),
        "nested": (Nested(), {"mask": None}, 1),
        "annotated": (annotated, {}, 1),
        "comparisons": (comparisons, {}, 2),
        "mathematics": (mathematics, {}, 1),
        "wrapped": (scaled, {}, 1),
        "constant": (lambda x: x + lib.ones(2, 3), {}, 1),
        "containers": (
            lambda x: x["a"] + x["b"][0],
            {"x": {"a": lib.fx.PH, "b": [lib.fx.PH]}},
            0,
        ),
        "specialised": (
            lambda x, flag, size: x * 2 if flag else x + size,
            {"flag": True, "size": 3},
            1,
        ),
    }


MODELS = list(models(torch))
# What is called otherwise here.
SAID = (("torch.fx._symbolic_trace.wrap", "torch.fx.wrap"),)


def said(text: object) -> str:
    out = str(text)
    for theirs, ours in SAID:
        out = out.replace(theirs, ours)
    return out


def traced(lib: Any, name: str) -> Any:
    model, concrete, _ = models(lib)[name]
    return lib.fx.symbolic_trace(model, concrete_args=concrete or None)


def values(tree: Any) -> Any:
    if isinstance(tree, (torch.Tensor, webtorch.Tensor)):
        return tree.tolist()
    if isinstance(tree, dict):
        return {k: values(v) for k, v in tree.items()}
    return [values(x) for x in tree] if isinstance(tree, (tuple, list)) else tree


def test_operands_in_a_list_are_arguments_of_einsum() -> None:
    def args(lib: Any) -> list[str]:
        graph = lib.fx.symbolic_trace(lambda x, y: lib.einsum("i,i->", [x, y])).graph
        return [str(node.args) for node in graph.nodes]

    assert args(webtorch) == args(torch)


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_prints_as_pytorch_prints_it(name: str) -> None:
    theirs, ours = (traced(lib, name) for lib in LIBS)
    assert str(ours.graph) == said(theirs.graph)
    assert ours.code == said(theirs.code)
    assert str(ours) == said(theirs)
    theirs_readable, ours_readable = (m.print_readable(print_output=False) for m in (theirs, ours))
    assert ours_readable == said(theirs_readable)


@pytest.mark.parametrize("name", MODELS)
def test_a_traced_module_gives_what_the_module_gives(name: str) -> None:
    results = []
    for lib in LIBS:
        model, _, count = models(lib)[name]
        module = traced(lib, name)
        x = lib.arange(6.0).view(2, 3) - 2
        given = [x, x.flip(0)][:count] if count else [{"a": x, "b": [x + 1]}]
        # Placeholders of constants are given them again.
        given += [True, 3] if name == "specialised" else []
        expected = values(model(*given))
        assert values(module(*given)) == expected
        if name not in ("operators", "nested"):
            assert values(lib.fx.Interpreter(module).run(*given)) == expected
        results.append(expected)
    leaves = [webtorch.utils._pytree.tree_leaves(r) for r in results]
    assert leaves[1] == pytest.approx(leaves[0])


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "unfold": lambda lib, x: lib.nn.functional.unfold(x, 2),
    "fft": lambda lib, x: lib.fft.fft(x),
    "norm": lambda lib, x: lib.linalg.vector_norm(x),
    "special": lambda lib, x: lib.special.zeta(x, x),
    "stack": lambda lib, x: lib.stack([x, x]),
    "type": lambda lib, x: lib.ones(2).type_as(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_node_is_named_as_pytorch_names_it(name: str) -> None:
    graphs = [lib.fx.symbolic_trace(_given(lib, FUNCTIONS[name])).graph for lib in LIBS]
    theirs, ours = ([n.name for n in graph.nodes] for graph in graphs)
    assert ours == theirs


def _given(lib: Any, function: Callable[[Any, Any], Any]) -> Any:
    return lambda x: function(lib, x)


def fails(what: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    return lambda lib: lib.fx.symbolic_trace(lambda x: what(lib, x))


ERRORS: dict[str, Callable[[Any], Any]] = {
    "control flow": fails(lambda lib, x: 1 if x.sum() > 0 else 2),
    "iteration": fails(lambda lib, x: list(x)),
    "stars": fails(lambda lib, x: lib.cat(*x)),
    "keywords": fails(lambda lib, x: dict(**x)),
    "item": fails(lambda lib, x: operator.setitem(x, 0, 1)),
    "int": fails(lambda lib, x: range(x)),
    "key": fails(lambda lib, x: lib.relu({x: 1})),
    "object": fails(lambda lib, x: x + object()),
    "wrap": lambda lib: lib.fx.wrap("f"),
    "wrapped number": lambda lib: lib.fx.wrap(3),
    "no callable": lambda lib: lib.fx.Graph().call_function("f"),
    "no name": lambda lib: lib.fx.Graph().call_module(3),
    "immutable": lambda lib: (
        lib.fx.Graph().call_function(operator.add, ([1, 2], 3)).args[0].append(3)
    ),
    "root": lambda lib: lib.fx.GraphModule({}, _looks(lib)),
    "root type": lambda lib: lib.fx.GraphModule(3, _looks(lib)),
    "used": lambda lib: _erase_used(lib),
    "order": lambda lib: _out_of_order(lib).lint(),
    "foreign": lambda lib: _foreign(lib).lint(),
    "find": lambda lib: lib.fx.Graph().find_nodes(op="call_function"),
    "parameters": lambda lib: lib.fx.Interpreter(_gm(lib)).run(),
    "attribute": lambda lib: lib.fx.Interpreter(_broken(lib)).run(lib.ones(2)),
    "not a member": lambda lib: lib.fx.symbolic_trace(_outside(lib)),
}


def _outside(lib: Any) -> Any:
    p = lib.nn.Parameter(lib.ones(1))
    return lambda x: x + p


def _gm(lib: Any) -> Any:
    return lib.fx.symbolic_trace(lambda x: lib.relu(x) + 1)


def _looks(lib: Any) -> Any:
    graph = lib.fx.Graph()
    graph.output(graph.get_attr("a.b"))
    return graph


def _erase_used(lib: Any) -> None:
    graph = _gm(lib).graph
    graph.erase_node(next(iter(graph.nodes)))


def _out_of_order(lib: Any) -> Any:
    graph = _gm(lib).graph
    x, relu, *_ = graph.nodes
    relu.append(x)
    return graph


def _foreign(lib: Any) -> Any:
    graph, other = _gm(lib).graph, _gm(lib).graph
    list(graph.nodes)[1].args = (next(iter(other.nodes)),)
    return graph


def _broken(lib: Any) -> Any:
    module = _gm(lib)
    graph = module.graph
    with graph.inserting_before(list(graph.nodes)[1]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph.get_attr("missing")
    return module


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_pytorch_says(name: str) -> None:
    caught = []
    for lib in LIBS:
        with pytest.raises(Exception) as info, contextlib.suppress(SystemExit):
            ERRORS[name](lib)
        caught.append(info.value)
    theirs, ours = caught
    assert type(ours).__name__ == type(theirs).__name__
    # PyTorch's advice on its own log files comes last there.
    expected = str(theirs).partition("\nUse tlparse")[0].partition(" at 0x")[0]
    assert str(ours).partition(" at 0x")[0] == said(expected)


def edits(lib: Any) -> list[str]:
    """A graph after each of some changes, as text."""
    module = _gm(lib)
    graph, seen = module.graph, []

    def show() -> None:
        graph.lint()
        module.recompile()
        seen.append(str(graph) + module.code)

    x, relu, add, out = graph.nodes
    with graph.inserting_after(relu):
        neg = graph.call_function(lib.neg, (relu,))
    show()
    relu.replace_all_uses_with(neg, delete_user_cb=lambda n: n is not neg)
    show()
    with graph.inserting_before(add):
        graph.call_method("sigmoid", (neg,), {})
        named = graph.call_function(lib.relu, (neg,), name="relu_5")
    add.update_arg(1, named)
    add.update_kwarg("alpha", 2)
    show()
    seen.append(str(graph.eliminate_dead_code()) + str(graph.eliminate_dead_code()))
    show()
    add.kwargs = {}
    named.replace_input_with(neg, x)
    show()
    add.insert_arg(0, x)
    seen.append(str((add.args, add.all_input_nodes, x.users, add.format_node())))
    add.args = (x, named)
    out.prepend(named)
    seen.append(str([list(graph.nodes), list(reversed(graph.nodes)), len(graph.nodes)]))
    add.prepend(named)
    graph.erase_node(neg)
    graph.erase_node(relu)
    show()
    seen.append(str([graph.find_nodes(op="call_function", target=lib.relu), x.next, x.prev.op]))
    other = lib.fx.Graph()
    other.output(other.graph_copy(graph, {}))
    seen.append(str(other))
    seen.append(str(sorted([add, x, out, named])))
    return seen


def test_a_graph_is_changed_as_pytorchs_is() -> None:
    theirs, ours = map(edits, LIBS)
    assert ours == [said(text) for text in theirs]


def rewritten(lib: Any) -> list[str]:
    nn = lib.nn

    class Two(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, a: Any, b: Any) -> Any:
            first = lib.cat([a, b]).sum()
            second = lib.cat([a, b]).sum()
            return x + lib.max(first) + lib.max(second), lib.neg(x).relu()

    out = []
    pairs = [
        (lambda a, b: lib.cat([a, b]), lambda a, b: lib.stack([a, b])),
        (lambda x, y: x + lib.max(y), lambda x, y: lib.maximum(x, y).tanh()),
        (lambda x: lib.neg(x).relu(), lambda x: lib.sigmoid(x)),
        (lambda x: lib.abs(x), lambda x: x),
    ]
    for pattern, replacement in pairs:
        module = lib.fx.symbolic_trace(Two())
        found = lib.fx.replace_pattern(module, pattern, replacement)
        module.graph.lint()
        places = [(str(m.anchor), str(m.nodes_map)) for m in found]
        out.append(f"{module.code}{places}")
    return out


def test_patterns_are_replaced_as_pytorch_replaces_them() -> None:
    theirs, ours = map(rewritten, LIBS)
    assert ours == theirs


def test_a_transformer_makes_the_graph_that_pytorchs_makes() -> None:
    texts = []
    for lib in LIBS:

        class Swap(lib.fx.Transformer):  # type: ignore[misc,name-defined]
            lib: Any

            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                if target is self.lib.relu:
                    return self.lib.sigmoid(*args, **kwargs) * 2
                return super().call_function(target, args, kwargs)

            def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
                return args[0].cos() if target == "sin" else super().call_method(target, args, {})

        Swap.lib = lib
        module = lib.fx.symbolic_trace(_function(lib))
        texts.append(Swap(module).transform().code)
    assert texts[1] == texts[0]


def _function(lib: Any) -> Any:
    return lambda x, y=1: lib.relu(x.sin().exp()) + y


def test_a_tracer_says_what_is_a_leaf() -> None:
    texts = []
    for lib in LIBS:

        class Leaves(lib.fx.Tracer):  # type: ignore[misc,name-defined]
            def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
                return module_qualified_name.count(".") == 1

        model = models(lib)["nested"][0]
        tracer = Leaves()
        graph = tracer.trace(model, {"mask": None})
        scopes = {
            k: (path, kind and kind.__name__)
            for k, (path, kind) in tracer.node_name_to_scope.items()
        }
        stacks = [list(n.meta.get("nn_module_stack", ())) for n in graph.nodes]
        texts.append(f"{graph}{scopes}{stacks}")
    assert texts[1] == texts[0]


def test_shapes_are_noted_as_pytorch_notes_them() -> None:
    from torch.fx.passes.shape_prop import ShapeProp as Theirs

    from webtorch.fx.passes.shape_prop import ShapeProp as Ours

    noted = []
    for lib, prop in zip(LIBS, (Theirs, Ours)):
        module = traced(lib, "block")
        prop(module).propagate(lib.ones(2, 3))
        noted.append([(n.name, str(n.meta.get("tensor_meta"))) for n in module.graph.nodes])
        noted[-1].append(("code", module.print_readable(print_output=False)))
    assert noted[1] == noted[0]
