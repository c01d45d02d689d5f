"""A language model of the Llama kind (Touvron et al., 2023), with the options of `Config`."""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as webtorch
from webtorch.functions.attention import attention_in_parts, part_count
from webtorch.ir.dtype import DType
from webtorch.llm.cache import Cache, Held, Reading
from webtorch.llm.config import Config, Rope
from webtorch.nn import functional as F
from webtorch.nn.container import ModuleList
from webtorch.nn.embedding import Embedding
from webtorch.nn.linear import Linear
from webtorch.nn.module import Module
from webtorch.nn.norm import RMSNorm
from webtorch.nn.parameter import Parameter
from webtorch.quantization import PackedTensor
from webtorch.tensors.tensor import Tensor
from webtorch.utils.checkpoint import checkpoint

Angles = tuple[Tensor, Tensor]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn pairs of channels (i, i + n / 2) of the first n of x (N, heads, T, C).

    angles: cosines (N, 1, T, 1, n / 2), and sines (N, 1, T, 2, n / 2), of which the first are negative.
    """
    cos, sin = angles
    size = 2 * cos.shape[-1]
    pairs = x[..., :size].unflatten(-1, (2, -1))
    out = (pairs * cos + pairs.flip(-2) * sin).flatten(-2)
    return out if size == x.shape[-1] else webtorch.cat([out, x[..., size:]], -1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Return attention (N, heads, T, C) of q (N, heads, T, C) over k and v (N, key heads, S, C).

    mask: (T, S) or (N, 1, T, S), True where a place is seen; None: all before and its own. cap: scores are cap *
    tanh(score / cap) (Gemma 2). sinks: (heads,), a score that takes its part and gives nothing (Xiao et al., 2024).
    """
    count = part_count(q, k, v) if mask is not None else 0
    if count:
        return attention_in_parts(q, k, v, mask, scale, count, cap, sinks)
    if cap is None and sinks is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
    groups = k.shape[1]
    q = q.unflatten(1, (groups, -1))  # (N, key heads, queries of one, T, C)
    scores = q @ k.unsqueeze(2).transpose(-1, -2) * scale
    if cap is not None:
        scores = cap * webtorch.tanh(scores / cap)
    if mask is None:
        t = scores.shape[-2]
        mask = webtorch.ones(t, t, dtype=webtorch.bool, device=q.device).tril()
    mask = mask if mask.ndim == 2 else mask.unsqueeze(1)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        held = sinks.to(scores.dtype).reshape(1, groups, -1, 1, 1).expand(*scores.shape[:-1], 1)
        parts = webtorch.softmax(webtorch.cat([scores, held], -1), -1)[..., :-1]
    else:
        parts = webtorch.softmax(scores, -1)
    return (parts @ v.unsqueeze(2)).flatten(1, 2)


class Attention(Module):
    """Attention in which several heads of queries share keys and values (Ainslie et al., 2023)."""

    sinks: Parameter | None

    def __init__(self, config: Config, layer: int) -> None:
        """Make the projections."""
        super().__init__()
        width, size = config.hidden_size, config.head_dim
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.size, self.norm, self.cap = size, config.qk_norm, config.attention_cap
        self.scale = config.attention_scale or size**-0.5
        self.turns = not config.rotary or config.rotary[layer]
        self.q = Linear(width, heads * size, bias=config.qkv_bias)
        self.k = Linear(width, groups * size, bias=config.qkv_bias)
        self.v = Linear(width, groups * size, bias=config.qkv_bias)
        self.o = Linear(heads * size, width, bias=config.output_bias)
        if self.norm:
            wide = self.norm == "all"
            self.q_norm = RMSNorm(heads * size if wide else size, config.rms_norm_eps)
            self.k_norm = RMSNorm(groups * size if wide else size, config.rms_norm_eps)
        self.register_parameter("sinks", Parameter(webtorch.zeros(heads)) if config.sinks else None)

    def forward(
        self,
        x: Tensor,
        angles: Angles,
        mask: Tensor | None,
        reading: Reading | None,
        held: tuple[Held, Held] | None,
    ) -> Tensor:
        """Return (N, T, width). held: the layer's cache, and `reading` what is written and seen there."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (p.unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (q, k, v))
        if self.norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.turns:
            q, k = rotate(q, angles), rotate(k, angles)
        if held is not None and reading is not None:
            k, v = reading.exchange(held[0], k), reading.exchange(held[1], v)
            mask = reading.mask
        out = attend(q, k, v, mask, self.scale, self.cap, self.sinks)
        return self.o(out.transpose(1, 2).flatten(2))


def _activation(kind: str, gate: Tensor) -> Tensor:
    match kind:
        case "gelu" | "gelu_tanh":
            return F.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
        case "relu":
            return F.relu(gate)
    return F.silu(gate)


class MLP(Module):
    """Two layers, the first with a gate (Shazeer, 2020)."""

    def __init__(self, config: Config, inner: int) -> None:
        """Make the layers."""
        super().__init__()
        width, self.activation = config.hidden_size, config.activation
        self.gate = Linear(width, inner, bias=config.mlp_bias)
        self.up = Linear(width, inner, bias=config.mlp_bias)
        self.down = Linear(inner, width, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return what has the shape of x (N, T, width)."""
        return self.down(_activation(self.activation, self.gate(x)) * self.up(x))


