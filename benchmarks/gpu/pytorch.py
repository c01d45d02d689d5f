"""Real PyTorch on "webgpu", compiled and eager, against PyTorch's own CUDA kernels in eager mode, on one card.

Both sides have the same weights, and their results must agree. The compiled training step is measured
against webtorch.compile of the same step. Times are of calls enqueued in a row; eager inference reads each
result before the next call, as programs do that use it.

    python -m benchmarks.gpu.pytorch [--quick] [--out FILE] [--parts gpt decode ... eager-train eager-unet ...]
"""

from __future__ import annotations

import argparse
import copy
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.device import OURS, describe, enqueued, peer_device, wait
from benchmarks.gpu.networks import Decoder, DecoderSizes, UNet, ViT, resnet
from benchmarks.gpu.training_step import KINDS, measure_apart
from benchmarks.harness import Row, machine, show, write
from benchmarks.models import work
from benchmarks.training import (
    batches,
    furthest,
    initial_weights,
    losses,
    our_step,
    to_ours,
    to_torch,
)
from webtorch.pytorch.dynamo import compile_backend

_TOKENS = 64
_PROMPT = 512
_QUICK = DecoderSizes(2, 32, 4, 2, 64, 96, 40)
# Of outputs, relative to the largest: float32 and float16.
_AGREEMENT = {torch.float32: 2e-3, torch.float16: 5e-2}
_LOSSES = 1e-3
COMPILED = ("gpt", "decode", "prefill", "resnet", "vit", "unet")
EAGER = ("eager-train", "eager-resnet", "eager-vit", "eager-unet", "eager-generate")
PARTS = COMPILED + EAGER


def _pair(build: Callable[[], nn.Module], dtype: torch.dtype) -> tuple[nn.Module, nn.Module, str]:
    """Return a network on our device and on the peer's (the CPU, where there is no CUDA), and that device."""
    where = peer_device() or "cpu"
    torch.manual_seed(0)
    with torch.device(where):
        theirs = build().eval().to(dtype)
    ours = copy.deepcopy(theirs).to("cpu").to("webgpu")
    return ours, theirs, where


def _row(name: str, ours: Any, theirs: Any, reach: float, span: float, calls: int = 1) -> Row:
    """Return the times of two functions for one of `calls` pieces of work."""
    mine = [s / calls for s in enqueued(ours, span)]
    peer = [s / calls for s in enqueued(theirs, span)]
    return Row(name, mine[0], mine[1], peer[0], peer[1], reach=1 / reach)


