"""Normalization layers. May import the tensor floor and nn's base files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.distributed import world
from webtorch.distributed.nn.functional import all_reduce
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossMapLRN2d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
    "SyncBatchNorm",
]


class _Affine(Module):
    """What norms with a weight and a bias share."""

    def _make_parameters(
        self,
        shape: int | tuple[int, ...],
        weight: bool,
        bias: bool,
        device: DeviceLike,
        dtype: DType | None,
    ) -> None:
        """Make the weight and the bias that are wanted; without a weight there is no bias."""
        for name, wanted in (("weight", weight), ("bias", weight and bias)):
            value = webtorch.empty(shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if value is None else Parameter(value))

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class _NormBase(_Affine):
    """What batch and instance norm share: affine parameters and running statistics."""

    # 2: num_batches_tracked is in the state dict.
    _version = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Make parameters and buffers of (num_features,); `momentum` None is a plain average."""
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._make_parameters(num_features, affine, bias, device, dtype)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        if track_running_stats:
            self.register_buffer("running_mean", webtorch.zeros(num_features, **made))
            self.register_buffer("running_var", webtorch.ones(num_features, **made))
            self.register_buffer(
                "num_batches_tracked", webtorch.tensor(0, dtype=webtorch.int64, device=device)
            )
        else:
            self.register_buffer("running_mean", None)
            self.register_buffer("running_var", None)
            self.register_buffer("num_batches_tracked", None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget the running statistics."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set the weight to 1, the bias to 0, and forget the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        """Raise ValueError when the input has the wrong number of dimensions."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

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
        """Load; a state dict from before version 2 has no count of batches, which then stays."""
        version = local_metadata.get("version")
        key = prefix + "num_batches_tracked"
        if self.track_running_stats and (version is None or version < 2) and key not in state_dict:
            state_dict[key] = self.num_batches_tracked
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class _BatchNorm(_NormBase):
    """Batch norm of any number of dimensions. Ioffe and Szegedy, 2015."""

    # How many dims the input may have; a class that does not name them checks by itself.
    _dims: tuple[int, ...] = ()

    def _check_input_dim(self, input: Tensor) -> None:
        if not self._dims:
            raise NotImplementedError
        _check(input, *self._dims)

    def _counted(self) -> Any:
        """Count a batch, and return how far it moves the running statistics."""
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                # A plain average: batch n counts 1 / n. On the device, so that nothing is read.
                momentum = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        return momentum

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel by the batch's statistics, or by the running ones in eval mode."""
        self._check_input_dim(input)
        momentum = self._counted()
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            momentum,
            self.eps,
        )


def _check(input: Tensor, *ranks: int) -> None:
    """Raise ValueError unless the input has one of the given numbers of dimensions."""
    if input.dim() not in ranks:
        wanted = " or ".join(f"{rank}D" for rank in ranks)
        raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")


class BatchNorm1d(_BatchNorm):
    """Batch norm of (N, C) or (N, C, L)."""

    _dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch norm of (N, C, H, W)."""

    _dims = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch norm of (N, C, D, H, W)."""

    _dims = (5,)


class _InstanceNorm(_NormBase):
    """Instance norm of any number of dimensions. Ulyanov et al., 2016."""

    _rank: int

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: DeviceLike = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Make parameters and buffers of (num_features,), by default none."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def _check_input_dim(self, input: Tensor) -> None:
        _check(input, self._rank + 1, self._rank + 2)

    def _get_no_batch_dim(self) -> int:
        """Return how many dims an input without a batch has."""
        return self._rank + 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of each example; an input without batch dimension is one."""
        self._check_input_dim(input)
        channels = input.dim() - self._get_no_batch_dim()
        if input.shape[channels] != self.num_features:
            if self.affine:
                raise ValueError(
                    f"expected input's size at dim={channels} to match num_features "
                    f"({self.num_features}), but got: {input.shape[channels]}."
                )
            import warnings

            warnings.warn(
                f"input's size at dim={channels} does not match num_features. You can silence this "
                "warning by not passing in num_features, which is not used because affine=False",
                stacklevel=user_depth(),
            )
        batched = input if channels == 1 else input.unsqueeze(0)
        out = F.instance_norm(
            batched,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
        )
        return out if channels == 1 else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Instance norm of (N, C, L) or (C, L)."""

    _rank = 1


