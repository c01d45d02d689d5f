"""Autocast gives every operation the types that PyTorch gives it: on the CPU, and, for WebGPU, those
of PyTorch's list for accelerators.

The oracle of the second is PyTorch's own dispatcher: fake tensors say that they are on "cuda" and
compute nothing, so no such device is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import webtorch
from tests.conftest import need_device
from tests.ops import table
from webtorch.ops.record import TABLE, Op

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FLOATS = ("float32", "bfloat16", "float16")
LOWER = {"cpu": "bfloat16", "webgpu": "float16"}

# Operations whose inputs are not just tensors of one shape: (function, shapes of its float inputs). `t` is
# either library; `i` gives it integers.
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda t, i, a, b: t.mm(a, b), ((2, 3), (3, 2))),
    "operator_matmul": (lambda t, i, a, b: a @ b, ((2, 3), (3, 2))),
    "matmul_vector": (lambda t, i, a, b: t.matmul(a, b), ((2, 3), (3,))),
    "bmm": (lambda t, i, a, b: t.bmm(a, b), ((2, 2, 3), (2, 3, 2))),
    "mv": (lambda t, i, a, b: t.mv(a, b), ((2, 3), (3,))),
    "dot": (lambda t, i, a, b: t.dot(a, b), ((3,), (3,))),
    "vdot": (lambda t, i, a, b: t.vdot(a, b), ((3,), (3,))),
    "addmm": (lambda t, i, a, b, c: t.addmm(a, b, c), ((2, 2), (2, 3), (3, 2))),
    "addmv": (lambda t, i, a, b, c: t.addmv(a, b, c), ((2,), (2, 3), (3,))),
    "addr": (lambda t, i, a, b, c: t.addr(a, b, c), ((2, 3), (2,), (3,))),
    "baddbmm": (lambda t, i, a, b, c: t.baddbmm(a, b, c), ((2, 2, 2), (2, 2, 3), (2, 3, 2))),
    "addbmm": (lambda t, i, a, b, c: t.addbmm(a, b, c), ((2, 2), (2, 2, 3), (2, 3, 2))),
    "outer": (lambda t, i, a, b: t.outer(a, b), ((2,), (3,))),
    "inner": (lambda t, i, a, b: t.inner(a, b), ((2, 3), (4, 3))),
    "tensordot": (lambda t, i, a, b: t.tensordot(a, b, 1), ((2, 3), (3, 2))),
    "einsum": (lambda t, i, a, b: t.einsum("ij,jk->ik", a, b), ((2, 3), (3, 2))),
    "multi_dot": (lambda t, i, a, b: t.linalg.multi_dot([a, b]), ((2, 3), (3, 2))),
    "vecdot": (lambda t, i, a, b: t.linalg.vecdot(a, b), ((3,), (3,))),
    "chain_matmul": (lambda t, i, a, b: t.chain_matmul(a, b), ((2, 3), (3, 2))),
    "matrix_power": (lambda t, i, a: t.linalg.matrix_power(a, 3), ((3, 3),)),
    "cross": (lambda t, i, a, b: t.cross(a, b, dim=-1), ((2, 3), (2, 3))),
    "trace": (lambda t, i, a: t.trace(a), ((3, 3),)),
    "cdist": (lambda t, i, a, b: t.cdist(a, b), ((2, 3), (4, 3))),
    "linear": (lambda t, i, a, w, b: t.nn.functional.linear(a, w, b), ((2, 3), (4, 3), (4,))),
    "bilinear": (
        lambda t, i, a, b, w: t.nn.functional.bilinear(a, b, w),
        ((2, 3), (2, 4), (5, 3, 4)),
    ),
    "conv1d": (lambda t, i, x, w, b: t.nn.functional.conv1d(x, w, b), ((1, 2, 5), (3, 2, 3), (3,))),
    "conv2d": (lambda t, i, x, w: t.nn.functional.conv2d(x, w), ((1, 2, 5, 5), (3, 2, 3, 3))),
    "conv3d": (
        lambda t, i, x, w: t.nn.functional.conv3d(x, w),
        ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2)),
    ),
    "conv_transpose1d": (
        lambda t, i, x, w: t.nn.functional.conv_transpose1d(x, w),
        ((1, 2, 5), (2, 3, 3)),
    ),
    "conv_transpose2d": (
        lambda t, i, x, w: t.nn.functional.conv_transpose2d(x, w),
        ((1, 2, 5, 5), (2, 3, 3, 3)),
    ),
    "conv_transpose3d": (
        lambda t, i, x, w: t.nn.functional.conv_transpose3d(x, w),
        ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2)),
    ),
    "attention": (
        lambda t, i, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v),
        ((1, 1, 3, 4),) * 3,
    ),
    "attention_causal": (
        lambda t, i, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 1, 3, 4),) * 3,
    ),
    "prelu": (lambda t, i, x, w: t.nn.functional.prelu(x, w), ((3, 3), (1,))),
    "pow_operator": (lambda t, i, x: x**2, ((3,),)),
    "rpow": (lambda t, i, x: 2**x, ((3,),)),
    "mul": (lambda t, i, a, b: a * b, ((3,), (3,))),
    "sum_typed": (lambda t, i, x: t.sum(x, dtype=t.float16), ((3,),)),
    "softmax_typed": (lambda t, i, x: t.softmax(x, 0, dtype=t.bfloat16), ((3,),)),
    "sum_dim": (lambda t, i, x: x.sum(0), ((3, 2),)),
    "mean": (lambda t, i, x: x.mean(), ((3, 2),)),
    "var": (lambda t, i, x: x.var(), ((3, 2),)),
    "std_mean": (lambda t, i, x: t.std_mean(x, 0)[0], ((3, 2),)),
    "norm": (lambda t, i, x: x.norm(), ((3, 2),)),
    "norm_dim": (lambda t, i, x: x.norm(2, 0), ((3, 2),)),
    "dist": (lambda t, i, a, b: t.dist(a, b), ((3,), (3,))),
    "prod_dim": (lambda t, i, x: x.prod(0), ((3, 2),)),
    "renorm": (lambda t, i, x: t.renorm(x, 2, 0, 1.0), ((3, 2),)),
    "pdist": (lambda t, i, x: t.pdist(x), ((4, 3),)),
    "linalg_matrix_norm": (lambda t, i, x: t.linalg.matrix_norm(x), ((3, 2),)),
    "frobenius_norm": (lambda t, i, x: t.frobenius_norm(x, 1), ((3, 2),)),
    "native_layer_norm": (
        lambda t, i, x, w, b: t.native_layer_norm(x, (3,), w, b, 1e-5)[0],
        ((2, 3), (3,), (3,)),
    ),
    "vstack": (lambda t, i, a, b: t.vstack([a, b]), ((3,), (3,))),
    "dstack": (lambda t, i, a, b: t.dstack([a, b]), ((3,), (3,))),
    "column_stack": (lambda t, i, a, b: t.column_stack([a, b]), ((3,), (3,))),
    "concat": (lambda t, i, a, b: t.concat([a, b]), ((3,), (3,))),
    "concatenate": (lambda t, i, a, b: t.concatenate([a, b]), ((3,), (3,))),
    "quantile": (lambda t, i, x: t.quantile(x, 0.5), ((5,),)),
    "cat": (lambda t, i, a, b: t.cat([a, b]), ((3,), (2,))),
    "stack": (lambda t, i, a, b: t.stack([a, b]), ((3,), (3,))),
    "hstack": (lambda t, i, a, b: t.hstack([a, b]), ((3,), (3,))),
    "index_copy": (lambda t, i, a, b: a.index_copy(0, i([0, 1]), b), ((3,), (2,))),
    "scatter_add": (lambda t, i, a, b: a.scatter_add(0, i([0, 1]), b), ((3,), (2,))),
    "embedding": (lambda t, i, w: t.nn.functional.embedding(i([0, 1]), w), ((3, 2),)),
    "multilabel_margin_loss": (
        lambda t, i, x: t.nn.functional.multilabel_margin_loss(x, i([1, 0, -1])),
        ((3,),),
    ),
    "layer_norm": (
        lambda t, i, x, w, b: t.nn.functional.layer_norm(x, (3,), w, b),
        ((2, 3), (3,), (3,)),
    ),
    "rms_norm": (lambda t, i, x, w: t.nn.functional.rms_norm(x, (3,), w), ((2, 3), (3,))),
    "group_norm": (
        lambda t, i, x, w, b: t.nn.functional.group_norm(x, 2, w, b),
        ((2, 4, 3), (4,), (4,)),
    ),
    "batch_norm": (
        lambda t, i, x, m, v: t.nn.functional.batch_norm(x, m, v, training=True),
        ((2, 4, 3), (4,), (4,)),
    ),
    "instance_norm": (lambda t, i, x: t.nn.functional.instance_norm(x), ((2, 4, 3),)),
    "cross_entropy": (lambda t, i, x: t.nn.functional.cross_entropy(x, i([0, 1])), ((2, 3),)),
    "nll_loss": (lambda t, i, x: t.nn.functional.nll_loss(x, i([0, 1])), ((2, 3),)),
    "kl_div": (lambda t, i, a, b: t.nn.functional.kl_div(a, b), ((3,), (3,))),
    "triplet_margin_loss": (
        lambda t, i, a, b, c: t.nn.functional.triplet_margin_loss(a, b, c),
        ((2, 3),) * 3,
    ),
    "margin_ranking_loss": (
        lambda t, i, a, b, c: t.nn.functional.margin_ranking_loss(a, b, c),
        ((3,),) * 3,
    ),
    "poisson_nll_loss": (lambda t, i, a, b: t.nn.functional.poisson_nll_loss(a, b), ((3,), (3,))),
    "soft_margin_loss": (lambda t, i, a, b: t.nn.functional.soft_margin_loss(a, b), ((3,), (3,))),
    "hinge_embedding_loss": (
        lambda t, i, a: t.nn.functional.hinge_embedding_loss(a, i([1, -1, 1])),
        ((3,),),
    ),
    "cosine_embedding_loss": (
        lambda t, i, a, b: t.nn.functional.cosine_embedding_loss(a, b, i([1, -1])),
        ((2, 3), (2, 3)),
    ),
    "multi_margin_loss": (
        lambda t, i, x: t.nn.functional.multi_margin_loss(x, i([0, 1])),
        ((2, 3),),
    ),
    "avg_pool2d": (lambda t, i, x: t.nn.functional.avg_pool2d(x, 2), ((1, 1, 4, 4),)),
    "avg_pool3d": (lambda t, i, x: t.nn.functional.avg_pool3d(x, 2), ((1, 1, 4, 4, 4),)),
    "max_pool2d": (lambda t, i, x: t.nn.functional.max_pool2d(x, 2), ((1, 1, 4, 4),)),
    "max_pool3d": (lambda t, i, x: t.nn.functional.max_pool3d(x, 2), ((1, 1, 4, 4, 4),)),
    "adaptive_avg_pool3d": (
        lambda t, i, x: t.nn.functional.adaptive_avg_pool3d(x, 2),
        ((1, 1, 4, 4, 4),),
    ),
    "interpolate": (
        lambda t, i, x: t.nn.functional.interpolate(x, scale_factor=2),
        ((1, 1, 4, 4),),
    ),
    "grid_sample": (
        lambda t, i, x, g: t.nn.functional.grid_sample(x, g, align_corners=False),
        ((1, 1, 4, 4), (1, 2, 2, 2)),
    ),
    "pad_constant": (lambda t, i, x: t.nn.functional.pad(x, (1, 1)), ((1, 2, 4),)),
    "pad_reflect": (lambda t, i, x: t.nn.functional.pad(x, (1, 1), "reflect"), ((1, 2, 4),)),
    "pad_reflect3": (
        lambda t, i, x: t.nn.functional.pad(x, (1,) * 6, "reflect"),
        ((1, 2, 4, 4, 4),),
    ),
    "pad_replicate": (lambda t, i, x: t.nn.functional.pad(x, (1, 1), "replicate"), ((1, 2, 4),)),
    "bce": (lambda t, i, a, b: t.nn.functional.binary_cross_entropy(a, b), ((3,), (3,))),
}


CASES["conv_tbc"] = (
    lambda t, i, x, weight, bias: t.conv_tbc(x, weight, bias),
    ((5, 2, 3), (3, 3, 4), (4,)),
)
CASES["grid_sampler"] = (
    lambda t, i, x, g: t.grid_sampler(x, g, 0, 0, False),
    ((1, 1, 4, 4), (1, 2, 2, 2)),
)
CASES["stft"] = lambda t, i, x: t.stft(x, 4, return_complex=True), ((16,),)

# What PyTorch cannot do on fake tensors of a device that is not there.
NOT_FAKED = ("batch_norm", "grid_sample", "grid_sampler", "float_power")


@contextlib.contextmanager
def _oracle(kind: str) -> Iterator[Callable[..., Any]]:
    """Give a maker of PyTorch's tensors for which autocast is on."""
    if kind == "cpu":
        with torch.autocast("cpu", torch.bfloat16):
            yield lambda values, dtype: values.to(getattr(torch, dtype))
        return
    with FakeTensorMode(allow_non_fake_inputs=True):
        before = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            yield lambda values, dtype: torch.empty(
                tuple(values.shape), dtype=getattr(torch, dtype), device="cuda"
            )
        finally:
            torch.set_autocast_enabled("cuda", before)


