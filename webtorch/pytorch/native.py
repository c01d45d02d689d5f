"""What a known call records, in machine code. Floor 6; imports PyTorch and the CPU's engine.

A call of a known kind is a node, a storage and a tensor of PyTorch's. The interpreter takes longer to run the lines
that make them than they take themselves. The functions here, in LLVM's own language, do what `known.Plan.tensors` does
for a plan with one result, and for one with several. They are of Python's own kind (`METH_FASTCALL`), one a plan, and
their `self` are words that say what the plan knows. Without LLVM there is none, and Python does the same.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from webtorch.ir.graph import Node
from webtorch.pytorch import device
from webtorch.pytorch.device import opened, words_of_storages
from webtorch.tensors.storage import Storage

if TYPE_CHECKING:
    from webtorch.pytorch.known import Made, Plan

# What `self` points to: objects, then numbers, the last of which is how many sources there are (-1 where they are
# the operands as they come), with two words for each behind it.
_WORDS = (
    "none", "false", "zero", "node", "storage", "opened", "runtime", "recording", "lent", "pending", "ahead", "bound",
    "add", "create", "memory_of", "addresses", "told", "webgpu", "kind", "attrs", "scalars", "shape", "dtype", "form",
    "elements", "size", "type", "reinterpret", "strides", "offset", "strided", "address", "length", "nbytes", "lined",
    "single", "sources",
)  # fmt: skip

_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsSsize_t(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_BadArgument()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyList_AsTuple(ptr)
declare ptr @PyList_New(i64)
declare ptr @PyTuple_New(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PyObject_SetAttr(ptr, ptr, ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyIter_Next(ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyWeakref_NewRef(ptr, ptr)

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

; The sources of a plan over the nodes of a call: a new tuple, or null with an error.
define internal ptr @sources(ptr %words, ptr %nodes) {
entry:
  %n = call i64 @whole(ptr %words, i64 WORD_sources)
  %straight = icmp slt i64 %n, 0
  br i1 %straight, label %as_they_come, label %new
as_they_come:
  %all = call ptr @PyList_AsTuple(ptr %nodes)
  ret ptr %all
new:
  %made = call ptr @PyTuple_New(i64 %n)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %next, label %failed
next:
  %i = phi i64 [ 0, %new ], [ %i1, %put ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %source, label %done
source:
  %i2 = shl i64 %i, 4
  %first = add i64 %i2, 8
  %from = getelementptr i8, ptr %words, i64 WORD_sources
  %number = call i64 @whole(ptr %from, i64 %first)
  %second = add i64 %i2, 16
  %kept = call ptr @at(ptr %from, i64 %second)
  %is_node = icmp sge i64 %number, 0
  br i1 %is_node, label %given, label %put
given:
  %node = call ptr @PyList_GetItem(ptr %nodes, i64 %number)
  %there = icmp ne ptr %node, null
  br i1 %there, label %put, label %drop
put:
  %value = phi ptr [ %kept, %source ], [ %node, %given ]
  call void @Py_IncRef(ptr %value)
  %set = call i32 @PyTuple_SetItem(ptr %made, i64 %i, ptr %value)
  %i1 = add i64 %i, 1
  br label %next
drop:
  call void @Py_DecRef(ptr %made)
  br label %failed
failed:
  ret ptr null
done:
  ret ptr %made
}

; The node of a call, or null with an error.
define internal ptr @node(ptr %words, ptr %nodes, ptr %numbers, ptr %line) {
entry:
  %many = call i64 @PyObject_Size(ptr %numbers)
  %none = icmp eq i64 %many, 0
  br i1 %none, label %fixed, label %free
free:
  %single = call i64 @whole(ptr %words, i64 WORD_single)
  %one = icmp ne i64 %single, 0
  br i1 %one, label %own, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
own:
  %listed = call ptr @PyList_AsTuple(ptr %numbers)
  %is_listed = icmp ne ptr %listed, null
  br i1 %is_listed, label %scalars, label %failed
fixed:
  %theirs = call ptr @at(ptr %words, i64 WORD_scalars)
  call void @Py_IncRef(ptr %theirs)
  br label %scalars
scalars:
  %given = phi ptr [ %listed, %own ], [ %theirs, %fixed ]
  %srcs = call ptr @sources(ptr %words, ptr %nodes)
  %has_srcs = icmp ne ptr %srcs, null
  br i1 %has_srcs, label %make, label %drop
make:
  %class = call ptr @at(ptr %words, i64 WORD_node)
  %node = call ptr @PyType_GenericAlloc(ptr %class, i64 0)
  %is_made = icmp ne ptr %node, null
  br i1 %is_made, label %fill, label %drop_both
fill:
  %nothing = call ptr @at(ptr %words, i64 WORD_none)
  %kind = call ptr @at(ptr %words, i64 WORD_kind)
  %attrs = call ptr @at(ptr %words, i64 WORD_attrs)
  %shape = call ptr @at(ptr %words, i64 WORD_shape)
  %dtype = call ptr @at(ptr %words, i64 WORD_dtype)
  %form = call ptr @at(ptr %words, i64 WORD_form)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %lined = call i64 @whole(ptr %words, i64 WORD_lined)
  %has_line = icmp ne i64 %lined, 0
  %shown = select i1 %has_line, ptr %line, ptr %nothing
  call void @give(ptr %node, i64 NODE_srcs, ptr %srcs)
  call void @give(ptr %node, i64 NODE_scalars, ptr %given)
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
  call void @Py_DecRef(ptr %given)
  br label %failed
failed:
  ret ptr null
}

; Let a runtime know that a storage's value waits; false with an error.
define internal i1 @wait(ptr %words, ptr %home, ptr %storage) {
entry:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %a = call ptr @at(ptr %words, i64 WORD_recording)
  %b = call ptr @at(ptr %words, i64 WORD_lent)
  %c = call ptr @at(ptr %words, i64 WORD_pending)
  %d = call ptr @at(ptr %words, i64 WORD_ahead)
  %e = call ptr @at(ptr %words, i64 WORD_bound)
  %recording = call ptr @PyObject_GetAttr(ptr %home, ptr %a)
  %lent = call ptr @PyObject_GetAttr(ptr %home, ptr %b)
  %pending = call ptr @PyObject_GetAttr(ptr %home, ptr %c)
  %ahead = call ptr @PyObject_GetAttr(ptr %home, ptr %d)
  ; An attribute that is not there leaves an error, which is looked for at the end.
  %has_recording = icmp ne ptr %recording, null
  %has_lent = icmp ne ptr %lent, null
  %has_pending = icmp ne ptr %pending, null
  %has_ahead = icmp ne ptr %ahead, null
  %two = and i1 %has_recording, %has_lent
  %three = and i1 %two, %has_pending
  %four = and i1 %three, %has_ahead
  br i1 %four, label %look, label %end
look:
  %limit = call ptr @PyObject_GetAttr(ptr %ahead, ptr %e)
  %has_limit = icmp ne ptr %limit, null
  br i1 %has_limit, label %compare, label %end
compare:
  %most = call i64 @PyLong_AsSsize_t(ptr %limit)
  call void @Py_DecRef(ptr %limit)
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
  call void @Py_DecRef(ptr %recording)
  call void @Py_DecRef(ptr %lent)
  call void @Py_DecRef(ptr %pending)
  call void @Py_DecRef(ptr %ahead)
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  ret i1 %fine
}

; A storage on a node, which is the caller's no more; null with an error.
define internal ptr @storage(ptr %words, ptr %node) {
entry:
  %class = call ptr @at(ptr %words, i64 WORD_storage)
  %opened = call ptr @at(ptr %words, i64 WORD_opened)
  %name = call ptr @at(ptr %words, i64 WORD_runtime)
  %home = call ptr @PyObject_GetAttr(ptr %opened, ptr %name)
  %is_open = icmp ne ptr %home, null
  br i1 %is_open, label %make, label %drop
make:
  %storage = call ptr @PyType_GenericAlloc(ptr %class, i64 0)
  %is_made = icmp ne ptr %storage, null
  br i1 %is_made, label %fill, label %close
fill:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %zero = call ptr @at(ptr %words, i64 WORD_zero)
  %dtype = call ptr @at(ptr %words, i64 WORD_dtype)
  %elements = call ptr @at(ptr %words, i64 WORD_elements)
  call void @give(ptr %storage, i64 STORAGE_node, ptr %node)
  call void @give(ptr %storage, i64 STORAGE_runtime, ptr %home)
  call void @set(ptr %storage, i64 STORAGE_dtype, ptr %dtype)
  call void @set(ptr %storage, i64 STORAGE_elements, ptr %elements)
  call void @set(ptr %storage, i64 STORAGE_version, ptr %zero)
  call void @set(ptr %storage, i64 STORAGE_donor, ptr %none)
  call void @set(ptr %storage, i64 STORAGE_resting, ptr %none)
  %waits = call i1 @wait(ptr %words, ptr %home, ptr %storage)
  br i1 %waits, label %done, label %lose
done:
  ret ptr %storage
lose:
  call void @Py_DecRef(ptr %storage)
  ret ptr null
close:
  call void @Py_DecRef(ptr %home)
  br label %drop
drop:
  call void @Py_DecRef(ptr %node)
  ret ptr null
}

; A tensor of PyTorch's whose storage carries ours; null with an error.
define internal ptr @tensor(ptr %words, ptr %storage) {
entry:
  %given = alloca [4 x ptr], align 16
  %second = getelementptr ptr, ptr %given, i64 1
  %size = call ptr @at(ptr %words, i64 WORD_size)
  %type = call ptr @at(ptr %words, i64 WORD_type)
  %create = call ptr @at(ptr %words, i64 WORD_create)
  store ptr %size, ptr %given
  store ptr %type, ptr %second
  %x = call ptr @PyObject_Vectorcall(ptr %create, ptr %given, i64 2, ptr null)
  %is_made = icmp ne ptr %x, null
  br i1 %is_made, label %home, label %failed
home:
  %memory_of = call ptr @at(ptr %words, i64 WORD_memory_of)
  store ptr %x, ptr %given
  %empty = call ptr @PyObject_Vectorcall(ptr %memory_of, ptr %given, i64 1, ptr null)
  %has_home = icmp ne ptr %empty, null
  br i1 %has_home, label %address, label %drop
address:
  %addresses = call ptr @at(ptr %words, i64 WORD_addresses)
  %number = call ptr @PyIter_Next(ptr %addresses)
  %has_number = icmp ne ptr %number, null
  br i1 %has_number, label %find, label %drop_home
find:
  ; PyTorch's storage has no memory: it is given an address and a length where it keeps them.
  %made_up = call ptr @PyLong_AsVoidPtr(ptr %number)
  call void @Py_DecRef(ptr %number)
  %told = call ptr @at(ptr %words, i64 WORD_told)
  %where = call ptr @PyObject_GetAttr(ptr %empty, ptr %told)
  %is_told = icmp ne ptr %where, null
  br i1 %is_told, label %fill, label %drop_home
fill:
  %theirs = call ptr @PyLong_AsVoidPtr(ptr %where)
  call void @Py_DecRef(ptr %where)
  %address_at = call i64 @whole(ptr %words, i64 WORD_address)
  %length_at = call i64 @whole(ptr %words, i64 WORD_length)
  %nbytes = call i64 @whole(ptr %words, i64 WORD_nbytes)
  %address_place = getelementptr i64, ptr %theirs, i64 %address_at
  %length_place = getelementptr i64, ptr %theirs, i64 %length_at
  store ptr %made_up, ptr %address_place
  store i64 %nbytes, ptr %length_place
  %name = call ptr @at(ptr %words, i64 WORD_webgpu)
  %set = call i32 @PyObject_SetAttr(ptr %empty, ptr %name, ptr %storage)
  %is_set = icmp eq i32 %set, 0
  br i1 %is_set, label %laid, label %drop_home
laid:
  %strided = call i64 @whole(ptr %words, i64 WORD_strided)
  %in_rows = icmp eq i64 %strided, 0
  br i1 %in_rows, label %done, label %turn
turn:
  %third = getelementptr ptr, ptr %given, i64 2
  %fourth = getelementptr ptr, ptr %given, i64 3
  %strides = call ptr @at(ptr %words, i64 WORD_strides)
  %offset = call ptr @at(ptr %words, i64 WORD_offset)
  %reinterpret = call ptr @at(ptr %words, i64 WORD_reinterpret)
  store ptr %x, ptr %given
  store ptr %size, ptr %second
  store ptr %strides, ptr %third
  store ptr %offset, ptr %fourth
  %turned = call ptr @PyObject_Vectorcall(ptr %reinterpret, ptr %given, i64 4, ptr null)
  call void @Py_DecRef(ptr %x)
  br label %done
done:
  %result = phi ptr [ %x, %laid ], [ %turned, %turn ]
  call void @Py_DecRef(ptr %empty)
  ret ptr %result
drop_home:
  call void @Py_DecRef(ptr %empty)
  br label %drop
drop:
  call void @Py_DecRef(ptr %x)
  br label %failed
failed:
  ret ptr null
}

define ptr @wt_record(ptr %self, ptr %args, i64 %count) {
entry:
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %right = icmp eq i64 %count, 3
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %nodes = call ptr @at(ptr %args, i64 0)
  %numbers = call ptr @at(ptr %args, i64 8)
  %line = call ptr @at(ptr %args, i64 16)
  %node = call ptr @node(ptr %words, ptr %nodes, ptr %numbers, ptr %line)
  %is_recorded = icmp ne ptr %node, null
  br i1 %is_recorded, label %stored, label %failed
stored:
  %storage = call ptr @storage(ptr %words, ptr %node)
  %is_stored = icmp ne ptr %storage, null
  br i1 %is_stored, label %shown, label %failed
shown:
  %x = call ptr @tensor(ptr %words, ptr %storage)
  call void @Py_DecRef(ptr %storage)
  ret ptr %x
failed:
  ret ptr null
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

; The same for a call with several results: `self` points to how many there are, and to the words of each.
define ptr @wt_record_all(ptr %self, ptr %args, i64 %count) {
entry:
  %made = alloca [MOST x ptr], align 16
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %right = icmp eq i64 %count, 3
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %nodes = call ptr @at(ptr %args, i64 0)
  %numbers = call ptr @at(ptr %args, i64 8)
  %line = call ptr @at(ptr %args, i64 16)
  %n = call i64 @whole(ptr %words, i64 0)
  %results = call ptr @PyList_New(i64 0)
  %all = call ptr @PyTuple_New(i64 %n)
  %has_results = icmp ne ptr %results, null
  %has_all = icmp ne ptr %all, null
  %ready = and i1 %has_results, %has_all
  br i1 %ready, label %next, label %failed
next:
  ; All nodes come first: they may be computed as soon as one of them has a storage.
  %i = phi i64 [ 0, %given ], [ %i1, %joined ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %record, label %next_tensor
record:
  %at = getelementptr ptr, ptr %words, i64 %i
  %place = call ptr @at(ptr %at, i64 8)
  %node = call ptr @node(ptr %place, ptr %nodes, ptr %numbers, ptr %line)
  %is_recorded = icmp ne ptr %node, null
  br i1 %is_recorded, label %join, label %failed
join:
  %node_at = getelementptr ptr, ptr %made, i64 %i
  store ptr %node, ptr %node_at
  %i1 = add i64 %i, 1
  %is_joined = call i1 @join(ptr %node, ptr %results)
  br i1 %is_joined, label %joined, label %failed
joined:
  br label %next
next_tensor:
  %j = phi i64 [ 0, %next ], [ %j1, %shown ]
  %left = icmp slt i64 %j, %n
  br i1 %left, label %keep, label %done
keep:
  %j1 = add i64 %j, 1
  %from = getelementptr ptr, ptr %made, i64 %j
  %theirs = load ptr, ptr %from
  %at_j = getelementptr ptr, ptr %words, i64 %j
  %place_j = call ptr @at(ptr %at_j, i64 8)
  %storage = call ptr @storage(ptr %place_j, ptr %theirs)
  %is_stored = icmp ne ptr %storage, null
  br i1 %is_stored, label %show, label %failed
show:
  %x = call ptr @tensor(ptr %place_j, ptr %storage)
  call void @Py_DecRef(ptr %storage)
  %is_shown = icmp ne ptr %x, null
  br i1 %is_shown, label %shown, label %failed
shown:
  %set = call i32 @PyTuple_SetItem(ptr %all, i64 %j, ptr %x)
  br label %next_tensor
done:
  call void @Py_DecRef(ptr %results)
  ret ptr %all
failed:
  ; The nodes from the first one that no storage has to the last one made.
  %first = phi i64 [ 0, %given ], [ 0, %record ], [ 0, %join ], [ %j1, %keep ], [ %j1, %show ]
  %behind = phi i64 [ 0, %given ], [ %i, %record ], [ %i1, %join ], [ %n, %keep ], [ %n, %show ]
  br label %drop
drop:
  %k = phi i64 [ %first, %failed ], [ %k1, %dropped ]
  %any = icmp slt i64 %k, %behind
  br i1 %any, label %dropped, label %end
dropped:
  %lost_at = getelementptr ptr, ptr %made, i64 %k
  %lost = load ptr, ptr %lost_at
  call void @Py_DecRef(ptr %lost)
  %k1 = add i64 %k, 1
  br label %drop
end:
  call void @Py_DecRef(ptr %results)
  call void @Py_DecRef(ptr %all)
  ret ptr null
}
"""
# A call that is recorded so has so many results at most.
_MOST = 8