def _agree(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> str:
    a, b = ours.float().cpu(), theirs.float().cpu()
    far = float((a - b).abs().max() / b.abs().max())
    right = far <= _AGREEMENT[dtype] and bool(torch.isfinite(a).all())
    return f"results differ by {far:.0e}" + ("" if right else ", TOO MUCH")


def decode(quick: bool, dtype: torch.dtype) -> Row:
    """Measure one token of greedy search at batch 1 with a cache of fixed size."""
    sizes = _QUICK if quick else DecoderSizes()
    tokens = 8 if quick else _TOKENS
    ours, theirs, where = _pair(lambda: Decoder(sizes), dtype)
    steps = {"webgpu": torch.compile(ours.step, backend=compile_backend), where: theirs.step}
    texts: dict[str, list[int]] = {}

    def generate(device: str) -> Callable[[], None]:
        def run() -> None:
            token = torch.ones(1, 1, dtype=torch.int64, device=device)
            at = torch.zeros(1, dtype=torch.int64, device=device)
            found = []
            for _ in range(tokens):
                token, at = steps[device](token, at)
                found.append(token)
            texts[device] = torch.cat(found).flatten().tolist()

        return run

    started = time.perf_counter()
    generate("webgpu")()
    first = time.perf_counter() - started
    name = (
        f"decoder of Qwen2.5-0.5B's shape, batch 1, {tokens} new tokens, {_name(dtype)}, per token"
    )
    row = _row(name, generate("webgpu"), generate(where), 0.6, 0.5, tokens)
    same = sum(a == b for a, b in zip(texts["webgpu"], texts[where], strict=True))
    row.note = f"{1 / row.ours:.0f} tokens/s for {1 / (row.peer or 1):.0f}; {same} of {tokens} tokens are the same"
    row.note += f"; first call {first:.0f} s"
    return row


def prefill(quick: bool, dtype: torch.dtype) -> Row:
    """Measure the logits after a text."""
    sizes = _QUICK if quick else DecoderSizes()
    length = 16 if quick else _PROMPT
    ours, theirs, where = _pair(lambda: Decoder(sizes), dtype)
    text = torch.randint(0, sizes.vocabulary, (1, length))
    name = f"the same, prefill of {length} tokens, {_name(dtype)}"
    return _inference(name, ours, theirs, (text,), where, dtype, quick)


def _inference(
    name: str, ours: nn.Module, theirs: nn.Module, given: tuple[torch.Tensor, ...], where: str,
    dtype: torch.dtype, quick: bool,
) -> Row:  # fmt: skip
    mine = [t.to("webgpu") for t in given]
    peer = [t.to(where) for t in given]
    compiled = torch.compile(ours, backend=compile_backend)
    started = time.perf_counter()
    note = _agree(compiled(*mine), theirs(*peer), dtype)
    first = time.perf_counter() - started
    row = _row(name, lambda: compiled(*mine), lambda: theirs(*peer), 0.7, 0.02 if quick else 0.5)
    row.note = f"{note}; first call {first:.0f} s"
    return row


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def images(quick: bool, kind: str) -> Row:
    """Measure ResNet-50 or ViT-B/16 on a batch of 32."""
    batch, side = (2, 32) if quick else (32, 224)
    if kind == "resnet":
        name = "ResNet-50"
        ours, theirs, where = _pair(lambda: resnet((1, 1), 8) if quick else resnet(), torch.float32)
    else:
        name = "ViT-B/16"
        ours, theirs, where = _pair(lambda: ViT(2, 32, 4, 32) if quick else ViT(), torch.float32)
    x = torch.randn(batch, 3, side, side)
    label = f"{name}, batch {batch}, float32"
    return _inference(label, ours, theirs, (x,), where, torch.float32, quick)


def unet(quick: bool, dtype: torch.dtype) -> Row:
    """Measure one call of the noise predictor of Stable Diffusion 1.5."""
    ours, theirs, where = _pair(lambda: UNet((16, 32), 2, 12, 4) if quick else UNet(), dtype)
    side, context = (8, 12) if quick else (64, 768)
    given = (
        torch.randn(2, 4, side, side).to(dtype),
        torch.tensor([500, 500]),
        torch.randn(2, 77, context).to(dtype),
    )
    name = f"UNet of Stable Diffusion 1.5's shape, batch 2, {_name(dtype)}"
    return _inference(name, ours, theirs, given, where, dtype, quick)


def training(quick: bool) -> Row:
    """Measure the GPT's training step through torch.compile against webtorch.compile of it."""
    job = work("gpt", quick)
    weights = initial_weights(job)
    data = batches(job, 5)
    model = job.build(torch)
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
    model.to("webgpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=job.lr)
    forward = torch.compile(
        lambda x, y: nn.functional.cross_entropy(model(x), y), backend=compile_backend
    )
    update = torch.compile(optimizer.step, backend=compile_backend)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = forward(x, y)
        optimizer.zero_grad()
        loss.backward()
        update()
        return loss.detach()

    mine, own = to_torch(data, "webgpu"), to_ours(data, OURS)
    run = our_step(job, weights, OURS, compiled=True)
    far = furthest(losses(step, mine), losses(run, own))
    span = 0.02 if quick else 0.5
    row = Row(
        f"{job.name}, training step, against webtorch.compile",
        *enqueued(lambda: step(*mine[0]), span),
        *enqueued(lambda: run(*own[0]), span),
        reach=1.15,
        note=f"losses differ by {far:.0e}" + ("" if far <= 1e-3 else ", TOO MUCH"),
    )
    return row


# ---- eager ------------------------------------------------------------------------------------


def _threads_time(run: Callable[[], object], calls: int = 5) -> float:
    """Return the processor time of the calling thread for one call."""
    started = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - started) / calls


def _eager(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], span: float, note: str
) -> Row:
    """Measure two eager functions; the note says what the calling thread does of the time."""
    row = _row(name, ours, theirs, 1 / 1.5, span)
    mine, peer = _threads_time(ours), _threads_time(theirs)
    wait()
    row.figures = {"thread": mine, "peer_thread": peer}
    row.note = f"{note}; thread {mine * 1e3:.1f} ms, PyTorch's {peer * 1e3:.1f}"
    return row


