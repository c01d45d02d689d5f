"""What is raised where a process fails to save or load its part. Floor 6."""

from __future__ import annotations

import traceback
from typing import Any

WRAPPED_EXCEPTION = tuple[BaseException, traceback.StackSummary]


def _wrap_exception(exc: BaseException) -> WRAPPED_EXCEPTION:
    """Return an error as it is sent: with the lines that led to it."""
    lines = traceback.extract_tb(exc.__traceback__)
    for line in lines:
        if hasattr(line, "_code"):
            # Python 3.13 keeps what does not pickle.
            object.__setattr__(line, "_code", None)
    return exc, lines


def _is_wrapped_exception(obj: object) -> bool:
    return (
        isinstance(obj, tuple)
        and len(obj) == 2
        and isinstance(obj[0], BaseException)
        and isinstance(obj[1], traceback.StackSummary)
    )


class CheckpointException(BaseException):
    """That processes have failed to save or to load: which, and why. All get it."""

    def __init__(self, msg: str, failures: dict[int, Any]) -> None:
        super().__init__(msg, failures)
        self._failures = failures

    @property
    def failures(self) -> dict[int, Any]:
        """The errors and their lines, by rank."""
        return self._failures

    def __str__(self) -> str:
        text = f"CheckpointException ranks:{self._failures.keys()}\n"
        for rank, (error, lines) in self._failures.items():
            text += f"Traceback (most recent call last): (RANK {rank})\n"
            if lines is not None:
                text += "".join(traceback.format_list(lines))
            text += "".join(traceback.format_exception_only(type(error), value=error))
        return text
