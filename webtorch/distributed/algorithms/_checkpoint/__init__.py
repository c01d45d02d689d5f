"""Modules whose activations are computed again or put aside. Floor 8."""
