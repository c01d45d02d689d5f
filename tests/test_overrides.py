"""`__torch_function__`: what a program with such classes and modes prints is what it prints with PyTorch."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.overrides
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401  (PyTorch has the name)

import webtorch
import webtorch.overrides
from webtorch.dispatch.call import Callee, active, count_out


def name(func: Any) -> str:
    owner = getattr(func, "__self__", None)
    half = func.__name__
    if half in ("__get__", "__set__") and owner is not None:
        title = owner.fget.__name__ if isinstance(owner, property) else owner.__name__
        return f"{title.lstrip('_')}.{half}"
    return str(half)


def logging_class(lib: Any, log: list[str]) -> Any:
    class Logging(lib.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # PyTorch's functions of Python name plain tensors among the types, those of C++ do not.
            log.append(name(func) + "".join(f" {t.__name__}" for t in types if t is not lib.Tensor))
            return super().__torch_function__(func, types, args, kwargs or {})

    return Logging


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "operators": lambda lib, x, y: (
        x + y, y + x, 1 + x, 1 - x, x - 1, x * 2, x / y, 1 / x, x // 2, 2 // x, x**2, 2**x, x % 2,
    ),
    "unary": lambda lib, x, y: (-x, +x, abs(x), x.T, x.mT),
    "comparisons": lambda lib, x, y: (x == y, x != y, x < 1, y < x, (x > 1) & (x > 2)),
    "in place": lambda lib, x, y: (x.add_(1), x.__iadd__(1), x.__imul__(2), y.mul_(x)),
    "indexing": lambda lib, x, y: (x[0], x[:, 1], x[x > 1], y[x > 1], x.__setitem__(0, 1.0)),
    "numbers": lambda lib, x, y: (
        len(x), bool(x[0, 0]), float(x[0, 0]), int(x[0, 0]), 1.0 in x, x[0, 0].item(), x.tolist(),
    ),
    "functions": lambda lib, x, y: (
        lib.add(x, y), x.add(y), x.sum(), lib.sum(x, dim=0), x.max(0), lib.cat([y, x]),
        lib.stack((x, x)), lib.where(y > 0, x, y), lib.einsum("ij,ij->i", x, y), lib.zeros_like(x),
    ),
    "layers": lambda lib, x, y: (
        lib.nn.functional.relu(x), lib.nn.functional.linear(x, lib.nn.Parameter(y)),
        lib.nn.Linear(3, 2)(x), lib.nn.functional.mse_loss(x, y), lib.linalg.norm(x),
    ),
    "properties": lambda lib, x, y: (
        x.shape, x.device, x.ndim, x.requires_grad, x.grad, x.size(), x.dim(), x.numel(), x.is_leaf,
    ),
    "views": lambda lib, x, y: (
        x.view(-1), x.reshape(3, 2), x.unbind(), x.detach(), x.data, x.clone(), x.new_zeros(2),
    ),
    "others": lambda lib, x, y: (
        lib.is_tensor(x), lib.tensor([1.0]), lib.add(y, y, out=x.detach()), lib.allclose(x, x),
        (x * 1).sum().requires_grad_().backward(), lib.broadcast_tensors(x, y), lib.as_tensor(x),
    ),
}  # fmt: skip


@pytest.mark.parametrize("group", CALLS)
def test_a_subclass_is_asked_for_what_pytorch_asks_it_and_is_kept(group: str) -> None:
    found = []
    for lib in (webtorch, torch):
        log: list[str] = []
        kind = logging_class(lib, log)
        x, y = lib.arange(1.0, 7.0).reshape(2, 3).as_subclass(kind), lib.ones(2, 3)
        results = CALLS[group](lib, x, y)
        seen = list(log)

        def leaves(r: Any) -> Any:
            return [leaves(v) for v in r] if isinstance(r, (tuple, list)) else type(r).__name__

        found.append((seen, leaves(results)))
    assert found[0] == found[1]


def documented_program(lib: Any) -> list[str]:
    """The classes of PyTorch's notes on extending it, used."""
    handled: dict[Any, Any] = {}

    def implements(function: Any) -> Any:
        def decorate(given: Any) -> Any:
            handled[function] = functools.update_wrapper(given, function)
            return given

        return decorate

    class Diagonal:
        def __init__(self, size: int, value: float) -> None:
            self._size, self._value = size, value

        def __repr__(self) -> str:
            return f"Diagonal({self._size}, {self._value})"

        def tensor(self) -> Any:
            return self._value * lib.eye(self._size)

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func not in handled or not all(issubclass(t, (lib.Tensor, Diagonal)) for t in types):
                return NotImplemented
            return handled[func](*args, **(kwargs or {}))

    @implements(lib.mean)
    def mean(input: Any) -> float:
        return float(input._value) / input._size

    @implements(lib.add)
    def add(input: Any, other: Any) -> Any:
        if isinstance(input, Diagonal) and isinstance(other, Diagonal):
            return Diagonal(input._size, input._value + other._value)
        return lib.add(*[d.tensor() if isinstance(d, Diagonal) else d for d in (input, other)])

    class WithNote:
        def __init__(self, data: Any, note: str) -> None:
            self._t, self._note = lib.as_tensor(data), note

        def __repr__(self) -> str:
            return f"{self._note}: {self._t.tolist()}"

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            notes = [a._note for a in args if hasattr(a, "_note")]
            args = [getattr(a, "_t", a) for a in args]
            return WithNote(func(*args, **(kwargs or {})), notes[0])

    d, m = Diagonal(3, 2), WithNote([[1, 2], [3, 4]], "mine")
    plain = lib.tensor([[1, 2], [1, 2]])
    out = [repr(r) for r in (
        lib.mean(d), lib.add(d, d), lib.add(lib.eye(3), d).tolist(),
        lib.add(plain, m), lib.mul(plain, m), lib.matmul(plain, m), plain + m,
        lib.nn.functional.linear(m, plain), lib.cat([m._t, plain]).tolist(),
    )]  # fmt: skip
    for wrong in (lambda: lib.mul(d, 3), lambda: lib.nn.functional.relu(d), lambda: plain + d):
        with pytest.raises(TypeError) as error:
            wrong()
        out.append("Diagonal" in str(error.value) and "T")  # type: ignore[arg-type]
    return out


