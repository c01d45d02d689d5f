"""Where processes meet: env://, tcp://host:port and file://path become a store of PyTorch's. Floor 5."""

from __future__ import annotations

import datetime
import os
from typing import Any
from urllib.parse import parse_qs, urlsplit

from webtorch.distributed.engine import engine

# What processes meet by, what that raises, and how much it says: PyTorch's, loaded for who asks.
FOREIGN = frozenset((
    "DebugLevel", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "FileStore", "HashStore",
    "PrefixStore", "QueueEmptyError", "Store", "TCPStore", "get_debug_level", "set_debug_level",
    "set_debug_level_from_env",
))  # fmt: skip


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def _from_environment(name: str, given: int, scheme: str) -> int:
    if given >= 0:
        return given
    return int(_variable(name, scheme))


def _variable(name: str, scheme: str = "env://") -> str:
    found = os.environ.get(name)
    if found is None:
        raise ValueError(
            f"Error initializing torch.distributed using {scheme} rendezvous: environment variable {name} "
            "expected, but not set"
        )
    return found


def meet(
    init_method: str | None, rank: int, world_size: int, timeout: datetime.timedelta
) -> tuple[Any, int, int]:
    """Return the store, the rank and the number of processes. Raises ValueError where they are not told."""
    c10d = engine().c10d
    url = urlsplit(init_method or "env://")
    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
    rank, world_size = int(query.get("rank", rank)), int(query.get("world_size", world_size))
    if url.scheme == "env":
        rank = _from_environment("RANK", rank, "env://")
        world_size = _from_environment("WORLD_SIZE", world_size, "env://")
        host, port = _variable("MASTER_ADDR"), int(_variable("MASTER_PORT"))
        attempts = engine().attempts
        if attempts.shares_store():
            store = c10d.TCPStore(host, port, world_size, False, timeout)
            word = attempts.common_word(store, rank, world_size, timeout)
            return c10d.PrefixStore(word, store), rank, world_size
        return c10d.TCPStore(host, port, world_size, rank == 0, timeout), rank, world_size
    if url.scheme not in ("tcp", "file"):
        raise RuntimeError(f"No rendezvous handler for {url.scheme}://")
    for name, value in (("rank", rank), ("world size", world_size)):
        if value < 0:
            raise ValueError(
                f"Error initializing torch.distributed using {url.scheme}:// rendezvous: {name} parameter missing"
            )
    if url.scheme == "file":
        if not url.path:
            raise ValueError(
                "Error initializing torch.distributed using file:// rendezvous: path missing"
            )
        return c10d.FileStore(url.path, world_size), rank, world_size
    if url.port is None:
        raise ValueError(
            "Error initializing torch.distributed using tcp:// rendezvous: port number missing"
        )
    store = c10d.TCPStore(url.hostname, url.port, world_size, rank == 0, timeout)
    return store, rank, world_size
