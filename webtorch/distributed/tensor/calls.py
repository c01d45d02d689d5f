"""What a call of a function does with DTensors: it is the call of their parts. Floor 5.

How parts must lie follows from the entry of the op table: its equation (`Op.splits`); of a view, from how it lies in
the memory of a row-major tensor. Of other entries all operands are replicated first, which is right and slower. A
function that is no entry is run, and its parts are asked about.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.distributed.device_mesh import DeviceMesh
from webtorch.distributed.tensor._dtensor_spec import Placements, local_layout
from webtorch.distributed.tensor.choosing import Choice, Operand, R, choose, lands
from webtorch.distributed.tensor.dtensor import (
    DTensor,
    Source,
    answer_calls,
    part_of,
    whole_gradient,
    wrapped,
)
from webtorch.distributed.tensor.placement_types import Partial, Placement, Shard
from webtorch.distributed.tensor.redistribute import is_linear, move, redistribute_local
from webtorch.functions import public as webtorch
from webtorch.ir.view import contiguous_strides
from webtorch.ops.record import TABLE, Composite, Elementwise, Op, inputs_of_slope, slope_kind
from webtorch.ops.splits import Split, aligned, by_parts, tensors_in
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import mode
from webtorch.tensors.override import Switch, asking_entries, flat, name_of
from webtorch.tensors.tensor import Tensor

_FACTS = ("fact", "place")


@functools.cache
def _operators() -> dict[str, Op]:
    """Return entries by the operators that they are: "__add__", "__radd__", "__iadd__"."""
    return {
        f"__{how}{op.operator}__": op
        for op in TABLE.values() if op.operator for how in ("", "r", "i")
    }  # fmt: skip


@functools.cache
def _aliases() -> dict[str, Op]:
    return {a: op for op in TABLE.values() for a in op.aliases}


def entry_of(callee: Callee) -> Op | None:
    """Return the entry of the table that a call is of."""
    if callee.op is not None:
        found: Op = callee.op
        return found
    name = callee.name
    if name in _operators():
        return _operators()[name]
    for one in (name, name.removesuffix("_")):
        if one in TABLE:
            return TABLE[one]
        if one in _aliases():
            return _aliases()[one]
    return None


def _is_written(name: str) -> bool:
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name.startswith("__i")
        or name == "__setitem__"
    )


def answer(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """Return what a function gives for DTensors."""
    side = {"__get__": "fget", "__set__": "fset"}.get(getattr(func, "__name__", ""), "")
    function = getattr(getattr(func, "__self__", None), side, None) if side else None
    callee: Callee | None = getattr(function or func, "callee", None)
    if callee is None:
        raise NotImplementedError(f"{name_of(func)}: there is no rule for a DTensor")
    if callee.role in _FACTS:
        with Switch(classes=False):
            return func(*args, **kwargs)
    if callee.role == "reader":
        return func(args[0].full_tensor(), *args[1:], **kwargs)
    if callee.role == "gradients":
        return _gradients(*args, **kwargs)
    own = DTensor.__dict__.get(callee.name)
    if own is not None and isinstance(args[0], DTensor) and not isinstance(own, property):
        return own(*args, **kwargs)
    if callee.role == "parts":
        with asking_entries():
            return callee.run(args, kwargs)
    if callee.role != "operation":
        raise NotImplementedError(
            f"{name_of(func)}: there is no rule for a DTensor; call it with to_local() or full_tensor()"
        )
    return Calls(func, callee, args, kwargs).run()


answer_calls(answer)


def _gradients(
    outputs: Any, inputs: Any, grad_outputs: Any = None, *rest: Any, **named: Any
) -> Any:
    """Return the gradients of DTensors, as DTensors."""

    def listed(x: Any) -> list[Any]:
        """Return one or several as a list."""
        return [x] if x is None or isinstance(x, Tensor) else list(x)

    outs, ins = listed(outputs), listed(inputs)
    roots = [
        x._as((R,) * x._spec.mesh.ndim)._local_tensor if isinstance(x, DTensor) and not x.dim() else part_of(x)
        for x in outs
    ]  # fmt: skip
    given = None if grad_outputs is None else [
        x._gradient_part(g) if isinstance(x, DTensor) and isinstance(g, DTensor) else part_of(g)
        for x, g in zip(outs, listed(grad_outputs), strict=True)
    ]  # fmt: skip
    found = grad(roots, [part_of(x) for x in ins], given, *rest, **named)
    return tuple([
        whole_gradient(g, x._spec) if g is not None and isinstance(x, DTensor) else g
        for x, g in zip(ins, found, strict=True)
    ])  # fmt: skip


class Calls:
    """One call of an operation."""

    def __init__(
        self, func: Callable[..., Any], callee: Callee, args: Args, kwargs: Kwargs
    ) -> None:
        self.func, self.callee, self.args, self.kwargs = func, callee, args, kwargs
        self.entry = entry_of(callee)
        self.tensors = [x for x in flat((*args, *kwargs.values())) if isinstance(x, Tensor)]
        first = next(x for x in self.tensors if isinstance(x, DTensor))
        self.mesh: DeviceMesh = first._spec.mesh
        self.is_loss = self.entry is not None and "reduction" in self.entry.signature
        self.written = _is_written(callee.name)
        if "out" in kwargs and kwargs["out"] is not None:
            self.tensors = [x for x in self.tensors if x is not kwargs["out"]]
        for x in self.tensors:
            with Switch(classes=False):
                self._check(x)
            if isinstance(x, DTensor):
                x._refresh()

    def _check(self, x: Tensor) -> None:
        if isinstance(x, DTensor):
            if x._spec.mesh != self.mesh:
                raise RuntimeError(
                    f"{self.callee.name}: got DTensors on different meshes, {self.mesh} and {x._spec.mesh}"
                )
        elif x.numel() != 1 and not state.implicit and not (state.losses and self.is_loss):
            raise RuntimeError(
                f"{self.callee.name}: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor "
                "before calling distributed operators! Please see "
                "https://docs.pytorch.org/docs/main/distributed.tensor.html#mixed-tensor-and-dtensor-operations for "
                "more details."
            )

    def placements(self, x: Tensor) -> Placements:
        """Return how an operand is placed on each dim of the mesh; a plain tensor is replicated."""
        return x._spec.placements if isinstance(x, DTensor) else (R,) * self.mesh.ndim

    def _part(self, x: Tensor, to: Placements, gradient: Placements | None = None) -> Tensor:
        """Return an operand's part by other placements."""
        return part_by(x, self.mesh, to, gradient)

    # ---- ways

    def run(self) -> Any:
        """Return what the call gives."""
        out = self.kwargs.pop("out", None)
        found = self._found()
        if out is None:
            return found
        results = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(out if isinstance(out, tuple) else (out,), results, strict=True):
            mine._local_tensor.copy_(theirs._as(mine._spec.placements)._local_tensor)
        return out

    def _found(self) -> Any:
        entry = self.entry
        if self.written and isinstance(self.args[0], DTensor) and self.args[0]._source is not None:
            return self._written_through(self.args[0]._source)
        special = _SPECIAL.get(self.callee.name if entry is None else entry.name)
        if special is not None:
            found = special(self)
            if found is not NotImplemented:
                return found
        if entry is not None and (entry.family == "random" or entry.drawn):
            return self._drawn()
        if entry is not None and entry.family == "creation":
            return self._made(entry)
        if entry is not None and entry.splits is by_parts:
            with asking_entries():
                return self.callee.run(self.args, self.kwargs)
        # Sizes of DTensors are asked for many times.
        with Switch(classes=False):
            split = self._split()
        if split is None and not self.written and len(self.tensors) == 1:
            found = self._viewed()
            if found is not NotImplemented:
                return found
        if split is not None:
            operands = [Operand(x._shape, self.placements(x)) for x in self.tensors]
            choice = choose(split, operands, self.mesh, self.written)
            if choice is not None:
                return self._split_up(split, choice)
        if self.written:
            return self._written_whole()
        return self._whole()

    def _split(self) -> Split | None:
        entry = self.entry
        if entry is None or entry.splits is None:
            return None
        if isinstance(entry, Elementwise) or entry.splits is aligned:
            split = aligned({"": self.tensors})
            return Split(split.operands, split.results, linear=_linear(self, entry))
        arguments = self.arguments()
        return None if arguments is None else entry.splits(arguments)

    def arguments(self) -> dict[str, Any] | None:
        """Return the arguments by name, in the order of the call's."""
        args = self.args
        if self.callee.name.startswith("__r"):
            args = (args[1], args[0], *args[2:])
        entry = self.entry
        if not isinstance(entry, Composite):
            return None
        named = {entry.other_names.get(k, k): v for k, v in self.kwargs.items()}
        try:
            bound = entry.parameters.bind(*args, **named)
        except TypeError:
            return None
        bound.apply_defaults()
        arguments: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            for n, v in _spread(entry, name, value):
                # What was given one by one comes before the list's default.
                if v is not None or n not in arguments:
                    arguments[n] = v
        order = [id(x) for x in tensors_in(arguments)]
        if sorted(order) != sorted(map(id, self.tensors)):
            return None
        # Operands go by the order in which the entry names them.
        known = {id(x): x for x in self.tensors}
        self.tensors = [known[i] for i in order]
        return arguments

    def _with(self, parts: dict[int, Any]) -> tuple[Args, Kwargs]:
        """Return the arguments with others in the places of tensors."""

        def changed(x: Any) -> Any:
            """Return an argument with parts."""
            if type(x) in (list, tuple):
                return type(x)([changed(one) for one in x])
            return parts[id(x)] if isinstance(x, Tensor) and id(x) in parts else x

        return changed(self.args), {k: changed(v) for k, v in self.kwargs.items()}

    def _call(self, parts: dict[int, Any]) -> Any:
        args, kwargs = self._with(parts)
        return self.func(*args, **kwargs)

    def _split_up(self, split: Split, choice: Choice) -> Any:
        """Call with parts."""
        split_dims = [
            i for i in range(self.mesh.ndim) if any(not r[i].is_replicate() for r in choice.results)
        ]
        parts: dict[int, Any] = {}
        for x, to in zip(self.tensors, choice.operands, strict=True):
            parts[id(x)] = self._part(x, to, gradient_of(to, split_dims))
        out = self._call(parts)
        if self.written:
            return self.args[0]
        sizes = {
            label: size
            for x, labels in zip(self.tensors, split.operands, strict=True)
            for label, size in zip(labels, x._shape, strict=True)
        }
        results = iter(range(1 << 30))

        def whole(local: Tensor) -> DTensor:
            """Return a result as a DTensor."""
            k = min(next(results), len(split.results) - 1)
            shape = [
                sizes[label]
                if label is not None and label not in split.whole and label in sizes
                else size
                for label, size in zip(split.results[k], local.shape, strict=True)
            ]
            lies = choice.results[k]
            if mode.grad and local.requires_grad and not all(map(is_linear, lies)):
                # Who sees a gradient of it sees that of the whole, which the parts cannot tell.
                reduced = tuple([p if is_linear(p) else R for p in lies])
                local, lies = move(local, self.mesh, shape, lies, reduced), reduced
            return wrapped(local, self.mesh, lies, shape)

        return mapped(out, whole)

    def _whole(self) -> Any:
        """Call with replicas."""
        to = (R,) * self.mesh.ndim
        out = self._call({id(x): self._part(x, to) for x in self.tensors})
        return mapped(out, lambda x: wrapped(x, self.mesh, to, x.shape))

    def _written_whole(self) -> Any:
        """Write to a replica, and its part to the first operand."""
        to, mine = (R,) * self.mesh.ndim, self.args[0]
        lies = mine._spec.placements
        if any(isinstance(p, Partial) for p in lies):
            raise RuntimeError(
                f"{self.callee.name}: in-place operations that require placement changes are not supported. The "
                f"operation would change placement from {lies} to {to}, which requires redistribution and breaks "
                "aliasing semantics. Please use the out-of-place version of this operation instead."
            )
        parts = {id(x): self._part(x, to) for x in self.tensors}
        whole = parts[id(mine)]
        if whole is mine._local_tensor:
            self._call(parts)
            if tuple(whole.shape) != tuple(mine.shape):
                mine._take_spec(wrapped(whole, self.mesh, to, whole.shape)._spec)
            return mine
        parts[id(mine)] = whole = whole.clone()
        self._call(parts)
        if tuple(whole.shape) != tuple(mine.shape):
            raise RuntimeError(
                f"{self.callee.name}: a DTensor that lies as {lies} cannot change its shape in place"
            )
        mine._local_tensor.copy_(move(whole, self.mesh, mine.shape, to, lies))
        return mine

    # ---- kinds

    def _viewed(self) -> Any:
        """Call with parts of what is viewed; NotImplemented where the result is no view."""
        (x,) = self.tensors
        assert isinstance(x, DTensor)
        shape, strides = tuple(x.shape), x._spec.stride
        views, is_view = self._views(x, strides), True
        if views is None:
            # A copy, whose elements lie as those of a view of what is row-major.
            strides, is_view = contiguous_strides(shape), False
            views = self._views(x, strides)
            if views is None:
                return NotImplemented
        now, found = x._spec.placements, [list(x._spec.placements) for _ in views]
        to = list(now)
        for i, p in enumerate(now):
            if not isinstance(p, Shard):
                continue
            count = 1
            for j, q in enumerate(now):
                count *= self.mesh.size(j) if q == p else 1
            dims = [
                lands(shape, strides, p.dim, v._shape, v._strides, v._offset, count) for v in views
            ]
            if None in dims:
                to[i] = R
            for mine, dim in zip(found, dims, strict=True):
                mine[i] = R if dim is None or to[i] is R else Shard(dim)
        local = self._part(x, tuple(to))
        at = self.mesh.get_coordinate()
        sizes = [
            tuple(v._shape) if at is None else tuple(local_layout(v._shape, self.mesh, mine, at)[0])
            for v, mine in zip(views, found, strict=True)
        ]
        parts = self._as_called(x, local, views, sizes)
        results = iter(range(len(views)))

        def whole(part: Tensor) -> DTensor:
            """Return a result as a DTensor."""
            k = next(results)
            shared = part._storage is x._local_tensor._storage
            if shared and not is_view:
                part = part.clone()
            made = wrapped(part, self.mesh, tuple(found[k]), views[k]._shape)
            if is_view and (x._source is not None or not shared):
                made._source = Source(x, functools.partial(self._again, x, k))
            return made

        return mapped(parts, whole)

    def _views(self, x: Tensor, strides: Sequence[int]) -> list[Tensor] | None:
        """Return what the call gives of a tensor that lies by these strides; None where that is no view."""
        like = webtorch.empty_strided(tuple(x.shape), tuple(strides), dtype=x.dtype, device="meta")
        try:
            found = [v for v in flat((self._call({id(x): like}),)) if isinstance(v, Tensor)]
        except RuntimeError:
            if tuple(strides) == contiguous_strides(tuple(x.shape)):
                raise
            return None
        same = all(v._storage is like._storage and v.dtype is x.dtype for v in found)
        return found if found and same else None

    def _again(self, x: DTensor, k: int, other: DTensor) -> DTensor:
        """Return this view of another tensor than `x`: the result of this number."""
        found = [v for v in flat((self._call({id(x): other}),)) if isinstance(v, DTensor)]
        return found[k]

    def _written_through(self, source: Source) -> Any:
        """Write to a view whose part is a copy, so that what it is a view of has the elements."""
        base, to = source.base, (R,) * self.mesh.ndim
        local = webtorch.empty_strided(
            tuple(base.shape), base._spec.stride, dtype=base.dtype, device=base._local_tensor.device
        )
        whole = wrapped(local.copy_(self._part(base, to)), self.mesh, to, base.shape)
        self.func(source.again(whole), *self.args[1:], **self.kwargs)
        base.copy_(whole)
        return self.args[0]

    def _as_called(
        self, x: Tensor, local: Tensor, views: Sequence[Tensor], sizes: Sequence[tuple[int, ...]]
    ) -> Any:
        """Return views of a part: by the call itself, or where that says sizes of the whole, of these sizes."""
        like = webtorch.empty(tuple(local.shape), dtype=x.dtype, device="meta")
        try:
            tried = [v for v in flat((self._call({id(x): like}),)) if isinstance(v, Tensor)]
            fits = [tuple(v._shape) for v in tried] == list(sizes)
        except (RuntimeError, ValueError, IndexError):
            fits = False
        if fits:
            return self._call({id(x): local})
        (view,), (size,) = views, sizes
        if any(s == 0 and m > 1 for s, m in zip(view._strides, view._shape, strict=True)):
            return local.expand(size)
        return local.reshape(size)

    def _made(self, entry: Op) -> Any:
        """Make a tensor like an operand, which lies as that does, or one of other sizes, in all processes."""
        x = self.tensors[0]
        lies = tuple([R if isinstance(p, Partial) else p for p in self.placements(x)])
        like = webtorch.empty(tuple(x.shape), dtype=x.dtype, device="meta")
        if len(self.tensors) > 1:
            return self._whole()
        if tuple(self._call({id(x): like}).shape) != tuple(x.shape) or "size" in entry.signature:
            lies = (R,) * self.mesh.ndim
            out = self._call({id(x): part_of(x)})
            return wrapped(out, self.mesh, lies, out.shape)
        out = self._call({id(x): part_of(x)})
        return wrapped(out, self.mesh, lies, x.shape)

    def _drawn(self) -> Any:
        """Draw the whole, and take this process's part: equal seeds give what one process draws."""
        x = self.args[0]
        whole = webtorch.empty_strided(
            tuple(x.shape), x._spec.stride, dtype=x.dtype, device=x._local_tensor.device
        )
        if any(y is not x for y in self.tensors) or (
            not self.written and not self.callee.name.endswith("_like")
        ):
            return self._whole()
        lies, every = self.placements(x), (R,) * self.mesh.ndim
        drawn = self._call({id(x): whole})
        part = redistribute_local(drawn, self.mesh, x.shape, every, lies)
        if not self.written:
            return wrapped(part, self.mesh, lies, x.shape)
        x._local_tensor.copy_(part)
        return x


