"""PyTorch's guard of the device, in machine code: no answer of it enters Python. Floor 6; imports PyTorch.

A guard tells PyTorch the device and its stream: four times for a node of a backward pass, also in functions that may
not throw. The guard that PyTorch makes for devices of Python's asks Python each time, a microsecond each, and whatever
Python raises there ends the process. The answers never change, so two functions in LLVM's own language give them all;
the rest of a guard's functions stay those of PyTorch's. Without LLVM, or where C++ has another form of calls
(Windows), its guard stays (`hooks`).
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import torch

_PLACE: int = torch._C._autograd.DeviceType.PrivateUse1.value
# A device is its kind and its number, 0, a byte each; a stream is a device and a number of eight bytes.
_TEXT = f"""
define i16 @wt_device() {{
  ret i16 {_PLACE}
}}

define {{ i64, i64 }} @wt_stream() {{
  ret {{ i64, i64 }} {{ i64 {_PLACE}, i64 0 }}
}}
"""
_DEVICE = ("type", "exchangeDevice", "getDevice", "setDevice", "uncheckedSetDevice")
_STREAM = ("getStream", "getNewStream", "exchangeStream")
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
# A table of a class's functions begins with two words that are none.
_HEAD = 2
_WORD = ctypes.sizeof(ctypes.c_void_p)
# Guards live as long as the process.
_kept: list[object] = []


def _functions(header: str) -> list[str]:
    """Return the virtual functions of PyTorch's interface, in the order of its table."""
    begin = header.index("struct C10_API DeviceGuardImplInterface")
    return re.findall(
        r"^  virtual [^(]*?(\w+)\(", header[begin : header.index("virtual ~", begin)], re.MULTILINE
    )


def install() -> bool:
    """Put the guard in the place of PyTorch's; return whether it is there."""
    if sys.platform == "win32" or _WORD != 8:
        return False
    try:
        from webtorch.runtime.backends.cpu import jit
    except ImportError:
        # Without NumPy.
        return False
    root = Path(torch.__file__).parent
    try:
        header = (root / "include/c10/core/impl/DeviceGuardImplInterface.h").read_text("utf-8")
        suffix = "dylib" if sys.platform == "darwin" else "so"
        library = ctypes.CDLL(str(root / "lib" / f"libc10.{suffix}"))
        registered = (ctypes.c_void_p * (_PLACE + 1)).in_dll(library, _REGISTRY)
        register = library[_REGISTER]
        names = _functions(header)
        places = [[names.index(n) for n in group] for group in (_DEVICE, _STREAM)]
    except (OSError, ValueError, AttributeError):
        # A PyTorch that is built or written another way.
        return False
    theirs = registered[_PLACE]
    if theirs is None or not jit.available():
        return False
    begin = ctypes.c_void_p.from_address(theirs).value
    assert begin is not None
    kind = ctypes.c_void_p * (_HEAD + len(names))
    table = kind.from_buffer_copy(kind.from_address(begin - _HEAD * _WORD))
    for address, group in zip(jit.assemble(_TEXT, ("wt_device", "wt_stream")), places, strict=True):
        for n in group:
            table[_HEAD + n] = address
    guard = ctypes.c_void_p(ctypes.addressof(table) + _HEAD * _WORD)
    _kept.extend((table, guard))
    register.argtypes, register.restype = (ctypes.c_int8, ctypes.c_void_p), None
    register(_PLACE, ctypes.addressof(guard))
    return True
