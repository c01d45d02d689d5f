"""Shaders of the user's own: `webtorch.webgpu.compile_shader`."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import webtorch as torch
from tests.conftest import need_device
from webtorch.errors import CaptureError, DeviceError, DTypeError, ShaderError
from webtorch.lower.wgsl_reader import Reader
from webtorch.webgpu.shader import ShaderLibrary

SOURCE = """
// Two entry points that have a binding each at number 1. @binding(9) var<uniform> none: f32;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> value: f32;
@binding(1) @group(0) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;
struct Params { scale: f32, shift: vec2<f32>, width: u32, @align(4) more: i32 }
const SIDE = 4u;

fn scaled(i: u32) -> f32 { return x[i] * p.scale + p.shift.y + f32(p.more); }

@compute @workgroup_size(64) fn full(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&out)) { out[id.x] = value; }
}
/* /* @compute */ fn hidden() {} */
@compute @workgroup_size(SIDE, SIDE)
fn grid(@builtin(global_invocation_id) id: vec3u) {
    let i = id.y * p.width + id.x;
    if (id.x < p.width && i < arrayLength(&out)) { out[i] = scaled(i); }
}
@compute @workgroup_size(2) fn number(
    @builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u
) {
    out[id.x] = f32(groups.x);
}
"""
COPY = """
@group(0) @binding(0) var<storage, read_write> out: array<{0}>;
@group(0) @binding(1) var<storage, read> x: array<{0}>;
@compute @workgroup_size(64) fn copy(@builtin(global_invocation_id) id: vec3u) {{
    if (id.x < arrayLength(&out)) {{ out[id.x] = x[id.x]; }}
}}
"""
UNIFORM = """
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> value: {0};
@compute @workgroup_size(1) fn put() {{ out[0] = f32({1}); }}
"""


@pytest.fixture(autouse=True)
def _on_webgpu() -> None:
    need_device("webgpu")
    torch.set_default_device("webgpu")


@pytest.fixture(name="lib")
def _lib() -> ShaderLibrary:
    return torch.webgpu.compile_shader(SOURCE)


def test_entry_points_are_attributes(lib: ShaderLibrary) -> None:
    assert [n for n in dir(lib) if n in Reader(SOURCE).entries] == ["full", "grid", "number"]
    assert repr(lib.full) == "<shader full(out: array<f32>, value: f32)>"
    assert lib.full.max_threads_per_threadgroup >= 64
    with pytest.raises(AttributeError, match="no entry point 'fill': it has full, grid, number"):
        lib.fill


def test_arguments_are_bound_in_order(lib: ShaderLibrary) -> None:
    x = torch.empty(7)
    assert lib.full(x, 3.5) is None
    assert x.tolist() == [3.5] * 7
    x = torch.arange(15.0).reshape(3, 5)
    out = torch.empty(3, 5)
    params = {"scale": 2.0, "shift": (1, 10), "width": 5, "more": -3}
    lib.grid(out, x, params, threads=(5, 3))
    expected = [[2.0 * (5 * r + c) + 7.0 for c in range(5)] for r in range(3)]
    assert out.tolist() == expected
    lib.grid(out.zero_(), x, (2.0, 1, 10, 5, -3), threads=(5, 3), group_size=(2, 8))
    assert out.tolist() == expected


def test_threads_are_whole_workgroups(lib: ShaderLibrary) -> None:
    x = torch.zeros(8)
    lib.number(x, threads=5)
    assert x.tolist() == [3.0] * 6 + [0.0] * 2
    lib.number(x, threads=5, group_size=4)
    assert x.tolist() == [2.0] * 8
    lib.number(x, threads=0)
    assert x.tolist() == [2.0] * 8


def test_what_is_pending_is_computed_in_order(lib: ShaderLibrary) -> None:
    x = torch.ones(4)
    x *= 2
    before, alike = x + 1, x.clone()
    lib.full(x, 5.0)
    after = x + 1
    assert before.tolist() == [3.0] * 4
    assert alike.tolist() == [2.0] * 4
    assert after.tolist() == [6.0] * 4


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:3],
        lambda x: x.t(),
        lambda x: x[::2, 1::2],
        lambda x: x.view(torch.int32).view(torch.float32),
    ],
    ids=["offset", "transposed", "strided", "seen as integers"],
)
def test_views_are_bound_as_their_elements_in_order(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    copy = torch.webgpu.compile_shader(COPY.format("f32")).copy
    numbers = [[10.0 * r + c for c in range(4)] for r in range(4)]
    x = torch.tensor(numbers)
    picked = view(x)
    out = torch.zeros(picked.shape)
    copy(out, picked)
    assert out.tolist() == picked.tolist()
    expected = torch.tensor(numbers)
    view(expected).copy_(out + 0.5)
    copy(picked, out + 0.5)
    assert x.tolist() == expected.tolist()


def test_parts_of_one_memory_are_told_apart(lib: ShaderLibrary) -> None:
    copy = torch.webgpu.compile_shader(COPY.format("f32")).copy
    x = torch.arange(8.0)
    copy(x[4:], x[:4])
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0] * 2
    for a, b in ((x, x), (x[2:6], x[:4])):
        with pytest.raises(RuntimeError, match=r"copy: arguments 0 .* and 1 .* share memory"):
            copy(a, b)


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("float32", "f32"), ("int32", "i32"), ("int64", "i32"), ("uint32", "u32"), ("complex64", "vec2<f32>"),
        ("float16", "u32"), ("bfloat16", "u32"), ("int8", "u32"), ("bool", "u32"), ("int32", "u32"),
    ],
)  # fmt: skip
def test_elements_are_as_they_lie(dtype: str, held: str) -> None:
    copy = torch.webgpu.compile_shader(COPY.format(held)).copy
    x = torch.tensor([1, 0, 3, 1, 0]).to(getattr(torch, dtype))
    out = torch.zeros_like(x)
    copy(out, x)
    assert out.tolist() == x.tolist()


@pytest.mark.parametrize(
    ("kind", "shown", "value", "expected"),
    [
        ("f32", "value", 3, 3.0),
        ("f32", "value", 1e300, math.inf),
        ("i32", "value", -7, -7.0),
        ("u32", "value", True, 1.0),
        ("vec3f", "value.x + 10.0 * value.z", (1, 2, 3), 31.0),
        ("vec4<i32>", "value.w", [1, 2, 3, -4], -4.0),
    ],
)
def test_numbers_are_uniforms(kind: str, shown: str, value: object, expected: float) -> None:
    out = torch.zeros(1)
    torch.webgpu.compile_shader(UNIFORM.format(kind, shown)).put(out, value)
    assert out.item() == expected


def test_casts_of_numbers() -> None:
    put = torch.webgpu.compile_shader(UNIFORM.format("i32", "value")).put
    out = torch.zeros(1)
    put(out, 2.75, arg_casts="int32")
    assert out.item() == 2.0
    put(out, -3.75, arg_casts={1: "int32"})
    assert out.item() == -3.0
    with pytest.raises(TypeError, match=r"argument 1 \(value: i32\) is a whole number, and 2.5"):
        put(out, 2.5)
    with pytest.raises(TypeError, match="arg_casts says fp32, and the shader i32"):
        put(out, 2.5, arg_casts="fp32")
    with pytest.raises(ValueError, match="arg_casts has 'int7', not one of fp32"):
        put(out, 2.5, arg_casts="int7")
    with pytest.raises(OverflowError, match="2147483648 does not fit i32"):
        put(out, 1 << 31)
    with pytest.raises(TypeError, match="is 1 numbers, and 2 were given"):
        put(out, (1, 2))


def test_a_write_is_noted(lib: ShaderLibrary) -> None:
    x = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    loss = (w * x).sum()
    version = x._version
    lib.full(x, 2.0)
    lib.full(x[1:], 4.0)
    assert x._version == version + 2
    assert x.tolist() == [2.0, 4.0, 4.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_are_refused(lib: ShaderLibrary) -> None:
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        lib.full(w, 2.0)
    with pytest.raises(RuntimeError, match="full: a shader writes to a tensor that requires grad"):
        lib.full(w * 1, 2.0)
    with torch.no_grad():
        lib.full(w, 2.0)
    assert w.tolist() == [2.0] * 3


def test_a_loop_with_a_shader_gives_the_same_each_time(lib: ShaderLibrary) -> None:
    w = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5)
    scale = torch.zeros(4)
    expected = 1.0
    for step in range(8):
        lib.full(scale, float(step % 3))
        loss = (w * scale * 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected -= 0.5 * 2 * (step % 3)
        assert w.tolist() == [expected] * 4


def test_a_capture_refuses(lib: ShaderLibrary) -> None:
    x = torch.ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        lib.full(y, 1.0)
        return y

    assert torch.compile(step)(x).tolist() == [1, 1, 1]
    step = torch.compile(step, fullgraph=True)
    with pytest.raises(CaptureError, match=r"full: a shader .*call it outside of the function"):
        step(x)


def test_what_does_not_fit_is_refused(lib: ShaderLibrary) -> None:
    x = torch.ones(3)
    with pytest.raises(
        DTypeError, match=r"out: array<f32> holds f32, and the tensor is torch.int32"
    ):
        lib.full(x.int(), 1.0)
    with pytest.raises(
        TypeError, match=r"argument 0 \(out: array<f32>\) must be a tensor, not float"
    ):
        lib.full(1.0, 1.0)
    with pytest.raises(TypeError, match=r"argument 1 \(value: f32\) is a number"):
        lib.full(x, x)
    with pytest.raises(TypeError, match=r"\(out: array<f32>, value: f32\), and got 1"):
        lib.full(x)
    with pytest.raises(TypeError, match="has the members scale, shift, width, more, not scale"):
        lib.grid(x, x + 1, {"scale": 1.0}, threads=(1, 1))
    with pytest.raises(ValueError, match=r"most 65535 along each dimension: give more dimensions"):
        lib.full(x, 1.0, threads=64 * 65535 + 1)
    with pytest.raises(RuntimeError, match="must have the same number of dimensions, got 1 and 2"):
        lib.full(x, 1.0, group_size=(4, 4))
    with pytest.raises(ValueError, match="one to three numbers"):
        lib.full(x, 1.0, threads=(1, 1, 1, 1))


def test_the_cpu_names_the_rule_and_the_next_step(lib: ShaderLibrary) -> None:
    with pytest.raises(DeviceError, match=r"on 'cpu'. Move the tensors.*webtorch.kernel"):
        lib.full(torch.ones(3, device="cpu"), 1.0)
    with pytest.raises(DeviceError, match=r"compile_shader: a WGSL shader runs on a WebGPU device"):
        torch.webgpu.compile_shader(SOURCE, device="cpu")


@pytest.mark.parametrize("wrong", ["p.scael", "p.scale + true", "p.scale;"])
def test_errors_show_the_line(wrong: str) -> None:
    with pytest.raises(ShaderError) as caught:
        torch.webgpu.compile_shader(SOURCE.replace("p.scale", wrong))
    assert isinstance(caught.value, SyntaxError) and isinstance(caught.value, RuntimeError)
    (marked,) = [x for x in str(caught.value).splitlines() if x.startswith(">")]
    assert marked.startswith(">   10 | fn scaled")


def test_groups_and_workgroups_that_cannot_be_known() -> None:
    with pytest.raises(ShaderError, match=r"'out' is in @group\(1\): arguments are"):
        torch.webgpu.compile_shader(COPY.format("f32").replace("@group(0)", "@group(1)"))
    source = "override size: u32 = 8;" + COPY.format("f32").replace("(64)", "(size)")
    copy = torch.webgpu.compile_shader(source).copy
    out, x = torch.zeros(9), torch.arange(9.0)
    with pytest.raises(TypeError, match="@workgroup_size is not written in numbers"):
        copy(out, x)
    copy(out, x, group_size=4)
    assert out.tolist() == x.tolist()


def test_a_function_with_a_shader_has_the_gradient_that_it_states() -> None:
    cube = torch.webgpu.compile_shader(
        COPY.format("f32").replace("x[id.x];", "x[id.x] * x[id.x] * x[id.x];")
    ).copy

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            out = torch.empty_like(x)
            cube(out, x)
            return out

        @staticmethod
        def backward(ctx, g):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    x = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    out = Cube.apply(x)
    assert out.tolist() == [1.0, -8.0, 0.125]
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 12.0, 0.75]
