"""Optimizer: parameter groups, state, hooks and checkpoints; the base of all optimizers.

May import floors 0 to 4. No step reads from the device. What can change between steps is either on
the device (the step count) or read from the group through `Hyper`, so that a captured step, which
is replayed without Python, sees the value of the day.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import Any, ClassVar

from webtorch.dispatch.call import Callee, enter
from webtorch.errors import CHECKS
from webtorch.functions import public as webtorch
from webtorch.functions.legacy import typename
from webtorch.ir.dtype import DType
from webtorch.ir.lines import is_internal, user_depth
from webtorch.nn.gradients import clear_grads
from webtorch.optim.states import (
    StateDict,
    States,
    as_given,
    memory_of,
    moved_to,
    plain_of,
    values_of,
)
from webtorch.runtime.interrupt import whole
from webtorch.tensors.base import wraps
from webtorch.tensors.formats import strided
from webtorch.tensors.handle import Hook, RemovableHandle, add_hook
from webtorch.tensors.host import Watched, bindings, host_scalar, make_before, options_in, tracing
from webtorch.tensors.storage import Following
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import kept_value, realize

__all__ = [
    "Derived",
    "Hyper",
    "Optimizer",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "required",
]

# Parameters, and their options by name.
Group = dict[str, Any]

# A number computed from the options of a group.
Derived = Callable[[Group], float]


class _Required:
    """The default of an option that has none."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()

_global_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
_global_post_hooks: OrderedDict[int, Hook] = OrderedDict()


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` before every optimizer's step."""
    return add_hook(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` after every optimizer's step."""
    return add_hook(_global_post_hooks, hook)


class _Begun(StateDict):
    """The state of a parameter that begins while a step is captured.

    What begins as a constant exists then as if it had been made before: the captured program is
    that of every step, not that of the first.
    """

    def __setitem__(self, key: str, value: object) -> None:
        """Set an entry; a constant is computed at once."""
        if isinstance(value, Tensor):
            make_before(value)
        elif value is not None:
            tracing.refuse(f"the state of the optimizer begins with {key!r}, which is no tensor")
        super().__setitem__(key, value)


def _is_fixed(option: object) -> bool:
    """Whether an option stays what it is as long as it is the same object."""
    if type(option) is tuple:
        return all(map(_is_fixed, option))
    return option is None or type(option) in (bool, int, float, str)


