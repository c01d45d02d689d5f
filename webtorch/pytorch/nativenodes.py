"""The nodes of a known call, made in machine code. Floor 6; imports PyTorch and the CPU's engine.

What the functions of `native`, `nativelook`, `nativewrite` and `nativekernel` have in common: what they know, the text
that makes the nodes of a call (see `slotcode` for the language), the words that say what a plan knows of them, and how
all texts, as one, become functions of Python's own kind.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from webtorch.dispatch.call import Count, active
from webtorch.ir import lines
from webtorch.ir.graph import Node, Step
from webtorch.pytorch import device
from webtorch.pytorch.device import opened
from webtorch.pytorch.interrupt import flag
from webtorch.runtime.ahead import Ahead
from webtorch.runtime.realize import Runtime
from webtorch.tensors.modes import transforms
from webtorch.tensors.storage import Storage, writes

if TYPE_CHECKING:
    from webtorch.pytorch.known import Plan

# Numbers behind the objects that all functions know, what they point to, and blocks of words.
_Known: TypeAlias = "tuple[list[int], list[object], object]"

# What `self` points to first: what all functions know. Each object lives as long as the process.
COMMON: dict[str, object] = {
    "none": None, "false": False, "true": True, "one": 1, "zero": 0, "builtin": type(len), "list": list, "tuple": tuple,
    "float": float, "error": AttributeError, "node": Node, "storage": Storage, "memory": device.Memory, "home": Runtime,
    "tensor": torch.Tensor, "parameter": torch.nn.Parameter, "opened": opened, "flag": flag, "active": active,
    "transforms": transforms, "writes": writes, "note": writes.note, "add": "add", "acquire": "acquire",
    "release": "release", "buffer": "buffer", "webgpu": "_webgpu", "create": device._create,
    "memory_of": device._storage_of, "offset_of": device.offset_of, "addresses": device._addresses,
    "reinterpret": device._reinterpret, "user_line": lines.user_line, "again": lines.made_again,
    "internal": lines._internal,
}  # fmt: skip
# Behind that, of what records a plan's calls: how many nodes it is given, how many numbers a call has, whether its
# nodes know each other, whether results come as a tuple, and how many nodes and results there are; then the block of
# each node, and of each result which node it is, and the words of its tensor.
_OWN = (
    "fallback", "places", "operands", "numbers", "joined", "several", "steps", "results", "blocks",
)  # fmt: skip
# A block says what a node is made of: five objects, whether it knows the user's line, how many sources and numbers it
# has, and of each where it comes from: an object, and a number, which is its place among the call's nodes or numbers,
# -1 for the object, or below that the place of an earlier node.
_STEP = ("kind", "attrs", "shape", "dtype", "form", "lined", "sources", "scalars", "given")
# What a result's storage and tensor are made of.
_PLACE = (
    "dtype", "elements", "size", "type", "strides", "offset", "strided", "own", "address", "length", "nbytes",
)  # fmt: skip
# What a kernel knows: the kinds of an operator's calls, the kernel in Python, what all functions know, and whether the
# first argument is overwritten, and returned.
_KERNEL = ("kinds", "usual", "words", "writes")

_TEXT = """
def storage_of(words: Words, x, bytes) -> object:
    # The storage behind a tensor, where it has its values row-major: null where Python is to look. How long the memory
    # is that says so is put at `bytes`.
    theirs = PyObject_CallOneArg(words.memory_of, x)
    if theirs == null:
        return null
    ours: Memory = PyObject_GetAttr(theirs, words.webgpu)
    # The storage of PyTorch's holds it.
    Py_DecRef(theirs)
    Py_DecRef(ours)
    if ours == null or type_of(ours) == words.storage:
        return ours
    if type_of(ours) != words.memory or ours.is_cut != words.false or ours.laid != words.none:
        return null
    bytes[0] = ours.nbytes
    return ours.storage if type_of(ours.storage) == words.storage else null

