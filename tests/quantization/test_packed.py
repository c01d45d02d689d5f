"""Packed tensors: blocks against the gguf package, products and rows against what is unpacked."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import quants

import webtorch
from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import packed as packed_functions
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int32
from webtorch.ir.kernel import Kernel, Matmul
from webtorch.nn import functional as F
from webtorch.ops import blocks as blocks_of_formats
from webtorch.ops.blocks import dotting, multiplying
from webtorch.quantization import FORMATS, PackedEmbedding, PackedLinear, PackedTensor, quantize
from webtorch.quantization.packing import PACKING
from webtorch.runtime.backends.cpu import integers, jit
from webtorch.runtime.backends.cpu.executable import KernelRunner

Array = np.ndarray[Any, Any]
# Those of a table row each; one of each layout: a byte for an element, halves of bytes, rows that end within words.
ALL = sorted(FORMATS)
SOME = ["Q8_0", "Q4_K", "Q6_K", "MXFP4", "NF4"]


def drawn(name: str, rows: int, columns: int, *, finite: bool = True) -> Array:
    """Return random blocks; with `finite` scales, such as models have."""
    form = FORMATS[name]
    numbers = np.random.default_rng(len(name) + rows)
    blocks = numbers.integers(
        0, 256, (rows * columns // form.elements, form.nbytes), dtype=np.uint8
    )
    if finite:
        for at in HALVES.get(name, ()):
            scales = numbers.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
        if name == "MXFP4":
            blocks[:, 0] = numbers.integers(120, 126, len(blocks))
        for at in FLOATS.get(name, ()):
            scales = numbers.uniform(0.01, 0.1, len(blocks)).astype(np.float32)
            blocks[:, at : at + 4] = scales.view(np.uint8).reshape(-1, 4)
    return blocks.reshape(rows, -1)


# Where the scales of 16 bits lie.
HALVES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "INT4_32": (0, 2), "INT4_64": (0, 2), "INT4_128": (0, 2),
}  # fmt: skip
# Where those of 32 bits lie.
FLOATS = {
    "Q8_K": (0,), "INT8_32": (0, 4), "INT8_64": (0, 4), "INT8_128": (0, 4), "NF4": (0,), "FP4": (0,),
}  # fmt: skip


# What the four bits of bitsandbytes stand for.
FOUR_BITS = {
    "NF4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "FP4": (
        0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
        0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
    ),
}  # fmt: skip


def unpacked(name: str, blocks: Array) -> Array:
    """Return what the gguf package makes of rows of blocks; of those that it does not know, their definition."""
    with np.errstate(all="ignore"):
        flat = blocks.reshape(-1, FORMATS[name].nbytes)
        if name == "Q8_K":
            found = flat[:, :4].copy().view("f4") * flat[:, 4:260].view("i1").astype("f4")
        elif name.startswith("INT8"):
            scale, zero = flat[:, :4].copy().view("f4"), flat[:, 4:8].copy().view("f4")
            found = (flat[:, 8:].astype("f4") - zero) * scale
        elif name.startswith("INT4"):
            scale, zero = (flat[:, i : i + 2].copy().view("f2").astype("f4") for i in (0, 2))
            found = (np.concatenate([flat[:, 4:] & 15, flat[:, 4:] >> 4], 1) - zero) * scale
        elif name in ("NF4", "FP4"):
            code = np.array(FOUR_BITS[name], dtype="f4")
            index = np.concatenate([flat[:, 4:] & 15, flat[:, 4:] >> 4], 1)
            found = flat[:, :4].copy().view("f4") * code[index]
        else:
            found = quants.dequantize(blocks, Kind[name])
    return np.asarray(found).reshape(len(blocks), -1)


def packed(name: str, blocks: Array, device: str, columns: int) -> PackedTensor:
    """Return rows of blocks as a packed tensor."""
    return PackedTensor.from_bytes(blocks.tobytes(), name, (len(blocks), columns), device=device)


def near(out: Any, expected: Any, x: Any, weight: Any) -> None:
    """Compare products that add in other orders: by what their terms are as sums without signs."""
    with webtorch.no_grad():
        bound = 2e-6 * float((x.abs() @ weight.abs().t()).max())
    webtorch.testing.assert_close(out, expected, rtol=0, atol=bound)


def test_the_sizes_are_those_of_the_gguf_package() -> None:
    for name in set(FORMATS) & set(Kind.__members__):
        form = FORMATS[name]
        assert gguf.GGML_QUANT_SIZES[Kind[name]] == (form.elements, form.nbytes), name


@pytest.mark.parametrize("name", ALL)
def test_blocks_are_unpacked_to_the_bit(name: str, device: str) -> None:
    # Groups of blocks that end within words, and any bits as scales.
    blocks = drawn(name, 3, 768, finite=False)
    found = packed(name, blocks, device, 768).dequantize().numpy(force=True)
    expected = unpacked(name, blocks)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), ~known)
    np.testing.assert_array_equal(found.view("i4")[known], expected.view("i4")[known])


# What llama.cpp's quantize misses of the numbers of the test below: sums of squares, of rows scaled to 1 at most.
MISSED = {
    "Q2_K": 14.4023, "Q3_K": 4.65428, "Q4_K": 0.815714, "Q5_K": 0.212809, "Q6_K": 0.0723058, "IQ4_NL": 1.33627,
    "IQ4_XS": 1.37696,
}  # fmt: skip


@pytest.mark.one_in(3, device="webgpu")
@pytest.mark.parametrize("name", sorted(MISSED))
def test_scales_are_searched_as_well_as_by_others(name: str, device: str) -> None:
    x = np.random.default_rng(1).standard_normal((6, 512), dtype=np.float32)
    x[0, :256], x[1, :256], x[2, :256], x[3] = 0, 0.25, np.arange(256) - 128, x[3] * 1e-3
    x[4, :32], x[5] = 0, np.abs(x[5])
    found = quantize(webtorch.from_numpy(x).to(device), name)
    back = unpacked(name, found.bytes().numpy(force=True))
    off = (back - x.astype(np.float64)) / np.abs(x).max(1, keepdims=True)
    assert (off**2).sum() == pytest.approx(MISSED[name], rel=1e-3)
    assert not back[0, :256].any() and not back[4, :32].any()


def test_four_bits_of_bitsandbytes_are_packed(device: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 128), dtype=np.float32)
    x[0, :64] = 0
    found = quantize(webtorch.from_numpy(x).to(device), "NF4")
    absmax = np.abs(x.reshape(-1, 64)).max(1, keepdims=True)
    code = np.array(FOUR_BITS["NF4"], "f4")
    scaled = x.reshape(-1, 64) / np.where(absmax == 0, 1, absmax)
    wanted = code[np.abs(scaled[..., None] - code).argmin(-1)] * absmax
    np.testing.assert_array_equal(found.dequantize().numpy(force=True), wanted.reshape(4, 128))


@pytest.mark.parametrize("name", sorted(set(PACKING) & set(Kind.__members__) - set(MISSED)))
def test_blocks_are_packed_to_the_bit(name: str, device: str) -> None:
    x = np.random.default_rng(1).standard_normal((12, 96), dtype=np.float32)
    x[0, :32], x[1, :32], x[2, :32], x[3] = 0, 0.25, np.arange(32) - 16, x[3] * 1e-3
    with np.errstate(all="ignore"):
        expected = quants.quantize(x, Kind[name])
    found = quantize(webtorch.from_numpy(x).to(device), name)
    assert found.format == name and tuple(found.shape) == x.shape
    np.testing.assert_array_equal(found.bytes().numpy(force=True), expected)


@pytest.mark.parametrize("name", ALL)
def test_products_of_few_rows_are_those_of_what_is_unpacked(name: str, device: str) -> None:
    blocks = drawn(name, 5, 1024)
    x = np.random.default_rng(0).standard_normal((3, 1024), dtype=np.float32)
    weight = packed(name, blocks, device, 1024)
    exact = unpacked(name, blocks).astype(np.float64)
    for rows in (x, x[:1], x[0]):
        out = F.linear(webtorch.from_numpy(rows).to(device), weight).numpy(force=True)
        bound = np.abs(rows) @ np.abs(exact.T)
        assert out.shape == (*rows.shape[:-1], 5)
        assert (np.abs(out - rows @ exact.T) <= 1e-6 * bound).all()


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize(("name", "columns"), [("Q6_K", 768), ("Q5_0", 96), ("MXFP4", 64)])
def test_rows_that_end_within_words_are_summed_as_others_are(
    name: str, columns: int, device: str
) -> None:
    blocks = drawn(name, 6, columns)
    weight, exact = packed(name, blocks, device, columns), unpacked(name, blocks).astype(np.float64)
    x = np.random.default_rng(0).standard_normal((3, columns), dtype=np.float32)
    product = webtorch.compile(lambda x: F.linear(x, weight))
    for rows in (x, x[:1]):
        out = product(webtorch.from_numpy(rows).to(device)).numpy(force=True)
        assert (np.abs(out - rows @ exact.T) <= 1e-6 * (np.abs(rows) @ np.abs(exact.T))).all()
        program = product.latest().executable.program
        assert not any(isinstance(routine, Matmul) for routine in program.routines)


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q5_0", "Q6_K", "Q8_0", "INT8_64"])
def test_rows_in_bytes_give_the_same_products(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = webtorch.zeros(1, device=device)._storage.runtime.backend
    limits = replace(backend.limits, has_dots=True, has_halves=True)
    monkeypatch.setattr(backend, "limits", limits)
    monkeypatch.setattr("webtorch.functions.packed._LARGE", 0)
    blocks = drawn(name, 6, 1024)
    # Runs of a row differ in size; one is zeros, and one next to nothing.
    x = np.random.default_rng(0).standard_normal((2, 1024), dtype=np.float32)
    x *= np.repeat(10.0 ** np.arange(-3, 5), 128).astype(np.float32)
    x[:, 16:32], x[:, 64:80] = 0, 1e-38
    weight, exact = packed(name, blocks, device, 1024), unpacked(name, blocks).astype(np.float64)
    for rows in (x, x[:1]):
        product = webtorch.compile(lambda x: F.linear(x, weight))
        out = product(webtorch.from_numpy(rows).to(device)).numpy(force=True)
        bound = np.abs(rows) @ np.abs(exact.T)
        assert (np.abs(out - rows @ exact.T) <= 1e-6 * bound).all()
        # A kernel that writes the row, one that rounds it, one for the product, and no numbers beside them.
        program = product.latest().executable.program
        assert len(program.steps) == 3 and not program.args
        sums = [n for r in program.routines[2].reduces for n in ex.walk(r.value) if ex.dotted(n)]
        assert len(sums) == 3 * len(dotting(name, 1024).lanes) // 4  # type: ignore[union-attr]
    # Of halves two bytes a number are enough: what is given back has fewer digits.
    x16 = np.random.default_rng(1).standard_normal((2, 1024)) / np.abs(exact).sum(1).max()
    x16 = (x16 * 1e3).astype(np.float16)
    out = F.linear(webtorch.from_numpy(x16).to(device), weight).numpy(force=True)
    right = x16.astype(np.float64) @ exact.T
    bound = np.abs(x16).astype(np.float64) @ np.abs(exact.T)
    assert (np.abs(out - right) <= 5e-4 * np.abs(right) + 3e-5 * bound + 6e-8).all()
    x[0, 5] = np.nan
    x[1, 5] = np.inf
    assert not np.isfinite(
        F.linear(webtorch.from_numpy(x).to(device), weight).numpy(force=True)
    ).any()


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "NF4"])
def test_cards_unpack_weights_while_they_multiply_some_rows(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = webtorch.zeros(1, device=device)._storage.runtime.backend
    monkeypatch.setattr(backend, "limits", replace(backend.limits, is_gpu=True))
    weight = packed(name, drawn(name, 12, 512), device, 512)
    exact = unpacked(name, drawn(name, 12, 512)).astype(np.float64)
    product = webtorch.compile(lambda x: F.linear(x, weight))
    x = np.random.default_rng(0).standard_normal((19, 512), dtype=np.float32)
    out = product(webtorch.from_numpy(x).to(device)).numpy(force=True)
    assert (np.abs(out - x @ exact.T) <= 1e-6 * (np.abs(x) @ np.abs(exact.T))).all()
    (routine,) = product.latest().executable.program.routines
    assert routine.unpacked is not None


@pytest.mark.parametrize("device", ["webgpu"], indirect=True)
@pytest.mark.parametrize("dots", [False, True])
def test_what_is_computed_between_two_calls_binds_a_row_and_data_once(
    device: str, dots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending work may be computed at any call: windows are then no memory of their own, though they are alive."""
    runtime = webtorch.zeros(1, device=device)._storage.runtime
    monkeypatch.setattr(runtime.backend, "limits", replace(runtime.backend.limits, has_dots=dots))
    monkeypatch.setattr("webtorch.functions.packed._LARGE", 0)
    weight = packed("Q4_K", drawn("Q4_K", 3, 1024), device, 1024)
    x = webtorch.ones(1, 1024, device=device)
    wanted = F.linear(x, weight).tolist()
    compiled, computed = runtime.backend.compile, packed_functions.formula
    bound: list[int] = []

    def compile_(program: Any, *rest: Any) -> Any:
        bound.extend(len(r.buffers) for r in program.routines)
        return compiled(program, *rest)

    def formula(*given: Any, **more: Any) -> Any:
        runtime.realize()
        out = computed(*given, **more)
        runtime.realize()
        return out

    monkeypatch.setattr(runtime.backend, "compile", compile_)
    monkeypatch.setattr(packed_functions, "formula", formula)
    assert F.linear(x, weight).tolist() == wanted
    assert bound and max(bound) <= 8


