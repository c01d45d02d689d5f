"""What PyTorch's aten operators mean, in calls of the op table: `torch.ops.aten`, and the kernels of PyTorch's device.
Floor 6; imports the engine, not PyTorch. Random operators, which know PyTorch's generators, stand with the device.

Importing this declares them all, family by family; `table` says how. `load` adds what the op table knows by itself.
"""

from webtorch.aten import (
    algebra,
    elementwise,
    gradients,
    images,
    indexing,
    layers,
    losses,
    norms,
    packed,
    reductions,
)
