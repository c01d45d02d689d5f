"""Shaders of the user's own on PyTorch tensors: `torch.webgpu.compile_shader`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SOURCE = """
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> value: f32;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64) fn full(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&out)) { out[id.x] = value; }
}
@compute @workgroup_size(64) fn twice(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&out)) { out[id.x] = x[id.x] * 2.0; }
}
"""


@pytest.fixture(name="lib")
def _lib(webgpu: str) -> Any:
    return torch.webgpu.compile_shader(SOURCE)


def test_a_call_writes_in_order_and_is_noted(lib: Any) -> None:
    x = torch.zeros(7, device="webgpu")
    before, alike, version = x + 1, x.clone(), x._version
    lib.full(x, 3.5)
    assert x.tolist() == [3.5] * 7
    assert before.tolist() == [1.0] * 7
    assert alike.tolist() == [0.0] * 7
    assert x._version == version + 1
    w = torch.ones(7, device="webgpu", requires_grad=True)
    loss = (w * x).sum()
    lib.full(x[2:], 1.0)
    assert x.tolist() == [3.5] * 2 + [1.0] * 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_views_are_their_elements_in_order(lib: Any) -> None:
    out = torch.zeros(2, 3, device="webgpu")
    x = torch.arange(6.0, device="webgpu").reshape(3, 2)
    lib.twice(out.t(), x)
    assert torch.equal(out.cpu(), 2 * torch.arange(6.0).reshape(3, 2).t())
    lib.twice(out[0], x[:, 1])
    assert out[0].tolist() == [2.0, 6.0, 10.0]
    image = torch.arange(16.0).reshape(1, 2, 2, 4)
    image = image.to("webgpu", memory_format=torch.channels_last)
    made = torch.empty_like(image)
    lib.twice(made, image + 0)
    assert torch.equal(made.cpu(), 2 * torch.arange(16.0).reshape(1, 2, 2, 4))
    z = torch.zeros(2, dtype=torch.complex64, device="webgpu")
    lib.full(z, 1.5)
    assert z.tolist() == [1.5 + 1.5j] * 2


def test_what_cannot_be_is_refused(lib: Any) -> None:
    w = torch.ones(3, device="webgpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        lib.full(w, 1.0)
    with pytest.raises(RuntimeError, match="full: a shader writes to a tensor that requires grad"):
        lib.full(w * 1, 1.0)
    with pytest.raises(RuntimeError, match=r"full: a shader runs on the device 'webgpu'.*'cpu'"):
        lib.full(torch.ones(3), 1.0)
    with pytest.raises(RuntimeError, match="share memory"):
        lib.twice(w.detach(), w.detach())
    with pytest.raises(RuntimeError, match=r"no rule for torch.func's transforms"):
        torch.func.vmap(lambda x: lib.full(x, 1.0))(torch.ones(2, 3, device="webgpu"))
    with pytest.raises(AttributeError, match="shaders of one's own are WGSL, see compile_shader"):
        torch.webgpu.jiterator
    with pytest.raises(SyntaxError, match="compile shader"):
        torch.webgpu.compile_shader("kernel void full()")


def test_a_compiled_function_calls_it_between_its_programs(lib: Any) -> None:
    @torch.compile(backend="webgpu")
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        out = torch.empty_like(x)
        lib.twice(out, y)
        return out + 1

    x = torch.arange(4.0, device="webgpu")
    for _ in range(3):
        assert step(x).tolist() == [1.0, 7.0, 13.0, 19.0]
