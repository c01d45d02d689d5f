"""Programs that once gave other results than PyTorch, without a word: each prints the same with both libraries.

A program gets a library under the name `torch` and a device, and returns what Python prints. It runs with webtorch on
both of its devices and with PyTorch on its "webgpu" device; what PyTorch gives on its CPU is expected.
"""

from __future__ import annotations

import gzip
import io
import math
import operator
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
import webtorch.pytorch
from tests.conftest import need_device

INF, NAN = float("inf"), float("nan")
# Program -> the faces that have it, where not all do.
_FACES: dict[Callable[..., Any], tuple[str, ...]] = {}
_ALL = ("webtorch-cpu", "webtorch-webgpu", "torch-webgpu")
_OURS = _ALL[:2]


def _program(function: Callable[..., Any]) -> Callable[..., Any]:
    _FACES[function] = _ALL
    return function


def _our_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note a program of what PyTorch's own code does on its device."""
    _FACES[function] = _OURS
    return function


def _outcome(function: Callable[[], Any]) -> Any:
    """Return what a call gives, or the built-in type of its error."""
    try:
        return _plain(function())
    except Exception as error:
        return next(t.__name__ for t in type(error).__mro__ if t.__module__ == "builtins")


def _plain(found: Any) -> Any:
    """Return numbers, rounded, for tensors."""
    if isinstance(found, (torch.Tensor, webtorch.Tensor)):
        return str(found.dtype), _plain(found.detach().cpu().tolist())
    if isinstance(found, dict):
        return {key: _plain(x) for key, x in found.items()}
    if isinstance(found, (list, tuple)):
        return [_plain(x) for x in found]
    if isinstance(found, complex):
        return complex(_plain(found.real), _plain(found.imag))
    return round(found, 3) + 0.0 if isinstance(found, float) else found


@_our_program
def comparisons_and_arithmetic_with_arrays(torch: Any, device: str) -> Any:
    x, y = torch.tensor([2.0, 3.0]), np.array([1.0, 3.0])
    z = torch.tensor([2.0, 3.0])
    z += y
    return [
        _outcome(call)
        for call in (
            lambda: x == y, lambda: y == x, lambda: x == np.array(2.0), lambda: y / x, lambda: x / y,
            lambda: x + np.array(2.0), lambda: x < np.array(2.0), lambda: x * np.float64(2.5), lambda: y in x,
            lambda: np.greater(x, 2), lambda: x.eq(y), lambda: z,
        )
    ]  # fmt: skip


@_program
def powers_of_complex_numbers(torch: Any, device: str) -> Any:
    x = torch.tensor([1 + 2j, 3j], device=device)
    return [torch.vander(x), torch.vander(x, 3, True)]


@_program
def gradients_of_distances_where_coordinates_coincide(torch: Any, device: str) -> Any:
    rows = [[0.0, 1.0, -2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 1.0]]
    others = [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 5.0, 1.0]]
    found = []
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF):
        x = torch.tensor(rows, device=device, requires_grad=True)
        y = torch.tensor(others, device=device, requires_grad=True)
        torch.cdist(x, y, p=p).sum().backward()
        found.append([x.grad, y.grad])
        if p != INF:
            x.grad = None
            torch.nn.functional.pdist(x, p).sum().backward()
            found.append(x.grad)
    return found


@_program
def pooling_by_infinite_norms(torch: Any, device: str) -> Any:
    x = torch.tensor([[1.0, -4.0, 2.0, -0.5]], device=device)
    return [torch.nn.functional.lp_pool1d(x, p, 2) for p in (INF, -INF)]


@_program
def renorm_by_norms_that_are_none(torch: Any, device: str) -> Any:
    x = torch.ones(2, 3, device=device)
    return [_outcome(lambda p=p: x.renorm(p, 0, 1.0)) for p in (0, -1.0, 2.0)]


