"""torch._C: what packages call of PyTorch's C++ core without needing it."""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any

from webtorch.backends import cudnn
from webtorch.functions.storages import StorageBase as StorageBase
from webtorch.overrides import DisableTorchFunction as DisableTorchFunction
from webtorch.overrides import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from webtorch.tensors.device import device_of, resolve
from webtorch.tensors.engine import order, will_run
from webtorch.tensors.modes import is_grad_enabled as is_grad_enabled
from webtorch.tensors.modes import mode
from webtorch.tensors.override import disabled as _disabled_torch_function_impl
from webtorch.tensors.override import state
from webtorch.tensors.storage import is_lazily_cloned
from webtorch.tensors.tape import AccumulateGrad, GradFn, shown
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import Size, broadcast_shapes


class _OfTensors(type):
    """The class of tensors' base: tensors are instances, and its names are theirs."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise RuntimeError(
            "Cannot directly construct TensorBase; subclass it and then construct that"
        )

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, Tensor)

    def __getattr__(cls, name: str) -> Any:
        return getattr(Tensor, name)


class TensorBase(metaclass=_OfTensors):
    """What tensors derive from in PyTorch's core."""

    def __init_subclass__(cls) -> None:
        """Refuse."""
        raise RuntimeError("Cannot subclass _TensorBase directly")


_TensorBase, _TensorMeta = TensorBase, type(Tensor)
# Factorisations and Fourier transforms are here, whoever computes them.
has_lapack = has_spectral = True
# As `__torch_dispatch__` of a class, it says that the class replaces no kernel.
_disabled_torch_dispatch_impl = _disabled_torch_function_impl
# Blocks in which PyTorch's dispatcher asks no Python kernels and no transforms: nobody is asked here.
_DisableTorchDispatch = _DisableFuncTorch = contextlib.nullcontext


def _are_functorch_transforms_active() -> bool:
    """Whether vmap or a derivative of `torch.func` runs."""
    return bool(mode.vmaps or mode.transforms)


def _infer_size(a: Sequence[int], b: Sequence[int]) -> Size:
    """Return the size that two sizes broadcast to."""
    return broadcast_shapes(a, b)


def _log_api_usage_once(event: str) -> None:
    """Do nothing: nothing is logged."""


def _get_default_device() -> str:
    """Return the kind of device that tensors are made on."""
    return device_of(resolve(None)).type


def _current_graph_task_id() -> int:
    """Return a number for the running backward pass, -1 while none runs."""
    return -1 if mode.task is None else mode.task.made().number


def _current_graph_task_execution_order() -> list[GradFn]:
    """Return the functions of the running backward pass in their order."""
    if mode.task is None:
        raise RuntimeError(
            "_current_graph_task_execution_order should only be called during the backward pass"
        )
    if mode.multithreading:
        raise RuntimeError(
            "_current_graph_task_execution_order expects the current backward to be executed with multithreading "
            "disabled, e.g. by running: with torch.autograd.set_multithreading_enabled(False): ..."
        )
    return order()


def _current_autograd_node() -> GradFn | None:
    """Return the gradient function that runs."""
    fn = None if mode.task is None else mode.task.made().running
    return None if fn is None else shown(fn)


def _will_engine_execute_node(node: object) -> bool:
    """Whether the running backward pass runs a gradient function."""
    if not isinstance(node, GradFn):
        raise RuntimeError(
            f"_will_engine_execute_node expects an grad_fn, but got {type(node).__name__}"
        )
    if mode.task is None:
        raise RuntimeError(
            "_get_should_execute_nodes should only be called during the backward pass"
        )
    if isinstance(node, AccumulateGrad) and not mode.task.made().accumulate:
        raise RuntimeError(
            "A leaf node was passed to _will_engine_execute_node but we are currently running autograd.grad(). This is "
            "currently not supported."
        )
    return will_run([node])[0]


def _set_fwd_grad_enabled(enabled: bool) -> None:
    """Set whether forward mode follows what is computed."""
    mode.forward_enabled = enabled


class _WeakTensorRef:
    """A tensor that may be gone."""

    def __init__(self, tensor: Tensor) -> None:
        """Take the tensor."""
        self._tensor = weakref.ref(tensor)

    def expired(self) -> bool:
        """Whether it is gone."""
        return self._tensor() is None


# Tensors of which autocast keeps no copies anew, by identity: PyTorch's compiler tells which.
_cached: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def _set_cached_tensors_enabled(enabled: bool) -> None:
    """Do nothing but forget, where it is switched off."""
    if not enabled:
        _cached.clear()


def _add_cached_tensor(tensor: Tensor) -> None:
    """Count a tensor among the cached ones."""
    _cached[id(tensor)] = tensor


