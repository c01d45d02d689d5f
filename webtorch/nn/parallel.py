"""Data parallelism in one process: a batch split over devices. May import nn's base files only.

Every device records its part of the work; nothing waits until results are gathered, so that the
devices compute at the same time. Copies between devices pass through the host's memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from webtorch import webgpu
from webtorch.functions.joining import cat
from webtorch.ir.lines import user_depth
from webtorch.nn.distributed import DistributedDataParallel
from webtorch.nn.module import Module
from webtorch.tensors.device import device as as_device
from webtorch.tensors.function import Function
from webtorch.tensors.modes import is_grad_enabled, no_grad
from webtorch.tensors.tensor import Tensor

_Network = TypeVar("_Network", bound=Module)

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]


def _device(which: object) -> object:
    """Return a device with its number: `which` is one, its name, the number of an adapter, or -1 for the CPU."""
    if isinstance(which, int):
        return as_device("cpu") if which == -1 else as_device("webgpu", which)
    found = as_device(which)
    return as_device("webgpu", 0) if found.type == "webgpu" and found.index is None else found


def _devices(device_ids: Sequence[object] | None) -> list[object]:
    chosen = webgpu.graphics_cards() if device_ids is None else device_ids
    return [_device(which) for which in chosen]


def _like(whole: tuple[Any, ...], parts: Iterable[Any]) -> object:
    """Return `parts` as a tuple of the type of `whole`, named fields kept."""
    kind = type(whole)
    return kind(*parts) if hasattr(whole, "_fields") else kind(parts)


class _Broadcast(Function):
    """Copies of several tensors on another device, in one transfer a dtype; so go their gradients back."""

    @staticmethod
    def forward(ctx: Any, target: object, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return copies of the tensors on `target`."""
        ctx.home = tensors[0].device
        return tuple(_copied(tensors, target))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return copies of the gradients on the device that the tensors came from."""
        return (None, *_copied(grads, ctx.home))


def _copied(tensors: Sequence[Tensor], target: object) -> list[Tensor]:
    """Return copies of `tensors` on `target`, those of one dtype sent as one."""
    places: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    found: dict[int, Tensor] = {}
    for same in places.values():
        flat = cat([tensors[i].reshape(-1) for i in same]).to(target)
        for i, part in zip(same, flat.split([tensors[i].numel() for i in same]), strict=True):
            found[i] = part.reshape(tensors[i].shape)
    return [found[i] for i in range(len(tensors))]


def _broadcast(tensors: Sequence[Tensor], target: object, detach: bool) -> list[Tensor]:
    if not tensors or tensors[0].device == target:
        return [t.detach() for t in tensors] if detach else list(tensors)
    if detach:
        with no_grad():
            return _copied(tensors, target)
    return list(_Broadcast.apply(target, *tensors))


def replicate(network: _Network, devices: Sequence[object], detach: bool = False) -> list[_Network]:
    """Return a copy of `network` for each device, whose parameters' gradients flow to `network`'s.

    The first copy, on the device of `network`, shares its memory, so that running statistics stay. With
    `detach`, copies have no gradients.
    """
    parameters, buffers = list(network.parameters()), list(network.buffers())
    modules = list(network.modules())
    replicas = []
    for number, target in enumerate(map(_device, devices)):
        copies = dict(zip(map(id, parameters), _broadcast(parameters, target, detach), strict=True))
        held = _broadcast(buffers, target, True)
        # A second replica on the same device writes its own.
        copies |= zip(map(id, buffers), [b.clone() for b in held] if number else held, strict=True)
        twins: dict[int, Any] = {}
        for module in modules:
            twin = twins[id(module)] = module.__new__(type(module))
            twin.__dict__ = module.__dict__.copy()
            # The compiled call is that of `module` itself.
            twin.__dict__.pop("_compiled_call_impl", None)
            for table in ("_parameters", "_buffers"):
                twin.__dict__[table] = {
                    name: t if t is None else copies[id(t)]
                    for name, t in module.__dict__[table].items()
                }
        for module in modules:
            twins[id(module)].__dict__["_modules"] = {
                name: m if m is None else twins[id(m)] for name, m in module._modules.items()
            }
        replicas.append(twins[id(network)])
    return replicas


def scatter(inputs: object, target_gpus: Sequence[object], dim: int = 0) -> Any:
    """Return for each device its part of `inputs`: tensors cut along `dim`, tuples, lists and dicts
    entry by entry, other objects shared.

    A tensor too short for all devices gives fewer parts.
    """
    devices = [_device(which) for which in target_gpus]

    def parts(value: object) -> list[Any]:
        """Return a part of the value for each device: tensors cut along `dim`, others as they are."""
        if isinstance(value, Tensor):
            pieces = value.chunk(len(devices), dim)
            return [p.to(d) for p, d in zip(pieces, devices, strict=False)]
        if isinstance(value, tuple) and value:
            return [_like(value, each) for each in zip(*map(parts, value), strict=False)]
        if isinstance(value, list) and value:
            return [list(each) for each in zip(*map(parts, value), strict=False)]
        if isinstance(value, Mapping) and value:
            kind: Any = type(value)
            return [kind(each) for each in zip(*map(parts, value.items()), strict=False)]
        return [value for _ in devices]

    return parts(inputs)


def scatter_kwargs(
    inputs: tuple[object, ...],
    kwargs: dict[str, Any] | None,
    target_gpus: Sequence[object],
    dim: int = 0,
) -> tuple[tuple[tuple[Any, ...], ...], tuple[dict[str, Any], ...]]:
    """Return for each device its positional and its keyword arguments, as `scatter` cuts them."""
    positional = scatter(inputs, target_gpus, dim) if inputs else []
    named = scatter(kwargs, target_gpus, dim) if kwargs else []
    calls = max(len(positional), len(named))
    positional += [()] * (calls - len(positional))
    named += [{}] * (calls - len(named))
    return tuple(positional), tuple(named)


def parallel_apply(
    modules: Sequence[Callable[..., object]],
    inputs: Sequence[object],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[object] | None = None,
) -> list[Any]:
    """Return modules[i](*inputs[i], **kwargs_tup[i]) for every i; the devices compute at the same time.

    An input that is no tuple is the one argument. Calls only record, so one thread makes them all.
    """
    if len(modules) != len(inputs):
        raise AssertionError(
            f"The number of modules {len(modules)} is not equal to the number of inputs {len(inputs)}"
        )
    outputs = []
    for number, (module, given) in enumerate(zip(modules, inputs, strict=True)):
        named = kwargs_tup[number] if kwargs_tup else {}
        try:
            outputs.append(
                module(*(given if isinstance(given, tuple | list) else (given,)), **named)
            )
        except Exception as error:
            where = f" on device {_device(devices[number])}" if devices else ""
            error.add_note(f"Caught in replica {number}{where}.")
            raise
    return outputs


def gather(outputs: Sequence[Any], target_device: object, dim: int = 0) -> Any:
    """Return the outputs of all devices as one on `target_device`: tensors joined along `dim`, tuples,
    lists and dicts entry by entry. Differentiable.
    """
    target = _device(target_device)
    first = outputs[0]
    if isinstance(first, Tensor):
        if all(not t.dim() for t in outputs) and dim == 0:
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; will "
                "instead unsqueeze and return a vector.",
                stacklevel=user_depth(),
            )
            outputs = [t.unsqueeze(0) for t in outputs]
        return cat([t.to(target) for t in outputs], dim)
    if first is None:
        return None
    if isinstance(first, Mapping):
        if any(len(one) != len(first) for one in outputs):
            raise ValueError("All dicts must have the same number of keys")
        kind: Any = type(first)
        return kind((key, gather([one[key] for one in outputs], target, dim)) for key in first)
    return _like(first, [gather(each, target, dim) for each in zip(*outputs, strict=True)])


def _checked(module: Module, home: object) -> None:
    for tensor in chain(module.parameters(), module.buffers()):
        if tensor.device != home:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {home} (device_ids[0]) but "
                f"found one of them on device: {tensor.device}. Move it: module.to('{home}')"
            )


def data_parallel(
    module: Module,
    inputs: object,
    device_ids: Sequence[object] | None = None,
    output_device: object = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return module(*inputs, **module_kwargs), tensors cut along `dim` and computed on all devices.

    `inputs` is a tuple or the one input. `device_ids` are numbers of WebGPU adapters, or devices;
    default: all graphics cards like the best one; without any, the module is called where it is. Results
    come to `output_device` (default: the first device). Raises RuntimeError where the module is not on
    the first device.
    """
    devices = _devices(device_ids)
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if devices:
        _checked(module, devices[0])
    return DataParallel(module, devices, output_device, dim)(*given, **(module_kwargs or {}))


