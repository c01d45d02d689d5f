"""What programs use of PyTorch beside operators: streams, memory counts, generators, profiler, complex numbers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from tests import long
from webtorch.pytorch import fallback


def same(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert actual.is_webgpu
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance
    )


class TestComplexNumbers:
    def test_travel_and_are_views_of_their_parts(self, webgpu: str) -> None:
        z = torch.tensor([1 + 2j, 3 - 4j])
        x = z.to(webgpu)
        same(x, z)
        same(x.conj() * 2j, z.conj() * 2j)
        same(x.abs(), z.abs())
        x.real[0] = 9
        assert x[0].item() == 9 + 2j
        same(torch.view_as_real(x), torch.view_as_real(x.cpu()))
        assert x.conj().cpu().tolist() == [9 - 2j, 3 + 4j]
        assert x.imag.neg().cpu().tolist() == [-2, 4]

    def test_are_saved_and_copied(self, webgpu: str) -> None:
        z = torch.tensor([1 + 2j, 3 - 4j], device=webgpu)
        file = io.BytesIO()
        torch.save(z, file)
        file.seek(0)
        same(torch.load(file), z.cpu())

    def test_transforms_and_their_gradients(self, webgpu: str) -> None:
        x = torch.randn(3, 6)

        def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = x.detach().requires_grad_()
            y = torch.fft.rfft(x, norm="ortho").abs().sum() + torch.fft.ifft2(x).real.sum()
            y.backward()
            assert x.grad is not None
            return y, x.grad

        for actual, expected in zip(run(x.to(webgpu)), run(x), strict=True):
            same(actual, expected)


def test_eigenvalues_of_any_matrix_run_on_the_cpu_and_are_counted(
    webgpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call says so."""
    monkeypatch.setattr(fallback, "_warned", set())
    x = torch.tensor([[2.0, 1.0], [0.5, 3.0]])
    before = torch.webgpu.host_kernel_counts().get("aten._linalg_eigvals.default", 0)
    with pytest.warns(UserWarning, match="the CPU computes it") as told:
        same(torch.linalg.eigvals(x.to(webgpu)), torch.linalg.eigvals(x))
    assert told[0].filename == __file__
    assert torch.webgpu.host_kernel_counts()["aten._linalg_eigvals.default"] == before + 1


_FACTORISATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4, device=x.device)),
    "solve": lambda x: torch.linalg.solve(x, 2 * x[..., :2] + 1),
    "solve from the right": lambda x: torch.linalg.solve(x.mT, x[..., :2].mT + 1, left=False),
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "logdet": lambda x: torch.logdet(x @ x.mT),
    "lu": lambda x: torch.linalg.lu(x)[2],
    "qr": lambda x: torch.linalg.qr(x[..., :3])[0],
    "lstsq": lambda x: torch.linalg.lstsq(x[..., :3], x[..., 3:] + 1).solution,
    "eigh": lambda x: torch.linalg.eigh(x + x.mT)[1].abs(),
    "svd": lambda x: torch.linalg.svd(x[..., :3], full_matrices=False)[0].abs(),
    "pinv": lambda x: torch.linalg.pinv(x[..., :3]),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x / 4),
    "triangular": lambda x: torch.linalg.solve_triangular(x, x + 1, upper=True),
}


