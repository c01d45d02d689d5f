"""The order of rooms: an import only points down. Read from the source text, so no device and no package is needed."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The rooms of the package, from the ground up: an import goes to a line further up in this list, wherever it stands,
# or stays in its room. This is where the order is written.
ORDER = (
    "errors version show",
    "ir dispatch",
    "ops jit multiprocessing",
    "lower",
    "runtime",
    "tensors",
    "scripts",
    "functions debug futures",
    "distributed",
    "autograd amp backends data fft linalg overrides profiler quasirandom random signal sparse special testing types "
    "webgpu",
    "nn accelerator cuda",
    "aten",
    "masked utils",
    "optim distributions func quantization",
    "distributed.fsdp distributed.tensor.experimental",
    "capture _higher_order_ops",
    "compiler io onnx pytorch",
    "distributed.checkpoint",
    "fx",
    "as_torch",
    "web",
    "llm",
    "cli",
    "__main__",
)
LEVELS = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}
# (importing file, imported module) -> why the import waits until it is needed. They point down like all others.
LATE = {
    ("as_torch.names.operators", "as_torch.names.torchvision_operators"): "start-up: few programs use torchvision",
    ("as_torch.names.operators", "distributed.counting"): "start-up: few programs count collectives",
    ("cli.serve_llm", "llm.server"): "optional package: starlette",
    ("data.loader", "data.processes"): "start-up, and a page has no processes",
    ("debug", "runtime.backends.cpu.memory"): "optional package: NumPy",
    ("debug", "runtime.backends.cpu.plain"): "optional package: NumPy",
    ("onnx", "onnx.recording"): "optional package: onnx",
    ("pytorch.guard", "runtime.backends.cpu.jit"): "optional packages: NumPy and llvmlite",
    ("pytorch.nativenodes", "runtime.backends.cpu.slots"): "optional packages: NumPy and llvmlite",
    ("runtime.backends.webgpu.device", "lower.wgsl"): "start-up: programs kept on disk have their text",
    ("runtime.backends.webgpu.loop", "runtime.backends.cpu.jit"): "optional packages: NumPy and numba",
    ("web.export", "pytorch.export"): "optional package: PyTorch",
}  # fmt: skip
# What entries and primitives are typed with, and never see: floor 4 gives them their functions.
NAMED_FROM_BELOW = ("tensors.tensor", "tensors.device", "tensors.promotion")
# Where other packages than the standard library may be imported at the top of a file.
OUTSIDE = (
    "runtime.backends.cpu", "runtime.backends.webgpu", "pytorch", "cli",
    # Entered by whoever has the packages onnx and tensorboard.
    "onnx.exporter", "onnx.importer", "onnx.model", "onnx.operators", "utils.tensorboard",
    # The same of starlette.
    "llm.server",
    # `python -m webtorch` is the command of webtorch_autoload.
    "__main__",
)  # fmt: skip
# Programs that talk to a person, and a table that prints itself when told to. Everything else
# reports through values, warnings and errors.
TALKING = (
    "cli",
    "__main__",
    "as_torch.names.collect_env",
    "as_torch.names.hub",
    "utils.benchmark.compare",
    "utils.flop_counter",
    "utils.tensorboard",
    "fx.graph",
    "fx.graph_module",
)


@dataclass(frozen=True)
class Import:
    """One import: which module imports what, and where it stands."""

    module: str
    target: str
    line: int
    where: str  # "top", "function" or "typing"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target} ({self.where})"


def _files(package: str) -> dict[str, Path]:
    out = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        out[name.removesuffix(".__init__")] = path
    return out


FILES = _files("webtorch")
# What `import torch` loads, beside the package.
BESIDE = _files("webtorch_autoload")


@dataclass(frozen=True)
class Facts:
    """What is asked of a file. Its tree is not kept: those of all files are 250 MB."""

    imports: list[Import]
    doc: str
    # Lines that print.
    prints: list[int]


@functools.cache
def facts() -> dict[str, Facts]:
    """Return what is asked of each file of the package: when a test asks, not when tests are collected."""
    return {name: _facts(name, path) for name, path in FILES.items()}


def _facts(name: str, path: Path) -> Facts:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    # Most files have none of these words: their trees are gone through once less.
    suspect = any(word in text for word in ("print", "stdout"))
    prints = [
        node.lineno
        for node in (ast.walk(tree) if suspect else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, (ast.Name, ast.Attribute))
        and ast.unparse(node.func) in ("print", "sys.stdout.write", "pprint.pprint")
    ]
    return Facts(list(imports(name, tree)), ast.get_docstring(tree) or "", prints)


def imports(module: str, tree: ast.Module) -> Iterator[Import]:
    """Give every import of a file, also those inside functions and for type checkers only."""

    def visit(node: ast.AST, where: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # An import is a statement.
            inner = where
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = "function"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                inner = "typing"
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, where)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}:{child.lineno}: a relative import"
                for alias in child.names:
                    # `from package import module` imports the module.
                    whole = f"{child.module}.{alias.name}"
                    target = whole if whole in FILES or whole in BESIDE else str(child.module)
                    yield Import(module, target, child.lineno, where)
            yield from visit(child, inner)

    yield from visit(tree, "top")


def every_import() -> list[Import]:
    """Return the imports of all files."""
    return [i for found in facts().values() for i in found.imports]


def imports_beside() -> list[Import]:
    """Return the imports of the files beside the package."""
    return [
        i
        for name, path in BESIDE.items()
        for i in imports(name, ast.parse(path.read_text(encoding="utf-8")))
    ]


def room(module: str) -> str:
    """Return the longest name below the package that has a place in the order, else the first one, or ""."""
    parts = module.split(".")[1:]
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in names if name in LEVELS), parts[0] if parts else "")


def below(module: str, parts: tuple[str, ...]) -> bool:
    """Return whether a module is one of some parts of the package, or inside one."""
    name = module.removeprefix("webtorch.")
    return any(name == p or name.startswith(f"{p}.") for p in parts)


def inside() -> list[Import]:
    """Return the imports of the package by itself, its own names' apart: nothing stands on those."""
    own = [i for i in every_import() if i.target.partition(".")[0] == "webtorch"]
    return [i for i in own if i.module != "webtorch"]


