"""What a program does with DTensors, on either library: each check compares with whole tensors.

    python -m tests.distributed.dtensors FOLDER webtorch RANK RANKS

Each rank writes what failed into the folder as JSON, by check.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKS: dict[str, Callable[[Any], None]] = {}
# What PyTorch does otherwise, or not on the CPU: an element that is written by a number, the gradient of attention,
# `item()` of sums that are still to be taken, and optimizers that write by masks.
OURS = (
    "random", "dropout", "compiled", "scaler", "torch.save", "foreach", "written elements", "modules", "optimizers",
    "values", "written views", "dropout of a transposed tensor", "gradients of gradients of sums",
    "functions of torch.func are refused", "groups that are split",
)  # fmt: skip


def check(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Note a check under a name."""

    def note(function: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note the function."""
        CHECKS[name] = function
        return function

    return note


def refused(call: Callable[[], Any], kind: type[Exception]) -> str:
    """Return the message of the error of a kind that a call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")


class Program:
    """A library, meshes and whole tensors."""

    def __init__(self, torch: Any, rank: int, ranks: int) -> None:
        from torch.distributed import tensor
        from torch.distributed.device_mesh import init_device_mesh

        self.torch, self.dt, self.rank, self.ranks = torch, tensor, rank, ranks
        self.mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        self.square = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(0)
        self.w, self.x = torch.randn(6, 4), torch.randn(8, 6)
        self.r, self.p = tensor.Replicate(), tensor.Partial()

    def s(self, dim: int) -> Any:
        """Return a placement."""
        return self.dt.Shard(dim)

    def put(self, x: Any, *placements: Any, mesh: Any = None) -> Any:
        """Return a DTensor of a whole."""
        return self.dt.distribute_tensor(x, mesh or self.mesh, list(placements))

    def close(self, x: Any, y: Any) -> None:
        """Raise AssertionError where a DTensor is not a whole tensor."""
        whole = x.full_tensor() if isinstance(x, self.dt.DTensor) else x
        self.torch.testing.assert_close(whole.detach(), y.detach(), atol=1e-5, rtol=1e-4)

    def split_linear(self) -> tuple[Any, Any]:
        """Return a linear layer whose rows are split, and the same whole."""
        layer = self.torch.nn.Linear(6, 4)
        whole = copy.deepcopy(layer)

        def split(name: str, module: Any, mesh: Any) -> None:
            """Split its parameters."""
            for key, p in list(module._parameters.items()):
                part = self.dt.distribute_tensor(p, mesh, [self.s(0)])
                module.register_parameter(key, self.torch.nn.Parameter(part))

        return self.dt.distribute_module(layer, self.mesh, split), whole


@check("hooks")
def _hooks(t: Any) -> None:
    w, seen = t.put(t.w, t.s(0)).requires_grad_(), []
    w.register_hook(lambda g: (seen.append(type(g).__name__), g * 2)[1])
    w.register_post_accumulate_grad_hook(lambda p: seen.append(type(p).__name__))
    (t.put(t.x, t.r) @ w).sum().backward()
    assert seen == ["DTensor", "DTensor"], seen
    t.close(w.grad, 2 * t.x.sum(0)[:, None].expand(6, 4))


@check("second order")
def _second_order(t: Any) -> None:
    found = []
    for make in (
        lambda x, p: t.put(x, p).requires_grad_(),
        lambda x, p: x.clone().requires_grad_(),
    ):
        w, x = make(t.w, t.s(1)), make(t.x, t.s(0))
        g, h = t.torch.autograd.grad((x @ w).pow(2).sum(), [w, x], create_graph=True)
        g.sum().backward()
        found.append((g, h, w.grad, x.grad))
    for mine, whole in zip(*found, strict=True):
        t.close(mine, whole)


@check("autograd.backward")
def _backward(t: Any) -> None:
    w = t.put(t.w, t.s(0)).requires_grad_()
    t.torch.autograd.backward((w * w).sum())
    t.close(w.grad, 2 * t.w)


def square(torch: Any) -> Any:
    """Return a function of a user's."""

    class Square(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            """Return the square."""
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            """Return its gradient."""
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square.apply


@check("functions of the user's")
def _functions(t: Any) -> None:
    w = t.put(t.w, t.s(0)).requires_grad_()
    out = square(t.torch)(w)
    assert isinstance(out, t.dt.DTensor)
    out.sum().backward()
    t.close(w.grad, 2 * t.w)


@check("checkpoints of activations")
def _checkpoint(t: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        w, x = t.put(t.w, t.s(1)).requires_grad_(), t.put(t.x, t.r).requires_grad_()
        checkpoint(lambda a, b: (a @ b).relu(), x, w, use_reentrant=reentrant).sum().backward()
        whole = t.w.clone().requires_grad_()
        (t.x @ whole).relu().sum().backward()
        t.close(w.grad, whole.grad)


@check("autocast")
def _autocast(t: Any) -> None:
    w, x = t.put(t.w, t.s(1)).requires_grad_(), t.put(t.x, t.r)
    with t.torch.autocast("cpu", dtype=t.torch.bfloat16):
        y = x @ w
    assert y.dtype is t.torch.bfloat16
    y.float().sum().backward()
    assert w.grad.dtype is t.torch.float32


@check("pickled and copied")
def _pickled(t: Any) -> None:
    w = t.torch.nn.Parameter(t.put(t.w, t.s(0)))
    for made in (pickle.loads(pickle.dumps(w)), copy.deepcopy(w), copy.copy(w)):
        assert isinstance(made, t.torch.nn.Parameter) and made.placements == w.placements
        t.close(made, t.w)
    assert repr(t.put(t.w, t.s(0))).startswith("DTensor(local_tensor=tensor(")


@check("torch.save")
def _saved(t: Any) -> None:
    file, w = io.BytesIO(), t.put(t.w, t.s(0))
    t.torch.save({"w": w}, file)
    file.seek(0)
    t.close(t.torch.load(file, weights_only=False)["w"], t.w)


@check("two dimensions of a mesh")
def _two_dimensions(t: Any) -> None:
    ways = list(itertools.product((t.r, t.s(0), t.s(1)), repeat=2))
    a, b = t.x.clone().requires_grad_(), t.w.clone().requires_grad_()
    (a @ b).relu().pow(2).mean().backward()
    for first, second in itertools.product(ways, ways[::2]):
        x = t.put(t.x, *first, mesh=t.square).requires_grad_()
        w = t.put(t.w, *second, mesh=t.square).requires_grad_()
        y = (x @ w).relu()
        y.pow(2).mean().backward()
        t.close(y, (t.x @ t.w).relu())
        t.close(x.grad, a.grad)
        t.close(w.grad, b.grad)


@check("redistribute")
def _redistribute(t: Any) -> None:
    ways = list(itertools.product((t.r, t.s(0), t.s(1)), repeat=2))
    for shape in ((5, 3), (8, 4), (1, 2)):
        whole = t.torch.arange(float(shape[0] * shape[1])).reshape(shape)
        for old, new in itertools.product(ways, ways):
            x = t.put(whole, *old, mesh=t.square).requires_grad_()
            y = x.redistribute(t.square, new)
            assert t.torch.equal(y.full_tensor(), whole), (shape, old, new)
            (y.to_local() * 1.0).sum().backward()
            assert t.torch.equal(x.grad.full_tensor(), t.torch.ones(shape)), (shape, old, new)


@check("strided shards")
def _strided(t: Any) -> None:
    from torch.distributed.tensor.placement_types import _StridedShard

    inner = t.ranks // 2
    whole = t.torch.arange(40.0).reshape(8, 5)
    lies = (_StridedShard(0, split_factor=inner), t.s(0))
    # Cut along the second dimension of the mesh first.
    row, column = t.square.get_coordinate()
    part = whole.chunk(inner)[column].chunk(2)[row].clone()
    x = t.dt.DTensor.from_local(
        part, t.square, lies, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    assert t.torch.equal(x.full_tensor(), whole)
    assert t.torch.equal(x.redistribute(t.square, (t.s(0), t.s(1))).full_tensor(), whole)
    with t.torch.no_grad():
        x.mul_(2.0)
        assert x.placements == lies
        t.close(x.add(x), whole * 4)
        t.close(t.torch.linalg.vector_norm(x), (whole * 2).norm())


@check("written elements")
def _written(t: Any) -> None:
    w, whole = t.put(t.w, t.s(0)), t.w.clone()
    for x in (w, whole):
        x[0] = 1.5
        x[:, 1] = 0
    t.close(w, whole)


@check("written views")
def _written_views(t: Any) -> None:
    """Views of a dim in parts, whose elements had to be sent, are views all the same."""
    found = []
    for x in (t.put(t.w, t.s(0)).requires_grad_(), t.w.clone().requires_grad_()):
        y = x * 2
        tail, flat = y[3:], y.view(-1)
        tail.mul_(3.0)
        flat[2:9] = 0.5
        y.add_(1.0)
        (tail * flat.sum()).pow(2).sum().backward()
        found.append((y, tail, flat, tail.detach(), x.grad))
    for mine, whole in zip(*found, strict=True):
        t.close(mine, whole)
    with t.torch.no_grad():
        w = t.torch.nn.Parameter(t.put(t.w, t.s(0)))
        w[1].fill_(0)
        assert w.full_tensor()[1].abs().sum().item() == 0


@check("dropout of a transposed tensor")
def _dropout_transposed(t: Any) -> None:
    found = []
    for x in (t.x, t.put(t.x, t.s(0))):
        t.torch.manual_seed(9)
        found += [t.torch.nn.functional.dropout(x.t(), 0.5) + t.torch.rand_like(x.t())]
    t.close(found[1], found[0])


@check("gradients of gradients of sums")
def _second_order_of_sums(t: Any) -> None:
    found = []
    for make in (
        lambda x, p: t.put(x, p).requires_grad_(),
        lambda x, p: x.clone().requires_grad_(),
    ):
        w, x = make(t.w, t.s(0)), make(t.x, t.s(1))
        y = x @ w
        (g,) = t.torch.autograd.grad((y.tanh() * y).sum(), [y], create_graph=True)
        z = t.torch.linalg.vector_norm(x) + x.amax() * w.prod() + (x * x).mean(1).pow(2).sum()
        h = t.torch.autograd.grad(z, [w, x], create_graph=True)
        ((g * g).sum() + (h[0] * w).sum() + (h[1] * h[1]).sum()).backward()
        found.append((g, *h, w.grad, x.grad))
    for mine, whole in zip(*found, strict=True):
        t.close(mine, whole)


@check("gradients of means")
def _gradients_of_means(t: Any) -> None:
    """Users see the gradient of the whole, also of means that are still to be taken."""
    found = []
    for x in (t.put(t.x, t.s(0)).requires_grad_(), t.x.clone().requires_grad_()):
        y, seen = x.mean(0), []
        y.register_hook(lambda g, seen=seen: seen.append(g))
        y.retain_grad()
        ones = t.torch.ones(6) * 2
        y.backward(ones if y.__class__ is t.torch.Tensor else t.put(ones, t.r))
        (z,) = t.torch.autograd.grad(x.mean(), [x])
        found.append((y.grad, seen[0], x.grad, z))
    for mine, whole in zip(*found, strict=True):
        t.close(mine, whole)


@check("views like another tensor")
def _views_like(t: Any) -> None:
    x = t.put(t.x, t.s(0))
    y = x.view_as(x)
    assert y.placements == x.placements
    t.close(t.torch.nn.functional.softplus(y), t.torch.nn.functional.softplus(t.x))


@check("state_dict")
def _state_dict(t: Any) -> None:
    layer, _ = t.split_linear()
    state = layer.state_dict()
    assert isinstance(state["weight"], t.dt.DTensor)
    other = copy.deepcopy(layer)
    other.load_state_dict(state)
    layer.double()
    assert layer.weight.dtype is t.torch.float64
    assert layer(t.put(t.x.double(), t.r)).dtype is t.torch.float64


@check("random")
def _random(t: Any) -> None:
    torch, make = t.torch, t.dt
    torch.manual_seed(7)
    whole = [torch.rand(5, 3), torch.randn(5, 3), torch.empty(5, 3).normal_(), torch.empty(5, 3)]
    torch.nn.init.kaiming_uniform_(whole[3])
    torch.manual_seed(7)
    first, second = (
        {"device_mesh": t.mesh, "placements": [t.s(0)]},
        {"device_mesh": t.mesh, "placements": [t.s(1)]},
    )
    parts = [
        make.rand(5, 3, **first),
        make.randn(5, 3, **second),
        make.empty(5, 3, **first).normal_(),
    ]
    parts.append(torch.nn.init.kaiming_uniform_(make.empty(5, 3, **first)))
    for mine, other in zip(parts, whole, strict=True):
        assert torch.equal(mine.full_tensor(), other)


@check("dropout")
def _dropout(t: Any) -> None:
    found = []
    for x in (t.x, t.put(t.x, t.s(0))):
        t.torch.manual_seed(9)
        found.append(t.torch.nn.functional.dropout(x, 0.5))
    t.close(found[1], found[0])


@check("factories")
def _factories(t: Any) -> None:
    for name, value in (("zeros", 0.0), ("ones", 1.0)):
        made = getattr(t.dt, name)(5, 3, device_mesh=t.mesh, placements=[t.s(0)])
        t.close(made, t.torch.full((5, 3), value))
    t.close(
        t.dt.full((5, 3), 2.0, device_mesh=t.mesh, placements=[t.s(1)]), t.torch.full((5, 3), 2.0)
    )
    assert t.dt.empty(5, 3, device_mesh=t.mesh, placements=[t.s(0)]).shape == (5, 3)


@check("parts and their gradients")
def _parts(t: Any) -> None:
    x = t.put(t.x, t.r).requires_grad_()
    (x.to_local(grad_placements=[t.p]) * (t.rank + 1)).sum().backward()
    total = t.ranks * (t.ranks + 1) / 2
    t.close(x.grad, t.torch.full_like(t.x, total))
    part = (t.torch.ones(2, 2) * (t.rank + 1)).requires_grad_()
    y = t.dt.DTensor.from_local(part, t.mesh, [t.p]).redistribute(placements=[t.r])
    assert y.to_local()[0, 0].item() == total
    y.sum().backward()
    t.close(part.grad, t.torch.ones(2, 2))


@check("beside plain tensors")
def _mixed(t: Any) -> None:
    w = t.put(t.w, t.s(0))
    said = ""
    try:
        w + t.w
    except RuntimeError as error:
        said = str(error)
    assert "got mixed torch.Tensor and DTensor" in said
    t.close(w * t.torch.tensor(2.0), t.w * 2)


@check("modules")
def _modules(t: Any) -> None:
    nn, image = t.torch.nn, t.torch.randn(4, 3, 8, 8)
    models = [
        (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)), t.x),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), image),
        (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), t.torch.randn(4, 5, 8)),
    ]
    for model, x in models:
        whole = copy.deepcopy(model)
        t.dt.distribute_module(model, t.mesh)
        out, other = model(t.put(x, t.s(0))), whole(x)
        t.close(out, other)
        out.pow(2).mean().backward()
        other.pow(2).mean().backward()
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            t.close(p.grad, q.grad)


