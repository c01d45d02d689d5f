"""Samples of distributions, and their slopes, as formulas of parameters and random words. May import floors 0 and 1.

Each sampler fuses, replays in compiled programs, and draws the same numbers on every device. Rejection samplers make a
fixed number of attempts, the first accepted one counts: where none is, which happens less than once in 100,000
numbers, the last proposal, whose distribution is near.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS, DType, float64, uint32
from webtorch.ir.expr import Expr
from webtorch.ops.derive import derivative
from webtorch.ops.record import Elementwise, elementwise
from webtorch.ops.special import _digamma, _horner

# Every element has 2 ** _SLOT_BITS counters of Philox to itself, each of which gives four words.
_SLOT_BITS = 4


SLOTS = 1 << _SLOT_BITS


_LAST = SLOTS - 1


class Words:
    """The random words of one element."""

    def __init__(self, compute: DType, position: Expr, *words: Expr) -> None:
        self.compute = compute
        self.key, self.offset = (words[0], words[1]), (words[2], words[3])
        self.position = ex.cast(position, uint32)

    def uniform(self, slot: int, lane: int) -> Expr:
        """Return a number in (0, 1): a multiple of 2**-24 and a half, so never 0."""
        word = ex.shr(self._word(slot, lane), 8)
        return (ex.cast(word, self.compute) + 0.5) * 2.0**-24

    def normal(self, slot: int) -> Expr:
        """Return a normal number (Box and Muller, 1958), of lanes 0 and 1."""
        radius = ex.sqrt(ex.log(self.uniform(slot, 0)) * -2.0)
        return radius * ex.cos(self.uniform(slot, 1) * (2.0 * math.pi))

    def _word(self, slot: int, lane: int) -> Expr:
        own = ex.shl(self.position, _SLOT_BITS) + slot
        low = own + self.offset[0]
        carry = ex.where(low < self.offset[0], ex.const(1, uint32), 0)
        high = self.offset[1] + ex.shr(self.position, 32 - _SLOT_BITS) + carry
        return ex.philox(*self.key, low, high, lane)


def _sampler(name: str, count: int, rule: Callable[..., Expr], doc: str) -> Elementwise:
    """Return the formula of a sampler: `rule(words, *parameters)`."""

    def formula(*inputs: Expr) -> Expr:
        """Return the sample for parameters and random words."""
        parameters = inputs[:count]
        return rule(Words(parameters[0].dtype, *inputs[count:]), *parameters)

    return Elementwise(
        name=name, family="random", signature="", doc=doc, expr=formula, tensors=(), function_in=()
    )


def _log_gamma_rule(words: Words, alpha: Expr) -> Expr:
    """The logarithm of a gamma number, which may be smaller than any float."""
    size, log_boost = _gamma_parts(words, alpha)
    return ex.log(size) + log_boost


def _gamma_rule(words: Words, alpha: Expr) -> Expr:
    size, log_boost = _gamma_parts(words, alpha)
    value = size * ex.where(alpha < 1, ex.exp(log_boost), 1.0)
    value = ex.where(ex.eq(alpha, 0), ex.const(0.0, alpha.dtype), value)
    return ex.where(alpha >= 0, value, ex.const(math.nan, alpha.dtype))


def _gamma_parts(words: Words, alpha: Expr) -> tuple[Expr, Expr]:
    """Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; of alpha + 1 where alpha < 1.

    Returns the number, and the logarithm of what it is to be multiplied by, which is 0 for the others.
    """
    small = alpha < 1
    shape = ex.where(small, alpha + 1, alpha)
    d = shape - 1 / 3
    c = ex.rsqrt(d * 9.0)
    found: Expr | None = None
    # An attempt fails in less than one of 20 cases, so six of them fail less than once in 6e7.
    for slot in reversed(range(6)):
        z = words.normal(slot)
        root = c * z + 1.0
        v = root * root * root
        ok = v > 0
        safe = ex.where(ok, v, 1.0)
        log_u = ex.log(words.uniform(slot, 2))
        accepted = ok & (log_u < z * z * 0.5 + d * (1.0 - safe + ex.log(safe)))
        # Where no attempt is accepted, the last proposal, which has nearly the right distribution.
        found = safe if found is None else ex.where(accepted, safe, found)
    assert found is not None
    # gamma(alpha) = gamma(alpha + 1) * u ** (1 / alpha).
    log_boost = ex.log(words.uniform(_LAST, 0)) / ex.where(small, alpha, 1.0)
    return d * found, ex.where(small, log_boost, 0.0)


GAMMA = _sampler("_gamma_sample", 1, _gamma_rule, "Gamma numbers of rate 1.")
LOG_GAMMA = _sampler(
    "_log_gamma_sample", 1, _log_gamma_rule, "Logarithms of gamma numbers of rate 1."
)


def _derivative(root: Expr, variable: Expr) -> Expr:
    slope = derivative(root, variable)
    return ex.const(0.0, variable.dtype) if slope is None else slope


def _of_inputs(rule: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return a formula whose rule takes derivatives: it is written for plain inputs, in whose place others are put."""

    def formula(*values: Expr) -> Expr:
        """Return the rule for these values."""
        symbols = tuple(ex.input_(i, v.dtype) for i, v in enumerate(values))
        return ex.substitute(rule(*symbols), values)

    return formula


