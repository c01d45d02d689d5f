"""Memory that tensors on the CPU and NumPy arrays share: each scene runs with PyTorch and here."""

import gc
import warnings

import numpy as np
import pytest
import torch

import webtorch
from tests.scripts.following import scripts
from webtorch.ops.purity import Said


@pytest.fixture(autouse=True)
def _cpu():
    before = webtorch.get_default_device()
    webtorch.set_default_device("cpu")
    yield
    webtorch.set_default_device(before)


def writes_through_a_tensor_reach_the_array(t):
    a = np.arange(6.0, dtype=np.float32)
    x = t.from_numpy(a)
    x.add_(1)
    yield a
    x.view(2, 3)[1] = 7
    yield a
    x[::2] *= x[1::2]
    yield a
    x.copy_(t.arange(6.0))
    x += x.flip(0)
    yield a


def reads_of_a_tensor_see_the_array(t):
    a = np.zeros((2, 3))
    x = t.from_numpy(a)
    before = x + 1
    a[:] = 5
    yield before
    yield x + 1
    a[0, 1] = 9
    yield x[0]
    yield x.sum(), x.tolist()


def what_was_computed_stays(t):
    a = np.ones(4, np.float32)
    x = t.from_numpy(a)
    parts = [
        x.clone(),
        x * 2,
        x.view(2, 2) @ x.view(2, 2),
        x.to(t.float64),
        t.cat([x, x]),
        x[[0, 1]],
    ]
    parts += [
        t.stack([x[1:], x[:-1]]),
        t.where(x > 0, x, -x),
        x.cumsum(0),
        x.max(),
        t.zeros(4).copy_(x),
    ]
    a[:] = -3
    yield from parts
    yield x


def strides_and_gaps(t):
    a = np.zeros((3, 4))
    x = t.from_numpy(a.T[1:, ::2])
    yield x.stride(), x.storage_offset(), x.shape
    x += t.arange(6.0, dtype=t.float64).reshape(3, 2)
    yield a
    x.t()[0] = 1
    yield a
    a += 1
    yield x


def numpy_shares(t):
    x = t.arange(6.0)
    a = x.numpy()
    x.mul_(2)
    yield a
    a[1] = 50
    yield x
    b = x.view(2, 3).t().numpy()
    b[2, 0] = -1
    yield a, b.strides, x
    x[4:].zero_()
    yield a, b
    y = x + 0
    a[:] = 8
    yield y, np.asarray(x), np.array(x)
    yield x.expand(2, 6).numpy().strides


def clones_part(t):
    x = t.ones(3)
    y = x.clone()
    a = x.numpy()
    a[0] = 5
    yield x, y
    z = t.zeros(3)
    z.copy_(x)
    b = z.numpy()
    x.add_(1)
    b[2] = 9
    yield x, y, z, a, b


def copying_arrays(t):
    a = np.ones(3)
    made = [
        t.tensor(a),
        t.asarray(a, copy=True),
        t.as_tensor(a, dtype=t.float32),
        np.array(t.as_tensor(a)),
    ]
    shared = [t.as_tensor(a), t.asarray(a), t.as_tensor(a, dtype=t.float64), t.as_tensor(a[1:])]
    a[:] = 4
    yield from made
    yield from shared


def buffers(t):
    raw = bytearray(16)
    x = t.frombuffer(raw, dtype=t.int32)
    x[1] = 7
    raw[0] = 3
    yield x, list(raw)
    y = t.frombuffer(raw, dtype=t.bfloat16, offset=4, count=2)
    y.fill_(1.5)
    yield y.float(), list(raw)


def two_tensors_on_one_array(t):
    a = np.zeros(4)
    x, y = t.from_numpy(a), t.from_numpy(a[1:])
    x.add_(1)
    yield y
    y.mul_(3)
    yield x, a


