"""Benchmarks: one script for each claim of speed, with PyTorch measured in the same run."""
