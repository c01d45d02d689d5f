"""Every function that PyTorch has takes the same arguments here: names, order, kinds and defaults.

Python functions are compared by inspect.signature, the others with the schemas of all their overloads: what PyTorch
accepts by name or by position is accepted, with the same default. That more is accepted (a default where PyTorch has
none, sizes as separate numbers) is no difference.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

from webtorch.ops.record import TABLE

EMPTY = inspect.Parameter.empty
PLACES = (
    "", "Tensor", "autograd", "autograd.functional", "autograd.graph", "distributions", "fft", "linalg", "nn",
    "nn.functional", "nn.init", "nn.parameter", "nn.utils", "nn.utils.parametrizations", "nn.utils.parametrize",
    "nn.utils.prune", "nn.utils.rnn", "nn.utils.stateless", "optim", "optim.lr_scheduler", "optim.swa_utils",
    "random", "special", "testing", "utils.checkpoint", "utils.data",
)  # fmt: skip


def place(root: str, name: str) -> Any:
    module = importlib.import_module(root)
    if name == "Tensor":
        return module.Tensor
    return importlib.import_module(f"{root}.{name}") if name else module


def names(name: str) -> list[str]:
    """Return the public names that both have."""
    theirs, ours = place("torch", name), place("webtorch", name)
    found = getattr(theirs, "__all__", None) if name not in ("", "Tensor") else None
    found = found or [n for n in dir(theirs) if not n.startswith("_")]
    return sorted(n for n in set(found) if hasattr(theirs, n) and hasattr(ours, n))


# -- Python functions -------------------------------------------------------------------------------------------------

# (place, name) -> why the arguments are not PyTorch's.
DIFFERENT: dict[tuple[str, str], str] = {
    ("", "GradScaler"): "the default device is the one there is, not cuda",
    ("", "compile"): "our compiler's options; torch's backends and caches are not here",
    ("autograd", "backward"): "grad_variables is deprecated there",
    ("nn.utils", "clip_grad_norm"): "deprecated there: passes everything on",
    ("random", "fork_rng"): "_caller and _devices_kw are names for PyTorch's messages",
    ("Tensor", "split"): "torch.split's name; PyTorch's method takes split_size",
    ("", "load"): "**pickle_load_args: no pickle runs",
    ("", "save"): "pickle_module is None, no pickle runs",
    ("utils.data", "random_split"): "generator: the default generator of each library",
    ("", "no_grad"): "orig_func is for use as a decorator",
    ("autograd", "no_grad"): "orig_func is for use as a decorator",
    **{
        ("nn.functional", f"{kind}_pool{rank}d_with_indices"): "return_indices has no effect there"
        for kind in ("max", "adaptive_max") for rank in (1, 2, 3)
    },
}  # fmt: skip


def shown(function: Any) -> list[tuple[str, Any]]:
    """Return names and defaults; a default that is code counts as one. The tensor of a method has any name."""
    found = []
    for i, (name, p) in enumerate(inspect.signature(function).parameters.items()):
        if i == 0 and name in ("self", "input", "tensor"):
            name = "input"
        code = callable(p.default) and p.default is not EMPTY
        found.append((name, "code" if code else p.default))
    return found


def python_functions() -> list[tuple[str, str]]:
    found = []
    for where in PLACES:
        theirs = place("torch", where)
        for name in names(where):
            item = getattr(theirs, name)
            if inspect.isclass(item) and (issubclass(item, BaseException) or where == ""):
                continue
            # What a test before this one registered with PyTorch (`Tensor.webgpu`) or replaced there is not PyTorch's.
            if "webgpu" in name or str(getattr(item, "__module__", "")).startswith("webtorch"):
                continue
            if inspect.isfunction(item) or inspect.isclass(item):
                found.append((where, name))
    return found


def test_python_functions_and_classes() -> None:
    wrong = []
    compared = 0
    for where, name in python_functions():
        theirs, ours = getattr(place("torch", where), name), getattr(place("webtorch", where), name)
        if inspect.isclass(theirs):
            theirs, ours = theirs.__init__, getattr(ours, "__init__", ours)
        wanted = shown(theirs)
        if [n for n, _ in wanted][-2:] == ["args", "kwargs"] or (where, name) in DIFFERENT:
            continue
        compared += 1
        got = shown(ours)
        if [n for n, _ in got] == ["args", "kwargs"]:
            entry = TABLE.get(name)
            got = shown(_written(entry.signature)) if entry else got
        # An `out` that PyTorch's Python function does not name, or adds around its own.
        plain = [one for one in got if one[0] != "out" or one in wanted]
        if plain != [one for one in wanted if one[0] != "out" or one in plain]:
            wrong.append(f"torch.{where}.{name}: {wanted}\n    here {got}")
    assert not wrong, "\n".join(wrong)
    assert compared > 300


def _written(text: str) -> Any:
    """Return a function of a signature."""
    made: dict[str, Any] = {}
    exec(f"def function{text}: pass", {}, made)
    return made["function"]


# -- functions of PyTorch's dispatcher --------------------------------------------------------------------------------

# argument -> the functions that do not take it by this name.
MISSING: dict[str, tuple[str, ...]] = {
    # CUDA's products into another type, and what chooses its libraries.
    "out_dtype": ("addmm", "baddbmm", "bmm", "mm"),
    "cudnn_enabled": ("group_norm",),
    "cudnn_enable": ("layer_norm",),
    # The device's default generator draws.
    "generator": ("rrelu", "rrelu_"),
    # One argument, split_size_or_sections, as documented.
    "split_size": ("split_copy",),
    # Names that differ from overload to overload: by position.
    **dict.fromkeys(
        ("tensor", "tensor1", "tensor2", "scalar", "scalar1", "scalar2"), ("result_type",)
    ),
    "other": ("result_type", "copy_"),
    "input": ("fill_", "zero_"),
    # Storages are not handed out.
    **dict.fromkeys(("storage_offset", "size", "stride"), ("set_",)),
    # No memory is pinned.
    "pin_memory": ("fftfreq", "rfftfreq"),
    # alpha only, as nn.functional.elu.
    "scale": ("elu_",),
    "input_scale": ("elu_",),
}
# Functions of two forms, with sequences or packed: what the second argument is tells which (`nn/recurrence._named`).
EITHER_FORM = {"rnn_tanh", "rnn_relu", "lstm", "gru"}
# By position, the parameter of another overload takes them; alpha is by name in PyTorch's Python too.
EITHER = {"alpha", "value", "other", "sections", "indices", "dtype", "size"}


def overloads(where: str, name: str) -> list[Any]:
    """Return the schemas of what `torch.<where>.<name>` calls: not TorchScript's own, not those for names of dims."""
    prefix = {"linalg": "linalg_", "special": "special_", "fft": "fft_"}.get(where, "")
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{prefix}{name}"):
        if "Dimname" in str(schema) or any(a.is_out for a in schema.arguments):
            continue
        arguments = [a.name for a in schema.arguments]
        scripted = {"a", "b", "l", "t", "x", "i", "idx", "list", "reverse"} & set(arguments)
        if scripted and where not in ("linalg", "special") and name not in ("lobpcg",):
            continue
        found.append(schema)
    return found


