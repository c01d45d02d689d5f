"""How results lie in memory: which strides PyTorch's CPU gives them. May import floor 0 only.

A layout rule takes the sizes and strides of the operands in order, and the sizes of a result. An entry's is its field
`layout`; results of entries without one are as their parts make them, row-major in most.
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.ir.view import contiguous_strides, format_strides, result_strides, strides_like

Sizes = tuple[int, ...]
# Sizes and strides of a tensor.
Form = tuple[Sizes, Sizes]
# The forms of an operator's tensors in order and the sizes of a result -> the result's strides.
Forms = tuple[Form, ...]
Layout = Callable[[Forms, Sizes], Sizes]


def channels_last(shape: Sizes) -> Sizes:
    """Return the strides of images (4 dims) or volumes (5) whose channels lie innermost."""
    return format_strides(shape, (0, *range(2, len(shape)), 1))


def suggests_channels_last(form: Form) -> bool:
    """Whether PyTorch takes a tensor of 4 or 5 dims for one with its channels innermost."""
    shape, strides = form
    if len(shape) not in (4, 5) or not strides[1]:
        return False
    least = 0
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if not shape[d] or strides[d] < least or (d == 0 and least == strides[1]):
            # The last: one channel, or images of one element, are row-major.
            return False
        least = strides[d] * max(shape[d], 1)
    return True


def of_operands(forms: Forms, shape: Sizes) -> Sizes:
    """The order of the operands' dims, as far as these have one. A reduced result is row-major."""
    if any(len(sizes) > len(shape) for sizes, _ in forms):
        return contiguous_strides(shape)
    return result_strides(shape, forms, True)


def row_major(forms: Forms, shape: Sizes) -> Sizes:
    """Row-major whatever the operands are: of entries whose parts keep the order of their operand."""
    return contiguous_strides(shape)


def of_first(forms: Forms, shape: Sizes) -> Sizes:
    """The strides of `torch.empty_like` of the first operand."""
    return strides_like(*forms[0]) if forms[0][0] == shape else contiguous_strides(shape)


def _channels_last_if(wanted: bool, shape: Sizes) -> Sizes:
    return channels_last(shape) if wanted and len(shape) in (4, 5) else contiguous_strides(shape)


class ChannelsLastAs:
    """The rule that channels lie innermost where they do in one of some operands, also of the gradients of operands."""

    __slots__ = ("numbers",)

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __call__(self, forms: Forms, shape: Sizes) -> Sizes:
        """Return the order of the dims of a result."""
        return _channels_last_if(self.wanted(forms), shape)

    def wanted(self, forms: Forms) -> bool:
        """Whether channels lie innermost in one of the operands."""
        return any(suggests_channels_last(forms[n]) for n in self.numbers if n < len(forms))


class _VolumesAsFirst(ChannelsLastAs):
    """The same rule of volumes, also without a batch, and of the gradients of those with one."""

    __slots__ = ()

    def __call__(self, forms: Forms, shape: Sizes) -> Sizes:
        """Return the order of the dims of a result."""
        sizes, strides = forms[0]
        if len(sizes) == 4 == len(shape):
            order = (1, 2, 3, 0)
            inner = strides[0] == 1 < sizes[0] and strides == format_strides(sizes, order)
            return format_strides(shape, order) if inner else contiguous_strides(shape)
        return super().__call__(forms, shape)

    def wanted(self, forms: Forms) -> bool:
        """Whether channels of volumes lie innermost."""
        return len(forms[0][0]) == 5 and super().wanted(forms)


volumes_as_first = _VolumesAsFirst(0)


def channels_last_together(forms: Forms, shape: Sizes) -> Sizes:
    """Channels lie innermost where they do in all operands."""
    return _channels_last_if(all(map(suggests_channels_last, forms)), shape)


def columns(forms: Forms, shape: Sizes) -> Sizes:
    """A matrix whose columns lie one after the other."""
    return format_strides(shape, tuple(range(len(shape)))[::-1])


def matrix_columns(forms: Forms, shape: Sizes) -> Sizes:
    """Columns of matrices lie one after the other, as LAPACK has them; results of fewer dims are row-major."""
    n = len(shape)
    if n < 2 or n < len(forms[0][0]):
        return contiguous_strides(shape)
    return format_strides(shape, (*range(n - 2), n - 1, n - 2))
