"""Language models that people have: read from GGUF files and Hugging Face's folders, run on any device."""

from webtorch.llm.config import Config, ModelError, Rope
from webtorch.llm.loading import load_model, read_config
from webtorch.llm.model import Cache, Model, cache_bytes, empty_cache
from webtorch.llm.sampling import Sampling
from webtorch.llm.session import ContextFullError, Session, Steps
from webtorch.llm.weights import save

__all__ = [
    "Cache",
    "Config",
    "ContextFullError",
    "Model",
    "ModelError",
    "Rope",
    "Sampling",
    "Session",
    "Steps",
    "cache_bytes",
    "empty_cache",
    "load_model",
    "read_config",
    "save",
]
