"""Programs from seeds: lines over values whose shapes are known, as PyTorch runs each line as it is drawn."""

from __future__ import annotations

import ast
import functools
import linecache
import random
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.meet.library import Input, Skip, oracle

# What programs may name beside `t`; a program's source has those that it names.
HELPERS = {
    "Cube": """
        class Cube(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 3 * x * x * g
    """,
    "Halved": """
        class Halved(t.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x, y):
                return x * 0.5 + y, x * y

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)
                ctx.save_for_forward(*inputs)

            @staticmethod
            def backward(ctx, g, h):
                x, y = ctx.saved_tensors
                return g * 0.5 + h * y, g + h * x

            @staticmethod
            def jvp(ctx, x_t, y_t):
                x, y = ctx.saved_tensors
                return x_t * 0.5 + y_t, x_t * y + x * y_t
    """,
    "double": """
        def double(g):
            return g * 2
    """,
}
# tolist() of a device's tensor makes a new gradient function, which PyTorch refuses of written views of unbind().
READS = ("{v}.detach().tolist()", "str({v})", "{v}.sum().item()", "{v}.detach().cpu().numpy()")


@dataclass(frozen=True)
class Step:
    """A line of a program, and the layers that it makes."""

    text: str
    kind: str
    layers: tuple[str, ...] = ()

    @functools.cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        names = [n for n in ast.walk(ast.parse(self.text)) if isinstance(n, ast.Name)]
        stored = frozenset(n.id for n in names if isinstance(n.ctx, ast.Store))
        loaded = frozenset(n.id for n in names if isinstance(n.ctx, ast.Load))
        augmented = {
            n.target.id
            for n in ast.walk(ast.parse(self.text))
            if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
        }
        return stored - augmented, loaded | augmented

    @property
    def makes(self) -> frozenset[str]:
        """Names that the line binds."""
        return self._names[0]

    @property
    def reads(self) -> frozenset[str]:
        """Names of values that the line reads or writes into."""
        return frozenset(
            n for n in self._names[1] - self._names[0] if n[0] in "xv" and n[1:].isdigit()
        )


@dataclass(frozen=True)
class Program:
    """Lines over inputs: a module whose forward they are."""

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    kept: frozenset[str]
    drawn: bool = False

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"program {self.seed}"

    @property
    def low(self) -> str:
        """The least exact type."""
        text = self.source()
        return next((n for n in ("bfloat16", "float16") if f"t.{n}" in text), "float32")

    @property
    def results(self) -> list[str]:
        """Names that it returns: what no line reads, and some others."""
        read = {n for s in self.steps for n in s.reads}
        made = sorted(
            {n for s in self.steps for n in s.makes if n[1:].isdigit()}, key=lambda n: int(n[1:])
        )
        return [n for n in made if n not in read or n in self.kept]

    def has(self, *words: str) -> bool:
        """Whether a line or a layer has one of these words."""
        text = self.source()
        return any(w in text for w in words)

    def without(self, number: int) -> Program:
        """The program with a step less, and what depends on it."""
        steps = []
        gone: set[str] = set()
        for i, step in enumerate(self.steps):
            if i == number or step.reads & gone:
                gone |= step.makes
            else:
                steps.append(step)
        return replace(self, steps=tuple(steps)).trimmed()

    def only(self, numbers: Collection[int]) -> Program:
        """The steps of these numbers."""
        return replace(
            self, steps=tuple(s for i, s in enumerate(self.steps) if i in numbers)
        ).trimmed()

    def trimmed(self) -> Program:
        """Without the inputs that nothing reads."""
        read = {n for s in self.steps for n in s.reads}
        return replace(self, inputs=tuple(x for x in self.inputs if x.name in read))

    def reading(self, rng: random.Random) -> Program:
        """The same program, with values read at random places: nothing may change by that."""
        steps = []
        known = [x.name for x in self.inputs]
        for step in self.steps:
            steps.append(step)
            known += sorted(step.makes)
            if rng.random() < 0.5 and known:
                steps.append(Step(rng.choice(READS).format(v=rng.choice(known[-4:])), "read"))
        return replace(self, steps=tuple(steps), kept=frozenset(self.results))

    def source(self) -> str:
        """Python that a user could paste, where `t` is the module."""
        body = "\n".join(s.text for s in self.steps)
        layers = [x for s in self.steps for x in s.layers]
        helpers = [textwrap.dedent(text) for name, text in HELPERS.items() if name in body]
        lines = ["".join(helpers), "class Program(t.nn.Module):"]
        if layers:
            lines += ["    def __init__(self):", "        super().__init__()"]
            lines += [f"        {x}" for x in layers]
        lines += [f"    def forward(self, {', '.join(x.name for x in self.inputs)}):"]
        lines += [textwrap.indent(body, "        ")]
        lines += [f"        return ({', '.join(self.results)},)"]
        return "\n".join(lines).lstrip("\n") + "\n"

    def module(self, t: Any) -> Any:
        """The module, made with `t`."""
        text = self.source()
        file = f"<{self.name} {abs(hash(text))}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        space: Any = types.ModuleType("program")
        space.t = t
        exec(compile(text, file, "exec"), vars(space))
        if t is torch:
            # PyTorch's compiler imports the module of what it inlines.
            sys.modules["program"] = space
        return space.Program()

    def pasted(self) -> str:
        """The whole, with inputs, to be printed."""
        lines = ["import torch as t  # or webtorch", "", self.source(), "m = Program()"]
        for x in self.inputs:
            if x.dtype == "bool":
                made = f"t.rand({list(x.shape)}) > 0.5"
            elif x.dtype == "int64":
                made = f"t.randint({x.below}, {list(x.shape)})"
            else:
                made = f"(t.rand({list(x.shape)}, dtype=t.{x.dtype}) * 3 - 1.5)"
                made += ".requires_grad_()" if x.grad else ""
            lines.append(f"{x.name} = {made}")
        return "\n".join([*lines, f"out = m({', '.join(x.name for x in self.inputs)})"])


