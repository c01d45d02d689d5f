"""States of models and optimizers by the names of the unwrapped model's parameters, whatever wraps or shards it.
Floor 6.

A state that was got from a model on some processes is set into one on others, or on one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from webtorch.distributed import world
from webtorch.distributed.checkpoint.nested import mapped
from webtorch.distributed.collectives import broadcast
from webtorch.distributed.objects import broadcast_object_list
from webtorch.distributed.tensor import DTensor, distribute_tensor
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.nn.module import Module
from webtorch.nn.state_dict import _EXTRA_STATE_KEY_SUFFIX, _IncompatibleKeys
from webtorch.optim.optimizer import Optimizer, counted
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

# What wrappers put into names: DistributedDataParallel, a compiled module, a checkpointed one.
_COMPILED, _CHECKPOINTED = "_orig_mod", "_checkpoint_wrapped_module."
_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"
State = dict[str, Any]


@dataclass
class StateDictOptions:
    """How states are got and set.

    `full_state_dict`: whole tensors instead of DTensors. `cpu_offload`: in the host's memory, and with the former on
    process 0 alone. `ignore_frozen_params`: without parameters that are not trained. `strict`: names that are missing
    raise. `broadcast_from_rank0`: process 0 has the whole state, and the others get it from there.
    `flatten_optimizer_state_dict`: one dict of names such as "state.layer.weight.exp_avg".
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"


def _checked(options: StateDictOptions | None) -> StateDictOptions:
    options = StateDictOptions() if options is None else options
    if options.broadcast_from_rank0 and not options.full_state_dict:
        raise ValueError("full_state_dict must be True when broadcast_from_rank0 is True.")
    return options


def _name(model: Module, name: str) -> str:
    """Return a parameter's name in the model without wrappers."""
    found: list[str] = []
    at: Any = model
    for part in name.replace(_CHECKPOINTED, "").split("."):
        is_wrapper = type(at).__name__ == "DistributedDataParallel" and part == "module"
        if not is_wrapper and part != _COMPILED:
            found.append(part)
        if part == _EXTRA_STATE_KEY_SUFFIX:
            break
        at = getattr(at, part, None)
    return ".".join(found)


def _names(model: Module) -> dict[int, list[str]]:
    """Return the names of each parameter, several where modules share it."""
    found: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), []).append(_name(model, name))
    return found


# ---- whole tensors and parts


def _whole(x: Tensor, options: StateDictOptions) -> Tensor:
    if options.full_state_dict and isinstance(x, DTensor):
        x = x.full_tensor()
    x = x.detach()
    return x.cpu() if options.cpu_offload else x


def _given(state: State, options: StateDictOptions) -> State:
    """Return a state as the options say: empty on other processes than the first, where that alone has it."""
    if not (options.full_state_dict or options.cpu_offload):
        return state
    found: State = mapped(dict(state), lambda x: _whole(x, options))
    alone = options.full_state_dict and options.cpu_offload and world.is_initialized()
    return {} if alone and world.get_rank() else found


def _as(value: Any, like: Tensor) -> Any:
    """Return a value for a parameter or a part of its state: cut as that is, if it is whole."""
    if not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if isinstance(like, DTensor) and value.shape == like.shape and value.ndim:
        mesh = like.device_mesh
        return distribute_tensor(
            value.to(mesh.device_type), mesh, like.placements, src_data_rank=None
        )
    return value


