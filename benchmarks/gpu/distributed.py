"""DistributedDataParallel, a process a card: how much of a card's speed is left with several.

Each process trains ResNet-50 on its own batch of 64, and all average their gradients. The efficiency of N cards is
the time of a step on one card, alone, over the time of a step on each of N, of steps that are compiled alike. Steps in
several forms: without DistributedDataParallel, with it, with its options for speed, and compiled; by PyTorch's device
and by webtorch's own face (`--faces torch webtorch`). Where PyTorch has CUDA, the same is measured there with NCCL.

    python -m benchmarks.gpu.distributed --cards 2 --seconds 540 [--faces torch webtorch] [--device webgpu cuda]
    WEBTORCH_PYTORCH_ENGINE=cpu python -m benchmarks.gpu.distributed --cards 2 --size thread

One card is always measured first. Every form has its share of the seconds, and what it leaves goes to those after it:
one that fails, hangs or takes longer says so, and the others go on in new processes.

Of the first process it tells how long the thread that runs the step computes, and how many programs it gives the card.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.networks import resnet

_REACH = 0.9
# Arguments of the network, pictures of a batch, their side, steps that warm up, turns and steps of a turn. "thread":
# as many layers as ResNet-50 and little to compute, so that Python is what lasts.
_SIZES: dict[str, tuple[Any, ...]] = {
    "full": ((), 64, 224, 20, 6, 4),
    "thread": (((3, 4, 6, 3), 8), 2, 32, 20, 6, 4),
    "quick": (((1, 1, 1, 1), 8), 4, 32, 2, 2, 1),
}


class _Form(NamedTuple):
    """A way to train."""

    name: str
    # What DistributedDataParallel is told; None without it.
    options: dict[str, Any] | None = None
    compiled: bool = False
    # Whether gradients travel as bfloat16, by PyTorch's hook.
    narrow: bool = False


_FAST = {"gradient_as_bucket_view": True, "broadcast_buffers": False, "bucket_cap_mb": 50}
_EXCHANGE, _TRACE = "exchange", "trace"
_FORMS = (
    _Form("plain"),
    _Form("DDP", {}),
    _Form("DDP, views", {"gradient_as_bucket_view": True}),
    _Form("DDP, views, no buffers, 50 MB", _FAST),
    *(
        _Form(f"DDP, views, no buffers, {size} MB", {**_FAST, "bucket_cap_mb": size})
        for size in (15, 28, 38)
    ),
    _Form("DDP, views, no buffers, 50 MB, bfloat16", _FAST, narrow=True),
    _Form("compiled", compiled=True),
    _Form("compiled DDP", {}, True),
    _Form("compiled DDP, views", {"gradient_as_bucket_view": True}, True),
)


def _synchronize() -> None:
    torch.accelerator.synchronize()


class _Step:
    """A step of training, and how long the threads of it have computed."""

    def __init__(self, form: _Form, size: str, device: str, ours: bool) -> None:
        """`ours`: `torch` is webtorch's own face, of which the network is compiled within."""
        network, batch, side = _SIZES[size][:3]
        torch.manual_seed(0)
        model: Any = resnet(*network).to(device)
        if form.compiled and ours:
            model = torch.compile(model)
        if form.options is not None:
            model = DistributedDataParallel(model, **form.options)
        if form.narrow:
            model.register_comm_hook(None, bf16_compress_hook)
        if form.compiled and not ours:
            model = torch.compile(model)
        self.model, self.thread = model, threading.get_ident()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        torch.manual_seed(1 + dist.get_rank())
        self.x = torch.randn(batch, 3, side, side).to(device)
        self.y = torch.randint(1000, (batch,)).to(device)
        self.clear()

    def clear(self) -> None:
        """Begin to count."""
        self.forward = self.backward = self.last = 0.0
        self.of_backward: list[float] = []

    def _note(self, gradient: object) -> None:
        if threading.get_ident() != self.thread:
            self.of_backward.append(time.thread_time())

    def __call__(self) -> None:
        """Train once."""
        started = time.thread_time()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.register_hook(self._note)
        ended = time.thread_time()
        self.forward += ended - started
        loss.backward()
        started = time.thread_time()
        self.backward += started - ended
        self.optimizer.step()
        self.last += time.thread_time() - started

    def threads(self, count: int) -> str:
        """Return in words how long a step computes in each thread, of so many."""
        times = self.of_backward
        mine = (self.forward + self.backward + self.last) / count
        parts = ", ".join([
            f"{name} {1e3 * seconds / count:.1f}"
            for name, seconds in (
                ("forward", self.forward), ("backward", self.backward), ("step", self.last),
            )
        ])  # fmt: skip
        theirs = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
        more = "" if theirs is None else f", another of the backward pass {1e3 * theirs:.1f}"
        return f"thread {1e3 * mine:.1f} ms ({parts}){more}"


def _runs() -> int:
    """Return how many programs have run on devices of webtorch's."""
    realize: Any = sys.modules.get("webtorch.runtime.realize")
    return sum(r.counters.realized for r in realize.open_runtimes()) if realize else 0