def test_four_products_of_bytes_are_known_for_what_they_are() -> None:
    x, y = (ex.input_(i, int32) for i in range(2))
    assert ex.dotted(ex.dot4(x, y)) == (x, y) and ex.dotted(ex.dot4(x, x)) == (x, x)
    byte = ex.shr(x, 24)
    assert ex.dotted(ex.dot4(x, y) + 1) is None
    assert ex.dotted((byte * byte + byte * byte) + (byte * byte + byte * byte)) is None


def test_what_a_block_shares_is_multiplied_once_and_bits_are_cut_out_of_words() -> None:
    """32 digits of four words: a product each, and a few for two scales, two minima and where digits stand."""
    reading = multiplying("Q4_K", True, 512)
    assert reading is not None and len(reading.lanes) == 32
    count = 1 + len(reading.windows) + len(reading.loops) + len(reading.lanes)
    nodes = list(ex.walk(reading.op.build(tuple(ex.input_(i, int32) for i in range(count)))))
    products = [n for n in nodes if n.op == "mul" and n.dtype is float32]
    assert 32 < len(products) <= 32 + 16
    # Those are the numbers of the scales.
    assert sum(n.op == "cast" and n.args[0].dtype is int32 for n in nodes) <= 6
    masks = [n for n in nodes if n.op == "and" and n.args[1].value == 0x0F0F0F0F]
    # Two more are of the scales and minima, of which a word has four.
    assert len(masks) == 8 + 2


