"""Names of PyTorch's compiler that packages ask whether it is at work: it never is."""

from __future__ import annotations

import contextlib
from typing import Any

from webtorch.tensors.override import NO_DISPATCH


def is_compile_supported(device_type: str) -> bool:
    """Return False: functions are not rewritten by PyTorch's compiler."""
    return False


def is_fake(x: Any) -> bool:
    """Return False: there are no fake tensors; `device="meta"` has shapes without data."""
    return False


def get_proxy_mode() -> None:
    """Return None: nothing is traced by proxies."""


def is_traceable_wrapper_subclass(t: Any) -> bool:
    """Return False: a tensor is not a wrapper of others."""
    return False


class TorchDispatchMode:
    """A class to derive from; entering one raises NotImplementedError."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace a kernel: a mode defines this."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        raise NotImplementedError(NO_DISPATCH.format(type(self).__name__))

    def __exit__(self, *_: object) -> None:
        """Do nothing: it was not entered."""


def return_and_correct_aliasing(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Return `out`: what a `__torch_dispatch__` ends with, and none is called."""
    return out


# A block in which no `__torch_dispatch__` is asked, as none ever is.
no_dispatch = contextlib.nullcontext


class FakeTensor:
    """A class that no object is an instance of."""


class FakeTensorMode:
    """A class to check for; making one raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise."""
        raise RuntimeError(
            'torch._subclasses.FakeTensorMode: webtorch has no fake tensors; use device="meta" for shapes without data'
        )


class TransformGetItemToIndex(contextlib.nullcontext[None]):
    """A block in which x[i] takes tensors as indices, as it always does here."""
