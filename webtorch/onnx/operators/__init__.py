"""What each ONNX operation is in webtorch: one function each, by family. Floor 6; needs NumPy.

Importing this declares them all; `table` says how.
"""

from webtorch.onnx.operators import (
    elementwise,
    images,
    indexing,
    integers,
    losses,
    norms,
    recurrent,
    reductions,
    shapes,
    windows,
)
