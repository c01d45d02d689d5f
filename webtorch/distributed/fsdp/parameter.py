"""A parameter of a sharded module: its shard, a DTensor, and the whole of it while that is gathered.

The whole has one storage for as long as the module lives, whose value comes with each gathering and goes after use.
What forward has saved of it for the backward pass is that storage, so backward reads what has been gathered by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import count
from typing import Any, NamedTuple

from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.fsdp.forms import Form, padded
from webtorch.distributed.fsdp.meshes import (
    FSDPMeshInfo,
    HSDPMeshInfo,
    ShardPlacementFnResult,
    resolve_shard_placement,
)
from webtorch.distributed.fsdp.policy import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from webtorch.distributed.tensor import DTensor
from webtorch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from webtorch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard
from webtorch.ir.dtype import DType
from webtorch.ir.view import contiguous_strides, numel
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.ops import primitive
from webtorch.tensors.modes import no_grad
from webtorch.tensors.storage import Refilled
from webtorch.tensors.tensor import Tensor

_uids = count()


class ShardedState(Enum):
    """Where a parameter's values are: in the shards, in those of a smaller group, or gathered."""

    SHARDED = auto()
    SHARDED_POST_FORWARD = auto()
    UNSHARDED = auto()


class Place(NamedTuple):
    """Where a module has a parameter: several where they share it."""

    module: Module
    name: str


