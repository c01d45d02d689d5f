"""Which format each matrix of a file gets: one for all, or those of a mix of llama.cpp's.

A mix has a format, and others for matrices that matter more: values and the perceptrons' last ones of some layers, and
what gives the logits (llama-quant.cpp of https://github.com/ggml-org/llama.cpp, without a matrix of importance).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from webtorch.llm.config import Config
from webtorch.ops.blocks import FORMATS
from webtorch.quantization.packing import PACKING

# A tensor's name in GGUF and its shape -> its format, or None where it stays as it is.
Choice = Callable[[str, Sequence[int]], str | None]
# A layer's number and how many there are -> a format, or None for the mix's.
_Layers = Callable[[int, int], str | None]


@dataclass(frozen=True, slots=True)
class _Mix:
    """The format of most, those of values and of the perceptrons' last matrices, of the attention's last ones, and of
    these in a mixture of eight experts.
    """

    most: str
    values: _Layers = lambda _i, _n: None
    down: _Layers = lambda _i, _n: None
    output: str | None = None
    output_of_eight: str | None = None


def _more(i: int, n: int) -> str | None:
    """Return what the first and the last eighth of the layers get, and of the others each third."""
    return "Q6_K" if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else None


MIXES: dict[str, _Mix] = {
    "Q3_K_S": _Mix("Q3_K", output_of_eight="Q5_K"),
    "Q3_K_M": _Mix(
        "Q3_K",
        values=lambda i, _n: "Q5_K" if i < 2 else "Q4_K",
        down=lambda i, n: "Q5_K" if i < n // 16 else "Q4_K",
        output="Q4_K", output_of_eight="Q5_K",
    ),
    "Q3_K_L": _Mix("Q3_K", values=lambda _i, _n: "Q5_K", down=lambda _i, _n: "Q5_K", output="Q5_K"),
    "Q4_K_S": _Mix(
        "Q4_K",
        values=lambda i, _n: "Q5_K" if i < 4 else None,
        down=lambda i, n: "Q5_K" if i < n // 8 else None,
        output_of_eight="Q5_K",
    ),
    "Q4_K_M": _Mix("Q4_K", values=_more, down=_more, output_of_eight="Q5_K"),
    "Q5_K_S": _Mix("Q5_K"),
    "Q5_K_M": _Mix("Q5_K", values=_more, down=_more),
}  # fmt: skip
# What takes the place of a format whose blocks do not fill rows.
_SMALLER = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}  # fmt: skip


def _unknown(name: str) -> NoReturn:
    raise ValueError(
        f"quantize: {name!r} is not written here; {', '.join(PACKING)} are, and the mixes {', '.join(MIXES)}"
    )


def chooser(name: str, config: Config) -> Choice:
    """Return what chooses: `name` is a format that is written here, or a mix. Raises ValueError for others."""
    mix = MIXES.get(name)
    if mix is None and name not in PACKING:
        _unknown(name)

    def choose(key: str, shape: Sequence[int]) -> str | None:
        """Return a tensor's format."""
        small = len(shape) < 2 or not key.endswith(".weight")
        if small or key.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
            return None
        found: str | None = name if mix is None else _mixed(mix, key, shape, config)
        while found is not None and shape[-1] % FORMATS[found].elements:
            found = _SMALLER.get(found)
        return found

    return choose


def _mixed(mix: _Mix, key: str, shape: Sequence[int], config: Config) -> str:
    """Return a tensor's format in a mix."""
    logits = "token_embd" if config.tie_word_embeddings else "output"
    if key == f"{logits}.weight":
        return "Q6_K" if shape[-1] % FORMATS["Q6_K"].elements == 0 else "Q8_0"
    if not key.startswith("blk."):
        return mix.most
    _, number, path, _ = key.split(".")
    layer, layers, eight = int(number), config.num_hidden_layers, config.num_experts == 8
    if eight and path in ("attn_v", "attn_k", "attn_qkv"):
        return "Q8_0"
    if path in ("attn_v", "attn_qkv"):
        found = mix.values(layer, layers) or mix.most
        # Few heads of values serve many queries in these models of 70 billion.
        shared = layers == 80 and config.num_key_value_heads < config.num_attention_heads
        return "Q5_K" if shared and found in ("Q3_K", "Q4_K") else found
    if path.startswith("ffn_down"):
        return mix.down(layer, layers) or mix.most
    if path == "attn_output":
        return (mix.output_of_eight if eight else mix.output) or mix.most
    return mix.most
