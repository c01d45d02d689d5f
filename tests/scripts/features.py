"""What random loops (`tests.scripts.loops`) do beside their steps, each feature by its name."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

# How a result is computed: by the loop's running state, the step and the input.
FORWARD: dict[str, Callable[[Any, int, Any], Any]] = {}
# What becomes of a result: by the running state, the step, the input and the result.
CHANGED: dict[str, Callable[[Any, int, Any, Any], Any]] = {}
# What happens after the update: by the running state, the step, the result and the loss.
AFTER: dict[str, Callable[[Any, int, Any, Any], None]] = {}


def _into(table: dict[str, Any]) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        table[function.__name__.replace("_", "-")] = function
        return function

    return note


def forward(running: Any, step: int, x: Any) -> Any:
    """Return what the model gives, by way of what is due."""
    for name, function in FORWARD.items():
        if running.loop.happens(name, step):
            return function(running, step, x)
    return running.model(x)


def changed(running: Any, step: int, x: Any, out: Any) -> Any:
    """Return what becomes of a result."""
    for name, function in CHANGED.items():
        if running.loop.happens(name, step):
            out = function(running, step, x, out)
    return out


def after(running: Any, step: int, out: Any, loss: Any) -> None:
    """Do what is due after the update."""
    for name, function in AFTER.items():
        if running.loop.happens(name, step):
            function(running, step, out, loss)


def end(running: Any) -> None:
    """Note what features have kept."""
    for value in vars(running).get("more", {}).values():
        for t in value if isinstance(value, list) else [value]:
            running.see(t)


def _can_be_compiled(running: Any) -> bool:
    """Whether nothing asks for second derivatives, which no compiled function has, or for the order of its leaves."""
    orders = {"second-order", "penalty", "inner-step"}
    ours = running.torch.__name__.startswith("webtorch")
    return (
        ours
        and not vars(running).get("more_handles")
        and not orders & {name for name, *_ in running.loop.events}
    )


def _is_ordered(running: Any) -> bool:
    """Whether leaves get their gradients in PyTorch's order: recurrent layers have their weights in another one."""
    return running.loop.kind != "recurrent"


def _named(running: Any) -> dict[str, Any]:
    return dict(running.model.named_parameters())


# ---- how a result is computed


@_into(FORWARD)
def compiled(running: Any, step: int, x: Any) -> Any:
    if not _can_be_compiled(running):
        return running.model(x)
    made = vars(running).setdefault("compiled", [None, None])
    if made[0] is not running.model:
        made[:] = running.model, running.torch.compile(running.model)
    return made[1](x)


@_into(FORWARD)
def compiled_function(running: Any, step: int, x: Any) -> Any:
    # The sum is none of what is saved: compiled functions do not refuse that their results are written before they are
    # differentiated, which PyTorch does where it has saved them.
    if not _can_be_compiled(running):
        return running.model(x * 2).tanh() + 0.1
    made = vars(running).setdefault("compiled_function", [None, None])
    if made[0] is not running.model:
        model = running.model
        made[:] = model, running.torch.compile(lambda x: model(x * 2).tanh() + 0.1)
    return made[1](x)


@_into(FORWARD)
def functional(running: Any, step: int, x: Any) -> Any:
    given = {n: p * 0.75 if p.ndim > 1 else p for n, p in _named(running).items()}
    return running.torch.func.functional_call(running.model, given, (x,))


@_into(FORWARD)
def two_inputs(running: Any, step: int, x: Any) -> Any:
    return running.model(x) + running.model(x.flip(0)) * 0.5


@_into(FORWARD)
def other_order(running: Any, step: int, x: Any) -> Any:
    return running.model(x.t().contiguous().t())


@_into(FORWARD)
def inference(running: Any, step: int, x: Any) -> Any:
    with running.torch.inference_mode():
        before = running.table[step : step + len(x)].sum(1, keepdim=True) * 2
    return running.model(x + before.clone())


@_into(FORWARD)
def compiled_then_written(running: Any, step: int, x: Any) -> Any:
    # What a compiled function gives is differentiated outside, and written in place before. It is no view.
    hooked = running.everywhere.get("hook-modules")
    out = running.model(x) if hooked else compiled(running, step, x)
    twice = out * 2
    try:
        out[:, 0] = twice[:, 1] * 0.5
    except RuntimeError:
        # What hooks of modules give are views.
        return out
    out.add_(twice.mean(0))
    return out.mul_(0.75)


