"""Weights of a model from Hugging Face's folders and from GGUF files, as `webtorch.llm.model` has them, and back."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from webtorch.functions import public as webtorch
from webtorch.io import safetensors, weights
from webtorch.io.gguf import GGUFReader, save_gguf, write_gguf
from webtorch.io.safetensors import FilePath
from webtorch.ir.dtype import DType
from webtorch.llm.architectures import architecture, gguf_metadata, parts, refuse_unsaid
from webtorch.llm.config import Config, ModelError
from webtorch.llm.mixes import chooser
from webtorch.llm.model import Expert, Model, PackedExpert
from webtorch.llm.packings import METHODS
from webtorch.nn.embedding import Embedding
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.quantization import FORMATS, PackedEmbedding, PackedLinear, PackedTensor, quantize
from webtorch.tensors.tensor import Tensor

# The rows of these are turned by places.
_TURNED = {"attention.q": "num_attention_heads", "attention.k": "num_key_value_heads"}
# Parts of one weight in files of some, and its name in GGUF.
_FUSED = {
    "attention.q": "attn_qkv", "attention.k": "attn_qkv", "attention.v": "attn_qkv", "mlp.gate": "ffn_up",
    "mlp.up": "ffn_up",
}  # fmt: skip
_EXPERTS = "mlp.experts."


class Weights(Protocol):
    """Where weights come from."""

    def weight(self, name: str, like: Tensor) -> Tensor | PackedTensor:
        """Return the weight of a name, of the shape of `like`. Raises ModelError where there is none."""


def fill(model: Model, source: Weights) -> None:
    """Give a model, made on the device "meta", its weights, one after the other; none asks for a gradient."""
    for name, empty in list(model.named_parameters()):
        found = source.weight(name, empty)
        if tuple(found.shape) != tuple(empty.shape):
            raise ModelError(
                f"{name} has the shape {tuple(found.shape)}, and {tuple(empty.shape)} by the model's sizes"
            )
        path, _, last = name.rpartition(".")
        if isinstance(found, PackedTensor):
            put_packed(model, path, found)
        elif not found.is_floating_point():
            raise ModelError(f"{name} is {found.dtype}, and a weight is of floats")
        else:
            setattr(model.get_submodule(path), last, Parameter(found, requires_grad=False))


_LAYERS: dict[type[Module], Callable[[PackedTensor], Module]] = {
    Linear: PackedLinear, Embedding: PackedEmbedding, Expert: PackedExpert,
}  # fmt: skip


def put_packed(model: Model, path: str, weight: PackedTensor) -> None:
    """Put the layer of a packed weight into a layer's place, with its bias."""
    above, _, last = path.rpartition(".")
    owner = model.get_submodule(above)
    old = getattr(owner, last)
    new = _LAYERS.get(type(old), type(old))(weight)
    if getattr(old, "bias", None) is not None:
        new.bias = old.bias
    setattr(owner, last, new)


def _rows(config: Config, path: str) -> tuple[int, int]:
    """Return which rows of the one weight of queries, keys and values a part is, or of gates and values."""
    if path in ("mlp.gate", "mlp.up"):
        begin = 0 if path == "mlp.gate" else config.intermediate_size
        return begin, begin + config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    return {"attention.q": (0, q), "attention.k": (q, q + kv), "attention.v": (q + kv, q + 2 * kv)}[
        path
    ]


def fused_parts(config: Config, path: str) -> list[tuple[str, int, int]]:
    """Return the parts of the one weight that a layer is of, where files fuse: their names and rows, in order."""
    names = ("q", "k", "v") if "attention." in path else ("gate", "up")
    above = "attention" if len(names) == 3 else "mlp"
    return [(n, *_rows(config, f"{above}.{n}")) for n in names]


