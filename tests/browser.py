"""Pytest plugin: a headless Chromium with WebGPU on its software adapter, and a server for the pages that it opens."""

from __future__ import annotations

import asyncio
import functools
import http.server
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import profiles
from tests.patience import PATIENCE

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
# Without the second flag the Debian package offers no adapter; the first is for containers without user namespaces.
# A software adapter on a busy machine may be silent for longer than a card, which the watchdog takes for gone.
FLAGS = [
    "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--disable-gpu-watchdog",
]  # fmt: skip


def _missing(what: str) -> None:
    if IN_CI:
        pytest.fail(f"CI needs {what}")
    pytest.skip(f"no {what}")


def browser_path() -> str | None:
    """Return where Chromium is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def launch(browser_type: Any) -> Any:
    """Start a browser."""
    return browser_type.launch(executable_path=browser_path(), args=FLAGS)


@pytest.fixture(scope="session")
def _running() -> Iterator[tuple[Any, Any]]:
    """The browser of this process, and the event loop of Playwright, which runs in this thread from now on."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright (pip install playwright; no browser download is needed)")
    if browser_path() is None:
        _missing("Chromium (apt-get install --no-install-recommends chromium)")
    with sync_playwright() as playwright:
        browser = launch(playwright.chromium)
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture(scope="module")
def chromium(_running: tuple[Any, Any]) -> Iterator[Any]:
    """The browser; skips visibly where it is not installed, fails in CI.

    Playwright's loop counts as running for a file's tests alone: other tests of asyncio start theirs.
    """
    browser, loop = _running
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".safetensors": "application/octet-stream",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def do_GET(self) -> None:
        if self.path != "/blank":
            super().do_GET()
            return
        # A page that does nothing, for tests that bring their own script.
        text = b"<!doctype html><title>blank</title><link rel=icon href=data:,>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """A function that serves a folder on 127.0.0.1, which browsers take for a secure context, and gives its address."""
    with ExitStack() as stack:

        def start(folder: Path) -> str:
            handler = functools.partial(_Handler, directory=str(folder))
            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}/"

        yield start


class Page:
    """A page of the browser that remembers what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(1000 * PATIENCE)
        page.on(
            "console",
            lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda e: self.problems.append(str(e)))

    def run(self, script: str, argument: Any = None) -> Any:
        """Run an async JavaScript function and return what it returns; a thrown error is a failure."""
        return self.page.evaluate(script, argument)

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true (Playwright's own way needs eval, which the page forbids)."""
        end = time.monotonic() + PATIENCE
        while not self.page.evaluate(f"() => Boolean({expression})"):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def error(self, script: str, argument: Any = None) -> str:
        """Run an async JavaScript function that must throw a WebtorchError, and return its message."""
        caught = "catch (e) { return e.name + ': ' + e.message; }"
        wrapped = f"async (a) => {{ try {{ await ({script})(a); return ''; }} {caught} }}"
        text = str(self.page.evaluate(wrapped, argument))
        assert text.startswith("WebtorchError: "), text or "nothing was thrown"
        return text.removeprefix("WebtorchError: ")


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    """A fresh page."""
    opened = chromium.new_page()
    if script := profiles.page_script():
        opened.add_init_script(script)
    yield Page(opened)
    opened.close()
