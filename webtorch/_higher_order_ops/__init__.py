"""The names of `torch._higher_order_ops` that programs use. May import floors 0 to 5."""

# From the modules of these names, so that a later import of them does not take the functions' place.
from webtorch._higher_order_ops.associative_scan import associative_scan
from webtorch._higher_order_ops.cond import cond
from webtorch._higher_order_ops.while_loop import while_loop

__all__ = ["associative_scan", "cond", "while_loop"]
