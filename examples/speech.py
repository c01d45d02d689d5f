"""FastSpeech (Ren et al., 2019), small: letters to durations to a spectrogram, which Griffin-Lim makes a sound.

    python examples/speech.py                       # --device cpu or webgpu, --compile, --quick
    python examples/speech.py --text "tomato salami" --out speech.wav

Its teacher is a synthesiser of formants, some lines below: a voice and a noise through three resonances,
which glide from letter to letter. The words at the end were not among those learned.
Change the first import to `import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import array
import math
import random
import sys
import time
import wave
from pathlib import Path
from typing import Any, NamedTuple

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

RATE, WINDOW, HOP = 8000, 256, 64  # samples a second, of a window, and between windows
BINS, FRAMES, LETTERS = WINDOW // 2 + 1, 84, 10  # of a spectrum; at most in a word
PITCH, WIDTH, FLOOR = 125.0, 64, 0.05
UNSEEN = ("salami", "tomato", "kimono", "tesla", "risotto")


class Sound(NamedTuple):
    """How long a letter sounds, its parts of voice and noise, and its resonances in Hz."""

    frames: int
    voice: float
    noise: float
    formants: tuple[float, float, float]
    closed: int = 0  # frames of silence before it


SOUNDS = {
    " ": Sound(3, 0.0, 0.0, (500, 1500, 2500)),
    "a": Sound(9, 1.0, 0.0, (730, 1090, 2440)),
    "e": Sound(8, 1.0, 0.0, (530, 1840, 2480)),
    "i": Sound(8, 1.0, 0.0, (270, 2290, 3010)),
    "o": Sound(9, 1.0, 0.0, (570, 840, 2410)),
    "u": Sound(8, 1.0, 0.0, (300, 870, 2240)),
    "m": Sound(6, 0.4, 0.0, (250, 1000, 2200)),
    "n": Sound(6, 0.4, 0.0, (250, 1400, 2600)),
    "l": Sound(5, 0.6, 0.0, (360, 1200, 2700)),
    "r": Sound(5, 0.6, 0.0, (420, 1300, 1600)),
    "z": Sound(6, 0.3, 0.3, (250, 1800, 3500)),
    "s": Sound(8, 0.0, 0.5, (2700, 3300, 3700)),
    "f": Sound(7, 0.0, 0.2, (1100, 2300, 3500)),
    "h": Sound(5, 0.0, 0.3, (600, 1400, 2500)),
    "p": Sound(6, 0.0, 0.4, (500, 900, 2200), 4),
    "t": Sound(6, 0.0, 0.6, (1800, 2900, 3600), 4),
    "k": Sound(7, 0.0, 0.5, (1000, 1700, 2100), 4),
}
CODES = {letter: i for i, letter in enumerate(SOUNDS, 1)}  # 0: no letter


def word_of(draw: random.Random) -> str:
    """Return a word that nobody knows, and that is not kept for the end."""
    while True:
        word = draw.choice(("", "n", "s", "l"))
        for _ in range(draw.choice((2, 3))):
            word = draw.choice("mnlrzsfhptk") + draw.choice("aeiou") + word
        if word not in UNSEEN:
            return word


def durations_of(word: str) -> list[int]:
    """Return the frames of each letter. The last vowel is long, one before a stop short."""
    out = []
    for i, letter in enumerate(word):
        frames, rest = SOUNDS[letter].frames, word[i + 1 :]
        if letter in "aeiou":
            last = not set(rest) & set("aeiou")
            frames += 3 if last else -2 if rest[0] in "ptk" else 0
        out.append(frames)
    return out


def synthesise(words: list[str]) -> Any:
    """Return the sounds of words (N, samples), each with silence after it."""
    tracks = []
    for word in words:
        track: list[tuple[float, ...]] = []
        for letter, frames in zip(word, durations_of(word), strict=True):
            _, voice, noise, formants, closed = SOUNDS[letter]
            for t in range(frames):
                heard = float(t >= closed)
                track.append((heard * voice, heard * noise, *formants))
        tracks.append(track + [(0.0, 0.0, *SOUNDS[" "].formants)] * (FRAMES - len(track)))
    at_frames = torch.tensor(tracks).transpose(1, 2)  # (N, 5, FRAMES)
    count = (FRAMES - 1) * HOP
    gliding = F.interpolate(at_frames, size=count + 1, mode="linear", align_corners=True)
    voice, noise, *formants = gliding[:, :, :count].unsqueeze(3).unbind(1)  # (N, samples, 1)

    def bank(pitches: Any, phases: Any) -> Any:
        """Return waves of all pitches, each as loud as the resonances make it."""
        loud = sum(
            gain / (1 + ((pitches - formant) / breadth) ** 2)
            for gain, formant, breadth in zip(
                (1.0, 0.6, 0.4), formants, (70, 100, 140), strict=True
            )
        )  # (N, samples, pitches)
        times = torch.arange(count).unsqueeze(1) / RATE
        return (loud * torch.sin(2 * math.pi * pitches * times + phases)).sum(-1)

    # A voice is a row of harmonics; a noise, waves side by side whose phases have nothing in common.
    harmonics = PITCH * torch.arange(1, int(RATE / 2 / PITCH))
    hiss = 100 + 37.0 * torch.arange(104)
    draw = random.Random(0)
    phases = torch.tensor([draw.uniform(0, 2 * math.pi) for _ in range(len(hiss))])
    sound = voice.squeeze(2) * bank(harmonics, torch.zeros(()))
    return 0.2 * (sound + noise.squeeze(2) * bank(hiss, phases))


def spectrogram(sounds: Any) -> Any:
    """Return the logarithm of the magnitudes (N, FRAMES, BINS) of sounds (N, samples)."""
    window = torch.hann_window(WINDOW, device=sounds.device)
    found = torch.stft(sounds, WINDOW, HOP, window=window, return_complex=True).abs()
    return (found.transpose(1, 2) + FLOOR).log()


def encoded(words: list[str], spoken: bool) -> tuple[Any, Any]:
    """Return the letters of words and, if `spoken`, their frames, else zeros: both (N, LETTERS)."""
    letters = [[CODES[c] for c in word] + [0] * (LETTERS - len(word)) for word in words]
    frames = [durations_of(w) * spoken + [0] * (LETTERS - len(w) * spoken) for w in words]
    return torch.tensor(letters), torch.tensor(frames)


class Mix(nn.Module):
    """A convolution over neighbours, added to what comes in, and normed."""

    def __init__(self, size: int) -> None:
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, size, padding=size // 2)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        """Return (N, T, WIDTH)."""
        return self.norm(x + F.gelu(self.conv(x.transpose(1, 2)).transpose(1, 2)))


class FastSpeech(nn.Module):
    """Letters, each for as many frames as it lasts, to a spectrogram: all frames at once."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.letters = nn.Embedding(len(CODES) + 1, WIDTH)
        self.places = nn.Embedding(LETTERS, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.reading = nn.Sequential(Mix(3), Mix(3))
        self.duration = nn.Sequential(Mix(3), nn.Linear(WIDTH, 1))
        self.inside = nn.Linear(2, WIDTH)
        self.speaking = nn.Sequential(Mix(5), Mix(5), Mix(5), nn.Linear(WIDTH, BINS))

    def forward(self, letters: Any, frames: Any = None) -> tuple[Any, Any]:
        """Return log magnitudes (N, FRAMES, BINS), and logarithms of frames (N, LETTERS).

        letters: (N, LETTERS). frames: how long each lasts; by default as long as the network thinks.
        """
        silent = letters == 0
        x = self.letters(letters) + self.places(torch.arange(LETTERS, device=letters.device))
        heard, _ = self.attention(x, x, x, key_padding_mask=silent, need_weights=False)
        x = self.reading(self.norm(x + heard))
        logs = self.duration(x).squeeze(2)
        if frames is None:
            frames = logs.exp().round().clamp(min=1).masked_fill(silent, 0)
        ends = frames.cumsum(1).unsqueeze(1)
        starts, lasting = ends - frames.unsqueeze(1), frames.unsqueeze(1).clamp(min=1)
        t = torch.arange(FRAMES, device=letters.device).unsqueeze(1)
        now = ((t >= starts) & (t < ends)).to(x.dtype)  # (N, FRAMES, LETTERS)
        # How much of the letter is over, and how long it lasts.
        inside = torch.stack(
            [(now * (t - starts) / lasting).sum(2), (now * lasting / 10).sum(2)], 2
        )
        return self.speaking(now @ x + self.inside(inside)), logs


def build() -> FastSpeech:
    """Return the model."""
    return FastSpeech()


def batch(step: int, size: int = 16) -> tuple[Any, Any, Any]:
    """Return letters and frames (N, LETTERS), and spectrograms (N, FRAMES, BINS)."""
    draw = random.Random(step)
    words = [f" {word_of(draw)} " for _ in range(size)]
    return *encoded(words, True), spectrogram(synthesise(words))


def loss_of(model: Any, letters: Any, frames: Any, wanted: Any) -> Any:
    """Return the mean difference of the spectrograms, and of the logarithms of how long letters last."""
    found, logs = model(letters, frames)
    spoken = (letters > 0).to(logs.dtype)
    apart = ((logs - frames.clamp(min=1).to(logs.dtype).log()) ** 2 * spoken).sum() / spoken.sum()
    return F.l1_loss(found, wanted) + apart


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=2e-4)

    def update(letters: Any, frames: Any, wanted: Any) -> Any:
        loss = loss_of(model, letters, frames, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        losses.append(update(*(t.to(device) for t in batch(step))).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


@torch.no_grad()
def griffin_lim(magnitudes: Any, rounds: int = 40) -> Any:
    """Return sounds (N, samples) that have these magnitudes (N, FRAMES, BINS), or nearly (Griffin and Lim, 1984).

    The phases are those of a sound that was made with the phases before; with momentum (Perraudin et al., 2013).
    """
    wanted = magnitudes.transpose(1, 2)
    window = torch.hann_window(WINDOW, device=magnitudes.device)
    phases = torch.polar(torch.ones_like(wanted), 2 * math.pi * torch.rand_like(wanted))
    before = torch.zeros_like(phases)
    for _ in range(rounds):
        sound = torch.istft(wanted * phases, WINDOW, HOP, window=window)
        after = torch.stft(sound, WINDOW, HOP, window=window, return_complex=True)
        phases = after + 0.9 * (after - before)
        phases, before = phases / (phases.abs() + 1e-8), after
    return torch.istft(wanted * phases, WINDOW, HOP, window=window)


@torch.no_grad()
def speak(model: Any, words: list[str], device: str) -> tuple[Any, list[int]]:
    """Return the sounds of words (N, samples), and how many samples of each are its own."""
    letters, _ = encoded([f" {word} " for word in words], False)
    found, logs = model(letters.to(device))
    frames = logs.exp().round().clamp(min=1).masked_fill(letters.to(device) == 0, 0).sum(1)
    sounds = griffin_lim((found.exp() - FLOOR).clamp(min=0))
    return sounds, [min(FRAMES - 1, int(n)) * HOP for n in frames.tolist()]


def distance(sounds: Any, others: Any) -> float:
    """Return the mean difference of two spectrograms, in dB."""
    apart = (spectrogram(sounds.cpu()) - spectrogram(others.cpu())).abs().mean()
    return 20 / math.log(10) * apart.item()


def draw_spectrogram(sound: Any, frames: int) -> str:
    """Return a picture of a sound (samples): time to the right, pitch upwards."""
    found = spectrogram(sound.cpu().unsqueeze(0))[0, :frames].t()  # (BINS, frames)
    rows = F.avg_pool1d(found[:128].t().unsqueeze(0), 8)[0].t().flip(0).tolist()
    low = math.log(FLOOR)
    shades = [[int((v - low) / (3.0 - low) * 10) for v in row] for row in rows]
    return "\n".join("".join(" .:-=+*#%@"[min(9, max(0, n))] for n in row) for row in shades)


def save(path: Path, samples: list[float]) -> None:
    """Write a sound as WAV, 16 bits, as loud as it can be."""
    loudest = max(1e-6, *(abs(s) for s in samples))
    data = array.array("h", [int(32000 * s / loudest) for s in samples])
    if sys.byteorder == "big":
        data.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(data.tobytes())


def main() -> None:
    """Train, speak, and compare with the synthesiser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--text", default=" ".join(UNSEEN), help="words of the letters it knows")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"), help="the sound")
    options = parser.parse_args()
    words = options.text.lower().split()
    for word in words:
        if not set(word) < set(SOUNDS) or len(word) > LETTERS - 2:
            known = "".join(SOUNDS).strip()
            parser.error(f"{word!r}: words have up to {LETTERS - 2} of the letters {known}")
    model, _ = train(100 if options.quick else 600, options.device, options.compile)
    model.eval()
    speak(model, words, options.device)[0].cpu()  # what is compiled at first is not timed
    began = time.perf_counter()
    sounds, lengths = speak(model, words, options.device)
    sounds = sounds.cpu()
    seconds = time.perf_counter() - began
    save(options.out, [s for row, n in zip(sounds.tolist(), lengths, strict=True) for s in row[:n]])
    taught = synthesise([f" {word} " for word in words])
    shown = max(lengths[0] // HOP, 20)
    print(f"{words[0]}, as it is spoken, and as the synthesiser does:")
    print(draw_spectrogram(sounds[0], shown) + "\n" + "-" * shown)
    print(draw_spectrogram(taught[0], shown))
    heard = sum(lengths) / RATE
    print(
        f"{options.out}: {heard:.2f} s of sound in {seconds:.2f} s, {seconds / heard:.2f} of real time"
    )
    print(f"mean difference from the synthesiser: {distance(sounds, taught):.1f} dB")


if __name__ == "__main__":
    main()
