"""Where PyTorch has `cond`."""

from webtorch.func.control_flow import cond as cond
