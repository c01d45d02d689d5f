"""grad, vjp, jvp and what is made of them. May import floor 4, func.vmap and utils._pytree.

All of them record on the one tape. A transform differentiates by starting points of its own (`Source`),
which stand for its arguments; what a result does not owe to anything outside of the transform is cut
off the tape when the transform ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

from webtorch.func.vmap import vmap
from webtorch.ops.primitive import fill
from webtorch.ops.record import TABLE
from webtorch.tensors import engine
from webtorch.tensors.base import refuse_wrapped
from webtorch.tensors.forward import Level, dual, tangent_of
from webtorch.tensors.modes import enable_grad, mode, transforms
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import AccumulateGrad, GradFn, Source, gradient_edge, set_history
from webtorch.tensors.tensor import Tensor
from webtorch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

Argnums = int | tuple[int, ...]


_NO_HOOKS = (
    "torch.func.{grad, vjp, jacrev, hessian} don't yet support saved tensor hooks. Please open an "
    "issue with your use case."
)


class _Transform:
    """A differentiation that runs: its starting points, and the mode outside of it."""

    def __init__(self) -> None:
        self.sources: set[GradFn] = set()
        self.outside = mode.grad
        self.number = next(mode.numbers)
        # The memory of what it was given, or has made: it may write no other.
        self.made = WeakSet[Storage]()

    def __enter__(self) -> _Transform:
        self.before = mode.grad, mode.inference, mode.transforms, mode.hooks_disabled
        if mode.saved_hooks:
            raise RuntimeError(_NO_HOOKS)
        mode.grad, mode.inference, mode.transforms = True, False, (*mode.transforms, self)
        mode.hooks_disabled = _NO_HOOKS
        transforms.add(1)
        return self

    def __exit__(self, *_: object) -> None:
        mode.grad, mode.inference, mode.transforms, mode.hooks_disabled = self.before
        transforms.add(-1)
        _hand_over(self.made)
        for source in self.sources:
            source.open = False  # type: ignore[attr-defined]

    def take(self, tree: object) -> None:
        """Let the function write the arguments that it is given."""
        self.made.update(x._storage for x in tree_leaves(tree) if isinstance(x, Tensor))

    def start(self, x: object) -> Tensor:
        """Return x as a starting point of this differentiation."""
        if not isinstance(x, Tensor):
            raise ValueError(f"Thing passed to transform API must be Tensor, got {type(x)}")
        if not x.is_floating_point() and not x.is_complex():
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        out = cut(x)
        source = Source(gradient_edge(x) if x.requires_grad else None)
        self.sources.add(source)
        set_history(out, source)
        return out

    def tracks(self, x: Tensor) -> bool:
        """Whether this differentiation follows what became of a tensor."""
        edge = gradient_edge(x)
        return edge is not None and not self.sources.isdisjoint(_before(edge[0]))

    def reaches_outside(self, tensors: Iterable[Any]) -> bool:
        """Whether gradients of the tensors go on to anything but this transform's own starts."""
        pending = [e[0] for t in tensors if (e := gradient_edge(t)) is not None]
        seen: set[GradFn] = set()
        while pending:
            fn = pending.pop()
            if fn in seen:
                continue
            seen.add(fn)
            own = fn in self.sources
            if isinstance(fn, AccumulateGrad) or (isinstance(fn, Source) and fn.open and not own):
                return True
            if own and fn.edges[0] is not None:
                return True
            pending.extend(e[0] for e in fn.edges if e is not None)
        return False

    def leave(self, tree: object, kept: bool) -> Any:
        """Return results as they are outside: on the tape only if they owe something to it."""
        if kept and self.outside:
            return tree
        return tree_map(lambda x: cut(x) if isinstance(x, Tensor) and x.requires_grad else x, tree)

    def release(self, given: Iterable[Tensor]) -> None:
        """Take arguments that were written off the tape again, unless they owe something to what is outside."""
        for x in given:
            if x.requires_grad and not self.reaches_outside([x]):
                for t in (x,) if x._base is None else (x, x._base):
                    t._grad_fn, t._requires_grad, t._output_nr = None, False, 0


def _hand_over(made: WeakSet[Storage]) -> None:
    """Let the transform outside write what one within it has made."""
    if mode.transforms and mode.transforms[-1].made is not None:
        mode.transforms[-1].made |= made


