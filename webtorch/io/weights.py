"""Weights in safetensors files, also in several with an index, and in and out of modules. Floor 6.

A tensor goes from the mapped file to its device once: no copy of a whole file is ever in memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from webtorch.capture.memory import bytes_of
from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.io import safetensors
from webtorch.io.safetensors import FilePath, RawTensor, SafetensorError
from webtorch.ir import dtype as dtypes
from webtorch.ir.dtype import DType
from webtorch.nn import Module
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPE_NAMES = frozenset(dtype.name for dtype in dtypes.ALL)


class LoadReport(NamedTuple):
    """What `load_model` did not find: keys of the module, and keys of the file."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def shards(path: FilePath) -> dict[str, list[str] | None]:
    """Return the files that `path` stands for, each with the keys that the index has in it (None: all).

    path: a .safetensors file, an index (*.index.json), or a folder with either.
    """
    place = Path(path)
    if place.is_dir():
        for name in (INDEX, SINGLE):
            if (place / name).exists():
                return shards(place / name)
        found = sorted(place.glob("*.index.json")) or sorted(place.glob("*.safetensors"))
        if len(found) != 1:
            raise FileNotFoundError(
                f"{place} has neither {INDEX} nor {SINGLE}; name one of {[f.name for f in found]}"
                if found
                else f"{place} has no safetensors file"
            )
        return shards(found[0])
    if place.suffix != ".json":
        return {os.fspath(place): None}
    try:
        root = json.loads(place.read_text(encoding="utf-8"))
        weights = dict(root["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise SafetensorError(
            f"{place}: an index has a weight_map, from keys to files: {error!r}"
        ) from error
    files: dict[str, list[str] | None] = {}
    for key, name in weights.items():
        # A file of the index stands beside it: a name with a path could read anything.
        plain = isinstance(name, str) and os.path.basename(name) == name and "\0" not in name
        if not plain or not name:
            raise SafetensorError(
                f"{place}: {key!r} is in {name!r}, which is no name of a file beside it"
            )
        keys = files.setdefault(os.fspath(place.parent / name), [])
        assert keys is not None
        keys.append(key)
    return files


def stream_safetensors(
    path: FilePath,
    device: object = None,
    *,
    keys: Collection[str] | None = None,
    dtype: DType | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (key, tensor) of a file, an index or a folder, one tensor at a time.

    keys: only these; files that have none of them are not opened. dtype: converts floats on the device.
    Raises KeyError for a key that is nowhere, SafetensorError for damaged files, DTypeError for element
    types that webtorch lacks (float8).
    """
    wanted = None if keys is None else set(keys)
    where = webtorch.device(device) if device is not None else webtorch.get_default_device()
    seen: set[str] = set()
    for file, listed in shards(path).items():
        if wanted is not None and listed is not None and not wanted & set(listed):
            continue
        records = safetensors.load_file(file, allow_misaligned=True)
        absent = [k for k in listed or () if k not in records]
        if absent:
            raise SafetensorError(
                f"{file}: the index has {absent[:3]} in this file, which it does not hold"
            )
        for key in list(records):
            record = records.pop(key)
            if (wanted is None or key in wanted) and (listed is None or key in listed):
                seen.add(key)
                yield key, tensor_of(record, key, file, where, dtype)
    missing = sorted((wanted or set()) - seen)
    if missing:
        raise KeyError(f"{os.fspath(path)} has no tensors {missing[:8]}")


def load_safetensors(
    path: FilePath,
    device: object = None,
    *,
    keys: Collection[str] | None = None,
    dtype: DType | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of a file, an index or a folder by key; see `stream_safetensors`."""
    return dict(stream_safetensors(path, device, keys=keys, dtype=dtype))


def tensor_of(record: RawTensor, key: str, file: str, device: Any, dtype: DType | None) -> Tensor:
    """Return the tensor of a record that `safetensors.load_file` gave, copied to the device.

    dtype: converts floats. Raises DTypeError for element types that webtorch lacks (float8).
    """
    if record.dtype not in _DTYPE_NAMES:
        raise DTypeError(
            f"load: {file}: {key!r} is {record.dtype}, which webtorch does not have. Leave it out with "
            "keys=..., or take its bytes from webtorch.io.safetensors.load_file."
        )
    kind = dtypes.by_name(record.dtype)
    data: Any = record.data
    made = from_bytes(data, record.shape, kind, device)
    return made.to(dtype) if dtype is not None and kind.is_floating_point else made


Rename = Mapping[str, str] | Callable[[str], str | None]


def load_model(
    model: Module, path: FilePath, strict: bool = True, *, rename: Rename | None = None
) -> LoadReport:
    """Load weights into a module, each straight to the device of the parameter that it replaces.

    Values take the parameters' dtype. Tied weights need to be in the file once. rename: from the file's
    keys to the module's: a function (None leaves a tensor out), or regular expressions and what takes
    their place, all applied in order. Returns the keys that were missing and unexpected, which raise
    RuntimeError where `strict`; shapes that differ always do.
    """
    renamed = _renaming(rename)
    targets = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    kept = set(model.state_dict())
    targets = {k: t for k, t in targets.items() if k in kept}
    loaded: set[int] = set()
    unexpected: list[str] = []
    errors: list[str] = []
    for file, listed in shards(path).items():
        records = safetensors.load_file(file, allow_misaligned=True)
        for key in list(records):
            record = records.pop(key)
            if listed is not None and key not in listed:
                continue
            name = renamed(key)
            if name is None:
                continue
            target = targets.get(name)
            if target is None:
                unexpected.append(key)
            elif tuple(target.shape) != record.shape:
                errors.append(
                    f"size mismatch for {key}: copying a param with shape {record.shape} from {file}, the "
                    f"shape in current model is {tuple(target.shape)}."
                )
            else:
                value = tensor_of(record, key, file, target.device, None)
                with no_grad():
                    target.copy_(value)
                # At once: what is pending would hold every tensor twice.
                target._storage.realize()
                loaded.add(id(target._storage))
    missing = [k for k, t in targets.items() if id(t._storage) not in loaded]
    if strict:
        errors += [f"Missing key(s): {missing}."] if missing else []
        errors += [f"Unexpected key(s): {unexpected}."] if unexpected else []
    if errors:
        raise RuntimeError(
            f"Error(s) in loading {os.fspath(path)} into {type(model).__name__}:\n\t"
            + "\n\t".join(errors)
        )
    return LoadReport(missing, unexpected)


def _renaming(rename: Rename | None) -> Callable[[str], str | None]:
    if rename is None:
        return lambda key: key
    if not isinstance(rename, Mapping):
        return rename
    patterns = [(re.compile(pattern), new) for pattern, new in rename.items()]

    def apply(key: str) -> str:
        """Return a key with all patterns replaced."""
        for pattern, new in patterns:
            key = pattern.sub(new, key)
        return key

    return apply


def save_model(
    model: Module,
    path: FilePath,
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_size: int | str | None = None,
) -> list[str]:
    """Write the weights of a module; tied ones once, under the first of their names. Returns the files.

    The metadata has the other names of tied weights, as safetensors' own `save_model` writes them.
    max_shard_size: in bytes, or a text like "5 GB"; with it `path` is a folder, which gets the files and their index.
    """
    first: dict[object, str] = {}
    tensors: dict[str, Tensor] = {}
    notes = {"format": "pt", **(metadata or {})}
    for key, t in model.state_dict().items():
        place = (id(t._storage), tuple(t.shape), tuple(t.stride()), t.storage_offset())
        kept = first.setdefault(place, key)
        if kept == key:
            tensors[key] = t
        else:
            notes[key] = kept
    if max_shard_size is None:
        safetensors.save_file(_records(tensors), path, notes)
        return [os.fspath(path)]
    limit = bytes_of(max_shard_size, "save_model: max_shard_size")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, t in tensors.items():
        nbytes = t.numel() * t.dtype.itemsize
        if groups[-1] and size + nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][key] = t
        size += nbytes
    count = len(groups)
    weights: dict[str, str] = {}
    written = []
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        safetensors.save_file(_records(group), folder / name, notes)
        weights |= dict.fromkeys(group, name)
        written.append(os.fspath(folder / name))
    total = sum(t.numel() * t.dtype.itemsize for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*written, os.fspath(folder / INDEX)]


def _records(tensors: Mapping[str, Tensor]) -> dict[str, RawTensor]:
    def made(t: Tensor) -> RawTensor:
        """Return a tensor as what the file holds; its bytes are read when it is written."""
        read: Callable[[], Any] = t._to_bytes
        return RawTensor(t.dtype.name, tuple(t.shape), read)

    return {key: made(t) for key, t in tensors.items()}