def _say(**found: object) -> None:
    """Tell the first process what was found."""
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)


def _is_late(ends: float) -> bool:
    """Whether the time is over for any process."""
    late = torch.tensor(float(time.time() > ends))
    dist.all_reduce(late, dist.ReduceOp.MAX)
    return bool(late.item())


def _measure(form: _Form, size: str, device: str, ours: bool, ends: float) -> None:
    """Train in one form, and tell what it took; `ends`: begin no turn but the first after this time."""
    started = time.perf_counter()
    step = _Step(form, size, device, ours)
    warm, turns, count = _SIZES[size][3:]
    for number in range(warm):
        step()
        if number % count == 0:
            # As turns begin: what comes after it is other programs, which are compiled here and not in the first turn.
            _synchronize()
    _synchronize()
    ready = time.perf_counter() - started
    step.clear()
    times: list[float] = []
    before = _runs()
    while len(times) < turns and not (_is_late(ends) and times):
        _synchronize()
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            step()
        _synchronize()
        times.append((time.perf_counter() - started) / count)
    made = len(times) * count
    mine, runs = step.threads(made), (_runs() - before) / made
    # What a step more takes: no turn begins and ends in it.
    _synchronize()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(3 * count):
        step()
    _synchronize()
    more = (time.perf_counter() - started - statistics.median(times) * count) / (2 * count)
    _say(
        form=form.name, times=times, compiled=form.compiled, ready=ready,
        note=f"{mine}, {runs:.1f} runs, a step more {1e3 * more:.1f} ms",
    )  # fmt: skip


def _turns(work: Callable[[], object], turns: int = 6) -> list[float]:
    """Return the seconds of each turn, which processes begin together."""
    found = []
    for _ in range(turns):
        _synchronize()
        dist.barrier()
        started = time.perf_counter()
        work()
        _synchronize()
        found.append(time.perf_counter() - started)
    return found


