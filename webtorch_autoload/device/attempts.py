"""torchrun keeps one store for all attempts: what processes of this attempt say in it is told from what is left there.

PyTorch makes its groups in that store as it is, so that processes which were started again may read the addresses of
those before them and wait for these.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

# Seconds between looks.
_LOOK = 0.01


class Store(Protocol):
    """What is asked of PyTorch's stores."""

    def set(self, key: str, value: str) -> object:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return a value, once there is one."""

    def check(self, keys: list[str]) -> bool:
        """Whether there are all of these."""


def shares_store() -> bool:
    """Whether the store that processes meet in is the launcher's, with what was said in attempts before."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def common_word(store: Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """Return a word that the processes of this attempt, and no others, have in common. All of them call it.

    Raises RuntimeError where others do not come for so long.
    """
    mine, end = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    if rank == 0:
        store.set("webtorch/attempt", mine)
        # Who answers a new word runs now.
        names = [f"webtorch/{mine}/{other}" for other in range(1, world_size)]
        _until(lambda: not names or store.check(names), end)
        store.set(f"webtorch/{mine}", " ".join([store.get(name).decode() for name in names]))
        return mine
    answered = ""

    def look() -> bool:
        """Answer the word that there is; say whether its process has read the answer."""
        nonlocal answered
        if not store.check(["webtorch/attempt"]):
            return False
        word = store.get("webtorch/attempt").decode()
        if word != answered:
            store.set(f"webtorch/{word}/{rank}", mine)
            answered = word
        # That of an attempt before has read another answer, and is replaced.
        done = f"webtorch/{word}"
        return store.check([done]) and mine in store.get(done).decode().split()

    _until(look, end)
    return answered


def _until(look: Callable[[], bool], end: float) -> None:
    while not look():
        if time.monotonic() > end:
            raise RuntimeError(
                "init_process_group: not all processes of this attempt have come within the timeout; look at what "
                "the others print, or raise timeout="
            )
        time.sleep(_LOOK)
