"""What is known of each reduction: a record. Backends and passes read it; what combines two values is a
scalar function with a record of its own. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from webtorch.ir.dtype import DType, Scalar, bool_, integer_limits
from webtorch.ir.expr import FUNCTIONS, ScalarFunction


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reducer:
    """One reduction: how two values become one, of numbers and of bools, and what changes nothing."""

    name: str
    # The scalar function that combines two values; of bools, `bools` does.
    combine: str
    bools: str
    # The node that ONNX has for it; of bools, there are none.
    onnx: str
    # Whether the result is the position of the extreme; NaN is one, and the first wins.
    is_position: bool = False

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
        Reducer(name="any", combine="or", bools="or", onnx="ReduceMax"),
        Reducer(name="all", combine="and", bools="and", onnx="ReduceMin"),
        Reducer(name="argmax", combine="max", bools="or", onnx="ArgMax", is_position=True),
        Reducer(name="argmin", combine="min", bools="and", onnx="ArgMin", is_position=True),
    )
}