@_into(FORWARD)
def compiled_map(running: Any, step: int, x: Any) -> Any:
    torch, model = running.torch, running.model
    if not _can_be_compiled(running):
        return torch.vmap(lambda row: row.tanh() + row.sum())(model(x))
    made = vars(running).setdefault("compiled_map", [None, None])
    if made[0] is not model:
        made[:] = (
            model,
            torch.compile(lambda x: torch.vmap(lambda row: row.tanh() + row.sum())(model(x))),
        )
    return made[1](x)


@_into(FORWARD)
def checkpoint_with_hooks(running: Any, step: int, x: Any) -> Any:
    torch, log = running.torch, running.seen
    watched = list(enumerate(running.parameters)) if _is_ordered(running) else []
    handles = [p.register_hook(lambda g, i=i: log.append(i)) for i, p in watched if p.requires_grad]
    vars(running).setdefault("more_handles", []).extend(handles)

    def part(x: Any) -> Any:
        out = running.model(x).tanh()
        if out.requires_grad:
            out.register_hook(lambda g: g * 1.25)
        return out

    out = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
    if out.requires_grad:
        out.register_hook(lambda g: log.append("out"))
    return out


@_into(FORWARD)
def changing_sizes(running: Any, step: int, x: Any) -> Any:
    rows = running.table[step : step + 2 + step % 5]
    return running.model(x) + running.model(rows).mean(0) * 0.5


@_into(FORWARD)
def used_before(running: Any, step: int, x: Any) -> Any:
    # A tensor that the step has used gets a gradient.
    shift = running.table[step, :3].clone()
    near = running.model(x) * shift.exp()
    shift.requires_grad_()
    out = near + shift.sin()
    vars(running).setdefault("shifts", []).append(shift)
    return out


# ---- what becomes of a result


@_into(CHANGED)
def mapped(running: Any, step: int, x: Any, out: Any) -> Any:
    weights = running.table[step, :3]
    return running.torch.vmap(lambda row: row.tanh() * weights.sum() + row.sum())(out)


@_into(CHANGED)
def mapped_gradient(running: Any, step: int, x: Any, out: Any) -> Any:
    func = running.torch.func
    return out + running.torch.vmap(func.grad(lambda row: (row.sin() * row).sum()))(out) * 0.1


@_into(CHANGED)
def functional_gradient(running: Any, step: int, x: Any, out: Any) -> Any:
    torch, model = running.torch, running.model
    if running.everywhere.get("hook-modules"):
        # PyTorch refuses full backward hooks there.
        return out
    given = {n: p.detach() for n, p in _named(running).items()}

    buffers = {n: b.clone() for n, b in model.named_buffers()}

    def loss(given: Any) -> Any:
        near = {n: b.clone() for n, b in buffers.items()}
        return torch.func.functional_call(model, (given, near), (x,)).square().mean()

    found = torch.func.grad(loss)(given)
    for g in found.values():
        running.seen.append(g.sum().item())
    return out


@_into(CHANGED)
def complex_numbers(running: Any, step: int, x: Any, out: Any) -> Any:
    torch = running.torch
    real = out.float() if out.dtype is torch.bfloat16 else out
    z = torch.complex(real, real * 0.5)
    z = z * z.conj() + z * (0.5 + 0.25j)
    return z.real * 0.5 + z.imag


@_into(CHANGED)
def spectrum(running: Any, step: int, x: Any, out: Any) -> Any:
    torch = running.torch
    real = out.float() if out.dtype is torch.bfloat16 else out
    return torch.fft.irfft(torch.fft.rfft(real, dim=1) * (1 + 0.5j), n=3, dim=1)


@_into(CHANGED)
def masked(running: Any, step: int, x: Any, out: Any) -> Any:
    out = out * 1
    out[out > 0.5] *= 0.5
    out[:, 0] = out[:, 1] * 0.25
    return out


@_into(CHANGED)
def written_parts(running: Any, step: int, x: Any, out: Any) -> Any:
    held = running.torch.zeros_like(out)
    for i in range(3):
        held[:, i] = out[:, 2 - i] * (i + 1)
    held[0].add_(1)
    return held


@_into(CHANGED)
def retained(running: Any, step: int, x: Any, out: Any) -> Any:
    out = out * 1.25
    if out.requires_grad:
        out.retain_grad()
    vars(running).setdefault("retains", []).append(out)
    return out


@_into(CHANGED)
def gathered(running: Any, step: int, x: Any, out: Any) -> Any:
    torch = running.torch
    order = out.detach().sort(dim=1, stable=True)[1]
    return (
        out.gather(1, order) + torch.nn.functional.one_hot(order % 3, 3).to(out.dtype).sum(1) * 0.1
    )


