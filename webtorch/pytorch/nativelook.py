"""Looks at calls of one form, in machine code. Floor 6; imports PyTorch and the CPU's engine.

What a function of `looking` asks of a call's arguments, one after the other, this does without the interpreter: all
forms have one function, and the words that its `self` points to say what is asked of which argument. It takes a
form of tensors, numbers and constants, and of lists of these; what it does not expect it leaves to Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from webtorch.ir.graph import Node
from webtorch.pytorch import device
from webtorch.pytorch.device import Memory, offset_of
from webtorch.pytorch.nativenodes import HOME, assembled, function
from webtorch.pytorch.near import Near
from webtorch.tensors.storage import Storage

# What `self` points to: objects, then four numbers, the last of which is how many steps there are, with four words
# for each behind it: what is asked, of a value of which row, which of its values, and its class, or how many it holds.
# Rows are the arguments, the values of a list, those of a tuple, and options, which have a name for a number.
_WORDS = (
    "none", "false", "true", "error", "storage", "memory", "tensor", "parameter", "float", "list", "tuple",
    "memory_of", "offset_of", "webgpu", "found", "arguments", "options", "length", "steps",
)  # fmt: skip
_TENSOR, _CONSTANT, _LIST, _FREE, _FLOAT, _NONE, _LENGTH, _TUPLE = range(8)
# A look goes through so many tensors, and so many free numbers, at most.
_MOST = 8

_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
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
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyObject_Str(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)

; Add an object to a key at a place; the object stays its owner's as well.
define internal void @key(ptr %key, ptr %at, ptr %value) alwaysinline {
  %n = load i64, ptr %at
  call void @Py_IncRef(ptr %value)
  %set = call i32 @PyTuple_SetItem(ptr %key, i64 %n, ptr %value)
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %at
  ret void
}

; Whether tensors lie as they did.
define internal i1 @lie(ptr %words, ptr %near, ptr %tensors, i64 %count) {
entry:
  %given = alloca ptr, align 8
  %check = call ptr @at(ptr %near, i64 NEAR_check)
  %said = call ptr @PyObject_Vectorcall(ptr %check, ptr %tensors, i64 %count, ptr null)
  call void @Py_DecRef(ptr %said)
  %true = call ptr @at(ptr %words, i64 WORD_true)
  %alike = icmp eq ptr %said, %true
  br i1 %alike, label %places, label %no
places:
  %offsets = call ptr @at(ptr %near, i64 NEAR_offsets)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %anywhere = icmp eq ptr %offsets, %none
  br i1 %anywhere, label %yes, label %next
next:
  %i = phi i64 [ 0, %places ], [ %i1, %same ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %ask, label %yes
ask:
  %from = getelementptr ptr, ptr %tensors, i64 %i
  %x = load ptr, ptr %from
  store ptr %x, ptr %given
  %offset_of = call ptr @at(ptr %words, i64 WORD_offset_of)
  %offset = call ptr @PyObject_Vectorcall(ptr %offset_of, ptr %given, i64 1, ptr null)
  %told = icmp ne ptr %offset, null
  br i1 %told, label %compare, label %no
compare:
  %wanted = call ptr @PyList_GetItem(ptr %offsets, i64 %i)
  %is_wanted = icmp ne ptr %wanted, null
  br i1 %is_wanted, label %equal, label %lose
equal:
  %answer = call i32 @PyObject_RichCompareBool(ptr %offset, ptr %wanted, i32 2)
  call void @Py_DecRef(ptr %offset)
  %is_equal = icmp eq i32 %answer, 1
  br i1 %is_equal, label %same, label %no
same:
  %i1 = add i64 %i, 1
  br label %next
lose:
  call void @Py_DecRef(ptr %offset)
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define ptr @wt_look(ptr %self, ptr %args, i64 %given_count) {
entry:
  %tensors = alloca [MOST x ptr], align 16
  %nodes = alloca [MOST x ptr], align 16
  %numbers = alloca [MOST x ptr], align 16
  %filled = alloca i64, align 8
  %held = alloca i64, align 8
  %free = alloca i64, align 8
  %bytes = alloca ptr, align 8
  %list = alloca ptr, align 8
  %near = alloca ptr, align 8
  %answer = alloca ptr, align 8
  store i64 0, ptr %filled
  store i64 0, ptr %held
  store i64 0, ptr %free
  store ptr null, ptr %list
  store ptr null, ptr %near
  store ptr null, ptr %answer
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  store ptr %none, ptr %bytes
  %right = icmp eq i64 %given_count, 4
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %values = call ptr @at(ptr %args, i64 0)
  %options = call ptr @at(ptr %args, i64 8)
  %to_nodes = call ptr @at(ptr %args, i64 16)
  %to_numbers = call ptr @at(ptr %args, i64 24)
  %values_class = call ptr @at(ptr %values, i64 TYPE)
  %tuples = call ptr @at(ptr %words, i64 WORD_tuple)
  %is_tuple = icmp eq ptr %values_class, %tuples
  br i1 %is_tuple, label %count, label %nothing
count:
  %many = call i64 @PyTuple_Size(ptr %values)
  %others = call i64 @PyObject_Size(ptr %options)
  %wanted = call i64 @whole(ptr %words, i64 WORD_arguments)
  %named = call i64 @whole(ptr %words, i64 WORD_options)
  %as_many = icmp eq i64 %many, %wanted
  %as_named = icmp eq i64 %others, %named
  %formed = and i1 %as_many, %as_named
  br i1 %formed, label %begin, label %refuse
refuse:
  %failed = call ptr @PyErr_Occurred()
  %is_failed = icmp ne ptr %failed, null
  br i1 %is_failed, label %raise, label %nothing
raise:
  ret ptr null
nothing:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
begin:
  %length = call i64 @whole(ptr %words, i64 WORD_length)
  %steps = call i64 @whole(ptr %words, i64 WORD_steps)
  %key = call ptr @PyTuple_New(i64 %length)
  %is_made = icmp ne ptr %key, null
  br i1 %is_made, label %next, label %raise
next:
  %i = phi i64 [ 0, %begin ], [ %i1, %good ]
  %inner = phi ptr [ %none, %begin ], [ %inner1, %good ]
  %more = icmp slt i64 %i, %steps
  br i1 %more, label %step, label %all
step:
  %i32 = shl i64 %i, 5
  %place = getelementptr i8, ptr %words, i64 WORD_steps
  %step0 = getelementptr i8, ptr %place, i64 %i32
  %what = call i64 @whole(ptr %step0, i64 8)
  %source = call i64 @whole(ptr %step0, i64 16)
  %index = call i64 @whole(ptr %step0, i64 24)
  %asked = call ptr @at(ptr %step0, i64 32)
  switch i64 %source, label %out [
    i64 0, label %of_call
    i64 1, label %of_list
    i64 2, label %of_tuple
    i64 3, label %of_options
  ]
of_call:
  %v0 = call ptr @PyTuple_GetItem(ptr %values, i64 %index)
  br label %value
of_list:
  %v1 = call ptr @PyList_GetItem(ptr %inner, i64 %index)
  br label %value
of_tuple:
  %v2 = call ptr @PyTuple_GetItem(ptr %inner, i64 %index)
  br label %value
of_options:
  %option = inttoptr i64 %index to ptr
  %v3 = call ptr @PyDict_GetItemWithError(ptr %options, ptr %option)
  br label %value
value:
  %x = phi ptr [ %v0, %of_call ], [ %v1, %of_list ], [ %v2, %of_tuple ], [ %v3, %of_options ]
  %is_there = icmp ne ptr %x, null
  br i1 %is_there, label %typed, label %out
typed:
  %class = call ptr @at(ptr %x, i64 TYPE)
  switch i64 %what, label %out [
    i64 TENSOR, label %tensor
    i64 CONSTANT, label %constant
    i64 LIST, label %several
    i64 FREE, label %number
    i64 FLOAT, label %float
    i64 NONE, label %nothing_there
    i64 LENGTH, label %long
    i64 TUPLE, label %several
  ]
constant:
  %is_asked = icmp eq ptr %class, %asked
  br i1 %is_asked, label %keep, label %out
keep:
  call void @key(ptr %key, ptr %filled, ptr %x)
  br label %good
nothing_there:
  %is_none = icmp eq ptr %x, %none
  br i1 %is_none, label %good, label %out
long:
  ; How long memory is that does not say so by its values.
  %said = load ptr, ptr %bytes
  call void @key(ptr %key, ptr %filled, ptr %said)
  br label %good
several:
  %list_class = call ptr @at(ptr %words, i64 WORD_list)
  %tuple_class = call ptr @at(ptr %words, i64 WORD_tuple)
  %is_list = icmp eq i64 %what, LIST
  %list_or_tuple = select i1 %is_list, ptr %list_class, ptr %tuple_class
  %is_right = icmp eq ptr %class, %list_or_tuple
  br i1 %is_right, label %counted, label %out
counted:
  %size = call i64 @PyObject_Size(ptr %x)
  %expected = ptrtoint ptr %asked to i64
  %fits = icmp eq i64 %size, %expected
  br i1 %fits, label %listed, label %out
listed:
  br label %good
number:
  %float_class = call ptr @at(ptr %words, i64 WORD_float)
  %is_float = icmp eq ptr %class, %float_class
  br i1 %is_float, label %one, label %out
one:
  %d = call double @PyFloat_AsDouble(ptr %x)
  %differs = fcmp une double %d, 1.0
  br i1 %differs, label %number_free, label %out
number_free:
  %f = load i64, ptr %free
  %f_at = getelementptr ptr, ptr %numbers, i64 %f
  store ptr %x, ptr %f_at
  %f1 = add i64 %f, 1
  store i64 %f1, ptr %free
  br label %good
float:
  %float_class2 = call ptr @at(ptr %words, i64 WORD_float)
  %is_float2 = icmp eq ptr %class, %float_class2
  br i1 %is_float2, label %sign, label %out
sign:
  %d2 = call double @PyFloat_AsDouble(ptr %x)
  %is_zero = fcmp oeq double %d2, 0.0
  br i1 %is_zero, label %zero, label %keep
zero:
  ; Zeros are told apart by their signs.
  %text = call ptr @PyObject_Str(ptr %x)
  %is_text = icmp ne ptr %text, null
  br i1 %is_text, label %texted, label %out
texted:
  call void @key(ptr %key, ptr %filled, ptr %text)
  call void @Py_DecRef(ptr %text)
  br label %good
tensor:
  %tensor_class = call ptr @at(ptr %words, i64 WORD_tensor)
  %parameter = call ptr @at(ptr %words, i64 WORD_parameter)
  %is_tensor = icmp eq ptr %class, %tensor_class
  %is_parameter = icmp eq ptr %class, %parameter
  %either = or i1 %is_tensor, %is_parameter
  br i1 %either, label %wrapped, label %out
wrapped:
  %home = call ptr @home(ptr %words, ptr %x, ptr %bytes)
  %has_home = icmp ne ptr %home, null
  br i1 %has_home, label %at_home, label %out
at_home:
  %node = call ptr @at(ptr %home, i64 STORAGE_node)
  ; Where a script keeps it there is none.
  %has_node = icmp ne ptr %node, null
  br i1 %has_node, label %again, label %out
again:
  %n = load i64, ptr %held
  br label %another
another:
  %j = phi i64 [ 0, %again ], [ %j1, %differing ]
  %before = icmp slt i64 %j, %n
  br i1 %before, label %compare, label %take
compare:
  %j_at = getelementptr ptr, ptr %nodes, i64 %j
  %earlier = load ptr, ptr %j_at
  %twice = icmp eq ptr %earlier, %node
  br i1 %twice, label %out, label %differing
differing:
  %j1 = add i64 %j, 1
  br label %another
take:
  %n_at = getelementptr ptr, ptr %nodes, i64 %n
  %t_at = getelementptr ptr, ptr %tensors, i64 %n
  store ptr %node, ptr %n_at
  store ptr %x, ptr %t_at
  call void @Py_IncRef(ptr %node)
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %held
  %dtype = call ptr @at(ptr %node, i64 NODE_dtype)
  %shape = call ptr @at(ptr %node, i64 NODE_shape)
  %kind = call ptr @at(ptr %node, i64 NODE_kind)
  call void @key(ptr %key, ptr %filled, ptr %dtype)
  call void @key(ptr %key, ptr %filled, ptr %shape)
  call void @key(ptr %key, ptr %filled, ptr %kind)
  br label %good
good:
  %inner1 = phi ptr [ %inner, %keep ], [ %inner, %nothing_there ], [ %inner, %long ], [ %x, %listed ],
    [ %inner, %number_free ], [ %inner, %texted ], [ %inner, %take ]
  %i1 = add i64 %i, 1
  br label %next
all:
  %found = call ptr @at(ptr %words, i64 WORD_found)
  %known = call ptr @PyDict_GetItemWithError(ptr %found, ptr %key)
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %look, label %out
look:
  call void @Py_IncRef(ptr %known)
  store ptr %known, ptr %list
  br label %candidate
candidate:
  %c = phi i64 [ 0, %look ], [ %c1, %not_this ]
  %candidates = call i64 @PyList_Size(ptr %known)
  %left = icmp slt i64 %c, %candidates
  br i1 %left, label %try, label %out
try:
  %it = call ptr @PyList_GetItem(ptr %known, i64 %c)
  %last = load ptr, ptr %near
  call void @Py_IncRef(ptr %it)
  store ptr %it, ptr %near
  call void @Py_DecRef(ptr %last)
  %t = load i64, ptr %held
  %lies = call i1 @lie(ptr %words, ptr %it, ptr %tensors, i64 %t)
  br i1 %lies, label %hit, label %not_this
not_this:
  %c1 = add i64 %c, 1
  %trouble = call ptr @PyErr_Occurred()
  %calm = icmp eq ptr %trouble, null
  br i1 %calm, label %candidate, label %out
hit:
  %plan = call ptr @at(ptr %it, i64 NEAR_plan)
  call void @Py_IncRef(ptr %plan)
  store ptr %plan, ptr %answer
  br label %add_node
add_node:
  %p = phi i64 [ 0, %hit ], [ %p1, %added ]
  %any = icmp slt i64 %p, %t
  br i1 %any, label %added, label %add_number
added:
  %p_at = getelementptr ptr, ptr %nodes, i64 %p
  %p_node = load ptr, ptr %p_at
  %put = call i32 @PyList_Append(ptr %to_nodes, ptr %p_node)
  %p1 = add i64 %p, 1
  br label %add_node
add_number:
  %q = phi i64 [ 0, %add_node ], [ %q1, %number_added ]
  %q_all = load i64, ptr %free
  %q_any = icmp slt i64 %q, %q_all
  br i1 %q_any, label %number_added, label %out
number_added:
  %q_at = getelementptr ptr, ptr %numbers, i64 %q
  %q_number = load ptr, ptr %q_at
  %q_put = call i32 @PyList_Append(ptr %to_numbers, ptr %q_number)
  %q1 = add i64 %q, 1
  br label %add_number
out:
  call void @Py_DecRef(ptr %key)
  %old_list = load ptr, ptr %list
  call void @Py_DecRef(ptr %old_list)
  %old_near = load ptr, ptr %near
  call void @Py_DecRef(ptr %old_near)
  br label %release
release:
  %r = phi i64 [ 0, %out ], [ %r1, %released ]
  %r_all = load i64, ptr %held
  %r_any = icmp slt i64 %r, %r_all
  br i1 %r_any, label %released, label %end
released:
  %r_at = getelementptr ptr, ptr %nodes, i64 %r
  %r_node = load ptr, ptr %r_at
  call void @Py_DecRef(ptr %r_node)
  %r1 = add i64 %r, 1
  br label %release
end:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %say, label %bad
bad:
  %wrong_plan = load ptr, ptr %answer
  call void @Py_DecRef(ptr %wrong_plan)
  %attribute = call ptr @at(ptr %words, i64 WORD_error)
  %matches = call i32 @PyErr_ExceptionMatches(ptr %attribute)
  %expected_error = icmp ne i32 %matches, 0
  br i1 %expected_error, label %clear, label %raise
clear:
  ; The storage of another device, or one that does not carry its memory yet.
  call void @PyErr_Clear()
  br label %nothing
say:
  %result = load ptr, ptr %answer
  %has_result = icmp ne ptr %result, null
  br i1 %has_result, label %give, label %nothing
give:
  ret ptr %result
}
"""


