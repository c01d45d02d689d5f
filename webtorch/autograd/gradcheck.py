"""Gradients against finite differences, as torch.autograd.gradcheck does it. May import floor 4.

Complex inputs are checked as pairs of real numbers: the cotangent of a complex number is that of its two parts, so
nothing else is to be checked. Of complex outputs one part after the other is looked at.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from webtorch.autograd import forward_ad
from webtorch.autograd.function import UndefinedGrad
from webtorch.functions.assign import allclose
from webtorch.functions.creation import zeros, zeros_like
from webtorch.functions.joining import stack
from webtorch.functions.random import Generator, rand, randn, randn_like
from webtorch.functions.ranges import arange, eye
from webtorch.ir.dtype import float64, int64
from webtorch.ir.lines import user_depth
from webtorch.ops.primitive import imag_part, paired, pairs, real_part
from webtorch.tensors.batching import Vmap, batch, unbatch
from webtorch.tensors.engine import grad
from webtorch.tensors.formats import sparse_bsc, sparse_bsr, sparse_coo, strided
from webtorch.tensors.modes import enable_grad, no_grad
from webtorch.tensors.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

_BATCH_FAILED = (
    "\ngradcheck or gradgradcheck failed while testing batched gradient computation: with is_grads_batched=True, or "
    "under vmap, the gradients are not those of one cotangent after another. If the function does not support this, "
    "pass check_batched_grad=False.\n"
)
_BATCH_FORWARD_FAILED = (
    "\ngradcheck failed while testing batched forward gradient computation: the tangents under vmap are not those of "
    "one tangent after another. If the function does not support this, pass check_batched_forward_grad=False.\n"
)
_UNDEFINED_CHECKED = (
    "Backwards compatibility: New undefined gradient support checking feature is enabled by default, but it may break "
    "existing callers of this function. If this is true for you, you can call this function with "
    '"check_undefined_grad=False" to disable the feature'
)
_UNDEFINED_NOTES = (
    ' Please look at "Notes about undefined output gradients" in "tools/autograd/derivatives.yaml"'
)
_FAST_ALONE = (
    "\nFast gradcheck failed but element-wise differences are small. This means that the test might've passed in "
    "slow_mode! Pass fast_mode=False, or larger tolerances.\n"
)


class GradcheckError(RuntimeError):
    """A gradient is not what finite differences give."""


class _Options(NamedTuple):
    """What `gradcheck` was given."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    undefined: bool
    dtypes: bool
    batched: bool
    batched_forward: bool
    forward: bool
    backward: bool
    fast: bool
    masked: bool


def _listed(found: object) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _outputs(found: object) -> list[Tensor]:
    return [y for y in _listed(found) if isinstance(y, Tensor) and y.dtype.has_gradient]


def _differentiable(found: object) -> list[Tensor]:
    return [y for y in _listed(found) if isinstance(y, Tensor) and y.requires_grad]


Function = Callable[..., Any]


def _of_pairs(func: Function, inputs: tuple[Any, ...]) -> tuple[Function, tuple[Any, ...]]:
    """Return the function and its inputs with complex inputs as pairs of real numbers."""
    turned = [isinstance(x, Tensor) and x.dtype.is_complex for x in inputs]
    if not any(turned):
        return func, inputs

    def run(*args: Any) -> object:
        """Call the function with pairs turned into complex numbers."""
        return func(*[paired(a) if t else a for a, t in zip(args, turned, strict=True)])

    return run, tuple(
        pairs(x.detach()).clone().requires_grad_(x.requires_grad) if t else x
        for x, t in zip(inputs, turned, strict=True)
    )


def _seen_by(part: Callable[[Tensor], Tensor], func: Function) -> Function:
    """Return a function with a part of each complex output in its place."""

    def run(*args: object) -> tuple[Any, ...]:
        """Call the function."""
        return tuple(
            part(y) if isinstance(y, Tensor) and y.dtype.is_complex else y
            for y in _listed(func(*args))
        )

    return run


