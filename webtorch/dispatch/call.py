"""One way in: where a call of a function goes while somebody wants to see it or to change it.

A public name, a method, an operator and an entry that another one calls are functions of one kind: each looks
whether an interpreter is on (`active.count`), and if so hands its call to `call`. There the interpreters that are
on in this thread take it one after the other, those that `ORDER` names first outermost: a mode of
`__torch_function__` may answer in the operation's place, autocast casts its arguments, the export to ONNX notes
it. The last of all is the operation itself, which records. When no interpreter is on, a call goes straight there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# What a call does: it is given the arguments by position and those by name.
Run = Callable[[Args, Kwargs], Any]
F = TypeVar("F", bound=Callable[..., Any])


# What a call is to a script (`webtorch.scripts`): an operation, or one that gives another tensor on the same memory (or
# sets it), as `x.data` does; made of calls that stand there themselves; a fact of a tensor that does not change, a flag
# of autograd, or the device; a look at values, or at a gradient; one that says whether gradients are recorded; one that
# registers a hook; one that gives results of a user's function their history; the beginning of a checkpointed part; a
# backward pass, or a part of one that ends where it calls a hook, or one that returns gradients; an optimizer's step;
# or something that ends it.
Role = Literal[
    "operation", "alias", "parts", "fact", "flag", "place", "reader", "gradient", "mark", "hook", "function", "part",
    "backward", "turn", "gradients", "step", "other",
]  # fmt: skip


def plays(role: Role) -> Callable[[F], F]:
    """Say what the calls of a method are to a script."""

    def mark(function: F) -> F:
        """Note the role at the function."""
        function.role = role  # type: ignore[attr-defined]
        return function

    return mark


class Callee:
    """What a call is of: a public function, a method, an operator or an entry.

    `public` is the function that users hold, None of a primitive; `op` its entry in the table, None of what is
    written with entries; `like` what has the same parameters, if `public` does not say them. `autocast` are the
    rules that it follows, and `writes` says that it writes to its first argument, which keeps its type. `parameters`
    are those by which its arguments are told apart when it is noted; what has none is noted by the calls that it
    makes. `find` answers calls that are known, while no interpreter is on, and returns None for others. `role` says
    what a script makes of it, and `watch`, given
    the arguments, returns what an optimizer's step depends on beside them: a list, and a tuple which is the same one
    while nothing has changed in it; or None where it does more than that.
    `scalars` says that numbers among the arguments are those of a formula for elements, and nothing else.
    """

    __slots__ = (
        "autocast", "find", "like", "name", "op", "parameters", "public", "role", "run", "scalars", "watch",
        "writes",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        run: Run,
        op: Any = None,
        *,
        parameters: inspect.Signature | None = None,
        autocast: Any = None,
        writes: bool = False,
        role: Role = "operation",
        watch: Callable[..., Any] | None = None,
        find: Run | None = None,
        like: Callable[..., object] | None = None,
        scalars: bool = False,
    ) -> None:
        self.scalars = scalars
        self.role, self.watch, self.find, self.like = role, watch, find, like
        self.name, self.run, self.op, self.parameters = name, run, op, parameters
        self.autocast, self.writes = autocast, writes
        self.public: Callable[..., object] | None = None

    def publish(self, function: Callable[..., object]) -> None:
        """Take the function that users hold, which from now on tells what its calls are of."""
        self.public = function
        function.callee = self  # type: ignore[attr-defined]


class Interpreter(Protocol):
    """Whoever sees calls before they are recorded, and may change them."""

    @property
    def on(self) -> bool:
        """Whether it wants to be asked, in this thread."""

    @property
    def inside(self) -> bool:
        """Whether it wants the calls, too, that one which it was asked about is made of."""

    @property
    def watches(self) -> bool:
        """Whether it wants to see each call, so that no script may answer one."""

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Return what a call gives; `run` is the call as it goes on below."""


class Count:
    """How many of something are on, in all threads: cheaper to ask than what is the thread's own. They count `among`
    others, too.
    """

    __slots__ = ("_lock", "among", "count")

    def __init__(self, among: Count | None = None) -> None:
        self.count, self.among = 0, among
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        """Count some that come, or that go."""
        with self._lock:
            self.count += number
        if self.among is not None:
            self.among.add(number)


# How many contexts are open in which somebody other than an interpreter looks at each operation: a capture, a
# transform, hooks of saved tensors, a check of each result. No script may answer a call in one.
looking = Count()