class FolderWeights:
    """A folder of Hugging Face's with safetensors."""

    def __init__(
        self,
        config: Config,
        folder: FilePath,
        device: Any,
        dtype: DType | None,
        packing: dict[str, Any] | None = None,
        packed: bool = True,
    ) -> None:
        """Map the files. packing: config.json's quantization_config. packed: whether such weights stay packed."""
        self.config, self.folder, self.device, self.dtype = config, os.fspath(folder), device, dtype
        self.found, self.packing, self.packed = architecture(config), packing or {}, packed
        self.records: dict[str, tuple[safetensors.RawTensor, str]] = {}
        for file, listed in weights.shards(folder).items():
            for key, record in safetensors.load_file(file, allow_misaligned=True).items():
                if listed is None or key in listed:
                    self.records[key] = record, file
        # "model.", but what a model that also sees images has around it.
        ends = [k for k in self.records if k.endswith("embed_tokens.weight")]
        if not ends:
            raise ModelError(f"{self.folder}: there is no embed_tokens.weight")
        self.root = min(ends, key=len).removesuffix("embed_tokens.weight")

    def _name(self, key: str) -> str:
        return self.root + key.removeprefix("model.") if key.startswith("model.") else key

    def read(self, key: str, device: Any = None) -> Tensor:
        """Return a tensor of the files."""
        name = self._name(key)
        if name not in self.records:
            raise ModelError(f"{self.folder}: there is no tensor {name!r}")
        record, file = self.records[name]
        return weights.tensor_of(record, name, file, device or self.device, None)

    def matrix(self, key: str) -> Tensor | PackedTensor:
        """Return a tensor of the files, or what a packer made of it."""
        read = METHODS.get(self.packing.get("quant_method", ""))
        if read is not None and key.endswith(".weight"):
            layer = self._name(key).removesuffix("weight")

            def part(name: str) -> Tensor | None:
                """Return a tensor of the layer."""
                found = layer + name
                return self.read(found, "cpu") if found in self.records else None

            try:
                out = read(part, self.packing, self.dtype or webtorch.float32)
            except (ValueError, LookupError, TypeError, RuntimeError, ArithmeticError) as error:
                # Of tensors that do not belong together, whatever finds it.
                method = self.packing["quant_method"]
                raise ModelError(f"{layer}weight is not packed by {method}: {error}") from None
            if out is not None:
                out = out.to(self.device) if self.device is not None else out
                return out if self.packed or isinstance(out, Tensor) else out.dequantize()
        found = self.read(key)
        return (
            found if self.dtype is None or not found.is_floating_point() else found.to(self.dtype)
        )

    def weight(self, name: str, like: Tensor) -> Tensor | PackedTensor:
        """Return the weight of a name."""
        _, path, kind = parts(name)
        key = self.found.weight(name, gguf=False)
        if self.found.norm_from_one and path.endswith(("norm", "after")):
            return self._typed(self.read(key).float() + 1.0)
        if self.found.fused and path in _FUSED:
            fused = key.replace(
                path.split(".")[1] + "_proj", "qkv_proj" if "attention" in path else "gate_up_proj"
            )
            begin, end = _rows(self.config, path)
            return self.matrix(fused)[begin:end]
        if not path.startswith(_EXPERTS):
            return self.matrix(key)
        if not self.found.stacked:
            experts = [self.matrix(key.replace("{e}", str(e))) for e in range(like.shape[0])]
            return _each(experts, webtorch.stack)
        # (experts, inputs, outputs), gates and values in turns (gpt-oss).
        whole = key.removesuffix(f".{kind}")
        if kind == "weight" and self._name(f"{whole}_blocks") in self.records:
            return self._mxfp4(whole, path)
        both = self.read(whole + ("_bias" if kind == "bias" else ""))
        if not path.endswith("down"):
            both = both[..., int(path.endswith("up")) :: 2]
        return self._typed(both if kind == "bias" else both.transpose(1, 2)).contiguous()

    def _mxfp4(self, key: str, path: str) -> PackedTensor:
        """Return experts of 4 bits (OCP Microscaling Formats, 2023): here neighbours share a byte, in GGUF those
        that are 16 apart.
        """
        blocks, scales = self.read(f"{key}_blocks", "cpu"), self.read(f"{key}_scales", "cpu")
        if not path.endswith("down"):
            first = int(path.endswith("up"))
            blocks, scales = blocks[:, first::2], scales[:, first::2]
        each = webtorch.stack([blocks & 15, blocks >> 4], -1).flatten(
            -2
        )  # (experts, rows, groups, 32)
        data = webtorch.cat([scales.unsqueeze(-1), each[..., :16] | (each[..., 16:] << 4)], -1)
        shape = (*scales.shape[:2], 32 * scales.shape[2])
        made = PackedTensor(data.contiguous(), "MXFP4", shape, self.dtype)
        return made.to(self.device) if self.device is not None else made

    def _typed(self, t: Tensor) -> Tensor:
        return t if self.dtype is None or not t.is_floating_point() else t.to(self.dtype)


class Place(NamedTuple):
    """Where a GGUF file has a weight: a tensor, which of its rows, and for how many heads these are in pairs."""

    tensor: str
    rows: tuple[int, int] | None = None
    heads: int | None = None


