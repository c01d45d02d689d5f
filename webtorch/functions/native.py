"""PyTorch's native names: normalisations with their statistics, grid samplers, the parts of floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from webtorch.errors import DTypeError
from webtorch.functions import (
    creation,
    decomposition,
    joining,
    lookup,
    movement,
    norm,
    padding,
    resize,
)
from webtorch.functions.factory import chosen_dtype, finish
from webtorch.functions.reduce import vector_norm
from webtorch.ir.dtype import (
    FLOATS,
    DType,
    Scalar,
    bfloat16,
    float16,
    int32,
    int64,
    promote_types,
)
from webtorch.ops.elementwise import is_tensor
from webtorch.ops.floats import frexp_exponent, nextafter_bfloat16, nextafter_half, nextafter_wide
from webtorch.ops.precision import to_type, widened
from webtorch.ops.primitive import cast_to
from webtorch.ops.record import Autocast, Example, composite, return_type
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.tensor import Tensor

FUNCTION = ("torch",)


@return_type("frexp")
class Frexp(NamedTuple):
    """What frexp returns."""

    mantissa: Tensor
    exponent: Tensor


@composite(
    family="index",
    function_in=FUNCTION,
    autocast=Autocast(gpu="fp32"),
    differs={"float16": "its statistics are float32, as PyTorch's are on a graphics card"},
)
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(layer_norm, means, reciprocal standard deviations)."""
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    out = norm.layer_norm(input, shape, weight, bias, eps)
    dims = tuple(range(input.ndim - len(shape), input.ndim))
    # As in PyTorch, the statistics have no gradient here.
    x = widened(input.detach())
    mean, scale = (
        x.mean(dims, keepdim=True),
        (x.var(dims, unbiased=False, keepdim=True) + eps).rsqrt(),
    )
    # On the CPU, PyTorch gives them in the input's type unless weights are wider; elsewhere in float32.
    if input._in_host_memory and (weight is None or weight.dtype is input.dtype):
        mean, scale = to_type(mean, input.dtype), to_type(scale, input.dtype)
    return out, mean, scale


