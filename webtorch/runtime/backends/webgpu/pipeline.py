"""Shader modules, layouts and compute pipelines, cached by source. Imports the errors and this package's `native`."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from webtorch.errors import DeviceLostError, KernelError
from webtorch.lower.sizes import Families, Family
from webtorch.runtime.backends.webgpu.binding import Compute, Made, Pointer, Promise
from webtorch.runtime.backends.webgpu.native import Native, is_lost
from webtorch.runtime.churn import Churn

if TYPE_CHECKING:
    from webtorch.lower.wgsl_shader import Binding, WgslPass

_T = TypeVar("_T")


class Pipeline:
    """A compiled kernel: raw pointers for the replay loop, and the wrapper objects that keep them alive."""

    __slots__ = ("_keep", "layout", "pointer")

    def __init__(self, wrapper: Made, layout: Made) -> None:
        self.pointer: Pointer = wrapper._internal
        self.layout: Pointer = layout._internal
        self._keep = (wrapper, layout)


_Key = tuple[str, tuple[str, ...], bool, bool]
# Threads are started for this many kernels or more, and no more threads than this.
_FEW = 2
_MOST_THREADS = 16


class _AnySize(NamedTuple):
    """A pass for all sizes, as far as it is compiled."""

    source: str
    bindings: tuple[Binding, ...]
    trusted_indices: bool
    trusted_loops: bool


# Passes by their keys, with the names of their kernels.
_Wanted: TypeAlias = "dict[_Key, tuple[WgslPass | _AnySize, str]]"


def _placed(head: str, declared: str) -> str:
    """Put declarations into a shader, after its directives."""
    lines = head.splitlines(keepends=True)
    at = 0
    while lines[at].startswith(("enable ", "diagnostic", "requires ")):
        at += 1
    return "".join([*lines[:at], declared, *lines[at:]])


def _key(part: WgslPass | _AnySize) -> _Key:
    return part.source, part.bindings, part.trusted_indices, part.trusted_loops


class PipelineCache:
    """Compiles passes, once for each source text. Bounded: the least recently used goes first."""

    def __init__(self, native: Native, capacity: int = 4096) -> None:
        self._native = native
        self._capacity = capacity
        self._pipelines: OrderedDict[_Key, Pipeline] = OrderedDict()
        self._layouts: dict[tuple[Binding, ...], tuple[Made, Made]] = {}
        self._families = Families()
        self.compiled = 0
        self.churn = Churn(
            "Compiled kernels on webgpu",
            "Use fewer different shapes in one loop: pad to a few sizes.",
            in_a_row=None,
        )

    def __len__(self) -> int:
        return len(self._pipelines)

    def get(self, part: WgslPass | _AnySize, name: str) -> Pipeline:
        """Return the pipeline of a pass. Raises KernelError with the source if the device refuses it."""
        key = _key(part)
        found = self._pipelines.get(key)
        if found is not None:
            self.churn.hits += 1
            self._pipelines.move_to_end(key)
            return found
        return self._add(key, self._compile(part, name), name)

    def _add(self, key: _Key, made: Pipeline, name: str) -> Pipeline:
        self._pipelines[key] = made
        self.compiled += 1
        self.churn.made(key, None, name, lambda _, now: f"kernel {now} is one of them")
        if len(self._pipelines) > self._capacity:
            self.churn.dropped(self._pipelines.popitem(last=False)[0])
        return made

    def of_any_size(self, part: WgslPass, name: str) -> tuple[Pipeline, list[int]]:
        """Return a pipeline that serves the other sizes of this pass too, as far as they have been seen,
        and the values of its arguments that are sizes. Raises KernelError.

        They are in a uniform that follows the pass's own bindings.
        """
        whole, values = self._of_any_size(part)
        return self.get(whole, name), values

    def _of_any_size(self, part: WgslPass) -> tuple[WgslPass | _AnySize, list[int]]:
        """Return what serves the other sizes of a pass too, as a text, and the values of its arguments."""
        head, family, numbers = self.family(part)
        names, values = family.arguments(numbers)
        if not names:
            return part, []
        places = tuple(sorted(family.places))
        whole: _AnySize | None = family.made.get(places)
        if whole is None:
            members = ", ".join(f"{n}: i32" for n in names)
            declared = (
                f"struct Sizes {{ {members} }}\n"
                f"@group(0) @binding({len(part.bindings)}) var<uniform> sizes: Sizes;\n"
            )
            # It serves for what those with fewer arguments did.
            family.made.clear()
            whole = family.made[places] = _AnySize(
                _placed(head, declared) + family.text("sizes."),
                (*part.bindings, "uniform"),
                part.trusted_indices,
                part.trusted_loops,
            )
        return whole, values

    def family(self, part: WgslPass) -> tuple[str, Family, tuple[str, ...]]:
        """Return what stands before the body of a pass, and the family and numbers of its body."""
        source = "\n".join(x for x in part.source.splitlines() if not x.startswith("//"))
        begin = source.index("{", source.index("@compute"))
        head, body = source[:begin], source[begin:]
        key = (head, part.bindings, part.trusted_indices, part.trusted_loops)
        return head, *self._families.find(body, key)

    def prepare(self, parts: Sequence[tuple[WgslPass, str, bool]]) -> None:
        """Compile the passes that will be asked for, several at a time, where the engine can. Each comes with a name,
        and with whether it is to serve any sizes.

        Raises KernelError for the first that the device refuses.
        """
        # All sizes are seen before one is compiled.
        for part, _, any_size in parts:
            if any_size:
                self.family(part)
        wanted: _Wanted = {}
        for part, name, any_size in parts:
            whole = self._of_any_size(part)[0] if any_size else part
            key = _key(whole)
            if key not in self._pipelines:
                wanted.setdefault(key, (whole, name))
        if self._native.engine == "browser":
            self._prepare_watched(wanted)
        elif _FEW <= len(wanted) <= self._capacity:
            try:
                self._prepare_in_threads(wanted)
            except KernelError:
                if self._native.engine != "dawn":
                    raise
                # Its binding keeps the errors of all threads in one list, but those of a promise with the promise.
                self._prepare_promised(wanted)

    def _prepare_in_threads(self, wanted: _Wanted) -> None:
        """Compile in threads of our own: Dawn has two, however many processors there are."""
        for part, name in wanted.values():
            guarded(partial(self._layout, part.bindings), name, part.source)
        with ThreadPoolExecutor(
            min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="webtorch-compile"
        ) as pool:
            made = [pool.submit(self._compile, part, name) for part, name in wanted.values()]
            try:
                pipelines = [future.result() for future in made]
            except BaseException:
                for future in made:
                    future.cancel()
                raise
        for (key, (_, name)), pipeline in zip(wanted.items(), pipelines, strict=True):
            self._add(key, pipeline, name)

    def _prepare_watched(self, wanted: _Wanted) -> None:
        """Make all, and wait once for what the browser says of them, where Python can wait."""
        native: Any = self._native
        watching = native.watch() if wanted else False
        made = {key: self._compile(*one) for key, one in wanted.items()}
        problem = native.watched("compile") if watching else None
        if problem is not None:
            # Which one it was.
            for part, name in wanted.values():
                native.watch()
                self._compile(part, name)
                mine = native.watched("compile")
                if mine is not None:
                    raise refused(name, mine[1], part.source)
            raise refused(", ".join(name for _, name in wanted.values()), problem[1], "")
        for key, pipeline in made.items():
            self._add(key, pipeline, wanted[key][1])

    def _prepare_promised(self, wanted: _Wanted) -> None:
        """Let Dawn compile, which says of each what is wrong with it."""
        # A method of wgpudawn's alone.
        device: Any = self._native.wrapper
        make: Callable[..., Promise] = device.create_compute_pipeline_async
        promises = [self._begin(part, name, make) for part, name in wanted.values()]
        for (key, (part, name)), (promise, layout) in zip(wanted.items(), promises, strict=True):
            wrapper = guarded(promise.sync_wait, name, part.source)
            self._add(key, Pipeline(wrapper, layout), name)

    def module(self, source: str, name: str) -> Made:
        """Compile a text that a user wrote. Raises KernelError if the device refuses it."""
        return self._watched(lambda: self._native.create_module(source, False, False), name, source)

    def of_module(
        self, module: Made, source: str, entry: str, bindings: tuple[Binding, ...]
    ) -> Pipeline:
        """Return the pipeline of an entry point of what `module` compiled. Raises KernelError."""

        def build() -> Pipeline:
            """Make the pipeline."""
            group_layout, pipeline_layout = self._layout(bindings)
            compute: Compute = {"module": module, "entry_point": entry}
            made = self._native.wrapper.create_compute_pipeline(
                layout=pipeline_layout, compute=compute
            )
            return Pipeline(made, group_layout)

        return self._watched(build, entry, source)

    def _watched(self, build: Callable[[], _T], name: str, source: str) -> _T:
        """Build, and wait for what the browser says of it, where Python can wait."""
        native: Any = self._native
        watching = native.engine == "browser" and native.watch()
        made = guarded(build, name, source)
        problem = native.watched("compile") if watching else None
        if problem is not None:
            raise refused(name, problem[1], source)
        return made

    def _compile(self, part: WgslPass | _AnySize, name: str) -> Pipeline:
        device = self._native.wrapper
        return Pipeline(*self._begin(part, name, device.create_compute_pipeline))

    def _begin(
        self, part: WgslPass | _AnySize, name: str, make: Callable[..., _T]
    ) -> tuple[_T, Made]:
        """Return what a method of the binding makes of a pass, and the layout of its bind groups."""

        def build() -> tuple[_T, Made]:
            """Compile a pass, and call the binding's method with it."""
            group_layout, pipeline_layout = self._layout(part.bindings)
            module = self._native.create_module(
                part.source, part.trusted_indices, part.trusted_loops
            )
            compute: Compute = {"module": module, "entry_point": _entry_point(part.source)}
            return make(layout=pipeline_layout, compute=compute), group_layout

        return guarded(build, name, part.source)

    def _layout(self, bindings: tuple[Binding, ...]) -> tuple[Made, Made]:
        found = self._layouts.get(bindings)
        if found is None:
            device = self._native.wrapper
            types = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
            group = device.create_bind_group_layout(
                entries=[
                    {"binding": number, "visibility": 4, "buffer": {"type": types[kind]}}
                    for number, kind in enumerate(bindings)
                ]
            )
            found = group, device.create_pipeline_layout(bind_group_layouts=[group])
            self._layouts[bindings] = found
        return found


