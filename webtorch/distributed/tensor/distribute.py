"""DTensors of whole tensors, of modules, and new ones. Floor 5."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.distributed.collectives import broadcast
from webtorch.distributed.device_mesh import DeviceMesh, current_mesh
from webtorch.distributed.tensor._dtensor_spec import (
    DTensorSpec,
    compute_local_shape_and_global_offset,
    meta_of,
    normalized,
)
from webtorch.distributed.tensor.choosing import R
from webtorch.distributed.tensor.dtensor import DTensor, wrapped
from webtorch.distributed.tensor.placement_types import Partial, Placement
from webtorch.distributed.tensor.redistribute import redistribute_local
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.tensors.tensor import Tensor


def distribute_tensor(
    tensor: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> DTensor:
    """Return the DTensor of a whole leaf, as the first process along each dimension of the mesh has it; with
    `src_data_rank=None` each process takes its part of its own. A dim is cut as `torch.chunk` does.

    Raises RuntimeError for what is no leaf, ValueError for placements that are not as many as the mesh's dimensions,
    and for a DTensor that lies otherwise.
    """
    mesh = device_mesh or current_mesh()
    if not tensor.is_leaf:
        raise RuntimeError(
            "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor!"
        )
    if (
        not isinstance(tensor, DTensor)
        and mesh.device_type != tensor.device.type
        and not tensor.is_meta
    ):
        tensor = tensor.to(mesh.device_type)
    given = (R,) * mesh.ndim if placements is None else placements
    if len(given) != mesh.ndim:
        raise ValueError(
            "`placements` must have the same length as `device_mesh.ndim`! "
            f"Found placements length: {len(given)}, and device_mesh.ndim: {mesh.ndim}."
        )
    lies = normalized(given, mesh, tensor.dim())
    if isinstance(tensor, DTensor):
        if tensor.device_mesh != mesh:
            raise ValueError(
                f"Cannot distribute a DTensor with device mesh {tensor.device_mesh} to a different device mesh {mesh}."
            )
        if tensor.placements != lies:
            raise ValueError(
                f"Cannot distribute a DTensor with placements {tensor.placements} to a different placements {lies}. "
                "do you want to call `redistribute` instead?"
            )
        return tensor
    with webtorch.no_grad():
        local = tensor.detach()
        if mesh.get_coordinate() is None:
            local = local.new_empty(0)
        else:
            if src_data_rank is not None and not local.is_meta and mesh.size() > 1:
                local = local.clone(memory_format=webtorch.contiguous_format)
                for i in range(mesh.ndim):
                    broadcast(local, group=mesh.get_group(i), group_src=src_data_rank)
            part = redistribute_local(local, mesh, tensor.shape, (R,) * mesh.ndim, lies)
            local = part.clone() if part is tensor or part._storage is tensor._storage else part
    spec = DTensorSpec(mesh, lies, meta_of(tensor.shape, tensor.dtype, tensor.stride()))
    return DTensor(local, spec, requires_grad=tensor.requires_grad)


def as_parameter(x: DTensor, requires_grad: bool = True) -> Any:
    """Return a DTensor as a module's parameter."""
    made = x.detach().requires_grad_(requires_grad)
    made.__dict__["_is_param"] = True
    return made


def _replicate(module: Any, mesh: DeviceMesh) -> None:
    """Replicate what a module itself holds that is no DTensor yet."""
    for name, param in module._parameters.items():
        if param is not None and not isinstance(param, DTensor):
            whole = distribute_tensor(param.data, mesh)
            module.register_parameter(name, as_parameter(whole, param.requires_grad))
    for name, buffer in module._buffers.items():
        if buffer is not None and not isinstance(buffer, DTensor):
            module._buffers[name] = distribute_tensor(buffer, mesh)


