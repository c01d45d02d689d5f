"""Packages of other people, written for PyTorch, under `webtorch run`."""
