"""What a function under `torch.compile(backend="webgpu")` tells of itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from webtorch.pytorch import explain
from webtorch.pytorch.origin import plain, shown

SIZE = (
    "argument `x` changed size of dimension 0 from 4 to 5: torch._dynamo.mark_dynamic(x, 0) before the call, "
    "or torch.compile(dynamic=True), lets one graph serve every size"
)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def test_reasons_of_graphs_and_programs() -> None:
    def scaled(x: Any, n: int = 2) -> Any:
        return x.sin() * n

    compiled = torch.compile(scaled, backend="webgpu")
    with pytest.raises(RuntimeError, match="scaled has no programs for webgpu yet"):
        explain(compiled)
    for x in (torch.ones(4, 6), torch.ones(4, 6), torch.ones(5, 6)):
        compiled(x.to("webgpu"))
    compiled(torch.ones(5, 6, device="webgpu"), 3)
    explained = explain(compiled)
    assert [(c.what.rpartition(".")[2], c.reason) for c in explained.compilations] == [
        ("scaled", "the first call"),
        ("scaled, graph 2", SIZE),
        ("scaled, graph 3", "the guard `n == 2` does not hold any more"),
    ]
    assert len(explained.graphs) == 3


def test_a_graph_for_all_sizes_tells_of_each_size() -> None:
    compiled = torch.compile(lambda x: x.cos() + 1, backend="webgpu", dynamic=True)
    for n in (5, 7, 7):
        compiled(torch.ones(n, 3, device="webgpu"))
    first, second = (c.reason for c in explain(compiled).compilations)
    assert first == "the first call"
    assert second.startswith("argument `x` changed shape from (5, 3) to (7, 3)")


def test_a_training_step_explains_both_of_its_passes() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Softmax(-1)).to("webgpu")
    compiled = torch.compile(module, backend="webgpu")
    compiled(torch.ones(3, 6, device="webgpu")).square().sum().backward()
    explained = explain(compiled)
    (graph,) = explained.graphs
    names = {h.name for h in graph.memory.buffers if h.role == "input"}
    assert {"0.weight", "0.bias"} <= names
    assert graph.why_apart(0, 1).startswith("what follows a product's sums in their registers")
    # What the backward pass is given is called after what gave it.
    assert graph.backward is not None
    given = {h.name for h in graph.backward.memory.buffers if h.role == "input"}
    assert given == {"args[0]", "softmax of 1 (saved)", "gradient of result 0"}
    backward = graph.backward
    assert backward is not None
    assert any("matmul" in r.name for r in backward.program.routines)
    text = str(explained)
    assert "Sequential: 2 programs compiled\n" in text
    assert "the backward pass of Sequential, program 2 (" in text
    assert "\nthe backward pass of Sequential on webgpu: " in text


def test_pieces_around_a_graph_break_belong_to_their_function() -> None:
    def broken(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.exp()

    compiled = torch.compile(broken, backend="webgpu")
    compiled(torch.ones(3, device="webgpu"))
    assert [g.program.routines[0].name for g in explain(compiled).graphs] == ["mul", "exp"]


def test_inputs_that_lie_otherwise_are_another_program_of_the_graph() -> None:
    """The trace does not guard by where a tensor begins in its memory."""
    compiled = torch.compile(lambda x: x + 1, backend="webgpu")
    base = torch.arange(9.0, device="webgpu")
    compiled(base[:4])
    compiled(base[3:7])
    reasons = [c.reason for c in explain(compiled).compilations]
    assert reasons == ["the first call", "argument `x` changed storage_offset from 0 to 3"]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5", SIZE),
        (
            "3/1_2: L['self']._modules['0'].training == True  # if self.training:  # a.py:3 in forward\nUser stack",
            "the guard `self.0.training == True` does not hold any more",
        ),
    ],
)
def test_guards_in_plain_words(reason: str, text: str) -> None:
    assert plain(reason) == text


def test_names_as_users_write_them() -> None:
    assert shown("L['self']._modules['l']._parameters['weight']") == "self.l.weight"
    assert shown("G['scale']") == "G['scale']"


def test_saved_values_are_called_after_the_operation_and_its_module() -> None:
    class Net(torch.nn.Module):
        """A norm by name, and a function that no module calls."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x: Any, y: Any) -> Any:
            return (self.norm(x).exp() * y).sum(), x.sin()

    compiled = torch.compile(Net().to("webgpu"), backend="webgpu")
    x = torch.ones(3, 4, device="webgpu", requires_grad=True)
    total, _ = compiled(x, torch.ones(3, 4, device="webgpu"))
    total.backward()
    (graph,) = explain(compiled).graphs
    assert graph.backward is not None
    given = {h.name for h in graph.backward.memory.buffers if h.role == "input"}
    assert {
        "self.norm.weight",
        "exp (saved)",
        "native_layer_norm of norm, result 1 (saved)",
    } <= given
    assert not any(n.startswith(("getitem", "primals", "tangents")) for n in given)