def _types(result: Any) -> list[str]:
    return [str(r.dtype).removeprefix("torch.") for r in table.flat(result)]


def _expected(kind: str, call: Callable[..., Any], values: Any, dtypes: Any) -> Any:
    """Return the result types that PyTorch gives, or the error it raises."""
    with _oracle(kind) as make:
        try:
            return _types(call(*[make(v, d) for v, d in zip(values, dtypes, strict=True)]))
        except (RuntimeError, ValueError) as error:
            return error


def _check(
    kind: str,
    theirs: Any,
    ours: Any,
    values: list[torch.Tensor],
    note: str,
    takes: tuple[Any, ...] = (),
) -> None:
    """Compare result types for inputs of each type, and of two. `takes`: what our operation has a kernel for."""
    combinations = [[d] * len(values) for d in FLOATS]
    # Of two types the fake index_copy and heaviside take tensors; no real ones do.
    if len(values) > 1 and note not in ("index_copy", "heaviside"):
        combinations += [[FLOATS[i % 2] for i in range(len(values))]]
    checked = 0
    for dtypes in combinations:
        if takes and not {getattr(webtorch, d) for d in dtypes} <= set(takes):
            continue
        expected = _expected(kind, theirs, values, dtypes)
        if isinstance(expected, Exception) and "autocast" not in str(expected):
            # PyTorch has no kernel for these types, or no fake one: nothing to compare with.
            continue
        refused = isinstance(expected, Exception)
        # Transforms of float16, which CUDA alone has.
        if not refused and "complex32" in expected:
            continue
        if kind == "webgpu" and not refused and {"float64", "complex128"} & set(expected):
            continue
        checked += 1
        tensors = [
            webtorch.tensor(v.tolist(), dtype=getattr(webtorch, d), device=kind)
            for v, d in zip(values, dtypes, strict=True)
        ]
        with webtorch.autocast(kind, getattr(webtorch, LOWER[kind])):
            if refused:
                with pytest.raises(RuntimeError, match="autocast"):
                    ours(*tensors)
                continue
            actual = _types(ours(*tensors))
        assert actual == expected, f"{note} {dtypes} on {kind}: {actual}, PyTorch {expected}"
    assert checked or note in NOT_FAKED, f"{note}: nothing was compared"