def _exchange(device: str, size: int) -> None:
    """Tell how long sums take, and what they are made of."""
    for count in (1 << 10, size // 16, size):
        flat = torch.ones(count // 4, device=device)
        host = flat.cpu()
        parts = {
            "all_reduce": _turns(partial(dist.all_reduce, flat)),
            "read": _turns(flat.cpu),
            "write": _turns(partial(flat.copy_, host)),
        }
        if not device.startswith("cuda"):
            parts["gloo"] = _turns(partial(dist.all_reduce, host))
        _say(form=f"exchange of {count / 1e6:.3g} MB", parts=parts)


def _trace(size: str, device: str, ours: bool) -> None:
    """Tell when what belongs to a step's sums happens, in milliseconds since its first one began."""
    from webtorch.distributed import shared
    from webtorch.runtime import arrivals

    rows: list[tuple[float, float, str]] = []

    def watched(owner: Any, name: str) -> None:
        """Note each call of a function."""
        function = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            """Call it."""
            began, found = time.perf_counter(), function(*args, **options)
            thread = threading.current_thread().name.split("-")[1:2] or ["main"]
            rows.append((began, time.perf_counter(), f"{thread[0]} {owner.__name__}.{name}"))
            return found

        setattr(owner, name, call)

    for owner, names in (
        (shared.Exchange, ("put", "begin", "add", "take", "_wait")),
        (arrivals.Arrival, ("wait", "come")),
        (_Step, ("__call__",)),
    ):
        for name in names:
            watched(owner, name)
    step = _Step(_Form(_TRACE, _FAST), size, device, ours)
    for number in range(_SIZES[size][3] + 3):
        if number == _SIZES[size][3]:
            _synchronize()
            rows.clear()
        step()
    _synchronize()
    first = rows[0][0] if rows else 0.0
    for began, ended, what in sorted(rows):
        if dist.get_rank() == 0:
            print(f"{1e3 * (began - first):8.2f} {1e3 * (ended - began):7.2f} {what}", flush=True)


def _rank(ours: bool, device: str, size: str, forms: list[str], ends: float) -> None:
    """Train on one card, beside the others."""
    local = int(os.environ["LOCAL_RANK"])
    if ours:
        from webtorch import webgpu

        cards = webgpu.graphics_cards()
        device = f"webgpu:{cards[local % len(cards)]}" if cards else "cpu"
    else:
        torch.get_device_module(device).set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    known = {form.name: form for form in _FORMS}
    for number, name in enumerate(forms):
        now = time.time()
        _say(begins=name)
        if name == _TRACE:
            _trace(size, device, ours)
        elif name != _EXCHANGE:
            # The rest of its share is for the turn that it has begun.
            late = now + 0.7 * (ends - now) / (len(forms) - number)
            _measure(known[name], size, device, ours, late)
        elif device != "cpu":
            _exchange(device, 100_000_000 if size == "full" else 1_000_000)
        _say(ended=name)
    dist.barrier()
    dist.destroy_process_group()


def _start(
    face: str, device: str, cards: int, size: str, forms: list[str], ends: float
) -> tuple[list[subprocess.Popen[str]], queue.Queue[str | None]]:
    """Start a process a card, and return them with the lines that they print; None ends these."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", *(["webtorch", "run", "-m"] if face == "webtorch" else [])]
    command += ["benchmarks.gpu.distributed", "--rank", face, "--device", device, "--size", size]
    command += ["--ends", str(ends), "--forms", *forms]
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    if cards > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    end, into = os.pipe()
    processes = []
    for rank in range(cards):
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(cards)}
        processes.append(subprocess.Popen(command, stdout=into, env=env, text=True))
    os.close(into)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with os.fdopen(end) as printed:
            for line in printed:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return processes, lines


def _launch(
    face: str, device: str, cards: int, size: str, forms: list[str], ends: float
) -> list[str]:
    """Print what some processes find, and return the forms that are left where one has failed."""
    left = list(forms)
    processes, lines = _start(face, device, cards, size, forms, ends)

    def share() -> float:
        # Others are mostly done before their time, so that one that starts slowly is let go on.
        return time.time() + (ends - time.time()) / max(min(len(left), 2), 1)

    limit, failed = share(), ""
    try:
        while not failed:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                if any(p.poll() for p in processes):
                    failed = f"processes ended with {[p.poll() for p in processes]}"
                elif time.time() > limit:
                    failed = "did not end in its time"
                continue
            if line is None:
                failed = "processes ended" if left else ""
                break
            if not line.startswith("{"):
                print(line, end="", flush=True)
                continue
            found = json.loads(line)
            if "begins" in found:
                limit = share()
            elif "ended" in found:
                left.remove(found["ended"])
            elif "failed" in found:
                failed = found["failed"]
            else:
                _show(face, device, cards, found)
    finally:
        for process in processes:
            if failed:
                process.kill()
            process.wait()
    if failed and left:
        _show(face, device, cards, {"form": left.pop(0), "failed": failed})
    return left


# Seconds of a step on one card, by face, device and whether it is compiled.
_alone: dict[tuple[str, str, bool], float] = {}


def _show(face: str, device: str, cards: int, found: dict[str, Any]) -> None:
    """Print one row of a table."""
    title = f"| {face} on {device} | {cards} | {found['form']} |"
    if "failed" in found:
        print(f"{title} FAILED: {found['failed']} | | |", flush=True)
        return
    if "parts" in found:
        best = ", ".join([f"{k} {1e3 * min(v):.1f} ms" for k, v in found["parts"].items()])
        print(f"{title} {best} | | |", flush=True)
        return
    best, median = min(found["times"]), statistics.median(found["times"])
    if cards == 1:
        _alone[face, device, found["compiled"]] = median
    alone = _alone.get((face, device, found["compiled"]))
    efficiency = "" if alone is None else f"{alone / median:.2f} of {_REACH if cards > 1 else 1}"
    print(
        f"{title} {1e3 * best:.1f} ms, median {1e3 * median:.1f} of {len(found['times'])} | {efficiency} | "
        f"{found['note']}; ready after {found['ready']:.1f} s |",
        flush=True,
    )


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=_SIZES, default="full")
    parser.add_argument("--cards", type=int, nargs="+", default=[2], help="beside one")
    parser.add_argument("--faces", nargs="+", default=["torch"], help="torch, webtorch")
    parser.add_argument("--device", nargs="+", default=["webgpu"], help="webgpu, cuda")
    parser.add_argument("--forms", nargs="+", default=[_EXCHANGE, *[f.name for f in _FORMS]])
    parser.add_argument("--seconds", type=float, default=540, help="for all forms together")
    parser.add_argument("--rank", metavar="FACE", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        ours, device = options.rank == "webtorch", options.device[0]
        try:
            _rank(ours, device, options.size, options.forms, options.ends)
        except Exception as error:
            traceback.print_exc()
            what = (str(error).strip() or "?").split("\n")[0][:300]
            print(json.dumps({"failed": f"{type(error).__name__}: {what}"}), flush=True)
            # Threads of a group that has failed may wait for ever.
            os._exit(1)
        return
    ends = time.time() + options.seconds
    alone = [f.name for f in _FORMS if f.options is None]
    runs = [
        (face, device, cards, [f for f in options.forms if cards > 1 or f in alone])
        for face in options.faces
        for device in (options.device if face == "torch" else ["webgpu"])
        for cards in [1, *[n for n in options.cards if n > 1]]
    ]
    print("| what | cards | form | a step | efficiency | |\n|---|---|---|---|---|---|", flush=True)
    for number, (face, device, cards, forms) in enumerate(runs):
        later = sum(len(r[3]) for r in runs[number + 1 :])
        while forms:
            now = time.time()
            share = max(ends - now, 1) * len(forms) / (len(forms) + later)
            forms = _launch(face, device, cards, options.size, forms, now + share)


if __name__ == "__main__":
    main()