@functools.cache
def _code() -> ModuleType | None:
    """Return what makes functions of machine code; None without NumPy."""
    try:
        from webtorch.runtime.backends.cpu import slots
    except ImportError:
        return None
    return slots


def assembled(
    text: str,
    names: tuple[str, ...],
    classes: Mapping[str, type[object]],
    words: Sequence[str],
    others: Mapping[str, int],
) -> Sequence[int] | None:
    """Return where the functions of a text are (see `slots.assembled`); None where there are none."""
    code = None if sys.platform == "win32" else _code()
    if code is None:
        return None
    addresses: Sequence[int] | None = code.assembled(text, names, classes, words, others)
    return addresses


def function(
    name: bytes,
    address: int,
    objects: Sequence[object],
    numbers: Sequence[int],
    kept: object = None,
) -> Callable[..., Any]:
    """Return machine code as a function of Python's (see `slots.function`)."""
    code = _code()
    assert code is not None
    made: Callable[..., Any] = code.function(name, address, objects, numbers, kept)
    return made


@functools.cache
def _addresses() -> Sequence[int] | None:
    names, classes = ("wt_record", "wt_record_all"), {"NODE": Node, "STORAGE": Storage}
    return assembled(_TEXT, names, classes, _WORDS, {"MOST": _MOST})