@check("compiled")
def _compiled(t: Any) -> None:
    torch = t.torch
    layer, whole = t.split_linear()
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (layer, whole))

    @torch.compile
    def step(x: Any) -> Any:
        """Take one step."""
        first.zero_grad()
        given = t.dt.DTensor.from_local(x, t.mesh, [t.r], run_check=False)
        loss = layer(given).pow(2).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        first.step()
        return loss.full_tensor()

    for i in range(4):
        loss = step(t.x + i)
        second.zero_grad()
        other = whole(t.x + i).pow(2).sum()
        other.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
        second.step()
        t.close(loss, other)
        t.close(layer.weight, whole.weight)


@check("optimizers")
def _optimizers(t: Any) -> None:
    torch = t.torch
    names = (
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adadelta",
        "Adagrad",
        "RMSprop",
        "Rprop",
        "ASGD",
    )
    names += ("Adafactor", "Muon") if "webtorch" in torch.Tensor.__mro__[-2].__module__ else ()
    for name, lies in itertools.product(names, (t.s(0), t.s(1))):
        found = []
        for make in (lambda x, p: t.put(x, p), lambda x, p: x.clone()):
            w, x = torch.nn.Parameter(make(t.w, lies)), make(t.x, t.r)
            optimizer = getattr(torch.optim, name)(
                [w], lr=0.05, **({"momentum": 0.9} if name == "SGD" else {})
            )
            for _ in range(3):
                optimizer.zero_grad()
                (x @ w).pow(2).mean().backward()
                torch.nn.utils.clip_grad_norm_([w], 0.5)
                optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            found.append(w)
        t.close(*found)


