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
from webtorch.functions.random import randn_like
from webtorch.functions.ranges import eye
from webtorch.ir.dtype import float64
from webtorch.ir.lines import user_depth
from webtorch.ops.primitive import paired, pairs
from webtorch.tensors.batching import Vmap, batch, unbatch
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import enable_grad, no_grad
from webtorch.tensors.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


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


def _numerical(
    func: Callable[..., Any], inputs: Sequence[Any], x: Tensor, eps: float
) -> list[list[list[float]]]:
    """Return for each output the differences of its elements for each element of x."""
    data = x.data
    columns: list[list[Any]] = []
    for at in itertools.product(*(range(n) for n in x.shape)):
        old = data[at].item()
        sides = []
        for value in (old + eps, old - eps):
            data[at] = value
            with no_grad():
                # What comes back may be a view of the input, which moves on.
                sides.append([y.detach().double().clone() for y in _evaluate(func, inputs)])
        data[at] = old
        columns.append(
            [((a - b) / (2 * eps)).reshape(-1).tolist() for a, b in zip(*sides, strict=True)]
        )
    count = len(_evaluate(func, inputs))
    return [[column[o] for column in columns] for o in range(count)]


def _evaluate(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    with enable_grad():
        return _outputs(func(*inputs))


def _analytical(y: Tensor, x: Tensor) -> list[list[float]]:
    """Return the gradients of each element of y for each element of x: a row for each element of x."""
    flat = y.reshape(-1)
    rows = []
    for i in range(y.numel()):
        g = None
        if y.requires_grad:
            (g,) = grad(flat[i], [x], retain_graph=True, allow_unused=True)
        g = zeros_like(x) if g is None else g
        rows.append(g.detach().double().reshape(-1))
    if not rows or not x.numel():
        return [[] for _ in range(x.numel())]
    table: list[list[float]] = stack(rows, 1).tolist()
    return table


def _differ(a: list[list[float]], b: list[list[float]], atol: float, rtol: float) -> bool:
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
    does. There is one mode, of every element: `fast_mode` changes nothing.
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
            check_forward_ad, check_batched_forward_grad,
        )  # fmt: skip
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


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
) -> None:
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    func, inputs = _real(func, inputs)
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
    outputs = _evaluate(func, inputs)
    if not any(y.requires_grad for y in outputs):
        for _, x in wanted:
            if any(any(any(r) for r in table) for table in _numerical(func, inputs, x, eps)):
                raise GradcheckError("Numerical gradient for function expected to be zero")
        return
    for i, x in wanted:
        numerical = _numerical(func, inputs, x, eps)
        if forward:
            _check_tangents(func, inputs, x, i, numerical, atol, rtol, batched_forward)
        if not backward:
            continue
        for o, y in enumerate(outputs):
            if batched:
                _check_batch(x, y)
            analytical = _analytical(y, x)
            if _differ(analytical, numerical[o], atol, rtol):
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {i},\n"
                    f"numerical:{numerical[o]}\nanalytical:{analytical}\n"
                )
            if _differ(_analytical(y, x), analytical, nondet_tol, 0.0):
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


def _tangents(func: Callable[..., Any], inputs: Sequence[Any], x: Tensor) -> list[Any]:
    """Return for each output its tangents along each element of x: a row for each element of x."""
    rows: list[list[Any]] = []
    for direction in eye(x.numel(), dtype=x.dtype, device=x.device):
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
    numerical: list[list[list[float]]],
    atol: float,
    rtol: float,
    batched: bool,
) -> None:
    tables = _tangents(func, inputs, x)
    for o, rows in enumerate(tables):
        analytical = [row.double().tolist() for row in rows]
        if _differ(analytical, numerical[o], atol, rtol):
            raise GradcheckError(
                f"Jacobian computed with forward mode mismatch for output {o} with respect to input {number},\n"
                f"numerical:{numerical[o]}\nanalytical:{analytical}\n"
            )
    if batched and tables:
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
    count = y.numel()
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
