"""Where PyTorch has `associative_scan`."""

from webtorch.func.associative_scan import associative_scan as associative_scan