_ENTRY = re.compile(r"@compute[^{}]*?\bfn\s+(\w+)", re.DOTALL)
# naga writes "wgsl:4:7", Tint ":4:7 error:".
_PLACE = re.compile(r"(?:wgsl|^|\s):?(\d+):(\d+)\b", re.MULTILINE)


def _entry_point(source: str) -> str:
    match = _ENTRY.search(source)
    return match.group(1) if match else "main"


def guarded(build: Callable[[], _T], name: str, source: str) -> _T:
    """Run `build`; turn the binding's errors into KernelError with an excerpt of `source`."""
    try:
        return build()
    except Exception as error:
        # The two bindings have one class each for these; both are named GPU...Error.
        if not type(error).__name__.startswith("GPU") and not isinstance(error, RuntimeError):
            raise
        message = str(error).strip()
        if is_lost(("", message)):
            raise DeviceLostError(
                f"compile {name}: the device was lost: {message}. Its tensors cannot be used any more: start the "
                "process again and load a checkpoint, or go on with tensors on device 'cpu'"
            ) from error
        raise refused(name, message, source) from error


def refused(name: str, message: str, source: str) -> KernelError:
    """Return the error for a kernel that the device's compiler does not take."""
    return KernelError(
        f"compile {name}: the device's compiler refused the kernel: {message}\n{excerpt(source, message)}"
    )


def excerpt(source: str, message: str, around: int = 3) -> str:
    """Return the numbered lines of `source` around the place that `message` names (its first 20 lines if none)."""
    lines = source.splitlines()
    match = _PLACE.search(message)
    line = int(match.group(1)) if match else 0
    if not 1 <= line <= len(lines):
        return _numbered(lines[:20], 1, 0)
    first = max(1, line - around)
    return _numbered(lines[first - 1 : line + around], first, line)


def _numbered(lines: Sequence[str], first: int, marked: int) -> str:
    return "\n".join(
        f"{'>' if n == marked else ' '}{n:5} | {text}" for n, text in enumerate(lines, first)
    )