class _State:
    # Whether plain tensors are taken as replicas (`implicit_replication`).
    implicit = False
    # Whether losses take targets that are plain tensors (`loss_parallel`).
    losses = False


state = _State()


# What an equation of labels does not say, by entries.
_SPECIAL: dict[str, Callable[[Calls], Any]] = {}


def specially(name: str) -> Callable[[Callable[[Calls], Any]], Callable[[Calls], Any]]:
    """Say how calls of an entry are computed; what gives NotImplemented goes the usual way."""

    def note(function: Callable[[Calls], Any]) -> Callable[[Calls], Any]:
        """Note the function."""
        _SPECIAL[name] = function
        return function

    return note


@specially("cpu")
@specially("webgpu")
def _on_device(call: Calls) -> Any:
    """Return a DTensor of the part on another device."""
    (x,) = call.tensors
    assert isinstance(x, DTensor)
    return x._like(call._call({id(x): x._local_tensor}))


def _spread(entry: Op, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Give an argument by its name; sizes that were given one by one go by that of their list."""
    kind = entry.parameters.parameters[name].kind
    if kind is inspect.Parameter.VAR_KEYWORD:
        yield from value.items()
    elif (
        kind is inspect.Parameter.VAR_POSITIONAL
        and not any(True for _ in tensors_in(value))
        and value
    ):
        # They are what the list beside them is.
        listed = value[0] if len(value) == 1 and isinstance(value[0], (list, tuple)) else value
        other = next((n for n in entry.parameters.parameters if n not in ("input", "args")), name)
        yield other, listed
    elif kind is not inspect.Parameter.VAR_POSITIONAL or value:
        yield name, value


def part_by(
    x: Tensor, mesh: DeviceMesh, to: Placements, gradient: Placements | None = None
) -> Tensor:
    """Return a tensor's part by other placements; one that is no DTensor is a replica."""
    if not isinstance(x, DTensor):
        return move(x, mesh, x.shape, (R,) * mesh.ndim, to, gradient)
    spec, local = x._spec, x._local_tensor
    if gradient is None or not (mode.grad and local.requires_grad) or spec.placements != to:
        return move(local, mesh, spec.shape, spec.placements, to, gradient)
    # What the gradient of a replica is still to be reduced to is reduced once for all calls.
    known = x.__dict__.setdefault("_moves", {})
    found = known.get(gradient)
    if found is None or found[0] != local._version or found[1] is not local:
        found = local._version, local, move(local, mesh, spec.shape, to, to, gradient)
        known[gradient] = found
    moved: Tensor = found[2]
    return moved


def gradient_of(to: Placements, split: Sequence[int]) -> Placements | None:
    """Return how the gradient of an operand comes: what is replicated where results are not has sums to be taken."""
    if not any(to[i].is_replicate() for i in split):
        return None
    found: list[Placement] = [R if isinstance(p, Partial) else p for p in to]
    for i in split:
        if to[i].is_replicate():
            found[i] = Partial()
    return tuple(found)


def mapped(out: Any, of: Callable[[Tensor], Any]) -> Any:
    """Return results with what `of` gives for tensors."""
    if isinstance(out, Tensor):
        return of(out)
    if isinstance(out, (tuple, list)):
        parts = [mapped(x, of) for x in out]
        return type(out)(*parts) if hasattr(out, "_fields") else type(out)(parts)
    return out


# ---- linearity


def _linear(call: Calls, entry: Op) -> tuple[frozenset[int], ...]:
    """Return the groups of operands in which an elementwise operation is linear together."""
    if call.callee.name.startswith("_to_") or entry.splits is not aligned:
        return (frozenset((0,)),)
    alone = entry if isinstance(entry, Elementwise) else entry.alone
    if entry.name in ("copy_",):
        return (frozenset((0, 1)),)
    if alone is None or call.kwargs.get("rounding_mode"):
        return ()
    single, together = _linear_slots(alone)
    count = len(call.tensors)
    if count == len(alone.tensors):
        every = (frozenset(range(count)),) if together and count > 1 else ()
        return (*[frozenset((k,)) for k in single], *every)
    # Among numbers the one tensor stands at its place.
    at = next((i for i, x in enumerate(call.args) if isinstance(x, Tensor)), 0)
    at = 1 - at if call.callee.name.startswith("__r") else at
    return (frozenset((0,)),) if at in single else ()


@functools.cache
def _linear_slots(op: Elementwise) -> tuple[frozenset[int], bool]:
    """Return in which operands a formula is linear by itself, and whether it is so in all together."""
    count = len(op.tensors)
    values = [
        webtorch.full((1,), 0.625 + i, dtype=webtorch.float32, device="cpu") for i in range(count)
    ]
    zero = webtorch.zeros(1, device="cpu")
    if op.promotion == "bool" or op.numbers:
        return frozenset(), False

    def is_zero(given: list[Tensor]) -> bool:
        """Whether the formula is zero, as a linear one is of zeros."""
        return bool((op(*given) == 0).all().item())

    reads = [inputs_of_slope(op, k) for k in range(count)]
    slopes = [_has_slope(op, k) for k in range(count)]
    single = frozenset(
        k for k in range(count)
        if slopes[k] and k not in reads[k] and is_zero([zero if i == k else v for i, v in enumerate(values)])
    )  # fmt: skip
    together = all(slopes) and not any(reads) and is_zero([zero] * count)
    return single, together


def _has_slope(op: Elementwise, slot: int) -> bool:
    """Whether the derivative is not zero everywhere, as that of a step is."""
    return slope_kind(op, slot) != "zero"
