"""Uploads and downloads: every type, odd sizes, 64-bit integers, and what is refused."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from webtorch.errors import DeviceError, DTypeError
from webtorch.ir import dtype as dt
from webtorch.runtime.backends.webgpu.transfer import argument_value

_NUMPY = {"bfloat16": "u2", "bool": "?"}
_TYPES = [d for d in dt.ALL if d.webgpu]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7, 255, 4097])
@pytest.mark.parametrize("dtype", _TYPES, ids=lambda d: d.name)
def test_what_is_uploaded_comes_back(device, dtype, n):
    bits = np.random.default_rng(n).integers(0, 256, n * dtype.itemsize, dtype="u1")
    data = np.frombuffer(bits.tobytes(), _NUMPY.get(dtype.name, dtype.name))
    if dtype is dt.int64:
        data = data % (1 << 32) - (1 << 31)
    if dtype is dt.bool_:
        data = bits % 2 == 1
    buffer = device.upload(data.tobytes(), dtype, n)
    assert (buffer.dtype, buffer.elements) == (dtype, n)
    assert bytes(device.download(buffer)) == data.tobytes()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda d: array("f", d)])
def test_any_contiguous_buffer_can_be_uploaded(device, kind):
    data = np.arange(33, dtype="<f4").tobytes()
    buffer = device.upload(kind(data), dt.float32, 33)
    assert bytes(device.download(buffer)) == data


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 62, -(1 << 63)])
def test_int64_beyond_32_bits_lies_in_two_words(device, value):
    data = np.array([0, value, 5], dtype="<i8").tobytes()
    buffer = device.upload(data, dt.int64, 3)
    assert bytes(device.download(buffer)) == data
    assert (buffer.dtype, buffer.nbytes) == (dt.int64, 24)
    assert buffer.held == (min(0, value), max(5, value))


def test_the_limits_of_32_bits_lie_in_one_word(device):
    data = np.array([-(1 << 31), (1 << 31) - 1], dtype="<i8").tobytes()
    buffer = device.upload(data, dt.int64, 2)
    assert bytes(device.download(buffer)) == data
    assert buffer.nbytes == 8


def test_types_that_webgpu_lacks_are_refused(device):
    with pytest.raises(DTypeError, match=r"uint64 does not exist on WebGPU.*'cpu'"):
        device.upload(bytes(16), dt.uint64, 2)
    with pytest.raises(DTypeError, match="uint64"):
        device.allocate(dt.uint64, 2)


def test_a_wrong_size_is_refused(device):
    with pytest.raises(
        ValueError, match=r"2 elements of torch.float32 are 8 bytes, the data has 7"
    ):
        device.upload(bytes(7), dt.float32, 2)


def test_large_data_crosses_several_writes(device):
    # More than one write piece of 64 MiB, an odd number of bytes at the end.
    n = (65 << 20) + 3
    data = np.random.default_rng(0).integers(0, 256, n, dtype="u1")
    buffer = device.upload(data.data, dt.uint8, n)
    assert np.array_equal(np.frombuffer(device.download(buffer), "u1"), data)
    del buffer
    device.empty_cache()


def test_a_foreign_buffer_is_refused(device):
    class Foreign:
        dtype, elements, nbytes = dt.float32, 1, 4

    with pytest.raises(DeviceError, match="not a buffer of"):
        device.download(Foreign())


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1e300, dt.float32, float("inf")),
        (-1e300, dt.float32, float("-inf")),
        (3, dt.float32, 3.0),
        (True, dt.int32, 1),
        (-1, dt.int64, -1),
        ((1 << 32) - 1, dt.uint32, (1 << 32) - 1),
    ],
)
def test_arguments_are_converted_as_float32_and_32_bit_integers(value, dtype, expected):
    assert argument_value(value, dtype, 0) == expected


@pytest.mark.parametrize(
    ("value", "dtype"), [(1 << 31, dt.int64), (-1, dt.uint32), (300, dt.uint8)]
)
def test_an_argument_that_does_not_fit_is_refused(value, dtype):
    with pytest.raises(OverflowError, match=rf"argument 2: {value} does not fit {dtype}"):
        argument_value(value, dtype, 2)


def test_a_float_where_an_integer_belongs_is_refused():
    with pytest.raises(TypeError, match=r"argument 0: 0\.5 is a float"):
        argument_value(0.5, dt.int32, 0)
