"""Random training loops: the same program in webtorch, with scripts and without, and in PyTorch.

`python -m tests.scripts.loops --count 2000 --seed 0` runs many. A loop branches, writes in place, changes sizes,
raises, keeps tensors, reads between, registers hooks, and looks at what it kept.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from tests.scripts import features
from tests.scripts.many import run_many

STEPS = 14


class Loop:
    """One random program. `run` gives the same numbers in every library that has PyTorch's names."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.width = rng.choice([3, 4, 6])
        self.batches = rng.choice([[5], [5], [4, 2], [3, 5, 2]])
        self.kind = rng.choice(["linear", "deep", "norm", "conv", "attention", "own", "recurrent"])
        self.optimizer = rng.choice(
            ["SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad", "none"]
        )
        self.zero = rng.choice(["before", "between", "after", "fill"])
        self.micro = rng.choice([1, 1, 1, 2, 3])
        self.loss = rng.choice(["mse", "sum", "cross", "l1"])
        # What happens beside the step, at which steps: each a name, a first step and a period.
        names = [
            "read", "read-early", "keep", "keep-graph", "lr", "schedule", "decay", "freeze", "hook", "hook-result",
            "write", "data", "raise", "clip", "clamp", "evaluate", "evaluate-graph", "view", "twice", "print", "copy",
            "load", "average", "alias", "set-gradient", "drop-gradient", "buffer", "double", "number", "grad", "slice",
            "weigh", "fill", "bound", "power", "blend", "loss-number", "penalty", "grad-early",
        ]  # fmt: skip
        self.events = [
            (rng.choice(names), rng.randrange(STEPS), rng.choice([1, 2, 3, 5, 100]))
            for _ in range(rng.choice([0, 1, 2, 3, 4]))
        ]
        # Where autocast is on: in each forward pass, or around the whole loop.
        self.autocast = rng.choice(["", "", "", "forward", "around"])
        if self.kind == "recurrent":
            # Its sums are in another order where steps are one program, and bfloat16 rounds these otherwise.
            self.autocast = ""
        self.cached = rng.choice([True, True, False])
        # Whether what was cast is forgotten once parameters are written.
        self.cleared = seed % 3 > 0
        # Whether the loss is scaled, whether gradients are divided before they are looked at, and where one overflows.
        self.scaled = self.optimizer != "none" and rng.random() < 0.25
        self.unscaled = rng.choice([True, False])
        self.overflows = rng.choice([2, 5, 9, 100])
        # How the numbers change that calls are given.
        self.change = rng.choice(["grows", "cycles", "crosses"])
        # What is read in each step before the backward pass, and what happens there.
        self.reads = rng.choice(["", "", "loss", "loss", "accuracy", "both"])
        between = [
            "branch", "beside", "write-between", "data-between", "hook-between", "look-between", "grad-between",
            "raise-between", "numpy-between", "seed-between", "keep-loss", "drop-loss", "critic", "retain", "again",
            "clear-between", "detach-between", "second-order", "read-clip", "read-early",
        ]  # fmt: skip
        self.events += [
            (rng.choice(between), rng.randrange(STEPS), rng.choice([1, 1, 2, 3, 5, 100]))
            for _ in range(rng.choice([0, 0, 1, 2, 3]))
        ]
        self.dropout = rng.choice([0.0, 0.0, 0.0, 0.5])
        # What has to do with the graph: leaves among the results, graphs that are kept or used up in part, and
        # functions of the user's that a backward pass calls.
        graphs = [
            "leaf-input", "late-graph", "inner-step", "rest-graph", "function", "hook-after", "hook-module",
            "checkpoint", "leaf-result", "evaluate-read", "by-data", "target", "function-two", "function-look",
        ]  # fmt: skip
        self.events += [
            (rng.choice(graphs), rng.randrange(STEPS), rng.choice([1, 1, 2, 3, 5, 100]))
            for _ in range(rng.choice([0, 0, 1, 2]))
        ]
        # Hooks that a backward pass calls.
        hooks = [
            "hook-all", "post-all", "hook-once", "hook-keep", "hook-look", "hook-raise", "hook-inner", "hook-outside",
            "hook-in-place", "hook-removed", "hook-twice",
        ]  # fmt: skip
        self.events += [
            (rng.choice(hooks), rng.randrange(STEPS), rng.choice([1, 1, 1, 2, 3, 100]))
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]
        # Whole numbers that change, such as the step's; and parts that are computed again.
        more = [
            "count", "count", "checkpoint-old", "checkpoint-drop", "checkpoint-part", "hook-modules", "hook-inputs",
            "backward-lists",
        ]  # fmt: skip
        self.events += [
            (rng.choice(more), rng.randrange(STEPS), rng.choice([1, 1, 2, 3]))
            for _ in range(rng.choice([0, 0, 0, 1]))
        ]
        # What stands in a file of its own.
        self.events += [
            (rng.choice(features.NAMES), rng.randrange(STEPS), rng.choice([1, 1, 2, 3, 100]))
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]

    def __repr__(self) -> str:
        return f"Loop({self.seed}): {vars(self)}"

    def happens(self, name: str, step: int) -> bool:
        """Whether an event is due."""
        return any(
            n == name and step >= first and (step - first) % period == 0
            for n, first, period in self.events
        )

    @property
    def exact(self) -> bool:
        """Whether no kernel becomes machine code meanwhile: then two runs differ in nothing but sums of a program that
        was cut elsewhere.
        """
        return bool(self.autocast) or self.seed % 2 == 0

    def run(self, torch: ModuleType, nudge: float = 0.0, draw: int = 0) -> list[Any]:
        """Run the program, and return the numbers that it saw. `nudge`: by how much of them the parameters differ;
        `draw`: with which numbers what layers give is rounded otherwise, if not 0.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            running = _Running(self, torch, nudge)
            if draw:
                _round_otherwise(torch, running.model, random.Random(draw))
            try:
                running.numbers()
            except RuntimeError as error:
                # A program that is refused is refused by all, at the same place.
                running.seen.append(f"{type(error).__name__}: {str(error)[:40]}")
            return running.seen


class _Running:
    def __init__(self, loop: Loop, torch: ModuleType, nudge: float = 0.0) -> None:
        self.loop, self.torch, self.nudge = loop, torch, nudge
        self.rng = random.Random(loop.seed + 1)
        self.seen: list[Any] = []
        self.kept: list[Any] = []
        self.late: list[Any] = []
        self.handles: list[Any] = []
        self.everywhere: dict[str, list[Any]] = {}
        self.model = self.make_model()
        self.parameters = list(self.model.parameters())
        # What bfloat16 rounds otherwise than PyTorch's does not become more and more.
        self.rate = 0.005 if loop.autocast else 0.05
        self.optimizer = self.make_optimizer()
        self.buffer = self.data(2, 3)
        self.average = [p.detach().clone() for p in self.parameters]
        self.table = self.data(40, loop.width)
        self.critic = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        with torch.no_grad():
            for p in self.critic.parameters():
                p.copy_(self.data(*p.shape))
        self.last_loss: Any = None
        self.judge = torch.optim.SGD(self.critic.parameters(), lr=0.05)
        torch.manual_seed(loop.seed)
        self.last = 0.5
        self.schedule: Any = None
        self.scaler = torch.amp.GradScaler("cpu", 64.0, growth_interval=3, enabled=loop.scaled)
        if self.optimizer is not None and any(n == "schedule" for n, *_ in loop.events):
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def data(self, *shape: int) -> Any:
        """Return a tensor of numbers that are the same in every library."""
        values = [round(self.rng.uniform(-1, 1), 3) for _ in range(math.prod(shape))]
        return self.torch.tensor(values).reshape(shape)

    def make_model(self) -> Any:
        torch, nn, w = self.torch, self.torch.nn, self.loop.width
        kind = self.loop.kind
        if kind == "linear":
            model = nn.Linear(w, 3)
        elif kind == "deep":
            model = nn.Sequential(
                nn.Linear(w, 5), nn.GELU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
            )
        elif kind == "norm":
            model = nn.Sequential(
                nn.Linear(w, 4), nn.LayerNorm(4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 3)
            )
        elif kind == "conv":
            model = nn.Sequential(
                nn.Unflatten(1, (1, w)), nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * w, 3)
            )  # fmt: skip
        elif kind == "attention":
            model = _attention(torch, w)
        elif kind == "recurrent":
            model = _recurrent(torch, self.loop.seed)
        else:
            model = _own(torch, w)
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(self.data(*p.shape) * (1 + (self.nudge if k % 2 else -self.nudge)))
        return model

    def make_optimizer(self) -> Any:
        optim, name, rate = self.torch.optim, self.loop.optimizer, self.rate
        if name == "none":
            return None
        if name == "momentum":
            return optim.SGD(self.parameters, lr=rate, momentum=0.9, weight_decay=0.01)
        if name == "SGD":
            return optim.SGD(self.parameters, lr=rate)
        # Gradients that are 0 but for rounding stay small.
        return getattr(optim, name)(self.parameters, lr=rate, eps=0.05)

    def cast(self, *places: str) -> contextlib.AbstractContextManager[Any]:
        """Return autocast, if the program has it in one of these places."""
        if self.loop.autocast not in places:
            return contextlib.nullcontext()
        return self.torch.autocast("cpu", self.torch.bfloat16, cache_enabled=self.loop.cached)  # type: ignore[no-any-return]

    def numbers(self) -> None:
        """Run all steps, and note what becomes of them."""
        with self.cast("around"):
            for step in range(STEPS):
                self.step(step)
        self.seen.append(self.scaler.get_scale())
        for loss in self.late:
            try:
                loss.backward()
            except RuntimeError as error:
                self.seen.append("inplace" if "inplace" in str(error) else "error")
                # When the casts of parameters have their turn hangs on the graph that they were made for.
                for p in self.parameters if self.loop.autocast else ():
                    p.grad = None
        features.end(self)
        for p in self.parameters:
            self.see(p)
            if p.grad is not None:
                self.see(p.grad)
        for t in (*self.kept, self.buffer, *self.average, *self.model.buffers()):
            self.see(t)

    def see(self, t: Any) -> None:
        """Note the values of a tensor."""
        self.seen.append(t.detach().flatten().tolist())

    def loss_of(self, out: Any, target: Any) -> Any:
        F, name = self.torch.nn.functional, self.loop.loss
        if name == "mse":
            return ((out - target) ** 2).mean()
        if name == "l1":
            return F.l1_loss(out, target)
        if name == "cross":
            return F.cross_entropy(out, target.argmax(1))
        return (out * target).mean().sin()

    def forget_gradients(self) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=self.loop.zero != "fill")
        else:
            for p in self.parameters:
                p.grad = None

    def step(self, step: int) -> None:
        """Do one step, and what happens beside it."""
        torch, loop, happens = self.torch, self.loop, self.loop.happens
        if loop.zero == "before":
            self.forget_gradients()
        if happens("freeze", step):
            self.parameters[0].requires_grad_(not self.parameters[0].requires_grad)
        for micro in range(loop.micro):
            size = loop.batches[(step + micro) % len(loop.batches)]
            x, target = self.data(size, loop.width), self.data(size, 3)
            if happens("slice", step):
                x = self.table[step : step + size]
            if happens("leaf-input", step):
                x = x.clone().requires_grad_()
            with self.cast("forward"):
                out = self.forward(step, x)
            if happens("hook-result", step):
                out.register_hook(lambda g: g * 0.5)
            out = features.changed(self, step, x, self.with_numbers(step, out))
            with self.cast("forward"):
                if loop.dropout:
                    out = torch.nn.functional.dropout(out, loop.dropout)
                loss = self.loss_of(out, target)
                if happens("critic", step):
                    loss = loss + self.judged(step, out)
            if happens("weigh", step):
                t = self.number(step)
                loss = loss * t + (1 - t) * out.abs().mean()
            if happens("read-early", step):
                self.seen.append(loss.item())
            if happens("penalty", step):
                (g,) = torch.autograd.grad(loss, [out], create_graph=True)
                loss = loss + (g * g).sum()
            if happens("grad-early", step) and self.parameters[-1].requires_grad:
                g, h = torch.autograd.grad(
                    loss, [out, self.parameters[-1]], retain_graph=True, allow_unused=True
                )
                self.kept.append(g * 2 if h is None else g * h.sum())
            if happens("raise", step):
                with contextlib.suppress(RuntimeError):
                    out @ self.data(7, 2)
            if happens("view", step):
                view = out.detach().view(-1)
                view[0] = 2.0
                self.see(out)
            if loop.zero == "between" and micro == 0:
                self.forget_gradients()
            try:
                if happens("grad", step):
                    (g,) = torch.autograd.grad(loss, [out], retain_graph=True)
                    self.see(g)
                self.read(out, target, loss)
                loss = self.between(step, out, loss)
                if out.requires_grad:
                    self.with_hooks(step, out)
                if loss is not None:
                    self.backward(step, loss)
                    self.differentiated(step, x, out)
            except RuntimeError as error:
                # What was saved has been written since, or used up.
                self.seen.append("inplace" if "inplace" in str(error) else "error")
        if loss is None:
            loss = out.mean()
        self.unscaled = (
            loop.scaled and loop.unscaled and any(p.grad is not None for p in self.parameters)
        )
        if self.unscaled:
            self.scaler.unscale_(self.optimizer)
        self.around(step, out, loss)
        self.update(step)
        # PyTorch goes on with what it cast of parameters before they were written.
        self.forget_casts()
        features.after(self, step, out, loss)
        self.forget_casts()
        self.after(step, out, loss)
        self.forget_casts()

    def forget_casts(self) -> None:
        if self.loop.autocast == "around" and self.loop.cleared:
            self.torch.clear_autocast_cache()

    def forward(self, step: int, x: Any) -> Any:
        """Return what the model gives, by way of a function of the user's in some steps."""
        torch, happens = self.torch, self.loop.happens
        if happens("hook-modules", step):
            self.hook_modules()
        if happens("hook-inputs", step):
            x = x.clone().requires_grad_()
        if happens("hook-module", step):
            handle = self.model.register_full_backward_hook(lambda m, gi, go: None)
            # A hook that is called where nothing is differentiated warns.
            out = self.model(x.clone().requires_grad_())
            handle.remove()
        elif happens("checkpoint", step):
            out = torch.utils.checkpoint.checkpoint(self.model, x, use_reentrant=False)
        elif happens("checkpoint-old", step):
            out = torch.utils.checkpoint.checkpoint(
                self.model, x.clone().requires_grad_(), use_reentrant=True
            )
        elif happens("checkpoint-drop", step):
            out = torch.utils.checkpoint.checkpoint(
                lambda x: torch.nn.functional.dropout(self.model(x), 0.25), x, use_reentrant=False
            )
        elif happens("checkpoint-part", step):
            near, count = x * 1.5, step % 2 + 1.0

            def part(x: Any, y: Any) -> Any:
                out = self.model(x).tanh() * count + y[:, :3] ** 2
                self.seen.append("part")
                return out + 1

            out = torch.utils.checkpoint.checkpoint(part, near, x, use_reentrant=False)
        else:
            out = features.forward(self, step, x)
        if happens("function", step):
            out = _doubled(torch).apply(out)
        if happens("function-two", step):
            out, large = _two(torch).apply(out, 0.5 + step / 20)
            if step % 3 == 0:
                self.kept.append(large)
        if happens("function-look", step):
            out = _looked(torch, self.seen).apply(out)
        if happens("leaf-result", step):
            # A leaf that begins a graph of its own.
            near = (out.detach() + 0.5).requires_grad_()
            (near.square() * x.detach().mean()).sum().backward()
            self.kept.append(near.grad)
        return out

    def hook_modules(self) -> None:
        """Have modules call hooks in the backward pass, which change gradients, keep and read them; or no more."""
        there = self.everywhere.pop("hook-modules", None)
        for handle in there or ():
            handle.remove()
        if there is not None:
            return
        handles = self.everywhere["hook-modules"] = []
        for number, module in enumerate(self.model.modules()):
            if number == 0 or not list(module.children()):

                def hook(
                    module: Any, got: Any, given: Any, number: int = number
                ) -> tuple[Any, ...] | None:
                    if number % 3 == 1:
                        self.seen.append([g is None for g in (*got, *given)])
                    if number == 2:
                        self.kept.append(given[0].detach() * 2)
                    if number % 2 or any(g is None for g in got):
                        return None
                    return tuple([g * 0.75 for g in got])

                handles.append(module.register_full_backward_hook(hook))
                if number % 3 == 2:
                    handles.append(
                        module.register_full_backward_pre_hook(
                            lambda m, g: tuple([h * 1.25 for h in g])
                        )
                    )

    def differentiated(self, step: int, x: Any, out: Any) -> None:
        """What happens after the backward pass, with what is left of the graph."""
        torch, happens = self.torch, self.loop.happens
        if happens("leaf-input", step) and x.grad is not None:
            self.see(x.grad)
        if happens("late-graph", step):
            self.late.append(self.model(self.table[step : step + 2]).square().mean())
            self.seen.append(self.late[-1].item())
        if happens("rest-graph", step):
            try:
                (g,) = torch.autograd.grad(
                    out.sum(), self.parameters[-1:], allow_unused=True, retain_graph=True
                )
                self.seen.append("unused" if g is None else g.sum().item())
            except RuntimeError:
                self.seen.append("freed")

    def judged(self, step: int, out: Any) -> Any:
        """Train a critic on a result, and return what it says of it then: both share a graph."""
        self.judge.zero_grad()
        against = self.critic(out.detach().float() if self.loop.autocast else out.detach()).mean()
        if self.loop.reads:
            self.seen.append(against.item())
        against.backward()
        self.judge.step()
        return -self.critic(out.float() if self.loop.autocast else out).mean()

    def read(self, out: Any, target: Any, loss: Any) -> None:
        """Read what the program reads in each step before the backward pass."""
        if self.loop.reads in ("loss", "both"):
            self.seen.append(loss.item())
        if self.loop.reads in ("accuracy", "both"):
            self.seen.append((out.argmax(1) == target.argmax(1)).sum().item())

    def between(self, step: int, out: Any, loss: Any) -> Any:
        """What happens between the forward pass and the backward pass; None where there is none."""
        torch, happens = self.torch, self.loop.happens
        if happens("read-early", step):
            self.seen.append(loss.item())
        if happens("branch", step) and loss.item() > 0.3:
            loss = loss * 0.5
        if happens("beside", step):
            self.buffer.mul_(0.5)
            self.see(self.table[step].sum() + 1)
        if happens("write-between", step):
            with torch.no_grad():
                self.parameters[-1].mul_(0.9)
        if happens("data-between", step):
            self.parameters[0].data.mul_(0.9)
        if happens("detach-between", step):
            self.buffer[0, 0] += loss.detach().to(self.buffer.dtype)
        if happens("hook-between", step):
            out.register_hook(lambda g: g * 0.5)
        if happens("look-between", step):
            self.seen.append(len(str(loss)) > 0 and loss.grad_fn is not None)
        if happens("grad-between", step):
            gradients = torch.autograd.grad(
                loss, self.parameters[1:], retain_graph=True, allow_unused=True
            )
            for g in gradients:
                if g is not None:
                    self.see(g)
        if happens("second-order", step) and self.parameters[-1].requires_grad:
            (g,) = torch.autograd.grad(loss, self.parameters[-1:], create_graph=True)
            if self.loop.reads:
                self.see(g)
            loss = loss + g.square().sum()
        if happens("inner-step", step) and self.parameters[-1].requires_grad:
            p = self.parameters[-1]
            (g,) = torch.autograd.grad(loss, [p], create_graph=True)
            moved = p - 0.1 * g
            loss = (moved * moved.detach().sin()).sum() + loss
            if self.loop.reads:
                self.seen.append(loss.item())
        if happens("raise-between", step):
            with contextlib.suppress(RuntimeError):
                out @ self.data(7, 2)
        if happens("numpy-between", step):
            self.seen.append(float(out.detach().float().numpy().sum()))
        if happens("seed-between", step):
            torch.manual_seed(step)
        if happens("clear-between", step):
            self.forget_gradients()
        if happens("keep-loss", step):
            before, self.last_loss = self.last_loss, loss
            return before
        return None if happens("drop-loss", step) else loss

    def number(self, step: int) -> float:
        """Return a number that differs from step to step."""
        if self.loop.change == "cycles":
            return [0.5, 1.0, 2.0][step % 3]
        return 0.25 + step / 8 if self.loop.change == "grows" else (step - 6) / 4

    def with_numbers(self, step: int, out: Any) -> Any:
        """Compute with numbers that change."""
        torch, happens, t = self.torch, self.loop.happens, self.number(step)
        if happens("number", step):
            out = out * (1 + step / 10)
        if happens("fill", step):
            out = out + torch.full((3,), t) * torch.tensor(t)
        if happens("count", step):
            out = (out * (step + 1) / 5 - step % 4).add(out, alpha=step // 2 - 2)
            out = torch.where(out > step % 3 - 1, out, out.clone().div_(step + 2))
            self.kept.append(torch.arange(3) * step + (step > 3))
        if happens("bound", step):
            out = torch.nn.functional.leaky_relu(out.clamp(-2 - t, 2 + t), 0.01 * t)
        if happens("power", step):
            out = (out.abs() + 0.5) ** t
        if happens("blend", step):
            out = torch.add(torch.lerp(out, out * out, t), out, alpha=t)
        if happens("loss-number", step):
            out = out * (1 + abs(self.last))
        return out

    def with_hooks(self, step: int, out: Any) -> None:
        """Register hooks of several kinds on weights and on a result, or take them away."""
        happens, t = self.loop.happens, 0.5 + step / 20
        trained = [p for p in self.parameters if p.requires_grad]
        for name, register in (
            ("hook-all", lambda p: p.register_hook(lambda g: g.clamp(-0.05, 0.05))),
            ("post-all", lambda p: p.register_post_accumulate_grad_hook(_halve)),
        ):
            if happens(name, step):
                there = self.everywhere.pop(name, None)
                if there is None:
                    self.everywhere[name] = [register(p) for p in trained]
                else:
                    for handle in there:
                        handle.remove()
        if happens("hook-once", step) and trained:

            def once(g: Any) -> Any:
                handle.remove()
                return g * t

            handle = trained[-1].register_hook(once)
        if happens("hook-keep", step):
            out.register_hook(lambda g: self.kept.append(g.detach()))
        if happens("hook-look", step):
            out.register_hook(lambda g: self.seen.append(g.sum().item()))
        if happens("hook-raise", step):
            out.register_hook(_fail)
        if happens("hook-outside", step):
            out.register_hook(lambda g: self.table[: g.shape[0], :3].to(g.dtype) * 0.1)
        if happens("hook-in-place", step):
            out.register_hook(lambda g: _add(self.buffer, g.detach()))
        if happens("hook-removed", step):
            out.register_hook(lambda g: g * 3).remove()
        if happens("hook-twice", step):
            out.register_hook(lambda g: g * 0.5)
            out.register_hook(lambda g: g + 0.01)
        if happens("hook-inner", step):

            def inner(g: Any) -> Any:
                near = (g.detach() + 0.5).requires_grad_()
                with self.torch.enable_grad():
                    (near.square() * 0.1).sum().backward()
                return g + near.grad

            out.register_hook(inner)

    def backward(self, step: int, loss: Any) -> None:
        if self.loop.scaled:
            if step == self.loop.overflows:
                loss = loss * math.inf
            loss = self.scaler.scale(loss)
        if self.loop.happens("retain", step):
            loss.backward(retain_graph=True)
            if self.loop.reads:
                self.seen += [p.grad.sum().item() for p in self.parameters if p.grad is not None]
        if self.loop.happens("again", step):
            loss.backward(gradient=loss.detach().sin(), retain_graph=True)
        if self.loop.happens("twice", step):
            loss.backward(retain_graph=True)
            loss.backward()
            return
        if self.loop.happens("backward-lists", step):
            self.torch.autograd.backward([loss, loss.sin()], [None, loss.detach().cos() * 0.1])
        else:
            loss.backward()
        if self.loop.happens("double", step):
            try:
                loss.backward()
                self.seen.append("again")
            except RuntimeError:
                self.seen.append("freed")

    def around(self, step: int, out: Any, loss: Any) -> None:
        """What happens between the backward pass and the update."""
        torch, happens = self.torch, self.loop.happens
        if happens("hook-after", step) and self.parameters[0].requires_grad:
            # It is there in the next step.
            handle = self.parameters[0].register_post_accumulate_grad_hook(
                lambda p: self.seen.append(p.grad.sum().item())
            )
            self.handles.append(handle)
            if len(self.handles) > 1:
                self.handles.pop(0).remove()
        if happens("hook", step):
            if self.handles:
                self.handles.pop().remove()
            elif self.parameters[-1].requires_grad:
                self.handles.append(self.parameters[-1].register_hook(lambda g: g * 2))
        with_gradient = [p for p in self.parameters if p.grad is not None]
        if happens("read-clip", step) and with_gradient:
            norm = torch.nn.utils.clip_grad_norm_(with_gradient, 0.2)
            self.seen.append(norm.item() > 0.2)
        if happens("clip", step) and with_gradient:
            self.seen.append(torch.nn.utils.clip_grad_norm_(with_gradient, 0.3).item())
        if happens("clamp", step):
            for p in with_gradient:
                p.grad.clamp_(-0.1, 0.1)
        if happens("set-gradient", step):
            for p in with_gradient:
                p.grad = p.grad * 0.5
        if happens("drop-gradient", step):
            self.parameters[-1].grad = None
        if happens("read", step) or happens("loss-number", step):
            self.last = loss.item()
            self.seen.append(self.last)
        if happens("keep", step):
            self.kept.append(out.detach())
        if happens("keep-graph", step):
            self.kept.append(out)
        if happens("alias", step):
            self.kept.append(self.parameters[0].detach())
        if happens("print", step):
            self.seen.append(len(str(loss)) > 0)

    def update(self, step: int) -> None:
        happens, torch = self.loop.happens, self.torch
        if self.optimizer is None:
            with torch.no_grad():
                for p in self.parameters:
                    if p.grad is not None and happens("by-data", step):
                        p.data -= self.rate * p.grad.data
                    elif p.grad is not None:
                        p -= self.rate * (1 if step < 7 else 6 / step) * p.grad
        else:
            group = self.optimizer.param_groups[0]
            if happens("lr", step):
                group["lr"] = self.rate / (step + 1)
            if happens("decay", step) and "weight_decay" in group:
                group["weight_decay"] = 0.1 - group["weight_decay"]
            if not self.loop.scaled:
                self.optimizer.step()
            elif self.unscaled or any(p.grad is not None for p in self.parameters):
                try:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                except AssertionError:
                    # No loss has been scaled.
                    self.seen.append("unscaled")
            if self.schedule is not None:
                self.schedule.step()
        if self.loop.zero == "after":
            self.forget_gradients()

    def after(self, step: int, out: Any, loss: Any) -> None:
        """What happens after the update."""
        torch, loop, happens = self.torch, self.loop, self.loop.happens
        if happens("write", step):
            with torch.no_grad():
                self.parameters[0].mul_(0.9)
                self.parameters[0].view(-1)[0] = 0.25
        if happens("data", step):
            self.parameters[-1].data.add_(0.01)
        if happens("target", step):
            for a, p in zip(self.average, self.parameters, strict=True):
                a.data.copy_(0.9 * a.data + 0.1 * p.data)
        if happens("evaluate", step):
            self.model.eval()
            with torch.no_grad(), self.cast("forward"):
                self.see(self.model(self.table[step : step + 3]).softmax(-1))
                self.see(self.model(self.table[step + 3 : step + 6]))
            self.model.train()
        if happens("evaluate-read", step):
            # As in training, and nobody needs the graph.
            size = loop.batches[step % len(loop.batches)]
            x = self.table[step : step + size]
            with self.cast("forward"):
                found = self.model(x)
                self.seen.append(self.loss_of(found, self.data(size, 3)).item())
        if happens("evaluate-graph", step):
            self.model.eval()
            self.see(self.model(self.table[step : step + 3]))
            self.model.train()
        if happens("copy", step):
            self.model = copy.deepcopy(self.model)
            self.parameters = list(self.model.parameters())
            self.optimizer = self.make_optimizer()
            self.schedule = None
        if happens("load", step):
            state = {
                k: v * 0.5 if v.dtype.is_floating_point else v
                for k, v in self.model.state_dict().items()
            }
            self.model.load_state_dict(state)
        if happens("average", step):
            with torch.no_grad():
                for a, p in zip(self.average, self.parameters, strict=True):
                    a.mul_(0.9).add_(p, alpha=0.1)
        if happens("buffer", step):
            self.buffer[step % 2] += loss.detach()
            self.buffer.t()[0].mul_(0.5)


def _round_otherwise(torch: ModuleType, model: Any, rng: random.Random) -> None:
    """Have what layers give differ by up to a unit of bfloat16."""

    def hook(module: Any, args: Any, out: Any) -> Any:
        signs = torch.tensor([rng.choice([-1.0, 0.0, 1.0]) for _ in range(out.numel())])
        return (out * (1 + 2**-8 * signs.reshape(out.shape))).to(out.dtype)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(hook)


def _halve(p: Any) -> None:
    p.grad.mul_(0.5)


def _add(t: Any, g: Any) -> None:
    t.add_(g.abs().mean().to(t.dtype))


def _fail(g: Any) -> None:
    raise RuntimeError("a hook")


def _attention(torch: ModuleType, width: int) -> Any:
    class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(1, 12)
            self.out = torch.nn.Linear(4 * width, 3)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x.unsqueeze(-1)).chunk(3, -1)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(y.flatten(1))

    return Attention()


