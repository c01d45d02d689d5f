"""Module: a tree of parameters, buffers and submodules with a forward; everything in `nn` is one.

Semantics, names, printed form and error texts are PyTorch's. May import the tensor floor, and
`parameter` and `hook` beside it.
"""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from webtorch.dispatch.call import Args, Callee, Kwargs, call
from webtorch.errors import DeviceError
from webtorch.functions import public as webtorch
from webtorch.functions.legacy import typename
from webtorch.ir.dtype import of_python
from webtorch.ir.lines import user_depth
from webtorch.nn.gradients import clear_grads
from webtorch.nn.hook import BackwardTap, tell_old_hooks
from webtorch.nn.member import public_names, register_buffer, remember
from webtorch.nn.module_hooks import GLOBAL, registered
from webtorch.nn.parameter import Buffer, Parameter
from webtorch.nn.state_dict import (
    _EXTRA_STATE_KEY_SUFFIX,
    _IncompatibleKeys,
    _LoadHook,
    load_one,
    load_own,
    load_tree,
    save_tree,
)
from webtorch.nn.swapping import swap_tensors
from webtorch.nn.switches import get_swap_module_params_on_conversion, overwrites
from webtorch.tensors.above import ask
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.handle import Hook, RemovableHandle, add_hook
from webtorch.tensors.host import bindings, tracing
from webtorch.tensors.tensor import Tensor

__all__ = ["Module"]

_Self = TypeVar("_Self", bound="Module")
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result", covariant=True)


