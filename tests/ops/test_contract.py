"""Matrix products and einsum against PyTorch: values, layout, first and second gradients, errors."""

from __future__ import annotations

import warnings

import pytest
import torch

import webtorch
from tests.ops.parity import WEBTORCH, array, compare, same_error, tensor

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed + len(shape)), dtype=torch.float64
    )


SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((6, 5, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 5, 2, 3), (6, 5, 3, 4)),
    ((6, 5, 2, 3), (6, 1, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((2, 1, 4, 2, 3), (2, 5, 1, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 1, 3), (1, 3, 1)),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_broadcasts_batches(a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    compare(lambda lib, x, y: lib.t.matmul(x, y), [randn(*a), randn(*b, seed=9)], device)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 3), (3, 4)),
        ((2, 0), (0, 4)),
        ((2, 3), (3, 0)),
        ((0, 2, 3), (0, 3, 4)),
        ((2, 0), (0,)),
        ((0,), (0,)),
        ((5, 2, 0), (0, 4)),
    ],
)
def test_matmul_of_nothing_is_zero(a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    compare(lambda lib, x, y: x @ y, [randn(*a), randn(*b)], device, second=False)


@pytest.mark.one_in(2)
def test_matmul_reads_transposed_sliced_and_expanded_operands(device: str) -> None:
    compare(lambda lib, x, y: x.t() @ y.t(), [randn(3, 2), randn(4, 3)], device)
    compare(lambda lib, x, y: x[1:, ::2] @ y[:, 1], [randn(3, 6), randn(3, 4)], device)
    compare(lambda lib, x, y: x.expand(4, 2, 3) @ y, [randn(2, 3), randn(4, 3, 2)], device)
    compare(lambda lib, x, y: x.transpose(0, 2) @ y, [randn(3, 2, 5), randn(3, 4)], device)
    compare(
        lambda lib, x, y: x.transpose(1, 2) @ y.transpose(-2, -1),
        [randn(2, 5, 3, 4), randn(2, 1, 6, 4)],
        device,
    )


def test_matmul_of_integers(device: str) -> None:
    x, y = (
        torch.arange(6, dtype=torch.int32).reshape(2, 3),
        torch.arange(12, dtype=torch.int32).reshape(3, 4) - 5,
    )
    compare(lambda lib, x, y: x @ y, [x, y], device, gradients=False)
    compare(lambda lib, x, y: lib.t.dot(x[0], y[:, 0]), [x, y], device, gradients=False)


def test_products_of_16_bit_floats_add_up_in_32_bits(device: str) -> None:
    x = torch.full((4096,), 0.01, dtype=torch.float16)
    expected = float((x.double() * x.double()).sum())
    a = tensor(x, device)
    for made in (WEBTORCH.t.dot(a, a), (a.reshape(1, -1) @ a.reshape(-1, 1)).reshape(())):
        assert abs(float(made.to(webtorch.float32).item()) - expected) < 1e-3


CALLS = {
    "mm": (lambda lib, a, b: lib.t.mm(a, b), [(2, 3), (3, 4)]),
    "bmm": (lambda lib, a, b: lib.t.bmm(a, b), [(5, 2, 3), (5, 3, 4)]),
    "mv": (lambda lib, a, b: a.mv(b), [(2, 3), (3,)]),
    "dot": (lambda lib, a, b: a.dot(b), [(3,), (3,)]),
    "vdot": (lambda lib, a, b: lib.t.vdot(a, b), [(3,), (3,)]),
    "inner": (lambda lib, a, b: lib.t.inner(a, b), [(2, 4, 3), (5, 3)]),
    "inner of numbers": (lambda lib, a, b: lib.t.inner(a, b), [(), (5, 3)]),
    "outer": (lambda lib, a, b: lib.t.outer(a, b), [(2,), (3,)]),
    "ger": (lambda lib, a, b: a.ger(b), [(2,), (3,)]),
    "addmm": (
        lambda lib, c, a, b: lib.t.addmm(c, a, b, beta=0.5, alpha=2.0),
        [(4,), (2, 3), (3, 4)],
    ),
    "addmm plain": (lambda lib, c, a, b: c.addmm(a, b), [(2, 4), (2, 3), (3, 4)]),
    "addmv": (lambda lib, c, a, b: lib.t.addmv(c, a, b, alpha=3), [(2,), (2, 3), (3,)]),
    "baddbmm": (
        lambda lib, c, a, b: lib.t.baddbmm(c, a, b, beta=2),
        [(1, 2, 4), (5, 2, 3), (5, 3, 4)],
    ),
    "addbmm": (
        lambda lib, c, a, b: lib.t.addbmm(c, a, b, beta=2, alpha=0.5),
        [(2, 4), (5, 2, 3), (5, 3, 4)],
    ),
    "addr": (lambda lib, c, a, b: lib.t.addr(c, a, b, alpha=0.5), [(2, 3), (2,), (3,)]),
    "linear": (lambda lib, x, w, b: lib.F.linear(x, w, b), [(6, 5, 3), (4, 3), (4,)]),
    "linear 1d": (lambda lib, x, w, b: lib.F.linear(x, w, b), [(3,), (4, 3), (4,)]),
    "linear no bias": (lambda lib, x, w: lib.F.linear(x, w), [(5, 3), (4, 3)]),
    "linear weight 1d": (lambda lib, x, w: lib.F.linear(x, w), [(5, 3), (3,)]),
    "bilinear": (
        lambda lib, x, y, w, b: lib.F.bilinear(x, y, w, b),
        [(6, 5, 3), (6, 5, 2), (4, 3, 2), (4,)],
    ),
    "tensordot": (lambda lib, a, b: lib.t.tensordot(a, b, dims=2), [(2, 3, 4), (3, 4, 5)]),
    "tensordot lists": (
        lambda lib, a, b: lib.t.tensordot(a, b, dims=([1, 0], [0, 2])),
        [(2, 3, 4), (3, 5, 2)],
    ),
    "tensordot 0": (lambda lib, a, b: lib.t.tensordot(a, b, dims=0), [(2, 3), (4,)]),
    "tensordot of size 1": (
        lambda lib, a, b: lib.t.tensordot(a, b, dims=([1], [0])),
        [(2, 1), (3, 4)],
    ),
    "kron": (lambda lib, a, b: lib.t.kron(a, b), [(2, 3), (4, 1, 2)]),
    "chain_matmul": (
        lambda lib, a, b, c: lib.linalg.multi_dot([a, b, c]),
        [(2, 5), (5, 1), (1, 4)],
    ),
    "multi_dot of vectors": (
        lambda lib, a, b, c: lib.linalg.multi_dot([a, b, c]),
        [(5,), (5, 3), (3,)],
    ),
    "cross": (lambda lib, a, b: lib.t.cross(a, b, dim=1), [(2, 3, 4), (2, 3, 4)]),
    "linalg.cross": (lambda lib, a, b: lib.linalg.cross(a, b), [(2, 3), (1, 3)]),
    "vecdot": (lambda lib, a, b: lib.linalg.vecdot(a, b, dim=1), [(2, 3, 4), (2, 3, 4)]),
    "trace": (lambda lib, a: lib.t.trace(a), [(3, 4)]),
    "matrix_power 3": (lambda lib, a: lib.t.matrix_power(a, 3), [(2, 3, 3)]),
    "matrix_power 1": (lambda lib, a: lib.linalg.matrix_power(a, 1), [(3, 3)]),
    "cdist": (lambda lib, a, b: lib.t.cdist(a, b), [(2, 4, 3), (2, 5, 3)]),
    "cdist 1": (lambda lib, a, b: lib.t.cdist(a, b, p=1.0), [(4, 3), (5, 3)]),
    "cdist 3": (lambda lib, a, b: lib.t.cdist(a, b, p=3.0), [(4, 3), (5, 3)]),
    "cdist inf": (lambda lib, a, b: lib.t.cdist(a, b, p=float("inf")), [(4, 3), (5, 3)]),
    "cdist 0": (lambda lib, a, b: lib.t.cdist(a, b, p=0.0) + a.sum() + b.sum(), [(4, 3), (5, 3)]),
}
# PyTorch's own rule has no second derivative for these.
FIRST_ONLY = {"cdist", "cdist 1", "cdist 3", "cdist inf", "cdist 0"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CALLS)
def test_product(name: str, device: str) -> None:
    function, shapes = CALLS[name]
    inputs = [randn(*s, seed=3 * i) for i, s in enumerate(shapes)]
    compare(function, inputs, device, second=name not in FIRST_ONLY)


def test_matrix_power_0_is_the_identity(device: str) -> None:
    compare(lambda lib, a: lib.t.matrix_power(a, 0), [randn(2, 3, 3)], device, gradients=False)


def test_trace_of_integers_is_int64(device: str) -> None:
    compare(
        lambda lib, a: lib.t.trace(a),
        [torch.arange(9, dtype=torch.int32).reshape(3, 3)],
        device,
        gradients=False,
    )


def test_cdist_of_equal_rows_has_a_zero_gradient(device: str) -> None:
    compare(lambda lib, a: lib.t.cdist(a, a), [randn(3, 2)], device, second=False)


def test_beta_0_drops_nan(device: str) -> None:
    x = torch.full((2, 4), float("nan"))
    compare(
        lambda lib, c, a, b: lib.t.addmm(c, a, b, beta=0),
        [x, randn(2, 3), randn(3, 4)],
        device,
        gradients=False,
    )


def test_addmm_in_place(device: str) -> None:
    def run(lib, c, a, b):  # type: ignore[no-untyped-def]
        out = c.clone()
        kept = out.addmm_(a, b, beta=2)
        assert kept is out
        return out

    compare(run, [randn(2, 4), randn(2, 3), randn(3, 4)], device)


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i->", [(3,), (3,)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]),
    ("...ij,jk", [(6, 5, 2, 3), (3, 4)]),
    ("b...,b...->b...", [(2, 3), (2, 4, 3)]),
    ("ijk,jil,kl->il", [(2, 3, 4), (3, 2, 5), (4, 5)]),
    ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ij,kj->ik", [(2, 1), (3, 4)]),
    ("ib,jb->ijb", [(2, 1), (3, 4)]),
    ("iij,jkk->ik", [(2, 2, 3), (3, 4, 4)]),
    ("Aa,aB", [(2, 3), (3, 4)]),
    ("i,->i", [(3,), ()]),
    (" i j , j k -> k i ", [(2, 3), (3, 4)]),
    ("...->...", [(2, 3)]),
    ("ij,jk,kl,lm", [(2, 3), (3, 4), (4, 2), (2, 5)]),
    ("bn,anm,bm->ba", [(2, 5), (3, 5, 4), (2, 4)]),
    ("i...,...i->...", [(3, 2), (2, 3)]),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("equation", "shapes"), EINSUMS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], device: str) -> None:
    inputs = [randn(*s, seed=5 * i) for i, s in enumerate(shapes)]
    compare(lambda lib, *xs: lib.t.einsum(equation, *xs), inputs, device, layout=False)


