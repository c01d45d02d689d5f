"""Names of torch.masked with an underscore: masks in the layout of an input, and values that change nothing."""

from __future__ import annotations

import inspect
import math
from typing import Any

from webtorch.functions import masked
from webtorch.functions import public as webtorch
from webtorch.functions.reduce import Dims, wrap_dims
from webtorch.masked.masked_tensor import MaskedTensor
from webtorch.ops.record import TABLE
from webtorch.sparse.construction import sparse_coo_tensor
from webtorch.tensors.tensor import Tensor


def _reduction_identity(op_name: str, input: Tensor, *args: object) -> Tensor | None:
    """Return the value that changes nothing in a reduction, as a tensor; None where there is none."""
    name, dtype = op_name.rpartition(".")[2], input.dtype
    op = TABLE.get(f"masked_{name}")
    identity = None if op is None else op.identity
    narrow = dtype is webtorch.bool or (dtype.is_complex and name != "logsumexp")
    if identity is None or (narrow and identity in (masked.lowest, masked.highest)):
        raise NotImplementedError(f"identity of {name} on {dtype} input")
    value = identity(input, *args)
    if value is None:
        return None
    if math.isnan(value) and not dtype.is_floating_point:
        dtype = webtorch.float32
    return webtorch.tensor(value, dtype=dtype, device=input.device)


def _canonical_dim(dim: Dims, ndim: int) -> tuple[int, ...]:
    """Return the sorted dims that `dim` names: all of them for None and (), none for []."""
    return () if dim == [] else wrap_dims("masked", dim, ndim)


def _input_mask(
    input: Tensor, *args: object, mask: Tensor | None = None, **kwargs: object
) -> Tensor:
    """Return a mask as bools of the shape and the layout of the input."""
    if mask is None:
        raise ValueError("_input_mask requires explicit mask")
    if mask.ndim > input.ndim:
        raise IndexError(
            "_input_mask expected broadcastable mask (got mask dimensionality higher than of the input)"
        )
    whole = mask.to_dense().expand(input.shape)
    if input.layout is webtorch.sparse_csr:
        whole = whole.to_sparse_csr()
    elif input.layout is webtorch.sparse_coo:
        whole = whole.to_sparse(input.sparse_dim()).coalesce()
    return whole.to(dtype=webtorch.bool)


def _where(mask: Tensor, input: Tensor, fill_value: Tensor) -> Tensor:
    """Return the input where the mask is True; of a sparse one no more than these places is left."""
    if mask.layout is webtorch.strided:
        return webtorch.where(mask, input, fill_value)
    if mask.layout is webtorch.sparse_csr:
        return _where(mask.to_sparse_coo(), input.to_sparse_coo(), fill_value).to_sparse_csr()
    if mask.layout is not webtorch.sparse_coo:
        raise ValueError(
            f"_where expects strided or sparse COO or sparse CSR tensor but got {mask.layout}"
        )
    mask = mask.coalesce()
    keep = mask.values()
    if keep.ndim > 1:
        keep = keep.flatten(1).any(1)
    places, seen = mask.indices()[:, keep], mask.values()[keep]
    values = webtorch.where(seen, input.to_dense()[tuple(places)], fill_value)
    return sparse_coo_tensor(places, values, input.shape, is_coalesced=True)


def _combine_input_and_mask(op: Any, input: Any, mask: Any, *args: object) -> Tensor:
    """Return an input with what changes nothing to an operation where the mask is False."""
    if mask is None and isinstance(input, MaskedTensor):
        input, mask = input.get_data(), input.get_mask()
    if mask is None:
        return input
    name = op if isinstance(op, str) else op.__name__
    value = _reduction_identity(name, input, *args)
    assert value is not None
    return webtorch.where(_input_mask(input, mask=mask), input, value)


def _output_mask(op: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return where a masked function gives something: of a reduction, where anything counts."""
    whole, options = _input_mask(input, *args, **kwargs), inspect.signature(op).parameters
    if "keepdim" not in options:
        return whole
    if "ord" in options:
        args = args[1:]
    dim = args[0] if args else kwargs.get("dim")
    if dim in ((), []):
        return whole
    if dim is None:
        dim = tuple(range(input.ndim))
    return whole.any(dim, bool(kwargs.get("keepdim", False)))
