"""Special functions: gamma functions, the inverse error function, Bessel functions, entropies. May import floors 0 and 1."""
