"""Random numbers: generators, distributions, permutations.

Numbers are counter-based (Philox4x32-10; Salmon, Moraes, Dror and Shaw, 2011): a call takes its counters from a
generator, which only adds up how many were used. The same seed gives the same numbers on every device.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from collections.abc import Generator as Iterator
from fractions import Fraction
from typing import Any

from webtorch.dispatch.call import active
from webtorch.errors import DTypeError
from webtorch.functions import creation, lookup, movement, ordering, pointwise, slicing
from webtorch.functions.check import demand
from webtorch.functions.creation import TORCH
from webtorch.functions.factory import (
    New,
    chosen_dtype,
    finish,
    like_another,
    of_sizes,
    size_of,
)
from webtorch.functions.movement import METHOD
from webtorch.ir.dtype import (
    FLOATS,
    DType,
    bfloat16,
    float32,
    float64,
    int32,
    int64,
    integer_limits,
    uint8,
)
from webtorch.ir.view import Shape, broadcast_shapes, numel
from webtorch.ops import circular, comparison, elementwise
from webtorch.ops.primitive import (
    cast_to,
    complex_of,
    pairs,
    philox,
    reduce_dims,
    scan,
    sort_places,
    take,
    write,
)
from webtorch.ops.purity import looks, warn
from webtorch.ops.record import BOOL, Composite, Example, Family, P, R, composite
from webtorch.tensors.batching import levels_of
from webtorch.tensors.calls import check_stated
from webtorch.tensors.device import DeviceLike, device_of, resolve
from webtorch.tensors.device import device as device_type
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.host import reads, tracing
from webtorch.tensors.limits import finfo
from webtorch.tensors.modes import mode
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import at_hand_or_written, check_range

FAMILY: Family = "random"

_MASK = 0xFFFFFFFF


# Pickled generators of before name their class by the file that it stood in.
sys.modules.setdefault("webtorch.ops.random", sys.modules[__name__])


# -- generators ------------------------------------------------------------------------------------


class Generator:
    """A source of random numbers for one device: a seed, and the number of counters used since it was set."""

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = device_type(device)
        self._seed = 67280421310721
        self._offset = 0

    def manual_seed(self, seed: int) -> Generator:
        """Start again with `seed` (64 bits; negative ones count from the end). Returns the generator."""
        seed = int(seed)
        if not -(2**63) <= seed < 2**64:
            raise ValueError(
                f"Overflow when unpacking long long: manual_seed takes a seed of 64 bits, from -2**63 to 2**64 - 1, "
                f"got {seed}. Pass seed % 2**64."
            )
        self._stand(seed % 2**64, 0)
        return self

    def _stand(self, seed: int, offset: int) -> None:
        """Draw from another place on. What a script has promised draws first."""
        follower = active.follower
        if follower is not None:
            follower.before_drawing()
            follower.before_setting(self)
        self._seed, self._offset = seed, offset

    def _counters(self) -> int:
        """Return how many counters are used, those of what a script has promised among them."""
        if active.follower is not None:
            active.follower.before_drawing()
        return self._offset

    def seed(self) -> int:
        """Start again with a seed from the system, and return it."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed that was set last."""
        return self._seed

    def advance(self, count: int) -> tuple[int, int]:
        """Use up `count` counters and return (seed, first counter)."""
        check_mapped()
        for vmap in mode.vmaps:
            if vmap.randomness == "different":
                count *= vmap.size
        looks()
        follower = active.follower
        if follower is not None:
            # What a script has promised draws first.
            follower.before_drawing()
        offset = self._offset
        self._offset = (offset + count) % 2**64
        if tracing.active:
            return tracing.draw(self, self._seed, offset)
        if follower is not None:
            drawn: tuple[int, int] = follower.draw(self, self._seed, offset)
            return drawn
        return self._seed, offset

    def get_state(self) -> Tensor:
        """Return the state as a CPU tensor of 16 bytes: seed and counter, little-endian."""
        contents = self._seed.to_bytes(8, "little") + self._counters().to_bytes(8, "little")
        return creation.tensor(list(contents), dtype=uint8, device="cpu")

    def set_state(self, new_state: Tensor) -> Generator:
        """Go back to a state that get_state returned. Raises RuntimeError for anything else."""
        if new_state.dtype.name != "uint8":
            raise TypeError("RNG state must be a torch.ByteTensor")
        contents = bytes(new_state.tolist())
        if len(contents) != 16:
            raise RuntimeError(f"RNG state is wrong size: expected 16 bytes, got {len(contents)}")
        self._stand(int.from_bytes(contents[:8], "little"), int.from_bytes(contents[8:], "little"))
        return self

    def clone_state(self) -> Generator:
        """Return a new generator in the same state."""
        out = Generator(self.device)
        out._seed, out._offset = self._seed, self._counters()
        return out

    def __repr__(self) -> str:
        return (
            f"<torch.Generator device='{self.device}' seed={self._seed} offset={self._counters()}>"
        )


