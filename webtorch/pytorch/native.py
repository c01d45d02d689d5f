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
def new_storage(words: Words, place: Place, node) -> object:
    # A storage on a node, which is the caller's no more; null with an error.
    opened: Opened = words.opened
    home = opened.runtime
    storage: Storage = null
    if type_of(home) == words.home:
        storage = PyType_GenericAlloc(words.storage, 0)
    else:
        PyErr_BadArgument()
    if storage == null:
        Py_DecRef(node)
        return null
    storage.node = node
    storage.runtime = held(home)
    storage.dtype = held(place.dtype)
    storage.elements = held(place.elements)
    storage.version = held(words.zero)
    storage.donor = held(words.none)
    storage.resting = held(words.none)
    if wait(words, home, storage):
        return storage
    Py_DecRef(storage)
    return null

def new_tensor(words: Words, place: Place, storage) -> object:
    # A tensor of PyTorch's whose storage carries ours; null with an error.
    given = room(4)
    given[0] = place.size
    given[1] = place.type
    x = PyObject_Vectorcall(words.create, given, 2, null)
    if x == null:
        return null
    empty = PyObject_CallOneArg(words.memory_of, x)
    number = PyIter_Next(words.addresses) if empty != null else null
    good = number != null
    if good:
        # PyTorch's storage has no memory: it is given an address and a length where it keeps them.
        theirs = empty[int(place.own)]
        theirs[int(place.address)] = PyLong_AsVoidPtr(number)
        theirs[int(place.length)] = int(place.nbytes)
        Py_DecRef(number)
        good = not PyObject_SetAttr(empty, words.webgpu, storage)
    Py_DecRef(empty)
    if not good:
        Py_DecRef(x)
        return null
    if not int(place.strided):
        return x
    given[0] = x
    given[1] = place.size
    given[2] = place.strides
    given[3] = place.offset
    turned = PyObject_Vectorcall(words.reinterpret, given, 4, null)
    Py_DecRef(x)
    return turned

def results(words: Record, made, steps: int) -> object:
    # The results of a call as new tensors, one or a tuple of some, of its nodes, which are let go of; null with an
    # error.
    several = int(words.several) != 0
    count = int(words.results) if several else 1
    all = PyTuple_New(count) if several else null
    good = all != null or not several
    x = null
    i = 0
    while good and i < count:
        place = place_of(words, i)
        storage = new_storage(words, place, held(result(words, i, made)))
        x = new_tensor(words, place, storage) if storage != null else null
        Py_DecRef(storage)
        good = x != null
        if good and several:
            PyTuple_SetItem(all, i, x)
        i += 1
    drop(made, steps)
    if not several:
        return x
    if good:
        return all
    Py_DecRef(all)
    return null

def wt_record(self, args, count: int) -> object:
    # Record a call over nodes, with its numbers and the user's line: a new tensor, or a tuple of some.
    made = room(STEPS)
    words = PyLong_AsVoidPtr(self)
    if count != 3:
        PyErr_BadArgument()
        return null
    # All nodes come first: they may be computed as soon as one of them has a storage.
    steps = record_lists(words, args[0], args[1], args[2], made)
    return results(words, made, steps) if steps >= 0 else null
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
