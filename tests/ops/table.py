"""What the generated tests of the op table share: inputs in every layout, the oracle, tolerances."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

import webtorch
from webtorch.ir.dtype import FLOATS, DType
from webtorch.ops.record import TABLE, Elementwise, Op

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "scalar", "empty", "mixed")
# Relative error that a result may have by its type; a wider one stands in the op's entry with its
# reason.
RTOL = {"float64": 1e-12, "float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
ATOL = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
_FAMILIES = {"elementwise", "reduce", "scan", "composite"}
# Written by hand elsewhere, because their inputs are not just numbers from an interval: the file
# that tests each.
ELSEWHERE = {
    "test_norm.py": """layer_norm rms_norm group_norm batch_norm instance_norm
        local_response_norm""",
    "test_loss.py": """nll_loss cross_entropy gaussian_nll_loss poisson_nll_loss kl_div ctc_loss
        margin_ranking_loss cosine_embedding_loss hinge_embedding_loss triplet_margin_loss
        soft_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
        triplet_margin_with_distance_loss""",
    "test_special.py": "bessel_j0 bessel_j1 bessel_y0 bessel_y1 airy_ai",
    "test_random.py": "bernoulli",
    "test_hash.py": "hash_tensor",
    "test_fake_quantize.py": "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
    "test_dropout.py": """dropout dropout1d dropout2d dropout3d alpha_dropout rrelu
        feature_alpha_dropout gumbel_softmax""",
    "test_resize.py": """interpolate upsample upsample_nearest upsample_bilinear affine_grid
        grid_sample""",
    "test_choice.py": """where masked_fill isclose prelu allclose equal torch_fill is_nonzero
        is_same_size sum_to_size type_as polygamma""",
    "test_complex.py": "complex polar view_as_real_copy view_as_complex_copy",
    "test_fourier.py": """fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2
        fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn
        fft_ihfftn fft_fftshift fft_ifftshift stft istft""",
}
_BY_HAND = {name for names in ELSEWHERE.values() for name in names.split()}


def tested() -> list[Op]:
    """Return the entries that the generated tests cover: all public ones whose inputs can be drawn
    from an interval.
    """
    return [
        op
        for op in TABLE.values()
        if op.family in _FAMILIES and op.function_in and op.torch and op.name not in _BY_HAND
    ]


def oracle(op: Op) -> Callable[..., Any]:
    """Return PyTorch's function of an entry."""
    found: Any = torch
    for part in op.torch.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def function(op: Op) -> Callable[..., Any]:
    """Return our function under the name that users type."""
    place = op.function_in[0]
    if place == "Tensor":
        return getattr(webtorch.Tensor, op.name)  # type: ignore[no-any-return]
    found: Any = webtorch
    for part in [] if place == "torch" else place.split("."):
        found = getattr(found, part)
    return getattr(found, op.name)  # type: ignore[no-any-return]


def tensor_count(op: Op) -> int:
    """Return how many tensors an entry takes."""
    if isinstance(op, Elementwise):
        return len(op.tensors)
    required = [
        p
        for p in inspect.signature(op.function).parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    return max(
        1,
        sum(1 for p in required if p.name not in ("dim", "normalized_shape", "num_groups", "dims")),
    )


def base_values(op: Op, shape: tuple[int, ...], dtype: DType, seed: int) -> torch.Tensor:
    """Return values of `shape` in the entry's domain, as the oracle's tensor of `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    low, high = op.domain
    wanted = getattr(torch, dtype.name)
    if dtype.kind == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.kind in ("int", "uint"):
        low, high = (
            (0 if dtype.kind == "uint" else math.ceil(max(low, -5))),
            math.floor(min(high, 5)) + 1,
        )
        if op.domain[0] > 0:
            low = max(low, 1)
        return torch.randint(low, max(high, low + 1), shape, generator=generator).to(wanted)
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return values.to(torch.float32).to(wanted)


def arrange(base: Any, layout: str) -> Any:
    """Show a (6, 10) tensor, ours or the oracle's, in a layout."""
    match layout:
        case "contiguous" | "mixed":
            return base
        case "transposed":
            return base.t()
        case "sliced":
            return base[1::2, 2:9:3]
        case "expanded":
            return base[:, :1].expand(6, 7)
        case "scalar":
            return base[2, 3]
        case _:
            return base[:0]


def inputs(
    op: Op, layout: str, dtype: DType, device: str, requires_grad: bool = False
) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the same inputs for the oracle and for us."""
    theirs, ours = [], []
    for i in range(tensor_count(op)):
        base = base_values(op, (6, 10), dtype, 17 * i + 3)
        mine = webtorch.tensor(base.tolist(), dtype=dtype, device=device)
        if requires_grad:
            base, mine = base.double().requires_grad_(), mine.requires_grad_()
        theirs.append(base)
        ours.append(mine)
    return theirs, ours


def shown(tensors: list[Any], layout: str) -> list[Any]:
    """Arrange inputs; "mixed" broadcasts a row, a column and the whole against each other."""
    if layout != "mixed":
        return [arrange(t, layout) for t in tensors]
    return [t if i == 0 else (t[:1] if i % 2 else t[:, :1]) for i, t in enumerate(tensors)]


def flat(result: Any) -> list[Any]:
    """Return the tensors of a result."""
    return (
        [r for part in result for r in flat(part)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def as_double(ours: Any) -> torch.Tensor:
    """Return our tensor as the oracle's float64 (or exact integer) tensor."""
    kind = (
        torch.float64
        if ours.dtype.kind == "float"
        else torch.bool
        if ours.dtype.kind == "bool"
        else torch.int64
    )
    return torch.tensor(ours.detach().tolist(), dtype=kind).reshape(tuple(ours.shape))


def compare(op: Op, ours: Any, expected: torch.Tensor, note: str, dtype: DType) -> None:
    """Assert that a result has the oracle's shape and values within the tolerance of `dtype`."""
    assert tuple(ours.shape) == tuple(expected.shape), (
        f"{note}: shape {tuple(ours.shape)}, expected {tuple(expected.shape)}"
    )
    actual = as_double(ours)
    if dtype.name in RTOL and expected.is_floating_point():
        rtol = max(RTOL[dtype.name], (op.rtol or 0.0) if dtype.name == "float32" else 0.0)
        scale = (
            float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 1.0
        )
        torch.testing.assert_close(
            actual,
            expected.double(),
            rtol=rtol,
            atol=ATOL[dtype.name] * max(1.0, min(scale, 100.0)),
            equal_nan=True,
            msg=lambda m: f"{note}: {m}",
        )
    else:
        torch.testing.assert_close(
            actual.double(),
            expected.double(),
            rtol=0,
            atol=0,
            equal_nan=True,
            msg=lambda m: f"{note}: {m}",
        )


def float_dtypes(op: Op) -> list[DType]:
    """Return the floating types an entry takes."""
    return [d for d in FLOATS if d in op.dtypes]