def _sent(state: State | None) -> State:
    """Return process 0's state, of which tensors travel one by one."""
    rank = world.get_rank()
    tensors: list[Tensor] = []

    def noted(x: Tensor) -> _Sent:
        """Keep a tensor, and send what it is like."""
        # Of a step count this process would take the count itself, and others what it was.
        x = counted(x)
        tensors.append(x.full_tensor() if isinstance(x, DTensor) else x)
        return _Sent(tuple(x.shape), x.dtype)

    outline: list[Any] = [mapped(state, noted) if rank == 0 else None]
    broadcast_object_list(outline, 0)
    waiting = iter(tensors)

    def received(value: Any) -> Any:
        """Return the tensor that is sent for its description."""
        if isinstance(value, _Sent):
            if rank == 0:
                x = next(waiting).detach().cpu().contiguous()
            else:
                x = webtorch.empty(value.shape, dtype=value.dtype, device="cpu")
            broadcast(x, 0)
            return x
        if isinstance(value, dict):
            return {k: received(v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(received(v) for v in value)
        return value

    found: State = received(outline[0])
    return found


@dataclass
class _Sent:
    """What stands for a tensor that follows."""

    shape: tuple[int, ...]
    dtype: Any


# ---- models


def _model_state(model: Module, submodules: set[Module] | None, options: StateDictOptions) -> State:
    state: State = {_name(model, name): x for name, x in model.state_dict().items()}
    if submodules:
        _tell_of_submodules()
        prefixes = [f"{_name(model, n)}." for n, m in model.named_modules() if m in submodules]
        cut = not options.keep_submodule_prefixes
        state = {
            name[len(prefix) * cut :]: x
            for name, x in state.items()
            for prefix in prefixes
            if name.startswith(prefix)
        }
    if options.ignore_frozen_params:
        for name, p in model.named_parameters():
            if not p.requires_grad:
                state.pop(_name(model, name), None)
    return _given(state, options)


def _tell_of_submodules() -> None:
    warnings.warn(
        "Getting submodules only model/optim state_dict is deprecated and "
        "will be removed in 2.5. This feature can be achieved by manually "
        "filtering out the state_dict returned from get_state_dict.",
        FutureWarning,
        stacklevel=user_depth(),
    )


@no_grad()
def get_model_state_dict(
    model: Module,
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> State:
    """Return a model's parameters and buffers by their names without wrappers: DTensors where it is sharded."""
    return _model_state(model, submodules, _checked(options))


@no_grad()
def set_model_state_dict(
    model: Module, model_state_dict: State, *, options: StateDictOptions | None = None
) -> _IncompatibleKeys:
    """Set a model's parameters and buffers from what `get_model_state_dict` returned, of shards or whole. Returns what
    `load_state_dict` does. Raises RuntimeError for a name that is missing, unless `strict` is False.
    """
    options = _checked(options)
    if options.broadcast_from_rank0:
        model_state_dict = _sent(model_state_dict)
    if not model_state_dict:
        return _IncompatibleKeys([], [])
    own = model.state_dict()
    found: State = {}
    left = dict(model_state_dict)
    for name, mine in own.items():
        clean = _name(model, name)
        if clean in left:
            found[name] = _as(left.pop(clean), mine)
        elif options.strict and clean != name:
            raise RuntimeError(f"Missing key: {clean}.")
    on_meta = any(isinstance(x, Tensor) and x.is_meta for x in own.values())
    return model.load_state_dict(
        {**found, **left}, strict=options.strict, assign=on_meta and options.full_state_dict
    )


# ---- optimizers


def _optimizers(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)


def _begin(optimizer: Optimizer) -> None:
    """Let an optimizer have its state: by a step that changes nothing."""
    params = [p for group in optimizer.param_groups for p in group[_PARAMS]]
    if optimizer.state or any(p.grad is not None for p in params):
        return
    for p in params:
        if p.requires_grad:
            p.grad = webtorch.zeros_like(p)
    before = [group.get("lr") for group in optimizer.param_groups]
    for group, lr in zip(optimizer.param_groups, before, strict=True):
        if lr is not None:
            group["lr"] = webtorch.tensor(0.0) if isinstance(lr, Tensor) else 0.0
    optimizer.step()
    for group, lr in zip(optimizer.param_groups, before, strict=True):
        if lr is not None:
            group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)


def _params(optimizer: Optimizer) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group[_PARAMS]]


def _optimizer_state(
    model: Module, optimizers: Iterable[Optimizer], options: StateDictOptions
) -> State:
    names = _names(model)
    found: State = {_STATE: {}, _GROUPS: []}
    for optimizer in optimizers:
        _begin(optimizer)
        state = optimizer.state_dict()
        own = [names[id(p)][0] for p in _params(optimizer)]
        found[_STATE] |= {own[number]: dict(of) for number, of in state[_STATE].items()}
        for group in state[_GROUPS]:
            numbers = group[_PARAMS]
            found[_GROUPS].append({**group, _PARAMS: [own[n] for n in numbers]})
    if options.flatten_optimizer_state_dict:
        found = _flattened(found)
    return _given(found, options)


def _flattened(state: State) -> State:
    found: State = {}

    def add(name: str, value: Any) -> None:
        """Add an entry, or those of a dict."""
        if isinstance(value, dict):
            for key, v in value.items():
                add(f"{name}.{key}", v)
        elif isinstance(value, (Tensor, int, float)):
            found[name] = value
        else:
            raise NotImplementedError(
                "Flattening optimizer state_dict only supports "
                f"tensor, int, float, dict states now. Type is {type(value)}."
            )

    for name, of in state[_STATE].items():
        add(f"{_STATE}.{name}", of)
    for group in state[_GROUPS]:
        for name in group[_PARAMS]:
            for key, value in group.items():
                if key != _PARAMS:
                    found[f"{_GROUPS}.{name}.{key}"] = value
    return found


def _unflattened(state: State, names: dict[int, list[str]], optimizer: Optimizer) -> State:
    """Return what `_flattened` made flat, of one optimizer's parameters."""
    found: State = {_STATE: {}, _GROUPS: []}
    for group in optimizer.param_groups:
        mine: State = {_PARAMS: []}
        for p in group[_PARAMS]:
            name = next(
                (n for n in names[id(p)] if any(k.startswith(f"{_GROUPS}.{n}.") for k in state)),
                names[id(p)][0],
            )
            mine[_PARAMS].append(name)
            lead = f"{_STATE}.{name}."
            of: State = {}
            for key, value in state.items():
                if key.startswith(lead):
                    *path, last = key[len(lead) :].split(".")
                    at = of
                    for part in path:
                        at = at.setdefault(part, {})
                    at[last] = value
            if of:
                found[_STATE][name] = of
            for key in group:
                if key == _PARAMS:
                    continue
                value = state[f"{_GROUPS}.{name}.{key}"]
                if mine.setdefault(key, value) != value:
                    raise RuntimeError(
                        "All the parameters in the same parameter group should have "
                        f"the same saved param_group value. But {name}.{key} "
                        f"is {value} while other(s) is {mine[key]}."
                    )
        found[_GROUPS].append(mine)
    return found


@no_grad()
def get_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> State:
    """Return optimizers' states by the names of the model's parameters. An optimizer without a state gets one, by a
    step that changes nothing.
    """
    if submodules:
        _tell_of_submodules()
    return _optimizer_state(model, _optimizers(optimizers), _checked(options))


@no_grad()
def set_optimizer_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    optim_state_dict: State,
    *,
    options: StateDictOptions | None = None,
) -> None:
    """Set optimizers' states from what `get_optimizer_state_dict` returned, of shards or whole. Raises RuntimeError
    where the state of a parameter that is trained is missing, unless `strict` is False.
    """
    options = _checked(options)
    if options.broadcast_from_rank0:
        optim_state_dict = _sent(optim_state_dict)
    names = _names(model)
    for optimizer in _optimizers(optimizers):
        _begin(optimizer)
        if not optim_state_dict:
            continue
        state = optim_state_dict
        if _STATE not in state:
            state = _unflattened(state, names, optimizer)
        optimizer.load_state_dict(_numbered(optimizer, state, names, options))