def _before(fn: GradFn) -> set[GradFn]:
    """Return the function and all that come before it."""
    pending, seen = [fn], set[GradFn]()
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            pending.extend(e[0] for e in one.edges if e is not None)
    return seen


class Running:
    """A transform runs that starts no gradients: forward mode, which is given `args`, or one that changes nothing here
    and may write what may be written outside.
    """

    def __init__(self, args: object = None) -> None:
        self.number = next(mode.numbers)
        self.made = mode.transforms[-1].made if mode.transforms else None
        if args is not None:
            self.made = WeakSet[Storage](
                x._storage for x in tree_leaves(args) if isinstance(x, Tensor)
            )

    def tracks(self, x: Tensor) -> bool:
        """Return False: nothing starts here."""
        return False

    def __enter__(self) -> None:
        self.before = mode.transforms
        mode.transforms = (*mode.transforms, self)
        transforms.add(1)

    def __exit__(self, *_: object) -> None:
        mode.transforms = self.before
        transforms.add(-1)
        if self.made is not None:
            _hand_over(self.made)


def cut(x: Tensor) -> Tensor:
    """Return x without its history; tangents stay."""
    refuse_wrapped("torch.func", x)
    out = Tensor._from_storage(
        x._storage, x._shape, x._strides, x._offset, x._whole, x.dtype, x._levels
    )
    out._counter = x._counter
    return out


def _zeros(x: Tensor) -> Tensor:
    return fill(x._shape, 0, x.dtype, x.device)


