"""Sequences of different lengths: padded, packed, and back. May import the tensor floor only."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from webtorch.functions import public as webtorch
from webtorch.functions.padding import pad
from webtorch.tensors.host import sizes_in
from webtorch.tensors.tensor import Tensor

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    """The fields of a packed sequence."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences without their padding, step after step: what `pack_sequence` returns.

    `data` (sum of lengths, *) holds the first elements of all sequences, longest first, then the
    second ones, ...; `batch_sizes` (int64, on the CPU) says how many there are at each step.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Any,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        """Return the sequences; the order of the batch is inverted where it is not given."""
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:
            if not (isinstance(data, (list, tuple)) and len(data) == 2):
                raise AssertionError("Expected data to be a list or tuple of length 2")
            data, batch_sizes = data
        if batch_sizes.device.type != "cpu":
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be "
                "created manually. They should be instantiated by functions like pack_sequence "
                "and pack_padded_sequences in nn.utils.rnn. "
                "https://pytorch.org/docs/stable/nn.html#torch.nn.utils.rnn.pack_sequence"
            )
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> PackedSequence:
        """Return the sequences with changed data, and the order on the data's device."""
        data = change(self.data)
        if data is self.data:
            return self
        order = (
            None if one is None else one.to(data.device)
            for one in (self.sorted_indices, self.unsorted_indices)
        )
        return type(self)(data, self.batch_sizes, *order)

    def to(self, *args: object, **kwargs: object) -> PackedSequence:
        """Return the sequences on another device or in another dtype."""
        return self._mapped(lambda t: t.to(*args, **kwargs))

    def cpu(self, *args: object, **kwargs: object) -> PackedSequence:
        """Return the sequences on the CPU."""
        return self.to("cpu")

    def double(self) -> PackedSequence:
        """Return the sequences as float64."""
        return self.to(webtorch.float64)

    def float(self) -> PackedSequence:
        """Return the sequences as float32."""
        return self.to(webtorch.float32)

    def half(self) -> PackedSequence:
        """Return the sequences as float16."""
        return self.to(webtorch.float16)

    def long(self) -> PackedSequence:
        """Return the sequences as int64."""
        return self.to(webtorch.int64)

    def int(self) -> PackedSequence:
        """Return the sequences as int32."""
        return self.to(webtorch.int32)

    def short(self) -> PackedSequence:
        """Return the sequences as int16."""
        return self.to(webtorch.int16)

    def char(self) -> PackedSequence:
        """Return the sequences as int8."""
        return self.to(webtorch.int8)

    def byte(self) -> PackedSequence:
        """Return the sequences as uint8."""
        return self.to(webtorch.uint8)

    @property
    def is_cuda(self) -> bool:
        """False: there is no CUDA here."""
        return False

    def is_pinned(self) -> bool:
        """Return False: memory is not pinned here."""
        return False

    def pin_memory(self) -> PackedSequence:
        """Return the sequences as they are: memory is not pinned here."""
        return self


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the permutation that undoes `permutation`."""
    if permutation is None:
        return None
    numbers = webtorch.arange(permutation.numel(), device=permutation.device)
    return webtorch.empty_like(permutation).scatter_(0, permutation, numbers.to(permutation.dtype))


def _indices(numbers: Sequence[builtins.int], device: Any) -> Tensor:
    """Return positions as an int64 tensor."""
    return webtorch.tensor(numbers, dtype=webtorch.int64, device=device)


def pack_padded_sequence(
    input: Tensor,
    lengths: Tensor | Sequence[builtins.int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> PackedSequence:
    """Return the sequences of `input`, (T, B, *) or (B, T, *), without what is behind `lengths`.

    `enforce_sorted=False` takes them in any order, and remembers it.
    """
    if input.numel() == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    if isinstance(lengths, Tensor):
        # Where a program names no device, its lengths lie on the default one, and are read.
        where = lengths.device
        if (
            where.type != "cpu" and where.type != webtorch.get_default_device().type
        ) or lengths.dim() != 1:
            raise RuntimeError(
                "'lengths' argument should be a 1D CPU int64 tensor, but got "
                f"{lengths.dim()}D {lengths.device} {lengths.dtype} tensor"
            )
        counts = sizes_in(lengths)
    else:
        counts = [int(n) for n in lengths]
    batch, steps = input.shape[:2] if batch_first else (input.shape[1], input.shape[0])
    if len(counts) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(counts)} "
            f"(batch_size={batch})"
        )
    order = list(range(batch))
    if enforce_sorted:
        if any(a < b for a, b in itertools.pairwise(counts)):
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is "
                "True. You can pass `enforce_sorted=False` to pack_padded_sequence and/or "
                "pack_sequence to sidestep this requirement if you do not need ONNX exportability."
            )
    else:
        order.sort(key=lambda i: -counts[i])
    if min(counts) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    counts = [counts[i] for i in order]
    if counts[0] > steps:
        raise RuntimeError(
            f"Expected the lengths to be at most the size of the time dimension, {steps}, but got "
            f"{counts[0]}"
        )
    # One gather of whole steps, from positions that the host knows.
    flat = input.reshape(-1, *input.shape[2:])
    sizes = [sum(1 for n in counts if n > t) for t in range(counts[0])]
    positions = [
        i * steps + t if batch_first else t * batch + i
        for t, size in enumerate(sizes)
        for i in order[:size]
    ]
    data = flat.index_select(0, _indices(positions, input.device))
    sorted_indices = None if enforce_sorted else _indices(order, input.device)
    return PackedSequence(data, _indices(sizes, "cpu"), sorted_indices, None)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: builtins.float = 0.0,
    total_length: builtins.int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (padded, lengths): (T, B, *) or (B, T, *), in the order before packing, and (B,)."""
    sizes = sizes_in(sequence.batch_sizes)
    steps = len(sizes)
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length of the longest sequence in "
                f"input, but got total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    data, batch = sequence.data, sizes[0]
    places = list(range(batch))
    if sequence.unsorted_indices is not None:
        places = sizes_in(sequence.unsorted_indices)
    lengths = [sum(1 for size in sizes if size > place) for place in places]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    # What is missing is read from one more row, that holds the padding.
    nothing = starts[-1]

    def position(t: builtins.int, i: builtins.int) -> builtins.int:
        """Return the row of the packed data that step t of sequence i is, or the padding's."""
        return starts[t] + places[i] if t < lengths[i] else nothing

    if batch_first:
        positions = [position(t, i) for i in range(batch) for t in range(steps)]
        shape = (batch, steps)
    else:
        positions = [position(t, i) for t in range(steps) for i in range(batch)]
        shape = (steps, batch)
    if nothing in positions:
        filler = webtorch.full(
            (1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device
        )
        data = webtorch.cat([data, filler])
    padded = data.index_select(0, _indices(positions, data.device))
    return padded.reshape(*shape, *data.shape[1:]), _indices(lengths, "cpu")


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: builtins.float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Return sequences (L, *) of different lengths as one tensor (T, B, *) or (B, T, *)."""
    if not isinstance(sequences, Iterable):
        raise RuntimeError(
            "pad_sequence: Expected iterable for input sequences, but got arg of type: "
            f"{type(sequences)}"
        )
    listed = list(sequences)
    if not listed:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(
            f"Expected padding_side to be one of left or right, but got {padding_side}."
        )
    steps = max(s.shape[0] for s in listed)
    padded = []
    for one in listed:
        missing = steps - one.shape[0]
        sides = (0, missing) if padding_side == "right" else (missing, 0)
        pads = (*(0,) * (2 * (one.dim() - 1)), *sides)
        padded.append(pad(one, pads, value=padding_value) if missing else one)
    return webtorch.stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False
) -> list[Tensor]:
    """Return the sequences that `pad_sequence` padded, each with its own length."""
    batch_dim = 0 if batch_first else 1
    counts = [int(n) for n in lengths.tolist()]
    rows = padded_sequences.unbind(batch_dim)
    # PyTorch's are chosen by a mask: copies, which may be written.
    return [
        row[:count].clone(memory_format=webtorch.contiguous_format)
        for row, count in zip(rows, counts, strict=True)
    ]


def pack_sequence(sequences: list[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Return sequences (L, *), longest first unless `enforce_sorted` is False, packed."""
    lengths = [int(s.shape[0]) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences that were packed, as a list."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