_defaults: dict[str, Generator] = {}
_seed_of_all: int | None = None


def default_generator(device: DeviceLike = None) -> Generator:
    """Return the generator that calls without generator= use on `device`."""
    key = device_of(resolve(device))
    found = _defaults.get(str(key))
    if found is None:
        found = _defaults[str(key)] = Generator(key)
        if _seed_of_all is not None:
            found.manual_seed(_seed_of_all)
        else:
            found.seed()
    return found


@composite(function_in=TORCH, example="is about the generator")
def manual_seed(seed: int) -> Generator:
    """Seed the generators of all devices, which then give the same numbers. Returns the CPU's."""
    global _seed_of_all
    checked = Generator("cpu").manual_seed(seed)._seed
    _seed_of_all = checked
    for generator in _defaults.values():
        generator.manual_seed(checked)
    return default_generator("cpu")


@composite(function_in=TORCH, example="is about the generator")
def seed() -> int:
    """Seed the generators of all devices from the system, and return the seed."""
    value = Generator("cpu").seed()
    manual_seed(value)
    return value


@composite(function_in=TORCH, example="is about the generator")
def initial_seed() -> int:
    """Return the seed of the CPU's generator."""
    return default_generator("cpu").initial_seed()


@composite(function_in=TORCH, example="is about the generator")
def get_rng_state() -> Tensor:
    """Return the state of the CPU's generator."""
    return default_generator("cpu").get_state()


@composite(function_in=TORCH, example="is about the generator")
def set_rng_state(new_state: Tensor) -> None:
    """Set the state of the CPU's generator."""
    default_generator("cpu").set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: object = None, enabled: bool = True, **_: object) -> Iterator[None]:
    """Put the generators of all devices back to their states after the block."""
    global _seed_of_all
    if not enabled:
        yield
        return
    default_generator("cpu")
    before, seeded = {k: g.clone_state() for k, g in _defaults.items()}, _seed_of_all
    try:
        yield
    finally:
        _seed_of_all = seeded
        for key in list(_defaults):
            if key in before:
                _defaults[key]._stand(before[key]._seed, before[key]._offset)
            else:
                del _defaults[key]


def _draw(
    shape: Shape,
    dtype: DType,
    device: DeviceLike,
    generator: Generator | None,
    kind: str = "uniform",
) -> Tensor:
    """Return fresh random numbers from `generator`, or from the device's own."""
    if dtype.is_complex:
        both = _draw((*shape, 2), dtype.to_real(), device, generator, kind)
        # Normal complex numbers have variance 1: each part has half of it.
        return complex_of(both * math.sqrt(0.5) if kind == "normal" else both)
    if generator is None:
        generator = default_generator(device)
    elif not isinstance(generator, Generator):
        raise TypeError(f"argument 'generator' must be Generator, not {type(generator).__name__}")
    elif device is None:
        device = generator.device
    seed, offset = generator.advance(numel(shape))
    return philox(shape, seed, offset, dtype, device, kind)


def different() -> bool:
    """Whether a vmap that runs gives each example numbers of its own."""
    return any(v.randomness == "different" for v in mode.vmaps)


def check_mapped(*parameters: object) -> None:
    """Raise RuntimeError where a vmap takes no random operation, or where examples are to have the same numbers, and
    parameters of their own.
    """
    for vmap in mode.vmaps:
        if vmap.randomness == "error":
            raise RuntimeError(
                "vmap: We do not yet support calling random operations inside of vmap. Please perform random "
                "operations outside of vmap as a workaround"
                if vmap.plain
                else "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
                "'different' randomness flags on vmap or perform the randomness operation out of vmap"
            )
        if vmap.randomness == "same" and any(n == vmap.number for n, _ in levels_of(parameters)):
            raise RuntimeError(
                "Vmap does not currently support same randomness with a batched tensor input. Please file an issue "
                'with functorch: what is drawn would differ with each example\'s parameters. randomness="different" '
                "gives each its own"
            )


