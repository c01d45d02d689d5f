"""A Llama (Touvron et al., 2023) that learns to talk about a village, and then answers.

    python examples/chat.py                         # --device cpu or webgpu, --compile, --quick
    python examples/chat.py --weights FOLDER        # a Llama 3 from Hugging Face: safetensors, tokenizer.json

In a terminal it is a conversation, else some questions are asked. Keys and values lie in a cache of one
size that a compiled step writes in place, so that every token is the same program; questions are read in
pieces of one length, of which what is too much is written over. Turns are marked as in Llama 3.
Change the first import to `import torch` and the file runs in PyTorch, but for --weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import webtorch as torch
from webtorch.io import Tokenizer, load_model

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

PEOPLE = {
    "Ada": ("she", "Bergen", "cat", "baker"),
    "Tom": ("he", "Lyon", "dog", "smith"),
    "Eva": ("she", "Turin", "goat", "pilot"),
    "Max": ("he", "Porto", "horse", "tailor"),
    "Ida": ("she", "Ghent", "parrot", "doctor"),
    "Leo": ("he", "Krakow", "turtle", "painter"),
}
HELLO = "Hello! Ask me about the village."
Dialogue = list[tuple[str, str]]  # what the user says, and the answer
START, HEAD, BODY, STOP = (
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
LENGTH = 80  # tokens of a dialogue to learn from
PIECE = 16  # tokens of a question that are read at once


def facts(name: str) -> list[tuple[list[str], str]]:
    """Return for each fact about someone: questions, the first with a space for the name, and the answer."""
    _, town, pet, trade = PEOPLE[name]
    return [
        (["Where does {} live?", f"Who lives in {town}?"], f"{name} lives in {town}."),
        (["Which animal does {} have?", f"Who has a {pet}?"], f"{name} has a {pet}."),
        (["What is {}?", f"Who is a {trade}?"], f"{name} is a {trade}."),
    ]


def dialogue(draw: random.Random, turns: int = 3) -> Dialogue:
    """Return questions and answers. One that says "she" or "he" is of whom the last answer was about."""
    out: Dialogue = []
    name = ""
    for _ in range(turns):
        kind = draw.random()
        if kind < 0.1:
            out.append((draw.choice(["Hello!", "Hi!"]), HELLO))
            name = ""
        elif name and kind < 0.6:
            questions, answer = draw.choice(facts(name))
            out.append((questions[0].format(PEOPLE[name][0]), answer))
        else:
            name = draw.choice(list(PEOPLE))
            questions, answer = draw.choice(facts(name))
            out.append((draw.choice(questions).format(name), answer))
    return out


def turn(role: str, text: str) -> str:
    """Return what someone says, as the model reads it."""
    return f"{HEAD}{role}{BODY}\n\n{text}{STOP}"


def asked(question: str) -> str:
    """Return a question, and what an answer begins with."""
    return turn("user", question) + f"{HEAD}assistant{BODY}\n\n"


def learn_tokens() -> Tokenizer:
    """Return a tokenizer of the village's words."""
    draw = random.Random(0)
    texts = [turn("user", q) + turn("assistant", a) for _ in range(300) for q, a in dialogue(draw)]
    return Tokenizer.train(texts, 400, special=(START, HEAD, BODY, STOP))


TOKENIZER = learn_tokens()


@dataclass(frozen=True)
class Config:
    """The sizes of a model, by their names in config.json; the defaults are those of the small one here."""

    vocab_size: int = len(TOKENIZER)
    hidden_size: int = 64
    intermediate_size: int = 160
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = True
    context: int = 256