def _gamma_slope(alpha: Expr, x: Expr) -> Expr:
    """Return dx / d alpha where the distribution function P(alpha, x) stays: -(dP / d alpha) / density(alpha, x).

    With P = density * x * S, the density falls out: -x (S (log x - digamma(alpha)) + dS / d alpha); the same for 1 - P.
    S is a series where x < alpha + 1 (A&S 6.5.29), else a fraction (A&S 6.5.31). Where alpha is large, P is the uniform
    expansion of Temme (1979): erfc(-s) / 2 - exp(-s * s) W.
    """
    series_terms, fraction_terms = (200, 100) if alpha.dtype is float64 else (90, 60)
    large = alpha > 100.0
    a = ex.where(large, 50.0, alpha)
    at = ex.where(large, 50.0, x)
    log_slope = ex.log(at) - _digamma(a)
    lower = at < a + 1.0
    inner = ex.where(lower, at, a)
    series = ex.const(1.0, a.dtype)
    for k in range(series_terms, 0, -1):
        series = series * inner / (a + k) + 1.0
    below = series / a
    outer = ex.where(lower, a + 2.0, at)
    fraction = outer + (2 * fraction_terms + 1) - a
    for k in range(fraction_terms, 0, -1):
        fraction = outer + (2 * k - 1) - a - (k - a) * k / fraction
    above = 1.0 / fraction
    moderate = ex.where(
        lower,
        -at * (below * log_slope + _derivative(below, alpha)),
        at * (above * log_slope + _derivative(above, alpha)),
    )
    # mu - log(1 + mu) = eta**2 / 2: by its series where x is near alpha.
    b, y = ex.where(large, alpha, 200.0), ex.where(large, x, 200.0)
    mu = y / b - 1.0
    mu = ex.where(mu > -0.9, mu, -0.9)
    near = ex.unary("abs", mu) < 0.05
    half = ex.where(near, 0.5, mu - ex.log1p(mu))
    eta = ex.where(
        near,
        mu * _horner(_ETA, mu),
        ex.where(mu < 0, -ex.sqrt(half * 2.0), ex.sqrt(half * 2.0)),
    )
    s = eta * ex.sqrt(b * 0.5)
    w = _horner((-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835), eta)
    w = (w + _horner((-1 / 540, -1 / 288, 1 / 378), eta) / b) * ex.rsqrt(b * (2.0 * math.pi))
    s_slope, w_slope = _derivative(s, alpha), _derivative(w, alpha)
    slope_of_p = s_slope * (1.0 / math.sqrt(math.pi)) - w_slope + s * s_slope * w * 2.0
    # The density is exp(-s * s) * sqrt(alpha / (2 pi)) / (x gamma*(alpha)).
    density = ex.sqrt(b * (0.5 / math.pi)) / (y * (1.0 + 1.0 / (b * 12.0) + 1.0 / (b * b * 288.0)))
    value = ex.where(large, -slope_of_p / density, moderate)
    # x -> 0: P is x ** alpha / gamma(alpha + 1).
    return ex.where(x > 0, value, ex.const(0.0, x.dtype))


