"""Corners of PyTorch's operators on "webgpu", compared with PyTorch on the CPU: types, strides, refusals, NaN."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import setitem
from typing import Any

import pytest
import torch
from torch.nn import functional as F


def both(webgpu: str, run: Callable[[str], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `run` makes on the device and on the CPU, after checking type and strides."""
    ours, theirs = run(webgpu), run("cpu")
    assert ours.is_webgpu and ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-4)
    return ours, theirs


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        (torch.add, torch.tensor(1, dtype=torch.int32), torch.tensor(2)),
        (torch.mul, torch.tensor([1, 2]), torch.tensor(2.5, dtype=torch.float16)),
        (torch.maximum, torch.tensor([1, 2]), torch.tensor(2, dtype=torch.int32)),
        (torch.atan2, torch.tensor([1.0, 2.0]), torch.tensor(2.0)),
        (torch.logical_and, torch.tensor([True, False]), torch.tensor(True)),
    ],
)
def test_scalars_on_the_cpu_keep_their_type(
    webgpu: str, operator: Callable[..., Any], left: torch.Tensor, right: torch.Tensor
) -> None:
    both(webgpu, lambda device: operator(left.to(device), right))


@pytest.mark.parametrize(
    "ends", [(0.5, 2.7, 1), (1e8, 1e8 + 32, 8.0), (0, 3e-10, 1e-10), (3, 0, -1), (0, 3)]
)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_ranges_with_their_end(webgpu: str, ends: tuple[float, ...]) -> None:
    both(webgpu, lambda device: torch.range(*ends, device=device))


def test_bytes_copied_from_a_view_and_read_as_another_type(webgpu: str) -> None:
    bytes_of = torch.arange(64, dtype=torch.int64).to(torch.uint8)[::2]

    def copied(device: str) -> torch.Tensor:
        x = torch.zeros(8, device=device)
        x.view(torch.uint8).copy_(bytes_of)
        return x.view(torch.uint8)

    def with_a_tail(device: str) -> torch.Tensor:
        x = torch.arange(6, dtype=torch.uint8, device=device)
        x[:4].view(torch.int32).add_(1)
        return x

    both(webgpu, copied)
    both(webgpu, with_a_tail)


def test_resize_keeps_the_strides_of_the_same_shape(webgpu: str) -> None:
    def transposed(device: str) -> torch.Tensor:
        return torch.arange(6.0, device=device).reshape(2, 3).t().resize_(3, 2)

    def images(device: str) -> torch.Tensor:
        x = torch.arange(24.0, device=device)
        return x.resize_(1, 4, 3, 2, memory_format=torch.channels_last)

    both(webgpu, transposed)
    both(webgpu, images)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(2, -1, device=webgpu)


