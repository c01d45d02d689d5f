"""`fully_shard`, and what a module that it was called on can be asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast, overload

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.fsdp.group import FSDPParamGroup
from webtorch.distributed.fsdp.meshes import (
    FSDPMeshInfo,
    ShardPlacementFnResult,
    default_mesh,
    mesh_info_of,
    post_forward_info,
    resolve_shard_placement,
)
from webtorch.distributed.fsdp.policy import (
    AllGather,
    DataParallelMeshDims,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ReduceScatter,
)
from webtorch.distributed.fsdp.state import FSDPState, _get_module_fsdp_state
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.tensor import DTensor
from webtorch.distributed.world import get_process_group_ranks, new_group
from webtorch.functions import public as webtorch
from webtorch.nn.container import ModuleDict, ModuleList
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.tensor import Tensor

_PLAIN, _NO_OFFLOAD = MixedPrecisionPolicy(), OffloadPolicy()
# By class of a module: that of a sharded one.
cls_to_fsdp_cls: dict[type, type] = {}


def get_cls_to_fsdp_cls() -> dict[type, type]:
    """Return the classes of sharded modules, by those of the modules."""
    return cls_to_fsdp_cls


class _Initializes:
    """Whether an FSDPModule's class called by a user makes a whole module of the original class."""

    on = True


@contextmanager
def disable_fsdp_module_new_init() -> Iterator[None]:
    """Within, `type(module)(...)` of a sharded module makes the original class's object and does not initialize it."""
    before, _Initializes.on = _Initializes.on, False
    try:
        yield
    finally:
        _Initializes.on = before


# -- what is sharded ------------------------------------------------------------------------------


def _roots(modules: Sequence[Module]) -> tuple[Module, ...]:
    """Return the modules that are in none of the others."""
    inside = {m: set(m.modules()) for m in modules}
    return tuple(
        m for m in modules if not any(other is not m and m in inside[other] for other in modules)
    )


def _managed(roots: Sequence[Module]) -> list[Module]:
    """Return the modules whose parameters belong to the roots: not those that are sharded by themselves."""
    found: dict[Module, None] = {}
    seen: set[Module] = set()

    def visit(module: Module) -> None:
        """Go down to the leaves."""
        if module in seen or (module not in roots and _get_module_fsdp_state(module) is not None):
            return
        seen.add(module)
        for child in module.children():
            visit(child)
        found[module] = None

    for root in roots:
        visit(root)
    return list(found)


def _states_of(
    modules: Iterable[Module], ignored: set[int]
) -> tuple[list[Parameter], list[Tensor]]:
    """Return the parameters and buffers of modules, each once. Raises ValueError for parameters without dims."""
    params: dict[int, Parameter] = {}
    buffers: dict[int, Tensor] = {}
    for module in modules:
        for name, p in module.named_parameters(recurse=False):
            if id(p) in ignored or id(p) in params:
                continue
            if not p.shape:
                raise ValueError(
                    "fully_shard doesn't support scalar parameters. "
                    f"Change {name} to a 1D tensor with numel equal to 1."
                )
            params[id(p)] = p
        for b in module.buffers(recurse=False):
            buffers[id(b)] = b
    return list(params.values()), list(buffers.values())


def _device_type(modules: Iterable[Module]) -> str:
    """Return the kind of device that the modules' parameters are on, or else that of new tensors."""
    for module in modules:
        for p in module.parameters():
            if not p.is_meta:
                return str(p.device.type)
    return str(webtorch.empty(0).device.type)


def _move(tensors: Iterable[Tensor], device: Any) -> None:
    for x in tensors:
        if x.is_meta or x.device == device or x.device.type == device.type:
            continue
        if isinstance(x, DTensor):
            raise ValueError(
                "Requires DTensor to have mesh of the same type as the FSDP mesh "
                f"but got {x.device_mesh.device_type} for DTensor and {device.type} for FSDP"
            )
        x.data = x.to(device)


