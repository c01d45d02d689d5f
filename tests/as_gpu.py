"""A software adapter that says that it is a graphics card, so that a card's kernels are made and run without one.

With WEBTORCH_TEST_AS_GPU set to a family of the table of tiles (lower/templates/tuning.py), such as H200, the tests
see every adapter as one of that family: tiles, split sums, joint products, small kernels in one dispatch and a card's
workgroup memory. Matrix units stay away, as the adapter has none. For tests only: a program run so is slow.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from webtorch.ir.limits import Limits
from webtorch.lower.templates.tuning import family_of
from webtorch.runtime.backends.webgpu import device

VARIABLE = "WEBTORCH_TEST_AS_GPU"
# What an H200 has for a workgroup, less than what lavapipe offers.
_WORKGROUP_MEMORY = 48 << 10
_real = device._limits


def family() -> str:
    """Return the family that adapters shall say they are of; "" if they are to say the truth."""
    name = os.environ.get(VARIABLE, "")
    if name and family_of(f"NVIDIA {name}", "DiscreteGPU") != name:
        raise pytest.UsageError(f"{VARIABLE}: the table of tiles has no family {name!r}")
    return name


def limits_as(name: str) -> Any:
    """Return what `device._limits` is to be for adapters of the family `name`."""

    def limits(found: dict[str, int], adapter: Any, features: frozenset[str]) -> Limits:
        real = _real(found, adapter, features)
        return replace(
            real,
            is_gpu=True,
            has_several=True,
            has_joint_products=True,
            family=name,
            workgroup_memory_bytes=min(_WORKGROUP_MEMORY, real.workgroup_memory_bytes),
        )

    return limits


def pretend() -> None:
    """Let all adapters of this process be of the family that the environment names, if any."""
    if name := family():
        device._limits = limits_as(name)
