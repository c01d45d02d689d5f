"""Training over slow links: local SGD and DiLoCo, with workers that leave and come back.

python examples/distributed/slow_links.py                          three workers, DiLoCo: they meet every 20 steps
python examples/distributed/slow_links.py --every 1 --outer local  they meet at each step
python examples/distributed/slow_links.py --leave                  a worker is killed, and comes back later

Each worker trains by itself, then all exchange how far they have moved: local SGD takes the mean, DiLoCo (Douillard
et al., 2023) gives it to Nesterov's SGD as a gradient. Links are as slow as --mbit says: the exchange waits as long as
a ring over such links would take. The starter holds the store at which workers meet. It says who takes part in a round:
who has died is left out, and who is new is sent the parameters.

With webtorch in PyTorch's place: --python "python -m webtorch run" --device cpu.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

HERE = str(Path(__file__).resolve().parent)
WAIT = datetime.timedelta(seconds=60)


class Link:
    """Collectives that take as long as over links of so many megabits and milliseconds."""

    def __init__(self, mbit: float, latency_ms: float) -> None:
        self.seconds_a_byte, self.latency = 8e-6 / mbit, latency_ms / 1e3
        self.bytes, self.waited = 0.0, 0.0

    def all_reduce(self, x: torch.Tensor) -> None:
        """Sum over processes, no sooner than a ring of them could."""
        size, start = dist.get_world_size(), time.perf_counter()
        dist.all_reduce(x)
        sent = x.numel() * x.element_size() * 2 * (size - 1) / size
        end = start + sent * self.seconds_a_byte + 2 * (size - 1) * self.latency
        time.sleep(max(0.0, end - time.perf_counter()))
        self.bytes += sent
        self.waited += time.perf_counter() - start


class Outer:
    """The parameters that all workers agree on, and what moves them."""

    def __init__(self, model: torch.nn.Module, method: str) -> None:
        self.parameters = list(model.parameters())
        self.agreed = torch.nn.Parameter(self.flat())
        # Of local SGD the mean is taken as it is.
        diloco = method == "diloco"
        self.optimizer = torch.optim.SGD(
            [self.agreed], 0.7 if diloco else 1.0, momentum=0.9 if diloco else 0.0, nesterov=diloco
        )

    def flat(self) -> torch.Tensor:
        """Return the parameters as one tensor."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def take(self) -> None:
        """Let the model have what is agreed on."""
        with torch.no_grad():
            parts = self.agreed.split([p.numel() for p in self.parameters])
            for p, part in zip(self.parameters, parts, strict=True):
                p.copy_(part.reshape(p.shape))

    def exchange(self, link: Link, new: bool, any_new: bool, veterans: int) -> torch.Tensor:
        """Return the mean of the workers' ways; who is new has gone none."""
        state = self.optimizer.state[self.agreed]
        if any_new:
            # The first of the others sends where they are.
            buffer = state.get("momentum_buffer")
            both = torch.stack(
                [self.agreed.detach(), torch.zeros_like(self.agreed) if buffer is None else buffer]
            ).detach()
            dist.broadcast(both, 0)
            if new:
                with torch.no_grad():
                    self.agreed.copy_(both[0])
                if self.optimizer.defaults["momentum"]:
                    state["momentum_buffer"] = both[1].clone()
        way = torch.zeros_like(self.agreed) if new else self.agreed - self.flat()
        way = way.detach()
        link.all_reduce(way)
        return way / veterans

    def move(self, way: torch.Tensor) -> None:
        """Move what is agreed on."""
        self.agreed.grad = way
        self.optimizer.step()
        self.take()


