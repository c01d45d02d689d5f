"""How the meaning of an operator becomes a PyTorch kernel on the device. Floor 6; imports PyTorch and the engine.

A kernel wraps its operands, calls the meaning (`aten`), and stores what it returns: nothing is computed yet. Which
of the three kinds of kernel it is, functional, in place or out=, follows from the operator's schema.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad

from webtorch.aten.table import FUNCTIONS, OPERATORS, Operator
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ops.layout import Form, Forms, Layout
from webtorch.ops.primitive import fill
from webtorch.ops.purity import looks
from webtorch.ops.record import TABLE, Elementwise
from webtorch.pytorch import device
from webtorch.pytorch.copying import overwritten, upload
from webtorch.pytorch.device import (
    TO_TORCH,
    TO_WEBTORCH,
    Lain,
    cast,
    here,
    is_whole,
    lie,
    made_of,
    refuse_overlap,
    shape_of,
    store,
    webtorch_dtype,
    wrap,
)
from webtorch.pytorch.interrupt import check, flag
from webtorch.pytorch.known import Kinds, Plan
from webtorch.pytorch.nativekernel import fronted
from webtorch.pytorch.resizing import resize_to
from webtorch.pytorch.wide import placed
from webtorch.tensors.calls import of_another_type
from webtorch.tensors.storage import Storage
from webtorch.tensors.tensor import Tensor

Kernel = Callable[..., Any]


# What a kernel that runs below autocast leaves out.
AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))
# Operators whose index tensors may be on the CPU.
_CPU_INDICES = {"index", "_index_put_impl_"}


def operand(value: object, name: str) -> Any:
    """Return a kernel's argument as the engine takes it: tensors wrapped, 0-d CPU tensors copied."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "webgpu":
            return wrap(value)
        if value.dim() == 0:
            kind = TO_WEBTORCH.get(value.dtype)
            # A tensor, not a number: its type takes part in the promotion. float64 may be that of a number.
            if kind is None or not kind.webgpu:
                return value.item()
            return fill((), value.item(), kind, here())
        if name.partition(".")[0] in _CPU_INDICES and not value.dtype.is_floating_point:
            return upload(value, TO_WEBTORCH[value.dtype])
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, webgpu:0 and {value.device}! "
            "Move one of them, as in x.to('webgpu')."
        )
    if isinstance(value, (list, tuple)):
        return [operand(v, name) for v in value]
    if isinstance(value, torch.dtype):
        return webtorch_dtype(value)
    return value


def _storages(values: Iterable[object]) -> Iterator[Storage]:
    for v in values:
        if isinstance(v, Tensor):
            yield v._storage
        elif isinstance(v, list):
            yield from _storages(v)


def _is_fresh(result: Tensor, operands: Iterable[object]) -> bool:
    storage = result._storage
    return all(s is not storage for s in _storages(operands))


def _lain(found: object, operands: list[object], forms: Forms, rule: Layout | None) -> object:
    """Return webtorch results with memory of their own, and with the strides that a rule gives them."""

    def lain(x: Tensor, seen: list[object]) -> Lain:
        """Return one result."""
        return lie(x, _is_fresh(x, seen), None if rule is None else rule(forms, x._shape))

    if isinstance(found, Tensor):
        return lain(found, operands)
    if isinstance(found, (tuple, list)):
        seen = list(operands)
        out: list[object] = []
        for x in found:
            out.append(lain(x, seen) if isinstance(x, Tensor) else x)
            seen.append(x)
        return tuple(out)
    return found


def _made(found: object) -> object:
    """Return results as new PyTorch tensors."""
    if type(found) is Lain:
        return made_of(found)
    return tuple([_made(x) for x in found]) if type(found) is tuple else found


def forms_of(args: Iterable[object]) -> Forms:
    """Return sizes and strides of the tensors among an operator's arguments."""
    found: list[Form] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            found.append((tuple(a.shape), a.stride()))
        elif isinstance(a, (list, tuple)):
            found.extend(forms_of(a))
    return tuple(found)