def _groups(
    params: Sequence[Parameter],
    info: FSDPMeshInfo,
    fn: Callable[[Parameter], ShardPlacementFnResult] | None,
) -> list[tuple[FSDPMeshInfo, list[Parameter]]]:
    """Return the parameters that travel together, by the groups of processes that they are sharded over."""
    found: dict[tuple[Any, Any], tuple[FSDPMeshInfo, list[Parameter]]] = {}
    for p in params:
        mine = info if fn is None else resolve_shard_placement(fn(p), info).mesh_info
        key = mine.shard_process_group, mine.replicate_process_group
        of_key = found.setdefault(key, (mine, []))
        if of_key[0] is not mine:
            raise ValueError(
                f"Params sharing the same process group must use the same "
                f"FSDPMeshInfo object, but got different objects: {of_key[0]} vs {mine}"
            )
        of_key[1].append(p)
    return list(found.values())


@overload
def fully_shard(
    module: Module,
    *,
    mesh: DeviceMesh | None = ...,
    reshard_after_forward: bool | int | None = ...,
    shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None = ...,
    mp_policy: MixedPrecisionPolicy = ...,
    offload_policy: OffloadPolicy = ...,
    ignored_params: set[Parameter] | None = ...,
    dp_mesh_dims: DataParallelMeshDims | None = ...,
) -> FSDPModule: ...


@overload
def fully_shard(
    module: list[Module],
    *,
    mesh: DeviceMesh | None = ...,
    reshard_after_forward: bool | int | None = ...,
    shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None = ...,
    mp_policy: MixedPrecisionPolicy = ...,
    offload_policy: OffloadPolicy = ...,
    ignored_params: set[Parameter] | None = ...,
    dp_mesh_dims: DataParallelMeshDims | None = ...,
) -> list[FSDPModule]: ...


