"""What a known call writes, in machine code. Floor 6; imports PyTorch and the CPU's engine.

A call of a known kind that overwrites tensors is its nodes, and another value for the storage of each. The function
here does what `known.Plan.write_all` does, where a storage is nobody's but its tensors': it has no value of a script's,
none that NumPy sees, nothing is captured, and no thread computes. Otherwise Python gives the storages their values.
Without LLVM Python does all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webtorch.pytorch.nativenodes import declare, function_of

if TYPE_CHECKING:
    from webtorch.pytorch.known import Plan

_TEXT = """
; Whether a storage may be given a value as `Storage.replace` does where nobody looks at it, in this runtime. Nothing of
; what is asked runs other code.
define internal i1 @is_plain(ptr %words, ptr %home, ptr %storage) {
entry:
  %runtime = call ptr @at(ptr %storage, i64 STORAGE_runtime)
  %node = call ptr @at(ptr %storage, i64 STORAGE_node)
  %version = call ptr @at(ptr %storage, i64 STORAGE_version)
  %is_here = icmp eq ptr %runtime, %home
  ; Where a script keeps them there are none.
  %has_node = icmp ne ptr %node, null
  %has_version = icmp ne ptr %version, null
  %two = and i1 %is_here, %has_node
  %three = and i1 %two, %has_version
  br i1 %three, label %look, label %no
look:
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %host = call ptr @at(ptr %node, i64 NODE_host)
  %is_ours = icmp eq ptr %host, %none
  %shared = call ptr @at(ptr %node, i64 NODE_shared)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %true = call ptr @at(ptr %words, i64 WORD_true)
  %unshared = icmp eq ptr %shared, %false
  %is_shared = icmp eq ptr %shared, %true
  %known = or i1 %unshared, %is_shared
  %plain = and i1 %is_ours, %known
  ret i1 %plain
no:
  ret i1 false
}

; Give a storage another value; what it had is put at `old`, two objects. Whether it waits anew.
define internal i1 @replace(ptr %words, ptr %storage, ptr %node, ptr %old) {
entry:
  %second = getelementptr ptr, ptr %old, i64 1
  store ptr null, ptr %second
  %before = call ptr @at(ptr %storage, i64 STORAGE_node)
  store ptr %before, ptr %old
  call void @set(ptr %storage, i64 STORAGE_node, ptr %node)
  %version = call ptr @at(ptr %storage, i64 STORAGE_version)
  %one = call ptr @at(ptr %words, i64 WORD_one)
  %next = call ptr @PyNumber_Add(ptr %version, ptr %one)
  %counted = icmp ne ptr %next, null
  br i1 %counted, label %count, label %kind
count:
  call void @give(ptr %storage, i64 STORAGE_version, ptr %next)
  call void @Py_DecRef(ptr %version)
  br label %kind
kind:
  %is = call ptr @at(ptr %before, i64 NODE_kind)
  %buffer = call ptr @at(ptr %words, i64 WORD_buffer)
  %same = call i32 @PyObject_RichCompareBool(ptr %is, ptr %buffer, i32 2)
  %is_new = icmp eq i32 %same, 1
  br i1 %is_new, label %donor, label %done
donor:
  ; Its memory may be written in place where nothing else has it.
  %shared = call ptr @at(ptr %before, i64 NODE_shared)
  %false = call ptr @at(ptr %words, i64 WORD_false)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %alone = icmp eq ptr %shared, %false
  %gives = select i1 %alone, ptr %before, ptr %none
  %gave = call ptr @at(ptr %storage, i64 STORAGE_donor)
  store ptr %gave, ptr %second
  call void @set(ptr %storage, i64 STORAGE_donor, ptr %gives)
  br label %done
done:
  ret i1 %is_new
}

