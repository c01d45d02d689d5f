"""`make numerics`: docs/numerics.md and its pictures, from the CPU and the software adapters here.

Each device is measured in a process of its own; a Vulkan driver is chosen when a process starts.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.numerics.bounds import EXCEPTIONS

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "numerics.md"
SHEETS = ROOT / "docs" / "numerics"
COUNT = 4000


def devices() -> dict[str, tuple[str, dict[str, str]]]:
    """Return what can be measured here: title -> (device, variables of its process)."""
    found: dict[str, tuple[str, dict[str, str]]] = {"CPU": ("cpu", {})}
    drivers = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json"))
    if drivers:
        found["lavapipe"] = ("webgpu", {"VK_ICD_FILENAMES": str(drivers[0])})
    for place in ("/usr/lib/chromium", "/usr/lib/chromium-browser"):
        manifest = Path(place) / "vk_swiftshader_icd.json"
        if manifest.is_file():
            variables = {"VK_ICD_FILENAMES": str(manifest), "WEBTORCH_WEBGPU": "dawn"}
            found["SwiftShader"] = ("webgpu", variables)
            break
    return found


def _measure_in_process(device: str, variables: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.numerics.run", "--device", device],
        cwd=ROOT, env={**os.environ, **variables}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def _show(x: float) -> str:
    if math.isinf(x):
        return "inf"
    return f"{x:.2f}" if x < 100 else f"{x:.1e}"


def _point(at: Any) -> str:
    return ", ".join(f"{v:.6g}" for v in at)


def report(found: dict[str, dict[str, Any]]) -> str:
    """Return the text of docs/numerics.md."""
    titles = list(found)
    names = list(found[titles[0]])
    lines = [
        "# Numerics of the elementwise operations",
        "",
        "Written by `make numerics`. The largest error in units of float32's last place, over the domain that each",
        "operation is tested on, against PyTorch in float64 on the same inputs; beside it PyTorch's own float32.",
        "At 26 special points (zeros, subnormal, huge, infinite, NaN; all pairs of them for two inputs) the result is",
        "compared with PyTorch's float32 by kind: NaN, an infinity, zero, or a number. Adapters may flush subnormal",
        "numbers to zero, so below 2**-126 the unit is that number. `tests/numerics` fails where an error grows.",
        "",
        f"| operation | {' | '.join(titles)} | PyTorch | worst at | other kinds at | |",
        f"|---|{'---:|' * (len(titles) + 1)}---|---:|---|",
    ]
    for name in names:
        rows = [found[t].get(name) for t in titles]
        cells = ["-" if r is None else _show(r["ulp"]) for r in rows]
        first = rows[0]
        differing = "/".join("-" if r is None else str(len(r["special"])) for r in rows)
        reason = EXCEPTIONS[name].reason if name in EXCEPTIONS else ""
        cells += [_show(first["torch_ulp"]), _point(first["at"]), differing, reason]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Pictures",
        "",
        "Each operation (black) and its gradient (orange) over its domain.",
    ]
    lines += [f"\n![{sheet.stem}](numerics/{sheet.name})" for sheet in sorted(SHEETS.glob("*.svg"))]
    return "\n".join(lines) + "\n"


def _path(xs: Any, ys: Any, box: tuple[float, float, float, float], limits: Any) -> str:
    left, top, width, height = box
    low, high, bottom, roof = limits
    parts, pen = [], "M"
    for x, y in zip(xs, ys, strict=True):
        if not math.isfinite(y) or not bottom <= y <= roof:
            pen = "M"
            continue
        px = left + (x - low) / (high - low or 1) * width
        py = top + (roof - y) / (roof - bottom or 1) * height
        parts.append(f"{pen}{px:.1f} {py:.1f}")
        pen = "L"
    return "".join(parts)


def pictures() -> None:
    """Write a sheet for each file of the table, with a small plot of each operation of one number."""
    import webtorch
    from tests.numerics.measure import entries, numbers
    from tests.ops.table import function

    SHEETS.mkdir(exist_ok=True)
    for old in SHEETS.glob("*.svg"):
        old.unlink()
    groups: dict[str, list[str]] = {}
    for op in entries():
        if len(op.tensors) != 1:
            continue
        args, kwargs = numbers(op)
        low, high = op.domain
        x = webtorch.linspace(low, high, 97, device="cpu").requires_grad_(op.differentiable)
        y = function(op)(x, *args, **kwargs)
        slope = None
        if op.differentiable and y.requires_grad:
            (g,) = webtorch.autograd.grad(y.sum(), x)
            slope = g.tolist()
        xs, ys = x.tolist(), y.tolist()
        finite = [v for v in ys if math.isfinite(v)] or [0.0]
        bottom, roof = np.percentile(finite, 2), np.percentile(finite, 98)
        margin = (roof - bottom) * 0.15 or 1.0
        limits = (low, high, bottom - margin, roof + margin)
        file = op.expr.__module__.rpartition(".")[2]
        drawn = groups.setdefault(file, [])
        column, row = len(drawn) % 6, len(drawn) // 6
        left, top = column * 130 + 5, row * 105 + 18
        box = (left, top, 120.0, 80.0)
        text = [f'<text x="{left}" y="{top - 5}">{op.name}</text>']
        text.append(f'<rect x="{left}" y="{top}" width="120" height="80"/>')
        if slope is not None:
            text.append(f'<path class="g" d="{_path(xs, slope, box, limits)}"/>')
        text.append(f'<path d="{_path(xs, ys, box, limits)}"/>')
        drawn.append("".join(text))
    for file, drawn in groups.items():
        width, height = 6 * 130 + 5, -(-len(drawn) // 6) * 105 + 5
        style = (
            "text{font:11px sans-serif}rect{fill:#fff;stroke:#bbb}"
            "path{fill:none;stroke:#111;stroke-width:1.2}.g{stroke:#d70;stroke-width:1}"
        )
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
            f'<style>{style}</style><rect width="{width}" height="{height}" style="stroke:none"/>'
            + "\n".join(drawn)
            + "</svg>\n"
        )
        (SHEETS / f"{file}.svg").write_text(svg)


def main(args: list[str]) -> int:
    """Measure all devices and write the report; with `--device`, measure one and print JSON."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if args[:1] == ["--device"]:
        from tests.numerics.measure import measured

        found = {
            m.name: {"ulp": m.ulp, "at": m.at, "torch_ulp": m.torch_ulp, "special": m.special}
            for m in measured(args[1], COUNT)
        }
        json.dump(found, sys.stdout)
        return 0
    pictures()
    found = {title: _measure_in_process(*how) for title, how in devices().items()}
    REPORT.write_text(report(found))
    print(f"{REPORT} and {len(list(SHEETS.glob('*.svg')))} sheets of pictures")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
