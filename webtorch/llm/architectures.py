"""The architectures that are read: what their files call things, and which options of `Config` they have.

`ARCHITECTURES` is the one place that knows an architecture; a new one is an entry. Sizes and numbers have the
names of `FIELDS` in config.json and in a GGUF file's metadata (there after the architecture's name), weights those
of `WEIGHTS` in either file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

from webtorch.llm.config import Config, ModelError, Rope, checked, given, yarn_scale
from webtorch.llm.packings import METHODS

# A field of Config: its names in config.json, and in GGUF.
FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "vocab_size": (("vocab_size",), "vocab_size"),
    "hidden_size": (("hidden_size",), "embedding_length"),
    "intermediate_size": (("intermediate_size",), "feed_forward_length"),
    "num_hidden_layers": (("num_hidden_layers",), "block_count"),
    "num_attention_heads": (("num_attention_heads",), "attention.head_count"),
    "num_key_value_heads": (("num_key_value_heads",), "attention.head_count_kv"),
    "head_dim": (("head_dim",), "attention.key_length"),
    "max_position_embeddings": (("max_position_embeddings",), "context_length"),
    "rms_norm_eps": (("rms_norm_eps",), "attention.layer_norm_rms_epsilon"),
    "sliding_window": (("sliding_window",), "attention.sliding_window"),
    "attention_cap": (("attn_logit_softcapping",), "attn_logit_softcapping"),
    "logit_cap": (("final_logit_softcapping",), "final_logit_softcapping"),
    "attention_scale": (("attention_multiplier",), "attention.scale"),
    "embedding_scale": (("embedding_multiplier",), "embedding_scale"),
    "residual_scale": (("residual_multiplier",), "residual_scale"),
    "logit_divisor": (("logits_scaling",), "logit_scale"),
    "num_experts": (("num_local_experts", "num_experts"), "expert_count"),
    "num_experts_per_tok": (("num_experts_per_tok",), "expert_used_count"),
    "moe_intermediate_size": (("moe_intermediate_size",), "expert_feed_forward_length"),
    "shared_intermediate_size": (
        ("shared_expert_intermediate_size",),
        "expert_shared_feed_forward_length",
    ),
    "norm_topk_prob": (("norm_topk_prob",), "expert_weights_norm"),
    "expert_limit": (("swiglu_limit",), "swiglu_clamp_exp"),
}
# A weight of the model: its names in Hugging Face's files and in GGUF. Those of a layer stand after
# "model.layers.N." and "blk.N."; {e} is the number of an expert.
WEIGHTS: dict[str, tuple[str, str]] = {
    "embed": ("model.embed_tokens", "token_embd"),
    "norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
    "attention_norm": ("input_layernorm", "attn_norm"),
    "attention.q": ("self_attn.q_proj", "attn_q"),
    "attention.k": ("self_attn.k_proj", "attn_k"),
    "attention.v": ("self_attn.v_proj", "attn_v"),
    "attention.o": ("self_attn.o_proj", "attn_output"),
    "attention.q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "attention.k_norm": ("self_attn.k_norm", "attn_k_norm"),
    "attention.sinks": ("self_attn.sinks", "attn_sinks"),
    "attention_after": ("post_attention_layernorm", "post_attention_norm"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "mlp_after": ("post_feedforward_layernorm", "post_ffw_norm"),
    "mlp.gate": ("mlp.gate_proj", "ffn_gate"),
    "mlp.up": ("mlp.up_proj", "ffn_up"),
    "mlp.down": ("mlp.down_proj", "ffn_down"),
    "mlp.router": ("mlp.gate", "ffn_gate_inp"),
    "mlp.experts.gate": ("mlp.experts.{e}.gate_proj", "ffn_gate_exps"),
    "mlp.experts.up": ("mlp.experts.{e}.up_proj", "ffn_up_exps"),
    "mlp.experts.down": ("mlp.experts.{e}.down_proj", "ffn_down_exps"),
    "mlp.shared.gate": ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    "mlp.shared.up": ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    "mlp.shared.down": ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    "mlp.shared_gate": ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
}
_AFTER = {"mlp_norm": "pre_feedforward_layernorm"}
_MIXTRAL = {
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.gate": "block_sparse_moe.experts.{e}.w1",
    "mlp.experts.up": "block_sparse_moe.experts.{e}.w3",
    "mlp.experts.down": "block_sparse_moe.experts.{e}.w2",
}


# More would be no model but a damaged number.
_MOST_LAYERS = 4096


def parts(name: str) -> tuple[int | None, str, str]:
    """Return the layer of a weight's name, its name in WEIGHTS, and "weight" or "bias"."""
    path, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        path, kind = name, "weight"
    if not path.startswith("layers."):
        return None, path, kind
    _, number, path = path.split(".", 2)
    return int(number), path, kind


