"""A kernel whose call is known, in machine code. Floor 6; imports PyTorch and the CPU's engine.

Of a call that is known a kernel in Python is some lines that ask whether Ctrl-C was pressed or somebody looks at calls,
and that go from one function of machine code to the next: the look, the user's line, what is recorded. The function
here is all of it, and what PyTorch calls. Whatever it does not expect, a call that is not known above all, it leaves to
the kernel in Python. Without LLVM that is all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from webtorch.pytorch.known import Kinds, Plan
from webtorch.pytorch.looking import Looks
from webtorch.pytorch.nativenodes import declare
from webtorch.pytorch.nativenodes import kernel as native
from webtorch_autoload.device import hide

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])

# What `self` points to: the kinds of an operator's calls, the kernel in Python, what all functions know, and whether
# the first argument is overwritten, and returned.
_TEXT = """
; Put another value into a slot; the new one stays the caller's as well.
define internal void @put(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %old = load ptr, ptr %place
  call void @Py_IncRef(ptr %value)
  store ptr %value, ptr %place
  call void @Py_DecRef(ptr %old)
  ret void
}

; The runtime where nothing has to be done before a call, as `Kinds.find` asks; null where something has.
define internal ptr @calm(ptr %words, ptr %kinds) {
entry:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %zero = call ptr @at(ptr %words, i64 WORD_zero)
  %flag = call ptr @at(ptr %words, i64 WORD_flag)
  %active = call ptr @at(ptr %words, i64 WORD_active)
  %transforms = call ptr @at(ptr %words, i64 WORD_transforms)
  %opened = call ptr @at(ptr %words, i64 WORD_opened)
  %pressed = call ptr @at(ptr %flag, i64 FLAG_pressed)
  %others = call ptr @at(ptr %active, i64 COUNT_count)
  %open = call ptr @at(ptr %transforms, i64 COUNT_count)
  %home = call ptr @at(ptr %opened, i64 OPENED_runtime)
  %class = call ptr @at(ptr %home, i64 TYPE)
  %homes = call ptr @at(ptr %words, i64 WORD_home)
  %unpressed = icmp eq ptr %pressed, %false
  %alone = icmp eq ptr %others, %zero
  %plain = icmp eq ptr %open, %zero
  %is_open = icmp eq ptr %class, %homes
  %a = and i1 %unpressed, %alone
  %b = and i1 %plain, %is_open
  %c = and i1 %a, %b
  br i1 %c, label %look, label %no
look:
  %recording = call ptr @at(ptr %home, i64 RUNTIME_recording)
  %lent = call ptr @at(ptr %home, i64 RUNTIME_lent)
  %ahead = call ptr @at(ptr %home, i64 RUNTIME_ahead)
  %calls = call ptr @at(ptr %ahead, i64 AHEAD_calls)
  %most = call ptr @at(ptr %ahead, i64 AHEAD_most)
  %heavy = call ptr @at(ptr %kinds, i64 KINDS_heavy)
  %seen = call i64 @PyObject_Size(ptr %lent)
  %count = call i64 @PyLong_AsSsize_t(ptr %calls)
  %bound = call i64 @PyLong_AsSsize_t(ptr %most)
  %is_light = icmp eq ptr %heavy, %false
  %further = zext i1 %is_light to i64
  %limit = shl i64 %bound, %further
  %is_calm = icmp eq ptr %recording, %none
  %unseen = icmp eq i64 %seen, 0
  %early = icmp slt i64 %count, %limit
  %d = and i1 %is_calm, %unseen
  %e = and i1 %d, %early
  br i1 %e, label %yes, label %no
yes:
  ret ptr %home
no:
  ret ptr null
}

; Note a call that is recorded.
define internal void @count(ptr %words, ptr %home) {
  %ahead = call ptr @at(ptr %home, i64 RUNTIME_ahead)
  %calls = call ptr @at(ptr %ahead, i64 AHEAD_calls)
  %count = call i64 @PyLong_AsSsize_t(ptr %calls)
  %more = add i64 %count, 1
  %number = call ptr @PyLong_FromSsize_t(i64 %more)
  call void @put(ptr %ahead, i64 AHEAD_calls, ptr %number)
  call void @Py_DecRef(ptr %number)
  %true = call ptr @at(ptr %words, i64 WORD_true)
  call void @put(ptr %home, i64 RUNTIME_apart, ptr %true)
  ret void
}