def eager_training(quick: bool, kind: str) -> Row:
    """Measure a training step; each side in a process of its own (training_step.py)."""
    mine = measure_apart(kind, "webgpu", quick)
    peer = measure_apart(kind, peer_device() or "cpu", quick)
    far = furthest(mine["losses"], peer["losses"])
    return Row(
        f"{mine['name']}, float32, eager",
        mine["fastest"],
        mine["median"],
        peer["fastest"],
        peer["median"],
        reach=1.5,
        note=f"losses differ by {far:.0e}"
        + ("" if far <= _LOSSES else ", TOO MUCH")
        + f"; thread {mine['thread'] * 1e3:.1f} ms, PyTorch's {peer['thread'] * 1e3:.1f}; "
        f"first step {mine['first']:.1f} s",
        figures={"thread": mine["thread"], "peer_thread": peer["thread"], "first": mine["first"]},
    )


def _eager_inference(
    name: str, build: Callable[[], nn.Module], given: tuple[torch.Tensor, ...], dtype: torch.dtype,
    quick: bool,
) -> Row:  # fmt: skip
    ours, theirs, where = _pair(build, dtype)
    mine = [t.to("webgpu") for t in given]
    peer = [t.to(where) for t in given]
    started = time.perf_counter()
    found = ours(*mine).cpu()
    first = time.perf_counter() - started
    note = _agree(found, theirs(*peer), dtype)
    span = 0.02 if quick else 0.3
    # Calls are learned, and programs compiled, in the first ten.
    for _ in range(2 if quick else 12):
        ours(*mine).cpu(), theirs(*peer).cpu()
    row = _eager(
        f"{name}, eager, each result read",
        lambda: ours(*mine).cpu(),
        lambda: theirs(*peer).cpu(),
        span,
        note,
    )
    row.note += f"; first call {first:.1f} s"
    return row


def eager_images(quick: bool, kind: str) -> Row:
    """Measure ResNet-50 or ViT-B/16 on a batch of 32."""
    batch, side = (2, 32) if quick else (32, 224)
    x = torch.randn(batch, 3, side, side)
    if kind == "resnet":
        name, build = "ResNet-50", lambda: resnet((1, 1), 8) if quick else resnet()
    else:
        name, build = "ViT-B/16", lambda: ViT(2, 32, 4, 32) if quick else ViT()
    return _eager_inference(f"{name}, batch {batch}, float32", build, (x,), torch.float32, quick)


def eager_unet(quick: bool) -> Row:
    """Measure one call of the noise predictor of Stable Diffusion 1.5."""
    side, context = (8, 12) if quick else (64, 768)
    given = (
        torch.randn(2, 4, side, side).half(),
        torch.tensor([500, 500]),
        torch.randn(2, 77, context).half(),
    )
    return _eager_inference(
        "UNet of Stable Diffusion 1.5's shape, batch 2, float16",
        lambda: UNet((16, 32), 2, 12, 4) if quick else UNet(),
        given,
        torch.float16,
        quick,
    )


