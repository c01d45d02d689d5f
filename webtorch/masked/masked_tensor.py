"""`webtorch.masked.MaskedTensor`: a tensor and a mask of its elements that count. Floor 6.

What an operator does to it follows from the op table: what is computed element by element keeps the mask; views and
movements go over data and mask alike; reductions are the functions of `webtorch.masked`. The gradient of a call is that
of its data, where they count.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from webtorch.aten.dispatch import OpOverload, Pullback
from webtorch.autograd.function import Function
from webtorch.dispatch.call import Args, Kwargs
from webtorch.functions import public as webtorch
from webtorch.functions.bind import NAMESPACES
from webtorch.ir.dtype import Scalar
from webtorch.ir.lines import user_depth
from webtorch.ops.layout import of_operands
from webtorch.ops.record import TABLE, Op
from webtorch.sparse.construction import sparse_coo_tensor, sparse_csr_tensor
from webtorch.tensors.engine import grad
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.formats import sparse_coo, sparse_csr, strided
from webtorch.tensors.modes import enable_grad
from webtorch.tensors.override import disabled, flat
from webtorch.tensors.tensor import Tensor

_LAYOUTS = (strided, sparse_coo, sparse_csr)
_NAMES = {a: op for op in TABLE.values() for a in op.aliases}


class MaskedTensor(Tensor):
    """A tensor with a mask of bools that says which of its elements count."""

    __torch_function__ = disabled  # type: ignore[assignment]
    # The gradient of a call is one operator, which computes it of the data.
    _pullbacks = True
    _masked_data: Tensor
    _masked_mask: Tensor

    def __new__(cls, data: Tensor, mask: Tensor, requires_grad: bool = False) -> MaskedTensor:
        """Return a tensor with copies of `data` and `mask`, outside the history of `data`."""
        for name, x in (("data", data), ("mask", mask)):
            if is_masked_tensor(x) or not isinstance(x, Tensor):
                raise TypeError(f"{name} must be a Tensor")
        if data.requires_grad:
            warnings.warn(
                "It is not recommended to create a MaskedTensor with a tensor that requires_grad. "
                "To avoid this, you can use data.detach().clone()",
                UserWarning,
                stacklevel=user_depth(),
            )
        if requires_grad and not data.dtype.has_gradient:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        data, mask = _fitting(data.detach(), mask)
        _check(data, mask)
        return _made(data.clone(), mask.clone(), requires_grad)

    def __init__(self, data: Tensor, mask: Tensor, requires_grad: bool = False) -> None: ...

    def get_data(self) -> Tensor:
        """Return the data, those that do not count too; gradients of it are masked."""
        return _Data.apply(self)

    def get_mask(self) -> Tensor:
        """Return the mask: True where an element counts."""
        return self._masked_mask

    def to_tensor(self, value: Scalar) -> Tensor:
        """Return a tensor with `value` where nothing counts."""
        return self.get_data().masked_fill(~self._masked_mask, value)

    def contiguous(self, memory_format: MemoryFormat | None = None) -> Tensor:
        """Return it with data and mask in order."""
        return (
            self if self.is_contiguous() else self.clone(memory_format=webtorch.contiguous_format)
        )

    def to_dense(self, *_: object, **__: object) -> Tensor:
        """Return it with data and mask of all elements."""
        return _Laid.apply(self, strided)

    def to_sparse(self, *_: object, **__: object) -> Tensor:
        """Return it in coordinates, of the elements that count."""
        return _Laid.apply(self, sparse_coo)

    to_sparse_coo = to_sparse

    def to_sparse_csr(self, *_: object, **__: object) -> Tensor:
        """Return a matrix with its rows compressed, of the elements that count."""
        if self.ndim != 2:
            raise ValueError(
                f"Only 2D tensors can be converted to the SparseCsr layout but got shape: {self.shape}"
            )
        return _Laid.apply(self, sparse_csr)

    def __getitem__(self, index: Any) -> Tensor:
        return _Moved.apply(self, lambda x: x[index])

    def item(self) -> Any:
        """Return its only element, which must count."""
        if not self._masked_mask.item():
            raise ValueError("item: the element of a MaskedTensor does not count")
        return self._masked_data.item()

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides of the data."""
        return self._masked_data.stride(dim)

    def is_contiguous(self, memory_format: object = webtorch.contiguous_format) -> bool:
        """Whether the data lie in order."""
        if self.is_sparse:
            raise ValueError("MaskedTensors with sparse data do not have is_contiguous")
        return self._masked_data.is_contiguous(memory_format)

    def is_sparse_coo(self) -> bool:
        """Whether the data are in coordinates."""
        return self.layout is sparse_coo

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The layout of the data."""
        return self._masked_data.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """Whether the data are sparse."""
        return self.layout is not strided

    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether the data are rows that are compressed."""
        return self.layout is sparse_csr

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        if self.ndim == 0:
            counts = self._masked_mask.item()
            return f"MaskedTensor({_shown(self._masked_data.item()) if counts else '--'}, {counts})"
        data, mask = self._masked_data.to_dense(), self._masked_mask.to_dense()
        lines = _text(data.tolist(), mask.tolist()).split("\n")
        return "MaskedTensor(\n" + "\n".join(f"  {line}" for line in lines) + "\n)"

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        if isinstance(func, Pullback):
            return _pulled_back(func, args, kwargs or {})
        return _call(func, args, kwargs or {})


