"""Products on matrix units: which are, and that the kernels compute them.

No adapter here has matrix units: emulated.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import webtorch
from tests.lower.emulated import without_units
from tests.lower.graphs import program_of
from tests.lower.harness import open_device
from tests.lower.test_wgsl_matmul import LAYOUTS, compare, make
from webtorch.ir.dtype import DType, bfloat16, float16, float32
from webtorch.ir.kernel import Matmul
from webtorch.ir.limits import Limits
from webtorch.lower.templates import matrix_units
from webtorch.lower.templates.matmul import product, render
from webtorch.lower.templates.tuning import FAMILIES, MatrixTile
from webtorch.lower.wgsl_shader import WgslPass
from webtorch.nn import functional as F
from webtorch.quantization import FORMATS, PackedTensor

HALF = (float16, float16, float16)
WITH = Limits(1 << 31, 8, 1024, 65_535, 48 << 10, True, True, has_matrix_units=True)

# Lane l of a subgroup holds columns (l % 2) * 8 ... + 7 of row l / 2 of a result.
EMULATED = """
fn element(at: u32) -> f32 { return unpack2x16float(tiles[at / 8u][(at / 2u) % 4u])[at % 2u]; }
fn place(m: vec3<u32>, r: u32, c: u32) -> u32 {
  if (m.z == 1u) { return (m.x + r * m.y) * 8u + c; }
  return (m.x + c * m.y) * 8u + r;
}
fn accumulate(a: vec3<u32>, b: vec3<u32>, old: array<f32, 8>, lane: u32) -> array<f32, 8> {
  var m = old;
  for (var i = 0u; i < 8u; i = i + 1u) {
    for (var k = 0u; k < 16u; k = k + 1u) {
      m[i] = m[i] + element(place(a, lane / 2u, k)) * element(place(b, k, (lane % 2u) * 8u + i));
    }
  }
  return m;
}
"""


STORE = (
    r"subgroupMatrixStore<row_major>\(&tiles, (.+), (\w+), (\d+u)\);",
    r"for (var i = 0u; i < 8u; i = i + 1u) {"
    r" tiles[\1 + (lid % 32u) / 2u * \3 + (lid % 2u) * 2u + i / 4u][i % 4u] = bitcast<u32>(\2[i]); }",
)


def emulated(p: WgslPass) -> WgslPass:
    """Return a pass that needs no matrix units."""
    return without_units(p, [STORE], EMULATED)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize(
    ("tile", "m", "n", "k", "split", "out"),
    [
        (MatrixTile(2, 2, 1, 1, 32), 64, 64, 64, 1, float16),
        (MatrixTile(1, 2, 2, 1, 16), 72, 40, 136, 1, float32),
        (MatrixTile(2, 1, 1, 2, 32), 40, 56, 200, 3, float16),
        (MatrixTile(1, 2, 1, 3, 16), 24, 104, 72, 1, float16),
    ],
    ids=str,
)
def test_every_layout_edge_and_split(
    tile: MatrixTile, m: int, n: int, k: int, split: int, out: DType, layout: tuple[bool, bool]
) -> None:
    device = open_device()
    if not device.limits.has_f16:
        pytest.skip("the adapter has no float16")
    r = make((2,), m, n, k, (float16, float16, out), *layout)
    passes = matrix_units.matrix_passes(product(r), device.limits, tile, split)
    compare(r, [emulated(p) for p in passes], device=device)


def test_rows_that_are_no_multiple_of_eight_run_along_k() -> None:
    device = open_device()
    if not device.limits.has_f16:
        pytest.skip("the adapter has no float16")
    r = make((), 37, 19, 24, HALF, False, True)
    passes = matrix_units.matrix_passes(product(r), device.limits, MatrixTile(2, 2, 1, 1, 32), 1)
    compare(r, [emulated(p) for p in passes], device=device)


@pytest.mark.parametrize(
    ("name", "m", "split"),
    [("Q4_K", 20, 2), ("Q6_K", 9, 1), ("Q8_0", 40, 1), ("Q5_0", 17, 1), ("Q5_1", 10, 1)],
    ids=str,
)
def test_packed_weights_are_unpacked_on_the_way(name: str, m: int, split: int) -> None:
    device = open_device()
    if not device.limits.has_f16:
        pytest.skip("the adapter has no float16")
    n, k, form = 24, 512, FORMATS[name]
    rng = np.random.default_rng(m)
    # Small scales, of which no sum is infinite.
    data = rng.integers(0, 24, n * k // form.elements * form.nbytes, dtype=np.uint8)
    here = PackedTensor.from_bytes(data.tobytes(), name, (n, k), device="cpu")
    there = PackedTensor.from_bytes(data.tobytes(), name, (n, k), device="meta")
    x = rng.standard_normal((m, k)).astype(np.float16)
    program = program_of(lambda x: F.linear(x, there), webtorch.empty(m, k, device="meta").half())
    (r,) = program.routines
    assert isinstance(r, Matmul) and r.unpacked is not None
    assert uses_them(r) and not uses_them(r, replace(WITH, has_matrix_units=False))
    # Bytes that become floats are unpacked into memory.
    small = webtorch.empty(n, k, dtype=webtorch.int8, device="meta")
    other = program_of(
        lambda x: F.linear(x, small.half()), webtorch.empty(m, k, device="meta").half()
    )
    assert not any(isinstance(r, Matmul) and r.unpacked for r in other.routines)
    tile = next(t for t in FAMILIES["H200"].unpacking if t.rows >= m)
    passes = matrix_units.matrix_passes(product(r), device.limits, tile, split)
    words = np.frombuffer(data.tobytes() + bytes(-len(data) % 4), np.int32)
    found = device.run(r, [x.ravel(), words, None], passes=[emulated(p) for p in passes])[2]
    weight = here.dequantize().numpy().astype(np.float16).astype(np.float64)
    expected = x.astype(np.float64) @ weight.T
    bound = np.abs(x.astype(np.float64)) @ np.abs(weight.T)
    assert (np.abs(found.reshape(m, n) - expected) <= 2.0**-10 * bound).all()


def uses_them(r: object, limits: Limits = WITH, engine: str = "dawn") -> bool:
    """Whether a product is rendered for matrix units."""
    return any("subgroupMatrix" in p.source for p in render(r, limits, engine))  # type: ignore[arg-type]


def test_which_products_matrix_units_compute() -> None:
    for layout in LAYOUTS:
        assert uses_them(make((), 512, 512, 512, HALF, *layout))
    assert uses_them(make((3,), 256, 256, 256, (float16, float16, float32)))
    # Other types, other engines, other adapters; operands that are not eight apart; small ones.
    assert not uses_them(make((), 512, 512, 512))
    assert not uses_them(make((), 512, 512, 512, (bfloat16,) * 3))
    assert not uses_them(make((), 512, 512, 512, HALF), engine="naga")
    assert not uses_them(make((), 512, 512, 512, HALF), replace(WITH, has_matrix_units=False))
    assert not uses_them(make((), 512, 512, 508, HALF))
    assert not uses_them(make((), 512, 512, 512, HALF, offset=3))
    assert not uses_them(make((), 512, 8, 512, HALF))


def test_tiles_fill_the_multiprocessors_of_a_family() -> None:
    limits = replace(WITH, family="H200")

    def chosen(m: int, n: int, k: int, left: bool, right: bool) -> tuple[MatrixTile, int]:
        found = matrix_units.choose(product(make((), m, n, k, HALF, left, right)), limits, "dawn")
        assert found is not None and found[0].shared_bytes <= limits.workgroup_memory_bytes
        return found

    # 192 tiles of 128 columns would leave 72 of 132 multiprocessors with one, and not two.
    tile, split = chosen(8192, 384, 1536, False, True)
    assert (tile.rows, tile.columns, split) == (128, 96, 1)
    tile, split = chosen(4096, 4096, 4096, False, False)
    assert (tile.rows, tile.columns, split) == (128, 128, 1)
    # Few outputs and a long sum are split, into no more than two workgroups for each.
    tile, split = chosen(384, 384, 8192, True, False)
    groups = -(-384 // tile.rows) * -(-384 // tile.columns) * split
    assert split > 1 and 66 < groups <= 264
