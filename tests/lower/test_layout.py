"""Programs laid out, by text: which piece of memory each buffer lies in, what each pass binds, where arguments lie."""

from __future__ import annotations

import pytest

from tests.webgpu.support import scale_kernel
from webtorch.errors import KernelError
from webtorch.ir.dtype import DType, bool_, float32, int32, int64
from webtorch.ir.kernel import Routine
from webtorch.ir.program import BufferDecl, Copy, Dispatch, Program
from webtorch.lower.layout import Rendered, binding_bytes, lay_out, lay_out_memory
from webtorch.lower.wgsl_shader import WgslPass


def _program(*buffers: BufferDecl, steps: tuple[Dispatch | Copy, ...] = ()) -> Program:
    inputs = tuple(i for i, b in enumerate(buffers) if b.role == "input")
    outputs = tuple(i for i, b in enumerate(buffers) if b.role == "output")
    return Program((scale_kernel(4),), buffers, steps, (float32, int32), inputs, outputs)


def _shader(
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    scratch: tuple[int, ...] = (),
    args: tuple[tuple[int, DType, int], ...] = ((0, float32, 0),),
    status: bool = False,
) -> WgslPass:
    return WgslPass("", grid, (64, 1, 1), (0, 1), scratch, args, 4 * len(args), status)


def test_buffers_share_pieces_where_they_take_over_memory() -> None:
    program = _program(
        BufferDecl("temporary", float32, 100, alias=0),
        BufferDecl("input", float32, 8),
        BufferDecl("temporary", float32, 5),
        BufferDecl("output", float32, 8, alias=1),
        BufferDecl("temporary", bool_, 7, alias=0),
        BufferDecl("output", int64, 3),
    )
    memory = lay_out_memory(program)
    assert str(memory) == (
        "  @0: input 32 bytes #1 #3\n"
        "  @1: output 24 bytes #5\n"
        "  @2: temporary 400 bytes #0 #4\n"
        "  @3: temporary 20 bytes #2"
    )
    assert memory.places == (2, 0, 3, 0, 2, 1)
    assert memory.outputs == (0, 1)
    assert memory.nbytes("temporary") == 420


def test_a_slot_of_temporaries_is_no_buffer_of_its_number() -> None:
    # `alias` of an output is a buffer, that of a temporary a slot: equal numbers mean nothing.
    program = _program(
        BufferDecl("input", float32, 2), BufferDecl("temporary", float32, 2, alias=0)
    )
    assert lay_out_memory(program).places == (0, 1)


def test_a_piece_is_as_large_as_the_largest_of_its_buffers() -> None:
    program = _program(
        BufferDecl("temporary", bool_, 7, alias=2),
        BufferDecl("temporary", int64, 9, alias=2),
        BufferDecl("temporary", float32, 12, alias=2),
    )
    assert [p.nbytes for p in lay_out_memory(program).pieces] == [72]
    # WebGPU holds int64 as 32 bits.
    assert [p.nbytes for p in lay_out_memory(program, binding_bytes).pieces] == [48]


def test_an_output_that_is_an_input_or_is_returned_twice_is_one_piece() -> None:
    buffers = (BufferDecl("input", float32, 4), BufferDecl("output", float32, 4))
    program = Program((), buffers, (), (), (0,), (1, 0, 1))
    memory = lay_out_memory(program)
    assert [p.role for p in memory.pieces] == ["input", "output"]
    assert memory.outputs == (1, 0, 1)


def _chain(*shaders: Rendered, limit: int = 65535) -> str:
    program = _program(
        BufferDecl("input", int64, 4),
        BufferDecl("temporary", float32, 4),
        BufferDecl("output", float32, 5),
        steps=(Dispatch(0, (0, 1), (0,)), Dispatch(0, (1, 2), (1,)), Copy(1, 2)),
    )
    return str(lay_out(program, lambda _: shaders, limit))


def test_passes_bind_pieces_and_their_arguments() -> None:
    assert _chain(Rendered(_shader(status=True))) == (
        "layout  3 pieces, 3 steps\n"
        "  @0: input 16 bytes #0\n"
        "  @1: output 32 bytes #2\n"
        "  @2: temporary 16 bytes #1\n"
        "  uniform +0: f32 argument 0\n"
        "  uniform +256: f32 argument 1\n"
        "  scale(@0[16], @2[16], uniform +0, status) on 1 x 1 x 1\n"
        "  scale(@2[16], @1[32], uniform +256, status) on 1 x 1 x 1\n"
        "  copy @2 -> @1, 16 bytes"
    )


def test_passes_share_scratch_memory_by_number() -> None:
    text = _chain(
        Rendered(_shader(scratch=(20,), args=())), Rendered(_shader(scratch=(8, 64), args=()))
    )
    assert "  @3: scratch 32 bytes\n  @4: scratch 64 bytes\n" in text
    assert "  scale(@0[16], @2[16], @3[32]) on 1 x 1 x 1\n" in text
    assert "  scale(@0[16], @2[16], @3[16], @4[64]) on 1 x 1 x 1\n" in text


def test_sizes_are_arguments_behind_those_of_the_program() -> None:
    asked: list[Routine] = []

    def render(routine: Routine) -> list[Rendered]:
        asked.append(routine)
        return [Rendered(_shader(args=((0, int32, 0),)), sizes=(7, 9))]

    program = _program(
        BufferDecl("input", float32, 4),
        BufferDecl("output", float32, 4),
        steps=(Dispatch(0, (0, 1), (0,)), Dispatch(0, (0, 1), (0,))),
    )
    layout = lay_out(program, render, 8)
    assert len(asked) == 1
    assert layout.types == (float32, int32, int32, int32)
    assert layout.constants == (7, 9)
    assert [(f.offset, f.argument) for f in layout.fields] == [(0, 0), (256, 2), (260, 3)]
    assert layout.passes[0].sizes == layout.passes[1].sizes == (256, 16)


@pytest.mark.parametrize("grid", [(9, 1, 1), (1, 0, 1)])
def test_a_grid_that_no_dispatch_can_have_is_refused(grid: tuple[int, int, int]) -> None:
    with pytest.raises(KernelError, match=r"compile scale: the grid .* has a side outside 1\.\.8"):
        _chain(Rendered(_shader(grid=grid)), limit=8)