def _recurrent(torch: ModuleType, seed: int) -> Any:
    class Recurrent(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            kind = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)[seed % 3]
            self.layer = kind(1, 2, batch_first=True, bidirectional=seed % 5 == 0)
            self.out = torch.nn.Linear(4 if seed % 5 == 0 else 2, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.layer(x.unsqueeze(-1))[0][:, -1])

    return Recurrent()


def _doubled(torch: ModuleType) -> Any:
    class Doubled(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 2 + 0 * x.detach().sum()

    return Doubled


def _two(torch: ModuleType) -> Any:
    class Two(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            out, large = x.tanh() * factor, x > 0.2
            ctx.mark_non_differentiable(large)
            ctx.save_for_backward(out, large)
            ctx.factor, ctx.shift = factor, x.detach().mean()
            return out, large

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            out, large = ctx.saved_tensors
            found = g * (ctx.factor - out * out / ctx.factor)
            return found + large.to(g.dtype) * 0.01 * ctx.shift, None

    return Two


def _looked(torch: ModuleType, seen: list[Any]) -> Any:
    class Looked(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.5

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g.sum().item())
            return g * 1.5

    return Looked


def _own(torch: ModuleType, width: int) -> Any:
    class Own(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(width, 4))
            self.b = torch.nn.Parameter(torch.zeros(4, 3))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count += 1
            h = (x @ self.a).tanh()
            h = torch.cat([h[:, :2], h[:, 2:].exp() * 0.1], 1)
            y = torch.where(h > 0, h, h * 0.3) @ self.b
            return y + y.mean(0, keepdim=True)

    return Own()


def _numbers(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _distance(p: Any, q: Any) -> float:
    """Return how far apart two values are, of what they are."""
    if p == q or not isinstance(p, (int, float)) or not isinstance(q, (int, float)):
        return 0.0
    if p != p or q != q:
        return 0.0 if p != p and q != q else math.inf
    far = abs(p - q) / max(1.0, abs(q))
    return far if far == far else math.inf


def _is_grown(p: Any) -> bool:
    """Whether a number is one of a training that diverges: what overflows next hangs on how products are ordered."""
    return isinstance(p, float) and 1e30 < abs(p) < math.inf


class Spread:
    """Runs of one program that should be alike: where these differ, others may differ `margin` times as much."""

    def __init__(self, a: list[Any], others: list[list[Any]], margin: float) -> None:
        self.of: list[float] = []
        for x, *ys in zip(a, *others, strict=False):
            pairs = [pair for y in ys for pair in zip(_numbers(x), _numbers(y), strict=False)]
            far = max([_distance(p, q) for p, q in pairs], default=0.0)
            same = all(p == q or type(p) is type(q) is float for p, q in pairs)
            same = same and all(len(_numbers(x)) == len(_numbers(y)) for y in ys)
            if not same or far * margin > 0.5 or any(map(_is_grown, _numbers(x))):
                # From here on they do other things, or are far apart: nothing can be compared.
                break
            self.of.append(far * margin)


def differ(a: list[Any], b: list[Any], tolerance: float, spread: Spread | None = None) -> str:
    """Say where two runs differ; "" where they do not."""
    if spread is not None:
        a, b = a[: len(spread.of)], b[: len(spread.of)]
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} values"
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        one = x if isinstance(x, list) else [x]
        two = y if isinstance(y, list) else [y]
        if len(one) != len(two):
            return f"value {i}: {len(one)} and {len(two)} numbers"
        wide = tolerance if spread is None else max(tolerance, spread.of[i])
        for p, q in zip(one, two, strict=True):
            equal = p == q or (
                isinstance(p, (int, float))
                and isinstance(q, (int, float))
                and (_distance(p, q) <= wide or (p != p and q != q))
            )
            if not equal:
                return f"value {i}: {p} and {q}"
    return ""


@contextlib.contextmanager
def prepared(loop: Loop, *libraries: ModuleType) -> Iterator[None]:
    """Make float64 the default type: what differs then is wrong, and no rounding that a long loop makes large.

    Autocast wants float32.
    """
    before = [library.get_default_dtype() for library in libraries]
    for library in libraries:
        library.set_default_dtype(library.float32 if loop.autocast else library.float64)
    patch = mock.patch("webtorch.runtime.backends.cpu.jit.available", return_value=False)
    try:
        with patch if loop.exact else contextlib.nullcontext():
            yield
    finally:
        for library, dtype in zip(libraries, before, strict=True):
            library.set_default_dtype(dtype)


def check(seed: int) -> tuple[str, dict[str, int]]:
    """Run one program in three ways. Return what differs, and what became of its runs."""
    import torch

    import webtorch

    loop = Loop(seed)
    with prepared(loop, torch, webtorch):
        return _checked(loop, torch, webtorch)


def _checked(loop: Loop, torch: ModuleType, webtorch: ModuleType) -> tuple[str, dict[str, int]]:
    from tests.scripts.following import scripts
    from webtorch.nn import recurrence

    with scripts(False):
        plain = loop.run(webtorch)
    with scripts(True) as follower, mock.patch.object(recurrence, "_OFTEN", 2):
        followed = loop.run(webtorch)
        counts = dict(follower().counts)
    tolerance = 1e-6 if loop.autocast else 1e-12 if loop.exact else 1e-7
    found = differ(followed, plain, tolerance)
    if found and not loop.autocast:
        # A sum that was cut elsewhere is another in its last digit, which a recurrence or a loss that grows makes more.
        with scripts(False):
            moved = [loop.run(webtorch, nudge) for nudge in (1e-15, -1e-15)]
        found = differ(followed, plain, tolerance, Spread(plain, moved, 100))
    if found:
        return f"{loop}\n  with scripts and without: {found}", counts
    names = {n for n, *_ in loop.events}
    others = {"write-between", "keep-loss", "checkpoint-drop"} | (
        {"critic"} if loop.autocast else set()
    )
    if loop.scaled:
        # There parameters count as written where a step is taken back on the device.
        others |= {"late-graph"}
    if loop.dropout or names & others:
        # PyTorch draws other numbers, saves other tensors, and rounds otherwise.
        return "", counts
    theirs = loop.run(torch)
    # What a change in the last digits becomes in PyTorch, rounding becomes as well: where training diverges, or
    # variances are those of few numbers.
    # Under autocast the last digit is one of bfloat16.
    nudges = (2**-8, -(2**-8), 2**-9) if loop.autocast else (1e-12,)
    moved = [loop.run(torch, nudge) for nudge in nudges]
    spread = Spread(theirs, moved, 5 if loop.autocast else 100)
    found = differ(plain, theirs, 0.1 if loop.autocast else 1e-5, spread)
    if found and loop.autocast:
        # A sign or a comparison may hang on a unit of one element.
        moved += [loop.run(torch, draw=draw) for draw in range(1, 9)]
        found = differ(plain, theirs, 0.1, Spread(theirs, moved, 5))
    return (f"{loop}\n  without scripts and PyTorch: {found}" if found else ""), counts


if __name__ == "__main__":
    run_many(check, Loop, __doc__)
