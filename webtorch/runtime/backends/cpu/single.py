"""One value that is wanted alone, computed in one call of machine code. Imports this backend's modules.

To find the program of a value that was recorded as others were, to run it and to make the value data takes the
interpreter longer than most small kernels. The function here (`slotcode`) does the same where everything is
as it was for the last value of its form (`Form.latest`): it reads the slots of nodes, storages and buffers where
their classes keep them. Whatever it finds otherwise it leaves as it is, and says so; the way in Python goes on from
there. It lets no other thread run between its last look and the end.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Form, Node, Recorded
from webtorch.runtime.backends.cpu import launch, native_threads, slots
from webtorch.runtime.backends.cpu.memory import MEMORY, Block, CpuBuffer, rounded

# A value has so many sources at most.
MOST = 16
# Integers up to this one are one object each.
_SMALL = 256
# What a cell of a kernel's block is given: a number that stays, the address of a source, or of the result, or a number
# of the node, as a floating-point number or an integer.
CONSTANT, SOURCE, RESULT, FLOAT, WHOLE = range(5)

# The words that `self` points to.
_WORDS = (
    "owner", "node", "form", "recorded", "known", "buffer", "block", "none", "false", "computed", "empty", "pop",
    "append", "take", "returned", "exception", "bytes", "tuple", "pool",
)  # fmt: skip
# A plan: the kind of the node, the number of the result where it is one of a call's, how many sources and numbers it
# has, the type of the result, its elements and bytes, its status words (or 0), how many kernels there are; then of
# each source which is the first that it is one with; then of each kernel its code, its points, how many of them go to a
# thread (0: all to this one), how many cells it has, and what each is given.
_HEAD = ("kind", "number", "sources", "numbers", "dtype", "elements", "size", "status", "kernels")

_TEXT = """
def new_buffer(words: Words, plan: Plan) -> object:
    # A new buffer for the result, or null with an error.
    block: Block = null
    if PyObject_Size(words.returned) > 0:
        block = PyObject_CallNoArgs(words.pop)
        if not is_a(block, words.block):
            return null
        if PyLong_AsUnsignedLongLongMask(block.size) != int(plan.size) or block.seen != words.false:
            Py_DecRef(PyObject_CallOneArg(words.append, block))
            Py_DecRef(block)
            block = null
    if block == null:
        number = PyLong_FromSsize_t(int(plan.size))
        block = PyObject_CallOneArg(words.take, number)
        Py_DecRef(number)
        if not is_a(block, words.block):
            return null
    made: Buffer = PyType_GenericAlloc(words.buffer, 0)
    if made == null:
        Py_DecRef(block)
        return null
    made.dtype = held(plan.dtype)
    made.elements = PyLong_FromSsize_t(int(plan.elements))
    made._array = held(words.none)
    made.address = held(block.address)
    made.block = block
    return made

def gather(words: Words, plan: Plan, srcs, count: int, addresses) -> bool:
    # Where the sources lie, and whether they are the same ones that they were.
    if PyTuple_Size(srcs) != count:
        return False
    for i in range(count):
        s: Node = PyTuple_GetItem(srcs, i)
        if not is_a(s, words.node) or s.kind != words.computed:
            return False
        buffer: Buffer = s.buffer
        if buffer == null or not PyType_IsSubtype(type_of(buffer), words.buffer):
            return False
        first = 0
        while PyTuple_GetItem(srcs, first) != s:
            first += 1
        if int(plan[HEAD + i]) != first:
            return False
        addresses[i] = PyLong_AsUnsignedLongLongMask(buffer.address)
    return True

def kernels(words: Words, plan: Plan, addresses, sources: int, result: int, numbers):
    # The kernels, one after the other.
    block = room(64)
    cell = plan + 8 * (HEAD + sources)
    for k in range(int(plan.kernels)):
        code = cell[0]
        points = int(cell[1])
        step = int(cell[2])
        cells = int(cell[3])
        cell = cell + 32
        for n in range(cells):
            what = int(cell[0])
            value = int(cell[1])
            cell = cell + 16
            if what == SOURCE:
                block[n] = addresses[value]
            elif what == RESULT:
                block[n] = result
            elif what == FLOAT:
                block[n] = PyFloat_AsDouble(PyTuple_GetItem(numbers, value))
            elif what == WHOLE:
                block[n] = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(numbers, value))
            else:
                block[n] = value
        # What could not be read may be a place in memory.
        if PyErr_Occurred() != null:
            return
        if step == 0:
            code(0, points, block)
        else:
            shared = words.pool[0]
            shared(words.pool, code, 0, points, step, block)

def compute(
    words: Words, plan: Plan, pending, settled, ref, owner: Owner, node: Node, srcs, numbers
) -> bool:
    # Make the node data; or change nothing.
    addresses = room(MOST)
    if not is_a(srcs, words.tuple) or not is_a(numbers, words.tuple):
        return False
    sources = int(plan.sources)
    if not gather(words, plan, srcs, sources, addresses) or PyTuple_Size(numbers) != int(plan.numbers):
        return False
    made: Buffer = new_buffer(words, plan)
    if made == null:
        return False
    kernels(words, plan, addresses, sources, PyLong_AsUnsignedLongLongMask(made.address), numbers)
    if (
        PyErr_Occurred() == null
        and (plan.status == null or plan.status[0] == null)
        and owner.node == node
        and node.kind == plan.kind
        and PyList_GetItem(pending, 0) == ref
    ):
        key = PyLong_FromVoidPtr(owner)
        failed = PyDict_SetItem(settled, key, ref)
        Py_DecRef(key)
        if not failed:
            PyList_SetSlice(pending, 0, 1, null)
            put(address(node.buffer), made)
            put(address(node.kind), words.computed)
            Py_DecRef(made)
            put(address(node.attrs), words.empty)
            put(address(node.scalars), words.empty)
            put(address(node.srcs), words.empty)
            return True
    Py_DecRef(made)
    return False

