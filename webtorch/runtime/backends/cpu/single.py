"""One value that is wanted alone, computed in one call of machine code. Imports this backend's modules.

To find the program of a value that was recorded as others were, to run it and to make the value data takes the
interpreter longer than most small kernels. The function here, in LLVM's own language, does the same where everything
is as it was for the last value of its form (`Form.latest`): it reads the slots of nodes, storages and buffers where
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
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare ptr @PyLong_FromVoidPtr(ptr)
declare ptr @PyLong_FromSsize_t(i64)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_ExceptionMatches(ptr)
declare void @PyErr_Clear()
declare void @PyErr_BadArgument()
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare ptr @PyBytes_AsString(ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)

define internal i64 @word(ptr %words, i64 %number) alwaysinline {
  %place = getelementptr i64, ptr %words, i64 %number
  %found = load i64, ptr %place
  ret i64 %found
}

define internal void @put(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %old = load ptr, ptr %place
  store ptr %value, ptr %place
  call void @Py_IncRef(ptr %value)
  call void @Py_DecRef(ptr %old)
  ret void
}

define internal i1 @is_a(ptr %object, ptr %words, i64 %number) alwaysinline {
entry:
  %there = icmp ne ptr %object, null
  br i1 %there, label %look, label %no
look:
  %kind = call ptr @at(ptr %object, i64 TYPE)
  %place = getelementptr ptr, ptr %words, i64 %number
  %wanted = load ptr, ptr %place
  %same = icmp eq ptr %kind, %wanted
  ret i1 %same
no:
  ret i1 false
}

; A new buffer for the result, or null with an error.
define internal ptr @new_buffer(ptr %words, ptr %plan) {
entry:
  %size = call i64 @word(ptr %plan, i64 PLAN_size)
  %returned = call ptr @at(ptr %words, i64 WORD_returned)
  %count = call i64 @PyObject_Size(ptr %returned)
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %pop, label %take
pop:
  %popper = call ptr @at(ptr %words, i64 WORD_pop)
  %last = call ptr @PyObject_CallNoArgs(ptr %popper)
  %is_block = call i1 @is_a(ptr %last, ptr %words, i64 IS_block)
  br i1 %is_block, label %fit, label %broken
fit:
  %bytes = call ptr @at(ptr %last, i64 BLOCK_size)
  %holds = call i64 @PyLong_AsUnsignedLongLongMask(ptr %bytes)
  %fits = icmp eq i64 %holds, %size
  %seen = call ptr @at(ptr %last, i64 BLOCK_seen)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %unseen = icmp eq ptr %seen, %false
  %good = and i1 %fits, %unseen
  br i1 %good, label %have, label %back
back:
  %append = call ptr @at(ptr %words, i64 WORD_append)
  %done = call ptr @PyObject_CallOneArg(ptr %append, ptr %last)
  call void @Py_DecRef(ptr %done)
  call void @Py_DecRef(ptr %last)
  br label %take
take:
  %number = call ptr @PyLong_FromSsize_t(i64 %size)
  %taker = call ptr @at(ptr %words, i64 WORD_take)
  %taken = call ptr @PyObject_CallOneArg(ptr %taker, ptr %number)
  call void @Py_DecRef(ptr %number)
  %right = call i1 @is_a(ptr %taken, ptr %words, i64 IS_block)
  br i1 %right, label %have, label %broken
have:
  %block = phi ptr [ %last, %fit ], [ %taken, %take ]
  %kind = call ptr @at(ptr %words, i64 WORD_buffer)
  %made = call ptr @PyType_GenericAlloc(ptr %kind, i64 0)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %fill, label %failed
failed:
  call void @Py_DecRef(ptr %block)
  br label %broken
fill:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %dtype = call ptr @at(ptr %plan, i64 IN_PLAN_dtype)
  %address = call ptr @at(ptr %block, i64 BLOCK_address)
  %n = call i64 @word(ptr %plan, i64 PLAN_elements)
  %elements = call ptr @PyLong_FromSsize_t(i64 %n)
  call void @put(ptr %made, i64 BUFFER_dtype, ptr %dtype)
  call void @put(ptr %made, i64 BUFFER_elements, ptr %elements)
  call void @put(ptr %made, i64 BUFFER__array, ptr %none)
  call void @put(ptr %made, i64 BUFFER_block, ptr %block)
  call void @put(ptr %made, i64 BUFFER_address, ptr %address)
  call void @Py_DecRef(ptr %elements)
  call void @Py_DecRef(ptr %block)
  ret ptr %made
broken:
  ret ptr null
}

; Where the sources lie, and whether they are the same ones that they were.
define internal i1 @gather(ptr %words, ptr %plan, ptr %srcs, i64 %count, ptr %addresses) {
entry:
  %size = call i64 @PyTuple_Size(ptr %srcs)
  %as_many = icmp eq i64 %size, %count
  br i1 %as_many, label %next, label %no
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %stored ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %source, label %yes
source:
  %s = call ptr @PyTuple_GetItem(ptr %srcs, i64 %i)
  %is_node = call i1 @is_a(ptr %s, ptr %words, i64 IS_node)
  br i1 %is_node, label %kind, label %no
kind:
  %k = call ptr @at(ptr %s, i64 NODE_kind)
  %computed = call ptr @at(ptr %words, i64 WORD_computed)
  %is_computed = icmp eq ptr %k, %computed
  br i1 %is_computed, label %memory, label %no
memory:
  %b = call ptr @at(ptr %s, i64 NODE_buffer)
  %there = icmp ne ptr %b, null
  br i1 %there, label %look, label %no
look:
  %b_kind = call ptr @at(ptr %b, i64 TYPE)
  %buffer = call ptr @at(ptr %words, i64 WORD_buffer)
  %is_buffer = call i32 @PyType_IsSubtype(ptr %b_kind, ptr %buffer)
  %right = icmp ne i32 %is_buffer, 0
  br i1 %right, label %same, label %no
same:
  %j = phi i64 [ 0, %look ], [ %j1, %other ]
  %t = call ptr @PyTuple_GetItem(ptr %srcs, i64 %j)
  %first = icmp eq ptr %t, %s
  br i1 %first, label %found, label %other
other:
  %j1 = add i64 %j, 1
  br label %same
found:
  %place = add i64 %i, HEAD
  %before = call i64 @word(ptr %plan, i64 %place)
  %alike = icmp eq i64 %before, %j
  br i1 %alike, label %stored, label %no
stored:
  %a = call ptr @at(ptr %b, i64 BUFFER_address)
  %address = call i64 @PyLong_AsUnsignedLongLongMask(ptr %a)
  %to = getelementptr i64, ptr %addresses, i64 %i
  store i64 %address, ptr %to
  %i1 = add i64 %i, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; The kernels, one after the other.
define internal void @kernels(ptr %words, ptr %plan, ptr %addresses, i64 %sources, i64 %result, ptr %numbers) {
entry:
  %block = alloca [64 x i64], align 16
  %kernels = call i64 @word(ptr %plan, i64 PLAN_kernels)
  %begin = add i64 %sources, HEAD
  br label %next
next:
  %left = phi i64 [ %kernels, %entry ], [ %left1, %ran ]
  %at = phi i64 [ %begin, %entry ], [ %cell, %ran ]
  %more = icmp ne i64 %left, 0
  br i1 %more, label %kernel, label %done
kernel:
  %code = call i64 @word(ptr %plan, i64 %at)
  %at1 = add i64 %at, 1
  %points = call i64 @word(ptr %plan, i64 %at1)
  %at2 = add i64 %at, 2
  %step = call i64 @word(ptr %plan, i64 %at2)
  %at3 = add i64 %at, 3
  %cells = call i64 @word(ptr %plan, i64 %at3)
  %at4 = add i64 %at, 4
  br label %each
each:
  %n = phi i64 [ 0, %kernel ], [ %n1, %stored ]
  %cell = phi i64 [ %at4, %kernel ], [ %cell2, %stored ]
  %again = icmp ult i64 %n, %cells
  br i1 %again, label %look, label %packed
look:
  %what = call i64 @word(ptr %plan, i64 %cell)
  %cell1 = add i64 %cell, 1
  %value = call i64 @word(ptr %plan, i64 %cell1)
  switch i64 %what, label %stored [
    i64 1, label %source
    i64 2, label %made
    i64 3, label %float
    i64 4, label %whole
  ]
source:
  %address = call i64 @word(ptr %addresses, i64 %value)
  br label %stored
made:
  br label %stored
float:
  %f = call ptr @PyTuple_GetItem(ptr %numbers, i64 %value)
  %d = call double @PyFloat_AsDouble(ptr %f)
  %bits = bitcast double %d to i64
  br label %stored
whole:
  %w = call ptr @PyTuple_GetItem(ptr %numbers, i64 %value)
  %integer = call i64 @PyLong_AsUnsignedLongLongMask(ptr %w)
  br label %stored
stored:
  %found = phi i64 [ %value, %look ], [ %address, %source ], [ %result, %made ], [ %bits, %float ], [ %integer, %whole ]
  %to = getelementptr i64, ptr %block, i64 %n
  store i64 %found, ptr %to
  %n1 = add i64 %n, 1
  %cell2 = add i64 %cell, 2
  br label %each
packed:
  ; What could not be read may be a place in memory.
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %run, label %done
run:
  %function = inttoptr i64 %code to ptr
  %alone = icmp eq i64 %step, 0
  br i1 %alone, label %here, label %share
here:
  call void %function(i64 0, i64 %points, ptr %block)
  br label %ran
share:
  %pool = call ptr @at(ptr %words, i64 WORD_pool)
  %shared = load ptr, ptr %pool
  call void %shared(ptr %pool, ptr %function, i64 0, i64 %points, i64 %step, ptr %block)
  br label %ran
ran:
  %left1 = sub i64 %left, 1
  br label %next
done:
  ret void
}

; Make the node data; or change nothing.
define internal i1 @compute(ptr %words, ptr %plan, ptr %pending, ptr %settled, ptr %ref, ptr %owner,
                           ptr %node, ptr %srcs, ptr %numbers) {
entry:
  %addresses = alloca [16 x i64], align 16
  %tuple1 = call i1 @is_a(ptr %srcs, ptr %words, i64 IS_tuple)
  %tuple2 = call i1 @is_a(ptr %numbers, ptr %words, i64 IS_tuple)
  %tuples = and i1 %tuple1, %tuple2
  br i1 %tuples, label %begin, label %no
begin:
  %sources = call i64 @word(ptr %plan, i64 PLAN_sources)
  %same = call i1 @gather(ptr %words, ptr %plan, ptr %srcs, i64 %sources, ptr %addresses)
  br i1 %same, label %count, label %no
count:
  %given = call i64 @PyTuple_Size(ptr %numbers)
  %wanted = call i64 @word(ptr %plan, i64 PLAN_numbers)
  %as_many = icmp eq i64 %given, %wanted
  br i1 %as_many, label %new, label %no
new:
  %made = call ptr @new_buffer(ptr %words, ptr %plan)
  %is_made = icmp ne ptr %made, null
  br i1 %is_made, label %run, label %no
run:
  %a = call ptr @at(ptr %made, i64 BUFFER_address)
  %address = call i64 @PyLong_AsUnsignedLongLongMask(ptr %a)
  call void @kernels(ptr %words, ptr %plan, ptr %addresses, i64 %sources, i64 %address, ptr %numbers)
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %check, label %drop
check:
  %status = call ptr @at(ptr %plan, i64 IN_PLAN_status)
  %checks = icmp ne ptr %status, null
  br i1 %checks, label %read, label %again
read:
  %said = load i64, ptr %status
  %good = icmp eq i64 %said, 0
  br i1 %good, label %again, label %drop
again:
  %now = call ptr @at(ptr %owner, i64 OWNER_node)
  %still = icmp eq ptr %now, %node
  %kind = call ptr @at(ptr %node, i64 NODE_kind)
  %before = call ptr @at(ptr %plan, i64 IN_PLAN_kind)
  %waits = icmp eq ptr %kind, %before
  %first = call ptr @PyList_GetItem(ptr %pending, i64 0)
  %mine = icmp eq ptr %first, %ref
  %both = and i1 %still, %waits
  %all = and i1 %both, %mine
  br i1 %all, label %settle, label %drop
settle:
  %id = call ptr @PyLong_FromVoidPtr(ptr %owner)
  %set = call i32 @PyDict_SetItem(ptr %settled, ptr %id, ptr %ref)
  call void @Py_DecRef(ptr %id)
  %is_set = icmp eq i32 %set, 0
  br i1 %is_set, label %finish, label %drop
finish:
  %computed = call ptr @at(ptr %words, i64 WORD_computed)
  %empty = call ptr @at(ptr %words, i64 WORD_empty)
  %cut = call i32 @PyList_SetSlice(ptr %pending, i64 0, i64 1, ptr null)
  call void @put(ptr %node, i64 NODE_buffer, ptr %made)
  call void @put(ptr %node, i64 NODE_kind, ptr %computed)
  call void @Py_DecRef(ptr %made)
  call void @put(ptr %node, i64 NODE_attrs, ptr %empty)
  call void @put(ptr %node, i64 NODE_scalars, ptr %empty)
  call void @put(ptr %node, i64 NODE_srcs, ptr %empty)
  ret i1 true
drop:
  call void @Py_DecRef(ptr %made)
  ret i1 false
no:
  ret i1 false
}

; What is known of the owner's value, borrowed, if its plan fits.
define internal ptr @known(ptr %words, ptr %runtime, ptr %owner) {
entry:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %is_owner = call i1 @is_a(ptr %owner, ptr %words, i64 IS_owner)
  br i1 %is_owner, label %owned, label %no
owned:
  %donor = call ptr @at(ptr %owner, i64 OWNER_donor)
  %free = icmp eq ptr %donor, %none
  %node = call ptr @at(ptr %owner, i64 OWNER_node)
  %is_node = call i1 @is_a(ptr %node, ptr %words, i64 IS_node)
  %fits = and i1 %free, %is_node
  br i1 %fits, label %noded, label %no
noded:
  %form = call ptr @at(ptr %node, i64 NODE_form)
  %is_form = call i1 @is_a(ptr %form, ptr %words, i64 IS_form)
  %is_recorded = call i1 @is_a(ptr %form, ptr %words, i64 IS_recorded)
  %formed = or i1 %is_form, %is_recorded
  br i1 %formed, label %known, label %no
known:
  %found = call ptr @at(ptr %form, i64 FORM_latest)
  %is_known = call i1 @is_a(ptr %found, ptr %words, i64 IS_known)
  br i1 %is_known, label %ours, label %no
ours:
  %of = call ptr @at(ptr %found, i64 KNOWN_runtime)
  %same = icmp eq ptr %of, %runtime
  %bytes = call ptr @at(ptr %found, i64 KNOWN_plan)
  %is_plan = call i1 @is_a(ptr %bytes, ptr %words, i64 IS_bytes)
  %right = and i1 %same, %is_plan
  br i1 %right, label %planned, label %no
planned:
  %plan = call ptr @PyBytes_AsString(ptr %bytes)
  %kind = call ptr @at(ptr %node, i64 NODE_kind)
  %wanted = call ptr @at(ptr %plan, i64 IN_PLAN_kind)
  %alike = icmp eq ptr %kind, %wanted
  br i1 %alike, label %result, label %no
result:
  %number = call ptr @at(ptr %plan, i64 IN_PLAN_number)
  %called = icmp ne ptr %number, null
  br i1 %called, label %which, label %yes
which:
  %attrs = call ptr @at(ptr %node, i64 NODE_attrs)
  %is_tuple = call i1 @is_a(ptr %attrs, ptr %words, i64 IS_tuple)
  br i1 %is_tuple, label %compare, label %no
compare:
  %second = call ptr @PyTuple_GetItem(ptr %attrs, i64 1)
  %it = icmp eq ptr %second, %number
  br i1 %it, label %yes, label %no
yes:
  ret ptr %found
no:
  ret ptr null
}

define ptr @wt_single(ptr %self, ptr %args, i64 %count) {
entry:
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %right = icmp eq i64 %count, 3
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %pending = call ptr @at(ptr %args, i64 0)
  %settled = call ptr @at(ptr %args, i64 8)
  %runtime = call ptr @at(ptr %args, i64 16)
  %waiting = call i64 @PyList_Size(ptr %pending)
  %alone = icmp eq i64 %waiting, 1
  br i1 %alone, label %one, label %end
one:
  %ref = call ptr @PyList_GetItem(ptr %pending, i64 0)
  call void @Py_IncRef(ptr %ref)
  %owner = call ptr @PyObject_CallNoArgs(ptr %ref)
  %known = call ptr @known(ptr %words, ptr %runtime, ptr %owner)
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %program, label %leave
program:
  call void @Py_IncRef(ptr %known)
  %reference = call ptr @at(ptr %known, i64 KNOWN_executable)
  %executable = call ptr @PyObject_CallNoArgs(ptr %reference)
  %gone = icmp eq ptr %executable, %none
  %broken = icmp eq ptr %executable, null
  %lost = or i1 %gone, %broken
  br i1 %lost, label %forget, label %hold
hold:
  %bytes = call ptr @at(ptr %known, i64 KNOWN_plan)
  %plan = call ptr @PyBytes_AsString(ptr %bytes)
  %node = call ptr @at(ptr %owner, i64 OWNER_node)
  %srcs = call ptr @at(ptr %node, i64 NODE_srcs)
  %numbers = call ptr @at(ptr %node, i64 NODE_scalars)
  call void @Py_IncRef(ptr %bytes)
  call void @Py_IncRef(ptr %node)
  call void @Py_IncRef(ptr %srcs)
  call void @Py_IncRef(ptr %numbers)
  %done = call i1 @compute(ptr %words, ptr %plan, ptr %pending, ptr %settled, ptr %ref,
                        ptr %owner, ptr %node, ptr %srcs, ptr %numbers)
  call void @Py_DecRef(ptr %numbers)
  call void @Py_DecRef(ptr %srcs)
  call void @Py_DecRef(ptr %node)
  call void @Py_DecRef(ptr %bytes)
  call void @Py_DecRef(ptr %executable)
  call void @Py_DecRef(ptr %owner)
  call void @Py_DecRef(ptr %ref)
  br i1 %done, label %computed, label %not
computed:
  ret ptr %known
not:
  call void @Py_DecRef(ptr %known)
  br label %end
forget:
  call void @Py_DecRef(ptr %known)
  call void @Py_DecRef(ptr %executable)
  br label %leave
leave:
  call void @Py_DecRef(ptr %owner)
  call void @Py_DecRef(ptr %ref)
  br label %end
end:
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %raised, label %nothing
raised:
  ; What is wrong with the data or the memory is found again, and said, in Python.
  %exception = call ptr @at(ptr %words, i64 WORD_exception)
  %matches = call i32 @PyErr_ExceptionMatches(ptr %exception)
  %plain = icmp ne i32 %matches, 0
  br i1 %plain, label %clear, label %stop
stop:
  ret ptr null
clear:
  call void @PyErr_Clear()
  br label %nothing
nothing:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}
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
        "OWNER": owner, "NODE": Node, "FORM": Form, "KNOWN": known, "BUFFER": CpuBuffer, "BLOCK": Block
    }  # fmt: skip
    places = {f"PLAN_{n}": i for i, n in enumerate(_HEAD)} | {"HEAD": len(_HEAD)}
    places |= {f"IN_PLAN_{n}": 8 * i for i, n in enumerate(_HEAD)}
    addresses = slots.assembled(_TEXT, ("wt_single",), classes, _WORDS, places)
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
