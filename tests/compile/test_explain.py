"""What a compiled function tells of itself, by text: why it was captured, why kernels are apart, who holds memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch import nn, optim
from webtorch.nn import functional as F
from webtorch.runtime.compilations import Input, changes, told


def reasons(compiled: Any) -> list[str]:
    """Why a function was captured each time."""
    return [c.reason for c in compiled.compilations]


class Settings:
    """What a step may read besides its arguments."""

    scale = 2

    def __init__(self) -> None:
        self.log = True


class Program:
    """A user's training program, whose parts the tests change between two steps."""

    def __init__(self) -> None:
        webtorch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)
        self.settings = Settings()
        self.seen: set[int] = set()
        model, optimizer, settings, seen = self.model, self.optimizer, self.settings, self.seen

        @webtorch.compile
        def step(x: Any, y: Any, weight: float = 1.0, tag: str = "train") -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * weight * settings.scale
            if 3 in seen:
                loss = loss * 2
            loss.backward()
            optimizer.step()
            return loss if settings.log else None

        self.step = step
        self.x, self.y = webtorch.ones(4, 8), webtorch.tensor([0, 1, 2, 3])

    def run(self, **more: Any) -> str:
        """Make a step; return why it was captured, "" if it was replayed."""
        before = self.step.count
        self.step(self.x, self.y, **more)
        return reasons(self.step)[-1] if self.step.count > before else ""


def _other_batch(p: Program) -> None:
    p.x, p.y = webtorch.ones(5, 8), webtorch.tensor([0, 1, 2, 3, 0])


def _other_layout(p: Program) -> None:
    p.x = p.x.t().contiguous().t()


def _mode(p: Program) -> None:
    p.model.eval()


def _number(p: Program) -> None:
    p.settings.scale = 3


def _flag(p: Program) -> None:
    p.settings.log = False


def _option(p: Program) -> None:
    p.optimizer.param_groups[0]["weight_decay"] = 0.5


def _members(p: Program) -> None:
    p.seen.add(3)


def _frozen(p: Program) -> None:
    p.model[0].weight.requires_grad_(False)


def _layer(p: Program) -> None:
    p.model[2] = nn.Linear(16, 4)


def _nothing(p: Program) -> None:
    pass


def _free(p: Program) -> None:
    p.optimizer.param_groups[0]["lr"] = 0.01
    p.x = p.x * 3


