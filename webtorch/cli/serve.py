"""`webtorch serve`: show an exported page in the browser."""

from __future__ import annotations

import argparse
import contextlib
import webbrowser

from rich.console import Console

from webtorch.cli.messages import complain
from webtorch.web.server import server

_PORT = 8000


def main(options: argparse.Namespace, console: Console) -> int:
    """Serve a folder until it is interrupted. Returns the exit status."""
    port = options.port or _PORT
    try:
        running = server(options.folder, port)
    except FileNotFoundError:
        raise
    except OSError as error:
        if options.port is not None:
            complain(f"--port {port}: {error.strerror}")
            return 1
        console.print(f"port {port} is another program's: a free one is taken", highlight=False)
        running = server(options.folder)
    address = f"http://127.0.0.1:{running.server_address[1]}/"
    said = f"{options.folder} is at {address} (Ctrl+C ends)"
    console.print(said, highlight=False, soft_wrap=True)
    if not options.no_browser:
        webbrowser.open(address)
    with running, contextlib.suppress(KeyboardInterrupt):
        running.serve_forever()
    return 0
