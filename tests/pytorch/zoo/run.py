"""Runs the families of models and writes docs/pytorch-models.md: `make models-torch`.

python -m tests.pytorch.zoo.run [--only GPT-2 ...] [--write]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch

from tests.pytorch.zoo import check
from tests.pytorch.zoo.families import FAMILIES, Case

CHECKS = ("forward", "training", "generate", "static cache")
_PAGE = Path(__file__).resolve().parents[3] / "docs" / "pytorch-models.md"


def run(case: Case, name: str, compiled: bool) -> str | None:
    """Return "" where a check passes, what is wrong where it does not, None where it has no meaning."""
    if name == "forward":
        return check.forward(case, compiled)
    if name == "training":
        return check.training(case, compiled)
    if case.prompt is None or (name == "static cache" and not case.static_cache):
        return None
    return check.generate(case, compiled, "static" if name == "static cache" else None)


def attempt(case: Case, name: str, compiled: bool, show: bool) -> str | None:
    """Run a check; an exception is a reason too."""
    torch._dynamo.reset()
    try:
        return run(case, name, compiled)
    except Exception as error:
        if show:
            traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="families (default: all)")
    parser.add_argument("--checks", nargs="*", default=list(CHECKS), choices=CHECKS)
    parser.add_argument("--mode", nargs="*", default=["eager", "compiled"])
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name}")
    parser.add_argument("--show", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, dict[tuple[str, str], str | None]] = {}
    failed = 0
    for name in options.only or FAMILIES:
        case = FAMILIES[name]()
        row = rows[name] = {}
        for mode in options.mode:
            for what in options.checks:
                start = time.perf_counter()
                found = attempt(case, what, mode == "compiled", options.show)
                row[mode, what] = found
                if found is None:
                    continue
                failed += bool(found)
                seconds = time.perf_counter() - start
                print(f"{name:20} {mode:9} {what:13} {seconds:6.1f} s  {found or 'ok'}", flush=True)
    if options.write:
        _PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(bool(failed))


def page(rows: dict[str, dict[tuple[str, str], str | None]]) -> str:
    """Return the table in Markdown."""
    import diffusers
    import transformers

    engine = os.environ.get("WEBTORCH_PYTORCH_ENGINE") or "webgpu"
    where = torch.webgpu.get_device_name()
    out = [
        "# Models on the PyTorch device",
        "",
        f"PyTorch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}, "
        f"diffusers {diffusers.__version__}; tiny configurations with random weights, compared with "
        "PyTorch on the CPU by `make models-torch`.",
        f"Run on: {where}"
        + (" (`WEBTORCH_PYTORCH_ENGINE=cpu`: webtorch's CPU backend)." if engine == "cpu" else "."),
        "",
        "- forward: every result within 1e-3 of its value and 1e-4, called twice.",
        "- training: two steps; losses within 1e-4, each parameter's gradient within 1e-3 of its norm.",
        "- generate: the same tokens by greedy search with a dynamic cache; sampling (top-k, top-p, "
        "temperature) gives one seed's tokens again. static cache: the same with "
        '`cache_implementation="static"`.',
        "",
        "| model | "
        + " | ".join(f"{m}: {c}" for m in ("eager", "compiled") for c in CHECKS)
        + " |",
        "|---|" + "---|" * (2 * len(CHECKS)),
    ]
    reasons: list[str] = []
    for name, row in rows.items():
        cells = []
        for mode in ("eager", "compiled"):
            for what in CHECKS:
                found = row.get((mode, what))
                cells.append("" if found is None else "no" if found else "yes")
                if found:
                    reasons.append(f"- {name}, {mode}, {what}: `{found[:300]}`")
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    out += ["", "An empty field has no meaning for the model (no `generate`, or no static cache)."]
    if reasons:
        out += ["", "## What does not run, and why", "", *reasons]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    main()
