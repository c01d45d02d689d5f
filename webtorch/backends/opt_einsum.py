"""opt_einsum, which is not used here. Floor 5."""

enabled = False
strategy = None


def is_available() -> bool:
    """Return False."""
    return False
