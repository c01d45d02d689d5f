"""`record`, which tells torchrun why a process has failed. Floor 5."""

from __future__ import annotations

import functools
import json
import os
import time
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["record"]


def record(fn: Callable[P, R]) -> Callable[P, R]:
    """Return a function that writes its error where torchrun reads it (TORCHELASTIC_ERROR_FILE)."""

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            path = os.environ.get("TORCHELASTIC_ERROR_FILE")
            if path:
                text = traceback.format_exc()
                extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
                message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({"message": message}, file)
            raise

    return wrapper
