"""`webtorch serve-llm`: a language model behind OpenAI's interface."""

from __future__ import annotations

import argparse
import contextlib
import os

from rich.console import Console

from webtorch.cli.chat import in_words, load_told
from webtorch.errors import WebtorchError


def main(options: argparse.Namespace, console: Console) -> int:
    """Serve until it is interrupted. Returns the exit status."""
    try:
        import uvicorn

        from webtorch.llm.server import Served, application
    except ImportError as error:
        raise WebtorchError(
            f"serve-llm needs {error.name}: pip install starlette uvicorn"
        ) from None
    with in_words():
        model = load_told(options, console, texts=options.texts)
    key = options.api_key or os.environ.get("WEBTORCH_API_KEY") or None
    local = options.host in ("127.0.0.1", "localhost", "::1")
    if not local and key is None:
        console.print(
            "anybody who reaches this machine may ask: --api-key asks for a key", style="yellow"
        )
    hosts = ("127.0.0.1", "localhost", "[::1]") if local else ("*",)
    # A folder may have dots in its name.
    path = options.model.resolve()
    name = path.name if path.is_dir() else path.stem
    served = application(model, name, key, hosts)
    console.print(
        f"{name} is at http://{options.host}:{options.port}/v1 (Ctrl+C ends)",
        highlight=False,
    )
    config = uvicorn.Config(
        served, host=options.host, port=options.port, log_level="warning", timeout_graceful_shutdown=2,
        lifespan="off",
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        Served(model, config).run()
    return 0