@pytest.mark.covers("A14")
@pytest.mark.parametrize(
    "op",
    [op for op in table.tested() if webtorch.float32 in op.dtypes],
    ids=lambda op: op.name,
)
def test_table_operations(op: Op, device: str) -> None:
    args, kwargs = op.samples[0]
    values = [
        table.base_values(op, (6, 10), webtorch.float32, i) for i in range(table.tensor_count(op))
    ]
    theirs, ours = table.oracle(op), table.function(op)
    _check(
        device,
        lambda *x: theirs(*x, *args, **kwargs),
        lambda *x: ours(*x, *args, **kwargs),
        values,
        op.name,
        op.dtypes,
    )


@pytest.mark.covers("A14")
@pytest.mark.parametrize("name", CASES)
def test_other_operations(name: str, device: str) -> None:
    call, shapes = CASES[name]
    values = [torch.rand(s, generator=torch.Generator().manual_seed(3)) for s in shapes]

    def theirs(numbers: list[int]) -> torch.Tensor:
        if device == "cpu":
            return torch.tensor(numbers)
        return torch.empty(len(numbers), dtype=torch.int64, device="cuda")

    _check(
        device,
        lambda *x: call(torch, theirs, *x),
        lambda *x: call(webtorch, lambda v: webtorch.tensor(v, device=device), *x),
        values,
        name,
    )


