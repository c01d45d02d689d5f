"""L-BFGS. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import Optimizer, StateDict, check_lr, options_of
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import realize

__all__ = ["LBFGS"]

# A point of the line search's function and its derivative along the line.
# position -> (loss, gradient)
Line = Callable[[float], tuple[float, Tensor]]


@dataclass(frozen=True, slots=True)
class _Point:
    """What is known at one step length: the loss, the gradient, its product with the direction."""

    t: float
    loss: float
    grad: Tensor
    slope: float

    @property
    def known(self) -> tuple[float, float, float]:
        """The step length, the loss and the slope."""
        return self.t, self.loss, self.slope


def _real(x: Tensor) -> Tensor:
    """Return a view of both parts of a complex tensor, any other as it is."""
    return webtorch.view_as_real(x) if x.is_complex() else x


class LBFGS(Optimizer):
    """Limited-memory BFGS: Newton steps from the last `history_size` changes of the gradient.

    `step(closure)` calls the closure, which returns the loss with gradients set, many times. All
    parameters are in one group. Liu and Nocedal, 1989.
    """

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        """Take the options; `line_search_fn` is None or "strong_wolfe"."""
        defaults = options_of(locals())
        check_lr(lr)
        defaults["max_eval"] = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def _gather_flat_grad(self) -> Tensor:
        """Return the gradients of all parameters as one vector, of complex ones both parts; an absent
        one is zeros.
        """
        return webtorch.cat(
            [
                _real(webtorch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                for p in self._params
            ]
        )

    def _numel(self) -> int:
        """Return how many real numbers all parameters are."""
        return sum(_real(param).numel() for param in self._params)

    def _add_grad(self, step_size: float, update: Tensor) -> None:
        """Add step_size times the direction `update` to the parameters."""
        start = 0
        for param in map(_real, self._params):
            count = param.numel()
            part = update[start : start + count].reshape(tuple(param.shape))
            param.add_(part, alpha=step_size)
            start += count

    def _clone_param(self) -> list[Tensor]:
        """Return copies of the parameters."""
        return [param.detach().clone() for param in self._params]

    def _set_param(self, params_data: list[Tensor]) -> None:
        """Put the parameters back."""
        for param, before in zip(self._params, params_data, strict=True):
            param.copy_(before)

    def _directional_evaluate(
        self, closure: Callable[[], object], x: list[Tensor], t: float, d: Tensor
    ) -> tuple[float, Tensor]:
        """Return loss and gradient at `t` along the direction `d`; the parameters are put back to `x`."""
        self._add_grad(t, d)
        loss, grad = _number(closure()), self._gather_flat_grad()
        self._set_param(x)
        return loss, grad

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Take up to `max_iter` steps; return the loss at the first point."""
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        given = closure

        def evaluate() -> object:
            """Return the closure's loss, with gradients recorded."""
            with webtorch.enable_grad():
                return given()

        group, state = self.param_groups[0], self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = evaluate()
        loss, evaluations = _number(first), 1
        state["func_evals"] += 1
        grad = self._gather_flat_grad()
        if _largest(grad) <= group["tolerance_grad"]:
            return first
        lr = float(group["lr"])
        iteration = 0
        while iteration < group["max_iter"]:
            iteration += 1
            state["n_iter"] += 1
            direction = self._direction(state, grad, group["history_size"])
            loss_before = loss
            t = lr
            if state["n_iter"] == 1:
                t *= min(1.0, 1.0 / max(float(grad.abs().sum()), 1e-38))
            state["t"], state["prev_loss"] = t, loss_before
            slope = float(grad.dot(direction))
            if slope > -group["tolerance_change"]:
                break
            count = 0
            if group["line_search_fn"] is not None:
                if group["line_search_fn"] != "strong_wolfe":
                    raise RuntimeError("only 'strong_wolfe' is supported")
                start = self._clone_param()
                line = partial(self._directional_evaluate, evaluate, start, d=direction)
                found, count = _strong_wolfe(
                    line, t, _largest(direction), _Point(0.0, loss, grad, slope), direction,
                    group["max_eval"] - evaluations,
                )  # fmt: skip
                loss, grad, t = found.loss, found.grad, found.t
                state["t"] = t
                self._add_grad(t, direction)
            else:
                self._add_grad(t, direction)
                if iteration != group["max_iter"]:
                    # Behind the last step nobody needs the gradient.
                    loss, grad, count = _number(evaluate()), self._gather_flat_grad(), 1
            evaluations += count
            state["func_evals"] += count
            if (
                iteration == group["max_iter"]
                or evaluations >= group["max_eval"]
                or _largest(grad) <= group["tolerance_grad"]
                or _largest(direction) * t <= group["tolerance_change"]
                or abs(loss - loss_before) < group["tolerance_change"]
            ):
                break
        return first

    def _direction(self, state: StateDict, grad: Tensor, history_size: int) -> Tensor:
        """Return the Newton step by the two loops of Nocedal, 1980, and remember what they need."""
        if state["n_iter"] == 1:
            state.update(d=grad.neg(), old_dirs=[], old_stps=[], ro=[], H_diag=1)
            state["prev_flat_grad"] = grad.clone()
            return state["d"]
        changes, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        change, step = grad - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = change.dot(step)
        if float(curvature) > 1e-10:
            if len(changes) == history_size:
                for memory in (changes, steps, ro):
                    memory.pop(0)
            changes.append(change)
            steps.append(step)
            ro.append(1.0 / curvature)
            state["H_diag"] = curvature / change.dot(change)
        weights = state.setdefault("al", [None] * history_size)
        direction = grad.neg()
        for i in reversed(range(len(changes))):
            weights[i] = steps[i].dot(direction) * ro[i]
            direction = direction - changes[i] * weights[i]
            # Each turn is the same program; all turns together are another one for each length.
            realize(direction, weights[i])
        direction = direction * state["H_diag"]
        for i in range(len(changes)):
            weight = changes[i].dot(direction) * ro[i]
            direction = direction + steps[i] * (weights[i] - weight)
            realize(direction)
        state["d"] = direction
        state["prev_flat_grad"] = grad.clone()
        return direction


