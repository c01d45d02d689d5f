"""A wrong call raises PyTorch's type of error, and a message that names the operation and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

Call = Callable[[Any], Any]


def _f(lib: Any) -> Any:
    return lib.nn.functional


# name -> (the call, given the library; words that the message must have)
WRONG: dict[str, tuple[Call, tuple[str, ...]]] = {
    # joining
    "cat sizes": (lambda t: t.cat([t.zeros(2, 3), t.zeros(2, 4)]), ("cat", "3", "4")),
    "cat ranks": (lambda t: t.cat([t.zeros(2, 3), t.zeros(2)]), ("cat",)),
    "cat nothing": (lambda t: t.cat([]), ("cat",)),
    "cat dim": (lambda t: t.cat([t.zeros(2), t.zeros(2)], 1), ("Dimension out of range",)),
    "cat number": (lambda t: t.cat([t.zeros(2), 3]), ("cat", "int")),
    "cat tensor": (lambda t: t.cat(t.zeros(2)), ("cat", "Tensor")),
    "cat 0-d": (lambda t: t.cat([t.zeros(()), t.zeros(())]), ("cat", "zero-dimensional")),
    "stack sizes": (lambda t: t.stack([t.zeros(2), t.zeros(3)]), ("stack", "[2]", "[3]")),
    "stack nothing": (lambda t: t.stack([]), ("stack",)),
    "stack dim": (lambda t: t.stack([t.zeros(2)], 3), ("Dimension out of range",)),
    "stack number": (lambda t: t.stack([1, 2]), ("stack", "int")),
    "hstack sizes": (lambda t: t.hstack([t.zeros(2, 3), t.zeros(3, 3)]), ("2", "3")),
    "vstack sizes": (lambda t: t.vstack([t.zeros(2, 3), t.zeros(2, 4)]), ("3", "4")),
    # places and constructors of old
    "complex out": (
        lambda t: t.complex(t.ones(2), t.ones(2), out=t.zeros(2)),
        (
            "Expected object of scalar type ComplexFloat but got scalar type Float for argument 'out'",
        ),
    ),
    "Tensor device": (
        lambda t: t.Tensor(t.ones(1), device="cpu"),
        ("Legacy tensor constructor of the form torch.Tensor(tensor, device=device)",),
    ),
    "new device": (
        lambda t: t.ones(1).new(t.ones(1), device="cpu"),
        ("Legacy tensor new of the form tensor.new(tensor, device=device)",),
    ),
    "softmax": (lambda t: t.softmax(t.ones(2), None), ("softmax", "dim")),
    "log_softmax method": (lambda t: t.ones(2).log_softmax(None), ("log_softmax", "dim")),
    # gradients
    "leaf": (lambda t: t.ones(1, requires_grad=True).add_(1), ("leaf Variable",)),
    "nothing": (lambda t: t.ones(1).sum().backward(), ("element 0 of tensors does not require",)),
    "vector": (lambda t: t.ones(2, requires_grad=True).backward(), ("scalar outputs",)),
    # shapes
    "view size": (lambda t: t.zeros(2, 3).view(4, 2), ("[4, 2]", "6")),
    "view strides": (lambda t: t.zeros(2, 3).t().view(6), ("view", "reshape")),
    "view two unknown": (lambda t: t.zeros(2, 3).view(-1, -1), ("one dimension",)),
    "view text": (lambda t: t.zeros(2, 3).view("a"), ()),
    "reshape size": (lambda t: t.zeros(2, 3).reshape(5), ("[5]", "6")),
    "reshape unknown": (lambda t: t.zeros(2, 3).reshape(4, -1), ("[4, -1]", "6")),
    "reshape negative": (lambda t: t.zeros(2, 3).reshape(-2, 3), ("-2",)),
    "reshape float": (lambda t: t.zeros(4).reshape(2.0, 2), ("reshape",)),
    "reshape list": (lambda t: t.reshape([1, 2], (2,)), ("reshape", "list")),
    "expand size": (lambda t: t.zeros(2, 3).expand(2, 4), ("expand", "4", "3")),
    "expand rank": (lambda t: t.zeros(2, 3).expand(3), ("expand", "[2, 3]")),
    "expand leading": (lambda t: t.zeros(3).expand(-1, 3), ("expand", "-1")),
    "broadcast_to": (lambda t: t.broadcast_to(t.zeros(2, 3), (2, 4)), ("4", "3")),
    "broadcast_tensors": (lambda t: t.broadcast_tensors(t.zeros(2), t.zeros(3)), ("2", "3")),
    "split sum": (lambda t: t.zeros(5).split([2, 2]), ("split", "5", "[2, 2]")),
    "split zero": (lambda t: t.zeros(5).split(0), ("split",)),
    "split negative": (lambda t: t.zeros(5).split(-1), ("split",)),
    "split dim": (lambda t: t.zeros(5).split(2, 1), ("Dimension out of range",)),
    "chunk zero": (lambda t: t.zeros(5).chunk(0), ("chunk", "0")),
    "unflatten": (lambda t: t.zeros(2, 6).unflatten(1, (4, 2)), ("unflatten", "6")),
    "flatten order": (lambda t: t.zeros(2, 3).flatten(1, 0), ("flatten",)),
    "permute short": (lambda t: t.zeros(2, 3).permute(0), ("permute",)),
    "permute twice": (lambda t: t.zeros(2, 3).permute(0, 0), ("permute",)),
    "transpose dim": (lambda t: t.zeros(2, 3).transpose(0, 2), ("Dimension out of range",)),
    "t of 3-d": (lambda t: t.zeros(2, 3, 4).t(), ("t()", "3")),
    "unsqueeze dim": (lambda t: t.zeros(2).unsqueeze(3), ("Dimension out of range",)),
    "squeeze dim": (lambda t: t.zeros(2).squeeze(3), ("Dimension out of range",)),
    "select": (lambda t: t.zeros(2, 3).select(1, 3), ("3",)),
    "narrow long": (lambda t: t.zeros(5).narrow(0, 3, 4), ("3", "4", "5")),
    "narrow negative": (lambda t: t.zeros(5).narrow(0, 0, -1), ("narrow",)),
    "unfold": (lambda t: t.zeros(5).unfold(0, 6, 1), ("6", "5")),
    "unfold step": (lambda t: t.zeros(5).unfold(0, 2, 0), ("step",)),
    "movedim": (lambda t: t.zeros(2, 3).movedim((0, 1), (0,)), ("movedim",)),
    "flip twice": (lambda t: t.zeros(2, 3).flip(0, 0), ("dim",)),
    "roll": (lambda t: t.zeros(3).roll((1, 2), (0,)), ("2", "1")),
    "repeat": (lambda t: t.zeros(2, 3).repeat(2), ("repeat",)),
    "tile negative": (lambda t: t.zeros(2).tile((-1,)), ("-",)),
    "diagonal dims": (lambda t: t.zeros(2, 3).diagonal(0, 0, 0), ("diagonal",)),
    "tril of 1-d": (lambda t: t.tril(t.zeros(3)), ("tril",)),
    "as_strided": (lambda t: t.zeros(4).as_strided((5,), (2,)), ()),
    "repeat_interleave": (
        lambda t: t.zeros(3).repeat_interleave(t.tensor([1, 2])),
        ("repeat", "3"),
    ),
    # elementwise and reductions
    "add shapes": (lambda t: t.zeros(2, 3) + t.zeros(2, 4), ("3", "4")),
    "add nothing": (lambda t: t.zeros(0, 2) + t.zeros(3, 2), ("0", "3", "dimension 0")),
    "add text": (lambda t: t.zeros(2) + "a", ("str",)),
    "add none": (lambda t: t.add(t.zeros(2), None), ("add", "NoneType")),
    "exp list": (lambda t: t.exp([1.0]), ("exp", "list")),
    "in place shape": (lambda t: t.zeros(2).add_(t.zeros(2, 2)), ("add", "[2]", "[2, 2]")),
    "in place type": (lambda t: t.zeros(2, dtype=t.int64).add_(0.5), ("Float", "Long")),
    "bitwise of float": (lambda t: t.zeros(2) & t.zeros(2), ("Float",)),
    "sum dim": (lambda t: t.zeros(2).sum(1), ("Dimension out of range",)),
    "sum twice": (lambda t: t.zeros(2, 2).sum((0, 0)), ("dim",)),
    "mean of int": (lambda t: t.zeros(2, dtype=t.int64).mean(), ("mean", "int64")),
    "max of nothing": (lambda t: t.zeros(0).max(), ("max",)),
    "argmax of nothing": (lambda t: t.zeros(0).argmax(), ("argmax",)),
    "max dim of nothing": (lambda t: t.zeros(0, 2).max(0), ("max",)),
    "median": (lambda t: t.zeros(2).median(2), ("Dimension out of range",)),
    "topk": (lambda t: t.zeros(3).topk(4), ("k",)),
    "kthvalue": (lambda t: t.zeros(3).kthvalue(4), ("k",)),
    "sort dim": (lambda t: t.zeros(3).sort(1), ("Dimension out of range",)),
    "cumsum dim": (lambda t: t.zeros(3).cumsum(1), ("Dimension out of range",)),
    "clamp nothing": (lambda t: t.zeros(3).clamp(), ("clamp",)),
    "where shapes": (
        lambda t: t.where(t.zeros(2, dtype=t.bool), t.zeros(3), t.zeros(3)),
        ("2", "3"),
    ),
    "where condition": (lambda t: t.where(t.zeros(2), 1.0, 2.0), ("where", "condition")),
    "masked_fill": (lambda t: t.zeros(2).masked_fill(t.zeros(2), 1), ("masked_fill", "bool")),
    "lerp": (lambda t: t.lerp(t.zeros(2), t.zeros(3), 0.5), ("2", "3")),
    "item of many": (lambda t: t.zeros(2).item(), ("2",)),
    "bool of many": (lambda t: bool(t.zeros(2)), ("ambiguous",)),
    "int of text": (lambda t: t.zeros(2).sum("a"), ()),
    # products
    "matmul": (lambda t: t.zeros(2, 3) @ t.zeros(4, 5), ("2", "3", "4", "5")),
    "matmul 1-d": (lambda t: t.zeros(3) @ t.zeros(4), ("3", "4")),
    "matmul 0-d": (lambda t: t.zeros(()) @ t.zeros(4), ("matmul",)),
    "matmul types": (lambda t: t.zeros(2, 2) @ t.zeros(2, 2, dtype=t.int64), ("float", "long")),
    "matmul list": (lambda t: t.matmul(t.zeros(2, 2), [1]), ("matmul", "list")),
    "mm of 1-d": (lambda t: t.mm(t.zeros(2), t.zeros(2, 2)), ("mm",)),
    "bmm of 2-d": (lambda t: t.bmm(t.zeros(2, 2), t.zeros(2, 2)), ("bmm",)),
    "bmm batches": (lambda t: t.bmm(t.zeros(2, 2, 2), t.zeros(3, 2, 2)), ("bmm",)),
    "dot": (lambda t: t.dot(t.zeros(2), t.zeros(3)), ("dot", "2", "3")),
    "mv": (lambda t: t.mv(t.zeros(2, 3), t.zeros(2)), ("mv",)),
    "addmm": (lambda t: t.addmm(t.zeros(5), t.zeros(2, 3), t.zeros(3, 4)), ("5", "4")),
    "outer": (lambda t: t.outer(t.zeros(2, 2), t.zeros(2)), ("outer",)),
    "einsum": (lambda t: t.einsum("ij,jk->ik", t.zeros(2, 3), t.zeros(4, 5)), ("einsum",)),
    "einsum rank": (lambda t: t.einsum("ijk->i", t.zeros(2, 3)), ("einsum",)),
    "tensordot": (lambda t: t.tensordot(t.zeros(2, 3), t.zeros(2, 3), 1), ("tensordot",)),
    "linear": (lambda t: _f(t).linear(t.zeros(2, 3), t.zeros(4, 5)), ("3", "4", "5")),
    "linear list": (lambda t: _f(t).linear([1.0], t.zeros(2, 1)), ("linear", "list")),
    "linear bias": (lambda t: _f(t).linear(t.zeros(2, 3), t.zeros(4, 3), t.zeros(5)), ("4", "5")),
    "Linear list": (lambda t: t.nn.Linear(2, 3)([1.0, 2.0]), ("linear", "list")),
    "Linear width": (lambda t: t.nn.Linear(2, 3)(t.zeros(4, 5)), ("4", "5", "2", "3")),
    # layers
    "conv channels": (lambda t: _f(t).conv2d(t.zeros(1, 3, 8, 8), t.zeros(4, 2, 3, 3)), ("3", "2")),
    "conv rank": (lambda t: _f(t).conv2d(t.zeros(8, 8), t.zeros(4, 2, 3, 3)), ("conv2d",)),
    "conv kernel": (lambda t: _f(t).conv2d(t.zeros(1, 2, 2, 2), t.zeros(4, 2, 3, 3)), ("3", "2")),
    "conv groups": (lambda t: t.nn.Conv2d(3, 4, 3, groups=2), ("groups",)),
    "Conv2d list": (lambda t: t.nn.Conv2d(1, 1, 1)([1.0]), ("conv2d", "list")),
    "pool": (lambda t: _f(t).max_pool2d(t.zeros(1, 1, 2, 2), 3), ("max_pool2d",)),
    "pool padding": (lambda t: _f(t).max_pool2d(t.zeros(1, 1, 4, 4), 2, padding=2), ("pad",)),
    "layer_norm": (lambda t: _f(t).layer_norm(t.zeros(2, 3), (4,)), ("[4]", "[2, 3]")),
    "batch_norm one value": (lambda t: t.nn.BatchNorm1d(3)(t.zeros(1, 3)), ("more than 1 value",)),
    "BatchNorm2d rank": (lambda t: t.nn.BatchNorm2d(3)(t.zeros(1, 3)), ("4D",)),
    "group_norm": (lambda t: t.nn.GroupNorm(2, 3), ("num_channels",)),
    "embedding floats": (lambda t: _f(t).embedding(t.zeros(2), t.zeros(3, 2)), ("embedding",)),
    "dropout": (lambda t: _f(t).dropout(t.zeros(2), 1.5), ("1.5",)),
    "softmax dim": (lambda t: _f(t).softmax(t.zeros(2), 1), ("Dimension out of range",)),
    "one_hot floats": (lambda t: _f(t).one_hot(t.zeros(2)), ("one_hot",)),
    "pad odd": (lambda t: _f(t).pad(t.zeros(2), (1,)), ("pad",)),
    "pad reflect": (lambda t: _f(t).pad(t.zeros(1, 2), (3, 0), "reflect"), ("pad",)),
    "interpolate": (lambda t: _f(t).interpolate(t.zeros(1, 1, 2)), ("size", "scale_factor")),
    "mha heads": (lambda t: t.nn.MultiheadAttention(5, 2), ("num_heads",)),
    # losses
    "mse shapes": (lambda t: _f(t).mse_loss(t.zeros(2), t.zeros(3)), ("2", "3")),
    "cross_entropy batch": (
        lambda t: _f(t).cross_entropy(t.zeros(2, 3), t.zeros(4, dtype=t.int64)),
        ("2", "4"),
    ),
    "cross_entropy type": (
        lambda t: _f(t).cross_entropy(t.zeros(2, 3), t.zeros(2, dtype=t.int32).bool()),
        (),
    ),
    "bce shapes": (lambda t: _f(t).binary_cross_entropy(t.zeros(2), t.zeros(3)), ("2", "3")),
    "reduction": (
        lambda t: _f(t).mse_loss(t.zeros(2), t.zeros(2), reduction="avg"),
        ("avg",),
    ),
    # making
    "zeros negative": (lambda t: t.zeros(-1), ("-1",)),
    "zeros text": (lambda t: t.zeros("a"), ("zeros",)),
    "tensor ragged": (lambda t: t.tensor([[1, 2], [3]]), ("2", "1")),
    "tensor text": (lambda t: t.tensor(["a"]), ("str",)),
    "arange step": (lambda t: t.arange(0, 3, -1), ("arange",)),
    "arange zero": (lambda t: t.arange(0, 3, 0), ("nonzero",)),
    "linspace": (lambda t: t.linspace(0, 1, -1), ("linspace",)),
    "randint": (lambda t: t.randint(3, 3, (2,)), ("3",)),
    "eye": (lambda t: t.eye(-1), ("-1",)),
    "full": (lambda t: t.full((2,), "a"), ("full",)),
    "multinomial": (lambda t: t.multinomial(t.ones(2), 3), ("multinomial",)),
    "bernoulli": (lambda t: t.bernoulli(t.zeros(2), 2.0), ("2",)),
    # autograd
    "backward of many": (lambda t: t.zeros(2, requires_grad=True).exp().backward(), ("scalar",)),
    "backward without": (lambda t: t.zeros(()).backward(), ("grad",)),
    "backward shape": (
        lambda t: t.zeros(2, requires_grad=True).exp().backward(t.zeros(3)),
        ("[3]", "[2]"),
    ),
    "grad of int": (lambda t: t.zeros(2, dtype=t.int64, requires_grad=True), ("floating point",)),
    "in place of leaf": (lambda t: t.zeros(2, requires_grad=True).add_(1), ("leaf",)),
    "numpy with grad": (lambda t: t.zeros(2, requires_grad=True).numpy(), ("detach",)),
    "grad shape": (
        lambda t: setattr(t.zeros(2, requires_grad=True), "grad", t.zeros(3)),
        ("[3]", "[2]"),
    ),
    # indexing
    "index float": (lambda t: t.zeros(2)[t.zeros(1)], ("indices",)),
    "index many": (lambda t: t.zeros(2)[0, 0], ("too many indices", "2 for shape [2]")),
    "index out": (lambda t: t.zeros(2)[2], ("2",)),
    "index mask": (lambda t: t.zeros(2)[t.zeros(3, dtype=t.bool)], ("mask", "[3]", "[2]")),
    "index step": (lambda t: t.zeros(2)[::-1], ("step",)),
    "assign shape": (lambda t: t.zeros(2, 3).__setitem__(0, t.zeros(4)), ("4", "3")),
    "gather rank": (lambda t: t.zeros(2, 3).gather(0, t.zeros(2, dtype=t.int64)), ("dimensions",)),
    "gather type": (lambda t: t.zeros(2).gather(0, t.zeros(2)), ("gather", "int64")),
    "scatter type": (
        lambda t: t.zeros(2).scatter(0, t.zeros(1, dtype=t.int64), t.zeros(1, dtype=t.int64)),
        ("scatter",),
    ),
    "index_select rank": (
        lambda t: t.zeros(2).index_select(0, t.zeros(1, 1, dtype=t.int64)),
        ("index_select",),
    ),
    "iterate 0-d": (lambda t: list(t.zeros(())), ("0-d",)),
    "len 0-d": (lambda t: len(t.zeros(())), ("0-d",)),
    # linear algebra
    "cond out": (
        lambda t: t.linalg.cond(t.eye(2), out=t.empty(0, dtype=t.int32)),
        (
            "linalg.cond: Expected result to be safely castable from Float dtype, but got result with dtype Int",
        ),
    ),
    "eig out": (
        lambda t: t.linalg.eig(t.eye(2), out=(t.empty(0), t.empty(0))),
        (
            "Expected eigenvalues to be safely castable from ComplexFloat dtype, but got eigenvalues with dtype Float",
        ),
    ),
    "eigvals out": (
        lambda t: t.linalg.eigvals(t.eye(2), out=t.empty(0)),
        (
            "Expected eigenvalues to be safely castable from ComplexFloat dtype, but got eigenvalues with dtype Float",
        ),
    ),
    "eig nan": (
        lambda t: t.linalg.eig(t.full((2, 2), float("nan"))),
        ("torch.linalg.eig: input tensor should not contain infs or NaNs.",),
    ),
    "eig infinite": (
        lambda t: t.linalg.eig(t.full((2, 2), float("inf"))),
        ("torch.linalg.eig: input tensor should not contain infs or NaNs.",),
    ),
    "pivot 0": (
        lambda t: t.linalg.lu_solve(t.eye(2), t.tensor([0, 2], dtype=t.int32), t.eye(2)),
        ("must all be greater or equal to 1",),
    ),
    "pivot 3": (
        lambda t: t.linalg.lu_solve(t.eye(2), t.tensor([3, 2], dtype=t.int32), t.eye(2)),
        ("must all be smaller or equal to LU.size(-2)",),
    ),
    "pinv rcond": (
        lambda t: t.linalg.pinv(t.eye(2), t.ones((), dtype=t.complex64)),
        ("rcond tensor of complex type is not supported",),
    ),
    "tau type": (
        lambda t: t.linalg.householder_product(t.eye(2), t.ones(2, dtype=t.int32)),
        ("tau dtype Int does not match input dtype Float",),
    ),
    "pinv rank": (
        lambda t: t.linalg.pinv(t.zeros(3)),
        ("linalg.pinv(Float{[3]}): expected a tensor with 2 or more dimensions",),
    ),
    "tensorsolve sizes": (
        lambda t: t.linalg.tensorsolve(t.zeros(2, 2, 4), t.zeros(3, 2)),
        ("Expected self to satisfy the requirement", "4 != 6"),
    ),
    # modules and optimizers
    "no parameters": (lambda t: t.optim.SGD([], lr=0.1), ("empty",)),
    "negative lr": (lambda t: t.optim.SGD([t.zeros(1)], lr=-1.0), ("learning rate",)),
    "optimizer of numbers": (lambda t: t.optim.SGD([1.0], lr=0.1), ("float",)),
    "state_dict keys": (lambda t: t.nn.Linear(2, 2).load_state_dict({}), ("Missing key",)),
    "state_dict shape": (
        lambda t: t.nn.Linear(2, 2).load_state_dict({"weight": t.zeros(3, 3), "bias": t.zeros(2)}),
        ("size mismatch", "weight"),
    ),
    "no such attribute": (lambda t: t.nn.Linear(2, 2).no_such, ("no_such",)),
    "parameter in list": (lambda t: t.nn.ModuleList([1]), ("int",)),
}


def _raised(call: Call, lib: Any) -> BaseException | None:
    try:
        found = call(lib)
        if isinstance(found, lib.Tensor):
            found.tolist()
    except Exception as error:
        return error
    return None


@pytest.mark.covers("P3")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_pytorchs_type_and_says_what_is_wrong(name: str) -> None:
    call, words = WRONG[name]
    theirs, mine = _raised(call, torch), _raised(call, webtorch)
    assert theirs is not None, "PyTorch accepts this"
    assert mine is not None, f"PyTorch raises {type(theirs).__name__}: {theirs}"
    assert isinstance(mine, type(theirs)), f"{mine!r} is not PyTorch's {theirs!r}"
    missing = [w for w in words if w not in str(mine)]
    assert not missing, f"{missing} not in {mine!s} (PyTorch: {theirs})"
