"""A program as one HTML file: its steps, what they read and write, their kernels and memory. Floor
5.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from webtorch.capture.kernels import KernelText
from webtorch.capture.memory import MemoryPlan
from webtorch.ir.lines import source_text
from webtorch.ir.program import Copy, Program
from webtorch.show.theme import style

_PAGE = Path(__file__).with_name("viewer.html")


def page(
    title: str, device: str, program: Program, kernels: list[KernelText], memory: MemoryPlan
) -> str:
    """Return the page. It needs nothing else: no server, no network."""
    names = {h.buffer: h for h in memory.buffers}
    steps: list[dict[str, object]] = []
    for step in program.steps:
        if isinstance(step, Copy):
            steps.append(
                {
                    "name": "copy", "kernel": -1, "line": "", "short": "", "source": "",
                    "reads": [step.source], "writes": [step.target],
                }
            )  # fmt: skip
            continue
        routine = program.routines[step.routine]
        accesses = list(zip(step.buffers, routine.buffers, strict=True))
        file, _, number = step.line.rpartition(":")
        steps.append(
            {
                "name": routine.name,
                "kernel": step.routine,
                "line": step.line,
                "short": f"{Path(file).name}:{number}" if file else "",
                "source": source_text(step.line),
                "reads": [b for b, slot in accesses if slot.access != "write"],
                "writes": [b for b, slot in accesses if slot.access != "read"],
            }
        )
    owner = {b: b for b in names}
    for b, declared in enumerate(program.buffers):
        if declared.role == "output" and declared.alias is not None:
            owner[b] = declared.alias
    buffers = []
    for b, declared in enumerate(program.buffers):
        held = names.get(owner.get(b, b))
        buffers.append(
            {
                "name": held.name if held is not None else "",
                "role": declared.role,
                "dtype": declared.dtype.name,
                "elements": declared.elements,
                "nbytes": declared.elements * declared.dtype.itemsize,
            }
        )
    data = {
        "title": title,
        "device": device,
        "steps": steps,
        "buffers": buffers,
        "kernels": [{"text": k.text, "wgsl": k.wgsl, "steps": k.steps} for k in kernels],
        "memory": {
            "inputs": memory.inputs,
            "peak": memory.peak,
            "peakStep": memory.peak_step,
            "timeline": list(memory.timeline),
        },
    }
    # "</script>" must not end the element that holds the data.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    whole = _PAGE.read_text(encoding="utf-8").replace("{{theme}}", style())
    return whole.replace("{{title}}", html.escape(title)).replace("{{data}}", text)
