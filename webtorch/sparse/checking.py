"""Gradient checks of functions of sparse tensors, by a check of functions of dense ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from webtorch.functions import public as dense
from webtorch.sparse.layouts import coalesce, matching_as, sparse_mask
from webtorch.sparse.tensor import Pattern, SparseTensor
from webtorch.tensors.formats import sparse_coo


def as_sparse_gradcheck(gradcheck: Callable[..., object]) -> Callable[..., Any]:
    """Return a gradient check that takes sparse inputs and results: what it checks are their values.

    With masked=True of an input the values that it keeps; else it is checked with a value at every place.
    """

    @functools.wraps(gradcheck)
    def checked(func: Callable[..., object], inputs: object, **kwargs: object) -> Any:
        """Check the function of the values."""
        masked = kwargs.pop("masked", False)
        given: tuple[Any, ...] = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        patterns: list[Pattern | None] = []
        points = []
        for x in given:
            trained = isinstance(x, SparseTensor) and x.requires_grad
            source = (x.detach() if masked else _whole(x.detach())) if trained else x
            if trained and source.layout is sparse_coo:
                source = coalesce(source)
            patterns.append(source.pattern() if trained else None)
            points.append(dense.clone(source.kept).requires_grad_() if trained else x)

        def of_values(*args: Any) -> object:
            """Call the function with sparse tensors of the values."""
            out = func(
                *(a if p is None else p.filled(a) for a, p in zip(args, patterns, strict=True))
            )
            several = isinstance(out, (tuple, list))
            found = tuple([_values(y) for y in (out if several else (out,))])  # type: ignore[attr-defined]
            return found if several else found[0]

        return gradcheck(of_values, tuple(points), **kwargs)

    return checked


def _whole(x: SparseTensor) -> SparseTensor:
    """Return a sparse tensor with a value at each of its places, zeros where it had none."""
    shape = x._shape[: x.sparse_rank]
    ones = dense.ones(x._shape, device=x.device).to_sparse(len(shape))
    assert isinstance(ones, SparseTensor)
    return sparse_mask(x, matching_as(ones, x))


def _values(y: object) -> Any:
    if not isinstance(y, SparseTensor):
        return y
    return coalesce(y).values_of() if y.layout is sparse_coo else y.values_of()