def _slope(device: str, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    leaf = x.to(device).detach().requires_grad_()
    return torch.autograd.grad(run(leaf).abs().sum(), leaf)[0]


@pytest.mark.parametrize("run", [torch.tanh, torch.sigmoid])
def test_gradients_of_complex_activations(
    webgpu: str, run: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    both(webgpu, lambda device: _slope(device, run, torch.tensor([0.3 + 0.5j, -0.7 + 0.2j])))


@pytest.mark.parametrize("run", [F.softshrink, F.hardtanh, F.relu6])
def test_gradients_where_the_input_is_not_a_number(
    webgpu: str, run: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x, g = torch.tensor([float("nan"), 0.6]), torch.ones(2)

    def slope(device: str) -> Any:
        leaf = x.to(device).requires_grad_()
        return torch.autograd.grad(run(leaf), leaf, g.to(device))[0]

    both(webgpu, slope)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos"])
def test_antialiased_resizing_by_a_factor(webgpu: str, mode: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=0.6, mode=mode, antialias=True)

    x = torch.randn(1, 1, 7, 7)
    both(webgpu, lambda device: run(x.to(device)))
    both(webgpu, lambda device: _slope(device, run, x))


def test_empty_batches_of_fractional_pooling(webgpu: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.fractional_max_pool2d(x, 2, output_size=3)

    both(webgpu, lambda device: _slope(device, run, torch.ones(0, 2, 5, 5)))


def test_targets_and_weights_of_nll_loss(webgpu: str) -> None:
    x = torch.arange(8.0).reshape(2, 4)
    target = torch.tensor([0, 1], dtype=torch.uint8)
    both(webgpu, lambda device: F.nll_loss(x.to(device), target.to(device)))
    infinite = torch.full((2, 4), float("-inf")).index_fill(0, torch.tensor(0), -1.0)
    ignored = torch.tensor([1, -100])
    both(webgpu, lambda device: F.nll_loss(infinite.to(device), ignored.to(device)))
    both(
        webgpu, lambda device: F.nll_loss(infinite.to(device), ignored.to(device), reduction="none")
    )
    with pytest.raises(RuntimeError, match="all 4 classes"):
        F.nll_loss(x.to(webgpu), target.long().to(webgpu), torch.ones(3, device=webgpu))
    with pytest.raises((RuntimeError, TypeError), match="Long or Byte"):
        F.nll_loss(x.to(webgpu), target.float().to(webgpu))


def test_results_that_out_cannot_hold(webgpu: str) -> None:
    out = torch.zeros(2, dtype=torch.int32, device=webgpu)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(torch.ones(2, device=webgpu), 1, out=out)
    with pytest.raises(RuntimeError, match="same device"):
        torch.linalg.solve_triangular(torch.eye(2, device=webgpu), torch.ones(2, 2), upper=True)


@pytest.mark.parametrize(
    "call", [torch.exp, torch.mm, torch.linalg.eigh, torch.linalg.inv, torch.linalg.solve]
)
def test_results_of_other_types_are_refused_in_pytorchs_words(call: Any) -> None:
    """An `out=` whose type the result cannot have is named as PyTorch's CPU names it."""

    def message(place: str) -> str:
        x = torch.eye(2, device=place)
        given = (x, x) if call in (torch.mm, torch.linalg.solve) else (x,)
        out = torch.empty_like(x, dtype=torch.int32)
        with pytest.raises(RuntimeError) as refused:
            call(*given, out=(out[0], out) if call is torch.linalg.eigh else out)
        return str(refused.value).splitlines()[0]

    assert message("cpu") in message("webgpu")


def test_random_integers_from_a_number_on(webgpu: str) -> None:
    assert torch.zeros(64, device=webgpu).random_(1000, None).min() >= 1000


@pytest.mark.parametrize("make", [torch.rand, torch.randn])
def test_random_complex_numbers_have_both_parts(webgpu: str, make: Callable[..., Any]) -> None:
    z = make(4000, dtype=torch.complex64, device=webgpu).cpu()
    mean, variance = (0.5, 1 / 12) if make is torch.rand else (0.0, 0.5)
    for part in (z.real, z.imag):
        assert abs(part.mean() - mean) < 0.06 and abs(part.var() - variance) < 0.06
    assert abs(torch.corrcoef(torch.view_as_real(z).t())[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda x: x.uniform_(2, 1), "uniform_ expects"),
        (lambda x: x.normal_(0, -1), "std >= 0"),
        (lambda x: x.exponential_(-1), "lambda > 0"),
        (lambda x: x.geometric_(2), r"in \(0, 1\)"),
        (lambda x: x.cauchy_(0, -2), "sigma > 0"),
        (lambda x: x.log_normal_(0, -2), "std > 0"),
        (lambda x: x.random_(5, 2), "less than 'to'"),
        (lambda x: x.bernoulli_(1.5), r"in \[0, 1\]"),
        (lambda x: x.long().normal_(), "not implemented for"),
        (lambda x: torch.randint(0, 300, (3,), dtype=torch.uint8, device=x.device), "300"),
    ],
)
def test_random_operators_refuse_what_pytorchs_refuse(
    webgpu: str, run: Callable[[torch.Tensor], Any], message: str
) -> None:
    for device in ("cpu", webgpu):
        with pytest.raises(RuntimeError, match=message if device == webgpu else None):
            run(torch.zeros(3, device=device))


def test_normal_numbers_about_means(webgpu: str) -> None:
    x = torch.normal(torch.full((2000,), 3.0, device=webgpu), 1.0)
    y = torch.normal(3.0, torch.full((2000,), 2.0, device=webgpu))
    assert abs(x.mean().item() - 3) < 0.2 and abs(y.std().item() - 2) < 0.2


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}])
def test_batch_norm_of_an_empty_batch(webgpu: str, options: dict[str, bool]) -> None:
    def run(device: str) -> torch.Tensor:
        layer = torch.nn.BatchNorm1d(4, **options).to(device)
        x = torch.ones(0, 4, device=device, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape
        return y

    both(webgpu, run)


def test_bounds_of_truth_values(webgpu: str) -> None:
    x, bound = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    both(webgpu, lambda device: torch.clamp_max(x.to(device), bound.to(device)))
    both(webgpu, lambda device: torch.clamp_min(x.to(device), bound.to(device)))


def test_bfloat16_beside_complex_numbers(webgpu: str) -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    both(webgpu, lambda device: x.to(device) + torch.tensor(1j, device=device))
    both(webgpu, lambda device: x.to(device) * 2j)


def test_forms_that_pytorch_would_hand_to_a_cpu_kernel(webgpu: str) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    both(webgpu, lambda device: z.clone().to(device).conj_physical_())
    x = torch.tensor([[1, 2, 2], [3, 3, 1]])

    def mode(device: str) -> torch.Tensor:
        out = (
            torch.empty(0, dtype=torch.int64, device=device),
            torch.empty(0, dtype=torch.int64, device=device),
        )
        return torch.mode(x.to(device), 1, out=out)[0]

    both(webgpu, mode)


def test_writes_by_index_want_values_of_the_same_type(webgpu: str) -> None:
    for device in ("cpu", webgpu):
        x = torch.zeros(3, device=device)
        mask = torch.tensor([True, False, True], device=device)
        with pytest.raises(RuntimeError, match="dtypes match"):
            x[torch.tensor([0, 1], device=device)] = torch.tensor(7, device=device)
        with pytest.raises(RuntimeError, match="dtypes match"):
            x[mask] = torch.tensor([7, 7], device=device)
        # One number under a mask is converted.
        x[mask] = torch.tensor(7, device=device)
        assert x.tolist() == [7, 0, 7]


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
def test_layouts_that_are_not_dense_are_refused_in_words(webgpu: str) -> None:
    index, values = torch.tensor([[0], [1]], device=webgpu), torch.ones(1, device=webgpu)
    with pytest.raises(NotImplementedError, match="of a sparse tensor"):
        torch.sparse_coo_tensor(index, values, (2, 2)).cumsum(0)
    with pytest.raises(NotImplementedError, match="nested"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=webgpu) * 2


def test_rows_of_different_lengths_become_dense_and_come_back(webgpu: str) -> None:
    """Nested tensors of layout `torch.jagged`, with gradients, and an empty row."""
    found = []
    for device in ("cpu", webgpu):
        rows = [torch.arange(n * 2.0).reshape(n, 2) for n in (2, 0, 3)]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged, device=device, requires_grad=True)
        dense = torch.nested.to_padded_tensor(x.sin(), -1.0)
        (dense * dense).sum().backward()
        back = torch.ops.aten._padded_dense_to_jagged_forward(dense, [x.offsets()])
        found.append([t.tolist() for t in (dense, x.grad.values(), back)])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.webgpu.Stream(3),
        lambda: torch.webgpu.memory_allocated(3),
        lambda: torch.webgpu.get_rng_state("webgpu:3"),
        lambda: torch.webgpu.synchronize(3),
        lambda: torch.webgpu.get_device_name(3),
        lambda: torch.accelerator.set_device_index(3),
        lambda: torch.UntypedStorage(3, device="webgpu:3"),
        lambda: torch.Generator("webgpu:3"),
        lambda: torch.nn.Linear(2, 2).to("webgpu:3"),
        lambda: torch.tril_indices(3, 3, device="webgpu:3"),
    ],
)
def test_there_is_one_device(webgpu: str, ask: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"there is (one|no)"):
        ask()


