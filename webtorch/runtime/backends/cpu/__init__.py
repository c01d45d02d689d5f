"""runtime/backends/cpu."""