def test_formulas_of_many_parts_of_the_same_data_bind_it_once(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_of_formats, "_LANES", 64)
    multiplying.cache_clear()
    try:
        weight = packed("Q6_K", drawn("Q6_K", 3, 1024), device, 1024)
        x = webtorch.ones(1, 1024, device=device)
        product = webtorch.compile(lambda x: F.linear(x, weight))
        assert webtorch.allclose(product(x), weight.dequantize().sum(1), rtol=1e-4, atol=1e-3)
    finally:
        multiplying.cache_clear()
    routines = product.latest().executable.program.routines
    assert max(len(r.buffers) for r in routines) <= 4


# Formats whose integers are chosen from a list.
CHOSEN = {"IQ4_NL", "IQ4_XS", "MXFP4", "NF4", "FP4"}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("columns", [512, 1280])
def test_compiled_products_of_a_row_are_as_exact(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []
    native = integers.native

    def noted(kernel: Kernel, source: str) -> jit.Native | None:
        """Note whether a kernel multiplies integers."""
        found = native(kernel, source)
        made.append(found is not None)
        return found

    monkeypatch.setattr(KernelRunner, "_pays", lambda self: True)
    monkeypatch.setattr(integers, "native", noted)
    blocks = drawn(name, 70, columns)
    weight = packed(name, blocks, "cpu", columns)
    exact = unpacked(name, blocks).astype(np.float64)
    x = np.random.default_rng(0).standard_normal((1, columns), dtype=np.float32)
    # What is not finite or next to nothing is not rounded; zeros are.
    parts = np.ones((4, columns), dtype=np.float32)
    parts[1, :256], parts[2, 3], parts[3] = 0, np.inf, 1e-33
    for part in parts:
        row = x * part
        with np.errstate(invalid="ignore"):
            expected = row.astype(np.float64) @ exact.T
            bound = np.abs(row.astype(np.float64)) @ np.abs(exact.T)
        out = (F.linear(webtorch.from_numpy(row), weight) + 1).numpy() - 1.0
        finite = np.isfinite(expected)
        assert (np.isfinite(out) == finite).all()
        assert (np.abs(out[finite] - expected[finite]) <= 1e-6 * bound[finite] + 1e-6).all()
    if integers.lanes():
        assert any(made) == (name not in CHOSEN)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    ("shape", "columns"), [((7,), 256), ((2, 3), 768), ((0,), 256), ((1,), 256)]
)
def test_products_have_gradients(
    name: str, shape: tuple[int, ...], columns: int, device: str
) -> None:
    weight = packed(name, drawn(name, 6, columns), device, columns)
    plain = weight.dequantize()
    x = webtorch.randn(*shape, columns, device=device, requires_grad=True)
    bias = webtorch.randn(6, device=device, requires_grad=True)
    out, expected = F.linear(x, weight, bias), F.linear(x, plain, bias)
    if x.numel():
        near(out, expected, x, plain)
    g = webtorch.randn_like(expected)
    found = webtorch.autograd.grad(out, (x, bias), g)
    webtorch.testing.assert_close(found, webtorch.autograd.grad(expected, (x, bias), g))


