"""Words that are heard in a browser tab: a page that knows eight commands, and learns how the visitor says them.

    python examples/pages/commands.py site          # --quick for a few steps
    webtorch serve site

The words that the network learns here are synthesised some lines below, in many voices: a row of harmonics and a
noise through three resonances, which glide from sound to sound. Sound becomes a spectrogram in the same program
(`torch.stft`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from typing import NamedTuple

import webtorch as torch
from webtorch import Tensor, nn
from webtorch.nn import functional as F

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

RATE, LENGTH = 8000, 8000  # samples a second, and of a word with the silence around it
WINDOW, HOP, BANDS, WIDTH = 256, 80, 40, 48
BATCH, ROWS = 24, 12  # words of a step here, and in the page


class Sound(NamedTuple):
    """How long a sound lasts in seconds, its parts of voice and noise, and its resonances in Hz."""

    seconds: float
    voice: float
    noise: float
    formants: tuple[float, float, float]


SOUNDS = {
    "i": Sound(0.07, 1.0, 0.0, (290, 2250, 3000)),
    "e": Sound(0.13, 1.0, 0.0, (550, 1800, 2500)),
    "a": Sound(0.13, 1.0, 0.0, (740, 1200, 2500)),
    "A": Sound(0.12, 1.0, 0.0, (660, 1100, 2450)),
    "o": Sound(0.12, 1.0, 0.0, (560, 880, 2400)),
    "u": Sound(0.09, 1.0, 0.0, (330, 900, 2250)),
    "n": Sound(0.09, 0.4, 0.0, (250, 1400, 2600)),
    "l": Sound(0.08, 0.6, 0.0, (360, 1200, 2700)),
    "r": Sound(0.08, 0.6, 0.0, (420, 1250, 1600)),
    "s": Sound(0.13, 0.0, 0.5, (2700, 3300, 3700)),
    "f": Sound(0.10, 0.0, 0.2, (1100, 2300, 3500)),
    "t": Sound(0.05, 0.0, 0.6, (1800, 2900, 3600)),
    "p": Sound(0.05, 0.0, 0.4, (500, 900, 2200)),
    "d": Sound(0.04, 0.5, 0.3, (300, 1700, 2700)),
    "g": Sound(0.04, 0.5, 0.3, (280, 1300, 1900)),
    "-": Sound(0.05, 0.0, 0.0, (500, 1500, 2500)),  # a stop's silence
}
WORDS = {
    "yes": "iies",
    "no": "noou",
    "up": "AA-p",
    "down": "daaun",
    "left": "leef-t",
    "right": "raaii-t",
    "stop": "s-tAo-p",
    "go": "goou",
}
NAMES = (*WORDS, "nothing")  # what is heard where nobody speaks


def synthesise(words: list[str], draw: random.Random) -> Tensor:
    """Return words (N, LENGTH), each by a voice of its own, somewhere in a second, with noise around it."""
    frames, tracks, pitches = LENGTH // HOP + 1, [], []
    for word in words:
        speed, size, loud = draw.uniform(0.75, 1.3), draw.uniform(0.85, 1.25), draw.uniform(0.3, 1)
        track: list[tuple[float, ...]] = []
        for letter in WORDS.get(word, ""):
            seconds, voice, noise, formants = SOUNDS[letter]
            count = max(1, round(seconds * speed * draw.uniform(0.8, 1.2) * RATE / HOP))
            sound = (
                loud * voice,
                loud * noise,
                *(f * size * draw.uniform(0.95, 1.05) for f in formants),
            )
            track += [sound] * count
        silent = (0.0, 0.0, 500.0, 1500.0, 2500.0)
        before = [silent] * draw.randrange(max(1, frames - len(track)))
        tracks.append((before + track + [silent] * frames)[:frames])
        pitches.append((draw.uniform(85, 250), draw.uniform(-0.3, 0.2)))
    gliding = F.interpolate(
        torch.tensor(tracks).transpose(1, 2), size=LENGTH, mode="linear", align_corners=True
    )
    voice, noise, *formants = gliding.unsqueeze(3).unbind(1)  # (N, LENGTH, 1)
    first, bend = torch.tensor(pitches).t().unsqueeze(2)  # (N, 1)
    time = torch.arange(LENGTH) / RATE
    pitch, phase = first * (1 + bend * time), first * (time + bend * time * time / 2)

    def loud(waves: Tensor) -> Tensor:
        """Return how loud waves of these pitches are made by the resonances."""
        widths = ((1.0, 90), (0.6, 120), (0.4, 160))
        return sum(
            (
                gain / (1 + ((waves - formant) / width) ** 2)
                for formant, (gain, width) in zip(formants, widths)
            ),
            torch.zeros(()),
        )

    numbers = torch.arange(1.0, 30.0)
    harmonics = pitch.unsqueeze(2) * numbers
    heard = (
        (harmonics < RATE / 2)
        * loud(harmonics)
        * torch.sin(2 * math.pi * phase.unsqueeze(2) * numbers)
    )
    hiss = 150 + 61.0 * torch.arange(62)
    turns = torch.tensor([draw.random() for _ in range(len(hiss))])
    rustle = loud(hiss) * torch.sin(2 * math.pi * (hiss * time.unsqueeze(1) + turns))
    around = torch.tensor([10 ** draw.uniform(-3.5, -1.3) for _ in words]).unsqueeze(1)
    clean = voice.squeeze(2) * heard.sum(2) + noise.squeeze(2) * rustle.sum(2)
    return 0.25 * clean + around * torch.randn(len(words), LENGTH)


def bands() -> Tensor:
    """Return how much of each bin of a spectrum each band takes (bins, BANDS): narrow ones below, wide ones above."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1).unsqueeze(1)
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(rise, fall).clamp(min=0)