def masked_tensor(data: Tensor, mask: Tensor, requires_grad: bool = False) -> MaskedTensor:
    """Return a MaskedTensor of copies of data and mask, a leaf."""
    return MaskedTensor(data, mask, requires_grad)


def as_masked_tensor(data: Tensor, mask: Tensor) -> MaskedTensor:
    """Return a MaskedTensor with the history of `data`."""
    return _Masked.apply(data, mask)


def is_masked_tensor(obj: object, /) -> bool:
    """Whether something is a MaskedTensor."""
    return isinstance(obj, MaskedTensor)


def _shown(value: object) -> str:
    return f"{value:8.4f}" if isinstance(value, float) else str(value)


def _text(values: list[Any], counts: list[Any]) -> str:
    """Return nested lists of values as text, with "--" where nothing counts."""
    if values and isinstance(values[0], list):
        rows = [_text(v, c) for v, c in zip(values, counts, strict=True)]
        lines = ["\n".join(f"  {line}" for line in row.split("\n")) for row in rows]
        return "[\n" + ",\n".join(lines) + "\n]"
    shown = [_shown(v) for v in values]
    width = max((len(v) if c else 8 for v, c in zip(shown, counts, strict=True)), default=0)
    parts = [v if c else "--".rjust(width) for v, c in zip(shown, counts, strict=True)]
    return f"[{', '.join(parts)}]"


def _made(data: Tensor, mask: Tensor, requires_grad: bool = False) -> MaskedTensor:
    """Return a MaskedTensor that holds these tensors themselves."""
    self: MaskedTensor = Tensor._make_wrapper_subclass(
        MaskedTensor, data.shape, dtype=data.dtype, device=data.device
    )
    self._masked_data, self._masked_mask = data, mask
    if requires_grad:
        self.requires_grad_(True)
    return self


def _check(data: Tensor, mask: Tensor) -> None:
    if data.layout not in _LAYOUTS:
        raise TypeError(f"data layout of {data.layout} is not supported.")
    if data.layout is not strided and data._nnz() == mask._nnz() and not _same_places(data, mask):
        raise ValueError(_OTHER_PLACES[data.layout])
    if mask.dtype is not webtorch.bool:
        raise TypeError("mask must have dtype bool.")
    if data.ndim != mask.ndim:
        raise ValueError("data.dim() must equal mask.dim()")
    if data.shape != mask.shape:
        raise ValueError("data.size() must equal mask.size()")


_OTHER_PLACES = {
    sparse_coo: "data and mask are both sparse COO tensors but do not have the same indices.",
    sparse_csr: "data and mask are both sparse CSR tensors but do not share either crow or col indices.",
}


