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

_TEXT = """
def calm(words: Words, kinds: Kinds) -> object:
    # The runtime where nothing has to be done before a call, as `Kinds.find` asks; null where something has.
    flag: Flag = words.flag
    active: Count = words.active
    transforms: Count = words.transforms
    opened: Opened = words.opened
    home: Runtime = opened.runtime
    if flag.pressed != words.false or active.count != words.zero or transforms.count != words.zero:
        return null
    if type_of(home) != words.home or home.recording != words.none or PyObject_Size(home.lent) != 0:
        return null
    ahead: Ahead = home.ahead
    most = PyLong_AsSsize_t(ahead.most)
    if kinds.heavy == words.false:
        most = 2 * most
    return home if PyLong_AsSsize_t(ahead.calls) < most else null

def note(words: Words, home: Runtime):
    # Note a call that is recorded.
    ahead: Ahead = home.ahead
    number = PyLong_FromSsize_t(PyLong_AsSsize_t(ahead.calls) + 1)
    put(address(ahead.calls), number)
    Py_DecRef(number)
    put(address(home.apart), words.true)

def user_line(words: Words) -> object:
    # What `user_line` returns, a new object; null with an error.
    if PyObject_Size(words.again) == 0:
        frame = held(PyEval_GetFrame())
        while frame != null:
            # The frame holds it.
            code = PyFrame_GetCode(frame)
            Py_DecRef(code)
            key = PyLong_FromVoidPtr(code)
            known = PyDict_GetItemWithError(words.internal, key)
            Py_DecRef(key)
            if known == null:
                break
            if PyTuple_GetItem(known, 0) != words.true:
                line = PyTuple_New(2)
                PyTuple_SetItem(line, 0, held(code))
                PyTuple_SetItem(line, 1, PyLong_FromSsize_t(PyFrame_GetLasti(frame)))
                Py_DecRef(frame)
                return line
            outer = PyFrame_GetBack(frame)
            Py_DecRef(frame)
            frame = outer
        if frame == null:
            return held(words.none)
        Py_DecRef(frame)
    # No frame is nearer than the one that it is called in.
    return PyObject_CallOneArg(words.user_line, words.one)

def words_of(words: Words, function) -> object:
    # What one of our functions knows; null for another object.
    if type_of(function) != words.builtin:
        return null
    return PyLong_AsVoidPtr(PyCFunction_GetSelf(function))

def ask(words: Words, plan: Plan, nodes, count: int) -> bool:
    # Ask what a plan asks of the operands' values; false with an error.
    if plan.ask == words.none:
        return True
    all = PyList_New(0)
    if all == null:
        return False
    extend(all, nodes, count)
    said = PyObject_CallOneArg(plan.ask, all)
    Py_DecRef(all)
    Py_DecRef(said)
    return said != null

def write_first(words: Record, args, made, steps: int) -> object:
    # Overwrite the first argument, and return it; null with an error.
    first = held(PyTuple_GetItem(args, 0))
    outs = PyTuple_New(1)
    PyTuple_SetItem(outs, 0, held(first))
    said = write(words, outs, made, steps)
    Py_DecRef(outs)
    Py_DecRef(said)
    if said != null:
        return first
    Py_DecRef(first)
    return null

def make(
    words: Words, home, plan: Plan, writes: int, args, nodes, many: int, numbers, free: int
) -> object:
    # Record a call by its plan; null, with or without an error, where Python does.
    made = room(STEPS)
    function = held(plan.written if writes else plan.tensor)
    own = words_of(words, function)
    line = null
    if own != null:
        note(words, home)
        line = user_line(words)
    found = null
    if line != null:
        steps = record(own, nodes, many, numbers, free, line, made)
        Py_DecRef(line)
        if steps >= 0:
            found = write_first(own, args, made, steps) if writes else results(own, made, steps)
    Py_DecRef(function)
    return found

def known(words: Words, kinds: Kinds, writes: int, args, options) -> object:
    # Record a call that is known; null, with or without an error, where none is.
    nodes = room(MOST)
    numbers = room(MOST)
    held_nodes = room(1)
    free = room(1)
    home = calm(words, kinds)
    if home == null:
        return null
    looks: Looks = kinds.looks
    all = held(looks.all)
    plan = null
    i = 0
    while plan == null and i < PyTuple_Size(all):
        # One that is Python's knows nothing here.
        theirs = words_of(words, PyTuple_GetItem(all, i))
        if theirs != null:
            plan = look(theirs, args, options, nodes, held_nodes, numbers, free)
        i += 1
    Py_DecRef(all)
    found = null
    if plan != null:
        many = int(held_nodes[0])
        if ask(words, plan, nodes, many):
            found = make(words, home, plan, writes, args, nodes, many, numbers, int(free[0]))
        drop(nodes, many)
        Py_DecRef(plan)
    return found

def wt_kernel(self, args, options) -> object:
    own: Kernel = PyLong_AsVoidPtr(self)
    found = known(own.words, own.kinds, int(own.writes), args, options)
    if found != null or PyErr_Occurred() != null:
        return found
    return PyObject_Call(own.usual, args, options)
"""
declare(_TEXT, classes={"Kinds": Kinds, "Looks": Looks, "Plan": Plan})


def fronted(kinds: Kinds, kernel: _Kernel, writes: bool = False) -> _Kernel:
    """Return a kernel that makes the calls which `kinds` knows in machine code, and leaves others to `kernel`.
    `writes`: its first argument is overwritten, and returned.
    """
    found = native([kinds, hide(kernel)], int(writes))
    return kernel if found is None else cast(_Kernel, found)
