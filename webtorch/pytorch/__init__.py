"""Real PyTorch on webtorch's engine: `torch.device("webgpu")` and `torch.compile(backend="webgpu")`. Floor 6."""
