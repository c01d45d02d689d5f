"""Views of one memory as another element type, `Tensor.view(dtype)`: each scene runs with PyTorch and here."""

import io

import numpy as np
import pytest
import torch

import webtorch

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(2, device="webgpu")

NAMES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


def patterns(name, count, seed=0):
    """Random bytes as PyTorch's tensor of a type; none is a NaN, whose bits float units may change."""
    bits = np.random.default_rng(seed).integers(0, 256, count * 8, dtype=np.uint8)
    if name == "bool":
        bits &= 1
    x = torch.from_numpy(bits).view(getattr(torch, name))[:count].clone()
    return torch.where(x.isnan(), torch.ones_like(x), x) if x.is_floating_point() else x


def given(x, device):
    """The same values here."""
    if x.dtype is torch.bfloat16:
        return webtorch.tensor(x.float().tolist(), dtype=webtorch.bfloat16, device=device)
    return webtorch.tensor(x.numpy(), device=device)


def bits_of(x):
    """The bytes of a tensor of either library."""
    if isinstance(x, torch.Tensor):
        return x.contiguous().reshape(-1).view(torch.uint8).tolist()
    return list(bytes(x.detach().cpu().contiguous()._contents()))


def same(here, there):
    assert (tuple(here.shape), here.stride(), here.storage_offset()) == (
        tuple(there.shape), there.stride(), there.storage_offset(),
    )  # fmt: skip
    assert here.dtype.name == str(there.dtype).removeprefix("torch.")
    if there.is_floating_point():
        # Which NaN it is may differ.
        there = torch.where(there.isnan(), 123.0, there)
        here = webtorch.where(here.isnan(), 123.0, here)
    if there.dtype is torch.bool:
        # PyTorch's bools keep whatever byte is there.
        there = there.view(torch.uint8) != 0
    assert bits_of(here) == bits_of(there)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_every_type_is_seen_as_every_other(source, target, device):
    there = patterns(source, 48).reshape(6, 8)
    here = given(there, device)
    same(here.view(getattr(webtorch, target)), there.view(getattr(torch, target)))
    # A part, and what is computed from it.
    part, seen = there[1:4], here[1:4].view(getattr(webtorch, target))
    same(seen, part.view(getattr(torch, target)))
    if target != "bool":
        expected = part.view(getattr(torch, target))[:, 1:]
        same((seen[:, 1:] * 1).contiguous(), (expected * 1).contiguous())


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_a_write_to_a_view_reaches_the_memory(source, target, device):
    if source == "bool" and target != "bool":
        pytest.skip("a bool holds two patterns of bits")
    there = patterns(source, 33, seed=1)[1:].clone() if source != "bool" else patterns(source, 32)
    here = given(there, device)
    values = patterns(target, 2, seed=2)
    there.view(getattr(torch, target))[1:3] = values
    here.view(getattr(webtorch, target))[1:3] = given(values, device)
    same(here, there)
    # And a write to the memory reaches the view.
    seen, expected = here.view(getattr(webtorch, target)), there.view(getattr(torch, target))
    here[3:7] = 1
    there[3:7] = 1
    same(seen, expected)


def test_a_write_leaves_what_it_does_not_cover(device):
    here = webtorch.arange(7, dtype=webtorch.int32, device=device)
    there = torch.arange(7, dtype=torch.int32)
    for x in (here, there):
        library = webtorch if x is here else torch
        # Three elements of eight bytes in seven of four, as pairs of float32.
        x[:6].view(library.complex64)[1:] = 1 + 2j
        x.view(library.int16)[::3] += 1
        x.view(library.uint8)[4:8].zero_()
    assert here.tolist() == there.tolist()


def test_fast_inverse_square_root_and_other_tricks(device):
    def scene(t):
        x = t.tensor([0.15, 1.0, 2.0, 1e-3, 77.0], device=device if t is webtorch else "cpu")
        i = x.view(t.int32)
        y = (0x5F3759DF - (i >> 1)).view(t.float32)
        y = y * (1.5 - 0.5 * x * y * y)
        exponent = ((x.view(t.int32) >> 23) & 0xFF) - 127
        x.view(t.int32)[0] |= -(2**31)
        return y.tolist(), exponent.tolist(), x.tolist(), (y.sign() * x).tolist()

    here, there = scene(webtorch), scene(torch)
    np.testing.assert_allclose(here[0], there[0], rtol=1e-6)
    assert here[1:3] == there[1:3]
    np.testing.assert_allclose(here[3], there[3], rtol=1e-6)


def test_errors_are_pytorchs(device):
    def message(t, make):
        x = t.arange(24, dtype=t.float32, device=device if t is webtorch else "cpu").reshape(4, 6)
        with pytest.raises(RuntimeError) as error:
            make(t, x)
        return str(error.value)

    for make in (
        lambda t, x: x.t().view(t.uint8),
        lambda t, x: x.t().view(t.complex64),
        lambda t, x: x[:, 1:].view(t.complex64),
        lambda t, x: x[:, 1:3].view(t.complex64),
        lambda t, x: x.reshape(-1)[:20].reshape(4, 5)[:, :4].view(t.complex64),
        lambda t, x: x[0, 0].view(t.uint8),
        lambda t, x: x[0, 0].view(t.complex64),
        lambda t, x: x[:, :1].expand(4, 6).view(t.uint8),
        lambda t, x: x.view(t.uint8)[:, :3].view(t.float32),
    ):
        assert message(webtorch, make) == message(torch, make)
    x = webtorch.zeros(2, 3)
    with pytest.raises(TypeError):
        x.view(webtorch.int32, 3)


