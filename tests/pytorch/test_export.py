"""PyTorch functions, modules and exported programs as a page. Needs an adapter and a browser."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import webtorch
from tests.pytorch.models import GPT
from webtorch.errors import CaptureError
from webtorch.io.safetensors import load_file

TRAIN = """async ({ data, last }) => {
  const { load } = await import("./runtime.js");
  const m = await load("./");
  const losses = [];
  for (const batch of data) losses.push((await m.train(batch)).loss.data[0]);
  const { out } = await m.infer(last);
  m.destroy();
  return { losses, out: Array.from(out.data) };
}"""
INFER = """async (given) => {
  const { load } = await import("./runtime.js");
  const m = await load("./");
  const { out } = await m.infer(given);
  m.destroy();
  return Array.from(out.data);
}"""


def _program(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "program.json").read_text(encoding="utf-8"))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def train(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_training_step_runs_in_the_page(
    webgpu: str, tmp_path: Path, page: Any, serve: Any, name: str
) -> None:  # fmt: skip
    options = {"momentum": 0.9} if name == "SGD" else {}
    model = GPT(width=16, context=6)
    reference = copy.deepcopy(model)
    model.to(webgpu)
    optimizers = [
        getattr(torch.optim, name)(m.parameters(), lr=1e-2, **options) for m in (model, reference)
    ]
    g = torch.Generator().manual_seed(0)
    data = [
        (torch.randint(0, 32, (2, 6), generator=g), torch.randint(0, 32, (2, 6), generator=g))
        for _ in range(6)
    ]
    before = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    webtorch.export(
        {"train": _step(model, optimizers[0]), "infer": model},
        tmp_path / "site",
        {"train": data[0], "infer": (data[0][0],)},
    )
    # Exporting changes nothing.
    for key, value in model.state_dict().items():
        assert torch.equal(value.cpu(), before[key]), key
    assert not optimizers[0].state
    assert all(p.grad is None for p in model.parameters())
    weights = load_file(tmp_path / "site" / "weights.safetensors")
    assert "model.tokens.weight" in weights
    page.page.goto(serve(tmp_path / "site") + "blank")
    given = [{"x": x.tolist(), "y": y.tolist()} for x, y in data]
    found = page.run(TRAIN, {"data": given, "last": {"tokens": data[0][0].tolist()}})
    step = _step(reference, optimizers[1])
    expected = [step(x, y)["loss"].item() for x, y in data]
    assert found["losses"] == pytest.approx(expected, abs=1e-4)
    assert expected[-1] != pytest.approx(expected[0], abs=1e-2)
    with torch.no_grad():
        out = reference(data[0][0]).flatten().tolist()
    assert found["out"] == pytest.approx(out, abs=2e-3)


def test_an_exported_program_runs_in_the_page(
    webgpu: str, tmp_path: Path, page: Any, serve: Any
) -> None:  # fmt: skip
    model = GPT(width=16, context=6).eval()
    x = torch.randint(0, 32, (1, 6))
    program = torch.export.export(copy.deepcopy(model), (x,))
    webtorch.export(program, tmp_path / "site")
    (argument,) = _program(tmp_path / "site")["functions"]["infer"]["arguments"]
    assert (argument["name"], argument["shape"]) == ("tokens", [1, 6])
    page.page.goto(serve(tmp_path / "site") + "blank")
    found = page.run(INFER, {"tokens": x.tolist()})
    with torch.no_grad():
        assert found == pytest.approx(model(x).flatten().tolist(), abs=1e-4)


class Trainer:
    """A training step whose model and optimizer are attributes, as many write it."""

    def __init__(self, device: str) -> None:
        self.model = nn.Linear(3, 2).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return _step(self.model, self.optimizer)(x, y)


@pytest.mark.parametrize("form", ["method", "nested", "partial", "container"])
@pytest.mark.parametrize("begun", [False, True])
def test_exporting_changes_nothing_wherever_the_model_is(
    webgpu: str, tmp_path: Path, form: str, begun: bool
) -> None:
    trainer = Trainer(webgpu)
    x, y = torch.randn(4, 3), torch.randint(0, 2, (4,))
    if begun:
        trainer.step(x.to(webgpu), y.to(webgpu))
    parts = {"model": trainer.model, "optimizer": trainer.optimizer}
    function = {
        "method": trainer.step,
        "nested": lambda x, y: trainer.step(x, y),
        "partial": functools.partial(lambda m, o, x, y: _step(m, o)(x, y), *parts.values()),
        "container": lambda x, y: _step(parts["model"], parts["optimizer"])(x, y),
    }[form]

    def state() -> list[torch.Tensor | None]:
        model, states = trainer.model, trainer.optimizer.state.values()
        found = [*model.parameters(), *(p.grad for p in model.parameters())]
        found += [t for s in states for t in s.values()]
        return [None if t is None else t.detach().cpu().clone() for t in found]

    before = state()
    webtorch.export(function, tmp_path / "site", (x, y), cpu=False)
    assert len(state()) == len(before) == (10 if begun else 4)
    for a, b in zip(state(), before, strict=True):
        assert (a is b is None) or torch.equal(a, b)
    names = [s["name"] for s in _program(tmp_path / "site")["states"]]
    assert sum("exp_avg_sq" in n for n in names) == 2 and sum("step" in n for n in names) == 2
    assert not any(n.startswith("state.") for n in names)


def test_optimizers_out_of_sight_and_schedulers_are_refused(webgpu: str, tmp_path: Path) -> None:
    trainer = Trainer(webgpu)
    scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1)
    x, y = torch.randn(4, 3), torch.randint(0, 2, (4,))
    before = trainer.model.weight.detach().cpu()

    def scheduled(x: torch.Tensor, y: torch.Tensor) -> Any:
        out = trainer.step(x, y)
        scheduler.step()
        return out

    with pytest.raises(CaptureError, match="scheduler outside"):
        webtorch.export(scheduled, tmp_path / "a", (x, y))
    assert (trainer.optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (0.1, 0)
    # Of long lists the items are not looked at.
    many = [*range(1000), trainer.optimizer]

    model = trainer.model

    def hidden(x: torch.Tensor, y: torch.Tensor) -> Any:
        return _step(model, many[-1])(x, y)

    with pytest.raises(CaptureError, match="name it in `state`"):
        webtorch.export(hidden, tmp_path / "b", (x, y))
    assert torch.equal(trainer.model.weight.detach().cpu(), before)
    assert not trainer.optimizer.state


def test_a_module_on_the_cpu_stays_there(webgpu: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model(torch.randn(5, 3))
    webtorch.export(model, tmp_path / "site", (torch.randn(2, 3),), cpu=False)
    assert model[0].weight.device.type == "cpu" and model.training
    names = {s["name"] for s in _program(tmp_path / "site")["states"]}
    assert {"0.weight", "0.bias", "1.running_mean"} <= names
    weights = load_file(tmp_path / "site" / "weights.safetensors")
    assert bytes(weights["0.weight"].data) == model[0].weight.detach().numpy().tobytes()


def test_what_cannot_be_a_page_is_refused_with_the_next_step(webgpu: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 3), torch.randint(0, 2, (4,))
    with pytest.raises(CaptureError, match=r"model\.to\('webgpu'\)"):
        webtorch.export(_step(model, optimizer), tmp_path / "a", (x, y))
    with pytest.raises(TypeError, match="example_inputs"):
        webtorch.export(model, tmp_path / "b")
    model.to(webgpu)

    def reads(x: torch.Tensor) -> torch.Tensor:
        return model(x) if model(x).sum().item() > 0 else x

    with pytest.raises(CaptureError, match="cannot read values"):
        webtorch.export(reads, tmp_path / "c", (x,))
    optimizer = torch.optim.Rprop(model.parameters())
    with pytest.raises(CaptureError, match="take one step before"):
        webtorch.export(_step(model, optimizer), tmp_path / "d", (x, y))
    count = torch.zeros(())

    def counts(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return model(x)

    with pytest.raises(CaptureError, match="changes 'count', a tensor on the CPU"):
        webtorch.export(counts, tmp_path / "e", (x,))
    with pytest.raises(CaptureError, match="return it on the device"):
        webtorch.export(lambda x: (model(x), torch.ones(2)), tmp_path / "f", (x,))
