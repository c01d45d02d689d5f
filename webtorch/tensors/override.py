"""`__torch_function__`: classes and modes that are asked before an operation runs. Floor 4.

Few programs have such a class, and the others pay nothing for it: classes of tensors are asked while one of their
tensors lives (`counted`), and modes while they are on, by the outermost of the interpreters that a call goes through
(`webtorch.dispatch.call`). The class of an object that is no tensor is asked when a call has failed that was given it
(`meets`).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from webtorch.dispatch.call import (
    Args,
    Callee,
    Kwargs,
    Living,
    Run,
    active,
    dispatch_methods,
    install,
    refuse_scripts,
)
from webtorch.ops.record import TABLE, public_name
from webtorch.tensors import above


class _State(threading.local):
    # Whether classes are asked, and whether modes are.
    classes = True
    modes_asked = True
    # The modes that are on, innermost last.
    modes: tuple[Any, ...] = ()
    # How many blocks are open in which the classes of all arguments are asked (`asking`).
    asking = 0
    # Whether the next call asks nobody (`unasked`).
    skip = False
    # Whether entries that a function calls ask, too (`asking_entries`).
    entries = False


state = _State()
# The classes of tensors and sizes, which stand above this file and make themselves known.
Tensor: Any = None
Size: Any = None


def know(tensor: type[object], size: type[object]) -> None:
    """Take the class of tensors, which is asked nothing, and that of sizes."""
    global Tensor, Size
    Tensor, Size = tensor, size
    plain.add(tensor)
    for cls in tensor.__mro__[:-1]:
        dispatch_methods(cls, _IGNORED)


def disabled(func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
    """Call `func`: as `__torch_function__` of a class, this says that the class is not asked."""
    with Switch(classes=False):
        return func(*args, **(kwargs or {}))


def unasked(func: Callable[..., Any], types: object, args: Sequence[object], kwargs: Any) -> Any:
    """Call `func`, which asks nobody: what it calls does."""
    state.skip = True
    try:
        return func(*args, **(kwargs or {}))
    finally:
        state.skip = False


def skipped() -> bool:
    """Whether a call asks nobody; the one after it does."""
    found, state.skip = state.skip, False
    return found


@contextlib.contextmanager
def asking_entries() -> Iterator[None]:
    """A block in which the classes of arguments are asked about the entries of the table that a function is made of."""
    before, state.entries = state.entries, True
    try:
        yield
    finally:
        state.entries = before


class Switch:
    """A block in which classes, or classes and modes, are not asked."""

    __slots__ = ("_before", "_chosen")

    def __init__(self, *, classes: bool | None = None, modes: bool | None = None) -> None:
        self._chosen = classes, modes

    def __enter__(self) -> None:
        self._before = state.classes, state.modes_asked
        classes, modes = self._chosen
        state.classes = self._before[0] if classes is None else classes
        state.modes_asked = self._before[1] if modes is None else modes

    def __exit__(self, *_: object) -> None:
        state.classes, state.modes_asked = self._before


def asks(kind: type[object]) -> bool:
    """Whether objects of a class are asked before an operation runs."""
    found = getattr(kind, "__torch_function__", disabled)
    return found is not disabled and kind is not Tensor


def dispatches(kind: type[object]) -> bool:
    """Whether tensors of a class are asked for kernels."""
    return getattr(kind, "__torch_dispatch__", disabled) is not disabled


def overloaded(values: Iterable[object]) -> list[Any]:
    """Return the first object of each class that is asked, in the order in which they are: as given,
    but a subclass before its bases.
    """
    found: list[object] = []
    for x in values:
        kind = type(x)
        if kind in _NEVER or not asks(kind) or any(type(o) is kind for o in found):
            continue
        place = next((i for i, o in enumerate(found) if issubclass(kind, type(o))), len(found))
        found.insert(place, x)
    return found


_NEVER = frozenset((int, float, bool, complex, str, bytes, type(None), slice, type))


def flat(args: Iterable[Any], within: tuple[int, ...] = ()) -> Iterator[Any]:
    """The arguments, with those of lists and tuples in the places of these; a list in itself has no more of them."""
    for x in args:
        if type(x) in (list, tuple):
            if id(x) not in within:
                yield from flat(x, (*within, id(x)))
        else:
            yield x


def ask(
    func: Callable[..., object],
    relevant: Iterable[object],
    args: Sequence[object],
    kwargs: dict[str, object],
) -> Any:
    """Return what the innermost mode, or else the first class that accepts, makes of a call.

    Raises TypeError if nobody accepts.
    """
    found = overloaded(relevant)
    types = tuple([type(x) for x in found])
    modes = state.modes if state.modes_asked else ()
    if modes:
        state.modes = modes[:-1]
        try:
            result = modes[-1].__torch_function__(func, types, args, kwargs)
        finally:
            state.modes = modes
        if result is not NotImplemented:
            return result
    for x in found:
        result = x.__torch_function__(func, types, args, kwargs)
        if result is not NotImplemented:
            return result
    asked = [f"mode object {modes[-1]}"] if modes else []
    asked += [f"tensor subclass {kind}" for kind in types]
    raise Refused(
        f"Multiple dispatch failed for '{name_of(func)}'; all __torch_function__ handlers returned "
        "NotImplemented:\n\n" + "\n".join(f"  - {a}" for a in asked)
    )


class Refused(TypeError):
    """Nobody who was asked accepts the call."""


def name_of(func: object) -> str:
    """Return a function's name for messages: "torch.add", "torch.Tensor.shape.__get__"."""
    return names().get(func) or str(getattr(func, "__name__", func))


