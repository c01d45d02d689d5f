"""Fusion's rules, by text: of each a program in which it keeps kernels apart, with its reason, and the nearest
program in which it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import webtorch
from tests.lower.graphs import CPU, GPU, program_of, steps_of
from webtorch.ir.program import Program, Separation
from webtorch.lower import fusion_rules
from webtorch.lower.together import written_by

Function = Callable[..., Any]
# A step, the one that it is apart from, and the reason.
Said = tuple[int, int, str]


@dataclass(frozen=True)
class Case:
    """A program: a function of tensors of these shapes, and the device that it is for."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    limits: Any = GPU
    more: dict[str, Any] = field(default_factory=dict)

    def program(self) -> Program:
        """Compile it."""
        tensors = [webtorch.ones(*shape) for shape in self.shapes]
        return program_of(self.function, *tensors, limits=self.limits, **self.more)


def _window_itself(x: Any) -> Any:
    x[1:4] = x[1:4] * 2
    return x


def _window_next_to_it(x: Any) -> Any:
    x[1:4] = x[0:3] * 2
    return x


def _window_of_computed(x: Any) -> Any:
    y = x.exp()
    y[0:2] = 0.5
    return y


def _window_of_given(x: Any, y: Any) -> Any:
    e = y.exp()
    x[0:2] = e
    return x, e


def _window_and_sum(x: Any, y: Any) -> Any:
    e = y.exp()
    x[0:2] = e
    return x, e, e.sum(1)


def _counted(rows: int) -> Any:
    return webtorch.arange(rows)


def _added(x: Any, y: Any) -> Any:
    e = y.exp()
    return e, x.index_add(0, _counted(4), e)


def _copied(x: Any, y: Any) -> Any:
    e = y.exp()
    return e, x.index_copy(0, _counted(4), e)


def _around_a_product(x: Any, w: Any) -> Any:
    h = x.exp()
    return h, h + h @ w


def _beside_a_product(x: Any, w: Any) -> Any:
    h = x.exp()
    return h, h + 1, h @ w


def _sums(count: int) -> Function:
    def function(*xs: Any) -> Any:
        first = sum(xs[1:count], xs[0])
        return first, sum(xs[count:], first)

    return function


def _long(count: int) -> Function:
    def function(x: Any) -> Any:
        out = []
        for i in range(count):
            y = x
            for _ in range(60):
                y = (y + 1.5) * (i + 2.0)
            out.append(y)
        return out

    return function


def _dear(count: int) -> Function:
    def function(x: Any) -> Any:
        for _ in range(count):
            x = x.erf()
        return x, x.sum(1)

    return function


def _normalised(dim: int) -> Function:
    return lambda x: x.softmax(dim)


def _repeated(x: Any) -> Any:
    e = x.exp()
    return e, e.expand(4, 8).sum(0)


def _scaled(dim: int) -> Function:
    def function(x: Any) -> Any:
        return x * x.sum(dim, keepdim=True)

    return function


def _kept(dim: int) -> Function:
    def function(x: Any) -> Any:
        e = x.exp()
        return e, e.sum(dim)

    return function


def _far_apart(times: int) -> Function:
    """Sums of one expression, with more kernels between than fusion looks at for what reads the same."""

    def function(x: Any, *others: Any) -> Any:
        e = x
        for _ in range(times):
            e = e.erf()
        first = e.sum(0)
        return first, [o.sum() for o in others], e.sum(1)

    return function


def _turned(x: Any) -> Any:
    e = x.exp()
    return e, e.t().reshape(-1).sin()


def _as_it_lies(x: Any) -> Any:
    e = x.exp()
    return e, e.reshape(-1).sin()


def _checked(x: Any, w: Any) -> Any:
    return (x @ w) + w[_counted(4) * 2]