def _known(name: str) -> Operator:
    return OPERATORS.get(name.partition(".")[0], Operator())


@functools.cache
def is_free(function: Kernel) -> bool:
    """Whether a meaning is an elementwise entry, which records one operation whatever its numbers are, or stands for
    one where no number is 1.
    """
    return any(
        e.function is function and (isinstance(e, Elementwise) or e.alone is not None)
        for e in TABLE.values()
    )


def functional(
    name: str,
    function: Kernel,
    writes: Sequence[int] = (),
    draws: Callable[[torch.Tensor], Tensor] | None = None,
    rule: Layout | None = None,
) -> Kernel:
    """Return the kernel of an operator that makes new tensors.

    `writes`: the operands, by place, that the last results of `function` overwrite. `draws` gives the random numbers
    for a first operand, which `function` takes last: what is computed of them is known as of any operand. `rule`
    says how results lie where the operator's entry does not.
    """
    kinds, function = Kinds(is_free(function)), placed(function)
    plain = not writes and draws is None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        """Run the operator."""
        if flag.pressed:
            check()
        nodes: list[Node] = []
        numbers: list[float] = []
        plan = kinds.find(args, kwargs, nodes, numbers)
        if plain and type(plan) is Plan:
            return plan.tensors(nodes, numbers, user_line())
        outs: Sequence[torch.Tensor] = [args[n] for n in writes] if writes else ()
        drawn = None if draws is None else draws(args[0])
        if drawn is not None:
            nodes.append(drawn._storage.node)
        if type(plan) is Plan:
            return plan.tensors(nodes, numbers, user_line(), outs)
        # Not before: kernels are made while operators are still being declared.
        layout = rule or _known(name).layout
        forms = () if layout is None else forms_of(args)
        values = [operand(a, name) for a in args]
        if drawn is not None:
            values.append(drawn)
        options = {k: operand(v, name) for k, v in kwargs.items()}

        def call(values: Any, options: dict[str, object]) -> Any:
            """Return the results as they are to lie."""
            return _lain(function(*values, **options), values, forms, layout)

        if type(plan) is tuple and all(map(is_whole, outs)):
            found = kinds.watch(plan, call, values, options, nodes, numbers)
        else:
            found = call(values, options)
        if outs:
            for out, x in zip(outs, found[-len(outs) :], strict=True):
                store(out, x.tensor, True)
            found = found[: -len(outs)]
        return _made(found)

    return fronted(kinds, kernel) if plain else kernel


def _filling(name: str, function: Kernel) -> Kernel:
    """Return the kernel of `fill_` or `zero_`: nothing of what was there is read, and an expanded tensor is written in
    its memory once.
    """
    kinds, function = Kinds(is_free(function)), placed(function)

    def kernel(self: torch.Tensor, *args: object) -> torch.Tensor:
        """Write the number to each element of the memory."""
        if flag.pressed:
            check()
        nodes: list[Node] = []
        numbers: list[float] = []
        plan = kinds.find(args, {}, nodes, numbers, self)
        if type(plan) is Plan:
            plan.write((self,), nodes, numbers, user_line())
            return self
        out, strides = self, self.stride()
        if 0 in strides:
            size = [1 if n and not s else n for n, s in zip(self.shape, strides, strict=True)]
            out = self.as_strided(size, strides, self.storage_offset())
        target = wrap(out)

        def call(values: Sequence[object], options: object) -> Any:
            """Return what is stored."""
            found = function(target, *values)
            return _fitted(out, found, _is_fresh(found, (target, *values)))

        values = [operand(a, name) for a in args]
        if type(plan) is tuple:
            _put(out, kinds.watch(plan, call, values, {}, nodes, numbers))
        else:
            _put(out, call(values, {}))
        return self

    return kernel


