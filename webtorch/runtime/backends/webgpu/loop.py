"""The replay loop as machine code: encodes the dispatches of a pass without Python between them.

Three calls of the native library a dispatch cost a microsecond from Python, and 0.05 from here. The
code comes from the compiler of the CPU's kernels (llvmlite, which numba installs); without it, or
with WEBTORCH_CPU_JIT=0, Python walks the same rows. Imports this package's `native`, and that
compiler when the loop is first wanted.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

from webtorch.runtime.backends.webgpu.native import Native, Pointer

# (pipeline or None to keep the last one, bind group, grid) of one dispatch.
Row = tuple[Pointer, Pointer, int, int, int]
_TEXT = """
define void @wt_replay(ptr %pass, ptr %rows, ptr %end, ptr %pipeline, ptr %group, ptr %dispatch) {
entry:
  br label %next
next:
  %row = phi ptr [ %rows, %entry ], [ %following, %go ]
  %more = icmp ult ptr %row, %end
  br i1 %more, label %look, label %done
look:
  %p = load ptr, ptr %row
  %kept = icmp eq ptr %p, null
  br i1 %kept, label %go, label %change
change:
  call void %pipeline(ptr %pass, ptr %p)
  br label %go
go:
  %a1 = getelementptr i64, ptr %row, i64 1
  %g = load ptr, ptr %a1
  call void %group(ptr %pass, i32 0, ptr %g, i64 0, ptr null)
  %a2 = getelementptr i64, ptr %row, i64 2
  %x64 = load i64, ptr %a2
  %x = trunc i64 %x64 to i32
  %a3 = getelementptr i64, ptr %row, i64 3
  %y64 = load i64, ptr %a3
  %y = trunc i64 %y64 to i32
  %a4 = getelementptr i64, ptr %row, i64 4
  %z64 = load i64, ptr %a4
  %z = trunc i64 %z64 to i32
  call void %dispatch(ptr %pass, i32 %x, i32 %y, i32 %z)
  %following = getelementptr i64, ptr %row, i64 5
  br label %next
done:
  ret void
}
"""


class MachineLoop:
    """The loop for one device's library."""

    def __init__(self, native: Native, address: int) -> None:
        ffi = native.ffi
        self._ffi = ffi
        self._call: Any = ffi.cast(
            "void(*)(void *, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t)", address
        )
        self._functions = tuple(
            int(ffi.cast("uintptr_t", ffi.addressof(native.lib, name)))
            for name in (
                "wgpuComputePassEncoderSetPipeline",
                "wgpuComputePassEncoderSetBindGroup",
                "wgpuComputePassEncoderDispatchWorkgroups",
            )
        )

    def table(self, rows: Sequence[Row]) -> array.array[int]:
        """Return rows as `encode` reads them. They do not keep what they name alive."""
        words = array.array("Q")
        cast = self._ffi.cast
        for pipeline, group, x, y, z in rows:
            first = 0 if pipeline is None else int(cast("uintptr_t", pipeline))
            words.extend((first, int(cast("uintptr_t", group)), x, y, z))
        return words

    def encode(self, part: Pointer, table: array.array[int]) -> None:
        """Encode a table's dispatches into a compute pass, with the interpreter's lock released."""
        begin, count = table.buffer_info()
        self._call(part, begin, begin + 8 * count, *self._functions)


def machine_loop(native: Native) -> MachineLoop | None:
    """Return the loop, or None where there is no compiler for it."""
    if native.ffi.sizeof("void *") != 8:
        return None
    try:
        from webtorch.runtime.backends.cpu import jit
    except ImportError:
        # Without NumPy.
        return None
    if not jit.available():
        return None
    (address,) = jit.assemble(_TEXT, ("wt_replay",))
    return MachineLoop(native, address)