class InstanceNorm2d(_InstanceNorm):
    """Instance norm of (N, C, H, W) or (C, H, W)."""

    _rank = 2


class InstanceNorm3d(_InstanceNorm):
    """Instance norm of (N, C, D, H, W) or (C, D, H, W)."""

    _rank = 3


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape given as one size or as several."""
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    return tuple(normalized_shape)


class LayerNorm(_Affine):
    """Normalize over the last dimensions, of sizes `normalized_shape`. Ba et al., 2016."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight and bias of `normalized_shape`, if `elementwise_affine` (and `bias`)."""
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._make_parameters(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Divide by the root mean square of the last dimensions. Zhang and Sennrich, 2019."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make a weight of `normalized_shape`; `eps` None is the input dtype's."""
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        value = None
        if elementwise_affine:
            value = Parameter(webtorch.empty(self.normalized_shape, device=device, dtype=dtype))
        self.register_parameter("weight", value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(_Affine):
    """Normalize each example over each of `num_groups` groups of channels. Wu and He, 2018."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: DeviceLike = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Make weight and bias of (num_channels,), if `affine` (and `bias`)."""
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._make_parameters(num_channels, affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the options."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Divide by a power of the mean square of neighbouring channels. Krizhevsky et al., 2012."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        """Take `size` neighbours."""
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(Module):
    """Local response norm of old models, with PyTorch's windows.

    An even size means one neighbour less, and the first channel stays in the window of all channels after its own.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        """Take `size` neighbouring channels."""
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized (N, C, H, W) input."""
        if input.dim() != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.dim()}D instead.")
        reach = (self.size - 1) // 2
        wide = F.pad(input.square(), [0, 0, 0, 0, reach, reach]).unsqueeze(1)
        around = F.avg_pool3d(wide, (2 * reach + 1, 1, 1), stride=1).squeeze(1) * (2 * reach + 1)
        first = wide[:, :, reach : reach + 1].squeeze(1)
        later = webtorch.arange(input.shape[1], device=input.device) > reach
        around = around + first * later.to(input.dtype)[:, None, None]
        return input * (self.k + self.alpha / self.size * around).pow(-self.beta)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes; of one process, it is batch norm."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        device: DeviceLike = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """Make parameters and buffers of (num_features,)."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel by the statistics of all processes' batches."""
        group: Any = self.process_group
        uses_batch = self.training or self.running_mean is None
        if not (uses_batch and world.is_initialized() and world.get_world_size(group) > 1):
            return super().forward(input)
        self._check_input_dim(input)
        momentum = self._counted()
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        x = input.float() if input.dtype.itemsize < 4 else input
        count = x.new_full((1,), x.numel() // x.shape[1])
        sums = all_reduce(webtorch.cat([x.sum(dims), count]), group=group)
        count, mean = sums[-1], sums[:-1] / sums[-1]
        x = x - mean.reshape(shape)
        variance = all_reduce(x.square().sum(dims), group=group) / count
        if self.training and self.track_running_stats:
            with no_grad():
                unbiased = variance * (count / (count - 1))
                for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                    running.lerp_(new.to(running.dtype), momentum)
        out = x * (variance + self.eps).rsqrt().reshape(shape)
        if self.weight is not None:
            out = out * self.weight.reshape(shape)
        if self.bias is not None:
            out = out + self.bias.reshape(shape)
        return out.to(input.dtype)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: object = None) -> Module:
        """Return the module with its batch norms, also those below it, as this class."""
        out = module
        if isinstance(module, _BatchNorm):
            out = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_group, bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias"):
                setattr(out, name, getattr(module, name))
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(out, name, getattr(module, name))
            out.training = module.training
        for name, child in module.named_children():
            out.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return out