def _check_filled(x: Tensor, parameter: object = None) -> None:
    """Raise RuntimeError where examples are to have numbers of their own, in memory that they share."""
    for vmap in mode.vmaps:
        if any(n == vmap.number for n, _, _ in x._levels):
            continue
        if any(n == vmap.number for n, _ in levels_of((parameter,))):
            raise RuntimeError(
                "vmap: inplace bernoulli(self, *extra_args) is not possible because there exists a Tensor `other` in "
                "extra_args that has more elements than `self`. This happened due to `other` being vmapped over but "
                "`self` not being vmapped over in a vmap. Please try to use out-of-place operators instead of "
                "inplace bernoulli. If said operator is being called inside the PyTorch framework, please file a bug "
                "report instead."
            )
        if vmap.randomness == "different":
            raise RuntimeError(
                "vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same "
                "randomness. If this is necessary for your usage, please file an issue with functorch."
            )


# -- permutations on the host ----------------------------------------------------------------------

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def host_words(seed: int, first: int, count: int) -> list[tuple[int, int]]:
    """Return lanes 0 and 1 of Philox for counters first, first + 1, ...: the bits that the device would draw.

    NumPy computes them all at once where it is installed; else plain Python does.
    """
    try:
        return [divmod(int(w), 2**32) for w in _word_pairs(seed, first, count).tolist()]
    except ImportError:
        return [_philox_words(seed, (first + i) % 2**64) for i in range(count)]


def _word_pairs(seed: int, first: int, count: int) -> Any:
    """Return lane 0 in the upper and lane 1 in the lower half of 64 bits, as a NumPy array."""
    import numpy as np

    counter = np.arange(count, dtype=np.uint64) + np.uint64(first)
    mask, half = np.uint64(_MASK), np.uint64(32)
    # Lanes 0 and 2, which are multiplied, as they lie in the next round; and lanes 1 and 3.
    even, odd = np.zeros((2, count), np.uint64), np.zeros((2, count), np.uint64)
    np.bitwise_and(counter, mask, out=even[1])
    np.right_shift(counter, half, out=odd[0])
    factors = np.array(_MULTIPLIERS[::-1], np.uint64)[:, None]
    first_keys = seed & _MASK, seed >> 32
    keys_of_rounds = [
        [[(k + i * w) & _MASK] for k, w in zip(first_keys, _WEYL, strict=True)] for i in range(10)
    ]
    product = np.empty_like(even)
    for keys in np.array(keys_of_rounds, np.uint64):
        np.multiply(even, factors, out=product)
        np.right_shift(product, half, out=even)
        even ^= odd
        even ^= keys
        np.bitwise_and(product, mask, out=odd)
        even = even[::-1]
    return even[1] << half | odd[0]


def _philox_words(seed: int, counter: int) -> tuple[int, int]:
    a, b, c, d = counter & _MASK, counter >> 32, 0, 0
    low, high = seed & _MASK, seed >> 32
    for _ in range(10):
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (right >> 32) ^ b ^ low, right & _MASK, (left >> 32) ^ d ^ high, left & _MASK
        low, high = (low + _WEYL[0]) & _MASK, (high + _WEYL[1]) & _MASK
    return a, b


def permutation(n: int, generator: Generator) -> Any:
    """Return a random order of 0..n-1: positions sorted by 64 random bits each. Reads nothing from a device. It is an
    array where NumPy is installed.
    """
    if tracing.active:
        tracing.refuse(
            "its random order is drawn on the host, from which a program cannot read: use randperm"
        )
    seed, first = generator.advance(n)
    try:
        return _word_pairs(seed, first, n).argsort(kind="stable")
    except ImportError:
        return sorted(range(n), key=host_words(seed, first, n).__getitem__)


