"""PyTorch's functions of neural networks. Written by tools/stubs.py from the op table; not edited by hand."""

from collections.abc import Callable as _Callable
from collections.abc import Sequence as _Sequence
from typing import Literal as _Literal
from typing import overload as _overload

from webtorch.functions.convolution import Sizes as _Sizes
from webtorch.ir.dtype import DType as _DType
from webtorch.ir.dtype import Number as _Number
from webtorch.ir.dtype import Scalar as _Scalar
from webtorch.nn.size import Sizes as _size_Sizes
from webtorch.tensors.promotion import Operand as _Operand
from webtorch.tensors.tensor import Tensor as _Tensor

def adaptive_avg_pool1d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None
) -> _Tensor: ...
def adaptive_avg_pool2d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None
) -> _Tensor: ...
def adaptive_avg_pool3d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None
) -> _Tensor: ...
@_overload
def adaptive_max_pool1d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def adaptive_max_pool1d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def adaptive_max_pool1d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None, return_indices: bool = ...
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
@_overload
def adaptive_max_pool2d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def adaptive_max_pool2d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def adaptive_max_pool2d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None, return_indices: bool = ...
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
@_overload
def adaptive_max_pool3d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def adaptive_max_pool3d(
    input: _Tensor,
    output_size: int | _Sequence[int | None] | None,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def adaptive_max_pool3d(
    input: _Tensor, output_size: int | _Sequence[int | None] | None, return_indices: bool = ...
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def affine_grid(
    theta: _Tensor, size: _Sequence[int], align_corners: bool | None = ...
) -> _Tensor: ...
def alpha_dropout(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def avg_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: int | _Sequence[int] | None = ...,
    padding: _Sizes = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> _Tensor: ...
def avg_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
    divisor_override: int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def avg_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
    divisor_override: int | None = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def batch_norm(
    input: _Tensor,
    running_mean: _Tensor | None,
    running_var: _Tensor | None,
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    training: bool = ...,
    momentum: float = ...,
    eps: float = ...,
) -> _Tensor: ...
def bilinear(
    input1: _Tensor, input2: _Tensor, weight: _Tensor, bias: _Tensor | None = ...
) -> _Tensor: ...
def binary_cross_entropy(
    input: _Tensor,
    target: _Tensor,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def binary_cross_entropy_with_logits(
    input: _Tensor,
    target: _Tensor,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    pos_weight: _Tensor | None = ...,
) -> _Tensor: ...
def celu(
    input: _Tensor, alpha: _Number = ..., inplace: bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def celu_(input: _Tensor, alpha: _Number = ...) -> _Tensor: ...
def channel_shuffle(input: _Tensor, groups: int) -> _Tensor: ...
def conv1d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: int = ...,
) -> _Tensor: ...
def conv2d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: int = ...,
) -> _Tensor: ...
def conv3d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes | str = ...,
    dilation: _Sizes = ...,
    groups: int = ...,
) -> _Tensor: ...
def conv_tbc(input: _Tensor, weight: _Tensor, bias: _Tensor, pad: int = ...) -> _Tensor: ...
def conv_transpose1d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: int = ...,
    dilation: _Sizes = ...,
) -> _Tensor: ...
def conv_transpose2d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: int = ...,
    dilation: _Sizes = ...,
) -> _Tensor: ...
def conv_transpose3d(
    input: _Tensor,
    weight: _Tensor,
    bias: _Tensor | None = ...,
    stride: _Sizes = ...,
    padding: _Sizes = ...,
    output_padding: _Sizes = ...,
    groups: int = ...,
    dilation: _Sizes = ...,
) -> _Tensor: ...
def cosine_embedding_loss(
    input1: _Tensor,
    input2: _Tensor,
    target: _Tensor,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def cosine_similarity(x1: _Tensor, x2: _Tensor, dim: int = ..., eps: float = ...) -> _Tensor: ...
def cross_entropy(
    input: _Tensor,
    target: _Tensor,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    ignore_index: int = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
) -> _Tensor: ...
def dropout(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def dropout1d(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def dropout2d(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def dropout3d(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def elu(
    input: _Tensor, alpha: _Number = ..., inplace: bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def elu_(input: _Tensor, alpha: _Number = ...) -> _Tensor: ...
def embedding(
    input: _Tensor,
    weight: _Tensor,
    padding_idx: int | None = ...,
    max_norm: float | None = ...,
    norm_type: float = ...,
    scale_grad_by_freq: bool = ...,
    sparse: bool = ...,
) -> _Tensor: ...
def feature_alpha_dropout(
    input: _Tensor, p: float = ..., training: bool = ..., inplace: bool = ...
) -> _Tensor: ...
def fold(
    input: _Tensor,
    output_size: _Sizes,
    kernel_size: _Sizes,
    dilation: _Sizes = ...,
    padding: _Sizes = ...,
    stride: _Sizes = ...,
) -> _Tensor: ...
def gaussian_nll_loss(
    input: _Tensor,
    target: _Tensor,
    var: _Tensor | float,
    full: bool = ...,
    eps: float = ...,
    reduction: str = ...,
) -> _Tensor: ...
def gelu(input: _Tensor, approximate: str = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def glu(input: _Tensor, dim: int = ...) -> _Tensor: ...
def grid_sample(
    input: _Tensor,
    grid: _Tensor,
    mode: str = ...,
    padding_mode: str = ...,
    align_corners: bool | None = ...,
) -> _Tensor: ...
def group_norm(
    input: _Tensor,
    num_groups: int,
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    eps: float = ...,
) -> _Tensor: ...
def grouped_mm(
    mat_a: _Tensor,
    mat_b: _Tensor,
    *,
    offs: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    out_dtype: _DType | None = ...,
) -> _Tensor: ...
def gumbel_softmax(
    logits: _Tensor, tau: float = ..., hard: bool = ..., eps: float = ..., dim: int = ...
) -> _Tensor: ...
def hardshrink(input: _Tensor, lambd: _Number = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def hardsigmoid(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def hardswish(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def hardtanh(
    input: _Tensor,
    min_val: _Number = ...,
    max_val: _Number = ...,
    inplace: bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def hardtanh_(input: _Tensor, min_val: _Number = ..., max_val: _Number = ...) -> _Tensor: ...
def hinge_embedding_loss(
    input: _Tensor,
    target: _Tensor,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def huber_loss(
    input: _Tensor,
    target: _Tensor,
    reduction: str = ...,
    delta: float = ...,
    weight: _Tensor | None = ...,
) -> _Tensor: ...
def instance_norm(
    input: _Tensor,
    running_mean: _Tensor | None = ...,
    running_var: _Tensor | None = ...,
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    use_input_stats: bool = ...,
    momentum: float = ...,
    eps: float = ...,
) -> _Tensor: ...
def interpolate(
    input: _Tensor,
    size: _Sequence[int] | int | None = ...,
    scale_factor: float | _Sequence[float] | None = ...,
    mode: str = ...,
    align_corners: bool | None = ...,
    recompute_scale_factor: bool | None = ...,
    antialias: bool = ...,
) -> _Tensor: ...
def kl_div(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    log_target: bool = ...,
) -> _Tensor: ...
def l1_loss(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    weight: _Tensor | None = ...,
) -> _Tensor: ...
def layer_norm(
    input: _Tensor,
    normalized_shape: int | _Sequence[int],
    weight: _Tensor | None = ...,
    bias: _Tensor | None = ...,
    eps: float = ...,
) -> _Tensor: ...
def leaky_relu(
    input: _Tensor, negative_slope: _Number = ..., inplace: bool = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def leaky_relu_(input: _Tensor, negative_slope: _Number = ...) -> _Tensor: ...
def linear(
    input: _Tensor, weight: _Tensor, bias: _Tensor | None = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def log_softmax(input: _Tensor, dim: int | None = ..., dtype: _DType | None = ...) -> _Tensor: ...
def logsigmoid(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def lp_pool1d(
    input: _Tensor,
    norm_type: float,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    ceil_mode: bool = ...,
) -> _Tensor: ...
def lp_pool2d(
    input: _Tensor,
    norm_type: float,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    ceil_mode: bool = ...,
) -> _Tensor: ...
def lp_pool3d(
    input: _Tensor,
    norm_type: float,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    ceil_mode: bool = ...,
) -> _Tensor: ...
def margin_ranking_loss(
    input1: _Tensor,
    input2: _Tensor,
    target: _Tensor,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool1d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def max_pool1d_with_indices(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool2d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def max_pool2d_with_indices(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: _Literal[False] = ...,
) -> _Tensor: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    *,
    return_indices: _Literal[True],
) -> tuple[_Tensor, _Tensor]: ...
@_overload
def max_pool3d(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def max_pool3d_with_indices(
    input: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    dilation: _Sizes = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> tuple[_Tensor, _Tensor]: ...
def max_unpool1d(
    input: _Tensor,
    indices: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    output_size: _Sequence[int] | None = ...,
) -> _Tensor: ...
def max_unpool2d(
    input: _Tensor,
    indices: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    output_size: _Sequence[int] | None = ...,
) -> _Tensor: ...
def max_unpool3d(
    input: _Tensor,
    indices: _Tensor,
    kernel_size: _Sizes,
    stride: _Sizes | None = ...,
    padding: _Sizes = ...,
    output_size: _Sequence[int] | None = ...,
) -> _Tensor: ...
def mish(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def mse_loss(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    weight: _Tensor | None = ...,
) -> _Tensor: ...
def native_channel_shuffle(input: _Tensor, groups: int) -> _Tensor: ...
def nll_loss(
    input: _Tensor,
    target: _Tensor,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    ignore_index: int = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def normalize(input: _Tensor, p: float = ..., dim: int = ..., eps: float = ...) -> _Tensor: ...
def one_hot(tensor: _Tensor, num_classes: int = ...) -> _Tensor: ...
def pad(
    input: _Tensor, pad: _Sequence[int], mode: str = ..., value: _Scalar | None = ...
) -> _Tensor: ...
def pairwise_distance(
    x1: _Tensor, x2: _Tensor, p: float = ..., eps: float = ..., keepdim: bool = ...
) -> _Tensor: ...
def pdist(input: _Tensor, p: float = ...) -> _Tensor: ...
def pixel_shuffle(input: _Tensor, upscale_factor: int) -> _Tensor: ...
def pixel_unshuffle(input: _Tensor, downscale_factor: int) -> _Tensor: ...
def poisson_nll_loss(
    input: _Tensor,
    target: _Tensor,
    log_input: bool = ...,
    full: bool = ...,
    size_average: bool | None = ...,
    eps: float = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def prelu(input: _Tensor, weight: _Tensor) -> _Tensor: ...
def relu(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def relu6(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def relu_(input: _Tensor) -> _Tensor: ...
def rms_norm(
    input: _Tensor,
    normalized_shape: int | _Sequence[int],
    weight: _Tensor | None = ...,
    eps: float | None = ...,
) -> _Tensor: ...
def rrelu(
    input: _Tensor,
    lower: float = ...,
    upper: float = ...,
    training: bool = ...,
    inplace: bool = ...,
) -> _Tensor: ...
def rrelu_(
    input: _Tensor, lower: float = ..., upper: float = ..., training: bool = ...
) -> _Tensor: ...
def scaled_dot_product_attention(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    attn_mask: _Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
) -> _Tensor: ...
def selu(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def selu_(input: _Tensor) -> _Tensor: ...
def sigmoid(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def silu(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def smooth_l1_loss(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    beta: float = ...,
) -> _Tensor: ...
def snake(input: _Tensor, alpha: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def soft_margin_loss(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def softmax(input: _Tensor, dim: int | None = ..., dtype: _DType | None = ...) -> _Tensor: ...
def softmin(input: _Tensor, dim: int | None = ..., dtype: _DType | None = ...) -> _Tensor: ...
def softplus(
    input: _Tensor,
    beta: _Number = ...,
    threshold: _Number = ...,
    inplace: bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def softshrink(input: _Tensor, lambd: float = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def softsign(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def style_affine(
    input: _Tensor, gamma: _Operand, beta: _Operand, *, out: _Tensor | None = ...
) -> _Tensor: ...
def swiglu(gate: _Tensor, value: _Operand, *, out: _Tensor | None = ...) -> _Tensor: ...
def tanh(input: _Tensor, inplace: bool = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def tanhshrink(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def threshold(
    input: _Tensor,
    threshold: _Number,
    value: _Number,
    inplace: bool = ...,
    *,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def threshold_(input: _Tensor, threshold: _Number, value: _Number) -> _Tensor: ...
def triplet_margin_loss(
    anchor: _Tensor,
    positive: _Tensor,
    negative: _Tensor,
    margin: float = ...,
    p: float = ...,
    eps: float = ...,
    swap: bool = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def unfold(
    input: _Tensor,
    kernel_size: _Sizes,
    dilation: _Sizes = ...,
    padding: _Sizes = ...,
    stride: _Sizes = ...,
) -> _Tensor: ...
def upsample(
    input: _Tensor,
    size: _Sequence[int] | int | None = ...,
    scale_factor: float | None = ...,
    mode: str = ...,
    align_corners: bool | None = ...,
) -> _Tensor: ...
def upsample_bilinear(
    input: _Tensor,
    size: _Sequence[int] | int | None = ...,
    scale_factor: float | _Sequence[float] | None = ...,
) -> _Tensor: ...
def upsample_nearest(
    input: _Tensor, size: _Sequence[int] | int | None = ..., scale_factor: float | None = ...
) -> _Tensor: ...
def adaptive_max_pool1d_with_indices(
    input: _Tensor, output_size: int | _Sequence[int | None], return_indices: bool = ...
) -> tuple[_Tensor, _Tensor]: ...
def adaptive_max_pool2d_with_indices(
    input: _Tensor, output_size: int | _Sequence[int | None], return_indices: bool = ...
) -> tuple[_Tensor, _Tensor]: ...
def adaptive_max_pool3d_with_indices(
    input: _Tensor, output_size: int | _Sequence[int | None], return_indices: bool = ...
) -> tuple[_Tensor, _Tensor]: ...
def ctc_loss(
    log_probs: _Tensor,
    targets: _Tensor,
    input_lengths: _Tensor | _Sequence[int],
    target_lengths: _Tensor | _Sequence[int],
    blank: int = ...,
    reduction: str = ...,
    zero_infinity: bool = ...,
) -> _Tensor: ...
def embedding_bag(
    input: _Tensor,
    weight: _Tensor,
    offsets: _Tensor | None = ...,
    max_norm: float | None = ...,
    norm_type: float = ...,
    scale_grad_by_freq: bool = ...,
    mode: str = ...,
    sparse: bool = ...,
    per_sample_weights: _Tensor | None = ...,
    include_last_offset: bool = ...,
    padding_idx: int | None = ...,
) -> _Tensor: ...
def fractional_max_pool2d(
    input: _Tensor,
    kernel_size: _size_Sizes,
    output_size: _size_Sizes | None = ...,
    output_ratio: float | _Sequence[float] | None = ...,
    return_indices: bool = ...,
    _random_samples: _Tensor | None = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def fractional_max_pool2d_with_indices(
    input: _Tensor,
    kernel_size: _size_Sizes,
    output_size: _size_Sizes | None = ...,
    output_ratio: float | _Sequence[float] | None = ...,
    return_indices: bool = ...,
    _random_samples: _Tensor | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
def fractional_max_pool3d(
    input: _Tensor,
    kernel_size: _size_Sizes,
    output_size: _size_Sizes | None = ...,
    output_ratio: float | _Sequence[float] | None = ...,
    return_indices: bool = ...,
    _random_samples: _Tensor | None = ...,
) -> _Tensor | tuple[_Tensor, _Tensor]: ...
def fractional_max_pool3d_with_indices(
    input: _Tensor,
    kernel_size: _size_Sizes,
    output_size: _size_Sizes | None = ...,
    output_ratio: float | _Sequence[float] | None = ...,
    return_indices: bool = ...,
    _random_samples: _Tensor | None = ...,
) -> tuple[_Tensor, _Tensor]: ...
def linear_cross_entropy(
    input: _Tensor,
    linear_weight: _Tensor,
    target: _Tensor,
    *,
    linear_bias: _Tensor | None = ...,
    weight: _Tensor | None = ...,
    reduction: str = ...,
    ignore_index: int | None = ...,
    label_smoothing: float = ...,
    options: object = ...,
) -> _Tensor: ...
def local_response_norm(
    input: _Tensor, size: int, alpha: float = ..., beta: float = ..., k: float = ...
) -> _Tensor: ...
def multi_head_attention_forward(
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: _Tensor | None,
    in_proj_bias: _Tensor | None,
    bias_k: _Tensor | None,
    bias_v: _Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: _Tensor,
    out_proj_bias: _Tensor | None,
    training: bool = ...,
    key_padding_mask: _Tensor | None = ...,
    need_weights: bool = ...,
    attn_mask: _Tensor | None = ...,
    use_separate_proj_weight: bool = ...,
    q_proj_weight: _Tensor | None = ...,
    k_proj_weight: _Tensor | None = ...,
    v_proj_weight: _Tensor | None = ...,
    static_k: _Tensor | None = ...,
    static_v: _Tensor | None = ...,
    average_attn_weights: bool = ...,
    is_causal: bool = ...,
) -> tuple[_Tensor, _Tensor | None]: ...
def multi_margin_loss(
    input: _Tensor,
    target: _Tensor,
    p: int = ...,
    margin: float = ...,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def multilabel_margin_loss(
    input: _Tensor,
    target: _Tensor,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def multilabel_soft_margin_loss(
    input: _Tensor,
    target: _Tensor,
    weight: _Tensor | None = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> _Tensor: ...
def triplet_margin_with_distance_loss(
    anchor: _Tensor,
    positive: _Tensor,
    negative: _Tensor,
    *,
    distance_function: _Callable[[_Tensor, _Tensor], _Tensor] | None = ...,
    margin: float = ...,
    swap: bool = ...,
    reduction: str = ...,
) -> _Tensor: ...