def join(store: dist.Store, key: str, ranks: list[str], me: str) -> None:
    """Make the group of those who take part."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(key, store), rank=ranks.index(me), world_size=len(ranks), timeout=WAIT
    )  # fmt: skip


def worker(options: argparse.Namespace) -> None:
    """Train as one worker, from the round at which it is let in."""
    sys.path.insert(0, HERE)
    from task import network, points

    store = dist.TCPStore("127.0.0.1", options.port, is_master=False, timeout=WAIT)
    me, members = str(options.worker), ""
    model = network().to(options.device)
    outer, link = Outer(model, options.outer), Link(options.mbit, options.latency_ms)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, y = (t.to(options.device) for t in points())
    generator = torch.Generator().manual_seed(options.worker)
    store.set(f"join/{me}/{options.life}", "")
    number, attempt = map(int, store.get(f"first/{me}/{options.life}").decode().split("."))
    new = options.life > 0
    while number < options.rounds:
        for _ in range(0 if new else options.every):
            batch = torch.randint(len(x), (64,), generator=generator).to(options.device)
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            inner.zero_grad()
            loss.backward()
            inner.step()
        way = None
        while way is None:
            key = f"{number}.{attempt}"
            store.set(f"{key}/here/{me}", "")
            everyone, newcomers = store.get(f"{key}/members").decode().split("/")
            fresh = [name for name in newcomers.split(",") if name]
            try:
                if everyone != members:
                    members = ""
                    join(store, key, everyone.split(","), me)
                    members = everyone
                way = outer.exchange(link, new, bool(fresh), len(everyone.split(",")) - len(fresh))
            except RuntimeError:
                # Somebody has died.
                members = ""
            # Nobody moves unless all can.
            store.set(f"{key}/done/{me}", "yes" if way is not None else "no")
            if store.get(f"{key}/verdict") != b"yes":
                way, members = None, ""
            attempt += 1
        outer.move(way)
        new, number, attempt = False, number + 1, 0
        if dist.get_rank() == 0 and (number % max(1, options.rounds // 8) == 0):
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(model(x), y)
            print(
                f"round {number}: {dist.get_world_size()} workers, loss {loss.item():.4f}, {link.bytes / 1e6:.2f} MB "
                f"sent, {link.waited:.2f} s waited", flush=True
            )  # fmt: skip
    dist.destroy_process_group()


def start(options: argparse.Namespace, number: int, life: int) -> subprocess.Popen[bytes]:
    """Start a worker."""
    given = [
        f"--{name.replace('_', '-')}={getattr(options, name)}"
        for name in ("device", "every", "latency_ms", "mbit", "outer", "port", "rounds")
    ]
    command = [*shlex.split(options.python), __file__, *given]
    return subprocess.Popen([*command, f"--worker={number}", f"--life={life}"])


def waited(
    store: dist.Store, key: str, names: set[int], running: dict[int, subprocess.Popen[bytes]]
) -> set[int]:
    """Wait for a word of each worker, and return those who live."""
    while True:
        names = {n for n in names if running[n].poll() is None}
        if all(store.check([f"{key}/{n}"]) for n in names):
            return names
        time.sleep(0.002)


def lead(options: argparse.Namespace) -> None:
    """Start the workers, and say who takes part in each round."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=WAIT)
    options.port = store.port
    running = {n: start(options, n, 0) for n in range(options.workers)}
    lives = dict.fromkeys(running, 0)
    for n in running:
        store.get(f"join/{n}/0")
        store.set(f"first/{n}/0", "0.0")
    inside, last = set(running), options.workers - 1
    for number in range(options.rounds):
        if options.leave and number == options.rounds // 3:
            running[last].kill()
            print(f"worker {last} is killed", flush=True)
        if options.leave and number == options.rounds // 2:
            running[last], lives[last] = start(options, last, 1), 1
            print(f"worker {last} is started again", flush=True)
            # The others need not wait for it; here they do, so that the example is short.
            store.get(f"join/{last}/1")
        for attempt in itertools.count():
            key = f"{number}.{attempt}"
            inside = waited(store, f"{key}/here", inside, running)
            joining = [
                n
                for n in running
                if n not in inside and lives[n] and store.check([f"join/{n}/{lives[n]}"])
            ]
            for n in joining:
                store.set(f"first/{n}/{lives[n]}", f"{key}")
            # Who has been there longest is first.
            everyone = [*sorted(inside), *joining]
            names = ",".join(map(str, everyone)) + "/" + ",".join(map(str, joining))
            store.set(f"{key}/members", names)
            there = waited(store, f"{key}/done", set(everyone), running)
            well = there == set(everyone) and all(
                store.get(f"{key}/done/{n}") == b"yes" for n in everyone
            )
            store.set(f"{key}/verdict", "yes" if well else "no")
            inside = there
            if well:
                break
    codes = [running[n].wait() for n in inside]
    if any(codes):
        raise SystemExit("a worker has failed")


def main() -> None:
    """Lead, or work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--rounds", type=int, default=24, help="how often the workers meet")
    parser.add_argument("--every", type=int, default=20, help="steps from one meeting to the next")
    parser.add_argument("--outer", default="diloco", choices=["diloco", "local"])
    parser.add_argument("--mbit", type=float, default=10.0, help="bandwidth of a link")
    parser.add_argument("--latency-ms", type=float, default=5.0)
    parser.add_argument("--leave", action="store_true", help="a worker is killed, and comes back")
    parser.add_argument("--python", default=sys.executable, help="what starts a worker")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--life", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    worker(options) if options.worker >= 0 else lead(options)


if __name__ == "__main__":
    main()
