"""Adapters of low rank (LoRA; Hu et al., 2021): what is added to a model's products, of floats or packed ones.

A layer that has one, y = x @ w.T, gives y + scale * (x @ a.T) @ b.T, with a (rank, inputs) and b (outputs, rank). The
adapter is a part of the layer, `lora`, and is added by a hook, so that the layer itself and its names stay. Files are
PEFT's (a folder with adapter_config.json and adapter_model.safetensors) and llama.cpp's (one GGUF file).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.functions.random import Generator
from webtorch.io import checkpoint, safetensors, weights
from webtorch.io.gguf import GGUFReader, save_gguf
from webtorch.io.safetensors import FilePath
from webtorch.llm.architectures import architecture, parts
from webtorch.llm.config import ModelError, checked
from webtorch.llm.loading import read_json, reading
from webtorch.llm.model import Model
from webtorch.llm.weights import fused_parts, permuted_rows, put_packed
from webtorch.nn import functional as F
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.quantization import PackedLinear, PackedTensor, quantize
from webtorch.quantization.packing import PACKING
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# What adapter_config.json may say of adapters that are added as these are. Others change the base as well (PiSSA and
# OLoRA, as they begin), scale it (DoRA), or are added to some tokens only.
_USUAL: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",), "use_dora": (None, False), "alora_invocation_tokens": (None,), "use_qalora": (None, False),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip


class Adapter(Module):
    """What is added to one layer: scale * (x @ a.T) @ b.T."""

    def __init__(self, a: Tensor, b: Tensor, scale: float, dropout: float = 0.0) -> None:
        """Take the matrices a (rank, inputs) and b (outputs, rank)."""
        super().__init__()
        self.a, self.b = Parameter(a), Parameter(b)
        self.scale, self.dropout = scale, dropout
        self.hook: Any = None

    @property
    def rank(self) -> int:
        """How many rows a has."""
        return self.a.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added for inputs x, in their type."""
        x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        out = F.linear(F.linear(x.to(self.a.dtype), self.a), self.b)
        return out * self.scale


