"""The records of the op table, and the table itself. May import floor 0 only.

An entry is a value. Floor 4 gives each entry its `function` (the code that records it on tensors);
entries, gradient rules
and composites call each other through the entries, so they are written once and work wherever
tensors work.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from webtorch.dispatch.call import Callee, active, call
from webtorch.ir import expr as ex
from webtorch.ir.dtype import ALL, FLOATS, INTEGERS, DType, Scalar, bool_, int64
from webtorch.ir.expr import Expr
from webtorch.ops.derive import derivative
from webtorch.ops.layout import Layout, of_operands
from webtorch.ops.splits import Rule as Splits
from webtorch.ops.splits import aligned, along, reduces

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
# What is known of a family: a composite says so itself, or its file as SPLITS.
_SPLITS: dict[str, Splits] = {"reduce": reduces(), "scan": along("dim")}
# Types that PyTorch's kernels leave out, in groups.
BOOL = (bool_,)
NARROW_INTEGERS = tuple(d for d in (*INTEGERS, bool_) if d is not int64)
NOT_FLOATS = (*INTEGERS, bool_)

Promotion = Literal["same", "float", "bool"]
Family = Literal[
    "elementwise",
    "reduce",
    "movement",
    "contract",
    "index",
    "random",
    "scan",
    "composite",
    "creation",
]


# What becomes of an operation's float inputs while autocast is on: "lower" casts them to the lower
# precision, "fp32" to float32, "promote" to the widest of them; "fp32_result" asks for a float32 result
# (the op has a `dtype`); "whole" casts nothing, neither here nor in the operation's parts; "refuse"
# raises.
AutocastRule = Literal["lower", "fp32", "promote", "fp32_result", "whole", "refuse"]


@dataclass(frozen=True, slots=True)
class Autocast:
    """The rules of one operation: PyTorch has one list for the CPU and one for accelerators.

    None: the operation has no rule, and if it is made of others, they follow theirs.
    """

    cpu: AutocastRule | None = None
    gpu: AutocastRule | None = None


LOWER = Autocast("lower", "lower")
FP32 = Autocast("fp32", "fp32")
WHOLE = Autocast("whole", "whole")


# A gradient rule, written with public operations.
Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Anew:
    """The gradient rule of what computes its results again and differentiates that: for what costs less than to keep
    what it is made of, and for what is linear, whose results are not needed and never computed. Within one program
    the compiler finds what was computed before. Operands that it is linear in are `unread`: of these it needs no more
    than shape and type. `factors` are the operands of a product: each is read for the gradient of the others alone.
    """

    unread: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()

    def unread_for(self, needs: Collection[str]) -> list[str]:
        """Return the operands of which no value is read for the gradients of those that need one."""
        alone = [f for f in self.factors if not any(n != f for n in self.factors if n in needs)]
        return [*self.unread, *alone]


ANEW = Anew()
# What an `out=` may be: "exact", of the type of the result; "cast", of any type that PyTorch's rules let it be
# cast to; "truncate", the same, and floats are cut off for integers; "into", the operation computes in its
# type where no other is asked for; "stated", "cast", and a `dtype=` beside it must be its type; "mask", "cast",
# and bool or uint8; "kind", "cast", and complex if the result is, else real;
# "castable", "cast", and what is refused is named as linear algebra does.
OutRule = Literal["exact", "cast", "truncate", "into", "stated", "mask", "kind", "castable"]
# What memory an `out=` may share with the operands: "any"; "whole", that of an operand, but no part of it;
# "first", that of the first one as a whole, and no part of others; "none".
Overlap = Literal["any", "whole", "first", "none"]


class Operand(tuple[int, ...]):
    """The shape of an operand that stands among the other arguments of an `Example`."""

    __slots__ = ()

    def __new__(cls, *sizes: int) -> Operand:
        return super().__new__(cls, sizes)


@dataclass(frozen=True, slots=True)
class Example:
    """A call for tests: inputs by shape, then other arguments.

    "i5" is a vector of nine integers below 5, "b" a mask for (3, 5), "+" before a shape asks for positive numbers.
    """

    inputs: tuple[object, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Op:
    """One operation: its names, rules, derivative, oracle and documentation."""

    name: str
    family: Family
    # The public signature as PyTorch has it, such as "(input, other, *, alpha=1)".
    signature: str
    doc: str
    # Its signatures with their types, "(input: Tensor, dim: int) -> Max", where the type of the result follows from
    # the arguments; else the types are those of its function.
    forms: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    # Where the oracle is in PyTorch: "add", "nn.functional.gelu", "Tensor.repeat"; "" where there
    # is none.
    torch: str = ""
    # Where users find it: as webtorch.<name>, as a Tensor method, as webtorch.nn.functional.<name>.
    function_in: tuple[str, ...] = ("torch", "Tensor")
    inplace: bool = False
    # A rule (g, out, *inputs) -> one cotangent per tensor input (None where there is none); None:
    # not differentiable or, for an elementwise op, derived from the formula. Of a composite, also a tuple of rules,
    # one for each parameter up to the last tensor (None where there is no cotangent): only those of operands that
    # need gradients are called, only what these read is saved, and cotangents of broadcast operands are summed.
    vjp: Rule | tuple[Rule | None, ...] | Anew | None = None
    differentiable: bool = True
    autocast: Autocast | None = None
    dtypes: tuple[DType, ...] = ALL
    # Types of the first tensor that PyTorch has no such operation for.
    refuses: tuple[DType, ...] = ()
    # A function of the call's arguments that raises where values which lie in this process's memory are wrong, such
    # as places beyond the end of a dim: PyTorch's error at the call. Of other tensors kernels report them, and the
    # next read raises.
    values: Callable[..., object] | None = None
    # Parameters whose values are looked at: where vmap maps them, each example is computed by itself, as in PyTorch.
    looks_at: tuple[str, ...] = ()
    # Test inputs are drawn from this interval.
    domain: tuple[float, float] = (-3.0, 3.0)
    # Wider relative tolerance for float32, with the reason written where it is set.
    rtol: float | None = None
    # Extra arguments for the generated tests: a list of (args after the tensors, kwargs).
    samples: tuple[tuple[tuple[object, ...], dict[str, object]], ...] = (((), {}),)
    # A call, for entries that PyTorch's database of test inputs does not have; a string: why no results can be
    # compared.
    example: Example | str | None = None
    # What is known to differ from PyTorch on the CPU, "gradient" or what is of a type, with the reason.
    differs: Mapping[str, str] = field(default_factory=dict)
    # Whether the results are random numbers, or memory that nobody wrote: their types and shapes are compared.
    drawn: bool = False
    # Whether the last result says where something is: among equal elements any place will do.
    ties: bool = False
    # Whether the rule holds for complex tensors as it is written. Else it is that of a holomorphic
    # function: it is given conjugated cotangents, and gives such.
    complex_rule: bool = False
    # In which order PyTorch's gradient function leads to the tensors among the arguments, which it is given: their
    # places among these, or None for the order of the parameters.
    leads: Callable[..., tuple[int, ...] | None] | None = None
    # Other orders in which PyTorch takes arguments by position: "Tensor input, Number alpha, Operand other". An operand
    # may be a number, too.
    overloads: tuple[str, ...] = ()
    # Names that PyTorch's overloads have for parameters, and theirs here.
    other_names: Mapping[str, str] = field(default_factory=dict)
    # Whether the result is, as PyTorch's, a view of a tensor that the operation makes: hooks on it are not met
    # by gradients of what is written to it later.
    own_view: bool = False
    # Whether operands and result may be written before the backward pass: PyTorch's rule has no need of them.
    # What the rule here takes of them then keeps its values.
    saves_values: bool = False
    # Whether a backward pass uses up its gradient function though that saves no tensor: PyTorch saves one, such as a
    # number that it makes a tensor of. Of a composite also a function of the call's arguments that tells it.
    once: bool | Callable[..., bool] = False
    # What `out=` may be, or a function of the call's arguments that tells it.
    out: OutRule | Callable[..., OutRule] = "exact"
    # What errors of a "castable" `out=` call the result; results that have names go by these.
    result: str = "result"
    # Whether the function in nn.functional takes `out=` too, as those in torch and its libraries do.
    takes_out: bool = False
    overlap: Overlap = "any"
    # What is written in place to the memory of an expanded tensor, whose elements share places, as PyTorch does with a
    # warning: given the memory once and the other arguments, those of the call on it. None where that is refused.
    once_in_place: Callable[..., tuple[object, ...]] | None = None
    # The in-place forms that PyTorch has as functions too: "torch.relu_".
    inplace_functions: tuple[str, ...] = ()
    # Where PyTorch has it too, under another name or in another library: "special.expit".
    also: tuple[str, ...] = ()
    # Of a composite: whether each element of the result is of one element, and 0 of 0, so that of a sparse tensor the
    # values alone are computed.
    on_values: bool = False
    # Of a masked operation: the value that changes nothing in it, told by its operands; None where none is known.
    identity: Callable[..., Scalar | None] | None = None
    # Of a masked reduction: whether it takes sparse tensors, whose elements are reduced group by group.
    on_groups: bool = False
    # Whether PyTorch has it for lists of tensors: `torch._foreach_...`.
    foreach: bool = False
    # Which of Python's operators it is: "add" stands for `__add__`, `__radd__` and `__iadd__`.
    operator: str = ""
    # Whether its reflected form, called by name, takes a number first: Tensor.__rmod__(2.0, x).
    reflects_numbers: bool = False
    # What it is with two tensors and nothing else, as the operator is: that is called in its place.
    alone: Elementwise | None = None
    # Whether `__torch_function__` is given the entries of a list, which stands in the last place, one by one.
    spread: bool = False
    # The operators for which `__torch_function__` is given this entry's method.
    asks: tuple[str, ...] = ()
    # Which dims may lie in parts that are computed by themselves; None: that is not known.
    splits: Splits | None = None
    # PyTorch's operators that it is as it stands, with the same arguments in the same order; an elementwise entry's
    # is that of its name. Those that the rules here hold for too, with arguments of their own.
    aten: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    # Operators of these that have a kernel though PyTorch could make them of others: "add.Tensor".
    direct: tuple[str, ...] = ()
    # Whether PyTorch takes numbers for it where the schema says Tensor.
    numbers_as_tensors: bool = False
    # Whether it is the operator of its name in PyTorch's graphs; in eager code PyTorch composes that, or makes a view.
    traced: bool = False
    # How the result lies in memory, as the operator's in PyTorch; None: row-major.
    layout: Layout | None = None
    # Operators that change sizes and strides only: the device has PyTorch's CPU kernels, which never look at the data.
    geometry: tuple[str, ...] = ()
    # Operators of the PyTorch device that PyTorch's LAPACK computes: they have no kernel on WebGPU.
    lapack: tuple[str, ...] = ()
    # Its operator in ONNX; a reduction's function in NumPy, an oracle that users of a broken device have too.
    onnx: str = ""
    numpy: str = ""
    # By how much weights before an activation grow, to make up for what it shrinks.
    gain: float | None = None
    # Whether the result may be far larger than the operands: a file of ONNX holds these, not the result.
    grows: bool = False
    # Whether tensors are made of what is none: a mode of functions is asked, no class.
    factory: bool = False
    # The name that PyTorch shows for the gradient function, or a function of the call's arguments that gives it.
    # "": the entry's own name for what is one function here too, that of its last part for what is made of others.
    gradient_name: str | Callable[..., str] = ""
    # How many results have a gradient. With more than one, the rule gets tuples for g (with None
    # where a result was not used) and for out.
    outputs: int = 1
    function: Callable[..., Any] = field(default=None, repr=False)  # type: ignore[assignment]
    # A composite as it is written, without what `function` is wrapped with.
    written: Any = field(default=None, repr=False)
    # The parameters of a composite's function.
    parameters: inspect.Signature = field(default=None, repr=False)  # type: ignore[assignment]
    # What a call of the entry is of, for those who see calls.
    callee: Callee = field(default=None, repr=False)  # type: ignore[assignment]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active.count:
            return call(self.callee, args, kwargs)
        return self.function(*args, **kwargs)

    def rules(self) -> tuple[Rule, ...]:
        """Return the gradient rules: none, one for all operands, or those of single ones."""
        rules = self.vjp if isinstance(self.vjp, tuple) else (self.vjp,)
        return tuple([r for r in rules if callable(r)])

    def positional(self) -> tuple[str, ...]:
        """Return the names of the parameters that may be given by position."""
        names = self.signature.split("*")[0].strip("(), ")
        return tuple([n.partition("=")[0].strip() for n in names.split(",")])

    def __reduce__(self) -> tuple[object, ...]:
        return (_lookup, (self.name,))


@dataclass(slots=True, eq=False)
class Composite(Op, Generic[P, R]):
    """An operation that is a function: calling the entry has that function's types."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


