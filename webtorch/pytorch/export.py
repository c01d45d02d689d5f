"""Functions of PyTorch tensors, modules and exported programs, captured for a page. Floor 6.

`webtorch.export` calls this where it is given PyTorch's things. A function runs twice on the device, as
any PyTorch code does there: once as usual, so that gradients and an optimizer's state exist, and once
recorded, which is the program. Then everything has its value back.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.optim.lr_scheduler import LRScheduler as _Scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from webtorch.capture.captured import Capture
from webtorch.capture.outside import Survey
from webtorch.capture.trace import capture, compile_never
from webtorch.errors import CaptureError
from webtorch.functions import public as webtorch
from webtorch.pytorch import device as bridge
from webtorch.pytorch.device import flat, memory_of, on_device, wrap
from webtorch.tensors.storage import Storage

# What the first step finds where an optimizer's state is not there yet, if not zero.
_BEGINNINGS = {"mu_product": 1.0}
# Optimizers whose first step is that of a state of such beginnings.
_BEGIN_AT_ZERO = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adadelta",
)  # fmt: skip

Shape = tuple[int, ...]


@dataclass(slots=True)
class Captured:
    """PyTorch functions as `webtorch.web.export` takes them."""

    functions: dict[str, Capture] = field(default_factory=dict)
    # By function: names and shapes of the tensors that it takes.
    arguments: dict[str, list[tuple[str, Shape]]] = field(default_factory=dict)
    # By function: batches for the page.
    examples: dict[str, list[object]] = field(default_factory=dict)
    # By the id of a storage: its name and shape in the weights file.
    names: dict[int, tuple[str, Shape]] = field(default_factory=dict)
    # What the names stand for: modules that were moved must live until the page is written.
    held: list[object] = field(default_factory=list)


def is_pytorch(what: object, call: object) -> bool:
    """Whether a function is PyTorch's: a module, an exported program, or called with its tensors."""
    if isinstance(what, (torch.nn.Module, torch.export.ExportedProgram)):
        return True
    return any(isinstance(x, torch.Tensor) for x in _leaves(call))


def capture_all(
    functions: Mapping[str, object],
    calls: Mapping[str, object],
    examples: Mapping[str, Sequence[object]],
    state: Mapping[str, object] | None,
) -> Captured:
    """Capture PyTorch functions, each for a call. `state` names further modules, optimizers and tensors.

    Raises CaptureError for what a program cannot repeat, TypeError where a call is missing.
    """
    out = Captured()
    moved: dict[int, torch.nn.Module] = {}
    with contextlib.ExitStack() as after:
        _capture_each(functions, calls, examples, state, out, moved, after)
    return out


def _capture_each(
    functions: Mapping[str, object],
    calls: Mapping[str, object],
    examples: Mapping[str, Sequence[object]],
    state: Mapping[str, object] | None,
    out: Captured,
    moved: dict[int, torch.nn.Module],
    after: contextlib.ExitStack,
) -> None:
    """Capture the functions one after the other. `after` takes back what they leave to each other."""
    for name, what in functions.items():
        function, call, module = _callable(what, calls[name], name, moved)
        referred = {
            **(state or {}),
            **({"": module} if module is not None else _referred(function)),
        }
        _check_devices(name, referred)
        args, kwargs = _arguments(call)
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_device = {
            id(t): t.detach().to("webgpu").requires_grad_(t.requires_grad) for t in tensors
        }
        positional, keywords = _replaced((args, kwargs), on_device)
        optimizers = _optimizers(referred)
        with contextlib.ExitStack() as stack:
            if module is not None:
                stack.enter_context(_evaluating(module))
            stack.enter_context(_on_device(optimizers))
            before = _Before(referred)
            after.callback(before.forget)
            with before.restored(name):
                function(*positional, **keywords)
            captured = _capture(function, positional, keywords, list(on_device.values()), before)
            _add_names(out, referred)
        out.functions[name] = captured
        out.arguments[name] = [
            (n, tuple(x.shape))
            for n, x in _named(function, args, kwargs)
            if isinstance(x, torch.Tensor)
        ]
        batches = examples[name] or [call]
        out.examples[name] = [_plain(b) for b in batches]
        out.held.append((function, module))