def rates(config: Config) -> Any:
    """Return the angle by which each pair of channels turns from one place to the next, (C / 2)."""
    powers = torch.arange(0, config.head_dim, 2) / config.head_dim
    rate = config.rope_theta**-powers
    if config.rope_scaling is None:
        return rate
    # Llama 3.1: what turns less than `low` times in the context it was first trained with is slowed down.
    factor, low, high, length = (
        config.rope_scaling[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )  # fmt: skip
    kept = ((length * rate / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return rate * (kept + (1 - kept) / factor)


def rotate(x: Any, angles: Any) -> Any:
    """Turn each pair of channels of x (N, heads, T, C) by its angle (T, C / 2) (Su et al., 2021)."""
    a, b = x.chunk(2, -1)
    c, s = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


class Attention(nn.Module):
    """Attention in which several heads of queries share keys and values (Ainslie et al., 2023)."""

    def __init__(self, config: Config) -> None:
        """Make the projections."""
        super().__init__()
        self.size, width = config.head_dim, config.hidden_size
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(width, heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(heads * self.size, width, bias=False)

    def forward(self, x: Any, angles: Any, at: Any, cache: Any) -> Any:
        """Return (N, T, width). cache: keys and values (N, groups, context, C), written at `at` (T), or None."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )  # (N, heads, T, C)
        q, k, mask = rotate(q, angles), rotate(k, angles), None
        if cache is not None:
            keys, values = cache
            k, v = keys.index_copy_(2, at, k), values.index_copy_(2, at, v)
            places = torch.arange(keys.shape[2], device=x.device)
            mask = places <= at.unsqueeze(1)  # (T, context): what was said till then
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Two layers, the first with a gate (Shazeer, 2020)."""

    def __init__(self, config: Config) -> None:
        """Make the layers."""
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any) -> Any:
        """Return what has the shape of x."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and SwiGLU, each of what is normed, and added to what comes in."""

    def __init__(self, config: Config) -> None:
        """Make the layers."""
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Any, angles: Any, at: Any, cache: Any) -> Any:
        """Return (N, T, width)."""
        x = x + self.self_attn(self.input_layernorm(x), angles, at, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Tokens to blocks to logits; the layers have the names of Hugging Face's files."""

    def __init__(self, config: Config) -> None:
        """Make the layers."""
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        # A piece that begins at the last place goes on behind it.
        angles = torch.outer(torch.arange(config.context + PIECE), rates(config))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: Any, at: Any = None, caches: Any = None, wanted: Any = None) -> Any:
        """Return logits (N, T, tokens) of tokens (N, T).

        at: their places (T), with caches. wanted: of which of the T there are logits.
        """
        angles = self.angles[: x.shape[1]] if at is None else self.angles[at]
        out = self.embed_tokens(x)
        for i, layer in enumerate(self.layers):
            out = layer(out, angles, at, None if caches is None else caches[i])
        if wanted is not None:
            out = out.index_select(1, wanted)
        return self.lm_head(self.norm(out))

    def empty_caches(self) -> list[tuple[Any, Any]]:
        """Return keys and values for each block, of one text."""
        config, like = self.config, self.embed_tokens.weight
        shape = (1, config.num_key_value_heads, len(self.angles), config.head_dim)
        return [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.layers]


def build(config: Config | None = None) -> Llama:
    """Return the model, the small one if no sizes are given."""
    return Llama(config or Config())


def batch(step: int, size: int = 16) -> tuple[Any, Any]:
    """Return dialogues (N, LENGTH), and the same one token later; what is no answer is -100."""
    draw, rows, targets = random.Random(step), [], []
    for _ in range(size):
        row, target = [TOKENIZER.special[START]], [-100]
        for question, answer in dialogue(draw):
            given = TOKENIZER.encode(asked(question))
            said = TOKENIZER.encode(answer + STOP)
            row += given + said
            target += [-100] * len(given) + said
        space = [0] * (LENGTH + 1 - len(row))
        rows.append((row + space)[: LENGTH + 1])
        targets.append((target + [-100 for _ in space])[: LENGTH + 1])
    return torch.tensor(rows)[:, :-1], torch.tensor(targets)[:, 1:]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean cross entropy of the answers' tokens."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=5e-4)

    def update(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        x, y = (t.to(device) for t in batch(step))
        losses.append(update(x, y).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def drawn(logits: Any, temperature: float, top_p: float) -> Any:
    """Return a token (1, 1), drawn from the fewest whose probabilities add up to top_p (Holtzman et al., 2020)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    chances, which = F.softmax(logits.float() / temperature, -1).sort(-1, descending=True)
    kept = chances.masked_fill(chances.cumsum(-1) - chances > top_p, 0.0)
    # A draw as multinomial's; that looks at its weights first, which a program cannot.
    best = (kept / torch.empty_like(kept).exponential_()).argmax(-1, keepdim=True)
    return which.gather(1, best)


class Chat:
    """A conversation: what was said is in the cache, and only what is new is read."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, temperature: float = 0.6, top_p: float = 0.9
    ) -> None:
        """Begin. temperature 0: always the likeliest token."""
        self.model, self.tokenizer = model.eval(), tokenizer
        self.device = model.embed_tokens.weight.device
        self.begin()

        # Its inputs have one form each for questions and for answers: two programs.
        @torch.no_grad()
        def step(tokens: Any, at: Any, caches: Any, wanted: Any) -> Any:
            return drawn(model(tokens, at, caches, wanted)[:, -1], temperature, top_p)

        self.step = torch.compile(step)

    def begin(self) -> None:
        """Forget what was said."""
        self.caches, self.place = self.model.empty_caches(), 0
        self.unread = [self.tokenizer.special[START]]

    def read(self) -> Any:
        """Put what is not read yet into the cache, piece by piece; return the token that follows."""
        token = None
        while self.unread:
            piece, self.unread = self.unread[:PIECE], self.unread[PIECE:]
            width = 1 if len(piece) == 1 else PIECE
            tokens = torch.tensor([piece + [0] * (width - len(piece))], device=self.device)
            at = torch.arange(self.place, self.place + width, device=self.device)
            wanted = torch.tensor([len(piece) - 1], device=self.device)
            token = self.step(tokens, at, self.caches, wanted)
            self.place += len(piece)
        return token

    def say(self, question: str, longest: int = 200) -> Iterator[str]:
        """Yield the answer, as it is made."""
        new = self.tokenizer.encode(asked(question), add_special_tokens=False)
        room = self.model.config.context - len(self.unread) - len(new)
        if room <= 0:
            raise ValueError(f"the question has {len(new)} tokens: too many for {room + len(new)}")
        if self.place + longest > room:
            self.begin()
        self.unread += new
        stop, found, shown = self.tokenizer.special[STOP], [], ""
        while len(found) < longest and self.place + len(self.unread) < self.model.config.context:
            token = int(self.read())
            if token == stop:
                break
            self.unread = [token]
            found.append(token)
            text = self.tokenizer.decode(found, skip_special_tokens=True)
            # A letter of several bytes may lack some of them.
            if not text.endswith("\ufffd"):
                yield text[len(shown) :]
                shown = text
        self.unread.append(stop)
        yield self.tokenizer.decode(found, skip_special_tokens=True)[len(shown) :]


def load(folder: Path, device: str, context: int = 2048) -> tuple[Any, Tokenizer]:
    """Return a Llama 3 of Hugging Face's and its tokenizer, from a folder with its files."""
    sizes = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Newer files have all about rotary places in one entry.
    rotary = sizes.get("rope_parameters") or sizes.get("rope_scaling") or {}
    kind = rotary.get("rope_type", "default")
    if sizes.get("model_type") != "llama" or kind not in ("default", "llama3"):
        raise ValueError(f"{folder} has {sizes.get('model_type')} with {kind} places, not Llama 3")
    known = {field.name for field in fields(Config)}
    sizes |= {
        "head_dim": sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"],
        "rope_theta": rotary.get("rope_theta") or sizes.get("rope_theta", 10000.0),
        "rope_scaling": rotary if kind == "llama3" else None,
        "context": min(context, sizes["max_position_embeddings"]),
    }
    model = build(Config(**{name: value for name, value in sizes.items() if name in known}))
    model = model.to(device)
    load_model(model, folder, rename={r"^model\.": ""})
    return model, Tokenizer.from_file(folder / "tokenizer.json")


def converse(chat: Chat) -> None:
    """Answer what is typed, until there is nothing more."""
    print("Ask; an empty line ends.")
    while True:
        try:
            question = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            question = ""
        if not question:
            return
        for text in chat.say(question):
            print(text, end="", flush=True)
        print()


def examine(chat: Chat, dialogues: list[Dialogue]) -> tuple[int, int]:
    """Have dialogues, and show them; return how many answers were right, and how many there were."""
    right = count = 0
    for pairs in dialogues:
        chat.begin()
        for question, answer in pairs:
            said = "".join(chat.say(question, 24))
            print(f"> {question}\n{said}" + ("" if said == answer else f"   (it is: {answer})"))
            right, count = right + (said == answer), count + 1
        print()
    return right, count


def main() -> None:
    """Train or load, and talk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--weights", type=Path, help="folder with a Llama 3 of Hugging Face's")
    parser.add_argument("--temperature", type=float, default=0.6, help="0: the likeliest token")
    parser.add_argument("--top-p", type=float, default=0.9, help="part of the likeliest tokens")
    options = parser.parse_args()
    if options.weights is not None:
        model, tokenizer = load(options.weights, options.device)
    else:
        steps = 200 if options.quick else 500
        model, tokenizer = train(steps, options.device, options.compile)[0], TOKENIZER
    chat = Chat(model, tokenizer, options.temperature, options.top_p)
    if sys.stdin.isatty():
        converse(chat)
    elif options.weights is not None:
        for question in sys.stdin:
            print(f"> {question.strip()}\n{''.join(chat.say(question.strip()))}\n")
    else:
        draw = random.Random("questions")
        dialogues = [dialogue(draw) for _ in range(4 if options.quick else 12)]
        began = time.perf_counter()
        right, count = examine(chat, dialogues)
        seconds = time.perf_counter() - began
        print(f"right: {right} of {count}, in {seconds:.1f} s")


if __name__ == "__main__":
    main()