def _number(loss: Any) -> float:
    """Return what a closure gives, a tensor or a number, as a number."""
    return float(loss.detach() if isinstance(loss, webtorch.Tensor) else loss)


def _largest(x: Tensor) -> float:
    """Return the largest magnitude in `x`."""
    return float(x.abs().max())


def cubic_minimum(
    a: tuple[float, float, float], b: tuple[float, float, float], low: float, high: float
) -> float:
    """Return where the cubic through two points is least, within [low, high].

    a, b: place, value and slope. Nocedal and Wright, Numerical Optimization, equation 3.59; the middle where it has
    no minimum.
    """
    near, far = (a, b) if a[0] <= b[0] else (b, a)
    first = near[2] + far[2] - 3 * (near[1] - far[1]) / (near[0] - far[0])
    square = first**2 - near[2] * far[2]
    if not square >= 0:
        return (low + high) / 2.0
    root = square**0.5
    below = far[2] - near[2] + 2 * root
    if below == 0:
        return (low + high) / 2.0
    best = far[0] - (far[0] - near[0]) * ((far[2] + root - first) / below)
    return min(max(best, low), high)


def _strong_wolfe(
    line: Line,
    t: float,
    largest: float,
    start: _Point,
    direction: Tensor,
    max_steps: int,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance_change: float = 1e-9,
) -> tuple[_Point, int]:
    """Return a point that satisfies the strong Wolfe conditions, and how many were evaluated.

    Nocedal and Wright, Numerical Optimization, algorithms 3.5 and 3.6, with cubic interpolation.
    """

    def point(t: float) -> _Point:
        """Return loss, gradient and slope at a step length."""
        loss, grad = line(t)
        return _Point(t, loss, grad, float(grad.dot(direction)))

    def too_high(p: _Point) -> bool:
        """Return whether the loss has not fallen enough: Wolfe's first condition fails."""
        return p.loss > start.loss + c1 * p.t * start.slope

    def flat(p: _Point) -> bool:
        """Return whether the slope has flattened enough: Wolfe's second condition."""
        return abs(p.slope) <= -c2 * start.slope

    before, here = start, point(t)
    evaluations, steps = 1, 0
    bracket: list[_Point] = [start, here]
    while steps < max_steps:
        if too_high(here) or (steps > 1 and here.loss >= before.loss):
            bracket = [before, here]
            break
        if flat(here):
            return here, evaluations
        if here.slope >= 0:
            bracket = [before, here]
            break
        low, high = here.t + 0.01 * (here.t - before.t), here.t * 10
        before, here = here, point(cubic_minimum(before.known, here.known, low, high))
        evaluations += 1
        steps += 1
        bracket = [start, here]
    # The bracket holds a good point; it is narrowed until that is found.
    stalled = False
    best, other = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    while steps < max_steps:
        a, b = bracket
        if abs(b.t - a.t) * largest < tolerance_change:
            break
        left, right = min(a.t, b.t), max(a.t, b.t)
        t = cubic_minimum(a.known, b.known, left, right)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:
            # Too near to an end: once is allowed, a second time the point is moved inwards.
            if stalled or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        here = point(t)
        evaluations += 1
        steps += 1
        if too_high(here) or here.loss >= bracket[best].loss:
            bracket[other] = here
            best, other = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        done = flat(here)
        if not done and here.slope * (bracket[other].t - bracket[best].t) >= 0:
            bracket[other] = bracket[best]
        bracket[best] = here
        if done:
            break
    return bracket[best], evaluations
