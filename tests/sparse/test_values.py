"""What operations with sparse tensors give, and their gradients, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import webtorch
from tests.sparse.programs import CASES, MATRICES, Program, close, made

UNARY = """abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p neg rad2deg relu sgn sign sin sinh
    sqrt tan tanh trunc isnan isinf signbit nan_to_num square""".split()  # noqa: SIM905

# Of any shape.
PROGRAMS: dict[str, Program] = {
    "itself": lambda t, s, d: s,
    "coalesce": lambda t, s, d: s.coalesce(),
    "to_dense": lambda t, s, d: s.to_dense(),
    "values": lambda t, s, d: s.coalesce().values(),
    "clone": lambda t, s, d: s.clone(),
    "times two": lambda t, s, d: 2 * s * 1.5,
    "times a tensor": lambda t, s, d: s * d,
    "dense times sparse": lambda t, s, d: d * s,
    "over three": lambda t, s, d: s / 3,
    "neg": lambda t, s, d: -s,
    "squared": lambda t, s, d: s**2,
    "product": lambda t, s, d: s * s.detach(),
    "sum of both": lambda t, s, d: s + s.coalesce() * 3,
    "difference": lambda t, s, d: t.sub(s, s * 2, alpha=3),
    "added": lambda t, s, d: d + s,
    "add of alpha": lambda t, s, d: t.add(d, s, alpha=2),
    "sum": lambda t, s, d: s.sum(),
    "sparse.sum": lambda t, s, d: t.sparse.sum(s, 0),
    "sparse.sum last": lambda t, s, d: t.sparse.sum(s, -1),
    "sparse.sum all": lambda t, s, d: t.sparse.sum(s, tuple(range(s.dim()))),
    "softmax": lambda t, s, d: t.sparse.softmax(s, 0),
    "softmax last": lambda t, s, d: t.sparse.softmax(s, s.dim() - 1),
    "log_softmax": lambda t, s, d: t.sparse.log_softmax(s, 0),
    "mask": lambda t, s, d: d.sparse_mask(s.detach().coalesce()),
    "round trip": lambda t, s, d: (d * (d > 0)).to_sparse(),
    "sparse_dim 1": lambda t, s, d: d.to_sparse(1),
    "relu and sum": lambda t, s, d: t.sparse.sum(s.relu()),
    "twice in a sum": lambda t, s, d: s.to_dense() * 2 + (s * s.detach()).to_dense(),
}
# What PyTorch differentiates of a sparse tensor in no other way than by its values.
WITHOUT_GRADIENT: dict[str, Program] = {
    "unsqueezed": lambda t, s, d: s.unsqueeze(0),
    "unsqueezed last": lambda t, s, d: s.unsqueeze(-1),
    "norm": lambda t, s, d: s.norm(),
    "norm of 1": lambda t, s, d: s.norm(1),
    "row": lambda t, s, d: s[0],
    "element": lambda t, s, d: s[-1, 0],
    "column": lambda t, s, d: s.select(1, 0),
    "index_select": lambda t, s, d: s.index_select(0, t.tensor([1, 0, 1], device=s.device)),
    "index_select 1": lambda t, s, d: s.index_select(1, t.tensor([1, 1], device=s.device)),
    "joined": lambda t, s, d: t.cat([s, s * 2]),
    "stacked": lambda t, s, d: t.stack([s, s * 2]),
    "any": lambda t, s, d: s.any(),
    "floor": lambda t, s, d: s // 0.3,
    "isnan": lambda t, s, d: s.isnan(),
    "doubled": lambda t, s, d: s.to(t.float32).to(d.dtype),
    "zeros": lambda t, s, d: t.zeros_like(s),
    "unbound": lambda t, s, d: sum(x.sum() for x in s),
    "in place": lambda t, s, d: s.clone().mul_(2).add_(s).zero_().add_(s),
    "dense in place": lambda t, s, d: d.clone().add_(s, alpha=-0.5),
    "mask of sparse": lambda t, s, d: s.sparse_mask(s.detach().coalesce()),
    **{n: (lambda t, s, d, n=n: getattr(s / 8, n)()) for n in UNARY if n != "square"},
}
PRODUCTS: dict[str, Program] = {
    "mm": lambda t, s, d: s @ d.t(),
    "sparse.mm": lambda t, s, d: t.sparse.mm(s, d.t()),
    "mm from the left": lambda t, s, d: d.t() @ s,
    "turned": lambda t, s, d: t.mm(s.t(), d),
    "two sparse": lambda t, s, d: t.sparse.mm(s, s.detach().t()),
    "mv": lambda t, s, d: s.mv(d[0]),
    "vector": lambda t, s, d: s @ d[0],
    "addmm": lambda t, s, d: t.addmm(d @ d.t(), s, d.t(), beta=0.5, alpha=2),
    "sparse.addmm": lambda t, s, d: t.sparse.addmm(d @ d.t(), s, d.t(), beta=0.5, alpha=2),
    "bmm": lambda t, s, d: t.bmm(s.unsqueeze(0), d.t().unsqueeze(0)),
    "linear": lambda t, s, d: t.nn.functional.linear(d, s),
    "transposed": lambda t, s, d: s.transpose(0, 1),
    "permuted": lambda t, s, d: s.permute(1, 0),
}
COMPRESSED: dict[str, Program] = {
    "itself": lambda t, s, d: s,
    "to_dense": lambda t, s, d: s.to_dense(),
    "to COO": lambda t, s, d: s.to_sparse(),
    "other layout": lambda t, s, d: s.to_sparse_csr(),
    "mm": lambda t, s, d: s @ d.t(),
    "mv": lambda t, s, d: s @ d[0],
    "times two": lambda t, s, d: s * 2,
    "turned": lambda t, s, d: s.t(),
    "sum": lambda t, s, d: s.sum(),
}
CSR: dict[str, Program] = {
    "sparse.mm": lambda t, s, d: t.sparse.mm(s, d.t()),
    "abs": lambda t, s, d: s.abs(),
    "tanh": lambda t, s, d: s.tanh(),
    "values": lambda t, s, d: s.values(),
    "times a tensor": lambda t, s, d: s * d,
    "added": lambda t, s, d: s + s,
    "sampled": lambda t, s, d: t.sparse.sampled_addmm(s, d, d.t() @ d, beta=0.5, alpha=2.0),
}


def outcome(
    lib: Any, name: str, program: Program, case: str, device: str, grad: bool, layout: str
) -> Any:
    """Return what a program gives, and the gradients of the values and of the dense tensor; or its error."""
    v, s, d = made(lib, CASES[case], device, layout, grad)
    out = program(lib, s, d)
    if not grad or not out.requires_grad:
        return out, None, None
    whole = out.to_dense()
    weight = lib.arange(1, whole.numel() + 1, dtype=whole.dtype, device=whole.device)
    (whole * weight.reshape(whole.shape) * 0.1).sum().backward()
    return out, v.grad, d.grad


def compare(
    name: str, program: Program, case: str, device: str, grad: bool, layout: str = "coo"
) -> None:
    """Run a program on both libraries."""
    try:
        theirs = outcome(torch, name, program, case, device, grad, layout)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        if "gradient" in str(error) or "not implemented" in str(error).lower():
            pytest.skip(f"PyTorch has it not: {error}")
        with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
            outcome(webtorch, name, program, case, device, grad, layout)
        return
    ours = outcome(webtorch, name, program, case, device, grad, layout)
    close(ours[0], theirs[0], device)
    for mine, wanted in zip(ours[1:], theirs[1:], strict=True):
        assert (mine is None) == (wanted is None)
        if wanted is not None:
            # PyTorch's gradient of a dense factor is sparse.
            close(mine, wanted.to_dense(), device)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operation_gives_what_pytorch_gives(name: str, case: str, device: str) -> None:
    compare(name, PROGRAMS[name], case, device, grad=True)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_values_are_those_of_pytorch(name: str, case: str, device: str) -> None:
    compare(name, WITHOUT_GRADIENT[name], case, device, grad=False)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", MATRICES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_and_its_gradients_are_those_of_pytorch(
    name: str, case: str, device: str
) -> None:
    compare(name, PRODUCTS[name], case, device, grad=True)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("case", MATRICES)
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_matrices_give_what_pytorch_gives(
    name: str, case: str, layout: str, device: str
) -> None:
    compare(name, COMPRESSED[name], case, device, grad=False, layout=layout)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("case", MATRICES)
@pytest.mark.parametrize("name", CSR)
def test_rows_compressed_give_what_pytorch_gives(name: str, case: str, device: str) -> None:
    compare(name, CSR[name], case, device, grad=False, layout="csr")


WRITTEN: dict[str, Program] = {
    "out": lambda t, s, d: t.sin(s, out=t.zeros(3, 3).to_sparse()),
    "out of another type": lambda t, s, d: t.sin(s, out=t.zeros(3, 3).double().to_sparse()),
    "out of integers": lambda t, s, d: t.sin(s, out=t.zeros(3, 3).int().to_sparse()),
    "in place of integers": lambda t, s, d: d.int().to_sparse().tan_(),
    "in place of rows": lambda t, s, d: d.int().to_sparse_csr().asinh_(),
    "neg in place": lambda t, s, d: d.int().to_sparse_csr().neg_(),
    "alpha": lambda t, s, d: t.add(d.to_sparse_csr(), d, alpha=2.5),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_sparse_tensors_are_written_to(name: str) -> None:
    found: list[Any] = []
    for t in (torch, webtorch):
        d = t.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [-1.0, 0.0, 0.0]])
        try:
            out = WRITTEN[name](t, d.to_sparse(), d).to_dense()
            found.append(
                (
                    str(out.dtype).rpartition(".")[2],
                    [[round(v, 5) for v in r] for r in out.tolist()],
                )
            )
        except RuntimeError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_parts_of_sparse_tensors_are_checked() -> None:
    from webtorch.as_torch.names import top

    for lib, t in ((torch, torch), (webtorch, top)):
        i, v = lib.tensor([[0, 1], [1, 0]]), lib.tensor([1.0, 2.0])
        t._validate_sparse_coo_tensor_args(i, v, (2, 2))
        t._validate_sparse_csr_tensor_args(lib.tensor([0, 1, 2]), lib.tensor([1, 0]), v, (2, 2))
        starts, places = lib.tensor([0, 1, 2]), lib.tensor([1, 2])
        t._validate_compressed_sparse_indices(False, starts, places, 2, 3, 2)
        with pytest.raises(RuntimeError, match="0 <= col_indices < ncols"):
            t._validate_compressed_sparse_indices(True, starts, places, 2, 2, 2)
        with pytest.raises(RuntimeError, match="size is inconsistent with"):
            t._validate_sparse_coo_tensor_args(i, v, (1, 2))
        with pytest.raises(RuntimeError):
            t._validate_sparse_compressed_tensor_args(
                lib.tensor([0, 1, 3]), lib.tensor([1, 0]), v, (2, 2), lib.sparse_csc
            )


@pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor")
def test_old_names() -> None:
    def seen(lib: Any) -> list[Any]:
        places, values = lib.tensor([[0, 1], [1, 2]]), lib.tensor([1.0, 2.0])
        a = lib.sparse.FloatTensor(places, values, lib.Size([3, 3]))
        b = lib.arange(9.0).view(3, 3)
        kinds = lib.sparse.FloatTensor, lib.sparse.DoubleTensor, lib.FloatTensor
        return [
            a.to_dense().tolist(),
            a.type(),
            [isinstance(x, kind) for kind in kinds for x in (a, b)][:-2],
            tuple(lib.sparse.LongTensor(places, values.long()).shape),
            [tuple(lib.sparse.IntTensor(*size).shape) for size in ((), (2, 3))],
            lib.dsmm(a, b).tolist(),
            lib.spmm(a, b).tolist(),
            lib.hsmm(a, b).to_dense().tolist(),
        ]

    assert seen(webtorch) == seen(torch)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 3, 1), (2, 1, 1)])
def test_products_of_sparse_tensors_broadcast_in_dense_dims(shape: tuple[int, ...]) -> None:
    found = []
    for lib in (torch, webtorch):
        a = (lib.arange(24.0).reshape(2, 3, 4) % 5).to_sparse(1)
        b = lib.ones(shape)
        b[1] = 0
        b = (b * 3).to_sparse(1)
        for left, right in ((a, b), (b, a)):
            out = left * right
            found.append((tuple(out.shape), out.sparse_dim(), out.to_dense().tolist()))
        with pytest.raises(RuntimeError, match="sparse"):
            a.to_dense().to_sparse() * b.to_dense().to_sparse()
    assert found[:2] == found[2:]
