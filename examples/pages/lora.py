"""Fine-tune a language model in a browser tab: a page in which a LoRA adapter learns the text that a visitor pastes.

    python examples/pages/lora.py site              # --quick for a few steps
    webtorch serve site

A small GPT of characters is trained here on the documentation strings of Python's own library. In the page it
is frozen, and only an adapter (Hu et al., 2021) learns: two thin matrices beside each of its layers.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import sysconfig
from pathlib import Path

import webtorch as torch
from webtorch import Tensor, nn
from webtorch.nn import functional as F

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

LETTERS = "\n" + "".join(map(chr, range(32, 127)))
WIDTH, HEADS, LAYERS, CONTEXT, RANK = 128, 4, 3, 80, 8
BATCH, ROWS = 16, 8  # windows of a step here, and in the page


def documentation(most: int = 1_500_000) -> str:
    """Return documentation strings of Python's library, in letters that the model knows."""
    texts: dict[str, None] = {}
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 80 and ">>>" not in text:
                    texts[text] = None
    joined = "\n\n".join(texts)[:most]
    return "".join(letter for letter in joined if letter in LETTERS)


class Adapted(nn.Module):
    """A layer that is kept as it is, and beside it a thin one that learns."""

    def __init__(self, layer: nn.Linear) -> None:
        """Take the layer in. The second matrix is zeros: at first nothing changes."""
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(layer.in_features, RANK) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(RANK, layer.out_features))

    def forward(self, x: Tensor, strength: Tensor) -> Tensor:
        """Return (N, T, out). strength: of the adapter, for each text (N, 1, 1)."""
        return self.layer(x) + 2 * strength * (x @ self.down @ self.up)


class Block(nn.Module):
    """Attention and two layers, each of what is normed, and added to what comes in."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = (
            Adapted(nn.Linear(WIDTH, 3 * WIDTH)),
            Adapted(nn.Linear(WIDTH, WIDTH)),
        )
        self.wide = Adapted(nn.Linear(WIDTH, 4 * WIDTH))
        self.narrow = Adapted(nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, strength: Tensor) -> Tensor:
        """Return (N, T, WIDTH)."""
        parts = self.qkv(self.norms[0](x), strength).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = parts.transpose(1, 3).unbind(2)
        heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heard.transpose(1, 2).flatten(2), strength)
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x), strength)), strength)


class GPT(nn.Module):
    """Letters to what may come next."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, x: Tensor, strength: Tensor) -> Tensor:
        """Return scores (N, T, letters) of letters (N, T)."""
        out, strength = self.letters(x) + self.places, strength.view(-1, 1, 1)
        for block in self.blocks:
            out = block(out, strength)
        return self.head(self.norm(out))

    def parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of the model, and those of its adapter."""
        adapter = [p for n, p in self.named_parameters() if n.endswith((".down", ".up"))]
        return [p for p in self.parameters() if all(p is not q for q in adapter)], adapter


def build() -> GPT:
    """Return the model."""
    return GPT()


def windows(codes: list[int], draw: random.Random, count: int) -> tuple[Tensor, Tensor]:
    """Return windows of a text (N, CONTEXT), and the same one letter later."""
    starts = [draw.randrange(len(codes) - CONTEXT) for _ in range(count)]
    rows = torch.tensor([codes[s : s + CONTEXT + 1] for s in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train(steps: int) -> tuple[GPT, list[float]]:
    """Return a model that has read the documentation, and the loss of each step."""
    torch.manual_seed(0)
    model = build()
    base, _ = model.parts()
    optimizer = torch.optim.AdamW(base, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1)
    alone = torch.zeros(BATCH)

    @torch.compile
    def update(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, alone).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(base, 1.0)
        optimizer.step()
        return loss

    codes, draw = [LETTERS.index(letter) for letter in documentation()], random.Random(0)
    losses = []
    for step in range(steps):
        losses.append(update(*windows(codes, draw, BATCH)).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def export(model: GPT, folder: str) -> None:
    """Write the page: a step of the adapter, and scores of the next letter with it and without."""
    base, adapter = model.parts()
    for parameter in base:
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(adapter, lr=3e-3)

    def learn(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, torch.ones(ROWS)).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def write(x: Tensor, strength: Tensor, at: Tensor) -> dict[str, Tensor]:
        return {"scores": model(x, strength).index_select(1, at).squeeze(1)}

    x = torch.zeros(ROWS, CONTEXT, dtype=torch.int64)
    torch.export(
        {"learn": learn, "write": write},
        folder,
        {"learn": (x, x + 1), "write": (x[:2], torch.tensor([0.0, 1.0]), torch.tensor([0]))},
        vocabulary=list(LETTERS), title="Teach a language model your text", half=True, page=PAGE,
    )  # fmt: skip
    thin, whole = (sum(p.numel() for p in part) for part in (adapter, base))
    print(f"wrote {folder}: {whole:,} numbers, {thin:,} in the adapter; webtorch serve {folder}")


PAGE = r"""
<style>
#given { min-height: 170px; }
#chart { height: 190px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; margin-top: 12px; }
.sides .card { margin: 0; }
.sides pre { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 190px; margin: 0; font-size: 14px; }
.sides pre b { color: var(--soft); font-weight: 400; }
.sides .with { border-color: var(--line); }
@media (max-width: 640px) { .sides { grid-template-columns: 1fr; } .sides pre { min-height: 130px; } }
</style>
<p class="lead">A small language model came with this page. It has read the documentation of Python's library,
letter by letter, and writes like that. Paste another text and press <b>Learn</b>: the model stays as it is, and a thin
adapter beside it (LoRA) learns your text, here in this tab. Below, the same model writes without the adapter and with
it.</p>

