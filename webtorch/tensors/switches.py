"""PyTorch's switches of a whole process. Floor 4.

What a switch turns on in PyTorch is always so here, or never: its state is kept and can be asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from webtorch.ir.dtype import float16, float32, float64
from webtorch.ir.lines import user_depth
from webtorch.ops.purity import Said, looks
from webtorch.runtime.backend import compiling
from webtorch.tensors.promotion import set_default_dtype

# What the debug mode is: "default", "warn" or "error".
_MODES = ("default", "warn", "error")


# Of torch.utils.deterministic: whether new memory is filled while only deterministic algorithms are to be used.
fill_uninitialized_memory = True


class _Switches:
    deterministic = 0
    warn_only = False


# What else says whether only deterministic algorithms are to be used, as a debug mode's number: PyTorch, of which this
# may be a device.
levels: list[Callable[[], int]] = []


def fills_memory() -> bool:
    """Whether new memory has NaN in it, or the greatest number of its type."""
    return _Switches.deterministic > 0 and fill_uninitialized_memory


def alert(name: str) -> None:
    """Raise, or warn, as PyTorch does of what it has no deterministic algorithm for, while the switch is on."""
    # What is known of calls does not hold when the switch is turned.
    looks()
    level = max([_Switches.deterministic, *(level() for level in levels)])
    if not level:
        return
    text = f"{name} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms("
    if level == 2:
        raise RuntimeError(
            f"{text}True)'. You can turn off determinism just for this operation, or you can use the 'warn_only=True' "
            "option, if that's acceptable for your application. With one seed on one device, results of webtorch are "
            "the same in every run."
        )
    warnings.warn(
        f"{text}True, warn_only=True)'. With one seed on one device, results of webtorch are the same in every run.",
        stacklevel=user_depth(),
    )


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Keep the switch: with one seed on one device, results are the same in every run, to the last bit.

    On the CPU NumPy computes what comes seldom, in another order than machine code; while the switch is on, all is
    machine code from its first run on, which takes time to compile.
    """
    for where, value in (("'mode' (position 1)", mode), ("'warn_only'", warn_only)):
        if type(value) is not bool:
            raise TypeError(
                f"_set_deterministic_algorithms(): argument {where} must be bool, not {type(value).__name__}"
            )
    _Switches.deterministic = (1 if warn_only else 2) if mode else 0
    compiling.at_once = mode
    _Switches.warn_only = warn_only


def are_deterministic_algorithms_enabled() -> bool:
    """Return whether the switch is on."""
    return _Switches.deterministic > 0


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return whether the switch is on for warnings only."""
    return _Switches.warn_only


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Set the switch of `use_deterministic_algorithms`: 0 or "default", 1 or "warn", 2 or "error"."""
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if debug_mode not in (*_MODES, 0, 1, 2):
        raise RuntimeError(
            f"invalid value of debug_mode, expected `default`, `warn` or `error` (0, 1, 2), but got {debug_mode}"
        )
    number = _MODES.index(debug_mode) if isinstance(debug_mode, str) else int(debug_mode)
    use_deterministic_algorithms(number > 0, warn_only=number == 1)


def get_deterministic_debug_mode() -> int:
    """Return 0, 1 or 2: see `set_deterministic_debug_mode`."""
    return _Switches.deterministic


def set_warn_always(b: bool, /) -> None:
    """Show each time, or once in a process, what PyTorch warns of once. Python's filters hold as well."""
    Said.always = bool(b)


def is_warn_always_enabled() -> bool:
    """Return whether the switch is on."""
    return Said.always


def set_num_interop_threads(num: int) -> None:
    """Check the number. Operations do not run beside each other, whatever it is."""
    if num < 1:
        raise RuntimeError(f"Expected num_interop_threads > 0, but got {num}")


def get_num_interop_threads() -> int:
    """Return 1: operations do not run beside each other."""
    return 1


def set_flush_denormal(mode: bool) -> bool:
    """Return False: denormal numbers are treated as the device does."""
    return False


def set_default_tensor_type(t: Any, /) -> None:
    """Set the default dtype by the name or the class of an old tensor type: "torch.DoubleTensor".

    Raises TypeError for other types than floats.
    """
    warnings.warn(
        "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use "
        "torch.set_default_dtype() and torch.set_default_device() as alternatives.",
        stacklevel=user_depth(),
    )
    name = t if isinstance(t, str) else t.__name__
    if "cuda" in name:
        raise TypeError(f"type {name} not available. Torch not compiled with CUDA enabled.")
    kinds = {"Float": float32, "Double": float64, "Half": float16}
    for kind, dtype in kinds.items():
        if name.rpartition(".")[2] == f"{kind}Tensor":
            return set_default_dtype(dtype)
    raise TypeError(f"invalid type {name}: webtorch.set_default_dtype takes a floating dtype")