# Their kernels are compared in tests/ops/test_linalg.py.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", _FACTORISATIONS)
def test_factorisations_and_both_gradients_are_the_device_s(webgpu: str, name: str) -> None:
    # Eigenvalues and singular values apart from each other: derivatives divide by their differences.
    x = 0.4 * torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
    x = x + torch.tensor([0.5, 1.5, 3.0, 5.0]).diag()
    before = torch.webgpu.host_kernel_counts()

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        y = _FACTORISATIONS[name](x)
        # Not linear in rows and columns: of orthogonal matrices such sums are constant.
        weights = torch.arange(y.numel()).cos().reshape(y.shape) + 1.5
        loss = (y.square() * weights.to(y)).sum()
        # Without a graph, and with one.
        (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        results = [y, plain, first]
        if long.runs():
            results += torch.autograd.grad(first.square().sum(), x)
        return results

    for actual, expected in zip(run(x.to(webgpu)), run(x.double()), strict=True):
        assert actual.is_webgpu
        size = expected.abs().max()
        mine = actual.cpu().double() / size
        torch.testing.assert_close(mine, expected / size, rtol=0, atol=2e-4)
    assert torch.webgpu.host_kernel_counts() == before
    assert not torch.webgpu.fallback_counts()


def test_factors_lie_as_lapack_s_do(webgpu: str) -> None:
    x = torch.randn(2, 3, 3) + 3 * torch.eye(3)
    for call in (torch.linalg.lu_factor, torch.linalg.qr, torch.geqrf, torch.linalg.inv):
        found, wanted = call(x.to(webgpu)), call(x)
        for actual, expected in zip(found, wanted, strict=True):
            assert actual.stride() == expected.stride()


def test_what_cannot_be_factored_raises_pytorch_s_error(webgpu: str) -> None:
    x = torch.zeros(2, 3, 3)
    x[1, 0, 0] = torch.nan
    for call in (torch.linalg.cholesky, torch.linalg.inv, torch.linalg.svd):
        with pytest.raises(torch.linalg.LinAlgError) as expected:
            call(x)
        with pytest.raises(torch.linalg.LinAlgError) as actual:
            call(x.to(webgpu))
        assert str(actual.value) == str(expected.value)


def test_lu_factors_are_taken_apart_and_solved_with(webgpu: str) -> None:
    found = []
    for device in ("cpu", webgpu):
        torch.manual_seed(0)
        a = torch.randn(2, 4, 4).to(device).requires_grad_()
        b = torch.randn(2, 4, 3).to(device).requires_grad_()
        factors, pivots = torch.linalg.lu_factor(a)
        p, lower, upper = torch.lu_unpack(factors, pivots)
        solved = torch.linalg.lu_solve(factors, pivots, b)
        (solved.square().sum() + lower.sum() + upper.square().sum()).backward()
        found.append([t.detach().cpu() for t in (p, lower, upper, solved, a.grad, b.grad)])
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_streams_and_events(webgpu: str) -> None:
    stream, events = (
        torch.webgpu.Stream(),
        [torch.webgpu.Event(enable_timing=True) for _ in range(2)],
    )
    with torch.webgpu.stream(stream):
        events[0].record()
        x = torch.ones(3, device=webgpu) * 2
        events[1].record(stream)
    stream.wait_stream(torch.webgpu.current_stream())
    stream.wait_event(events[0])
    x.record_stream(stream)
    events[1].synchronize()
    assert events[0].elapsed_time(events[1]) >= 0
    assert stream.query() and events[0].query() and stream.device == torch.device("webgpu:0")
    with pytest.raises(ValueError, match="enable_timing"):
        torch.webgpu.Event().elapsed_time(events[0])


def test_streams_and_events_of_any_accelerator(webgpu: str) -> None:
    here, other = torch.accelerator.current_stream(), torch.Stream(device=webgpu)
    same = torch.Stream(
        stream_id=other.stream_id, device_index=other.device_index, device_type=other.device_type
    )
    assert isinstance(other, torch.Stream) and other == same and other != 3 and other != "webgpu"
    torch.accelerator.set_stream(other)
    with other, torch.Stream() as inner:
        assert torch.accelerator.current_stream() == inner
    assert torch.accelerator.current_stream("webgpu:0") == here
    assert issubclass(torch.webgpu.Stream, torch.Stream)
    times = [torch.Event(webgpu, enable_timing=True) for _ in range(2)]
    assert isinstance(times[0], torch.Event) and times[0].device.type == webgpu
    with pytest.raises(ValueError, match="must be recorded"):
        times[0].elapsed_time(times[1])
    for event in times:
        (torch.ones(3, device=webgpu) * 2).sum()
        event.record(here)
        other.wait_event(event)
        event.synchronize()
    assert times[0].elapsed_time(times[1]) > 0 and all(e.query() for e in times)
    made = other.record_event()
    made.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        made.elapsed_time(times[0])
    for ask in (
        lambda: torch.Stream("webgpu:1"),
        lambda: torch.Event("webgpu:1"),
        lambda: torch.accelerator.device_index(1).__enter__(),
        lambda: torch.accelerator.set_device_index(1),
    ):
        with pytest.raises(RuntimeError, match="one WebGPU device"):
            ask()
    with pytest.raises(ValueError, match="doesn't match"):
        torch.accelerator.set_device_index("cpu")
    with torch.accelerator.device_index(0), torch.accelerator.device_index(None):
        torch.accelerator.empty_host_cache()


def test_memory_counts(webgpu: str) -> None:
    x = torch.ones(1 << 16, device=webgpu)
    torch.webgpu.synchronize()
    stats = torch.webgpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.webgpu.memory_allocated() >= x.nbytes
    assert torch.webgpu.memory_reserved() >= torch.webgpu.memory_allocated()
    assert torch.accelerator.memory_allocated() == torch.webgpu.memory_allocated()
    assert stats["active_bytes.all.peak"] >= stats["active_bytes.all.current"] >= x.nbytes
    assert "allocated_bytes" in torch.webgpu.memory_summary()
    assert torch.float32 in torch.webgpu.get_device_capability()["supported_dtypes"]


def test_seeds_states_and_generators(webgpu: str) -> None:
    state = torch.webgpu.get_rng_state_all()
    a = torch.rand(4, device=webgpu)
    torch.webgpu.set_rng_state_all(state)
    same(torch.rand(4, device=webgpu), a.cpu())
    with FakeTensorMode():
        torch.webgpu.set_rng_state(state[0])
        assert type(torch.webgpu.get_rng_state()) is torch.Tensor
    same(torch.rand(4, device=webgpu), a.cpu())
    assert torch.webgpu.seed() == torch.webgpu.initial_seed()
    with torch.random.fork_rng(devices=[0], device_type=webgpu):
        torch.rand(2, device=webgpu)
    for device in (webgpu, "cpu"):
        drawn = [
            torch.randn(
                3, device=webgpu, generator=torch.Generator(device=device).manual_seed(5)
            ).tolist()
            for _ in range(2)
        ]
        assert drawn[0] == drawn[1]
    generator = torch.Generator(webgpu)
    assert generator.device == torch.device("webgpu:0")
    assert isinstance(generator, torch.Generator) and isinstance(
        torch.default_generator, torch.Generator
    )
    with pytest.raises(RuntimeError, match="webgpu:3"):
        torch.Generator("webgpu:3")
    generator.manual_seed(7)
    copies = [copy.deepcopy(generator), generator.clone_state()]
    copies.append(pickle.loads(pickle.dumps(generator)))
    drawn = [torch.rand(3, device=webgpu, generator=g).tolist() for g in (generator, *copies)]
    assert all(d == drawn[0] for d in drawn) and {g.device.type for g in copies} == {webgpu}
    for wrong in (torch.zeros(16), 3):
        with pytest.raises(TypeError, match="ByteTensor"):
            torch.webgpu.set_rng_state(wrong)
    # The class takes the place of PyTorch's own, and must be found by its name.
    seeded = torch.Generator().manual_seed(3)
    assert pickle.loads(pickle.dumps(seeded)).initial_seed() == 3


def test_parts_of_complex_normal_numbers_have_half_of_the_variance(webgpu: str) -> None:
    generator = torch.Generator(webgpu).manual_seed(1)
    x = torch.empty(4000, dtype=torch.complex64, device=webgpu).normal_(0, 2, generator=generator)
    y = torch.randn(4000, dtype=torch.complex64, device=webgpu, generator=generator) * 2
    for drawn in (x, y):
        variances = torch.view_as_real(drawn.cpu()).var(0)
        torch.testing.assert_close(variances, torch.full((2,), 2.0), rtol=0.15, atol=0.0)


def test_copies_that_do_not_block_and_pinned_loaders(webgpu: str) -> None:
    x = torch.arange(6.0)
    assert x.to(webgpu, non_blocking=True).to("cpu", non_blocking=True).tolist() == x.tolist()
    pinned = x.pin_memory()
    assert pinned.view(2, 3).is_pinned() and pinned.pin_memory() is pinned and not x.is_pinned()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 2, pin_memory=True)
    assert sum(b.to(webgpu, non_blocking=True).sum().item() for (b,) in batches) == 15