# Rule -> the program in which it says no, its steps, what it says; and one in which it does not, and its steps.
RULES: dict[str, tuple[Case, list[str], list[Said], Case, list[str]]] = {
    "routine": (
        Case(lambda x, w: (x @ w).relu(), ((4, 8), (8, 8)), CPU),
        ["matmul_1x4x8x8", "relu"],
        [
            (
                1,
                0,
                "matmul is a routine of its own, and computes nothing that follows it on this device",
            )
        ],
        Case(lambda x, w: (x @ w).relu(), ((4, 8), (8, 8))),
        ["matmul_1x4x8x8_relu"],
    ),
    "accumulation": (
        Case(_added, ((4, 8), (4, 8))),
        ["exp", "copy", "scatter"],
        [(2, 0, "positions that data give may repeat: what adds up there is a kernel of its own")],
        Case(_copied, ((4, 8), (4, 8))),
        ["copy", "exp_scatter"],
    ),
    "epilogue_operation": (
        Case(lambda x, w: (x @ w).sum(), ((4, 8), (8, 8))),
        ["matmul_1x4x8x8", "sum"],
        [
            (
                1,
                0,
                "what follows a product's sums in their registers is element by element, and sum is not",
            )
        ],
        Case(lambda x, w: (x @ w).sqrt(), ((4, 8), (8, 8))),
        ["matmul_1x4x8x8_sqrt"],
    ),
    "epilogue_cost": (
        Case(lambda x, w: (x @ w).erf().erf().erf(), ((4, 8), (8, 8))),
        ["matmul_1x4x8x8", "erf_erf_erf"],
        [
            (
                1,
                0,
                "erf costs about 24 additions an element, and a product computes what costs at most 20",
            )
        ],
        Case(lambda x, w: (x @ w).erf().erf(), ((4, 8), (8, 8))),
        ["matmul_1x4x8x8_erf_erf"],
    ),
    "write_in_progress": (
        Case(_window_of_computed, ((4, 8),)),
        ["exp", "update"],
        [(1, 0, "it would write into what the same kernel is still writing")],
        Case(_window_of_given, ((4, 8), (2, 8))),
        ["exp_update"],
    ),
    "read_of_overwritten": (
        Case(_window_next_to_it, ((4, 8),)),
        ["mul", "update"],
        [(1, 0, "it overwrites in place what this kernel reads at other positions")],
        Case(_window_itself, ((4, 8),)),
        ["mul_update"],
    ),
    "order": (
        Case(_around_a_product, ((4, 8), (8, 8)), CPU),
        ["exp", "matmul_1x4x8x8", "add"],
        [(2, 0, "it also needs the result of a third kernel, which needs this one")],
        Case(_beside_a_product, ((4, 8), (8, 8)), CPU),
        ["exp_add", "matmul_1x4x8x8"],
    ),
    "bindings": (
        Case(_sums(4), ((64,),) * 7, more={"max_buffers_per_kernel": 9}),
        ["add_add_add", "add_add_add"],
        [(1, 0, "together they bind 9 buffers, and a kernel has room for 8 on this device")],
        Case(_sums(4), ((64,),) * 6, more={"max_buffers_per_kernel": 9}),
        ["add_add_add_add_add"],
    ),
    "length": (
        Case(_long(5), ((8,),)),
        ["add_mul_and_478_more", "add_mul_and_118_more"],
        [(1, 0, "together they have 605 parts of expressions, more than 600")],
        Case(_long(4), ((8,),)),
        ["add_mul_and_478_more"],
    ),
    "row_cost": (
        Case(_dear(26), ((8, 8),)),
        ["erf_and_25_more", "sum"],
        [
            (
                1,
                0,
                "an expression of about 208 additions would be computed for each reduction of a row: at most 200 pay",
            )
        ],
        Case(_dear(25), ((8, 8),)),
        ["erf_sum_and_24_more"],
    ),
    "row_loops": (
        Case(lambda x: (x.sum(0), x.sum(1)), ((64, 32),)),
        ["sum", "sum"],
        [(1, 0, "it reduces 64 rows of 32, and this kernel 32 rows of 64")],
        Case(lambda x: (x.sum(1), x.exp().sum(1)), ((64, 32),)),
        ["sum_exp_sum"],
    ),
    "row_again": (
        Case(_normalised(0), ((513, 128),)),
        ["max", "sub_exp_sum", "sub_exp_div"],
        [(1, 0, "128 rows of 513 do not lie together, so one kernel would walk them badly twice")],
        Case(_normalised(0), ((128, 128),)),
        ["max_sub_exp_sum_div"],
    ),
    "reduced_points": (
        Case(_repeated, ((8,),)),
        ["exp", "sum"],
        [(1, 0, "it reduces 8 rows of 4, and this kernel walks 8 points")],
        Case(_repeated, ((4, 8),)),
        ["exp_sum"],
    ),
    "reduced_row": (
        Case(_kept(0), ((129, 128),)),
        ["exp", "sum"],
        [(1, 0, "128 rows of 129 do not lie together, so one kernel would walk them badly twice")],
        Case(_kept(1), ((129, 128),)),
        ["exp_sum"],
    ),
    "reduced_writes": (
        Case(_window_and_sum, ((4, 8), (2, 8))),
        ["exp_update", "sum"],
        [(1, 0, "this kernel writes in place at positions of its own")],
        Case(_kept(1), ((2, 8),)),
        ["exp_sum"],
    ),
    "points": (
        Case(lambda x: (x.exp(), x[:7].sin()), ((8,),)),
        ["exp", "sin"],
        [(1, 0, "it has 7 elements, and this kernel walks 8 points")],
        Case(lambda x: (x.exp(), x[:8].sin()), ((8,),)),
        ["exp_sin"],
    ),
    "row_stores": (
        Case(_scaled(0), ((129, 128),)),
        ["sum", "mul"],
        [(1, 0, "128 rows of 129 do not lie together, so one kernel would walk them badly twice")],
        Case(_scaled(0), ((128, 128),)),
        ["sum_mul"],
    ),
    "positions": (
        Case(_turned, ((8, 4),)),
        ["exp", "sin"],
        [(1, 0, "it reads what this kernel computes at other points than its own")],
        Case(_as_it_lies, ((8, 4),)),
        ["exp_sin"],
    ),
    "epilogue_bindings": (
        Case(_checked, ((4, 8), (8, 8))),
        ["matmul_1x4x8x8", "mul_take_add"],
        [(1, 0, "it checks indices, and a product has no place to report a bad one")],
        Case(lambda x, w: (x @ w) + w[0:4], ((4, 8), (8, 8))),
        ["matmul_1x4x8x8_add"],
    ),
    "shared_positions": (
        Case(lambda x: (x.exp(), x.t().reshape(-1).sin()), ((8, 4),)),
        ["exp", "sin"],
        [(1, 0, "both read the same data, but at other positions")],
        Case(lambda x: (x.exp(), x.reshape(-1).sin()), ((8, 4),)),
        ["exp_sin"],
    ),
    "operand": (
        Case(lambda x, w: x.exp() @ w, ((4, 8), (8, 8))),
        ["exp", "matmul_1x4x8x8"],
        [(1, 0, "matmul reads its operands from memory")],
        Case(lambda x, w: x @ w, ((4, 8), (8, 8))),
        ["matmul_1x4x8x8"],
    ),
    "joined_another": (
        Case(lambda x, y: (x.exp(), y.sin(), x.exp() + y.sin()), ((8,), (8,))),
        ["exp", "sin_add"],
        [(1, 0, "add, which reads both, is computed in the later one")],
        Case(lambda x: (x.exp(), x.sin(), x.exp() + x.sin()), ((8,),)),
        ["exp_sin_add"],
    ),
    "computed_once": (
        Case(_far_apart(2), ((64, 32),) + ((8,),) * 8),
        ["sum", "sum", "sum", "sum", "sum", "sum", "sum", "sum", "erf_erf_sum", "sum"],
        [(9, 8, "erf is computed once, and read from memory here")],
        Case(_far_apart(1), ((64, 32),) + ((8,),) * 8),
        ["sum", "sum", "sum", "sum", "sum", "sum", "sum", "sum", "erf_sum", "erf_sum"],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_kernels_apart_and_says_why(rule: str) -> None:
    case, steps, said, *_ = RULES[rule]
    program = case.program()
    assert steps_of(program) == steps
    assert [(s.step, s.other, s.reason) for s in program.separations if s.rule == rule] == said
    assert said


@pytest.mark.parametrize("rule", RULES)
def test_the_nearest_program_is_one_of_which_the_rule_says_nothing(rule: str) -> None:
    *_, case, steps = RULES[rule]
    program = case.program()
    assert steps_of(program) == steps
    assert rule not in {s.rule for s in program.separations}


def test_every_rule_has_its_programs() -> None:
    asked = [r.__name__ for r in (*fusion_rules.BEFORE, *fusion_rules.AFTER)]
    asked += [fusion_rules.shared_positions.__name__, fusion_rules.POSITIONS, fusion_rules.OPERAND]
    asked += [fusion_rules.JOINED_ANOTHER, fusion_rules.COMPUTED_ONCE]
    assert set(asked) == set(RULES)
    assert len(set(asked)) == len(asked)


def test_a_product_has_two_bindings_for_an_operand_that_its_epilogue_reads() -> None:
    """The first is bound as the left operand and as what is added: one binding more than there are buffers."""

    def function(x: Any, w: Any, b: Any) -> Any:
        return x @ w + x + b

    shapes = ((8, 8), (8, 8), (8, 8))
    few = Case(function, shapes, more={"max_buffers_per_kernel": 5}).program()
    assert steps_of(few) == ["matmul_1x8x8x8", "add_add"]
    assert [str(s) for s in few.separations] == [
        "step 1 apart from step 0 (epilogue_bindings): with it the product binds 5 buffers, and a kernel has "
        "room for 4 on this device"
    ]
    enough = Case(function, shapes, more={"max_buffers_per_kernel": 6}).program()
    assert steps_of(enough) == ["matmul_1x8x8x8_add_add"]


def test_whoever_reads_what_another_step_writes_is_kept_apart_by_a_rule() -> None:
    """In a step of training no two steps share data without a reason why they are not one."""
    model = webtorch.nn.Sequential(
        webtorch.nn.Linear(8, 16), webtorch.nn.LayerNorm(16), webtorch.nn.GELU(), webtorch.nn.Linear(16, 4)
    )  # fmt: skip
    optimizer = webtorch.optim.AdamW(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).softmax(-1).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for limits in (GPU, CPU):
        for several in (False, True):
            program = program_of(step, webtorch.ones(6, 8), limits=limits, has_several=several)
            told = {(s.step, s.other) for s in program.separations}
            writer: dict[int, int] = {}
            pairs = set()
            for number, one in enumerate(program.steps):
                pairs |= {(number, writer[b]) for b in one.buffers if b in writer}
                writer.update(dict.fromkeys(written_by(one, program.routines), number))
            assert len(pairs) > 10
            assert pairs <= told


def test_separations_are_written_and_read_and_make_no_difference() -> None:
    program = RULES["order"][0].program()
    again = Program.from_json(program.to_json())
    assert again.separations == program.separations
    assert isinstance(again.separations[0], Separation)
    without = program.to_json().rpartition(',[{"Separation"')[0] + "]}}"
    older = Program.from_json(without)
    assert older.separations == ()
    assert older == program
