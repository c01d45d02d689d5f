"""webtorch: PyTorch wherever WebGPU runs."""