; What `user_line` returns, a new object; null with an error.
define internal ptr @line(ptr %words) {
entry:
  %again = call ptr @at(ptr %words, i64 WORD_again)
  %internal = call ptr @at(ptr %words, i64 WORD_internal)
  %true = call ptr @at(ptr %words, i64 WORD_true)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %made_again = call i64 @PyObject_Size(ptr %again)
  %is_first = icmp eq i64 %made_again, 0
  br i1 %is_first, label %begin, label %usual
begin:
  %innermost = call ptr @PyEval_GetFrame()
  call void @Py_IncRef(ptr %innermost)
  br label %next
next:
  %frame = phi ptr [ %innermost, %begin ], [ %outer, %out ]
  %is_there = icmp ne ptr %frame, null
  br i1 %is_there, label %look, label %nobody
look:
  ; The frame holds it.
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  call void @Py_DecRef(ptr %code)
  %key = call ptr @PyLong_FromVoidPtr(ptr %code)
  %known = call ptr @PyDict_GetItemWithError(ptr %internal, ptr %key)
  call void @Py_DecRef(ptr %key)
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %ask, label %new
ask:
  %inside = call ptr @PyTuple_GetItem(ptr %known, i64 0)
  %is_inside = icmp eq ptr %inside, %true
  br i1 %is_inside, label %out, label %found
out:
  %outer = call ptr @PyFrame_GetBack(ptr %frame)
  call void @Py_DecRef(ptr %frame)
  br label %next
new:
  call void @Py_DecRef(ptr %frame)
  br label %usual
nobody:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
found:
  %at = call i32 @PyFrame_GetLasti(ptr %frame)
  %place = sext i32 %at to i64
  %number = call ptr @PyLong_FromSsize_t(i64 %place)
  %line = call ptr @PyTuple_New(i64 2)
  call void @Py_IncRef(ptr %code)
  %put0 = call i32 @PyTuple_SetItem(ptr %line, i64 0, ptr %code)
  %put1 = call i32 @PyTuple_SetItem(ptr %line, i64 1, ptr %number)
  call void @Py_DecRef(ptr %frame)
  ret ptr %line
usual:
  %function = call ptr @at(ptr %words, i64 WORD_user_line)
  ; No frame is nearer than the one that it is called in.
  %one = call ptr @at(ptr %words, i64 WORD_one)
  %said = call ptr @PyObject_CallOneArg(ptr %function, ptr %one)
  ret ptr %said
}

; What one of our functions knows; null for another object.
define internal ptr @words_of(ptr %words, ptr %function) {
entry:
  %class = call ptr @at(ptr %function, i64 TYPE)
  %builtin = call ptr @at(ptr %words, i64 WORD_builtin)
  %is_ours = icmp eq ptr %class, %builtin
  br i1 %is_ours, label %yes, label %no
yes:
  %self = call ptr @PyCFunction_GetSelf(ptr %function)
  %known = call ptr @PyLong_AsVoidPtr(ptr %self)
  ret ptr %known
no:
  ret ptr null
}

; Ask what a plan asks of the operands' values; false with an error.
define internal i1 @ask(ptr %words, ptr %plan, ptr %nodes, i64 %count) {
entry:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %asking = call ptr @at(ptr %plan, i64 PLAN_ask)
  %is_nothing = icmp eq ptr %asking, %none
  br i1 %is_nothing, label %yes, label %list
list:
  %all = call ptr @PyList_New(i64 0)
  %is_made = icmp ne ptr %all, null
  br i1 %is_made, label %call, label %no
call:
  call void @extend(ptr %all, ptr %nodes, i64 %count)
  %said = call ptr @PyObject_CallOneArg(ptr %asking, ptr %all)
  call void @Py_DecRef(ptr %all)
  call void @Py_DecRef(ptr %said)
  %is_said = icmp ne ptr %said, null
  ret i1 %is_said
yes:
  ret i1 true
no:
  ret i1 false
}

