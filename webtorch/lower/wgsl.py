"""Routines as WGSL: the one entry of the renderer. Floor 2; imports floor 0, the kernels and the
templates.

A language is the WGSL texts in the records of scalar functions, and a table (`wgsl_table`, with its
traps in `prelude`); functions that WGSL lacks or has too inexact are their float32 expansions. A kernel is
written by `wgsl_writer`, launched as `wgsl_kernel` and `wgsl_reduce` say, and wrapped into a shader
by `wgsl_shader`.
"""

from __future__ import annotations

from webtorch.errors import DTypeError, OutOfMemoryError
from webtorch.ir.dtype import float64
from webtorch.ir.kernel import (
    Attention,
    Convolution,
    Host,
    Kernel,
    Matmul,
    Products,
    Routine,
    Scan,
    Several,
    Sort,
)
from webtorch.ir.limits import Limits
from webtorch.lower.templates import attention, conv, generic, matmul, matrices, scan, sort
from webtorch.lower.wgsl_kernel import render_kernel, render_several
from webtorch.lower.wgsl_shader import Engine, WgslPass
from webtorch.lower.wgsl_turns import render_turns

# Positions are 32-bit numbers with a sign; a loop looks a little beyond its end.
_MAX_POSITIONS = (1 << 31) - (1 << 24)


def render(routine: Routine, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches that compute `routine`, in order.

    Raises DTypeError for a type that WGSL does not have, OverflowError for a constant that 32 bits
    cannot hold, DeviceError for what only the CPU computes, OutOfMemoryError for more elements than
    32-bit positions can number.
    """
    count = max((slot.elements for slot in routine.buffers), default=0)
    if isinstance(routine, Kernel):
        count = max(count, routine.outer_count * routine.inner_count)
    if count > _MAX_POSITIONS:
        raise OutOfMemoryError(
            f"{routine.name}: {count} elements are more than a kernel on WebGPU can number with 32 "
            f"bits ({_MAX_POSITIONS}); split the tensor, or use device 'cpu'"
        )
    if any(slot.dtype is float64 for slot in routine.buffers):
        # The templates are for 32 bits; two words take the same way as the templates' reference.
        match routine:
            case Matmul():
                routine = generic.matmul_kernel(routine)
            case Convolution():
                routine = generic.conv_kernel(routine)
            case Kernel() | Several() | Scan() | Host():
                pass
            case _:
                raise DTypeError(
                    f"{routine.name}: WebGPU computes no float64 here. Use float32, or device='cpu'"
                )
    match routine:
        case Kernel():
            return render_kernel(routine, limits, engine)
        case Several() if routine.groups:
            return render_turns(routine, limits, engine)
        case Several():
            return render_several(routine, limits)
        case Matmul():
            return matmul.render(routine, limits, engine)
        case Products():
            return matmul.render_products(routine, limits, engine)
        case Convolution():
            return conv.render(routine, limits, engine)
        case Scan():
            return scan.render(routine, limits, engine)
        case Attention():
            return attention.render(routine, limits, engine)
        case Sort():
            return sort.render(routine, limits)
        case Host():
            return matrices.render(routine, limits)