def distribute_module(
    module: Any,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, Any, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> Any:
    """Make a module's parameters and buffers DTensors: as `partition_fn(name, module, mesh)` does, others replicated.

    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` change what goes in and out. Raises
    RuntimeError for a module that was distributed before.
    """
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError(
            "distribute_module should only be called once on a module, but it has already been called on this module!"
        )
    mesh = device_mesh or current_mesh()
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, mesh)
        _replicate(part, mesh)
    if input_fn is not None:
        before = _with_module("input_fn", "inputs", input_fn)
        module.register_forward_pre_hook(lambda mod, inputs: before(mod, inputs, mesh))
    if output_fn is not None:
        after = _with_module("output_fn", "outputs", output_fn)
        module.register_forward_hook(lambda mod, inputs, outputs: after(mod, outputs, mesh))
    module._distribute_module_applied = True
    return module


def _with_module(name: str, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of module, values and mesh; those of two arguments are not given the module."""
    count = len(inspect.signature(function).parameters)
    if count == 2:
        warnings.warn(
            f"Deprecating {name} that takes two arguments ({what}, device_mesh), "
            f"please use {name} that takes in (module, {what}, device_mesh) instead!",
            FutureWarning,
            stacklevel=user_depth(),
        )
        return lambda module, values, mesh: function(values, mesh)
    if count != 3:
        raise ValueError(f"{name} should take in 3 arguments, but got {count} arguments!")
    return function


# ---- new ones


def _sizes(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (list, tuple)) else size


def _made(
    fill: Callable[..., Tensor],
    size: tuple[Any, ...],
    dtype: DType | None,
    layout: object,
    requires_grad: bool,
    device_mesh: DeviceMesh | None,
    placements: Sequence[Placement] | None,
    whole: bool = False,
) -> DTensor:
    """Return a new DTensor whose parts `fill(sizes)` makes; `whole`: it makes all, of which each takes its part."""
    if layout is not None and "strided" not in str(layout):
        raise ValueError(f"layout {layout} not supported!")
    mesh, shape = device_mesh or current_mesh(), _sizes(size)
    lies = normalized(placements, mesh, len(shape))
    if len(lies) != mesh.ndim:
        raise ValueError("mesh dimension does not match the length of placements")
    if any(isinstance(p, Partial) for p in lies):
        raise ValueError("a new DTensor cannot be Partial")
    options = {"dtype": dtype, "device": mesh.device_type}
    if whole:
        full = fill(shape, **options)
        local = redistribute_local(full, mesh, shape, (R,) * mesh.ndim, lies)
        local = local.clone() if local is not full else local
    else:
        local = fill(compute_local_shape_and_global_offset(shape, mesh, lies)[0], **options)
    made = wrapped(local, mesh, lies, shape)
    return made.requires_grad_(requires_grad)


def ones(*size: Any, dtype: DType | None = None, layout: object = None, requires_grad: bool = False,
         device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor of ones, replicated without placements."""
    return _made(webtorch.ones, size, dtype, layout, requires_grad, device_mesh, placements)


def zeros(*size: Any, dtype: DType | None = None, layout: object = None, requires_grad: bool = False,
          device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor of zeros, replicated without placements."""
    return _made(webtorch.zeros, size, dtype, layout, requires_grad, device_mesh, placements)


def empty(*size: Any, dtype: DType | None = None, layout: object = None, requires_grad: bool = False,
          device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor with memory that nobody has written, replicated without placements."""
    return _made(webtorch.empty, size, dtype, layout, requires_grad, device_mesh, placements)


def full(size: Any, fill_value: Any, *, dtype: DType | None = None, layout: object = None, requires_grad: bool = False,
         device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor of one value, replicated without placements."""
    fill = lambda shape, **options: webtorch.full(shape, fill_value, **options)  # noqa: E731
    return _made(fill, (size,), dtype, layout, requires_grad, device_mesh, placements)


def rand(*size: Any, requires_grad: bool = False, dtype: DType | None = None, layout: object = None,
         device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor of uniform draws: with equal seeds, what one process draws of the whole's sizes."""
    return _made(webtorch.rand, size, dtype, layout, requires_grad, device_mesh, placements, True)


def randn(*size: Any, requires_grad: bool = False, dtype: DType | None = None, layout: object = None,
          device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None) -> DTensor:  # fmt: skip
    """Return a DTensor of normal draws: with equal seeds, what one process draws of the whole's sizes."""
    return _made(webtorch.randn, size, dtype, layout, requires_grad, device_mesh, placements, True)
