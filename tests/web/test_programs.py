"""What a program may do besides plain training: random numbers, float arguments, views, swapped state, types."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

import webtorch as torch
from tests.web.steps import MLP
from webtorch import nn
from webtorch.errors import CaptureError, DTypeError, ShapeError
from webtorch.io.safetensors import loads
from webtorch.tensors.tensor import Tensor
from webtorch.web import BROWSER_LIMITS, export_json
from webtorch.web.settings import Settings

F = nn.functional
CALLS = """async ({ folders, calls }) => {
  const { load } = await import(`./${folders[0]}/runtime.js`);
  const plain = (o) => (o !== null && o?.data ? { data: Array.from(o.data), shape: o.shape, dtype: o.dtype } : o);
  const out = [];
  for (let i = 0; i < folders.length; i++) {
    const m = await load(`./${folders[i]}`);
    const results = [];
    for (const { inputs, set } of calls[i]) {
      for (const [name, value] of Object.entries(set ?? {})) m.set(name, value);
      results.push(Object.fromEntries(Object.entries(await m.step(inputs)).map(([k, v]) => [k, plain(v)])));
    }
    out.push(results);
  }
  return out;
}"""


def _replayed(
    page, serve, root, calls: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    page.page.goto(serve(root) + "blank")
    found = page.run(CALLS, {"folders": list(calls), "calls": list(calls.values())})
    assert page.problems == []
    return dict(zip(calls, found, strict=True))


def test_programs_of_every_kind_replay_as_in_python(page, serve, tmp_path):
    calls: dict[str, list[dict[str, Any]]] = {}
    expected: dict[str, Any] = {}

    # Random numbers: the page goes on where Python's generator stood.
    torch.manual_seed(11)

    @torch.compile
    def noisy(x):
        return {"kept": F.dropout(x, 0.4), "noise": torch.rand(5), "fixed": 3, "none": None}

    x = torch.arange(1.0, 41.0)
    for _ in range(3):
        noisy(x)
    torch.export(noisy, tmp_path / "random", name="step")
    expected["random"] = [noisy(x) for _ in range(3)]
    calls["random"] = [{"inputs": {"x": x.tolist()}}] * 3

    # Float arguments, nested inputs, views and several results.
    @torch.compile
    def blend(pair, alpha):
        a, b = pair["a"], pair["b"]
        mixed = a * alpha + b * (1 - 0.5)
        return mixed.t(), mixed[1, ::2], (mixed > 0)

    a, b = torch.randn(3, 4), torch.randn(3, 4)
    for alpha in (0.5, 0.25):
        blend({"a": a, "b": b}, alpha)
    torch.export(blend, tmp_path / "views", name="step")
    inputs = {"pair.a": a.tolist(), "pair.b": b.tolist()}
    calls["views"] = [{"inputs": {**inputs, "alpha": 2.0}}, {"inputs": inputs}]
    expected["views"] = [
        [r.tolist() for r in blend({"a": a, "b": b}, alpha)] for alpha in (2.0, 0.25)
    ]

    # Tensors larger than a binding, computed in parts.
    @torch.compile
    def large(x, table, rows):
        return (x.relu() @ x.t()).softmax(1).sum(0), table[rows] * 2, x.sum(), x.cumsum(0)

    given = torch.randn(30, 20), torch.randn(90, 4), torch.arange(0, 90, 7)
    for _ in range(3):
        large(*given)
    narrow = replace(BROWSER_LIMITS, max_binding_bytes=1024)
    torch.export(large, tmp_path / "large", name="step", limits=narrow)
    calls["large"] = [
        {"inputs": dict(zip(("x", "table", "rows"), map(Tensor.tolist, given), strict=True))}
    ]
    expected["large"] = [r.reshape(-1).tolist() for r in large(*given)]

    # State that is exchanged and copied, and a state that is returned.
    first, second, third = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.zeros(2)

    @torch.compile
    def rotate():
        one, two = first.clone(), second.clone()
        first.copy_(two)
        second.copy_(one + 1)
        third.copy_(second)
        return third

    for _ in range(2):
        rotate()
    torch.export(
        rotate,
        tmp_path / "state",
        name="step",
        state={"first": first, "second": second, "third": third},
    )
    expected["state"] = [rotate().tolist() for _ in range(5)]
    calls["state"] = [{"inputs": {}}] * 5

    # Batch norm counts batches in an int64 and keeps averages; several groups have a learning rate each.
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    groups = [
        {"params": net[0].parameters(), "lr": 0.1},
        {"params": [*net[1].parameters(), *net[3].parameters()], "lr": 0.02},
    ]
    sgd = torch.optim.SGD(groups, lr=1.0, momentum=0.9, weight_decay=1e-2)

    @torch.compile
    def train(x, y):
        sgd.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        sgd.step()
        return loss, net[1].num_batches_tracked

    x, y = torch.randn(10, 3), torch.randn(10, 1)
    for _ in range(2):
        train(x, y)
    torch.export(train, tmp_path / "groups", name="step", outputs=["loss", "seen"])
    batch = {"inputs": {"x": x.tolist(), "y": y.tolist()}}
    calls["groups"] = [batch, batch, {**batch, "set": {"lr": 0.05, "weight_decay": 0.1}}, batch]
    expected["groups"] = []
    for i in range(4):
        if i == 2:
            for group in sgd.param_groups:
                group["lr"], group["weight_decay"] = 0.05, 0.1
        loss, seen = train(x, y)
        expected["groups"].append((loss.item(), seen.item()))

    # Types that are packed in device memory.
    total = torch.zeros(7, dtype=torch.bfloat16)

    @torch.compile
    def packed(h, flags, small, wide):
        total.add_(h.to(torch.bfloat16))
        return {"h": h * 1.5, "total": total, "not": ~flags, "small": small + 1, "wide": wide * 3}

    h = torch.tensor([1.0, 0.1, -2.5, 65504.0, 6e-8, 3.14159, 0.0], dtype=torch.float16)
    rest = (
        torch.tensor([True, False, True]),
        torch.tensor([250, 1, 2], dtype=torch.uint8),
        torch.tensor([-5, 70000]),
    )
    for _ in range(2):
        packed(h, *rest)
    torch.export(packed, tmp_path / "packed", name="step")
    calls["packed"] = [
        {
            "inputs": {
                "h": h.tolist(),
                "flags": [True, False, True],
                "small": [250, 1, 2],
                "wide": [-5, 70000],
            }
        }
    ]
    expected["packed"] = {k: v.tolist() for k, v in packed(h, *rest).items()}

    found = _replayed(page, serve, tmp_path, calls)

    for mine, theirs in zip(found["random"], expected["random"], strict=True):
        assert mine["kept"]["data"] == pytest.approx(theirs["kept"].tolist(), rel=1e-6)
        assert mine["noise"]["data"] == pytest.approx(theirs["noise"].tolist(), abs=1e-7)
        assert mine["fixed"] == 3 and mine["none"] is None
    assert found["random"][0]["noise"] != found["random"][1]["noise"]
    for mine, theirs in zip(found["views"], expected["views"], strict=True):
        flat = [v for row in theirs[0] for v in row]
        assert mine["out"]["data"] == pytest.approx(flat, rel=1e-6) and mine["out"]["shape"] == [
            4,
            3,
        ]
        assert mine["out1"]["data"] == pytest.approx(theirs[1], rel=1e-6)
        assert mine["out2"]["data"] == [int(v) for row in theirs[2] for v in row]
        assert mine["out2"]["dtype"] == "bool"
    flat = [r["data"] for r in found["large"][0].values()]
    assert sorted(map(len, flat)) == sorted(map(len, expected["large"]))
    for mine, theirs in zip(flat, expected["large"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert [r["out"]["data"] for r in found["state"]] == expected["state"]
    for mine, (loss, seen) in zip(found["groups"], expected["groups"], strict=True):
        assert mine["loss"]["data"][0] == pytest.approx(loss, rel=1e-4)
        assert mine["seen"]["data"] == [seen] and mine["seen"]["dtype"] == "int64"
    assert {k: v["data"] for k, v in found["packed"][0].items()} == {
        k: [int(x) for x in v] if k == "not" else v for k, v in expected["packed"].items()
    }


# Counts the buffers that a page makes, and refuses those that are too large.
SMALL_BUFFERS = """(most) => {
  const make = GPUDevice.prototype.createBuffer;
  globalThis.made = 0;
  globalThis.timing = false;
  GPUDevice.prototype.createBuffer = function (wanted) {
    made += 1;
    const ofTimes = timing && wanted.usage & (GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.MAP_READ);
    if (wanted.size <= most || ofTimes) return make.call(this, wanted);
    throw new RangeError(`a buffer of ${wanted.size} bytes`);
  };
}"""
ROWS = """async ({ inputs, calls }) => {
  const { load } = await import("./runtime.js");
  const m = await load("./", { device: "webgpu", worker: false });
  const results = [];
  for (let i = 0; i < calls; i++) results.push(await m.step(inputs));
  const file = await m.state();
  await m.loadState(file);
  globalThis.timing = true;
  const { rows, outputs } = await m.profile("step", inputs);
  results.push(outputs);
  const plain = results.map((r) => Object.fromEntries(Object.entries(r).map(([k, v]) => [k, Array.from(v.data)])));
  return { results: plain, made, file: Array.from(file), rows: rows.length };
}"""


def test_memory_larger_than_a_buffer_is_spread_over_several(page, serve, tmp_path):
    step, calls, most = _of_rows(), 2, 1024
    x = torch.randn(20, 30)
    for _ in range(2):
        step(x)
    limits = replace(BROWSER_LIMITS, max_binding_bytes=most, max_buffer_bytes=most)
    torch.export(step, tmp_path, name="step", limits=limits)
    expected = [[r.reshape(-1).tolist() for r in step(x)] for _ in range(calls + 1)]

    page.page.add_init_script(f"({SMALL_BUFFERS})({most});")
    page.page.goto(serve(tmp_path) + "blank")
    found = page.run(ROWS, {"inputs": {"x": x.tolist()}, "calls": calls})
    assert page.problems == []
    for mine, theirs in zip(found["results"], expected, strict=True):
        for one, other in zip(mine.values(), theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    (state,) = loads(bytes(found["file"])).values()
    # (As it was before the profiled call.)
    values = struct.unpack(f"<{30 * 20}f", state.data)
    assert list(values) == pytest.approx(expected[calls - 1][1], rel=1e-4, abs=1e-5)
    assert found["made"] > 12 and found["rows"] > 8


def _of_rows():
    """Return a step with an argument, a state, a result and a temporary of 2400 bytes each; the state is exchanged."""
    weight = torch.randn(30, 20)

    @torch.compile
    def step(x):
        new = weight * 0.9 + (x.t() @ (x @ weight)) * 1e-2
        weight.copy_(new)
        return new.sum(0), new * 1

    return step


def test_settings_are_recovered_from_the_numbers_that_follow_them():
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, weight_decay=0.2)
    group = optimizer.param_groups[0]
    hyper = optimizer._hyper(group)
    settings = Settings([hyper("lr")])
    assert settings.terms(hyper("lr")) == [(1.0, ("lr",))]
    found = {names: c for c, names in settings.terms(hyper("1-lr*weight_decay"))}
    assert found == {(): 1.0, ("lr", "weight_decay"): -1.0} or found == {
        (): 1.0,
        ("weight_decay", "lr"): -1.0,
    }
    assert settings.terms(hyper("log beta1")) is None, "a logarithm is no polynomial"
    assert settings.values == {"lr": 0.3, "weight_decay": 0.2}
    assert group["lr"] == 0.3 and group["weight_decay"] == 0.2, "the options are as they were"


def _twice(function, *args):
    compiled = torch.compile(function)
    for _ in range(2):
        compiled(*args)
    return compiled


def test_what_cannot_be_exported_is_refused_with_the_reason(tmp_path):
    x = torch.ones(3)
    double = _twice(lambda x: x * 2, torch.ones(3, dtype=torch.float64))
    with pytest.raises(DTypeError, match=r"float64.*does not exist on WebGPU"):
        torch.export(double, tmp_path)
    with pytest.raises(CaptureError, match="writes into one of its arguments"):
        torch.export(_twice(lambda x: x.mul_(2), torch.ones(3)), tmp_path)
    for given_back in (lambda x: x, lambda x: x.t(), lambda x: (x + 1, x[0])):
        with pytest.raises(CaptureError, match="returns one of its arguments, or a view of it"):
            torch.export(given_back, tmp_path, (torch.ones(2, 3),))
    with pytest.raises(RuntimeError, match="call the function once"):
        torch.export(torch.compile(lambda x: x), tmp_path)
    fine = _twice(lambda x: x + 1, x)
    with pytest.raises(
        ShapeError,
        match=r"example 0 has float32\[4\] for 'x', the program was captured for float32\[3\]",
    ):
        torch.export(fine, tmp_path, examples=[(torch.ones(4),)])
    with pytest.raises(ValueError, match="'set' cannot be the name"):
        torch.export(fine, tmp_path, name="set")
    with pytest.raises(ValueError, match="returns 1 tensors, 2 names were given"):
        torch.export(fine, tmp_path, outputs=["a", "b"])
    with pytest.raises(OverflowError, match="32 bits"):
        torch.export(_twice(lambda x: x + (1 << 40), torch.ones(3, dtype=torch.int64)), tmp_path)


def test_gradients_left_behind_cost_the_page_nothing():
    model = MLP()

    @torch.compile
    def step(x):
        for p in model.parameters():
            p.grad = None
        loss = model(x).square().mean()
        loss.backward()
        return loss

    x = torch.randn(4, 12)
    for _ in range(2):
        step(x)
    exported = export_json(step)
    assert [s["name"] for s in exported.program["states"]] == [
        s["name"] for s in exported.program["states"] if s["name"].startswith("model.")
    ]
    assert exported.program["functions"]["step"]["updates"] == []
    # The forward pass alone: no product of the backward pass is left.
    products = [k for k in exported.program["kernels"] if k["name"].startswith("matmul")]
    assert len(products) == 2