def test_empty_storages_made_of_others(webgpu: str) -> None:
    storage = torch.ones(2, device=webgpu).untyped_storage().new()
    assert storage.nbytes() == 0 and storage.device == torch.device(webgpu, 0)
    assert torch.accelerator.get_device_capability() == torch.webgpu.get_device_capability()
    with pytest.raises(NotImplementedError, match="does not tell"):
        torch.accelerator.get_memory_info()


def test_defaults_of_kernels_are_those_of_pytorchs_schemas(webgpu: str) -> None:
    """PyTorch leaves out arguments that equal the schema's default."""
    from webtorch.aten.table import meaning
    from webtorch.pytorch import kernels, library

    torch.ones(1, device=webgpu)
    known = set(torch._C._dispatch_get_all_op_names())
    same = {(): [], 0: [0], 1: [1], None: []}
    checked, wrong = 0, []
    for packet in library._packets():
        for overload, operator in kernels.overloads(packet):
            name = packet if overload == "default" else f"{packet}.{overload}"
            function = meaning(packet, overload)
            # Where PyTorch composes an overload, the kernel is not asked.
            if function is None or f"aten::{name}" not in known or not library._needs_kernel(name):
                continue
            given = list(inspect.signature(function).parameters.values())
            for place, argument in enumerate(operator._schema.arguments):
                if argument.kwarg_only:
                    found = [p for p in given if p.name == argument.name]
                else:
                    found = [p for p in given[place : place + 1] if p.kind < p.VAR_POSITIONAL]
                if not argument.has_default_value() or not found or argument.name == "generator":
                    continue
                checked += 1
                ours, theirs = found[0].default, argument.default_value
                if isinstance(theirs, list):
                    ours, theirs = same.get(ours, ours), theirs[:1]
                if ours != theirs:
                    wrong.append((name, argument.name, ours, theirs))
    assert checked > 100 and not wrong


def test_coins_are_fair_by_default(webgpu: str) -> None:
    x = torch.full((1000,), 7.0, device=webgpu)
    for drawn in (x.clone().bernoulli_(), x.clone().bernoulli_(0.5), torch.bernoulli(x, 0.5)):
        assert 350 < drawn.sum().item() < 650
        assert {*drawn.tolist()} == {0.0, 1.0}


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_nothing_without_channels(webgpu: str, training: bool) -> None:
    def run(device: str) -> torch.Tensor:
        x, none = torch.ones(0, device=device), torch.ones(0, device=device)
        return torch.nn.functional.batch_norm(x, none, none, training=training)

    both(webgpu, run)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_kaiser_windows(webgpu: str, length: int) -> None:
    both(webgpu, lambda device: torch.kaiser_window(length, device=device))
    both(webgpu, lambda device: torch.kaiser_window(length, False, 3.0, device=device))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.kaiser_window(-length, device=webgpu)
    with pytest.raises(RuntimeError, match="floating point"):
        torch.kaiser_window(length, dtype=torch.int64, device=webgpu)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flexible_attention(webgpu: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    given = torch.randn(3, 1, 2, 16, 8)

    def run(device: str) -> torch.Tensor:
        q, k, v = given.to(device)
        causal = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device=device)
        scored = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)
        return torch.cat([scored, flex_attention(q, k, v, block_mask=causal)])

    both(webgpu, run)


