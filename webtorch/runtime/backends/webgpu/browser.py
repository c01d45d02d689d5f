"""The third binding: the browser's own WebGPU, for Python in a page (Pyodide). Imports the errors and `native`.

`browser.js` holds the objects and this module their numbers. JavaScript answers later: what has to
wait (a read, an error of the shader compiler) pauses Python where the browser can do that
(JavaScript Promise Integration, JSPI), and otherwise raises DeviceError, naming the form to await.
Errors that the device reports later are raised by what is done next.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.errors import DeviceError
from webtorch.runtime.backends.webgpu.binding import Compute, Entry, Made, Pointer
from webtorch.runtime.backends.webgpu.native import MAP_READ, Native, Problem, Ticket

# Buffers from this size on are worth a wait to hear whether there was memory for them.
_LARGE = 32 << 20


# Called with True before Python pauses and with False after. What wakes Python up again is Python too, and an
# interrupt that strikes there is lost with the wake-up: a page with a Stop button holds it back meanwhile.
on_pause: Callable[[bool], object] | None = None


def _ffi() -> Any:
    return importlib.import_module("pyodide.ffi")


def _script() -> Any:
    """Return the functions of browser.js: a page whose policy forbids eval registers the module itself."""
    try:
        return importlib.import_module("webtorch_browser")
    except ImportError:
        text = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        run_js = importlib.import_module("pyodide.code").run_js
        return run_js(f"(() => {{ {text}\nreturn {{ adapter, describe, open }}; }})()")


def can_wait() -> bool:
    """Whether Python can pause here until JavaScript has an answer."""
    return bool(_ffi().can_run_sync())


def wait(promise: object, doing: str) -> Any:
    """Return what a promise resolves to. Raises DeviceError where Python cannot pause."""
    check_wait(doing)
    if on_pause is None:
        return _ffi().run_sync(promise)
    on_pause(True)
    try:
        return _ffi().run_sync(promise)
    finally:
        on_pause(False)


def check_wait(doing: str) -> None:
    """Raise DeviceError where Python cannot pause."""
    if not can_wait():
        raise DeviceError(
            f"{doing}: this has to wait for the device, and Python cannot pause here. Where the browser has no "
            "JavaScript Promise Integration (JSPI), or Python was called from JavaScript without "
            "callPromising, use the forms to await: `await x.item_async()`, `await x.tolist_async()`, "
            "`await webtorch.webgpu.request_async()` before the device is used first"
        )


def _hyphens(name: str) -> str:
    return re.sub(r"[A-Z]", lambda m: "-" + m[0].lower(), name)


def _camels(name: str) -> str:
    return re.sub(r"-(\w)", lambda m: m[1].upper(), name)


class Adapter:
    """The browser's adapter, as `adapter.py` and `device.py` expect a binding's."""

    def __init__(self, script: Any, found: Any) -> None:
        self._script = script
        self._found = found
        self._engine: Any = None
        about = json.loads(script.describe(found))
        fallback = about["fallback"]
        self.info: dict[str, str] = {
            "device": about["name"],
            "description": "",
            "vendor": about["vendor"],
            "backend_type": "browser",
            "adapter_type": "CPU" if fallback else "Unknown",
        }
        # Timestamps are read through the C library's calls only.
        self.features = frozenset(about["features"]) - {"timestamp-query"}
        self.limits = {_hyphens(name): limit for name, limit in about["limits"].items()}

    async def open(self, features: Sequence[str], limits: Mapping[str, int]) -> None:
        """Open the device, so that `request_device_sync` need not wait."""
        self._engine = await self._script.open(self._found, _wanted(features, limits))

    def request_device_sync(
        self, required_features: Sequence[str], required_limits: Mapping[str, int]
    ) -> Device:
        """Return the device; waits unless `open` was awaited."""
        engine, self._engine = self._engine, None
        if engine is None:
            # An adapter gives one device.
            found = wait(self._script.adapter(), "open a WebGPU device")
            opened = self._script.open(found, _wanted(required_features, required_limits))
            engine = wait(opened, "open a WebGPU device")
        return Device(engine)


def _wanted(features: Sequence[str], limits: Mapping[str, int]) -> str:
    return json.dumps(
        {
            "requiredFeatures": list(features),
            "requiredLimits": {_camels(name): limit for name, limit in limits.items()},
        }
    )


_adapter: Adapter | None = None


def enumerate_adapters() -> list[Adapter]:
    """Return the browser's adapter. Raises DeviceError when there is none, or Python cannot wait for it."""
    global _adapter
    if _adapter is None:
        script = _script()
        _adapter = Adapter(script, _adapter_of(wait, script))
    return [_adapter]


