"""What a known call records, in machine code. Floor 6; imports PyTorch and the CPU's engine.

A call of a known kind is its nodes, and for each result a storage and a tensor of PyTorch's. The interpreter takes
longer to run the lines that make them than they take themselves. The function here does what `known.Plan.tensors` does.
Without LLVM there is none, and Python does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webtorch.pytorch.device import words_of_storages
from webtorch.pytorch.nativenodes import declare, function_of

if TYPE_CHECKING:
    from webtorch.pytorch.known import Plan

_TEXT = """
; A storage on a node, which is the caller's no more; null with an error.
define internal ptr @storage(ptr %words, ptr %place, ptr %node) {
entry:
  %class = call ptr @at(ptr %words, i64 WORD_storage)
  %opened = call ptr @at(ptr %words, i64 WORD_opened)
  %home = call ptr @at(ptr %opened, i64 OPENED_runtime)
  %kind = call ptr @at(ptr %home, i64 TYPE)
  %homes = call ptr @at(ptr %words, i64 WORD_home)
  %is_open = icmp eq ptr %kind, %homes
  br i1 %is_open, label %make, label %wrong
make:
  %storage = call ptr @PyType_GenericAlloc(ptr %class, i64 0)
  %is_made = icmp ne ptr %storage, null
  br i1 %is_made, label %fill, label %drop
fill:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %zero = call ptr @at(ptr %words, i64 WORD_zero)
  %dtype = call ptr @at(ptr %place, i64 PLACE_dtype)
  %elements = call ptr @at(ptr %place, i64 PLACE_elements)
  call void @give(ptr %storage, i64 STORAGE_node, ptr %node)
  call void @set(ptr %storage, i64 STORAGE_runtime, ptr %home)
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
wrong:
  call void @PyErr_BadArgument()
  br label %drop
drop:
  call void @Py_DecRef(ptr %node)
  ret ptr null
}

; A tensor of PyTorch's whose storage carries ours; null with an error.
define internal ptr @tensor(ptr %words, ptr %place, ptr %storage) {
entry:
  %given = alloca [4 x ptr], align 16
  %second = getelementptr ptr, ptr %given, i64 1
  %size = call ptr @at(ptr %place, i64 PLACE_size)
  %type = call ptr @at(ptr %place, i64 PLACE_type)
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
  %own_at = call i64 @whole(ptr %place, i64 PLACE_own)
  %own_place = getelementptr i64, ptr %empty, i64 %own_at
  %theirs = load ptr, ptr %own_place
  %address_at = call i64 @whole(ptr %place, i64 PLACE_address)
  %length_at = call i64 @whole(ptr %place, i64 PLACE_length)
  %nbytes = call i64 @whole(ptr %place, i64 PLACE_nbytes)
  %address_place = getelementptr i64, ptr %theirs, i64 %address_at
  %length_place = getelementptr i64, ptr %theirs, i64 %length_at
  store ptr %made_up, ptr %address_place
  store i64 %nbytes, ptr %length_place
  %name = call ptr @at(ptr %words, i64 WORD_webgpu)
  %set = call i32 @PyObject_SetAttr(ptr %empty, ptr %name, ptr %storage)
  %is_set = icmp eq i32 %set, 0
  br i1 %is_set, label %laid, label %drop_home
laid:
  %strided = call i64 @whole(ptr %place, i64 PLACE_strided)
  %in_rows = icmp eq i64 %strided, 0
  br i1 %in_rows, label %done, label %turn
turn:
  %third = getelementptr ptr, ptr %given, i64 2
  %fourth = getelementptr ptr, ptr %given, i64 3
  %strides = call ptr @at(ptr %place, i64 PLACE_strides)
  %offset = call ptr @at(ptr %place, i64 PLACE_offset)
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

; The results of a call as new tensors, one or a tuple of some, of its nodes, which are let go of; null with an error.
define internal ptr @results(ptr %words, ptr %made, i64 %steps) {
begin:
  %n = call i64 @whole(ptr %words, i64 WORD_results)
  %several = call i64 @whole(ptr %words, i64 WORD_several)
  %is_tuple = icmp ne i64 %several, 0
  br i1 %is_tuple, label %tuple, label %next
tuple:
  %new = call ptr @PyTuple_New(i64 %n)
  %has_all = icmp ne ptr %new, null
  br i1 %has_all, label %next, label %drop
next:
  %i = phi i64 [ 0, %begin ], [ 0, %tuple ], [ %i1, %put ]
  %all = phi ptr [ null, %begin ], [ %new, %tuple ], [ %all, %put ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %keep, label %done
keep:
  %node = call ptr @result(ptr %words, i64 %i, ptr %made)
  %place = call ptr @place(ptr %words, i64 %i)
  call void @Py_IncRef(ptr %node)
  %storage = call ptr @storage(ptr %words, ptr %place, ptr %node)
  %is_stored = icmp ne ptr %storage, null
  br i1 %is_stored, label %show, label %lose
show:
  %x = call ptr @tensor(ptr %words, ptr %place, ptr %storage)
  call void @Py_DecRef(ptr %storage)
  %is_shown = icmp ne ptr %x, null
  br i1 %is_shown, label %shown, label %lose
shown:
  br i1 %is_tuple, label %put, label %alone
put:
  %set = call i32 @PyTuple_SetItem(ptr %all, i64 %i, ptr %x)
  %i1 = add i64 %i, 1
  br label %next
alone:
  br label %done
done:
  %found = phi ptr [ %all, %next ], [ %x, %alone ]
  call void @drop(ptr %made, i64 %steps)
  ret ptr %found
lose:
  call void @Py_DecRef(ptr %all)
  br label %drop
drop:
  call void @drop(ptr %made, i64 %steps)
  ret ptr null
}

; Record a call over nodes, with its numbers and the user's line: a new tensor, or a tuple of some.
define ptr @wt_record(ptr %self, ptr %args, i64 %count) {
entry:
  %made = alloca [STEPS x ptr], align 16
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
  ; All nodes come first: they may be computed as soon as one of them has a storage.
  %steps = call i64 @record_lists(ptr %words, ptr %nodes, ptr %numbers, ptr %line, ptr %made)
  %are_made = icmp sge i64 %steps, 0
  br i1 %are_made, label %tensors, label %failed
tensors:
  %results = call ptr @results(ptr %words, ptr %made, i64 %steps)
  ret ptr %results
failed:
  ret ptr null
}
"""
declare(_TEXT)


def recorder(plan: Plan) -> Callable[..., Any] | None:
    """Return what records a plan's calls and makes tensors of their results; None where Python does."""
    theirs = words_of_storages()
    if theirs is None or any(place.laid for place in plan.places):
        return None
    if plan.make is not None and plan.make is not tuple:
        return None
    tensors = [
        ([p.kind, p.elements, p.size, p.dtype, p.strides, p.offset], [not p.is_plain, *theirs, p.nbytes])
        for p in plan.places
    ]  # fmt: skip
    return function_of(plan, "wt_record", tensors)