# eta / mu in powers of mu: the root of 2 (mu - log(1 + mu)) / mu**2.
_ETA = (
    1.0, -1 / 3, 7 / 36, -73 / 540, 1331 / 12960, -22409 / 272160, 2236637 / 32659200,
)  # fmt: skip


standard_gamma_grad: Elementwise = elementwise(
    "_standard_gamma_grad",
    _of_inputs(_gamma_slope),
    tensors=("input", "output"),
    differentiable=False,
    dtypes=FLOATS,
    promotion="float",
    function_in=(),
    domain=(0.3, 5.0),
    aten=("_standard_gamma_grad",),
    doc="The derivative of a gamma number `output` by its concentration, at fixed randomness.",
)


def _beta_slope(x: Expr, alpha: Expr, total: Expr) -> Expr:
    """Return dx / d alpha / (1 - x) of a beta number of alpha and total - alpha, at fixed randomness.

    The distribution function is density * x * (1 - x) * S, with the continued fraction S of A&S 26.5.8, from its end;
    for x beyond the mean it is one minus the same of 1 - x. The density falls out, as in _gamma_slope.
    """
    terms = 100 if x.dtype is float64 else 48
    beta = total - alpha
    bound = 1000.0 if x.dtype is float64 else 400.0
    large = (alpha > bound) & (beta > bound)
    a, b = ex.where(large, 2.0, alpha), ex.where(large, 2.0, beta)
    at = ex.where((x > 0) & (x < 1), x, 0.5)
    lower = at < (a + 1.0) / (a + b + 2.0)
    p, q = ex.where(lower, a, b), ex.where(lower, b, a)
    y = ex.where(lower, at, 1.0 - at)
    rest = ex.const(1.0, x.dtype)
    for m in range(terms, 0, -1):
        even = y * (q - m) * m / ((p + (2 * m - 1)) * (p + 2 * m))
        odd = -y * (p + m) * (p + q + m) / ((p + 2 * m) * (p + (2 * m + 1)))
        rest = 1.0 + even / (1.0 + odd / rest)
    rest = 1.0 - y * (p + q) / (p + 1.0) / rest
    s = 1.0 / (rest * p)
    # The slope of log density by alpha.
    log_slope = ex.log(at) - _digamma(a) + _digamma(a + b)
    value = s * log_slope + _total_derivative(s, alpha, total)
    moderate = ex.where(lower, -at * value, at * value)
    # For many counts a beta number is its mean plus a normal one times the standard deviation.
    count = ex.where(large, total, 1000.0)
    first = ex.where(large, alpha, 500.0)
    mean = first / count
    slope_of_mean = (1.0 - mean) / count
    slope_of_log = (
        slope_of_mean * (1.0 - mean * 2.0) / (mean * (1.0 - mean)) - 1.0 / (count + 1.0)
    ) * 0.5
    far = (slope_of_mean + (x - mean) * slope_of_log) / (1.0 - ex.where(x < 1, x, 0.5))
    value = ex.where(large, far, moderate)
    return ex.where((x > 0) & (x < 1), value, ex.const(0.0, x.dtype))


def _total_derivative(root: Expr, alpha: Expr, total: Expr) -> Expr:
    """Return the derivative by alpha where beta stays, so that the total grows with alpha."""
    return _derivative(root, alpha) + _derivative(root, total)


dirichlet_grad: Elementwise = elementwise(
    "_dirichlet_grad",
    _of_inputs(_beta_slope),
    tensors=("x", "alpha", "total"),
    differentiable=False,
    dtypes=FLOATS,
    promotion="float",
    function_in=(),
    aten=("_dirichlet_grad",),
    doc="The derivative of a Dirichlet number x by its concentration alpha, over 1 - x, at fixed randomness.",
)


# From here on the transformed rejection is used; below it, the sum of the probabilities is followed.
_FEW = 10.0


# The probability of more than this is below 2 ** -24 where the mean is at most _FEW.
_STEPS = 34


_ATTEMPTS = 10


