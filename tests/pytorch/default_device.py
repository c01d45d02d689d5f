"""Programs that make their tensors without naming a device. Run as a module, those that are named run with the
default device "webgpu", and print as JSON what each returns.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).reshape(shape).sin()


def filled(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(numbers(*p.shape) * 0.5)
    return module


def network() -> nn.Module:
    return filled(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))


def through_a_file(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


@program
def save_a_module() -> Any:
    state = through_a_file(filled(nn.Linear(8, 4)).state_dict())
    return [v.tolist() for v in state.values()]


@program
def save_a_training() -> Any:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    out = []
    for _ in range(4):
        loss = F.cross_entropy(model(numbers(6, 4)), torch.arange(6) % 2)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
        model.load_state_dict(through_a_file(model.state_dict()))
        out.append(loss.item())
    return out


@program
def copies() -> Any:
    model = copy.deepcopy(filled(nn.LSTM(3, 3)))
    y, _ = model(numbers(5, 2, 3))
    return y.tolist(), pickle.loads(pickle.dumps(y.detach())).sum().item()


@program
def printing() -> Any:
    return [
        repr(torch.tensor([1.5, -2.0])).replace(", device='webgpu:0'", ""),
        str(torch.ones(2, 2))[:20],
    ]


@program
def to_the_host() -> Any:
    x = numbers(3, 4)
    return (
        x.cpu().numpy().tolist(),
        x.tolist(),
        x[1].sum().item(),
        torch.empty(4, device="cpu").copy_(x[0]).tolist(),
    )


@program
def from_the_host() -> Any:
    x = torch.arange(6.0, device="cpu").reshape(2, 3)
    y = torch.empty(2, 3).copy_(x)
    y[0] = x[1]
    return y.tolist(), torch.as_tensor([1, 2]).tolist(), torch.tensor(x.numpy()).tolist()


@program
def masks_and_positions() -> Any:
    x = numbers(4, 3)
    mask = x > 0
    x[mask] = 2.0
    x[torch.tensor([0, 2])] += 1
    return (
        x.tolist(),
        mask.nonzero().tolist(),
        x.masked_select(mask).tolist(),
        torch.unique(mask).tolist(),
    )


@program
def linear_algebra() -> Any:
    a = numbers(3, 3) + 3 * torch.eye(3)
    return (
        torch.linalg.solve(a, torch.ones(3)).tolist(),
        torch.linalg.svd(a)[1].tolist(),
        torch.linalg.eigvalsh(a + a.T).tolist(),
        torch.linalg.inv(a).tolist(),
        torch.linalg.det(a).item(),
    )


@program
def functions() -> Any:
    x = numbers(8)
    return (
        torch.fft.rfft(x).abs().tolist(),
        torch.cdist(numbers(3, 2), numbers(4, 2)).tolist(),
        torch.kaiser_window(5).tolist(),
        x.sort().indices.tolist(),
        torch.cumsum(x, 0).tolist(),
        F.interpolate(numbers(1, 1, 4, 4), scale_factor=2, mode="bilinear").tolist(),
        F.embedding(torch.tensor([1, 0, 2]), numbers(3, 2)).tolist(),
    )


@program
def transforms() -> Any:
    def f(x: Any) -> Any:
        return (x.sin() * x).sum()

    x = numbers(3, 2)
    return (
        torch.func.vmap(torch.func.grad(f))(x).tolist(),
        torch.func.jvp(torch.sin, (x,), (torch.ones(3, 2),))[1].tolist(),
        torch.func.hessian(f)(x[0]).tolist(),
        torch.func.functional_call(
            nn.Linear(2, 1), {"weight": numbers(1, 2), "bias": torch.ones(1)}, x
        ).tolist(),
    )


@program
def checkpoints_and_hooks() -> Any:
    x = numbers(5).requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.sum().item()))
    y = torch.utils.checkpoint.checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False)
    y.sum().backward()
    return x.grad.tolist(), seen


@program
def compiled() -> Any:
    def f(x: Any, w: Any) -> Any:
        return ((x @ w).relu() + w.sum()).square().mean()

    backend = "webgpu" if torch.get_default_device().type == "webgpu" else "eager"
    call = torch.compile(f, backend=backend)
    out = []
    for n in (3, 3, 4):
        w = numbers(2, 2).requires_grad_()
        loss = call(numbers(n, 2), w)
        loss.backward()
        out.append((loss.item(), w.grad.tolist()))
    return out


@program
def loaders() -> Any:
    data = torch.utils.data.TensorDataset(numbers(8, 3), torch.arange(8))
    return [(x.tolist(), y.tolist()) for x, y in torch.utils.data.DataLoader(data, batch_size=3)]


@program
def half_precision() -> Any:
    kind = torch.get_default_device().type
    with torch.autocast(kind, dtype=torch.bfloat16):
        y = filled(nn.Linear(4, 4))(numbers(2, 4))
    return str(y.dtype), numbers(4).half().tolist(), numbers(4).bfloat16().exp().float().tolist()


@program
def attention() -> Any:
    layer = filled(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    y = layer(numbers(2, 4, 8), src_mask=mask, is_causal=True)
    y.square().sum().backward()
    layer.eval()
    with torch.no_grad():
        z = nn.TransformerEncoder(layer, 1)(
            numbers(2, 4, 8), src_key_padding_mask=torch.tensor([[False] * 3 + [True]] * 2)
        )
    return y.tolist(), layer.linear1.weight.grad.sum().item(), z[:, :3].tolist()


@program
def random_states() -> Any:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    torch.manual_seed(5)
    again = torch.rand(3)
    n = torch.multinomial(torch.ones(4), 4)
    return (
        torch.equal(first, again),
        state.device.type,
        sorted(n.tolist()),
        sorted(torch.randperm(5).tolist()),
    )


@program
def refused() -> Any:
    out = []
    for call in (
        lambda: torch.nested.as_nested_tensor(
            [torch.ones(2, requires_grad=True), torch.ones(3)]
        ).sum(),
        lambda: torch.ones(3).to_sparse().coalesce().values().sum().item(),
        lambda: torch.ones(3).untyped_storage().data_ptr(),
        lambda: torch.utils.dlpack.to_dlpack(torch.ones(3)),
        lambda: torch.ones(3).share_memory_(),
        lambda: torch.empty(1 << 62),
    ):
        try:
            call()
            out.append("done")
        except (RuntimeError, NotImplementedError, BufferError, MemoryError, TypeError):
            out.append("refused")
    return len(out)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_default_device("webgpu")
    results: dict[str, Any] = {}
    for name in sys.argv[1:]:
        try:
            results[name] = PROGRAMS[name]()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        # Which one ended the process, if one does.
        sys.stderr.write(f"{name}\n")
        sys.stderr.flush()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
