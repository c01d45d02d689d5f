"""Floor 5: `webtorch.compile` captures a function of tensors, a whole training step above all, as
one program.
"""

from webtorch.capture.compiled import OptimizedModule, compile
from webtorch.capture.dynamic import mark_dynamic
from webtorch.capture.step import CompiledFunction

__all__ = ["CompiledFunction", "OptimizedModule", "compile", "mark_dynamic"]
