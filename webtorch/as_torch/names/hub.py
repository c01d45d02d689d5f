"""torch.hub: weights by address. Code of other people is not downloaded and run."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlparse as urlparse

from webtorch.io import checkpoint

_directory: list[str] = []
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")


def _get_torch_home() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def get_dir() -> str:
    """Return where files are kept: $TORCH_HOME/hub, or ~/.cache/torch/hub."""
    return _directory[0] if _directory else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set where files are kept."""
    _directory[:] = [os.path.expanduser(os.fspath(d))]


def download_url_to_file(
    url: str, dst: str, hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Download to a path; with `hash_prefix`, raise RuntimeError unless its SHA-256 begins so."""
    if urlparse(url).scheme not in ("http", "https"):
        raise ValueError(f"download_url_to_file: {url!r} is no http address")
    partial = f"{dst}.{os.getpid()}.partial"
    try:
        with urllib.request.urlopen(url) as source, open(partial, "wb") as target:
            shutil.copyfileobj(source, target)
        digest = hashlib.sha256(Path(partial).read_bytes()).hexdigest()
        if hash_prefix and not digest.startswith(hash_prefix):
            raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{digest}")')
        os.replace(partial, dst)
    finally:
        Path(partial).unlink(missing_ok=True)


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> Any:
    """Return what the file at `url` holds; it is kept, and downloaded once."""
    place = model_dir or os.path.join(get_dir(), "checkpoints")
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, file_name or os.path.basename(urlparse(url).path))
    if not os.path.exists(path):
        found = HASH_REGEX.search(os.path.basename(path)) if check_hash else None
        download_url_to_file(url, path, found[1] if found else None, progress)
    return checkpoint.load(path, map_location=map_location)


load_url = load_state_dict_from_url


def load(*args: object, **kwargs: object) -> NoReturn:
    """Raise: it would run downloaded code."""
    raise RuntimeError(
        "torch.hub.load: webtorch does not download and run code. Install the model's package, and load "
        "weights with torch.hub.load_state_dict_from_url"
    )


def __getattr__(name: str) -> Any:
    # PyTorch's module has the progress bar among its names; it is a package of its own.
    if name == "tqdm":
        return importlib.import_module("tqdm").tqdm
    raise AttributeError(f"module 'torch.hub' has no attribute {name!r}")
