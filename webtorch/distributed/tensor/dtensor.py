"""`torch.distributed.tensor.DTensor`: a tensor whose parts lie in processes. Floor 5.

A DTensor is its part in this process (`_local_tensor`) and how the parts make up the whole (`_spec`). A call goes to
the parts (`calls`), whose graph is the graph of the whole: flags, gradients and hooks of a DTensor are its part's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.dispatch.call import Args, Kwargs, refuse_scripts
from webtorch.distributed.collectives import broadcast
from webtorch.distributed.device_mesh import DeviceMesh, current_mesh
from webtorch.distributed.tensor._dtensor_spec import (
    DTensorSpec,
    Placements,
    TensorMeta,
    for_gradient,
    meta_of,
    normalized,
)
from webtorch.distributed.tensor.placement_types import Placement, Replicate, Shard
from webtorch.distributed.tensor.redistribute import gradient_of_part, move, seen_gradient
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.view import contiguous_strides
from webtorch.tensors.engine import backward
from webtorch.tensors.modes import mode
from webtorch.tensors.tensor import Tensor

# What a call of functions with DTensors does: `calls` fills it in.
Call = Callable[[Callable[..., Any], Args, Kwargs], Any]
_answer: list[Call] = []
# The same of `Function.apply`: `functions` fills it in.
_functions: list[Callable[[Any, Args, Kwargs], Any]] = []


def answer_calls(function: Call) -> None:
    """Say what a call of a function with DTensors does."""
    _answer[:] = [function]


def apply_functions(function: Callable[[Any, Args, Kwargs], Any]) -> None:
    """Say what `Function.apply` does with DTensors."""
    _functions[:] = [function]


def strides_like(local: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the whole in the order in which the part's dims lie."""
    if local.dim() != len(shape):
        # A process that is not in the mesh has none of it.
        return contiguous_strides(shape)
    order = sorted(range(len(shape)), key=lambda d: (-local._strides[d], d))
    found, step = [0] * len(shape), 1
    for d in reversed(order):
        found[d], step = step, step * max(shape[d], 1)
    return tuple(found)


class Source:
    """What a DTensor is a view of though its part is a copy, and how it is made of that."""

    def __init__(self, base: DTensor, again: Callable[[DTensor], DTensor]) -> None:
        base._refresh()
        self.base, self.again = base, again
        self.part, self.version = base._local_tensor, base._version

    def is_old(self) -> bool:
        """Whether the base has been written since."""
        return self.base._local_tensor is not self.part or self.base._version != self.version