def _shards(x: Tensor, count: int, dim: int) -> list[Tensor]:
    """Return the parts of a tensor, the last ones shorter or empty."""
    size = -(-x.shape[dim] // count)
    found = []
    for k in range(count):
        start = min(k * size, x.shape[dim])
        found.append(x.narrow(dim, start, min(size, x.shape[dim] - start)))
    return found


class FSDPParam:
    """A parameter of a sharded module."""

    def __init__(
        self,
        param: Parameter,
        places: Sequence[Place],
        mesh_info: FSDPMeshInfo,
        post_forward_mesh_info: FSDPMeshInfo | None,
        device: Any,
        shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None,
        mp_policy: MixedPrecisionPolicy,
        offload_policy: OffloadPolicy,
    ) -> None:
        """Let the module have this process's shard of the parameter instead of it."""
        self.places = list(places)
        self.post_forward_mesh_info = post_forward_mesh_info
        self.device, self.mp_policy = device, mp_policy
        self.offload_to_cpu = isinstance(offload_policy, CPUOffloadPolicy)
        # Of the parameter that was given, which is not held: others may have it, too.
        self._orig_param_uid = param.__dict__.setdefault("_fsdp_uid", next(_uids))
        # The name from the root module on, for errors.
        self._param_fqn: str | None = None
        self.sharded_state = ShardedState.SHARDED
        self._sharded_post_forward_param: Any = None
        self._unsharded_param: Any = None
        self._storage: Refilled | None = None
        # Gradients of passes before, in the type that they are sent in.
        self.unsharded_accumulated_grad: Tensor | None = None
        with no_grad():
            self._init_sharded_param(param, mesh_info, shard_placement_fn)

    # -- the shard --------------------------------------------------------------------------------

    def _init_sharded_param(
        self,
        param: Parameter,
        mesh_info: FSDPMeshInfo,
        shard_placement_fn: Callable[[Parameter], ShardPlacementFnResult] | None,
    ) -> None:
        self.mesh_info, placement = mesh_info, None
        if callable(shard_placement_fn):
            chosen = resolve_shard_placement(shard_placement_fn(param), mesh_info)
            self.mesh_info, placement = chosen.mesh_info, chosen.placement
        if not param.is_contiguous():
            raise NotImplementedError(
                f"FSDP does not support non-contiguous parameters yet: {param.shape=} {param.stride()=}"
            )
        placement = Shard(0) if placement is None else placement
        if not isinstance(placement, Shard):
            raise AssertionError(f"Expected Shard, got {type(placement)}: {placement}")
        if placement.dim < 0:
            placement = Shard(placement.dim + param.ndim)
        self.fsdp_placement = placement
        self.is_dtensor = isinstance(param, DTensor)
        data = self._init_spec(param, placement)
        dim, size = placement.dim, self.mesh_info.shard_mesh_size
        if dim >= data.ndim:
            raise AssertionError(
                f"Shard dim {dim} is invalid for {data.ndim}D tensor: {param.shape}"
            )
        self._orig_size = tuple(data.shape)
        if dim > 0 and data.shape[dim] % size != 0:
            raise NotImplementedError(
                f"FSDP does not support uneven sharding on dim {dim}: "
                f"{data.shape} (world size: {size})"
            )
        parts = _shards(data, size, dim)
        mine = parts[self.mesh_info.shard_mesh_rank]
        self.sharded_size = tuple(mine.shape)
        self._form = tuple(parts[0].shape), dim, self._orig_size
        mine = mine.detach().clone() if not data.is_meta else mine
        if mine.is_meta:
            # A view of the whole would stay one.
            mine = data.new_empty(self.sharded_size)
        if self.offload_to_cpu and not mine.is_meta:
            mine = mine.cpu()
        self.sharded_param: Any = Parameter(
            DTensor(mine, self._spec, requires_grad=False), param.requires_grad
        )
        self._register(self.sharded_param)

    def _init_spec(self, param: Parameter, placement: Shard) -> Tensor:
        """Note how the shard's DTensor lies; return what is cut here: of a tensor parallel one, this process's part."""
        lead = (Replicate(),) if isinstance(self.mesh_info, HSDPMeshInfo) else ()
        self._unsharded_spec: DTensorSpec | None = None
        if not isinstance(param, DTensor):
            meta = TensorMeta(param.shape, param.stride(), param.dtype)
            self._spec = DTensorSpec(self.mesh_info.mesh, (*lead, placement), tensor_meta=meta)
            return param.detach()
        spec = self._unsharded_spec = param._spec
        cuts = 1
        for k, p in enumerate(spec.placements):
            if isinstance(p, Shard) and p.dim == placement.dim:
                cuts *= spec.mesh.size(k)
        mine: Placement = _StridedShard(placement.dim, split_factor=cuts) if cuts > 1 else placement
        mesh = DeviceMesh._concatenate([self.mesh_info.mesh, spec.mesh])
        self._spec = DTensorSpec(mesh, (*lead, mine, *spec.placements), spec.tensor_meta)
        return param._local_tensor.detach()

    def _register(self, param: Any) -> None:
        """Let the modules have a parameter under its names."""
        for module, name in self.places:
            module._note_state()
            if type(module).__setattr__ is Module.__setattr__:
                module._parameters[name] = param
            else:
                setattr(module, name, param)

    def reset_sharded_param(self) -> None:
        """Take the shard that the module has now: one that was loaded, or has come to another device."""
        module, name = self.places[0]
        found = module._parameters[name]
        if isinstance(found, DTensor):
            self.sharded_param = found
            self._spec = found._spec

    def init_dtype_attrs(self) -> None:
        """Note the types: parameters may have been given others before the first forward."""
        policy, self.orig_dtype = self.mp_policy, self.sharded_param.dtype
        kept = policy.param_dtype is self.orig_dtype or not self.orig_dtype.has_gradient
        self.param_dtype = None if kept else policy.param_dtype
        self.reduce_dtype = (
            None if policy.reduce_dtype is policy.param_dtype else policy.reduce_dtype
        )

    @property
    def _sharded_local_tensor(self) -> Tensor:
        local: Tensor = self.sharded_param._local_tensor
        return local

    # -- the whole --------------------------------------------------------------------------------

    @property
    def computed_dtype(self) -> DType:
        """The type of the whole."""
        return self.param_dtype or self.orig_dtype

    def computed(self, flat: Tensor) -> Tensor:
        """Return shards as they are gathered: on the device that computes, in the type of the whole."""
        return (flat.to(self.device) if self.offload_to_cpu else flat).to(self.computed_dtype)

    @property
    def form(self) -> Form:
        """How it travels now."""
        if self.sharded_state is not ShardedState.SHARDED_POST_FORWARD:
            return self._form
        return (self._post_forward_elements(),), 0, self._orig_size

    @property
    def width(self) -> int:
        """How many elements each process gives."""
        return numel(self._form[0])

    def padded_shard(self) -> Tensor:
        """Return the shard, flat, as long as the largest one."""
        return padded(self._sharded_local_tensor.detach().reshape(-1), self.width)

    def lies_in(self, flat: Tensor) -> bool:
        """Whether the shard is a part of a tensor."""
        return self._sharded_local_tensor._storage is flat._storage

    def lie_in(self, part: Tensor) -> None:
        """Let the shard be a part of a tensor, which has its values."""
        size = self.sharded_size
        self._sharded_local_tensor.data = part.narrow(0, 0, numel(size)).view(size)

    def kept_shard(self) -> Tensor:
        """Return the shard of the smaller group, flat, as long as the largest one."""
        kept: Tensor = self._sharded_post_forward_param._local_tensor
        return padded(kept.detach().reshape(-1), self._post_forward_elements())

    def fill(self, made: Tensor) -> None:
        """Let the whole have its values."""
        node, runtime = made._storage.node, made._storage.runtime
        known = self._storage
        if known is None or known.dtype is not made.dtype or known.runtime is not runtime:
            self._storage = Refilled(node, runtime)
            data = made.detach()
            data._storage = data._counter = self._storage
            if self._unsharded_spec is not None:
                spec = self._unsharded_spec
                meta = TensorMeta(spec.shape, spec.stride, made.dtype)
                data = DTensor(data, DTensorSpec(spec.mesh, spec.placements, meta))
            self._unsharded_param = Parameter(data, self.sharded_param.requires_grad)
            # A gradient is there as soon as all of it has come where somebody sees that.
            self._unsharded_param.register_post_accumulate_grad_hook(_see)
        else:
            known.fill(node)

    def to_unsharded(self) -> None:
        """Let the module have the whole."""
        whole = self._unsharded_param
        if whole.requires_grad != self.sharded_param.requires_grad:
            whole.requires_grad_(self.sharded_param.requires_grad)
        self._register(whole)
        self._sharded_post_forward_param = None
        self.sharded_state = ShardedState.UNSHARDED

    def to_sharded(self) -> None:
        """Let the module have the shard, and let go of the whole."""
        self._register(self.sharded_param)
        self._free()
        self._sharded_post_forward_param = None
        self.sharded_state = ShardedState.SHARDED

    def _post_forward_elements(self) -> int:
        """Return how many elements the largest shard of the smaller group has."""
        info = self.post_forward_mesh_info
        assert info is not None
        return -(-self._orig_size[0] // info.shard_mesh_size) * numel(self._orig_size[1:])

    def to_sharded_post_forward(self) -> None:
        """Let the module have a shard of a smaller group, and let go of the whole."""
        if self.is_dtensor:
            raise NotImplementedError(
                "Resharding to smaller mesh is not supported for DTensor parameters yet"
            )
        info = self.post_forward_mesh_info
        assert info is not None
        whole = self._unsharded_param.detach()
        with no_grad():
            mine = primitive.copy(_shards(whole, info.shard_mesh_size, 0)[info.shard_mesh_rank])
        meta = self._spec.tensor_meta
        spec = DTensorSpec(
            info.mesh, (Replicate(), Shard(0)),
            tensor_meta=TensorMeta(meta.shape, meta.stride, whole.dtype),
        )  # fmt: skip
        self._sharded_post_forward_param = Parameter(
            DTensor(mine, spec, requires_grad=False), self.sharded_param.requires_grad
        )
        self._register(self._sharded_post_forward_param)
        self._free()
        self.sharded_state = ShardedState.SHARDED_POST_FORWARD

    def _free(self) -> None:
        if self._storage is not None:
            self._storage.empty()

    # -- gradients --------------------------------------------------------------------------------

    @property
    def unsharded_param(self) -> Any:
        """The whole."""
        return self._unsharded_param

    def accumulate_unsharded_grad_if_needed(self) -> None:
        """Add this pass's gradient to those of before, in the type that they are sent in."""
        whole = self._unsharded_param
        if (
            self.unsharded_accumulated_grad is not None
            and whole is not None
            and whole.grad is not None
        ):
            self.unsharded_accumulated_grad += whole.grad
            whole.grad = None

    def to_accumulated_grad_if_needed(self) -> None:
        """Keep a gradient that is not sent in the type that it will be sent in."""
        whole = self._unsharded_param
        dtype = self.reduce_dtype
        if dtype is None or whole is None or whole.grad is None or whole.grad.dtype is dtype:
            return
        grad, whole.grad = whole.grad, None
        self.unsharded_accumulated_grad = grad.to(dtype)

    def take_grad(self, zeros: bool) -> Tensor | None:
        """Return the whole gradient, which the parameter has no longer; `zeros` where there is none."""
        whole = self._unsharded_param
        if whole is None:
            return None
        grad: Any = self.unsharded_accumulated_grad
        if grad is not None:
            self.unsharded_accumulated_grad = None
        elif whole.grad is not None:
            grad, whole.grad = whole.grad, None
        elif zeros and whole.requires_grad:
            local = whole.detach()
            local = local._local_tensor if isinstance(local, DTensor) else local
            zeros_of: Tensor = local.new_zeros(tuple(local.shape))
            return zeros_of
        spec = self._unsharded_spec
        if spec is not None and isinstance(grad, DTensor):
            grad = grad.redistribute(placements=spec.placements)._local_tensor
        found: Tensor | None = grad
        return found

    def add_grad(self, sent: Tensor, start: int) -> None:
        """Add this process's part of the mean to the shard's gradient; it lies in what was sent, from `start` on."""
        size = self.sharded_size
        mine = sent.as_strided(size, contiguous_strides(size), sent.storage_offset() + start)
        if self.offload_to_cpu:
            mine = mine.cpu()
        shard, local = self.sharded_param, self._sharded_local_tensor
        if local.grad is None:
            local.grad = mine
        else:
            local.grad += mine
        for hook in list((local._post_accumulate or {}).values()):
            hook(shard)

    def __repr__(self) -> str:
        return f"FSDPParam(fqn={self._param_fqn}, orig_size={self._orig_size})"


def _see(_: Tensor) -> None:
    pass
