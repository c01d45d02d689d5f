"""Elementwise entries on complex tensors: their complex forms, recorded, with PyTorch's gradients. Floor 4."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from webtorch.errors import DTypeError
from webtorch.ir.dtype import DType, Scalar, bool_
from webtorch.ir.view import Shape, broadcast_shapes
from webtorch.ops import pairs as forms
from webtorch.ops.record import TABLE, Elementwise, slope
from webtorch.tensors import recorders
from webtorch.tensors.above import give
from webtorch.tensors.forward import transposed
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.primitives import cast_to, conjugate, fill, map_pairs
from webtorch.tensors.promotion import result_type
from webtorch.tensors.tape import Cotangents, GradFn, SavedTensor, gradient_edge, set_history
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import complex_of, pairs, real_part

Operand = Any


def apply_form(
    op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar] = ()
) -> Tensor:
    """Record an elementwise entry one of whose operands is complex."""
    if op.chooses:
        return _choose(op, operands)
    if op.name == "softsign":
        return operands[0] / (operands[0].abs() + 1)
    if not any(isinstance(o, Tensor) for o in operands):
        operands = [fill((), operands[0], result_type(operands[0]), None), *operands[1:]]
    operands = recorders.to_one_device(op, operands)
    dtype = result_type(*operands)
    if not (forms.has_form(op) or op.on_parts == "alike"):
        raise DTypeError(
            f"\"{op.name.strip('_')}\" not implemented for '{dtype.legacy}': it takes real "
            "numbers. Use .real, .imag or .abs()"
        )
    part = dtype.to_real()
    tensors: list[Operand] = []
    for o in operands:
        if isinstance(o, Tensor):
            wanted = dtype if o.dtype.is_complex else part
            tensors.append(cast_to(o, wanted))
        else:
            tensors.append(o if isinstance(o, complex) else float(o))
    shape = broadcast_shapes(*[o._shape for o in tensors if isinstance(o, Tensor)])
    simple = _simple(op, tensors, numbers, dtype)
    if simple is not None:
        if simple._grad_fn is not None:
            simple._grad_fn.title = op.gradient_name
        return simple
    return record(op, [*tensors, *numbers], len(operands), shape, dtype)


def _is_complex(x: Operand) -> bool:
    return isinstance(x, complex) or (isinstance(x, Tensor) and x.dtype.is_complex)


def _simple(
    op: Elementwise, operands: list[Operand], numbers: Sequence[Scalar], dtype: DType
) -> Tensor | None:
    """Return the result where it is a real operation on the parts."""
    first, last = operands[0], operands[-1]
    if op.on_parts == "alike" and all(
        isinstance(o, Tensor) and o.dtype.is_complex for o in operands
    ):
        return complex_of(op(*[pairs(o) for o in _aligned(operands)]))
    if op.on_parts == "scaled" and isinstance(first, Tensor) and first.dtype.is_complex:
        if isinstance(last, float):
            return complex_of(op(pairs(first), last))
        if isinstance(last, Tensor) and not last.dtype.is_complex:
            first, last = _aligned([first, last])
            return complex_of(op(pairs(first), last.unsqueeze(-1)))
    if op.name == "mul" and _is_complex(last) and isinstance(last, Tensor):
        return _simple(op, [last, first], numbers, dtype) if not _is_complex(first) else None
    return None


def _aligned(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors with one number of dims, so that the dim of the parts stays apart."""
    rank = max(t.ndim for t in tensors)
    return [t.reshape((1,) * (rank - t.ndim) + t._shape) if t.ndim < rank else t for t in tensors]


def _choose(op: Elementwise, operands: Sequence[Operand]) -> Tensor:
    """where: a condition and two values, of which one is complex."""
    condition, *values = operands
    dtype = result_type(*values)
    device = next(o.device for o in operands if isinstance(o, Tensor))
    both = [
        cast_to(v, dtype) if isinstance(v, Tensor) else fill((), v, dtype, device) for v in values
    ]
    condition, *both = _aligned([condition, *both])
    return complex_of(op(condition.unsqueeze(-1), *[pairs(v) for v in both]))


