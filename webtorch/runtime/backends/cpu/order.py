"""Order of rows: where each element of a sorted row was. Imports NumPy, floors 0-2 and modules beside it.

Numbers become unsigned keys whose order is theirs, NaN last, and long rows are sorted by the keys'
digits, the lowest first (radix sort: Knuth, 5.2.5), in machine code on all threads. Every pass counts
the digits of each part of a row and then moves the part's elements to their places. Short rows, and
all where there is no compiler, are sorted by NumPy. Where only few of a long row are wanted, they are
selected first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from webtorch.ir.dtype import DType
from webtorch.ir.kernel import Sort
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.contraction import widen
from webtorch.runtime.backends.cpu.memory import Array
from webtorch.runtime.backends.cpu.threads import get_num_threads, run_parallel, split

# Bits of a digit: more make fewer passes and longer tables.
_DIGIT = 8
_BUCKETS = 1 << _DIGIT
# In shorter rows the tables of digits cost more than NumPy's merging.
_LEAST_LENGTH = 1024
# So few are kept in order while a row is read once.
_MOST_KEPT = 64
# Selecting pays when less than this share of a row is wanted, or one element; in rows this long, and from
# this many elements on (measured: a ninth of the time of sorting 256 rows of 256).
_FEW = 1 / 8
_LEAST_SELECTED_ROW, _LEAST_SELECTED = 32, 4096
# Rows that NumPy sorts on one thread.
_LEAST_ELEMENTS = 1 << 15

_KEYS = """
def keys(begin, end, b0: {source}, b1: {kind}, turned: {kind}):
    for i in range(begin, end):
        x = b0[i]
        bits = bitcast(x, {kind})
        key = where(bits > {kind}({largest}), invert(bits), bits | {kind}({sign}))
        key = where(x == {source}(0.0), {kind}({sign}), key)
        b1[i] = where(isnan(x), {kind}({all}), key) ^ turned
"""
_LEAST = """
def least(begin, end, b0: {kind}, b1: {kind}, b2: int64, length: int, count: int):
    for row in range(begin, end):
        kept = row * count
        worst = {kind}({all})
        n = 0
        for i in range(length):
            key = b0[row * length + i]
            if (key < worst) | (n < count):
                at = min(n, count - 1)
                before = max(at - 1, 0)
                while (at > 0) & (b1[kept + before] > key):
                    b1[kept + at] = b1[kept + before]
                    b2[kept + at] = b2[kept + before]
                    at = at - 1
                    before = max(at - 1, 0)
                b1[kept + at] = key
                b2[kept + at] = int64(i)
                n = min(n + 1, count)
                if n == count:
                    worst = b1[kept + count - 1]
"""
_COUNT = """
def count(begin, end, b0: {kind}, b1: int64, length: int, parts: int, size: int, shift: {kind}):
    counts = local(int64, 256)
    for unit in range(begin, end):
        for d in range(256):
            counts[d] = int64(0)
        row = div(unit, parts)
        part = rem(unit, parts)
        first = row * length + part * size
        last = row * length + min(part * size + size, length)
        for i in range(first, last):
            d = int(shr(b0[i], shift) & {kind}(255))
            counts[d] = counts[d] + int64(1)
        for d in range(256):
            b1[(row * 256 + d) * parts + part] = counts[d]
"""
_MOVE = """
def move(begin, end, b0: {kind}, b1: uint32, b2: int64, b3: {kind}, b4: uint32,
         length: int, parts: int, size: int, shift: {kind}):
    counts = local(int64, 256)
    for unit in range(begin, end):
        row = div(unit, parts)
        part = rem(unit, parts)
        for d in range(256):
            counts[d] = b2[(row * 256 + d) * parts + part]
        first = row * length + part * size
        last = row * length + min(part * size + size, length)
        for i in range(first, last):
            key = b0[i]
            d = int(shr(key, shift) & {kind}(255))
            to = counts[d]
            counts[d] = to + int64(1)
            b3[row * length + int(to)] = key
            b4[row * length + int(to)] = {place}