def _remove_cached_tensor(tensor: Tensor) -> None:
    """Take a tensor from the cached ones."""
    _cached.pop(id(tensor), None)


def _is_cached_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is among the cached ones."""
    return _cached.get(id(tensor)) is tensor


# Whether operators are called below what was registered for autograd: in a thread, or a task.
_below_autograd: ContextVar[bool] = ContextVar("_below_autograd", default=False)


class _AutoDispatchBelowAutograd:
    """A block in which operators are called below what a `Library` has for autograd."""

    def __enter__(self) -> None:
        self._token: Token[bool] = _below_autograd.set(True)

    def __exit__(self, *exc: object) -> None:
        _below_autograd.reset(self._token)


def _debug_only_are_vmap_fallback_warnings_enabled() -> bool:
    """Return False: there is no fallback, of which a warning could tell."""
    return False


def _debug_only_display_vmap_fallback_warnings(enabled: bool) -> None:
    """Do nothing: there is no fallback."""


def _get_tracing_state() -> None:
    """Return None: nothing is ever traced."""


_has_xpu = False
_profiled = {"executor": True, "mode": True}


def _jit_set_profiling_executor(on: bool) -> bool:
    """Return what was asked for before, and note what is asked for: TorchScript is Python here."""
    before, _profiled["executor"] = _profiled["executor"], on
    return before


def _jit_set_profiling_mode(on: bool) -> bool:
    """Return what was asked for before, and note it: see `_jit_set_profiling_executor`."""
    before, _profiled["mode"] = _profiled["mode"], on
    return before


def _get_cudnn_enabled() -> bool:
    """Return `torch.backends.cudnn.enabled`, which nothing here asks."""
    return cudnn.enabled


def _is_tracing() -> bool:
    """Return False: nothing is ever traced."""
    return False


def _is_torch_function_enabled() -> bool:
    """Whether classes with `__torch_function__` are asked."""
    return state.classes


def _is_torch_function_mode_enabled() -> bool:
    """Whether a mode with `__torch_function__` is on."""
    return bool(state.modes and state.modes_asked)


_ConvBackend = enum.Enum(
    "_ConvBackend",
    """CudaDepthwise2d CudaDepthwise3d Cudnn CudnnTranspose Empty Miopen MiopenDepthwise MiopenTranspose Mkldnn
    MkldnnTranspose MkldnnEmpty NnpackSpatial Overrideable Slow2d Slow3d SlowDilated2d SlowDilated3d SlowTranspose2d
    SlowTranspose3d Winograd3x3Depthwise Xnnpack2d Mps MpsTranspose""",
)


def _select_conv_backend(
    input: Tensor, weight: Tensor, bias: object, stride: Sequence[int], padding: object, dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, *_: object,
) -> object:  # fmt: skip
    """Return which of its kernels PyTorch would take without libraries of others: they compute the same."""
    if not input.numel() or not weight.numel():
        return _ConvBackend.Empty
    rank = 3 if input.dim() == 5 else 2
    kind = "Transpose" if transposed else "Dilated" if any(d != 1 for d in dilation) else ""
    return _ConvBackend[f"Slow{kind}{rank}d"]


def _storage_address(tensor: Tensor) -> int:
    """Return a number that stands for a tensor's storage."""
    return id(tensor._storage)


def _data_address(tensor: Tensor) -> int:
    """Return a number that stands for the memory of a tensor's value."""
    return id(tensor._storage.realize().buffer)


def _is_cow_tensor(tensor: Tensor) -> bool:
    """Whether a tensor's memory is copied when it is written, as `_lazy_clone` has it."""
    return is_lazily_cloned(tensor._storage)


class DispatchKey(enum.Enum):
    """PyTorch's keys of its dispatcher, to name; nothing is dispatched by them."""

    CPU = 1
    CUDA = 2
    Meta = 3
    Autograd = 4
    AutogradCPU = 5
    AutogradCUDA = 6
    AutocastCPU = 7
    AutocastCUDA = 8
    AutocastXPU = 9
    AutocastMPS = 10
    CompositeExplicitAutograd = 11
    CompositeImplicitAutograd = 12
    XPU = 13
    AutogradXPU = 14
    MPS = 15
    AutogradMPS = 16
    PrivateUse1 = 17
    AutogradPrivateUse1 = 18
    Functionalize = 19
    FuncTorchBatched = 20


class DispatchKeySet:
    """A set of such keys."""

    def __init__(self, *keys: DispatchKey) -> None:
        """Take the keys."""
        self._keys = frozenset(keys)

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(*self._keys, *other._keys)

    def has(self, key: DispatchKey) -> bool:
        """Whether a key is in the set."""
        return key in self._keys
