"""Which tiles products use on which adapters: the shipped table. Floor 2; imports nothing of ours.

A family of adapters is named by a word of its name. Rates are TFLOP/s of the whole adapter on large
products; only their proportions decide which tile is taken.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """A workgroup's tile: rows x columns x depth, and the rows x columns of one invocation."""

    rows: int
    columns: int
    depth: int
    own_rows: int
    own_columns: int

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return self.rows * self.columns // (self.own_rows * self.own_columns)

    @property
    def shared_bytes(self) -> int:
        """Bytes of workgroup memory."""
        return 16 * self.depth * (self.rows // 4 + 1 + self.columns // 4 + 1)


@dataclass(frozen=True, slots=True)
class Family:
    """What the launch rules assume of adapters: how many workgroups of 128 invocations run side by
    side at full speed, and what each tile reaches."""

    at_once: int
    rates: tuple[tuple[Tile, float], ...]


# An H200 on 4096^3 and 1024^3, wgpu-native and Dawn alike within 5 %.
HOPPER = Family(
    132,
    (
        (Tile(128, 128, 16, 8, 16), 44.5),
        (Tile(64, 128, 16, 8, 8), 42.5),
        (Tile(128, 64, 16, 8, 8), 38.5),
        (Tile(64, 64, 16, 8, 8), 36.5),
        (Tile(64, 64, 16, 8, 4), 31.5),
        (Tile(32, 64, 16, 4, 8), 25.0),
        (Tile(32, 32, 16, 4, 4), 17.0),
    ),
)
# Fewer registers, or an unknown number of them: at most 64 outputs an invocation.
DISCRETE = Family(64, tuple((t, r) for t, r in HOPPER.rates if t.own_rows * t.own_columns <= 64))
INTEGRATED = Family(
    16, tuple((t, r) for t, r in DISCRETE.rates if t.own_rows * t.own_columns <= 32)
)

TILES: tuple[Tile, ...] = tuple(tile for tile, _ in HOPPER.rates)

FAMILIES: dict[str, Family] = {"H200": HOPPER, "H100": HOPPER, "discrete": DISCRETE, "": INTEGRATED}


def family_of(name: str, adapter_type: str) -> str:
    """Return the key in `FAMILIES` of an adapter: the first one that is a word of its name."""
    words = name.replace("-", " ").split()
    for key in FAMILIES:
        if key in words:
            return key
    return "discrete" if adapter_type == "DiscreteGPU" else ""