class GGUFWeights:
    """A GGUF file."""

    def __init__(
        self,
        config: Config,
        reader: GGUFReader,
        device: Any,
        dtype: DType | None,
        packed: bool = True,
    ) -> None:
        """Take an open file. packed: whether quantised weights stay as they are in it."""
        self.config, self.reader, self.device, self.dtype = config, reader, device, dtype
        self.found, self.packed = architecture(config), packed

    def read(self, key: str, device: Any = None) -> Tensor | PackedTensor:
        """Return a tensor of the file."""
        if key not in self.reader.entries:
            raise ModelError(f"{self.reader.file}: there is no tensor {key!r}")
        read = self.reader.packed if self.packed else self.reader.tensor
        return read(key, device=device or self.device, dtype=self.dtype)

    def weight(self, name: str, like: Tensor) -> Tensor | PackedTensor:
        """Return the weight of a name."""
        place = self.place(name)
        if place is None:
            # Files of the first mixtures have a tensor for each expert.
            key = self.found.weight(name, gguf=True)
            singles = [
                self.read(key.replace("_exps.", f".{e}."), "cpu") for e in range(like.shape[0])
            ]
            return _each(singles, webtorch.stack).to(self.device)
        if place.rows is not None:
            begin, end = place.rows
            return self.read(place.tensor)[begin:end]
        if place.heads is not None:
            whole = self.read(place.tensor, "cpu")
            return _each([whole], functools.partial(_unpermuted, place.heads)).to(self.device)
        out = self.read(place.tensor)
        shared = parts(name)[1] == "mlp.shared_gate"
        return out.reshape(like.shape) if isinstance(out, Tensor) and shared else out

    def place(self, name: str) -> Place | None:
        """Return where the weight of a name is; None: in tensors for each expert."""
        number, path, kind = parts(name)
        key, here = self.found.weight(name, gguf=True), self.reader.entries
        if path in (*_TURNED, "attention.v") and key not in here and self.found.fused:
            return Place(f"blk.{number}.attn_qkv.{kind}", _rows(self.config, path))
        if path in ("mlp.gate", "mlp.up") and self.found.fused:
            return Place(f"blk.{number}.ffn_up.{kind}", _rows(self.config, path))
        if path.startswith(_EXPERTS) and key not in here:
            return None
        if self.found.permuted and path in _TURNED:
            return Place(key, heads=getattr(self.config, _TURNED[path]))
        return Place(key)


def _unpermuted(heads: int, whole: list[Tensor]) -> Tensor:
    """Return rows of q or k, or their bytes, which were neighbours of pairs, half by half."""
    return whole[0].unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _permuted(heads: int, whole: list[Tensor]) -> Tensor:
    """Return rows of q or k, or their bytes, so that pairs are neighbours."""
    return whole[0].unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def permuted_rows(config: Config, path: str, rows: Tensor, back: bool = False) -> Tensor:
    """Return the rows (outputs, n) of a layer in the order that GGUF has, or back in ours."""
    _, name, _ = parts(f"{path}.weight")
    if name not in _TURNED or not architecture(config).permuted:
        return rows
    return (_unpermuted if back else _permuted)(getattr(config, _TURNED[name]), [rows])


def _each(
    whole: Sequence[Tensor | PackedTensor], change: Callable[[list[Tensor]], Tensor]
) -> Tensor | PackedTensor:
    """Return what a change of rows makes of tensors, or of the bytes of packed ones."""
    packed = [t for t in whole if isinstance(t, PackedTensor)]
    if len(packed) < len(whole):
        return change([t.dequantize() if isinstance(t, PackedTensor) else t for t in whole])
    out = change([t.bytes() for t in packed])
    first = packed[0]
    return PackedTensor(out, first.format, (*out.shape[:-1], first.shape[-1]), first.dtype)


def weight_bytes(reader: GGUFReader, dtype: DType, packed: bool) -> int:
    """Return how much memory the weights of a GGUF file take."""
    total = 0
    for entry in reader.entries.values():
        stays = packed and entry.type in FORMATS
        total += entry.end - entry.begin if stays else math.prod(entry.shape) * dtype.itemsize
    return total


def packed_bytes(folder: FilePath) -> int | None:
    """Return how much memory the weights of a folder take that are packed in it; None where they are floats."""
    found = [
        r
        for file in weights.shards(folder)
        for r in safetensors.load_file(file, allow_misaligned=True).values()
    ]
    return None if all("float" in r.dtype for r in found) else sum(r.nbytes for r in found)


def named_weights(model: Model) -> Iterator[tuple[str, Tensor | PackedTensor]]:
    """Yield the names and the weights of a model, also of layers that keep them packed.

    Raises ModelError for a model with an adapter, whose weights are not all that it computes with.
    """
    for path, module in model.named_modules():
        if path.endswith(".lora"):
            raise ModelError(
                "the model has an adapter: merge it (llm.lora.merge), or take it off (llm.lora.detach)"
            )
        if isinstance(module, (PackedLinear, PackedEmbedding)):
            yield f"{path}.weight", module.weight
        elif isinstance(module, PackedExpert):
            yield f"{path}.weight", module.packed
        for last, weight in module.named_parameters(recurse=False):
            yield f"{path}.{last}", weight.detach()