@lru_cache(maxsize=1)
def names() -> dict[object, str]:
    """The names of the functions that ask; a function with several has the first."""
    found: dict[object, str] = {}
    for p in public_functions():
        found.setdefault(p.func, p.name)
    return found


class Override:
    """The interpreter that lets modes and classes answer a call."""

    def __init__(self) -> None:
        # The tensors whose classes are to be asked.
        self.tensors = Living(active)

    @property
    def on(self) -> bool:
        """Whether this thread has modes or classes to ask."""
        classes = (self.tensors.count or state.asking) and state.classes
        return bool((state.modes and state.modes_asked) or classes)

    @property
    def inside(self) -> bool:
        """Whether modes are on: they see what is called while an operation runs. Classes do not."""
        return bool(state.modes)

    watches = inside

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A block in which this thread asks the classes of arguments, also where no tensor has one."""
        askable()
        refuse_scripts("the classes of arguments are asked")
        state.asking += 1
        active.add(1)
        try:
            yield
        finally:
            active.add(-1)
            state.asking -= 1

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Return what the modes and classes make of a call, and what it gives where there are none."""
        if not (state.modes or state.skip or kwargs) and plain.issuperset(map(type, args)):
            # While a tensor of a class lives, most calls are of others, and of their parts.
            return run(args, kwargs)
        public = askable().get(callee.public)
        if public is None and state.entries and callee.op is not None:
            # An entry without a public function of its own is called itself.
            func = callee.public or callee.op
            public = Public(func, func, f"torch.{callee.name}")
        if public is None:
            return run(args, kwargs)
        if skipped():
            # Parts of an operation ask no class.
            with Switch(classes=False):
                return run(args, kwargs)
        modes = state.modes and state.modes_asked
        given = args if not kwargs else (*args, *kwargs.values())
        relevant: list[object] = []
        if state.classes and not public.only_modes and any(type(x) not in plain for x in given):
            relevant = [o for o in flat(given) if type(o) not in plain and asks(type(o))]
        if relevant or modes:
            if callee.op is not None and callee.op.spread and type(args[-1]) in (list, tuple):
                args = (*args[:-1], *args[-1])
            try:
                return ask(public.func, relevant, args, kwargs)
            except Refused:
                # Of an operator's operands the other one may know the answer: Python asks it.
                if public.name.rpartition(".")[2] in _binary():
                    return NotImplemented
                raise
        if public.only_modes and state.classes:
            with Switch(classes=False):
                return run(args, kwargs)
        return run(args, kwargs)