class _Point:
    """An input that gradients are asked for: the numbers that are moved, and where they stand among its elements."""

    def __init__(self, number: int, x: Tensor, masked: bool) -> None:
        self.number, self.x = number, x
        # Positions of the numbers that are moved; None: all elements, in order.
        self.places: Tensor | None = None
        self.given, self.values = x, x
        if x.layout is strided:
            self.values = x.data
            return
        if masked:
            self.given = x.detach().clone()
            if x.layout is sparse_coo:
                self.given = self.given.coalesce()
            ids = self.given.clone()
        else:
            dense = x.detach().to_dense()
            ids = (arange(dense.numel(), dtype=dense.dtype) + 1).reshape(dense.shape)
            if x.layout is sparse_coo:
                ids = ids.to_sparse(x.sparse_dim())
            else:
                batch = x.dim() - x.sparse_dim() - x.dense_dim()
                block = x.values().shape[batch + 1 : batch + 3]
                size = block if x.layout in (sparse_bsr, sparse_bsc) else None
                ids = ids.to_sparse(layout=x.layout, dense_dim=x.dense_dim(), blocksize=size)
            self.given = ids.clone()
        self.values, numbers = _kept(self.given).detach(), _kept(ids)
        self.given.requires_grad_()
        if not masked:
            self.places = numbers.to(int64).reshape(-1) - 1
            self.values.copy_(dense.reshape(-1)[self.places].reshape(self.values.shape))
            return
        count = numbers.numel()
        numbers.copy_((arange(count, dtype=numbers.dtype) + 1).reshape(numbers.shape))
        flat = ids.to_dense().reshape(-1)
        positions = flat.nonzero().reshape(-1)
        self.places = zeros((count,), dtype=int64)
        self.places[flat[positions].to(int64) - 1] = positions

    @property
    def size(self) -> int:
        """How many elements the input has."""
        return self.x.numel()

    def spread(self, u: Tensor) -> Tensor:
        """Return what belongs to the numbers that are moved as what belongs to all elements, flat."""
        if self.places is None:
            return u.reshape(-1)
        found = zeros((self.size,), dtype=u.dtype)
        found[self.places] = u.reshape(-1)
        return found


def _kept(x: Tensor) -> Tensor:
    """Return the numbers that a sparse tensor keeps: what is written to them is written to it."""
    found: Tensor = x._values() if x.layout is sparse_coo else x.values()
    return found


class _Along:
    """What is compared: all derivatives of y for x, or in the fast mode a sum of them, along one direction of each."""

    def __init__(self, fast: bool) -> None:
        # What the fast mode draws belongs to no stream of the user's.
        self.generator = Generator() if fast else None

    def direction(self, x: Tensor) -> Tensor | None:
        """Return a direction of length 1 without signs; None: each element by itself."""
        if self.generator is None or not x.numel():
            return None
        drawn = rand(x.shape, generator=self.generator, dtype=float64).to(x.device)
        return (drawn / drawn.norm()).to(x.dtype)


def _numerical(
    func: Function,
    inputs: Sequence[object],
    point: _Point,
    eps: float,
    u: Tensor | None,
    vs: Sequence[Tensor | None],
) -> list[Tensor]:
    """Return for each output the differences of its elements for each element of an input, or along `u` and `vs`."""
    values = point.values
    given = [point.given if a is point.x else a for a in inputs]
    old = values.clone()
    rows: list[list[Tensor]] = []
    places: Iterator[Any] = (
        iter([None]) if u is not None else itertools.product(*map(range, values.shape))
    )
    for at in places:
        sides: list[list[Tensor]] = []
        for sign in (1, -1):
            if at is None:
                values.copy_(old + u * (sign * eps))  # type: ignore[operator]
            else:
                values[at] = old[at] + sign * eps
            with no_grad():
                # What comes back may be a view of the input, which moves on.
                sides.append([y.detach().clone() for y in _evaluate(func, given)])
            values.copy_(old)
        rows.append([])
        for i, (a, b) in enumerate(zip(*sides, strict=True)):
            _same_kind(a, b, eps, i)
            d = ((a.double() - b.double()) / (2 * eps)).reshape(-1)
            rows[-1].append(_along(d, vs[i] if vs else None))
    if rows:
        tables = [stack([row[o] for row in rows]) for o in range(len(rows[0]))]
    else:
        # Nothing moves, and every output has its elements.
        outs = _evaluate(func, given)
        tables = [zeros((0, y.numel()), dtype=float64) for y in outs]
    found = []
    for table in tables:
        if point.places is not None and u is None:
            # What is not kept does not move.
            whole = zeros((point.size, *table.shape[1:]), dtype=float64)
            whole[point.places] = table
            table = whole
        found.append(table)
    return found


