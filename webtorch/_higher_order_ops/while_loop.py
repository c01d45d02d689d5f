"""Where PyTorch has `while_loop`."""

from webtorch.func.control_flow import while_loop as while_loop