def _numbered(
    optimizer: Optimizer, state: State, names: dict[int, list[str]], options: StateDictOptions
) -> State:
    """Return a state by the numbers of one optimizer's parameters."""
    if state[_STATE] and all(isinstance(key, int) for key in state[_STATE]):
        return state
    saved = {name: group for group in state[_GROUPS] for name in group[_PARAMS]}
    found: State = {_STATE: {}, _GROUPS: []}
    number = 0
    for group in optimizer.param_groups:
        mine: State = {_PARAMS: []}
        for p in group[_PARAMS]:
            name = next((n for n in names[id(p)] if n in saved), names[id(p)][0])
            of = state[_STATE].get(name)
            if of is not None:
                found[_STATE][number] = mapped(dict(of), functools.partial(_as, like=p))
            elif p.requires_grad and options.strict and optimizer.state.get(p):
                raise RuntimeError(
                    f"Missing optimizer state for parameter '{name}' in checkpoint. "
                    "The parameter requires gradients but has no saved optimizer state. "
                    "To load anyway, use StateDictOptions(strict=False)."
                )
            mine = {**saved.get(name, {}), **mine}
            mine[_PARAMS].append(number)
            number += 1
        found[_GROUPS].append({**{k: v for k, v in group.items() if k != _PARAMS}, **mine})
    return found


# ---- both


def get_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    submodules: set[Module] | None = None,
    options: StateDictOptions | None = None,
) -> tuple[State, State]:
    """Return the states of a model and of its optimizers: see `get_model_state_dict`, `get_optimizer_state_dict`."""
    with no_grad():
        chosen = _checked(options)
        return (
            _model_state(model, submodules, chosen),
            _optimizer_state(model, _optimizers(optimizers), chosen),
        )


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: State,
    optim_state_dict: State,
    options: StateDictOptions | None = None,
) -> _IncompatibleKeys:
    """Set the states of a model and of its optimizers: see `set_model_state_dict`, `set_optimizer_state_dict`."""
    found = set_model_state_dict(model, model_state_dict, options=options)
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return found
