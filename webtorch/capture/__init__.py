"""Floor 5: `webtorch.compile` captures a function of tensors, a whole training step above all, as
one program.
"""

from webtorch.capture.dynamic import mark_dynamic
from webtorch.capture.step import CompiledFunction, compile

__all__ = ["CompiledFunction", "compile", "mark_dynamic"]