class Listener(nn.Module):
    """Sound to a spectrogram, to which word it is."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW))
        self.register_buffer("bands", bands())
        sizes = (BANDS, WIDTH, WIDTH, 2 * WIDTH)
        self.convs = nn.ModuleList(
            nn.Conv1d(a, b, 5, stride=2, padding=2) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, b) for b in sizes[1:])
        self.head = nn.Linear(4 * WIDTH, len(NAMES))

    def spectrogram(self, sounds: Tensor) -> Tensor:
        """Return log magnitudes of bands (N, BANDS, frames) of sounds (N, LENGTH), however loud these are."""
        loudest = sounds.abs().amax(1, keepdim=True).clamp(min=0.02)
        found = torch.stft(
            sounds / loudest, WINDOW, HOP, window=self.window, return_complex=True
        ).abs()
        return ((found.transpose(1, 2) @ self.bands).transpose(1, 2) + 0.02).log()

    def forward(self, sounds: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (N, words) and the spectrogram."""
        seen = self.spectrogram(sounds)
        x = seen
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.gelu(norm(conv(x)))
        return self.head(torch.cat([x.mean(2), x.amax(2)], 1)), seen


def build() -> Listener:
    """Return the model."""
    return Listener()


def batch(draw: random.Random, count: int) -> tuple[Tensor, Tensor]:
    """Return words (N, LENGTH), and which these are (N)."""
    which = [draw.randrange(len(NAMES)) for _ in range(count)]
    return synthesise([NAMES[i] for i in which], draw), torch.tensor(which)


