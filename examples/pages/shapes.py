"""Pictures out of noise: a page in which a diffusion model draws shapes step by step, and learns to from nothing.

    python examples/pages/shapes.py site            # --quick for a few steps
    webtorch serve site

A small U-Net sees pictures that noise was mixed into, and learns which part is the noise (Ho et al., 2020; the
schedule of angles and what is predicted are those of Salimans and Ho, 2022). To draw, noise is taken away bit by bit.
"""

from __future__ import annotations

import argparse
import math
import sys

import webtorch as torch
from webtorch import Tensor, nn
from webtorch.nn import functional as F

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

SIDE, WIDTH = 16, 24
KINDS = ("disc", "ring", "square", "triangle")
COLOURS = {
    "red": (0.84, 0.26, 0.22),
    "amber": (0.95, 0.66, 0.15),
    "green": (0.22, 0.62, 0.38),
    "blue": (0.18, 0.38, 0.86),
    "violet": (0.56, 0.32, 0.72),
}
BATCH, ROWS = 32, 16  # pictures of a step here, and in the page
SHOWN = len(KINDS) * len(COLOURS)


def drawn(kinds: Tensor, colours: Tensor, places: Tensor) -> Tensor:
    """Return pictures (N, 3, SIDE, SIDE) from -1 to 1. places: four numbers from 0 to 1 for each (N, 4)."""
    right, down, size, turn = places.view(-1, 4, 1, 1).unbind(1)
    along = (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1
    size, turn = 0.5 + 0.2 * size, 0.6 * (turn - 0.5)
    x, y = along - 0.3 * (right - 0.5), along.unsqueeze(1) - 0.3 * (down - 0.5)
    x, y = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()  # (N, SIDE, SIDE)
    far = (x * x + y * y).sqrt()
    corners = [x * math.sin(a) + y * math.cos(a) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    outside = torch.stack(
        [
            far - size,
            (far - 0.78 * size).abs() - 0.24 * size,
            torch.maximum(x.abs(), y.abs()) - 0.85 * size,
            torch.maximum(torch.maximum(corners[0], corners[1]), corners[2]) - 0.58 * size,
        ],
        1,
    )  # how far each place is from each kind's edge
    edge = (F.one_hot(kinds, len(KINDS)).float().view(-1, len(KINDS), 1, 1) * outside).sum(1)
    ink = torch.sigmoid(-edge * SIDE).unsqueeze(1)
    colour = torch.tensor(list(COLOURS.values()))[colours].view(-1, 3, 1, 1)
    return 2 * (ink * colour + (1 - ink) * 0.97) - 1


class Mix(nn.Module):
    """Two convolutions, told what to draw and how much noise there is, added to what comes in."""

    def __init__(self, before: int, after: int) -> None:
        """Make the layers."""
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.into = nn.Conv2d(before, after, 3, padding=1)
        self.out = nn.Conv2d(after, after, 3, padding=1)
        self.told = nn.Linear(2 * WIDTH, after)
        self.beside = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Return (N, after, height, width)."""
        found = self.into(F.silu(self.first(x))) + self.told(told).unsqueeze(2).unsqueeze(3)
        return self.beside(x) + self.out(F.silu(self.second(found)))


class UNet(nn.Module):
    """Pictures with noise to the direction in which the noise lies."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.kinds = nn.Embedding(len(KINDS), 2 * WIDTH)
        self.colours = nn.Embedding(len(COLOURS), 2 * WIDTH)
        self.noise = nn.Sequential(
            nn.Linear(8, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, 2 * WIDTH)
        )
        self.begin = nn.Conv2d(3, WIDTH, 3, padding=1)
        sizes = (WIDTH, 2 * WIDTH, 2 * WIDTH)
        self.down = nn.ModuleList(map(Mix, (WIDTH, *sizes), sizes))
        self.up = nn.ModuleList([Mix(4 * WIDTH, 2 * WIDTH), Mix(3 * WIDTH, WIDTH)])
        self.end = nn.Conv2d(WIDTH, 3, 3, padding=1)

    def forward(self, x: Tensor, angle: Tensor, kinds: Tensor, colours: Tensor) -> Tensor:
        """Return (N, 3, SIDE, SIDE). angle: from 0, no noise, to pi / 2, noise alone (N)."""
        waves = angle.unsqueeze(1) * torch.tensor([1.0, 2.0, 4.0, 8.0])
        told = self.noise(torch.cat([waves.sin(), waves.cos()], 1))
        told = F.silu(told + self.kinds(kinds) + self.colours(colours))
        fine = self.down[0](self.begin(x), told)
        middle = self.down[1](F.avg_pool2d(fine, 2), told)
        coarse = self.down[2](F.avg_pool2d(middle, 2), told)
        coarse = F.interpolate(coarse, scale_factor=2)
        middle = F.interpolate(self.up[0](torch.cat([middle, coarse], 1), told), scale_factor=2)
        return self.end(self.up[1](torch.cat([fine, middle], 1), told))


def build() -> UNet:
    """Return the model."""
    return UNet()


def loss_of(
    model: UNet, noise: Tensor, angle: Tensor, kinds: Tensor, colours: Tensor, places: Tensor
) -> Tensor:
    """Return how far what is found in mixtures of pictures and noise is from what was mixed."""
    pictures = drawn(kinds, colours, places)
    c, s = angle.cos().view(-1, 1, 1, 1), angle.sin().view(-1, 1, 1, 1)
    found = model(c * pictures + s * noise, angle, kinds, colours)
    return F.mse_loss(found, c * noise - s * pictures)


def batch(count: int) -> tuple[Tensor, ...]:
    """Return noise, angles, kinds, colours and places of pictures to learn from."""
    return (
        torch.randn(count, 3, SIDE, SIDE),
        torch.rand(count) * (math.pi / 2),
        torch.randint(0, len(KINDS), (count,)),
        torch.randint(0, len(COLOURS), (count,)),
        torch.rand(count, 4),
    )


def train(steps: int) -> tuple[UNet, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)

    @torch.compile
    def update(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *given)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for step in range(steps):
        losses.append(update(*batch(BATCH)).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def export(model: UNet, folder: str) -> None:
    """Write the page: a step of training, and a step from noise to pictures."""
    # Of one state beside each number, not two: the page stays small.
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9)

    def learn(
        noise: Tensor, angle: Tensor, kinds: Tensor, colours: Tensor, places: Tensor
    ) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = loss_of(model, noise, angle, kinds, colours, places)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def clear(x: Tensor, angle: Tensor, less: Tensor) -> dict[str, Tensor]:
        # All kinds in all colours, and all with as much noise.
        kinds = torch.arange(len(KINDS)).repeat_interleave(len(COLOURS))
        colours = torch.arange(len(COLOURS)).repeat(len(KINDS))
        found = model(x, angle.expand(SHOWN), kinds, colours)
        return {
            "pictures": less.cos() * x - less.sin() * found,
            "guess": angle.cos() * x - angle.sin() * found,
        }

    x = torch.zeros(SHOWN, 3, SIDE, SIDE)
    torch.export(
        {"learn": learn, "clear": clear},
        folder,
        {"learn": batch(ROWS), "clear": (x, torch.tensor([1.0]), torch.tensor([0.1]))},
        title="Pictures out of noise", half=True, page=PAGE,
    )  # fmt: skip
    print(f"wrote {folder}; webtorch serve {folder}")


PAGE = r"""
<style>
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; margin-top: 12px; }
.sides .card { margin: 0; }
.grid { display: grid; grid-template-columns: repeat(5, 1fr); gap: 6px; }
.grid canvas { width: 100%; aspect-ratio: 1; border-radius: 7px; display: block; background: #f7f7f7; }
#chart { height: 190px; }
#progress { width: 100%; height: 6px; accent-color: var(--line); margin-top: 12px; }
@media (max-width: 640px) { .sides { grid-template-columns: 1fr; } #thinking { display: none; } }
</style>
<p class="lead">A network was shown shapes that noise had been mixed into, and learned to tell which part is the noise.
Now it draws: it begins with noise alone, and takes a little of it away at each step, until shapes are left. Each row
asks for another shape, each column for another colour. <b>Forget everything</b> and press <b>Learn</b>, to see it learn
from nothing, here in this tab: shapes come in some hundred steps, colours later.</p>

<div class="card">
  <div class="buttons">
    <button id="draw" class="primary" disabled>Draw</button>
    <button id="learn" disabled>Learn</button>
    <button id="reset" disabled>Forget everything</button>
    <button id="back" disabled>As it came</button>
  </div>
  <div class="row">
    <label>steps from noise to picture <input id="count" type="range" min="2" max="40" value="16"
      aria-label="Steps from noise to picture"> <output id="counted">16</output></label>
    <label><input id="smooth" type="checkbox" checked> smooth</label>
  </div>
</div>

<div class="sides">
  <div class="card"><h2>The pictures <span class="unit" id="now">noise alone</span></h2>
    <div class="grid" id="pictures" role="img" aria-label="The pictures"></div></div>
  <div class="card" id="thinking"><h2>What it guesses behind the noise</h2>
    <div class="grid" id="guess" role="img" aria-label="What it guesses"></div></div>
</div>
<progress id="progress" max="1" value="0" aria-label="Noise that is gone"></progress>

<dl class="figures">
  <div><dt>Steps learned here</dt><dd id="steps">0</dd></div>
  <div><dt>Error</dt><dd id="loss">–</dd></div>
  <div><dt>Speed</dt><dd><span id="speed">–</span> <small>pictures/s</small></dd></div>
  <div><dt>Numbers learned</dt><dd id="size">–</dd></div>
</dl>
<figure class="card">
  <figcaption><b>Error of what it takes for noise</b><span class="unit" id="unit"></span></figcaption>
  <svg id="chart" role="img" aria-label="The error at each step"></svg></figure>

<script type="module">
import { readSafetensors, writeSafetensors } from "./runtime.js";
import { $, curve, make, opened, say, text } from "./widgets.js";

const losses = [];
let [model, came, learning, turn] = [null, null, false, 0];
let [kinds, colours, side, shown, rows] = [0, 0, 0, 0, 0];
const canvases = {};

const fail = (error) => {
  learning = false;
  $("learn").textContent = "Learn";
  say(error.message, true);
};
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
const noise = (count) => Float32Array.from({ length: count * 3 * side * side }, normal);
const below = (count) => Int32Array.from({ length: rows }, () => Math.floor(Math.random() * count));

/** Show pictures (N, 3, side, side) from -1 to 1. */
function paintAll(name, data) {
  canvases[name].forEach((canvas, n) => {
    const image = new ImageData(side, side);
    const size = side * side;
    for (let i = 0; i < size; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = 127.5 * (data[(3 * n + c) * size + i] + 1);
      image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  });
}

/** Take noise away until pictures are left. A newer drawing ends an older one. */
async function draw(steps = Number($("count").value)) {
  const mine = ++turn;
  let x = noise(shown);
  paintAll("pictures", x);
  for (let i = 0; i < steps; i++) {
    const angle = (Math.PI / 2) * (1 - i / steps);
    const given = { x: { data: x, shape: [shown, 3, side, side] }, angle: [angle], less: [Math.PI / 2 / steps] };
    const { pictures, guess } = await model.clear(given);
    if (mine !== turn) return;
    x = pictures.data;
    paintAll("pictures", x);
    paintAll("guess", guess.data);
    $("now").textContent = i + 1 < steps ? `step ${i + 1} of ${steps}` : "done";
    $("progress").value = (i + 1) / steps;
    // Slowly enough to be seen.
    await new Promise((resolve) => setTimeout(resolve, 60));
  }
}

function show() {
  const recent = losses.slice(-10);
  $("steps").textContent = losses.length;
  $("loss").textContent = losses.length ? text(recent.reduce((a, b) => a + b, 0) / recent.length) : "–";
  $("unit").textContent = curve($("chart"), losses);
}

async function learn() {
  learning = !learning;
  $("learn").textContent = learning ? "Pause" : "Learn";
  if (!learning) return;
  turn++;
  let [done, since] = [0, performance.now()];
  while (learning) {
    const { loss } = await model.learn({
      noise: { data: noise(rows), shape: [rows, 3, side, side] },
      angle: Float32Array.from({ length: rows }, () => (Math.random() * Math.PI) / 2),
      kinds: below(kinds), colours: below(colours),
      places: { data: Float32Array.from({ length: 4 * rows }, Math.random), shape: [rows, 4] },
    });
    losses.push(loss.data[0]);
    done += rows;
    $("speed").textContent = Math.round((1e3 * done) / (performance.now() - since));
    show();
    if (losses.length % 25 === 0) {
      await draw(8);
      [done, since] = [0, performance.now()];
    }
  }
  await draw();
}

/** Return the state of a network that has learned nothing: numbers at random, as PyTorch's layers begin. */
function nothing() {
  const tensors = readSafetensors(came.slice().buffer);
  for (const [name, tensor] of Object.entries(tensors)) {
    const { shape, bytes } = tensor;
    const values = new Float32Array(bytes.length / 4);
    if (!name.startsWith("optimizer") && /weight$/.test(name)) {
      const reach = 1 / Math.sqrt(shape.slice(1).reduce((a, b) => a * b, 1));
      const drawn = /(kinds|colours)/.test(name) ? normal : () => reach * (2 * Math.random() - 1);
      values.forEach((_, i) => (values[i] = shape.length === 1 ? 1 : drawn()));
    } else if (/step/.test(name)) {
      continue;
    }
    if (tensor.dtype === "float32") tensor.bytes = new Uint8Array(values.buffer);
  }
  return writeSafetensors(tensors);
}

async function begin(state) {
  learning = false;
  $("learn").textContent = "Learn";
  turn++;
  await model.loadState(state);
  losses.length = 0;
  show();
  await draw();
}

try {
  model = await opened();
  came = await model.state();
  const { arguments: given } = model.functions.learn;
  [shown, , side] = model.functions.clear.arguments[0].shape;
  [rows, kinds, colours] = [given[0].shape[0], 4, 5];
  const weights = model.program.states.filter((s) => !s.name.startsWith("optimizer"));
  $("size").textContent = Math.round(weights.reduce((sum, s) => sum + s.bytes, 0) / 4).toLocaleString("en");
  for (const name of ["pictures", "guess"]) {
    canvases[name] = Array.from({ length: shown }, () => make("canvas", { width: side, height: side }));
    $(name).replaceChildren(...canvases[name]);
  }
  show();
  $("count").addEventListener("input", () => ($("counted").textContent = $("count").value));
  $("count").addEventListener("change", () => learning || draw().catch(fail));
  $("smooth").addEventListener("change", () => {
    const way = $("smooth").checked ? "auto" : "pixelated";
    for (const canvas of Object.values(canvases).flat()) canvas.style.imageRendering = way;
  });
  $("draw").addEventListener("click", () => draw().catch(fail));
  $("learn").addEventListener("click", () => learn().catch(fail));
  $("reset").addEventListener("click", () => begin(nothing()).catch(fail));
  $("back").addEventListener("click", () => begin(came).catch(fail));
  for (const id of ["draw", "learn", "reset", "back"]) $(id).disabled = false;
  // For the console, and for tests.
  globalThis.model = model;
  $("status").dataset.ready = "yes";
  await draw();
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
    model, _ = train(60 if options.quick else 2000)
    export(model, options.folder)


if __name__ == "__main__":
    main()