def test_the_profiler_names_kernels(webgpu: str) -> None:
    with torch.profiler.profile() as profile:
        a = torch.randn(8, 8, device=webgpu)
        (a @ a).relu().sum().item()
    names = {event.key for event in profile.key_averages()}
    assert "aten::mm" in names
    assert any(name.startswith("webgpu::") for name in names)


def test_transformer_layers_where_no_gradient_is_wanted(webgpu: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = layer(x), layer(x, src_key_padding_mask=padded)
        layer.to(webgpu)
        same(layer(x.to(webgpu)), expected[0])
        same(layer(x.to(webgpu), src_key_padding_mask=padded.to(webgpu))[:, :3], expected[1][:, :3])


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 1]], device=x.device), x, mode="max"),
        lambda x: F.grid_sample(x.reshape(1, 1, 3, 4), x[:2].reshape(1, 2, 2, 2).tanh(), align_corners=False),
        lambda x: torch.cdist(x, x[:2] * 2),
        lambda x: torch.linalg.solve(x[:, :3], x[:, 3]),
        lambda x: torch.renorm(x, 2, 0, 1.0),
        lambda x: F.interpolate(x.reshape(1, 1, 3, 4), size=(2, 3), mode="bilinear", antialias=True),
        lambda x: F.ctc_loss(
            x.reshape(4, 1, 3).log_softmax(2), torch.tensor([[1, 2]], device=x.device), (4,), (2,)
        ),
    ],
    ids=["embedding_bag", "grid_sample", "cdist", "solve", "renorm", "antialias", "ctc"],
)  # fmt: skip
def test_rarer_operators_and_their_gradients(
    webgpu: str, run: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 4)
    found = []
    for device in ("cpu", webgpu):
        leaf = x.to(device).detach().requires_grad_()
        y = run(leaf)
        y.square().sum().backward()
        found.append((y, leaf.grad))
    for expected, actual in zip(*found, strict=True):
        assert actual is not None and expected is not None
        same(actual, expected, 1e-3)


