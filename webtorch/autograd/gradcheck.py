"""Gradients against finite differences, as torch.autograd.gradcheck does it. May import floor 4."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.autograd import forward_ad
from webtorch.functions.assign import allclose
from webtorch.functions.creation import zeros_like
from webtorch.functions.joining import stack
from webtorch.functions.random import Generator, rand, randn, randn_like
from webtorch.functions.ranges import eye
from webtorch.ir.dtype import float64
from webtorch.ir.lines import user_depth
from webtorch.ops.primitive import paired, pairs
from webtorch.tensors.batching import Vmap, batch, unbatch
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import enable_grad, no_grad
from webtorch.tensors.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


# How many cotangents are sent through a graph at once, to be compared with one after another.
_MOST_COTANGENTS = 10


class GradcheckError(RuntimeError):
    """A gradient is not what finite differences give."""


def _outputs(found: object) -> list[Tensor]:
    many = found if isinstance(found, (tuple, list)) else (found,)
    return [y for y in many if isinstance(y, Tensor) and y.dtype.has_gradient]


def _real(func: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the function and its inputs with complex numbers as pairs of real ones.

    The cotangent of a complex number is that of its two parts, so nothing else is to be checked.
    """
    turned = [isinstance(x, Tensor) and x.dtype.is_complex for x in inputs]

    def run(*args: Any) -> Any:
        """Call the function with pairs turned into complex numbers, and the reverse for its results."""
        given = [paired(a) if t else a for a, t in zip(args, turned, strict=True)]
        return tuple([pairs(y) if y.dtype.is_complex else y for y in _outputs(func(*given))])

    points = tuple(
        pairs(x.detach()).clone().requires_grad_(x.requires_grad) if t else x
        for x, t in zip(inputs, turned, strict=True)
    )
    return run, points


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


# Tables of derivatives: a row for each element of x, or the one row of a direction.
_Table = list[list[float]]


def _numerical(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    x: Tensor,
    eps: float,
    u: Tensor | None,
    vs: Sequence[Tensor | None],
) -> list[_Table]:
    """Return for each output the differences of its elements for each element of x, or along `u` and `vs`."""
    data = x.data
    columns: list[list[Any]] = []
    old = data.clone()
    places = itertools.product(*(range(n) for n in x.shape)) if u is None else [None]
    for at in places:
        sides = []
        for sign in (1, -1):
            if at is None:
                assert u is not None
                data.copy_(old + u * (sign * eps))
            else:
                data[at] = old[at] + sign * eps
            with no_grad():
                # What comes back may be a view of the input, which moves on.
                sides.append([y.detach().double().clone() for y in _evaluate(func, inputs)])
            if at is None:
                data.copy_(old)
            else:
                data[at] = old[at]
        found = [((a - b) / (2 * eps)).reshape(-1) for a, b in zip(*sides, strict=True)]
        columns.append([_numbers(_seen(d, v)) for d, v in zip(found, vs, strict=True)])
    return [[column[o] for column in columns] for o in range(len(vs))]


def _numbers(x: Tensor) -> list[Any]:
    """Return the values as nested lists, also of a tensor that has no data itself."""
    if type(x) is Tensor:
        found: list[Any] = x.tolist()
        return found
    return [_numbers(part) if part.ndim else part.item() for part in x]


def _seen(derivatives: Tensor, v: Tensor | None) -> Tensor:
    """Return derivatives of the elements of an output, or their sum along a direction of it."""
    return derivatives if v is None else (derivatives * v.reshape(-1)).sum().reshape(1)