@_program
def functional_call_with_attributes_and_tied_names(torch: Any, device: str) -> Any:
    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.tied = self.layer
            self.plain = torch.ones(2, device=device)
            self.text = "no tensor"

        def forward(self, x: Any) -> Any:
            if hasattr(self, "added"):
                self.plain = self.plain + self.added
            return self.layer(x) + self.tied(x) + self.plain

    model, x = Model().to(device), torch.ones(1, 2, device=device)
    zero = torch.zeros(2, 2, device=device)
    both = {"layer.weight": zero, "layer.bias": zero[0]}

    def call(given: Any, **options: bool) -> Any:
        return _outcome(lambda: torch.func.functional_call(model, given, x, **options))

    written = {**both, "plain": zero[0], "added": zero[0] + 3}
    return [
        call(both),
        call({**both, "plain": zero[0]}),
        call(written),
        written,
        call({**both, "tied.weight": zero + 1}),
        call({**both, "tied.weight": zero}),
        call({"text": zero}),
        call({"": zero}),
        call({"layer.weight": 3}),
        call([both, both]),
        call(both, strict=True),
        call({**both, "plain": zero}, strict=True),
        call({"layer.weight": zero}, strict=True),
        call({**both, "tied.weight": zero, "tied.bias": zero[0]}, tie_weights=False),
        hasattr(model, "added"),
        model.plain,
    ]


@_program
def hooks_run_in_pytorchs_order(torch: Any, device: str) -> Any:
    log: list[Any] = []
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2
    end = y.grad_fn.next_functions[0][0]
    end.register_prehook(lambda g: log.append("before the leaf"))
    end.register_hook(lambda a, b: log.append(("after the leaf", len(a), len(b))))
    x.register_hook(lambda g: log.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
    y.grad_fn.register_prehook(lambda g: log.append("before"))
    y.register_hook(lambda g: log.append("tensor"))
    y.grad_fn.register_hook(lambda a, b: log.append("after"))
    y.retain_grad()
    y.register_hook(lambda g: g * 3)
    y.sum().backward(retain_graph=True)
    log.append(["grad", *_plain(y.grad), *_plain(x.grad)])
    torch.autograd.grad(y.sum(), y, retain_graph=True)
    log.append("of x")
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    return log


@_program
def hooks_that_return_what_does_not_fit(torch: Any, device: str) -> Any:
    def run(where: str, value: Any) -> Any:
        x = torch.ones(2, device=device, requires_grad=True)
        y = x.exp()
        if where == "leaf":
            x.register_hook(lambda g: value)
        elif where == "tensor":
            y.register_hook(lambda g: value)
        elif where == "before":
            y.grad_fn.register_prehook(lambda g: value)
        else:
            y.grad_fn.register_hook(lambda a, b: value)
        y.sum().backward()
        return x.grad

    one = torch.ones(2, device=device)
    values = (1, torch.ones(3, device=device), one.half(), one * 5, (one,), (one, one), (None,), ())
    return [
        _outcome(lambda w=where, v=value: run(w, v))
        for where in ("leaf", "tensor", "before", "after")
        for value in values
    ]


@_our_program
def numbers_given_as_tensors(torch: Any, device: str) -> Any:
    x = torch.arange(6.0).reshape(2, 3).to(device)
    zeros = torch.zeros(2, 2, dtype=torch.long, device=device)
    i, F = torch.tensor(1), torch.nn.functional
    calls = (
        lambda: x.sum(i), lambda: x.softmax(i), lambda: x.roll(i, 0), lambda: x.topk(i).values,
        lambda: x.narrow(i, 0, i),
        lambda: x.movedim(0, i), lambda: x.cumsum(i), lambda: torch.eye(i * 3), lambda: torch.zeros(i, i),
        lambda: torch.linspace(i, 3, i * 4), lambda: x.index_select(i, zeros[0]), lambda: torch.randperm(i),
        lambda: x.std(i), lambda: F.conv1d(x[None], torch.ones(1, 2, 1, device=device), None, i, i * 0),
        lambda: F.max_pool1d(x[None], i), lambda: F.one_hot(zeros[0], i * 3), lambda: x[None].squeeze(i * 0),
        lambda: x[None].clone().squeeze_(i * 0), lambda: x.sum([i, i * 0]), lambda: torch.polygamma(i, x + 1),
        lambda: F.leaky_relu(x - 3, torch.tensor(0.5)), lambda: x.as_strided([i, i * 2], [i, i]), lambda: x.diagonal(i),
        lambda: torch.linalg.diagonal(x, offset=i), lambda: x.split_with_sizes([i, i], 0)[1], lambda: x.tril(i),
        lambda: x.sum(torch.tensor(1.0)),
    )  # fmt: skip
    return [_outcome(call) for call in calls]


@_our_program
def other_names_of_parameters(torch: Any, device: str) -> Any:
    x = torch.arange(8.0).reshape(2, 2, 2).to(device)
    calls = (
        lambda: torch.split(tensor=x, split_size_or_sections=1)[1], lambda: x.split(split_size=1)[0],
        lambda: torch.hsplit(x, sections=2)[0], lambda: torch.vsplit(x, indices=[1])[1],
        lambda: x.dsplit(sections=2)[0],
        lambda: torch.tensor_split(x, tensor_indices_or_sections=torch.tensor([1]))[1],
        lambda: torch.linalg.det(A=x.cpu()),
        lambda: torch.isin(elements=x, test_element=2), lambda: torch.isin(element=2, test_elements=x),
        lambda: torch.split(x, split=2),
    )  # fmt: skip
    return [_outcome(call) for call in calls]


@_program
def losses_of_floats_and_integers(torch: Any, device: str) -> Any:
    F, found = torch.nn.functional, []
    x, i = torch.tensor([0.5, 0.2], device=device), torch.tensor([1, 0], device=device)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy):
        for a, b in ((x, i), (i, x), (i, i), (x.half(), i)):
            leaf = a.clone().requires_grad_() if a.is_floating_point() else a
            done = _outcome(lambda f=loss, a=leaf, b=b: f(a, b))
            if not isinstance(done, str) and leaf.requires_grad:
                if loss in (F.mse_loss, F.l1_loss):
                    loss(leaf, b).backward()
                done = [done, leaf.grad]
            # Their errors differ in type.
            found.append("refused" if isinstance(done, str) else done)
    return found


