"""torch.hub: weights by address, and models of repositories that have a hubconf.py."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse as urlparse

from webtorch.io import checkpoint

_directory: builtins.list[str] = []
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
MODULE_HUBCONF = "hubconf.py"
VAR_DEPENDENCY = "dependencies"
# Whose repositories are not asked about.
_TRUSTED_REPO_OWNERS = ("facebookresearch", "facebookincubator", "pytorch", "fairinternal")


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


def load(
    repo_or_dir: str,
    model: str,
    *args: object,
    source: str = "github",
    trust_repo: bool | str | None = "check",
    force_reload: bool = False,
    verbose: bool = True,
    skip_validation: bool = False,
    **kwargs: object,
) -> object:
    """Call an entry of a repository's hubconf.py, "owner/name[:ref]" of GitHub, or a folder with `source="local"`.

    Code of a repository of others runs only after the user has said that it is trusted.
    """
    if source.lower() not in ("github", "local"):
        raise ValueError(f'Unknown source: "{source.lower()}". Allowed values: "github" | "local".')
    if source.lower() == "github":
        repo_or_dir = _get_cache_or_reload(
            repo_or_dir, force_reload, trust_repo, verbose, skip_validation
        )
    return _load_local(repo_or_dir, model, *args, **kwargs)


def list(
    github: str,
    force_reload: bool = False,
    skip_validation: bool = False,
    trust_repo: bool | str | None = "check",
    verbose: bool = True,
) -> builtins.list[str]:
    """Return the names of a repository's entries."""
    folder = _get_cache_or_reload(github, force_reload, trust_repo, verbose, skip_validation)
    with _hubconf(folder) as module:
        return [
            name
            for name in dir(module)
            if callable(getattr(module, name)) and not name.startswith("_")
        ]


def help(
    github: str,
    model: str,
    force_reload: bool = False,
    skip_validation: bool = False,
    trust_repo: bool | str | None = "check",
) -> str | None:
    """Return the docstring of a repository's entry."""
    folder = _get_cache_or_reload(github, force_reload, trust_repo, True, skip_validation)
    with _hubconf(folder) as module:
        return _load_entry_from_hubconf(module, model).__doc__


def _load_local(hubconf_dir: str, model: str, *args: object, **kwargs: object) -> object:
    with _hubconf(hubconf_dir) as module:
        return _load_entry_from_hubconf(module, model)(*args, **kwargs)


@contextlib.contextmanager
def _hubconf(folder: str | os.PathLike[str]) -> Iterator[ModuleType]:
    """Give the module hubconf.py of a folder, which may import what lies beside it meanwhile."""
    place = os.fspath(folder)
    sys.path.insert(0, place)
    try:
        spec = importlib.util.spec_from_file_location(
            MODULE_HUBCONF, os.path.join(place, MODULE_HUBCONF)
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(place)


def _load_entry_from_hubconf(module: ModuleType, model: str) -> Callable[..., object]:
    """Return an entry, after a look at whether the packages that the file names are installed."""
    if not isinstance(model, str):
        raise ValueError("Invalid input: model should be a string of function name")
    wanted = getattr(module, VAR_DEPENDENCY, None) or ()
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}")
    entry = getattr(module, model, None)
    if not callable(entry):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return entry


def _parse_repo_info(github: str) -> tuple[str, str, str]:
    """Return owner, name and branch or tag of "owner/name[:ref]"; the default branch is looked up."""
    repo, _, ref = github.partition(":")
    owner, name = repo.split("/")
    if ref:
        return owner, name, ref
    try:
        with urllib.request.urlopen(f"https://github.com/{owner}/{name}/tree/main/"):
            return owner, name, "main"
    except HTTPError as error:
        if error.code != 404:
            raise
        return owner, name, "master"
    except URLError as error:
        for kept in ("main", "master"):
            if os.path.exists(os.path.join(get_dir(), f"{owner}_{name}_{kept}")):
                return owner, name, kept
        raise RuntimeError(
            "It looks like there is no internet connection and the repo could not be found in the cache "
            f"({get_dir()})"
        ) from error


