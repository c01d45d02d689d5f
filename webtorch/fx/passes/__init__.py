"""Passes over graphs: shapes of values, parts, pictures."""