@_our_program
def old_ways(torch: Any, device: str) -> Any:
    x = torch.ones(2, device=device)
    y = torch.autograd.Variable(x, requires_grad=True)
    y.sum().backward()
    del y.grad
    none = y.grad
    y.sum().backward()
    weight = torch.arange(6.0).to(device).reshape(3, 2)
    bags = torch.tensor([0, 2, 1], device=device), torch.tensor([0, 2], device=device)
    probabilities = torch.arange(60.0).reshape(5, 2, 6).sin().log_softmax(2).to(device)
    labels = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    lengths = torch.tensor([5, 5]), torch.tensor([2, 2])
    return [
        y.requires_grad, isinstance(x, torch.autograd.Variable), none, y.grad,
        list(x.new(torch.Size([])).shape), list(x.new(torch.Size([2, 3])).shape), list(x.new().shape), x.new([1, 2]),
        torch.nn.functional.embedding_bag(weight, *bags),
        torch.nn.functional.ctc_loss(probabilities, labels, *lengths),
    ]  # fmt: skip


@_our_program
def gradients_that_do_not_fit(torch: Any, device: str) -> Any:
    def put(value: Any, like: Any = None) -> Any:
        x = torch.ones(2, device=device, requires_grad=True) if like is None else like
        x.grad = x if value is None else value
        return x.grad

    def sentence(*args: Any) -> Any:
        try:
            return put(*args)
        except (TypeError, RuntimeError) as error:
            return str(error).partition("grad_dtype).")[0].partition(" You can")[0]

    one = torch.ones(2, device=device)
    return [
        sentence(one.half()), sentence(one.long()), sentence(one.to(torch.complex64)), sentence(one[:1]), sentence(1),
        sentence(None), sentence(torch.ones(2, device="meta")).replace("webgpu", "cpu"), sentence(one * 2),
        sentence(one.half(), one), sentence(one.long(), one.long()),
    ]  # fmt: skip


@_program
def diagonals_that_go_on(torch: Any, device: str) -> Any:
    def filled(x: Any) -> Any:
        return x.to(device).fill_diagonal_(1, wrap=True)

    cube = torch.zeros(3, 3, 3)
    return [filled(torch.zeros(7, 3)), filled(torch.zeros(3, 7).t()), filled(torch.zeros(3, 7)), filled(cube),
            filled(torch.zeros(8, 6)[:, ::2])]  # fmt: skip


