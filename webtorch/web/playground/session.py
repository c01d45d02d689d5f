"""Python's side of the playground: runs what was typed, and sends text and pictures to the page. Floor 6.

Only `worker.js` imports this, in Pyodide. What was typed may await; its last expression is shown, as
in a notebook. Names stay from one run to the next until `reset`.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib
import inspect
import io
import json
import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

from webtorch import show, webgpu
from webtorch.as_torch import install_as_torch
from webtorch.errors import DeviceError
from webtorch.functions import public as webtorch
from webtorch.runtime.backends import get_backend
from webtorch.version import PACKAGE

FILE = "playground.py"
# Registered by worker.js: write(stream, text), show(key, mime, title, data), pause(whether).
page: Any = importlib.import_module("webtorch_page")
# Where calls are folded away: webtorch, and what it uses of Python.
_INSIDE = (__file__.removesuffix("web/playground/session.py"), "<frozen ", "/lib/python")
_names: dict[str, object] = {}
_running: asyncio.Task[object] | None = None


class _Stream(io.TextIOBase):
    """A standard stream that writes to the page."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> int:
        """Send text."""
        page.write(self.name, text)
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Whether a line can be written over, as progress bars do."""
        return self.name == "out"


# What programs import that a page does not have, and what does the same here.
_INSTEAD = {
    "matplotlib": "`from webtorch import show` has show.plot({'loss': losses}) and show.image(x)",
    "numpy": "tensors do what arrays do, and x.tolist() gives numbers",
    "scipy": "torch.special, torch.fft and torch.linalg have much of it",
    "tensorboard": "`from webtorch import show` has show.plot({'loss': losses}, key='loss')",
    "tqdm": "print(f'{step} of {steps}', end='\\r') writes over its line",
}


class _Absent:
    """Asked last for a module: says what to do without it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for packages that are not in the page."""
        root = name.partition(".")[0]
        # What tries an import and goes on without is no program's.
        if path is not None or not _typed_import():
            return
        instead = _INSTEAD.get(root, "Python's standard library and webtorch can be imported")
        raise ModuleNotFoundError(
            f"No module named {name!r}: this page does not have it. Here {instead}. Where Pyodide "
            f"has it, `webtorch playground DIR --packages {root}` writes a page with it",
            name=name,
        )


def _typed_import() -> bool:
    """Whether the import that runs now stands in what was typed."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == FILE


def _input(prompt: object = "") -> str:
    raise EOFError("input: nobody can type into a page's program: write the value into it")


def _display(drawing: show.Drawing) -> None:
    page.show(drawing.key, drawing.mime, drawing.title, drawing.data)


def _start() -> None:
    sys.stdout, sys.stderr = _Stream("out"), _Stream("err")
    show.displays.append(_display)
    browser: Any = importlib.import_module("webtorch.runtime.backends.webgpu.browser")
    browser.on_pause = page.pause
    install_as_torch()
    sys.meta_path.append(_Absent())
    builtins.input = _input
    # The output has no colours.
    os.environ["NO_COLOR"] = "1"
    # Where the page has Matplotlib, its figures appear.
    os.environ["MPLBACKEND"] = "module://webtorch.web.playground.figures"
    reset()


def reset() -> None:
    """Forget every name that was defined."""
    _names.clear()
    _names.update(__name__="__main__", __builtins__=__builtins__)
    webtorch.set_default_device(None)


async def open_device() -> str:
    """Open the graphics device; return JSON about where programs run, with the reason if not there."""
    about = {"python": sys.version.split()[0], "webtorch": PACKAGE}
    try:
        await webgpu.request_async()
        about |= {"device": webgpu.get_device_name(), "problem": ""}
    except DeviceError as error:
        os.environ["WEBTORCH_DEVICE"] = "cpu"
        webtorch.set_default_device(None)
        about |= {"device": "", "problem": str(error)}
    pauses = importlib.import_module("pyodide.ffi").can_run_sync()
    return json.dumps(about | {"pauses": pauses, "processor": _processor()})


def _processor() -> str:
    """Return what runs programs on the CPU, with what is left to plain Python by now."""
    return get_backend("cpu").description()


def _compiled(text: str) -> tuple[CodeType, CodeType | None]:
    """Return what was typed without its last expression, and that."""
    tree = ast.parse(text, FILE)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, FILE, "eval", flags, dont_inherit=True)
    return compile(tree, FILE, "exec", flags, dont_inherit=True), last


def stop() -> None:
    """Stop a program that awaits something."""
    if _running is not None:
        _running.cancel()


async def run(text: str) -> str:
    """Run what was typed; return JSON: whether it went well, else the error and its line; what runs on the CPU."""
    return json.dumps({**await _run(text), "processor": _processor()})


async def _run(text: str) -> Mapping[str, object]:
    global _running
    _running = asyncio.current_task()
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    try:
        body, last = _compiled(text)
        for code in (body, last):
            value = None if code is None else eval(code, _names)
            if inspect.iscoroutine(value):
                value = await value
            if code is last and value is not None and not isinstance(value, show.Drawing):
                _names["_"] = value
                text = repr(value)
                page.write("out", text if text.endswith("\n") else text + "\n")
    except SystemExit as stopped:
        return {"ok": stopped.code in (None, 0), "error": "", "line": 0}
    except BaseException as error:
        return _failure(error)
    finally:
        _running = None
    return {"ok": True, "error": "", "line": 0}


def _failure(error: BaseException) -> Mapping[str, object]:
    """Return an error as the page shows it: from the first typed line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != FILE:
        frames = frames.tb_next
    line = 0
    walk = frames
    while walk is not None:
        if walk.tb_frame.f_code.co_filename == FILE:
            line = walk.tb_lineno
        walk = walk.tb_next
    if isinstance(error, SyntaxError) and frames is None:
        line = error.lineno or 0
    stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
    whole = traceback.TracebackException(type(error), error, frames)
    text = "".join(whole.format())
    _fold(whole)
    return {
        "ok": False,
        "stopped": stopped,
        "error": "".join(whole.format()).removeprefix(
            "Traceback (most recent call last):\n" if frames is None else ""
        ),
        "whole": text,
        "line": line,
    }


def _fold(whole: traceback.TracebackException) -> None:
    """Leave out the calls inside of webtorch: what was typed is what can be changed."""
    whole.stack[:] = [f for f in whole.stack if not f.filename.startswith(_INSIDE)]
    for other in (whole.__cause__, whole.__context__):
        if other is not None:
            _fold(other)


def names() -> list[str]:
    """Return what is defined, for tests."""
    return sorted(
        n for n, v in _names.items() if not n.startswith("_") and not isinstance(v, ModuleType)
    )


_start()