def points_up(i: Import) -> bool:
    """Whether an import goes to a room that is not below its own."""
    here, there = room(i.module), room(i.target)
    return here != there and LEVELS[there] >= LEVELS[here]


def test_every_room_has_a_place_in_the_order() -> None:
    wrong = sorted({room(name) for name in FILES} - LEVELS.keys() - {""})
    assert not wrong, f"where do these stand? {wrong}"


def test_nobody_imports_the_package_itself() -> None:
    # Its names are loaded on demand from the rooms; `functions.public` holds those of tensors.
    wrong = [str(i) for i in inside() if not room(i.target)]
    assert not wrong, "\n".join(wrong)


def test_imports_point_down() -> None:
    wrong = [
        str(i)
        for i in inside()
        if room(i.target)
        and points_up(i)
        and not (
            i.where == "typing" and room(i.module) == "ops" and below(i.target, NAMED_FROM_BELOW)
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_files_import_each_other_in_no_circle() -> None:
    # What only a type checker reads is left out: it is never run, so it cannot be a circle.
    graph: dict[str, set[str]] = {name: set() for name in FILES | BESIDE}
    for i in every_import() + imports_beside():
        if i.where != "typing" and i.module != "webtorch":
            target = i.target
            while target and target not in graph:
                target = target.rpartition(".")[0]
            graph[i.module] |= {target} - {i.module, ""}
    # Files whose imports are all gone go, until none does: what is left stands in circles.
    left = dict(graph)
    while gone := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in gone:
            del left[name]
    assert not left, {name: sorted(targets & left.keys()) for name, targets in left.items()}


def test_what_import_torch_loads_imports_nothing_of_the_package() -> None:
    wrong = [str(i) for i in imports_beside() if i.target.partition(".")[0] == "webtorch"]
    assert not wrong, "\n".join(wrong)


def test_late_imports_are_few_and_have_reasons() -> None:
    found = {
        (i.module.partition(".")[2], i.target.partition(".")[2])
        for i in inside()
        if i.where == "function"
    }
    assert found == LATE.keys(), found ^ LATE.keys()


def test_backends_are_imported_by_name_only() -> None:
    inside = "webtorch.runtime.backends."
    wrong = [
        str(i)
        for i in every_import()
        if i.target.startswith(inside)
        and not i.module.startswith("webtorch.runtime.backends")
        # The self-test and the CPU bridge to PyTorch are about one backend each.
        and not below(i.module, ("pytorch", "debug", "cli"))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_backends_bridges_and_programs_import_other_packages() -> None:
    wrong = [
        str(i)
        for i in every_import()
        if i.where == "top"
        and i.target.partition(".")[0] not in {*sys.stdlib_module_names, "webtorch"}
        and not below(i.module, OUTSIDE)
    ]
    assert not wrong, "\n".join(wrong)


def test_library_code_prints_nothing() -> None:
    wrong = [
        f"{name}:{line}"
        for name, found in facts().items()
        if not below(name, TALKING)
        for line in found.prints
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_says_what_it_is_for() -> None:
    wrong = [name for name, found in facts().items() if len(found.doc) < 20]
    assert not wrong, "\n".join(wrong)


def test_the_check_itself_sees_what_it_must() -> None:
    source = """
import numpy
from webtorch import runtime
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor
def f():
    from webtorch.nn import module
    def g():
        import wgpu.backends
"""
    found = [(i.target, i.where) for i in imports("webtorch.ops.sample", ast.parse(source))]
    assert found == [
        ("numpy", "top"),
        ("webtorch.runtime", "top"),
        ("typing", "top"),
        ("webtorch.tensors.tensor", "typing"),
        ("webtorch.nn.module", "function"),
        ("wgpu.backends", "function"),
    ]
    up, down = "webtorch.nn.module", "webtorch.runtime"
    assert points_up(Import(down, up, 1, "function"))
    assert not points_up(Import(up, down, 1, "function"))
    assert points_up(Import("webtorch.optim.sgd", "webtorch.func", 1, "top"))