@dataclass(slots=True, eq=False)
class Elementwise(Op):
    """A scalar formula over broadcast tensors. `tensors` and `numbers` name the formula's
    parameters in order.

    Any tensor operand but one may be a Python number; numbers (and such operands) are runtime
    arguments, so that
    another value compiles nothing.
    """

    expr: Callable[..., Expr] = field(default=None)  # type: ignore[assignment]
    tensors: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    defaults: dict[str, Scalar] = field(default_factory=dict)
    promotion: Promotion = "same"
    out: OutRule | Callable[..., OutRule] = "cast"
    overlap: Overlap = "whole"
    splits: Splits | None = aligned
    layout: Layout | None = of_operands
    gradient_name: str = ""
    # A function of the operands that raises where PyTorch refuses their types.
    operands_fit: Callable[..., None] | None = None
    # Which operands of a function of two may be numbers; of operators both may.
    numbers_for: Literal["none", "other", "both"] = "other"
    # Whether a number beside an integer tensor must fit its type; else it is wrapped, as in PyTorch.
    numbers_fit: bool = False
    # Whether the first tensor only chooses: it has no part in the type of the result.
    chooses: bool = False
    # What it is for complex numbers: the same for both parts; scaled, both parts by a real second operand.
    on_parts: Literal["", "alike", "scaled"] = ""
    # Whether integers are divided by the second operand, which then may not be the number 0.
    divides: bool = False
    # The same function written so that its derivative at NaN is PyTorch's; the formula itself if None.
    derived_from: Callable[..., Expr] | None = None
    _gradients: dict[int, Elementwise | None] = field(default_factory=dict)
    _order: dict[tuple[DType, ...], tuple[Expr, ...]] = field(default_factory=dict)
    _used: frozenset[str] | None = None

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...

    def __post_init__(self) -> None:
        if not self.gradient_name:
            place = "special_" if self.torch.startswith("special.") else ""
            self.gradient_name = gradient_title(place + self.name.strip("_"))

    def build(self, inputs: tuple[Expr, ...]) -> Expr:
        """Return the formula applied to `inputs` (tensors first, then numbers), all of one compute
        type.
        """
        types = tuple([x.dtype for x in inputs])
        order = self._order.get(types)
        if order is None:
            # Written out once per type: derived formulas are costly to derive.
            root = self.expr(*[ex.input_(i, t) for i, t in enumerate(types)])
            order = self._order[types] = tuple(ex.walk(root))
        values: dict[Expr, Expr] = {}
        for node in order:
            if node.op == "input":
                values[node] = inputs[node.value]
            elif node.args:
                values[node] = ex.rebuild(node, tuple([values[a] for a in node.args]))
            else:
                values[node] = node
        return values[order[-1]]

    def build_for_slope(self, inputs: tuple[Expr, ...]) -> Expr:
        """Return the formula whose derivative is taken, applied to `inputs`."""
        return self.build(inputs) if self.derived_from is None else self.derived_from(*inputs)

    def used_by_vjp(self) -> frozenset[str]:
        """Return which of "g", "out" and the tensor names the given rule reads: only these are
        saved.
        """
        if self._used is None:
            (rule,) = self.rules()
            self._used = used_arguments(rule, ("g", "out", *self.tensors))
        return self._used