def test_autocast_takes_the_types_it_takes_on_cuda(webgpu: str) -> None:
    full = torch.ones(3, 3, device=webgpu)
    with torch.autocast(webgpu, dtype=torch.float16):
        low = full @ full
        for x in (low, torch.mv(full, full[0]), torch.addmm(full, full, full), low.add(1)):
            assert x.dtype is torch.float16
        for x in (low.log1p(), low**2, low.logsumexp(0), torch.cdist(low, low), low.cumsum(0)):
            assert x.dtype is torch.float32
        assert torch.cat([low, low]).dtype is torch.float16
        for x in (
            torch.cat([low, full]),
            torch.addcmul(full, low, low),
            torch.dot(low[0], full[0]),
        ):
            assert x.dtype is torch.float32


def test_names_that_programs_for_other_devices_use(webgpu: str) -> None:
    x = torch.ones(4, device=webgpu)
    with torch.webgpu.StreamContext(torch.webgpu.Stream()), torch.webgpu.stream(None):
        assert torch.webgpu.current_allocated_memory() == torch.webgpu.memory_allocated()
    with torch.webgpu.device_of(x), torch.webgpu.device_of(torch.ones(1)):
        assert torch.webgpu.driver_allocated_memory() >= torch.webgpu.current_allocated_memory()
    assert torch.webgpu.OutOfMemoryError is torch.OutOfMemoryError
    assert not torch.webgpu.is_current_stream_capturing() and not torch.webgpu.is_tf32_supported()
    with pytest.raises(AttributeError, match=r"memory_snapshot.*memory_stats"):
        _ = torch.webgpu.memory_snapshot
    with pytest.raises(AttributeError, match="WEBTORCH_MEMORY_LIMIT"):
        _ = torch.webgpu.set_per_process_memory_fraction
    assert not hasattr(torch.webgpu, "nothing")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_second_derivatives_of_losses(
    webgpu: str, loss: Callable[..., torch.Tensor], reduction: str
) -> None:
    start, target = torch.randn(3, 4), torch.randn(3, 4)

    def run(device: str) -> torch.Tensor:
        x = start.to(device).requires_grad_()
        value = loss(x, target.to(device), reduction=reduction)
        (slope,) = torch.autograd.grad(value.square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.pow(3).sum(), x)[0]

    both(webgpu, run)