@_program
def complex_means_that_meet(torch: Any, device: str) -> Any:
    x = torch.ones(3, dtype=torch.complex64, device=device)
    i = torch.tensor([0, 1, 0], device=device)
    values = torch.tensor([1 + 1j, 2, 3j], dtype=torch.complex64, device=device)
    return [x.scatter_reduce(0, i, values, "mean", include_self=s) for s in (True, False)]


@_program
def unpooling_of_no_images(torch: Any, device: str) -> Any:
    x = torch.ones(0, 2, 2, 2, device=device)
    return list(torch.nn.functional.max_unpool2d(x, x.long(), 2).shape)


@_our_program
def lazy_modules_have_no_norms(torch: Any, device: str) -> Any:
    utils, lazy = torch.nn.utils, torch.nn.LazyLinear
    return [
        _outcome(call)
        for call in (
            lambda: utils.weight_norm(lazy(3)), lambda: utils.spectral_norm(lazy(3)), lambda: lazy(3).share_memory(),
        )
    ]  # fmt: skip


@_our_program
def files_that_are_written_to_streams(torch: Any, device: str) -> Any:
    raw = io.BytesIO()
    with gzip.open(raw, "wb") as stream:
        torch.save({"a": torch.ones(2, device=device)}, stream, pickle_module=pickle)
    with gzip.open(io.BytesIO(raw.getvalue())) as stream:
        found = torch.load(stream)
    raw = io.BytesIO()
    torch.save([found["a"], 3], raw, pickle_module=pickle)
    raw.seek(0)
    return torch.load(raw, pickle_module=pickle, weights_only=False)


@_our_program
def results_that_overlap_operands(torch: Any, device: str) -> Any:
    def buffer(count: int) -> Any:
        return torch.arange(float(count)).to(device)

    def moved(call: Callable[[Any, Any], Any], shape: tuple[int, ...]) -> Any:
        count = int(np.prod(shape))
        memory = buffer(count + 1)
        x, out = memory[:count].reshape(shape), memory[1:].reshape(shape)
        return _outcome(lambda: call(x, out)), _outcome(lambda: call(x, x))

    square = torch.eye(3, device=device)
    vector = torch.ones(3, device=device)
    batch = square.expand(2, 3, 3)
    calls = {
        "addmm": (lambda x, out: torch.addmm(x, square, square, out=out), (3, 3)),
        "addmv": (lambda x, out: torch.addmv(x, square, vector, out=out), (3,)),
        "addbmm": (lambda x, out: torch.addbmm(x, batch, batch, out=out), (3, 3)),
        "baddbmm": (lambda x, out: torch.baddbmm(x, batch, batch, out=out), (2, 3, 3)),
        "cross": (lambda x, out: torch.cross(x, square, dim=1, out=out), (3, 3)),
        "linalg.cross": (lambda x, out: torch.linalg.cross(x, square, out=out), (3, 3)),
        "frexp": (lambda x, out: torch.frexp(x, out=(out, vector.int()))[0], (3,)),
        "maximum": (lambda x, out: torch.max(x, vector, out=out), (3,)),
        "minimum": (lambda x, out: torch.min(x, vector, out=out), (3,)),
        "conj": (lambda x, out: torch.conj_physical(x, out=out), (3,)),
        "add": (lambda x, out: torch.add(x, 1, out=out), (3,)),
        "square": (lambda x, out: torch.square(x, out=out), (3,)),
        "sgn": (lambda x, out: torch.sgn(x, out=out), (3,)),
        "msort": (lambda x, out: torch.msort(x, out=out), (3,)),
        "take along dim": (
            lambda x, out: torch.take_along_dim(x, vector.long(), 0, out=out),
            (3,),
        ),
    }
    return {name: moved(call, shape) for name, (call, shape) in calls.items()}


