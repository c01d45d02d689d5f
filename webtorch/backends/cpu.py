"""What the processor offers. Floor 5."""

from webtorch.tensors.threads import vectors


def get_cpu_capability() -> str:
    """Return the vectors that kernels are compiled for: "AVX512", "AVX2", or "DEFAULT" for others and without LLVM."""
    return vectors()
