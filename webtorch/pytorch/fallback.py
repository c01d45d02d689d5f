"""Operators without a kernel: an error, unless the user lets them run on the CPU. Floor 6.

WEBTORCH_FALLBACK=warn or silent copies the operands to the CPU, runs PyTorch's kernel there and
copies the results back; every call is counted (`torch.webgpu.fallback_counts()`). Without it
nothing ever leaves the device.
"""

from __future__ import annotations

import collections
import os
import threading
import warnings
from collections.abc import Callable, Mapping

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from webtorch.ir.lines import user_depth

counts: collections.Counter[str] = collections.Counter()
# Calls of operators that only the CPU computes, by decision: factorisations.
host_counts: collections.Counter[str] = collections.Counter()
# Calls by compiled graphs of operators that no program holds: of custom operators, and of those above.
eager_counts: collections.Counter[str] = collections.Counter()
_warned: set[str] = set()


def mode() -> str:
    """Return "error", "warn" or "silent". Raises ValueError for another value of WEBTORCH_FALLBACK."""
    wanted = os.environ.get("WEBTORCH_FALLBACK", "").strip().lower() or "error"
    if wanted not in ("error", "warn", "silent"):
        raise ValueError(
            f"WEBTORCH_FALLBACK={wanted!r}: the values are 'error', 'warn' and 'silent'"
        )
    return wanted


def unsupported(op: object) -> NotImplementedError:
    """Return the error for an operator without a kernel."""
    return NotImplementedError(
        f"webgpu: operator '{op}' is not implemented. Run it on the CPU (x.cpu(), then .to('webgpu')), or set "
        "WEBTORCH_FALLBACK=warn to have that done for every such operator."
    )


def check_one_device(op: OpOverload, *args: object) -> None:
    """Raise RuntimeError if tensors on the CPU are mixed with those on the device."""
    tensors = [a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
    other = next((t for t in tensors if t.device.type != "webgpu" and t.dim()), None)
    if other is not None:
        raise RuntimeError(
            f"{op}: Expected all tensors to be on the same device, but found at least two devices, webgpu:0 and "
            f"{other.device}! Move one of them, as in x.to('webgpu')."
        )


def on_cpu(op: OpOverload) -> Callable[..., object]:
    """Return the kernel of an operator that is computed on the CPU by decision: its calls are counted, and the first
    warns."""
    name = str(op)

    def kernel(*args: object, **kwargs: object) -> object:
        """Count the call, and compute it on the CPU."""
        check_one_device(op, args, kwargs)
        host_counts[name] += 1
        _warn_once(
            name,
            f"webgpu: '{name}' has no kernel on the device: the CPU computes it (LAPACK), and each call waits for the "
            "transfers there and back. torch.webgpu.host_kernel_counts() counts them.",
        )
        return run_on_cpu(op, args, kwargs)

    return kernel


def _warn_once(name: str, message: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(message, UserWarning, stacklevel=user_depth())


class _Within(threading.local):
    """The operators whose decomposition runs in a thread: one that leads to itself again has none."""

    def __init__(self) -> None:
        self.operators: set[OpOverload] = set()


_within = _Within()


def fallback(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Run `op`, which has no kernel here: as PyTorch composes it of others, or on the CPU if that is allowed.

    Raises NotImplementedError if neither can be.
    """
    composed = decomposition_table.get(op)
    if composed is not None and op not in _within.operators:
        _within.operators.add(op)
        try:
            return composed(*args, **kwargs)
        finally:
            _within.operators.discard(op)
    check_one_device(op, args, kwargs)
    how = mode()
    if how == "error":
        raise unsupported(op)
    counts[str(op)] += 1
    if how == "warn":
        _warn_once(str(op), f"webgpu: '{op}' runs on the CPU (WEBTORCH_FALLBACK=warn)")
    return run_on_cpu(op, args, kwargs)


def run_on_cpu(op: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    """Run `op` on copies on the CPU; arguments that it writes are copied back, results go to the device."""
    schema = op._schema.arguments
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    copies: dict[int, torch.Tensor] = {}

    def down(value: object, is_write: bool, is_tensor: bool) -> object:
        """Return an argument with copies on the CPU; what is written is noted."""
        if isinstance(value, torch.Tensor):
            if value.device.type != "webgpu":
                return value
            copy = copies.get(id(value))
            if copy is None:
                copy = copies[id(value)] = value.detach().cpu()
            if is_write:
                written.append((value, copy))
            return copy
        if isinstance(value, (list, tuple)):
            return type(value)(down(v, is_write, is_tensor) for v in value)
        if isinstance(value, torch.device) and value.type == "webgpu":
            return torch.device("cpu")
        # Numbers come as Python numbers where the schema says Tensor.
        is_number = isinstance(value, (bool, int, float, complex))
        return torch.tensor(value, device="cpu") if is_tensor and is_number else value

    def prepare(argument: torch.Argument, value: object) -> object:
        """Return an argument of the operator's schema as the CPU takes it."""
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        return down(value, is_write, str(argument.type) in ("Tensor", "Optional[Tensor]"))

    by_name = {a.name: a for a in schema}
    cpu_args = [prepare(a, v) for a, v in zip(schema, args, strict=False)]
    cpu_kwargs = {n: prepare(by_name[n], v) for n, v in kwargs.items()}
    result = op(*cpu_args, **cpu_kwargs)
    originals = {id(copy): value for value, copy in written}
    for value, copy in written:
        if value.shape != copy.shape:
            value.resize_(copy.shape)
        value.copy_(copy)

    def up(value: object) -> object:
        """Return a result on the device; what was written is the argument itself."""
        if isinstance(value, torch.Tensor):
            found = originals.get(id(value))
            return value.to("webgpu") if found is None else found
        if isinstance(value, (list, tuple)):
            return type(value)(up(v) for v in value)
        return value

    return up(result)
