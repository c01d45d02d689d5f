"""Parametrizations: a parameter or buffer computed from others each time it is read. May import nn's base files."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.nn.container import ModuleDict, ModuleList
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.nn.swapping import swap_tensors
from webtorch.nn.switches import get_swap_module_params_on_conversion
from webtorch.tensors.override import dispatches
from webtorch.tensors.tensor import Tensor

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]


class _Cache:
    """Values of parametrized tensors while `cached()` is entered."""

    def __init__(self) -> None:
        self.depth = 0
        self.values: dict[tuple[int, str], Tensor] = {}


_cache = _Cache()


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized tensor is computed at its first use only."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values.clear()


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _like(value: Tensor, original: Tensor) -> Tensor:
    """Return `value` as a parameter if `original` is one."""
    if isinstance(original, Parameter) and not isinstance(value, Parameter):
        return Parameter(value, original.requires_grad)
    return value


def _set(original: Tensor, value: Tensor) -> None:
    """Give a tensor another value; what wraps tensors becomes the other one, as optimizers hold the object."""
    kind = type(original)
    wraps = hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
    if get_swap_module_params_on_conversion() or (wraps and dispatches(kind)):
        swap_tensors(original, _like(value, original))
    else:
        original.data = value


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, applied in order, and what they compute it from.

    That is `original`, or `original0`, `original1`, ... where the first one takes several tensors.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        """Take the value of now through the `right_inverse` of those that have one."""
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = tuple(original.shape), original.dtype
        with webtorch.no_grad():
            new = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with contextlib.suppress(NotImplementedError):
                        new = module.right_inverse(new)
        if not isinstance(new, (Tensor, Sequence)):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(new).__name__}"
            )
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if isinstance(new, Tensor):
            if new.dtype != original.dtype:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
                    f"original.dtype: {original.dtype}\nright_inverse(original).dtype: {new.dtype}"
                )
            if new.device != original.device:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the device.\n"
                    f"original.device: {original.device}\n"
                    f"right_inverse(original).device: {new.device}"
                )
            if new is not original:
                # The parameter object stays: optimizers hold it.
                _set(original, new.detach())
            _register(self, "original", original)
        else:
            for position, one in enumerate(new):
                if not isinstance(one, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, "
                        f"tuple...). Got element {position} of the sequence with type "
                        f"{type(one).__name__}."
                    )
                _register(self, f"original{position}", _like(one.detach().clone(), original))
        if not unsafe:
            value = self()
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"A parametrization must return a tensor. Got {type(value).__name__}."
                )
            if value.dtype != dtype:
                raise ValueError(
                    "Registering a parametrization may not change the dtype of the tensor, unless "
                    f"`unsafe` flag is enabled.\nunparametrized dtype: {dtype}\n"
                    f"parametrized dtype: {value.dtype}"
                )
            if tuple(value.shape) != shape:
                raise ValueError(
                    "Registering a parametrization may not change the shape of the tensor, unless "
                    f"`unsafe` flag is enabled.\nunparametrized shape: {webtorch.Size(shape)}\n"
                    f"parametrized shape: {value.shape}"
                )

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the parametrized tensor is `value`, as far as they can."""
        with webtorch.no_grad():
            new: object = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                new = module.right_inverse(new)
            if self.is_tensor:
                if not isinstance(new, Tensor):
                    raise ValueError(
                        f"`right_inverse` should return a tensor. Got {type(new).__name__}"
                    )
                if new.dtype != self.original.dtype:
                    raise ValueError(
                        f"The tensor returned by `right_inverse` has dtype {new.dtype} while "
                        f"`original` has dtype {self.original.dtype}"
                    )
                _set(self.original, new.detach().clone())
                return
            if not isinstance(new, Sequence):
                raise ValueError(
                    f"'right_inverse' must return a sequence of tensors. Got {type(new).__name__}."
                )
            if len(new) != self.ntensors:
                raise ValueError(
                    "'right_inverse' must return a sequence of tensors of length "
                    f"{self.ntensors}. Got a sequence of length {len(new)}."
                )
            for position, one in enumerate(new):
                original = getattr(self, f"original{position}")
                if one.dtype != original.dtype:
                    raise ValueError(
                        f"Tensor {position} returned by `right_inverse` has dtype {one.dtype} "
                        f"while `original{position}` has dtype {original.dtype}"
                    )
                _set(original, one.detach().clone())

    def forward(self) -> Tensor:
        """Return the parametrized tensor."""
        first, *others = list(self)
        if self.is_tensor:
            x = first(self.original)
        else:
            x = first(*(getattr(self, f"original{i}") for i in range(self.ntensors)))
        for module in others:
            x = module(x)
        return x


def _parametrized_deepcopy(self: object, memo: dict[int, object]) -> object:
    """Copy a parametrized module, whose class pickle does not know."""
    known = memo.get(id(self))
    if known is not None:
        return known
    out = self.__new__(type(self))
    memo[id(self)] = out
    # Every copy has a class of its own: a property that is removed from one stays on the other.
    out.__dict__ = copy.deepcopy(self.__dict__, memo)
    out.__class__ = type(type(self).__name__, type(self).__bases__, dict(type(self).__dict__))
    return out


