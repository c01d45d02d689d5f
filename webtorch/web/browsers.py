"""Runs a page in a headless browser and waits for what it reports. Floor 6; imports the standard library only.

The page posts its report to the server that it came from, so that any browser will do: nothing has to drive it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.web.server import Handler

PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "firefox": ("firefox-esr", "firefox"),
}
# The software adapter: the same numbers on every machine. Debian's package offers it with these flags
# only; containers without user namespaces have no sandbox.
CHROMIUM = (
    "--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_WEBGPU = ("dom.webgpu.enabled", "dom.webgpu.workers.enabled", "gfx.webgpu.ignore-blocklist")
_FIREFOX = {
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.normandy.enabled": False,
    "network.captive-portal-service.enabled": False,
}
# Seconds without a word from the page after which it counts as stuck.
PATIENCE = 600.0


class BrowserError(WebtorchError):
    """There is no such browser, or its page failed."""


def find(browser: str) -> str | None:
    """Return where "chromium" or "firefox" is installed, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS[browser])), None)


class _Reports(Handler):
    """Serves a folder and a few pages that are in memory, and takes what pages post."""

    posted: queue.Queue[tuple[str, object]]
    pages: Mapping[str, str]

    def do_GET(self) -> None:
        """Answer with a page in memory, else with the folder's file."""
        name = self.path.partition("?")[0].lstrip("/")
        text = self.pages.get(name)
        if text is None:
            super().do_GET()
            return
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(name))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        """Take "/report" and "/progress"."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.put((self.path.lstrip("/"), json.loads(data)))
        self.send_response(204)
        self.end_headers()


def report(
    folder: Path,
    page: str,
    browser: str = "chromium",
    *,
    pages: Mapping[str, str] | None = None,
    progress: Callable[[Any], None] | None = None,
    webgpu: bool = True,
) -> Any:
    """Serve `folder`, open `page` of it ("index.html?report") headless, and return what it posts to "report".

    What it posts to "progress" meanwhile is given to `progress`. `pages` are more files, by name. Without `webgpu` the
    browser offers none.
    Raises BrowserError where the browser is missing, ends, or says nothing for PATIENCE seconds.
    """
    program = find(browser)
    if program is None:
        raise BrowserError(f"{browser} is not installed: none of {', '.join(PROGRAMS[browser])}")
    posted: queue.Queue[tuple[str, object]] = queue.Queue()
    handler = type("Reports", (_Reports,), {"posted": posted, "pages": pages or {}})
    made = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{running.server_address[1]}/{page}"
            with _started(browser, program, address, webgpu) as process:
                waited = 0.0
                while True:
                    try:
                        kind, value = posted.get(timeout=1.0)
                    except queue.Empty:
                        waited += 1.0
                        if process.poll() is not None:
                            raise BrowserError(
                                f"{browser} ended with {process.returncode}"
                            ) from None
                        if waited > PATIENCE:
                            raise BrowserError(
                                f"the page said nothing for {PATIENCE:.0f} s"
                            ) from None
                        continue
                    waited = 0.0
                    if kind == "report":
                        return value
                    if progress is not None:
                        progress(value)
        finally:
            running.shutdown()


@contextlib.contextmanager
def _started(
    browser: str, program: str, address: str, webgpu: bool
) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        if browser == "chromium":
            flags = [f for f in CHROMIUM if webgpu or "webgpu" not in f]
            command = [program, *flags, f"--user-data-dir={profile}", address]
        else:
            settings = {**_FIREFOX, **dict.fromkeys(_WEBGPU, webgpu)}
            lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in settings.items()]
            (Path(profile) / "user.js").write_text("\n".join(lines) + "\n", encoding="utf-8")
            command = [program, "--headless", "--no-remote", "--profile", profile, address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
