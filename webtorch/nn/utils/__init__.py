"""`nn.utils`: clipping, parameters as a vector, norms of weights, packed sequences. May import nn's base files."""

from webtorch.nn.utils import parametrizations, parametrize, prune, rnn, stateless
from webtorch.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from webtorch.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from webtorch.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from webtorch.nn.utils.init import skip_init
from webtorch.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format,
)
from webtorch.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from webtorch.nn.utils.weight_norm import remove_weight_norm, weight_norm
from webtorch.tensors.absent import missing_names as _missing_names

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format",
    "convert_conv3d_weight_memory_format",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]

__getattr__ = _missing_names(__name__, "nn.utils")
