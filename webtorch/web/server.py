"""Serves a folder on this machine only, as an exported page wants it. Floor 6; imports the standard library only."""

from __future__ import annotations

import functools
import http.server
from pathlib import Path

TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".safetensors": "application/octet-stream",
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers with the types that modules need, never from a cache, and prints nothing."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, **TYPES}  # noqa: RUF012

    def end_headers(self) -> None:
        """Add the headers that every answer has."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        # An isolated page may share memory with its workers: threads, and the Stop button of the playground.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """Return a server of `folder` on 127.0.0.1, which browsers take for a secure context.

    Port 0 is any free one. Raises FileNotFoundError where there is no page, OSError where the port is taken.
    """
    if not (folder / "index.html").is_file():
        raise FileNotFoundError(
            f"serve: {folder} has no index.html; webtorch.export writes one, as do `webtorch demo --export` "
            "and `webtorch playground`"
        )
    handler = functools.partial(Handler, directory=str(folder))
    out = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    out.daemon_threads = True
    return out