def _layers(torch: Any, device: str) -> dict[str, Callable[[Any], Any]]:
    F = torch.nn.functional
    image, weight = torch.arange(144.0).cos(), torch.arange(16.0).sin()
    kernel = image.reshape(4, 4, 3, 3).to(device)
    one = weight.reshape(4, 4, 1, 1).to(device)
    deep = kernel[..., :2, :2].unsqueeze(-1).contiguous()
    return {
        "conv": lambda x: F.conv2d(x, kernel, stride=2), "conv 1 x 1": lambda x: F.conv2d(x, one, kernel[:, 0, 0, 0]),
        "conv by its weight": lambda x: F.conv2d(x.contiguous(), kernel.contiguous(memory_format=torch.channels_last)),
        "depthwise": lambda x: F.conv2d(x, kernel[:, :1], groups=4),
        "transposed": lambda x: F.conv_transpose2d(x, kernel),
        "avg": lambda x: F.avg_pool2d(x, 2), "max": lambda x: F.max_pool2d(x, 2, 1, 1),
        "lp": lambda x: F.lp_pool2d(x, 2, 2),
        "where": lambda x: F.max_pool2d(x, 2, return_indices=True)[1], "bins": lambda x: F.adaptive_avg_pool2d(x, 3),
        "one bin": lambda x: F.adaptive_avg_pool2d(x, 1), "max bins": lambda x: F.adaptive_max_pool2d(x, 2),
        "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        "cat": lambda x: torch.cat([x, x], 1),
        "cat of two layouts": lambda x: torch.cat([x, x.contiguous()]), "group norm": lambda x: F.group_norm(x, 2),
        "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
        "nearest": lambda x: F.interpolate(x, scale_factor=2),
        "bilinear": lambda x: F.interpolate(x, size=(3, 5), mode="bilinear"), "pad": lambda x: F.pad(x, (1, 0, 2, 1)),
        "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "shuffle": lambda x: F.pixel_shuffle(x, 2),
        "unshuffle": lambda x: F.pixel_unshuffle(x, 2), "roll": lambda x: x.roll(1, 2), "flip": lambda x: x.flip(1),
        "sort": lambda x: x.sort(1).values, "relu": lambda x: x.relu(), "bias": lambda x: x + one[:, :1, 0],
        "volume": lambda x: F.conv3d(x.unsqueeze(-1).contiguous(memory_format=torch.channels_last_3d), deep),
        "max of volume": lambda x: F.max_pool3d(
            x.unsqueeze(-1).contiguous(memory_format=torch.channels_last_3d), (2, 2, 1)),
    }  # fmt: skip


@_program
def layers_keep_channels_last(torch: Any, device: str) -> Any:
    found = {}
    for name, layer in _layers(torch, device).items():
        x = torch.arange(288.0).reshape(2, 4, 6, 6).sin().to(device)
        x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        y = layer(x)
        if y.is_floating_point():
            (y * torch.arange(float(y.numel())).cos().reshape(y.shape).to(device)).sum().backward()
            x.grad = x.grad * 1
            found[name] = y.stride(), x.grad.stride(), float(x.grad.sum()) * 0.01
        found[name + " values"] = y.stride(), float((y * y).sum()) * 0.001
    return found


@_program
def leaf_gradients_lie_as_their_leaves(torch: Any, device: str) -> Any:
    one, found = torch.ones(3, 4, device=device), []
    layer = torch.nn.Conv2d(3, 4, 3).to(device).to(memory_format=torch.channels_last)
    for _ in range(2):
        layer(torch.ones(1, 3, 5, 5, device=device)).sum().backward()
    found += [layer.weight.stride(), layer.weight.grad.stride()]
    for leaf in (
        one.t(),
        one,
        one[:, ::2],
        one[:1].expand(3, 4),
        one.reshape(3, 2, 2, 1)[:, :, :1],
    ):
        leaf = leaf.detach().requires_grad_()
        (leaf.transpose(0, 1) * 2).sum().backward()
        found.append(leaf.grad.stride())
    return found


@_program
def ranges_keep_the_shape_of_their_out(torch: Any, device: str) -> Any:
    found = []
    for make in (
        lambda out: torch.arange(0, 4, out=out),
        lambda out: torch.range(0, 3, out=out),
        lambda out: torch.linspace(1, 2, steps=4, out=out),
        lambda out: torch.logspace(0, 3, steps=4, base=2, out=out),
    ):
        whole = torch.zeros(2, 3, device=device)
        found += [make(whole[:, 1:]), whole]
    return found


