"""Chromium's compiler accepts the kernels of the op table; routines with their own give PyTorch's numbers.

All programs go to one page, so that the browser starts once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import webtorch
from tests.ops import table
from tests.web.recorded import Case, values
from webtorch.io.safetensors import RawTensor, save_file
from webtorch.web import export
from webtorch.web.export import export_pending

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

OURS = SimpleNamespace(t=webtorch, F=webtorch.nn.functional)
THEIRS = SimpleNamespace(t=torch, F=torch.nn.functional)
# What the generated tests of the table do not reach: routines with kernels of their own. Each takes
# the library and tensors of the given shapes ("i5" stands for integers below 5), and is
# differentiated too.
MORE: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matmul": (lambda l, a, b: a @ b, [(33, 70), (70, 21)]),
    "matmul of transposed": (lambda l, a, b: a.t() @ b.t(), [(40, 30), (50, 40)]),
    "bmm": (lambda l, a, b: l.t.bmm(a, b), [(3, 9, 17), (3, 17, 5)]),
    "a long product": (lambda l, a, b: a @ b, [(4, 2000), (2000, 4)]),
    "linear": (lambda l, x, w, b: l.F.linear(x, w, b), [(10, 20), (30, 20), (30,)]),
    "layers of one input": (
        lambda l, x, a, b, c: l.t.cat([l.F.linear(x, a), l.F.linear(x, b, c)], 1), [(40, 64), (64, 64), (16, 64), (16,)]
    ),
    "layers of one row": (
        lambda l, x, a, b: l.t.cat([l.F.linear(x, a), l.F.linear(x, b)], 1), [(1, 64), (64, 64), (16, 64)]
    ),
    "a gate of one row": (
        lambda l, x, a, b: l.F.silu(l.F.linear(x, a)) * l.F.linear(x, b), [(1, 64), (96, 64), (96, 64)]
    ),
    "conv2d": (lambda l, x, w, b: l.F.conv2d(x, w, b, stride=2, padding=1), [(2, 3, 11, 9), (4, 3, 3, 3), (4,)]),
    "conv_transpose2d": (lambda l, x, w: l.F.conv_transpose2d(x, w, stride=2), [(2, 3, 5, 4), (3, 2, 3, 3)]),
    "max_pool2d": (lambda l, x: l.F.max_pool2d(x, 2), [(2, 3, 8, 6)]),
    "avg_pool2d": (lambda l, x: l.F.avg_pool2d(x, 3, 2, 1), [(2, 3, 8, 6)]),
    "layer_norm": (lambda l, x, w, b: l.F.layer_norm(x, (20,), w, b), [(7, 20), (20,), (20,)]),
    "softmax": (lambda l, x: l.F.softmax(x, 1), [(6, 300)]),
    "cross_entropy": (lambda l, x, y: l.F.cross_entropy(x, y), [(9, 5), "i5"]),
    "embedding": (lambda l, w, i: l.F.embedding(i, w), [(5, 8), "i5"]),
    "gather": (lambda l, x, i: l.t.gather(x, 0, i.reshape(3, 3)), [(5, 3), "i5"]),
    "index_add": (lambda l, x, i, v: l.t.index_add(x, 0, i, v), [(5, 4), "i5", (9, 4)]),
    "advanced index": (lambda l, x, i: x[:, i], [(4, 5), "i5"]),
    "cumsum": (lambda l, x: l.t.cumsum(x, 1), [(3, 1500)]),
    "sort": (lambda l, x: l.t.sort(x, dim=1, stable=True).values, [(4, 100)]),
    "attention": (lambda l, q, k, v: l.F.scaled_dot_product_attention(q, k, v, is_causal=True), [(2, 2, 12, 8)] * 3),
    "interpolate": (lambda l, x: l.F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 2, 5, 4)]),
    "cat and pad": (lambda l, a, b: l.F.pad(l.t.cat([a, b], 1), (1, 2)), [(3, 4), (3, 2)]),
    "a big sum": (lambda l, x: (x * x).sum(), [(300_000,)]),
}  # fmt: skip

# Those that run with the kernels for graphics cards, with a name of what they are there.
ON_CARDS = {"layers of one input": "_x2", "layers of one row": "_x2", "a gate of one row": "_and_"}


def _more(name: str) -> list[Case]:
    function, shapes = MORE[name]
    generator = torch.Generator().manual_seed(len(name))
    theirs, ours = [], []
    for shape in shapes:
        if isinstance(shape, str):
            base = torch.randint(0, int(shape[1:]), (9,), generator=generator)
            theirs.append(base)
            ours.append(webtorch.tensor(base.tolist()))
            continue
        # Rounded, so that the numbers are the same in both types.
        base = (torch.randn(shape, generator=generator) * 256).round() / 256
        theirs.append(base.double().requires_grad_())
        ours.append(webtorch.tensor(base.tolist(), requires_grad=True))
    expected, mine = function(THEIRS, *theirs), function(OURS, *ours)
    out: list[Case] = [(name, mine.detach(), expected.detach())]
    weights = torch.rand(expected.shape, generator=generator)
    leaves = [(a, b) for a, b in zip(ours, theirs, strict=True) if b.requires_grad]
    g_mine = webtorch.autograd.grad(
        (mine * webtorch.tensor(weights.tolist())).sum(), [a for a, _ in leaves]
    )
    g_theirs = torch.autograd.grad((expected * weights).sum(), [b for _, b in leaves])
    out += [(f"gradient of {name}", a, b) for a, b in zip(g_mine, g_theirs, strict=True)]
    return out


class _Batch:
    """Programs on their way into one page."""

    def __init__(self, runs: bool) -> None:
        self.runs = runs
        self.programs: list[dict[str, Any]] = []
        self.tensors: dict[str, RawTensor] = {}
        self.cases: dict[str, list[Case]] = {}

    def add(self, name: str, cases: list[Case]) -> None:
        """Export what `cases` compute, in one program."""
        if not cases:
            return
        exported = export_pending([mine for _, mine, _ in cases])
        # Run with the kernels for software adapters, as a page does here; compiled with those for graphics
        # cards, which the test page runs.
        software = self.runs and name not in ON_CARDS
        program = {**exported.program, **exported.software} if software else exported.program
        self.programs.append({"name": name, "program": program})
        self.tensors.update({f"{name}/{k}": v for k, v in exported.weights.items()})
        self.cases[name] = cases

    def write(self, folder: Path) -> None:
        (folder / "list.json").write_text(json.dumps(self.programs))
        save_file(self.tensors, folder / "list.safetensors")
        shutil.copyfile(Path(export.__file__).parent / "runtime.js", folder / "runtime.js")
        shutil.copyfile(Path(__file__).parent / "check.js", folder / "check.js")


RUN = """async () => {
  const { files, run } = await import("./check.js");
  const { programs, tensors } = await files();
  return run(programs, tensors);
}"""
COMPILE = """async () => {
  const { compile, files } = await import("./check.js");
  return compile((await files()).programs);
}"""


@pytest.mark.long
@pytest.mark.covers("Q1")
def test_routines_with_kernels_of_their_own_give_pytorchs_numbers(page, serve, tmp_path):
    batch = _Batch(runs=True)
    for name in MORE:
        batch.add(name, _more(name))
    for one in batch.programs:
        names = [kernel["name"] for kernel in one["program"]["kernels"]]
        assert any(ON_CARDS.get(one["name"], "") in name for name in names), names
    batch.write(tmp_path)
    page.page.goto(serve(tmp_path) + "blank")
    found = page.run(RUN)
    wrong = []
    for name, cases in batch.cases.items():
        if "error" in found[name]:
            wrong.append(f"{name}: {found[name]['error']}")
            continue
        for i, (note, mine, expected) in enumerate(cases):
            numbers = found[name]["outputs"][str(i)]
            problem = _difference(note, mine, numbers, expected)
            if problem:
                wrong.append(problem)
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)
    assert page.problems == []


def _difference(note: str, mine: Any, numbers: list[float], expected: Any) -> str:
    """Compare with four times the table's tolerances: these are several operations."""
    actual = torch.tensor(numbers, dtype=torch.float64).reshape(tuple(mine.shape))
    wanted = expected.detach().double()
    finite = wanted[wanted.isfinite()].abs()
    scale = max(1.0, min(float(finite.max()), 1000.0)) if finite.numel() else 1.0
    rtol, atol = 4 * table.RTOL["float32"], 4 * table.ATOL["float32"] * scale
    try:
        torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return f"{note}: {' '.join(str(error).split())}"
    return ""


@pytest.mark.long
def test_chromium_accepts_every_generated_kernel_of_the_other_types(page, serve, tmp_path):
    batch = _Batch(runs=False)
    for op in table.tested():
        for dtype in (
            webtorch.int64,
            webtorch.bool,
            webtorch.bfloat16,
            webtorch.float16,
            webtorch.uint8,
            webtorch.int8,
        ):
            if dtype in op.dtypes:
                batch.add(f"{op.name} {dtype.name}", values(op, dtype, ("contiguous",), 1))
    batch.write(tmp_path)
    page.page.goto(serve(tmp_path) + "blank")
    found = page.run(COMPILE)
    assert found["count"] > 300
    complaints = [
        f"{f['name']}: {f['kernel']}: {f['messages']}\n{f['code']}" for f in found["found"]
    ]
    assert not complaints, f"{len(complaints)} refused:\n" + "\n\n".join(complaints[:5])