def test_einsum_without_a_sum_promotes(device: str) -> None:
    small, wide = (
        torch.tensor([[1], [2]], dtype=torch.uint8),
        torch.tensor([[5]], dtype=torch.int16),
    )
    for equation in ("ab,bc->ac", "ab,cb->ac", "ab,cb->"):
        found = webtorch.einsum(equation, *(tensor(x, device) for x in (small, wide)))
        expected = torch.einsum(equation, small, wide)
        assert (str(found.dtype), found.tolist()) == (str(expected.dtype), expected.tolist())


def test_einsum_with_lists_of_subscripts(device: str) -> None:
    compare(
        lambda lib, a, b: lib.t.einsum(a, [0, 1], b, [1, 2], [2, 0]),
        [randn(2, 3), randn(3, 4)],
        device,
        layout=False,
    )
    compare(
        lambda lib, a, b: lib.t.einsum(a, [..., 1], b, [1, 30]),
        [randn(2, 3), randn(3, 4)],
        device,
        layout=False,
    )
    compare(
        lambda lib, a, b: lib.t.einsum("ij,jk", [a, b]),
        [randn(2, 3), randn(3, 4)],
        device,
        layout=False,
    )


ERRORS = {
    "inner sizes": (lambda lib, a: a @ a, [(2, 3)], "Did you mean b.transpose(-2, -1)?"),
    "inner sizes of a vector": (
        lambda lib, a: a @ a[:, 0],
        [(2, 3)],
        "dim -1 of the first is 3, dim -1 of the second is 2",
    ),
    "0d": (
        lambda lib, a: lib.t.matmul(a.sum(), a),
        [(2, 3)],
        "both arguments to matmul need to be at least 1D",
    ),
    "batches": (
        lambda lib, a: a @ a[:2].transpose(1, 2),
        [(3, 2, 4)],
        "Batch sizes must be equal or 1",
    ),
    "types": (
        lambda lib, a: a @ a.t().to(lib_dtype(lib, "float16")),
        [(2, 3)],
        "expected m1 and m2 to have the same dtype",
    ),
    "bool": (lambda lib, a: (a > 0) @ (a > 0).t(), [(2, 3)], "not implemented for 'Bool'"),
    "a number": (lambda lib, a: lib.t.matmul(a, 3), [(2, 3)], "must be Tensor, not int"),
    "mm of 1d": (lambda lib, a: lib.t.mm(a, a[0]), [(2, 3)], "mat2 must be a matrix"),
    "bmm of 2d": (lambda lib, a: lib.t.bmm(a, a), [(2, 3)], "batch1 must be a 3D tensor"),
    "bmm sizes": (lambda lib, a: lib.t.bmm(a, a), [(2, 3, 4)], "[2, 4] but got: [2, 3]"),
    "dot sizes": (lambda lib, a: a[0].dot(a[:, 0]), [(2, 3)], "inconsistent tensor size"),
    "dot of 2d": (lambda lib, a: a.dot(a), [(2, 3)], "1D tensors expected"),
    "mv sizes": (
        lambda lib, a: a.mv(a[:, 0]),
        [(2, 3)],
        "size mismatch, got input (2), mat (2x3), vec (2)",
    ),
    "outer of 2d": (
        lambda lib, a: lib.t.outer(a, a),
        [(2, 3)],
        "Expected 1-D argument self, but got 2-D",
    ),
    "linear sizes": (
        lambda lib, a: lib.F.linear(a, a[:, :2]),
        [(2, 3)],
        "cannot be multiplied (2x3 and 2x2)",
    ),
    "linear bias": (lambda lib, a: lib.F.linear(a, a, a[0]), [(2, 3)], "existing size [3]"),
    "tensordot": (
        lambda lib, a: lib.t.tensordot(a, a, 1),
        [(2, 3)],
        "contracted dimensions need to match",
    ),
    "trace": (lambda lib, a: a[0].trace(), [(2, 3)], "expected a matrix"),
    "cross": (
        lambda lib, a: lib.linalg.cross(a, a, dim=0),
        [(2, 3)],
        "must have length 3. Got 2 and 2",
    ),
    "multi_dot": (
        lambda lib, a: lib.linalg.multi_dot([a]),
        [(2, 3)],
        "at least 2 tensors but got 1",
    ),
    "multi_dot of a vector": (
        lambda lib, a: lib.linalg.multi_dot([a[0], a[0, 0], a[0]]),
        [(2, 3)],
        "tensor 1 must be 2D but got 0D",
    ),
    "multi_dot ends": (
        lambda lib, a: lib.linalg.multi_dot([a[0], a[0, 0]]),
        [(2, 3)],
        "the last tensor must be 1D or 2D",
    ),
    "multi_dot sizes": (
        lambda lib, a: lib.linalg.multi_dot([a, a]),
        [(2, 3)],
        "cannot be multiplied",
    ),
    "cdist": (lambda lib, a: lib.t.cdist(a, a[:, :2]), [(2, 3)], "same number of columns"),
    "addmm": (lambda lib, a: lib.t.addmm(a, a, a.t()), [(2, 3)], "must broadcast to the product"),
    "einsum sizes": (
        lambda lib, a: lib.t.einsum("ij,jk", a, a),
        [(2, 3)],
        "subscript j has size 2 for operand 1",
    ),
    "einsum output": (
        lambda lib, a: lib.t.einsum("ij->im", a),
        [(2, 3)],
        "output subscript m does not appear",
    ),
    "einsum twice": (lambda lib, a: lib.t.einsum("ij->iij", a), [(2, 3)], "appears more than once"),
    "einsum rank": (
        lambda lib, a: lib.t.einsum("ijk", a),
        [(2, 3)],
        "the number of subscripts in the equation (3)",
    ),
    "einsum operands": (
        lambda lib, a: lib.t.einsum("ij", a, a),
        [(2, 3)],
        "more operands were provided",
    ),
}