@_our_program
def conversions_take_a_memory_format(torch: Any, device: str) -> Any:
    x = torch.arange(24.0, device=device).reshape(1, 2, 3, 4)
    kinds = ("byte", "char", "short", "int", "long", "half", "bool", "bfloat16", "float")
    return [getattr(x, k)(memory_format=torch.channels_last).stride() for k in kinds]


@_program
def in_place_rrelu_has_a_gradient(torch: Any, device: str) -> Any:
    found = []
    for training in (True, False):
        x = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True)
        y = torch.nn.functional.rrelu(x + 0, 0.25, 0.25, training, inplace=True)
        y.backward(torch.tensor([1.0, 2.0, 3.0], device=device))
        found += [y, x.grad]
    return found


@_our_program
def gradient_with_complex_steps(torch: Any, device: str) -> Any:
    x = torch.tensor([1 + 1j, 2 - 1j, 5 + 0j, 1j], device=device)
    return torch.gradient(x, spacing=1 + 2j), torch.gradient(x.reshape(2, 2), spacing=2j)


def random_integers_of_all_64_bits(torch: Any, device: str) -> Any:
    found = []
    for low, high in ((-(2**63), None), (-(2**63), 2**62), (0, 2**62 + 5), (-5, None)):
        x = torch.empty(4000, dtype=torch.int64).random_(low, high).double()
        least, most = low, 2**63 if high is None else high
        parts = (x - float(least)) / float(most - least)
        found += [bool((parts >= 0).all() & (parts <= 1).all()), round(parts.mean().item(), 1)]
    return found


_FACES[random_integers_of_all_64_bits] = _ALL[:1]


def arrays_of_bytes_and_capsules(torch: Any, device: str) -> Any:
    from array import array

    numbers = array("i", [1, 2, 3])
    x = torch.asarray(numbers, dtype=torch.int32, copy=False)
    x[0] = 7
    same = torch.asarray(torch.utils.dlpack.to_dlpack(x), copy=False)
    same[1] = 8
    return list(numbers), same, torch.asarray(memoryview(b"abcd"), dtype=torch.uint8)


_FACES[arrays_of_bytes_and_capsules] = _ALL[:1]


@_our_program
def constants_of_layout_are_no_texts(torch: Any, device: str) -> Any:
    constants = torch.channels_last, torch.preserve_format, torch.strided
    return [
        (isinstance(c, str), repr(c), str(c), pickle.loads(pickle.dumps(c)) is c) for c in constants
    ]


@_our_program
def parameters_without_a_shape_refuse_functions(torch: Any, device: str) -> Any:
    x = torch.nn.parameter.UninitializedParameter(device=device)
    calls = (
        lambda: x + x, lambda: torch.empty_like(x), lambda: torch.nn.init.zeros_(x), lambda: x.numel(),
        lambda: torch.nn.utils.parameters_to_vector([x]),
    )  # fmt: skip
    found = [_outcome(call) for call in calls]
    x.materialize(3)
    return found, x.shape


@_our_program
def old_types_and_checks(torch: Any, device: str) -> Any:
    yes = torch.tensor([True, False], device=device)
    return [
        _outcome(lambda: type("Mine", (torch.FloatTensor,), {})),
        torch.zeros(2, dtype=torch.int32, device=device).type(torch.Tensor).dtype,
        _outcome(lambda: torch.nn.functional.group_norm(torch.ones(1, 3, device=device), 3)),
        _outcome(lambda: torch.nonzero(yes, as_tuple=True, out=torch.empty(0, dtype=torch.int64))),
        _outcome(lambda: torch.nn.functional.pad(torch.ones(2, 0, 4), (1, 1), mode="reflect")),
    ]


@_our_program
def running_logsumexp_of_complex_infinities(torch: Any, device: str) -> Any:
    x = torch.tensor(
        [complex(-INF, 2), 1.5 + 2j, 2 + 0.5j, complex(INF, 0), complex(INF, 1), complex(NAN, 1)]
    )
    return torch.logcumsumexp(x.to(device), 0)[1:]


