"""runtime/backends."""
