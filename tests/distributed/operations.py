"""Operations of DTensors, on either library: each kind of the op table, of operands that lie in each way.

    python -m tests.distributed.operations FOLDER webtorch RANK RANKS

Each rank writes what it found into the folder as JSON: the whole results and gradients, or the error, by case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import product
from pathlib import Path
from typing import Any

# Name -> (a function of the library and its operands, shapes of these); "i" before a shape are integers below 3, "+"
# positive numbers, "b" bools.
Case = tuple[Callable[..., Any], tuple[Any, ...]]
M, V, C = (4, 6), (6,), (4, 6, 2)
U = (5, 3)


def _f(name: str) -> Callable[..., Any]:
    def call(t: Any, *xs: Any) -> Any:
        found = t
        for part in name.split("."):
            found = getattr(found, part)
        return found(*xs)

    return call


CASES: dict[str, Case] = {
    # Elements.
    **{n: (_f(n), (U,)) for n in ("exp", "neg", "tanh", "sigmoid", "relu", "abs", "sign", "isnan")},
    **{n: (_f(n), (("+", U),)) for n in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{n: (_f(n), (M, M)) for n in ("add", "sub", "mul", "div", "maximum", "atan2", "eq", "lt")},
    **{f"{n} of rows": (_f(n), (M, V)) for n in ("add", "mul", "sub", "div")},
    **{f"{n} of columns": (_f(n), (M, (4, 1))) for n in ("add", "mul")},
    "gelu": (_f("nn.functional.gelu"), (U,)),
    "silu": (_f("nn.functional.silu"), (U,)),
    "times a number": (lambda t, x: x * 2.5, (U,)),
    "plus a number": (lambda t, x: x + 2.5, (U,)),
    "a number minus": (lambda t, x: 2.5 - x, (U,)),
    "divided by a number": (lambda t, x: x / 2.5, (U,)),
    "a number divided": (lambda t, x: 2.5 / x, (("+", U),)),
    "power": (lambda t, x: x**2, (U,)),
    "clamp": (lambda t, x: x.clamp(-0.5, 0.5), (U,)),
    "where": (lambda t, x, y: t.where(x > 0, x, y), (M, M)),
    "masked_fill": (lambda t, x, y: x.masked_fill(y > 0, 2.0), (M, M)),
    "lerp": (lambda t, x, y: t.lerp(x, y, 0.25), (M, M)),
    "addcmul": (lambda t, x, y: t.addcmul(x, y, y, value=0.5), (M, M)),
    "to float64": (lambda t, x: x.double(), (U,)),
    "to": (lambda t, x: x.to(t.float64), (U,)),
    "clone": (lambda t, x: x.clone(), (U,)),
    # Reductions.
    **{n: (_f(n), (U,)) for n in ("sum", "mean", "amax", "amin", "var", "std", "prod")},
    **{f"{n} of dim 0": (lambda t, x, n=n: getattr(t, n)(x, 0), (U,)) for n in ("sum", "mean", "amax", "var", "prod")},
    **{f"{n} of dim 1": (lambda t, x, n=n: getattr(t, n)(x, 1), (M,)) for n in ("sum", "mean", "amin", "std")},
    **{f"{n} kept": (lambda t, x, n=n: getattr(t, n)(x, 1, keepdim=True), (M,)) for n in ("sum", "mean", "amax")},
    "max of dim": (lambda t, x: t.max(x, 1)[0], (M,)),
    "argmax": (lambda t, x: x.argmax(1), (M,)),
    "any": (lambda t, x: (x > 0).any(), (U,)),
    "all": (lambda t, x: (x > 9).all(0), (U,)),
    "norm": (lambda t, x: t.linalg.vector_norm(x), (U,)),
    "norm 1": (lambda t, x: t.linalg.vector_norm(x, 1), (M,)),
    "logsumexp": (lambda t, x: x.logsumexp(1), (M,)),
    # Along a dim.
    "softmax": (lambda t, x: x.softmax(-1), (M,)),
    "log_softmax": (lambda t, x: t.nn.functional.log_softmax(x, 0), (M,)),
    "cumsum": (lambda t, x: x.cumsum(0), (M,)),
    "cumsum of dim 1": (lambda t, x: x.cumsum(1), (M,)),
    "sort": (lambda t, x: x.sort(1)[0], (M,)),
    "topk": (lambda t, x: x.topk(2, 1)[0], (M,)),
    "flip": (lambda t, x: x.flip(0), (M,)),
    # Products.
    "mm": (_f("mm"), (M, (6, 5))),
    "matmul": (_f("matmul"), ((3, 4, 6), (6, 5))),
    "bmm": (_f("bmm"), ((3, 4, 6), (3, 6, 5))),
    "mv": (_f("mv"), (M, V)),
    "dot": (_f("dot"), (V, V)),
    "linear": (_f("nn.functional.linear"), ((3, 4, 6), (5, 6), (5,))),
    "linear without bias": (_f("nn.functional.linear"), (M, (5, 6))),
    "addmm": (_f("addmm"), ((5,), M, (6, 5))),
    "baddbmm": (_f("baddbmm"), ((3, 4, 5), (3, 4, 6), (3, 6, 5))),
    "operator": (lambda t, x, y: x @ y, (M, (6, 5))),
    "einsum of heads": (lambda t, x, y: t.einsum("bhld,bhmd->bhlm", x, y), ((2, 4, 3, 2), (2, 4, 5, 2))),
    "norm of dims": (lambda t, x: x.norm(2, 1), (M,)),
    "einsum": (lambda t, x, y: t.einsum("ij,jk->ik", x, y), (M, (6, 5))),
    "attention": (_f("nn.functional.scaled_dot_product_attention"), ((2, 4, 6, 3), (2, 4, 6, 3), (2, 4, 6, 3))),
    "causal attention": (
        lambda t, x: t.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), ((2, 4, 6, 3),)
    ),
    # Views and movements.
    "t": (lambda t, x: x.t(), (U,)),
    "transpose": (lambda t, x: x.transpose(0, 2), (C,)),
    "permute": (lambda t, x: x.permute(2, 0, 1), (C,)),
    "view to heads": (lambda t, x: x.view(4, 2, 3, 2), (C,)),
    "view to halves": (lambda t, x: x.view(2, 2, 6, 2), (C,)),
    "flatten": (lambda t, x: x.flatten(0, 1), (C,)),
    "flatten the last": (lambda t, x: x.flatten(1), (C,)),
    "reshape": (lambda t, x: x.reshape(-1), (M,)),
    "unsqueeze": (lambda t, x: x.unsqueeze(1), (U,)),
    "squeeze": (lambda t, x: x.squeeze(1), ((4, 1, 6),)),
    "expand": (lambda t, x: x.unsqueeze(0).expand(3, 5, 3), (U,)),
    "select": (lambda t, x: x.select(0, 1), (M,)),
    "narrow": (lambda t, x: x.narrow(1, 2, 3), (M,)),
    "slice": (lambda t, x: x[:, 1:4], (M,)),
    "element": (lambda t, x: x[1], (M,)),
    "chunk": (lambda t, x: x.chunk(2, 1)[1], (M,)),
    "split": (lambda t, x: x.split(3, 1)[0], (M,)),
    "unbind": (lambda t, x: x.unbind(1)[2], (M,)),
    "cat": (lambda t, x, y: t.cat([x, y], 1), (M, M)),
    "stack": (lambda t, x, y: t.stack([x, y]), (M, M)),
    "tril": (lambda t, x: x.tril(), (M,)),
    "repeat": (lambda t, x: x.repeat(2, 1), (M,)),
    "roll": (lambda t, x: x.roll(1, 0), (M,)),
    # Places.
    "embedding": (lambda t, w, i: t.nn.functional.embedding(i, w), (U, ("i", M))),
    "embedding with padding": (lambda t, w, i: t.nn.functional.embedding(i, w, padding_idx=1), (U, ("i", M))),
    "index_select": (lambda t, x, i: x.index_select(0, i), (U, ("i", (4,)))),
    "gather": (lambda t, x, i: x.gather(1, i), (M, ("i", M))),
    "index": (lambda t, x, i: x[i], (U, ("i", (4,)))),
    # Images.
    "conv2d": (
        lambda t, x, w, b: t.nn.functional.conv2d(x, w, b, padding=1), ((4, 2, 5, 5), (4, 2, 3, 3), (4,))
    ),
    "conv1d of groups": (lambda t, x, w: t.nn.functional.conv1d(x, w, groups=2), ((4, 4, 6), (6, 2, 3))),
    "max_pool2d": (lambda t, x: t.nn.functional.max_pool2d(x, 2), ((4, 2, 6, 6),)),
    "avg_pool1d": (lambda t, x: t.nn.functional.avg_pool1d(x, 3), ((4, 2, 6),)),
    "adaptive_avg_pool2d": (lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 2), ((4, 2, 6, 6),)),
    "group_norm": (lambda t, x, w: t.nn.functional.group_norm(x, 2, w), ((4, 4, 5), (4,))),
    # Norms and losses.
    "layer_norm": (lambda t, x, w, b: t.nn.functional.layer_norm(x, (6,), w, b), (M, V, V)),
    "rms_norm": (lambda t, x, w: t.nn.functional.rms_norm(x, (6,), w), (M, V)),
    "mse_loss": (_f("nn.functional.mse_loss"), (M, M)),
    "cross_entropy": (_f("nn.functional.cross_entropy"), ((4, 3), ("i", (4,)))),
    "nll_loss": (lambda t, x, y: t.nn.functional.nll_loss(x.log_softmax(1), y), ((4, 3), ("i", (4,)))),
    # In place.
    "add_": (lambda t, x, y: x.clone().add_(y), (M, M)),
    "mul_": (lambda t, x: x.clone().mul_(3.0), (U,)),
    "fill_": (lambda t, x: x.clone().fill_(3.0), (U,)),
    "zero_": (lambda t, x: x.clone().zero_(), (U,)),
    "copy_": (lambda t, x, y: x.clone().copy_(y), (M, M)),
    "ones_like": (lambda t, x: t.ones_like(x), (U,)),
    "zeros_like": (lambda t, x: t.zeros_like(x), (U,)),
    "new_zeros": (lambda t, x: x.new_zeros(2, 3), (U,)),
}  # fmt: skip


def _values(torch: Any, shape: Any, seed: int) -> Any:
    kind, sizes = shape if isinstance(shape[0], str) else ("", shape)
    count = 1
    for s in sizes:
        count *= s
    # Numbers that neither library draws.
    numbers = [((i * 7919 + seed * 104729 + 13) % 997) / 250.0 - 2.0 for i in range(count)]
    x = torch.tensor(numbers).reshape(sizes)
    if kind == "i":
        return ((x + 2.0) * 50).long() % 3
    return x.abs() + 0.5 if kind == "+" else x


def ways(torch: Any, x: Any) -> list[Any]:
    """Return how a tensor may lie."""
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate(), *[Shard(d) for d in range(min(x.dim(), 3))]]


def plain(torch: Any, name: str) -> Any:
    """Return what whole tensors give, and the gradients."""
    function, shapes = CASES[name]
    given = [_values(torch, s, i) for i, s in enumerate(shapes)]
    return _run(torch, function, given, lambda x: x)


def _run(torch: Any, function: Any, given: list[Any], whole: Any) -> Any:
    needs = [x.requires_grad_() if x.is_floating_point() else x for x in given]
    out = function(torch, *needs)
    found = [whole(out).detach().double().tolist()]
    if out.requires_grad:
        weights = out * 1.5 + 0.25
        (weights * weights).sum().backward()
        for x in needs:
            found.append(None if x.grad is None else whole(x.grad).double().tolist())
    return found, out


# PyTorch's ranks part there: one raises, and the other waits for it in a collective.
PARTING = ("conv1d of groups",)


def cases(torch: Any, mesh: Any, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Give what each case gives, by its name and how operands lie."""
    from torch.distributed.tensor import distribute_tensor

    for name, (function, shapes) in CASES.items():
        if name in without:
            continue
        values = [_values(torch, s, i) for i, s in enumerate(shapes)]
        chosen = list(product(*[ways(torch, x) for x in values]))
        if len(shapes) > 2 or len(chosen) > 16:
            # Each operand in each way, the others replicated, and all alike.
            first = [w[0] for w in [ways(torch, x) for x in values]]
            some = [
                (*first[:i], w, *first[i + 1 :])
                for i, x in enumerate(values)
                for w in ways(torch, x)
            ]
            alike = [
                tuple([w[k] if k < len(w) else w[0] for w in [ways(torch, x) for x in values]])
                for k in (1, 2)
            ]
            chosen = list(dict.fromkeys([*some, *alike]))
        for lies in chosen:
            title = f"{name}: {' '.join(map(str, lies))}"
            try:
                given = [
                    distribute_tensor(x, mesh, [p] * mesh.ndim)
                    for x, p in zip(values, lies, strict=True)
                ]
                found, out = _run(torch, function, given, lambda x: x.full_tensor())
                yield title, [found, str([str(p) for p in out.placements])]
            except Exception as error:
                yield title, f"{type(error).__name__}: {error}"[:300]


def main(folder: str, library: str, rank: str, ranks: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch

        webtorch.install_as_torch()
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(ranks)
    )
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (int(ranks),))
    found = dict(cases(torch, mesh, PARTING if library == "torch" else ()))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
