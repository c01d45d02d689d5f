"""Einstein's summation: an equation is parsed, and its operands are contracted two at a time, as matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.functions.contract import batched, check_types
from webtorch.ir.dtype import promote_types
from webtorch.ir.view import (
    numel,
)
from webtorch.ops.record import (
    LOWER,
    Example,
    Operand,
    composite,
)
from webtorch.ops.splits import of_einsum
from webtorch.tensors.tensor import Tensor

# Subscript number n of the form with lists is letter n, which also is the order of implicit outputs.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@composite(
    splits=of_einsum,
    family="contract",
    function_in=("torch",),
    autocast=LOWER,
    own_view=True,
    spread=True,
    gradient_name="ViewBackward0",
    example=Example((), ("bij,bjk->ik", Operand(3, 4, 5), Operand(3, 5, 2))),
)
def einsum(*args: object) -> Tensor:
    """Return a sum of products in Einstein's notation: einsum("bij,bjk->bik", a, b).

    Supports implicit outputs, ellipses, repeated subscripts (diagonals), broadcasting of size 1, and
    the form with lists of numbers, einsum(a, [0, 1], b, [1, 2], [0, 2]). Operands are contracted in
    pairs, from left to right.
    """
    operands, inputs, output = _parse_einsum(args)
    sizes: dict[object, int] = {}
    for number, (x, labels) in enumerate(zip(operands, inputs, strict=True)):
        for d, label in enumerate(labels):
            size, known = x.shape[d], sizes.get(label, 1)
            if size != 1 and known not in (1, size):
                raise ShapeError(
                    f"einsum(): subscript {_label(label)} has size {size} for operand {number} "
                    f"which "
                    f"does not broadcast with previously seen size {known}"
                )
            if known == 1:
                sizes[label] = size
    terms = [_diagonal(x, labels) for x, labels in zip(operands, inputs, strict=True)]
    x, labels = _sum_out(*terms[0], _needed(terms[1:], output))
    for i in range(1, len(terms)):
        x, labels = _contract_pair((x, labels), terms[i], _needed(terms[i + 1 :], output))
    # Every output label is in the result; sizes of 1 stand for broadcast ones.
    x = x.permute([labels.index(label) for label in output])
    shape = tuple(sizes[label] for label in output)
    return x if tuple(x.shape) == shape else x.expand(shape)


def _label(label: object) -> str:
    return label if isinstance(label, str) else f"{label}"


def _parse_einsum(args: tuple[Any, ...]) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """Return operands, their labels and the output's labels. Ellipsis dims get negative numbers, -1 the last one."""
    if not args:
        raise ValueError(
            "einsum(): must specify the equation string and at least one operand, or at least one "
            "operand and its subscripts list"
        )
    if isinstance(args[0], str):
        equation = args[0].replace(" ", "")
        given = args[1:]
        operands = (
            list(given[0])
            if len(given) == 1 and isinstance(given[0], (list, tuple))
            else list(given)
        )
        left, arrow, right = equation.partition("->")
        inputs = [_tokens(part) for part in left.split(",")]
        output = _tokens(right) if arrow else None
    else:
        operands = list(args[0 : 2 * (len(args) // 2) : 2])
        inputs = [_sublist(s) for s in args[1 : 2 * (len(args) // 2) : 2]]
        output = _sublist(args[-1]) if len(args) % 2 else None
    if not operands:
        raise ValueError("einsum(): at least one operand must be provided")
    if len(inputs) != len(operands):
        more, fewer = ("more", "") if len(operands) > len(inputs) else ("fewer", "")
        raise ShapeError(
            f"einsum(): {more} operands were provided than specified in the equation{fewer}: "
            f"{len(operands)} tensors for {len(inputs)} lists of subscripts"
        )
    longest = 0
    for number, (x, labels) in enumerate(zip(operands, inputs, strict=True)):
        named = sum(label is not ... for label in labels)
        if ... in labels:
            if named > x.ndim:
                raise ShapeError(
                    f"einsum(): the number of subscripts in the equation ({named}) is more than "
                    f"the "
                    f"number of dimensions ({x.ndim}) for operand {number}"
                )
            longest = max(longest, x.ndim - named)
        elif named != x.ndim:
            raise ShapeError(
                f"einsum(): the number of subscripts in the equation ({named}) does not match the "
                f"number of dimensions ({x.ndim}) for operand {number} and no ellipsis was given"
            )
    expanded = []
    for x, labels in zip(operands, inputs, strict=True):
        count = x.ndim - sum(label is not ... for label in labels)
        expanded.append(_with_ellipsis(labels, range(-count, 0)))
    flat = [label for labels in expanded for label in labels]
    ellipsis = range(-longest, 0)
    if output is None:
        names = sorted({n for n in flat if not _in_ellipsis(n) and flat.count(n) == 1})
        return operands, expanded, [*ellipsis, *names]
    result = _with_ellipsis(output, ellipsis)
    for label in result:
        if result.count(label) > 1:
            raise ShapeError(
                f"einsum(): output subscript {_label(label)} appears more than once in the output"
            )
        if label not in flat:
            raise ShapeError(
                f"einsum(): output subscript {_label(label)} does not appear in the equation for "
                f"any input operand"
            )
    return operands, expanded, result


def _in_ellipsis(label: object) -> bool:
    return isinstance(label, int) and label < 0


def _with_ellipsis(labels: list[object], dims: range) -> list[Any]:
    if ... not in labels:
        return labels
    at = labels.index(...)
    return [*labels[:at], *dims, *labels[at + 1 :]]


def _tokens(part: str) -> list[object]:
    """Return the subscripts of one operand, `...` for an ellipsis."""
    found: list[object] = []
    i = 0
    while i < len(part):
        if part.startswith("...", i):
            if ... in found:
                raise ShapeError(
                    f"einsum(): found '.' in '{part}' for which an ellipsis was already found"
                )
            found.append(...)
            i += 3
            continue
        if part[i] not in _LETTERS:
            raise ShapeError(
                f"einsum(): invalid subscript given at '{part[i]}' in '{part}', subscripts must "
                f"be in [a-zA-Z]"
            )
        found.append(part[i])
        i += 1
    return found


def _sublist(given: Sequence[object]) -> list[object]:
    """Return the subscripts of a list of numbers, as letters so that they sort as PyTorch's do."""
    found: list[object] = []
    for label in given:
        if label is ...:
            found.append(...)
        elif isinstance(label, int) and 0 <= label < 52:
            found.append(_LETTERS[label])
        else:
            raise ShapeError(f"einsum(): subscript {label!r} is not within the valid range [0, 52)")
    return found


Term = tuple[Any, list[Any]]


def _diagonal(x: Tensor, labels: list[Tensor]) -> Term:
    """Return the operand with repeated subscripts taken along diagonals."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"einsum(): subscript {_label(label)} is repeated for one operand but the "
                    f"sizes "
                    f"don't match, {x.shape[second]} != {x.shape[first]}"
                )
            x = x.diagonal(0, first, second)
            labels = [n for d, n in enumerate(labels) if d not in (first, second)] + [label]
    return x, list(labels)


def _needed(terms: Sequence[Term], output: list[Tensor]) -> set[object]:
    return set(output).union(*(labels for _, labels in terms))


def _sum_out(x: Tensor, labels: list[Tensor], needed: set[object]) -> Term:
    """Return the operand summed over the subscripts that nothing else has."""
    dims = [d for d, label in enumerate(labels) if label not in needed]
    if not dims:
        return x, labels
    return x.sum(dims), [label for label in labels if label in needed]


def _without(x: Tensor, labels: list[Tensor], label: Tensor) -> Term:
    """Return the operand summed over a subscript; where its size is 1 the type stays."""
    dim = labels.index(label)
    x = x.squeeze(dim) if x.shape[dim] == 1 else x.sum(dim)
    return x, [*labels[:dim], *labels[dim + 1 :]]


def _contract_pair(first: Term, second: Term, needed: set[object]) -> Term:
    """Return the product of two operands, summed over the subscripts that nothing after them has."""
    a, labels_a = _sum_out(*first, needed | set(second[1]))
    b, labels_b = _sum_out(*second, needed | set(first[1]))
    # Where one operand has size 1 it broadcasts: a sum over the subscript is then the other's own sum.
    for n in [n for n in labels_a if n in labels_b and n not in needed]:
        if 1 in (a.shape[labels_a.index(n)], b.shape[labels_b.index(n)]):
            a, labels_a = _without(a, labels_a, n)
            b, labels_b = _without(b, labels_b, n)
    both = [n for n in labels_a if n in labels_b]
    batch = [n for n in both if n in needed]
    summed = [n for n in both if n not in needed]
    free_a = [n for n in labels_a if n not in both]
    free_b = [n for n in labels_b if n not in both]
    if not summed and a.dtype is not b.dtype:
        # Without a sum it is a multiplication, which promotes.
        a, b = (x.to(promote_types(a.dtype, b.dtype)) for x in (a, b))
    check_types("einsum", a, b)

    def arranged(x: Tensor, labels: list[Tensor], order: list[Tensor]) -> Tensor:
        """Return the operand with its subscripts in another order."""
        return x.permute([labels.index(n) for n in order])

    if not summed:
        # An outer or elementwise product: (batch, A, 1) * (batch, 1, B).
        a = arranged(a, labels_a, [*batch, *free_a])
        b = arranged(b, labels_b, [*batch, *free_b])
        a = a.reshape((*a.shape, *(1,) * len(free_b)))
        b = b.reshape((*b.shape[: len(batch)], *(1,) * len(free_a), *b.shape[len(batch) :]))
        return a * b, [*batch, *free_a, *free_b]
    a = arranged(a, labels_a, [*batch, *free_a, *summed])
    b = arranged(b, labels_b, [*batch, *summed, *free_b])
    n, f = len(batch), len(free_a)
    sizes_a = tuple(a.shape[n : n + f])
    sizes_b = tuple(b.shape[n + len(summed) :])
    k = numel(tuple(a.shape[n + f :]))
    left = a.reshape((*a.shape[:n], numel(sizes_a), k))
    right = b.reshape((*b.shape[:n], k, numel(sizes_b)))
    out = batched(left, right)
    return out.reshape((*out.shape[:n], *sizes_a, *sizes_b)), [*batch, *free_a, *free_b]
