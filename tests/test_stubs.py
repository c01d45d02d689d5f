"""The stub files are what the entries say, and what they say is true: nobody edits them.

Their types are those of the entries' functions. A user's program is checked with them, and every public operation is
called: what it takes and gives is of the types that its stub tells.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import contextlib
import importlib
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from tools import stubs
from webtorch.cli.testpage import recording
from webtorch.ops.record import Op

ROOT = Path(__file__).resolve().parents[1]
FILES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "webtorch").rglob("*.pyi")}


@pytest.mark.covers("R10")
def test_the_stubs_follow_from_the_table() -> None:
    stale = [path.name for path, text in stubs.stubs().items() if path.read_text() != text]
    assert not stale, f"run: python tools/stubs.py ({', '.join(stale)})"


# -- no result is unknown ---------------------------------------------------------------------------------------------

# (file, function) -> why a stub says nothing of its result.
UNKNOWN: dict[tuple[str, str], str] = {}


def _unknown(node: ast.expr | None) -> bool:
    return node is None or any(
        isinstance(n, ast.Name) and n.id in ("Any", "_Any", "object") for n in ast.walk(node)
    )


def test_every_result_has_a_type() -> None:
    found = {
        (file, node.name)
        for file, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and _unknown(node.returns)
    }
    assert len(FILES) == 7
    assert found == UNKNOWN.keys(), found ^ UNKNOWN.keys()


# -- a user's program -------------------------------------------------------------------------------------------------

PROGRAM = '''# mypy: warn-return-any
import webtorch as torch
import webtorch.nn.functional as F
from webtorch import Tensor, nn
from webtorch.utils.data import DataLoader, TensorDataset

x = torch.randn(3, 4)
w = torch.zeros(4, 5, dtype=torch.float32, device="cpu")
y = (x @ w).sum()
reveal_type(y)  # Tensor
reveal_type(y.item())  # int | float
reveal_type(2 * x - 1)  # Tensor
reveal_type(x[0, 1:])  # Tensor
reveal_type(torch.add(x, 1, alpha=2))  # Tensor
reveal_type(torch.max(x))  # Tensor
reveal_type(torch.max(x, 0).values)  # Tensor
reveal_type(x.max(dim=1))  # Max
reveal_type(torch.sort(x).indices)  # Tensor
reveal_type(torch.split(x, 2))  # tuple[Tensor, ...]
reveal_type(torch.linalg.svd(x).S)  # Tensor
reveal_type(torch.nonzero(x))  # Tensor
reveal_type(torch.nonzero(x, as_tuple=True))  # tuple[Tensor, ...]
reveal_type(torch.where(x > 0))  # tuple[Tensor, ...]
reveal_type(torch.where(x > 0, x, 0.0))  # Tensor
reveal_type(torch.allclose(x, x))  # bool
reveal_type(torch.unique(x))  # Tensor
reveal_type(F.linear(x, w.t(), None))  # Tensor
reveal_type(F.relu(x, inplace=True))  # Tensor
reveal_type(F.max_pool2d(x, 2))  # Tensor
reveal_type(F.max_pool2d(x, 2, return_indices=True))  # tuple[Tensor, Tensor]
reveal_type(torch.special.expit(x))  # Tensor
reveal_type(torch.fft.rfft(x, n=4))  # Tensor
reveal_type(x.add_(1).T)  # Tensor
reveal_type(x.shape)  # Size
reveal_type(x == x)  # Tensor
reveal_type(nn.Sequential(nn.ReLU())[0])  # Module
reveal_type(torch.matmul(x, w, out=torch.empty(3, 5)))  # Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.rest = nn.ModuleList([nn.Sequential(nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)])
        self.last = nn.Sequential(nn.Linear(8, 3))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = F.gelu(self.first(x)) * scale
        for module in self.rest:
            x = x + module(x)
        return self.last(x)


def train(model: nn.Module, loader: DataLoader) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = 0.0
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


reveal_type(Net()(x, scale=2.0))  # Tensor
reveal_type(nn.Linear(4, 8)(x))  # Tensor
reveal_type(Net().last(x))  # Tensor


@torch.compile
def twice(x: Tensor, times: int = 2) -> tuple[Tensor, int]:
    return x * times, times


@torch.compile(fullgraph=True)
def once(x: Tensor) -> Tensor:
    return x


@torch.no_grad()
@torch.inference_mode()
def both(x: Tensor) -> Tensor:
    return x


reveal_type(both(x))  # Tensor
reveal_type(twice(x, times=3))  # tuple[Tensor, int]
reveal_type(once(x))  # Tensor
reveal_type(torch.compile(Net())(x))  # Tensor
reveal_type(torch.autograd.grad(x.sum(), x))  # tuple[Tensor, ...]
reveal_type(torch.autograd.grad(x.sum(), x, allow_unused=True))  # tuple[Tensor | None, ...]
train(Net(), DataLoader(TensorDataset(x), batch_size=2))
'''  # fmt: skip
WRONG = '''
import webtorch as torch

x = torch.randn(3)
torch.softmax(x, dim="rows")
torch.cat(x, "dim")
x.reshape(3).sum().value
torch.zeros(3, dtype="float32")
torch.nn.functional.linear(x)
torch.ones(3).foo()
torch.nn.Linear(3, 1)("x")
'''  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """What mypy says of the two programs: line and text."""
    folder = tmp_path_factory.mktemp("programs")
    files = []
    for name, program in (("right", PROGRAM), ("wrong", WRONG)):
        files.append(folder / f"{name}.py")
        files[-1].write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-pretty"]
    done = subprocess.run(
        [*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found: dict[str, list[tuple[int, str]]] = {"right": [], "wrong": []}
    for name, line, text in re.findall(
        r"(right|wrong)\.py:(\d+): (?:note|error): (.*)", done.stdout
    ):
        found[name].append((int(line), text))
    assert all(found.values()), done.stdout + done.stderr
    return found


def test_a_users_program_has_types(said: dict[str, list[tuple[int, str]]]) -> None:
    wrong = []
    lines = PROGRAM.split("\n")
    for number, text in said["right"]:
        shown = re.fullmatch(r'Revealed type is "(.*)"', text)
        plain = re.sub(r"\b(?:\w+\.)+(?=\w)", "", shown[1]) if shown else text
        plain = re.sub(r"tuple\[[^]]*, fallback=(\w+)\]", r"\1", plain)
        if not shown or plain != lines[number - 1].rpartition("# ")[2]:
            wrong.append(f"{lines[number - 1]}: {text}")
    assert not wrong, "\n".join(wrong)
    assert len(said["right"]) == PROGRAM.count("reveal_type")


def test_what_is_wrong_in_a_users_program_is_found(
    said: dict[str, list[tuple[int, str]]],
) -> None:
    assert {number for number, _ in said["wrong"]} >= {5, 6, 7, 8, 9, 10, 11}, said["wrong"]


# -- the types are true -----------------------------------------------------------------------------------------------


def _named(module: str) -> dict[str, Any]:
    """Return what the names in a module's annotations stand for."""
    found = {**vars(builtins), "Literal": Literal, "Any": Any}
    for name, (home, there) in (stubs._homes(stubs._FORMULAS) | stubs._homes(module)).items():
        found[name] = getattr(importlib.import_module(home), there, Any)
    return found


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as far as that can be seen without computing anything."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or kind is object or origin is collections.abc.Callable:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, k) for k in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return (
            isinstance(value, tuple)
            and [len(inner)] == [len(value)]
            and all(map(fits, value, inner))
        )
    if origin in (tuple, list, collections.abc.Sequence):
        return isinstance(value, origin) and all(fits(v, inner[0]) for v in value)
    if origin is not None:
        return isinstance(value, origin)
    if kind is None:
        return value is None
    wider = {float: (float, int), complex: (complex, float, int)}
    return isinstance(value, wider.get(kind, kind))