@_into(CHANGED)
def scaled_by_parameter(running: Any, step: int, x: Any, out: Any) -> Any:
    torch, more = running.torch, vars(running).setdefault("more", {})
    if "scale" not in more:
        more["scale"] = torch.nn.Parameter(torch.tensor([1.5, 0.5, -1.0]))
        if running.optimizer is not None:
            running.optimizer.add_param_group({"params": [more["scale"]], "lr": 0.01})
    return out * more["scale"]


@_into(CHANGED)
def looked_at_in_a_thread(running: Any, step: int, x: Any, out: Any) -> Any:
    found: list[float] = []
    kept = out.detach() * 2

    def look() -> None:
        found.append(kept.sum().item())

    thread = threading.Thread(target=look)
    thread.start()
    out = out * 1.5 + kept * 0.25
    thread.join()
    running.seen += found
    return out


@_into(CHANGED)
def checkpoint_gradient(running: Any, step: int, x: Any, out: Any) -> Any:
    torch = running.torch
    w = torch.linspace(0.5, 1.5, 3).requires_grad_()
    near = torch.utils.checkpoint.checkpoint(
        lambda v: (v * w).sin() * w, x[:, :3].contiguous(), use_reentrant=False
    )
    (g,) = torch.autograd.grad(near.square().sum(), [w])
    return out * g.to(out.dtype)


@_into(CHANGED)
def written_while_read(running: Any, step: int, x: Any, out: Any) -> Any:
    # One thread reads what another one's writes follow.
    found: list[Any] = []
    source = running.table[step : step + 4] * 1.5
    kept = [source.clone(), source.sum(0), source.detach()[1:].clone()]
    source.mul_(2)

    def look() -> None:
        found.extend(t.sum().item() for t in kept)

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(3):
        source[i].add_(i)
        source.t()[0].mul_(0.5)
    thread.join()
    running.seen += [*found, source.sum().item()]
    return out + source[:, :3].mean()


# ---- what happens after the update


@_into(AFTER)
def averaged_model(running: Any, step: int, out: Any, loss: Any) -> None:
    torch = running.torch
    if "averaged" not in vars(running):
        running.averaged = torch.optim.swa_utils.AveragedModel(
            running.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
        )
    if len(list(running.averaged.parameters())) == len(running.parameters):
        running.averaged.update_parameters(running.model)
        for p in running.averaged.parameters():
            running.see(p)


@_into(AFTER)
def plain_average(running: Any, step: int, out: Any, loss: Any) -> None:
    if "swa" not in vars(running):
        running.swa = running.torch.optim.swa_utils.AveragedModel(running.model)
    running.swa.update_parameters(running.model)
    running.more = {**vars(running).get("more", {}), "swa": list(running.swa.parameters())}


@_into(AFTER)
def saved(running: Any, step: int, out: Any, loss: Any) -> None:
    torch, file = running.torch, io.BytesIO()
    torch.save(running.model.state_dict(), file)
    file.seek(0)
    running.model.load_state_dict(torch.load(file))


@_into(AFTER)
def optimizer_saved(running: Any, step: int, out: Any, loss: Any) -> None:
    if running.optimizer is not None:
        running.optimizer.load_state_dict(copy.deepcopy(running.optimizer.state_dict()))


@_into(AFTER)
def state_read(running: Any, step: int, out: Any, loss: Any) -> None:
    if running.optimizer is not None:
        for state in running.optimizer.state.values():
            for value in state.values():
                if isinstance(value, running.torch.Tensor):
                    running.seen.append(value.sum().item())


@_into(AFTER)
def closure(running: Any, step: int, out: Any, loss: Any) -> None:
    if running.optimizer is None or running.loop.scaled:
        return
    x = running.table[step : step + 4]

    def compute() -> Any:
        running.optimizer.zero_grad()
        with running.cast("forward"):
            again = running.model(x).square().mean()
        if again.requires_grad:
            again.backward()
        return again

    running.seen.append(running.optimizer.step(compute).item())


@_into(AFTER)
def lbfgs(running: Any, step: int, out: Any, loss: Any) -> None:
    torch = running.torch
    x = running.table[step : step + 4]
    if "solver" not in vars(running) or running.solver[0] is not running.model:
        made = torch.optim.LBFGS(running.model.parameters(), lr=0.05, max_iter=3, history_size=3)
        running.solver = running.model, made
    solver = running.solver[1]

    def compute() -> Any:
        solver.zero_grad()
        with running.cast("forward"):
            again = running.model(x).square().mean()
        if again.requires_grad:
            again.backward()
        return again

    running.seen.append(solver.step(compute).item())


