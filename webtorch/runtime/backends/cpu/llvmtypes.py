"""What is used of llvmlite's classes, as types: llvmlite has none. The standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Kind(Protocol):
    """A type of LLVM's."""

    @property
    def intrinsic_name(self) -> str:
        """Its name at the end of the names of intrinsic functions."""

    @property
    def width(self) -> int:
        """The bits of an integer; other types have none."""

    @property
    def count(self) -> int:
        """How many elements a vector has; other types have none."""

    @property
    def element(self) -> Kind:
        """The type of a vector's elements."""

    def as_pointer(self) -> Kind:
        """Return the type of its addresses."""


class Ir(Protocol):
    """A value: a constant, a parameter, or what an instruction gives."""

    @property
    def type(self) -> Kind:
        """Its type."""


class Place(Ir, Protocol):
    """The address of memory in the frame of a function."""

    align: int | None
    type: Kind


class Phi(Ir, Protocol):
    """A value that depends on the block from which control came."""

    def add_incoming(self, value: Ir, block: Block) -> None:
        """Say what it is from a block."""


class Block(Protocol):
    """A basic block."""


class IrFunction(Ir, Protocol):
    """A function: its address is a value."""

    attributes: set[str]
    linkage: str

    @property
    def args(self) -> Sequence[Ir]:
        """Its parameters."""

    @property
    def module(self) -> IrModule:
        """Where it stands."""

    def append_basic_block(self, name: str = "") -> Block:
        """Add a block."""


class Metadata(Protocol):
    """A node of what is told of instructions."""

    operands: tuple[Metadata, ...]


class Instruction(Ir, Protocol):
    """What can be told something."""

    def set_metadata(self, name: str, node: Metadata) -> None:
        """Tell it."""


class IrModule(Protocol):
    """What is compiled together."""

    globals: dict[str, IrFunction]
    metadata: Sequence[Metadata]

    @property
    def functions(self) -> Sequence[IrFunction]:
        """All functions."""

    def add_metadata(self, operands: Sequence[str | Metadata]) -> Metadata:
        """Add a node of what is told of instructions."""


class Variable(Ir, Protocol):
    """A global variable."""

    linkage: str
    section: str
    initializer: Ir


class Llvm(Protocol):
    """What makes types, constants and functions (the module llvmlite.ir)."""

    Undefined: object

    def IntType(self, bits: int) -> Kind:
        """Return the type of integers of so many bits."""

    def FloatType(self) -> Kind:
        """Return the type of float32."""

    def HalfType(self) -> Kind:
        """Return the type of float16."""

    def DoubleType(self) -> Kind:
        """Return the type of float64."""

    def VoidType(self) -> Kind:
        """Return the type of no value."""

    def PointerType(self) -> Kind:
        """Return the type of addresses."""

    def ArrayType(self, element: Kind, count: int) -> Kind:
        """Return the type of some elements one after the other."""

    def VectorType(self, element: Kind, count: int) -> Kind:
        """Return the type of some elements in one register."""

    def FunctionType(self, return_type: Kind, args: Sequence[Kind]) -> Kind:
        """Return the type of functions."""

    def Constant(self, typ: Kind, constant: object) -> Ir:
        """Return a value that is known."""

    def Module(self, name: str) -> IrModule:
        """Return a module without functions."""

    def Function(self, module: IrModule, ftype: Kind, name: str) -> IrFunction:
        """Add a function to a module."""

    def GlobalVariable(self, module: IrModule, typ: Kind, name: str) -> Variable:
        """Add a variable to a module."""

    def IRBuilder(self, block: Block) -> Builder:
        """Return what writes at the end of a block."""