<div class="card">
  <h2>Your text <span class="unit" id="length"></span></h2>
  <textarea id="given" spellcheck="false" aria-label="Your text"></textarea>
  <div class="buttons row">
    <button id="learn" class="primary" disabled>Learn</button>
    <button id="forget" disabled>Forget it</button>
    <span class="space"></span>
    <button class="text" data-text="0">A sea journal</button>
    <button class="text" data-text="1">A cookbook</button>
  </div>
</div>

<dl class="figures">
  <div><dt>Steps</dt><dd id="steps">0</dd></div>
  <div><dt>Surprise per letter</dt><dd id="loss">–</dd></div>
  <div><dt>As if it chose among</dt><dd><span id="guess">–</span> <small>letters</small></dd></div>
  <div><dt>Adapter</dt><dd><span id="part">–</span> <small>of the model</small></dd></div>
</dl>
<figure class="card"><figcaption><b>Surprise at your text</b><span class="unit" id="unit"></span></figcaption>
  <svg id="chart" role="img" aria-label="The loss at each step"></svg></figure>

<div class="sides" aria-live="polite">
  <div class="card"><h2>Without the adapter</h2><pre id="before"></pre></div>
  <div class="card with"><h2>With it <span class="unit" id="after-steps"></span></h2><pre id="after"></pre></div>
</div>
<div class="row">
  <label>begins with <input id="prompt" type="text" value="The " aria-label="What both begin with"></label>
  <label>adapter <input id="strength" type="range" min="0" max="1.5" step="0.05" value="1"
    aria-label="Strength of the adapter"> <output id="shown">1.00</output></label>
  <button id="write" disabled>Write again</button>
</div>

<script type="module">
import { $, curve, drawn, make, opened, say, text } from "./widgets.js";

const TEXTS = [
  `Day 1. We left the harbour at dawn. The wind came from the west and the sea was grey.
Day 2. The captain saw a whale. The cook made soup of beans, and the sea was calm.
Day 3. Rain all day. We mended the sails, and the captain sang of the harbour at home.
Day 4. The wind came from the north. A gull sat on the mast, and the cook fed it bread.
Day 5. We saw an island with three hills. The captain drew it and called it Hope.
Day 6. The sea was wild at night. We lost a barrel of apples, and the cook wept.
Day 7. The sun came back. We washed the deck, and the captain saw a sail in the west.
Day 8. The sail was a ship from home. We gave them beans, and they gave us apples.
Day 9. The wind came from the south. The gull left the mast, and the sea was green.
Day 10. We saw the harbour at dusk. The captain sang, and the cook made soup of apples.
`,
  `PANCAKES. Take two eggs, a cup of milk and a cup of flour. Stir well. Fry in hot butter.
TOMATO SOUP. Take six tomatoes, an onion and a cup of water. Boil for an hour. Add salt.
APPLE PIE. Take five apples, a cup of sugar and a cup of flour. Bake for an hour. Eat warm.
ONION BREAD. Take three cups of flour, an onion and a cup of water. Knead well. Bake.
BEAN STEW. Take two cups of beans, an onion and six tomatoes. Boil for three hours. Add salt.
RICE PUDDING. Take a cup of rice, three cups of milk and a cup of sugar. Stir for an hour.
FRIED EGGS. Take three eggs. Fry in hot butter. Add salt. Eat warm with onion bread.
LEMON CAKE. Take four eggs, two lemons, a cup of sugar and a cup of flour. Bake for an hour.
`,
];
const LENGTH = 220;
const losses = [];
let [model, letters, fresh, learning, turn] = [null, [], null, false, 0];
let busy = Promise.resolve();

