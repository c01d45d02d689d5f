"""`webtorch.autograd`, as PyTorch's users know it. Floor 4's public face."""

from webtorch.autograd import forward_ad, function, functional, grad_mode, graph, variable
from webtorch.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly
from webtorch.autograd.gradcheck import gradcheck, gradgradcheck
from webtorch.autograd.variable import Variable
from webtorch.tensors.absent import missing_names as _missing_names
from webtorch.tensors.engine import backward, grad
from webtorch.tensors.function import Function, FunctionCtx
from webtorch.tensors.modes import (
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)

__all__ = [
    "Function", "FunctionCtx", "Variable", "backward", "detect_anomaly", "enable_grad", "forward_ad",
    "function", "functional", "grad", "grad_mode", "gradcheck", "gradgradcheck", "graph", "inference_mode", "no_grad",
    "set_detect_anomaly", "set_grad_enabled", "set_multithreading_enabled", "variable",
]  # fmt: skip

__getattr__ = _missing_names(__name__, "autograd")
