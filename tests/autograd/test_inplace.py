"""In-place operations, views and saved tensors against PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same, tensor

pytestmark = pytest.mark.covers("A22")


def test_in_place_on_a_leaf_or_a_view_of_it_is_refused() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        with t.no_grad():
            x.add_(1)
        return (
            error(lambda: x.add_(1)),
            error(lambda: x[0].mul_(2)),
            error(lambda: x.__setitem__(0, 1.0)),
            x,
        )

    same(program)


def test_in_place_results_have_the_right_gradient() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0, -3.0]), tensor(t, [2.0, 0.5, 1.5])
        y = x * 2
        y.mul_(w)
        y += w
        y.clamp_(max=2.0)
        y.exp_()
        y.sum().backward()
        return y, x.grad, w.grad, y._version, x._version

    same(program)


def test_a_saved_tensor_that_was_overwritten_raises() -> None:
    def program(t: Any) -> Any:
        out = []
        for spoil in (
            lambda y: y.add_(1),
            lambda y: y.zero_(),
            lambda y: y[0].fill_(5),
            lambda y: y.detach().mul_(2),
        ):
            x = tensor(t, [1.0, 2.0])
            y = x * 3
            z = (y * y).sum()
            spoil(y)
            out.append((error(z.backward) or "").split(":")[:2])
        return out

    found = same(program)
    assert "modified by an inplace operation" in found[0][1]


def test_the_message_names_shape_and_versions() -> None:
    x = webtorch.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"\[2\].*is at version 1; expected version 0") as caught:
        y.sum().backward()
    assert "clone()" in str(caught.value)


WRITTEN: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "result": lambda t, y: (y.exp(), None),
    "result of a user's function": lambda t, y: (t.nn.functional.softmax(y, 0), None),
    "operand": lambda t, y: (y, y * y),
    "operand of an overload": lambda t, y: ((m := t.stack([y, y]).mean(0)), m * m),
    "view": lambda t, y: ((v := y[:1]), v * v),
    "leaf": lambda t, y: ((w := t.ones(2)), y * w),
}


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("detects", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_the_message_names_what_made_the_tensor(kind: str, detects: bool) -> None:
    found = []
    for t in (torch, webtorch):
        with t.autograd.set_detect_anomaly(detects):
            written, loss = WRITTEN[kind](t, tensor(t, [1.0, 2.0]) * 3)
            written.add_(1)
            with pytest.raises(RuntimeError) as caught:
                (written if loss is None else loss).sum().backward()
        found.append(str(caught.value))
    assert (
        found[1].removesuffix(
            " Use an out-of-place operation, or clone() the tensor before it is overwritten."
        )
        == found[0]
    )


def test_what_backward_does_not_need_may_be_overwritten() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        y = x + 3
        z = (y * 2).sum()
        y.zero_()
        h = x.relu()
        h2 = h * 1
        h2.mul_(4)
        (z + h2.sum()).backward()
        return x.grad, y

    same(program)


def test_a_result_saved_for_backward_may_not_be_overwritten() -> None:
    def program(t: Any) -> Any:
        out = []
        for f in ("exp", "sigmoid", "tanh", "sqrt", "relu", "sin", "log", "abs"):
            x = tensor(t, [1.0, 2.0])
            y = getattr(x, f)()
            y.mul_(2)
            message = error(y.sum().backward)
            out.append((f, message is None, x.grad))
        return out

    same(program)


def test_writing_through_a_view_changes_the_base_and_its_gradient() -> None:
    def program(t: Any) -> Any:
        x, v = tensor(t, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tensor(t, [10.0, 20.0])
        base = x * 1
        column = base[:, 1]
        column.mul_(v)
        column.add_(v)
        base[0, 0] = v[0] * v[1]
        (base * base).sum().backward()
        return base, column, x.grad, v.grad, base._version, column._version

    same(program)


def test_a_view_follows_what_is_written_to_its_base() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0, 3.0, 4.0]), tensor(t, [5.0, 6.0, 7.0, 8.0])
        base = x * 1
        front, back = base[:2], base[2:]
        rows = base.view(2, 2)
        base.mul_(w)
        first = (front * 2).sum() + (rows[1] * 3).sum()
        back.add_(front)
        (first + (rows.t() * back).sum()).backward()
        return front, back, rows, x.grad, w.grad

    same(program)


def test_views_of_views_and_transposed_views() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), tensor(t, [[2.0, 3.0], [4.0, 5.0]])
        base = x.clone()
        inner = base.t()[1:].unsqueeze(0)
        inner.mul_(w)
        inner.squeeze(0)[0].sin_()
        (base**3).sum().backward()
        return base, x.grad, w.grad

    same(program)


def test_assignment_of_all_kinds() -> None:
    def program(t: Any) -> Any:
        x, v, s = tensor(t, [[1.0, 2.0], [3.0, 4.0]]), tensor(t, [7.0, 8.0]), tensor(t, 2.0)
        y = x * 1
        y[0] = v
        y[:, 1] = s
        y[1, 0] *= s
        z = x * 2
        z[t.tensor([[True, False], [False, True]])] = v
        z[t.tensor([0, 1]), t.tensor([1, 0])] = v * 3
        z[z > 20] = s
        (y.sum() * 2 + (z * z).sum()).backward()
        return y, z, x.grad, v.grad, s.grad

    same(program)


def test_a_leaf_without_gradient_becomes_part_of_the_graph_by_a_write() -> None:
    def program(t: Any) -> Any:
        buffer, x = t.zeros(3, dtype=t.float64), tensor(t, [1.0, 2.0])
        view = buffer[1:]
        view.copy_(x * 2)
        flags = (buffer.requires_grad, view.requires_grad, buffer.is_leaf, view.is_leaf)
        buffer.mul_(3)
        (buffer * buffer).sum().backward()
        return flags, x.grad, buffer

    same(program)


def test_copy_from_a_leaf_and_overwriting_everything() -> None:
    def program(t: Any) -> Any:
        x, w = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0])
        y = x * 2
        y.copy_(w)
        y.mul_(2)
        y.sum().backward()
        z = x * 5
        z.zero_()
        z.fill_(3.0)
        gradient = t.zeros_like(x) if x.grad is None else x.grad
        z.sum().backward()
        return gradient, w.grad, z, z.requires_grad, x.grad

    same(program)


def test_writes_between_forward_and_backward_on_unrelated_parts_still_count() -> None:
    """The version belongs to the storage: PyTorch is as strict."""

    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0, 3.0])
        y = x * 1
        z = (y[:2] ** 2).sum()
        y[2] = 9.0
        return (error(z.backward) or "no error").split(":")[0]

    same(program)


def test_expanded_tensors_cannot_be_written() -> None:
    def program(t: Any) -> Any:
        return error(lambda: t.zeros(1, dtype=t.float64).expand(3).add_(1))

    same(program)


def test_an_in_place_op_may_not_widen_shape_or_dtype() -> None:
    def program(t: Any) -> Any:
        x = t.zeros(2, dtype=t.int64)
        return (
            error(lambda: x.add_(1.5)),
            error(lambda: x.add_(t.zeros(3, 2, dtype=t.int64))) is not None,
            x.add_(True),
        )

    same(program)


def test_second_derivative_through_an_in_place_op() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [0.4, 1.3])
        y = x.sin()
        y.mul_(x)
        y[0] = x[1] * x[0]
        (g,) = t.autograd.grad((y**2).sum(), x, create_graph=True)
        return g, t.autograd.grad(g.sum(), x)

    same(program)


def test_writing_through_data_is_not_counted() -> None:
    """What is saved is then the new value, as in PyTorch; writing through detach() is an error."""

    def program(t: Any) -> Any:
        x = tensor(t, [1.0, 2.0])
        y = (x * x).sum()
        part = x.data[1:]
        x.data.mul_(2)
        part.add_(1)
        versions = x._version, part._version, x.data._version, x.detach()._version
        y.backward()
        return x.detach(), x.grad, versions

    same(program)
    x = webtorch.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    x.detach()[0] = 3
    assert x._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_tensor_with_new_data_keeps_its_count() -> None:
    def program(t: Any) -> Any:
        x, y = t.ones(3), t.zeros(3)
        y.add_(1)
        x.data = y
        before = x._version, y._version
        x.add_(1)
        return before, x._version, y._version, y

    same(program)


@pytest.mark.parametrize(
    "write",
    [
        lambda t, x: x.add_(1),
        lambda t, x: x.zero_(),
        lambda t, x: x.copy_(t.ones(3)),
        lambda t, x: x.__setitem__(0, 1),
        lambda t, x: x[1].mul_(2),
        lambda t, x: x.view(3, 1).neg_(),
        lambda t, x: t.add(t.ones(3), 1, out=x),
        lambda t, x: x.normal_(),
        lambda t, x: x._version,
    ],
)
def test_inference_tensors_are_not_written_outside(write: Any) -> None:
    for t in (webtorch, __import__("torch")):
        with t.inference_mode():
            x = t.ones(3)
            x.add_(1)
        assert x.is_inference() and x[0].is_inference() and x.detach().is_inference()
        with pytest.raises(RuntimeError, match=r"nference tensor"):
            write(t, x)
        with t.no_grad(), pytest.raises(RuntimeError, match=r"nference tensor"):
            write(t, x)
        x.clone().add_(1)


def test_views_made_in_inference_mode_stay_normal_tensors() -> None:
    def program(t: Any) -> Any:
        x = t.ones(3)
        with t.inference_mode():
            part = x[0]
            x.add_(1)
        part.add_(1)
        return x, part.is_inference(), x._version

    same(program)


def test_no_grad_writes_to_a_parameter_leave_it_a_leaf() -> None:
    def program(t: Any) -> Any:
        w = tensor(t, [1.0, 2.0])
        for _ in range(3):
            loss = ((w * 3 - 1) ** 2).sum()
            loss.backward()
            with t.no_grad():
                w -= 0.01 * w.grad
                w.grad = None
        return w, w.is_leaf, w._version

    same(program)


def test_an_expanded_tensor_may_be_filled() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [[1.0], [2.0]], grad=False)
        rows = x.expand(2, 3)
        rows.fill_(4.0)
        return x, rows, rows.zero_(), x, error(lambda: rows.add_(1))

    same(program)


def test_what_is_wholly_overwritten_has_a_gradient_of_zeros() -> None:
    def program(t: Any) -> Any:
        found = []
        writes = (
            lambda x, new: x.copy_(new * 2),
            lambda x, new: x.__setitem__(slice(None), new * 2),
            lambda x, new: x.__setitem__(..., new),
            lambda x, new: x.fill_(new[0]),
        )
        for write in writes:
            old, new = tensor(t, [1.0, 2.0]), tensor(t, [3.0, 4.0])
            x = old * 1
            write(x, new)
            x.sum().backward()
            found += [old.grad, new.grad]
        return found

    same(program)


def test_max_and_min_need_no_values_for_their_gradient() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [[1.0, 5.0, 5.0], [4.0, 2.0, 0.5]])
        y = x * 1
        top, low = y.max(1), y.min(0, keepdim=True)
        y.add_(1)
        (top.values.sum() + (low.values * 2).sum()).backward()
        return x.grad, top.indices, low.indices

    same(program)


def test_the_cotangent_of_an_overwritten_view_may_be_a_view_itself() -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
        y = x * 1
        y[:, -1] = y.sum()
        y.sum().backward()  # one element, expanded

        z = tensor(t, [[1.0, 2.0], [3.0, 4.0]])
        part = z * 1
        part[0] = part[1] * 2
        part.relu()
        (t.cat([z * 3, part])[1:] * tensor(t, [[1.0], [2.0], [3.0]])).sum().backward()  # a part
        return x.grad, z.grad

    same(program)


def test_a_view_that_is_a_leaf_is_called_a_view() -> None:
    def program(t: Any) -> Any:
        x = t.arange(4.0, dtype=t.float64).reshape(2, 2).requires_grad_()
        return error(lambda: x.add_(1)), error(lambda: x[0].add_(1))

    same(program)


def test_what_backward_needs_may_be_overwritten_where_that_is_allowed() -> None:
    def program(t: Any) -> Any:
        with t.autograd.graph.allow_mutation_on_saved_tensors():
            start = t.ones(2, 3, requires_grad=True)
            x, w = start * 1.5, t.full((3,), 2.0, requires_grad=True)
            out = (x**2 * w).sum() + x.exp().sum()
            x.mul_(7)
            with t.no_grad():
                w.add_(5)
            kept = x.exp()
            kept.zero_()
            out = out + x.sum()
            out.backward()
        return start.grad, w.grad, x.detach()

    for mine, theirs in zip(program(webtorch), program(torch), strict=True):
        webtorch.testing.assert_close(mine, webtorch.tensor(theirs.tolist()))


def test_what_allows_overwriting_tells_what_it_keeps_and_is_not_nested() -> None:
    def program(t: Any) -> Any:
        allow, found = t.autograd.graph.allow_mutation_on_saved_tensors, []
        with allow() as held:
            x = t.ones(2, requires_grad=True).clone()
            a, b = x**2, x**2
            found.append((len(held.tid_to_weakhandle), len(held.cloned)))
            x.sin_()
            c = (x**2).sum()
            found.append(len(held.cloned))
            x.sin_()
            found.append(len(held.cloned))
            del a, b
            found.append(len(held.cloned))
            c.backward(retain_graph=True)
            found.append(error(lambda: allow().__enter__()))
            held.clear()
            found.append(error(lambda: c.backward()))
        with allow():
            y = t.ones(2, requires_grad=True)
            out = (y**2).sum()
        found.append(error(lambda: out.backward()))
        with allow():
            found.append(error(lambda: out.backward()))
        return found

    same(program)


# Forms in place, and what is given to each beside the part of x that it writes.
OVERLAPS = {
    "add_": lambda lib, x: x[1:].add_(x[:9]),
    "iadd": lambda lib, x: x[1:].__iadd__(x[:9]),
    "a 0-d part": lambda lib, x: x.mul_(x[0]),
    "transposed": lambda lib, x: x[:4].view(2, 2).add_(x[:4].view(2, 2).t()),
    "addcmul_": lambda lib, x: x[1:].addcmul_(x[:9], x[:9]),
    "clamp_": lambda lib, x: x[1:].clamp_(x[:9]),
    "copy_": lambda lib, x: x[1:].copy_(x[:9]),
    "setitem": lambda lib, x: x.__setitem__(slice(1, None), x[:9]),
    "scatter_": lambda lib, x: x[1:].scatter_(0, lib.tensor([0, 1]), x[:2]),
    "index_add_": lambda lib, x: x[1:].index_add_(0, lib.tensor([0, 1]), x[:2]),
    "itself": lambda lib, x: x.add_(x),
    "the same part": lambda lib, x: x[1:].add_(x[1:]),
    "parts with gaps": lambda lib, x: x[1::2].add_(x[:9:2]),
    "a value of its own": lambda lib, x: x.fill_(x[3]),
    "one element to all": lambda lib, x: x.__setitem__(slice(None), x[3]),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_part_of_what_is_overwritten_is_refused_as_an_operand_where_pytorch_does(
    name: str,
) -> None:
    said = []
    for lib in (torch, webtorch):
        x = lib.arange(10.0)
        message = error(functools.partial(OVERLAPS[name], lib, x))
        said.append(x.tolist() if message is None else message)
    assert said[0] == said[1]


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, 2, 3, 1.7])
def test_a_power_may_be_written_before_its_backward_pass(exponent: float) -> None:
    def program(t: Any) -> Any:
        x = tensor(t, [0.3, 2.0])
        y = x**exponent
        total = y.sum()
        y.detach().zero_()
        total.backward()
        return x.grad, error(lambda: t.autograd.grad((x.exp() ** exponent).sum(), x))

    same(program)


def test_a_tensor_that_gets_other_data_goes_on_counting() -> None:
    # What was saved of it, and what lies where it lay, counts with it.
    def program(t: Any) -> Any:
        found = []
        for same_memory in (True, False):
            x = tensor(t, [1.0, 2.0])
            y, view = (x * x).sum(), x.detach()
            if same_memory:
                x.data -= 0.5
            else:
                x.data = x.data - 0.5
            versions = [x._version, view._version]
            with t.no_grad():
                x.add_(1)
            versions += [x._version, view._version]
            view.mul_(2)
            found.append(([*versions, x._version, view._version], error(y.backward), x, view))
        return found

    same(program)
