"""Adapters that we do not have, played by one that we have: their limits, features and kinds, from tests/profiles.toml.

With WEBTORCH_TEST_PROFILE set to the name of a record, such as "adreno-740" or "H200", devices are asked for no more
than that adapter has, so that the driver itself refuses what would not run there, and the compiler is told that it is
one: its family in the table of tiles, and whether it is a graphics card. For tests only: a program run so is slow.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from webtorch.ir.limits import Limits
from webtorch.lower.templates.tuning import family_of
from webtorch.runtime.backends.webgpu import device

VARIABLE = "WEBTORCH_TEST_PROFILE"
_FILE = Path(__file__).with_suffix(".toml")
_real_wanted, _real_limits = device.wanted, device._limits


@dataclass(frozen=True)
class Profile:
    """What is known of an adapter from published reports."""

    name: str
    adapter: str
    type: str
    source: str
    features: frozenset[str]
    subgroup: tuple[int, int]
    defects: tuple[str, ...]
    limits: dict[str, int]
    # Bytes of the buffers that larger tensors are spread over, where they are fewer than a device is asked for.
    buffers: int = 0

    @property
    def is_gpu(self) -> bool:
        """Whether it is a graphics card."""
        return self.type != "CPU"

    @property
    def family(self) -> str:
        """Its family in the table of tiles."""
        return family_of(self.adapter, self.type)

    def reduced(self, limits: dict[str, int]) -> dict[str, int]:
        """Return the limits of an adapter that are those of this one too."""
        return {n: min(v, self.limits.get(n, v)) for n, v in limits.items()}

    def told(self, real: Limits) -> Limits:
        """Return what the compiler is told of a device that was made of a real adapter."""
        return replace(
            real,
            is_gpu=self.is_gpu,
            has_several=self.is_gpu,
            has_turns=self.is_gpu,
            has_joint_products=self.is_gpu,
            has_matrix_units=False,
            has_dots=self.type == "DiscreteGPU",
            has_halves=self.adapter.startswith("NVIDIA"),
            family=self.family,
            max_buffer_bytes=self.buffers or real.max_buffer_bytes,
        )

    def of_pages(self, real: Limits) -> Limits:
        """Return what pages are written for."""
        binding = "max-storage-buffer-binding-size"
        return replace(
            real,
            max_binding_bytes=min(real.max_binding_bytes, self.limits[binding]),
            max_buffer_bytes=self.buffers or real.max_buffer_bytes,
        )


@lru_cache
def profiles() -> dict[str, Profile]:
    """Return all records, by name."""
    read = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    defaults = read.pop("defaults")["limits"]
    return {
        name: Profile(
            name, r["adapter"], r["type"], r["source"], frozenset(r["features"]),
            (r["subgroup"][0], r["subgroup"][1]), tuple(r["defects"]), {**defaults, **r.get("limits", {})},
            r.get("buffers", 0),
        )
        for name, r in read.items()
    }  # fmt: skip


def chosen() -> Profile | None:
    """Return the profile that the environment names; None if adapters are to say the truth."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in profiles():
        raise pytest.UsageError(f"{VARIABLE}: tests/profiles.toml has no record {name!r}")
    return profiles()[name] if name else None


def pretend() -> None:
    """Let all adapters of this process be the one that the environment names, if any."""
    profile = chosen()
    if profile is None:
        return
    from webtorch.web import export

    def wanted(adapter: Any) -> tuple[list[str], dict[str, int]]:
        features, limits = _real_wanted(adapter)
        return [f for f in features if f in profile.features], profile.reduced(limits)

    def limits(found: dict[str, int], adapter: Any, features: frozenset[str]) -> Limits:
        return profile.told(_real_limits(profile.reduced(found), adapter, features))

    device.wanted, device._limits = wanted, limits
    export.BROWSER_LIMITS = profile.of_pages(export.BROWSER_LIMITS)
    export.SOFTWARE_LIMITS = profile.of_pages(export.SOFTWARE_LIMITS)


# Lets the adapters of a page have no more than these limits and features.
_PAGE = """
(limits, allowed, buffers) => {
  if (!("gpu" in navigator)) return;
  const real = GPU.prototype.requestAdapter;
  GPU.prototype.requestAdapter = async function (...options) {
    const adapter = await real.apply(this, options);
    if (!adapter) return adapter;
    const most = (name) => Math.min(limits[name] ?? Infinity, adapter.limits[name]);
    const shown = new Proxy(adapter.limits, { get: (_, name) => most(name) });
    const features = new Set([...adapter.features].filter((name) => allowed.includes(name)));
    const requestDevice = async (wanted = {}) => {
      for (const [name, value] of Object.entries(wanted.requiredLimits ?? {}))
        if (value > most(name)) throw new DOMException(`${name}: ${value} is over ${most(name)}`, "OperationError");
      for (const name of wanted.requiredFeatures ?? [])
        if (!features.has(name)) throw new TypeError(`no feature ${name}`);
      const device = await adapter.requestDevice(wanted);
      const make = device.createBuffer.bind(device);
      device.createBuffer = (wanted) => {
        if (!buffers || !(wanted.usage & GPUBufferUsage.STORAGE) || wanted.size <= buffers) return make(wanted);
        throw new RangeError(`a buffer of ${wanted.size} bytes`);
      };
      return device;
    };
    const bound = (it) => (it instanceof Function ? it.bind(adapter) : it);
    const own = { limits: shown, features, requestDevice };
    return new Proxy(adapter, { get: (_, name) => own[name] ?? bound(adapter[name]) });
  };
}"""


def page_script() -> str:
    """Return what lets the adapters of a page be the one that the environment names, "" if they say the truth."""
    profile = chosen()
    if profile is None:
        return ""
    words = {n: n.split("-") for n in profile.limits}
    limits = {
        w[0] + "".join(map(str.capitalize, w[1:])): profile.limits[n] for n, w in words.items()
    }
    return f"({_PAGE})({json.dumps(limits)}, {json.dumps(sorted(profile.features))}, {profile.buffers});"
