"""Formats whose scales are searched: of several steps the one with the least error, as llama.cpp's reference does.

A block of 256 has parts of 16 or 32 elements with a scale each, which in turn are small numbers times one float16 of
the block (ggml-quants.c of https://github.com/ggml-org/ggml, without a matrix of importance). Sums add in another order
than there, which decides between scales that are as good. Floor 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import float16, float32, int32, uint8
from webtorch.ops.blocks import IQ4
from webtorch.quantization.packing import halves, largest, packs, together
from webtorch.tensors.tensor import Tensor

# Sizes below it count as zero.
_NOTHING = 1e-15


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _rounded(x: Tensor, least: int, most: int) -> Tensor:
    return webtorch.round(x).clamp(least, most)


# ---- scales with minima: Q2_K, Q4_K, Q5_K


def _with_minima(
    x: Tensor, weight: Tensor, most: int, begin: float, steps: int, squares: bool
) -> tuple[Tensor, Tensor]:
    """Return scales and minima (never above zero) of parts (n, elements): of the ranges that `begin`, in tenths of a
    step, and `steps` more say, each with the line of least squares, the best.
    """
    least, high = x.amin(-1, keepdim=True).clamp(max=0.0), x.amax(-1, keepdim=True)
    empty = high == least
    sum_w, sum_x = _sum(weight), _sum(weight * x)

    def error(scale: Tensor, q: Tensor, least: Tensor) -> Tensor:
        """Return what a line misses."""
        off = scale * q + least - x
        return _sum(weight * (off * off if squares else off.abs()))

    inverse_scale = most / (high - least)
    scale = 1.0 / inverse_scale
    best = error(scale, _rounded(inverse_scale * (x - least), 0, most), least)
    for i in range(steps + 1):
        # A range begins where the best one so far does.
        q = _rounded((begin + 0.1 * i + most) / (high - least) * (x - least), 0, most)
        wq = weight * q
        sum_q, sum_qq, sum_xq = _sum(wq), _sum(wq * q), _sum(wq * x)
        d = sum_w * sum_qq - sum_q * sum_q
        known = webtorch.where(d > 0, d, 1.0)
        slope = (sum_w * sum_xq - sum_x * sum_q) / known
        start = (sum_qq * sum_x - sum_q * sum_xq) / known
        slope = webtorch.where(start > 0, sum_xq / webtorch.where(d > 0, sum_qq, 1.0), slope)
        start = start.clamp(max=0.0)
        found = error(slope, q, start)
        better = (d > 0) & (found < best)
        best = webtorch.where(better, found, best)
        scale, least = webtorch.where(better, slope, scale), webtorch.where(better, start, least)
    return webtorch.where(empty, 0.0, scale), 0.0 - least


def _in_steps(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return numbers (n, parts) that are not below zero as whole ones up to `most`, and the float16 that is one of."""
    top = x.amax(-1, keepdim=True)
    q = _rounded(webtorch.where(top > 0, most / top, 0.0) * x, 0, most)
    return q, (top / most).to(float16)


def _spread(q: Tensor, one: Tensor) -> Tensor:
    """Return the numbers (n, parts, 1) that whole ones stand for."""
    return (one.to(float32) * q).unsqueeze(-1)


def _over(x: Tensor, scale: Tensor) -> Tensor:
    return webtorch.where(scale == 0, 0.0, x / scale)


def _on_lines(x: Tensor, scale: Tensor, least: Tensor, most: int) -> Tensor:
    """Return the whole numbers (n, elements) of parts (n, parts, elements) with scales and minima."""
    return _rounded(_over(x + least, scale), 0, most).to(int32).flatten(1)


@packs("Q2_K")
def _q2_k(x: Tensor) -> Tensor:
    parts = x.reshape(-1, 16)
    scale, least = _with_minima(parts, parts.abs(), 3, -0.5, 15, squares=False)
    scales, one = _in_steps(scale.reshape(-1, 16), 15)
    minima, unit = _in_steps(least.reshape(-1, 16), 15)
    q = _on_lines(x.reshape(-1, 16, 16), _spread(scales, one), _spread(minima, unit), 3)
    both = (scales.to(int32) | (minima.to(int32) << 4)).to(uint8)
    data = together(q, (2, 2, 2, 2, 16), (0, 4, 2, 0, 0))
    return webtorch.cat([both, data, halves(one), halves(unit)], -1)


