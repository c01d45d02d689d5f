"""What the processor offers. Floor 5."""

from webtorch.runtime.backends.cpu import jit


def get_cpu_capability() -> str:
    """Return the vectors that kernels are compiled for: "AVX512", "AVX2", or "DEFAULT" for others and without LLVM."""
    features = jit.processor()[0].split(",") if jit.available() else []
    if "+avx512f" in features:
        return "AVX512"
    return "AVX2" if "+avx2" in features else "DEFAULT"
