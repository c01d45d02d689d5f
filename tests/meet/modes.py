"""The ways to run a program: each is written once, and run by PyTorch (where nothing compiles) and by webtorch."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import random
import re
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
import torch._dynamo
import torch.utils.checkpoint

import webtorch
import webtorch.utils.checkpoint
from tests.meet.library import NUDGE, Expected, Face, Input, Result, Skip, leaves, look, oracle
from tests.meet.programs import Program
from tests.meet.refusals import refused
from webtorch.web.check import Site

CALLS = 3


class Case(Protocol):
    """A program or a model."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What its forward takes."""

    @property
    def low(self) -> str:
        """The least exact type."""

    @property
    def drawn(self) -> bool:
        """Whether it draws random numbers."""

    def module(self, t: Any) -> Any:
        """The module, made with `t`."""

    def pasted(self) -> str:
        """Its source."""


Run = Callable[[Face, Any, int], Any]


@dataclass(frozen=True)
class Mode:
    """A way to run a case. `faces` are those that have it; `loose`: compared as 16-bit results."""

    name: str
    run: Run
    faces: tuple[str, ...]
    loose: bool = False


MODES: dict[str, Mode] = {}
BOTH = ("tensor", "pytorch")


def mode(*faces: str, loose: bool = False) -> Callable[[Run], Run]:
    """Add a function to the table."""

    def add(function: Run) -> Run:
        name = function.__name__
        MODES[name] = Mode(name, function, faces or BOTH, loose)
        return function

    return add


def tensors(face: Face, case: Case, seed: int) -> list[Any]:
    """The inputs."""
    return [face.tensor(x, seed) for x in case.inputs]


def module(face: Face, case: Case, seed: int) -> Any:
    """The module, filled."""
    return face.fill(case.module(face.t), seed)


def loss_of(t: Any, outs: Any) -> Any:
    """A number that every element of the results has its own part in."""
    total: Any = 0.0
    for _, r in leaves(outs):
        if not hasattr(r, "requires_grad") or not (r.is_floating_point() or r.is_complex()):
            continue
        r = t.view_as_real(r) if r.is_complex() else r
        weights = t.cos(t.arange(r.numel(), device=r.device).to(t.get_default_dtype()))
        total = total + (r.to(weights.dtype) * weights.reshape(r.shape)).sum()
    return total


def state(m: Any, xs: list[Any]) -> dict[str, Any]:
    """What a call and its backward pass leave behind."""
    return {
        "inputs": list(xs),
        "grads": [x.grad if x.is_leaf else None for x in xs],
        "params": {n: p.grad for n, p in m.named_parameters()},
        "buffers": dict(m.named_buffers()),
    }


def run(face: Face, m: Any, call: Any, xs: list[Any]) -> dict[str, Any]:
    """Forward, and backward from a loss."""
    outs = call(*xs)
    loss = loss_of(face.t, outs)
    if hasattr(loss, "requires_grad") and loss.requires_grad:
        loss.backward()
    return {"out": outs, "loss": loss, **state(m, xs)}


def frozen(tree: Any) -> list[Result]:
    """Results as they are now, before a later call changes them."""
    return look(tree)


class Frozen(list[Result]):
    """Results that have been read."""


def several(results: list[list[Result]]) -> Frozen:
    """Results of several calls."""
    return Frozen(
        replace(r, label=f"call {number}: {r.label}")
        for number, call in enumerate(results)
        for r in call
    )


def clear(m: Any) -> None:
    """Drop gradients."""
    for p in m.parameters():
        p.grad = None


def seconds(t: Any, grads: Any, wanted: list[Any]) -> list[Any]:
    """Gradients of the squares of gradients; zeros where there are none: which rules record a zero is
    PyTorch's own.
    """
    found = [g for g in grads if g is not None and g.requires_grad]
    squares = [(g * g.conj()).real if g.is_complex() else g * g for g in found]
    if not squares:
        return [t.zeros_like(x) for x in wanted]
    again = t.autograd.grad(loss_of(t, squares), wanted, allow_unused=True)
    return [t.zeros_like(x) if g is None else g for g, x in zip(again, wanted, strict=True)]


def values_of(grads: Any) -> list[Any]:
    """Without history: which of a node's gradients have one is PyTorch's own (its kernels make several at once)."""
    return [g if g is None else g.detach() for g in grads]


def unfit_for_second(case: Case) -> None:
    """Skip what says nothing of second derivatives."""
    text = case.pasted()
    # PyTorch's own second derivative of it differs from that of the formula g * v / |v|.
    if "weight_norm" in text:
        raise Skip("weight_norm")
    # A hook on a result is met again where a rule reads the result; which rules do is PyTorch's own.
    if "_hook" in text:
        raise Skip("hooks")


