"""Passes over graphs: shapes of values."""