def test_a_device_that_cannot_share_says_so():
    from tests.conftest import need_device

    need_device("webgpu")
    x = webtorch.arange(6, device="webgpu")
    assert x.view(webtorch.int32).tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    pairs = x.float().view(webtorch.complex64).view(webtorch.int64)
    assert pairs.tolist() == [0x3F80000000000000, 0x4040000040000000, 0x40A0000040800000]
    with pytest.raises(webtorch.errors.DTypeError, match="uint64 is not available"):
        x.float().view(webtorch.uint64)


def test_no_gradient_goes_through():
    def scene(t):
        x = t.arange(1.0, 5.0, requires_grad=True)
        yield [x.view(d).requires_grad for d in (t.int32, t.float16, t.complex64, t.float32)]
        c = t.ones(2, dtype=t.complex64, requires_grad=True)
        yield [c.view(d).requires_grad for d in (t.float32, t.int32, t.complex64)]
        y = x * 2
        y.view(t.int32).zero_()
        y.sum().backward()
        yield x.grad.tolist(), y.tolist(), y._version, y.view(t.int32)._version
        x.view(t.int32)[0] = 0
        yield x.tolist(), x.view(t.int32)._base is None
        z = (x * x).sum()
        x.view(t.int32).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    for here, there in zip(scene(webtorch), scene(torch), strict=True):
        assert here == there


def test_views_in_compiled_functions(device):
    def f(t, x, y):
        exponent = (x.view(t.int32) >> 23) & 0xFF
        y.view(t.int32)[1:] += 1
        z = (x * 2).view(t.int32)
        return exponent, z, z.view(t.float32) + y, (x + 1).view(t.uint8)

    there = torch.arange(1.0, 7.0), torch.ones(6)
    here = [webtorch.tensor(x.numpy(), device=device) for x in there]
    compiled = webtorch.compile(lambda x, y: f(webtorch, x, y))
    for _ in range(3):
        expected, found = f(torch, *there), compiled(*here)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
        same(here[1], there[1])
    # A view that the caller made is an argument, too.
    bits = compiled(here[1].view(webtorch.int32).view(webtorch.float32), here[0].clone())[0]
    assert bits.tolist() == ((there[1].view(torch.int32) >> 23) & 0xFF).tolist()

    def write(x):
        x.view(webtorch.int32).zero_()
        return x.sum()

    seen = here[0].view(webtorch.int32)
    step = webtorch.compile(lambda bits: bits.mul_(2))
    step(seen)
    step(seen)
    there[0].view(torch.int32).mul_(4)
    same(here[0], there[0])
    assert webtorch.compile(write)(here[0]).item() == 0 == here[0].abs().sum().item()


def test_views_among_everything_else(device):
    def scene(t):
        where = device if t is webtorch else "cpu"
        x = (t.arange(12.0, device=where) / 4 - 1.5).reshape(3, 4)
        bits = x.view(t.int32)
        yield (bits & 0x7FFFFFFF).view(t.float32), x.abs()
        yield bits.t(), bits[:, ::2], bits.reshape(-1), bits.expand(2, 3, 4), bits.clone()
        yield (
            bits[bits > 0],
            bits.sum(0),
            bits.max(1).values,
            t.cat([bits, bits]),
            bits.to(t.float32),
        )
        yield t.where(bits < 0, bits, 0), bits.gather(1, t.zeros(3, 1, dtype=t.int64, device=where))
        yield t.stack([x.view(t.complex64).real, x.view(t.complex64).imag])
        floats = bits.view(t.float32)
        yield floats @ floats.t(), floats.softmax(1), floats.view(t.complex64).abs()
        floats.mul_(2)
        yield x, bits
        x.view(t.complex64).mul_(1j)
        yield x, bits[1]
        x.view(t.int16)[:, 1::2].zero_()
        yield x, t.func.vmap(lambda row: row.view(t.int32) >> 8)(x)
        yield t.func.vmap(lambda row: row.view(t.int16)[1::2] & 0xFF)(x), x.view(t.int32).cpu()

    for here, there in zip(scene(webtorch), scene(torch), strict=True):
        for a, b in zip(
            here if isinstance(here, tuple) else (here,),
            there if isinstance(there, tuple) else (there,),
            strict=True,
        ):
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(np.array(a.cpu().tolist()), b.numpy(), rtol=1e-5, atol=1e-6)


def test_numpy_sees_the_memory_through_a_view():
    x = webtorch.arange(1.0, 7.0)
    seen = x.view(webtorch.int32).numpy()
    assert seen.dtype == np.int32
    np.testing.assert_array_equal(seen, torch.arange(1.0, 7.0).view(torch.int32).numpy())
    seen[0] = 0
    x[1] = 0.0
    assert x[0].item() == 0
    assert seen[1] == 0
    x[:5].view(webtorch.uint8)[4:8] = 255
    assert seen[1] == -1
    assert x.view(webtorch.int16)[::2].numpy().shape == (6,)


def test_files_hold_a_view_as_its_memory():
    x = webtorch.arange(4.0)
    out = io.BytesIO()
    webtorch.save(x.view(webtorch.int32), out)
    expected = torch.load(io.BytesIO(out.getvalue()))
    assert expected.dtype is torch.int32
    assert expected.tolist() == torch.arange(4.0).view(torch.int32).tolist()
    assert webtorch.load(io.BytesIO(out.getvalue())).tolist() == expected.tolist()
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        webtorch.save([x, x.view(webtorch.int32)], io.BytesIO())
