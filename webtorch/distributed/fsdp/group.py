"""The parameters of a sharded module that travel together: gathered before its forward and its backward pass, let go of
after each; their gradients are summed up and shared out as soon as the module's backward pass is done.

Nothing waits for what is under way: a gathered parameter is a value that arrives, and so is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from webtorch.distributed.collectives import (
    all_gather_into_tensor,
    all_reduce,
    reduce_scatter_tensor,
)
from webtorch.distributed.fsdp.forms import Form, sent, wholes
from webtorch.distributed.fsdp.meshes import (
    FSDPMeshInfo,
    ShardPlacementFnResult,
    post_forward_info,
)
from webtorch.distributed.fsdp.parameter import FSDPParam, Place, ShardedState
from webtorch.distributed.fsdp.policy import (
    AllGather,
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ReduceScatter,
)
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.reduction import ReduceOp
from webtorch.functions.creation import empty
from webtorch.functions.joining import cat
from webtorch.ir.dtype import DType, float16
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.handle import RemovableHandle
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.tensor import Tensor


class TrainingState(Enum):
    """What a sharded module is about to do."""

    FORWARD = auto()
    PRE_BACKWARD = auto()
    POST_BACKWARD = auto()
    IDLE = auto()


class FSDPCommContext:
    """What the sharded modules of one model share while they compute."""

    def __init__(self) -> None:
        # In the order of their forward passes, with a place for each.
        self.post_forward_order: list[FSDPParamGroup] = []
        # What is to be done with the gradients that are under way, in their order.
        self.under_way: list[Callable[[], None]] = []

    def settle(self, leave: int = 0) -> None:
        """Put gradients in their places, but for those of the last groups."""
        while len(self.under_way) > leave:
            self.under_way.pop(0)()


def places_of(params: Sequence[Parameter], modules: Sequence[Module]) -> list[list[Place]]:
    """Return where modules have each parameter, which may be in several places."""
    found: dict[int, list[Place]] = {id(p): [] for p in params}
    seen: set[tuple[int, str]] = set()
    for module in modules:
        for _, part in module.named_modules(remove_duplicate=False):
            for name, param in part._parameters.items():
                if id(param) in found and (id(part), name) not in seen:
                    seen.add((id(part), name))
                    found[id(param)].append(Place(part, name))
    return [found[id(p)] for p in params]


class FSDPParamGroup:
    """Parameters that travel together."""

    def __init__(
        self,
        params: Sequence[Parameter],
        modules: Sequence[Module],
        mesh_info: FSDPMeshInfo,
        post_forward_mesh_info: FSDPMeshInfo | None,
        device: Any,
        shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None,
        mp_policy: MixedPrecisionPolicy,
        offload_policy: OffloadPolicy,
    ) -> None:
        """Shard the parameters."""
        self.modules = tuple(modules)
        self.fsdp_params = [
            FSDPParam(
                param, places, mesh_info, post_forward_mesh_info, device, shard_placement_fn, mp_policy, offload_policy,
            )
            for param, places in zip(params, places_of(params, modules), strict=True)
        ]  # fmt: skip
        self.mesh_info, self.device = mesh_info, device
        self.mp_policy, self.offload_policy = mp_policy, offload_policy
        self._post_forward_mesh_info = post_forward_mesh_info
        self._module_fqn: str | None = None
        self._training_state = TrainingState.IDLE
        self._sharded_state = ShardedState.SHARDED
        # What has been gathered for the parameters, and is to be registered.
        self._all_gather_result: list[tuple[list[FSDPParam], Tensor, tuple[Form, ...]]] | None = (
            None
        )
        # The shards, those of one type side by side.
        self._flats: list[tuple[list[FSDPParam], Tensor]] = []
        self._reset_sharded_params = False
        self._state_dict_hooks: list[RemovableHandle] = []
        self._post_forward_indices: list[int] = []
        self.comm_ctx = FSDPCommContext()
        self.reduce_grads = self.all_reduce_grads = True
        self.reshard_after_backward = True
        self.unshard_in_backward = True
        self.reduce_scatter_unused_params = False
        self.gradient_divide_factor: float | None = None
        self.force_sum_reduction_for_comms = False
        self._all_reduce_hook: Callable[[Tensor], object] | None = None
        self._all_gather_comm: AllGather | None = None
        self._reduce_scatter_comm: ReduceScatter | None = None
        # Of replicas whose gradients are not summed up yet.
        self._partial_reduce_output: Tensor | None = None

    @property
    def post_forward_mesh_info(self) -> FSDPMeshInfo | None:
        """Over which group parameters are sharded between forward and backward; None: they stay whole."""
        return self._post_forward_mesh_info

    @post_forward_mesh_info.setter
    def post_forward_mesh_info(self, info: FSDPMeshInfo | None) -> None:
        """Let all parameters of the group lie so."""
        self._post_forward_mesh_info = info
        for param in self.fsdp_params:
            param.post_forward_mesh_info = info

    def set_reshard_after_forward(self, value: bool) -> None:
        """Choose whether parameters are let go of after forward."""
        self.post_forward_mesh_info = post_forward_info(value, self.mesh_info)

    def lazy_init(self) -> None:
        """Note what parameters are like when they are first gathered. Raises RuntimeError for those on "meta"."""
        if self.is_sharded and not self._reset_sharded_params:
            self.reset_sharded_params()
            self._reset_sharded_params = True
        on_meta = [p._param_fqn for p in self.fsdp_params if p.sharded_param.device.type == "meta"]
        if on_meta:
            raise RuntimeError(
                "FSDP parameters should be materialized from meta device before training, "
                f"but the following were still on meta device: {on_meta}\n"
                "For example, call module.to_empty(device) to materialize to device and "
                "call module.reset_parameters() on each module to initialize values."
            )
        if isinstance(self.offload_policy, CPUOffloadPolicy):
            elsewhere = [
                (p._param_fqn, p.sharded_param.device)
                for p in self.fsdp_params
                if p.sharded_param.device.type != "cpu"
            ]
            if elsewhere:
                raise RuntimeError(
                    "FSDP parameters should be materialized on CPU when enabling CPU offloading. "
                    'For example, load a CPU state dict or call module.to_empty(device="cpu"). '
                    f"Found following parameters on non-CPU device: {elsewhere}\n"
                )
        self._init_mp_dtypes()
        if not self._state_dict_hooks:
            for module in {place.module: None for p in self.fsdp_params for place in p.places}:
                self._state_dict_hooks += [
                    module.register_state_dict_pre_hook(self._back_to_shards),
                    module._register_load_state_dict_pre_hook(self._back_to_shards),
                    module.register_load_state_dict_post_hook(
                        lambda *_: self.reset_sharded_params()
                    ),
                ]

    def _back_to_shards(self, *_: object) -> None:
        self._to_sharded()

    def reset_sharded_params(self) -> None:
        """Take the shards that the modules have now."""
        for param in self.fsdp_params:
            param.reset_sharded_param()
        self._flats = []

    def _init_mp_dtypes(self) -> None:
        for param in self.fsdp_params:
            param.init_dtype_attrs()
        trained = [p for p in self.fsdp_params if p.sharded_param.requires_grad]
        for what, kinds in (
            ("original parameter", {p.orig_dtype for p in trained}),
            ("reduce", {p.reduce_dtype for p in trained}),
        ):
            if len(kinds) > 1:
                raise AssertionError(f"FSDP expects uniform {what} dtype but got {kinds}")
        self._orig_dtype = trained[0].orig_dtype if trained else None
        self._reduce_dtype = trained[0].reduce_dtype if trained else None

    # -- gathering --------------------------------------------------------------------------------

    def lay(self) -> None:
        """Let the shards of each type lie side by side in one memory, as they travel, unless they do."""
        if self._flats and all(p.lies_in(flat) for params, flat in self._flats for p in params):
            return
        same: dict[DType, list[FSDPParam]] = {}
        for param in self.fsdp_params:
            same.setdefault(param.sharded_param.dtype, []).append(param)
        self._flats = []
        with no_grad():
            for params in same.values():
                flat = cat([p.padded_shard() for p in params])
                for param, part in zip(params, flat.split([p.width for p in params]), strict=True):
                    param.lie_in(part)
                self._flats.append((params, flat))

    def unshard(self) -> None:
        """Begin to gather the parameters, unless they are there or under way."""
        if self._all_gather_result is not None or self.is_unsharded:
            return
        if not self.unshard_in_backward and self._training_state is TrainingState.PRE_BACKWARD:
            return
        info, self._all_gather_result = self.mesh_info, []
        with no_grad():
            if self.is_sharded_post_forward:
                assert self.post_forward_mesh_info is not None
                info = self.post_forward_mesh_info
                given = [(ps, cat([p.kept_shard() for p in ps])) for ps, _ in self._flats]
            else:
                self.lay()
                given = [(ps, ps[0].computed(flat)) for ps, flat in self._flats]
            for params, flat in given:
                rows = self._all_gather(flat, flat.dtype, info.shard_process_group)
                self._all_gather_result.append((params, rows, tuple([p.form for p in params])))

    def _all_gather(self, flat: Tensor, dtype: DType, group: ProcessGroup) -> Tensor:
        count = group.size()
        if count == 1:
            return flat
        size = (count * flat.shape[0],)
        if self._all_gather_comm is not None:
            out = self._all_gather_comm.allocate(size, dtype=dtype, device=flat.device)
            work = self._all_gather_comm(out, flat, group, async_op=True)
        else:
            out = empty(size, dtype=dtype, device=flat.device)
            work = all_gather_into_tensor(out, flat, group, async_op=True)
        if work is not None:
            # What it writes are values that arrive.
            work.wait()
        return out

    def wait_for_unshard(self) -> None:
        """Let the modules have the parameters whose gathering has begun."""
        gathered, self._all_gather_result = self._all_gather_result, None
        if gathered is None:
            return
        with no_grad():
            for params, rows, forms in gathered:
                for param, whole in zip(params, wholes(rows, forms), strict=True):
                    param.fill(whole)
                    param.to_unsharded()
        self._sharded_state = ShardedState.UNSHARDED

    def reshard(self) -> None:
        """Let go of the gathered parameters."""
        if self._training_state is TrainingState.FORWARD:
            if self.post_forward_mesh_info is None:
                return
            if self.post_forward_mesh_info is not self.mesh_info:
                if self.is_unsharded:
                    for param in self.fsdp_params:
                        param.to_sharded_post_forward()
                    self._sharded_state = ShardedState.SHARDED_POST_FORWARD
                return
        self._to_sharded()

    def _to_sharded(self) -> None:
        if not self.is_sharded:
            for param in self.fsdp_params:
                param.to_sharded()
            self._sharded_state = ShardedState.SHARDED

    # -- a pass -----------------------------------------------------------------------------------

    def pre_forward(self) -> bool:
        """Gather the parameters; return whether this is a new call, not one of a group of modules."""
        is_new = self._training_state is not TrainingState.FORWARD
        self._training_state = TrainingState.FORWARD
        self.unshard()
        # What the modules before compute is computed while this is gathered, and lets go of their parameters.
        self.device_runtime().flush()
        self.wait_for_unshard()
        return is_new

    def device_runtime(self) -> Any:
        """Return what computes on the device."""
        return self.fsdp_params[0]._sharded_local_tensor._storage.runtime

    def post_forward(self) -> None:
        """Let go of the parameters, and note the order for the backward pass."""
        if mode.task is None:
            self.reshard()
            self._post_forward_indices.append(len(self.comm_ctx.post_forward_order))
            self.comm_ctx.post_forward_order.append(self)
        self._training_state = TrainingState.IDLE

    def pre_backward(self, default_prefetch: bool) -> None:
        """Gather the parameters anew, and begin with those of the group whose turn is next."""
        if self._training_state is TrainingState.PRE_BACKWARD:
            return
        self._training_state = TrainingState.PRE_BACKWARD
        self.unshard()
        self.wait_for_unshard()
        if default_prefetch and self._post_forward_indices:
            place = self._post_forward_indices.pop()
            if place > 0:
                self.comm_ctx.post_forward_order[place - 1].prefetch(TrainingState.PRE_BACKWARD)

    def prefetch(self, state: TrainingState) -> None:
        """Begin to gather the parameters before their turn."""
        before, self._training_state = self._training_state, state
        try:
            self.unshard()
        finally:
            self._training_state = before

    def post_backward(self) -> None:
        """Let go of the parameters, and begin to send their gradients."""
        self._training_state = TrainingState.POST_BACKWARD
        for param in self.fsdp_params:
            param.accumulate_unsharded_grad_if_needed()
        if not self.reduce_grads:
            if self.reshard_after_backward:
                self.reshard()
            for param in self.fsdp_params:
                param.to_accumulated_grad_if_needed()
            return
        with no_grad():
            taken = [(p, p.take_grad(self.reduce_scatter_unused_params)) for p in self.fsdp_params]
            found = [(p, g) for p, g in taken if g is not None]
            if self.reshard_after_backward:
                self.reshard()
            if found:
                self._reduce([p for p, _ in found], [g for _, g in found])

    def _reduce(self, params: list[FSDPParam], grads: list[Tensor]) -> None:
        """Begin to send gradients; they come to their places when others are sent, or the pass ends."""
        kinds = {g.dtype for g in grads}
        if len(kinds) != 1:
            raise AssertionError(
                f"FSDP reduce-scatter expects uniform gradient dtype but got {kinds}"
            )
        dtype = self._reduce_dtype or grads[0].dtype
        info = self.mesh_info
        group = info.reduce_scatter_process_group or info.shard_process_group
        before, after, op, all_op = self._factors(dtype, group)
        flat = sent(tuple(grads), tuple([p.form for p in params]), info.shard_mesh_size, dtype)
        if before is not None:
            flat = flat / before
        part = self._reduce_scatter(flat, dtype, op, group)

        def arrive() -> None:
            """Put the gradients in their places."""
            with no_grad():
                self._add(params, part, after, all_op)

        self.comm_ctx.under_way.append(arrive)
        # Replicas and hooks read what has come: one group's is under way while the next is computed.
        self.comm_ctx.settle(leave=1)

    def _reduce_scatter(
        self, flat: Tensor, dtype: DType, op: ReduceOp, group: ProcessGroup
    ) -> Tensor:
        if group.size() == 1:
            return flat
        size, comm = (flat.shape[0] // group.size(),), self._reduce_scatter_comm
        if comm is not None:
            out = comm.allocate(size, dtype=dtype, device=flat.device)
            work = comm(out, flat, group, op, async_op=True)
        else:
            out = empty(size, dtype=dtype, device=flat.device)
            work = reduce_scatter_tensor(out, flat, op, group, async_op=True)
        if work is not None:
            work.wait()
        return out

    def _add(
        self,
        params: Sequence[FSDPParam],
        part: Tensor,
        after: float | None,
        all_op: ReduceOp,
    ) -> None:
        replicas = self.mesh_info.replicate_process_group
        if replicas is not None:
            if self._partial_reduce_output is not None:
                part = part + self._partial_reduce_output
                self._partial_reduce_output = None
            if not self.all_reduce_grads:
                self._partial_reduce_output = part
                return
            if replicas.size() > 1:
                part = part.clone()
                work = all_reduce(part, all_op, replicas, async_op=True)
                assert work is not None
                work.wait()
        if self._all_reduce_hook is not None:
            self._all_reduce_hook(part)
        if after is not None:
            part = part / after
        if self._orig_dtype is not None:
            part = part.to(self._orig_dtype)
        start = 0
        for param in params:
            param.add_grad(part, start)
            start += param.width

    def _factors(
        self, dtype: DType, group: ProcessGroup
    ) -> tuple[float | None, float | None, ReduceOp, ReduceOp]:
        """Return by what gradients are divided before and after they are summed up, and the sums of both dims."""
        count, replicas = group.size(), self.mesh_info.replicate_process_group
        if replicas is not None:
            count *= replicas.size()
        factor = self.gradient_divide_factor
        if dtype is not float16:
            if factor is None and not self.force_sum_reduction_for_comms:
                return None, None, ReduceOp.AVG, ReduceOp.AVG
            return None, float(count if factor is None else factor), ReduceOp.SUM, ReduceOp.SUM
        # Sums of 16 bits overflow: about the root of the factor is divided by before.
        factor = float(count if factor is None else factor)
        before = 1.0
        while factor % before == 0 and factor / before > before:
            before *= 2
        return before, factor / before, ReduceOp.SUM, ReduceOp.SUM

    def finalize_backward(self) -> None:
        """Forget the order of the pass, and a gathering that nobody has used."""
        self._all_gather_result = None
        self._post_forward_indices.clear()

    def reset_iter_state(self) -> None:
        """Begin anew after an error."""
        self.finalize_backward()
        self._partial_reduce_output = None
        self._training_state = TrainingState.IDLE
        for param in self.fsdp_params:
            param.unsharded_accumulated_grad = None
            if param.unsharded_param is not None:
                param.unsharded_param.grad = None
        self._to_sharded()

    @property
    def is_sharded(self) -> bool:
        """Whether the modules have the shards."""
        return self._sharded_state is ShardedState.SHARDED

    @property
    def is_sharded_post_forward(self) -> bool:
        """Whether the modules have shards of a smaller group."""
        return self._sharded_state is ShardedState.SHARDED_POST_FORWARD

    @property
    def is_unsharded(self) -> bool:
        """Whether the modules have the gathered parameters."""
        return self._sharded_state is ShardedState.UNSHARDED

    def __repr__(self) -> str:
        return f"FSDPParamGroup(fqn={self._module_fqn})"