class Living(Count):
    """How many objects live for whose sake calls are looked at: each holds what `one` returns."""

    __slots__ = ()

    def one(self) -> object:
        """Count an object more. What is returned counts it out again, when it goes with the object."""
        self.add(1)
        return _One(self)


class _One:
    __slots__ = ("_of",)

    def __init__(self, of: Living) -> None:
        self._of = of

    def __del__(self) -> None:
        # Garbage is collected anywhere, where no lock may be waited for.
        _gone.append(self._of)


_gone: list[Living] = []


def count_out() -> None:
    """Count what has died since."""
    while _gone:
        # Another thread may be doing the same.
        with contextlib.suppress(IndexError):
            _gone.pop().add(-1)


class Follower(Protocol):
    """Who looks for steps that come again, in one thread (`webtorch.scripts`)."""

    thread: int

    def call(self, callee: Callee, args: Args, kwargs: Kwargs) -> Any:
        """Answer a call, or make it."""

    def rest(self, why: str, changed: bool = True) -> None:
        """Compute what is promised, or record it, and let go of what was given."""

    def refuse(self, why: str) -> None:
        """Keep what follows out of scripts until something is computed."""

    def before_drawing(self) -> None:
        """Let the calls that promised something draw random numbers before another one does."""

    def before_setting(self, generator: object) -> None:
        """Keep what was drawn before a generator is set out of scripts: it cannot be drawn again."""

    def moved(self, generator: object) -> None:
        """Take notice that a generator stands where it has stood before, or comes back from there."""

    def draw(self, generator: object, seed: int, offset: int) -> tuple[int, int]:
        """Return what was drawn, as numbers that remember it while calls are recorded."""


# The interpreters, outermost first.
ORDER = ("trace", "override", "profile", "autocast", "dispatch", "sparse", "listen")
_interpreters: dict[str, Interpreter] = {}
_inwards: list[Interpreter] = []


def interpreted(callee: Callee, args: Args, kwargs: Kwargs) -> Any:
    """Hand a call to the interpreters that are on, which no script has answered."""
    if _gone:
        count_out()
    run = callee.run
    for interpreter in _inwards:
        if interpreter.on:
            run = functools.partial(interpreter.call, callee, run)
    return run(args, kwargs)


def alone(callee: Callee, args: Args, kwargs: Kwargs) -> Any:
    """Make a call while no interpreter is on."""
    find = callee.find
    if find is not None and (out := find(args, kwargs)) is not None:
        return out
    return callee.run(args, kwargs)


class _Active(Count):
    """How many interpreters are on, a follower of scripts among them."""

    __slots__ = ("follower",)

    def __init__(self) -> None:
        super().__init__()
        self.follower: Follower | None = None

    def follow(self, follower: Follower | None) -> None:
        """Let calls go to a follower first, or to none from now on."""
        self.follower = follower
        self.add(-1 if follower is None else 1)

    @property
    def others(self) -> bool:
        """Whether an interpreter is on beside a follower."""
        return self.count > (self.follower is not None)


active = _Active()


def install(name: str, interpreter: Interpreter) -> None:
    """Make an interpreter known, under its name in `ORDER`."""
    _interpreters[name] = interpreter
    _inwards[:] = [_interpreters[n] for n in reversed(ORDER) if n in _interpreters]


def call(callee: Callee, args: Args, kwargs: Kwargs) -> Any:
    """Hand a call to the interpreters that are on in this thread, the operation itself last."""
    follower = active.follower
    try:
        if follower is not None:
            return follower.call(callee, args, kwargs)
        return interpreted(callee, args, kwargs)
    except Exception:
        again = _again(callee, functools.partial(call, callee), args, kwargs)
    return again()


# A call that fails is made once more where the class of an argument that is no tensor is to be asked (that costs calls
# without one nothing), and where PyTorch takes its arguments: for each number a tensor without dims, other names of
# parameters. All other calls pay nothing for that.
Again = Callable[[Callee, Callable[[Args, Kwargs], Any], Args, Kwargs], Callable[[], Any] | None]
_once_more: Again = lambda callee, run, args, kwargs: None  # noqa: E731


def install_again(function: Again) -> None:
    """Say who returns how a call is made once more; None where it is not."""
    global _once_more
    _once_more = function


