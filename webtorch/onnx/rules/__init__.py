"""How recorded calls are written where ONNX has a node for them, by family. Floor 6.

A rule gets the arguments of the call as the user gave them, with values in place of tensors. What
has no rule is written with its parts. Importing this declares them all; `writer` says how.
"""

from webtorch.onnx.rules import (
    elementwise,
    images,
    indexing,
    movement,
    norms,
    primitives,
    products,
    recurrent,
    reductions,
)
