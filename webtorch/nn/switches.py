"""How conversions of modules treat their parameters: `torch.__future__`."""

from __future__ import annotations

__all__ = [
    "get_overwrite_module_params_on_conversion",
    "get_swap_module_params_on_conversion",
    "set_overwrite_module_params_on_conversion",
    "set_swap_module_params_on_conversion",
]

_overwrite = False
_swap = False


def set_overwrite_module_params_on_conversion(value: bool) -> None:
    """Let `module.to`, `float`, `cuda` and the like put new parameters in the place of the old ones."""
    global _overwrite
    _overwrite = value


def get_overwrite_module_params_on_conversion() -> bool:
    """Return whether conversions put new parameters in the place of the old ones."""
    return _overwrite


def overwrites() -> bool:
    """Return whether a conversion makes new parameters."""
    return _overwrite and not _swap


def set_swap_module_params_on_conversion(value: bool) -> None:
    """Let conversions swap each parameter with the new one, so that it stays, whatever its class becomes."""
    global _swap
    _swap = value


def get_swap_module_params_on_conversion() -> bool:
    """Return whether parameters stay; this goes before the other switch."""
    return _swap