def _gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    recorded: bool,
) -> list[Tensor]:
    pairs = [(o, g) for o, g in zip(outputs, cotangents, strict=True) if o.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if pairs and inputs:
        found = engine.grad(
            [o for o, _ in pairs],
            inputs,
            [g for _, g in pairs],
            retain_graph=True,
            create_graph=recorded,
            allow_unused=True,
        )
    return [_zeros(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


# ---- argnums
# ---------------------------------------------------------------------------------------------------


def _one_argnum(number: object, count: int) -> int:
    if not isinstance(number, int):
        raise RuntimeError(f"argnum must be int, got: {type(number)}")
    if -count <= number < count:
        return number % count
    raise RuntimeError(f"Got argnum={number}, but only {count} positional inputs")


def checked_argnums(argnums: object, count: int) -> tuple[int, ...]:
    """Return the numbers of arguments, none twice, counted from the front. Raises RuntimeError."""
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    if isinstance(argnums, int):
        return (_one_argnum(argnums, count),)
    if not argnums:
        raise RuntimeError("argnums must be non-empty")
    found = tuple([_one_argnum(n, count) for n in argnums])
    if len(set(found)) != len(found):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return found


def _replaced(
    args: Sequence[object], numbers: Sequence[int], new: Sequence[object]
) -> list[object]:
    out = list(args)
    for n, value in zip(numbers, new, strict=True):
        out[n] = value
    return out


# ---- reverse mode
# ---------------------------------------------------------------------------------------------------


def _parts(result: object, has_aux: bool, name: str) -> tuple[object, object]:
    """Return (output, aux) of a function's result; aux is None without has_aux."""
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    for x in tree_leaves(result[1]):
        if not isinstance(x, Tensor):
            raise RuntimeError(f"Expected tensors, got unsupported type {type(x)}")
    return result


def grad_and_value(
    func: Callable[..., object], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns (gradients, value) of `func`, whose value is a 0-d tensor.

    Gradients are those for the positional arguments `argnums`, nests of tensors like these. With
    has_aux, `func` returns (value, aux), and (gradients, (value, aux)) is returned.
    """

    @functools.wraps(func)
    def computed(*args: object, **kwargs: object) -> object:
        """Return the gradient and the value, with aux if there is one."""
        numbers = checked_argnums(argnums, len(args))
        with _Transform() as transform:
            transform.take((args, kwargs))
            starts = [tree_map(transform.start, args[n]) for n in numbers]
            given = _replaced(args, numbers, starts)
            others = [args[n] for n in range(len(args)) if n not in numbers]
            plain = [
                x
                for x in tree_leaves((others, kwargs))
                if isinstance(x, Tensor) and not x.requires_grad
            ]
            output = func(*given, **kwargs)
            output, aux = _parts(output, has_aux, "grad_and_value(f)(*args)")
            if not isinstance(output, Tensor):
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a Tensor, got "
                    f"{type(output)}"
                )
            if output.ndim:
                raise RuntimeError(
                    "grad_and_value(f)(*args): Expected f(*args) to return a scalar Tensor, got "
                    f"tensor with {output.ndim} dims. Maybe you wanted to use the vjp or jacrev "
                    "APIs instead?"
                )
            leaves, spec = tree_flatten(starts)
            kept = transform.reaches_outside([output])
            grads = tree_unflatten(_gradients([output], leaves, [None], kept), spec)
            grads = transform.leave(grads, kept)
            output = transform.leave(output, kept)
            aux = transform.leave(aux, has_aux and transform.reaches_outside(tree_leaves(aux)))
            transform.release(plain)
        found = grads[0] if isinstance(argnums, int) else tuple(grads)
        return (found, (output, aux)) if has_aux else (found, output)

    return computed


def grad(
    func: Callable[..., object], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the gradients of `func` (and aux): see grad_and_value."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def computed(*args: object, **kwargs: object) -> object:
        """Return the gradient, with aux if there is one."""
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return computed


def vjp(func: Callable[..., object], *primals: object, has_aux: bool = False) -> Any:
    """Return (func(*primals), vjp_fn) or, with has_aux, (output, vjp_fn, aux).

    vjp_fn(cotangents), a nest like the output, returns a tuple of the gradients for the primals (one
    alone is returned as it is).
    """
    return _vjp(func, primals, None, has_aux)


def _vjp(
    func: Callable[..., object], args: tuple[object, ...], argnums: Argnums | None, has_aux: bool
) -> Any:
    numbers = tuple(range(len(args))) if argnums is None else checked_argnums(argnums, len(args))
    with _Transform() as transform:
        transform.take(args)
        starts = [tree_map(transform.start, args[n]) for n in numbers]
        result = func(*_replaced(args, numbers, starts))
        result, aux = _parts(result, has_aux, "vjp(f, *primals)")
        outputs, out_spec = tree_flatten(result)
        _check_outputs(outputs, "vjp(f, *primals)")
        for out in outputs:
            if not (out.is_floating_point() or out.is_complex()):
                raise RuntimeError(
                    "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got "
                    f"Tensor with dtype {out.dtype}"
                )
        kept = transform.reaches_outside(outputs)
        results = transform.leave(result, kept)
        aux = transform.leave(aux, has_aux and transform.reaches_outside(tree_leaves(aux)))
    single = argnums is None or isinstance(argnums, tuple)
    inputs, in_spec = tree_flatten(tuple(starts) if single else starts[0])

    def vjp_fn(
        cotangents: object, retain_graph: bool = True, create_graph: bool | None = None
    ) -> Any:
        """Return the products of cotangents, of the output's structure, with the Jacobian.

        Raises RuntimeError for another structure.
        """
        given, spec = tree_flatten(cotangents)
        if spec != out_spec:
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of "
                f"outputs to the function. cotangents: {spec}, primal output: {out_spec}"
            )
        recorded = mode.grad if create_graph is None else create_graph
        recorded = recorded and (kept or any(g.requires_grad for g in given))
        found = _gradients(outputs, inputs, given, recorded)
        if not recorded:
            found = [cut(g) if g.requires_grad else g for g in found]
        return tree_unflatten(found, in_spec)

    return (results, vjp_fn, aux) if has_aux else (results, vjp_fn)


def _check_outputs(outputs: Sequence[object], api: str) -> None:
    if not outputs or (len(outputs) == 1 and outputs[0] is None):
        raise RuntimeError(
            f"{api}: Expected f to be a function that has non-empty output (got output = {outputs})"
        )
    for out in outputs:
        if not isinstance(out, Tensor):
            raise RuntimeError(
                f"{api}: expected f(*primals) to return only tensors, got unsupported type "
                f"{type(out)}"
            )


# ---- forward mode
# ---------------------------------------------------------------------------------------------------

_JVP = "jvp(f, primals, tangents)"


def jvp(
    func: Callable[..., object],
    primals: object,
    tangents: object,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return (func(*primals), the product of its Jacobian with `tangents`), and aux with has_aux.

    `strict` raises RuntimeError where an output does not depend on the primals.
    """
    return _jvp(func, primals, tangents, None, strict, has_aux)


def _jvp(
    func: Callable[..., object],
    args: object,
    tangents: object,
    argnums: Argnums | None,
    strict: bool,
    has_aux: bool,
) -> Any:
    if not isinstance(args, tuple):
        raise RuntimeError(
            f"{_JVP}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals)."
        )
    numbers = tuple(range(len(args))) if argnums is None else checked_argnums(argnums, len(args))
    chosen = tuple([args[n] for n in numbers])
    leaves, spec = tree_flatten(chosen)
    directions, given_spec = tree_flatten(
        tangents if argnums is None or isinstance(argnums, tuple) else (tangents,)
    )
    if spec != given_spec:
        raise RuntimeError(
            f"{_JVP}: Expected primals and tangents to have the same python structure. For example, "
            "if primals is a tuple of 3 tensors, tangents also must be. Got primals with structure "
            f"{spec} and tangents with structure {given_spec}"
        )
    for name, listed in (("primals", leaves), ("tangents", directions)):
        if not listed:
            raise RuntimeError(f"{_JVP}: Expected {name} to contain at least one Tensor.")
        for x in listed:
            if not isinstance(x, Tensor):
                raise RuntimeError(
                    f"{_JVP}: Expected {name} to only contain Tensors, got {type(x)}"
                )
    with Level() as level, Running((args, tangents)):
        duals = [dual(p, t, level) for p, t in zip(leaves, directions, strict=True)]
        result = func(*_replaced(args, numbers, tree_unflatten(duals, spec)))
        result, aux = _parts(result, has_aux, _JVP)
        outputs, out_spec = tree_flatten(result)
        _check_outputs(outputs, _JVP)
        found = [tangent_of(x, level) for x in outputs]
        if strict and any(t is None for t in found):
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the "
                "inputs. This is not allowed with strict=True."
            )
        filled = [_zeros(x) if t is None else t for x, t in zip(outputs, found, strict=True)]
    out = (result, tree_unflatten(filled, out_spec))
    return (*out, aux) if has_aux else out


def linearize(func: Callable[..., object], *primals: object) -> tuple[Any, Callable[..., Any]]:
    """Return (func(*primals), jvp_fn): the product of the Jacobian at `primals` with any tangents.

    The function runs once; jvp_fn only runs what is linear, recorded once as the transpose of the
    gradient.
    """
    leaves, spec = tree_flatten(primals)
    output, vjp_fn = _vjp(func, primals, None, False)
    outputs, out_spec = tree_flatten(output)
    with enable_grad():
        us = [_zeros(x) for x in outputs]
        for u in us:
            u._requires_grad = True
        rows, _ = tree_flatten(vjp_fn(tree_unflatten(us, out_spec), create_graph=True))

    def jvp_fn(*tangents: object) -> object:
        """Return the products of the Jacobian with tangents, of the primals' structure, shapes and dtypes."""
        given, given_spec = tree_flatten(tangents)
        if given_spec != spec:
            raise RuntimeError(
                f"Expected the tangents {given_spec} to have the same argspec as the primals {spec}"
            )
        for i, (t, p) in enumerate(zip(given, leaves, strict=True)):
            for what, mine, theirs in (
                ("shape", t.shape, p.shape),
                ("device", t.device, p.device),
                ("dtype", t.dtype, p.dtype),
            ):
                if mine != theirs:
                    raise RuntimeError(
                        f"tangent:{i} with {what} {mine} in flattened pytree doesn't match the "
                        f"{what} {theirs} of the corresponding primal."
                    )
        recorded = mode.grad and any(t.requires_grad for t in (*given, *leaves))
        found = _gradients(rows, us, given, recorded)
        return tree_unflatten([g if recorded else cut(g) for g in found], out_spec)

    return output, jvp_fn


# ---- Jacobians
# ---------------------------------------------------------------------------------------------------


def _refuse_complex(name: str, tree: object, what: str) -> None:
    for i, x in enumerate(tree_leaves(tree)):
        if isinstance(x, Tensor) and x.is_complex():
            raise RuntimeError(
                f"{name}: Expected all {what} to be real but received complex tensor at flattened "
                f"input idx: {i}"
            )


def _basis(tensors: Sequence[Tensor], first: int, count: int) -> list[Tensor]:
    """Return rows `first` to `first + count` of the unit matrix over all elements of the tensors."""
    out, at = [], 0
    for x in tensors:
        size = x.numel()
        rows = TABLE["arange"](first - at, first - at + count, device=x.device)
        columns = TABLE["arange"](size, device=x.device)
        unit = (rows.unsqueeze(1) == columns).to(x.dtype)
        out.append(unit.reshape((count, *x._shape)))
        at += size
    return out


def jacrev(
    func: Callable[..., object],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian of `func` by reverse mode: the output's shape, then
    the argument's, for each pair of them.

    chunk_size: how many rows are computed at a time.
    """
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def computed(*args: object) -> object:
        """Return the Jacobian, with aux if there is one."""
        _refuse_complex("jacrev", args, "inputs")
        result = _vjp(func, args, argnums, has_aux)
        output, vjp_fn = result[:2]
        outputs, out_spec = tree_flatten(output)
        _refuse_complex("jacrev", outputs, "outputs")
        chosen = [args[n] for n in checked_argnums(argnums, len(args))]
        leaves, spec = tree_flatten(chosen)
        sizes = [o.numel() for o in outputs]
        total = sum(sizes)
        step = max(1, min(chunk_size or total, total))
        parts = []
        for first in range(0, max(total, 1), step):
            count = min(step, total - first)
            basis = tree_unflatten(_basis(outputs, first, count), out_spec)
            found = vmap(vjp_fn)(basis) if count != 1 else _one_row(vjp_fn, basis)
            parts.append(tree_leaves(found))
        stacked = [
            p[0] if len(p) == 1 else TABLE["cat"](list(p), 0) for p in zip(*parts, strict=True)
        ]
        rows = []
        for split, out in zip(_splits(stacked, sizes), outputs, strict=True):
            shaped = [
                s.reshape((*out._shape, *p._shape)) for s, p in zip(split, leaves, strict=True)
            ]
            nest = tree_unflatten(shaped, spec)
            rows.append(nest[0] if isinstance(argnums, int) else tuple(nest))
        jacobian = tree_unflatten(rows, out_spec)
        return (jacobian, result[2]) if has_aux else jacobian

    return computed


def _one_row(vjp_fn: Callable[..., object], basis: object) -> object:
    return tree_map(lambda g: g.unsqueeze(0), vjp_fn(tree_map(lambda b: b.squeeze(0), basis)))


def _splits(stacked: Sequence[Tensor], sizes: Sequence[int]) -> Iterator[list[Tensor]]:
    at = 0
    for size in sizes:
        yield [s.narrow(0, at, size) for s in stacked]
        at += size


def jacfwd(
    func: Callable[..., object],
    argnums: Argnums | None = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian of `func` by forward mode: see jacrev."""

    @functools.wraps(func)
    def computed(*args: object) -> object:
        """Return the Jacobian, with aux if there is one."""
        _refuse_complex("jacfwd", args, "inputs")
        numbers = (
            tuple(range(len(args))) if argnums is None else checked_argnums(argnums, len(args))
        )
        chosen = tuple([args[n] for n in numbers])
        leaves, spec = tree_flatten(chosen)
        sizes = [p.numel() for p in leaves]
        basis = tree_unflatten(_basis(leaves, 0, sum(sizes)), spec)
        # aux is the same for every direction: kept from the one call.
        kept: list[object] = []

        def push(direction: object) -> object:
            """Return the product of the Jacobian with one direction."""
            found = _jvp(func, args, direction, numbers, False, has_aux)
            _refuse_complex("jacfwd", found[0], "outputs")
            kept.extend(found[2:])
            return found[1]

        columns, out_spec = tree_flatten(vmap(push, randomness=randomness)(basis))
        rows = []
        for column in columns:
            moved = column.movedim(0, -1)
            shaped, at = [], 0
            for p, size in zip(leaves, sizes, strict=True):
                part = moved.narrow(-1, at, size)
                shaped.append(part.reshape((*moved._shape[:-1], *p._shape)))
                at += size
            nest = tree_unflatten(shaped, spec)
            rows.append(nest[0] if isinstance(argnums, int) else nest)
        jacobian = tree_unflatten(rows, out_spec)
        return (jacobian, kept[0]) if has_aux else jacobian

    return computed


def hessian(func: Callable[..., object], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that returns the second derivatives of `func`: forward mode over reverse."""
    return jacfwd(jacrev(func, argnums), argnums)
