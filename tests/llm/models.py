"""Every architecture at a small size: its transformers config, from which both sides are made."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers

_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.5, 3.0, 6.0], "partial_rotary_factor": 0.75,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {
    "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4,
}  # fmt: skip
# A name -> the class of its config, and what is not of _SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3": ("LlamaConfig", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "llama, linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": 5, "head_dim": 16}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, windows and yarn": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2, "rope_parameters": _YARN},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        _EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", _EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 4, "attn_logit_softcapping": 2.0,
         "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "num_hidden_layers": 7},
    ),
    "phi3": ("Phi3Config", {"sliding_window": 6, "original_max_position_embeddings": 64}),
    "phi3, longrope": (
        "Phi3Config",
        {"rope_parameters": _LONG, "original_max_position_embeddings": 32, "max_position_embeddings": 64},
    ),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4}),
    "olmo2": ("Olmo2Config", {}),
    "granite": (
        "GraniteConfig",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    "gpt_oss": (
        "GptOssConfig",
        _GPT_OSS | {"rope_parameters": _YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}},
    ),
    "gpt_oss, its own limit": ("GptOssConfig", _GPT_OSS | {"swiglu_limit": 0.5, "attention_bias": False}),
    "llama, yarn with scales": (
        "LlamaConfig", {"rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}},
    ),
    "gemma3, caps": (
        "Gemma3TextConfig",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "final_logit_softcapping": 3.0,
         "attn_logit_softcapping": 2.0},
    ),
    "qwen2_moe, windows": (
        "Qwen2MoeConfig",
        _EXPERTS | {"shared_expert_intermediate_size": 40, "use_sliding_window": True, "sliding_window": 4,
                    "max_window_layers": 1},
    ),
    "smollm3, windows": (
        "SmolLM3Config", {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 4},
    ),
}  # fmt: skip
# Models with options that GGUF files do not say, and which.
UNSAID: dict[str, str] = {
    "llama, dynamic": "rope, local_rope", "llama, gelu": "activation", "llama, tanh": "activation",
    "llama, relu": "activation", "smollm3, its own places": "rotary",
}  # fmt: skip
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, dynamic": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": 8},
    ),
    "llama, gelu": ("LlamaConfig", {"hidden_act": "gelu"}),
    "llama, tanh": ("LlamaConfig", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama, relu": ("LlamaConfig", {"hidden_act": "relu"}),
    "smollm3, its own places": ("SmolLM3Config", {"no_rope_layers": [1, 0, 0]}),
}  # fmt: skip
TOKENS = [[5, 9, 77, 3, 12, 41, 8, 8, 60, 95, 33, 2, 17, 4]]


@lru_cache(maxsize=1)
def reference(name: str) -> Any:
    """Return transformers' model of a name, with random weights of which none is 0 or 1."""
    kind, options = (MODELS | _OTHERS)[name]
    config = getattr(transformers, kind)(**(_SIZES | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draw) * (0.2 if p.ndim > 1 else 0.1))
    return model


def folder(name: str, place: Path) -> Path:
    """Write transformers' model of a name into a folder, and return it."""
    reference(name).save_pretrained(place)
    return place