def an_optimizer_step_is_seen(t):
    w = t.zeros(3, requires_grad=True)
    seen = w.detach().numpy()
    optimizer = t.optim.SGD([w], lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        ((w - t.tensor([1.0, 2.0, 3.0])) ** 2).sum().backward()
        optimizer.step()
    yield seen, w.detach()
    seen[:] = 0
    yield w.detach() + 1


def gradients_read_the_memory_when_they_run(t):
    a = np.array([1.0, 2.0])
    x = t.from_numpy(a)
    w = t.ones(2, dtype=t.float64, requires_grad=True)
    y = (w * x).sum()
    a[:] = 10
    y.backward()
    yield w.grad, y.detach()


def zero_d_and_empty(t):
    a = np.array(3.0)
    x = t.from_numpy(a)
    x += 1
    yield a, x.shape
    yield t.from_numpy(np.zeros((0, 3))).shape, t.zeros(0, 2).numpy().shape
    y = t.tensor(2.0)
    y.numpy()[...] = 6
    yield y


SCENES = [
    writes_through_a_tensor_reach_the_array, reads_of_a_tensor_see_the_array, what_was_computed_stays,
    strides_and_gaps, numpy_shares, clones_part, copying_arrays, buffers, two_tensors_on_one_array,
    an_optimizer_step_is_seen, gradients_read_the_memory_when_they_run, zero_d_and_empty,
]  # fmt: skip


def _plain(x):
    if isinstance(x, tuple):
        return [_plain(v) for v in x]
    if isinstance(x, np.ndarray):
        return x.astype(np.float64).round(5).tolist()
    if hasattr(x, "tolist"):
        return np.asarray(x.tolist(), np.float64).round(5).tolist()
    return x


# NumPy misses an argument in PyTorch's __array__.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.covers("A18")
@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.__name__)
def test_scene_as_in_pytorch(scene):
    # Each part is read before the next one runs.
    expected = [_plain(part) for part in scene(torch)]
    assert [_plain(part) for part in scene(webtorch)] == expected


def test_a_compiled_step_writes_into_the_array():
    @webtorch.compile
    def step(x):
        x.add_(1)
        return x * 2

    x = webtorch.zeros(3)
    seen = x.numpy()
    for i in range(1, 5):
        assert step(x).tolist() == [2.0 * i] * 3
        assert seen.tolist() == [float(i)] * 3


def test_sharing_ends_with_the_last_array():
    # A script is given copies, and computes nothing here.
    with scripts(False):
        check_that_sharing_ends()


def check_that_sharing_ends():
    x = webtorch.ones(4)
    part = x.numpy()[1:]
    y = x * 2
    assert y._storage.node.kind == "buffer"
    del part
    gc.collect()
    y = x * 2
    assert y._storage.node.kind != "buffer"
    x.add_(1)
    assert x.tolist() == [2.0] * 4 and y.tolist() == [2.0] * 4

    a = np.random.rand(2, 5)
    x = webtorch.from_numpy(a)
    assert (x + 1)._storage.node.kind == "buffer"
    del a
    assert (x + 1)._storage.node.kind != "buffer"


def test_memory_outlives_its_tensor():
    a = webtorch.arange(100_000.0).numpy()
    webtorch.zeros(100_000).add_(5).tolist()
    assert a[99_999] == 99_999.0


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: np.arange(3.0)[::-1], ValueError),
        (lambda: np.arange(3).astype(">i4"), ValueError),
        (lambda: [1, 2], TypeError),
        (lambda: np.float64(3), TypeError),
        (lambda: np.array(["a"]), TypeError),
        (lambda: np.zeros(3, object), TypeError),
        (lambda: np.zeros(3, [("a", "f4"), ("b", "i1")])["a"], ValueError),
    ],
)
def test_what_cannot_be_shared_is_refused(make, error):
    with pytest.raises(error) as theirs:
        torch.from_numpy(make())
    with pytest.raises(error) as ours:
        webtorch.from_numpy(make())
    assert str(ours.value).split()[:4] == str(theirs.value).split()[:4]


def test_a_read_only_array_is_read_and_never_written(monkeypatch):
    monkeypatch.setattr(Said, "always", False)
    Said.texts.clear()
    a = np.arange(3.0)
    view = a[:]
    view.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        x = webtorch.from_numpy(view)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        webtorch.as_tensor(view)
    a[0] = 5
    assert x.tolist() == [5.0, 1.0, 2.0]
    x.add_(1)
    assert x.tolist() == [6.0, 2.0, 3.0] and a.tolist() == [5.0, 1.0, 2.0]


def test_shared_memory_keeps_its_size():
    x = webtorch.from_numpy(np.zeros(3))
    keep = x.numpy()
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(10)
    assert keep.shape == (3,)


def test_a_failed_write_leaves_the_array_alone():
    a = np.zeros(3)
    x = webtorch.from_numpy(a)
    one = webtorch.ones(1, dtype=webtorch.float64)
    with pytest.raises(IndexError):
        x.index_add_(0, webtorch.tensor([7]), one).tolist()
    assert a.tolist() == [0.0, 0.0, 0.0]
    x.add_(2)
    assert a.tolist() == [2.0, 2.0, 2.0]


def test_an_array_sees_writes_where_an_earlier_one_is_gone():
    x = webtorch.arange(6.0) / 7
    for _ in range(3):
        x.numpy()
    a = x.numpy()
    kept = x.clone()
    x.mul_(2)
    assert a.tolist() == x.tolist() != kept.tolist()
    for _ in range(100):
        x.numpy()
    assert len(x._storage.runtime.lent) < 50
