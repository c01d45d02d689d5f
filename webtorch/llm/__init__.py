"""Language models that people have: read from GGUF files and Hugging Face's folders, run on any device.

`load` takes either; what it gives talks, or goes on with a text.

    from webtorch import llm

    model = llm.load("model.gguf", context=8192)
    for text in model.chat([{"role": "user", "content": "Why is the sky blue?"}]):
        print(text, end="", flush=True)
"""

from webtorch.llm import lora
from webtorch.llm.batch import Batch, ContextFullError, Likely
from webtorch.llm.cache import Cache, cache_bytes
from webtorch.llm.config import Config, ModelError, Rope
from webtorch.llm.examples import DataError
from webtorch.llm.exporting import export
from webtorch.llm.finetuning import Finetuning, Progress, finetune
from webtorch.llm.grammar import Grammar, GrammarError
from webtorch.llm.language import Answer, LanguageModel, load, quantize_file
from webtorch.llm.loading import load_model, read_config
from webtorch.llm.memory import Needs, needs
from webtorch.llm.model import Model
from webtorch.llm.sampling import Sampling
from webtorch.llm.template import TemplateError
from webtorch.llm.weights import quantize_, save

__all__ = [
    "Answer", "Batch", "Cache", "Config", "ContextFullError", "DataError", "Finetuning", "Grammar", "GrammarError",
    "LanguageModel", "Likely", "Model", "ModelError", "Needs", "Progress", "Rope", "Sampling", "TemplateError",
    "cache_bytes", "export", "finetune", "load", "load_model", "lora", "needs", "quantize_", "quantize_file",
    "read_config", "save",
]  # fmt: skip
