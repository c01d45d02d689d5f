"""What is known of each reduction: a record. Backends and passes read it; what combines two values is a
scalar function with a record of its own. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from webtorch.ir.dtype import DType, Scalar, bool_, int64, integer_limits
from webtorch.ir.expr import FUNCTIONS, ScalarFunction


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reducer:
    """One reduction: how two values become one, of numbers and of bools, and what changes nothing."""

    name: str
    # The scalar function that combines two values; of bools, `bools` does.
    combine: str
    bools: str
    # The type of the result; None is that of the values.
    gives: DType | None = None
    # ONNX's node, of what ONNX has a node for.
    onnx: str = ""

    @property
    def is_position(self) -> bool:
        """Whether the result is the position of the extreme; NaN is one, and the first wins."""
        return self.gives is int64

    @property
    def is_logical(self) -> bool:
        """Whether values are asked for their truth."""
        return self.gives is bool_

    @property
    def is_extreme(self) -> bool:
        """Whether the result is one of the values; NaN wins."""
        return self.combine in ("max", "min") and self.gives is None

    def function(self, dtype: DType) -> ScalarFunction:
        """Return the scalar function that combines two values of a type."""
        return FUNCTIONS[self.bools if dtype is bool_ else self.combine]

    def identity(self, dtype: DType) -> Scalar:
        """Return the value that changes no other of the type when it is combined with it."""
        if dtype is bool_:
            return self.bools == "and"
        match self.combine:
            case "add":
                return 0
            case "mul":
                return 1
        largest = self.combine == "max"
        if dtype.kind == "float":
            return -math.inf if largest else math.inf
        return integer_limits(dtype)[0 if largest else 1]


REDUCERS: dict[str, Reducer] = {
    r.name: r
    for r in (
        Reducer(name="sum", combine="add", bools="or", onnx="ReduceSum"),
        Reducer(name="prod", combine="mul", bools="and", onnx="ReduceProd"),
        Reducer(name="max", combine="max", bools="or", onnx="ReduceMax"),
        Reducer(name="min", combine="min", bools="and", onnx="ReduceMin"),
        Reducer(name="any", combine="or", bools="or", gives=bool_, onnx="ReduceMax"),
        Reducer(name="all", combine="and", bools="and", gives=bool_, onnx="ReduceMin"),
        Reducer(name="argmax", combine="max", bools="or", gives=int64, onnx="ArgMax"),
        Reducer(name="argmin", combine="min", bools="and", gives=int64, onnx="ArgMin"),
    )
}