def fully_shard(
    module: Any,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None = None,
    mp_policy: MixedPrecisionPolicy = _PLAIN,
    offload_policy: OffloadPolicy = _NO_OFFLOAD,
    ignored_params: set[Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Any:
    """Shard a module's parameters, their gradients and so the optimizer's state over processes; return the module.

    Its parameters become DTensors of which this process has a part (of dim 0, or as `shard_placement_fn` says). They
    are gathered before forward, let go of behind it (`reshard_after_forward`: None keeps those of the outermost module;
    a number shards them over so many processes), gathered again for the backward pass, and their gradients become this
    process's part of the mean. Parameters of modules inside that were sharded before stay theirs: shard layers first,
    the model last. Several modules in a list travel together.

    `mesh` has one dim, or two: replicas, and shards in each. Without one it is all processes, and the device is that of
    the parameters. `ignored_params` stay as they are. Raises ValueError for containers without a forward, for
    parameters without dims and for meshes of more dims; AssertionError where the module was sharded before;
    NotImplementedError for `dp_mesh_dims`: shard over the data parallel dims of the mesh, `mesh["dp"]`.
    """
    for each in module if isinstance(module, (list, tuple)) else [module]:
        if type(each).forward is Module.forward and isinstance(each, (ModuleList, ModuleDict)):
            raise ValueError(
                f"fully_shard does not support containers that do not implement forward: {each}"
            )
    if dp_mesh_dims is not None:
        raise NotImplementedError(
            "fully_shard: webtorch has no dp_mesh_dims; give the data parallel dims as the mesh, mesh['dp'], and "
            "parallelize_module the others"
        )
    roots = (module,) if isinstance(module, Module) else _roots(module)
    for root in roots:
        if _get_module_fsdp_state(root) is not None:
            raise AssertionError(
                "Each distinct composable distributed API can only be applied to a "
                f"module once. fully_shard has already been applied to the following module:\n{root}"
            )
    mesh = default_mesh(_device_type(roots)) if mesh is None else mesh
    info = mesh_info_of(mesh)
    device = webtorch.device(mesh.device_type)
    auto = reshard_after_forward is None
    after_forward = True if reshard_after_forward is None else reshard_after_forward
    post_forward = post_forward_info(after_forward, info)
    params, buffers = _states_of(_managed(roots), {id(p) for p in ignored_params or ()})
    _move([*params, *buffers], device)
    state = FSDPState(roots, device, mp_policy, auto)
    for of_group, chosen in _groups(params, info, shard_placement_fn):
        after = post_forward if of_group is info else post_forward_info(after_forward, of_group)
        state._fsdp_param_groups.append(
            FSDPParamGroup(
                chosen, roots, of_group, after, device, shard_placement_fn, mp_policy, offload_policy,
            )
        )  # fmt: skip
    for root in roots:
        kind = type(root)
        if kind not in cls_to_fsdp_cls:
            names = {"__deepcopy__": _no_deepcopy, "__module__": kind.__module__}
            cls_to_fsdp_cls[kind] = type(f"FSDP{kind.__name__}", (FSDPModule, kind), names)
        root.__class__ = cls_to_fsdp_cls[kind]
    return module


fully_shard.state = _get_module_fsdp_state  # type: ignore[attr-defined]


def _no_deepcopy(*_: object, **__: object) -> NoReturn:
    raise AssertionError("FSDP does not support deepcopy. Please use state dict for serialization.")


class UnshardHandle:
    """A gathering that is under way: see `FSDPModule.unshard`."""

    def __init__(self, groups: Sequence[FSDPParamGroup] = ()) -> None:
        self._groups = groups

    def wait(self) -> None:
        """Let the module have the gathered parameters. What reads them waits for their values."""
        for group in self._groups:
            group.wait_for_unshard()
        self._groups = ()


class FSDPModule:
    """What a module is, too, after `fully_shard`."""

    _orig_cls_mro_index = 2

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a module of the original class, which slices of containers ask for."""
        original: Any = cls.__mro__[cls._orig_cls_mro_index]
        made = original.__new__(original, *args, **kwargs)
        if _Initializes.on:
            made.__init__(*args, **kwargs)
        return made

    def _get_fsdp_state(self) -> FSDPState:
        state = _get_module_fsdp_state(cast("Module", self))
        if state is None:
            raise AssertionError(f"No FSDP state found on {self}")
        return state

    def _param_groups(self, recurse: bool) -> list[FSDPParamGroup]:
        """Return the groups of this module, and of those inside."""
        modules = cast("Module", self).modules() if recurse else [self]
        states = [m._get_fsdp_state() for m in modules if isinstance(m, FSDPModule)]
        return [g for state in dict.fromkeys(states) for g in state._fsdp_param_groups]

    def reshard(self) -> None:
        """Let go of this module's gathered parameters (not of those inside): it has the shards again."""
        for group in self._param_groups(False):
            group.reshard()

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather this module's parameters (not those inside). With `async_op`, begin, and return what to wait for."""
        groups = self._param_groups(False)
        for group in groups:
            group.lazy_init()
            group.unshard()
        handle = UnshardHandle(groups)
        if async_op:
            return handle
        handle.wait()
        return None

    def reset_iter_state(self) -> None:
        """Let the next pass begin anew after an error in one, whose gradients are lost. Raises RuntimeError for a
        module that is not the outermost one.
        """
        self._get_fsdp_state()._reset_iter_state()

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Say whether the next backward pass is the last one of several, after which their order is forgotten."""
        self._get_fsdp_state()._state_ctx.is_last_backward = is_last_backward

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Choose whether backward passes send gradients; those that are not sent are summed up until they are."""
        for group in self._param_groups(recurse):
            group.reduce_grads = group.all_reduce_grads = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Choose whether replicas sum up their gradients, or keep them until they do."""
        for group in self._param_groups(recurse):
            group.all_reduce_grads = requires_all_reduce

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Choose whether parameters are let go of after forward. Raises ValueError for what is no bool."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(
                f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}"
            )
        for module in cast("Module", self).modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                module._get_fsdp_state()._auto_reshard_after_forward = False
        for group in self._param_groups(recurse):
            group.set_reshard_after_forward(reshard_after_forward)

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Choose whether parameters are let go of after backward."""
        for group in self._param_groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Begin to gather the parameters of these when this module's forward begins."""
        _check_sharded(modules)
        state = self._get_fsdp_state()
        state._states_to_forward_prefetch = [m._get_fsdp_state() for m in modules]

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Begin to gather the parameters of these when this module's backward begins, instead of the next one's."""
        _check_sharded(modules)
        state = self._get_fsdp_state()
        state._states_to_backward_prefetch = [m._get_fsdp_state() for m in modules]

    def _one_way(self, name: str) -> list[FSDPParamGroup]:
        groups = self._param_groups(False)
        if len(groups) > 1:
            raise ValueError(
                f"{name} is not supported with multiple param "
                "groups (from per-param mesh via shard_placement_fn). "
                "It would be ambiguous across groups with different meshes."
            )
        return groups

    def set_custom_all_gather(self, comm: AllGather) -> None:
        """Gather parameters in another way."""
        for group in self._one_way("set_custom_all_gather"):
            group._all_gather_comm = comm

    def set_custom_reduce_scatter(self, comm: ReduceScatter) -> None:
        """Sum up gradients in another way."""
        for group in self._one_way("set_custom_reduce_scatter"):
            group._reduce_scatter_comm = comm

    def set_all_reduce_hook(self, hook: Callable[[Tensor], None], *, stream: Any = None) -> None:
        """Call `hook(gradients)` with this process's part of the sums, flat, which it may change. There are no
        streams.
        """
        for group in self._one_way("set_all_reduce_hook"):
            group._all_reduce_hook = hook

    def set_post_optim_event(self, event: Any) -> None:
        """Do nothing: values wait for what they are computed of."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide sums of gradients by another number than that of the processes."""
        for group in self._param_groups(False):
            group.gradient_divide_factor = factor

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Deprecated: `set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Send sums, and divide behind."""
        for group in self._param_groups(False):
            group.force_sum_reduction_for_comms = enable

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """Send zeros for parameters that a pass has not used, where processes use different ones."""
        for group in self._param_groups(recurse):
            group.reduce_scatter_unused_params = reduce_scatter_unused_params

    def set_reduce_scatter_max_input_buffers(
        self, max_input_buffers: int, *, recurse: bool = True
    ) -> None:
        """Check the number, and do nothing: no buffer is used twice. Raises TypeError or ValueError."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(
                f"max_input_buffers must be an int, got {type(max_input_buffers).__name__}"
            )
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be a positive int, got {max_input_buffers}")

    def set_separate_reduce_scatter_group(
        self, enable: bool = True, *, recurse: bool = True
    ) -> None:
        """Send gradients in a group of their own, beside parameters that are gathered. All processes call this."""
        made: dict[tuple[int, ...], ProcessGroup] = {}
        for group in self._param_groups(recurse):
            info = group.mesh_info
            if not enable:
                info.reduce_scatter_process_group = None
                continue
            ranks = tuple(get_process_group_ranks(info.shard_process_group))
            if ranks not in made:
                known = info.reduce_scatter_process_group
                made[ranks] = known or cast(
                    "ProcessGroup",
                    new_group(
                        ranks, use_local_synchronization=True, group_desc="fsdp_reduce_scatter"
                    ),
                )
            info.reduce_scatter_process_group = made[ranks]

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Choose whether backward gathers this module's parameters: that of an embedding needs none."""
        for group in self._param_groups(False):
            group.unshard_in_backward = unshard_in_backward

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Do nothing: Gloo has no memory of its own."""

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Do nothing: nothing waits for a gathering but what reads it."""

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self.reshard()
        found = super()._apply(*args, **kwargs)  # type: ignore[misc]
        for group in self._param_groups(False):
            group.reset_sharded_params()
        return found


def _check_sharded(modules: Iterable[Any]) -> None:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")


def register_fsdp_forward_method(module: Module, method_name: str) -> None:
    """Let a method of a sharded module gather its parameters as forward does; of others, do nothing. Raises ValueError
    where there is no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    original = getattr(module, method_name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method between the hooks."""
        state = self._get_fsdp_state()
        args, kwargs = state._pre_forward(self, args, kwargs)
        return state._post_forward(self, args, original(*args, **kwargs))

    setattr(module, method_name, wrapped.__get__(module, type(module)))  # type: ignore[attr-defined]


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Let several outermost modules, such as the parts of a pipeline, send in one order. Raises ValueError for modules
    that are not sharded.
    """
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects list of FSDPModules but got {module}")
    states = [module._get_fsdp_state() for module in modules]
    for state in states[1:]:
        state._comm_ctx = states[0]._comm_ctx
        for group in state._fsdp_param_groups:
            group.comm_ctx = states[0]._comm_ctx