class Hyper(Mapping[str, float]):
    """A group's options, and numbers derived from them, as host scalars.

    A host scalar is a float that remembers where it was read, here `hyper[name]`; a replayed
    program reads it there again. Arithmetic on the float would lose that, so what an update needs
    (minus the learning rate, one minus beta) is derived inside `__getitem__`.
    """

    def __init__(self, group: Group, derived: dict[str, Derived]) -> None:
        """Read from `group`; `derived` maps further names to functions of it."""
        self.group = group
        self._derived = derived
        # The options that were there when `stamp` was asked, and what it said.
        self._options: tuple[object, ...] = ()
        self._stamp: object = None

    def stamp(self) -> object:
        """Return what is another object once an option may have become another."""
        options, before = self.group.values(), self._options
        if len(options) != len(before) or not all(map(is_, options, before)):
            # Not where one may be written where it is.
            fixed = all(map(_is_fixed, options_in(self.group).values()))
            self._options, self._stamp = tuple(options) if fixed else (), object()
        return self._stamp

    @property
    def is_fixed(self) -> bool:
        """Whether the options stay what they were when `stamp` was asked as long as they are the same objects."""
        return bool(self._options)

    def __getitem__(self, name: str) -> float:
        """Return the number that `name` stands for now."""
        derive = self._derived.get(name)
        return float(self.group[name] if derive is None else derive(self.group))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that stand for a number."""
        numbers = (key for key, value in self.group.items() if isinstance(value, (int, float)))
        return chain(numbers, self._derived)

    def __len__(self) -> int:
        """Return how many names stand for a number."""
        return sum(1 for _ in self)

    def __call__(self, name: str) -> float:
        """Return the number as a host scalar, to be used inside tensor operations only."""
        return host_scalar(self, name)


# Numbers that optimizers with these options derive.
OF_DECAY: dict[str, Derived] = {
    "1-lr*weight_decay": lambda group: 1 - group["lr"] * group["weight_decay"],
}
OF_BETAS: dict[str, Derived] = {
    "beta1": lambda group: group["betas"][0],
    "1-beta1": lambda group: 1 - group["betas"][0],
    "beta2": lambda group: group["betas"][1],
    "1-beta2": lambda group: 1 - group["betas"][1],
    # Finite for beta = 0 too.
    "log beta1": lambda group: math.log(max(float(group["betas"][0]), 1e-37)),
    "log beta2": lambda group: math.log(max(float(group["betas"][1]), 1e-37)),
}


def _step_after(
    callee: Callee, optimizer: Optimizer, closure: Callable[[], object] | None = None
) -> object:
    """Take a step with a closure, whose calls are like those of other code where nobody looks at the step."""
    seen = closure is None or tracing.active or optimizer._watched() is None
    if seen or "found_inf" in vars(optimizer):
        return enter(callee, (optimizer, closure), {})
    assert closure is not None
    with webtorch.enable_grad():
        loss = closure()
    enter(callee, (optimizer,), {})
    return loss


def _hooked(step: Callable[..., object], takes_closure: bool = False) -> Callable[..., object]:
    """Return a class's `step` with hooks around it, without autograd unless differentiable. `takes_closure`: it calls
    the closure that it is given once, before all else.
    """

    @functools.wraps(step)
    def run(self: Optimizer, *args: object, **kwargs: object) -> object:
        """Call the hooks around the class's own step."""
        if "_optimizer_step_pre_hooks" not in self.__dict__:
            # A wrapper of another optimizer that never called __init__: the step inside has its hooks.
            return step(self, *args, **kwargs)
        for hook in chain(_global_pre_hooks.values(), self._optimizer_step_pre_hooks.values()):
            changed = hook(self, args, kwargs)
            if changed is not None:
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        f"{step} must return None or a tuple of (new_args, new_kwargs), "
                        f"but got {changed}."
                    )
                args, kwargs = changed
        # What wraps others has no memory.
        params = [p for group in self.param_groups for p in group["params"]]
        params = [memory_of(p) for p in params]
        backends = {p._storage.runtime.backend for p in params}
        stops = any(backend.stops for backend in backends)
        last = _Last(self) if stops and not tracing.active else None
        found_inf = self.__dict__.get("found_inf")
        before = None if found_inf is None else self._values()
        if tracing.active:
            tracing.optimizers[id(self)] = self
            self._begin_states()
        # Steps of this package read options through `Hyper`; those of users read the numbers.
        plain = tracing.plain_options if is_internal(step.__code__) else contextlib.nullcontext
        with (
            webtorch.set_grad_enabled(bool(self.defaults.get("differentiable", False))),
            plain(),
            whole,
        ):
            out = step(self, *args, **kwargs)
        if tracing.active:
            self._end_states()
        if before is not None and found_inf is not None:
            self._take_back(before, found_inf)
        for hook in chain(self._optimizer_step_post_hooks.values(), _global_post_hooks.values()):
            hook(self, args, kwargs)
        # One step is one program: recorded work does not pile up, and the cache sees it whole.
        try:
            realize(*params)
            for backend in backends:
                if backend.has_failed:
                    backend.synchronize()
        except CHECKS:
            # PyTorch, which is not lazy, would not have come to the step.
            if last is not None:
                last.give_back()
            raise
        return out

    watch = Optimizer._watched if is_internal(step.__code__) else None
    callee = Callee("step", lambda args, kwargs: run(*args, **kwargs), role="step", watch=watch)

    @functools.wraps(step)
    def entered(*args: Any, **kwargs: Any) -> Any:
        """Call the step, or the interpreters that are on."""
        if takes_closure and len(args) + len(kwargs) == 2:
            return _step_after(callee, args[0], *args[1:], **kwargs)
        return enter(callee, args, kwargs)

    entered.hooked = True  # type: ignore[attr-defined]
    return entered


