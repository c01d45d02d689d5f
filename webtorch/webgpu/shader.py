"""Shaders of the user's own: `compile_shader`, as `torch.mps.compile_shader`, for WGSL.

A call is no operation of the table: it runs at once, after all that is pending, and writes into its arguments. What
is a formula, element by element, is better a `webtorch.kernel`, which fuses, has a gradient and runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from webtorch.dispatch.call import refuse_scripts, settle_scripts
from webtorch.errors import CaptureError, DeviceError, DTypeError, ShaderError
from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
)
from webtorch.ir.view import is_overwritten, numel
from webtorch.lower.wgsl_reader import EntryPoint, Reader, Variable, element_of
from webtorch.ops import primitive
from webtorch.runtime.realize import Runtime
from webtorch.tensors.device import DeviceLike, resolve
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.storage import writes
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import check_writable

# What the elements of a buffer may be, by their type in WGSL: as they lie in memory, several in a word where they
# are narrower than one. 32-bit integers are the same bits with and without a sign.
_WORDS = (int32, int64, uint32)
_HELD: dict[str, tuple[DType, ...]] = {
    "f32": (float32, complex64),
    "f16": (float16,),
    "i32": _WORDS,
    "u32": (*_WORDS, float16, bfloat16, int16, int8, uint8, uint16, bool_),
}
# What a tensor of a type is declared as.
_DECLARED = {d: kind for kind, types in reversed(_HELD.items()) for d in types if d is not uint32}
_NUMBERS: dict[str, DType] = {"f32": float32, "f16": float16, "i32": int32, "u32": uint32}
_CASTS = {
    "fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "int32": "i32", "uint32": "u32",
}  # fmt: skip
_VECTOR = re.compile(r"vec([234])\s*(?:<\s*(f32|f16|i32|u32)\s*>|([fhiu]))")

Sizes = int | Sequence[int]
Casts = str | Mapping[int, str]


def compile_shader(source: str, device: DeviceLike = "webgpu") -> ShaderLibrary:
    """Compile a shader written in WGSL; its entry points are the attributes of what is returned.

    Bindings of group 0 are the arguments of a call, in order: a tensor is a `var<storage>`, a number, a tuple of
    numbers or the members of a struct are a `var<uniform>`. Raises ShaderError, with the compiler's message and
    the lines around its place, for a text that the device refuses, and DeviceError where there is no WebGPU device.

        lib = webtorch.webgpu.compile_shader('''
            @group(0) @binding(0) var<storage, read_write> x: array<f32>;
            @group(0) @binding(1) var<uniform> value: f32;
            @compute @workgroup_size(64) fn full(@builtin(global_invocation_id) id: vec3u) {
                if (id.x < arrayLength(&x)) { x[id.x] = value; }
            }''')
        lib.full(webtorch.empty(16, device="webgpu"), 3.14)
    """
    return ShaderLibrary(source, resolve(device), ShaderKernel)


class ShaderLibrary:
    """The entry points of a shader, as attributes."""

    def __init__(self, source: str, runtime: Runtime, kernel: type[ShaderKernel]) -> None:
        if not isinstance(source, str):
            raise TypeError(
                f"compile_shader(): argument 'source' must be str, not {type(source).__name__}"
            )
        self._reader = Reader(source)
        self._compiled: dict[tuple[Runtime, str], object] = {}
        _check_device("compile_shader", runtime)
        self.compiled(runtime, source)
        try:
            entries = self._reader.entries
        except ValueError as error:
            raise ShaderError(f"compile_shader: {error}") from None
        self._kernels = {name: kernel(self, entry) for name, entry in entries.items()}

    def compiled(self, runtime: Runtime, source: str) -> Any:
        """Return a text compiled for a device: compiled once."""
        found = self._compiled.get((runtime, source))
        if found is None:
            backend: Any = runtime.backend
            found = self._compiled[runtime, source] = backend.shader(source)
        return found

    def __getattr__(self, name: str) -> ShaderKernel:
        kernels: dict[str, ShaderKernel] = self.__dict__.get("_kernels", {})
        if name in kernels:
            return kernels[name]
        raise AttributeError(
            f"the shader has no entry point '{name}': it has {', '.join(kernels) or 'none'}"
        )

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._kernels])

    def __repr__(self) -> str:
        return f"<shader of {', '.join(self._kernels) or 'no entry points'}>"


class ShaderKernel:
    """One entry point: call it with a tensor, a number or numbers for each binding."""

    def __init__(self, library: ShaderLibrary, entry: EntryPoint) -> None:
        self._library = library
        self._entry = entry
        self.__name__ = entry.name

    @property
    def max_threads_per_threadgroup(self) -> int:
        """The most threads that a workgroup may have on this device."""
        return next(iter(self._library._compiled))[0].backend.limits.max_workgroup_invocations

    def __repr__(self) -> str:
        uses = self._entry.uses
        return f"<shader {self._entry.name}({', '.join(str(uses[n]) for n in sorted(uses))})>"

    def __call__(
        self,
        *args: Any,
        threads: Sizes | None = None,
        group_size: Sizes | None = None,
        arg_casts: Casts | None = None,
    ) -> None:
        """Run on the device, after all that is pending.

        `threads` is how many there are, along up to three dimensions, rounded up to whole workgroups: as many as
        the first tensor has elements unless given. `group_size` stands in the place of the text's
        @workgroup_size. `arg_casts`, for all numbers or by argument: "fp32", "fp16", "int32", "uint32".
        """
        name = self._entry.name
        refuse_scripts("a shader of the user's own is called")
        settle_scripts("a shader of the user's own is called")
        variables = self._bound(args)
        with no_grad():
            places = {
                i: self._operand(variables[i], a, i)
                for i, a in enumerate(args)
                if variables[i].access != "uniform"
            }
        written = [i for i in places if variables[i].access == "read_write"]
        runtime = self._runtime(places.values())
        _refuse_capture(name, runtime)
        for i in written:
            self._check_written(args[i])
        for i, x in places.items():
            _check_type(name, variables[i], x)
        _check_apart(name, variables, places, written)
        wanted = _wanted(name, threads, next(iter(places.values()), None))
        source, entry = self._sized(group_size, wanted)
        values = [
            b"" if i in places else self._number(variables[i], a, i, arg_casts)
            for i, a in enumerate(args)
        ]
        grid = _grid(name, wanted, entry, runtime.backend.limits.max_workgroups_per_dim)
        if 0 in grid:
            return
        with no_grad(), runtime.lock:
            flat = {i: x if _is_flat(x) else primitive.copy(x) for i, x in places.items()}
            # Nobody who was to read what is overwritten may do so later.
            runtime.realize()
            for i in written:
                if flat[i] is places[i] and writes.guard is not None:
                    writes.guard(flat[i]._storage)
            nodes = {
                i: x._storage.own() if i in written else x._storage.realize()
                for i, x in flat.items()
            }
            buffers = [nodes[i].buffer if i in nodes else value for i, value in enumerate(values)]
            compiled = self._library.compiled(runtime, source)
            accesses = tuple([variables[i].access for i in range(len(args))])
            compiled.run(name, accesses, buffers, grid)
            for i in written:
                self._wrote(args[i], flat[i], flat[i] is places[i])
            writes.note()

    # -- what differs between the faces

    def _tensor(self, x: object) -> Tensor | None:
        """Return an argument as a tensor of the engine, on the same memory; None for what is none."""
        return x if isinstance(x, Tensor) else None

    def _check_written(self, x: Any) -> None:
        """Raise RuntimeError where an argument may not be written."""
        check_writable(x)
        if mode.grad and x.requires_grad:
            raise RuntimeError(self._no_gradient())

    def _wrote(self, x: Any, result: Tensor, direct: bool) -> None:
        """Note that an argument was written, or put what was written to a copy back into it."""
        if not direct:
            primitive.write(x, self._result(result, x.dtype.is_complex), fresh=True)
            return
        x._counter.version += 1

    # -- arguments

    def _result(self, written: Tensor, is_complex: bool) -> Tensor:
        """Return what was written to a copy in the argument's own type."""
        return primitive.paired(written) if is_complex else written

    def _no_gradient(self) -> str:
        return (
            f"{self._entry.name}: a shader writes to a tensor that requires grad, and has no gradient: call it under "
            "no_grad(), in the forward of an autograd.Function, or write the formula as a webtorch.kernel"
        )

    def _bound(self, args: Sequence[object]) -> dict[int, Variable]:
        entry = self._entry
        variables = self._library._reader.bound(entry, len(args))
        if sorted(variables) != list(range(len(args))):
            most = max(variables, default=-1) + 1
            shown = ", ".join(
                str(variables.get(i, f"@binding({i}) is not declared")) for i in range(most)
            )
            raise TypeError(
                f"{entry.name}() takes one argument for each binding, ({shown}), and got {len(args)}"
            )
        return variables

    def _operand(self, variable: Variable, x: object, number: int) -> Tensor:
        found = self._tensor(x)
        if found is None:
            raise TypeError(
                f"{self._entry.name}(): argument {number} ({variable}) must be a tensor, not "
                f"{type(x).__name__}: numbers are declared as var<uniform>"
            )
        if found._levels:
            raise RuntimeError(
                f"{self._entry.name}: a shader has no rule for vmap: call it outside, or write the formula as a "
                "webtorch.kernel"
            )
        return found._pairs() if found.dtype.is_complex else found

    def _runtime(self, tensors: Any) -> Runtime:
        found: list[Runtime] = list(dict.fromkeys(t._storage.runtime for t in tensors))
        if not found:
            return next(iter(self._library._compiled))[0]
        for runtime in found:
            _check_device(self._entry.name, runtime)
        if len(found) > 1:
            raise DeviceError(
                f"{self._entry.name}: its tensors are on {len(found)} devices: move them to one with .to(device)"
            )
        return found[0]

    def _sized(self, group_size: Sizes | None, threads: Sequence[int]) -> tuple[str, EntryPoint]:
        """Return the text and the entry point with the workgroup that is asked for."""
        reader, entry = self._library._reader, self._entry
        if group_size is not None:
            sizes = _sizes("group_size", group_size)
            if len(sizes) != len(threads):
                raise RuntimeError(
                    f"{entry.name}: threads and group_size must have the same number of dimensions, got "
                    f"{len(threads)} and {len(sizes)}"
                )
            return reader.with_workgroup(entry, sizes)
        if entry.workgroup is None:
            raise TypeError(
                f"{entry.name}(): its @workgroup_size is not written in numbers: give group_size="
            )
        return reader.source, entry

    def _number(self, variable: Variable, value: object, number: int, casts: Casts | None) -> bytes:
        """Return an argument as it lies in a uniform buffer."""
        where = f"{self._entry.name}(): argument {number} ({variable})"
        if self._tensor(value) is not None:
            raise TypeError(
                f"{where} is a number: declare a tensor as var<storage, read>, or give x.item()"
            )
        chosen = casts if isinstance(casts, str) or casts is None else casts.get(number)
        if chosen is not None:
            if _CASTS.get(chosen) is None:
                raise ValueError(
                    f"{where}: arg_casts has {chosen!r}, not one of {', '.join(_CASTS)}"
                )
            if _CASTS[chosen] != variable.element:
                raise TypeError(
                    f"{where}: arg_casts says {chosen}, and the shader {variable.element}"
                )
        parts = list(_parts(variable.type, self._library._reader.structs))
        if not parts:
            raise TypeError(
                f"{where}: numbers are f32, f16, i32, u32, vectors of these, or structs of both"
            )
        given = list(_flat(value, variable, self._library._reader.structs))
        if len(given) != len(parts):
            raise TypeError(f"{where} is {len(parts)} numbers, and {len(given)} were given")
        out = bytearray()
        for (offset, kind), one in zip(parts, given, strict=True):
            out += bytes(offset - len(out))
            out += _bytes_of(one, kind, where, chosen is not None)
        return bytes(out).ljust(-(-len(out) // 16) * 16, b"\0")


def _check_device(name: str, runtime: Runtime) -> None:
    if not hasattr(runtime.backend, "shader"):
        raise DeviceError(
            f"{name}: a WGSL shader runs on a WebGPU device, and this is on '{runtime.kind}'. Move the tensors, as in "
            "x.to('webgpu'), or write the formula as a webtorch.kernel, which runs on the CPU too"
        )


def _refuse_capture(name: str, runtime: Runtime) -> None:
    recording = runtime.recording
    if recording is not None and recording.is_mine:
        if recording.stop is not None:
            recording.stop()
        if runtime.capturing:
            raise CaptureError(
                f"{name}: a shader of the user's own runs when it is called, and is no part of a captured program: "
                "call it outside of the function, or write the formula as a webtorch.kernel"
            )


def _check_type(name: str, variable: Variable, x: Tensor) -> None:
    """Raise DTypeError for elements that are others than the shader reads. Structs are the user's to lay out."""
    held = _HELD.get(variable.element)
    if held is not None and x.dtype not in held:
        declared = _DECLARED.get(x.dtype, "u32")
        raise DTypeError(
            f"{name}: {variable} holds {variable.element}, and the tensor is {x.dtype}: declare array<{declared}>, or "
            f"convert the tensor, as in x.to({held[0]})"
        )


def _check_apart(
    name: str,
    variables: Mapping[int, Variable],
    places: Mapping[int, Tensor],
    written: Sequence[int],
) -> None:
    """Raise RuntimeError where memory that is written is another argument's too, which WebGPU forbids."""
    for i in written:
        for j, x in places.items():
            if (
                i != j
                and x._storage is places[i]._storage
                and is_overwritten(_place(x), _place(places[i]), False)
            ):
                raise RuntimeError(
                    f"{name}: arguments {i} ({variables[i]}) and {j} ({variables[j]}) share memory, and the first is "
                    "written: WebGPU binds no memory twice that is written. Give one of them as x.clone()"
                )


def _place(x: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    size = x.dtype.itemsize
    return x._offset * size, x._shape, x._strides, numel(x._shape) * size


def _is_flat(x: Tensor) -> bool:
    """Whether a tensor is all of its memory, in order, so that it can be bound as it is."""
    return x._whole and x.dtype is x._storage.dtype


def _sizes(name: str, given: Sizes) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"{name}={given!r}: one to three numbers that are not negative")
    return sizes


def _wanted(name: str, threads: Sizes | None, first: Tensor | None) -> tuple[int, ...]:
    if threads is not None:
        return _sizes("threads", threads)
    if first is None:
        raise RuntimeError(
            f"{name}: Number of threads is undefined or has wrong dimension: no argument is a tensor, so give threads="
        )
    return (numel(first._shape),)


def _grid(name: str, threads: Sequence[int], entry: EntryPoint, most: int) -> tuple[int, int, int]:
    """Return the workgroups along each dimension."""
    assert entry.workgroup is not None
    x, y, z = (-(-n // size) for n, size in zip((*threads, 1, 1)[:3], entry.workgroup, strict=True))
    if max(x, y, z) > most:
        raise ValueError(
            f"{name}: threads={tuple(threads)} are {x} x {y} x {z} workgroups of {entry.workgroup}, and WebGPU has at "
            f"most {most} along each dimension: give more dimensions, as in threads=(width, height), a larger "
            "group_size=, or let a thread do several elements"
        )
    return x, y, z


def _vector(kind: str) -> tuple[str, int]:
    """Return the scalar type and the count of a scalar or a vector; ("", 0) of what is neither."""
    if kind in _NUMBERS:
        return kind, 1
    found = _VECTOR.fullmatch(kind)
    return (element_of(kind), int(found[1])) if found is not None else ("", 0)


def _parts(
    kind: str, structs: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[tuple[int, str]]:
    """Yield the byte at which each number of a uniform begins and its type, by WGSL's rules of alignment."""
    at = 0
    for member in [t for _, t in structs[kind]] if kind in structs else [kind]:
        scalar, count = _vector(member)
        if not count:
            return
        size = _NUMBERS[scalar].itemsize
        align = size * (4 if count == 3 else count)
        at = -(-at // align) * align
        for _ in range(count):
            yield at, scalar
            at += size


def _flat(
    value: object, variable: Variable, structs: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[object]:
    """Yield the numbers of an argument; those of a struct may be given by name."""
    if isinstance(value, Mapping):
        names = [n for n, _ in structs.get(variable.type, ())]
        if set(value) != set(names):
            raise TypeError(
                f"({variable}) has the members {', '.join(names)}, not {', '.join(value)}"
            )
        value = [value[n] for n in names]
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one, variable, structs)
    else:
        yield value


def _bytes_of(value: object, kind: str, where: str, converts: bool) -> bytes:
    dtype = _NUMBERS[kind]
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{where} must be a number, not {type(value).__name__}")
    if dtype.kind == "float":
        return dtype.to_bytes([float(value)])
    if isinstance(value, float):
        if not converts:
            raise TypeError(
                f"{where} is a whole number, and {value!r} was given: give int(value), or arg_casts="
            )
        value = int(value)
    try:
        return dtype.to_bytes([int(value)])
    except OverflowError:
        raise OverflowError(f"{where}: {value} does not fit {kind}") from None
