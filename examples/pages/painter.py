"""The camera's picture, painted in a style: a page that paints while one moves, and learns a style from a picture.

    python examples/pages/painter.py site           # --quick for a few steps
    webtorch serve site

One network paints in all styles (Dumoulin et al., 2017): they differ in the numbers that scale and shift its norms, so
these alone are learned for another one. A style is how features of filters at random go together, at three sizes
(Gatys et al., 2015; Ustyuzhaninov et al., 2016). All pictures here are drawn some lines below.
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

HEIGHT, WIDTH = 120, 160  # of what the page paints
SMALL = (72, 96)  # of pictures to learn from
STYLES = ("waves", "mosaic", "hatching", "dots")
CHANNELS, FILTERS, COLOURS, BATCH = (16, 24, 40), 40, 5, 4


def places() -> tuple[Tensor, Tensor]:
    """Return how far right and down each place of a small picture is, from 0 to 1."""
    height, width = SMALL
    down, right = (
        torch.arange(height).unsqueeze(1) / height,
        torch.arange(width).unsqueeze(0) / width,
    )
    return right.expand(height, width), down.expand(height, width)


def between(share: Tensor, colours: list[tuple[float, float, float]]) -> Tensor:
    """Return colours (3, H, W) along a row of them, at shares from 0 to 1."""
    table = torch.tensor(colours)
    at = (share.clamp(0, 1) * (len(colours) - 1)).clamp(max=len(colours) - 1.001)
    first = at.floor().long()
    part = (at - first).unsqueeze(-1)
    return ((1 - part) * table[first] + part * table[first + 1]).permute(2, 0, 1)


def style_pictures() -> Tensor:
    """Return a picture (3, H, W) of each style, as one tensor."""
    x, y = places()
    swing = y + 0.09 * torch.sin(9 * x) + 0.05 * torch.sin(17 * x + 6 * y)
    strokes = 0.5 + 0.3 * torch.sin(60 * swing) + 0.25 * torch.sin(7 * swing + 3 * x)
    waves = between(
        strokes, [(0.05, 0.12, 0.35), (0.1, 0.35, 0.65), (0.55, 0.78, 0.88), (0.98, 0.93, 0.7)]
    )
    # Tiles: each place has the colour of the nearest of some points.
    points, count = torch.rand(120, 2), 120
    far = (
        (x.unsqueeze(-1) - points[:, 0]) ** 2 * 1.8 + (y.unsqueeze(-1) - points[:, 1]) ** 2
    ).sqrt()
    near, which = far.topk(2, -1, largest=False)
    palette = torch.tensor(
        [(0.8, 0.25, 0.2), (0.93, 0.7, 0.25), (0.2, 0.5, 0.45), (0.95, 0.9, 0.8), (0.25, 0.3, 0.5)]
    )
    tile = palette[torch.randint(0, 5, (count,))][which[..., 0]].permute(2, 0, 1)
    mosaic = torch.where((near[..., 1] - near[..., 0]) > 0.012, tile, torch.tensor(0.1))
    tone = 0.5 + 0.4 * torch.sin(5 * x + 2) * torch.sin(4 * y + 1)
    lines = torch.maximum(
        torch.sigmoid(9 * (torch.sin(110 * (x + 0.75 * y)) - 1.6 * tone + 0.3)),
        torch.sigmoid(9 * (torch.sin(110 * (x - 0.75 * y)) - 2.2 * tone + 0.1)),
    )
    hatching = between(lines, [(0.96, 0.93, 0.86), (0.16, 0.14, 0.2)])
    size = 0.25 + 0.2 * torch.sin(6 * x + 1) * torch.sin(5 * y)
    grid = ((x * 96 % 6 - 3) ** 2 + (y * 72 % 6 - 3) ** 2).sqrt() / 6
    ink = torch.sigmoid(30 * (size - grid))
    dots = ink * between(x * 0.6 + y * 0.4, [(0.86, 0.1, 0.25), (0.95, 0.45, 0.1), (0.1, 0.4, 0.8)])
    return torch.stack(
        [waves, mosaic, hatching, dots + (1 - ink) * torch.tensor([[[1.0]], [[0.97]], [[0.85]]])]
    )


def scenes(count: int) -> Tensor:
    """Return pictures (N, 3, H, W) of things in front of each other, to be painted."""
    x, y = places()
    given = torch.rand(count, 8, 8, 1, 1)
    out = given[:, 0, :3] + (given[:, 0, 3:6] - given[:, 0, :3]) * (y + 0.5 * x - 0.2)
    for i in range(1, 8):
        colour, (right, down, size, kind, turn) = given[:, i, :3], given[:, i, 3:].unbind(1)
        a, b = x - right, 0.75 * (y - down)
        a, b = (
            a * (6 * turn).cos() + b * (6 * turn).sin(),
            b * (6 * turn).cos() - a * (6 * turn).sin(),
        )
        round_, square = (a * a + b * b).sqrt(), torch.maximum(a.abs(), 2 * b.abs())
        inside = torch.sigmoid(80 * (0.06 + 0.22 * size - torch.where(kind > 0.5, round_, square)))
        shade = (0.85 + 0.6 * (a + b) / (0.1 + size)).clamp(0.3, 1.3)
        cover = inside.unsqueeze(1)
        out = (1 - cover) * out + cover * colour * shade.unsqueeze(1)
    return (out + 0.015 * torch.randn(out.shape)).clamp(0, 1)


class Styled(nn.Module):
    """A convolution whose result is normed, scaled and shifted as the style wants it."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1) -> None:
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, padding_mode="replicate")
        self.scale = nn.Parameter(torch.ones(len(STYLES), after))
        self.shift = nn.Parameter(torch.zeros(len(STYLES), after))
        self.own_scale = nn.Parameter(torch.ones(1, after))
        self.own_shift = nn.Parameter(torch.zeros(1, after))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Return (N, after, ...). style: how much there is of each, and of the visitor's own (N, styles + 1)."""
        scale = style @ torch.cat([self.scale, self.own_scale])
        shift = style @ torch.cat([self.shift, self.own_shift])
        x = F.instance_norm(self.conv(x), eps=1e-3)
        return x * scale.unsqueeze(2).unsqueeze(3) + shift.unsqueeze(2).unsqueeze(3)