def quantize_(model: Model, format: str) -> Model:
    """Pack the matrices of a model in place, all but routers and those whose rows no blocks fill; return it.

    format: a name of `webtorch.quantization.FORMATS` that is written here (Q8_0, Q4_K, ...), or a mix of llama.cpp's
    (Q4_K_M, ...). Raises ValueError for others.
    """
    choose = chooser(format, model.config)
    for name, weight in list(named_weights(model)):
        if isinstance(weight, Tensor):
            found = choose(gguf_name(model.config, name), weight.shape)
            if found is not None:
                put_packed(model, name.removesuffix(".weight"), quantize(weight, found))
    return model


def gguf_name(config: Config, name: str) -> str:
    """Return what a file calls a weight, or the one that it is a part of there."""
    number, path, kind = parts(name)
    if architecture(config).fused and path in _FUSED:
        return f"blk.{number}.{_FUSED[path]}.{kind}"
    return architecture(config).weight(name, gguf=True)


def _written(
    config: Config, named: Iterable[tuple[str, Tensor | PackedTensor]]
) -> Iterator[tuple[str, Tensor | PackedTensor]]:
    """Yield what a GGUF file of a model holds, names and tensors, for its weights."""
    found = architecture(config)
    waiting: dict[str, list[Tensor | PackedTensor]] = {}
    for name, t in named:
        _, path, _ = parts(name)
        key = gguf_name(config, name)
        if isinstance(t, Tensor) and (t.ndim == 1 or path == "mlp.shared_gate"):
            t = t.float()
        if found.permuted and path in _TURNED:
            heads = getattr(config, _TURNED[path])
            t = _each([t], functools.partial(_permuted, heads))
        if found.fused and path in _FUSED:
            waiting.setdefault(key, []).append(t)
            if path not in ("attention.v", "mlp.up"):
                continue
            t = _each(waiting.pop(key), webtorch.cat)
        yield key, t.reshape(-1) if isinstance(t, Tensor) and path == "mlp.shared_gate" else t
    for key, divisors in _factors(config).items():
        yield key, webtorch.tensor(divisors)


def _factors(config: Config) -> dict[str, list[float]]:
    """Return the tensors of divisors of rotary places that a GGUF file of a model has."""
    rope = config.rope
    if rope.kind in ("llama3", "factors"):
        rates, _ = rope.frequencies(config.max_position_embeddings)
        plain = [rope.theta ** (-2.0 * i / rope.dim) for i in range(len(rates))]
        return {"rope_freqs.weight": [p / r for p, r in zip(plain, rates, strict=True)]}
    if rope.kind == "longrope":
        return {
            "rope_factors_short.weight": list(rope.short),
            "rope_factors_long.weight": list(rope.long),
        }
    return {}


def save(model: Model, path: FilePath, metadata: Mapping[str, object] | None = None) -> None:
    """Write a model as a GGUF file, with its sizes and further metadata (the tokenizer's, a template).

    Matrices keep their type, packed ones too; vectors are float32, as llama.cpp has them. Raises GGUFError for types
    that the format lacks, ModelError for options of the model that it does not say.
    """
    found = dict(_written(model.config, named_weights(model)))
    refuse_unsaid(
        model.config, {k: tuple(t.shape) for k, t in found.items()}, _factors(model.config)
    )
    save_gguf(found, path, {**gguf_metadata(model.config), **(metadata or {})})


def save_quantized(
    config: Config,
    source: Weights,
    path: FilePath,
    format: str,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Write a GGUF file of weights as they come from their file, packed as by `quantize_`, one after the other.

    Raises as `quantize_` and `save`.
    """  # fmt: skip
    choose = chooser(format, config)
    with webtorch.device("meta"):
        empty = dict(Model(config).named_parameters())
        shapes = {key: tuple(t.shape) for key, t in _written(config, empty.items())}
    refuse_unsaid(config, shapes, _factors(config))

    def read() -> Iterator[tuple[str, Tensor | PackedTensor]]:
        """Yield what is written."""
        for key, t in _written(config, ((n, source.weight(n, e)) for n, e in empty.items())):
            kind = choose(key, t.shape) if isinstance(t, Tensor) else None
            yield key, t if kind is None or isinstance(t, PackedTensor) else quantize(t, kind)

    write_gguf(shapes, read(), path, {**gguf_metadata(config), **(metadata or {})})
