"""The nodes of a known call, made in machine code. Floor 6; imports PyTorch and the CPU's engine.

What the functions of `native`, `nativelook`, `nativewrite` and `nativekernel` have in common: what they know, the text,
in LLVM's own language, that makes the nodes of a call, the words that say what a plan knows of them, and how all texts,
as one, become functions of Python's own kind.
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

_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsSsize_t(ptr)
declare ptr @PyLong_FromSsize_t(i64)
declare ptr @PyLong_FromVoidPtr(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare i32 @PyErr_ExceptionMatches(ptr)
declare void @PyErr_BadArgument()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyList_New(i64)
declare ptr @PyTuple_New(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_Str(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PyObject_SetAttr(ptr, ptr, ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyNumber_Add(ptr, ptr)
declare ptr @PyIter_Next(ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyWeakref_NewRef(ptr, ptr)
declare ptr @PyCFunction_GetSelf(ptr)
declare ptr @PyEval_GetFrame()
declare ptr @PyFrame_GetCode(ptr)
declare ptr @PyFrame_GetBack(ptr)
declare i32 @PyFrame_GetLasti(ptr)

; The storage behind a tensor, where it has its values row-major: null where Python is to look. How long the memory is
; that says so is put at `bytes`.
define internal ptr @home(ptr %words, ptr %x, ptr %bytes) {
entry:
  %given = alloca ptr, align 8
  store ptr %x, ptr %given
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %memory_of = call ptr @at(ptr %words, i64 WORD_memory_of)
  %theirs = call ptr @PyObject_Vectorcall(ptr %memory_of, ptr %given, i64 1, ptr null)
  %there = icmp ne ptr %theirs, null
  br i1 %there, label %carried, label %no
carried:
  %name = call ptr @at(ptr %words, i64 WORD_webgpu)
  %ours = call ptr @PyObject_GetAttr(ptr %theirs, ptr %name)
  call void @Py_DecRef(ptr %theirs)
  %has = icmp ne ptr %ours, null
  br i1 %has, label %kind, label %no
kind:
  ; The storage of PyTorch's holds it.
  call void @Py_DecRef(ptr %ours)
  %class = call ptr @at(ptr %ours, i64 TYPE)
  %storage = call ptr @at(ptr %words, i64 WORD_storage)
  %is_storage = icmp eq ptr %class, %storage
  br i1 %is_storage, label %yes, label %other
other:
  %memory = call ptr @at(ptr %words, i64 WORD_memory)
  %is_memory = icmp eq ptr %class, %memory
  br i1 %is_memory, label %whole, label %no
whole:
  %cut = call ptr @at(ptr %ours, i64 MEMORY_is_cut)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %laid = call ptr @at(ptr %ours, i64 MEMORY_laid)
  %uncut = icmp eq ptr %cut, %false
  %rows = icmp eq ptr %laid, %none
  %plain = and i1 %uncut, %rows
  br i1 %plain, label %inner, label %no
inner:
  %nbytes = call ptr @at(ptr %ours, i64 MEMORY_nbytes)
  store ptr %nbytes, ptr %bytes
  %held = call ptr @at(ptr %ours, i64 MEMORY_storage)
  %held_class = call ptr @at(ptr %held, i64 TYPE)
  %is_held = icmp eq ptr %held_class, %storage
  br i1 %is_held, label %yes, label %no
yes:
  %found = phi ptr [ %ours, %kind ], [ %held, %inner ]
  ret ptr %found
no:
  ret ptr null
}

; The objects of a list or a tuple, which holds them; null for something else.
define internal ptr @items(ptr %words, ptr %row) {
entry:
  %class = call ptr @at(ptr %row, i64 TYPE)
  %lists = call ptr @at(ptr %words, i64 WORD_list)
  %is_list = icmp eq ptr %class, %lists
  br i1 %is_list, label %list, label %other
list:
  %there = call ptr @at(ptr %row, i64 ITEMS)
  %is_empty = icmp eq ptr %there, null
  %some = select i1 %is_empty, ptr %row, ptr %there
  ret ptr %some
other:
  %tuples = call ptr @at(ptr %words, i64 WORD_tuple)
  %is_tuple = icmp eq ptr %class, %tuples
  %behind = getelementptr i8, ptr %row, i64 TUPLE_ITEMS
  %items = select i1 %is_tuple, ptr %behind, ptr null
  ret ptr %items
}

; Fill a slot of a new object; the value stays the caller's as well.
define internal void @set(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  store ptr %value, ptr %place
  call void @Py_IncRef(ptr %value)
  ret void
}

; Fill a slot of a new object with a value that is the caller's no more.
define internal void @give(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  store ptr %value, ptr %place
  ret void
}

; One of what a node is made of: one that is listed, a node made before, or its own.
define internal ptr @given(ptr %pair, ptr %listed, ptr %made) {
entry:
  %number = call i64 @whole(ptr %pair, i64 8)
  %is_own = icmp eq i64 %number, -1
  br i1 %is_own, label %own, label %other
own:
  %kept = call ptr @at(ptr %pair, i64 0)
  ret ptr %kept
other:
  %is_listed = icmp sge i64 %number, 0
  %back = sub i64 -2, %number
  %row = select i1 %is_listed, ptr %listed, ptr %made
  %place = select i1 %is_listed, i64 %number, i64 %back
  %from = getelementptr ptr, ptr %row, i64 %place
  %found = load ptr, ptr %from
  ret ptr %found
}

; A new tuple of them, or null with an error.
define internal ptr @all_given(ptr %pairs, i64 %count, ptr %listed, ptr %made) {
entry:
  %all = call ptr @PyTuple_New(i64 %count)
  %is_made = icmp ne ptr %all, null
  br i1 %is_made, label %next, label %failed
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %put, label %done
put:
  %far = shl i64 %i, 4
  %pair = getelementptr i8, ptr %pairs, i64 %far
  %x = call ptr @given(ptr %pair, ptr %listed, ptr %made)
  call void @Py_IncRef(ptr %x)
  %set = call i32 @PyTuple_SetItem(ptr %all, i64 %i, ptr %x)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret ptr %all
failed:
  ret ptr null
}

; A new node, or null with an error. `like` has the same sources, if it is one.
define internal ptr @node(ptr %words, ptr %block, ptr %like, ptr %nodes, ptr %numbers, ptr %line, ptr %made) {
entry:
  %sources = call i64 @whole(ptr %block, i64 STEP_sources)
  %scalars = call i64 @whole(ptr %block, i64 STEP_scalars)
  %pairs = getelementptr i8, ptr %block, i64 STEP_given
  %far = shl i64 %sources, 4
  %behind = getelementptr i8, ptr %pairs, i64 %far
  %theirs = call ptr @all_given(ptr %behind, i64 %scalars, ptr %numbers, ptr %made)
  %has_scalars = icmp ne ptr %theirs, null
  br i1 %has_scalars, label %source, label %failed
source:
  %first = icmp eq ptr %like, null
  br i1 %first, label %take, label %share
take:
  %new = call ptr @all_given(ptr %pairs, i64 %sources, ptr %nodes, ptr %made)
  %has_sources = icmp ne ptr %new, null
  br i1 %has_sources, label %make, label %drop
share:
  %same = call ptr @at(ptr %like, i64 NODE_srcs)
  call void @Py_IncRef(ptr %same)
  br label %make
make:
  %srcs = phi ptr [ %new, %take ], [ %same, %share ]
  %class = call ptr @at(ptr %words, i64 WORD_node)
  %node = call ptr @PyType_GenericAlloc(ptr %class, i64 0)
  %is_made = icmp ne ptr %node, null
  br i1 %is_made, label %fill, label %drop_both
fill:
  %nothing = call ptr @at(ptr %words, i64 WORD_none)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %kind = call ptr @at(ptr %block, i64 STEP_kind)
  %attrs = call ptr @at(ptr %block, i64 STEP_attrs)
  %shape = call ptr @at(ptr %block, i64 STEP_shape)
  %dtype = call ptr @at(ptr %block, i64 STEP_dtype)
  %form = call ptr @at(ptr %block, i64 STEP_form)
  %lined = call i64 @whole(ptr %block, i64 STEP_lined)
  %has_line = icmp ne i64 %lined, 0
  %shown = select i1 %has_line, ptr %line, ptr %nothing
  call void @give(ptr %node, i64 NODE_srcs, ptr %srcs)
  call void @give(ptr %node, i64 NODE_scalars, ptr %theirs)
  call void @set(ptr %node, i64 NODE_kind, ptr %kind)
  call void @set(ptr %node, i64 NODE_attrs, ptr %attrs)
  call void @set(ptr %node, i64 NODE_shape, ptr %shape)
  call void @set(ptr %node, i64 NODE_dtype, ptr %dtype)
  call void @set(ptr %node, i64 NODE_line, ptr %shown)
  call void @set(ptr %node, i64 NODE_form, ptr %form)
  call void @set(ptr %node, i64 NODE_buffer, ptr %nothing)
  call void @set(ptr %node, i64 NODE_shared, ptr %false)
  call void @set(ptr %node, i64 NODE_host, ptr %nothing)
  ret ptr %node
drop_both:
  call void @Py_DecRef(ptr %srcs)
  br label %drop
drop:
  call void @Py_DecRef(ptr %theirs)
  br label %failed
failed:
  ret ptr null
}

; Let a runtime know that a storage's value waits; false with an error.
define internal i1 @wait(ptr %words, ptr %home, ptr %storage) {
entry:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %recording = call ptr @at(ptr %home, i64 RUNTIME_recording)
  %lent = call ptr @at(ptr %home, i64 RUNTIME_lent)
  %pending = call ptr @at(ptr %home, i64 RUNTIME_pending)
  %ahead = call ptr @at(ptr %home, i64 RUNTIME_ahead)
  %limit = call ptr @at(ptr %ahead, i64 AHEAD_bound)
  %most = call i64 @PyLong_AsSsize_t(ptr %limit)
  %seen = call i64 @PyObject_Size(ptr %lent)
  %count = call i64 @PyList_Size(ptr %pending)
  %calm = icmp eq ptr %recording, %none
  %unseen = icmp eq i64 %seen, 0
  %room = icmp slt i64 %count, %most
  %quiet = and i1 %calm, %unseen
  %plain = and i1 %quiet, %room
  br i1 %plain, label %append, label %usual
append:
  %reference = call ptr @PyWeakref_NewRef(ptr %storage, ptr null)
  %made = icmp ne ptr %reference, null
  br i1 %made, label %put, label %end
put:
  %appended = call i32 @PyList_Append(ptr %pending, ptr %reference)
  call void @Py_DecRef(ptr %reference)
  br label %end
usual:
  %name = call ptr @at(ptr %words, i64 WORD_add)
  %adder = call ptr @PyObject_GetAttr(ptr %home, ptr %name)
  %has_adder = icmp ne ptr %adder, null
  br i1 %has_adder, label %add, label %end
add:
  %added = call ptr @PyObject_CallOneArg(ptr %adder, ptr %storage)
  call void @Py_DecRef(ptr %adder)
  call void @Py_DecRef(ptr %added)
  br label %end
end:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  ret i1 %fine
}

; Let a node of a call with several results know all of these nodes; false with an error.
define internal i1 @join(ptr %node, ptr %results) {
entry:
  %attrs = call ptr @PyTuple_New(i64 3)
  %is_made = icmp ne ptr %attrs, null
  br i1 %is_made, label %put, label %failed
put:
  %old = call ptr @at(ptr %node, i64 NODE_attrs)
  %graph = call ptr @PyTuple_GetItem(ptr %old, i64 0)
  %number = call ptr @PyTuple_GetItem(ptr %old, i64 1)
  call void @Py_IncRef(ptr %graph)
  call void @Py_IncRef(ptr %number)
  call void @Py_IncRef(ptr %results)
  %put0 = call i32 @PyTuple_SetItem(ptr %attrs, i64 0, ptr %graph)
  %put1 = call i32 @PyTuple_SetItem(ptr %attrs, i64 1, ptr %number)
  %put2 = call i32 @PyTuple_SetItem(ptr %attrs, i64 2, ptr %results)
  call void @give(ptr %node, i64 NODE_attrs, ptr %attrs)
  call void @Py_DecRef(ptr %old)
  %reference = call ptr @PyWeakref_NewRef(ptr %node, ptr null)
  %is_new = icmp ne ptr %reference, null
  br i1 %is_new, label %add, label %failed
add:
  %added = call i32 @PyList_Append(ptr %results, ptr %reference)
  call void @Py_DecRef(ptr %reference)
  %is_added = icmp eq i32 %added, 0
  ret i1 %is_added
failed:
  ret i1 false
}

; Make the nodes of a call, whose holders are those at `made`: how many there are, below 0 with an error.
; It is given `held` nodes, and `free` numbers.
define internal i64 @record(ptr %words, ptr %nodes, i64 %held, ptr %numbers, i64 %free, ptr %line, ptr %made) {
entry:
  %needed = call i64 @whole(ptr %words, i64 WORD_operands)
  %asked = call i64 @whole(ptr %words, i64 WORD_numbers)
  %has_nodes = icmp sge i64 %held, %needed
  %has_numbers = icmp eq i64 %asked, %free
  %right = and i1 %has_nodes, %has_numbers
  br i1 %right, label %begin, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret i64 -1
begin:
  %n = call i64 @whole(ptr %words, i64 WORD_steps)
  %joined = call i64 @whole(ptr %words, i64 WORD_joined)
  %are_joined = icmp ne i64 %joined, 0
  br i1 %are_joined, label %list, label %next
list:
  %listed = call ptr @PyList_New(i64 0)
  %is_listed = icmp ne ptr %listed, null
  br i1 %is_listed, label %next, label %none
none:
  ret i64 -1
next:
  %i = phi i64 [ 0, %begin ], [ 0, %list ], [ %i1, %recorded ], [ %i1, %join ]
  %results = phi ptr [ null, %begin ], [ %listed, %list ], [ %results, %recorded ], [ %results, %join ]
  %like = phi ptr [ null, %begin ], [ null, %list ], [ null, %recorded ], [ %node, %join ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %make, label %done
make:
  %far = shl i64 %i, 3
  %blocks = getelementptr i8, ptr %words, i64 WORD_blocks
  %block = call ptr @at(ptr %blocks, i64 %far)
  %node = call ptr @node(ptr %words, ptr %block, ptr %like, ptr %nodes, ptr %numbers, ptr %line, ptr %made)
  %is_made = icmp ne ptr %node, null
  br i1 %is_made, label %recorded, label %failed
recorded:
  %node_at = getelementptr ptr, ptr %made, i64 %i
  store ptr %node, ptr %node_at
  %i1 = add i64 %i, 1
  %alone = icmp eq ptr %results, null
  br i1 %alone, label %next, label %join
join:
  %is_joined = call i1 @join(ptr %node, ptr %results)
  br i1 %is_joined, label %next, label %failed
failed:
  %behind = phi i64 [ %i, %make ], [ %i1, %join ]
  call void @Py_DecRef(ptr %results)
  call void @drop(ptr %made, i64 %behind)
  ret i64 -1
done:
  call void @Py_DecRef(ptr %results)
  ret i64 %n
}

; The same of nodes and numbers that are lists or tuples.
define internal i64 @record_lists(ptr %words, ptr %nodes, ptr %numbers, ptr %line, ptr %made) {
entry:
  %ours = call ptr @items(ptr %words, ptr %nodes)
  %theirs = call ptr @items(ptr %words, ptr %numbers)
  %has_ours = icmp ne ptr %ours, null
  %has_theirs = icmp ne ptr %theirs, null
  %right = and i1 %has_ours, %has_theirs
  br i1 %right, label %make, label %wrong
make:
  %held = call i64 @PyObject_Size(ptr %nodes)
  %free = call i64 @PyObject_Size(ptr %numbers)
  %steps = call i64 @record(ptr %words, ptr %ours, i64 %held, ptr %theirs, i64 %free, ptr %line, ptr %made)
  ret i64 %steps
wrong:
  call void @PyErr_BadArgument()
  ret i64 -1
}

; Let go of so many objects.
define internal void @drop(ptr %objects, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %lose ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %lose, label %done
lose:
  %from = getelementptr ptr, ptr %objects, i64 %i
  %x = load ptr, ptr %from
  call void @Py_DecRef(ptr %x)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

; The node of a result, which stays the caller's as well.
define internal ptr @result(ptr %words, i64 %number, ptr %made) {
  %n = call i64 @whole(ptr %words, i64 WORD_steps)
  %far = shl i64 %n, 3
  %blocks = getelementptr i8, ptr %words, i64 WORD_blocks
  %behind = getelementptr i8, ptr %blocks, i64 %far
  %there = shl i64 %number, 4
  %which = call i64 @whole(ptr %behind, i64 %there)
  %from = getelementptr ptr, ptr %made, i64 %which
  %node = load ptr, ptr %from
  ret ptr %node
}

; The words of a result's tensor.
define internal ptr @place(ptr %words, i64 %number) {
  %n = call i64 @whole(ptr %words, i64 WORD_steps)
  %far = shl i64 %n, 3
  %blocks = getelementptr i8, ptr %words, i64 WORD_blocks
  %behind = getelementptr i8, ptr %blocks, i64 %far
  %there = shl i64 %number, 4
  %second = add i64 %there, 8
  %words_of = call ptr @at(ptr %behind, i64 %second)
  ret ptr %words_of
}

"""
# A call that is recorded so has so many results, and so many nodes, at most; a look goes through as many tensors, and
# free numbers, as results.
MOST, _STEPS = 8, 64


