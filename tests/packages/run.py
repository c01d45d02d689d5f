"""Packages written for PyTorch, run with webtorch in its place: `make packages` writes docs/packages.md.

    python -m tests.packages.run [PROGRAM ...]

Each program in programs/ runs twice, with PyTorch and by `webtorch run`, from the same weights; what
they print is compared. A package that is not installed is left out and said to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
PAGE = ROOT / "docs" / "packages.md"
# Program -> (packages on the index, what of them runs, what is known not to and why).
WHAT: dict[str, tuple[tuple[str, ...], str, str]] = {
    "einops_some": (
        ("einops",),
        "`rearrange`, `reduce`, `repeat`, `pack`, `einsum`, layers",
        "",
    ),
    "transformers_gpt2": (("transformers",), "GPT-2: three steps of AdamW, `generate`", ""),
    "transformers_llama": (
        ("transformers",),
        "Llama: three steps, `generate` greedily, with beams, sampled",
        "",
    ),
    "transformers_bert": (("transformers",), "BERT: masked language model, classifier", ""),
    "x_transformers_decoder": (
        ("x-transformers",),
        "rotary decoder with RMSNorm and GLU, `AutoregressiveWrapper`",
        "",
    ),
    "timm_models": (
        ("timm",),
        "`resnet18`, `vit_tiny`, `mobilenetv3_small`, `convnext_atto`, features by `torch.fx`",
        "",
    ),
    "torchvision_models": (
        ("torchvision",),
        "`resnet18`, `mobilenet_v2`, `VisionTransformer`, features by `torch.fx`, transforms v2, `make_grid`",
        "of `torchvision.ops`: rotated boxes, quantised ones; files of images",
    ),
    "geometric_graphs": (
        ("torch-geometric",),
        "`GCNConv`, `GATConv`, `SAGEConv`, `GINConv`, pooling, `DataLoader` of graphs",
        "its optional C++ packages (torch-scatter, torch-sparse)",
    ),
    "torchmetrics_some": (("torchmetrics",), "14 metrics of classes, numbers and images", ""),
    "smp_unet": (("segmentation-models-pytorch",), "`Unet`, `FPN`, Dice loss", ""),
    "kornia_some": (
        ("kornia",),
        "filters, rotation, colour spaces, SSIM, morphology, gradients",
        "",
    ),
    "pytorch_optimizer_some": (("pytorch-optimizer",), "30 optimizers, four steps each", ""),
    "lion": (("lion-pytorch",), "Lion", ""),
    "vector_quantize": (
        ("vector-quantize-pytorch",),
        "`VectorQuantize`, `ResidualVQ`, `FSQ`",
        "",
    ),
    "denoising_diffusion": (("denoising-diffusion-pytorch",), "U-Net, three steps of training", ""),
    "accelerate_loop": (
        ("accelerate",),
        "`Accelerator.prepare`, `backward`, `accumulate`, clipping",
        "several processes under our own name (on PyTorch's device they work: [distributed.md](distributed.md))",
    ),
    "torchdiffeq_ode": (("torchdiffeq",), "four solvers, `odeint_adjoint`", ""),
    "geoopt_manifolds": (
        ("geoopt",),
        "`PoincareBall`, `Stiefel`, Riemannian Adam and SGD: tensors of subclasses",
        "",
    ),
    "gpytorch_regression": (("gpytorch", "linear-operator"), "exact GP: six steps, prediction", ""),
    "metric_learning": (("pytorch-metric-learning",), "six losses, a miner", ""),
    "pyro_svi": (("pyro-ppl",), "SVI, conditioned traces", ""),
    "ema_rotary": (("ema-pytorch", "rotary-embedding-torch"), "`EMA`, `RotaryEmbedding`", ""),
}
TOLERANCE = 1e-5
# Where rounding is amplified: batch norm over a few values, and optimizers that divide by the difference
# of nearly equal numbers.
WIDER = {"torchvision_models": 2e-4, "timm_models": 2e-4, "smp_unet": 2e-4, "pytorch_optimizer_some": 2e-4}  # fmt: skip


def results(text: str) -> dict[str, Any]:
    """Return what a program reported."""
    for line in text.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    raise AssertionError(f"the program reported nothing:\n{text}")


def differences(found: Any, wanted: Any, tolerance: float, at: str = "") -> list[str]:
    """Return where two reports differ by more than a tolerance, relative to numbers above 1."""
    if isinstance(wanted, dict):
        keys = [] if wanted.keys() == found.keys() else [f"{at}: {sorted(found)}"]
        return keys + [
            d for k in wanted if k in found for d in differences(found[k], wanted[k], tolerance, k)
        ]
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return [f"{at}: {found} is not {wanted}"]
        pairs = zip(found, wanted, strict=True)
        return [d for a, b in pairs for d in differences(a, b, tolerance, at)]
    if isinstance(wanted, int | float) and isinstance(found, int | float):
        if abs(found - wanted) <= tolerance * max(1.0, abs(wanted)):
            return []
    elif found == wanted:
        return []
    return [f"{at}: {found} is not {wanted}"]


def call(program: str, weights: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run a program by `python ...`."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {
        **os.environ, "PYTHONPATH": path, "WEBTORCH_DEVICE": "cpu", "HF_HUB_OFFLINE": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }  # fmt: skip
    command = [sys.executable, *before, str(PROGRAMS / f"{program}.py"), weights]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def outcome(program: str) -> str:
    """Run a program twice and return what came of it, "" if all agrees."""
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder) / "weights")
        wanted = call(program, weights, "-m", "tests.packages.pytorch")
        if wanted.returncode:
            return f"PyTorch itself: {wanted.stderr.strip().splitlines()[-1]}"
        found = call(program, weights, "-m", "webtorch", "run")
    if found.returncode:
        return found.stderr.strip().splitlines()[-1]
    tolerance = WIDER.get(program, TOLERANCE)
    return "; ".join(differences(results(found.stdout), results(wanted.stdout), tolerance)[:3])


def main() -> None:
    """Run the programs named, or all, and write the page where all were run."""
    chosen = sys.argv[1:] or list(WHAT)
    rows = []
    for program in chosen:
        packages, what, lacking = WHAT[program]
        try:
            named = ", ".join(f"{p} {version(p)}" for p in packages)
        except PackageNotFoundError as error:
            print(f"{program}: {error}")
            continue
        said = outcome(program)
        print(f"{program}: {said or 'agrees'}", flush=True)
        rows.append(
            f"| {named} | {what} | {said.replace('|', '/') or 'agrees'} | {lacking or '-'} |"
        )
    if len(chosen) == len(WHAT):
        PAGE.write_text(TOP + "\n".join(rows) + "\n", encoding="utf-8")


TOP = """# Packages written for PyTorch

What these do with webtorch in PyTorch's place, unchanged (`webtorch run`). Each program of
[tests/packages/programs](../tests/packages/programs) runs with PyTorch and with webtorch from the same
weights, and losses, outputs and generated tokens are compared, to 1e-5 (2e-4 where batch norm over a
few values amplifies rounding). Written by `make packages`.

| package | what is run | compared with PyTorch | what does not run |
|---|---|---|---|
"""


if __name__ == "__main__":
    main()