override = Override()
install("override", override)


def keep_class(
    cls: type[object], func: Callable[..., Any], types: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Call `func` with no class asked, and make tensors of class `cls` of the tensors it gives.

    Returns NotImplemented where `cls` is not below all of `types`.
    """
    if not all(issubclass(cls, t) for t in types):
        return NotImplemented
    with Switch(classes=False):
        found = func(*args, **kwargs)
        return found if func in nowrap() else _converted(found, cls)


def nowrap() -> set[Any]:
    """Return the functions whose results keep the class they have."""
    return {Tensor.grad.__get__}


def _converted(found: object, cls: type[object]) -> Any:
    if cls is Tensor:
        return found
    if isinstance(found, Tensor):
        return found if isinstance(found, cls) else found.as_subclass(cls)
    if isinstance(found, (tuple, list)) and type(found) is not Size:
        parts = [_converted(x, cls) for x in found]
        named = hasattr(found, "_fields")
        return type(found)(*parts) if named else type(found)(parts)
    return found


def counted(cls: object) -> object:
    """Return what a tensor of a class holds (`_living`), so that its class is asked while it lives. Raises TypeError
    where it is no class of tensors.
    """
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise TypeError(
            "Creating a Tensor subclass from a class that does not inherit from Tensor is not possible. "
            "Make sure your class inherits from Tensor."
        )
    if cls in plain:
        return None
    kernels = None
    if getattr(cls, "__torch_dispatch__", disabled) is not disabled:
        kernels = above.ask("asked_for_kernels")().one()
    if asks(cls):
        askable()
        return override.tensors.one(), kernels
    if kernels is None:
        plain.add(cls)
    return kernels


# Types that are asked nothing; Tensor and Parameter join when they exist.
plain: set[type[object]] = {int, float, bool, complex, str, bytes, type(None), slice}


def _foreign(args: Sequence[object], kwargs: dict[str, object]) -> Iterator[object]:
    given = (*args, *kwargs.values()) if kwargs else args
    return (x for x in flat(given) if type(x) not in plain and asks(type(x)))


def is_foreign(args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether an argument, or one in a list or tuple, is no tensor and its class is to be asked."""
    return state.classes and any(True for _ in _foreign(args, kwargs))


def meets(callee: Callee, args: Args, kwargs: Kwargs) -> bool:
    """Whether the classes of arguments are to be asked now that a call has failed: if nobody asked them before, and it
    is no part of a call that was given one of these objects, too, which will fail as well.
    """
    if not is_foreign(args, kwargs) or override.on or not _may_ask(callee):
        return False
    given = {id(x) for x in _foreign(args, kwargs)}
    frame: FrameType | None = sys._getframe()
    # What a class does that is asked is no part of the call.
    while frame is not None and frame.f_code is not ask.__code__:
        if frame.f_globals["__name__"] == Callee.__module__:
            around = frame.f_locals
            other = around.get("callee")
            if isinstance(other, Callee) and other is not callee and _may_ask(other):
                passed = around["args"] if "args" in around else (around.get("other"),)
                found = _foreign(passed, around.get("kwargs", {}))
                if any(id(x) in given for x in found):
                    return False
        frame = frame.f_back
    return True


def _may_ask(callee: Callee) -> bool:
    public = askable().get(callee.public)
    return public is not None and not public.only_modes


# Functions that are about no tensor, or about the class of one: nobody is asked.
_NOT_ASKING = """autocast_decrement_nesting autocast_increment_nesting broadcast_shapes can_cast
    clear_autocast_cache compile default_generator from_dlpack from_numpy get_autocast_cpu_dtype
    get_autocast_dtype get_autocast_gpu_dtype set_autocast_cpu_dtype set_autocast_cpu_enabled
    set_autocast_gpu_dtype set_anomaly_enabled get_default_device get_default_dtype
    get_float32_matmul_precision get_num_threads
    get_printoptions get_rng_state initial_seed is_anomaly_check_nan_enabled is_anomaly_enabled
    is_autocast_cache_enabled is_autocast_cpu_enabled is_autocast_enabled is_grad_enabled
    is_inference_mode_enabled is_tensor kernel load manual_seed mark_dynamic printoptions promote_types realize
    result_type save seed set_autocast_cache_enabled set_autocast_dtype set_autocast_enabled
    set_default_device set_default_dtype set_float32_matmul_precision set_num_threads set_printoptions
    set_rng_state sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum
    are_deterministic_algorithms_enabled get_deterministic_debug_mode get_num_interop_threads
    is_deterministic_algorithms_warn_only_enabled is_storage is_warn_always_enabled set_default_tensor_type
    set_deterministic_debug_mode set_flush_denormal set_num_interop_threads set_warn_always
    use_deterministic_algorithms
    synchronize to_dlpack typename install_as_torch uninstall_as_torch export vmap
    cond while_loop as_subclass item_async numpy_async tolist_async
    __delitem__ __init__ __new__ __init_subclass__ __getattr__ __hash__ __iter__ __await__ __copy__
    sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor
    sparse_compressed_tensor __torch_function__"""
_IGNORED = frozenset(_NOT_ASKING.split())
_INITIALISERS = ("uniform_", "normal_", "constant_", "kaiming_uniform_")
MODULES = ("", "nn.functional", "linalg", "fft", "special")


class Public(NamedTuple):
    """A function that asks: what `__torch_function__` is given for it, its name, and whether it asks
    modes only.
    """

    # A function of Python: mypy calls these methods.
    function: Any
    func: Any
    name: str
    only_modes: bool = False


@cache
def askable() -> dict[object, Public]:
    """Return the functions that ask; a function with several names has the first."""
    found: dict[object, Public] = {}
    for p in public_functions():
        found.setdefault(p.function, p)
    return found


def public_functions() -> Iterator[Public]:
    """The functions that ask."""
    factories = {
        public_name(op.name, p) for op in TABLE.values() if op.factory for p in op.function_in
    }
    for place in MODULES:
        module = importlib.import_module(f"webtorch.{place}".rstrip("."))
        # The package loads some of its names when they are used.
        for name in list(vars(module)) if place else module.__all__:
            value = getattr(module, name)
            hidden = name.startswith("_") or name in _IGNORED
            if isinstance(value, FunctionType) and not hidden:
                title = ".".join(filter(None, ("torch", place, name)))
                yield Public(value, value, title, name in factories)
    # Operators that arrive as the method of another name.
    methods = {o: op.name + "_" * o.startswith("__i") for op in TABLE.values() for o in op.asks}
    own = [one for cls in Tensor.__mro__[:-1] for one in vars(cls).items()]
    for name, value in own:
        hidden = name.startswith("_") and not name.startswith("__")
        if hidden or name in _IGNORED:
            continue
        if isinstance(value, FunctionType):
            yield Public(value, getattr(Tensor, methods.get(name, name)), f"torch.Tensor.{name}")
        elif isinstance(value, property):
            for half, func in ((value.fget, value.__get__), (value.fset, value.__set__)):
                if isinstance(half, FunctionType):
                    yield Public(half, func, f"torch.Tensor.{name}.{func.__name__}")
    check = importlib.import_module("webtorch.functions.check")._assert
    yield Public(check, check, "torch._assert")
    grad = importlib.import_module("webtorch.autograd").grad
    yield Public(grad, grad, "torch.autograd.grad")
    init = importlib.import_module("webtorch.nn.init")
    for name in _INITIALISERS:
        yield Public(getattr(init, name), getattr(init, name), f"torch.nn.init.{name}")


@cache
def _binary() -> frozenset[str]:
    """Return the operators whose other operand may know the answer: Python asks it."""
    names = [op.operator for op in TABLE.values() if op.operator and len(op.positional()) == 2]
    return frozenset(f"__{how}{name}__" for name in names for how in ("", "r", "i"))