@dataclass(frozen=True)
class Architecture:
    """An architecture: `model_types` of config.json, the name in GGUF, and what is different from a Llama."""

    model_types: tuple[str, ...]
    gguf: str
    # Fields of Config that no file says.
    options: Mapping[str, object] = field(default_factory=dict)
    # Other names of weights (WEIGHTS) in Hugging Face's files, and in GGUF.
    names: Mapping[str, str] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    # Fields that are to be left out although the file has them.
    ignored: tuple[str, ...] = ()
    # Which layers have a window, where the file does not say: all but every n-th; 0: all.
    pattern: int = 0
    # GGUF has the rows of q and k in the order of pairs, as llama.cpp turns neighbours.
    permuted: bool = False
    # Weights of norms count from 1 in Hugging Face's files.
    norm_from_one: bool = False
    # Queries, keys and values are one weight, gates and values of the perceptron another.
    fused: bool = False
    # Experts are stacked, as (inputs, outputs) with gates and values in turns (gpt-oss).
    stacked: bool = False
    # `partial_rotary_factor` counts: not all channels of a head turn.
    partial: bool = False

    @property
    def name(self) -> str:
        """Return what Config.architecture is called."""
        return self.model_types[0]

    def weight(self, name: str, gguf: bool) -> str:
        """Return what a weight is called in a file: "layers.3.attention.q.weight", say."""
        number, path, kind = parts(name)
        prefix = "" if number is None else f"blk.{number}." if gguf else f"model.layers.{number}."
        other = (self.gguf_names if gguf else self.names).get(path)
        found = prefix + (other or WEIGHTS[path][gguf])
        return found if path == "attention.sinks" and not gguf else f"{found}.{kind}"