def _fitted(out: torch.Tensor, result: Tensor, fresh: bool) -> Lain | tuple[Tensor, bool]:
    """Return a result as it overwrites all of a row-major memory; for others as it is, and whether it is fresh."""
    if out.dtype.is_complex or not is_whole(out):
        looks()
        return result, fresh
    shape = shape_of(out)
    dtype = TO_WEBTORCH[out.dtype]
    if result.dtype is not dtype:
        result, fresh = cast(result, dtype), True
    if result._shape != shape:
        result, fresh = result.expand(shape), False
    return lie(result, fresh)


def _put(out: torch.Tensor, result: Lain | tuple[Tensor, bool]) -> None:
    """Overwrite a tensor with what `_fitted` gave."""
    if type(result) is Lain:
        store(out, result.tensor, True)
    else:
        store(out, *result)


def _own_form(name: str) -> Kernel | None:
    """Return webtorch's own form in place of an operator: it knows whether an expanded tensor is written to, with a
    warning, or refused.
    """
    base = name.partition(".")[0]
    if base == "_index_put_impl_":
        return lambda x, indices, values, *how: x.index_put_(indices, values, *how[:1])
    return getattr(Tensor, base, None)


def _inplace(name: str, function: Kernel) -> Kernel:
    kinds, function, own = Kinds(is_free(function)), placed(function), _own_form(name)
    overlap = _known(name.partition(".")[0].removesuffix("_")).overlap

    def kernel(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        """Run the operator, and write its result to the first operand."""
        if flag.pressed:
            check()
        args = (self, *args)
        nodes: list[Node] = []
        numbers: list[float] = []
        plan = kinds.find(args, kwargs, nodes, numbers)
        if type(plan) is Plan:
            plan.write((self,), nodes, numbers, user_line())
            return self
        values = [operand(a, name) for a in args]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        # A plan is of calls that passed here: tensors of one memory are another kind of call. A tensor without dims is
        # read as a number.
        if overlap != "any" and values[0]._storage in _storages(values[1:]):
            _refuse_overlaps([x for x in tensors_of(args[1:]) if x.dim()], self, overlap == "whole")
        if own is not None and 0 in self.stride():
            own(*values, **options)
            return self

        def call(values: Sequence[Any], options: dict[str, object]) -> Any:
            """Return the result as it is stored in the first operand."""
            result = function(*values, **options)
            return _fitted(self, result, _is_fresh(result, values))

        if type(plan) is tuple:
            result = kinds.watch(plan, call, values, options, nodes, numbers)
        else:
            result = call(values, options)
        _put(self, result)
        return self

    return fronted(kinds, kernel, True)


def tensors_of(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operator's arguments."""
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, (list, tuple)):
            yield from tensors_of(v)


def _refuse_overlaps(args: Iterable[object], out: torch.Tensor, whole: bool) -> None:
    """Raise RuntimeError where one of the arguments overlaps what is written: see `refuse_overlap`."""
    memory = device.memory_of(out)
    for x in tensors_of(args):
        if x.device.type == "webgpu" and device.memory_of(x) is memory:
            refuse_overlap(x, out, whole)


def _check_out(
    name: str, out: torch.Tensor, dtype: DType, known: Operator, values: Sequence[object] = ()
) -> None:
    """Raise RuntimeError if a result of the operands `values` cannot be put into `out`."""
    kind = TO_TORCH[dtype]
    if kind is out.dtype:
        return
    place = TO_WEBTORCH[out.dtype]
    rule = known.out(*values) if callable(known.out) else known.out
    if rule == "truncate":
        return
    if rule == "mask" and out.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            f"{name.partition('.')[0]} only supports bool tensor for result, got: {place.c_name}"
        )
    if rule == "exact":
        raise RuntimeError(of_another_type(name.partition(".")[0], dtype, place))
    if not torch.can_cast(kind, out.dtype):
        error = TypeError if name.startswith("cat.") else RuntimeError
        raise error(
            f"result type {dtype.legacy} can't be cast to the desired output type {place.legacy} ({name})"
        )