def _tail(k: Expr) -> Expr:
    """Return log(k!) less Stirling's formula, for k >= 1."""
    inverse = 1.0 / k
    square = inverse * inverse
    return inverse * _horner((1 / 12, -1 / 360, 1 / 1260, -1 / 1680), square)


def _deviance(k: Expr, mean: Expr) -> Expr:
    """Return k log(k / mean) - k + mean without cancellation (Loader, 2000), for k >= 0."""
    t = (k - mean) / mean
    near = ex.unary("abs", t) < 0.1
    small = ex.where(near, t, 0.0)
    series = (
        small
        * small
        * _horner((1 / 2, -1 / 6, 1 / 12, -1 / 20, 1 / 30, -1 / 42, 1 / 56, -1 / 72), small)
    )
    wide = ex.where(near | (k <= 0), 1.0, t)
    direct = ex.where(k > 0, (1.0 + wide) * ex.log1p(wide) - wide, 1.0)
    return mean * ex.where(near, series, direct)


def _transformed_rejection(
    words: Words, scale: Expr, b: Expr, shift: Expr, squeeze: Expr, weight: Expr,
    log_mass: Callable[[Expr], Expr], most: Expr | None,
) -> Expr:  # fmt: skip
    """Return a count by Hörmann's transformed rejection with squeeze ("The transformed rejection method", 1993)."""
    found: Expr | None = None
    for slot in reversed(range(_ATTEMPTS)):
        u, v = words.uniform(slot, 0) - 0.5, words.uniform(slot, 1)
        inside = 0.5 - ex.unary("abs", u)
        k = ex.floor((scale * 2.0 / inside + b) * u + shift)
        valid = k >= 0
        if most is not None:
            valid = valid & (k <= most)
        k = ex.where(valid, k, ex.floor(shift))
        quick = (inside >= 0.07) & (v <= squeeze)
        log_ratio = ex.log(v * weight / (scale / (inside * inside) + b))
        accepted = valid & (quick | (log_ratio <= log_mass(k)))
        found = k if found is None else ex.where(accepted, k, found)
    assert found is not None
    return found


def _follow(u: Expr, first: Expr, ratio: Callable[[int], Expr]) -> Expr:
    """Return the first count whose cumulative probability reaches u; ratio(j) is p(j + 1) / p(j)."""
    count, mass = ex.const(0.0, u.dtype), first
    total = first
    for j in range(_STEPS):
        count = count + ex.where(u > total, ex.const(1.0, u.dtype), 0.0)
        mass = mass * ratio(j)
        total = total + mass
    return count


def _poisson_rule(words: Words, rate: Expr) -> Expr:
    few = rate < _FEW
    low = ex.where(few, rate, 1.0)
    counted = _follow(words.uniform(_LAST, 0), ex.exp(-low), lambda j: low * (1.0 / (j + 1)))
    mean = ex.where(few | ex.isinf(rate), _FEW, rate)
    b = ex.sqrt(mean) * 2.53 + 0.931
    scale = b * 0.02483 - 0.059

    def log_mass(k: Expr) -> Expr:
        """Return the logarithm of the probability of k (Loader, 2000)."""
        some = ex.where(k > 0, k, 1.0)
        many = -_deviance(k, mean) - ex.log(some * (2.0 * math.pi)) * 0.5 - _tail(some)
        return ex.where(k > 0, many, -mean)

    drawn = _transformed_rejection(
        words, scale, b, mean + 0.43, 0.9277 - 3.6224 / (b - 2.0), 1.1239 + 1.1328 / (b - 3.4),
        log_mass, None,
    )  # fmt: skip
    value = ex.where(few, counted, drawn)
    value = ex.where(ex.isinf(rate), rate, value)
    return ex.where(ex.isnan(rate), rate, ex.where(rate <= 0, ex.const(0.0, rate.dtype), value))


POISSON = _sampler("_poisson_sample", 1, _poisson_rule, "Poisson numbers.")


