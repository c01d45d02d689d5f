"""int64 with all its 64 bits, where 32 are too few: against PyTorch, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch

# Numbers around every limit; divisors; counts and places below 12.
_VALUES = [2**40, -(2**40), 5, -7, 2**31, -(2**31), 2**63 - 1, -(2**63), 123456789012345, 0, -1, 1]
_OTHERS = [3, 7, -2, 2**33, 11, -1, 10, 3, 1000, 5, -6, 2**50]
_COUNTS = [1, 5, 31, 40, 63, 2, 0, 3, 20, 7, 9, 33]
_PLACES = [3, 0, 11, 5, 5, 2, 1, 4, 10, 9, 0, 7]
_SMALL = [100_000, -70_000, 65_536, 3]

Calls = Callable[[Any, Any, Any, Any, Any], list[Any]]

_CALLS: dict[str, Calls] = {
    "sums and products": lambda t, a, b, n, s: [a + b, a - b, a * b, -a, a.abs(), a.sign(), s + 2**40],
    "quotients": lambda t, a, b, n, s: [
        a // b, a % b, t.fmod(a, b), t.div(a, b, rounding_mode="trunc"), t.gcd(b, n), t.lcm(s, s + 1)
    ],
    "comparisons": lambda t, a, b, n, s: [a < b, a <= b, a == b, a != b, a > 2**33, t.isin(a, b)],
    "choices": lambda t, a, b, n, s: [
        t.where(a > b, a, b), t.minimum(a, b), t.maximum(a, b), a.clamp(-(2**35), 2**35),
        n.masked_fill(n > 9, 2**40),
    ],
    "bits": lambda t, a, b, n, s: [
        a & b, a | b, a ^ b, ~a, n << n, a << 3, a >> n, a >> 40, s << 40, t.logical_and(a, b)
    ],
    "powers": lambda t, a, b, n, s: [s**3, s.square(), 2**n, s.prod(), s.cumprod(0)],
    "casts to": lambda t, a, b, n, s: [
        a.float(), a.double(), a.bool(), a.int(), a.short(), a.to(t.int8), a.to(t.uint8), (a // 2**50).half(),
        a / b,
    ],
    "casts from": lambda t, a, b, n, s: [
        (a.float() * 3).long()[:5], a.double().long()[:6], (n.int() + 1).long() * 2**31, (a > 0).long() << 40
    ],
    "reductions": lambda t, a, b, n, s: [
        b.sum(), (s * 20_000).sum(), a.amax(), a.amin(), a.argmax(), a.argmin(), *a.reshape(3, 4).max(1), a.any(),
        a.count_nonzero(), a.reshape(3, 4).sum(0), t.dot(s, s), s.reshape(2, 2) @ (s.reshape(2, 2) * 100),
    ],
    "scans": lambda t, a, b, n, s: [b.cumsum(0), (s * 20_000).cumsum(0), *a.cummax(0), b.diff()],
    "order": lambda t, a, b, n, s: [
        *a.sort(), *a.sort(descending=True), a.reshape(3, 4).argsort(1), *a.topk(3), a.median(), *a.kthvalue(3),
        t.searchsorted(a.sort()[0], b),
    ],
    "unique": lambda t, a, b, n, s: [*t.cat([a, b]).unique(return_inverse=True, return_counts=True)],
    "places": lambda t, a, b, n, s: [
        a.gather(0, _places(t, a)), a.index_select(0, _places(t, a)), a[_places(t, a)], n[(a // 2**61)],
        n[a * 0 + 3], a[a > 0],
    ],
    "shapes": lambda t, a, b, n, s: [
        t.cat([a, s]), t.stack([a, n]), a.reshape(3, 4).t().contiguous(), a[2:7], a.flip(0), a.roll(2),
        t.nn.functional.pad(a, (1, 2), value=2**35),
    ],
    "new": lambda t, a, b, n, s: [
        t.arange(2**40, 2**40 + 5, device=a.device), t.full((3,), 2**50, device=a.device),
        t.tensor(-(2**40), device=a.device), t.full_like(n, 2**33),
    ],
    "adding at places": lambda t, a, b, n, s: [
        t.zeros_like(s).scatter_add(0, _places(t, a) % 4, b), s.index_add(0, _places(t, a) % 4, b),
        s.clone().index_put_((_places(t, a) % 4,), b, accumulate=True), n.scatter(0, _places(t, a)[:3], a[:3]),
        s.scatter_reduce(0, _places(t, a) % 4, b, "amax"),
    ],
    "hashes": lambda t, a, b, n, s: [_mixed(n), s * 6364136223846793005 + 1442695040888963407, _drawn(s)],
    "in place": lambda t, a, b, n, s: _written(t, a, n, s),
}  # fmt: skip


def _places(t: Any, a: Any) -> Any:
    return t.tensor(_PLACES, device=a.device)


def _mixed(x: Any) -> Any:
    for _ in range(3):
        x = x ^ (x << 13)
        x = x ^ (x >> 7)
        x = x ^ (x << 17)
    return x


def _drawn(x: Any) -> Any:
    for _ in range(3):
        x = (x * 1103515245 + 12345) % 2**31
    return x


def _written(t: Any, a: Any, n: Any, s: Any) -> list[Any]:
    x, y, z = n.clone(), s.clone(), t.zeros_like(a)
    x += a
    y *= 1_000_000
    y[0] = 2**45
    view = y[1:3]
    view -= 2**44
    z[3:] = a[3:]
    return [x, y, view, z, t.zeros_like(a).copy_(a)]


@pytest.mark.parametrize("name", _CALLS)
def test_as_pytorch(name: str, device: str) -> None:
    call, given = _CALLS[name], (_VALUES, _OTHERS, _COUNTS, _SMALL)
    want = call(torch, *map(torch.tensor, given))
    got = call(webtorch, *[webtorch.tensor(x, device=device) for x in given])
    assert [str(x.dtype) for x in got] == [str(x.dtype) for x in want]
    assert [x.tolist() for x in got] == [x.tolist() for x in want]


def test_what_fits_in_32_bits_stays_there() -> None:
    if not webtorch.webgpu.is_available():
        pytest.skip("no WebGPU")
    x = webtorch.tensor(_PLACES, device="webgpu")
    large = x * 2**33
    small = large // 2**33 + 1
    for tensor, size in ((x + 1, 4), (x.cumsum(0), 4), (x[x % 4], 4), (large, 8), (small, 4)):
        assert tensor._storage.realize().buffer.nbytes == size * tensor.numel()
    assert small.tolist() == [p + 1 for p in _PLACES]