@check("scaler")
def _scaler(t: Any) -> None:
    w = t.torch.nn.Parameter(t.put(t.w, t.s(0)))
    optimizer = t.torch.optim.SGD([w], lr=0.1)
    scaler = t.torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((w * w).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    t.close(w, t.w - 0.2 * t.w)


@check("clipped values, and norms")
def _clipped(t: Any) -> None:
    w = t.torch.nn.Parameter(t.put(t.w, t.s(0)))
    (w * 5).sum().backward()
    t.close(t.torch.nn.utils.get_total_norm([w.grad]), t.torch.full((6, 4), 5.0).norm())
    t.torch.nn.utils.clip_grad_value_([w], 1.0)
    t.close(w.grad, t.torch.ones(6, 4))


@check("values")
def _values(t: Any) -> None:
    w = t.put(t.w, t.s(0))
    assert t.torch.equal(w, t.put(t.w, t.s(0)))
    assert bool((w > -99).all()) and abs(w.sum().item() - t.w.sum().item()) < 1e-4
    with t.torch.no_grad():
        assert not (w.clone().requires_grad_() * 2).requires_grad


@check("foreach")
def _foreach(t: Any) -> None:
    parts = [t.put(t.w, t.s(0)), t.put(t.w, t.s(1))]
    t.torch._foreach_mul_(parts, 2.0)
    t.close(parts[0], t.w * 2)
    t.close(t.torch._foreach_norm(parts)[1], (t.w * 2).norm())


@check("meshes")
def _meshes(t: Any) -> None:
    mesh = t.square
    assert mesh.size() == t.ranks and mesh.shape == (2, t.ranks // 2) and mesh.ndim == 2
    assert mesh["tp"].mesh_dim_names == ("tp",) and mesh["dp"].size() == 2
    assert mesh.get_local_rank("dp") == t.rank // (t.ranks // 2) == mesh.get_coordinate()[0]
    flat = mesh["dp", "tp"]._flatten("all")
    assert flat.size() == t.ranks and mesh["all"].get_local_rank() == t.rank
    assert (
        mesh["dp"] == mesh["dp"] and mesh["dp"] != mesh["tp"] and len({mesh["dp"], mesh["dp"]}) == 1
    )
    x = t.torch.ones(2) * t.rank
    t.torch.distributed.all_reduce(x, group=mesh.get_group("dp"))
    column = t.rank % (t.ranks // 2)
    assert x[0].item() == sum(r for r in range(t.ranks) if r % (t.ranks // 2) == column)
    for call, kind in (
        (lambda: mesh["no"], KeyError),
        (mesh.get_group, RuntimeError),
        (lambda: mesh["tp", "dp"], KeyError),
    ):
        refused(call, kind)


@check("local_map")
def _local_map(t: Any) -> None:
    from torch.distributed.tensor.experimental import implicit_replication, local_map

    torch, rows, columns, whole = t.torch, [t.s(0)], [t.s(1)], [t.r]
    w, x = t.put(t.w, *rows).requires_grad_(), t.put(t.x, *columns).requires_grad_()
    product = local_map(torch.mm, [t.p], (columns, rows))
    t.close(product(x, w), t.x @ t.w)
    (product(x, w) * 2).redistribute(placements=whole).sum().backward()
    t.close(w.grad, 2 * t.x.sum(0)[:, None].expand(6, 4))
    t.close(x.grad, 2 * t.w.sum(1).expand(8, 6))

    @local_map(out_placements=(rows, None), in_placements=(rows, None), redistribute_inputs=True)
    def scaled(part: Any, by: int) -> Any:
        """Return several results of a part."""
        return part * by, by

    result, by = scaled(t.put(t.x, *columns), 3)
    assert by == 3 and result.placements == (t.s(0),)
    t.close(result, t.x * 3)
    assert torch.equal(scaled(t.x, 3)[0], t.x * 3)
    for call, kind in (
        (lambda: product(w, x), ValueError),
        (lambda: product(x), AssertionError),
        (lambda: local_map(torch.mm, ([t.p], None))(x, w), AssertionError),
    ):
        refused(call, kind)
    with implicit_replication():
        t.close(x + torch.ones(8, 6), t.x + 1)


@check("functional collectives")
def _functional(t: Any) -> None:
    from torch.distributed import _functional_collectives as sends

    torch, mesh, n = t.torch, t.mesh, t.ranks
    x = (t.w + t.rank).requires_grad_()
    every = [t.w + r for r in range(n)]
    t.close(sends.all_reduce(x, "sum", mesh).wait(), sum(every))
    t.close(sends.all_reduce(x, "max", (mesh, 0)) * 2, 2 * every[-1])
    t.close(sends.broadcast(x, 1, torch.distributed.group.WORLD), every[1])
    t.close(sends.all_gather_single(x, 1, mesh), torch.cat(every, 1))
    wide = torch.cat([x] * n, 1)
    t.close(sends.reduce_scatter_single(wide, "avg", 1, mesh), sum(every) / n)
    rows = torch.cat([x] * n)
    t.close(sends.wait_tensor(sends.all_to_all_single(rows, None, None, mesh)), torch.cat(every))
    (sends.all_gather_single(x, 1, mesh) ** 2).sum().backward()
    t.close(x.grad, n * 2 * x)
    x.grad = None
    (sends.reduce_scatter_single_autograd(x.repeat(n, 1), "sum", 0, mesh) * 3).sum().backward()
    t.close(x.grad, torch.full((6, 4), 3.0 * n))
    x.grad = None
    sizes = [1] * n
    (sends.all_to_all_single_autograd(x[:n], sizes, sizes, mesh) * 3).sum().backward()
    t.close(x.grad[:n], torch.full((n, 4), 3.0))


@check("processes that are not in a mesh")
def _outside(t: Any) -> None:
    mesh = t.dt.DeviceMesh("cpu", range(t.ranks - 1, t.ranks))
    inside = t.rank == t.ranks - 1
    for x in (
        t.dt.DTensor.from_local(t.torch.ones(3, 4), mesh, [t.s(0)]),
        t.dt.zeros(3, 4, device_mesh=mesh, placements=[t.s(0)]),
        t.dt.distribute_tensor(t.torch.ones(3, 4), mesh, [t.s(1)]),
    ):
        assert x.shape == (3, 4) and x.stride() == (4, 1)
        assert x.to_local().shape == ((3, 4) if inside else (0,)), x.to_local().shape


@check("counted collectives")
def _counted(t: Any) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    names, ops = t.torch.ops.c10d_functional, t.torch.ops.c10d
    w, mode = t.put(t.w, t.s(0)), CommDebugMode()
    with mode:
        w.redistribute(placements=[t.r])
        t.dt.DTensor.from_local(t.w, t.mesh, [t.p]).full_tensor()
        t.torch.distributed.all_reduce(t.torch.ones(2))
    counts = mode.get_comm_counts()
    assert counts[names.all_gather_into_tensor] == counts[names.all_reduce] == 1, counts
    assert counts[ops.allreduce_] == 1 and mode.get_total_counts() == 3, counts
    with mode:
        w * 2
    assert mode.get_total_counts() == 0


@check("operators of torch.ops")
def _operators(t: Any) -> None:
    aten, w, torch = t.torch.ops.aten, t.put(t.w, t.s(0)), t.torch
    t.close(aten.gelu(w), torch.nn.functional.gelu(t.w))
    t.close(aten.linalg_vector_norm(w, 2), t.w.norm())
    t.close(aten.cat([w, w], 1), torch.cat([t.w, t.w], 1))
    t.close(aten.where(w > 0, w, w * 2), torch.where(t.w > 0, t.w, t.w * 2))


@check("functions of torch.func are refused")
def _refused(t: Any) -> None:
    torch, w = t.torch, t.put(t.w, t.s(0))
    for call in (
        lambda: torch.vmap(lambda x: x * 2)(w),
        lambda: torch.func.grad(lambda x: (x * x).sum())(w),
        lambda: torch.func.jvp(torch.sin, (w,), (w,)),
        lambda: torch.func.jacrev(torch.sin)(w),
    ):
        assert "DTensor" in refused(call, NotImplementedError)


@check("modules whose activations are computed again")
def _activations(t: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    torch, calls = t.torch, []
    nn = torch.nn
    plain = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh()))
    again = copy.deepcopy(plain)
    apply_activation_checkpointing(again, check_fn=lambda m: isinstance(m, nn.Linear))
    again[0].register_forward_pre_hook(lambda *_: calls.append(1))
    again[0]._checkpoint_wrapped_module.register_forward_pre_hook(lambda *_: calls.append(2))
    assert list(again.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in again[0].named_parameters()] == ["weight", "bias"]
    again.load_state_dict(plain.state_dict())
    for model in (plain, again):
        model(t.x).sum().backward()
    assert calls == [1, 2, 2], calls
    for p, q in zip(plain.parameters(), again.parameters(), strict=True):
        t.close(q.grad, p.grad)
    assert again[0].in_features == 6

    class Named(nn.Module):  # type: ignore[misc, name-defined]
        """A module that is given its input by name."""

        def forward(self, *, x: Any) -> Any:
            """Return the square."""
            return x * x

    x = t.x.clone().requires_grad_()
    checkpoint_wrapper(Named(), CheckpointImpl.REENTRANT)(x=x).sum().backward()
    t.close(x.grad, 2 * t.x)


@check("groups that are split")
def _split(t: Any) -> None:
    dist, whole = t.torch.distributed, list(range(t.torch.distributed.get_world_size()))
    own, same = (dist.split_group(split_ranks=r) for r in ([[r] for r in whole], [whole[::-1]]))
    assert dist.get_world_size(own) == 1 and dist.get_rank(same) == dist.get_rank()
    assert (dist.split_group(split_ranks=[[0]]) is None) == (dist.get_rank() > 0)
    x = t.torch.ones(2)
    dist.all_reduce(x, group=own)
    assert x.tolist() == [1, 1]
    dist.all_reduce(x, group=same)
    assert x.tolist() == [len(whole)] * 2
    assert "empty" in refused(lambda: dist.split_group(split_ranks=[[]]), ValueError)


def main(folder: str, library: str, rank: str, ranks: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch

        webtorch.install_as_torch()
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(ranks)
    )
    program, failed = Program(torch, int(rank), int(ranks)), {}
    for name, function in CHECKS.items():
        if library == "webtorch" or name not in OURS:
            try:
                function(program)
            except Exception:
                failed[name] = traceback.format_exc(limit=-4)
    Path(folder, f"{rank}.json").write_text(json.dumps(failed))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