_GEMMA: dict[str, object] = {"activation": "gelu_tanh", "tie_word_embeddings": True}
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(("llama", "mistral", "mixtral"), "llama", names=_MIXTRAL, permuted=True),
    Architecture(("qwen2",), "qwen2", {"qkv_bias": True}),
    Architecture(
        ("qwen2_moe",), "qwen2moe", {"qkv_bias": True, "norm_topk_prob": False}, pattern=2
    ),
    Architecture(("qwen3",), "qwen3", {"qk_norm": "head"}),
    Architecture(("qwen3_moe",), "qwen3moe", {"qk_norm": "head"}),
    Architecture(
        ("gemma2",), "gemma2", _GEMMA | {"norm_after": True}, _AFTER, pattern=2, norm_from_one=True
    ),
    Architecture(
        ("gemma3_text", "gemma3"), "gemma3", _GEMMA | {"norm_after": True, "qk_norm": "head"}, _AFTER,
        ignored=("attention_cap",), pattern=6, norm_from_one=True,
    ),
    Architecture(("phi3",), "phi3", fused=True, partial=True),
    Architecture(("smollm3",), "smollm3", permuted=True),
    Architecture(
        ("olmo2",), "olmo2", {"norm_before": False, "norm_after": True, "qk_norm": "all"}
    ),
    Architecture(("granite",), "granite", permuted=True),
    Architecture(
        ("gpt_oss",), "gpt-oss",
        {"qkv_bias": True, "output_bias": True, "sinks": True, "expert_bias": True, "expert_limit": 7.0},
        {
            "mlp.router": "mlp.router", "mlp.experts.gate": "mlp.experts.gate_up_proj",
            "mlp.experts.up": "mlp.experts.gate_up_proj", "mlp.experts.down": "mlp.experts.down_proj",
        },
        {"mlp_norm": "post_attention_norm"}, pattern=2, stacked=True,
    ),
)  # fmt: skip
# What a config.json means that does not say it, by its model_type: what transformers' class has. What is as in
# `Config` is left out.
_QWEN: dict[str, Any] = {
    "vocab_size": 151936, "max_position_embeddings": 32768, "sliding_window": 4096, "use_sliding_window": False,
    "max_window_layers": 28,
}  # fmt: skip
_GEMMA_SIZES: dict[str, Any] = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}  # fmt: skip
_7B: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048,
}  # fmt: skip
_MISTRAL: dict[str, Any] = _7B | {
    "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA3: dict[str, Any] = _GEMMA_SIZES | {
    "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _7B,
    "mistral": _MISTRAL | {"sliding_window": 4096},
    "mixtral": _MISTRAL | {
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen2": _7B | _QWEN | {"intermediate_size": 22016, "num_key_value_heads": 32},
    "qwen2_moe": _QWEN | {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "norm_topk_prob": False,
    },
    "qwen3": _7B | _QWEN | {"intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128},
    "qwen3_moe": _QWEN | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": False, "max_window_layers": 0,
    },
    "gemma2": _GEMMA_SIZES | {
        "vocab_size": 256000, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": _7B | {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    },
    "smollm3": _7B | {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6, "no_rope_layer_interval": 4,
        "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "olmo2": _7B | {"vocab_size": 50304, "rms_norm_eps": 1e-5},
    "granite": _7B | {"attention_multiplier": 1.0},
    "gpt_oss": {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4,
        "rope_theta": 150000.0,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
}  # fmt: skip
# Entries of config.json besides FIELDS, by what they are, and numbers of one of rotary places.
_ENTRIES: dict[str, tuple[str, ...]] = {
    "dict": ("text_config", "rope_parameters", "rope_scaling", "quantization_config"),
    "list": ("layer_types", "no_rope_layers", "mlp_only_layers"),
    "int": ("max_window_layers", "decoder_sparse_step", "no_rope_layer_interval", "sliding_window_pattern"),
    "float": (
        "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "original_max_position_embeddings",
    ),
    "str": ("hidden_act", "hidden_activation"),
    "bool": ("tie_word_embeddings", "use_sliding_window", "attention_bias", "mlp_bias", "qkv_bias"),
}  # fmt: skip
_ROPE = (
    "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor",
)  # fmt: skip
_GGUF_ROPE = {
    "int": ("rope.dimension_count",),
    "float": (
        "rope.freq_base", "rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    ),
}  # fmt: skip
# What config.json calls activations.
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu",
}  # fmt: skip
_BY_TYPE = {t: a for a in ARCHITECTURES for t in a.model_types}
_BY_GGUF = {a.gguf: a for a in ARCHITECTURES}


def architecture(config: Config) -> Architecture:
    """Return the entry of a model."""
    return _BY_TYPE[config.architecture]


def _default(data: dict[str, Any], found: Architecture) -> None:
    """Fill in what follows from the rest."""
    data.setdefault("num_key_value_heads", data.get("num_attention_heads"))
    if "head_dim" not in data and data.get("num_attention_heads"):
        data["head_dim"] = data.get("hidden_size", 0) // data["num_attention_heads"]
    if data.get("num_experts"):
        data.setdefault("moe_intermediate_size", data.get("intermediate_size"))
    if found.name.startswith("gemma"):
        data["embedding_scale"] = data["hidden_size"] ** 0.5
    if not data.get("sliding_window") or not any(data.get("sliding", ())):
        data.pop("sliding_window", None)
        data.pop("sliding", None)


def _made(data: dict[str, Any]) -> Config:
    missing = [
        n for n in FIELDS if n not in data and n in Config.__dataclass_fields__ and _is_wanted(n)
    ]
    if missing:
        raise ModelError(f"the file does not say {', '.join(missing)}")
    return Config(**data)


def _is_wanted(name: str) -> bool:
    entry = Config.__dataclass_fields__[name]
    return entry.default is MISSING


def _field(name: str, value: object) -> object:
    """Return what a file says of a field of Config, if it is of its type."""
    return checked(name, value, str(Config.__dataclass_fields__[name].type).partition(" ")[0])


def _layers(out: Mapping[str, Any]) -> int:
    """Return how many layers there are. Refuses what would take long to count before it is found to be damaged."""
    count: int = out.get("num_hidden_layers") or 0
    if count > _MOST_LAYERS:
        raise ModelError(f"num_hidden_layers is {count}; at most {_MOST_LAYERS} are read")
    return count


def _pattern(found: Architecture, layers: int) -> tuple[bool, ...]:
    return tuple(not found.pattern or (i + 1) % found.pattern != 0 for i in range(layers))


# ---- config.json ----------------------------------------------------------------------------------


def config_from_json(data: Mapping[str, Any]) -> Config:
    """Return the Config that a config.json of Hugging Face's describes.

    Raises ModelError for an architecture that is not known here, and for sizes that are missing or wrong.
    """
    # A model that also sees images has that of its text in an entry.
    _check_entries(data, _ENTRIES)
    data = {**data, **(data.get("text_config") or {})}
    _check_entries(data, _ENTRIES)
    kind = data.get("model_type")
    found = _BY_TYPE.get(str(kind))
    if found is None:
        raise ModelError(f"the architecture {kind!r} is not known; {', '.join(_BY_TYPE)} are")
    rest = dict(DEFAULTS[str(kind)])
    if given(data, "rope_parameters", "rope_scaling") is not None:
        rest.pop("rope_parameters", None)
    data = {**rest, **data}
    packed = (data.get("quantization_config") or {}).get("quant_method", "mxfp4")
    if packed not in ("mxfp4", *METHODS):
        raise ModelError(
            f"weights are packed by {packed!r}, which are not read here; take a GGUF file"
        )
    out: dict[str, Any] = {"architecture": found.name, **found.options}
    for name, (keys, _) in FIELDS.items():
        value = given(data, *keys)
        if value is not None and name not in found.ignored:
            out[name] = _field(name, value)
    if found.name not in ("gpt_oss",):
        out.pop("expert_limit", None)
    layers = _layers(out)
    out["tie_word_embeddings"] = given(
        data, "tie_word_embeddings", default=found.options.get("tie_word_embeddings", False)
    )
    if data.get("attention_bias") is not None:
        out["qkv_bias"] = out["output_bias"] = bool(data["attention_bias"])
    if data.get("mlp_bias"):
        out["mlp_bias"] = True
    if data.get("qkv_bias") is not None:
        out["qkv_bias"] = bool(data["qkv_bias"])
    if data.get("use_bidirectional_attention"):
        raise ModelError("attention that sees what follows is not read here")
    if found.name != "gpt_oss":
        out["activation"] = _activation(data, found)
    if data.get("query_pre_attn_scalar"):
        width = checked("query_pre_attn_scalar", data["query_pre_attn_scalar"], "float", True)
        out["attention_scale"] = width**-0.5
    if out.get("num_experts"):
        every, plain = data.get("decoder_sparse_step") or 1, data.get("mlp_only_layers") or ()
        dense = tuple(i in plain or (i + 1) % every != 0 for i in range(layers))
        out |= {"dense": dense} if any(dense) else {}
    if found.name == "smollm3":
        turned = data.get("no_rope_layers") or [
            (i + 1) % data["no_rope_layer_interval"] for i in range(layers)
        ]
        out["rotary"] = tuple(bool(t) for t in turned)
    out["sliding"] = _sliding(data, found, out.get("rotary"), layers)
    _default(out, found)
    out["rope"], out["local_rope"] = _ropes(data, out, found)
    return _made(out)


def _check_entries(data: Mapping[str, object], kinds: Mapping[str, Sequence[str]]) -> None:
    """Refuse entries that are of other kinds than these."""
    for kind, names in kinds.items():
        for name in names:
            if data.get(name) is not None:
                checked(name, data[name], kind)


def _activation(data: Mapping[str, Any], found: Architecture) -> str:
    """Return the activation. Gemma's files say it twice, and the older word does not count."""
    gemma = "activation" in found.options
    said = data.get("hidden_activation" if gemma else "hidden_act")
    if said is None:
        return str(found.options.get("activation", "silu"))
    if said not in _ACTIVATIONS:
        raise ModelError(f"the activation {said!r} is not known; {', '.join(_ACTIVATIONS)} are")
    return _ACTIVATIONS[said]


def _sliding(
    data: Mapping[str, Any], found: Architecture, rotary: Sequence[bool] | None, layers: int
) -> tuple[bool, ...]:
    if data.get("use_sliding_window") is False:
        return ()
    kinds = data.get("layer_types")
    if kinds is not None:
        other = [k for k in kinds if k not in ("full_attention", "sliding_attention")]
        if other:
            raise ModelError(f"layer_types has {other[0]!r:.80}, which is not read here")
        return tuple(k == "sliding_attention" for k in kinds)
    if data.get("use_sliding_window"):
        if rotary is not None:
            return tuple(not turns for turns in rotary)
        most = data.get("max_window_layers") or 0
        if found.pattern:
            return tuple(t and i < most for i, t in enumerate(_pattern(found, layers)))
        return tuple(i >= most for i in range(layers))
    if data.get("sliding_window_pattern"):
        return tuple((i + 1) % data["sliding_window_pattern"] != 0 for i in range(layers))
    return _pattern(found, layers)


def _ropes(
    data: Mapping[str, object], out: Mapping[str, object], found: Architecture
) -> tuple[Rope, Rope | None]:
    """Return the rotary places of a config.json: of all layers, and of those with a window if they differ."""
    entries = given(data, "rope_parameters", "rope_scaling", default={})
    _check_entries(entries, {"dict": ("full_attention", "sliding_attention")})
    whole = entries.get("full_attention") or entries
    rope = _rope(whole, data, out, found)
    local = entries.get("sliding_attention")
    if local is None and data.get("rope_local_base_freq"):
        local = {"rope_theta": data["rope_local_base_freq"]}
    return rope, None if local is None else _rope(local, data, out, found)


def _rope(
    entry: Mapping[str, Any], data: Mapping[str, Any], out: Mapping[str, Any], found: Architecture
) -> Rope:
    for name in _ROPE:
        if entry.get(name) is not None:
            checked(name, entry[name], "float", positive=True)
    _check_entries(entry, {"list": ("short_factor", "long_factor")})
    kind = given(entry, "rope_type", "type", default="default")
    if kind == "su" or (kind == "yarn" and found.name == "phi3"):
        kind = "longrope"
    if kind not in ("default", "linear", "dynamic", "llama3", "yarn", "longrope"):
        raise ModelError(f"rotary places of the kind {kind!r} are not known")
    part = 1.0
    if found.partial:
        part = given(
            entry, "partial_rotary_factor", default=data.get("partial_rotary_factor") or 1.0
        )
    context = out.get("max_position_embeddings") or 1
    original = context
    if kind != "dynamic":
        original = given(
            entry,
            "original_max_position_embeddings",
            default=data.get("original_max_position_embeddings") or context,
        )
    factor = given(entry, "factor", default=context / original)
    attention_factor, mscale = entry.get("attention_factor"), entry.get("mscale")
    if kind == "yarn" and attention_factor is None and mscale and entry.get("mscale_all_dim"):
        attention_factor = yarn_scale(factor, mscale) / yarn_scale(factor, entry["mscale_all_dim"])
    return Rope(
        theta=given(entry, "rope_theta", default=data.get("rope_theta") or 10000.0),
        dim=int((out.get("head_dim") or 0) * part),
        kind=kind,
        factor=factor,
        original=original,
        low=given(entry, "low_freq_factor", default=1.0),
        high=given(entry, "high_freq_factor", default=4.0),
        beta_fast=given(entry, "beta_fast", default=32.0),
        beta_slow=given(entry, "beta_slow", default=1.0),
        truncate=given(entry, "truncate", default=True),
        attention_factor=attention_factor,
        short=tuple(entry.get("short_factor") or ()),
        long=tuple(entry.get("long_factor") or ()),
    )


# ---- GGUF -----------------------------------------------------------------------------------------


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    factors: Mapping[str, Sequence[float]],
) -> Config:
    """Return the Config that the metadata of a GGUF file describes.

    shapes: of its tensors, by their names. factors: its tensors of divisors of rotary places (rope_freqs,
    rope_factors_short, rope_factors_long). Raises ModelError as `config_from_json` does.
    """
    kind = metadata.get("general.architecture")
    found = _BY_GGUF.get(str(kind))
    if found is None:
        raise ModelError(f"the architecture {kind!r} is not known; {', '.join(_BY_GGUF)} are")
    data = {
        k.removeprefix(f"{found.gguf}."): v
        for k, v in metadata.items()
        if k.startswith(f"{found.gguf}.")
    }
    out: dict[str, Any] = {"architecture": found.name, **found.options}
    for name, (_, key) in FIELDS.items():
        if data.get(key) is not None:
            out[name] = _one(data[key], name)
    embed = shapes.get("token_embd.weight")
    if embed is None or len(embed) != 2:
        raise ModelError("there is no matrix token_embd.weight")
    out["vocab_size"] = embed[0]
    out["tie_word_embeddings"] = "output.weight" not in shapes
    out["qkv_bias"] = "blk.0.attn_q.bias" in shapes or "blk.0.attn_qkv.bias" in shapes
    out["output_bias"] = "blk.0.attn_output.bias" in shapes
    out["mlp_bias"] = "blk.0.ffn_down.bias" in shapes
    layers = _layers(out)
    if out.get("num_experts"):
        dense = tuple(f"blk.{i}.ffn_gate_inp.weight" not in shapes for i in range(layers))
        out |= {"dense": dense} if any(dense) else {}
        shared = shapes.get("blk.0.ffn_gate_shexp.weight")
        if shared is not None:
            out["shared_intermediate_size"] = shared[0]
    pattern = data.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        out["sliding"] = tuple(bool(p) for p in pattern)
    elif isinstance(pattern, int) and pattern > 0:
        out["sliding"] = tuple((i + 1) % pattern != 0 for i in range(layers))
    else:
        out["sliding"] = _pattern(found, layers)
    if found.name == "smollm3":
        out["rotary"] = tuple((i + 1) % 4 != 0 for i in range(layers))
    _default(out, found)
    # What query_pre_attn_scalar is of the 27B models, whose files do not say it.
    if (found.name, layers) in (
        ("gemma2", 46),
        ("gemma3_text", 62),
    ) and "attention_scale" not in out:
        out["attention_scale"] = (out["hidden_size"] / out["num_attention_heads"]) ** -0.5
    out["rope"], out["local_rope"] = _gguf_ropes(data, out, factors, found)
    return _made(out)


def _one(value: object, name: str) -> object:
    """Return a number that may stand once for each layer."""
    if not isinstance(value, list):
        return _field(name, value)
    if len(set(value)) != 1:
        raise ModelError(f"layers differ in {name}, which is not read here")
    return _field(name, value[0])


def _gguf_ropes(
    data: Mapping[str, Any],
    out: Mapping[str, Any],
    factors: Mapping[str, Sequence[float]],
    found: Architecture,
) -> tuple[Rope, Rope | None]:
    _check_entries(data, _GGUF_ROPE)
    kind = given(data, "rope.scaling.type", default="default")
    kind = "default" if kind == "none" else kind
    short = tuple(
        factors.get("rope_freqs.weight") or factors.get("rope_factors_short.weight") or ()
    )
    if "rope_freqs.weight" in factors:
        kind = "factors"
    elif short:
        kind = "longrope"
    if kind not in ("default", "linear", "yarn", "longrope", "factors"):
        raise ModelError(f"rotary places of the kind {kind!r} are not known")
    context = out.get("max_position_embeddings") or 1
    original = given(data, "rope.scaling.original_context_length", default=context)
    dim = given(data, "rope.dimension_count", default=out.get("head_dim") or 0)
    factor = given(data, "rope.scaling.factor", default=context / original)
    attention_factor = data.get("rope.scaling.attn_factor")
    if kind == "yarn" and attention_factor is not None:
        # There it is besides what yarn has of its own.
        attention_factor *= yarn_scale(factor)
    rope = Rope(
        theta=given(data, "rope.freq_base", default=10000.0),
        dim=dim,
        kind=kind,
        factor=factor,
        original=original,
        beta_fast=given(data, "rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=given(data, "rope.scaling.yarn_beta_slow", default=1.0),
        truncate=found.name != "gpt_oss",
        attention_factor=attention_factor,
        short=short,
        long=tuple(factors.get("rope_factors_long.weight") or ()),
    )
    if found.name != "gemma3_text":
        return rope, None
    return rope, Rope(theta=given(data, "rope.freq_base_swa", default=10000.0), dim=dim)


def gguf_metadata(config: Config) -> dict[str, object]:
    """Return the metadata of a GGUF file, without that of the tokenizer."""
    found = architecture(config)
    out: dict[str, object] = {"general.architecture": found.gguf}

    def say(key: str, value: object) -> None:
        """Add an entry of the architecture."""
        out[f"{found.gguf}.{key}"] = value

    for name, (_, key) in FIELDS.items():
        value = getattr(config, name)
        said = value != found.options.get(name, Config.__dataclass_fields__[name].default)
        # llama.cpp has no default of the norms' epsilon, and another one of the experts' norm.
        if said or name == "rms_norm_eps" or (name == "norm_topk_prob" and config.num_experts):
            say(key, value)
    if found.name.startswith("gemma"):
        del out[f"{found.gguf}.embedding_scale"]
    say("attention.value_length", config.head_dim)
    rope = config.rope
    say("rope.dimension_count", rope.dim)
    say("rope.freq_base", float(rope.theta))
    if config.local_rope is not None:
        say("rope.freq_base_swa", float(config.local_rope.theta))
    if rope.kind in ("linear", "yarn", "longrope"):
        say("rope.scaling.type", rope.kind)
        say("rope.scaling.original_context_length", rope.original)
    if rope.kind in ("linear", "yarn"):
        # llama.cpp divides places by it also beside the divisors of longrope.
        say("rope.scaling.factor", float(rope.factor))
    if rope.kind == "yarn":
        say("rope.scaling.yarn_beta_fast", float(rope.beta_fast))
        say("rope.scaling.yarn_beta_slow", float(rope.beta_slow))
    if rope.kind == "longrope" or rope.attention_factor is not None:
        # llama.cpp computes that of yarn itself, that of longrope not.
        own = yarn_scale(rope.factor) if rope.kind == "yarn" else 1.0
        say("rope.scaling.attn_factor", float(rope.frequencies(1)[1]) / own)
    if config.sliding:
        say("attention.sliding_window_pattern", list(config.sliding))
    return out


def refuse_unsaid(
    config: Config,
    shapes: Mapping[str, Sequence[int]],
    factors: Mapping[str, Sequence[float]],
) -> None:
    """Raise ModelError, naming the options, where a GGUF file of a model would not say all that `config` does.

    shapes and factors: as of `config_from_gguf`.
    """
    first = config.rope.original or 1
    contexts = 1, first, first + 1, config.max_position_embeddings
    own = _facts(config, contexts)
    again = _facts(config_from_gguf(gguf_metadata(config), shapes, factors), contexts)
    lost = [n for n, v in own.items() if v != again[n]]
    if lost:
        raise ModelError(
            f"GGUF files of {architecture(config).gguf} do not say {', '.join(lost)}: what reads one would compute "
            f"with {', '.join(str(again[n]) for n in lost)} for {', '.join(str(own[n]) for n in lost)}"
        )


def _facts(config: Config, contexts: Sequence[int]) -> dict[str, object]:
    """Return what a model computes, each fact in one form: rotary places as the angles in some contexts."""

    def rates(rope: Rope | None, context: int) -> str:
        """Return rotary places, as text."""
        found, scale = (rope or config.rope).frequencies(context)
        return " ".join(f"{x:.5g}" for x in (*found, scale))

    out = {n: getattr(config, n) for n in Config.__dataclass_fields__}
    for name in ("rope", "local_rope"):
        rope = out.pop(name)
        out[name] = tuple(rates(rope, n) for n in contexts)
    layers = range(config.num_hidden_layers)
    out["sliding"] = tuple(config.window(i) for i in layers)
    out["rotary"] = tuple(not config.rotary or config.rotary[i] for i in layers)
    out["dense"] = tuple(config.experts(i) == 0 for i in layers)
    return {n: float(f"{v:.5g}") if isinstance(v, float) else v for n, v in out.items()}
