"""PyTorch's switches of a whole process, its layouts, and rooms of other devices: asked for, they answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import webtorch
from webtorch import nn


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    for t in (torch, webtorch):
        t.use_deterministic_algorithms(False)
        t.set_default_dtype(t.float32)


@pytest.mark.parametrize("mode", [0, 1, 2, "default", "warn", "error"])
def test_deterministic_algorithms_are_a_switch_with_three_positions(mode: int | str) -> None:
    for t in (torch, webtorch):
        t.set_deterministic_debug_mode(mode)
    assert webtorch.get_deterministic_debug_mode() == torch.get_deterministic_debug_mode()
    assert (
        webtorch.are_deterministic_algorithms_enabled()
        == torch.are_deterministic_algorithms_enabled()
    )
    assert (
        webtorch.is_deterministic_algorithms_warn_only_enabled()
        == torch.is_deterministic_algorithms_warn_only_enabled()
    )


def test_positions_that_do_not_exist_are_refused() -> None:
    for t in (torch, webtorch):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            t.set_deterministic_debug_mode("quiet")
        with pytest.raises(TypeError, match="must be str or int"):
            t.set_deterministic_debug_mode(1.5)
    with (
        pytest.warns(UserWarning, match="is deprecated"),
        pytest.raises(TypeError, match="invalid type"),
    ):
        webtorch.set_default_tensor_type("torch.WordTensor")


def test_the_default_type_is_set_by_an_old_name() -> None:
    with pytest.warns(UserWarning, match="is deprecated"):
        webtorch.set_default_tensor_type("torch.DoubleTensor")
    assert webtorch.ones(1).dtype is webtorch.float64
    with pytest.warns(UserWarning, match="is deprecated"):
        webtorch.set_default_tensor_type(webtorch.FloatTensor)
    assert webtorch.ones(1).dtype is webtorch.float32


def test_layouts_and_formats_are_of_their_classes() -> None:
    x = webtorch.ones(1, 2, 3, 4)
    assert x.layout is webtorch.strided and isinstance(x.layout, webtorch.layout)
    assert isinstance(webtorch.channels_last, webtorch.memory_format)
    for name in (
        "strided",
        "channels_last",
        "channels_last_3d",
        "contiguous_format",
        "preserve_format",
    ):
        assert repr(getattr(webtorch, name)) == repr(getattr(torch, name))


def test_rooms_of_other_devices_say_that_there_is_none() -> None:
    assert webtorch.distributed.is_available() and not webtorch.distributed.is_initialized()
    assert not webtorch.distributed.is_nccl_available()
    assert not webtorch.xpu.is_available() and webtorch.xpu.device_count() == 0
    assert not webtorch.mps.is_available()
    assert webtorch.get_num_interop_threads() == 1 and not webtorch.is_storage(webtorch.ones(1))


def test_training_twice_gives_the_same_bits() -> None:
    """While the switch is on nothing is computed by NumPy at first, in another order than machine code's."""

    def losses() -> list[float]:
        webtorch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)).to(
            "cpu"
        )
        optimizer = webtorch.optim.Adam(model.parameters(), 1e-2)
        found = []
        for i in range(16):
            size = 4 + i * 7 % 5
            x = webtorch.randn(size, 8, device="cpu")
            y = webtorch.randint(0, 2, (size,), device="cpu")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    webtorch.use_deterministic_algorithms(True)
    assert losses() == losses()