def _same_kind(a: Tensor, b: Tensor, eps: float, number: int) -> None:
    """Raise AssertionError if an output is of another kind where an input has moved a little."""
    words = "when inputs are perturbed on index {} by {}, but got:"
    if a._shape != b._shape:
        raise AssertionError(
            f"Expected `func` to return outputs with the same shape {words.format(number, eps)}\n"
            f" shapes {list(a._shape)} and {list(b._shape)}."
        )
    if a.dtype is not b.dtype:
        raise AssertionError(
            f"Expected `func` to return outputs with the same dtype {words.format(number, eps)}\n"
            f" dtypes {a.dtype} and {b.dtype}."
        )


def _along(derivatives: Tensor, v: Tensor | None) -> Tensor:
    """Return derivatives of the elements of an output, or their sum along a direction of it."""
    return derivatives if v is None else (derivatives * v.double().reshape(-1)).sum().reshape(1)


def _evaluate(func: Function, inputs: Sequence[object]) -> list[Tensor]:
    with enable_grad():
        return _outputs(func(*inputs))


def _analytical(
    y: Tensor, points: Sequence[_Point], us: Sequence[Tensor | None], v: Tensor | None, dtypes: bool
) -> list[Tensor]:
    """Return the gradients of each element of y for each element of each input, or along `us` and `v`."""
    xs, rows = [p.x for p in points], []
    many = eye(y.numel(), dtype=y.dtype, device=y.device) if v is None else [v.to(y.dtype)]
    for row in many:
        found = grad(y, xs, row.reshape(y.shape), retain_graph=True, allow_unused=True)
        for g, x in zip(found, xs, strict=True):
            if g is not None and g._shape != x._shape:
                raise GradcheckError("Analytical gradient has incorrect size")
            if dtypes and g is not None and g.dtype is not x.dtype:
                raise GradcheckError("Gradient has dtype mismatch")
        rows.append([_flat(g, x) for g, x in zip(found, xs, strict=True)])
    if not rows:
        return [zeros((p.size, 0), dtype=float64) for p in points]
    columns = []
    for i, (point, u) in enumerate(zip(points, us, strict=True)):
        parts = [row[i] if u is None else _along(row[i], point.spread(u)) for row in rows]
        columns.append(stack(parts, 1))
    return columns


def _flat(g: Tensor | None, x: Tensor) -> Tensor:
    """Return a gradient as a flat tensor."""
    if g is None:
        return zeros((x.numel(),), dtype=float64)
    dense = g.detach() if g.layout is strided else g.detach().to_dense()
    return dense.double().reshape(-1)


def _numbers(x: Tensor) -> list[Any]:
    """Return the values as nested lists, also of a tensor that has no data itself."""
    if type(x) is Tensor:
        found: list[Any] = x.tolist()
        return found
    return [_numbers(part) if part.ndim else part.item() for part in x]


def _differ(a: Tensor, b: Tensor, atol: float, rtol: float) -> bool:
    ps, qs = _numbers(a.reshape(-1)), _numbers(b.reshape(-1))
    # As in allclose, a NaN differs from everything.
    return not all(abs(p - q) <= atol + rtol * abs(q) for p, q in zip(ps, qs, strict=True))


