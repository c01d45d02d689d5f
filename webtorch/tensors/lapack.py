"""Records functions of whole arrays; the CPU computes those that a device has no kernel for. Floor 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.errors import DeviceError
from webtorch.ir.kernel import ON_WEBGPU
from webtorch.ir.view import contiguous_strides, numel
from webtorch.ops import primitive
from webtorch.runtime.realize import runtime_for
from webtorch.tensors.batching import Levels, levels_of, logical, physical, sizes_of
from webtorch.tensors.modes import unrecorded
from webtorch.tensors.primitives import copy, device_mismatch, fill, record
from webtorch.tensors.tensor import Tensor, _transfer
from webtorch.tensors.views import as_view


class _Settings:
    host_kernels = False


_settings = _Settings()


def allow_host_kernels(allowed: bool = True) -> bool:
    """Say whether operations that only the CPU computes (torch.linalg's eig) may move
    tensors of a WebGPU device there and their results back; return what was said before.

    At first they may not, and raise DeviceError: every such call waits for the device.
    """
    before, _settings.host_kernels = _settings.host_kernels, bool(allowed)
    return before


def host(
    name: str,
    inputs: Sequence[Tensor],
    params: tuple[object, ...],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[Tensor, ...]:
    """Return the results, of `shapes` and the first input's dtype, of a function of whole arrays."""
    first = inputs[0]
    for t in inputs:
        if t._storage.runtime is not first._storage.runtime:
            raise device_mismatch(name, first, t)
    levels = levels_of(inputs)
    if levels:
        lead = sizes_of(levels)
        many = numel(lead)
        with unrecorded():
            if name.startswith("fft"):
                return _transformed(name, inputs[0], params, shapes[0], levels)
            # The examples are more matrices of the stack.
            stacks = [
                physical(t, levels).reshape((many * t._shape[0], *t._shape[1:])) for t in inputs
            ]
            made = host(name, stacks, params, [(many * s[0], *s[1:]) for s in shapes])
            return tuple(
                logical(t.reshape((*lead, *s)), levels) for t, s in zip(made, shapes, strict=True)
            )
    home = first._storage.runtime
    if home.kind == "meta":
        return tuple(primitive.empty(s, first.dtype, first.device) for s in shapes)
    here = home.kind == "cpu" or name.removeprefix("complex ") in ON_WEBGPU
    if not here:
        if not _settings.host_kernels and home.name != "cpu":
            title = name.removeprefix("_").removeprefix("complex ")
            raise DeviceError(
                f"{title}: only the CPU computes this (with LAPACK), and the tensor "
                f"is on {first.device}. Use x.cpu(), or allow the transfers there and back once "
                "with webtorch.webgpu.allow_host_kernels()."
            )
        cpu = runtime_for("cpu", 0)
        inputs = [_transfer(t.detach(), cpu) for t in inputs]
    sizes = [numel(s) for s in shapes]
    with unrecorded():
        if len(shapes) == 1 and sizes[0] and here:
            return (record("host", inputs, (name, params), (), shapes[0], first.dtype),)
        if sum(sizes):
            flat = record("host", inputs, (name, params), (), (sum(sizes),), first.dtype)
        else:
            flat = fill((0,), 0, first.dtype, inputs[0].device)
        found, at = [], 0
        for shape, size in zip(shapes, sizes, strict=True):
            # Each result has memory of its own, so that writing to one leaves the others alone.
            found.append(copy(as_view(flat, shape, contiguous_strides(shape), at)))
            at += size
        if not here:
            found = [_transfer(t, home) for t in found]
    return tuple(found)


def _transformed(
    name: str, x: Tensor, params: tuple[object, ...], shape: tuple[int, ...], levels: Levels
) -> tuple[Tensor, ...]:
    """Return a Fourier transform for each example.

    Its dims are counted from the front, and pairs are the last dim: the hidden dims go behind the others.
    """
    k, lead = len(levels), sizes_of(levels)
    pairs_in, pairs_out = name != "fft_r2c", name != "fft_c2r"
    whole = physical(x, levels)
    end = whole.ndim - pairs_in
    moved = whole.permute((*range(k, end), *range(k), *range(end, whole.ndim)))
    split = len(shape) - pairs_out
    (made,) = host(name, (moved.contiguous(),), params, [(*shape[:split], *lead, *shape[split:])])
    order = (*range(split, split + k), *range(split), *range(split + k, made.ndim))
    return (logical(made.permute(order).contiguous(), levels),)


primitive.host.function = host
