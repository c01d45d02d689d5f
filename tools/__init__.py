"""Tools for developers of webtorch; run from the repository root with `python -m tools.NAME`."""