def test_the_programs_of_pytorchs_notes_print_the_same() -> None:
    assert documented_program(webtorch) == documented_program(torch)


def modes_program(lib: Any) -> list[str]:
    log: list[str] = []

    class Log(lib.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            log.append(str(lib.overrides.resolve_name(func)))
            return func(*args, **(kwargs or {}))

    class Shifted(lib.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result + 100 if func is lib.zeros else result

    with Log():
        lib.tensor([1.0]), lib.ones(2) + 1, lib.rand(2).softmax(0), lib.zeros(2).shape
    with Shifted(), Log():
        log.append(str(lib.zeros(2).tolist()))
    log.append(str(lib.zeros(2).tolist()))
    return log


def test_modes_see_every_function_also_those_that_make_tensors() -> None:
    assert modes_program(webtorch) == modes_program(torch)


def attributes_program(lib: Any) -> list[str]:
    class Named(lib.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls: Any, x: Any, extra: Any, *args: Any, **kwargs: Any) -> Any:
            return lib.Tensor.__new__(cls, x, *args, **kwargs)

        def __init__(self, x: Any, extra: Any) -> None:
            self.extra = extra

        def clone(self, *args: Any, **kwargs: Any) -> Any:
            return Named(super().clone(*args, **kwargs), self.extra)

    class Sub(lib.Tensor):  # type: ignore[misc]
        pass

    class Below(Sub):
        pass

    class Beside(lib.Tensor):  # type: ignore[misc]
        pass

    n, x = Named([1.0, 2.0], "label"), Sub([1.0, 2.0]).requires_grad_()
    loss = (x * x).sum()
    loss.backward()
    p = lib.nn.Parameter(Sub([1.0, 2.0]))
    module = lib.nn.Module()
    module.p = p
    lib.optim.SGD(module.parameters(), lr=0.1)
    out = [
        n.extra, n.clone().extra, type(n + 1).__name__, type(loss).__name__, type(x.grad).__name__, x.grad.tolist(),
        isinstance(p, lib.nn.Parameter), [type(q).__name__ for q in module.parameters()], repr(p),
        type(Sub([1.0]) + Below([1.0])).__name__, type(copy.copy(x)).__name__, repr(Sub([1.5])),
        type(lib.nn.Parameter(lib.ones(1)) + 1).__name__, Sub(2, 3).shape == (2, 3),
    ]  # fmt: skip
    with lib._C.DisableTorchFunctionSubclass():
        out.append(type(Sub([1.0]) + 1).__name__)
    for wrong in (lambda: Sub([1.0]) + Beside([1.0]), lambda: lib.ones(1).as_subclass(int)):
        with pytest.raises(TypeError):
            wrong()
    return [str(o) for o in out]


def test_subclasses_with_attributes_parameters_and_gradients() -> None:
    assert attributes_program(webtorch) == attributes_program(torch)


class Kept(webtorch.Tensor):
    """A class that pickle finds."""


def test_a_subclass_survives_copies() -> None:
    x = Kept([1.0, 2.0])
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is Kept
        assert y.tolist() == [1.0, 2.0]


FIRST_MEETINGS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "x[object]": lambda lib, x, o: x[o],
    "x[object] = 1": lambda lib, x, o: operator.setitem(x, o, 1),
    "x[0] = object": lambda lib, x, o: operator.setitem(x, 0, o),
    "x += object": lambda lib, x, o: operator.iadd(x, o),
    "object + x": lambda lib, x, o: o + x,
    "x.clamp_(object)": lambda lib, x, o: x.clamp_(o),
    "x.masked_fill_(object, 1)": lambda lib, x, o: x.masked_fill_(o, 1),
    "torch.matmul(x, object)": lambda lib, x, o: lib.matmul(x, o),
    "torch.lerp(x, x, object)": lambda lib, x, o: lib.lerp(x, x, o),
    "torch.addmm(x, x, object)": lambda lib, x, o: lib.addmm(x, x, o),
    "torch.stack([x, object])": lambda lib, x, o: lib.stack([x, o]),
    "torch.where(x > 0, x, object)": lambda lib, x, o: lib.where(x > 0, x, o),
    "torch.allclose(x, object)": lambda lib, x, o: lib.allclose(x, o),
    "cosine_similarity(x, object)": lambda lib, x, o: lib.nn.functional.cosine_similarity(x, o),
    "layer_norm(x, (2,), object)": lambda lib, x, o: lib.nn.functional.layer_norm(x, (2,), o),
    "mse_loss(x, object)": lambda lib, x, o: lib.nn.functional.mse_loss(x, o),
    "pairwise_distance(x, object)": lambda lib, x, o: lib.nn.functional.pairwise_distance(x, o),
    "gaussian_nll_loss(x, x, object)": lambda lib, x, o: lib.nn.functional.gaussian_nll_loss(
        x, x, o
    ),
    "conv1d(x, object)": lambda lib, x, o: lib.nn.functional.conv1d(x, o),
}


def meet(lib: Any, name: str) -> tuple[Any, Any]:
    """Do one thing with an object that accepts, and with one that does not."""
    log: list[str] = []

    class Object:
        accepts = True

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            log.append(func.__name__)
            return 7 if cls.accepts else NotImplemented

    class Refusing(Object):
        accepts = False

    found = FIRST_MEETINGS[name](lib, lib.ones(2), Object())
    try:
        refused = FIRST_MEETINGS[name](lib, lib.ones(2), Refusing())
    except TypeError:
        refused = "TypeError"
    return log, (found, refused)


@pytest.mark.parametrize("name", FIRST_MEETINGS)
def test_an_object_that_is_met_is_asked_and_leaves_nothing_behind(name: str) -> None:
    before = active.count
    assert meet(webtorch, name) == meet(torch, name)
    assert active.count == before


def looking() -> int:
    """Return how many look at calls for the sake of what lives now."""
    gc.collect()
    count_out()
    return active.count


def test_classes_are_asked_while_their_tensors_live() -> None:
    class Mine(webtorch.Tensor):
        pass

    before = looking()
    x = webtorch.ones(2).as_subclass(Mine)
    kept = [copy.copy(x), copy.deepcopy(x), x + 1, Mine([1.0])]
    assert looking() == before + 5
    del x, kept[1:]
    assert type(kept[0] * 2) is Mine
    assert looking() == before + 1
    other = webtorch.ones(2)
    webtorch.utils.swap_tensors(kept[0], other)
    assert type(other * 2) is Mine
    del other
    assert looking() == before


def test_a_lazy_layer_asks_until_it_has_its_shape() -> None:
    before = looking()
    layer = webtorch.nn.LazyLinear(2)
    assert looking() == before + 2
    layer(webtorch.ones(1, 3))
    assert looking() == before


def test_an_object_is_asked_that_is_met_while_a_script_is_followed() -> None:
    class Seen:
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> str:
            return str(func.__name__)

    weight = webtorch.ones(3, requires_grad=True)
    optimizer = webtorch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()
    assert webtorch.clone(Seen()) == "clone"


def test_whatever_may_be_asked_goes_the_one_way_in() -> None:
    askable = webtorch.tensors.override.askable()
    assert len(askable) > 1000
    callees = [getattr(function, "callee", None) for function in askable]
    assert [c.public for c in callees if isinstance(c, Callee)] == list(askable)


def test_overridable_functions_are_told_apart() -> None:
    told = webtorch.overrides.get_overridable_functions()
    assert webtorch.add in told[webtorch]
    assert webtorch.Tensor.shape.__get__ in told[webtorch.Tensor]
    assert webtorch.nn.functional.softmax in told[webtorch.nn.functional]
    ignored = webtorch.overrides.get_ignored_functions()
    assert webtorch.zeros in ignored
    assert webtorch.add not in ignored
    for lib in (webtorch, torch):
        assert lib.overrides.resolve_name(lib.Tensor.add) == "torch.Tensor.add"
        assert lib.overrides.is_tensor_method_or_property(lib.Tensor.shape.__get__)
        assert not lib.overrides.is_tensor_method_or_property(lib.add)


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_a_class_is_not_asked_about_what_it_is_making(lib: Any) -> None:
    class Noted(lib.Tensor):  # type: ignore[misc]
        note: list[str]

        @staticmethod
        def __new__(cls: Any, data: Any, note: list[str] | None = None) -> Any:
            made = lib.Tensor._make_subclass(cls, data, data.requires_grad)
            made.note = [] if note is None else note
            return made

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            note = next(x.note for x in args if isinstance(x, cls))
            note.append(func.__name__)
            found = lib.overrides.redispatch_function(func, types, args, kwargs)
            made = isinstance(found, lib.Tensor) and not isinstance(found, cls)
            return cls(found, note) if made else found

    found = lib.nn.Parameter(Noted(lib.ones(3))) * 2
    assert type(found) is Noted and found.requires_grad and "mul" in str(found.note)


@pytest.mark.parametrize("lib", [webtorch, torch])
def test_what_a_function_calls_is_asked_though_the_call_itself_is_not(lib: Any) -> None:
    """`redispatch_function` skips one call: of a class, and of a mode that is on again."""
    seen: list[str] = []

    def redispatched(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(func.__name__)
        return lib.overrides.redispatch_function(func, types, args, kwargs)

    class Logged(lib.Tensor):  # type: ignore[misc]
        __torch_function__ = staticmethod(redispatched)

    class Log(lib.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, *call: Any) -> Any:
            with self:
                return redispatched(*call)

    def scaled(a: Any, b: Any) -> Any:
        if lib.overrides.has_torch_function((a, b)):
            return lib.overrides.handle_torch_function(scaled, (a, b), a, b)
        return lib.mul(a, b) + 1

    x = lib.tensor([3.0])
    out = scaled(x.as_subclass(Logged), x.as_subclass(Logged))
    assert seen == ["scaled", "mul"] and type(out) is lib.Tensor and out.tolist() == [10.0]
    seen.clear()
    with Log():
        scaled(x, x)
    assert seen[:2] == ["scaled", "mul"] and "add" in seen[2]
