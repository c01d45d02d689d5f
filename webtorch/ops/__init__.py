"""Floor 1: the op table. An operation is declared once, here; functions, methods, kernels, gradients and tests follow."""