def used_arguments(rule: Callable[..., object], names: tuple[str, ...]) -> frozenset[str]:
    """Return which of `names`, given in the order of a rule's positional parameters, it reads: the rule says of the
    others that it does not, by a name that begins with an underscore, or that it reads no more of a tensor than its
    shape, by a name that ends in "_shape".
    """
    code = inspect.unwrap(rule).__code__
    parameters = code.co_varnames[: code.co_argcount]
    used = {
        n
        for n, p in zip(names, parameters, strict=False)
        if not p.startswith("_") and not p.endswith("_shape")
    }
    if code.co_flags & inspect.CO_VARARGS and not code.co_varnames[code.co_argcount].startswith(
        "_"
    ):
        used.update(names[code.co_argcount :])
    return frozenset(used)


TABLE: dict[str, Op] = {}


def public_name(name: str, place: str) -> str:
    """Return what an entry is called in `place`: one whose public name is taken carries its namespace, as
    linalg_cross and functional_unfold do.
    """
    return name.removeprefix(f"{place.rpartition('.')[2]}_")


def gradient_title(name: str) -> str:
    """Return PyTorch's name for the gradient function of an operation: "max_pool2d" -> MaxPool2DBackward0."""
    # A letter after a digit starts a word.
    words = re.sub(r"(?<![a-zA-Z])[a-z]", lambda m: m[0].upper(), name)
    return words.replace("_", "") + "Backward0"


