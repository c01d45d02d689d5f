"""Random programs that tangle tensors: the same in webtorch, with scripts and without, and in PyTorch.

`python -m tests.scripts.tangles --count 2000 --seed 0` runs many. A program is a list of statements that is repeated:
tensors that share values and memory, views of views, writes that compute nothing, two losses of one graph, arrays of
NumPy, copies, flags that change, errors in the middle, and names that go. Some statements come at some passes only.
"""

from __future__ import annotations

import copy
import gc
import io
import random
import threading
from types import ModuleType
from typing import Any

from tests.scripts.loops import differ
from tests.scripts.many import run_many

PASSES = 12
# Up to which pass PyTorch is compared: rounding grows in what follows.
EARLY = 5
# Parameters, tensors without gradients, and what the statements of a pass give.
PARAMETERS, BUFFERS, RESULTS = "pq", "uvw", "xyz"
NAMES = PARAMETERS + BUFFERS + RESULTS


class Tangle:
    """One random program."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.early = 0
        self.optimizer = rng.choice(["", "", "SGD", "Adam"])
        # What each pass ends with a look at.
        self.last = rng.choice([*NAMES, ""])
        names = [n[2:] for n in dir(_Running) if n.startswith("s_")]
        # Few kinds at once: what follows a script must stay the same for long enough.
        chosen = rng.sample(names, rng.choice([3, 5, 8]))
        common = ["combine", "loss", "update", "write", "read"]
        self.statements = [
            (
                rng.choice(chosen if rng.random() < 0.6 else common),
                [rng.choice(NAMES) for _ in range(3)],
                rng.randrange(6),
                # At which passes: from one on, each so many.
                (0, 1) if rng.random() < 0.8 else (rng.randrange(PASSES), rng.choice([1, 2, 3, 50])),
            )
            for _ in range(rng.choice([3, 5, 8, 12]))
        ]  # fmt: skip

    def __repr__(self) -> str:
        lines = "\n".join(f"    {s}" for s in self.statements)
        return f"Tangle({self.seed}), optimizer {self.optimizer!r}\n{lines}"

    @property
    def is_random(self) -> bool:
        """Whether it draws numbers, which are other ones in PyTorch."""
        return any(s[0] in ("draw", "dropout") for s in self.statements)

    def run(self, torch: ModuleType) -> list[Any]:
        """Run the program, and return what it saw."""
        torch.manual_seed(self.seed)
        running = _Running(torch, self)
        for number in range(PASSES):
            running.number = number
            for name, names, choice, (first, period) in self.statements:
                if number >= first and (number - first) % period == 0:
                    try:
                        getattr(running, "s_" + name)(*names, choice)
                    except (RuntimeError, TypeError, ValueError, IndexError) as error:
                        kinds = (RuntimeError, TypeError, ValueError, IndexError)
                        kind = next(k for k in kinds if isinstance(error, k))
                        running.seen.append(f"{name} raises {kind.__name__}")
            if self.last:
                running.see(running.values[self.last])
            if number == EARLY:
                self.early = len(running.seen)
        for name in NAMES:
            running.see(running.values.get(name))
        for p in running.parameters:
            running.see(p)
            running.see(p.grad)
        for a in running.arrays:
            running.seen.append(a.ravel().tolist())
        return running.seen


class _Running:
    def __init__(self, torch: ModuleType, tangle: Tangle) -> None:
        self.torch = torch
        self.number = 0
        self.seen: list[Any] = []
        self.arrays: list[Any] = []
        self.values: dict[str, Any] = {}
        for k, name in enumerate(NAMES):
            t = (torch.arange(6, dtype=torch.float64).reshape(2, 3) - 2.3 + k) / 7
            self.values[name] = torch.nn.Parameter(t) if name in PARAMETERS else t
        self.parameters = [self.values[n] for n in PARAMETERS]
        self.generator = torch.Generator()
        self.generator.manual_seed(3)
        self.state: Any = None
        kind = tangle.optimizer
        self.optimizer = getattr(torch.optim, kind)(self.parameters, lr=0.03) if kind else None

    def see(self, t: Any) -> None:
        """Note values."""
        if t is None:
            self.seen.append("none")
        else:
            self.seen.append([str(tuple(t.shape)), t.requires_grad, *t.detach().flatten().tolist()])

    def get(self, name: str) -> Any:
        return self.values[name]

    def full(self, name: str) -> Any:
        """Return a tensor of the usual shape."""
        t = self.values[name]
        return t if tuple(t.shape) == (2, 3) else t.sum() + self.torch.zeros(2, 3, dtype=t.dtype)

    def put(self, name: str, t: Any) -> None:
        """Give a name to a result: parameters keep theirs."""
        self.values[name if name in RESULTS else RESULTS[ord(name) % 3]] = t

    # ---- computing

    def s_combine(self, a: str, b: str, c: str, choice: int) -> None:
        x, y = self.full(a), self.full(b)
        out = (
            x * y + 0.1, (x + y).tanh(), x @ y.t() @ x * 0.1, self.torch.where(x > 0, x, y * 0.5),
            self.torch.cat([x[:, :1], y[:, 1:]], 1), (x - y).softmax(1),
        )[choice]  # fmt: skip
        self.put(c, out)

    def s_number(self, a: str, b: str, c: str, choice: int) -> None:
        self.put(b, self.full(a) * (1.0 + self.number * (choice > 2)) / 3)

    def s_made(self, a: str, b: str, c: str, choice: int) -> None:
        torch = self.torch
        values = [[0.5, self.number % 2, 1.0], [choice, 2.0, -1.0]]
        made = (torch.tensor(values, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64))
        self.put(a, made[choice % 2])
        if choice == 5:
            self.values[b if b in BUFFERS else "u"] = torch.full((2, 3), 0.25, dtype=torch.float64)

    # ---- sharing

    def s_alias(self, a: str, b: str, c: str, choice: int) -> None:
        t = self.get(a)
        self.put(b, (t, t.detach(), t.data, t.clone(), t.detach().clone(), t.contiguous())[choice])

    def s_data(self, a: str, b: str, c: str, choice: int) -> None:
        self.get(a).data = self.full(b).detach() if choice % 2 else self.full(b).data.clone()

    def s_copy(self, a: str, b: str, c: str, choice: int) -> None:
        with self.torch.no_grad():
            self.get(a).copy_(self.full(b))

    def s_swap(self, a: str, b: str, c: str, choice: int) -> None:
        u, v = "uv" if choice < 3 else "vw"
        self.values[u], self.values[v] = self.values[v], self.values[u]

    def s_swap_data(self, a: str, b: str, c: str, choice: int) -> None:
        p, q = self.parameters
        p.data, q.data = q.data, p.data

    def s_clone_all(self, a: str, b: str, c: str, choice: int) -> None:
        kept = [self.get(n).detach().clone() for n in BUFFERS]
        with self.torch.no_grad():
            for n in BUFFERS:
                self.get(n).mul_(1.1)
            if choice % 2:
                for n, k in zip(BUFFERS, kept):
                    self.get(n).copy_(k)
        self.put(a, kept[0])

    # ---- views

    def view(self, t: Any, choice: int) -> Any:
        torch = self.torch
        return (
            lambda: t.view(-1)[1:4], lambda: t[self.number % 2], lambda: t.t(), lambda: t.as_strided((2, 2), (1, 2), 1),
            lambda: t.narrow(1, self.number % 2, 2), lambda: torch.chunk(t, 2)[1],
        )[choice]()  # fmt: skip

    def s_view(self, a: str, b: str, c: str, choice: int) -> None:
        self.put(b, self.view(self.full(a), choice))

    def s_view_of_view(self, a: str, b: str, c: str, choice: int) -> None:
        flat = self.full(a).view(-1)
        self.put(
            b, (flat[1:][self.number % 2 :], flat[2:].view(2, 2).t(), flat[1:5][::2])[choice % 3]
        )

    def s_view_of_copy(self, a: str, b: str, c: str, choice: int) -> None:
        # Nobody has the copy itself.
        copied = self.full(a).t().reshape(-1)
        self.put(b, (copied, copied[2:], copied.view(2, 3))[choice % 3])
        if choice > 3:
            with self.torch.no_grad():
                copied.mul_(0.5)
        if choice == 5:
            self.seen.append(copied._base is None)
        self.put(c, copied.view(2, 3) * 2)

    def s_slice_data(self, a: str, b: str, c: str, choice: int) -> None:
        k = (self.number * choice) % 4
        table = self.torch.arange(60, dtype=self.torch.float64)
        self.put(a, table[k : k + 12][3:9].view(2, 3) * 0.1 + self.full(b))

    # ---- writing

    def s_write(self, a: str, b: str, c: str, choice: int) -> None:
        t, other = self.get(a), self.full(b).detach()
        with self.torch.no_grad():
            (
                lambda: t.add_(0.25), lambda: t.mul_(0.5), lambda: t.zero_(), lambda: t.sub_(other * 0.1),
                lambda: t.clamp_(-1, 1), lambda: t.fill_(self.number * 0.1),
            )[choice]()  # fmt: skip

    def s_write_with_graph(self, a: str, b: str, c: str, choice: int) -> None:
        t = self.get(a)
        (lambda: t.add_(self.full(b)), lambda: t.mul_(0.5), lambda: t.tanh_())[choice % 3]()

    def s_write_view(self, a: str, b: str, c: str, choice: int) -> None:
        with self.torch.no_grad():
            view = self.view(self.get(a), choice)
            (lambda: view.add_(0.5), lambda: view.mul_(0.9), lambda: view.zero_())[ord(b) % 3]()

    def s_set_item(self, a: str, b: str, c: str, choice: int) -> None:
        with self.torch.no_grad():
            t = self.get(a)
            if choice == 0:
                t[0] = 0.5
            elif choice == 1:
                t[:, 1] = self.full(b).detach()[:, 0]
            elif choice == 2:
                t[0, self.number % 3] += 1
            else:
                t.view(-1)[choice - 2 :][0] = self.full(b).detach().sum()

    def s_out(self, a: str, b: str, c: str, choice: int) -> None:
        with self.torch.no_grad():
            self.torch.add(self.full(a), self.full(b), out=self.get("uvw"[choice % 3]))

    # ---- gradients

    def loss_of(self, a: str, b: str) -> Any:
        p, q = self.parameters
        return ((p * self.full(a)).tanh() + q * self.full(b)).square().sum()

    def s_loss(self, a: str, b: str, c: str, choice: int) -> None:
        loss = self.loss_of(a, b)
        if choice == 0:
            self.seen.append(loss.item())
        loss.backward(retain_graph=True) if choice == 1 else loss.backward()
        if choice == 2:
            self.put(c, loss)

    def s_two_losses(self, a: str, b: str, c: str, choice: int) -> None:
        hidden = (self.parameters[0] * self.full(a)).tanh()
        first, second = hidden.sum(), (hidden * self.parameters[1]).square().sum()
        first.backward(retain_graph=True)
        if choice == 0:
            self.seen.append(second.item())
        second.backward()
        if choice == 1:
            second.backward()

    def s_accumulate(self, a: str, b: str, c: str, choice: int) -> None:
        for part in (a, b, c)[: choice % 3 + 1]:
            (self.loss_of(part, part) / 3).backward()

    def s_autograd(self, a: str, b: str, c: str, choice: int) -> None:
        loss = self.loss_of(a, b)
        found = self.torch.autograd.grad(loss, self.parameters, create_graph=choice == 0)
        self.put(c, found[0])
        if choice == 0:
            found[1].sum().backward()

    def s_forget(self, a: str, b: str, c: str, choice: int) -> None:
        for p in self.parameters[: choice % 2 + 1]:
            if choice < 3 or p.grad is None:
                p.grad = None
            else:
                p.grad.zero_()

    def s_gradient(self, a: str, b: str, c: str, choice: int) -> None:
        grad = self.parameters[choice % 2].grad
        if grad is None:
            return
        if choice < 2:
            self.put(a, grad)
        elif choice < 4:
            grad.mul_(0.5)
        else:
            self.parameters[0].grad = grad * 0.5

    def s_update(self, a: str, b: str, c: str, choice: int) -> None:
        if self.optimizer is not None:
            if choice == 5:
                self.optimizer.param_groups[0]["lr"] = 0.05 / (1 + self.number)
            self.optimizer.step()
            if choice < 3:
                self.optimizer.zero_grad()
            return
        with self.torch.no_grad():
            for p in self.parameters:
                if p.grad is not None:
                    p -= 0.05 * p.grad
                    p.grad = None

    def s_flag(self, a: str, b: str, c: str, choice: int) -> None:
        p = self.parameters[choice % 2]
        p.requires_grad_(not p.requires_grad if choice > 2 else True)

    def s_hook(self, a: str, b: str, c: str, choice: int) -> None:
        t = self.full(a) * self.parameters[0]
        t.register_hook(lambda g: g * 0.5)
        t.sum().backward()

    # ---- looking

    def s_read(self, a: str, b: str, c: str, choice: int) -> None:
        self.see(self.get(a))
        if choice > 3:
            self.seen.append(bool(self.get(b).sum() > 0))

    def s_print(self, a: str, b: str, c: str, choice: int) -> None:
        self.seen.append(len(repr(self.get(a))) > 0)

    def s_thread(self, a: str, b: str, c: str, choice: int) -> None:
        t = self.get(a)
        thread = threading.Thread(target=lambda: self.see(t * 2 if choice > 2 else t))
        thread.start()
        thread.join()

    def s_draw(self, a: str, b: str, c: str, choice: int) -> None:
        torch = self.torch
        if choice == 0:
            self.state = self.generator.get_state()
        elif choice == 1 and self.state is not None:
            self.generator.set_state(self.state)
        self.put(a, torch.rand(2, 3, generator=self.generator, dtype=torch.float64))

    def s_dropout(self, a: str, b: str, c: str, choice: int) -> None:
        if choice == 0:
            self.torch.manual_seed(5)
        self.put(b, self.torch.nn.functional.dropout(self.full(a), 0.4))

    # ---- outside

    def s_numpy(self, a: str, b: str, c: str, choice: int) -> None:
        array = self.get(a).detach().numpy()
        if choice < 2:
            self.seen.append(array.ravel().tolist())
        elif len(self.arrays) < 3:
            self.arrays.append(array)
        if choice == 5:
            array[...] *= 0.5

    def s_from_numpy(self, a: str, b: str, c: str, choice: int) -> None:
        import numpy

        if choice < 3 or not self.arrays:
            array = numpy.arange(6.0).reshape(2, 3) * 0.1
            self.put(a, self.torch.from_numpy(array))
            if choice == 0 and len(self.arrays) < 3:
                self.arrays.append(array)
        else:
            self.arrays[0][...] += 0.125

    def s_deepcopy(self, a: str, b: str, c: str, choice: int) -> None:
        t = self.get(a)
        self.put(b, copy.deepcopy(t))

    def s_save(self, a: str, b: str, c: str, choice: int) -> None:
        file = io.BytesIO()
        self.torch.save(self.get(a).detach(), file)
        file.seek(0)
        self.put(b, self.torch.load(file))

    def s_load_state(self, a: str, b: str, c: str, choice: int) -> None:
        torch = self.torch
        holder = torch.nn.ParameterDict({"p": self.parameters[0]})
        holder.load_state_dict(
            {"p": self.full(a).detach() if choice < 3 else self.full(a).detach() * 0.5}
        )

    def s_error(self, a: str, b: str, c: str, choice: int) -> None:
        self.full(a) @ self.full(b)

    def s_collect(self, a: str, b: str, c: str, choice: int) -> None:
        if choice == 0:
            gc.collect()
        # The name goes: what it was is not held any more.
        self.put(a, self.torch.zeros(2, 3, dtype=self.torch.float64))


def check(seed: int) -> tuple[str, dict[str, int]]:
    """Run one program in three ways. Return what differs, and what became of its runs."""
    import torch

    import webtorch
    from tests.scripts.following import scripts

    tangle = Tangle(seed)
    with scripts(False):
        plain = tangle.run(webtorch)
    with scripts(True) as follower:
        followed = tangle.run(webtorch)
        counts = dict(follower().counts)
    found = differ(followed, plain, 1e-9)
    if found:
        return f"{tangle}\n  with scripts and without: {found}", counts
    plain = plain[: tangle.early]
    theirs = tangle.run(torch)[: tangle.early]
    # PyTorch saves more for its backward passes, so it refuses more second ones.
    refused = any("raises" in str(v) and "error" not in str(v) for v in (*plain, *theirs))
    found = "" if tangle.is_random or refused else differ(plain, theirs, 1e-6)
    return (f"{tangle}\n  without scripts and PyTorch: {found}" if found else ""), counts


if __name__ == "__main__":
    run_many(check, Tangle, __doc__)