@functools.cache
def _address() -> int | None:
    classes = {"NODE": Node, "STORAGE": Storage, "MEMORY": Memory, "NEAR": Near}
    asked = {
        "TENSOR": _TENSOR, "CONSTANT": _CONSTANT, "LIST": _LIST, "FREE": _FREE, "FLOAT": _FLOAT, "NONE": _NONE,
        "LENGTH": _LENGTH, "TUPLE": _TUPLE, "MOST": _MOST,
    }  # fmt: skip
    found = assembled(HOME + _TEXT, ("wt_look",), classes, _WORDS, asked)
    return None if found is None else found[0]


_COMMON: list[object] = [
    None, False, True, AttributeError, Storage, Memory, torch.Tensor, torch.nn.Parameter, float, list, tuple,
    device._storage_of, offset_of, "_webgpu",
]  # fmt: skip
_Step = tuple[int, int, int, int]
# The rows of values within values, of a list and of a tuple, and that of options.
_INNER, _OPTIONS = (1, 2), 3


class Free:
    """In a form the type of a number that is no part of a call's kind."""


def _steps(form: Sequence[object], row: int, writes: bool) -> list[_Step] | None:
    """Return what is asked of the values of a row; None where a list has lists."""
    steps: list[_Step] = []
    for n, kind in enumerate(form):
        if kind is torch.Tensor:
            steps.append((_TENSOR, row, n, 0))
        elif kind is type(None):
            steps.append((_NONE, row, n, 0))
        elif kind is Free:
            steps.append((_FREE, row, n, 0))
        elif kind is float:
            steps.append((_FLOAT, row, n, 0))
        elif isinstance(kind, tuple):
            inner = _steps(kind[1:], _INNER[kind[0] is not list], False)
            if row in _INNER or inner is None or kind[0] not in (list, tuple):
                return None
            steps.append((_LIST if kind[0] is list else _TUPLE, row, n, len(kind) - 1))
            steps += inner
        else:
            steps.append((_CONSTANT, row, n, id(kind)))
        if writes and not n:
            steps.append((_LENGTH, row, n, 0))
    return steps


def native_look(
    form: Sequence[object],
    options: Sequence[tuple[str, object]],
    writes: bool,
    found: dict[Any, list[Near]],
) -> Callable[..., Any] | None:
    """Return the look of a form; None where Python looks. `found`: what is known, by key."""
    address = _address()
    if address is None:
        return None
    steps = _steps(form, 0, writes)
    named = _steps([kind for _, kind in options], _OPTIONS, False)
    if steps is None or named is None:
        return None
    names = iter([id(name) for name, _ in options])
    steps += [(w, row, next(names) if row == _OPTIONS else n, c) for w, row, n, c in named]
    asked = [step[0] for step in steps]
    if max(asked.count(_TENSOR), asked.count(_FREE)) > _MOST:
        return None
    length = 3 * asked.count(_TENSOR) + sum(asked.count(k) for k in (_CONSTANT, _FLOAT, _LENGTH))
    objects = [*_COMMON, found]
    words = [len(form), len(options), length, len(steps)]
    for step in steps:
        words += step
    return function(b"look", address, objects, words, options)
