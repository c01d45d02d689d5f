"""`webtorch.nn`: PyTorch's layers, losses, containers and initial values, one family a file.

May import floors 0 to 4.
"""

from webtorch.nn import functional, init, parameter, quantized, utils
from webtorch.nn.activation import *  # noqa: F403
from webtorch.nn.adaptive import AdaptiveLogSoftmaxWithLoss
from webtorch.nn.attention import MultiheadAttention
from webtorch.nn.container import *  # noqa: F403
from webtorch.nn.conv import *  # noqa: F403
from webtorch.nn.distance import *  # noqa: F403
from webtorch.nn.dropout import *  # noqa: F403
from webtorch.nn.embedding import Embedding, EmbeddingBag
from webtorch.nn.lazy import *  # noqa: F403
from webtorch.nn.linear import *  # noqa: F403
from webtorch.nn.loss import *  # noqa: F403
from webtorch.nn.module import Module
from webtorch.nn.norm import *  # noqa: F403
from webtorch.nn.parallel import DataParallel
from webtorch.nn.parameter import (
    Buffer,
    Parameter,
    UninitializedBuffer,
    UninitializedParameter,
)
from webtorch.nn.pooling import *  # noqa: F403
from webtorch.nn.rnn import *  # noqa: F403
from webtorch.nn.transformer import *  # noqa: F403
from webtorch.nn.vision import *  # noqa: F403

from webtorch.nn import modules  # isort: skip  (it reads the files above)
from webtorch.tensors import above as _above
from webtorch.tensors.absent import missing_names as _missing_names

__all__ = [
    "AdaptiveLogSoftmaxWithLoss",
    "Buffer",
    "DataParallel",
    "Embedding",
    "EmbeddingBag",
    "Module",
    "MultiheadAttention",
    "Parameter",
    "UninitializedBuffer",
    "UninitializedParameter",
    "functional",
    "init",
    "modules",
    "parameter",
    "quantized",
    "utils",
]
# And what the families above bring: `from webtorch.nn import *` gives every layer, as in PyTorch.
__all__ += sorted(
    name
    for name, value in globals().items()
    if name not in __all__ and not name.startswith("_") and not hasattr(value, "__spec__")
)

_above.give(layer=lambda name: globals()[name])
__getattr__ = _missing_names(__name__, "nn")
