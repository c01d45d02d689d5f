"""Lazy layers: sizes of the input are taken from the first input. May import the tensor floor and nn's base files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from webtorch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from webtorch.nn.size import Sizes
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
]


_Self = TypeVar("_Self", bound="LazyModuleMixin")


class LazyModuleMixin(Module):
    """What lazy layers share: parameters without a shape, which the first call gives them.

    A subclass defines `initialize_parameters(input)`; after the first call the layer is a
    `cls_to_become`. Optimizers may be made before or after.
    """

    cls_to_become: ClassVar[Any] = None
    _initialize_hook: Any
    _load_hook: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Make the layer and wait for its first input."""
        super().__init__(*args, **kwargs)
        self._load_hook = self._register_load_state_dict_pre_hook(
            _shape_from_checkpoint, with_module=True
        )
        self._initialize_hook = self.register_forward_pre_hook(
            self._infer_parameters, with_kwargs=True
        )

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give the parameters the shapes that the first input asks for."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}"
        )

    def has_uninitialized_params(self) -> bool:
        """Return whether a parameter or a buffer has no shape yet."""
        return any(is_lazy(one) for one in (*self._parameters.values(), *self._buffers.values()))

    def reset_parameters(self) -> None:
        """Draw new initial values, once there are shapes."""
        if not self.has_uninitialized_params() and self._is_sized():
            super().reset_parameters()  # type: ignore[misc]

    def _is_sized(self) -> bool:
        """Return whether the sizes of the input are known."""
        raise NotImplementedError

    def _infer_parameters(
        self, module: Any, args: tuple[object, ...], kwargs: dict[str, object] | None = None
    ) -> None:
        """Take the sizes from the first input, and make the layer what it is to become."""
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(f"module {self._get_name()} has not been fully initialized")
        module._initialize_hook.remove()
        module._load_hook.remove()
        del module._initialize_hook
        del module._load_hook
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DataParallel`. "
            "Run a dummy forward pass to correctly initialize the modules"
        )

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Move and cast; buffers without a shape stay without one."""
        waiting = [name for name, buffer in self._buffers.items() if is_lazy(buffer)]
        super()._apply(fn, recurse)
        for name in waiting:
            moved = self._buffers[name]
            assert moved is not None
            self._buffers[name] = UninitializedBuffer(device=moved.device, dtype=moved.dtype)
        return self

    def _save_to_state_dict(
        self, destination: dict[str, object], prefix: str, keep_vars: bool
    ) -> None:
        """Write the entries; those without a shape as they are."""
        for name, param in (*self._parameters.items(), *self._buffers.items()):
            if param is None or name in self._non_persistent_buffers_set:
                continue
            whole = keep_vars or is_lazy(param)
            destination[prefix + name] = param if whole else param.detach()

    def _load_one(
        self,
        name: str,
        key: str,
        current: Tensor,
        value: object,
        assign: bool,
        error_msgs: list[str],
    ) -> None:
        """Take one entry; between two without a shape there is nothing to copy."""
        if not (is_lazy(current) and is_lazy(value)):
            super()._load_one(name, key, current, value, assign, error_msgs)


def _shape_from_checkpoint(
    module: LazyModuleMixin, state_dict: dict[str, object], prefix: str, *_: object
) -> None:
    """Give parameters without a shape that of the entries which are about to be loaded."""
    for name, param in (*module._parameters.items(), *module._buffers.items()):
        given = state_dict.get(prefix + name)
        if is_lazy(param) and isinstance(given, Tensor) and not is_lazy(given):
            with webtorch.no_grad():
                param.materialize(tuple(given.shape))  # type: ignore[union-attr]


class LazyLinear(LazyModuleMixin, Linear):
    """Linear whose `in_features` come from the first input."""

    cls_to_become = Linear

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the number of outputs."""
        # Nothing is made for 0 inputs; the parameters that will be there take their place.
        super().__init__(0, 0, False)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def _is_sized(self) -> bool:
        return self.in_features != 0

    def initialize_parameters(self, input: Tensor) -> None:
        """Take the size of the input's last dimension."""
        if self.has_uninitialized_params():
            with webtorch.no_grad():
                self.in_features = input.shape[-1]
                weight: Any = self.weight
                bias: Any = self.bias
                weight.materialize((self.out_features, self.in_features))
                if bias is not None:
                    bias.materialize((self.out_features,))
                self.reset_parameters()
        if self.in_features == 0:
            if input.shape[-1] != self.weight.shape[-1]:
                raise AssertionError(
                    f"The in_features inferred from input: {input.shape[-1]} is not equal to "
                    f"in_features from self.weight: {self.weight.shape[-1]}"
                )
            self.in_features = input.shape[-1]


class _LazyConvXdMixin(LazyModuleMixin):
    """What lazy convolutions share."""

    def _is_sized(self: Any) -> bool:
        return bool(self.in_channels != 0)

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Take the number of channels of the input."""
        if self.has_uninitialized_params():
            _size_convolution(self, input)


# Functions, because a mixin that declares the attributes of the layer takes their types away.


def _wait_for_channels(
    layer: Any, out_channels: int, bias: bool, device: DeviceLike, dtype: DType | None
) -> None:
    """Put parameters without a shape into a convolution."""
    layer.out_channels = out_channels
    layer.weight = UninitializedParameter(device=device, dtype=dtype)
    if bias:
        layer.bias = UninitializedParameter(device=device, dtype=dtype)


def _size_convolution(layer: Any, input: Tensor) -> None:
    """Give a convolution's parameters their shapes; raise RuntimeError for an input of another rank."""
    unbatched = layer._rank + 1
    if input.dim() not in (unbatched, unbatched + 1):
        raise RuntimeError(
            f"Expected {unbatched}D (unbatched) or {unbatched + 1}D (batched) input to "
            f"{type(layer).__name__}, but got input of size: {input.shape}"
        )
    inner, outer = int(input.shape[input.dim() - unbatched]), layer.out_channels
    layer.in_channels = inner
    if inner % layer.groups != 0:
        raise ValueError("in_channels must be divisible by groups")
    shape = (inner, outer // layer.groups) if layer.transposed else (outer, inner // layer.groups)
    with webtorch.no_grad():
        layer.weight.materialize((*shape, *layer.kernel_size))
        if layer.bias is not None:
            layer.bias.materialize((outer,))
        layer.reset_parameters()


class _LazyForward(_LazyConvXdMixin):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the number of outputs, and the options of the convolution."""
        super().__init__(
            0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode,
            device, dtype,
        )  # fmt: skip
        _wait_for_channels(self, out_channels, bias, device, dtype)


class LazyConv1d(_LazyForward, Conv1d):
    """Conv1d whose `in_channels` come from the first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyForward, Conv2d):
    """Conv2d whose `in_channels` come from the first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyForward, Conv3d):
    """Conv3d whose `in_channels` come from the first input."""

    cls_to_become = Conv3d


class _LazyTransposed(_LazyConvXdMixin):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int = 1,
        padding_mode: str = "zeros",
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Take the number of outputs, and the options of the convolution."""
        super().__init__(
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation,
            padding_mode, device, dtype,
        )  # fmt: skip
        _wait_for_channels(self, out_channels, bias, device, dtype)


class LazyConvTranspose1d(_LazyTransposed, ConvTranspose1d):
    """ConvTranspose1d whose `in_channels` come from the first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyTransposed, ConvTranspose2d):
    """ConvTranspose2d whose `in_channels` come from the first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposed, ConvTranspose3d):
    """ConvTranspose3d whose `in_channels` come from the first input."""

    cls_to_become = ConvTranspose3d


class _LazyNormBase(LazyModuleMixin):
    """What lazy norms share."""

    def _is_sized(self: Any) -> bool:
        return bool(self.num_features != 0)

    def initialize_parameters(self, input: Tensor) -> None:
        """Take the number of channels of the input."""
        if self.has_uninitialized_params() or not self._is_sized():
            _size_norm(self, input)


def _wait_for_features(
    layer: Any, affine: bool, track: bool, bias: bool, device: DeviceLike, dtype: DType | None
) -> None:
    """Put parameters and buffers without a shape into a norm."""
    made: dict[str, Any] = {"device": device, "dtype": dtype}
    layer.affine, layer.track_running_stats = affine, track
    if affine:
        layer.weight = UninitializedParameter(**made)
        if bias:
            layer.bias = UninitializedParameter(**made)
    if track:
        layer.running_mean = UninitializedBuffer(**made)
        layer.running_var = UninitializedBuffer(**made)
        layer.num_batches_tracked = webtorch.tensor(0, dtype=webtorch.int64, device=device)


def _size_norm(layer: Any, input: Tensor) -> None:
    """Give a norm's parameters and buffers their shape."""
    waiting = [
        one
        for one in (layer.weight, layer.bias, layer.running_mean, layer.running_var)
        if is_lazy(one)
    ]
    layer.num_features = int(input.shape[1])
    with webtorch.no_grad():
        for one in waiting:
            one.materialize((layer.num_features,))
        # After a checkpoint nothing waits, and the values stay.
        if waiting:
            layer.reset_parameters()


class _LazyBatchNorm(_LazyNormBase):
    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Take the options."""
        super().__init__(0, eps, momentum, False, False, device, dtype)
        _wait_for_features(self, affine, track_running_stats, bias, device, dtype)


class LazyBatchNorm1d(_LazyBatchNorm, BatchNorm1d):
    """BatchNorm1d whose `num_features` come from the first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm, BatchNorm2d):
    """BatchNorm2d whose `num_features` come from the first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm, BatchNorm3d):
    """BatchNorm3d whose `num_features` come from the first input."""

    cls_to_become = BatchNorm3d


class _LazyInstanceNorm(_LazyBatchNorm):
    """Lazy batch and instance norms take the same arguments in PyTorch."""


class LazyInstanceNorm1d(_LazyInstanceNorm, InstanceNorm1d):
    """InstanceNorm1d whose `num_features` come from the first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, InstanceNorm2d):
    """InstanceNorm2d whose `num_features` come from the first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, InstanceNorm3d):
    """InstanceNorm3d whose `num_features` come from the first input."""

    cls_to_become = InstanceNorm3d