def _out(name: str, function: Kernel, outs: tuple[str, ...]) -> Kernel:
    if len(outs) == 1:
        return _one_out(name, placed(function), is_free(function), outs[0])
    return _several_out(name, placed(function), outs)


def _one_out(name: str, function: Kernel, free: bool, target: str) -> Kernel:
    """Return the kernel of an operator that writes one result to `target`."""
    known = _known(name)
    rule, overlap = known.layout, known.overlap
    typed = known.out == "into"
    inplace = overlap in ("whole", "first")
    kinds, parts = Kinds(free), Kinds(free)
    apart = inplace or overlap == "any"

    def partly(values: Any, options: object) -> Lain | Tensor:
        """Return all of a memory of which the first tensor is overwritten."""
        part, *given = values
        result = function(*given)
        if result.dtype is not part.dtype or result._shape != part._shape:
            looks()
            return result
        return overwritten((part, result), {})

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the operator, and write its result to `out`, resized if need be."""
        if flag.pressed:
            check()
        out = kwargs.pop(target)
        nodes: list[Node] = []
        numbers: list[float] = []
        plan = kinds.find(args, kwargs, nodes, numbers, out, apart)
        if type(plan) is Plan:
            plan.write((out,), nodes, numbers, user_line())
            return out
        key = None
        if plan is None and not kwargs and out.numel() and not is_whole(out):
            numbers = []
            key = parts.find((out, *args), {}, nodes := [], numbers, out, True)
            if type(key) is Plan:
                key.write((out,), nodes, numbers, user_line())
                return out
        values = [operand(a, name) for a in args]
        if type(key) is tuple:
            given = (wrap(out), *values)
            parts.watch(key, partly, given, {}, nodes, numbers)
        if overlap != "any":
            # In place, the tensor that is written is the first argument as well.
            rest = 1 if inplace and args and args[0] is out else 0
            held = values[0]._storage if rest else device.memory_of(out).held
            if held is not None and held in _storages(values[rest:]):
                _refuse_overlaps(args[rest:], out, whole=overlap == "whole")
        if typed and kwargs.get("dtype") is None:
            kwargs["dtype"] = out.dtype
        options = {k: operand(v, name) for k, v in kwargs.items()} if kwargs else kwargs

        def call(values: Any, options: Any) -> Any:
            """Return the result as it is stored in `out`."""
            result = function(*values, **options)
            if TO_WEBTORCH[out.dtype] is not result.dtype:
                _check_out(name, out, result.dtype, known, values)
            if tuple(out.shape) != result._shape:
                looks()
                resize_to(out, result._shape, rule and rule(forms_of(args), result._shape))
            return _fitted(out, result, _is_fresh(result, values))

        if type(plan) is tuple:
            result = kinds.watch(plan, call, values, options, nodes, numbers)
        else:
            result = call(values, options)
        _put(out, result)
        return out

    return kernel


def _several_out(name: str, function: Kernel, outs: tuple[str, ...]) -> Kernel:
    """Return the kernel of an operator that writes several results."""
    known = _known(name)
    rule, overlap = known.layout, known.overlap

    def many(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        """Run the operator, and write its results to the tensors given."""
        if flag.pressed:
            check()
        targets = [kwargs.pop(n) for n in outs]
        for out in targets if overlap != "any" else ():
            if out is not None:
                _refuse_overlaps(args, out, whole=overlap == "whole")
        values = [operand(a, name) for a in args]
        options = {k: operand(v, name) for k, v in kwargs.items()}
        found = function(*values, **options)
        for out, result in zip(targets, found, strict=True):
            if out is None or not isinstance(result, Tensor):
                continue
            _check_out(name, out, result.dtype, known, values)
            if tuple(out.shape) != result._shape:
                resize_to(out, result._shape, rule and rule(forms_of(args), result._shape))
            store(out, result, _is_fresh(result, values))
            values.append(result)
        return tuple(targets)

    return many


# PyTorch's kernels that make the functional and in-place forms of a structured operator of its out= form.
STRUCTURED = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


def structured(overload: OpOverload, function: Kernel, compose: Kernel | None = None) -> Kernel:
    """Return the kernel of a functional or in-place form that PyTorch makes of the out= form, or that `compose` makes
    of others: once a kind of call has come twice, and PyTorch's checks have passed, it is recorded at once.
    """
    schema = overload._schema
    name = overload._name.removeprefix("aten::")
    first = schema.arguments[0].alias_info
    writes = first is not None and first.is_write
    kinds, function = Kinds(is_free(function)), placed(function)
    compose = _uncounted(compose or functools.partial(overload._op_dk, STRUCTURED))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        """Run the operator."""
        if flag.pressed:
            check()
        nodes: list[Node] = []
        numbers: list[float] = []
        out = args[0] if writes else None
        plan = kinds.find(args, kwargs, nodes, numbers, out, writes)
        if type(plan) is Plan:
            if out is None:
                return plan.tensors(nodes, numbers, user_line())
            plan.write((out,), nodes, numbers, user_line())
            return out
        made: Any = None if writes else compose(*args, **kwargs)
        if type(plan) is tuple:
            values = [operand(a, name) for a in args]
            options = {k: operand(v, name) for k, v in kwargs.items()}

            def call(values: Any, options: Any) -> object:
                """Return the results as PyTorch's lie."""
                found = function(*values, **options)
                if out is not None:
                    return _fitted(out, found, _is_fresh(found, values))
                if isinstance(found, Tensor):
                    return _alike(made, found, values)
                seen, results = list(values), []
                for x, result in zip(made, found, strict=True):
                    results.append(_alike(x, result, seen))
                    seen.append(result)
                return tuple(results)

            kinds.watch(plan, call, values, options, nodes, numbers)
        if out is None:
            return made
        try:
            return compose(*args, **kwargs)
        except BaseException:
            kinds.forget()
            raise

    return fronted(kinds, kernel, writes)