def _of_gradient(op: Elementwise) -> str:
    """Return PyTorch's name for the gradient function of an operation's gradient."""
    return op.gradient_name.removesuffix("Backward0") + "BackwardBackward0"


def over_dims(name: str) -> Callable[..., str]:
    """Return the `gradient_name` of a reduction whose form over dims is PyTorch's second overload."""

    def title(input: Tensor, dim: object = None, *_: object, **__: object) -> str:
        """Return the name for a call, with dims or without."""
        return f"{name}Backward{0 if dim is None else 1}"

    return title


def _lookup(name: str) -> Op:
    return TABLE[name]


def register(op: Op) -> Op:
    """Add an entry. A name may be declared once."""
    for name in (op.name, *op.aliases):
        assert name not in TABLE, f"{name} is declared twice"
    TABLE[op.name] = op
    return op


def _named(name: str, fields: Mapping[str, Any]) -> str:
    """Return what PyTorch calls an entry that says where users find it, but not that name."""
    places = fields.get("function_in", ("torch",))
    if "nn.functional" in places and "Tensor" not in places:
        place = "nn.functional"
    elif not places or "torch" in places:
        return name if places else ""
    else:
        place = places[0]
    return f"{place}.{public_name(name, place)}"


def elementwise(
    name: str,
    expr: Callable[..., Expr],
    *,
    doc: str,
    tensors: tuple[str, ...] | None = None,
    numbers: tuple[str, ...] = (),
    defaults: dict[str, Scalar] | None = None,
    signature: str | None = None,
    torch: str | None = None,
    inplace: bool | None = None,
    **fields: Any,
) -> Elementwise:
    """Declare an elementwise op. Parameter names of the lambda are the op's, unless `tensors` and
    `numbers` say so.
    """
    if tensors is None:
        code = expr.__code__
        arity = code.co_argcount - len(numbers)
        tensors = {1: ("input",), 2: ("input", "other")}.get(arity) or code.co_varnames[:arity]
    defaults = defaults or {}
    public = fields.get("function_in") != ()
    if signature is None:
        parts = [*tensors, *(f"{n}={defaults[n]!r}" if n in defaults else n for n in numbers)]
        signature = f"({', '.join(parts)})"
    op = Elementwise(
        name=name, family="elementwise", signature=signature, doc=doc, expr=expr,
        tensors=tuple(tensors), numbers=numbers, defaults=defaults,
        torch=_named(name, fields) if torch is None else torch,
        # Answers in bool are no values of the tensor's own type.
        inplace=public and fields.get("promotion") != "bool" if inplace is None else inplace, **fields,
    )  # fmt: skip
    register(op)
    return op


