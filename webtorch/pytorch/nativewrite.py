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
def is_plain(words: Words, home, storage: Storage) -> bool:
    # Whether a storage may be given a value as `Storage.replace` does where nobody looks at it, in this runtime.
    # Nothing of what is asked runs other code.
    node: Node = storage.node
    # Where a script keeps them there are none.
    if storage.runtime != home or node == null or storage.version == null:
        return False
    return node.host == words.none and (node.shared == words.false or node.shared == words.true)

def replace(words: Words, storage: Storage, node, old) -> bool:
    # Give a storage another value; what it had is put at `old`, two objects. Whether it waits anew.
    before: Node = storage.node
    old[0] = before
    old[1] = null
    storage.node = held(node)
    version = storage.version
    following = PyNumber_Add(version, words.one)
    if following != null:
        storage.version = following
        Py_DecRef(version)
    is_new = PyObject_RichCompareBool(before.kind, words.buffer, 2) == 1
    if is_new:
        # Its memory may be written in place where nothing else has it.
        old[1] = storage.donor
        storage.donor = held(before if before.shared == words.false else words.none)
    return is_new

def does(name, x) -> bool:
    # Call a method of an object: whether it raised nothing.
    given = room(1)
    given[0] = x
    said = PyObject_VectorcallMethod(name, given, 1, null)
    Py_DecRef(said)
    return said != null

def write(words: Record, outs, made, steps: int) -> object:
    # Overwrite a tuple of tensors with the nodes of a call, which are held no more. Null with an error.
    storages = room(MOST)
    waits = room(MOST)
    olds = room(OLDS)
    bytes = room(1)
    count = int(words.results)
    found = 0
    storage: Storage = null
    while found < count:
        storage = storage_of(words, PyTuple_GetItem(outs, found), bytes)
        if storage == null:
            break
        storages[found] = held(storage)
        found += 1
    done = False
    home: Runtime = null
    if found == count:
        storage = storages[0]
        home = storage.runtime
        lock = held(home.writing)
        if does(words.acquire, lock):
            writes: Writes = words.writes
            calm = home.recording == words.none and home.running == words.zero
            done = calm and PyObject_Size(home.lent) == 0 and writes.guard == words.none
            for i in range(count):
                done = done and is_plain(words, home, storages[i])
            if done:
                for i in range(count):
                    node = result(words, i, made)
                    waits[i] = int(replace(words, storages[i], node, olds + 16 * i))
            does(words.release, lock)
        Py_DecRef(lock)
    if not done:
        # What is missing or otherwise is Python's to find.
        PyErr_Clear()
        drop(storages, found)
        said = fallback(words, outs, made)
        drop(made, steps)
        return said
    for i in range(count):
        if int(waits[i]):
            wait(words, home, storages[i])
    Py_DecRef(PyObject_CallNoArgs(words.note))
    drop(storages, count)
    drop(olds, 2 * count)
    drop(made, steps)
    return held(words.none) if PyErr_Occurred() == null else null

def fallback(words: Record, outs, made) -> object:
    # Let Python overwrite tensors with nodes.
    given = room(3)
    count = int(words.results)
    all = PyTuple_New(count)
    if all == null:
        return null
    for i in range(count):
        PyTuple_SetItem(all, i, held(result(words, i, made)))
    given[0] = outs
    given[1] = all
    given[2] = words.places
    said = PyObject_Vectorcall(words.fallback, given, 3, null)
    Py_DecRef(all)
    return said

def wt_write(self, args, count: int) -> object:
    # Record a call over nodes, with its numbers and the user's line, and overwrite tensors with its results.
    made = room(STEPS)
    words: Record = PyLong_AsVoidPtr(self)
    if count != 4 or PyTuple_Size(args[0]) != int(words.results):
        PyErr_BadArgument()
        return null
    steps = record_lists(words, args[1], args[2], args[3], made)
    return write(words, args[0], made, steps) if steps >= 0 else null
"""
declare(_TEXT)


def writer(plan: Plan, put: Callable[..., None]) -> Callable[..., Any] | None:
    """Return what records a plan's calls and overwrites tensors with their results, which `put` does where it is not as
    simple; None where Python does.
    """
    return function_of(plan, "wt_write", put=put)
