"""Autocast on the device treats each operator as PyTorch does on CUDA.

The oracles are PyTorch's own lists: the header that it builds its rules from, and what its dispatcher
has for the key AutocastCUDA, which is there in a build without CUDA too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.conftest import need_device

need_device("webgpu")

from webtorch.aten.table import AUTOCAST  # noqa: E402

# Kernels of CUDA's libraries, which no other device has.
OF_CUDA = {
    "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell",
    "cudnn_convolution", "cudnn_convolution_transpose",
}  # fmt: skip
# On CUDA a rule of their parts gives the same types: losses are a log_softmax and an nll_loss, and layers one of the
# kernels above. A transform of float16 would give complex32, which WebGPU lacks.
MORE = {
    "cross_entropy_loss", "nll_loss_nd", "gru.data", "gru.input", "lstm.data", "lstm.input",
    "rnn_relu.data", "rnn_relu.input", "rnn_tanh.data", "rnn_tanh.input", "stft", "stft.center",
}  # fmt: skip
RULES = {
    "LOWER_PRECISION_FP": "lower",
    "FP32": "fp32",
    "FP32_SET_OPT_DTYPE": "fp32_result",
    "PROMOTE": "promote",
}


@pytest.fixture(autouse=True)
def _registered(webgpu: str) -> None:
    """The first kernel registers all of them."""
    assert torch.ones(1, device=webgpu).sum().item() == 1


def operators(key: str) -> set[str]:
    """Return the overloads that have a kernel for a dispatch key."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return {n.removeprefix("aten::") for n in names if n.startswith("aten::") and has(n, key)}


def listed() -> list[tuple[str, str]]:
    """Return each operator of PyTorch's lists with the rule of its list."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text()
    found: set[tuple[str, str]] = set()
    for name, rule in RULES.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*)\n", text)
        assert body is not None, name
        found.update((operator, rule) for operator in re.findall(r"_\((\w+)", body[1]))
    assert len(found) > 100
    return sorted(found - {(n, "lower") for n in OF_CUDA})


@pytest.mark.covers("A14")
@pytest.mark.parametrize(("operator", "rule"), listed())
def test_an_operator_has_the_rule_of_pytorchs_list(operator: str, rule: str) -> None:
    assert AUTOCAST[operator] == rule


def test_what_pytorch_refuses_is_refused() -> None:
    assert AUTOCAST["binary_cross_entropy"] == "refuse"
    # It has no other rule beside those of the lists.
    ruled = {n.partition(".")[0] for n in operators("AutocastCUDA")}
    assert ruled - {n for n, _ in listed()} - OF_CUDA == {"binary_cross_entropy", "norm"}
    assert AUTOCAST["norm"] == "fp32_result"


def test_overloads_with_a_rule_are_those_of_cuda() -> None:
    expected = operators("AutocastCUDA") - OF_CUDA
    assert operators("AutocastPrivateUse1") == expected | MORE


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_give_the_lower_precision(layer: str) -> None:
    net = getattr(torch.nn, layer)(3, 4).to("webgpu")
    x = torch.ones(2, 1, 3, device="webgpu")
    with torch.autocast("webgpu", torch.float16):
        out, last = net(x)
    states = last if isinstance(last, tuple) else (last,)
    assert {out.dtype, *(s.dtype for s in states)} == {torch.float16}


def test_a_parameter_is_cast_once_in_a_context() -> None:
    def run(place: str) -> list[object]:
        found: list[object] = []
        net = torch.nn.Linear(4, 2, bias=False).to(place)
        x = torch.ones(1, 4, device=place)
        torch.nn.init.ones_(net.weight)
        for cached in (True, False):
            with torch.autocast(place, torch.bfloat16, cache_enabled=cached):
                for _ in range(2):
                    with torch.no_grad():
                        found.append(net(x).tolist())
                        net.weight.mul_(2)
                    with torch.inference_mode():
                        found.append(net(x).tolist())
                    net.weight.grad = None
                    net(x * 2).sum().backward()
                    found.append(net.weight.grad.tolist())
        return found

    assert run("webgpu") == run("cpu")