def lib_dtype(lib: object, name: str) -> object:
    return getattr(webtorch if lib is WEBTORCH else torch, name)


@pytest.mark.parametrize("name", ERRORS)
def test_refusals_name_the_rule(name: str) -> None:
    function, shapes, text = ERRORS[name]
    same_error(function, [randn(*s).float() for s in shapes], "cpu", text)


def test_the_message_of_matmul_says_what_to_do() -> None:
    a, b = tensor(randn(2, 3).float(), "cpu"), tensor(randn(4, 3).float(), "cpu")
    with pytest.raises(RuntimeError) as caught:
        a @ b
    assert str(caught.value) == (
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x3): matmul of (2, 3) and (4, 3), "
        "dim -1 of the first is 3, dim -2 of the second is 4. Did you mean b.transpose(-2, -1)?"
    )


def test_a_broadcast_operand_is_not_written_out(device: str) -> None:
    # (2, 1, 3, 4) heads of keys for (2, 6, 5, 4) queries: a copy for each head would be six times the keys.
    x, y = tensor(randn(2, 6, 5, 4).float(), device), tensor(randn(2, 1, 4, 3).float(), device)
    out = x @ y
    node = out._node()
    seen, stack = [], [node]
    while stack:
        n = stack.pop()
        seen.append(n)
        stack.extend(n.srcs)
    assert all(n.kind in ("view", "matmul", "buffer") for n in seen)
    assert array(out).shape == (2, 6, 5, 3)


