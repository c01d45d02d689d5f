"""torch._C: what packages call of PyTorch's C++ core without needing it."""


def _log_api_usage_once(event: str) -> None:
    """Do nothing: nothing is logged."""


def _get_tracing_state() -> None:
    """Return None: nothing is ever traced."""
