"""Numbers of few bits in words, as `functions/quantize` lays them. May import floors 0 and 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int32
from webtorch.ops.record import Elementwise, elementwise

if TYPE_CHECKING:
    pass

WORD = 32


def _lane(bits: int, lane: int) -> Elementwise:
    """Declare the operation that takes number `lane` out of a word: signed for 8 bits, unsigned for 4."""
    above, below = WORD - bits * (lane + 1), bits * lane
    if bits == 8:
        expr = lambda word: ex.shr(ex.shl(word, above), WORD - bits)  # noqa: E731
    else:
        expr = lambda word: ex.shr(word, below) & 15  # noqa: E731
    return elementwise(
        f"_lane{lane}_of_{bits}_bits",
        expr,
        tensors=("word",),
        function_in=(),
        differentiable=False,
        dtypes=(int32,),
        doc=f"Number {lane} of a word of {bits}-bit numbers.",
    )


LANES = {bits: tuple(_lane(bits, lane) for lane in range(WORD // bits)) for bits in (4, 8)}


# Windows of data in memory have offsets that are arguments, and a kernel reads them number by number;
# those of a result, also of one that fuses, are known when the kernel is written.
itself = elementwise(
    "_itself",
    lambda x: x * 1.0,
    function_in=(),
    dtypes=(float32,),
    doc="The input itself, as a result.",
)