def _recurrence(
    t: Any, name: str, make: Callable[..., Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a recurrence as a function of its tensors, and tensors for it: (T, N, features) = (2, 1, 3)."""
    projects = name.endswith("_projected")
    name = name.removesuffix("_projected")
    gates = {"lstm": 4, "gru": 3}.get(name, 1)
    out = 2 if projects else 4
    shapes = [(2, 1, 3), (1, 1, out), (4 * gates, 3), (4 * gates, out), (4 * gates,), (4 * gates,)]
    shapes += [(2, 4)] if projects else []
    function = getattr(t._VF if t is torch else webtorch.nn.recurrence, name)

    def call(x: Any, h: Any, *params: Any) -> Any:
        """Return the output and the last states."""
        state = (h, make((1, 1, 4))) if name == "lstm" else h
        return function(x, state, list(params), True, 1, 0.0, False, False, False)

    return call, [make(s) for s in shapes]


@pytest.mark.parametrize("name", ["lstm", "lstm_projected", "gru", "rnn_tanh", "rnn_relu"])
def test_recurrences(name: str, device: str) -> None:
    ours, tensors = _recurrence(webtorch, name, lambda s: webtorch.zeros(s, device=device))
    with webtorch.autocast(device, getattr(webtorch, LOWER[device])):
        actual = _types(ours(*tensors))
    # A kernel that wants another processor, or that fake tensors lack: its results have the types of its inputs.
    kernel, key = {
        ("cpu", "lstm"): ("mkldnn_rnn_layer", "AutocastCPU"),
        ("webgpu", "gru"): ("_thnn_fused_gru_cell", "AutocastCUDA"),
    }.get((device, name), ("", ""))
    if kernel:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{kernel}", key)
        assert set(actual) == {LOWER[device]}
        return
    with _oracle(device) as make:
        theirs, values = _recurrence(torch, name, lambda s: make(torch.zeros(s), "float32"))
        assert actual == _types(theirs(*values))


# Of a symmetric positive matrix a and a vector b: on the CPU all of them run in float32.
ON_THE_CPU: dict[str, Callable[..., Any]] = {
    "inverse": lambda t, a, b: t.inverse(a),
    "linalg_inv": lambda t, a, b: t.linalg.inv(a),
    "linalg_inv_ex": lambda t, a, b: t.linalg.inv_ex(a)[0],
    "pinverse": lambda t, a, b: t.pinverse(a),
    "cholesky": lambda t, a, b: t.cholesky(a),
    "linalg_cholesky": lambda t, a, b: t.linalg.cholesky(a),
    "linalg_cholesky_ex": lambda t, a, b: t.linalg.cholesky_ex(a)[0],
    "cholesky_inverse": lambda t, a, b: t.cholesky_inverse(a),
    "cholesky_solve": lambda t, a, b: t.cholesky_solve(b[:, None], a),
    "linalg_solve": lambda t, a, b: t.linalg.solve(a, b),
    "triangular_solve": lambda t, a, b: t.triangular_solve(b[:, None], a)[0],
    "linalg_lstsq": lambda t, a, b: t.linalg.lstsq(a, b[:, None])[0],
    "linalg_tensorsolve": lambda t, a, b: t.linalg.tensorsolve(a, b),
    "linalg_tensorinv": lambda t, a, b: t.linalg.tensorinv(a, ind=1),
    "linalg_qr": lambda t, a, b: t.linalg.qr(a)[1],
    "qr": lambda t, a, b: t.qr(a)[1],
    "geqrf": lambda t, a, b: t.geqrf(a)[0],
    "linalg_householder_product": lambda t, a, b: t.linalg.householder_product(a, b),
    "orgqr": lambda t, a, b: t.orgqr(a, b),
    "ormqr": lambda t, a, b: t.ormqr(a, b, a),
    "linalg_eigh": lambda t, a, b: t.linalg.eigh(a)[0],
    "linalg_eigvalsh": lambda t, a, b: t.linalg.eigvalsh(a),
    "linalg_svd": lambda t, a, b: t.linalg.svd(a)[1],
    "linalg_svdvals": lambda t, a, b: t.linalg.svdvals(a),
    "svd": lambda t, a, b: t.svd(a)[1],
    "linalg_cond": lambda t, a, b: t.linalg.cond(a),
    "linalg_matrix_rank": lambda t, a, b: t.linalg.matrix_rank(a),
    "polar": lambda t, a, b: t.polar(a, b),
}
for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2",
              "fftn", "ifftn", "rfftn", "irfftn"):  # fmt: skip
    ON_THE_CPU[f"fft_{_name}"] = lambda t, a, b, name=_name: getattr(t.fft, name)(a)


@pytest.mark.covers("A14")
@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", ON_THE_CPU)
def test_whole_arrays_on_the_cpu(name: str) -> None:
    a = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
    call = ON_THE_CPU[name]
    _check(
        "cpu",
        lambda *x: call(torch, *x),
        lambda *x: call(webtorch, *x),
        [a, torch.tensor([1.0, 2.0, 0.5])],
        name,
    )


def test_every_rule_is_tested() -> None:
    ruled = {op.name for op in TABLE.values() if op.autocast is not None and op.function_in}
    covered = {op.name for op in table.tested()} | set(CASES) | set(ON_THE_CPU)
    # Tested under a name that says how, or together with an entry of the same code.
    elsewhere = {
        "matmul", "multi_dot", "scaled_dot_product_attention", "cross", "adaptive_max_pool3d",
        "max_unpool2d", "max_unpool3d", "nanquantile", "index_put", "std", "var_mean", "nanmean",
        "binary_cross_entropy", "linalg_lu_solve", "lu_solve", "nuclear_norm",
    }  # fmt: skip
    assert not ruled - covered - elsewhere, ruled - covered - elsewhere


def test_the_refused_loss_says_what_to_use_instead() -> None:
    need_device("webgpu")
    x = webtorch.rand(3, device="webgpu")
    with webtorch.autocast("webgpu"), pytest.raises(RuntimeError, match="BCEWithLogitsLoss"):
        webtorch.nn.functional.binary_cross_entropy(x, x)
