"""What PyTorch's aten operators mean, in calls of the op table. Floor 6; of PyTorch, `random` alone knows generators.

Importing this declares them all, family by family; `table` says how. `load` adds what the op table knows by itself.
"""

from webtorch.pytorch.aten import (
    algebra,
    elementwise,
    gradients,
    images,
    indexing,
    layers,
    losses,
    norms,
    random,
    reductions,
)