def _add(layer: Any, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
    return out + layer.lora(given[0]).to(out.dtype)


def _layers(model: Model) -> Iterator[tuple[str, Any]]:
    """Yield the layers that may have an adapter, which are products of all tokens: "layers.0.attention.q"."""
    for path, module in model.named_modules():
        plain = isinstance(module, (Linear, PackedLinear))
        if plain and path.startswith("layers.") and not path.endswith(("router", "shared_gate")):
            yield path, module


def adapters(model: Model) -> dict[str, Adapter]:
    """Return the adapters of a model by the names of their layers."""
    return {p: m.lora for p, m in _layers(model) if getattr(m, "lora", None) is not None}


def parameters(model: Model) -> list[Parameter]:
    """Return what is trained of a model with adapters."""
    return [p for adapter in adapters(model).values() for p in adapter.parameters()]


def _put(layer: Linear | PackedLinear, adapter: Adapter) -> None:
    adapter.train(layer.training)
    layer.lora = adapter
    adapter.hook = layer.register_forward_hook(_add)


def detach(model: Model) -> Model:
    """Take the adapters off a model, and return it."""
    for path, adapter in adapters(model).items():
        adapter.hook.remove()
        del model.get_submodule(path).lora
    return model


def _sizes(layer: Linear | PackedLinear) -> tuple[int, int]:
    return layer.out_features, layer.in_features


def attach(
    model: Model,
    rank: int = 16,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    generator: Generator | None = None,
) -> Model:
    """Give a model new adapters, which change nothing yet, in place of those that it has; return it.

    alpha: what they are scaled by is alpha / rank; None: 2 * rank. targets: ends of layers' names, ours ("attention.q",
    "q") or those of the model's files ("q_proj", "attn_q"); None: all products of the layers but routers and experts.
    Raises ValueError for a rank below 1, a dropout that is no part, and targets that no layer has.
    """
    if rank < 1 or not 0.0 <= dropout < 1.0:
        raise ValueError(
            f"an adapter has a rank of 1 at least and a dropout of 0 to 1, not {rank} and {dropout}"
        )
    scale, wanted, used = (2.0 if alpha is None else alpha / rank), set(targets or ()), set()
    chosen = []
    for path, layer in _layers(model):
        found = {t for t in wanted for n in _names(model, path) if f".{n}".endswith(f".{t}")}
        used |= found
        if found or targets is None:
            chosen.append(layer)
    if wanted - used or not chosen:
        raise ValueError(f"no layer is called {', '.join(sorted(wanted - used)) or 'so'}")
    detach(model)
    device = model.norm.weight.device
    for layer in chosen:
        outputs, inputs = _sizes(layer)
        bound = 1.0 / math.sqrt(inputs)
        a = webtorch.rand(rank, inputs, generator=generator) * (2.0 * bound) - bound
        _put(
            layer,
            Adapter(a.to(device), webtorch.zeros(outputs, rank, device=device), scale, dropout),
        )
    return model


def _names(model: Model, path: str) -> list[str]:
    found = architecture(model.config)
    files = [found.weight(f"{path}.weight", gguf=g).removesuffix(".weight") for g in (False, True)]
    return [
        path,
        *files,
        *(f.replace(*w) for f, w in [(files[0], _fused(path))] if found.fused and w),
    ]


def _fused(path: str) -> tuple[str, str] | None:
    """Return what a part's projection is called, and the one weight that has it, in files where these are one."""
    last = path.rpartition(".")[2]
    if last in ("q", "k", "v"):
        return f"{last}_proj", "qkv_proj"
    return (f"{last}_proj", "gate_up_proj") if last in ("gate", "up") else None


def merge(model: Model) -> Model:
    """Add the adapters to the weights they stand beside, and take them off; return the model.

    Packed weights are packed again, in their format where it is written here, else as Q8_0.
    """
    for path, adapter in adapters(model).items():
        layer = model.get_submodule(path)
        with no_grad():
            more = adapter.scale * (adapter.b @ adapter.a)
            old = layer.weight
            if isinstance(old, PackedTensor):
                form = old.format if old.format in PACKING else "Q8_0"
                new = quantize(old.dequantize(webtorch.float32) + more, form)
                adapter.hook.remove()
                del layer.lora
                put_packed(model, path, new.to(old.dtype))
            else:
                old.copy_(old + more.to(old.dtype))
    return detach(model)


# ---- files ----------------------------------------------------------------------------------------


def _written(model: Model, alpha: float, gguf: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what files hold: the name of a weight, a and b, to be scaled by alpha / rank."""
    found = architecture(model.config)
    waiting: dict[str, dict[str, Adapter]] = {}
    for path, adapter in adapters(model).items():
        whole = _fused(path)
        if found.fused and whole:
            waiting.setdefault(_file_name(model, path, gguf), {})[path] = adapter
            continue
        b = adapter.b.detach() * (adapter.scale * adapter.rank / alpha)
        if gguf:
            b = permuted_rows(model.config, path, b)
        yield _file_name(model, path, gguf), adapter.a.detach(), b
    for key, members in waiting.items():
        yield key, *_joined(model, members, alpha)


def _file_name(model: Model, path: str, gguf: bool) -> str:
    found, whole = architecture(model.config), _fused(path)
    name = found.weight(f"{path}.weight", gguf)
    if found.fused and whole:
        key = {"qkv_proj": "attn_qkv", "gate_up_proj": "ffn_up"}[whole[1]]
        name = f"blk.{parts(f'{path}.weight')[0]}.{key}.weight" if gguf else name.replace(*whole)
    return name.removesuffix(".weight")


def _joined(model: Model, members: dict[str, Adapter], alpha: float) -> tuple[Tensor, Tensor]:
    """Return one adapter of a weight that parts share: their rows of a, and b where each has its own columns."""
    rank = sum(m.rank for m in members.values())
    path = next(iter(members))
    rows = max(end for _, _, end in fused_parts(model.config, path))
    first = next(iter(members.values()))
    b, at = webtorch.zeros(rows, rank, device=first.b.device), 0
    for name, begin, end in fused_parts(model.config, path):
        member = members.get(f"{path.rpartition('.')[0]}.{name}")
        if member is not None:
            b[begin:end, at : at + member.rank] = member.b.detach() * (member.scale * rank / alpha)
            at += member.rank
    order = [
        members[p]
        for n, _, _ in fused_parts(model.config, path)
        if (p := f"{path.rpartition('.')[0]}.{n}") in members
    ]
    return webtorch.cat([m.a.detach() for m in order]), b


def save(model: Model, path: FilePath, base: str = "") -> None:
    """Write the adapters of a model: a file that ends in .gguf for llama.cpp, else a folder as PEFT has it.

    base: what the model is called. Raises ValueError where there are none.
    """
    held = adapters(model)
    if not held:
        raise ValueError("the model has no adapter")
    first = next(iter(held.values()))
    rank, place = first.rank, Path(path)
    alpha = first.scale * rank
    gguf = place.suffix == ".gguf"
    rows = [
        (n, a.cpu().contiguous(), b.cpu().contiguous()) for n, a, b in _written(model, alpha, gguf)
    ]
    if gguf:
        tensors = {f"{n}.weight.lora_{c}": t for n, a, b in rows for c, t in (("a", a), ("b", b))}
        told = {
            "general.architecture": architecture(model.config).gguf, "general.type": "adapter", "adapter.type": "lora",
            "adapter.lora.alpha": float(alpha),
        }  # fmt: skip
        save_gguf(tensors, place, told)
        return
    place.mkdir(parents=True, exist_ok=True)
    state = {
        f"{_PREFIX}{n}.lora_{c}.weight": t for n, a, b in rows for c, t in (("A", a), ("B", b))
    }
    # Projections whose rank is another one, by their last name where it is the same in all layers.
    each: dict[str, set[int]] = {}
    for n, a, _ in rows:
        each.setdefault(n.rpartition(".")[2], set()).add(a.shape[0])
    shared = {last for last, found in each.items() if len(found) == 1}
    ranks = {
        last if (last := n.rpartition(".")[2]) in shared else n: a.shape[0]
        for n, a, _ in rows
        if a.shape[0] != rank
    }
    said = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True,
        "r": rank, "lora_alpha": alpha, "lora_dropout": first.dropout, "bias": "none", "fan_in_fan_out": False,
        "rank_pattern": ranks, "alpha_pattern": {}, "use_rslora": False, "use_dora": False,
        "target_modules": sorted({n.rpartition(".")[2] for n, _, _ in rows}), "modules_to_save": None,
    }  # fmt: skip
    checkpoint.save(state, place / _WEIGHTS)
    (place / _CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def load(model: Model, path: FilePath, strength: float = 1.0) -> Model:
    """Give a model the adapters of a file, in place of those that it has, and return it.

    path: a folder of PEFT's, or a GGUF file of llama.cpp's. strength: what their scale is multiplied by. Raises
    ModelError for adapters of another model and of kinds that are not read here, SafetensorError, GGUFError and OSError
    for damaged and absent files.
    """
    place = Path(path)
    found = (
        _read_folder(place)
        if place.is_dir()
        else _read_gguf(place, architecture(model.config).gguf)
    )
    gguf, device = not place.is_dir(), model.norm.weight.device
    made: list[tuple[Any, Adapter]] = []
    fused = architecture(model.config).fused
    for layer_path, layer in _layers(model):
        entry = found.get(_file_name(model, layer_path, gguf))
        if entry is None:
            continue
        a, b, scale = entry
        if fused and _fused(layer_path):
            last = layer_path.rpartition(".")[2]
            begin, end = next(
                (s, e) for n, s, e in fused_parts(model.config, layer_path) if n == last
            )
            b = b[begin:end]
        elif gguf:
            b = permuted_rows(model.config, layer_path, b, back=True)
        outputs, inputs = _sizes(layer)
        if a.shape[1:] != (inputs,) or tuple(b.shape) != (outputs, a.shape[0]):
            raise ModelError(
                f"{place}: the adapter of {layer_path} is {tuple(b.shape)} by {tuple(a.shape)}, and the layer "
                f"{(outputs, inputs)}: it belongs to another model"
            )
        kind = webtorch.float32
        made.append((layer, Adapter(a.to(device, kind), b.to(device, kind), scale * strength)))
    known = {_file_name(model, p, gguf) for p, _ in _layers(model)}
    unknown = sorted(set(found) - known)
    if unknown:
        raise ModelError(
            f"{place}: the model has no layer {unknown[0]!r} that an adapter can stand beside"
        )
    detach(model)
    for layer, adapter in made:
        adapter.requires_grad_(False)
        _put(layer, adapter)
    return model


_Found = dict[str, tuple[Tensor, Tensor, float]]


def _read_folder(folder: Path) -> _Found:
    """Return adapters by the names of their layers, with their scales."""
    said = read_json(folder / _CONFIG)
    with reading(folder / _CONFIG):
        alphas = checked("alpha_pattern", said.get("alpha_pattern") or {}, "dict")
        whole = checked("lora_alpha", said.get("lora_alpha", 8), "float")
        for name, alpha in alphas.items():
            checked(f"alpha_pattern of {name}", alpha, "float")
        for name, usual in _USUAL.items():
            if said.get(name, usual[0]) not in usual:
                raise ModelError(f"{name} is {said[name]!r:.80}, whose adapters are not read here")
    records = safetensors.load_file(folder / _WEIGHTS)
    state = {n: weights.tensor_of(r, n, str(folder), "cpu", None) for n, r in records.items()}

    def scale(name: str, rank: int) -> float:
        """Return alpha / rank of a layer."""
        alpha = next((v for k, v in alphas.items() if re.fullmatch(rf"(.*\.)?({k})", name)), whole)
        return float(alpha) / (math.sqrt(rank) if said.get("use_rslora") else rank)

    names = {n.removeprefix(_PREFIX) for n in state}
    return _paired(
        {n.removeprefix(_PREFIX): t for n, t in state.items()},
        names,
        ".lora_A.weight",
        ".lora_B.weight",
        scale,
        folder,
    )


def _read_gguf(path: Path, wanted: str) -> _Found:
    reader = GGUFReader(path)
    told = reader.metadata
    if told.get("general.type") != "adapter" or told.get("adapter.type") != "lora":
        raise ModelError(
            f"{path}: no adapter of low rank: its general.type is {told.get('general.type')!r}"
        )
    if told.get("general.architecture") != wanted:
        raise ModelError(
            f"{path}: the adapter is of {told.get('general.architecture')!r}, and the model of {wanted!r}"
        )
    state = {n: reader.tensor(n, device="cpu") for n in reader.entries}
    alpha = float(told.get("adapter.lora.alpha") or 0.0)

    def scale(_name: str, rank: int) -> float:
        """Return alpha / rank."""
        return alpha / rank if alpha else 1.0

    return _paired(state, set(state), ".weight.lora_a", ".weight.lora_b", scale, path)


def _paired(
    state: Mapping[str, Tensor],
    names: set[str],
    a: str,
    b: str,
    scale: Callable[[str, int], float],
    place: Path,
) -> _Found:
    """Return adapters of tensors that end in `a` and `b`."""
    wrong = sorted(n for n in names if not n.endswith((a, b)))
    if wrong:
        raise ModelError(f"{place}: {wrong[0]!r} is no part of an adapter that is read here")
    out: _Found = {}
    for name in (n.removesuffix(a) for n in names if n.endswith(a)):
        first, second = state[name + a], state.get(name + b)
        if second is None:
            raise ModelError(f"{place}: {name} has no {b[1:]}")
        out[name] = first, second, scale(name, first.shape[0])
    return out