const codes = (words) => [...words].map((c) => letters.indexOf(c)).filter((i) => i >= 0);
const fail = (error) => {
  learning = false;
  $("learn").textContent = "Learn";
  say(error.message, true);
};

function measure() {
  const known = codes($("given").value).length;
  $("length").textContent = `${known.toLocaleString("en")} letters`;
  return known;
}

/** Write on from the prompt, without the adapter and with it at once. A newer writing ends an older one. */
async function write(length = LENGTH) {
  const mine = ++turn;
  const { shape: [, context] } = model.functions.write.arguments[0];
  const prompt = codes($("prompt").value);
  if (!prompt.length) prompt.push(0);
  const rows = [[...prompt], [...prompt]];
  const places = [$("before"), $("after")];
  for (const place of places) place.replaceChildren(make("b", { textContent: $("prompt").value }));
  $("after-steps").textContent = `after ${losses.length} steps`;
  for (let n = 0; n < length && mine === turn; n++) {
    const x = new Int32Array(2 * context);
    const seen = rows.map((row) => row.slice(-context));
    seen.forEach((row, i) => x.set(row, i * context));
    const strength = [0, Number($("strength").value)];
    const { scores } = await model.write({ x: { data: x, shape: [2, context] }, strength, at: [seen[0].length - 1] });
    if (mine !== turn) return;
    rows.forEach((row, i) => {
      row.push(drawn(scores.data.slice(i * letters.length, (i + 1) * letters.length), 0.6));
      places[i].append(letters[row.at(-1)]);
    });
  }
}

function show() {
  $("steps").textContent = losses.length;
  const recent = losses.slice(-10);
  const mean = recent.reduce((a, b) => a + b, 0) / recent.length;
  $("loss").textContent = losses.length ? text(mean) : "–";
  // As if each letter were drawn from so many that are equally likely.
  $("guess").textContent = losses.length ? `${Math.exp(mean).toFixed(1)}` : "–";
  $("unit").textContent = curve($("chart"), losses);
}

async function learn() {
  learning = !learning;
  $("learn").textContent = learning ? "Pause" : "Learn";
  if (!learning) return;
  const known = codes($("given").value);
  const { shape: [rows, context] } = model.functions.learn.arguments[0];
  // A short text is read round and round.
  const round = (i) => known[i % known.length];
  if (known.length < 2) return fail(new Error("Paste some text first."));
  turn++;
  while (learning) {
    const [x, y] = [new Int32Array(rows * context), new Int32Array(rows * context)];
    for (let r = 0; r < rows; r++) {
      const start = Math.floor(Math.random() * Math.max(1, known.length - context));
      for (let t = 0; t < context; t++) {
        x[r * context + t] = round(start + t);
        y[r * context + t] = round(start + t + 1);
      }
    }
    const shape = [rows, context];
    const { loss } = await model.learn({ x: { data: x, shape }, y: { data: y, shape } });
    losses.push(loss.data[0]);
    show();
    if (losses.length % 20 === 0) await write(90);
  }
  await write();
}

try {
  model = await opened();
  letters = model.program.vocabulary;
  fresh = await model.state();
  const size = (part) => model.program.states.filter((s) => part(s.name ?? "")).reduce((sum, s) => sum + s.bytes, 0);
  const thin = size((name) => /\.(down|up)$/.test(name) && !name.startsWith("optimizer"));
  const whole = size((name) => !name.startsWith("optimizer"));
  $("part").textContent = whole ? `${((100 * thin) / whole).toFixed(0)} %` : "–";
  $("given").value = TEXTS[0];
  measure();
  show();
  $("given").addEventListener("input", measure);
  for (const button of document.querySelectorAll("button.text")) {
    button.addEventListener("click", () => {
      $("given").value = TEXTS[button.dataset.text];
      measure();
    });
  }
  $("strength").addEventListener("input", () => ($("shown").textContent = Number($("strength").value).toFixed(2)));
  const again = () => learning || write().catch(fail);
  $("strength").addEventListener("change", again);
  $("prompt").addEventListener("change", again);
  $("write").addEventListener("click", again);
  $("learn").addEventListener("click", () => learn().catch(fail));
  $("forget").addEventListener("click", async () => {
    learning = false;
    $("learn").textContent = "Learn";
    await model.loadState(fresh);
    losses.length = 0;
    show();
    write().catch(fail);
  });
  for (const id of ["learn", "forget", "write"]) $(id).disabled = false;
  // For the console, and for tests.
  globalThis.model = model;
  $("status").dataset.ready = "yes";
  await write();
} catch (error) {
  fail(error);
}
</script>
"""


def main() -> None:
    """Train the model and write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="site", help="where the page is written")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 1200)
    export(model, options.folder)


if __name__ == "__main__":
    main()
