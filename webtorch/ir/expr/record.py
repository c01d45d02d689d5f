"""What is known of one scalar function: a record. Backends, derivatives and exporters read it, and
nothing else names the function. Imports nothing of the package but types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webtorch.ir.dtype import Scalar
    from webtorch.ir.expr.node import Expr
    from webtorch.ir.expr.pair import Pair

# The least and the largest value of an expression, NaN aside; infinite where nothing is known.
Range = tuple[float, float]
# A formula is a function of expressions that gives an expression.
Formula = Callable[..., "Expr"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScalarFunction:
    """One scalar function. What it means is PyTorch's function of that name, NaN and infinities
    included.

    Each language has a form of its own here or computes the expansion: WGSL `expansion`, machine
    code of processors and WebAssembly `expansion_cpu`, ONNX the formula that stands for a node.
    """

    name: str
    arity: int
    # Whether it gives a bool; others give their operands' type.
    gives_bool: bool = False

    # -- mathematics
    # The derivative for each operand, of (operands..., result); None, and an empty tuple, where the
    # function is flat.
    slopes: tuple[Formula | None, ...] = ()
    # Its form over complex numbers, of Pairs; None where it has no meaning.
    pairs: Callable[..., Pair | Expr] | None = None
    # What it is of integers and bools that a language need not know it for.
    of_integers: Formula | None = None
    # The result of constants, or None where it is not certain.
    fold: Callable[[Any, Any], Scalar | None] | None = None
    # Whether numbers of a float type give one of that type: nothing is rounded.
    exact: bool = False
    # Whether integers may give what their type does not hold.
    wraps: bool = False
    # The bounds of the exact result, of the operands' bounds; None where they tell nothing.
    bounds: Callable[..., Range] | None = None
    # Those of integers, all of whose bounds are known, where more is known of them.
    bounds_integers: Callable[..., tuple[int, int]] | None = None

    # -- cost, in additions
    # Where functions have units of their own (a GPU): what fusion weighs.
    cost: int = 1
    # In a vector loop of a processor, and there of integers, if that differs.
    cost_cpu: int = 1
    cost_cpu_integers: int | None = None

    # -- expansions (webtorch.ir.expr.float32 and float64 say why there are two)
    expansion: Formula | None = None
    expansion_cpu: Formula | None = None
    # What machine code computes instead of `expansion_cpu`: where the processor multiplies and adds in one, and where
    # no lane of a vector is `rare` (a test of the operands).
    expansion_fused: Formula | None = None
    expansion_usual: Formula | None = None
    rare: Formula | None = None

    # -- languages
    # Python's operator in texts that are Python, and the sign of the printed form.
    infix: str = ""
    sign: str = ""
    # WGSL by the type of the operands (f32, i32, u32, bool), with {0} and {1} for these.
    wgsl: Mapping[str, str] = field(default_factory=dict)
    # Its name in loop texts (lower/pysource); its own unless given.
    loops: str = ""
    # NumPy's ufunc; "" where runtime/backends/cpu/numpy_math has a function of this name.
    numpy: str = ""
    # Python's function of floats, which may raise ValueError (NaN) and OverflowError (infinity);
    # None where runtime/backends/plain/arithmetic has one.
    python: Callable[..., float] | None = None
    # The C library's function of float64; "" where machine code needs none.
    libm: str = ""
    # WebAssembly's instruction for float32; 0 where it has none. That for float64 is 14 further.
    wasm: int = 0
    # LLVM's intrinsic, where it is one instruction of most processors and integers stay what they are.
    llvm: str = ""
    # ONNX's node, or a formula of functions that have one.
    onnx: str | Formula = ""

    def of_floats(self, *args: float) -> float:
        """Return Python's function of `args`: NaN outside its domain, infinity where it overflows."""
        assert self.python is not None
        try:
            return self.python(*args)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan


# Every record, by name.
FUNCTIONS: dict[str, ScalarFunction] = {}


def declare(
    name: str, arity: int, *, infix: str = "", sign: str = "", loops: str = "", **facts: Any
) -> ScalarFunction:
    """Add the record of a scalar function. A name is declared once."""
    assert name not in FUNCTIONS, f"{name} is declared twice"
    found = FUNCTIONS[name] = ScalarFunction(
        name=name, arity=arity, infix=infix, sign=sign or infix, loops=loops or name, **facts
    )
    return found


def wgsl(text: str, **others: str) -> dict[str, str]:
    """Return one WGSL text for all kinds of numbers, but for those given by name."""
    return {"f32": text, "i32": text, "u32": text, **others}


def wgsl_integers(text: str, **others: str) -> dict[str, str]:
    """Return one WGSL text for integers with and without a sign."""
    return {"i32": text, "u32": text, **others}