@_program
def farthest_coordinates_share_no_gradient(torch: Any, device: str) -> Any:
    x = torch.tensor([[0.0, 0], [1, 1], [3, 3], [7, 3]], device=device, requires_grad=True)
    torch.nn.functional.pdist(x, p=INF).sum().backward()
    y = x.detach().clone().requires_grad_()
    torch.cdist(y, x.detach() + torch.tensor([1.0, -1], device=device), p=INF).sum().backward()
    return x.grad, y.grad


@_our_program
def losses_of_other_types_of_targets(torch: Any, device: str) -> Any:
    x = torch.full((2, 3), 0.3, device=device)
    found, F = [], torch.nn.functional
    for kind in (torch.int64, torch.bool, torch.float16):
        target = torch.tensor([[1, 0, 1], [0, 1, 1]], device=device).to(kind)
        for loss in (
            F.soft_margin_loss,
            F.hinge_embedding_loss,
            F.kl_div,
            F.binary_cross_entropy,
            F.huber_loss,
        ):
            found.append((kind, loss.__name__, _outcome(partial(loss, x, target))))
    return [(str(k), n, f) for k, n, f in found if (str(k), n) != ("torch.float16", "kl_div")]


@_our_program
def offsets_and_weights_of_bags_are_checked(torch: Any, device: str) -> Any:
    bag = torch.nn.EmbeddingBag(5, 2, mode="sum").to(device)
    x = torch.tensor([1, 2, 3], device=device)

    def sum_is_large(offsets: list[int], weights: Any) -> Any:
        return bag(x, torch.tensor(offsets, device=device), weights).sum().item() > 99

    return [
        _outcome(partial(sum_is_large, offsets, weights))
        for offsets in ([1, 2], [0, 9], [0, 2])
        for weights in (None, torch.ones(3, device=device), torch.ones(3, device=device).half())
    ]


@_our_program
def tensors_in_lists_are_numbers(torch: Any, device: str) -> Any:
    one, two = torch.tensor([1.0], device=device), torch.tensor([[2.0]], device=device)
    return [
        torch.tensor([one, two]), torch.tensor([[one], [two]]), torch.as_tensor((one,)), torch.tensor([one, 2]),
        torch.tensor([3, one]), _outcome(lambda: torch.tensor([torch.ones(2, device=device)])),
    ]  # fmt: skip


@_our_program
def the_modulus_is_put_where_out_lies(torch: Any, device: str) -> Any:
    x = torch.tensor([3 + 4j, 1j], device=device)
    return torch.abs(x, out=torch.empty_like(x)), torch.abs(x, out=torch.empty(2, device=device))


@_our_program
def tangents_follow_layouts(torch: Any, device: str) -> Any:
    forward_ad, F = torch.autograd.forward_ad, torch.nn.functional
    x = torch.arange(32.0).sin().reshape(1, 2, 4, 4).to(device)
    found = []
    for layer in (
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.pad(x, (1, 1)),
    ):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.contiguous(memory_format=torch.channels_last), x.cos())
            found += forward_ad.unpack_dual(layer(dual))
    return [y if y is None else y.sum((2, 3)) for y in found]


@_our_program
def gradients_of_convolutions_by_themselves(torch: Any, device: str) -> Any:
    found, options = [], (2, 1, 1, 2)
    gradients = __import__(f"{torch.__name__}.nn.grad", fromlist=["grad"])
    for rank in (1, 2, 3):
        x = torch.arange(8.0 * 5**rank).reshape(2, 4, *[5] * rank).sin().to(device)
        w = torch.arange(12.0 * 3**rank).reshape(6, 2, *[3] * rank).cos().to(device)
        g = torch.arange(12.0 * 3**rank).reshape(2, 6, *[3] * rank).sin().to(device)
        for x_grad, w_grad in ((f"conv{rank}d_input", f"conv{rank}d_weight"),):
            one = getattr(gradients, x_grad)(x.shape, w, g, *options)
            other = getattr(gradients, w_grad)(x, w.shape, g, *options)
            found += [one.shape, one.sum() * 0.01, other.shape, other.sum() * 0.01]
    return found