def builtins() -> list[tuple[str, str]]:
    found = []
    for where in ("", "Tensor", "fft", "linalg", "nn.functional", "special"):
        theirs, ours = place("torch", where), place("webtorch", where)
        for name in names(where):
            item = getattr(theirs, name)
            native = inspect.isbuiltin(item) or inspect.ismethoddescriptor(item)
            if native and not inspect.isfunction(item) and callable(getattr(ours, name)):
                found.append((where, name))
    return found


def differences(where: str, name: str) -> list[str]:
    """Return what PyTorch accepts and we do not."""
    function = getattr(place("webtorch", where), name)
    signature = inspect.signature(function)
    if list(signature.parameters) == ["args", "kwargs"]:
        entry = next((op for op in TABLE.values() if op.function is function), TABLE.get(name))
        assert entry is not None or name in EITHER_FORM, name
        if entry is not None:
            signature = inspect.signature(_written(entry.signature))
    ours = signature.parameters
    callee = getattr(function, "callee", None)
    others = callee.op.other_names if callee is not None and callee.op is not None else {}
    open_names = any(p.kind is p.VAR_KEYWORD for p in ours.values())
    first = next(iter(ours), "")
    wrong = []
    schemas = overloads(where, name)
    for schema in schemas:
        positions = []
        for i, argument in enumerate(schema.arguments):
            wanted = argument.name
            if (where == "Tensor" and wanted == "self") or (
                i == 0 and (wanted == "self" or where in ("linalg", "special"))
            ):
                # The documentation's name of the first tensor (A in linalg), or PyTorch's: by position.
                wanted = first
            elif wanted == "self":
                wanted = "input"
            wanted = others.get(wanted, wanted)
            excused = MISSING.get(wanted, ())
            if wanted not in ours:
                if not open_names and name not in excused and f"{where}.{name}" not in excused:
                    wrong.append(f"{name}: no {wanted!r} ({schema})")
                continue
            if not argument.kwarg_only and not (where == "Tensor" and wanted == first):
                positions.append(wanted)
            default = ours[wanted].default
            if len(schemas) == 1 and argument.has_default_value() and wanted != first:
                value = argument.default_value
                if default is EMPTY or not _equal(default, value, wanted):
                    wrong.append(f"{name}: {wanted}={default!r}, in PyTorch {value!r}")
        if any(p.kind is p.VAR_POSITIONAL for p in ours.values()):
            continue
        have = [n for n, p in ours.items() if n in positions and p.kind is not p.KEYWORD_ONLY]
        left = set(positions) - set(have) - EITHER
        if have != [n for n in positions if n in have] or left:
            wrong.append(f"{name}: order {positions}, here {list(ours)}")
    return wrong


def _equal(ours: Any, theirs: Any, name: str) -> bool:
    if name in ("dtype", "layout", "memory_format", "device", "pin_memory", "reduction", "size"):
        return True  # named values, numbers there
    ours = list(ours) if isinstance(ours, tuple) else ours
    if isinstance(theirs, list) and not isinstance(ours, (list, tuple)):
        return (not theirs and ours is None) or set(theirs) == {ours}
    return ours == theirs or (not ours and not theirs and ours is not False)


def test_functions_of_the_dispatcher() -> None:
    wrong, compared = [], 0
    for where, name in builtins():
        if overloads(where, name):
            compared += 1
            wrong += [f"torch.{where}: {text}" for text in differences(where, name)]
    assert not wrong, "\n".join(wrong)
    assert compared > 1000


@pytest.mark.parametrize("name", ["rand_like", "cumsum", "linalg.vector_norm", "special.zeta"])
def test_the_comparison_sees_what_it_must(name: str, monkeypatch: Any) -> None:
    where, _, last = name.rpartition(".")
    assert not differences(where, last)
    monkeypatch.setattr(place("webtorch", where), last, lambda input, wrong=3: None)
    assert differences(where, last)
