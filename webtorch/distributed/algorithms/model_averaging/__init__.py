"""Means of parameters over processes, once in some steps. Floor 5."""
