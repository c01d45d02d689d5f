"""webtorch.utils.checkpoint and saved_tensors_hooks, against PyTorch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch.utils.checkpoint

import webtorch
from tests.autograd.both import error, same, tensor
from webtorch.tensors.storage import Storage

pytestmark = pytest.mark.filterwarnings("ignore:torch.utils.checkpoint:UserWarning")
BOTH_FORMS = pytest.mark.parametrize("reentrant", [True, False])


def checkpoint(t: Any, *args: Any, **kwargs: Any) -> Any:
    module = torch.utils.checkpoint if t is torch else webtorch.utils.checkpoint
    return module.checkpoint(*args, **kwargs)


@BOTH_FORMS
def test_gradients_are_the_same_as_without(reentrant: bool) -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [[1.0, 2.0], [3.0, 4.0]]), tensor(t, [[0.1, -0.2], [0.3, 0.4]])
        calls = []

        def part(h: Any, factor: float) -> Any:
            calls.append(t.is_grad_enabled())
            return ((h @ w).tanh() * factor).sin(), h.sum()

        h, total = checkpoint(t, part, x * 2, 0.7, use_reentrant=reentrant)
        h, _ = checkpoint(t, part, h, 1.3, use_reentrant=reentrant)
        ((h * h).sum() + total).backward()
        return h, x.grad, w.grad, len(calls), calls[2:]

    same(program)


def test_gradients_of_everything_else_with_the_non_reentrant_form() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0], False), tensor(t, [0.5, 0.7])

        def part(h: Any, *, scale: Any) -> dict[str, Any]:
            return {"y": (h * w).exp() * scale}

        s = tensor(t, [2.0, 3.0])
        y = checkpoint(t, part, x, use_reentrant=False, scale=s)["y"]
        first = t.autograd.grad(y.sum(), [w, s], create_graph=True)
        second = t.autograd.grad(first[0].sum() + first[1].sum(), [w, s])
        y = checkpoint(t, part, x, use_reentrant=False, scale=s)["y"].sum()
        y.backward(retain_graph=True)
        y.backward()
        return first, second, w.grad, s.grad

    same(program)


def test_nested_parts() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [0.3, 0.6])

        def inner(h: Any) -> Any:
            return (h * h).sin()

        def outer(h: Any) -> Any:
            return checkpoint(t, inner, h.exp(), use_reentrant=False) * h

        y = checkpoint(t, outer, x, use_reentrant=False)
        (y * y).sum().backward()
        return y, x.grad

    same(program)


@BOTH_FORMS
def test_random_numbers_are_drawn_again(reentrant: bool, device: str) -> None:
    webtorch.manual_seed(11)
    x = webtorch.ones(64, device=device, requires_grad=True)

    def part(h: Any) -> Any:
        return webtorch.nn.functional.dropout(h * h, 0.5) * h

    y = webtorch.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)
    after = webtorch.rand(3, device=device).tolist()
    y.sum().backward()
    # d(m x^3)/dx at x = 1 is 3 m = 3 y: only with the mask of forward.
    assert x.grad.tolist() == (y * 3).tolist()
    assert {0.0, 2.0} == set(y.tolist())
    webtorch.manual_seed(11)
    webtorch.rand(64, device=device)
    assert webtorch.rand(3, device=device).tolist() == after


def test_the_generator_goes_on_where_it_was() -> None:
    webtorch.manual_seed(3)
    x = webtorch.ones(4, requires_grad=True)
    y = webtorch.utils.checkpoint.checkpoint(lambda h: h * webtorch.rand(4), x, use_reentrant=False)
    before = webtorch.get_rng_state().tolist()
    y.sum().backward()
    assert webtorch.get_rng_state().tolist() == before


@BOTH_FORMS
def test_sequential(reentrant: bool) -> None:
    def program(t: Any) -> Any:
        module = torch.utils.checkpoint if t is torch else webtorch.utils.checkpoint
        x = tensor(t, [0.1, 0.2])
        # Five in two segments: the last takes what does not divide.
        steps = [
            lambda h: h.sin() + 1, lambda h: h * h, lambda h: h.exp(), lambda h: h / 3,
            lambda h: h.cos(),
        ]  # fmt: skip
        y = module.checkpoint_sequential(steps, 2, x, use_reentrant=reentrant)
        y.sum().backward()
        return y, x.grad

    same(program)


def test_misuse_is_named() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0])

        def part(h: Any) -> Any:
            return h.sin()

        y = checkpoint(t, part, x, use_reentrant=True)
        return (
            error(lambda: t.autograd.grad(y.sum(), x)),
            error(lambda: checkpoint(t, part, x, use_reentrant=True, other=1)),
            error(lambda: checkpoint(t, part, x, use_reentrant=False, determinism_check="maybe")),
        )

    found = same(program)
    assert "incompatible with .grad()" in found[0]


def test_a_part_that_does_something_else_the_second_time_is_named() -> None:
    def program(t: Any) -> Any:
        def run(change: Any, **options: Any) -> Any:
            state = {"first": True}
            x = tensor(t, [1.0, 2.0])

            def part(h: Any) -> Any:
                first, state["first"] = state["first"], False
                return h.sin().sum() if first else change(h)

            y = checkpoint(t, part, x, use_reentrant=False, **options)
            return error(y.backward)

        return (
            run(lambda h: h.sum()),
            run(lambda h: h[:1].sin().sum()),
            run(lambda h: h.sin().exp().sum(), early_stop=False),
            run(lambda h: h.sin().exp().sum()),
        )

    same(program)


def test_contexts_for_both_computations() -> None:
    def program(t: Any) -> Any:
        seen: list[str] = []

        @contextlib.contextmanager
        def note(name: str) -> Any:
            seen.append(f"enter {name}")
            yield
            seen.append(f"exit {name}")

        x = tensor(t, [1.0])
        y = checkpoint(
            t,
            lambda h: h.sin(),
            x,
            use_reentrant=False,
            early_stop=False,
            context_fn=lambda: (note("first"), note("second")),
        )
        y.sum().backward()
        return seen

    same(program)


def test_without_gradients_a_part_just_runs() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        with t.no_grad():
            a = checkpoint(t, lambda h: h.sin(), x, use_reentrant=False)
            b = checkpoint(t, lambda h: h.sin(), x, use_reentrant=True)
        return a, b

    same(program)


def test_values_of_forward_are_let_go(device: str) -> None:
    """Between forward and backward only the parts' inputs are in memory."""
    w = webtorch.full((64, 64), 0.01, device=device, requires_grad=True)
    x = webtorch.ones(64, 64, device=device)

    def part(h: Any) -> Any:
        for _ in range(6):
            h = (h @ w).tanh()
        return h

    def held(run: Any) -> int:
        webtorch.synchronize()
        y = run(x)
        webtorch.synchronize()
        live = sum(s.elements == x.numel() for s in Storage.live()) - 2
        y.sum().backward()
        w.grad = None
        return live

    def checkpointed(h: Any) -> Any:
        return webtorch.utils.checkpoint.checkpoint(part, h, use_reentrant=False)

    def reentrant(h: Any) -> Any:
        return webtorch.utils.checkpoint.checkpoint(
            part, h.clone().requires_grad_(), use_reentrant=True
        )

    assert held(part) == 6
    assert held(checkpointed) == 1
    # The result, and the clone that is the part's input.
    assert held(reentrant) == 2