def _uncounted(compose: Kernel) -> Kernel:
    """Return a composition whose calls count as none of the thread's: they are not made any more once its kind of call
    is known.
    """

    def composed(*args: object, **kwargs: object) -> object:
        """Compose the operator."""
        ahead = device.runtime().ahead
        calls, ahead.calls = ahead.calls, 0
        try:
            return compose(*args, **kwargs)
        finally:
            ahead.calls = calls

    return composed


def numbered(overload: OpOverload, function: Kernel) -> Kernel:
    """Return the kernel of a functional form that PyTorch makes of the out= form, and that is given numbers in the
    place of tensors, which that does not take.
    """
    usual = structured(overload, function)
    of_numbers = functional(overload._name.removeprefix("aten::"), function)
    places = [n for n, a in enumerate(overload._schema.arguments) if str(a.type) == "Tensor"]

    def kernel(*args: object, **kwargs: object) -> Any:
        """Run the operator."""
        for n in places:
            if type(args[n]) in _NUMBERS:
                return of_numbers(*args, **kwargs)
        return usual(*args, **kwargs)

    return kernel


_NUMBERS = frozenset((bool, int, float, complex))


def is_transformed() -> bool:
    """Whether a transform of functions, or forward derivatives, are at work."""
    return (
        forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_plain() -> bool:
    """Whether nothing looks at what operators are composed of, or differentiates that by itself."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._is_tracing()
        and not is_transformed()
    )


def whole(overload: OpOverload, function: Kernel, recorded: Kernel | None = None) -> Kernel:
    """Return the kernel of an operator that PyTorch makes of others above its gradient: one operation where no
    gradient is recorded and nobody sees what it is made of. `recorded` takes its place where a gradient is.
    """
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    compose = functools.partial(overload._op_dk, composite)
    one, differentiated = structured(overload, function, compose), recorded or compose

    def kernel(*args: object, **kwargs: object) -> Any:
        """Run the operator."""
        if not is_plain():
            return compose(*args, **kwargs)
        records, run = torch.is_grad_enabled(), one
        for x in tensors_of(args):
            if (
                type(x) not in _PLAIN
                or x.layout is not torch.strided
                or x.is_complex()
                or x.is_neg()
            ):
                return compose(*args, **kwargs)
            if records and x.requires_grad:
                run = differentiated
        return run(*args, **kwargs)

    return kernel


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def first_of(name: str, caller: Callable[..., object]) -> Kernel:
    """Return the kernel of an operator whose further results are for its gradient: where none is recorded and a
    function of PyTorch's calls, which hands on the first alone, there are no others.
    """
    function = FUNCTIONS[name]
    whole = functional(name, function)
    first = functional(name, lambda *args: function(*args)[0])
    code = caller.__code__

    def kernel(*args: object) -> Any:
        """Run the operator."""
        if not torch.is_grad_enabled() and sys._getframe(1).f_code is code and is_plain():
            return first(*args), None, None
        return whole(*args)

    return kernel


def _alike(x: torch.Tensor, result: object, operands: list[object]) -> object:
    """Return a result as PyTorch's tensor of it lies; as it is where it is another one."""
    if (
        not isinstance(result, Tensor)
        or tuple(x.shape) != result._shape
        or TO_WEBTORCH[x.dtype] is not result.dtype
    ):
        looks()
        return result
    return lie(result, _is_fresh(result, operands), x.stride())


def _index(direct: Kernel) -> Kernel:
    """Return the kernel of indexing: where tensors are not row-major, PyTorch chooses the result's strides."""
    by_out = torch.ops.aten.index.Tensor

    def kernel(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the indexed elements."""
        given = [i for i in indices if i is not None]
        masked = any(i.dtype in (torch.bool, torch.uint8) for i in given)
        if masked or all(t.is_contiguous() for t in (x, *given)):
            return direct(x, indices)
        return by_out._op_dk(STRUCTURED, x, indices)

    return kernel


def kernel_for(overload: OpOverload, function: Kernel) -> Kernel:
    """Return the kernel of one operator overload, of the kind that its schema asks for."""
    schema = overload._schema
    name = overload._name.removeprefix("aten::")
    outs = tuple(a.name for a in schema.arguments if a.is_out)
    if outs:
        return _out(name, function, outs)
    first = schema.arguments[0] if schema.arguments else None
    writes_first = first is not None and first.alias_info is not None and first.alias_info.is_write
    if writes_first and len(schema.returns) == 1:
        fills = name.partition(".")[0] in ("fill_", "zero_")
        return (_filling if fills else _inplace)(name, function)
    kernel = functional(name, function)
    return _index(kernel) if name == "index.Tensor" else kernel


# Operators about memory, creation and devices, and those whose kernel looks at PyTorch's tensors itself.
KERNELS: dict[str, Kernel] = {}
# Operators that are written with others of PyTorch.
COMPOSITIONS: dict[str, Kernel] = {}


def own(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare the kernel of these operators."""
    return functools.partial(_declared, KERNELS, names)


def composed(*names: str) -> Callable[[Kernel], Kernel]:
    """Declare what these operators are in terms of others."""
    return functools.partial(_declared, COMPOSITIONS, names)


def _declared(kernels: dict[str, Kernel], names: tuple[str, ...], kernel: Kernel) -> Kernel:
    kernels.update(dict.fromkeys(names, kernel))
    return kernel


def overloads(packet: str) -> list[tuple[str, OpOverload]]:
    """Return the overloads of an operator with their names."""
    found = getattr(torch.ops.aten, packet, None)
    return [] if found is None else [(o, getattr(found, o)) for o in found.overloads()]


def dispatched() -> set[str]:
    """Return every operator's name. TorchScript has overloads of its own, which the dispatcher does not know."""
    return set(torch._C._dispatch_get_all_op_names())
