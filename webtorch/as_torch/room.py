"""A module of PyTorch's name whose contents are webtorch's. Floor 6."""

from __future__ import annotations

import contextlib
import difflib
import dis
import functools
import importlib
import importlib.util
import os
import sys
from types import CodeType, FrameType, ModuleType
from typing import Any

from webtorch.as_torch.absent import ABSENT, is_absent, stand_in
from webtorch.as_torch.places import CORE, WORDS
from webtorch.tensors.absent import why_missing

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# A module's own dictionary, which `Room.__dict__` fills first.
_own = vars(ModuleType)["__dict__"].__get__


class Room(ModuleType):
    """A module such as `torch.nn.functional`; a name is looked up in its sources, in order.

    A source is the name of a module of webtorch. What is set on the room stays in the room, but for a
    room with one source only: there it is set in the source too.
    """

    def __init__(self, name: str, sources: tuple[str, ...]) -> None:
        super().__init__(name, f"{name}, as webtorch has it: {', '.join(sources)}.")
        _own(self)["__sources__"] = sources
        _own(self)["__path__"] = []

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        """What the module has, for programs that go through it all (vars(torch.distributions))."""
        for name in dir(self):
            if name not in _own(self):
                with contextlib.suppress(AttributeError, ImportError):
                    getattr(self, name)
        found: dict[str, object] = _own(self)
        return found

    def _modules(self) -> list[ModuleType]:
        return [importlib.import_module(source) for source in _own(self)["__sources__"]]

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # What `import *` takes: what the sources list, where they do.
            listed = [
                n
                for m in self._modules()
                for n in getattr(m, "__all__", None) or dir(m)
                if self._shows(m, n)
            ]
            return sorted({n for n in listed if not n.startswith("_") and n not in _OURS})
        if name == "__file__" and _own(self)["__sources__"]:
            # Programs look for what lies beside it: its namesake here, else what comes first.
            named = [m for m in self._modules() if m.__name__ == f"web{self.__name__}"]
            return (named or self._modules())[0].__file__
        if (
            name.startswith("__")
            and name.endswith("__")
            and name not in ("__version__", "__config__", "__future__")
        ):
            raise AttributeError(name)
        if name == "torch":
            # PyTorch's modules import it, and programs write torch.torch by mistake.
            return importlib.import_module("torch")
        for module in self._modules():
            try:
                found = getattr(module, name)
            except AttributeError:
                continue
            if isinstance(found, ModuleType):
                # The room of that name, so that `import torch.nn` and `torch.nn` are one thing.
                full = f"{self.__name__}.{name}"
                if importlib.util.find_spec(full) is None:
                    # One that stands elsewhere: torch.nn.functional.grad is torch.nn.grad.
                    full = found.__name__.replace("webtorch", "torch", 1)
                    if full in ("torch", found.__name__) or importlib.util.find_spec(full) is None:
                        continue
                found = importlib.import_module(full)
            if _is_constant(self.__name__, name) or type(found) is int:
                return found
            _own(self)[name] = found
            return found
        if is_absent(self.__name__, name):
            _own(self)[name] = stand_in(self.__name__, name)
            return _own(self)[name]
        full = f"{self.__name__}.{name}"
        if importlib.util.find_spec(full) is not None:
            return importlib.import_module(full)
        frame = sys._getframe(1)
        message = missing(self, name, frame)
        raise (
            ImportError(message, name=name)
            if _imports(frame)
            else AttributeError(message, name=name, obj=None)
        )

    def __setattr__(self, name: str, value: object) -> None:
        if (
            isinstance(value, Room)
            and value.__name__ == f"{self.__name__}.{name}"
            and any(callable(getattr(m, name, None)) for m in self._modules())
        ):
            # The import system hands over a submodule: torch.nn.parallel.replicate stays the function.
            return
        super().__setattr__(name, value)
        sources = _own(self).get("__sources__", ())
        # A switch (torch.backends.cudnn.benchmark): its functions read it where they are. What the import
        # system sets (__spec__, the room of a submodule) is the room's own.
        if len(sources) != 1 or name.startswith("__") or isinstance(value, ModuleType):
            return
        if name in vars(self._modules()[0]):
            setattr(self._modules()[0], name, value)

    def _shows(self, module: ModuleType, name: str) -> bool:
        """Whether a name of a source is one of the room's: its modules are if they have rooms."""
        if not isinstance(vars(module).get(name), ModuleType):
            return True
        return importlib.util.find_spec(f"{self.__name__}.{name}") is not None

    def __dir__(self) -> list[str]:
        names = set(_own(self))
        for module in self._modules():
            names |= {n for n in dir(module) if not n.startswith("_") and self._shows(module, n)}
        if self.__name__ in ABSENT:
            names |= set(ABSENT[self.__name__][1].split())
        return sorted(n for n in names if n != "annotations")


# Names that modules of ours import for themselves.
_OURS = frozenset(("webtorch", "annotations"))


def _is_constant(room: str, name: str) -> bool:
    # Values that functions of the module change: never remembered, as whole numbers are not.
    return room.startswith("torch.backends")


@functools.lru_cache(256)
def _opcode(code: CodeType, at: int) -> str:
    return dis.opname[code.co_code[at]]


def _imports(frame: FrameType) -> bool:
    """Whether a frame is at `from torch import name`, which is to raise ImportError."""
    return frame.f_lasti >= 0 and _opcode(frame.f_code, frame.f_lasti) == "IMPORT_FROM"


def caller(frame: FrameType | None) -> str:
    """Return "file:line" of the first code that is neither webtorch's nor the import system's."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, "<frozen importlib")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def missing(room: ModuleType, name: str, frame: FrameType | None) -> str:
    """Return what to say of a name that a room does not have."""
    where = room.__name__.partition(".")[2]
    # Of `torch` itself most is here.
    if where and room.__name__ in ABSENT:
        words: str | None = ABSENT[room.__name__][0]
    else:
        core = room.__name__.startswith("torch._C")
        words = CORE if core else WORDS.get(room.__name__, {}).get(name)
    text = f"{room.__name__}.{name}, asked for in {caller(frame)}: "
    if why := words or why_missing(where, name):
        return f"{text}{why}."
    text += "webtorch has no such name"
    near = difflib.get_close_matches(name, dir(room), 1, 0.7)
    return f"{text}. The nearest that exists is {room.__name__}.{near[0]}." if near else f"{text}."