def _six_bits(scales: Tensor, minima: Tensor) -> Tensor:
    """Return the 12 bytes of 8 scales and 8 minima below 64."""
    (first, then), (low, rest) = scales.to(int32).chunk(2, -1), minima.to(int32).chunk(2, -1)
    parts = (
        first | ((then >> 4) << 6), low | ((rest >> 4) << 6), (then & 15) | ((rest & 15) << 4),
    )  # fmt: skip
    return webtorch.cat(parts, -1).to(uint8)


def _of_32(x: Tensor, most: int, begin: float, steps: int) -> tuple[Tensor, Tensor]:
    """Return the first 16 bytes of blocks with parts of 32, and their whole numbers up to `most`."""
    parts = x.reshape(-1, 32)
    weight = (_sum(parts * parts) / 32.0).sqrt() + parts.abs()
    scale, least = _with_minima(parts, weight, most, begin, steps, squares=True)
    scales, one = _in_steps(scale.reshape(-1, 8), 63)
    minima, unit = _in_steps(least.reshape(-1, 8), 63)
    q = _on_lines(x.reshape(-1, 8, 32), _spread(scales, one), _spread(minima, unit), most)
    return webtorch.cat([halves(one), halves(unit), _six_bits(scales, minima)], -1), q


@packs("Q4_K")
def _q4_k(x: Tensor) -> Tensor:
    head, q = _of_32(x, 15, -1.0, 20)
    return webtorch.cat([head, together(q, (2, 2, 2, 32), (0, 0, 4, 0))], -1)


@packs("Q5_K")
def _q5_k(x: Tensor) -> Tensor:
    head, q = _of_32(x, 31, -0.5, 15)
    fifth = together(q >> 4, (2, 2, 2, 32), (4, 2, 1, 0))
    return webtorch.cat([head, fifth, together(q & 15, (2, 2, 2, 32), (0, 0, 4, 0))], -1)


# ---- scales alone: Q3_K, Q6_K, IQ4_NL, IQ4_XS


def _best(x: Tensor, inverses: Sequence[Tensor], nearest: Callable[[Tensor], Tensor]) -> Tensor:
    """Return scales (n, 1) of parts (n, elements): that of the inverses whose nearest numbers, by the scale of least
    squares, miss least; 0 for parts without anything. Elements count by their squares.
    """
    weight = x * x
    scale = best = webtorch.zeros_like(x[:, :1])
    for i, each in enumerate(inverses):
        q = nearest(each * x)
        wq = weight * q
        sum_qx, sum_qq = _sum(wq * x), _sum(wq * q)
        found = webtorch.where(sum_qq > 0, sum_qx / sum_qq, 0.0)
        better = (sum_qq > 0) & ((sum_qx * sum_qx > best * sum_qq) if i else True)
        best = webtorch.where(better, found * sum_qx, best)
        scale = webtorch.where(better, found, scale)
    return webtorch.where(x.abs().amax(-1, keepdim=True) < _NOTHING, 0.0, scale)


