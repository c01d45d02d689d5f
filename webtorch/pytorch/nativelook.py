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
def put_next(key, filled, value):
    # Add an object to a key; the object stays its owner's as well.
    n = int(filled[0])
    PyTuple_SetItem(key, n, held(value))
    filled[0] = n + 1

def lie(words: Words, near: Near, tensors, count: int) -> bool:
    # Whether tensors lie as they did.
    said = PyObject_Vectorcall(near.check, tensors, count, null)
    Py_DecRef(said)
    if said != words.true:
        return False
    if near.offsets == words.none:
        return True
    for i in range(count):
        offset = PyObject_CallOneArg(words.offset_of, tensors[i])
        wanted = PyList_GetItem(near.offsets, i) if offset != null else null
        alike = wanted != null and PyObject_RichCompareBool(offset, wanted, 2) == 1
        Py_DecRef(offset)
        if not alike:
            return False
    return True

def plan_of(words: Look, key, tensors, count: int) -> object:
    # The plan that is known for a key and tensors that lie so, or null.
    known = held(PyDict_GetItemWithError(words.found, key))
    plan = null
    i = 0
    while known != null and plan == null and PyErr_Occurred() == null and i < PyList_Size(known):
        near: Near = held(PyList_GetItem(known, i))
        if lie(words, near, tensors, count):
            plan = held(near.plan)
        Py_DecRef(near)
        i += 1
    Py_DecRef(known)
    return plan

def read(words: Look, values, options, key, tensors, nodes, held_nodes, numbers, free) -> bool:
    # Fill a key with what is asked of a call's arguments; false where one is not as asked.
    filled = room(1)
    bytes = room(1)
    filled[0] = 0
    bytes[0] = words.none
    inner = words.none
    step = address(words.asked) + 8
    for i in range(int(words.asked)):
        what = int(step[0])
        source = int(step[1])
        index = int(step[2])
        asked = step[3]
        x = null
        if source == 0:
            x = PyTuple_GetItem(values, index)
        elif source == 1:
            x = PyList_GetItem(inner, index)
        elif source == 2:
            x = PyTuple_GetItem(inner, index)
        else:
            x = PyDict_GetItemWithError(options, step[2])
        if x == null:
            return False
        cls = type_of(x)
        if what == CONSTANT:
            if cls != asked:
                return False
            put_next(key, filled, x)
        elif what == NONE:
            if x != words.none:
                return False
        elif what == LENGTH:
            # How long memory is that does not say so by its values.
            put_next(key, filled, bytes[0])
        elif what == LIST or what == TUPLE:
            if cls != (words.list if what == LIST else words.tuple) or PyObject_Size(x) != int(asked):
                return False
            inner = x
        elif what == FREE:
            if cls != words.float or PyFloat_AsDouble(x) == 1.0:
                return False
            many = int(free[0])
            numbers[many] = x
            free[0] = many + 1
        elif what == FLOAT:
            if cls != words.float:
                return False
            if PyFloat_AsDouble(x) == 0.0:
                # Zeros are told apart by their signs.
                text = PyObject_Str(x)
                if text == null:
                    return False
                put_next(key, filled, text)
                Py_DecRef(text)
            else:
                put_next(key, filled, x)
        else:
            if cls != words.tensor and cls != words.parameter:
                return False
            storage: Storage = storage_of(words, x, bytes)
            # Where a script keeps its node there is none.
            if storage == null or storage.node == null:
                return False
            node: Node = storage.node
            many = int(held_nodes[0])
            for j in range(many):
                if nodes[j] == node:
                    return False
            nodes[many] = held(node)
            tensors[many] = x
            held_nodes[0] = many + 1
            put_next(key, filled, node.dtype)
            put_next(key, filled, node.shape)
            put_next(key, filled, node.kind)
        step = step + 32
    return True

def look(words: Look, values, options, nodes, held_nodes, numbers, free) -> object:
    # The plan of a call, or null where none is known or with an error. Its nodes and its free numbers are put into
    # rows, and how many they are; the nodes are the caller's then.
    tensors = room(MOST)
    held_nodes[0] = 0
    free[0] = 0
    if type_of(values) != words.tuple or PyTuple_Size(values) != int(words.arguments):
        return null
    others = PyObject_Size(options) if options != null else 0
    key = PyTuple_New(int(words.length)) if others == int(words.options) else null
    if key == null:
        return null
    plan = null
    if read(words, values, options, key, tensors, nodes, held_nodes, numbers, free):
        plan = plan_of(words, key, tensors, int(held_nodes[0]))
    Py_DecRef(key)
    if plan != null and PyErr_Occurred() == null:
        return plan
    Py_DecRef(plan)
    drop(nodes, int(held_nodes[0]))
    if PyErr_Occurred() != null and PyErr_ExceptionMatches(words.error):
        # The storage of another device, or one that does not carry its memory yet.
        PyErr_Clear()
    return null

def extend(list, objects, count: int):
    # Add so many objects to a list.
    for i in range(count):
        PyList_Append(list, objects[i])

def wt_look(self, args, count: int) -> object:
    nodes = room(MOST)
    numbers = room(MOST)
    held_nodes = room(1)
    free = room(1)
    words: Look = PyLong_AsVoidPtr(self)
    if count != 4:
        PyErr_BadArgument()
        return null
    plan = look(words, args[0], args[1], nodes, held_nodes, numbers, free)
    if plan != null:
        extend(args[2], nodes, int(held_nodes[0]))
        extend(args[3], numbers, int(free[0]))
        drop(nodes, int(held_nodes[0]))
    if PyErr_Occurred() != null:
        Py_DecRef(plan)
        return null
    return plan if plan != null else held(words.none)
"""


declare(
    _TEXT,
    {"Look": _OWN},
    {"Near": Near},
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