# What every function knows. Each object lives as long as the process.
_COMMON: list[object] = [
    None, False, 0, Node, Storage, opened, "runtime", "recording", "lent", "pending", "ahead", "bound", "add",
    device._create, device._storage_of, device._addresses, "_cdata", "_webgpu",
]  # fmt: skip


def recorder(plan: Plan) -> Callable[..., Any] | None:
    """Return what records a plan's calls and makes tensors of their results; None where Python does."""
    addresses, theirs = _addresses(), words_of_storages()
    if addresses is None or theirs is None or any(place.laid for place in plan.places):
        return None
    if not plan.single and any(n is not None for n in plan.numbers):
        # A call's numbers are those of several operations.
        return None
    one, several = addresses
    sources = [-1 if plan.is_straight else len(plan.leaves)]
    if not plan.is_straight:
        # Of each source, which of the operands' nodes it is, or none and a node of the plan's own.
        for leaf in plan.leaves:
            sources += (leaf, 0) if type(leaf) is int else (-1, id(leaf))

    def known(place: Made, *node: object) -> tuple[list[object], list[int]]:
        """Return what is known of a result, and of its node."""
        objects = [
            *_COMMON, *node, place.elements, place.size, place.dtype, device._reinterpret, place.strides, place.offset,
        ]  # fmt: skip
        numbers = [not place.is_plain, *theirs, place.nbytes, plan.lined, plan.single, *sources]
        return objects, numbers

    if plan.make is None:
        node = plan.kind, plan.attrs, plan.scalars, plan.shape, plan.dtype, plan.form
        return function(b"record", one, *known(plan.place, *node), plan.leaves)
    if plan.make is not tuple or len(plan.places) > _MOST:
        return None
    results = [known(p, "call", p.attrs, (), p.shape, p.kind, p.attrs[0]) for p in plan.places]
    code = _code()
    assert code is not None
    blocks = [code.cells(*result) for result in results]
    numbers = [len(blocks), *map(ctypes.addressof, blocks)]
    return function(b"record", several, [], numbers, (blocks, results, plan.leaves))