def overlaps(x: torch.Tensor) -> bool:
    """Whether elements share memory: what a write leaves there is not defined."""
    places = [0]
    for n, stride in zip(x.shape, x.stride(), strict=True):
        places = [p + i * stride for p in places for i in range(n)]
    return len(set(places)) < len(places)


class _No(Exception):
    """No value fits this rule."""


class Gen:
    """Draws lines, and runs each with PyTorch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        rng = self.rng
        n, self.m = rng.choice([2, 3, 4]), rng.choice([2, 4])
        self.n = n
        shapes = [(n, self.m), (n, self.m), (self.m,), (n, 3, self.m), (n, 1), (self.m, self.m), ()]
        inputs = [Input("x0", rng.choice(shapes[:2]), grad=True)]
        for i in range(1, rng.choice([2, 3, 4])):
            kind = rng.choice(["float32"] * 5 + ["int64", "bool", "complex64"])
            grad = kind in ("float32", "complex64") and rng.random() < 0.6
            inputs.append(Input(f"x{i}", rng.choice(shapes), kind, grad, below=2))
        self.inputs = tuple(inputs)
        self.steps: list[Step] = []
        self.count = 0
        self.layers: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Bring the values to what the accepted steps give."""
        self.self = torch.nn.Module()
        self.env: dict[str, Any] = {"t": torch, "self": self.self}
        face = oracle(False)
        for given in self.inputs:
            self.env[given.name] = face.tensor(given, self.seed)
        for text in HELPERS.values():
            exec(textwrap.dedent(text), self.env)
        for step in self.steps:
            self.execute(step)

    def execute(self, step: Step) -> None:
        """Run a line."""
        for layer in step.layers:
            exec(layer, self.env)
        if step.layers:
            oracle(False).fill(self.self, self.seed)
        exec(step.text, self.env)

    # What rules ask.

    def values(self) -> dict[str, torch.Tensor]:
        """All values by name."""
        return {
            n: v
            for n, v in self.env.items()
            if n[0] in "xv" and n[1:].isdigit() and isinstance(v, torch.Tensor)
        }

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda v: True) -> str:
        """The name of a value, late ones more often."""
        names = [n for n, v in self.values().items() if test(v)]
        if not names:
            raise _No
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def real(self, *dims: int) -> str:
        """A float value, of one of these numbers of dimensions."""
        return self.pick(lambda v: v.is_floating_point() and (not dims or v.ndim in dims))

    def wide(self, *dims: int) -> str:
        """The same, in the default type."""
        return self.pick(lambda v: v.dtype == torch.float32 and (not dims or v.ndim in dims))

    def some(self, *dims: int) -> str:
        """A value with at least one dimension."""
        return self.pick(lambda v: v.ndim in dims if dims else v.ndim >= 1)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.env[name].shape)

    def dim(self, name: str) -> int:
        """One of its dimensions."""
        d = self.rng.randrange(max(1, self.env[name].ndim))
        return self.rng.choice([d, d - self.env[name].ndim]) if self.env[name].ndim else 0

    def like(self, name: str, *, same_type: bool = True) -> str:
        """A value that broadcasts to another one's shape."""
        target = self.env[name]

        def fits(v: torch.Tensor) -> bool:
            try:
                return torch.broadcast_shapes(v.shape, target.shape) == target.shape and (
                    v.dtype == target.dtype or not same_type
                )
            except RuntimeError:
                return False

        return self.pick(fits)

    def new(self) -> str:
        """A new name."""
        self.count += 1
        return f"v{self.count}"

    def layer(self, constructor: str) -> str:
        """A new layer's name."""
        name = f"self.l{self.count}_{len(self.layers)}"
        self.layers.append(f"{name} = {constructor}")
        return name

    def number(self) -> str:
        """A Python number."""
        return self.rng.choice(["0.5", "2", "-1.5", "0.25", "3.0", "-1"])

    def slice(self, length: int) -> str:
        """A slice of a dimension."""
        r = self.rng
        choices = [":", "1:", ":-1" if length > 1 else ":", "::2", "..."]
        if length:
            choices.append(str(r.randrange(-length, length)))
        return r.choice(choices)

    def index(self, name: str) -> str:
        """A basic index of a value."""
        shape = self.shape(name)
        if not shape:
            return "..."
        parts: list[str] = []
        for n in shape[: self.rng.randint(1, len(shape))]:
            part = self.slice(n)
            parts.append(":" if part == "..." and "..." in parts else part)
        if self.rng.random() < 0.1:
            parts.insert(self.rng.randrange(len(parts) + 1), "None")
        return ", ".join(parts)

    def draw(self) -> Step:
        """A step of a random kind. Raises _No where nothing fits."""
        kinds, weights = zip(*WEIGHTS.items())
        kind = self.rng.choices(kinds, weights)[0]
        rule = self.rng.choice(RULES[kind])
        self.layers = []
        text = rule(self)
        return Step(text, kind, tuple(self.layers))

    def program(self) -> Program:
        """The whole. Raises Skip where nothing came of it."""
        wanted = self.rng.randint(3, 14)
        for _ in range(wanted * 6):
            if len(self.steps) >= wanted:
                break
            count = self.count
            before = {n: v._version for n, v in self.values().items()}
            try:
                step = self.draw()
            except _No:
                self.count = count
                continue
            try:
                self.execute(step)
                values = self.values()
                good = all(
                    v.numel() <= 256
                    and (
                        v.numel() == 0 or bool(torch.isfinite(v.detach().to(torch.complex64)).all())
                    )
                    and (v.numel() == 0 or float(v.detach().abs().max()) < 100)
                    for v in values.values()
                    if v.dtype != torch.bool
                ) and not any(
                    overlaps(v)
                    for n, v in values.items()
                    if v._version != before.get(n, v._version)
                )
            except Exception:
                good = False
            if good:
                self.steps.append(step)
            else:
                self.count = count
                if step.kind == "write" or any(
                    v._version != before.get(n, v._version) for n, v in self.values().items()
                ):
                    self.restart()
                else:
                    for n in step.makes:
                        self.env.pop(n, None)
        if not self.steps:
            raise Skip("empty")
        names = {n for s in self.steps for n in s.makes}
        kept = frozenset(n for n in sorted(names) if self.rng.random() < 0.25)
        return Program(self.seed, self.inputs, tuple(self.steps), kept).trimmed()


