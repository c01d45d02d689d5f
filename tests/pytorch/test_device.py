"""Tensors of real PyTorch on "webgpu": memory, views, copies, files, printing, errors. Needs an adapter."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.pytorch.models import GPT, mlp
from webtorch.pytorch import device as bridge


def test_device_module_answers(webgpu: str) -> None:
    assert torch.webgpu.is_available()
    assert torch.webgpu.device_count() == 1
    assert torch.webgpu.current_device() == 0
    assert isinstance(torch.webgpu.get_device_name(), str)
    assert torch.accelerator.current_accelerator() == torch.device("webgpu")
    assert torch.accelerator.is_available()
    torch.accelerator.synchronize()
    torch.webgpu.set_device(0)
    with pytest.raises(RuntimeError, match="one WebGPU device"):
        torch.webgpu.set_device(1)
    properties = torch.webgpu.get_device_properties(0)
    assert properties.name == torch.webgpu.get_device_name()
    assert properties.max_workgroup_invocations >= 1
    assert repr(properties).startswith(f"DeviceProperties(name={properties.name!r}, max_binding")
    with pytest.raises(AttributeError, match="does not tell the size"):
        _ = properties.total_memory


def test_errors_name_the_users_line_and_not_pytorchs(webgpu: str) -> None:
    x = torch.randn(3, 4, device=webgpu)
    loss = nn.functional.cross_entropy(x, torch.tensor([1, 2, 9], device=webgpu))
    with pytest.raises(IndexError, match=r"index 9 .*test_device\.py:"):
        loss.item()


def test_creation_and_the_ways_there_and_back(webgpu: str) -> None:
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    for y in (
        x.to(webgpu),
        x.webgpu(),
        x.to(torch.device("webgpu", 0)),
        torch.tensor(x.tolist(), device=webgpu),
    ):
        assert y.device == torch.device("webgpu:0")
        assert y.is_webgpu
        assert torch.equal(y.cpu(), x)
    assert torch.equal(torch.full((2, 2), 7, device=webgpu).cpu(), torch.full((2, 2), 7))
    assert torch.equal(torch.linspace(0, 1, 5, device=webgpu).cpu(), torch.linspace(0, 1, 5))
    assert torch.equal(torch.eye(3, device=webgpu).cpu(), torch.eye(3))
    assert torch.equal(torch.arange(2, 10, 3, device=webgpu).cpu(), torch.arange(2, 10, 3))
    with torch.device(webgpu):
        assert torch.zeros(2).is_webgpu
    assert torch.zeros(2).device.type == "cpu"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
    ids=str,
)
def test_dtypes_travel_and_convert(webgpu: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    y = x.to(webgpu)
    assert y.dtype is dtype
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.t().cpu(), x.t())
    assert torch.equal(y.float().cpu(), x.float())
    assert torch.equal(x.to(webgpu, torch.float32).cpu(), x.float())


def test_views_share_memory_and_writes_show_through(webgpu: str) -> None:
    x = torch.zeros(4, 6, device=webgpu)
    reference = torch.zeros(4, 6)
    for t in (x, reference):
        view = t[1:3].t()[::2]
        view += 1
        t.view(-1)[5] = 9
        t[:, 1].mul_(3).add_(2)
        t[torch.tensor([0, 3])] = -1
        t[t > 2] = 0.5
        t.diagonal().fill_(4)
        t.unfold(0, 2, 2)[0, :, 0] = 8
    assert x[0].untyped_storage() is x.untyped_storage()
    assert torch.equal(x.cpu(), reference)


def test_in_place_operations_and_autograd_agree_with_the_cpu(webgpu: str) -> None:
    def run(where: str) -> list[torch.Tensor]:
        w = torch.arange(6.0, device=where).reshape(2, 3).requires_grad_()
        y = w * 2
        y[0] += w[1]
        y[:, 1:].mul_(w[:, :2])
        z = torch.cat([y.t(), w.t()], 1).expand(2, 3, 4).sum(0)
        z.relu_().square().mean().backward()
        return [w.grad.cpu(), z.detach().cpu()]

    torch.testing.assert_close(run(webgpu), run("cpu"))


def test_overwritten_saved_tensor_is_an_error(webgpu: str) -> None:
    w = torch.ones(3, device=webgpu, requires_grad=True)
    y = w.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_advanced_indexing(webgpu: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    y = x.to(webgpu)
    i, j = torch.tensor([1, 0, 1]), torch.tensor([[2], [0]])
    assert torch.equal(y[i.to(webgpu)].cpu(), x[i])
    assert torch.equal(y[i].cpu(), x[i])
    assert torch.equal(y[:, j.to(webgpu), -1].cpu(), x[:, j, -1])
    assert torch.equal(y[y > 10].cpu(), x[x > 10])
    assert torch.equal(y[..., [0, 2]].cpu(), x[..., [0, 2]])
    y[i.to(webgpu), 0] = 5.0
    x[i, 0] = 5.0
    y.index_put_(
        (torch.tensor([0, 0], device=webgpu),), torch.ones(3, 4, device=webgpu), accumulate=True
    )
    x.index_put_((torch.tensor([0, 0]),), torch.ones(3, 4), accumulate=True)
    assert torch.equal(y.cpu(), x)


def test_out_arguments_are_resized_and_converted(webgpu: str) -> None:
    a = torch.tensor([1, 2], device=webgpu)
    out = torch.empty(0, device=webgpu)
    assert torch.add(a, a, out=out) is out
    assert torch.equal(out.cpu(), torch.tensor([2.0, 4.0]))
    wide = torch.empty(2, 4, device=webgpu)
    torch.mul(a[:, None], torch.ones(2, 2, device=webgpu), out=wide[:, ::2])
    assert torch.equal(wide.cpu()[:, ::2], torch.tensor([[1.0, 1.0], [2.0, 2.0]]))


def test_resize_keeps_what_fits(webgpu: str) -> None:
    x = torch.arange(4.0, device=webgpu)
    x.resize_(2, 3)
    assert torch.equal(x.cpu().view(-1)[:4], torch.arange(4.0))
    x.resize_(2)
    assert torch.equal(x.cpu(), torch.tensor([0.0, 1.0]))


def test_memory_formats_and_strides(webgpu: str) -> None:
    x = torch.randn(2, 3, 4, 5)
    y = x.to(webgpu).to(memory_format=torch.channels_last)
    assert y.stride() == x.to(memory_format=torch.channels_last).stride()
    assert torch.equal(y.cpu(), x)
    z = (y + 1).relu()
    assert z.stride() == y.stride()
    assert torch.equal(z.cpu(), (x + 1).relu())
    assert torch.equal(y.contiguous().cpu(), x)


def test_the_same_bits_as_another_type(webgpu: str) -> None:
    x = torch.tensor([1.0, -2.0], device=webgpu)
    assert torch.equal(x.view(torch.int32).cpu(), x.cpu().view(torch.int32))
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    assert torch.equal(x.cpu(), torch.tensor([1.0, 2.0]))


def test_lazily_negated_tensors(webgpu: str) -> None:
    x = torch._neg_view(torch.tensor([1.0, -2.0], device=webgpu))
    assert torch.equal(x.cpu(), torch.tensor([-1.0, 2.0]))
    assert torch.equal((x + 0).cpu(), torch.tensor([-1.0, 2.0]))
    assert torch.equal(x.clone().cpu(), torch.tensor([-1.0, 2.0]))


def test_numbers_and_0d_tensors_of_the_cpu_mix_in(webgpu: str) -> None:
    x = torch.tensor([1.0, 2.0], device=webgpu)
    assert torch.equal((x * torch.tensor(3.0)).cpu(), torch.tensor([3.0, 6.0]))
    assert torch.equal((2 - x).cpu(), torch.tensor([1.0, 0.0]))
    assert (torch.tensor([1, 2], device=webgpu) / 2).dtype is torch.float32
    assert (torch.tensor([1, 2], device=webgpu) + 1.5).cpu().tolist() == [2.5, 3.5]
    assert torch.where(x > 1, x, torch.tensor(-1.0)).cpu().tolist() == [-1.0, 2.0]


def test_printing(webgpu: str) -> None:
    assert (
        repr(torch.tensor([1.5, 2.0], device=webgpu))
        == "tensor([1.5000, 2.0000], device='webgpu:0')"
    )
    assert repr(torch.zeros(0, device=webgpu)) == "tensor([], device='webgpu:0')"
    assert "requires_grad=True" in repr(torch.ones(1, device=webgpu, requires_grad=True))
    assert "..." in repr(torch.zeros(2000, device=webgpu))
    assert str(nn.Linear(2, 2).to(webgpu).weight).startswith("Parameter containing:")


def test_saving_and_loading(webgpu: str) -> None:
    model = GPT().to(webgpu)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    expected = {k: v.cpu() for k, v in model.state_dict().items()}
    for where in ("webgpu", "cpu", None):
        buffer.seek(0)
        found = torch.load(buffer, map_location=where)
        assert {v.device.type for v in found.values()} == {where or "webgpu"}
        for name, value in expected.items():
            assert torch.equal(found[name].cpu(), value), name
        assert found["head.weight"].untyped_storage() is found["tokens.weight"].untyped_storage()
    saved = io.BytesIO()
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, saved)
    saved.seek(0)
    fresh = GPT()
    fresh.load_state_dict(torch.load(saved, map_location="webgpu"))
    assert torch.equal(fresh.head.weight.detach(), expected["head.weight"])


@pytest.mark.parametrize("zipped", [True, False])
def test_saving_nothing(webgpu: str, zipped: bool) -> None:
    file = io.BytesIO()
    empty = {"x": torch.empty(0, 3, device=webgpu), "y": torch.ones(2, device=webgpu)[2:]}
    torch.save(empty, file, _use_new_zipfile_serialization=zipped)
    for where in (None, "cpu", webgpu, {"webgpu:0": "cpu"}):
        file.seek(0)
        found = torch.load(file, map_location=where)
        assert [tuple(t.shape) for t in found.values()] == [(0, 3), (0,)]
        assert all(t.is_webgpu == (where in (None, webgpu)) for t in found.values())


def test_copies_of_objects(webgpu: str) -> None:
    model = mlp().to(webgpu)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert model[0].weight.abs().sum().item() > 0
    assert twin[0].weight.abs().sum().item() == 0
    x = torch.arange(6.0, device=webgpu)[2:]
    again = pickle.loads(pickle.dumps(x))
    assert again.is_webgpu
    assert torch.equal(again.cpu(), x.cpu())
    assert torch.equal(copy.copy(x).cpu(), x.cpu())
    assert torch.equal(x.clone().cpu(), x.cpu())


def test_storages_go_to_the_device_and_back(webgpu: str) -> None:
    there = torch.arange(6.0).untyped_storage().webgpu()
    assert there.is_webgpu and not there.cpu().is_webgpu and there.tolist() == there.cpu().tolist()
    values = torch.empty(0, device=webgpu).set_(there, 0, (6,))
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


def test_untyped_storages(webgpu: str) -> None:
    storage = torch.UntypedStorage(8, device=webgpu)
    x = torch.tensor([], dtype=torch.float32, device=webgpu).set_(storage, 0, (2,))
    x.fill_(1.5)
    assert storage.nbytes() == 8
    assert torch.equal(
        torch.tensor([], dtype=torch.float32).set_(storage.cpu(), 0, (2,)), torch.tensor([1.5, 1.5])
    )
    twin = x.untyped_storage().clone()
    x.zero_()
    assert torch.tensor([], dtype=torch.float32, device=webgpu).set_(
        twin, 0, (2,)
    ).cpu().tolist() == [1.5, 1.5]


def test_memory_lives_as_long_as_its_last_view(webgpu: str) -> None:
    torch.webgpu.synchronize()
    before = torch.webgpu.memory_allocated()
    x = torch.ones(1024, device=webgpu)
    view = x[::2]
    torch.webgpu.synchronize()
    assert torch.webgpu.memory_allocated() - before >= 4096
    assert torch.webgpu.max_memory_allocated() >= torch.webgpu.memory_allocated()
    del x
    assert view.sum().item() == 512
    del view
    torch.webgpu.synchronize()
    torch.webgpu.empty_cache()
    assert torch.webgpu.memory_allocated() <= before


def test_work_is_lazy_until_a_value_is_read(webgpu: str) -> None:
    torch.webgpu.synchronize()
    counters = bridge.runtime().counters
    before = counters.realized
    x = torch.ones(8, device=webgpu)
    for _ in range(10):
        x = (x * 1.01).sin()
    assert counters.realized == before
    x.sum().item()
    assert counters.realized == before + 1


def test_random_numbers_follow_the_seed(webgpu: str) -> None:
    torch.manual_seed(3)
    a = torch.rand(1000, device=webgpu)
    b = torch.randn(1000, device=webgpu)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1000, device=webgpu), a)
    assert torch.equal(torch.randn(1000, device=webgpu), b)
    assert abs(a.mean().item() - 0.5) < 0.05
    assert abs(b.std().item() - 1) < 0.1
    with torch.random.fork_rng(device_type="webgpu"):
        c = torch.rand(4, device=webgpu)
    assert torch.equal(torch.rand(4, device=webgpu), c)
    g = torch.Generator().manual_seed(5)
    d = torch.empty(4, device=webgpu).uniform_(2, 3, generator=g)
    g.manual_seed(5)
    assert torch.equal(torch.empty(4, device=webgpu).uniform_(2, 3, generator=g), d)
    assert ((d >= 2) & (d < 3)).all()
    assert sorted(torch.randperm(20, device=webgpu).tolist()) == list(range(20))
    assert set(torch.randint(3, 6, (200,), device=webgpu).tolist()) == {3, 4, 5}
    kept = torch.nn.functional.dropout(torch.ones(2000, device=webgpu), 0.25).cpu()
    assert sorted(set(kept.tolist())) == pytest.approx([0.0, 4 / 3])
    assert abs((kept == 0).float().mean().item() - 0.25) < 0.05


def test_lazy_modules_are_moved_before_their_shapes_are_known(webgpu: str) -> None:
    x = torch.randn(2, 3, 6, 6)
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    out = lazy.to(webgpu)(x.to(webgpu))
    assert out.is_webgpu and lazy[1].running_mean.is_webgpu
    torch.testing.assert_close(out.cpu(), lazy.cpu()(x), rtol=1e-4, atol=1e-4)
    rows = torch.ones(1, 3)
    assert nn.LazyLinear(2).webgpu()(rows.to(webgpu)).is_webgpu
    assert nn.LazyLinear(2).to(webgpu).half()(rows.to(webgpu).half()).dtype is torch.float16
    assert nn.LazyLinear(2, device=webgpu).cpu()(rows).shape == (1, 2)
    unknown = nn.LazyLinear(2, device=webgpu)
    unknown.load_state_dict(nn.LazyLinear(2, device=webgpu).state_dict())
    assert unknown.has_uninitialized_params()
    whole = nn.Linear(3, 4).to(webgpu)
    loaded = nn.LazyLinear(4).to(webgpu)
    loaded.load_state_dict(whole.state_dict())
    assert torch.equal(loaded(rows.to(webgpu)).cpu(), whole(rows.to(webgpu)).cpu())


class TestErrors:
    """Mistakes raise errors that say what to do; nothing crashes, and the device stays usable."""

    @pytest.fixture(autouse=True)
    def _usable_after(self, webgpu: str) -> object:
        yield
        assert (torch.ones(3, device=webgpu) * 2).sum().item() == 6

    def test_types_that_the_device_lacks(
        self, webgpu: str, float64_is: Callable[[str], None]
    ) -> None:
        with pytest.raises(NotImplementedError, match="float8_e5m2 is not available"):
            torch.ones(2, dtype=torch.float8_e5m2, device=webgpu)
        float64_is("error")
        with pytest.raises(
            NotImplementedError, match=r"torch.float64 is not available.*torch.float32"
        ):
            torch.ones(2, dtype=torch.float64).to(webgpu)
        with pytest.raises(NotImplementedError, match=r"complex128.*torch.complex64"):
            torch.ones(2, dtype=torch.complex128, device=webgpu)

    def test_float64_may_be_float32_where_the_user_says_so(
        self, webgpu: str, monkeypatch: pytest.MonkeyPatch, float64_is: Callable[[str], None]
    ) -> None:
        x = torch.arange(3, dtype=torch.float64)
        float64_is("error")
        with pytest.raises(NotImplementedError, match="WEBTORCH_FLOAT64=float32"):
            x.to(webgpu)
        float64_is("float32")
        monkeypatch.setattr(bridge, "_warned_of_narrowing", [])
        with pytest.warns(UserWarning, match="float64 was asked for and is float32") as warned:
            y = x.to(webgpu)
        assert len(warned) == 1 and warned[0].filename == __file__
        wide = {"device": webgpu, "dtype": torch.float64}
        one = torch.ones(2, device=webgpu)
        made = [
            torch.zeros(2, 3, **wide), torch.tensor([1.5], **wide), torch.arange(0, 1, 0.25, **wide),
            torch.eye(2, **wide), torch.randn(3, **wide), torch.linspace(0, 1, 3, **wide),
            torch.scalar_tensor(2, **wide), y.double(), y.new_full((2,), 2, dtype=torch.float64),
            torch.empty_like(y, dtype=torch.float64).fill_(1), one.sum(dtype=torch.float64),
            one.cumsum(0, dtype=torch.float64),
        ]  # fmt: skip
        assert {m.dtype for m in made} == {torch.float32}
        assert y.tolist() == [0, 1, 2] and made[2].tolist() == [0, 0.25, 0.5, 0.75]
        assert (y * torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float32
        assert torch.zeros(1, dtype=torch.complex128, device=webgpu).dtype is torch.complex64
        assert y.to("cpu", torch.float64).dtype is torch.float64
        # Where a library goes by way of it and back, gradients included, eagerly and compiled.
        w = torch.tensor([0.5, 2.0], device=webgpu, requires_grad=True)
        for run in (None, "webgpu"):

            def f(w: torch.Tensor) -> torch.Tensor:
                return (w.double().log() * torch.ones(2, dtype=torch.float64, device=w.device)).to(
                    w.dtype
                )

            out = (torch.compile(f, backend=run) if run else f)(w)
            (slope,) = torch.autograd.grad(out.sum(), w)
            assert out.dtype is torch.float32 and slope.tolist() == [2.0, 0.5]
        module = nn.Linear(3, 2).double().to(webgpu)
        assert module.weight.dtype is torch.float32 and module(y).shape == (2,)
        float64_is("yes")
        with pytest.raises(ValueError, match="'error' and 'float32'"):
            x.to(webgpu)

    def test_integers_beyond_32_bits(self, webgpu: str) -> None:
        x = torch.tensor([2**40, -3], device=webgpu)
        assert x.cpu().tolist() == [2**40, -3] and x.sum().item() == 2**40 - 3
        assert (x * 5 % 7).cpu().tolist() == [2**40 * 5 % 7, 6]

    def test_other_device_numbers(self, webgpu: str) -> None:
        with pytest.raises(RuntimeError, match="webgpu:1"):
            torch.ones(2, device="webgpu:1")

    def test_mixed_devices(self, webgpu: str) -> None:
        with pytest.raises(RuntimeError, match="at least two devices"):
            torch.ones(2, device=webgpu) + torch.ones(2)
        with pytest.raises(RuntimeError, match="device"):
            nn.Linear(2, 2).to(webgpu)(torch.ones(1, 2))

    def test_shapes(self, webgpu: str) -> None:
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(2, device=webgpu) + torch.ones(3, device=webgpu)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            torch.ones(2, 3, device=webgpu) @ torch.ones(2, 3, device=webgpu)

    def test_index_out_of_range_is_raised_at_the_next_read(self, webgpu: str) -> None:
        with pytest.raises(
            IndexError, match="index 9 is out of bounds for dimension 0 with size 4"
        ):
            torch.nn.functional.embedding(
                torch.tensor([9], device=webgpu), torch.ones(4, 2, device=webgpu)
            ).cpu()

    def test_operators_without_a_kernel(self, webgpu: str) -> None:
        x = torch.ones(1, 1, device=webgpu)
        with pytest.raises(
            NotImplementedError, match=r"aten\._scaled_mm.*\.cpu\(\).*WEBTORCH_FALLBACK"
        ):
            torch._scaled_mm(x, x, x, x)

    def test_addresses_are_not_handed_out(self, webgpu: str) -> None:
        x = torch.ones(2, device=webgpu)
        for export in (
            x.__dlpack__,
            x.__dlpack_device__,
            lambda: torch.to_dlpack(x),
            lambda: torch.utils.dlpack.to_dlpack(x),
        ):
            with pytest.raises(BufferError, match=r"\.cpu\(\)"):
                export()
        with pytest.raises(RuntimeError, match=r"\.cpu\(\)"):
            x.share_memory_()
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()

    def test_tensors_of_two_devices_in_operators_that_only_one_has(self, webgpu: str) -> None:
        with pytest.raises(RuntimeError, match="at least two devices"):
            torch.nn.functional.conv2d(
                torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2, device=webgpu)
            )