def test_shapes_that_normalisations_and_margins_refuse(webgpu: str) -> None:
    x = torch.randn(2, 4, device=webgpu)
    for call in (
        lambda: F.layer_norm(x, (3,)),
        lambda: F.layer_norm(x, (2,), torch.ones(2, device=webgpu)),
        lambda: F.layer_norm(x, (2, 4), torch.ones(4, device=webgpu)),
    ):
        with pytest.raises(RuntimeError, match="normalized_shape"):
            call()
    with pytest.raises(RuntimeError, match="one class for each of the 2 samples"):
        F.multi_margin_loss(x, torch.tensor([1], device=webgpu))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, s: x.scatter_add_(0, i, s),
        lambda x, i, s: x.scatter_(0, i, s),
        lambda x, i, s: x.scatter_(0, i, 2.0),
        lambda x, i, s: x.scatter_reduce_(0, i, s, "amax"),
        lambda x, i, s: torch.scatter_add(x, 0, i, s, out=x),
        lambda x, i, s: x.index_add_(0, i[:, 0], s),
        lambda x, i, s: x.index_copy_(0, i[:3, 0] % 3, s[:3]),
        lambda x, i, s: x.index_fill_(0, i[:, 0], 3.0),
        lambda x, i, s: x.masked_scatter_(x > 0, s.repeat(3, 1)),
        lambda x, i, s: x.put_(i[:, 0], s[:, 0], accumulate=True),
        lambda x, i, s: x.index_put_((i[:, 0],), s, accumulate=True),
    ],
)
def test_what_is_scattered_into_may_be_written_in_place(
    webgpu: str, write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x, s = torch.randn(5, 2), torch.randn(4, 2)
    i = torch.tensor([0, 3, 1, 4])[:, None].expand(4, 2)
    wanted = write(x.clone(), i, s)
    found = write(x.to(webgpu), i.to(webgpu), s.to(webgpu))
    torch.testing.assert_close(found.cpu(), wanted)
    # Of what is read at other places PyTorch says that it must be apart.
    y = x.to(webgpu)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.scatter_add(x.to(webgpu), 0, i.to(webgpu), y, out=y)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.index_put_((i,), x[:2]),
        lambda x, i: x[5:].index_put_((i,), x[:2]),
        lambda x, i: x.index_put_((x > 3,), x[2:3]),
        lambda x, i: torch.index_put(x, (i,), x[:2]),
        lambda x, i: setitem(x, i, x[3:5]),
        lambda x, i: setitem(x, x > 7, x[:2]),
        lambda x, i: setitem(x, i, x[1:5:2]),
    ],
)
def test_what_is_put_may_not_be_where_it_is_put(
    webgpu: str, write: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    def outcome(device: str) -> list[float] | str:
        x = torch.arange(10.0, device=device)
        try:
            write(x, torch.tensor([0, 1], device=device))
        except RuntimeError as error:
            return str(error)
        return x.tolist()

    assert outcome(webgpu) == outcome("cpu")


# PyTorch says that TorchScript is to be replaced, and that a trace of sizes is one of numbers.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traces_are_compared_with_what_was_traced(webgpu: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to(webgpu)
    x = torch.randn(2, 4, device=webgpu)
    traced = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(x * 2), model(x * 2))
    found = []

    def changing(x: torch.Tensor) -> torch.Tensor:
        found.append(x)
        return x * len(found)

    with pytest.raises(torch.jit.TracingCheckError):
        torch.jit.trace(changing, x)
    # PyTorch hands the copy of a traced number over as Python's.
    halved = torch.jit.trace(lambda x: x * torch.tensor(0.5, device=webgpu), x)
    torch.testing.assert_close(halved(x), x / 2)
    copied = torch.jit.trace(
        lambda x: torch.empty_like(x).copy_(x[0]) + torch.ones(x.shape[1:], device=webgpu), x
    )
    torch.testing.assert_close(copied(x), x[:1].expand(2, 4) + 1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_under_autocast_give_the_low_type(webgpu: str, kind: str) -> None:
    layer = getattr(torch.nn, kind)(4, 5, num_layers=2, bidirectional=True)
    x = torch.randn(3, 2, 4)
    expected = layer(x)[0]
    layer = layer.to(webgpu)
    with torch.autocast(webgpu, torch.float16):
        y, h = layer(x.to(webgpu))
    for state in (y, *h) if kind == "LSTM" else (y, h):
        assert state.dtype is torch.float16
    y.float().square().sum().backward()
    assert layer.weight_ih_l0.grad.dtype is torch.float32
    torch.testing.assert_close(y.detach().float().cpu(), expected.detach(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("choose", ["gather", "sort", "max"])
def test_second_derivatives_of_what_is_chosen(webgpu: str, choose: str) -> None:
    start = torch.tensor([[1.0, 3.0, 2.0], [0.5, -1.0, 4.0]])

    def run(device: str) -> torch.Tensor:
        x = start.to(device).requires_grad_()
        if choose == "gather":
            chosen = x.gather(1, torch.tensor([[0, 0], [2, 1]], device=device))
        else:
            chosen = getattr(x, choose)(1)[0]
        (slope,) = torch.autograd.grad(chosen.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    both(webgpu, run)


@pytest.mark.parametrize("scales", [(1.7, None), (None, 0.9), (1.7, 0.9), (None, None)])
@pytest.mark.parametrize("kind", ["upsample_bilinear2d", "_upsample_bilinear2d_aa"])
def test_scales_of_some_dims(
    webgpu: str, kind: str, scales: tuple[float | None, float | None]
) -> None:
    operator = getattr(torch.ops.aten, kind)
    start = torch.linspace(-2.0, 2.0, 200).sin().reshape(1, 1, 10, 20)

    def resized(device: str) -> torch.Tensor:
        return operator(start.to(device), (3, 3), False, *scales)

    def slope(device: str) -> torch.Tensor:
        x = start.to(device).requires_grad_()
        return torch.autograd.grad(operator(x, (3, 3), False, *scales).square().sum(), x)[0]

    both(webgpu, resized)
    both(webgpu, slope)


@pytest.mark.parametrize("dim", [0, 1])
def test_running_log_sums_are_as_exact_as_pytorchs(webgpu: str, dim: int) -> None:
    """PyTorch's gradient subtracts the results: it loses what these lose, so they are rounded once, as on the CPU."""
    start = 1e4 + torch.linspace(0.0, 99.0, 64 * 64).sin().mul(4).reshape(64, 64)

    def run(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = start.to(device).requires_grad_()
        y = x.logcumsumexp(dim)
        y.sum().backward()
        return y.detach(), x.grad

    exact = start.double().requires_grad_()
    exact.logcumsumexp(dim).sum().backward()
    (found, slope), (wanted, theirs) = ([t.cpu() for t in run(d)] for d in (webgpu, "cpu"))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)
    error, allowed = ((g - exact.grad).abs().max() for g in (slope, theirs))
    assert error <= 1.5 * allowed


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_numbers_of_16_bits(webgpu: str) -> None:
    x = torch.ones(3, 2, dtype=torch.float16, device=webgpu)
    z = torch.view_as_complex(x)
    assert z.dtype is torch.complex32 and torch.view_as_real(z).cpu().equal(x.cpu())
    found = (z * (2 + 1j) + x[:, 0]).clone()
    assert found.dtype is torch.complex32 and found.tolist() == [2 + 3j] * 3
    z.fill_(2)
    assert x.tolist() == [[2, 0]] * 3 and z.abs().dtype is torch.float16


FORWARD_OVER_REVERSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number times a number of the device": lambda x: -0.5 * x.sum() + 1,
    "sums that begin with 0.0": lambda x: sum((r.square().sum() for r in x), 0.0),
    "deviations": lambda x: x.var() * 0.5 + x.std() * 2,
    "max pooling": lambda x: F.max_pool1d(x * x, 2).square().sum(),
    "max pooling of planes": lambda x: F.max_pool2d(x[None] ** 3, 2, 1).square().sum(),
    "adaptive max pooling": lambda x: F.adaptive_max_pool1d(x * x, 2).square().sum(),
    "a smooth loss": lambda x: F.smooth_l1_loss(x**3, F.max_pool1d(x, 4).expand_as(x)),
    "gated units": lambda x: F.glu(x * x, 1).square().sum(),
    "likelihood": lambda x: F.nll_loss(
        (x * x).log_softmax(1), torch.arange(len(x), device=x.device)
    ),
}


# PyTorch maps `glu_jvp` row by row, and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", FORWARD_OVER_REVERSE)
def test_forward_mode_over_gradients(name: str, webgpu: str) -> None:
    """Tangents take the place of values in some backward operators, and 0-d ones may be of float64."""
    function = FORWARD_OVER_REVERSE[name]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    for transform in (
        lambda x: torch.func.jvp(function, (x,), (x.cos(),)),
        lambda x: (torch.func.jacfwd(function)(x),),
        lambda x: (torch.func.hessian(function)(x),),
    ):
        for got, expected in zip(transform(x.to(webgpu)), transform(x), strict=True):
            # float64 where the device has it.
            assert got.dtype in (torch.float32, expected.dtype)
            torch.testing.assert_close(got.cpu(), expected.to(got.dtype), rtol=1e-4, atol=1e-5)


def test_forms_of_one_operator_in_turn(webgpu: str) -> None:
    """In place, into `out` and out of place: tensors of the same types and sizes, another number of them."""
    x, index, value = (
        torch.arange(12.0).reshape(3, 4),
        torch.tensor([[0], [1], [2]]),
        torch.ones(3, 1),
    )
    there = [t.to(webgpu) for t in (x, index, value)]
    expected = x.scatter(1, index, value)
    for _ in range(5):
        inplace, out = there[0].clone(), torch.empty_like(there[0])
        inplace.scatter_(1, *there[1:])
        torch.scatter(there[0], 1, *there[1:], out=out)
        for got in (inplace, out, there[0].scatter(1, *there[1:])):
            torch.testing.assert_close(got.cpu(), expected)


def test_what_the_tests_of_pytorch_ask_of_single_operators(webgpu: str) -> None:
    def expanded(device: str) -> torch.Tensor:
        return F.threshold(torch.ones(1, device=device).expand(6), 2, 0.5, inplace=True)

    def called(device: str) -> torch.Tensor:
        x = torch.arange(3.0, device=device).apply_(lambda a: a + 2)
        return x.map_(torch.ones(3, device=device), lambda a, b: a * 2 + b)

    def combined(device: str) -> torch.Tensor:
        x = torch.ones(2, 3, device=device)
        return torch._compute_linear_combination(torch.arange(9.0, device=device).view(3, 3), x)

    def drawn(device: str) -> torch.Tensor:
        count, sure = torch.full((3,), 5.0, device=device), torch.ones(3, device=device)
        generator = torch.Generator(device)
        return torch.binomial(count, sure, generator) + torch.poisson(count * 0, generator)

    def into_integers(device: str) -> torch.Tensor:
        out = torch.empty(2, dtype=torch.int64, device=device)
        return torch.bernoulli(torch.tensor([0.0, 1.0], device=device), out=out)

    def of_nothing(device: str) -> torch.Tensor:
        nothing = torch.zeros(0, device=device)
        return torch.cat([nothing, nothing], 1)

    def in_bags(device: str) -> torch.Tensor:
        table, rows = torch.arange(6.0, device=device).view(3, 2), torch.ones(2, 2, device=device)
        return torch.embedding_bag(table, rows.long(), torch.tensor([0, 1], device=device))[0]

    for size in ((0, 3, 0, 2), (2, 0, 3)):
        both(webgpu, lambda device, size=size: torch.ones(size, device=device))
    for run in (expanded, called, combined, drawn, into_integers, of_nothing, in_bags):
        both(webgpu, run)
    part = torch.arange(6, dtype=torch.int16, device=webgpu).untyped_storage()[2:6]
    assert part.tolist() == [1, 0, 2, 0]
    line = torch.zeros(1, 49, device=webgpu)
    with pytest.warns(UserWarning, match="The out tensor will be resized"):
        torch.arange(50, out=line)
    assert line.shape == (50,)
    with pytest.warns(UserWarning, match="to - 1 is out of bounds"):
        torch.ones(2, device=webgpu).random_(0, 2**25 + 2)


def test_what_cannot_be_factored_raises_the_error_of_pytorch(webgpu: str) -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv_ex(torch.zeros(2, 2, device=webgpu), check_errors=True)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: x.int().index_fill_(0, x[0].long(), 1 + 1j), "complex Scalar to non-complex"),
        (lambda x: torch.addr(x, x[0], x[0], beta=True), "Boolean beta only"),
        (lambda x: torch.linalg.matrix_rank(x, out=x.bool()), "result with dtype Bool"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "quantised tensors are not"),
        (lambda x: x._lazy_clone(), "are not on the device"),
        (torch.fbgemm_pack_gemm_matrix_fp16, "are not on the device"),
        (lambda x: torch.choose_qparams_optimized(x, 4, 200, 0.16, 8), "are not on the device"),
        (lambda x: x.uniform_(-3e38, 3e38), "uniform_ expects to-from"),
        (lambda x: x.int().uniform_(), "uniform_"),
        (lambda x: torch.randperm(2**11 + 2, out=x.half()), "n is too large"),
        (lambda x: torch.randint(6, (2,), device=x.device, dtype=torch.complex64), "not impl"),
        (lambda x: torch.all(x, 0, out=x), "all only supports bool tensor for result"),
        (lambda x: torch.neg(x, out=x.int()), "^Found dtype Int but expected Float"),
        (lambda x: torch.nonzero(x, out=x), "scalar type Long"),
        (lambda x: -x.bool(), "Negation, the `-` operator, on a bool tensor is not supported"),
        (lambda x: setitem(x.int(), x > -1, x[0]), "shape mismatch"),
        (lambda x: setitem(x.int(), x.long(), x.long()), "got Int for the destination and Long"),
        (lambda x: torch.normal(0, torch.tensor(-1.0).to(x.device)).item(), "elements of std >= 0"),
        (lambda x: F.nll_loss(x, torch.tensor([1, 4]).to(x.device)).item(), "4 is out of bounds"),
        (
            lambda x: torch._embedding_bag(x[None], x[0].long(), x[0].long()),
            "weight has to be a 2D",
        ),
    ],
)
def test_what_is_refused_is_refused_as_by_pytorch(
    webgpu: str, run: Callable[[torch.Tensor], object], words: str
) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=words):
        run(torch.eye(2, device=webgpu))


