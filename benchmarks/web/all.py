"""Exported pages against TensorFlow.js, ONNX Runtime Web and jax-js, on one adapter in headless Chromium.

    cd benchmarks/web && npm install
    python -m benchmarks.web.all [--quick] [--out FILE]
    python -m benchmarks.web.all --device cpu

With --device cpu all of them compute in WebAssembly, on as many threads as there are cores.

All of them compute the same networks from the same weights; the first losses are compared. Also: the first step
of a page, and our native run on the same software adapter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import webtorch as torch
from benchmarks.web import models, native
from webtorch.web.browsers import report

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
PAGE = '<!doctype html><meta charset="utf-8"><title>benchmark</title><script type="module" src="bench.js"></script>'
FIRST = """
const post = (value) => fetch("report", { method: "POST", body: JSON.stringify(value) });
const opened = performance.timeOrigin;
const { load } = await import("./runtime.js");
const m = await load("./", OPTIONS);
const ready = performance.timeOrigin + performance.now() - opened;
const inputs = {};
for (const a of m.functions.train.arguments) {
  const data = new (a.dtype === "int64" ? Int32Array : Float32Array)(a.shape.reduce((n, s) => n * s, 1));
  inputs[a.name] = { data, shape: a.shape };
}
await m.train(inputs);
await post({ device: m.deviceName, ready, first: performance.timeOrigin + performance.now() - opened });
"""
PEERS = {"tfjs": "TensorFlow.js", "onnxruntime": "ONNX Runtime Web", "jax": "jax-js"}
REACH = 0.8


def prepare(folder: Path) -> None:
    """Write the exports, the ONNX files and what the page needs."""
    for name in ("digits", "gpt"):
        model, train, (x, y) = models.made(name)
        # In training mode, as every peer computes it: batch norm has the statistics of the batch.
        model.train()

        def infer(x: Any, model: Any = model) -> Any:
            with torch.no_grad():
                return model(x)

        torch.export(
            {"train": train, "infer": infer}, folder / name, {"train": (x, y), "infer": (x,)},
            state={"model": model},
        )  # fmt: skip
        model.eval()
        torch.onnx.export(model, (x,), str(folder / f"{name}.onnx"))
        model.train()
    if MODULES.exists():
        (folder / "node_modules").symlink_to(MODULES)


def main(argv: list[str] | None = None) -> int:
    """Run, print the table, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web.all", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short turn each")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--device", choices=("webgpu", "cpu"), default="webgpu")
    parser.add_argument("--models", nargs="+", default=["digits", "gpt"])
    parser.add_argument("--libraries", nargs="+", default=["webtorch", *PEERS])
    parser.add_argument(
        "--native",
        action="store_true",
        help="also time our native run on Chromium's software adapter",
    )
    given = parser.parse_args(argv)
    if not MODULES.exists():
        sys.stdout.write(f"the peers are not installed: cd {HERE} && npm install\n")
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        settings = {
            "models": given.models, "libraries": given.libraries, "lr": models.LR, "heads": models.HEADS,
            "layers": models.LAYERS, "vocabulary": models.VOCABULARY, "device": given.device,
            "rounds": 1 if given.quick else 3, "seconds": 0.2 if given.quick else 1.0,
        }  # fmt: skip
        first = {}
        for device in ("auto", "webgpu"):
            script = FIRST.replace("OPTIONS", json.dumps({"device": device}))
            pages = {"first.html": PAGE.replace("bench", "first"), "first.js": script}
            first[device] = took = report(folder / "digits", "first.html", pages=pages)
            say(
                f"digits page, device {device}: ready after {took['ready'] / 1e3:.2f} s, "
                f"first step after {took['first'] / 1e3:.2f} s ({took['device']})\n"
            )
        pages = {
            "index.html": PAGE, "bench.js": (HERE / "bench.js").read_text(), "settings.json": json.dumps(settings),
        }  # fmt: skip
        found = report(
            folder, "index.html", pages=pages, progress=lambda p: sys.stderr.write(f"{p}\n")
        )
    found["first"] = first
    for what, why in found["problems"].items():
        say(f"{what}: not compared: {why}\n")
    for what, losses in found["firstLosses"].items():
        say(f"{what}: losses {', '.join(f'{x:.5f}' for x in losses) or '-'}\n")
    say(
        "| model | work | webtorch | " + " | ".join(f"{p} | ratio" for p in PEERS.values()) + " |\n"
    )
    for row in found["rows"]:
        times = {k: (min(v), statistics.median(v)) for k, v in row["times"].items()}
        ours = times.get("webtorch")
        cells = [row["name"], row["kind"], f"{ours[0]:.1f} ms" if ours else "-"]
        for peer in PEERS:
            theirs = times.get(peer)
            cells += (
                [f"{theirs[0]:.1f} ms", f"{ours[0] / theirs[0]:.2f}"]
                if theirs and ours
                else ["-", "-"]
            )
        say("| " + " | ".join(cells) + " |\n")
    if given.native:
        found["native"] = native.measured(given.models, 0.2 if given.quick else 1.0)
        say(f"our native run on {found['native'].pop('device')}:\n")
        # The fastest call of each: the two do not run at the same time.
        ours = {(r["name"], r["kind"]): r["best"]["webtorch"] for r in found["rows"]}
        for name, kinds in found["native"].items():
            for kind, best in kinds.items():
                ratio = ours[name, kind] / best
                say(f"  {name} {kind}: {best:.1f} ms, the browser takes {ratio:.2f} of it\n")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