; Record a call that is known; null, with or without an error, where none is.
define internal ptr @known(ptr %words, ptr %kinds, i64 %writes, ptr %args, ptr %options) {
entry:
  %nodes = alloca [MOST x ptr], align 16
  %numbers = alloca [MOST x ptr], align 16
  %made = alloca [STEPS x ptr], align 16
  %held = alloca i64, align 8
  %free = alloca i64, align 8
  %home = call ptr @calm(ptr %words, ptr %kinds)
  %is_calm = icmp ne ptr %home, null
  br i1 %is_calm, label %ask, label %nothing
nothing:
  ret ptr null
ask:
  %looks = call ptr @at(ptr %kinds, i64 KINDS_looks)
  %all = call ptr @at(ptr %looks, i64 LOOKS_all)
  %n = call i64 @PyTuple_Size(ptr %all)
  call void @Py_IncRef(ptr %all)
  br label %next
next:
  %i = phi i64 [ 0, %ask ], [ %i1, %not_this ], [ %i1, %look ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %one, label %none
one:
  %i1 = add i64 %i, 1
  %each = call ptr @PyTuple_GetItem(ptr %all, i64 %i)
  %theirs = call ptr @words_of(ptr %words, ptr %each)
  %is_ours = icmp ne ptr %theirs, null
  br i1 %is_ours, label %look, label %not_this
not_this:
  ; One that is Python's.
  br label %next
look:
  %plan = call ptr @look(ptr %theirs, ptr %args, ptr %options, ptr %nodes, ptr %held, ptr %numbers, ptr %free)
  %is_known = icmp ne ptr %plan, null
  br i1 %is_known, label %found, label %next
none:
  call void @Py_DecRef(ptr %all)
  ret ptr null
found:
  call void @Py_DecRef(ptr %all)
  %h = load i64, ptr %held
  %asks = call i1 @ask(ptr %words, ptr %plan, ptr %nodes, i64 %h)
  br i1 %asks, label %way, label %refused
refused:
  call void @drop(ptr %nodes, i64 %h)
  call void @Py_DecRef(ptr %plan)
  ret ptr null
way:
  %overwrites = icmp ne i64 %writes, 0
  %writer = call ptr @at(ptr %plan, i64 PLAN_written)
  %maker = call ptr @at(ptr %plan, i64 PLAN_tensor)
  %maker_or_writer = select i1 %overwrites, ptr %writer, ptr %maker
  call void @Py_IncRef(ptr %maker_or_writer)
  %own = call ptr @words_of(ptr %words, ptr %maker_or_writer)
  %is_native = icmp ne ptr %own, null
  br i1 %is_native, label %line, label %end
line:
  call void @count(ptr %words, ptr %home)
  %line_of = call ptr @line(ptr %words)
  %has_line = icmp ne ptr %line_of, null
  br i1 %has_line, label %record, label %end
record:
  %f = load i64, ptr %free
  %steps = call i64 @record(ptr %own, ptr %nodes, i64 %h, ptr %numbers, i64 %f, ptr %line_of, ptr %made)
  call void @Py_DecRef(ptr %line_of)
  %are_made = icmp sge i64 %steps, 0
  br i1 %are_made, label %results, label %end
results:
  br i1 %overwrites, label %write, label %make
make:
  %new = call ptr @results(ptr %own, ptr %made, i64 %steps)
  br label %end
write:
  %first = call ptr @PyTuple_GetItem(ptr %args, i64 0)
  call void @Py_IncRef(ptr %first)
  %outs = call ptr @PyTuple_New(i64 1)
  call void @Py_IncRef(ptr %first)
  %set = call i32 @PyTuple_SetItem(ptr %outs, i64 0, ptr %first)
  %said = call ptr @write(ptr %own, ptr %outs, ptr %made, i64 %steps)
  call void @Py_DecRef(ptr %outs)
  %is_written = icmp ne ptr %said, null
  br i1 %is_written, label %written, label %unwritten
written:
  call void @Py_DecRef(ptr %said)
  br label %end
unwritten:
  call void @Py_DecRef(ptr %first)
  br label %end
end:
  %result = phi ptr [ null, %way ], [ null, %line ], [ null, %record ], [ %new, %make ], [ %first, %written ],
    [ null, %unwritten ]
  %m = load i64, ptr %held
  call void @drop(ptr %nodes, i64 %m)
  call void @Py_DecRef(ptr %maker_or_writer)
  call void @Py_DecRef(ptr %plan)
  ret ptr %result
}

define ptr @wt_kernel(ptr %self, ptr %args, ptr %options) {
entry:
  %own = call ptr @PyLong_AsVoidPtr(ptr %self)
  %kinds = call ptr @at(ptr %own, i64 0)
  %usual = call ptr @at(ptr %own, i64 8)
  %words = call ptr @at(ptr %own, i64 16)
  %writes = call i64 @whole(ptr %own, i64 24)
  %found = call ptr @known(ptr %words, ptr %kinds, i64 %writes, ptr %args, ptr %options)
  %is_known = icmp ne ptr %found, null
  br i1 %is_known, label %done, label %other
other:
  %error = call ptr @PyErr_Occurred()
  %is_failed = icmp ne ptr %error, null
  br i1 %is_failed, label %done, label %ask
ask:
  %said = call ptr @PyObject_Call(ptr %usual, ptr %args, ptr %options)
  ret ptr %said
done:
  ret ptr %found
}
"""
declare(_TEXT, classes={"KINDS": Kinds, "LOOKS": Looks, "PLAN": Plan})


def fronted(kinds: Kinds, kernel: _Kernel, writes: bool = False) -> _Kernel:
    """Return a kernel that makes the calls which `kinds` knows in machine code, and leaves others to `kernel`.
    `writes`: its first argument is overwritten, and returned.
    """
    found = native([kinds, hide(kernel)], int(writes))
    return kernel if found is None else cast(_Kernel, found)
