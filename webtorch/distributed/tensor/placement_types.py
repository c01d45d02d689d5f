"""How the parts of a tensor lie along one dimension of a mesh. Floor 5."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Partial", "Placement", "Replicate", "Shard"]


class Placement:
    """How a tensor lies along one dimension of a mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each process has a part, of dimension `dim` where that is asked."""
        return False

    def is_replicate(self) -> bool:
        """Whether each process has all."""
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether what the processes have is still to be reduced, by `reduce_op` where that is asked."""
        return False


@dataclass(frozen=True)
class Shard(Placement):
    """Each process has a chunk of a dimension: `torch.chunk`'s, so that the last may be short or empty."""

    dim: int

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each process has a part, of dimension `dim` where that is asked."""
        return dim is None or dim == self.dim

    @staticmethod
    def local_shard_size_and_offset(
        curr_local_size: int, num_chunks: int, rank: int
    ) -> tuple[int, int]:
        """Return how long the chunk of a process is, and where it begins; the last may be short or empty."""
        chunk = -(-curr_local_size // num_chunks)
        offset = min(chunk * rank, curr_local_size)
        return min(chunk, curr_local_size - offset), offset

    def __str__(self) -> str:
        """Return the short form."""
        return f"S({self.dim})"


@dataclass(frozen=True, repr=False)
class _StridedShard(Placement):
    """Each process has a chunk of each of `split_factor` groups of a dimension."""

    dim: int
    split_factor: int

    def __repr__(self) -> str:
        """Return the long form."""
        return f"_StridedShard(dim={self.dim}, sf={self.split_factor})"

    def __str__(self) -> str:
        """Return the short form."""
        return f"_S({self.dim}, {self.split_factor})"


@dataclass(frozen=True)
class Replicate(Placement):
    """Each process has all."""

    def is_replicate(self) -> bool:
        """Whether each process has all."""
        return True

    def __str__(self) -> str:
        """Return the short form."""
        return "R"


@dataclass(frozen=True, repr=False)
class Partial(Placement):
    """What the processes have is still to be reduced: by "sum", "avg", "max", "min" or "product"."""

    reduce_op: str = "sum"

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether what the processes have is still to be reduced, by `reduce_op` where that is asked."""
        return reduce_op is None or reduce_op == self.reduce_op

    def __repr__(self) -> str:
        """Return the long form."""
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        """Return the short form."""
        return f"P({self.reduce_op})"


@dataclass(frozen=True, repr=False)
class _NormPartial(Partial):
    """What the processes have are norms of parts, of which that of the whole is still to be computed."""

    norm_type: float = 2.0

    def __repr__(self) -> str:
        """Return the long form."""
        return f"_NormPartial({self.norm_type})"
