"""`webtorch serve`: show an exported page in the browser."""

from __future__ import annotations

import argparse
import webbrowser

from rich.console import Console

from webtorch.web.server import server


def main(options: argparse.Namespace, console: Console) -> int:
    """Serve a folder until it is interrupted. Returns the exit status."""
    try:
        running = server(options.folder, options.port)
    except FileNotFoundError:
        raise
    except OSError:
        # Another program has the port.
        running = server(options.folder)
    address = f"http://127.0.0.1:{running.server_address[1]}/"
    console.print(f"{options.folder} is at {address} (Ctrl+C ends)", highlight=False)
    if not options.no_browser:
        webbrowser.open(address)
    with running:
        running.serve_forever()
    return 0
