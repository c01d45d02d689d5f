"""Forward mode as users open it: what make_dual shares, and what a write reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same, tensor


def test_a_write_to_a_dual_tensor_is_one_to_its_tangent() -> None:
    def program(t: Any) -> Any:
        ad = t.autograd.forward_ad
        x, v = tensor(t, [1.0, 2.0], False), tensor(t, [1.0, 3.0], False)
        with ad.dual_level():
            dual = ad.make_dual(x, v)
            dual *= 2
            primal, tangent = ad.unpack_dual(dual)
            first = tangent is v, v.clone(), ad.unpack_dual(x)[1] is None
            primal *= 2
            tangent *= 2
            again = ad.unpack_dual(dual)
            return first, x, v, again.primal, again.tangent

    same(program)


def test_a_tangent_that_lies_otherwise_is_copied() -> None:
    def program(t: Any) -> Any:
        ad = t.autograd.forward_ad
        found: list[Any] = []
        v = tensor(t, [[1.0, 2.0], [3.0, 4.0]], False)
        apart = tensor(t, [1.0, 2.0, 3.0], False)[:2]
        for x, given in (
            (t.zeros_like(v), v), (t.zeros_like(v).t(), v), (apart, v[0].clone()), (apart, v[0]),
            (t.zeros_like(v[:0]), v[2:]), (v[:0], v[2:]),
        ):  # fmt: skip
            with ad.dual_level():
                dual = ad.make_dual(x, given)
                found += [ad.unpack_dual(dual).tangent is given, ad.unpack_dual(dual * 2).tangent]
        return found

    same(program)


def test_what_has_no_derivative_says_so() -> None:
    def program(t: Any) -> Any:
        ad = t.autograd.forward_ad
        x = tensor(t, [1.0], False)
        with ad.dual_level():
            dual = ad.make_dual(x, x.clone())
            return error(lambda: t.igamma(dual, dual)), error(lambda: t.igammac(dual, x))

    same(program)


def test_zeros_that_meet_have_no_second_derivative_of_their_product() -> None:
    def program(t: Any) -> Any:
        x, index = tensor(t, [2.0, 3.0]), t.tensor([0, 0, 1])
        found: list[Any] = []
        for values in ([0.0, 1.5, 2.0], [0.0, 0.0, 2.0]):
            src = tensor(t, values)
            out = t.scatter_reduce(x, 0, index, src, "prod")
            found += t.autograd.grad(out.sum(), (x, src), retain_graph=True)
            found.append(
                error(lambda o=out, s=src: t.autograd.grad(o.sum(), (x, s), create_graph=True))
            )  # type: ignore[misc]
            weight = tensor(t, [1.0, 1.0])
            found.append(error(lambda o=out, s=src, w=weight: t.autograd.grad(o, (x, s), w)))  # type: ignore[misc]
        return found

    same(program)


def test_what_is_cut_off_has_no_tangent() -> None:
    def program(t: Any) -> Any:
        ad = t.autograd.forward_ad
        x, plain = tensor(t, [1.0, 2.0], False), tensor(t, [3.0, 4.0], False)
        with ad.dual_level():
            dual = ad.make_dual(x, t.ones_like(x))
            view = plain.detach()
            view += dual
            same = dual.data_ptr() == x.data_ptr(), dual.detach().data_ptr() == x.data_ptr()
            copy = dual.clone()
            copy.detach_()
            return (
                [ad.unpack_dual(y)[1] for y in (plain, view, dual.detach(), copy * 2)],
                plain,
                same,
            )

    same(program)


def test_running_statistics_have_no_tangents() -> None:
    for lib in (torch, webtorch):
        x, mean, variance = lib.ones(3, 2), lib.zeros(2), lib.ones(2)
        forward, norm = lib.autograd.forward_ad, lib.nn.functional.batch_norm
        with forward.dual_level():
            dual, moved = forward.make_dual(x, x), forward.make_dual(mean, mean)
            assert norm(x, moved, variance).shape == norm(dual, mean, variance).shape == (3, 2)
            with pytest.raises(RuntimeError, match="not differentiable wrt running_mean"):
                norm(dual, moved, variance)


def test_a_tangent_that_is_copied_is_one_tensor_of_all_of_the_memory() -> None:
    """Views of the memory have views of it, within `vmap` and outside."""
    for lib, vmap in ((torch, torch._vmap_internals._vmap), (webtorch, webtorch.vmap)):
        forward = lib.autograd.forward_ad

        def run(tangent: Any, turned: bool, lib: Any = lib, forward: Any = forward) -> Any:
            base = lib.zeros(2, 2)
            view = base.t() if turned else base.view_as(base)
            with forward.dual_level():
                view.copy_(forward.make_dual(lib.zeros(2, 2), tangent))
                return tuple([forward.unpack_dual(x)[1] for x in (view, base)])

        tangents = lib.arange(8.0).reshape(2, 2, 2)
        of_view, of_base = vmap(lambda t, run=run: run(t, False))(tangents)
        assert of_view is of_base
        assert not of_view._is_view()
        of_view, of_base = vmap(lambda t, run=run: run(t, True))(tangents)
        assert of_view._base is of_base
        assert of_view.tolist() == tangents.tolist()
        assert of_base.tolist() == tangents.transpose(1, 2).tolist()