@pytest.mark.parametrize("scramble", [False, True])
def test_operators_that_pytorch_composes_of_nothing(webgpu: str, scramble: bool) -> None:
    """PyTorch's own of these read memory as the CPU's, and end the process."""
    ours, theirs = (torch.quasirandom.SobolEngine(3, scramble, seed=1) for _ in range(2))
    for name in ("sobolstate", "shift", "quasi", "_first_point"):
        setattr(ours, name, getattr(ours, name).to(webgpu))
    for n in (2, 5):
        assert torch.equal(ours.draw(n).cpu(), theirs.draw(n))
    for engine in (ours, theirs):
        engine.fast_forward(1000)
    assert ours.quasi.is_webgpu and torch.equal(ours.quasi.cpu(), theirs.quasi)
    matrices = torch.randint(2, (3, 30, 30)).tril()
    turned = torch._sobol_engine_scramble_(ours.sobolstate, matrices.to(webgpu), 3)
    torch._sobol_engine_scramble_(theirs.sobolstate, matrices, 3)
    assert torch.equal(turned.cpu(), theirs.sobolstate)
    ranged = torch.ops.aten.range.out_(1, 4, out=torch.zeros(4, device=webgpu))
    shape = torch.tensor([2, 2], device=webgpu)
    assert torch._reshape_from_tensor(ranged, shape).tolist() == [[1, 2], [3, 4]]
    assert torch._saturate_weight_to_fp16(ranged * 3e4).tolist() == [3e4, 6e4, 65504, 65504]
    first = torch._sobol_engine_initialize_state_(torch.zeros_like(turned), 3)
    assert torch.equal(first.cpu(), torch.quasirandom.SobolEngine(3).sobolstate)