"""
# A row is put in order in runs of 16, which are merged in turns from one half of memory to the other.
_LONGEST_MERGED = 512
_MOST_MERGED = 4096
_MERGE = """
def merge(begin, end, b0: {source}, b1: {place}, length: int, first: int, count: int, status):
    keys = local({kind}, 1024)
    places = local(int32, 1024)
    for row in range(begin, end):
        for run in range(0, length, 16):
            stop = min(run + 16, length)
            for i in range(run, stop):
                x = b0[row * length + i]
                key = {key}
                at = i
                before = max(at - 1, run)
                while (at > run) & (keys[before] > key):
                    keys[at] = keys[before]
                    places[at] = places[before]
                    at = at - 1
                    before = max(at - 1, run)
                keys[at] = key
                places[at] = int32(i)
        width = 16
        old = 0
        new = 512
        while width < length:
            run = 0
            while run < length:
                middle = min(run + width, length)
                stop = min(run + width + width, length)
                i = run
                j = middle
                for at in range(run, stop):
                    left = keys[old + min(i, middle - 1)]
                    right = keys[old + min(j, stop - 1)]
                    takes = (i < middle) & ((j >= stop) | (left <= right))
                    keys[new + at] = where(takes, left, right)
                    places[new + at] = places[old + where(takes, i, j)]
                    i = i + where(takes, 1, 0)
                    j = j + where(takes, 0, 1)
                run = run + width + width
            width = width + width
            old = 512 - old
            new = 512 - new
        for i in range(count):
            b1[row * count + i] = {place}(places[old + first + i])
