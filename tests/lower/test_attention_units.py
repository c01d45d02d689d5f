"""Attention on matrix units: that its kernels compute it.

No adapter here has matrix units: emulated.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.lower.emulated import without_units
from tests.lower.harness import open_device
from webtorch.ir.dtype import bool_, float16, float32
from webtorch.ir.kernel import Attention, BufferSlot
from webtorch.ir.limits import Limits
from webtorch.ir.program import BufferDecl, Dispatch, Program
from webtorch.lower.templates import attention_backward, attention_units, matrix_units
from webtorch.lower.templates.attention_units import UnitTile
from webtorch.lower.wgsl_shader import WgslPass
from webtorch.runtime.backends import get_backend

WITH = Limits(1 << 31, 8, 1024, 65_535, 48 << 10, True, False, has_matrix_units=True)

# A left fragment is the 16 elements of row lane / 2, a right one is where it lies in `tile`, a result
# columns (lane % 2) * 8 ... + 7 of row lane / 2. Offsets and strides count vectors.
EMULATED = """
fn half_of(v: vec4<u32>, i: u32) -> f32 { return unpack2x16float(v[(i / 2u) % 4u])[i % 2u]; }
fn left_of_NAME(at: u32, line: u32, lane: u32) -> array<f32, 16> {
  var m: array<f32, 16>;
  for (var k = 0u; k < 16u; k = k + 1u) { m[k] = half_of(NAME[at + lane / 2u * line + k / 8u], k % 8u); }
  return m;
}
fn right_of(b: vec3<u32>, k: u32, c: u32) -> f32 {
  let r = select(c, k, b.z == 1u);
  let e = select(k, c, b.z == 1u);
  return half_of(tile[b.x + r * b.y + e / 8u], e % 8u);
}
fn accumulate(a: array<f32, 16>, b: vec3<u32>, old: array<f32, 8>, lane: u32) -> array<f32, 8> {
  var m = old;
  var l = a;
  for (var i = 0u; i < 8u; i = i + 1u) {
    for (var k = 0u; k < 16u; k = k + 1u) { m[i] = m[i] + l[k] * right_of(b, k, (lane % 2u) * 8u + i); }
  }
  return m;
}
fn put(at: u32, line: u32, m: array<f32, 8>, lane: u32) {
  var x = m;
  for (var i = 0u; i < 2u; i = i + 1u) {
    let v = vec4<f32>(x[i * 4u], x[i * 4u + 1u], x[i * 4u + 2u], x[i * 4u + 3u]);
    scores[at + lane / 2u * line + lane % 2u * 2u + i] = v;
  }
}
fn back(at: u32, line: u32, lane: u32) -> array<f32, 8> {
  let a = scores[at + lane / 2u * line + lane % 2u * 2u];
  let b = scores[at + lane / 2u * line + lane % 2u * 2u + 1u];
  return array<f32, 8>(a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
}
"""


OWN = (
    (
        r"subgroupMatrixLoad<array<f32, 8>, row_major>\(&scores, (.+), (\d+u)\);",
        r"back(\1, \2, lid % 32u);",
    ),
    (
        r"subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>\(&(\w+), (.+), (\d+u)\);",
        r"left_of_\1(\2, \3, lid % 32u);",
    ),
    (
        r"subgroupMatrixStore<row_major>\(&scores, (.+), (\w+), (\d+u)\);",
        r"put(\1, \3, \2, lid % 32u);",
    ),
    # The lane with the other half of the row, through workgroup memory.
    (
        r"^( *let \w+ = )(.*)subgroupShuffleXor\((\w+), (\d+u)\)(.*)$",
        r"  workgroupBarrier(); other[lid] = \3; workgroupBarrier();\n\1\2other[lid ^ \4]\5",
    ),
)


def emulated(p: WgslPass) -> WgslPass:
    """Return a pass that needs no matrix units, nor subgroups."""
    shared = f"var<workgroup> other: array<f32, {p.workgroup_size[0]}>;\n"
    # What loads a left fragment, for each array that there is.
    first, load, rest = re.split(r"(fn left_of_NAME.*?^}\n)", EMULATED, flags=re.M | re.S)
    loads = [load.replace("NAME", n) for n in ("tile", "halves") if f" {n}: array" in p.source]
    return without_units(p, OWN, shared + first + "".join(loads) + rest)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("length", "source", "size", "width", "causal", "mask", "results"),
    [
        (36, 36, 16, 32, True, False, (0, 1, 2)),
        (20, 50, 32, 16, False, True, (0, 2)),
    ],
    ids=str,
)
def test_forward_and_gradients(
    length: int,
    source: int,
    size: int,
    width: int,
    causal: bool,
    mask: bool,
    results: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not open_device().limits.has_f16:
        pytest.skip("the adapter has no float16")
    monkeypatch.setattr(attention_units, "TILES", (UnitTile(2, 1, 16),))
    monkeypatch.setattr(attention_units, "WEIGHT_TILES", (UnitTile(2, 1, 16, 2),))
    # The products have tests of their own: here without matrix units.
    monkeypatch.setattr(matrix_units, "choose", lambda *_: None)
    b, h, g = 2, 2, 1 + mask
    random = np.random.default_rng(3)

    def drawn(heads: int, rows: int, last: int) -> Any:
        return (2 * random.standard_normal((b, heads, rows, last))).astype(np.float16)

    q, k, v, go = drawn(h, length, size), drawn(g, source, size), drawn(g, source, width), None
    go = drawn(h, length, width)
    # Scores that grow along the row: what was added up is scaled.
    k *= np.linspace(0.2, 3, source, dtype=np.float16)[:, None]
    seen = random.random((length, source)) < 0.8
    seen[:, 0] = True
    wide = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *wide,
        torch.tensor(seen & np.tri(length, source, dtype=bool) if causal else seen)
        if mask
        else None,
        is_causal=causal and not mask,
        enable_gqa=True,
    )
    grads = torch.autograd.grad(out, wide, torch.tensor(go.astype(np.float64)))
    strides = [
        (x.shape[1] * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3], x.shape[3], 1)
        for x in (q, k, v, go)
    ]
    if mask:
        strides.insert(3, (0, 0, source, 1))
    masks = [BufferSlot(bool_, "read", seen.size)] if mask else []
    operands = [BufferSlot(float16, "read", x.size) for x in (q, k, v)] + masks
    rows = b * h * length
    forward = Attention(
        "units", "forward", b, h, g, length, source, size, width, causal, mask, False, (0, 1),
        tuple(strides[: 3 + mask]), (0,) * (3 + mask),
        (*operands, BufferSlot(float16, "write", go.size), BufferSlot(float32, "write", 2 * rows)),
        (float32,),
    )  # fmt: skip
    backward = replace(
        forward,
        part="backward",
        results=results,
        strides=tuple(strides),
        offsets=(0,) * (4 + mask),
        buffers=(
            *operands,
            BufferSlot(float16, "read", go.size),
            BufferSlot(float32, "read", 2 * rows),
            BufferSlot(float32, "read", rows),
            *(BufferSlot(float16, "write", (q, k, v)[n].size) for n in results),
        ),
    )
    one = attention_units.forward(forward, WITH, "dawn")
    assert one is not None
    inputs = [q, k, v, *([seen] if mask else [])]
    found, stats = run(forward, [emulated(one)], inputs)
    np.testing.assert_allclose(found.reshape(out.shape), out.detach(), rtol=2e-3, atol=4e-3)
    delta = (go.astype(np.float64) * out.detach().numpy()).sum(-1).astype(np.float32)
    passes = attention_backward.render(backward, WITH, "dawn")
    assert ["subgroupMatrix" in p.source for p in passes] == [n == 0 for n in range(len(passes))]
    found = run(
        backward, [emulated(p) for p in passes], [*inputs, go, stats.astype(np.float32), delta]
    )
    for n, x in zip(results, found, strict=True):
        y = grads[n]
        np.testing.assert_allclose(
            x.reshape(y.shape), y, rtol=1e-2, atol=1e-2 * float(y.abs().max()), err_msg="qkv"[n]
        )


def run(routine: Attention, passes: list[WgslPass], inputs: list[Any]) -> list[Any]:
    """Return what the passes compute."""
    device: Any = get_backend("webgpu", 0)
    count = len(inputs)
    decls = tuple(
        BufferDecl("input" if i < count else "output", s.dtype, s.elements)
        for i, s in enumerate(routine.buffers)
    )
    numbers = tuple(range(len(decls)))
    program = Program(
        (routine,),
        decls,
        (Dispatch(0, numbers, (0,)),),
        (float32,),
        numbers[:count],
        numbers[count:],
    )
    given = [
        device.upload(memoryview(x.tobytes()), s.dtype, s.elements)
        for x, s in zip(inputs, routine.buffers, strict=False)
    ]
    device.put_rendered(routine, passes)
    try:
        found = device.compile(program).run(given, (routine.size**-0.5,))
        kinds = {"float16": np.float16, "float32": np.float32}
        return [
            np.frombuffer(device.download(x), kinds[x.dtype.name])[: x.elements].astype(np.float64)
            for x in found
        ]
    finally:
        device.put_rendered(routine, None)