def declared(
    ir: Llvm, module: IrModule, name: str, result: Kind, operands: Sequence[Kind]
) -> IrFunction:
    """Return the function of a module by its name; where there is none it is declared."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, operands), name)


class _Unary(Protocol):
    def __call__(self, value: Ir) -> Ir:
        """Write an instruction."""


class _Binary(Protocol):
    def __call__(self, lhs: Ir, rhs: Ir, name: str = "", flags: Sequence[str] = ()) -> Ir:
        """Write an instruction."""


class _Compare(Protocol):
    def __call__(self, cmpop: str, lhs: Ir, rhs: Ir) -> Ir:
        """Write a comparison: "<", "==", ..."""


class _Cast(Protocol):
    def __call__(self, value: Ir, typ: Kind) -> Ir:
        """Write a conversion."""


class Builder(Protocol):
    """Writes instructions at the end of a block (llvmlite.ir.IRBuilder)."""

    function: IrFunction
    block: Block
    add: _Binary
    sub: _Binary
    mul: _Binary
    sdiv: _Binary
    udiv: _Binary
    srem: _Binary
    urem: _Binary
    fadd: _Binary
    fsub: _Binary
    fmul: _Binary
    fdiv: _Binary
    frem: _Binary
    and_: _Binary
    or_: _Binary
    xor: _Binary
    shl: _Binary
    ashr: _Binary
    lshr: _Binary
    not_: _Unary
    neg: _Unary
    fneg: _Unary
    icmp_signed: _Compare
    icmp_unsigned: _Compare
    fcmp_ordered: _Compare
    fcmp_unordered: _Compare
    bitcast: _Cast
    zext: _Cast
    sext: _Cast
    trunc: _Cast
    fpext: _Cast
    fptrunc: _Cast
    uitofp: _Cast
    sitofp: _Cast
    fptoui: _Cast
    fptosi: _Cast
    ptrtoint: _Cast
    inttoptr: _Cast

    def select(self, cond: Ir, lhs: Ir, rhs: Ir) -> Ir:
        """Write a choice."""

    def load(self, ptr: Ir, *, typ: Kind, align: int | None = None) -> Instruction:
        """Write a read of memory."""

    def store(self, value: Ir, ptr: Ir, align: int | None = None) -> Instruction:
        """Write a write of memory."""

    def alloca(self, typ: Kind, size: int | None = None) -> Place:
        """Write a reservation of memory in the frame."""

    def gep(
        self,
        ptr: Ir,
        indices: Sequence[Ir],
        inbounds: bool = False,
        *,
        source_etype: Kind,
    ) -> Ir:
        """Write an address."""

    def call(self, fn: IrFunction, args: Sequence[Ir], *, fastmath: Sequence[str] = ()) -> Ir:
        """Write a call."""

    def phi(self, typ: Kind) -> Phi:
        """Write a phi."""

    def insert_element(self, vector: Ir, value: Ir, idx: Ir) -> Ir:
        """Write a vector with another element."""

    def shuffle_vector(self, vector1: Ir, vector2: Ir, mask: Ir) -> Ir:
        """Write a vector of elements of two."""

    def extract_value(self, agg: Ir, idx: int) -> Ir:
        """Write a part of a structure."""

    def atomic_rmw(self, op: str, ptr: Ir, val: Ir, ordering: str) -> Ir:
        """Write an atomic change of memory."""

    def cmpxchg(self, ptr: Ir, cmp: Ir, val: Ir, ordering: str, failordering: str = "") -> Ir:
        """Write an atomic exchange."""

    def asm(
        self, ftype: Kind, asm: str, constraint: str, args: Sequence[Ir], side_effect: bool
    ) -> Ir:
        """Write instructions of the processor as text."""

    def append_basic_block(self, name: str = "") -> Block:
        """Add a block to the function."""

    def position_at_end(self, block: Block) -> None:
        """Go on at the end of a block."""

    def position_before(self, instr: Ir) -> None:
        """Go on before an instruction."""

    def goto_entry_block(self) -> AbstractContextManager[None]:
        """Write into the function's first block for a while."""

    def goto_block(self, block: Block) -> AbstractContextManager[None]:
        """Write into a block for a while."""

    def branch(self, target: Block) -> Instruction:
        """Write a jump."""

    def cbranch(self, cond: Ir, truebr: Block, falsebr: Block) -> Instruction:
        """Write a jump to one of two blocks."""

    def if_then(self, pred: Ir, likely: bool | None = None) -> AbstractContextManager[Block]:
        """Write what is done where a test holds."""

    def if_else(
        self, pred: Ir
    ) -> AbstractContextManager[
        tuple[AbstractContextManager[Block], AbstractContextManager[Block]]
    ]:
        """Write what is done where a test holds, and where not."""

    def ret(self, value: Ir) -> Ir:
        """Write the end of a function."""

    def ret_void(self) -> Ir:
        """Write the end of a function without a result."""