def _parametrized_getstate(self: object) -> object:
    raise RuntimeError(
        "Serialization of parametrized modules is only supported through state_dict(). See:\n"
        "https://pytorch.org/tutorials/beginner/saving_loading_models.html"
        "#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training"
    )


def _inject_class(module: Module) -> None:
    """Give a module a class of its own, that takes properties."""
    cls = type(module)
    added: dict[str, object] = {"__getstate__": _parametrized_getstate}
    if not hasattr(cls, "__deepcopy__"):
        added["__deepcopy__"] = _parametrized_deepcopy
    module.__class__ = type(f"Parametrized{cls.__name__}", (cls,), added)


def _inject_property(module: Module, tensor_name: str) -> None:
    """Make the tensor a property of the module's class."""

    def get(self: Any) -> Tensor:
        """Return the computed tensor, the kept one within `cached()`."""
        parametrization = self.parametrizations[tensor_name]
        if not _cache.depth:
            return parametrization()
        key = (id(self), tensor_name)
        if key not in _cache.values:
            _cache.values[key] = parametrization()
        return _cache.values[key]

    def put(self: Any, value: Tensor) -> None:
        """Set the originals so that the tensor becomes `value`."""
        self.parametrizations[tensor_name].right_inverse(value)

    setattr(type(module), tensor_name, property(get, put))


def _check_like(new: Tensor, value: Tensor, place: str, rule: str, shown: str) -> None:
    """Raise ValueError, in the words of `rule`, if two tensors differ in type or shape."""
    for what in ("dtype", "shape"):
        found, wanted = getattr(new, what), getattr(value, what)
        if found != wanted:
            raise ValueError(
                f"{rule.format(what)}, unless the `unsafe` flag is enabled.\n"
                f"{place}.{what}: {wanted}\n{shown.format(what)}: {found}"
            )


def _check_inverse(parametrization: object, value: Tensor, new: Tensor, tensor_name: str) -> None:
    """Raise ValueError if what `right_inverse` gives of a parametrized tensor is not like the tensor."""
    if not hasattr(parametrization, "right_inverse"):
        return
    try:
        back = parametrization.right_inverse(new)
    except NotImplementedError:
        return
    if not isinstance(back, Tensor):
        raise ValueError(
            f"parametrization.right_inverse must return a tensor. Got: {type(back).__name__}"
        )
    place = f"module.{tensor_name}"
    rule = (
        f"The tensor returned by parametrization.right_inverse must have the same {{}} as {place}"
    )
    _check_like(back, value, place, rule, "returned {}")


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute `module.tensor_name` by `parametrization` from now on; return the module.

    The tensor moves to `module.parametrizations.tensor_name.original`. A parametrization may have
    a method `right_inverse`, which assigning to the tensor needs. Further ones are put behind.
    `unsafe` leaves out the checks of shape and dtype.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        known: Any = module.parametrizations[tensor_name]
        if not unsafe:
            value = getattr(module, tensor_name)
            new = parametrization(value)
            if not isinstance(new, Tensor):
                raise ValueError(
                    f"A parametrization must return a tensor. Got {type(new).__name__}."
                )
            place = f"module.{tensor_name}"
            rule = "Registering a parametrization may not change the {} of the tensor"
            _check_like(new, value, place, rule, f"parametrization({place}).{{}}")
            _check_inverse(parametrization, value, new, tensor_name)
        known.append(parametrization)
        known.unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        original = getattr(module, tensor_name)
        listed = ParametrizationList([parametrization], original, unsafe=unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            _inject_class(module)
            module.parametrizations = ModuleDict()
        _inject_property(module, tensor_name)
        module.parametrizations[tensor_name] = listed
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether the module, or the given tensor of it, is parametrized."""
    parametrizations = getattr(module, "parametrizations", None)
    if not isinstance(parametrizations, ModuleDict):
        return False
    return len(parametrizations) > 0 if tensor_name is None else tensor_name in parametrizations


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make the tensor a plain one again: its value of now, or else the original one."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    parametrizations: Any = module.parametrizations
    listed = parametrizations[tensor_name]
    if leave_parametrized:
        with webtorch.no_grad():
            value = getattr(module, tensor_name)
        source = listed.original if listed.is_tensor else listed.original0
        if listed.is_tensor:
            _set(source, value.detach())
            original = source
        else:
            original = _like(value.detach(), source)
    elif listed.is_tensor:
        original = listed.original
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is "
            "parametrized in terms of a sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        delattr(module, "parametrizations")
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """Return the class that the module had before its first parametrization."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give `to_module` copies of the other's parametrizations, and the values they compute from."""
    if not is_parametrized(from_module):
        return to_module
    source: Any = from_module.parametrizations
    for name in [tensor_name] if tensor_name is not None else list(source):
        if not hasattr(to_module, name):
            setattr(to_module, name, copy.deepcopy(getattr(from_module, name)))
        for one in source[name]:
            register_parametrization(to_module, name, copy.deepcopy(one), unsafe=True)
        target: Any = to_module.parametrizations
        for key, value in source[name].named_parameters(recurse=False):
            getattr(target[name], key).data = value.detach().clone()
    return to_module
