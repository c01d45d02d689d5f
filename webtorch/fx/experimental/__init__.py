"""Changes of modules by their graphs."""
