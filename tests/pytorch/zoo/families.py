"""Models of transformers and diffusers, tiny and with random weights: what each is built from and fed with.

Every builder returns a model in float32, the arguments of a forward, and what to make a loss of.
Importing this imports neither package: a family does when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the arguments of a forward, and a loss of its result."""

    model: nn.Module
    inputs: dict[str, Any]
    loss: Callable[[Any], torch.Tensor]
    # Whether `model.generate` makes tokens: of what arguments.
    prompt: dict[str, Any] | None = None
    # Whether a static cache is possible.
    static_cache: bool = False


Builder = Callable[[], Case]
FAMILIES: dict[str, Builder] = {}


def family(name: str) -> Callable[[Builder], Builder]:
    """Declare a family."""

    def declare(builder: Builder) -> Builder:
        def build() -> Case:
            torch.manual_seed(0)
            return builder()

        FAMILIES[name] = build
        return builder

    return declare


# What language models share: size of the vocabulary, width, layers, heads.
_VOCABULARY = 64


def _tokens(rows: int = 2, length: int = 12, low: int = 3) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randint(low, _VOCABULARY, (rows, length), generator=g)


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def _small(**options: Any) -> dict[str, Any]:
    """Return the sizes that the configurations of Llama's kin take."""
    return {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **options,
    }


def _causal(model: nn.Module, static_cache: bool = True) -> Case:
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0  # padded on the left
    return Case(
        model,
        {"input_ids": tokens, "attention_mask": mask, "labels": tokens},
        lambda out: out.loss,
        {"input_ids": tokens, "attention_mask": mask},
        static_cache,
    )


@family("GPT-2")
def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return _causal(GPT2LMHeadModel(config))


@family("Llama")
def _llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _causal(LlamaForCausalLM(LlamaConfig(**_small())))


@family("Qwen2")
def _qwen2() -> Case:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _causal(Qwen2ForCausalLM(Qwen2Config(**_small(tie_word_embeddings=True))))


@family("Mistral")
def _mistral() -> Case:
    from transformers import MistralConfig, MistralForCausalLM

    return _causal(MistralForCausalLM(MistralConfig(**_small(sliding_window=6))))


@family("Gemma")
def _gemma() -> Case:
    from transformers import GemmaConfig, GemmaForCausalLM

    return _causal(GemmaForCausalLM(GemmaConfig(**_small(head_dim=8, num_key_value_heads=1))))


@family("Phi")
def _phi() -> Case:
    from transformers import PhiConfig, PhiForCausalLM

    options = _small(resid_pdrop=0.0, embd_pdrop=0.0)
    return _causal(PhiForCausalLM(PhiConfig(**options)))


@family("Mamba (slow path)")
def _mamba() -> Case:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=_VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, time_step_rank=4,
    )  # fmt: skip
    tokens = _tokens(2, 8)
    return Case(
        MambaForCausalLM(config),
        {"input_ids": tokens, "labels": tokens},
        lambda out: out.loss,
        {"input_ids": tokens},
    )


@family("BERT")
def _bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=_VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[0, 8:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    inputs = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return Case(BertForMaskedLM(config), inputs, lambda out: out.loss)


@family("T5")
def _t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        dropout_rate=0.0, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    tokens = _tokens()
    labels = _tokens(2, 7)
    return Case(
        T5ForConditionalGeneration(config),
        {"input_ids": tokens, "labels": labels},
        lambda out: out.loss,
        {"input_ids": tokens},
    )


@family("Whisper")
def _whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=_VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=20, max_target_positions=48,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    sound = _values(2, 16, 40)
    inputs = {"input_features": sound, "labels": _tokens(2, 7)}
    return Case(
        WhisperForConditionalGeneration(config), inputs, lambda out: out.loss,
        {"input_features": sound},
    )  # fmt: skip


@family("ViT")
def _vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    inputs = {"pixel_values": _values(2, 3, 16, 16), "labels": torch.tensor([1, 3])}
    return Case(ViTForImageClassification(config), inputs, lambda out: out.loss)


@family("CLIP")
def _clip() -> Case:
    from transformers import CLIPConfig, CLIPModel

    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }  # fmt: skip
    config = CLIPConfig(
        text_config={
            **sizes, "vocab_size": _VOCABULARY, "max_position_embeddings": 16,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={**sizes, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )  # fmt: skip
    tokens = _tokens(3, 8)
    tokens[:, -1] = 2
    inputs = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": _values(3, 3, 16, 16),
        "return_loss": True,
    }
    return Case(CLIPModel(config), inputs, lambda out: out.loss)


@family("ResNet")
def _resnet() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck",
        num_labels=5,
    )  # fmt: skip
    inputs = {"pixel_values": _values(4, 3, 32, 32), "labels": torch.tensor([1, 3, 0, 2])}
    return Case(ResNetForImageClassification(config), inputs, lambda out: out.loss)


@family("ConvNeXt")
def _convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, num_labels=5)
    inputs = {"pixel_values": _values(2, 3, 32, 32), "labels": torch.tensor([1, 3])}
    return Case(ConvNextForImageClassification(config), inputs, lambda out: out.loss)


@family("SAM")
def _sam() -> Case:
    from transformers import SamConfig, SamModel

    config = SamConfig(
        vision_config={
            "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "window_size": 2,
            "global_attn_indexes": [1], "num_pos_feats": 8, "mlp_dim": 64,
        },
        prompt_encoder_config={
            "hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4,
        },
        mask_decoder_config={
            "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "iou_head_hidden_dim": 16, "num_multimask_outputs": 3,
        },
    )  # fmt: skip
    inputs = {
        "pixel_values": _values(1, 3, 32, 32),
        "input_points": torch.tensor([[[[10.0, 12.0]]]]),
        "input_labels": torch.tensor([[[1]]]),
    }
    return Case(
        SamModel(config),
        inputs,
        lambda out: out.pred_masks.square().mean() + out.iou_scores.square().mean(),
    )


def _denoising(out: Any) -> torch.Tensor:
    target = torch.randn(out.sample.shape, generator=torch.Generator().manual_seed(3))
    return F.mse_loss(out.sample, target.to(out.sample.device))


@family("UNet2DCondition")
def _unet() -> Case:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(16, 32), cross_attention_dim=16, attention_head_dim=4,
        norm_num_groups=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    inputs = {
        "sample": _values(2, 4, 8, 8),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": _values(2, 6, 16),
    }
    return Case(model, inputs, _denoising)


@family("VAE (AutoencoderKL)")
def _vae() -> Case:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8, 16), latent_channels=4,
        norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    )  # fmt: skip
    return Case(model, {"sample": _values(2, 3, 16, 16)}, _denoising)


@family("DiT")
def _dit() -> Case:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2,
        sample_size=8, patch_size=2, num_embeds_ada_norm=100, norm_num_groups=4, dropout=0.0,
    )  # fmt: skip
    # Without this an untrained one adds nothing to its input.
    for p in model.parameters():
        if not p.any():
            nn.init.normal_(p, std=0.05)
    # Its embedding of classes drops a tenth of the labels while it trains.
    for module in model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    inputs = {
        "hidden_states": _values(2, 4, 8, 8),
        "timestep": torch.tensor([3, 70]),
        "class_labels": torch.tensor([5, 9]),
    }
    return Case(model, inputs, _denoising)
