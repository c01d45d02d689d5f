"""Looks at calls of one form, in machine code. Floor 6; imports PyTorch and the CPU's engine.

What a function of `looking` asks of a call's arguments, one after the other, this does without the interpreter: all
forms have one function, and the words that its `self` points to say what is asked of which argument. It takes a
form of tensors, numbers and constants, and of lists of these; what it does not expect it leaves to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from webtorch.pytorch.nativenodes import MOST, declare, function
from webtorch.pytorch.near import Near

# What `self` points to behind what all functions know: what is known, by key, then four numbers, the last of which is
# how many steps there are, with four words for each behind it: what is asked, of a value of which row, which of its
# values, and its class, or how many it holds. Rows are the arguments, the values of a list, those of a tuple, and
# options, which have a name for a number.
_OWN = ("found", "arguments", "options", "length", "asked")
_TENSOR, _CONSTANT, _LIST, _FREE, _FLOAT, _NONE, _LENGTH, _TUPLE = range(8)

_TEXT = """
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

; The plan of a call, or null where none is known or with an error. Its nodes and its free numbers are put into rows,
; and how many they are; the nodes are the caller's then.
define internal ptr @look(ptr %words, ptr %values, ptr %options, ptr %nodes, ptr %held, ptr %numbers, ptr %free) {
entry:
  %tensors = alloca [MOST x ptr], align 16
  %filled = alloca i64, align 8
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
  %none = call ptr @at(ptr %words, i64 WORD_none)
  store ptr %none, ptr %bytes
  %values_class = call ptr @at(ptr %values, i64 TYPE)
  %tuples = call ptr @at(ptr %words, i64 WORD_tuple)
  %is_tuple = icmp eq ptr %values_class, %tuples
  br i1 %is_tuple, label %optional, label %nothing
optional:
  %without = icmp eq ptr %options, null
  br i1 %without, label %count, label %measure
measure:
  %given = call i64 @PyObject_Size(ptr %options)
  br label %count
count:
  %others = phi i64 [ 0, %optional ], [ %given, %measure ]
  %many = call i64 @PyTuple_Size(ptr %values)
  %wanted = call i64 @whole(ptr %words, i64 WORD_arguments)
  %named = call i64 @whole(ptr %words, i64 WORD_options)
  %as_many = icmp eq i64 %many, %wanted
  %as_named = icmp eq i64 %others, %named
  %formed = and i1 %as_many, %as_named
  br i1 %formed, label %begin, label %nothing
nothing:
  ret ptr null
begin:
  %length = call i64 @whole(ptr %words, i64 WORD_length)
  %steps = call i64 @whole(ptr %words, i64 WORD_asked)
  %key = call ptr @PyTuple_New(i64 %length)
  %is_made = icmp ne ptr %key, null
  br i1 %is_made, label %next, label %nothing
next:
  %i = phi i64 [ 0, %begin ], [ %i1, %good ]
  %inner = phi ptr [ %none, %begin ], [ %inner1, %good ]
  %more = icmp slt i64 %i, %steps
  br i1 %more, label %step, label %all
step:
  %i32 = shl i64 %i, 5
  %place = getelementptr i8, ptr %words, i64 WORD_asked
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
  br label %out
out:
  call void @Py_DecRef(ptr %key)
  %old_list = load ptr, ptr %list
  call void @Py_DecRef(ptr %old_list)
  %old_near = load ptr, ptr %near
  call void @Py_DecRef(ptr %old_near)
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  %result = load ptr, ptr %answer
  %has_result = icmp ne ptr %result, null
  %is_good = and i1 %fine, %has_result
  br i1 %is_good, label %give, label %miss
give:
  ret ptr %result
miss:
  call void @Py_DecRef(ptr %result)
  %left_over = load i64, ptr %held
  call void @drop(ptr %nodes, i64 %left_over)
  br i1 %fine, label %nothing, label %bad
bad:
  %attribute = call ptr @at(ptr %words, i64 WORD_error)
  %matches = call i32 @PyErr_ExceptionMatches(ptr %attribute)
  %expected_error = icmp ne i32 %matches, 0
  br i1 %expected_error, label %clear, label %nothing
clear:
  ; The storage of another device, or one that does not carry its memory yet.
  call void @PyErr_Clear()
  br label %nothing
}

; Add so many objects to a list.
define internal void @extend(ptr %list, ptr %objects, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %add ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %add, label %done
add:
  %from = getelementptr ptr, ptr %objects, i64 %i
  %x = load ptr, ptr %from
  %put = call i32 @PyList_Append(ptr %list, ptr %x)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}

define ptr @wt_look(ptr %self, ptr %args, i64 %count) {
entry:
  %nodes = alloca [MOST x ptr], align 16
  %numbers = alloca [MOST x ptr], align 16
  %held = alloca i64, align 8
  %free = alloca i64, align 8
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %right = icmp eq i64 %count, 4
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %values = call ptr @at(ptr %args, i64 0)
  %options = call ptr @at(ptr %args, i64 8)
  %to_nodes = call ptr @at(ptr %args, i64 16)
  %to_numbers = call ptr @at(ptr %args, i64 24)
  %plan = call ptr @look(ptr %words, ptr %values, ptr %options, ptr %nodes, ptr %held, ptr %numbers, ptr %free)
  %is_known = icmp ne ptr %plan, null
  br i1 %is_known, label %tell, label %end
tell:
  %n = load i64, ptr %held
  %m = load i64, ptr %free
  call void @extend(ptr %to_nodes, ptr %nodes, i64 %n)
  call void @extend(ptr %to_numbers, ptr %numbers, i64 %m)
  call void @drop(ptr %nodes, i64 %n)
  br label %end
end:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %say, label %raise
say:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %said = select i1 %is_known, ptr %plan, ptr %none
  %new = select i1 %is_known, ptr null, ptr %none
  call void @Py_IncRef(ptr %new)
  ret ptr %said
raise:
  call void @Py_DecRef(ptr %plan)
  ret ptr null
}
"""


declare(
    _TEXT,
    _OWN,
    {"NEAR": Near},
    {
        "TENSOR": _TENSOR, "CONSTANT": _CONSTANT, "LIST": _LIST, "FREE": _FREE, "FLOAT": _FLOAT, "NONE": _NONE,
        "LENGTH": _LENGTH, "TUPLE": _TUPLE,
    },
)  # fmt: skip
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
    steps = _steps(form, 0, writes)
    named = _steps([kind for _, kind in options], _OPTIONS, False)
    if steps is None or named is None:
        return None
    names = iter([id(name) for name, _ in options])
    steps += [(w, row, next(names) if row == _OPTIONS else n, c) for w, row, n, c in named]
    asked = [step[0] for step in steps]
    if max(asked.count(_TENSOR), asked.count(_FREE)) > MOST:
        return None
    length = 3 * asked.count(_TENSOR) + sum(asked.count(k) for k in (_CONSTANT, _FLOAT, _LENGTH))
    words = [len(form), len(options), length, len(steps)]
    for step in steps:
        words += step
    return function("wt_look", [found], words, options)