class Expert(Module):
    """The weights of one layer of all experts: (experts, outputs, inputs), of floats or packed."""

    bias: Parameter | None

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool) -> None:
        """Make them, without values."""
        super().__init__()
        self.weight = Parameter(webtorch.zeros(experts, outputs, inputs))
        self.register_parameter(
            "bias", Parameter(webtorch.zeros(experts, outputs)) if bias else None
        )

    def forward(self, x: Tensor, chosen: Tensor | None) -> Tensor:
        """Return (experts, T, outputs) of x (experts or 1, T, inputs); chosen: only these experts, (n,)."""
        bias: Tensor | None = self.bias
        if chosen is not None:
            out = self._of_few(x, chosen)
            bias = None if bias is None else bias[chosen]
        else:
            out = x @ self._whole(x).transpose(1, 2)
        return out if bias is None else out + bias.unsqueeze(1)

    def _whole(self, x: Tensor) -> Tensor:
        return self.weight.to(x.dtype)

    def _of_few(self, x: Tensor, chosen: Tensor) -> Tensor:
        return x @ self.weight[chosen].transpose(1, 2)


class PackedExpert(Expert):
    """The same of a packed weight."""

    def __init__(self, weight: PackedTensor) -> None:
        """Take it. Its bias comes later."""
        Module.__init__(self)
        self.format, self.shape, self.dtype = weight.format, tuple(weight.shape), weight.dtype
        self.register_buffer("blocks", weight.blocks)
        self.register_parameter("bias", None)

    @property
    def packed(self) -> PackedTensor:
        """The packed weight."""
        return PackedTensor.over(self.blocks, self.format, self.shape, self.dtype)

    def _whole(self, x: Tensor) -> Tensor:
        return self.packed.dequantize(x.dtype)

    def _of_few(self, x: Tensor, chosen: Tensor) -> Tensor:
        # The blocks of a few experts are copied, and read as those of one matrix.
        (experts, rows, columns), blocks = self.shape, self.packed.blocks
        size, rest = divmod(self.packed.nbytes, experts * blocks.dtype.itemsize)
        if rest or experts * size != blocks.numel():
            return x @ self._whole(x)[chosen].transpose(1, 2)
        taken = blocks.view(experts, size).index_select(0, chosen).reshape(-1)
        count = chosen.shape[0]
        few = PackedTensor.over(taken, self.format, (count, rows, columns), self.dtype)
        if x.shape[0] == 1:
            flat = PackedTensor.over(taken, self.format, (count * rows, columns), self.dtype)
            return flat.linear(x[0]).unflatten(-1, (count, rows)).transpose(0, 1)
        return webtorch.stack([few[i].linear(x[i]) for i in range(count)])