def items(words: Words, row) -> object:
    # The objects of a list or a tuple, which holds them; null for something else. Of an empty list nothing is read.
    if type_of(row) == words.list:
        return row[ITEMS] if row[ITEMS] != null else row
    return row + TUPLE_ITEMS if type_of(row) == words.tuple else null

def given(pair, listed, made) -> object:
    # One of what a node is made of: one that is listed, a node made before, or its own.
    number = int(pair[1])
    if number == -1:
        return pair[0]
    return listed[number] if number >= 0 else made[-2 - number]

def all_given(pairs, count: int, listed, made) -> object:
    # A new tuple of them, or null with an error.
    all = PyTuple_New(count)
    if all != null:
        for i in range(count):
            PyTuple_SetItem(all, i, held(given(pairs + 16 * i, listed, made)))
    return all

def new_node(words: Words, block: Block, like: Node, nodes, numbers, line, made) -> object:
    # A new node, or null with an error. `like` has the same sources, if it is one.
    sources = int(block.sources)
    pairs = address(block.given)
    scalars = all_given(pairs + 16 * sources, int(block.scalars), numbers, made)
    if scalars == null:
        return null
    srcs = held(like.srcs) if like != null else all_given(pairs, sources, nodes, made)
    node: Node = PyType_GenericAlloc(words.node, 0) if srcs != null else null
    if node == null:
        Py_DecRef(srcs)
        Py_DecRef(scalars)
        return null
    node.srcs = srcs
    node.scalars = scalars
    node.kind = held(block.kind)
    node.attrs = held(block.attrs)
    node.shape = held(block.shape)
    node.dtype = held(block.dtype)
    node.line = held(line if int(block.lined) else words.none)
    node.form = held(block.form)
    node.buffer = held(words.none)
    node.shared = held(words.false)
    node.host = held(words.none)
    return node

def add(list, x) -> bool:
    # Add an object to a list, which is the caller's no more; false with an error.
    failed = x == null or PyList_Append(list, x)
    Py_DecRef(x)
    return not failed

def wait(words: Words, home: Runtime, storage) -> bool:
    # Let a runtime know that a storage's value waits; false with an error.
    ahead: Ahead = home.ahead
    most = PyLong_AsSsize_t(ahead.bound)
    unseen = home.recording == words.none and PyObject_Size(home.lent) == 0
    if unseen and PyList_Size(home.pending) < most:
        add(home.pending, PyWeakref_NewRef(storage, null))
    else:
        adder = PyObject_GetAttr(home, words.add)
        if adder != null:
            Py_DecRef(PyObject_CallOneArg(adder, storage))
            Py_DecRef(adder)
    return PyErr_Occurred() == null

def join(node: Node, results) -> bool:
    # Let a node of a call with several results know all of these nodes; false with an error.
    attrs = PyTuple_New(3)
    if attrs == null:
        return False
    old = node.attrs
    PyTuple_SetItem(attrs, 0, held(PyTuple_GetItem(old, 0)))
    PyTuple_SetItem(attrs, 1, held(PyTuple_GetItem(old, 1)))
    PyTuple_SetItem(attrs, 2, held(results))
    node.attrs = attrs
    Py_DecRef(old)
    return add(results, PyWeakref_NewRef(node, null))

def record(words: Record, nodes, many: int, numbers, free: int, line, made) -> int:
    # Make the nodes of a call, whose holders are those at `made`: how many there are, below 0 with an error.
    # It is given so many nodes, and `free` numbers.
    if many < int(words.operands) or free != int(words.numbers):
        PyErr_BadArgument()
        return -1
    results = null
    if int(words.joined):
        results = PyList_New(0)
        if results == null:
            return -1
    steps = int(words.steps)
    blocks = address(words.blocks)
    like = null
    count = 0
    good = True
    while good and count < steps:
        node = new_node(words, blocks[count], like, nodes, numbers, line, made)
        if node == null:
            good = False
        else:
            made[count] = node
            count += 1
            if results != null:
                good = join(node, results)
                like = node
    Py_DecRef(results)
    if good:
        return steps
    drop(made, count)
    return -1