def test_a_linear_layer_without_inputs_or_outputs_has_gradients() -> None:
    # As a part of a layer that several processes split.
    for shape in ((3, 0), (0, 3), (0, 0)):
        weight = torch.ones(shape, device="webgpu", requires_grad=True)
        x = torch.ones(2, 2, shape[1], device="webgpu", requires_grad=True)
        F.linear(x, weight).sum().backward()
        assert weight.grad is not None and weight.grad.shape == shape
        assert x.grad is not None and x.grad.cpu().eq(shape[0]).all()


class _Stops(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        return None


@pytest.mark.parametrize("again", [False, True])
def test_attention_whose_result_has_no_gradient(webgpu: str, again: bool) -> None:
    q = torch.ones(1, 2, 3, 4, device=webgpu, requires_grad=True)
    out = _Stops.apply(F.scaled_dot_product_attention(q, q, q))
    grads = torch.autograd.grad(out.sum(), q, create_graph=again, allow_unused=True)
    assert grads == (None,)


@pytest.mark.parametrize("value", [1.0, torch.ones(1)])
def test_a_mask_of_another_size_is_refused_as_an_index(webgpu: str, value: Any) -> None:
    x = torch.zeros(2, 3, device=webgpu)
    mask = torch.ones(3, dtype=torch.bool, device=webgpu)
    with pytest.raises(IndexError, match=r"The shape of the mask \[3\] at index 0 does not match"):
        x[mask] = value if isinstance(value, float) else value.to(webgpu)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_classes_of_storages(webgpu: str) -> None:
    kinds: Any = torch.webgpu  # type: ignore[attr-defined]
    storage = torch.ones(3, device=webgpu).storage()
    assert storage.type() == "torch.webgpu.FloatStorage"
    assert isinstance(storage, kinds.FloatStorage) and not isinstance(storage, torch.FloatStorage)
    made = kinds.IntStorage([1, 2])
    assert made.device.type == "webgpu" and made.tolist() == [1, 2]
    assert not hasattr(kinds, "Storage")


def test_no_number_of_no_element(webgpu: str) -> None:
    with pytest.raises(RuntimeError, match=r"item: Empty tensor not supported: shape \(0,\)"):
        torch.ops.aten._local_scalar_dense(torch.empty(0, device=webgpu))


def test_operators_of_higher_order_with_a_kernel_for_the_cpu_alone(webgpu: str) -> None:
    class Twice(torch._ops.HigherOrderOperator):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args)

    twice: Any = Twice("webtorch_test_twice")
    twice.py_impl(torch._C.DispatchKey.AutogradCPU)(lambda x: x * 2)
    x = torch.ones(3, device=webgpu, requires_grad=True)
    assert twice(x).tolist() == [2, 2, 2]
    twice.py_impl(torch._C.DispatchKey.CPU)(lambda x: x * 3)
    with torch.inference_mode():
        assert twice(torch.ones(1, device=webgpu)).tolist() == [3]