@_into(AFTER)
def data_replaced(running: Any, step: int, out: Any, loss: Any) -> None:
    p = running.parameters[-1]
    p.data = p.data * 0.9 + 0.01


@_into(AFTER)
def parameter_replaced(running: Any, step: int, out: Any, loss: Any) -> None:
    # The optimizer goes on with the old one.
    for module in running.model.modules():
        if "bias" in module._parameters and module.bias is not None:
            module.bias = running.torch.nn.Parameter(module.bias.detach() * 0.5)
            return


@_into(AFTER)
def model_copied(running: Any, step: int, out: Any, loss: Any) -> None:
    other = copy.deepcopy(running.model)
    with running.torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
            running.seen.append(p.sum().item())


@_into(AFTER)
def thread_steps(running: Any, step: int, out: Any, loss: Any) -> None:
    torch, found = running.torch, []
    table = running.table * 1.0

    def work() -> None:
        w = torch.ones(running.loop.width, 1, requires_grad=True)
        for _ in range(3):
            w.grad = None
            (table @ w).square().mean().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
        found.append(w.sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    with running.torch.no_grad():
        near = running.table[step].sin().sum()
    thread.join()
    running.seen += [*found, near.item()]


@_into(AFTER)
def gradients_seen(running: Any, step: int, out: Any, loss: Any) -> None:
    for t in vars(running).get("retains", ()):
        if t.grad is not None:
            running.seen.append(t.grad.sum().item())
    vars(running).pop("retains", None)


@_into(AFTER)
def order_of_leaves(running: Any, step: int, out: Any, loss: Any) -> None:
    if not _is_ordered(running):
        return
    log, handles = running.seen, []
    for i, p in enumerate(running.parameters):
        if p.requires_grad:
            handles.append(p.register_post_accumulate_grad_hook(lambda p, i=i: log.append(i)))
    for i, m in enumerate(running.model.modules()):
        handles.append(m.register_full_backward_hook(lambda m, a, b, i=i: log.append(f"m{i}")))
    x = running.table[step : step + 4].clone().requires_grad_()
    with running.cast("forward"):
        value = running.model(x).square().mean()
    value.backward()
    for handle in handles:
        handle.remove()
    running.see(x.grad)


@_into(AFTER)
def raises_at_a_leaf(running: Any, step: int, out: Any, loss: Any) -> None:
    wanted = [p for p in running.parameters if p.requires_grad]
    if not wanted or not _is_ordered(running):
        return
    for p in running.parameters:
        p.grad = None

    def fail(g: Any) -> None:
        raise RuntimeError("no")

    handle = wanted[step % len(wanted)].register_hook(fail)
    with running.cast("forward"):
        value = running.model(running.table[step : step + 4]).square().mean()
    try:
        value.backward()
    except RuntimeError:
        running.seen.append([p.grad is not None for p in running.parameters])
    handle.remove()


@_into(AFTER)
def stepped_in_hooks(running: Any, step: int, out: Any, loss: Any) -> None:
    torch, handles = running.torch, []
    for p in running.parameters:
        if p.requires_grad:
            optimizer = torch.optim.SGD([p], lr=0.01)

            def move(p: Any, optimizer: Any = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            handles.append(p.register_post_accumulate_grad_hook(move))
    if handles:
        with running.cast("forward"):
            value = running.model(running.table[step : step + 4]).square().mean()
        value.backward()
    for handle in handles:
        handle.remove()


@_into(AFTER)
def traced_model(running: Any, step: int, out: Any, loss: Any) -> None:
    if running.loop.kind in ("recurrent", "attention", "own"):
        return
    traced = running.torch.fx.symbolic_trace(running.model)
    with running.torch.no_grad():
        running.see(traced(running.table[step : step + 4]))


@_into(AFTER)
def shifts_seen(running: Any, step: int, out: Any, loss: Any) -> None:
    for t in vars(running).pop("shifts", ()):
        if t.grad is not None:
            running.see(t.grad)


@_into(AFTER)
def hooks_removed(running: Any, step: int, out: Any, loss: Any) -> None:
    for handle in vars(running).pop("more_handles", ()):
        handle.remove()


NAMES = sorted([*FORWARD, *CHANGED, *AFTER])
