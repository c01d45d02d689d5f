"""PyTorch's functions of neural networks. Written by tools/stubs.py from the op table; not edited by hand."""

from typing import Any

from webtorch import Tensor

def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any: ...
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any: ...
def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any: ...
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = ...) -> Any: ...
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = ...) -> Any: ...
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = ...) -> Any: ...
def affine_grid(theta: Any, size: Any, align_corners: bool | None = ...) -> Any: ...
def alpha_dropout(input: Any, p: float = ..., training: bool = ..., inplace: bool = ...) -> Any: ...
def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
) -> Any: ...
def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
    divisor_override: int | None = ...,
) -> Any: ...
def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    count_include_pad: bool = ...,
    divisor_override: int | None = ...,
) -> Any: ...
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = ...,
    bias: Any = ...,
    training: bool = ...,
    momentum: Any = ...,
    eps: float = ...,
) -> Any: ...
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = ...) -> Any: ...
def binary_cross_entropy(
    input: Any,
    target: Any,
    weight: Any = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    pos_weight: Any = ...,
) -> Any: ...
def celu(*args: Any, **kwargs: Any) -> Any: ...
def celu_(*args: Any, **kwargs: Any) -> Any: ...
def channel_shuffle(input: Any, groups: int) -> Any: ...
def conv1d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: int = ...,
) -> Any: ...
def conv2d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: int = ...,
) -> Any: ...
def conv3d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    groups: int = ...,
) -> Any: ...
def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    groups: int = ...,
    dilation: Any = ...,
) -> Any: ...
def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    groups: int = ...,
    dilation: Any = ...,
) -> Any: ...
def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = ...,
    stride: Any = ...,
    padding: Any = ...,
    output_padding: Any = ...,
    groups: int = ...,
    dilation: Any = ...,
) -> Any: ...
def cosine_embedding_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def cosine_similarity(x1: Any, x2: Any, dim: int = ..., eps: float = ...) -> Any: ...
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = ...,
    size_average: bool | None = ...,
    ignore_index: int = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    label_smoothing: float = ...,
) -> Any: ...
def dropout(input: Any, p: float = ..., training: bool = ..., inplace: bool = ...) -> Any: ...
def dropout1d(input: Any, p: float = ..., training: bool = ..., inplace: bool = ...) -> Any: ...
def dropout2d(input: Any, p: float = ..., training: bool = ..., inplace: bool = ...) -> Any: ...
def dropout3d(input: Any, p: float = ..., training: bool = ..., inplace: bool = ...) -> Any: ...
def elu(*args: Any, **kwargs: Any) -> Any: ...
def elu_(*args: Any, **kwargs: Any) -> Any: ...
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = ...,
    max_norm: float | None = ...,
    norm_type: float = ...,
    scale_grad_by_freq: bool = ...,
    sparse: bool = ...,
) -> Any: ...
def feature_alpha_dropout(
    input: Any, p: float = ..., training: bool = ..., inplace: bool = ...
) -> Any: ...
def fold(
    input: Any,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = ...,
    padding: Any = ...,
    stride: Any = ...,
) -> Any: ...
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = ..., eps: float = ..., reduction: str = ...
) -> Any: ...
def gelu(input: Any, approximate: str = ...) -> Any: ...
def glu(input: Any, dim: int = ...) -> Any: ...
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = ...,
    padding_mode: str = ...,
    align_corners: bool | None = ...,
) -> Any: ...
def group_norm(
    input: Any, num_groups: int, weight: Any = ..., bias: Any = ..., eps: float = ...
) -> Any: ...
def gumbel_softmax(
    logits: Any, tau: float = ..., hard: bool = ..., eps: float = ..., dim: int = ...
) -> Any: ...
def hardshrink(input: Any, lambd: Any = ..., *, out: Any = ...) -> Tensor: ...
def hardsigmoid(*args: Any, **kwargs: Any) -> Any: ...
def hardswish(*args: Any, **kwargs: Any) -> Any: ...
def hardtanh(*args: Any, **kwargs: Any) -> Any: ...
def hardtanh_(*args: Any, **kwargs: Any) -> Any: ...
def hinge_embedding_loss(
    input: Any,
    target: Any,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def huber_loss(
    input: Any, target: Any, reduction: str = ..., delta: float = ..., weight: Any = ...
) -> Any: ...
def instance_norm(
    input: Any,
    running_mean: Any = ...,
    running_var: Any = ...,
    weight: Any = ...,
    bias: Any = ...,
    use_input_stats: bool = ...,
    momentum: Any = ...,
    eps: float = ...,
) -> Any: ...
def interpolate(
    input: Any,
    size: Any = ...,
    scale_factor: Any = ...,
    mode: str = ...,
    align_corners: bool | None = ...,
    recompute_scale_factor: bool | None = ...,
    antialias: bool = ...,
) -> Any: ...
def kl_div(
    input: Any,
    target: Any,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    log_target: bool = ...,
) -> Any: ...
def l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    weight: Any = ...,
) -> Any: ...
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = ..., bias: Any = ..., eps: float = ...
) -> Any: ...
def leaky_relu(*args: Any, **kwargs: Any) -> Any: ...
def leaky_relu_(*args: Any, **kwargs: Any) -> Any: ...
def linear(input: Any, weight: Any, bias: Any = ...) -> Any: ...
def log_softmax(input: Any, dim: int | None = ..., dtype: Any = ...) -> Any: ...
def logsigmoid(input: Any, *, out: Any = ...) -> Tensor: ...
def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = ..., ceil_mode: bool = ...
) -> Any: ...
def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = ..., ceil_mode: bool = ...
) -> Any: ...
def lp_pool3d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = ..., ceil_mode: bool = ...
) -> Any: ...
def margin_ranking_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_pool1d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_pool2d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_pool3d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    dilation: Any = ...,
    ceil_mode: bool = ...,
    return_indices: bool = ...,
) -> Any: ...
def max_unpool1d(
    input: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    output_size: Any = ...,
) -> Any: ...
def max_unpool2d(
    input: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    output_size: Any = ...,
) -> Any: ...
def max_unpool3d(
    input: Any,
    indices: Any,
    kernel_size: Any,
    stride: Any = ...,
    padding: Any = ...,
    output_size: Any = ...,
) -> Any: ...
def mish(*args: Any, **kwargs: Any) -> Any: ...
def mse_loss(
    input: Any,
    target: Any,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    weight: Any = ...,
) -> Any: ...
def native_channel_shuffle(input: Any, groups: int) -> Any: ...
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = ...,
    size_average: bool | None = ...,
    ignore_index: int = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def normalize(input: Any, p: float = ..., dim: int = ..., eps: float = ...) -> Any: ...