def strokes(height: int, width: int) -> Tensor:
    """Return waves (1, 6, H, W) of two lengths in three directions: what there is to paint with where nothing is."""
    x, y = torch.arange(width).view(1, -1), torch.arange(height).view(-1, 1)
    each = [(2 * math.pi / length, turn) for length in (6, 15) for turn in (0.0, 0.93, math.pi / 2)]
    return torch.stack(
        [torch.sin(f * (math.cos(a) * x + math.sin(a) * y)) for f, a in each]
    ).unsqueeze(0)


class Painter(nn.Module):
    """Pictures to paintings."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        a, b, c = CHANNELS
        self.down = nn.ModuleList([Styled(9, a, 5), Styled(a, b, 3, 2), Styled(b, c, 3, 2)])
        self.inside = nn.ModuleList(Styled(c, c) for _ in range(4))
        self.up = nn.ModuleList([Styled(c, b), Styled(b, a)])
        self.out = nn.Conv2d(a, COLOURS, 5, padding=2, padding_mode="replicate")
        # A style's colours, from dark to light: all that is painted is mixed of them.
        pixels = style_pictures().flatten(2).transpose(1, 2)
        order = pixels.mean(2).argsort(1).unsqueeze(2).expand(-1, -1, 3)
        parts = pixels.gather(1, order).tensor_split(COLOURS, 1)
        self.palette = nn.Parameter(torch.stack([part.mean(1) for part in parts], 1).flatten(1))
        self.own_palette = nn.Parameter(self.palette.detach().mean(0, keepdim=True))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Return pictures like x (N, 3, H, W), from 0 to 1."""
        light = x.mean(1, keepdim=True)
        around = strokes(*x.shape[2:]).expand(len(x), -1, -1, -1)
        x = torch.cat([x - 0.5, 0.08 * around], 1)
        for layer in self.down:
            x = F.relu(layer(x, style))
        for i in (0, 2):
            x = x + self.inside[i + 1](F.relu(self.inside[i](x, style)), style)
        for layer in self.up:
            x = F.relu(layer(F.interpolate(x, scale_factor=2), style))
        # Dark places have dark colours, as far as the network does not want others.
        steps = torch.linspace(0.1, 0.9, COLOURS).view(1, -1, 1, 1)
        share = (self.out(x) - 30 * (light - steps) ** 2).softmax(1)
        palette = (style @ torch.cat([self.palette, self.own_palette])).view(-1, COLOURS, 3)
        mixed = palette.transpose(1, 2) @ share.flatten(2)
        return mixed.unflatten(2, share.shape[2:]).clamp(0, 1)

    def parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return what is learned here, and what is learned of the visitor's own style."""
        own = [p for n, p in self.named_parameters() if "own_" in n]
        return [p for p in self.parameters() if all(p is not q for q in own)], own