@pytest.mark.parametrize("name", SOME)
def test_rows_at_indices(name: str, device: str) -> None:
    table = packed(name, drawn(name, 6, 256), device, 256)
    index = webtorch.tensor([[1, 5], [0, 1]], device=device)
    assert webtorch.equal(F.embedding(index, table), table.dequantize()[index])
    half = table.to(webtorch.float16)
    assert F.embedding(index, weight=half).dtype is webtorch.float16


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_products_have_the_type_of_the_input(kind: str, device: str) -> None:
    weight = packed("Q4_K", drawn("Q4_K", 4, 256), device, 256)
    x = webtorch.randn(2, 256, device=device).to(getattr(webtorch, kind))
    out = F.linear(x, weight)
    assert out.dtype is x.dtype
    webtorch.testing.assert_close(
        out.float(), x.float() @ weight.dequantize().t(), rtol=1e-2, atol=1e-1
    )


def test_other_ways_to_multiply(device: str) -> None:
    weight = packed("Q8_0", drawn("Q8_0", 4, 64), device, 64)
    x = webtorch.randn(2, 64, device=device)
    expected = F.linear(x, weight)
    for out in (x @ weight.T, webtorch.matmul(x, weight.t()), F.linear(input=x, weight=weight)):
        assert webtorch.equal(out, expected)
    y, whole = webtorch.randn(3, 4, device=device), weight.dequantize()
    near(y @ weight, y @ whole, y, whole.t())
    with webtorch.autocast(device, dtype=webtorch.bfloat16):
        assert F.linear(x, weight).dtype is webtorch.bfloat16