def _evaluate(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    with enable_grad():
        return _outputs(func(*inputs))


def _analytical(y: Tensor, x: Tensor, u: Tensor | None, v: Tensor | None) -> _Table:
    """Return the gradients of each element of y for each element of x, or along `u` and `v`."""
    flat = y.reshape(-1)
    rows = []
    for i in range(y.numel() if v is None else 1):
        g = None
        if y.requires_grad and v is None:
            (g,) = grad(flat[i], [x], retain_graph=True, allow_unused=True)
        elif y.requires_grad:
            (g,) = grad(y, [x], v, retain_graph=True, allow_unused=True)
        g = zeros_like(x) if g is None else g
        rows.append(_seen(g.detach().double().reshape(-1), u))
    if not rows or not x.numel():
        return [[] for _ in range(x.numel())]
    return _numbers(stack(rows, 1))


def _differ(a: _Table, b: _Table, atol: float, rtol: float) -> bool:
    pairs = zip(itertools.chain(*a), itertools.chain(*b), strict=True)
    # As in allclose, a NaN differs from everything.
    return not all(abs(p - q) <= atol + rtol * abs(q) for p, q in pairs)


def gradcheck(
    func: Callable[..., Any],
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
    all of them only where that differs.
    """
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError(
            "Setting check_batched_forward_grad=True requires check_forward_ad to be True"
        )
    if check_batched_grad and not check_backward_ad:
        raise AssertionError(
            "Setting check_batched_grad=True requires check_backward_ad to be True"
        )
    try:
        _check(
            func, inputs, eps, atol, rtol, nondet_tol, check_grad_dtypes, check_backward_ad, check_batched_grad,
            check_forward_ad, check_batched_forward_grad, fast_mode,
        )  # fmt: skip
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _checked_inputs(inputs: tuple[Any, ...]) -> list[tuple[int, Tensor]]:
    """Return those that gradients are asked for, with their numbers. Raises where a check can say nothing."""
    wanted = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    for i, x in wanted:
        if x.dtype is not float64:
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check "
                "will likely fail if all the inputs are not of double precision floating point or complex. ",
                stacklevel=user_depth(),
            )
        if any(st == 0 and n > 1 for n, st in zip(x.shape, x.stride(), strict=True)):
            raise RuntimeError(
                f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call "
                ".contiguous on the input before passing it to gradcheck."
            )
        x.retain_grad()
    return wanted


def _check(
    func: Callable[..., Any],
    inputs: object,
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
    check_dtypes: bool,
    backward: bool,
    batched: bool,
    forward: bool,
    batched_forward: bool,
    fast: bool,
) -> None:
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    func, inputs = _real(func, inputs)
    wanted = _checked_inputs(inputs)
    outputs = _evaluate(func, inputs)
    if not any(y.requires_grad for y in outputs):
        every = [None] * len(outputs)
        for _, x in wanted:
            if any(any(any(r) for r in t) for t in _numerical(func, inputs, x, eps, None, every)):
                raise GradcheckError("Numerical gradient for function expected to be zero")
        return
    along = _Along(fast)
    for i, x in wanted:
        u, vs = along.direction(x), [along.direction(y) for y in outputs]
        if u is None or None in vs:
            u, vs = None, [None] * len(outputs)
        numerical = _numerical(func, inputs, x, eps, u, vs)
        if forward:
            _check_tangents(func, inputs, x, i, numerical, atol, rtol, batched_forward, u, vs)
        if not backward:
            continue
        for o, (y, v) in enumerate(zip(outputs, vs, strict=True)):
            if batched:
                _check_batch(x, y)
            analytical = _analytical(y, x, u, v)
            if _differ(analytical, numerical[o], atol * _reach(u, v), rtol):
                if u is not None:
                    # The message has all of them.
                    every = [None] * len(outputs)
                    numerical[o] = _numerical(func, inputs, x, eps, None, every)[o]
                    analytical = _analytical(y, x, None, None)
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {i},\n"
                    f"numerical:{numerical[o]}\nanalytical:{analytical}\n"
                )
            again = _analytical(y, x, u, v)
            # What the graph saves may have been computed in the first pass's program, and rounded otherwise: what
            # comes out differently each time does so once more.
            if _differ(again, analytical, nondet_tol, 0.0) and _differ(
                _analytical(y, x, u, v), again, nondet_tol, 0.0
            ):
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output multiple "
                    "times gives different values, although analytical gradient matches numerical gradient. The "
                    f"tolerance for nondeterminism was {nondet_tol}."
                )
            if check_dtypes and y.requires_grad:
                (g,) = grad(y.sum(), [x], retain_graph=True, allow_unused=True)
                if g is not None and g.dtype is not x.dtype:
                    raise GradcheckError(
                        f"Gradient of input {i} has the dtype {g.dtype}, expected {x.dtype}"
                    )


def _reach(u: Tensor | None, v: Tensor | None) -> float:
    """Return how much errors of all derivatives may add up to along two directions."""
    return 1.0 if u is None or v is None else float(u.sum()) * float(v.sum())


def _tangents(
    func: Callable[..., Any], inputs: Sequence[Any], x: Tensor, u: Tensor | None = None
) -> list[Any]:
    """Return for each output its tangents along each element of x, or along `u`: a row for each."""
    rows: list[list[Any]] = []
    directions = eye(x.numel(), dtype=x.dtype, device=x.device) if u is None else [u]
    for direction in directions:
        rows.append([t.detach().reshape(-1) for t in _push(func, inputs, x, direction)])
    return [[row[o] for row in rows] for o in range(len(rows[0]))] if rows else []


def _push(
    func: Callable[..., Any], inputs: Sequence[Any], x: Tensor, direction: Tensor
) -> list[Tensor]:
    """Return the tangents of the outputs along one direction."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction.reshape(x.shape))
        given = [dual if a is x else a for a in inputs]
        found = [(y, forward_ad.unpack_dual(y).tangent) for y in _evaluate(func, given)]
    return [zeros_like(y.detach()) if t is None else t for y, t in found]


def _check_tangents(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    x: Tensor,
    number: int,
    numerical: list[_Table],
    atol: float,
    rtol: float,
    batched: bool,
    u: Tensor | None,
    vs: Sequence[Tensor | None],
) -> None:
    for o, rows in enumerate(_tangents(func, inputs, x, u)):
        analytical = [_numbers(_seen(row.double(), vs[o])) for row in rows]
        if _differ(analytical, numerical[o], atol * _reach(u, vs[o]), rtol):
            raise GradcheckError(
                f"Jacobian computed with forward mode mismatch for output {o} with respect to input {number},\n"
                f"numerical:{numerical[o]}\nanalytical:{analytical}\n"
            )
    if batched and x.numel():
        tables = _tangents(func, inputs, x)
        directions = eye(x.numel(), dtype=x.dtype, device=x.device)
        with Vmap(x.numel(), "error") as level:
            parts = _push(func, inputs, x, batch(directions, 0, level.number))
            together = [unbatch(t, 0, level.number, x.numel()) for t in parts]
        for o, rows in enumerate(tables):
            wanted = stack(list(rows))
            if not allclose(together[o].reshape(wanted.shape), wanted, rtol, atol):
                raise GradcheckError(
                    f"While considering output {o} and input {number}: vmap of the tangents gives something else "
                    "than one tangent after another"
                )


def _check_batch(x: Tensor, y: Tensor) -> None:
    """Raise GradcheckError if gradients of many cotangents at once are not those of each."""
    if not (y.requires_grad and y.numel() and x.numel()):
        return
    count = min(y.numel(), _MOST_COTANGENTS)
    if y.numel() > count:
        many = randn((count, *y.shape), generator=Generator(), dtype=y.dtype).to(y.device)
    else:
        many = eye(count, dtype=y.dtype, device=y.device).reshape((count, *y.shape))
    (together,) = grad(y, [x], many, retain_graph=True, allow_unused=True, is_grads_batched=True)
    for i in range(count):
        (one,) = grad(y, [x], many[i], retain_graph=True, allow_unused=True)
        same = one is together is None or (
            one is not None and together is not None and allclose(together[i], one)
        )
        if not same:
            raise GradcheckError(
                f"Batched gradients of output element {i} differ from those computed one after another"
            )


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
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if grad_outputs is None:
        func, inputs = _real(func, inputs)
        outputs = _evaluate(func, inputs)
        cotangents = tuple(randn_like(y.detach()).requires_grad_() for y in outputs)
        if gen_non_contig_grad_outputs:
            cotangents = tuple(
                stack([g.detach(), g.detach()], -1)[..., 0].requires_grad_() for g in cotangents
            )
    else:
        cotangents = (
            tuple(grad_outputs) if isinstance(grad_outputs, (tuple, list)) else (grad_outputs,)
        )
    count = len(cotangents)

    def slopes(*args: Any) -> tuple[Tensor, ...]:
        """Return the gradients for these inputs and cotangents."""
        points, gs = args[:-count], args[-count:]
        wanted = [x for x in points if isinstance(x, Tensor) and x.requires_grad]
        ys = _evaluate(func, points)
        pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y.requires_grad]
        found = grad(
            [y for y, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
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
        check_batched_grad=check_batched_grad and check_rev_over_rev,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
    )