RULES: dict[str, list[Callable[[Gen], str]]] = {}
WEIGHTS = {
    "map": 5,
    "view": 6,
    "write": 5,
    "reduce": 3,
    "product": 2,
    "norm": 2,
    "layer": 2,
    "index": 4,
    "join": 2,
    "type": 2,
    "hook": 1,
    "function": 1,
}


def rule(kind: str) -> Callable[[Callable[[Gen], str]], Callable[[Gen], str]]:
    """Add a rule of a kind."""

    def add(function: Callable[[Gen], str]) -> Callable[[Gen], str]:
        RULES.setdefault(kind, []).append(function)
        return function

    return add


def lines(kind: str, *texts: str) -> None:
    """Rules that are one line: {f} a float, {w} float32, {s} anything with dimensions, {a} anything, {o} a new name,
    {c} a number, {d} a dimension of the first value."""

    def of(text: str) -> Callable[[Gen], str]:
        def made(g: Gen) -> str:
            found: dict[str, str] = {}
            first = ""
            for key in ("f1", "f2", "f3", "f", "w1", "w2", "w3", "w", "s", "a", "z", "i", "b"):
                if "{" + key + "}" in text:
                    match key:
                        case "z":
                            found[key] = g.pick(lambda v: v.is_complex())
                        case "i":
                            found[key] = g.pick(lambda v: v.dtype == torch.int64)
                        case "b":
                            found[key] = g.pick(lambda v: v.dtype == torch.bool)
                        case "s":
                            found[key] = g.some()
                        case "a":
                            found[key] = g.pick()
                        case "f1" | "f2" | "f3":
                            found[key] = g.real(int(key[1]))
                        case "w1" | "w2" | "w3":
                            found[key] = g.wide(int(key[1]))
                        case "w":
                            found[key] = g.wide()
                        case _:
                            found[key] = g.real()
                    first = first or found[key]
            if "{l}" in text:
                found["l"] = g.like(first)
            if "{m}" in text:
                found["m"] = g.like(first, same_type=False)
            if "{d}" in text:
                found["d"] = str(g.dim(first))
            if "{e}" in text:
                found["e"] = str(g.dim(first))
            if "{n}" in text:
                shape = g.shape(first)
                if not shape:
                    raise _No
                found["n"] = str(shape[-1])
            if "{k}" in text:
                shape = g.shape(first)
                if not shape:
                    raise _No
                found["d"] = str(g.rng.randrange(len(shape)))
                found["k"] = str(g.rng.randrange(-shape[int(found["d"])], shape[int(found["d"])]))
            found["c"] = g.number()
            found["x"] = g.index(first) if "[{x}]" in text else ""
            for name in ("o", "p", "q"):
                if "{" + name + "}" in text:
                    found[name] = g.new()
            return text.format(**found)

        return made

    for text in texts:
        RULES.setdefault(kind, []).append(of(text))