def one_hot(tensor: Any, num_classes: int = ...) -> Any: ...
def pad(input: Any, pad: Any, mode: str = ..., value: Any = ...) -> Any: ...
def pairwise_distance(
    x1: Any, x2: Any, p: float = ..., eps: float = ..., keepdim: bool = ...
) -> Any: ...
def pdist(input: Any, p: float = ...) -> Any: ...
def pixel_shuffle(input: Any, upscale_factor: int) -> Any: ...
def pixel_unshuffle(input: Any, downscale_factor: int) -> Any: ...
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = ...,
    full: bool = ...,
    size_average: bool | None = ...,
    eps: float = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def prelu(input: Any, weight: Any) -> Any: ...
def relu(*args: Any, **kwargs: Any) -> Any: ...
def relu6(*args: Any, **kwargs: Any) -> Any: ...
def relu_(*args: Any, **kwargs: Any) -> Any: ...
def rms_norm(
    input: Any, normalized_shape: Any, weight: Any = ..., eps: float | None = ...
) -> Any: ...
def rrelu(
    input: Any, lower: float = ..., upper: float = ..., training: bool = ..., inplace: bool = ...
) -> Any: ...
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
) -> Any: ...
def selu(*args: Any, **kwargs: Any) -> Any: ...
def selu_(*args: Any, **kwargs: Any) -> Any: ...
def sigmoid(*args: Any, **kwargs: Any) -> Any: ...
def silu(*args: Any, **kwargs: Any) -> Any: ...
def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
    beta: float = ...,
) -> Any: ...
def snake(input: Any, alpha: Any, *, out: Any = ...) -> Tensor: ...
def soft_margin_loss(
    input: Any,
    target: Any,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def softmax(input: Any, dim: int | None = ..., dtype: Any = ...) -> Any: ...
def softmin(input: Any, dim: int | None = ..., dtype: Any = ...) -> Any: ...
def softplus(*args: Any, **kwargs: Any) -> Any: ...
def softshrink(input: Any, lambd: Any = ..., *, out: Any = ...) -> Tensor: ...
def softsign(input: Any, *, out: Any = ...) -> Tensor: ...
def style_affine(input: Any, gamma: Any, beta: Any, *, out: Any = ...) -> Tensor: ...
def swiglu(gate: Any, value: Any, *, out: Any = ...) -> Tensor: ...
def tanh(*args: Any, **kwargs: Any) -> Any: ...
def tanhshrink(input: Any, *, out: Any = ...) -> Tensor: ...
def threshold(*args: Any, **kwargs: Any) -> Any: ...
def threshold_(*args: Any, **kwargs: Any) -> Any: ...
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = ...,
    p: float = ...,
    eps: float = ...,
    swap: bool = ...,
    size_average: bool | None = ...,
    reduce: bool | None = ...,
    reduction: str = ...,
) -> Any: ...
def unfold(
    input: Any, kernel_size: Any, dilation: Any = ..., padding: Any = ..., stride: Any = ...
) -> Any: ...
def upsample(
    input: Any,
    size: Any = ...,
    scale_factor: Any = ...,
    mode: str = ...,
    align_corners: bool | None = ...,
) -> Any: ...
def upsample_bilinear(input: Any, size: Any = ..., scale_factor: Any = ...) -> Any: ...
def upsample_nearest(input: Any, size: Any = ..., scale_factor: Any = ...) -> Any: ...
def ctc_loss(*args: Any, **kwargs: Any) -> Any: ...
def embedding_bag(*args: Any, **kwargs: Any) -> Any: ...
def fractional_max_pool2d(*args: Any, **kwargs: Any) -> Any: ...
def fractional_max_pool2d_with_indices(*args: Any, **kwargs: Any) -> Any: ...
def fractional_max_pool3d(*args: Any, **kwargs: Any) -> Any: ...
def fractional_max_pool3d_with_indices(*args: Any, **kwargs: Any) -> Any: ...
def linear_cross_entropy(*args: Any, **kwargs: Any) -> Any: ...
def local_response_norm(*args: Any, **kwargs: Any) -> Any: ...
def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any: ...
def multi_margin_loss(*args: Any, **kwargs: Any) -> Any: ...
def multilabel_margin_loss(*args: Any, **kwargs: Any) -> Any: ...
def multilabel_soft_margin_loss(*args: Any, **kwargs: Any) -> Any: ...
def triplet_margin_with_distance_loss(*args: Any, **kwargs: Any) -> Any: ...