def _signed_steps(scale: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scales (n, parts) as whole numbers from -most up to most - 1, the largest as -most, and the float16 that
    is one of.
    """
    top = largest(scale)
    inverse_one = webtorch.where(top == 0, 0.0, -most / top)
    q = _rounded(inverse_one * scale, -most, most - 1)
    return q, _over(webtorch.ones_like(top), inverse_one).to(float16)


def _in_scales(x: Tensor, scale: Tensor, q: Tensor, one: Tensor, half: int) -> Tensor:
    """Return the whole numbers (n, elements), from 0 on, of blocks whose parts had scales."""
    parts = x.reshape(*q.shape, -1)
    found = _rounded(_over(parts, _spread(q, one)), -half, half - 1) + half
    return webtorch.where(scale.unsqueeze(-1) == 0, 0.0, found).to(int32).flatten(1)


@packs("Q6_K")
def _q6_k(x: Tensor) -> Tensor:
    parts = x.reshape(-1, 16)
    top = largest(parts)
    tenths = [0, *[i for i in range(-9, 10) if i]]
    inverses = [-(32 + 0.1 * i) / top for i in tenths]
    scale = _best(parts, inverses, lambda y: _rounded(y, -32, 31)).reshape(-1, 16)
    scales, one = _signed_steps(scale, 128)
    q = _in_scales(x, scale, scales, one, 32)
    low = together(q & 15, (2, 2, 2, 2, 16), (0, 4, 0, 0, 0))
    high = together(q >> 4, (2, 2, 2, 2, 16), (0, 4, 2, 0, 0))
    return webtorch.cat([low, high, (scales.to(int32) & 255).to(uint8), halves(one)], -1)


def _q3_scale(x: Tensor) -> Tensor:
    """Return scales (n,) of parts, given as 16 columns: the whole numbers of one element after the other change where
    that brings the sums of squares down.
    """
    columns, q = x.t().contiguous(), []
    inverse_scale = -4.0 / largest(x).squeeze(-1)
    cube, square = columns**3, columns * columns
    q = list(_rounded(inverse_scale * columns, -4, 3).unbind(0))
    first = webtorch.stack(q)
    sum_qx, sum_qq = (cube * first).sum(0), (square * first * first).sum(0)
    for _ in range(5):
        for i in range(16):
            without, rest = sum_qx - cube[i] * q[i], sum_qq - square[i] * q[i] * q[i]
            new = _rounded(columns[i] * rest / without, -4, 3)
            qx, qq = without + cube[i] * new, rest + square[i] * new * new
            better = (without > 0) & (qq > 0) & (qx * qx * sum_qq > sum_qx * sum_qx * qq)
            q[i] = webtorch.where(better, new, q[i])
            sum_qx = webtorch.where(better, qx, sum_qx)
            sum_qq = webtorch.where(better, qq, sum_qq)
            webtorch.realize(q[i], sum_qx, sum_qq)
    found = webtorch.where(sum_qq > 0, sum_qx / sum_qq, 0.0)
    return webtorch.where(columns.abs().amax(0) < _NOTHING, 0.0, found)


@packs("Q3_K")
def _q3_k(x: Tensor) -> Tensor:
    scale = _q3_scale(x.reshape(-1, 16)).reshape(-1, 16)
    signed, one = _signed_steps(scale, 32)
    q = _in_scales(x, scale, signed, one, 4)
    scales = webtorch.where(one == 0, 0, signed.to(int32) + 32)
    parts = (
        together(q >> 2, (2, 2, 2, 2, 16), (4, 2, 1, 0, 0)),
        together(q & 3, (2, 2, 2, 2, 16), (0, 4, 2, 0, 0)),
        together(scales & 15, (2, 8), (4, 0)), together(scales >> 4, (4, 4), (2, 0)), halves(one),
    )  # fmt: skip
    return webtorch.cat(parts, -1)


# What lies between neighbours of the sixteen numbers.
_BETWEEN = [(a + b) / 2 for a, b in itertools.pairwise(IQ4)]


def _nearest(x: Tensor, steps: Sequence[int]) -> Tensor:
    """Return the sum of the steps that are made up to x: from one of the sixteen numbers to the next."""
    found = webtorch.zeros_like(x)
    for step, between in zip(steps, _BETWEEN, strict=True):
        found = found + webtorch.where(x >= between, float(step), 0.0)
    return found


def _iq4_scale(x: Tensor) -> Tensor:
    """Return the scales (n, 1) of parts of 32 elements."""
    top, steps = largest(x), [b - a for a, b in itertools.pairwise(IQ4)]
    inverses = [(i / top) for i in (-IQ4[0], *range(IQ4[0] - 7, IQ4[0] + 8))]
    return _best(x, inverses, lambda y: _nearest(y, steps) + IQ4[0])


def _iq4(x: Tensor, scale: Tensor) -> Tensor:
    """Return the indices (n, elements) of parts (n, parts, elements) with scales."""
    return _nearest(_over(x, scale), [1] * 15).to(int32).flatten(1)


@packs("IQ4_NL")
def _iq4_nl(x: Tensor) -> Tensor:
    scale = _iq4_scale(x)
    return webtorch.cat([halves(scale), together(_iq4(x, scale), (2, 16), (4, 0))], -1)


@packs("IQ4_XS")
def _iq4_xs(x: Tensor) -> Tensor:
    parts = x.reshape(-1, 8, 32)
    scale = _iq4_scale(parts.flatten(0, 1)).reshape(-1, 8)
    one = largest(scale) / -32.0
    signed = _rounded(_over(scale, one), -32, 31)
    q = _iq4(parts, (one * signed).unsqueeze(-1))
    scales = signed.to(int32) + 32
    head = (
        halves(one), together(scales >> 4, (2, 4), (0, 2)), together(scales & 15, (4, 2), (0, 4)),
        together(q, (8, 2, 16), (0, 4, 0)),
    )  # fmt: skip
    return webtorch.cat(head, -1)
