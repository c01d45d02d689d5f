"""Our native steps on the software adapter of the browser: `python -m benchmarks.web.native digits gpt`.

Chromium's package has SwiftShader's Vulkan driver beside the program; it is named to the Vulkan loader. The engine is
wgpu (WEBTORCH_WEBGPU takes another).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import webtorch as torch
from benchmarks.web import models
from webtorch.runtime.backends import get_backend
from webtorch.web.browsers import find

ROUNDS = 3


def driver() -> Path | None:
    """Return the description of Chromium's own Vulkan driver, or None where it is not installed."""
    program = find("chromium")
    folders = [Path(program).resolve().parent] if program else []
    for folder in (*folders, Path("/usr/lib/chromium"), Path("/usr/lib/chromium-browser")):
        if (folder / "vk_swiftshader_icd.json").exists():
            return folder / "vk_swiftshader_icd.json"
    return None


def measured(names: list[str], seconds: float) -> dict[str, Any]:
    """Return the device's name, and by model and work the fastest call in ms, timed in a process of its own."""
    found = driver()
    if found is None:
        raise FileNotFoundError("Chromium's SwiftShader (vk_swiftshader_icd.json) was not found")
    env = {**os.environ, "VK_ICD_FILENAMES": str(found), "VK_DRIVER_FILES": str(found)}
    command = [sys.executable, "-m", __name__, *names, str(seconds)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def without_gradients(model: Any) -> Any:
    """Return the function that an exported page has as `infer`."""

    def infer(x: Any) -> Any:
        with torch.no_grad():
            return model(x)

    return infer


def main() -> None:
    """Time the models on the first WebGPU device and print JSON."""
    *names, seconds = sys.argv[1:]
    torch.set_default_device("webgpu")
    out: dict[str, Any] = {"device": get_backend("webgpu").description()}
    for name in names:
        model, train, (x, y) = models.made(name)
        infer = torch.compile(without_gradients(model))
        step = torch.compile(train)
        work = {
            "infer": lambda f=infer, x=x: f(x),
            "train": lambda f=step, x=x, y=y: f(x, y)["loss"],
        }
        for run in work.values():
            for _ in range(3):
                run().tolist()
        # Turn by turn, as the page does it.
        best = dict.fromkeys(work, float("inf"))
        for _ in range(ROUNDS):
            for kind, run in work.items():
                end = time.perf_counter() + float(seconds)
                while time.perf_counter() < end:
                    before = time.perf_counter()
                    run().tolist()
                    best[kind] = min(best[kind], 1e3 * (time.perf_counter() - before))
        out[name] = best
    print(json.dumps(out))


if __name__ == "__main__":
    main()
