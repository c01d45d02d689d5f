"""Values that lie in this process's memory, looked at before a call is recorded: PyTorch's errors come at the call.
Elsewhere kernels report what is wrong, and the next read raises. Floor 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.dispatch.call import Args, Kwargs, Run
from webtorch.errors import DeviceCheckError, IndexOutOfRangeError
from webtorch.ir.dtype import DType, bfloat16
from webtorch.ir.graph import Node
from webtorch.ir.lines import line_text, user_line
from webtorch.ir.program import Site
from webtorch.ops.primitive import IDENTITY
from webtorch.ops.purity import look
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import transforms
from webtorch.tensors.tape import needs_grad
from webtorch.tensors.tensor import Tensor

# What is written in place, and has no more elements, is computed where its values are to be checked.
_SMALL = 4096
_FEW = 32
# Takes what is to be checked last.
Check = Callable[..., None]


def at_hand(x: Tensor) -> Any:
    """Return the elements of a tensor as a NumPy array, to be read only; None where they are not computed, on another
    device, or of no type of NumPy's (bfloat16, views of another type).
    """
    storage = x._storage
    node = storage.node
    if node.kind != "buffer" or x._levels or x.dtype is bfloat16 or x.dtype is not storage.dtype:
        return None
    runtime = storage.runtime
    if runtime.kind != "cpu" or runtime.recording is not None:
        return None
    backend: Any = runtime.backend
    if x._whole:
        return backend.at_hand(node.buffer)
    # What is looked at says nothing of the call: an offset that a script notes is a number here.
    return backend.at_hand(node.buffer, x._shape, x._strides, int(x._offset))


def at_hand_or_written(x: Tensor) -> Any:
    """Return the same of a small tensor that was written in place and is not computed yet, and of one number that fills
    a new one.
    """
    found = at_hand(x)
    node = x._storage.node
    if found is not None or node.kind not in ("update", "map") or x._levels:
        return found
    runtime = x._storage.runtime
    if runtime.kind != "cpu" or runtime.recording is not None or x.dtype.is_complex:
        return None
    if node.kind == "map" and not node.srcs:
        if len(node.scalars) != 1 or node.attrs[0] is not IDENTITY:
            return None
        import numpy

        return numpy.array([node.scalars[0]] * min(x.numel(), 1))
    if x._storage.elements > _SMALL or not _is_simple(node, node.kind == "update"):
        return None
    before = look.looked
    x._storage.realize()
    look.looked = before
    return at_hand(x)


def _is_simple(node: Node, written: bool, depth: int = 3) -> bool:
    """Whether a value is made in a few steps of numbers alone, or, if `written`, of what is computed too."""
    if node.kind == "buffer" or not node.srcs:
        # A tensor of one number is a call, once others like it have been made.
        return written or node.kind in ("map", "call")
    return (
        depth > 0
        and node.kind in ("map", "update")
        and all(_is_simple(source, written, depth - 1) for source in node.srcs)
    )


def waited_for(*tensors: Tensor) -> list[Any] | None:
    """Return the elements of tensors as NumPy arrays to be read only, computed now: where they tell a result's size,
    NumPy may do the rest, too. None where they are not in this process's memory, must not be read or are of no type of
    NumPy's, and where gradients are recorded.
    """
    for x in tensors:
        runtime = x._storage.runtime
        if (
            runtime.kind != "cpu"
            or runtime.recording is not None
            or x._levels
            or x.dtype.is_complex
            or needs_grad((x,))
            or transforms.count
        ):
            return None
    found = []
    for x in tensors:
        x._storage.realize()
        known = at_hand(x)
        if known is None:
            return None
        found.append(known.reshape(x._shape))
    return found


def taken_over(array: Any, dtype: DType, like: Tensor) -> Tensor:
    """Return a tensor of a new NumPy array, on its memory."""
    runtime = like._storage.runtime
    backend: Any = runtime.backend
    array = array if array.flags.c_contiguous else array.copy()
    node = Node.in_memory(array.shape, dtype, backend.adopt(array, dtype))
    return Tensor._from_node(node, runtime)


def check_places(
    op: str,
    places: Tensor,
    size: int,
    words: str = "",
    low: int = 0,
    dim: int = 0,
    ignored: int | None = None,
) -> None:
    """Raise IndexOutOfRangeError if one of the places is known to be below `low`, or not below `size`.

    `words`: PyTorch's, before what a kernel would report; with "{index}", "{dim}" and "{size}" in them.
    """
    check_values(places, _are_inside, op, size, words, low, dim, ignored)


def check_values(x: Tensor, check: Check, *given: object) -> None:
    """Check the values of a tensor by what is given if they are known, and note it for calls to come whose values lie
    alike.
    """
    known = at_hand_or_written(x)
    if known is None:
        return
    node = x._storage.node
    if look.asked is not None and node.kind == "buffer":
        view = () if x._whole else (x._shape, x._strides, int(x._offset))
        backend: Any = x._storage.runtime.backend
        # What is called within may ask the same.
        if (note := (node, (backend.at_hand, view, check, *given))) not in look.asked:
            look.asked.append(note)
    check(*given, known)


def check_again(
    node: Node, read: Callable[..., object], view: tuple[object, ...], check: Check, *given: object
) -> None:
    """Check the values of a node that lie as those did of which the check was noted, if they are computed."""
    if node.kind == "buffer" and (known := read(node.buffer, *view)) is not None:
        check(*given, known)


def _are_inside(
    op: str, size: int, words: str, low: int, dim: int, ignored: int | None, known: Any
) -> None:
    if not known.size:
        return
    # Of a few numbers Python finds the extremes in less time than NumPy.
    some = known.ravel().tolist() if known.size <= _FEW else None
    for value in (max(some), min(some)) if some else (known.max(), known.min()):
        if not low <= value < size and value != ignored:
            site = Site(op, dim, size, line_text(user_line()))
            raise IndexOutOfRangeError(
                words.format(index=value, dim=dim, size=size) + site.message(value)
            )


def check_range(x: Tensor, low: float, high: float, rule: str) -> None:
    """Raise DeviceCheckError if a number of x is known to be outside of [low, high], in which NaN is not."""
    if not (tracing.active or x.dtype.is_complex):
        check_values(x, _is_between, low, high, rule)


def _is_between(low: float, high: float, rule: str, known: Any) -> None:
    if known.size and not low <= known.min() <= known.max() <= high:
        raise DeviceCheckError(f"{rule} ({line_text(user_line())})")


def asking(ask: Callable[..., object], run: Run) -> Run:
    """Return a call that asks the values of its operands first; `ask` has its parameters. Where a script follows the
    call, nobody asks, and the next read raises.
    """

    def asked(args: Args, kwargs: Kwargs) -> object:
        """Ask, and call."""
        if not tracing.active:
            # A `with` would take a third of the time that remembered calls take.
            try:  # noqa: SIM105
                ask(*args, **kwargs)
            except (TypeError, AttributeError, ValueError):
                # The call itself says what else is wrong with its arguments.
                pass
        return run(args, kwargs)

    return asked
