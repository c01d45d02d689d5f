"""The core needs Python alone: as in a page, where no NumPy, wgpu, torch or rich exists.

Building, differentiating, capturing and lowering a graph to WGSL runs in a process in which those
packages cannot be imported.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = ("numpy", "wgpu", "wgpudawn", "torch", "rich", "numba", "sklearn", "safetensors", "cffi")

PRELUDE = f"""
import sys

class Blocker:
    names = {BLOCKED!r}
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            self.asked.append(name)
            raise ImportError(f"{{name}} is blocked")

blocker = Blocker()
sys.meta_path.insert(0, blocker)
"""

# A device that takes bytes and programs and computes nothing.
NULL_DEVICE = """
import webtorch as torch
from webtorch.ir.dtype import ALL
from webtorch.runtime import realize
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl import render
from webtorch.tensors.device import resolve

class Buffer:
    def __init__(self, dtype, elements, data=None):
        self.dtype, self.elements, self.nbytes, self.data = dtype, elements, elements * dtype.itemsize, data

class Executable:
    reuses = tells = False
    prepare = None

    def __init__(self, program):
        self.program = program

    def run(self, inputs, args):
        assert len(inputs) == len(self.program.inputs) and len(args) == len(self.program.args)
        place = dict(zip(self.program.inputs, inputs))
        out = []
        for number in self.program.outputs:
            declared = self.program.buffers[number]
            taken = declared.alias if declared.role == "output" else None
            shared = number if declared.role == "input" else taken
            fresh = Buffer(declared.dtype, declared.elements, bytes(declared.elements * declared.dtype.itemsize))
            out.append(place.get(shared, fresh))
        return out

class NullBackend:
    def kept_key(self):
        return None

    name, index = "webgpu", 0
    limits = Limits(128 << 20, 6, 256, 65535, 16384, False, True)
    bounds = {d: -1 for d in ALL if not d.webgpu}
    programs = []
    stops = reads_parts = False
    waited = 0
    singles = interpret = None

    def description(self):
        return "nothing"

    def allocate(self, dtype, elements):
        return Buffer(dtype, elements, bytes(elements * dtype.itemsize))

    def upload(self, data, dtype, elements):
        data = bytes(data)
        assert len(data) == elements * dtype.itemsize
        return Buffer(dtype, elements, data)

    def download(self, buffer, into=None):
        return buffer.data

    def compile(self, program):
        for routine in program.routines:
            for part in render(routine, self.limits, "dawn"):
                assert "@compute" in part.source and part.source.count("{") == part.source.count("}")
        self.programs.append(program)
        return Executable(program)

    has_failed = False

    def synchronize(self):
        pass

backend = NullBackend()
realize._RUNTIMES["webgpu", 0, "webgpu"] = realize.Runtime(backend)
torch.set_default_device("webgpu:0")
"""


def _run(script: str) -> str:
    code = PRELUDE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PACKAGES = [
    "webtorch.ir.program",
    "webtorch.ops",
    "webtorch.lower.wgsl",
    "webtorch.lower.compiler",
    "webtorch.runtime.realize",
    "webtorch.tensors",
    "webtorch.nn",
    "webtorch.optim",
    "webtorch.capture",
    "webtorch.io",
    "webtorch.web",
    "webtorch",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_imports_without_any_other_package(name):
    out = _run(
        f"import {name}, sys; print(sorted(set(blocker.names) & set(sys.modules)), blocker.asked)"
    )
    assert out.strip() == "[] []"


def test_importing_opens_no_device():
    out = _run(
        "import webtorch; from webtorch.runtime.realize import open_runtimes; print(open_runtimes())"
    )
    assert out.strip() == "[]"


@pytest.mark.covers("Q5")
def test_a_training_step_is_built_differentiated_captured_and_lowered_to_wgsl():
    script = NULL_DEVICE + textwrap.dedent("""
    from webtorch import nn
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    @torch.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    for _ in range(3):
        loss = step(x, y)
    print(loss.item(), len(step.program().steps), len(backend.programs))
    """)
    value, steps, programs = _run(script).split()
    assert value == "0.0" and int(steps) > 5 and int(programs) >= 2


def test_convolutions_attention_and_indexing_lower_too():
    _run(
        NULL_DEVICE
        + textwrap.dedent("""
    from webtorch import nn
    F = nn.functional
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    (F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2).sum() + x[:, 1].cumsum(1).mean()).backward()
    q = torch.randn(1, 2, 6, 4, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    e = torch.randn(10, 4, requires_grad=True)
    F.embedding(torch.tensor([1, 2, 3]), e).sum().backward()
    half = torch.ones(5, dtype=torch.bfloat16) * 2
    torch.realize(x.grad, w.grad, q.grad, e.grad, half)
    print(len(backend.programs))
    """)
    )


def test_a_captured_step_is_exported_as_a_folder(tmp_path):
    script = NULL_DEVICE + textwrap.dedent(f"""
    w = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5)

    @torch.compile
    def step(x):
        optimizer.zero_grad()
        loss = (w - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step(torch.ones(3))
    torch.export(step, {str(tmp_path)!r})
    """)
    _run(script)
    assert {p.name for p in tmp_path.iterdir()} == {
        "index.html", "native.json", "page.css", "page.js", "program.json", "runtime.d.ts", "runtime.js",
        "software.json", "weights.safetensors", "widgets.js",
    }  # fmt: skip
