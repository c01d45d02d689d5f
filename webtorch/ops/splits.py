"""Which dims of an operation's operands may lie in parts, each computed by itself. May import nothing of the package.

A rule is given a call's arguments by name and says what it means as an equation: a label for each dim of each tensor,
as in `einsum`. Where all that has a label is split there, the parts of the results are those of the operands' parts.
A label that no result has is reduced, and its parts are still to be (`partial`). `distributed.tensor` reads this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
# None: a dim that lies whole, in all processes.
Labels = tuple[object, ...]
# How parts of what is reduced are put together: by "sum", "avg", "max", "min" or "product"; "": not at all.
Kind = str


@dataclass(frozen=True, slots=True)
class Split:
    """A call as an equation: the labels of its tensors, in the order of its arguments, and those of its results, of
    which the last stand for all further ones.

    `added` are operands that are added to what is reduced. `linear` are groups of operands in which it is linear
    together. `moves`: results are elements of the operands. `filled`: no part may be empty, as who has it would raise
    and leave the others waiting.
    """

    operands: tuple[Labels, ...]
    results: tuple[Labels, ...]
    whole: frozenset[object] = frozenset()
    partial: Kind = ""
    added: frozenset[int] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    moves: bool = False
    filled: bool = False


# None: nothing is known of this call.
Rule = Callable[[Arguments], Split | None]


def tensors_in(values: object) -> Iterator[Any]:
    """Give the tensors among arguments, in order."""
    if isinstance(values, (list, tuple)) and not hasattr(values, "numel"):
        for x in values:
            yield from tensors_in(x)
    elif isinstance(values, Mapping):
        for x in values.values():
            yield from tensors_in(x)
    elif hasattr(values, "shape") and hasattr(values, "dtype"):
        yield values


def _aligned(shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], int]:
    """Return labels of operands that are broadcast, counted from the first dim of the result, and its rank."""
    rank = max(map(len, shapes), default=0)
    sizes = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            sizes[d] = size if sizes[d] == 1 else sizes[d]
    return [
        tuple([None if size == 1 and sizes[d] != 1 else d for d, size in enumerate(s, rank - len(s))])
        for s in shapes
    ], rank  # fmt: skip


def aligned(arguments: Arguments) -> Split:
    """Element by element, of operands that are broadcast."""
    labels, rank = _aligned([tuple(x.shape) for x in tensors_in(arguments)])
    return Split(tuple(labels), (tuple(range(rank)),))


def _dims(value: Any, rank: int) -> set[int]:
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return set(range(rank))
    values = [value] if isinstance(value, int) else value
    return {d % max(rank, 1) for d in values if isinstance(d, int)}


def along(*names: str, moves: bool = False) -> Rule:
    """Element by element but along some dims, which parameters of these names say; results have the same dims."""

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        labels, rank = _aligned([tuple(x.shape) for x in tensors_in(arguments)])
        values = [arguments.get(n) for n in names]
        whole = set().union(*[_dims(v, rank) for v in values])
        return Split(tuple(labels), (tuple(range(rank)),), frozenset(whole), moves=moves)

    return rule


def reduces(kind: Kind = "", linear: bool = False) -> Rule:
    """Dims are reduced: those that `dim` says, or all."""

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        (x, *others) = tensors_in(arguments)
        if others or not isinstance(arguments.get("dim"), (int, list, tuple, type(None))):
            return None
        rank = len(x.shape)
        gone = _dims(arguments.get("dim"), rank)
        if arguments.get("keepdim"):
            result: Labels = tuple([None if d in gone else d for d in range(rank)])
        else:
            result = tuple([d for d in range(rank) if d not in gone])
        whole = frozenset() if kind else frozenset(gone)
        groups = (frozenset((0,)),) if linear else ()
        return Split((tuple(range(rank)),), (result,), whole, kind, linear=groups)

    return rule


def norm_over(name: str) -> Rule:
    """As the first operand, whose last dims, those of the shape `name`, lie whole; the others are of these dims."""

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        (x, *others) = tensors_in(arguments)
        shape = arguments.get(name)
        count, rank = 1 if isinstance(shape, int) else len(shape or ()), len(x.shape)
        labels = tuple(range(rank))
        last = [labels[rank - len(o.shape) :] for o in others]
        return Split((labels, *last), (labels,), frozenset(labels[rank - count :]))

    return rule


def equation(text: str) -> Rule:
    """What `text` says, as in einsum: an operand for each of the first parameters, those that are no tensors left out.

    Labels in upper case lie whole, "..." are dims that are broadcast, "*" are further dims that lie whole. An operand
    that begins with "+" is added; with nothing behind it it is broadcast to the result.
    """
    left, _, right = text.partition("->")
    terms = left.split(",")

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        values = list(arguments.values())
        given = [(t, x) for t, x in zip(terms, values, strict=False) if hasattr(x, "shape")]
        if len(given) != sum(1 for _ in tensors_in(arguments)):
            return None
        free = 0
        for term, x in given:
            named = sum(c.isalpha() for c in term)
            if "..." in term or "*" in term:
                free = max(free, len(x.shape) - named)
                if len(x.shape) < named:
                    return None
            elif term != "+" and named != len(x.shape):
                return None

        def labels(term: str, rank: int) -> Labels:
            """Return the labels of one term for a tensor of some dims."""
            found: list[object] = []
            count = rank - sum(c.isalpha() for c in term)
            for part in term.replace("...", "."):
                if part == ".":
                    found += range(free - count, free)
                elif part == "*":
                    found += [("*", i) for i in range(count)]
                else:
                    found.append(part)
            return tuple(found)

        result = labels(right, free + sum(c.isalpha() for c in right))
        operands, added = [], set()
        for i, (term, x) in enumerate(given):
            rank = len(x.shape)
            if term.startswith("+"):
                added.add(i)
            bare = term.lstrip("+")
            every = labels(bare, rank) if bare else result[len(result) - rank :]
            # What is broadcast lies whole.
            is_one = [not isinstance(k, str) or not bare for k in every]
            operands.append(tuple([
                None if s == 1 and one else k for k, s, one in zip(every, x.shape, is_one, strict=True)
            ]))  # fmt: skip
        whole: set[object] = {k for ks in (*operands, result) for k in ks if isinstance(k, tuple)}
        whole |= {c for c in text if c.isupper()}
        factors = [frozenset((i,)) for i in range(len(operands)) if i not in added]
        linear = factors if not added else []
        return Split(
            tuple(operands), (result,), frozenset(whole), "sum", frozenset(added), tuple(linear)
        )

    return rule


def of_loss(arguments: Arguments) -> Split | None:
    """Element by element, then reduced as `reduction` says."""
    found, reduction = aligned(arguments), arguments.get("reduction", "mean")
    if reduction == "none":
        return found
    kind = {"mean": "avg", "sum": "sum"}.get(reduction, "")
    whole = frozenset() if kind else frozenset(found.results[0])
    return Split(found.operands, ((),), whole, kind)


def joins(arguments: Arguments) -> Split | None:
    """Operands of a list one after the other along `dim`."""
    shapes = [tuple(x.shape) for x in tensors_in(arguments)]
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        return None
    labels = tuple(range(rank))
    every = frozenset(range(len(shapes)))
    return Split((labels,) * len(shapes), (labels,), frozenset({arguments.get("dim", 0) % rank}),
                 linear=(every,), moves=True)  # fmt: skip


def stacks(arguments: Arguments) -> Split | None:
    """Operands of a list side by side along a new `dim`."""
    shapes = [tuple(x.shape) for x in tensors_in(arguments)]
    labels: Labels = tuple(range(len(shapes[0])))
    at = arguments.get("dim", 0) % (len(labels) + 1)
    every = frozenset(range(len(shapes)))
    return Split(
        (labels,) * len(shapes), ((*labels[:at], None, *labels[at:]),), linear=(every,), moves=True
    )


def of_matmul(arguments: Arguments) -> Split | None:
    """A product of matrices or vectors, batched by all further dims."""
    ranks = [len(x.shape) for x in tensors_in(arguments)]
    left, right = ("k" if rank == 1 else "" for rank in ranks)
    text = f"{left or '...mk'},{right or '...kn'}->"
    if not (left and right):
        text += "..." + ("" if left else "m") + ("" if right else "n")
    return equation(text)(arguments)


def of_select(arguments: Arguments) -> Split | None:
    """Places along `dim`, in the order of `index`."""
    x, index = tensors_in(arguments)
    rank = len(x.shape)
    if len(index.shape) != 1 or not rank:
        return None
    at, labels = arguments["dim"] % rank, tuple(range(rank))
    result = (*labels[:at], "index", *labels[at + 1 :])
    return Split((labels, ("index",)), (result,), frozenset({at}), linear=(frozenset((0,)),))


def of_embedding(arguments: Arguments) -> Split | None:
    """Rows of `weight` at the places `input`."""
    if arguments.get("max_norm") is not None or arguments.get("sparse"):
        return None
    places = [("place", d) for d in range(len(arguments["input"].shape))]
    whole = {"row", *(places if arguments.get("scale_grad_by_freq") else ())}
    named = {"input": tuple(places), "weight": ("row", "column")}
    operands = tuple([named[n] for n in arguments if n in named])
    return Split(operands, ((*places, "column"),), frozenset(whole))


def of_attention(arguments: Arguments) -> Split | None:
    """Attention of queries (.., L, E) to keys (.., S, E): heads and examples, and queries that see all keys."""
    if arguments.get("dropout_p"):
        return None
    ends = {"query": ("L", "E"), "key": ("S", "E"), "value": ("S", "V"), "attn_mask": ("L", "S")}
    given = [(x, ends[n]) for n, x in arguments.items() if n in ends and x is not None]
    batch, count = _aligned([tuple(x.shape[:-2]) for x, _ in given])
    operands = [
        (*labels, *(None if n == "attn_mask" and s == 1 else k for k, s in zip(end, x.shape[-2:], strict=True)))
        for labels, (x, end), n in zip(batch, given, [n for n in arguments if n in ends], strict=False)
    ]  # fmt: skip
    whole = {"E", "S", "V"} | ({"L"} if arguments.get("is_causal") else set())
    return Split(tuple(operands), ((*range(count), "L", "V"),), frozenset(whole))


def by_parts(arguments: Arguments) -> Split | None:
    """What it is made of, other entries, is asked instead."""
    return None


def of_where(arguments: Arguments) -> Split | None:
    """Element by element, given both values; places of what is true depend on all."""
    return None if arguments.get("other") is None else aligned(arguments)


def same(arguments: Arguments) -> Split | None:
    """The elements of one tensor, as they are."""
    (x,) = tensors_in(arguments)
    labels = tuple(range(len(x.shape)))
    return Split((labels,), (labels,), linear=(frozenset((0,)),), moves=True)


def of_images(rank: int) -> Rule:
    """Examples and channels by themselves, of tensors with `rank` further dims, which lie whole."""

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        shapes = [tuple(x.shape) for x in tensors_in(arguments)]
        lead = shapes[0][: max(len(shapes[0]) - rank, 0)]
        if any(len(s) != len(shapes[0]) or s[: len(lead)] != lead for s in shapes):
            return None
        labels = (*range(len(lead)), *[None] * rank)
        return Split((labels,) * len(shapes), (labels,), filled=True)

    return rule


def of_convolution(rank: int) -> Rule:
    """Examples by themselves, and channels of the result where there are no groups."""

    def rule(arguments: Arguments) -> Split | None:
        """Return the call as an equation."""
        x, _, *bias = tensors_in(arguments)
        if len(x.shape) != rank + 2:
            return None
        inner: Labels = (None,) * (rank + 1)
        out = "out" if arguments.get("groups", 1) == 1 else None
        operands = (("n", *inner), (out, *inner), *[(out,) for _ in bias])
        return Split(operands, (("n", out, *inner[1:]),))

    return rule


def of_examples(arguments: Arguments) -> Split | None:
    """Examples of the first tensor by themselves; all else lies whole."""
    x, *others = tensors_in(arguments)
    labels: Labels = (0, *[None] * (len(x.shape) - 1))
    return Split((labels, *[(None,) * len(o.shape) for o in others]), (labels,))


def of_norm(arguments: Arguments) -> Split | None:
    """A norm over the dims that `dim` says, or all: powers add up, extremes are extremes."""
    order = arguments.get("ord", arguments.get("p"))
    order = 2.0 if order in (None, "fro") else order
    if not isinstance(order, (int, float)) or isinstance(order, bool):
        return None
    kinds = {0.0: "sum", float("inf"): "max", float("-inf"): "min"}
    return reduces(kinds.get(float(order), f"norm {float(order)}"))(arguments)


def of_einsum(arguments: Arguments) -> Split | None:
    """What the text says, of operands without diagonals."""
    text, *operands = arguments.get("args", (None,))
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(text, str) or "->" not in text or text != text.lower():
        return None
    text = text.replace(" ", "")
    terms = text.partition("->")[0].split(",")
    if len(terms) != len(operands) or any(
        len(set(t.replace(".", ""))) < len(t.replace(".", "")) for t in terms
    ):
        return None
    return equation(text)({str(i): x for i, x in enumerate(operands)})