; Overwrite a tuple of tensors with the nodes of a call, which are held no more. Null with an error.
define internal ptr @write(ptr %words, ptr %outs, ptr %made, i64 %steps) {
entry:
  %storages = alloca [MOST x ptr], align 16
  %waits = alloca [MOST x i1], align 16
  %olds = alloca [OLDS x ptr], align 16
  %bytes = alloca ptr, align 8
  %n = call i64 @whole(ptr %words, i64 WORD_results)
  br label %find
find:
  %i = phi i64 [ 0, %entry ], [ %i1, %found ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %out, label %open
out:
  %x = call ptr @PyTuple_GetItem(ptr %outs, i64 %i)
  %storage = call ptr @home(ptr %words, ptr %x, ptr %bytes)
  %has = icmp ne ptr %storage, null
  br i1 %has, label %found, label %usual
found:
  %s_at = getelementptr ptr, ptr %storages, i64 %i
  store ptr %storage, ptr %s_at
  call void @Py_IncRef(ptr %storage)
  %i1 = add i64 %i, 1
  br label %find
open:
  %first = load ptr, ptr %storages
  %home = call ptr @at(ptr %first, i64 STORAGE_runtime)
  %lock = call ptr @at(ptr %home, i64 RUNTIME_writing)
  call void @Py_IncRef(ptr %lock)
  br label %enter
enter:
  %acquire = call ptr @at(ptr %words, i64 WORD_acquire)
  store ptr %lock, ptr %bytes
  %entered = call ptr @PyObject_VectorcallMethod(ptr %acquire, ptr %bytes, i64 1, ptr null)
  %is_in = icmp ne ptr %entered, null
  br i1 %is_in, label %ask, label %unlocked
unlocked:
  call void @Py_DecRef(ptr %lock)
  br label %usual
ask:
  call void @Py_DecRef(ptr %entered)
  %recording = call ptr @at(ptr %home, i64 RUNTIME_recording)
  %running = call ptr @at(ptr %home, i64 RUNTIME_running)
  %lent = call ptr @at(ptr %home, i64 RUNTIME_lent)
  %none = call ptr @at(ptr %words, i64 WORD_none)
  %zero = call ptr @at(ptr %words, i64 WORD_zero)
  %seen = call i64 @PyObject_Size(ptr %lent)
  %is_calm = icmp eq ptr %recording, %none
  %is_still = icmp eq ptr %running, %zero
  %is_unseen = icmp eq i64 %seen, 0
  %writes = call ptr @at(ptr %words, i64 WORD_writes)
  %guard = call ptr @at(ptr %writes, i64 WRITES_guard)
  %is_free = icmp eq ptr %guard, %none
  %c2 = and i1 %is_calm, %is_still
  %c3 = and i1 %c2, %is_unseen
  %c4 = and i1 %c3, %is_free
  br i1 %c4, label %next, label %refuse
next:
  %j = phi i64 [ 0, %ask ], [ %j1, %plain ]
  %left = icmp slt i64 %j, %n
  br i1 %left, label %look, label %write
look:
  %j_at = getelementptr ptr, ptr %storages, i64 %j
  %theirs = load ptr, ptr %j_at
  %is_plain = call i1 @is_plain(ptr %words, ptr %home, ptr %theirs)
  br i1 %is_plain, label %plain, label %refuse
plain:
  %j1 = add i64 %j, 1
  br label %next
write:
  %k = phi i64 [ 0, %next ], [ %k1, %written ]
  %unwritten = icmp slt i64 %k, %n
  br i1 %unwritten, label %written, label %leave
written:
  %k_at = getelementptr ptr, ptr %storages, i64 %k
  %target = load ptr, ptr %k_at
  %node = call ptr @result(ptr %words, i64 %k, ptr %made)
  %two = shl i64 %k, 1
  %old_at = getelementptr ptr, ptr %olds, i64 %two
  %again = call i1 @replace(ptr %words, ptr %target, ptr %node, ptr %old_at)
  %w_at = getelementptr i1, ptr %waits, i64 %k
  store i1 %again, ptr %w_at
  %k1 = add i64 %k, 1
  br label %write
leave:
  %left_lock = call i1 @leave(ptr %words, ptr %lock)
  br label %wait
wait:
  %m = phi i64 [ 0, %leave ], [ %m1, %waited ]
  %any = icmp slt i64 %m, %n
  br i1 %any, label %one, label %note
one:
  %mw_at = getelementptr i1, ptr %waits, i64 %m
  %is_waiting = load i1, ptr %mw_at
  br i1 %is_waiting, label %add, label %waited
add:
  %m_at = getelementptr ptr, ptr %storages, i64 %m
  %value = load ptr, ptr %m_at
  %added = call i1 @wait(ptr %words, ptr %home, ptr %value)
  br label %waited
waited:
  %m1 = add i64 %m, 1
  br label %wait
note:
  %noting = call ptr @at(ptr %words, i64 WORD_note)
  %noted = call ptr @PyObject_CallNoArgs(ptr %noting)
  call void @Py_DecRef(ptr %noted)
  %n2 = shl i64 %n, 1
  call void @drop(ptr %storages, i64 %n)
  call void @drop(ptr %olds, i64 %n2)
  call void @drop(ptr %made, i64 %steps)
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %done, label %failed
done:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
refuse:
  %left_again = call i1 @leave(ptr %words, ptr %lock)
  br label %usual
usual:
  ; What is missing or otherwise is Python's to find.
  %found_so_far = phi i64 [ %i, %out ], [ %n, %unlocked ], [ %n, %refuse ]
  call void @PyErr_Clear()
  call void @drop(ptr %storages, i64 %found_so_far)
  %said = call ptr @fallback(ptr %words, ptr %outs, ptr %made)
  call void @drop(ptr %made, i64 %steps)
  ret ptr %said
failed:
  ret ptr null
}

; Record a call over nodes, with its numbers and the user's line, and overwrite tensors with its results.
define ptr @wt_write(ptr %self, ptr %args, i64 %count) {
entry:
  %made = alloca [STEPS x ptr], align 16
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %right = icmp eq i64 %count, 4
  br i1 %right, label %given, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
given:
  %outs = call ptr @at(ptr %args, i64 0)
  %nodes = call ptr @at(ptr %args, i64 8)
  %numbers = call ptr @at(ptr %args, i64 16)
  %line = call ptr @at(ptr %args, i64 24)
  %n = call i64 @whole(ptr %words, i64 WORD_results)
  %many = call i64 @PyTuple_Size(ptr %outs)
  %fits = icmp eq i64 %n, %many
  br i1 %fits, label %make, label %wrong
make:
  %steps = call i64 @record_lists(ptr %words, ptr %nodes, ptr %numbers, ptr %line, ptr %made)
  %are_made = icmp sge i64 %steps, 0
  br i1 %are_made, label %write, label %failed
write:
  %said = call ptr @write(ptr %words, ptr %outs, ptr %made, i64 %steps)
  ret ptr %said
failed:
  ret ptr null
}

; Give a lock back, and let go of it.
define internal i1 @leave(ptr %words, ptr %lock) {
  %given = alloca ptr, align 8
  store ptr %lock, ptr %given
  %release = call ptr @at(ptr %words, i64 WORD_release)
  %done = call ptr @PyObject_VectorcallMethod(ptr %release, ptr %given, i64 1, ptr null)
  call void @Py_DecRef(ptr %done)
  call void @Py_DecRef(ptr %lock)
  %is_out = icmp ne ptr %done, null
  ret i1 %is_out
}

; Let Python overwrite tensors with nodes.
define internal ptr @fallback(ptr %words, ptr %outs, ptr %made) {
entry:
  %given = alloca [3 x ptr], align 16
  %n = call i64 @whole(ptr %words, i64 WORD_results)
  %all = call ptr @PyTuple_New(i64 %n)
  %is_made = icmp ne ptr %all, null
  br i1 %is_made, label %next, label %failed
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %put, label %call
put:
  %node = call ptr @result(ptr %words, i64 %i, ptr %made)
  call void @Py_IncRef(ptr %node)
  %set = call i32 @PyTuple_SetItem(ptr %all, i64 %i, ptr %node)
  %i1 = add i64 %i, 1
  br label %next
call:
  %second = getelementptr ptr, ptr %given, i64 1
  %third = getelementptr ptr, ptr %given, i64 2
  %places = call ptr @at(ptr %words, i64 WORD_places)
  store ptr %outs, ptr %given
  store ptr %all, ptr %second
  store ptr %places, ptr %third
  %usual = call ptr @at(ptr %words, i64 WORD_fallback)
  %said = call ptr @PyObject_Vectorcall(ptr %usual, ptr %given, i64 3, ptr null)
  call void @Py_DecRef(ptr %all)
  ret ptr %said
failed:
  ret ptr null
}
"""
declare(_TEXT)


def writer(plan: Plan, put: Callable[..., None]) -> Callable[..., Any] | None:
    """Return what records a plan's calls and overwrites tensors with their results, which `put` does where it is not as
    simple; None where Python does.
    """
    return function_of(plan, "wt_write", put=put)