def test_the_second_computation_is_not_merged_with_the_first() -> None:
    """In one program for forward and backward, memory is saved only if the values are computed twice."""

    def products(run: Any) -> int:
        w = webtorch.full((16, 16), 0.01, requires_grad=True)
        x = webtorch.ones(16, 16)

        @webtorch.compile
        def step(x: Any) -> Any:
            (g,) = webtorch.autograd.grad(run(x, w).sum(), w)
            return g

        first, second = step(x).tolist(), step(x).tolist()
        assert first == second
        return len(step.program().steps)

    def part(h: Any, w: Any) -> Any:
        return ((h @ w).tanh() @ w).tanh()

    plain = products(part)
    again = products(
        lambda x, w: webtorch.utils.checkpoint.checkpoint(part, x, w, use_reentrant=False)
    )
    assert again > plain


def test_saved_tensors_can_be_packed() -> None:
    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0, 2.0]), []

        def pack(saved: Any) -> Any:
            seen.append(("pack", saved.tolist(), t.is_grad_enabled()))
            return saved.tolist()

        def unpack(packed: Any) -> Any:
            seen.append(("unpack", packed))
            return tensor(t, packed, False)

        with t.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = x.sin()
        z = y * y
        (g,) = t.autograd.grad(z.sum(), x, create_graph=True)
        (h,) = t.autograd.grad(g.sum(), x)
        return seen, g, h

    same(program)