def gradcheck(
    func: Callable[..., object],
    inputs: object,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Return True when the gradients of func for its inputs that require them agree with central differences.

    Else raises GradcheckError, or returns False without `raise_exception`. Inputs should be float64, so on the CPU.
    `check_forward_ad` compares tangents as well, the `batched` ones what vmap gives with what one after another
    does. `fast_mode` compares one sum of the derivatives, along a random direction of each input and each output, and
    all of them only where that differs. `masked`: whether of sparse inputs only what they keep counts.
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError(
            "Expected at least one of check_forward_ad or check_backward_ad to be True"
        )
    if check_batched_grad and not check_backward_ad:
        raise AssertionError(
            "Setting check_batched_grad=True requires check_backward_ad to be True"
        )
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError(
            "Setting check_batched_forward_grad=True requires check_forward_ad to be True"
        )
    options = _Options(
        eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes, check_batched_grad,
        check_batched_forward_grad, check_forward_ad, check_backward_ad, fast_mode, bool(masked),
    )  # fmt: skip
    try:
        _check(func, _listed(inputs), options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _points_of(inputs: tuple[object, ...], masked: bool) -> list[_Point]:
    """Return the inputs that gradients are asked for. Raises where a check can say nothing."""
    found = []
    for i, x in enumerate(inputs):
        if not (isinstance(x, Tensor) and x.requires_grad):
            continue
        if x.dtype.to_real() is not float64:
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check "
                "will likely fail if all the inputs are not of double precision floating point or complex. ",
                stacklevel=user_depth(),
            )
        kept = x if x.layout is strided else _kept(x)
        if any(st == 0 and n > 1 for n, st in zip(kept.shape, kept.stride(), strict=True)):
            raise RuntimeError(
                f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call "
                ".contiguous on the input before passing it to gradcheck."
            )
        x.retain_grad()
        found.append((i, x))
    if not found:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    return [_Point(i, x, masked) for i, x in found]


def _check(func: Function, inputs: tuple[object, ...], options: _Options) -> None:
    complex_inputs = tuple(isinstance(x, Tensor) and x.dtype.is_complex for x in inputs)
    plain, originals = func, inputs
    func, inputs = _of_pairs(func, inputs)
    points = _points_of(inputs, options.masked)
    for point in points:
        if complex_inputs[point.number] and point.x.layout is not strided and not options.masked:
            # A gradient of pairs is one of their places: they are to be all places.
            point.x = point.given.detach().clone().requires_grad_()
            inputs = (*inputs[: point.number], point.x, *inputs[point.number + 1 :])
    with enable_grad():
        result = func(*inputs)
    if any(isinstance(y, Tensor) and y.layout is not strided for y in _listed(result)):
        raise ValueError(
            "Sparse output is not supported at gradcheck yet. Please call to_dense(masked_grad=...) on the output of "
            "fn for gradcheck."
        )
    outputs = _differentiable(result)
    if options.backward:
        if any(y.dtype.is_complex for y in outputs):
            which = {o for o, y in enumerate(outputs) if y.dtype.is_complex}
            for name, part in (("imaginary", imag_part), ("real", real_part)):
                seen = _seen_by(part, func)
                _check_gradients(seen, inputs, points, options, name, which, seen(*inputs))
        else:
            _check_gradients(func, inputs, points, options, "", set(), result)
    if options.forward:
        seen = _seen_by(pairs, func)
        parts = _seen_by(pairs, lambda: result)()
        _check_tangents(seen, inputs, points, options, complex_inputs, _outputs(parts))
        if options.undefined:
            _check_undefined_tangents(seen, inputs, points)
        if options.batched_forward:
            for point in points:
                _check_batched_tangents(seen, inputs, points, point)
    if not options.backward:
        return
    wanted = [x for x in originals if isinstance(x, Tensor) and x.requires_grad]
    if plain is not func:
        with enable_grad():
            outputs = _differentiable(plain(*originals))
    if options.batched:
        for o, y in enumerate(outputs):
            _check_batch(wanted, y, o)
    _check_zeros(outputs, wanted, options.masked)
    if options.undefined:
        _check_undefined(plain, originals, wanted)


def _check_no_outputs(
    func: Function, inputs: tuple[object, ...], points: Sequence[_Point], eps: float
) -> None:
    """Raise GradcheckError where outputs without gradients move with an input."""
    for point in points:
        if any(t.ne(0).any().item() for t in _numerical(func, inputs, point, eps, None, ())):
            raise GradcheckError("Numerical gradient for function expected to be zero")


def _mismatch(
    mode: str, prefix: str, o: int, i: int, numerical: Tensor, analytical: Tensor
) -> GradcheckError:
    return GradcheckError(
        f"{prefix}Jacobian {mode}mismatch for output {o} with respect to input {i},\n"
        f"numerical:{numerical}\nanalytical:{analytical}\n"
    )


def _check_gradients(
    func: Function,
    inputs: tuple[object, ...],
    points: Sequence[_Point],
    options: _Options,
    part: str,
    which: set[int],
    result: object,
) -> None:
    """Compare gradients of a result with differences. `part`: what is seen of the complex outputs `which`."""
    seen, outputs = _outputs(result), _differentiable(result)
    if not outputs:
        _check_no_outputs(func, inputs, points, options.eps)
        return
    places = [next(i for i, s in enumerate(seen) if s is y) for y in outputs]
    along = _Along(options.fast)
    us = [along.direction(p.values) for p in points]
    vs = [along.direction(y) for y in seen]
    if any(u is None for u in us) or any(v is None for v in vs):
        us, vs = [None] * len(us), [None] * len(vs)
    tables = [
        _numerical(func, inputs, p, options.eps, u, vs) for p, u in zip(points, us, strict=True)
    ]
    for o, (y, place) in enumerate(zip(outputs, places, strict=True)):
        v = vs[place]
        found = _analytical(y, points, us, v, options.dtypes)
        _check_reentrant(y, points, us, v, found, options)
        for point, u, table, analytical in zip(points, us, tables, found, strict=True):
            numerical = table[place]
            atol = options.atol * _reach(u, v)
            if not _differ(analytical, numerical, atol, options.rtol):
                continue
            words = ""
            if u is not None:
                # The message has all of them.
                none: list[Tensor | None] = [None] * len(seen)
                numerical = _numerical(func, inputs, point, options.eps, None, none)[place]
                (analytical,) = _analytical(y, [point], [None], None, False)
                small = not _differ(analytical, numerical, options.atol, options.rtol)
                words = _FAST_ALONE if small else ""
            prefix = f"While considering the {part} part of complex outputs only, "
            error = _mismatch(
                "", prefix if o in which else "", o, point.number, numerical, analytical
            )
            raise GradcheckError(f"{error}{words}")


def _check_reentrant(
    y: Tensor,
    points: Sequence[_Point],
    us: Sequence[Tensor | None],
    v: Tensor | None,
    found: Sequence[Tensor],
    options: _Options,
) -> None:
    """Raise GradcheckError if a second pass gives something else."""
    again = _analytical(y, points, us, v, False)
    tolerance = options.nondet_tol
    if not any(_differ(b, a, tolerance, 0.0) for a, b in zip(found, again, strict=True)):
        return
    # What the graph saves may have been computed in the first pass's program, and rounded otherwise: what comes out
    # differently each time does so once more.
    once_more = _analytical(y, points, us, v, False)
    if any(_differ(b, a, tolerance, 0.0) for a, b in zip(again, once_more, strict=True)):
        raise GradcheckError(
            "Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives "
            "different values, although analytical gradient matches numerical gradient. The tolerance for "
            f"nondeterminism was {tolerance}."
        )


def _reach(u: Tensor | None, v: Tensor | None) -> float:
    """Return how much errors of all derivatives may add up to along two directions."""
    return 1.0 if u is None or v is None else float(u.sum()) * float(v.sum())


def _push(
    func: Function,
    inputs: Sequence[Any],
    points: Sequence[_Point],
    tangents: Sequence[Tensor | None],
) -> list[tuple[Tensor, Tensor | None]]:
    """Return the outputs with their tangents, where those of the inputs are given: zeros for None. The function is
    given inputs that need no gradients.
    """
    with forward_ad.dual_level():
        given = [x.detach() if isinstance(x, Tensor) else x for x in inputs]
        for point, tangent in zip(points, tangents, strict=True):
            primal = given[point.number]
            tangent = zeros_like(primal) if tangent is None else tangent
            given[point.number] = forward_ad.make_dual(primal, tangent)
        return [(y, forward_ad.unpack_dual(y).tangent) for y in _outputs(func(*given))]


def _only(points: Sequence[_Point], point: _Point, tangent: Tensor) -> list[Tensor | None]:
    """Return the tangents of the inputs, of which one has any."""
    return [tangent if p is point else None for p in points]


def _check_tangents(
    func: Function,
    inputs: tuple[object, ...],
    points: Sequence[_Point],
    options: _Options,
    complex_inputs: Sequence[bool],
    seen: Sequence[Tensor],
) -> None:
    """Compare tangents with differences. `seen`: the outputs."""
    along = _Along(options.fast)
    if not _differentiable(seen):
        _check_no_outputs(func, inputs, points, options.eps)
        return
    vs = [along.direction(y) for y in seen]
    for point in points:
        x = point.x
        u = along.direction(x)
        if u is None or any(v is None for v in vs):
            u, vs = None, [None] * len(vs)
        table = _numerical(func, inputs, point, options.eps, u, vs)
        directions = eye(x.numel(), dtype=x.dtype, device=x.device) if u is None else [u]
        rows = []
        for direction in directions:
            found = _push(func, inputs, points, _only(points, point, direction.reshape(x.shape)))
            rows.append([_along(_flat(t, y), v) for (y, t), v in zip(found, vs, strict=True)])
        for o, v in enumerate(vs):
            if not rows:
                continue
            analytical = stack([row[o] for row in rows])
            if _differ(analytical, table[o], options.atol * _reach(u, v), options.rtol):
                prefix = ""
                if complex_inputs[point.number]:
                    real = _differ(analytical[::2], table[o][::2], options.atol, options.rtol)
                    prefix = (
                        f"While considering the {'real' if real else 'imaginary'} part of complex "
                        "inputs only, "
                    )
                raise _mismatch(
                    "computed with forward mode ", prefix, o, point.number, table[o], analytical
                )


def _check_undefined_tangents(
    func: Function, inputs: tuple[object, ...], points: Sequence[_Point]
) -> None:
    """Raise GradcheckError if an input without a tangent is not the same as one whose tangent is zero."""
    along = _Along(True)
    tangents = [along.direction(p.x) for p in points]
    for k, point in enumerate(points):
        rest = [p for p in points if p is not point]
        others = [t for i, t in enumerate(tangents) if i != k]
        zero = _push(func, inputs, points, [None if i == k else t for i, t in enumerate(tangents)])
        none = _push(func, inputs, rest, others)
        for o, ((_, a), (_, b)) in enumerate(zip(zero, none, strict=True)):
            if a is not None and b is not None and not allclose(a, b):
                raise GradcheckError(
                    f"Mismatch in tangent values for output with index: {o} when input: {point.x} has an undefined "
                    f"tangent value. Got: {a} but expected: {b}"
                )


def _check_batched_tangents(
    func: Function, inputs: tuple[object, ...], points: Sequence[_Point], point: _Point
) -> None:
    """Raise GradcheckError if two tangents at once give something else than one after another."""
    x, others = point.x, [point]
    many = randn((2, *x.shape), generator=Generator(), dtype=x.dtype).to(x.device)
    wanted = [[t for _, t in _push(func, inputs, others, [one])] for one in many]
    try:
        with Vmap(2, "error", plain=True) as level:
            found = _push(func, inputs, others, [batch(many, 0, level.number)])
            together = [None if t is None else unbatch(t, 0, level.number, 2) for _, t in found]
    except RuntimeError as error:
        raise GradcheckError(
            f"While computing batched gradients, got: {error}\n\n{_BATCH_FORWARD_FAILED}"
        ) from error
    for o, (got, one, other) in enumerate(zip(together, *wanted, strict=True)):
        if one is None or other is None or got is None:
            continue
        expected = stack([one, other])
        if not allclose(got, expected):
            raise GradcheckError(
                f"\nFor output {o} and input {point.number}:\n\n{_BATCH_FORWARD_FAILED}\n\nGot:\n{got}\n\n"
                f"Expected:\n{expected}\n"
            )


def _check_batch(wanted: Sequence[Tensor], y: Tensor, o: int) -> None:
    """Raise GradcheckError if gradients of two cotangents at once are not those of each."""
    if not y.numel():
        return
    many = randn((2, *y.shape), generator=Generator(), dtype=y.dtype).to(y.device)
    one, other = [grad(y, wanted, g, retain_graph=True, allow_unused=True) for g in many]
    try:
        together = grad(
            y, wanted, many, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
    except RuntimeError as error:
        raise GradcheckError(
            f"While computing batched gradients, got: {error}\n\n{_BATCH_FAILED}"
        ) from error
    for i, (got, a, b) in enumerate(zip(together, one, other, strict=True)):
        if a is None or b is None:
            continue
        if a.layout is not strided:
            a, b = a.to_dense(), b.to_dense()
        expected = stack([a, b])
        if got is None or not allclose(got if got.layout is strided else got.to_dense(), expected):
            raise GradcheckError(
                f"\nFor output {o} and input {i}:\n\n{_BATCH_FAILED}\n\nGot:\n{got}\n\nExpected:\n{expected}\n"
            )


def _check_zeros(outputs: Sequence[Tensor], wanted: Sequence[Tensor], masked: bool) -> None:
    """Raise GradcheckError if cotangents of zeros do not give gradients of zeros, of the inputs' kind."""
    if not outputs:
        return
    cotangents = [zeros_like(y) for y in outputs]
    found = grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)
    for g, x in zip(found, wanted, strict=True):
        if g is None:
            continue
        if g.layout is not strided:
            if g.layout is not x.layout:
                raise GradcheckError(f"grad is incorrect layout ({g.layout} is not {x.layout})")
            kind = str(g.layout).removeprefix("torch.").removesuffix("_coo")
            for name in ("sparse_dim", "dense_dim"):
                got, own = getattr(g, name)(), getattr(x, name)()
                if got != own:
                    raise GradcheckError(
                        f"grad is {kind} tensor, but has incorrect {name} {got}, expected {own}"
                    )
            g = g.to_dense()
        same = allclose(g, zeros_like(g)) if masked else g.eq(0).all().item()
        if not same:
            raise GradcheckError("backward not multiplied by grad_output")
        if g.dtype is not x.dtype:
            raise GradcheckError("grad is incorrect type")
        if g.device != x.device:
            raise GradcheckError("grad is incorrect device")
        if g._shape != x._shape:
            raise GradcheckError("grad is incorrect size")


def _check_undefined(func: Function, inputs: tuple[object, ...], wanted: Sequence[Tensor]) -> None:
    """Raise GradcheckError if gradients are not none or zero where outputs have none."""

    def fresh() -> list[Tensor]:
        """Return the outputs, anew."""
        with enable_grad():
            return _differentiable(func(*inputs))

    def check(outputs: Sequence[Tensor]) -> None:
        """Look at what comes back."""
        cotangents = [zeros_like(y) for y in outputs]
        try:
            found = grad(outputs, wanted, cotangents, allow_unused=True)
        except RuntimeError as error:
            warnings.warn(_UNDEFINED_CHECKED, stacklevel=user_depth())
            raise GradcheckError(
                f"Expected backward function to handle undefined output grads.{_UNDEFINED_NOTES}"
            ) from error
        for g in found:
            if g is not None and _flat(g, g).ne(0).any().item():
                warnings.warn(_UNDEFINED_CHECKED, stacklevel=user_depth())
                raise GradcheckError(
                    "Expected all input grads to be undefined or zero when all output grads are undefined or zero."
                    + _UNDEFINED_NOTES
                )

    outputs, undefined = fresh(), UndefinedGrad()
    if outputs:
        check([undefined(y) for y in outputs])
    if len(outputs) > 1:
        for i in range(len(outputs)):
            check([undefined(y) if k == i else y for k, y in enumerate(fresh())])


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Return True when the second derivatives of func agree with differences of its gradients.

    `grad_outputs` are the cotangents to check at; random ones by default.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    for name, on in (
        ("check_undefined_grad", check_undefined_grad),
        ("check_batched_grad", check_batched_grad),
    ):
        if on and not check_rev_over_rev:
            raise AssertionError(f"Setting {name}=True requires check_rev_over_rev to be True")
    inputs = _listed(inputs)
    if grad_outputs is None:
        with enable_grad():
            outputs = _differentiable(func(*inputs))
        cotangents = tuple(randn_like(y.detach()).requires_grad_() for y in outputs)
        if gen_non_contig_grad_outputs:
            cotangents = tuple(
                stack([g.detach(), g.detach()], -1)[..., 0].requires_grad_() for g in cotangents
            )
    else:
        cotangents = _listed(grad_outputs)

    def slopes(*args: Any) -> tuple[Tensor, ...]:
        """Return the gradients for these inputs and cotangents."""
        points, gs = args[: len(inputs)], args[len(inputs) :]
        points = tuple(
            x.requires_grad_()
            if isinstance(x, Tensor) and isinstance(own, Tensor) and own.requires_grad and x.is_leaf
            else x
            for x, own in zip(points, inputs, strict=True)
        )
        wanted = [
            x
            for x, own in zip(points, inputs, strict=True)
            if isinstance(x, Tensor) and own.requires_grad
        ]
        with enable_grad():
            ys = _differentiable(func(*points))
            found = grad(ys, wanted, gs, create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        slopes,
        (*inputs, *cotangents),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
        masked=masked,
    )


def _deprecated(name: str, grad_out: float) -> None:
    warnings.warn(
        f"`{name}` was part of PyTorch's private API and not meant to be exposed. We are deprecating it and it will be "
        "removed in a future version of PyTorch. If you have a specific use for this or feature request for this to "
        "be a stable API, please file us an issue at https://github.com/pytorch/pytorch/issues/new",
        FutureWarning,
        stacklevel=user_depth(),
    )
    if grad_out != 1.0:
        raise ValueError(
            f"Expected grad_out to be 1.0. {name} no longer supports values of grad_out != 1.0."
        )


def get_numerical_jacobian(
    fn: Callable[..., object],
    inputs: tuple[object, ...],
    target: Tensor | None = None,
    eps: float = 1e-3,
    grad_out: float = 1.0,
) -> list[Tensor]:
    """Deprecated: return the differences of the first output of `fn(inputs)`, for each input or for `target`."""
    _deprecated("get_numerical_jacobian", grad_out)
    given = _listed(inputs)
    points = [
        _Point(i, x, False)
        for i, x in enumerate(given)
        if isinstance(x, Tensor) and (x is target if target is not None else x.requires_grad)
    ]
    return [_numerical(lambda *args: fn(args), given, p, eps, None, ())[0] for p in points]


def get_analytical_jacobian(
    inputs: tuple[object, ...], output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """Deprecated: return the gradients of an output, and whether they come out again, have sizes and types of the
    inputs.
    """
    _deprecated("get_analytical_jacobian", grad_out)
    points = _points_of(_listed(inputs), False)
    none = [None] * len(points)
    found = _analytical(output, points, none, None, False)
    again = _analytical(output, points, none, None, False)
    same = not any(_differ(a, b, nondet_tol, 0.0) for a, b in zip(found, again, strict=True))
    return tuple(found), same, True, True
