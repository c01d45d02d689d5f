"""Autocast: operations choose the precision of their floating-point inputs. Floor 4.

Which rule an operation follows is the field `autocast` of its entry. An operation that has a rule
runs as a whole in the type that the rule chose: inside it autocast is off for its device. The state
is the thread's own.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs, Run, active, install
from webtorch.ir.dtype import DType, bfloat16, float16, float32, float64
from webtorch.ops.record import Autocast, AutocastRule
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import carried, enable_grad, mode, passes
from webtorch.tensors.tensor import Tensor

KINDS = ("cpu", "webgpu")
LOWER_PRECISION = (bfloat16, float16)
# PyTorch's words where autocast refuses.
UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


class Casts(dict[int, tuple[weakref.ref[Tensor], Tensor]]):
    """What was cast in an outermost context: id of a leaf -> (the leaf, its cast). It stands for the leaf until the
    context ends, whatever is written to the leaf, as in PyTorch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open = True
        # The last backward pass before.
        self._began = passes.last
        # Whether the context was entered inside a capture: what a capture makes must not be kept by a
        # context outside of it, nor the other way around.
        self.traced = tracing.active

    def close(self) -> None:
        """Forget what was cast, for good."""
        self.clear()
        self.open = False

    def are_old(self) -> bool:
        """Whether there has been a backward pass since the context began, or a cast is computed already, as after a
        step that was followed.
        """
        return self._began != passes.last or any(
            cast._storage.node.kind == "buffer" for _, cast in self.values()
        )

    def cast_of(self, x: Tensor, dtype: DType) -> Tensor | None:
        """Return what a leaf was cast to."""
        found = self.get(id(x))
        return (
            found[1] if found is not None and found[0]() is x and found[1].dtype is dtype else None
        )


class _State(threading.local):
    cache_enabled = True
    nesting = 0
    # What was cast in the outermost context that is open.
    casts: Casts | None = None
    # The kinds for which autocast is on, as a key.
    key: tuple[tuple[str, DType], ...] = ()

    def __init__(self) -> None:
        self._enabled: dict[str, DType] = {}
        self.chosen: dict[str, DType] = {"cpu": bfloat16, "webgpu": float16}

    @property
    def enabled(self) -> dict[str, DType]:
        """Device kind -> lower-precision type, of the kinds for which autocast is on."""
        return self._enabled

    @enabled.setter
    def enabled(self, kinds: dict[str, DType]) -> None:
        """Set them, and count whether there are any."""
        active.add(bool(kinds) - bool(self._enabled))
        self._enabled = kinds
        self.key = tuple(sorted(kinds.items(), key=lambda item: item[0])) if kinds else ()

    def enter(self) -> None:
        """Count one more context that is open."""
        if self.nesting == 0:
            self.casts = Casts()
        self.nesting += 1

    def leave(self) -> None:
        """Count one context less; the outermost forgets what was cast."""
        self.nesting -= 1
        if self.nesting == 0 and self.casts is not None:
            self.casts.close()
            self.casts = None

    def forget(self) -> None:
        """Forget what was cast in the context that is open."""
        if self.casts is not None:
            self.casts.close()
            self.casts = Casts()


state = _State()
carried.append(state)
Snapshot = tuple[dict[str, DType], dict[str, DType], bool]


def snapshot() -> Snapshot:
    """Return the settings of this thread, for `restored`."""
    return dict(state.enabled), dict(state.chosen), state.cache_enabled


@contextlib.contextmanager
def restored(settings: Snapshot) -> Iterator[None]:
    """Have the settings of `snapshot` inside, in a context within the one that is open, if one is."""
    now = snapshot()
    state.enabled, state.chosen, state.cache_enabled = settings
    state.enter()
    try:
        yield
    finally:
        state.leave()
        state.enabled, state.chosen, state.cache_enabled = now


def signature() -> tuple[tuple[str, DType], ...]:
    """Return what autocast does now, as a key: a function captured under one is not that of another."""
    return state.key


# ---- casting
# ------------------------------------------------------------------------------------------------------------


def _eligible(x: object, kind: str) -> bool:
    return (
        isinstance(x, Tensor)
        and x._storage.runtime.name == kind
        and x.dtype.kind == "float"
        and x.dtype is not float64
    )


