"""`webtorch run`: a Python program in which torch is webtorch. Floor 6."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import spawn
from types import TracebackType

from webtorch.as_torch import install_as_torch
from webtorch.cli.messages import complain
from webtorch.functions import public as webtorch
from webtorch.tensors.device import resolve, stand_in_for_cpu


def run(
    program: str, arguments: Sequence[str] = (), *, module: bool = False, device: str | None = None
) -> int:
    """Run the file or module `program` as `python program ...` would, and return its exit code.

    device: the default device inside. Raises OSError for a file that does not exist, DeviceError for
    a device that does not.
    """
    if not module and not os.path.exists(program):
        raise FileNotFoundError(f"run: there is no file {program!r}")
    begin(device)
    sys.argv[:] = [program, *arguments]
    sys.path[0:1] = [os.getcwd() if module else os.path.dirname(os.path.abspath(program))]
    try:
        if module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    except Exception as error:
        part = _of_program(error.__traceback__)
        if part is None and isinstance(error, ImportError):
            complain(f"run: {error}")
        else:
            traceback.print_exception(type(error), error, part)
        return 1
    return 0


# Where Python asks what a process that starts afresh is to know.
_PREPARATION = spawn.get_preparation_data


class _Begin:
    """What begins, in a process that reads it, as this one began."""

    def __init__(self, device: str | None) -> None:
        self.device = device

    def __reduce__(self) -> tuple[object, ...]:
        return begin, (self.device,)


def begin(device: str | None) -> None:
    """Let torch be webtorch in this process, and in those that it starts afresh. `device`: as for `run`."""
    if device is not None:
        resolve(device)
        webtorch.set_default_device(device)
    chosen = webtorch.get_default_device()
    if chosen.type == "webgpu":
        stand_in_for_cpu(chosen)
        webtorch.set_default_device("cpu")
    install_as_torch()

    def prepared(name: str) -> dict[str, object]:
        """Return it with a beginning, which is read before the program's module is imported."""
        return {"torch": _Begin(device), **_PREPARATION(name)}

    spawn.get_preparation_data = prepared


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the program, or None where the program did not begin."""
    at = trace
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not (file == __file__ or "runpy" in file):
            return at
        at = at.tb_next
    return None


def main(options: argparse.Namespace, console: object) -> int:
    """Run a PyTorch program unchanged."""
    return run(options.program, options.arguments, module=options.module, device=options.device)