def _callable(
    what: Any, call: object, name: str, moved: dict[int, torch.nn.Module]
) -> tuple[Callable[..., object], object, torch.nn.Module | None]:
    """Return what is called, with which arguments, and the module that it is, on the device."""
    if isinstance(what, torch.export.ExportedProgram):
        if call is None and what.example_inputs is not None:
            args, kwargs = what.example_inputs
            call = {**dict(zip(_input_names(what), args)), **kwargs}
        program = what
        if any(not on_device(t) for t in program.state_dict.values()):
            with warnings.catch_warnings():
                # Of PyTorch about its own exported programs.
                warnings.simplefilter("ignore", FutureWarning)
                # What the program makes on the device that it was traced on moves too.
                program = move_to_device_pass(copy.deepcopy(program), "webgpu")
        what = program.module()
        what._names = _input_names(program)
    if call is None:
        raise TypeError(
            f"export: {name} needs example_inputs, the arguments of a call, so that shapes and types are known"
        )
    if not isinstance(what, torch.nn.Module):
        if not callable(what):
            raise TypeError(
                f"export: {name} must be a function or a module, got {type(what).__name__}"
            )
        return what, call, None
    tensors = [*what.parameters(), *what.buffers()]
    if any(not on_device(t) for t in tensors):
        # A copy, so that the caller's model stays where it is.
        if id(what) not in moved:
            moved[id(what)] = copy.deepcopy(what).to("webgpu")
        what = moved[id(what)]
    names = getattr(what, "_names", None)
    if names and isinstance(call, Mapping):
        # An exported program knows its arguments by position.
        order = [call[n] for n in names if n in call]
        rest = {k: v for k, v in call.items() if k not in names}

        def infer(*args: object, **kwargs: object) -> object:
            """Call it."""
            return what(*args, **kwargs)

        infer.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
        )
        return infer, (tuple(order), rest), what
    return what, call, what


def _input_names(program: ExportedProgram) -> list[str]:
    return [str(n) for n in program.graph_signature.user_inputs]


def _arguments(call: object) -> tuple[tuple[object, ...], dict[str, object]]:
    if isinstance(call, Mapping):
        return (), dict(call)
    if (
        isinstance(call, tuple)
        and len(call) == 2
        and type(call[0]) is tuple
        and type(call[1]) is dict
    ):
        return call[0], call[1]
    return (tuple(call), {}) if isinstance(call, (tuple, list)) else ((call,), {})


# ---- recording ----------------------------------------------------------------------------------


def _capture(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    tensors: list[torch.Tensor],
    before: _Before,
) -> Capture:
    flats = [flat(memory_of(t).typed(bridge.HELD[t.dtype])) for t in tensors]
    versions = before.host_versions()

    def run(*_: object) -> object:
        """Call the function, and return its results without their history."""
        return _detached(function(*args, **kwargs))

    grads = before.grads()
    try:
        captured = capture(
            run, tuple(flats), {}, flats, runtime=bridge.runtime(), compiler=compile_never
        )
    finally:
        for p, g in grads:
            p.grad = g
    changed = before.changed_on_host(versions)
    if changed:
        raise CaptureError(
            f"export: the function changes {changed}, a tensor on the CPU, which a program cannot "
            "repeat: keep it on the device, as in x.to('webgpu')"
        )
    return captured


def _detached(x: object) -> object:
    """Return a structure with PyTorch's tensors as the engine's, and without what is neither."""
    if isinstance(x, torch.Tensor):
        if not on_device(x):
            raise CaptureError(
                "export: the function returns a tensor on the CPU: return it on the device, since a "
                "program cannot read values"
            )
        return wrap(x.detach())
    if isinstance(x, Mapping):
        return {str(k): _detached(v) for k, v in x.items() if v is not None}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return {k: _detached(v) for k, v in zip(x._fields, x)}
    if isinstance(x, (list, tuple)):
        return [_detached(v) for v in x]
    return x if isinstance(x, (bool, int, float, str, type(None))) else None