@_our_program
def new_memory_of_deterministic_programs_is_filled(torch: Any, device: str) -> Any:
    kinds = torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.int32, torch.bool
    torch.use_deterministic_algorithms(True)
    try:
        return [
            str(x.tolist())
            for x in (
                *(torch.empty(2, dtype=d, device=device) for d in kinds),
                torch.empty_like(torch.zeros(1, device=device)), torch.zeros(1, device=device).new_empty(2),
                torch.empty_strided((2,), (3,), device=device), torch.empty_permuted((2, 1), (1, 0), device=device),
            )
        ]  # fmt: skip
    finally:
        torch.use_deterministic_algorithms(False)


@_program
def gradients_of_what_an_iterator_gives(torch: Any, device: str) -> Any:
    layer = torch.nn.Linear(2, 1).to(device)
    x = torch.ones(2, device=device)
    found = torch.autograd.grad(layer(x).sum(), layer.parameters())
    torch.autograd.backward((y for y in [layer(x).sum()]), inputs=(p for p in [layer.bias]))
    return found, layer.weight.grad, layer.bias.grad


@_our_program
def sizes_are_joined_with_tuples_only(torch: Any, device: str) -> Any:
    size, three = torch.ones(1, 2, device=device).shape, (3,)
    found = [_outcome(partial(operator.add, size, other)) for other in ([3], range(2), "ab")]
    return (
        found,
        _outcome(lambda: list(three) + size),
        size + three,
        three + size,
        type(size + size).__name__,
    )


@_our_program
def optimizers_of_odd_states(torch: Any, device: str) -> Any:
    z = torch.tensor([1 + 2j, 3 - 1j], device=device, requires_grad=True)
    z.grad = torch.tensor([1 - 1j, 0.5j], device=device)
    optimizer = torch.optim.Adagrad([z], lr=0.1, initial_accumulator_value=0.5)
    optimizer.step()
    optimizer.register_state_dict_pre_hook(lambda o: o.state.__setitem__("note", 1))
    lbfgs = torch.optim.LBFGS([torch.zeros(2, device=device)], tolerance_grad=-INF)
    return (
        z.detach(),
        optimizer.state_dict()["state"]["note"],
        lbfgs.step(lambda: torch.tensor(3.0)),
    )


@_our_program
def the_function_of_a_result_is_its_context(torch: Any, device: str) -> Any:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.note = 5
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * len(ctx.saved_variables) * 2

    x = torch.ones(2, device=device, requires_grad=True)
    fn = Twice.apply(x).grad_fn
    found = [fn.saved_tensors, fn.note, fn.needs_input_grad, hasattr(fn, "other"), fn.name()]
    Twice.apply(x).sum().backward()
    return found, x.grad


# The programs are of what is in front of the kernels, and that of each face is one.
@pytest.mark.one_in(3, face="webtorch-webgpu")
@pytest.mark.one_in(3, face="torch-webgpu")
@pytest.mark.parametrize(
    ("program", "face"),
    [pytest.param(p, f, id=f"{p.__name__}-{f}") for p, faces in _FACES.items() for f in faces],
)
def test_a_program_gives_what_it_gives_on_pytorchs_cpu(
    program: Callable[..., Any], face: str
) -> None:
    library, _, device = face.partition("-")
    need_device(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _plain(program(torch, "cpu"))
        found = _plain(program(torch if library == "torch" else webtorch, device))
    assert repr(found) == repr(expected)


def test_a_long_sum_of_what_takes_many_turns(device: str) -> None:
    # An exact remainder of a large number takes sixteen turns of a loop; a software adapter leaves loops after 65,535.
    count = 1 << 21
    x = webtorch.tensor(np.full(count, 3e38, np.float32), device=device)
    one = math.fmod(float(np.float32(3e38)), 7.0)
    # (Named first: pytest keeps the parts of what it asserts, which then are kernels of their own.)
    total, rows = float(x.remainder(7).sum()), float(x.reshape(64, -1).remainder(7).sum(1)[5])
    assert total == pytest.approx(one * count, rel=1e-6)
    assert rows == pytest.approx(one * count / 64, rel=1e-6)
