"""What the processor offers: not asked here. Floor 5."""


def get_cpu_capability() -> str:
    """Return "DEFAULT": kernels are compiled for the processor at hand, whatever it offers."""
    return "DEFAULT"