lines(
    "map",
    "{o} = {f}.sin()",
    "{o} = t.tanh({f})",
    "{o} = {f} * {l}",
    "{o} = {l} + {f} * {c}",
    "{o} = {f} - {m}",
    "{o} = {a} * {m}",
    "{o} = {f} / ({l}.abs() + 1)",
    "{o} = t.nn.functional.gelu({f})",
    "{o} = t.relu({f})",
    "{o} = {f}.clamp(-1, 1).exp()",
    "{o} = t.where({f} > 0.1, {f}, {l})",
    "{o} = {f} ** 2",
    "{o} = t.sigmoid({f}) * {c}",
    "{o} = t.addcmul({f}, {l}, {f}, value=0.5)",
    "{o} = t.lerp({f}, {l}, 0.3)",
    "{o} = t.nn.functional.silu({w})",
    "{o} = {a}.clone()",
    "{o} = {f}.detach() + {l}",
    "{o} = {i} // 2 + {i} % 3",
    "{o} = {i} > {m}",
    "{o} = {a} == {m}",
    "{o} = ~{b}",
    "{o} = {b} & ({f} > 0)",
    "{o} = {z} * {z}.conj()",
    "{o} = t.view_as_real({z})",
    "{o} = {z}.real * {z}.imag",
    "{o} = t.complex({w}, {w}.sin())",
    "{o} = {z} * {m}",
    "{o} = {z}.abs()",
    "{o} = t.atan2({f}, {l}.abs() + 0.5)",
    "{o} = t.hypot({w} + 3, {l})",
    "{o} = t.maximum({f}, {l})",
    "{o} = {c} - {f}",
    "{o} = {c} / ({f} * {f} + 1)",
    "{o} = t.nn.functional.leaky_relu({f}, 0.1)",
    "{o} = t.nn.functional.softplus({f})",
    "{o} = {f}.masked_fill({f} > 0.5, {c})",
)
lines(
    "view",
    "{o} = {s}[{x}]",
    "{o} = {s}[{x}]",
    "{o} = {s}.select({d}, {k})",
    "{o} = {s}.transpose({d}, {e})",
    "{o} = {s}.flatten()",
    "{o} = {s}.unsqueeze({d})",
    "{o} = {s}.squeeze()",
    "{o} = {s}.reshape(-1)",
    "{o} = {s}.reshape({n}, -1)",
    "{o} = {s}.view(-1, {n})",
    "{o} = {s}.mT",
    "{o} = {s}.movedim({d}, 0)",
    "{o} = {s}.unfold({d}, 2, 1)",
    "{o} = {s}.unfold({d}, 2, 2)",
    "{o} = {s}.diagonal()",
    "{o} = {s}.diagonal(1, -2, -1)",
    "{o}, {p} = {s}.chunk(2, {d})",
    "{o} = {s}.unbind({d})[0]",
    "{o}, *_ = {s}.split(1, {d})",
    "{o} = {s}.expand(2, *{s}.shape)",
    "{o} = {s}.expand_as({s})",
    "{o} = {s}.narrow({d}, 0, 1)",
    "{o} = t.as_strided({s}, (2, 2), (1, 1))",
    "{o} = t.as_strided({s}, (2,), (2,), 1)",
    "{o} = {s}.permute(*reversed(range({s}.ndim)))",
    "{o} = {s}.contiguous()",
    "{o} = {s}.view_as({s})",
    "{o} = {s}.unflatten({d}, (-1, 2))",
    "{o} = {s}.swapaxes({d}, {e})[:1]",
    "{o} = {s}.T if {s}.ndim == 2 else {s}.flip({d})",
    "{o} = {s}.squeeze({d})",
    "{o} = {z}.real",
    "{o} = {z}.imag",
    "{o} = {s}.detach()",
    "{o} = {s}.roll(1, {d})",
)
lines(
    "write",
    "{f}.mul_({c})",
    "{f}.add_({l})",
    "{f}[{x}] = {c}",
    "{f}[{x}] = {f}[{x}].sin()",
    "{s}[{x}] = {m}[{x}]",
    "{f}[{x}] *= {c}",
    "{f}[{x}] += {f}[{x}].cos()",
    "{f} += {l}",
    "{f} -= {m}",
    "{f}.copy_({m})",
    "{f}.zero_()",
    "{f}.fill_({c})",
    "{f}.select({d}, {k}).mul_({c})",
    "{f}.select({d}, {k}).copy_({f}.select({d}, {k}).tanh())",
    "{f}.transpose({d}, {e}).mul_({c})",
    "{f}.diagonal().add_({c})",
    "{f}.diagonal().zero_()",
    "{f}.masked_fill_({f} > 0.3, {c})",
    "{f}[{f} > 0.2] = {c}",
    "{f}.clamp_(-1, 1)",
    "{f}.relu_()",
    "{f}.tanh_()",
    "{f}.flatten().mul_({c})",
    "{f}.view(-1)[1:].add_({c})",
    "with t.no_grad():\n    {f}.mul_({c})",
    "with t.no_grad():\n    {f}[{x}] = {c}",
    "{o} = t.zeros_like({f})\n{o}[{x}] = {f}[{x}]",
    "{o} = t.empty_like({f})\nt.sin({f}.detach(), out={o})",
    "{o} = {f}.clone()\n{o}[{x}] = {o}[{x}] * {f}[{x}]",
    "{o} = {f}.clone()\n{p} = {o}[{x}]\n{p}.mul_(2)\n{o}.add_(1)",
    "{o} = {f}.clone()\n{p} = {o}.unbind({d})[0]\n{o}.mul_(3)",
    "{o} = {f}.detach().clone()\n{o}.mul_({l})",
    "{f}.detach().mul_({c})",
    "{i}.add_(1)",
    "{i}[{x}] = 1",
    "{b}[{x}] = True",
    "{b}.logical_not_()",
    "{z}.real.mul_({c})",
    "{z}.mul_({c})",
    # Contiguous: out= of another shape is laid in memory as the result would be.
    "t.add({f}.detach().contiguous(), 1, out={l}.detach())",
    "{f}.index_fill_({d}, t.tensor([0], device={f}.device), {c})",
    "{f}.swapaxes({d}, {e})[0].add_(1)",
    "{f}.sigmoid_()",
    "{f}.lerp_({l}, 0.5)",
    "{f}.addcmul_({l}, {l}, value=0.5)",
    "{f}.cumsum_({d})",
)
lines(
    "reduce",
    "{o} = {f}.sum()",
    "{o} = {s}.sum({d})",
    "{o} = {f}.mean({d}, keepdim=True)",
    "{o} = {f}.amax({d})",
    "{o}, {p} = {f}.max({d})",
    "{o} = {f}.var({d}, unbiased=False)",
    # Spread out: of two values that nearly coincide, the second derivative is a difference of large numbers.
    "{o} = ({w} + t.linspace(0, 9, {w}.numel(), device={w}.device).view({w}.shape)).std() if {w}.numel() > 1 else {w}",
    "{o} = {f}.norm()",
    "{o} = {f}.prod({d})",
    "{o} = {f}.cumsum({d})",
    "{o} = {f}.logsumexp({d})",
    "{o} = {f}.argmax({d})",
    "{o} = ({f} > 0).any({d})",
    "{o} = ({f} > 0).sum()",
    # Of equal values PyTorch may choose any, and rounds equal ones to others: here no two are.
    "{o}, {p} = ({w} + t.linspace(0, 0.3, {w}.numel(), device={w}.device).view({w}.shape)).sort({d})",
    "{o}, {p} = ({w} + t.linspace(0, 0.3, {w}.numel(), device={w}.device).view({w}.shape)).topk(1, {d})",
    "{o} = {f}.cumprod({d})",
    "{o} = {f}.aminmax(dim={d}).max",
    "{o} = {f} / {f}.abs().sum().clamp(min=1)",
    "{o} = {s}.to(t.get_default_dtype()).mean()",
    # Spread out: over ties, PyTorch's gradient under vmap depends on the order of the transforms.
    "{o} = ({w} + t.linspace(0, 0.3, {w}.numel(), device={w}.device).view({w}.shape)).median()",
    "{o}, {p} = t.var_mean({f}, {d}, correction=0)",
)
lines(
    "product",
    "{o} = {w2} @ {w2}.t()",
    "{o} = {w2}.mT @ {w2}",
    "{o} = {w3} @ {w3}.transpose(1, 2)",
    "{o} = t.bmm({w3}, {w3}.mT)",
    "{o} = t.einsum('ij,ik->jk', {w2}, {w2})",
    "{o} = t.einsum('bij,bkj->bik', {w3}, {w3})",
    "{o} = t.einsum('...i,...i->...', {w}, {w})",
    "{o} = t.outer({w1}, {w1})",
    "{o} = t.dot({w1}, {w1})",
    "{o} = {w2} @ {w2}[0]",
    "{o} = t.addmm({w2}[:, :1], {w2}, {w2}.t())",
    # Of 4 dims, where PyTorch keeps the result for the gradient, too.
    "{o} = t.nn.functional.scaled_dot_product_attention({w3}[None], {w3}[None], {w3}[None])[0]",
    "{o} = t.nn.functional.scaled_dot_product_attention("
    "{w3}[None], {w3}[None], {w3}[None], is_causal=True)[0]",
    "{o} = t.nn.functional.scaled_dot_product_attention("
    "{w3}[:, None], {w3}[:, None].sin(), {w3}[:, None], attn_mask={w3}[0] @ {w3}[0].t()).clone()",
    # PyTorch does not see writes to the operands of kron().
    "{o} = t.kron({w1}.clone(), {w1}.clone())",
    "{o} = t.cdist({w2}, {w2} + 1)",
    "{o} = {z} @ {z}.mT",
    "{o} = t.nn.functional.conv1d({w3}, {w3}[:1, :, :2])",
    "{o} = t.nn.functional.conv2d({w3}[None], {w3}[None, :, :1, :1], padding=1)",
    "{o} = t.baddbmm({w3}[:, :, :1], {w3}, {w3}.mT, beta=0.5)",
)
lines(
    "norm",
    "{o} = {f}.softmax({d})",
    "{o} = {f}.log_softmax({d})",
    # With the usual eps, a norm of two values is a sign, and its slope is rounding.
    "{o} = t.nn.functional.layer_norm({w}, ({n},), eps=0.1)",
    "{o} = t.nn.functional.normalize({w}, dim={d})",
    "{o} = t.nn.functional.rms_norm({w}, ({n},))",
    "{o} = t.nn.functional.group_norm({w3}, 1, eps=0.1)",
    "{o} = t.nn.functional.cross_entropy({w2}, {w2}.argmax(1))",
    "{o} = t.nn.functional.mse_loss({f}, {l}.expand_as({f}))",
    "{o} = t.nn.functional.smooth_l1_loss({f}, {l}.expand_as({f}), reduction='none')",
    "{o} = t.nn.functional.binary_cross_entropy_with_logits({w}, ({w} > 0).to({w}.dtype))",
    "{o} = t.nn.functional.avg_pool1d({w3}, 2)",
    "{o} = t.nn.functional.max_pool1d({w3}, 2)",
    "{o} = t.nn.functional.interpolate({w3}, scale_factor=2)",
    "{o} = t.nn.functional.pad({w}, (1, 0))",
)
lines(
    "index",
    "{o} = {s}[[0, -1]]",
    "{o} = {s}[t.tensor(0, device={s}.device)]",
    "{o} = {s}[t.tensor([0, 1, 0], device={s}.device)]",
    "{o} = {s}[..., t.tensor([0, -1], device={s}.device)]",
    "{o} = {s}[:, None][:, 0]",
    "{o} = {s}[t.tensor([[0], [1]], device={s}.device), t.tensor([0, 1], device={s}.device)]",
    "{o} = {f}.index_select({d}, t.tensor([0, 0], device={f}.device))",
    "{o} = {w}.gather({d}, ({w} + t.linspace(0, 0.3, {w}.numel(), device={w}.device).view({w}.shape)).argsort({d}))",
    "{o} = {f}.take_along_dim({f}.argmax({d}, keepdim=True), {d})",
    "{o} = {f}.index_add({d}, t.tensor([0], device={f}.device), {f}.narrow({d}, 0, 1))",
    "{o} = {f}.index_put((t.tensor([0, 0], device={f}.device),), {f}[0], accumulate=True)",
    "{o} = {f}.scatter({d}, {f}.argmax({d}, keepdim=True), {c})",
    "{p} = ({w} + t.linspace(0, 0.3, {w}.numel(), device={w}.device).view({w}.shape)).argsort({d})\n"
    "{o} = {w}.scatter_add({d}, {p}, {w})",
    "{o} = {f}.clone()\n{o}[t.tensor([0], device={f}.device)] = {f}[-1:]",
    "{o} = {f}.clone()\n{o}[t.tensor(0, device={f}.device)] *= 2",
    "{o} = {f}.clone()\n{o}.index_add_({d}, t.tensor([0], device={f}.device), {f}.narrow({d}, 0, 1))",
    "{o} = {f}.clone()\n{o}.index_put_((t.tensor([0, 0], device={f}.device),), {f}[0], accumulate=True)",
    "{o} = {f}.clone()\n{o}[{o} > 0] += 1",
    "{o} = t.take({f}, t.tensor([0, 0], device={f}.device))",
    "{o} = t.nn.functional.one_hot({i}.clamp(0, 3), 4) if {i}.numel() else {i}",
    "{o} = t.tril({f}) + t.triu({f}, 1) * 2",
    "{o} = {f}.masked_select({f} > 0).sum()",
    "{o} = {f}.repeat_interleave(2, {d})",
    "{o} = {f}.flip({d})",
    "{o} = {s}[{i}.clamp(0, 1)]",
    "{o} = t.nn.functional.embedding({i}.clamp(0, 1), {w2})",
)
lines(
    "join",
    "{o} = t.cat([{s}, {s}], {d})",
    "{o} = t.stack([{f}, {l}.expand_as({f})], {d})",
    "{o} = t.cat([{f}.sin(), {f}], {d})",
    "{o} = t.stack(list({s}.unbind({d}))[::-1])",
    "{o} = {s}.tile(2)",
    "{o} = {s}.repeat(2, *[1] * {s}.ndim)",
    "{o}, {p} = t.broadcast_tensors({f}, {l})",
    "{o} = t.hstack([{s}, {s}])",
    "{o} = t.cat([{w}.flatten(), {a}.flatten()])",
)
lines(
    "type",
    "{o} = {f}.to(t.bfloat16)",
    "{o} = {w}.to(t.float16)",
    "{o} = {a}.to(t.get_default_dtype())",
    "{o} = ({f} > 0).to(t.int64)",
    "{o} = {i} * {f}",
    "{o} = {b} * {f}",
    "{o} = {i}.bool()",
    "{o} = {a}.type_as({a})",
    "{o} = {i}.to(t.int32)",
    "{o} = {f} + t.arange({n}, device={f}.device)",
    "{o} = {w}.new_zeros({w}.shape) + {w}",
    "{o} = {f} * {f}.shape[0]",
)
lines(
    "hook",
    "{o} = {f} * 1\nif {o}.requires_grad:\n    {o}.register_hook(lambda g: g.clamp(-1, 1))",
    "{o} = {f}.sin()\nif {o}.requires_grad:\n    {o}.retain_grad()",
    "{o} = {f} * 2\nif {o}.requires_grad:\n    {o}.grad_fn.register_hook("
    "lambda gi, go: tuple(g if g is None else g * 0.5 for g in gi))",
)