def test_a_matrix_overwritten_before_backward_is_refused(device: str) -> None:
    x = tensor(randn(2, 3).float(), device).requires_grad_()
    w = tensor(randn(3, 4).float(), device)
    out = WEBTORCH.t.mm(x, w).sum()
    w.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_bias_of_another_type_is_added_where_pytorch_adds_it() -> None:
    """To the product of an input of three dims that is not row-major; elsewhere it is refused."""
    for lib in (torch, webtorch):
        x, w = lib.ones(2, 3, 4, dtype=lib.float64), lib.ones(5, 4, dtype=lib.float64)
        bias = lib.ones(5, dtype=lib.float16)
        out = lib.nn.functional.linear(x.transpose(0, 1), w, bias)
        assert out.dtype is lib.float64
        assert out.sum().item() == 150
        with pytest.raises(RuntimeError, match="dtype"):
            lib.nn.functional.linear(x, w, bias)


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
def test_a_product_of_no_matrices_is_refused() -> None:
    for lib in (torch, webtorch):
        with pytest.raises(RuntimeError, match=r"chain_matmul\(\): Expected one or more matrices"):
            lib.chain_matmul()


def test_chains_of_products_are_of_matrices() -> None:
    with warnings.catch_warnings():
        # Of an old name, in both.
        warnings.simplefilter("ignore")
        for lib in (torch, webtorch):
            with pytest.raises(RuntimeError, match="Tensor dimension is 1, expected 2 instead"):
                lib.chain_matmul(lib.ones(2, 2), lib.ones(2))
