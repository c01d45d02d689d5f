"""Module: registration, state, hooks, conversion and printing, side by side with PyTorch."""

from __future__ import annotations

import gc
import pickle
import re
import weakref
from collections import OrderedDict
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn as ref

import webtorch
from tests.nn.oracle import assert_same, load_same, to_numpy, to_web
from webtorch import nn

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")


def net(lib: Any) -> Any:
    """Return a module with everything in it: shared, nested, buffers, None."""
    torch_like = torch if lib is ref else webtorch

    class Net(lib.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = lib.Linear(3, 4)
            self.body = lib.Sequential(lib.Linear(4, 4), lib.BatchNorm1d(4), lib.ReLU())
            self.again = self.first
            self.scale = lib.Parameter(torch_like.ones(4))
            self.register_parameter("absent", None)
            self.register_buffer("kept", torch_like.zeros(2))
            self.register_buffer("passing", torch_like.ones(2), persistent=False)
            self.marked = lib.Buffer(torch_like.ones(1), persistent=False)
            self.missing = None
            self.number = 3

        def forward(self, x: Any) -> Any:
            return self.body(self.first(x)) * self.scale

    return Net()


def both() -> tuple[Any, Any]:
    return net(nn), net(ref)


@pytest.mark.covers("I1", "I2", "I3")
def test_walks_of_the_tree_give_pytorch_names_in_pytorch_order() -> None:
    ours, theirs = both()

    def names(pairs: Any) -> list[str]:
        return [name for name, _ in pairs]

    for walk in ("named_parameters", "named_buffers", "named_modules"):
        assert names(getattr(ours, walk)()) == names(getattr(theirs, walk)())
        assert names(getattr(ours, walk)(remove_duplicate=False)) == names(
            getattr(theirs, walk)(remove_duplicate=False)
        )
        assert names(getattr(ours, walk)(prefix="p")) == names(getattr(theirs, walk)(prefix="p"))
    assert names(ours.named_children()) == names(theirs.named_children())
    assert names(ours.named_parameters(recurse=False)) == ["scale"]
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    assert len(list(ours.buffers())) == len(list(theirs.buffers()))
    assert len(list(ours.modules())) == len(list(theirs.modules()))
    assert len(list(ours.children())) == len(list(theirs.children()))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    assert repr(ours) == repr(theirs)
    assert [n for n in dir(theirs) if not hasattr(ref.Module, n) and n[0] != "_"] == [
        n for n in dir(ours) if not hasattr(nn.Module, n) and n[0] != "_"
    ]


@pytest.mark.covers("I34")
def test_parameter_is_a_leaf_that_shares_its_data() -> None:
    data = webtorch.zeros(3)
    param = nn.Parameter(data)
    assert isinstance(param, webtorch.Tensor)
    assert param.requires_grad
    assert param.is_leaf
    with webtorch.no_grad():
        param.add_(1)
    assert data.tolist() == [1.0, 1.0, 1.0]
    assert not nn.Parameter(data, requires_grad=False).requires_grad
    assert tuple(nn.Parameter().shape) == (0,)
    assert not isinstance(param * 2, nn.Parameter)
    assert repr(nn.Parameter(webtorch.ones(2))) == repr(ref.Parameter(torch.ones(2)))
    with pytest.raises(TypeError, match="must be a Tensor, not list"):
        nn.Parameter([1.0])  # type: ignore[arg-type]
    for copied in (deepcopy(param), pickle.loads(pickle.dumps(param))):
        assert isinstance(copied, nn.Parameter)
        assert copied.requires_grad
        assert copied.tolist() == param.tolist()
        assert copied is not param


ATTEMPTS: dict[str, Any] = {
    "parameter to a tensor": lambda m, lib, t: setattr(m, "scale", t.ones(4)),
    "parameter to a str": lambda m, lib, t: setattr(m, "scale", "x"),
    "module to a number": lambda m, lib, t: setattr(m, "first", 3),
    "buffer to a number": lambda m, lib, t: setattr(m, "kept", 3),
    "buffer name": lambda m, lib, t: m.register_buffer("a.b", t.ones(1)),
    "buffer empty": lambda m, lib, t: m.register_buffer("", t.ones(1)),
    "buffer number": lambda m, lib, t: m.register_buffer(3, t.ones(1)),
    "buffer taken": lambda m, lib, t: m.register_buffer("number", t.ones(1)),
    "buffer not tensor": lambda m, lib, t: m.register_buffer("b", [1]),
    "parameter name": lambda m, lib, t: m.register_parameter("a.b", None),
    "parameter empty": lambda m, lib, t: m.register_parameter("", None),
    "parameter taken": lambda m, lib, t: m.register_parameter("number", None),
    "parameter tensor": lambda m, lib, t: m.register_parameter("p", t.ones(1)),
    "parameter int tensor": lambda m, lib, t: m.register_parameter("p", t.ones(1).long()),
    "module type": lambda m, lib, t: m.add_module("m", 3),
    "module name": lambda m, lib, t: m.add_module("a.b", lib.ReLU()),
    "module empty": lambda m, lib, t: m.add_module("", lib.ReLU()),
    "module number": lambda m, lib, t: m.add_module(3, lib.ReLU()),
    "module taken": lambda m, lib, t: m.add_module("number", lib.ReLU()),
    "no attribute": lambda m, lib, t: m.nothing,
    "no submodule": lambda m, lib, t: m.get_submodule("body.7"),
    "not a submodule": lambda m, lib, t: m.get_submodule("number"),
    "no parameter": lambda m, lib, t: m.get_parameter("body.0.x"),
    "not a parameter": lambda m, lib, t: m.get_parameter("body.0"),
    "no buffer": lambda m, lib, t: m.get_buffer("body.x"),
    "not a buffer": lambda m, lib, t: m.get_buffer("scale"),
    "set nothing": lambda m, lib, t: m.set_submodule("", lib.ReLU()),
    "set strict": lambda m, lib, t: m.set_submodule("body.9", lib.ReLU(), strict=True),
    "set over a number": lambda m, lib, t: m.set_submodule("number", lib.ReLU()),
    "train": lambda m, lib, t: m.train(1),
    "to int": lambda m, lib, t: m.to(t.int64),
    "forward": lambda m, lib, t: lib.Module()(3),
    "arguments": lambda m, lib, t: lib.Module(3),
    "keywords": lambda m, lib, t: lib.Module(a=3),
    "load list": lambda m, lib, t: m.load_state_dict([1]),
    "load nothing": lambda m, lib, t: m.load_state_dict({}),
    "load more": lambda m, lib, t: m.load_state_dict({**m.state_dict(), "x": 1, "first.y": 2}),
    "load one less": lambda m, lib, t: m.load_state_dict(
        {k: v for k, v in m.state_dict().items() if k != "first.bias"}),
    "load shape": lambda m, lib, t: m.load_state_dict({**m.state_dict(), "scale": t.ones(5)}),
    "load list entry": lambda m, lib, t: m.load_state_dict({**m.state_dict(), "scale": [1]}),
    "before init": lambda m, lib, t: early(lib, lambda: lib.Linear(1, 1)),
    "before init parameter": lambda m, lib, t: early(lib, lambda: lib.Parameter(t.ones(1))),
    "sequential": lambda m, lib, t: lib.Sequential(3),
    "sequential index": lambda m, lib, t: m.body[3],
    "sequential add": lambda m, lib, t: m.body + 3,
    "sequential mul": lambda m, lib, t: m.body * 0,
    "conv groups": lambda m, lib, t: lib.Conv2d(3, 4, 1, groups=2),
    "conv out groups": lambda m, lib, t: lib.Conv2d(4, 3, 1, groups=2),
    "conv zero groups": lambda m, lib, t: lib.Conv2d(4, 3, 1, groups=0),
    "conv same stride": lambda m, lib, t: lib.Conv2d(4, 4, 1, 2, padding="same"),
    "transposed mode": lambda m, lib, t: lib.ConvTranspose1d(4, 4, 1, padding_mode="reflect"),
    "batch norm rank": lambda m, lib, t: lib.BatchNorm2d(3)(t.ones(2, 3)),
    "batch norm 1": lambda m, lib, t: lib.BatchNorm1d(3)(t.ones(1, 3)),
    "instance norm": lambda m, lib, t: lib.InstanceNorm1d(3)(t.ones(2, 3, 4, 5)),
    "group norm": lambda m, lib, t: lib.GroupNorm(2, 3),
    "dropout": lambda m, lib, t: lib.Dropout(1.5),
    "embedding": lambda m, lib, t: lib.Embedding(3, 2, padding_idx=3),
    "attention": lambda m, lib, t: lib.MultiheadAttention(5, 2),
    "attention sizes": lambda m, lib, t: lib.MultiheadAttention(0, 2),
    "attention mask": lambda m, lib, t: lib.MultiheadAttention(4, 2)(
        *[t.ones(2, 2, 4)] * 3, attn_mask=t.ones(2, 3)),
    "attention mask type": lambda m, lib, t: lib.MultiheadAttention(4, 2)(
        *[t.ones(2, 2, 4)] * 3, attn_mask=t.ones(2, 2).long()),
    "attention rank": lambda m, lib, t: lib.MultiheadAttention(4, 2)(*[t.ones(4)] * 3),
    "attention causal": lambda m, lib, t: lib.MultiheadAttention(4, 2)(
        *[t.ones(2, 2, 4)] * 3, is_causal=True),
    "hardtanh": lambda m, lib, t: lib.Hardtanh(1.0, -1.0),
    "triplet": lambda m, lib, t: lib.TripletMarginLoss(-1.0),
    "module list": lambda m, lib, t: lib.ModuleList(3),
    "module dict": lambda m, lib, t: lib.ModuleDict(3),
    "parameter list": lambda m, lib, t: lib.ParameterList([1])(2),
    "parameter dict": lambda m, lib, t: lib.ParameterDict({})(2),
    "unflatten": lambda m, lib, t: lib.Unflatten(1, (2, "a")),
}  # fmt: skip


def early(lib: Any, make: Any) -> None:
    """Assign before Module.__init__ has run."""

    class Early(lib.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.x = make()

    Early()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_errors_are_those_of_pytorch(name: str) -> None:
    ours, theirs = both()
    with pytest.raises(Exception) as expected:
        ATTEMPTS[name](theirs, ref, torch)
    with pytest.raises(type(expected.value)) as actual:
        ATTEMPTS[name](ours, nn, webtorch)
    # Where a class is found is the one thing that may differ.
    place = re.compile(r"(web)?torch\.nn\.(\w+\.)*")
    assert place.sub("nn.", str(actual.value)) == place.sub("nn.", str(expected.value))


def test_assignment_moves_a_name_between_the_tables() -> None:
    ours, theirs = both()
    for module, lib, tensors in ((ours, nn, webtorch), (theirs, ref, torch)):
        module.number = lib.Parameter(tensors.ones(1))
        module.first = lib.ReLU()
        module.kept = tensors.ones(3)
        module.missing = lib.Linear(1, 1)
        module.scale = None
        module.body = None
        del module.again
        del module.passing
        module.passing = 5
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    assert ours.passing == 5
    assert ours.scale is None
    assert tuple(ours.kept.shape) == (3,)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'again'"):
        ours.again


def test_paths_find_submodules_parameters_and_buffers() -> None:
    module = net(nn)
    assert module.get_submodule("") is module
    assert module.get_submodule("body.0") is module.body[0]
    assert module.get_parameter("body.0.weight") is module.body[0].weight
    assert module.get_buffer("body.1.running_var") is module.body[1].running_var
    module.set_submodule("body.2", nn.Tanh())
    assert isinstance(module.body[2], nn.Tanh)


def _names_looked_for(lib: Any, make: Any) -> list[Any]:
    class Base(lib.Module):  # type: ignore[misc]
        def __init__(self, module: bool = False) -> None:
            super().__init__()
            self.part = lib.Linear(2, 2) if module else lib.Parameter(make.ones(2))
            self.register_buffer("kept", make.zeros(1))

    class Asked(Base):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            return f"asked for {name}" if name == "part" else found

    class Beside:
        part = kept = "of the class"

    class After(Base, Beside):
        def __init__(self) -> None:
            lib.Module.__init__(self)

    one, other = Base(), Base(module=True)
    for m in (one, other) * 3:
        assert m.part is (m._modules if m is other else m._parameters)["part"]
        assert m.kept is m._buffers["kept"]
    asked, after = Asked(), After()
    seen: list[Any] = [sorted({*vars(one)} & {"part", "kept"}), hasattr(Base, "part")]
    seen += [asked.part, after.part, after.kept, tuple(asked.kept.shape)]
    one._parameters["part"] = lib.Parameter(make.zeros(1))
    seen.append(tuple(one.part.shape))
    one.__dict__["part"] = "in the module"
    seen.append(one.part)
    del one.__dict__["part"], one.part
    seen += [hasattr(one, "part"), [n for n in dir(one) if n in ("part", "kept")]]
    one.part = 3
    seen += [one.part, "part" in vars(one), hasattr(deepcopy(one), "kept")]
    with pytest.raises(AttributeError) as error:
        Base.part.anything
    Base.part = property(lambda self: "of a property")
    return [*seen, str(error.value), other.part]


def test_a_name_is_found_as_in_pytorch_however_often_it_was_looked_for() -> None:
    assert _names_looked_for(nn, webtorch) == _names_looked_for(ref, torch)


@pytest.mark.covers("I4")
def test_train_and_eval_reach_everything_below() -> None:
    module = net(nn)
    assert module.eval() is module
    assert not any(m.training for m in module.modules())
    module.train()
    assert all(m.training for m in module.modules())


def test_requires_grad_and_zero_grad_reach_every_parameter(device: str) -> None:
    module = net(nn).to(device)
    assert module.requires_grad_(False) is module
    assert not any(p.requires_grad for p in module.parameters())
    module.requires_grad_()
    module(webtorch.ones((2, 3), device=device)).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    module.zero_grad(set_to_none=False)
    assert all(p.grad.abs().sum().item() == 0 for p in module.parameters())
    module.zero_grad()
    assert all(p.grad is None for p in module.parameters())


def test_apply_runs_children_first() -> None:
    ours, theirs = both()
    seen: list[list[str]] = [[], []]
    ours.apply(lambda m: seen[0].append(type(m).__name__))
    theirs.apply(lambda m: seen[1].append(type(m).__name__))
    assert seen[0] == seen[1]


# -- state ----------------------------------------------------------------------------------------


@pytest.mark.covers("I5", "I6")
def test_state_dict_shares_storage_and_loads_into_another(device: str) -> None:
    module, other = net(nn).to(device), net(nn).to(device)
    state = module.state_dict()
    assert not state["scale"].requires_grad
    assert module.state_dict(keep_vars=True)["scale"] is module.scale
    with webtorch.no_grad():
        module.scale.fill_(7.0)
    assert state["scale"].tolist() == [7.0] * 4
    kept = other.scale
    result = other.load_state_dict(state)
    assert str(result) == "<All keys matched successfully>"
    assert other.scale is kept
    for key, value in other.state_dict().items():
        assert value.tolist() == state[key].tolist()
    assert list(module.state_dict(prefix="x.")) == ["x." + key for key in state]


def test_loading_without_strict_reports_what_did_not_meet() -> None:
    results = []
    for module in both():
        state = dict(module.state_dict())
        del state["scale"], state["body.0.bias"]
        state["extra"] = state["kept"]
        results.append(module.load_state_dict(state, strict=False))
    assert results[0].missing_keys == results[1].missing_keys
    assert results[0].unexpected_keys == results[1].unexpected_keys
    assert str(results[0]) == str(results[1])


def test_loading_with_assign_takes_the_given_tensors(device: str) -> None:
    module = nn.Linear(2, 2).to(device)
    state = {"weight": webtorch.ones((2, 2), dtype=webtorch.float16, device=device),
             "bias": nn.Parameter(webtorch.zeros(2, device=device))}  # fmt: skip
    bias = state["bias"]
    module.load_state_dict(state, assign=True)
    assert isinstance(module.weight, nn.Parameter)
    assert str(module.weight.dtype) == str(webtorch.float16)
    assert module.bias is bias


def test_extra_state_and_hooks_take_part_in_the_state_dict() -> None:
    seen: list[str] = []
    states = []
    for lib in (nn, ref):

        class Counting(lib.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.count = 3

            def get_extra_state(self) -> Any:
                return {"count": self.count}

            def set_extra_state(self, state: Any) -> None:
                self.count = state["count"]

        module = lib.Sequential(Counting(), lib.Linear(1, 1))
        module.register_state_dict_pre_hook(lambda m, p, k: seen.append(f"pre {p}"))
        module[1].register_state_dict_post_hook(lambda m, s, p, meta: seen.append(f"post {p}"))
        module._register_state_dict_hook(lambda m, s, p, meta: {**s, "more": 1})
        state = module.state_dict()
        states.append({k: v for k, v in state.items() if "1." not in k})
        del state["more"]
        state["0._extra_state"] = {"count": 9}

        def renamed(m: Any, state: Any, *rest: Any) -> None:
            seen.append("load pre")
            state["1.bias"] = state.pop("old")

        module.register_load_state_dict_pre_hook(renamed)
        module.register_load_state_dict_post_hook(lambda m, keys: seen.append(str(keys)))
        state["old"] = state.pop("1.bias")
        module.load_state_dict(state)
        assert module[0].count == 9
        module[1].register_state_dict_post_hook(lambda m, s, p, meta: s)
        with pytest.raises(RuntimeError, match="must return None"):
            module.state_dict()
    assert states[0] == states[1]
    half = len(seen) // 2
    assert seen[:half] == seen[half:]


def test_old_batch_norm_state_without_its_count_loads(device: str) -> None:
    module = nn.BatchNorm1d(3).to(device)
    state = dict(module.state_dict())
    del state["num_batches_tracked"]
    module.load_state_dict(state)


# -- hooks ----------------------------------------------------------------------------------------


def test_forward_hooks_see_and_change_arguments_and_results(device: str) -> None:
    logs = []
    for lib, tensors, where in ((nn, webtorch, device), (ref, torch, "cpu")):
        log: list[Any] = []
        module = lib.Linear(2, 2).to(where)
        with tensors.no_grad():
            module.weight.fill_(1.0)
            module.bias.fill_(0.0)
        module.register_forward_pre_hook(lambda m, args, log=log: log.append("plain"))
        module.register_forward_pre_hook(lambda m, args: args[0] + 1, prepend=True)
        module.register_forward_pre_hook(
            lambda m, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
        )
        module.register_forward_hook(lambda m, args, out: out * 10)
        handle = module.register_forward_hook(
            lambda m, args, kwargs, out, log=log: log.append(out.tolist()), with_kwargs=True
        )
        x = tensors.ones(1, 2).to(where)
        log.append(module(x).tolist())
        with handle:
            pass
        log.append(module(x).tolist())
        logs.append(log)
    assert logs[0] == logs[1]
    assert logs[0][-1] == [[80.0, 80.0]]


def test_hooks_that_are_always_called_see_a_failing_forward() -> None:
    for lib in (nn, ref):
        seen: list[str] = []

        class Failing(lib.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                raise ValueError("broken")

        module = Failing()
        module.register_forward_hook(lambda m, a, out, seen=seen: seen.append("no"))
        module.register_forward_hook(
            lambda m, a, out, seen=seen: seen.append("yes"), always_call=True
        )
        with pytest.raises(ValueError, match="broken"):
            module(3)
        assert seen == ["yes"]


def test_pre_hook_with_keywords_must_return_a_pair() -> None:
    module = nn.ReLU()
    module.register_forward_pre_hook(lambda m, a, k: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        module(webtorch.ones(1))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_full_backward_hooks_see_and_change_gradients(device: str) -> None:
    results = []
    for lib, tensors, where in ((nn, webtorch, device), (ref, torch, "cpu")):
        log: list[Any] = []

        def note(name: str, log: list[Any] = log) -> Any:
            def hook(module: Any, *grads: Any) -> None:
                log.append(
                    (name, [[None if g is None else g.tolist() for g in side] for side in grads])
                )

            return hook

        module = lib.Linear(2, 1).to(where)
        with tensors.no_grad():
            module.weight.fill_(3.0)
        module.register_full_backward_hook(note("after"))
        module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        module.register_full_backward_pre_hook(note("before"))
        module.register_full_backward_pre_hook(lambda m, go: (go[0] + 1,))
        x = tensors.ones(1, 2).to(where).requires_grad_()
        module(x).sum().backward()
        log.append(x.grad.tolist())
        # No input needs a gradient: the hooks run when the output's one is there.
        module.zero_grad()
        module._backward_hooks.popitem()
        module(tensors.ones(1, 2).to(where)).sum().backward()
        log.append(module.weight.grad.tolist())
        results.append(log)
    assert results[0] == results[1]
    assert results[0][2] == [[12.0, 12.0]]


def test_global_hooks_see_every_module() -> None:
    seen: list[str] = []
    handles = [
        nn.modules.module.register_module_forward_pre_hook(
            lambda m, a: seen.append("pre " + type(m).__name__)
        ),
        nn.modules.module.register_module_forward_hook(
            lambda m, a, out: seen.append("post " + type(m).__name__)
        ),
        nn.modules.module.register_module_parameter_registration_hook(
            lambda m, name, p: seen.append("parameter " + name)
        ),
        nn.modules.module.register_module_module_registration_hook(
            lambda m, name, p: seen.append("module " + name)
        ),
    ]
    try:
        nn.Sequential(nn.Linear(1, 1), nn.ReLU())(webtorch.ones(1))
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [
        "parameter weight", "parameter bias", "module 0", "module 1", "pre Sequential",
        "pre Linear", "post Linear", "pre ReLU", "post ReLU", "post Sequential",
    ]  # fmt: skip
    nn.ReLU()(webtorch.ones(1))
    assert len(seen) == 10


# -- conversion -----------------------------------------------------------------------------------


def test_conversion_keeps_parameters_and_moves_gradients(device: str) -> None:
    module = net(nn)
    params = list(module.parameters())
    module(webtorch.ones((2, 3))).sum().backward()
    assert module.to(device) is module
    assert all(a is b for a, b in zip(params, module.parameters(), strict=True))
    for tensor in [*module.parameters(), *module.buffers()]:
        assert tensor.device.type == device
    assert all(p.grad.device.type == device for p in module.parameters())
    module.half()
    assert str(module.scale.dtype) == str(webtorch.float16)
    assert str(module.body[1].num_batches_tracked.dtype) == str(webtorch.int64)
    module.float()
    module.to(webtorch.bfloat16)
    assert str(module.first.weight.dtype) == str(webtorch.bfloat16)
    module.to(webtorch.ones(1, device=device))
    assert str(module.first.weight.dtype) == str(webtorch.float32)
    module.cpu()
    assert module.scale.device.type == "cpu"
    module.to(device=device, dtype=webtorch.float32, non_blocking=True)
    assert module.scale.device.type == device
    assert module.to_empty(device="cpu").scale.device.type == "cpu"
    with pytest.raises(TypeError, match="invalid keyword"):
        module.to(place="cpu")
    with pytest.raises(TypeError, match="invalid argument"):
        module.to([3])


def test_double_works_on_the_cpu() -> None:
    module = nn.Linear(2, 2).double()
    reference = ref.Linear(2, 2).double()
    load_same(module, reference, "cpu")
    x = torch.randn(3, 2, dtype=torch.float64)
    assert_same(module(to_web(x, "cpu")), reference(x), rtol=1e-12, atol=1e-12)


def test_constructor_takes_device_and_dtype(device: str) -> None:
    layer = nn.Linear(2, 3, device=device, dtype=webtorch.float16)
    assert layer.weight.device.type == device
    assert str(layer.bias.dtype) == str(webtorch.float16)
    norm = nn.BatchNorm1d(3, device=device)
    assert all(b.device.type == device for b in norm.buffers())


# -- copies and life time -------------------------------------------------------------------------


def test_deepcopy_keeps_sharing_within_the_copy(device: str) -> None:
    module = net(nn).to(device)
    copied = deepcopy(module)
    assert copied.again is copied.first
    assert copied.first is not module.first
    with webtorch.no_grad():
        copied.scale.fill_(5.0)
    assert module.scale.tolist() == [1.0] * 4
    assert list(copied.state_dict()) == list(module.state_dict())


def test_modules_with_hooks_are_freed_without_the_collector() -> None:
    module = nn.Linear(2, 2)
    handle = module.register_forward_hook(lambda m, a, out: None)
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()
    handle.remove()


def test_printing_follows_pytorch_for_extra_lines() -> None:
    texts = []
    for lib in (nn, ref):

        class Lines(lib.Module):  # type: ignore[misc, name-defined]
            def extra_repr(self) -> str:
                return "one\ntwo"

        class Holder(lib.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.lines = Lines()
                self.empty = None

            def extra_repr(self) -> str:
                return "x=1"

        texts.append(repr(Holder()))
        texts.append(repr(lib.Sequential(OrderedDict(a=Lines(), b=lib.Sequential()))))
    assert texts[:2] == texts[2:]


def test_numpy_of_parameters_is_what_was_set() -> None:
    layer = nn.Linear(2, 2, bias=False)
    with webtorch.no_grad():
        layer.weight.copy_(webtorch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert to_numpy(layer.weight).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_buffer_is_a_plain_tensor_with_a_mark() -> None:
    for lib, torch_like in ((nn, webtorch), (ref, torch)):
        value = torch_like.ones(2)
        buffer = lib.Buffer(value, persistent=False)
        assert type(buffer) is torch_like.Tensor
        assert isinstance(buffer, lib.Buffer)
        assert not isinstance(value, lib.Buffer)
        assert not isinstance(buffer, lib.parameter.UninitializedBuffer)
        assert not buffer.persistent
        layer = lib.Linear(1, 1)
        layer.kept = deepcopy(buffer)
        assert "kept" in dict(layer.named_buffers())
        assert "kept" not in layer.state_dict()


def test_what_wraps_tensors_is_parametrized_by_exchange() -> None:
    """The parameter that optimizers hold becomes what `right_inverse` gives, and keeps its class as a Parameter."""
    for lib, torch_like in ((nn, webtorch), (ref, torch)):

        class Wrapper(torch_like.Tensor):  # type: ignore[misc, name-defined]
            @staticmethod
            def __new__(cls: Any, inner: Any, torch_like: Any = torch_like) -> Any:
                made = torch_like.Tensor._make_wrapper_subclass(
                    cls, inner.size(), dtype=inner.dtype
                )
                made.inner = inner
                return made

            def __tensor_flatten__(self) -> Any:
                return ["inner"], None

            @staticmethod
            def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
                raise NotImplementedError

            @classmethod
            def __torch_dispatch__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                args = [a.inner if isinstance(a, cls) else a for a in args]
                return cls(func(*args, **(kwargs or {})))

        class Wraps(lib.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any) -> Any:
                return x

            def right_inverse(self, x: Any, wrapper: Any = Wrapper) -> Any:
                return wrapper(x)

        layer = lib.Linear(2, 2)
        before = layer.weight
        swaps = torch.__future__ if lib is ref else webtorch.nn.switches
        swaps.set_swap_module_params_on_conversion(True)
        try:
            lib.utils.parametrize.register_parametrization(layer, "weight", Wraps())
        finally:
            swaps.set_swap_module_params_on_conversion(False)
        original = layer.parametrizations.weight.original
        assert original is before
        assert type(original) is Wrapper
        assert isinstance(original, lib.Parameter)


def test_one_handle_removes_hooks_of_tensors_modules_and_optimizers() -> None:
    from webtorch.utils.hooks import RemovableHandle

    layer, seen = nn.Linear(2, 2), list[int]()
    x = webtorch.ones(2, requires_grad=True)
    handles = [
        x.register_hook(lambda g: seen.append(0)),
        (x * 2).register_hook(lambda g: seen.append(1)),
        layer.register_forward_hook(lambda *args: seen.append(2)),
        webtorch.optim.SGD(layer.parameters()).register_step_pre_hook(lambda *args: None),
    ]
    assert all(type(h) is RemovableHandle for h in handles)
    assert len({h.id for h in handles}) == len(handles)
    for h in handles:
        h.remove()
    layer(x).sum().backward()
    assert not seen