def _adapter_of(waiting: Any, script: Any) -> object:
    try:
        return waiting(script.adapter(), "look for a WebGPU adapter")
    except _ffi().JsException as error:
        raise DeviceError(f"WebGPU: {_reason(error)}") from None


def _reason(error: object) -> str:
    return str(error).removeprefix("Error: ")


async def request() -> Adapter:
    """Look for the adapter, awaiting; raises DeviceError, saying why, when there is none."""
    global _adapter
    if _adapter is None:
        script = _script()
        try:
            _adapter = Adapter(script, await script.adapter())
        except _ffi().JsException as error:
            raise DeviceError(f"WebGPU: {_reason(error)}") from None
    return _adapter


class _Made:
    """An object of the device: its number, under the name that the bindings use."""

    __slots__ = ("_internal",)

    def __init__(self, number: int) -> None:
        self._internal = number


class Device:
    """What `pipeline.py` asks of a binding's device."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.features = frozenset(engine.features().split())
        self.limits = {_hyphens(n): limit for n, limit in json.loads(engine.limits()).items()}

    def create_shader_module(self, code: str) -> _Made:
        """Compile a shader."""
        return _Made(self.engine.module(code))

    def create_bind_group_layout(self, entries: Sequence[Entry]) -> _Made:
        """Describe the buffers of a kernel, in order."""
        return _Made(self.engine.groupLayout(" ".join(e["buffer"]["type"] for e in entries)))

    def create_pipeline_layout(self, bind_group_layouts: Sequence[Made]) -> _Made:
        """Describe a kernel's one group of buffers."""
        (group,) = bind_group_layouts
        return _Made(self.engine.pipelineLayout(group._internal))

    def create_compute_pipeline(self, layout: Made, compute: Compute) -> _Made:
        """Make a kernel."""
        module = compute["module"]._internal
        return _Made(self.engine.pipeline(layout._internal, module, compute["entry_point"]))

    def destroy(self) -> None:
        """Close the device."""
        self.engine.destroy()