class _Last:
    """What an optimizer's step may write, as it is before the step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.states = optimizer.state
        states: list[tuple[object, object]] = list(optimizer.state.items())
        # No dict: that would compute the hash of each parameter.
        self.state = [(param, dict(state)) for param, state in states if isinstance(state, dict)]
        # What a class of the user's keeps beside the states of parameters: `state["k"] = tensor`.
        self.others: dict[Any, Any] = {k: x for k, x in states if not isinstance(x, dict)}
        written = [p for group in optimizer.param_groups for p in group["params"]]
        kept = chain(self.others.values(), *(state.values() for _, state in self.state))
        written += [t for t in kept if isinstance(t, Tensor)]
        self.values = [
            (t._counter, t._counter.version, s, s.node, s.version)
            for t in written
            for s in (t._storage,)
        ]

    def give_back(self) -> None:
        """Let all be as it was."""
        for counter, count, storage, node, version in self.values:
            counter.version = count
            if storage.node is not node or storage.version != version:
                storage.take_back(node, version)
        known = {id(param) for param, _ in self.state} | {id(key) for key in self.others}
        for param in [p for p in self.states if id(p) not in known]:
            del self.states[param]
        self.states.update(self.others)
        for param, state in self.state:
            now = self.states[param]
            if now.keys() != state.keys() or not all(map(is_, now.values(), state.values())):
                now.clear()
                now.update(state)


class Optimizer:
    """Changes parameters by their gradients.

    `params` is an iterable of tensors, of (name, tensor) pairs, or of dicts (parameter groups) with
    "params" and options of their own; `defaults` are the options that a group does not give.
    Subclasses define `_update(group)`, or `step` itself.
    """

    _optimizer_step_pre_hooks: OrderedDict[int, Hook]
    _optimizer_step_post_hooks: OrderedDict[int, Hook]
    _optimizer_state_dict_pre_hooks: OrderedDict[int, Hook]
    _optimizer_state_dict_post_hooks: OrderedDict[int, Hook]
    _optimizer_load_state_dict_pre_hooks: OrderedDict[int, Hook]
    _optimizer_load_state_dict_post_hooks: OrderedDict[int, Hook]
    _hypers: dict[int, Hyper]
    # What a step depended on when that was asked last.
    _before: Watched | None = None
    # Whether a step can be taken back on the device. GradScaler sets `found_inf`, a 0-d tensor, before
    # it calls `step`: where that is not 0, parameters and state stay as they were.
    _takes_back: ClassVar[bool] = False
    # Whether gradients may be sparse tensors, and what is said where they may not.
    _takes_sparse: ClassVar[bool] = False
    _no_sparse: ClassVar[str] = "{} does not support sparse gradients"
    _takes_complex: ClassVar[bool] = True
    # Whether each element's step is its own; else what lies in parts is gathered for a step.
    _by_element: ClassVar[bool] = True
    # State that does not begin as zero: the number, or the name of the option, that it begins as.
    _beginnings: ClassVar[dict[str, float | str]] = {}
    # PyTorch's lists of a step -> what they have of each state, in the order of `_init_group`; and what that returns.
    _lists: ClassVar[Mapping[str, str]] = {}
    # States of a parameter's sizes that begin as zero.
    _zeros: ClassVar[tuple[str, ...]] = ()
    _tells: ClassVar[tuple[str, ...]] = ("complex",)
    # Derived numbers of `Hyper`, by name.
    _derived: ClassVar[dict[str, Derived]] = {
        "-lr": lambda group: -group["lr"],
    }

    def _can_take_back(self) -> bool:
        """Whether the next step can be taken back."""
        return self._takes_back

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Put the hooks around a `step` that the subclass defines."""
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__ and not getattr(cls.step, "hooked", False):
            cls.step = _hooked(cls.step)  # type: ignore[method-assign]
        if {"step", "_update", "_update_one"} & cls.__dict__.keys():
            # Another update may keep numbers on the host.
            cls._takes_back = cls.__dict__.get("_takes_back", False)

    def _patch_step_function(self) -> None:
        """Do nothing: a class's step has its hooks since the class was made, and wrappers that call no `__init__` ask
        for them here.
        """

    def __init__(self, params: Any, defaults: Group) -> None:
        """Take the parameters into groups."""
        self.defaults = defaults
        self._make_hook_tables()
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or "
                f"dicts, but got {typename(params)}"
            )
        self.state: defaultdict[Any, StateDict] = States()
        self.param_groups: list[Group] = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def _make_hook_tables(self) -> None:
        """Make the empty tables of hooks that are not there yet."""
        for name in (
            "_optimizer_step_pre_hooks",
            "_optimizer_step_post_hooks",
            "_optimizer_state_dict_pre_hooks",
            "_optimizer_state_dict_post_hooks",
            "_optimizer_load_state_dict_pre_hooks",
            "_optimizer_load_state_dict_post_hooks",
        ):
            self.__dict__.setdefault(name, OrderedDict())
        self.__dict__.setdefault("_hypers", {})

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: options, state and groups, not the hooks."""
        return {
            "defaults": self.defaults,
            "state": self.state,
            "param_groups": self.param_groups,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take back what `__getstate__` returned, or part of it."""
        before = self.__dict__.get("param_groups", [])
        self.__dict__.update(state)
        if "state" in state:
            self.state = States.of(self.state)
        self._make_hook_tables()
        known = [self._hypers.pop(id(group), None) for group in before]
        self._hypers.clear()
        for hyper, group in zip(known, self.param_groups, strict=False):
            if hyper is not None:
                # Who reads options there, as a script does, reads those that were loaded.
                hyper.group = group
                self._hypers[id(group)] = hyper
        for group in self.param_groups:
            for name, default in self.defaults.items():
                # An option that is younger than the checkpoint.
                group.setdefault(name, default)

    def __repr__(self) -> str:
        """Return the options of each group."""
        text = f"{type(self).__name__} ("
        for position, group in enumerate(self.param_groups):
            text += f"\nParameter Group {position}\n"
            for key in sorted(group):
                if key != "params":
                    text += f"    {key}: {group[key]}\n"
        return text + ")"

    # -- groups ---------------------------------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own: a dict with "params" and the options."""
        bindings.change()
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the "
                "ordering of tensors in sets will change between runs. Please use a list instead."
            )
        listed = [params] if isinstance(params, Tensor) else list(params)
        names = [one[0] for one in listed if isinstance(one, tuple)]
        if names and len(names) != len(listed):
            raise ValueError(
                "all optimizer params should be with/without names. Some param names are missing"
            )
        listed = [one[1] if isinstance(one, tuple) else one for one in listed]
        param_group["params"] = listed
        if names:
            param_group["param_names"] = names
        for param in listed:
            if not isinstance(param, Tensor):
                raise TypeError(
                    "optimizer can only optimize Tensors, but one of the params is "
                    + typename(param)
                )
            if not self.defaults.get("differentiable") and not (
                param.is_leaf or param.retains_grad
            ):
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter "
                    f"{name}"
                )
            param_group.setdefault(name, default)
        if len(listed) != len({id(p) for p in listed}):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this "
                "will cause an error; see github.com/pytorch/pytorch/issues/40967 for more "
                "information",
                stacklevel=user_depth(),
            )
        known: set[int] = set()
        for group in self.param_groups:
            known.update(id(p) for p in group["params"])
            if ("param_names" in param_group) != ("param_names" in group):
                which = "with names" if "param_names" in param_group else "without names"
                raise ValueError(
                    "all optimizer param groups should be with/without names. cannot add param "
                    f"group {which} to the optimizer"
                )
        if known & {id(p) for p in listed}:
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or fill them with zeros."""
        clear_grads(chain.from_iterable(g["params"] for g in self.param_groups), set_to_none)

    # -- stepping -------------------------------------------------------------------------------

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Change the parameters once; `closure`, if given, recomputes the loss and is returned."""
        loss = None
        if closure is not None:
            with webtorch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update_all(group)
        return loss

    def _watched(self, *args: object, **kwargs: object) -> Watched | None:
        """Return what a step depends on; None where it does more than changing parameters and state."""
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if args or kwargs or hooks or _global_pre_hooks or _global_post_hooks:
            return None
        if self.defaults.get("differentiable") or self._is_listed():
            return None
        groups, state, before = self.param_groups, values_of(self.state), self._before
        found_inf = self.__dict__.get("found_inf")
        if before is not None and found_inf is None and before.holds(groups, state):
            return before
        hypers = [self._hyper(group) for group in groups]
        watched = Watched(found_inf, groups, [hyper.stamp() for hyper in hypers], state)
        # What says whether a step is taken back is not held from here.
        known = found_inf is None and all(hyper.is_fixed for hyper in hypers)
        self._before = watched if known else None
        return watched

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        raise NotImplementedError

    def _values(self) -> dict[tuple[int, str], Tensor]:
        """Return the values of now of what a step may overwrite, by parameter and name of the state."""
        return {place: kept_value(t) for place, t in self._written()}

    def _written(self) -> Iterator[tuple[tuple[int, str], Tensor]]:
        """Iterate over the parameters with a gradient and their state, of what lies in parts over this process's."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    yield (id(param), ""), memory_of(param)
                    for name, value in self.state.get(param, {}).items():
                        if isinstance(value, Tensor):
                            yield (id(param), name), memory_of(value)

    def _beginning(self, place: tuple[int, str]) -> Any:
        """Return what a parameter's state begins as, before its first step."""
        param, name = place
        start = self._beginnings.get(name, 0.0)
        if isinstance(start, float):
            return start
        group = next(g for g in self.param_groups if any(id(p) == param for p in g["params"]))
        return self._scalar(group, start)

    def _take_back(self, before: dict[tuple[int, str], Tensor], found_inf: Tensor) -> None:
        """Give back the values of before the step where `found_inf` is not 0, on the device.

        State that the step created is then as it is before a first step. It stays, so that a step
        which is captured next finds it.
        """
        bad: dict[object, Tensor] = {}
        done: set[int] = set()
        with webtorch.no_grad():
            for place, tensor in self._written():
                if id(tensor) in done:
                    continue
                done.add(id(tensor))
                if tensor.device not in bad:
                    bad[tensor.device] = found_inf.to(tensor.device) != 0
                old = before[place] if place in before else self._beginning(place)
                tensor.copy_(webtorch.where(bad[tensor.device], old, tensor))

    def _begin_states(self) -> None:
        """Before a captured step: have the states that it begins exist before it."""
        for group in self.param_groups:
            for param in group["params"]:
                if not self.state.get(param):
                    self.state[param] = _Begun()

    def _end_states(self) -> None:
        """After a captured step: states are plain dicts again; those that did not begin go."""
        for param, state in list(self.state.items()):
            if isinstance(state, _Begun):
                states = self.state
                if not state:
                    del states[param]
                elif isinstance(states, States):
                    states.begin(param, state)
                else:
                    states[param] = dict(state)

    def _hyper(self, group: Group) -> Hyper:
        """Return the group's options as host scalars; one object for the life of the group."""
        hyper = self._hypers.get(id(group))
        if hyper is None or hyper.group is not group:
            hyper = self._hypers[id(group)] = Hyper(group, self._derived)
        return hyper

    def _scalar(self, group: Group, name: str) -> Any:
        """Return an option as a host scalar, or as it is where it is a tensor.

        A leading "-" asks for the negative.
        """
        value = group[name.lstrip("-")]
        if isinstance(value, Tensor):
            return -value if name.startswith("-") else value
        return self._hyper(group)(name)

    def _decayed(self, group: Group, param: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient with the weight decay; where that is decoupled, it acts on the parameter at once."""
        if group["weight_decay"] == 0:
            return grad
        if group.get("decoupled_weight_decay"):
            self._decay(group, param)
            return grad
        return grad.add(param, alpha=self._hyper(group)("weight_decay"))

    def _decay(self, group: Group, param: Tensor) -> None:
        """Shrink a parameter by its weight decay."""
        if isinstance(group["lr"], Tensor):
            param.mul_(1 - group["lr"] * group["weight_decay"])
        else:
            param.mul_(self._hyper(group)("1-lr*weight_decay"))

    def _is_listed(self) -> bool:
        """Whether a class has replaced what makes the lists of a step."""
        return type(self)._init_group is not Optimizer._init_group

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if not state.keys() & self._zeros[:1]:
            for name in self._zeros:
                if group.get(_OPTIONS.get(name, ""), True):
                    state[name] = webtorch.zeros_like(param)
        return state

    def _init_group(
        self, group: Group, params: list[Tensor], grads: list[Tensor], *lists: list[Any]
    ) -> Any:
        """Append the parameters that have a gradient, their gradients and their states to lists; states that there are
        not begin. For optimizers that derive from PyTorch's and call this, or replace it; a step does neither.
        """
        pairs = self._gradients({**group, "maximize": False})
        counts: set[int] = set()
        for param, grad in pairs:
            params.append(param)
            grads.append(grad)
            state = self._begun(group, param)
            if "step" in self._lists.values():
                self._new_steps([param])
                if id(state["step"]) in counts:
                    # Who counts its list would count what is shared several times.
                    state["step"] = state["step"].clone()
                counts.add(id(state["step"]))
            for key, values in zip(self._lists.values(), lists, strict=True):
                if group.get(_OPTIONS.get(key, ""), True):
                    values.append(state.get(key))
        told = {
            "sparse": any(g.layout is not strided for _, g in pairs),
            "complex": any(p.is_complex() for p, _ in pairs),
        }
        found = tuple([told[name] for name in self._tells])
        return found if len(found) > 1 else found[0]

    def _update_all(self, group: Group) -> None:
        """Change the parameters of one group, by the lists of a class that makes its own."""
        if not self._is_listed():
            self._update_real(group)
            return
        given: dict[str, list[Any]] = {name: [] for name in ("params", "grads", *self._lists)}
        self._init_group(group, *given.values())
        update_lists(type(self), {**group, **given})
        for name, key in self._lists.items():
            for param, value in zip(given["params"], given[name], strict=False):
                if value is not None and self.state[param].get(key) is not value:
                    self.state[param][key] = value

    def _update_real(self, group: Group) -> None:
        """Change the parameters of one group: complex ones as pairs of real numbers, as PyTorch does, and those that
        lie in parts (`DTensor`) by the parts of this process.
        """
        given = group["params"]
        seen = [self._seen(p) for p in given]
        if all(map(is_, seen, given)):
            self._update(group)
            return
        both = [(p, v) for p, v in zip(given, seen, strict=True) if p is not v]
        states = []
        for param, view in both:
            states.append(state := self.state.pop(param, {}))
            self.state[view] = {
                k: self._seen(x) if isinstance(x, Tensor) else x for k, x in state.items()
            }
        group["params"] = seen
        try:
            self._update_real(group) if any(v.dtype.is_complex for v in seen) else self._update(
                group
            )
        finally:
            group["params"] = given
            for (param, view), before in zip(both, states, strict=True):
                state = self.state.pop(view, {})
                if wraps(param) and not self._by_element:
                    param.copy_(param._of_whole(view))
                if state:
                    self.state[param] = {
                        k: as_given(param, view, before.get(k), x) if isinstance(x, Tensor) else x
                        for k, x in state.items()
                    }

    def _seen(self, x: Tensor) -> Tensor:
        """Return what a step sees of a parameter or its state."""
        if wraps(x) and hasattr(x, "_local_tensor"):
            if self._by_element:
                return x._local_tensor
            whole: Tensor = x.full_tensor().detach()  # type: ignore[attr-defined]
            whole._grad = None if x.grad is None else x.grad.full_tensor()  # type: ignore[attr-defined]
            return whole
        if not x.dtype.is_complex:
            return x
        if not self._takes_complex:
            raise RuntimeError(f"{type(self).__name__} does not support complex parameters")
        view: Tensor = webtorch.view_as_real(x.detach())
        view._grad = None if x.grad is None else webtorch.view_as_real(x.grad)
        return view

    def _gradients(self, group: Group) -> list[tuple[Tensor, Tensor]]:
        """Return (parameter, gradient to descend) of those that have one."""
        maximize = group.get("maximize", False)
        pairs = [
            (param, -param.grad if maximize else param.grad)
            for param in group["params"]
            if param.grad is not None
        ]
        if not self._takes_sparse and any(g.layout is not strided for _, g in pairs):
            raise RuntimeError(self._no_sparse.format(type(self).__name__))
        if group.get("fused") and any(p.is_meta for p, _ in pairs):
            raise RuntimeError(
                "`fused=True` requires all the params to be floating point Tensors of supported devices: cpu, webgpu."
            )
        return pairs

    def _new_steps(self, params: Iterable[Tensor]) -> None:
        """Give parameters without a step count one that starts at 0, shared by device."""
        fresh: dict[object, Tensor] = {}
        for param in params:
            state = self.state[param]
            if "step" not in state:
                device = param.device
                if device not in fresh:
                    fresh[device] = webtorch.zeros((), dtype=webtorch.float32, device=device)
                state["step"] = fresh[device]

    def _advanced(self, group: Group) -> Iterator[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
        """Count one step of what has a gradient; yield (step, the pairs of `_gradients` at it).

        Parameters that are at the same step share one tensor: counting is one small kernel. When
        only some of them have a gradient, those part from the others.
        """
        pairs = self._gradients(group)
        self._new_steps(param for param, _ in pairs)
        holders = Counter(
            id(state["step"])
            for state in (self.state.get(param) for param in group["params"])
            if state and "step" in state
        )
        together: dict[tuple[int, DType], list[tuple[Tensor, Tensor]]] = {}
        for pair in pairs:
            step = self.state[pair[0]]["step"]
            # The corrections are computed in the parameters' precision.
            together.setdefault((id(step), pair[0].dtype), []).append(pair)
        advanced: dict[int, Tensor] = {}
        for (key, dtype), members in together.items():
            step = self.state[members[0][0]]["step"] if key not in advanced else advanced[key]
            if key not in advanced:
                active = sum(len(m) for (k, _), m in together.items() if k == key)
                if active != holders[key]:
                    step = step.clone()
                step.add_(1)
                advanced[key] = step
            for param, _ in members:
                self.state[param]["step"] = step
            yield (step.to(dtype) if dtype == webtorch.float64 else step), members

    # -- hooks ----------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before step; it may return new arguments."""
        return add_hook(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after step."""
        return add_hook(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before `state_dict()` collects."""
        return add_hook(self._optimizer_state_dict_pre_hooks, hook, prepend=prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after `state_dict()`; it may return another one."""
        return add_hook(self._optimizer_state_dict_post_hooks, hook, prepend=prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before loading; it may return another one."""
        return add_hook(self._optimizer_load_state_dict_pre_hooks, hook, prepend=prepend)

    def register_load_state_dict_post_hook(
        self, hook: Hook, prepend: bool = False
    ) -> RemovableHandle:
        """Call `hook(optimizer)` after loading."""
        return add_hook(self._optimizer_load_state_dict_post_hooks, hook, prepend=prepend)

    # -- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        """Return {"state", "param_groups"}, with parameters as numbers in the order of the groups.

        The tensors are the optimizer's own, not copies. Where parameters share a step count, each
        has a tensor that goes on with it, so that a file of the state does not say that they share it.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            start = len(numbers)
            for position, param in enumerate(group["params"]):
                numbers.setdefault(id(param), start + position)
            packed = {key: value for key, value in group.items() if key != "params"}
            packed["params"] = [numbers[id(param)] for param in group["params"]]
            groups.append(packed)
        state = {}
        given: set[int] = set()
        for key, value in self.state.items():
            # What a hook has put there may be anything.
            step = value.get("step") if hasattr(value, "get") else None
            if isinstance(step, Tensor):
                if id(step) in given:
                    value = {**value, "step": _followed(value)}
                given.add(id(step))
            state[numbers[id(key)] if isinstance(key, Tensor) else key] = plain_of(value)
        result: StateDict = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, result)
            if changed is not None:
                result = changed
        return result

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take state and options from `state_dict`, whose tensors are copied where they move.

        As in PyTorch, those that need not move are shared with it, and so with every optimizer that
        takes it: give each a deep copy where that is not meant. Raises ValueError when its groups do
        not have the sizes of this optimizer's.
        """
        bindings.change()
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            if changed is not None:
                state_dict = changed
        groups, saved = self.param_groups, copy.deepcopy(state_dict["param_groups"])
        if len(groups) != len(saved):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, saved, strict=True)):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group"
            )
        together: dict[Any, list[tuple[StateDict, object, StateDict]]] = {}
        # Copies of one count share their value, and reading it waits for the device.
        counts: dict[int, tuple[object, float]] = {}
        params: dict[object, tuple[int, Tensor]] = {}
        for position, (group, new) in enumerate(zip(groups, saved, strict=True)):
            for number, param in zip(new["params"], group["params"], strict=True):
                params[number] = (position, param)
        state: defaultdict[Any, StateDict] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            if key not in params:
                state[key] = value
                continue
            position, param = params[key]
            loaded = moved_to(param, value)
            if isinstance(loaded, dict) and "step" in loaded:
                # Equal counts of a group share one tensor again (see _advanced).
                saved_step = counted(value["step"])
                node = saved_step._storage.node if isinstance(saved_step, Tensor) else saved_step
                if id(node) not in counts:
                    counts[id(node)] = (node, float(saved_step))
                place = (position, param.device, counts[id(node)][1])
                together.setdefault(place, []).append((loaded, saved_step, value))
            state[param] = loaded
        for (_, device, count), members in together.items():
            shared = [one for _, one, _ in members if _is_count(one, device)]
            step = shared[0] if shared else webtorch.tensor(count, device=device)
            for loaded, one, value in members:
                loaded["step"] = step
                if one is not step and _is_count(one, device):
                    # What was saved shares the count as it shares the moments.
                    value["step"] = step
        for group, new in zip(groups, saved, strict=True):
            new["params"] = group["params"]
            if "param_names" in group:
                new.setdefault("param_names", group["param_names"])
        self.__setstate__({"state": state, "param_groups": saved})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


Optimizer.step = _hooked(Optimizer.step, takes_closure=True)  # type: ignore[method-assign]


def _followed(state: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor that has the step count of a parameter at the time, in memory of its own."""
    return Tensor._from_storage(Following(lambda: state["step"]), (), (), 0, True)


def counted(step: object) -> Any:
    """Return the step count that one of a state dict follows, or that itself."""
    storage = step._storage if isinstance(step, Tensor) else None
    return storage.of() if isinstance(storage, Following) else step


def _is_count(step: object, device: object) -> bool:
    """Whether a saved step count can be an optimizer's own."""
    if not isinstance(step, Tensor) or step.dtype is not webtorch.float32:
        return False
    return step.device == device and step.ndim == 0


# What there is only where an option of the group says so.
_OPTIONS = {"momentum_buffer": "momentum", "max_exp_avg_sq": "amsgrad", "grad_avg": "centered"}


def update_lists(cls: type[Optimizer], arguments: Mapping[str, Any], **more: object) -> None:
    """Make one step on parameters, gradients and states that are given in lists, with the options of a group."""
    group = {**arguments, **more}
    found_inf, scale = group.get("found_inf"), group.get("grad_scale")
    if found_inf is not None and found_inf.item():
        return
    lists = {key: arguments[name] for name, key in cls._lists.items()}
    made = object.__new__(cls)
    made.state = States()
    made._make_hook_tables()
    params = []
    for i, (given, grad) in enumerate(zip(group["params"], group["grads"], strict=True)):
        # The same memory, with the gradient that was given.
        param = given.view_as(given) if webtorch.is_grad_enabled() else given.detach()
        param._grad = grad if scale is None else grad / scale
        state = {k: v[i] for k, v in lists.items() if i < len(v) and v[i] is not None}
        made.state.begin(param, state)
        params.append(param)
    made.param_groups = [{**group, "params": params}]
    made._update_real(made.param_groups[0])
    for key, values in lists.items():
        values[:] = [
            made.state[p].get(key) if v is None else v for p, v in zip(params, values, strict=False)
        ]


def options_of(arguments: Mapping[str, object]) -> Group:
    """Return the options among the arguments of an optimizer, all but its parameters: `options_of(locals())`, asked
    before it has other names.
    """
    return {n: v for n, v in arguments.items() if n not in ("self", "params", "__class__")}


def check_flags(options: Mapping[str, object]) -> None:
    """Raise RuntimeError on the combinations of foreach, fused and differentiable that PyTorch refuses.

    All three are accepted otherwise, and change nothing but `differentiable`: updates of all
    parameters are always fused by the runtime.
    """
    if options.get("fused") and options["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`")
    if options.get("fused") and options["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def check_at_least_zero(what: str, value: Any) -> None:
    """Raise ValueError, in PyTorch's words, unless `value` is at least 0."""
    if not value >= 0.0:
        raise ValueError(f"Invalid {what}: {value}")


def check_lr(lr: object) -> None:
    """Raise ValueError unless `lr` is a number, or a tensor of one, of at least 0."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    check_at_least_zero("learning rate", lr)


def check_options(options: Group, *names: str) -> None:
    """Raise ValueError, in PyTorch's words, unless lr and the options of these names may be so.

    betas are at least 0 and under 1; all others at least 0.
    """
    check_lr(options["lr"])
    for name in names:
        value = options[name]
        if name == "betas":
            for position in (0, 1):
                if not 0.0 <= value[position] < 1.0:
                    raise ValueError(
                        f"Invalid beta parameter at index {position}: {value[position]}"
                    )
        else:
            check_at_least_zero("epsilon value" if name == "eps" else f"{name} value", value)