def known(words: Words, runtime, owner: Owner) -> object:
    # What is known of the owner's value, borrowed, if its plan fits.
    if not is_a(owner, words.owner) or owner.donor != words.none:
        return null
    node: Node = owner.node
    if not is_a(node, words.node):
        return null
    form: Form = node.form
    if not (is_a(form, words.form) or is_a(form, words.recorded)):
        return null
    found: Known = form.latest
    if not is_a(found, words.known) or found.runtime != runtime or not is_a(found.plan, words.bytes):
        return null
    plan: Plan = PyBytes_AsString(found.plan)
    if node.kind != plan.kind:
        return null
    if plan.number != null:
        if not is_a(node.attrs, words.tuple) or PyTuple_GetItem(node.attrs, 1) != plan.number:
            return null
    return found

def wt_single(self, args, count: int) -> object:
    words: Words = PyLong_AsVoidPtr(self)
    if count != 3:
        PyErr_BadArgument()
        return null
    pending = args[0]
    if PyList_Size(pending) == 1:
        ref = held(PyList_GetItem(pending, 0))
        owner: Owner = PyObject_CallNoArgs(ref)
        found: Known = known(words, args[2], owner)
        done = False
        if found != null:
            Py_IncRef(found)
            executable = PyObject_CallNoArgs(found.executable)
            if executable != words.none and executable != null:
                plan = held(found.plan)
                node: Node = held(owner.node)
                srcs = held(node.srcs)
                numbers = held(node.scalars)
                text = PyBytes_AsString(plan)
                done = compute(words, text, pending, args[1], ref, owner, node, srcs, numbers)
                Py_DecRef(numbers)
                Py_DecRef(srcs)
                Py_DecRef(node)
                Py_DecRef(plan)
            Py_DecRef(executable)
        Py_DecRef(owner)
        Py_DecRef(ref)
        if done:
            return found
        Py_DecRef(found)
    # What is wrong with the data or the memory is found again, and said, in Python.
    if PyErr_Occurred() != null:
        if not PyErr_ExceptionMatches(words.exception):
            return null
        PyErr_Clear()
    return held(words.none)
"""


_functions: dict[type[object], Callable[..., Any] | None] = {}


def function(owner: type[object], known: type[object]) -> Callable[..., Any] | None:
    """Return the function for one class of owners; None where there is no machine code, or objects are of another
    making.
    """
    if owner not in _functions:
        _functions[owner] = _made(owner, known)
    return _functions[owner]


def _made(owner: type[object], known: type[object]) -> Callable[..., object] | None:
    classes = {
        "Owner": owner, "Node": Node, "Form": Form, "Known": known, "Buffer": CpuBuffer, "Block": Block
    }  # fmt: skip
    numbers = {"MOST": MOST, "HEAD": len(_HEAD), "SOURCE": SOURCE, "RESULT": RESULT}
    numbers |= {"FLOAT": FLOAT, "WHOLE": WHOLE}
    structs = {"Words": _WORDS, "Plan": _HEAD}
    addresses = slots.assembled(_TEXT, ("wt_single",), classes, structs, numbers)
    if addresses is None:
        return None
    returned = MEMORY.returned
    words = [
        owner, Node, Form, Recorded, known, CpuBuffer, Block, None, False, "buffer", (), returned.pop, returned.append,
        MEMORY.take, returned, Exception, bytes, tuple,
    ]  # fmt: skip
    return slots.function(b"single", addresses[0], words, (native_threads.POOL,))


def bits(value: float, letter: str) -> int:
    """Return the cell of a number: "d" for a floating-point one, "Q" for an integer."""
    if letter == "d":
        return int.from_bytes(struct.pack("d", value), sys.byteorder)
    return int(value) & ((1 << 64) - 1)


# A kernel: its code, its points, how many of them go to a thread, and what each of its cells is given.
Kernel = tuple[int, int, int, Sequence[tuple[int, int]]]


def plan(
    kind: str,
    number: int | None,
    same: Sequence[int],
    numbers: int,
    dtype: DType,
    elements: int,
    status: int,
    kernels: Sequence[Kernel],
) -> bytes:
    """Return how a value is computed; nothing where the function cannot.

    `kind`: the node's. `number`: which result of a call it is. `same`: which source each source is the same as.
    `numbers`: how many the node has. `status`: where the kernels say what is wrong, 0 where they check nothing.
    """
    if (
        len(same) > MOST
        or (number or 0) > _SMALL
        or any(len(cells) > launch.MOST + 2 for *_, cells in kernels)
    ):
        return b""
    words = [
        id(sys.intern(kind)),
        0 if number is None else id(number),
        len(same),
        numbers,
        id(dtype),
        elements,
    ]
    words += [rounded(dtype, elements), status, len(kernels), *same]
    for code, points, step, cells in kernels:
        words += [code, points, step, len(cells)]
        for cell in cells:
            words += cell
    return struct.pack(f"{len(words)}q", *[w - (1 << 64) if w >= 1 << 63 else w for w in words])