def eager_generate(quick: bool, static: bool) -> Row:
    """Measure a token of transformers' own `generate`, whose cache grows or has a fixed size."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokens = 8 if quick else _TOKENS
    shape: dict[str, Any] = {
        "hidden_size": 32 if quick else 896,
        "num_hidden_layers": 2 if quick else 24,
        "num_attention_heads": 4 if quick else 14,
        "num_key_value_heads": 2,
        "intermediate_size": 64 if quick else 4864,
        "vocab_size": 96 if quick else 151936,
    }
    config = Qwen2Config(**shape, tie_word_embeddings=True, dtype="float32")
    ours, theirs, where = _pair(lambda: Qwen2ForCausalLM(config), torch.float32)
    sides = {"webgpu": ours, where: theirs}
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}
    texts: dict[str, list[int]] = {}

    def generate(device: str) -> Callable[[], None]:
        model: Any = sides[device]
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        text = torch.arange(1, 9, device=device)[None]

        def run() -> None:
            found = model.generate(
                text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=tokens,
                do_sample=False,
                disable_compile=True,
                **options,
            )
            texts[device] = found[0].tolist()

        return run

    mine, peer = generate("webgpu"), generate(where)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        mine()
        times.append((time.perf_counter() - started) / tokens)
    kind = "static" if static else "growing"
    row = _row(
        f"Qwen2.5-0.5B's shape, transformers' generate, {tokens} new tokens, {kind} cache, float32, "
        "eager, per token",
        mine,
        peer,
        0.6,
        0.5,
        tokens,
    )
    thread = _threads_time(mine, 1) / tokens, _threads_time(peer, 1) / tokens
    row.figures = {"thread": thread[0], "peer_thread": thread[1], "first": times[0]}
    same = sum(a == b for a, b in zip(texts["webgpu"], texts[where], strict=True))
    row.note = (
        f"{same} of {len(texts[where])} tokens are the same; thread {thread[0] * 1e3:.1f} ms, PyTorch's "
        f"{thread[1] * 1e3:.1f}; in the first call {times[0] * 1e3:.0f} ms a token, in the second "
        f"{times[1] * 1e3:.0f}"
    )
    return row


def rows(quick: bool, parts: tuple[str, ...] = PARTS) -> Iterator[Row]:
    """Measure each part in turn."""
    kinds = (torch.float32, torch.float16)
    work: list[tuple[str, Callable[[], Row]]] = [("gpt", lambda: training(quick))]
    work += [("decode", lambda d=d: decode(quick, d)) for d in kinds]  # type: ignore[misc]
    work += [("prefill", lambda d=d: prefill(quick, d)) for d in kinds]  # type: ignore[misc]
    work += [(k, lambda k=k: images(quick, k)) for k in ("resnet", "vit")]  # type: ignore[misc]
    work += [("unet", lambda: unet(quick, torch.float16))]
    work += [("eager-train", lambda k=k: eager_training(quick, k)) for k in KINDS]  # type: ignore[misc]
    work += [
        (f"eager-{k}", lambda k=k: eager_images(quick, k))  # type: ignore[misc]
        for k in ("resnet", "vit")
    ]
    work += [("eager-unet", lambda: eager_unet(quick))]
    work += [("eager-generate", lambda s=s: eager_generate(quick, s)) for s in (False, True)]  # type: ignore[misc]
    for part, measure in work:
        if part not in parts:
            continue
        torch._dynamo.reset()
        trains = part in ("gpt", "eager-train")
        with torch.enable_grad() if trains else torch.no_grad():
            try:
                yield measure()
            except Exception as error:
                traceback.print_exc()
                yield Row(part, float("nan"), float("nan"), note=f"FAILED: {error!s:.300}")


def main() -> None:
    """Measure, printing and writing after each part, so that a stop loses little."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    chosen = parser.parse_args()
    about = {**machine(), **describe()}
    print(about, flush=True)
    found: list[Row] = []
    for row in rows(chosen.quick, tuple(chosen.parts)):
        found.append(row)
        show([row])
        write(chosen.out, found, about=about)
    show(found)


if __name__ == "__main__":
    main()
