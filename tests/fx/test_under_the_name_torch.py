"""Programs that import torch.fx and its modules find webtorch's under that name."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import webtorch
webtorch.install_as_torch()
import torch
import torch.fx
from torch import fx, nn
from torch.fx import Graph, GraphModule, Interpreter, Node, Proxy, Tracer, replace_pattern, symbolic_trace
from torch.fx._compatibility import compatibility
from torch.fx._symbolic_trace import is_fx_tracing
from torch.fx.experimental.optimization import fuse
from torch.fx.graph_module import _CodeOnlyModule, _copy_attr
from torch.fx.immutable_collections import immutable_list
from torch.fx.node import Target, map_arg
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.proxy import ParameterProxy, TraceError
from torch.fx.subgraph_rewriter import Match
from torch.utils._pytree import tree_map

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    def forward(self, x):
        assert is_fx_tracing()
        return torch.flatten(self.layers(x), 1)

module = symbolic_trace(Net())
assert isinstance(module, torch.fx.GraphModule) and not is_fx_tracing()
print(*(n.name for n in module.graph.nodes))
print(module(torch.ones(2, 3)).shape)
"""


def test_a_program_finds_the_modules_of_fx() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "x layers_0 layers_1 flatten output",
        "torch.Size([2, 3])",
    ]


EXPORTING = """
import webtorch
webtorch.install_as_torch()
import torch
from torch.export import Dim, ExportedProgram, export
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=({0: Dim("batch")},))
assert torch.export.export is export and isinstance(program, ExportedProgram)
assert torch.ops.aten.linear.default in [n.target for n in program.graph.nodes]
with FlopCounterMode(display=False) as counter:
    assert program.module()(torch.ones(7, 3)).shape == (7, 2)
print(counter.get_total_flops())
"""


def test_a_program_exports_and_counts() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", EXPORTING], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "84\n"