# What changes -> why the next step is captured, and why the one after it.
CHANGES: dict[str, tuple[Callable[[Program], None], str, str]] = {
    "nothing": (_nothing, "", ""),
    "a learning rate and data": (_free, "", ""),
    "the size of the batch": (
        _other_batch,
        "argument `x` changed shape from (4, 8) to (5, 8); argument `y` changed shape from (4,) to (5,): "
        "webtorch.mark_dynamic(x, 0) and webtorch.mark_dynamic(y, 0) before the call lets one program serve every size",
        "",
    ),
    "how an argument lies": (
        _other_layout,
        "argument `x` changed strides from contiguous to (1, 4); "
        "argument `x` changed memory from its own to a part of another tensor's",
        "",
    ),
    "the mode": (_mode, "`model.training` was True and is False", ""),
    "a default that an object now overrides": (_number, "`settings` has got 'scale'", ""),
    "a number": (_flag, "`settings.log` was True and is False", ""),
    "an option": (
        _option,
        "option `optimizer.param_groups[0]['weight_decay']` is 0.5 and was 0: 0 or not is another program",
        "",
    ),
    "a set": (_members, "the set `seen` holds other items", ""),
    "what takes gradients": (_frozen, "a Linear has other parameters, or other hooks", ""),
    # The optimizer does not have the new layer's parameters, so that nothing empties their gradients.
    "a layer": (
        _layer,
        "`model.2` is another Linear",
        "`model.2.bias.grad` was None, and is there",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_reason_of_a_capture_names_what_changed(what: str) -> None:
    change, expected, then = CHANGES[what]
    program = Program()
    assert program.run() == "the first call"
    assert program.run() == ""
    change(program)
    assert program.run() == expected
    assert program.run() == then


def test_arguments_that_are_values_of_python() -> None:
    program = Program()
    program.run(tag="a")
    assert program.run(tag="b") == (
        "argument `tag` changed from 'a' to 'b': as a float or a tensor it may change freely"
    )
    assert program.run() == "argument `tag` is gone"


def test_numbers_are_told_of_where_they_decide() -> None:
    @webtorch.compile
    def f(x: Any, a: float) -> Any:
        return x * 2 if a > 0.5 else x * 3

    x = webtorch.ones(4)
    for a in (1.0, 0.25, 0.25, 1.0):
        f(x, a)
    decided = ", which decides what is computed: a tensor may change freely"
    assert reasons(f) == [
        "the first call",
        "argument `a` changed from 1.0 to 0.25" + decided,
        "its program was dropped when a number was found to decide what is computed",
    ]


def test_what_is_around_the_call_is_told_of() -> None:
    step = webtorch.compile(lambda x: x * 2)
    x = webtorch.ones(4)
    step(x)
    with webtorch.no_grad():
        step(x)
    assert reasons(step)[-1] == "torch.is_grad_enabled() changed from True to False"
    with webtorch.autocast("cpu", webtorch.bfloat16):
        step(x)
    assert reasons(step)[-1] == "autocast changed from () to (('cpu', torch.bfloat16),)"


def test_arguments_that_share_memory_are_told_of() -> None:
    step = webtorch.compile(lambda x, y: x + y)
    x, y = webtorch.ones(4), webtorch.ones(4)
    step(x, y)
    step(x, x)
    assert reasons(step)[-1] == "which arguments share memory changed from [] to [('x', 'y')]"


def test_a_step_that_is_captured_at_every_call_says_why_and_how_to_mend_it() -> None:
    """A user pads each batch to its longest sentence, and wonders why no step is fast."""
    model = nn.Embedding(32, 8)

    @webtorch.compile
    def step(tokens: Any) -> Any:
        return model(tokens).square().mean()

    lengths = (9, 7, 12, 8)
    for n in lengths:
        step(webtorch.zeros(2, n, dtype=webtorch.long))
    told_of = step.explain().compilations
    assert [c.number for c in told_of] == [1, 2, 3, 4]
    advice = ": webtorch.mark_dynamic(tokens, 1) before the call lets one program serve every size"
    assert [c.reason for c in told_of] == [
        "the first call",
        "argument `tokens` changed shape from (2, 9) to (2, 7)" + advice,
        "argument `tokens` changed shape from (2, 7) to (2, 12)" + advice,
        "argument `tokens` changed shape from (2, 12) to (2, 8)" + advice,
    ]
    # The advice helps: one capture more serves every length, and each new one is only planned.
    for n in (*lengths, 5):
        tokens = webtorch.zeros(2, n, dtype=webtorch.long)
        webtorch.mark_dynamic(tokens, 1)
        step(tokens)
    later = reasons(step)[len(lengths) :]
    planned = "the marked dimensions have a new size, {}: planned from the form for all sizes"
    assert later[1:] == [planned.format(n) for n in (7, 12, 8, 5)]


def test_a_program_that_was_dropped_says_so() -> None:
    step = webtorch.compile(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (*range(1, 18), 1):
            step(webtorch.ones(n))
    assert reasons(step)[-1] == "its program was dropped: a function keeps 16"


def test_calls_that_run_as_usual_are_told_of() -> None:
    results: list[Any] = []

    @webtorch.compile
    def step(x: Any) -> None:
        results.append(x * 2)

    step(webtorch.ones(3))
    step(webtorch.ones(3))
    with pytest.warns(UserWarning, match="runs as usual"):
        step(webtorch.ones(3))
    step(webtorch.ones(3))
    why = "it adds what it computed to results"
    assert [c.text for c in step.compilations] == [
        f"ran as usual: {why}", f"ran as usual: {why}", f"ran as usual: {why}, and so will calls like it"
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match=f"its calls run as usual, as {why}"):
        step.explain()


def test_lazy_runs_tell_what_differs_from_the_last_of_their_form() -> None:
    def run(n: int) -> list[str]:
        # The log remembers only so many.
        before = {id(c): c for c in webtorch.debug.compilations()}
        (webtorch.ones(n, 7).sin() * 5).sum(0).tolist()
        return [c.reason for c in webtorch.debug.compilations() if id(c) not in before]

    assert run(3) == ["the first graph of its form"]
    assert run(3) == []
    (reason,) = run(4)
    assert _plain(reason) == (
        "from the last graph of its form to this one, sin (test_explain.py:N) has shape (3, 7) and then (4, 7)"
    )


def test_the_log_is_one_for_all_caches() -> None:
    step = webtorch.compile(lambda x: x * 2.5)
    step(webtorch.ones(11)).tolist()
    (webtorch.ones(11).cos() - 2).tolist()
    one, two = webtorch.debug.compilations()[-2:]
    assert one is step.compilations[-1]
    assert str(one).startswith("webtorch.compile: <lambda>: program 1 (1 step, ")
    assert str(two).startswith("lazy runs: on cpu: program ")


EXPLAINED = """\
step on no device: 3 steps
compiled
  program 1 (3 steps, T ms): the first call
steps, and why they are not one
  0  matmul_1x4x6x8_relu  test_explain.py:N  h = (x @ w).relu()
  1  sum                  test_explain.py:N  return h.sum(0), h @ w.t()
       not with 0: what follows a product's sums in their registers is element by element, and sum is not
  2  matmul_1x4x8x6       test_explain.py:N  return h.sum(0), h @ w.t()
       not with 0: matmul reads its operands from memory
memory
  peak 568 B: 320 B of inputs, 152 B of new outputs, 96 B in between
  most values are held at step 2 of 3: 568 B
       192 B  input      float32[48]         w
       128 B  input      float32[32]         x
       128 B  output     float32[32]         matmul_1x4x8x6  test_explain.py:N
        96 B  temporary  float32[24]         matmul_1x4x6x8_relu  test_explain.py:N
        24 B  output     float32[6]          sum  test_explain.py:N"""


def _plain(text: str) -> str:
    """Return an explanation without times, folders and line numbers."""
    text = re.sub(r"\d+ ms", "T ms", text)
    return re.sub(r"(?:/\S*/)?test_explain\.py:\d+", "test_explain.py:N", text)


def test_an_explanation_is_text_for_people() -> None:
    def step(x: Any, w: Any) -> Any:
        h = (x @ w).relu()
        return h.sum(0), h @ w.t()

    compiled = webtorch.compile(step, device="meta")
    compiled(webtorch.ones(4, 8), webtorch.ones(8, 6))
    explained = compiled.explain()
    assert _plain(str(explained)) == EXPLAINED
    assert explained.why_apart(2, 0) == "matmul reads its operands from memory"
    assert explained.why_apart(0, 2) == "matmul reads its operands from memory"
    assert explained.why_apart(2, 1) == ""
    assert explained.backward is None


def _standard(t: Any) -> Any:
    return (t - t.mean(1, keepdim=True)) / (t.square().mean(1, keepdim=True) + 1).sqrt()


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (lambda t: (t * 2 + 1).sum(), "mul_add_sum"),
        (lambda t: t.exp().exp().double(), "exp_exp"),
        (lambda t: t.double(), "cast"),
        (lambda t: t.half(), "cast"),
        (lambda t: F.gelu(t @ t + 1), "matmul_1x4x4x4_add_gelu_erf"),
        (_standard, "square_sum_div_add_sqrt_and_4_more"),
    ],
)
def test_a_kernel_is_named_for_all_that_it_computes(f: Callable[..., Any], name: str) -> None:
    compiled = webtorch.compile(f, device="meta")
    compiled(webtorch.ones(4, 4, device="meta"))
    assert [r.name for r in compiled.program().routines] == [name]


def test_the_backward_pass_is_explained_too() -> None:
    @webtorch.compile
    def loss(x: Any, w: Any) -> Any:
        return (x @ w).relu().sum()

    w = webtorch.ones(8, 4, requires_grad=True)
    value = loss(webtorch.ones(4, 8), w)
    # Before it has run, and as it is then.
    backward = loss.explain().backward
    value.backward()
    assert backward is not None
    assert loss.explain().backward == backward
    assert backward.program.routines[-1].name == "matmul_1x8x4x4"
    assert [h.name for h in backward.memory.buffers if h.role == "input"] == [
        "x", "saved value 0", "gradient of result 0"
    ]  # fmt: skip
    assert "the backward pass of test_the_backward_pass_is_explained_too.loss on cpu" in str(
        loss.explain()
    ) or ("the backward pass of loss on cpu" in str(loss.explain()))


def test_a_compiled_module_explains_itself() -> None:
    module = webtorch.compile(nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="nothing has been captured yet"):
        module.explain()
    module(webtorch.ones(1, 3))
    assert "matmul" in str(module.explain())
    assert len(module.compilations) == 1


def test_differences_of_inputs() -> None:
    before = [Input("x", {"shape": (4,), "dtype": "float32"}), Input("y", {"value": 1})]
    now = [Input("x", {"shape": (4,), "dtype": "int64"}), Input("z", {"value": 2})]
    assert changes(before, now) == [
        "argument `x` changed dtype from float32 to int64", "argument `z` is new: 2", "argument `y` is gone"
    ]  # fmt: skip
    assert changes(now, now) == []
    assert told(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"


DEBUGGED = """
import webtorch
step = webtorch.compile(lambda x, w: (x @ w).sum(0))
for n in (2, 3):
    step(webtorch.ones(n, 4), webtorch.ones(4, 5)).tolist()
"""


def test_debug_prints_the_same_sentences(tmp_path: Path) -> None:
    def run(level: int) -> str:
        out = subprocess.run(
            [sys.executable, "-c", DEBUGGED], capture_output=True, text=True, check=True, cwd=Path.cwd(),
            env={**os.environ, "WEBTORCH_DEBUG": str(level)},
        )  # fmt: skip
        return out.stderr

    first, second = run(1), run(2)
    sentence = "): argument `x` changed shape from (2, 4) to (3, 4): webtorch.mark_dynamic(x, 0) before the call"
    apart = "step 1 apart from step 0 (routine): matmul is a routine of its own"
    assert sentence in first
    assert sentence in second
    assert apart not in first
    assert apart in second