def _get_cache_or_reload(
    github: str,
    force_reload: bool,
    trust_repo: bool | str | None,
    verbose: bool = True,
    skip_validation: bool = False,
) -> str:
    """Return the folder of a repository, downloaded if it is not kept and the user trusts it."""
    os.makedirs(get_dir(), exist_ok=True)
    owner, name, ref = _parse_repo_info(github)
    branch = ref.replace("/", "_")
    full = f"{owner}_{name}_{branch}"
    folder = os.path.join(get_dir(), full)
    _check_repo_is_trusted(owner, name, full, trust_repo)
    if os.path.exists(folder) and not force_reload:
        if verbose:
            sys.stderr.write(f"Using cache found in {folder}\n")
        return folder
    if not skip_validation:
        _validate_not_a_forked_repo(owner, name, ref)
    archive = os.path.join(get_dir(), f"{branch}.zip")
    url = f"https://github.com/{owner}/{name}/zipball/{ref}"
    sys.stdout.write(f'Downloading: "{url}" to {archive}\n')
    try:
        download_url_to_file(url, archive, progress=False)
        _unpack(archive, folder)
    finally:
        Path(archive).unlink(missing_ok=True)
    return folder


def _unpack(archive: str, folder: str) -> None:
    """Put what lies in an archive's one folder into `folder`, in place of what is there."""
    parent = os.path.dirname(folder)
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            path = os.path.normpath(member.filename)
            if os.path.isabs(path) or path.split(os.sep)[0] == "..":
                raise ValueError(f"Archive entry contains directory traversal: {member.filename}")
        top = os.path.join(parent, packed.infolist()[0].filename.split("/")[0])
        shutil.rmtree(top, ignore_errors=True)
        packed.extractall(parent)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(top, folder)


def _validate_not_a_forked_repo(owner: str, name: str, ref: str) -> None:
    """Raise ValueError unless a branch, tag or commit is the repository's own: GitHub serves those of forks too."""
    token = os.environ.get("GITHUB_TOKEN")
    headers = {"Accept": "application/vnd.github.v3+json"}
    if token:
        headers["Authorization"] = f"token {token}"
    for kind in ("branches", "tags"):
        for page in range(1, 1000):
            address = f"https://api.github.com/repos/{owner}/{name}/{kind}?per_page=100&page={page}"
            request = urllib.request.Request(address, headers=headers)
            with urllib.request.urlopen(request) as answer:
                found = json.load(answer)
            if any(one["name"] == ref or one["commit"]["sha"].startswith(ref) for one in found):
                return
            if not found:
                break
    raise ValueError(
        f"Cannot find {ref} in https://github.com/{owner}/{name}. If it's a commit from a forked repo, please call "
        "hub.load() with forked repo directly."
    )


def _check_repo_is_trusted(owner: str, name: str, full: str, trust_repo: bool | str | None) -> None:
    """Ask the user about a repository that is not trusted yet; raise if it is not to be."""
    listed, known = Path(get_dir(), "trusted_list"), f"{owner}_{name}"
    names = listed.read_text().split() if listed.exists() else []
    # What is kept was trusted once.
    kept = os.path.isdir(os.path.join(get_dir(), full))
    trusted = known in names or kept or owner in _TRUSTED_REPO_OWNERS
    if trust_repo is False or (trust_repo == "check" and not trusted):
        answer = input(
            f"The repository {known} does not belong to the list of trusted repositories and as such cannot be "
            "downloaded. Do you trust this repository and wish to add it to the trusted list of repositories (y/N)?"
        )
        if answer.lower() in ("n", "no", ""):
            raise Exception("Untrusted repository.")
        if answer.lower() not in ("y", "yes"):
            raise ValueError(f"Unrecognized response {answer}.")
        if trusted:
            sys.stdout.write("The repository is already trusted.\n")
    if not trusted:
        with listed.open("a") as file:
            file.write(f"{known}\n")


def __getattr__(name: str) -> Any:
    # PyTorch's module has the progress bar among its names; it is a package of its own.
    if name == "tqdm":
        return importlib.import_module("tqdm").tqdm
    raise AttributeError(f"module 'torch.hub' has no attribute {name!r}")