class DataParallel(Module):
    """Cut each batch over several devices: a replica of `module` on each computes its part.

    Arguments as of `data_parallel`. The module's own parameters collect the gradients of all replicas;
    buffers are those of the first replica. Entries of the state dict have the prefix "module.", as in
    PyTorch. Captures (`webtorch.compile`) take one device only.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[object] | None = None,
        output_device: object = None,
        dim: int = 0,
    ) -> None:
        """Hold the module; one device alone gets it at once."""
        super().__init__()
        self.module = module
        self.device_ids = _devices(device_ids)
        self.output_device = None
        self.dim = dim
        if self.device_ids:
            first = self.device_ids[0]
            self.output_device = _device(first if output_device is None else output_device)
        if len(self.device_ids) == 1:
            self.module.to(self.device_ids[0])

    def forward(self, *inputs: object, **kwargs: object) -> Any:
        """Call the module on all devices and gather what it returns."""
        devices = self.device_ids
        if not devices:
            return self.module(*inputs, **kwargs)
        _checked(self.module, devices[0])
        given, named = self.scatter(inputs, kwargs, devices)
        if not given and not named:
            # A module without inputs runs on the first device.
            given, named = ((),), ({},)
        if len(devices) == 1:
            return self.module(*given[0], **named[0])
        replicas = self.replicate(self.module, devices[: len(given)])
        return self.gather(self.parallel_apply(replicas, given, named), self.output_device)

    def replicate(self, module: _Network, device_ids: Sequence[object]) -> list[_Network]:
        """Return a copy of the module for each device."""
        return replicate(module, device_ids, not is_grad_enabled())

    def scatter(
        self,
        inputs: tuple[object, ...],
        kwargs: dict[str, Any] | None,
        device_ids: Sequence[object],
    ) -> Any:
        """Return for each device its positional and its keyword arguments."""
        return scatter_kwargs(inputs, kwargs, device_ids, self.dim)

    def parallel_apply(
        self, replicas: Sequence[Callable[..., Any]], inputs: Sequence[object], kwargs: Any
    ) -> list[Any]:
        """Return what each copy gives for its part."""
        return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)])

    def gather(self, outputs: Sequence[object], output_device: object) -> Any:
        """Return all parts as one."""
        return gather(outputs, output_device, self.dim)
