"""Names of `torch` itself that are not webtorch's: its version, and element types that are absent."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any, NamedTuple

from webtorch import webgpu
from webtorch.as_torch.names.foreach import NAMES, foreach
from webtorch.as_torch.names.library import Tag as Tag
from webtorch.as_torch.names.serialization import PyTorchFileReader as PyTorchFileReader
from webtorch.as_torch.names.serialization import PyTorchFileWriter as PyTorchFileWriter
from webtorch.functions import public as webtorch
from webtorch.functions.storages import FloatStorage as Storage  # noqa: F401
from webtorch.functions.storages import StorageBase as StorageBase
from webtorch.futures import Future as Future
from webtorch.jit import ScriptModule as ScriptModule
from webtorch.nn.functional.attention import multi_head_attention_forward
from webtorch.ops.record import TABLE
from webtorch.tensors.absent import why_missing
from webtorch.tensors.formats import layout
from webtorch.tensors.tensor import Tensor
from webtorch.version import __version__ as __version__


class AbsentDType:
    """An element type that PyTorch has and webtorch does not: a name to compare with, never a tensor's."""

    def __init__(self, name: str, floating: bool = False, complex: bool = False) -> None:
        """Name the type."""
        self.name, self.is_floating_point, self.is_complex = name, floating, complex

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"torch.{self.name}: {why_missing('', self.name)}", name=name, obj=None
        )


float8_e4m3fn = AbsentDType("float8_e4m3fn", True)
float8_e4m3fnuz = AbsentDType("float8_e4m3fnuz", True)
float8_e5m2 = AbsentDType("float8_e5m2", True)
float8_e5m2fnuz = AbsentDType("float8_e5m2fnuz", True)
float8_e8m0fnu = AbsentDType("float8_e8m0fnu", True)
float4_e2m1fn_x2 = AbsentDType("float4_e2m1fn_x2", True)
qint8, quint8, qint32 = AbsentDType("qint8"), AbsentDType("quint8"), AbsentDType("qint32")
quint4x2, quint2x4 = AbsentDType("quint4x2"), AbsentDType("quint2x4")


def _is_all_true(input: Tensor) -> Tensor:
    """Whether all elements of a bool tensor are true, as a tensor."""
    return input.all()


def _is_any_true(input: Tensor) -> Tensor:
    """Whether an element of a bool tensor is true, as a tensor."""
    return input.any()


class _Limits(NamedTuple):
    """Limits of a floating type, as torch.finfo gives them."""

    dtype: str
    bits: int
    min: float
    max: float
    eps: float
    tiny: float
    resolution: float = 1.0

    @property
    def smallest_normal(self) -> float:
        """The smallest number that is not denormal."""
        return self.tiny


_LIMITS = {
    "float8_e4m3fn": (-448.0, 448.0, 0.125, 2.0**-6),
    "float8_e4m3fnuz": (-240.0, 240.0, 0.125, 2.0**-7),
    "float8_e5m2": (-57344.0, 57344.0, 0.25, 2.0**-14),
    "float8_e5m2fnuz": (-57344.0, 57344.0, 0.125, 2.0**-15),
}


def finfo(dtype: object = None) -> Any:
    """Return the limits of a floating type, also of the absent 8-bit ones: tables are made of them."""
    if isinstance(dtype, AbsentDType) and dtype.name in _LIMITS:
        return _Limits(dtype.name, 8, *_LIMITS[dtype.name])
    return webtorch.finfo(dtype)


# What PyTorch's build says it was made with; linear algebra and Fourier transforms are here without libraries.
has_lapack = has_spectral = True
has_mkl = has_openmp = False
jagged = layout("torch.jagged")
_mkldnn = layout("torch._mkldnn")
_tensor_classes = frozenset(
    kind for name, kind in vars(webtorch).items() if name.endswith("Tensor") and name != "Tensor"
)


def compiled_with_cxx11_abi() -> bool:
    """Return True: there is no C++ here to differ."""
    return True


_grid_sampler_2d_cpu_fallback = webtorch.grid_sampler_2d
_segment_reduce = webtorch.segment_reduce


def _int_mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices of int8 in int32."""
    for name, x, types in (("self", input, ("int8", "uint8")), ("mat2", mat2, ("int8",))):
        if x.dtype.name not in types:
            kinds = " or ".join(types) if name == "self" else "of type int8"
            raise RuntimeError(
                f"int_mm_out_cpu: Expected {name} dtype to be {kinds} but got {x.dtype.c_name}"
            )
    return webtorch.mm(input.int(), mat2.int(), out=out)


def _addmm_activation(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Return what `addmm` gives, through GELU or cut off at zero."""
    found = webtorch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)
    found = TABLE["gelu"](found) if use_gelu else found.relu()
    return found if out is None else out.copy_(found)