def _again(callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Callable[[], object]:
    """Return how the call that has just failed is made once more, by `run`. Raises its error again if it is not."""
    found = _once_more(callee, run, args, kwargs)
    if found is None:
        raise
    return found


def settle_scripts(why: str, changed: bool = True) -> None:
    """Compute what a script has promised, or record it; and let go of what it was given. `changed`: what comes may
    change what tensors are like that are there, beside their values.
    """
    if active.follower is not None:
        active.follower.rest(why, changed)


def refuse_scripts(why: str) -> None:
    """Keep what the running thread does now out of scripts, until something is computed."""
    if active.follower is not None:
        active.follower.refuse(why)


def inside() -> bool:
    """Whether an interpreter that is on in this thread wants the calls that a call is made of."""
    if _gone:
        count_out()
    return any(interpreter.inside for interpreter in _inwards)


def watched() -> bool:
    """Whether an interpreter that is on in this thread wants to see each call."""
    if _gone:
        count_out()
    return any(interpreter.watches for interpreter in _inwards)


def enter(callee: Callee, args: Args, kwargs: Kwargs) -> Any:
    """Call, by way of the interpreters where one is on."""
    if active.count:
        return call(callee, args, kwargs)
    try:
        return callee.run(args, kwargs)
    except Exception:
        again = _again(callee, callee.run, args, kwargs)
    return again()


def bind(callee: Callee, like: Callable[..., object]) -> Callable[..., Any]:
    """Return the function that users call, with the name, signature and documentation of `like`."""
    run, find = callee.run, callee.find

    @functools.wraps(like)
    def function(*args: object, **kwargs: object) -> Any:
        """Call the operation, or the interpreters that are on."""
        if active.count:
            return call(callee, args, kwargs)
        if find is not None and (out := find(args, kwargs)) is not None:
            return out
        try:
            return run(args, kwargs)
        except Exception:
            again = _again(callee, run, args, kwargs)
        return again()

    callee.publish(function)
    return function


def dispatched(
    noted_as: str = "", *, autocast: object = None, positional: bool = False, role: Role = "parts"
) -> Callable[[F], F]:
    """Decorate a public function that is no entry of the table: its calls go through the interpreters, too.

    `noted_as`: its name where calls are noted, if not only those that it makes itself. `positional`: Python alone
    calls it, with all of its arguments and without their names.
    """

    def decorate(function: F) -> F:
        """Return the function that asks whether an interpreter is on."""
        parameters = inspect.signature(function)
        callee = Callee(
            noted_as or function.__name__,
            lambda args, kwargs: function(*args, **kwargs),
            parameters=parameters if noted_as else None,
            autocast=autocast,
            role=getattr(function, "role", role),
        )
        names = list(parameters.parameters)
        # A script has no part in it.
        is_fact = callee.role == "fact"

        def called(*args: object, **kwargs: object) -> object:
            """Call the function, or the interpreters that are on."""
            if active.count and (active.others or not is_fact):
                return call(callee, args, kwargs)
            try:
                return function(*args, **kwargs)
            except Exception:
                again = _again(callee, callee.run, args, kwargs)
            return again()

        public: Callable[..., object] = called
        if names == ["self"]:

            def public(self: object) -> object:
                """Call the method, or the interpreters that are on."""
                if active.count and (active.others or not is_fact):
                    return call(callee, (self,), {})
                return function(self)

        elif positional and len(names) == 2:

            def public(self: object, other: object) -> object:
                """Call the method, or the interpreters that are on."""
                if active.count:
                    return call(callee, (self, other), {})
                try:
                    return function(self, other)
                except Exception:
                    again = _again(callee, callee.run, (self, other), {})
                return again()

        callee.publish(functools.update_wrapper(public, function))
        return public  # type: ignore[return-value]

    return decorate


def dispatch_methods(cls: type[object], left_out: frozenset[str]) -> None:
    """Do the same with the methods and properties that a class defines, but for hidden ones and those `left_out`."""
    way_in = dispatched(role="other")
    for name, value in list(vars(cls).items()):
        if name in left_out or (name.startswith("_") and not name.startswith("__")):
            continue
        if isinstance(value, FunctionType):
            setattr(cls, name, way_in(value))
        elif isinstance(value, property):
            parts = value.fget, value.fset, value.fdel
            get, put, drop = [h if h is None else way_in(h) for h in parts]
            setattr(cls, name, property(get, put, drop, doc=value.__doc__))  # type: ignore[arg-type]