@composite(family="index", function_in=FUNCTION, gradient_name="NativeGroupNormBackward0")
def native_group_norm(
    input: Tensor, weight: Tensor, bias: Tensor, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(group_norm, means, reciprocal standard deviations), the statistics (N, group)."""
    out = norm.group_norm(input.reshape((N, C, HxW)), group, weight, bias, eps).reshape(
        input._shape
    )
    x = input.reshape((N, group, C // group * HxW))
    return out, x.mean(-1), (x.var(-1, unbiased=False) + eps).rsqrt()


@composite(family="index", function_in=FUNCTION)
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch_norm, means, reciprocal standard deviations of this batch); the last two are empty outside training."""
    x = input.detach()
    dims = (0, *range(2, input.ndim))
    out = norm.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        none = creation.empty(0, dtype=input.dtype, device=input.device)
        return out, none, movement.clone(none)
    return out, x.mean(dims), (x.var(dims, unbiased=False) + eps).rsqrt()


@composite(family="index", function_in=FUNCTION)
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    """The input inside a border of `value`, its widths counted from the last dim."""
    return padding.pad(input, pad, "constant", value)


def _sampler(name: str, **fields: Any) -> None:
    def function(
        input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> Tensor:
        """Return samples, with modes as numbers."""
        mode = ("bilinear", "nearest", "bicubic")[interpolation_mode]
        beyond = ("zeros", "border", "reflection")[padding_mode]
        return resize.grid_sample(input, grid, mode, beyond, align_corners)

    function.__doc__ = "nn.functional.grid_sample with modes as numbers."
    composite(name=name, family="index", function_in=FUNCTION, **fields)(function)


_sampler(
    "grid_sampler",
    autocast=Autocast("fp32", "promote"),
    example=Example(((1, 2, 5, 6), (1, 3, 4, 2)), (0, 0, False)),
)
_sampler("grid_sampler_2d", gradient_name="GridSampler2DBackward0")
_sampler("grid_sampler_3d", gradient_name="GridSampler3DBackward0")


@composite(family="creation", function_in=FUNCTION, factory=True, drawn=True)
def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Uninitialised memory whose dims lie in the order `physical_layout`, the outermost first."""
    if len(size) != len(physical_layout):
        raise RuntimeError(
            "Number of dimensions in size does not match the length of the physical_layout; i.e. "
            f"len(size) = {len(size)} is not equal to len(physical_layout) = {len(physical_layout)}"
        )
    rank = len(size)
    for k, d in enumerate(physical_layout):
        if not 0 <= d < rank:
            raise RuntimeError(
                f"Dimension out of range (expected to be between 0 and {rank - 1}, but got {d} at index {k})."
            )
        if list(physical_layout).count(d) > 1:
            raise RuntimeError(f"Duplicate dim not allowed: {d}")
    wanted = chosen_dtype(dtype)
    made = creation.empty(tuple(size[d] for d in physical_layout), dtype=wanted, device=device)
    back = [list(physical_layout).index(d) for d in range(rank)]
    return finish(made.permute(back) if rank else made, requires_grad)


# -- the parts of a float -----------------------------------------------------------------------------


@composite(inplace=True, dtypes=FLOATS, out="cast", aten=("nextafter",), overlap="whole")
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number of the type after input, towards other."""
    for number, x in enumerate((input, other)):
        if not is_tensor(x):
            raise TypeError(
                f"nextafter(): argument '{('input', 'other')[number]}' (position {number + 1}) must be "
                f"Tensor, not {type(x).__name__}"
            )
    dtype = promote_types(input.dtype, other.dtype)
    entries = {float16: nextafter_half, bfloat16: nextafter_bfloat16}
    return entries.get(dtype, nextafter_wide)(input, other)


@composite(family="index", gradient_name="FrexpBackward0", aten=("frexp",), overlap="whole")
def frexp(input: Tensor) -> Frexp:
    """(mantissa, exponent) with input = mantissa * 2 ** exponent and 0.5 <= |mantissa| < 1."""
    if input.dtype.kind != "float":
        raise DTypeError("torch.frexp() only supports floating-point dtypes")
    e = frexp_exponent(input.detach())
    wide = widened(input)
    half = (cast_to(e, wide.dtype) / 2).floor()
    # In two steps: 2 ** e itself may be out of range.
    mantissa = wide * (-half).exp2() * (half - cast_to(e, wide.dtype)).exp2()
    return Frexp(cast_to(mantissa, input.dtype), cast_to(e, int32))


# -- torch's forms of functions of nn.functional ------------------------------------------------------


@composite(
    name="torch_batch_norm",
    family="index",
    function_in=FUNCTION,
    torch="batch_norm",
    example=Example(((4, 3, 5), (3,), (3,)), (None, None, True, 0.1, 1e-05, False)),
)
def torch_batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """nn.functional.batch_norm with its arguments in another order."""
    return norm.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@composite(
    name="torch_instance_norm",
    family="index",
    function_in=FUNCTION,
    torch="instance_norm",
    example=Example(((4, 3, 5), (3,), (3,)), (None, None, True, 0.1, 1e-05, False)),
)
def torch_instance_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """nn.functional.instance_norm with its arguments in another order."""
    return norm.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


@composite(
    name="torch_embedding",
    family="index",
    function_in=FUNCTION,
    torch="embedding",
    example=Example(((5, 3), "i5")),
)
def torch_embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """nn.functional.embedding with the weight first; padding_idx -1 is none."""
    chosen = None if padding_idx == -1 else padding_idx
    return lookup.embedding(indices, weight, chosen, None, 2.0, scale_grad_by_freq, sparse)


@composite(
    family="index",
    function_in=FUNCTION,
    autocast=Autocast(gpu="fp32"),
    example=Example(((3, 5),), ([1],)),
)
def frobenius_norm(input: Tensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """The root of the sum of squares over `dim`, over all dims by default."""
    return vector_norm(input, 2, None if not isinstance(dim, int) and not dim else dim, keepdim)


@composite(
    family="index", function_in=FUNCTION, autocast=Autocast(gpu="fp32"), example=Example(((4, 4),))
)
def nuclear_norm(
    input: Tensor, dim: int | Sequence[int] = (-2, -1), keepdim: bool = False
) -> Tensor:
    """The sum of the singular values of matrices."""
    return decomposition.matrix_norm(input, "nuc", dim, keepdim)


@composite(family="index", function_in=FUNCTION, example=Example(((6,),)))
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The matrix of powers of a vector's elements, falling from N - 1 to 0 unless `increasing`."""
    if x.ndim != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    count = x._shape[0] if N is None else N
    if count < 0:
        raise RuntimeError("N must be non-negative.")
    kind = x.dtype if x.dtype.has_gradient else int64
    powers = [cast_to(x, kind) ** k for k in range(count)]
    if not powers:
        return creation.empty((x._shape[0], 0), dtype=kind, device=x.device)
    return joining.stack(powers if increasing else powers[::-1], 1)


@composite(family="index", function_in=FUNCTION, example="works on the host")
def is_neg(input: Tensor) -> bool:
    """Return False: no tensor is a lazily negated view."""
    return False


@composite(family="index", function_in=FUNCTION, example="works on the host")
def is_conj(input: Tensor) -> bool:
    """Return False: no tensor is a lazily conjugated view."""
    return False
