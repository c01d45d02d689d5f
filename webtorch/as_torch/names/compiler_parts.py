"""Names of PyTorch's compiler that packages ask whether it is at work: it never is."""

from __future__ import annotations

import contextlib
from typing import Any


def is_compile_supported(device_type: str) -> bool:
    """Return False: functions are not rewritten by PyTorch's compiler."""
    return False


def is_fake(x: object) -> bool:
    """Return False: there are no fake tensors; `device="meta"` has shapes without data."""
    return False


def active_fake_mode() -> None:
    """Return None: there are no fake tensors."""


def detect_fake_mode(inputs: object = None) -> None:
    """Return None: there are no fake tensors."""


class TracingContext:
    """What PyTorch's compiler knows while it traces."""

    @staticmethod
    def try_get() -> None:
        """Return None: it never traces."""


def get_proxy_mode() -> None:
    """Return None: nothing is traced by proxies."""


def make_fx(*args: object, **kwargs: object) -> Any:
    """Raise."""
    raise RuntimeError(
        "make_fx: it belongs to PyTorch's own compiler; torch.export.export gives the operators of a module as a graph"
    )


class FakeTensor:
    """A class that no object is an instance of."""


class FakeTensorMode:
    """A class to check for; making one raises."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raise."""
        raise RuntimeError(
            'torch._subclasses.FakeTensorMode: it belongs to PyTorch\'s own compiler; use device="meta" for shapes '
            "without data"
        )


# A block in which no tensor is fake: none ever is.
unset_fake_temporarily = contextlib.nullcontext


class TransformGetItemToIndex(contextlib.nullcontext[None]):
    """A block in which x[i] takes tensors as indices, as it always does here."""
