"""How results lie in memory: the strides that PyTorch's CPU gives them, and memory that lies otherwise. Floor 6.

PyTorch's programs see strides: `is_contiguous(memory_format=torch.channels_last)` asks for them, `.view` succeeds or
raises by them. Kernels here write their results row-major. `RULES` says which strides the results of an operator have,
`Laid` lets row-major values stand behind tensors of other strides: nothing is moved in memory until something looks at
it in a way that only the order of the strides has.

Everything here is arithmetic on sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from webtorch.ir.view import (
    contiguous_strides,
    format_strides,
    is_contiguous,
    result_strides,
    strides_like,
)
from webtorch.tensors.storage import Storage

Sizes = tuple[int, ...]
# Sizes and strides of a tensor.
Form = tuple[Sizes, Sizes]
# The forms of an operator's tensors in order and the sizes of a result -> the result's strides.
Forms = tuple[Form, ...]
Rule = Callable[[Forms, Sizes], Sizes]


# ---- memory in another order --------------------------------------------------------------------


class Laid:
    """Values that lie row-major, behind tensors whose strides have no gaps but another order."""

    __slots__ = ("groups", "storage")

    def __init__(self, storage: Storage, shape: Sizes, strides: Sizes) -> None:
        self.storage = storage
        self.groups = _groups(shape, strides)

    def view(self, shape: Sizes, strides: Sizes, offset: int) -> tuple[Sizes, int] | None:
        """Return strides and offset among the values of a tensor with these; None where there are none."""
        return _view(self.groups, shape, strides, offset)

    def turned(self) -> tuple[Sizes, Sizes]:
        """Return the sizes and strides with which the values are read in the tensors' order."""
        return tuple([n for n, _, _ in self.groups]), tuple([c for _, _, c in self.groups])


@lru_cache(maxsize=1024)
def _groups(shape: Sizes, strides: Sizes) -> tuple[tuple[int, int, int], ...]:
    """Return (size, stride, stride of the values) of dims, outermost first.

    Those that follow each other in both orders are one.
    """
    dims = zip(shape, strides, contiguous_strides(shape), strict=True)
    found: list[tuple[int, int, int]] = []
    for n, step, own in sorted((d for d in dims if d[0] > 1), key=lambda d: -d[1]):
        if found and found[-1][2] == own * n:
            found[-1] = (found[-1][0] * n, step, own)
        else:
            found.append((n, step, own))
    return tuple(found)


@lru_cache(maxsize=4096)
def _view(
    groups: tuple[tuple[int, int, int], ...], shape: Sizes, strides: Sizes, offset: int
) -> tuple[Sizes, int] | None:
    # The first and the last place in each group.
    first, rest = [], offset
    for _, step, _ in groups:
        place, rest = divmod(rest, step)
        first.append(place)
    last = first.copy()
    found = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1 or not stride:
            found.append(0)
            continue
        g = next((i for i, group in enumerate(groups) if group[1] <= stride), None)
        if g is None or stride % groups[g][1]:
            return None
        times = stride // groups[g][1]
        last[g] += (n - 1) * times
        found.append(times * groups[g][2])
    if any(place >= group[0] for place, group in zip(last, groups, strict=True)):
        return None
    own = tuple(found)
    if is_contiguous(shape, own):
        own = contiguous_strides(shape)
    return own, sum(p * group[2] for p, group in zip(first, groups, strict=True))


# ---- strides of results -------------------------------------------------------------------------


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


def elementwise(forms: Forms, shape: Sizes) -> Sizes:
    """The order of the operands' dims, as far as these have one. A reduced result is row-major."""
    if any(len(sizes) > len(shape) for sizes, _ in forms):
        return contiguous_strides(shape)
    return result_strides(shape, forms, True)


def like(forms: Forms, shape: Sizes) -> Sizes:
    """The strides of `torch.empty_like` of the first operand."""
    return strides_like(*forms[0]) if forms[0][0] == shape else contiguous_strides(shape)


def _channels_last_if(wanted: bool, shape: Sizes) -> Sizes:
    return channels_last(shape) if wanted and len(shape) in (4, 5) else contiguous_strides(shape)


def suggested(*numbers: int) -> Rule:
    """Return the rule that channels lie innermost where they do in one of these operands."""

    def rule(forms: Forms, shape: Sizes) -> Sizes:
        """Return the strides of a result of this shape, None for row-major."""
        wanted = any(suggests_channels_last(forms[n]) for n in numbers if n < len(forms))
        return _channels_last_if(wanted, shape)

    return rule


def together(forms: Forms, shape: Sizes) -> Sizes:
    """Channels lie innermost where they do in all operands."""
    return _channels_last_if(all(map(suggests_channels_last, forms)), shape)


def columns(forms: Forms, shape: Sizes) -> Sizes:
    """A matrix whose columns lie one after the other."""
    return format_strides(shape, tuple(range(len(shape)))[::-1])


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


# Operator, without its overload -> what strides its results have; of all others these are row-major. Operators
# that PyTorch makes of their out= form are not here: there it has chosen the strides before it calls.
RULES: dict[str, Rule] = {
    # TensorIterator.
    **_rules(
        elementwise,
        "relu hardtanh hardswish logit isnan where floor_divide angle _prelu_kernel rsub prelu add sub mul div "
        "maximum minimum neg exp log sqrt rsqrt reciprocal sin cos tanh sigmoid abs pow silu eq ne lt le gt ge "
        "bitwise_and bitwise_or bitwise_not tanh_backward sigmoid_backward threshold_backward gelu gelu_backward "
        "silu_backward erf",
    ),
    **_rules(
        elementwise,
        "complex polar logical_and logical_or logical_xor native_dropout native_dropout_backward huber_loss",
    ),
    **_rules(like, "flip"),
    **_rules(together, "cat"),
    # The input, and for convolutions the weight too.
    **_rules(
        suggested(0),
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update "
        "_native_batch_norm_legit_no_training native_group_norm constant_pad_nd _adaptive_avg_pool2d "
        "reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d "
        "max_pool3d_with_indices max_unpool2d pixel_shuffle pixel_unshuffle",
    ),
    **_rules(suggested(0, 1), "convolution_overrideable"),
    # The input comes after the gradient.
    **_rules(
        suggested(1),
        "native_batch_norm_backward batch_norm_backward native_group_norm_backward _adaptive_avg_pool2d_backward "
        "reflection_pad2d_backward reflection_pad3d_backward "
        "replication_pad2d_backward replication_pad3d_backward max_pool3d_with_indices_backward",
    ),
    **_rules(suggested(1, 2), "convolution_backward_overrideable"),
    **_rules(columns, "nonzero"),
}  # fmt: skip