def _transform_bias_rescale_qkv(
    qkv: Tensor, qkv_bias: Tensor, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (divided by the root of their width), keys and values of each head."""
    q, k, v = (
        x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (qkv + qkv_bias).chunk(3, -1)
    )
    return q / q.shape[-1] ** 0.5, k, v


def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return what `MultiheadAttention` gives with the batch first, and the weights where they are asked for."""
    if (query.shape[-1], qkv_weight.shape[0]) != (embed_dim, 3 * embed_dim):
        raise RuntimeError(
            f"_native_multi_head_attention: expected query of {embed_dim} features and qkv_weight of {3 * embed_dim} "
            f"rows (embed_dim), got {query.shape[-1]} and {qkv_weight.shape[0]}"
        )
    padding = None
    if mask is not None and mask.ndim == 2 and mask_type == 1:
        padding, mask = mask, None
    elif mask is not None and mask.ndim > 3:
        # Of masks of each head, (N, H, L, S), heads of a batch lie one after the other there.
        mask = mask.flatten(0, -3)
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    out, weights = multi_head_attention_forward(
        query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, None, None, False, 0.0, proj_weight, proj_bias,
        key_padding_mask=padding, need_weights=need_weights, attn_mask=mask, average_attn_weights=average_attn_weights,
    )  # fmt: skip
    return out.transpose(0, 1), weights


def _weight_int8pack_mm(input: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """Return the product with weights of int8, which lie as those of a linear layer, and of which each row has a
    factor.
    """
    return webtorch.mm(input, mat2.to(input.dtype).t()) * scales


def _convert_weight_to_int4pack_for_cpu(input: Tensor, innerKTiles: int) -> Tensor:
    """Return numbers from 0 to 15, two in a byte, in their order."""
    pairs = input.reshape(input.shape[0], -1, 2).to(webtorch.int32)
    return (pairs[..., 0] + pairs[..., 1] * 16).to(webtorch.uint8)


def _weight_int4pack_mm_for_cpu(
    input: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor
) -> Tensor:
    """Return the product with weights of 4 bits, as those of a linear layer: of each group of a row there are a factor
    and what the number 8 stands for.
    """
    low, high = mat2.to(webtorch.int32) % 16, mat2.to(webtorch.int32) // 16
    whole = webtorch.stack([low, high], 2).reshape(mat2.shape[0], -1, qGroupSize) - 8
    # Factors lie by groups, then rows.
    scale, zero = (qScaleAndZeros[..., i].t().unsqueeze(2) for i in (0, 1))
    weights = whole.to(input.dtype) * scale + zero
    return webtorch.mm(input, weights.reshape(mat2.shape[0], -1).t())


def _unique2(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return the different elements, where each went and how often it occurs."""
    return webtorch.unique(input, sorted, True, True)


def _unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return the different elements, and where each went."""
    return _unique2(input)[:2]


def _add_relu(
    input: Tensor, other: Tensor, *, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """Return the sum, zero where it is negative."""
    found = webtorch.add(input, other, alpha=alpha).relu()
    return found if out is None else out.copy_(found)


def _add_relu_(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    """Do the same in place."""
    return input.add_(other, alpha=alpha).relu_()


def _debug_has_internal_overlap(tensor: Tensor) -> int:
    """Return 0 if no two elements share a place, 1 if some do, 2 where that takes more than a look at the strides."""
    if tensor.is_contiguous() or not tensor.numel():
        return 0
    dims = sorted((st, n) for n, st in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    if any(stride == 0 for stride, _ in dims):
        return 1
    dense = 1
    for stride, size in dims:
        if stride != dense:
            return 2
        dense *= size
    return 0


def _amp_update_scale_(
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """Step the scale of a gradient scaler: back where an infinity was found, up after so many steps without."""
    bad = found_inf > 0
    count = webtorch.where(bad, 0, growth_tracker + 1)
    grown = self * scale_growth_factor
    grows = (count == growth_interval) & webtorch.isfinite(grown)
    scale = webtorch.where(bad, self * scale_backoff_factor, webtorch.where(grows, grown, self))
    growth_tracker.copy_(webtorch.where(count == growth_interval, 0, count))
    return self.copy_(scale)


def _amp_foreach_non_finite_check_and_unscale_(
    tensors: list[Tensor], found_inf: Tensor, inv_scale: Tensor
) -> None:
    """Multiply gradients by a number, and note whether one of them is not finite."""
    for t in tensors:
        found_inf.copy_(webtorch.where(webtorch.isfinite(t).all(), found_inf, 1.0))
        t.mul_(inv_scale)


def get_device_module(device: object = None) -> Any:
    """Return the module of a device's functions: `webtorch.webgpu`."""
    return webgpu


# Beginnings of names that are operators, and where these are.
_OPERATORS = {"_masked_softmax": "layers", "_unsafe_masked_index": "indexing", "_fft_": "algebra"}


def __getattr__(name: str) -> Any:
    if name.startswith("_foreach_") and name.removeprefix("_foreach_") in NAMES:
        return foreach(name.removeprefix("_foreach_"))
    if name.startswith(
        ("_convert_indices_from_", "_validate_sparse_", "_validate_compressed_sparse_")
    ):
        return getattr(_import_module("webtorch.as_torch.names.sparse_parts"), name)
    for begin, home in _OPERATORS.items():
        if name.startswith(begin):
            return getattr(_import_module(f"webtorch.aten.{home}"), name)
    if name == "default_generator":
        return webtorch.default_generator("cpu")
    if name == "export":
        # PyTorch's module; webtorch's own function of this name writes pages (`webtorch.web.export`).
        return _import_module("webtorch.fx.export")
    raise AttributeError(f"module 'torch' has no attribute {name!r}")


def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Return what `torch.nn.functional.grouped_mm` does."""
    found: Tensor = TABLE["grouped_mm"](self, mat2, offs=offs, bias=bias, out_dtype=out_dtype)
    return found
