"""The floors: an import only points down. Read from the source text, so no device and no package is needed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Part of the package -> floor. Names of the package itself (`from webtorch import Tensor`) are on the tensors' floor.
FLOORS = {
    "errors": 0, "ir": 0, "theme": 0, "ops": 1, "lower": 2, "runtime": 3, "tensors": 4, "functions": 5, "autograd": 6,
    "func": 6, "amp": 6, "cuda": 6, "nn": 6, "optim": 6, "data": 6, "capture": 6, "profiler": 6, "distributed": 6,
    "linalg": 6, "special": 6, "masked": 6, "signal": 6, "random": 6, "fft": 6, "webgpu": 6, "utils": 6, "debug": 6,
    "accelerator": 6, "backends": 6, "compiler": 6, "jit": 6, "overrides": 6, "testing": 6, "types": 6, "version": 6,
    "distributions": 6, "_higher_order_ops": 6,
    "multiprocessing": 6, "show": 7,
    "as_torch": 7, "onnx": 7, "pytorch": 7, "web": 7, "io": 7, "cli": 7, "demo": 7, "doctor": 7, "__main__": 7,
}  # fmt: skip
SURFACE = 6
# (importing file, imported module) inside functions -> why it may point up.
UPWARD_IN_FUNCTIONS = {
    ("tensors.tensor", "webtorch.functions.creation"): "scalars and new tensors of a tensor's own methods",
    ("tensors.tensor", "webtorch.functions.legacy"): "the old names of types",
    ("tensors.tensor", "webtorch.functions.show"): "what repr prints",
}  # fmt: skip
# Where other packages than the standard library may be imported at the top of a file.
OUTSIDE = (
    "runtime.backends.cpu", "runtime.backends.webgpu", "pytorch", "cli", "doctor", "demo",
    # Entered by whoever has the onnx package.
    "onnx.exporter", "onnx.importer", "onnx.operators",
)  # fmt: skip
# Programs that talk to a person, and a table that prints itself when told to. Everything else
# reports through values, warnings and errors.
TALKING = ("cli", "demo", "doctor", "__main__", "as_torch.program", "utils.benchmark.compare")


@dataclass(frozen=True)
class Import:
    """One import: which module imports what, and where it stands."""

    module: str
    target: str
    line: int
    where: str  # "top", "function" or "typing"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target} ({self.where})"


def _files() -> dict[str, Path]:
    out = {}
    for path in sorted((ROOT / "webtorch").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        out[name.removesuffix(".__init__")] = path
    return out


FILES = _files()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imports(module: str, tree: ast.Module) -> Iterator[Import]:
    """Give every import of a file, also those inside functions and for type checkers only."""

    def visit(node: ast.AST, where: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inner = where
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = "function"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = "typing"
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, where)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}:{child.lineno}: a relative import"
                for alias in child.names:
                    # `from package import module` imports the module.
                    whole = f"{child.module}.{alias.name}"
                    target = whole if whole in FILES else str(child.module)
                    yield Import(module, target, child.lineno, where)
            yield from visit(child, inner)

    yield from visit(tree, "top")


IMPORTS = [i for name, tree in TREES.items() for i in imports(name, tree)]


def part(module: str) -> str:
    """Return the first name below the package, or ""."""
    return module.partition(".")[2].partition(".")[0]


def floor(module: str) -> int:
    """Return the floor of a module of the package."""
    return FLOORS[part(module)] if part(module) else SURFACE


def below(module: str, parts: tuple[str, ...]) -> bool:
    """Return whether a module is one of some parts of the package, or inside one."""
    name = module.removeprefix("webtorch.")
    return any(name == p or name.startswith(f"{p}.") for p in parts)


def upward() -> list[Import]:
    """Return the imports that point up; the package's own surface may import everything."""
    own = [i for i in IMPORTS if i.target.partition(".")[0] == "webtorch" and i.where != "typing"]
    return [i for i in own if i.module != "webtorch" and floor(i.target) > floor(i.module)]


def _is_listed(i: Import) -> bool:
    return i.where == "function" and (i.module.partition(".")[2], i.target) in UPWARD_IN_FUNCTIONS


@pytest.mark.parametrize("name", FILES)
def test_every_part_has_a_floor(name: str) -> None:
    assert not part(name) or part(name) in FLOORS, f"{name}: which floor is {part(name)!r} on?"


def test_imports_point_down() -> None:
    wrong = [str(i) for i in upward() if not _is_listed(i)]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed() -> None:
    used_inside = {(i.module.partition(".")[2], i.target) for i in upward()}
    assert set(UPWARD_IN_FUNCTIONS) <= used_inside, set(UPWARD_IN_FUNCTIONS) - used_inside


def test_backends_are_imported_by_name_only() -> None:
    inside = "webtorch.runtime.backends."
    wrong = [
        str(i)
        for i in IMPORTS
        if i.target.startswith(inside)
        and not i.module.startswith("webtorch.runtime.backends")
        # The self-test and the CPU bridge to PyTorch are about one backend each.
        and not below(i.module, ("doctor", "pytorch", "debug", "demo", "cli"))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_backends_bridges_and_programs_import_other_packages() -> None:
    wrong = [
        str(i)
        for i in IMPORTS
        if i.where == "top"
        and i.target.partition(".")[0] not in {*sys.stdlib_module_names, "webtorch"}
        and not below(i.module, OUTSIDE)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [n for n in FILES if not below(n, TALKING)])
def test_library_code_prints_nothing(name: str) -> None:
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.stdout.write", "pprint.pprint"), (
                f"{name}:{node.lineno} prints"
            )


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_it_is_for(name: str) -> None:
    text = ast.get_docstring(TREES[name]) or ""
    assert len(text) >= 20, f"{name} opens without saying what it is for"


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
    assert floor("webtorch.nn.module") > floor("webtorch.runtime") > floor("webtorch.ops.sample")