def test_what_a_part_is_given_is_packed_by_the_hooks_outside() -> None:
    """`save_on_cpu` around checkpointed layers, which keep only what they were given."""

    def program(t: Any) -> Any:
        x, seen = tensor(t, [1.0, 2.0]), []

        def pack(saved: Any) -> Any:
            seen.append(("pack", saved.tolist()))
            return saved.detach().clone()

        def unpack(packed: Any) -> Any:
            seen.append(("unpack", packed.tolist()))
            return packed

        y = x * 3
        with t.autograd.graph.saved_tensors_hooks(pack, unpack):
            z = t.utils.checkpoint.checkpoint(
                lambda a, k: a.exp().sin() * k, y, 2.0, use_reentrant=False
            )
        z.sum().backward()
        return seen, x.grad

    same(program)


def test_saved_tensors_can_wait_on_the_cpu(device: str) -> None:
    x = webtorch.tensor([1.0, 2.0], device=device, requires_grad=True)
    with webtorch.autograd.graph.save_on_cpu():
        y = (x * x).exp()
    y.sum().backward()
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (expected * expected).exp().sum().backward()
    assert x.grad.tolist() == pytest.approx(expected.grad.tolist(), rel=1e-5)


def test_what_a_part_is_given_is_saved_as_it_is() -> None:
    """Unless it needs a gradient: then the second computation has one of its own."""

    def program(t: Any) -> Any:
        seen = []

        class Passing(t.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                ctx.save_for_backward(y)
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.extend(ctx.saved_tensors)
                return g, None

        a, b = tensor(t, 1.0), tensor(t, 2.0, False)
        checkpoint(t, Passing.apply, a, b, use_reentrant=False).backward()
        return a.grad, seen[0] is b

    assert same(program)[1]


def _selective(t: Any) -> Any:
    """torch.utils.checkpoint's selective forms, and `torch.ops.aten`: PyTorch's, and those under `webtorch run`."""
    if t is torch:
        return torch.utils.checkpoint, torch.ops.aten
    from webtorch.as_torch.names import checkpoint_parts

    return checkpoint_parts, checkpoint_parts.aten


@pytest.mark.parametrize("choice", ["list", "save", "offload", "recompute", "booleans"])
def test_a_policy_says_which_results_are_kept(choice: str) -> None:
    def program(t: Any) -> Any:
        parts, aten = _selective(t)
        x, w = tensor(t, [[1.0, 2.0], [3.0, 4.0]]), tensor(t, [[0.1, -0.2], [0.3, 0.4]])
        asked, calls = [], []

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append((str(op), context.is_recompute, tuple(context.op_output.shape)))
            policies = parts.CheckpointPolicy
            return {
                "save": policies.PREFER_SAVE,
                "offload": policies.MUST_CPU_OFFLOAD,
                "recompute": policies.MUST_RECOMPUTE,
                "booleans": op is aten.mm.default,
            }[choice]

        def part(h: Any) -> Any:
            calls.append(1)
            return ((h @ w).tanh() @ w).sin()

        chosen = [aten.mm.default] if choice == "list" else policy
        for _ in range(3):
            contexts = lambda: parts.create_selective_checkpoint_contexts(chosen)  # noqa: E731
            y = checkpoint(t, part, x * 2, use_reentrant=False, context_fn=contexts)
            (y * y).sum().backward()
        return y, x.grad, w.grad, len(calls), asked

    same(program)


def test_what_a_selective_checkpoint_refuses() -> None:
    def program(t: Any) -> Any:
        parts, aten = _selective(t)
        x, make = tensor(t, [1.0, 2.0]), parts.create_selective_checkpoint_contexts
        y = checkpoint(
            t, lambda h: h.sin().cos(), x, use_reentrant=False, context_fn=lambda: make([aten.sin.default])
        ).sum()  # fmt: skip
        y.backward(retain_graph=True)
        kept = []

        def written(h: Any) -> Any:
            kept.append(h.sin())
            return kept[-1].cos()

        z = checkpoint(
            t, written, x, use_reentrant=False, context_fn=lambda: make([aten.sin.default])
        ).sum()  # fmt: skip
        with t.no_grad():
            kept[0].add_(1.0)
        return [
            str(error(call))[:60]
            for call in (y.backward, z.backward, lambda: make([aten.sin]), lambda: make(3))
        ]

    same(program)
