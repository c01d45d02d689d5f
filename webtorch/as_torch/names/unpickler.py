"""torch._weights_only_unpickler: which names files may hold."""

from __future__ import annotations

from webtorch.io import pytorch_file


def _get_allowed_globals() -> dict[str, object]:
    """Return what names in files stand for when only weights are loaded."""
    return pytorch_file.known_names()