# Plainly.


@mode()
def plain(face: Face, case: Case, seed: int) -> Any:
    """As a program is written."""
    m = module(face, case, seed)
    return run(face, m, m, tensors(face, case, seed))


@mode()
def reads(face: Face, case: Case, seed: int) -> Any:
    """Values are read at random places."""
    rng = random.Random(seed)
    if isinstance(case, Program):
        case = case.reading(rng)
    m = module(face, case, seed)

    def read(_module: Any, _args: Any, out: Any) -> None:
        for _, x in leaves(out):
            if hasattr(x, "tolist") and rng.random() < 0.5:
                x.detach().cpu().tolist()

    for part in m.modules():
        part.register_forward_hook(read)
    return run(face, m, m, tensors(face, case, seed))


@mode()
def second(face: Face, case: Case, seed: int) -> Any:
    """Gradients of gradients."""
    unfit_for_second(case)
    m = module(face, case, seed)
    xs = tensors(face, case, seed)
    wanted = [x for x in xs if x.requires_grad] + list(m.parameters())
    outs = m(*xs)
    loss = loss_of(face.t, outs)
    grads = face.t.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
    return outs, values_of(grads), seconds(face.t, grads, wanted)


@mode()
def saved(face: Face, case: Case, seed: int) -> Any:
    """Parameters, inputs and views of them go through a file; safetensors too."""
    t, m = face.t, module(face, case, seed)
    xs = tensors(face, case, seed)
    first = look(m(*xs))
    views = [x.detach()[..., :1] if x.ndim else x.detach() for x in xs]
    file = io.BytesIO()
    t.save({"module": m.state_dict(), "inputs": [x.detach() for x in xs], "views": views}, file)
    file.seek(0)
    loaded = t.load(file, map_location=face.device)
    if face.t is webtorch:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "m.safetensors")
            t.save(m.state_dict(), path)
            loaded["module"] = t.load(path, map_location=face.device)
    other = case.module(t).to(face.device)
    other = other.double() if face.wide else other
    other.load_state_dict(loaded["module"])
    again = [y.requires_grad_(x.requires_grad) for x, y in zip(xs, loaded["inputs"], strict=True)]
    return several([first, look(run(face, other, other, again)), look(loaded["views"])])


@mode()
def copied(face: Face, case: Case, seed: int) -> Any:
    """A deep copy of module and inputs does what they do, and shares nothing with them."""
    m, xs = module(face, case, seed), tensors(face, case, seed)
    twin, ys = copy.deepcopy((m, xs))
    first = look(run(face, twin, twin, ys))
    untouched = look([list(xs), dict(m.named_parameters())])
    return several([first, untouched, look(run(face, m, m, xs))])


def _refused_plainly(face: Face, case: Case, seed: int) -> None:
    """Have PyTorch refuse what it refuses plainly: in a checkpoint it misses writes, and is wrong."""
    if face.t is torch:
        try:
            plain(face, case, seed)
        except RuntimeError as error:
            raise Skip("PyTorch refuses it plainly") from error
        face.t.manual_seed(seed)


@mode()
def checkpointed(face: Face, case: Case, seed: int) -> Any:
    """The forward is computed again in the backward pass."""
    _refused_plainly(face, case, seed)
    m, xs = module(face, case, seed), tensors(face, case, seed)

    def inner(*ys: Any) -> Any:
        return m(*[y.clone() for y in ys])

    def call(*ys: Any) -> Any:
        # The oracle runs it plainly: where the part writes in place, PyTorch's recomputed values are written, too.
        if face.oracle and not list(m.buffers()):
            return inner(*ys)
        return face.t.utils.checkpoint.checkpoint(inner, *ys, use_reentrant=False)

    return run(face, m, call, xs)


@mode(loose=True)
def autocast(face: Face, case: Case, seed: int) -> Any:
    """Products in bfloat16."""
    m, xs = module(face, case, seed), tensors(face, case, seed)

    def call(*ys: Any) -> Any:
        with face.t.autocast(face.device, dtype=face.t.bfloat16):
            return m(*ys)

    found = run(face, m, call, xs)
    found.pop("inputs")
    return found


@mode()
def hooked(face: Face, case: Case, seed: int) -> Any:
    """Hooks of modules and of parameters, and kept gradients."""
    m, xs = module(face, case, seed), tensors(face, case, seed)
    seen: list[Any] = []
    m.register_forward_pre_hook(
        lambda _m, args: tuple(a * 1 if a.is_floating_point() else a for a in args)
    )
    for part in m.children():
        part.register_forward_hook(lambda _m, _a, out: out * 2 if hasattr(out, "mul") else None)
        part.register_full_backward_hook(
            lambda _m, gi, go: seen.append([g for g in go if g is not None])
        )
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(_halve)
    for x in xs:
        if x.requires_grad:
            x.register_hook(lambda g: g * 3)
    found = run(face, m, m, xs)
    return {**found, "seen": seen}


