"""Files: checkpoints, safetensors, GGUF, images, tokenizers.

May import anything below floor 6.

    import webtorch as torch

    model = torch.nn.Linear(2, 3)
    torch.io.save_model(model, "model.safetensors")
    torch.io.load_model(model, "model.safetensors")
"""

from __future__ import annotations

import importlib
from typing import Any

# Where the names live; a room is entered when one of its names is used.
_HOMES = {
    **dict.fromkeys(("GGUF", "GGUFError", "GGUFReader", "load_gguf", "save_gguf"), "gguf"),
    **dict.fromkeys(
        ("load_model", "load_safetensors", "save_model", "shards", "stream_safetensors"), "weights"
    ),
    **dict.fromkeys(("ConvertError", "convert", "read_weights"), "conversion"),
    **dict.fromkeys(("Tokenizer", "TokenizerError"), "tokenizer"),
    "SentencePiece": "sentencepiece",
    **dict.fromkeys(
        (
            "ImageReadMode", "decode_image", "decode_jpeg", "decode_png", "encode_jpeg", "encode_png", "make_grid",
            "pack_rgba8", "read_image", "save_image", "unpack_rgba8", "write_jpeg", "write_png",
        ),
        "image",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'webtorch.io' has no attribute '{name}'")
    found = getattr(importlib.import_module(f"webtorch.io.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