def build() -> Painter:
    """Return the model."""
    return Painter()


class Eye:
    """Filters at random, and what goes together in what they find: that is a style."""

    def __init__(self) -> None:
        """Draw the filters."""
        torch.manual_seed(1)
        self.filters = torch.randn(FILTERS, 3, 5, 5)
        self.filters = self.filters - 0.8 * self.filters.mean((2, 3), keepdim=True)
        self.filters = self.filters / self.filters.flatten(1).norm(dim=1).view(-1, 1, 1, 1)

    def style(self, pictures: Tensor) -> list[Tensor]:
        """Return for three sizes how filters go together (N, filters + 3, filters + 3)."""
        out = []
        for _ in range(3):
            found = F.relu(F.conv2d(pictures - 0.5, self.filters)).flatten(2)
            seen = torch.cat([3 * found, F.pad(pictures, (-2, -2, -2, -2)).flatten(2)], 1)
            out.append(seen @ seen.transpose(1, 2) / seen.shape[2])
            pictures = F.avg_pool2d(pictures, 2)
        return out

    def loss(self, painted: Tensor, wanted: list[Tensor], pictures: Tensor) -> Tensor:
        """Return how far paintings are from a style, and from what they should show."""
        total = torch.zeros(())
        for a, b in zip(self.style(painted), wanted, strict=True):
            total = total + ((a - b) ** 2).sum((1, 2)).div((b**2).sum((1, 2))).mean()
        for size in (2, 4, 8):
            # What is light and what is dark, whatever the colours.
            a, b = (F.avg_pool2d(p.mean(1, keepdim=True), size) for p in (painted, pictures))
            total = total + 0.7 * F.mse_loss(*(F.instance_norm(p, eps=1e-3) for p in (a, b)))
        return total