class Experts(Module):
    """All experts of a layer: gate, up and down."""

    def __init__(self, config: Config) -> None:
        """Make the layers."""
        super().__init__()
        count, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.activation, self.limit = config.activation, config.expert_limit
        self.gate = Expert(count, width, inner, config.expert_bias)
        self.up = Expert(count, width, inner, config.expert_bias)
        self.down = Expert(count, inner, width, config.expert_bias)

    def forward(self, x: Tensor, chosen: Tensor | None) -> Tensor:
        """Return (experts, T, width) of x (1, T, width)."""
        gate, up = self.gate(x, chosen), self.up(x, chosen)
        if self.limit is None:
            inner = _activation(self.activation, gate) * up
        else:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
            inner = gate * webtorch.sigmoid(1.702 * gate) * (up + 1.0)
        return self.down(inner, chosen)


class Mixture(Module):
    """Each token goes through the few experts that a router gives it (Shazeer et al., 2017).

    One token reads the weights of its experts only. Of more tokens every expert computes all, and what is not
    chosen counts for nothing: no shape follows from data, so the program is one. With `places` each computes as many
    of those that chose it; `wanted` is then how many there are at most, and what was computed is only right if that is
    no more than `places`.
    """

    places: int | None = None
    wanted: Tensor | None = None

    def __init__(self, config: Config) -> None:
        """Make the router and the experts."""
        super().__init__()
        self.used, self.normed = config.num_experts_per_tok, config.norm_topk_prob
        self.router = Linear(config.hidden_size, config.num_experts, bias=config.expert_bias)
        self.experts = Experts(config)
        if config.shared_intermediate_size:
            self.shared = MLP(config, config.shared_intermediate_size)
            self.shared_gate = Linear(config.hidden_size, 1, bias=False)
        self.has_shared = bool(config.shared_intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return what has the shape of x (N, T, width)."""
        rows = x.flatten(0, -2)
        chances = webtorch.softmax(self.router(rows).float(), -1)
        top, which = chances.topk(self.used, -1)  # (rows, used)
        if self.normed:
            top = top / top.sum(-1, keepdim=True)
        top = top.to(x.dtype)
        if rows.shape[0] == 1:
            found = self.experts(rows.unsqueeze(0), which[0])  # (used, 1, width)
            out = (top.t().unsqueeze(-1) * found).sum(0)
        elif self.places is not None and self.places < rows.shape[0]:
            out = self._gathered(rows, top, which, self.places)
        else:
            weights = webtorch.zeros_like(chances, dtype=x.dtype).scatter(-1, which, top)
            found = self.experts(rows.unsqueeze(0), None)  # (experts, rows, width)
            out = (weights.t().unsqueeze(-1) * found).sum(0)
        if self.has_shared:
            out = out + webtorch.sigmoid(self.shared_gate(rows)) * self.shared(rows)
        return out.view_as(x)

    def _gathered(self, rows: Tensor, top: Tensor, which: Tensor, places: int) -> Tensor:
        """Return what experts make of the rows that chose them, `places` of each."""
        count, experts = rows.shape[0], self.router.out_features
        chosen = webtorch.zeros(count, experts, device=rows.device, dtype=webtorch.int64)
        sums = chosen.scatter(1, which, webtorch.ones_like(which)).cumsum(0)
        self.wanted = sums[-1].amax()
        rank = sums.gather(1, which) - 1  # of a row among those of its expert
        spare = experts * places
        slots = webtorch.where(rank < places, which * places + rank, spare)
        here = webtorch.arange(count, device=rows.device).unsqueeze(1).expand_as(slots)
        table = webtorch.zeros(spare + 1, dtype=webtorch.int64, device=rows.device)
        table = table.scatter(0, slots.flatten(), here.flatten())
        taken = rows.index_select(0, table[:spare]).unflatten(0, (experts, places))
        found = self.experts(taken, None).flatten(0, 1)
        each = found.index_select(0, slots.clamp(max=spare - 1).flatten()).unflatten(0, slots.shape)
        return (top.unsqueeze(-1) * each).sum(1)


class Layer(Module):
    """Attention and a perceptron, each added to what comes in."""

    def __init__(self, config: Config, layer: int) -> None:
        """Make the layers."""
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.before, self.after, self.scale = (
            config.norm_before,
            config.norm_after,
            config.residual_scale,
        )
        self.attention = Attention(config, layer)
        self.mlp = (
            Mixture(config) if config.experts(layer) else MLP(config, config.intermediate_size)
        )
        if self.before:
            self.attention_norm, self.mlp_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        if self.after:
            self.attention_after, self.mlp_after = RMSNorm(width, eps), RMSNorm(width, eps)

    def forward(self, x: Tensor, *where: Any) -> Tensor:
        """Return (N, T, width); `where` is what attention takes besides."""
        out = self.attention(self.attention_norm(x) if self.before else x, *where)
        x = x + self._added(self.attention_after(out) if self.after else out)
        out = self.mlp(self.mlp_norm(x) if self.before else x)
        return x + self._added(self.mlp_after(out) if self.after else out)

    def _added(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale


class Model(Module):
    """Tokens to layers to logits."""

    def __init__(self, config: Config) -> None:
        """Make the layers, with random weights."""
        super().__init__()
        self.config = config
        # Whether a backward pass computes the layers again, rather than that all of them is kept for it.
        self.recompute = False
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.layers = ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        at: Tensor | None = None,
        cache: Cache | None = None,
        wanted: Tensor | None = None,
        length: int | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return logits (N, T, vocabulary) of tokens (N, T), int64.

        at: their places (N, T), int64 on the device, with a cache: keys and values are written there, in the texts
        `rows` (N,), by default the first N; the first `length` places are read, all of them by default. wanted: of
        which of the T there are logits (n,), all by default.
        """
        hidden = self.hidden(tokens, at, cache, length, rows)
        return self.logits(hidden if wanted is None else hidden.index_select(1, wanted))

    def hidden(
        self,
        tokens: Tensor,
        at: Tensor | None = None,
        cache: Cache | None = None,
        length: int | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return what comes out of the last norm, (N, T, width); arguments as of `forward`."""
        config, count = self.config, tokens.shape[1]
        x = self.embed(tokens)
        if config.embedding_scale != 1.0:
            x = x * config.embedding_scale
        context = count if cache is None else cache.context
        places = webtorch.arange(count, device=x.device).unsqueeze(0) if at is None else at
        angles = self._angles(config.rope, places, context, x.dtype)
        local = config.local_rope
        near = angles if local is None else self._angles(local, places, context, x.dtype)
        masks = self._masks(places) if cache is None else (None, None)
        readings: dict[bool, Reading] = {}
        for i, layer in enumerate(self.layers):
            wide = config.window(i) is None
            held = None if cache is None else cache.layers[i]
            if cache is not None and wide not in readings:
                readings[wide] = Reading(cache, i, places, rows, length)
            where = angles if wide else near, masks[not wide], readings.get(wide), held
            if self.recompute and held is None:
                x = checkpoint(layer, x, *where, use_reentrant=False)
            else:
                x = layer(x, *where)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (N, T, vocabulary) of (N, T, width)."""
        config = self.config
        head = self.embed if config.tie_word_embeddings else self.head
        weight: Any = head.weight
        # Its own method: a call by way of `__torch_function__` would keep a step from being followed.
        packed = isinstance(weight, PackedTensor)
        out: Tensor = weight.linear(hidden) if packed else F.linear(hidden, weight)
        if config.logit_divisor != 1.0:
            out = out / config.logit_divisor
        if config.logit_cap is not None:
            out = config.logit_cap * webtorch.tanh(out / config.logit_cap)
        return out

    def _angles(self, rope: Rope, places: Tensor, context: int, dtype: DType) -> Angles:
        """Return cosines and sines of the angles at places (N, T), as `rotate` takes them."""
        rates, scale = rope.frequencies(context)
        turned = places[:, None, :, None, None].float() * webtorch.tensor(
            rates, device=places.device
        )
        cos, sin = (turned.cos() * scale).to(dtype), (turned.sin() * scale).to(dtype)
        return cos, webtorch.cat([-sin, sin], -2)

    def _masks(self, places: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return who sees whom, (T, T): without and with a window. None: all that came before."""
        width, count = self.config.sliding_window, places.shape[1]
        if width is None or count <= width:
            return None, None
        there, here = places, places.transpose(0, 1)
        return None, (there <= here) & (there > here - width)