@composite(function_in=TORCH, factory=True, example=Example((), (20,)), drawn=True)
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """The numbers 0..n-1 in random order (int64 unless dtype is given)."""
    if n < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {n}: [{n}]")
    where = device if out is None else out.device
    wanted = chosen_dtype(dtype, int64 if out is None else out.dtype)
    bits = _MANTISSA.get(wanted.name)
    if bits is not None and wanted is not bfloat16 and n > 2**bits + 1:
        raise RuntimeError(f"n cannot be greater than {2**bits + 1} for {wanted.legacy} type.")
    source = default_generator(where) if generator is None else generator
    # The same order: many are faster sorted on the device, and the host has one for all examples of a vmap.
    if n > 1 and (different() or not reads.possible or n >= 1 << 12):
        made = cast_to(_permutation_on_device(n, source, where), wanted)
    else:
        order = permutation(n, source)
        made = creation.made_of(order if wanted is int64 else [*map(int, order)], wanted, where)
    return finish(made, requires_grad, out, "randperm")


def _permutation_on_device(n: int, generator: Generator, device: DeviceLike) -> Tensor:
    """Return the order that `permutation` finds on the host: by both words, the second first."""
    seed, first = generator.advance(n)
    high, low = (philox((1, n), seed, first, int32, device, kind) for kind in ("word0", "word1"))
    by_low = movement.reshape(sort_places(low, False, 0, n), (n,))
    chosen = movement.reshape(take(movement.reshape(high, (n,)), [by_low], "randperm"), (1, n))
    by_high = movement.reshape(sort_places(chosen, False, 0, n), (n,))
    return take(by_low, [by_high], "randperm")


# -- new tensors -----------------------------------------------------------------------------------


_COMPLEX = ("rand", "randn", "rand_like", "randn_like", "normal_")


def _floating(op: str, dtype: DType) -> DType:
    if dtype not in FLOATS and not (dtype.is_complex and op in _COMPLEX):
        raise NotImplementedError(
            f'"{op}" not implemented for {dtype}: it makes floating-point numbers. Use randint for integers.'
        )
    return dtype