def record(
    op: Elementwise, operands: Sequence[Operand], count: int, shape: Shape, dtype: DType
) -> Tensor:
    """Record a form. The first `count` operands are the entry's tensors; tensors have one width."""
    kinds = "".join("c" if _is_complex(o) else "r" for o in operands)
    try:
        real = forms.gives_real(op, kinds, dtype.to_real())
    except forms.NotComplex:
        raise DTypeError(
            f"\"{op.name.strip('_')}\" not implemented for '{dtype.legacy}': it takes real "
            "numbers. Use .real, .imag or .abs()"
        ) from None
    wanted = bool_ if op.promotion == "bool" else dtype.to_real() if real else dtype
    out = map_pairs(op, operands, shape, wanted)
    if not op.differentiable or wanted is bool_:
        return out
    tensors = [o for o in operands[:count] if isinstance(o, Tensor)]
    if transforms.count and mode.forward:
        saved, static = _kept(op, operands, count, tensors)
        transposed((out,), tensors, functools.partial(_back, saved=saved, static=static))
    if not mode.grad:
        return out
    if any(t.requires_grad for t in tensors):
        edges = tuple([gradient_edge(t) if t.requires_grad else None for t in tensors])
        set_history(out, GradFn(op.gradient_name, edges, _back, *_kept(op, operands, count, edges)))
    return out


class _Static(NamedTuple):
    """What the gradient rule of a form knows of a call, beside what is saved."""

    op: Elementwise
    # How many of the operands are the entry's tensors.
    tensors: int
    # Of each tensor: its place, its shape, whether it is real, and whether its cotangent is wanted.
    wanted: tuple[tuple[int, Shape, bool, bool], ...]
    # The operands: numbers, and the places in what is saved.
    numbers: tuple[Operand | None, ...]
    places: tuple[int, ...]


def _kept(
    op: Elementwise, operands: Sequence[Operand], count: int, edges: Sequence[object]
) -> tuple[list[SavedTensor], _Static]:
    """Return what the gradient rule of a form reads. `edges`: None where no cotangent is wanted."""
    tensors = [(i, o) for i, o in enumerate(operands[:count]) if isinstance(o, Tensor)]
    wanted = tuple(
        [
            (i, o._shape, not o.dtype.is_complex, edge is not None)
            for (i, o), edge in zip(tensors, edges, strict=True)
        ]
    )
    used = _used(op, [place for place, _, _, needed in wanted if needed], count)
    read = [(i, o) for i, o in enumerate(operands) if isinstance(o, Tensor) and i in used]
    numbers = tuple([None if isinstance(o, Tensor) else o for o in operands])
    saved = [SavedTensor(o, apart=op.saves_values) for _, o in read]
    return saved, _Static(op, count, wanted, numbers, tuple([i for i, _ in read]))


def _back(gs: Cotangents, saved: Sequence[SavedTensor], static: _Static) -> list[Tensor | None]:
    """Return the cotangents; those of real operands are real."""
    values = list(static.numbers)
    for place, s in zip(static.places, saved, strict=True):
        values[place] = s.unpack()
    found: list[Tensor | None] = []
    for place, shape, is_real, needed in static.wanted:
        c = _cotangent(static.op, place, gs[0], values, static.tensors) if needed else None
        if c is not None and c.dtype.is_complex and is_real:
            c = real_part(c)
        found.append(None if c is None else recorders.sum_to(c, shape))
    return found


def _used(op: Elementwise, places: Sequence[int], count: int) -> set[int]:
    """Return which operands the cotangents of `places` read: only these are saved."""
    if op.name in ("abs", "angle"):
        return {0}
    slopes = [slope(op, place) for place in places]
    return {i for s in slopes for i in (*s.tensors, *[count + n for n in s.numbers])}


def _cotangent(
    op: Elementwise, place: int, g: Tensor, values: list[Any], count: int
) -> Tensor | None:
    if op.name == "abs":
        return g * values[0].sgn()
    if op.name == "angle":
        (z,) = values
        square = real_part(z * conjugate(z))
        turned = g / TABLE["where"](square == 0, 1.0, square)
        return TABLE["where"](square == 0, 0.0, 1j * z * turned)
    found = slope(op, place)
    if found.kind == "zero":
        return None
    if found.kind != "formula":
        return g if found.kind == "one" else -g
    assert found.op is not None
    inputs = [values[i] for i in (*found.tensors, *[count + n for n in found.numbers])]
    return conjugate(derivative(found.op, conjugate(g), inputs))


def derivative(op: Elementwise, g: Tensor, values: Sequence[Operand]) -> Tensor:
    """Record the derivative of a form: (g, values) -> cotangent."""
    operands = [g, *values]
    dtype = result_type(*operands)
    shape = broadcast_shapes(*[o._shape for o in operands if isinstance(o, Tensor)])
    count = len(op.tensors)
    return record(op, operands, count, shape, dtype)


give(apply_form=apply_form)
