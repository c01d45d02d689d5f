"""Forward mode as users open it: what make_dual shares, and what a write reaches."""

from __future__ import annotations

from typing import Any

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