def record_lists(words: Record, nodes, numbers, line, made) -> int:
    # The same of nodes and numbers that are lists or tuples.
    ours = items(words, nodes)
    theirs = items(words, numbers)
    if ours == null or theirs == null:
        PyErr_BadArgument()
        return -1
    return record(words, ours, PyObject_Size(nodes), theirs, PyObject_Size(numbers), line, made)

def drop(objects, count: int):
    # Let go of so many objects.
    for i in range(count):
        Py_DecRef(objects[i])

def result(words: Record, number: int, made) -> object:
    # The node of a result, which stays the caller's as well.
    behind = address(words.blocks) + 8 * int(words.steps)
    return made[int(behind[2 * number])]

def place_of(words: Record, number: int) -> object:
    # The words of a result's tensor.
    behind = address(words.blocks) + 8 * int(words.steps)
    return behind[2 * number + 1]
"""
# A call that is recorded so has so many results, and so many nodes, at most; a look goes through as many tensors, and
# free numbers, as results.
MOST, _STEPS = 8, 64


class _Part(NamedTuple):
    """A text, what its functions know besides, the classes whose slots it reads, and numbers that it names."""

    text: str
    own: Mapping[str, Sequence[str]]
    classes: Mapping[str, type[object]]
    numbers: Mapping[str, int]


_parts: list[_Part] = []


def declare(
    text: str,
    own: Mapping[str, Sequence[str]] | None = None,
    classes: Mapping[str, type[object]] | None = None,
    numbers: Mapping[str, int] | None = None,
) -> None:
    """Add a text to the others: they are one when the first of their functions is asked for. `own` are the words that
    its functions have behind those that all know, by the name that the text has for what they know.
    """
    _parts.append(_Part(text, own or {}, classes or {}, numbers or {}))


@functools.cache
def _code() -> ModuleType | None:
    """Return what makes functions of machine code; None without NumPy."""
    try:
        from webtorch.runtime.backends.cpu import slots
    except ImportError:
        return None
    return slots


_NAMES = ("wt_record", "wt_write", "wt_look", "wt_kernel")


@functools.cache
def _addresses() -> Mapping[str, int]:
    code = None if sys.platform == "win32" else _code()
    if code is None:
        return {}
    numbers = {"MOST": MOST, "OLDS": 2 * MOST, "STEPS": _STEPS}
    # Where a list keeps where its objects are, behind their number, and where those of a tuple are.
    numbers |= {"ITEMS": object.__basicsize__ // 8 + 1, "TUPLE_ITEMS": tuple.__basicsize__}
    structs = {"Words": (*COMMON,), "Block": _STEP, "Place": _PLACE, "Kernel": _KERNEL}
    classes: dict[str, type[object]] = {}
    for part in _parts:
        structs |= {name: (*COMMON, *own) for name, own in part.own.items()}
        numbers |= part.numbers
        classes |= part.classes
    found = code.assembled("".join(p.text for p in _parts), _NAMES, classes, structs, numbers)
    return {} if found is None else dict(zip(_NAMES, found, strict=True))


def entry(name: str) -> int | None:
    """Return where a function of machine code is; None where there are none."""
    return _addresses().get(name)


def function(
    name: str, objects: Sequence[object], numbers: Sequence[int], kept: object = None
) -> Callable[..., Any] | None:
    """Return machine code as a function of Python's (see `slots.function`), which knows what all know, and these; None
    where there is none.
    """
    code, address = _code(), entry(name)
    if code is None or address is None:
        return None
    given = [*COMMON.values(), *objects]
    made: Callable[..., Any] = code.function(name.encode(), address, given, numbers, kept)
    return made


@functools.cache
def _common() -> ctypes.Array[ctypes.c_int64]:
    code = _code()
    assert code is not None
    cells: ctypes.Array[ctypes.c_int64] = code.cells([*COMMON.values()], [])
    return cells


def kernel(objects: Sequence[object], number: int) -> Callable[..., object] | None:
    """Return a kernel of machine code, which knows these, and where that is what all know: there are many."""
    code, address = _code(), entry("wt_kernel")
    if code is None or address is None:
        return None
    numbers = [ctypes.addressof(_common()), number]
    made: Callable[..., object] = code.function(b"kernel", address, objects, numbers, named=True)
    return made


def _block(
    step: Step, form: object, leaves: Sequence[object], places: Iterator[int | None]
) -> tuple[list[int], list[object]]:
    """Return the words that say what a node is made of, and what they point to. `places` say of each of its numbers
    which of the call's it is, if it is one.
    """
    kind, srcs, attrs, scalars, shape, dtype, lined = step
    given: list[tuple[object, int]] = []
    for s in srcs:
        leaf = leaves[s] if s >= 0 else None
        given.append((None, s - 1) if s < 0 else (None, leaf) if type(leaf) is int else (leaf, -1))
    for x in scalars:
        place = next(places)
        given.append((x, -1) if place is None else (None, place))
    objects = [kind, attrs, shape, dtype, form]
    words = [*map(id, objects), int(lined), len(srcs), len(scalars)]
    for value, number in given:
        words += id(value), number
    return words, [*objects, *(value for value, _ in given)]


def _known(plan: Plan, tensors: Sequence[tuple[list[object], list[int]]]) -> _Known | None:
    """Return what machine code knows of a plan, and of tensors of its results; None where it has too many."""
    steps: list[tuple[Step, object]]
    leaves = plan.leaves
    places = iter(plan.numbers)
    results: Sequence[int] = range(len(plan.places))
    if plan.single:
        own = plan.attrs, plan.scalars, plan.shape, plan.dtype, plan.lined
        steps = [((plan.kind, tuple(range(len(leaves))), *own), plan.form)]
    elif plan.is_numbered:
        steps, results = list(zip(plan.steps, plan.forms, strict=True)), plan.results
    else:
        srcs = tuple(range(len(leaves)))
        steps = [
            (("call", srcs, p.attrs, (), p.shape, p.kind, True), p.attrs[0]) for p in plan.places
        ]
    if len(steps) > _STEPS or len(results) > MOST:
        return None
    joined = plan.make is not None and not plan.is_numbered
    count = 1 + max((n for n in plan.numbers if n is not None), default=-1)
    operands = 1 + max((n for n in leaves if isinstance(n, int)), default=-1)
    blocks = [_block(*step, leaves, places) for step in steps]
    code = _code()
    assert code is not None
    cells = [code.cells([], words) for words, _ in blocks]
    numbers = [operands, count, joined, plan.make is not None, len(steps), len(results)]
    numbers += map(ctypes.addressof, cells)
    shown = [code.cells(*tensor) for tensor in tensors]
    for n, result in enumerate(results):
        numbers += result, ctypes.addressof(shown[n]) if shown else 0
    held = [x for _, objects in blocks for x in objects] + [x for xs, _ in tensors for x in xs]
    return numbers, held, (cells, shown)


def function_of(
    plan: Plan,
    name: str,
    tensors: Sequence[tuple[list[object], list[int]]] = (),
    put: object = None,
) -> Callable[..., Any] | None:
    """Return machine code that knows a plan, and `tensors` of its results, as a function of Python's; None where there
    is none, or the plan has too many nodes.
    """
    known = None if entry(name) is None else _known(plan, tensors)
    if known is None:
        return None
    numbers, held, cells = known
    return function(name, [put, plan.places], numbers, (held, cells))


declare(
    _TEXT,
    {"Record": _OWN},
    {
        "Node": Node, "Storage": Storage, "Memory": device.Memory, "Writes": type(writes), "Runtime": Runtime,
        "Ahead": Ahead, "Opened": type(opened), "Flag": type(flag), "Count": Count,
    },
)  # fmt: skip