def train(steps: int) -> tuple[Painter, list[float]]:
    """Return the trained model and the loss of each step."""
    eye = Eye()
    torch.manual_seed(0)
    model = build()
    styles = eye.style(style_pictures())
    optimizer = torch.optim.Adam(model.parts()[0], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=3e-4)

    @torch.compile
    def update(pictures: Tensor, which: Tensor) -> Tensor:
        optimizer.zero_grad()
        painted = model(pictures, F.one_hot(which, len(STYLES) + 1).float())
        loss = eye.loss(painted, [s[which] for s in styles], pictures)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for step in range(steps):
        which = (torch.arange(BATCH) + step) % len(STYLES)
        losses.append(update(scenes(BATCH), which).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def export(model: Painter, folder: str) -> None:
    """Write the page: a painting of a picture, and a step that learns another style."""
    eye, (others, own) = Eye(), model.parts()
    for parameter in others:
        parameter.requires_grad_(False)
    with torch.no_grad():
        # The visitor's style begins as the mean of all.
        for layer in model.modules():
            if isinstance(layer, Styled):
                layer.own_scale.copy_(layer.scale.mean(0, keepdim=True))
                layer.own_shift.copy_(layer.shift.mean(0, keepdim=True))
    optimizer = torch.optim.Adam(own, lr=0.02)
    mine = F.one_hot(torch.tensor([len(STYLES)]), len(STYLES) + 1).float()

    def learn(picture: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = eye.loss(model(picture, mine), eye.style(wanted), picture)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def paint(picture: Tensor, style: Tensor) -> dict[str, Tensor]:
        return {"painting": model(picture, style)}

    pictures = scenes(2).split(1)
    torch.export(
        {"learn": learn, "paint": paint},
        folder,
        {"learn": pictures, "paint": (torch.zeros(1, 3, HEIGHT, WIDTH), mine)},
        examples={"learn": [], "paint": []},
        labels=STYLES, title="Your camera, painted", half=True, page=PAGE,
    )  # fmt: skip
    count = sum(p.numel() for p in own)
    print(f"wrote {folder}: a style is {count} numbers; webtorch serve {folder}")


PAGE = r"""
<style>
.stage { display: grid; grid-template-columns: 3fr 1fr; gap: 12px; align-items: start; }
.stage canvas, #pattern { width: 100%; display: block; border-radius: 10px; background: #222; }
.beside { display: grid; gap: 8px; font-size: 14px; color: var(--soft); }
.chosen, .chosen:hover:not(:disabled) { border-color: var(--line); box-shadow: inset 0 0 0 1px var(--line); }
.own { display: grid; grid-template-columns: 190px 1fr; gap: 16px; align-items: start; }
#chart { height: 150px; } .own figure { margin: 14px 0 0; } video { display: none; }
@media (max-width: 640px) { .stage { grid-template-columns: 1fr; } .beside { grid-template-columns: 1fr 1fr; }
  .own { grid-template-columns: 1fr; } #pattern { max-width: 190px; } }
</style>
<p class="lead">A network paints what it sees, many times a second: your camera, if you allow it, else a little
landscape. It learned four styles from four pictures. All it knows of a style are five colours, and some hundred numbers
that scale and shift what it finds in a picture; give it a picture of yours, and it learns those of that one, here in
this tab.</p>

<div class="card">
  <div class="stage">
    <canvas id="painting" role="img" aria-label="The painting"></canvas>
    <div class="beside">
      <canvas id="picture" role="img" aria-label="What is painted"></canvas>
      <div><span id="what">a landscape</span><br><span id="speed">–</span> paintings a second</div>
    </div>
  </div>
  <div class="buttons row" id="styles"></div>
  <div class="buttons row"><button id="camera" class="primary" disabled>Use the camera</button>
    <button id="still" disabled>Hold still</button></div>
</div>

<div class="card">
  <h2>A style of your own <span class="unit" id="learned">not learned yet</span></h2>
  <div class="own">
    <div><canvas id="pattern" role="img" aria-label="The picture whose style is learned"></canvas></div>
    <div>
      <div class="buttons">
        <button id="learn" disabled>Learn this style</button>
        <label class="button">Another picture<input id="file" type="file" accept="image/*"></label>
        <button id="forget" disabled>Forget it</button>
      </div>
      <figure><svg id="chart" role="img" aria-label="The error at each step"></svg></figure>
    </div>
  </div>
</div>
<video id="video" muted playsinline></video>

<script type="module">
import { $, curve, make, opened, paint, say } from "./widgets.js";

const losses = [];
let [model, came, learning, still, stream] = [null, null, false, false, null];
let [style, wanted, buttons] = [[], 0, []];
let small = null;

const fail = (error) => {
  learning = false;
  $("learn").textContent = "Learn this style";
  say(error.message, true);
};

/** Draw a landscape at a time in seconds. */
function landscape(context, width, height, t) {
  const sky = context.createLinearGradient(0, 0, 0, height);
  sky.addColorStop(0, "#3a6fb5");
  sky.addColorStop(1, "#f6d9a8");
  context.fillStyle = sky;
  context.fillRect(0, 0, width, height);
  const disc = (x, y, r, colour) => {
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x * width, y * height, r * height, 0, 7);
    context.fill();
  };
  disc(0.5 + 0.35 * Math.cos(t / 4), 0.3 - 0.12 * Math.sin(t / 4), 0.1, "#fff3c4");
  const hills = [["#6f8f6a", 0.55, 0.07, 5, 0.2], ["#43693f", 0.68, 0.06, 7, 0.35], ["#2c4a2f", 0.84, 0.04, 4, 0.5]];
  for (const [colour, top, swing, waves, speed] of hills) {
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(0, height);
    for (let x = 0; x <= width; x += 4) {
      context.lineTo(x, height * (top + swing * Math.sin((waves * x) / width + t * speed)));
    }
    context.lineTo(width, height);
    context.fill();
  }
  context.fillStyle = "#b5432f";
  context.fillRect(0.2 * width, 0.56 * height, 0.16 * width, 0.2 * height);
  context.fillStyle = "#5a2a22";
  context.beginPath();
  context.moveTo(0.17 * width, 0.57 * height);
  context.lineTo(0.28 * width, 0.42 * height);
  context.lineTo(0.39 * width, 0.57 * height);
  context.fill();
  context.fillStyle = "#f7e3a0";
  context.fillRect(0.25 * width, 0.62 * height, 0.05 * width, 0.07 * height);
  disc(0.75, 0.62, 0.13, "#2f6b3a");
  disc(0.69, 0.68, 0.09, "#3c7d45");
  context.fillStyle = "#4a3324";
  context.fillRect(0.74 * width, 0.7 * height, 0.022 * width, 0.16 * height);
  disc(0.5 + 0.3 * Math.sin(t * 0.9), 0.86 - 0.16 * Math.abs(Math.sin(2.4 * t)), 0.05, "#e8e4da");
}

/** Draw a pattern to learn from, until there is a picture of the visitor's. */
function leaves(context, width, height) {
  context.fillStyle = "#12261e";
  context.fillRect(0, 0, width, height);
  const colours = ["#e3b23c", "#8fb339", "#c8553d", "#f2efe0", "#4f9d8b"];
  for (let i = 0; i < 260; i++) {
    const [x, y] = [((i * 61.8) % 100) / 100, ((i * 37.7) % 100) / 100];
    context.save();
    context.translate(x * width, y * height);
    context.rotate(0.7 + 0.5 * Math.sin(i));
    context.fillStyle = colours[i % colours.length];
    context.beginPath();
    context.ellipse(0, 0, width / 22, width / 75, 0, 0, 7);
    context.fill();
    context.restore();
  }
}

/** Put a picture or a film into a canvas, so that it fills it. */
function fill(canvas, source, width, height, mirrored = false) {
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.max(canvas.width / width, canvas.height / height);
  const [w, h] = [width * scale, height * scale];
  context.save();
  if (mirrored) context.setTransform(-1, 0, 0, 1, canvas.width, 0);
  context.drawImage(source, (canvas.width - w) / 2, (canvas.height - h) / 2, w, h);
  context.restore();
}

/** Return a canvas as a picture (1, 3, H, W) from 0 to 1. */
function numbers(canvas) {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, width, height);
  const out = new Float32Array(3 * width * height);
  const size = width * height;
  for (let i = 0; i < size; i++) for (let c = 0; c < 3; c++) out[c * size + i] = data[4 * i + c] / 255;
  return { data: out, shape: [1, 3, height, width] };
}

/** Look, and paint what is seen. */
async function painting() {
  const canvas = $("picture");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (stream && !still) fill(canvas, $("video"), $("video").videoWidth, $("video").videoHeight, true);
  else if (!still) landscape(context, canvas.width, canvas.height, performance.now() / 1e3);
  // From one style to another in some pictures.
  style = style.map((v, i) => v + 0.35 * (Number(i === wanted) - v));
  const given = { picture: numbers(canvas), style: { data: style, shape: [1, style.length] } };
  const { painting: found } = await model.paint(given);
  paint($("painting"), found, 0, "float32");
}

async function forever() {
  let [count, since] = [0, performance.now()];
  for (;;) {
    await painting();
    count++;
    if (performance.now() - since > 1000) {
      $("speed").textContent = ((1e3 * count) / (performance.now() - since)).toFixed(count < 10 ? 1 : 0);
      [count, since] = [0, performance.now()];
    }
    await new Promise(requestAnimationFrame);
  }
}

function choose(index) {
  wanted = index;
  buttons.forEach((button, i) => button.classList.toggle("chosen", i === index));
}

async function learn() {
  learning = !learning;
  $("learn").textContent = learning ? "Pause" : "Learn this style";
  if (!learning) return;
  choose(buttons.length - 1);
  $("forget").disabled = false;
  const pattern = numbers($("pattern"));
  while (learning) {
    fill(small, $("picture"), $("picture").width, $("picture").height);
    const { loss } = await model.learn({ picture: numbers(small), wanted: pattern });
    losses.push(loss.data[0]);
    $("learned").textContent = `${losses.length} steps`;
    curve($("chart"), losses);
  }
}

async function camera() {
  if (stream) {
    stream.getTracks().forEach((track) => track.stop());
    stream = null;
  } else {
    if (!navigator.mediaDevices) throw new DOMException("no camera", "NotFoundError");
    const found = await navigator.mediaDevices.getUserMedia({ video: { width: 320, height: 240 } });
    $("video").srcObject = found;
    await $("video").play();
    stream = found;
  }
  $("camera").textContent = stream ? "Stop the camera" : "Use the camera";
  $("what").textContent = stream ? "your camera" : "a landscape";
}

try {
  model = await opened();
  came = await model.state();
  const [, , height, width] = model.functions.paint.arguments[0].shape;
  const [, , low, narrow] = model.functions.learn.arguments[0].shape;
  Object.assign($("picture"), { width, height });
  Object.assign($("pattern"), { width: narrow, height: low });
  small = make("canvas", { width: narrow, height: low });
  leaves($("pattern").getContext("2d", { willReadFrequently: true }), narrow, low);
  buttons = [...model.program.labels, "your own"].map((name, i) => {
    const button = make("button", { textContent: name });
    button.addEventListener("click", () => choose(i));
    return button;
  });
  $("styles").replaceChildren(...buttons);
  style = buttons.map((_, i) => Number(i === 0));
  choose(0);
  curve($("chart"), losses);
  $("camera").addEventListener("click", () => camera().catch((error) => {
    const refused = error.name === "NotAllowedError" || error.name === "NotFoundError";
    say(refused ? "There is no camera that this page may use; the landscape is still there." : error.message);
  }));
  $("still").addEventListener("click", () => {
    still = !still;
    $("still").textContent = still ? "Go on" : "Hold still";
  });
  $("learn").addEventListener("click", () => learn().catch(fail));
  $("forget").addEventListener("click", async () => {
    if (learning) await learn();
    await model.loadState(came);
    losses.length = 0;
    $("learned").textContent = "not learned yet";
    curve($("chart"), losses);
  });
  $("file").addEventListener("change", async () => {
    try {
      const picture = await createImageBitmap($("file").files[0]);
      fill($("pattern"), picture, picture.width, picture.height);
    } catch (error) {
      say(`This picture could not be read: ${error.message}`, true);
    }
  });
  for (const id of ["camera", "still", "learn"]) $(id).disabled = false;
  await painting();
  // For the console, and for tests.
  globalThis.model = model;
  $("status").dataset.ready = "yes";
  forever().catch(fail);
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
    model, _ = train(40 if options.quick else 400)
    export(model, options.folder)


if __name__ == "__main__":
    main()
