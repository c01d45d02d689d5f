"""Models from files: a GGUF file, or a folder of Hugging Face's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.io.gguf import GGUFReader
from webtorch.io.safetensors import FilePath
from webtorch.ir.dtype import DType
from webtorch.llm.architectures import config_from_gguf, config_from_json
from webtorch.llm.config import Config, ModelError
from webtorch.llm.model import Model
from webtorch.llm.weights import FolderWeights, GGUFWeights, Weights, fill

_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a file. Raises ModelError where it is damaged or absent."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is no language model: it has no {path.name}") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: an object is wanted")
    return data


def read_config(path: FilePath) -> Config:
    """Return the sizes and options of a model: of a GGUF file, or of a folder with a config.json.

    Raises ModelError where they are not read here, GGUFError and OSError for damaged and absent files.
    """
    place = Path(path)
    if not place.is_dir():
        return _gguf_config(GGUFReader(place))
    file = place / "config.json"
    with reading(file):
        return config_from_json(read_json(file))


def _gguf_config(reader: GGUFReader) -> Config:
    factors = {n: reader.tensor(n, device="cpu").tolist() for n in _FACTORS if n in reader.entries}
    shapes = {n: e.shape for n, e in reader.entries.items()}
    with reading(reader.file):
        return config_from_gguf(reader.metadata, shapes, factors)


@contextlib.contextmanager
def reading(file: FilePath) -> Iterator[None]:
    """Let errors say which file is refused."""
    try:
        yield
    except ModelError as error:
        said = str(error)
        raise ModelError(said if said.startswith(str(file)) else f"{file}: {said}") from None


def load_model(
    path: FilePath, device: object = None, dtype: DType | None = None, packed: bool = True
) -> Model:
    """Return the model of a GGUF file, or of a folder of Hugging Face's with safetensors, to compute with.

    dtype: of all floats (default float32). packed: quantised weights of GGUF stay as they are in the file; else they
    become floats. Raises as `read_config`, and ModelError for weights that are missing
    or have other shapes.
    """
    config, source = open_weights(path, device, dtype, packed)
    with webtorch.device("meta"):
        model = Model(config)
    with reading(path):
        fill(model, source)
    return model.eval()


def open_weights(
    path: FilePath, device: object, dtype: DType | None, packed: bool
) -> tuple[Config, Weights]:
    """Return the sizes and options of a model, and where its weights come from. Raises as `load_model`."""
    place, kind = Path(path), dtype or webtorch.float32
    if place.is_dir():
        told = read_json(place / "config.json")
        config, packing = read_config(place), told.get("quantization_config")
        return config, FolderWeights(config, place, device, kind, packing, packed)
    reader = GGUFReader(place)
    config = _gguf_config(reader)
    return config, GGUFWeights(config, reader, device, kind, packed)
