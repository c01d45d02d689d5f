"""Compressed layouts against PyTorch: blocks (BSR, BSC), batches of matrices, dense dims; places, text, gradients."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from webtorch.aten.parts import aten

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
MATRIX = [[1.0, 0, 0, 2], [0, 0, 0, 0], [0, 3, 4, 0], [0, 0, 0, 5]]
Program = Callable[[Any, Any, Any], Any]

# Of the library, a matrix, and a batch of two.
PROGRAMS: dict[str, Program] = {
    "bsr": lambda t, x, b: x.to_sparse_bsr((2, 2)),
    "bsr of rows": lambda t, x, b: x.to_sparse_bsr((1, 2)),
    "bsc": lambda t, x, b: x.to_sparse_bsc((2, 1)),
    "bsr to bsc": lambda t, x, b: x.to_sparse_bsr((2, 2)).to_sparse_bsc((2, 2)),
    "bsc to bsr": lambda t, x, b: x.to_sparse_bsc((2, 1)).to_sparse_bsr((2, 1)),
    "csr to bsr": lambda t, x, b: x.to_sparse_csr().to_sparse_bsr((2, 2)),
    "csr to csc": lambda t, x, b: x.to_sparse_csr().to_sparse_csc(),
    "coo to bsr": lambda t, x, b: x.to_sparse().to_sparse(layout=t.sparse_bsr, blocksize=(2, 2)),
    "bsr to coo": lambda t, x, b: x.to_sparse_bsr((2, 2)).to_sparse(),
    "batch": lambda t, x, b: b.to_sparse_csr(),
    "batch of columns": lambda t, x, b: b.to_sparse_csc(),
    "batch turned over": lambda t, x, b: b.to_sparse_csr().to_sparse_csc(),
    "batch of blocks": lambda t, x, b: b.to_sparse_bsr((2, 2)),
    "batch of blocks turned over": lambda t, x, b: b.to_sparse_bsr((2, 2)).to_sparse_bsc((2, 2)),
    "batch to dense": lambda t, x, b: b.to_sparse_bsr((2, 2)).to_dense(),
    "batch to coo": lambda t, x, b: b.to_sparse_csc().to_sparse().coalesce(),
    "dense dims": lambda t, x, b: b.permute(1, 2, 0).to_sparse_csr(dense_dim=1),
    "made": lambda t, x, b: t.sparse_bsc_tensor([0, 1, 2], [0, 1], x[:, 0].reshape(2, 2, 1)),
    "made of a batch": lambda t, x, b: t.sparse_csr_tensor([[0, 1, 2], [0, 0, 2]], [[0, 1], [0, 1]], x[:2, :2]),
    "transposed": lambda t, x, b: x.to_sparse_bsr((2, 1)).t(),
    "batch transposed": lambda t, x, b: b.to_sparse_csr().transpose(1, 2),
    "one of a batch": lambda t, x, b: b.to_sparse_bsr((2, 2))[1],
    "row of a batch": lambda t, x, b: b.to_sparse_csr().select(1, 0),
    "times a number": lambda t, x, b: x.to_sparse_bsr((2, 1)) * 2,
    "sin": lambda t, x, b: x.to_sparse_bsr((2, 1)).sin(),
    "mm": lambda t, x, b: x.to_sparse_bsr((2, 2)) @ t.arange(12.0, device=x.device).reshape(4, 3),
    "mv": lambda t, x, b: x.to_sparse_bsr((2, 2)) @ t.arange(4.0, device=x.device),
    "linear": lambda t, x, b: t.nn.functional.linear(x + 1, x.to_sparse_bsr((2, 2))),
    "mask": lambda t, x, b: (x + 1).sparse_mask(x.to_sparse_bsr((2, 2))),
    "mask of a batch": lambda t, x, b: (b + 5).sparse_mask(b.to_sparse_csr()),
    "sum": lambda t, x, b: b.to_sparse_csr().sum(),
    "zeros_like": lambda t, x, b: t.zeros_like(x.to_sparse_bsr((2, 2))),
    "zeros_like of a batch": lambda t, x, b: t.zeros_like(b.to_sparse_csr()),
    "zeros_like in coordinates": lambda t, x, b: t.zeros_like(x.to_sparse_bsr((2, 2)), layout=t.sparse_coo),
    "full_like": lambda t, x, b: t.full_like(x.to_sparse_csr(), 2),
    "clone": lambda t, x, b: x.to_sparse_bsr((2, 2)).clone(),
    "joined along a dense dim": lambda t, x, b: t.cat([b.to_sparse(2), b.to_sparse(2) * 2], 2),
    "wrong blocks": lambda t, x, b: x.to_sparse_bsr((3, 2)),
    "no blocks": lambda t, x, b: x.to_sparse_bsr((0, 2)),
    "three sizes": lambda t, x, b: x.to_sparse_bsr((1, 2, 3)),
    "ragged": lambda t, x, b: t.stack([x, x + 1]).to_sparse_csr(),
    "blocks to rows": lambda t, x, b: x.to_sparse_bsr((2, 2)).to_sparse_csr(),
    "batch to blocks": lambda t, x, b: b.to_sparse_csr().to_sparse_bsr((2, 2)),
    "coordinates of three dims": lambda t, x, b: b.to_sparse().to_sparse_csr(),
    "rows of columns": lambda t, x, b: x.to_sparse_bsc((2, 2)).crow_indices(),
    "too many dense dims": lambda t, x, b: x.to_sparse_csr(dense_dim=1),
}  # fmt: skip


def _made(lib: Any, device: str, grad: bool = False) -> tuple[Any, Any]:
    here: dict[str, Any] = {} if lib is torch else {"device": device}
    x = lib.tensor(MATRIX, **here)
    return x.requires_grad_(grad), lib.stack([x, x.t() * 2]).detach().requires_grad_(grad)


def _shown(out: Any, device: str) -> str:
    """Return the text of a result."""
    text = " ".join(repr(out).split())
    return (
        text.replace(f"device='{device}:0', ", "")
        .replace(f"device='{device}', ", "")
        .replace("ToCopy", "")
    )


def _outcome(name: str, lib: Any, device: str) -> Any:
    try:
        return PROGRAMS[name](lib, *_made(lib, device))
    except RuntimeError as error:
        return str(error)


@pytest.mark.one_in(4, device="webgpu")
@pytest.mark.parametrize("name", PROGRAMS)
def test_places_and_values_are_those_of_pytorch(name: str, device: str) -> None:
    wanted = _outcome(name, torch, "cpu")
    ours = _outcome(name, webtorch, device)
    if isinstance(wanted, str):
        assert ours == wanted
        return
    assert str(ours.layout) == str(wanted.layout)
    if device == "cpu":
        assert _shown(ours, device) == _shown(wanted, device)
    else:
        assert torch.allclose(torch.tensor(ours.to_dense().tolist()), wanted.to_dense())
    if wanted.layout is not torch.strided:
        counts = [(t.sparse_dim(), t.dense_dim(), t._nnz()) for t in (ours, wanted)]
        assert counts[0] == counts[1]


# A function of a matrix and one of a batch, whose gradients are those of the dense function with values kept alone.
GRADIENTS: dict[str, tuple[Program, Program]] = {
    "to_dense": (lambda t, x, b: x.to_sparse_bsr((2, 2)).to_dense(), lambda t, x, b: x * 1),
    "batch": (lambda t, x, b: b.to_sparse_bsc((2, 1)).to_dense(), lambda t, x, b: b * 1),
    "mm": (lambda t, x, b: x.to_sparse_bsr((2, 2)) @ b[0], lambda t, x, b: x @ b[0]),
    "mm of columns": (lambda t, x, b: x.to_sparse_bsc((2, 2)) @ b[0], lambda t, x, b: x @ b[0]),
    "from the left": (lambda t, x, b: b[0] @ x.to_sparse_bsr((1, 2)), lambda t, x, b: b[0] @ x),
    "bmm": (lambda t, x, b: b.to_sparse_csr() @ b.detach(), lambda t, x, b: b @ b.detach()),
    "bmm of blocks": (lambda t, x, b: b.to_sparse_bsr((2, 2)) @ b.detach(), lambda t, x, b: b @ b.detach()),
    "product": (lambda t, x, b: (x.to_sparse_bsr((2, 2)) * b[0]).to_dense(), lambda t, x, b: x * b[0]),
    "sum of both": (lambda t, x, b: (b.to_sparse_csr() + b.to_sparse_csr()).to_dense(), lambda t, x, b: b + b),
    "turned": (lambda t, x, b: x.to_sparse_bsr((2, 1)).t().to_dense(), lambda t, x, b: x.t() * 1),
    "added": (lambda t, x, b: b[0] + x.to_sparse_bsr((2, 2)), lambda t, x, b: b[0] + x),
    "converted": (lambda t, x, b: x.to_sparse_csr().to_sparse_bsr((2, 2)).to_dense(), lambda t, x, b: x * 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_values_have_the_gradients_of_the_dense_function(name: str, device: str) -> None:
    sparse, dense = GRADIENTS[name]
    x, b = _made(webtorch, device, True)
    out = sparse(webtorch, x, b)
    y, c = _made(webtorch, device, True)
    wanted = dense(webtorch, y, c)
    assert webtorch.allclose(out, wanted)
    weight = webtorch.arange(1.0, out.numel() + 1, device=device).reshape(out.shape)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    for mine, theirs, values in ((x, y, MATRIX), (b, c, None)):
        if theirs.grad is None:
            assert mine.grad is None
            continue
        # What is zero and in no block has none.
        kept = mine.grad != 0 if values is not None or "batch" in name or "bmm" in name else None
        if name == "sum of both":
            kept = mine.detach() != 0
        found, whole = mine.grad, theirs.grad
        if kept is not None:
            found, whole = found * kept, whole * kept
        assert webtorch.allclose(found, whole)
        assert webtorch.allclose((found * mine).detach(), (theirs.grad * theirs).detach())


@pytest.mark.parametrize("name", ["bsr", "bsc", "batch", "batch of blocks"])
@pytest.mark.parametrize(("writer", "reader"), [(0, 1), (1, 0), (1, 1)])
def test_files_and_copies(name: str, writer: int, reader: int) -> None:
    libraries = (torch, webtorch)
    saved = PROGRAMS[name](libraries[writer], *_made(libraries[writer], "cpu"))
    file = io.BytesIO()
    libraries[writer].save(saved, file)
    file.seek(0)
    found = libraries[reader].load(file)
    assert _shown(found, "cpu") == _shown(saved, "cpu")
    if writer:
        copies = (copy.deepcopy(saved), copy.copy(saved), pickle.loads(pickle.dumps(saved)))
        assert all(_shown(c, "cpu") == _shown(saved, "cpu") for c in copies)


INVALID: dict[str, Any] = {
    "no dims": ("csr", 0, [0, 1], [1.0, 2.0], (2, 2)),
    "dims of both": ("csr", [[0, 1, 2]], [0, 1], [1.0, 2.0], (2, 2)),
    "dims of values": ("bsr", [0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "size": ("csr", [0, 1, 2], [0, 1], [1.0, 2.0], (2,)),
    "batches": ("csr", [[0, 1, 2]], [[0, 1]], [[1.0, 2.0]], (2, 2, 2)),
    "blocks": ("bsr", [0, 1, 2], [0, 1], [[[1.0, 2.0]], [[1.0, 2.0]]], (2, 3)),
    "rows": ("csr", [0, 1, 2, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "rows of blocks": ("bsc", [0, 1, 2, 2], [0, 1], [[[1.0]], [[2.0]]], (2, 2)),
    "values": ("csr", [0, 1, 2], [0, 1, 1], [1.0, 2.0], (2, 2)),
    "first": ("csr", [1, 1, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "last": ("csc", [0, 1, 3], [0, 1], [1.0, 2.0], (2, 2)),
    "lengths": ("csr", [0, 3, 2], [0, 1], [1.0, 2.0], (2, 2)),
    "place": ("csc", [0, 1, 2], [0, 2], [1.0, 2.0], (2, 2)),
    "order": ("csr", [0, 2, 2], [1, 0], [1.0, 2.0], (2, 2)),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_no_matrix_is_refused_in_the_same_words(name: str) -> None:
    layout, *parts, size = INVALID[name]
    words = []
    for lib in (torch, webtorch):
        make = getattr(lib, f"sparse_{layout}_tensor")
        with pytest.raises(RuntimeError) as error:
            make(*(lib.tensor(p) for p in parts), size, check_invariants=True)
        words.append(str(error.value))
    assert words[0] == words[1]


WRITTEN: dict[str, Program] = {
    "sspaddmm": lambda t, x, b: t.sspaddmm(x.to_sparse(), x.t().to_sparse(), b[1], beta=2, alpha=3),
    "method": lambda t, x, b: x.to_sparse().sspaddmm(x.t().to_sparse(), b[1]),
    "smm": lambda t, x, b: x.to_sparse().smm(b[1]),
    "copy": lambda t, x, b: x.to_sparse_csr().copy_((x * 2).to_sparse_csr()),
    "copy of another layout": lambda t, x, b: x.to_sparse_csr().copy_(x.to_sparse_csc()),
    "copy to dense": lambda t, x, b: x.clone().copy_(x.to_sparse_csr()),
    "copy of dense": lambda t, x, b: x.to_sparse_csr().copy_(x),
    "copy of more": lambda t, x, b: x.to_sparse_csr().copy_((x + 1).to_sparse_csr()),
    "copy of other sizes": lambda t, x, b: x.to_sparse_csr().copy_(x[:2].to_sparse_csr()),
    "column": lambda t, x, b: x.to_sparse_csc().select(1, 3).values(),
    "select_copy": lambda t, x, b: t.select_copy(x.to_sparse_bsr((2, 2)), 0, 2),
    "offsets": lambda t, x, b: t.sparse.spdiags(x[:2], t.tensor([[0, 1]]), (4, 4)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_and_joined(name: str) -> None:
    texts = []
    for lib in (torch, webtorch):
        try:
            texts.append(_shown(WRITTEN[name](lib, *_made(lib, "cpu")), "cpu"))
        except RuntimeError as error:
            texts.append(str(error))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("dim", "index"), [(0, [[1, 0], [2, 2]]), (1, [[3, 3], [1, 0]])])
def test_gather_has_a_sparse_gradient(dim: int, index: Any) -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.tensor(MATRIX, requires_grad=True)
        out = lib.gather(x, dim, lib.tensor(index), sparse_grad=True)
        (out**2 + out).sum().backward()
        found.append((str(x.grad.layout), _shown(x.grad, "cpu"), out.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(("shape", "index"), [((4,), 2), ((), [0, 0]), ((), 0)])
def test_gather_of_scalars_has_a_sparse_gradient(shape: Any, index: Any) -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.full(shape, 3.0).requires_grad_()
        lib.gather(x, 0, lib.tensor(index), sparse_grad=True).sum().backward()
        places = x.grad._indices()
        found.append((tuple(places.shape), places.tolist(), x.grad.to_dense().tolist()))
    assert found[0] == found[1]


def test_sums_of_rows_compressed_have_dense_gradients() -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.tensor(MATRIX).to_sparse_csr().requires_grad_()
        (x.sum() * 2).backward()
        found.append((str(x.grad.layout), x.grad.tolist()))
        y = lib.tensor(MATRIX).to_sparse_csr().requires_grad_()
        (y.sum((0,), keepdim=True).sum() * 3).backward()
        found[-1] += (str(y.grad.layout), y.grad.tolist())
    assert found[0] == found[1]


def test_a_gradient_of_other_sparse_dims_is_taken() -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.tensor(MATRIX).to_sparse().requires_grad_()
        y = x * 2
        y.register_hook(lambda g: (g * 3).to_dense().to_sparse(1))
        y.to_dense().sum().backward()
        found.append(x.grad.to_dense().tolist())
    assert found[0] == found[1]


def test_a_gradient_check_of_no_values_passes() -> None:
    x = webtorch.zeros(2, 3, dtype=webtorch.float64).to_sparse().requires_grad_()
    f = lambda a: webtorch.sparse.softmax(a, 0).to_dense()  # noqa: E731
    assert webtorch.autograd.gradcheck(f, (x,), masked=True)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_gradient_check_of_complex_values_passes(layout: str) -> None:
    x = webtorch.tensor([[1 + 1j, 0], [2j, 3]], dtype=webtorch.complex128)
    x = getattr(x, f"to_sparse_{layout}")().requires_grad_()
    y = webtorch.tensor([[1 - 2j, 1], [0.5j, -1]], dtype=webtorch.complex128, requires_grad=True)
    f = lambda a, b: (a @ b).sum()  # noqa: E731
    assert webtorch.autograd.gradcheck(f, (x, y), masked=True)
    # Not masked, a derivative is also one of the elements that are not there.
    assert webtorch.autograd.gradcheck(lambda a: a.to_dense(masked_grad=False), (x,))
    assert webtorch.autograd.gradcheck(lambda a: a.to_dense(masked_grad=False) ** 2, (x,))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("layout", ["coo", "csr", "bsc"])
def test_gradient_checks_of_sparse_tensors(layout: str, masked: bool) -> None:
    x = webtorch.tensor(MATRIX, dtype=webtorch.float64)
    x = getattr(x, f"to_sparse_{layout}")(*[(2, 2)] * (layout == "bsc")).requires_grad_()
    gradcheck = webtorch.sparse.as_sparse_gradcheck(webtorch.autograd.gradcheck)
    y = webtorch.eye(4, dtype=webtorch.float64)[:, :2].requires_grad_()
    assert gradcheck(lambda a: a * 2, x, masked=masked, fast_mode=True)
    assert gradcheck(lambda a, b: a @ b, (x, y), masked=masked, fast_mode=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(lambda a: a.to_dense() * a.to_dense().detach(), x, masked=masked)


@pytest.mark.parametrize(("layout", "inside"), [("sparse_csr", ()), ("sparse_bsc", (2, 3))])
def test_an_operator_makes_one_of_so_many_places(layout: str, inside: tuple[int, ...]) -> None:
    found = []
    for lib, ops in ((torch, torch.ops.aten), (webtorch, aten)):
        x = ops._sparse_compressed_tensor_with_dims(
            3,
            1,
            (2, 4, 6, 5),
            inside,
            lib.int32,
            dtype=lib.float32,
            layout=getattr(lib, layout),
            device="cpu",
        )
        lines = x.crow_indices() if layout == "sparse_csr" else x.ccol_indices()
        found.append(
            (
                tuple(x.shape),
                tuple(x.values().shape),
                x._nnz(),
                tuple(lines.shape),
                str(lines.dtype)[-5:],
            )
        )
    assert found[0] == found[1]


def test_types_of_places_that_differ_are_named() -> None:
    for lib in (torch, webtorch):
        with pytest.raises(RuntimeError, match="same dtype, bot got Int and Long"):
            lib.sparse_csr_tensor(
                lib.tensor([0, 1], dtype=lib.int32),
                lib.tensor([0]),
                lib.ones(1),
                (1, 1),
                check_invariants=True,
            )
