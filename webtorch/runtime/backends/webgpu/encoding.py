"""What programs are encoded into: a command buffer each, or one for several. Imports this package's `native`."""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from webtorch.runtime.backends.webgpu.loop import MachineLoop, Row
from webtorch.runtime.backends.webgpu.native import Native, Pointer

if TYPE_CHECKING:
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend

# Copies as (source, its first byte, target, its first byte, bytes).
CopyRow = tuple[Pointer, int, Pointer, int, int]
# What is encoded together is submitted from so many dispatches on, so that the device begins.
_MOST_ROWS = 256
# A program begins with so many dispatches, which compute while the next ones are encoded.
FIRST_ROWS = 64


class Encoding:
    """The commands of one device that are not submitted yet. Needs the device's lock."""

    __slots__ = ("_commands", "_device", "_encoder", "_open", "_part", "_rows", "_waiting", "sent")

    def __init__(self, device: WebGPUBackend) -> None:
        self._device = device
        # Whether the next program joins the last one.
        self._open = False
        self._encoder: Pointer = None
        # The compute pass that is open.
        self._part: Pointer = None
        self._rows = 0
        # The programs whose commands wait. Their arguments are not to be overwritten.
        self._waiting: list[object] = []
        # How many programs were submitted since they are encoded together.
        self.sent = 0

    @contextmanager
    def together(self) -> Iterator[Encoding]:
        """Submit programs that run within as few command buffers. What was encoded is submitted in any case."""
        self._open, self.sent = True, 0
        try:
            yield self
        finally:
            self._open = False
            self.send()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Submit what waits, and each program that runs within at once: it is waited for."""
        self.send()
        joined, self._open = self._open, False
        try:
            yield
        finally:
            self._open = joined

    def holds(self, program: object) -> bool:
        """Whether commands of a program wait."""
        return program in self._waiting

    def add(
        self,
        program: object,
        segments: Sequence[tuple[list[Row], list[CopyRow]]],
        loop: MachineLoop | None,
        tables: Sequence[array.array[int]] | None,
    ) -> None:
        """Encode a program's segments, and submit them unless more is to come."""
        native = self._device.native
        native.capture()
        done = False
        # What is begun while another run is read need not begin early: a submission takes the thread 80 us.
        early = not self._open and not self._device.is_read
        try:
            for number, (rows, copies) in enumerate(segments):
                if self._rows >= FIRST_ROWS and number and early:
                    try:
                        self._submit(self._finish(), native.captured())
                    finally:
                        native.capture()
                self._encode(rows, copies, loop, None if tables is None else tables[number])
            self._waiting.append(program)
            commands = None
            if not self._open or self._rows >= _MOST_ROWS:
                commands = self._finish()
            done = True
        finally:
            problem = native.captured()
            if not done:
                # Stopped on the way: half of a program must not run.
                self._drop()
        if commands is not None:
            self._submit(commands, problem)
        elif problem is not None:
            self._drop()
            raise self._device.error(problem, "run")

    def _encode(
        self,
        rows: list[Row],
        copies: list[CopyRow],
        loop: MachineLoop | None,
        table: array.array[int] | None,
    ) -> None:
        """Encode one segment."""
        native = self._device.native
        if self._encoder is None:
            self._encoder = native.create_encoder()
        if rows:
            if self._part is None:
                self._part = native.begin_pass(self._encoder, native.null)
            if loop is None or table is None:
                encode_pass(native, self._part, rows)
            else:
                loop.encode(self._part, table)
            self._rows += len(rows)
        if copies:
            self._end_pass()
            for row in copies:
                native.copy(self._encoder, *row)

    def ahead(
        self,
        segments: Sequence[tuple[list[Row], list[CopyRow]]],
        loop: MachineLoop | None,
        tables: Sequence[array.array[int]] | None,
    ) -> list[Pointer]:
        """Return the finished command buffers of a program that is to run later, for `send_ahead` or to be dropped;
        none while others are encoded.
        """
        if self._open or self._encoder is not None:
            return []
        native, made, done = self._device.native, list[Pointer](), False
        native.capture()
        try:
            for number, (rows, copies) in enumerate(segments):
                if self._rows >= FIRST_ROWS and number:
                    made.append(self._finish())
                self._encode(rows, copies, loop, None if tables is None else tables[number])
            made.append(self._finish())
            done = True
        finally:
            problem = native.captured()
            if problem is not None or not done:
                self.drop_ahead(made)
                self._drop()
        if problem is not None:
            raise self._device.error(problem, "run")
        return made

    def send_ahead(self, commands: list[Pointer]) -> None:
        """Submit a program's finished command buffers after what waits, and take them off the list."""
        self.send()
        while commands:
            self._device.submit(commands.pop(0), None, "run")
        self.sent += 1

    def drop_ahead(self, commands: list[Pointer]) -> None:
        """Drop command buffers that are not to be submitted."""
        while commands:
            self._device.native.drop(commands.pop())

    def taken(self) -> Pointer:
        """Return the encoder of what waits, or a new one, for a copy that is submitted with it."""
        self._end_pass()
        encoder, self._encoder, self._rows = self._encoder, None, 0
        self.sent += len(self._waiting)
        self._waiting.clear()
        return self._device.native.create_encoder() if encoder is None else encoder

    def send(self) -> None:
        """Submit what waits."""
        if self._encoder is None:
            return
        native = self._device.native
        native.capture()
        try:
            commands = self._finish()
        finally:
            problem = native.captured()
        self._submit(commands, problem)

    def _submit(self, commands: Pointer, problem: tuple[str, str] | None) -> None:
        count = len(self._waiting)
        self._waiting.clear()
        self._device.submit(commands, problem, "run")
        self.sent += count

    def _end_pass(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            native = self._device.native
            native.end_pass(part)
            native.release_pass(part)

    def _finish(self) -> Pointer:
        """Finish the commands, and begin with none."""
        self._end_pass()
        encoder, self._encoder, self._rows = self._encoder, None, 0
        return self._device.native.finish(encoder)

    def _drop(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._encoder is None:
            return
        native = self._device.native
        native.capture()
        try:
            native.drop(self._finish())
        finally:
            native.captured()


def encode_pass(native: Native, part: Pointer, rows: Sequence[Row]) -> None:
    """Encode the dispatches of a pass."""
    set_pipeline, set_bind_group, dispatch, null = (
        native.set_pipeline,
        native.set_bind_group,
        native.dispatch,
        native.null,
    )
    for pipeline, group, x, y, z in rows:
        if pipeline is not None:
            set_pipeline(part, pipeline)
        set_bind_group(part, 0, group, 0, null)
        dispatch(part, x, y, z)