def _binomial_rule(words: Words, count: Expr, prob: Expr) -> Expr:
    """Of the smaller probability; the rest where prob is above a half."""
    flipped = prob > 0.5
    p = ex.where(flipped, 1.0 - prob, prob)
    n = ex.floor(count)
    usable = (n > 0) & (p > 0)
    few = n * p < _FEW
    small = usable & few
    low_n, low_p = ex.where(small, n, 1.0), ex.where(small, p, 0.25)
    odds = low_p / (1.0 - low_p)

    def ratio(j: int) -> Expr:
        """Return the probability of j + 1 over that of j."""
        left = low_n - j
        return ex.where(left > 0, left, 0.0) * odds * (1.0 / (j + 1))

    first = ex.exp(low_n * ex.log1p(-low_p))
    counted = _follow(words.uniform(_LAST, 0), first, ratio)
    counted = ex.binary("min", counted, low_n)
    big = usable & ~few
    n_, p_ = ex.where(big, n, 40.0), ex.where(big, p, 0.5)
    q_ = 1.0 - p_
    mean = n_ * p_
    spread = ex.sqrt(mean * q_)
    b = spread * 2.53 + 1.15
    scale = b * 0.0248 - 0.0873 + p_ * 0.01

    def log_mass(k: Expr) -> Expr:
        """Return the logarithm of the probability of k (Loader, 2000)."""
        rest = n_ - k
        inside = (k > 0) & (rest > 0)
        i, j = ex.where(inside, k, 1.0), ex.where(inside, rest, 1.0)
        value = _tail(n_) - _tail(i) - _tail(j) - _deviance(i, mean) - _deviance(j, n_ * q_)
        value = value + ex.log(n_ / (i * j * (2.0 * math.pi))) * 0.5
        edge = ex.where(k > 0, ex.log(p_), ex.log1p(-p_)) * n_
        return ex.where(inside, value, edge)

    mode = ex.floor((n_ + 1.0) * p_)
    # The weight is (2.83 + 5.1 / b) * spread, of the mass relative to the mode's.
    highest = log_mass(mode)
    drawn = _transformed_rejection(
        words, scale, b, mean + 0.5, 0.92 - 4.2 / b, (5.1 / b + 2.83) * spread,
        lambda k: log_mass(k) - highest, n_,
    )  # fmt: skip
    value = ex.where(few, counted, drawn)
    value = ex.where(usable, value, ex.const(0.0, prob.dtype))
    value = ex.where(flipped, ex.where(n > 0, n, 0.0) - value, value)
    return ex.where(ex.isnan(prob) | ex.isnan(count), ex.const(math.nan, prob.dtype), value)


BINOMIAL = _sampler("_binomial_sample", 2, _binomial_rule, "Binomial numbers.")


def _von_mises_rule(words: Words, concentration: Expr) -> Expr:
    """Best and Fisher, "Efficient simulation of the von Mises distribution", 1979.

    Their r is (1 + sqrt(1 + 4 k**2)) / (2 k); r - 1 and 1 - f are written so that they keep their digits for large k.
    """
    k = concentration
    root = ex.sqrt(k * k * 4.0 + 1.0)
    r_less_1 = (1.0 + 1.0 / (root + k * 2.0)) / (k * 2.0)
    r = r_less_1 + 1.0
    found: Expr | None = None
    # An attempt fails in at most one of three cases, for large k.
    for slot in reversed(range(12)):
        z = ex.cos(words.uniform(slot, 0) * math.pi)
        c = k * r_less_1 * ((r + 1.0) / (r + z))
        v = words.uniform(slot, 1)
        accepted = (c * (2.0 - c) > v) | (ex.log(c / v) + 1.0 >= c)
        # sin(angle / 2) ** 2 = (1 - f) / 2 = (r - 1) (1 - z) / (2 (r + z)); 1 - z = 2 sin(pi u / 2) ** 2.
        half = ex.sin(words.uniform(slot, 0) * (math.pi / 2))
        sine = half * ex.sqrt(r_less_1 / (r + z))
        angle = ex.asin(ex.binary("min", sine, ex.const(1.0, k.dtype))) * 2.0
        angle = ex.where(words.uniform(slot, 2) < 0.5, -angle, angle)
        found = angle if found is None else ex.where(accepted, angle, found)
    assert found is not None
    return found


VON_MISES = _sampler("_von_mises_sample", 1, _von_mises_rule, "Angles around 0.")