def test_products_and_rows_are_mapped(device: str) -> None:
    weight = packed("Q4_K", drawn("Q4_K", 6, 256), device, 256)
    plain = weight.dequantize()
    x = webtorch.randn(3, 256, device=device)
    near(webtorch.vmap(lambda row: F.linear(row, weight))(x), x @ plain.t(), x, plain)
    index = webtorch.tensor([[0, 3], [1, 2], [5, 4]], device=device)
    found = webtorch.vmap(lambda i: F.embedding(i, weight))(index)
    assert webtorch.equal(found, plain[index])
    slopes = webtorch.vmap(webtorch.func.grad(lambda row: F.linear(row, weight).sum()))(x)
    webtorch.testing.assert_close(slopes, plain.sum(0).expand(3, 256), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_layers_compile_and_are_followed(name: str, device: str) -> None:
    layer = PackedLinear(
        packed(name, drawn(name, 8, 256), device, 256), webtorch.ones(8, device=device)
    )
    table = PackedEmbedding(packed(name, drawn(name, 8, 256), device, 256))

    def step(index: webtorch.Tensor) -> webtorch.Tensor:
        return layer(table(index)).relu()

    compiled = webtorch.compile(step, fullgraph=True)
    for i in range(6):
        index = webtorch.tensor([i, 7 - i], device=device)
        x, weight = table.weight.dequantize()[index], layer.weight.dequantize()
        expected = F.linear(x, weight, layer.bias).relu()
        for found in (step(index), compiled(index)):
            near(found, expected, x, weight)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_tensors_and_layers_move_and_are_saved(name: str, device: str, tmp_path: Path) -> None:
    blocks = drawn(name, 3, 256)
    there = packed(name, blocks, device, 256)
    for weight in (there, there.to("cpu"), there.to("cpu").to(device), copy.deepcopy(there)):
        np.testing.assert_array_equal(weight.bytes().numpy(force=True), blocks)
    again = pickle.loads(pickle.dumps(there))
    assert again.format == name and webtorch.equal(again.bytes(), there.bytes().cpu())
    assert there.to(webtorch.float16).dequantize().dtype is webtorch.float16
    layer = PackedLinear(there, webtorch.ones(3, device=device))
    x = webtorch.randn(2, 256)
    expected = layer(x.to(device)).cpu()
    near(layer.to("cpu")(x), expected, x, there.to("cpu").dequantize())
    webtorch.save(layer.state_dict(), tmp_path / "m.safetensors")
    empty = PackedLinear(packed(name, blocks * 0, "cpu", 256), webtorch.zeros(3)).to(device)
    empty.load_state_dict(webtorch.load(tmp_path / "m.safetensors"))
    webtorch.testing.assert_close(empty(x.to(device)).cpu(), expected, rtol=0, atol=0)


def test_parts_and_facts(device: str) -> None:
    blocks = drawn("Q8_0", 6, 64)
    weight = PackedTensor(webtorch.from_numpy(blocks.reshape(-1)).to(device), "Q8_0", (3, 2, 64))
    assert (weight.ndim, len(weight), weight.numel(), weight.nbytes) == (3, 3, 384, blocks.nbytes)
    assert weight.size() == (3, 2, 64) and weight.size(-1) == 64
    assert "Q8_0, shape=[3, 2, 64]" in repr(weight)
    whole = weight.dequantize()
    assert webtorch.equal(weight[1].dequantize(), whole[1])
    assert webtorch.equal(weight[1:].dequantize(), whole[1:])
    assert webtorch.equal(weight[-1][1:].dequantize(), whole[-1][1:])
    x = webtorch.randn(1, 64, device=device)
    near(F.linear(x, weight[2]), F.linear(x, whole[2]), x, whole[2])
    with pytest.raises(IndexError, match="out of range"):
        weight[3]


def test_slices_that_begin_within_words(device: str) -> None:
    # A row has 102 bytes: two of them fill groups of blocks, but begin in the middle of a word.
    weight = packed("Q8_0", drawn("Q8_0", 5, 96), device, 96)
    whole = weight.dequantize()
    for part in (slice(1, 3), slice(1, 2), slice(3, None), slice(0, 0), slice(3, 1)):
        assert weight[part].shape == whole[part].shape
        assert webtorch.equal(weight[part].dequantize(), whole[part])


def test_what_does_not_fit_is_refused() -> None:
    data = webtorch.zeros(144, dtype=webtorch.uint8)
    with pytest.raises(ValueError, match="unknown format 'Q9'"):
        PackedTensor(data, "Q9", (1, 256))
    with pytest.raises(ValueError, match="must be a multiple of 256"):
        PackedTensor(data, "Q4_K", (1, 128))
    with pytest.raises(ShapeError, match="has 288 bytes, not 144"):
        PackedTensor(data, "Q4_K", (2, 256))
    with pytest.raises(DTypeError, match="stands for floats"):
        PackedTensor(data, "Q4_K", (1, 256), webtorch.int32)
    with pytest.raises(ValueError, match="'Q8_K' is not written here"):
        quantize(webtorch.ones(1, 256), "Q8_K")
    with pytest.raises(ValueError, match="must be a multiple of 32"):
        quantize(webtorch.ones(1, 48), "Q8_0")
    with pytest.raises(DTypeError, match="tensor of floats"):
        quantize(webtorch.ones(1, 32, dtype=webtorch.int32), "Q8_0")
    weight = PackedTensor(data, "Q4_K", (1, 256))
    with pytest.raises(ShapeError, match="last dim must be 256"):
        F.linear(webtorch.ones(2, 255), weight)
    with pytest.raises(DTypeError, match="must be a float tensor"):
        F.linear(webtorch.ones(2, 256, dtype=webtorch.int64), weight)
    with pytest.raises(ValueError, match="max_norm"):
        F.embedding(webtorch.tensor([0]), weight, max_norm=1.0)
    with pytest.raises(ShapeError, match="indexed along the first"):
        weight[0][0]