"""
_BITS = {"float32": 32, "float64": 64, "int32": 32, "int64": 64}


def merging(routine: Sort) -> str | None:
    """Return the loop text that orders few short rows; None where NumPy is as fast, and for other types."""
    source, place = routine.buffers[0].dtype.name, routine.buffers[1].dtype.name
    bits = _BITS.get(source)
    if (
        bits is None
        or routine.length > _LONGEST_MERGED
        or routine.rows * routine.length > _MOST_MERGED
    ):
        return None
    kind, sign, every = f"uint{bits}", 1 << (bits - 1), (1 << bits) - 1
    key = f"bitcast(x, {kind})"
    if source.startswith("float"):
        turned = f"where({key} > {kind}({every >> 1}), invert({key}), {key} | {kind}({sign}))"
        key = f"where(x == {source}(0.0), {kind}({sign}), {turned})"
        key = f"where(isnan(x), {kind}({every}), {key})"
    else:
        key = f"({key} ^ {kind}({sign}))"
    key = f"invert({key})" if routine.descending else key
    return _MERGE.strip().format(source=source, place=place, kind=kind, key=key)


@cache
def _function(text: str, **words: str) -> jit.Native:
    return jit.function(text.format(**words).strip())


def sort(routine: Sort) -> Callable[..., None]:
    """Return a function of (x, out) flat arrays."""
    rows, length, first, count = routine.rows, routine.length, routine.first, routine.count
    end = first + count
    dtype = routine.buffers[0].dtype
    compiled = jit.available() and rows * length >= _LEAST_LENGTH
    selected = (
        length >= _LEAST_SELECTED_ROW
        and rows * length >= _LEAST_SELECTED
        and (end < length * _FEW or count == 1)
    )

    def run(x: Array, out: Array) -> None:
        """Write the places of the ranks wanted."""
        keys = _keys(x.reshape(rows, length), dtype, routine.descending, compiled)
        target = out.reshape(rows, count)
        if compiled and end <= _MOST_KEPT and end < length * _FEW:
            target[...] = _least(keys, end)[:, first:]
        elif selected:
            _over_rows(_select, keys, target, first)
        elif length >= _LEAST_LENGTH and compiled:
            target[...] = _by_digits(keys)[:, first:end]
        else:
            _over_rows(_by_merging, keys, target, first)

    return run


def _keys(x: Array, dtype: DType, descending: bool, compiled: bool) -> Array:
    """Return unsigned numbers of 32 or 64 bits in the order of x."""
    if dtype.kind == "float":
        x = widen(x, dtype)
        bits = x.dtype.itemsize * 8
        kind, largest = f"uint{bits}", (1 << bits) - 1
        if compiled:
            keys: Array = np.empty(x.shape, kind)
            words = {
                "largest": str(largest >> 1),
                "sign": str(1 << (bits - 1)),
                "all": str(largest),
            }
            function = _function(_KEYS, source=x.dtype.name, kind=kind, **words)
            _run(function, x.size, (np.ascontiguousarray(x), keys), (-1 if descending else 0,))
            return keys
        # Adding zero makes -0 the same as 0. Of a negative number all bits are turned over, of
        # others the sign.
        keys = (x + 0).view(kind)
        unsigned = keys.dtype.type
        # Both of the array's type: Python's integers would become the C long, which holds neither.
        turned = np.where(keys >> unsigned(bits - 1), unsigned(largest), unsigned(1 << (bits - 1)))
        keys = keys ^ turned
        keys[np.isnan(x)] = largest
    elif x.dtype == np.int64:
        keys = x.view(np.uint64) ^ np.uint64(1 << 63)
    elif x.dtype.kind == "i":
        keys = x.astype(np.int32).view(np.uint32) ^ np.uint32(1 << 31)
    else:
        keys = x.astype(np.uint64 if x.dtype.itemsize == 8 else np.uint32)
    return np.invert(keys, out=keys) if descending else keys


def _over_rows(
    order: Callable[[Array, int, int], Array], keys: Array, out: Array, first: int
) -> None:
    """Fill `out` with the places at ranks from `first` on of each row, on the threads."""

    def part(begin: int, end: int) -> Callable[[], None]:
        """Return the task of some of the rows."""

        def work() -> None:
            """Order the rows."""
            out[begin:end] = order(keys[begin:end], first, out.shape[1])

        return work

    parts = get_num_threads() if keys.size >= _LEAST_ELEMENTS else 1
    run_parallel([part(a, b) for a, b in split(0, keys.shape[0], parts)])


def _by_merging(keys: Array, first: int, count: int) -> Array:
    return np.argsort(keys, axis=1, kind="stable")[:, first : first + count]


def _select(keys: Array, first: int, count: int) -> Array:
    """Return the places of the smallest of each row, in order, without sorting the others."""
    end = first + count
    last = np.partition(keys, end - 1, axis=1)[:, end - 1, None]
    chosen = keys < last
    ties = keys == last
    # Of those that equal the last, the first ones.
    ties &= np.cumsum(ties, axis=1, dtype=np.int32) <= end - chosen.sum(1, keepdims=True)
    if count == 1:
        # The last of them.
        return keys.shape[1] - 1 - np.argmax(ties[:, ::-1], axis=1, keepdims=True)
    chosen |= ties
    places = np.nonzero(chosen)[1].reshape(-1, end)
    order = np.argsort(np.take_along_axis(keys, places, 1), axis=1, kind="stable")
    return np.take_along_axis(places, order[:, first:], 1)


def _least(keys: Array, count: int) -> Array:
    """Return the places of the `count` smallest of each row: those are kept in order on the way."""
    rows, length = keys.shape
    # Few rows are cut into parts, of which the best are sorted at the end.
    parts = max(1, min(-(-get_num_threads() // rows), length // max(count, _LEAST_LENGTH)))
    size = length // parts
    if parts > 1:
        rest = keys[:, parts * size :]
        found, rows_of = _least(keys[:, : parts * size].reshape(rows * parts, size), count), rows
        places = (found.reshape(rows, parts, count) + np.arange(parts)[:, None] * size).reshape(
            rows_of, -1
        )
        tail = np.broadcast_to(np.arange(parts * size, length), rest.shape)
        places = np.concatenate([places, tail], 1)
        order = np.argsort(np.take_along_axis(keys, places, 1), axis=1, kind="stable")
        return np.take_along_axis(places, order[:, :count], 1)
    kept = np.empty((rows, count), keys.dtype)
    out = np.empty((rows, count), np.int64)
    kind = keys.dtype.name
    function = _function(_LEAST, kind=kind, all=str(np.iinfo(keys.dtype).max))
    _run(function, rows, (np.ascontiguousarray(keys), kept, out), (length, count))
    return out


def _by_digits(keys: Array) -> Array:
    rows, length = keys.shape
    kind = keys.dtype.name
    parts = max(1, min(-(-get_num_threads() // rows), length // _LEAST_LENGTH))
    size = -(-length // parts)
    parts = -(-length // size)
    counts = np.empty((rows, _BUCKETS, parts), np.int64)
    places: Array = np.empty(0, np.uint32)
    spare_keys: Array = np.empty_like(keys)
    spare_places: Array = np.empty(keys.shape, np.uint32)
    for shift in range(0, keys.dtype.itemsize * 8, _DIGIT):
        numbers = (length, parts, size, shift)
        _run(_function(_COUNT, kind=kind), rows * parts, (keys, counts), numbers)
        totals = counts.sum(2)
        if (totals.max(1) == length).all():
            continue  # one digit only: nothing moves
        flat = counts.reshape(rows, -1)
        starts = np.cumsum(flat, axis=1)
        starts -= flat
        place = "b1[i]" if places.size else "uint32(i - row * length)"
        arrays = (keys, places, starts, spare_keys, spare_places)
        _run(_function(_MOVE, kind=kind, place=place), rows * parts, arrays, numbers)
        keys, spare_keys = spare_keys, keys
        if places.size:
            places, spare_places = spare_places, places
        else:
            places, spare_places = spare_places, np.empty(keys.shape, np.uint32)
    if not places.size:
        return np.broadcast_to(np.arange(length), (rows, length))
    return places


def _run(
    function: jit.Native,
    units: int,
    arrays: tuple[Array, ...],
    numbers: tuple[int, ...],
) -> None:
    """Run a compiled function over all units on the threads."""
    cells = [*(a.ctypes.data for a in arrays), *numbers]
    block = np.array(cells, np.int64).tobytes()
    run_parallel(
        [lambda a=a, b=b: function.call(a, b, block) for a, b in split(0, units, get_num_threads())]  # type: ignore[misc]
    )