def signature_of(function: inspect.Signature) -> str:
    """Return a function's signature as an entry has it: without types."""
    plain = [p.replace(annotation=p.empty) for p in function.parameters.values()]
    return str(function.replace(parameters=plain, return_annotation=function.empty))


def composite(
    *,
    doc: str | None = None,
    name: str | None = None,
    family: Family | None = None,
    **fields: Any,
) -> Callable[[Callable[P, R]], Composite[P, R]]:
    """Declare an op written with other ops: decorate the function. Its derivative follows from its parts. A file whose
    entries are of one family says so, as FAMILY.
    """

    def declare(function: Callable[P, R]) -> Composite[P, R]:
        """Put the entry of a function into the table."""
        title = name or function.__name__.rstrip("_")
        parameters = inspect.signature(function)
        of_file = vars(sys.modules[function.__module__])
        kind: Family = family or of_file.get("FAMILY", "composite")
        fields.setdefault("splits", of_file.get("SPLITS", _SPLITS.get(kind)))
        op: Composite[P, R] = Composite(
            name=title, family=kind, signature=signature_of(parameters), doc=doc or inspect.getdoc(function) or "",
            torch=fields.pop("torch", _named(title, fields)), **fields,
        )  # fmt: skip
        op.function = function
        op.written, op.parameters = inspect.unwrap(function), parameters
        register(op)
        return op

    return declare


