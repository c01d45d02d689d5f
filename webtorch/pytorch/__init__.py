"""Real PyTorch on webtorch's engine: `torch.device("webgpu")` and `torch.compile(backend="webgpu")`. Floor 6.

    import torch

    model.to("webgpu")
    fast = torch.compile(model, backend="webgpu")

`import torch` finds the device. Write `import webtorch.pytorch` as well where PyTorch drives a GPU of this machine
itself (CUDA, ROCm, XPU, MPS), or where its autoloading is switched off. Raises ImportError for a PyTorch that is too
old.

interrupt  Ctrl-C that cannot abort the process
guard      what PyTorch asks of the device, answered in machine code
hooks      exceptions of hooks in a backward pass, which cannot either
lent       PyTorch's kernels for views, called without Python
device     PyTorch storages that carry webtorch's, allocation, copies, views
random     random operators, from generators of either side; all others mean what `webtorch.aten` says
attention  scaled dot-product attention as one operator
grouped    products of groups of rows: experts
regions    torchvision's compiled operators
packers    bitsandbytes' operators
sparse     COO tensors, and compressed: CSR and CSC
wide       float64 and complex128, which the CPU engine computes
kernels    how a meaning becomes a PyTorch kernel
known      calls of known kinds: one look-up instead of the meaning
foreach    operations on lists of tensors
products   matmul and einsum whose gradient is recorded
own        kernels with a form of their own: memory, creation
compositions  operators that are written with others of PyTorch
jagged        dense tensors of nested ones, and the other way round
optimizer  fused optimizers, and Adam as users write it
autocast   what autocast does with operators
patches    what of PyTorch's own Python is replaced for the device
library    registers all of these
fallback   operators without a kernel: an error, or the CPU when the user asks for it
profiler   kernels as events of `torch.profiler`
graphs     what operators mean that only traced graphs contain
saved      what a compiled forward graph saves for its backward graph: one object
shader     shaders of the user's own
origin     what PyTorch's compiler found in a function, and why it compiled
values     what is known of the inputs and results of a compiled graph
geometry   how tensors lie in memory
symbols    sizes that are symbols
programs   the programs of a compiled graph: which one a call takes, its buffers, its results
explained  `explain`: what a compiled function is made of, and why
partition  compiled graphs with operators that no program can hold: programs, and calls between them
dynamo     `torch.compile`: forward and backward graphs as programs
"""

from __future__ import annotations

import importlib
from typing import Any

from webtorch_autoload import autoload, check_version

check_version()
autoload(asked=True)

__all__ = ["autoload", "explain"]


def __getattr__(name: str) -> Any:
    """Import `explain` when it is asked for: it takes PyTorch's compiler along."""
    if name != "explain":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    explained = importlib.import_module("webtorch.pytorch.explained")
    return explained.explain
