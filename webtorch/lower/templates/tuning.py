"""Which tiles products use on which adapters: the shipped table. Floor 2; imports nothing of ours.

A family of adapters is named by a word of its name. Rates are TFLOP/s of the whole adapter on large
products; only their proportions decide which tile is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


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
        return 16 * self.depth * (self.rows // 4 + 2 + self.columns // 4 + 2)


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """A workgroup's tile on matrix units: down x across subgroups of 32, each with so many rows and
    columns of 16 x 16 fragments, and `depth` k at a time."""

    down: int
    across: int
    fragment_rows: int
    fragment_columns: int
    depth: int

    @property
    def rows(self) -> int:
        """Rows of the output."""
        return self.down * self.fragment_rows * 16

    @property
    def columns(self) -> int:
        """Columns of the output."""
        return self.across * self.fragment_columns * 16

    @property
    def subgroups(self) -> int:
        """Subgroups in a workgroup."""
        return self.down * self.across

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return 32 * self.subgroups

    @property
    def shared_bytes(self) -> int:
        """Bytes of workgroup memory, whichever way the operands lie."""
        along_k = (self.rows + self.columns) * (self.depth + 8)
        across = self.depth * (self.rows + self.columns + 16)
        return max(2 * max(along_k, across), 16 * self.finished)

    @property
    def finished(self) -> int:
        """Vectors of four sums that wait to be written: a row of fragments of each subgroup."""
        return self.subgroups * 16 * self.finished_stride

    @property
    def finished_stride(self) -> int:
        """Vectors from one of their rows to the next: one more than there are, for memory banks."""
        return self.fragment_columns * 4 + 1


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tile on a family of adapters: the rate that it reaches where workgroups
    fill a multiprocessor, and how many fit on one side by side."""

    tile: Tile
    rate: float
    resident: int

    def turns(self, groups: int) -> float:
        """Return how long one multiprocessor takes for `groups` workgroups, in their time at full
        rate."""
        whole, rest = divmod(groups, self.resident)
        return whole * self.resident + (
            rest / _speed(rest * self.tile.threads // 32) if rest else 0
        )


@dataclass(frozen=True, slots=True)
class KnownMatrix:
    """What is known of a tile on matrix units: the rates of the whole adapter while each
    multiprocessor has `resident` workgroups (1 or 2), where none, one and both of the operands run
    along k in memory; what starting and writing cost, in k; and the part of the rate that one of two
    reaches alone."""

    tile: MatrixTile
    rates: tuple[float, float, float]
    resident: int
    start_k: int
    alone: float = 0.6

    def turns(self, groups: int) -> float:
        """Return how long one multiprocessor takes for `groups` workgroups, in their time at full
        rate."""
        single = groups % self.resident
        return groups - single + single / self.alone


# What a multiprocessor reaches with so many groups of 32 invocations.
_SPEED = ((0, 0.0), (2, 0.48), (4, 0.76), (8, 0.95), (12, 1.0))


def _speed(warps: int) -> float:
    for (few, slow), (many, fast) in pairwise(_SPEED):
        if warps <= many:
            return slow + (fast - slow) * (warps - few) / (many - few)
    return 1.0


@dataclass(frozen=True, slots=True)
class Family:
    """Adapters that share launch rules: how many multiprocessors they have, their tiles, and what
    was measured for classes of shapes: rows, columns, depth, own rows, own columns, parts of k."""

    multiprocessors: int
    tiles: tuple[Known, ...]
    measured: dict[str, tuple[int, ...]] = field(default_factory=dict)
    matrix_tiles: tuple[KnownMatrix, ...] = ()
    # Tiles on matrix units for few rows where the other operand is computed, those of the fewest rows first.
    unpacking: tuple[MatrixTile, ...] = (
        MatrixTile(1, 4, 1, 1, 64),
        MatrixTile(1, 4, 2, 1, 64),
        MatrixTile(1, 4, 4, 1, 64),
    )
    # Whether Winograd's method was measured to be faster (winograd.py): where memory is fast.
    winograd: bool = False

    def up_to(self, own: int, multiprocessors: int) -> Family:
        """Return a family with only the tiles of at most `own` outputs an invocation."""
        fitting = (k for k in self.tiles if k.tile.own_rows * k.tile.own_columns <= own)
        return Family(multiprocessors, tuple(fitting), matrix_tiles=self.matrix_tiles)


# An H200 on 4096^3 and on the products of a GPT's training step.
HOPPER = Family(
    132,
    (
        Known(Tile(256, 128, 16, 8, 16), 49.5, 1),
        Known(Tile(128, 128, 16, 8, 16), 48.0, 2),
        Known(Tile(96, 128, 16, 12, 8), 47.5, 2),
        Known(Tile(128, 96, 16, 8, 12), 46.5, 2),
        Known(Tile(64, 96, 16, 8, 12), 45.0, 5),
        Known(Tile(128, 64, 16, 8, 8), 45.0, 4),
        Known(Tile(64, 128, 16, 8, 8), 44.0, 4),
        Known(Tile(64, 64, 16, 8, 8), 41.0, 7),
        Known(Tile(64, 64, 16, 8, 4), 35.0, 8),
        Known(Tile(32, 64, 16, 4, 8), 27.0, 16),
        Known(Tile(32, 32, 16, 4, 4), 19.0, 16),
    ),
    # Measured on an H200, wgpu-native, 2026-11-22: training steps of an MLP and a GPT, squares.
    {
        "float32 dd 1x512x1024x896": (64, 64, 16, 8, 8, 4),
        "float32 dd 1x512x1024x1024": (64, 64, 16, 8, 8, 4),
        "float32 dd 1x512x10x1024": (64, 64, 16, 8, 8, 8),
        "float32 dd 1x8192x96x384": (64, 64, 16, 8, 8, 1),
        "float32 dd 1x8192x1280x384": (128, 96, 16, 8, 12, 1),
        "float32 dd 1x8192x1536x384": (64, 96, 16, 8, 12, 1),
        "float32 dd 1x8192x384x1536": (96, 128, 16, 12, 8, 1),
        "float32 dd 1x8192x384x384": (96, 128, 16, 12, 8, 1),
        "float32 dd 192x256x256x64": (64, 64, 16, 8, 8, 1),
        "float32 dd 192x256x64x256": (64, 64, 16, 8, 8, 1),
        "float32 dw 1x256x256x256": (64, 64, 16, 8, 8, 2),
        "float32 dw 1x512x512x512": (128, 64, 16, 8, 8, 4),
        "float32 dw 1x512x1024x1024": (128, 64, 16, 8, 8, 4),
        "float32 dw 1x1024x1024x1024": (96, 128, 16, 12, 8, 3),
        "float32 dw 1x8192x384x96": (128, 64, 16, 8, 8, 1),
        "float32 dw 1x8192x384x384": (128, 96, 16, 8, 12, 1),
        "float32 dw 1x8192x384x1280": (96, 128, 16, 12, 8, 1),
        "float32 dw 1x8192x384x1536": (96, 128, 16, 12, 8, 1),
        "float32 dw 1x8192x1536x384": (128, 128, 16, 8, 16, 1),
        "float32 dw 192x256x256x64": (64, 64, 16, 8, 8, 1),
        "float32 dw 192x256x64x256": (128, 64, 16, 8, 8, 1),
        "float32 ww 1x96x384x8192": (32, 64, 16, 4, 8, 22),
        "float32 ww 1x1024x896x512": (64, 64, 16, 8, 4, 1),
        "float32 ww 1x1024x1024x512": (64, 64, 16, 8, 4, 1),
        "float32 ww 1x384x384x8192": (64, 128, 16, 8, 8, 22),
        "float32 ww 1x1280x384x8192": (96, 128, 16, 12, 8, 7),
        "float32 ww 1x1536x384x8192": (64, 128, 16, 8, 8, 5),
        "float32 ww 1x384x1536x8192": (128, 64, 16, 8, 8, 5),
        "float32 ww 192x256x64x256": (128, 64, 16, 8, 8, 1),
        "float32 ww 192x64x256x256": (64, 128, 16, 8, 8, 1),
    },
    # Measured on an H200, Dawn, 2026-11-22: 4096^3, the products of a GPT's training step, and the
    # convolutions of a UNet.
    (
        KnownMatrix(MatrixTile(2, 2, 4, 4, 32), (330.0, 295.0, 285.0), 2, 200),
        # (Both operands across k: not measured.)
        KnownMatrix(MatrixTile(2, 2, 5, 4, 32), (300.0, 300.0, 285.0), 2, 200, alone=0.7),
        KnownMatrix(MatrixTile(2, 2, 4, 4, 64), (286.0, 286.0, 286.0), 1, 200),
        KnownMatrix(MatrixTile(2, 4, 4, 2, 64), (275.0, 275.0, 280.0), 1, 100),
        KnownMatrix(MatrixTile(2, 2, 4, 3, 64), (270.0, 265.0, 275.0), 1, 200),
        KnownMatrix(MatrixTile(2, 2, 4, 3, 32), (295.0, 262.0, 250.0), 2, 200),
        KnownMatrix(MatrixTile(2, 2, 3, 4, 32), (290.0, 262.0, 250.0), 2, 200),
        KnownMatrix(MatrixTile(2, 2, 2, 2, 64), (165.0, 165.0, 170.0), 2, 200),
    ),
    winograd=True,
)
# Unknown adapters: with fewer registers, at most 64 outputs an invocation.
DISCRETE = HOPPER.up_to(64, 64)
INTEGRATED = HOPPER.up_to(32, 16)

TILES: tuple[Tile, ...] = tuple(k.tile for k in HOPPER.tiles)

FAMILIES: dict[str, Family] = {"H200": HOPPER, "H100": HOPPER, "discrete": DISCRETE, "": INTEGRATED}


def family_of(name: str, adapter_type: str) -> str:
    """Return the key in `FAMILIES` of an adapter: the first one that is a word of its name."""
    words = name.replace("-", " ").split()
    for key in FAMILIES:
        if key in words:
            return key
    return "discrete" if adapter_type == "DiscreteGPU" else ""