def train(steps: int) -> tuple[Listener, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model, draw = build(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)

    @torch.compile
    def update(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x)[0], y)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for step in range(steps):
        losses.append(update(*batch(draw, BATCH)).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def export(model: Listener, folder: str) -> None:
    """Write the page: what is heard, and a step that learns it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def learn(sounds: Tensor, words: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(sounds)[0], words)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def hear(sound: Tensor) -> dict[str, Tensor]:
        scores, seen = model(sound)
        return {"scores": scores, "spectrogram": seen}

    # Words to hear, four voices of each, are those to learn from too, beside what the visitor says.
    draw = random.Random("page")
    voices = synthesise([*WORDS] * 4, draw).split(1)
    rows = batch(draw, ROWS)
    torch.export(
        {"learn": learn, "hear": hear},
        folder,
        {"learn": rows, "hear": voices[0]},
        examples={"learn": [], "hear": [(voice,) for voice in voices]},
        labels=NAMES, title="Words it hears", half=True, page=PAGE,
    )  # fmt: skip
    print(f"wrote {folder}; webtorch serve {folder}")


PAGE = r"""
<style>
.words { display: grid; grid-template-columns: repeat(4, 1fr); gap: 8px; margin-top: 12px; }
.word { display: grid; gap: 4px; padding: 10px 12px; text-align: left; position: relative; overflow: hidden; }
.word b { font-size: 19px; } .word small { color: var(--soft); font-weight: 400; font-variant-numeric: tabular-nums; }
.word i { position: absolute; left: 0; bottom: 0; height: 4px; width: 0; background: var(--line); }
.word.heard { border-color: var(--line); box-shadow: inset 0 0 0 1px var(--line); }
#seen { width: 100%; height: 200px; display: block; border-radius: 8px; background: #10131c; }
#wave { width: 100%; height: 60px; display: block; margin-top: 8px; }
.axis { display: flex; justify-content: space-between; font-size: 12px; color: var(--soft); }
#chart { height: 150px; }
#teach { display: flex; flex-wrap: wrap; gap: 6px; } #teach button { padding: 5px 11px; font-size: 14px; }
@media (max-width: 640px) { .words { grid-template-columns: 1fr 1fr; } #seen { height: 160px; } }
</style>
<p class="lead">A network listens for eight words. It learned them from voices that a few lines of Python made up, and
has never heard a person. Press a word to hear one of these voices and see what the network makes of it, or let it
listen to your microphone. If it does not understand you, say which word that was: it learns how you speak, here in this
tab.</p>

<div class="card">
  <div class="buttons">
    <button id="listen" class="primary" disabled>Listen to me</button>
    <span class="space"></span>
    <label class="row"><input id="loud" type="checkbox" checked> play the voices</label>
  </div>
  <div class="words" id="words"></div>
</div>

<figure class="card">
  <figcaption><b>What it sees</b>
    <span class="unit">one second of sound as a spectrogram: low tones below, high ones above</span>
    <span class="unit end" id="said"></span></figcaption>
  <canvas id="seen" role="img" aria-label="The spectrogram"></canvas>
  <canvas id="wave" role="img" aria-label="The sound"></canvas>
  <div class="axis"><span>0 s</span><span>0.5 s</span><span>1 s</span></div>
</figure>

<div class="card">
  <h2>That was … <span class="unit">teach it the sound above</span></h2>
  <div id="teach"></div>
  <div class="row"><span id="taught">It has learned nothing from you yet.</span>
    <button id="forget" disabled>Forget it</button></div>
</div>
<figure class="card"><figcaption><b>Error at each step of learning</b><span class="unit" id="unit"></span></figcaption>
  <svg id="chart" role="img" aria-label="The loss at each step"></svg></figure>

<script type="module">
import { $, curve, examples, make, opened, say, shares } from "./widgets.js";

const [RATE, STEPS] = [8000, 12];
const losses = [];
// What the visitor taught: sounds and which words they are.
const own = [];
let [model, voices, names, came] = [null, [], [], null];
let [sound, listening, speaker, held, turn] = [null, null, null, 0, 0];

const fail = (error) => say(error.message, true);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** Paint log magnitudes (1, bands, frames): the higher the tone the higher up. */
function paintSeen({ data, shape: [, bands, frames] }) {
  const canvas = $("seen");
  [canvas.width, canvas.height] = [frames, bands];
  const image = new ImageData(frames, bands);
  for (let b = 0; b < bands; b++) {
    for (let t = 0; t < frames; t++) {
      const v = Math.max(0, Math.min(1, (data[b * frames + t] + 3.9) / 7.4));
      const at = 4 * ((bands - 1 - b) * frames + t);
      const colour = [16 + 239 * v ** 1.3, 19 + 190 * v ** 2, 28 + 130 * Math.sin(Math.PI * v) ** 0.9 + 60 * v ** 4];
      for (let c = 0; c < 3; c++) image.data[at + c] = colour[c];
      image.data[at + 3] = 255;
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintWave() {
  const canvas = $("wave");
  const width = (canvas.width = canvas.clientWidth * devicePixelRatio);
  const height = (canvas.height = canvas.clientHeight * devicePixelRatio);
  const context = canvas.getContext("2d");
  context.fillStyle = ink("--line");
  const top = Math.max(0.05, sound.reduce((a, v) => Math.max(a, Math.abs(v)), 0));
  const each = sound.length / width;
  for (let x = 0; x < width; x++) {
    let [low, high] = [0, 0];
    for (let i = Math.floor(x * each); i < (x + 1) * each; i++) {
      [low, high] = [Math.min(low, sound[i]), Math.max(high, sound[i])];
    }
    const half = height / 2;
    context.fillRect(x, half - (high / top) * half * 0.95, 1, Math.max(1, ((high - low) / top) * half * 0.95));
  }
}

/** Hear the sound at hand, and show which word it is. Returns the word's number. */
async function hear() {
  const given = { sound: { data: sound, shape: [1, sound.length] } };
  const result = await model.run("hear", given, { latest: true });
  if (result.status === "aborted") return null;
  if (result.status === "failed") throw result.error;
  const { scores, spectrogram } = result.outputs;
  paintSeen(spectrogram);
  paintWave();
  const parts = shares(Array.from(scores.data));
  const best = parts.indexOf(Math.max(...parts));
  document.querySelectorAll(".word").forEach((button, i) => {
    button.classList.toggle("heard", i === best);
    button.querySelector("small").textContent = `${Math.round(100 * parts[i])} %`;
    button.querySelector("i").style.width = `${100 * parts[i]}%`;
  });
  $("said").textContent = best < names.length - 1 ? `“${names[best]}”` : "nothing";
  return best;
}

function play(samples) {
  speaker ??= new AudioContext();
  const buffer = speaker.createBuffer(1, samples.length, RATE);
  buffer.copyToChannel(Float32Array.from(samples), 0);
  const source = speaker.createBufferSource();
  source.buffer = buffer;
  source.connect(speaker.destination);
  source.start();
}

async function example(word) {
  stop();
  const count = names.length - 1;
  const voice = turn++ % (voices.length / count);
  sound = Float32Array.from(voices[voice * count + word].sound.data);
  if ($("loud").checked) play(sound);
  await hear();
}

function stop() {
  listening?.stream.getTracks().forEach((track) => track.stop());
  listening?.context.close();
  listening = null;
  $("listen").textContent = "Listen to me";
}

/** Return the last second that the microphone heard, at our rate. */
function lastSecond({ analyser, context, samples }) {
  analyser.getFloatTimeDomainData(samples);
  const each = context.sampleRate / RATE;
  const out = new Float32Array(RATE);
  for (let i = 0; i < RATE; i++) {
    const at = samples.length - Math.round((RATE - i) * each);
    if (at >= 0) out[i] = samples[at];
  }
  return out;
}

async function listen() {
  if (listening) return stop();
  if (!navigator.mediaDevices) throw new DOMException("no microphone", "NotFoundError");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  // Where the browser resamples itself, a low rate keeps a whole second in the analyser.
  let context = new AudioContext({ sampleRate: RATE });
  let source;
  try {
    source = context.createMediaStreamSource(stream);
  } catch {
    context = new AudioContext();
    source = context.createMediaStreamSource(stream);
  }
  const analyser = context.createAnalyser();
  analyser.fftSize = context.sampleRate === RATE ? 8192 : 32768;
  source.connect(analyser);
  const mine = (listening = { stream, context, analyser, samples: new Float32Array(analyser.fftSize) });
  $("listen").textContent = "Stop";
  while (listening === mine) {
    // What was a word stays in sight for a while, so that it can be corrected.
    if (performance.now() > held) {
      sound = lastSecond(mine);
      const middle = sound.slice(RATE * 0.2, RATE * 0.8);
      const loud = Math.sqrt(middle.reduce((sum, v) => sum + v * v, 0) / middle.length);
      const heard = await hear();
      if (loud > 0.02 && heard !== names.length - 1) held = performance.now() + 1500;
    }
    await new Promise((resolve) => setTimeout(resolve, 120));
  }
}

/** Learn the sound at hand as a word, beside the voices, some steps long. */
async function teach(word) {
  own.push({ sound: sound.slice(), word });
  const [rows, length] = model.functions.learn.arguments[0].shape;
  const count = names.length - 1;
  for (let step = 0; step < STEPS; step++) {
    const data = new Float32Array(rows * length);
    const words = new Int32Array(rows);
    for (let r = 0; r < rows; r++) {
      // A third is what the visitor said, moved a little; the rest keeps what was known.
      const mine = r < rows / 3 && (r === 0 ? own.at(-1) : own[Math.floor(Math.random() * own.length)]);
      const other = Math.floor(Math.random() * voices.length);
      const from = mine ? mine.sound : voices[other].sound.data;
      words[r] = mine ? mine.word : other % count;
      const moved = Math.floor((Math.random() - 0.5) * 800);
      for (let i = 0; i < length; i++) data[r * length + i] = from[i + moved] ?? 0;
    }
    const { loss } = await model.learn({ sounds: { data, shape: [rows, length] }, words });
    losses.push(loss.data[0]);
    $("unit").textContent = curve($("chart"), losses);
  }
  $("taught").textContent = `It has learned ${own.length} ${own.length === 1 ? "sound" : "sounds"} of yours.`;
  $("forget").disabled = false;
  await hear();
}

try {
  model = await opened();
  names = model.program.labels;
  voices = (await examples(model)).hear;
  came = await model.state();
  const buttons = names.slice(0, -1).map((name, i) => {
    const button = make("button", { className: "word" }, make("b", { textContent: name }), make("small"), make("i"));
    button.setAttribute("aria-label", `hear ${name}`);
    button.addEventListener("click", () => example(i).catch(fail));
    return button;
  });
  $("words").replaceChildren(...buttons);
  $("teach").replaceChildren(...names.map((name, i) => {
    const button = make("button", { textContent: name });
    button.addEventListener("click", () => teach(i).catch(fail));
    return button;
  }));
  $("listen").addEventListener("click", () => listen().catch((error) => {
    stop();
    const refused = error.name === "NotAllowedError" || error.name === "NotFoundError";
    say(refused ? "There is no microphone that this page may use; the voices are still there." : error.message);
  }));
  $("forget").addEventListener("click", async () => {
    await model.loadState(came);
    own.length = losses.length = 0;
    $("unit").textContent = curve($("chart"), losses);
    $("taught").textContent = "It has learned nothing from you yet.";
    $("forget").disabled = true;
    await hear();
  });
  $("listen").disabled = false;
  sound = Float32Array.from(voices[0].sound.data);
  await hear();
  curve($("chart"), losses);
  // For the console, and for tests.
  globalThis.model = model;
  $("status").dataset.ready = "yes";
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
