"""Measures which kernel is fastest for a product on this very adapter, and remembers it on disk.

A choice is stored only after its result agreed with the generic kernel's, on random inputs, here.
The file, tuned.json in the folder of runtime/disk.py, holds sizes of tiles, no
code; what it names must be among the candidates of this version, else it is not used.
WEBTORCH_TUNE=1 measures every product that is compiled and not known yet; WEBTORCH_TUNE=off also
leaves the file alone.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webtorch.errors import KernelError, OutOfMemoryError
from webtorch.ir.dtype import DType, bfloat16, float16, float32
from webtorch.ir.kernel import BufferSlot, Convolution, Matmul, Routine
from webtorch.ir.program import BufferDecl, Dispatch, Program
from webtorch.ir.view import numel
from webtorch.lower.templates import search
from webtorch.lower.templates.generic import without_epilogue
from webtorch.lower.templates.search import reference
from webtorch.lower.templates.tuning import TILES
from webtorch.runtime.backend import Buffer
from webtorch.runtime.disk import root

if TYPE_CHECKING:
    from webtorch.lower.templates.product import Product
    from webtorch.lower.templates.search import Choice
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend
    from webtorch.runtime.backends.webgpu.memory import DeviceBuffer

# Norm of the difference to the generic kernel over the norm of its result.
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
# Multiplications that the generic kernel is asked for at most, which numbers them with 32 bits; of
# larger matrix products it computes the first and the last rows only, larger convolutions are not
# tuned.
_REFERENCE = 1 << 30
_ROWS = 32
# Random numbers, repeated: a prime, so that no row of a matrix equals the next.
_PERIOD = 65_521
_SECONDS = 0.02
_NOISE = 1.03


def tuning_mode() -> str:
    """Return "on", "off" or "" (use what is known), as WEBTORCH_TUNE says."""
    wanted = os.environ.get("WEBTORCH_TUNE", "").strip().lower()
    return "on" if wanted in ("1", "on", "true") else "off" if wanted in ("0", "off") else ""


def table_path() -> Path:
    """Return where measured choices are kept."""
    return root() / "tuned.json"


def adapter_key(device: WebGPUBackend) -> str:
    """Return the name under which an adapter's choices are kept: another driver measures anew."""
    a = device.adapter
    return f"{a.name} | {a.backend_type} | {a.driver} | {device.engine}"


def load(device: WebGPUBackend) -> dict[str, tuple[int, ...]]:
    """Return the choices known for a device; what is no choice of this version is left out."""

    known = {(t.rows, t.columns, t.depth, t.own_rows, t.own_columns) for t in TILES} | {(0,) * 5}
    found: dict[str, tuple[int, ...]] = {}
    stored = _read().get(adapter_key(device))
    for name, entry in (stored if isinstance(stored, dict) else {}).items():
        if (
            isinstance(entry, list)
            and len(entry) == 6
            and all(type(x) is int for x in entry)
            and tuple(entry[:5]) in known
            and 1 <= entry[5] <= 1024
            and not (device.limits.is_gpu and not entry[0])
        ):
            found[name] = tuple(entry)
    return found