@rule("index")
def _select_scatter(g: Gen) -> str:
    # PyTorch's copy of what overlaps overlaps.
    x = g.pick(lambda v: v.is_floating_point() and v.ndim > 0 and not overlaps(v))
    d = g.dim(x)
    k = g.rng.randrange(-g.shape(x)[d], g.shape(x)[d]) if g.shape(x)[d] else 0
    return f"{g.new()} = {x}.select_scatter({x}.select({d}, {k}) * 2, {d}, {k})"


@rule("hook")
def _doubled(g: Gen) -> str:
    # PyTorch dies of a hook on a view of a leaf that was written to through `detach()`.
    name = g.pick(lambda v: v.is_floating_point() and not (v._base is not None and v._base.is_leaf))
    return f"if {name}.requires_grad:\n    {name}.register_hook(double)"


lines(
    "function",
    "{o} = Cube.apply({w})",
    "{o}, {p} = Halved.apply({w}, {l})",
    "{o} = Halved.apply({w}, {l})[0]",
    "with t.enable_grad():\n    {o} = {w} * 2",
)


def _layer(constructor: str, call: str = "{o} = {layer}({w})", dims: tuple[int, ...] = ()) -> None:
    @rule("layer")
    def made(g: Gen) -> str:
        w = g.wide(*dims)
        shape = g.shape(w)
        if not shape:
            raise _No
        sizes = {"n": shape[-1], "c": shape[1] if len(shape) > 1 else 1}
        return call.format(
            w=w,
            o=g.new(),
            p=g.new() if "{p}" in call else "",
            layer=g.layer(constructor.format(**sizes)),
        )