def _wrong_types(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return what in a call of an entry is of another type than its stub says, by every form that takes the call."""
    names = _named(stubs._module(op))
    wrong = []
    result = op.function(*args, **kwargs)
    for form in stubs._forms(op):
        try:
            bound = form.bind(*args, **kwargs)
        except TypeError:
            continue
        found = []
        for name, value in bound.arguments.items():
            p = form.parameters[name]
            kind = eval(p.annotation, names)
            values = value if p.kind is p.VAR_POSITIONAL else [value]
            found += [f"{name}={v!r:.60}: no {p.annotation}" for v in values if not fits(v, kind)]
        if not fits(result, eval(form.return_annotation, names)):
            found.append(f"gives {type(result).__name__}, not {form.return_annotation}")
        if not found:
            return []
        wrong += found
    return wrong


# What calls may raise that cannot be made without values, or are made in forms of PyTorch's own.
REFUSED = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError, AttributeError)
# (entry, parameter) -> what PyTorch's tests give there that a checked program should not.
LOOSER = {("normal", "size"): "PyTorch's database draws with other arguments"}


@pytest.mark.long
def test_calls_are_of_the_types_that_stubs_tell() -> None:
    wrong: list[str] = []
    count = 0
    for op in recording.entries():
        if isinstance(op.example, str):
            continue
        for sample in recording.samples(op, "float32", 4):
            with warnings.catch_warnings(), contextlib.suppress(*REFUSED):
                warnings.simplefilter("ignore")
                mine = sample.map(lambda x: recording._ours(x, "meta"))
                found = _wrong_types(op, mine.args, mine.kwargs)
                count += 1
                wrong += [
                    f"{op.name}({sample.shown()}): {text}"
                    for text in found
                    if (op.name, text.partition("=")[0]) not in LOOSER
                ]
    assert not wrong, "\n".join(wrong)
    assert count > 500