def _read() -> dict[str, object]:
    """Return the file's contents; nothing for a file that is missing or damaged."""
    try:
        stored = json.loads(table_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def store(device: WebGPUBackend, name: str, choice: Choice) -> None:
    """Add a choice to the file. Raises OSError where it cannot be written."""
    path = table_path()
    everything = _read()
    mine = everything.get(adapter_key(device))
    everything[adapter_key(device)] = {
        **(mine if isinstance(mine, dict) else {}),
        name: list(_entry(choice)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def _entry(choice: Choice) -> tuple[int, ...]:
    tile, split = choice
    if tile is None:
        return (0, 0, 0, 0, 0, split)
    return (tile.rows, tile.columns, tile.depth, tile.own_rows, tile.own_columns, split)


@dataclass(frozen=True, slots=True)
class Measured:
    """One choice: how long it takes, in seconds, or why it cannot be used."""

    choice: Choice
    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What tuning one routine found: all choices, the one made without tuning first."""

    name: str
    routine: Routine
    measured: tuple[Measured, ...]

    @property
    def default(self) -> Measured:
        """The choice made without tuning."""
        return self.measured[0]

    @property
    def best(self) -> Measured | None:
        """The fastest choice that is right, None if there is none. The one made without tuning
        stays unless another is clearly faster: times are never quite the same twice."""
        right = [m for m in self.measured if not m.problem]
        if not right:
            return None
        fastest = min(right, key=lambda m: m.seconds)
        keep = not self.default.problem and self.default.seconds <= _NOISE * fastest.seconds
        return self.default if keep else fastest


def class_name(device: WebGPUBackend, routine: Routine) -> str | None:
    """Return the class whose choice serves a routine, None where there is nothing to choose."""

    found = search.product_of(routine, device.limits, device.engine)
    return None if found is None else search.class_of(found[0], device.limits)


def tune(device: WebGPUBackend, routine: Routine, seconds: float = 30.0) -> Result | None:
    """Measure the kernels that could compute a routine, use the fastest one from now on and store
    it. None where there is nothing to choose. Stops trying after `seconds`.

    Holds the device's lock: nothing else runs on it meanwhile.
    """

    with device.lock:
        found = search.product_of(routine, device.limits, device.engine)
        if found is None or not isinstance(routine, Matmul | Convolution):
            return None
        if routine.epilogue:
            # What follows is little beside a product that is worth measuring.
            routine = without_epilogue(routine)[0]
            found = search.product_of(routine, device.limits, device.engine)
            assert found is not None
        p, columns = found
        if any(slot.dtype.name not in TOLERANCE for slot in routine.buffers):
            return None
        if isinstance(routine, Convolution) and p.batch * p.m * p.n * p.k > _REFERENCE:
            return None
        name = search.class_of(p, device.limits)
        result = Result(name, routine, tuple(_measure(device, routine, p, columns, seconds)))
        if result.best is not None:
            device.tuned[name] = _entry(result.best.choice)
            store(device, name, result.best.choice)
        return result


def _measure(
    device: WebGPUBackend,
    routine: Matmul | Convolution,
    p: Product,
    columns: int,
    seconds: float,
) -> Iterator[Measured]:

    rng = random.Random()
    inputs = [_random(device, slot, rng) for slot in routine.buffers[:2]]
    wrong = _checker(device, routine, inputs)
    started = time.perf_counter()
    for choice in search.candidates(p, device.limits):
        if time.perf_counter() - started > seconds:
            return
        device.put_rendered(routine, search.passes(p, columns, device.limits, choice))
        try:
            (out,) = device.compile(_program(routine, 1)).run(inputs, ())
            problem = wrong(out)
            yield Measured(
                choice, float("nan") if problem else _time(device, routine, inputs), problem
            )
        except (KernelError, OutOfMemoryError) as error:
            yield Measured(choice, float("nan"), str(error).splitlines()[0])
        finally:
            device.put_rendered(routine, None)


def _program(routine: Routine, count: int) -> Program:
    """Return a program that computes a routine `count` times."""
    *inputs, out = routine.buffers
    decls = (
        *(BufferDecl("input", s.dtype, s.elements) for s in inputs),
        BufferDecl("output", out.dtype, out.elements),
    )
    numbers = tuple(range(len(decls)))
    step = Dispatch(0, numbers, ())
    return Program((routine,), decls, (step,) * count, (), numbers[:-1], numbers[-1:])


def _time(device: WebGPUBackend, routine: Routine, inputs: list[DeviceBuffer]) -> float:
    """Return the seconds that a routine takes, many in one submission."""

    def run(count: int) -> float:
        """Return the least seconds of three runs of `count` dispatches."""
        executable = device.compile(_program(routine, count))
        device.synchronize()
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            executable.run(inputs, ())
            device.synchronize()
            best = min(best, time.perf_counter() - started)
        return best

    once = run(1)
    count = max(1, min(50, round(_SECONDS / max(once, 1e-5))))
    if count == 1:
        return once
    # The difference of two lengths leaves out what a submission costs.
    short, long = run(count), run(2 * count)
    return (long - short) / count if long > short else long / (2 * count)


def _random(device: WebGPUBackend, slot: BufferSlot, rng: random.Random) -> DeviceBuffer:
    values = [rng.gauss(0.0, 1.0) for _ in range(_PERIOD)]
    if slot.dtype is float16:
        data = struct.pack(f"<{_PERIOD}e", *values)
    else:
        data = struct.pack(f"<{_PERIOD}f", *values)
        if slot.dtype is bfloat16:
            data = b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))
    nbytes = slot.elements * slot.dtype.itemsize
    whole = data * (nbytes // len(data) + 1)
    return device.upload(memoryview(whole)[:nbytes], slot.dtype, slot.elements)


def _floats(data: Any, dtype: DType) -> Any:
    import numpy as np

    if dtype is bfloat16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.float16 if dtype is float16 else np.float32).astype(np.float32)


def _checker(
    device: WebGPUBackend, routine: Matmul | Convolution, inputs: list[DeviceBuffer]
) -> Callable[[Buffer], str]:
    """Return a function that says what is wrong with a result ("" if nothing): it is compared with
    what the generic kernel computes from the same inputs."""
    import numpy as np

    dtype = routine.buffers[2].dtype
    parts: list[tuple[int, Any]] = []
    for start, part in _parts(routine):
        (out,) = device.compile(_program(reference(part), 1)).run(inputs, ())
        parts.append((start, _floats(device.download(out), dtype)))

    def wrong(result: Buffer) -> str:
        """Return what is wrong with a result, "" if nothing is."""
        found = _floats(device.download(result), dtype)
        for start, expected in parts:
            mine = found[start : start + len(expected)]
            if not np.isfinite(mine).all():
                return "the result is not finite"
            far = np.linalg.norm(mine - expected) / max(float(np.linalg.norm(expected)), 1e-30)
            if not far <= TOLERANCE[dtype.name]:
                return f"the result is off by {far:.1e}"
        return ""

    return wrong


def _parts(routine: Matmul | Convolution) -> Iterator[tuple[int, Matmul | Convolution]]:
    """Yield (first element of the output, routine that computes the output from there)."""
    if isinstance(routine, Convolution):
        yield 0, routine
        return
    r = routine
    count = numel(r.batch)
    if count * r.m * r.n * r.k <= _REFERENCE:
        yield 0, r
        return
    rows = max(1, min(_ROWS, r.m, _REFERENCE // (r.n * r.k)))
    out = r.buffers[2]
    small = (*r.buffers[:2], replace(out, elements=rows * r.n))
    yield 0, replace(r, batch=(), m=rows, left_strides=r.left_strides[-2:],
                     right_strides=r.right_strides[-2:], buffers=small)  # fmt: skip
    # The last rows of the last matrix.
    last = [s - 1 for s in r.batch]
    left = sum(i * s for i, s in zip(last, r.left_strides, strict=False))
    right = sum(i * s for i, s in zip(last, r.right_strides, strict=False))
    yield (count * r.m - rows) * r.n, replace(
        r, batch=(), m=rows, left_strides=r.left_strides[-2:], right_strides=r.right_strides[-2:],
        left_offset=r.left_offset + left + (r.m - rows) * r.left_strides[-2],
        right_offset=r.right_offset + right, buffers=small,
    )  # fmt: skip


def matmul_routine(m: int, n: int, k: int, layout: str = "nn", dtype: DType = float32) -> Matmul:
    """Return the product of an m x k and a k x n matrix; `layout` says which is transposed in
    memory ("nn", "tn", "nt", "tt")."""
    left = (1, m) if layout[0] == "t" else (k, 1)
    right = (1, k) if layout[1] == "t" else (n, 1)
    slots = (
        BufferSlot(dtype, "read", m * k),
        BufferSlot(dtype, "read", k * n),
        BufferSlot(dtype, "write", m * n),
    )
    return Matmul(f"matmul_{m}x{n}x{k}", (), m, n, k, left, right, 0, 0, slots)
