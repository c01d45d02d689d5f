"""Why dispatches stay apart that might be one: of each rule a program in which it says no, with its reason, and the
nearest program in which the steps are put together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webtorch
from tests.lower.graphs import program_of, steps_of
from webtorch.ir.program import Program
from webtorch.lower import joining_rules

Function = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]


def compiled(function: Function, shapes: Shapes, **more: Any) -> Program:
    """Return the program of a function of tensors of these shapes, for a device that joins dispatches."""
    tensors = [webtorch.ones(*shape) for shape in shapes]
    return program_of(function, *tensors, has_several=True, has_joint_products=True, **more)


def _updates(a: Any, b: Any) -> None:
    a.add_(1)
    b.mul_(2)


def _checked(a: Any, b: Any, g: Any, places: Any) -> None:
    a.add_(1)
    b.add_(g[places.long()])


def _added_at(a: Any, b: Any) -> None:
    a.add_(1)
    b.index_add_(0, webtorch.arange(2), webtorch.ones(2, 3))


def _scaled_rows(a: Any, b: Any) -> None:
    a.add_(1)
    b.copy_(b.softmax(-1))


def _reduced_twice(a: Any, b: Any, g: Any) -> None:
    a.add_(1)
    b.add_((g - g.sum(0)).exp().sum(0))


def _sums(a: Any, b: Any, g: Any, h: Any) -> None:
    a.add_(g.sum(0))
    b.add_(h.sum(0))


def _from_others(a: Any, b: Any, c: Any, d: Any) -> None:
    a.mul_(c)
    b.add_(d)


def _from_many(a: Any, b: Any, *more: Any) -> None:
    a.add_(more[0] * more[1] + more[2])
    b.mul_(more[3] * more[4] + more[5] * more[6])


def _read_between(a: Any, b: Any) -> Any:
    a.add_(1)
    total = webtorch.cumsum(a, 0)
    b.add_(total[-1])
    return total


def _products(x: Any, v: Any, w: Any) -> Any:
    return x @ v, x @ w


def _reshaped(x: Any, v: Any, w: Any) -> Any:
    return x @ v, x.reshape(2, 16) @ w


def _of_vectors(v: Any, w: Any, a: Any, b: Any) -> Any:
    return (a * v).sum(1), (b * w).sum(1)


def _update_and_sum(a: Any, v: Any, w: Any) -> Any:
    a.add_(1)
    return (w * v).sum(1)


def _itself(x: Any, v: Any) -> Any:
    return x @ v, x @ x


def _into_weights(x: Any, v: Any, w: Any) -> Any:
    first = x @ v
    v.mul_(x @ w)
    return first


def _far(x: Any, v: Any, w: Any, *between: Any) -> Any:
    first = x @ v
    for n in range(26):
        first = (first.cumsum(0) if n % 2 else first.cumsum(1)) * 0.5
    return first, x @ w + first.sum()


SQUARE: Shapes = ((4, 4), (4, 4), (4, 4))
LARGE = 1 << 20

# Rule -> a function, its shapes, more limits, and the reason; then a program near it that is joined.
RULES: dict[str, tuple[Function, Shapes, dict[str, Any], str, Function, Shapes, dict[str, Any]]] = {
    "checks": (
        _checked, ((4,), (5,), (7,), (5,)), {}, "it checks indices, and reports a bad one by itself",
        _updates, ((4,), (5,)), {},
    ),
    "work": (
        _updates, ((4,), (LARGE + 1,)), {},
        f"it works at {LARGE + 1} points: at most {LARGE} take less time than a dispatch costs",
        _updates, ((4,), (LARGE,)), {},
    ),
    "accumulated": (
        _added_at, ((4,), (5, 3)), {}, "it adds up at positions that data give",
        _updates, ((4,), (5, 3)), {},
    ),
    "row_stores": (
        _scaled_rows, ((4,), (5, 6)), {}, "it reduces rows, and stores at each of their points too",
        _updates, ((4,), (5, 6)), {},
    ),
    "stages": (
        _reduced_twice, ((4,), (5,), (6, 5)), {},
        "it reduces what it has reduced before, and walks its rows again",
        _updates, ((4,), (5,)), {},
    ),
    "same_loops": (
        _sums, ((4,), (5,), (6, 4), (7, 5)), {}, "it reduces 5 rows of 7, and the others reduce 4 rows of 6",
        _sums, ((4,), (4,), (6, 4), (6, 4)), {},
    ),
    "same_kind": (
        _update_and_sum, ((4,), (8,), (5, 8)), {}, "it sums rows of a vector, and the others do not",
        _of_vectors, ((8,), (8,), (5, 8), (7, 8)), {},
    ),
    "bindings": (
        _from_others, ((4,), (5,), (4,), (5,)), {"max_buffers_per_kernel": 3},
        "together they bind 4 buffers, and a kernel has room for 3 on this device",
        _from_others, ((4,), (5,), (4,), (5,)), {"max_buffers_per_kernel": 4},
    ),
    "memory": (
        _from_many, ((LARGE,),) * 9, {},
        "together they keep 37748736 bytes until the last of them runs: at most 33554432",
        _from_many, ((LARGE // 2,),) * 9, {},
    ),
    "between": (
        _read_between, ((4,), (5,)), {}, "a step after the others needs what they write",
        _updates, ((4,), (5,)), {},
    ),
    "columns": (
        _products, ((4, 8), (8, 5), (8, 1)), {}, "a product of one column has a kernel of its own",
        _products, ((4, 8), (8, 5), (8, 2)), {},
    ),
    "square": (
        _itself, ((8, 8), (8, 5)), {}, "it multiplies a matrix by itself",
        _products, ((8, 8), (8, 5), (8, 8)), {},
    ),
    "left_operand": (
        _reshaped, ((4, 8), (8, 5), (16, 6)), {},
        "it reads the same left operand as 1 x 2 x 16, and the other as 1 x 4 x 8",
        _products, ((4, 8), (8, 5), (8, 6)), {},
    ),
    "overwritten": (
        _into_weights, SQUARE, {}, "it writes what the other reads or writes",
        _products, SQUARE, {},
    ),
    "distance": (
        _far, ((4, 8), (8, 5), (8, 5)), {}, "more than 24 steps lie between",
        _products, ((4, 8), (8, 5), (8, 5)), {},
    ),
}  # fmt: skip


def test_every_rule_has_its_programs() -> None:
    asked = (*joining_rules.ALONE, *joining_rules.JOIN, *joining_rules.PRODUCT_ALONE)
    named = {joining_rules.BETWEEN, joining_rules.OVERWRITTEN, joining_rules.DISTANCE}
    named |= {joining_rules.LEFT_OPERAND}
    assert {rule.__name__ for rule in asked} | named == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_dispatches_apart_and_says_why(rule: str) -> None:
    function, shapes, more, reason, *_ = RULES[rule]
    program = compiled(function, shapes, **more)
    assert reason in {s.reason for s in program.separations if s.rule == rule}


@pytest.mark.parametrize("rule", RULES)
def test_the_nearest_program_is_one_dispatch(rule: str) -> None:
    *_, function, shapes, more = RULES[rule]
    program = compiled(function, shapes, **more)
    (step,) = steps_of(program)
    assert step.endswith("_x2")
    assert not program.separations