class BrowserNative(Native):
    """The calls of `native.Native`, made in JavaScript."""

    engine = "browser"
    replays = True
    maps_writes = False

    def __init__(self, device: Device) -> None:
        # Not the base class's: there is no C library.
        self.wrapper = device
        self.null = 0
        script = self._script = device.engine
        self.begin_pass = lambda encoder, _: script.beginPass(encoder)
        self.set_pipeline = script.setPipeline
        self.set_bind_group = lambda part, _, group, *__: script.setGroup(part, group)
        self.dispatch = script.dispatch
        self.end_pass = script.endPass
        self.release_pass = lambda part: None
        self.copy = script.copy
        self.clear = script.clear
        self.release_buffer = script.freeBuffer
        self.release_bind_group = script.drop

    def capture(self) -> None:
        """Do nothing: errors come later, and `captured` takes those that have come."""

    def captured(self) -> Problem | None:
        """Return the first error since `capture`, None without one."""
        return _problem(self._script.take())

    def watch(self) -> bool:
        """Start to collect the errors of what is made; False where one could not wait for them."""
        if not can_wait():
            return False
        self._script.watch()
        return True

    def watched(self, doing: str) -> Problem | None:
        """Wait for the errors since `watch`."""
        return _problem(wait(self._script.watched(), doing))

    def create_buffer(
        self, size: int, usage: int, mapped: bool = False
    ) -> tuple[Pointer, Problem | None]:
        """Return a buffer's number, and what went wrong; large ones are watched for lack of memory."""
        if size >= _LARGE and self.watch():
            number = self._script.buffer(size, usage)
            problem = self.watched("allocate")
            if problem is not None:
                self._script.drop(number)
            return number, problem
        try:
            return self._script.buffer(size, usage), None
        except _ffi().JsException as error:
            # Memory that could not even be described.
            return 0, ("OutOfMemory", str(error))

    def create_bind_group(
        self, layout: Pointer, bindings: list[tuple[Pointer, int, int]]
    ) -> Pointer:
        """Return the number of a bind group of (buffer, offset, bytes) bindings."""
        return self._script.group(layout, *[number for binding in bindings for number in binding])

    def write(self, buffer: Pointer, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes into a buffer."""
        self._script.write(buffer, offset, data)

    def flush_writes(self) -> None:
        """Do nothing: the browser sends writes on by itself."""

    def create_encoder(self) -> Pointer:
        """Return the number of a new encoder."""
        return self._script.encoder()

    def finish(self, encoder: Pointer) -> Pointer:
        """Return the number of an encoder's commands."""
        return self._script.finish(encoder)

    def drop(self, commands: Pointer) -> None:
        """Forget commands."""
        self._script.drop(commands)

    def submit(self, commands: Pointer) -> None:
        """Submit commands."""
        self._script.submit(commands)

    def plan(self, segments: Any) -> Pointer:
        """Return a number for rows and copies that are replayed often."""
        return self._script.plan(
            json.dumps([[[(p or 0, *r) for p, *r in rows], copies] for rows, copies in segments])
        )

    def replay(self, plan: Pointer) -> None:
        """Encode and submit a plan."""
        self._script.replay(plan)

    def release_plan(self, plan: Pointer) -> None:
        """Forget a plan."""
        self._script.drop(plan)

    def may_wait(self, doing: str) -> None:
        """Raise an error where the page's thread cannot wait."""
        check_wait(doing)

    def mark(self) -> object:
        """Return a promise of all that has been submitted."""
        return self._script.done()

    def wait(self, mark: object) -> None:
        """Wait for a mark, where the page's thread can."""
        # Where Python cannot pause nothing may wait; only that Python runs ahead of the device is lost.
        if can_wait():
            wait(mark, "synchronize")

    def begin_map(self, buffer: Pointer, size: int, mode: int = MAP_READ) -> Ticket:
        """Begin to map a buffer for reading; return its ticket."""
        ticket = Ticket()
        ticket.mark = self._script.map(buffer, size)
        return ticket

    def wait_map(self, ticket: Ticket) -> None:
        """Wait until a buffer is mapped."""
        if not ticket.ready.is_set():
            ticket.error = wait(ticket.mark, "read a tensor") or None
            ticket.ready.set()

    async def arrival(self, ticket: Ticket) -> None:
        """Wait for a map request as other coroutines run."""
        promise: Awaitable[str] = ticket.mark  # type: ignore[assignment]
        ticket.error = await promise or None
        ticket.ready.set()

    def mapped(self, buffer: Pointer, start: int, size: int) -> memoryview:
        """Return a copy of a mapped buffer's bytes."""
        return memoryview(self._script.bytes(buffer, start, size).to_bytes())

    def unmap(self, buffer: Pointer) -> None:
        """End the mapping of a buffer."""
        self._script.unmap(buffer)


def _problem(text: str) -> Problem | None:
    if not text:
        return None
    kind, _, message = text.partition("\n")
    return kind, message
