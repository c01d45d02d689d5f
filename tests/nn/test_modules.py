"""Every module of `webtorch.nn` against PyTorch: printed form, state, outputs, gradients.

The table holds one or more calls of each class; a class without one fails a test below.
"""

from __future__ import annotations

import inspect
import pickle
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn as ref

import webtorch
from tests.nn.oracle import assert_same, load_same, to_web
from webtorch import nn
from webtorch.nn import functional as F


@dataclass
class Case:
    """A module's class, its arguments, and what it is called with."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    inputs: Any = None
    call: dict[str, Any] = field(default_factory=dict)
    train: bool = True
    random: bool = False

    def __str__(self) -> str:
        said = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        text = f"{self.name}({','.join(said)})" + ("" if self.train else ".eval")
        return "".join(text.split())[:90]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def case(name: str, *args: Any, x: Any = None, call: Any = None, train: bool = True,
         random: bool = False, **kwargs: Any) -> Case:  # fmt: skip
    """Return a case; `x` is one input, or a tuple of them, or their shape."""
    return Case(name, args, kwargs, x, call or {}, train, random)


def values(*shape: int) -> Any:
    """Return a recipe for an input: made under a seed, when the test runs."""
    return lambda: randn(*shape)


def positive(*shape: int) -> Any:
    return lambda: torch.rand(*shape) * 0.9 + 0.05


def signs(*shape: int) -> Any:
    return lambda: torch.randint(0, 2, shape).float() * 2 - 1


def classes(count: int, *shape: int) -> Any:
    return lambda: torch.randint(0, count, shape)


X = values(3, 6)
ELEMENTWISE = [
    case(name, x=X)
    for name in (
        "ReLU", "ReLU6", "Sigmoid", "Tanh", "SiLU", "Mish", "GELU", "ELU", "CELU", "SELU",
        "Hardsigmoid", "Hardswish", "Hardtanh", "Hardshrink", "Softshrink", "Softplus", "Softsign",
        "Tanhshrink", "LogSigmoid", "LeakyReLU", "Identity",
    )
]  # fmt: skip

CASES = [
    *ELEMENTWISE,
    case("GELU", "tanh", x=X),
    case("ELU", 0.7, x=X),
    case("CELU", 0.7, x=X),
    case("Hardtanh", -0.3, 0.6, x=X),
    case("Softplus", 2.0, 1.0, x=X),
    case("LeakyReLU", 0.2, x=X),
    case("Threshold", 0.1, 2.0, x=X),
    case("RReLU", x=X, train=False),
    case("PReLU", x=X),
    case("PReLU", 6, x=values(2, 6, 3)),
    case("GLU", x=X),
    case("GLU", 0, x=values(4, 3)),
    case("Softmax", -1, x=X),
    case("Softmin", 0, x=X),
    case("LogSoftmax", dim=1, x=X),
    case("Softmax2d", x=values(2, 3, 2, 2)),
    case("Linear", 6, 4, x=X),
    case("Linear", 6, 4, bias=False, x=values(2, 3, 6)),
    case("Linear", 6, 4, x=values(6)),
    case("Bilinear", 4, 3, 5, x=(values(2, 4), values(2, 3))),
    case("Bilinear", 4, 3, 5, bias=False, x=(values(2, 6, 4), values(2, 6, 3))),
    case("Flatten", x=values(2, 3, 4)),
    case("Flatten", 0, 1, x=values(2, 3, 4)),
    case("Unflatten", 1, (2, 3), x=X),
    case("Conv1d", 4, 6, 3, x=values(2, 4, 9)),
    case("Conv1d", 4, 6, 3, stride=2, padding=1, dilation=2, groups=2, x=values(2, 4, 9)),
    case("Conv1d", 4, 6, 4, padding="same", x=values(4, 9)),
    case("Conv1d", 4, 6, 3, padding=2, padding_mode="circular", x=values(2, 4, 9)),
    case("Conv2d", 3, 4, 3, x=values(2, 3, 7, 6)),
    case("Conv2d", 4, 4, (3, 2), stride=(2, 1), padding=(1, 0), groups=4, bias=False,
         x=values(2, 4, 7, 6)),
    case("Conv2d", 3, 4, 3, padding="same", dilation=2, x=values(2, 3, 7, 6)),
    case("Conv2d", 3, 4, (4, 2), padding="same", padding_mode="reflect", x=values(2, 3, 7, 6)),
    case("Conv2d", 3, 4, 3, padding=2, padding_mode="replicate", x=values(2, 3, 7, 6)),
    case("Conv3d", 2, 3, 2, x=values(1, 2, 4, 4, 3)),
    case("Conv3d", 2, 4, (3, 1, 2), stride=(2, 1, 1), padding=(1, 0, 1), groups=2,
         x=values(2, 2, 5, 4, 3)),
    case("Conv3d", 2, 4, 2, padding="same", dilation=2, x=values(2, 5, 4, 3)),
    case("ConvTranspose1d", 4, 6, 3, x=values(2, 4, 5)),
    case("ConvTranspose1d", 4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2,
         x=values(2, 4, 5)),
    case("ConvTranspose2d", 3, 4, 3, stride=2, padding=1, x=values(2, 3, 4, 3)),
    case("ConvTranspose2d", 3, 4, 3, stride=2, padding=1, x=values(2, 3, 4, 3),
         call={"output_size": (8, 6)}),
    case("ConvTranspose2d", 4, 4, (1, 2), stride=(1, 3), padding=2, groups=4, bias=False,
         x=values(2, 4, 6, 5)),
    case("ConvTranspose3d", 2, 3, 2, stride=2, x=values(1, 2, 3, 2, 2)),
    case("BatchNorm1d", 6, x=X),
    case("BatchNorm1d", 4, momentum=None, x=values(3, 4, 5)),
    case("BatchNorm1d", 6, x=X, train=False),
    case("BatchNorm2d", 3, x=values(2, 3, 4, 5)),
    case("BatchNorm2d", 3, affine=False, track_running_stats=False, x=values(2, 3, 4, 5)),
    case("BatchNorm2d", 3, affine=False, track_running_stats=False, x=values(2, 3, 4, 5),
         train=False),
    case("BatchNorm2d", 3, eps=0.1, momentum=0.5, bias=False, x=values(2, 3, 4, 5)),
    case("BatchNorm3d", 3, x=values(2, 3, 2, 4, 5)),
    case("InstanceNorm1d", 4, x=values(2, 4, 5)),
    case("InstanceNorm2d", 3, affine=True, track_running_stats=True, x=values(2, 3, 4, 5)),
    case("InstanceNorm2d", 3, affine=True, track_running_stats=True, x=values(2, 3, 4, 5),
         train=False),
    case("InstanceNorm3d", 3, x=values(3, 2, 2, 3)),
    case("LayerNorm", 6, x=X),
    case("LayerNorm", (3, 6), eps=0.1, bias=False, x=values(2, 3, 6)),
    case("LayerNorm", [6], elementwise_affine=False, x=X),
    case("RMSNorm", 6, x=X),
    case("RMSNorm", (3, 6), eps=0.01, elementwise_affine=False, x=values(2, 3, 6)),
    case("GroupNorm", 2, 6, x=values(2, 6, 4)),
    case("GroupNorm", 3, 6, affine=False, x=values(2, 6, 4, 3)),
    case("LocalResponseNorm", 2, x=values(2, 5, 3, 3)),
    case("LocalResponseNorm", 3, alpha=0.1, k=2.0, x=values(2, 5, 3)),
    case("Dropout", 0.3, x=X, train=False),
    case("Dropout", 0.0, x=X),
    case("Dropout1d", x=values(2, 3, 4), train=False),
    case("Dropout2d", x=values(2, 3, 4, 4), train=False),
    case("AlphaDropout", 0.2, x=X, train=False),
    case("FeatureAlphaDropout", x=values(2, 3, 4), train=False),
    case("Dropout3d", 0.0, x=values(2, 3, 4, 4, 2)),
    case("Embedding", 7, 4, x=classes(7, 2, 3)),
    case("Embedding", 7, 4, padding_idx=-2, x=lambda: torch.tensor([[5, 1, 5], [0, 5, 6]])),
    case("MaxPool1d", 2, x=values(2, 3, 7)),
    case("MaxPool1d", 3, stride=2, padding=1, dilation=2, ceil_mode=True, return_indices=True,
         x=values(2, 3, 9)),
    case("MaxPool2d", 2, x=values(2, 3, 6, 5)),
    case("MaxPool2d", (3, 2), stride=(2, 1), padding=1, ceil_mode=True, return_indices=True,
         x=values(2, 3, 6, 5)),
    case("AvgPool1d", 2, x=values(2, 3, 7)),
    case("AvgPool1d", 3, 2, 1, count_include_pad=False, x=values(2, 3, 7)),
    case("AvgPool2d", 2, x=values(2, 3, 6, 5)),
    case("AvgPool2d", 3, 2, 1, ceil_mode=True, divisor_override=5, x=values(2, 3, 6, 5)),
    case("LPPool1d", 2, 3, x=positive(2, 3, 7)),
    case("LPPool2d", 3, 2, stride=1, x=positive(2, 3, 6, 5)),
    case("AdaptiveAvgPool1d", 3, x=values(2, 3, 7)),
    case("AdaptiveAvgPool2d", (3, None), x=values(2, 3, 7, 4)),
    case("AdaptiveAvgPool2d", 2, x=values(2, 3, 6, 4)),
    case("AdaptiveMaxPool1d", 3, return_indices=True, x=values(2, 3, 7)),
    case("AdaptiveMaxPool2d", (3, 2), return_indices=True, x=values(2, 3, 7, 5)),
    case("AdaptiveMaxPool2d", 2, x=values(2, 3, 6, 4)),
    case("MaxPool3d", 2, x=values(2, 3, 4, 6, 5)),
    case("AvgPool3d", 2, 1, x=values(2, 3, 4, 6, 5)),
    case("LPPool3d", 2, 2, x=positive(2, 3, 4, 6, 5)),
    case("AdaptiveAvgPool3d", (2, 3, None), x=values(2, 3, 4, 5, 3)),
    case("AdaptiveMaxPool3d", 2, return_indices=True, x=values(2, 3, 4, 5, 3)),
    case("MaxUnpool1d", 2, x=(values(1, 2, 2), lambda: torch.tensor([[[1, 2], [0, 3]]]))),
    case("MaxUnpool2d", 2, x=(values(1, 1, 1, 2), lambda: torch.tensor([[[[5, 2]]]])),
         call={"output_size": (3, 5)}),
    case("MaxUnpool3d", 2, x=(values(1, 1, 1, 1, 2), lambda: torch.tensor([[[[[5, 2]]]]]))),
    case("Upsample", scale_factor=2, x=values(2, 3, 3, 4)),
    case("Upsample", size=(5, 7), x=values(2, 3, 3, 4)),
    case("Upsample", size=(2, 3), mode="nearest-exact", x=values(2, 3, 5, 7)),
    case("Upsample", scale_factor=1.7, mode="linear", x=values(2, 3, 5)),
    case("Upsample", scale_factor=(1.5, 0.6), mode="bilinear", x=values(2, 3, 5, 7)),
    case("Upsample", size=9, mode="bilinear", align_corners=True, x=values(2, 3, 5, 7)),
    case("Upsample", scale_factor=1.6, mode="bicubic", recompute_scale_factor=True,
         x=values(2, 3, 5, 4)),
    case("Upsample", scale_factor=2, mode="trilinear", x=values(1, 2, 3, 2, 3)),
    case("Upsample", size=(2, 3), mode="area", x=values(2, 3, 5, 4)),
    case("UpsamplingNearest2d", scale_factor=3, x=values(2, 3, 3, 4)),
    case("UpsamplingBilinear2d", size=(5, 6), x=values(2, 3, 3, 4)),
    case("PixelShuffle", 2, x=values(2, 8, 3, 2)),
    case("PixelUnshuffle", 2, x=values(2, 2, 4, 6)),
    case("ChannelShuffle", 2, x=values(2, 6, 3, 2)),
    case("Unfold", (2, 3), padding=1, stride=2, x=values(2, 3, 6, 7)),
    case("Unfold", 2, dilation=2, x=values(3, 6, 7)),
    case("Fold", (5, 6), 2, stride=1, padding=1, x=values(2, 12, 42)),
    case("Fold", (5, 6), (2, 3), dilation=2, x=values(6, 6)),
    case("CosineSimilarity", x=(values(3, 6), values(3, 6))),
    case("CosineSimilarity", 0, 1e-6, x=(values(3, 6), values(3, 1))),
    case("PairwiseDistance", x=(values(3, 6), values(3, 6))),
    case("PairwiseDistance", 1.0, 1e-3, True, x=(values(3, 6), values(6))),
    *[
        case(f"{kind}Pad{rank}d", padding, x=values(*(2, 3, 5, 4, 6)[: rank + 2]))
        for kind in ("Circular", "Reflection", "Replication", "Zero")
        for rank in (1, 2, 3)
        for padding in (2, tuple([1, 2, 0, 1, 2, 1][: 2 * rank]))
    ],
    *[
        case(f"ConstantPad{rank}d", padding, 0.5, x=values(*(2, 3, 5, 4, 6)[: rank + 2]))
        for rank in (1, 2, 3)
        for padding in (1, tuple([1, -2, 0, 1, -1, 1][: 2 * rank]))
    ],
    *[
        case(name, reduction=reduction, x=(X, values(3, 6)))
        for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss")
        for reduction in ("mean", "sum", "none")
    ],
    case("SmoothL1Loss", beta=0.3, x=(X, values(3, 6))),
    case("SmoothL1Loss", beta=0.0, x=(X, values(3, 6))),
    case("HuberLoss", delta=0.4, x=(X, values(3, 6))),
    *[
        case("CrossEntropyLoss", reduction=reduction, label_smoothing=smoothing, x=inputs)
        for reduction in ("mean", "sum", "none")
        for smoothing in (0.0, 0.2)
        for inputs in (
            (values(5, 4), classes(4, 5)),
            (values(2, 4, 3), classes(4, 2, 3)),
            (values(4), classes(4)),
            (values(5, 4), lambda: torch.rand(5, 4).softmax(1)),
        )
    ],
    *[
        case("CrossEntropyLoss", torch.tensor([0.5, 1.0, 2.0, 0.1]), ignore_index=1,
             reduction=reduction, label_smoothing=smoothing,
             x=(values(2, 4, 3), lambda: torch.tensor([[0, 1, 3], [2, 1, 0]])))
        for reduction in ("mean", "none")
        for smoothing in (0.0, 0.2)
    ],
    case("CrossEntropyLoss", torch.tensor([0.5, 1.0, 2.0, 0.1]),
         x=(values(5, 4), lambda: torch.rand(5, 4).softmax(1))),
    case("NLLLoss", x=(values(5, 4), classes(4, 5))),
    case("NLLLoss", torch.tensor([0.5, 1.0, 2.0, 0.1]), ignore_index=2, reduction="sum",
         x=(values(2, 4, 3, 2), classes(4, 2, 3, 2))),
    case("BCELoss", x=(positive(4, 3), positive(4, 3))),
    case("BCELoss", torch.tensor([1.0, 2.0, 0.5]), reduction="sum",
         x=(lambda: torch.tensor([[0.0, 1.0, 0.3]]), lambda: torch.tensor([[0.0, 1.0, 1.0]]))),
    case("BCEWithLogitsLoss", x=(X, positive(3, 6))),
    case("BCEWithLogitsLoss", torch.tensor([0.5] * 6), reduction="none",
         pos_weight=torch.tensor([2.0] * 6), x=(X, positive(3, 6))),
    case("KLDivLoss", reduction="batchmean", x=(X, positive(3, 6))),
    case("KLDivLoss", reduction="sum", log_target=True, x=(X, values(3, 6))),
    case("MarginRankingLoss", 0.3, x=(values(5), values(5), signs(5))),
    case("HingeEmbeddingLoss", x=(X, signs(3, 6))),
    case("SoftMarginLoss", x=(X, signs(3, 6))),
    case("CosineEmbeddingLoss", 0.1, x=(values(4, 3), values(4, 3), signs(4))),
    case("TripletMarginLoss", x=(values(4, 3), values(4, 3), values(4, 3))),
    case("TripletMarginLoss", 0.5, 1.0, swap=True, x=(values(4, 3), values(4, 3), values(4, 3))),
    case("TripletMarginWithDistanceLoss", swap=True, margin=0.4,
         x=(values(4, 3), values(4, 3), values(4, 3))),
    case("PoissonNLLLoss", full=True, x=(X, lambda: torch.randint(0, 6, (3, 6)).float())),
    case("PoissonNLLLoss", log_input=False, x=(positive(3, 6), positive(3, 6))),
    case("GaussianNLLLoss", full=True, x=(X, values(3, 6), positive(3, 6))),
    case("MultiLabelSoftMarginLoss", x=(X, lambda: torch.randint(0, 2, (3, 6)).float())),
    case("MultiMarginLoss", x=(X, classes(6, 3))),
    case("MultiMarginLoss", 2, 0.5, torch.tensor([0.5, 1, 2, 1, 1, 3]), x=(X, classes(6, 3))),
    case("MultiheadAttention", 8, 2, x=(values(5, 3, 8),) * 1 + (values(4, 3, 8), values(4, 3, 8))),
    case("MultiheadAttention", 8, 2, bias=False, batch_first=True,
         x=(values(3, 5, 8), values(3, 4, 8), values(3, 4, 8)),
         call={"average_attn_weights": False}),
    case("MultiheadAttention", 8, 4, kdim=6, vdim=5, add_bias_kv=True, add_zero_attn=True,
         x=(values(5, 3, 8), values(4, 3, 6), values(4, 3, 5))),
    case("MultiheadAttention", 8, 2, x=(values(5, 8), values(4, 8), values(4, 8)),
         call={"need_weights": False}),
    case("MultiheadAttention", 8, 2, add_bias_kv=True,
         x=(values(4, 3, 8), values(4, 3, 8), values(4, 3, 8)),
         call={"attn_mask": torch.ones(4, 4).triu(1).bool(),
               "key_padding_mask": torch.tensor([[False, False, False, True]] * 3)}),
    case("MultiheadAttention", 8, 2, batch_first=True,
         x=(values(3, 4, 8), values(3, 4, 8), values(3, 4, 8)),
         call={"attn_mask": torch.full((4, 4), float("-inf")).triu(1), "is_causal": True,
               "need_weights": False}),
    case("MultiheadAttention", 8, 2,
         x=(values(4, 2, 8), values(3, 2, 8), values(3, 2, 8)),
         call={"attn_mask": torch.linspace(-1, 1, 48).reshape(4, 4, 3)}),
    case("TransformerEncoderLayer", 8, 2, 16, 0.0, x=values(5, 3, 8)),
    case("TransformerEncoderLayer", 8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True,
         x=values(3, 5, 8), call={"src_key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3)}),
    case("TransformerEncoderLayer", 8, 2, 16, bias=False, x=values(5, 3, 8), train=False),
    case("TransformerDecoderLayer", 8, 2, 16, 0.0, x=(values(5, 3, 8), values(4, 3, 8))),
    case("TransformerDecoderLayer", 8, 2, 16, 0.0, norm_first=True, batch_first=True,
         x=(values(3, 5, 8), values(3, 4, 8)),
         call={"tgt_mask": torch.full((5, 5), float("-inf")).triu(1), "tgt_is_causal": True}),
    case("Transformer", 8, 2, 1, 1, 16, 0.0, x=(values(4, 2, 8), values(3, 2, 8))),
]  # fmt: skip

# Built from other modules, or only holding them: they have tests of their own.
CONTAINERS = {
    "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential",
    "TransformerDecoder", "TransformerEncoder",
}  # fmt: skip
# Tested in test_recurrent.py, test_layers.py and by PyTorch's samples (tests/conformance).
ELSEWHERE = {
    # test_older_names.py: PyTorch's gradient of it is wrong (its own gradcheck says so).
    "CrossMapLRN2d",
    "AdaptiveLogSoftmaxWithLoss", "CTCLoss", "DataParallel", "EmbeddingBag",
    "FractionalMaxPool2d", "FractionalMaxPool3d", "GRU", "GRUCell", "LSTM", "LSTMCell",
    "LinearCrossEntropyLoss", "MultiLabelMarginLoss", "NLLLoss2d", "RNN", "RNNBase", "RNNCell",
    "RNNCellBase", "SyncBatchNorm",
}  # fmt: skip


def build(one: Case, device: str) -> tuple[Any, torch.nn.Module]:
    """Return the module of both libraries, with the same state."""
    torch.manual_seed(0)
    reference = getattr(ref, one.name)(*one.args, **one.kwargs)
    for buffer_name, buffer in reference.named_buffers():
        if buffer_name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
        elif buffer_name.endswith("running_mean"):
            buffer.normal_()
    # Parameters that start as zeros and ones would hide a swap of two of them.
    with torch.no_grad():
        for param in reference.parameters():
            if param.dim() == 1:
                param.add_(torch.randn_like(param) * 0.3)
    module = getattr(nn, one.name)(*to_web(one.args, device), **to_web(one.kwargs, device))
    load_same(module, reference, device)
    return module.train(one.train), reference.train(one.train)


def modules() -> list[str]:
    """Return the names of all module classes."""
    return [
        name
        for name in dir(nn)
        if inspect.isclass(getattr(nn, name)) and issubclass(getattr(nn, name), nn.Module)
    ]


def test_every_module_has_a_case() -> None:
    eager = {name for name in modules() if not name.startswith("Lazy")}
    assert eager - CONTAINERS - ELSEWHERE - {one.name for one in CASES} == set()


@pytest.mark.parametrize("name", modules())
def test_constructor_takes_pytorch_arguments_with_pytorch_defaults(name: str) -> None:
    ours = inspect.signature(getattr(nn, name).__init__).parameters
    theirs = inspect.signature(getattr(ref, name).__init__).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in theirs.values()):
        return
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        if not callable(parameter.default):
            assert ours[key].default == parameter.default, key


# The kernels of every operation are compared in tests/ops.
@pytest.mark.one_in(4, device="webgpu")
@pytest.mark.covers("I1", "I2", "I3", "I5", "I9", "I10", "I11", "I12", "I13", "I14", "I15", "I16",
                    "I18", "I19", "I26", "J1", "J2", "J3", "J4", "J5", "J6", "J7", "J8", "F10")  # fmt: skip
@pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel", "ignore:enable_nested_tensor is True"
)
@pytest.mark.parametrize("one", CASES, ids=str)
def test_module_computes_what_pytorch_computes(one: Case, device: str) -> None:
    module, reference = build(one, device)
    assert repr(module) == repr(reference)
    assert list(module.state_dict()) == list(reference.state_dict())
    assert [n for n, _ in module.named_parameters()] == [n for n, _ in reference.named_parameters()]
    torch.manual_seed(1)
    recipes = one.inputs if isinstance(one.inputs, tuple) else (one.inputs,)
    theirs = [recipe() for recipe in recipes]
    if one.name == "MultiheadAttention" and theirs[1].shape == theirs[2].shape:
        theirs[2] = theirs[1].clone()
    ours = [to_web(x, device) for x in theirs]
    for a, b in zip(ours, theirs, strict=True):
        differentiable = b.is_floating_point() and b.dim() > 0
        if differentiable and not one.name.endswith("Loss"):
            a.requires_grad_()
            b.requires_grad_()
    if one.name.endswith("Loss"):
        ours[0].requires_grad_()
        theirs[0].requires_grad_()
    actual = module(*ours, **to_web(one.call, device))
    expected = reference(*theirs, **one.call)
    assert_same(actual, expected)
    # The gradients of one random inner product.
    outputs = expected if isinstance(expected, tuple) else (expected,)
    results = actual if isinstance(actual, tuple) else (actual,)
    loss, wanted = None, None
    for got, want in zip(results, outputs, strict=True):
        if want is None or not want.is_floating_point():
            continue
        cotangent = torch.randn(want.shape)
        term, reference_term = (got * to_web(cotangent, device)).sum(), (want * cotangent).sum()
        loss = term if loss is None else loss + term
        wanted = reference_term if wanted is None else wanted + reference_term
    if wanted is None or not wanted.requires_grad:
        return
    loss.backward()
    wanted.backward()
    for a, b in zip(ours, theirs, strict=True):
        if b.requires_grad:
            assert_same(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for (name, a), (_, b) in zip(
        module.named_parameters(), reference.named_parameters(), strict=True
    ):
        if b.grad is None:
            assert a.grad is None, name
        else:
            assert_same(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    assert_same(dict(module.named_buffers()), dict(reference.named_buffers()))


@pytest.mark.parametrize("name", ["ReLU", "ReLU6", "SiLU", "ELU", "LeakyReLU", "SELU", "CELU",
                                  "Hardtanh", "Mish", "Hardswish", "Hardsigmoid"])  # fmt: skip
def test_inplace_activation_writes_over_its_input_and_differentiates(
    name: str, device: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    w = to_web(x, device).requires_grad_()
    layer, reference = getattr(nn, name)(inplace=True), getattr(ref, name)(inplace=True)
    assert repr(layer) == repr(reference)
    middle, theirs = w * 2, x * 2
    out, expected = layer(middle), reference(theirs)
    assert_same(middle, theirs)
    out.sum().backward()
    expected.sum().backward()
    assert_same(w.grad, x.grad)


@pytest.mark.one_in(4, device="webgpu")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("name", sorted({one.name for one in CASES}))
def test_module_survives_deepcopy_and_pickle(name: str, device: str) -> None:
    one = next(one for one in CASES if one.name == name)
    module, reference = build(one, device)
    for copied in (deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(copied) == repr(module)
        assert_same(dict(copied.state_dict()), dict(reference.state_dict()), rtol=0, atol=0)
        for mine, original in zip(copied.parameters(), module.parameters(), strict=True):
            assert mine is not original
            assert isinstance(mine, nn.Parameter)


@pytest.mark.covers("I17", "C43")
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_dropout_keeps_the_mean_and_drops_what_it_says(rank: int, device: str) -> None:
    layer = nn.Dropout(0.25) if rank == 0 else getattr(nn, f"Dropout{rank}d")(0.25)
    x = to_web(torch.ones(40, 50, *(2,) * rank), device)
    out = layer(x)
    flat = out.reshape(2000, -1)
    values = torch.tensor(flat.cpu().tolist())
    assert set(torch.unique((values * 0.75).round(decimals=5)).tolist()) == {0.0, 1.0}
    if rank:
        # A channel is dropped as a whole.
        assert (values.amax(1) == values.amin(1)).all()
    dropped = (values[:, 0] == 0).float().mean().item()
    assert abs(dropped - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5
    assert layer.eval()(x) is x


def test_rrelu_draws_its_slopes_in_training(device: str) -> None:
    x = to_web(-torch.ones(1000), device)
    slopes = -torch.tensor(nn.RReLU(0.2, 0.4)(x).cpu().tolist())
    assert slopes.min() >= 0.2
    assert slopes.max() <= 0.4
    assert abs(slopes.mean().item() - 0.3) < 0.01


@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_encoder_matches_pytorch(batch_first: bool, device: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": batch_first}
    reference = ref.TransformerEncoder(
        ref.TransformerEncoderLayer(8, 2, 16, **options), 2, ref.LayerNorm(8),
        enable_nested_tensor=False,
    )  # fmt: skip
    module = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, **options), 2, nn.LayerNorm(8),
        enable_nested_tensor=False,
    )  # fmt: skip
    assert repr(module) == repr(reference)
    load_same(module, reference, device)
    x = torch.randn(4, 4, 8)
    mask = ref.Transformer.generate_square_subsequent_mask(4)
    assert_same(nn.Transformer.generate_square_subsequent_mask(4, device=device), mask)
    assert_same(module(to_web(x, device), to_web(mask, device)), reference(x, mask))
    assert_same(
        module(to_web(x, device), to_web(mask, device), is_causal=True),
        reference(x, mask, is_causal=True),
    )


@pytest.mark.parametrize("padding", ["at the end", "at the start"])
@pytest.mark.parametrize("options", [{}, {"mask_check": False}, {"enable_nested_tensor": False}])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_trains_no_more_gives_zeros_at_the_padding(
    padding: str, options: dict[str, Any], device: str
) -> None:
    if padding == "at the start" and options == {"mask_check": False}:
        pytest.skip("PyTorch moves the elements there")
    reference = ref.TransformerEncoder(
        ref.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2, ref.LayerNorm(8), **options
    ).eval()
    torch.nn.init.normal_(reference.norm.bias)
    module = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2, nn.LayerNorm(8), **options
    ).eval()
    load_same(module, reference, device)
    x = torch.randn(2, 4, 8)
    mask = torch.tensor([[False] * 4, [False, True, True, True]])
    mask = mask if padding == "at the end" else mask.flip(1)
    ours = [to_web(x, device), to_web(mask, device)]
    assert_same(
        module(ours[0], src_key_padding_mask=ours[1]), reference(x, src_key_padding_mask=mask)
    )
    with torch.no_grad(), webtorch.no_grad():
        assert_same(
            module(ours[0], src_key_padding_mask=ours[1]), reference(x, src_key_padding_mask=mask)
        )


def test_an_encoder_says_why_it_computes_with_its_padding() -> None:
    for options in [
        {}, {"batch_first": True, "norm_first": True}, {"batch_first": True, "bias": False},
        {"batch_first": True, "activation": F.silu}, {"batch_first": True, "nhead": 1},
    ]:  # fmt: skip
        given = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, **options}
        theirs = (
            {**given, "activation": torch.nn.functional.silu} if "activation" in given else given
        )
        with pytest.warns(UserWarning, match="use_nested_tensor is False") as ours:
            nn.TransformerEncoder(nn.TransformerEncoderLayer(**given), 1)
        with pytest.warns(UserWarning, match="use_nested_tensor is False") as reference:
            ref.TransformerEncoder(ref.TransformerEncoderLayer(**theirs), 1)
        assert str(ours[0].message) == str(reference[0].message)


def test_transformer_decoder_matches_pytorch(device: str) -> None:
    torch.manual_seed(0)
    reference = ref.TransformerDecoder(ref.TransformerDecoderLayer(8, 2, 16, 0.0), 2)
    module = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2)
    load_same(module, reference, device)
    x, memory = torch.randn(4, 3, 8), torch.randn(5, 3, 8)
    mask = ref.Transformer.generate_square_subsequent_mask(4)
    assert_same(
        module(to_web(x, device), to_web(memory, device), to_web(mask, device)),
        reference(x, memory, mask),
    )
