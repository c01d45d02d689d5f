"""Weights in another file format: PyTorch, safetensors (sharded too), GGUF. May import anything below floor 6."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.io.checkpoint import load, save
from webtorch.io.gguf import load_gguf, save_gguf
from webtorch.io.safetensors import FilePath
from webtorch.io.weights import load_safetensors
from webtorch.tensors.tensor import Tensor

_PYTORCH = (".pt", ".pth", ".bin", ".ckpt")
FORMATS = (*_PYTORCH, ".safetensors", ".gguf")


class ConvertError(ValueError):
    """A file holds no weights, or not such as the other format can hold."""


def read_weights(path: FilePath) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU.

    A PyTorch file may hold a state_dict, or dicts and lists of tensors: their keys are joined by
    points ("optimizer.state.0.exp_avg"); what is no tensor is left out. Of a folder, the safetensors
    files are read. Quantised GGUF tensors are dequantised. Raises ConvertError for other files, and
    where there is no tensor.
    """
    place = Path(path)
    if place.is_dir() or place.suffix == ".safetensors" or place.name.endswith(".index.json"):
        found = dict(load_safetensors(path, device="cpu"))
    elif place.suffix == ".gguf":
        found = dict(load_gguf(path, device="cpu").tensors)
    elif place.suffix in _PYTORCH:
        loaded = _loaded(place)
        # What training loops put around a model's own.
        inner = loaded.get("state_dict") if isinstance(loaded, Mapping) else None
        found = dict(_tensors(inner if isinstance(inner, Mapping) else loaded, ""))
    else:
        raise ConvertError(f"{place}: formats are known by their endings: {', '.join(FORMATS)}")
    if not found:
        raise ConvertError(f"{place}: holds no tensors")
    return found


def _loaded(place: Path) -> Any:
    try:
        return load(place, map_location="cpu", weights_only=True)
    except EOFError:
        raise ConvertError(f"{place}: the file is empty") from None
    except pickle.UnpicklingError as error:
        unknown = re.search(r"holds an object of '?([\w.]+)", str(error))
        if unknown is None:
            raise ConvertError(str(error)) from error
        raise ConvertError(
            f"{place}: holds an object of {unknown[1]}, and making that would run code; of weights alone it can be "
            "read: save `model.state_dict()`, not the model"
        ) from error


def _tensors(item: object, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(item, Tensor):
        yield name, item.detach()
        return
    pairs: Any = ()
    if isinstance(item, Mapping):
        pairs = item.items()
    elif isinstance(item, (list, tuple)):
        pairs = enumerate(item)
    for key, value in pairs:
        yield from _tensors(value, f"{name}.{key}" if name else str(key))


def convert(
    source: FilePath,
    target: FilePath,
    *,
    dtype: object = None,
    rename: Sequence[tuple[str, str]] = (),
    keep: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> dict[str, Tensor]:
    """Write the weights of `source` in the format that the ending of `target` names, and return them.

    dtype: of all floating-point tensors in the new file. rename: (pattern, replacement) pairs of `re.sub`,
    applied to each name in turn. keep: a pattern; only tensors whose (old) name it is found in are
    written. metadata: of a GGUF file. Raises ConvertError where two tensors get one name or the
    format is unknown, and what the format's writer raises.
    """
    ending = Path(target).suffix
    if ending not in FORMATS:
        raise ConvertError(f"{target}: formats are known by their endings: {', '.join(FORMATS)}")
    if metadata and ending != ".gguf":
        raise ConvertError(f"{target}: metadata is for .gguf files")
    found: dict[str, Tensor] = {}
    for old, tensor in read_weights(source).items():
        if keep is not None and not re.search(keep, old):
            continue
        name = old
        for pattern, replacement in rename:
            name = re.sub(pattern, replacement, name)
        if name in found:
            raise ConvertError(
                f"{source}: two tensors would be called {name!r}, one of them {old!r}"
            )
        is_float = tensor.dtype.is_floating_point
        found[name] = tensor.to(dtype) if dtype is not None and is_float else tensor
    if not found:
        raise ConvertError(f"{source}: no name has {keep!r} in it")
    if ending == ".gguf":
        save_gguf(found, target, metadata)
    else:
        # The ending says which of the two formats.
        save(found, target)
    return found


def dtype_named(name: str) -> object:
    """Return a floating-point type by name: "float16", "torch.bfloat16". Raises ConvertError for others."""
    found = getattr(webtorch, name.removeprefix("torch."), None)
    if not getattr(found, "is_floating_point", False):
        raise ConvertError(f"{name}: give float32, float16, bfloat16 or float64")
    return found