@composite(function_in=TORCH, factory=True, example=Example((), (3, 4)), drawn=True)
@of_sizes
def rand(new: New, *, generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    shape, dtype, device = new
    return _draw(shape, _floating("rand", dtype), device, generator)


@composite(function_in=TORCH, factory=True, drawn=True)
@of_sizes
def randn(new: New, *, generator: Generator | None = None) -> Tensor:
    """Normal numbers of mean 0 and variance 1."""
    shape, dtype, device = new
    return _draw(shape, _floating("randn", dtype), device, generator, "normal")


def _integers(
    shape: Shape, low: int, high: int, dtype: DType, device: DeviceLike, generator: Generator | None
) -> Tensor:
    """Return integers in [low, high) of any dtype but a complex one."""
    if dtype.is_complex:
        raise RuntimeError(
            "check_random_bounds handles only integral, floating-point and boolean types"
        )
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    least, most = _integers_of(dtype)
    for name, number in (("from", low), ("to - 1", high - 1)):
        if not least <= number <= most:
            raise RuntimeError(
                f"{name} is out of bounds for {dtype.c_name}: got from={low} and to={high}, of {least} to {most}"
            )
        if dtype.kind == "float" and abs(number) > 2 ** _MANTISSA[dtype.name]:
            digits = _MANTISSA[dtype.name]
            warn(
                f"{name} is out of bounds [-(2^{digits}), 2^{digits}]. Due to precision limitations {dtype.c_name} "
                "can support discrete uniform distribution only within this range. This warning will become an error "
                "in version 1.7 release, please fix the code in advance"
            )
    low, high = _held(low, high, dtype)
    span = high - low
    bits = _draw(shape, int64, device, generator, "bits")
    if span < 2**31:
        return _bits_below(bits, low, span, dtype)
    if span > 2**31:
        # Two draws make 62 bits, and one more makes 64.
        bits = bits * 2**31 + _draw(shape, int64, device, generator, "bits")
    if span > 2**62:
        bits = bits * 4 + comparison.bitwise_and(_draw(shape, int64, device, generator, "bits"), 3)
    if span > 2**63:
        # All numbers of the type; those at the end of a shorter range begin again.
        last = high - 1 - low - 2**63
        wrapped = pointwise.where(bits > last, bits - last - 1 + low, bits + (low + 2**63))
        return cast_to(wrapped, dtype)
    if span > 2**62:
        bits = comparison.bitwise_and(bits, 2**63 - 1)
    value = bits if span in (2**31, 2**62, 2**63) else elementwise.remainder(bits, span)
    return cast_to(value + low if low else value, dtype)


def _held(low: int, high: int, dtype: DType) -> tuple[int, int]:
    """Return the bounds as PyTorch takes them: no integer between them is rounded to one that is not."""
    if dtype.kind != "float":
        return low, high
    # The distances of the type's numbers at the ends, and the numbers that the first and the last integer become.
    first, last = (
        2 ** max(abs(n).bit_length() - _MANTISSA[dtype.name], 0) for n in (low + 1, high - 1)
    )
    least, most = round(Fraction(low + 1, first)) * first, round(Fraction(high - 1, last)) * last
    low, high = least + first if least < low else low, most - last if most >= high else high
    if low >= high:
        raise RuntimeError(
            "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
            f"from={low} >= to={high}: {dtype} holds no integer between the bounds"
        )
    return low, high


@remembered
def _bits_below(bits: Tensor, low: int, span: int, dtype: DType) -> Tensor:
    """Return bits as integers in [low, low + span)."""
    value = elementwise.remainder(bits, span)
    return cast_to(value + low if low else value, dtype)


def _integers_of(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest integer that a type holds."""
    if dtype.kind in ("bool", "int", "uint"):
        return integer_limits(dtype)
    limits = finfo(dtype)
    return int(limits.min), int(limits.max)


@composite(function_in=TORCH, factory=True, drawn=True)
def randint(
    *args: Any,
    low: int | None = None,
    high: int | None = None,
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Integers in [low, high): randint(high, size) or randint(low, high, size). int64 unless dtype is given."""
    values = list(args)
    if values and size is None:
        size = values.pop()
    if values and high is None and len(values) == 1:
        high = values.pop()
    elif values:
        low = values.pop(0)
        high = values.pop(0) if values else high
    if size is None or high is None or not isinstance(size, (tuple, list)):
        raise TypeError(
            "randint() received an invalid combination of arguments: expected (int high, tuple size) or "
            "(int low, int high, tuple size)"
        )
    shape = size_of("randint", (), tuple(size))
    wanted = chosen_dtype(dtype, int64 if out is None else out.dtype)
    where = device if out is None else out.device
    result = _integers(shape, int(low or 0), int(high), wanted, where, generator)
    return finish(result, requires_grad, out, "randint")


@composite(function_in=TORCH, drawn=True)
@like_another
def rand_like(new: New, *, generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [0, 1), in the shape, dtype and device of `input`."""
    shape, dtype, device = new
    return _draw(shape, _floating("rand_like", dtype), device, generator)


@composite(function_in=TORCH, drawn=True)
@like_another
def randn_like(new: New, *, generator: Generator | None = None) -> Tensor:
    """Normal numbers of mean 0 and variance 1, in the shape, dtype and device of `input`."""
    shape, dtype, device = new
    return _draw(shape, _floating("randn_like", dtype), device, generator, "normal")


@composite(function_in=TORCH, drawn=True)
@like_another
def randint_like(
    new: New, low: int, high: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Integers in [low, high), or [0, low) without high, in the shape, dtype and device of `input`."""
    shape, dtype, device = new
    low, high = (0, low) if high is None else (low, high)
    return _integers(shape, low, high, dtype, device, generator)


_NO_DEVIATION = "normal expects all elements of std >= 0.0"


def _deviations(mean: object = 0.0, std: object = 1.0, *_: object, **__: object) -> None:
    """Raise for a deviation that is negative."""
    if isinstance(std, Tensor):
        check_range(std, 0, math.inf, _NO_DEVIATION)


@composite(
    function_in=TORCH,
    out="cast",
    drawn=True,
    vjp=lambda g, _out, mean_shape, std_shape, *_: _no_slopes(g, mean_shape, std_shape),
    values=_deviations,
)
def normal(
    mean: float | Tensor = 0.0,
    std: float | Tensor = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers. mean and std are tensors (one number per element), or numbers, with `size` when both are.

    Standard deviations in a tensor that is not computed yet are checked on the device: the next read raises.
    """
    if not isinstance(std, Tensor) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if out is not None:
        check_stated("normal", dtype, out)
        _floating("normal", out.dtype)
    like = mean if isinstance(mean, Tensor) else std if isinstance(std, Tensor) else None
    if like is None:
        if size is None:
            raise TypeError("normal() needs a size when mean and std are numbers")
        shape = size_of("normal", (), tuple(size))
        wanted = _floating("normal", chosen_dtype(dtype))
        noise = _draw(shape, wanted, device, generator, "normal")
    else:
        check_mapped(mean, std)
        shape = like._shape
        if isinstance(mean, Tensor) and isinstance(std, Tensor):
            shape = broadcast_shapes(mean._shape, std._shape)
        elif isinstance(mean, Tensor) and out is not None:
            # PyTorch lets the shape of `out` count here.
            shape = broadcast_shapes(mean._shape, out._shape)
        noise = _draw(shape, _floating("normal", like.dtype), like.device, generator, "normal")
        mean = mean.detach() if isinstance(mean, Tensor) else mean
        if isinstance(std, Tensor):
            std = std.detach()
            if numel(std._shape):
                holds = comparison.ge(std, 0)
                std = demand(std, holds, _NO_DEVIATION)
    return finish(noise * std + mean, requires_grad, out, "normal")


def _no_slopes(g: Tensor, *shapes: object) -> list[Tensor | None]:
    """Return the gradients of parameters of these shapes, or numbers, whose results do not change with them."""
    return [
        creation.zeros(s, dtype=g.dtype, device=g.device) if isinstance(s, tuple) else None
        for s in shapes
    ]


def _below(
    op: str, shape: Shape, p: object, dtype: DType, device: DeviceLike, generator: Generator | None
) -> Tensor:
    """Return whether uniform numbers are below `p`: true with probability p. A tensor of probabilities is
    checked on the device.
    """
    kind = dtype if dtype is float64 else float32
    if not isinstance(p, Tensor) or not numel(p._shape):
        return comparison.lt(_draw(shape, kind, device, generator), p)
    rule = f"{op}: Expected p_in >= 0 && p_in <= 1 to be true: expected all probabilities p to be in [0, 1]"
    check_range(p, 0, 1, rule)
    return _drawn_below(_draw(shape, kind, device, generator), p, rule)


@remembered
def _drawn_below(drawn: Tensor, p: Tensor, message: str) -> Tensor:
    """Whether numbers are below probabilities, which are checked."""
    # NaN is in no range.
    holds = comparison.logical_and(comparison.ge(p, 0), comparison.le(p, 1))
    return demand(comparison.lt(drawn, p), holds, message)


@composite(out="cast", drawn=True, vjp=lambda g, _out, *_: _no_slopes(g, g._shape))
def bernoulli(
    input: Tensor,
    p: float | None = None,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """1 with the probability that each element of `input` gives (or `p` for all), else 0.

    Probabilities in a tensor are checked on the device: the next read raises DeviceCheckError.
    """
    if isinstance(p, Tensor):
        raise TypeError(
            "bernoulli(): p must be a number. For a tensor of probabilities use bernoulli(p), or "
            "input.bernoulli_(p) in place"
        )
    if p is not None:
        _check_probability("bernoulli", p)
    elif input.dtype not in FLOATS:
        raise NotImplementedError(
            f'"bernoulli" not implemented for {input.dtype}: use input.float()'
        )
    check_mapped(input)
    source = input.detach() if p is None else p
    drawn = _below("bernoulli", input._shape, source, input.dtype, input.device, generator)
    return finish(cast_to(drawn, input.dtype), False, out, "bernoulli")


def _check_probability(op: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"{op} expects p to be in [0, 1], but got p={p}")


@composite(drawn=True)
def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Indices of the last dimension of `input` (weights, one or two dims), drawn in proportion to the weights.

    Without replacement by an exponential race (Efraimidis and Spirakis, 2006): the largest u ** (1 / weight) win.
    Reads one number from the device, to check the weights; weights that are not computed yet the device checks.
    """
    if input.dtype not in FLOATS:
        raise DTypeError(
            f"multinomial only supports floating-point dtypes for input, got: {input.dtype}. Use input.float()."
        )
    if out is not None and out.dtype is not int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {out.dtype}")
    if len(input._shape) not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    check_mapped(input)
    n = input._shape[-1]
    if not replacement and num_samples > n:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement: multinomial "
            f"of {num_samples} out of {input._shape[-1]}; pass replacement=True"
        )
    weights = input.detach()
    if weights.dtype not in (float32, float64):
        weights = cast_to(weights, float32)
    rows = movement.reshape(weights, (-1, n))
    count = rows._shape[0]
    # What is pending is not waited for: the device checks it.
    pending = count and (not reads.possible or not _is_checked(rows))
    u = _draw((count, num_samples if replacement else n), rows.dtype, rows.device, generator)
    result = _sampled(rows, u, num_samples, replacement, bool(pending))
    return finish(
        movement.reshape(result, (*input._shape[:-1], num_samples)), False, out, "multinomial"
    )


@remembered
def _sampled(rows: Tensor, u: Tensor, count: int, replacement: bool, checked: bool) -> Tensor:
    """Return `count` places of each row of weights, drawn with uniform numbers."""
    if replacement:
        sums = scan(rows, "sum", 1)
        total = slicing.narrow(sums, 1, rows._shape[1] - 1, 1)
        found = lookup._search(sums, u * total, True, int64)
        # A product that rounds up to the total would fall past the last weight: take the first index that reaches it.
        last = lookup._search(sums, total, False, int64)
        result = comparison.minimum(found, last)
    else:
        key = elementwise.log1p(-u) / rows
        key = pointwise.where(comparison.gt(rows, 0), key, -math.inf)
        result = ordering.topk(key, count, 1).indices
    if checked:
        for wrong, message in _wrong_weights(rows):
            result = demand(result, comparison.logical_not(wrong), message)
    return result


_NO_WEIGHTS = "probability tensor contains either `inf`, `nan` or element < 0"
_NO_SUM = "invalid multinomial distribution (sum of probabilities <= 0)"


def _wrong_weights(rows: Tensor) -> tuple[tuple[Tensor, str], ...]:
    """Return, for each rule that weights must keep, which rows (count, 1) break it, and what to say."""
    fits = comparison.logical_and(comparison.ge(rows, 0), comparison.isfinite(rows))
    fits = reduce_dims(fits, "all", (1,))
    # Of two rules that a row breaks the first one is named.
    empty = comparison.logical_and(fits, comparison.le(reduce_dims(rows, "sum", (1,)), 0))
    return (comparison.logical_not(fits), _NO_WEIGHTS), (empty, _NO_SUM)


def _is_checked(rows: Tensor) -> bool:
    """Raise RuntimeError for weights that are no distribution, where they are computed; return whether that was all
    there is to do. Another device is asked for one number, as PyTorch does; the CPU's are looked at, which another call
    that is like this one would not, so that the device checks them as well.
    """
    if rows.is_meta:
        return True
    known = at_hand_or_written(rows)
    if known is not None:
        # NaN is in no range. One number may stand for all.
        sums = known.reshape(rows._shape) if known.size == rows.numel() else known * rows._shape[1]
        wrong = [
            not 0 <= known.min() <= known.max() < math.inf,
            sums.sum(-1).min() <= 0,
        ]
    elif rows._storage.node.kind != "buffer":
        return False
    else:
        flags = [reduce_dims(w, "any", (0, 1)) for w, _ in _wrong_weights(rows)]
        bits = [cast_to(flag, int64) * 2**i for i, flag in enumerate(flags)]
        found = int(sum(bits[1:], bits[0]).item())
        wrong = [bool(found >> i & 1) for i in range(len(bits))]
    for broken, message in zip(wrong, (_NO_WEIGHTS, _NO_SUM), strict=True):
        if broken:
            raise RuntimeError(message)
    return known is None


# -- in place --------------------------------------------------------------------------------------


def _in_place(**fields: Any) -> Callable[[Callable[P, R]], Composite[P, R]]:
    """Declare a method that overwrites a tensor with numbers that it draws."""

    def declare(function: Callable[P, R]) -> Composite[P, R]:
        """Put the entry into the table."""
        name = function.__name__
        facts = {"example": Example(((4, 4),)), **fields}
        return composite(
            name=name, function_in=METHOD, torch=f"Tensor.{name}", drawn=True, **facts
        )(function)  # fmt: skip

    return declare


def _fill_in(x: Tensor, values: Tensor) -> Tensor:
    if mode.vmaps:
        _check_filled(x)
    return write(x, cast_to(values, x.dtype))


def _drawn_for(op: str, x: Tensor, generator: Generator | None, kind: str = "uniform") -> Tensor:
    """Return numbers to compute those of x from: of 16 bits there are too few different ones."""
    return _draw(x._shape, _floating(op, x.dtype).compute, x.device, generator, kind)


@_in_place()
def uniform_(
    input: Tensor,
    a: float = 0.0,
    b: float = 1.0,
    *,
    generator: Generator | None = None,
    **bounds: float,
) -> Tensor:
    """Overwrite with uniform numbers in [a, b) (PyTorch's names for them, from and to, are taken too)."""
    if input.dtype.is_complex:
        uniform_(pairs(input), a, b, generator=generator, **bounds)
        return input
    low, high = bounds.pop("from", a), bounds.pop("to", b)
    if bounds:
        raise TypeError(f"uniform_() got an unexpected keyword argument {next(iter(bounds))!r}")
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    dtype = _floating("uniform_", input.dtype)
    if high - low > finfo(dtype).max:
        raise RuntimeError(
            f"uniform_ expects to-from <= the largest {input.dtype.c_name}, but found to={high} and from={low} which "
            "result in to-from to exceed the limit"
        )
    u = _draw(input._shape, dtype, input.device, generator)
    return _fill_in(input, u * (high - low) + low)


@_in_place()
def normal_(
    input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Overwrite with normal numbers."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _fill_in(input, _drawn_for("normal_", input, generator, "normal") * std + mean)


@_in_place()
def bernoulli_(
    input: Tensor, p: float | Tensor = 0.5, *, generator: Generator | None = None
) -> Tensor:
    """Overwrite with 1 with probability p (a number, or a tensor of probabilities), else 0."""
    if not isinstance(p, Tensor):
        _check_probability("bernoulli_", p)
    else:
        check_mapped(p)
        _check_filled(input, p)
        p = p.detach()
    drawn = _below("bernoulli_", input._shape, p, input.dtype, input.device, generator)
    return _fill_in(input, drawn)


# Up to these numbers a type holds every integer.
_MANTISSA = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


@_in_place()
def random_(input: Tensor, *args: int, generator: Generator | None = None, **bounds: int) -> Tensor:
    """Overwrite with integers in [from, to): random_(), random_(to), random_(from, to).

    Without bounds, from 0 to the largest number of the type, or to 2 ** (mantissa bits) for floating-point types.
    """
    low = bounds.pop("from", args[0] if len(args) == 2 else 0)
    high = bounds.pop("to", args[-1] if args else None)
    if high is None:
        if input.dtype.kind == "float":
            high = 2 ** _MANTISSA[input.dtype.name] + 1
        else:
            high = integer_limits(input.dtype)[1] + 1
    return _fill_in(input, _integers(input._shape, low, high, input.dtype, input.device, generator))


@_in_place()
def exponential_(
    input: Tensor, lambd: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Overwrite with numbers of density lambd * exp(-lambd * x)."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    u = _drawn_for("exponential_", input, generator)
    # As PyTorch's, never 0.
    least = -(2.0 ** -_MANTISSA[u.dtype.name])
    return _fill_in(input, comparison.clamp_max(elementwise.log1p(-u), least) * (-1.0 / lambd))


@_in_place()
def log_normal_(
    input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Overwrite with numbers whose logarithm is normal."""
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    noise = _drawn_for("log_normal_", input, generator, "normal")
    return _fill_in(input, elementwise.exp(noise * std + mean))


@_in_place()
def cauchy_(
    input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Overwrite with numbers of the Cauchy distribution."""
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    u = _drawn_for("cauchy_", input, generator)
    return _fill_in(input, circular.tan((u - 0.5) * math.pi) * sigma + median)


@_in_place(refuses=BOOL, example=Example(((4, 4),), (0.3,)))
def geometric_(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with the number of trials of probability p up to the first success: 1, 2, ..."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    kind = float64 if input.dtype is float64 else float32
    u = _draw(input._shape, kind, input.device, generator)
    # u = 0 would give 0 trials.
    trials = comparison.clamp_min(elementwise.ceil(elementwise.log1p(-u) / math.log1p(-p)), 1)
    return _fill_in(input, trials)