# The classes of results that are several, by PyTorch's name in `torch.return_types`.
RETURN_TYPES: dict[str, type] = {}


def return_type(name: str) -> Callable[[type[R]], type[R]]:
    """Let a named tuple of an op's results print, and be made of one sequence, as `torch.return_types.<name>`."""

    def show(self: Any) -> str:
        """Return the fields as PyTorch prints them."""
        shown = [f"{f}={v!r}" for f, v in zip(self._fields, self, strict=True)]
        return f"torch.return_types.{name}(\n" + ",\n".join(shown) + ")"

    def declare(results: type[R]) -> type[R]:
        """Name the class as PyTorch's is, and let it take its fields as one sequence, as PyTorch's do."""
        fields: Callable[..., R] = results.__new__
        expected: int = len(results._fields)  # type: ignore[attr-defined]

        def made(kind: type[R], *values: Any, **named: Any) -> R:
            """Return the results."""
            if len(values) == 1 and not named:
                (values,) = values
                if not isinstance(values, Sequence):
                    raise TypeError("constructor requires a sequence")
                if len(values) != expected:
                    raise TypeError(
                        f"torch.return_types.{name}() takes a {expected}-sequence ({len(values)}-sequence given)"
                    )
            return fields(kind, *values, **named)

        results.__new__ = made  # type: ignore[method-assign, assignment]
        results.n_fields = results.n_sequence_fields = expected  # type: ignore[attr-defined]
        results.n_unnamed_fields = 0  # type: ignore[attr-defined]
        results.__name__ = results.__qualname__ = name
        results.__repr__ = show  # type: ignore[method-assign]
        RETURN_TYPES[name] = results
        return results

    return declare


