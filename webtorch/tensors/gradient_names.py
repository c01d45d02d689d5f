"""Which name PyTorch shows for the gradient function of an operation that is made of others. Floor 4.

An operation that PyTorch has as one function, and webtorch writes with several, shows PyTorch's:
`x.mean()` has <MeanBackward0>, not the division that ends it. Entries that are one function here
too need no line; their name is made of the entry's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _overload(name: str, argument: int = 1, keyword: str = "dim") -> Callable[..., str]:
    """Name of an operation whose form over dims is PyTorch's second overload."""

    def title(*args: Any, **kwargs: Any) -> str:
        given = args[argument] if len(args) > argument else kwargs.get(keyword)
        return f"{name}Backward{0 if given is None else 1}"

    return title


def _chosen(name: str) -> Callable[..., str]:
    """Name of max and min: PyTorch's overload over a dim comes first there."""

    def title(*args: Any, **kwargs: Any) -> str:
        other = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("dim"))
        if hasattr(other, "_storage"):
            return f"{name}imumBackward0"
        return f"{name}Backward{1 if other is None else 0}"

    return title


def _linear(input: Any, weight: Any, bias: Any = None) -> str:
    if input.ndim == 2:
        return "MmBackward0" if bias is None else "AddmmBackward0"
    return "UnsafeViewBackward0" if bias is None or input.ndim == 1 else "ViewBackward0"


def _matmul(input: Any, other: Any, **_: Any) -> str:
    match (input.ndim, other.ndim):
        case (1, 1):
            return "DotBackward0"
        case (2, 1):
            return "MvBackward0"
        case (1, 2):
            return "SqueezeBackward4"
        case (2, 2):
            return "MmBackward0"
        case _:
            return "UnsafeViewBackward0"


def _interpolate(input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                 *rest: Any, **kwargs: Any) -> str:  # fmt: skip
    kinds = {"nearest": "Nearest", "nearest-exact": "NearestExact", "linear": "Linear",
             "bilinear": "Bilinear", "bicubic": "Bicubic", "trilinear": "Trilinear"}  # fmt: skip
    if mode == "area":
        return f"AdaptiveAvgPool{input.ndim - 2}DBackward0"
    return f"Upsample{kinds.get(mode, mode)}{input.ndim - 2}DBackward0"


def _nll(input: Any, target: Any = None, *args: Any, **kwargs: Any) -> str:
    if getattr(target, "dtype", None) is not None and target.dtype.is_floating_point:
        return "DivBackward1"
    return "NllLoss2DBackward0" if input.ndim > 2 else "NllLossBackward0"


def _power(input: Any, exponent: Any) -> str:
    if not hasattr(input, "_storage"):
        return "PowBackward2"
    return "PowBackward1" if hasattr(exponent, "_storage") else "PowBackward0"


def _plain(*names: str) -> dict[str, str]:
    return {n: "".join(p[:1].upper() + p[1:] for p in n.split("_")) + "Backward0" for n in names}


# Entry of the op table -> the name, or a function of the call's arguments that gives it.
GRADIENT_NAMES: dict[str, str | Callable[..., str]] = {
    **_plain(
        "gather", "index_select", "masked_fill", "scatter", "scatter_add", "amax", "amin", "topk",
        "std", "var", "tril", "triu", "trace", "flip", "roll", "nansum", "stack", "repeat",
        "addmm", "addmv", "addbmm", "baddbmm", "dot", "mv", "mm", "bmm", "logcumsumexp", "cumprod",
        "cummax", "cummin", "embedding", "masked_select", "index_add", "index_copy", "index_fill",
        "logsumexp", "renorm", "kthvalue", "masked_scatter", "take", "aminmax",
        "rot90", "pixel_shuffle", "pixel_unshuffle",
    ),
    "tile": "RepeatBackward0",
    "take_along_dim": "GatherBackward0",
    "kron": "UnsafeViewBackward0",
    "sum": _overload("Sum"),
    "mean": _overload("Mean"),
    "prod": _overload("Prod"),
    "max": _chosen("Max"),
    "min": _chosen("Min"),
    "median": _overload("Median"),
    "nanmedian": _overload("Nanmedian"),
    "sort": "SortBackward0",
    "norm": "LinalgVectorNormBackward0",
    "vector_norm": "LinalgVectorNormBackward0",
    "linalg_vector_norm": "LinalgVectorNormBackward0",
    "linear": _linear,
    "matmul": _matmul,
    "pow": _power,
    "split": "SplitBackward0",
    "chunk": "SplitBackward0",
    "unbind": "UnbindBackward0",
    "var_mean": "VarMeanBackward0",
    "std_mean": "StdMeanBackward0",
    "cross_entropy": _nll,
    "nll_loss": _nll,
    "mse_loss": "MseLossBackward0",
    "smooth_l1_loss": "SmoothL1LossBackward0",
    "huber_loss": "HuberLossBackward0",
    "binary_cross_entropy": "BinaryCrossEntropyBackward0",
    "binary_cross_entropy_with_logits": "BinaryCrossEntropyWithLogitsBackward0",
    "soft_margin_loss": "SoftMarginLossBackward0",
    "multi_margin_loss": "MultiMarginLossBackward0",
    "layer_norm": "NativeLayerNormBackward0",
    "batch_norm": "NativeBatchNormBackward0",
    "instance_norm": "ViewBackward0",
    "group_norm": "NativeGroupNormBackward0",
    "rms_norm": "FusedRmsNormBackward0",
    "gelu": "GeluBackward0",
    "glu": "GluBackward0",
    "logsigmoid": "LogSigmoidBackward0",
    "avg_pool1d": "SqueezeBackward1",
    "avg_pool2d": "AvgPool2DBackward0",
    "avg_pool3d": "AvgPool3DBackward0",
    "adaptive_avg_pool2d": lambda input, output_size: (
        "MeanBackward1" if output_size in (1, (1, 1), [1, 1]) else "AdaptiveAvgPool2DBackward0"
    ),
    "max_pool2d": "MaxPool2DWithIndicesBackward0",
    "max_pool3d": "MaxPool3DWithIndicesBackward0",
    "conv1d": "ConvolutionBackward0",
    "conv2d": "ConvolutionBackward0",
    "conv3d": "ConvolutionBackward0",
    "conv_transpose1d": "ConvolutionBackward0",
    "conv_transpose2d": "ConvolutionBackward0",
    "conv_transpose3d": "ConvolutionBackward0",
    "interpolate": _interpolate,
    "dropout": "MulBackward0",
    "scaled_dot_product_attention": "ScaledDotProductAttentionBackward0",
    "einsum": "ViewBackward0",
}  # fmt: skip
