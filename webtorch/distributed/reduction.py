"""`ReduceOp`: what is done with the values of all processes. Floor 5."""

from __future__ import annotations

import enum
from typing import ClassVar


class ReduceOp(enum.IntEnum):
    """What a reduction over processes does."""

    # The class of the members, which is another one in PyTorch.
    RedOpType: ClassVar[type[ReduceOp]]

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


ReduceOp.RedOpType = ReduceOp
# Its older name.
reduce_op = ReduceOp