def _halve(p: Any) -> None:
    p.grad.mul_(0.5)


@mode("pytorch")
def default_device(face: Face, case: Case, seed: int) -> Any:
    """The device is the default one, plainly and compiled."""
    if face.compiler is not None:
        torch.set_default_device(face.device)
    try:
        m, xs = module(face, case, seed), tensors(face, case, seed)
        found = [look(run(face, m, m, xs))]
        clear(m)
        found.append(look(run(face, m, face.compile(m), tensors(face, case, seed + 1))))
    finally:
        if face.compiler is not None:
            torch.set_default_device(None)
    return several(found)


@mode()
def threads(face: Face, case: Case, seed: int) -> Any:
    """Three threads at once, each with its own."""
    return in_threads(lambda k: look(plain(face, case, seed + k)))


def in_threads(work: Callable[[int], list[Result]]) -> Frozen:
    """Run it for three numbers at once."""
    found: list[Any] = [None] * CALLS
    gate = threading.Barrier(CALLS)

    def of(k: int) -> None:
        try:
            gate.wait()
            found[k] = work(k)
        except BaseException as error:
            found[k] = error

    workers = [threading.Thread(target=of, args=(k,), daemon=True) for k in range(CALLS)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for f in found:
        if isinstance(f, BaseException):
            raise f
    return several(found)


@mode("pytorch")
def by_default(face: Face, case: Case, seed: int) -> Any:
    """The device is the default one."""
    with face.t.device(face.device):
        m = module(face, case, seed)
        return look_all(run(face, m, m, tensors(face, case, seed)))


def look_all(tree: Any) -> Frozen:
    """Read everything now."""
    return Frozen(look(tree))


@mode()
def recipe(face: Face, case: Case, seed: int) -> Any:
    """A training step that is the model's own, compiled."""
    made = getattr(case, "recipe", None)
    if made is None:
        raise Skip("no recipe")
    return made(face, case, seed)


# Compiled.


@mode()
def compiled_forward(face: Face, case: Case, seed: int) -> Any:
    """The forward is compiled, the backward is outside; several calls."""
    m = module(face, case, seed)
    call = face.compile(m)
    found = []
    for k in range(CALLS):
        clear(m)
        found.append(look(run(face, m, call, tensors(face, case, seed + k))))
    return several(found)


@mode()
def compiled_same_inputs(face: Face, case: Case, seed: int) -> Any:
    """The same tensors at each call: what is written and what accumulates is seen by the next one."""
    m, xs = module(face, case, seed), tensors(face, case, seed)
    call = face.compile(lambda *ys: m(*ys))
    return several([look(run(face, m, call, xs)) for _ in range(CALLS)])


@mode()
def compiled_no_grad(face: Face, case: Case, seed: int) -> Any:
    """Without gradients."""
    m = module(face, case, seed).eval()
    call = face.compile(m)
    found = []
    for k in range(CALLS):
        xs = tensors(face, case, seed + k)
        with face.t.no_grad():
            # Detached: a view made here says in PyTorch that it requires gradients, as its base does.
            outs = [x.detach() for _, x in leaves(call(*xs))]
            found.append(look([outs, list(xs)]))
    return several(found)


@mode()
def compiled_grad(face: Face, case: Case, seed: int) -> Any:
    """Forward and gradients in one program."""
    m = module(face, case, seed)
    parameters = list(m.parameters())

    def step(*xs: Any) -> Any:
        outs = m(*xs)
        loss = loss_of(face.t, outs)
        wanted = [x for x in xs if x.requires_grad] + parameters
        return outs, face.t.autograd.grad(loss, wanted, allow_unused=True)

    call = face.compile(step)
    found = []
    for k in range(CALLS):
        xs = tensors(face, case, seed + k)
        found.append(look([call(*xs), list(xs), dict(m.named_buffers())]))
    return several(found)


@mode()
def compiled_step(face: Face, case: Case, seed: int) -> Any:
    """A whole training step, with an optimizer."""
    t, m = face.t, module(face, case, seed)
    given = tensors(face, case, seed)
    trained = [x for x in given if x.requires_grad]
    parameters = trained + list(m.parameters())
    if not parameters:
        raise Skip("nothing to train")
    makes = (
        lambda: t.optim.SGD(parameters, lr=0.02, momentum=0.9),
        lambda: t.optim.Adam(parameters, lr=0.01, eps=1e-2),
        lambda: t.optim.AdamW(parameters, lr=0.01, eps=1e-2),
        lambda: t.optim.RMSprop(parameters, lr=0.01, eps=1e-2),
    )
    optimizer = makes[seed % len(makes)]()

    def step(*data: Any) -> Any:
        optimizer.zero_grad()
        rest = iter(data)
        outs = m(*[x if x.requires_grad else next(rest) for x in given])
        loss = loss_of(t, outs)
        loss.backward()
        optimizer.step()
        return loss

    call = face.compile(step)
    found = []
    for k in range(CALLS):
        data = [face.tensor(x, seed + k) for x in case.inputs if not x.grad]
        loss = call(*data)
        found.append(
            look([loss, parameters, [p.grad for p in parameters], dict(m.named_buffers()), data])
        )
    return several(found)


def sized(case: Case, more: int) -> list[Input]:
    """The inputs with a larger first dimension, where they have that of the first one."""
    if not case.inputs or not case.inputs[0].shape:
        raise Skip("no first dimension")
    if (
        isinstance(case, Program)
        and case.has("unfold", "as_strided")
        and case.has("_(", "] =", "_scatter(")
    ):
        raise Skip("views of other sizes may overlap, and be written to")
    n = case.inputs[0].shape[0]
    return [
        replace(x, shape=(n + more, *x.shape[1:])) if x.shape[:1] == (n,) else x
        for x in case.inputs
    ]


def _sizes(face: Face, case: Case, seed: int, mark: Callable[[Any], Any]) -> Frozen:
    m = module(face, case, seed)
    call = face.compile(m)
    found = []
    for k, more in enumerate((0, 1, 3, 0)):
        clear(m)
        xs = [face.tensor(x, seed + k) for x in sized(case, more)]
        for x, y in zip(xs, sized(case, 1), strict=True):
            if tuple(x.shape) != y.shape or more == 1:
                mark(x)
        found.append(look(run(face, m, call, xs)))
    return several(found)


@mode()
def compiled_sizes(face: Face, case: Case, seed: int) -> Any:
    """Sizes change from call to call."""
    return _sizes(face, case, seed, lambda x: None)


@mode("tensor")
def compiled_dynamic(face: Face, case: Case, seed: int) -> Any:
    """Sizes change, and the dimension is marked."""

    def mark(x: Any) -> None:
        if face.t is webtorch and x.ndim:
            webtorch.mark_dynamic(x, 0)

    m = module(face, case, seed)
    call = face.compile(m)
    found = []
    n = case.inputs[0].shape[0] if case.inputs and case.inputs[0].shape else 0
    for k, more in enumerate((0, 1, 3, 0)):
        given = sized(case, more)
        xs = [face.tensor(replace(x, grad=False), seed + k) for x in given]
        for x, old in zip(xs, case.inputs, strict=True):
            if old.shape[:1] == (n,):
                mark(x)
        with face.t.no_grad():
            found.append(look(call(*xs)))
    return several(found)


@mode()
def compiled_modes(face: Face, case: Case, seed: int) -> Any:
    """train() and eval() between calls."""
    m = module(face, case, seed)
    if not list(m.children()):
        raise Skip("no layers")
    call = face.compile(m)
    found = []
    for k, training in enumerate((True, False, True, False)):
        call.train(training)
        clear(m)
        found.append(look(run(face, m, call, tensors(face, case, seed + k))))
    return several(found)


@mode("tensor")
def compiled_second(face: Face, case: Case, seed: int) -> Any:
    """Gradients of gradients in one program."""
    unfit_for_second(case)
    m = module(face, case, seed)
    parameters = list(m.parameters())
    t = face.t

    def step(*xs: Any) -> Any:
        wanted = [x for x in xs if x.requires_grad] + parameters
        outs = m(*xs)
        grads = t.autograd.grad(loss_of(t, outs), wanted, create_graph=True, allow_unused=True)
        return outs, values_of(grads), seconds(t, grads, wanted)

    call = face.compile(step)
    return several([look(call(*tensors(face, case, seed + k))) for k in range(CALLS)])


@mode()
def compiled_chain(face: Face, case: Case, seed: int) -> Any:
    """A compiled function's results go into plain operations, and into it again."""
    m = module(face, case, seed)
    call = face.compile(m)
    if not case.inputs or case.inputs[0].dtype != "float32":
        raise Skip("the first input is no float")
    found = []
    for k in range(CALLS):
        clear(m)
        xs = tensors(face, case, seed + k)
        first = call(*xs)
        scale = 1 / (1 + loss_of(face.t, first) ** 2)
        ys = [xs[0] * scale, *[x.detach().clone().requires_grad_(x.requires_grad) for x in xs[1:]]]
        outs = [call(*ys), first]
        loss = loss_of(face.t, outs)
        if loss.requires_grad:
            loss.backward()
        found.append(look([outs, state(m, xs), [y.grad if y.is_leaf else None for y in ys]]))
    return several(found)


@mode("tensor")
def compiled_threads(face: Face, case: Case, seed: int) -> Any:
    """One compiled module, called by three threads at once."""
    m = module(face, case, seed).eval()
    call = face.compile(m)
    parameters = list(m.parameters())

    def work(k: int) -> list[Result]:
        found = []
        for number in range(2):
            xs = tensors(face, case, seed + CALLS * number + k)
            # Not what the call gives a history: what its results owe to that, no compiler tells.
            wanted = [x for x in xs if x.requires_grad] + parameters
            outs = call(*xs)
            loss = loss_of(face.t, outs)
            grads = []
            if hasattr(loss, "requires_grad") and loss.requires_grad:
                grads = face.t.autograd.grad(loss, wanted, allow_unused=True)
            found.append(look([outs, grads, list(xs)]))
        return several(found)

    return in_threads(work)


@mode()
def compiled_checkpointed(face: Face, case: Case, seed: int) -> Any:
    """A compiled function that is computed again in the backward pass."""
    _refused_plainly(face, case, seed)
    m = module(face, case, seed)
    inner = face.compile(m)
    found = []
    for k in range(2):
        clear(m)

        def call(*ys: Any) -> Any:
            if face.oracle and not list(m.buffers()):
                return inner(*[y.clone() for y in ys])
            return face.t.utils.checkpoint.checkpoint(
                lambda *zs: inner(*[z.clone() for z in zs]), *ys, use_reentrant=False
            )

        found.append(look(run(face, m, call, tensors(face, case, seed + k))))
    return several(found)


@mode("tensor")
def exported(face: Face, case: Case, seed: int) -> Any:
    """Written as a page, and replayed from its files."""

    def replayed(folder: Path, xs: list[Any]) -> dict[str, Any]:
        site = Site(folder)
        (name,) = site.functions()
        return site.run(name, face.device)

    return on_a_page(face, case, seed, replayed)


def on_a_page(
    face: Face, case: Case, seed: int, replayed: Callable[[Path, list[Any]], dict[str, Any]]
) -> Any:
    """The results by `replayed` of a page's folder and the arguments."""
    m, xs = module(face, case, seed).eval(), tensors(face, case, seed)
    with face.t.no_grad():
        outs = [x for _, x in leaves(m(*[x.detach().clone() for x in xs]))]
    if any(x.is_complex() or x.numel() == 0 for x in outs):
        raise Skip("pages have no complex numbers")
    if face.oracle:
        return Frozen(replace(r, grad=False) for r in look(outs))
    with tempfile.TemporaryDirectory() as folder:
        webtorch.export(m, folder, tuple(x.detach() for x in xs), cpu=False)
        found = replayed(Path(folder), xs)
    plain_results = look(outs)
    names = ["out" if not k else f"out{k}" for k in range(len(outs))]
    out = Frozen()
    for key, r in zip(names, plain_results, strict=True):
        if key not in found:
            # A constant or an input, which the page has already.
            out.append(replace(r, grad=False))
            continue
        out.append(replace(r, grad=False, values=numpy.array(found[key]).reshape(r.shape)))
    return out


# Transforms.


def scalar(face: Face, call: Any) -> Callable[..., Any]:
    """(loss, results) of a function."""

    def of(*xs: Any) -> Any:
        outs = call(*xs)
        return loss_of(face.t, outs), outs

    return of


def floats(case: Case) -> tuple[int, ...]:
    """The positions of float inputs."""
    found = tuple(i for i, x in enumerate(case.inputs) if x.dtype == "float32")
    if not found:
        raise Skip("no float input")
    return found


def bare(face: Face, case: Case, seed: int) -> list[Any]:
    """The inputs without gradients."""
    return [face.tensor(replace(x, grad=False), seed) for x in case.inputs]


def stacked(face: Face, case: Case, seed: int) -> list[Any]:
    """Three of each input."""
    return [face.t.stack(list(xs)) for xs in zip(*[bare(face, case, seed + k) for k in range(3)])]


def _no_grads(m: Any) -> Any:
    return m.requires_grad_(False)


def _fit_for_forward_mode(case: Case) -> None:
    """Skip what PyTorch's forward mode has wrong: `x.addcmul_(x, x)` reads x after the write."""
    if re.search(r"(\b\w+)\.\w+_\(.*\b\1\b", case.pasted()):
        raise Skip("an in-place operation on its own operand")


def _of_one_type(found: Any) -> Any:
    """Values, and tangents of their types: PyTorch's tangent of a number times a 0-d tensor is float64."""
    values, tangents = ([x for _, x in leaves(part)] for part in found)
    return values, [
        t.to(x.dtype) if hasattr(t, "dtype") else t for x, t in zip(values, tangents, strict=True)
    ]


def _fit_for_vmap(case: Case) -> None:
    """Skip what depends on a layout of PyTorch's own: batch_norm's result has the mapped dimension last."""
    if "as_strided" in case.pasted() and "orm" in case.pasted():
        raise Skip("the layout of a vmapped normalization")


def _sees_its_writes(face: Face, case: Case, seed: int) -> None:
    """Skip what PyTorch refuses plainly: a transform of its does not see that a saved value is overwritten."""
    if not face.oracle:
        return
    which = floats(case)
    inputs = tuple(replace(x, grad=x.grad or i in which) for i, x in enumerate(case.inputs))
    for of_all in (False, True):
        try:
            plain(face, replace(case, inputs=inputs) if of_all else case, seed)
        except RuntimeError as error:
            # With gradients of all inputs, those written in place are refused for being leaves.
            if not of_all or "modified by an inplace operation" in str(error):
                raise Skip("PyTorch refuses it plainly") from error


def _transforms(face: Face, case: Case, seed: int, call: Any, kind: str) -> Any:
    f, t = face.t.func, face.t
    _sees_its_writes(face, case, seed)
    if kind in ("jvp", "jvp_grad", "hessian"):
        _fit_for_forward_mode(case)
    if "vmap" in kind:
        _fit_for_vmap(case)
    if kind not in ("grad", "vjp", "jvp") and "_hook" in case.pasted():
        # Which of several levels runs a hook, and on what, is PyTorch's own.
        raise Skip("hooks")
    if kind in ("jacrev", "hessian") and "cdist" in case.pasted():
        raise Skip("PyTorch's jacrev of cdist(x, f(x)) is 0")
    if kind == "grad_vmap" and "select_scatter" in case.pasted():
        raise Skip("PyTorch's gradient of a vmapped select_scatter is that times the examples")
    which = floats(case)
    if kind == "grad":
        xs = bare(face, case, seed)
        return f.grad(scalar(face, call), which, has_aux=True)(*xs), xs
    if kind == "vmap":
        xs = stacked(face, case, seed)
        return f.vmap(call)(*xs), xs
    if kind == "vmap_grad":
        xs = stacked(face, case, seed)
        return f.vmap(f.grad(scalar(face, call), which, has_aux=True))(*xs), xs
    if kind == "grad_vmap":
        return f.grad(scalar(face, f.vmap(call)), which, has_aux=True)(*stacked(face, case, seed))
    if kind == "half_vmap":
        dims = tuple(0 if i % 2 == 0 else None for i in range(len(case.inputs)))
        some = [
            x if d == 0 else x[0].clone()
            for x, d in zip(stacked(face, case, seed), dims, strict=True)
        ]
        return f.vmap(call, in_dims=dims, out_dims=0)(*some)
    xs = bare(face, case, seed)

    def of(*ys: Any) -> Any:
        rest = list(xs)
        for i, y in zip(which, ys, strict=True):
            rest[i] = y
        return call(*rest)

    def number(*ys: Any) -> Any:
        return loss_of(t, of(*ys))

    given = tuple(xs[i] for i in which)
    tangents = tuple(face.tensor(replace(case.inputs[i], grad=False), seed + 1) for i in which)
    everything = tuple(range(len(which)))
    if kind == "jvp":
        return _of_one_type(f.jvp(of, given, tangents)), xs
    if kind == "vjp":
        out, back = f.vjp(number, *given)
        return out, back(t.ones_like(out))
    if kind == "jvp_grad":
        return _of_one_type(f.jvp(f.grad(number, everything), given, tangents))
    if kind == "jacrev":
        return f.jacrev(
            lambda *ys: [r for _, r in leaves(of(*ys)) if r.is_floating_point()], everything
        )(*given)
    if kind == "hessian":
        # PyTorch's is float64 where a number meets a 0-d tensor.
        return f.hessian(number)(*given).to(given[0].dtype)
    if kind == "grad_grad":

        def inner(*ys: Any) -> Any:
            return loss_of(t, [g * g for g in f.grad(number, everything)(*ys)])

        return f.grad(inner, everything)(*given)
    raise AssertionError(kind)


def _add_transforms() -> None:
    kinds = (
        "grad",
        "vmap",
        "vmap_grad",
        "grad_vmap",
        "half_vmap",
        "jvp",
        "vjp",
        "jvp_grad",
        "jacrev",
        "hessian",
        "grad_grad",
    )
    for kind in kinds:

        def over_plain(face: Face, case: Case, seed: int, kind: str = kind) -> Any:
            m = _no_grads(module(face, case, seed).eval())
            return look_all(_transforms(face, case, seed, m, kind))

        def over_compiled(face: Face, case: Case, seed: int, kind: str = kind) -> Any:
            m = _no_grads(module(face, case, seed).eval())
            call = face.compile(m)
            return several([look(_transforms(face, case, seed + k, call, kind)) for k in range(2)])

        def compiled(face: Face, case: Case, seed: int, kind: str = kind) -> Any:
            m = _no_grads(module(face, case, seed).eval())
            _sees_its_writes(face, case, seed)
            call = face.compile(lambda *xs: _transforms_of(face, case, m, kind, xs))
            found = []
            for k in range(2):
                xs = inputs_of(face, case, seed + k, kind)
                found.append(look((call(*xs), xs)))
            return several(found)

        MODES[f"func_{kind}"] = Mode(f"func_{kind}", over_plain, BOTH)
        MODES[f"func_{kind}_compiled"] = Mode(f"func_{kind}_compiled", over_compiled, ("tensor",))
        if kind in ("grad", "vmap", "vmap_grad", "jvp"):
            MODES[f"compiled_{kind}"] = Mode(f"compiled_{kind}", compiled, ("tensor",))


def inputs_of(face: Face, case: Case, seed: int, kind: str) -> list[Any]:
    """What a transform takes."""
    return stacked(face, case, seed) if "vmap" in kind else bare(face, case, seed)


def _transforms_of(face: Face, case: Case, m: Any, kind: str, xs: Any) -> Any:
    f, which = face.t.func, floats(case)
    if kind == "grad":
        return f.grad(scalar(face, m), which, has_aux=True)(*xs)
    if "vmap" in kind:
        _fit_for_vmap(case)
    if kind == "vmap":
        return f.vmap(m)(*xs)
    if kind == "vmap_grad":
        return f.vmap(f.grad(scalar(face, m), which, has_aux=True))(*xs)

    def of(*ys: Any) -> Any:
        rest = list(xs)
        for i, y in zip(which, ys, strict=True):
            rest[i] = y
        return m(*rest)

    _fit_for_forward_mode(case)
    given = tuple(xs[i] for i in which)
    return _of_one_type(f.jvp(of, given, tuple(x.cos() for x in given)))


_add_transforms()


@mode()
def func_parameters(face: Face, case: Case, seed: int) -> Any:
    """Gradients of parameters, of each sample by itself."""
    m = module(face, case, seed).eval()
    _sees_its_writes(face, case, seed)
    f = face.t.func
    parameters = {n: p.detach() for n, p in m.named_parameters()}
    if not parameters:
        raise Skip("no parameters")
    _fit_for_vmap(case)

    def loss(ps: Any, *xs: Any) -> Any:
        return loss_of(face.t, f.functional_call(m, ps, xs))

    xs = stacked(face, case, seed)
    return look_all(f.vmap(f.grad(loss), in_dims=(None, *[0] * len(xs)))(parameters, *xs))


# Outcomes.


@dataclass(frozen=True)
class Outcome:
    """What became of a case: "passed", "failed", "refused" or "skipped"."""

    status: str
    kind: str = ""
    text: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is a fault."""
        return self.status == "failed"


@contextlib.contextmanager
def _running(face: Face) -> Iterator[None]:
    old = torch.get_default_dtype()
    if face.oracle:
        torch.set_default_dtype(torch.float64 if face.wide else torch.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(old)


def results(face: Face, case: Case, mode: Mode, seed: int) -> list[Result]:
    """Run a case, and read what it gives."""
    with _running(face):
        face.t.manual_seed(seed)
        found = mode.run(face, case, seed)
        return found if isinstance(found, Frozen) else look(found)


def place(error: BaseException) -> str:
    """The innermost function of webtorch that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/webtorch/" in f.filename]
    found = (ours or frames)[-1]
    return f"{'/'.join(Path(found.filename).parts[-2:])}:{found.name}"


def expected(case: Case, mode: Mode, seed: int) -> Expected:
    """What PyTorch gives. Raises Skip where it refuses, or where rounding decides."""
    try:
        narrow, wide = (results(oracle(w), case, mode, seed) for w in (False, True))
    except Skip:
        raise
    except Exception as error:
        raise Skip(f"PyTorch refuses: {type(error).__name__}: {error}") from error
    return Expected(narrow, wide, "bfloat16" if mode.loose else case.low)


def _slope(case: Case, seed: int) -> float:
    """The derivative of a program's loss in one direction, from differences, in float64."""

    def loss(step: float) -> float:
        face = oracle(True)
        with _running(face), torch.no_grad():
            torch.manual_seed(seed)
            m, xs = module(face, case, seed), tensors(face, case, seed)
            for x in (*m.parameters(), *[x for x in xs if x.requires_grad]):
                x.add_(step * _direction(tuple(x.shape)))
            return float(loss_of(torch, m(*xs)))

    return (loss(1e-6) - loss(-1e-6)) / 2e-6


def _direction(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.cos(1 + torch.arange(math.prod(shape), dtype=torch.float64)).reshape(shape)


def _where_pytorch_refuses(
    case: Case, mode: Mode, face: Face, seed: int, theirs: RuntimeError
) -> Outcome:
    """What PyTorch's autograd refuses is refused here, or has the right gradients: wrong ones would come
    without a word. (Here rules keep what an operation overwrites, and views know each other.)
    """
    try:
        found = results(face, case, mode, seed)
    except Exception as ours:
        if isinstance(ours, type(theirs)):
            return Outcome("passed")
        return Outcome("failed", f"another error at {place(ours)}", f"{ours!r}, not {theirs!r}")
    text = case.pasted()
    if case.low != "float32" or any(w in text for w in ("detach", "no_grad", "_hook")):
        return Outcome("skipped", "skipped", "differences say nothing of its gradients")
    exact, ours = _slope(case, seed), 0.0
    for r in found:
        if r.label.startswith(("result.grads", "result.params")) and isinstance(
            r.values, numpy.ndarray
        ):
            ours += float((numpy.real(r.values) * _direction(r.shape).numpy()).sum())
    if abs(ours - exact) <= 1e-3 * (1 + abs(exact)):
        return Outcome("passed")
    return Outcome(
        "failed", "no error", f"PyTorch raises {theirs!r}; the slope is {exact}, not {ours}"
    )


def _is_pytorchs_own(
    case: Case, mode: Mode, face: Face, seed: int, found: list[Result] | None
) -> bool:
    """Whether PyTorch's compiler gives what differs (None: an error) on the CPU, too, with no backend.

    What it refuses may be refused by ours; what it gives must be given by its own backend only.
    """
    compiles = mode.name.startswith("compiled") or mode.name in ("recipe", "default_device")
    if not compiles or (face.t is not torch and found is not None):
        return False
    bare = Face("compiled", torch, "cpu", lambda f: torch.compile(f, backend="aot_eager"))
    torch._dynamo.reset()
    try:
        theirs = results(bare, case, mode, seed)
    except Exception:
        # Where the graph breaks at retain_grad(), PyTorch's compiler loses hooks put on its tensor later.
        text = case.pasted()
        return found is None or ("retain_grad()" in text and "register_hook" in text)
    return found is not None and Expected(theirs, theirs, case.low).differs(found) is None


def outcome(case: Case, mode: Mode, face: Face, seed: int) -> Outcome:
    """Run a case in a mode on a face, and compare."""
    if (mode.name == "recipe") != (getattr(case, "recipe", None) is not None):
        return Outcome("skipped", "skipped", "recipes have one mode")
    try:
        right = expected(case, mode, seed)
    except Skip as error:
        if mode.name == "plain" and isinstance(error.__cause__, RuntimeError):
            return _where_pytorch_refuses(case, mode, face, seed, error.__cause__)
        return Outcome("skipped", "skipped", str(error))
    if face.t is torch:
        torch._dynamo.reset()
    try:
        found = results(face, case, mode, seed)
    except Skip as error:
        return Outcome("skipped", "skipped", str(error))
    except Exception as error:
        reason = refused(error, face.name)
        if reason is not None:
            return Outcome("refused", reason, str(error))
        if _is_pytorchs_own(case, mode, face, seed, None):
            return Outcome("skipped", "skipped", "PyTorch's own compiler raises, too")
        text = "".join(traceback.format_exception(error))[-3000:]
        return Outcome("failed", f"{type(error).__name__} at {place(error)}", text)
    difference = right.differs(found, mode.loose)
    if difference is None:
        return Outcome("passed")
    if "values differ" in difference:
        try:
            nudge = NUDGE["bfloat16" if mode.loose else "float32"]
            for off in (nudge, -nudge):
                right.widen(results(replace(oracle(True), nudge=off), case, mode, seed))
        except Skip as error:
            return Outcome("skipped", "skipped", str(error))
        if right.differs(found, mode.loose) is None:
            return Outcome("skipped", "skipped", "ill-conditioned")
    if _is_pytorchs_own(case, mode, face, seed, found):
        return Outcome("skipped", "skipped", "PyTorch's own compiler gives the same")
    what = "values" if "values differ" in difference else difference.split(": ")[-1].split(" ")[0]
    return Outcome("failed", f"wrong {what}", difference)