def _cast(x: Tensor, dtype: DType) -> Tensor:
    """Return x in `dtype`; a parameter is cast once per outermost context."""
    if x.dtype is dtype:
        return x
    casts = state.casts
    kept = (
        casts is not None
        and state.cache_enabled
        and x.dtype is float32
        and dtype is not float32
        and x._requires_grad
        and x._grad_fn is None
        and x._base is None
        and casts.traced == tracing.active
        and not mode.inference
    )
    if not kept or casts is None:
        return x.to(dtype)
    found = casts.cast_of(x, dtype)
    if found is None:
        # Calls that are differentiated may use what one that is not has cast.
        with enable_grad():
            found = x.to(dtype)
        casts[id(x)] = weakref.ref(x), found
    return found


def _all_cast(x: object, dtype: DType, kind: str) -> object:
    """Return an argument with its eligible tensors in `dtype`, also those in lists and tuples."""
    if isinstance(x, Tensor):
        return _cast(x, dtype) if _eligible(x, kind) else x
    if isinstance(x, (list, tuple)) and any(isinstance(v, Tensor) for v in x):
        cast = [_all_cast(v, dtype, kind) for v in x]
        return tuple(cast) if isinstance(x, tuple) else cast
    return x


def _tensors(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[Tensor]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from (v for v in x if isinstance(v, Tensor))


def _widest(name: str, tensors: list[Tensor], kind: str) -> DType:
    """Return the type that mixed inputs are brought to: the lower one if all have it, else float32."""
    lower = widest = state.enabled[kind]
    for t in tensors:
        if not _eligible(t, kind):
            continue
        if t.dtype is float32 or widest is float32:
            widest = float32
        elif t.dtype is not lower:
            raise RuntimeError(
                f"{name}: Unexpected floating ScalarType in at::autocast::prioritize: autocast is "
                f"on with {lower}, and an input is {t.dtype}. Convert it, as in x.to({lower})."
            )
    return widest


class Autocasting:
    """The interpreter that casts the arguments of calls whose callee has rules, while autocast is on."""

    @property
    def on(self) -> bool:
        """Whether autocast is on in this thread, for any kind of device."""
        return bool(state.enabled)

    inside = on
    # A script compares what is on (`scripts.run`).
    watches = False

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Call with the arguments that the rules ask for, as a whole in their type."""
        rules: Autocast | None = callee.autocast
        if rules is None:
            return run(args, kwargs)
        if callee.writes or kwargs.get("out") is not None:
            # What writes to a tensor keeps its type.
            return _off(None, run, args, kwargs)
        tensors = list(_tensors(args, kwargs))
        # A number in a 0-d tensor on the CPU goes along with the others.
        kinds = {t._storage.runtime.name for t in tensors}
        kind = "cpu" if kinds == {"cpu"} else "webgpu"
        rule = rules.cpu if kind == "cpu" else rules.gpu
        if rule is None or kind not in state.enabled:
            return run(args, kwargs)
        args, kwargs = _ruled(rule, callee, kind, tensors, args, kwargs)
        return _off(kind, run, args, kwargs)


install("autocast", Autocasting())


def _off(kind: str | None, run: Run, args: Args, kwargs: Kwargs) -> object:
    """Call with autocast off for a kind of device; None: for all."""
    enabled = state.enabled
    state.enabled = {} if kind is None else {k: d for k, d in enabled.items() if k != kind}
    try:
        return run(args, kwargs)
    finally:
        state.enabled = enabled


def rules_of(function: Callable[..., object]) -> Autocast:
    """Return the rules that a function follows which is no entry of the table."""
    callee: Callee = function.callee  # type: ignore[attr-defined]
    return callee.autocast or Autocast()


def _ruled(
    rule: AutocastRule,
    callee: Callee,
    kind: str,
    tensors: list[Tensor],
    args: Args,
    kwargs: Kwargs,
) -> tuple[Args, Kwargs]:
    match rule:
        case "whole":
            return args, kwargs
        case "refuse":
            raise RuntimeError(UNSAFE)
        case "fp32_result":
            names = callee.op.positional()
            dtype_at = names.index("dtype") if "dtype" in names else len(names)
            given = args[dtype_at] if len(args) > dtype_at else kwargs.get("dtype")
            if given is None and tensors and _eligible(tensors[0], kind):
                args, kwargs = args[:dtype_at], {**kwargs, "dtype": float32}
            return args, kwargs
        case "lower":
            dtype = state.enabled[kind]
        case "fp32":
            dtype = float32
        case "promote":
            dtype = _widest(callee.name, tensors, kind)
    # From the last one on, as PyTorch's compiler has it: so the casts of weights are older than those of inputs, and
    # come later backward.
    named = {k: _all_cast(a, dtype, kind) for k, a in reversed(kwargs.items())}
    return tuple([_all_cast(a, dtype, kind) for a in reversed(args)])[::-1], named