class _Part(NamedTuple):
    """A text, what its functions know besides, the classes whose slots it reads, and numbers that it names."""

    text: str
    own: Sequence[str]
    classes: Mapping[str, type[object]]
    numbers: Mapping[str, int]


_parts: list[_Part] = []


def declare(
    text: str,
    own: Sequence[str] = (),
    classes: Mapping[str, type[object]] | None = None,
    numbers: Mapping[str, int] | None = None,
) -> None:
    """Add a text to the others: they are one when the first of their functions is asked for. `own` names the words that
    its functions have behind those that all know.
    """
    _parts.append(_Part(text, own, classes or {}, numbers or {}))


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
    numbers = {
        f"{kind}_{name}": 8 * n
        for kind, known in (("STEP", _STEP), ("PLACE", _PLACE))
        for n, name in enumerate(known)
    }
    numbers |= {"MOST": MOST, "OLDS": 2 * MOST, "STEPS": _STEPS}
    # Where a list keeps where its objects are, behind their number, and where those of a tuple are.
    numbers |= {"ITEMS": object.__basicsize__ + 8, "TUPLE_ITEMS": tuple.__basicsize__}
    classes: dict[str, type[object]] = {}
    for part in _parts:
        numbers |= {f"WORD_{name}": 8 * (len(COMMON) + n) for n, name in enumerate(part.own)}
        numbers |= part.numbers
        classes |= part.classes
    found = code.assembled("".join(p.text for p in _parts), _NAMES, classes, list(COMMON), numbers)
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
    _OWN,
    {
        "NODE": Node, "STORAGE": Storage, "MEMORY": device.Memory, "WRITES": type(writes), "RUNTIME": Runtime,
        "AHEAD": Ahead, "OPENED": type(opened), "FLAG": type(flag), "COUNT": Count,
    },
)  # fmt: skip