_layer("t.nn.Linear({n}, 3)")
_layer("t.nn.Linear({n}, {n}, bias=False)", "{o} = {layer}({w}) + {w}")
_layer("t.nn.LayerNorm({n}, eps=0.1)")
_layer("t.nn.BatchNorm1d({c}, eps=0.1)", dims=(2, 3))
_layer("t.nn.Conv1d({c}, 2, 2, padding=1)", dims=(3,))
# Copies, as PyTorch makes them in recurrent layers and attention: the argument itself may be written.
_layer("t.nn.LSTM({n}, 2, batch_first=True)", "{o}, (_, {p}) = {layer}({w}.clone())", dims=(3,))
_layer("t.nn.LSTM({n}, 2, num_layers=2)", "{o}, _ = {layer}({w}.clone())", dims=(3,))
_layer("t.nn.GRU({n}, 2)", "{o}, {p} = {layer}({w}.clone())", dims=(3,))
_layer("t.nn.RNN({n}, 2, bidirectional=True)", "{o}, _ = {layer}({w}.clone())", dims=(3,))
_layer(
    "t.nn.MultiheadAttention({n}, 1, batch_first=True)",
    "{o}, {p} = {layer}(*[{w}.clone()] * 3)",
    dims=(3,),
)
_layer("t.nn.utils.parametrizations.weight_norm(t.nn.Linear({n}, 2))")
_layer("t.nn.PReLU()")
_layer("t.nn.Sequential(t.nn.Linear({n}, 4), t.nn.Tanh(), t.nn.Linear(4, {n}))")


@functools.lru_cache(256)
def generate(seed: int) -> Program:
    """The program of a seed."""
    for attempt in range(20):
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            try:
                return replace(Gen(seed * 1000 + attempt).program(), seed=seed)
            except Skip:
                continue
    raise Skip("no program")


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program with fewest steps that still fails: drops runs of steps, then single ones."""
    run = max(1, len(program.steps) // 2)
    while True:
        number, less = len(program.steps), False
        while number > 0 and len(program.steps) > 1:
            smaller = program
            for i in range(number - 1, max(-1, number - 1 - run), -1):
                if i < len(smaller.steps):
                    smaller = smaller.without(i)
            number -= run
            if smaller.steps and len(smaller.steps) < len(program.steps) and fails(smaller):
                program, less = smaller, True
        if run == 1 and not less:
            break
        run = max(1, run // 2)
    # Fewer results.
    for name in sorted(program.kept):
        fewer = replace(program, kept=program.kept - {name})
        if fewer.results != program.results and fails(fewer):
            program = fewer
    return program