def test_data_parallel_runs_on_the_one_device(webgpu: str) -> None:
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    expected = model(x).detach()
    parallel = nn.DataParallel(model.to(webgpu))
    for rows in (x, x.to(webgpu)):
        rows = rows.clone().requires_grad_()
        result = parallel(rows)
        same(result, expected)
        result.sum().backward()
        assert rows.grad is not None
        torch.testing.assert_close(rows.grad.cpu(), model.weight.detach().cpu().sum(0).expand(3, 4))
        assert rows.grad.device == rows.device


def test_inference_that_reads_nothing_is_one_program_a_batch(webgpu: str) -> None:
    from webtorch.pytorch.device import runtime

    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(40)])
    data = [torch.randn(3, 6) for _ in range(8)]
    on_device = nn.Sequential(*model).to(webgpu)
    torch.webgpu.synchronize()
    counters = runtime().counters
    before = counters.misses
    with torch.no_grad():
        found = [on_device(x.to(webgpu)) for x in data]
        # All but the last have been computed.
        assert counters.misses <= before + 2
        whole = torch.cat(found)
        expected = torch.cat([model.cpu()(x) for x in data])
    assert (whole.cpu() - expected).abs().max() < 1e-5


@pytest.mark.long
def test_generating_with_a_growing_cache_compiles_little(webgpu: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from webtorch.pytorch.device import runtime

    config = Qwen2Config(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=24, vocab_size=50, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    text = torch.tensor([[1, 2, 3]])
    expected = model.generate(text, max_new_tokens=12, do_sample=False)
    model.to(webgpu)
    torch.webgpu.synchronize()
    known = runtime()
    divided = set(map(id, known.divided.values()))
    found = model.generate(text.to(webgpu), max_new_tokens=12, do_sample=False)
    assert found.tolist() == expected.tolist()
    (new,) = [d for d in known.divided.values() if id(d) not in divided]
    assert new.cut is not None
    # From the third token on: layers alternate between what grows and what does not.
    assert len(new.cut.parts) >= 8
    assert len(new.times) >= 8