def gradient_formula(op: Elementwise, slot: int) -> Elementwise | None:
    """Return the derived op (g, *tensors, *numbers) -> cotangent of tensor `slot`; None when it is
    zero everywhere.

    The derived op is itself an elementwise op of the same kind, so second derivatives are derived
    the same way.
    """
    if slot in op._gradients:
        return op._gradients[slot]

    def symbolic(dtype: DType) -> tuple[Expr, tuple[Expr, ...]]:
        """Return the formula of symbols of a type, and the symbols."""
        inputs = tuple(ex.input_(i, dtype) for i in range(len(op.tensors) + len(op.numbers)))
        return op.build_for_slope(inputs), inputs

    formula, inputs = symbolic(ex.float32)
    if derivative(formula, inputs[slot]) is None:
        op._gradients[slot] = None
        return None

    def expr(g: Expr, *values: Expr) -> Expr:
        """Return the cotangent of one operand."""
        root, symbols = symbolic(g.dtype)
        slope = derivative(root, symbols[slot])
        assert slope is not None
        return g * ex.substitute(slope, values)

    derived = Elementwise(
        name=f"{op.name}_grad{slot}", family="elementwise", signature="",
        doc=f"Cotangent of {op.name} for {op.tensors[slot]}.",
        expr=expr, tensors=("grad", *op.tensors), numbers=op.numbers, function_in=(), dtypes=FLOATS,
        gradient_name=_of_gradient(op) if len(op.tensors) == 1 else "",
    )  # fmt: skip
    op._gradients[slot] = derived
    return derived


def slope_kind(op: Elementwise, slot: int) -> Literal["zero", "one", "minus_one", "formula"]:
    """Tell whether the derivative is a constant that needs no kernel."""

    inputs = tuple(ex.input_(i, ex.float32) for i in range(len(op.tensors) + len(op.numbers)))
    slope = derivative(op.build_for_slope(inputs), inputs[slot])
    if slope is None:
        return "zero"
    if slope.op == "const" and slope.value == 1.0:
        return "one"
    if slope.op == "const" and slope.value == -1.0:
        return "minus_one"
    return "formula"


def inputs_of_slope(op: Elementwise, slot: int) -> frozenset[int]:
    """Return which formula inputs the derivative for `slot` reads: only these need saving."""

    inputs = tuple(ex.input_(i, ex.float32) for i in range(len(op.tensors) + len(op.numbers)))
    slope = derivative(op.build_for_slope(inputs), inputs[slot])
    if slope is None:
        return frozenset()
    return frozenset(node.value for node in ex.walk(slope) if node.op == "input")


@dataclass(frozen=True, slots=True)
class Slope:
    """How the cotangent of one tensor of an elementwise op is computed from the cotangent g of the
    result.
    """

    kind: Literal["zero", "one", "minus_one", "formula"]
    # For "formula": the derived op over (g, the tensors in `tensors`, the numbers in `numbers`), by
    # position in the original op.
    op: Elementwise | None = None
    tensors: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()


_SLOPES: dict[tuple[Elementwise, int], Slope] = {}


def slope(op: Elementwise, slot: int) -> Slope:
    """Return the derived rule for tensor `slot`; the derived op reads only what the derivative
    needs.
    """
    found = _SLOPES.get((op, slot))
    if found is None:
        found = _SLOPES[op, slot] = _derive_slope(op, slot)
    return found


def _derive_slope(op: Elementwise, slot: int) -> Slope:
    kind = slope_kind(op, slot)
    if kind != "formula":
        return Slope(kind)
    count = len(op.tensors)
    used = sorted(inputs_of_slope(op, slot))
    tensors = tuple(i for i in used if i < count)
    numbers = tuple(i - count for i in used if i >= count)
    full = gradient_formula(op, slot)
    assert full is not None

    def expr(g: Expr, *values: Expr) -> Expr:
        """Return the formula of what the slope reads only."""
        # What the slope does not read is never looked at: any constant will do.
        inputs = [ex.const(0, g.dtype)] * (count + len(op.numbers))
        for position, value in zip(used, values, strict=True):
            inputs[position] = value
        return full.build((g, *inputs))

    derived = Elementwise(
        name=full.name, family="elementwise", signature="", doc=full.doc, expr=expr,
        tensors=("grad", *(op.tensors[i] for i in tensors)),
        numbers=tuple(op.numbers[i] for i in numbers), function_in=(),
        dtypes=FLOATS, gradient_name=full.gradient_name,
    )  # fmt: skip
    return Slope("formula", derived, tensors, numbers)