class _Before:
    """What a function refers to, as it was before a call."""

    def __init__(self, referred: Mapping[str, object]) -> None:
        self.optimizers = _optimizers(referred)
        tensors = [v for v in referred.values() if isinstance(v, torch.Tensor)]
        for module in (v for v in referred.values() if isinstance(v, torch.nn.Module)):
            tensors += [*module.parameters(), *module.buffers()]
        for optimizer in self.optimizers:
            tensors += [p for group in optimizer.param_groups for p in group["params"]]
            tensors += [t for _, _, t in _states(optimizer)]
        self.schedulers = [
            (v, copy.deepcopy(v.state_dict()))
            for v in referred.values()
            if isinstance(v, _Scheduler)
        ]
        self.tensors = list({id(t): t for t in tensors}.values())
        self.known = {id(t) for t in self.tensors}
        self.named = {id(v): repr(k) for k, v in referred.items()}
        self.on_host = [(t, t.detach().clone()) for t in self.tensors if not on_device(t)]
        self.gradients = self.grads()
        self.stateful = [(o, set(o.state)) for o in self.optimizers]
        self.options = [
            (g, {k: v for k, v in g.items() if not _holds_tensors(v)})
            for o in self.optimizers
            for g in o.param_groups
        ]
        self.generator = bridge.generator()
        self.offset = self.generator._offset

    @contextlib.contextmanager
    def restored(self, name: str) -> Iterator[None]:
        """Give everything its value back after a call: also what the function reaches in ways unknown.

        Gradients and states that are new stay, as they begin: at zero.
        """
        runtime = bridge.runtime()
        runtime.realize()
        # A second holder of each value, so that writes go elsewhere.
        kept = [(s, Storage(s.share(), runtime), s.version) for s in Storage.live(runtime)]

        def check(optimizer: torch.optim.Optimizer, *_: object) -> None:
            """Raise CaptureError for an optimizer that is not known."""
            if optimizer not in self.optimizers:
                raise CaptureError(
                    f"export: {name} steps an optimizer ({type(optimizer).__name__}) that is not found from "
                    "the function: name it in `state`, or keep it in a variable or attribute that the function reads"
                )

        hook = register_optimizer_step_pre_hook(check)
        try:
            yield
        finally:
            hook.remove()
            for storage, value, version in kept:
                if storage.version != version:
                    storage.replace(value.share())
            del kept
            changed = self._restore_host()
        if changed:
            raise CaptureError(
                f"export: {name} changes {changed}, a number on the host, which a program cannot repeat: "
                "call the scheduler outside of the function"
            )
        self._begin(name)
        runtime.realize()

    def _restore_host(self) -> str:
        """Give what is not on the device its value back; return the name of an option that was changed."""
        with torch.no_grad():
            for t, value in self.on_host:
                t.detach().copy_(value)
            for t, grad in self.gradients:
                if grad is not None:
                    t.grad = grad
                elif t.grad is not None:
                    t.grad.zero_()
        self.generator._offset = self.offset
        changed = ""
        for group, options in self.options:
            for key, value in options.items():
                if group[key] != value:
                    changed = f"{key!r} of the optimizer"
                    group[key] = value
        for scheduler, state in self.schedulers:
            scheduler.load_state_dict(state)
        return changed

    def _begin(self, name: str) -> None:
        """Put states of optimizers that are new where they begin."""
        for optimizer in self.optimizers:
            fresh = [s for s in _states(optimizer) if id(s[2]) not in self.known]
            kind = type(optimizer).__name__
            damped = any(g.get("dampening") for g in optimizer.param_groups)
            if fresh and (kind not in _BEGIN_AT_ZERO or damped):
                raise CaptureError(
                    f"export: {name}: {kind} treats its first step in another way than the "
                    "next; take one step before the export"
                )
            with torch.no_grad():
                for _, key, t in fresh:
                    t.fill_(_BEGINNINGS.get(key, 0.0))

    def forget(self) -> None:
        """Take gradients and states back that were not there before the call."""
        for t, grad in self.gradients:
            t.grad = grad
        for optimizer, stateful in self.stateful:
            for p in [p for p in optimizer.state if p not in stateful]:
                del optimizer.state[p]

    def grads(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the gradients of all tensors that may have some."""
        return [(t, t.grad) for t in self.tensors if t.is_leaf]

    def _on_host(self) -> list[tuple[str, torch.Tensor]]:
        found = [(self.named.get(id(t), "a tensor"), t) for t in self.tensors]
        for optimizer in self.optimizers:
            found += [(f"'{k}' of the optimizer", t) for _, k, t in _states(optimizer)]
        return [(n, t) for n, t in found if not on_device(t)]

    def host_versions(self) -> dict[int, int]:
        """Return how often each tensor on the CPU has been written."""
        return {id(t): t._version for _, t in self._on_host()}

    def changed_on_host(self, versions: dict[int, int]) -> str:
        """Return the name of a tensor on the CPU that has been written since, or ""."""
        return next((n for n, t in self._on_host() if t._version != versions.get(id(t))), "")


def _optimizers(referred: Mapping[str, object]) -> list[torch.optim.Optimizer]:
    found = (v for v in referred.values() if isinstance(v, torch.optim.Optimizer))
    return list({id(v): v for v in found}.values())


def _holds_tensors(x: object) -> bool:
    return any(isinstance(v, torch.Tensor) for v in (x if isinstance(x, (list, tuple)) else (x,)))


def _states(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
    """Return parameter, name and value of each state of an optimizer that is a tensor."""
    return [
        (param, key, value)
        for param, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    ]


@contextlib.contextmanager
def _on_device(optimizers: list[torch.optim.Optimizer]) -> Iterator[None]:
    """Let optimizers count their steps on the device while they are recorded."""
    changed = [g for o in optimizers for g in o.param_groups if g.get("capturable") is False]
    counts = [
        (o.state[p], key, value)
        for o in optimizers
        for p, key, value in _states(o)
        if key == "step" and not on_device(value)
    ]
    for group in changed:
        group["capturable"] = True
    for state, key, value in counts:
        state[key] = value.to("webgpu")
    try:
        yield
    finally:
        for group in changed:
            group["capturable"] = False
        for optimizer in optimizers:
            if changed:
                for p, key, value in _states(optimizer):
                    if key == "step":
                        optimizer.state[p][key] = value.cpu()


@contextlib.contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    modes = [(m, m.training) for m in module.modules()]
    for m, _ in modes:
        # Exported programs refuse `eval()`: they are what they were exported as.
        m.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for m, training in modes:
            m.training = training


# ---- names --------------------------------------------------------------------------------------


def _referred(function: Callable[..., object]) -> dict[str, object]:
    """Return the modules, optimizers, schedulers and tensors that a function reaches, by name."""
    found: dict[str, object] = {}
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        found[""] = owner
    survey = Survey(function)
    # Modules first: their parameters are reached a second time, as parts.
    for kinds in ((torch.nn.Module,), (torch.optim.Optimizer, _Scheduler), (torch.Tensor,)):
        for name, value in survey.named(kinds):
            if isinstance(value, torch.nn.Module):
                value = getattr(value, "_orig_mod", value)
            name = name.removeprefix("self.")
            if not any(value is v for v in found.values()):
                found[f"{name}.{len(found)}" if name in found else name] = value
    return found


def _check_devices(name: str, referred: Mapping[str, object]) -> None:
    for key, value in referred.items():
        if "." in key or "[" in key:
            # What the function reaches, it need not use.
            continue
        if isinstance(value, torch.nn.Module):
            parameters = [*value.parameters(), *value.buffers()]
        elif isinstance(value, torch.optim.Optimizer):
            parameters = [p for g in value.param_groups for p in g["params"]]
        else:
            continue
        if any(not on_device(p) for p in parameters):
            raise CaptureError(
                f"export: {name} uses {key!r}, whose tensors are on the CPU: move the model first, "
                "as in model.to('webgpu')"
            )


def _add_names(out: Captured, referred: Mapping[str, object]) -> None:
    names = out.names
    taken = {name for name, _ in names.values()}

    def add(name: str, x: torch.Tensor) -> None:
        """Name a tensor's storage, if neither the storage nor the name is taken."""
        if not on_device(x):
            return
        storage: Storage = memory_of(x).typed(bridge.HELD[x.dtype])
        if id(storage) not in names and name not in taken:
            whole = x.is_contiguous() and x.numel() == storage.elements
            out.held.append(storage)
            names[id(storage)] = name, tuple(x.shape) if whole else (storage.elements,)
            taken.add(name)

    for prefix, value in referred.items():
        dot = f"{prefix}." if prefix else ""
        if isinstance(value, torch.nn.Module):
            for name, x in (*value.named_parameters(), *value.named_buffers()):
                add(dot + name, x)
        elif isinstance(value, torch.Tensor):
            add(prefix, value)
    for prefix, value in referred.items():
        if isinstance(value, torch.optim.Optimizer):
            numbers = {
                id(p): i
                for i, p in enumerate(p for group in value.param_groups for p in group["params"])
            }
            for p, key, x in _states(value):
                shown = str(numbers.get(id(p), 0))
                if on_device(p):
                    storage = memory_of(p).typed(bridge.HELD[p.dtype])
                    shown = names.get(id(storage), (shown, ()))[0]
                add(f"{prefix}.{key}.{shown}", x)


def _named(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield the leaves of a call's arguments with their names in the page."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for i, value in enumerate(args):
        yield from _paths(known[i] if i < len(known) else f"x.{i - len(known)}", value)
    for key, value in kwargs.items():
        yield from _paths(str(key), value)


def _paths(name: str, x: object) -> Iterator[tuple[str, object]]:
    if isinstance(x, Mapping):
        for k, v in x.items():
            yield from _paths(f"{name}.{k}", v)
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            yield from _paths(f"{name}.{i}", v)
    else:
        yield name, x


def _leaves(x: object) -> Iterator[object]:
    return (leaf for _, leaf in _paths("", x))


def _replaced(x: object, tensors: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return tensors[id(x)]
    if isinstance(x, Mapping):
        return {k: _replaced(v, tensors) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_replaced(v, tensors) for v in x)
    return x


def _plain(call: object) -> Any:
    """Return a batch with webtorch tensors on the CPU."""
    if isinstance(call, torch.Tensor):
        return webtorch.from_numpy(call.detach().cpu().numpy())
    if isinstance(call, Mapping):
        return {k: _plain(v) for k, v in call.items()}
    if (
        isinstance(call, tuple)
        and len(call) == 2
        and type(call[0]) is tuple
        and type(call[1]) is dict
    ):
        return [*map(_plain, call[0]), *map(_plain, call[1].values())]
    if isinstance(call, (list, tuple)):
        return [_plain(v) for v in call]
    return call