@pytest.mark.parametrize(
    "run",
    [
        lambda x, g: torch.autograd.grad(F.hardswish(x), x, g)[0],
        lambda x, g: torch.autograd.grad(F.relu6(x), x, g)[0],
        lambda x, g: torch.autograd.grad(F.binary_cross_entropy(x, g, reduction="none"), x, g)[0],
        lambda x, g: torch.selu(x),
        lambda x, g: F.logsigmoid(x),
        lambda x, g: torch.clamp(x, max=g),
        lambda x, g: F.binary_cross_entropy(x, g, reduction="none"),
        lambda x, g: torch.mul(g, 2, out=g.new_empty(0)),
        lambda x, g: torch.clamp(g, 0.5, out=g.new_empty(0)),
    ],
)
def test_results_lie_as_operands_whose_values_lie_row_major(
    webgpu: str, run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    values = torch.rand(2, 3, 2, 5)

    def on(device: str) -> torch.Tensor:
        x = torch.empty_like(values, device=device, memory_format=torch.channels_last)
        x = x.copy_(values.to(device)).requires_grad_()
        return run(x, x.detach().clone())

    both(webgpu, on)


def test_a_product_refuses_overlapping_memory(webgpu: str) -> None:
    x = torch.ones(4, device=webgpu)
    with pytest.raises(RuntimeError, match=r"memory|overlap"):
        torch.mul(x[1:], 2, out=x[:-1])


@pytest.mark.parametrize("value", [float("inf"), 2, 2.5])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_a_number_is_copied(webgpu: str, value: float, kind: torch.dtype) -> None:
    both(webgpu, lambda device: torch.zeros(2, 3, dtype=kind, device=device).copy_(value))  # type: ignore[arg-type]
    both(webgpu, lambda device: torch.zeros(2, 3, dtype=kind, device=device)[:, 1].copy_(value))  # type: ignore[arg-type]


def test_a_scale_does_not_grow_to_infinity(webgpu: str) -> None:
    scaler = torch.amp.GradScaler(webgpu, init_scale=1e38, growth_factor=16.0, growth_interval=1)
    x = torch.ones(2, device=webgpu, requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)
    scaler.scale((x * 1e-30).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == pytest.approx(1e38)


def test_a_switch_is_asked_of_calls_that_are_known(webgpu: str) -> None:
    x, i, v = (
        torch.zeros(4, device=webgpu),
        torch.tensor([0, 0], device=webgpu),
        torch.ones(2, device=webgpu),
    )
    for write in (torch.Tensor.put, torch.Tensor.put_):
        for _ in range(3):
            write(x, i, v)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
                write(x, i, v)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, m: x.masked_fill_(m, 2.0),
        lambda x, i, m: x.masked_fill_(m, m.new_tensor(2.0, dtype=x.dtype)),
        lambda x, i, m: x.index_fill_(0, i, 2.0),
        lambda x, i, m: x.index_put_((i,), x.new_ones(3)),
        lambda x, i, m: setitem(x, i, 2.0),
        lambda x, i, m: x.index_put_((i,), x.new_ones(3), accumulate=True),
    ],
)
def test_what_is_expanded_is_written_with_a_warning(
    webgpu: str, write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
) -> None:
    def on(device: str) -> torch.Tensor:
        memory = torch.tensor([5.0], device=device)
        x = memory.expand(3)
        with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
            write(
                x,
                torch.tensor([2, 1, 0], device=device),
                torch.tensor([True, False, True], device=device),
            )
        return torch.cat([x, memory])

    both(webgpu, on)
    with pytest.raises(RuntimeError, match="more than one element"):
        torch.zeros(1, device=webgpu).expand(3).add_(1)