class _Forward(Protocol[_Given, _Result]):
    """What has a `forward`: calls of a module take and give the same."""

    def forward(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        """Compute the output."""


# The tables of hooks that a module has.
HOOKS = (
    "_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def _indented(text: str, spaces: int) -> str:
    """Return `text` with every line but the first moved right."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " * spaces + line for line in rest)])


_COMPLEX = (
    "Complex modules are a new feature under active development whose design may change, and some modules might not "
    "work as expected when using complex tensors as parameters or buffers."
)


class Module:
    """Base of all layers and models: a callable that owns parameters, buffers and submodules.

    Subclasses call `super().__init__()`, assign parameters and modules to attributes, and define
    `forward`. Calling the module runs its hooks and `forward`.
    """

    # Written into the state dict's metadata; a class raises it when its layout changes.
    _version: int = 1
    dump_patches: bool = False
    call_super_init: bool = False
    # Whether backward hooks are full ones or of PyTorch's old form; None: there have been none.
    _is_full_backward_hook: bool | None = None

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Make the empty tables of parameters, buffers, submodules and hooks."""
        if not self.call_super_init:
            if kwargs:
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword argument "
                    f"'{next(iter(kwargs))}'"
                )
            if args:
                raise TypeError(
                    f"{type(self).__name__}.__init__() takes 1 positional argument but "
                    f"{len(args) + 1} were given"
                )
        # Through __dict__: __setattr__ needs these tables to decide where a value belongs.
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _non_persistent_buffers_set=set(),
            _modules={},
            **{name: OrderedDict() for name in HOOKS},
        )
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; every subclass defines it."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    # -- registration ---------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer; one that is not persistent stays out of `state_dict()`."""
        self._check_name("buffer", "_buffers", name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{typename(tensor)}' object to buffer '{name}' "
                "(torch Tensor or None required)"
            )
        self._buffers[name] = registered(GLOBAL.register_buffer, self, name, tensor)
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None as the mark of an optional one that is absent."""
        self._check_name("parameter", "_parameters", name)
        if param is None:
            self._parameters[name] = None
            return
        if not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{typename(param)}' object to parameter '{name}' "
                "(torch.nn.Parameter or None required)"
            )
        if param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be "
                f"created explicitly. To express '{name}' as a function of another Tensor, "
                "compute the value in the forward() method."
            )
        self._parameters[name] = registered(GLOBAL.register_parameter, self, name, param)

    def _check_name(self, kind: str, table: str, name: str) -> None:
        """Raise unless `name` can name a new or known entry of `table`."""
        if table not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {typename(name)}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain "."')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under `name`."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"{typename(module)} is not a Module subclass")
        if not isinstance(name, str):
            raise TypeError(f"module name should be a string. Got {typename(name)}")
        if hasattr(self, name) and name not in self._modules:
            raise KeyError(f"attribute '{name}' already exists")
        if "." in name:
            raise KeyError(f'module name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError('module name can\'t be empty string ""')
        self._modules[name] = registered(GLOBAL.register_module, self, name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a submodule: another name of `add_module`."""
        self.add_module(name, module)

    def __getattr__(self, name: str) -> Any:
        """Look `name` up among parameters, buffers and submodules."""
        for place in ("_parameters", "_modules", "_buffers"):
            table = self.__dict__.get(place)
            if table is not None and name in table:
                remember(type(self), name, place, look_up)
                return table[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: object) -> None:
        """Put `value` where it belongs: parameter, submodule, buffer or plain attribute."""
        bindings.modules += 1
        own = self.__dict__
        params, modules, buffers = own.get("_parameters"), own.get("_modules"), own.get("_buffers")
        if isinstance(value, Parameter):
            if params is None:
                raise AttributeError("cannot assign parameters before Module.__init__() call")
            self._forget(name, keep="_parameters")
            self.register_parameter(name, value)
        elif params is not None and name in params:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as parameter '{name}' "
                    "(torch.nn.Parameter or None expected)"
                )
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            if modules is None:
                raise AttributeError("cannot assign module before Module.__init__() call")
            self._forget(name, keep="_modules")
            modules[name] = registered(GLOBAL.register_module, self, name, value)
        elif modules is not None and name in modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{typename(value)}' as child module '{name}' "
                    "(torch.nn.Module or None expected)"
                )
            modules[name] = registered(GLOBAL.register_module, self, name, value)
        elif isinstance(value, Buffer) or (buffers is not None and name in buffers):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(
                    f"cannot assign '{typename(value)}' as buffer '{name}' "
                    "(torch.nn.Buffer, torch.Tensor or None expected)"
                )
            persistent = (
                value.persistent
                if isinstance(value, Buffer)
                else name not in self._non_persistent_buffers_set
            )
            register_buffer(self, name, value, persistent)
        else:
            object.__setattr__(self, name, value)

    def _forget(self, name: str, keep: str) -> None:
        """Remove `name` from every place but the table `keep`."""
        own = self.__dict__
        own.pop(name, None)
        for table in ("_parameters", "_buffers", "_modules"):
            if table != keep:
                own[table].pop(name, None)
        own["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        """Delete a parameter, buffer, submodule or plain attribute."""
        bindings.modules += 1
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        """List class attributes, own attributes, parameters, submodules and buffers."""
        names = [
            *public_names(type(self)), *self.__dict__, *self._parameters, *self._modules, *self._buffers,
        ]  # fmt: skip
        # Sequential's children are called "0", "1", ...: no attribute access can spell those.
        return sorted(name for name in names if not name[0].isdigit())

    # -- access by path -------------------------------------------------------------------------

    def get_submodule(self, target: str) -> Module:
        """Return the submodule at the dotted path `target`; the empty path is the module itself."""
        module: Module = self
        for atom in target.split(".") if target else []:
            if not hasattr(module, atom):
                raise AttributeError(f"{module._get_name()} has no attribute `{atom}`")
            module = getattr(module, atom)
            if not isinstance(module, Module):
                raise AttributeError(f"`{atom}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put `module` at the dotted path `target`; `strict` wants something there already."""
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at the dotted path `target`."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        param = getattr(module, name)
        if not isinstance(param, Parameter):
            raise AttributeError(f"`{name}` is not an nn.Parameter")
        return param

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer at the dotted path `target`."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        if name not in module._buffers:
            raise AttributeError(f"`{name}` is not a buffer")
        return getattr(module, name)

    def get_extra_state(self) -> Any:
        """Return what else belongs to the state dict; a subclass defines it with its setter."""
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called: a class "
            "that defines one of get_extra_state and set_extra_state must define both."
        )

    def set_extra_state(self, state: object) -> None:
        """Take back what `get_extra_state` returned."""
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called: a class "
            "that defines one of get_extra_state and set_extra_state must define both."
        )

    # -- conversion -----------------------------------------------------------------------------

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Replace every parameter, gradient and buffer by `fn` of it, keeping parameters' identity.

        Optimizers hold the parameter objects, so a parameter gets new data instead of a successor, but where it comes
        from the device "meta", or goes there, as PyTorch's do.
        """
        bindings.modules += 1
        if recurse:
            for module in self.children():
                module._apply(fn)
        for name, param in self._parameters.items():
            if param is None:
                continue
            grad = param.grad
            if get_swap_module_params_on_conversion():
                param.grad = None
                with webtorch.no_grad():
                    swap_tensors(param, Parameter(fn(param), param.requires_grad))
                    if grad is not None:
                        swap_tensors(grad, fn(grad).requires_grad_(grad.requires_grad))
                        param.grad = grad
                continue
            with webtorch.no_grad():
                value = fn(param)
                if overwrites() or value.is_meta != param.is_meta:
                    new = self._parameters[name] = Parameter(value, param.requires_grad)
                    if grad is not None:
                        new.grad = fn(grad).requires_grad_(grad.requires_grad)
                    continue
                param.data = value
                if grad is not None:
                    grad.data = fn(grad)
                    param.grad = grad
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def _replicate_for_data_parallel(self: _Self) -> _Self:
        """Return a module without parameters of its own, and with what else this one has."""
        twin = self.__new__(type(self))
        twin.__dict__ = {**self.__dict__, "_parameters": {}, "_is_replica": True}
        for table in ("_buffers", "_modules"):
            twin.__dict__[table] = self.__dict__[table].copy()
        return twin

    def apply(self: _Self, fn: Callable[[Module], None]) -> _Self:
        """Call `fn` on every submodule, children first, then on the module; return the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def to(self: _Self, *args: object, **kwargs: object) -> _Self:
        """Move to a device and/or a floating point dtype, in place: `to(device, dtype)`,
        `to(dtype)`, `to(tensor)`. Integer parameters and buffers keep their dtype. `memory_format` is for
        those of 4 and 5 dims.
        """
        device, dtype, non_blocking, memory_format = _parse_to(*args, **kwargs)
        if dtype is not None and not dtype.has_gradient:
            raise TypeError(
                "nn.Module.to only accepts floating point or complex dtypes, but got desired "
                f"dtype={dtype}"
            )
        if dtype is not None and dtype.is_complex:
            warnings.warn(_COMPLEX, stacklevel=user_depth())

        def convert(t: Tensor) -> Tensor:
            """Return a tensor on the device; integers keep their dtype."""
            wanted = dtype if dtype is not None and t.dtype.has_gradient else t.dtype
            return t.to(
                device=t.device if device is None else device,
                dtype=wanted,
                non_blocking=non_blocking,
                memory_format=memory_format if t.ndim in (4, 5) else webtorch.preserve_format,
            )

        return self._apply(convert)

    def to_empty(self: _Self, *, device: Any, recurse: bool = True) -> _Self:
        """Move to `device` without copying values."""
        return self._apply(lambda t: webtorch.empty_like(t, device=device), recurse)

    def cpu(self: _Self) -> _Self:
        """Move parameters and buffers to the CPU."""
        return self._apply(lambda t: t.to("cpu"))

    def webgpu(self: _Self, device: int | str | None = None) -> _Self:
        """Move parameters and buffers to a WebGPU device: the current one, or the given."""
        target = device if isinstance(device, str) else "webgpu"
        if isinstance(device, int):
            target = f"webgpu:{device}"
        return self._apply(lambda t: t.to(target))

    def cuda(self: _Self, device: DeviceLike = None) -> _Self:
        """Raise: there is no CUDA here."""
        raise DeviceError("Module.cuda: webtorch has no CUDA device; use .to('webgpu')")

    def share_memory(self: _Self) -> _Self:
        """Ask it of each tensor, as PyTorch does; none is shared between processes here."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def type(self: _Self, dst_type: object) -> _Self:
        """Cast parameters and buffers, of whatever dtype, to `dst_type`."""
        return self._apply(lambda t: t.to(dst_type))

    def _cast_floats(self: _Self, dtype: object) -> _Self:
        """Cast floating point parameters and buffers to `dtype`."""
        return self._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    def float(self: _Self) -> _Self:
        """Cast floating point parameters and buffers to float32."""
        return self._cast_floats(webtorch.float32)

    def double(self: _Self) -> _Self:
        """Cast floating point parameters and buffers to float64 (CPU only)."""
        return self._cast_floats(webtorch.float64)

    def half(self: _Self) -> _Self:
        """Cast floating point parameters and buffers to float16."""
        return self._cast_floats(webtorch.float16)

    def bfloat16(self: _Self) -> _Self:
        """Cast floating point parameters and buffers to bfloat16."""
        return self._cast_floats(webtorch.bfloat16)

    # -- modes ----------------------------------------------------------------------------------

    def train(self: _Self, mode: bool = True) -> _Self:
        """Set training mode (dropout drops, batch norm uses the batch) here and below."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self: _Self) -> _Self:
        """Set evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self: _Self, requires_grad: bool = True) -> _Self:
        """Let autograd record, or not, operations on every parameter."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or fill them with zeros."""
        clear_grads(self.parameters(), set_to_none)

    def compile(self, *args: object, **kwargs: object) -> None:
        """Compile the call of this module in place: later calls replay captured programs."""
        self.__dict__["_compiled_call_impl"] = ask("compile")(self._call_impl, *args, **kwargs)

    # -- hooks ----------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args[, kwargs])` before forward; it may return new arguments."""
        flags = ((self._forward_pre_hooks_with_kwargs, with_kwargs),)
        return add_hook(self._forward_pre_hooks, hook, prepend=prepend, flags=flags)

    def register_forward_hook(
        self,
        hook: Hook,
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        """Call `hook(module, args[, kwargs], output)` after forward; it may return a new output.

        `always_call` also calls it when forward raised.
        """
        flags = (
            (self._forward_hooks_with_kwargs, with_kwargs),
            (self._forward_hooks_always_called, always_call),
        )
        return add_hook(self._forward_hooks, hook, prepend=prepend, flags=flags)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when gradients reach the outputs; it may replace them."""
        return add_hook(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the input gradients are known.

        What it returns replaces `grad_input`.
        """
        self._only_hooks_that_are(True)
        return add_hook(self._backward_hooks, hook, prepend=prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` with the gradients of the last function of each call.

        PyTorch's old form: of what a call does before its last function it sees nothing.
        """
        self._only_hooks_that_are(False)
        return add_hook(self._backward_hooks, hook)

    def _only_hooks_that_are(self, full: bool) -> None:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. Please use only "
                "one of them."
            )
        self._is_full_backward_hook = full

    if TYPE_CHECKING:

        def __call__(
            self: _Forward[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
        ) -> _Result:
            """Run the hooks and forward."""

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run the hooks and forward."""
            compiled = self.__dict__.get("_compiled_call_impl")
            if compiled is not None:
                return compiled(*args, **kwargs)
            return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args: object, **kwargs: object) -> object:
        """Run forward, with hooks only where there are any."""
        if tracing.active:
            return call(CALL_OF_MODULE, (self, *args), kwargs)
        # Looked up there, names cost half of what they cost as attributes of a class with `__getattr__`.
        own = self.__dict__
        try:
            hooked = (
                own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
                or GLOBAL.around_calls()
            )
        except KeyError as missing:
            # Module.__init__ was not called.
            hooked = getattr(self, missing.args[0])
        if not hooked:
            return self.forward(*args, **kwargs)
        if GLOBAL.traces:
            return call(CALL_OF_MODULE, (self, *args), kwargs)
        return self._call_with_hooks(args, kwargs)

    def _note_state(self) -> None:
        """Note, while a capture runs, what the module is like."""
        if tracing.active:
            tracing.modules.setdefault(self, self._state_of_call())

    def _state_of_call(self) -> tuple[object, ...]:
        """Return what a captured call depends on: another state needs another capture."""
        return (
            self.training,
            *((id(p), p is not None and p.requires_grad) for p in self._parameters.values()),
            *(
                tuple(hooks)
                for hooks in (
                    self._forward_hooks,
                    self._forward_pre_hooks,
                    self._backward_hooks,
                    self._backward_pre_hooks,
                    GLOBAL.forward,
                    GLOBAL.forward_pre,
                    GLOBAL.backward,
                    GLOBAL.backward_pre,
                )
            ),
            # Last: where its names are watched, another tensor may come in a buffer's place.
            tuple(map(id, self._buffers.values())),
        )

    def _call_with_hooks(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run forward between its hooks; on an error run those that asked to be called always."""
        called: set[int] = set()
        result: object = None
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            tap = None
            hooks: list[Hook] = []
            old: list[Hook] = []
            (old if GLOBAL.backward_is_old else hooks).extend(GLOBAL.backward.values())
            mine = old if self._is_full_backward_hook is False else hooks
            mine.extend(self._backward_hooks.values())
            pre_hooks = [*GLOBAL.backward_pre.values(), *self._backward_pre_hooks.values()]
            if hooks or pre_hooks:
                tap = BackwardTap(self, hooks, pre_hooks)
                args = tap.tap_inputs(args)
            result = self.forward(*args, **kwargs)
            for key, hook, with_kwargs, _ in self._all_forward_hooks():
                called.add(key)
                changed = (
                    hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                )
                if changed is not None:
                    result = changed
            if tap is not None:
                if not isinstance(result, (Tensor, tuple)):
                    warnings.warn(
                        "For backward hooks to be called, module output should be a Tensor or a "
                        f"tuple of Tensors but received {type(result)}",
                        stacklevel=user_depth(),
                    )
                result = tap.tap_outputs(result)
            if old:
                tell_old_hooks(self, old, args, result)
            return result
        except Exception:
            for key, hook, with_kwargs, always in self._all_forward_hooks():
                if not always or key in called:
                    continue
                try:
                    changed = (
                        hook(self, args, kwargs, result)
                        if with_kwargs
                        else hook(self, args, result)
                    )
                    if changed is not None:
                        result = changed
                except Exception as error:
                    warnings.warn(
                        "module forward hook with ``always_call=True`` raised an exception that "
                        f"was silenced as another error was raised in forward: {error}",
                        stacklevel=user_depth(),
                    )
            raise

    def _all_forward_hooks(self) -> list[tuple[int, Hook, bool, bool]]:
        """Return (id, hook, takes kwargs, is always called) of the global and own forward hooks."""
        everywhere = [
            (key, hook, key in GLOBAL.forward_with_kwargs, key in GLOBAL.forward_always)
            for key, hook in GLOBAL.forward.items()
        ]
        own = [
            (
                key,
                hook,
                key in self._forward_hooks_with_kwargs,
                key in self._forward_hooks_always_called,
            )
            for key, hook in self._forward_hooks.items()
        ]
        return everywhere + own

    def _run_pre_hooks(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments as the forward pre-hooks leave them."""
        both = itertools.chain(GLOBAL.forward_pre.items(), self._forward_pre_hooks.items())
        for key, hook in list(both):
            if key in self._forward_pre_hooks_with_kwargs:
                changed = hook(self, args, kwargs)
                if changed is None:
                    continue
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple of (new_args, new_kwargs), "
                        f"but got {changed}."
                    )
                args, kwargs = changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        return args, kwargs

    # -- state ----------------------------------------------------------------------------------

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before `state_dict()` collects."""
        return add_hook(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after `state_dict()` collected.

        It changes the dict in place and returns None.
        """
        hook._from_public_api = True  # type: ignore[attr-defined]
        return add_hook(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """Register a post-hook whose result, if any, replaces the state dict."""
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was "
                "previously registered via register_state_dict_post_hook"
            )
        return add_hook(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys,
        unexpected_keys, error_msgs)` before this module takes its entries.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        """Register the hook with or without the module as its first argument."""
        return add_hook(self._load_state_dict_pre_hooks, _LoadHook(hook, with_module))

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after this module's part was loaded."""
        return add_hook(self._load_state_dict_post_hooks, hook)

    def _save_to_state_dict(
        self, destination: dict[str, object], prefix: str, keep_vars: bool
    ) -> None:
        """Write this module's own entries, without its children's, into `destination`."""
        for name, param in self._parameters.items():
            if param is not None:
                destination[prefix + name] = param if keep_vars else param.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent_buffers_set:
                destination[prefix + name] = buffer if keep_vars else buffer.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + _EXTRA_STATE_KEY_SUFFIX] = self.get_extra_state()

    def state_dict(
        self,
        *args: object,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Return names to tensors: all parameters and persistent buffers, by dotted path.

        The tensors share storage with the module; `keep_vars` keeps them attached to autograd.
        """
        return save_tree(self, args, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take this module's own entries out of `state_dict`, and note what does not fit."""
        has_extra = type(self).set_extra_state is not Module.set_extra_state
        load_own(
            self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs, has_extra,
        )  # fmt: skip

    def _load_one(
        self,
        name: str,
        key: str,
        current: Tensor,
        value: object,
        assign: bool,
        error_msgs: list[str],
    ) -> None:
        """Copy or assign one entry, or append to `error_msgs` why it cannot be."""
        load_one(self, name, key, current, value, assign, error_msgs)

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copy parameters and buffers from `state_dict`; return the keys that did not meet.

        `strict` raises RuntimeError on missing or unexpected keys; wrong shapes always do.
        `assign` puts the given tensors in place of the module's, keeping their device and dtype.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        return load_tree(self, state_dict, strict, assign)

    # -- walking the tree -----------------------------------------------------------------------

    def _named_members(
        self,
        get_members_fn: Callable[[Module], Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """Yield (dotted name, member) of the module and, if `recurse`, of all below it."""
        seen: set[int] = set()
        walk = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in walk:
            for name, member in get_members_fn(module):
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield (f"{path}.{name}" if path else name), member

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield every parameter once."""
        for _, param in self.named_parameters(recurse=recurse):
            yield param

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter)."""
        yield from self._named_members(
            lambda module: module._parameters.items(), prefix, recurse, remove_duplicate
        )

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield every buffer once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (dotted name, buffer)."""
        yield from self._named_members(
            lambda module: module._buffers.items(), prefix, recurse, remove_duplicate
        )

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules, each once."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, direct submodule), each once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """Yield the module and everything below it."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield (dotted name, module), the module itself first under `prefix`."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, path, remove_duplicate)

    # -- printing, copying ----------------------------------------------------------------------

    def _get_name(self) -> str:
        """Return the name that printing and messages use."""
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return what stands between the parentheses when the module is printed."""
        return ""

    def __repr__(self) -> str:
        """Return the tree of submodules, as PyTorch prints it."""
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        child_lines = [
            f"({name}): {_indented(repr(module), 2)}" for name, module in self._modules.items()
        ]
        if not child_lines and len(extra_lines) <= 1:
            return f"{self._get_name()}({extra})"
        body = "\n  ".join(extra_lines + child_lines)
        return f"{self._get_name()}(\n  {body}\n)"

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle; a compiled call is made anew where it is loaded."""
        state = self.__dict__.copy()
        state.pop("_compiled_call_impl", None)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        """Take back what `__getstate__` returned."""
        # A module that an older version has written may lack a table of hooks.
        hooks: dict[str, object] = {name: OrderedDict() for name in HOOKS if name not in state}
        self.__dict__.update(state, **hooks)


# How modules look names up, but while a symbolic trace looks too (`fx.tracing`).
look_up: Any = Module.__getattr__


def _call_traced(args: Args, kwargs: Kwargs) -> object:
    module, *given = args
    module._note_state()
    name = tracing.module_names.pop(id(module), "")
    result = module._call_with_hooks(tuple(given), kwargs)
    if name:
        tracing.keep(name, result)
    return result


# What the call of a module is of, for those who note in which module an operation is called.
CALL_OF_MODULE = Callee("module", _call_traced)


def _parse_to(*args: object, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """Return (device, dtype, non_blocking, memory_format) of any call form of `to`; absent ones are None."""
    known = {"device", "dtype", "non_blocking", "memory_format", "tensor", "copy"}
    unknown = set(kwargs) - known
    if unknown:
        raise TypeError(f"to() received an invalid keyword argument '{sorted(unknown)[0]}'")
    device, dtype = kwargs.get("device"), of_python(kwargs.get("dtype"))
    non_blocking = kwargs.get("non_blocking", False)
    if "tensor" in kwargs:
        args = (kwargs["tensor"], *args)
    if kwargs.get("copy"):
        raise RuntimeError(".to() does not accept copy argument")
    args = tuple(map(of_python, args))
    for position, value in enumerate(args):
        if isinstance(value, Tensor) and position == 0:
            device, dtype = value.device, value.dtype
        elif isinstance(value, bool) and (
            position > 1 or isinstance(args[0], (Tensor, webtorch.dtype))
        ):
            non_blocking = value
        elif isinstance(value, webtorch.dtype):
            dtype = value
        elif isinstance(value, (str, int, webtorch.device)) and position == 0:
            device = value
        elif value is not None:
            raise TypeError(
                f"to() received an invalid argument {value!r} at position {position}: expected "
                "to(device, dtype), to(dtype) or to(tensor)."
            )
    device = device if device is None else webtorch.device(device)
    return device, dtype, non_blocking, kwargs.get("memory_format")
