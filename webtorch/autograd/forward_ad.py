"""`webtorch.autograd.forward_ad`: dual tensors, a value with its tangent. May import floor 4."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from webtorch.dispatch.call import active
from webtorch.tensors.above import ask
from webtorch.tensors.forward import Level, dual, primal_of, tangent_of
from webtorch.tensors.modes import mode, set_forward_enabled
from webtorch.tensors.tensor import Tensor

__all__ = [
    "UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual",
    "unpack_dual",
]  # fmt: skip

_set_fwd_grad_enabled = set_forward_enabled
_levels: list[Level] = []
# The number of the level that is open; less than 0 where none is.
_current_level = -1


class UnpackedDualTensor(NamedTuple):
    """A value and its tangent, which is None where it has none."""

    primal: Tensor
    tangent: Tensor | None


def _is_fwd_grad_enabled() -> bool:
    """Whether forward mode follows what is computed."""
    return mode.forward_enabled


def enter_dual_level() -> int:
    """Open a level of forward-mode differentiation and return its number, 0. They do not nest."""
    global _current_level
    if _levels:
        raise RuntimeError(
            "Nested forward mode AD is not supported at the moment: use torch.func.jvp, which nests"
        )
    level = Level(open_to_users=True)
    level.__enter__()
    _levels.append(level)
    _current_level = 0
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the level, with which all its tangents go."""
    global _current_level
    if not _levels and level is None:
        raise RuntimeError("Dual level must be a positive number.")
    if not _levels or level not in (None, len(_levels) - 1):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is "
            "not supported."
        )
    _levels.pop().__exit__(None, None, None)
    _current_level = -1


class dual_level(contextlib.ContextDecorator):
    """A block in which tensors may have tangents: make them with make_dual, read them with unpack_dual."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *_: object) -> None:
        exit_dual_level()


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Return a view of `tensor` with a tangent of the same shape and dtype."""
    if not _levels:
        raise RuntimeError(
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to "
            "enter_dual_level() first."
        )
    if active.others:
        # Who sees operators sees this one.
        tensor = ask("alias")(tensor)
    return dual(tensor, tangent, _levels[-1])


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the value of a tensor, and its tangent or None."""
    if not _levels:
        return UnpackedDualTensor(tensor, None)
    current = _levels[-1]
    tangent = tangent_of(tensor, current)
    if tangent is None:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(primal_of(tensor, current), tangent)
