"""What the site's reference shows: the names that users import, with the signatures and docstrings that they have.

An extension of griffe, with which mkdocstrings reads Python (mkdocs.yml names it). Many functions are made when
the package is imported, so that sources say little of them: griffe is shown the names themselves.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import types
from typing import Any

import griffe

# What users import; how the engine is made is told in docs/ARCHITECTURE.md.
_LISTED = """
    webtorch webtorch.accelerator webtorch.amp webtorch.autograd webtorch.autograd.forward_ad
    webtorch.autograd.functional webtorch.autograd.graph webtorch.compiler webtorch.data webtorch.debug
    webtorch.distributed webtorch.distributions webtorch.distributions.constraints
    webtorch.distributions.transforms webtorch.errors webtorch.fft webtorch.func webtorch.fx webtorch.io
    webtorch.linalg webtorch.llm webtorch.masked webtorch.nn webtorch.nn.functional webtorch.nn.init
    webtorch.nn.quantized webtorch.nn.utils webtorch.nn.utils.parametrizations
    webtorch.nn.utils.parametrize webtorch.nn.utils.rnn webtorch.onnx webtorch.optim
    webtorch.optim.lr_scheduler webtorch.optim.swa_utils webtorch.overrides webtorch.profiler
    webtorch.pytorch webtorch.quasirandom webtorch.random webtorch.show webtorch.signal.windows
    webtorch.sparse webtorch.special webtorch.testing webtorch.utils.checkpoint webtorch.utils.data
    webtorch.utils.flop_counter webtorch.utils.tensorboard webtorch.web webtorch.webgpu
"""
MODULES = _LISTED.split()
# Classes with a page of their own.
CLASSES = ("webtorch.Tensor",)


def public_names(module: types.ModuleType) -> list[str]:
    """Return the names that a module offers: its `__all__`, or what it defines and gathers from its own rooms."""
    listed = getattr(module, "__all__", None)
    return (
        sorted(listed)
        if listed is not None
        else [
            name
            for name in dir(module)
            if not name.startswith("_")
            and not isinstance(value := getattr(module, name), types.ModuleType)
            and (
                (home := str(getattr(value, "__module__", ""))) == "webtorch"
                or home.startswith(module.__name__)
            )
        ]
    )


def first_words(module: types.ModuleType) -> str:
    """Return a module's docstring without its floor and its list of files: they are for those who build the house."""
    text = re.sub(r"\s*\b(?:Floors?|May import)\b[^.;]*[.;]", "", module.__doc__ or "")
    return re.sub(r"^(?:\w+ {2,}\S.*\n?)+", "", text, flags=re.M).strip()


def as_markdown(text: str) -> str:
    """Return a docstring, which is plain text with code in backquotes, as Markdown that shows it as it is."""
    parts = re.split(r"(`[^`]*`|^(?:    | *>>>).*$)", text, flags=re.M)
    parts[::2] = [re.sub(r"([\[\]*_])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return re.sub(r"^( *)(?=>>>)", r"\1    ", "".join(parts), flags=re.M)


def as_written(value: str) -> str:
    """Return a value's repr as a program has it: members of enums and modules by their names."""
    value = re.sub(r"<module '([\w.]+)'[^>]*>", r"\1", value)
    return re.sub(r"<([\w.]+): [^<>]*>", r"\1", value).replace("<factory>", "...")


class _Shown(griffe.ObjectNode):
    """A public name. Wherever its value was made, it is shown where it is found."""

    @property
    def alias_target_path(self) -> str | None:
        """Return None: nothing is shown as a name of something else."""
        return None

    @property
    def children(self) -> list[griffe.ObjectNode]:
        """Return what a class has of its own, but the classes that it only mentions; `__init__` has its arguments."""
        return [
            _Shown(child.obj, child.name, parent=self)
            for child in super().children
            if child.name == "__init__" or not (child.name.startswith("_") or child.is_class)
        ]


class PublicNames(griffe.Extension):
    """Puts what the public modules have at run time in the place of what was read from their files."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Keep Markdown from reading more into a docstring than is there."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Say nothing that is told of each value of its type: the text of a dtype, the fields of a tuple."""
        value = getattr(node, "obj", None)
        if value is None:
            return
        if attr.docstring and inspect.getdoc(value) == inspect.getdoc(type(value)):
            attr.docstring = None
        if isinstance(value, enum.Enum):
            attr.value = repr(value.value)
        elif inspect.ismemberdescriptor(value) or type(value).__name__ == "_tuplegetter":
            attr.value = attr.docstring = None

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Write defaults as a program does."""
        for parameter in func.parameters:
            if isinstance(parameter.default, str):
                parameter.default = as_written(parameter.default)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Fill the public modules."""
        for path in MODULES:
            shown = pkg if path == pkg.path else pkg[path.removeprefix(f"{pkg.path}.")]
            module = importlib.import_module(path)
            for name in [
                n for n, member in shown.members.items() if not isinstance(member, griffe.Module)
            ]:
                shown.del_member(name)
            if shown.docstring:
                shown.docstring.value = as_markdown(first_words(module))
            inspector = griffe.Inspector(path, None, loader.extensions)
            inspector.current = shown
            shown.exports = public_names(module)  # what a file imports is hidden else
            for name in shown.exports:
                value = getattr(module, name)
                if not isinstance(value, types.ModuleType):
                    inspector.inspect(_Shown(value, name))