class DTensor(Tensor):
    """A tensor whose parts lie in the processes of a mesh, as placements say.

    `DTensor.from_local` makes one of its parts, `distribute_tensor` of the whole.
    """

    _local_tensor: Tensor
    _spec: DTensorSpec
    # Of a view whose part is a copy of what had to be sent: what it is a view of.
    _source: Source | None = None
    __module__ = "webtorch.distributed.tensor"

    def __new__(
        cls, local_tensor: Tensor, spec: DTensorSpec, *, requires_grad: bool = False
    ) -> DTensor:
        """Return a DTensor with this part itself."""
        meta = spec.tensor_meta
        self: DTensor = Tensor._make_wrapper_subclass(
            cls, meta.shape, meta.stride, dtype=local_tensor.dtype, device=local_tensor.device
        )
        self._local_tensor, self._spec = local_tensor, spec
        if requires_grad and not local_tensor.requires_grad:
            local_tensor.requires_grad_(True)
        return self

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing: it was complete when `__new__` returned it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of the parts."""
        if not all(issubclass(kind, Tensor) for kind in types):  # type: ignore[attr-defined]
            return NotImplemented
        refuse_scripts("a DTensor")
        return _answer[0](func, tuple(args), kwargs or {})

    def _refresh(self) -> None:
        """Take the elements anew of what it is a view of, where that has been written."""
        source = self._source
        if source is not None:
            source.base._refresh()
        if source is not None and source.is_old():
            with webtorch.enable_grad():
                view = source.again(source.base)._as(self._spec.placements)
            self._local_tensor = view._local_tensor
            self._source = Source(source.base, source.again)

    # ---- parts

    @staticmethod
    def from_local(
        local_tensor: Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """Return the DTensor of this process's part. Differentiable.

        Without `shape` and `stride` all parts are taken to have the sizes of this one. `run_check` gives replicas the
        values of the first process. Raises RuntimeError for a DTensor, and for one of `shape` and `stride` alone.
        """
        if isinstance(local_tensor, DTensor):
            raise RuntimeError(
                f"the local_tensor argument only accepts torch.Tensor but got {type(local_tensor)} value."
            )
        mesh = device_mesh or current_mesh()
        if mesh.device_type != local_tensor.device.type and not local_tensor.is_meta:
            local_tensor = local_tensor.to(mesh.device_type)
        lies = normalized(placements, mesh, local_tensor.ndim)
        if (shape is None) != (stride is None):
            raise RuntimeError(
                f"Found shape:{shape}, stride:{stride}.",
                "Please pass both shape and stride at the same time.",
            )
        if shape is None:
            sizes = list(local_tensor.shape)
            for i, p in enumerate(lies):
                if isinstance(p, Shard):
                    if p.dim >= len(sizes):
                        raise RuntimeError(
                            f"Sharding dim {p.dim} greater than tensor ndim {len(sizes)} for placement number {i}."
                        )
                    sizes[p.dim] *= mesh.size(i)
            shape = sizes
            stride = strides_like(local_tensor, sizes)
        if not mesh._is_current_rank_part_of_mesh():
            local_tensor = local_tensor.new_empty(0)
        if run_check:
            for i, p in enumerate(lies):
                if isinstance(p, Replicate):
                    local_tensor = local_tensor.contiguous()
                    with webtorch.no_grad():
                        broadcast(local_tensor, group=mesh.get_group(i), group_src=0)
        spec = DTensorSpec(mesh, lies, meta_of(shape, local_tensor.dtype, stride))
        if grad_placements is not None:
            given = normalized(grad_placements, mesh, local_tensor.ndim)
            if given != for_gradient(lies):
                # What the part is given lies as it says.
                local_tensor = move(
                    local_tensor, mesh, spec.shape, given, given, for_gradient(lies)
                )
        return DTensor(local_tensor.view_as(local_tensor), spec)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Return this process's part. Differentiable: its gradient lies as `grad_placements` say, without them as the
        part does, and as replicas where it is still to be reduced.
        """
        self._refresh()
        local, spec = self._local_tensor, self._spec
        if not mode.grad:
            return local
        if grad_placements is not None:
            given = normalized(grad_placements, spec.mesh, self.dim())
            local = move(
                local, spec.mesh, spec.shape, spec.placements, spec.placements, for_gradient(given)
                if not any(p.is_partial() for p in given) else given,
            )  # fmt: skip
        return local.view_as(local)

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: DType | None = None,
        backward_dtype: DType | None = None,
    ) -> DTensor:
        """Return the same tensor by other placements: chunks, replicas, or sums taken. Differentiable.

        Raises RuntimeError without placements, and for what would be still to be reduced.
        """
        spec = self._spec
        if placements is None:
            raise RuntimeError("placements is needed for redistribute!")
        if device_mesh is not None and device_mesh != spec.mesh:
            raise NotImplementedError("Cross device mesh comm not supported yet!")
        for p, q in zip(spec.placements, placements, strict=False):
            if q.is_partial() and p != q:
                raise RuntimeError(
                    f"Can not redistribute from {p} to {q}, redistributing to Partial is for internal use only!"
                )
        return self._as(normalized(placements, spec.mesh, self.dim()), forward_dtype)

    def _as(self, placements: Placements, dtype: DType | None = None) -> DTensor:
        """Return it by other placements."""
        self._refresh()
        spec, local = self._spec, self._local_tensor
        if dtype is not None and dtype is not local.dtype:
            local = local.to(dtype)
        moved = move(local, spec.mesh, spec.shape, spec.placements, placements)
        if moved is self._local_tensor and mode.grad and moved.requires_grad:
            moved = moved.view_as(moved)
        return wrapped(moved, spec.mesh, placements, spec.shape, spec.stride)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """Return the whole, in all processes. Differentiable."""
        whole = self._as((Replicate(),) * self._spec.mesh.ndim)
        return whole.to_local(grad_placements=grad_placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh."""
        return self._spec.mesh

    @property
    def placements(self) -> Placements:
        """How it lies along each dimension of the mesh."""
        return self._spec.placements

    def _wrap(self, local: Tensor) -> DTensor:
        """Return a DTensor of another part that lies as this one's does."""
        return DTensor(local, self._spec)

    # ---- gradients: those of the part

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for this tensor."""
        source = self._source
        if source is not None and source.is_old() and source.base.requires_grad:
            return True
        return self._local_tensor.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        """Set whether gradients are recorded."""
        self._local_tensor.requires_grad = value

    def requires_grad_(self, requires_grad: bool = True) -> DTensor:
        """Start or stop recording gradients for this leaf."""
        self._local_tensor.requires_grad_(requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether it is the start of a graph."""
        return self._local_tensor.is_leaf

    @property
    def grad_fn(self) -> Any:
        """The gradient function that made its part."""
        return self._local_tensor.grad_fn

    @property
    def grad(self) -> DTensor | None:
        """The gradient, which lies as the tensor does, and as replicas where that is still to be reduced."""
        return self._seen(self._local_tensor.grad)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        """Set the gradient: a DTensor, which is redistributed, or None."""
        self._local_tensor.grad = self._gradient_part(value)

    @grad.deleter
    def grad(self) -> None:
        """Set the gradient to None."""
        self._local_tensor.grad = None

    @property
    def _grad(self) -> Any:
        return self._seen(self._local_tensor._grad)

    @_grad.setter
    def _grad(self, value: Tensor | None) -> None:
        if "_local_tensor" in self.__dict__:
            self._local_tensor._grad = self._gradient_part(value)

    def _seen(self, g: Tensor | None) -> Any:
        """Return a gradient of the part as a DTensor, the same one while it is the same."""
        if g is None:
            self.__dict__.pop("_last_grad", None)
            return None
        of, last = self.__dict__.get("_last_grad", (None, None))
        if of is not g:
            last = whole_gradient(g, self._spec, self._spec.stride)
            self.__dict__["_last_grad"] = g, last
        return last

    def _gradient_part(self, value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        if not isinstance(value, DTensor):
            raise RuntimeError(
                f"assigned grad has data of a different type: expected DTensor, got {type(value).__name__}. "
                "Make it one first: DTensor.from_local(grad, mesh, placements)"
            )
        spec, lies = value._spec, self._spec.placements
        part = gradient_of_part(value._local_tensor, spec.mesh, spec.shape, spec.placements, lies)
        if part is value._local_tensor:
            self.__dict__["_last_grad"] = part, value
        return part

    def retain_grad(self) -> None:
        """Keep the gradient of what is no leaf."""
        self._local_tensor.retain_grad()

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called."""
        return self._local_tensor.retains_grad

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(gradient)` with a DTensor; it may return another one."""

        def of_part(g: Tensor) -> Tensor | None:
            """Call the hook with the gradient of the whole."""
            found = hook(whole_gradient(g, self._spec))
            return None if found is None else self._gradient_part(found)

        return self._local_tensor.register_hook(of_part)

    def register_post_accumulate_grad_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook(self)` when the gradient has been accumulated."""
        return self._local_tensor.register_post_accumulate_grad_hook(lambda _: hook(self))

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute the gradients of the leaves. Without `gradient` it must have one element."""
        listed = [inputs] if isinstance(inputs, Tensor) else inputs
        parts = None if listed is None else [part_of(x) for x in listed]
        backward([self], [gradient], retain_graph, create_graph, parts)

    def _as_root(self, gradient: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the part from which a backward pass goes, and its gradient."""
        spec = self._spec
        if gradient is None:
            if self.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            return self._as((Replicate(),) * spec.mesh.ndim)._local_tensor, None
        return self._local_tensor, (
            self._gradient_part(gradient) if isinstance(gradient, DTensor) else gradient
        )

    def _apply(self, function: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call a user's function of the gradient kind, which sees DTensors in both directions."""
        return _functions[0](function, args, kwargs)

    def detach(self) -> DTensor:
        """Return it outside of its graph, on the same memory."""
        made = self._wrap(self._local_tensor.detach())
        if self._source is not None:
            made._source = Source(self, DTensor.detach)
        return made

    def detach_(self) -> DTensor:
        """Take it out of its graph."""
        self._local_tensor.detach_()
        return self

    @property
    def data(self) -> DTensor:
        """The same memory without autograd."""
        return self._wrap(self._local_tensor.data)

    @data.setter
    def data(self, value: Tensor) -> None:
        """Let it be another DTensor, on the memory of that."""
        if not isinstance(value, DTensor):
            raise TypeError(
                f"data: a DTensor takes the data of a DTensor, not of a {type(value).__name__}"
            )
        self._local_tensor.data = value._local_tensor
        self._take_spec(value._spec)

    def _take_spec(self, spec: DTensorSpec) -> None:
        """Be like another whole."""
        like = Tensor._make_wrapper_subclass(
            DTensor, spec.shape, spec.stride, dtype=self._local_tensor.dtype, device=self._local_tensor.device
        )  # fmt: skip
        self._adopt(like._storage, like._shape, like._strides, like._offset, like._whole)
        self.dtype, self.__dict__["_shown_device"] = like.dtype, like.__dict__["_shown_device"]
        self._spec = spec

    @property
    def _version(self) -> int:
        return self._local_tensor._version

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return it with another dtype, or on another device."""
        args = tuple([part_of(x) if isinstance(x, DTensor) else x for x in args])
        other = kwargs.get("other")
        if isinstance(other, DTensor):
            kwargs["other"] = other._local_tensor
        local = self._local_tensor.to(*args, **kwargs)
        return self if local is self._local_tensor else self._like(local)

    def _like(self, local: Tensor) -> DTensor:
        """Return a DTensor of another part, of any type, that lies as this one's does."""
        spec = self._spec
        return wrapped(local, spec.mesh, spec.placements, spec.shape, spec.stride)

    def _of_whole(self, x: Tensor) -> DTensor:
        """Return a DTensor of a whole that all processes have, which lies as this one does."""
        spec = self._spec
        part = move(x, spec.mesh, spec.shape, (Replicate(),) * spec.mesh.ndim, spec.placements)
        return self._like(part)

    # ---- as an object

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return (
            f"DTensor(local_tensor={self._local_tensor}, device_mesh={self._spec.mesh}, "
            f"placements={self._spec.placements})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DTensor:
        """Return a leaf with its own copy of the part, once per `memo`."""
        known = memo.get(id(self))
        if known is not None:
            found: DTensor = known
            return found
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                "moment."
            )
        made = self._wrap(self._local_tensor.detach().clone())
        made.requires_grad_(self.requires_grad)
        self._give_marks(made)
        if self._local_tensor.grad is not None and not self.__dict__.get("_is_param"):
            made._local_tensor.grad = self._local_tensor.grad.clone()
        memo[id(self)] = made
        return made

    def _give_marks(self, other: DTensor) -> None:
        """Give another one what users have set, and that it is a parameter."""
        own = (
            "_local_tensor",
            "_spec",
            "_shown_device",
            "_last_grad",
            "_moves",
            "_identity",
            "_source",
        )
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k not in own})

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Pickle as the part, the placements and the mesh, which finds its groups where it is made again."""
        is_param = bool(self.__dict__.get("_is_param"))
        return _rebuilt, (self._local_tensor.detach(), self._spec, self.requires_grad, is_param)

    def __hash__(self) -> int:
        return id(self)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """Return the names of the tensors that it wraps, and what it is else."""
        return ["_local_tensor"], (self._spec, self.requires_grad)


def _rebuilt(local: Tensor, spec: DTensorSpec, requires_grad: bool, is_param: bool) -> DTensor:
    """Return what was pickled."""
    made = DTensor(local, spec, requires_grad=requires_grad)
    if is_param:
        made.__dict__["_is_param"] = True
    return made


def wrapped(
    local: Tensor,
    mesh: DeviceMesh,
    placements: Placements,
    shape: Sequence[int],
    stride: Sequence[int] | None = None,
) -> DTensor:
    """Return the DTensor of a part, itself."""
    strides = strides_like(local, shape) if stride is None else tuple(stride)
    meta: TensorMeta = meta_of(shape, local.dtype, strides)
    return DTensor(local, DTensorSpec(mesh, placements, meta))


def whole_gradient(g: Tensor, spec: DTensorSpec, stride: Sequence[int] | None = None) -> DTensor:
    """Return the gradient of a part as that of the whole."""
    seen = seen_gradient(g, spec.mesh, spec.shape, spec.placements)
    return wrapped(seen, spec.mesh, for_gradient(spec.placements), spec.shape, stride)


def part_of(x: Any) -> Any:
    """Return the part of a DTensor, anything else itself."""
    return x._local_tensor if isinstance(x, DTensor) else x