def _fitting(data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return data and mask; sparse data have the places of the mask."""
    if data.layout is not mask.layout:
        raise TypeError("data and mask must have the same layout.")
    if data.layout is sparse_coo:
        data, mask = data.coalesce(), mask.coalesce()
    if data.layout in _OTHER_PLACES and data._nnz() != mask._nnz():
        data = data.to_dense().sparse_mask(mask)
    return data, mask


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of a sparse tensor."""
    if x.layout is sparse_coo:
        return (x.indices(),)
    return x.crow_indices(), x.col_indices()


def _same_places(a: Tensor, b: Tensor) -> bool:
    return all(webtorch.equal(x, y) for x, y in zip(_parts(a), _parts(b), strict=True))


def _masks_match(a: object, b: object) -> bool:
    """Whether two masked tensors have one mask; others fit any."""
    if not (isinstance(a, MaskedTensor) and isinstance(b, MaskedTensor)):
        return True
    return _tensors_match(a._masked_mask, b._masked_mask)


def _tensors_match(
    a: Tensor, b: Tensor, exact: bool = True, rtol: float = 1e-05, atol: float = 1e-08
) -> bool:
    """Whether two tensors have the same elements, or those close to each other, in one layout."""
    if is_masked_tensor(a) or is_masked_tensor(b):
        raise ValueError("Neither `a` nor `b` can be a MaskedTensor.")
    if a.layout is not b.layout:
        raise ValueError(f"`a` and `b` must have the same layout. Got {a.layout} and {b.layout}")
    if a is b:
        return True
    b = b.to(a.dtype)
    if a.layout is not strided:
        return _same_places(a, b) and _tensors_match(a.values(), b.values(), exact)
    if a.ndim != b.ndim:
        return False
    if exact:
        return bool((a == b).all())
    return bool(webtorch.allclose(a, b, rtol=rtol, atol=atol))


def _with_values(like: Tensor, values: Tensor) -> Tensor:
    """Return a sparse tensor with other values in its places."""
    if like.layout is sparse_coo:
        return sparse_coo_tensor(like.indices(), values, like.shape, is_coalesced=True)
    return sparse_csr_tensor(like.crow_indices(), like.col_indices(), values, like.shape)


# ---- calls
# ------------------------------------------------------------------------------------------------------------


def _mapped(values: Any, of: Callable[[MaskedTensor], Tensor]) -> Any:
    """Return arguments with what `of` gives in the places of masked tensors."""
    if isinstance(values, (list, tuple)):
        return type(values)([_mapped(x, of) for x in values])
    if isinstance(values, dict):
        return {k: _mapped(x, of) for k, x in values.items()}
    return of(values) if isinstance(values, MaskedTensor) else values


def _data(x: MaskedTensor) -> Tensor:
    return x._masked_data


def _mask(x: MaskedTensor) -> Tensor:
    return x._masked_mask


def _wrapped(data: Any, mask: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return type(data)([_wrapped(d, m) for d, m in zip(data, mask, strict=True)])
    return _made(data, mask)


def _call(func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Return what an operator gives of masked tensors; NotImplemented where it means nothing for these."""
    name = func._opname
    writes = name.endswith("_") and not name.startswith("__")
    stem = name.rstrip("_").removeprefix("_")
    entry = TABLE.get(stem) or _NAMES.get(stem)
    if name in _OWN:
        return _OWN[name](*args, **kwargs)
    pointwise = entry is not None and _is_pointwise(entry)
    is_masked = stem == "all" or f"masked_{stem}" in TABLE
    if is_masked and not writes and (entry is None or entry.family != "elementwise"):
        return _by_mask(stem, func, args, kwargs)
    made = entry is not None and (entry.factory or entry.family == "creation")
    if made and isinstance(args[0], MaskedTensor):
        return _made(func(args[0]._masked_data, *args[1:], **kwargs), args[0]._masked_mask)
    if pointwise:
        return _pointwise(func, args, kwargs, writes)
    if _moves(func):
        data, mask = (func(*_mapped(args, of), **_mapped(kwargs, of)) for of in (_data, _mask))
        return args[0] if writes else _wrapped(data, mask)
    warnings.warn(
        f"{func} is not implemented in __torch_dispatch__ for MaskedTensor: webtorch.masked has no function of this "
        "name, and it is not computed element by element. Call it with get_data() or to_tensor(value).",
        UserWarning,
        stacklevel=user_depth(),
    )
    return NotImplemented


def _moves(func: OpOverload) -> bool:
    """Whether an operator's results are elements of its operands."""
    entry = TABLE.get(func._opname.rstrip("_"))
    return func.is_view or (entry is not None and entry.family == "movement")


def _is_pointwise(entry: Op) -> bool:
    """Whether an operation's results are those of its operands' elements, one by one."""
    if entry.family == "elementwise":
        return True
    return entry.family == "composite" and (entry.inplace or entry.layout is of_operands)


def _pointwise(func: OpOverload, args: Args, kwargs: Kwargs, writes: bool) -> Tensor:
    masked = [x for x in flat((*args, *kwargs.values())) if isinstance(x, MaskedTensor)]
    first = masked[0]
    if not all(_masks_match(first, x) for x in masked):
        raise ValueError(
            "Input masks must match. If you need support for this, please open an issue on Github."
        )
    if first.is_sparse:
        for x in flat(args):
            if isinstance(x, Tensor) and x.layout is first.layout:
                other = x._masked_data if isinstance(x, MaskedTensor) else x
                if not _same_places(first._masked_data, other):
                    raise ValueError(
                        f"{str(first.layout).rpartition('.')[2]} indices must match. If you need support for this, "
                        "please open an issue on Github."
                    )
        args = tuple(x.coalesce().values() if type(x) is not MaskedTensor and isinstance(x, Tensor)
                and x.layout is sparse_coo else x for x in args)  # fmt: skip
        values = func(*_mapped(args, lambda x: x._masked_data.values()), **kwargs)
        data = _with_values(first._masked_data, values)
    else:
        data = func(*_mapped(args, _data), **_mapped(kwargs, _data))
    if writes:
        args[0]._masked_data = data
        return args[0]
    mask = first._masked_mask
    return _made(data, mask if first.is_sparse else mask.expand(data.shape))


def _all(x: Tensor, dim: Any = None, keepdim: bool = False, mask: Any = None) -> Tensor:
    filled = x.masked_fill(~mask, True)
    return filled.all() if dim is None else filled.all(dim, keepdim)


def _by_mask(stem: str, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Call the function of `webtorch.masked` of an operator's name."""
    x = args[0]
    named = dict(zip([a.name for a in func._schema.arguments[1:]], args[1:], strict=False)) | kwargs
    if "p" in named:
        named["ord"] = named.pop("p")
    named = {k: v for k, v in named.items() if k != "half_to_float"}
    function: Callable[..., Any] = NAMESPACES["masked"].get(stem, _all)
    dim = named.get("dim")
    if "keepdim" not in inspect.signature(function).parameters:
        return _made(function(x._masked_data, mask=x._masked_mask, **named), x._masked_mask)
    if dim in (None, [], ()):
        data, mask = x._masked_data, x._masked_mask
        if x.is_sparse:
            data, mask = data.values(), mask.values()
        found = function(data, mask=mask, **named)
        if x.is_sparse and stem in ("argmax", "argmin"):
            found = _place(x._masked_data, found)
        return _made(found, mask.any().expand(found.shape))
    if x.is_sparse:
        warnings.warn(
            f"The sparse version of {stem} is not implemented in reductions.",
            stacklevel=user_depth(),
        )
        return NotImplemented
    counts = x._masked_mask
    for d in sorted(
        {d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)}, reverse=True
    ):
        counts = counts.any(d, bool(named.get("keepdim")))
    return _made(function(x._masked_data, mask=x._masked_mask, **named), counts)


def _place(x: Tensor, at: Tensor) -> Tensor:
    """Return where the element of a sparse tensor is that stands at a position among its values."""
    if x.layout is not sparse_coo:
        raise NotImplementedError(f"argmax of a MaskedTensor of layout {x.layout}: use to_dense()")
    found, strides = x.indices()[:, at.long()], webtorch.tensor(x.shape).flip(0).cumprod(0).flip(0)
    steps = webtorch.cat([strides[1:], webtorch.ones(1, dtype=strides.dtype)])
    return (found * steps.to(found.device)).sum()


def _where(condition: Tensor, a: Tensor, b: Tensor) -> MaskedTensor:
    """The elements of two masked tensors, with their masks; all elements of another tensor count."""
    both = [
        x if isinstance(x, MaskedTensor) else _made(x, webtorch.ones_like(x, dtype=webtorch.bool))
        for x in (a, b)
    ]
    (data, mask), (other, others) = ((x._masked_data, x._masked_mask) for x in both)
    return _made(webtorch.where(condition, data, other), webtorch.where(condition, mask, others))


def _copied(x: MaskedTensor, other: object, *_: object) -> MaskedTensor:
    if not _masks_match(x, other):
        raise ValueError("args[0] mask and args[1] mask must match but do not")
    x._masked_data.copy_(_mapped(other, _data))
    return x


# What no kind of operation says.
_OWN: dict[str, Callable[..., Any]] = {"where": _where, "copy_": _copied, "positive": lambda x: x}


# ---- gradients
# ------------------------------------------------------------------------------------------------------------


def _pulled_back(func: Pullback, args: Args, kwargs: Kwargs) -> object:
    """Return the gradients of an operator's tensors, of masked ones masked."""
    grads, needs, *rest = args
    wanted: list[Tensor] = []
    needed = iter(needs)

    def known(x: Any) -> Any:
        """Return an operand; of one that needs a gradient, data that record what becomes of them."""
        if isinstance(x, (list, tuple)):
            return type(x)([known(part) for part in x])
        if not isinstance(x, Tensor):
            return x
        need, data = next(needed), _mapped(x, _data).detach()
        if func.operator._schema.is_mutable and not wanted:
            data = data.clone()
        if need:
            wanted.append(data.requires_grad_(True))
            if func.operator._schema.is_mutable:
                data = data.clone()
        return _made(data, x._masked_mask) if isinstance(x, MaskedTensor) else data

    with enable_grad():
        given, options = known(tuple(rest)), {k: known(x) for k, x in kwargs.items()}
        out = _call(func.operator, given, options)
    results = out if isinstance(out, (list, tuple)) else [out]
    sent = [
        (x._masked_data, _filled(g)) for x, g in zip(results, grads, strict=False) if g is not None
    ]
    roots = [x for x, _ in sent]
    found = iter(grad(roots, wanted, [g for _, g in sent], retain_graph=True, allow_unused=True))
    moved = _moves(func.operator)
    masks = [_counts(g) for g in grads if g is not None] if moved else []
    reached = iter(grad(roots, wanted, masks, allow_unused=True)) if moved else iter(())
    operands = [x for x in flat((*rest, *kwargs.values())) if isinstance(x, Tensor)]
    return [
        _masked_as(next(found), next(reached, None), x) if need else None
        for x, need in zip(operands, needs, strict=True)
    ]


def _counts(g: Tensor) -> Tensor:
    """Return ones where a gradient counts."""
    mask = g._masked_mask if isinstance(g, MaskedTensor) else webtorch.ones_like(g)
    return mask.to(g.dtype)


def _masked_as(g: Tensor | None, reached: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the gradient of an operand, which counts where this does, and of what moves where it came from."""
    if g is None or not isinstance(x, MaskedTensor):
        return g
    if x.is_sparse and g.layout is strided:
        g = g.sparse_mask(x._masked_mask)
    return _made(g, x._masked_mask if reached is None else reached.bool())


def _filled(g: Tensor) -> Tensor:
    """Return a gradient with zeros where it does not count."""
    if not isinstance(g, MaskedTensor):
        return g
    data, mask = g._masked_data, g._masked_mask
    if g.is_sparse:
        return _with_values(data, webtorch.where(mask.values(), data.values(), 0))
    return webtorch.where(mask, data, 0)


class _Data(Function):
    """The data of a masked tensor."""

    @staticmethod
    def forward(ctx: Any, x: MaskedTensor) -> Tensor:
        """Return the data."""
        ctx.mask = x._masked_mask
        return x._masked_data.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        """Mask the gradient."""
        return g if is_masked_tensor(g) else _made(g, ctx.mask)


class _Masked(Function):
    """A masked tensor of data with their history."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, mask: Tensor) -> MaskedTensor:
        """Return copies of both as one."""
        ctx.leaf = data.is_leaf
        return MaskedTensor(data.detach(), mask)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Hand the gradient on: masked to a leaf, with zeros to functions, which know no masks."""
        return (g if ctx.leaf else _filled(g)), None


class _Moved(Function):
    """A function of tensors, over data and mask alike."""

    @staticmethod
    def forward(ctx: Any, x: MaskedTensor, function: Callable[[Tensor], Tensor]) -> MaskedTensor:
        """Return what it gives of both."""
        ctx.data, ctx.mask, ctx.function = x._masked_data, x._masked_mask, function
        return _made(function(ctx.data), function(ctx.mask))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Bring the gradient to where the elements came from."""
        data = ctx.data.detach().requires_grad_(True)
        with enable_grad():
            out = ctx.function(data)
        found = grad([out], [data], [_filled(g)], retain_graph=True)[0]
        reached = grad([out], [data], [_counts(g)])[0]
        return _made(found, reached.bool()), None


class _Laid(Function):
    """A masked tensor in another layout."""

    @staticmethod
    def forward(ctx: Any, x: MaskedTensor, layout: Layout) -> MaskedTensor:
        """Return the elements that count, or all of them."""
        ctx.mask = x._masked_mask
        return _in_layout(x, layout, x._masked_mask)

    @staticmethod
    def backward(ctx: Any, g: MaskedTensor) -> tuple[Tensor, None]:
        """Bring the gradient into the layout of the operand."""
        return _in_layout(g, ctx.mask.layout, ctx.mask), None


def _in_layout(x: MaskedTensor, layout: Layout, mask: Tensor) -> MaskedTensor:
    data = x._masked_data
    if data.layout is layout:
        return _made(data, x._masked_mask)
    if layout is strided:
        return _made(data.to_dense(), x._masked_mask.to_dense())
    if mask.layout is not layout:
        mask = mask.to_sparse().coalesce() if layout is sparse_coo else mask.to_sparse_csr()
    return _made(data.sparse_mask(mask), mask)
