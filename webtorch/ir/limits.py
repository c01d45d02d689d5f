"""What the compiler must know of a device: a plain value. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """What the compiler must know of a device. Sizes in bytes."""

    max_binding_bytes: int
    max_buffers_per_kernel: int
    max_workgroup_invocations: int
    max_workgroups_per_dim: int
    workgroup_memory_bytes: int
    has_f16: bool
    # Whether the device gains from one kernel with many parallel points (a GPU) or from few long
    # ones (CPU threads).
    is_gpu: bool
    # The adapter's family in the table of tiles (lower/templates/tuning.py).
    family: str = ""
    # Whether matrix units multiply 16 x 16 fragments of float16, with sums in float32, in subgroups
    # of 32.
    has_matrix_units: bool = False
    # Invocations of a subgroup, where all have as many and read each other's registers; else 0.
    subgroup: int = 0
    # Whether four products of bytes and their sum are one quick instruction.
    has_dots: bool = False
    # Whether the bits of a float16 become a float32 in one step, those of the smallest numbers too.
    has_halves: bool = False
    # Tiles of products that were measured on this adapter: class of shapes -> rows, columns, depth,
    # own rows, own columns, parts of k (lower/templates/gemm.py).
    tuned: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    # Whether a Convolution or Matmul template exists here (else the compiler lowers them to generic
    # kernels).
    has_matmul: bool = True
    has_convolution: bool = True
    has_scan: bool = True
    # Whether attention of float32 without scores in memory is faster than products.
    has_attention: bool = False
    # Whether products compute what follows them while their sums are in registers. (Not on CPU threads: there
    # it would be a pass of its own, and what now shares one with a reduction would not.)
    has_epilogues: bool = False
    # Whether small kernels are merged into one dispatch (lower/together.py).
    has_several: bool = False
    # Whether small kernels that need each other run in turn in one dispatch (lower/turns.py).
    has_turns: bool = False
    # Whether products of one left operand are put into one dispatch (lower/joint.py). (On CPU threads they
    # would run one after the other all the same.)
    has_joint_products: bool = False
    # Whether the graph's sizes vary from one program to the next, so that its kernels should differ
    # in little more than numbers (lower/sizes.py).
    varying: bool = False
    # The most bytes of one buffer: larger memory is a row of buffers.
    max_buffer_bytes: int = 1 << 62

    @property
    def row_step(self) -> int:
        """Return the bytes of each buffer of a row: a power of two, so that elements never lie in two."""
        return 1 << (self.max_buffer_bytes.bit_length() - 1)
