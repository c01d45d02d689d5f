"""The same kernels on Dawn, the engine of Chrome, over SwiftShader: in a process of its own, since
the driver is chosen by an
environment variable."""

from __future__ import annotations

import glob
import importlib.util
import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

DRIVERS = "/usr/lib/chromium*/vk_swiftshader_icd.json"

SCRIPT = r"""
import numpy as np
import pytest
import wgpudawn
import tests.lower.test_wgsl_conv as conv, tests.lower.test_wgsl_kernels as kernels
import tests.lower.test_wgsl_matmul as matmul, tests.lower.test_wgsl_scan as scan
import tests.lower.test_wgsl_winograd as winograd
from dataclasses import replace
from tests.lower.harness import Device
from webtorch.ir.dtype import bfloat16, bool_, float16, float32, int8
from webtorch.ir.expr import FUNCTIONS

adapter = wgpudawn.gpu.request_adapter_sync(power_preference="high-performance")
device = Device(wgpudawn, "dawn", adapter)
for module in (conv, kernels, matmul, scan, winograd):
    module.open_device = lambda f16=True: device
targets = [(device, device.limits), (device, replace(device.limits, is_gpu=True))]
for target in targets:
    for count in (1, 5, 40001, 40004):
        kernels.test_elementwise_of_any_length_with_arguments(count, target)
    for dtype in (bool_, int8, bfloat16):
        kernels.test_unaligned_stores_of_packed_types_leave_their_neighbours_alone(dtype, target)
    for op, dtype in (("sum", float32), ("argmax", float32), ("any", bool_), ("max", bfloat16)):
        kernels.test_reductions_of_every_shape(op, dtype, False, target)
    kernels.test_nan_is_the_extreme_and_the_first_of_equal_positions_wins(5000, target)
    kernels.test_softmax_in_one_row_kernel(9, 4096, float32, target)
    kernels.test_softmax_in_one_row_kernel(70, 33, bfloat16, target)
    kernels.test_layer_norm_with_statistics_and_in_place(40, 768, target)
    for how in ("add", "mul", "max"):
        for dtype in (float32, float16, int8):
            kernels.test_scatter_with_repeated_positions(how, dtype, target)
    kernels.test_a_bad_index_is_reported_once_and_harmless(target)
# SwiftShader's subgroups have four invocations.
target = (device, replace(device.limits, is_gpu=True, subgroup=4))
for op, dtype in (("sum", float32), ("argmax", float32), ("any", bool_), ("max", bfloat16)):
    kernels.test_reductions_of_every_shape(op, dtype, False, target)
kernels.test_nan_is_the_extreme_and_the_first_of_equal_positions_wins(5000, target)
kernels.test_softmax_in_one_row_kernel(9, 4096, float32, target)
for op in ("add", "min", "max", "lt", "eq", "ne"):
    kernels.test_float_operations_follow_ieee_also_for_nan(op)
kernels.test_negated_comparisons_with_nan_are_true()
kernels.test_awkward_constants()
kernels.test_philox_matches_the_published_test_vectors()
for name in (f.name for f in FUNCTIONS.values() if f.expansion is not None):
    kernels.test_functions_are_as_accurate_on_the_device(name)
for seed in range(8):
    kernels.test_random_kernels(seed)
for gpu in (False, True):
    matmul.compare(matmul.make((2,), 33, 65, 30), limits=replace(device.limits, is_gpu=gpu))
    matmul.compare(matmul.make((), 20, 24, 2000, matmul.TYPES["bf16"]),
    limits=replace(device.limits, is_gpu=gpu))
    scan.compare("sum", (3, 1000, 2), float32, float32, gpu)
    scan.compare("max", (1, 40000, 1), float32, float32, gpu)
    for kind in conv.KINDS:
        conv.test_convolutions_and_gradients("odd", kind, gpu)
for kind in winograd.KINDS:
    with pytest.MonkeyPatch.context() as patch:
        winograd.test_agrees_with_pytorch("edges", kind, patch)
print("all right")
"""


@pytest.mark.long
def test_kernels_on_dawn() -> None:
    if importlib.util.find_spec("wgpudawn") is None:
        pytest.skip("needs the wgpudawn package")
    found = sorted(glob.glob(DRIVERS))
    if not found:
        pytest.skip("needs SwiftShader (apt-get install chromium)")
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT],
        env={**os.environ, "VK_ICD_FILENAMES": found[0], "VK_DRIVER_FILES": found[0], "PYTHONPATH": os.getcwd()},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "all right" in done.stdout
